/*
 * What a rank counts of a tensor: boxes of its memory, each with a factor, for the device to add
 * up. Made at commit for runs that are verified, and at each call for digests. Local to a rank;
 * count.h explains what sums of all ranks mean.
 */
#include "count.h"

#include <string.h>

#include "alloc.h"
#include "error.h"
#include "held.h"
#include "vec.h"

void xfi_sum_add(xfi_sum *sum, xfi_sum other)
{
  sum->word[0] += other.word[0];
  sum->word[1] += other.word[1];
}

bool xfi_sum_is_zero(xfi_sum sum)
{
  return (sum.word[0] | sum.word[1]) == 0;
}

/* ---- counting ---- */

/* One side of a tensor on this rank. */
typedef struct counter {
  xfi_counted *list;
  const xfer_layout *layout;
  const xfi_bound *bound;
  const xfi_within *within;
  uint32_t sum; /* the index of the sum that the boxes add to */
  uint64_t factor;
} counter;

/* A box of global indices that lies at `local` of the rank's part. */
static xfer_status count_box(const counter *c, const int64_t *lo, const int64_t *length,
                             const int64_t *local)
{
  const xfer_layout *l = c->layout;
  xfer_status st = XFER_OK;
  int64_t shape[XFER_MAX_DIMS];
  int64_t size[XFER_MAX_DIMS];
  xfi_copies copies = {NULL, 0, 0};
  xfi_bound order;
  xfi_end from = {c->bound, {0}};
  xfi_end to = {&order, {0}};

  for (int d = 0; d < l->n_dims; d++) {
    int64_t end = lo[d] + length[d];

    shape[d] = l->dims[d].size;
    to.start[d] = lo[d];
    if (c->within != NULL && c->within->lo[d] > lo[d]) to.start[d] = c->within->lo[d];
    if (c->within != NULL && c->within->hi[d] < end) end = c->within->hi[d];
    if (end <= to.start[d]) return XFER_OK;
    from.start[d] = local[d] + (to.start[d] - lo[d]);
    size[d] = end - to.start[d];
  }
  order = xfi_bound_dense((char *)XFI_DIGEST_ORIGIN, shape, l->n_dims, l->elem_bytes);
  XFI_TRY_DONE(
      xfi_copies_add(&copies, &to, &from, size, l->n_dims, (xfi_elem){l->elem_bytes, NULL}));
  XFI_TRY_DONE(xfi_vec_reserve(&c->list->at, &c->list->capacity, c->list->n + copies.n,
                               sizeof *c->list->at));
  for (size_t i = 0; i < copies.n; i++)
    c->list->at[c->list->n++] = (xfi_digest_box){copies.at[i], c->factor, c->sum};
done:
  xfi_copies_free(&copies);
  return st;
}

/* What replica k of n counts with: over all replicas these add up to 0. */
static uint64_t replica_factor(int k, int n)
{
  uint64_t mine[2];
  uint64_t next[2];

  xfi_digest_chunk(mine, (UINT64_C(1) << 61) + (uint64_t)k);
  xfi_digest_chunk(next, (UINT64_C(1) << 61) + (uint64_t)((k + 1) % n));
  return mine[0] - next[0];
}

/* Where a count takes each element once, replicas take turns by tensor; where it compares replicas,
 * each has a factor of its own. 0: this rank counts nothing of it. */
static uint64_t held_factor(const counter *c, const xfi_held *held, uint32_t turn, xfi_count what)
{
  const int n = xfi_part_n_replicas(c->layout, held->part);
  const xfi_within *w = c->within;

  if (what == XFI_COUNT_SRC || what == XFI_COUNT_DST)
    return held->replica == (int)(turn % (uint32_t)n);
  if (n == 1) return 0;
  if (w != NULL && (held->unit < w->lo[XFI_WITHIN_UNIT] || held->unit >= w->hi[XFI_WITHIN_UNIT]))
    return 0;
  return what == XFI_COUNT_OWN_REPLICA ? 1 : replica_factor(held->replica, n);
}

/* What is held is found from the layout alone, since neither a digest nor replicas depend on what a
 * plan makes of it. */
static xfer_status count_side(counter c, int rank, uint32_t turn, xfi_count what)
{
  const bool once = what == XFI_COUNT_SRC || what == XFI_COUNT_DST;
  const size_t before = c.list->n;
  xfer_status st = XFER_OK;
  const int n_dims = c.layout->n_dims;
  xfi_held_list held = {NULL, 0, 0};

  XFI_TRY_DONE(xfi_layout_held(&held, c.layout, rank, once));
  for (size_t i = 0; i < held.n; i++) {
    const xfi_held *h = &held.at[i];
    int64_t length[XFER_MAX_DIMS];

    c.factor = held_factor(&c, h, turn, what);
    if (c.factor == 0 || (what == XFI_COUNT_OWN_REPLICA && c.list->n > before)) continue;
    for (int d = 0; d < n_dims; d++)
      length[d] = h->bounds[n_dims + d] - h->bounds[d];
    XFI_TRY_DONE(count_box(&c, h->bounds, length, h->local));
  }
done:
  xfi_free(held.at);
  return st;
}

/* A source part is read by one of its replicas in turn, as often as ranks hold it afterwards. */
static uint64_t source_factor(const xfi_class *cls, const xfi_flow *flow, uint32_t turn,
                              xfi_count what)
{
  if (what == XFI_COUNT_OWN_SRC) return 1;
  if ((int)(turn % (uint32_t)xfi_part_n_replicas(cls->src, flow->mine)) != flow->my_replica)
    return 0;
  return (uint64_t)xfi_part_n_replicas(cls->dst, flow->part);
}

static xfer_status count_sends(counter c, const xfi_class *cls, uint32_t ordinal, xfi_count what)
{
  const size_t before = c.list->n;

  for (size_t f = 0; f < cls->sends.n; f++) {
    const xfi_flow *flow = &cls->sends.at[f];

    /* Not by f: replicas of one part may have other parts too. */
    c.factor = source_factor(cls, flow, ordinal + flow->mine + flow->part, what);
    for (size_t i = 0; i < flow->n && c.factor != 0; i++) {
      const xfi_box box = xfi_flows_box(&cls->sends, flow->first + i);

      if (what == XFI_COUNT_OWN_SRC && c.list->n > before) return XFER_OK;
      XFI_TRY(count_box(&c, box.lo, box.length, box.src_local));
    }
  }
  return XFER_OK;
}

static xfer_status count_recvs(counter c, const xfi_class *cls, xfi_count what)
{
  const size_t before = c.list->n;

  c.factor = what == XFI_COUNT_OWN_DST ? 1 : UINT64_MAX;
  for (size_t i = 0; i < cls->recvs.n_boxes; i++) {
    const xfi_box box = xfi_flows_box(&cls->recvs, i);

    if (what == XFI_COUNT_OWN_DST && c.list->n > before) return XFER_OK;
    XFI_TRY(count_box(&c, box.lo, box.length, box.dst_local));
  }
  return XFER_OK;
}

xfer_status xfi_count_add(xfi_counted *list, const xfi_counting *counting, size_t i)
{
  const xfer_plan *plan = counting->plan;
  const size_t tensor = counting->first + i;
  const xfi_count what = counting->what;
  const xfi_class *cls = xfi_moves_class(plan->moves, tensor);
  const xfi_binding *b = plan->memory.bindings[tensor];
  const uint32_t ordinal = plan->moves->tensors[tensor].ordinal;
  const int rank = plan->moves->rank;
  counter src = {list, cls->src, NULL, counting->within, (uint32_t)i, 1};
  counter dst = {list, cls->dst, NULL, counting->within, (uint32_t)i, 1};

  if (b == NULL) return XFER_OK; /* this rank has none of it */
  src.bound = &b->src;
  dst.bound = what == XFI_COUNT_DST ? &b->dst : xfi_plan_dst(plan, tensor);
  if (what == XFI_COUNT_DST) return count_side(dst, rank, ordinal, what);
  if (what == XFI_COUNT_SRC || what == XFI_COUNT_REPLICAS || what == XFI_COUNT_OWN_REPLICA)
    return count_side(src, rank, ordinal, what);
  if (what == XFI_COUNT_RUN) XFI_TRY(count_side(src, rank, ordinal, XFI_COUNT_REPLICAS));
  if (cls->conversion.kind != XFER_CONVERSION_NONE &&
      (what == XFI_COUNT_MOVED || what == XFI_COUNT_RUN))
    return XFER_OK; /* the destination is meant to differ from the source */
  if (what != XFI_COUNT_OWN_DST) XFI_TRY(count_sends(src, cls, ordinal, what));
  if (what != XFI_COUNT_OWN_SRC) XFI_TRY(count_recvs(dst, cls, what));
  return XFER_OK;
}

xfer_status xfi_count_make(xfi_digest **digest, const xfi_counting *counting)
{
  xfi_device *device = counting->plan->device;
  const size_t n = counting->n;
  xfer_status st = XFER_OK;
  xfi_counted list = {NULL, 0, 0};

  for (size_t i = 0; i < n; i++)
    XFI_TRY_DONE(xfi_count_add(&list, counting, i));
  XFI_TRY_DONE(device->ops->digest_create(device, digest, list.at, list.n, n));
done:
  xfi_free(list.at);
  return st;
}

xfer_status xfi_count_now(xfi_sum *sums, const xfi_counting *counting, xfer_stream stream)
{
  const xfer_plan *plan = counting->plan;
  const xfi_device_ops *dev = plan->device->ops;
  xfer_status st = XFER_OK;
  xfi_digest *digest = NULL;
  xfi_event *event = NULL;

  XFI_TRY_DONE(xfi_count_make(&digest, counting));
  XFI_TRY_DONE(xfi_event_create(plan->device, &event));
  XFI_TRY_DONE(dev->digest_launch(plan->device, digest, stream));
  XFI_TRY_DONE(xfi_event_record(plan->device, event, stream));
  XFI_TRY_DONE(xfi_event_sync(plan->device, event, xfi_run_deadline(plan)));
  memcpy(sums, dev->digest_sums(digest), counting->n * sizeof *sums);
done:
  xfi_event_destroy(plan->device, event);
  if (digest != NULL) dev->digest_destroy(plan->device, digest);
  return st;
}
