/* Checks views and binds them to parts. */
#include "bound.h"

#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "vec.h"

void xfi_bound_shape(int64_t *shape, const xfi_bound *bound, int64_t piece)
{
  const int64_t *whole = bound->boxes != NULL ? bound->boxes[piece].length : bound->shape;

  for (int d = 0; d < bound->n_dims; d++)
    shape[d] =
        d == bound->piece_dim && bound->piece_length < whole[d] ? bound->piece_length : whole[d];
}

void xfi_bound_start(int64_t *start, const xfi_bound *bound, int64_t piece)
{
  for (int d = 0; d < bound->n_dims; d++)
    start[d] = bound->boxes == NULL && d == bound->piece_dim && piece > 0
                   ? piece * bound->piece_length
                   : 0;
  if (bound->boxes != NULL) start[0] = bound->boxes[piece].row;
}

size_t xfi_bound_reach(const xfi_bound *bound, int64_t piece, int elem_bytes)
{
  const int64_t *strides = xfi_bound_strides(bound, piece);
  size_t reach = (size_t)elem_bytes;
  int64_t shape[XFER_MAX_DIMS];

  xfi_bound_shape(shape, bound, piece);
  for (int d = 0; d < bound->n_dims; d++)
    reach += (size_t)strides[d] * (size_t)(shape[d] - 1);
  return reach;
}

/* Sets the strides of a dense array and returns its bytes, if it is not empty. */
static int64_t dense_strides(int64_t *strides, const int64_t *shape, int n_dims, int elem_bytes)
{
  int64_t stride = elem_bytes;

  for (int d = n_dims - 1; d >= 0; d--) {
    strides[d] = stride;
    stride *= shape[d] > 0 ? shape[d] : 1;
  }
  return stride;
}

xfi_bound xfi_bound_dense(char *base, const int64_t *shape, int n_dims, int elem_bytes)
{
  xfi_bound b = {
      .is_set = true, .n_dims = n_dims, .n_pieces = 1, .piece_length = INT64_MAX, .only = base};

  if (n_dims > 0) memcpy(b.shape, shape, (size_t)n_dims * sizeof *shape);
  (void)dense_strides(b.strides, shape, n_dims, elem_bytes);
  return b;
}

/* Copies the caller's strides of a piece. They must be at least an element in dims of more than one
 * index, and may not reach past 2^62 bytes. */
static xfer_status copy_strides(int64_t *strides, const int64_t *given, const int64_t *shape,
                                int n_dims, int elem_bytes, const char *what)
{
  int64_t reach = elem_bytes;

  for (int d = 0; d < n_dims; d++) {
    int64_t span;

    strides[d] = given[d];
    if (shape[d] <= 1) continue;
    XFI_CHECK(given[d] >= elem_bytes, XFER_ERR_SHAPE,
              "%s: stride %lld in dim %d, below the %d bytes of an element: bind a "
              "contiguous array, and copy to or from it",
              what, (long long)given[d], d, elem_bytes);
    XFI_CHECK(xfi_imul_fits(given[d], shape[d] - 1, &span) && xfi_iadd_fits(reach, span, &reach) &&
                  reach <= INT64_MAX / 2,
              XFER_ERR_OVERFLOW, "%s: stride %lld in dim %d reaches past 2^62 bytes", what,
              (long long)given[d], d);
  }
  return XFER_OK;
}

/* Checks the fields of a view whose kind is allowed. */
static xfer_status check_view(const xfer_view *view, int n_dims, const char *what)
{
  const bool is_array = view->kind == XFER_VIEW_DENSE || view->kind == XFER_VIEW_STRIDED;

  XFI_CHECK(view->reserved == 0, XFER_ERR_ARG, "%s: a reserved field of the view is not 0", what);
  XFI_CHECK(!is_array || view->base != NULL, XFER_ERR_ARG, "%s: the view's base is NULL", what);
  if (view->kind == XFER_VIEW_DENSE) return XFER_OK;
  XFI_CHECK(view->n_dims >= 0, XFER_ERR_ARG, "%s: the view has no strides", what);
  XFI_CHECK(view->n_dims == n_dims, XFER_ERR_SHAPE, "%s: a view of %d dims for a tensor of %d",
            what, (int)view->n_dims, n_dims);
  return XFER_OK;
}

static xfer_status copy_pieces(xfi_bound *b, const xfer_view *view, const char *what)
{
  const int d = view->piece_dim;

  XFI_CHECK(d >= 0 && d < b->n_dims, XFER_ERR_SHAPE,
            "%s: pieces along dim %d of a tensor of %d dims", what, d, b->n_dims);
  XFI_CHECK(view->n_pieces >= 1 && b->shape[d] % view->n_pieces == 0, XFER_ERR_SHAPE,
            "%s: %lld pieces along dim %d, which has %lld indices here and is cut in equal ones",
            what, (long long)view->n_pieces, d, (long long)b->shape[d]);
  XFI_CHECK(view->pieces != NULL, XFER_ERR_ARG, "%s: a view in pieces without pointers", what);
  b->pieces = xfi_calloc((size_t)view->n_pieces, sizeof *b->pieces);
  XFI_CHECK(b->pieces != NULL, XFER_ERR_NOMEM, "%s: %lld pieces", what, (long long)view->n_pieces);
  for (int64_t i = 0; i < view->n_pieces; i++) {
    b->pieces[i] = view->pieces[i];
    XFI_CHECK(b->pieces[i] != NULL, XFER_ERR_ARG, "%s: piece %lld is NULL", what, (long long)i);
  }
  b->only = b->pieces[0]; /* used if there is one piece, which is an array */
  b->n_pieces = view->n_pieces;
  b->piece_dim = d;
  b->piece_length = b->shape[d] / view->n_pieces;
  return XFER_OK;
}

xfer_status xfi_bound_set(xfi_bound *bound, const xfer_view *view, const int64_t *shape, int n_dims,
                          int elem_bytes, const char *what)
{
  xfer_status st = XFER_OK;
  xfi_bound b = xfi_bound_dense(view->base, shape, n_dims, elem_bytes);

  XFI_CHECK_DONE(view->kind >= XFER_VIEW_DENSE && view->kind <= XFER_VIEW_BOXES, XFER_ERR_ARG,
                 "%s: view kind %d, which is no xfer_view_kind", what, (int)view->kind);
  XFI_CHECK_DONE(view->kind != XFER_VIEW_BOXES, XFER_ERR_SHAPE,
                 "%s: a view by boxes of a layout that is by placements", what);
  XFI_TRY_DONE(check_view(view, n_dims, what));
  if (view->kind == XFER_VIEW_PIECES) XFI_TRY_DONE(copy_pieces(&b, view, what));
  if (view->kind != XFER_VIEW_DENSE) {
    int64_t in_piece[XFER_MAX_DIMS] = {0};

    xfi_bound_shape(in_piece, &b, 0);
    XFI_TRY_DONE(copy_strides(b.strides, view->strides, in_piece, n_dims, elem_bytes, what));
  }
  xfi_bound_clear(bound);
  *bound = b;
  b.pieces = NULL;
done:
  xfi_bound_clear(&b);
  return st;
}

/* Makes box i of the view, which is not empty, the next piece. In a dense view it is at *dense,
 * which is moved behind it. */
static xfer_status add_box(xfi_bound *b, int64_t i, const xfer_view *view, char **dense,
                           int elem_bytes, const char *what)
{
  xfi_bound_box *box = &b->boxes[b->n_pieces];
  char **piece = &b->pieces[b->n_pieces++];
  const int64_t n_bytes = dense_strides(box->strides, box->length, b->n_dims, elem_bytes);

  if (view->kind == XFER_VIEW_DENSE) {
    *piece = *dense;
    *dense += n_bytes;
    return XFER_OK;
  }
  *piece = view->pieces[i];
  XFI_CHECK(*piece != NULL, XFER_ERR_ARG, "%s: box %lld is at NULL", what, (long long)i);
  if (view->box_strides != NULL)
    XFI_TRY(copy_strides(box->strides, view->box_strides + i * b->n_dims, box->length, b->n_dims,
                         elem_bytes, what));
  return XFER_OK;
}

xfer_status xfi_bound_set_boxes(xfi_bound *bound, const xfer_view *view, xfi_bound_box *boxes,
                                int64_t n, int n_dims, int elem_bytes, const char *what)
{
  xfer_status st = XFER_OK;
  xfi_bound b = {.is_set = true, .n_dims = n_dims, .piece_length = INT64_MAX, .boxes = boxes};
  char *dense = view->base;

  XFI_CHECK_DONE(view->kind == XFER_VIEW_DENSE || view->kind == XFER_VIEW_BOXES, XFER_ERR_SHAPE,
                 "%s: view kind %d of %lld boxes that do not stack", what, (int)view->kind,
                 (long long)n);
  XFI_TRY_DONE(check_view(view, n_dims, what));
  XFI_CHECK_DONE(view->kind == XFER_VIEW_DENSE || (view->n_pieces == n && view->pieces != NULL),
                 XFER_ERR_SHAPE, "%s: a view of %lld boxes, the rank has %lld", what,
                 view->pieces == NULL ? 0LL : (long long)view->n_pieces, (long long)n);
  b.pieces = xfi_calloc((size_t)n, sizeof *b.pieces);
  XFI_CHECK_DONE(b.pieces != NULL, XFER_ERR_NOMEM, "%s: %lld boxes", what, (long long)n);
  for (int64_t i = 0; i < n; i++) {
    bool empty = false;

    for (int d = 0; d < n_dims; d++)
      empty = empty || boxes[i].length[d] == 0;
    if (empty) continue;
    boxes[b.n_pieces] = boxes[i];
    XFI_TRY_DONE(add_box(&b, i, view, &dense, elem_bytes, what));
  }
  xfi_bound_clear(bound);
  *bound = b;
  b = (xfi_bound){0};
done:
  xfi_bound_clear(&b);
  return st;
}

void xfi_bound_clear(xfi_bound *bound)
{
  xfi_free(bound->pieces);
  xfi_free(bound->boxes);
  memset(bound, 0, sizeof *bound);
}

/* Does the piece have the same shape and strides in both? */
static bool same_piece(const xfi_bound *a, const xfi_bound *b, int64_t piece)
{
  for (int d = 0; d < a->n_dims; d++)
    if (a->boxes[piece].length[d] != b->boxes[piece].length[d] ||
        a->boxes[piece].strides[d] != b->boxes[piece].strides[d])
      return false;
  return true;
}

bool xfi_bound_equal(const xfi_bound *a, const xfi_bound *b)
{
  if (a->is_set != b->is_set || !xfi_bound_is_alike(a, b)) return false;
  for (int64_t i = 0; i < a->n_pieces; i++)
    if (xfi_bound_piece(a, i) != xfi_bound_piece(b, i)) return false;
  return true;
}

bool xfi_bound_is_alike(const xfi_bound *a, const xfi_bound *b)
{
  if (a->n_dims != b->n_dims || a->n_pieces != b->n_pieces) return false;
  if (a->piece_dim != b->piece_dim || (a->boxes == NULL) != (b->boxes == NULL)) return false;
  for (int d = 0; d < a->n_dims; d++)
    if (a->shape[d] != b->shape[d] || a->strides[d] != b->strides[d]) return false;
  for (int64_t i = 0; a->boxes != NULL && i < a->n_pieces; i++)
    if (!same_piece(a, b, i)) return false;
  return true;
}

void xfi_copies_free(xfi_copies *copies)
{
  xfi_free(copies->at);
  *copies = (xfi_copies){NULL, 0, 0};
}

xfer_status xfi_copies_push(xfi_copies *copies, const xfi_copy *copy)
{
  return XFI_APPEND(copies->at, copies->n, copies->capacity, *copy);
}

bool xfi_bound_lies_as(const xfi_bound *bound, const xfer_view *view, int elem_bytes)
{
  int64_t dense[XFER_MAX_DIMS];
  const int64_t *strides = view->strides;

  if (bound->pieces != NULL || view->base == NULL || view->reserved != 0) return false;
  if (view->kind == XFER_VIEW_DENSE) {
    (void)dense_strides(dense, bound->shape, bound->n_dims, elem_bytes);
    strides = dense;
  } else if (view->kind != XFER_VIEW_STRIDED || view->n_dims != bound->n_dims) {
    return false;
  }
  for (int d = 0; d < bound->n_dims; d++)
    if (strides[d] != bound->strides[d]) return false;
  return true;
}

/* ---- copies between bounds ---- */

int64_t xfi_bound_piece_at(const xfi_bound *b, const int64_t *index)
{
  int64_t lo = 0;
  int64_t hi = b->n_pieces;

  if (b->n_dims == 0) return 0;
  if (b->boxes == NULL) return index[b->piece_dim] / b->piece_length;
  XFI_BISECT(lo, hi, mid, b->boxes[mid].row <= index[0]);
  return lo - 1;
}

char *xfi_bound_address(const xfi_bound *b, int64_t piece, const int64_t *index)
{
  const int64_t *strides = xfi_bound_strides(b, piece);
  char *p = xfi_bound_piece(b, piece);
  int64_t first[XFER_MAX_DIMS];

  xfi_bound_start(first, b, piece);
  for (int d = 0; d < b->n_dims; d++)
    p += (index[d] - first[d]) * strides[d];
  return p;
}
