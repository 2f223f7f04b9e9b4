/*
 * What the two ends of a link tell each other, once each way:
 *
 *   n_allocations, page offset, n_bounds, n of them sources; the page's handle
 *   per allocation: base, bytes, halves
 *   per bound:      piece_dim, piece_length, n_pieces, by boxes?, strides, shape,
 *                   per piece: (allocation, offset); by boxes also what each box is
 *
 * And where pieces are later, when they lie elsewhere in the same allocations, in that order.
 */
#include <string.h>

#include "alloc.h"
#include "bytes.h"
#include "error.h"
#include "link.h"
#include "vec.h"

/* ---- what we tell a peer ---- */

typedef struct blob {
  xfi_bytes bytes;
  const xfer_plan *plan;
  xfi_link *link;
  uint32_t *of_plan;  /* [n_allocations] of the plan: 1 + the index in `told` */
  size_t n_places;    /* put so far */
  xfi_place_now *now; /* NULL: the description itself is put; else only where pieces are */
} blob;

/* Of a bound of one piece: head, strides, shape, place. */
enum { BOUND_WORDS = 4 + 2 * XFER_MAX_DIMS + 2 };

static xfer_status put_words(blob *b, const uint64_t *words, size_t n)
{
  return xfi_bytes_put(&b->bytes, words, n * sizeof *words);
}

static xfer_status tell(blob *b, uint32_t *index, const xfi_allocation *at)
{
  xfer_status st = XFER_OK;
  xfi_link *link = b->link;

  XFI_TRY(xfi_vec_reserve(&link->told, &link->told_capacity, link->n_told + 1, sizeof *link->told));
  link->told[link->n_told] = (xfi_told){*at, 0};
  *index = (uint32_t)++link->n_told;
done:
  return st;
}

/* 1 + the index of the allocation that bytes lie in. Of what the plan does not know, pages and all
 * of a host, there are few. */
static xfer_status find_told(blob *b, uint32_t *index, const void *pointer, size_t n_bytes)
{
  const xfi_allocation *known = xfi_run_allocation(b->plan, pointer, n_bytes);
  xfer_status st = XFER_OK;
  xfi_allocation found;

  uint32_t *seen = known == NULL ? NULL : &b->of_plan[known - xfi_run_owner(b->plan)->allocations];

  *index = seen == NULL ? 0 : *seen;
  if (*index > 0) return XFER_OK;
  if (seen != NULL) {
    XFI_TRY(tell(b, index, known));
    *seen = *index;
    return XFER_OK;
  }
  XFI_TRY(b->plan->device->ops->find_allocation(b->plan->device, pointer, n_bytes, &found));
  for (size_t i = 0; i < b->link->n_told; i++)
    if (b->link->told[i].at.base == found.base && b->link->told[i].at.n_bytes == found.n_bytes)
      *index = (uint32_t)i + 1;
  if (*index == 0) XFI_TRY(tell(b, index, &found));
done:
  return st;
}

static xfer_status put_address(blob *b, const void *pointer, size_t n_bytes, int half)
{
  xfer_status st = XFER_OK;
  uint32_t index;
  xfi_told *t;

  XFI_TRY(find_told(b, &index, pointer, n_bytes));
  t = &b->link->told[index - 1];
  t->halves |= half;
  XFI_TRY(put_words(
      b,
      (const uint64_t[]){index - 1, (uint64_t)((const char *)pointer - (const char *)t->at.base)},
      2));
done:
  return st;
}

static xfer_status put_place_now(blob *b, const void *pointer, size_t n_bytes)
{
  const xfi_allocation *known = xfi_run_allocation(b->plan, pointer, n_bytes);
  xfer_status st = XFER_OK;
  xfi_allocation found;

  if (known == NULL) {
    XFI_TRY(b->plan->device->ops->find_allocation(b->plan->device, pointer, n_bytes, &found));
    known = &found;
  }
  b->now[b->n_places++] = (xfi_place_now){(uint64_t)(uintptr_t)known->base, known->n_bytes,
                                          (uint64_t)(uintptr_t)pointer};
done:
  return st;
}

static xfer_status put_bound_now(blob *b, const xfi_bound *bound, int elem_bytes)
{
  xfer_status st = XFER_OK;

  for (int64_t i = 0; i < bound->n_pieces; i++)
    XFI_TRY(put_place_now(b, xfi_bound_piece(bound, i), xfi_bound_reach(bound, i, elem_bytes)));
done:
  return st;
}

static xfer_status put_bound(blob *b, const xfi_bound *bound, int elem_bytes, int half)
{
  const uint64_t head[4] = {(uint64_t)bound->piece_dim, (uint64_t)bound->piece_length,
                            (uint64_t)bound->n_pieces, bound->boxes != NULL};
  xfer_status st = XFER_OK;

  if (b->now != NULL) return put_bound_now(b, bound, elem_bytes);
  b->n_places += (size_t)bound->n_pieces;
  XFI_TRY(put_words(b, head, 4));
  XFI_TRY(xfi_bytes_put(&b->bytes, bound->strides, sizeof bound->strides));
  XFI_TRY(xfi_bytes_put(&b->bytes, bound->shape, sizeof bound->shape));
  for (int64_t i = 0; i < bound->n_pieces; i++)
    XFI_TRY(put_address(b, xfi_bound_piece(bound, i), xfi_bound_reach(bound, i, elem_bytes), half));
  if (bound->boxes != NULL)
    XFI_TRY(xfi_bytes_put(&b->bytes, bound->boxes, (size_t)bound->n_pieces * sizeof *bound->boxes));
done:
  return st;
}

/* The bounds of a flow's tensors, each once, in the order of its moves. */
static xfer_status put_flow(blob *b, uint64_t *n, const xfi_move_list *list, size_t peer, int half)
{
  const xfer_plan *plan = b->plan;
  xfer_status st = XFER_OK;
  uint32_t last = UINT32_MAX;

  *n = 0;
  if (peer == XFI_NO_FLOW) return XFER_OK;
  if (b->now == NULL) /* as if each tensor had one piece and one move */
    XFI_TRY(xfi_vec_reserve(&b->bytes.at, &b->bytes.capacity,
                            b->bytes.n + list->peers[peer].n * BOUND_WORDS * sizeof(uint64_t), 1));
  for (size_t i = 0; i < list->peers[peer].n; i++) {
    const uint32_t tensor = list->moves[list->peers[peer].first + i].tensor;
    const xfi_class *cls = xfi_plan_class(plan->moves, tensor);

    if (tensor == last || xfi_run_broadcasts(plan, cls)) continue;
    last = tensor;
    XFI_TRY(put_bound(b, half == XFI_OF_SRC ? xfi_run_src(plan, tensor) : xfi_run_dst(plan, tensor),
                      (half == XFI_OF_SRC ? cls->src : cls->dst)->elem_bytes, half));
    ++*n;
  }
done:
  return st;
}

enum { ALLOCATION_WORDS = 3 };

static xfer_status put_allocations(xfi_bytes *out, const xfi_link *link)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < link->n_told; i++) {
    const xfi_told *t = &link->told[i];
    const uint64_t words[ALLOCATION_WORDS] = {(uint64_t)(uintptr_t)t->at.base, t->at.n_bytes,
                                              (uint64_t)t->halves};

    XFI_TRY(xfi_bytes_put(out, words, sizeof words));
  }
done:
  return st;
}

/* Bounds first, into their own blob, since they make the list of allocations. */
xfer_status xfi_link_describe(xfi_bytes *out, const xfer_plan *plan, xfi_link *link,
                              const uint64_t *page)
{
  const size_t n_known = xfi_run_owner(plan)->n_allocations;
  xfer_status st = XFER_OK;
  blob b = {.plan = plan, .link = link};
  xfi_mem_handle page_handle;
  uint64_t page_at[2];
  uint64_t head[4];
  uint64_t n_src;
  uint64_t n_dst;

  b.of_plan = xfi_calloc(n_known, sizeof *b.of_plan);
  XFI_CHECK(b.of_plan != NULL, XFER_ERR_NOMEM, "%zu allocations", n_known);
  XFI_TRY(put_address(&b, page, sizeof *page, 0));
  XFI_TRY(plan->device->ops->mem_export(plan->device, link->told->at, &page_handle));
  memcpy(page_at, b.bytes.at, sizeof page_at);
  b.bytes.n = 0;
  XFI_TRY(put_flow(&b, &n_src, &plan->moves->sends, link->send, XFI_OF_SRC));
  XFI_TRY(put_flow(&b, &n_dst, &plan->moves->recvs, link->recv, XFI_OF_DST));
  link->n_own_places = b.n_places;
  head[0] = link->n_told;
  head[1] = page_at[1];
  head[2] = n_src + n_dst;
  head[3] = n_src;
  XFI_TRY(xfi_vec_reserve(&out->at, &out->capacity,
                          sizeof head + sizeof page_handle +
                              link->n_told * ALLOCATION_WORDS * sizeof(uint64_t) + b.bytes.n,
                          1));
  XFI_TRY(xfi_bytes_put(out, head, sizeof head));
  XFI_TRY(xfi_bytes_put(out, &page_handle, sizeof page_handle));
  XFI_TRY(put_allocations(out, link));
  XFI_TRY(xfi_bytes_put(out, b.bytes.at, b.bytes.n));
done:
  xfi_bytes_free(&b.bytes);
  xfi_free(b.of_plan);
  return st;
}

xfer_status xfi_link_tell(xfi_place_now *now, const xfer_plan *plan, const xfi_link *link)
{
  xfer_status st = XFER_OK;
  blob b = {.plan = plan, .now = now};
  uint64_t n;

  XFI_TRY(put_flow(&b, &n, &plan->moves->sends, link->send, XFI_OF_SRC));
  XFI_TRY(put_flow(&b, &n, &plan->moves->recvs, link->recv, XFI_OF_DST));
done:
  return st;
}

/* ---- what a peer tells us ---- */

static xfer_status read_bound(xfi_link *link, xfi_reader *r, size_t i)
{
  xfer_status st = XFER_OK;
  xfi_bound *b = &link->bounds[i];
  uint64_t head[4];

  xfi_reader_take(r, head, sizeof head);
  xfi_reader_take(r, b->strides, sizeof b->strides);
  xfi_reader_take(r, b->shape, sizeof b->shape);
  XFI_CHECK(!r->failed && head[0] < XFER_MAX_DIMS && head[2] >= 1 && head[2] <= r->n_left,
            XFER_ERR_MISMATCH, "rank %d sent a malformed description", link->rank);
  b->is_set = true;
  b->n_dims = XFER_MAX_DIMS;
  b->piece_dim = (int)head[0];
  b->piece_length = (int64_t)head[1];
  b->n_pieces = (int64_t)head[2];
  b->pieces = xfi_calloc((size_t)b->n_pieces, sizeof *b->pieces); /* see resolve() */
  XFI_CHECK(b->pieces != NULL, XFER_ERR_NOMEM, "%lld pieces", (long long)b->n_pieces);
  XFI_TRY(xfi_vec_reserve(&link->places, &link->places_capacity, link->n_places + head[2],
                          sizeof *link->places));
  for (int64_t p = 0; p < b->n_pieces; p++, link->n_places++) {
    uint64_t *place = link->places[link->n_places];

    xfi_reader_take(r, place, sizeof *link->places);
    XFI_CHECK(!r->failed && place[0] < link->n_remotes &&
                  place[1] < link->remotes[place[0]].n_bytes,
              XFER_ERR_MISMATCH, "rank %d sent a malformed description", link->rank);
  }
  link->first_place[i + 1] = link->n_places;
  if (head[3] != 0) {
    b->boxes = xfi_calloc((size_t)b->n_pieces, sizeof *b->boxes);
    XFI_CHECK(b->boxes != NULL, XFER_ERR_NOMEM, "%lld boxes", (long long)b->n_pieces);
    xfi_reader_take(r, b->boxes, (size_t)b->n_pieces * sizeof *b->boxes);
    XFI_CHECK(!r->failed, XFER_ERR_MISMATCH, "rank %d sent a malformed description", link->rank);
  }
done:
  return st;
}

xfer_status xfi_link_read(xfi_link *link)
{
  xfer_status st = XFER_OK;
  xfi_reader r = {link->bytes, link->n_bytes, false};
  uint64_t head[4];

  xfi_reader_take(&r, head, sizeof head);
  xfi_reader_take(&r, &link->page_handle, sizeof link->page_handle);
  XFI_CHECK(!r.failed && head[0] >= 1 && head[0] <= r.n_left && head[2] <= r.n_left &&
                head[3] <= head[2],
            XFER_ERR_MISMATCH, "rank %d sent a malformed description", link->rank);
  link->n_remotes = head[0];
  link->page_offset = head[1];
  link->remotes = xfi_calloc(link->n_remotes, sizeof *link->remotes);
  link->bounds = xfi_calloc(head[2], sizeof *link->bounds);
  link->first_place = xfi_calloc(head[2] + 1, sizeof *link->first_place);
  XFI_CHECK(link->remotes != NULL && link->bounds != NULL && link->first_place != NULL,
            XFER_ERR_NOMEM, "%llu views of rank %d", (unsigned long long)head[2], link->rank);
  link->n_bounds = head[2];
  link->n_src_bounds = head[3];
  for (size_t i = 0; i < link->n_remotes; i++) {
    uint64_t words[ALLOCATION_WORDS] = {0};

    xfi_reader_take(&r, words, sizeof words);
    link->remotes[i] =
        (xfi_remote){.base = words[0], .n_bytes = words[1], .halves = (int)(words[2] & 3)};
  }
  XFI_CHECK(link->page_offset < link->remotes->n_bytes, XFER_ERR_MISMATCH,
            "rank %d sent a malformed description", link->rank);
  for (size_t i = 0; i < link->n_bounds; i++)
    XFI_TRY(read_bound(link, &r, i));
done:
  return st;
}
