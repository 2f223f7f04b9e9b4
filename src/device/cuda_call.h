/* What failed calls of CUDA's runtime say, of all that this library makes. */
#ifndef XFI_CUDA_CALL_H
#define XFI_CUDA_CALL_H

#include "error.h"

#include <cuda_runtime_api.h>

/* Sets the text and gives the status. */
xfer_status xfi_cuda_failed(cudaError_t error, const char *call);

/* While any thread captures a graph, CUDA forbids some calls to threads that have not said that
 * they know what they do: ours touch no stream that captures. Gives the calling thread's mode
 * before, to be given back. */
static inline enum cudaStreamCaptureMode xfi_cuda_mode(enum cudaStreamCaptureMode mode)
{
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  return mode;
}

/* What cudaEventQuery() or cudaStreamQuery() gave: CUDA keeps "not ready" as an error, which the
 * caller's next check would find; where there is none, the caller's own stays. */
static inline cudaError_t xfi_cuda_query_result(cudaError_t error)
{
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

static inline xfer_status xfi_cuda_check(cudaError_t error, const char *call)
{
  return error == cudaSuccess ? XFER_OK : xfi_cuda_failed(error, call);
}

/* XFI_CUDA_TRY(cudaMalloc, (&p, n)); which of the two, as of XFI_TRY() */
#define XFI_CUDA_TRY(function, arguments) XFI_TRY(xfi_cuda_check(function arguments, #function))
#define XFI_CUDA_TRY_DONE(function, arguments)                                                     \
  XFI_TRY_DONE(xfi_cuda_check(function arguments, #function))

#endif
