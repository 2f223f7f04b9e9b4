/*
 * Staging memory: the block of slots that all plans of a comm share, and blocks of their own for
 * mirrors, from the device or from the caller's allocator. Local to a rank, on the thread that
 * makes the comm's calls. staging.h explains how plans take turns.
 */
#include "staging.h"

#include "alloc.h"
#include "error.h"
#include "peers.h"
#include "steps.h"

uint64_t xfi_plan_staging_share(const xfer_plan *plan)
{
  const size_t n_broadcast = xfi_plan_n_broadcast(plan);
  const bool both = n_broadcast > 0 && n_broadcast < plan->moves->n_tensors;

  return plan->options.max_staging_bytes / (both ? 2 : 1);
}

xfer_status xfi_staging_alloc(xfi_staging_block *block, const xfi_plans *plans, size_t n_bytes)
{
  xfer_status st = XFER_OK;
  xfi_allocation found;
  void *memory = NULL;

  if (plans->allocator.alloc == NULL) {
    XFI_TRY_DONE(plans->device->ops->alloc(plans->device, &memory, n_bytes));
  } else {
    memory = plans->allocator.alloc(plans->allocator.context, n_bytes);
    XFI_CHECK_DONE(memory != NULL, XFER_ERR_NOMEM,
                   "%zu bytes of staging: the caller gave no memory", n_bytes);
    XFI_TRY_DONE(plans->device->ops->find_allocation(plans->device, memory, n_bytes, &found));
    XFI_CHECK_DONE((uintptr_t)memory % XFI_SLOT_ALIGN == 0, XFER_ERR_ARG,
                   "the caller's staging memory at %p is not a multiple of %d", memory,
                   XFI_SLOT_ALIGN);
  }
  *block = (xfi_staging_block){memory, n_bytes, plans->allocator};
  memory = NULL;
done:
  if (memory != NULL) plans->allocator.free(plans->allocator.context, memory);
  return st;
}

void xfi_staging_abandon(xfi_staging_block *block)
{
  if (block->at != NULL) xfi_abandon(block->at);
  *block = (xfi_staging_block){NULL, 0, {NULL, NULL, NULL}};
}

void xfi_staging_free(const xfi_plans *plans, xfi_staging_block *block)
{
  if (plans->comm->holds_memory || block->at == NULL)
    xfi_staging_abandon(block);
  else if (block->from.free == NULL)
    plans->device->ops->free(plans->device, block->at);
  else
    block->from.free(block->from.context, block->at);
  *block = (xfi_staging_block){NULL, 0, {NULL, NULL, NULL}};
}

/* Replace the block by a larger one. */
static xfer_status grow(xfi_plans *plans, size_t n_bytes)
{
  xfi_staging_block larger;

  for (const xfer_plan *q = plans->first; q != NULL; q = q->next)
    XFI_TRY(xfi_run_await_last(q));
  XFI_TRY(xfi_staging_alloc(&larger, plans, n_bytes));
  xfi_staging_free(plans, &plans->slots);
  plans->slots = larger;
  return XFER_OK;
}

xfer_status xfi_staging_attach(xfer_plan *plan, xfi_pipeline *p)
{
  xfi_plans *plans = plan->plans;
  const size_t n_bytes = 2 * (p->slot_bytes[0] + p->slot_bytes[1]);

  if (n_bytes == 0) return XFER_OK;
  if (n_bytes > plans->slots.n_bytes) XFI_TRY(grow(plans, n_bytes));
  p->slots = plans->slots.at;
  plan->next = plans->first;
  plans->first = plan;
  plan->has_slots = true;
  return XFER_OK;
}

void xfi_staging_detach(xfer_plan *plan)
{
  xfi_plans *plans = plan->plans;
  xfer_plan **at = &plans->first;

  if (!plan->has_slots) return;
  while (*at != plan)
    at = &(*at)->next;
  *at = plan->next;
  plan->has_slots = false;
  if (plans->last == plan) plans->last = NULL;
  if (plans->first == NULL) xfi_staging_free(plans, &plans->slots);
}

xfi_event *xfi_staging_turn(xfer_plan *plan)
{
  xfi_plans *plans = plan->plans;
  const xfer_plan *before = plans->last;

  if (!plan->has_slots) return NULL;
  plans->last = plan;
  return before != NULL && before != plan ? before->run.finished : NULL;
}

void xfi_staging_leak_slots(xfi_plans *plans)
{
  if (plans->slots.at == NULL) return;
  xfi_staging_abandon(&plans->slots);
  for (xfer_plan *q = plans->first; q != NULL; q = q->next)
    q->lanes.pipeline->slots = NULL;
}

bool xfi_staging_is_leaked(const xfer_plan *plan)
{
  return plan->has_slots && plan->lanes.pipeline->slots == NULL;
}
