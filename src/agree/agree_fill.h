/* Completes what a rank was not given: layouts of the other side, and layouts by boxes of which
 * every rank knows only its own boxes. The agreement then compares the complete layouts. */
#ifndef XFI_AGREE_FILL_H
#define XFI_AGREE_FILL_H

#include "comm.h"
#include "layout.h"

/* Collective. Where ranks list their own boxes, the tensors get the whole layout; where this rank
 * has no layout, they get that of the lowest rank that has one, if any does. The tensors share
 * their layouts. */
xfer_status xfi_agree_fill(xfer_tensor *tensors, size_t n_tensors, xfi_comm *comm,
                           xfi_deadline deadline);

#endif
