/* What ranks do not know of each other is agreed on by making it the same: layouts that a rank was
 * not told, and layouts by boxes of which every rank knows its own only. The rest of the agreement
 * goes on with it. */
#ifndef XFI_AGREE_FILL_H
#define XFI_AGREE_FILL_H

#include "comm.h"
#include "layout.h"

/* Collective: where ranks have their own boxes, the tensors get the whole layout in their place;
 * where this rank has none, the lowest rank's, or still none. Their layouts are shares. */
xfer_status xfi_agree_fill(xfer_tensor *tensors, size_t n_tensors, xfi_comm *comm,
                           xfi_deadline deadline);

#endif
