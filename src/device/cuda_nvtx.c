/* NVTX is header only: without a profiler a range is one test of a pointer. */
#include "cuda_nvtx.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

#include "trace.h"

static void push(const char *name)
{
  (void)nvtxRangePushA(name);
}

static void pop(void)
{
  (void)nvtxRangePop();
}

void xfi_cuda_nvtx(void)
{
  static const xfi_ranges nvtx = {push, pop};

  xfi_trace_ranges(&nvtx);
}
#else
void xfi_cuda_nvtx(void)
{
}
#endif
