/**
 * @file xfer.h
 * Move sharded tensors from any mesh and layout to any other.
 *
 * A *mesh* names the ranks, a *layout* says which elements of a tensor each of them holds, a *view*
 * says where a rank's part lies in its memory. Two layouts of one tensor make a *plan*; a *comm*
 * carries it out. Planning is pure arithmetic on metadata and the same on every rank.
 *
 * Conventions, true of every function unless its comment says otherwise:
 * - It returns XFER_OK (0) or a negative xfer_status; xfer_last_error() then has one sentence with
 * the values. An output is written only on success.
 * - Inputs are copied: a mesh may be destroyed once a layout was made of it.
 * - Options, descriptions and reports begin with their size: start from the _INIT macro of each.
 * - Objects of different comms may be used from different threads at once; one comm and all that
 * was made with it belong to one thread at a time. Meshes and layouts never change once made.
 * - A forked child is not a rank. It may destroy its copies of its parent's objects over host
 *   memory, which the other ranks do not notice, or leave them; it must make no other call on them.
 *   Those by which ranks meet fail with XFER_ERR_STATE, and the other ranks do not notice.
 * - "Collective" means: every rank of the comm makes the same calls in the same order. A collective
 *   call agrees on its status before it returns: if one rank fails, all do, the others with
 *   XFER_ERR_PEER.
 * - Comments list the statuses that are specific to a function. Any may also return XFER_ERR_ARG
 *   for a NULL that is not allowed, XFER_ERR_NOMEM, and XFER_ERR_UNSUPPORTED for an option that
 *   only a newer library knows; and a collective one XFER_ERR_PEER or XFER_ERR_COMM where another
 *   rank failed, XFER_ERR_TIMEOUT where one did not arrive, and XFER_ERR_MISMATCH where ranks are
 *   in different calls, or have different versions of this library.
 *
 * Sizes: bytes are size_t, elements and indices int64_t, ranks int. Intervals are half-open.
 */
#ifndef XFER_XFER_H
#define XFER_XFER_H

#include <xfer/comm.h>
#include <xfer/exchange.h>
#include <xfer/layout.h>
#include <xfer/plan.h>
#include <xfer/status.h>

#endif
