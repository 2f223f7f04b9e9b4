/* Kernels that measure the machine, not the library. */
#include "kernels.h"

#include <cuda_runtime.h>
#include <stdio.h>

namespace {

constexpr int THREADS = 512;
constexpr int BLOCKS = 528; /* 4 for each multiprocessor of an H200 */
constexpr int UNROLL = 4;

__global__ void __launch_bounds__(THREADS)
    copy_kernel(uint4 *__restrict__ dst, const uint4 *__restrict__ src, size_t n)
{
  const size_t step = (size_t)gridDim.x * THREADS * UNROLL;

  for (size_t i = (size_t)blockIdx.x * THREADS * UNROLL + threadIdx.x; i < n; i += step) {
    uint4 word[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; k++)
      if (i + k * THREADS < n) word[k] = src[i + k * THREADS];
#pragma unroll
    for (int k = 0; k < UNROLL; k++)
      if (i + k * THREADS < n) dst[i + k * THREADS] = word[k];
  }
}

__global__ void stamp_kernel(volatile uint64_t *word, uint64_t value)
{
  *word = value;
}

__global__ void ping_kernel(volatile uint64_t *mine, volatile uint64_t *theirs, uint64_t rounds,
                            int first)
{
  for (uint64_t i = 1; i <= rounds; i++) {
    if (first) *theirs = i;
    while (*mine < i) {
    }
    if (!first) *theirs = i;
  }
}

int launched(const char *what)
{
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return 0;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return -1;
}

} // namespace

extern "C" int perf_copy(char *dst, const char *src, size_t n_bytes, struct CUstream_st *stream)
{
  copy_kernel<<<BLOCKS, THREADS, 0, stream>>>(reinterpret_cast<uint4 *>(dst),
                                              reinterpret_cast<const uint4 *>(src), n_bytes / 16);
  return launched("copy");
}

extern "C" int perf_stamp(volatile uint64_t *word, uint64_t value, struct CUstream_st *stream)
{
  stamp_kernel<<<1, 1, 0, stream>>>(word, value);
  return launched("stamp");
}

extern "C" int perf_ping(volatile uint64_t *mine, volatile uint64_t *theirs, uint64_t rounds,
                         int first, struct CUstream_st *stream)
{
  ping_kernel<<<1, 1, 0, stream>>>(mine, theirs, rounds, first);
  return launched("ping");
}
