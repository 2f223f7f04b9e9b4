/**
 * @file plan.h
 * Many tensors, planned once and run at every step.
 */
#ifndef XFER_PLAN_H
#define XFER_PLAN_H

#include <xfer/comm.h>
#include <xfer/conversion.h>
#include <xfer/view.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Many tensors, planned once and run at every step. */
typedef struct xfer_plan xfer_plan;

/** One tensor of a plan. */
typedef struct xfer_tensor {
  const char *name;           /**< For errors and reports; ranks must agree on it. Not NULL; several
                                   tensors may have the same name. */
  const xfer_layout *src;     /**< The source layout; NULL: this rank does not know it. */
  const xfer_layout *dst;     /**< The destination layout; NULL: this rank does not know it. */
  xfer_conversion conversion; /**< How its elements change on the way; all zero: not at all. */
} xfer_tensor;

/** The paths that data can take. */
typedef enum xfer_lane {
  XFER_LANE_AUTO = 0,     /**< The plan chooses for each tensor and pair of ranks. */
  XFER_LANE_DIRECT = 1,   /**< Straight into the peer's memory; packed if that is unreachable. */
  XFER_LANE_PACKED = 2,   /**< Through bounded slots, one window per peer per round. */
  XFER_LANE_BROADCAST = 3 /**< Each owner broadcasts its part; ranks keep what they need. */
} xfer_lane;

/** Flags of a plan. */
enum {
  /** Each run ends with digests of its sources and its destinations, and reads both once more for
      that. xfer_plan_wait() compares the two digests, and replicas of sources with each other. If a
      tensor is converted, only its replicas are compared. Not for an exchange. */
  XFER_PLAN_VERIFY = 1,
  /** A run receives all data into staging memory of the plan, of the size of this rank's
      destinations. xfer_plan_wait() writes it into the destinations once every rank has everything
      and, with XFER_PLAN_VERIFY, once digests agree. So a run that fails before that leaves the
      destinations unchanged, whole and of the previous version, and `torn` of the report is 0; it
      is 1 only if the writing itself failed. Until the wait the destinations hold the old data;
      nobody may use them while it writes. Not for an exchange. The memory exists from commit to
      release, in addition to max_staging_bytes; xfer_comm_set_staging() may provide it. With
      XFER_PLAN_VERIFY two tensors with one destination have a digest each. */
  XFER_PLAN_STAGED = 2,
  /** The caller binds the sources again for each run: for weights that it moves to the host after
      each update, or makes for the update. If the run was complete, xfer_plan_wait() unbinds them.
      When it returns, no peer has their memory mapped, unless a destination lies in the same
      allocation; xfer_plan_release() is not needed. The next run needs a commit. Senders copy into
      their peers' memory if they can; such a commit then has nothing to map, otherwise it takes as
      long as the first. */
  XFER_PLAN_FRESH_SOURCES = 4
};

/** Options of a plan, the same on every rank; 0 is the default in every field. */
typedef struct xfer_plan_options {
  size_t struct_size;         /**< Set by XFER_PLAN_OPTIONS_INIT. */
  uint64_t max_staging_bytes; /**< Upper bound on staging memory per rank. 0: 1 GiB on a device,
                                   64 MiB on a host. */
  uint64_t window_bytes;      /**< Most bytes per peer and round, at most 1 GiB. 0: the library
                                   chooses. It reduces the value if max_staging_bytes requires that,
                                   and rounds it to a multiple of 16, at least 16. */
  uint64_t min_broadcast_saving_bytes; /**< If the library chooses the lane, it broadcasts only if
                                   all broadcasts of the plan together save each rank at least this
                                   many bytes. 0: 10,500,000. */
  uint64_t timeout_ms;                 /**< Deadline of every wait. 0: the comm's, see
                                            xfer_comm_set_timeout(). */
  uint32_t lane;                       /**< xfer_lane */
  uint32_t ranks_per_domain; /**< Ranks r with equal r / ranks_per_domain form a domain: they have
                                  a fast link. A plan prefers sources in the same domain. If
                                  several ranks of a domain need the same data from another one, it
                                  crosses once: each rank takes a share and relays it to the
                                  others. 0: no domains. */
  uint32_t flags;            /**< OR of XFER_PLAN_*. */
  uint32_t reserved;         /**< Must be 0; else XFER_ERR_UNSUPPORTED. */
} xfer_plan_options;
#define XFER_PLAN_OPTIONS_INIT                                                                     \
  {                                                                                                \
    sizeof(xfer_plan_options), 0, 0, 0, 0, 0, 0, 0, 0                                              \
  }

/**
 * Plan a set of tensors. Collective.
 *
 * A rank that does not know the layouts of one side passes NULL, and receives them from the lowest
 * rank that passes them. Everything else must be the same on every rank; the call compares it.
 *
 * @param plan       Receives the plan; the caller owns it and destroys it before the comm.
 * @param comm       The comm; not owned.
 * @param tensors    [n_tensors] Copied.
 * @param n_tensors  0 to 2^30 - 1.
 * @param options    NULL: all defaults.
 * @retval XFER_ERR_MISMATCH  Ranks disagree; the text names the first tensor and both descriptions.
 * @retval XFER_ERR_SHAPE     A tensor's two layouts differ in shape, or in dtype without a
 *                            conversion that goes from one to the other, or some destination
 *                            element has no source.
 * @retval XFER_ERR_ARG       A mesh names a rank that the comm does not have, or an option is
 *                            wrong.
 * @retval XFER_ERR_UNSUPPORTED  An unknown flag, a split in far too many pieces, or a conversion
 *                            that cannot be done, such as blocks of a tensor of more than 6 dims.
 * @retval XFER_ERR_OVERFLOW  Bytes that do not fit in 62 bits, more tensors than that, or over 2^26
 *                            moves of a rank.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_create(xfer_plan **plan, xfer_comm *comm,
                                                      const xfer_tensor *tensors, size_t n_tensors,
                                                      const xfer_plan_options *options);

/**
 * Plan as `rank` of `n_ranks` would, without a comm and without memory. You can report and print
 * the plan, but not bind or run it. Local. Parameters and errors as for xfer_plan_create(); more
 * than 2^24 ranks are XFER_ERR_OVERFLOW.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_simulate(xfer_plan **plan, int n_ranks, int rank,
                                                        const xfer_tensor *tensors,
                                                        size_t n_tensors,
                                                        const xfer_plan_options *options);

/** Destroy a plan; NULL is fine. Not collective. The call waits for the work that this rank has
 * enqueued, and for the work that peers have begun on its memory. If it frees or unmaps memory of a
 * GPU, CUDA waits for all work of the device. So if a run of another plan is in flight there, even
 * one of another rank on that device, the ranks for which that run waits must be able to start it
 * meanwhile; otherwise it ends at its deadline. */
XFER_API void xfer_plan_destroy(xfer_plan *plan);

/**
 * Say where one tensor's parts lie on this rank. Local. A bind after a commit makes the plan
 * uncommitted, unless it binds the same view again. If the bind fails, the tensor is unbound, and
 * the next commit fails on all ranks with this error. A view of host memory contains only
 * addresses: the library cannot notice a buffer that is smaller than the part, and a run then
 * accesses memory past its end.
 *
 * @param plan      The plan.
 * @param tensor    Index into the array given at create.
 * @param src_view  Copied. Needed if this rank's source part is not empty, otherwise ignored; NULL:
 *                  not bound.
 * @param dst_view  The same for this rank's destination part.
 * @retval XFER_ERR_SHAPE  The view does not fit the part: number of dims, strides, pieces.
 * @retval XFER_ERR_ARG    There is no such tensor, or the view is wrong by itself.
 * @retval XFER_ERR_OVERFLOW  The view reaches past 2^62 bytes.
 * @retval XFER_ERR_STATE  A run is in flight, or the plan is a simulation.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_bind(xfer_plan *plan, size_t tensor,
                                                    const xfer_view *src_view,
                                                    const xfer_view *dst_view);

/**
 * Bind many tensors, one after the other, as by xfer_plan_bind(). Local.
 *
 * @param plan       The plan.
 * @param tensors    [n_tensors] Indices into the array given at create.
 * @param src_views  [n_tensors] Sources. A view whose base and pieces are both NULL: not bound.
 * @param dst_views  [n_tensors] Destinations; NULL in a view means the same.
 * @param n_tensors  Length of the three arrays; at most 2^30 - 1, else XFER_ERR_OVERFLOW.
 * @return The first error of xfer_plan_bind(); the call still binds the tensors after it.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_bind_many(xfer_plan *plan, const size_t *tensors,
                                                         const xfer_view *src_views,
                                                         const xfer_view *dst_views,
                                                         size_t n_tensors);

/**
 * Prepare to run: check that all parts are bound and that no destinations overlap, allocate
 * staging, exchange addresses, choose lanes. Collective; may allocate and wait for the device. Call
 * it again after a bind, or after bound memory was freed or remapped. Such a commit does nothing if
 * nothing changed on any rank, and is short if only addresses changed, within memory that the
 * previous commit knew.
 *
 * @retval XFER_ERR_ARG    The device's copies cannot use the memory, or a view extends past its
 *                         allocation or the end of the address space, such as one at MAP_FAILED;
 *                         the text names the tensor.
 * @retval XFER_ERR_STATE  A non-empty part is not bound, or a run is in flight.
 * @retval XFER_ERR_SHAPE  Destination views overlap each other or a source; the text names both
 *                         tensors. One view may be source and destination of a tensor that stays
 *                         unchanged here: each element lies at the same place on both sides and
 *                         comes from this rank. If it does not, the text says why. A run zeroes the
 *                         padding, which both sides then have at the same places.
 * @retval XFER_ERR_UNSUPPORTED  The comm has no way to move data between two ranks; or a GPU must
 *                         convert elements that do not lie at multiples of their size.
 * @retval XFER_ERR_MISMATCH  Ranks commit different plans.
 * @retval XFER_ERR_NOMEM  Out of memory. If the others return XFER_ERR_COMM, the comm is broken.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_commit(xfer_plan *plan);

/**
 * Move every tensor from its source layout to its destination layout.
 *
 * Collective. One run may be in flight per plan.
 * Stream: the run starts after the work that is already on `stream`; the call returns once it has
 * enqueued the run. It allocates nothing and does not wait for the device, with two exceptions. If
 * it copies 32 MiB or more into peers' memory, it checks for up to a fifth of a millisecond whether
 * they are ready, since such copies are faster. Over NCCL it is at most 64 rounds ahead of the
 * device, since it could not leave a full queue at a deadline. Later work on `stream`, and an event
 * recorded there, comes when this rank's part has ended; so with one plan per group of tensors, an
 * event tells when each group has arrived. On a host comm the data has moved when the call returns.
 *
 * @param plan     Committed. The run reads and writes its bound views until `stream` passes this
 *                 point.
 * @param version  The caller's number for these weights: any number for the first run, then a
 *                 number above the last committed one, and below UINT64_MAX. xfer_plan_wait()
 *                 commits it.
 * @param stream   A CUDA stream; NULL: the default stream. Ignored by host comms.
 * @retval XFER_ERR_STATE    The plan is not committed, a run is in flight, the last run failed and
 *                           no commit followed, `version` does not grow, bound memory was freed or
 *                           remapped, or `stream` is capturing. This rank began nothing. If the
 *                           other ranks began, this rank's xfer_plan_wait() tells them; without it
 *                           they wait until their deadline. Another call may tell them before, as
 *                           after xfer_plan_refuse(); then the plan needs the wait and a commit.
 * @retval XFER_ERR_UNSUPPORTED  `stream` is cudaStreamPerThread. Likewise.
 * @retval XFER_ERR_PEER     Another rank failed, or destroyed its plan, and so aborted the run.
 *                           Likewise.
 * @retval XFER_ERR_TIMEOUT  A peer did not arrive, and the text names it; or, on a host comm, some
 *                           data had not moved at the deadline, or when this rank was interrupted.
 *                           Destinations are torn.
 * @retval XFER_ERR_MISMATCH Messages of ranks differ in size; or, at the deadline, ranks wait for
 *                           each other in different calls, which the text names. Destinations are
 *                           torn.
 * @retval XFER_ERR_CUDA     A copy or launch failed. Destinations are torn.
 * @retval XFER_ERR_COMM     The transport failed. Destinations are torn.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_run(xfer_plan *plan, uint64_t version,
                                                   xfer_stream stream);

/**
 * Refuse the next run on this rank, instead of xfer_plan_run(), for the caller's own reason:
 * weights that are not ready, or an invalid value. Local. xfer_plan_wait() then fails on every rank
 * with the reason, without waiting for a deadline, and the plan needs xfer_plan_commit() before the
 * next run. A rank that will not come to xfer_plan_wait() may destroy the plan in its place.
 *
 * On a host ranks may be inside a run that another one refuses. It tells them in its next
 * collective call of another plan or of the comm, or in its xfer_plan_wait() for the refused one.
 *
 * If the plan is not committed, or its last run failed, this refuses the next commit instead: this
 * rank is to destroy the plan next, or withdraws its refusal by a commit. docs/errors.md says in
 * which cases the comm is then broken, and what the other ranks see.
 *
 * @param plan  No run in flight.
 * @param why   A sentence; it is copied. The other ranks see its first 200 bytes, after this rank's
 *              number.
 * @retval XFER_ERR_STATE  A run is in flight, or the plan is simulated.
 * @retval XFER_ERR_COMM  The comm is broken.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_refuse(xfer_plan *plan, const char *why);

/**
 * Wait until the last run is complete on every rank, then commit its version. Collective, once per
 * run, and once more after each XFER_ERR_TIMEOUT that came before the run's own deadline.
 *
 * After any other failure the run does not touch this rank's memory again, and the plan needs
 * xfer_plan_commit() before the next run; so between threads on the host the call returns when the
 * copies that had begun have ended. A rank whose deadline passed writes no memory of a rank that
 * did not arrive. No call can prevent this: if a process is killed during its copies, the memory
 * that they were writing is left half new.
 *
 * @param plan        A run is in flight, or was refused on this rank.
 * @param timeout_ms  How long to wait for this rank's part, in milliseconds; 0: until the run's own
 *                    deadline, which is the plan's timeout after its start. Once the part is
 *                    complete, the ranks agree. For that, each waits for the others until the later
 *                    of that deadline and `timeout_ms`, and 2 s more; a rank that does not arrive
 *                    by then breaks the comm.
 * @retval XFER_OK          Every rank's destinations are complete.
 * @retval XFER_ERR_STATE   No run is in flight; or this rank refused it, and the text gives the
 *                          reason.
 * @retval XFER_ERR_TIMEOUT  The run is not complete on this rank after `timeout_ms`: wait again,
 *                           since the others wait for this rank. Or a peer missed the run's
 *                           deadline, or this wait was interrupted: then the text says so, and the
 *                           run has failed.
 * @retval XFER_ERR_PEER    Another rank's run failed; destinations may be torn.
 * @retval XFER_ERR_MISMATCH  Ranks ran different versions, began runs of plans of the comm in
 *                            different orders, or wait for different plans; the text names two of
 *                            them. Or the plan verifies, and a destination differs from its source,
 *                            or replicas of a source differ: the text names the tensor, the first
 *                            index and two ranks. The version is not committed, and destinations
 *                            count as torn.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_wait(xfer_plan *plan, uint64_t timeout_ms);

/**
 * Test whether this rank's part of the last run has ended. Local; does not block. xfer_plan_wait()
 * must still be called; after a 1 here it waits only for the other ranks.
 *
 * @param plan  A run is in flight, or was refused on this rank.
 * @param over  Receives 1 if it has ended, otherwise 0; xfer_plan_wait() says whether it succeeded.
 * @retval XFER_ERR_STATE  No run is in flight.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_test(const xfer_plan *plan, int *over);

/**
 * Free staging memory and close mappings of peers' memory. Collective. Bindings stay;
 * xfer_plan_commit() restores the rest. After this call the caller may free bound memory. Memory
 * that it frees without this call stays in use, since peers have it mapped, until they release,
 * commit other addresses or end. Peers do not keep the sources of a plan with
 * XFER_PLAN_FRESH_SOURCES mapped between runs.
 * @retval XFER_ERR_STATE  A run is in flight, or the plan is a simulation.
 * @retval XFER_ERR_MISMATCH  Ranks release different plans; nothing was released.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_release(xfer_plan *plan);

/** A digest of a tensor's elements. Compare both words; they have no other meaning. */
typedef struct xfer_digest {
  uint64_t word[2]; /**< Two independent sums. */
} xfer_digest;

/** The sides of a plan. */
typedef enum xfer_plan_side {
  XFER_PLAN_SRC = 0, /**< Sources. */
  XFER_PLAN_DST = 1  /**< Destinations. */
} xfer_plan_side;

/**
 * Digest each tensor as one side holds it at the time of the call, in place.
 *
 * The digest depends on every element's bytes and on its index in the tensor, and on nothing else:
 * not on layouts, views, ranks, lanes or devices. So after a run both sides have the same digest,
 * unless the tensor is converted or one side holds an element that no rank of the other side holds.
 * Two plans for the same weights also have the same digest. If several ranks hold an element, the
 * call reads it from one of them; XFER_PLAN_VERIFY compares the others. The source of scales
 * (xfer_convert_scales_of()) is the scales that the ranks computed in their last run. A digest
 * finds mistakes, not attacks.
 *
 * Collective; waits for the device. Reads each side's memory once.
 *
 * @param plan       Committed, no run in flight.
 * @param digests    [n_digests] Receives the digest of each tensor, the same on every rank.
 * @param n_digests  The number of tensors.
 * @param side       Whose elements.
 * @param stream     The call reads memory after the work that is already on it. Ignored by host
 *                   comms.
 * @retval XFER_ERR_STATE  Not committed, a run in flight, bound memory freed or remapped, or
 *                         `stream` capturing.
 * @retval XFER_ERR_ARG    There is no such side, or `n_digests` is not the number of tensors.
 * @retval XFER_ERR_MISMATCH  Ranks ask for different sides, or of different plans.
 * @retval XFER_ERR_UNSUPPORTED  The plan is an exchange, or `stream` is cudaStreamPerThread.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_digest(xfer_plan *plan, xfer_digest *digests,
                                                      size_t n_digests, xfer_plan_side side,
                                                      xfer_stream stream);

/**
 * Compare the replicas of each source: ranks that hold the same part, by a Replicate axis or by
 * equal boxes. Collective; waits for the device. Reads sources once. Parameters as for
 * xfer_plan_digest().
 *
 * @retval XFER_ERR_MISMATCH  They differ; the text names the tensor, the first index and two ranks.
 * @retval XFER_ERR_STATE     As for xfer_plan_digest(), and XFER_ERR_UNSUPPORTED.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_check_replicas(xfer_plan *plan, xfer_stream stream);

/** What a plan does on this rank, in figures. Start from XFER_PLAN_REPORT_INIT. */
typedef struct xfer_plan_report_data {
  size_t struct_size;     /**< Set by XFER_PLAN_REPORT_INIT. */
  uint64_t n_tensors;     /**< Tensors of the plan. */
  uint64_t n_classes;     /**< Distinct combinations of shape, dtype and layouts. */
  uint64_t n_moves;       /**< Moves in which this rank takes part, self-copies counted once. */
  uint64_t payload_bytes; /**< Bytes of all tensors of the plan, each counted once. */
  uint64_t in_bytes;      /**< Bytes written on this rank: received, copied within it and zeroed. */
  uint64_t self_bytes;    /**< Those of in_bytes that are copied within this rank. */
  uint64_t zero_bytes;    /**< Those of in_bytes that are zeroed. */
  uint64_t wire_bytes;    /**< Those of in_bytes that are received from other ranks. */
  uint64_t out_bytes;     /**< Bytes sent to other ranks. */
  uint64_t n_send_peers;  /**< Ranks that this rank sends to. */
  uint64_t n_recv_peers;  /**< Ranks that this rank receives from. */
  uint64_t broadcast_tensors; /**< Tensors that take the broadcast lane. */
  uint64_t direct_bytes;  /**< Once committed: bytes this rank copies to or from peers' memory. */
  uint64_t packed_bytes;  /**< Once committed: bytes this rank sends packed: in rounds, or
                                    through memory that it shares with the peer. */
  uint64_t n_rounds;      /**< Once committed: packed rounds in which this rank takes part; none
                               with ranks that share memory. */
  uint64_t staging_bytes; /**< Staging memory that the plan needs on this rank: in the block that
                               the plans of a comm share, and with XFER_PLAN_STAGED also its own,
                               which max_staging_bytes does not bound. Before a commit, and in a
                               simulation, the figure assumes that no rank reaches another's memory
                               and that nothing is broadcast in place. */
  uint64_t window_bytes;  /**< Bytes per peer and round. */
  uint64_t bound_bytes;   /**< max(wire_bytes, out_bytes): the least that the wire must carry. */
  uint64_t committed_version; /**< Version of the last complete run; also 0 if there is none yet. */
  uint64_t torn;              /**< 1: a failed run left destinations half new, until a later run is
                                   complete; or this rank refused a run in which others may have
                                   written here, until the next commit or release. */
  uint64_t converted_tensors; /**< Tensors whose elements change on the way. */
  uint64_t crossed_bytes;     /**< Those of wire_bytes that come from ranks of other domains
                                   (xfer_plan_options.ranks_per_domain), except by broadcasts; 0 if
                                   there are no domains. */
  uint64_t relayed_bytes;     /**< Those of wire_bytes from ranks of this domain that took them for
                                   the whole domain; without relays they would have crossed to this
                                   rank too. */
  uint64_t replicated_tensors; /**< Tensors of which several ranks hold the same part of the source;
                                    the same on every rank. 0: xfer_plan_check_replicas() has
                                    nothing to compare. */
} xfer_plan_report_data;
#define XFER_PLAN_REPORT_INIT                                                                      \
  {                                                                                                \
    sizeof(xfer_plan_report_data), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  \
        0, 0, 0                                                                                    \
  }

/** Fill `report`, as far as its struct_size reaches. Local; may be called in any state. Before a
 * commit some figures are forecasts, and some 0: see the fields. */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_report(const xfer_plan *plan,
                                                      xfer_plan_report_data *report);

/** A box of one tensor that goes from one rank to another. */
typedef struct xfer_move {
  uint64_t tensor;                  /**< Index into the array given at create. */
  int32_t src_rank;                 /**< Equal to dst_rank for a self-copy. */
  int32_t dst_rank;                 /**< The rank that receives the box. */
  int64_t lo[XFER_MAX_DIMS];        /**< First global index. */
  int64_t hi[XFER_MAX_DIMS];        /**< One past the last global index. */
  int64_t src_local[XFER_MAX_DIMS]; /**< Where `lo` lies in the source rank's part. */
  int64_t dst_local[XFER_MAX_DIMS]; /**< Where `lo` lies in the destination rank's part. */
  uint64_t n_bytes;                 /**< Bytes of the box. */
  int32_t n_dims;                   /**< Number of dims of the tensor. */
  int32_t broadcast;                /**< 1: the broadcast lane carries the box. */
  int32_t relayed;                  /**< 1: src_rank has it from another rank in the same run, so
                                         src_local is a place in its destination part. */
  int32_t reserved;                 /**< 0 */
} xfer_move;

/**
 * The i-th move in which this rank takes part, 0 <= i < n_moves of the report. Local.
 * @retval XFER_ERR_ARG  No such move.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_move_get(const xfer_plan *plan, size_t i,
                                                        xfer_move *move);

/** What one rank sends to another over all tensors of a plan. */
typedef struct xfer_traffic {
  int32_t src_rank; /**< The rank that sends. */
  int32_t dst_rank; /**< The rank that receives; equal to src_rank for copies within a rank. */
  uint64_t n_bytes; /**< Bytes sent in all. */
  uint64_t n_moves; /**< Boxes sent in all. */
  uint64_t broadcast_bytes; /**< Those of n_bytes that the broadcast lane carries. */
  uint64_t relayed_bytes;   /**< Those of n_bytes that src_rank received in the same run. */
} xfer_traffic;

/**
 * Receives what one rank gets from the others, during xfer_plan_traffic().
 *
 * @param context  As given to xfer_plan_traffic().
 * @param rank     The rank that receives.
 * @param report   Figures of the receiving half: tensors, classes, payload_bytes, in_bytes,
 *                 self_bytes, zero_bytes, wire_bytes, n_recv_peers, broadcast_tensors,
 *                 crossed_bytes, relayed_bytes.
 * @param from     [n] One for each rank that sends to `rank`, itself among them; valid during the
 *                 call.
 * @param n        Length of `from`.
 * @return 0 to go on; else this was the last call.
 */
typedef int (*xfer_traffic_fn)(void *context, int rank, const xfer_plan_report_data *report,
                               const xfer_traffic *from, size_t n);

/**
 * Find what every rank of a plan would get from whom, without a comm and without memory: `fn` is
 * called for each rank, in ascending order. The time depends on the number of pairs of ranks that
 * exchange something, not on the number of tensors, so this is the way to look at a plan of
 * thousands of ranks; xfer_plan_simulate() lists the moves of one. Local. Parameters and errors as
 * there.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_traffic(int n_ranks, const xfer_tensor *tensors,
                                                       size_t n_tensors,
                                                       const xfer_plan_options *options,
                                                       xfer_traffic_fn fn, void *context);

/**
 * Write the plan as text: a summary for people, or with `json` != 0 one JSON object with the report
 * and all moves of this rank. Both list the peers, and once committed how data travels to and from
 * each and, where that is not directly, why: "packed: rank 1 cannot map rank 5: ...". Local.
 * @param text  Receives a string that the caller gives back with xfer_text_free().
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_print(const xfer_plan *plan, char **text, int json);
/** Free a string that the library returned; NULL is fine. */
XFER_API void xfer_text_free(char *text);

#ifdef __cplusplus
}
#endif
#endif
