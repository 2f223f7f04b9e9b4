/**
 * @file nccl.h
 * Comms whose ranks own one CUDA device each; in libxfer_nccl. Includes neither CUDA's header nor
 * NCCL's.
 *
 * The library looks for NCCL when a comm over it is made: first the process's own, then
 * libnccl.so.2. It needs CUDA's driver, but not its runtime.
 *
 * Each function that makes a comm binds it to the calling thread's current device (cudaSetDevice).
 * Calls on the comm, from any thread, leave that thread's current device and context unchanged, and
 * make no context on another GPU. Bound memory must be memory of that device; in lanes other than
 * the direct one, it may also be managed or pinned host memory.
 *
 * Runs wait for peers on the device, in the library's streams and in the caller's. With
 * CUDA_DEVICE_MAX_CONNECTIONS=1 all streams of a process share one queue, so a run that waits for a
 * late rank holds up all other work of the process on that device. Ranks of one process and one
 * device need a thread each. They meet on the host in each run, which therefore returns once all of
 * them have reached it. If they use the same stream, such as the default one, all of them wait
 * while one waits on the device. Until its deadline a run may read the memory of a peer that
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
 * the process set it: for callers without a CUDA runtime, such as other languages.
 *
 * Stream: none. Threads: safe.
 *
 * @param device  Receives the device's ordinal.
 * @retval XFER_ERR_ARG   `device` is NULL.
 * @retval XFER_ERR_CUDA  CUDA failed, or there is no device or no driver.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_cuda_device_get(int *device);
/**
 * Set the calling thread's current CUDA device, as cudaSetDevice() does.
 *
 * @param device  The device's ordinal.
 * @retval XFER_ERR_CUDA  There is no such device, or no driver.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_cuda_device_set(int device);

/** The type behind ncclComm_t. */
struct ncclComm;

/** Bytes of an ncclUniqueId. */
#define XFER_NCCL_ID_BYTES 128

/**
 * Make a comm of the ranks of an NCCL communicator.
 *
 * The library sends one broadcast of 256 bytes over the caller's communicator and does not keep it.
 * It makes private communicators, so that it can abort them at a missed deadline without touching
 * the caller's. One is for control; the first commit of a plan that sends over NCCL makes others
 * for data. NCCL makes no communicator while a thread of the process captures a graph in global
 * mode: the call then fails with XFER_ERR_COMM, and a commit may be repeated after the capture.
 *
 * Collective: all ranks of `nccl`, which must have nothing in flight on it.
 * Stream: none of the caller's. The call blocks until all ranks have arrived, at most 10 minutes;
 * if `nccl` is a blocking communicator, it blocks inside `nccl` for as long as NCCL does. If one
 * rank fails, all fail.
 * Threads: safe on different communicators.
 *
 * @param comm  Receives the comm; the caller owns it.
 * @param nccl  An ncclComm_t, blocking or not, on the current device. May be destroyed afterwards.
 * @retval XFER_ERR_ARG      `nccl` is NULL or belongs to a device other than the current one.
 * @retval XFER_ERR_COMM     NCCL failed; the text quotes it.
 * @retval XFER_ERR_CUDA     CUDA failed, or there is no device or no driver.
 * @retval XFER_ERR_UNSUPPORTED  NCCL, libnccl.so.2, was not found or is too old. The rank
 *                               returns alone.
 * @retval XFER_ERR_PEER     Another rank failed; the text quotes it.
 * @retval XFER_ERR_TIMEOUT  A rank did not arrive.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_nccl(xfer_comm **comm, struct ncclComm *nccl);

/**
 * Make an id for xfer_comm_create_nccl_id(). One rank calls this, and the caller sends the id to
 * the others.
 *
 * Not collective. Threads: safe.
 *
 * @param id  Receives an ncclUniqueId.
 * @retval XFER_ERR_COMM  NCCL failed; the text quotes it.
 * @retval XFER_ERR_CUDA  There is no CUDA driver.
 * @retval XFER_ERR_UNSUPPORTED  NCCL, libnccl.so.2, was not found.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_nccl_id(unsigned char id[XFER_NCCL_ID_BYTES]);

/**
 * Make a comm from an id that every rank knows.
 *
 * Collective: all `size` ranks with the same id. An id serves for one comm.
 * Stream: none. The call blocks until all ranks have arrived, at most 10 minutes. If one rank
 * fails, all fail.
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
 * @retval XFER_ERR_TIMEOUT  A rank did not arrive.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_nccl_id(
    xfer_comm **comm, const unsigned char id[XFER_NCCL_ID_BYTES], int rank, int size);

/**
 * Make a comm without NCCL, of processes of one host and of one user, or threads of them: data goes
 * straight into peers' memory, and control goes through memory that they share.
 *
 * Ranks may share a device. A commit fails with XFER_ERR_UNSUPPORTED if the plan moves data between
 * two ranks, and neither can map the other's memory.
 *
 * Collective: all `size` ranks. It calls `all_gather` three times and not afterwards, and returns
 * when every rank has arrived.
 * Stream: none.
 * Threads: safe.
 * Failure: as of xfer_comm_create_host().
 *
 * @param comm        Receives the comm; the caller owns it.
 * @param all_gather  Called by this thread, the same number of times and sizes on every rank. The
 *                    library sets no deadline for it.
 * @param context     Passed to `all_gather`.
 * @param rank        This rank, 0 to size - 1.
 * @param size        The number of ranks.
 * @retval XFER_ERR_ARG      `all_gather` is NULL, or `rank` or `size` is out of range. The rank
 *                           returns alone.
 * @retval XFER_ERR_COMM     `all_gather` failed, or a rank is unreachable because it is on another
 *                           host.
 * @retval XFER_ERR_CUDA     CUDA failed, or there is no device or no driver.
 * @retval XFER_ERR_NOMEM    Out of memory.
 * @retval XFER_ERR_PEER     Another rank failed; the text names it and quotes its text.
 * @retval XFER_ERR_TIMEOUT  A rank had met the others but had no device 10 minutes later.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_cuda(xfer_comm **comm,
                                                           xfer_all_gather_fn all_gather,
                                                           void *context, int rank, int size);

#ifdef __cplusplus
}
#endif
#endif
