/* How the ranks of a stage share an entry: a placement on each axis of one of the side's grids. */
#ifndef XFI_SPREAD_H
#define XFI_SPREAD_H

#include "slot.h"

/* The runs of each coordinate of an axis. */
typedef struct xfi_spread_table {
  xfer_run_table table; /* what a RUNS placement points to */
  xfer_run *runs;       /* owned, as are the others */
  size_t n_runs, capacity;
  int64_t *first, *lengths;
  int n_coords; /* added until now */
} xfi_spread_table;

typedef struct xfi_spread {
  int n_axes;
  int shape[XFER_MAX_DIMS]; /* of the stage's ranks: replicas, an axis for each use, and one for
                               units that several ranks have, if there are fewer than ranks. The
                               mesh adds an axis of stages */
  xfer_placement placements[XFER_MAX_DIMS];
  int32_t n_order;
  int32_t order[XFER_MAX_DIMS];
  bool padded;
  int64_t padded_shape[XFER_MAX_DIMS];
  xfi_spread_table tables[2]; /* of experts and a cut, or of FSDP where nothing else is cut */
  int n_tables;
} xfi_spread;

/* By the rule that applies. */
xfer_status xfi_spread_make(xfi_spread *spread, const xfi_placing *placing, const xfi_entry *entry,
                            const xfi_ruling *ruling, const xfi_slot *slot, int layer);
/* Tensor parallelism splits `dim` evenly; negative: whole. For xfer_side_place(). */
xfer_status xfi_spread_place(xfi_spread *spread, const xfi_placing *placing, const xfi_entry *entry,
                             int dim);
void xfi_spread_free(xfi_spread *spread);

#endif
