/*
 * Registered memory: each rank's allocation is mapped by all that can, once, and stays mapped, so
 * that the commit of a cached plan finds the mapping there.
 */
#include "registry.h"

#include <string.h>

#include "alloc.h"
#include "error.h"
#include "vec.h"

/* What a rank tells the others when it registers memory. */
typedef struct offer {
  unsigned char domain[64];
  xfi_mem_handle handle;
  uint64_t has_memory;
} offer;

static xfer_status make_offer(offer *mine, xfi_registered *entry, const xfi_registry *registry,
                              void *memory)
{
  const xfi_device_ops *dev = registry->plans->device->ops;
  xfi_allocation found = {.base = NULL};

  memset(mine, 0, sizeof *mine);
  dev->domain(registry->plans->device, mine->domain);
  entry->memory = memory;
  if (memory == NULL) return XFER_OK;
  XFI_TRY(dev->find_allocation(registry->plans->device, memory, 1, &found));
  entry->id = found.id;
  XFI_TRY(dev->mem_export(registry->plans->device, found, &mine->handle));
  mine->has_memory = true; /* where nobody can map it cached plans use slots */
  return XFER_OK;
}

static xfer_status map_offers(xfi_registered *entry, const xfi_registry *registry, const offer *all,
                              const offer *mine, xfi_deadline deadline)
{
  const xfi_comm *t = registry->plans->comm;

  entry->mapped = xfi_calloc((size_t)t->size, sizeof *entry->mapped);
  XFI_CHECK(entry->mapped != NULL, XFER_ERR_NOMEM, "%d ranks", t->size);
  for (int r = 0; r < t->size; r++) {
    xfer_status st;

    if (r == t->rank || all[r].has_memory == 0) continue;
    if (memcmp(all[r].domain, mine->domain, sizeof mine->domain) != 0) continue;
    st = registry->plans->device->ops->mem_import(registry->plans->device, &all[r].handle,
                                                  &entry->mapped[entry->n_mapped], deadline);
    if (st == XFER_OK) entry->n_mapped++;
    if (st != XFER_ERR_UNSUPPORTED) XFI_TRY(st);
  }
  return XFER_OK;
}

static void close_entry(xfi_registered *entry, xfi_device *device)
{
  for (int i = 0; i < entry->n_mapped; i++)
    device->ops->mem_unimport(device, entry->mapped[i]);
  xfi_free(entry->mapped);
  memset(entry, 0, sizeof *entry);
}

xfer_status xfi_registry_add(xfi_registry *registry, void *memory, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  xfi_registered entry = {NULL, 0, NULL, 0};
  offer mine;
  offer *all = NULL;

  st = xfi_comm_refused(registry->plans->comm, make_offer(&mine, &entry, registry, memory));
  if (st == XFER_OK)
    st = xfi_vec_reserve(&registry->at, &registry->capacity, registry->n + 1, sizeof *registry->at);
  all = xfi_comm_agree_gather(registry->plans->comm, &st, &mine, sizeof mine, deadline);
  XFI_TRY_DONE(st);
  st = map_offers(&entry, registry, all, &mine, deadline);
  XFI_TRY_DONE(xfi_comm_agree(registry->plans->comm, st, deadline));
  registry->at[registry->n++] = entry;
  entry = (xfi_registered){NULL, 0, NULL, 0};
done:
  if (registry->plans->device->ops->exports_end != NULL)
    registry->plans->device->ops->exports_end(registry->plans->device);
  close_entry(&entry, registry->plans->device);
  xfi_free(all);
  return st;
}

/* mine[i]: did this rank name `memory` in the i-th call that is not undone? */
static xfer_status list_matches(unsigned char **mine, const xfi_registry *registry,
                                const void *memory)
{
  const size_t n = registry->n;
  bool any = false;

  *mine = xfi_calloc(n, sizeof **mine);
  XFI_CHECK(*mine != NULL, XFER_ERR_NOMEM, "%zu registrations", n);
  for (size_t i = 0; i < n; i++) {
    (*mine)[i] = registry->at[i].memory == memory;
    any = any || (*mine)[i] != 0;
  }
  XFI_CHECK(any || memory != NULL, XFER_ERR_ARG,
            "xfer_comm_unregister: in none of %zu calls that are not undone did this rank register "
            "NULL; name the memory that it registered",
            n);
  XFI_CHECK(any, XFER_ERR_ARG,
            "xfer_comm_unregister: %p was not registered; name the address that "
            "xfer_comm_register() was given, once for each call",
            memory);
  return XFER_OK;
}

/* The first call in which every rank named what it names now. Lists are the same length and in the
 * same order everywhere. */
static xfer_status find_call(size_t *call, xfi_registry *registry, const unsigned char *mine,
                             xfi_deadline deadline)
{
  const size_t n = registry->n;
  const int n_ranks = registry->plans->comm->size;
  xfer_status st = XFER_OK;
  unsigned char *all = xfi_comm_agree_gather(registry->plans->comm, &st, mine, n, deadline);

  XFI_TRY_DONE(st);
  for (*call = 0; *call < n; ++*call) {
    int r = 0;

    while (r < n_ranks && all[(size_t)r * n + *call] != 0)
      r++;
    if (r == n_ranks) break;
  }
  XFI_CHECK_DONE(*call < n, XFER_ERR_MISMATCH,
                 "xfer_comm_unregister: in none of %zu calls did every rank register what it names "
                 "now; undo the same call on all ranks",
                 n);
done:
  xfi_free(all);
  return st;
}

xfer_status xfi_registry_remove(xfi_registry *registry, void *memory, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  unsigned char *mine = NULL;
  size_t i = 0;

  st = xfi_comm_refused(registry->plans->comm, list_matches(&mine, registry, memory));
  XFI_TRY_DONE(xfi_comm_agree(registry->plans->comm, st, deadline));
  XFI_TRY_DONE(find_call(&i, registry, mine, deadline));
  st = xfi_cache_clear(registry->cache); /* they may map it too */
  close_entry(&registry->at[i], registry->plans->device);
  registry->n--;
  memmove(&registry->at[i], &registry->at[i + 1], (registry->n - i) * sizeof *registry->at);
  st = xfi_comm_agree(registry->plans->comm, st, deadline); /* nobody maps our memory any more */
done:
  xfi_free(mine);
  return st;
}

void xfi_registry_free(xfi_registry *registry)
{
  for (size_t i = 0; i < registry->n; i++)
    close_entry(&registry->at[i], registry->plans->device);
  xfi_free(registry->at);
}

static bool is_registered(const xfi_registry *registry, const void *pointer)
{
  xfi_allocation found = {.base = NULL};

  if (registry->plans->device->ops->find_allocation(registry->plans->device, pointer, 1, &found) !=
      XFER_OK)
    return false;
  for (size_t i = 0; i < registry->n; i++)
    if (registry->at[i].memory != NULL && registry->at[i].id == found.id) return true;
  return false;
}

bool xfi_registry_covers(const xfi_registry *registry, const xfer_view *view)
{
  if (registry->plans->device->ops->is_synchronous || view == NULL) return true;
  if (view->kind < XFER_VIEW_PIECES)
    return view->base == NULL || is_registered(registry, view->base);
  for (int64_t p = 0; view->pieces != NULL && p < view->n_pieces; p++)
    if (view->pieces[p] != NULL && !is_registered(registry, view->pieces[p])) return false;
  return true;
}
