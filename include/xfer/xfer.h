/**
 * @file xfer.h
 * Move sharded tensors from any mesh and layout to any other.
 *
 * A *mesh* names the ranks, a *layout* says which elements of a tensor each of them holds, and a
 * *view* says where a rank's part lies in its memory. A *plan* turns the two layouts of each tensor
 * into moves, and a *comm* carries them out. Planning is pure arithmetic on metadata and the same
 * on every rank.
 *
 * These conventions hold for every function unless its comment says otherwise:
 * - It returns XFER_OK (0) or a negative xfer_status; after a failure xfer_last_error() returns one
 * sentence with the values. The function writes an output only on success.
 * - It copies its inputs: for example, a mesh may be destroyed once a layout was made of it.
 * - Options, descriptions and reports begin with their size: start from the _INIT macro of each.
 * - Different threads may use objects of different comms at the same time; a comm, and everything
 * made with it, belongs to one thread at a time. Meshes and layouts never change.
 * - A forked child is not a rank. It may leave its copies of its parent's objects over host memory,
 *   or destroy them, which the other ranks do not notice; it must make no other call on them. Calls
 *   by which ranks meet fail there with XFER_ERR_STATE, and the other ranks do not notice.
 * - "Collective" means: every rank of the comm makes the same calls in the same order. A collective
 *   call agrees on its status before it returns: if one rank fails, all fail, the others with
 *   XFER_ERR_PEER.
 * - Comments list the statuses that are specific to a function. Any function may also return
 *   XFER_ERR_ARG for a NULL that is not allowed, XFER_ERR_NOMEM, and XFER_ERR_UNSUPPORTED for an
 *   option that only a newer library knows. A collective function may also return XFER_ERR_PEER or
 *   XFER_ERR_COMM if another rank failed, XFER_ERR_TIMEOUT if a rank did not arrive, and
 *   XFER_ERR_MISMATCH if ranks are in different calls, or have different versions of this library.
 *
 * Everything in these headers is there since 0.1; what comes later says so with @since.
 *
 * Sizes: bytes are size_t, elements and indices int64_t, ranks int. Intervals are half-open.
 */
#ifndef XFER_XFER_H
#define XFER_XFER_H

#include <xfer/comm.h>
#include <xfer/conversion.h>
#include <xfer/dtype.h>
#include <xfer/exchange.h>
#include <xfer/layout.h>
#include <xfer/plan.h>
#include <xfer/redistribute.h>
#include <xfer/status.h>
#include <xfer/view.h>

#endif
