/*
 * Views, checked once, and the copies between them.
 */
#include "bound.h"

#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "vec.h"

static int64_t min64(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

int64_t xfi_bound_elems(const xfi_bound *bound)
{
  int64_t n = 1;

  for (int d = 0; d < bound->n_dims; d++)
    n *= bound->shape[d];
  return n;
}

size_t xfi_bound_reach(const xfi_bound *bound, int elem_bytes)
{
  size_t reach = (size_t)elem_bytes;

  if (xfi_bound_elems(bound) == 0) return 0;
  for (int d = 0; d < bound->n_dims; d++) {
    const int64_t n =
        min64(bound->shape[d], d == bound->piece_dim ? bound->piece_length : INT64_MAX);

    reach += (size_t)bound->strides[d] * (size_t)(n - 1);
  }
  return reach;
}

static void dense_strides(xfi_bound *b, int elem_bytes)
{
  int64_t stride = elem_bytes;

  for (int d = b->n_dims - 1; d >= 0; d--) {
    b->strides[d] = stride;
    stride *= b->shape[d] > 0 ? b->shape[d] : 1;
  }
}

/* Strides given: as many as dims, positive where they count, and reaching no further than 2^62.
 * Pieces are known: inside one the dim that is cut is shorter. */
static xfer_status copy_strides(xfi_bound *b, const xfer_view *view, int elem_bytes,
                                const char *what)
{
  xfer_status st = XFER_OK;
  int64_t reach = elem_bytes;

  XFI_CHECK(view->n_dims == b->n_dims, XFER_ERR_SHAPE, "%s: a view of %d dims for a tensor of %d",
            what, (int)view->n_dims, b->n_dims);
  for (int d = 0; d < b->n_dims; d++) {
    const int64_t n = min64(b->shape[d], d == b->piece_dim ? b->piece_length : INT64_MAX);
    int64_t span;

    b->strides[d] = view->strides[d];
    if (n <= 1) continue;
    XFI_CHECK(view->strides[d] >= elem_bytes, XFER_ERR_SHAPE,
              "%s: stride %lld in dim %d, below the %d bytes of an element", what,
              (long long)view->strides[d], d, elem_bytes);
    XFI_CHECK(xfi_imul_fits(view->strides[d], n - 1, &span) && xfi_iadd_fits(reach, span, &reach) &&
                  reach <= INT64_MAX / 2,
              XFER_ERR_OVERFLOW, "%s: stride %lld in dim %d reaches past 2^62 bytes", what,
              (long long)view->strides[d], d);
  }
done:
  return st;
}

static xfer_status copy_pieces(xfi_bound *b, const xfer_view *view, const char *what)
{
  xfer_status st = XFER_OK;
  const int d = view->piece_dim;

  XFI_CHECK(d >= 0 && d < b->n_dims, XFER_ERR_SHAPE,
            "%s: pieces along dim %d of a tensor of %d dims", what, d, b->n_dims);
  XFI_CHECK(view->n_pieces >= 1 && b->shape[d] % view->n_pieces == 0, XFER_ERR_SHAPE,
            "%s: %lld pieces along dim %d, which has %lld indices here", what,
            (long long)view->n_pieces, d, (long long)b->shape[d]);
  XFI_CHECK(view->pieces != NULL, XFER_ERR_ARG, "%s: a view in pieces without pointers", what);
  b->pieces = xfi_calloc((size_t)view->n_pieces, sizeof *b->pieces);
  XFI_CHECK(b->pieces != NULL, XFER_ERR_NOMEM, "%s: %lld pieces", what, (long long)view->n_pieces);
  for (int64_t i = 0; i < view->n_pieces; i++) {
    b->pieces[i] = view->pieces[i];
    XFI_CHECK(b->pieces[i] != NULL, XFER_ERR_ARG, "%s: piece %lld is NULL", what, (long long)i);
  }
  b->n_pieces = view->n_pieces;
  b->piece_dim = d;
  b->piece_length = b->shape[d] / view->n_pieces;
done:
  return st;
}

xfer_status xfi_bound_set(xfi_bound *bound, const xfer_view *view, const int64_t *shape, int n_dims,
                          int elem_bytes, const char *what)
{
  xfer_status st = XFER_OK;
  xfi_bound b = {.is_set = true, .n_dims = n_dims, .n_pieces = 1, .piece_length = INT64_MAX};

  if (n_dims > 0) memcpy(b.shape, shape, (size_t)n_dims * sizeof *shape);
  XFI_CHECK(view->kind >= XFER_VIEW_DENSE && view->kind <= XFER_VIEW_PIECES, XFER_ERR_ARG,
            "%s: view kind %d", what, (int)view->kind);
  XFI_CHECK(view->reserved == 0, XFER_ERR_ARG, "%s: a reserved field of the view is not 0", what);
  if (view->kind == XFER_VIEW_PIECES) {
    XFI_TRY(copy_pieces(&b, view, what));
  } else {
    XFI_CHECK(view->base != NULL, XFER_ERR_ARG, "%s: the view's base is NULL", what);
    b.only = view->base;
  }
  if (view->kind == XFER_VIEW_DENSE)
    dense_strides(&b, elem_bytes);
  else
    XFI_TRY(copy_strides(&b, view, elem_bytes, what));
  xfi_bound_clear(bound);
  *bound = b;
  b.pieces = NULL;
done:
  xfi_bound_clear(&b);
  return st;
}

void xfi_bound_clear(xfi_bound *bound)
{
  xfi_free(bound->pieces);
  memset(bound, 0, sizeof *bound);
}

bool xfi_bound_equal(const xfi_bound *a, const xfi_bound *b)
{
  if (a->is_set != b->is_set || a->n_dims != b->n_dims || a->n_pieces != b->n_pieces) return false;
  if (a->piece_dim != b->piece_dim) return false;
  for (int d = 0; d < a->n_dims; d++)
    if (a->shape[d] != b->shape[d] || a->strides[d] != b->strides[d]) return false;
  for (int64_t i = 0; i < a->n_pieces; i++)
    if (xfi_bound_piece(a, i) != xfi_bound_piece(b, i)) return false;
  return true;
}

void xfi_copies_free(xfi_copies *copies)
{
  xfi_free(copies->at);
  *copies = (xfi_copies){NULL, 0, 0};
}

/* ---- copies between bounds ---- */

char *xfi_bound_address(const xfi_bound *b, const int64_t *index)
{
  const int64_t piece = b->n_dims > 0 ? index[b->piece_dim] / b->piece_length : 0;
  char *p = xfi_bound_piece(b, piece);

  for (int d = 0; d < b->n_dims; d++)
    p += (d == b->piece_dim ? index[d] - piece * b->piece_length : index[d]) * b->strides[d];
  return p;
}

/* A box that crosses no piece boundary on either side. */
static xfer_status add_whole(xfi_copies *copies, const xfi_end *dst, const xfi_end *src,
                             const int64_t *length, int n_dims, int elem_bytes)
{
  xfer_status st = XFER_OK;
  xfi_copy *copy;

  XFI_TRY(xfi_vec_reserve(&copies->at, &copies->capacity, copies->n + 1, sizeof *copies->at));
  copy = &copies->at[copies->n];
  *copy = (xfi_copy){.src = src == NULL ? NULL : xfi_bound_address(src->bound, src->start),
                     .dst = xfi_bound_address(dst->bound, dst->start),
                     .run_bytes = elem_bytes,
                     .n_dims = n_dims};
  for (int d = 0; d < n_dims; d++) {
    copy->extent[d] = length[d];
    copy->src_stride[d] = src == NULL ? 0 : src->bound->strides[d];
    copy->dst_stride[d] = dst->bound->strides[d];
  }
  xfi_copy_simplify(copy);
  copies->n++;
done:
  return st;
}

/* Split the box at `by`'s piece boundaries and hand each part to the other side, then to add_whole.
 */
static xfer_status add_split(xfi_copies *copies, const xfi_end *dst, const xfi_end *src,
                             const int64_t *length, int n_dims, int elem_bytes, bool by_dst)
{
  const xfi_bound *by = by_dst ? dst->bound : src->bound;
  const int d = by->piece_dim;
  xfer_status st = XFER_OK;
  xfi_end dst_end = *dst;
  xfi_end src_end = src == NULL ? *dst : *src;
  int64_t part[XFER_MAX_DIMS];

  memcpy(part, length, sizeof *length * (size_t)n_dims);
  for (int64_t at = 0; at < length[d]; at += part[d]) {
    const int64_t in_piece = (by_dst ? dst_end.start[d] : src_end.start[d]) % by->piece_length;

    part[d] = min64(length[d] - at, by->piece_length - in_piece);
    if (by_dst && src != NULL && src->bound->pieces != NULL)
      XFI_TRY(add_split(copies, &dst_end, &src_end, part, n_dims, elem_bytes, false));
    else
      XFI_TRY(add_whole(copies, &dst_end, src == NULL ? NULL : &src_end, part, n_dims, elem_bytes));
    dst_end.start[d] += part[d];
    src_end.start[d] += part[d];
  }
done:
  return st;
}

xfer_status xfi_copies_add(xfi_copies *copies, const xfi_end *dst, const xfi_end *src,
                           const int64_t *length, int n_dims, int elem_bytes)
{
  for (int d = 0; d < n_dims; d++)
    if (length[d] == 0) return XFER_OK;
  if (n_dims == 0) return add_whole(copies, dst, src, length, n_dims, elem_bytes);
  if (dst->bound->pieces != NULL)
    return add_split(copies, dst, src, length, n_dims, elem_bytes, true);
  if (src != NULL && src->bound->pieces != NULL)
    return add_split(copies, dst, src, length, n_dims, elem_bytes, false);
  return add_whole(copies, dst, src, length, n_dims, elem_bytes);
}
