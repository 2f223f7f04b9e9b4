/* Where the tensors of a refit lie, if not in host memory. */
#ifndef TOOLS_REFIT_DEVICE_H
#define TOOLS_REFIT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <xfer/xfer.h>

/* False: after a message on stderr. */
typedef struct refit_device {
  bool (*alloc)(void **memory, size_t n_bytes);
  void (*free)(void *memory);
  bool (*copy)(void *to, const void *from, size_t n_bytes); /* done when it returns */
} refit_device;

#endif
