/*
 * The part of a commit that gives lanes other addresses, after binds that changed nothing else. The
 * lanes keep their flags, slots, streams and mappings. commit.c calls the local part of this before
 * the ranks vote, so that they agree only once; only the direct lane has anything to tell its
 * peers.
 */
#include "allocations.h"
#include "bind.h"
#include "broadcast_list.h"
#include "count.h"
#include "direct.h"
#include "error.h"
#include "lanes.h"
#include "local.h"
#include "pipeline.h"
#include "quant.h"
#include "steps.h"

/* XFI_SIDE_*: the sides of bound memory whose addresses peers know. */
static int exported(const xfer_plan *plan)
{
  if (plan->lanes.direct == NULL) return XFI_SIDE_SRC | XFI_SIDE_DST;
  return plan->lanes.uses_snapshots ? 0 : xfi_direct_sides_exported(plan->lanes.direct);
}

bool xfi_rebind_is_mapped(const xfer_plan *plan)
{
  return exported(plan) != 0;
}

bool xfi_rebind_keeps(xfer_plan *plan)
{
  const int sides = exported(plan);
  const bool none = plan->memory.n_allocations == 0;
  bool kept = false; /* what all ranks agreed to broadcast in place */

  if (xfi_plan_is_staged(plan) || plan->relay != NULL ||
      xfi_bcasts_rebind(&kept, plan->lanes.pipeline->bcasts, plan) != XFER_OK || !kept)
    return false;
  if (sides == 0) return xfi_plan_list_allocations(plan) == XFER_OK;
  if (!none && xfi_plan_prune_allocations(plan)) return true; /* without a query of the device */
  /* Without allocations the device cannot tell them apart and reaches all memory, or nothing that
   * was listed is bound any more. */
  if (sides == (XFI_SIDE_SRC | XFI_SIDE_DST)) return none;
  return (none || xfi_plan_covers(NULL, plan, sides)) && xfi_plan_list_allocations(plan) == XFER_OK;
}

/* Does a run in flight still read the memory that describes its lanes? */
static bool is_read(const xfer_plan *plan)
{
  return plan->quant != NULL || plan->lanes.verify != NULL ||
         (plan->lanes.local != NULL && xfi_batch_is_read(plan->device, plan->lanes.local->batch)) ||
         (plan->lanes.snapshot != NULL &&
          xfi_batch_is_read(plan->device, plan->lanes.snapshot->copy)) ||
         (plan->lanes.uses_snapshots && xfi_direct_is_read(plan->lanes.direct)) ||
         xfi_steps_are_read(plan->lanes.pipeline, plan->device);
}

xfer_status xfi_rebind_local(xfer_plan *plan)
{
  if (is_read(plan)) XFI_TRY(xfi_run_await_last(plan));
  XFI_TRY(xfi_bindings_check(plan));
  XFI_TRY(xfi_bindings_check_disjoint(plan));
  XFI_TRY(xfi_quant_prepare(plan));
  XFI_TRY(xfi_local_rebind(plan));
  XFI_TRY(xfi_verify_prepare(plan));
  XFI_TRY(xfi_snapshot_rebind(plan));
  if (plan->lanes.uses_snapshots) XFI_TRY(xfi_direct_rebind(plan->lanes.direct, plan));
  return xfi_pipeline_rebind(plan->lanes.pipeline, plan);
}

xfer_status xfi_rebind_direct(xfer_plan *plan, bool *rebound, xfi_deadline deadline)
{
  xfer_status mine = xfi_run_await_last(plan);
  int n_rebound = 0;

  XFI_TRY(xfi_links_rebind(&plan->lanes.direct->links, plan, &mine, rebound, deadline));
  if (*rebound && mine == XFER_OK) mine = xfi_direct_rebind(plan->lanes.direct, plan);
  XFI_TRY(xfi_plan_count_ranks(&n_rebound, plan, mine, *rebound, deadline));
  *rebound = n_rebound == plan->comm->size;
  return XFER_OK;
}
