/*
 * Commit after binds that changed nothing but addresses: the lanes stay, with their flags, slots,
 * streams and mappings, and get the new addresses. What is each rank's own is done before the ranks
 * agree, so that they do so once; only the direct lane's peers are told anything.
 */
#include "bind.h"
#include "broadcast_list.h"
#include "count.h"
#include "direct.h"
#include "error.h"
#include "lanes.h"
#include "pipeline.h"
#include "quant.h"
#include "steps.h"

/* XFI_OF_*: of what is bound, what peers know the places of. */
static int lent(const xfer_plan *plan)
{
  if (plan->direct == NULL) return XFI_OF_SRC | XFI_OF_DST;
  return plan->uses_snapshots ? 0 : xfi_direct_lends(plan->direct);
}

bool xfi_rebind_is_mapped(const xfer_plan *plan)
{
  return lent(plan) != 0;
}

/* What is broadcast in place was settled by all ranks. */
static bool keeps_broadcasts(xfer_plan *plan)
{
  bool kept = false;

  return xfi_casts_rebind(&kept, plan->pipeline->casts, plan) == XFER_OK && kept;
}

bool xfi_rebind_keeps(xfer_plan *plan)
{
  const int halves = lent(plan);
  const bool none = plan->n_allocations == 0;

  if (xfi_run_is_staged(plan) || plan->relay != NULL || !keeps_broadcasts(plan)) return false;
  if (halves == 0) return xfi_run_note_allocations(plan) == XFER_OK;
  if (!none && xfi_run_keep_bound(plan)) return true; /* and nothing is asked */
  /* If there are none, the device cannot tell them apart, and reaches them all; or none is left of
   * what passed. */
  if (halves == (XFI_OF_SRC | XFI_OF_DST)) return none;
  return (none || xfi_run_knows(plan, halves)) && xfi_run_note_allocations(plan) == XFER_OK;
}

/* Does a run under way read what its lanes are written in? */
static bool is_read(const xfer_plan *plan)
{
  return plan->quant != NULL || plan->verify != NULL ||
         (plan->local != NULL && xfi_batch_is_read(plan->device, plan->local->batch)) ||
         (plan->snapshot != NULL && xfi_batch_is_read(plan->device, plan->snapshot->copy)) ||
         (plan->uses_snapshots && xfi_direct_is_read(plan->direct)) ||
         xfi_steps_are_read(plan->pipeline, plan->device);
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
  if (plan->uses_snapshots) XFI_TRY(xfi_direct_rebind(plan->direct, plan));
  return xfi_pipeline_rebind(plan->pipeline, plan);
}

xfer_status xfi_rebind_direct(xfer_plan *plan, bool *rebound, xfi_deadline deadline)
{
  xfer_status mine = xfi_run_await_last(plan);
  int n_rebound = 0;

  XFI_TRY(xfi_links_rebind(&plan->direct->links, plan, &mine, rebound, deadline));
  if (*rebound && mine == XFER_OK) mine = xfi_direct_rebind(plan->direct, plan);
  XFI_TRY(xfi_run_count_ranks(&n_rebound, plan, mine, *rebound, deadline));
  *rebound = n_rebound == plan->comm->size;
  return XFER_OK;
}
