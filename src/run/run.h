/*
 * Carrying a plan out. A plan (bound_plan.h) is moves (plan/), bindings (bind.c), and the lanes
 * that commit.c makes of both, or rebind.c gives other addresses:
 *
 * - quant/: scales of what is quantised by blocks, before all else;
 * - local.c: copies within this rank, and zeroing;
 * - direct/: copies to and from mapped memory of peers (direct.c, direct_run.c), with flags for
 * ready and done, over links (link*.c), in an order in which no two ranks visit a peer at once
 * (order.c);
 * - pipeline/: streams to and from ranks that share memory (channels.c), and steps (steps.c) of
 *   gather, message, scatter through slots (staging.c), made of packed rounds (packed.c) and of
 *   broadcasts (broadcast_list.c, broadcast.c);
 * - cache/: plans that a comm keeps for calls which plan, bind and run in one (plan_cache.c), and
 *   memory that stays mapped for them (registry.c);
 * - verify/: digests of what sources and destinations hold;
 * - staged.c: what the lanes of a staged plan write in place of destinations;
 * - snapshot.c: what peers read in place of sources that they may not keep mapped; mirror.c: memory
 * for both.
 *
 * create.c makes a plan, run.c starts the lanes and waits, run_abort.c ends failed runs, sequence.c
 * checks that ranks use their plans in one order, report.c reports what a plan does, and state.c
 * has the calls that each state allows. allocations.c finds the allocations of bound memory,
 * peers.c what goes between two ranks, wire.c where elements are converted. All of it uses devices
 * and transports through the tables of device.h and comm.h.
 *
 * How a run ends. Only xfi_run_wait() is collective. To abort a failed run is to tell the peers,
 * and then to wait 1 s at most for what is still in flight on this rank.
 *
 *   function                   caller                              waits for       a failed run is
 *   xfi_run_wait()             xfer_plan_wait()                    all ranks       aborted
 *   xfi_run_test()             xfer_plan_test()                    nothing         reported as over
 *   xfi_run_assume_complete()  the comm, for a plan that it keeps  nothing         aborted
 *   xfi_run_check()            the comm, for such a plan, later    nothing         aborted
 *   xfi_run_drain()            who is about to free what it uses   this rank's end aborted
 *   xfi_run_abandon()          xfi_plan_destroy()                   this rank's end aborted
 *   xfi_run_await_last()       who changes what the run uses       this rank's end left as it is
 *
 * A run that this rank refused ends by wait, assume_complete or abandon.
 */
#ifndef XFI_RUN_H
#define XFI_RUN_H

#include "bound_plan.h"
#include "operations.h"

/* Make a plan. Collective, also if the caller's own checks failed with `checked`. */
xfer_status xfi_plan_create(xfer_plan **plan, xfi_plans *plans, xfer_status checked,
                            const xfer_tensor *tensors, size_t n_tensors,
                            const xfer_plan_options *options);
xfer_status xfi_plan_simulate(xfer_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                              size_t n_tensors, const xfer_plan_options *options);
/* Make a plan of an exchange. Collective, also if `checked` is an error. */
xfer_status xfi_plan_create_exchange(xfer_plan **plan, xfi_plans *plans, xfer_status checked,
                                     xfi_operations *ops, const xfer_plan_options *options);
/* Call `fn` with what every rank receives from which other. */
xfer_status xfi_plan_traffic(int n_ranks, const xfer_tensor *tensors, size_t n_tensors,
                             const xfer_plan_options *given, xfer_traffic_fn fn, void *context);
void xfi_plan_destroy(xfer_plan *plan);
xfer_status xfi_plan_bind(xfer_plan *plan, size_t tensor, const xfer_view *src_view,
                          const xfer_view *dst_view);
/* Bind n tensors, also those after one that fails; the first error counts. A view without memory
 * means none. */
xfer_status xfi_plan_bind_many(xfer_plan *plan, const size_t *tensors, const xfer_view *src_views,
                               const xfer_view *dst_views, size_t n);
/* Bind the views of all operations of an exchange. */
xfer_status xfi_plan_bind_exchange(xfer_plan *plan, const xfer_view *sends, const xfer_view *recvs);
/* Commit the plan. Collective. `mine` is this rank's status so far: if it is an error, all fail. */
xfer_status xfi_plan_commit(xfer_plan *plan, xfer_status mine);

/* A commit in two halves, around an all-gather of the ranks' votes. */
typedef struct xfi_commit_vote {
  int32_t status;
  uint8_t work; /* what this rank needs: to keep its lanes, rebind or rebuild them (commit.c) */
  uint8_t is_exported;      /* peers need this rank's new addresses */
  uint8_t has_room;         /* xfi_snapshot_fits() */
  uint8_t has_run;          /* this rank has run the lanes that the commit may replace */
  uint64_t plan;            /* xfer_plan.number of the plan */
  uint64_t n_sequenced;     /* runs that this rank has counted, see xfi_run_take_sequence() */
  uint64_t locality;        /* xfi_device.locality */
  uint64_t gpu;             /* xfi_device.gpu */
  unsigned char domain[64]; /* the device's domain(): equal where peers may map memory */
} xfi_commit_vote;
/* The first half of a commit. Local. If the votes then show that other ranks commit another plan,
 * this one needs another commit. */
xfi_commit_vote xfi_commit_begin(xfer_plan *plan, xfer_status mine);
/* Where a run follows at once: begin to send before the other ranks' votes are known, as far as
 * slots in shared memory are free. Receivers read the slots only in the run, so if the votes do not
 * lead straight to it, undo this before the next collective call. */
void xfi_commit_send(xfer_plan *plan, const xfi_commit_vote *own);
bool xfi_commit_allows_run(const xfi_commit_vote *votes, int n_ranks);
void xfi_commit_undo_send(xfer_plan *plan);
/* Make the next commit rebuild all lanes, as after binds of other views. Local, but called on all
 * ranks. */
void xfi_commit_invalidate(xfer_plan *plan);
/* The second half of a commit. votes has shape [size of the comm]. Collective. */
xfer_status xfi_commit_end(xfer_plan *plan, const xfi_commit_vote *votes, xfi_deadline deadline);

/* This rank does not begin the next run, for the reason `why`. */
xfer_status xfi_run_refuse(xfer_plan *plan, const char *why);
/* Enqueue the next run, which gets a sequence number. */
xfer_status xfi_run_next(xfer_plan *plan, uint64_t version, xfer_stream stream);
/* Enqueue a run on `stream`. If this fails, the run is refused, or has begun and failed. */
xfer_status xfi_run_start(xfer_plan *plan, uint64_t version, xfer_stream stream);
/* Make `stream` wait for the last run, before another one begins on it. */
xfer_status xfi_run_follow(xfer_plan *plan, xfer_stream stream);

/* Wait for the run, agree with all ranks on how it ended, and end it. */
xfer_status xfi_run_wait(xfer_plan *plan, uint64_t timeout_ms);
/* *over: this rank's part of the run has ended, with success or failure. */
xfer_status xfi_run_test(const xfer_plan *plan, bool *over);
/* Count the last run, if there was one, as complete, though its work may still be in flight. Fails
 * if the run is known to have failed or did not begin here. */
xfer_status xfi_run_assume_complete(xfer_plan *plan);
/* Fails if a run that is in flight, or was assumed to be complete, is known to have failed. Only
 * reads memory. */
xfer_status xfi_run_check(xfer_plan *plan);
/* Wait for the last run before what it uses is freed. Fails if it is not done in time or has
 * failed. */
xfer_status xfi_run_drain(xfer_plan *plan);
/* Before a plan with lanes is destroyed: end its last run, and inform the other ranks, which may be
 * in a run of the plan or begin one. */
void xfi_run_abandon(xfer_plan *plan);

/* Would a run that begins now have to wait until peers have read this rank's snapshots
 * (snapshot.c)? */
bool xfi_run_awaits_readers(const xfer_plan *plan);
/* Is there room for the snapshots of a second plan like this one? */
bool xfi_plan_fits_twice(const xfer_plan *plan);

/* Release the plan's lanes. Collective, also if the caller's own checks failed with `mine`. */
xfer_status xfi_plan_release(xfer_plan *plan, xfer_status mine);
/* Each tensor's digest on one side, into digests[n_tensors]. Collective, also if `checked` is an
 * error. */
xfer_status xfi_plan_digest(const xfer_plan *plan, xfer_digest *digests, xfi_side side,
                            xfer_status checked, xfer_stream stream);
/* XFER_ERR_MISMATCH if replicas of a source differ. Collective, also if `checked` is an error. */
xfer_status xfi_plan_check_replicas(const xfer_plan *plan, xfer_status checked, xfer_stream stream);
/* The short report lacks staging_bytes of a plan that is not committed, which take longer to
 * compute. */
void xfi_plan_report(const xfer_plan *plan, xfer_plan_report_data *report);
xfer_status xfi_plan_full_report(const xfer_plan *plan, xfer_plan_report_data *report);

#endif
