/*
 * Runs of a plan: enqueue the work of all lanes, and wait until every rank is done; run_abort.c
 * ends what has failed.
 *
 * xfi_run_start() only enqueues, and on a synchronous device does all the work. The functions below
 * it end a run, each in its own way: run.h has a table of them. They are called by src/api, all on
 * the thread that makes the comm's calls. Other threads take part only through the alarm of a run's
 * deadline and through the check of a comm whether to cancel messages; both are in direct_run.c.
 */
#include "run.h"

#include "allocations.h"
#include "count.h"
#include "direct.h"
#include "error.h"
#include "lanes.h"
#include "late.h"
#include "local.h"
#include "peers.h"
#include "pipeline.h"
#include "quant.h"
#include "run_abort.h"
#include "sequence.h"
#include "staging.h"
#include "trace.h"

/* ---- starting ---- */

static xfer_status copy_locally(xfer_plan *plan, xfer_stream stream)
{
  const xfi_span span = xfi_span_begin(XFI_SYS_RUN, plan->moves->rank, XFI_TRACK_LOCAL, "copies");
  const xfer_status st = xfi_batch_launch(plan->device, plan->lanes.local->batch, stream);

  xfi_span_end(&span, st, "%llu bytes", (unsigned long long)plan->moves->self_bytes);
  return st;
}

static xfer_status enqueue(xfer_plan *plan, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  if (plan->lanes.snapshot != NULL) /* peers have read what the last run copied there */
    XFI_TRY_DONE(xfi_batch_launch(plan->device, plan->lanes.snapshot->copy, stream));
  XFI_TRY_DONE(xfi_quant_start(plan, stream));
  if (plan->amax_plan != NULL)
    XFI_TRY_DONE(xfi_run_start(plan->amax_plan, plan->amax_plan->run.n_begun + 1, stream));
  XFI_TRY_DONE(xfi_quant_continue(plan, stream));
  XFI_TRY_DONE(xfi_direct_start(plan->lanes.direct, plan, stream));
  if (plan->lanes.local != NULL) XFI_TRY_DONE(copy_locally(plan, stream));
  plan->comm->cancellation =
      (xfi_cancellation){xfi_direct_propagate_abort, plan->lanes.direct, plan->run.epoch};
  plan->comm->run = plan->run.id;
  XFI_TRY_DONE(xfi_pipeline_start(plan->lanes.pipeline, plan, stream));
  plan->run.is_sent = true;
  XFI_TRY_DONE(xfi_direct_join(plan->lanes.direct, stream));
  XFI_TRY_DONE(xfi_snapshot_wait_apart(plan, &stream));
  XFI_TRY_DONE(xfi_direct_finish(plan->lanes.direct, plan, stream));
  if (plan->relay != NULL)
    XFI_TRY_DONE(xfi_run_start(plan->relay, plan->relay->run.n_begun + 1, stream));
  XFI_TRY_DONE(xfi_verify_start(plan, stream));
done:
  if (st == XFER_ERR_PEER) (void)xfi_comm_check_destroyed(plan->comm); /* whose text says why */
  if (st == XFER_OK) st = xfi_event_record(plan->device, plan->run.finished, stream);
  if (st != XFER_OK)
    (void)xfi_run_record(plan->device, plan->run.finished, stream); /* after what was enqueued */
  return st;
}

/* XFER_ERR_PEER if a peer has aborted the run that is `later` runs after the last one begun. */
static xfer_status check_peers(const xfer_plan *plan, uint64_t later)
{
  xfer_status aborted = XFER_OK;

  /* The flags are read first, although the other texts are preferred, which say why: a rank
   * publishes its reason before it sets its flags. */
  for (const xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p))
    if (aborted == XFER_OK) aborted = xfi_direct_check(p->lanes.direct, p->run.epoch + later);
  XFI_TRY(plan->comm->ops->check_refused(plan->comm, plan->run.id.lanes));
  XFI_TRY(xfi_comm_check_destroyed(plan->comm));
  return aborted;
}

/* A run ends only once all ranks agree: fails if the comm is broken, or if a rank of this host has
 * ended or left the comm. */
static xfer_status check_all_there(const xfer_plan *plan)
{
  const xfer_status st = xfi_waits_check(plan->comm->waits); /* first, as in check_peers() */

  XFI_TRY(check_peers(plan, 0));
  XFI_TRY(plan->comm->ops->check(plan->comm));
  return st;
}

/* XFER_ERR_PEER if a peer has aborted the run that is about to begin. If the peer has also broken
 * the comm, the text of that says why. */
static xfer_status check_none_aborted(const xfer_plan *plan)
{
  xfer_status broken = XFER_OK;
  xfi_error aborted;

  xfi_error_keep(&aborted, check_peers(plan, 1));
  if (aborted.st != XFER_OK) broken = plan->comm->ops->check(plan->comm);
  return broken == XFER_OK ? aborted.st : xfi_comm_unreported(&aborted, broken);
}

/* May this run begin, in a state that allows runs? */
static xfer_status check_run(xfer_plan *plan, uint64_t version, xfer_stream stream)
{
  const xfi_allocation *changed;

  if (plan->state == XFI_REBOUND) XFI_TRY(plan->comm->ops->check(plan->comm));
  XFI_CHECK(plan->state != XFI_REBOUND || !xfi_plan_is_fresh(plan), XFER_ERR_STATE,
            "each run needs its own sources (XFER_PLAN_FRESH_SOURCES): bind them, and call "
            "xfer_plan_commit() first");
  XFI_CHECK(plan->state != XFI_REBOUND, XFER_ERR_STATE,
            "the plan is not committed since the last bind: call xfer_plan_commit() first");
  XFI_CHECK(version != UINT64_MAX, XFER_ERR_STATE, "version 2^64 - 1: none could follow it");
  XFI_CHECK(plan->run.n_complete == 0 || version > plan->version, XFER_ERR_STATE,
            "version %llu after version %llu: versions must grow", (unsigned long long)version,
            (unsigned long long)plan->version);
  XFI_TRY(xfi_stream_check(plan->device, stream));
  changed = xfi_plan_find_changed(plan);
  if (changed != NULL) plan->memory.mark = 0; /* so that the next commit looks each of them up */
  XFI_CHECK(changed == NULL, XFER_ERR_STATE,
            "memory at %p was freed or remapped since the commit; bind and commit again",
            changed->base);
  XFI_CHECK(!xfi_staging_is_leaked(plan), XFER_ERR_STATE,
            "staging memory was left to a failed run of another plan; commit again");
  /* Messages on a device do not say to which run they belong. So where others may have sent some in
   * a run that this rank refused, it receives none of another run before. */
  XFI_CHECK(!xfi_comm_can_cancel(plan->comm) || xfi_pipeline_is_empty(plan->lanes.pipeline) ||
                !xfi_run_is_other_unsettled(plan),
            XFER_ERR_STATE,
            "this rank refused a run of another plan, which others may have begun: call "
            "xfer_plan_wait() for that one before");
  return check_none_aborted(plan);
}

/* A run begins: none of its messages has been handed to the comm yet. */
static void reset_sent(xfer_plan *plan)
{
  for (xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p)) {
    p->run.is_sent = false;
    if (xfi_comm_can_cancel(plan->comm)) p->run.n_data_aborts = *plan->comm->n_data_aborts;
  }
}

/* A run does not begin on this rank, for the reason of the last error. */
static void refuse(xfer_plan *plan, xfi_call call, xfer_status st)
{
  plan->state = xfi_state_after(plan->state, call, XFI_FAILED);
  xfi_error_keep(&plan->run.error, st);
  reset_sent(plan);
  plan->run.is_unsettled = plan->run.id.sequence != 0; /* else the run sends nothing */
  if (plan->lanes.pipeline->channels.has_begun ||
      (!xfi_run_can_refuse(plan) && (st == XFER_ERR_PEER || st == XFER_ERR_COMM)))
    xfi_run_break_messages(plan);
}

/* If the plan's state does not allow a call, check whether the comm is broken. The caller has to
 * learn that first, since the calls that the state asks for would not help then. */
static xfer_status check_mendable(const xfer_plan *plan, xfi_call call)
{
  XFI_CHECK(plan->comm != NULL, XFER_ERR_STATE, "a simulated plan has no runs");
  return xfi_state_allows(plan->state, call) == XFER_OK ? XFER_OK
                                                        : plan->comm->ops->check(plan->comm);
}

xfer_status xfi_run_refuse(xfer_plan *plan, const char *why)
{
  XFI_TRY(check_mendable(plan, XFI_CALL_REFUSE));
  XFI_TRY(xfi_state_allows(plan->state, XFI_CALL_REFUSE));
  if (plan->state != XFI_REBOUND) xfi_run_take_sequence(plan); /* else its commit is refused */
  if (plan->state == XFI_UNCOMMITTED || plan->state == XFI_REBOUND || plan->state == XFI_TORN) {
    XFI_TRY(plan->comm->ops->check(plan->comm));
    plan->run.refuses_commit = true;
    xfi_cut_text(plan->run.error.text, sizeof plan->run.error.text, why);
    return XFER_OK;
  }
  xfi_set_error("%s", why);
  refuse(plan, XFI_CALL_REFUSE, XFER_ERR_STATE);
  xfi_run_note_failed(plan);
  return XFER_OK;
}

xfer_status xfi_run_start(xfer_plan *plan, uint64_t version, xfer_stream stream)
{
  xfi_event *const before = plan->run.before;
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_state_allows(plan->state, XFI_CALL_RUN));
  st = check_run(plan, version, stream);
  if (st != XFER_OK) {
    refuse(plan, XFI_CALL_RUN, st);
    return st;
  }
  reset_sent(plan);
  xfi_run_settle(plan);
  plan->run.is_open = false;
  plan->run.epoch++;
  plan->run.n_begun++;
  plan->run.version = version;
  plan->run.deadline = plan->main != NULL ? plan->main->run.deadline : xfi_run_deadline(plan);
  plan->state = xfi_state_after(plan->state, XFI_CALL_RUN, XFI_ENDED);
  plan->run.before = plan->run.finished;
  plan->run.finished = before; /* the two events take turns */
  xfi_error_keep(&plan->run.error, enqueue(plan, stream));
  if (plan->run.error.st != XFER_OK) xfi_run_break_messages(plan);
  return plan->run.error.st;
}

xfer_status xfi_run_next(xfer_plan *plan, uint64_t version, xfer_stream stream)
{
  xfer_status st;

  XFI_TRY(check_mendable(plan, XFI_CALL_RUN));
  xfi_run_take_sequence(plan);
  st = xfi_run_start(plan, version, stream);
  if (st != XFER_OK) xfi_run_note_failed(plan);
  return st;
}

/* ---- ending ---- */

/* After a run's work on this rank has ended: did all messages and flags arrive? While it is in
 * flight: as far as is known without querying the device. */
static xfer_status outcome(const xfer_plan *plan)
{
  /* Messages that were handed to the comm may have been cancelled with those of another plan. */
  if (xfi_comm_can_cancel(plan->comm) && xfi_plan_has_messages(plan))
    XFI_TRY(plan->comm->ops->check_data(plan->comm, plan->run.n_data_aborts));
  for (const xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p))
    XFI_TRY(xfi_direct_outcome(p->lanes.direct, p));
  return XFER_OK;
}

/* A run that is in flight here, or may be on other ranks, has failed: end it on this rank. */
static void fail_in_flight(xfer_plan *plan, xfer_status st)
{
  xfi_run_abort(plan, st);
  plan->state = xfi_state_after(plan->state, XFI_CALL_WAIT, XFI_FAILED);
}

/* The same for a run that may have been counted as complete. Returns `st`, why it failed. */
static xfer_status fail_after_all(xfer_plan *plan, xfer_status st)
{
  plan->run.is_open = false;
  plan->state = XFI_RUNNING;
  fail_in_flight(plan, st);
  return st;
}

xfer_status xfi_run_drain(xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  if (plan->run.n_begun == 0 || plan->lanes.direct == NULL || plan->state == XFI_TORN ||
      plan->run.is_announced)
    return XFER_OK;
  st = xfi_run_await_last(plan);
  if (st == XFER_ERR_TIMEOUT)
    xfi_set_error("run %llu is not done yet, and what it uses is to go",
                  (unsigned long long)plan->run.epoch);
  if (st == XFER_OK) st = outcome(plan);
  /* The caller knows of this failure already, but the peer that failed may still copy. */
  if (st == XFER_ERR_PEER && !plan->run.is_open)
    st = xfi_direct_abort(plan->lanes.direct, plan, st, xfi_run_abort_deadline(plan->plans));
  return st == XFER_OK ? XFER_OK : fail_after_all(plan, st);
}

void xfi_run_abandon(xfer_plan *plan)
{
  const bool is_over = plan->run.is_announced;
  xfer_status st;

  xfi_run_tell_destroyed(plan);
  if (plan->run.is_unsettled && !xfi_run_can_refuse(plan))
    plan->comm->ops->abort_data(plan->comm, plan->run.error.text);
  xfi_run_settle(plan);
  if (plan->lanes.direct == NULL || plan->lanes.pipeline == NULL || is_over) return;
  if (plan->state == XFI_RUNNING) {
    st = xfi_error_report(&plan->run.error);
    if (st == XFER_OK) st = xfi_event_sync(plan->device, plan->run.finished, plan->run.deadline);
    if (st == XFER_OK) st = outcome(plan);
    if (st != XFER_OK) xfi_run_abort(plan, st);
  } else {
    (void)xfi_run_drain(plan);
  }
  if (plan->state == XFI_COMMITTED || plan->state == XFI_REBOUND ||
      xfi_state_is_refused(plan->state)) {
    xfi_run_await_before(plan);
    plan->run.epoch++;
    (void)xfi_direct_abort(plan->lanes.direct, plan, XFER_OK, xfi_run_abort_deadline(plan->plans));
  }
}

static void complete(xfer_plan *plan)
{
  for (xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p)) {
    p->version = p->run.version;
    p->run.n_complete = p->run.n_begun;
    p->state = xfi_state_after(XFI_RUNNING, XFI_CALL_WAIT, XFI_ENDED);
  }
}

/* Set awaits[rank] for each rank for which the run waits on this rank's device. */
static void mark_awaited(const xfer_plan *plan, bool *awaits)
{
  for (const xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p))
    xfi_direct_add_awaited(p->lanes.direct, p->run.epoch, awaits);
}

/* Wait for the end of this rank's part of the run. *is_late: `deadline` has passed, but not the
 * deadline of the run. */
static xfer_status await_part(const xfer_plan *plan, xfi_deadline deadline, bool *is_late)
{
  xfer_status st;
  /* By then the alarm has ended all waits of streams, so what has not ended yet hangs. Half of
   * XFI_ABORT_MS is left for the agreement, in which other ranks wait for this one. */
  const xfi_deadline last = xfi_deadline_later(plan->run.deadline, XFI_ABORT_MS / 2);

  *is_late = false;
  do {
    xfi_deadline next = xfi_deadline_after(XFI_POLL_MS);
    bool *awaits;

    if (deadline.at_ns < next.at_ns) next = deadline;
    st = xfi_event_sync(plan->device, plan->run.finished, next);
    if (st != XFER_ERR_TIMEOUT) break;
    XFI_TRY(check_all_there(plan));
    awaits = xfi_waits_clear(plan->comm->waits);
    if (awaits != NULL) mark_awaited(plan, awaits);
    xfi_waits_publish(plan->comm->waits, XFI_POLLING, plan->comm->inside);
    XFI_CHECK(!xfi_deadline_expired(last), XFER_ERR_TIMEOUT,
              "the work of run %llu is not done before %s", (unsigned long long)plan->run.epoch,
              xfi_deadline_end(last));
    *is_late = xfi_deadline_expired(deadline) && !xfi_deadline_expired(plan->run.deadline);
    if (xfi_deadline_expired(deadline)) deadline = last; /* the run's own deadline is near */
  } while (!*is_late);
  if (!*is_late) { /* a rank that fails keeps publishing for whom it waited */
    XFI_TRY(st);
    XFI_TRY(check_peers(
        plan, 0)); /* first, since outcome() would only say that messages were cancelled */
    XFI_TRY(outcome(plan));
  }
  xfi_waits_end(plan->comm->waits);
  return XFER_OK;
}

/* Other ranks may wait for their part of the run until their own deadline. */
static xfi_deadline agreement_deadline(const xfer_plan *plan, xfi_deadline deadline)
{
  return xfi_deadline_later(deadline.at_ns > plan->run.deadline.at_ns ? deadline
                                                                      : plan->run.deadline,
                            INT64_C(2) * XFI_ABORT_MS);
}

/* Sources that are bound for one run are no longer bound, except for tables of scales, which are
 * the plan's own. */
static void unbind_sources(xfer_plan *plan)
{
  xfer_view scales;

  for (size_t t = 0; t < plan->moves->n_tensors; t++)
    if (plan->memory.bindings[t] != NULL && !xfi_quant_source(plan->quant, t, &scales))
      plan->memory.bindings[t]->src.is_set = false;
  (void)xfi_plan_prune_allocations(plan); /* their memory may be freed without another commit */
  plan->state = xfi_state_after(plan->state, XFI_CALL_BIND, XFI_ENDED);
}

xfer_status xfi_run_wait(xfer_plan *plan, uint64_t timeout_ms)
{
  xfi_deadline deadline = xfi_deadline_after((int64_t)timeout_ms);
  xfer_status st = XFER_OK;
  xfer_status mine;
  bool is_late = false;

  XFI_TRY(check_mendable(plan, XFI_CALL_WAIT));
  XFI_CHECK(!plan->run.refuses_commit || xfi_state_is_refused(plan->state), XFER_ERR_STATE,
            "this rank refused the next commit, not a run: xfer_plan_destroy() tells the others, "
            "xfer_plan_commit() withdraws it");
  XFI_TRY(xfi_state_allows(plan->state, XFI_CALL_WAIT));
  if (xfi_state_is_refused(plan->state)) plan->run.deadline = xfi_run_deadline(plan);
  if (plan->run.error.st != XFER_ERR_TIMEOUT) /* else it may be that the run was interrupted */
    plan->run.deadline.made_ns = deadline.made_ns;
  if (timeout_ms == 0 || timeout_ms > INT64_MAX) deadline = plan->run.deadline;
  mine = xfi_error_report(&plan->run.error);
  if (mine == XFER_OK) mine = await_part(plan, deadline, &is_late);
  XFI_CHECK(!is_late, XFER_ERR_TIMEOUT, "run %llu is not complete on rank %d yet; wait again",
            (unsigned long long)plan->run.epoch, plan->moves->rank);
  if (mine != XFER_OK && !plan->run.is_announced) xfi_run_abort(plan, mine);
  if (mine == XFER_OK &&
      xfi_plan_is_fresh(plan) && /* unmap sources before their owners learn that they may go */
      xfi_direct_drop_sources(plan->lanes.direct))
    plan->lanes.may_stay = false;
  st = xfi_run_agree(plan, mine, agreement_deadline(plan, deadline));
  xfi_run_settle(plan); /* messages of a run that was refused have been cancelled */
  if (st == XFER_OK && xfi_plan_is_staged(plan))
    st = xfi_staged_write(plan, agreement_deadline(plan, deadline));
  if (st == XFER_OK) {
    complete(plan);
    if (xfi_plan_is_fresh(plan)) unbind_sources(plan);
    return XFER_OK;
  }
  if (mine == XFER_OK) xfi_run_abort(plan, st);
  plan->state = xfi_state_after(plan->state, XFI_CALL_WAIT, XFI_FAILED);
  return st;
}

xfer_status xfi_run_test(const xfer_plan *plan, bool *over)
{
  const xfi_deadline now = {0};
  const xfi_deadline deadline = {
      .at_ns = plan->run.deadline.at_ns}; /* without the time of interruptions */

  XFI_CHECK(plan->comm != NULL, XFER_ERR_STATE, "a simulated plan has no runs");
  XFI_TRY(xfi_state_allows(plan->state, XFI_CALL_WAIT));
  *over = xfi_state_is_refused(plan->state) || plan->run.error.st != XFER_OK ||
          xfi_event_sync(plan->device, plan->run.finished, now) != XFER_ERR_TIMEOUT ||
          check_all_there(plan) != XFER_OK || xfi_deadline_expired(deadline);
  return XFER_OK;
}

xfer_status xfi_run_check(xfer_plan *plan)
{
  const bool may_fail = plan->state == XFI_RUNNING || plan->run.is_open;
  const xfer_status st = may_fail ? outcome(plan) : XFER_OK;

  return st == XFER_OK ? XFER_OK : fail_after_all(plan, st);
}

xfer_status xfi_run_assume_complete(xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  if (plan->state != XFI_RUNNING && !xfi_state_is_refused(plan->state)) return XFER_OK;
  st = xfi_error_report(&plan->run.error);
  if (st == XFER_OK) st = outcome(plan);
  if (st == XFER_OK)
    complete(plan);
  else
    fail_in_flight(plan, st);
  plan->run.is_open = st == XFER_OK && !xfi_plan_has_messages(plan);
  return st;
}

xfer_status xfi_run_follow(xfer_plan *plan, xfer_stream stream)
{
  /* Processes that share a GPU get it in turns, and a stream that waits keeps it for a millisecond.
   * So there the host waits for the readers of the last copy. */
  const bool apart = plan->lanes.snapshot == NULL || !plan->lanes.shares_gpu;
  xfer_status st = XFER_OK;

  if (plan->run.n_begun == 0) return XFER_OK;
  if (apart && xfi_stream_wait(plan->device, stream, plan->run.finished) == XFER_OK) return XFER_OK;
  st = xfi_run_await_last(plan); /* also if the stream could not be made to wait */
  if (st != XFER_OK) refuse(plan, XFI_CALL_RUN, st);
  return st;
}
