/* Cuts of a dim that the ranks of an axis do not share evenly, or not in order: each needs a table
 * of runs in the spread. */
#ifndef XFI_CUTS_H
#define XFI_CUTS_H

#include "spread.h"

/* Cuts the rows of an entry, which is part `part` of the fused tensor, by an axis. This may add an
 * axis. Only FSDP may cut inside a block of scales. */
xfer_status xfi_cut_rows(xfi_spread *spread, int axis, const xfi_fusing *fusing, int part,
                         const xfer_side *side, const xfi_entry *entry);
/* Cuts experts by a map, or round robin if `map` is NULL. */
xfer_status xfi_cut_map(xfi_spread *spread, int axis, const xfi_map *map, const xfer_side *side,
                        const xfi_entry *entry);
/* Cuts a dim of `length` into pieces of `each`, which go to one rank after the other until nothing
 * is left. The part of each rank is padded with zeros to the length `padded`; if that is negative,
 * it is not padded. */
xfer_status xfi_cut_padded(xfi_spread *spread, int axis, int dim, int64_t length, int64_t each,
                           int64_t padded);

#endif
