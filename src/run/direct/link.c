/*
 * Making links: find who may be reached, tell each other what our halves look like, map, decide who
 * copies. Both ends have both halves' descriptions and tell each other what they could map, so they
 * decide alike.
 * Who should copy a flow is in link_choose.c. A side that cannot map leaves it to the other; where
 * neither can, the flow takes the packed lane.
 */
#include "link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "bytes.h"
#include "error.h"

/* ---- who may be reached ---- */

/* Moves of a flow that the broadcast lane does not carry. */
static bool has_moves(const xfer_plan *plan, const xfi_move_list *list, size_t peer)
{
  for (size_t i = 0; i < list->peers[peer].n; i++)
    if (!xfi_run_broadcasts(
            plan, xfi_plan_class(plan->moves, list->moves[list->peers[peer].first + i].tensor)))
      return true;
  return false;
}

/* A flow as the link has it. */
static size_t wanted(const xfer_plan *plan, const xfi_move_list *list, size_t peer)
{
  const uint32_t lane = plan->options.lane;
  const bool direct = lane != XFER_LANE_PACKED && lane != XFER_LANE_BROADCAST;

  return direct && peer < list->n_peers && has_moves(plan, list, peer) ? peer : XFI_NO_FLOW;
}

xfer_status xfi_links_list(xfi_links *links, xfer_plan *plan, const xfi_near *near)
{
  const xfi_plan *m = plan->moves;
  xfer_status st = XFER_OK;

  links->at = xfi_comm_calloc(plan->comm, (size_t)m->n_ranks, sizeof *links->at);
  XFI_CHECK(links->at != NULL, XFER_ERR_NOMEM, "%d ranks", m->n_ranks);
  for (int distance = 1; distance < m->n_ranks; distance++) {
    const int rank = (m->rank + distance) % m->n_ranks;
    const size_t send = xfi_run_find_peer(&m->sends, rank);
    const size_t recv = xfi_run_find_peer(&m->recvs, rank);
    const bool meets = near[rank] == XFI_SAME_DEVICE ||
                       m->n_broadcast > 0 || /* in which all take part */
                       send < m->sends.n_peers || recv < m->recvs.n_peers;

    if (near[rank] == XFI_FAR || !meets) continue;
    links->at[links->n++] = (xfi_link){.rank = rank,
                                       .send = wanted(plan, &m->sends, send),
                                       .recv = wanted(plan, &m->recvs, recv),
                                       .near = near[rank]};
  }
done:
  return st;
}

/* ---- telling each other ---- */

/* What each end says of its attempt at the two flows of a link. */
typedef struct verdict {
  unsigned char can_push;
  unsigned char can_pull;
  unsigned char can_signal; /* its page is mapped */
  char why[XFI_WHY_BYTES];  /* the last thing that could not be mapped; empty: all could */
} verdict;

/* Room for telling each other, by link. */
typedef struct talk {
  size_t n;
  xfi_message *messages; /* [2 * n]: sends, then receives */
  xfi_bytes *ours;       /* descriptions */
  uint64_t *sizes[2];    /* of descriptions, ours and theirs; 0: that rank has failed */
  verdict *verdicts[2];
} talk;

static void talk_free(talk *t)
{
  for (size_t i = 0; t->ours != NULL && i < t->n; i++)
    xfi_bytes_free(&t->ours[i]);
  xfi_free(t->ours);
  xfi_free(t->messages);
  for (int k = 0; k < 2; k++) {
    xfi_free(t->sizes[k]);
    xfi_free(t->verdicts[k]);
  }
}

static xfer_status talk_make(talk *t, const xfer_plan *plan, size_t n)
{
  xfer_status st = XFER_OK;

  t->n = n;
  t->ours = xfi_comm_calloc(plan->comm, n, sizeof *t->ours);
  t->messages = xfi_comm_calloc(plan->comm, 2 * n, sizeof *t->messages);
  XFI_CHECK(t->ours != NULL && t->messages != NULL, XFER_ERR_NOMEM, "%zu links", n);
  for (int k = 0; k < 2; k++) {
    t->sizes[k] = xfi_comm_calloc(plan->comm, n, sizeof *t->sizes[k]);
    t->verdicts[k] = xfi_comm_calloc(plan->comm, n, sizeof *t->verdicts[k]);
    XFI_CHECK(t->sizes[k] != NULL && t->verdicts[k] != NULL, XFER_ERR_NOMEM, "%zu links", n);
  }
done:
  return st;
}

/* The n_bytes that are said to each link, and those that it says. */
static xfer_status swap(const talk *t, const xfi_links *links, const xfer_plan *plan, void *ours,
                        void *theirs, size_t n_bytes, xfi_deadline deadline)
{
  for (size_t i = 0; i < t->n; i++) {
    const int rank = links->at[i].rank;

    t->messages[i] = (xfi_message){(char *)ours + i * n_bytes, n_bytes, rank};
    t->messages[t->n + i] = (xfi_message){(char *)theirs + i * n_bytes, n_bytes, rank};
  }
  return plan->comm->ops->exchange(plan->comm, t->messages, (int)t->n, t->messages + t->n,
                                   (int)t->n, deadline);
}

/* Descriptions go between ranks that have not failed. */
static xfer_status exchange_descriptions(xfi_links *links, talk *t, const xfer_plan *plan,
                                         const uint64_t *page, xfer_status *mine,
                                         xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  size_t n = 0; /* of links that take part */

  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++)
    *mine = xfi_link_describe(&t->ours[i], plan, &links->at[i], page);
  for (size_t i = 0; i < links->n; i++)
    t->sizes[0][i] = *mine == XFER_OK ? t->ours[i].n : 0;
  XFI_TRY(swap(t, links, plan, t->sizes[0], t->sizes[1], sizeof **t->sizes, deadline));
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++) {
    xfi_link *link = &links->at[i];

    link->n_bytes = t->sizes[1][i];
    if (link->n_bytes == 0) continue; /* the peer has failed, as all will hear at the end */
    link->bytes = xfi_comm_calloc(plan->comm, link->n_bytes, 1);
    XFI_CHECK(link->bytes != NULL, XFER_ERR_NOMEM, "%zu bytes from rank %d", link->n_bytes,
              link->rank);
    t->messages[n] = (xfi_message){t->ours[i].at, t->ours[i].n, link->rank};
    t->messages[t->n + n++] = (xfi_message){link->bytes, link->n_bytes, link->rank};
  }
  XFI_TRY(plan->comm->ops->exchange(plan->comm, t->messages, (int)n, t->messages + t->n, (int)n,
                                    deadline));
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++)
    if (links->at[i].bytes != NULL) *mine = xfi_link_read(&links->at[i]);
done:
  return st;
}

/* ---- mapping ---- */

/* XFER_OK with *mapped false: out of reach, which is no error, and why. */
static xfer_status map_remote(xfi_link *link, size_t i, xfi_device *device, char *why, bool *mapped,
                              xfi_deadline deadline)
{
  xfi_remote *remote = &link->remotes[i];
  xfer_status st = XFER_OK;
  void *base = NULL;

  if (!remote->is_mapped) {
    st = device->ops->mem_import(device, &remote->handle, &base, deadline);
    if (st == XFER_OK) {
      remote->mapped = base;
      remote->is_mapped = true;
    }
    if (st == XFER_ERR_UNSUPPORTED) snprintf(why, XFI_WHY_BYTES, "%s", xfi_last_error());
  }
  *mapped = remote->is_mapped;
  return st == XFER_ERR_UNSUPPORTED ? XFER_OK : st;
}

/* Map all that the peer's half of a flow lies in. */
static xfer_status map_flow(xfi_link *link, xfi_device *device, bool source, verdict *v,
                            xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  bool mapped = true;
  size_t first;
  size_t end;

  xfi_link_flow_bounds(link, source, &first, &end);
  for (size_t p = link->first_place[first]; p < link->first_place[end] && mapped; p++)
    XFI_TRY(map_remote(link, link->places[p][0], device, v->why, &mapped, deadline));
  *(source ? &v->can_pull : &v->can_push) = mapped;
done:
  return st;
}

/* First what this rank should copy; in the second round, what the peer should and cannot. */
static xfer_status try_flows(xfi_link *link, xfi_device *device, verdict *mine,
                             const verdict *theirs, bool second, xfi_deadline deadline)
{
  const bool push = second ? xfi_link_is_pulled(link) && !theirs->can_pull && !mine->can_push
                           : xfi_link_pushes(link);
  const bool pull = second ? xfi_link_is_pushed(link) && !theirs->can_push && !mine->can_pull
                           : xfi_link_pulls(link);
  xfer_status st = XFER_OK;
  bool mapped;

  XFI_TRY(map_remote(link, 0, device, mine->why, &mapped, deadline));
  mine->can_signal = mapped;
  if (mapped && push) XFI_TRY(map_flow(link, device, false, mine, deadline));
  if (mapped && pull) XFI_TRY(map_flow(link, device, true, mine, deadline));
done:
  return st;
}

/* What was meant, if who was meant can; else whoever can. */
static xfi_by settle_flow(xfi_by meant, bool can_push, bool can_pull)
{
  if (can_push && (meant == XFI_BY_PUSH || !can_pull)) return XFI_BY_PUSH;
  if (can_pull && (meant == XFI_BY_PULL || !can_push)) return XFI_BY_PULL;
  return can_push ? meant : XFI_BY_NOBODY;
}

static void settle(xfi_link *link, int rank, const verdict *mine, const verdict *theirs)
{
  const bool signals = mine->can_signal != 0 && theirs->can_signal != 0;

  link->send_by = settle_flow(link->send_by, signals && mine->can_push,
                              signals && theirs->can_pull && !link->only_push[1]);
  link->recv_by = settle_flow(link->recv_by, signals && theirs->can_push,
                              signals && mine->can_pull && !link->only_push[0]);
  if (mine->why[0] != '\0')
    snprintf(link->way, sizeof link->way, "packed: rank %d cannot map rank %d: %s", rank,
             link->rank, mine->why);
  else
    snprintf(link->way, sizeof link->way, "packed: rank %d cannot map rank %d: %.*s", link->rank,
             rank, XFI_WHY_BYTES - 1, theirs->why);
}

/* From (allocation, offset) to addresses, where the allocation is mapped. */
void xfi_link_resolve(xfi_link *link)
{
  for (size_t i = 0; i < link->n_bounds; i++) {
    for (int64_t p = 0; p < link->bounds[i].n_pieces; p++) {
      const uint64_t *place = link->places[link->first_place[i] + (size_t)p];
      const xfi_remote *remote = &link->remotes[place[0]];

      if (remote->is_mapped) link->bounds[i].pieces[p] = remote->mapped + place[1];
    }
  }
}

static xfer_status resolve(xfi_link *link, xfi_device *device)
{
  xfer_status st = XFER_OK;

  if (link->remotes[0].is_mapped) {
    uint64_t *page = (uint64_t *)(void *)(link->remotes[0].mapped + link->page_offset);

    XFI_CHECK(device->ops->flags_share == NULL || device->ops->flags_share(device, page),
              XFER_ERR_PEER, "rank %d has failed and left", link->rank);
    link->page = page;
  }
  xfi_link_resolve(link);
done:
  return st;
}

xfer_status xfi_links_connect(xfi_links *links, xfer_plan *plan, uint64_t *page, xfer_status *mine,
                              xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  talk t = {0};

  XFI_TRY(talk_make(&t, plan, links->n));
  XFI_TRY(exchange_descriptions(links, &t, plan, page, mine, deadline));
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++)
    if (links->at[i].bytes != NULL) *mine = xfi_link_choose(&links->at[i], plan);
  for (int attempt = 0; attempt < 2; attempt++) {
    for (size_t i = 0; i < links->n && *mine == XFER_OK; i++)
      if (links->at[i].bytes != NULL)
        *mine = try_flows(&links->at[i], plan->device, &t.verdicts[0][i], &t.verdicts[1][i],
                          attempt > 0, deadline);
    XFI_TRY(swap(&t, links, plan, t.verdicts[0], t.verdicts[1], sizeof **t.verdicts, deadline));
  }
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++) {
    if (links->at[i].bytes == NULL) continue;
    settle(&links->at[i], plan->moves->rank, &t.verdicts[0][i], &t.verdicts[1][i]);
    *mine = resolve(&links->at[i], plan->device);
  }
done:
  talk_free(&t);
  return st;
}

void xfi_links_destroy(xfi_links *links, xfi_device *device)
{
  for (size_t i = 0; links->at != NULL && i < links->n; i++) {
    xfi_link *link = &links->at[i];

    if (link->page != NULL && device->ops->flags_share != NULL)
      device->ops->flags_free(device, link->page);
    for (size_t r = 0; link->remotes != NULL && r < link->n_remotes; r++)
      if (link->remotes[r].is_mapped) device->ops->mem_unimport(device, link->remotes[r].mapped);
    for (size_t b = 0; link->bounds != NULL && b < link->n_bounds; b++)
      xfi_bound_clear(&link->bounds[b]);
    xfi_free(link->remotes);
    xfi_free(link->bounds);
    xfi_free(link->first_place);
    xfi_free(link->places);
    xfi_free(link->bytes);
  }
  xfi_free(links->at);
  *links = (xfi_links){NULL, 0};
}

const char *xfi_links_way(const xfi_links *links, const xfer_plan *plan, bool send, size_t peer)
{
  const uint32_t lane = plan->options.lane;
  const xfi_move_list *list = send ? &plan->moves->sends : &plan->moves->recvs;

  for (size_t i = 0; i < links->n; i++) {
    const xfi_link *link = &links->at[i];
    const xfi_by by = send ? link->send_by : link->recv_by;

    if ((send ? link->send : link->recv) != peer) continue;
    if (by == XFI_BY_NOBODY) return link->way;
    if (by == XFI_BY_BOTH) return "direct: each copies a part";
    return (by == XFI_BY_PUSH) == send ? "direct: this rank copies" : "direct: the peer copies";
  }
  if (!has_moves(plan, list, peer)) return "broadcast";
  if (lane == XFER_LANE_PACKED) return "packed: the lane was asked for";
  return "packed: not of one host, user and container";
}

const xfi_bound *xfi_link_bound(const xfi_link *link, uint32_t tensor, bool source,
                                xfi_cursor *cursor)
{
  size_t first;
  size_t end;

  xfi_link_flow_bounds(link, source, &first, &end);
  if (cursor->n == 0 || tensor != cursor->tensor) cursor->n++;
  cursor->tensor = tensor;
  return first + cursor->n <= end ? &link->bounds[first + cursor->n - 1] : NULL;
}
