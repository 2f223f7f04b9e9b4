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
 * Make a comm whose ranks are threads of this process; memory is host memory.
 *
 * @param comms    [n_ranks] Receives one handle per rank. Each is destroyed by its owner.
 * @param n_ranks  At least 1.
 * @retval XFER_ERR_ARG    `comms` is NULL, or `n_ranks` is below 1.
 * @retval XFER_ERR_NOMEM  Out of memory. No comm was made.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_local(xfer_comm **comms, int n_ranks);

/**
 * Give every rank `n_bytes` of each rank, in host memory. Like MPI_Allgather, and easily made of
 * it.
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
 * host memory. Data and control go through memory that the ranks share, a file without a name of
 * each, which they hand to each other over sockets; these stay, two between each two ranks, and
 * tell of a process that ends. What a plan moves between threads of one process is copied straight.
 *
 * Collective: all `size` ranks. Calls `all_gather` three times and not afterwards, and returns when
 * every rank has come.
 * Stream: none.
 * Threads: safe.
 * Failure: a process that ends, or a rank that misses a deadline, ends the waits of all others with
 * an error that names it; children that it forked do not stand for it, where the system has pidfds.
 * The comm is broken then; the others may make another one.
 *
 * @param comm        Receives the comm; the caller owns it.
 * @param all_gather  Called by this thread, the same number of times and sizes on every rank.
 * @param context     Passed to it.
 * @param rank        This rank, 0 to size - 1.
 * @param size        The number of ranks.
 * @retval XFER_ERR_ARG    An argument is NULL, or `rank` or `size` is out of range. Found before
 * the others are asked: the rank returns alone, as it does without memory for what they say.
 * @retval XFER_ERR_COMM   `all_gather` failed, or did not put each rank's bytes at its place, as
 * where two have one number; or a rank cannot be reached: it is on another host; or the system
 * gives no memory to share, as where files may not be so large (RLIMIT_FSIZE), or no more files
 * (RLIMIT_NOFILE): a rank needs three for each other one, and two to spare.
 * @retval XFER_ERR_TIMEOUT  A rank that had come stood still for 10 minutes, or this one was
 * interrupted (xfer_interrupt_set).
 * @retval XFER_ERR_NOMEM  Out of memory.
 * @retval XFER_ERR_PEER   Another rank failed; the text names it and quotes its own.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_host(xfer_comm **comm,
                                                           xfer_all_gather_fn all_gather,
                                                           void *context, int rank, int size);

/** Give a comm back; NULL is fine. Where a plan is left, by a slip, it ends with the last of them,
 * and the others do not hear of it before. Not collective: over MPI it waits for
 * the others, and over NCCL for those of its host, for 2 seconds at most, and what they still hold
 * up ends without it; over MPI a communicator that they have not given back by then is lost. */
XFER_API void xfer_comm_destroy(xfer_comm *comm);
/** This rank; of NULL -1. */
XFER_API int xfer_comm_rank(const xfer_comm *comm);
/** The number of ranks; of NULL 0. */
XFER_API int xfer_comm_size(const xfer_comm *comm);

/**
 * Set the deadline of each wait in the comm's own calls (xfer_comm_all_gather(),
 * xfer_comm_register(), xfer_redistribute(), xfer_exchange()), and of plans that are made from here
 * on without one of their own. Local; the same on every rank, which planning compares.
 *
 * @param comm        The comm.
 * @param timeout_ms  0: 600000, as it was.
 * @retval XFER_ERR_ARG  More than 2^63 - 1.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_set_timeout(xfer_comm *comm, uint64_t timeout_ms);

/**
 * Let the next collective call of this rank fail on all ranks: what a caller does who cannot make
 * that call's arguments, and must not leave the others waiting in it. Local; the rank then makes
 * the call, with any arguments that would not crash: NULL, or 0. Of these only the comm, the plan
 * and the options' `timeout_ms` count, so the last is to be the others'.
 *
 * It counts for one call of those that fail on all ranks without breaking the comm:
 * xfer_plan_create(), xfer_plan_create_exchange(), xfer_plan_commit(), xfer_plan_digest(),
 * xfer_plan_check_replicas(), xfer_plan_release(), xfer_redistribute(), xfer_exchange(),
 * xfer_comm_register(), xfer_comm_unregister(). That is XFER_ERR_ARG here, with `why` as its text,
 * and XFER_ERR_PEER elsewhere. For a run see xfer_plan_refuse().
 *
 * @param comm  The comm, or that of the plan.
 * @param why   A sentence, which is copied; 200 bytes of it come to the others, after this rank's
 *              number.
 * @retval XFER_ERR_ARG  An argument is NULL.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_refuse(xfer_comm *comm, const char *why);

/**
 * Has one of the calls of xfer_redistribute() and xfer_exchange() failed that returned XFER_OK, as
 * far as is known on this rank; or is the comm broken? Local; asks no device, and waits only for
 * what a run that failed may still do here, as a wait that fails does. On a device such a call
 * returns before its work is done: once the stream was waited for, this says whether the data has
 * come. Who does not ask is told by the next such call, where it fails on all ranks, or never if
 * there is none: a run whose deadline passes lets the stream go on.
 *
 * A call that failed is told once, and the next of its kind works, unless the comm is broken.
 *
 * @param comm  The comm. Over MPI from the thread that makes its calls, as all of them.
 * @retval XFER_ERR_COMM     The comm is broken, and the text says why; or messages of a call were
 *                           ended with those of another run that failed.
 * @retval XFER_ERR_TIMEOUT  A rank did not take part in a call in time; its destination may be
 * torn.
 * @retval XFER_ERR_PEER     A rank failed in one; likewise.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_check(xfer_comm *comm);

/** Give `n_bytes` of memory, aligned to 16 bytes; NULL: there are none. */
typedef void *(*xfer_alloc_fn)(void *context, size_t n_bytes);
/** Take memory back. */
typedef void (*xfer_free_fn)(void *context, void *memory);

/**
 * Let the comm's staging memory come from the caller, as from torch's caching allocator. Local.
 *
 * The plans of a comm share one block, as large as the plan needs that needs most; a plan whose
 * data goes directly needs none. From here on a commit that needs a larger block than there is
 * calls `alloc`, and what uses the block before is waited for. The commit, or the last plan that is
 * released or destroyed, calls `free` of a block that came from `alloc`, when nothing is on its way
 * there any more; xfer_comm_destroy() does so for the plans that the comm keeps, so `context`
 * outlives the comm. What XFER_PLAN_STAGED needs is a block of each plan's own, which goes with its
 * release or its end, and so are the copies of sources that xfer_redistribute() lets peers read. A
 * block that a failed run may still touch is never given back.
 *
 * @param comm     The comm; on one with a CUDA device the block is that device's memory, which is
 *                 current in both calls.
 * @param alloc    NULL, with `free`: the library's own, as it was.
 * @param free     Called by the thread that calls the library.
 * @param context  Passed to both.
 * @retval XFER_ERR_ARG  The comm is NULL, or one function of two.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_set_staging(xfer_comm *comm, xfer_alloc_fn alloc,
                                                           xfer_free_fn free, void *context);

/**
 * Give every rank n_bytes of each rank. Collective; blocks. For small control data.
 *
 * Failure: any breaks the comm, so that no rank waits for one whose arguments are wrong.
 *
 * @param comm     The comm.
 * @param all      [size * n_bytes] Receives the bytes, by rank. Host memory.
 * @param mine     [n_bytes] This rank's. Host memory.
 * @param n_bytes  The same on every rank; 0: the ranks meet.
 * @retval XFER_ERR_ARG       An argument is NULL.
 * @retval XFER_ERR_OVERFLOW  All of it does not fit in memory's addresses.
 * @retval XFER_ERR_MISMATCH  Ranks give other sizes, or are in other calls.
 * @retval XFER_ERR_COMM      Another rank failed; the text names it and quotes its own.
 * @retval XFER_ERR_TIMEOUT   A rank did not come.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_all_gather(xfer_comm *comm, void *all,
                                                          const void *mine, size_t n_bytes);

/**
 * Let the peers map memory now and keep it mapped, so that xfer_redistribute() can write straight
 * into it call after call. Collective; plans do not need it. On a host comm there is nothing to do.
 *
 * @param comm     The comm.
 * @param memory   In one allocation of this device, which must live until it is unregistered or the
 *                comm destroyed; NULL: this rank has nothing to register in this call. Of memory
 *                that is mapped chunk by chunk each chunk is an allocation.
 * @retval XFER_ERR_ARG  Memory that the device's copies cannot use.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_register(xfer_comm *comm, void *memory);
/**
 * Undo one call of xfer_comm_register(), the first in which every rank named what it names now: the
 * mappings of all ranks' memory are closed, and the memory may be freed. Memory that was registered
 * twice stays mapped until both calls are undone. Collective.
 *
 * @param comm    The comm.
 * @param memory  What this rank registered in that call; NULL likewise.
 * @retval XFER_ERR_ARG       It was not registered.
 * @retval XFER_ERR_MISMATCH  There is no such call; nothing was undone.
 * @retval XFER_ERR_TIMEOUT   A call of xfer_redistribute() or xfer_exchange() before it failed
 * after it had returned; it was undone. Likewise XFER_ERR_PEER and XFER_ERR_COMM.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_unregister(xfer_comm *comm, void *memory);

/* ---- one tensor, one call ----------------------------------------------------------------- */

/**
 * Move one tensor from its source layout to its destination layout.
 *
 * Collective over all ranks of the comm, also those in neither mesh. The plan is kept with the comm
 * and found again where all ranks hand over what they did in one earlier call, but for the
 * addresses: the last 64 of this and of xfer_exchange(), of which the one that was not used for
 * longest goes first.
 * Data goes straight into the peers' memory where ranks are threads, and where all ranks' memory
 * was registered by xfer_comm_register(). Else GPUs that reach each other's memory read it from a
 * copy of the source part, in memory of the comm's that they keep mapped: on no rank more than 256
 * MiB for all kept plans together. A plan that finds no room there, at its first call or later,
 * takes that of plans that none of the last 64 calls has used. All else goes through slots, as does
 * all of a plan for whose copies a rank gets no memory. Stream: starts after what is already on
 * `stream`; a later reader on it sees the result, if it came: xfer_comm_check() says so. On a host
 * comm the data is there when the call returns.
 *
 * @param comm        The comm; every rank of both meshes must be one of its ranks.
 * @param src_layout  Source; NULL on a rank that does not know it, if some rank does.
 * @param src_view    Where this rank's source part lies; may be NULL where it has none.
 * @param dst_layout  Destination, of the same shape and dtype; NULL likewise.
 * @param dst_view    Where this rank's destination part lies; may be NULL where it has none.
 * @param stream      A CUDA stream; NULL: the default stream. Ignored by host comms.
 * @retval XFER_ERR_MISMATCH  Ranks disagree about the layouts. Nothing was moved.
 * @retval XFER_ERR_SHAPE     The layouts or views do not fit. Nothing was moved.
 * @retval XFER_ERR_ARG       A layout names a rank that the comm does not have, a view is wrong by
 *                            itself, or its memory cannot be used. Nothing was moved.
 * @retval XFER_ERR_STATE     A rank has a part and gave no view; the text calls the tensor the
 *                            plan's 0. Nothing was moved.
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
