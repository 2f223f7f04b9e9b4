/* Slots that the plans of a comm share. */
#include "staging.h"

#include "alloc.h"
#include "error.h"
#include "steps.h"

xfer_status xfi_staging_take(char **block, const xfi_plans *s, size_t n_bytes)
{
  xfer_status st = XFER_OK;
  xfi_allocation found;
  void *memory = NULL;

  if (s->giver.alloc == NULL) {
    XFI_TRY_DONE(s->device->ops->alloc(s->device, &memory, n_bytes));
  } else {
    memory = s->giver.alloc(s->giver.context, n_bytes);
    XFI_CHECK_DONE(memory != NULL, XFER_ERR_NOMEM,
                   "%zu bytes of staging: the caller gave no memory", n_bytes);
    XFI_TRY_DONE(s->device->ops->find_allocation(s->device, memory, n_bytes, &found));
    XFI_CHECK_DONE((uintptr_t)memory % XFI_SLOT_ALIGN == 0, XFER_ERR_ARG,
                   "the caller's staging memory at %p is not a multiple of %d", memory,
                   XFI_SLOT_ALIGN);
  }
  *block = memory;
  memory = NULL;
done:
  if (memory != NULL) s->giver.free(s->giver.context, memory);
  return st;
}

void xfi_staging_give(const xfi_plans *s, char *block, const xfi_giver *from)
{
  if (s->comm->holds_memory)
    xfi_abandon(block);
  else if (from->free == NULL)
    s->device->ops->free(s->device, block);
  else
    from->free(from->context, block);
}

static void give_block(xfi_plans *s)
{
  if (s->slots == NULL) return;
  xfi_staging_give(s, s->slots, &s->from);
  s->slots = NULL;
  s->n_bytes = 0;
}

/* A larger block for all. */
static xfer_status grow(xfi_plans *s, size_t n_bytes)
{
  char *block = NULL;

  for (const xfer_plan *q = s->first; q != NULL; q = q->next)
    XFI_TRY(xfi_run_await_last(q));
  XFI_TRY(xfi_staging_take(&block, s, n_bytes));
  give_block(s);
  s->slots = block;
  s->n_bytes = n_bytes;
  s->from = s->giver;
  return XFER_OK;
}

xfer_status xfi_staging_join(xfer_plan *plan, xfi_pipeline *p)
{
  xfi_plans *s = plan->of;
  const size_t n_bytes = 2 * (p->send_slot_bytes + p->recv_slot_bytes);

  if (n_bytes == 0) return XFER_OK;
  if (n_bytes > s->n_bytes) XFI_TRY(grow(s, n_bytes));
  p->slots = s->slots;
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
  if (s->first == NULL) give_block(s);
}

xfi_event *xfi_staging_turn(xfer_plan *plan)
{
  xfi_plans *s = plan->of;
  const xfer_plan *before = s->last;

  if (!plan->has_slots) return NULL;
  s->last = plan;
  return before != NULL && before != plan ? before->finished : NULL;
}

void xfi_staging_lose(xfi_plans *s)
{
  if (s->slots == NULL) return;
  xfi_abandon(s->slots);
  s->slots = NULL;
  s->n_bytes = 0;
  for (xfer_plan *q = s->first; q != NULL; q = q->next)
    q->pipeline->slots = NULL;
}

bool xfi_staging_is_lost(const xfer_plan *plan)
{
  return plan->has_slots && plan->pipeline->slots == NULL;
}
