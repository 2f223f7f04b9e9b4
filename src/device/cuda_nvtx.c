/* Ranges for NVIDIA's profilers, of the spans of trace.h. NVTX is header only: without a profiler a
 * range is one test of a pointer. */
#include "cuda_device.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

#include "trace.h"

#include <pthread.h>
#include <stddef.h>

static void push(const char *name)
{
  (void)nvtxRangePushA(name);
}

static void pop(void)
{
  (void)nvtxRangePop();
}

static void begin(void)
{
  static const xfi_ranges nvtx = {push, pop};

  nvtxInitialize(NULL); /* else the first ranges of several threads do it, without a lock */
  xfi_trace_ranges(&nvtx);
}

void xfi_cuda_nvtx(void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;

  (void)pthread_once(&once, begin);
}
#else
void xfi_cuda_nvtx(void)
{
}
#endif
