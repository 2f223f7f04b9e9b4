/*
 * What the two ends of a link tell each other, once each way:
 *
 *   n_allocations, page offset, n_bounds, n of them sources
 *   per allocation: handle, base
 *   per bound:      tensor, piece_dim, piece_length, n_pieces, by boxes?, strides, shape,
 *                   per piece: (allocation, offset); by boxes also what each box is
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
  xfi_allocation *allocations;
  size_t n_allocations;
  size_t allocations_capacity;
} blob;

static xfer_status put_words(blob *b, const uint64_t *words, size_t n)
{
  return xfi_bytes_put(&b->bytes, words, n * sizeof *words);
}

/* (allocation, offset) of bytes; neighbours tend to share one, so search from the end. */
static xfer_status put_address(blob *b, xfi_device *device, const void *pointer, size_t n_bytes)
{
  xfer_status st = XFER_OK;
  xfi_allocation found;
  size_t i;

  XFI_TRY(device->ops->find_allocation(device, pointer, n_bytes, &found));
  for (i = b->n_allocations; i > 0; i--)
    if (b->allocations[i - 1].base == found.base && b->allocations[i - 1].n_bytes == found.n_bytes)
      break;
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

static xfer_status put_bound(blob *b, xfi_device *device, const xfi_bound *bound, uint32_t tensor,
                             int elem_bytes)
{
  const uint64_t head[5] = {tensor, (uint64_t)bound->piece_dim, (uint64_t)bound->piece_length,
                            (uint64_t)bound->n_pieces, bound->boxes != NULL};
  xfer_status st = XFER_OK;

  XFI_TRY(put_words(b, head, 5));
  XFI_TRY(xfi_bytes_put(&b->bytes, bound->strides, sizeof bound->strides));
  XFI_TRY(xfi_bytes_put(&b->bytes, bound->shape, sizeof bound->shape));
  for (int64_t i = 0; i < bound->n_pieces; i++)
    XFI_TRY(
        put_address(b, device, xfi_bound_piece(bound, i), xfi_bound_reach(bound, i, elem_bytes)));
  if (bound->boxes != NULL)
    XFI_TRY(xfi_bytes_put(&b->bytes, bound->boxes, (size_t)bound->n_pieces * sizeof *bound->boxes));
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
  if (peer == XFI_NO_FLOW) return XFER_OK;
  for (size_t i = 0; i < list->peers[peer].n; i++) {
    const uint32_t tensor = list->moves[list->peers[peer].first + i].tensor;

    const xfi_class *cls = xfi_plan_class(plan->moves, tensor);

    if (tensor == last || xfi_run_broadcasts(plan, cls)) continue;
    last = tensor;
    XFI_TRY(put_bound(b, plan->device,
                      source ? xfi_run_src(plan, tensor) : xfi_run_dst(plan, tensor), tensor,
                      cls->src->elem_bytes));
    ++*n;
  }
done:
  return st;
}

/* Bounds first, into their own blob, since they make the list of allocations. */
xfer_status xfi_link_describe(xfi_bytes *out, const xfer_plan *plan, const xfi_link *link,
                              const uint64_t *page)
{
  xfi_device *device = plan->device;
  xfer_status st = XFER_OK;
  blob bounds = {0};
  uint64_t page_at[2];
  uint64_t head[4];
  uint64_t n_src;
  uint64_t n_dst;

  XFI_TRY(put_address(&bounds, device, page, sizeof *page));
  memcpy(page_at, bounds.bytes.at, sizeof page_at);
  bounds.bytes.n = 0;
  XFI_TRY(put_flow(&bounds, &n_src, plan, &plan->moves->sends, link->send, true));
  XFI_TRY(put_flow(&bounds, &n_dst, plan, &plan->moves->recvs, link->recv, false));
  head[0] = bounds.n_allocations;
  head[1] = page_at[1];
  head[2] = n_src + n_dst;
  head[3] = n_src;
  XFI_TRY(xfi_bytes_put(out, head, sizeof head));
  for (size_t i = 0; i < bounds.n_allocations; i++) {
    const uint64_t base = (uint64_t)(uintptr_t)bounds.allocations[i].base;
    xfi_mem_handle handle;

    memset(&handle, 0, sizeof handle);
    st = device->ops->mem_export(device, &bounds.allocations[i], &handle);
    if (st == XFER_ERR_UNSUPPORTED)
      memset(&handle, 0, sizeof handle); /* nobody can map it */
    else
      XFI_TRY(st);
    XFI_TRY(xfi_bytes_put(out, &handle, sizeof handle));
    XFI_TRY(xfi_bytes_put(out, &base, sizeof base));
  }
  XFI_TRY(xfi_bytes_put(out, bounds.bytes.at, bounds.bytes.n));
done:
  xfi_bytes_free(&bounds.bytes);
  xfi_free(bounds.allocations);
  return st;
}

/* ---- what a peer tells us ---- */

static xfer_status read_bound(xfi_link *link, xfi_reader *r, size_t i)
{
  xfer_status st = XFER_OK;
  xfi_bound *b = &link->bounds[i];
  uint64_t head[5];

  xfi_reader_take(r, head, sizeof head);
  xfi_reader_take(r, b->strides, sizeof b->strides);
  xfi_reader_take(r, b->shape, sizeof b->shape);
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
    xfi_reader_take(r, link->places[link->n_places], sizeof *link->places);
    XFI_CHECK(!r->failed && link->places[link->n_places][0] < link->n_remotes, XFER_ERR_MISMATCH,
              "rank %d sent a malformed description", link->rank);
  }
  link->first_place[i + 1] = link->n_places;
  if (head[4] != 0) {
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
    xfi_reader_take(&r, &link->remotes[i].handle, sizeof link->remotes[i].handle);
    xfi_reader_take(&r, &link->remotes[i].base, sizeof link->remotes[i].base);
  }
  for (size_t i = 0; i < link->n_bounds; i++)
    XFI_TRY(read_bound(link, &r, i));
done:
  return st;
}
