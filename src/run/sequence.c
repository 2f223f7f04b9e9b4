/*
 * The order in which ranks use the plans of a comm, and what they agree on at the end of a run.
 *
 * run.c, commit.c and src/api call this on the thread that makes the comm's calls. Only the two
 * functions at the end are collective. sequence.h explains the numbers.
 */
#include "sequence.h"

#include "count.h"
#include "error.h"
#include "pipeline.h"
#include "plans.h"

static bool any_sends(const xfer_plan *plan)
{
  bool any = false;

  for (const xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p))
    any = any || p->lanes.any_sends;
  return any;
}

bool xfi_plan_has_messages(const xfer_plan *plan)
{
  bool any = false;

  for (const xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p))
    any = any || (p->lanes.pipeline != NULL && !xfi_pipeline_is_empty(p->lanes.pipeline));
  return any;
}

static void set_id(xfer_plan *plan, xfi_run_id id)
{
  for (xfer_plan *p = xfi_run_phase(plan, NULL); p != NULL; p = xfi_run_phase(plan, p))
    p->run.id = id;
}

void xfi_run_take_sequence(xfer_plan *plan)
{
  if (plan->state != XFI_COMMITTED && plan->state != XFI_REBOUND) return;
  if (any_sends(plan))
    set_id(plan, (xfi_run_id){++plan->plans->n_sequenced, plan->lanes.number});
  else
    set_id(plan, (xfi_run_id){0, 0});
}

bool xfi_run_is_failing(const xfer_plan *plan)
{
  return xfi_state_is_refused(plan->state) ||
         (plan->state == XFI_RUNNING && plan->run.error.st != XFER_OK);
}

void xfi_run_note_failed(xfer_plan *plan)
{
  if (!xfi_run_is_failing(plan) || plan->run.in_failed) return;
  plan->run.in_failed = true;
  plan->run.next_failed = plan->plans->failed;
  plan->plans->failed = plan;
}

void xfi_run_settle(xfer_plan *plan)
{
  xfer_plan **at;

  plan->run.is_unsettled = plan->run.is_announced = false;
  if (!plan->run.in_failed) return; /* so it is in a simulation, which has no list */
  at = &plan->plans->failed;
  while (*at != plan)
    at = &(*at)->run.next_failed;
  *at = plan->run.next_failed;
  plan->run.in_failed = false;
}

bool xfi_run_is_other_unsettled(const xfer_plan *plan)
{
  const xfer_plan *other = plan->plans->failed;

  while (other != NULL && (other == plan || !other->run.is_unsettled))
    other = other->run.next_failed;
  return other != NULL;
}

/* Take back the number of a run that this rank refused. As far as it knows no other rank has begun
 * that run, and none will any more; ranks that never came to it have not counted it, and the next
 * run needs the same number everywhere. Runs that this rank refused later move down by one. Nothing
 * is done if other ranks have counted the run by now, or if this rank has begun a later one. */
static void uncount(xfi_plans *plans, uint64_t sequence)
{
  uint64_t n_later = 0;

  for (const xfer_plan *p = plans->failed; p != NULL; p = p->run.next_failed)
    n_later += p->run.is_unsettled && p->run.id.sequence > sequence;
  if (sequence <= plans->n_agreed || sequence + n_later != plans->n_sequenced) return;
  for (xfer_plan *p = plans->failed; p != NULL; p = p->run.next_failed)
    if (p->run.is_unsettled && p->run.id.sequence > sequence)
      set_id(p, (xfi_run_id){p->run.id.sequence - 1, p->run.id.lanes});
  plans->n_sequenced--;
}

void xfi_run_tell_destroyed(xfer_plan *plan)
{
  const bool refused = xfi_state_is_refused(plan->state);

  if (plan->main != NULL || (!refused && !plan->run.refuses_commit)) return;
  plan->comm->ops->refuse(plan->comm, XFI_DESTROYED | plan->number, plan->run.error.text);
  if (refused) uncount(plan->plans, plan->run.id.sequence);
}

/* Called once all ranks know who has begun a failed run. If some ranks have sent in it and others
 * have not received, messages are left over which a later run would receive, so the comm is broken.
 * Where ranks wait for different plans, a rank that has not begun its own may be the receiver of
 * messages of another's. */
static void end_left_over(const xfer_plan *plan)
{
  const xfi_run_result *results = plan->run.results;
  bool is_one_plan = true;
  int n_begun = 0;
  int n_out = 0;

  for (int r = 0; r < plan->comm->size; r++) {
    is_one_plan = is_one_plan && results[r].plan == results[0].plan;
    n_begun += results[r].has_begun != 0 && results[r].has_messages != 0;
  }
  for (int r = 0; r < plan->comm->size; r++)
    n_out += results[r].has_begun == 0 && (results[r].has_messages != 0 || !is_one_plan);
  if (!xfi_comm_can_cancel(plan->comm) && n_begun > 0 && n_out > 0)
    xfi_comm_abort_with_error(plan->comm, plan->comm->ops->abort_data);
}

xfer_status xfi_run_gather_results(bool *failed, const xfer_plan *plan,
                                   const xfi_run_result *result, const char *does,
                                   xfi_deadline deadline)
{
  const xfer_status mine = (xfer_status)result->status;
  xfi_plans *plans = plan->plans;
  xfi_comm *comm = plan->comm;
  xfer_status st = XFER_OK;
  xfi_error own;

  xfi_error_keep(&own, mine);
  st = comm->ops->all_gather(comm, plan->run.results, result, sizeof *result, deadline);
  if (st != XFER_OK) return mine == XFER_OK ? st : xfi_comm_unreported(&own, st);
  (void)xfi_error_report(&own);
  /* The plans are compared before the statuses: where they differ, that is why a rank failed. */
  for (int r = 0; r < comm->size; r++) {
    *failed = *failed || plan->run.results[r].status != XFER_OK;
    XFI_CHECK(plan->run.results[r].plan == plan->run.results[0].plan, XFER_ERR_MISMATCH,
              "rank %d %s plan %llu of the comm, rank 0 %s plan %llu: all ranks use its plans in "
              "one order",
              r, does, (unsigned long long)plan->run.results[r].plan, does,
              (unsigned long long)plan->run.results[0].plan);
  }
  /* Ranks whose sequence numbers differ take the highest one, so that they agree from the next run
   * on. */
  for (int r = 0; r < comm->size; r++)
    if (plan->run.results[r].sequence > plans->n_agreed)
      plans->n_agreed = plan->run.results[r].sequence;
  if (plans->n_agreed > plans->n_sequenced) plans->n_sequenced = plans->n_agreed;
  return XFER_OK;
}

xfer_status xfi_run_agree(const xfer_plan *plan, xfer_status mine, xfi_deadline deadline)
{
  xfi_comm *comm = plan->comm;
  const xfi_run_result result = {.version = plan->run.version,
                                 .status = mine,
                                 .has_begun = plan->state == XFI_RUNNING,
                                 .has_messages = xfi_plan_has_messages(plan),
                                 .plan = plan->number,
                                 .sequence = plan->run.id.sequence,
                                 .sum =
                                     mine == XFER_OK ? xfi_verify_mine(plan) : (xfi_sum){{0, 0}}};
  const xfi_run_result *results = plan->run.results; /* of all ranks */
  bool failed = false;
  xfer_status st;

  comm->run = plan->run.id;
  st = xfi_run_gather_results(&failed, plan, &result, "waits for", deadline);
  if (st == XFER_OK && failed) st = xfi_comm_agree(comm, mine, deadline);
  if (st != XFER_OK) {
    end_left_over(plan);
    return st;
  }
  for (int r = 0; r < comm->size; r++) {
    XFI_CHECK(results[r].version == results[0].version, XFER_ERR_MISMATCH,
              "rank %d ran version %llu, rank 0 version %llu", r,
              (unsigned long long)results[r].version, (unsigned long long)results[0].version);
    XFI_CHECK(results[r].sequence == results[0].sequence, XFER_ERR_MISMATCH,
              "rank %d began its run of plan %llu of the comm in another order than rank 0: all "
              "ranks use its plans in one order",
              r, (unsigned long long)plan->number);
  }
  return xfi_verify_outcome(plan, deadline);
}
