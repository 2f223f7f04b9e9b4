/* Words between devices as kernels read and write them, and the gates of tables. */
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

/* Is one of n flags void? All threads of a block, at least n of them, call it and hear the same. */
static __device__ __forceinline__ bool is_any_void(uint64_t *const *flags, int n)
{
  const uint64_t seen = (int)threadIdx.x < n ? flag_load(flags[threadIdx.x]) : 0;

  return __syncthreads_or((seen & XFI_FLAG_VOID) != 0) != 0;
}

/* May this block copy? The first to come looks for all: words of the host's memory are read one
 * after the other. All threads of a block call it and hear the same, as do all blocks. */
static __device__ __forceinline__ bool gate_opens(const xfi_cuda_gate &gate)
{
  if (gate.n_flags == 0) return gate.go == NULL || *gate.go != 0;
  const bool is_first =
      threadIdx.x == 0 && (gridDim.x == 1 || atomicAdd(&gate.blocks->come, 1) == 0);
  uint64_t said = gate.value;

  if (__syncthreads_or(is_first)) {
    if (is_any_void(gate.flags, gate.n_flags)) said |= XFI_FLAG_VOID;
    if (threadIdx.x == 0 && gridDim.x > 1)
      asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(&gate.blocks->said), "l"(said)
                   : "memory");
  } else if (threadIdx.x == 0) {
    do
      asm volatile("ld.acquire.gpu.global.u64 %0, [%1];"
                   : "=l"(said)
                   : "l"(&gate.blocks->said)
                   : "memory");
    while ((said & ~XFI_FLAG_VOID) != gate.value);
  }
  return !__syncthreads_or((said & XFI_FLAG_VOID) != 0);
}

/* The last block of the launch to come here tells who waits. */
static __device__ __forceinline__ void gate_ends(const xfi_cuda_gate &gate, bool opened)
{
  if (gate.n_flags == 0) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    __threadfence_system(); /* what the block wrote, before what is said of it */
    if (atomicAdd(&gate.blocks->ended, 1) + 1 < gridDim.x) return;
    gate.blocks->come = gate.blocks->ended = 0; /* for the next launch */
  }
  __threadfence_system();
  for (int i = 0; i < gate.n_done; i++)
    flag_store(gate.done[i], opened ? gate.value : gate.value | XFI_FLAG_VOID);
}

#endif
