/* See layouts.h. */
#include "layouts.h"

#include <stdlib.h>
#include <string.h>

/* ---- making ---- */

/* The run table in the library's form; allow_zero is 1 where a local index is in no run, else
 * whatever `lax` says. */
static void table_convert(xfer_run_table *out, const orc_table *table, bool lax, orc_arena *arena)
{
  int64_t n = table->first[table->n_coords];
  xfer_run *runs = orc_alloc(arena, (size_t)n * sizeof *runs);
  bool zeros = lax;
  for (int64_t i = 0; i < table->n_coords; i++) {
    int64_t n_held = 0;
    for (int64_t k = table->first[i]; k < table->first[i + 1]; k++) {
      runs[k].global = table->runs[k].global;
      runs[k].length = table->runs[k].length;
      runs[k].local = table->runs[k].local;
      n_held += runs[k].length;
    }
    zeros = zeros || n_held != table->lengths[i];
  }
  *out = (xfer_run_table){runs, table->first, table->lengths, table->n_coords, zeros ? 1 : 0};
}

static xfer_placement place_convert(const orc_place *place, int n_dims, rng *r, orc_arena *arena)
{
  int dim = rng_percent(r, 20) ? place->dim - n_dims : place->dim;
  switch (place->kind) {
  case ORC_REPLICATE:
    break;
  case ORC_CHUNK:
    return rng_percent(r, 50) ? xfer_shard(dim) : xfer_shard_rule(dim, XFER_CHUNK);
  case ORC_BALANCED:
    return xfer_shard_rule(dim, XFER_BALANCED);
  case ORC_EVEN:
    return xfer_shard_rule(dim, XFER_EVEN);
  case ORC_STRIDED:
    return xfer_shard_strided(dim, place->factor);
  case ORC_TABLE: {
    xfer_run_table *table = orc_alloc(arena, sizeof *table);
    table_convert(table, place->table, rng_percent(r, 20), arena);
    return xfer_shard_runs(dim, table);
  }
  }
  return xfer_replicate();
}

static bool is_iota(const int *a, int n)
{
  for (int i = 0; i < n; i++) {
    if (a[i] != i) return false;
  }
  return true;
}

static xfer_status side_create(xfer_layout **layout, const orc_side *side, xfer_dtype dtype,
                               bool has_order, bool has_pad, rng *r)
{
  xfer_mesh *mesh = NULL;
  orc_arena arena = {NULL};
  xfer_placement places[ORC_MAX_DIMS];
  int32_t order[ORC_MAX_DIMS];
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  bool plain = is_iota(side->ranks, side->n_ranks) && rng_percent(r, 50);

  xfer_status st = xfer_mesh_create(&mesh, side->mesh, side->n_axes, plain ? NULL : side->ranks);
  if (st != XFER_OK) return st;
  for (int a = 0; a < side->n_axes; a++) {
    places[a] = place_convert(&side->places[a], side->n_dims, r, &arena);
    order[a] = side->order[a];
  }
  desc.mesh = mesh;
  desc.dtype = (int32_t)dtype;
  desc.n_dims = side->n_dims;
  desc.shape = side->shape;
  desc.padded_shape = has_pad ? side->padded : NULL;
  desc.placements = places;
  desc.n_placements = side->n_axes;
  desc.n_order = has_order ? side->n_axes : 0;
  desc.order = has_order ? order : NULL;
  st = xfer_layout_create(layout, &desc);
  xfer_mesh_destroy(mesh);
  orc_free(&arena);
  return st;
}

static bool differs(const int64_t *a, const int64_t *b, int n)
{
  return memcmp(a, b, (size_t)n * sizeof *a) != 0;
}

xfer_status layouts_create(xfer_layout *layouts[2], const problem *p, int i)
{
  const problem_tensor *t = &p->tensors[i];
  rng r = rng_of(p->seed, p->number, 100 + (uint64_t)i);
  bool wrong_dtype = p->mischief == OTHER_DTYPE && p->culprit % p->n_tensors == i;
  bool wrong_rank = p->mischief == RANK_TOO_HIGH && p->culprit % p->n_tensors == i;
  layouts[SRC] = layouts[DST] = NULL;

  if (t->from_line && !wrong_dtype && !wrong_rank) {
    char line[4096];
    if (problem_line(line, sizeof line, t) >= sizeof line) return XFER_ERR_INTERNAL;
    return xfer_problem_parse(&layouts[SRC], &layouts[DST], line);
  }
  for (int s = SRC; s <= DST; s++) {
    orc_side side = t->sides[s];
    xfer_dtype dtype = t->dtypes[s];
    if (wrong_dtype && s == DST) dtype = dtype == XFER_U8 ? XFER_F64 : (xfer_dtype)(dtype - 1);
    if (wrong_rank && s == DST) side.ranks[p->culprit % side.n_ranks] = p->n_ranks + p->culprit;
    bool padded = t->has_pad[s] || differs(side.padded, side.shape, side.n_dims);
    xfer_status st = side_create(&layouts[s], &side, dtype, t->has_order[s], padded, &r);
    if (st != XFER_OK) {
      xfer_layout_destroy(layouts[SRC]);
      layouts[SRC] = layouts[DST] = NULL;
      return st;
    }
  }
  return XFER_OK;
}

/* ---- comparing ---- */

static bool runs_agree(const xfer_layout *layout, const orc_part *part, int rank, int dim, rng *r,
                       orc_arena *arena)
{
  size_t n_want = orc_runs(NULL, 0, &part->dims[dim]);
  size_t n = 0, n_counted = 0;
  orc_run *want = orc_alloc(arena, n_want * sizeof *want);
  xfer_run *runs = orc_alloc(arena, (n_want + 1) * sizeof *runs);
  size_t capacity = rng_percent(r, 20) ? (size_t)rng_below(r, (int64_t)n_want + 1) : n_want + 1;
  int said = rng_percent(r, 20) ? dim - part->n_dims : dim;

  (void)orc_runs(want, n_want, &part->dims[dim]);
  if (xfer_layout_runs(layout, rank, said, NULL, 0, &n_counted) != XFER_OK || n_counted != n_want)
    return false;
  for (size_t k = 0; k <= n_want; k++)
    runs[k] = (xfer_run){-7, -7, -7};
  if (xfer_layout_runs(layout, rank, said, runs, capacity, &n) != XFER_OK || n != n_want)
    return false;
  for (size_t k = 0; k < n_want; k++) {
    const xfer_run *run = &runs[k];
    if (k >= capacity && run->global != -7) return false;
    if (k >= capacity) continue;
    if (run->global != want[k].global || run->length != want[k].length ||
        run->local != want[k].local)
      return false;
  }
  return true;
}

/* The owners may come in any order. */
static bool owners_agree(const xfer_layout *layout, const orc_side *side, const int64_t *index,
                         orc_arena *arena)
{
  size_t n_want = orc_owners(NULL, 0, side, index, arena);
  size_t n = 0;
  orc_owner *want = orc_alloc(arena, n_want * sizeof *want);
  xfer_owner *owners = orc_alloc(arena, (n_want + 1) * sizeof *owners);

  (void)orc_owners(want, n_want, side, index, arena);
  if (xfer_layout_owners(layout, index, NULL, 0, &n) != XFER_OK || n != n_want) return false;
  if (xfer_layout_owners(layout, index, owners, n_want + 1, &n) != XFER_OK || n != n_want)
    return false;
  for (size_t k = 0; k < n_want; k++) {
    size_t at = k;
    for (; at < n_want; at++) {
      if (owners[at].rank == want[k].rank &&
          !differs(owners[at].local, want[k].local, side->n_dims))
        break;
    }
    if (at == n_want) return false;
    xfer_owner found = owners[at];
    owners[at] = owners[k];
    owners[k] = found;
  }
  return true;
}

static bool rank_agrees(const xfer_layout *layout, const orc_side *side, int rank, rng *r,
                        orc_arena *arena, char *why, size_t n_bytes)
{
  orc_part part;
  int64_t shape[ORC_MAX_DIMS] = {-7};
  bool inside = orc_part_of(&part, side, rank, arena) == ORC_FINE;
  xfer_status st = xfer_layout_local_shape(layout, rank, shape);

  if (st != (inside ? XFER_OK : XFER_ERR_ARG)) {
    (void)snprintf(why, n_bytes, "local shape of rank %d: %s", rank, xfer_status_name(st));
    return false;
  }
  for (int d = 0; inside && d < side->n_dims; d++) {
    if (shape[d] != part.dims[d].n) {
      (void)snprintf(why, n_bytes, "rank %d, dim %d: %lld long, not %lld", rank, d,
                     (long long)shape[d], (long long)part.dims[d].n);
      return false;
    }
    if (!runs_agree(layout, &part, rank, d, r, arena)) {
      (void)snprintf(why, n_bytes, "rank %d, dim %d: other runs than the oracle's", rank, d);
      return false;
    }
  }
  return true;
}

bool layout_agrees(const xfer_layout *layout, const orc_side *side, xfer_dtype dtype, int n_ranks,
                   rng *r, orc_arena *arena, char *why, size_t n_bytes)
{
  int64_t shape[ORC_MAX_DIMS] = {-7};
  int64_t n_elems = 1;
  if (xfer_layout_dtype(layout) != dtype || xfer_layout_shape(layout, shape) != side->n_dims ||
      differs(shape, side->shape, side->n_dims)) {
    (void)snprintf(why, n_bytes, "another dtype or shape than described");
    return false;
  }
  for (int rank = 0; rank <= n_ranks; rank++) {
    if (!rank_agrees(layout, side, rank, r, arena, why, n_bytes)) return false;
  }
  for (int d = 0; d < side->n_dims; d++)
    n_elems *= side->shape[d];
  for (int i = 0; n_elems > 0 && n_elems < 4000 && i < 3; i++) {
    int64_t index[ORC_MAX_DIMS] = {0};
    for (int d = 0; d < side->n_dims; d++)
      index[d] = rng_below(r, side->shape[d]);
    if (owners_agree(layout, side, index, arena)) continue;
    int n = snprintf(why, n_bytes, "other owners than the oracle's of index");
    for (int d = 0; d < side->n_dims; d++) {
      n += snprintf(why + n, n_bytes - (size_t)n, " %lld", (long long)index[d]);
    }
    return false;
  }
  return true;
}
