/* What the benches of kernels share: calls that must not fail, the time of what is on a stream, and
 * memory with noise. */
#ifndef XFER_BENCH_H
#define XFER_BENCH_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPEATS = 15 };

/* Ends the program with CUDA's words, or with the library's. */
#define CUDA(function, arguments)                                                                  \
  do {                                                                                             \
    const cudaError_t error = function arguments;                                                  \
    if (error != cudaSuccess) {                                                                    \
      fprintf(stderr, "%s: %s\n", #function, cudaGetErrorString(error));                           \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)
#define OK(call)                                                                                   \
  do {                                                                                             \
    if ((call) != XFER_OK) {                                                                       \
      fprintf(stderr, "%s: %s\n", #call, xfer_last_error());                                       \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

/* The median of the milliseconds of what `enqueue` puts on the default stream, after two that do
 * not count. */
double bench_median_ms(void (*enqueue)(void *context), void *context);
/* The same of cudaMemcpyAsync within the device. */
double bench_copy_ms(char *dst, const char *src, int64_t n_bytes);
/* Noise, which draws the power that weights do; equal bytes are copied faster. */
void bench_fill(char *memory, int64_t n_bytes);

#endif
