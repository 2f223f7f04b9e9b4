/*
 * What a commit makes of a plan, apart from the lanes that have a folder.
 */
#ifndef XFI_LANES_H
#define XFI_LANES_H

#include "run.h"

/* ---- commit.c ---- */

/* On how many ranks is it as `said`, besides the status of each? All fail where one has failed.
 * Collective. */
xfer_status xfi_run_hear(int *n_said, const xfer_plan *plan, xfer_status mine, bool said,
                         xfi_deadline deadline);
/* Give back all that commit made. */
void xfi_run_drop_lanes(xfer_plan *plan);

/* ---- local.c ---- */

/* Self-copies and ZERO elements as one batch; NULL: there are none. */
struct xfi_local {
  xfi_batch *batch;
  xfi_anchor *ends; /* [n][2] source and destination of each copy; NULL: a view is in pieces */
  size_t n;
};
xfer_status xfi_local_create(xfi_local **local, const xfer_plan *plan);
/* The same at other addresses. */
xfer_status xfi_local_move(xfer_plan *plan);
void xfi_local_destroy(xfi_local *local, xfi_device *device);

/* ---- relay.c ---- */

/* The relay of a plan whose moves have one, on any rank. */
xfer_status xfi_run_relay_create(xfer_plan *plan);
/* Its lanes, once the plan has its own. Collective. */
xfer_status xfi_run_relay_commit(xfer_plan *plan);
/* Add what it does to the figures of its plan. */
void xfi_run_relay_report(const xfer_plan *plan, xfer_plan_report_data *report);

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
