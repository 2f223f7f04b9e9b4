/* The end of a plan's last run, also while all plans of its comm are destroyed. */
#include "plans.h"

xfer_status xfi_run_await_last(const xfer_plan *plan)
{
  if (plan->run.n_begun == 0) return XFER_OK;
  return xfi_event_sync(plan->device, plan->run.finished,
                        plan->plans->is_ending ? plan->run.deadline : xfi_run_deadline(plan));
}
