/*
 * Carrying a plan out. A plan (bound_plan.h) is moves (plan/), bindings (bind.c), and the lanes
 * that commit.c makes of both, or rebind.c gives other addresses:
 *
 * - quant/: scales of what is quantised by blocks, before all else;
 * - local.c: copies within this rank, and zeroing;
 * - direct/: copies to and from mapped memory of peers (direct.c, direct_run.c), with flags for
 *   ready and done, over links (link*.c), in an order in which ranks do not meet (order.c);
 * - pipeline/: streams to and from ranks that share memory (channels.c), and steps (steps.c) of
 *   gather, message, scatter through slots (staging.c), made of packed rounds (packed.c) and of
 *   broadcasts (broadcast_list.c, broadcast.c);
 * - verify/: digests of what sources and destinations hold;
 * - staged.c: what the lanes of a staged plan write in place of destinations;
 * - snapshot.c: what peers read in place of sources that they may not keep mapped; mirror.c: memory
 * for both.
 *
 * create.c makes it, run.c starts the lanes and waits, report.c says what a plan does; what may be
 * called when is in state.c. What lanes ask: allocations.c, which memory is bound; convert.c, what
 * becomes of elements and where. All of it is written over the tables of device.h and comm.h.
 */
#ifndef XFI_RUN_H
#define XFI_RUN_H

#include "bound_plan.h"
#include "operations.h"
#include "traffic.h"

/* Collective, also where the caller's own checks failed with `checked`. */
xfer_status xfi_run_create(xfer_plan **plan, xfi_plans *of, xfer_status checked,
                           const xfer_tensor *tensors, size_t n_tensors,
                           const xfer_plan_options *options);
xfer_status xfi_run_simulate(xfer_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                             size_t n_tensors, const xfer_plan_options *options);
/* A plan of an exchange. Collective, likewise. */
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
/* Collective. `mine` is this rank's status before it: if it has failed, all ranks fail. */
xfer_status xfi_run_commit(xfer_plan *plan, xfer_status mine);

/* A commit in two halves, around an all-gather of the ranks' votes. */
typedef struct xfi_commit_vote {
  int32_t status;
  uint8_t work;             /* what this rank has to do: keep its lanes, change addresses, or make
                               them (see commit.c) */
  uint8_t has_flows;        /* peers need this rank's new addresses */
  uint8_t has_room;         /* xfi_snapshot_fits() */
  uint8_t has_run;          /* it has run with the lanes that the commit may replace */
  uint64_t plan;            /* xfer_plan.number */
  uint64_t n_turns;         /* see xfi_run_take_turn() */
  uint64_t place;           /* of xfi_device */
  uint64_t gpu;             /* of xfi_device */
  unsigned char domain[64]; /* of the device: equal where ranks may map each other's memory */
} xfi_commit_vote;
/* The first half. Local. If other ranks then turn out to commit another plan, this one needs
 * another commit. */
xfi_commit_vote xfi_commit_begin(xfer_plan *plan, xfer_status mine);
/* Where a run follows at once: begin to send before the other ranks' votes are known, as far as
 * slots in shared memory are free. Receivers read the slots only in the run, so if the votes do not
 * lead straight to it, undo this before the next collective call. */
void xfi_commit_send(xfer_plan *plan, const xfi_commit_vote *own);
bool xfi_commit_allows_run(const xfi_commit_vote *votes, int n_ranks);
void xfi_commit_undo_send(xfer_plan *plan);
/* Make the next commit build all lanes, as after binds of other views. Local, and called on all
 * ranks. */
void xfi_commit_invalidate(xfer_plan *plan);
/* The second half. votes has shape [size of the comm]. Collective. */
xfer_status xfi_commit_end(xfer_plan *plan, const xfi_commit_vote *votes, xfi_deadline deadline);

/* Numbers the run that is about to begin among the runs of the comm's plans that send messages.
 * Messages are told apart by their order alone, so ranks must run their plans in one order; waits
 * compare these numbers. To be called before each of the two below, since a run that is refused
 * counts too. */
void xfi_run_take_turn(xfer_plan *plan);
/* xfer_plan_refuse(): the caller does not begin the next run on this rank. */
xfer_status xfi_run_refuse(xfer_plan *plan, const char *why);
xfer_status xfi_run_start(xfer_plan *plan, uint64_t version, xfer_stream stream);
xfer_status xfi_run_wait(xfer_plan *plan, uint64_t timeout_ms);
/* Exchange what came of the run on all ranks; OK if it succeeded everywhere. Collective, by
 * xfi_run_wait(). */
xfer_status xfi_run_agree(const xfer_plan *plan, xfer_status mine, xfi_deadline deadline);
/* Has this rank's part of the run ended, well or not? */
xfer_status xfi_run_test(const xfer_plan *plan, bool *over);
/* For plans whose runs nobody waits for: take the last run, if there was one, for complete. If it
 * is known to have failed, or did not begin here, this fails and tells the other ranks. Local;
 * looks at memory alone. */
xfer_status xfi_run_conclude(xfer_plan *plan);
/* Make `stream` wait for the last run, before another one begins on it. */
xfer_status xfi_run_follow(xfer_plan *plan, xfer_stream stream);
/* Would a run that begins now have to wait until peers have read this rank's snapshots
 * (snapshot.c)? */
bool xfi_run_awaits_readers(const xfer_plan *plan);
/* Does this rank send or receive messages in a run? */
bool xfi_run_has_messages(const xfer_plan *plan);
/* Is there room for the snapshots of a second plan like this one? */
bool xfi_run_fits_twice(const xfer_plan *plan);
/* Fails if the run in flight is known to have failed, and ends it on this rank. Local; looks at
 * memory alone. */
xfer_status xfi_run_check(xfer_plan *plan);
/* As xfi_run_await_last(), but until the run's own deadline alone if the comm ends. */
xfer_status xfi_run_await_end(const xfer_plan *plan);
/* Waits for the end of the last run, which nobody may have waited for (xfi_run_conclude), before
 * what it uses is freed. If it does not end in time or has failed, this fails and ends it on this
 * rank. */
xfer_status xfi_run_end_last(xfer_plan *plan);
/* Before a plan with lanes is destroyed: tells the others, who may be in a run of it or begin one.
 */
void xfi_run_abandon(xfer_plan *plan);
/* Collective, also where the caller's own checks failed with `mine`. */
xfer_status xfi_run_release(xfer_plan *plan, xfer_status mine);
/* Each tensor's digest on one side, into digests[n_tensors]. Collective, likewise. */
xfer_status xfi_run_digest(const xfer_plan *plan, xfer_digest *digests, bool source,
                           xfer_status checked, xfer_stream stream);
/* XFER_ERR_MISMATCH if replicas of a source differ. Collective, likewise. */
xfer_status xfi_run_check_replicas(const xfer_plan *plan, xfer_status checked, xfer_stream stream);
/* The short report lacks staging_bytes of a plan that is not committed, which take longer to find.
 */
void xfi_run_report(const xfer_plan *plan, xfer_plan_report_data *report);
xfer_status xfi_run_full_report(const xfer_plan *plan, xfer_plan_report_data *report);

#endif
