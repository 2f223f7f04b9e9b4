/*
 * Commit: from bindings to lanes. And release, which takes the lanes back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "error.h"
#include "run.h"
#include "vec.h"

/* All that commit made. */
void xfi_run_drop_lanes(xfer_plan *plan)
{
  if (plan->unawaited && plan->device->ops->event_sync(plan->device, plan->finished,
                                                       xfi_run_deadline(plan)) == XFER_OK)
    plan->unawaited = false;
  if (plan->local != NULL) plan->device->ops->batch_destroy(plan->device, plan->local);
  xfi_direct_destroy(plan->direct, plan->abandoned);
  xfi_pipeline_destroy(plan->pipeline, plan->device,
                       plan->abandoned || (plan->comm != NULL && plan->comm->holds_memory));
  xfi_free(plan->allocations);
  plan->local = NULL;
  plan->direct = NULL;
  plan->pipeline = NULL;
  plan->allocations = NULL;
  plan->n_allocations = 0;
  plan->refused = false;
  plan->state = XFI_PLAN_UNCOMMITTED;
  plan->changed = true;
}

static xfer_status note_allocation(xfer_plan *plan, size_t *capacity, const void *pointer,
                                   size_t n_bytes)
{
  xfer_status st = XFER_OK;
  xfi_allocation found;

  XFI_TRY(plan->device->ops->find_allocation(plan->device, pointer, n_bytes, &found));
  if (found.id == 0) return XFER_OK; /* this device cannot tell one allocation from the next */
  if (plan->n_allocations > 0 && plan->allocations[plan->n_allocations - 1].id == found.id)
    return XFER_OK; /* as views of one buffer tend to be: fewer to sort */
  XFI_TRY(xfi_vec_reserve(&plan->allocations, capacity, plan->n_allocations + 1,
                          sizeof *plan->allocations));
  plan->allocations[plan->n_allocations++] = found;
done:
  return st;
}

static int by_id(const void *a, const void *b)
{
  const xfi_allocation *x = a;
  const xfi_allocation *y = b;

  return (x->id > y->id) - (x->id < y->id);
}

/* Those of one view of tensor t. */
static xfer_status note_view(xfer_plan *plan, size_t *capacity, size_t t, bool source)
{
  const xfi_bound *b = source ? xfi_run_src(plan, t) : xfi_run_dst(plan, t);
  const int elem_bytes = xfi_plan_class(plan->moves, (uint32_t)t)->src->elem_bytes;
  xfer_status st = XFER_OK;
  char why[XFI_ERROR_BYTES];

  for (int64_t p = 0; b->is_set && p < b->n_pieces && st == XFER_OK; p++)
    st = note_allocation(plan, capacity, xfi_bound_piece(b, p), xfi_bound_reach(b, p, elem_bytes));
  if (st != XFER_OK) {
    snprintf(why, sizeof why, "%s", xfi_last_error());
    xfi_set_error("tensor \"%.100s\", %s view: %s", plan->moves->tensors[t].name,
                  source ? "source" : "destination", why);
  }
  return st;
}

/* Which allocations bound memory lies in, each once, for run to look at again. Also finds memory
 * that copies cannot use. */
static xfer_status note_allocations(xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  size_t capacity = 0;
  size_t n = 0; /* the last one kept */

  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    if (plan->bindings[t] == NULL) continue;
    XFI_TRY(note_view(plan, &capacity, t, true));
    XFI_TRY(note_view(plan, &capacity, t, false));
  }
  if (plan->n_allocations == 0) goto done;
  qsort(plan->allocations, plan->n_allocations, sizeof *plan->allocations, by_id);
  for (size_t i = 1; i < plan->n_allocations; i++)
    if (plan->allocations[i].id != plan->allocations[n].id)
      plan->allocations[++n] = plan->allocations[i];
  plan->n_allocations = n + 1;
done:
  return st;
}

/* The part of commit that needs no other rank. */
static xfer_status commit_local(xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_bindings_check(plan));
  XFI_TRY(note_allocations(plan));
  XFI_TRY(xfi_local_create(&plan->local, plan));
done:
  return st;
}

/* Has any rank bound something since the last commit? Collective. */
static xfer_status any_changed(bool *changed, const xfer_plan *plan, xfer_status mine)
{
  xfi_comm *comm = plan->comm;
  xfer_status st = XFER_OK;
  unsigned char said[2] = {plan->changed, mine != XFER_OK};
  unsigned char(*all)[2] = xfi_comm_calloc(comm, (size_t)comm->size, sizeof *all);
  bool failed = false;

  XFI_CHECK(all != NULL, XFER_ERR_NOMEM, "%d ranks", comm->size);
  XFI_TRY(comm->ops->all_gather(comm, all, said, sizeof said, xfi_run_deadline(plan)));
  *changed = false;
  for (int r = 0; r < comm->size; r++) {
    *changed = *changed || all[r][0] != 0;
    failed = failed || all[r][1] != 0;
  }
  if (failed) st = xfi_comm_agree(comm, mine, xfi_run_deadline(plan)); /* for the text */
done:
  xfi_free(all);
  return st;
}

static xfer_status check_idle(const xfer_plan *plan, const char *before)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(plan->state != XFI_PLAN_RUNNING, XFER_ERR_STATE,
            "a run is in flight; wait for it before %s", before);
done:
  return st;
}

/* Lanes in the order in which they take what is left: local, direct, pipeline. */
static xfer_status make_lanes(xfer_plan *plan)
{
  xfi_comm *comm = plan->comm;
  xfer_status st = XFER_OK;

  xfi_run_drop_lanes(plan);
  plan->abandoned = false; /* nobody knows of what is made now */
  plan->epoch = 0;
  XFI_TRY(xfi_comm_agree(comm, commit_local(plan), xfi_run_deadline(plan)));
  XFI_TRY(xfi_direct_create(&plan->direct, plan));
  XFI_TRY(xfi_comm_agree(comm, xfi_pipeline_create(&plan->pipeline, plan), xfi_run_deadline(plan)));
  if (comm->ops->warm_up != NULL) {
    st = comm->ops->warm_up(comm, xfi_run_deadline(plan));
    XFI_TRY(xfi_comm_agree(comm, st, xfi_run_deadline(plan)));
  }
done:
  return st;
}

xfer_status xfi_run_commit(xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(plan->comm != NULL, XFER_ERR_STATE, "a simulated plan cannot be committed");
  XFI_TRY(xfi_run_commit_with(plan, check_idle(plan, "committing")));
done:
  return st;
}

xfer_status xfi_run_commit_with(xfer_plan *plan, xfer_status mine)
{
  xfer_status st = XFER_OK;
  bool changed = true;

  /* Bound anew at the same addresses, which another allocation may have by now. */
  if (plan->state != XFI_PLAN_RUNNING && xfi_run_find_changed(plan) != NULL) plan->changed = true;
  st = any_changed(&changed, plan, mine);
  if (st != XFER_OK && plan->state != XFI_PLAN_RUNNING) {
    plan->state = XFI_PLAN_UNCOMMITTED;
    plan->changed = true;
  }
  XFI_TRY(st);
  if (changed) st = make_lanes(plan);
  if (st != XFER_OK) {
    xfi_run_drop_lanes(plan);
    goto done;
  }
  plan->changed = false;
  plan->refused = false;
  plan->state = XFI_PLAN_COMMITTED;
done:
  return st;
}

xfer_status xfi_run_release(xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(plan->comm != NULL, XFER_ERR_STATE, "a simulated plan has nothing to release");
  st = check_idle(plan, "releasing");
  XFI_TRY(xfi_comm_agree(plan->comm, st, xfi_run_deadline(plan)));
  xfi_run_drop_lanes(plan);
  XFI_TRY(
      xfi_comm_agree(plan->comm, XFER_OK, xfi_run_deadline(plan))); /* nobody maps us any more */
done:
  return st;
}
