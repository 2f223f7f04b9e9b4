#include "chunks.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudaTypedefs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 2 << 20 };

static void check(bool good, const char *what)
{
  if (good) return;
  fprintf(stderr, "chunks: %s failed\n", what);
  abort();
}

/* The driver's functions, without a link to libcuda. */
static void load(void *function, const char *name)
{
  void *found = NULL;
  enum cudaDriverEntryPointQueryResult result;

  check(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result) ==
                cudaSuccess &&
            found != NULL,
        name);
  memcpy(function, &found, sizeof found);
}

#define DRIVER(type, name, arguments)                                                              \
  do {                                                                                             \
    type driver_function = NULL;                                                                   \
    load(&driver_function, #name);                                                                 \
    check(driver_function arguments == CUDA_SUCCESS, #name);                                       \
  } while (0)

static size_t whole(size_t n_bytes)
{
  return (n_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
}

static CUdeviceptr address(const void *memory)
{
  return (CUdeviceptr)(uintptr_t)memory;
}

static void map(CUdeviceptr base, size_t n_bytes, bool leaves)
{
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = leaves
                                                          ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                          : CU_MEM_HANDLE_TYPE_NONE,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

  check(cudaGetDevice(&prop.location.id) == cudaSuccess, "cudaGetDevice");
  access.location = prop.location;
  for (size_t at = 0; at < whole(n_bytes); at += CHUNK_BYTES) {
    CUmemGenericAllocationHandle chunk;

    DRIVER(PFN_cuMemCreate_v10020, cuMemCreate, (&chunk, CHUNK_BYTES, &prop, 0));
    DRIVER(PFN_cuMemMap_v10020, cuMemMap, (base + at, CHUNK_BYTES, 0, chunk, 0));
    DRIVER(PFN_cuMemRelease_v10020, cuMemRelease, (chunk));
  }
  DRIVER(PFN_cuMemSetAccess_v10020, cuMemSetAccess, (base, whole(n_bytes), &access, 1));
}

void *chunks_alloc(size_t n_bytes, bool leaves)
{
  CUdeviceptr base = 0;

  DRIVER(PFN_cuMemAddressReserve_v10020, cuMemAddressReserve, (&base, whole(n_bytes), 0, 0, 0));
  map(base, n_bytes, leaves);
  return (void *)(uintptr_t)base;
}

void chunks_renew(void *memory, size_t n_bytes, bool leaves)
{
  check(cudaDeviceSynchronize() == cudaSuccess, "cudaDeviceSynchronize");
  DRIVER(PFN_cuMemUnmap_v10020, cuMemUnmap, (address(memory), whole(n_bytes)));
  map(address(memory), n_bytes, leaves);
}

void chunks_free(void *memory, size_t n_bytes)
{
  check(cudaDeviceSynchronize() == cudaSuccess, "cudaDeviceSynchronize");
  DRIVER(PFN_cuMemUnmap_v10020, cuMemUnmap, (address(memory), whole(n_bytes)));
  DRIVER(PFN_cuMemAddressFree_v10020, cuMemAddressFree, (address(memory), whole(n_bytes)));
}
