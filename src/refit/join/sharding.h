/* Makes the sharding of an entry: a placement on each axis of one of the side's grids. */
#ifndef XFI_SHARDING_H
#define XFI_SHARDING_H

#include "cuts.h"

/* By the rule that applies. */
xfer_status xfi_sharding_make(xfi_sharding *sharding, const xfi_sharding_input *in);
/* Tensor parallelism splits `dim` evenly; negative: whole. For xfer_side_place(). */
xfer_status xfi_sharding_place(xfi_sharding *sharding, const xfi_rule_set *set,
                               const xfi_entry *entry, int dim);
void xfi_sharding_free(xfi_sharding *sharding);

#endif
