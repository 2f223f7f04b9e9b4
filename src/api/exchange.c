/*
 * Exchanges: arguments checked, the run layer called; and one in one call, by a plan that the comm
 * keeps.
 *
 * For the one call each rank looks for what it handed over before, by a digest of it all. What
 * ranks hand over differs, so they do not find a plan by the digest of one, but by where all keep
 * it: every rank keeps the same plans at the same places, because every rank made the same calls.
 */
#include <stddef.h>
#include <string.h>

#include <xxhash.h>

#include "alloc.h"
#include "checked.h"
#include "dtype.h"
#include "error.h"
#include "object.h"
#include "trace.h"

/* ---- arguments ---- */

static xfer_status check_list(const xfer_operation *at, size_t n, int n_ranks)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < n; i++) {
    const unsigned long long id = at[i].id;
    int64_t n_bytes = (int64_t)xfi_dtype_size(at[i].dtype);

    XFI_CHECK(at[i].peer >= 0 && at[i].peer < n_ranks, XFER_ERR_ARG,
              "operation %llu: its peer is rank %d of %d ranks", id, (int)at[i].peer, n_ranks);
    XFI_CHECK(n_bytes > 0, XFER_ERR_ARG, "operation %llu: dtype %d", id, (int)at[i].dtype);
    XFI_CHECK(at[i].n_dims >= 0 && at[i].n_dims <= XFER_MAX_DIMS, XFER_ERR_ARG,
              "operation %llu: %d dims", id, (int)at[i].n_dims);
    XFI_CHECK(at[i].reserved == 0, XFER_ERR_ARG, "operation %llu: a reserved field is not 0", id);
    for (int d = 0; d < at[i].n_dims; d++) {
      XFI_CHECK(at[i].shape[d] >= 0, XFER_ERR_SHAPE, "operation %llu: dim %d has size %lld", id, d,
                (long long)at[i].shape[d]);
      XFI_CHECK(xfi_imul_fits(n_bytes, at[i].shape[d] == 0 ? 1 : at[i].shape[d], &n_bytes) &&
                    n_bytes <= INT64_MAX / 2,
                XFER_ERR_OVERFLOW, "operation %llu: its bytes do not fit in 62 bits", id);
    }
  }
done:
  return st;
}

static xfer_status check_operations(const char *who, const xfi_operations *ops, int n_ranks)
{
  xfer_status st = XFER_OK;
  const xfer_operation *sends = ops->sends.at;
  const xfer_operation *recvs = ops->recvs.at;

  XFI_NEED_IN(who, ops->sends.n > 0, sends);
  XFI_NEED_IN(who, ops->recvs.n > 0, recvs);
  XFI_TRY(check_list(sends, ops->sends.n, n_ranks));
  XFI_TRY(check_list(recvs, ops->recvs.n, n_ranks));
done:
  return st;
}

static xfer_status copy_options(xfer_plan_options *out, const xfer_plan_options *given)
{
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_plan_options_copy(out, given));
  XFI_CHECK(out->lane != XFER_LANE_BROADCAST, XFER_ERR_UNSUPPORTED,
            "an exchange has nothing to broadcast");
done:
  return st;
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

  XFI_NEED(comm); /* nobody to agree with */
  ops.rank = comm->transport->rank;
  st = copy_options(&options, given);
  if (options.timeout_ms == 0) options.timeout_ms = comm->timeout_ms;
  if (st == XFER_OK) st = check_operations(__func__, &ops, comm->transport->size);
  if (st == XFER_OK && plan == NULL) {
    xfi_set_error("%s: plan is NULL", __func__);
    st = XFER_ERR_ARG;
  }
  xfi_device_enter(comm->device, &before);
  span = xfi_span_begin(XFI_SYS_PLAN, ops.rank, XFI_TRACK_CALLS, "xfer_plan_create_exchange");
  comm->transport->inside = XFI_INSIDE_PLAN_EXCHANGE;
  st = xfi_run_create_exchange(plan, &comm->plans, st, &ops, &options);
  xfi_span_end(&span, st, "%zu sends, %zu receives", n_sends, n_recvs);
  xfi_device_leave(comm->device, &before);
  xfi_operations_free(&ops);
done:
  return st;
}

xfer_status xfer_plan_bind_exchange(xfer_plan *plan, const xfer_view *send_views,
                                    const xfer_view *recv_views)
{
  xfer_status st = XFER_OK;

  XFI_NEED(plan);
  XFI_ON_DEVICE(plan->device, st = xfi_run_bind_exchange(plan, send_views, recv_views));
done:
  return st;
}

/* ---- in one call ---- */

/* What a rank says as the call begins. */
typedef struct word {
  uint64_t found;  /* bit i: it keeps at i what it handed over now */
  uint64_t mapped; /* 1: its memory can stay mapped */
} word;

/* A shape past its dims is nobody's. */
static void hash_list(XXH3_state_t *state, const xfi_op_list *list)
{
  XXH3_128bits_update(state, &list->n, sizeof list->n);
  for (size_t i = 0; i < list->n; i++) {
    const xfer_operation *op = &list->at[i];

    XXH3_128bits_update(state, op,
                        offsetof(xfer_operation, shape) + (size_t)op->n_dims * sizeof *op->shape);
  }
}

/* Of all that this rank hands over but the addresses. */
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
    if (!xfi_comm_is_registered(comm, &views[i])) return false;
  return true;
}

/* *kept: the plan that all ranks found; NULL: not all have found one. Collective. */
static xfer_status settle(xfi_kept **kept, bool *mapped, xfer_comm *comm, xfer_status mine,
                          word said)
{
  xfi_comm *transport = comm->transport;
  xfer_status st = mine;
  word *all = xfi_comm_hear(transport, &st, &said, sizeof said, xfi_comm_deadline(comm));

  XFI_TRY(st);
  for (int r = 0; r < transport->size; r++) {
    said.found &= all[r].found;
    said.mapped &= all[r].mapped;
  }
  *mapped = said.mapped != 0;
  *kept = NULL;
  for (int i = 0; i < XFI_CACHE_PLANS && *kept == NULL; i++)
    if ((said.found >> i & 1) != 0 && comm->kept[i].mapped == *mapped) *kept = &comm->kept[i];
done:
  xfi_free(all);
  return st;
}

static xfer_status check_views(const xfi_operations *ops, const xfer_view *send_views,
                               const xfer_view *recv_views)
{
  xfer_status st = XFER_OK;

  XFI_NEED_IN("xfer_exchange", ops->sends.n > 0, send_views);
  XFI_NEED_IN("xfer_exchange", ops->recvs.n > 0, recv_views);
done:
  return st;
}

static xfer_status exchange(xfer_comm *comm, xfi_operations *ops, const xfer_view *sends,
                            const xfer_view *recvs, xfer_stream stream)
{
  xfer_status st = XFER_OK;
  xfer_plan_options options;
  uint64_t digest[2] = {0, 0};
  word said = {0, 0};
  xfi_kept *k = NULL;
  bool mapped = false;

  st = check_operations("xfer_exchange", ops, comm->transport->size);
  if (st == XFER_OK) st = check_views(ops, sends, recvs);
  if (st == XFER_OK) st = xfi_kept_check(comm, stream);
  if (st == XFER_OK) {
    digest_of(digest, ops);
    said.mapped =
        all_registered(comm, sends, ops->sends.n) && all_registered(comm, recvs, ops->recvs.n);
    for (int i = 0; i < XFI_CACHE_PLANS; i++)
      if (comm->kept[i].plan != NULL && comm->kept[i].plan->ends != NULL &&
          memcmp(comm->kept[i].src, digest, sizeof digest) == 0)
        said.found |= UINT64_C(1) << i;
  }
  XFI_TRY(settle(&k, &mapped, comm, st, said));
  if (k == NULL) {
    k = xfi_kept_make(&options, comm, digest, (const uint64_t[2]){0}, mapped);
    XFI_TRY(xfi_run_create_exchange(&k->plan, &comm->plans, XFER_OK, ops, &options));
  }
  k->used = ++comm->n_calls;
  st = xfi_run_follow(k->plan, stream);
  if (st == XFER_OK) st = xfi_run_bind_exchange(k->plan, sends, recvs);
  XFI_TRY(xfi_run_commit_with(k->plan, st));
  st = xfi_kept_run(comm, k, stream);
done:
  return st;
}

xfer_status xfer_exchange(xfer_comm *comm, const xfer_operation *sends, const xfer_view *send_views,
                          size_t n_sends, const xfer_operation *recvs, const xfer_view *recv_views,
                          size_t n_recvs, xfer_stream stream)
{
  xfer_status st = XFER_OK;
  xfi_operations ops = {0, {sends, n_sends, NULL}, {recvs, n_recvs, NULL}};
  xfi_entered before;
  xfi_span span;

  XFI_NEED(comm);
  ops.rank = comm->transport->rank;
  xfi_device_enter(comm->device, &before);
  span = xfi_span_begin(XFI_SYS_RUN, ops.rank, XFI_TRACK_CALLS, "xfer_exchange");
  comm->transport->inside = XFI_INSIDE_EXCHANGE;
  st = exchange(comm, &ops, send_views, recv_views, stream);
  xfi_span_end(&span, st, "%zu sends, %zu receives", n_sends, n_recvs);
  xfi_device_leave(comm->device, &before);
  xfi_operations_free(&ops);
done:
  return st;
}
