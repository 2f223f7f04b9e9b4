/* Memory that a test maps chunk by chunk on the simulated machine. */
#ifndef XFER_SIM_CHUNK_MEMORY_H
#define XFER_SIM_CHUNK_MEMORY_H

#include "world.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <string.h>

static inline void *driver(const char *name)
{
  void *found = NULL;

  NEED(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, NULL) ==
           cudaSuccess &&
       found != NULL);
  return found;
}
#define DRIVER(type, name, arguments)                                                              \
  do {                                                                                             \
    type driver_function = NULL;                                                                   \
    void *driver_found = driver(#name);                                                            \
    memcpy(&driver_function, &driver_found, sizeof driver_function);                               \
    NEED(driver_function arguments == CUDA_SUCCESS);                                               \
  } while (0)

/* A chunk of the current device, at an address that is reserved. */
static inline void chunk_map(CUdeviceptr base, size_t n_bytes, bool leaves)
{
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = leaves
                                                          ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                          : CU_MEM_HANDLE_TYPE_NONE,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle chunk = 0;

  NEED(cudaGetDevice(&prop.location.id) == cudaSuccess);
  access.location = prop.location;
  DRIVER(PFN_cuMemCreate_v10020, cuMemCreate, (&chunk, n_bytes, &prop, 0));
  DRIVER(PFN_cuMemMap_v10020, cuMemMap, (base, n_bytes, 0, chunk, 0));
  DRIVER(PFN_cuMemRelease_v10020, cuMemRelease, (chunk));
  DRIVER(PFN_cuMemSetAccess_v10020, cuMemSetAccess, (base, n_bytes, &access, 1));
}

/* Chunks beside each other, the second one of 0 bytes for none. */
static inline void *chunks_alloc(size_t first, size_t second, bool leaves)
{
  CUdeviceptr base = 0;

  DRIVER(PFN_cuMemAddressReserve_v10020, cuMemAddressReserve, (&base, first + second, 0, 0, 0));
  chunk_map(base, first, leaves);
  if (second > 0) chunk_map(base + first, second, leaves);
  return (void *)(uintptr_t)base; /* NOLINT: the driver's pointers are integers */
}

#endif
