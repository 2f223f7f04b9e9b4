/* A problem's sides as layouts of the library, and a comparison of what the library says of them
 * with the oracle. */
#ifndef LAYOUTS_H
#define LAYOUTS_H

#include "problem.h"
#include "rng.h"

/* Make the two layouts of tensor `i`. On failure neither is there. */
xfer_status layouts_create(xfer_layout *layouts[2], const problem *p, int i);

/*
 * Compare shapes, runs and owners of a layout with the oracle, for the ranks 0 to n_ranks. Returns
 * false with one sentence in `why` at the first difference.
 */
bool layout_agrees(const xfer_layout *layout, const orc_side *side, xfer_dtype dtype, int n_ranks,
                   rng *r, orc_arena *arena, char *why, size_t n_bytes);

#endif
