/**
 * @file redistribute.h One tensor in one call, and memory that such calls may write into directly.
 */
#ifndef XFER_REDISTRIBUTE_H
#define XFER_REDISTRIBUTE_H

#include <xfer/comm.h>
#include <xfer/view.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Move one tensor from its source layout to its destination layout.
 *
 * Collective over all ranks of the comm, even those in neither mesh. The comm keeps the plan, and
 * uses it again if all ranks pass the same arguments as in one earlier call, apart from addresses.
 * It keeps the last 64 plans of this function and of xfer_exchange(), and drops the least recently
 * used plan first.
 *
 * Data goes straight into the peers' memory if ranks are threads, or if all ranks' memory was
 * registered by xfer_comm_register(). Otherwise GPUs that reach each other's memory read it from a
 * copy of the source part, in memory of the comm that they keep mapped: at most 512 MiB on each
 * rank for all kept plans together, besides the staging slots that all plans of the comm share. If
 * the same call comes again before its peers have read the copy, the comm uses two copies from then
 * on, in turn, if there is room. If there is none for a copy, the comm takes the room of plans that
 * none of the last 64 calls has used, and of such second copies. If processes share a GPU there is
 * one copy, and the call waits until peers have read the last one. Everything else goes through
 * staging slots; so does a whole plan if a rank has no memory for its copies.
 *
 * Stream: starts after the work that is already on `stream`. Later work on it may write the source,
 * and sees the result if the data arrived; xfer_comm_check() says whether it did. On a host comm
 * the data has arrived when the call returns.
 *
 * @param comm        The comm; every rank of both meshes must be one of its ranks.
 * @param src_layout  The source; NULL on a rank that does not know it, if another rank does.
 * @param src_view    Where this rank's source part lies; may be NULL if it has none.
 * @param dst_layout  The destination, of the same shape and dtype; NULL on a rank that does not
 *                    know it.
 * @param dst_view    Where this rank's destination part lies; may be NULL if it has none.
 * @param stream      A CUDA stream; NULL: the default stream. Ignored by host comms.
 * @retval XFER_ERR_MISMATCH  Ranks disagree about the layouts. Nothing was moved.
 * @retval XFER_ERR_SHAPE     The layouts or views do not fit. Nothing was moved.
 * @retval XFER_ERR_ARG       A layout names a rank that the comm does not have, a view is wrong by
 *                            itself, or copies cannot use its memory. Nothing was moved.
 * @retval XFER_ERR_STATE     A rank holds a part and passed no view. Nothing was moved.
 * @retval XFER_ERR_PEER      Another rank failed before anything was moved.
 * @retval XFER_ERR_TIMEOUT   A rank did not take part in time; the destination may be torn.
 */
XFER_API XFER_MUST_CHECK xfer_status
xfer_redistribute(xfer_comm *comm, const xfer_layout *src_layout, const xfer_view *src_view,
                  const xfer_layout *dst_layout, const xfer_view *dst_view, xfer_stream stream);

/**
 * Map this rank's memory on its peers and keep it mapped, so that each call of xfer_redistribute()
 * and xfer_exchange() writes straight into it. Collective. Plans do not need this call, and on a
 * host comm there is nothing to map.
 *
 * @param comm     The comm.
 * @param memory   An address in one allocation of this rank's device: the call maps that
 *                 allocation, which must live until it is unregistered or the comm is destroyed.
 *                 NULL: this rank has nothing to register in this call. In memory that is mapped
 *                 chunk by chunk, each chunk is an allocation.
 * @retval XFER_ERR_ARG  Copies of this device cannot use the memory.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_register(xfer_comm *comm, void *memory);
/**
 * Undo one call of xfer_comm_register(): the first call in which every rank passed the same address
 * as in this one. All ranks close the mappings of that call, and the memory may be freed. Memory
 * that was registered twice stays mapped until both calls are undone. Collective.
 *
 * @param comm    The comm.
 * @param memory  What this rank passed to that call, NULL included.
 * @retval XFER_ERR_ARG       This rank registered no such address in a call that is not undone.
 * @retval XFER_ERR_MISMATCH  No single call of xfer_comm_register() had these addresses on all
 *                            ranks; nothing was undone.
 * @retval XFER_ERR_TIMEOUT   It was undone, but an earlier xfer_redistribute() or xfer_exchange()
 *                            that had returned XFER_OK has failed since. Likewise XFER_ERR_PEER and
 *                            XFER_ERR_COMM.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_unregister(xfer_comm *comm, void *memory);

#ifdef __cplusplus
}
#endif
#endif
