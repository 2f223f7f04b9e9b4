/*
 * Scales of blocks: a tensor that is quantised by blocks has one scale for each block. The scales
 * are a tensor of their own, whose destination the caller lays out. Its source is where that of the
 * weights is: a rank has the scales of all blocks of which it holds an element.
 */
#ifndef XFI_SCALES_H
#define XFI_SCALES_H

#include "conversion.h"

/* The size of a block in each dim, of a conversion of blocks. */
void xfi_conversion_block(int64_t *block, const xfer_conversion *c, int n_dims);

/* The cells of a box: the bounds of the blocks that it meets, counted in blocks. */
void xfi_block_cells(int64_t *cells, const int64_t *bounds, const int64_t *block, int n_dims);
/* A layout whose elements are blocks of `of`: a layout by boxes of the cells that each rank
 * meets, in the order of its part. */
xfer_status xfi_layout_of_cells(xfer_layout **made, const xfer_layout *of, const int64_t *block,
                                xfer_dtype dtype);

/* Checked tensors, with the source layouts of scales filled in where this rank knows the weights'
 * source. */
typedef struct xfi_scale_tensors {
  xfer_tensor *at;    /* [n] the tensors; NULL: nothing is quantised, so the given list will do */
  xfer_layout **made; /* [n_made] layouts that were filled in */
  size_t n_made;
} xfi_scale_tensors;
xfer_status xfi_scale_tensors_make(xfi_scale_tensors *tensors, const xfer_tensor *given, size_t n);
void xfi_scale_tensors_free(xfi_scale_tensors *tensors);

#endif
