/*
 * Packed rounds: what slots they need, then their steps.
 */
#ifndef XFI_PACKED_H
#define XFI_PACKED_H

#include "steps.h"

/* Finds how large the slots must be. A plan without lanes counts as if all took packed rounds. */
xfer_status xfi_packed_measure(xfi_pipeline *pipeline, const xfer_plan *plan);
/* Appends the steps of all rounds. */
xfer_status xfi_packed_add(xfi_pipeline *pipeline, const xfer_plan *plan);

/* The most windows that this rank can send and receive in one packed round. */
int xfi_packed_most(const xfi_plan *moves);

#endif
