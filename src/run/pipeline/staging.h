/*
 * The slots of the pipelines of a comm's plans, in one block that they share, as large as the most
 * demanding plan needs.
 *
 * Steps have addresses in the block, so a larger block means new steps for all plans: the commit
 * that needs it makes them, once nothing is in flight in the old one. On streams a run that uses
 * the block comes after the last run of another plan that used it.
 */
#ifndef XFI_STAGING_H
#define XFI_STAGING_H

#include "plans.h"

/* How much of max_staging_bytes each of packed rounds and broadcasts may use: half of it if a plan
 * has both, since a rank's slots hold the larger step of either, each way. */
uint64_t xfi_plan_staging_share(const xfer_plan *plan);

/* Allocate a block by plans->allocator; and free a block by its own allocator, or leak it if the
 * transport may still read or write it. */
xfer_status xfi_staging_alloc(xfi_staging_block *block, const xfi_plans *plans, size_t n_bytes);
void xfi_staging_free(const xfi_plans *plans, xfi_staging_block *block);
/* Leak the block, since something may still read or write it. */
void xfi_staging_abandon(xfi_staging_block *block);
/* Give slots to a pipeline that is about to become the plan's. If the block is too small, a new one
 * is made, and the caller gives the other plans' steps their addresses in it. */
xfer_status xfi_staging_attach(xfer_plan *plan, xfi_pipeline *pipeline);
/* The plan, which has no run in flight, needs no slots any more. The last plan frees the block. */
void xfi_staging_detach(xfer_plan *plan);
/* Called when a run of the plan is about to use the block. Returns the event after which the run
 * has to come; NULL: it need not wait. */
xfi_event *xfi_staging_turn(xfer_plan *plan);
/* Leak the slots of all plans, since some work of a failed run may never end. */
void xfi_staging_leak_slots(xfi_plans *plans);
/* Was the block leaked after the plan was committed? */
bool xfi_staging_is_leaked(const xfer_plan *plan);

#endif
