/*
 * One mesh axis splitting a part of `n` indices among its coordinates, in closed form both ways.
 */
#ifndef XFI_CUT_H
#define XFI_CUT_H

#include "layout.h"

/* One coordinate's hold on a run of the part: `global` counts in the part that is cut. */
typedef struct xfi_table_entry {
  xfer_run run;
  int64_t coord;
} xfi_table_entry;

struct xfi_table {
  int64_t n_coords;
  int64_t allow_zero;
  int64_t *first;         /* [n_coords + 1] index of each coordinate's first run */
  int64_t *local_lengths; /* [n_coords] length of each coordinate's part */
  xfer_run *runs;         /* [first[n_coords]], ascending in local for each coordinate */
  /* For the way back: entries by (global, coord, local), and the length of the longest run. */
  xfi_table_entry *entries;
  int64_t longest;
};

xfer_status xfi_table_create(xfi_table **table, const xfer_run_table *given);
void xfi_table_destroy(xfi_table *table);

/* How many of n indices coordinate `coord` holds. */
int64_t xfi_cut_length(const xfi_cut *cut, int64_t n, int64_t coord);

/* Start of coordinate `coord`'s part under SHARD; only for that kind. */
int64_t xfi_cut_start(const xfi_cut *cut, int64_t n, int64_t coord);

/* The way back of one index of coordinate `coord`, 0 <= local < xfi_cut_length(): its place
 * among the n; -1: a ZERO element, in no run of a table. */
int64_t xfi_cut_global(const xfi_cut *cut, int64_t n, int64_t coord, int64_t local);

/* Called for each run; a status other than XFER_OK ends the walk. */
typedef xfer_status (*xfi_cut_visit)(void *context, int64_t coord, xfer_run run);

/* The runs of one coordinate, ascending in local. */
xfer_status xfi_cut_runs(const xfi_cut *cut, int64_t n, int64_t coord, xfi_cut_visit visit,
                         void *context);

/* Every (coordinate, run) that holds part of [lo, hi) of n. */
xfer_status xfi_cut_holders(const xfi_cut *cut, int64_t n, int64_t lo, int64_t hi,
                            xfi_cut_visit visit, void *context);

#endif
