/*
 * The private door through which libxfer_mpi and libxfer_nccl hand a transport and a device to the
 * core. Exported from libxfer under the version node XFER_PRIVATE_1 together with the few base
 * functions that they use; not for anybody else.
 */
#ifndef XFI_PLUGIN_H
#define XFI_PLUGIN_H

#include "comm.h"
#include "device.h"
#include "door.h"

/* Make a public comm, which owns both. On failure the device is gone, and the transport still the
 * caller's. */
XFI_DOOR xfer_status xfi_comm_wrap(xfer_comm **comm, xfi_comm *transport, xfi_device *device);

#endif
