/*
 * The states of a plan: for each call in each state, why the call is refused, or which state
 * follows it. The one table below is all that there is; state.h explains the states.
 */
#include "state.h"

#include "error.h"

/* One call in one state: why it is refused, or the states after it. */
typedef struct cell {
  const char *refusal;
  xfi_state after[XFI_N_ENDS]; /* after success, after failure; a refused call changes nothing */
} cell;

#define IN_FLIGHT "a run is in flight: call xfer_plan_wait() before %s"
#define NONE_IN_FLIGHT "no run is in flight: call xfer_plan_run() first"
#define NOT_COMMITTED "the plan is not committed: call xfer_plan_commit() first"
#define WAS_WITHHELD                                                                               \
  "this rank said that the run does not begin here: xfer_plan_wait() tells the others, and "       \
  "xfer_plan_commit() comes before the next"
#define WAS_TORN                                                                                   \
  "the last run did not complete on every rank: call xfer_plan_commit() before the next"

/* Names of the calls that a run in flight forbids. */
static const char *const doing[XFI_N_CALLS] = {[XFI_CALL_BIND] = "binding",
                                               [XFI_CALL_COMMIT] = "committing",
                                               [XFI_CALL_RUN] = "the next",
                                               [XFI_CALL_REFUSE] = "refusing the next",
                                               [XFI_CALL_RELEASE] = "releasing"};

static const cell table[XFI_N_CALLS][XFI_N_STATES] = {
    [XFI_CALL_BIND] = {[XFI_UNCOMMITTED] = {NULL, {XFI_UNCOMMITTED, XFI_UNCOMMITTED}},
                       [XFI_COMMITTED] = {NULL, {XFI_REBOUND, XFI_COMMITTED}},
                       [XFI_REBOUND] = {NULL, {XFI_REBOUND, XFI_REBOUND}},
                       [XFI_RUNNING] = {.refusal = IN_FLIGHT},
                       [XFI_REFUSED] = {NULL, {XFI_WITHHELD, XFI_REFUSED}},
                       [XFI_WITHHELD] = {NULL, {XFI_WITHHELD, XFI_WITHHELD}},
                       [XFI_TORN] = {NULL, {XFI_TORN, XFI_TORN}}},
    [XFI_CALL_COMMIT] = {[XFI_UNCOMMITTED] = {NULL, {XFI_COMMITTED, XFI_UNCOMMITTED}},
                         [XFI_COMMITTED] = {NULL, {XFI_COMMITTED, XFI_UNCOMMITTED}},
                         [XFI_REBOUND] = {NULL, {XFI_COMMITTED, XFI_UNCOMMITTED}},
                         [XFI_RUNNING] = {.refusal = IN_FLIGHT},
                         [XFI_REFUSED] = {NULL, {XFI_COMMITTED, XFI_UNCOMMITTED}},
                         [XFI_WITHHELD] = {NULL, {XFI_COMMITTED, XFI_UNCOMMITTED}},
                         [XFI_TORN] = {NULL, {XFI_COMMITTED, XFI_TORN}}},
    [XFI_CALL_RUN] = {[XFI_UNCOMMITTED] = {.refusal = NOT_COMMITTED},
                      [XFI_COMMITTED] = {NULL, {XFI_RUNNING, XFI_REFUSED}},
                      [XFI_REBOUND] = {NULL, {XFI_WITHHELD, XFI_WITHHELD}}, /* it always fails */
                      [XFI_RUNNING] = {.refusal = IN_FLIGHT},
                      [XFI_REFUSED] = {NULL, {XFI_RUNNING, XFI_REFUSED}},
                      [XFI_WITHHELD] = {.refusal = WAS_WITHHELD},
                      [XFI_TORN] = {.refusal = WAS_TORN}},
    [XFI_CALL_REFUSE] = {[XFI_UNCOMMITTED] = {NULL, {XFI_UNCOMMITTED, XFI_UNCOMMITTED}},
                         [XFI_COMMITTED] = {NULL, {XFI_WITHHELD, XFI_WITHHELD}},
                         [XFI_REBOUND] = {NULL, {XFI_REBOUND, XFI_REBOUND}},
                         [XFI_RUNNING] = {.refusal = IN_FLIGHT},
                         [XFI_REFUSED] = {NULL, {XFI_WITHHELD, XFI_WITHHELD}},
                         [XFI_WITHHELD] = {NULL, {XFI_WITHHELD, XFI_WITHHELD}},
                         [XFI_TORN] = {NULL, {XFI_TORN, XFI_TORN}}},
    [XFI_CALL_WAIT] = {[XFI_UNCOMMITTED] = {.refusal = NONE_IN_FLIGHT},
                       [XFI_COMMITTED] = {.refusal = NONE_IN_FLIGHT},
                       [XFI_REBOUND] = {.refusal = NONE_IN_FLIGHT},
                       [XFI_RUNNING] = {NULL, {XFI_COMMITTED, XFI_TORN}},
                       [XFI_REFUSED] = {NULL, {XFI_TORN, XFI_TORN}},
                       [XFI_WITHHELD] = {NULL, {XFI_TORN, XFI_TORN}},
                       [XFI_TORN] = {.refusal = NONE_IN_FLIGHT}},
    [XFI_CALL_RELEASE] = {[XFI_UNCOMMITTED] = {NULL, {XFI_UNCOMMITTED, XFI_UNCOMMITTED}},
                          [XFI_COMMITTED] = {NULL, {XFI_UNCOMMITTED, XFI_UNCOMMITTED}},
                          [XFI_REBOUND] = {NULL, {XFI_UNCOMMITTED, XFI_UNCOMMITTED}},
                          [XFI_RUNNING] = {.refusal = IN_FLIGHT},
                          [XFI_REFUSED] = {NULL, {XFI_UNCOMMITTED, XFI_UNCOMMITTED}},
                          [XFI_WITHHELD] = {NULL, {XFI_UNCOMMITTED, XFI_UNCOMMITTED}},
                          [XFI_TORN] = {NULL, {XFI_UNCOMMITTED, XFI_UNCOMMITTED}}}};

xfer_status xfi_state_allows(xfi_state state, xfi_call call)
{
  const char *refusal = table[call][state].refusal;

  if (refusal == NULL) return XFER_OK;
  if (state == XFI_RUNNING) return XFI_ERROR(XFER_ERR_STATE, IN_FLIGHT, doing[call]);
  return XFI_ERROR(XFER_ERR_STATE, "%s", refusal);
}

xfi_state xfi_state_after(xfi_state state, xfi_call call, xfi_end_of_call end)
{
  const cell *c = &table[call][state];

  return c->refusal == NULL ? c->after[end] : state;
}
