/*
 * Shadows: where the lanes of a staged plan write in place of its destinations. Once all ranks have
 * said that all of a run is there, each writes its own destinations from them; what fails before
 * leaves those as they were.
 *
 * One block holds those of all tensors, dense, from one commit to the next.
 */
#include "alloc.h"
#include "bind.h"
#include "error.h"
#include "lanes.h"
#include "staging.h"
#include "trace.h"

enum { ALIGN = 256 }; /* as device memory is */

struct xfi_shadow {
  char *memory; /* NULL: this rank gets nothing */
  xfi_giver from;
  bool is_lost;     /* something may still be written there */
  xfi_batch *write; /* into the destinations; NULL: nothing */
  xfer_stream stream;
  xfi_event *written;
};

static uint64_t bytes_of(const xfer_plan *plan, size_t tensor)
{
  const xfi_class *cls = xfi_plan_class(plan->moves, tensor);
  const uint64_t n_elems = cls->in_dst ? cls->dst_bytes / (uint64_t)cls->wire_bytes : 0;
  const uint64_t n_bytes = n_elems * (uint64_t)cls->dst->elem_bytes;

  return (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t xfi_shadow_bytes(const xfer_plan *plan)
{
  uint64_t n_bytes = 0;

  for (size_t t = 0; xfi_run_is_staged(plan) && t < plan->moves->n_tensors; t++)
    n_bytes += bytes_of(plan, t);
  return n_bytes;
}

/* All of this rank's part, by the pieces of its destination. */
static xfer_status add_writes(xfi_copies *copies, const xfer_plan *plan, size_t tensor)
{
  const xfi_elem elem = {xfi_plan_class(plan->moves, tensor)->dst->elem_bytes, NULL};
  const xfi_binding *b = plan->bindings[tensor];
  xfi_end live = {&b->dst, {0}};
  xfi_end shadow = {&b->shadow, {0}};
  int64_t length[XFER_MAX_DIMS];

  for (int64_t p = 0; p < b->dst.n_pieces; p++) {
    xfi_bound_shape(length, &b->dst, p);
    xfi_bound_start(live.start, &b->dst, p);
    xfi_bound_start(shadow.start, &b->dst, p);
    XFI_TRY(xfi_copies_add(copies, &live, &shadow, length, b->dst.n_dims, elem));
  }
  return XFER_OK;
}

static xfer_status fill(xfi_shadow *s, const xfer_plan *plan)
{
  const xfi_device_ops *dev = plan->device->ops;
  xfer_status st = XFER_OK;
  xfi_copies copies = {NULL, 0, 0};
  char *at = s->memory;

  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    if (bytes_of(plan, t) == 0) continue;
    XFI_TRY_DONE(xfi_bind_shadow(plan, t, at));
    XFI_TRY_DONE(add_writes(&copies, plan, t));
    at += bytes_of(plan, t);
  }
  XFI_TRY_DONE(dev->batch_create(plan->device, &s->write, copies.at, copies.n, 100, NULL));
  XFI_TRY_DONE(xfi_stream_create(plan->device, &s->stream));
  XFI_TRY_DONE(xfi_event_create(plan->device, &s->written));
done:
  xfi_copies_free(&copies);
  return st;
}

xfer_status xfi_shadow_create(xfer_plan *plan)
{
  const uint64_t n_bytes = xfi_shadow_bytes(plan);

  if (n_bytes == 0) return XFER_OK;
  plan->shadow = xfi_calloc(1, sizeof *plan->shadow);
  XFI_CHECK(plan->shadow != NULL, XFER_ERR_NOMEM, "a staged plan");
  plan->shadow->from = plan->of->giver;
  XFI_TRY(xfi_staging_take(&plan->shadow->memory, plan->of, n_bytes));
  return fill(plan->shadow, plan);
}

void xfi_shadow_destroy(xfer_plan *plan)
{
  const xfi_device_ops *dev = plan->device->ops;
  xfi_shadow *s = plan->shadow;

  if (s == NULL) return;
  for (size_t t = 0; t < plan->moves->n_tensors; t++)
    if (plan->bindings[t] != NULL) xfi_bound_clear(&plan->bindings[t]->shadow);
  if (s->write != NULL) dev->batch_destroy(plan->device, s->write);
  xfi_stream_destroy(plan->device, s->stream);
  xfi_event_destroy(plan->device, s->written);
  if (s->is_lost)
    xfi_abandon(s->memory);
  else if (s->memory != NULL)
    xfi_staging_give(plan->of, s->memory, &s->from);
  xfi_free(s);
  plan->shadow = NULL;
}

void xfi_shadow_lose(xfer_plan *plan)
{
  if (plan->shadow != NULL) plan->shadow->is_lost = true;
}

/* This rank's destinations. */
static xfer_status write_own(xfer_plan *plan, xfi_deadline deadline)
{
  const xfi_device_ops *dev = plan->device->ops;
  xfi_shadow *s = plan->shadow;
  xfer_status st = XFER_OK;

  if (s == NULL) return XFER_OK;
  XFI_TRY_DONE(dev->batch_launch(plan->device, s->write, s->stream, NULL));
  XFI_TRY_DONE(xfi_run_record(plan->device, s->written, s->stream));
  XFI_TRY_DONE(xfi_event_sync(plan->device, s->written, deadline));
done:
  /* Asked once more: nothing is written once we are back, or it is left there. */
  if (st != XFER_OK && (xfi_run_record(plan->device, s->written, s->stream) != XFER_OK ||
                        xfi_event_sync(plan->device, s->written, deadline) != XFER_OK))
    s->is_lost = true;
  return st;
}

xfer_status xfi_shadow_write(xfer_plan *plan, xfi_deadline deadline)
{
  const xfi_span span = xfi_span_begin(XFI_SYS_RUN, plan->moves->rank, XFI_TRACK_CALLS, "write");
  xfer_status st = XFER_OK;

  plan->is_half_written = true;
  st = xfi_comm_agree(plan->comm, write_own(plan, deadline), deadline);
  plan->is_half_written = st != XFER_OK;
  xfi_span_end(&span, st, "%llu bytes", (unsigned long long)xfi_shadow_bytes(plan));
  return st;
}
