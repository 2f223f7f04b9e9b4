/*
 * Flows where a side is by boxes: every box of this rank's is looked up on the other side, and what
 * they have in common is sorted by the two parts, then by place in the tensor. By placements a box
 * is a product of runs, and is looked up dim by dim.
 *
 * The proof is per destination box: what comes in lies inside it, adds up to it, and does not
 * overlap.
 */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "class.h"
#include "error.h"
#include "vec.h"

typedef xfi_met met;

typedef struct meeting {
  const xfi_look *look;
  xfi_scratch *s;
} meeting;

static int by_index(const int64_t *a, const int64_t *b, int n_dims)
{
  for (int d = 0; d < n_dims; d++)
    if (a[d] != b[d]) return a[d] < b[d] ? -1 : 1;
  return 0;
}

static int by_parts(const void *a, const void *b)
{
  const met *x = *(met *const *)a;
  const met *y = *(met *const *)b;
  int order;

  if (x->src_part != y->src_part) return x->src_part < y->src_part ? -1 : 1;
  if (x->dst_part != y->dst_part) return x->dst_part < y->dst_part ? -1 : 1;
  order = by_index(x->box.lo, y->box.lo, x->n_dims);
  if (order != 0) return order;
  if (x->dst_unit != y->dst_unit) return x->dst_unit < y->dst_unit ? -1 : 1;
  return by_index(x->box.dst_local, y->box.dst_local, x->n_dims);
}

/* Another one, of which all but the box is known. */
static xfer_status new_met(met **out, meeting *m, const xfi_held *mine, uint32_t part,
                           uint32_t unit)
{
  const bool is_source = m->look->is_source;
  xfer_status st = XFER_OK;
  met *x;

  XFI_TRY(xfi_vec_reserve(&m->s->met, &m->s->met_capacity, m->s->n_met + 1, sizeof *m->s->met));
  x = &m->s->met[m->s->n_met++];
  x->mine = mine->part;
  x->part = part;
  x->my_replica = mine->replica;
  x->src_part = is_source ? mine->part : part;
  x->dst_part = is_source ? part : mine->part;
  x->dst_unit = is_source ? unit : mine->unit;
  x->n_dims = m->look->mine->n_dims;
  *out = x;
done:
  return st;
}

/* Its box lies where on this rank's side? */
static void set_own_local(met *x, const xfi_held *mine, bool is_source)
{
  int64_t *local = is_source ? x->box.src_local : x->box.dst_local;

  for (int d = 0; d < x->n_dims; d++)
    local[d] = mine->local[d] + (x->box.lo[d] - mine->bounds[d]);
}

/* What `bounds` of a unit of the other side has in common with a box of this rank's. */
static xfer_status meet_bounds(meeting *m, const xfi_held *mine, uint32_t unit,
                               const int64_t *bounds)
{
  const xfer_layout *other = m->look->other;
  const int64_t *whole = xfi_unit_bounds(other, unit);
  const bool is_source = m->look->is_source;
  const int n = other->n_dims;
  xfer_status st = XFER_OK;
  met *x;

  if (!xfi_bounds_meet(bounds, mine->bounds, n)) return XFER_OK;
  XFI_TRY(new_met(&x, m, mine, other->boxes->part_of[unit], unit));
  __builtin_prefetch(&other->boxes->parts[x->part]); /* for its moves */
  x->box.unit = unit;
  for (int d = 0; d < n; d++) {
    const int64_t lo = bounds[d] > mine->bounds[d] ? bounds[d] : mine->bounds[d];
    const int64_t hi = bounds[n + d] < mine->bounds[n + d] ? bounds[n + d] : mine->bounds[n + d];

    x->box.lo[d] = lo;
    x->box.length[d] = hi - lo;
    (is_source ? x->box.dst_local : x->box.src_local)[d] = lo - whole[d];
  }
  set_own_local(x, mine, is_source);
done:
  return st;
}

static xfer_status meet_boxes(meeting *m, const xfi_held *mine)
{
  const xfer_layout *other = m->look->other;
  const size_t n_words = 2 * (size_t)other->n_dims;
  xfer_status st = XFER_OK;

  m->s->units.n = 0;
  XFI_TRY(xfi_boxes_meet(&m->s->units, other, mine->bounds));
  for (size_t i = 0; i < m->s->units.n; i++) {
    const uint32_t unit = m->s->units.at[i];

    m->s->bounds.n = 0;
    if (m->look->is_source)
      XFI_TRY(xfi_bounds_add(&m->s->bounds, other->n_dims, xfi_unit_bounds(other, unit)));
    else
      XFI_TRY(xfi_boxes_read_from(&m->s->bounds, other, unit));
    for (size_t k = 0; k < m->s->bounds.n; k++)
      XFI_TRY(meet_bounds(m, mine, unit, m->s->bounds.at + k * n_words));
  }
done:
  return st;
}

static xfer_status meet_placements(meeting *m, const xfi_held *mine)
{
  const xfer_layout *other = m->look->other;
  const int n = other->n_dims;
  xfer_status st = XFER_OK;
  xfi_pieces lists[XFER_MAX_DIMS];

  memset(lists, 0, sizeof lists);
  m->s->flows.n = m->s->flows.n_boxes = 0;
  for (int d = 0; d < n; d++) {
    xfer_run run = {mine->bounds[d], mine->bounds[n + d] - mine->bounds[d], mine->local[d]};

    XFI_TRY(
        xfi_pieces_add(&lists[d], &(xfi_runs){&run, 1, 1}, &other->dims[d], m->look->is_source));
  }
  XFI_TRY(xfi_flows_add(&m->s->flows, lists, other, mine->part, mine->replica));
  for (size_t f = 0; f < m->s->flows.n; f++) {
    const xfi_flow *flow = &m->s->flows.at[f];

    for (size_t b = 0; b < flow->n; b++) {
      const xfi_box box = xfi_flows_box(&m->s->flows, flow->first + b);
      met *x;

      XFI_TRY(new_met(&x, m, mine, flow->part, box.unit));
      x->box = box;
      set_own_local(x, mine, m->look->is_source);
    }
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

static void box_bounds(int64_t *bounds, const xfi_box *box, int n_dims)
{
  for (int d = 0; d < n_dims; d++) {
    bounds[d] = box->lo[d];
    bounds[n_dims + d] = box->lo[d] + box->length[d];
  }
}

/* Some of the box has no source: say what. */
static xfer_status say_missing(meeting *m, const xfi_held *mine, const met *in, size_t n)
{
  const xfi_look *look = m->look;
  const int n_dims = look->mine->n_dims;
  xfer_status st = XFER_OK;
  char box[BOUNDS_BYTES];
  char rest[BOUNDS_BYTES];

  m->s->bounds.n = 0;
  XFI_TRY(xfi_bounds_add(&m->s->bounds, n_dims, mine->bounds));
  for (size_t i = 0; i < n; i++) {
    int64_t bounds[2 * XFER_MAX_DIMS];

    box_bounds(bounds, &in[i].box, n_dims);
    XFI_TRY(xfi_bounds_subtract(&m->s->bounds, 0, n_dims, bounds));
  }
  print_bounds(box, mine->bounds, n_dims);
  print_bounds(rest, m->s->bounds.at, n_dims);
  XFI_CHECK(false, XFER_ERR_SHAPE,
            "tensor \"%s\": rank %d needs [%s] of its box [%s], which no source holds",
            look->plan->tensors[look->cls->first_tensor].name, look->plan->rank, rest, box);
done:
  return st;
}

/* The dim in which the boxes are shortest beside the whole: few of them lie side by side there. */
static int dim_to_sweep(const xfi_held *mine, const met *in, size_t n, int n_dims)
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

/* What comes into one box of this rank's: all of it, and nothing twice. */
static xfer_status prove_box(meeting *m, const xfi_held *mine, const met *in, size_t n)
{
  const xfi_look *look = m->look;
  const int n_dims = look->mine->n_dims;
  const int64_t whole = xfi_bounds_elems(mine->bounds, n_dims);
  const int by = dim_to_sweep(mine, in, n, n_dims);
  xfer_status st = XFER_OK;
  xfi_start *starts;
  int64_t sum = 0;

  for (size_t i = 0; i < n; i++)
    sum += xfi_box_elems(in[i].box.length, n_dims);
  if (sum < whole) return say_missing(m, mine, in, n);
  if (n == 1) return XFER_OK; /* it is part of the box */
  XFI_TRY(xfi_vec_reserve(&m->s->starts, &m->s->starts_capacity, n, sizeof *m->s->starts));
  starts = m->s->starts;
  for (size_t i = 0; i < n; i++)
    starts[i] = (xfi_start){in[i].box.lo[by], i};
  xfi_sort(starts, n, sizeof *starts, by_start);
  for (size_t i = 0; i < n; i++) {
    const xfi_box *a = &in[starts[i].i].box;

    for (size_t k = i + 1; k < n && starts[k].lo < a->lo[by] + a->length[by]; k++)
      XFI_CHECK(!boxes_overlap(a, &in[starts[k].i].box, n_dims), XFER_ERR_INTERNAL,
                "tensor \"%s\": rank %d would get an element twice",
                look->plan->tensors[look->cls->first_tensor].name, look->plan->rank);
  }
done:
  return st;
}

static xfer_status meet_own(meeting *m, const xfi_held *mine)
{
  const size_t first = m->s->n_met;
  xfer_status st = XFER_OK;

  XFI_TRY(m->look->other->boxes != NULL ? meet_boxes(m, mine) : meet_placements(m, mine));
  if (m->look->is_source) return XFER_OK;
  if (m->s->met == NULL || m->s->n_met == first) return say_missing(m, mine, NULL, 0);
  XFI_TRY(prove_box(m, mine, &m->s->met[first], m->s->n_met - first));
done:
  return st;
}

/* ---- flows ---- */

/* Sort what was met and put it into flows. */
static xfer_status make_flows(xfi_flows *flows, xfi_scratch *s, int n_dims)
{
  const size_t n = s->n_met;
  xfer_status st = XFER_OK;
  size_t n_flows = 0;

  XFI_TRY(xfi_vec_reserve(&s->order, &s->order_capacity, n, sizeof(met *)));
  for (size_t i = 0; i < n; i++)
    s->order[i] = &s->met[i];
  xfi_sort(s->order, n, sizeof(met *), by_parts);
  for (size_t i = 0; i < n; i++)
    n_flows += i == 0 || s->order[i]->src_part != s->order[i - 1]->src_part ||
               s->order[i]->dst_part != s->order[i - 1]->dst_part;
  XFI_TRY(xfi_vec_reserve(&flows->at, &flows->capacity, n_flows, sizeof *flows->at));
  XFI_TRY(xfi_flows_reserve(flows, n_dims, n));
  flows->n_boxes = n;
  for (size_t i = 0; i < n; i++) {
    const met *x = s->order[i];

    if (i == 0 || x->src_part != s->order[i - 1]->src_part ||
        x->dst_part != s->order[i - 1]->dst_part)
      flows->at[flows->n++] = (xfi_flow){x->mine, x->my_replica, x->part, (uint32_t)i, 0, {1, 0}};
    flows->at[flows->n - 1].n++;
    xfi_flows_put(flows, i, &x->box);
  }
done:
  return st;
}

void xfi_scratch_free(xfi_scratch *scratch)
{
  xfi_free(scratch->met);
  xfi_free(scratch->order);
  xfi_free(scratch->starts);
  xfi_free(scratch->units.at);
  xfi_free(scratch->bounds.at);
  xfi_held_list_free(&scratch->held);
  xfi_flows_free(&scratch->flows);
  xfi_flows_free(&scratch->sends);
  xfi_flows_free(&scratch->recvs);
}

xfer_status xfi_meet_fill(const xfi_look *look)
{
  xfer_status st = XFER_OK;
  meeting m = {look, look->scratch};

  m.s->n_met = m.s->held.n = 0;
  XFI_TRY(xfi_layout_held(&m.s->held, look->mine, look->plan->rank, look->is_source));
  for (size_t i = 0; i < m.s->held.n; i++)
    XFI_TRY(meet_own(&m, &m.s->held.at[i]));
  XFI_TRY(make_flows(look->flows, m.s, look->mine->n_dims));
done:
  return st;
}

xfer_status xfi_class_sources(xfi_flows *flows, const xfi_class *cls)
{
  const xfer_layout *src = cls->src;
  xfer_status st = XFER_OK;
  xfi_scratch s = {0};

  for (int p = 0; p < src->mesh->size; p++)
    XFI_TRY(xfi_layout_held(&s.held, src, src->mesh->ranks[p], true));
  XFI_TRY(xfi_vec_reserve(&s.met, &s.met_capacity, s.held.n, sizeof *s.met));
  for (size_t i = 0; i < s.held.n; i++) {
    const xfi_held *held = &s.held.at[i];
    met *x = &s.met[s.n_met];

    if (held->replica > 0) continue;
    s.n_met++;
    *x = (met){.part = held->part, .src_part = held->part, .n_dims = src->n_dims};
    x->box.unit = held->unit;
    for (int d = 0; d < src->n_dims; d++) {
      x->box.lo[d] = held->bounds[d];
      x->box.length[d] = held->bounds[src->n_dims + d] - held->bounds[d];
      x->box.src_local[d] = x->box.dst_local[d] =
          src->boxes == NULL ? held->local[d]
                             : held->bounds[d] - xfi_unit_bounds(src, held->unit)[d];
    }
  }
  XFI_TRY(make_flows(flows, &s, src->n_dims));
done:
  xfi_scratch_free(&s);
  return st;
}
