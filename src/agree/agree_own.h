/* Layouts by boxes of which every rank knows its own only. What ranks do not know of each other is
 * so agreed on by making it the same; the rest of the agreement goes on with it. */
#ifndef XFI_AGREE_OWN_H
#define XFI_AGREE_OWN_H

#include "comm.h"
#include "layout.h"

/* A growing list of layouts that are its own. */
typedef struct xfi_layouts {
  xfer_layout **at;
  size_t n;
  size_t capacity;
} xfi_layouts;
void xfi_layouts_free(xfi_layouts *layouts);

/* How many sides are given so on this rank. */
uint32_t xfi_agree_count_own(const xfer_tensor *tensors, size_t n_tensors);

/* Collective: put whole layouts, which `made` owns, in their place, also where a rank gave none. */
xfer_status xfi_agree_own(xfer_tensor *tensors, size_t n_tensors, xfi_layouts *made, xfi_comm *comm,
                          xfi_deadline deadline);

#endif
