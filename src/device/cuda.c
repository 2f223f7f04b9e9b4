/* A CUDA device: memory, streams and events, and the table of the rest. */
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"
#include "launch.h"
#include "vec.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const uint64_t DEFAULT_STAGING_BYTES = UINT64_C(1) << 30;
/* Per peer and round: 72 MiB is 2 % slower, 200 MiB no faster. */
static const uint64_t DEFAULT_WINDOW_BYTES = UINT64_C(128) << 20;
enum {
  COPY_STREAMS = 4,     /* one is 5 % slower, more gain nothing */
  SPIN_NS = 200 * 1000, /* event_sync burns the processor so long, then sleeps */
  SLEEP_NS = 20 * 1000,
  GRACE_MS = 200 /* for the watcher to name a late flag and let the work go */
};

int xfi_cuda_enter(const xfi_cuda_device *device)
{
  int before = -1;

  (void)cudaGetDevice(&before);
  if (before != device->ordinal)
    (void)cudaSetDevice(device->ordinal); /* the next call reports a failure */
  return before;
}

void xfi_cuda_leave(const xfi_cuda_device *device, int before)
{
  if (before >= 0 && before != device->ordinal) (void)cudaSetDevice(before);
}

xfer_status xfi_cuda_failed(cudaError_t error, const char *call)
{
  (void)cudaGetLastError(); /* ours to report: not to be found by the caller's next check */
  xfi_set_error("%s: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
  return error == cudaErrorMemoryAllocation ? XFER_ERR_NOMEM : XFER_ERR_CUDA;
}

xfer_status xfi_cuda_driver_failed(const xfi_cuda_device *device, CUresult error, const char *call)
{
  const char *name = NULL;

  if (device->driver.error_name(error, &name) != CUDA_SUCCESS || name == NULL)
    name = "unknown error";
  xfi_set_error("%s: %s", call, name);
  return error == CUDA_ERROR_OUT_OF_MEMORY ? XFER_ERR_NOMEM : XFER_ERR_CUDA;
}

/* ---- memory ------------------------------------------------------------------------------- */

const xfi_cuda_range *xfi_cuda_own(const xfi_cuda_device *device, const void *pointer)
{
  const char *p = pointer;

  for (size_t i = 0; i < device->n_own; i++) {
    const xfi_cuda_range *range = &device->own[i];
    if (p >= range->base && p < range->base + range->n_bytes) return range;
  }
  return NULL;
}

static xfer_status own_add(xfi_cuda_device *device, const void *memory, size_t n_bytes)
{
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_vec_reserve(&device->own, &device->cap_own, device->n_own + 1, sizeof *device->own));
  device->own[device->n_own++] = (xfi_cuda_range){.base = memory, .n_bytes = n_bytes};
done:
  return st;
}

static xfer_status cuda_alloc(xfi_device *base, void **memory, size_t n_bytes)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);
  void *made = NULL;
  size_t at_least = n_bytes != 0 ? n_bytes : 1;

  cudaError_t error = cudaMalloc(&made, at_least);
  if (error != cudaSuccess) {
    st = xfi_cuda_failed(error, "cudaMalloc");
    xfi_set_error("%zu bytes of memory of device %d: %s", n_bytes, device->ordinal,
                  cudaGetErrorString(error));
    goto done;
  }
  /* On the aside stream: the default stream may be held up by the caller's work. */
  XFI_CUDA_TRY(cudaMemsetAsync, (made, 0, at_least, device->aside));
  XFI_CUDA_TRY(cudaStreamSynchronize, (device->aside));
  XFI_TRY(own_add(device, made, at_least));
  *memory = made;
  made = NULL;
done:
  if (made != NULL) (void)cudaFree(made);
  xfi_cuda_leave(device, before);
  return st;
}

static void cuda_free(xfi_device *base, void *memory)
{
  xfi_cuda_device *device = xfi_cuda(base);

  if (memory == NULL) return;
  for (size_t i = 0; i < device->n_own; i++) {
    if (device->own[i].base != memory) continue;
    device->own[i] = device->own[--device->n_own];
    break;
  }
  int before = xfi_cuda_enter(device);
  (void)cudaFree(memory);
  xfi_cuda_leave(device, before);
}

xfer_status xfi_cuda_look(const xfi_cuda_device *device, const void *pointer,
                          xfi_cuda_pointer *found)
{
  unsigned type = 0;
  int ordinal = -1;
  unsigned long long id = 0;
  CUdeviceptr base = 0;
  size_t n_bytes = 0;
  unsigned managed = 0;
  unsigned ipc = 0;
  uint64_t handles = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                 CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                 CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                 CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
  void *values[] = {&type, &ordinal, &id, &base, &n_bytes, &managed, &ipc, &handles};
  const CUdeviceptr at = (CUdeviceptr)(uintptr_t)pointer;

  CUresult error =
      device->driver.pointer_attributes(sizeof names / sizeof names[0], names, values, at);
  if (error != CUDA_SUCCESS) return xfi_cuda_driver_failed(device, error, "cuPointerGetAttributes");
  /* Of mapped memory the attributes name the reserved addresses, and this the chunk. */
  if (type == CU_MEMORYTYPE_DEVICE && ordinal == device->ordinal) {
    error = device->driver.address_range(&base, &n_bytes, at);
    if (error != CUDA_SUCCESS) return xfi_cuda_driver_failed(device, error, "cuMemGetAddressRange");
  }
  *found = (xfi_cuda_pointer){
      .type = type,
      .ordinal = ordinal,
      .id = id,
      .base = (char *)(uintptr_t)base, /* NOLINT: the driver's pointers are integers */
      .n_bytes = n_bytes,
      .managed = (managed & 1u) != 0,
      .ipc = (ipc & 1u) != 0,
      .file = (handles & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0};
  return XFER_OK;
}

static bool is_chunk(const xfi_cuda_device *device, const void *pointer)
{
  CUmemGenericAllocationHandle handle = 0;

  if (device->driver.retain(&handle, (void *)pointer) != CUDA_SUCCESS) return false;
  (void)device->driver.release(handle);
  return true;
}

/* Chunks beside each other have one id, which changes when any of them does. The driver's own
 * numbers are small, so the top bit tells. */
static const uint64_t OF_SEVERAL = UINT64_C(1) << 63;

static uint64_t id_of_several(uint64_t id, uint64_t next)
{
  id = (id ^ next) * UINT64_C(0x9e3779b97f4a7c15);
  id = (id ^ id >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
  return (id ^ id >> 32) | OF_SEVERAL;
}

static bool ends_before(const xfi_allocation *found, const char *end)
{
  return (const char *)found->base + found->n_bytes < end;
}

static xfer_status cuda_find_allocation(xfi_device *base, const void *pointer, size_t n_bytes,
                                        xfi_allocation *found)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);
  xfi_cuda_pointer seen = {0};
  int file = -1;

  if (xfi_cuda_page_find(device, pointer, found, &file)) goto done;
  XFI_TRY(xfi_cuda_look(device, pointer, &seen));
  XFI_CHECK(seen.type == CU_MEMORYTYPE_DEVICE || seen.type == CU_MEMORYTYPE_HOST, XFER_ERR_ARG,
            "%p is pageable host memory or freed; CUDA device %d needs its own memory or pinned "
            "host memory",
            pointer, device->ordinal);
  XFI_CHECK(seen.type != CU_MEMORYTYPE_DEVICE || seen.managed || seen.ordinal == device->ordinal,
            XFER_ERR_ARG, "%p is memory of CUDA device %d; this rank runs on device %d", pointer,
            seen.ordinal, device->ordinal);
  *found = (xfi_allocation){.base = seen.base, .n_bytes = seen.n_bytes, .id = seen.id};
  while (ends_before(found, (const char *)pointer + n_bytes)) {
    const char *end = (const char *)found->base + found->n_bytes;

    XFI_CHECK(is_chunk(device, pointer) && is_chunk(device, end) &&
                  xfi_cuda_look(device, end, &seen) == XFER_OK && seen.ordinal == device->ordinal,
              XFER_ERR_ARG, "%zu bytes from %p are wanted; the allocation ends after %zu", n_bytes,
              pointer, (size_t)(end - (const char *)pointer));
    found->n_bytes += seen.n_bytes;
    found->id = id_of_several(found->id, seen.id);
  }
done:
  xfi_cuda_leave(device, before);
  return st;
}

/* The id of what is there now; 0: nothing, or chunks cut in another way. */
static uint64_t id_now(const xfi_cuda_device *device, const xfi_allocation *then)
{
  unsigned long long id = 0;
  uint64_t all = 0;
  CUdeviceptr at = (CUdeviceptr)(uintptr_t)then->base;
  const CUdeviceptr end = at + then->n_bytes;

  while (at < end) {
    CUdeviceptr base = at;
    size_t n_bytes = then->n_bytes;

    if (device->driver.pointer_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at) != CUDA_SUCCESS)
      return 0;
    if ((then->id & OF_SEVERAL) != 0 &&
        (device->driver.address_range(&base, &n_bytes, at) != CUDA_SUCCESS || base != at))
      return 0;
    all = all == 0 ? id : id_of_several(all, id);
    at += n_bytes;
  }
  return all;
}

/* Once per run and allocation: asks for the id alone, which takes half the time. */
static size_t cuda_find_changed(xfi_device *base, const xfi_allocation *then, size_t n)
{
  xfi_cuda_device *device = xfi_cuda(base);
  int before = xfi_cuda_enter(device);
  size_t i = 0;

  while (i < n && id_now(device, &then[i]) == then[i].id)
    i++;
  xfi_cuda_leave(device, before);
  return i;
}

static void cuda_exports_end(xfi_device *base)
{
  int before = xfi_cuda_enter(xfi_cuda(base));

  xfi_cuda_chunks_close(xfi_cuda(base));
  xfi_cuda_leave(xfi_cuda(base), before);
}

/* ---- streams and events ------------------------------------------------------------------- */

static xfer_status cuda_stream_create(xfi_device *base, xfer_stream *stream)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);
  cudaStream_t made = NULL;

  XFI_CUDA_TRY(cudaStreamCreateWithFlags, (&made, cudaStreamNonBlocking));
  *stream = made;
done:
  xfi_cuda_leave(device, before);
  return st;
}

static void cuda_stream_destroy(xfi_device *base, xfer_stream stream)
{
  if (stream == NULL) return;
  int before = xfi_cuda_enter(xfi_cuda(base));
  (void)cudaStreamDestroy(stream);
  xfi_cuda_leave(xfi_cuda(base), before);
}

static xfer_status cuda_stream_check(xfi_device *base, xfer_stream stream)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);
  enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;

  /* NCCL would take it for that of a thread of its own. */
  XFI_CHECK(stream != cudaStreamPerThread, XFER_ERR_UNSUPPORTED,
            "the stream is cudaStreamPerThread, which is another one on each thread");
  cudaError_t error = cudaStreamIsCapturing(stream, &capture);
  if (error == cudaErrorStreamCaptureImplicit) {
    (void)cudaGetLastError();
    capture = cudaStreamCaptureStatusActive;
    error = cudaSuccess;
  }
  if (error != cudaSuccess) {
    st = xfi_cuda_failed(error, "cudaStreamIsCapturing");
    goto done;
  }
  XFI_CHECK(capture == cudaStreamCaptureStatusNone, XFER_ERR_STATE,
            "the stream is capturing a graph; a run waits for other ranks and cannot be captured");
done:
  xfi_cuda_leave(device, before);
  return st;
}

static cudaEvent_t event_of(xfi_event *event)
{
  return (cudaEvent_t)(void *)event;
}

static xfer_status cuda_event_create(xfi_device *base, xfi_event **event)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);
  cudaEvent_t made = NULL;

  XFI_CUDA_TRY(cudaEventCreateWithFlags, (&made, cudaEventDisableTiming));
  *event = (xfi_event *)(void *)made;
done:
  xfi_cuda_leave(device, before);
  return st;
}

static void cuda_event_destroy(xfi_device *base, xfi_event *event)
{
  (void)base;
  if (event != NULL) (void)cudaEventDestroy(event_of(event));
}

static xfer_status cuda_event_record(xfi_device *base, xfi_event *event, xfer_stream stream)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);

  XFI_CUDA_TRY(cudaEventRecord, (event_of(event), stream));
done:
  xfi_cuda_leave(device, before);
  return st;
}

static xfer_status cuda_stream_wait(xfi_device *base, xfer_stream stream, xfi_event *event)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);

  XFI_CUDA_TRY(cudaStreamWaitEvent, (stream, event_of(event), 0));
done:
  xfi_cuda_leave(device, before);
  return st;
}

static xfer_status cuda_event_sync(xfi_device *base, xfi_event *event, xfi_deadline deadline)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);
  int64_t began = xfi_now_ns();
  bool in_grace = false;
  cudaError_t error = cudaEventQuery(event_of(event));

  while (error == cudaErrorNotReady) {
    if (xfi_deadline_expired(deadline)) {
      XFI_CHECK(!in_grace && xfi_cuda_watch_first(device) <= deadline.at_ns, XFER_ERR_TIMEOUT,
                "work on CUDA device %d is not done in time", device->ordinal);
      in_grace = true;
      deadline = xfi_deadline_after(GRACE_MS);
    }
    if (xfi_now_ns() - began > SPIN_NS) {
      struct timespec pause = {.tv_sec = 0, .tv_nsec = SLEEP_NS};
      (void)nanosleep(&pause, NULL);
    }
    error = cudaEventQuery(event_of(event));
  }
  if (error != cudaSuccess) {
    st = xfi_cuda_failed(error, "cudaEventQuery");
    goto done;
  }
  XFI_CHECK(xfi_cuda_late_flag(base) == NULL, XFER_ERR_TIMEOUT,
            "a peer's signal did not come in time; the waits of CUDA device %d were released",
            device->ordinal);
done:
  (void)cudaGetLastError(); /* "not ready" is kept as an error */
  xfi_cuda_leave(device, before);
  return st;
}

/* ---- the device --------------------------------------------------------------------------- */

static xfer_status driver_function(void *function, const char *name)
{
  xfer_status st = XFER_OK;
  void *found = NULL;
  enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;

  XFI_CUDA_TRY(cudaGetDriverEntryPointByVersion, (name, &found, 12000, cudaEnableDefault, &result));
  XFI_CHECK(result == cudaDriverEntryPointSuccess && found != NULL, XFER_ERR_UNSUPPORTED,
            "the CUDA driver has no %s of CUDA 12.0", name);
  memcpy(function, &found, sizeof found); /* C has no cast between the two kinds of pointer */
done:
  return st;
}

static xfer_status driver_load(xfi_cuda_driver *driver)
{
  xfer_status st = XFER_OK;
  struct {
    void *function;
    const char *name;
  } wanted[] = {
      {&driver->device_attribute, "cuDeviceGetAttribute"},
      {&driver->pointer_attribute, "cuPointerGetAttribute"},
      {&driver->pointer_attributes, "cuPointerGetAttributes"},
      {&driver->address_range, "cuMemGetAddressRange"},
      {&driver->stream_mem_ops, "cuStreamBatchMemOp"},
      {&driver->address_reserve, "cuMemAddressReserve"},
      {&driver->address_free, "cuMemAddressFree"},
      {&driver->map, "cuMemMap"},
      {&driver->unmap, "cuMemUnmap"},
      {&driver->set_access, "cuMemSetAccess"},
      {&driver->release, "cuMemRelease"},
      {&driver->retain, "cuMemRetainAllocationHandle"},
      {&driver->export_handle, "cuMemExportToShareableHandle"},
      {&driver->import_handle, "cuMemImportFromShareableHandle"},
      {&driver->error_name, "cuGetErrorName"},
  };

  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    XFI_TRY(driver_function(wanted[i].function, wanted[i].name));
  }
done:
  return st;
}

static void cuda_destroy(xfi_device *base)
{
  xfi_cuda_device *device = xfi_cuda(base);

  if (device == NULL) return;
  int before = xfi_cuda_enter(device);
  xfi_cuda_watch_stop(device);
  xfi_cuda_chunks_close(device);
  xfi_cuda_unimport_all(device);
  if (device->aside != NULL) (void)cudaStreamDestroy(device->aside);
  xfi_cuda_leave(device, before);
  xfi_free(device->own);
  xfi_free(device->watches);
  xfi_free(device);
}

static const xfi_device_ops cuda_ops = {
    .name = "cuda",
    .n_copy_streams = COPY_STREAMS,
    .default_staging_bytes = DEFAULT_STAGING_BYTES,
    .default_window_bytes = DEFAULT_WINDOW_BYTES,
    .destroy = cuda_destroy,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .find_allocation = cuda_find_allocation,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_check = cuda_stream_check,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .event_sync = cuda_event_sync,
    .batch_create = xfi_cuda_batch_create,
    .batch_destroy = xfi_cuda_batch_destroy,
    .batch_launch = xfi_cuda_batch_launch,
    .domain = xfi_cuda_domain,
    .mem_export = xfi_cuda_export,
    .mem_import = xfi_cuda_import,
    .mem_unimport = xfi_cuda_unimport,
    .flags_alloc = xfi_cuda_page_alloc,
    .flags_free = xfi_cuda_page_free,
    .flags_set = xfi_cuda_flags_set_op,
    .flags_wait = xfi_cuda_flags_wait,
    .flags_release = xfi_cuda_flags_release,
    .find_changed = cuda_find_changed,
    .exports_end = cuda_exports_end,
    .late_flag = xfi_cuda_late_flag,
};

xfer_status xfi_device_create_cuda(xfi_device **device)
{
  xfer_status st = XFER_OK;
  xfi_cuda_device *made = NULL;
  int least = 0;
  int greatest = 0;
  int has_wait64 = 0;

  made = xfi_calloc(1, sizeof *made);
  XFI_CHECK(made != NULL, XFER_ERR_NOMEM, "a CUDA device");
  made->base.ops = &cuda_ops;
  XFI_CUDA_TRY(cudaGetDevice, (&made->ordinal));
  XFI_CUDA_TRY(cudaSetDevice,
               (made->ordinal)); /* makes the primary context, which driver calls need */
  XFI_TRY(driver_load(&made->driver));
  XFI_TRY(xfi_cuda_kernels_load());
  XFI_CUDA_TRY(cudaDeviceGetStreamPriorityRange, (&least, &greatest));
  XFI_CUDA_TRY(cudaStreamCreateWithPriority, (&made->aside, cudaStreamNonBlocking, greatest));
  CUresult error =
      made->driver.device_attribute(&has_wait64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                                    made->ordinal); /* a CUdevice is an ordinal */
  made->has_wait64 = error == CUDA_SUCCESS && has_wait64 != 0;
  XFI_TRY(xfi_cuda_watch_start(made));
  *device = &made->base;
  made = NULL;
done:
  if (made != NULL) cuda_destroy(&made->base);
  return st;
}
