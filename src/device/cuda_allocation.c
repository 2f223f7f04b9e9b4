/*
 * Which allocation of CUDA's some memory lies in, and whether it still is the same one. A commit
 * looks up all bound memory, and each run checks that nothing of it was freed or replaced
 * meanwhile: a peer's mapping would go on to show the old memory, without an error.
 */
#include "cuda_device.h"

#include "error.h"

/* Two more queries, only for memory that is not from cudaMalloc, since they take longer than all
 * others together. For memory in chunks the attributes of a pointer describe the whole range of
 * reserved addresses; the chunk itself is known only to cuMemGetAddressRange(). */
static xfer_status inspect_chunk(const xfi_cuda_device *device, CUdeviceptr at, bool is_ours,
                                 CUdeviceptr *base, size_t *n_bytes, uint64_t *handles)
{
  CUpointer_attribute name = CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES;
  void *value = handles;
  CUresult error = device->driver.pointer_attributes(1, &name, &value, at);

  if (error != CUDA_SUCCESS) return xfi_cuda_driver_failed(device, error, "cuPointerGetAttributes");
  if (is_ours) error = device->driver.address_range(base, n_bytes, at);
  if (error != CUDA_SUCCESS) return xfi_cuda_driver_failed(device, error, "cuMemGetAddressRange");
  return XFER_OK;
}

xfer_status xfi_cuda_inspect(const xfi_cuda_device *device, const void *pointer,
                             xfi_cuda_pointer *found)
{
  xfi_cuda_pointer seen = {.ordinal = -1};
  CUdeviceptr base = 0;
  uint64_t handles = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                 CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                 CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  void *values[] = {&seen.type,    &seen.ordinal, &seen.id, &base,
                    &seen.n_bytes, &seen.managed, &seen.ipc};
  const CUdeviceptr at = (CUdeviceptr)(uintptr_t)pointer;

  CUresult error =
      device->driver.pointer_attributes(sizeof names / sizeof names[0], names, values, at);
  if (error != CUDA_SUCCESS) return xfi_cuda_driver_failed(device, error, "cuPointerGetAttributes");
  if (seen.ipc == 0)
    XFI_TRY(inspect_chunk(device, at,
                          seen.type == CU_MEMORYTYPE_DEVICE && seen.ordinal == device->ordinal,
                          &base, &seen.n_bytes, &handles));
  seen.base = (char *)(uintptr_t)base; /* NOLINT: the driver's pointers are integers */
  seen.file = (handles & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  *found = seen;
  return XFER_OK;
}

static bool is_chunk(const xfi_cuda_device *device, const void *pointer)
{
  CUmemGenericAllocationHandle handle = 0;

  if (device->driver.retain(&handle, (void *)pointer) != CUDA_SUCCESS) return false;
  (void)device->driver.release(handle);
  return true;
}

/* Adjacent chunks count as one allocation, with an id that changes when any of theirs does. The top
 * bit tells such an id from the driver's own, which are small. */
static const uint64_t SEVERAL_CHUNKS = UINT64_C(1) << 63;

bool xfi_cuda_has_several_chunks(const xfi_allocation *allocation)
{
  return (allocation->id & SEVERAL_CHUNKS) != 0;
}

static uint64_t combine_ids(uint64_t id, uint64_t next)
{
  id = (id ^ next) * UINT64_C(0x9e3779b97f4a7c15);
  id = (id ^ id >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
  return (id ^ id >> 32) | SEVERAL_CHUNKS;
}

xfer_status xfi_cuda_find_allocation(xfi_device *base, const void *pointer, size_t n_bytes,
                                     xfi_allocation *found)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfi_cuda_pointer seen = {0};
  xfi_cuda_file file;

  if (xfi_cuda_page_find(device, pointer, found, &file)) return XFER_OK;
  XFI_TRY(xfi_cuda_inspect(device, pointer, &seen));
  XFI_CHECK(seen.type == CU_MEMORYTYPE_DEVICE || seen.type == CU_MEMORYTYPE_HOST, XFER_ERR_ARG,
            "%p is pageable host memory or freed; CUDA device %d needs its own memory or pinned "
            "host memory",
            pointer, device->ordinal);
  XFI_CHECK(seen.type != CU_MEMORYTYPE_DEVICE || seen.managed || seen.ordinal == device->ordinal,
            XFER_ERR_ARG, "%p is memory of CUDA device %d; this rank runs on device %d", pointer,
            seen.ordinal, device->ordinal);
  *found = (xfi_allocation){.base = seen.base, .n_bytes = seen.n_bytes, .id = seen.id};
  while ((const char *)found->base + found->n_bytes < (const char *)pointer + n_bytes) {
    const char *end = (const char *)found->base + found->n_bytes;

    XFI_CHECK(is_chunk(device, pointer) && is_chunk(device, end) &&
                  xfi_cuda_inspect(device, end, &seen) == XFER_OK &&
                  seen.ordinal == device->ordinal,
              XFER_ERR_ARG, "%zu bytes from %p are wanted; the allocation ends after %zu", n_bytes,
              pointer, (size_t)(end - (const char *)pointer));
    if (!xfi_cuda_has_several_chunks(found)) found->chunk_bytes = found->n_bytes; /* of the first */
    if (seen.n_bytes != found->chunk_bytes) found->chunk_bytes = 0;
    found->n_bytes += seen.n_bytes;
    found->id = combine_ids(found->id, seen.id);
  }
  return XFER_OK;
}

/* The last chunk that was queried: the next allocation may begin with it. */
typedef struct last_query {
  CUdeviceptr at;
  unsigned long long id;
} last_query;

/* The bytes of the chunk that begins at `at`; 0: none does. */
static size_t chunk_at(const xfi_cuda_device *device, const xfi_allocation *then, CUdeviceptr at)
{
  CUdeviceptr base = 0;
  size_t n_bytes = 0;

  if (then->chunk_bytes > 0) return then->chunk_bytes; /* other chunks there would have other ids */
  if (device->driver.address_range(&base, &n_bytes, at) != CUDA_SUCCESS || base != at) return 0;
  return n_bytes;
}

/* The id of the memory that is there now; 0: nothing, or chunks of other sizes. */
static uint64_t id_now(const xfi_cuda_device *device, const xfi_allocation *then, last_query *last)
{
  uint64_t all = 0;
  CUdeviceptr at = (CUdeviceptr)(uintptr_t)then->base;
  const CUdeviceptr end = at + then->n_bytes;

  while (at < end) {
    const size_t n_bytes =
        xfi_cuda_has_several_chunks(then) ? chunk_at(device, then, at) : then->n_bytes;

    if (n_bytes == 0) return 0;
    if (at != last->at && device->driver.pointer_attribute(
                              &last->id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at) != CUDA_SUCCESS)
      return 0;
    last->at = at;
    all = all == 0 ? last->id : combine_ids(all, last->id);
    at += n_bytes;
  }
  return all;
}

/* Called once in each run, so it queries only ids, which takes half the time of find_allocation().
 */
size_t xfi_cuda_find_changed(xfi_device *base, const xfi_allocation *then, size_t n)
{
  const xfi_cuda_device *device = xfi_cuda(base);
  last_query last = {0, 0};
  size_t i = 0;

  while (i < n && id_now(device, &then[i], &last) == then[i].id)
    i++;
  return i;
}
