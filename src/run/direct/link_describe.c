/*
 * The messages of a link. A description goes each way once: a head, the ranks with which this rank
 * exchanges much, the allocations, and the bounds. A bound is written as the distance back to an
 * earlier one of the same form, or 0 and the form itself; then its pieces as (allocation, offset),
 * and for boxes what each box is. Later, when pieces lie elsewhere in the same allocations, only
 * all (allocation, offset) are sent, in the same order.
 */
#include <string.h>

#include "alloc.h"
#include "allocations.h"
#include "bytes.h"
#include "error.h"
#include "link.h"
#include "peers.h"
#include "vec.h"

typedef struct head {
  uint64_t n_allocations;
  uint64_t page_offset;
  uint64_t n_bounds;
  uint64_t n_src_bounds; /* the first of them */
  uint64_t n_ranks[2];   /* of the links' ranks */
  xfi_peer_counts counts;
  xfi_mem_handle page;
} head;

typedef struct allocation_record {
  uint64_t n_bytes;
  uint64_t sides;
} allocation_record;

/* ---- writing ---- */

/* How many bounds back an earlier one of the same form is searched for: layers are alike, and in a
 * layer few tensors differ. */
enum { LIKE = 16 };

typedef struct blob {
  xfi_bytes bytes;
  const xfer_plan *plan;
  xfi_link *link;
  const xfi_bound *last[LIKE]; /* bound i is last[i % LIKE] */
  uint64_t n_bounds;
  uint32_t *of_plan;   /* [n_allocations of the plan] 1 + the index in advertised; 0: not in it */
  bool locations_only; /* the peer has the description: write only the locations of pieces */
} blob;

/* 1 + the index of the allocation that the bytes lie in, which is added if it is new. After the
 * first description the peer notices an index that it does not have. Few allocations are not the
 * plan's: pages, and all memory of a host. */
static xfer_status find_advertised(blob *b, uint32_t *index, const void *pointer, size_t n_bytes)
{
  const xfi_allocation *at = xfi_plan_allocation(b->plan, pointer, n_bytes);
  xfi_link *link = b->link;
  uint32_t none = 0;
  uint32_t *seen =
      at == NULL ? &none : &b->of_plan[at - xfi_plan_owner(b->plan)->memory.allocations];
  xfi_allocation found;

  if (at == NULL) {
    XFI_TRY(b->plan->device->ops->find_allocation(b->plan->device, pointer, n_bytes, &found));
    at = &found;
    for (none = (uint32_t)link->n_advertised; none > 0; none--)
      if (link->advertised[none - 1].at.base == at->base &&
          link->advertised[none - 1].at.n_bytes == at->n_bytes)
        break;
  }
  if (*seen == 0) {
    XFI_TRY(XFI_APPEND(link->advertised, link->n_advertised, link->advertised_capacity,
                       (xfi_advertised){*at, 0}));
    *seen = (uint32_t)link->n_advertised;
  }
  *index = *seen;
  return XFER_OK;
}

static xfer_status put_location(blob *b, const void *pointer, size_t n_bytes, int side)
{
  uint32_t index;
  xfi_advertised *t;

  XFI_TRY(find_advertised(b, &index, pointer, n_bytes));
  t = &b->link->advertised[index - 1];
  t->sides |= side;
  const uint64_t location[2] = {index - 1,
                                (uint64_t)((const char *)pointer - (const char *)t->at.base)};
  return xfi_bytes_put(&b->bytes, location, sizeof location);
}

/* How many bounds ago one of the same form was written; 0: none of the last ones has it. Boxes are
 * always written out. */
static uint64_t how_far_back(const blob *b, const xfi_bound *bound)
{
  for (uint64_t back = 1; back <= LIKE && back <= b->n_bounds && bound->boxes == NULL; back++)
    if (xfi_bound_is_alike(b->last[(b->n_bounds - back) % LIKE], bound)) return back;
  return 0;
}

static xfer_status put_form(blob *b, const xfi_bound *bound)
{
  const uint64_t back = how_far_back(b, bound);

  b->last[b->n_bounds++ % LIKE] = bound;
  b->link->n_own_locations += (size_t)bound->n_pieces;
  XFI_TRY(xfi_bytes_put(&b->bytes, &back, sizeof back));
  if (back > 0) return XFER_OK;
  return xfi_bytes_put(&b->bytes, bound, sizeof *bound); /* the peer ignores the addresses in it */
}

static xfer_status put_bound(blob *b, const xfi_bound *bound, int elem_bytes, int side)
{
  if (!b->locations_only) XFI_TRY(put_form(b, bound));
  for (int64_t i = 0; i < bound->n_pieces; i++)
    XFI_TRY(
        put_location(b, xfi_bound_piece(bound, i), xfi_bound_reach(bound, i, elem_bytes), side));
  if (!b->locations_only && bound->boxes != NULL)
    XFI_TRY(xfi_bytes_put(&b->bytes, bound->boxes, (size_t)bound->n_pieces * sizeof *bound->boxes));
  return XFER_OK;
}

/* Write the bounds of a transfer's tensors, each once, in the order of the transfer's moves. */
static xfer_status put_transfer(blob *b, bool send)
{
  const xfer_plan *plan = b->plan;
  const xfi_move_list *list = xfi_plan_moves(plan, send);
  const size_t peer = b->link->transfer[send].peer;
  uint32_t last = UINT32_MAX;

  if (peer == XFI_NO_TRANSFER) return XFER_OK;
  if (!b->locations_only) /* as if each tensor had one piece and one move, and were like another */
    XFI_TRY(xfi_vec_reserve(
        &b->bytes.at, &b->bytes.capacity,
        b->bytes.n + list->peers[peer].n * (sizeof(uint64_t) + sizeof *b->link->locations), 1));
  for (size_t i = 0; i < list->peers[peer].n; i++) {
    const uint32_t tensor = list->moves[list->peers[peer].first + i].tensor;
    const xfi_class *cls = xfi_moves_class(plan->moves, tensor);

    if (tensor == last || xfi_plan_broadcasts(plan, cls)) continue;
    last = tensor;
    if (send)
      XFI_TRY(
          put_bound(b, xfi_plan_exported_src(plan, tensor), cls->src->elem_bytes, XFI_SIDE_SRC));
    else
      XFI_TRY(put_bound(b, xfi_plan_dst(plan, tensor), cls->dst->elem_bytes, XFI_SIDE_DST));
  }
  return XFER_OK;
}

static xfer_status begin_blob(blob *b, const xfer_plan *plan)
{
  const xfer_plan *owner = xfi_plan_owner(plan);

  b->plan = plan;
  b->of_plan = xfi_calloc(owner->memory.n_allocations, sizeof *b->of_plan);
  if (b->of_plan == NULL) return XFI_NO_MEMORY("%zu allocations", owner->memory.n_allocations);
  for (size_t i = 0; i < b->link->n_advertised; i++) {
    const xfi_allocation *advertised = &b->link->advertised[i].at;
    const xfi_allocation *at = xfi_plan_allocation(plan, advertised->base, advertised->n_bytes);

    if (at != NULL && at->base == advertised->base && at->n_bytes == advertised->n_bytes)
      b->of_plan[at - owner->memory.allocations] = (uint32_t)i + 1;
  }
  return XFER_OK;
}

/* Bounds first, into their own blob, since they make the list of allocations. */
xfer_status xfi_link_describe(xfi_link *link, const xfer_plan *plan, const uint64_t *page)
{
  xfer_status st = XFER_OK;
  blob b = {.link = link};
  head h = {0};
  uint32_t first;

  XFI_TRY_DONE(begin_blob(&b, plan));
  XFI_TRY_DONE(find_advertised(&b, &first, page, sizeof *page));
  h.page_offset = (uint64_t)((const char *)page - (const char *)link->advertised->at.base);
  XFI_TRY_DONE(plan->device->ops->mem_export(plan->device, link->advertised->at, &h.page));
  XFI_TRY_DONE(put_transfer(&b, true));
  h.n_src_bounds = b.n_bounds;
  link->n_own_src_locations = link->n_own_locations;
  XFI_TRY_DONE(put_transfer(&b, false));
  h.n_bounds = b.n_bounds;
  h.n_allocations = link->n_advertised;
  h.counts = link->links->counts;
  for (int send = 0; send < 2; send++)
    h.n_ranks[send] = link->links->ranks[send].n;
  XFI_TRY_DONE(xfi_bytes_put(&link->send_buffer, &h, sizeof h));
  for (int send = 0; send < 2; send++)
    XFI_TRY_DONE(xfi_bytes_put(&link->send_buffer, link->links->ranks[send].at,
                               link->links->ranks[send].n * sizeof *link->links->ranks[send].at));
  for (size_t i = 0; i < link->n_advertised; i++) {
    const allocation_record advertised = {link->advertised[i].at.n_bytes,
                                          (uint64_t)link->advertised[i].sides};

    XFI_TRY_DONE(xfi_bytes_put(&link->send_buffer, &advertised, sizeof advertised));
  }
  XFI_TRY_DONE(xfi_bytes_put(&link->send_buffer, b.bytes.at, b.bytes.n));
done:
  xfi_bytes_free(&b.bytes);
  xfi_free(b.of_plan);
  return st;
}

xfer_status xfi_link_describe_locations(xfi_link *link, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  const int exported = xfi_link_sides_exported(link);
  blob b = {.link = link,
            .bytes = {link->send_buffer.at, 0, link->send_buffer.capacity},
            .locations_only = true};

  XFI_TRY_DONE(begin_blob(&b, plan));
  if ((exported & XFI_SIDE_SRC) != 0) XFI_TRY_DONE(put_transfer(&b, true));
  if ((exported & XFI_SIDE_DST) != 0) XFI_TRY_DONE(put_transfer(&b, false));
done:
  xfi_free(b.of_plan);
  return st;
}

/* ---- reading ---- */

/* The next location; false: it cannot be. */
static bool read_location(xfi_link *link, xfi_reader *r, size_t i)
{
  uint64_t *location = link->locations[i];

  xfi_reader_take(r, location, sizeof *link->locations);
  return !r->failed && location[0] < link->n_remotes &&
         location[1] < link->remotes[location[0]].n_bytes;
}

bool xfi_link_read_locations(xfi_link *link)
{
  const int used = xfi_link_sides_used(link);
  xfi_reader r = {link->recv_buffer.at, link->recv_buffer.n, false};

  for (size_t i = 0; i < link->n_locations; i++)
    if ((used & xfi_link_side_of(link, i)) != 0 && !read_location(link, &r, i)) return false;
  return true;
}

static xfer_status malformed(const xfi_link *link)
{
  return XFI_ERROR(XFER_ERR_MISMATCH, "rank %d sent a malformed description", link->rank);
}

/* Has each index of the dim that is in pieces its piece? */
static bool has_pieces(const xfi_bound *advertised)
{
  const int d = advertised->piece_dim;

  if (d < 0 || d >= XFER_MAX_DIMS || advertised->n_pieces < 1 || advertised->piece_length < 1)
    return false;
  return advertised->shape[d] < 1 ||
         (advertised->shape[d] - 1) / advertised->piece_length < advertised->n_pieces;
}

static xfer_status read_bound(xfi_link *link, xfi_reader *r, size_t i)
{
  xfi_bound *b = &link->bounds[i];
  xfi_bound advertised;
  uint64_t back;

  xfi_reader_take(r, &back, sizeof back);
  if (back > i || (back > 0 && b[-(ptrdiff_t)back].boxes != NULL)) return malformed(link);
  if (back > 0)
    advertised = b[-(ptrdiff_t)back];
  else
    xfi_reader_take(r, &advertised, sizeof advertised);
  if (r->failed || !has_pieces(&advertised) || (uint64_t)advertised.n_pieces > r->n_left)
    return malformed(link);
  *b = advertised;
  b->is_set = true;
  b->n_dims = XFER_MAX_DIMS;
  b->only = NULL; /* see xfi_link_resolve() */
  b->pieces = NULL;
  b->boxes = NULL;
  b->blocks = NULL;
  if (advertised.n_pieces > 1) {
    b->pieces = xfi_calloc((size_t)advertised.n_pieces, sizeof *b->pieces);
    XFI_CHECK(b->pieces != NULL, XFER_ERR_NOMEM, "%lld pieces", (long long)b->n_pieces);
  }
  XFI_TRY(xfi_vec_reserve(&link->locations, &link->locations_capacity,
                          link->n_locations + (size_t)advertised.n_pieces,
                          sizeof *link->locations));
  for (int64_t p = 0; p < b->n_pieces; p++, link->n_locations++)
    if (!read_location(link, r, link->n_locations)) return malformed(link);
  if (i < link->n_src_bounds) link->n_src_locations = link->n_locations;
  if (advertised.boxes == NULL) return XFER_OK;
  b->boxes = xfi_calloc((size_t)advertised.n_pieces, sizeof *b->boxes);
  XFI_CHECK(b->boxes != NULL, XFER_ERR_NOMEM, "%lld boxes", (long long)b->n_pieces);
  xfi_reader_take(r, b->boxes, (size_t)advertised.n_pieces * sizeof *b->boxes);
  if (r->failed) return malformed(link);
  return XFER_OK;
}

static xfer_status read_ranks(xfi_ranks *ranks, const xfi_link *link, xfi_reader *r, uint64_t n)
{
  if (n > r->n_left) return malformed(link);
  ranks->at = xfi_calloc((size_t)n, sizeof *ranks->at);
  if (ranks->at == NULL) return XFI_NO_MEMORY("%llu ranks", (unsigned long long)n);
  ranks->n = (size_t)n;
  xfi_reader_take(r, ranks->at, ranks->n * sizeof *ranks->at);
  return r->failed ? malformed(link) : XFER_OK;
}

xfer_status xfi_link_read(xfi_link *link)
{
  xfi_reader r = {link->recv_buffer.at, link->recv_buffer.n, false};
  head h;

  xfi_reader_take(&r, &h, sizeof h);
  if (r.failed || h.n_allocations < 1 || h.n_allocations > r.n_left || h.n_bounds > r.n_left ||
      h.n_src_bounds > h.n_bounds)
    return malformed(link);
  link->page_handle = h.page;
  link->page_offset = h.page_offset;
  link->their_counts = h.counts;
  for (int send = 0; send < 2; send++)
    XFI_TRY(read_ranks(&link->their_ranks[send], link, &r, h.n_ranks[send]));
  link->n_remotes = h.n_allocations;
  link->remotes = xfi_calloc(h.n_allocations, sizeof *link->remotes);
  link->bounds = xfi_calloc(h.n_bounds, sizeof *link->bounds);
  XFI_CHECK(link->remotes != NULL && link->bounds != NULL, XFER_ERR_NOMEM, "%llu views of rank %d",
            (unsigned long long)h.n_bounds, link->rank);
  link->n_bounds = h.n_bounds;
  link->n_src_bounds = h.n_src_bounds;
  for (size_t i = 0; i < link->n_remotes; i++) {
    allocation_record advertised;

    xfi_reader_take(&r, &advertised, sizeof advertised);
    link->remotes[i] =
        (xfi_remote){.n_bytes = advertised.n_bytes, .sides = (int)(advertised.sides & 3)};
  }
  if (h.page_offset >= link->remotes->n_bytes) return malformed(link);
  for (size_t i = 0; i < link->n_bounds; i++)
    XFI_TRY(read_bound(link, &r, i));
  return XFER_OK;
}
