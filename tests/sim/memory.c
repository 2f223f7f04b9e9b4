/*
 * Allocations. A device's memory is a file that is mapped once, so that it can be shared with other
 * processes; the host can read and write it, which tests use to look.
 *
 * A block that was freed is taken again at once, mostly, and the most recent one first: stale
 * pointers then hit somebody else's memory, as they do on a GPU.
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
#include <unistd.h>

enum { ALIGN = 512, POISON_NEW = 0xa7, POISON_FREED = 0xdd, BLOCKS_MAX = 1024, CLAIMS_MAX = 4096 };
static const size_t ARENA_BYTES = (size_t)64 << 30; /* of addresses */

typedef struct block {
  size_t at;
  size_t n_bytes;
} block;

/* The memory of one device. */
typedef struct arena {
  char *base;
  int file;
  size_t top;
  block freed[BLOCKS_MAX]; /* [n_freed] the last is the most recent one */
  size_t n_freed;
} arena;

static arena arenas[SIM_DEVICES];
static sim_memory *living; /* [n_living] ascending in base */
static size_t n_living;
static size_t cap_living;
static block claims[CLAIMS_MAX]; /* [n_claims] intervals of addresses */
static size_t n_claims;

/* ---- what lives where --------------------------------------------------------------------- */

/* The first that begins above p. */
static size_t above(const void *pointer)
{
  size_t lo = 0;
  size_t hi = n_living;

  while (lo < hi) {
    const size_t mid = lo + (hi - lo) / 2;
    if (living[mid].base <= (const char *)pointer)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

const sim_memory *sim_memory_at(const void *pointer)
{
  const size_t at = above(pointer);

  if (at == 0) return NULL;
  const sim_memory *memory = &living[at - 1];
  return (const char *)pointer < memory->base + memory->n_bytes ? memory : NULL;
}

bool sim_memory_holds(const void *pointer, size_t n_bytes)
{
  const char *at = pointer;
  const char *end = at + n_bytes;

  while (at < end) { /* chunks may follow each other */
    const sim_memory *memory = sim_memory_at(at);
    if (memory == NULL || (memory->base + memory->n_bytes < end && memory->kind != SIM_CHUNK))
      return false;
    at = memory->base + memory->n_bytes;
  }
  return true;
}

sim_memory *sim_memory_add(sim_memory memory)
{
  const size_t at = above(memory.base);

  if (at > 0 && living[at - 1].base + living[at - 1].n_bytes > memory.base) return NULL;
  if (at < n_living && memory.base + memory.n_bytes > living[at].base) return NULL;
  if (n_living == cap_living) {
    cap_living = 2 * cap_living + 64;
    living = realloc(living, cap_living * sizeof *living);
    if (living == NULL) abort();
  }
  memmove(living + at + 1, living + at, (n_living - at) * sizeof *living);
  n_living++;
  sim.last_id += sim.config.numbers_apart ? 2 : 1;
  memory.id = sim.last_id;
  living[at] = memory;
  return &living[at];
}

void sim_memory_remove(const void *base)
{
  const size_t at = above(base) - 1;

  memmove(living + at, living + at + 1, (n_living - at - 1) * sizeof *living);
  n_living--;
}

void sim_addresses_claim(const void *base, size_t n_bytes)
{
  for (size_t i = 0; i < n_claims; i++)
    if (claims[i].at == (size_t)base && claims[i].n_bytes >= n_bytes) return;
  if (n_claims < CLAIMS_MAX) claims[n_claims++] = (block){(size_t)base, n_bytes};
}

void sim_addresses_release(const void *base)
{
  for (size_t i = 0; i < n_claims; i++)
    if (claims[i].at == (size_t)base) claims[i--] = claims[--n_claims];
}

bool sim_memory_is_ours(const void *pointer)
{
  for (size_t i = 0; i < n_claims; i++)
    if ((size_t)pointer >= claims[i].at && (size_t)pointer < claims[i].at + claims[i].n_bytes)
      return true;
  return false;
}

bool sim_memory_reaches(int device, const sim_memory *memory)
{
  switch (memory->kind) {
  case SIM_DEVICE:
    return memory->device == device || (sim.reaches[device] >> memory->device & 1) != 0;
  case SIM_CHUNK:
    return (memory->access >> device & 1) != 0;
  default:
    return true;
  }
}

/* ---- device memory ------------------------------------------------------------------------ */

static void arena_open(arena *a)
{
  if (a->base != NULL) return;
  a->file = memfd_create("sim-device", MFD_CLOEXEC);
  if (a->file < 0 || ftruncate(a->file, (off_t)ARENA_BYTES) != 0) abort();
  a->base = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, a->file, 0);
  if (a->base == MAP_FAILED) abort();
  sim_addresses_claim(a->base, ARENA_BYTES);
}

static size_t rounded(size_t n_bytes)
{
  return (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

void sim_arenas_trim(void)
{
  for (int d = 0; d < SIM_DEVICES; d++) {
    arena *a = &arenas[d];

    if (a->base == NULL || sim.used[d] > 0) continue;
    (void)madvise(a->base, a->top, MADV_REMOVE);
    a->top = 0;
    a->n_freed = 0;
  }
}

/* A freed block that is large enough, the last one first, or new addresses. */
static size_t arena_take(arena *a, size_t n_bytes)
{
  for (size_t i = a->n_freed; i > 0 && sim_draw(8) != 0; i--) {
    block *freed = &a->freed[i - 1];
    const size_t at = freed->at;
    if (freed->n_bytes < n_bytes) continue;
    freed->at += n_bytes;
    freed->n_bytes -= n_bytes;
    if (freed->n_bytes == 0) {
      memmove(freed, freed + 1, (a->n_freed - i) * sizeof *freed);
      a->n_freed--;
    }
    return at;
  }
  const size_t at = a->top + ALIGN * (size_t)sim_draw(3);
  a->top = at + n_bytes;
  return a->top > ARENA_BYTES ? SIZE_MAX : at;
}

static void arena_give(arena *a, size_t at, size_t n_bytes)
{
  if (a->n_freed == BLOCKS_MAX) memmove(a->freed, a->freed + 1, --a->n_freed * sizeof *a->freed);
  a->freed[a->n_freed++] = (block){at, n_bytes};
}

static cudaError_t device_alloc(void **out, size_t n_bytes)
{
  const int device = sim_self()->device;
  arena *a = &arenas[device];

  if (n_bytes == 0) {
    *out = NULL;
    return cudaSuccess;
  }
  if (n_bytes > sim.config.memory_bytes - sim.used[device]) return cudaErrorMemoryAllocation;
  arena_open(a);
  const size_t at = arena_take(a, rounded(n_bytes));
  if (at == SIZE_MAX) return cudaErrorMemoryAllocation;
  memset(a->base + at, POISON_NEW, n_bytes);
  (void)sim_memory_add(
      (sim_memory){.base = a->base + at, .n_bytes = n_bytes, .kind = SIM_DEVICE, .device = device});
  sim.used[device] += n_bytes;
  sim.counts.bytes += n_bytes;
  *out = a->base + at;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMalloc(void **out, size_t n_bytes)
{
  SIM_ENTER(SIM_UNSAFE);
  return sim_leave(device_alloc(out, n_bytes));
}

/* Waits for all work of the device first. */
cudaError_t CUDARTAPI cudaFree(void *pointer)
{
  SIM_ENTER(SIM_UNSAFE);
  if (pointer == NULL) return sim_leave(cudaSuccess);
  const sim_memory *found = sim_memory_at(pointer);
  if (found == NULL || found->base != pointer || found->kind != SIM_DEVICE)
    return sim_leave(cudaErrorInvalidValue);
  const int device = found->device;
  sim_wait_device(device);
  const sim_memory memory = *sim_memory_at(pointer); /* others may have come meanwhile */
  sim_memory_remove(pointer);
  memset(memory.base, POISON_FREED, memory.n_bytes);
  sim.used[device] -= memory.n_bytes;
  sim.counts.bytes -= memory.n_bytes;
  arena_give(&arenas[device], (size_t)(memory.base - arenas[device].base), rounded(memory.n_bytes));
  return sim_leave(cudaSuccess);
}

/* ---- memory of the host ------------------------------------------------------------------- */

cudaError_t CUDARTAPI cudaHostAlloc(void **out, size_t n_bytes, unsigned flags)
{
  SIM_ENTER(SIM_UNSAFE);
  (void)flags;
  char *made = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return sim_leave(cudaErrorMemoryAllocation);
  memset(made, POISON_NEW, n_bytes);
  (void)sim_memory_add((sim_memory){
      .base = made, .n_bytes = n_bytes, .kind = SIM_PINNED, .device = sim_self()->device});
  sim.counts.pinned += n_bytes;
  *out = made;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaFreeHost(void *pointer)
{
  SIM_ENTER(SIM_UNSAFE);
  if (pointer == NULL) return sim_leave(cudaSuccess);
  const sim_memory *found = sim_memory_at(pointer);
  if (found == NULL || found->base != pointer || found->kind != SIM_PINNED)
    return sim_leave(cudaErrorInvalidValue);
  sim_wait_device(found->device);
  const size_t n_bytes = sim_memory_at(pointer)->n_bytes;
  sim_memory_remove(pointer);
  (void)munmap(pointer, n_bytes);
  sim.counts.pinned -= n_bytes;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaHostRegister(void *pointer, size_t n_bytes, unsigned flags)
{
  SIM_ENTER(SIM_UNSAFE);
  (void)flags;
  if (pointer == NULL || n_bytes == 0) return sim_leave(cudaErrorInvalidValue);
  const sim_memory memory = {
      .base = pointer, .n_bytes = n_bytes, .kind = SIM_REGISTERED, .device = sim_self()->device};
  if (sim_memory_add(memory) == NULL) return sim_leave(cudaErrorHostMemoryAlreadyRegistered);
  sim.counts.pinned += n_bytes;
  return sim_leave(cudaSuccess);
}

/* Nothing promises that it waits for anything, so it does not. */
cudaError_t CUDARTAPI cudaHostUnregister(void *pointer)
{
  SIM_ENTER(SIM_UNSAFE);
  const sim_memory *found = sim_memory_at(pointer);
  if (found == NULL || found->base != pointer || found->kind != SIM_REGISTERED)
    return sim_leave(cudaErrorHostMemoryNotRegistered);
  sim.counts.pinned -= found->n_bytes;
  sim_memory_remove(pointer);
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaHostGetDevicePointer(void **out, void *pointer, unsigned flags)
{
  SIM_ENTER(SIM_SAFE);
  (void)flags;
  const sim_memory *found = sim_memory_at(pointer);
  if (found == NULL || (found->kind != SIM_REGISTERED && found->kind != SIM_PINNED))
    return sim_leave(cudaErrorInvalidValue);
  *out = (char *)pointer + (sim.config.maps_elsewhere ? 4096 : 0);
  return sim_leave(cudaSuccess);
}

/* ---- what a pointer is -------------------------------------------------------------------- */

static bool is_host(const sim_memory *memory)
{
  return memory->kind == SIM_PINNED || memory->kind == SIM_REGISTERED;
}

cudaError_t CUDARTAPI cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *at)
{
  SIM_ENTER(SIM_SAFE);
  const sim_memory *found = sim_memory_at(at);
  memset(out, 0, sizeof *out);
  out->type = cudaMemoryTypeUnregistered;
  out->device = -2;
  if (found == NULL) return sim_leave(cudaSuccess);
  out->type = is_host(found) ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  out->device = found->device;
  out->devicePointer = (void *)at;
  out->hostPointer = is_host(found) ? (void *)at : NULL;
  return sim_leave(cudaSuccess);
}

static CUresult attribute(void *out, CUpointer_attribute name, const sim_memory *found)
{
  CUdeviceptr base = (CUdeviceptr)(uintptr_t)found->base;
  size_t n_bytes = found->n_bytes;

  if (found->kind == SIM_CHUNK) sim_chunk_reservation(found, &base, &n_bytes);
  switch (name) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:                               /* see sim_cuCtxGetCurrent() */
    *(CUcontext *)out = (CUcontext)(uintptr_t)(found->device + 1); /* NOLINT */
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned *)out = is_host(found) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)out = found->device;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    *(unsigned long long *)out = found->id;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    *(CUdeviceptr *)out = base;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    *(size_t *)out = n_bytes;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(unsigned *)out = 0;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    *(unsigned *)out = found->kind == SIM_DEVICE;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    *(uint64_t *)out = found->kind == SIM_CHUNK && sim_chunk_leaves(found->chunk)
                           ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                           : 0;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_NOT_SUPPORTED;
  }
}

static const void *pointer_of(CUdeviceptr at)
{
  return (const void *)(uintptr_t)at; /* NOLINT: the driver's pointers are integers */
}

static CUresult CUDAAPI sim_cuPointerGetAttribute(void *out, CUpointer_attribute name,
                                                  CUdeviceptr at)
{
  SIM_ENTER_DRIVER(SIM_SAFE);
  const sim_memory *found = sim_memory_at(pointer_of(at));
  return sim_leave_driver(found == NULL ? CUDA_ERROR_INVALID_VALUE : attribute(out, name, found));
}

/* Of memory that CUDA does not know the attributes stay as they were, and that is no error. */
static CUresult CUDAAPI sim_cuPointerGetAttributes(unsigned n, CUpointer_attribute *attributes,
                                                   void **out, CUdeviceptr at)
{
  CUresult error = CUDA_SUCCESS;

  SIM_ENTER_DRIVER(SIM_SAFE);
  const sim_memory *found = sim_memory_at(pointer_of(at));
  for (unsigned i = 0; i < n && found != NULL && error == CUDA_SUCCESS; i++)
    error = attribute(out[i], attributes[i], found);
  return sim_leave_driver(error);
}

static CUresult CUDAAPI sim_cuMemGetAddressRange(CUdeviceptr *base, size_t *n_bytes, CUdeviceptr at)
{
  SIM_ENTER_DRIVER(SIM_SAFE);
  const sim_memory *found = sim_memory_at(pointer_of(at));
  if (found == NULL) return sim_leave_driver(CUDA_ERROR_NOT_FOUND);
  if (base != NULL) *base = (CUdeviceptr)(uintptr_t)found->base;
  if (n_bytes != NULL) *n_bytes = found->n_bytes;
  return sim_leave_driver(CUDA_SUCCESS);
}

const sim_function sim_memory_functions[] = {SIM_FUNCTION(cuPointerGetAttribute),
                                             SIM_FUNCTION(cuPointerGetAttributes),
                                             SIM_FUNCTION(cuMemGetAddressRange),
                                             {NULL, NULL}};

/* ---- other processes ---------------------------------------------------------------------- */

/* What a cudaIpcMemHandle_t holds: where the exporter's file has the bytes. */
typedef struct ipc_handle {
  int32_t pid;
  int32_t file;
  int32_t device;
  int32_t reserved;
  uint64_t at;
  uint64_t n_bytes;
  uint64_t id;
} ipc_handle;
_Static_assert(sizeof(ipc_handle) <= sizeof(cudaIpcMemHandle_t), "it fits");

cudaError_t CUDARTAPI cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *pointer)
{
  SIM_ENTER(SIM_SAFE);
  const sim_memory *found = sim_memory_at(pointer);
  if (found == NULL || found->kind != SIM_DEVICE) return sim_leave(cudaErrorInvalidValue);
  const arena *a = &arenas[found->device];
  const ipc_handle handle = {.pid = getpid(),
                             .file = a->file,
                             .device = found->device,
                             .at = (uint64_t)(found->base - a->base),
                             .n_bytes = found->n_bytes,
                             .id = found->id};
  memset(out, 0, sizeof *out);
  memcpy(out, &handle, sizeof handle);
  return sim_leave(cudaSuccess);
}

/* A process cannot open what is its own. */
cudaError_t CUDARTAPI cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t in, unsigned flags)
{
  ipc_handle handle;
  char path[64];
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);

  SIM_ENTER(SIM_UNSAFE);
  (void)flags;
  memcpy(&handle, &in, sizeof handle);
  if (handle.pid == getpid()) return sim_leave(cudaErrorDeviceUninitialized);
  if ((sim.config.apart[sim_self()->device] >> handle.device & 1) != 0)
    return sim_leave(cudaErrorPeerAccessUnsupported);
  (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return sim_leave(cudaErrorMapBufferObjectFailed);
  const size_t before = handle.at % page;
  char *base = mmap(NULL, handle.n_bytes + before, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                    (off_t)(handle.at - before));
  (void)close(file);
  if (base == MAP_FAILED) return sim_leave(cudaErrorMapBufferObjectFailed);
  (void)sim_memory_add((sim_memory){.base = base + before,
                                    .n_bytes = handle.n_bytes,
                                    .kind = SIM_IMPORTED,
                                    .device = handle.device});
  sim.counts.imports++;
  *out = base + before;
  return sim_leave(cudaSuccess);
}

cudaError_t CUDARTAPI cudaIpcCloseMemHandle(void *pointer)
{
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);

  SIM_ENTER(SIM_UNSAFE);
  const sim_memory *found = sim_memory_at(pointer);
  if (found == NULL || found->base != pointer || found->kind != SIM_IMPORTED)
    return sim_leave(cudaErrorInvalidValue);
  const size_t before = (size_t)pointer % page;
  const size_t n_bytes = found->n_bytes;
  sim_memory_remove(pointer);
  (void)munmap((char *)pointer - before, n_bytes + before);
  sim.counts.imports--;
  return sim_leave(cudaSuccess);
}
