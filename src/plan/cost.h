/* Which classes take the broadcast lane. */
#ifndef XFI_COST_H
#define XFI_COST_H

#include "moves_types.h"

/* Set `broadcast` of every class and moves->n_broadcast. */
xfer_status xfi_cost_choose(xfi_moves *moves);

#endif
