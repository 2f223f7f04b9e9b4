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

/* As many windows as one packed round can have on this rank, both ways. */
int xfi_packed_most(const xfi_plan *moves);

#endif
