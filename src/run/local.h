/*
 * The local lane: one batch that copies within this rank and zeroes ZERO elements.
 */
#ifndef XFI_LOCAL_H
#define XFI_LOCAL_H

#include "wire.h"

struct xfi_local {
  xfi_batch *batch;
  xfi_anchor (*anchors)[2]; /* [n] the source and the destination of each copy */
  size_t n;
  size_t capacity;
  bool in_pieces; /* some view has several pieces: `anchors` does not give its addresses */
};
/* *local stays NULL if there is nothing to do. */
xfer_status xfi_local_create(xfi_local **local, const xfer_plan *plan);
/* Give plan->lanes.local the addresses of what is bound now. */
xfer_status xfi_local_rebind(xfer_plan *plan);
void xfi_local_destroy(xfi_local *local, xfi_device *device);
/* Is there a local lane, of so few bytes that another lane's launch should make its copies? */
bool xfi_local_may_join(const xfer_plan *plan);
/* Append all copies within the rank, at the present addresses, and record where each begins in
 * `local`; NULL: nowhere. */
xfer_status xfi_local_add(xfi_local *local, xfi_copies *copies, const xfer_plan *plan);
/* Another lane makes these copies from here on, until the lanes are built anew. */
void xfi_local_join(xfer_plan *plan);

#endif
