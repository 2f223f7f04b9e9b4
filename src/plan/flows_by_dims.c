/*
 * Flows where both sides are by placements.
 *
 * Dim by dim, this rank's runs are looked up on the other side, which gives *intervals* of indices
 * with their place in both parts, grouped by the other side's part. A flow is one group from each
 * dim, and its boxes are the product of their intervals. These are maximal and in ascending order
 * of the global index, so both ends of a flow list the same boxes in the same order.
 */
#include "flows_fill.h"

#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "vec.h"

static int by_part(const void *a, const void *b)
{
  const xfi_interval *x = a;
  const xfi_interval *y = b;

  if (x->part != y->part) return x->part < y->part ? -1 : 1;
  return (x->dst_local > y->dst_local) - (x->dst_local < y->dst_local);
}

static int by_global(const void *a, const void *b)
{
  const xfi_interval *x = a;
  const xfi_interval *y = b;

  if (x->part != y->part) return (x->part > y->part) - (x->part < y->part);
  if (x->global != y->global) return x->global < y->global ? -1 : 1;
  return (x->dst_local > y->dst_local) - (x->dst_local < y->dst_local);
}

static int by_dst(const void *a, const void *b)
{
  const xfi_interval *x = a;
  const xfi_interval *y = b;

  return (x->dst_local > y->dst_local) - (x->dst_local < y->dst_local);
}

/* Sort by part and join what continues on both sides. */
static void make_canonical(xfi_intervals *list)
{
  size_t n = 0;

  xfi_sort(list->at, list->n, sizeof *list->at, by_part);
  for (size_t i = 0; i < list->n; i++) {
    const xfi_interval *p = &list->at[i];
    xfi_interval *last = n > 0 ? &list->at[n - 1] : NULL;

    if (last != NULL && last->part == p->part && last->global + last->length == p->global &&
        last->src_local + last->length == p->src_local &&
        last->dst_local + last->length == p->dst_local)
      last->length += p->length;
    else
      list->at[n++] = *p;
  }
  list->n = n;
  xfi_sort(list->at, list->n, sizeof *list->at, by_global);
}

xfer_status xfi_intervals_add(xfi_intervals *list, const xfi_runs *runs, const xfi_dim *other,
                              bool is_source)
{
  xfer_status st = XFER_OK;
  xfi_holds holds = {NULL, 0, 0};

  for (size_t i = 0; i < runs->n; i++) {
    const xfer_run *r = &runs->at[i];

    holds.n = 0;
    XFI_TRY_DONE(xfi_dim_holders(other, r->global, r->global + r->length, !is_source, &holds));
    for (size_t k = 0; k < holds.n; k++) {
      const xfi_hold *h = &holds.at[k];
      const int64_t my_local = r->local + (h->global - r->global);

      XFI_TRY_DONE(
          XFI_APPEND(list->at, list->n, list->capacity,
                     (xfi_interval){h->part, h->global, h->length, is_source ? my_local : h->local,
                                    is_source ? h->local : my_local}));
    }
  }
  make_canonical(list);
done:
  xfi_free(holds.at);
  return st;
}

/* The proof for one dim of a destination part: its intervals cover each of its runs once, and
 * nothing else. What holds for every dim holds for the product. */
static xfer_status prove_dim(const xfi_runs *runs, const xfi_intervals *list, int d,
                             const char *tensor, int rank)
{
  xfer_status st = XFER_OK;
  xfi_interval *sorted = xfi_calloc(list->n, sizeof *sorted);
  size_t k = 0;

  XFI_CHECK_DONE(sorted != NULL, XFER_ERR_NOMEM, "%zu intervals", list->n);
  if (list->n > 0) memcpy(sorted, list->at, list->n * sizeof *sorted);
  xfi_sort(sorted, list->n, sizeof *sorted, by_dst);
  for (size_t i = 0; i < runs->n; i++) {
    int64_t at = runs->at[i].local;
    const int64_t end = at + runs->at[i].length;
    const int64_t to_global = runs->at[i].global - runs->at[i].local;

    while (at < end) {
      XFI_CHECK_DONE(
          k < list->n && sorted[k].dst_local == at && sorted[k].global == at + to_global,
          XFER_ERR_SHAPE,
          "tensor \"%.100s\", dim %d: rank %d needs index %lld, which no source part holds", tensor,
          d, rank, (long long)(at + to_global));
      at += sorted[k++].length;
    }
    XFI_CHECK_DONE(at == end, XFER_ERR_INTERNAL,
                   "tensor \"%.100s\", dim %d: rank %d would get local index %lld twice", tensor, d,
                   rank, (long long)end);
  }
  XFI_CHECK_DONE(k == list->n, XFER_ERR_INTERNAL,
                 "tensor \"%.100s\", dim %d: rank %d would get local index %lld twice", tensor, d,
                 rank, (long long)sorted[k].dst_local);
done:
  xfi_free(sorted);
  return st;
}

/* A range of neighbours in a list of intervals: [first, end). */
typedef struct group {
  size_t first;
  size_t end;
} group;

/* The intervals from `first` on that have the same part on the other side. */
static group group_at(const xfi_intervals *list, size_t first)
{
  group g = {first, first};

  while (g.end < list->n && list->at[g.end].part == list->at[first].part)
    g.end++;
  return g;
}

/* The intervals of a group that begin at the same global index: a destination may hold an index
 * more than once. */
static group ties_at(const xfi_intervals *list, size_t first, size_t end)
{
  group g = {first, first};

  while (g.end < end && list->at[g.end].global == list->at[first].global)
    g.end++;
  return g;
}

/* The next index in each dim, last dim first, for boxes that ascend: first among those that begin
 * at one place. False: that was the last. */
static bool next_box(size_t *at, group *ties, const xfi_intervals *lists, const group *groups,
                     int n_dims)
{
  for (int d = n_dims - 1; d >= 0; d--) {
    if (++at[d] < ties[d].end) return true;
    at[d] = ties[d].first;
  }
  for (int d = n_dims - 1; d >= 0; d--) {
    const bool last = ties[d].end == groups[d].end;

    ties[d] = ties_at(&lists[d], last ? groups[d].first : ties[d].end, groups[d].end);
    at[d] = ties[d].first;
    if (!last) return true;
  }
  return false;
}

/* The product of one group per dim becomes a flow, whose boxes have room. */
static xfer_status add_flow(xfi_flows *flows, const xfi_intervals *lists, const group *groups,
                            const xfer_layout *other, uint32_t mine, int my_replica)
{
  const int n_dims = other->n_dims;
  size_t at[XFER_MAX_DIMS] = {0};
  group ties[XFER_MAX_DIMS] = {{0, 0}};
  xfi_flow *flow;

  XFI_TRY(xfi_vec_reserve(&flows->at, &flows->capacity, flows->n + 1, sizeof *flows->at));
  flow = &flows->at[flows->n];
  *flow = (xfi_flow){mine, my_replica, 0, (uint32_t)flows->n_boxes, 0, {1, 0}};
  for (int d = 0; d < n_dims; d++) {
    ties[d] = ties_at(&lists[d], groups[d].first, groups[d].end);
    at[d] = ties[d].first;
    flow->part += (uint32_t)xfi_dim_position(other, d, lists[d].at[at[d]].part);
  }
  do {
    xfi_box box;

    box.unit = XFI_NO_UNIT;
    for (int d = 0; d < n_dims; d++) {
      const xfi_interval *p = &lists[d].at[at[d]];

      box.lo[d] = p->global;
      box.length[d] = p->length;
      box.src_local[d] = p->src_local;
      box.dst_local[d] = p->dst_local;
    }
    xfi_flows_put(flows, flows->n_boxes++, &box);
  } while (next_box(at, ties, lists, groups, n_dims));
  flow->n = (uint32_t)flows->n_boxes - flow->first;
  flows->n++;
  return XFER_OK;
}

xfer_status xfi_flows_add(xfi_flows *flows, const xfi_intervals *lists, const xfer_layout *other,
                          uint32_t mine, int my_replica)
{
  const int n_dims = other->n_dims;
  group groups[XFER_MAX_DIMS] = {{0, 0}};
  size_t n_boxes = 1;
  int d;

  for (d = 0; d < n_dims; d++) {
    if (lists[d].n == 0) return XFER_OK;
    groups[d] = group_at(&lists[d], 0);
    if (!xfi_mul_fits(n_boxes, lists[d].n, &n_boxes) || n_boxes > UINT32_MAX)
      n_boxes = UINT32_MAX; /* too many, however many */
  }
  XFI_TRY(xfi_flows_reserve(flows, n_dims, flows->n_boxes + n_boxes));
  do {
    XFI_TRY(add_flow(flows, lists, groups, other, mine, my_replica));
    for (d = n_dims - 1; d >= 0; d--) {
      const bool last = groups[d].end == lists[d].n;

      groups[d] = group_at(&lists[d], last ? 0 : groups[d].end);
      if (!last) break;
    }
  } while (d >= 0);
  return XFER_OK;
}

xfer_status xfi_flows_fill_by_dims(const xfi_class_side *side)
{
  const xfi_place *place = side->is_source ? &side->cls->src_place : &side->cls->dst_place;
  const int n_dims = side->mine->n_dims;
  xfer_status st = XFER_OK;
  xfi_intervals lists[XFER_MAX_DIMS] = {{NULL, 0, 0}};
  xfi_runs runs[XFER_MAX_DIMS] = {{NULL, 0, 0}};

  for (int d = 0; d < n_dims; d++) {
    XFI_TRY_DONE((side->is_source ? xfi_dim_runs_once : xfi_dim_runs)(&side->mine->dims[d],
                                                                      place->part[d], &runs[d]));
    if (runs[d].n == 0) goto done;
  }
  for (int d = 0; d < n_dims; d++) {
    XFI_TRY_DONE(xfi_intervals_add(&lists[d], &runs[d], &side->other->dims[d], side->is_source));
    if (!side->is_source)
      XFI_TRY_DONE(prove_dim(&runs[d], &lists[d], d,
                             side->moves->tensors[side->cls->first_tensor].name,
                             side->moves->rank));
  }
  XFI_TRY_DONE(
      xfi_flows_add(side->flows, lists, side->other, (uint32_t)place->number, place->replica));
done:
  for (int d = 0; d < n_dims; d++) {
    xfi_free(runs[d].at);
    xfi_free(lists[d].at);
  }
  return st;
}
