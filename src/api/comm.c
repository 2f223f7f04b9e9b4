/*
 * The public functions of comms: they check arguments and call the transport or the device. A comm
 * that is destroyed while it has plans ends with the last of them.
 */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "object.h"
#include "run_abort.h"
#include "trace.h"

xfer_status xfi_comm_wrap(xfer_comm **comm, xfi_comm *transport, xfi_device *device)
{
  xfer_comm *c = xfi_calloc(1, sizeof *c);
  xfi_span span;

  if (c == NULL) device->ops->destroy(device);
  XFI_CHECK(c != NULL, XFER_ERR_NOMEM, "comm");
  c->transport = transport;
  c->device = device;
  c->plans.comm = transport;
  c->plans.device = device;
  c->plans.timeout_ms = XFI_DEFAULT_TIMEOUT_MS;
  c->cache.plans = c->registry.plans = &c->plans;
  c->registry.cache = &c->cache;
  *comm = c;
  span = xfi_span_begin(XFI_SYS_COMM, transport->rank, XFI_TRACK_CALLS, "comm");
  xfi_span_end(&span, XFER_OK, "%d ranks, xfer %s", transport->size, xfer_version());
  return XFER_OK;
}

/* Wrap a transport with a host device; on failure it stays the caller's. */
static xfer_status wrap_on_host(xfer_comm **comm, xfi_comm *transport)
{
  xfi_device *device = NULL;

  XFI_TRY(xfi_device_create_host(&device));
  return xfi_comm_wrap(comm, transport, device);
}

xfer_status xfer_comm_create_local(xfer_comm **comms, int n_ranks)
{
  xfer_status st = XFER_OK;
  xfi_comm **transports = NULL;
  xfer_comm **made = NULL;
  int n = 0;

  XFI_NEED(comms);
  XFI_CHECK_DONE(n_ranks >= 1, XFER_ERR_ARG, "a comm of %d ranks; at least 1 is needed", n_ranks);
  transports = xfi_calloc((size_t)n_ranks, sizeof *transports);
  made = xfi_calloc((size_t)n_ranks, sizeof *made);
  XFI_CHECK_DONE(transports != NULL && made != NULL, XFER_ERR_NOMEM, "a comm of %d ranks", n_ranks);
  XFI_TRY_DONE(xfi_comm_create_local(transports, n_ranks));
  for (; n < n_ranks; n++) {
    XFI_TRY_DONE(wrap_on_host(&made[n], transports[n]));
    transports[n] = NULL;
  }
  memcpy(comms, made, (size_t)n_ranks * sizeof *made);
  memset(made, 0, (size_t)n_ranks * sizeof *made);
done:
  for (int r = 0; r < n_ranks && transports != NULL && made != NULL; r++) {
    if (transports[r] != NULL) transports[r]->ops->destroy(transports[r]);
    xfer_comm_destroy(made[r]);
  }
  xfi_free(transports);
  xfi_free(made);
  return st;
}

xfer_status xfi_comm_bootstrap(xfer_comm **comm, xfer_all_gather_fn all_gather, void *context,
                               int rank, int size, xfer_status (*make)(xfi_device **device),
                               bool control_only)
{
  xfer_status st = XFER_OK;
  xfi_comm *transport = NULL;
  xfi_device *device = NULL;
  xfer_comm *made = NULL;

  XFI_CHECK_DONE(size >= 1 && rank >= 0 && rank < size, XFER_ERR_ARG,
                 "rank %d of %d: ranks are 0 to size - 1, and size is at least 1", rank, size);
  XFI_TRY_DONE(xfi_comm_create_host(&transport, all_gather, context, rank, size, control_only));
  st = make(&device);
  if (st == XFER_OK) st = xfi_comm_wrap(&made, transport, device);
  XFI_TRY_DONE(xfi_comm_agree(transport, st, xfi_deadline_after(XFI_DEFAULT_TIMEOUT_MS)));
  *comm = made;
  return XFER_OK;
done:
  if (made == NULL && transport != NULL) transport->ops->destroy(transport);
  xfer_comm_destroy(made);
  return st;
}

xfer_status xfer_comm_create_host(xfer_comm **comm, xfer_all_gather_fn all_gather, void *context,
                                  int rank, int size)
{
  XFI_NEED(comm);
  XFI_NEED(all_gather);
  return xfi_comm_bootstrap(comm, all_gather, context, rank, size, xfi_device_create_host, false);
}

static void end(xfer_comm *comm)
{
  xfi_entered before;

  xfi_device_enter(comm->device, &before);
  comm->plans.is_ending = true;
  xfi_cache_free(&comm->cache);
  xfi_registry_free(&comm->registry);
  comm->transport->ops->destroy(comm->transport);
  xfi_device_leave(comm->device, &before);
  comm->device->ops->destroy(comm->device);
  xfi_free(comm);
}

static xfer_comm *comm_of(xfi_plans *plans)
{
  return (xfer_comm *)(void *)((char *)plans - offsetof(xfer_comm, plans));
}

void xfi_comm_enter(xfi_plans *plans, const xfer_plan *plan, xfi_inside call)
{
  plans->comm->inside = call;
  if (plan != NULL) plans->comm->plan = plan->number;
  xfi_run_announce(plans, plan);
}

void xfi_comm_count_plan(xfi_plans *plans)
{
  comm_of(plans)->n_plans++;
}

void xfi_comm_lost_plan(xfi_plans *plans)
{
  if (plans == NULL) return;
  comm_of(plans)->n_plans--;
  if (comm_of(plans)->n_plans == 0 && comm_of(plans)->is_given_back) end(comm_of(plans));
}

void xfer_comm_destroy(xfer_comm *comm)
{
  if (comm == NULL) return;
  if (comm->n_plans > 0)
    comm->is_given_back = true; /* else its plans would use what is gone */
  else
    end(comm);
}

int xfer_comm_rank(const xfer_comm *comm)
{
  return comm == NULL ? -1 : comm->transport->rank;
}

int xfer_comm_size(const xfer_comm *comm)
{
  return comm == NULL ? 0 : comm->transport->size;
}

xfer_status xfer_comm_set_timeout(xfer_comm *comm, uint64_t timeout_ms)
{
  XFI_NEED(comm);
  XFI_CHECK(timeout_ms <= INT64_MAX, XFER_ERR_ARG, "timeout of %llu ms, above 2^63 - 1",
            (unsigned long long)timeout_ms);
  xfi_cache_set_timeout(&comm->cache, timeout_ms == 0 ? XFI_DEFAULT_TIMEOUT_MS : timeout_ms);
  return XFER_OK;
}

xfer_status xfer_comm_set_staging(xfer_comm *comm, xfer_alloc_fn alloc, xfer_free_fn free,
                                  void *context)
{
  XFI_NEED(comm);
  XFI_NEED_WHERE(free != NULL, alloc);
  XFI_NEED_WHERE(alloc != NULL, free);
  comm->plans.allocator = (xfi_allocator){alloc, free, context};
  return XFER_OK;
}

xfer_status xfer_comm_refuse(xfer_comm *comm, const char *why)
{
  XFI_NEED(comm);
  XFI_NEED(why);
  comm->transport->refuses = true;
  (void)snprintf(comm->transport->refusal, sizeof comm->transport->refusal, "%s", xfi_reason(why));
  return XFER_OK;
}

xfer_status xfer_comm_check(xfer_comm *comm)
{
  xfer_status st = XFER_OK;
  xfi_entered before;

  XFI_NEED(comm);
  xfi_device_enter(comm->device, &before);
  st = comm->transport->ops->check(comm->transport);
  if (st == XFER_OK) st = xfi_cache_check(&comm->cache);
  xfi_device_leave(comm->device, &before);
  return st;
}

static xfer_status check_gathering(const xfi_comm *transport, const void *all, const void *mine,
                                   size_t n_bytes)
{
  size_t n_all;

  XFI_NEED_IN("xfer_comm_all_gather", n_bytes > 0, all);
  XFI_NEED_IN("xfer_comm_all_gather", n_bytes > 0, mine);
  XFI_CHECK(xfi_mul_fits((size_t)transport->size, n_bytes, &n_all) && n_all <= PTRDIFF_MAX,
            XFER_ERR_OVERFLOW, "all-gather of %zu bytes of each of %d ranks", n_bytes,
            transport->size);
  return XFER_OK;
}

xfer_status xfer_comm_all_gather(xfer_comm *comm, void *all, const void *mine, size_t n_bytes)
{
  xfer_status st = XFER_OK;
  xfi_comm *transport;
  xfi_entered before;

  XFI_NEED(comm);
  transport = comm->transport;
  xfi_device_enter(comm->device, &before);
  st = check_gathering(transport, all, mine, n_bytes);
  xfi_comm_enter(&comm->plans, NULL, XFI_INSIDE_ALL_GATHER);
  if (st == XFER_OK)
    st = transport->ops->all_gather(transport, all, mine, n_bytes, xfi_comm_deadline(comm));
  else
    xfi_comm_decline(transport, xfi_comm_deadline(comm)); /* the others wait in that gathering */
  transport->inside = XFI_INSIDE_ANOTHER;
  xfi_device_leave(comm->device, &before);
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
  xfi_comm_enter(&comm->plans, NULL, XFI_INSIDE_REGISTER);
  st = xfi_registry_add(&comm->registry, memory, xfi_comm_deadline(comm));
  xfi_span_end(&span, st, "%d ranks", comm->transport->size);
  xfi_device_leave(comm->device, &before);
  return st;
}

xfer_status xfer_comm_unregister(xfer_comm *comm, void *memory)
{
  xfer_status st = XFER_OK;

  XFI_NEED(comm);
  xfi_comm_enter(&comm->plans, NULL, XFI_INSIDE_UNREGISTER);
  XFI_ON_DEVICE(comm->device,
                st = xfi_registry_remove(&comm->registry, memory, xfi_comm_deadline(comm)));
  return st;
}
