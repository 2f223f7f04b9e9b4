/*
 * Flows between ranks that share memory, as streams through its slots. On the host only, where work
 * is done when a call returns.
 */
#ifndef XFI_CHANNELS_H
#define XFI_CHANNELS_H

#include "bound_plan.h"

typedef struct xfi_load xfi_load;

typedef struct xfi_channels {
  xfi_channel *at; /* [n] */
  xfi_load *loads; /* [n_loads], of which n are used */
  size_t n;
  size_t n_loads; /* two for each peer */
  size_t slot_bytes;
  bool past_cache;       /* more is copied than a cache holds, */
  bool slots_past_cache; /* and another core has slots as quickly from memory as from ours */
  bool in_pieces;        /* some view is, so that anchors say nothing */
  xfi_copies copies;     /* of a move, while they are made */
  bool has_begun;        /* some of the next run lies in slots */
} xfi_channels;

/* `channels` is all zero; what it made is to be destroyed, whatever it returns. */
xfer_status xfi_channels_create(xfi_channels *channels, const xfer_plan *plan);
/* The same at other addresses. */
xfer_status xfi_channels_move(xfi_channels *channels, const xfer_plan *plan);
void xfi_channels_destroy(xfi_channels *channels);
/* Add what this rank sends, and the slots for it; of a plan without lanes the most. */
void xfi_channels_measure(const xfer_plan *plan, uint64_t *sent_bytes, uint64_t *staging_bytes);
/* What there are free slots for of what the next run sends; the plan has its addresses, and nobody
 * looks at it before the ranks have met. */
void xfi_channels_begin(xfi_channels *channels, const xfer_plan *plan);
/* There will be no such run. Before ranks meet again. */
void xfi_channels_undo(xfi_channels *channels, const xfer_plan *plan);
/* All of a run; blocks. */
xfer_status xfi_channels_run(xfi_channels *channels, const xfer_plan *plan);

#endif
