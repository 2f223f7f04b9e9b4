/*
 * Making links. Each pair exchanges one blob both ways:
 *
 *   n_allocations, page offset, n_bounds, n of them sources
 *   per allocation: handle, base
 *   per bound:      tensor, piece_dim, piece_length, n_pieces, strides, shape,
 *                   per piece: (allocation, offset)
 *
 * A flow is copied by the side that has fewer allocations to map; if it cannot, by the other; if
 * neither can, it is left to the packed lane. Both ends know both counts and tell each other what
 * worked, so they decide alike.
 */
#include "link.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "error.h"
#include "vec.h"

#define NOTHING SIZE_MAX

/* ---- who may be reached ---- */

static xfer_status find_domain(bool *same, xfer_plan *plan)
{
  xfi_comm *comm = plan->comm;
  xfer_status st = XFER_OK;
  unsigned char mine[64] = {0};
  unsigned char(*all)[64] = xfi_calloc((size_t)comm->size, sizeof *all);

  if (plan->options.lane != XFER_LANE_PACKED && plan->options.lane != XFER_LANE_BROADCAST)
    plan->device->ops->domain(plan->device, mine);
  XFI_CHECK(all != NULL, XFER_ERR_NOMEM, "%d ranks", comm->size);
  XFI_TRY(comm->ops->all_gather(comm, all, mine, sizeof mine, xfi_run_deadline(plan)));
  for (int r = 0; r < comm->size; r++)
    same[r] = r != comm->rank && mine[0] != 0 && memcmp(all[r], mine, sizeof mine) == 0;
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
  links->at[links->n] = (xfi_link){.rank = rank, .send = NOTHING, .recv = NOTHING};
  return &links->at[links->n++];
}

static xfer_status list_links(xfi_links *links, xfer_plan *plan)
{
  const xfi_plan *m = plan->moves;
  xfer_status st = XFER_OK;
  bool *same = xfi_calloc((size_t)m->n_ranks, sizeof *same);

  links->at = xfi_calloc(m->sends.n_peers + m->recvs.n_peers, sizeof *links->at);
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

/* ---- what we tell a peer ---- */

typedef struct blob {
  unsigned char *bytes;
  size_t n;
  size_t capacity;
  xfi_allocation *allocations;
  size_t n_allocations;
  size_t allocations_capacity;
} blob;

static xfer_status put(blob *b, const void *bytes, size_t n)
{
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_vec_reserve(&b->bytes, &b->capacity, b->n + n, 1));
  memcpy(b->bytes + b->n, bytes, n);
  b->n += n;
done:
  return st;
}

static xfer_status put_words(blob *b, const uint64_t *words, size_t n)
{
  return put(b, words, n * sizeof *words);
}

/* (allocation, offset) of an address; neighbours tend to share one, so search from the end. */
static xfer_status put_address(blob *b, xfi_device *device, const void *pointer)
{
  xfer_status st = XFER_OK;
  xfi_allocation found;
  size_t i;

  XFI_TRY(device->ops->find_allocation(device, pointer, &found));
  for (i = b->n_allocations; i > 0; i--)
    if (b->allocations[i - 1].base == found.base) break;
  if (i == 0) {
    XFI_TRY(xfi_vec_reserve(&b->allocations, &b->allocations_capacity, b->n_allocations + 1,
                            sizeof *b->allocations));
    b->allocations[b->n_allocations++] = found;
    i = b->n_allocations;
  }
  XFI_TRY(put_words(
      b, (const uint64_t[]){i - 1, (uint64_t)((const char *)pointer - (const char *)found.base)},
      2));
done:
  return st;
}

static xfer_status put_bound(blob *b, xfi_device *device, const xfi_bound *bound, uint32_t tensor)
{
  const uint64_t head[4] = {tensor, (uint64_t)bound->piece_dim, (uint64_t)bound->piece_length,
                            (uint64_t)bound->n_pieces};
  xfer_status st = XFER_OK;

  XFI_TRY(put_words(b, head, 4));
  XFI_TRY(put(b, bound->strides, sizeof bound->strides));
  XFI_TRY(put(b, bound->shape, sizeof bound->shape));
  for (int64_t i = 0; i < bound->n_pieces; i++)
    XFI_TRY(put_address(b, device, xfi_bound_piece(bound, i)));
done:
  return st;
}

/* The bounds of a flow's tensors, each once, in the order of its moves. */
static xfer_status put_flow(blob *b, uint64_t *n, const xfer_plan *plan, const xfi_move_list *list,
                            size_t peer, bool source)
{
  xfer_status st = XFER_OK;
  uint32_t last = UINT32_MAX;

  *n = 0;
  if (peer == NOTHING) return XFER_OK;
  for (size_t i = 0; i < list->peers[peer].n; i++) {
    const uint32_t tensor = list->moves[list->peers[peer].first + i].tensor;

    if (tensor == last || xfi_run_broadcasts(plan, xfi_plan_class(plan->moves, tensor))) continue;
    last = tensor;
    XFI_TRY(put_bound(b, plan->device,
                      source ? xfi_run_src(plan, tensor) : xfi_run_dst(plan, tensor), tensor));
    ++*n;
  }
done:
  return st;
}

/* Bounds first, into their own blob, since they make the list of allocations. */
static xfer_status make_blob(blob *out, const xfer_plan *plan, const xfi_link *link,
                             const uint64_t *page)
{
  xfi_device *device = plan->device;
  xfer_status st = XFER_OK;
  blob bounds = {0};
  uint64_t page_at[2];
  uint64_t n_src;
  uint64_t n_dst;

  XFI_TRY(put_address(&bounds, device, page));
  memcpy(page_at, bounds.bytes, sizeof page_at);
  bounds.n = 0;
  XFI_TRY(put_flow(&bounds, &n_src, plan, &plan->moves->sends, link->send, true));
  XFI_TRY(put_flow(&bounds, &n_dst, plan, &plan->moves->recvs, link->recv, false));
  XFI_TRY(put_words(out, (const uint64_t[]){bounds.n_allocations, page_at[1], n_src + n_dst, n_src},
                    4));
  for (size_t i = 0; i < bounds.n_allocations; i++) {
    const uint64_t base = (uint64_t)(uintptr_t)bounds.allocations[i].base;
    xfi_mem_handle handle;

    memset(&handle, 0, sizeof handle);
    st = device->ops->mem_export(device, bounds.allocations[i].base, &handle);
    if (st ==
        XFER_ERR_UNSUPPORTED) /* an all-zero handle: the peer will find that it cannot map it */
      memset(&handle, 0, sizeof handle);
    else
      XFI_TRY(st);
    XFI_TRY(put(out, &handle, sizeof handle));
    XFI_TRY(put_words(out, &base, 1));
  }
  XFI_TRY(put(out, bounds.bytes, bounds.n));
done:
  xfi_free(bounds.bytes);
  xfi_free(bounds.allocations);
  return st;
}

/* ---- what a peer tells us ---- */

typedef struct reader {
  const unsigned char *at;
  size_t n_left;
  bool failed; /* sticks */
} reader;

static void take(reader *r, void *out, size_t n)
{
  if (r->failed || n > r->n_left) {
    r->failed = true;
    memset(out, 0, n);
    return;
  }
  memcpy(out, r->at, n);
  r->at += n;
  r->n_left -= n;
}

static xfer_status read_bound(xfi_link *link, reader *r, size_t i)
{
  xfer_status st = XFER_OK;
  xfi_bound *b = &link->bounds[i];
  uint64_t head[4];

  take(r, head, sizeof head);
  take(r, b->strides, sizeof b->strides);
  take(r, b->shape, sizeof b->shape);
  XFI_CHECK(!r->failed && head[1] < XFER_MAX_DIMS && head[3] >= 1 && head[3] <= r->n_left,
            XFER_ERR_MISMATCH, "rank %d sent a malformed description", link->rank);
  link->bound_tensors[i] = (uint32_t)head[0];
  b->is_set = true;
  b->n_dims = XFER_MAX_DIMS;
  b->piece_dim = (int)head[1];
  b->piece_length = (int64_t)head[2];
  b->n_pieces = (int64_t)head[3];
  b->pieces = xfi_calloc((size_t)b->n_pieces, sizeof *b->pieces); /* see resolve() */
  XFI_CHECK(b->pieces != NULL, XFER_ERR_NOMEM, "%lld pieces", (long long)b->n_pieces);
  XFI_TRY(xfi_vec_reserve(&link->places, &link->places_capacity, link->n_places + head[3],
                          sizeof *link->places));
  for (int64_t p = 0; p < b->n_pieces; p++, link->n_places++) {
    take(r, link->places[link->n_places], sizeof *link->places);
    XFI_CHECK(!r->failed && link->places[link->n_places][0] < link->n_remotes, XFER_ERR_MISMATCH,
              "rank %d sent a malformed description", link->rank);
  }
  link->first_place[i + 1] = link->n_places;
done:
  return st;
}

static xfer_status read_blob(xfi_link *link)
{
  xfer_status st = XFER_OK;
  reader r = {link->bytes, link->n_bytes, false};
  uint64_t head[4];

  take(&r, head, sizeof head);
  XFI_CHECK(!r.failed && head[0] >= 1 && head[0] <= r.n_left && head[2] <= r.n_left &&
                head[3] <= head[2],
            XFER_ERR_MISMATCH, "rank %d sent a malformed description", link->rank);
  link->n_remotes = head[0];
  link->page_offset = head[1];
  link->remotes = xfi_calloc(link->n_remotes, sizeof *link->remotes);
  link->bounds = xfi_calloc(head[2], sizeof *link->bounds);
  link->bound_tensors = xfi_calloc(head[2], sizeof *link->bound_tensors);
  link->first_place = xfi_calloc(head[2] + 1, sizeof *link->first_place);
  XFI_CHECK(link->remotes != NULL && link->bounds != NULL && link->bound_tensors != NULL &&
                link->first_place != NULL,
            XFER_ERR_NOMEM, "%llu views of rank %d", (unsigned long long)head[2], link->rank);
  link->n_bounds = head[2];
  link->n_src_bounds = head[3];
  for (size_t i = 0; i < link->n_remotes; i++) {
    take(&r, &link->remotes[i].handle, sizeof link->remotes[i].handle);
    take(&r, &link->remotes[i].base, sizeof link->remotes[i].base);
  }
  for (size_t i = 0; i < link->n_bounds; i++)
    XFI_TRY(read_bound(link, &r, i));
done:
  return st;
}

static xfer_status exchange_blobs(xfi_links *links, const xfer_plan *plan, const uint64_t *page)
{
  xfi_comm *comm = plan->comm;
  const size_t n = links->n;
  xfer_status st = XFER_OK;
  xfer_status local = XFER_OK;
  blob *mine = xfi_calloc(n, sizeof *mine);
  uint64_t *sizes = xfi_calloc(2 * n, sizeof *sizes); /* ours, theirs */
  xfi_message *messages = xfi_calloc(2 * n, sizeof *messages);

  if (mine == NULL || sizes == NULL || messages == NULL) {
    xfi_set_error("%zu links", n);
    local = XFER_ERR_NOMEM;
  }
  for (size_t i = 0; i < n && local == XFER_OK; i++)
    local = make_blob(&mine[i], plan, &links->at[i], page);
  XFI_TRY(xfi_comm_agree(comm, local, xfi_run_deadline(plan)));
  assert(mine != NULL && sizes != NULL && messages != NULL); /* else the ranks did not agree */
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
    messages[i] = (xfi_message){mine[i].bytes, mine[i].n, links->at[i].rank};
    messages[n + i] = (xfi_message){links->at[i].bytes, links->at[i].n_bytes, links->at[i].rank};
  }
  XFI_TRY(
      comm->ops->exchange(comm, messages, (int)n, messages + n, (int)n, xfi_run_deadline(plan)));
  for (size_t i = 0; i < n && local == XFER_OK; i++)
    local = read_blob(&links->at[i]);
  XFI_TRY(xfi_comm_agree(comm, local, xfi_run_deadline(plan)));
done:
  for (size_t i = 0; mine != NULL && i < n; i++) {
    xfi_free(mine[i].bytes);
    xfi_free(mine[i].allocations);
  }
  xfi_free(mine);
  xfi_free(sizes);
  xfi_free(messages);
  return st;
}

/* ---- mapping ---- */

/* XFER_OK with *mapped false: out of reach, which is no error. */
static xfer_status map_remote(xfi_link *link, size_t i, xfi_device *device, bool *mapped)
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
static xfer_status map_flow(xfi_link *link, xfi_device *device, bool source, bool *mapped)
{
  xfer_status st = XFER_OK;
  size_t first;
  size_t end;

  flow_bounds(link, source, &first, &end);
  XFI_TRY(map_remote(link, 0, device, mapped));
  for (size_t p = link->first_place[first]; p < link->first_place[end] && *mapped; p++)
    XFI_TRY(map_remote(link, link->places[p][0], device, mapped));
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
} verdict;

static xfer_status exchange_verdicts(const xfi_links *links, const xfer_plan *plan, verdict *mine,
                                     verdict *theirs)
{
  const size_t n = links->n;
  xfer_status st = XFER_OK;
  xfi_message *messages = xfi_calloc(2 * n, sizeof *messages);

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

  XFI_TRY(map_remote(link, 0, device, &ok));
  mine->can_signal = ok;
  if (link->send != NOTHING && push) {
    XFI_TRY(map_flow(link, device, false, &ok));
    mine->can_push = ok;
  }
  if (link->recv != NOTHING && pull) {
    XFI_TRY(map_flow(link, device, true, &ok));
    mine->can_pull = ok;
  }
done:
  return st;
}

/* Who copies each flow of a link, from both ends' words. At most one end. */
static void settle(xfi_link *link, const verdict *mine, const verdict *theirs)
{
  const bool signals = mine->can_signal != 0 && theirs->can_signal != 0;

  link->pushes = signals && link->send != NOTHING && mine->can_push != 0;
  link->is_pulled = signals && link->send != NOTHING && !link->pushes && theirs->can_pull != 0;
  link->is_pushed = signals && link->recv != NOTHING && theirs->can_push != 0;
  link->pulls = signals && link->recv != NOTHING && !link->is_pushed && mine->can_pull != 0;
}

/* From (allocation, offset) to addresses, where the allocation is mapped. */
static void resolve(xfi_link *link)
{
  if (link->remotes[0].is_mapped)
    link->page = (uint64_t *)(void *)(link->remotes[0].mapped + link->page_offset);
  for (size_t i = 0; i < link->n_bounds; i++) {
    for (int64_t p = 0; p < link->bounds[i].n_pieces; p++) {
      const uint64_t *place = link->places[link->first_place[i] + (size_t)p];
      const xfi_remote *remote = &link->remotes[place[0]];

      if (remote->is_mapped) link->bounds[i].pieces[p] = remote->mapped + place[1];
    }
  }
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
      const bool done = attempt > 0 &&
                        (links->at[i].send == NOTHING || mine[i].can_push || theirs[i].can_pull) &&
                        (links->at[i].recv == NOTHING || mine[i].can_pull || theirs[i].can_push);

      if (!done) local = try_flows(&links->at[i], plan->device, &mine[i], &theirs[i], attempt == 0);
    }
    XFI_TRY(xfi_comm_agree(plan->comm, local, xfi_run_deadline(plan)));
    XFI_TRY(exchange_verdicts(links, plan, mine, theirs));
  }
  for (size_t i = 0; i < links->n; i++) {
    settle(&links->at[i], &mine[i], &theirs[i]);
    resolve(&links->at[i]);
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

const xfi_bound *xfi_link_bound(const xfi_link *link, uint32_t tensor, bool source, size_t *cursor)
{
  size_t first;
  size_t end;

  flow_bounds(link, source, &first, &end);
  for (size_t i = first + *cursor; i < end; i++, ++*cursor)
    if (link->bound_tensors[i] == tensor) return &link->bounds[i];
  return NULL;
}
