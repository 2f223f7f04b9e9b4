/**
 * @file nccl.h
 * Comms whose ranks own one CUDA device each; in libxfer_nccl. Includes neither CUDA's header nor
 * NCCL's.
 *
 * NCCL is looked up when a comm is made over it: the process's own, otherwise libnccl.so.2. Of CUDA
 * the library needs only the driver.
 *
 * Each maker binds the comm to the calling thread's current device (cudaSetDevice). Calls on it,
 * from whatever thread, leave that thread's current device and context as they were, and make no
 * context on another GPU. Bound memory is that device's, or managed or pinned host memory in lanes
 * other than the direct one.
 *
 * Runs wait for peers on the device, in the library's streams and in the caller's. With
 * CUDA_DEVICE_MAX_CONNECTIONS=1 all streams of a process share one queue, so a run that waits for a
 * late rank holds up all other work of the process on that device. Ranks of one process and one
 * device need a thread each. They meet on the host in each run, which therefore returns once all of
 * them have come to it; and if they are given the same stream, such as the default one, a wait on
 * the device is a wait of all of them. Until its deadline a run may read the memory of a peer that
 * arrives late.
 */
#ifndef XFER_NCCL_H
#define XFER_NCCL_H

#include <xfer/xfer.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Get the calling thread's current CUDA device, to which comms are bound, whichever CUDA runtime of
 * the process set it: for callers that have none, such as other languages.
 *
 * Stream: none. Threads: safe.
 *
 * @param device  Receives its ordinal.
 * @retval XFER_ERR_ARG   `device` is NULL.
 * @retval XFER_ERR_CUDA  CUDA failed, or there is no device or no driver.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_cuda_device_get(int *device);
/**
 * Set the calling thread's current CUDA device, as cudaSetDevice() does.
 *
 * @param device  Its ordinal.
 * @retval XFER_ERR_CUDA  There is no such device, or no driver.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_cuda_device_set(int device);

/** What stands behind an ncclComm_t. */
struct ncclComm;

/** Bytes of an ncclUniqueId. */
#define XFER_NCCL_ID_BYTES 128

/**
 * Make a comm of the ranks of an NCCL communicator.
 *
 * The caller's communicator carries one broadcast of 256 bytes and is not kept: private,
 * non-blocking ones are made, so that a missed deadline can abort them without touching the
 * caller's. One is for control; the first commit of a plan that sends over NCCL makes another for
 * data. NCCL makes none while a thread of the process captures a graph in global mode: the call
 * then fails with XFER_ERR_COMM, and a commit may be repeated after the capture.
 *
 * Collective: all ranks of `nccl`, with nothing of theirs in flight on it.
 * Stream: none of the caller's; blocks until all ranks have come, at most 10 minutes, but within
 * `nccl` itself for as long as NCCL does, if that is a blocking one. Where one fails, all fail.
 * Threads: safe on different communicators.
 *
 * @param comm  Receives the comm; the caller owns it.
 * @param nccl  An ncclComm_t, blocking or not, on the current device. May be destroyed afterwards.
 * @retval XFER_ERR_ARG      `nccl` is NULL or belongs to another device than the current one.
 * @retval XFER_ERR_COMM     NCCL failed; the text quotes it.
 * @retval XFER_ERR_CUDA     CUDA failed, or there is no device or no driver.
 * @retval XFER_ERR_UNSUPPORTED  NCCL, libnccl.so.2, was not found or is too old. The rank
 *                               returns alone.
 * @retval XFER_ERR_PEER     Another rank failed; the text quotes it.
 * @retval XFER_ERR_TIMEOUT  A rank did not come.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_nccl(xfer_comm **comm, struct ncclComm *nccl);

/**
 * Make an id for xfer_comm_create_nccl_id(), on one rank, which hands it to the others.
 *
 * Not collective. Threads: safe.
 *
 * @param id  Receives an ncclUniqueId.
 * @retval XFER_ERR_COMM  NCCL failed; the text quotes it.
 * @retval XFER_ERR_CUDA  There is no CUDA driver.
 * @retval XFER_ERR_UNSUPPORTED  NCCL, libnccl.so.2, was not found.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_nccl_id(unsigned char id[XFER_NCCL_ID_BYTES]);

/**
 * Make a comm from an id that every rank knows.
 *
 * Collective: all `size` ranks with the same id. An id serves for one comm.
 * Stream: none; blocks until all ranks have come, at most 10 minutes. Where one fails, all fail.
 * Threads: safe.
 *
 * @param comm  Receives the comm; the caller owns it.
 * @param id    An ncclUniqueId, from xfer_nccl_id() or ncclGetUniqueId().
 * @param rank  This rank, 0 to size - 1.
 * @param size  The number of ranks. No two may share a device: NCCL refuses that.
 * @retval XFER_ERR_ARG      `rank` or `size` is out of range.
 * @retval XFER_ERR_COMM     NCCL failed; the text quotes it.
 * @retval XFER_ERR_CUDA     CUDA failed, or there is no device or no driver.
 * @retval XFER_ERR_UNSUPPORTED  NCCL, libnccl.so.2, was not found or is too old. The rank
 *                               returns alone.
 * @retval XFER_ERR_PEER     Another rank failed; the text quotes it.
 * @retval XFER_ERR_TIMEOUT  A rank did not come.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_nccl_id(
    xfer_comm **comm, const unsigned char id[XFER_NCCL_ID_BYTES], int rank, int size);

/**
 * Make a comm without NCCL, of processes of one host and of one user, or threads of them: data goes
 * straight into peers' memory, and control through memory that they share.
 *
 * Ranks may share a device. A commit fails with XFER_ERR_UNSUPPORTED if the plan needs a pair of
 * ranks of which neither can map the other's memory.
 *
 * Collective: all `size` ranks. Calls `all_gather` three times and not afterwards, and returns when
 * every rank has come.
 * Stream: none.
 * Threads: safe.
 * Failure: as of xfer_comm_create_host().
 *
 * @param comm        Receives the comm; the caller owns it.
 * @param all_gather  Called by this thread, the same number of times and sizes on every rank. The
 *                    library sets no deadline for it.
 * @param context     Passed to it.
 * @param rank        This rank, 0 to size - 1.
 * @param size        The number of ranks.
 * @retval XFER_ERR_ARG      `all_gather` is NULL, or `rank` or `size` is out of range. The rank
 *                           returns alone.
 * @retval XFER_ERR_COMM     `all_gather` failed, or a rank cannot be reached: it is on another
 *                           host.
 * @retval XFER_ERR_CUDA     CUDA failed, or there is no device or no driver.
 * @retval XFER_ERR_NOMEM    Out of memory.
 * @retval XFER_ERR_PEER     Another rank failed; the text names it and quotes its own.
 * @retval XFER_ERR_TIMEOUT  A rank had met the others but had no device 10 minutes later.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_cuda(xfer_comm **comm,
                                                           xfer_all_gather_fn all_gather,
                                                           void *context, int rank, int size);

#ifdef __cplusplus
}
#endif
#endif
