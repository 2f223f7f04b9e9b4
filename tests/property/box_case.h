/*
 * Random problems in which a side is by boxes: lists of boxes made at random, flat ranges, and what
 * a random side by placements comes to. What must come out is found by walking every element of
 * every box; no code and no idea is shared with the library.
 */
#ifndef BOX_CASE_H
#define BOX_CASE_H

#include "carry.h"

/* One side of a tensor. */
typedef struct box_side {
  enum { BY_PLACEMENTS, BY_BOXES, BY_RANGES } kind;
  bool own;       /* each rank says its own boxes only */
  bool converted; /* they are what the placements of the problem's side come to */
  int n_ranks;
  int ranks[ORC_MAX_RANKS];
  int64_t first[ORC_MAX_RANKS + 1]; /* boxes of the i-th rank */
  int64_t *bounds;                  /* [first[n_ranks]][2][n_dims] */
  int64_t ranges[ORC_MAX_RANKS][2]; /* BY_RANGES: what the boxes were made of */
} box_side;

typedef struct box_case {
  problem p; /* shapes, dtypes, placements and options */
  box_side sides[MAX_TENSORS][2];
  bool is_covered[MAX_TENSORS]; /* every destination element has a source */
  orc_arena arena;
} box_case;

/* What a rank holds of one side: of each element, in the order of the list and row-major in each
 * box, its place in the tensor's row-major order, or -1 for a ZERO element. */
typedef struct box_held {
  int64_t n;
  int64_t *flat;   /* [n] */
  int64_t n_boxes; /* by placements 1, or 0 outside the mesh */
  int64_t *shapes; /* [n_boxes][n_dims] */
} box_held;
box_held box_case_held(const box_case *c, int tensor, int side, int rank, orc_arena *arena);

/* Case `number` of `seed`. Zero-initialise; what an earlier one held is given back. */
void box_case_make(box_case *c, uint64_t seed, uint64_t number);
void box_case_free(box_case *c);
void box_case_print(FILE *file, const box_case *c);

/* What one rank does with it: make layouts, plan, run, compare. As random_case_rank(). */
bool box_case_rank(const box_case *c, xfer_comm *comm, const rank_device *device, bool corrupt,
                   char *why, size_t n_why);

/* Planned by boxes, a side by placements that holds nothing twice gives the same moves. */
bool box_case_same_moves(const box_case *c, char *why, size_t n_why);

#endif
