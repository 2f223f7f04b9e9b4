/*
 * What ranks settle before a plan exists: that all mean the same tensors, and what the other side's
 * layouts are where a rank was not told.
 */
#ifndef XFI_AGREE_H
#define XFI_AGREE_H

#include "bytes.h"
#include "comm.h"
#include "plan.h"

/* The plan's tensors as all ranks agreed on them; layouts are shares. */
typedef struct xfi_agreed {
  xfer_tensor *tensors; /* [n_tensors] names are the caller's */
  size_t n_tensors;
} xfi_agreed;

/*
 * Collective. `mine` is what this rank's own checks came to; its text is set. `options` are
 * compared as bytes. XFER_ERR_MISMATCH names the first tensor that differs and how.
 */
xfer_status xfi_agree_tensors(xfi_agreed *agreed, xfi_comm *comm, xfer_status mine,
                              const xfer_tensor *tensors, size_t n_tensors,
                              const xfer_plan_options *options, xfi_deadline deadline);
void xfi_agreed_free(xfi_agreed *agreed);

/* A layout for another rank, its length before it; and one that another rank sent. */
xfer_status xfi_agree_put_layout(xfi_bytes *out, const xfer_layout *layout);
xfer_status xfi_agree_take_layout(xfer_layout **layout, xfi_reader *reader);

/* ---- layouts by boxes of which every rank knows its own only (agree_own.c) ---- */

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
