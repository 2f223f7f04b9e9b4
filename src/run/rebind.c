/*
 * Commit after binds that changed nothing but addresses: the lanes stay, with their flags, slots,
 * streams and mappings, and get the new addresses. What is each rank's own is done before the ranks
 * agree, so that they do so once; only the direct lane's peers are told anything.
 */
#include "alloc.h"
#include "bind.h"
#include "count.h"
#include "direct.h"
#include "error.h"
#include "lanes.h"
#include "pipeline.h"
#include "quant.h"
#include "steps.h"

/* Marks what a bound view lies in; false: the commit did not know all of it. */
static bool mark_used(bool *used, const xfer_plan *plan, const xfi_bound *b, int elem_bytes)
{
  for (int64_t p = 0; b->is_set && p < b->n_pieces; p++) {
    const xfi_allocation *at =
        xfi_run_allocation(plan, xfi_bound_piece(b, p), xfi_bound_reach(b, p, elem_bytes));

    if (at == NULL) return false;
    used[at - plan->allocations] = true;
  }
  return true;
}

bool xfi_rebind_is_mapped(const xfer_plan *plan)
{
  return plan->direct == NULL || (!plan->offers && xfi_direct_is_mapped(plan->direct));
}

bool xfi_rebind_keeps(xfer_plan *plan)
{
  const size_t n = plan->n_allocations;
  bool *used = NULL;
  bool knows;

  /* Where broadcasts are in place is settled by all ranks. */
  if (xfi_run_n_broadcast(plan) > 0 || xfi_run_is_staged(plan) || plan->relay != NULL) return false;
  if (n == 0) return true;         /* the device cannot tell them apart, and reaches them all */
  if (!xfi_rebind_is_mapped(plan)) /* what peers know of it does not change */
    return xfi_run_note_allocations(plan) == XFER_OK;
  used = xfi_calloc(n, sizeof *used);
  knows = used != NULL;
  for (size_t t = 0; t < plan->moves->n_tensors && knows; t++) {
    const xfi_class *cls = xfi_plan_class(plan->moves, t);
    const xfi_binding *b = plan->bindings[t];

    knows = b == NULL || (mark_used(used, plan, &b->src, cls->src->elem_bytes) &&
                          mark_used(used, plan, &b->dst, cls->dst->elem_bytes));
  }
  if (knows) plan->n_allocations = 0;
  for (size_t i = 0; i < n && knows; i++)
    if (used[i]) plan->allocations[plan->n_allocations++] = plan->allocations[i];
  xfi_free(used);
  return knows;
}

/* Does a run under way read what its lanes are written in? */
static bool is_read(const xfer_plan *plan)
{
  return plan->quant != NULL || plan->verify != NULL ||
         (plan->local != NULL && xfi_batch_is_read(plan->device, plan->local->batch)) ||
         (plan->offer != NULL && xfi_batch_is_read(plan->device, plan->offer->copy)) ||
         (plan->offers && xfi_direct_is_read(plan->direct)) ||
         xfi_steps_are_read(plan->pipeline, plan->device);
}

xfer_status xfi_rebind_local(xfer_plan *plan)
{
  if (is_read(plan)) XFI_TRY(xfi_run_await_last(plan));
  XFI_TRY(xfi_bindings_check(plan));
  XFI_TRY(xfi_bindings_check_disjoint(plan));
  XFI_TRY(xfi_quant_prepare(plan));
  XFI_TRY(xfi_local_move(plan));
  XFI_TRY(xfi_verify_prepare(plan));
  XFI_TRY(xfi_offer_move(plan));
  if (plan->offers) XFI_TRY(xfi_direct_move(plan->direct, plan));
  return xfi_pipeline_move(plan->pipeline, plan);
}

xfer_status xfi_rebind_direct(xfer_plan *plan, bool *moved, xfi_deadline deadline)
{
  xfer_status mine = xfi_run_await_last(plan);
  int n_moved = 0;

  XFI_TRY(xfi_links_move(&plan->direct->links, plan, &mine, moved, deadline));
  if (*moved && mine == XFER_OK) mine = xfi_direct_move(plan->direct, plan);
  XFI_TRY(xfi_run_hear(&n_moved, plan, mine, *moved, deadline));
  *moved = n_moved == plan->comm->size;
  return XFER_OK;
}
