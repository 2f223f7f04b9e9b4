/*
 * Scales of blocks: a tensor that is quantised by blocks has one for each, and they are a tensor of
 * their own, whose destination the caller lays out. Its source is where the weights' is: a rank has
 * the scales of all blocks of which it holds an element.
 */
#ifndef XFI_SCALES_H
#define XFI_SCALES_H

#include "conversion.h"

/* The sizes of a block in each dim, of a conversion of that kind. */
void xfi_conversion_block(int64_t *block, xfer_conversion c, int n_dims);

/* The cells of a box: the bounds of the blocks that it meets, counted in blocks. */
void xfi_block_cells(int64_t *cells, const int64_t *bounds, const int64_t *block, int n_dims);
/* A layout whose elements are blocks of `of`: by boxes the cells of what each rank holds, in the
 * order of its part. */
xfer_status xfi_layout_of_cells(xfer_layout **made, const xfer_layout *of, const int64_t *block,
                                xfer_dtype dtype);

/* Tensors with the sources of scales filled in where this rank knows the weights', and checked. */
typedef struct xfi_scale_tensors {
  xfer_tensor *at; /* [n]; NULL: nothing is quantised, the list given is as good */
  xfer_layout **made;
  size_t n_made;
} xfi_scale_tensors;
xfer_status xfi_scale_tensors_make(xfi_scale_tensors *tensors, const xfer_tensor *given, size_t n);
void xfi_scale_tensors_free(xfi_scale_tensors *tensors);

#endif
