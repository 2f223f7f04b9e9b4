/*
 * Scales of blocks: a tensor that is quantised by blocks has one for each, and they are a tensor of
 * their own, whose destination the caller lays out. Its source is where the weights' is: a rank has
 * the scales of all blocks of which it holds an element.
 */
#ifndef XFI_SCALES_H
#define XFI_SCALES_H

#include "conversion.h"

/* A copy by blocks has two dims more than its tensor, and XFI_COPY_DIMS at most. */
#define XFI_SCALE_DIMS (XFER_MAX_DIMS - 2)

/* A box of a rank's part, and its cells: the blocks that it meets. Everything counts elements,
 * cells count blocks. */
typedef struct xfi_scale_region {
  int64_t lo[XFER_MAX_DIMS]; /* global */
  int64_t length[XFER_MAX_DIMS];
  int64_t local[XFER_MAX_DIMS]; /* where `lo` lies in the part */
  int64_t cell[XFER_MAX_DIMS];  /* global, the first */
  int64_t n_cells[XFER_MAX_DIMS];
} xfi_scale_region;

typedef struct xfi_scale_regions {
  xfi_scale_region *at;
  size_t n;
  size_t capacity;
} xfi_scale_regions;

/* The sizes of a block in each dim, of a conversion of that kind. */
void xfi_conversion_block(int64_t *block, xfer_conversion c, int n_dims);

/* The part of `rank`, which is in the mesh, as boxes that are not empty, in the order of their
 * scales. */
xfer_status xfi_scale_regions_list(xfi_scale_regions *regions, const xfer_layout *layout, int rank,
                                   const int64_t *block);
void xfi_scale_regions_free(xfi_scale_regions *regions);

/* Tensors with the sources of scales filled in where this rank knows the weights', and checked. */
typedef struct xfi_scale_tensors {
  xfer_tensor *at; /* [n]; NULL: nothing is quantised, the list given is as good */
  xfer_layout **made;
  size_t n_made;
} xfi_scale_tensors;
xfer_status xfi_scale_tensors_make(xfi_scale_tensors *tensors, const xfer_tensor *given, size_t n);
void xfi_scale_tensors_free(xfi_scale_tensors *tensors);

#endif
