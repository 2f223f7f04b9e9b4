/* Loading and launching a kernel, with an error that is ours: not one that the caller left for
 * cudaGetLastError(). */
#ifndef XFI_CUDA_LAUNCH_CUH
#define XFI_CUDA_LAUNCH_CUH

#include "launch.h"

#include <cuda_runtime.h>

extern "C" {
#include "error.h"
}

template <typename... Parameters, typename... Arguments>
static xfer_status launch(void (*kernel)(Parameters...), unsigned n_blocks, unsigned n_threads,
                          xfer_stream stream, const char *what, Arguments... arguments)
{
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(n_blocks);
  config.blockDim = dim3(n_threads);
  config.stream = stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error == cudaSuccess) return XFER_OK;
  (void)cudaGetLastError();
  xfi_set_error("%s on %u blocks: %s", what, n_blocks, cudaGetErrorString(error));
  return XFER_ERR_CUDA;
}

/* Blocks for n_tiles, so many to a block at a time: none without work, at most `most`. */
static inline unsigned blocks_for(int64_t n_tiles, int64_t per_block, int64_t most)
{
  const int64_t useful = (n_tiles + per_block - 1) / per_block;
  return (unsigned)(useful < most ? useful : most);
}

template <typename... Parameters>
static xfer_status load(void (*kernel)(Parameters...), const char *what)
{
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess) return XFER_OK;
  (void)cudaGetLastError();
  xfi_set_error("%s does not load: %s", what, cudaGetErrorString(error));
  return XFER_ERR_CUDA;
}

#endif
