/*
 * Which calls each state of a plan allows, and the states after them: one table (state.c).
 */
#ifndef XFI_STATE_H
#define XFI_STATE_H

#include "xfer/xfer.h"

#include <stdbool.h>

typedef enum xfi_state {
  XFI_UNCOMMITTED, /* there are no lanes, or they were made for other bindings */
  XFI_COMMITTED,
  XFI_REBOUND, /* bound since the commit, of which other ranks need not know: they may run */
  XFI_RUNNING,
  XFI_REFUSED,  /* committed; this rank did not begin a run that others may have begun */
  XFI_WITHHELD, /* likewise, and needs a commit first: the caller refused the run, or bound memory
                   since */
  XFI_TORN,     /* a run failed, so the ranks' flags may differ in their epochs */
  XFI_N_STATES
} xfi_state;

typedef enum xfi_call {
  XFI_CALL_BIND,
  XFI_CALL_COMMIT,
  XFI_CALL_RUN,
  XFI_CALL_REFUSE,
  XFI_CALL_WAIT,
  XFI_CALL_RELEASE,
  XFI_N_CALLS
} xfi_call;

/* How a call that the state allows may end. */
typedef enum xfi_end_of_call {
  XFI_ENDED, /* it succeeded; a call that had nothing to do does not change the state */
  XFI_FAILED,
  XFI_N_ENDS
} xfi_end_of_call;

/* XFER_ERR_STATE, and what to do instead, where `state` does not allow the call. */
xfer_status xfi_state_allows(xfi_state state, xfi_call call);
xfi_state xfi_state_after(xfi_state state, xfi_call call, xfi_end_of_call end);

/* Is there a run that others may have begun and this rank did not? */
static inline bool xfi_state_is_refused(xfi_state state)
{
  return state == XFI_REFUSED || state == XFI_WITHHELD;
}

#endif
