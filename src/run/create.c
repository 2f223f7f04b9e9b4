/*
 * Plans are created and destroyed here: the caller's options are checked and completed, the ranks
 * agree on the tensors (src/agree), each computes its moves (src/plan), and all agree on the sizes
 * of packed rounds. A plan may contain a relay and a plan for amaxes, which are created with it.
 *
 * Called by src/api. The functions that create plans for a comm are collective; those for a
 * simulation and for the traffic of all ranks are not.
 */
#include <stdatomic.h>

#include "agree.h"
#include "alloc.h"
#include "bind.h"
#include "error.h"
#include "lanes.h"
#include "peers.h"
#include "pipeline.h"
#include "plans.h"
#include "quant.h"
#include "run.h"
#include "scales.h"
#include "staging.h"
#include "traffic.h"
#include "wire.h"

/* A broadcast begins some 30 us later than copies to each receiver, by about the time of a message.
 * A link of 350 GB/s carries this many bytes in that time. From one H200 to 3 others, 1 MB takes 91
 * us broadcast and 67 copied, 16.8 MB 104 and 140. */
#define DEFAULT_BROADCAST_SAVING_BYTES 10500000

/* Check the options, and fill in the defaults of those that are 0. `device` NULL: a simulation,
 * which plans as a host does. */
static xfer_status fill_options(xfer_plan_options *o, const xfi_device *device)
{
  const uint32_t known = XFER_PLAN_VERIFY | XFER_PLAN_STAGED | XFER_PLAN_FRESH_SOURCES;

  XFI_CHECK(o->lane <= XFER_LANE_BROADCAST, XFER_ERR_ARG, "plan option lane is %u: want 0 to %d",
            o->lane, XFER_LANE_BROADCAST);
  XFI_CHECK((o->flags & ~known) == 0, XFER_ERR_UNSUPPORTED,
            "plan option flags is %#x: this library knows the bits of %#x", o->flags, known);
  XFI_CHECK(o->reserved == 0, XFER_ERR_UNSUPPORTED, "plan option reserved is %#x: want 0",
            o->reserved);
  XFI_CHECK(o->window_bytes <= XFI_MESSAGE_BYTES, XFER_ERR_ARG,
            "plan option window_bytes is %llu; want at most 1 GiB",
            (unsigned long long)o->window_bytes);
  XFI_CHECK(o->ranks_per_domain <= INT32_MAX, XFER_ERR_ARG,
            "plan option ranks_per_domain is %u; want at most 2^31 - 1", o->ranks_per_domain);
  XFI_CHECK(o->timeout_ms <= INT64_MAX, XFER_ERR_ARG,
            "plan option timeout_ms is %llu; want at most 2^63 - 1",
            (unsigned long long)o->timeout_ms);
  if (o->min_broadcast_saving_bytes == 0)
    o->min_broadcast_saving_bytes = DEFAULT_BROADCAST_SAVING_BYTES;
  if (o->timeout_ms == 0) o->timeout_ms = XFI_DEFAULT_TIMEOUT_MS;
  if (o->max_staging_bytes == 0)
    o->max_staging_bytes = device == NULL ? 64 << 20 : device->ops->default_staging_bytes;
  if (o->window_bytes == 0)
    o->window_bytes = device == NULL ? 256 << 10 : device->ops->default_window_bytes;
  return XFER_OK;
}

static xfi_moves_options moves_options(const xfer_plan_options *o, const uint32_t *order)
{
  return (xfi_moves_options){o->lane, o->ranks_per_domain, o->min_broadcast_saving_bytes, order};
}

/* Set the window size that keeps the rank with most windows per round within the staging limit,
 * with two slots each way. */
static xfer_status set_window(xfer_plan *plan, int32_t n_windows)
{
  const uint64_t most = plan->options.max_staging_bytes;
  const uint64_t cap = xfi_plan_staging_share(plan);
  const uint64_t slots = 2 * (uint64_t)n_windows;
  uint64_t window = plan->options.window_bytes;

  if (window < XFI_SLOT_ALIGN) window = XFI_SLOT_ALIGN; /* the smallest size */
  if (slots > 0 && window > cap / slots) window = cap / slots;
  window = window / XFI_SLOT_ALIGN * XFI_SLOT_ALIGN;
  XFI_CHECK(window > 0, XFER_ERR_ARG,
            "max_staging_bytes %llu is too small for %d messages in a round: it is to be %llu",
            (unsigned long long)most, n_windows,
            (unsigned long long)(slots * XFI_SLOT_ALIGN * (cap < most ? 2 : 1)));
  XFI_CHECK(xfi_plan_n_broadcast(plan) == 0 || cap >= UINT64_C(4) * XFI_SLOT_ALIGN, XFER_ERR_ARG,
            "max_staging_bytes %llu is too small for a broadcast", (unsigned long long)most);
  plan->window_bytes = window;
  plan->round_windows = n_windows;
  return XFER_OK;
}

static xfer_status create_events(xfer_plan *p)
{
  XFI_TRY(xfi_event_create(p->device, &p->run.started));
  XFI_TRY(xfi_event_create(p->device, &p->run.finished));
  return xfi_event_create(p->device, &p->run.before);
}

/* Make the relay of a plan. All ranks call this if the moves of any rank have one. */
static xfer_status create_relay(xfer_plan *plan)
{
  /* Taken before anything can fail: all ranks have to count alike. */
  const uint64_t number = plan->plans == NULL ? 0 : plan->plans->n_created++;
  xfer_plan *r = xfi_calloc(1, sizeof *r);

  XFI_CHECK(r != NULL, XFER_ERR_NOMEM, "relays");
  plan->relay = r;
  r->main = plan;
  r->moves = plan->moves->relay;
  r->options = plan->options;
  r->options.lane = XFER_LANE_AUTO; /* what crosses domains may use another lane */
  r->options.flags = 0;
  r->plans = plan->plans;
  r->comm = plan->comm;
  r->device = plan->device;
  r->number = number;
  XFI_TRY(xfi_plan_fill_converts(r));
  if (r->plans == NULL) return XFER_OK;
  return create_events(r);
}

/* most[] becomes the most windows in a round of the plan's own lanes, and of its relay's. */
static void count_windows(int32_t most[2], const xfi_moves *moves)
{
  most[0] = xfi_packed_most(moves);
  most[1] = moves->relay == NULL ? 0 : xfi_packed_most(moves->relay);
}

/* Raise most[] to what another rank reported. */
static xfer_status raise_most(int32_t most[2], const int32_t reported[2], int rank, bool relays)
{
  for (int i = 0; i < 2; i++) {
    XFI_CHECK(reported[i] >= 0 && reported[i] <= XFI_ROUND_MESSAGES, XFER_ERR_MISMATCH,
              "rank %d has %d messages in a round", rank, reported[i]);
    if (reported[i] > most[i]) most[i] = reported[i];
  }
  XFI_CHECK(relays || reported[1] == 0, XFER_ERR_MISMATCH, "rank %d relays %d messages in a round",
            rank, reported[1]);
  return XFER_OK;
}

/* Set the windows, and create the relay if any rank has one. A failure of one rank fails on all. */
static xfer_status settle_windows(xfer_plan *plan, const int32_t most[2])
{
  xfer_status st = XFER_OK;

  XFI_TRY(set_window(plan, most[0]));
  if (most[1] == 0) return XFER_OK;
  st = create_relay(plan);
  if (plan->comm != NULL) st = xfi_comm_agree(plan->comm, st, xfi_run_deadline(plan));
  XFI_TRY(st);
  return set_window(plan->relay, most[1]);
}

/* The most windows in a round of any rank. Collective; `mine` is this rank's status so far. */
static xfer_status agree_window(xfer_plan *plan, xfer_status mine)
{
  xfer_status st = mine;
  int32_t most[2] = {0, 0};
  int32_t(*all)[2];

  if (mine == XFER_OK) count_windows(most, plan->moves);
  all = xfi_comm_agree_gather(plan->comm, &st, most, sizeof most, xfi_run_deadline(plan));
  XFI_TRY_DONE(st);
  for (int r = 0; r < plan->comm->size; r++)
    XFI_TRY_DONE(raise_most(most, all[r], r, plan->moves->relay != NULL));
  XFI_TRY_DONE(settle_windows(plan, most));
done:
  xfi_free(all);
  return st;
}

static xfer_status make_plan(xfer_plan *p, const xfer_tensor *tensors, size_t n_tensors,
                             const uint32_t *order)
{
  const xfi_moves_options options = moves_options(&p->options, order);

  p->memory.bindings = xfi_calloc(n_tensors, sizeof *p->memory.bindings);
  XFI_CHECK(p->memory.bindings != NULL, XFER_ERR_NOMEM, "%zu tensors", n_tensors);
  p->run.results = xfi_calloc((size_t)p->comm->size, sizeof *p->run.results);
  XFI_CHECK(p->run.results != NULL, XFER_ERR_NOMEM, "%d ranks", p->comm->size);
  XFI_TRY(xfi_moves_create(&p->moves, p->comm->size, p->comm->rank, tensors, n_tensors, &options));
  XFI_TRY(xfi_plan_fill_converts(p));
  return create_events(p);
}

/* Make an empty plan. Its options are checked too, with the result in *checked, unless that is an
 * error already. */
static xfer_status begin(xfer_plan **plan, xfi_plans *plans, xfer_status *checked,
                         const xfer_plan_options *options)
{
  static _Atomic uint64_t n_begun;
  xfer_plan *p = xfi_comm_calloc(plans->comm, 1, sizeof *p);

  XFI_CHECK(p != NULL, XFER_ERR_NOMEM, "plan");
  p->options = *options;
  p->plans = plans;
  p->comm = plans->comm;
  p->device = plans->device;
  p->number = plans->n_created++;
  p->serial = atomic_fetch_add(&n_begun, 1) + 1;
  if (*checked == XFER_OK) *checked = fill_options(&p->options, p->device);
  if (p->options.timeout_ms > INT64_MAX) p->options.timeout_ms = XFI_DEFAULT_TIMEOUT_MS;
  *plan = p;
  return XFER_OK;
}

static xfer_status bind_cut(xfer_plan *amax_plan, size_t i, const xfi_quant *q)
{
  const xfi_quant_cut *cut = &q->cuts[i];
  const xfer_view dst = {.kind = XFER_VIEW_DENSE,
                         .base = q->received == NULL ? NULL : q->received + cut->received};
  const xfer_view src = {.kind = XFER_VIEW_BOXES,
                         .n_dims = cut->src->n_dims,
                         .n_pieces = (int64_t)cut->n_sent,
                         .pieces = cut->sent};

  return xfi_plan_bind(amax_plan, i, &src, &dst);
}

/* Bind the tables of blocks as sources, of the plan and of its amax_plan. */
static xfer_status bind_tables(xfer_plan *plan)
{
  const xfi_quant *q = plan->quant;

  for (size_t i = 0; i < q->n_cuts; i++)
    XFI_TRY(bind_cut(plan->amax_plan, i, q));
  for (size_t i = 0; i < q->n_pairs; i++)
    XFI_TRY(xfi_plan_bind(plan, q->pairs[i].scales, NULL, NULL));
  return XFER_OK;
}

/* Make the plan by which ranks exchange amaxes, if some blocks are cut. Collective. */
static xfer_status create_amax_plan(xfer_plan *plan)
{
  const xfi_quant *q = plan->quant;
  xfer_plan_options options = plan->options;
  xfer_status st = XFER_OK;
  xfer_tensor *tensors = NULL;

  if (q->n_cuts == 0) return XFER_OK; /* all ranks have as many */
  options.flags = 0;
  tensors = xfi_calloc(q->n_cuts, sizeof *tensors);
  for (size_t i = 0; tensors != NULL && i < q->n_cuts; i++)
    tensors[i] = (xfer_tensor){plan->moves->tensors[q->pairs[q->cuts[i].pair].weights].name,
                               q->cuts[i].src,
                               q->cuts[i].dst,
                               {0}};
  const xfer_status mine = tensors != NULL ? XFER_OK : XFI_NO_MEMORY("%zu tensors", q->n_cuts);
  XFI_TRY_DONE(xfi_plan_create(&plan->amax_plan, plan->plans, mine, tensors, q->n_cuts, &options));
done:
  xfi_free(tensors);
  return st;
}

xfer_status xfi_plan_create(xfer_plan **plan, xfi_plans *plans, xfer_status checked,
                            const xfer_tensor *tensors, size_t n_tensors,
                            const xfer_plan_options *options)
{
  xfer_status st = XFER_OK;
  xfi_agreed agreed = {NULL, 0};
  xfi_scale_tensors scaled = {NULL, NULL, 0};
  xfer_plan *p = NULL;

  XFI_TRY_DONE(begin(&p, plans, &checked, options));
  if (checked == XFER_OK) checked = xfi_scale_tensors_make(&scaled, tensors, n_tensors);
  XFI_TRY_DONE(xfi_agree_tensors(&agreed, plans->comm, checked,
                                 scaled.at == NULL ? tensors : scaled.at, n_tensors, &p->options,
                                 xfi_run_deadline(p)));
  st = make_plan(p, agreed.tensors, agreed.n_tensors, NULL);
  if (st == XFER_OK) st = xfi_quant_create(&p->quant, p, agreed.tensors);
  XFI_TRY_DONE(agree_window(p, st));
  if (p->quant != NULL) { /* all ranks have one, or none has */
    XFI_TRY_DONE(create_amax_plan(p));
    XFI_TRY_DONE(xfi_comm_agree(p->comm, bind_tables(p), xfi_run_deadline(p)));
  }

  *plan = p;
  p = NULL;
done:
  xfi_scale_tensors_free(&scaled);
  xfi_agreed_free(&agreed);
  xfi_plan_destroy(p);
  return st;
}

static xfer_status make_exchange(xfer_plan *p, const xfi_operations *ops)
{
  xfer_status st = XFER_OK;
  xfi_op_tensors made = {0};

  XFI_TRY_DONE(xfi_op_tensors_create(&made, ops));
  XFI_TRY_DONE(make_plan(p, made.tensors, made.n, made.order));
  p->memory.operations = made.operations;
  made.operations = NULL;
done:
  xfi_op_tensors_free(&made);
  return st;
}

xfer_status xfi_plan_create_exchange(xfer_plan **plan, xfi_plans *plans, xfer_status checked,
                                     xfi_operations *ops, const xfer_plan_options *options)
{
  xfer_status st = XFER_OK;
  xfer_plan *p = NULL;

  XFI_TRY_DONE(begin(&p, plans, &checked, options));
  if (checked == XFER_OK && (p->options.flags & ~(uint32_t)XFER_PLAN_FRESH_SOURCES) != 0) {
    xfi_set_error("an exchange has no flag but XFER_PLAN_FRESH_SOURCES: its arrays are those of "
                  "two ranks each");
    checked = XFER_ERR_UNSUPPORTED;
  }
  if (checked == XFER_OK) checked = xfi_operations_sort(ops);
  XFI_TRY_DONE(xfi_operations_agree(plans->comm, checked, ops, &p->options, xfi_run_deadline(p)));
  XFI_TRY_DONE(agree_window(p, make_exchange(p, ops)));

  *plan = p;
  p = NULL;
done:
  xfi_plan_destroy(p);
  return st;
}

xfer_status xfi_plan_simulate(xfer_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                              size_t n_tensors, const xfer_plan_options *options)
{
  xfer_status st = XFER_OK;
  xfi_moves_options moves;
  int32_t most[2];
  xfi_scale_tensors scaled = {NULL, NULL, 0};
  xfer_plan *p = xfi_calloc(1, sizeof *p);

  XFI_CHECK_DONE(p != NULL, XFER_ERR_NOMEM, "plan");
  p->options = *options;
  XFI_TRY_DONE(fill_options(&p->options, NULL));
  moves = moves_options(&p->options, NULL);
  XFI_TRY_DONE(xfi_scale_tensors_make(&scaled, tensors, n_tensors));
  XFI_TRY_DONE(xfi_moves_create(&p->moves, n_ranks, rank, scaled.at == NULL ? tensors : scaled.at,
                                n_tensors, &moves));
  count_windows(most, p->moves);
  XFI_TRY_DONE(settle_windows(p, most));

  *plan = p;
  p = NULL;
done:
  xfi_scale_tensors_free(&scaled);
  xfi_plan_destroy(p);
  return st;
}

typedef struct traffic {
  xfer_traffic_fn fn;
  void *context;
} traffic;

static bool report_row(void *context, const xfi_moves *plan, const xfi_traffic_row *row)
{
  const traffic *to = context;
  const int64_t size = plan->options.ranks_per_domain;
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;

  report.n_tensors = plan->n_tensors;
  report.n_classes = plan->n_classes;
  report.payload_bytes = plan->payload_bytes;
  report.broadcast_tensors = plan->n_broadcast;
  report.in_bytes = row->in_bytes;
  report.zero_bytes = row->zero_bytes;
  for (size_t i = 0; i < row->n; i++) {
    const xfer_traffic *from = &row->from[i];

    if (from->src_rank == row->rank)
      report.self_bytes = from->n_bytes;
    else
      report.n_recv_peers++;
    report.relayed_bytes += from->relayed_bytes;
    if (size > 0 && from->src_rank / size != row->rank / size)
      report.crossed_bytes += from->n_bytes - from->broadcast_bytes;
  }
  report.wire_bytes = report.in_bytes - report.self_bytes - report.zero_bytes;
  return to->fn(to->context, row->rank, &report, row->from, row->n) == 0;
}

xfer_status xfi_plan_traffic(int n_ranks, const xfer_tensor *tensors, size_t n_tensors,
                             const xfer_plan_options *given, xfer_traffic_fn fn, void *context)
{
  xfer_status st = XFER_OK;
  xfer_plan_options options = *given;
  traffic to = {fn, context};
  xfi_scale_tensors scaled = {NULL, NULL, 0};
  xfi_moves_options moves;

  XFI_TRY_DONE(fill_options(&options, NULL));
  moves = moves_options(&options, NULL);
  XFI_TRY_DONE(xfi_scale_tensors_make(&scaled, tensors, n_tensors));
  XFI_TRY_DONE(xfi_traffic(n_ranks, scaled.at == NULL ? tensors : scaled.at, n_tensors, &moves,
                           report_row, &to));
done:
  xfi_scale_tensors_free(&scaled);
  return st;
}

void xfi_plan_destroy(xfer_plan *plan)
{
  if (plan == NULL) return;
  xfi_plan_destroy(plan->relay);
  plan->relay = NULL;
  xfi_run_abandon(plan);
  if (plan->device != NULL) { /* not in a simulation */
    xfi_plan_drop_lanes(plan);
    xfi_event_destroy(plan->device, plan->run.started);
    xfi_event_destroy(plan->device, plan->run.finished);
    xfi_event_destroy(plan->device, plan->run.before);
  }
  xfi_plan_destroy(plan->amax_plan);
  xfi_quant_destroy(plan->quant);
  for (size_t t = 0;
       plan->memory.bindings != NULL && plan->moves != NULL && t < plan->moves->n_tensors; t++)
    xfi_binding_destroy(plan->memory.bindings[t]);
  xfi_free(plan->memory.bindings);
  xfi_free(plan->memory.operations);
  xfi_free(plan->converts);
  xfi_free(plan->run.results);
  if (plan->main == NULL) xfi_moves_destroy(plan->moves); /* a relay's moves belong to its plan's */
  xfi_free(plan);
}
