/*
 * One tensor, one call: the plan API with a cached plan (run/cache).
 */
#include <string.h>

#include "bind.h"
#include "error.h"
#include "object.h"
#include "trace.h"

typedef struct given {
  xfer_tensor tensor;
  const xfer_view *src_view;
  const xfer_view *dst_view;
} given;

static xfer_status create(xfer_plan **plan, xfi_plans *plans, xfer_status checked, void *context,
                          const xfer_plan_options *options)
{
  const given *g = context;

  return xfi_plan_create(plan, plans, checked, &g->tensor, 1, options);
}

/* The commit checks this too, in the words of a plan that is bound. */
static xfer_status check_given(const xfer_plan *plan, xfi_side side, const xfer_view *view)
{
  XFI_CHECK(view != NULL || xfi_bind_bytes(plan, 0, side) == 0, XFER_ERR_STATE,
            "xfer_redistribute: rank %d has a part of the %s, and %s_view is NULL",
            plan->moves->rank, xfi_side_name(side), side == XFI_SIDE_SRC ? "src" : "dst");
  return XFER_OK;
}

static xfer_status bind(xfer_plan *plan, void *context)
{
  const given *g = context;

  XFI_TRY(check_given(plan, XFI_SIDE_SRC, g->src_view));
  XFI_TRY(check_given(plan, XFI_SIDE_DST, g->dst_view));
  return xfi_plan_bind(plan, 0, g->src_view, g->dst_view);
}

xfer_status xfer_redistribute(xfer_comm *comm, const xfer_layout *src_layout,
                              const xfer_view *src_view, const xfer_layout *dst_layout,
                              const xfer_view *dst_view, xfer_stream stream)
{
  given g = {{"tensor", src_layout, dst_layout, {0}}, src_view, dst_view};
  xfi_one_call call = {{0}, false, create, bind, &g};
  xfer_status st = XFER_OK;
  xfi_entered before;
  xfi_span span;

  XFI_NEED(comm);
  if (src_layout != NULL) memcpy(call.key, src_layout->digest, sizeof src_layout->digest);
  if (dst_layout != NULL) memcpy(call.key + 2, dst_layout->digest, sizeof dst_layout->digest);
  xfi_device_enter(comm->device, &before);
  span = xfi_span_begin(XFI_SYS_RUN, comm->transport->rank, XFI_TRACK_CALLS, "xfer_redistribute");
  xfi_comm_enter(&comm->plans, NULL, XFI_INSIDE_REDISTRIBUTE);
  call.mapped = xfi_registry_covers(&comm->registry, src_view) &&
                xfi_registry_covers(&comm->registry, dst_view);
  st = xfi_cache_call(&comm->cache, xfi_comm_refused(comm->transport, XFER_OK), &call, stream);
  xfi_span_end(&span, st, "%d ranks", comm->transport->size);
  xfi_device_leave(comm->device, &before);
  return st;
}
