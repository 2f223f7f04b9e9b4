/*
 * Registered memory: each rank's allocation is mapped by all that can, once, and stays mapped, so
 * that the commit of a kept plan finds the mapping there.
 */
#include <string.h>

#include "alloc.h"
#include "error.h"
#include "object.h"
#include "trace.h"
#include "vec.h"

/* What a rank tells the others when it registers memory. */
typedef struct offer {
  unsigned char domain[64];
  xfi_mem_handle handle;
  uint64_t has_memory;
} offer;

static xfer_status make_offer(offer *mine, xfi_registered *entry, const xfer_comm *comm,
                              void *memory)
{
  const xfi_device_ops *dev = comm->device->ops;
  xfi_allocation found = {.base = NULL};

  memset(mine, 0, sizeof *mine);
  dev->domain(comm->device, mine->domain);
  entry->memory = memory;
  if (memory == NULL) return XFER_OK;
  XFI_TRY(dev->find_allocation(comm->device, memory, 1, &found));
  entry->id = found.id;
  XFI_TRY(dev->mem_export(comm->device, found, &mine->handle));
  mine->has_memory = true; /* where nobody can map it kept plans go through slots */
  return XFER_OK;
}

static xfer_status map_offers(xfi_registered *entry, const xfer_comm *comm, const offer *all,
                              const offer *mine, xfi_deadline deadline)
{
  const xfi_comm *t = comm->transport;

  entry->mapped = xfi_calloc((size_t)t->size, sizeof *entry->mapped);
  XFI_CHECK(entry->mapped != NULL, XFER_ERR_NOMEM, "%d ranks", t->size);
  for (int r = 0; r < t->size; r++) {
    xfer_status st;

    if (r == t->rank || all[r].has_memory == 0) continue;
    if (memcmp(all[r].domain, mine->domain, sizeof mine->domain) != 0) continue;
    st = comm->device->ops->mem_import(comm->device, &all[r].handle,
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

static xfer_status register_memory(xfer_comm *comm, void *memory)
{
  const xfi_deadline deadline = xfi_comm_deadline(comm);
  xfer_status st = XFER_OK;
  xfi_registered entry = {NULL, 0, NULL, 0};
  offer mine;
  offer *all = NULL;

  st = xfi_comm_refused(comm->transport, make_offer(&mine, &entry, comm, memory));
  if (st == XFER_OK)
    st = xfi_vec_reserve(&comm->registered, &comm->registered_capacity, comm->n_registered + 1,
                         sizeof *comm->registered);
  all = xfi_comm_agree_gather(comm->transport, &st, &mine, sizeof mine, deadline);
  XFI_TRY_DONE(st);
  st = map_offers(&entry, comm, all, &mine, deadline);
  XFI_TRY_DONE(xfi_comm_agree(comm->transport, st, deadline));
  comm->registered[comm->n_registered++] = entry;
  entry = (xfi_registered){NULL, 0, NULL, 0};
done:
  if (comm->device->ops->exports_end != NULL) comm->device->ops->exports_end(comm->device);
  close_entry(&entry, comm->device);
  xfi_free(all);
  return st;
}

xfer_status xfer_comm_register(xfer_comm *comm, void *memory)
{
  xfer_status st = XFER_OK;
  xfi_entered before;
  xfi_span span;

  XFI_NEED(comm);
  xfi_device_enter(comm->device, &before);
  span = xfi_span_begin(XFI_SYS_COMM, comm->transport->rank, XFI_TRACK_CALLS, "xfer_comm_register");
  comm->transport->inside = XFI_INSIDE_REGISTER;
  st = register_memory(comm, memory);
  xfi_span_end(&span, st, "%d ranks", comm->transport->size);
  xfi_device_leave(comm->device, &before);
  return st;
}

/* mine[i]: did this rank name `memory` in the i-th call that is not undone? */
static xfer_status list_matches(unsigned char **mine, const xfer_comm *comm, const void *memory)
{
  const size_t n = comm->n_registered;
  bool any = false;

  *mine = xfi_calloc(n, sizeof **mine);
  XFI_CHECK(*mine != NULL, XFER_ERR_NOMEM, "%zu registrations", n);
  for (size_t i = 0; i < n; i++) {
    (*mine)[i] = comm->registered[i].memory == memory;
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
static xfer_status find_call(size_t *call, xfer_comm *comm, const unsigned char *mine,
                             xfi_deadline deadline)
{
  const size_t n = comm->n_registered;
  const int n_ranks = comm->transport->size;
  xfer_status st = XFER_OK;
  unsigned char *all = xfi_comm_agree_gather(comm->transport, &st, mine, n, deadline);

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

static xfer_status unregister_memory(xfer_comm *comm, void *memory)
{
  const xfi_deadline deadline = xfi_comm_deadline(comm);
  xfer_status st = XFER_OK;
  unsigned char *mine = NULL;
  size_t i = 0;

  st = xfi_comm_refused(comm->transport, list_matches(&mine, comm, memory));
  XFI_TRY_DONE(xfi_comm_agree(comm->transport, st, deadline));
  XFI_TRY_DONE(find_call(&i, comm, mine, deadline));
  st = xfi_kept_forget_all(comm); /* they may map it too */
  close_entry(&comm->registered[i], comm->device);
  comm->n_registered--;
  memmove(&comm->registered[i], &comm->registered[i + 1],
          (comm->n_registered - i) * sizeof *comm->registered);
  st = xfi_comm_agree(comm->transport, st, deadline); /* nobody maps our memory any more */
done:
  xfi_free(mine);
  return st;
}

xfer_status xfer_comm_unregister(xfer_comm *comm, void *memory)
{
  xfer_status st = XFER_OK;

  XFI_NEED(comm);
  comm->transport->inside = XFI_INSIDE_UNREGISTER;
  XFI_ON_DEVICE(comm->device, st = unregister_memory(comm, memory));
  return st;
}

void xfi_comm_free_registered(xfer_comm *comm)
{
  for (size_t i = 0; i < comm->n_registered; i++)
    close_entry(&comm->registered[i], comm->device);
  xfi_free(comm->registered);
}

static bool is_registered(const xfer_comm *comm, const void *pointer)
{
  xfi_allocation found = {.base = NULL};

  if (comm->device->ops->find_allocation(comm->device, pointer, 1, &found) != XFER_OK) return false;
  for (size_t i = 0; i < comm->n_registered; i++)
    if (comm->registered[i].memory != NULL && comm->registered[i].id == found.id) return true;
  return false;
}

bool xfi_comm_is_registered(const xfer_comm *comm, const xfer_view *view)
{
  if (comm->device->ops->is_synchronous || view == NULL) return true;
  if (view->kind < XFER_VIEW_PIECES) return view->base == NULL || is_registered(comm, view->base);
  for (int64_t p = 0; view->pieces != NULL && p < view->n_pieces; p++)
    if (view->pieces[p] != NULL && !is_registered(comm, view->pieces[p])) return false;
  return true;
}
