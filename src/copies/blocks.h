/*
 * Copies that quantise by blocks, and copies that find the largest absolute value of each block. A
 * box is cut at the ends of blocks, so that each run of a copy has one scale.
 */
#ifndef XFI_BLOCKS_H
#define XFI_BLOCKS_H

#include "bound.h"
#include "held.h"
#include "scales.h"

/* A box of a rank's source part with its scales. */
typedef struct xfi_block_box {
  xfi_held at;
  int64_t length[XFER_MAX_DIMS];
  int64_t cells[2 * XFER_MAX_DIMS]; /* bounds of the cells (xfi_block_cells()) */
  float *scales;                    /* one scale for each cell, row-major */
  int64_t cell_stride[XFI_COPY_DIMS];
} xfi_block_box;

/* A rank's source part of a tensor that is quantised by blocks. */
struct xfi_blocks {
  int n_dims;
  int64_t block[XFER_MAX_DIMS];
  xfi_block_box *boxes; /* [n] boxes of the part */
  size_t n;
  xfi_convert quantise;
  xfi_convert amax;
};

/* Makes the boxes of a part. */
xfer_status xfi_blocks_make(xfi_blocks *blocks, const xfer_layout *layout, int rank,
                            const xfer_conversion *conversion);
/* The number of scales of all boxes. xfi_blocks_place() gives the boxes consecutive scales, from
 * `scales` on. */
size_t xfi_blocks_n_scales(const xfi_blocks *blocks);
void xfi_blocks_place(xfi_blocks *blocks, float *scales);
void xfi_blocks_free(xfi_blocks *blocks);

/* Append the copies of a box that crosses no piece boundary, with the op of `convert`. AMAX ignores
 * `dst`. */
xfer_status xfi_blocks_add(xfi_copies *copies, const xfi_end *dst, const xfi_end *src,
                           const int64_t *length, const xfi_convert *convert);

#endif
