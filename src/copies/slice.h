/*
 * Windows of a stream: a box is sent as its elements in row-major order, and a window may begin and
 * end anywhere in that order. A slice of a box is a few smaller boxes.
 */
#ifndef XFI_SLICE_H
#define XFI_SLICE_H

#include "xfer/xfer.h"

/* A box inside the sliced box, `offset` elements after the slice's first element. */
typedef struct xfi_slice {
  int64_t start[XFER_MAX_DIMS];
  int64_t length[XFER_MAX_DIMS];
  int64_t offset;
} xfi_slice;

enum { XFI_MAX_SLICES = 2 * XFER_MAX_DIMS };

/* Elements [first, end) of a box of `length`, first < end, as at most XFI_MAX_SLICES boxes in
 * order. Returns how many. */
int xfi_slice_box(xfi_slice *slices, const int64_t *length, int n_dims, int64_t first, int64_t end);

#endif
