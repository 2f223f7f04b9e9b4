/* Instantiating the flows of each class for each of its tensors. */
#ifndef XFI_MOVES_H
#define XFI_MOVES_H

#include "plan.h"

/* Fill sends, recvs, selfs and the byte counts of a plan whose classes are filled. */
xfer_status xfi_moves_fill(xfi_plan *plan);

#endif
