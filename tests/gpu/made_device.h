/* A CUDA device behind its table, with deadlines that no working test reaches. */
#ifndef XFER_TEST_MADE_DEVICE_H
#define XFER_TEST_MADE_DEVICE_H

#include "gpu.h"

#include "device.h"
#include "error.h"

enum { POISON = 0x5a };

static inline xfi_device *device_make(int ordinal)
{
  xfi_device *device = NULL;

  CUDA(cudaSetDevice, (ordinal));
  OK(xfi_device_create_cuda(&device));
  return device;
}

static inline xfi_deadline soon(void)
{
  return xfi_deadline_after(60000);
}

static inline xfer_status wait_flags(xfi_device *device, uint64_t **flags, int n, uint64_t value,
                                     xfer_stream stream)
{
  int late = -1;

  return device->ops->flags_sync(device, &(xfi_flags){NULL, 0}, &(xfi_flags){flags, n}, value,
                                 stream, soon(), &late);
}

#endif
