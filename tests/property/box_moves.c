/* See box_case.h: the same moves by boxes as by placements. */
#include <string.h>

#include "box_case.h"
#include "layouts.h"

/* Is no index held by two coordinates of a table, or twice by one? */
static bool holds_once(const orc_side *o)
{
  for (int a = 0; a < o->n_axes; a++) {
    const orc_table *t = o->places[a].table;
    if (o->places[a].kind != ORC_TABLE) continue;
    for (int64_t i = 0; i < t->first[t->n_coords]; i++)
      for (int64_t k = 0; k < i; k++)
        if (t->runs[i].global < t->runs[k].global + t->runs[k].length &&
            t->runs[k].global < t->runs[i].global + t->runs[i].length)
          return false;
  }
  return true;
}

/* The plan of one rank. */
static xfer_plan *plan_of(const box_case *c, int rank, const xfer_layout *src,
                          const xfer_layout *dst)
{
  const xfer_tensor tensor = {"t", src, dst, {0}};
  xfer_plan_options options = c->p.options;
  xfer_plan *plan = NULL;

  options.max_staging_bytes = 0;
  options.flags &= ~(uint32_t)XFER_PLAN_STAGED; /* what is padded is staged too */
  if (xfer_plan_simulate(&plan, c->p.n_ranks, rank, &tensor, 1, &options) != XFER_OK) return NULL;
  return plan;
}

static bool same_move(const xfer_move *a, const xfer_move *b)
{
  return a->src_rank == b->src_rank && a->dst_rank == b->dst_rank && a->n_bytes == b->n_bytes &&
         a->broadcast == b->broadcast && memcmp(a->lo, b->lo, sizeof a->lo) == 0 &&
         memcmp(a->hi, b->hi, sizeof a->hi) == 0;
}

static bool same_plans(const xfer_plan *a, const xfer_plan *b, char *why, size_t n_why)
{
  xfer_plan_report_data x = XFER_PLAN_REPORT_INIT;
  xfer_plan_report_data y = XFER_PLAN_REPORT_INIT;

  if (xfer_plan_report(a, &x) != XFER_OK || xfer_plan_report(b, &y) != XFER_OK) return false;
  x.in_bytes -= x.zero_bytes; /* what is padded differs */
  y.in_bytes -= y.zero_bytes;
  x.zero_bytes = y.zero_bytes = 0;
  /* By boxes an empty part has no replicas, and parts of a table that are equal are some. */
  x.replicated_tensors = y.replicated_tensors = 0;
  if (memcmp(&x, &y, sizeof x) != 0) {
    (void)snprintf(why, n_why,
                   "the report by boxes has %llu moves, %llu bytes out; by placements "
                   "%llu, %llu",
                   (unsigned long long)y.n_moves, (unsigned long long)y.out_bytes,
                   (unsigned long long)x.n_moves, (unsigned long long)x.out_bytes);
    return false;
  }
  for (size_t i = 0; i < x.n_moves; i++) {
    xfer_move m, n;
    if (xfer_plan_move_get(a, i, &m) != XFER_OK || xfer_plan_move_get(b, i, &n) != XFER_OK)
      return false;
    if (same_move(&m, &n)) continue;
    (void)snprintf(why, n_why,
                   "move %zu of %llu is from %d to %d at %lld by boxes, by placements "
                   "from %d to %d at %lld",
                   i, (unsigned long long)x.n_moves, n.src_rank, n.dst_rank, (long long)n.lo[0],
                   m.src_rank, m.dst_rank, (long long)m.lo[0]);
    return false;
  }
  return true;
}

static xfer_layout *whole_layout(const box_case *c, int t, int s)
{
  const orc_side *o = &c->p.tensors[t].sides[s];
  const box_side *side = &c->sides[t][s];
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_layout *layout = NULL;
  xfer_mesh *mesh = NULL;

  if (xfer_mesh_create(&mesh, &side->n_ranks, 1, side->ranks) != XFER_OK) return NULL;
  desc.mesh = mesh;
  desc.dtype = (int32_t)c->p.tensors[t].dtypes[s];
  desc.n_dims = o->n_dims;
  desc.shape = o->shape;
  desc.first = side->first;
  desc.bounds = side->bounds;
  if (xfer_layout_create_boxes(&layout, &desc) != XFER_OK) layout = NULL;
  xfer_mesh_destroy(mesh);
  return layout;
}

static bool tensor_same_moves(const box_case *c, int t, char *why, size_t n_why)
{
  xfer_layout *placed[2] = {NULL, NULL}, *boxed[2] = {NULL, NULL};
  bool same = layouts_create(placed, &c->p, t) == XFER_OK;

  for (int s = SRC; s <= DST && same; s++) {
    if (c->sides[t][s].converted) boxed[s] = whole_layout(c, t, s);
    same = !c->sides[t][s].converted || boxed[s] != NULL;
  }
  if (!same) (void)snprintf(why, n_why, "layouts of tensor %d: %s", t, xfer_last_error());
  for (int rank = 0; rank < c->p.n_ranks && same; rank++) {
    xfer_plan *a = plan_of(c, rank, placed[SRC], placed[DST]);
    xfer_plan *b = plan_of(c, rank, boxed[SRC] != NULL ? boxed[SRC] : placed[SRC],
                           boxed[DST] != NULL ? boxed[DST] : placed[DST]);
    same = (a == NULL) == (b == NULL) && (a == NULL || same_plans(a, b, why, n_why));
    xfer_plan_destroy(a);
    xfer_plan_destroy(b);
  }
  for (int s = SRC; s <= DST; s++) {
    xfer_layout_destroy(placed[s]);
    xfer_layout_destroy(boxed[s]);
  }
  return same;
}

bool box_case_same_moves(const box_case *c, char *why, size_t n_why)
{
  for (int t = 0; t < c->p.n_tensors; t++) {
    const box_side *sides = c->sides[t];
    const orc_side *o = c->p.tensors[t].sides;
    const bool comparable = (sides[SRC].kind == BY_PLACEMENTS || sides[SRC].converted) &&
                            (sides[DST].kind == BY_PLACEMENTS || sides[DST].converted) &&
                            (sides[SRC].converted || sides[DST].converted);
    if (!comparable || !holds_once(&o[SRC]) || !holds_once(&o[DST])) continue;
    if (!tensor_same_moves(c, t, why, n_why)) return false;
  }
  return true;
}
