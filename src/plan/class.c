/*
 * Classes: what one rank's part has in common with each part of the other side.
 *
 * Dim by dim, this rank's runs are looked up on the other side, which gives *pieces*: intervals
 * with their place in both parts, grouped by the other side's part. A flow is one group from each
 * dim, and its boxes are the product of their pieces. Pieces are maximal and in ascending order of
 * the global index, so both ends of a flow list the same boxes in the same order.
 */
#include "class.h"

#include <string.h>

#include "alloc.h"
#include "error.h"
#include "vec.h"

static int by_part(const void *a, const void *b)
{
  const xfi_piece *x = a;
  const xfi_piece *y = b;

  if (x->part != y->part) return x->part < y->part ? -1 : 1;
  return (x->dst_local > y->dst_local) - (x->dst_local < y->dst_local);
}

static int by_global(const void *a, const void *b)
{
  const xfi_piece *x = a;
  const xfi_piece *y = b;

  if (x->part != y->part) return (x->part > y->part) - (x->part < y->part);
  if (x->global != y->global) return x->global < y->global ? -1 : 1;
  return (x->dst_local > y->dst_local) - (x->dst_local < y->dst_local);
}

static int by_dst(const void *a, const void *b)
{
  const xfi_piece *x = a;
  const xfi_piece *y = b;

  return (x->dst_local > y->dst_local) - (x->dst_local < y->dst_local);
}

/* Sort by part and join what continues on both sides. */
static void make_canonical(xfi_pieces *list)
{
  size_t n = 0;

  xfi_sort(list->at, list->n, sizeof *list->at, by_part);
  for (size_t i = 0; i < list->n; i++) {
    const xfi_piece *p = &list->at[i];
    xfi_piece *last = n > 0 ? &list->at[n - 1] : NULL;

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

static int by_local(const void *a, const void *b)
{
  const xfer_run *x = a;
  const xfer_run *y = b;

  return (x->local > y->local) - (x->local < y->local);
}

/* Sort and join what continues. */
static void join_runs(xfi_runs *runs)
{
  size_t n = 0;

  xfi_sort(runs->at, runs->n, sizeof *runs->at, by_local);
  for (size_t i = 0; i < runs->n; i++) {
    const xfer_run *r = &runs->at[i];
    xfer_run *last = n > 0 ? &runs->at[n - 1] : NULL;

    if (last != NULL && last->global + last->length == r->global &&
        last->local + last->length == r->local)
      last->length += r->length;
    else
      runs->at[n++] = *r;
  }
  runs->n = n;
}

xfer_status xfi_part_runs(const xfi_dim *dim, int64_t part, bool is_source, xfi_runs *runs)
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
  join_runs(runs);
done:
  xfi_holds_free(&holds);
  return st;
}

xfer_status xfi_pieces_add(xfi_pieces *list, const xfi_runs *runs, const xfi_dim *other,
                           bool is_source)
{
  xfer_status st = XFER_OK;
  xfi_holds holds = {NULL, 0, 0};

  for (size_t i = 0; i < runs->n; i++) {
    const xfer_run *r = &runs->at[i];

    holds.n = 0;
    XFI_TRY(xfi_dim_holders(other, r->global, r->global + r->length, !is_source, &holds));
    for (size_t k = 0; k < holds.n; k++) {
      const xfi_hold *h = &holds.at[k];
      const int64_t my_local = r->local + (h->global - r->global);

      XFI_TRY(xfi_vec_reserve(&list->at, &list->capacity, list->n + 1, sizeof *list->at));
      list->at[list->n++] =
          (xfi_piece){h->part, h->global, h->length, is_source ? my_local : h->local,
                      is_source ? h->local : my_local};
    }
  }
  make_canonical(list);
done:
  xfi_holds_free(&holds);
  return st;
}

/* The proof for one dim of a destination part: its pieces cover each of its runs once, and nothing
 * else. What holds for every dim holds for the product. */
static xfer_status prove_dim(const xfi_dim *dim, int64_t part, const xfi_pieces *list, int d,
                             const char *tensor, int rank)
{
  xfer_status st = XFER_OK;
  xfi_runs runs = {NULL, 0, 0};
  xfi_piece *sorted = NULL;
  size_t k = 0;

  XFI_TRY(xfi_dim_runs(dim, part, &runs));
  sorted = xfi_calloc(list->n, sizeof *sorted);
  XFI_CHECK(sorted != NULL, XFER_ERR_NOMEM, "%zu pieces", list->n);
  if (list->n > 0) memcpy(sorted, list->at, list->n * sizeof *sorted);
  xfi_sort(sorted, list->n, sizeof *sorted, by_dst);
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

static group group_at(const xfi_pieces *list, size_t first)
{
  group g = {first, first};

  while (g.end < list->n && list->at[g.end].part == list->at[first].part)
    g.end++;
  return g;
}

/* The product of one group per dim becomes a flow. */
static xfer_status add_flow(xfi_flows *flows, const xfi_pieces *lists, const group *groups,
                            const xfer_layout *other, uint32_t mine, int my_replica)
{
  const int n_dims = other->n_dims;
  xfer_status st = XFER_OK;
  size_t at[XFER_MAX_DIMS];
  xfi_flow *flow;
  int d;

  XFI_TRY(xfi_vec_reserve(&flows->at, &flows->capacity, flows->n + 1, sizeof *flows->at));
  flow = &flows->at[flows->n];
  *flow = (xfi_flow){mine, my_replica, 0, (uint32_t)flows->n_boxes, 0, {1, 0}};
  for (d = 0; d < n_dims; d++) {
    at[d] = groups[d].first;
    flow->part += (uint32_t)xfi_dim_position(other, d, lists[d].at[at[d]].part);
  }
  do {
    xfi_box box;

    box.unit = XFI_NO_UNIT;
    for (d = 0; d < n_dims; d++) {
      const xfi_piece *p = &lists[d].at[at[d]];

      box.lo[d] = p->global;
      box.length[d] = p->length;
      box.src_local[d] = p->src_local;
      box.dst_local[d] = p->dst_local;
    }
    XFI_TRY(xfi_flows_reserve(flows, n_dims, flows->n_boxes + 1));
    xfi_flows_put(flows, flows->n_boxes++, &box);
    for (d = n_dims - 1; d >= 0 && ++at[d] == groups[d].end; d--)
      at[d] = groups[d].first;
  } while (d >= 0);
  flow->n = (uint32_t)flows->n_boxes - flow->first;
  flows->n++;
done:
  return st;
}

xfer_status xfi_flows_add(xfi_flows *flows, const xfi_pieces *lists, const xfer_layout *other,
                          uint32_t mine, int my_replica)
{
  const int n_dims = other->n_dims;
  xfer_status st = XFER_OK;
  group groups[XFER_MAX_DIMS] = {{0, 0}};
  int d;

  for (d = 0; d < n_dims; d++) {
    if (lists[d].n == 0) return XFER_OK;
    groups[d] = group_at(&lists[d], 0);
  }
  do {
    XFI_TRY(add_flow(flows, lists, groups, other, mine, my_replica));
    for (d = n_dims - 1; d >= 0; d--) {
      const bool last = groups[d].end == lists[d].n;

      groups[d] = group_at(&lists[d], last ? 0 : groups[d].end);
      if (!last) break;
    }
  } while (d >= 0);
done:
  return st;
}

uint32_t xfi_place_part(const xfer_layout *layout, const xfi_place *place)
{
  int position = 0;

  for (int d = 0; d < layout->n_dims; d++)
    position += xfi_dim_position(layout, d, place->part[d]);
  return (uint32_t)position;
}

static xfer_status fill_by_dims(const xfi_look *look)
{
  const xfi_class *cls = look->cls;
  const xfi_place *place = look->is_source ? &cls->src_place : &cls->dst_place;
  xfer_status st = XFER_OK;
  xfi_pieces lists[XFER_MAX_DIMS];
  xfi_runs runs = {NULL, 0, 0};

  memset(lists, 0, sizeof lists);
  for (int d = 0; d < look->mine->n_dims; d++) {
    const xfi_dim *dim = &look->mine->dims[d];

    runs.n = 0;
    XFI_TRY(xfi_part_runs(dim, place->part[d], look->is_source, &runs));
    XFI_TRY(xfi_pieces_add(&lists[d], &runs, &look->other->dims[d], look->is_source));
    if (!look->is_source && cls->dst_bytes > cls->zero_bytes)
      XFI_TRY(prove_dim(dim, place->part[d], &lists[d], d,
                        look->plan->tensors[cls->first_tensor].name, look->plan->rank));
  }
  XFI_TRY(xfi_flows_add(look->flows, lists, look->other, xfi_place_part(look->mine, place),
                        place->replica));
done:
  xfi_runs_free(&runs);
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    xfi_free(lists[d].at);
  return st;
}

static xfer_status fill_flows(xfi_class *cls, const xfi_plan *plan, bool is_source,
                              xfi_scratch *scratch)
{
  const xfi_look look = {cls,
                         plan,
                         is_source,
                         is_source ? cls->src : cls->dst,
                         is_source ? cls->dst : cls->src,
                         is_source ? &scratch->sends : &scratch->recvs,
                         scratch};

  look.flows->n = look.flows->n_boxes = 0;
  if (cls->src->boxes == NULL && cls->dst->boxes == NULL) return fill_by_dims(&look);
  return xfi_meet_fill(&look);
}

/* The same of boxes. */
static void measure_listed(xfi_class *cls, int rank)
{
  const xfi_boxes *b = cls->dst->boxes;
  const int position = xfi_mesh_find(cls->dst->mesh, rank);
  const int n_dims = cls->dst->n_dims;

  for (size_t i = (size_t)b->first[position]; i < (size_t)b->first[position + 1]; i++) {
    int64_t n = xfi_bounds_elems(xfi_listed_bounds(cls->dst, i), n_dims);
    int64_t clipped[2 * XFER_MAX_DIMS];

    cls->dst_bytes += (uint64_t)(n * cls->wire_bytes);
    if (xfi_listed_clip(clipped, cls->dst, i)) n -= xfi_bounds_elems(clipped, n_dims);
    cls->zero_bytes += (uint64_t)(n * cls->wire_bytes);
  }
}

/* Bytes of this rank's destination part, and of its ZERO elements. */
static xfer_status measure_dst(xfi_class *cls, int rank)
{
  xfer_status st = XFER_OK;
  xfi_runs runs = {NULL, 0, 0};
  uint64_t all = (uint64_t)cls->wire_bytes;
  uint64_t valid = all;

  if (cls->dst->boxes != NULL) {
    measure_listed(cls, rank);
    return XFER_OK;
  }
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
static xfer_status source_pieces(const xfi_dim *dim, xfi_pieces *list)
{
  xfer_status st = XFER_OK;
  xfi_runs runs = {NULL, 0, 0};

  for (int64_t part = 0; part < dim->n_parts; part++) {
    runs.n = 0;
    XFI_TRY(xfi_part_runs(dim, part, true, &runs));
    for (size_t i = 0; i < runs.n; i++) {
      const xfer_run *r = &runs.at[i];

      XFI_TRY(xfi_vec_reserve(&list->at, &list->capacity, list->n + 1, sizeof *list->at));
      list->at[list->n++] = (xfi_piece){part, r->global, r->length, r->local, r->local};
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
  xfi_pieces lists[XFER_MAX_DIMS];

  if (cls->src->boxes != NULL) return xfi_meet_sources(flows, cls->src);
  memset(lists, 0, sizeof lists);
  for (int d = 0; d < cls->src->n_dims; d++)
    XFI_TRY(source_pieces(&cls->src->dims[d], &lists[d]));
  XFI_TRY(xfi_flows_add(flows, lists, cls->src, 0, 0));
done:
  for (int d = 0; d < XFER_MAX_DIMS; d++)
    xfi_free(lists[d].at);
  return st;
}

static bool find_rank(const xfer_layout *layout, int rank, xfi_place *place)
{
  if (layout->boxes != NULL) return xfi_mesh_find(layout->mesh, rank) >= 0;
  return xfi_layout_place(layout, rank, place);
}

bool xfi_class_find_dst(xfi_class *cls, int rank)
{
  cls->in_dst = find_rank(cls->dst, rank, &cls->dst_place);
  return cls->in_dst;
}

xfer_status xfi_class_fill_receives(xfi_class *cls, const xfi_plan *plan, xfi_scratch *scratch)
{
  xfer_status st = XFER_OK;

  XFI_TRY(measure_dst(cls, plan->rank));
  XFI_TRY(fill_flows(cls, plan, false, scratch));
  for (size_t f = 0; f < scratch->recvs.n; f++) {
    xfi_flow *flow = &scratch->recvs.at[f];

    flow->sharers = xfi_find_sharers(plan, cls, flow->part, flow->mine, plan->rank);
  }
  cls->recvs = scratch->recvs;
done:
  return st;
}

xfer_status xfi_class_fill(xfi_class *cls, const xfi_plan *plan, xfi_scratch *scratch)
{
  xfer_status st = XFER_OK;

  scratch->sends.n = scratch->sends.n_boxes = 0;
  scratch->recvs.n = scratch->recvs.n_boxes = 0;
  cls->in_src = find_rank(cls->src, plan->rank, &cls->src_place);
  if (cls->in_src) XFI_TRY(fill_flows(cls, plan, true, scratch));
  if (xfi_class_find_dst(cls, plan->rank)) XFI_TRY(xfi_class_fill_receives(cls, plan, scratch));
  XFI_TRY(xfi_class_keep(cls, &scratch->sends, &scratch->recvs));
done:
  return st;
}

void xfi_class_free(xfi_class *cls)
{
  xfi_free(cls->memory);
}
