/* Where a test puts the parts of its tensors: random strides, gaps, offsets, pieces, shared
 * buffers. */
#ifndef VIEWS_H
#define VIEWS_H

#include "problem.h"
#include "rng.h"

/* One part in a memory that starts at 0. */
typedef struct placed {
  bool empty;
  xfer_view_kind kind;
  int n_dims;
  int64_t elem;                  /* bytes of an element */
  int64_t shape[ORC_MAX_DIMS];   /* of the part */
  int64_t strides[ORC_MAX_DIMS]; /* bytes */
  int piece_dim;
  int64_t n_pieces; /* 1 unless kind is XFER_VIEW_PIECES */
  int64_t *bases;   /* [n_pieces] bytes from the start of the memory */
} placed;

/*
 * Place one side's parts of all tensors on one rank; has[i] is false where the rank has no part of
 * tensor i. Returns how large the memory must be.
 */
int64_t views_place(placed *out, const problem *p, int side, const orc_part *parts, const bool *has,
                    rng *r, orc_arena *arena);

/* The library's view of it in `memory`. Its table of pieces lies in `arena`. */
xfer_view placed_view(const placed *v, unsigned char *memory, orc_arena *arena);

/* Where the element x lies. */
int64_t placed_offset(const placed *v, const int64_t *x);

#endif
