/* From the boxes of a digest to the table of its kernel. */
#include "launch.h"

#include "alloc.h"
#include "error.h"
#include "vec.h"

enum {
  BLOCK_BYTES = 2048, /* four units for each lane of a warp, which have one chunk weight */
  TILE_BLOCKS = 8,
  TILE_UNITS = 1024
};

/* The lowest of the bits, at most that of 16. */
static uint32_t log2_of(uint64_t bits)
{
  uint32_t log2 = 0;

  bits |= XFI_DIGEST_UNIT;
  while ((bits >> log2 & 1) == 0)
    log2++;
  return log2;
}

/* Lanes go along what is fastest in memory. */
static void sort_by_memory(xfi_copy *c)
{
  for (int64_t d = 1; d < c->n_dims; d++)
    for (int64_t at = d; at > 0 && c->src_stride[at - 1] > c->src_stride[at]; at--)
      xfi_cuda_swap_dims(c, at - 1, at);
}

static xfi_cuda_summand summand_of(const xfi_digest_box *box, int64_t n_rows)
{
  xfi_copy c = box->copy;
  xfi_cuda_summand s = {.src = c.src,
                        .offset = xfi_digest_offset(&c),
                        .run_bytes = c.run_bytes,
                        .factor = box->factor,
                        .slot = box->slot,
                        .n_rows = (uint32_t)n_rows,
                        .n_dims = (uint32_t)c.n_dims};
  uint64_t apart = (uint64_t)(uintptr_t)c.src - (uint64_t)s.offset;
  uint64_t starts = (uint64_t)s.offset;

  sort_by_memory(&c);
  for (uint32_t d = 0; d < s.n_dims; d++) {
    s.extent[d] = (uint32_t)c.extent[d];
    s.by_extent[d] = xfi_cuda_div_make(s.extent[d]);
    s.src_stride[d] = c.src_stride[d];
    s.dst_stride[d] = c.dst_stride[d];
    apart |= (uint64_t)(c.src_stride[d] - c.dst_stride[d]);
    starts |= (uint64_t)c.dst_stride[d];
  }
  s.word_log2 = log2_of(apart);
  s.cols_per_row = 1;
  if (s.run_bytes >= BLOCK_BYTES) {
    const int64_t blocks = (s.run_bytes - 1) / BLOCK_BYTES + 2; /* the first may be a part of one */

    s.cols_per_row = (blocks + TILE_BLOCKS - 1) / TILE_BLOCKS;
  } else {
    const int64_t before = XFI_DIGEST_UNIT - (INT64_C(1) << log2_of(starts)); /* in its unit */

    s.row_units = (uint32_t)((before + s.run_bytes + XFI_DIGEST_UNIT - 1) / XFI_DIGEST_UNIT);
    s.by_row_units = xfi_cuda_div_make(s.row_units);
    s.tile_rows = TILE_UNITS / s.row_units;
  }
  return s;
}

/* In as many parts as its runs need. */
static xfer_status add_box(xfi_cuda_digest_table *table, const xfi_digest_box *box)
{
  xfer_status st = XFER_OK;
  xfi_copy halves[2];
  int64_t n_rows;
  xfi_cuda_summand *s;

  if (xfi_cuda_halve(halves, &n_rows, &box->copy)) {
    XFI_TRY(add_box(table, &(xfi_digest_box){halves[0], box->factor, box->slot}));
    return add_box(table, &(xfi_digest_box){halves[1], box->factor, box->slot});
  }
  XFI_TRY(xfi_vec_reserve(&table->summands, &table->summands_cap, table->n_summands + 1,
                          sizeof *table->summands));
  XFI_TRY(xfi_vec_reserve(&table->first_tile, &table->first_tile_cap, table->n_summands + 2,
                          sizeof *table->first_tile));
  s = &table->summands[table->n_summands];
  *s = summand_of(box, n_rows);
  table->n_summands++;
  table->first_tile[table->n_summands] =
      table->first_tile[table->n_summands - 1] +
      (s->tile_rows == 0 ? n_rows * s->cols_per_row
                         : (n_rows + s->tile_rows - 1) / (int64_t)s->tile_rows);
done:
  return st;
}

xfer_status xfi_cuda_digest_compile(xfi_cuda_digest_table *table, const xfi_digest_box *boxes,
                                    size_t n_boxes)
{
  xfer_status st = XFER_OK;

  *table = (xfi_cuda_digest_table){.summands = NULL};
  for (size_t i = 0; i < n_boxes; i++) {
    xfi_digest_box box = boxes[i];

    if (xfi_copy_bytes(&box.copy) == 0) continue;
    xfi_copy_simplify(&box.copy);
    XFI_TRY(add_box(table, &box));
  }
done:
  return st;
}

void xfi_cuda_digest_table_free(xfi_cuda_digest_table *table)
{
  xfi_free(table->summands);
  xfi_free(table->first_tile);
  *table = (xfi_cuda_digest_table){.summands = NULL};
}
