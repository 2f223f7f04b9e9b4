/*
 * The public functions of exchanges: arguments are checked, and src/run is called.
 */
#include <stddef.h>
#include <string.h>

#include <xxhash.h>

#include "checked.h"
#include "dtype.h"
#include "error.h"
#include "object.h"
#include "trace.h"

/* ---- arguments ---- */

static xfer_status check_list(const xfer_operation *at, size_t n, int n_ranks)
{
  for (size_t i = 0; i < n; i++) {
    const unsigned long long id = at[i].id;
    int64_t n_bytes = (int64_t)xfi_dtype_size(at[i].dtype);

    XFI_CHECK(at[i].peer >= 0 && at[i].peer < n_ranks, XFER_ERR_ARG,
              "operation %llu: its peer is rank %d of %d ranks; they count from 0", id,
              (int)at[i].peer, n_ranks);
    XFI_CHECK(n_bytes > 0, XFER_ERR_ARG, "operation %llu: dtype %d, which is no xfer_dtype", id,
              (int)at[i].dtype);
    XFI_CHECK(at[i].n_dims >= 0 && at[i].n_dims <= XFER_MAX_DIMS, XFER_ERR_ARG,
              "operation %llu: %d dims; 0 to 8 are possible", id, (int)at[i].n_dims);
    XFI_CHECK(at[i].reserved == 0, XFER_ERR_ARG, "operation %llu: a reserved field is not 0", id);
    for (int d = 0; d < at[i].n_dims; d++) {
      XFI_CHECK(at[i].shape[d] >= 0, XFER_ERR_SHAPE, "operation %llu: dim %d has size %lld", id, d,
                (long long)at[i].shape[d]);
      XFI_CHECK(xfi_imul_fits(n_bytes, at[i].shape[d] == 0 ? 1 : at[i].shape[d], &n_bytes) &&
                    n_bytes <= INT64_MAX / 2,
                XFER_ERR_OVERFLOW, "operation %llu: its bytes do not fit in 62 bits", id);
    }
  }
  return XFER_OK;
}

static xfer_status check_operations(const char *who, const xfi_operations *ops, int n_ranks)
{
  const xfer_operation *sends = ops->sends.at;
  const xfer_operation *recvs = ops->recvs.at;

  XFI_CHECK(ops->sends.n <= XFI_MOST_TENSORS && ops->recvs.n <= XFI_MOST_TENSORS, XFER_ERR_OVERFLOW,
            "%s: n_sends is %zu, n_recvs %zu; at most %d are possible", who, ops->sends.n,
            ops->recvs.n, XFI_MOST_TENSORS);
  XFI_NEED_IN(who, ops->sends.n > 0, sends);
  XFI_NEED_IN(who, ops->recvs.n > 0, recvs);
  XFI_TRY(check_list(sends, ops->sends.n, n_ranks));
  return check_list(recvs, ops->recvs.n, n_ranks);
}

/* ---- planned ---- */

xfer_status xfer_plan_create_exchange(xfer_plan **plan, xfer_comm *comm,
                                      const xfer_operation *sends, size_t n_sends,
                                      const xfer_operation *recvs, size_t n_recvs,
                                      const xfer_plan_options *given)
{
  xfer_status st = XFER_OK;
  xfi_operations ops = {0, {sends, n_sends, NULL}, {recvs, n_recvs, NULL}};
  xfer_plan_options options;
  xfi_entered before;
  xfi_span span;

  XFI_NEED(comm); /* the one error that the other ranks cannot be told */
  ops.rank = comm->transport->rank;
  st = xfi_plan_given(&options, __func__, plan, comm, given);
  if (st == XFER_OK && options.lane == XFER_LANE_BROADCAST)
    st = XFI_ERROR(XFER_ERR_UNSUPPORTED, "an exchange has nothing to broadcast");
  if (st == XFER_OK) st = check_operations(__func__, &ops, comm->transport->size);
  st = xfi_comm_refused(comm->transport, st);
  xfi_device_enter(comm->device, &before);
  span = xfi_span_begin(XFI_SYS_PLAN, ops.rank, XFI_TRACK_CALLS, "xfer_plan_create_exchange");
  xfi_comm_enter(&comm->plans, NULL, XFI_INSIDE_PLAN_EXCHANGE);
  st = xfi_plan_create_exchange(plan, &comm->plans, st, &ops, &options);
  if (st == XFER_OK) xfi_comm_count_plan(&comm->plans);
  xfi_span_end(&span, st, "%zu sends, %zu receives", n_sends, n_recvs);
  xfi_device_leave(comm->device, &before);
  xfi_operations_free(&ops);
  return st;
}

xfer_status xfer_plan_bind_exchange(xfer_plan *plan, const xfer_view *send_views,
                                    const xfer_view *recv_views)
{
  xfer_status st = XFER_OK;

  XFI_NEED(plan);
  XFI_ON_DEVICE(plan->device, st = xfi_plan_bind_exchange(plan, send_views, recv_views));
  return st;
}

/* ---- in one call ---- */

/* Hash a list of operations. Of a shape only the dims that it has count: the rest is not set. */
static void hash_list(XXH3_state_t *state, const xfi_op_list *list)
{
  XXH3_128bits_update(state, &list->n, sizeof list->n);
  for (size_t i = 0; i < list->n; i++) {
    const xfer_operation *op = &list->at[i];

    XXH3_128bits_update(state, op,
                        offsetof(xfer_operation, shape) + (size_t)op->n_dims * sizeof *op->shape);
  }
}

/* Digests all that this rank passes to an exchange, except the addresses. */
static void digest_of(uint64_t digest[2], const xfi_operations *ops)
{
  XXH3_state_t state;
  XXH128_hash_t hash;

  XXH3_128bits_reset(&state);
  hash_list(&state, &ops->sends);
  hash_list(&state, &ops->recvs);
  hash = XXH3_128bits_digest(&state);
  digest[0] = hash.low64;
  digest[1] = hash.high64;
}

static bool all_registered(const xfer_comm *comm, const xfer_view *views, size_t n)
{
  for (size_t i = 0; i < n; i++)
    if (!xfi_registry_covers(&comm->registry, &views[i])) return false;
  return true;
}

static xfer_status check_views(const xfi_operations *ops, const xfer_view *send_views,
                               const xfer_view *recv_views)
{
  XFI_NEED_IN("xfer_exchange", ops->sends.n > 0, send_views);
  XFI_NEED_IN("xfer_exchange", ops->recvs.n > 0, recv_views);
  return XFER_OK;
}

typedef struct given {
  xfi_operations ops;
  const xfer_view *send_views;
  const xfer_view *recv_views;
} given;

static xfer_status create(xfer_plan **plan, xfi_plans *plans, xfer_status checked, void *context,
                          const xfer_plan_options *options)
{
  given *g = context;

  return xfi_plan_create_exchange(plan, plans, checked, &g->ops, options);
}

static xfer_status bind(xfer_plan *plan, void *context)
{
  const given *g = context;

  return xfi_plan_bind_exchange(plan, g->send_views, g->recv_views);
}

static xfer_status exchange(xfer_comm *comm, given *g, xfer_stream stream)
{
  xfi_one_call call = {{0}, false, create, bind, g};
  xfer_status st = check_operations("xfer_exchange", &g->ops, comm->transport->size);

  if (st == XFER_OK) st = check_views(&g->ops, g->send_views, g->recv_views);
  st = xfi_comm_refused(comm->transport, st);
  if (st == XFER_OK) {
    digest_of(call.key, &g->ops);
    call.mapped = all_registered(comm, g->send_views, g->ops.sends.n) &&
                  all_registered(comm, g->recv_views, g->ops.recvs.n);
  }
  return xfi_cache_call(&comm->cache, st, &call, stream);
}

xfer_status xfer_exchange(xfer_comm *comm, const xfer_operation *sends, const xfer_view *send_views,
                          size_t n_sends, const xfer_operation *recvs, const xfer_view *recv_views,
                          size_t n_recvs, xfer_stream stream)
{
  xfer_status st = XFER_OK;
  given g = {{0, {sends, n_sends, NULL}, {recvs, n_recvs, NULL}}, send_views, recv_views};
  xfi_entered before;
  xfi_span span;

  XFI_NEED(comm);
  g.ops.rank = comm->transport->rank;
  xfi_device_enter(comm->device, &before);
  span = xfi_span_begin(XFI_SYS_RUN, g.ops.rank, XFI_TRACK_CALLS, "xfer_exchange");
  xfi_comm_enter(&comm->plans, NULL, XFI_INSIDE_EXCHANGE);
  st = exchange(comm, &g, stream);
  xfi_span_end(&span, st, "%zu sends, %zu receives", n_sends, n_recvs);
  xfi_device_leave(comm->device, &before);
  xfi_operations_free(&g.ops);
  return st;
}
