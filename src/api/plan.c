/*
 * The public functions of plans: they check arguments, say in which call the rank is, and call
 * src/run between enter() and leave() of the device.
 */
#include <string.h>

#include "alloc.h"
#include "boxes.h"
#include "direct.h"
#include "error.h"
#include "object.h"
#include "options.h"
#include "trace.h"

/* Check what a rank can check of its tensors alone. `both_sides`: both layouts of each must be
 * known, as in a simulation. */
static xfer_status check_tensors(const char *who, const xfer_tensor *tensors, size_t n_tensors,
                                 bool both_sides)
{
  XFI_NEED_IN(who, n_tensors > 0, tensors);
  XFI_TRY(xfi_moves_check_number(n_tensors));
  for (size_t t = 0; t < n_tensors; t++) {
    const bool made = tensors[t].conversion.kind == XFER_CONVERSION_SCALES;

    XFI_CHECK(tensors[t].name != NULL, XFER_ERR_ARG, "tensor %zu has no name", t);
    XFI_TRY(xfi_conversion_check(&tensors[t].conversion, tensors[t].name));
    if (!both_sides) continue;
    XFI_CHECK((made || tensors[t].src != NULL) && tensors[t].dst != NULL, XFER_ERR_ARG,
              "tensor %zu \"%s\": a simulation needs both layouts", t, tensors[t].name);
    XFI_CHECK((made || !tensors[t].src->is_own) && !tensors[t].dst->is_own, XFER_ERR_ARG,
              "tensor %zu \"%s\": a simulation needs every rank's boxes", t, tensors[t].name);
  }
  return XFER_OK;
}

/* Copy the caller's options, which may be shorter than the library's; NULL: all are defaults. */
static xfer_status copy_options(xfer_plan_options *out, const xfer_plan_options *given)
{
  memset(out, 0, sizeof *out);
  out->struct_size = sizeof *out;
  return XFI_OPTIONS_COPY(out, given, xfer_plan_options, reserved);
}

xfer_status xfi_plan_given(xfer_plan_options *options, const char *who, xfer_plan **plan,
                           const xfer_comm *comm, const xfer_plan_options *given)
{
  const xfer_status st = copy_options(options, given);

  if (options->timeout_ms == 0) options->timeout_ms = comm->plans.timeout_ms;
  XFI_TRY(st);
  XFI_NEED_IN(who, true, plan);
  return XFER_OK;
}

/* End the span of a call that has made or committed a plan, and log what the plan does. */
static void say_plan(const xfi_span *span, const xfer_plan *plan)
{
  xfer_plan_report_data r = XFER_PLAN_REPORT_INIT;

  xfi_plan_report(plan, &r);
  xfi_span_end(span, XFER_OK,
               "%llu tensors in %llu classes, %llu moves; gets %llu bytes from %llu ranks, sends "
               "%llu to %llu; direct %llu, packed %llu in %llu rounds, staging %llu",
               (unsigned long long)r.n_tensors, (unsigned long long)r.n_classes,
               (unsigned long long)r.n_moves, (unsigned long long)r.wire_bytes,
               (unsigned long long)r.n_recv_peers, (unsigned long long)r.out_bytes,
               (unsigned long long)r.n_send_peers, (unsigned long long)r.direct_bytes,
               (unsigned long long)r.packed_bytes, (unsigned long long)r.n_rounds,
               (unsigned long long)r.staging_bytes);
}

xfer_status xfer_plan_create(xfer_plan **plan, xfer_comm *comm, const xfer_tensor *tensors,
                             size_t n_tensors, const xfer_plan_options *given)
{
  xfer_status st = XFER_OK;
  xfer_plan_options options;
  xfi_entered before;
  xfi_span span;

  XFI_NEED(comm); /* the one error that the other ranks cannot be told */
  st = xfi_plan_given(&options, __func__, plan, comm, given);
  if (st == XFER_OK) st = check_tensors(__func__, tensors, n_tensors, false);
  st = xfi_comm_refused(comm->transport, st);
  span = xfi_span_begin(XFI_SYS_PLAN, comm->transport->rank, XFI_TRACK_CALLS, "xfer_plan_create");
  xfi_device_enter(comm->device, &before);
  xfi_comm_enter(&comm->plans, NULL, XFI_INSIDE_PLAN_CREATE);
  st = xfi_plan_create(plan, &comm->plans, st, tensors, n_tensors, &options);
  xfi_device_leave(comm->device, &before);
  if (st == XFER_OK) {
    xfi_comm_count_plan(&comm->plans);
    say_plan(&span, *plan);
  } else
    xfi_span_end(&span, st, "%s", "");
  return st;
}

/* A plan may have as many ranks as a mesh. */
static xfer_status check_ranks(int n_ranks)
{
  XFI_CHECK(n_ranks <= XFI_MOST_RANKS, XFER_ERR_OVERFLOW,
            "%d ranks, more than the %d that a plan may have", n_ranks, XFI_MOST_RANKS);
  return XFER_OK;
}

xfer_status xfer_plan_simulate(xfer_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                               size_t n_tensors, const xfer_plan_options *given)
{
  xfer_plan_options options;

  XFI_NEED(plan);
  XFI_CHECK(rank >= 0 && rank < n_ranks, XFER_ERR_ARG,
            "rank %d of %d ranks: ranks are 0 to n_ranks - 1", rank, n_ranks);
  XFI_TRY(check_ranks(n_ranks));
  XFI_TRY(copy_options(&options, given));
  XFI_TRY(check_tensors(__func__, tensors, n_tensors, true));
  return xfi_plan_simulate(plan, n_ranks, rank, tensors, n_tensors, &options);
}

xfer_status xfer_plan_traffic(int n_ranks, const xfer_tensor *tensors, size_t n_tensors,
                              const xfer_plan_options *given, xfer_traffic_fn fn, void *context)
{
  xfer_plan_options options;

  XFI_NEED(fn);
  XFI_CHECK(n_ranks > 0, XFER_ERR_ARG, "traffic of %d ranks; at least 1 is needed", n_ranks);
  XFI_TRY(check_ranks(n_ranks));
  XFI_TRY(copy_options(&options, given));
  XFI_TRY(check_tensors(__func__, tensors, n_tensors, true));
  return xfi_plan_traffic(n_ranks, tensors, n_tensors, &options, fn, context);
}

void xfer_plan_destroy(xfer_plan *plan)
{
  const xfi_device *device = plan == NULL ? NULL : plan->device;
  xfi_plans *plans = plan == NULL ? NULL : plan->plans;

  XFI_ON_DEVICE(device, xfi_plan_destroy(plan));
  xfi_comm_lost_plan(plans);
}

xfer_status xfer_plan_bind(xfer_plan *plan, size_t tensor, const xfer_view *src_view,
                           const xfer_view *dst_view)
{
  xfer_status st = XFER_OK;

  XFI_NEED(plan);
  XFI_ON_DEVICE(plan->device, st = xfi_plan_bind(plan, tensor, src_view, dst_view));
  return st;
}

xfer_status xfer_plan_bind_many(xfer_plan *plan, const size_t *tensors, const xfer_view *src_views,
                                const xfer_view *dst_views, size_t n_tensors)
{
  xfer_status st = XFER_OK;

  XFI_NEED(plan);
  if (n_tensors == 0) return XFER_OK;
  XFI_NEED(tensors);
  XFI_NEED(src_views);
  XFI_NEED(dst_views);
  XFI_TRY(xfi_moves_check_number(n_tensors));
  XFI_ON_DEVICE(plan->device,
                st = xfi_plan_bind_many(plan, tensors, src_views, dst_views, n_tensors));
  return st;
}

static void enter(const xfer_plan *plan, xfi_inside call)
{
  if (plan->comm != NULL) xfi_comm_enter(plan->plans, plan, call);
}

static xfer_status refused(const xfer_plan *plan, xfer_status checked)
{
  return plan->comm != NULL ? xfi_comm_refused(plan->comm, checked) : checked;
}

xfer_status xfer_plan_commit(xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_entered before;
  xfi_span span;

  XFI_NEED(plan);
  xfi_device_enter(plan->device, &before);
  span = xfi_span_begin(XFI_SYS_PLAN, plan->moves->rank, XFI_TRACK_CALLS, "xfer_plan_commit");
  enter(plan, XFI_INSIDE_COMMIT);
  st = xfi_plan_commit(plan, refused(plan, XFER_OK));
  if (st == XFER_OK)
    say_plan(&span, plan);
  else
    xfi_span_end(&span, st, "%s", "");
  xfi_device_leave(plan->device, &before);
  return st;
}

xfer_status xfer_plan_run(xfer_plan *plan, uint64_t version, xfer_stream stream)
{
  xfer_status st = XFER_OK;
  xfi_entered before;
  xfi_span span;

  XFI_NEED(plan);
  xfi_device_enter(plan->device, &before);
  span = xfi_span_begin(XFI_SYS_RUN, plan->moves->rank, XFI_TRACK_CALLS, "xfer_plan_run");
  enter(plan, XFI_INSIDE_RUN);
  st = xfi_run_next(plan, version, stream);
  xfi_span_end(&span, st, "version %llu", (unsigned long long)version);
  xfi_device_leave(plan->device, &before);
  return st;
}

xfer_status xfer_plan_refuse(xfer_plan *plan, const char *why)
{
  xfer_status st = XFER_OK;

  XFI_NEED(plan);
  XFI_NEED(why);
  XFI_ON_DEVICE(plan->device, st = xfi_run_refuse(plan, xfi_reason(why)));
  return st;
}

xfer_status xfer_plan_wait(xfer_plan *plan, uint64_t timeout_ms)
{
  xfer_status st = XFER_OK;
  xfi_entered before;
  xfi_span span;

  XFI_NEED(plan);
  xfi_device_enter(plan->device, &before);
  span = xfi_span_begin(XFI_SYS_RUN, plan->moves->rank, XFI_TRACK_CALLS, "xfer_plan_wait");
  enter(plan, XFI_INSIDE_WAIT);
  st = xfi_run_wait(plan, timeout_ms);
  xfi_span_end(&span, st, "version %llu", (unsigned long long)plan->version);
  xfi_device_leave(plan->device, &before);
  return st;
}

xfer_status xfer_plan_test(const xfer_plan *plan, int *over)
{
  xfer_status st = XFER_OK;
  bool is_over = false;

  XFI_NEED(plan);
  XFI_NEED(over);
  if (plan->comm != NULL) { /* so that ranks that have destroyed this plan count, and no others */
    plan->comm->inside = XFI_INSIDE_WAIT;
    plan->comm->plan = plan->number;
  }
  XFI_ON_DEVICE(plan->device, st = xfi_run_test(plan, &is_over));
  if (st == XFER_OK) *over = is_over ? 1 : 0;
  return st;
}

xfer_status xfer_plan_release(xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  XFI_NEED(plan);
  enter(plan, XFI_INSIDE_RELEASE);
  XFI_ON_DEVICE(plan->device, st = xfi_plan_release(plan, refused(plan, XFER_OK)));
  return st;
}

static xfer_status check_digests(const xfer_plan *plan, const xfer_digest *digests,
                                 size_t n_digests, xfer_plan_side side)
{
  XFI_NEED_IN("xfer_plan_digest", n_digests > 0, digests);
  XFI_CHECK(n_digests == plan->moves->n_tensors, XFER_ERR_ARG,
            "digest: room for %zu, the plan has %zu tensors; n_digests is to be as many", n_digests,
            plan->moves->n_tensors);
  XFI_CHECK(side == XFER_PLAN_SRC || side == XFER_PLAN_DST, XFER_ERR_ARG,
            "digest: side is %d; want XFER_PLAN_SRC or XFER_PLAN_DST", (int)side);
  return XFER_OK;
}

xfer_status xfer_plan_digest(xfer_plan *plan, xfer_digest *digests, size_t n_digests,
                             xfer_plan_side side, xfer_stream stream)
{
  xfer_status st = XFER_OK;
  xfer_status checked;

  XFI_NEED(plan);
  enter(plan, XFI_INSIDE_DIGEST);
  checked = refused(plan, check_digests(plan, digests, n_digests, side));
  XFI_ON_DEVICE(plan->device,
                st = xfi_plan_digest(plan, digests,
                                     side == XFER_PLAN_SRC ? XFI_SIDE_SRC : XFI_SIDE_DST, checked,
                                     stream));
  return st;
}

xfer_status xfer_plan_check_replicas(xfer_plan *plan, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  XFI_NEED(plan);
  enter(plan, XFI_INSIDE_REPLICAS);
  XFI_ON_DEVICE(plan->device, st = xfi_plan_check_replicas(plan, refused(plan, XFER_OK), stream));
  return st;
}

xfer_status xfer_plan_report(const xfer_plan *plan, xfer_plan_report_data *report)
{
  xfer_plan_report_data full = XFER_PLAN_REPORT_INIT;

  XFI_NEED(plan);
  XFI_NEED(report);
  XFI_TRY(xfi_plan_full_report(plan, &full));
  return XFI_REPORT_COPY(report, &full, xfer_plan_report_data, replicated_tensors);
}

xfer_status xfer_plan_move_get(const xfer_plan *plan, size_t i, xfer_move *move)
{
  XFI_NEED(plan);
  XFI_NEED(move);
  return xfi_moves_get(move, plan->moves, i);
}

xfer_status xfer_plan_print(const xfer_plan *plan, char **text, int json)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;

  XFI_NEED(plan);
  XFI_NEED(text);
  XFI_TRY(xfi_plan_full_report(plan, &report));
  return xfi_moves_print(plan->moves, &report, xfi_direct_lane, plan, text, json != 0);
}

void xfer_text_free(char *text)
{
  xfi_free(text);
}
