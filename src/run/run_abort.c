/* Ending runs that failed, as run_abort.h says. */
#include "run_abort.h"

#include <stdio.h>

#include "direct.h"
#include "error.h"
#include "lanes.h"
#include "pipeline.h"
#include "plans.h"
#include "sequence.h"
#include "staging.h"

bool xfi_run_can_refuse(const xfer_plan *plan)
{
  return plan->run.id.sequence != 0 && !xfi_comm_can_cancel(plan->comm);
}

/* A further plan of a comm that ends, once the time of all is over. */
enum { ABORT_TOO_MS = 10 };

xfi_deadline xfi_run_abort_deadline(xfi_plans *plans)
{
  const xfi_deadline own = xfi_deadline_after(XFI_ABORT_MS);
  const xfi_deadline least = xfi_deadline_after(ABORT_TOO_MS);

  if (!plans->is_ending) return own;
  if (plans->abort_by.at_ns == 0) plans->abort_by = own;
  return plans->abort_by.at_ns < least.at_ns ? least : plans->abort_by;
}

void xfi_run_await_before(const xfer_plan *plan)
{
  const bool has_begun = plan->state == XFI_RUNNING; /* the failed run, here */
  xfi_event *const ended = has_begun ? plan->run.before : plan->run.finished;
  const uint64_t epoch = has_begun ? plan->run.epoch - 1 : plan->run.epoch;
  xfer_status st = XFER_ERR_TIMEOUT;
  char why[XFI_ERROR_BYTES];

  snprintf(why, sizeof why, "%s", xfer_last_error());
  while (st == XFER_ERR_TIMEOUT && !xfi_deadline_expired(plan->run.deadline) &&
         xfi_direct_check(plan->lanes.direct, epoch) == XFER_OK)
    st = xfi_run_await_event(plan->device, ended, xfi_deadline_after(XFI_POLL_MS));
  xfi_set_error("%s", why);
}

void xfi_run_break_messages(const xfer_plan *plan)
{
  bool is_all_sent = true;

  for (const xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p))
    if (!p->run.is_sent && !xfi_pipeline_is_empty(p->lanes.pipeline)) is_all_sent = false;
  if (is_all_sent) return;
  xfi_run_await_before(plan);
  xfi_comm_abort_with_error(plan->comm, plan->comm->ops->abort_data);
}

/* Cancel the messages of a failed run, unless another run's end has cancelled them. If the run
 * did not begin here, nothing is cancelled before it is known that another rank began it. */
static void end_messages(xfer_plan *plan)
{
  const xfi_comm_ops *comm = plan->comm->ops;
  const bool has_begun = plan->state == XFI_RUNNING;

  if (!has_begun) plan->run.epoch++; /* the flags of this run, which other ranks may have begun */
  if (xfi_comm_can_cancel(plan->comm) && *plan->comm->n_data_aborts != plan->run.n_data_aborts)
    return;
  /* On a device messages may still wait after they were handed to the comm. */
  if (xfi_pipeline_is_empty(plan->lanes.pipeline) ||
      (plan->run.is_sent && plan->device->ops->is_synchronous))
    return;
  if (has_begun || !xfi_run_can_refuse(plan))
    xfi_comm_abort_with_error(plan->comm, comm->abort_data);
  else
    comm->refuse(plan->comm, plan->run.id.lanes, xfer_last_error());
}

/* Abort a failed run on the peers, and wait for what is still in flight. `pending` becomes the text
 * of what may still access this rank's memory; memory that it may access is leaked. */
static void abort_lanes(xfer_plan *plan, xfer_status st, xfi_deadline deadline,
                        char pending[XFI_ERROR_BYTES])
{
  xfer_plan *owner = plan->main != NULL ? plan->main : plan; /* of the mirrors */
  const xfi_deadline now = {0};

  for (int i = 0; i < XFI_STEP_STREAMS && plan->lanes.pipeline->streams[i] != NULL; i++) {
    if (xfi_run_record(plan->device, plan->lanes.pipeline->ended[i],
                       plan->lanes.pipeline->streams[i]) != XFER_OK ||
        xfi_event_sync(plan->device, plan->lanes.pipeline->ended[i], deadline) != XFER_OK) {
      xfi_staging_leak_slots(plan->plans);
      xfi_mirror_leak(owner->lanes.staged);
    }
  }
  if (xfi_direct_abort(plan->lanes.direct, plan, st, deadline) != XFER_OK) {
    snprintf(pending, XFI_ERROR_BYTES, "; %s", xfer_last_error());
    xfi_mirror_leak(owner->lanes.staged);
    xfi_mirror_leak(owner->lanes.snapshot);
    if (xfi_event_sync(plan->device, plan->run.finished, now) != XFER_OK)
      xfi_staging_leak_slots(plan->plans); /* a single small step runs on the caller's stream */
  }
}

/* Set the state of a plan inside a failed plan, whose runs are not waited for on their own. Its run
 * counts as failed even if it did not begin here: else aborting the next run would overwrite flags
 * that other ranks may still read. */
static void fail_run(xfer_plan *plan)
{
  xfi_run_settle(plan);
  if (plan->state == XFI_COMMITTED)
    plan->state = xfi_state_after(plan->state, XFI_CALL_RUN, XFI_FAILED);
  if (plan->state == XFI_RUNNING || xfi_state_is_refused(plan->state))
    plan->state = xfi_state_after(plan->state, XFI_CALL_WAIT, XFI_FAILED);
}

void xfi_run_abort(xfer_plan *plan, xfer_status st)
{
  const xfi_deadline deadline = xfi_run_abort_deadline(plan->plans);
  char why[XFI_ERROR_BYTES];
  char pending[XFI_ERROR_BYTES] = "";

  snprintf(why, sizeof why, "%s", xfer_last_error());
  xfi_run_await_before(plan);
  for (xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p))
    end_messages(p);
  for (xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p))
    xfi_direct_give_up(p->lanes.direct, p, st);
  for (xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p)) {
    abort_lanes(p, st, deadline, pending);
    if (p != plan) fail_run(p);
  }
  xfi_set_error("%.300s%.200s", why, pending);
}

static void announce(xfer_plan *plan)
{
  const xfer_status st = xfi_error_report(&plan->run.error);

  if (plan->state != XFI_RUNNING) plan->run.deadline = xfi_run_deadline(plan);
  xfi_run_abort(plan, st); /* which waits for nobody on a host */
  plan->run.is_announced = true;
  if (plan->state == XFI_RUNNING) return;
  plan->state = xfi_state_after(plan->state, XFI_CALL_REFUSE, XFI_FAILED); /* for good */
  plan->lanes.may_stay = false; /* their flags are now those of a run that nobody completes */
}

void xfi_run_announce(xfi_plans *plans, const xfer_plan *plan)
{
  char why[XFI_ERROR_BYTES];

  if (plans->failed == NULL || !plans->device->ops->is_synchronous) return;
  snprintf(why, sizeof why, "%s", xfer_last_error());
  for (xfer_plan *p = plans->failed; p != NULL; p = p->run.next_failed)
    if (p != plan && xfi_run_is_failing(p) && !p->run.is_announced) announce(p);
  xfi_set_error("%s", why);
}
