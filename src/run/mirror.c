/*
 * Mirrors: dense copies of everything that a rank holds on one side of a plan, one tensor after the
 * other in one block. snapshot.c mirrors sources, for peers to read, and staged.c destinations, for
 * the lanes to write.
 */
#include <string.h>

#include "alloc.h"
#include "bind.h"
#include "error.h"
#include "lanes.h"
#include "local.h"
#include "staging.h"

enum { ALIGN = 256 }; /* as device memory is */

static uint64_t bytes_of(const xfer_plan *plan, size_t tensor, xfi_side side)
{
  return (xfi_bind_bytes(plan, tensor, side) + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t xfi_mirror_bytes(const xfer_plan *plan, xfi_side side)
{
  uint64_t n_bytes = 0;

  for (size_t t = 0; t < plan->moves->n_tensors; t++)
    n_bytes += bytes_of(plan, t, side);
  return n_bytes;
}

xfer_status xfi_mirror_create(xfi_mirror **out, const xfer_plan *plan, xfi_side side)
{
  const uint64_t n_bytes = xfi_mirror_bytes(plan, side);
  xfi_mirror *mirror;
  char *at;

  if (n_bytes == 0) return XFER_OK;
  mirror = *out = xfi_calloc(1, sizeof *mirror);
  XFI_CHECK(mirror != NULL, XFER_ERR_NOMEM, "copies of what is bound");
  mirror->side = side;
  XFI_TRY(xfi_staging_alloc(&mirror->block, plan->plans, n_bytes));
  at = mirror->block.at;
  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    if (bytes_of(plan, t, side) == 0) continue;
    XFI_TRY(xfi_bind_mirror(plan, t, side, at));
    at += bytes_of(plan, t, side);
  }
  XFI_TRY(xfi_stream_create(plan->device, &mirror->stream));
  return xfi_event_create(plan->device, &mirror->event);
}

/* Add the copies between a tensor's mirror and what is bound, piece by piece. */
static xfer_status add_copies(xfi_copies *copies, const xfer_plan *plan, size_t tensor,
                              xfi_side side)
{
  const xfi_class *cls = xfi_moves_class(plan->moves, tensor);
  const xfi_elem elem = {xfi_side_layout(cls, side)->elem_bytes, NULL};
  xfi_binding *b = plan->memory.bindings[tensor];
  const xfi_bound *bound = xfi_side_bound(b, side);
  xfi_end there = {bound, {0}};
  xfi_end copy = {xfi_side_mirror(b, side), {0}};
  int64_t length[XFER_MAX_DIMS];

  for (int64_t p = 0; p < bound->n_pieces; p++) {
    xfi_bound_shape(length, bound, p);
    xfi_bound_start(there.start, bound, p);
    memcpy(copy.start, there.start, sizeof copy.start);
    XFI_TRY(xfi_copies_add(copies, side == XFI_SIDE_SRC ? &copy : &there,
                           side == XFI_SIDE_SRC ? &there : &copy, length, bound->n_dims, elem));
  }
  return XFER_OK;
}

xfer_status xfi_mirror_prepare(xfi_mirror *mirror, const xfer_plan *plan, const bool *which)
{
  const xfi_side side = mirror->side;
  xfer_status st = XFER_OK;
  xfi_copies copies = {NULL, 0, 0};

  for (size_t t = 0; t < plan->moves->n_tensors; t++)
    if ((which == NULL || which[t]) && bytes_of(plan, t, side) > 0)
      XFI_TRY_DONE(add_copies(&copies, plan, t, side));
  if (mirror->has_local) XFI_TRY_DONE(xfi_local_add(NULL, &copies, plan));
  st = xfi_batch_make(plan->device, &mirror->copy, copies.at, copies.n, 100);
done:
  xfi_copies_free(&copies);
  return st;
}

void xfi_mirror_leak(xfi_mirror *mirror)
{
  if (mirror != NULL) mirror->is_leaked = true;
}

void xfi_mirror_destroy(xfi_mirror **of, xfer_plan *plan)
{
  xfi_mirror *mirror = *of;

  if (mirror == NULL) return;
  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    xfi_binding *b = plan->memory.bindings[t];

    if (b != NULL) xfi_bound_clear(xfi_side_mirror(b, mirror->side));
  }
  xfi_batch_drop(plan->device, &mirror->copy);
  xfi_stream_destroy(plan->device, mirror->stream);
  xfi_event_destroy(plan->device, mirror->event);
  if (mirror->is_leaked) xfi_staging_abandon(&mirror->block);
  xfi_staging_free(plan->plans, &mirror->block);
  xfi_free(mirror);
  *of = NULL;
}
