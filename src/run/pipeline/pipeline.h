/*
 * What goes through slots: steps of gather, message and scatter (steps.h), made of packed rounds
 * (packed.h) and of broadcasts (broadcast_list.h); and channels between ranks that share memory
 * (channels.h).
 */
#ifndef XFI_PIPELINE_H
#define XFI_PIPELINE_H

#include "steps.h"

/* Rounds and broadcasts for all that the direct lane does not carry. Collective; its last agreement
 * is the caller's to make. */
xfer_status xfi_pipeline_create(xfi_pipeline **pipeline, xfer_plan *plan);
/* The same steps at other addresses, of what is bound or of the slots. */
xfer_status xfi_pipeline_move(xfi_pipeline *pipeline, const xfer_plan *plan);
void xfi_pipeline_destroy(xfi_pipeline *pipeline, xfer_plan *plan);
/* Staging memory of a plan that is not committed, where nothing goes directly nor in place. */
xfer_status xfi_pipeline_foresee(uint64_t *staging_bytes, const xfer_plan *plan);
xfer_status xfi_pipeline_start(xfi_pipeline *pipeline, xfer_plan *plan, xfer_stream stream);
/* Does no peer wait for what it carries? */
bool xfi_pipeline_is_empty(const xfi_pipeline *pipeline);

#endif
