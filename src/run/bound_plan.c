#include "bound_plan.h"

#include "alloc.h"
#include "error.h"

#include <stdio.h>

xfi_deadline xfi_run_deadline(const xfer_plan *plan)
{
  return xfi_deadline_after((int64_t)plan->options.timeout_ms);
}

xfer_status xfi_run_count_ranks(int *n_ranks, const xfer_plan *plan, xfer_status mine, bool flag,
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

xfer_status xfi_run_gather_results(bool *failed, const xfer_plan *plan,
                                   const xfi_run_result *result, const char *does,
                                   xfi_deadline deadline)
{
  const xfer_status mine = (xfer_status)result->status;
  xfi_comm *comm = plan->comm;
  xfer_status st = XFER_OK;
  char why[XFI_ERROR_BYTES];

  snprintf(why, sizeof why, "%s", xfer_last_error());
  st = comm->ops->all_gather(comm, plan->run.results, result, sizeof *result, deadline);
  if (st != XFER_OK) return mine == XFER_OK ? st : xfi_comm_unreported(mine, why, st);
  if (mine != XFER_OK) xfi_set_error("%s", why);
  for (int r = 0; r < comm->size;
       r++) { /* before the statuses, since a failure may result from this mismatch */
    *failed = *failed || plan->run.results[r].status != XFER_OK;
    XFI_CHECK(plan->run.results[r].plan == plan->run.results[0].plan, XFER_ERR_MISMATCH,
              "rank %d %s plan %llu of the comm, rank 0 %s plan %llu: all ranks use its plans in "
              "one order",
              r, does, (unsigned long long)plan->run.results[r].plan, does,
              (unsigned long long)plan->run.results[0].plan);
  }
  return XFER_OK;
}

uint64_t xfi_run_flow_bytes(const xfer_plan *plan, bool send, const xfi_peer *peer)
{
  const xfi_move_list *list = xfi_run_moves(plan, send);
  uint64_t n_bytes = 0;

  /* n_bytes of a relay's peers counts what crossed domains, and of a plan's peers it leaves out
   * what is cheaper to broadcast. */
  if (plan->main == NULL && xfi_run_n_broadcast(plan) == plan->moves->n_broadcast)
    return peer->n_bytes;
  for (size_t i = peer->first; i < peer->first + peer->n; i++) {
    const xfi_class *cls = xfi_plan_class(plan->moves, list->moves[i].tensor);

    if (!xfi_run_broadcasts(plan, cls))
      n_bytes += xfi_move_bytes(cls, xfi_class_flows(cls, send), &list->moves[i]);
  }
  return n_bytes;
}

bool xfi_run_shares(const xfer_plan *plan, int peer)
{
  /* A channel's byte sequence of a box has no blocks. */
  return plan->comm != NULL && plan->quant == NULL && plan->device->ops->is_synchronous &&
         plan->comm->ops->shares != NULL && plan->comm->ops->shares(plan->comm, peer);
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

xfer_status xfi_run_await_last(const xfer_plan *plan)
{
  if (plan->run.n_begun == 0) return XFER_OK;
  return xfi_event_sync(plan->device, plan->run.finished, xfi_run_deadline(plan));
}

uint64_t xfi_run_staging_share(const xfer_plan *plan)
{
  const size_t n_broadcast = xfi_run_n_broadcast(plan);
  const bool both = n_broadcast > 0 && n_broadcast < plan->moves->n_tensors;

  return plan->options.max_staging_bytes / (both ? 2 : 1);
}
