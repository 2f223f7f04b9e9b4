/*
 * What ranks of a domain pass on to each other, so that it crosses to the domain once: a plan
 * inside the plan (plan/relay.c has its moves), with lanes, flags and slots of its own. It reads
 * and writes the destinations of its plan, or their shadows, and runs on the same stream after its
 * plan's lanes: so a rank that says READY in it has all that came to it from elsewhere.
 */
#include "alloc.h"
#include "error.h"
#include "lanes.h"

xfer_status xfi_run_relay_create(xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfer_plan *r = xfi_calloc(1, sizeof *r);

  XFI_CHECK(r != NULL, XFER_ERR_NOMEM, "relays");
  plan->relay = r;
  r->main = plan;
  r->moves = plan->moves->relay;
  r->options = plan->options;
  r->options.lane = XFER_LANE_AUTO; /* of what crosses it may be another */
  r->options.flags = 0;
  r->of = plan->of;
  r->comm = plan->comm;
  r->device = plan->device;
  r->bindings = xfi_calloc(r->moves->n_tensors, sizeof *r->bindings); /* it uses its plan's */
  XFI_CHECK(r->bindings != NULL, XFER_ERR_NOMEM, "%zu tensors", r->moves->n_tensors);
  XFI_TRY(xfi_run_fill_converts(r));
  if (r->of == NULL) return XFER_OK;
  r->number = r->of->n_created++;
  XFI_TRY(r->device->ops->event_create(r->device, &r->started));
  XFI_TRY(r->device->ops->event_create(r->device, &r->finished));
done:
  return st;
}

xfer_status xfi_run_relay_commit(xfer_plan *plan)
{
  xfer_plan *r = plan->relay;

  r->keeps_lanes = false;
  r->state = xfi_state_after(r->state, XFI_CALL_BIND, XFI_ENDED);
  return xfi_run_commit(r);
}

/* ---- figures ---- */

/* Peers of `list` that are not in `other`. */
static uint64_t more_peers(const xfi_move_list *list, const xfi_move_list *other)
{
  uint64_t n = 0;

  for (size_t p = 0; p < list->n_peers; p++)
    n += xfi_run_find_peer(other, list->peers[p].rank) == other->n_peers;
  return n;
}

static uint64_t crossed_bytes(const xfi_plan *m)
{
  const int64_t size = m->options.ranks_per_domain;
  uint64_t n = 0;

  for (size_t p = 0; size > 0 && p < m->recvs.n_peers; p++)
    if (m->recvs.peers[p].rank / size != m->rank / size) n += m->recvs.peers[p].n_bytes;
  return n;
}

void xfi_run_relay_report(const xfer_plan *plan, xfer_plan_report_data *r)
{
  const xfi_plan *m = plan->moves;
  const xfi_plan *relay = m->relay;

  r->crossed_bytes = crossed_bytes(m);
  if (relay == NULL) return;
  r->n_moves += relay->recvs.n_moves + relay->sends.n_moves;
  r->out_bytes += relay->out_bytes;
  r->n_recv_peers += more_peers(&relay->recvs, &m->recvs);
  r->n_send_peers += more_peers(&relay->sends, &m->sends);
  for (size_t p = 0; p < relay->recvs.n_peers; p++)
    r->relayed_bytes += relay->recvs.peers[p].n_bytes;
}
