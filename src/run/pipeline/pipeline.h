/*
 * What goes through slots: steps of gather, message and scatter (steps.h), made of packed rounds
 * (packed.h) and of broadcasts (broadcast_list.h); and channels between ranks that share memory
 * (channels.h).
 */
#ifndef XFI_PIPELINE_H
#define XFI_PIPELINE_H

#include "steps.h"

/* Rounds, broadcasts and channels for all that the direct lane does not carry. Collective; the
 * caller makes the agreement at its end. */
xfer_status xfi_pipeline_create(xfi_pipeline **pipeline, xfer_plan *plan);
/* The same steps at other addresses, of what is bound or of the slots. */
xfer_status xfi_pipeline_move(xfi_pipeline *pipeline, const xfer_plan *plan);
void xfi_pipeline_destroy(xfi_pipeline *pipeline, xfer_plan *plan);
/* Staging memory of an uncommitted plan, if nothing goes directly or in place. */
xfer_status xfi_pipeline_foresee(uint64_t *staging_bytes, const xfer_plan *plan);
xfer_status xfi_pipeline_start(xfi_pipeline *pipeline, xfer_plan *plan, xfer_stream stream);
/* Whether it carries nothing, so that no peer waits for it. */
bool xfi_pipeline_is_empty(const xfi_pipeline *pipeline);

#endif
