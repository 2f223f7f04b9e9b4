/*
 * Signals between devices, and the deadlines of waits that the device makes by itself.
 *
 * A stream waits on a word of its own page (cuda_page.c); a peer sets it by a releasing kernel.
 * Since a caller may only ever synchronise its stream, a thread watches over the waits: at a
 * deadline it reads the flag, and if the peer did not come it stores what the waits want, so that
 * nothing hangs, and remembers which flag was late.
 */
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"
#include "launch.h"

enum { WAITS_PER_CALL = 64 };

/* ---- the watcher -------------------------------------------------------------------------- */

/* Lets every wait go; the lock is held. */
static void release_all(xfi_cuda_device *device)
{
  for (size_t i = 0; i < device->n_watches; i++) {
    const xfi_cuda_watch *watch = &device->watches[i];
    if (__atomic_load_n(watch->flag, __ATOMIC_ACQUIRE) < watch->value)
      __atomic_store_n((uint64_t *)watch->flag, watch->value, __ATOMIC_RELEASE);
  }
  device->n_watches = 0;
}

/* Looks at the waits whose deadline has come; the lock is held. */
static void look_at_expired(xfi_cuda_device *device)
{
  int64_t now = xfi_now_ns();
  size_t i = 0;

  while (i < device->n_watches) {
    xfi_cuda_watch watch = device->watches[i];
    if (watch.at_ns > now) {
      i++;
      continue;
    }
    if (__atomic_load_n(watch.flag, __ATOMIC_ACQUIRE) < watch.value) {
      device->late = watch.flag;
      release_all(device);
      return;
    }
    device->watches[i] = device->watches[--device->n_watches];
  }
}

static void *watch_main(void *argument)
{
  xfi_cuda_device *device = argument;

  (void)pthread_mutex_lock(&device->lock);
  while (!device->stop) {
    int64_t next = INT64_MAX;
    for (size_t i = 0; i < device->n_watches; i++) {
      if (device->watches[i].at_ns < next) next = device->watches[i].at_ns;
    }
    device->sleeps_until_ns = next;
    if (next == INT64_MAX) {
      (void)pthread_cond_wait(&device->wake, &device->lock);
    } else {
      struct timespec until = xfi_deadline_timespec((xfi_deadline){.at_ns = next});
      (void)pthread_cond_timedwait(&device->wake, &device->lock, &until);
    }
    if (!device->stop) look_at_expired(device);
  }
  (void)pthread_mutex_unlock(&device->lock);
  return NULL;
}

xfer_status xfi_cuda_watch_start(xfi_cuda_device *device)
{
  xfer_status st = XFER_OK;
  pthread_condattr_t attr;

  device->watches = xfi_calloc(XFI_CUDA_WATCHES, sizeof *device->watches);
  XFI_CHECK(device->watches != NULL, XFER_ERR_NOMEM, "the list of a CUDA device's waits");
  (void)pthread_condattr_init(&attr);
  (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&device->wake, &attr);
  (void)pthread_condattr_destroy(&attr);
  (void)pthread_mutex_init(&device->lock, NULL);
  device->has_watcher = pthread_create(&device->watcher, NULL, watch_main, device) == 0;
  XFI_CHECK(device->has_watcher, XFER_ERR_NOMEM,
            "no thread to watch over the waits of a CUDA device");
done:
  return st;
}

void xfi_cuda_watch_stop(xfi_cuda_device *device)
{
  if (!device->has_watcher) return;
  (void)pthread_mutex_lock(&device->lock);
  device->stop = true;
  (void)pthread_cond_signal(&device->wake);
  (void)pthread_mutex_unlock(&device->lock);
  (void)pthread_join(device->watcher, NULL);
  (void)pthread_cond_destroy(&device->wake);
  (void)pthread_mutex_destroy(&device->lock);
  device->has_watcher = false;
}

int64_t xfi_cuda_watch_first(xfi_cuda_device *device)
{
  int64_t first = INT64_MAX;

  (void)pthread_mutex_lock(&device->lock);
  for (size_t i = 0; i < device->n_watches; i++) {
    if (device->watches[i].at_ns < first) first = device->watches[i].at_ns;
  }
  if (device->late != NULL) first = INT64_MIN;
  (void)pthread_mutex_unlock(&device->lock);
  return first;
}

void xfi_cuda_watch_forget(xfi_cuda_device *device, const void *memory, size_t n_bytes)
{
  const char *from = memory;
  size_t i = 0;

  (void)pthread_mutex_lock(&device->lock);
  while (i < device->n_watches) {
    const char *flag = (const char *)device->watches[i].flag;
    if (flag >= from && flag < from + n_bytes) {
      device->watches[i] = device->watches[--device->n_watches];
    } else {
      i++;
    }
  }
  (void)pthread_mutex_unlock(&device->lock);
}

/* A newer wait on a flag takes the place of an older one: flags only grow. Allocates nothing. */
static xfer_status watch_add(xfi_cuda_device *device, const uint64_t *flag, uint64_t value,
                             xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  size_t i = 0;

  (void)pthread_mutex_lock(&device->lock);
  XFI_CHECK(device->late == NULL, XFER_ERR_TIMEOUT,
            "an earlier wait of CUDA device %d ran out of time", device->ordinal);
  while (i < device->n_watches && device->watches[i].flag != flag)
    i++;
  XFI_CHECK(i < XFI_CUDA_WATCHES, XFER_ERR_UNSUPPORTED, "more than %d flags are waited for at once",
            XFI_CUDA_WATCHES);
  if (i == device->n_watches) device->n_watches++;
  device->watches[i] = (xfi_cuda_watch){.flag = flag, .value = value, .at_ns = deadline.at_ns};
  if (deadline.at_ns < device->sleeps_until_ns) (void)pthread_cond_signal(&device->wake);
done:
  (void)pthread_mutex_unlock(&device->lock);
  return st;
}

/* ---- the device's operations -------------------------------------------------------------- */

xfer_status xfi_cuda_flags_set_op(xfi_device *base, uint64_t *const *flags, int n_flags,
                                  uint64_t value, xfer_stream stream)
{
  xfi_cuda_device *device = xfi_cuda(base);
  int before = xfi_cuda_enter(device);
  xfer_status st = xfi_cuda_flags_set(flags, n_flags, value, stream);

  xfi_cuda_leave(device, before);
  return st;
}

static xfer_status stream_wait64(xfi_cuda_device *device, uint64_t *const *flags, int n_flags,
                                 uint64_t value, xfer_stream stream)
{
  CUstreamBatchMemOpParams waits[WAITS_PER_CALL] = {0};

  for (int first = 0; first < n_flags; first += WAITS_PER_CALL) {
    int n = n_flags - first < WAITS_PER_CALL ? n_flags - first : WAITS_PER_CALL;
    for (int i = 0; i < n; i++) {
      waits[i].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
      waits[i].waitValue.address = (CUdeviceptr)(uintptr_t)flags[first + i];
      waits[i].waitValue.value64 = value;
      waits[i].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    }
    CUresult error = device->driver.stream_mem_ops(stream, (unsigned)n, waits, 0);
    if (error != CUDA_SUCCESS) return xfi_cuda_driver_failed(device, error, "cuStreamBatchMemOp");
  }
  return XFER_OK;
}

xfer_status xfi_cuda_flags_wait(xfi_device *base, uint64_t *const *flags, int n_flags,
                                uint64_t value, xfer_stream stream, xfi_deadline deadline,
                                int *late)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);

  *late = -1;
  for (int i = 0; i < n_flags; i++) {
    if (flags[i] == xfi_cuda_late_flag(base)) *late = i;
  }
  for (int i = 0; i < n_flags; i++)
    XFI_TRY(watch_add(device, flags[i], value, deadline));
  if (device->has_wait64) {
    XFI_TRY(stream_wait64(device, flags, n_flags, value, stream));
  } else {
    XFI_TRY(xfi_cuda_flags_spin(flags, n_flags, value, stream));
  }
done:
  xfi_cuda_leave(device, before);
  return st;
}

xfer_status xfi_cuda_flags_release(xfi_device *base, uint64_t *flags, size_t n_flags,
                                   uint64_t value)
{
  (void)base;
  for (size_t i = 0; i < n_flags; i++)
    __atomic_store_n(&flags[i], value, __ATOMIC_RELEASE);
  return XFER_OK;
}

const uint64_t *xfi_cuda_late_flag(xfi_device *base)
{
  xfi_cuda_device *device = xfi_cuda(base);

  (void)pthread_mutex_lock(&device->lock);
  const uint64_t *late = device->late;
  (void)pthread_mutex_unlock(&device->lock);
  return late;
}
