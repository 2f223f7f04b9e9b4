/*
 * What goes between ranks that share memory, through the channels of comm.h. On the host only,
 * where work is done when a call returns.
 */
#ifndef XFI_CHANNELS_H
#define XFI_CHANNELS_H

#include "bound_plan.h"

typedef struct xfi_load xfi_load;

typedef struct xfi_channels {
  xfi_carriage all;
  xfi_load *loads;       /* [n_loads], of which all.n are used */
  size_t n_loads;        /* two for each peer */
  bool past_cache;       /* more is copied than a cache holds: stores go past it, */
  bool slots_past_cache; /* also into slots, which another core reads as fast from memory */
  bool in_pieces;        /* some view is in pieces, so that anchors do not give its addresses */
  xfi_copies copies;     /* scratch of a move */
  bool has_begun;        /* some of the next run is in slots already */
} xfi_channels;

/* `channels` is all zero, and is to be destroyed whatever this returns. */
xfer_status xfi_channels_create(xfi_channels *channels, const xfer_plan *plan);
/* The same at other addresses. */
xfer_status xfi_channels_move(xfi_channels *channels, const xfer_plan *plan);
void xfi_channels_destroy(xfi_channels *channels);
/* Adds the bytes that this rank sends, and those of slots; for an uncommitted plan the most that it
 * can be. */
void xfi_channels_measure(const xfer_plan *plan, uint64_t *sent_bytes, uint64_t *staging_bytes);
/* Begins to send what the next run sends, as far as slots are free. The plan has its addresses;
 * nobody reads the slots before the ranks have met. */
void xfi_channels_begin(xfi_channels *channels, const xfer_plan *plan);
/* Takes that back, before ranks meet again: there will be no such run. */
void xfi_channels_undo(xfi_channels *channels, const xfer_plan *plan);
/* Carries all of a run; blocks. */
xfer_status xfi_channels_run(xfi_channels *channels, const xfer_plan *plan);

#endif
