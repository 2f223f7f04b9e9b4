/*
 * The steps of the broadcast lane, made at commit, alike on all ranks. Parts that a root broadcasts
 * in place go many to a call. The rest of a root's parts are one sequence of bytes, part after
 * part, which is cut in windows: these are gathered on the root, broadcast from slot to slot, and
 * scattered where they are needed. Windows come after the root's first call in place, so that they
 * are gathered and scattered while that is under way.
 */
#include "broadcast_list.h"

#include "error.h"
#include "slice.h"
#include "wire.h"

/* The first call of a run is small, since nothing is in flight while NCCL prepares it. */
#define FIRST_MESSAGES 8

/* The parts of one root, and how far their bytes have been cut up. */
typedef struct root_parts {
  const xfi_bcasts *bcasts;
  const xfer_plan *plan;
  int root;
  size_t first; /* [first, end) of bcasts->at */
  size_t end;
  uint64_t n_bytes;  /* of all parts that go through slots */
  size_t next;       /* these bytes have been cut up to this part, */
  size_t box;        /* to this box of it, */
  uint64_t at;       /* before which there are so many of them */
  xfi_needed needed; /* what this rank needs of the part, set at its first box */
  xfi_step *step;    /* the root's last step, unless that has a window */
} root_parts;

static root_parts root_parts_of(const xfi_bcasts *bcasts, const xfer_plan *plan, size_t first)
{
  root_parts t = {.bcasts = bcasts,
                  .plan = plan,
                  .root = bcasts->at[first].root,
                  .first = first,
                  .end = first,
                  .next = first};

  for (; t.end < bcasts->n && bcasts->at[t.end].root == t.root; t.end++)
    if (bcasts->at[t.end].memory == NULL) t.n_bytes += bcasts->at[t.end].n_bytes;
  return t;
}

void xfi_broadcast_measure(xfi_pipeline *p, const xfer_plan *plan)
{
  const uint64_t window = xfi_bcasts_window(plan);
  const xfi_bcasts *bcasts = p->bcasts;

  for (size_t i = 0; bcasts != NULL && i < bcasts->n;) {
    const root_parts t = root_parts_of(bcasts, plan, i);
    const size_t n_bytes = xfi_slot_aligned(t.n_bytes < window ? t.n_bytes : window);
    const bool is_root = t.root == plan->moves->rank;
    size_t *slot = &p->slot_bytes[is_root];

    if (n_bytes > *slot) *slot = n_bytes;
    for (; i < t.end; i++)
      if (is_root) p->sent_bytes += bcasts->at[i].n_bytes;
  }
}

/* Decided alike on every rank. Packed rounds, which come before, differ between ranks. */
static bool is_full(const xfi_pipeline *p, const xfi_step *step)
{
  const bool first = p->n_steps == p->n_rounds + 1;

  return step->n_sends >= (first ? FIRST_MESSAGES : XFI_ROUND_MESSAGES);
}

/* Make sure that t->step, the pipeline's last step, has room for a message. */
static xfer_status open_step(xfi_pipeline *p, root_parts *t)
{
  if (t->step != NULL && !is_full(p, t->step)) return XFER_OK;
  XFI_TRY(xfi_steps_add(&t->step, p, XFI_ROUND_MESSAGES));
  t->step->root = t->root;
  return XFER_OK;
}

static void add_message(const root_parts *t, char *memory, uint64_t n_bytes)
{
  t->step->messages[t->step->n_sends++] = (xfi_message){memory, (size_t)n_bytes, t->root};
}

/* ---- through slots ---- */

/* A slice of a source box, which lies in a slot. */
typedef struct slot_slice {
  const xfer_plan *plan;
  uint32_t tensor;
  const xfi_box *source;
  const xfi_slice *slice;
  char *slot;
} slot_slice;

/* Copy what the slice and a destination box have in common. */
static xfer_status scatter_box(xfi_copies *copies, const slot_slice *s, const xfi_box *box)
{
  const xfi_class *cls = xfi_moves_class(s->plan->moves, s->tensor);
  const int n_dims = cls->src->n_dims;
  const xfi_bound dense = xfi_bound_dense(s->slot, s->slice->length, n_dims, cls->wire_bytes);
  xfi_end src = {&dense, {0}};
  xfi_end dst = {xfi_plan_dst(s->plan, s->tensor), {0}};
  int64_t length[XFER_MAX_DIMS];

  for (int d = 0; d < n_dims; d++) {
    const int64_t origin = s->source->lo[d] + s->slice->start[d];
    const int64_t lo = origin > box->lo[d] ? origin : box->lo[d];
    const int64_t a_end = origin + s->slice->length[d];
    const int64_t b_end = box->lo[d] + box->length[d];

    length[d] = (a_end < b_end ? a_end : b_end) - lo;
    if (length[d] <= 0) return XFER_OK;
    src.start[d] = lo - origin;
    dst.start[d] = box->dst_local[d] + (lo - box->lo[d]);
  }
  return xfi_copies_add(copies, &dst, &src, length, n_dims,
                        xfi_plan_elem(s->plan, cls, XFI_FROM_WIRE));
}

/* Scatter the slice to each destination box that overlaps it. A destination box lies in one source
 * box, so those of other source boxes, which may be many, are skipped. */
static xfer_status scatter_slice(xfi_copies *copies, const slot_slice *s, const xfi_needed *needed)
{
  const xfi_flows *recvs = &xfi_moves_class(s->plan->moves, s->tensor)->recvs;
  int64_t hi[XFER_MAX_DIMS];

  for (int d = 0; d < recvs->n_dims; d++)
    hi[d] = s->source->lo[d] + s->slice->start[d] + s->slice->length[d];
  for (size_t f = 0; f < needed->n; f++) {
    const size_t end = (size_t)needed->at[f].first + needed->at[f].n;
    size_t b = needed->at[f].first;

    while ((b = xfi_flows_seek(recvs, b, end, s->source->lo, hi)) < end) {
      const xfi_box box = xfi_flows_box(recvs, b++);

      XFI_TRY(scatter_box(copies, s, &box));
    }
  }
  return XFER_OK;
}

/* A range of one source box of a part: gathered on the root, scattered where needed. */
static xfer_status add_range(xfi_step *step, const root_parts *t, const xfi_elem_range *range,
                             char *slot)
{
  const xfer_plan *plan = t->plan;
  const xfi_class *cls = xfi_moves_class(plan->moves, range->tensor);
  xfi_slice slices[XFI_MAX_SLICES];
  int n;

  if (t->root == plan->moves->rank) {
    xfi_box mine = *range->box;

    xfi_box_resolve(mine.src_local, mine.unit, cls->src, t->root);
    return xfi_slot_copies(&step->copies[1], plan,
                           &(xfi_elem_range){range->tensor, &mine, range->first, range->end}, slot,
                           true);
  }
  n = xfi_slice_box(slices, range->box->length, cls->src->n_dims, range->first, range->end);
  for (int i = 0; i < n; i++)
    XFI_TRY(scatter_slice(&step->copies[0],
                          &(slot_slice){plan, range->tensor, range->box, &slices[i],
                                        slot + slices[i].offset * cls->wire_bytes},
                          &t->needed));
  return XFER_OK;
}

/* Add the window [first, end) of a root's bytes. Windows are added in order. */
static xfer_status add_window(xfi_pipeline *p, root_parts *t, uint64_t first, uint64_t end)
{
  const bool is_root = t->root == t->plan->moves->rank;
  xfi_step *step;
  char *slot;

  XFI_TRY(open_step(p, t));
  slot = xfi_steps_slot(p, p->n_steps - 1, is_root);
  add_message(t, slot, end - first);
  step = t->step;
  t->step = NULL; /* it has a window now */
  while (t->next < t->end && t->at < end) {
    const xfi_bcast *c = &t->bcasts->at[t->next];

    if (c->memory != NULL || t->box == c->source->n) {
      t->next++;
      t->box = 0;
      continue;
    }
    if (t->box == 0) t->needed = xfi_bcast_needed(t->plan, c);
    const xfi_class *cls = xfi_moves_class(t->plan->moves, c->tensor);
    const xfi_box box = xfi_bcast_box(c, t->box);
    const uint64_t elem = (uint64_t)cls->wire_bytes;
    const uint64_t box_end = t->at + (uint64_t)xfi_box_elems(box.length, cls->src->n_dims) * elem;
    const uint64_t from = t->at > first ? t->at : first;
    const uint64_t to = box_end < end ? box_end : end;

    if (from < to)
      XFI_TRY(add_range(step, t,
                        &(xfi_elem_range){c->tensor, &box, (int64_t)((from - t->at) / elem),
                                          (int64_t)((to - t->at) / elem)},
                        slot + (from - first)));
    if (box_end > end) break; /* the rest goes in the next window */
    t->at = box_end;
    t->box++;
  }
  return XFER_OK;
}

/* Add all windows, the first to the root's last step. */
static xfer_status add_windows(xfi_pipeline *p, root_parts *t)
{
  const uint64_t window = xfi_bcasts_window(t->plan);

  for (uint64_t at = 0; at < t->n_bytes; at += window)
    XFI_TRY(add_window(p, t, at, t->n_bytes - at < window ? t->n_bytes : at + window));
  return XFER_OK;
}

static xfer_status add_root(xfi_pipeline *p, root_parts *t)
{
  bool has_windows = false;

  for (size_t i = t->first; i < t->end; i++) {
    const xfi_bcast *c = &t->bcasts->at[i];

    for (uint64_t at = 0; at < c->n_bytes && c->memory != NULL; at += XFI_MESSAGE_BYTES) {
      const uint64_t left = c->n_bytes - at;

      if (t->step != NULL && is_full(p, t->step) && !has_windows) {
        XFI_TRY(add_windows(p, t));
        has_windows = true;
      }
      XFI_TRY(open_step(p, t));
      add_message(t, c->memory + at, left < XFI_MESSAGE_BYTES ? left : XFI_MESSAGE_BYTES);
    }
  }
  if (!has_windows) XFI_TRY(add_windows(p, t));
  return XFER_OK;
}

xfer_status xfi_broadcast_add(xfi_pipeline *p, const xfer_plan *plan)
{
  const xfi_bcasts *bcasts = p->bcasts;

  for (size_t i = 0; bcasts != NULL && i < bcasts->n;) {
    root_parts t = root_parts_of(bcasts, plan, i);

    XFI_TRY(add_root(p, &t));
    i = t.end;
  }
  return XFER_OK;
}
