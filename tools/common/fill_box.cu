/* Fill and check, one element per thread and step. */
#include "fill_number.h"

#include <cuda_runtime.h>
#include <stdio.h>

namespace {

constexpr int THREADS = 256;
constexpr int BLOCKS = 2048;

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
  *value = fill_expect(&box.change, fill_mix(index), 0);
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

__device__ __forceinline__ uint64_t read(const char *at, int elem_bytes)
{
  switch (elem_bytes) {
  case 1:
    return *reinterpret_cast<const uint8_t *>(at);
  case 2:
    return *reinterpret_cast<const uint16_t *>(at);
  case 4:
    return *reinterpret_cast<const uint32_t *>(at);
  default:
    return *reinterpret_cast<const uint64_t *>(at);
  }
}

__device__ __forceinline__ unsigned wrong_bytes(uint64_t seen, uint64_t value, int elem_bytes)
{
  const uint64_t keep = elem_bytes == 8 ? ~(uint64_t)0 : ((uint64_t)1 << (8 * elem_bytes)) - 1;
  unsigned bad = 0;

  for (uint64_t differ = (seen ^ value) & keep; differ != 0; differ >>= 8)
    bad += (differ & 0xff) != 0;
  return bad;
}

template <bool ZERO, bool TOTAL>
__global__ void check_kernel(const fill_box box, unsigned long long *sums)
{
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  unsigned long long bad = 0;
  unsigned long long total = 0;

  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < box.n_elems; i += step) {
    uint64_t value;
    const char *const at = element(box, i, &value);
    const uint64_t seen = read(at, box.elem_bytes);
    if (ZERO) value = 0;
    if (TOTAL) total += (seen + 1) * (value | 1);
    bad += wrong_bytes(seen, value, box.elem_bytes);
  }
  if (bad != 0) atomicAdd(&sums[0], bad);
  if (TOTAL) atomicAdd(&sums[1], total);
}

/* A block of threads for each block of the tensor: its scale first. */
template <bool TOTAL>
__global__ void check_blocks_kernel(const fill_box box, unsigned long long *sums)
{
  __shared__ unsigned amax; /* bits: of numbers without a sign they order as the numbers do */
  const int64_t n_blocks = fill_blocks_count(&box);
  unsigned long long bad = 0;
  unsigned long long total = 0;

  for (int64_t k = blockIdx.x; k < n_blocks; k += gridDim.x) {
    const fill_block b = fill_block_at(&box, k);
    const int64_t width = b.whole[3] - b.whole[2];
    const int64_t n_whole = (b.whole[1] - b.whole[0]) * width;
    const int64_t n_part = (b.part[1] - b.part[0]) * (b.part[3] - b.part[2]);
    float most = 0;
    __syncthreads();
    if (threadIdx.x == 0) amax = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n_whole; i += blockDim.x) {
      const uint64_t mixed =
          fill_block_mix(&box, &b, b.whole[0] + i / width, b.whole[2] + i % width);
      most = fmaxf(most, fabsf(fill_value(mixed, box.change.from)));
    }
    atomicMax(&amax, __float_as_uint(most));
    __syncthreads();
    const float scale = fill_scale(&box.change, __uint_as_float(amax));
    for (int64_t i = threadIdx.x; i < n_part; i += blockDim.x) {
      uint64_t value;
      const uint64_t seen = read(fill_block_element(&box, &b, i, scale, &value), box.elem_bytes);
      if (TOTAL) total += (seen + 1) * (value | 1);
      bad += wrong_bytes(seen, value, box.elem_bytes);
    }
  }
  if (bad != 0) atomicAdd(&sums[0], bad);
  if (TOTAL) atomicAdd(&sums[1], total);
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

extern "C" int fill_box_write(const fill_box *box, struct CUstream_st *stream)
{
  if (box->n_elems == 0) return 0;
  forget_errors();
  fill_kernel<<<blocks_for(box), THREADS, 0, stream>>>(*box);
  return launched("fill");
}

namespace {

template <bool ZERO, bool TOTAL>
int check(const fill_box *box, unsigned long long *sums, struct CUstream_st *stream)
{
  if (box->n_elems == 0) return 0;
  forget_errors();
  if (!ZERO && box->change.block[0] > 0)
    check_blocks_kernel<TOTAL><<<BLOCKS, THREADS, 0, stream>>>(*box, sums);
  else
    check_kernel<ZERO, TOTAL><<<blocks_for(box), THREADS, 0, stream>>>(*box, sums);
  return launched("check");
}

} // namespace

extern "C" int fill_box_check(const fill_box *box, bool zero, unsigned long long *sums, int n_sums,
                              struct CUstream_st *stream)
{
  if (zero) return check<true, false>(box, sums, stream);
  return (n_sums > 1 ? check<false, true> : check<false, false>)(box, sums, stream);
}
