/* A host device that tells allocations apart, as a GPU does, and keeps book: who has mapped which
 * arena, and how many bytes each rank copied to or from the arenas of others. A copy that touches
 * an arena of another rank which is not mapped just then is noted as a failure.
 *
 * Host memory itself needs no registering, so that on a plain host comm nothing of it would be
 * seen.
 */
#ifndef TOLD_DEVICE_H
#define TOLD_DEVICE_H

#include "alloc.h"
#include "device.h"
#include "error.h"
#include "unit/ranks.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_RANKS = 4, ARENA_BYTES = 1024, NOBODY = -1 };

enum { SRC, DST, SPARE, N_ARENAS };

typedef struct arena {
  unsigned char *base; /* [ARENA_BYTES] */
  xfi_mapping mapping; /* whoever maps it */
  uint64_t id;
  bool stays;            /* cannot leave the process */
  int n_mapped[N_RANKS]; /* by rank */
} arena;

typedef struct world {
  pthread_mutex_t lock;
  arena arenas[N_RANKS][N_ARENAS];
  uint64_t last_id;
  int n_times; /* an arena was mapped by a rank that had not mapped it */
  char unusable[64];
} world;

typedef struct told_device {
  xfi_device base;
  world *world;
  int rank;
  uint64_t peer_bytes;      /* copied to or from arenas of others */
  int n_exports_ended;      /* calls */
  bool is_slow;             /* to close a mapping */
  bool launch_fails;        /* of copies to or from arenas of others */
  xfer_status import_fails; /* not XFER_OK: what importing an arena comes to */
} told_device;

typedef struct told_batch {
  xfi_batch *made; /* the host's */
  size_t n_copies;
  xfi_copy *copies;
} told_batch;

static const xfi_device_ops *host_ops;
static xfi_device_ops told_ops;

/* What is in no arena: flag pages and slots. Not to be confused with any. */
#define ELSEWHERE_ID 1

static inline told_device *told(xfi_device *device)
{
  return (told_device *)device;
}

/* ---- arenas ------------------------------------------------------------------------------- */

static inline void world_create(world *w)
{
  memset(w, 0, sizeof *w);
  w->last_id = ELSEWHERE_ID;
  if (pthread_mutex_init(&w->lock, NULL) != 0) abort();
  for (int r = 0; r < N_RANKS; r++)
    for (int k = 0; k < N_ARENAS; k++) {
      w->arenas[r][k] = (arena){.base = malloc(ARENA_BYTES), .id = ++w->last_id};
      if (w->arenas[r][k].base == NULL) abort();
      w->arenas[r][k].mapping.base = (char *)w->arenas[r][k].base;
    }
}

/* How often arenas of `owner`, or of anybody, are mapped. */
static inline int count_mapped(world *w, int owner)
{
  int n = 0;

  (void)pthread_mutex_lock(&w->lock);
  for (int r = 0; r < N_RANKS; r++)
    for (int k = 0; k < N_ARENAS && (owner == NOBODY || owner == r); k++)
      for (int by = 0; by < N_RANKS; by++)
        n += w->arenas[r][k].n_mapped[by];
  (void)pthread_mutex_unlock(&w->lock);
  return n;
}

static inline int count_times(world *w)
{
  (void)pthread_mutex_lock(&w->lock);
  const int n = w->n_times;
  (void)pthread_mutex_unlock(&w->lock);
  return n;
}

/* As if it had been freed, and another allocation been made in its place. */
static inline void renew(world *w, int rank, int which)
{
  (void)pthread_mutex_lock(&w->lock);
  w->arenas[rank][which].id = ++w->last_id;
  (void)pthread_mutex_unlock(&w->lock);
}

static inline void world_destroy(world *w)
{
  expect(count_mapped(w, NOBODY) == 0);
  for (int r = 0; r < N_RANKS; r++)
    for (int k = 0; k < N_ARENAS; k++)
      free(w->arenas[r][k].base);
  (void)pthread_mutex_destroy(&w->lock);
}

/* NULL: in none. The caller holds the lock. */
static inline arena *arena_at(world *w, const void *pointer, int *owner)
{
  const uintptr_t p = (uintptr_t)pointer;

  for (int r = 0; r < N_RANKS; r++)
    for (int k = 0; k < N_ARENAS; k++) {
      const uintptr_t base = (uintptr_t)w->arenas[r][k].base;

      *owner = r;
      if (p >= base && p < base + ARENA_BYTES) return &w->arenas[r][k];
    }
  return NULL;
}

/* ---- the device's table ------------------------------------------------------------------- */

static inline xfer_status told_find_allocation(xfi_device *device, const void *pointer,
                                               size_t n_bytes, xfi_allocation *found)
{
  world *w = told(device)->world;
  const uintptr_t unusable = (uintptr_t)w->unusable;
  int owner;

  if ((uintptr_t)pointer >= unusable && (uintptr_t)pointer < unusable + sizeof w->unusable) {
    xfi_set_error("%p is of no use to this device", pointer);
    return XFER_ERR_ARG;
  }
  (void)pthread_mutex_lock(&w->lock);
  const arena *a = arena_at(w, pointer, &owner);
  if (a != NULL) *found = (xfi_allocation){.base = a->base, .n_bytes = ARENA_BYTES, .id = a->id};
  (void)pthread_mutex_unlock(&w->lock);
  if (a != NULL) return XFER_OK;
  const xfer_status st = host_ops->find_allocation(device, pointer, n_bytes, found);
  found->id = ELSEWHERE_ID;
  return st;
}

static inline size_t told_find_changed(xfi_device *device, const xfi_allocation *then, size_t n)
{
  world *w = told(device)->world;
  size_t i = 0;
  bool same = true;
  int owner;

  (void)pthread_mutex_lock(&w->lock);
  for (; i < n && same; i++) {
    const arena *a = arena_at(w, then[i].base, &owner);

    same = a == NULL || a->id == then[i].id;
  }
  (void)pthread_mutex_unlock(&w->lock);
  return same ? n : i - 1;
}

/* A handle is the host's, with the arena's address at its end. */
static inline unsigned char *address_in(xfi_mem_handle *handle)
{
  return handle->bytes + sizeof handle->bytes - sizeof(void *);
}

/* A domain may begin with any byte. */
static inline void told_domain(xfi_device *device, unsigned char domain[64])
{
  (void)device;
  memset(domain, 0, 64);
  domain[63] = 1;
}

static inline xfer_status told_mem_export(xfi_device *device, xfi_allocation allocation,
                                          xfi_mem_handle *handle)
{
  world *w = told(device)->world;
  xfer_status st = host_ops->mem_export(device, allocation, handle);
  int owner;

  (void)pthread_mutex_lock(&w->lock);
  const arena *a = arena_at(w, allocation.base, &owner);
  if (a != NULL && owner != told(device)->rank) st = XFER_ERR_INTERNAL;
  if (a != NULL) memcpy(address_in(handle), &a->base, sizeof a->base);
  if (a != NULL && a->stays) memset(handle, 0, sizeof *handle); /* nobody can map it */
  (void)pthread_mutex_unlock(&w->lock);
  return st;
}

static inline xfer_status told_mem_import(xfi_device *device, const xfi_mem_handle *handle,
                                          xfi_mapping **mapping, xfi_deadline deadline)
{
  told_device *d = told(device);
  xfi_mem_handle copy = *handle;
  void *at = NULL;
  int owner;

  memcpy(&at, address_in(&copy), sizeof at);
  if (at == NULL) return host_ops->mem_import(device, handle, mapping, deadline);
  if (d->import_fails != XFER_OK) {
    xfi_set_error("rank %d cannot map %p", d->rank, at);
    return d->import_fails;
  }
  (void)pthread_mutex_lock(&d->world->lock);
  arena *a = arena_at(d->world, at, &owner);
  expect(a != NULL && owner != d->rank);
  if (a != NULL && a->n_mapped[d->rank]++ == 0) d->world->n_times++;
  if (a != NULL) *mapping = &a->mapping;
  (void)pthread_mutex_unlock(&d->world->lock);
  return a == NULL ? XFER_ERR_INTERNAL : XFER_OK;
}

static inline void told_mem_unimport(xfi_device *device, xfi_mapping *mapping)
{
  const struct timespec a_while = {0, 30000000};
  told_device *d = told(device);
  int owner;

  if (d->is_slow) (void)nanosleep(&a_while, NULL);
  (void)pthread_mutex_lock(&d->world->lock);
  arena *a = arena_at(d->world, mapping->base, &owner);
  if (a != NULL) expect(--a->n_mapped[d->rank] >= 0);
  (void)pthread_mutex_unlock(&d->world->lock);
}

static inline void told_exports_end(xfi_device *device)
{
  told(device)->n_exports_ended++;
}

static inline void told_batch_destroy(xfi_device *device, xfi_batch *batch)
{
  told_batch *b = (told_batch *)batch;

  host_ops->batch_destroy(device, b->made);
  xfi_free(b->copies);
  xfi_free(b);
}

static inline xfer_status told_batch_create(xfi_device *device, xfi_batch **out,
                                            const xfi_batch_spec *spec)
{
  const size_t n_copies = spec->n_copies;
  told_batch *batch = xfi_calloc(1, sizeof *batch);
  xfer_status st = XFER_ERR_NOMEM;

  if (*out != NULL) told_batch_destroy(device, *out);
  *out = NULL;
  if (batch != NULL) batch->copies = xfi_calloc(n_copies, sizeof *batch->copies);
  if (batch == NULL || batch->copies == NULL)
    xfi_set_error("a batch of %zu copies", n_copies);
  else {
    memcpy(batch->copies, spec->copies, n_copies * sizeof *batch->copies);
    batch->n_copies = n_copies;
    st = host_ops->batch_create(device, &batch->made, spec);
  }
  if (st == XFER_OK) {
    *out = (xfi_batch *)batch;
    return XFER_OK;
  }
  if (batch != NULL) xfi_free(batch->copies);
  xfi_free(batch);
  return st;
}

/* Does `pointer` lie in another rank's arena? It must be mapped then. The caller holds the lock. */
static inline bool is_of_peer(const told_device *d, const void *pointer)
{
  int owner;
  const arena *a = arena_at(d->world, pointer, &owner);

  if (a == NULL || owner == d->rank) return false;
  expect(a->n_mapped[d->rank] > 0);
  return true;
}

static inline xfer_status told_batch_launch(xfi_device *device, xfi_batch *batch,
                                            xfer_stream stream, xfi_event *turn)
{
  told_device *d = told(device);
  const told_batch *b = (const told_batch *)batch;

  uint64_t n_bytes = 0;

  (void)pthread_mutex_lock(&d->world->lock);
  for (size_t i = 0; i < b->n_copies; i++)
    if (is_of_peer(d, b->copies[i].src) || is_of_peer(d, b->copies[i].dst))
      n_bytes += (uint64_t)xfi_copy_bytes(&b->copies[i]);
  (void)pthread_mutex_unlock(&d->world->lock);
  if (d->launch_fails && n_bytes > 0) {
    xfi_set_error("the copies of rank %d cannot be launched", d->rank);
    return XFER_ERR_CUDA;
  }
  d->peer_bytes += n_bytes;
  return host_ops->batch_launch(device, b->made, stream, turn);
}

static inline told_device *told_device_create(world *w, int rank)
{
  told_device *d = xfi_calloc(1, sizeof *d); /* the host's destroy() frees it */
  xfi_device *host = NULL;

  if (d == NULL || xfi_device_create_host(&host) != XFER_OK) abort();
  host_ops = host->ops;
  told_ops = *host_ops;
  told_ops.is_synchronous = false;
  told_ops.find_allocation = told_find_allocation;
  told_ops.find_changed = told_find_changed;
  told_ops.domain = told_domain;
  told_ops.mem_export = told_mem_export;
  told_ops.mem_import = told_mem_import;
  told_ops.mem_unimport = told_mem_unimport;
  told_ops.exports_end = told_exports_end;
  told_ops.batch_create = told_batch_create;
  told_ops.batch_copies = NULL; /* as GPUs have it */
  told_ops.batch_destroy = told_batch_destroy;
  told_ops.batch_launch = told_batch_launch;
  host->ops->destroy(host);
  *d = (told_device){
      .base = {.ops = &told_ops, .one_batch_bytes = UINT64_MAX}, .world = w, .rank = rank};
  return d;
}

#endif
