/*
 * A CUDA device: its memory, streams and events, and the table of device.h, whose other functions
 * are in the files beside this one (cuda_device.h names them).
 *
 * All functions but those of host memory are called between enter() and leave(), which make the
 * device's context current: by the thread that makes the comm's calls, and flags_store() by the
 * alarm's thread too.
 */
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"
#include "launch.h"
#include "xfer/nccl.h"

#include <pthread.h>
#include <string.h>

static const uint64_t DEFAULT_STAGING_BYTES = UINT64_C(1) << 30;
/* Per peer and round, if there is enough staging memory. Between two H100, relative to one NCCL
 * send of 8 GiB: windows of 128 MiB reach 0.86, of 256 MiB 0.87, of 512 MiB 0.98. */
static const uint64_t DEFAULT_WINDOW_BYTES = UINT64_C(512) << 20;
/* Up to so many bytes a single launch is faster than several on parallel streams. */
static const uint64_t ONE_BATCH_BYTES = UINT64_C(16) << 20;
enum {
  COPY_STREAMS = 8,      /* 1 is 5 % slower than 4; 8, so that few peers share one */
  SPIN_NS = 2000 * 1000, /* event_sync spins this long, then sleeps between polls */
  SLEEP_NS = 20 * 1000
};

/* ---- memory ------------------------------------------------------------------------------- */

static xfer_status cuda_alloc(xfi_device *base, void **memory, size_t n_bytes)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  void *made = NULL;
  const size_t unit = n_bytes < XFI_CUDA_IPC_BYTES ? 1 : XFI_CUDA_IPC_BYTES; /* peers may map it */
  const size_t at_least = n_bytes == 0 ? 1 : (n_bytes + unit - 1) / unit * unit;

  cudaError_t error = cudaMalloc(&made, at_least);
  if (error != cudaSuccess) {
    st = xfi_cuda_failed(error, "cudaMalloc");
    xfi_set_error("%zu bytes of memory of device %d: %s", n_bytes, device->ordinal,
                  cudaGetErrorString(error));
    goto done;
  }
  /* On a stream of the device's own, since the caller's work may hold up the default stream. */
  XFI_CUDA_TRY_DONE(cudaMemsetAsync, (made, 0, at_least, device->aside));
  XFI_CUDA_TRY_DONE(cudaStreamSynchronize, (device->aside));
  *memory = made;
  made = NULL;
done:
  if (made != NULL) (void)cudaFree(made);
  return st;
}

static void cuda_free(xfi_device *base, void *memory)
{
  (void)base;
  if (memory != NULL) (void)cudaFree(memory);
}

/* Host memory may outlive its device, and any thread may free it. It is freed in the context that
 * it was made in, since CUDA would create a context on the current GPU of a thread that has none;
 * and in relaxed mode, since otherwise it would invalidate a capture in another thread. */
static xfi_cuda_driver host_memory_driver;
static pthread_once_t host_memory_once = PTHREAD_ONCE_INIT;

static void load_host_memory_driver(void)
{
  if (xfi_cuda_driver_load(&host_memory_driver) != XFER_OK)
    memset(&host_memory_driver, 0, sizeof host_memory_driver);
}

static xfer_status cuda_host_alloc(void **memory, size_t n_bytes)
{
  (void)pthread_once(&host_memory_once, load_host_memory_driver);
  XFI_CUDA_TRY(cudaHostAlloc, (memory, n_bytes, cudaHostAllocPortable | cudaHostAllocMapped));
  memset(*memory, 0, n_bytes);
  return XFER_OK;
}

static void cuda_host_free(void *memory)
{
  const xfi_cuda_driver *driver = &host_memory_driver;
  const CUdeviceptr at = (CUdeviceptr)(uintptr_t)memory;
  CUcontext context = NULL;

  if (memory == NULL) return;
  const bool entered =
      driver->pointer_attribute != NULL &&
      driver->pointer_attribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, at) == CUDA_SUCCESS &&
      context != NULL && driver->context_push(context) == CUDA_SUCCESS;
  const enum cudaStreamCaptureMode before = xfi_cuda_mode(cudaStreamCaptureModeRelaxed);
  (void)cudaFreeHost(memory);
  (void)xfi_cuda_mode(before);
  if (entered) (void)driver->context_pop(&context);
}

/* ---- streams and events ------------------------------------------------------------------- */

static xfer_status cuda_stream_create(xfi_device *base, xfer_stream *stream)
{
  cudaStream_t made = NULL;

  (void)base;
  XFI_CUDA_TRY(cudaStreamCreateWithFlags, (&made, cudaStreamNonBlocking));
  *stream = made;
  return XFER_OK;
}

static void cuda_stream_destroy(xfi_device *base, xfer_stream stream)
{
  (void)base;
  (void)cudaStreamDestroy(stream);
}

static xfer_status cuda_stream_check(xfi_device *base, xfer_stream stream)
{
  enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;

  (void)base;
  /* NCCL launches from a thread of its own, where this would be another stream. */
  XFI_CHECK(stream != cudaStreamPerThread, XFER_ERR_UNSUPPORTED,
            "the stream is cudaStreamPerThread, which is another one on each thread");
  cudaError_t error = cudaStreamIsCapturing(stream, &capture);
  if (error == cudaErrorStreamCaptureImplicit) {
    (void)cudaGetLastError();
    capture = cudaStreamCaptureStatusActive;
    error = cudaSuccess;
  }
  XFI_TRY(xfi_cuda_check(error, "cudaStreamIsCapturing"));
  XFI_CHECK(capture == cudaStreamCaptureStatusNone, XFER_ERR_STATE,
            "the stream is capturing a graph; a run waits for other ranks and cannot be captured");
  return XFER_OK;
}

static xfer_status cuda_event_create(xfi_device *base, xfi_event **event)
{
  cudaEvent_t made = NULL;

  (void)base;
  XFI_CUDA_TRY(cudaEventCreateWithFlags, (&made, cudaEventDisableTiming));
  *event = (xfi_event *)(void *)made;
  return XFER_OK;
}

static void cuda_event_destroy(xfi_device *base, xfi_event *event)
{
  (void)base;
  (void)cudaEventDestroy(xfi_cuda_event(event));
}

static xfer_status cuda_event_record(xfi_device *base, xfi_event *event, xfer_stream stream)
{
  (void)base;
  XFI_CUDA_TRY(cudaEventRecord, (xfi_cuda_event(event), stream));
  return XFER_OK;
}

static xfer_status cuda_stream_wait(xfi_device *base, xfer_stream stream, xfi_event *event)
{
  (void)base;
  XFI_CUDA_TRY(cudaStreamWaitEvent, (stream, xfi_cuda_event(event), 0));
  return XFER_OK;
}

static bool cuda_stream_is_idle(xfi_device *base, xfer_stream stream)
{
  (void)base;
  return xfi_cuda_query_result(cudaStreamQuery(stream)) == cudaSuccess;
}

static xfer_status cuda_event_sync(xfi_device *base, xfi_event *event, xfi_deadline deadline)
{
  const xfi_cuda_device *device = xfi_cuda(base);
  const int64_t began = xfi_now_ns();
  cudaError_t error = xfi_cuda_query_result(cudaEventQuery(xfi_cuda_event(event)));

  while (error == cudaErrorNotReady) {
    XFI_CHECK(!xfi_deadline_expired(deadline), XFER_ERR_TIMEOUT,
              "work on CUDA device %d is not done in time", device->ordinal);
    if (xfi_now_ns() - began > SPIN_NS) xfi_sleep_ns(SLEEP_NS);
    error = xfi_cuda_query_result(cudaEventQuery(xfi_cuda_event(event)));
  }
  return xfi_cuda_check(error, "cudaEventQuery");
}

/* ---- the device --------------------------------------------------------------------------- */

/* The driver's push and pop restore what the thread had before, even if that is no context at all.
 * To go back by cudaSetDevice() would create a context on a device that the thread has never used.
 */
static void cuda_enter(const xfi_device *base, xfi_entered *before)
{
  const xfi_cuda_device *device = (const xfi_cuda_device *)base;

  /* No error is returned here: if this fails, the calls that follow do. */
  before->has_context = device->driver.context_push(device->context) == CUDA_SUCCESS;
  before->mode = (int)xfi_cuda_mode(cudaStreamCaptureModeRelaxed);
}

static void cuda_leave(const xfi_device *base, const xfi_entered *before)
{
  CUcontext ours;

  (void)xfi_cuda_mode((enum cudaStreamCaptureMode)before->mode);
  if (before->has_context) (void)((const xfi_cuda_device *)base)->driver.context_pop(&ours);
}

static void cuda_destroy(xfi_device *base)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfi_entered before;

  if (device == NULL) return;
  cuda_enter(base, &before);
  xfi_alarms_destroy(device->base.alarms);
  xfi_cuda_chunks_close(base);
  xfi_cuda_probe_free(device);
  if (device->aside != NULL) (void)cudaStreamDestroy(device->aside);
  cuda_leave(base, &before);
  xfi_free(device);
}

static const xfi_device_ops cuda_ops = {
    .pulls = true,
    .n_copy_streams = COPY_STREAMS,
    .default_staging_bytes = DEFAULT_STAGING_BYTES,
    .default_window_bytes = DEFAULT_WINDOW_BYTES,
    .destroy = cuda_destroy,
    .enter = cuda_enter,
    .leave = cuda_leave,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_memory = {cuda_host_alloc, cuda_host_free},
    .find_allocation = xfi_cuda_find_allocation,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_check = cuda_stream_check,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .stream_is_idle = cuda_stream_is_idle,
    .event_sync = cuda_event_sync,
    .batch_create = xfi_cuda_batch_create,
    .batch_wants_open = xfi_cuda_batch_wants_open,
    .batch_destroy = xfi_cuda_batch_destroy,
    .batch_is_read = xfi_cuda_batch_is_read,
    .batch_launch = xfi_cuda_batch_launch,
    .digest_create = xfi_cuda_digest_create,
    .digest_destroy = xfi_cuda_digest_destroy,
    .digest_launch = xfi_cuda_digest_launch,
    .digest_sums = xfi_cuda_digest_sums,
    .guard_create = xfi_cuda_guard_create,
    .guard_destroy = xfi_cuda_guard_destroy,
    .guard_check = xfi_cuda_guard_check_op,
    .guarded_launch = xfi_cuda_guarded_launch,
    .batch_is_one_launch = xfi_cuda_batch_is_one_launch,
    .domain = xfi_cuda_domain,
    .mem_export = xfi_cuda_export,
    .mem_import = xfi_cuda_import,
    .mem_unimport = xfi_cuda_unimport,
    .flags_alloc = xfi_cuda_page_alloc,
    .flags_free = xfi_cuda_page_free,
    .flags_sync = xfi_cuda_flags_sync,
    .flags_set = xfi_cuda_flags_set_op,
    .flags_store = xfi_cuda_flags_store,
    .find_changed = xfi_cuda_find_changed,
    .allocation_mark = xfi_cuda_allocation_mark,
    .exports_end = xfi_cuda_chunks_close,
};

/* Checked here, since CUDA's own error for a missing driver says that the driver is too old. */
xfer_status xfi_cuda_here(void)
{
  int version = 0;

  XFI_CHECK(cudaDriverGetVersion(&version) != cudaSuccess || version != 0, XFER_ERR_CUDA,
            "there is no CUDA driver here: libcuda.so.1 was not found");
  return XFER_OK;
}

xfer_status xfer_cuda_device_get(int *device)
{
  XFI_NEED(device);
  XFI_TRY(xfi_cuda_here());
  XFI_CUDA_TRY(cudaGetDevice, (device));
  return XFER_OK;
}

xfer_status xfer_cuda_device_set(int device)
{
  XFI_TRY(xfi_cuda_here());
  XFI_CUDA_TRY(cudaSetDevice, (device));
  return XFER_OK;
}

/* The thread's current device and context; it gets the primary one if it has none. */
static xfer_status find_context(xfi_cuda_device *device)
{
  CUresult error;

  XFI_CUDA_TRY(cudaGetDevice, (&device->ordinal));
  error = device->driver.context_get(&device->context);
  if (error == CUDA_SUCCESS && device->context == NULL) {
    XFI_CUDA_TRY(cudaSetDevice, (device->ordinal));
    error = device->driver.context_get(&device->context);
  }
  if (error != CUDA_SUCCESS) return xfi_cuda_driver_failed(device, error, "cuCtxGetCurrent");
  return XFER_OK;
}

/* Can streams wait for 64-bit words? All GPUs on Linux that the kernels support can. */
static xfer_status check_waits(const xfi_cuda_device *device)
{
  int has_them = 0;
  const CUresult error =
      device->driver.device_attribute(&has_them, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                                      device->ordinal); /* a CUdevice is an ordinal */

  if (error != CUDA_SUCCESS) return xfi_cuda_driver_failed(device, error, "cuDeviceGetAttribute");
  XFI_CHECK(has_them != 0, XFER_ERR_UNSUPPORTED,
            "streams of CUDA device %d cannot wait for 64-bit words", device->ordinal);
  return XFER_OK;
}

static xfer_status create(xfi_device **device)
{
  xfer_status st = XFER_OK;
  xfi_cuda_device *made = NULL;
  int least = 0;
  int greatest = 0;

  made = xfi_calloc(1, sizeof *made);
  XFI_CHECK_DONE(made != NULL, XFER_ERR_NOMEM, "a CUDA device");
  made->base.ops = &cuda_ops;
  XFI_TRY_DONE(xfi_cuda_driver_load(&made->driver));
  XFI_TRY_DONE(find_context(made));
  XFI_TRY_DONE(check_waits(made));
  made->base.locality = xfi_cuda_locality(made->ordinal);
  made->base.one_batch_bytes = ONE_BATCH_BYTES;
  XFI_TRY_DONE(xfi_cuda_gpu(&made->base.gpu, made->ordinal));
  XFI_CUDA_TRY_DONE(cudaDeviceGetAttribute,
                    (&made->n_multiprocessors, cudaDevAttrMultiProcessorCount, made->ordinal));
  xfi_cuda_engine_limits(made);
  XFI_TRY_DONE(xfi_cuda_kernels_load());
  XFI_CUDA_TRY_DONE(cudaDeviceGetStreamPriorityRange, (&least, &greatest));
  XFI_CUDA_TRY_DONE(cudaStreamCreateWithPriority, (&made->aside, cudaStreamNonBlocking, greatest));
  xfi_cuda_nvtx();
  XFI_TRY_DONE(xfi_alarms_create(&made->base.alarms, xfi_cuda_begin_thread, made));
  *device = &made->base;
  made = NULL;
done:
  if (made != NULL && made->context != NULL)
    cuda_destroy(&made->base);
  else
    xfi_free(made);
  return st;
}

xfer_status xfi_device_create_cuda(xfi_device **device)
{
  xfer_status st = XFER_OK;
  enum cudaStreamCaptureMode before;

  XFI_TRY(xfi_cuda_here());
  before = xfi_cuda_mode(cudaStreamCaptureModeRelaxed);
  st = create(device);
  (void)xfi_cuda_mode(before);
  return st;
}
