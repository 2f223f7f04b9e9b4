/*
 * Packed rounds: what slots they need, then their steps.
 */
#ifndef XFI_PACKED_H
#define XFI_PACKED_H

#include "steps.h"

/* What slots the rounds need. The same for a plan without lanes, all of whose flows take them. */
xfer_status xfi_packed_measure(xfi_pipeline *pipeline, const xfer_plan *plan);
/* Their steps. */
xfer_status xfi_packed_add(xfi_pipeline *pipeline, const xfer_plan *plan);

/* Append the copies between a slot at `slot` and elements [first, end) of a box of the class, in
 * row-major order; the box starts at `start` of `bound`. */
xfer_status xfi_slot_copies(xfi_copies *copies, const xfer_plan *plan, const xfi_class *cls,
                            char *slot, bool to_slot, const xfi_bound *bound, const int64_t *start,
                            const int64_t *length, int64_t first, int64_t end);

/* At least as many messages as one packed round can have on this rank, both ways. */
int xfi_packed_most(const xfi_plan *moves);

#endif
