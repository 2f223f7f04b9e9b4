/* Makes the spread of an entry: a placement on each axis of one of the side's grids. */
#ifndef XFI_SPREAD_H
#define XFI_SPREAD_H

#include "cuts.h"

/* By the rule that applies. */
xfer_status xfi_spread_make(xfi_spread *spread, const xfi_spread_input *in);
/* Tensor parallelism splits `dim` evenly; negative: whole. For xfer_side_place(). */
xfer_status xfi_spread_place(xfi_spread *spread, const xfi_placing *placing, const xfi_entry *entry,
                             int dim);
void xfi_spread_free(xfi_spread *spread);

#endif
