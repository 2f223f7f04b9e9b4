/* What CUDA and NCCL say of themselves and of the devices here. */
#include <stdio.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "nccl_load.h"
#include "text.h"
#include "vendors.h"

/* 13020 as "13.2". */
static void print_version(const char *name, int version)
{
  printf("%s %d.%d", name, version / 1000, version % 1000 / 10);
}

static void print_device(int i)
{
  struct cudaDeviceProp p;
  size_t unused = 0, total = 0;

  if (cudaGetDeviceProperties(&p, i) != cudaSuccess) return;
  if (cudaSetDevice(i) != cudaSuccess || cudaMemGetInfo(&unused, &total) != cudaSuccess) total = 0;
  printf("gpu %d: %s, sm_%d%d, %s, %s free, bus %02x:%02x\n", i, p.name, p.major, p.minor,
         text_bytes((double)p.totalGlobalMem).at, total > 0 ? text_bytes((double)unused).at : "?",
         (unsigned)p.pciBusID, (unsigned)p.pciDeviceID);
}

/* A row for each device: 1 where it can map the memory of the other. */
static void print_peers(int n)
{
  printf("peer access:\n");
  for (int i = 0; i < n; i++) {
    printf("  gpu %d:", i);
    for (int k = 0; k < n; k++) {
      int can = 0;

      if (i == k)
        printf(" -");
      else
        printf(" %d", cudaDeviceCanAccessPeer(&can, i, k) == cudaSuccess && can != 0);
    }
    printf("\n");
  }
}

void info_cuda(void)
{
  int runtime = 0, driver = 0, nccl = 0, n = 0;

  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaDriverGetVersion(&driver);
  print_version("cuda:", runtime);
  if (driver > 0)
    print_version(", driver for", driver);
  else
    printf(", no driver");
  if (xfi_nccl_load() != NULL)
    printf("; nccl: not found: %s\n", xfi_nccl_load());
  else if (ncclGetVersion(&nccl) == ncclSuccess)
    printf("; nccl: %d.%d.%d\n", nccl / 10000, nccl % 10000 / 100, nccl % 100);
  const cudaError_t error = cudaGetDeviceCount(&n);
  if (error != cudaSuccess)
    printf("gpus: none: %s\n",
           driver > 0 ? cudaGetErrorString(error) : "libcuda.so.1, the driver's, was not found");
  for (int i = 0; error == cudaSuccess && i < n; i++)
    print_device(i);
  if (error == cudaSuccess && n > 1) print_peers(n);
}
