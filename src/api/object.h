/* The public comm: a transport, a device, and the plans that xfer_redistribute() keeps. */
#ifndef XFI_OBJECT_H
#define XFI_OBJECT_H

#include "plugin.h"
#include "run.h"

/* Most one-tensor plans that a comm keeps; the one that was not used for longest goes first. */
#define XFI_CACHE_PLANS 64

/* A kept plan, by what its ranks agreed on. */
typedef struct xfi_kept {
  uint64_t src[2]; /* layout digests */
  uint64_t dst[2];
  uint64_t used;   /* the call that used it last */
  xfer_plan *plan; /* NULL: a free entry */
} xfi_kept;

struct xfer_comm {
  xfi_comm *transport;
  xfi_device *device;
  xfi_kept kept[XFI_CACHE_PLANS];
  uint64_t n_calls;
};

#endif
