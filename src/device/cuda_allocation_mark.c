/*
 * Has this process allocated anything since the last check? The driver numbers all allocations of a
 * process, of all kinds and on all devices, consecutively, and a chunk that is mapped takes a
 * number too. So each check maps a chunk: if its number follows that of the last check, nothing was
 * allocated between them. A commit in which nothing changed then takes 2 us, instead of 0.2 to 0.3
 * us for each allocation, of which a trainer may have tens of thousands.
 *
 * It is documented that numbers are not reused, but not that they are consecutive. So that is
 * tested first, and if it does not hold, every commit looks up all allocations.
 */
#include "cuda_device.h"

#include "alloc.h"

#include <pthread.h>

enum { TRIES = 4 }; /* another thread may allocate during one; ranks are serialised by the mutex */
static const size_t CHUNK_BYTES = (size_t)2 << 20;

struct xfi_cuda_probe {
  CUmemGenericAllocationHandle chunk;
  CUdeviceptr at;     /* 0: no addresses */
  void *tried[TRIES]; /* allocations of the tests, freed at the end, since cudaFree waits for the
                         device */
  bool counts;        /* numbers are consecutive */
};

static struct {
  pthread_mutex_t mutex;
  uint64_t last; /* the number of the chunk when it was mapped last */
  uint64_t mark;
} of_process = {PTHREAD_MUTEX_INITIALIZER, 0, 1};

static uint64_t number_of(const xfi_cuda_device *device, CUdeviceptr at)
{
  unsigned long long id = 0;

  if (device->driver.pointer_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at) != CUDA_SUCCESS)
    return 0;
  return id;
}

/* The next number; 0: the driver failed. */
static uint64_t next_number(const xfi_cuda_device *device)
{
  const xfi_cuda_probe *probe = device->probe;
  uint64_t id;

  if (device->driver.map(probe->at, CHUNK_BYTES, 0, probe->chunk, 0) != CUDA_SUCCESS) return 0;
  id = number_of(device, probe->at);
  (void)device->driver.unmap(probe->at, CHUNK_BYTES);
  return id;
}

static bool counts_by_one(const xfi_cuda_device *device, void **tried)
{
  const uint64_t first = next_number(device);

  if (first == 0 || xfi_cuda_query_result(cudaMalloc(tried, 1)) != cudaSuccess) return false;
  return number_of(device, (CUdeviceptr)(uintptr_t)*tried) == first + 1 &&
         next_number(device) == first + 2;
}

static void probe_make(xfi_cuda_device *device)
{
  const CUmemAllocationProp prop = {
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal}};
  xfi_cuda_probe *probe = xfi_calloc(1, sizeof *probe);

  if (probe == NULL) return;
  device->probe = probe;
  if (device->driver.create(&probe->chunk, CHUNK_BYTES, &prop, 0) != CUDA_SUCCESS) return;
  if (device->driver.address_reserve(&probe->at, CHUNK_BYTES, 0, 0, 0) != CUDA_SUCCESS) {
    (void)device->driver.release(probe->chunk);
    probe->at = 0;
    return;
  }
  for (int i = 0; i < TRIES && !probe->counts; i++)
    probe->counts = counts_by_one(device, &probe->tried[i]);
}

void xfi_cuda_probe_free(xfi_cuda_device *device)
{
  xfi_cuda_probe *probe = device->probe;

  if (probe == NULL) return;
  for (int i = 0; i < TRIES; i++)
    if (probe->tried[i] != NULL) (void)cudaFree(probe->tried[i]);
  if (probe->at != 0) {
    (void)device->driver.address_free(probe->at, CHUNK_BYTES);
    (void)device->driver.release(probe->chunk);
  }
  xfi_free(probe);
}

uint64_t xfi_cuda_allocation_mark(xfi_device *base)
{
  xfi_cuda_device *device = xfi_cuda(base);
  uint64_t mark = 0;

  (void)pthread_mutex_lock(&of_process.mutex);
  if (device->probe == NULL) probe_make(device);
  const uint64_t now = device->probe != NULL && device->probe->counts ? next_number(device) : 0;
  if (now != 0) {
    if (now != of_process.last + 1) of_process.mark++;
    of_process.last = now;
    mark = of_process.mark;
  }
  (void)pthread_mutex_unlock(&of_process.mutex);
  return mark;
}
