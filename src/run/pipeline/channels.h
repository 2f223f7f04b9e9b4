/*
 * What goes between ranks that share memory, through the channels of comm.h. On the host only,
 * where work is done when a call returns.
 */
#ifndef XFI_CHANNELS_H
#define XFI_CHANNELS_H

#include "bound_plan.h"

typedef struct xfi_load xfi_load;

typedef struct xfi_channels {
  xfi_channel_set all;
  xfi_load *loads;       /* [n_loads] what each channel carries; the first all.n are used */
  size_t n_loads;        /* two for each peer */
  bool past_cache;       /* the run copies more than a cache holds, so stores bypass it */
  bool slots_past_cache; /* stores into slots do so too: other cores read those as fast from memory
                          */
  bool in_pieces;        /* some view has several pieces: anchors do not give its addresses */
  xfi_copies copies;     /* scratch */
  bool has_begun;        /* some of what the next run sends is in slots already */
} xfi_channels;

/* `channels` is all zero before, and is to be destroyed whatever this returns. */
xfer_status xfi_channels_create(xfi_channels *channels, const xfer_plan *plan);
/* After binds at other addresses. */
xfer_status xfi_channels_rebind(xfi_channels *channels, const xfer_plan *plan);
void xfi_channels_destroy(xfi_channels *channels);
/* Adds the bytes that this rank sends, and the bytes of slots. For a plan that is not committed,
 * the most that they can be. */
void xfi_channels_measure(const xfer_plan *plan, uint64_t *sent_bytes, uint64_t *staging_bytes);
/* Begins to send what the next run sends, as far as slots are free, once the plan has its
 * addresses. Nobody reads the slots before the ranks have met. */
void xfi_channels_begin(xfi_channels *channels, const xfer_plan *plan);
/* Takes that back, since there will be no such run. Before ranks meet again. */
void xfi_channels_undo(xfi_channels *channels, const xfer_plan *plan);
/* Carries all bytes of a run; blocks. */
xfer_status xfi_channels_run(xfi_channels *channels, const xfer_plan *plan);

#endif
