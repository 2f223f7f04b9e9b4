/*
 * Memory, streams and peers' memory of one kind of device. run/ is written against this table
 * alone; device/host.c and device/cuda.c fill it in.
 *
 * Streams: work on one stream runs in order, after what was put there before. The host's streams
 * are all NULL, as are its events, and its work is done when a call returns. Nothing between two
 * commits allocates.
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
#include "kernels.h"
#include "xfer/xfer.h"

typedef struct xfi_device xfi_device;
typedef struct xfi_event xfi_event;   /* a point on a stream */
typedef struct xfi_batch xfi_batch;   /* copies made ready to be launched many times */
typedef struct xfi_digest xfi_digest; /* likewise sums of what memory holds */

/* Names an allocation to another process. Plain bytes, sent as they are. */
typedef struct xfi_mem_handle {
  unsigned char bytes[192];
} xfi_mem_handle;

/* A peer's allocation, as mapped here. */
typedef struct xfi_mapping {
  char *base; /* corresponds to the exporter's xfi_allocation.base */
} xfi_mapping;

/* What a thread had before it entered a device. */
typedef struct xfi_entered {
  bool has_context; /* of the device, which it is to give back */
  int mode;
} xfi_entered;

/* What bytes belong to. Equal before and after means: the same, still living allocation. Memory
 * that is mapped chunk by chunk counts as the chunks that hold the bytes. */
typedef struct xfi_allocation {
  void *base;         /* of the allocation that holds the bytes */
  size_t n_bytes;     /* from base */
  uint64_t id;        /* never used again for another allocation; 0: the device cannot tell */
  size_t chunk_bytes; /* of each of several chunks; 0: there is one, or they differ in size */
} xfi_allocation;

/* The one of `n`, sorted by address, that holds the byte; NULL: none does. */
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

/* Flags are 64-bit words that only grow, in memory of flags_alloc(). This bit says that the value
 * will not come, and ends waits for it. (Not the top one: streams compare differences.) */
#define XFI_FLAG_VOID (UINT64_C(1) << 62)

typedef struct xfi_flags {
  uint64_t **at; /* [n] */
  int n;
} xfi_flags;

/* What copies into others' memory depend on, decided once for each launch. */
typedef struct xfi_guard xfi_guard;
enum { XFI_GUARD_FLAGS = 64 }; /* at most */

typedef struct xfi_device_ops {
  bool is_synchronous; /* all work is done when a call returns, and flags can be read */
  bool pulls;          /* reading a peer's memory is as fast as writing it, but for narrow rows */
  /* Streams worth using side by side for copies to different peers; at least 1. */
  int n_copy_streams;
  /* Defaults of plan options on this device. */
  uint64_t default_staging_bytes;
  uint64_t default_window_bytes;

  void (*destroy)(xfi_device *device);
  /* Around all that a thread asks of the device; NULL: nothing to do. */
  void (*enter)(const xfi_device *device, xfi_entered *before);
  void (*leave)(const xfi_device *device, const xfi_entered *before);

  /* Memory of this device, zeroed. */
  xfer_status (*alloc)(xfi_device *device, void **memory, size_t n_bytes);
  void (*free)(xfi_device *device, void *memory);
  /* Host memory that this device's copies reach as well. */
  xfi_host_memory host_memory;
  /* Which allocation the bytes from `pointer` lie in. XFER_ERR_ARG names memory that copies cannot
   * use, pageable host memory or another device's on a CUDA device, and bytes that reach past it.
   */
  xfer_status (*find_allocation)(xfi_device *device, const void *pointer, size_t n_bytes,
                                 xfi_allocation *found);

  /* NULL, as are all of streams and events, on a synchronous device: call those below. */
  xfer_status (*stream_create)(xfi_device *device, xfer_stream *stream);
  void (*stream_destroy)(xfi_device *device, xfer_stream stream);
  /* Is it legal to put work on the caller's stream now (a capturing stream is not)? */
  xfer_status (*stream_check)(xfi_device *device, xfer_stream stream);
  xfer_status (*event_create)(xfi_device *device, xfi_event **event);
  void (*event_destroy)(xfi_device *device, xfi_event *event);
  xfer_status (*event_record)(xfi_device *device, xfi_event *event, xfer_stream stream);
  xfer_status (*stream_wait)(xfi_device *device, xfer_stream stream, xfi_event *event);
  /* Has all work on the stream ended? */
  bool (*stream_is_idle)(xfi_device *device, xfer_stream stream);
  /* Block the calling thread until the event has passed. XFER_ERR_TIMEOUT at the deadline. */
  xfer_status (*event_sync)(xfi_device *device, xfi_event *event, xfi_deadline deadline);

  /* Make copies ready. They may touch this device's memory and imported memory. *batch is NULL, or
   * one that is not launched again: the new one takes its place and its memory, and it is gone also
   * after a failure, with NULL there; launches of it that are under way go on, unless it is read by
   * them. The array is of no more use to the caller, unless the guard is strict. `percent` of what
   * computes on the device may copy, at most; 100: all of it. `guard` NULL: none; else a launch
   * copies nothing where the guard says no, but see guard_create(). `open`: nothing can keep
   * launches from going at once, so that they need no guard; *batch becomes NULL where such a batch
   * would be no faster. */
  xfer_status (*batch_create)(xfi_device *device, xfi_batch **batch, xfi_copy *copies,
                              size_t n_copies, int percent, const xfi_guard *guard, bool open);
  /* May an open batch of the same copies be faster than this one? NULL: none is. */
  bool (*batch_wants_open)(const xfi_batch *batch);
  void (*batch_destroy)(xfi_device *device, xfi_batch *batch);
  /* Do launches read it while they are under way? NULL: none does, after the call. */
  bool (*batch_is_read)(const xfi_batch *batch);
  /* What a copy engine takes of it, one after the other, comes after all that engines were given
   * with the same `turn` before; NULL: whenever it may go. */
  xfer_status (*batch_launch)(xfi_device *device, xfi_batch *batch, xfer_stream stream,
                              xfi_event *turn);
  /* Its copies, in order: other addresses may be written there while it is not launched. NULL: such
   * a batch is made anew. */
  xfi_copy *(*batch_copies)(xfi_batch *batch);

  /* Make sums of boxes ready; slots that no box names stay 0. The array is copied. */
  xfer_status (*digest_create)(xfi_device *device, xfi_digest **digest, const xfi_digest_box *boxes,
                               size_t n_boxes, size_t n_slots);
  void (*digest_destroy)(xfi_device *device, xfi_digest *digest);
  xfer_status (*digest_launch)(xfi_device *device, xfi_digest *digest, xfer_stream stream);
  /* [n_slots] of the last launch, once its stream has passed it. */
  const xfi_sum *(*digest_sums)(const xfi_digest *digest);

  /* NULL on a synchronous device, where a wait that ends in vain is an error at once. A guard says
   * no where one of `flags`, which are copied, was void when guard_check() came on its stream. If
   * it is not `strict`, copies that gain by it may be done whatever it says: for those that write
   * our own memory. */
  xfer_status (*guard_create)(xfi_device *device, xfi_guard **guard, const xfi_flags *flags,
                              bool strict);
  void (*guard_destroy)(xfi_device *device, xfi_guard *guard);
  xfer_status (*guard_check)(xfi_device *device, xfi_guard *guard, xfer_stream stream);

  /* Ranks with equal domains may be able to map each other's memory: [64] bytes. */
  void (*domain)(xfi_device *device, unsigned char domain[64]);
  /* A handle for an allocation that was found, which nobody can map if it cannot leave the process.
   */
  xfer_status (*mem_export)(xfi_device *device, xfi_allocation allocation, xfi_mem_handle *handle);
  /* Map a peer's allocation. Reference counted: mapping the same one twice gives the same mapping.
   * XFER_ERR_UNSUPPORTED if it cannot be reached; XFER_ERR_TIMEOUT, and nothing about whose it is,
   * if nobody answers. */
  xfer_status (*mem_import)(xfi_device *device, const xfi_mem_handle *handle, xfi_mapping **mapping,
                            xfi_deadline deadline);
  /* Once for each import, before the device is destroyed. */
  void (*mem_unimport)(xfi_device *device, xfi_mapping *mapping);

  /* Is the stream one that other ranks of this process have too, so that what one rank puts on it
   * holds up the others? NULL: none is. */
  bool (*stream_is_shared)(const xfi_device *device, xfer_stream stream);

  /* Flags, zeroed; `by_streams`: not only hosts store them. */
  xfer_status (*flags_alloc)(xfi_device *device, uint64_t **flags, size_t n_flags, bool by_streams);
  void (*flags_free)(xfi_device *device, uint64_t *flags);
  /* Become one more owner of a peer's flags, who calls flags_free() too: they live until the last
   * one has. False: they are gone, since the peer failed. NULL: mapping them does that. */
  bool (*flags_share)(xfi_device *device, uint64_t *flags);
  /* After all earlier work on `stream` is visible to whoever sees the value, store `value` to the
   * flags of `set`, own or imported; later work on `stream` starts once each flag of `wait`, all in
   * own memory, is >= value. On the host this blocks, and on XFER_ERR_TIMEOUT *late is the index of
   * a flag that was not. A device that waits by itself looks at no deadline. */
  xfer_status (*flags_sync)(xfi_device *device, const xfi_flags *set, const xfi_flags *wait,
                            uint64_t value, xfer_stream stream, xfi_deadline deadline, int *late);
  /* The first half of that; where `guard`, unless NULL, says no, `value` made void is stored. */
  xfer_status (*flags_set)(xfi_device *device, const xfi_flags *set, const xfi_guard *guard,
                           uint64_t value, xfer_stream stream);
  /* Store `value` from the host, now, whatever the streams do, to an own or imported flag. */
  void (*flags_store)(xfi_device *device, uint64_t *flag, uint64_t value);

  /* NULL below: nothing to do. The index of the first of `then` that is not the same, living
   * allocation any more; n: all are. */
  size_t (*find_changed)(xfi_device *device, const xfi_allocation *then, size_t n);
  /* Another number than before, unless nothing at all was allocated in this process since: what was
   * looked at after a call that gave the same one may be freed by now, but is no other allocation.
   * 0: not known. Takes 2 us; the first call takes memory. */
  uint64_t (*allocation_mark)(xfi_device *device);
  /* After a commit: no peer imports what was exported so far, until the next export. */
  void (*exports_end)(xfi_device *device);
} xfi_device_ops;

struct xfi_device {
  const xfi_device_ops *ops;
  uint64_t place;     /* equal for ranks of one process on one device, but for the low byte for
                         those of one process; 0: it does not matter */
  xfi_alarms *alarms; /* NULL: the device is synchronous */
  /* Up to so many bytes to and from all peers are worth one batch, not one for each peer on a
   * stream of its own. */
  uint64_t one_batch_bytes;
  /* Of memory in batches that are being made, sorted by address: what need not be asked about. */
  const xfi_allocation *noted;
  size_t n_noted;
};

/* NULL, of a simulation: nothing to do. */
static inline void xfi_device_enter(const xfi_device *device, xfi_entered *before)
{
  if (device != NULL && device->ops->enter != NULL) device->ops->enter(device, before);
}

static inline void xfi_device_leave(const xfi_device *device, const xfi_entered *before)
{
  if (device != NULL && device->ops->leave != NULL) device->ops->leave(device, before);
}

/* Streams and events. *stream and *event are NULL before, and stay that on a synchronous device. An
 * event that is NULL has passed; to destroy what is NULL is fine. */
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

/* NULL is fine. */
static inline bool xfi_batch_is_read(const xfi_device *device, const xfi_batch *batch)
{
  return batch != NULL && device->ops->batch_is_read != NULL && device->ops->batch_is_read(batch);
}

static inline xfer_status xfi_batch_launch(xfi_device *device, xfi_batch *batch, xfer_stream stream)
{
  return batch == NULL ? XFER_OK : device->ops->batch_launch(device, batch, stream, NULL);
}

/* Give back the one that is there, if there is one. */
static inline void xfi_batch_drop(xfi_device *device, xfi_batch **batch)
{
  if (*batch != NULL) device->ops->batch_destroy(device, *batch);
  *batch = NULL;
}

/* Without a guard; of no copies there is none. */
static inline xfer_status xfi_batch_make(xfi_device *device, xfi_batch **batch, xfi_copy *copies,
                                         size_t n_copies, int percent)
{
  if (n_copies > 0)
    return device->ops->batch_create(device, batch, copies, n_copies, percent, NULL, false);
  xfi_batch_drop(device, batch);
  return XFER_OK;
}

/* Do what is between both. */
#define XFI_ON_DEVICE(device, call)                                                                \
  do {                                                                                             \
    xfi_entered xfi_before;                                                                        \
    xfi_device_enter(device, &xfi_before);                                                         \
    call;                                                                                          \
    xfi_device_leave(device, &xfi_before);                                                         \
  } while (0)

/* A random number of this process, of a forked child another one. */
XFI_DOOR uint64_t xfi_process_number(void);

/* Host memory and the calling thread. One may serve any number of threads. Never fails but for
 * memory. */
XFI_DOOR xfer_status xfi_device_create_host(xfi_device **device);

/* Is there a CUDA driver at all? In libxfer_nccl, as is the next. */
xfer_status xfi_cuda_here(void);
/* The calling thread's current CUDA device. */
xfer_status xfi_device_create_cuda(xfi_device **device);

#endif
