/* The broadcast lane: its list (broadcast_list.h) turned into steps. */
#ifndef XFI_BROADCAST_H
#define XFI_BROADCAST_H

#include "broadcast_list.h"

/* What slots the list needs, then its steps. */
void xfi_broadcast_measure(xfi_pipeline *pipeline, const xfer_plan *plan);
xfer_status xfi_broadcast_add(xfi_pipeline *pipeline, const xfer_plan *plan);

#endif
