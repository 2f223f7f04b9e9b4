/*
 * Runs: enqueue all lanes, wait, commit the version. And what a plan says of itself.
 */
#include "run.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "error.h"

xfi_deadline xfi_run_deadline(const xfer_plan *plan)
{
  return xfi_deadline_after((int64_t)plan->options.timeout_ms);
}

const xfi_allocation *xfi_run_find_changed(const xfer_plan *plan)
{
  const xfi_device_ops *dev = plan->device->ops;
  size_t i = plan->n_allocations;

  if (dev->find_changed != NULL)
    i = dev->find_changed(plan->device, plan->allocations, plan->n_allocations);
  return i < plan->n_allocations ? &plan->allocations[i] : NULL;
}

/* Peers may be in a run of which this rank does not do its part: let them go. */
static void let_peers_go(xfer_plan *plan, const char *part)
{
  char why[XFI_ERROR_BYTES];

  plan->torn = true; /* a peer on a device does not stop in the middle */
  xfi_direct_fail(plan->direct, plan->moves->rank);
  if (xfi_pipeline_is_empty(plan->pipeline)) return;
  snprintf(why, sizeof why, "rank %d did not %s a run", plan->moves->rank, part);
  plan->comm->ops->abort(plan->comm, why);
}

static xfer_status enqueue(xfer_plan *plan, xfer_stream stream, xfi_deadline deadline)
{
  const xfi_device_ops *dev = plan->device->ops;
  xfer_status st = XFER_OK;
  bool has_sent = false; /* all that peers wait for in the comm */

  XFI_TRY(dev->event_record(plan->device, plan->started, stream));
  XFI_TRY(xfi_direct_start(plan->direct, plan, stream, deadline));
  if (plan->local != NULL) XFI_TRY(dev->batch_launch(plan->device, plan->local, stream));
  XFI_TRY(xfi_pipeline_start(plan->pipeline, plan, stream, deadline));
  has_sent = true;
  XFI_TRY(xfi_direct_finish(plan->direct, plan, stream, deadline));
  XFI_TRY(dev->event_record(plan->device, plan->finished, stream));
done:
  if (st != XFER_OK && has_sent) xfi_direct_fail(plan->direct, plan->moves->rank);
  if (st != XFER_OK && !has_sent) let_peers_go(plan, "complete");
  return st;
}

/* Can this rank begin a run? */
static xfer_status check_run(const xfer_plan *plan, uint64_t version, xfer_stream stream)
{
  const xfi_allocation *changed;
  xfer_status st = XFER_OK;

  XFI_CHECK(plan->state != XFI_PLAN_UNCOMMITTED, XFER_ERR_STATE, "the plan is not committed");
  XFI_CHECK(version > plan->version, XFER_ERR_STATE, "version %llu after version %llu",
            (unsigned long long)version, (unsigned long long)plan->version);
  XFI_TRY(plan->device->ops->stream_check(plan->device, stream));
  changed = xfi_run_find_changed(plan);
  XFI_CHECK(changed == NULL, XFER_ERR_STATE,
            "memory at %p was freed or remapped since the commit; bind and commit again",
            changed->base);
done:
  return st;
}

xfer_status xfi_run_start(xfer_plan *plan, uint64_t version, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(plan->state != XFI_PLAN_RUNNING, XFER_ERR_STATE,
            "a run is in flight; wait for it before the next");
  plan->run_status = check_run(plan, version, stream);
  plan->refused = plan->run_status != XFER_OK && plan->pipeline != NULL;
  XFI_TRY(plan->run_status);
  plan->epoch++;
  plan->run_version = version;
  plan->torn = true; /* until wait says otherwise */
  plan->state = XFI_PLAN_RUNNING;
  st = plan->run_status = enqueue(plan, stream, xfi_run_deadline(plan));
done:
  return st;
}

xfer_status xfi_run_once(xfer_plan *plan, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  if (plan->unawaited)
    XFI_TRY(plan->device->ops->stream_wait(plan->device, stream, plan->finished));
  st = xfi_run_start(plan, plan->version + 1, stream);
  if (st != XFER_OK) { /* no agreement follows: what the lanes have is of no more use to anybody */
    if (plan->state != XFI_PLAN_RUNNING) let_peers_go(plan, "begin");
    plan->changed = true;
    plan->abandoned = true;
  }
  if (plan->state == XFI_PLAN_RUNNING) plan->state = XFI_PLAN_COMMITTED;
  plan->unawaited = st == XFER_OK;
  if (st == XFER_OK) plan->version = plan->run_version;
done:
  return st;
}

/* After a failed run: flags are no longer in step, so the next run needs a commit. Where not even a
 * last gathering works, some rank may still be in the run and touch our memory. */
static void leave_run(xfer_plan *plan, xfi_deadline deadline)
{
  char why[XFI_ERROR_BYTES];

  snprintf(why, sizeof why, "%s", xfi_last_error()); /* of the run, not of what follows */

  plan->state = XFI_PLAN_UNCOMMITTED;
  plan->changed = true;
  plan->abandoned = xfi_comm_agree(plan->comm, XFER_OK, deadline) != XFER_OK;
  xfi_set_error("%s", why);
}

/* Every rank's word of the run. */
static xfer_status agree_on_run(const xfer_plan *plan, xfer_status mine, xfi_deadline deadline)
{
  xfi_comm *comm = plan->comm;
  const xfi_run_word word = {plan->run_version, mine};
  const int last = comm->size - 1;
  xfer_status st = XFER_OK;
  bool failed = false;
  int other = 0;
  char why[XFI_ERROR_BYTES];

  snprintf(why, sizeof why, "%s", xfi_last_error());
  st = comm->ops->all_gather(comm, plan->words, &word, sizeof word, deadline);
  if (mine != XFER_OK) xfi_set_error("%s", why); /* our own goes before the transport's */
  if (st != XFER_OK) return mine != XFER_OK ? mine : st;
  for (int r = 0; r < comm->size; r++)
    failed = failed || plan->words[r].status != XFER_OK;
  if (failed) return xfi_comm_agree(comm, mine, deadline);
  while (other < last && plan->words[other].version == plan->words[last].version)
    other++;
  XFI_CHECK(other == last, XFER_ERR_MISMATCH, "rank %d ran version %llu, rank %d version %llu",
            other, (unsigned long long)plan->words[other].version, last,
            (unsigned long long)plan->words[last].version);
done:
  return st;
}

xfer_status xfi_run_wait(xfer_plan *plan, uint64_t timeout_ms)
{
  const xfi_deadline deadline = timeout_ms == 0 || timeout_ms > INT64_MAX
                                    ? xfi_run_deadline(plan)
                                    : xfi_deadline_after((int64_t)timeout_ms);
  xfer_status st = XFER_OK;

  XFI_CHECK(plan->state == XFI_PLAN_RUNNING || plan->refused, XFER_ERR_STATE,
            "no run is in flight");
  if (plan->refused) let_peers_go(plan, "begin");
  plan->refused = false;
  st = plan->run_status;
  if (st == XFER_OK) st = plan->device->ops->event_sync(plan->device, plan->finished, deadline);
  if (st == XFER_ERR_TIMEOUT) xfi_direct_name_late(plan->direct, plan);
  plan->state = XFI_PLAN_COMMITTED;
  st = agree_on_run(plan, st, deadline);
  if (st != XFER_OK) leave_run(plan, deadline);
  if (st != XFER_OK) goto done;
  plan->version = plan->run_version;
  plan->torn = false;
done:
  return st;
}

/* ---- report ---- */

/* At most INT64_MAX, whatever the options are. */
static uint64_t predict_ns(const xfer_plan *plan, const xfer_plan_report_data *r)
{
  const double on_wire = (double)r->bound_bytes / (double)plan->options.link_bytes_per_s * 1e9;
  const double of_messages =
      (double)(r->n_send_peers + r->n_recv_peers) * (double)plan->options.message_ns;
  const double ns = on_wire + of_messages;

  return ns < 9e18 ? (uint64_t)ns : INT64_MAX;
}

void xfi_run_report(const xfer_plan *plan, xfer_plan_report_data *r)
{
  const xfi_plan *m = plan->moves;

  r->n_tensors = m->n_tensors;
  r->n_classes = m->n_classes;
  r->n_moves = m->selfs.n_moves + m->recvs.n_moves + m->sends.n_moves;
  r->payload_bytes = m->payload_bytes;
  r->in_bytes = m->in_bytes;
  r->self_bytes = m->self_bytes;
  r->zero_bytes = m->zero_bytes;
  r->wire_bytes = m->in_bytes - m->self_bytes - m->zero_bytes;
  r->out_bytes = m->out_bytes;
  r->n_send_peers = m->sends.n_peers;
  r->n_recv_peers = m->recvs.n_peers;
  r->broadcast_tensors = m->n_broadcast;
  r->window_bytes = plan->window_bytes;
  r->bound_bytes = r->wire_bytes > r->out_bytes ? r->wire_bytes : r->out_bytes;
  r->predicted_ns = predict_ns(plan, r);
  r->committed_version = plan->version;
  r->torn = plan->torn ? 1 : 0;
  if (plan->direct != NULL) r->direct_bytes = xfi_direct_bytes(plan->direct);
  if (plan->pipeline == NULL) return;
  r->packed_bytes = plan->pipeline->sent_bytes;
  r->n_rounds = plan->pipeline->n_rounds;
  r->staging_bytes = plan->pipeline->staging_bytes;
}
