/*
 * The launchers of kernels/cuda: they read the same tables, on the device, and copy by kernels/ref.
 * A kernel that was not loaded waits for its device at the first launch, as the driver does.
 */
#include "machine.h"

#include "cuda_call.h"
#include "launch.h"

#include <stdlib.h>

static xfer_status load(int kernel, const char *what)
{
  const int refused = sim_enter(what, SIM_SAFE);

  if (refused == 0) sim.loaded[sim_self()->device] |= UINT64_C(1) << kernel;
  return xfi_cuda_check(sim_leave((cudaError_t)refused), what);
}

xfer_status xfi_cuda_flags_load(void)
{
  return load(SIM_KERNEL_FLAGS, "load of the flag kernel");
}

xfer_status xfi_cuda_digest_load(void)
{
  return load(SIM_KERNEL_DIGEST, "load of the digest kernel");
}

static void ensure_loaded(int kernel, const sim_stream *stream)
{
  const int device = sim_stream_device(stream);

  if ((sim.loaded[device] >> kernel & 1) != 0) return;
  sim_wait_device(device);
  sim.loaded[device] |= UINT64_C(1) << kernel;
}

cudaError_t sim_kernel_enqueue(int kernel, void *op, sim_stream *stream)
{
  ensure_loaded(kernel, stream);
  return sim_enqueue(op, stream);
}

/* From the fastest dim first, in words, to a copy. */
static xfi_copy copy_of(const xfi_cuda_piece *piece)
{
  xfi_copy copy = {
      .src = piece->src, .dst = piece->dst, .run_bytes = piece->run_elems, .n_dims = piece->n_dims};

  if (piece->convert.dst_bytes > 0) {
    copy.run_bytes *= piece->convert.dst_bytes;
    copy.convert = &piece->convert;
    copy.scales = piece->scales;
  }
  for (uint32_t d = 0; d < piece->n_dims; d++) {
    const uint32_t to = piece->n_dims - 1 - d;
    copy.extent[to] = piece->extent[d];
    copy.src_stride[to] = piece->src_stride[d];
    copy.dst_stride[to] = piece->dst_stride[d];
    copy.scale_stride[to] = piece->scale_stride[d];
  }
  return copy;
}

/* The table is read when the kernel is launched and, unless the launch carries it, looked at again
 * when it runs: the operation holds its allocation by touching it. */
static xfer_status launch(int kernel, const xfi_cuda_job *job, xfer_stream handle, const char *what)
{
  if (job->n_tiles == 0) return XFER_OK;
  const int refused = sim_enter(what, SIM_SAFE);
  cudaError_t error = (cudaError_t)refused;

  if (refused == 0) {
    sim_stream *stream = sim_stream_of(handle);
    const xfi_cuda_piece *pieces = job->small != NULL ? job->small->pieces : job->pieces;
    xfi_copy *copies = calloc((size_t)job->n_pieces, sizeof *copies);
    if (copies == NULL) abort();
    for (int64_t i = 0; i < job->n_pieces; i++)
      copies[i] = copy_of(&pieces[i]);
    ensure_loaded(kernel, stream);
    error = sim_copies_enqueue(copies, (size_t)job->n_pieces, job->pieces,
                               (size_t)job->n_pieces * sizeof *job->pieces, &job->gate, stream);
    free(copies);
  }
  return xfi_cuda_check(sim_leave(error), what);
}

/* The kernels of a table, whose errors call them `what`. */
#define KERNELS(table, kernel, what)                                                               \
  static xfer_status load_##table(void)                                                            \
  {                                                                                                \
    return load(kernel, "load of the " what);                                                      \
  }                                                                                                \
  static xfer_status copy_##table(const xfi_cuda_job *job, xfer_stream stream)                     \
  {                                                                                                \
    return launch(kernel, job, stream, what);                                                      \
  }                                                                                                \
  const xfi_cuda_kernels xfi_cuda_##table##_kernels = {load_##table, copy_##table}

KERNELS(rows, SIM_KERNEL_ROWS, "copy kernel");
KERNELS(ragged, SIM_KERNEL_RAGGED, "copy kernel");
KERNELS(swapped, SIM_KERNEL_SWAPPED, "transpose kernel");
KERNELS(converts, SIM_KERNEL_CONVERTS, "convert kernel");
KERNELS(blocks, SIM_KERNEL_BLOCKS, "block kernel");
