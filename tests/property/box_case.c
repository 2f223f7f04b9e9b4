/* See box_case.h: making cases. */
#include "box_case.h"

#include <stdlib.h>
#include <string.h>

#include "rng.h"

/* Boxes of one side while they are made. */
typedef struct draft {
  rng *r;
  int n_dims;
  const int64_t *shape;
  int n;
  int capacity;
  int64_t (*boxes)[2 * ORC_MAX_DIMS]; /* lo, hi */
  int *rank;                          /* position of the rank that lists it */
} draft;

enum { MOST_BOXES = 400 };

static void draft_add(draft *d, int rank, const int64_t *lo, const int64_t *hi)
{
  if (d->n == d->capacity) return;
  for (int k = 0; k < d->n_dims; k++) {
    d->boxes[d->n][k] = lo[k];
    d->boxes[d->n][d->n_dims + k] = hi[k];
  }
  d->rank[d->n++] = rank;
}

/* Cut [lo, hi) in two again and again and deal the leaves out, some to several ranks. */
static void draft_tile(draft *d, int n_ranks, int64_t *lo, int64_t *hi, int depth)
{
  int dim = d->n_dims > 0 ? rng_int(d->r, 0, d->n_dims - 1) : 0;

  if (d->n_dims > 0 && depth > 0 && hi[dim] - lo[dim] > 1 && rng_percent(d->r, 85)) {
    const int64_t a = lo[dim], b = hi[dim];
    const int64_t at = a + 1 + rng_below(d->r, b - a - 1);
    hi[dim] = at;
    draft_tile(d, n_ranks, lo, hi, depth - 1);
    lo[dim] = at;
    hi[dim] = b;
    draft_tile(d, n_ranks, lo, hi, depth - 1);
    lo[dim] = a;
    return;
  }
  const int first = rng_int(d->r, 0, n_ranks - 1);
  const int copies = rng_percent(d->r, 70) ? 1 : rng_int(d->r, 1, n_ranks);
  for (int i = 0; i < copies; i++)
    draft_add(d, (first + i) % n_ranks, lo, hi);
  if (rng_percent(d->r, 4)) draft_add(d, first, lo, hi); /* twice on one rank */
}

static void draft_scatter(draft *d, int n_ranks, int n)
{
  for (int i = 0; i < n; i++) {
    int64_t lo[ORC_MAX_DIMS], hi[ORC_MAX_DIMS];
    for (int k = 0; k < d->n_dims; k++) {
      lo[k] = rng_below(d->r, d->shape[k] + 1);
      hi[k] = lo[k] + rng_below(d->r, d->shape[k] - lo[k] + 1);
      if (rng_percent(d->r, 25)) lo[k] = 0;
      if (rng_percent(d->r, 25)) hi[k] = d->shape[k];
    }
    draft_add(d, rng_int(d->r, 0, n_ranks - 1), lo, hi);
  }
}

/* Let boxes reach past the shape, and add some that lie outside altogether. */
static void draft_pad(draft *d, int n_ranks)
{
  for (int i = 0; i < d->n && d->n_dims > 0; i++) {
    const int k = rng_int(d->r, 0, d->n_dims - 1);
    if (rng_percent(d->r, 30) && d->boxes[i][d->n_dims + k] == d->shape[k])
      d->boxes[i][d->n_dims + k] += rng_below(d->r, 4);
  }
  if (d->n_dims > 0 && rng_percent(d->r, 30)) {
    int64_t lo[ORC_MAX_DIMS], hi[ORC_MAX_DIMS];
    for (int k = 0; k < d->n_dims; k++) {
      lo[k] = d->shape[k] + rng_below(d->r, 3);
      hi[k] = lo[k] + rng_below(d->r, 4);
    }
    draft_add(d, rng_int(d->r, 0, n_ranks - 1), lo, hi);
  }
}

/* One rank's boxes after the other, each list in a random order or as drafted. */
static void draft_list(draft *d, box_side *side, orc_arena *arena)
{
  int order[MOST_BOXES];
  const size_t n_words = 2 * (size_t)d->n_dims;
  int64_t n = 0;

  for (int i = 0; i < d->n; i++)
    order[i] = i;
  if (rng_percent(d->r, 60)) rng_shuffle(d->r, order, d->n);
  side->bounds = orc_alloc(arena, ((size_t)d->n + 1) * (n_words + 1) * sizeof *side->bounds);
  for (int p = 0; p < side->n_ranks; p++) {
    side->first[p] = n;
    for (int i = 0; i < d->n; i++) {
      if (d->rank[order[i]] != p) continue;
      if (d->n_dims == 0 && n > side->first[p]) continue; /* a scalar is held once */
      memcpy(side->bounds + (size_t)n * n_words, d->boxes[order[i]], n_words * sizeof(int64_t));
      n++;
    }
  }
  side->first[side->n_ranks] = n;
}

static draft draft_begin(rng *r, const orc_side *o, int capacity, orc_arena *arena)
{
  draft d = {.r = r, .n_dims = o->n_dims, .shape = o->shape, .capacity = capacity};
  d.boxes = orc_alloc(arena, (size_t)capacity * sizeof *d.boxes);
  d.rank = orc_alloc(arena, (size_t)capacity * sizeof *d.rank);
  return d;
}

static void random_boxes(rng *r, box_side *side, const orc_side *o, bool is_source,
                         orc_arena *arena)
{
  draft d = draft_begin(r, o, MOST_BOXES, arena);
  int64_t lo[ORC_MAX_DIMS] = {0}, hi[ORC_MAX_DIMS];

  memcpy(hi, o->shape, sizeof hi);
  if (is_source ? rng_percent(r, 97) : rng_percent(r, 60))
    draft_tile(&d, side->n_ranks, lo, hi, rng_int(r, 0, 5));
  if (d.n == 0 || rng_percent(r, 35))
    draft_scatter(&d, side->n_ranks, rng_int(r, 0, 3 * side->n_ranks));
  if (rng_percent(r, 25)) draft_pad(&d, side->n_ranks);
  draft_list(&d, side, arena);
}

/* ---- flat ranges ---- */

static int64_t n_elems(const orc_side *o)
{
  int64_t n = 1;
  for (int d = 0; d < o->n_dims; d++)
    n *= o->shape[d];
  return n;
}

/* The boxes of a range, element by element: a box grows as long as the next element lies beside it
   in one dim; boxes that are equal but for neighbouring intervals of one dim are then one. Here
   only for comparing what is held, so every element is a box of its own run along the last dim. */
static void ranges_to_boxes(box_side *side, const orc_side *o, orc_arena *arena)
{
  const int n = o->n_dims;
  const int64_t total = n_elems(o);
  int64_t count = 0, most = 0;

  for (int p = 0; p < side->n_ranks; p++)
    most += side->ranges[p][1] - side->ranges[p][0] + 1;
  side->bounds = orc_alloc(arena, (size_t)most * 2 * (size_t)(n + 1) * sizeof *side->bounds);
  for (int p = 0; p < side->n_ranks; p++) {
    side->first[p] = count;
    for (int64_t e = side->ranges[p][0]; e < side->ranges[p][1]; e++) {
      int64_t *b = side->bounds + count++ * 2 * n;
      int64_t rest = e;
      for (int d = n - 1; d >= 0; d--) {
        const bool outside = e >= total;
        b[d] = outside ? o->shape[d] : rest % o->shape[d];
        b[n + d] = b[d] + 1;
        if (!outside) rest /= o->shape[d];
      }
    }
  }
  side->first[side->n_ranks] = count;
}

/* Ragged ranges that follow each other, sometimes overlapping, sometimes with padding. */
static void random_ranges(rng *r, box_side *side, const orc_side *o, orc_arena *arena)
{
  const int64_t total = n_elems(o);
  const int64_t padded = total + (o->n_dims > 0 && rng_percent(r, 40) ? rng_below(r, 20) : 0);
  int64_t at = 0;
  const bool even = rng_percent(r, 50);

  for (int p = 0; p < side->n_ranks; p++) {
    int64_t end = even ? padded * (p + 1) / side->n_ranks : at + rng_below(r, padded - at + 1);
    if (p == side->n_ranks - 1) end = padded;
    side->ranges[p][0] = at;
    side->ranges[p][1] = end;
    if (rng_percent(r, 5)) side->ranges[p][0] = rng_below(r, at + 1);
    at = end;
  }
  ranges_to_boxes(side, o, arena);
}

/* ---- what placements come to ---- */

static bool placements_to_boxes(rng *r, box_side *side, const orc_side *o, orc_arena *arena)
{
  draft d = draft_begin(r, o, MOST_BOXES, arena);

  for (int p = 0; p < side->n_ranks; p++) {
    orc_part part;
    orc_run *runs[ORC_MAX_DIMS];
    size_t n_runs[ORC_MAX_DIMS], at[ORC_MAX_DIMS] = {0};
    bool empty = false;
    int k;
    if (orc_part_of(&part, o, side->ranks[p], arena) != ORC_FINE) return false;
    for (k = 0; k < o->n_dims; k++) {
      n_runs[k] = orc_runs(NULL, 0, &part.dims[k]);
      runs[k] = orc_alloc(arena, (n_runs[k] + 1) * sizeof **runs);
      (void)orc_runs(runs[k], n_runs[k], &part.dims[k]);
      empty = empty || n_runs[k] == 0;
    }
    while (!empty) {
      int64_t lo[ORC_MAX_DIMS], hi[ORC_MAX_DIMS];
      for (k = 0; k < o->n_dims; k++) {
        lo[k] = runs[k][at[k]].global;
        hi[k] = lo[k] + runs[k][at[k]].length;
      }
      if (d.n == d.capacity) return false;
      draft_add(&d, p, lo, hi);
      for (k = o->n_dims - 1; k >= 0 && ++at[k] == n_runs[k]; k--)
        at[k] = 0;
      if (k < 0) break;
    }
  }
  draft_list(&d, side, arena);
  return true;
}

/* ---- sides ---- */

static void make_side(box_case *c, rng *r, int t, int s)
{
  orc_side *o = &c->p.tensors[t].sides[s];
  box_side *side = &c->sides[t][s];
  const bool fine = orc_check(o, &c->arena) == ORC_FINE;
  const int dice = rng_int(r, 0, 99);

  *side = (box_side){.kind = BY_BOXES, .n_ranks = o->n_ranks};
  memcpy(side->ranks, o->ranks, sizeof side->ranks);
  if (fine && dice < 35) {
    side->kind = BY_PLACEMENTS;
    return;
  }
  side->own = rng_percent(r, 30);
  side->converted = fine && dice < 50 && placements_to_boxes(r, side, o, &c->arena);
  if (side->converted) return;
  for (int a = 0; a < o->n_axes; a++) /* they are not used: let them be fine */
    o->places[a] = (orc_place){ORC_REPLICATE, 0, 0, NULL};
  memcpy(o->padded, o->shape, sizeof o->padded);
  if (dice < 70 && n_elems(o) < 20000) {
    side->kind = BY_RANGES;
    random_ranges(r, side, o, &c->arena);
    return;
  }
  random_boxes(r, side, o, s == SRC, &c->arena);
}

/* ---- what is held ---- */

/* Mark, or look for marks of, what one side's ranks hold. */
static bool walk_side(const box_case *c, int t, int s, unsigned char *marks, bool set,
                      orc_arena *arena)
{
  bool all = true;
  for (int rank = 0; rank < c->p.n_ranks; rank++) {
    const box_held held = box_case_held(c, t, s, rank, arena);
    for (int64_t e = 0; e < held.n; e++) {
      if (held.flat[e] < 0) continue;
      if (set) marks[held.flat[e]] = 1;
      all = all && marks[held.flat[e]] != 0;
    }
  }
  return all;
}

static bool find_covered(const box_case *c, int t)
{
  orc_arena arena = {NULL};
  const size_t n = (size_t)n_elems(&c->p.tensors[t].sides[SRC]);
  unsigned char *marks = orc_alloc(&arena, n + 1);
  bool covered;

  memset(marks, 0, n + 1);
  (void)walk_side(c, t, SRC, marks, true, &arena);
  covered = walk_side(c, t, DST, marks, false, &arena);
  orc_free(&arena);
  return covered;
}

/* A part by placements, in row-major order of its local indices. */
static void hold_part(box_held *held, const orc_side *o, const orc_part *part, orc_arena *arena)
{
  int64_t x[ORC_MAX_DIMS] = {0};

  held->n = orc_n_elems(part);
  held->flat = orc_alloc(arena, (size_t)(held->n + 1) * sizeof *held->flat);
  for (int64_t e = 0; e < held->n; e++) {
    int64_t flat = 0;
    for (int d = 0; d < o->n_dims && flat >= 0; d++) {
      const int64_t index = part->dims[d].index[x[d]];
      flat = index == ORC_ZERO ? -1 : flat * o->shape[d] + index;
    }
    held->flat[e] = flat;
    for (int d = o->n_dims - 1; d >= 0 && ++x[d] == part->dims[d].n; d--)
      x[d] = 0;
  }
  held->n_boxes = 1;
  held->shapes = orc_alloc(arena, ORC_MAX_DIMS * sizeof *held->shapes);
  for (int d = 0; d < o->n_dims; d++)
    held->shapes[d] = part->dims[d].n;
}

/* Boxes, one after the other, each in row-major order. */
static void hold_boxes(box_held *held, const orc_side *o, const int64_t *bounds, int64_t n_boxes,
                       orc_arena *arena)
{
  const int n = o->n_dims;
  int64_t total = 0, e = 0;

  held->n_boxes = n_boxes;
  held->shapes = orc_alloc(arena, (size_t)(n_boxes * n + 1) * sizeof *held->shapes);
  for (int64_t b = 0; b < n_boxes; b++) {
    int64_t size = 1;
    for (int d = 0; d < n; d++) {
      held->shapes[b * n + d] = bounds[b * 2 * n + n + d] - bounds[b * 2 * n + d];
      size *= held->shapes[b * n + d];
    }
    total += size;
  }
  held->n = total;
  held->flat = orc_alloc(arena, (size_t)(total + 1) * sizeof *held->flat);
  for (int64_t b = 0; b < n_boxes; b++) {
    const int64_t *lo = bounds + b * 2 * n;
    int64_t x[ORC_MAX_DIMS] = {0}, size = 1;
    for (int d = 0; d < n; d++)
      size *= held->shapes[b * n + d];
    for (; size > 0; size--) {
      int64_t flat = 0;
      for (int d = 0; d < n && flat >= 0; d++)
        flat = lo[d] + x[d] >= o->shape[d] ? -1 : flat * o->shape[d] + lo[d] + x[d];
      held->flat[e++] = flat;
      for (int d = n - 1; d >= 0 && ++x[d] == held->shapes[b * n + d]; d--)
        x[d] = 0;
    }
  }
}

box_held box_case_held(const box_case *c, int t, int s, int rank, orc_arena *arena)
{
  const orc_side *o = &c->p.tensors[t].sides[s];
  const box_side *side = &c->sides[t][s];
  box_held held = {0};
  orc_part part;

  if (side->kind == BY_PLACEMENTS) {
    if (orc_part_of(&part, o, rank, arena) == ORC_FINE) hold_part(&held, o, &part, arena);
    return held;
  }
  for (int p = 0; p < side->n_ranks; p++)
    if (side->ranks[p] == rank)
      hold_boxes(&held, o, side->bounds + side->first[p] * 2 * o->n_dims,
                 side->first[p + 1] - side->first[p], arena);
  return held;
}

/* ---- cases ---- */

void box_case_make(box_case *c, uint64_t seed, uint64_t number)
{
  rng r = rng_of(seed, number, 70);
  orc_arena arena = c->arena;
  problem p = c->p;

  orc_reset(&arena);
  problem_random(&p, seed, number);
  *c = (box_case){.p = p, .arena = arena};
  c->p.mischief = NO_MISCHIEF;
  for (int t = 0; t < c->p.n_tensors; t++) {
    for (int s = SRC; s <= DST; s++)
      make_side(c, &r, t, s);
    c->is_covered[t] = find_covered(c, t);
  }
}

void box_case_free(box_case *c)
{
  problem_free(&c->p);
  orc_free(&c->arena);
}

void box_case_print(FILE *file, const box_case *c)
{
  static const char *const kinds[] = {"placements", "boxes", "ranges"};

  problem_print(file, &c->p);
  for (int t = 0; t < c->p.n_tensors; t++) {
    for (int s = SRC; s <= DST; s++) {
      const box_side *side = &c->sides[t][s];
      const int n = c->p.tensors[t].sides[s].n_dims;
      fprintf(file, "  tensor %d, %s by %s%s%s%s\n", t, s == SRC ? "source" : "destination",
              kinds[side->kind], side->own ? ", each its own" : "",
              side->converted ? ", of placements" : "", c->is_covered[t] ? "" : ", not covered");
      for (int p = 0; side->kind != BY_PLACEMENTS && p < side->n_ranks; p++) {
        fprintf(file, "    rank %d:", side->ranks[p]);
        if (side->kind == BY_RANGES)
          fprintf(file, " %lld to %lld", (long long)side->ranges[p][0],
                  (long long)side->ranges[p][1]);
        for (int64_t b = side->first[p]; side->kind == BY_BOXES && b < side->first[p + 1]; b++) {
          fputs(" [", file);
          for (int d = 0; d < n; d++)
            fprintf(file, "%s%lld:%lld", d > 0 ? "," : "", (long long)side->bounds[b * 2 * n + d],
                    (long long)side->bounds[b * 2 * n + n + d]);
          fputs("]", file);
        }
        fputs("\n", file);
      }
    }
  }
}
