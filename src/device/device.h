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
#include "flags.h"
#include "kernels.h"
#include "plugin_api.h"
#include "vec.h"
#include "xfer/xfer.h"

typedef struct xfi_device xfi_device;
typedef struct xfi_event xfi_event;   /* a point on a stream */
typedef struct xfi_batch xfi_batch;   /* copies prepared to be launched many times */
typedef struct xfi_digest xfi_digest; /* sums of memory contents, prepared in the same way */

/* Identifies an allocation to another process. Plain bytes, sent as they are. */
typedef struct xfi_mem_handle {
  unsigned char bytes[192];
} xfi_mem_handle;

/* A peer's allocation, mapped into this rank's address space. */
typedef struct xfi_mapping {
  char *base; /* its address on this rank; the exporter has it at xfi_allocation.base */
} xfi_mapping;

/* What enter() changed in the calling thread, for leave() to restore. */
typedef struct xfi_entered {
  bool has_context; /* enter() pushed the device's context; leave() pops it */
  int mode;         /* the thread's stream capture mode before */
} xfi_entered;

/* The allocation that some bytes lie in. If it is looked up twice with equal results, it is the
 * same allocation, still alive. For memory that is mapped chunk by chunk, the chunks that the bytes
 * lie in count as one allocation. */
typedef struct xfi_allocation {
  void *base;
  size_t n_bytes;
  uint64_t id;        /* no other allocation ever has the same; 0: the device cannot tell */
  size_t chunk_bytes; /* size of each of several chunks; 0: one chunk, or different sizes */
} xfi_allocation;

/* Which of `n` allocations, sorted by address, holds the byte; NULL: none. */
static inline const xfi_allocation *xfi_allocation_at(const xfi_allocation *all, size_t n,
                                                      const void *pointer)
{
  const char *p = (const char *)pointer;
  size_t at = 0;

  XFI_BISECT(at, n, mid, (const char *)all[mid].base <= p);
  return at > 0 && p < (const char *)all[at - 1].base + all[at - 1].n_bytes ? &all[at - 1] : NULL;
}

/* Some flags (flags.h), in memory of flags_alloc(). */
typedef struct xfi_flags {
  uint64_t **at; /* [n] */
  int n;
} xfi_flags;

/* Decides on the device, once for each launch, whether its copies may be made, since a wait for a
 * flag also ends if the peer gives up. */
typedef struct xfi_guard xfi_guard;
enum { XFI_GUARD_FLAGS = 64 }; /* most flags of a guard */

/* The copies of a batch, and hints about its launches. */
typedef struct xfi_batch_spec {
  xfi_copy *copies; /* [n_copies] between memory of this device and imported memory. The device may
                       overwrite the array, unless the guard is strict */
  size_t n_copies;
  int percent;            /* most of the device's multiprocessors that copy, in per cent */
  const xfi_guard *guard; /* checked at each launch, but see guard_create(); NULL: always copy */
  bool open;      /* nothing will delay the launches, so they need no guard. *batch becomes NULL
                     unless such a batch is faster */
  bool beside;    /* other copies run at the same time */
  bool no_engine; /* leave the copy engine out: other ranks' engines copy to or from the same peers
                     at the same time, which makes all of them slow */
  const xfi_allocation *known; /* [n_known] allocations that the copies' memory lies in, sorted by
                                  address, so that the driver need not be queried */
  size_t n_known;
} xfi_batch_spec;

typedef struct xfi_device_ops {
  bool is_synchronous; /* all work is done when a call returns, and hosts read the flags */
  bool pulls;          /* reading a peer's memory is as fast as writing it, except in narrow rows */
  int n_copy_streams;  /* streams for copies to different peers at once; at least 1 */
  /* Defaults of plan options on this device. */
  uint64_t default_staging_bytes;
  uint64_t default_window_bytes;

  void (*destroy)(xfi_device *device);
  /* Called before and after all other functions, by the calling thread; NULL: not needed. */
  void (*enter)(const xfi_device *device, xfi_entered *before);
  void (*leave)(const xfi_device *device, const xfi_entered *before);

  /* Memory of this device, zeroed. */
  xfer_status (*alloc)(xfi_device *device, void **memory, size_t n_bytes);
  void (*free)(xfi_device *device, void *memory);
  /* Host memory that copies of this device may read and write (on CUDA: pinned). */
  xfi_host_memory host_memory;
  /* Find the allocation that `n_bytes` from `pointer` lie in. XFER_ERR_ARG, with text: they reach
   * past its end, or copies cannot use it (on CUDA: pageable host memory, or another device's). */
  xfer_status (*find_allocation)(xfi_device *device, const void *pointer, size_t n_bytes,
                                 xfi_allocation *found);

  /* On a synchronous device all functions of streams and events are NULL: call xfi_stream_create()
   * and so on below, which then do nothing. */
  xfer_status (*stream_create)(xfi_device *device, xfer_stream *stream);
  void (*stream_destroy)(xfi_device *device, xfer_stream stream);
  /* May work be enqueued on the caller's stream? Not while it captures a graph. */
  xfer_status (*stream_check)(xfi_device *device, xfer_stream stream);
  xfer_status (*event_create)(xfi_device *device, xfi_event **event);
  void (*event_destroy)(xfi_device *device, xfi_event *event);
  xfer_status (*event_record)(xfi_device *device, xfi_event *event, xfer_stream stream);
  xfer_status (*stream_wait)(xfi_device *device, xfer_stream stream, xfi_event *event);
  /* Has all work on the stream finished? */
  bool (*stream_is_idle)(xfi_device *device, xfer_stream stream);
  /* Block the calling thread until the event has passed. XFER_ERR_TIMEOUT at the deadline. */
  xfer_status (*event_sync)(xfi_device *device, xfi_event *event, xfi_deadline deadline);

  /* Prepare the copies of `spec`. *batch is NULL, or an old batch, which the new one replaces and
   * whose memory it reuses; after a failure *batch is NULL. Launches of the old batch that are
   * under way go on, unless they read it: check batch_is_read() before. */
  xfer_status (*batch_create)(xfi_device *device, xfi_batch **batch, const xfi_batch_spec *spec);
  /* Might an open batch of the same copies be faster than this one? NULL: never. */
  bool (*batch_wants_open)(const xfi_batch *batch);
  void (*batch_destroy)(xfi_device *device, xfi_batch *batch);
  /* Does a launch still read the batch's memory after batch_launch() has returned? NULL: never. */
  bool (*batch_is_read)(const xfi_batch *batch);
  /* What the copy engine copies waits for what earlier launches with the same `turn` gave to the
   * engine. `turn` NULL: no such order. */
  xfer_status (*batch_launch)(xfi_device *device, xfi_batch *batch, xfer_stream stream,
                              xfi_event *turn);
  /* The batch's copies, in order, whose addresses may be changed between launches. NULL: a batch at
   * other addresses has to be made anew. */
  xfi_copy *(*batch_copies)(xfi_batch *batch);

  /* Prepare digests of boxes, added up in n_sums sums; one that no box adds to stays 0. The array
   * is copied. */
  xfer_status (*digest_create)(xfi_device *device, xfi_digest **digest, const xfi_digest_box *boxes,
                               size_t n_boxes, size_t n_sums);
  void (*digest_destroy)(xfi_device *device, xfi_digest *digest);
  xfer_status (*digest_launch)(xfi_device *device, xfi_digest *digest, xfer_stream stream);
  /* The sums [n_sums] of the last launch, valid once its stream has passed it. */
  const xfi_sum *(*digest_sums)(const xfi_digest *digest);

  /* NULL, as the two after it, on a synchronous device, where a failed wait is an error at once. A
   * guard forbids copies if one of `flags` (the list is copied) was void when the stream came to
   * guard_check(). A `strict` guard holds for all copies; another one may be ignored by copies that
   * are faster so (those of the copy engine), and is for copies into this rank's own memory. */
  xfer_status (*guard_create)(xfi_device *device, xfi_guard **guard, const xfi_flags *flags,
                              bool strict);
  void (*guard_destroy)(xfi_device *device, xfi_guard *guard);
  xfer_status (*guard_check)(xfi_device *device, xfi_guard *guard, xfer_stream stream);
  /* guard_check(), batch_launch() of a batch with that guard, and flags_set(), in a single launch
   * of one kernel. *launched is false, and nothing has happened, if the batch needs several. NULL
   * on a synchronous device. */
  xfer_status (*guarded_launch)(xfi_device *device, const xfi_batch *batch, const xfi_flags *set,
                                uint64_t value, xfer_stream stream, bool *launched);
  /* Do all copies of the batch take one launch of one kernel? NULL: it does not matter. */
  bool (*batch_is_one_launch)(const xfi_batch *batch);

  /* Writes 64 bytes. Ranks whose bytes are equal may be able to map each other's memory; others are
   * not. */
  void (*domain)(xfi_device *device, unsigned char domain[64]);
  /* A handle for an allocation of find_allocation(). Of memory that cannot leave its process one is
   * made too, and mem_import() of it fails in other processes. */
  xfer_status (*mem_export)(xfi_device *device, xfi_allocation allocation, xfi_mem_handle *handle);
  /* Map a peer's allocation. Mappings are counted: mapping an allocation twice gives the same one.
   * XFER_ERR_UNSUPPORTED: it cannot be mapped here. XFER_ERR_TIMEOUT: its owner does not reply;
   * the text does not name the rank, which the device does not know. */
  xfer_status (*mem_import)(xfi_device *device, const xfi_mem_handle *handle, xfi_mapping **mapping,
                            xfi_deadline deadline);
  /* Unmap an allocation: once for each mem_import(), before the device is destroyed. */
  void (*mem_unimport)(xfi_device *device, xfi_mapping *mapping);

  /* Allocate flags, zeroed. `by_streams`: streams write them too, not only hosts. */
  xfer_status (*flags_alloc)(xfi_device *device, uint64_t **flags, size_t n_flags, bool by_streams);
  void (*flags_free)(xfi_device *device, uint64_t *flags);
  /* Share a peer's flags, of this process: they live until each owner has called flags_free().
   * False: they are gone, since the peer has failed. NULL: mem_import() keeps them alive. */
  bool (*flags_share)(xfi_device *device, uint64_t *flags);
  /* Enqueue on `stream`: store `value` to each flag of `set`, own or imported, so that whoever sees
   * the value also sees all earlier work on the stream; then hold up later work until each flag of
   * `wait`, all in own memory, is >= value. A synchronous device does it at once and blocks; after
   * XFER_ERR_TIMEOUT *late is the index of a flag that did not get there. Other devices ignore the
   * deadline: the caller's alarm ends their waits. */
  xfer_status (*flags_sync)(xfi_device *device, const xfi_flags *set, const xfi_flags *wait,
                            uint64_t value, xfer_stream stream, xfi_deadline deadline, int *late);
  /* Make only the store of flags_sync(). If there is a guard that forbids it, the value is void. */
  xfer_status (*flags_set)(xfi_device *device, const xfi_flags *set, const xfi_guard *guard,
                           uint64_t value, xfer_stream stream);
  /* Store `value` to an own or imported flag from the host, at once, without regard to streams. */
  void (*flags_store)(xfi_device *device, uint64_t *flag, uint64_t value);

  /* From here on NULL means that there is nothing to do.
   *
   * The index of the first of `then` that has been freed, or replaced by another allocation at its
   * address; n: none. */
  size_t (*find_changed)(xfi_device *device, const xfi_allocation *then, size_t n);
  /* A number that changes whenever this process allocates, so that many allocations need not be
   * looked up again: while it is the same, one that was found before may have been freed, but no
   * other is in its place. 0: not known. Takes 2 us; the first call allocates. */
  uint64_t (*allocation_mark)(xfi_device *device);
  /* Called after a commit: no peer will import what was exported so far. */
  void (*exports_end)(xfi_device *device);
} xfi_device_ops;

struct xfi_device {
  const xfi_device_ops *ops;
  uint64_t locality; /* a number that is equal for ranks of one process that share a device; all but
                     the low byte is equal for all ranks of one process; 0: it does not matter */
  uint64_t gpu;      /* which GPU of the host, the same in all processes; 0: this is no GPU */
  xfi_alarms *alarms;       /* NULL: the device is synchronous */
  uint64_t one_batch_bytes; /* up to so many to and from all peers are copied in one batch; more in
                               a batch for each peer, on a stream of its own */
};

/* Without a device, as in a simulation, these two do nothing. */
static inline void xfi_device_enter(const xfi_device *device, xfi_entered *before)
{
  if (device != NULL && device->ops->enter != NULL) device->ops->enter(device, before);
}

static inline void xfi_device_leave(const xfi_device *device, const xfi_entered *before)
{
  if (device != NULL && device->ops->leave != NULL) device->ops->leave(device, before);
}

/* Streams and events. On a synchronous device *stream and *event, which are NULL before, stay so. A
 * NULL event has passed; destroying NULL is fine. */
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

/* The operations of these names; a NULL batch is fine. */
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

/* Make a device of host memory and the calling thread. It may serve any number of threads. Fails
 * only if memory is short. */
XFI_PLUGIN_API xfer_status xfi_device_create_host(xfi_device **device);

/* XFER_ERR_CUDA: there is no CUDA driver. This and the next function are in libxfer_nccl. */
xfer_status xfi_cuda_here(void);
/* Make a device of the calling thread's current CUDA device. */
xfer_status xfi_device_create_cuda(xfi_device **device);

#endif
