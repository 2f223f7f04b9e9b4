/* How the ranks of a stage share an entry, and cuts of a dim that the ranks of an axis
 * do not share evenly, or not in order: each needs a table of runs in the sharding. */
#ifndef XFI_CUTS_H
#define XFI_CUTS_H

#include "param_mapping.h"

/* The runs of each coordinate of an axis. */
typedef struct xfi_sharding_table {
  xfer_run_table table; /* what a RUNS placement points to */
  xfer_run *runs;       /* owned, as are the others */
  size_t n_runs, capacity;
  int64_t *first, *lengths;
  int n_coords; /* added until now */
} xfi_sharding_table;

typedef struct xfi_sharding {
  int n_axes;
  int shape[XFER_MAX_DIMS]; /* of the stage's ranks: replicas, an axis for each use, and one for
                               units that several ranks have, if there are fewer than ranks. The
                               mesh adds an axis of stages */
  xfer_placement placements[XFER_MAX_DIMS];
  int32_t n_order;
  int32_t order[XFER_MAX_DIMS];
  bool padded;
  int64_t padded_shape[XFER_MAX_DIMS];
  xfi_sharding_table tables[2]; /* of experts and a cut, or of FSDP where nothing else is cut */
  int n_tables;
} xfi_sharding;

/* What a sharding is made of: an entry in one of its layers, and how the side holds it. */
typedef struct xfi_sharding_input {
  const xfi_rule_set *set;
  const xfi_entry *entry;
  const xfi_applied_rule *applied;
  const xfi_param_mapping *mapping;
  int layer; /* -1: outside the layers */
} xfi_sharding_input;

/* Cuts the rows of the entry by an axis. This may add an axis. Only FSDP may cut inside a block of
 * scales. */
xfer_status xfi_cut_rows(xfi_sharding *sharding, const xfi_sharding_input *in, int axis);
/* Cuts experts by a map, or round robin if `map` is NULL. */
xfer_status xfi_cut_map(xfi_sharding *sharding, const xfi_sharding_input *in, int axis,
                        const xfi_expert_map *map);
/* Cuts a dim into pieces of `each`, which go to one rank after the other until nothing is left. The
 * part of each rank is padded with zeros to the length `padded`; if that is negative, it is not
 * padded. */
xfer_status xfi_cut_padded(xfi_sharding *sharding, const xfi_sharding_input *in, int axis, int dim,
                           int64_t each, int64_t padded);

#endif
