/*
 * What a rank holds of a tensor, found from its layout alone: for digests, which shall not depend
 * on what a plan makes of it.
 */
#ifndef XFI_HELD_H
#define XFI_HELD_H

#include "layout.h"

/* A box, and where it lies in the rank's part. Everything counts elements. */
typedef struct xfi_held {
  int64_t lo[XFER_MAX_DIMS]; /* global */
  int64_t length[XFER_MAX_DIMS];
  int64_t local[XFER_MAX_DIMS];
} xfi_held;

typedef struct xfi_held_list {
  xfi_held *at;
  size_t n;
  size_t capacity;
} xfi_held_list;

/* Append what `rank` counts: over all ranks each element that is held at all comes once. Replicas
 * take turns: `turn` is any number that all ranks have equal. */
xfer_status xfi_layout_held(xfi_held_list *list, const xfer_layout *layout, int rank,
                            uint32_t turn);
void xfi_held_list_free(xfi_held_list *list);

#endif
