/**
 * @file exchange.h Operations without tensors: sends and receives of each rank, matched by an id.
 */
#ifndef XFER_EXCHANGE_H
#define XFER_EXCHANGE_H

#include <xfer/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A send to, or a receive from, another rank or this rank itself. Its two ends have the same id,
 * dtype and shape. Views say where the array lies at each end, also with strides.
 */
typedef struct xfer_operation {
  uint64_t id;                  /**< Any number; unique among the operations from one rank to
                                     another. */
  int32_t peer;                 /**< The other rank. */
  int32_t dtype;                /**< xfer_dtype */
  int32_t n_dims;               /**< 0 to XFER_MAX_DIMS. */
  uint32_t reserved;            /**< Must be 0. */
  int64_t shape[XFER_MAX_DIMS]; /**< [n_dims] Sizes, which may be 0. */
} xfer_operation;

/** An operation on `n_bytes` bytes, at most 2^63 - 1. */
XFER_API_INLINE xfer_operation xfer_operation_bytes(uint64_t id, int peer, size_t n_bytes)
{
  xfer_operation o = {0, 0, XFER_U8, 1, 0, {0, 0, 0, 0, 0, 0, 0, 0}};
  o.id = id;
  o.peer = (int32_t)peer;
  o.shape[0] = (int64_t)n_bytes;
  return o;
}

/**
 * Plan an exchange: every rank lists its sends and its receives. Collective.
 *
 * One digest, in one all-gather, shows whether the two ends of all operations agree. Commit, run,
 * wait for and destroy the plan like any other; it takes the same lanes except broadcasts. Its
 * tensor i is the i-th send, and tensor n_sends + k the k-th receive from another rank; a send of a
 * rank to itself and its receive are one tensor. Other ranks number their tensors differently.
 *
 * @param plan     Receives the plan; the caller owns it and destroys it before the comm.
 * @param comm     The comm; not owned.
 * @param sends    [n_sends] Copied. In any order, which may differ from that of the other end.
 * @param n_sends  0 or more.
 * @param recvs    [n_recvs] Copied, in any order.
 * @param n_recvs  0 or more.
 * @param options  NULL: all defaults; the same on every rank.
 * @retval XFER_ERR_MISMATCH     The two ends of an operation differ, or there is only one; the text
 *                               on every rank names the operation. Or options differ.
 * @retval XFER_ERR_ARG          A wrong peer, dtype or number of dims, or an id given twice.
 * @retval XFER_ERR_SHAPE        A negative size.
 * @retval XFER_ERR_OVERFLOW     An array's bytes do not fit in 62 bits, or the operations are 2^30
 *                               tensors or more.
 * @retval XFER_ERR_UNSUPPORTED  The broadcast lane, or a flag other than XFER_PLAN_FRESH_SOURCES.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_create_exchange(
    xfer_plan **plan, xfer_comm *comm, const xfer_operation *sends, size_t n_sends,
    const xfer_operation *recvs, size_t n_recvs, const xfer_plan_options *options);

/**
 * Bind all operations of an exchange, each as by xfer_plan_bind(). Local.
 *
 * @param plan        Made by xfer_plan_create_exchange().
 * @param send_views  [n_sends of create] In the order given there; ignored for an empty array.
 * @param recv_views  [n_recvs of create] In the order given there; ignored for an empty array.
 * @retval XFER_ERR_SHAPE  A view does not fit its array; the call has bound the ones before it.
 * @retval XFER_ERR_STATE  A run is in flight.
 * @retval XFER_ERR_ARG    The plan is no exchange, or a view is wrong by itself.
 * @retval XFER_ERR_OVERFLOW  A view extends past 2^62 bytes.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_bind_exchange(xfer_plan *plan,
                                                             const xfer_view *send_views,
                                                             const xfer_view *recv_views);

/**
 * Send and receive, in one call. Collective over all ranks of the comm, even those that have no
 * operations. The comm keeps the plan, as for xfer_redistribute(), and uses it again if all ranks
 * pass the same arguments as in one earlier call, apart from addresses.
 *
 * Data goes straight into the peers' memory if ranks are threads, or if all ranks' memory was
 * registered by xfer_comm_register(); otherwise through copies that GPUs keep mapped, as there, or
 * through staging slots.
 *
 * Stream: starts after the work that is already on `stream`. Later work on it may write the
 * sources, and sees the result if the data arrived; xfer_comm_check() says whether it did. On a
 * host comm the data has arrived when the call returns.
 *
 * @param comm        The comm.
 * @param sends       [n_sends] As for xfer_plan_create_exchange(), which also lists the errors.
 * @param send_views  [n_sends] Where the arrays that are sent lie.
 * @param n_sends     0 or more.
 * @param recvs       [n_recvs] As for xfer_plan_create_exchange().
 * @param recv_views  [n_recvs] Where the received arrays go; these overlap neither each other nor a
 *                    source.
 * @param n_recvs     0 or more.
 * @param stream      A CUDA stream; NULL: the default stream. Ignored by host comms.
 * @retval XFER_ERR_MISMATCH  The two ends of an operation differ. Nothing was moved.
 * @retval XFER_ERR_SHAPE     A view does not fit, or destinations overlap. Nothing was moved.
 * @retval XFER_ERR_PEER      Another rank failed before anything was moved.
 * @retval XFER_ERR_TIMEOUT   A rank did not take part in time; destinations may be torn.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_exchange(xfer_comm *comm, const xfer_operation *sends,
                                                   const xfer_view *send_views, size_t n_sends,
                                                   const xfer_operation *recvs,
                                                   const xfer_view *recv_views, size_t n_recvs,
                                                   xfer_stream stream);

#ifdef __cplusplus
}
#endif
#endif
