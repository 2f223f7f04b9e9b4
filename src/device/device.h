/*
 * Memory, streams and peers' memory of one kind of device. run/ uses only this table;
 * device/host.c and device/cuda.c fill it in.
 *
 * Streams: work on one stream runs in the order in which it was put there. On the host all streams
 * and events are NULL, and work is done when a call returns. Nothing between two commits
 * allocates.
 */
#ifndef XFI_DEVICE_H
#define XFI_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alarm.h"
#include "alloc.h"
#include "clock.h"
#include "digest.h"
#include "door.h"
#include "flags.h"
#include "kernels.h"
#include "xfer/xfer.h"

typedef struct xfi_device xfi_device;
typedef struct xfi_event xfi_event;   /* a point on a stream */
typedef struct xfi_batch xfi_batch;   /* copies prepared to be launched many times */
typedef struct xfi_digest xfi_digest; /* likewise sums of memory contents */

/* Identifies an allocation to another process. Plain bytes, sent as they are. */
typedef struct xfi_mem_handle {
  unsigned char bytes[192];
} xfi_mem_handle;

/* A peer's allocation, as mapped here. */
typedef struct xfi_mapping {
  char *base; /* corresponds to the exporter's xfi_allocation.base */
} xfi_mapping;

/* A thread's state from before it entered a device, for leave(). */
typedef struct xfi_entered {
  bool has_context; /* of the device, to be given back */
  int mode;
} xfi_entered;

/* The allocation that holds some bytes. If two looks give equal ones, it is the same allocation and
 * still alive. Memory that is mapped chunk by chunk counts as the chunks that hold the bytes. */
typedef struct xfi_allocation {
  void *base;         /* of the allocation that holds the bytes */
  size_t n_bytes;     /* from base */
  uint64_t id;        /* never used again for another allocation; 0: the device cannot tell */
  size_t chunk_bytes; /* of each of several chunks; 0: there is one, or they differ in size */
} xfi_allocation;

/* The allocation, of `n` sorted by address, that holds the byte; NULL: none does. */
static inline const xfi_allocation *xfi_allocation_at(const xfi_allocation *all, size_t n,
                                                      const void *pointer)
{
  const xfi_allocation *first = all;

  while (n > 0) { /* it is among first[0] to first[n - 1], or nowhere */
    const xfi_allocation *middle = first + n / 2;
    const char *base = (const char *)middle->base;

    if ((const char *)pointer < base) {
      n /= 2;
    } else if ((const char *)pointer >= base + middle->n_bytes) {
      first = middle + 1;
      n -= n / 2 + 1;
    } else {
      return middle;
    }
  }
  return NULL;
}

/* Some flags (flags.h), in memory of flags_alloc(). */
typedef struct xfi_flags {
  uint64_t **at; /* [n] */
  int n;
} xfi_flags;

/* Decides, once for each launch, whether copies into others' memory may be done. */
typedef struct xfi_guard xfi_guard;
enum { XFI_GUARD_FLAGS = 64 }; /* at most */

/* The copies of a batch, and what the device is told of its launches. */
typedef struct xfi_batch_spec {
  xfi_copy *copies; /* [n_copies] between this device's memory and imported memory. The device may
                       overwrite the array, unless the guard is strict */
  size_t n_copies;
  int percent;            /* of the device's multiprocessors: at most so many copy */
  const xfi_guard *guard; /* a launch copies nothing if it forbids that, but see guard_create();
                             NULL: every launch copies */
  bool open;   /* nothing can delay launches, so they need no guard; no batch is made if such a one
                  would be no faster */
  bool beside; /* other copies are made at the same time, */
  bool no_engine; /* some of them to or from other peers in an order in which ranks meet: the copy
                     engine takes none */
  const xfi_allocation *known; /* [n_known] allocations that the copies' memory lies in, sorted by
                                  address: the device need not look them up */
  size_t n_known;
} xfi_batch_spec;

typedef struct xfi_device_ops {
  bool is_synchronous; /* all work is done when a call returns, and flags can be read */
  bool pulls;          /* reading a peer's memory is as fast as writing it, except in narrow rows */
  /* Streams worth using side by side for copies to different peers; at least 1. */
  int n_copy_streams;
  /* Defaults of plan options on this device. */
  uint64_t default_staging_bytes;
  uint64_t default_window_bytes;

  void (*destroy)(xfi_device *device);
  /* Called around everything that a thread asks of the device; NULL: nothing to do. */
  void (*enter)(const xfi_device *device, xfi_entered *before);
  void (*leave)(const xfi_device *device, const xfi_entered *before);

  /* Memory of this device, zeroed. */
  xfer_status (*alloc)(xfi_device *device, void **memory, size_t n_bytes);
  void (*free)(xfi_device *device, void *memory);
  /* Host memory that this device's copies can use too. */
  xfi_host_memory host_memory;
  /* Find the allocation that the bytes from `pointer` lie in. XFER_ERR_ARG, with text: they reach
   * past its end, or copies cannot use it (on CUDA: pageable host or another device's memory). */
  xfer_status (*find_allocation)(xfi_device *device, const void *pointer, size_t n_bytes,
                                 xfi_allocation *found);

  /* On a synchronous device all functions of streams and events are NULL: call the wrappers below,
   * which allow for that. */
  xfer_status (*stream_create)(xfi_device *device, xfer_stream *stream);
  void (*stream_destroy)(xfi_device *device, xfer_stream stream);
  /* May work be put on the caller's stream now? Not while it captures. */
  xfer_status (*stream_check)(xfi_device *device, xfer_stream stream);
  xfer_status (*event_create)(xfi_device *device, xfi_event **event);
  void (*event_destroy)(xfi_device *device, xfi_event *event);
  xfer_status (*event_record)(xfi_device *device, xfi_event *event, xfer_stream stream);
  xfer_status (*stream_wait)(xfi_device *device, xfer_stream stream, xfi_event *event);
  /* Has all work on the stream finished? */
  bool (*stream_is_idle)(xfi_device *device, xfer_stream stream);
  /* Block the calling thread until the event has passed. XFER_ERR_TIMEOUT at the deadline. */
  xfer_status (*event_sync)(xfi_device *device, xfi_event *event, xfi_deadline deadline);

  /* Prepare the copies of `spec`.
   * `*batch` is NULL or an old batch that is not launched again: the new one takes its place and
   * its memory. After a failure the old one is gone too, and *batch is NULL. Launches of it that
   * are under way continue, unless they read it (batch_is_read()). */
  xfer_status (*batch_create)(xfi_device *device, xfi_batch **batch, const xfi_batch_spec *spec);
  /* May an open batch of the same copies be faster than this one? NULL: never. */
  bool (*batch_wants_open)(const xfi_batch *batch);
  void (*batch_destroy)(xfi_device *device, xfi_batch *batch);
  /* Do launches read the batch while they are under way? NULL: none does once the call returned. */
  bool (*batch_is_read)(const xfi_batch *batch);
  /* Copies of the batch that go to a copy engine run one after the other, after all that earlier
   * launches with the same `turn` gave to one. NULL: no such order. */
  xfer_status (*batch_launch)(xfi_device *device, xfi_batch *batch, xfer_stream stream,
                              xfi_event *turn);
  /* The batch's copies, in order; addresses in them may be changed while it is not launched. NULL:
   * such a batch must be made again. */
  xfi_copy *(*batch_copies)(xfi_batch *batch);

  /* Prepare sums of boxes; slots that no box names stay 0. The array is copied. */
  xfer_status (*digest_create)(xfi_device *device, xfi_digest **digest, const xfi_digest_box *boxes,
                               size_t n_boxes, size_t n_slots);
  void (*digest_destroy)(xfi_device *device, xfi_digest *digest);
  xfer_status (*digest_launch)(xfi_device *device, xfi_digest *digest, xfer_stream stream);
  /* The sums [n_slots] of the last launch, valid once its stream has passed it. */
  const xfi_sum *(*digest_sums)(const xfi_digest *digest);

  /* NULL on a synchronous device, where a failed wait is an error at once. A guard forbids copies
   * if one of `flags` (the list is copied) was void when the stream reached guard_check(). If it is
   * not `strict`, copies that are faster without it may ignore it: for those that write our own
   * memory. */
  xfer_status (*guard_create)(xfi_device *device, xfi_guard **guard, const xfi_flags *flags,
                              bool strict);
  void (*guard_destroy)(xfi_device *device, xfi_guard *guard);
  xfer_status (*guard_check)(xfi_device *device, xfi_guard *guard, xfer_stream stream);
  /* guard_check(), batch_launch() of a batch with that guard, and flags_set(), all in one launch of
   * a kernel; *launched is false, and nothing was, if the batch is more than that. NULL, as
   * guard_create. */
  xfer_status (*guarded_launch)(xfi_device *device, const xfi_batch *batch, const xfi_flags *set,
                                uint64_t value, xfer_stream stream, bool *launched);

  /* Writes 64 bytes: ranks with equal ones may be able to map each other's memory. */
  void (*domain)(xfi_device *device, unsigned char domain[64]);
  /* A handle for an allocation of find_allocation(). If the memory cannot be shared outside the
   * process, nobody can map the handle. */
  xfer_status (*mem_export)(xfi_device *device, xfi_allocation allocation, xfi_mem_handle *handle);
  /* Map a peer's allocation. Reference counted: mapping the same one twice gives the same mapping.
   * XFER_ERR_UNSUPPORTED if it cannot be reached; XFER_ERR_TIMEOUT if nobody answers, with a text
   * that does not name the owner. */
  xfer_status (*mem_import)(xfi_device *device, const xfi_mem_handle *handle, xfi_mapping **mapping,
                            xfi_deadline deadline);
  /* Call once for each import, before the device is destroyed. */
  void (*mem_unimport)(xfi_device *device, xfi_mapping *mapping);

  /* Allocate flags, zeroed. `by_streams`: streams store to them, not only hosts. */
  xfer_status (*flags_alloc)(xfi_device *device, uint64_t **flags, size_t n_flags, bool by_streams);
  void (*flags_free)(xfi_device *device, uint64_t *flags);
  /* Become another owner of a peer's flags, who must call flags_free() too: they live until the
   * last owner has. False: they are gone, since the peer failed. NULL: mapping them is enough. */
  bool (*flags_share)(xfi_device *device, uint64_t *flags);
  /* Store `value` to the flags of `set`, own or imported; whoever sees it also sees all earlier
   * work on `stream`. Later work on `stream` starts once each flag of `wait`, all in own memory, is
   * >= value. On the host this blocks, and on XFER_ERR_TIMEOUT *late is the index of a flag that
   * did not get there. A device that waits by itself ignores the deadline. */
  xfer_status (*flags_sync)(xfi_device *device, const xfi_flags *set, const xfi_flags *wait,
                            uint64_t value, xfer_stream stream, xfi_deadline deadline, int *late);
  /* Only the store of flags_sync(). If `guard` is not NULL and forbids, the value stored is void.
   */
  xfer_status (*flags_set)(xfi_device *device, const xfi_flags *set, const xfi_guard *guard,
                           uint64_t value, xfer_stream stream);
  /* Store `value` from the host to an own or imported flag, at once, whatever streams do. */
  void (*flags_store)(xfi_device *device, uint64_t *flag, uint64_t value);

  /* From here on NULL: nothing to do. The index of the first of `then` that is no longer the same
   * living allocation; n: all still are. */
  size_t (*find_changed)(xfi_device *device, const xfi_allocation *then, size_t n);
  /* A number that stays the same only if nothing was allocated in this process since the last call:
   * an allocation found after a call with the same number may be freed since, but its memory is not
   * another allocation's. 0: not known. Takes 2 us; the first call allocates. */
  uint64_t (*allocation_mark)(xfi_device *device);
  /* Call after a commit: until the next export no peer imports what was exported so far. */
  void (*exports_end)(xfi_device *device);
} xfi_device_ops;

struct xfi_device {
  const xfi_device_ops *ops;
  uint64_t place;     /* equal for ranks of one process on one device, and apart from the low byte
                         for all ranks of one process; 0: it does not matter */
  uint64_t gpu;       /* this one of its host, in whatever process; 0: it is none */
  xfi_alarms *alarms; /* NULL: the device is synchronous */
  /* Up to this many bytes to and from all peers go in one batch, rather than one for each peer on a
   * stream of its own. */
  uint64_t one_batch_bytes;
};

/* A device that is NULL, as in a simulation: nothing to do. */
static inline void xfi_device_enter(const xfi_device *device, xfi_entered *before)
{
  if (device != NULL && device->ops->enter != NULL) device->ops->enter(device, before);
}

static inline void xfi_device_leave(const xfi_device *device, const xfi_entered *before)
{
  if (device != NULL && device->ops->leave != NULL) device->ops->leave(device, before);
}

/* Streams and events. *stream and *event must be NULL before, and stay NULL on a synchronous
 * device. An event that is NULL has passed; destroying NULL is fine. */
static inline xfer_status xfi_stream_create(xfi_device *device, xfer_stream *stream)
{
  return device->ops->stream_create == NULL ? XFER_OK : device->ops->stream_create(device, stream);
}

static inline void xfi_stream_destroy(xfi_device *device, xfer_stream stream)
{
  if (stream != NULL) device->ops->stream_destroy(device, stream);
}

static inline xfer_status xfi_stream_check(xfi_device *device, xfer_stream stream)
{
  return device->ops->stream_check == NULL ? XFER_OK : device->ops->stream_check(device, stream);
}

static inline xfer_status xfi_event_create(xfi_device *device, xfi_event **event)
{
  return device->ops->event_create == NULL ? XFER_OK : device->ops->event_create(device, event);
}

static inline void xfi_event_destroy(xfi_device *device, xfi_event *event)
{
  if (event != NULL) device->ops->event_destroy(device, event);
}

static inline xfer_status xfi_event_record(xfi_device *device, xfi_event *event, xfer_stream stream)
{
  return event == NULL ? XFER_OK : device->ops->event_record(device, event, stream);
}

static inline xfer_status xfi_stream_wait(xfi_device *device, xfer_stream stream, xfi_event *event)
{
  return event == NULL ? XFER_OK : device->ops->stream_wait(device, stream, event);
}

static inline xfer_status xfi_event_sync(xfi_device *device, xfi_event *event,
                                         xfi_deadline deadline)
{
  return event == NULL ? XFER_OK : device->ops->event_sync(device, event, deadline);
}

/* A batch that is NULL is fine. */
static inline bool xfi_batch_is_read(const xfi_device *device, const xfi_batch *batch)
{
  return batch != NULL && device->ops->batch_is_read != NULL && device->ops->batch_is_read(batch);
}

static inline xfer_status xfi_batch_launch(xfi_device *device, xfi_batch *batch, xfer_stream stream)
{
  return batch == NULL ? XFER_OK : device->ops->batch_launch(device, batch, stream, NULL);
}

/* Destroy *batch, if there is one, and set it to NULL. */
static inline void xfi_batch_drop(xfi_device *device, xfi_batch **batch)
{
  if (*batch != NULL) device->ops->batch_destroy(device, *batch);
  *batch = NULL;
}

/* Make a batch without a guard; *batch becomes NULL if there are no copies. */
static inline xfer_status xfi_batch_make(xfi_device *device, xfi_batch **batch, xfi_copy *copies,
                                         size_t n_copies, int percent)
{
  const xfi_batch_spec spec = {.copies = copies, .n_copies = n_copies, .percent = percent};

  if (n_copies > 0) return device->ops->batch_create(device, batch, &spec);
  xfi_batch_drop(device, batch);
  return XFER_OK;
}

/* Evaluate `call` between enter and leave. */
#define XFI_ON_DEVICE(device, call)                                                                \
  do {                                                                                             \
    xfi_entered xfi_before;                                                                        \
    xfi_device_enter(device, &xfi_before);                                                         \
    call;                                                                                          \
    xfi_device_leave(device, &xfi_before);                                                         \
  } while (0)

/* A random number of this process; a forked child has another one. */
XFI_DOOR uint64_t xfi_process_number(void);

/* A device of host memory and the calling thread. One may serve any number of threads. Fails only
 * if memory is short. */
XFI_DOOR xfer_status xfi_device_create_host(xfi_device **device);

/* Is there a CUDA driver? This and the next function are in libxfer_nccl. */
xfer_status xfi_cuda_here(void);
/* The calling thread's current CUDA device. */
xfer_status xfi_device_create_cuda(xfi_device **device);

#endif
