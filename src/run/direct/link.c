/*
 * Links: to which peers this rank has one, where a peer's memory is mapped here, and a walk over
 * the moves that go over a link. All of it is local to a rank; link_map.c has what ranks exchange.
 */
#include "link.h"

#include <string.h>

#include "alloc.h"
#include "error.h"
#include "peers.h"

/* A rank exchanges "much" with a peer if it is more than this part of what it exchanges with the
 * peer with which it exchanges most. */
enum { MUCH_PART = 16 };

/* ---- which links there are ---- */

/* The value of xfi_link_transfer.peer: the peer's index, or XFI_NO_TRANSFER if the plan may not
 * carry anything directly. */
static size_t transfer_index(const xfer_plan *plan, bool send, size_t peer)
{
  const xfi_move_list *list = xfi_plan_moves(plan, send);
  const uint32_t lane = plan->options.lane;
  /* No peer may keep bound memory mapped, and there are messages, which are used without snapshots.
   */
  const bool lends_nothing = plan->is_transient && plan->comm->ops->round != NULL;

  if (((lane == XFER_LANE_PACKED || lends_nothing) && !plan->lanes.uses_snapshots) ||
      lane == XFER_LANE_BROADCAST || peer == list->n_peers)
    return XFI_NO_TRANSFER;
  return xfi_plan_has_unicast(plan, &list->peers[peer]) ? peer : XFI_NO_TRANSFER;
}

static uint64_t transfer_bytes(const xfi_link *link, const xfer_plan *plan, bool send)
{
  const size_t peer = link->transfer[send].peer;

  if (peer == XFI_NO_TRANSFER) return 0;
  return xfi_plan_unicast_bytes(plan, send, &xfi_plan_moves(plan, send)->peers[peer]);
}

static int by_rank(const void *a, const void *b)
{
  const int32_t *x = a;
  const int32_t *y = b;

  return (*x > *y) - (*x < *y);
}

static bool has_transfers(const xfi_links *links, bool send)
{
  for (size_t i = 0; i < links->n; i++)
    if (links->at[i].transfer[send].peer != XFI_NO_TRANSFER) return true;
  return false;
}

/* Fill links->ranks[send]. A rank that both sends and receives counts as its own peer, even if it
 * keeps nothing: so ranks that exchange with the same peers and with each other have equal lists.
 */
static xfer_status list_ranks(xfi_links *links, const xfer_plan *plan, bool send)
{
  const bool both_ways = has_transfers(links, true) && has_transfers(links, false);
  const uint64_t kept = plan->moves->self_bytes;
  xfi_ranks *ranks = &links->ranks[send];
  uint64_t most = kept;

  ranks->at = xfi_calloc(links->n + 1, sizeof *ranks->at);
  if (ranks->at == NULL) return XFI_NO_MEMORY("%zu peers", links->n);
  for (size_t i = 0; i < links->n; i++) {
    const uint64_t n_bytes = transfer_bytes(&links->at[i], plan, send);

    if (n_bytes > most) most = n_bytes;
  }
  for (size_t i = 0; i < links->n; i++)
    if (transfer_bytes(&links->at[i], plan, send) > most / MUCH_PART)
      ranks->at[ranks->n++] = links->at[i].rank;
  if (both_ways || kept > most / MUCH_PART) ranks->at[ranks->n++] = plan->moves->rank;
  xfi_sort(ranks->at, ranks->n, sizeof *ranks->at, by_rank);
  return XFER_OK;
}

xfer_status xfi_links_list(xfi_links *links, xfer_plan *plan, const xfi_near *near)
{
  const xfi_moves *m = plan->moves;

  links->at = xfi_comm_calloc(plan->comm, (size_t)m->n_ranks, sizeof *links->at);
  links->messages = xfi_comm_calloc(plan->comm, 2 * (size_t)m->n_ranks, sizeof *links->messages);
  XFI_CHECK(links->at != NULL && links->messages != NULL, XFER_ERR_NOMEM, "%d ranks", m->n_ranks);
  for (int distance = 1; distance < m->n_ranks; distance++) {
    const int rank = (m->rank + distance) % m->n_ranks;
    const size_t send = xfi_peer_find(&m->sends, rank);
    const size_t recv = xfi_peer_find(&m->recvs, rank);
    const bool is_linked = near[rank] == XFI_SAME_DEVICE ||
                           xfi_plan_n_broadcast(plan) > 0 || /* in which all take part */
                           send < m->sends.n_peers || recv < m->recvs.n_peers;

    if (near[rank] == XFI_FAR || !is_linked) continue;
    links->at[links->n] = (xfi_link){.rank = rank,
                                     .transfer = {{.peer = transfer_index(plan, false, recv)},
                                                  {.peer = transfer_index(plan, true, send)}},
                                     .near = near[rank],
                                     .links = links};
    const int n_transfers = (links->at[links->n].transfer[0].peer != XFI_NO_TRANSFER) +
                            (links->at[links->n].transfer[1].peer != XFI_NO_TRANSFER);
    links->counts.n_links += n_transfers > 0;
    links->counts.n_both += n_transfers == 2;
    links->n++;
  }
  return XFER_OK;
}

xfer_status xfi_links_list_ranks(xfi_links *links, const xfer_plan *plan)
{
  XFI_TRY(list_ranks(links, plan, false));
  return list_ranks(links, plan, true);
}

/* ---- the peer's memory ---- */

bool xfi_link_is_mapped(const xfi_link *link, int sides)
{
  for (size_t p = 0; p < link->n_locations; p++)
    if ((sides & xfi_link_side_of(link, p)) != 0 &&
        link->remotes[link->locations[p][0]].mapped == NULL)
      return false;
  return true;
}

void xfi_link_resolve(xfi_link *link)
{
  const uint64_t(*location)[2] = (const uint64_t(*)[2])link->locations;

  for (size_t i = 0; i < link->n_bounds; i++) {
    xfi_bound *b = &link->bounds[i];
    char **piece = b->pieces != NULL ? b->pieces : &b->only;

    for (int64_t p = 0; p < b->n_pieces; p++, location++) {
      const xfi_mapping *mapped = link->remotes[(*location)[0]].mapped;

      if (mapped != NULL) piece[p] = mapped->base + (*location)[1];
    }
  }
}

void xfi_remote_unmap(xfi_remote *remote, xfi_device *device)
{
  if (remote->mapped != NULL) device->ops->mem_unimport(device, remote->mapped);
  remote->mapped = NULL;
}

bool xfi_link_drop_sources(xfi_link *link, xfi_device *device)
{
  bool any = false;

  for (size_t r = 0; r < link->n_remotes; r++) {
    xfi_remote *remote = &link->remotes[r];

    if ((remote->sides & XFI_SIDE_SRC) == 0) continue;
    if ((remote->sides & xfi_link_sides_used(link) & XFI_SIDE_DST) != 0) continue;
    any = any || remote->mapped != NULL;
    xfi_remote_unmap(remote, device);
  }
  return any;
}

void xfi_links_destroy(xfi_links *links, xfi_device *device)
{
  for (size_t i = 0; links->at != NULL && i < links->n; i++) {
    xfi_link *link = &links->at[i];

    if (link->page != NULL && device->ops->flags_share != NULL)
      device->ops->flags_free(device, link->page);
    for (size_t r = 0; link->remotes != NULL && r < link->n_remotes; r++)
      xfi_remote_unmap(&link->remotes[r], device);
    for (size_t b = 0; link->bounds != NULL && b < link->n_bounds; b++)
      xfi_bound_clear(&link->bounds[b]);
    xfi_free(link->their_ranks[0].at);
    xfi_free(link->their_ranks[1].at);
    xfi_free(link->advertised);
    xfi_free(link->remotes);
    xfi_free(link->bounds);
    xfi_free(link->locations);
    xfi_bytes_free(&link->send_buffer);
    xfi_bytes_free(&link->recv_buffer);
  }
  xfi_free(links->ranks[0].at);
  xfi_free(links->ranks[1].at);
  xfi_free(links->at);
  xfi_free(links->messages);
}

const xfi_link *xfi_links_find(const xfi_links *links, bool send, size_t peer)
{
  for (size_t i = 0; i < links->n; i++)
    if (links->at[i].transfer[send].peer == peer) return &links->at[i];
  return NULL;
}

xfi_walk xfi_walk_begin(const xfer_plan *plan, const xfi_link *link, bool send)
{
  const xfi_move_list *list = xfi_plan_moves(plan, send);
  const xfi_peer *peer = &list->peers[link->transfer[send].peer];
  const xfi_move *first = &list->moves[peer->first];

  return (xfi_walk){
      .plan = plan, .link = link, .send = send, .next = first, .end = first + peer->n};
}

bool xfi_walk_next(xfi_walk *w, xfer_status *st)
{
  const xfi_bound *theirs = w->link->bounds + (w->send ? w->link->n_src_bounds : 0);
  const size_t n_theirs =
      w->send ? w->link->n_bounds - w->link->n_src_bounds : w->link->n_src_bounds;
  const xfi_move *last = w->move;

  do {
    if (w->next == w->end) return false;
    w->move = w->next++;
    w->cls = xfi_moves_class(w->plan->moves, w->move->tensor);
  } while (xfi_plan_broadcasts(w->plan, w->cls));
  if (last == NULL || last->tensor != w->move->tensor) w->n_tensors++;
  if (w->n_tensors > n_theirs) {
    xfi_set_error("rank %d did not describe tensor %u", w->link->rank, w->move->tensor);
    *st = XFER_ERR_INTERNAL;
    return false;
  }
  theirs += w->n_tensors - 1;
  w->boxes = xfi_class_flows(w->cls, w->send);
  xfi_move_box(&w->box, w->cls, w->boxes, w->move);
  w->src.bound = w->send ? xfi_plan_exported_src(w->plan, w->move->tensor) : theirs;
  w->dst.bound = w->send ? theirs : xfi_plan_dst(w->plan, w->move->tensor);
  memcpy(w->src.start, w->box.src_local, sizeof w->src.start);
  memcpy(w->dst.start, w->box.dst_local, sizeof w->dst.start);
  return true;
}
