/*
 * What goes through slots: steps of gather, message and scatter (steps.h), made of packed rounds
 * (packed.c) and of broadcasts (broadcast_list.h); and channels between ranks that share memory
 * (channels.h).
 */
#ifndef XFI_PIPELINE_H
#define XFI_PIPELINE_H

#include "steps.h"

/* Makes rounds, broadcasts and channels for all that the direct lane does not carry. Collective;
 * the ranks agree on the result in the caller. */
xfer_status xfi_pipeline_create(xfi_pipeline **pipeline, xfer_plan *plan);
/* Gives the pipeline new addresses, after binds or when the slots have moved. */
xfer_status xfi_pipeline_rebind(xfi_pipeline *pipeline, const xfer_plan *plan);
void xfi_pipeline_destroy(xfi_pipeline *pipeline, xfer_plan *plan);
/* The staging memory that a plan which is not committed needs if nothing goes directly or in place.
 */
xfer_status xfi_pipeline_estimate(uint64_t *staging_bytes, const xfer_plan *plan);
/* Enqueues all that a run has in the pipeline. */
xfer_status xfi_pipeline_start(xfi_pipeline *pipeline, xfer_plan *plan, xfer_stream stream);
/* Does the pipeline carry nothing on this rank, so that no peer waits for it? */
bool xfi_pipeline_is_empty(const xfi_pipeline *pipeline);

/* ---- packed.c ---- */

/* Finds how large the slots must be. A plan without lanes counts as if all took packed rounds. */
xfer_status xfi_packed_measure(xfi_pipeline *pipeline, const xfer_plan *plan);
/* Appends the steps of all rounds. */
xfer_status xfi_packed_add(xfi_pipeline *pipeline, const xfer_plan *plan);
/* The most windows that this rank can send and receive in one packed round. */
int xfi_packed_most(const xfi_moves *moves);

#endif
