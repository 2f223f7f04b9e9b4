/*
 * Staged plans: the lanes write a mirror of the destinations. Once all ranks have agreed that a run
 * is complete, each copies the mirror to its own destinations; a failure before that leaves those
 * as they were. The mirror lives from one commit to the next.
 */
#include "error.h"
#include "lanes.h"
#include "trace.h"

uint64_t xfi_staged_bytes(const xfer_plan *plan)
{
  return xfi_plan_is_staged(plan) ? xfi_mirror_bytes(plan, XFI_SIDE_DST) : 0;
}

xfer_status xfi_staged_create(xfer_plan *plan)
{
  if (!xfi_plan_is_staged(plan)) return XFER_OK;
  XFI_TRY(xfi_mirror_create(&plan->lanes.staged, plan, XFI_SIDE_DST));
  if (plan->lanes.staged == NULL) return XFER_OK; /* this rank receives nothing */
  return xfi_mirror_prepare(plan->lanes.staged, plan, NULL);
}

/* Copy the mirror to this rank's destinations, and wait until that is done. */
static xfer_status write_own(xfer_plan *plan, xfi_deadline deadline)
{
  xfi_mirror *s = plan->lanes.staged;
  xfer_status st = XFER_OK;

  if (s == NULL) return XFER_OK;
  XFI_TRY_DONE(xfi_batch_launch(plan->device, s->copy, s->stream));
  XFI_TRY_DONE(xfi_run_record(plan->device, s->event, s->stream));
  XFI_TRY_DONE(xfi_event_sync(plan->device, s->event, deadline));
done:
  /* After this returns nothing may write to the destinations any more. So wait once more, and if
   * that fails too, leak the block: the device may still read it. */
  if (st != XFER_OK && (xfi_run_record(plan->device, s->event, s->stream) != XFER_OK ||
                        xfi_event_sync(plan->device, s->event, deadline) != XFER_OK))
    xfi_mirror_leak(s);
  return st;
}

xfer_status xfi_staged_write(xfer_plan *plan, xfi_deadline deadline)
{
  const xfi_span span = xfi_span_begin(XFI_SYS_RUN, plan->moves->rank, XFI_TRACK_CALLS, "write");
  xfer_status st = XFER_OK;

  plan->run.is_half_written = true;
  st = xfi_comm_agree(plan->comm, write_own(plan, deadline), deadline);
  plan->run.is_half_written = st != XFER_OK;
  xfi_span_end(
      &span, st, "%llu bytes",
      (unsigned long long)(plan->lanes.staged == NULL ? 0 : plan->lanes.staged->block.n_bytes));
  return st;
}
