/*
 * How a failed run is ended on this rank and on its peers.
 */
#ifndef XFI_RUN_ABORT_H
#define XFI_RUN_ABORT_H

#include "bound_plan.h"

enum {
  XFI_POLL_MS = 20, /* between two checks whether a peer has aborted */
  /* How long a rank waits after a failure for what it has enqueued to end. A wait may return by
   * twice that after its deadline: streams are released at the deadline, and then the run is
   * aborted. */
  XFI_ABORT_MS = 1000
};

/* Can the others be told that this rank takes no part in its run? Only of a run that has a number,
 * and where messages cannot be cancelled. */
bool xfi_run_can_refuse(const xfer_plan *plan);
/* The deadline for an aborted run to end on this rank. All plans of a comm that ends share the time
 * of one, since what delays one of them mostly delays all. */
xfi_deadline xfi_run_abort_deadline(xfi_plans *plans);
/* Wait for the run before a failed one. It may still be in flight if nobody waited for it
 * (xfi_run_assume_complete()); its call has already reported success, and what ends the failed run
 * would end that one too. Returns early if a peer has aborted it. Keeps the text of the error. */
void xfi_run_await_before(const xfer_plan *plan);
/* If a run failed before all its messages were sent, cancel the comm's messages: otherwise peers
 * that still wait for some would receive those of the next run instead. Keeps the text of the
 * error. */
void xfi_run_break_messages(const xfer_plan *plan);
/* A run has failed with `st`, on this rank or another: abort it on the peers, and end all that this
 * rank has enqueued for it. All phases are on one stream, so the waits of every phase are ended
 * before this rank waits for the end of any. Keeps the text of the error, and adds what is still
 * pending. */
void xfi_run_abort(xfer_plan *plan, xfer_status st);
/* Before a call of another plan, or of the comm: tell the peers now of the runs that have failed or
 * did not begin on this rank, instead of in their waits. On a host a run returns once its data has
 * moved, so a rank that is in one of those does not come to this call before it knows. `plan`:
 * whose call it is; NULL: the comm's. */
void xfi_run_announce(xfi_plans *plans, const xfer_plan *plan);

#endif
