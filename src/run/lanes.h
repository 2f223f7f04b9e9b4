/*
 * What a commit makes for a plan, apart from the lanes that have a folder of their own.
 */
#ifndef XFI_LANES_H
#define XFI_LANES_H

#include "plans.h"

/* ---- commit.c ---- */

/* Give back all that commit made. */
void xfi_plan_drop_lanes(xfer_plan *plan);

/* ---- mirror.c ---- */

/* Dense copies, in one block of the plan's own, of everything that this rank has bound on one side.
 * Peers read a mirror in place of the sources (snapshot.c), or the lanes write one in place of the
 * destinations (staged.c). */
struct xfi_mirror {
  xfi_side side;
  xfi_staging_block block;
  bool is_leaked;  /* something may still read or write the block, so it is never freed */
  bool has_local;  /* of a snapshot: `copy` contains the copies of the local lane too */
  xfi_batch *copy; /* from sources to a snapshot, or from staged data to destinations; NULL: none */
  xfer_stream stream; /* stream of the staged copy, or of the waits for a snapshot's readers */
  xfi_event *event;   /* staged data is copied; or, for a snapshot, the caller's stream may go on */
};

/* The bytes of a mirror on this rank, whether or not the plan is committed. */
uint64_t xfi_mirror_bytes(const xfer_plan *plan, xfi_side side);
/* Allocate and bind a mirror. *mirror stays NULL if there is nothing to copy; the caller destroys
 * it also after a failure. */
xfer_status xfi_mirror_create(xfi_mirror **mirror, const xfer_plan *plan, xfi_side side);
/* Make `copy` for what is bound now, of the tensors for which which[n_tensors] is true; NULL: of
 * all tensors. */
xfer_status xfi_mirror_prepare(xfi_mirror *mirror, const xfer_plan *plan, const bool *which);
/* Never free the block. NULL is fine. */
void xfi_mirror_leak(xfi_mirror *mirror);
void xfi_mirror_destroy(xfi_mirror **mirror, xfer_plan *plan);

/* ---- snapshot.c ---- */

/* May the plan use snapshots, and does one fit into this rank's share of max_staging_bytes? */
bool xfi_snapshot_fits(const xfer_plan *plan);
/* Allocate plan->lanes.snapshot for all sources. xfi_snapshot_destroy() frees it also after a
 * failure. */
xfer_status xfi_snapshot_create(xfer_plan *plan);
void xfi_snapshot_destroy(xfer_plan *plan);
uint64_t xfi_snapshot_bytes(const xfer_plan *plan);
/* Make the copies into the snapshot, once it is known which tensors peers read, or after binds. */
xfer_status xfi_snapshot_rebind(xfer_plan *plan);
/* In a run: move the waits for peers that read the snapshot to a stream of its own, after all work
 * on *stream, so that the caller's stream can continue. *stream becomes that stream. */
xfer_status xfi_snapshot_wait_apart(const xfer_plan *plan, xfer_stream *stream);

/* ---- staged.c ---- */

/* Allocate plan->lanes.staged for all destinations, if the plan is staged. The plan frees it, also
 * after a failure. */
xfer_status xfi_staged_create(xfer_plan *plan);
uint64_t xfi_staged_bytes(const xfer_plan *plan);
/* After a run that is complete on all ranks: copy the staged data to the destinations. Collective.
 */
xfer_status xfi_staged_write(xfer_plan *plan, xfi_deadline deadline);

#endif
