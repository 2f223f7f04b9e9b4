/*
 * The broadcast lane: for each source part of a tensor one replica is the root. A root's parts,
 * tensor after tensor, are one stream of bytes; its windows are broadcast to all ranks, and each
 * rank scatters what it needs. Roots take turns by rank; every rank computes all streams.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "error.h"
#include "run.h"
#include "slice.h"
#include "vec.h"

/* Longer than this gains nothing, and a comm takes no message above 1 GiB. */
#define WINDOWS_PER_BROADCAST 4
#define MAX_BROADCAST_BYTES (UINT64_C(1) << 30)

/* One part of one tensor in a root's stream. */
typedef struct entry {
  int root;
  uint32_t tensor;
  size_t flow; /* in the sources of the tensor's class */
  uint64_t n_bytes;
} entry;

typedef struct streams {
  xfi_flows *sources; /* [n_classes] all source parts of each broadcast class */
  entry *entries;     /* by root, then in the plan's order */
  size_t n_entries;
  size_t capacity;
} streams;

static void free_streams(streams *s, size_t n_classes)
{
  for (size_t c = 0; s->sources != NULL && c < n_classes; c++)
    xfi_flows_free(&s->sources[c]);
  xfi_free(s->sources);
  xfi_free(s->entries);
}

static int by_root(const void *a, const void *b)
{
  const entry *x = a;
  const entry *y = b;

  if (x->root != y->root) return x->root < y->root ? -1 : 1;
  return (x->flow > y->flow) - (x->flow < y->flow);
}

/* A stable sort by root: the sequence number stands in `flow` meanwhile. */
static xfer_status sort_entries(streams *s)
{
  xfer_status st = XFER_OK;
  size_t *flows = xfi_calloc(s->n_entries, sizeof *flows);

  XFI_CHECK(flows != NULL, XFER_ERR_NOMEM, "%zu broadcasts", s->n_entries);
  for (size_t i = 0; i < s->n_entries; i++) {
    flows[i] = s->entries[i].flow;
    s->entries[i].flow = i;
  }
  if (s->n_entries > 0) qsort(s->entries, s->n_entries, sizeof *s->entries, by_root);
  for (size_t i = 0; i < s->n_entries; i++)
    s->entries[i].flow = flows[s->entries[i].flow];
done:
  xfi_free(flows);
  return st;
}

static uint64_t flow_bytes(const xfi_class *cls, const xfi_flows *flows, const xfi_flow *flow)
{
  int64_t n = 0;

  for (size_t b = 0; b < flow->n; b++)
    n += xfi_box_elems(&flows->boxes[flow->first + b], cls->src->n_dims);
  return (uint64_t)(n * cls->src->elem_bytes);
}

static xfer_status add_tensor(streams *s, const xfi_plan *m, uint32_t tensor)
{
  const xfi_class *cls = xfi_plan_class(m, tensor);
  const xfi_flows *flows = &s->sources[m->tensors[tensor].class_index];
  xfer_status st = XFER_OK;
  xfi_place place = {{0}, (int)(m->tensors[tensor].ordinal % (uint32_t)cls->src->n_replicas)};

  for (size_t f = 0; f < flows->n; f++) {
    const uint64_t n_bytes = flow_bytes(cls, flows, &flows->at[f]);

    if (n_bytes == 0) continue;
    memcpy(place.part, flows->at[f].part, sizeof place.part);
    XFI_TRY(xfi_vec_reserve(&s->entries, &s->capacity, s->n_entries + 1, sizeof *s->entries));
    s->entries[s->n_entries++] = (entry){xfi_layout_rank(cls->src, &place), tensor, f, n_bytes};
  }
done:
  return st;
}

static xfer_status make_streams(streams *s, const xfer_plan *plan)
{
  const xfi_plan *m = plan->moves;
  xfer_status st = XFER_OK;

  s->sources = xfi_calloc(m->n_classes, sizeof *s->sources);
  XFI_CHECK(s->sources != NULL, XFER_ERR_NOMEM, "%zu classes", m->n_classes);
  for (size_t c = 0; c < m->n_classes; c++)
    if (xfi_run_broadcasts(plan, &m->classes[c]))
      XFI_TRY(xfi_class_sources(&s->sources[c], &m->classes[c]));
  for (size_t i = 0; i < m->n_tensors; i++)
    if (xfi_run_broadcasts(plan, xfi_plan_class(m, m->order[i])))
      XFI_TRY(add_tensor(s, m, m->order[i]));
  XFI_TRY(sort_entries(s));
done:
  return st;
}

/* The entries of one root: [first, end), and their bytes. */
static size_t root_end(const streams *s, size_t first, uint64_t *n_bytes)
{
  size_t end = first;

  for (*n_bytes = 0; end < s->n_entries && s->entries[end].root == s->entries[first].root; end++)
    *n_bytes += s->entries[end].n_bytes;
  return end;
}

/* All ranks wait for one root at a time, so a broadcast may be as long as several peers' windows.
 */
static uint64_t window_of(const xfer_plan *plan)
{
  const uint64_t cap = plan->options.max_staging_bytes / 4 / XFI_SLOT_ALIGN * XFI_SLOT_ALIGN;
  uint64_t window = plan->window_bytes * WINDOWS_PER_BROADCAST;

  if (window > MAX_BROADCAST_BYTES) window = MAX_BROADCAST_BYTES;
  return window < cap ? window : cap;
}

xfer_status xfi_broadcast_measure(xfi_pipeline *p, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  streams s = {NULL, NULL, 0, 0};

  if (plan->moves->n_broadcast == 0) return XFER_OK;
  XFI_TRY(make_streams(&s, plan));
  for (size_t i = 0; i < s.n_entries;) {
    size_t *slot =
        s.entries[i].root == plan->moves->rank ? &p->send_slot_bytes : &p->recv_slot_bytes;
    uint64_t n_bytes;

    i = root_end(&s, i, &n_bytes);
    if (n_bytes > window_of(plan)) n_bytes = window_of(plan);
    if (n_bytes > *slot) *slot = (size_t)n_bytes;
  }
done:
  free_streams(&s, plan->moves->n_classes);
  return st;
}

/* ---- steps ---- */

/* This rank's boxes from the source part `part`: none if it needs nothing from it, or holds it
 * itself. */
static const xfi_flow *needed(const xfi_class *cls, const int64_t *part)
{
  const size_t n = sizeof *part * (size_t)cls->src->n_dims;

  if (cls->in_src && memcmp(cls->src_place.part, part, n) == 0) return NULL;
  for (size_t f = 0; f < cls->recvs.n; f++)
    if (memcmp(cls->recvs.at[f].part, part, n) == 0) return &cls->recvs.at[f];
  return NULL;
}

/* From a slice of a source box in the slot to each destination box that meets it. */
static xfer_status scatter_slice(xfi_copies *copies, const xfer_plan *plan, uint32_t tensor,
                                 const xfi_flow *flow, const xfi_box *source,
                                 const xfi_slice *slice, char *slot)
{
  const xfi_class *cls = xfi_plan_class(plan->moves, tensor);
  const int n_dims = cls->src->n_dims;
  const xfi_bound dense = xfi_dense_bound(slot, slice->length, n_dims, cls->src->elem_bytes);
  xfer_status st = XFER_OK;

  for (size_t b = 0; b < flow->n; b++) {
    const xfi_box *box = &cls->recvs.boxes[flow->first + b];
    xfi_end src = {&dense, {0}};
    xfi_end dst = {xfi_run_dst(plan, tensor), {0}};
    int64_t length[XFER_MAX_DIMS];
    bool empty = false;

    for (int d = 0; d < n_dims; d++) {
      const int64_t origin = source->lo[d] + slice->start[d];
      const int64_t lo = origin > box->lo[d] ? origin : box->lo[d];
      const int64_t a = origin + slice->length[d];
      const int64_t c = box->lo[d] + box->length[d];

      length[d] = (a < c ? a : c) - lo;
      empty = empty || length[d] <= 0;
      src.start[d] = lo - origin;
      dst.start[d] = box->dst_local[d] + (lo - box->lo[d]);
    }
    if (!empty) XFI_TRY(xfi_copies_add(copies, &dst, &src, length, n_dims, cls->src->elem_bytes));
  }
done:
  return st;
}

/* Elements [first, end) of one source box of an entry: gathered on the root, scattered where
 * needed. */
static xfer_status add_box(xfi_step *step, const xfer_plan *plan, const entry *e,
                           const xfi_box *box, const xfi_flow *flow, int64_t first, int64_t end,
                           char *slot)
{
  const xfi_class *cls = xfi_plan_class(plan->moves, e->tensor);
  const int n_dims = cls->src->n_dims;
  const int elem = cls->src->elem_bytes;
  xfer_status st = XFER_OK;
  xfi_slice slices[XFI_MAX_SLICES];
  int n;

  if (e->root == plan->moves->rank)
    return xfi_slot_copies(&step->gather, slot, true, xfi_run_src(plan, e->tensor), box->src_local,
                           box->length, n_dims, elem, first, end);
  if (flow == NULL) return XFER_OK;
  n = xfi_slice_box(slices, box->length, n_dims, first, end);
  for (int i = 0; i < n; i++)
    XFI_TRY(scatter_slice(&step->scatter, plan, e->tensor, flow, box, &slices[i],
                          slot + slices[i].offset * elem));
done:
  return st;
}

/* What bytes [first, end) of an entry mean on this rank. */
static xfer_status add_entry(xfi_step *step, const xfer_plan *plan, const streams *s,
                             const entry *e, uint64_t first, uint64_t end, char *slot)
{
  const xfi_class *cls = xfi_plan_class(plan->moves, e->tensor);
  const xfi_flows *sources = &s->sources[plan->moves->tensors[e->tensor].class_index];
  const xfi_flow *source = &sources->at[e->flow];
  const xfi_flow *flow = cls->in_dst ? needed(cls, source->part) : NULL;
  const uint64_t elem = (uint64_t)cls->src->elem_bytes;
  xfer_status st = XFER_OK;
  uint64_t at = 0; /* bytes of the entry before the box */

  for (size_t b = 0; b < source->n && at < end; b++) {
    const xfi_box *box = &sources->boxes[source->first + b];
    const uint64_t n_bytes = (uint64_t)xfi_box_elems(box, cls->src->n_dims) * elem;
    const uint64_t from = at > first ? at : first;
    const uint64_t to = at + n_bytes < end ? at + n_bytes : end;

    if (from < to)
      XFI_TRY(add_box(step, plan, e, box, flow, (int64_t)((from - at) / elem),
                      (int64_t)((to - at) / elem), slot + (from - first)));
    at += n_bytes;
  }
done:
  return st;
}

/* One window [first, end) of the stream of entries [e0, e1). */
static xfer_status add_window(xfi_pipeline *p, const xfer_plan *plan, const streams *s, size_t e0,
                              size_t e1, uint64_t first, uint64_t end)
{
  const int root = s->entries[e0].root;
  const bool is_root = root == plan->moves->rank;
  char *slot = xfi_pipeline_slot(p, p->n_steps, is_root);
  xfer_status st = XFER_OK;
  xfi_step *step = NULL;
  uint64_t at = 0;

  XFI_TRY(xfi_pipeline_add(&step, p, 1));
  step->root = root;
  step->messages[0] = (xfi_message){slot, (size_t)(end - first), root};
  for (size_t i = e0; i < e1 && at < end; i++) {
    const entry *e = &s->entries[i];
    const uint64_t from = at > first ? at : first;
    const uint64_t to = at + e->n_bytes < end ? at + e->n_bytes : end;

    if (from < to) XFI_TRY(add_entry(step, plan, s, e, from - at, to - at, slot + (from - first)));
    at += e->n_bytes;
  }
  if (is_root) p->sent_bytes += end - first;
done:
  return st;
}

xfer_status xfi_broadcast_add(xfi_pipeline *p, const xfer_plan *plan)
{
  const uint64_t window = window_of(plan);
  xfer_status st = XFER_OK;
  streams s = {NULL, NULL, 0, 0};

  if (plan->moves->n_broadcast == 0) return XFER_OK;
  XFI_TRY(make_streams(&s, plan));
  for (size_t i = 0, end; i < s.n_entries; i = end) {
    uint64_t n_bytes;

    end = root_end(&s, i, &n_bytes);
    for (uint64_t at = 0; at < n_bytes; at += window)
      XFI_TRY(add_window(p, plan, &s, i, end, at, n_bytes - at < window ? n_bytes : at + window));
  }
done:
  free_streams(&s, plan->moves->n_classes);
  return st;
}
