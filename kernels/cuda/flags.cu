/* Signals between devices: 64-bit words that only grow. */
#include "launch.cuh"

namespace {

constexpr int FLAGS_PER_LAUNCH = 64; /* pointers travel as kernel arguments: no upload */

struct flag_list {
  uint64_t *flags[FLAGS_PER_LAUNCH];
};

/* Kernels start after the copies before them on the stream; the fence makes what those wrote
 * visible first. */
__global__ void set_kernel(flag_list list, int n_flags, uint64_t value)
{
  if ((int)threadIdx.x >= n_flags) return;
  __threadfence_system();
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(list.flags[threadIdx.x]), "l"(value)
               : "memory");
}

__global__ void spin_kernel(flag_list list, int n_flags, uint64_t value)
{
  if ((int)threadIdx.x >= n_flags) return;
  uint64_t seen = 0;
  do {
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                 : "=l"(seen)
                 : "l"(list.flags[threadIdx.x])
                 : "memory");
  } while (seen < value);
}

flag_list list_of(uint64_t *const *flags, int n_flags)
{
  flag_list list = {};
  for (int i = 0; i < n_flags; i++)
    list.flags[i] = flags[i];
  return list;
}

} // namespace

extern "C" xfer_status xfi_cuda_flags_load(void)
{
  const xfer_status st = load(set_kernel, "flag kernel");
  return st == XFER_OK ? load(spin_kernel, "flag wait") : st;
}

extern "C" xfer_status xfi_cuda_flags_set(uint64_t *const *flags, int n_flags, uint64_t value,
                                          xfer_stream stream)
{
  for (int first = 0; first < n_flags; first += FLAGS_PER_LAUNCH) {
    const int n = n_flags - first < FLAGS_PER_LAUNCH ? n_flags - first : FLAGS_PER_LAUNCH;
    const xfer_status st = launch(set_kernel, 1, FLAGS_PER_LAUNCH, stream, "flag kernel",
                                  list_of(flags + first, n), n, value);
    if (st != XFER_OK) return st;
  }
  return XFER_OK;
}

extern "C" xfer_status xfi_cuda_flags_spin(uint64_t *const *flags, int n_flags, uint64_t value,
                                           xfer_stream stream)
{
  for (int first = 0; first < n_flags; first += FLAGS_PER_LAUNCH) {
    const int n = n_flags - first < FLAGS_PER_LAUNCH ? n_flags - first : FLAGS_PER_LAUNCH;
    const xfer_status st = launch(spin_kernel, 1, FLAGS_PER_LAUNCH, stream, "flag wait",
                                  list_of(flags + first, n), n, value);
    if (st != XFER_OK) return st;
  }
  return XFER_OK;
}
