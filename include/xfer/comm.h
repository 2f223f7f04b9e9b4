/**
 * @file comm.h
 * The ranks, how bytes travel between them, and one tensor in one call.
 */
#ifndef XFER_COMM_H
#define XFER_COMM_H

#include <xfer/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The ranks and how bytes travel between them. Other makers: xfer/mpi.h, xfer/nccl.h. */
typedef struct xfer_comm xfer_comm;

/** A CUDA stream, the type behind cudaStream_t, without its header. Ignored by host comms. */
typedef struct CUstream_st *xfer_stream;

/**
 * Make a comm whose ranks are threads of this process; memory is host memory. Local: one thread
 * calls it once and hands each rank its handle.
 *
 * @param comms    [n_ranks] Receives one handle per rank. Each is destroyed by its owner.
 * @param n_ranks  At least 1.
 * @retval XFER_ERR_ARG    `comms` is NULL, or `n_ranks` is below 1.
 * @retval XFER_ERR_NOMEM  Out of memory. No comm was made.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_local(xfer_comm **comms, int n_ranks);

/**
 * Gather `n_bytes` of host memory from every rank on every rank, as MPI_Allgather() does, by which
 * a program with MPI implements it.
 *
 * @param context  As given to the maker.
 * @param all      [size * n_bytes] Receives the bytes, by rank.
 * @param mine     [n_bytes] This rank's.
 * @param n_bytes  The same on every rank; at least 1.
 * @return 0 when done; anything else breaks the comm.
 */
typedef int (*xfer_all_gather_fn)(void *context, void *all, const void *mine, size_t n_bytes);

/**
 * Make a comm whose ranks are processes of one host and of one user, or threads of them; memory is
 * host memory. Data and control go through shared memory: each rank makes a nameless file and
 * passes it to the others over sockets. The sockets stay open, one between every two ranks, and
 * show when a process ends. What a plan moves between threads of one process is copied directly.
 *
 * Collective: all `size` ranks. Calls `all_gather` three times, all of them before it returns, and
 * returns when every rank has arrived.
 * Stream: none.
 * Threads: safe.
 * Failure: when a process ends or a rank misses a deadline, the waits of all others end with an
 * error that names it, and the comm is broken; the remaining ranks may make another. Where the
 * system has pidfds, the others also notice the end of a process whose forked child still runs.
 *
 * @param comm        Receives the comm; the caller owns it.
 * @param all_gather  Called by this thread, the same number of times and sizes on every rank.
 * @param context     Passed to it.
 * @param rank        This rank, 0 to size - 1.
 * @param size        The number of ranks.
 * @retval XFER_ERR_ARG    An argument is NULL, or `rank` or `size` is out of range. This rank
 *                         returns alone, without calling `all_gather`, as it also does without
 *                         memory for the answers.
 * @retval XFER_ERR_COMM   `all_gather` failed or did not put each rank's bytes at its place, for
 *                         example because two ranks have one number; or a rank is on another host;
 *                         or the system gives no shared memory (RLIMIT_FSIZE) or no more files
 *                         (RLIMIT_NOFILE): a rank needs two for each other rank, and three
 *                         to spare.
 * @retval XFER_ERR_TIMEOUT  A rank that had arrived did not answer for 10 minutes, or this one was
 *                           interrupted (xfer_interrupt_set).
 * @retval XFER_ERR_NOMEM  Out of memory.
 * @retval XFER_ERR_PEER   Another rank failed; the text names it and quotes its own.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_host(xfer_comm **comm,
                                                           xfer_all_gather_fn all_gather,
                                                           void *context, int rank, int size);

/** Destroy a comm; NULL is fine. Not collective. Waits, until their deadlines, for what earlier
 * calls of xfer_redistribute() and xfer_exchange() have sent from this rank to be read. If plans of
 * the comm still exist, it lives until the last of them is destroyed, and the other ranks learn of
 * it only then. Over MPI the call waits for the other ranks, and over NCCL for those of its host,
 * for 2 seconds at most, then goes on without them; over MPI a communicator that the others have
 * not given back by then is leaked. */
XFER_API void xfer_comm_destroy(xfer_comm *comm);
/** This rank's number; -1 for NULL. */
XFER_API int xfer_comm_rank(const xfer_comm *comm);
/** The number of ranks; 0 for NULL. */
XFER_API int xfer_comm_size(const xfer_comm *comm);

/**
 * Set the deadline of every wait in the comm's own calls (xfer_comm_all_gather(),
 * xfer_comm_register(), xfer_redistribute(), xfer_exchange()), and of later plans whose options set
 * none. Local, but the value must be the same on every rank: planning compares it.
 *
 * @param comm        The comm.
 * @param timeout_ms  Milliseconds; 0: the default of 600000.
 * @retval XFER_ERR_ARG  More than 2^63 - 1.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_set_timeout(xfer_comm *comm, uint64_t timeout_ms);

/**
 * Make this rank's next collective call fail on all ranks: for a caller that cannot make the
 * arguments of a call in which the others already wait. Local. The rank then makes the call, with
 * any arguments that do not crash, such as NULL or 0. Of these only the comm, the plan and the
 * options' `timeout_ms` are used, so the last should be the same as on the other ranks.
 *
 * It applies to one call, the next of those that fail on all ranks without breaking the comm:
 * xfer_plan_create(), xfer_plan_create_exchange(), xfer_plan_commit(), xfer_plan_digest(),
 * xfer_plan_check_replicas(), xfer_plan_release(), xfer_redistribute(), xfer_exchange(),
 * xfer_comm_register(), xfer_comm_unregister(). The call returns XFER_ERR_ARG here, with `why` as
 * its text, and XFER_ERR_PEER elsewhere. For a run use xfer_plan_refuse().
 *
 * @param comm  The comm, or that of the plan.
 * @param why   A sentence; it is copied. The other ranks see its first 200 bytes, after this rank's
 *              number.
 * @retval XFER_ERR_ARG  An argument is NULL.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_refuse(xfer_comm *comm, const char *why);

/**
 * Report whether a call of xfer_redistribute() or xfer_exchange() that returned XFER_OK has failed
 * since, as far as this rank knows, or whether the comm is broken. Local; does not ask the device,
 * and waits only for what a failed run may still do here, as a failed wait does. On a device such a
 * call returns before its work is done: once the stream has been waited for, this says whether the
 * data has arrived here. Whether others have read what this rank sent shows when they have, or at
 * the deadline. A caller that does not ask learns of the failure from the next such call, which
 * then fails on all ranks; if there is none, never, since the stream goes on after a run's deadline
 * has passed.
 *
 * A failure is reported once, and the next call of its kind works again unless the comm is broken.
 *
 * @param comm  The comm. Over MPI only the thread that makes its other calls may ask.
 * @retval XFER_ERR_COMM     The comm is broken, and the text says why; or messages of a call were
 *                           cancelled together with those of another run that failed.
 * @retval XFER_ERR_TIMEOUT  A rank did not take part in a call in time; its destination may be
 * torn.
 * @retval XFER_ERR_PEER     A rank failed in a call; likewise.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_check(xfer_comm *comm);

/** Allocate `n_bytes` of memory, aligned to 16 bytes; NULL if there is none. */
typedef void *(*xfer_alloc_fn)(void *context, size_t n_bytes);
/** Free memory that the xfer_alloc_fn beside it gave. */
typedef void (*xfer_free_fn)(void *context, void *memory);

/**
 * Take the comm's staging memory from the caller, for example from torch's caching allocator.
 * Local.
 *
 * The plans of a comm share one block, as large as the most demanding of them needs; a plan whose
 * data goes directly needs none. From here on a commit that needs a larger block calls `alloc`,
 * after waiting for what uses the present one. `free` is called for a block that came from `alloc`
 * once nothing can touch it any more: by a commit that replaced it, or when the last plan is
 * released or destroyed. xfer_comm_destroy() destroys the plans that the comm itself keeps, so
 * `context` must outlive the comm. A plan with XFER_PLAN_STAGED has a block of its own besides,
 * which goes with its release or its end, and so do the copies of sources that xfer_redistribute()
 * lets peers read. A block that a failed run may still touch is never freed.
 *
 * @param comm     The comm. If it has a CUDA device, the block is memory of that device, which is
 *                 the current one in both calls.
 * @param alloc    NULL, with `free` NULL too: the library's own allocation, the default.
 * @param free     Both are called by the thread that is in a call of the library.
 * @param context  Passed to both; not owned.
 * @retval XFER_ERR_ARG  The comm is NULL, or only one of the two functions is.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_set_staging(xfer_comm *comm, xfer_alloc_fn alloc,
                                                           xfer_free_fn free, void *context);

/**
 * Gather `n_bytes` from every rank on every rank. Collective; blocks until all ranks have arrived.
 * For small control data.
 *
 * Failure: any failure breaks the comm, so that no rank waits for one whose arguments are wrong.
 *
 * @param comm     The comm.
 * @param all      [size * n_bytes] Receives the bytes, by rank. Host memory.
 * @param mine     [n_bytes] This rank's. Host memory.
 * @param n_bytes  The same on every rank; 0: a barrier.
 * @retval XFER_ERR_ARG       An argument is NULL.
 * @retval XFER_ERR_OVERFLOW  size * n_bytes does not fit in the address space.
 * @retval XFER_ERR_MISMATCH  Ranks give different sizes, or are in different calls.
 * @retval XFER_ERR_COMM      Another rank failed; the text names it and quotes its own.
 * @retval XFER_ERR_TIMEOUT   A rank did not arrive before the deadline.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_all_gather(xfer_comm *comm, void *all,
                                                          const void *mine, size_t n_bytes);

/**
 * Map this rank's memory on its peers and keep it mapped, so that xfer_redistribute() and
 * xfer_exchange() write straight into it call after call. Collective. Plans do not need it, and on
 * a host comm there is nothing to map.
 *
 * @param comm     The comm.
 * @param memory   An address in one allocation of this rank's device: that allocation is mapped,
 *                 and must live until it is unregistered or the comm destroyed. NULL: this rank has
 *                 nothing to register in this call. Of memory that is mapped chunk by chunk each
 *                 chunk is an allocation.
 * @retval XFER_ERR_ARG  Memory that copies of this device cannot use.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_register(xfer_comm *comm, void *memory);
/**
 * Undo one call of xfer_comm_register(), the first in which every rank passed what it passes now.
 * The mappings of that call are closed on all ranks, and the memory may be freed. Memory that was
 * registered twice stays mapped until both calls are undone. Collective.
 *
 * @param comm    The comm.
 * @param memory  What this rank passed to that call, NULL included.
 * @retval XFER_ERR_ARG       This rank registered no such address in a call that is not undone.
 * @retval XFER_ERR_MISMATCH  In no single call did all ranks pass what they pass now; nothing was
 *                            undone.
 * @retval XFER_ERR_TIMEOUT   It was undone, but an earlier xfer_redistribute() or xfer_exchange()
 *                            that had returned XFER_OK has failed since. Likewise XFER_ERR_PEER and
 *                            XFER_ERR_COMM.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_unregister(xfer_comm *comm, void *memory);

/* ---- one tensor, one call ----------------------------------------------------------------- */

/**
 * Move one tensor from its source layout to its destination layout.
 *
 * Collective over all ranks of the comm, also those in neither mesh. The comm keeps the plan, and
 * uses it again when all ranks pass what they passed to one earlier call, apart from addresses. It
 * keeps the last 64 plans of this function and of xfer_exchange(); the one that has not been used
 * for the longest time goes first.
 *
 * Data goes straight into the peers' memory if ranks are threads, or if all ranks' memory was
 * registered by xfer_comm_register(). Otherwise GPUs that reach each other's memory read it from a
 * copy of the source part, in memory of the comm that they keep mapped: at most 512 MiB on each
 * rank for all kept plans together. Where the same call is made again before its peers have read
 * the copy, there are two from then on, used by turns, if there is room. What finds no room takes
 * that of plans that none of the last 64 calls has used, and of such second copies. Where processes
 * share a GPU there is one copy, and the call waits until the last one has been read. Everything
 * else goes through staging slots; so does a whole plan if a rank has no memory for its copies.
 *
 * Stream: starts after what is already on `stream`. Later work on it may write the source, and sees
 * the result if the data arrived, which xfer_comm_check() says. On a host comm the data has arrived
 * when the call returns.
 *
 * @param comm        The comm; every rank of both meshes must be one of its ranks.
 * @param src_layout  Source; NULL on a rank that does not know it, if another rank does.
 * @param src_view    Where this rank's source part lies; may be NULL where it has none.
 * @param dst_layout  Destination, of the same shape and dtype; NULL likewise.
 * @param dst_view    Where this rank's destination part lies; may be NULL where it has none.
 * @param stream      A CUDA stream; NULL: the default stream. Ignored by host comms.
 * @retval XFER_ERR_MISMATCH  Ranks disagree about the layouts. Nothing was moved.
 * @retval XFER_ERR_SHAPE     The layouts or views do not fit. Nothing was moved.
 * @retval XFER_ERR_ARG       A layout names a rank that the comm does not have, a view is wrong by
 *                            itself, or copies cannot use its memory. Nothing was moved.
 * @retval XFER_ERR_STATE     A rank holds a part and passed no view; the text calls the tensor
 *                            number 0 of the plan. Nothing was moved.
 * @retval XFER_ERR_PEER      Another rank failed before anything was moved.
 * @retval XFER_ERR_TIMEOUT   A rank did not take part in time; the destination may be torn.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status
xfer_redistribute(xfer_comm *comm, const xfer_layout *src_layout, const xfer_view *src_view,
                  const xfer_layout *dst_layout, const xfer_view *dst_view, xfer_stream stream);

#ifdef __cplusplus
}
#endif
#endif
