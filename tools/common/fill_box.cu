/* Fill and check, one element per thread and step. */
#include "fill_box.h"

#include <cuda_runtime.h>
#include <stdio.h>

namespace {

constexpr int THREADS = 256;
constexpr int BLOCKS = 2048;

__device__ __forceinline__ uint64_t mix(uint64_t x)
{
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* Where element i of the box lies, and its value. */
__device__ __forceinline__ char *element(const fill_box &box, int64_t i, uint64_t *value)
{
  char *at = box.base;
  uint64_t index = box.seed;

  for (int d = box.n_dims - 1; d >= 0; d--) {
    const int64_t rest = d == 0 ? 0 : i / box.length[d];
    const int64_t x = i - rest * box.length[d];
    at += x * box.stride[d];
    index += (uint64_t)(x * box.global_stride[d]);
    i = rest;
  }
  *value = fill_box_number(mix(index), box.number_bytes, box.elem_bytes);
  return at;
}

__global__ void fill_kernel(const fill_box box)
{
  const int64_t step = (int64_t)gridDim.x * blockDim.x;

  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < box.n_elems; i += step) {
    uint64_t value;
    char *const at = element(box, i, &value);
    switch (box.elem_bytes) {
    case 1:
      *reinterpret_cast<uint8_t *>(at) = (uint8_t)value;
      break;
    case 2:
      *reinterpret_cast<uint16_t *>(at) = (uint16_t)value;
      break;
    case 4:
      *reinterpret_cast<uint32_t *>(at) = (uint32_t)value;
      break;
    default:
      *reinterpret_cast<uint64_t *>(at) = value;
      break;
    }
  }
}

template <bool ZERO, bool DIGEST>
__global__ void check_kernel(const fill_box box, unsigned long long *sums)
{
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  unsigned long long bad = 0;
  unsigned long long digest = 0;

  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < box.n_elems; i += step) {
    uint64_t value;
    uint64_t seen = 0;
    const char *const at = element(box, i, &value);
    if (ZERO) value = 0;
    switch (box.elem_bytes) {
    case 1:
      seen = *reinterpret_cast<const uint8_t *>(at);
      break;
    case 2:
      seen = *reinterpret_cast<const uint16_t *>(at);
      break;
    case 4:
      seen = *reinterpret_cast<const uint32_t *>(at);
      break;
    default:
      seen = *reinterpret_cast<const uint64_t *>(at);
      break;
    }
    if (DIGEST) digest += (seen + 1) * (value | 1);
    const uint64_t keep =
        box.elem_bytes == 8 ? ~(uint64_t)0 : ((uint64_t)1 << (8 * box.elem_bytes)) - 1;
    uint64_t differ = (seen ^ value) & keep;
    for (; differ != 0; differ >>= 8)
      bad += (differ & 0xff) != 0;
  }
  if (bad != 0) atomicAdd(&sums[0], bad);
  if (DIGEST) atomicAdd(&sums[1], digest);
}

unsigned blocks_for(const fill_box *box)
{
  const int64_t n = (box->n_elems + THREADS - 1) / THREADS;
  return (unsigned)(n < BLOCKS ? n : BLOCKS);
}

/* Before a launch: what others left behind is not ours to report. */
void forget_errors()
{
  (void)cudaGetLastError();
}

int launched(const char *what)
{
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return 0;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return -1;
}

} // namespace

extern "C" uint64_t fill_box_seed(const char *name)
{
  uint64_t hash = 0xcbf29ce484222325u;
  for (; *name != '\0'; name++)
    hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
  return hash;
}

extern "C" int fill_box_write(const fill_box *box, struct CUstream_st *stream)
{
  if (box->n_elems == 0) return 0;
  forget_errors();
  fill_kernel<<<blocks_for(box), THREADS, 0, stream>>>(*box);
  return launched("fill");
}

extern "C" int fill_box_check(const fill_box *box, unsigned long long *wrong,
                              struct CUstream_st *stream)
{
  if (box->n_elems == 0) return 0;
  forget_errors();
  check_kernel<false, false><<<blocks_for(box), THREADS, 0, stream>>>(*box, wrong);
  return launched("check");
}

extern "C" int fill_box_check_zero(const fill_box *box, unsigned long long *wrong,
                                   struct CUstream_st *stream)
{
  if (box->n_elems == 0) return 0;
  forget_errors();
  check_kernel<true, false><<<blocks_for(box), THREADS, 0, stream>>>(*box, wrong);
  return launched("check");
}

extern "C" int fill_box_check_sums(const fill_box *box, unsigned long long *sums,
                                   struct CUstream_st *stream)
{
  if (box->n_elems == 0) return 0;
  forget_errors();
  check_kernel<false, true><<<blocks_for(box), THREADS, 0, stream>>>(*box, sums);
  return launched("check");
}
