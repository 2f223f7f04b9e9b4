/*
 * Twins of all that a rank holds on one side of a plan: dense, one after the other, in one block of
 * the plan's own.
 */
#include <string.h>

#include "alloc.h"
#include "bind.h"
#include "error.h"
#include "lanes.h"

enum { ALIGN = 256 }; /* as device memory is */

static uint64_t bytes_of(const xfer_plan *plan, size_t tensor, bool source)
{
  return (xfi_bind_bytes(plan, tensor, source) + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t xfi_twins_bytes(const xfer_plan *plan, bool source)
{
  uint64_t n_bytes = 0;

  for (size_t t = 0; t < plan->moves->n_tensors; t++)
    n_bytes += bytes_of(plan, t, source);
  return n_bytes;
}

xfer_status xfi_twins_create(xfi_twins **out, const xfer_plan *plan, bool source)
{
  const uint64_t n_bytes = xfi_twins_bytes(plan, source);
  xfi_twins *twins;
  char *at;

  if (n_bytes == 0) return XFER_OK;
  twins = *out = xfi_calloc(1, sizeof *twins);
  XFI_CHECK(twins != NULL, XFER_ERR_NOMEM, "copies of what is bound");
  twins->of_sources = source;
  XFI_TRY(xfi_staging_take(&twins->block, plan->of, n_bytes));
  at = twins->block.at;
  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    if (bytes_of(plan, t, source) == 0) continue;
    XFI_TRY(xfi_bind_twin(plan, t, source, at));
    at += bytes_of(plan, t, source);
  }
  XFI_TRY(xfi_stream_create(plan->device, &twins->stream));
  return xfi_event_create(plan->device, &twins->event);
}

/* All of a tensor's part, by the pieces of what is bound. */
static xfer_status add_copies(xfi_copies *copies, const xfer_plan *plan, size_t tensor, bool source)
{
  const xfi_class *cls = xfi_plan_class(plan->moves, tensor);
  const xfi_elem elem = {(source ? cls->src : cls->dst)->elem_bytes, NULL};
  const xfi_binding *b = plan->bindings[tensor];
  const xfi_bound *bound = source ? &b->src : &b->dst;
  xfi_end there = {bound, {0}};
  xfi_end twin = {source ? &b->offer : &b->shadow, {0}};
  int64_t length[XFER_MAX_DIMS];

  for (int64_t p = 0; p < bound->n_pieces; p++) {
    xfi_bound_shape(length, bound, p);
    xfi_bound_start(there.start, bound, p);
    memcpy(twin.start, there.start, sizeof twin.start);
    XFI_TRY(xfi_copies_add(copies, source ? &twin : &there, source ? &there : &twin, length,
                           bound->n_dims, elem));
  }
  return XFER_OK;
}

xfer_status xfi_twins_prepare(xfi_twins *twins, const xfer_plan *plan, const bool *which)
{
  const bool source = twins->of_sources;
  xfer_status st = XFER_OK;
  xfi_copies copies = {NULL, 0, 0};

  for (size_t t = 0; t < plan->moves->n_tensors; t++)
    if ((which == NULL || which[t]) && bytes_of(plan, t, source) > 0)
      XFI_TRY_DONE(add_copies(&copies, plan, t, source));
  if (twins->has_local) XFI_TRY_DONE(xfi_local_add(&copies, plan));
  st = xfi_batch_make(plan->device, &twins->copy, copies.at, copies.n, 100);
done:
  xfi_copies_free(&copies);
  return st;
}

void xfi_twins_lose(xfi_twins *twins)
{
  if (twins != NULL) twins->is_lost = true;
}

void xfi_twins_destroy(xfi_twins **of, xfer_plan *plan)
{
  xfi_twins *twins = *of;

  if (twins == NULL) return;
  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    xfi_binding *b = plan->bindings[t];

    if (b != NULL) xfi_bound_clear(twins->of_sources ? &b->offer : &b->shadow);
  }
  xfi_batch_drop(plan->device, &twins->copy);
  xfi_stream_destroy(plan->device, twins->stream);
  xfi_event_destroy(plan->device, twins->event);
  if (twins->is_lost) xfi_staging_abandon(&twins->block);
  xfi_staging_give(plan->of, &twins->block);
  xfi_free(twins);
  *of = NULL;
}
