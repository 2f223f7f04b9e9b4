#include "cuda_call.h"

xfer_status xfi_cuda_failed(cudaError_t error, const char *call)
{
  (void)cudaGetLastError(); /* we report it, so the caller's next check must not find it */
  xfi_set_error("%s: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
  return error == cudaErrorMemoryAllocation ? XFER_ERR_NOMEM : XFER_ERR_CUDA;
}
