/* How kernels read and write words between devices, and the gates of tables. */
#ifndef XFI_CUDA_FLAGS_CUH
#define XFI_CUDA_FLAGS_CUH

#include "flags.h"
#include "launch.cuh"

static __device__ __forceinline__ uint64_t flag_load(const uint64_t *flag)
{
  uint64_t seen;

  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(flag) : "memory");
  return seen;
}

static __device__ __forceinline__ void flag_store(uint64_t *flag, uint64_t value)
{
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

/* Is one of n flags void? All threads of a block, of which there must be at least n, call it and
 * get the same result. */
static __device__ __forceinline__ bool is_any_void(uint64_t *const *flags, int n)
{
  const uint64_t seen = (int)threadIdx.x < n ? flag_load(flags[threadIdx.x]) : 0;

  return __syncthreads_or((seen & XFI_FLAG_VOID) != 0) != 0;
}

/* May this block copy? The first block that asks decides for all, since the flags may lie in host
 * memory, where reads are serialised. All threads of all blocks call it and get the same result. */
static __device__ __forceinline__ bool gate_opens(const xfi_cuda_gate &gate)
{
  if (gate.n_flags == 0) return gate.go == NULL || *gate.go != 0;
  const bool is_first =
      threadIdx.x == 0 && (gridDim.x == 1 || atomicAdd(&gate.blocks->n_begun, 1) == 0);
  uint64_t verdict = gate.value;

  if (__syncthreads_or(is_first)) {
    if (is_any_void(gate.flags, gate.n_flags)) verdict |= XFI_FLAG_VOID;
    if (threadIdx.x == 0 && gridDim.x > 1)
      asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(&gate.blocks->verdict), "l"(verdict)
                   : "memory");
  } else if (threadIdx.x == 0) {
    do
      asm volatile("ld.acquire.gpu.global.u64 %0, [%1];"
                   : "=l"(verdict)
                   : "l"(&gate.blocks->verdict)
                   : "memory");
    while ((verdict & ~XFI_FLAG_VOID) != gate.value);
  }
  return !__syncthreads_or((verdict & XFI_FLAG_VOID) != 0);
}

/* Ends a block's work. The last block of the launch that calls it sets the flags. */
static __device__ __forceinline__ void gate_ends(const xfi_cuda_gate &gate, bool opened)
{
  if (gate.n_flags == 0) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    __threadfence_system(); /* the block's writes before the flags that announce them */
    if (atomicAdd(&gate.blocks->n_ended, 1) + 1 < gridDim.x) return;
    gate.blocks->n_begun = gate.blocks->n_ended = 0; /* for the next launch */
  }
  __threadfence_system();
  for (int i = 0; i < gate.n_done; i++)
    flag_store(gate.done[i], opened ? gate.value : gate.value | XFI_FLAG_VOID);
}

#endif
