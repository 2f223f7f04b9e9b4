/*
 * Carrying a plan out. A plan (bound_plan.h) is moves (plan/), bindings (bind.c), and the lanes
 * that commit.c makes of both:
 *
 * - quant.c, quant_cuts.c: scales of what is quantised by blocks, before all else;
 * - local.c: copies within this rank, and zeroing;
 * - direct.c, direct_run.c, link*.c: copies to and from mapped memory of peers, with flags for
 * ready and done;
 * - pipeline.c: streams to and from ranks that share memory (channels.c); steps of gather, message,
 *   scatter through staging slots, made of packed rounds (packed.c) and of broadcasts
 *   (broadcast_list.c, broadcast.c);
 * - count.c, verify.c, digests.c: digests of what sources and destinations hold;
 * - shadow.c: what the lanes of a staged plan write in place of destinations;
 * - offer.c: what peers read in place of sources that they may not keep mapped; twins.c: memory for
 *   both.
 *
 * create.c makes it, run.c starts the lanes and waits, report.c says what a plan does; what may be
 * called when is in state.c. All of it is written over the tables of device.h and comm.h.
 */
#ifndef XFI_RUN_H
#define XFI_RUN_H

#include "bound_plan.h"
#include "operations.h"
#include "traffic.h"

/* tensors and options may be wrong: `checked` says what the caller's checks came to. Collective. */
xfer_status xfi_run_create(xfer_plan **plan, xfi_plans *of, xfer_status checked,
                           const xfer_tensor *tensors, size_t n_tensors,
                           const xfer_plan_options *options);
xfer_status xfi_run_simulate(xfer_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                             size_t n_tensors, const xfer_plan_options *options);
/* Of an exchange; both lists may be wrong likewise. */
xfer_status xfi_run_create_exchange(xfer_plan **plan, xfi_plans *of, xfer_status checked,
                                    xfi_operations *ops, const xfer_plan_options *options);
/* What every rank gets from whom. */
xfer_status xfi_run_traffic(int n_ranks, const xfer_tensor *tensors, size_t n_tensors,
                            const xfer_plan_options *given, xfi_traffic_fn fn, void *context);
void xfi_run_destroy(xfer_plan *plan);
xfer_status xfi_run_bind(xfer_plan *plan, size_t tensor, const xfer_view *src_view,
                         const xfer_view *dst_view);
/* The views of all operations of an exchange. */
xfer_status xfi_run_bind_exchange(xfer_plan *plan, const xfer_view *sends, const xfer_view *recvs);
/* Where this rank has failed already, all ranks fail. */
xfer_status xfi_run_commit(xfer_plan *plan, xfer_status mine);

/* The same in two, around an all-gather of the caller's. What ranks tell each other: */
typedef struct xfi_commit_word {
  int32_t status;
  uint8_t work;             /* what has to be done with the lanes */
  uint8_t tells;            /* peers have to know of addresses */
  uint8_t offers;           /* there is room for offers */
  uint8_t has_run;          /* with lanes that the commit may have to make anew */
  uint64_t plan;            /* its number */
  uint64_t place;           /* see xfi_device */
  unsigned char domain[64]; /* ranks with equal ones may reach each other's memory */
} xfi_commit_word;
/* Local. If the others turn out to mean another plan, this one wants a commit before its next run.
 */
xfi_commit_word xfi_commit_begin(xfer_plan *plan, xfer_status mine);
/* Where a run follows at once: begin to send before the others are heard of, which they look at in
 * the run. Taken back, before ranks meet again, unless all their words lead straight there. */
void xfi_commit_send(xfer_plan *plan, const xfi_commit_word *own);
bool xfi_commit_leads_on(const xfi_commit_word *words, int n_ranks);
void xfi_commit_take_back(xfer_plan *plan);
/* The next commit makes all lanes, as after binds of other views. Local; where all ranks say so. */
void xfi_commit_anew(xfer_plan *plan);
/* words[size of the comm], this rank's from xfi_commit_begin(). Collective. */
xfer_status xfi_commit_end(xfer_plan *plan, const xfi_commit_word *words, xfi_deadline deadline);

/* The next run does not begin on this rank, says the caller. */
xfer_status xfi_run_refuse(xfer_plan *plan, const char *why);
xfer_status xfi_run_start(xfer_plan *plan, uint64_t version, xfer_stream stream);
xfer_status xfi_run_wait(xfer_plan *plan, uint64_t timeout_ms);
/* Would wait not wait for this rank's part any more, whatever came of it? */
xfer_status xfi_run_test(const xfer_plan *plan, bool *over);
/* For runs that nobody waits for: order `stream` after the last one, if there is one. Says so if
 * that one is known to have failed, or did not begin here, and tells the others. */
xfer_status xfi_run_follow(xfer_plan *plan, xfer_stream stream);
/* Is the run in flight, if there is one, known to come to nothing? It is over on this rank then.
 * Local; reads memory alone. */
xfer_status xfi_run_check(xfer_plan *plan);
/* What the last run uses is to go, and nobody may have waited for it (xfi_run_follow): it comes to
 * its end. Fails where it does not, or came to nothing on this rank, where it is over then. */
xfer_status xfi_run_end_last(xfer_plan *plan);
/* Of a plan that is given back while it has lanes: others may be in a run, or begin one. */
void xfi_run_abandon(xfer_plan *plan);
/* `mine` is what the caller's own checks came to. Collective. */
xfer_status xfi_run_release(xfer_plan *plan, xfer_status mine);
/* Each tensor's digest on one side. digests[n_tensors] of the plan; `checked` is what the caller's
 * checks came to. Collective. */
xfer_status xfi_run_digest(const xfer_plan *plan, xfer_digest *digests, bool source,
                           xfer_status checked, xfer_stream stream);
/* Are replicas of sources equal? Collective. */
xfer_status xfi_run_check_replicas(const xfer_plan *plan, xfer_status checked, xfer_stream stream);
/* Without staging_bytes of a plan that is not committed, which cost more: */
void xfi_run_report(const xfer_plan *plan, xfer_plan_report_data *report);
xfer_status xfi_run_full_report(const xfer_plan *plan, xfer_plan_report_data *report);

#endif
