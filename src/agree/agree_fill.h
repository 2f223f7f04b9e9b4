/* Completes what a rank was not given: layouts of the other side, and layouts by boxes of which
 * every rank knows only its own. The agreement then compares the complete ones. */
#ifndef XFI_AGREE_FILL_H
#define XFI_AGREE_FILL_H

#include "comm.h"
#include "layout.h"

/* Collective. Where ranks list their own boxes, the tensors get the whole layout; where this rank
 * has no layout, that of the lowest rank that has one, or still none. The tensors' layouts are
 * shares. */
xfer_status xfi_agree_fill(xfer_tensor *tensors, size_t n_tensors, xfi_comm *comm,
                           xfi_deadline deadline);

#endif
