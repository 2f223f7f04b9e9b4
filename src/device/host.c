/*
 * Host memory behind the table of device.h: the calling thread does all work itself, so there are
 * no streams and no events. A device may be used by several threads, which are ranks of one
 * process.
 *
 * Such ranks share their memory, so nothing has to be done to map a peer's: the whole address space
 * counts as one allocation. Its handle is the domain, which is another one in another process.
 *
 * Flags: a waiter yields a few times, and then sleeps on the low half of the word, which changes
 * whenever the flag does (a flag grows by far less than 2^32 at a time). Whoever sets a flag makes
 * the system call that wakes others only if somebody sleeps. Sleepers are counted for the whole
 * process, by buckets of flag addresses.
 */
#include "device.h"

#include "alloc.h"
#include "error.h"
#include "futex.h"
#include "process.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* Where the one allocation begins. No object lies below this address, and it is no null pointer,
 * from which no offset could be taken. */
#define SPACE_BASE ((uintptr_t)4096)

/* Large enough that ranks seldom wait for each other, small enough that a slot is still in a cache
 * when it is copied on and unpacked: 512 KiB to 2 MiB are equally good on cores with 512 KiB of
 * their own. */
#define WINDOW_BYTES ((uint64_t)1 << 20)
#define STAGING_BYTES ((uint64_t)64 << 20)

enum { YIELDS = 8, BUCKETS = 64 };

struct xfi_batch {
  size_t n_copies;
  xfi_copy *copies;
};

/* Boxes that kernels/ref adds up when it is launched. */
struct xfi_digest {
  xfi_digest_box *boxes;
  size_t n_boxes;
  xfi_sum *sums;
  size_t n_sums;
};

/* ---- memory ------------------------------------------------------------------------------- */

static void host_destroy(xfi_device *device)
{
  xfi_free(device);
}

static xfer_status host_memory(void **memory, size_t n_bytes)
{
  void *made = xfi_calloc(n_bytes, 1);
  if (made == NULL) return XFI_NO_MEMORY("%zu bytes on the host", n_bytes);
  *memory = made;
  return XFER_OK;
}

static xfer_status host_alloc(xfi_device *device, void **memory, size_t n_bytes)
{
  (void)device;
  return host_memory(memory, n_bytes);
}

static void host_free(xfi_device *device, void *memory)
{
  (void)device;
  xfi_free(memory);
}

static xfer_status host_find_allocation(xfi_device *device, const void *pointer, size_t n_bytes,
                                        xfi_allocation *found)
{
  (void)device, (void)pointer, (void)n_bytes;
  *found = (xfi_allocation){.base = (void *)SPACE_BASE, .n_bytes = SIZE_MAX - SPACE_BASE, .id = 0};
  return XFER_OK;
}

/* ---- batches ------------------------------------------------------------------------------ */

static void host_batch_destroy(xfi_device *device, xfi_batch *batch)
{
  (void)device;
  if (batch == NULL) return;
  xfi_free(batch->copies);
  xfi_free(batch);
}

/* Batches here need no guard: if a wait fails it returns an error, and nothing is launched after.
 */
static xfer_status host_batch_create(xfi_device *device, xfi_batch **out,
                                     const xfi_batch_spec *spec)
{
  const size_t n_copies = spec->n_copies;
  xfer_status st = XFER_OK;
  xfi_batch *batch = NULL;

  host_batch_destroy(device, *out);
  *out = NULL;
  batch = xfi_calloc(1, sizeof *batch);
  XFI_CHECK_DONE(batch != NULL, XFER_ERR_NOMEM, "a batch of %zu copies", n_copies);
  batch->copies = xfi_calloc(n_copies, sizeof *batch->copies);
  XFI_CHECK_DONE(batch->copies != NULL, XFER_ERR_NOMEM, "%zu copies of a batch", n_copies);
  batch->n_copies = n_copies;
  for (size_t i = 0; i < n_copies; i++) {
    batch->copies[i] = spec->copies[i];
    xfi_copy_simplify(&batch->copies[i]);
  }
  *out = batch;
  batch = NULL;
done:
  host_batch_destroy(device, batch);
  return st;
}

static xfi_copy *host_batch_copies(xfi_batch *batch)
{
  return batch->copies;
}

static xfer_status host_batch_launch(xfi_device *device, xfi_batch *batch, xfer_stream stream,
                                     xfi_event *turn)
{
  (void)device, (void)stream, (void)turn;
  xfi_ref_copy(batch->copies, batch->n_copies);
  return XFER_OK;
}

/* ---- digests ------------------------------------------------------------------------------ */

static void host_digest_destroy(xfi_device *device, xfi_digest *digest)
{
  (void)device;
  if (digest == NULL) return;
  xfi_free(digest->boxes);
  xfi_free(digest->sums);
  xfi_free(digest);
}

static xfer_status host_digest_create(xfi_device *device, xfi_digest **digest,
                                      const xfi_digest_box *boxes, size_t n_boxes, size_t n_sums)
{
  xfer_status st = XFER_OK;
  xfi_digest *made = xfi_calloc(1, sizeof *made);

  XFI_CHECK_DONE(made != NULL, XFER_ERR_NOMEM, "a digest of %zu boxes", n_boxes);
  made->boxes = xfi_calloc(n_boxes, sizeof *made->boxes);
  made->sums = xfi_calloc(n_sums, sizeof *made->sums);
  XFI_CHECK_DONE(made->boxes != NULL && made->sums != NULL, XFER_ERR_NOMEM, "a digest of %zu boxes",
                 n_boxes);
  made->n_boxes = n_boxes;
  made->n_sums = n_sums;
  for (size_t i = 0; i < n_boxes; i++) {
    made->boxes[i] = boxes[i];
    xfi_copy_simplify(&made->boxes[i].copy);
  }
  *digest = made;
  made = NULL;
done:
  host_digest_destroy(device, made);
  return st;
}

static xfer_status host_digest_launch(xfi_device *device, xfi_digest *digest, xfer_stream stream)
{
  (void)device, (void)stream;
  memset(digest->sums, 0, digest->n_sums * sizeof *digest->sums);
  xfi_ref_digest(digest->sums, digest->boxes, digest->n_boxes);
  return XFER_OK;
}

static const xfi_sum *host_digest_sums(const xfi_digest *digest)
{
  return digest->sums;
}

/* ---- peers' memory ------------------------------------------------------------------------ */

/* Equal for the threads of one process only. It takes both numbers: processes of different
 * namespaces may have the same pid, and children that fork() did not make have the process number
 * of their parent. */
static void host_domain(xfi_device *device, unsigned char domain[64])
{
  const uint64_t own[] = {(uint64_t)getpid(), xfi_process_number()};

  (void)device;
  memset(domain, 0, 64);
  memcpy(domain, own, sizeof own);
}

static xfer_status host_mem_export(xfi_device *device, xfi_allocation allocation,
                                   xfi_mem_handle *out)
{
  (void)allocation;
  *out = (xfi_mem_handle){{0}};
  host_domain(device, out->bytes);
  return XFER_OK;
}

static xfer_status host_mem_import(xfi_device *device, const xfi_mem_handle *in,
                                   xfi_mapping **mapping, xfi_deadline deadline)
{
  static xfi_mapping space = {(char *)SPACE_BASE};
  unsigned char own[64];

  (void)deadline;
  host_domain(device, own);
  XFI_CHECK(memcmp(in->bytes, own, sizeof own) == 0, XFER_ERR_UNSUPPORTED,
            "the memory of another process cannot be mapped by the host device");
  *mapping = &space;
  return XFER_OK;
}

static void host_mem_unimport(xfi_device *device, xfi_mapping *mapping)
{
  (void)device, (void)mapping;
}

/* ---- flags -------------------------------------------------------------------------------- */

/* A page of flags. Peers are threads that may write to it after its owner is gone, so whoever uses
 * it last frees it. And its owner may have failed and freed it just before a peer wants to share
 * it, so the peer looks for it in the list of live pages. */
typedef struct page {
  struct page *next;
  int n_owners;
  char pad[64 - sizeof(struct page *) - sizeof(int)];
  uint64_t flags[];
} page;

static pthread_mutex_t pages_lock = PTHREAD_MUTEX_INITIALIZER; /* of all below, and n_owners */
static page *pages;
static pthread_once_t pages_once = PTHREAD_ONCE_INIT;

static void lock_pages(void)
{
  (void)pthread_mutex_lock(&pages_lock);
}

static void unlock_pages(void)
{
  (void)pthread_mutex_unlock(&pages_lock);
}

/* A forked child can free its parent's pages, whatever other threads did at the fork. */
static void begin_pages(void)
{
  (void)pthread_atfork(lock_pages, unlock_pages, unlock_pages);
}

/* The pointer of the list that leads to the page of these flags; it is NULL if the page is gone. */
static page **find_page(const uint64_t *flags)
{
  page **at = &pages;

  while (*at != NULL && (*at)->flags != flags)
    at = &(*at)->next;
  return at;
}

static xfer_status host_flags_alloc(xfi_device *device, uint64_t **flags, size_t n_flags,
                                    bool by_streams)
{
  page *made = NULL;

  (void)device, (void)by_streams;
  XFI_CHECK(n_flags <= (SIZE_MAX - sizeof *made) / sizeof **flags, XFER_ERR_OVERFLOW, "%zu flags",
            n_flags);
  made = xfi_calloc(1, sizeof *made + n_flags * sizeof **flags);
  XFI_CHECK(made != NULL, XFER_ERR_NOMEM, "%zu flags", n_flags);
  made->n_owners = 1;
  (void)pthread_once(&pages_once, begin_pages);
  lock_pages();
  made->next = pages;
  pages = made;
  unlock_pages();
  *flags = made->flags;
  return XFER_OK;
}

static bool host_flags_share(xfi_device *device, uint64_t *flags)
{
  page *found = NULL;

  (void)device;
  lock_pages();
  found = *find_page(flags);
  if (found != NULL) found->n_owners++;
  unlock_pages();
  return found != NULL;
}

static void host_flags_free(xfi_device *device, uint64_t *flags)
{
  page **at = NULL;
  page *last = NULL;

  (void)device;
  lock_pages();
  at = find_page(flags);
  if (*at != NULL && --(*at)->n_owners == 0) {
    last = *at;
    *at = last->next;
  }
  unlock_pages();
  xfi_free(last);
}

static _Atomic uint32_t n_sleepers[BUCKETS];

static _Atomic uint32_t *sleepers_at(const uint64_t *flag)
{
  return &n_sleepers[((uintptr_t)flag / 64 + (uintptr_t)flag / 4096) % BUCKETS];
}

static _Atomic uint64_t *as_atomic(uint64_t *flag)
{
  return (_Atomic uint64_t *)flag;
}

static const _Atomic uint32_t *low_half(const uint64_t *flag)
{
  return (const _Atomic uint32_t *)flag + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

static void host_flags_store(xfi_device *device, uint64_t *flag, uint64_t value)
{
  (void)device;
  /* Both are sequentially consistent: either this thread sees the sleeper, or that sees the value.
   */
  atomic_store(as_atomic(flag), value);
  if (atomic_load(sleepers_at(flag)) != 0) xfi_futex_wake_all(low_half(flag), XFI_FUTEX_OWN);
}

static xfer_status host_flags_set(xfi_device *device, const xfi_flags *set, const xfi_guard *guard,
                                  uint64_t value, xfer_stream stream)
{
  (void)guard, (void)stream;
  for (int i = 0; i < set->n; i++)
    host_flags_store(device, set->at[i], value);
  return XFER_OK;
}

/* Wait until the flag is at least `value`. False: the deadline has passed. */
static bool flag_wait(uint64_t *flag, uint64_t value, xfi_deadline deadline)
{
  for (int yields = 0;; yields++) {
    uint64_t seen = atomic_load_explicit(as_atomic(flag), memory_order_acquire);
    if (seen >= value) return true;
    if (yields < YIELDS) {
      (void)sched_yield();
      continue;
    }
    if (xfi_deadline_expired(deadline)) return false;
    (void)atomic_fetch_add(sleepers_at(flag), 1);
    seen = atomic_load(as_atomic(flag));
    if (seen < value) xfi_futex_wait(low_half(flag), (uint32_t)seen, deadline, XFI_FUTEX_OWN);
    (void)atomic_fetch_sub(sleepers_at(flag), 1);
  }
}

static xfer_status host_flags_sync(xfi_device *device, const xfi_flags *set, const xfi_flags *wait,
                                   uint64_t value, xfer_stream stream, xfi_deadline deadline,
                                   int *late)
{
  (void)host_flags_set(device, set, NULL, value, stream);
  for (int i = 0; i < wait->n; i++) {
    if (flag_wait(wait->at[i], value, deadline)) continue;
    *late = i;
    return XFI_ERROR(XFER_ERR_TIMEOUT, "flag %d of %d is %llu and did not become %llu before %s", i,
                     wait->n, (unsigned long long)atomic_load(as_atomic(wait->at[i])),
                     (unsigned long long)value, xfi_deadline_end(deadline));
  }
  return XFER_OK;
}

/* ---- the device --------------------------------------------------------------------------- */

static const xfi_device_ops host_ops = {
    .is_synchronous = true,
    .n_copy_streams = 1,
    .default_staging_bytes = STAGING_BYTES,
    .default_window_bytes = WINDOW_BYTES,
    .destroy = host_destroy,
    .alloc = host_alloc,
    .free = host_free,
    .host_memory = {host_memory, xfi_free},
    .find_allocation = host_find_allocation,
    .batch_create = host_batch_create,
    .batch_destroy = host_batch_destroy,
    .batch_launch = host_batch_launch,
    .batch_copies = host_batch_copies,
    .digest_create = host_digest_create,
    .digest_destroy = host_digest_destroy,
    .digest_launch = host_digest_launch,
    .digest_sums = host_digest_sums,
    .domain = host_domain,
    .mem_export = host_mem_export,
    .mem_import = host_mem_import,
    .mem_unimport = host_mem_unimport,
    .flags_alloc = host_flags_alloc,
    .flags_free = host_flags_free,
    .flags_share = host_flags_share,
    .flags_sync = host_flags_sync,
    .flags_set = host_flags_set,
    .flags_store = host_flags_store,
};

xfer_status xfi_device_create_host(xfi_device **device)
{
  xfi_device *made = xfi_calloc(1, sizeof *made);
  if (made == NULL) return XFI_NO_MEMORY("a host device");
  made->ops = &host_ops;
  *device = made;
  return XFER_OK;
}
