/*
 * Shadows: where the lanes of a staged plan write in place of its destinations. Once all ranks have
 * said that all of a run is there, each writes its own destinations from them; what fails before
 * leaves those as they were.
 *
 * One block holds those of all tensors, dense, from one commit to the next.
 */
#include "error.h"
#include "lanes.h"
#include "trace.h"

uint64_t xfi_shadow_bytes(const xfer_plan *plan)
{
  return xfi_run_is_staged(plan) ? xfi_twins_bytes(plan, false) : 0;
}

xfer_status xfi_shadow_create(xfer_plan *plan)
{
  if (!xfi_run_is_staged(plan)) return XFER_OK;
  XFI_TRY(xfi_twins_create(&plan->shadow, plan, false));
  if (plan->shadow == NULL) return XFER_OK; /* this rank gets nothing */
  return xfi_twins_prepare(plan->shadow, plan, NULL);
}

/* This rank's destinations. */
static xfer_status write_own(xfer_plan *plan, xfi_deadline deadline)
{
  xfi_twins *s = plan->shadow;
  xfer_status st = XFER_OK;

  if (s == NULL) return XFER_OK;
  XFI_TRY_DONE(xfi_batch_launch(plan->device, s->copy, s->stream));
  XFI_TRY_DONE(xfi_run_record(plan->device, s->event, s->stream));
  XFI_TRY_DONE(xfi_event_sync(plan->device, s->event, deadline));
done:
  /* Asked once more: nothing is written once we are back, or it is left there. */
  if (st != XFER_OK && (xfi_run_record(plan->device, s->event, s->stream) != XFER_OK ||
                        xfi_event_sync(plan->device, s->event, deadline) != XFER_OK))
    xfi_twins_lose(s);
  return st;
}

xfer_status xfi_shadow_write(xfer_plan *plan, xfi_deadline deadline)
{
  const xfi_span span = xfi_span_begin(XFI_SYS_RUN, plan->moves->rank, XFI_TRACK_CALLS, "write");
  xfer_status st = XFER_OK;

  plan->is_half_written = true;
  st = xfi_comm_agree(plan->comm, write_own(plan, deadline), deadline);
  plan->is_half_written = st != XFER_OK;
  xfi_span_end(&span, st, "%llu bytes",
               (unsigned long long)(plan->shadow == NULL ? 0 : plan->shadow->block.n_bytes));
  return st;
}
