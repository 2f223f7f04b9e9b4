/*
 * Memory that is mapped piece by piece: cuMemCreate and its kin. Each piece is a file of its own,
 * whose name tells other processes on which device it lies.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "machine.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RESERVATIONS_MAX = 4096 };
static const size_t GRANULARITY = (size_t)2 << 20;

struct sim_chunk {
  int file;
  size_t n_bytes;
  int device;
  bool leaves;
  bool imported;
  int refs; /* handles and mappings */
};

typedef struct reservation {
  char *base;
  size_t n_bytes;
} reservation;

static reservation reservations[RESERVATIONS_MAX]; /* [n_reservations] */
static size_t n_reservations;

bool sim_chunk_leaves(const sim_chunk *chunk)
{
  return chunk->leaves;
}

static reservation *reservation_of(const char *at, size_t n_bytes)
{
  for (size_t i = 0; i < n_reservations; i++) {
    reservation *r = &reservations[i];
    if (at >= r->base && at + n_bytes <= r->base + r->n_bytes) return r;
  }
  return NULL;
}

void sim_chunk_reservation(const sim_memory *memory, CUdeviceptr *base, size_t *n_bytes)
{
  const reservation *r = reservation_of(memory->base, memory->n_bytes);

  *base = (CUdeviceptr)(uintptr_t)r->base;
  *n_bytes = r->n_bytes;
}

static char *pointer_of(CUdeviceptr at)
{
  return (char *)(uintptr_t)at; /* NOLINT: the driver's pointers are integers */
}

static sim_chunk *chunk_of(CUmemGenericAllocationHandle handle)
{
  return (sim_chunk *)(uintptr_t)handle; /* NOLINT: likewise */
}

static CUmemGenericAllocationHandle handle_of(const sim_chunk *chunk)
{
  return (CUmemGenericAllocationHandle)(uintptr_t)chunk;
}

static void chunk_release(sim_chunk *chunk)
{
  if (--chunk->refs > 0) return;
  (void)close(chunk->file);
  if (!chunk->imported) {
    sim.used[chunk->device] -= chunk->n_bytes;
    sim.counts.bytes -= chunk->n_bytes;
  }
  free(chunk);
}

static CUresult CUDAAPI sim_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t n_bytes,
                                        const CUmemAllocationProp *prop, unsigned long long flags)
{
  char name[32];

  SIM_ENTER_DRIVER(SIM_UNSAFE);
  const int device = prop->location.id;
  if (n_bytes % GRANULARITY != 0 || n_bytes == 0 || flags != 0 ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
  if (n_bytes > sim.config.memory_bytes - sim.used[device])
    return sim_leave_driver(CUDA_ERROR_OUT_OF_MEMORY);
  sim_chunk *chunk = calloc(1, sizeof *chunk);
  if (chunk == NULL) abort();
  (void)snprintf(name, sizeof name, "sim-chunk-%d", device);
  *chunk = (sim_chunk){
      .file = memfd_create(name, MFD_CLOEXEC),
      .n_bytes = n_bytes,
      .device = device,
      .leaves = (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0,
      .refs = 1};
  if (chunk->file < 0 || ftruncate(chunk->file, (off_t)n_bytes) != 0) abort();
  sim.used[device] += n_bytes;
  sim.counts.bytes += n_bytes;
  *handle = handle_of(chunk);
  return sim_leave_driver(CUDA_SUCCESS);
}

static CUresult CUDAAPI sim_cuMemRelease(CUmemGenericAllocationHandle handle)
{
  SIM_ENTER_DRIVER(SIM_UNSAFE);
  chunk_release(chunk_of(handle));
  return sim_leave_driver(CUDA_SUCCESS);
}

static CUresult CUDAAPI sim_cuMemAddressReserve(CUdeviceptr *out, size_t n_bytes, size_t alignment,
                                                CUdeviceptr wanted, unsigned long long flags)
{
  SIM_ENTER_DRIVER(SIM_SAFE);
  (void)alignment;
  (void)wanted;
  if (n_bytes == 0 || n_bytes % GRANULARITY != 0 || flags != 0 ||
      n_reservations == RESERVATIONS_MAX)
    return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
  char *base = mmap(NULL, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return sim_leave_driver(CUDA_ERROR_OUT_OF_MEMORY);
  reservations[n_reservations++] = (reservation){base, n_bytes};
  sim_addresses_claim(base, n_bytes);
  *out = (CUdeviceptr)(uintptr_t)base;
  return sim_leave_driver(CUDA_SUCCESS);
}

static CUresult CUDAAPI sim_cuMemAddressFree(CUdeviceptr at, size_t n_bytes)
{
  SIM_ENTER_DRIVER(SIM_UNSAFE);
  reservation *r = reservation_of(pointer_of(at), n_bytes);
  if (r == NULL || r->base != pointer_of(at) || r->n_bytes != n_bytes)
    return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
  for (size_t i = 0; i < n_bytes; i += GRANULARITY)
    if (sim_memory_at(r->base + i) != NULL) return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
  sim_addresses_release(r->base);
  (void)munmap(r->base, r->n_bytes);
  *r = reservations[--n_reservations];
  return sim_leave_driver(CUDA_SUCCESS);
}

/* Nobody may touch it before cuMemSetAccess. */
static CUresult CUDAAPI sim_cuMemMap(CUdeviceptr at, size_t n_bytes, size_t offset,
                                     CUmemGenericAllocationHandle handle, unsigned long long flags)
{
  SIM_ENTER_DRIVER(SIM_UNSAFE);
  sim_chunk *chunk = chunk_of(handle);
  if (flags != 0 || offset != 0 || n_bytes != chunk->n_bytes ||
      reservation_of(pointer_of(at), n_bytes) == NULL)
    return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
  const sim_memory memory = {.base = pointer_of(at),
                             .n_bytes = n_bytes,
                             .kind = SIM_CHUNK,
                             .device = chunk->device,
                             .chunk = chunk};
  if (sim_memory_add(memory) == NULL) return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
  if (mmap(memory.base, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, chunk->file, 0) ==
      MAP_FAILED)
    abort();
  chunk->refs++;
  return sim_leave_driver(CUDA_SUCCESS);
}

/* Does not wait for work that still touches the memory. */
static CUresult CUDAAPI sim_cuMemUnmap(CUdeviceptr at, size_t n_bytes)
{
  SIM_ENTER_DRIVER(SIM_UNSAFE);
  for (char *p = pointer_of(at); p < pointer_of(at) + n_bytes;) {
    const sim_memory *found = sim_memory_at(p);
    if (found == NULL || found->kind != SIM_CHUNK || found->base != p)
      return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
    const sim_memory memory = *found;
    sim_memory_remove(p);
    if (mmap(p, memory.n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0) == MAP_FAILED)
      abort();
    chunk_release(memory.chunk);
    p += memory.n_bytes;
  }
  return sim_leave_driver(CUDA_SUCCESS);
}

static CUresult CUDAAPI sim_cuMemSetAccess(CUdeviceptr at, size_t n_bytes,
                                           const CUmemAccessDesc *desc, size_t n)
{
  SIM_ENTER_DRIVER(SIM_UNSAFE);
  for (char *p = pointer_of(at); p < pointer_of(at) + n_bytes;) {
    sim_memory *found = (sim_memory *)sim_memory_at(p);
    if (found == NULL || found->kind != SIM_CHUNK)
      return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < n; i++) {
      const int device = desc[i].location.id;
      if (device != found->device && (sim.config.apart[device] >> found->device & 1) != 0)
        return sim_leave_driver(CUDA_ERROR_INVALID_DEVICE);
      if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        found->access &= ~(UINT64_C(1) << device);
      else
        found->access |= UINT64_C(1) << device;
    }
    p = found->base + found->n_bytes;
  }
  sim.last_id++; /* as was seen on an H100 */
  return sim_leave_driver(CUDA_SUCCESS);
}

static CUresult CUDAAPI sim_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                                        void *at)
{
  SIM_ENTER_DRIVER(SIM_SAFE);
  const sim_memory *found = sim_memory_at(at);
  if (found == NULL || found->kind != SIM_CHUNK) return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
  found->chunk->refs++;
  *handle = handle_of(found->chunk);
  return sim_leave_driver(CUDA_SUCCESS);
}

static CUresult CUDAAPI sim_cuMemExportToShareableHandle(void *out,
                                                         CUmemGenericAllocationHandle handle,
                                                         CUmemAllocationHandleType type,
                                                         unsigned long long flags)
{
  SIM_ENTER_DRIVER(SIM_UNSAFE);
  const sim_chunk *chunk = chunk_of(handle);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
    return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
  if (!chunk->leaves) return sim_leave_driver(CUDA_ERROR_NOT_SUPPORTED);
  const int file = fcntl(chunk->file, F_DUPFD_CLOEXEC, 0);
  if (file < 0) return sim_leave_driver(CUDA_ERROR_OPERATING_SYSTEM);
  memcpy(out, &file, sizeof file);
  return sim_leave_driver(CUDA_SUCCESS);
}

/* A handle of its own to the same memory. */
static CUresult CUDAAPI sim_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                                           void *os_handle,
                                                           CUmemAllocationHandleType type)
{
  char path[64];
  char name[128] = "";
  struct stat info;
  int device = 0;

  SIM_ENTER_DRIVER(SIM_UNSAFE);
  const int given = (int)(intptr_t)os_handle;
  (void)snprintf(path, sizeof path, "/proc/self/fd/%d", given);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(given, &info) != 0 ||
      readlink(path, name, sizeof name - 1) < 0 ||
      sscanf(name, "/memfd:sim-chunk-%d", &device) != 1) /* NOLINT: a number that we wrote */
    return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
  sim_chunk *chunk = calloc(1, sizeof *chunk);
  if (chunk == NULL) abort();
  *chunk = (sim_chunk){.file = fcntl(given, F_DUPFD_CLOEXEC, 0),
                       .n_bytes = (size_t)info.st_size,
                       .device = device,
                       .leaves = true,
                       .imported = true,
                       .refs = 1};
  *handle = handle_of(chunk);
  return sim_leave_driver(CUDA_SUCCESS);
}

const sim_function sim_chunk_functions[] = {SIM_FUNCTION(cuMemCreate),
                                            SIM_FUNCTION(cuMemRelease),
                                            SIM_FUNCTION(cuMemAddressReserve),
                                            SIM_FUNCTION(cuMemAddressFree),
                                            SIM_FUNCTION(cuMemMap),
                                            SIM_FUNCTION(cuMemUnmap),
                                            SIM_FUNCTION(cuMemSetAccess),
                                            SIM_FUNCTION(cuMemRetainAllocationHandle),
                                            SIM_FUNCTION(cuMemExportToShareableHandle),
                                            SIM_FUNCTION(cuMemImportFromShareableHandle),
                                            {NULL, NULL}};
