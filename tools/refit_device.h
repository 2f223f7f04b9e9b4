/* Where the tensors of xfer_refit lie, if not in host memory. */
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

/* CUDA memory of the current device (refit_cuda.c). */
extern const refit_device refit_cuda;

/*
 * A comm of the processes of MPI_COMM_WORLD, on the GPUs of their hosts: over NCCL, with a GPU
 * each, or without it, where processes may share one. Collective. NULL: why, in `error`.
 */
xfer_comm *refit_cuda_comm(bool nccl, char *error, size_t size);

#endif
