/* Data between ranks that share memory, through the channels of comm.h. On the host only, where
 * work is done when a call returns. */
#ifndef XFI_CHANNELS_H
#define XFI_CHANNELS_H

#include "bound_plan.h"

typedef struct xfi_load xfi_load;

typedef struct xfi_channels {
  xfi_channel_set all;
  xfi_load *loads;       /* [n_loads] what each channel carries; the first all.n are used */
  size_t n_loads;        /* two loads for each peer */
  bool past_cache;       /* the run copies more than a cache holds, so stores bypass it */
  bool slots_past_cache; /* stores into slots bypass it too, since other cores read them as fast
                            from memory */
  bool in_pieces;        /* some view has several pieces: anchors do not give its addresses */
  xfi_copies copies;     /* scratch memory */
  bool has_begun;        /* some of what the next run sends is in slots already */
} xfi_channels;

/* `channels` is all zero before, and is to be destroyed whatever this returns. */
xfer_status xfi_channels_create(xfi_channels *channels, const xfer_plan *plan);
/* Give the channels the addresses of what is bound now. */
xfer_status xfi_channels_rebind(xfi_channels *channels, const xfer_plan *plan);
void xfi_channels_destroy(xfi_channels *channels);
/* Add the bytes that this rank sends through channels, and the bytes of their slots. For a plan
 * that is not committed these are upper bounds. */
void xfi_channels_measure(const xfer_plan *plan, uint64_t *sent_bytes, uint64_t *staging_bytes);
/* Begin to send what the next run sends, as far as slots are free, once the plan has its addresses.
 * No rank reads the slots before the next collective call is complete. */
void xfi_channels_begin(xfi_channels *channels, const xfer_plan *plan);
/* Undo xfi_channels_begin(), before the next collective call, since the run does not follow. */
void xfi_channels_undo(xfi_channels *channels, const xfer_plan *plan);
/* Carry all bytes of a run; blocks. */
xfer_status xfi_channels_run(xfi_channels *channels, const xfer_plan *plan);

#endif
