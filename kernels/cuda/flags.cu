/* Signals between devices: 64-bit words that only grow. */
#include "flags.cuh"

namespace {

constexpr int FLAGS_PER_LAUNCH = 64; /* pointers travel as kernel arguments: no upload */

struct flag_list {
  uint64_t *flags[FLAGS_PER_LAUNCH];
};

/* Kernels start after the copies before them on the stream; the fence makes what those wrote
 * visible first. */
__global__ void set_kernel(flag_list list, int n_flags, uint64_t value, const uint64_t *go)
{
  if ((int)threadIdx.x >= n_flags) return;
  if (go != NULL && *go == 0) value |= XFI_FLAG_VOID;
  __threadfence_system();
  flag_store(list.flags[threadIdx.x], value);
}

/* One block of FLAGS_PER_LAUNCH threads. */
__global__ void guard_kernel(flag_list list, int n_flags, uint64_t *go)
{
  const bool is_void = is_any_void(list.flags, n_flags);
  if (threadIdx.x == 0) *go = is_void ? 0 : 1;
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
  xfer_status st = load(set_kernel, "flag kernel");
  return st == XFER_OK ? load(guard_kernel, "guard kernel") : st;
}

extern "C" xfer_status xfi_cuda_flags_set(uint64_t *const *flags, int n_flags, uint64_t value,
                                          const uint64_t *go, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  for (int first = 0; first < n_flags && st == XFER_OK; first += FLAGS_PER_LAUNCH) {
    const int n = n_flags - first < FLAGS_PER_LAUNCH ? n_flags - first : FLAGS_PER_LAUNCH;

    st = launch(set_kernel, 1, FLAGS_PER_LAUNCH, stream, "flag kernel", list_of(flags + first, n),
                n, value, go);
  }
  return st;
}

extern "C" xfer_status xfi_cuda_guard_check(uint64_t *const *flags, int n_flags, uint64_t *go,
                                            xfer_stream stream)
{
  return launch(guard_kernel, 1, FLAGS_PER_LAUNCH, stream, "guard kernel", list_of(flags, n_flags),
                n_flags, go);
}
