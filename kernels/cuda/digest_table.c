/* From the boxes of a digest to the table of its kernel. */
#include "tables.h"

#include "error.h"

enum {
  BLOCK_BYTES = 2048, /* four units for each lane of a warp, which have one chunk weight */
  TILE_BLOCKS = 8,
  TILE_UNITS = 1024 /* so that a tile holds several of the runs that are shorter than a block */
};

/* In as many parts as its runs need. */
static xfer_status add_box(xfi_cuda_table *table, const xfi_digest_box *box)
{
  xfi_copy c = box->copy;
  const int64_t offset = xfi_digest_offset(c.dst);
  uint64_t apart = (uint64_t)(uintptr_t)c.src - (uint64_t)offset;
  uint64_t starts = (uint64_t)offset;
  const int64_t n_runs = xfi_copy_runs(&c);
  xfi_copy halves[2];
  xfi_cuda_digest_tiles *tiles;
  xfi_cuda_piece *piece;

  if (xfi_cuda_halve(halves, &c)) {
    XFI_TRY(add_box(table, &(xfi_digest_box){halves[0], box->factor, box->sum}));
    return add_box(table, &(xfi_digest_box){halves[1], box->factor, box->sum});
  }
  for (int64_t d = 0; d < c.n_dims; d++) {
    apart |= (uint64_t)(c.src_stride[d] - c.dst_stride[d]);
    starts |= (uint64_t)c.dst_stride[d];
  }
  xfi_copy_sort_dims(&c, c.src_stride); /* lanes go along what is fastest in memory */
  XFI_TRY(xfi_cuda_piece_begin(&piece, table, &c));
  tiles = &piece->digest;
  *tiles = (xfi_cuda_digest_tiles){.run_bytes = c.run_bytes,
                                   .tiles_per_run = 1,
                                   .n_runs = (uint32_t)n_runs,
                                   .tile_runs = 1,
                                   .word_log2 = xfi_cuda_word_log2(apart),
                                   .factor = box->factor,
                                   .sum = box->sum};
  if (c.run_bytes >= BLOCK_BYTES) {
    const int64_t blocks = (c.run_bytes - 1) / BLOCK_BYTES + 2; /* the first may be a part of one */

    tiles->tiles_per_run = (blocks + TILE_BLOCKS - 1) / TILE_BLOCKS;
  } else {
    const int64_t before = XFI_DIGEST_UNIT - (INT64_C(1) << xfi_cuda_word_log2(starts));

    tiles->run_units = /* of which `before` bytes are before the run in its first unit */
        (uint32_t)((before + c.run_bytes + XFI_DIGEST_UNIT - 1) / XFI_DIGEST_UNIT);
    tiles->by_run_units = xfi_cuda_div_make(tiles->run_units);
    tiles->tile_runs = TILE_UNITS / tiles->run_units;
  }
  xfi_cuda_piece_end(table, (n_runs + tiles->tile_runs - 1) / (int64_t)tiles->tile_runs *
                                tiles->tiles_per_run);
  return XFER_OK;
}

xfer_status xfi_cuda_digest_table_make(xfi_cuda_table *table, const xfi_digest_box *boxes,
                                       size_t n_boxes)
{
  *table = (xfi_cuda_table){0};
  for (size_t i = 0; i < n_boxes; i++) {
    xfi_digest_box box = boxes[i];

    if (xfi_copy_bytes(&box.copy) == 0) continue;
    xfi_copy_simplify(&box.copy);
    XFI_TRY(add_box(table, &box));
  }
  return XFER_OK;
}
