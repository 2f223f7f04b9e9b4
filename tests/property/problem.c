/*
 * Random problems. Sizes are small, so that a million of them run in minutes, and uneven, empty or
 * one on purpose; what is rare in the field (empty tensors, tables that cover too little, ranks
 * that know one side only) is common.
 */
#include "problem.h"

#include <string.h>

#include "numbers.h"
#include "rng.h"

/* ---- shapes ---- */

typedef struct size_class {
  int per_mille;
  int64_t n_elems;
  int n_ranks;
} size_class;

/* How large a problem may be, and how often. Only the last one reaches stripes of 1 MiB. */
static const size_class sizes[] = {{280, 64, 64}, {660, 1500, 64}, {57, 20000, 16}, {3, 700000, 6}};

static int random_n_ranks(rng *r, int most)
{
  int n = rng_percent(r, 92)   ? rng_int(r, 1, 8)
          : rng_percent(r, 90) ? rng_int(r, 9, 16)
                               : rng_int(r, 17, ORC_MAX_RANKS);
  return n < most ? n : most;
}

static int64_t random_size(rng *r, int64_t most)
{
  static const int64_t round[] = {2, 4, 6, 8, 12, 16, 24, 36, 48, 96};
  int64_t n;
  if (rng_percent(r, 1)) return 0;
  if (rng_percent(r, 10)) return 1;
  if (rng_percent(r, 30)) {
    n = round[rng_below(r, 10)];
  } else if (rng_percent(r, 60)) {
    n = rng_below(r, 12) + 1;
  } else {
    n = rng_below(r, most) + 1;
  }
  return n < most ? n : most;
}

static void random_shape(rng *r, problem_tensor *t, int64_t n_elems)
{
  orc_side *src = &t->sides[SRC], *dst = &t->sides[DST];
  int dims[ORC_MAX_DIMS] = {0, 1, 2, 3, 4, 5, 6, 7};
  bool large = n_elems > 100000;
  src->n_dims = rng_percent(r, 4) ? 0 : rng_percent(r, 93) ? rng_int(r, 1, 4) : rng_int(r, 5, 8);
  rng_shuffle(r, dims, src->n_dims);
  for (int i = 0; i < src->n_dims; i++) {
    int64_t most = large && i > 0 && n_elems > 8 ? 8 : n_elems;
    int64_t n = large && i == 0 ? n_elems / 2 + rng_below(r, n_elems / 2) : random_size(r, most);
    src->shape[dims[i]] = n;
    n_elems /= n > 0 ? n : 1;
    if (n_elems < 1) n_elems = 1;
  }
  dst->n_dims = src->n_dims;
  memcpy(dst->shape, src->shape, sizeof dst->shape);
}

static void random_padding(rng *r, problem_tensor *t, int s, int64_t most)
{
  orc_side *side = &t->sides[s];
  int64_t n_elems = 1;
  memcpy(side->padded, side->shape, sizeof side->padded);
  t->has_pad[s] = rng_percent(r, 18);
  for (int d = 0; t->has_pad[s] && d < side->n_dims; d++) {
    if (rng_percent(r, 50))
      side->padded[d] += rng_below(r, side->shape[d] < 4 ? 4 : side->shape[d]);
    n_elems *= side->padded[d];
  }
  if (n_elems > 4 * most || n_elems > 100000)
    memcpy(side->padded, side->shape, sizeof side->padded);
}

/* ---- meshes ---- */

static void random_mesh(rng *r, orc_side *side, int most)
{
  int n = 1;
  side->n_axes = rng_percent(r, 95) ? rng_int(r, 1, 4) : rng_int(r, 5, 8);
  for (int a = 0; a < side->n_axes; a++)
    side->mesh[a] = 1;
  while (rng_percent(r, 88)) {
    int factor = rng_percent(r, 60) ? 2 : rng_percent(r, 60) ? 3 : rng_int(r, 4, 7);
    if (n * factor > most) {
      if (n * 2 > most) break;
      continue;
    }
    side->mesh[rng_int(r, 0, side->n_axes - 1)] *= factor;
    n *= factor;
  }
  side->n_ranks = n;
  for (int a = 0; a < side->n_axes; a++)
    side->order[a] = a;
}

static void random_meshes(rng *r, problem_tensor *t, int n_ranks)
{
  orc_side *src = &t->sides[SRC], *dst = &t->sides[DST];
  int ranks[ORC_MAX_RANKS];
  bool identical = rng_percent(r, 20);
  bool disjoint = !identical && n_ranks > 1 && rng_percent(r, 40);
  int n_src = disjoint ? rng_int(r, 1, n_ranks - 1) : n_ranks;

  for (int i = 0; i < n_ranks; i++)
    ranks[i] = i;
  if (rng_percent(r, 50)) rng_shuffle(r, ranks, n_ranks);
  random_mesh(r, src, n_src);
  memcpy(src->ranks, ranks, sizeof ranks);
  if (identical) {
    memcpy(dst->mesh, src->mesh, sizeof dst->mesh);
    memcpy(dst->ranks, src->ranks, sizeof dst->ranks);
    memcpy(dst->order, src->order, sizeof dst->order);
    dst->n_axes = src->n_axes;
    dst->n_ranks = src->n_ranks;
    return;
  }
  random_mesh(r, dst, disjoint ? n_ranks - n_src : n_ranks);
  if (disjoint) {
    for (int i = 0; i < n_ranks - n_src; i++)
      dst->ranks[i] = ranks[n_src + i];
    return;
  }
  int shift = rng_int(r, 0, n_ranks - dst->n_ranks);
  if (rng_percent(r, 40)) rng_shuffle(r, ranks, n_ranks);
  for (int i = 0; i < dst->n_ranks; i++)
    dst->ranks[i] = ranks[shift + i];
}

/* ---- run tables ---- */

enum { MAX_CUTS = 12, MAX_TABLE_RUNS = 256 };

typedef struct draft {
  int n;
  int coord[MAX_TABLE_RUNS];
  orc_run runs[MAX_TABLE_RUNS];
} draft;

static void draft_add(draft *d, int coord, int64_t global, int64_t length)
{
  if (d->n == MAX_TABLE_RUNS || length == 0) return;
  d->coord[d->n] = coord;
  d->runs[d->n++] = (orc_run){global, length, 0};
}

/* Cut [0, n) at random and deal the pieces out, some of them more than once. */
static void draft_deal(rng *r, draft *d, int n_coords, int64_t n, bool to_each)
{
  int64_t begin = 0;
  while (begin < n) {
    int64_t length = rng_below(r, n - begin) + 1;
    if (d->n >= MAX_CUTS * n_coords || d->n + n_coords >= MAX_TABLE_RUNS) length = n - begin;
    for (int i = 0; to_each && i < n_coords; i++)
      draft_add(d, i, begin, length);
    if (!to_each) draft_add(d, rng_int(r, 0, n_coords - 1), begin, length);
    if (rng_percent(r, 12)) draft_add(d, rng_int(r, 0, n_coords - 1), begin, length);
    begin += length;
  }
}

static void draft_scatter(rng *r, draft *d, int n_coords, int64_t n)
{
  int n_runs = rng_int(r, 0, 2 * n_coords);
  for (int i = 0; n > 0 && i < n_runs; i++) {
    int64_t begin = rng_below(r, n);
    draft_add(d, rng_int(r, 0, n_coords - 1), begin, rng_below(r, n - begin) + 1);
  }
}

static orc_table *table_create(rng *r, draft *d, int n_coords, orc_arena *arena)
{
  orc_table *table = orc_alloc(arena, sizeof *table);
  bool gaps = rng_percent(r, 25);
  int64_t n = 0;
  *table = (orc_table){n_coords, orc_alloc(arena, (size_t)d->n * sizeof(orc_run)),
                       orc_alloc(arena, ((size_t)n_coords + 1) * sizeof(int64_t)),
                       orc_alloc(arena, (size_t)n_coords * sizeof(int64_t))};
  table->first[0] = 0;
  for (int i = 0; i < n_coords; i++) {
    int mine[MAX_TABLE_RUNS];
    int n_mine = 0;
    int64_t at = 0;
    for (int k = 0; k < d->n; k++) {
      if (d->coord[k] == i) mine[n_mine++] = k;
    }
    if (rng_percent(r, 50)) rng_shuffle(r, mine, n_mine);
    for (int k = 0; k < n_mine; k++) {
      at += gaps && rng_percent(r, 30) ? rng_below(r, 4) : 0;
      d->runs[mine[k]].local = at;
      at += d->runs[mine[k]].length;
    }
    table->lengths[i] = at + (gaps && rng_percent(r, 30) ? rng_below(r, 4) : 0);
    if (rng_percent(r, 50)) rng_shuffle(r, mine, n_mine);
    for (int k = 0; k < n_mine; k++)
      table->runs[n++] = d->runs[mine[k]];
    table->first[i + 1] = n;
  }
  return table;
}

/* The shortest part of `dim` that the axes placed so far leave. */
static int64_t shortest_part(const orc_side *side, int dim, orc_arena *arena)
{
  int64_t n = side->padded[dim];
  for (int i = 0; i < side->n_ranks; i++) {
    orc_part part;
    if (orc_part_of(&part, side, side->ranks[i], arena) != ORC_FINE) continue;
    if (part.dims[dim].n < n) n = part.dims[dim].n;
  }
  return n;
}

static const orc_table *random_table(rng *r, const orc_side *side, int axis, int dim, bool partial,
                                     orc_arena *arena)
{
  draft d = {.n = 0};
  int n_coords = side->mesh[axis];
  int64_t n = shortest_part(side, dim, arena);
  if (rng_percent(r, partial ? 40 : 4)) {
    draft_scatter(r, &d, n_coords, n);
  } else {
    draft_deal(r, &d, n_coords, n, rng_percent(r, 20));
  }
  if (rng_percent(r, 1)) draft_add(&d, rng_int(r, 0, n_coords - 1), n, 1); /* may not fit */
  return table_create(r, &d, n_coords, arena);
}

/* ---- placements ---- */

static void random_places(rng *r, problem_tensor *t, int s, orc_arena *arena)
{
  orc_side *side = &t->sides[s];
  int favourite = side->n_dims > 0 ? rng_int(r, 0, side->n_dims - 1) : 0;

  for (int a = 0; a < side->n_axes; a++)
    side->places[a] = (orc_place){ORC_REPLICATE, 0, 0, NULL};
  bool odd = rng_percent(r, 8); /* strides and tables one upon the other */
  t->has_order[s] = rng_percent(r, 25);
  if (t->has_order[s]) rng_shuffle(r, side->order, side->n_axes);

  for (int o = 0; side->n_dims > 0 && o < side->n_axes; o++) {
    int a = side->order[o];
    int right = 1; /* coordinates of the axes to the right */
    orc_place place = {ORC_REPLICATE,
                       rng_percent(r, 40) ? favourite : rng_int(r, 0, side->n_dims - 1), 0, NULL};
    int64_t kind = odd ? 70 + rng_below(r, 30) : rng_below(r, 100);
    if (odd && rng_percent(r, 60)) place.dim = favourite;
    if (kind < 25) continue;
    place.kind = kind < 58   ? ORC_CHUNK
                 : kind < 68 ? ORC_BALANCED
                 : kind < 78 ? ORC_EVEN
                 : kind < 91 ? ORC_STRIDED
                             : ORC_TABLE;
    for (int b = a + 1; b < side->n_axes; b++)
      right *= side->mesh[b];
    if (place.kind == ORC_STRIDED) place.factor = rng_percent(r, 50) ? right : rng_int(r, 1, 6);
    if (place.kind == ORC_TABLE && side->padded[place.dim] > 30000) place.kind = ORC_BALANCED;
    if (place.kind == ORC_TABLE) place.table = random_table(r, side, a, place.dim, s == DST, arena);
    side->places[a] = place;
    if (place.kind == ORC_EVEN && orc_check(side, arena) == ORC_UNEVEN && rng_percent(r, 94)) {
      side->places[a].kind = ORC_CHUNK;
    }
  }
}

/* ---- tensors ---- */

static void random_giving(rng *r, problem_tensor *t, int n_ranks)
{
  bool all = rng_percent(r, 85);
  for (int s = SRC; s <= DST; s++) {
    t->giving[s] = all ? UINT64_MAX : rng_next(r);
    t->giving[s] |= (uint64_t)1 << rng_below(r, n_ranks);
  }
}

static void random_tensor(rng *r, problem *p, problem_tensor *t, int64_t n_elems)
{
  t->dtypes[SRC] = (xfer_dtype)rng_int(r, XFER_U8, XFER_F64);
  if (n_elems > 100000 && rng_percent(r, 70)) t->dtypes[SRC] = XFER_F64;
  t->dtypes[DST] = t->dtypes[SRC];
  random_shape(r, t, n_elems);
  random_meshes(r, t, p->n_ranks);
  for (int s = SRC; s <= DST; s++) {
    random_padding(r, t, s, n_elems);
    random_places(r, t, s, &p->arena);
  }
  t->from_line =
      !orc_has_table(&t->sides[SRC]) && !orc_has_table(&t->sides[DST]) && rng_percent(r, 25);
}

/* Can a dim have another size without changing what the placements mean? */
static bool may_stretch(const problem_tensor *t, int dim)
{
  for (int s = SRC; s <= DST; s++) {
    for (int a = 0; a < t->sides[s].n_axes; a++) {
      const orc_place *place = &t->sides[s].places[a];
      if ((place->kind == ORC_EVEN || place->kind == ORC_TABLE) && place->dim == dim) return false;
    }
  }
  return true;
}

/* A tensor like the one before it: the same class, and perhaps neighbours in memory. */
static void random_sibling(rng *r, problem *p, int i)
{
  problem_tensor *t = &p->tensors[i];
  *t = p->tensors[i - 1];
  t->value_of = i;
  t->fused[SRC] = t->fused[DST] = APART;
  if (p->tensors[i - 1].fused[SRC] != APART || p->tensors[i - 1].fused[DST] != APART) return;
  if (rng_percent(r, 6)) {
    t->value_of = i - 1;
    t->fused[SRC] = TIED;
    t->fused[DST] = rng_percent(r, 50) ? TIED : APART;
    /* Two peers may write the same values to one place at once: harmless, but a race by the letter.
     */
    if (THREAD_SANITIZER) t->fused[DST] = APART;
    return;
  }
  if (t->sides[SRC].n_dims == 0) return;
  t->fuse_dim = rng_int(r, 0, t->sides[SRC].n_dims - 1);
  for (int s = SRC; s <= DST; s++) {
    if (rng_percent(r, 60)) t->fused[s] = rng_percent(r, 60) ? CONCATENATED : INTERLEAVED;
  }
  int64_t n = t->sides[SRC].shape[t->fuse_dim];
  if (t->fused[SRC] == INTERLEAVED || t->fused[DST] == INTERLEAVED || n > 3000) return;
  if (rng_percent(r, 50) && may_stretch(t, t->fuse_dim)) {
    int64_t more = rng_below(r, 5);
    for (int s = SRC; s <= DST; s++) {
      t->sides[s].shape[t->fuse_dim] += more;
      t->sides[s].padded[t->fuse_dim] += more;
    }
  }
}

/* ---- conversions ---- */

static void random_change(rng *r, problem_tensor *t)
{
  static const xfer_dtype from[] = {XFER_F32, XFER_BF16, XFER_F16};
  static const xfer_dtype to[] = {XFER_F32, XFER_BF16, XFER_F16, XFER_F8E4M3, XFER_F8E5M2};

  t->dtypes[SRC] = from[rng_below(r, 3)];
  t->dtypes[DST] = to[rng_below(r, 5)];
  t->change = (change)rng_int(r, CAST, SHIFTED);
  t->by = t->change == CAST ? 0 : (float)rng_int(r, 1, 4000) / 128;
  if (t->change == SHIFTED && rng_percent(r, 50)) t->by = -t->by;
  t->from_line = false;
}

/* Tensors that share memory share their types. */
static void random_changes(rng *r, problem *p)
{
  bool any = rng_percent(r, 40) && p->mischief == NO_MISCHIEF && !p->one_call;

  for (int i = 0; any && i < p->n_tensors; i++) {
    problem_tensor *t = &p->tensors[i];
    const problem_tensor *before = i > 0 ? t - 1 : t;
    if (t->fused[SRC] == APART && t->fused[DST] == APART) {
      if (rng_percent(r, 70)) random_change(r, t);
      continue;
    }
    memcpy(t->dtypes, before->dtypes, sizeof t->dtypes);
    t->change = before->change;
    t->by = before->by;
    t->from_line = t->from_line && t->change == NO_CHANGE;
  }
}

uint64_t problem_wire_bytes(const problem_tensor *t)
{
  const uint64_t src = xfer_dtype_size(t->dtypes[SRC]);
  const uint64_t dst = xfer_dtype_size(t->dtypes[DST]);
  return src < dst ? src : dst;
}

xfer_conversion problem_conversion(const problem_tensor *t)
{
  switch (t->change) {
  case CAST:
    return xfer_convert_cast();
  case SCALED:
    return xfer_convert_scale(t->by);
  case SHIFTED:
    return xfer_convert_add(t->by);
  default:
    return (xfer_conversion){0};
  }
}

uint64_t problem_element(const problem_tensor *t, int side, uint64_t bits)
{
  const xfer_dtype from = t->dtypes[SRC];

  if (side == SRC || t->change == NO_CHANGE) return bits;
  if (t->change == CAST && from == t->dtypes[DST]) return bits;
  bits &= (UINT64_C(1) << (8 * xfer_dtype_size(from))) - 1;
  return number_converted(from, t->dtypes[DST], (uint32_t)bits,
                          t->change == CAST     ? 0
                          : t->change == SCALED ? 1 / t->by
                                                : 1,
                          t->change == SHIFTED ? t->by : 0);
}

/* ---- options ---- */

static void random_options(rng *r, problem *p)
{
  static const uint64_t windows[] = {0,   1,   2,    3,    5,     8,       13,      64,
                                     100, 257, 1000, 4096, 65536, 1 << 20, 1 << 30, 0};
  xfer_plan_options *o = &p->options;
  int64_t n_bytes = 0; /* of the largest tensor */
  for (int i = 0; i < p->n_tensors; i++) {
    int64_t n = 8;
    for (int d = 0; d < p->tensors[i].sides[SRC].n_dims; d++)
      n *= p->tensors[i].sides[SRC].shape[d] + 1;
    if (n > n_bytes) n_bytes = n;
  }
  *o = (xfer_plan_options)XFER_PLAN_OPTIONS_INIT;
  p->null_options = rng_percent(r, 8);
  if (p->null_options) return;
  o->lane = (uint32_t)(rng_percent(r, 35) ? XFER_LANE_AUTO
                                          : rng_int(r, XFER_LANE_DIRECT, XFER_LANE_BROADCAST));
  o->window_bytes = windows[rng_below(r, 16)];
  if (o->window_bytes != 0 && o->window_bytes < (uint64_t)n_bytes / 100)
    o->window_bytes = (uint64_t)n_bytes / 100;
  if (rng_percent(r, 5)) o->max_staging_bytes = (uint64_t)1 << rng_int(r, 18, 30);
  if (rng_percent(r, 2)) {
    const uint64_t tiny = (uint64_t)rng_below(r, 4096) + 1;
    if (n_bytes <= 1 << 18) o->max_staging_bytes = tiny; /* else steps without end */
  }
  if (rng_percent(r, 40)) o->ranks_per_domain = (uint32_t)rng_int(r, 1, p->n_ranks / 2 + 1);
  if (rng_percent(r, 65)) /* mostly so little that broadcasts save it */
    o->min_broadcast_saving_bytes = (uint64_t)1 << rng_int(r, 0, rng_percent(r, 80) ? 6 : 40);
  o->timeout_ms = 60000;
}

static void random_mischief(rng *r, problem *p)
{
  if (!rng_percent(r, 3) || p->n_tensors == 0) return;
  p->mischief = (mischief)rng_int(r, OTHER_NAME, NOT_BOUND);
  p->culprit = rng_int(r, 0, p->n_ranks - 1);
  if (p->n_ranks == 1 && p->mischief <= OTHER_WINDOW) p->mischief = NO_MISCHIEF;
  if (p->mischief == OTHER_DTYPE || p->mischief == RANK_TOO_HIGH) return;
  p->one_call = false;
  p->null_options = false;
}

void problem_random(problem *p, uint64_t seed, uint64_t number)
{
  rng r = rng_of(seed, number, 0);
  int64_t dice = rng_below(&r, 1000);
  const size_class *size = sizes;
  for (; dice >= size->per_mille; size++)
    dice -= size->per_mille;

  orc_reset(&p->arena);
  *p = (problem){.arena = p->arena, .seed = seed, .number = number};
  p->n_ranks = random_n_ranks(&r, size->n_ranks);
  p->n_tensors = rng_percent(&r, 50) ? 1 : rng_percent(&r, 98) ? rng_int(&r, 2, MAX_TENSORS) : 0;
  if (size->n_elems > 100000 && p->n_tensors > 2) p->n_tensors = 2;
  for (int i = 0; i < p->n_tensors; i++) {
    if (i > 0 && rng_percent(&r, 45)) {
      random_sibling(&r, p, i);
    } else {
      p->tensors[i].value_of = i;
      random_tensor(&r, p, &p->tensors[i], size->n_elems);
    }
    random_giving(&r, &p->tensors[i], p->n_ranks);
  }
  random_options(&r, p);
  p->n_runs = rng_percent(&r, 75) ? 1 : rng_int(&r, 2, 3);
  p->one_call = p->null_options && rng_percent(&r, 90);
  p->release_between = rng_percent(&r, 25);
  p->rebind_between = rng_percent(&r, 25);
  p->simulate = rng_percent(&r, 5);
  p->queries = rng_percent(&r, 10);
  random_mischief(&r, p);
  r = rng_of(seed, number, 1); /* of its own: problems of before stay as they were */
  random_changes(&r, p);
  if (!p->null_options && number % 4 == 1) p->options.flags |= XFER_PLAN_VERIFY;
  if (!p->null_options && number % 8 < 2) p->options.flags |= XFER_PLAN_STAGED;
  if (!p->null_options && number % 4 == 3) p->options.flags |= XFER_PLAN_FRESH_SOURCES;
}

void problem_free(problem *p)
{
  orc_free(&p->arena);
}
