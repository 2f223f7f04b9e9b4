/*
 * The order in which ranks use the plans of a comm. Messages are matched only by their order, so
 * ranks must run their plans in one order. Each rank counts its runs of plans that send, and what
 * it sends has the number of its run. What ranks agree on when a run ends has that number too, and
 * the number of the plan, so that ranks which are in different runs notice.
 */
#ifndef XFI_SEQUENCE_H
#define XFI_SEQUENCE_H

#include "bound_plan.h"

/* Does this rank send or receive messages in a run? Slots in shared memory count. */
bool xfi_plan_has_messages(const xfer_plan *plan);
/* Give the next run its sequence number. Called before xfi_run_refuse() and xfi_run_start(): a
 * refused run counts too, since others may have sent in it. Runs of plans that a comm keeps have no
 * number: each call that uses one agrees with all ranks first. */
void xfi_run_take_sequence(xfer_plan *plan);
/* Has the last run failed on this rank, or did it not begin, so that its wait is to tell the peers?
 */
bool xfi_run_is_failing(const xfer_plan *plan);
/* Note such a plan of the caller's: xfi_run_announce() finds it, until its run is settled. */
void xfi_run_note_failed(xfer_plan *plan);
/* The run is settled: this rank begins the next one, or has met the others in a wait, a commit or a
 * release. Until then others may have begun a run that this rank refused. */
void xfi_run_settle(xfer_plan *plan);
/* Has this rank refused a run of another plan that sends messages, and is that unsettled? */
bool xfi_run_is_other_unsettled(const xfer_plan *plan);
/* Before a plan is destroyed: if this rank refused its run and has not waited, or tried to refuse
 * one before a commit, those who come to the run or the commit are told. If nobody comes to the run
 * it took place on no rank, so it is not counted, unless others count it by now, and later runs
 * that this rank refused take the numbers before theirs. */
void xfi_run_tell_destroyed(xfer_plan *plan);

/* Gather every rank's result into plan->run.results. `result` has this rank's status, whose text
 * stays the last error. XFER_ERR_MISMATCH, on every rank, if ranks mean different plans; `does` is
 * the verb of that text. *failed: some rank has failed. Collective. */
xfer_status xfi_run_gather_results(bool *failed, const xfer_plan *plan,
                                   const xfi_run_result *result, const char *does,
                                   xfi_deadline deadline);
/* Exchange the results of the run; OK if it succeeded on every rank. Collective. */
xfer_status xfi_run_agree(const xfer_plan *plan, xfer_status mine, xfi_deadline deadline);

#endif
