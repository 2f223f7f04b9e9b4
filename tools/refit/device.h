/* Where the tensors of a refit lie, if not in host memory; they are filled and checked there. */
#ifndef TOOLS_REFIT_DEVICE_H
#define TOOLS_REFIT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/fill.h"

/* All false: after a message on stderr. What is begun is done when sums() or copy() returns. */
typedef struct refit_device {
  bool (*alloc)(void **memory, size_t n_bytes);
  void (*free)(void *memory);
  bool (*copy)(void *to, const void *from, size_t n_bytes);
  bool (*set)(void *memory, int byte, size_t n_bytes);
  fill_device boxes;
  bool (*sums)(uint64_t *wrong, uint64_t *total); /* of all checks since it was last asked */
} refit_device;

#endif
