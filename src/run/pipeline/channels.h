/*
 * Flows between ranks that share memory, as streams through its slots. On the host only, where work
 * is done when a call returns.
 */
#ifndef XFI_CHANNELS_H
#define XFI_CHANNELS_H

#include "steps.h"

/* Does this rank share memory with a peer, so that what neither the direct lane nor a broadcast
 * carries goes through a channel? The same on both ends. */
bool xfi_run_shares(const xfer_plan *plan, int peer);

xfer_status xfi_channels_create(xfi_channels **channels, const xfer_plan *plan);
/* The same at other addresses. */
xfer_status xfi_channels_move(xfi_channels *channels, const xfer_plan *plan);
void xfi_channels_destroy(xfi_channels *channels);
size_t xfi_channels_count(const xfi_channels *channels); /* of NULL: 0 */
/* Add what this rank sends, and the slots for it. */
void xfi_channels_measure(const xfi_channels *channels, uint64_t *sent_bytes,
                          uint64_t *staging_bytes);
/* The most of a plan that has no channels yet. */
uint64_t xfi_channels_foresee(const xfer_plan *plan);
/* What there are free slots for of what the next run sends; the plan has its addresses, and nobody
 * looks at it before the ranks have met. */
void xfi_channels_begin(xfi_channels *channels, const xfer_plan *plan);
/* There will be no such run. Before ranks meet again. */
void xfi_channels_undo(xfi_channels *channels, const xfer_plan *plan);
bool xfi_channels_have_begun(const xfi_channels *channels); /* of NULL: no */
/* All of a run; blocks. */
xfer_status xfi_channels_run(xfi_channels *channels, const xfer_plan *plan, xfi_deadline deadline);

#endif
