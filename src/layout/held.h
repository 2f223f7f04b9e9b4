/* What a rank holds of a tensor, box by box. */
#ifndef XFI_HELD_H
#define XFI_HELD_H

#include "layout.h"

/* A box that is not empty, and where it lies in the rank's part. Everything counts elements. */
typedef struct xfi_held {
  int64_t bounds[2 * XFER_MAX_DIMS]; /* global: n_dims words lo, then n_dims words hi */
  int64_t local[XFER_MAX_DIMS];
  uint32_t part;
  int replica;   /* which replica of the part the rank is */
  uint32_t unit; /* in layouts by boxes: the unit that the box is or is a piece of */
} xfi_held;

typedef struct xfi_held_list {
  xfi_held *at;
  size_t n;
  size_t capacity;
} xfi_held_list;

/* Append what `rank` holds, in the order of its part: by placements every combination of runs.
 * A rank that is not in the mesh holds nothing. With `once` only the elements for which the rank is
 * read: over all parts together each element that is held comes once. */
xfer_status xfi_layout_held(xfi_held_list *list, const xfer_layout *layout, int rank, bool once);

#endif
