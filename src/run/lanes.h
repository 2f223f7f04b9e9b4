/*
 * What a commit makes of a plan, apart from the lanes that have a folder.
 */
#ifndef XFI_LANES_H
#define XFI_LANES_H

#include "bound_plan.h"

/* ---- commit.c ---- */

/* Give back all that commit made. */
void xfi_run_drop_lanes(xfer_plan *plan);

/* ---- local.c ---- */

/* Self-copies and ZERO elements as one batch; NULL: there are none. */
struct xfi_local {
  xfi_batch *batch;
  xfi_anchor (*ends)[2]; /* [n] source and destination of each copy */
  size_t n;
  size_t capacity;
  bool in_pieces; /* some view is, so that ends say nothing */
};
xfer_status xfi_local_create(xfi_local **local, const xfer_plan *plan);
/* The same at other addresses. */
xfer_status xfi_local_move(xfer_plan *plan);
void xfi_local_destroy(xfi_local *local, xfi_device *device);

/* ---- shadow.c ---- */

/* Shadows of all destinations, where the plan is staged; what it made is the plan's, whatever it
 * returns. */
xfer_status xfi_shadow_create(xfer_plan *plan);
void xfi_shadow_destroy(xfer_plan *plan);
uint64_t xfi_shadow_bytes(const xfer_plan *plan);
/* Something of a run that failed may still write there: leave them to it. */
void xfi_shadow_lose(xfer_plan *plan);
/* Of a run that is complete on all ranks: write the destinations. Collective. */
xfer_status xfi_shadow_write(xfer_plan *plan, xfi_deadline deadline);

#endif
