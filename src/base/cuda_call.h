/* Error handling of CUDA runtime calls. */
#ifndef XFI_CUDA_CALL_H
#define XFI_CUDA_CALL_H

#include "error.h"

#include <cuda_runtime_api.h>

/* Sets the text of an error of the CUDA runtime and gives its status. */
xfer_status xfi_cuda_failed(cudaError_t error, const char *call);

/* While any thread captures a graph, CUDA forbids some calls unless the calling thread is in
 * relaxed mode, which is safe since we touch no capturing stream. Returns the previous mode, to be
 * restored. */
static inline enum cudaStreamCaptureMode xfi_cuda_mode(enum cudaStreamCaptureMode mode)
{
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  return mode;
}

/* The result of cudaEventQuery() or cudaStreamQuery(). CUDA keeps "not ready" as the last error,
 * which the caller's next check would find, so it is cleared; after success the caller's own error
 * stays. */
static inline cudaError_t xfi_cuda_query_result(cudaError_t error)
{
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

static inline xfer_status xfi_cuda_check(cudaError_t error, const char *call)
{
  return error == cudaSuccess ? XFER_OK : xfi_cuda_failed(error, call);
}

/* XFI_CUDA_TRY(cudaMalloc, (&p, n)) returns after an error, and XFI_CUDA_TRY_DONE() goes to
 * `done`, as XFI_TRY() and XFI_TRY_DONE() do. */
#define XFI_CUDA_TRY(function, arguments) XFI_TRY(xfi_cuda_check(function arguments, #function))
#define XFI_CUDA_TRY_DONE(function, arguments)                                                     \
  XFI_TRY_DONE(xfi_cuda_check(function arguments, #function))

#endif
