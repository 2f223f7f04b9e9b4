/* Tensors of a refit in CUDA memory, and the comm of processes with GPUs. */
#ifndef TOOLS_REFIT_CUDA_H
#define TOOLS_REFIT_CUDA_H

#include <mpi.h>
#include <xfer/xfer.h>

#include "device.h"

/* Of the current device. */
extern const refit_device refit_cuda;

/*
 * A comm of MPI processes on the GPUs of their hosts: over NCCL, with a GPU each, or without it,
 * where processes may share one. Collective; `ranks` must live as long. NULL: why, in `error`.
 */
xfer_comm *refit_cuda_comm(const MPI_Comm *ranks, bool nccl, char *error, size_t size);

#endif
