/* What each training rank sends as a whole, and where a receiver's parts of it go. */
#ifndef PERF_SLICES_H
#define PERF_SLICES_H

#include "case.h"

/* Contiguous memory of one training rank that travels as one. */
typedef struct perf_piece {
  int root;
  size_t local;  /* index among the root's local tensors, */
  size_t offset; /* and where it begins there */
  size_t n_bytes;
  size_t at; /* in its bucket */
  int bucket;
} perf_piece;

/* One 2-D copy out of a piece that was received. */
typedef struct perf_slice {
  size_t piece;
  size_t offset;
  char *dst;
  size_t src_pitch;
  size_t dst_pitch;
  size_t width;
  size_t height;
} perf_slice;

/* All zero: nothing. */
typedef struct perf_slices {
  perf_piece *pieces; /* the same on every rank */
  size_t n_pieces;
  size_t cap_pieces;
  perf_slice *slices; /* ascending in piece; of this rank */
  size_t n_slices;
  size_t cap_slices;
} perf_slices;

/* `per_expert`: of tensors with three dims each index of the first is a piece of its own. */
bool perf_slices_make(perf_slices *s, const perf_world *w, const perf_case *c, bool per_expert);
void perf_slices_free(perf_slices *s);

#endif
