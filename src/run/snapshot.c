/*
 * Snapshots: mirrors of the sources that peers read in place of the sources. If bound memory may be
 * freed or moved before the next run, no peer may keep it mapped; but peers keep snapshots mapped.
 * A run is then a copy within each rank, followed by the direct lane, which pulls everything; and a
 * commit at other addresses involves no other rank.
 *
 * What stays on a rank is read from the sources, and so is what goes in messages to peers that
 * cannot map snapshots.
 */
#include "alloc.h"
#include "direct.h"
#include "error.h"
#include "lanes.h"
#include "local.h"
#include "peers.h"
#include "run.h"

/* All snapshots of a comm's plans may take one half of max_staging_bytes. */
enum { CAP_PART = 2 };

static uint64_t cap(const xfer_plan *plan)
{
  return plan->options.max_staging_bytes / CAP_PART;
}

/* Might any peer read a snapshot? */
static bool sends(const xfer_plan *plan)
{
  const xfi_moves *m = plan->moves;

  return m->sends.n_peers > 0 && xfi_plan_n_broadcast(plan) < m->n_tensors;
}

/* The size of a plan's snapshot. Which tensors peers will read is known only later, so all count.
 */
static uint64_t needed(const xfer_plan *plan)
{
  return sends(plan) ? xfi_mirror_bytes(plan, XFI_SIDE_SRC) : 0;
}

/* A plan that has no snapshot yet needs room for two, since a second plan may take turns with it
 * (plan_cache.c): with one snapshot alone messages would be faster, if the comm has any. */
bool xfi_snapshot_fits(const xfer_plan *plan)
{
  const uint64_t others = plan->plans->snapshot_bytes - xfi_snapshot_bytes(plan);
  const uint64_t n = plan->lanes.uses_snapshots || plan->comm->ops->round == NULL ? 1 : 2;

  if (!plan->is_transient || !plan->device->ops->pulls) return false;
  return others + n * needed(plan) <= cap(plan);
}

bool xfi_run_awaits_readers(const xfer_plan *plan)
{
  const xfi_deadline now = {0};

  return plan->lanes.snapshot != NULL && !plan->lanes.shares_gpu &&
         xfi_event_sync(plan->device, plan->run.finished, now) == XFER_ERR_TIMEOUT;
}

bool xfi_plan_fits_twice(const xfer_plan *plan)
{
  return plan->plans->snapshot_bytes + needed(plan) <= cap(plan);
}

uint64_t xfi_snapshot_bytes(const xfer_plan *plan)
{
  return plan->lanes.snapshot == NULL ? 0 : plan->lanes.snapshot->block.n_bytes;
}

/* Mark in is_read[n_tensors] which tensors some peer reads here; false: none. */
static bool mark_read(bool *is_read, const xfer_plan *plan)
{
  const xfi_move_list *sends = &plan->moves->sends;
  bool any = false;

  for (size_t i = 0; i < sends->n_peers; i++) {
    const xfi_peer *peer = &sends->peers[i];

    if (!xfi_direct_carries(plan->lanes.direct, true, i)) continue;
    for (size_t k = peer->first; k < peer->first + peer->n; k++)
      any = is_read[sends->moves[k].tensor] = true;
  }
  return any;
}

/* Move the copies of the local lane into the snapshot's batch, unless launches read that batch:
 * then a commit at other addresses would have to wait for the run in flight. */
static xfer_status take_local(xfer_plan *plan, const bool *is_read)
{
  xfi_mirror *snapshot = plan->lanes.snapshot;

  snapshot->has_local = true;
  XFI_TRY(xfi_mirror_prepare(snapshot, plan, is_read));
  snapshot->has_local = !xfi_batch_is_read(plan->device, snapshot->copy);
  if (!snapshot->has_local) return xfi_mirror_prepare(snapshot, plan, is_read);
  xfi_local_join(plan);
  return XFER_OK;
}

xfer_status xfi_snapshot_rebind(xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  bool *is_read = NULL;

  if (plan->lanes.snapshot == NULL) return XFER_OK;
  is_read = xfi_calloc(plan->moves->n_tensors, sizeof *is_read);
  XFI_CHECK(is_read != NULL, XFER_ERR_NOMEM, "%zu tensors", plan->moves->n_tensors);
  if (mark_read(is_read, plan) && xfi_local_may_join(plan))
    st = take_local(plan, is_read);
  else
    st = xfi_mirror_prepare(plan->lanes.snapshot, plan, is_read);
  xfi_free(is_read);
  return st;
}

/* Not for a plan with a relay, or for the relay: a relay forwards what has arrived, so it has to
 * come after the waits on the same stream. */
xfer_status xfi_snapshot_wait_apart(const xfer_plan *plan, xfer_stream *stream)
{
  const xfi_mirror *snapshot = plan->lanes.snapshot;

  if (snapshot == NULL || plan->relay != NULL || plan->main != NULL) return XFER_OK;
  XFI_TRY(xfi_event_record(plan->device, snapshot->event, *stream));
  XFI_TRY(xfi_stream_wait(plan->device, snapshot->stream, snapshot->event));
  *stream = snapshot->stream;
  return XFER_OK;
}

xfer_status xfi_snapshot_create(xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  if (sends(plan)) st = xfi_mirror_create(&plan->lanes.snapshot, plan, XFI_SIDE_SRC);
  plan->plans->snapshot_bytes += xfi_snapshot_bytes(plan);
  return st;
}

void xfi_snapshot_destroy(xfer_plan *plan)
{
  plan->plans->snapshot_bytes -= xfi_snapshot_bytes(plan);
  xfi_mirror_destroy(&plan->lanes.snapshot, plan);
}
