/* The host's part of the table of device.h that has to do with digests. */
#ifndef XFI_HOST_DIGEST_H
#define XFI_HOST_DIGEST_H

#include "device.h"

xfer_status xfi_host_digest_create(xfi_device *device, xfi_digest **digest,
                                   const xfi_digest_box *boxes, size_t n_boxes, size_t n_slots);
void xfi_host_digest_destroy(xfi_device *device, xfi_digest *digest);
xfer_status xfi_host_digest_launch(xfi_device *device, xfi_digest *digest, xfer_stream stream);
const xfi_sum *xfi_host_digest_sums(const xfi_digest *digest);

#endif
