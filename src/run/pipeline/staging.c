/* Slots that the plans of a comm share. */
#include "staging.h"

#include "alloc.h"
#include "error.h"
#include "flows.h"
#include "steps.h"

uint64_t xfi_run_staging_share(const xfer_plan *plan)
{
  const size_t n_broadcast = xfi_run_n_broadcast(plan);
  const bool both = n_broadcast > 0 && n_broadcast < plan->moves->n_tensors;

  return plan->options.max_staging_bytes / (both ? 2 : 1);
}

xfer_status xfi_staging_alloc(xfi_staging_block *block, const xfi_plans *s, size_t n_bytes)
{
  xfer_status st = XFER_OK;
  xfi_allocation found;
  void *memory = NULL;

  if (s->allocator.alloc == NULL) {
    XFI_TRY_DONE(s->device->ops->alloc(s->device, &memory, n_bytes));
  } else {
    memory = s->allocator.alloc(s->allocator.context, n_bytes);
    XFI_CHECK_DONE(memory != NULL, XFER_ERR_NOMEM,
                   "%zu bytes of staging: the caller gave no memory", n_bytes);
    XFI_TRY_DONE(s->device->ops->find_allocation(s->device, memory, n_bytes, &found));
    XFI_CHECK_DONE((uintptr_t)memory % XFI_SLOT_ALIGN == 0, XFER_ERR_ARG,
                   "the caller's staging memory at %p is not a multiple of %d", memory,
                   XFI_SLOT_ALIGN);
  }
  *block = (xfi_staging_block){memory, n_bytes, s->allocator};
  memory = NULL;
done:
  if (memory != NULL) s->allocator.free(s->allocator.context, memory);
  return st;
}

void xfi_staging_abandon(xfi_staging_block *block)
{
  if (block->at != NULL) xfi_abandon(block->at);
  *block = (xfi_staging_block){NULL, 0, {NULL, NULL, NULL}};
}

void xfi_staging_free(const xfi_plans *s, xfi_staging_block *block)
{
  if (s->comm->holds_memory || block->at == NULL)
    xfi_staging_abandon(block);
  else if (block->from.free == NULL)
    s->device->ops->free(s->device, block->at);
  else
    block->from.free(block->from.context, block->at);
  *block = (xfi_staging_block){NULL, 0, {NULL, NULL, NULL}};
}

xfer_status xfi_run_await_last(const xfer_plan *plan)
{
  if (plan->run.n_begun == 0) return XFER_OK;
  return xfi_event_sync(plan->device, plan->run.finished,
                        plan->of->is_ending ? plan->run.ends : xfi_run_deadline(plan));
}

/* Replace the block by a larger one. */
static xfer_status grow(xfi_plans *s, size_t n_bytes)
{
  xfi_staging_block larger;

  for (const xfer_plan *q = s->first; q != NULL; q = q->next)
    XFI_TRY(xfi_run_await_last(q));
  XFI_TRY(xfi_staging_alloc(&larger, s, n_bytes));
  xfi_staging_free(s, &s->slots);
  s->slots = larger;
  return XFER_OK;
}

xfer_status xfi_staging_join(xfer_plan *plan, xfi_pipeline *p)
{
  xfi_plans *s = plan->of;
  const size_t n_bytes = 2 * (p->slot_bytes[0] + p->slot_bytes[1]);

  if (n_bytes == 0) return XFER_OK;
  if (n_bytes > s->slots.n_bytes) XFI_TRY(grow(s, n_bytes));
  p->slots = s->slots.at;
  plan->next = s->first;
  s->first = plan;
  plan->has_slots = true;
  return XFER_OK;
}

void xfi_staging_leave(xfer_plan *plan)
{
  xfi_plans *s = plan->of;
  xfer_plan **at = &s->first;

  if (!plan->has_slots) return;
  while (*at != plan)
    at = &(*at)->next;
  *at = plan->next;
  plan->has_slots = false;
  if (s->last == plan) s->last = NULL;
  if (s->first == NULL) xfi_staging_free(s, &s->slots);
}

xfi_event *xfi_staging_turn(xfer_plan *plan)
{
  xfi_plans *s = plan->of;
  const xfer_plan *before = s->last;

  if (!plan->has_slots) return NULL;
  s->last = plan;
  return before != NULL && before != plan ? before->run.finished : NULL;
}

void xfi_staging_leak_slots(xfi_plans *s)
{
  if (s->slots.at == NULL) return;
  xfi_staging_abandon(&s->slots);
  for (xfer_plan *q = s->first; q != NULL; q = q->next)
    q->lanes.pipeline->slots = NULL;
}

bool xfi_staging_is_leaked(const xfer_plan *plan)
{
  return plan->has_slots && plan->lanes.pipeline->slots == NULL;
}
