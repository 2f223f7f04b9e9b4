/* What failed calls of CUDA's runtime say, of all that this library makes. */
#ifndef XFI_CUDA_CALL_H
#define XFI_CUDA_CALL_H

#include <cuda_runtime_api.h>
#include <xfer/xfer.h>

/* Sets the text and gives the status. */
xfer_status xfi_cuda_failed(cudaError_t error, const char *call);

/* XFI_CUDA_TRY(cudaMalloc, (&p, n)) */
#define XFI_CUDA_TRY(function, arguments)                                                          \
  do {                                                                                             \
    cudaError_t xfi_error = function arguments;                                                    \
    if (xfi_error != cudaSuccess) {                                                                \
      st = xfi_cuda_failed(xfi_error, #function);                                                  \
      goto done;                                                                                   \
    }                                                                                              \
  } while (0)

#endif
