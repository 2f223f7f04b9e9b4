/*
 * Classes: what one rank's part has in common with each part of the other side.
 *
 * Dim by dim, this rank's runs are looked up on the other side, which gives *pieces*: intervals
 * with their place in both parts, grouped by the other side's part. A flow is one group from each
 * dim, and its boxes are the product of their pieces. Pieces are maximal and in ascending order of
 * the destination's local index, so both ends of a flow list the same boxes in the same order.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "error.h"
#include "plan.h"
#include "vec.h"

typedef struct piece {
  int64_t part; /* of the other side */
  int64_t global;
  int64_t length;
  int64_t src_local;
  int64_t dst_local;
} piece;

typedef struct pieces {
  piece *at;
  size_t n;
  size_t capacity;
} pieces;

static int by_part(const void *a, const void *b)
{
  const piece *x = a;
  const piece *y = b;

  if (x->part != y->part) return x->part < y->part ? -1 : 1;
  return (x->dst_local > y->dst_local) - (x->dst_local < y->dst_local);
}

static int by_dst(const void *a, const void *b)
{
  const piece *x = a;
  const piece *y = b;

  return (x->dst_local > y->dst_local) - (x->dst_local < y->dst_local);
}

/* Sort by part and join what continues on both sides. */
static void make_canonical(pieces *list)
{
  size_t n = 0;

  if (list->n > 1) qsort(list->at, list->n, sizeof *list->at, by_part);
  for (size_t i = 0; i < list->n; i++) {
    const piece *p = &list->at[i];
    piece *last = n > 0 ? &list->at[n - 1] : NULL;

    if (last != NULL && last->part == p->part && last->global + last->length == p->global &&
        last->src_local + last->length == p->src_local &&
        last->dst_local + last->length == p->dst_local)
      last->length += p->length;
    else
      list->at[n++] = *p;
  }
  list->n = n;
}

/* Of one side's part, the runs to exchange: a source that shares an index with other parts, or
 * holds it twice, only sends what it is the first holder of. */
static xfer_status part_runs(const xfi_dim *dim, int64_t part, bool is_source, xfi_runs *runs)
{
  xfer_status st = XFER_OK;
  xfi_holds holds = {NULL, 0, 0};

  if (!is_source || !xfi_dim_has_table(dim)) return xfi_dim_runs(dim, part, runs);
  XFI_TRY(xfi_dim_holders(dim, 0, dim->size, true, &holds));
  for (size_t i = 0; i < holds.n; i++) {
    const xfi_hold *h = &holds.at[i];

    if (h->part != part) continue;
    XFI_TRY(xfi_vec_reserve(&runs->at, &runs->capacity, runs->n + 1, sizeof *runs->at));
    runs->at[runs->n++] = (xfer_run){h->global, h->length, h->local};
  }
done:
  xfi_holds_free(&holds);
  return st;
}

/* The pieces of one dim between this rank's part `mine` (source or destination) and the other side.
 */
static xfer_status dim_pieces(const xfi_dim *my_dim, int64_t mine, const xfi_dim *other,
                              bool is_source, pieces *list)
{
  xfer_status st = XFER_OK;
  xfi_runs runs = {NULL, 0, 0};
  xfi_holds holds = {NULL, 0, 0};

  XFI_TRY(part_runs(my_dim, mine, is_source, &runs));
  for (size_t i = 0; i < runs.n; i++) {
    const xfer_run *r = &runs.at[i];

    holds.n = 0;
    XFI_TRY(xfi_dim_holders(other, r->global, r->global + r->length, !is_source, &holds));
    for (size_t k = 0; k < holds.n; k++) {
      const xfi_hold *h = &holds.at[k];
      const int64_t my_local = r->local + (h->global - r->global);

      XFI_TRY(xfi_vec_reserve(&list->at, &list->capacity, list->n + 1, sizeof *list->at));
      list->at[list->n++] = (piece){h->part, h->global, h->length, is_source ? my_local : h->local,
                                    is_source ? h->local : my_local};
    }
  }
  make_canonical(list);
done:
  xfi_runs_free(&runs);
  xfi_holds_free(&holds);
  return st;
}

/* The proof for one dim of a destination part: its pieces cover each of its runs once, and nothing
 * else. What holds for every dim holds for the product. */
static xfer_status prove_dim(const xfi_dim *dim, int64_t part, const pieces *list, int d,
                             const char *tensor, int rank)
{
  xfer_status st = XFER_OK;
  xfi_runs runs = {NULL, 0, 0};
  piece *sorted = NULL;
  size_t k = 0;

  XFI_TRY(xfi_dim_runs(dim, part, &runs));
  sorted = xfi_calloc(list->n, sizeof *sorted);
  XFI_CHECK(sorted != NULL, XFER_ERR_NOMEM, "%zu pieces", list->n);
  if (list->n > 0) memcpy(sorted, list->at, list->n * sizeof *sorted);
  qsort(sorted, list->n, sizeof *sorted, by_dst);
  for (size_t i = 0; i < runs.n; i++) {
    int64_t at = runs.at[i].local;
    const int64_t end = at + runs.at[i].length;
    const int64_t to_global = runs.at[i].global - runs.at[i].local;

    while (at < end) {
      XFI_CHECK(k < list->n && sorted[k].dst_local == at && sorted[k].global == at + to_global,
                XFER_ERR_SHAPE,
                "tensor \"%s\", dim %d: rank %d needs index %lld, which no source part holds",
                tensor, d, rank, (long long)(at + to_global));
      at += sorted[k++].length;
    }
    XFI_CHECK(at == end, XFER_ERR_INTERNAL,
              "tensor \"%s\", dim %d: rank %d would get local index %lld twice", tensor, d, rank,
              (long long)end);
  }
  XFI_CHECK(k == list->n, XFER_ERR_INTERNAL,
            "tensor \"%s\", dim %d: rank %d would get local index %lld twice", tensor, d, rank,
            (long long)sorted[k].dst_local);
done:
  xfi_runs_free(&runs);
  xfi_free(sorted);
  return st;
}

/* A group of pieces with one part: [first, end). */
typedef struct group {
  size_t first;
  size_t end;
} group;

static group group_at(const pieces *list, size_t first)
{
  group g = {first, first};

  while (g.end < list->n && list->at[g.end].part == list->at[first].part)
    g.end++;
  return g;
}

/* The product of one group per dim becomes a flow. */
static xfer_status add_flow(xfi_flows *flows, const pieces *lists, const group *groups, int n_dims)
{
  xfer_status st = XFER_OK;
  size_t at[XFER_MAX_DIMS];
  xfi_flow *flow;
  int d;

  XFI_TRY(xfi_vec_reserve(&flows->at, &flows->capacity, flows->n + 1, sizeof *flows->at));
  flow = &flows->at[flows->n];
  flow->first = flows->n_boxes;
  for (d = 0; d < n_dims; d++) {
    at[d] = groups[d].first;
    flow->part[d] = lists[d].at[at[d]].part;
  }
  do {
    xfi_box *box;

    XFI_TRY(xfi_vec_reserve(&flows->boxes, &flows->boxes_capacity, flows->n_boxes + 1,
                            sizeof *flows->boxes));
    box = &flows->boxes[flows->n_boxes++];
    for (d = 0; d < n_dims; d++) {
      const piece *p = &lists[d].at[at[d]];

      box->lo[d] = p->global;
      box->length[d] = p->length;
      box->src_local[d] = p->src_local;
      box->dst_local[d] = p->dst_local;
    }
    for (d = n_dims - 1; d >= 0 && ++at[d] == groups[d].end; d--)
      at[d] = groups[d].first;
  } while (d >= 0);
  XFI_CHECK(flows->n_boxes <= UINT32_MAX, XFER_ERR_UNSUPPORTED, "more than %u boxes in one tensor",
            UINT32_MAX);
  flow->n = flows->n_boxes - flow->first;
  flows->n++;
done:
  return st;
}

/* Every combination of groups, one per dim. */
static xfer_status add_flows(xfi_flows *flows, const pieces *lists, int n_dims)
{
  xfer_status st = XFER_OK;
  group groups[XFER_MAX_DIMS] = {{0, 0}};
  int d;

  for (d = 0; d < n_dims; d++) {
    if (lists[d].n == 0) return XFER_OK;
    groups[d] = group_at(&lists[d], 0);
  }
  do {
    XFI_TRY(add_flow(flows, lists, groups, n_dims));
    for (d = n_dims - 1; d >= 0; d--) {
      const bool last = groups[d].end == lists[d].n;

      groups[d] = group_at(&lists[d], last ? 0 : groups[d].end);
      if (!last) break;
    }
  } while (d >= 0);
done:
  return st;
}

static xfer_status fill_flows(xfi_class *cls, const xfi_plan *plan, bool is_source)
{
  const xfer_layout *mine = is_source ? cls->src : cls->dst;
  const xfer_layout *other = is_source ? cls->dst : cls->src;
  const xfi_place *place = is_source ? &cls->src_place : &cls->dst_place;
  xfer_status st = XFER_OK;
  pieces lists[XFER_MAX_DIMS];

  memset(lists, 0, sizeof lists);
  for (int d = 0; d < mine->n_dims; d++) {
    XFI_TRY(dim_pieces(&mine->dims[d], place->part[d], &other->dims[d], is_source, &lists[d]));
    if (!is_source && cls->dst_bytes > cls->zero_bytes)
      XFI_TRY(prove_dim(&mine->dims[d], place->part[d], &lists[d], d,
                        plan->tensors[cls->first_tensor].name, plan->rank));
  }
  XFI_TRY(add_flows(is_source ? &cls->sends : &cls->recvs, lists, mine->n_dims));
done:
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    xfi_free(lists[d].at);
  return st;
}

/* Bytes of this rank's destination part, and of its ZERO elements. */
static xfer_status measure_dst(xfi_class *cls)
{
  xfer_status st = XFER_OK;
  xfi_runs runs = {NULL, 0, 0};
  uint64_t all = (uint64_t)cls->dst->elem_bytes;
  uint64_t valid = all;

  for (int d = 0; d < cls->dst->n_dims; d++) {
    uint64_t held = 0;

    XFI_TRY(xfi_dim_runs(&cls->dst->dims[d], cls->dst_place.part[d], &runs));
    for (size_t i = 0; i < runs.n; i++)
      held += (uint64_t)runs.at[i].length;
    all *= (uint64_t)xfi_dim_length(&cls->dst->dims[d], cls->dst_place.part[d]);
    valid *= held;
  }
  cls->dst_bytes = all;
  cls->zero_bytes = all - valid;
done:
  xfi_runs_free(&runs);
  return st;
}

/* All parts of a source dim, each with the runs that it is read from. */
static xfer_status source_pieces(const xfi_dim *dim, pieces *list)
{
  xfer_status st = XFER_OK;
  xfi_runs runs = {NULL, 0, 0};

  for (int64_t part = 0; part < dim->n_parts; part++) {
    runs.n = 0;
    XFI_TRY(part_runs(dim, part, true, &runs));
    for (size_t i = 0; i < runs.n; i++) {
      const xfer_run *r = &runs.at[i];

      XFI_TRY(xfi_vec_reserve(&list->at, &list->capacity, list->n + 1, sizeof *list->at));
      list->at[list->n++] = (piece){part, r->global, r->length, r->local, r->local};
    }
  }
  make_canonical(list);
done:
  xfi_runs_free(&runs);
  return st;
}

xfer_status xfi_class_sources(xfi_flows *flows, const xfi_class *cls)
{
  xfer_status st = XFER_OK;
  pieces lists[XFER_MAX_DIMS];

  memset(lists, 0, sizeof lists);
  for (int d = 0; d < cls->src->n_dims; d++)
    XFI_TRY(source_pieces(&cls->src->dims[d], &lists[d]));
  XFI_TRY(add_flows(flows, lists, cls->src->n_dims));
done:
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    xfi_free(lists[d].at);
  return st;
}

xfer_status xfi_class_fill(xfi_class *cls, const xfi_plan *plan)
{
  xfer_status st = XFER_OK;

  cls->in_src = xfi_layout_place(cls->src, plan->rank, &cls->src_place);
  cls->in_dst = xfi_layout_place(cls->dst, plan->rank, &cls->dst_place);
  if (cls->in_src) XFI_TRY(fill_flows(cls, plan, true));
  if (cls->in_dst) {
    XFI_TRY(measure_dst(cls));
    XFI_TRY(fill_flows(cls, plan, false));
  }
done:
  return st;
}

void xfi_flows_free(xfi_flows *flows)
{
  xfi_free(flows->at);
  xfi_free(flows->boxes);
}

void xfi_class_free(xfi_class *cls)
{
  xfi_flows_free(&cls->sends);
  xfi_flows_free(&cls->recvs);
}
