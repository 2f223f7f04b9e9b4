/*
 * Flows where a side is by boxes: every box of this rank's is looked up on the other side, and what
 * they have in common is sorted by the two parts, then by place in the tensor. By placements a box
 * is a product of runs, and is looked up dim by dim.
 *
 * The proof is per destination box: what comes in lies inside it, adds up to it, and does not
 * overlap.
 */
#include <stdio.h>

#include "alloc.h"
#include "choose.h"
#include "error.h"
#include "flows_fill.h"
#include "vec.h"

static int by_index(const int64_t *a, const int64_t *b, int n_dims)
{
  for (int d = 0; d < n_dims; d++)
    if (a[d] != b[d]) return a[d] < b[d] ? -1 : 1;
  return 0;
}

static int by_parts(const void *a, const void *b)
{
  const xfi_common_box *x = *(xfi_common_box *const *)a;
  const xfi_common_box *y = *(xfi_common_box *const *)b;
  int order;

  if (x->src_part != y->src_part) return x->src_part < y->src_part ? -1 : 1;
  if (x->dst_part != y->dst_part) return x->dst_part < y->dst_part ? -1 : 1;
  order = by_index(x->box.lo, y->box.lo, x->n_dims);
  if (order != 0) return order;
  if (x->dst_unit != y->dst_unit) return x->dst_unit < y->dst_unit ? -1 : 1;
  return by_index(x->box.dst_local, y->box.dst_local, x->n_dims);
}

/* Add a box that both sides have in common. It is complete but for where it lies on this rank's
 * side. */
static xfer_status add_common(const xfi_class_side *side, const xfi_held *mine, uint32_t part,
                              const xfi_box *box)
{
  xfi_scratch *s = side->scratch;
  const int n_dims = side->mine->n_dims;
  xfi_common_box *x;
  int64_t *local;

  XFI_TRY(xfi_vec_reserve(&s->common, &s->common_capacity, s->n_common + 1, sizeof *s->common));
  x = &s->common[s->n_common++];
  x->src_part = side->is_source ? mine->part : part;
  x->dst_part = side->is_source ? part : mine->part;
  x->my_replica = mine->replica;
  x->dst_unit = side->is_source ? box->unit : mine->unit;
  x->n_dims = n_dims;
  x->box = *box;
  local = side->is_source ? x->box.src_local : x->box.dst_local;
  for (int d = 0; d < n_dims; d++)
    local[d] = mine->local[d] + (box->lo[d] - mine->bounds[d]);
  return XFER_OK;
}

/* Adds the box that `bounds`, of a unit of the other side, has in common with a box of this rank.
 */
static xfer_status intersect_bounds(const xfi_class_side *side, const xfi_held *mine, uint32_t unit,
                                    const int64_t *bounds)
{
  const xfer_layout *other = side->other;
  const int64_t *whole = xfi_unit_bounds(other, unit);
  const uint32_t part = other->boxes->part_of[unit];
  const int n = side->mine->n_dims;
  xfi_box box;

  if (!xfi_bounds_meet(bounds, mine->bounds, n)) return XFER_OK;
  __builtin_prefetch(&other->boxes->parts[part]); /* for its moves */
  box.unit = unit;
  for (int d = 0; d < n; d++) {
    const int64_t lo = bounds[d] > mine->bounds[d] ? bounds[d] : mine->bounds[d];
    const int64_t hi = bounds[n + d] < mine->bounds[n + d] ? bounds[n + d] : mine->bounds[n + d];

    box.lo[d] = lo;
    box.length[d] = hi - lo;
    box.src_local[d] = box.dst_local[d] = lo - whole[d];
  }
  return add_common(side, mine, part, &box);
}

static xfer_status intersect_boxes(const xfi_class_side *side, const xfi_held *mine)
{
  const xfer_layout *other = side->other;
  xfi_units *units = &side->scratch->units;
  xfi_bounds *read = &side->scratch->bounds;

  units->n = 0;
  XFI_TRY(xfi_boxes_meet(units, other, mine->bounds));
  for (size_t i = 0; i < units->n; i++) {
    read->n = 0;
    if (side->is_source)
      XFI_TRY(xfi_bounds_add(read, other->n_dims, xfi_unit_bounds(other, units->at[i])));
    else
      XFI_TRY(xfi_boxes_read_from(read, other, units->at[i]));
    for (size_t k = 0; k < read->n; k++)
      XFI_TRY(intersect_bounds(side, mine, units->at[i], read->at + k * 2 * (size_t)other->n_dims));
  }
  return XFER_OK;
}

static xfer_status intersect_placements(const xfi_class_side *side, const xfi_held *mine)
{
  const xfer_layout *other = side->other;
  xfi_flows *flows = &side->scratch->flows;
  const int n = other->n_dims;
  xfer_status st = XFER_OK;
  xfi_intervals lists[XFER_MAX_DIMS] = {{NULL, 0, 0}};

  flows->n = flows->n_boxes = 0;
  for (int d = 0; d < n; d++) {
    xfer_run run = {mine->bounds[d], mine->bounds[n + d] - mine->bounds[d], mine->local[d]};

    XFI_TRY_DONE(
        xfi_intervals_add(&lists[d], &(xfi_runs){&run, 1, 1}, &other->dims[d], side->is_source));
  }
  XFI_TRY_DONE(xfi_flows_add(flows, lists, other, mine->part, mine->replica));
  for (size_t f = 0; f < flows->n; f++)
    for (size_t b = 0; b < flows->at[f].n; b++) {
      const xfi_box box = xfi_flows_box(flows, flows->at[f].first + b);

      XFI_TRY_DONE(add_common(side, mine, flows->at[f].part, &box));
    }
done:
  for (int d = 0; d < n; d++)
    xfi_free(lists[d].at);
  return st;
}

/* ---- the proof ---- */

enum { BOUNDS_BYTES = 128 }; /* sizes whose product is below 2^62 have 70 characters at most */

static void print_bounds(char text[BOUNDS_BYTES], const int64_t *bounds, int n_dims)
{
  size_t n = 0;

  text[0] = '\0';
  for (int d = 0; d < n_dims; d++)
    n += (size_t)snprintf(text + n, BOUNDS_BYTES - n, "%s%lld:%lld", d > 0 ? "," : "",
                          (long long)bounds[d], (long long)bounds[n_dims + d]);
}

/* Some of the box has no source: say what. */
static xfer_status say_missing(const xfi_class_side *side, const xfi_held *mine,
                               const xfi_common_box *in, size_t n)
{
  const int n_dims = side->mine->n_dims;
  xfi_bounds *left = &side->scratch->bounds;
  char box[BOUNDS_BYTES];
  char rest[BOUNDS_BYTES];

  left->n = 0;
  XFI_TRY(xfi_bounds_add(left, n_dims, mine->bounds));
  for (size_t i = 0; i < n; i++) {
    int64_t bounds[2 * XFER_MAX_DIMS];

    for (int d = 0; d < n_dims; d++) {
      bounds[d] = in[i].box.lo[d];
      bounds[n_dims + d] = in[i].box.lo[d] + in[i].box.length[d];
    }
    XFI_TRY(xfi_bounds_subtract(left, 0, n_dims, bounds));
  }
  print_bounds(box, mine->bounds, n_dims);
  print_bounds(rest, left->at, n_dims);
  XFI_CHECK(false, XFER_ERR_SHAPE,
            "tensor \"%.100s\": rank %d needs [%s] of its box [%s], which no source holds",
            side->moves->tensors[side->cls->first_tensor].name, side->moves->rank, rest, box);
  return XFER_OK;
}

/* The dim to sweep along for overlaps: where the boxes are shortest compared to the whole, so that
 * few of them meet the sweep at a time. */
static int dim_to_sweep(const xfi_held *mine, const xfi_common_box *in, size_t n, int n_dims)
{
  double least = 0;
  int best = 0;

  for (int d = 0; d < n_dims; d++) {
    double sum = 0;

    for (size_t i = 0; i < n; i++)
      sum += (double)in[i].box.length[d];
    sum /= (double)(mine->bounds[n_dims + d] - mine->bounds[d]);
    if (d > 0 && sum >= least) continue;
    least = sum;
    best = d;
  }
  return best;
}

static bool boxes_overlap(const xfi_box *a, const xfi_box *b, int n_dims)
{
  for (int d = 0; d < n_dims; d++)
    if (a->lo[d] >= b->lo[d] + b->length[d] || b->lo[d] >= a->lo[d] + a->length[d]) return false;
  return true;
}

static int by_start(const void *a, const void *b)
{
  const xfi_start *x = a;
  const xfi_start *y = b;

  return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Prove that the boxes which come into one box of this rank cover each of its elements once. */
static xfer_status prove_box(const xfi_class_side *side, const xfi_held *mine,
                             const xfi_common_box *in, size_t n)
{
  xfi_scratch *s = side->scratch;
  const int n_dims = side->mine->n_dims;
  const int64_t whole = xfi_bounds_elems(mine->bounds, n_dims);
  const int by = dim_to_sweep(mine, in, n, n_dims);
  xfi_start *starts;
  int64_t sum = 0;

  for (size_t i = 0; i < n; i++)
    sum += xfi_box_elems(in[i].box.length, n_dims);
  if (sum < whole) return say_missing(side, mine, in, n);
  if (n == 1) return XFER_OK; /* a single one lies inside the box, so it is all of it */
  XFI_TRY(xfi_vec_reserve(&s->starts, &s->starts_capacity, n, sizeof *s->starts));
  starts = s->starts;
  for (size_t i = 0; i < n; i++)
    starts[i] = (xfi_start){in[i].box.lo[by], i};
  xfi_sort(starts, n, sizeof *starts, by_start);
  for (size_t i = 0; i < n; i++) {
    const xfi_box *a = &in[starts[i].i].box;

    for (size_t k = i + 1; k < n && starts[k].lo < a->lo[by] + a->length[by]; k++)
      XFI_CHECK(!boxes_overlap(a, &in[starts[k].i].box, n_dims), XFER_ERR_INTERNAL,
                "tensor \"%.100s\": rank %d would get an element twice",
                side->moves->tensors[side->cls->first_tensor].name, side->moves->rank);
  }
  return XFER_OK;
}

static xfer_status intersect_held(const xfi_class_side *side, const xfi_held *mine)
{
  xfi_scratch *s = side->scratch;
  const size_t first = s->n_common;

  XFI_TRY((side->other->boxes != NULL ? intersect_boxes : intersect_placements)(side, mine));
  if (side->is_source) return XFER_OK;
  if (s->n_common == first) return say_missing(side, mine, NULL, 0);
  return prove_box(side, mine, &s->common[first], s->n_common - first);
}

/* ---- flows ---- */

static bool begins_flow(xfi_common_box *const *order, size_t i)
{
  return i == 0 || order[i]->src_part != order[i - 1]->src_part ||
         order[i]->dst_part != order[i - 1]->dst_part;
}

/* Sort what was found and put it into flows. */
static xfer_status make_flows(xfi_flows *flows, xfi_scratch *s, int n_dims, bool is_source)
{
  const size_t n = s->n_common;
  size_t n_flows = 0;

  XFI_TRY(xfi_vec_reserve(&s->order, &s->order_capacity, n, sizeof(xfi_common_box *)));
  for (size_t i = 0; i < n; i++)
    s->order[i] = &s->common[i];
  xfi_sort(s->order, n, sizeof(xfi_common_box *), by_parts);
  for (size_t i = 0; i < n; i++)
    n_flows += begins_flow(s->order, i);
  XFI_TRY(xfi_vec_reserve(&flows->at, &flows->capacity, n_flows, sizeof *flows->at));
  XFI_TRY(xfi_flows_reserve(flows, n_dims, n));
  flows->n_boxes = n;
  for (size_t i = 0; i < n; i++) {
    const xfi_common_box *x = s->order[i];

    if (begins_flow(s->order, i))
      flows->at[flows->n++] = (xfi_flow){.mine = is_source ? x->src_part : x->dst_part,
                                         .my_replica = x->my_replica,
                                         .part = is_source ? x->dst_part : x->src_part,
                                         .first = (uint32_t)i,
                                         .sharers = {1, 0}};
    flows->at[flows->n - 1].n++;
    xfi_flows_put(flows, i, &x->box);
  }
  return XFER_OK;
}

void xfi_scratch_free(xfi_scratch *scratch)
{
  xfi_free(scratch->common);
  xfi_free(scratch->order);
  xfi_free(scratch->starts);
  xfi_free(scratch->units.at);
  xfi_free(scratch->bounds.at);
  xfi_free(scratch->held.at);
  xfi_flows_free(&scratch->flows);
  xfi_flows_free(&scratch->sends);
  xfi_flows_free(&scratch->recvs);
}

xfer_status xfi_flows_fill_by_boxes(const xfi_class_side *side)
{
  xfi_scratch *s = side->scratch;

  s->n_common = s->held.n = 0;
  XFI_TRY(xfi_layout_held(&s->held, side->mine, side->moves->rank, side->is_source));
  for (size_t i = 0; i < s->held.n; i++)
    XFI_TRY(intersect_held(side, &s->held.at[i]));
  return make_flows(side->flows, s, side->mine->n_dims, side->is_source);
}

xfer_status xfi_flows_of_sources(xfi_flows *flows, const xfi_class *cls)
{
  const xfer_layout *src = cls->src;
  xfer_status st = XFER_OK;
  xfi_scratch s = {0};
  xfi_place place = {.replica = 0};

  for (int p = 0; p < src->mesh->size; p++) {
    (void)xfi_layout_place(src, src->mesh->ranks[p], &place);
    if (place.replica == 0) XFI_TRY_DONE(xfi_layout_held(&s.held, src, src->mesh->ranks[p], true));
  }
  XFI_TRY_DONE(xfi_vec_reserve(&s.common, &s.common_capacity, s.held.n, sizeof *s.common));
  for (size_t i = 0; i < s.held.n; i++) {
    const xfi_held *held = &s.held.at[i];
    xfi_common_box *x = &s.common[s.n_common];

    if (held->replica > 0) continue;
    s.n_common++;
    *x = (xfi_common_box){.src_part = held->part, .n_dims = src->n_dims, .box.unit = held->unit};
    for (int d = 0; d < src->n_dims; d++) {
      x->box.lo[d] = held->bounds[d];
      x->box.length[d] = held->bounds[src->n_dims + d] - held->bounds[d];
      x->box.src_local[d] = x->box.dst_local[d] =
          src->boxes == NULL ? held->local[d]
                             : held->bounds[d] - xfi_unit_bounds(src, held->unit)[d];
    }
  }
  XFI_TRY_DONE(make_flows(flows, &s, src->n_dims, false));
done:
  xfi_scratch_free(&s);
  return st;
}
