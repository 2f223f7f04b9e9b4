/*
 * How the rows of weights are put together in a local (fused) tensor, and how the ranks of an axis
 * share them.
 *
 * A *slab* is rows of one weight at equal distances: `count` units of `size` rows, `stride` apart,
 * as in a hyperslab of HDF5. A local tensor is a list of slabs. A rank takes its units of each
 * slab, one slab after the other; or, with `groups`, each group gets its share of every slab, one
 * group after the other, and the rank takes its stretch of the whole. In the end every fused tensor
 * is a list of runs for each rank.
 */
#ifndef XFI_CUTS_H
#define XFI_CUTS_H

#include "side.h"

enum { XFI_MAX_SLABS = 16 };

typedef struct xfi_slab {
  int part; /* index of the weight */
  int64_t offset, count, size, stride;
  xfi_few few;
  xfi_order order;
} xfi_slab;

typedef struct xfi_fusing {
  int n_slabs;
  xfi_slab slabs[XFI_MAX_SLABS];
  int n;          /* ranks that share the rows; 1: each has all */
  int inner;      /* FSDP's ranks, each of which has a chunk of what one of the n has; 0: no FSDP */
  bool whole;     /* each rank has all rows, for any n */
  bool even;      /* n must divide the number of units; otherwise rows are cut as by torch.chunk */
  int64_t groups; /* 0: each slab is shared out by itself */
  bool alternate; /* the rows alternate: one of the first part, one of the second, and so on */
} xfi_fusing;

/* Rows of one part, and where they lie among the rows of the rank. */
typedef struct xfi_row_range {
  int part;
  int64_t global, length, at;
} xfi_row_range;

typedef struct xfi_row_ranges {
  xfi_row_range *at;
  size_t n, capacity;
} xfi_row_ranges;

/* How many ranks share the rows, by tensor parallelism (which varies fastest) and FSDP. */
int xfi_fusing_ranks(const xfi_fusing *fusing);
/* The rows that the r-th rank has of a part, ascending, as a layout counts them. */
xfer_status xfi_fusing_part(const xfi_fusing *fusing, int part, int r, xfi_row_ranges *rows);

/* ---- how the ranks of a stage hold one weight ---- */

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

void xfi_spread_free(xfi_spread *spread);
/* Cuts the rows of an entry, which is part `part` of the fused tensor, by an axis. This may add an
 * axis. Only FSDP may cut inside a block of scales. */
xfer_status xfi_cut_rows(xfi_spread *spread, int axis, const xfi_fusing *fusing, int part,
                         const xfer_side *side, const xfi_entry *entry);
/* Cuts experts by a map, or round robin if `map` is NULL. */
xfer_status xfi_cut_map(xfi_spread *spread, int axis, const xfi_map *map, const xfer_side *side,
                        const xfi_entry *entry);
/* Cuts a dim of `length` into pieces of `each`, which go to one rank after the other until nothing
 * is left. Each rank's part is padded with zeros to `room` indices; if `room` is negative, it is
 * not padded. */
xfer_status xfi_cut_roomy(xfi_spread *spread, int axis, int dim, int64_t length, int64_t each,
                          int64_t room);

#endif
