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
#ifndef XFI_FUSED_ROWS_H
#define XFI_FUSED_ROWS_H

#include "side.h"

enum { XFI_MAX_SLABS = 16 };

typedef struct xfi_slab {
  int part; /* index of the weight */
  int64_t offset, count, size, stride;
  xfi_few_units few;
  xfi_order order;
} xfi_slab;

typedef struct xfi_fused_rows {
  int n_slabs;
  xfi_slab slabs[XFI_MAX_SLABS];
  int n_tp;   /* ranks that share the rows by tensor parallelism; 1: each has all */
  int n_fsdp; /* ranks of FSDP, each of which has a chunk of what one of the n_tp has; 0: none */
  bool whole; /* each rank has all rows, for any n_tp */
  bool even;  /* n_tp must divide the number of units; otherwise rows are cut as by torch.chunk */
  int64_t groups; /* 0: each slab is shared out by itself */
  bool alternate; /* the rows alternate: one of the first part, one of the second, and so on */
} xfi_fused_rows;

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
int xfi_fused_ranks(const xfi_fused_rows *fused);
/* The rows that the r-th rank has of a part, ascending, as a layout counts them. */
xfer_status xfi_fused_part(const xfi_fused_rows *fused, int part, int r, xfi_row_ranges *rows);
/* The part's slab if the part is a single one with all its rows in order and so few units that
 * several ranks have the same one; else NULL. */
const xfi_slab *xfi_fused_few(const xfi_fused_rows *fused, int part, int64_t rows);
/* Refuses units or rows of an entry that the ranks cannot share evenly. */
xfer_status xfi_fused_check(const xfi_fused_rows *fused, const xfer_side *side,
                            const xfi_entry *entry);

#endif
