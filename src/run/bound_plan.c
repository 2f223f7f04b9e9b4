/* What all files of src/run need: the walk over a run's phases, deadlines, counts over ranks, and
 * events that are recorded and awaited in spite of transient errors. */
#include "bound_plan.h"

#include "alloc.h"
#include "error.h"

xfer_plan *xfi_run_phase(const xfer_plan *plan, const xfer_plan *before)
{
  xfer_plan *const amax_plan = plan->amax_plan;
  xfer_plan *const phases[] = {amax_plan, amax_plan == NULL ? NULL : amax_plan->relay,
                               (xfer_plan *)plan, plan->relay};
  bool is_passed = before == NULL;

  for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
    if (is_passed && phases[i] != NULL) return phases[i];
    is_passed = is_passed || phases[i] == before;
  }
  return NULL;
}

xfi_deadline xfi_run_deadline(const xfer_plan *plan)
{
  return xfi_deadline_after((int64_t)plan->options.timeout_ms);
}

xfer_status xfi_plan_count_ranks(int *n_ranks, const xfer_plan *plan, xfer_status mine, bool flag,
                                 xfi_deadline deadline)
{
  xfer_status st = mine;
  const unsigned char result = flag;
  unsigned char *all = xfi_comm_agree_gather(plan->comm, &st, &result, sizeof result, deadline);

  *n_ranks = 0;
  for (int r = 0; all != NULL && r < plan->comm->size; r++)
    *n_ranks += all[r] != 0;
  xfi_free(all);
  return st;
}

/* Retries of a device call that may fail for a while. */
enum { TRIES = 100, PAUSE_NS = 1000 * 1000 };

xfer_status xfi_run_record(xfi_device *device, xfi_event *event, xfer_stream stream)
{
  xfer_status st = XFER_ERR_CUDA;

  for (int n = 0; n < TRIES && st != XFER_OK; n++) {
    if (n > 0) xfi_sleep_ns(PAUSE_NS);
    st = xfi_event_record(device, event, stream);
  }
  return st;
}

xfer_status xfi_run_await_event(xfi_device *device, xfi_event *event, xfi_deadline deadline)
{
  xfer_status st = XFER_ERR_CUDA;

  for (int n = 0; n < TRIES && st != XFER_OK && st != XFER_ERR_TIMEOUT; n++) {
    if (n > 0) xfi_sleep_ns(PAUSE_NS);
    st = xfi_event_sync(device, event, deadline);
  }
  return st == XFER_ERR_TIMEOUT ? st : XFER_OK;
}
