/* Makes the view of a part in a local tensor that was handed in. */
#include "locals.h"

#include "checked.h"
#include "dtype.h"
#include "error.h"
#include "vec.h"

#include <string.h>

/* A tensor in the local tensor of one side. */
typedef struct viewed {
  xfer_locals *locals;
  int side;
  const xfi_local_tensor *local; /* the first, if each expert is one */
  const xfi_param_mapping *mapping;
  const xfer_local_part *parts; /* [n_parts] */
  int n_parts;
} viewed;

/* Makes the view one of `n` pieces along a dim, and allocates the list of them. */
static xfer_status make_pieces(xfer_view *view, const viewed *v, int64_t n, int dim)
{
  xfer_locals *locals = v->locals;
  const int side = v->side;

  XFI_TRY(xfi_vec_reserve(&locals->pieces[side], &locals->pieces_capacity[side], (size_t)n,
                          sizeof *locals->pieces[side]));
  view->kind = XFER_VIEW_PIECES;
  view->base = NULL;
  view->pieces = locals->pieces[side];
  view->n_pieces = n;
  view->piece_dim = dim;
  return XFER_OK;
}

/* Sets the view's strides: those of the tensor's dims in the local tensor. */
static void set_strides(xfer_view *view, const xfi_local_tensor *local,
                        const xfi_param_mapping *mapping)
{
  if (mapping->flat) view->strides[view->n_dims - 1] = (int64_t)xfi_dtype_size((int)local->dtype);
  for (int k = 0; k < local->n_dims; k++) {
    int d = xfi_param_mapping_dim(mapping, k);

    if (d < 0) continue;
    view->strides[d] = local->strides[k];
    if (d == mapping->row_dim && mapping->fused.alternate) view->strides[d] *= mapping->n_weights;
  }
}

static xfer_status check_given(const xfi_local_tensor *local)
{
  XFI_CHECK(local->base != NULL, XFER_ERR_STATE,
            "\"%s\" was not handed in: give it by xfer_locals_give() first", local->name);
  return XFER_OK;
}

/* Returns where the entry's tensor begins in a local tensor: at its beginning, or at the last
 * expert. */
static char *mapping_base(const xfi_local_tensor *local, const xfi_param_mapping *mapping)
{
  const bool one = mapping->last_expert && !mapping->flat;

  return (char *)local->base + (one ? (local->shape[0] - 1) * local->strides[0] : 0);
}

/* Returns where the part begins. */
static char *part_base(const xfi_local_tensor *local, const xfi_param_mapping *mapping,
                       const xfer_local_part *part)
{
  char *base = mapping_base(local, mapping);

  return part->dim < 0 || part->step < 1 ? base : base + part->begin * local->strides[part->dim];
}

/* Returns the parts of a tensor in a local tensor, which follow each other, and sets their number;
 * NULL: there are none. */
static const xfer_local_part *find_parts(int *n, const xfer_locals *locals,
                                         const xfi_local_tensor *local, size_t tensor)
{
  const xfer_local_part *first = NULL;

  *n = 0;
  for (int i = 0; i < local->n_parts; i++) {
    const xfer_local_part *part = &locals->parts[local->first_part + (size_t)i];

    if (part->tensor != tensor) continue;
    if (first == NULL) first = part;
    (*n)++;
  }
  return first;
}

/* Makes the view of rows in several stretches: equal pieces whose length is the greatest that
 * divides all stretches. */
static xfer_status view_stretches(xfer_view *view, const viewed *v)
{
  char *base = mapping_base(v->local, v->mapping);
  const int64_t pitch = v->local->strides[v->parts->dim];
  int64_t rows = 0, piece = 0;
  size_t at = 0;

  for (int i = 0; i < v->n_parts; i++) {
    piece = xfi_gcd(v->parts[i].end - v->parts[i].begin, piece);
    rows += v->parts[i].end - v->parts[i].begin;
  }
  XFI_TRY(make_pieces(view, v, piece > 0 ? rows / piece : 0, v->parts->tensor_dim));
  for (int i = 0; i < v->n_parts; i++) {
    for (int64_t row = v->parts[i].begin; row < v->parts[i].end; row += piece)
      v->locals->pieces[v->side][at++] = base + row * pitch;
  }
  return XFER_OK;
}

/* Makes the view of a list of `n` experts, whose pieces are the experts, so the rows of each must
 * lie together. */
static xfer_status view_experts(xfer_view *view, const viewed *v, int64_t n)
{
  const xfi_local_tensor *first = v->local;

  XFI_CHECK(v->n_parts == 1, XFER_ERR_UNSUPPORTED,
            "\"%s\" has one expert of a list in %d stretches of rows, of which there is no view",
            first->name, v->n_parts);
  XFI_TRY(make_pieces(view, v, n, 0));
  for (int64_t e = 0; e < n; e++) {
    XFI_TRY(check_given(&first[e]));
    for (int k = 0; k < first->n_dims; k++) {
      XFI_CHECK(first[e].strides[k] == first->strides[k] || first->shape[k] < 2, XFER_ERR_SHAPE,
                "\"%s\" and \"%s\" have different strides", first->name, first[e].name);
    }
    v->locals->pieces[v->side][e] = part_base(&first[e], v->mapping, v->parts);
  }
  return XFER_OK;
}

xfer_status xfi_locals_view(xfer_locals *locals, size_t tensor, int side, xfer_view *view,
                            bool *has)
{
  const int64_t index = locals->local_of[side][tensor];
  const xfer_tensor *of = &locals->refit->tensors[tensor];
  const xfer_layout *layout = side == XFER_REFIT_TRAIN ? of->src : of->dst;
  viewed v = {.locals = locals, .side = side};
  xfi_place place;

  *has = false;
  if (index < 0) return XFER_OK;
  v.local = &locals->at[index];
  v.mapping = &locals->refit->sides[side].held[locals->refit->origins[tensor].entry].mapping;
  v.parts = find_parts(&v.n_parts, locals, v.local, tensor);
  if (v.parts == NULL || !xfi_layout_place(layout, locals->rank, &place)) return XFER_OK;
  for (int d = 0; d < layout->n_dims; d++) {
    if (xfi_dim_length(&layout->dims[d], place.part[d]) == 0) return XFER_OK;
  }
  XFI_TRY(check_given(v.local));
  memset(view, 0, sizeof *view);
  view->kind = XFER_VIEW_STRIDED;
  view->n_dims = layout->n_dims;
  set_strides(view, v.local, v.mapping);
  if (v.mapping->each_expert) {
    XFI_TRY(view_experts(view, &v, xfi_dim_length(&layout->dims[0], place.part[0])));
    if (view->strides[0] == 0) view->strides[0] = (int64_t)xfi_dtype_size((int)v.local->dtype);
  } else if (v.n_parts > 1) {
    XFI_TRY(view_stretches(view, &v));
  } else {
    view->base = part_base(v.local, v.mapping, v.parts);
  }
  *has = true;
  return XFER_OK;
}
