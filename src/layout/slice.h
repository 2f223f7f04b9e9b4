/*
 * Ranges of the row-major order of a box, as a few smaller boxes: a rank's part in a flat cut, or a
 * window of a box that is sent as its elements in that order.
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
