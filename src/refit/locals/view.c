/* Makes the view of a part in a local tensor that was handed in. */
#include "locals.h"

#include "checked.h"
#include "dtype.h"
#include "error.h"
#include "vec.h"

#include <string.h>

/* Makes the view one of `n` pieces along a dim, and allocates the list of them. */
static xfer_status in_pieces(xfer_locals *locals, int side, int64_t n, int dim, xfer_view *view)
{
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
static void set_strides(xfer_view *view, const xfi_local_tensor *local, const xfi_slot *slot)
{
  if (slot->flat) view->strides[view->n_dims - 1] = (int64_t)xfi_dtype_size((int)local->dtype);
  for (int k = 0; k < local->n_dims; k++) {
    int d = xfi_slot_dim(slot, k);

    if (d < 0) continue;
    view->strides[d] = local->strides[k];
    if (d == slot->fuse_dim && slot->fusing.alternate) view->strides[d] *= slot->n_slots;
  }
}

static xfer_status check_given(const xfi_local_tensor *local)
{
  XFI_CHECK(local->base != NULL, XFER_ERR_STATE,
            "\"%s\" was not handed in: give it by xfer_locals_give() first", local->name);
  return XFER_OK;
}

/* Returns where the slot's tensor begins in a local tensor: at its beginning, or at the last
 * expert. */
static char *slot_base(const xfi_local_tensor *local, const xfi_slot *slot)
{
  const bool one = slot->last_expert && !slot->flat;

  return (char *)local->base + (one ? (local->shape[0] - 1) * local->strides[0] : 0);
}

/* Returns where the part begins. */
static char *part_base(const xfi_local_tensor *local, const xfi_slot *slot,
                       const xfer_local_part *part)
{
  char *base = slot_base(local, slot);

  return part->dim < 0 || part->step < 1 ? base : base + part->begin * local->strides[part->dim];
}

static const xfer_local_part *find_part(const xfer_locals *locals, const xfi_local_tensor *local,
                                        size_t tensor, int *n)
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
 * divides all stretches.
 */
static xfer_status view_stretches(xfer_locals *locals, int side, const xfi_local_tensor *local,
                                  const xfi_slot *slot, const xfer_local_part *part, int n,
                                  xfer_view *view)
{
  char *base = slot_base(local, slot);
  int64_t rows = 0, piece = 0;
  size_t at = 0;

  for (int i = 0; i < n; i++) {
    piece = xfi_gcd(part[i].end - part[i].begin, piece);
    rows += part[i].end - part[i].begin;
  }
  XFI_TRY(in_pieces(locals, side, piece > 0 ? rows / piece : 0, part->tensor_dim, view));
  for (int i = 0; i < n; i++) {
    for (int64_t row = part[i].begin; row < part[i].end; row += piece) {
      locals->pieces[side][at++] = base + row * local->strides[part->dim];
    }
  }
  return XFER_OK;
}

/* Makes the view of a list of experts, whose pieces are the experts, so the rows of each must lie
 * together. */
static xfer_status view_experts(xfer_locals *locals, int side, const xfi_local_tensor *first,
                                const xfi_slot *slot, const xfer_local_part *part, int n_parts,
                                int64_t n, xfer_view *view)
{
  XFI_CHECK(n_parts == 1, XFER_ERR_UNSUPPORTED,
            "\"%s\" has one expert of a list in %d stretches of rows, of which there is no view",
            first->name, n_parts);
  XFI_TRY(in_pieces(locals, side, n, 0, view));
  for (int64_t e = 0; e < n; e++) {
    XFI_TRY(check_given(&first[e]));
    for (int k = 0; k < first->n_dims; k++) {
      XFI_CHECK(first[e].strides[k] == first->strides[k] || first->shape[k] < 2, XFER_ERR_SHAPE,
                "\"%s\" and \"%s\" have different strides", first->name, first[e].name);
    }
    locals->pieces[side][e] = part_base(&first[e], slot, part);
  }
  return XFER_OK;
}

xfer_status xfi_locals_view(xfer_locals *locals, size_t tensor, int side, xfer_view *view,
                            bool *has)
{
  int64_t index = locals->local_of[side][tensor];
  const xfi_slot *slot;
  const xfer_layout *layout;
  const xfer_local_part *part;
  const xfi_local_tensor *local;
  xfi_place place;
  int n_parts;

  *has = false;
  if (index < 0) return XFER_OK;
  local = &locals->at[index];
  slot = &locals->refit->sides[side].held[locals->refit->origins[tensor].entry].slot;
  layout = side == XFER_REFIT_TRAIN ? locals->refit->tensors[tensor].src
                                    : locals->refit->tensors[tensor].dst;
  part = find_part(locals, local, tensor, &n_parts);
  if (part == NULL || !xfi_layout_place(layout, locals->rank, &place)) return XFER_OK;
  for (int d = 0; d < layout->n_dims; d++) {
    if (xfi_dim_length(&layout->dims[d], place.part[d]) == 0) return XFER_OK;
  }
  XFI_TRY(check_given(local));
  memset(view, 0, sizeof *view);
  view->kind = XFER_VIEW_STRIDED;
  view->n_dims = layout->n_dims;
  set_strides(view, local, slot);
  if (slot->each_expert) {
    XFI_TRY(view_experts(locals, side, local, slot, part, n_parts,
                         xfi_dim_length(&layout->dims[0], place.part[0]), view));
    if (view->strides[0] == 0) view->strides[0] = (int64_t)xfi_dtype_size((int)local->dtype);
  } else if (n_parts > 1) {
    XFI_TRY(view_stretches(locals, side, local, slot, part, n_parts, view));
  } else {
    view->base = part_base(local, slot, part);
  }
  *has = true;
  return XFER_OK;
}
