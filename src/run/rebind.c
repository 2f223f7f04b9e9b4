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

/* Does the commit know what the bytes lie in? Without any allocation the device cannot tell them
 * apart, and reaches them all. */
static bool is_known(const xfer_plan *plan, const xfi_bound *b, int elem_bytes)
{
  for (int64_t p = 0; b->is_set && plan->n_allocations > 0 && p < b->n_pieces; p++)
    if (xfi_run_allocation(plan, xfi_bound_piece(b, p), xfi_bound_reach(b, p, elem_bytes)) == NULL)
      return false;
  return true;
}

bool xfi_rebind_keeps(const xfer_plan *plan, size_t tensor)
{
  const xfi_binding *b = plan->bindings[tensor];
  const xfi_class *cls = xfi_plan_class(plan->moves, tensor);

  /* Where broadcasts are in place is settled by all ranks. */
  return plan->moves->n_broadcast == 0 && !xfi_run_is_staged(plan) && plan->relay == NULL &&
         is_known(plan, &b->src, cls->src->elem_bytes) &&
         is_known(plan, &b->dst, cls->dst->elem_bytes);
}

/* Marks what a bound view lies in. */
static void mark_used(bool *used, const xfer_plan *plan, const xfi_bound *b, int elem_bytes)
{
  for (int64_t p = 0; b->is_set && p < b->n_pieces; p++) {
    const xfi_allocation *at =
        xfi_run_allocation(plan, xfi_bound_piece(b, p), xfi_bound_reach(b, p, elem_bytes));

    if (at != NULL) used[at - plan->allocations] = true;
  }
}

/* What nothing is bound to any more may be freed. */
static xfer_status keep_used_allocations(xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  size_t n = 0;
  bool *used = NULL;

  if (plan->n_allocations == 0) return XFER_OK;
  used = xfi_calloc(plan->n_allocations, sizeof *used);
  XFI_CHECK(used != NULL, XFER_ERR_NOMEM, "%zu allocations", plan->n_allocations);
  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    const xfi_class *cls = xfi_plan_class(plan->moves, t);

    if (plan->bindings[t] == NULL) continue;
    mark_used(used, plan, &plan->bindings[t]->src, cls->src->elem_bytes);
    mark_used(used, plan, &plan->bindings[t]->dst, cls->dst->elem_bytes);
  }
  for (size_t i = 0; i < plan->n_allocations; i++)
    if (used[i]) plan->allocations[n++] = plan->allocations[i];
  plan->n_allocations = n;
done:
  xfi_free(used);
  return st;
}

/* Nobody may have waited for it. */
static xfer_status await_last_run(const xfer_plan *plan)
{
  if (plan->n_begun == 0) return XFER_OK;
  return plan->device->ops->event_sync(plan->device, plan->finished, xfi_run_deadline(plan));
}

xfer_status xfi_rebind_local(xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  XFI_TRY(await_last_run(plan));
  XFI_TRY(xfi_bindings_check_disjoint(plan));
  XFI_TRY(keep_used_allocations(plan));
  XFI_TRY(xfi_quant_prepare(plan));
  XFI_TRY(xfi_local_move(plan));
  XFI_TRY(xfi_verify_prepare(plan));
  XFI_TRY(xfi_pipeline_move(plan->pipeline, plan));
done:
  return st;
}

xfer_status xfi_rebind_direct(xfer_plan *plan, bool *moved, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  xfer_status mine = await_last_run(plan);
  int n_moved = 0;

  XFI_TRY(xfi_direct_move(plan->direct, plan, &mine, moved, deadline));
  XFI_TRY(xfi_run_hear(&n_moved, plan, mine, *moved, deadline));
  *moved = n_moved == plan->comm->size;
done:
  return st;
}
