/**
 * @file exchange.h
 * Operations without tensors: what each rank sends and receives, paired by an id.
 */
#ifndef XFER_EXCHANGE_H
#define XFER_EXCHANGE_H

#include <xfer/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * An array that goes to or comes from another rank, or this rank itself. Its two ends have the same
 * id, dtype and shape; where it lies on each of them, also with strides, is a view's to say.
 */
typedef struct xfer_operation {
  uint64_t id;                  /**< Any number; of what goes from one rank to another no two have
                                     the same. */
  int32_t peer;                 /**< The other rank. */
  int32_t dtype;                /**< xfer_dtype */
  int32_t n_dims;               /**< 0 to XFER_MAX_DIMS. */
  uint32_t reserved;            /**< Must be 0. */
  int64_t shape[XFER_MAX_DIMS]; /**< [n_dims] Sizes may be 0. */
} xfer_operation;

/** `n_bytes` bytes, at most 2^63 - 1. */
XFER_API_INLINE xfer_operation xfer_operation_bytes(uint64_t id, int peer, size_t n_bytes)
{
  xfer_operation o = {0, 0, XFER_U8, 1, 0, {0, 0, 0, 0, 0, 0, 0, 0}};
  o.id = id;
  o.peer = (int32_t)peer;
  o.shape[0] = (int64_t)n_bytes;
  return o;
}

/**
 * Plan an exchange: every rank says what it sends and what it receives. Collective.
 *
 * That the two ends of all operations agree is found by one digest, in one gathering. The plan is
 * committed, run, waited for and given back as any other, and takes the same lanes but broadcasts.
 * Its tensor i is the i-th send, and n_sends + k the k-th receive from another rank; what a rank
 * sends to itself and receives is one tensor. Other ranks number theirs otherwise.
 *
 * @param plan     Receives the plan; the caller owns it and destroys it before the comm.
 * @param comm     The comm; not owned.
 * @param sends    [n_sends] Copied, in any order; the other end's may be another.
 * @param n_sends  0 or more.
 * @param recvs    [n_recvs] Likewise.
 * @param n_recvs  0 or more.
 * @param options  NULL: all defaults; the same on every rank.
 * @retval XFER_ERR_MISMATCH     The two ends of an operation differ, or there is only one; the text
 *                               names it on every rank. Or options differ.
 * @retval XFER_ERR_ARG          A wrong peer, dtype or number of dims, or an id given twice.
 * @retval XFER_ERR_SHAPE        A negative size.
 * @retval XFER_ERR_OVERFLOW     An array's bytes do not fit in 62 bits.
 * @retval XFER_ERR_UNSUPPORTED  The broadcast lane, or flags.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_create_exchange(
    xfer_plan **plan, xfer_comm *comm, const xfer_operation *sends, size_t n_sends,
    const xfer_operation *recvs, size_t n_recvs, const xfer_plan_options *options);

/**
 * Say where all operations of an exchange lie on this rank: xfer_plan_bind() of each. Local.
 *
 * @param plan        Made by xfer_plan_create_exchange().
 * @param send_views  [n_sends of create] In the order given there; of an empty array not looked at.
 * @param recv_views  [n_recvs of create] Likewise.
 * @retval XFER_ERR_SHAPE  A view does not fit its array; the ones before it are bound.
 * @retval XFER_ERR_STATE  A run is in flight.
 * @retval XFER_ERR_ARG    The plan is no exchange, or a view is wrong by itself.
 * @retval XFER_ERR_OVERFLOW  A view reaches past 2^62 bytes.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_bind_exchange(xfer_plan *plan,
                                                             const xfer_view *send_views,
                                                             const xfer_view *recv_views);

/**
 * Send and receive, in one call. Collective over all ranks of the comm, also those that have no
 * operations. The plan is kept with the comm, as those of xfer_redistribute() are, and found again
 * where all ranks hand over what they did in one earlier call, but for the addresses.
 *
 * Data goes straight into the peers' memory where ranks are threads, and where all ranks' memory
 * was registered by xfer_comm_register(); else by copies that GPUs keep mapped, as there, or
 * through slots. Stream: starts after what is already on `stream`; a later reader on it sees the
 * result, if it came: xfer_comm_check() says so. On a host comm the data is there when the call
 * returns.
 *
 * @param comm        The comm.
 * @param sends       [n_sends] As for xfer_plan_create_exchange(), which has the errors too.
 * @param send_views  [n_sends] Where they lie.
 * @param n_sends     0 or more.
 * @param recvs       [n_recvs] Likewise.
 * @param recv_views  [n_recvs] Where they go; no two overlap, nor one and a source.
 * @param n_recvs     0 or more.
 * @param stream      A CUDA stream; NULL: the default stream. Ignored by host comms.
 * @retval XFER_ERR_MISMATCH  The two ends of an operation differ. Nothing was moved.
 * @retval XFER_ERR_SHAPE     A view does not fit, or destinations overlap. Nothing was moved.
 * @retval XFER_ERR_PEER      Another rank failed before anything was moved.
 * @retval XFER_ERR_TIMEOUT   A rank did not take part in time; destinations may be torn.
 * @since 0.1
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
