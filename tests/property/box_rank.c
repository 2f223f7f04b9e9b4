/* See box_case.h: what one rank does with a case. */
#include <stdlib.h>
#include <string.h>

#include "box_case.h"
#include "layouts.h"
#include "rng.h"

/* One side of one tensor on this rank. */
typedef struct held_view {
  box_held held;
  int64_t *offset; /* [held.n] of each element in the memory */
  xfer_view view;
  bool is_set;
} held_view;

typedef struct rank_state {
  const box_case *c;
  xfer_comm *comm;
  const rank_device *device; /* NULL: the host's memory */
  int rank;
  rng r;
  orc_arena arena;
  xfer_layout *layouts[MAX_TENSORS][2];
  held_view views[MAX_TENSORS][2];
  int64_t size[2]; /* of the memories: sources, destinations */
  unsigned char *memory[2];
  unsigned char *want[2];
  char *why;
  size_t n_why;
} rank_state;

static bool say(rank_state *k, const char *what, xfer_status st)
{
  (void)snprintf(k->why, k->n_why, "rank %d, %s: %s (%s)", k->rank, what, xfer_status_name(st),
                 xfer_last_error());
  return false;
}

/* ---- layouts ---- */

static xfer_status make_layout(xfer_layout **layout, const box_case *c, int t, int s, int rank)
{
  const orc_side *o = &c->p.tensors[t].sides[s];
  const box_side *side = &c->sides[t][s];
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_mesh *mesh = NULL;
  xfer_status st;
  int64_t own[2] = {0, 0};
  int at = -1;

  desc.dtype = (int32_t)c->p.tensors[t].dtypes[s];
  desc.n_dims = o->n_dims;
  desc.shape = o->shape;
  desc.first = side->kind == BY_RANGES ? NULL : side->first;
  desc.bounds = side->kind == BY_RANGES ? side->ranges[0] : side->bounds;
  if (!side->own) {
    st = xfer_mesh_create(&mesh, &side->n_ranks, 1, side->ranks);
    if (st != XFER_OK) return st;
    desc.mesh = mesh;
  } else {
    for (int p = 0; p < side->n_ranks; p++)
      if (side->ranks[p] == rank) at = p;
    if (side->kind == BY_RANGES) desc.bounds = at < 0 ? own : side->ranges[at];
    if (side->kind == BY_BOXES && at >= 0) {
      own[1] = side->first[at + 1] - side->first[at];
      desc.bounds = side->bounds + side->first[at] * 2 * o->n_dims;
    }
    if (side->kind == BY_BOXES) desc.first = own;
  }
  st = side->kind == BY_RANGES ? xfer_layout_create_flat(layout, &desc)
                               : xfer_layout_create_boxes(layout, &desc);
  xfer_mesh_destroy(mesh);
  return st;
}

/* A rank that has no boxes need not say so. */
static bool is_silent(const box_case *c, int t, int s, int rank)
{
  const box_side *side = &c->sides[t][s];

  for (int p = 0; p < side->n_ranks; p++)
    if (side->ranks[p] == rank) return false;
  return side->own && (c->p.number + (uint64_t)rank) % 2 == 0;
}

static bool make_layouts(rank_state *k)
{
  for (int t = 0; t < k->c->p.n_tensors; t++) {
    xfer_layout *both[2];
    xfer_status st = layouts_create(both, &k->c->p, t);
    if (st != XFER_OK) return say(k, "layouts", st);
    for (int s = SRC; s <= DST; s++) {
      k->layouts[t][s] = both[s];
      if (k->c->sides[t][s].kind == BY_PLACEMENTS) continue;
      xfer_layout_destroy(both[s]);
      k->layouts[t][s] = NULL;
      if (is_silent(k->c, t, s, k->rank)) continue;
      st = make_layout(&k->layouts[t][s], k->c, t, s, k->rank);
      if (st != XFER_OK) return say(k, "layout by boxes", st);
    }
  }
  return true;
}

/* ---- views ---- */

/* Random strides for a box of `shape`, each dim past the end of those inside; returns its extent.
 */
static int64_t random_strides(rng *r, int64_t *strides, const int64_t *shape, int n, int64_t elem)
{
  int dims[ORC_MAX_DIMS];
  int64_t extent = elem;

  for (int i = 0; i < n; i++)
    dims[i] = n - 1 - i;
  if (rng_percent(r, 40)) rng_shuffle(r, dims, n);
  for (int i = 0; i < n; i++) {
    strides[dims[i]] = extent + (rng_percent(r, 30) ? elem * rng_below(r, 3) : 0);
    if (shape[dims[i]] > 1) extent += strides[dims[i]] * (shape[dims[i]] - 1);
  }
  return extent;
}

static void dense_strides(int64_t *strides, const int64_t *shape, int n, int64_t elem)
{
  for (int d = n - 1; d >= 0; d--) {
    strides[d] = elem;
    elem *= shape[d];
  }
}

static int64_t box_elems(const int64_t *shape, int n)
{
  int64_t all = 1;
  for (int d = 0; d < n; d++)
    all *= shape[d];
  return all;
}

/* Where a box may begin from `at` on: GPUs want what they convert at multiples of its size. */
static int64_t placed_from(int64_t at, const problem_tensor *tensor, int64_t elem)
{
  return tensor->change == NO_CHANGE ? at : (at + elem - 1) / elem * elem;
}

/* Each element of one box at its place from `base` on. */
static void lay_box(int64_t *offset, int64_t base, const int64_t *strides, const int64_t *shape,
                    int n)
{
  int64_t x[ORC_MAX_DIMS] = {0};

  for (int64_t e = 0, all = box_elems(shape, n); e < all; e++) {
    offset[e] = base;
    for (int d = 0; d < n; d++)
      offset[e] += x[d] * strides[d];
    for (int d = n - 1; d >= 0 && ++x[d] == shape[d]; d--)
      x[d] = 0;
  }
}

/* Where all that this rank holds of one side lies. Addresses are offsets until memory is there. */
static void place(rank_state *k, int t, int s)
{
  const problem_tensor *tensor = &k->c->p.tensors[t];
  const box_side *side = &k->c->sides[t][s];
  const int n = tensor->sides[s].n_dims;
  const int64_t elem = (int64_t)xfer_dtype_size(tensor->dtypes[s]);
  held_view *v = &k->views[t][s];
  int64_t *strides;
  void **bases;
  int64_t e = 0;
  const bool dense = side->kind == BY_RANGES || rng_percent(&k->r, 35);

  v->held = box_case_held(k->c, t, s, k->rank, &k->arena);
  if (v->held.n == 0) return;
  v->is_set = true;
  v->offset = orc_alloc(&k->arena, (size_t)v->held.n * sizeof *v->offset);
  k->size[s] = placed_from(k->size[s] + rng_below(&k->r, 40), tensor, elem);
  if (dense) {
    v->view = xfer_view_dense((void *)(uintptr_t)k->size[s]);
    for (; e < v->held.n; e++)
      v->offset[e] = k->size[s] + e * elem;
    k->size[s] += v->held.n * elem;
    return;
  }
  strides = orc_alloc(&k->arena, (size_t)(v->held.n_boxes * n + 1) * sizeof *strides);
  bases = orc_alloc(&k->arena, (size_t)v->held.n_boxes * sizeof *bases);
  const bool plain = side->kind == BY_BOXES && rng_percent(&k->r, 25);
  for (int64_t b = 0; b < v->held.n_boxes; b++) {
    const int64_t *shape = v->held.shapes + b * n;
    int64_t extent = box_elems(shape, n) * elem;
    dense_strides(strides + b * n, shape, n, elem);
    if (!plain) extent = random_strides(&k->r, strides + b * n, shape, n, elem);
    k->size[s] = placed_from(k->size[s] + rng_below(&k->r, 20), tensor, elem);
    bases[b] = (void *)(uintptr_t)k->size[s];
    lay_box(v->offset + e, k->size[s], strides + b * n, shape, n);
    e += box_elems(shape, n);
    k->size[s] += extent;
  }
  if (side->kind == BY_PLACEMENTS || (v->held.n_boxes == 1 && rng_percent(&k->r, 30)))
    v->view = xfer_view_strided(bases[0], strides, n);
  else
    v->view = xfer_view_boxes(bases, v->held.n_boxes, plain ? NULL : strides, n);
}

/* From offsets to addresses. */
static void settle_views(rank_state *k)
{
  for (int t = 0; t < k->c->p.n_tensors; t++) {
    for (int s = SRC; s <= DST; s++) {
      held_view *v = &k->views[t][s];
      if (!v->is_set) continue;
      if (v->view.kind != XFER_VIEW_BOXES) v->view.base = k->memory[s] + (uintptr_t)v->view.base;
      for (int64_t b = 0; v->view.kind == XFER_VIEW_BOXES && b < v->view.n_pieces; b++)
        ((void **)(uintptr_t)v->view.pieces)[b] = k->memory[s] + (uintptr_t)v->view.pieces[b];
    }
  }
}

/* Sources hold values that are a function of the place in the tensor; destinations must. */
static void fill(rank_state *k, uint64_t run)
{
  for (int s = SRC; s <= DST; s++) {
    for (int64_t i = 0; i < k->size[s]; i++)
      k->memory[s][i] = k->want[s][i] = (unsigned char)rng_next(&k->r);
    for (int t = 0; t < k->c->p.n_tensors; t++) {
      const held_view *v = &k->views[t][s];
      const size_t elem = xfer_dtype_size(k->c->p.tensors[t].dtypes[s]);
      for (int64_t e = 0; e < v->held.n; e++) {
        const int64_t flat = v->held.flat[e];
        uint64_t value = rng_mix(run * 1000 + (uint64_t)t + (uint64_t)flat * 0x9e3779b97f4a7c15u);
        value = flat < 0 ? 0 : problem_element(&k->c->p.tensors[t], s, value);
        if (s == SRC && flat >= 0) memcpy(k->memory[s] + v->offset[e], &value, elem);
        if (s == DST || flat >= 0) memcpy(k->want[s] + v->offset[e], &value, elem);
      }
    }
  }
}

static bool compare(rank_state *k)
{
  for (int s = SRC; s <= DST; s++) {
    for (int64_t i = 0; i < k->size[s]; i++) {
      if (k->memory[s][i] == k->want[s][i]) continue;
      (void)snprintf(k->why, k->n_why, "rank %d: byte %lld of its %s is %02x, not %02x", k->rank,
                     (long long)i, s == SRC ? "sources" : "destinations", k->memory[s][i],
                     k->want[s][i]);
      return false;
    }
  }
  return true;
}

/* ---- the plan ---- */

static uint64_t bytes_to_arrive(const rank_state *k)
{
  uint64_t n = 0;
  for (int t = 0; t < k->c->p.n_tensors; t++)
    n += (uint64_t)k->views[t][DST].held.n * problem_wire_bytes(&k->c->p.tensors[t]);
  return n;
}

static xfer_stream stream_of(const rank_state *k)
{
  return k->device != NULL ? k->device->stream(k->rank) : NULL;
}

/* All have filled their memory: from here on it may be touched, until end(). */
static bool begin(rank_state *k, int run)
{
  const uint64_t hold = 0;
  uint64_t all[ORC_MAX_RANKS * 2];
  const xfer_status st = xfer_comm_all_gather(k->comm, all, &hold, sizeof hold);

  if (st != XFER_OK) return say(k, "all-gather", st);
  if (k->device != NULL) k->device->begin(k->rank, (uint64_t)run);
  return true;
}

static bool end(rank_state *k, bool waited)
{
  if (k->device == NULL || k->device->end(k->rank, waited)) return true;
  (void)snprintf(k->why, k->n_why, "rank %d: its stream failed", k->rank);
  return false;
}

static bool get_ready(rank_state *k, xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  for (int t = 0; t < k->c->p.n_tensors; t++) {
    st = xfer_plan_bind(plan, (size_t)t, k->views[t][SRC].is_set ? &k->views[t][SRC].view : NULL,
                        k->views[t][DST].is_set ? &k->views[t][DST].view : NULL);
    if (st != XFER_OK) (void)say(k, "bind", st); /* go on: the others commit */
  }
  const bool bound = k->why[0] == '\0';
  st = xfer_plan_commit(plan);
  if (st != XFER_OK) return bound ? say(k, "commit", st) : false;
  return true;
}

static bool run_plan(rank_state *k, xfer_plan *plan, bool corrupt)
{
  const box_case *c = k->c;
  const bool fresh = (c->p.options.flags & XFER_PLAN_FRESH_SOURCES) != 0;
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  xfer_status st = XFER_OK;

  for (int run = 1; run <= c->p.n_runs; run++) {
    if ((run == 1 || fresh) && !get_ready(k, plan)) return false;
    fill(k, (uint64_t)run);
    if (!begin(k, run)) return false;
    st = xfer_plan_run(plan, (uint64_t)run, stream_of(k));
    if (st == XFER_OK) st = xfer_plan_wait(plan, 0);
    const bool ended = end(k, true);
    if (st != XFER_OK) return say(k, "run", st);
    if (!ended) return false;
    if (corrupt && k->size[DST] > 0) k->memory[DST][k->size[DST] / 2] ^= 1;
    if (!compare(k)) return false;
  }
  st = xfer_plan_report(plan, &report);
  if (st != XFER_OK) return say(k, "report", st);
  if (report.in_bytes != bytes_to_arrive(k)) {
    (void)snprintf(k->why, k->n_why, "rank %d: in_bytes %llu, not %llu", k->rank,
                   (unsigned long long)report.in_bytes, (unsigned long long)bytes_to_arrive(k));
    return false;
  }
  return true;
}

/* Tensor by tensor, in one call each; the second time the plan is kept. */
static bool run_calls(rank_state *k, bool corrupt)
{
  for (int run = 1; run <= 2; run++) {
    xfer_status st = XFER_OK;
    fill(k, (uint64_t)run);
    if (!begin(k, run)) return false;
    for (int t = 0; t < k->c->p.n_tensors && st == XFER_OK; t++)
      st = xfer_redistribute(k->comm, k->layouts[t][SRC],
                             k->views[t][SRC].is_set ? &k->views[t][SRC].view : NULL,
                             k->layouts[t][DST],
                             k->views[t][DST].is_set ? &k->views[t][DST].view : NULL, stream_of(k));
    const bool ended = end(k, false);
    if (st != XFER_OK) return say(k, "redistribute", st);
    if (!ended) return false;
    if (corrupt && k->size[DST] > 0) k->memory[DST][k->size[DST] / 2] ^= 1;
    if (!compare(k)) return false;
  }
  return true;
}

static bool plan_and_run(rank_state *k, bool corrupt)
{
  const box_case *c = k->c;
  xfer_tensor tensors[MAX_TENSORS];
  char names[MAX_TENSORS][16];
  xfer_plan_options options = c->p.options;
  xfer_plan *plan = NULL;
  bool covered = true;
  bool right;
  xfer_status st;

  for (int t = 0; t < c->p.n_tensors; t++) {
    (void)snprintf(names[t], sizeof names[t], "t%d", t);
    tensors[t] = (xfer_tensor){names[t], k->layouts[t][SRC], k->layouts[t][DST],
                               problem_conversion(&c->p.tensors[t])};
    covered = covered && c->is_covered[t];
  }
  if (covered && c->p.one_call) return run_calls(k, corrupt);
  options.max_staging_bytes = 0;
  st = xfer_plan_create(&plan, k->comm, tensors, (size_t)c->p.n_tensors, &options);
  if (!covered) {
    right = st == XFER_ERR_SHAPE || st == XFER_ERR_PEER;
    if (!right) (void)say(k, "a plan in which something has no source", st);
  } else {
    right = st == XFER_OK ? run_plan(k, plan, corrupt) : say(k, "plan", st);
  }
  xfer_plan_destroy(plan);
  return right;
}

/* Memory of this size, with room before and behind. */
static void take_memory(rank_state *k, int s)
{
  const rank_device *device = k->device;

  k->size[s] += 32;
  k->memory[s] =
      device != NULL ? device->alloc(k->rank, (size_t)k->size[s]) : malloc((size_t)k->size[s]);
  k->want[s] = malloc((size_t)k->size[s]);
  if (k->memory[s] == NULL || k->want[s] == NULL) abort();
}

static void give_memory(rank_state *k, int s)
{
  if (k->device != NULL)
    k->device->release(k->memory[s]);
  else
    free(k->memory[s]);
  free(k->want[s]);
}

bool box_case_rank(const box_case *c, xfer_comm *comm, const rank_device *device, bool corrupt,
                   char *why, size_t n_why)
{
  rank_state k = {.c = c,
                  .comm = comm,
                  .device = device,
                  .rank = xfer_comm_rank(comm),
                  .why = why,
                  .n_why = n_why};
  bool right;

  if (device != NULL) device->enter(k.rank);
  k.r = rng_of(c->p.seed, c->p.number, 200 + (uint64_t)k.rank);
  k.size[SRC] = k.size[DST] = 32;
  right = make_layouts(&k);
  for (int t = 0; t < c->p.n_tensors; t++)
    for (int s = SRC; s <= DST; s++)
      place(&k, t, s);
  for (int s = SRC; s <= DST; s++)
    take_memory(&k, s);
  settle_views(&k);
  if (right) right = plan_and_run(&k, corrupt);
  for (int t = 0; t < c->p.n_tensors; t++)
    for (int s = SRC; s <= DST; s++)
      xfer_layout_destroy(k.layouts[t][s]);
  for (int s = SRC; s <= DST; s++)
    give_memory(&k, s);
  orc_free(&k.arena);
  return right;
}
