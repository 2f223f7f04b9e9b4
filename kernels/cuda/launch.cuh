/* Loading and launching a kernel. */
#ifndef XFI_CUDA_LAUNCH_CUH
#define XFI_CUDA_LAUNCH_CUH

#include "launch.h"

#include <cuda_runtime.h>

extern "C" {
#include "cuda_call.h"
}

template <typename... Parameters, typename... Arguments>
static xfer_status launch(void (*kernel)(Parameters...), unsigned n_blocks, unsigned n_threads,
                          xfer_stream stream, const char *what, Arguments... arguments)
{
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(n_blocks);
  config.blockDim = dim3(n_threads);
  config.stream = stream;
  return xfi_cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

/* How many blocks n_tiles take, of which a block does per_block at a time. At most `most`; none if
 * there is no tile. */
static inline unsigned blocks_for(int64_t n_tiles, int64_t per_block, int64_t most)
{
  const int64_t useful = (n_tiles + per_block - 1) / per_block;
  return (unsigned)(useful < most ? useful : most);
}

template <typename... Parameters>
static xfer_status load(void (*kernel)(Parameters...), const char *what)
{
  cudaFuncAttributes attributes;

  return xfi_cuda_check(cudaFuncGetAttributes(&attributes, kernel), what);
}

#endif
