/* Copies between views: boxes cut where pieces of either end. */
#include <string.h>

#include "blocks.h"
#include "error.h"

/* A box that crosses no piece boundary on either side. */
static xfer_status add_whole(xfi_copies *copies, const xfi_end *dst, const xfi_end *src,
                             const int64_t *length, int n_dims, xfi_elem elem)
{
  const int64_t dst_piece = xfi_bound_piece_at(dst->bound, dst->start);
  const int64_t src_piece = src == NULL ? 0 : xfi_bound_piece_at(src->bound, src->start);
  xfi_copy copy;

  if (src != NULL && elem.convert != NULL && xfi_convert_has_scales(elem.convert))
    return xfi_blocks_add(copies, dst, src, length, elem.convert);
  copy =
      (xfi_copy){.src = src == NULL ? NULL : xfi_bound_address(src->bound, src_piece, src->start),
                 .dst = xfi_bound_address(dst->bound, dst_piece, dst->start),
                 .run_bytes = elem.bytes,
                 .convert = elem.convert,
                 .n_dims = n_dims};
  for (int d = 0; d < n_dims; d++) {
    copy.extent[d] = length[d];
    copy.src_stride[d] = src == NULL ? 0 : xfi_bound_strides(src->bound, src_piece)[d];
    copy.dst_stride[d] = xfi_bound_strides(dst->bound, dst_piece)[d];
  }
  xfi_copy_simplify(&copy);
  return xfi_copies_push(copies, &copy);
}

/* Can a box cross piece boundaries? No move crosses those of boxes. */
static bool is_split(const xfi_bound *bound)
{
  return bound->pieces != NULL && bound->boxes == NULL;
}

/* Split the box at `by`'s piece boundaries and hand each part to the other side, then to add_whole.
 */
static xfer_status add_split(xfi_copies *copies, const xfi_end *dst, const xfi_end *src,
                             const int64_t *length, int n_dims, xfi_elem elem, bool by_dst)
{
  const xfi_bound *by = by_dst ? dst->bound : src->bound;
  const int d = by->piece_dim;
  xfi_end dst_end = *dst;
  xfi_end src_end = src == NULL ? *dst : *src;
  int64_t part[XFER_MAX_DIMS];

  memcpy(part, length, sizeof *length * (size_t)n_dims);
  for (int64_t at = 0; at < length[d]; at += part[d]) {
    const int64_t in_piece = (by_dst ? dst_end.start[d] : src_end.start[d]) % by->piece_length;

    part[d] = by->piece_length - in_piece;
    if (part[d] > length[d] - at) part[d] = length[d] - at;
    if (by_dst && src != NULL && is_split(src->bound))
      XFI_TRY(add_split(copies, &dst_end, &src_end, part, n_dims, elem, false));
    else
      XFI_TRY(add_whole(copies, &dst_end, src == NULL ? NULL : &src_end, part, n_dims, elem));
    dst_end.start[d] += part[d];
    src_end.start[d] += part[d];
  }
  return XFER_OK;
}

xfer_status xfi_copies_add(xfi_copies *copies, const xfi_end *dst, const xfi_end *src,
                           const int64_t *length, int n_dims, xfi_elem elem)
{
  for (int d = 0; d < n_dims; d++)
    if (length[d] == 0) return XFER_OK;
  if (n_dims == 0) return add_whole(copies, dst, src, length, n_dims, elem);
  if (is_split(dst->bound)) return add_split(copies, dst, src, length, n_dims, elem, true);
  if (src != NULL && is_split(src->bound))
    return add_split(copies, dst, src, length, n_dims, elem, false);
  return add_whole(copies, dst, src, length, n_dims, elem);
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
