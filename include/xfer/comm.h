/**
 * @file comm.h Comms: groups of ranks with a transport between them.
 */
#ifndef XFER_COMM_H
#define XFER_COMM_H

#include <xfer/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A group of ranks and the transport between them. xfer/mpi.h and xfer/nccl.h make others too. */
typedef struct xfer_comm xfer_comm;

/** A CUDA stream (the type behind cudaStream_t), without CUDA's header. Ignored by host comms. */
typedef struct CUstream_st *xfer_stream;

/**
 * Make a comm whose ranks are threads of this process; memory is host memory. Local: one thread
 * calls it once and passes each rank its handle. It takes some 100 bytes for every two ranks: 1,000
 * ranks take 100 MB.
 *
 * @param comms    [n_ranks] Receives one handle per rank. Each is destroyed by its owner.
 * @param n_ranks  At least 1.
 * @retval XFER_ERR_ARG    `comms` is NULL, or `n_ranks` is below 1.
 * @retval XFER_ERR_NOMEM  Out of memory. No comm was made.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_local(xfer_comm **comms, int n_ranks);

/**
 * Gather `n_bytes` of host memory from every rank on every rank, as MPI_Allgather() does; a program
 * with MPI implements it by that function.
 *
 * @param context  As given to the maker.
 * @param all      [size * n_bytes] Receives the bytes, by rank.
 * @param mine     [n_bytes] This rank's bytes.
 * @param n_bytes  The same on every rank; at least 1.
 * @return 0 when done; anything else breaks the comm.
 */
typedef int (*xfer_all_gather_fn)(void *context, void *all, const void *mine, size_t n_bytes);

/**
 * Make a comm whose ranks are processes of one host and of one user, or threads of them; memory is
 * host memory. Data and control go through shared memory: each rank makes a nameless file and
 * passes it to the others over sockets. The sockets stay open, one between every two ranks, and
 * show when a process ends; one that closes all its files, as daemons do, counts as ended. Threads
 * of one process copy each other's data directly.
 *
 * Collective: all `size` ranks. It calls `all_gather` three times, always before it returns, and
 * returns when every rank has arrived.
 * Stream: none.
 * Threads: safe.
 * Failure: if a process ends or a rank misses a deadline, the waits of all others end with an error
 * that names it, and the comm is broken; the remaining ranks may make another. If the system has
 * pidfds, the others also notice the end of a process whose forked child still runs.
 *
 * @param comm        Receives the comm; the caller owns it.
 * @param all_gather  Called by this thread, the same number of times and sizes on every rank.
 * @param context     Passed to `all_gather`.
 * @param rank        This rank, 0 to size - 1.
 * @param size        The number of ranks.
 * @retval XFER_ERR_ARG    An argument is NULL, or `rank` or `size` is out of range. This rank
 *                         returns alone, without calling `all_gather`; so it does if it has no
 *                         memory for the answers.
 * @retval XFER_ERR_COMM   `all_gather` failed or did not put each rank's bytes at its place, for
 *                         example because two ranks have the same number; or a rank is on another
 *                         host; or the system refuses shared memory (RLIMIT_FSIZE) or more files
 *                         (RLIMIT_NOFILE): a rank needs two for each other rank, and three more.
 * @retval XFER_ERR_TIMEOUT  A rank that had arrived did not answer for 10 minutes, or this rank was
 *                           interrupted (xfer_interrupt_set).
 * @retval XFER_ERR_NOMEM  Out of memory.
 * @retval XFER_ERR_PEER   Another rank failed; the text names it and quotes its text.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_host(xfer_comm **comm,
                                                           xfer_all_gather_fn all_gather,
                                                           void *context, int rank, int size);

/** Destroy a comm; NULL is fine. Not collective. The call waits until peers have read the data that
 * earlier calls of xfer_redistribute() and xfer_exchange() sent from this rank, or until the
 * deadlines of those calls, and then up to two seconds more for a peer that is still reading. If
 * plans of the comm still exist, the comm lives until the last of them is destroyed, and the other
 * ranks learn of it only then. Over MPI the call waits for the other ranks, and over NCCL for those
 * of its host, for 2 seconds at most, then continues without them; over MPI it leaks a communicator
 * that the others have not given back by then. */
XFER_API void xfer_comm_destroy(xfer_comm *comm);
/** This rank's number; -1 for NULL. */
XFER_API int xfer_comm_rank(const xfer_comm *comm);
/** The number of ranks; 0 for NULL. */
XFER_API int xfer_comm_size(const xfer_comm *comm);

/**
 * Set the deadline of every wait in the comm's own calls (xfer_comm_all_gather(),
 * xfer_comm_register(), xfer_redistribute(), xfer_exchange()), and of later plans whose options set
 * none. Local, but the value must be the same on every rank; planning compares it.
 *
 * @param comm        The comm.
 * @param timeout_ms  Milliseconds; 0: the default of 600000.
 * @retval XFER_ERR_ARG  More than 2^63 - 1.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_set_timeout(xfer_comm *comm, uint64_t timeout_ms);

/**
 * Make this rank's next collective call fail on all ranks. Use it if the caller cannot make the
 * arguments of a call in which the others already wait. Local. The rank then makes the call, with
 * any arguments that do not crash, such as NULL or 0. The call uses only the comm, the plan and the
 * options' `timeout_ms`, which should be the same as on the other ranks.
 *
 * It applies to one call: the next one of these, which can fail on all ranks without breaking the
 * comm: xfer_plan_create(), xfer_plan_create_exchange(), xfer_plan_commit(), xfer_plan_digest(),
 * xfer_plan_check_replicas(), xfer_plan_release(), xfer_redistribute(), xfer_exchange(),
 * xfer_comm_register(), xfer_comm_unregister(). The call returns XFER_ERR_ARG here, with `why` as
 * its text, and XFER_ERR_PEER elsewhere. For a run use xfer_plan_refuse().
 *
 * @param comm  The comm, or that of the plan.
 * @param why   A sentence; it is copied. The other ranks see its first 200 bytes, after this rank's
 *              number.
 * @retval XFER_ERR_ARG  An argument is NULL.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_refuse(xfer_comm *comm, const char *why);

/**
 * Report whether a call of xfer_redistribute() or xfer_exchange() that returned XFER_OK has failed
 * since, as far as this rank knows, or whether the comm is broken. Local; does not query the
 * device. Like a failed wait, it waits only until a failed run can do nothing more here. On a
 * device such a call returns before its work is done: once the caller has waited for the stream,
 * this function says whether the data has arrived here. A failure of others to read this rank's
 * data shows only at the deadline. Without this function a caller learns of a failure from the next
 * such call, which then fails on all ranks; if there is no such call it never learns of it, since
 * the stream continues after a run's deadline has passed.
 *
 * The function reports a failure once, and the next redistribution or exchange works again unless
 * the comm is broken.
 *
 * @param comm  The comm. Over MPI only the thread that makes its other calls may ask.
 * @retval XFER_ERR_COMM     The comm is broken, and the text says why; or NCCL cancelled messages
 *                           of a call together with those of another run that failed.
 * @retval XFER_ERR_TIMEOUT  A rank did not take part in a call in time; the call's destination may
 * be torn.
 * @retval XFER_ERR_PEER     A rank failed in a call; likewise.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_check(xfer_comm *comm);

/** Allocate `n_bytes` of memory, aligned to 16 bytes; NULL if there is none. */
typedef void *(*xfer_alloc_fn)(void *context, size_t n_bytes);
/** Free memory of the xfer_alloc_fn that was set together with this function. */
typedef void (*xfer_free_fn)(void *context, void *memory);

/**
 * Take the comm's staging memory from the caller, for example from torch's caching allocator.
 * Local.
 *
 * The plans of a comm share one block, as large as the most demanding of them needs; a plan whose
 * data goes directly needs none. After this call, a commit that needs a larger block waits until
 * the present one is unused, then calls `alloc`. The library calls `free` for a block that came
 * from `alloc` once nothing can touch it: in a commit that replaces it, or when the last plan is
 * released or destroyed. xfer_comm_destroy() destroys the plans that the comm itself keeps, so
 * `context` must outlive the comm. A plan with XFER_PLAN_STAGED also has its own block, which its
 * release or its destruction frees; the same is true of the copies of sources that
 * xfer_redistribute() lets peers read. The library never frees a block that a failed run may still
 * touch.
 *
 * @param comm     The comm. If it has a CUDA device, the block is memory of that device, which is
 *                 the current one in both calls.
 * @param alloc    NULL, with `free` NULL too: the library's own allocation, the default.
 * @param free     The thread that is in a call of the library calls both functions.
 * @param context  Passed to both functions; not owned.
 * @retval XFER_ERR_ARG  The comm is NULL, or only one of the two functions is.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_set_staging(xfer_comm *comm, xfer_alloc_fn alloc,
                                                           xfer_free_fn free, void *context);

/**
 * Gather `n_bytes` from every rank on every rank. Collective; blocks until all ranks have arrived.
 * For small control data.
 *
 * Failure: any failure breaks the comm, so that no rank waits for a rank whose arguments are wrong.
 *
 * @param comm     The comm.
 * @param all      [size * n_bytes] Receives the bytes, by rank. Host memory.
 * @param mine     [n_bytes] This rank's bytes. Host memory.
 * @param n_bytes  The same on every rank; 0: a barrier.
 * @retval XFER_ERR_ARG       An argument is NULL.
 * @retval XFER_ERR_OVERFLOW  size * n_bytes does not fit in the address space.
 * @retval XFER_ERR_MISMATCH  Ranks pass different sizes, or are in different calls.
 * @retval XFER_ERR_COMM      Another rank failed; the text names it and quotes its text.
 * @retval XFER_ERR_TIMEOUT   A rank did not arrive before the deadline.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_all_gather(xfer_comm *comm, void *all,
                                                          const void *mine, size_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif
