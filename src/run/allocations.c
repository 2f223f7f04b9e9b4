/*
 * The allocations of the device that bound memory lies in: listed at commit, since peers map whole
 * allocations, and looked up again before each run, since memory that was freed since then may not
 * be touched. Local to a rank.
 */
#include "allocations.h"

#include "alloc.h"
#include "error.h"
#include "vec.h"

static xfer_status add_allocation(xfer_plan *plan, size_t *capacity, const void *pointer,
                                  size_t n_bytes)
{
  xfi_allocation found;

  /* Views of one buffer tend to follow each other, so most queries of the device can be saved. */
  if (plan->memory.n_allocations > 0) {
    const xfi_allocation *last = &plan->memory.allocations[plan->memory.n_allocations - 1];
    const char *at = pointer;

    if (at >= (const char *)last->base && at + n_bytes <= (const char *)last->base + last->n_bytes)
      return XFER_OK;
  }
  XFI_TRY(plan->device->ops->find_allocation(plan->device, pointer, n_bytes, &found));
  if (found.id == 0) return XFER_OK; /* the device cannot tell allocations apart */
  return XFI_APPEND(plan->memory.allocations, plan->memory.n_allocations, *capacity, found);
}

static int by_base(const void *a, const void *b)
{
  const xfi_allocation *x = a;
  const xfi_allocation *y = b;

  if (x->base != y->base) return x->base < y->base ? -1 : 1;
  if (x->n_bytes != y->n_bytes) return x->n_bytes < y->n_bytes ? -1 : 1;
  return (x->id > y->id) - (x->id < y->id);
}

/* Add the allocations of one view of tensor t. */
static xfer_status add_view(xfer_plan *plan, size_t *capacity, size_t t, const xfi_bound *b,
                            xfi_side side)
{
  const xfi_class *cls = xfi_moves_class(plan->moves, t);
  const int elem_bytes = xfi_side_layout(cls, side)->elem_bytes;
  xfer_status st = XFER_OK;

  for (int64_t p = 0; b->is_set && p < b->n_pieces && st == XFER_OK; p++)
    st = add_allocation(plan, capacity, xfi_bound_piece(b, p), xfi_bound_reach(b, p, elem_bytes));
  if (st != XFER_OK)
    xfi_set_error("tensor \"%.100s\", %s view: %s", plan->moves->tensors[t].name,
                  xfi_side_name(side), xfer_last_error());
  return st;
}

xfer_status xfi_plan_list_allocations(xfer_plan *plan)
{
  size_t capacity = 0;
  size_t n = 0; /* the index of the last one that is kept */

  xfi_free(plan->memory.allocations);
  plan->memory.allocations = NULL;
  plan->memory.n_allocations = 0;
  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    if (plan->memory.bindings[t] == NULL) continue;
    XFI_TRY(add_view(plan, &capacity, t, &plan->memory.bindings[t]->src, XFI_SIDE_SRC));
    XFI_TRY(add_view(plan, &capacity, t, &plan->memory.bindings[t]->dst, XFI_SIDE_DST));
    XFI_TRY(add_view(plan, &capacity, t, &plan->memory.bindings[t]->staged, XFI_SIDE_DST));
  }
  if (plan->memory.n_allocations == 0) return XFER_OK;
  xfi_sort(plan->memory.allocations, plan->memory.n_allocations, sizeof *plan->memory.allocations,
           by_base);
  for (size_t i = 1; i < plan->memory.n_allocations; i++)
    if (by_base(&plan->memory.allocations[i], &plan->memory.allocations[n]) != 0)
      plan->memory.allocations[++n] = plan->memory.allocations[i];
  plan->memory.n_allocations = n + 1;
  return XFER_OK;
}

const xfi_allocation *xfi_plan_find_changed(const xfer_plan *plan)
{
  const xfi_device_ops *dev = plan->device->ops;
  size_t i = plan->memory.n_allocations;

  if (plan->main != NULL) return NULL; /* the main plan checks them */
  if (dev->find_changed != NULL)
    i = dev->find_changed(plan->device, plan->memory.allocations, plan->memory.n_allocations);
  return i < plan->memory.n_allocations ? &plan->memory.allocations[i] : NULL;
}

const xfi_allocation *xfi_plan_allocation(const xfer_plan *plan, const void *pointer,
                                          size_t n_bytes)
{
  const xfer_plan *owner = xfi_plan_owner(plan);
  const xfi_allocation *found =
      xfi_allocation_at(owner->memory.allocations, owner->memory.n_allocations, pointer);

  if (found == NULL || (const char *)pointer + n_bytes > (const char *)found->base + found->n_bytes)
    return NULL; /* adjacent chunks were listed as one allocation, of which these bytes may be more
                  */
  return found;
}

/* Marks the allocations that a view lies in; false: some piece lies in none. */
static bool mark_view(bool *used, const xfer_plan *plan, const xfi_bound *b, int elem_bytes)
{
  for (int64_t p = 0; b->is_set && p < b->n_pieces; p++) {
    const xfi_allocation *at =
        xfi_plan_allocation(plan, xfi_bound_piece(b, p), xfi_bound_reach(b, p, elem_bytes));

    if (at == NULL) return false;
    if (used != NULL) used[at - plan->memory.allocations] = true;
  }
  return true;
}

bool xfi_plan_covers(bool *used, const xfer_plan *plan, int sides)
{
  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    const xfi_class *cls = xfi_moves_class(plan->moves, t);
    const xfi_binding *b = plan->memory.bindings[t];

    if (b == NULL) continue;
    if ((sides & XFI_SIDE_SRC) != 0 && !mark_view(used, plan, &b->src, cls->src->elem_bytes))
      return false;
    if ((sides & XFI_SIDE_DST) == 0) continue;
    if (!mark_view(used, plan, &b->dst, cls->dst->elem_bytes) ||
        !mark_view(used, plan, &b->staged, cls->dst->elem_bytes))
      return false;
  }
  return true;
}

bool xfi_plan_prune_allocations(xfer_plan *plan)
{
  const size_t n = plan->memory.n_allocations;
  bool *used = xfi_calloc(n, sizeof *used);
  const bool covered = used != NULL && xfi_plan_covers(used, plan, XFI_SIDE_SRC | XFI_SIDE_DST);

  if (covered) plan->memory.n_allocations = 0;
  for (size_t i = 0; i < n && covered; i++)
    if (used[i])
      plan->memory.allocations[plan->memory.n_allocations++] = plan->memory.allocations[i];
  xfi_free(used);
  return covered;
}
