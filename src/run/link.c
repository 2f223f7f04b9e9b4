/*
 * Making links: find who may be reached, tell each other what our halves look like, map. A flow is
 * copied by the side that has fewer allocations to map; if it cannot, by the other; if neither can,
 * it is left to the packed lane. Both ends know both counts and tell each other what worked, so
 * they decide alike.
 */
#include "link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "bytes.h"
#include "error.h"
#include "vec.h"

/* ---- who may be reached ---- */

/* Peers whose memory may be in reach: of the same domain. */
static xfer_status find_domain(bool *same, xfer_plan *plan)
{
  typedef unsigned char domain[64]; /* any bytes: a zero is no end */
  xfi_comm *comm = plan->comm;
  const uint32_t lane = plan->options.lane;
  xfer_status st = XFER_OK;
  domain mine = {0};
  domain *all = NULL;

  if (lane == XFER_LANE_PACKED || lane == XFER_LANE_BROADCAST) return XFER_OK;
  all = xfi_comm_calloc(comm, (size_t)comm->size, sizeof *all);
  XFI_CHECK(all != NULL, XFER_ERR_NOMEM, "%d ranks", comm->size);
  plan->device->ops->domain(plan->device, mine);
  XFI_TRY(comm->ops->all_gather(comm, all, mine, sizeof mine, xfi_run_deadline(plan)));
  for (int r = 0; r < comm->size; r++)
    same[r] = r != comm->rank && memcmp(all[r], mine, sizeof mine) == 0;
done:
  xfi_free(all);
  return st;
}

/* Moves of a flow that the broadcast lane does not carry. */
static bool has_moves(const xfer_plan *plan, const xfi_move_list *list, size_t peer)
{
  for (size_t i = 0; i < list->peers[peer].n; i++)
    if (!xfi_run_broadcasts(
            plan, xfi_plan_class(plan->moves, list->moves[list->peers[peer].first + i].tensor)))
      return true;
  return false;
}

static xfi_link *link_of(xfi_links *links, int rank)
{
  for (size_t i = 0; i < links->n; i++)
    if (links->at[i].rank == rank) return &links->at[i];
  links->at[links->n] = (xfi_link){.rank = rank, .send = XFI_NO_FLOW, .recv = XFI_NO_FLOW};
  return &links->at[links->n++];
}

static xfer_status list_links(xfi_links *links, xfer_plan *plan)
{
  const xfi_plan *m = plan->moves;
  xfer_status st = XFER_OK;
  bool *same = xfi_comm_calloc(plan->comm, (size_t)m->n_ranks, sizeof *same);

  links->at = xfi_comm_calloc(plan->comm, m->sends.n_peers + m->recvs.n_peers, sizeof *links->at);
  XFI_CHECK(same != NULL && links->at != NULL, XFER_ERR_NOMEM, "%d ranks", m->n_ranks);
  XFI_TRY(find_domain(same, plan));
  for (size_t p = 0; p < m->sends.n_peers; p++)
    if (same[m->sends.peers[p].rank] && has_moves(plan, &m->sends, p))
      link_of(links, m->sends.peers[p].rank)->send = p;
  for (size_t p = 0; p < m->recvs.n_peers; p++)
    if (same[m->recvs.peers[p].rank] && has_moves(plan, &m->recvs, p))
      link_of(links, m->recvs.peers[p].rank)->recv = p;
done:
  xfi_free(same);
  return st;
}

static int distance(const xfi_plan *m, int rank)
{
  return (rank - m->rank + m->n_ranks) % m->n_ranks;
}

/* Few links: insertion. */
static void rotate_links(xfi_links *links, const xfi_plan *m)
{
  for (size_t i = 1; i < links->n; i++)
    for (size_t k = i; k > 0 && distance(m, links->at[k - 1].rank) > distance(m, links->at[k].rank);
         k--) {
      const xfi_link swap = links->at[k];

      links->at[k] = links->at[k - 1];
      links->at[k - 1] = swap;
    }
}

/* ---- telling each other ---- */

static xfer_status exchange_blobs(xfi_links *links, const xfer_plan *plan, const uint64_t *page)
{
  xfi_comm *comm = plan->comm;
  const size_t n = links->n;
  xfer_status st = XFER_OK;
  xfer_status local = XFER_OK;
  xfi_bytes *mine = xfi_calloc(n, sizeof *mine);
  uint64_t *sizes = xfi_calloc(2 * n, sizeof *sizes); /* ours, theirs */
  xfi_message *messages = xfi_calloc(2 * n, sizeof *messages);

  if (mine == NULL || sizes == NULL || messages == NULL) {
    xfi_set_error("%zu links", n);
    local = XFER_ERR_NOMEM;
  }
  for (size_t i = 0; i < n && local == XFER_OK; i++)
    local = xfi_link_describe(&mine[i], plan, &links->at[i], page);
  XFI_TRY(xfi_comm_agree(comm, local, xfi_run_deadline(plan)));
  XFI_CHECK(mine != NULL && sizes != NULL && messages != NULL, XFER_ERR_INTERNAL,
            "the ranks agreed on a rank out of memory");
  for (size_t i = 0; i < n; i++) {
    sizes[i] = mine[i].n;
    messages[i] = (xfi_message){&sizes[i], sizeof *sizes, links->at[i].rank};
    messages[n + i] = (xfi_message){&sizes[n + i], sizeof *sizes, links->at[i].rank};
  }
  XFI_TRY(
      comm->ops->exchange(comm, messages, (int)n, messages + n, (int)n, xfi_run_deadline(plan)));
  for (size_t i = 0; i < n && local == XFER_OK; i++) {
    links->at[i].n_bytes = sizes[n + i];
    links->at[i].bytes = xfi_calloc(sizes[n + i], 1);
    if (links->at[i].bytes == NULL) {
      xfi_set_error("%llu bytes from rank %d", (unsigned long long)sizes[n + i], links->at[i].rank);
      local = XFER_ERR_NOMEM;
    }
  }
  XFI_TRY(xfi_comm_agree(comm, local, xfi_run_deadline(plan)));
  for (size_t i = 0; i < n; i++) {
    messages[i] = (xfi_message){mine[i].at, mine[i].n, links->at[i].rank};
    messages[n + i] = (xfi_message){links->at[i].bytes, links->at[i].n_bytes, links->at[i].rank};
  }
  XFI_TRY(
      comm->ops->exchange(comm, messages, (int)n, messages + n, (int)n, xfi_run_deadline(plan)));
  for (size_t i = 0; i < n && local == XFER_OK; i++)
    local = xfi_link_read(&links->at[i]);
  XFI_TRY(xfi_comm_agree(comm, local, xfi_run_deadline(plan)));
done:
  for (size_t i = 0; mine != NULL && i < n; i++)
    xfi_bytes_free(&mine[i]);
  xfi_free(mine);
  xfi_free(sizes);
  xfi_free(messages);
  return st;
}

/* ---- mapping ---- */

/* XFER_OK with *mapped false: out of reach, which is no error, and why. */
static xfer_status map_remote(xfi_link *link, size_t i, xfi_device *device, char *why, bool *mapped)
{
  xfi_remote *remote = &link->remotes[i];
  xfer_status st = XFER_OK;
  void *base = NULL;

  if (!remote->is_mapped) {
    st = device->ops->mem_import(device, &remote->handle, &base);
    if (st == XFER_OK) {
      remote->mapped = base;
      remote->is_mapped = true;
    }
    if (st == XFER_ERR_UNSUPPORTED) snprintf(why, XFI_WHY_BYTES, "%s", xfi_last_error());
  }
  *mapped = remote->is_mapped;
  return st == XFER_ERR_UNSUPPORTED ? XFER_OK : st;
}

/* The bounds of the peer's half of a flow: [*first, *end). */
static void flow_bounds(const xfi_link *link, bool source, size_t *first, size_t *end)
{
  *first = source ? 0 : link->n_src_bounds;
  *end = source ? link->n_src_bounds : link->n_bounds;
}

/* Map all that the peer's half of a flow lies in, and its page. */
static xfer_status map_flow(xfi_link *link, xfi_device *device, bool source, char *why,
                            bool *mapped)
{
  xfer_status st = XFER_OK;
  size_t first;
  size_t end;

  flow_bounds(link, source, &first, &end);
  XFI_TRY(map_remote(link, 0, device, why, mapped));
  for (size_t p = link->first_place[first]; p < link->first_place[end] && *mapped; p++)
    XFI_TRY(map_remote(link, link->places[p][0], device, why, mapped));
done:
  return st;
}

/* How many allocations a half of a flow lies in. `seen` is scratch of n_remotes. */
static uint64_t count_allocations(const xfi_link *link, bool source, unsigned char *seen)
{
  uint64_t n = 0;
  size_t first;
  size_t end;

  memset(seen, 0, link->n_remotes);
  flow_bounds(link, source, &first, &end);
  for (size_t p = link->first_place[first]; p < link->first_place[end]; p++) {
    n += seen[link->places[p][0]] == 0;
    seen[link->places[p][0]] = 1;
  }
  return n;
}

/* What each end says of its attempt at the two flows of a link. */
typedef struct verdict {
  uint64_t n_src_allocations; /* the other's, of the flow from it to us */
  uint64_t n_dst_allocations; /* the other's, of the flow from us to it */
  unsigned char can_push;
  unsigned char can_pull;
  unsigned char can_signal; /* its page is mapped */
  char why[XFI_WHY_BYTES];  /* the last thing that could not be mapped; empty: all could */
} verdict;

static xfer_status exchange_verdicts(const xfi_links *links, const xfer_plan *plan, verdict *mine,
                                     verdict *theirs)
{
  const size_t n = links->n;
  xfer_status st = XFER_OK;
  xfi_message *messages = xfi_comm_calloc(plan->comm, 2 * n, sizeof *messages);

  XFI_CHECK(messages != NULL, XFER_ERR_NOMEM, "%zu links", n);
  for (size_t i = 0; i < n; i++) {
    messages[i] = (xfi_message){&mine[i], sizeof *mine, links->at[i].rank};
    messages[n + i] = (xfi_message){&theirs[i], sizeof *theirs, links->at[i].rank};
  }
  XFI_TRY(plan->comm->ops->exchange(plan->comm, messages, (int)n, messages + n, (int)n,
                                    xfi_run_deadline(plan)));
done:
  xfi_free(messages);
  return st;
}

static xfer_status count_link(const xfi_link *link, verdict *v)
{
  xfer_status st = XFER_OK;
  unsigned char *seen = xfi_calloc(link->n_remotes, 1);

  XFI_CHECK(seen != NULL, XFER_ERR_NOMEM, "%zu allocations", link->n_remotes);
  v->n_src_allocations = count_allocations(link, true, seen);
  v->n_dst_allocations = count_allocations(link, false, seen);
done:
  xfi_free(seen);
  return st;
}

/* The first try is made by the side with fewer allocations to map; the second by the other. */
static xfer_status try_flows(xfi_link *link, xfi_device *device, verdict *mine,
                             const verdict *theirs, bool first)
{
  const bool push = (mine->n_dst_allocations <= theirs->n_src_allocations) == first;
  const bool pull = (theirs->n_dst_allocations > mine->n_src_allocations) == first;
  xfer_status st = XFER_OK;
  bool ok;

  XFI_TRY(map_remote(link, 0, device, mine->why, &ok));
  mine->can_signal = ok;
  if (link->send != XFI_NO_FLOW && push) {
    XFI_TRY(map_flow(link, device, false, mine->why, &ok));
    mine->can_push = ok;
  }
  if (link->recv != XFI_NO_FLOW && pull) {
    XFI_TRY(map_flow(link, device, true, mine->why, &ok));
    mine->can_pull = ok;
  }
done:
  return st;
}

/* Who copies each flow of a link, from both ends' words. At most one end. */
static void settle(xfi_link *link, int rank, const verdict *mine, const verdict *theirs)
{
  const bool signals = mine->can_signal != 0 && theirs->can_signal != 0;

  link->pushes = signals && link->send != XFI_NO_FLOW && mine->can_push != 0;
  link->is_pulled = signals && link->send != XFI_NO_FLOW && !link->pushes && theirs->can_pull != 0;
  link->is_pushed = signals && link->recv != XFI_NO_FLOW && theirs->can_push != 0;
  link->pulls = signals && link->recv != XFI_NO_FLOW && !link->is_pushed && mine->can_pull != 0;
  if (mine->why[0] != '\0')
    snprintf(link->way, sizeof link->way, "packed: rank %d cannot map rank %d: %s", rank,
             link->rank, mine->why);
  else
    snprintf(link->way, sizeof link->way, "packed: rank %d cannot map rank %d: %.*s", link->rank,
             rank, XFI_WHY_BYTES - 1, theirs->why);
}

/* From (allocation, offset) to addresses, where the allocation is mapped. */
static xfer_status resolve(xfi_link *link, xfi_device *device)
{
  xfer_status st = XFER_OK;

  if (link->remotes[0].is_mapped) {
    uint64_t *page = (uint64_t *)(void *)(link->remotes[0].mapped + link->page_offset);

    XFI_CHECK(device->ops->flags_share == NULL || device->ops->flags_share(device, page),
              XFER_ERR_PEER, "rank %d has failed and left", link->rank);
    link->page = page;
  }
  for (size_t i = 0; i < link->n_bounds; i++) {
    for (int64_t p = 0; p < link->bounds[i].n_pieces; p++) {
      const uint64_t *place = link->places[link->first_place[i] + (size_t)p];
      const xfi_remote *remote = &link->remotes[place[0]];

      if (remote->is_mapped) link->bounds[i].pieces[p] = remote->mapped + place[1];
    }
  }
done:
  return st;
}

static xfer_status map_links(xfi_links *links, xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfer_status local = XFER_OK;
  verdict *mine = xfi_calloc(links->n, sizeof *mine);
  verdict *theirs = xfi_calloc(links->n, sizeof *theirs);

  if (mine == NULL || theirs == NULL) {
    xfi_set_error("%zu links", links->n);
    local = XFER_ERR_NOMEM;
  }
  for (size_t i = 0; i < links->n && local == XFER_OK; i++)
    local = count_link(&links->at[i], &mine[i]);
  XFI_TRY(xfi_comm_agree(plan->comm, local, xfi_run_deadline(plan)));
  XFI_TRY(exchange_verdicts(links, plan, mine, theirs));
  for (int attempt = 0; attempt < 2; attempt++) {
    for (size_t i = 0; i < links->n && local == XFER_OK; i++) {
      const bool done =
          attempt > 0 &&
          (links->at[i].send == XFI_NO_FLOW || mine[i].can_push || theirs[i].can_pull) &&
          (links->at[i].recv == XFI_NO_FLOW || mine[i].can_pull || theirs[i].can_push);

      if (!done) local = try_flows(&links->at[i], plan->device, &mine[i], &theirs[i], attempt == 0);
    }
    XFI_TRY(xfi_comm_agree(plan->comm, local, xfi_run_deadline(plan)));
    XFI_TRY(exchange_verdicts(links, plan, mine, theirs));
  }
  for (size_t i = 0; i < links->n; i++) {
    settle(&links->at[i], plan->moves->rank, &mine[i], &theirs[i]);
    XFI_TRY(resolve(&links->at[i], plan->device)); /* a peer that left has failed the comm */
  }
done:
  xfi_free(mine);
  xfi_free(theirs);
  return st;
}

xfer_status xfi_links_create(xfi_links *links, xfer_plan *plan, uint64_t *page)
{
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_comm_agree(plan->comm, list_links(links, plan), xfi_run_deadline(plan)));
  rotate_links(links, plan->moves);
  XFI_TRY(exchange_blobs(links, plan, page));
  XFI_TRY(map_links(links, plan));
done:
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
    xfi_free(link->bound_tensors);
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

    if ((send ? link->send : link->recv) != peer) continue;
    if (send ? link->pushes : link->pulls) return "direct: this rank copies";
    if (send ? link->is_pulled : link->is_pushed) return "direct: the peer copies";
    return link->way;
  }
  if (!has_moves(plan, list, peer)) return "broadcast";
  if (lane == XFER_LANE_PACKED) return "packed: the lane was asked for";
  return "packed: not of one host, user and container";
}

const xfi_bound *xfi_link_bound(const xfi_link *link, uint32_t tensor, bool source, size_t *cursor)
{
  size_t first;
  size_t end;

  flow_bounds(link, source, &first, &end);
  for (size_t i = first + *cursor; i < end; i++, ++*cursor)
    if (link->bound_tensors[i] == tensor) return &link->bounds[i];
  return NULL;
}
