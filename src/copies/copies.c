/* Copies between views: cuts boxes at the ends of the pieces of both. */
#include <string.h>

#include "blocks.h"
#include "error.h"

/* The list that copies are added to, and what all of them have in common. */
typedef struct adding {
  xfi_copies *copies;
  int n_dims;
  xfi_elem elem;
} adding;

/* Adds the copy of a box that crosses no piece boundary on either side. */
static xfer_status add_whole(const adding *a, const xfi_end *dst, const xfi_end *src,
                             const int64_t *length)
{
  const xfi_convert *convert = a->elem.convert;
  const int64_t dst_piece = xfi_bound_piece_at(dst->bound, dst->start);
  const int64_t src_piece = src == NULL ? 0 : xfi_bound_piece_at(src->bound, src->start);
  xfi_copy copy;

  if (src != NULL && convert != NULL && xfi_convert_has_scales(convert))
    return xfi_blocks_add(a->copies, dst, src, length, convert);
  copy =
      (xfi_copy){.src = src == NULL ? NULL : xfi_bound_address(src->bound, src_piece, src->start),
                 .dst = xfi_bound_address(dst->bound, dst_piece, dst->start),
                 .run_bytes = a->elem.bytes,
                 .convert = convert,
                 .n_dims = a->n_dims};
  for (int d = 0; d < a->n_dims; d++) {
    copy.extent[d] = length[d];
    copy.src_stride[d] = src == NULL ? 0 : xfi_bound_strides(src->bound, src_piece)[d];
    copy.dst_stride[d] = xfi_bound_strides(dst->bound, dst_piece)[d];
  }
  xfi_copy_simplify(&copy);
  return xfi_copies_push(a->copies, &copy);
}

/* Can a box cross piece boundaries? Pieces that are boxes are never crossed by a move. */
static bool is_split(const xfi_bound *bound)
{
  return bound->pieces != NULL && bound->boxes == NULL;
}

/* Splits the box at the piece boundaries of the destination (side 0), then of the source (side 1),
 * and adds the parts. */
static xfer_status add_parts(const adding *a, const xfi_end *dst, const xfi_end *src,
                             const int64_t *length, int side)
{
  const bool splits = side == 0 ? is_split(dst->bound) : src != NULL && is_split(src->bound);
  int64_t part[XFER_MAX_DIMS];

  if (side == 2) return add_whole(a, dst, src, length);
  if (!splits) return add_parts(a, dst, src, length, side + 1);
  xfi_end at[2] = {*dst, src == NULL ? *dst : *src};
  const int d = at[side].bound->piece_dim;
  const int64_t piece = at[side].bound->piece_length;

  memcpy(part, length, sizeof *length * (size_t)a->n_dims);
  for (int64_t left = length[d]; left > 0; left -= part[d]) {
    part[d] = piece - at[side].start[d] % piece;
    if (part[d] > left) part[d] = left;
    XFI_TRY(add_parts(a, &at[0], src == NULL ? NULL : &at[1], part, side + 1));
    at[0].start[d] += part[d];
    at[1].start[d] += part[d];
  }
  return XFER_OK;
}

xfer_status xfi_copies_add(xfi_copies *copies, const xfi_end *dst, const xfi_end *src,
                           const int64_t *length, int n_dims, xfi_elem elem)
{
  const adding a = {copies, n_dims, elem};

  for (int d = 0; d < n_dims; d++)
    if (length[d] == 0) return XFER_OK;
  return add_parts(&a, dst, src, length, 0);
}

static bool is_alike(const xfi_copy *a, const xfi_copy *b)
{
  const size_t n = (size_t)a->n_dims * sizeof *a->extent;

  return a->n_dims == b->n_dims && a->run_bytes == b->run_bytes && a->convert == b->convert &&
         memcmp(a->extent, b->extent, n) == 0 && memcmp(a->src_stride, b->src_stride, n) == 0 &&
         memcmp(a->dst_stride, b->dst_stride, n) == 0;
}

void xfi_copies_join_last(xfi_copies *copies)
{
  xfi_copy *a = copies->n < 2 ? NULL : &copies->at[copies->n - 2];
  const xfi_copy *b = a == NULL ? NULL : a + 1;
  uint64_t src;
  uint64_t dst;

  if (a == NULL || a->src == NULL || b->src == NULL || !is_alike(a, b) || xfi_copy_has_scales(a))
    return;
  src = (uint64_t)((uintptr_t)b->src - (uintptr_t)a->src);
  dst = (uint64_t)((uintptr_t)b->dst - (uintptr_t)a->dst);
  for (int64_t d = 0; d < a->n_dims; d++) {
    if ((uint64_t)a->src_stride[d] != 2 * src || (uint64_t)a->dst_stride[d] != 2 * dst) continue;
    a->extent[d] *= 2;
    a->src_stride[d] /= 2;
    a->dst_stride[d] /= 2;
    xfi_copy_simplify(a);
    copies->n--;
    return;
  }
}
