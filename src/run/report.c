/*
 * What xfer_plan_report() says of a plan: counts and bytes from its moves and, once it is
 * committed, what each lane carries. Local; nothing is changed.
 */
#include "direct.h"
#include "lanes.h"
#include "peers.h"
#include "pipeline.h"
#include "run.h"

/* Add what the lanes of a plan, or of its relay, carry. Both use the same slots, one after the
 * other, so the larger staging counts. */
static void add_lanes(const xfer_plan *plan, xfer_plan_report_data *r)
{
  const xfi_pipeline *p = plan->lanes.pipeline;

  if (plan->lanes.direct != NULL) r->direct_bytes += plan->lanes.direct->bytes;
  if (p == NULL) return;
  r->packed_bytes += p->sent_bytes;
  r->n_rounds += p->n_rounds;
  if (p->staging_bytes > r->staging_bytes) r->staging_bytes = p->staging_bytes;
}

/* Peers of `list` that are not in `other`. */
static uint64_t more_peers(const xfi_move_list *list, const xfi_move_list *other)
{
  uint64_t n = 0;

  for (size_t p = 0; p < list->n_peers; p++)
    n += xfi_peer_find(other, list->peers[p].rank) == other->n_peers;
  return n;
}

static uint64_t crossed_bytes(const xfi_moves *m)
{
  const int64_t size = m->options.ranks_per_domain;
  uint64_t n = 0;

  for (size_t p = 0; size > 0 && p < m->recvs.n_peers; p++)
    if (m->recvs.peers[p].rank / size != m->rank / size) n += m->recvs.peers[p].n_bytes;
  return n;
}

static void add_relay(const xfer_plan *plan, xfer_plan_report_data *r)
{
  const xfi_moves *m = plan->moves;
  const xfi_moves *relay = m->relay;

  r->crossed_bytes = crossed_bytes(m);
  if (relay == NULL) return;
  r->n_moves += relay->recvs.n_moves + relay->sends.n_moves;
  r->out_bytes += relay->out_bytes;
  r->n_recv_peers += more_peers(&relay->recvs, &m->recvs);
  r->n_send_peers += more_peers(&relay->sends, &m->sends);
  for (size_t p = 0; p < relay->recvs.n_peers; p++)
    r->relayed_bytes += relay->recvs.peers[p].n_bytes;
}

void xfi_plan_report(const xfer_plan *plan, xfer_plan_report_data *r)
{
  const xfi_moves *m = plan->moves;

  r->n_tensors = m->n_tensors;
  r->n_classes = m->n_classes;
  r->n_moves = m->selfs.n_moves + m->recvs.n_moves + m->sends.n_moves;
  r->payload_bytes = m->payload_bytes;
  r->in_bytes = m->in_bytes;
  r->self_bytes = m->self_bytes;
  r->zero_bytes = m->zero_bytes;
  r->wire_bytes = m->in_bytes - m->self_bytes - m->zero_bytes;
  r->out_bytes = m->out_bytes;
  r->n_send_peers = m->sends.n_peers;
  r->n_recv_peers = m->recvs.n_peers;
  r->broadcast_tensors = xfi_plan_n_broadcast(plan);
  r->window_bytes = plan->window_bytes;
  r->committed_version = plan->version;
  r->torn = xfi_plan_is_staged(plan)
                ? plan->run.is_half_written
                : plan->run.n_begun != plan->run.n_complete || plan->state == XFI_TORN;
  r->converted_tensors = m->n_converted;
  r->replicated_tensors = m->n_replicated;
  add_lanes(plan, r);
  add_relay(plan, r);
  if (plan->relay != NULL) add_lanes(plan->relay, r);
  if (plan->lanes.pipeline != NULL)
    r->staging_bytes += xfi_staged_bytes(plan) + xfi_snapshot_bytes(plan);
  r->bound_bytes = r->wire_bytes > r->out_bytes ? r->wire_bytes : r->out_bytes;
}

xfer_status xfi_plan_full_report(const xfer_plan *plan, xfer_plan_report_data *r)
{
  uint64_t relay_bytes = 0;

  xfi_plan_report(plan, r);
  if (plan->lanes.pipeline != NULL) return XFER_OK;
  XFI_TRY(xfi_pipeline_estimate(&r->staging_bytes, plan));
  if (plan->relay != NULL) XFI_TRY(xfi_pipeline_estimate(&relay_bytes, plan->relay));
  if (relay_bytes > r->staging_bytes) r->staging_bytes = relay_bytes;
  r->staging_bytes += xfi_staged_bytes(plan);
  return XFER_OK;
}
