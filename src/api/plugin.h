/*
 * The private interface by which libxfer_mpi and libxfer_nccl hand a transport and a device to the
 * core. Exported from libxfer under the version node XFER_PRIVATE_ with its version, together with
 * the few base functions that they use (plugin_api.h); not for anybody else.
 */
#ifndef XFI_PLUGIN_H
#define XFI_PLUGIN_H

#include "comm.h"
#include "device.h"
#include "plugin_api.h"

/* Make a public comm, which owns transport and device. On failure the device is destroyed, and the
 * transport is still the caller's. */
XFI_PLUGIN_API xfer_status xfi_comm_wrap(xfer_comm **comm, xfi_comm *transport, xfi_device *device);
/* Make a public comm of processes of this host, each with a device of its own; `control_only`: data
 * moves by the devices alone. */
XFI_PLUGIN_API xfer_status xfi_comm_bootstrap(xfer_comm **comm, xfer_all_gather_fn all_gather,
                                              void *context, int rank, int size,
                                              xfer_status (*make)(xfi_device **device),
                                              bool control_only);

#endif
