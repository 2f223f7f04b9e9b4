#include "cuts.h"

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "vec.h"

#include <string.h>

/* ---- rows of a rank ---- */

static xfer_status add_rows(xfi_row_ranges *rows, int part, int64_t global, int64_t length)
{
  xfi_row_range *last = rows->n > 0 ? &rows->at[rows->n - 1] : NULL;
  const int64_t at = last == NULL ? 0 : last->at + last->length;

  if (length <= 0) return XFER_OK;
  if (last != NULL && last->part == part && last->global + last->length == global) {
    last->length += length;
    return XFER_OK;
  }
  return XFI_PUSH(rows->at, rows->n, rows->capacity, (xfi_row_range){part, global, length, at});
}

/* The row of a unit that is in place i in the slab's order. */
static int64_t turned(const xfi_slab *slab, int64_t i)
{
  const int64_t half = slab->size / 2;

  if (slab->order == XFI_PAIRS_APART) return i < half ? 2 * i : 2 * (i - half) + 1;
  return i / 2 + (i % 2 != 0 ? half : 0);
}

/* Appends the rows of units [lo, hi) of a slab. */
static xfer_status add_units(xfi_row_ranges *rows, const xfi_slab *slab, int64_t lo, int64_t hi)
{
  for (int64_t u = lo; u < hi; u++) {
    const int64_t base = slab->offset + u * slab->stride;

    if (slab->order == XFI_AS_IT_IS && slab->stride == slab->size)
      return add_rows(rows, slab->part, base, (hi - lo) * slab->size);
    if (slab->order == XFI_AS_IT_IS) XFI_TRY(add_rows(rows, slab->part, base, slab->size));
    for (int64_t i = 0; i < slab->size && slab->order != XFI_AS_IT_IS; i++)
      XFI_TRY(add_rows(rows, slab->part, base + turned(slab, i), 1));
  }
  return XFER_OK;
}

static int64_t n_rows(const xfi_row_ranges *all)
{
  return all->n == 0 ? 0 : all->at[all->n - 1].at + all->at[all->n - 1].length;
}

/* Appends rows [lo, hi) of `all`, counted in the order in which they lie. */
static xfer_status add_slice(xfi_row_ranges *rows, const xfi_row_ranges *all, int64_t lo,
                             int64_t hi)
{
  for (size_t k = 0; k < all->n; k++) {
    const xfi_row_range *s = &all->at[k];
    const int64_t from = lo > s->at ? lo - s->at : 0;
    const int64_t to = hi - s->at < s->length ? hi - s->at : s->length;

    XFI_TRY(add_rows(rows, s->part, s->global + from, to - from));
  }
  return XFER_OK;
}

/* Appends the i-th of n chunks, cut as by torch.chunk. */
static xfer_status add_chunk(xfi_row_ranges *rows, const xfi_row_ranges *all, int64_t i, int64_t n)
{
  const int64_t each = xfi_ceil_div(n_rows(all), n);

  return add_slice(rows, all, i * each, (i + 1) * each);
}

static bool is_few(const xfi_fusing *f, const xfi_slab *slab)
{
  return !f->whole && slab->count < f->n && slab->count > 0 &&
         (slab->few == XFI_FEW_REPLICATE || (slab->few == XFI_FEW_ONE && slab->count == 1));
}

/* Appends what the r-th rank has of the rows of a slab, or of all groups if `slab` is NULL. */
static xfer_status add_share(xfi_row_ranges *rows, const xfi_row_ranges *all, const xfi_fusing *f,
                             const xfi_slab *slab, int r)
{
  /* Rows of a slab whose units do not follow each other cannot be chunked. */
  const bool units_apart = slab != NULL && slab->stride != slab->size && !f->even;

  if (slab != NULL && is_few(f, slab))
    return add_chunk(rows, all, r / (f->n / slab->count), slab->count);
  if (f->whole || units_apart) return add_chunk(rows, all, 0, 1);
  return add_chunk(rows, all, r, f->n);
}

static xfer_status rows_of(const xfi_fusing *f, int r, xfi_row_ranges *rows)
{
  const int64_t n_groups = f->groups > 0 ? f->groups : 1;
  xfi_row_ranges all = {0};
  xfer_status st = XFER_OK;

  for (int64_t g = 0; g < n_groups; g++) {
    for (int k = 0; k < f->n_slabs; k++) {
      const xfi_slab *slab = &f->slabs[k];
      const int64_t n = slab->count / n_groups;

      XFI_TRY_DONE(add_units(&all, slab, g * n, (g + 1) * n));
      if (f->groups > 0) continue;
      XFI_TRY_DONE(add_share(rows, &all, f, slab, r));
      all.n = 0;
    }
  }
  if (f->groups > 0) XFI_TRY_DONE(add_share(rows, &all, f, NULL, r));
done:
  xfi_free(all.at);
  return st;
}

static xfer_status fusing_rows(const xfi_fusing *fusing, int r, xfi_row_ranges *rows)
{
  xfi_row_ranges all = {0};
  xfer_status st = XFER_OK;

  if (fusing->inner == 0) return rows_of(fusing, r, rows);
  XFI_TRY_DONE(rows_of(fusing, r % fusing->n, &all));
  XFI_TRY_DONE(add_chunk(rows, &all, r / fusing->n, fusing->inner));
done:
  xfi_free(all.at);
  return st;
}

static int compare_ranges(const void *a, const void *b)
{
  const xfi_row_range *x = a, *y = b;

  return (x->global > y->global) - (x->global < y->global);
}

xfer_status xfi_fusing_part(const xfi_fusing *fusing, int part, int r, xfi_row_ranges *rows)
{
  size_t n = 0;

  rows->n = 0;
  XFI_TRY(fusing_rows(fusing, r, rows));
  for (size_t i = 0; i < rows->n; i++) {
    if (rows->at[i].part == part) rows->at[n++] = rows->at[i];
  }
  rows->n = n;
  xfi_sort(rows->at, n, sizeof *rows->at, compare_ranges);
  return XFER_OK;
}

int xfi_fusing_ranks(const xfi_fusing *fusing)
{
  return fusing->n * (fusing->inner > 0 ? fusing->inner : 1);
}

/* Refuses units or rows that the ranks cannot share evenly. */
static xfer_status check_fusing(const xfi_fusing *f, const xfer_side *side, const xfi_entry *entry)
{
  const char *what = entry->pattern;
  int64_t rows = 0, heads = 0;

  for (int k = 0; k < f->n_slabs; k++) {
    const xfi_slab *slab = &f->slabs[k];

    rows += slab->count * slab->size;
    if (slab->size > 1 && slab->count > heads) heads = slab->count;
    XFI_CHECK(f->groups == 0 || slab->count % f->groups == 0, XFER_ERR_SHAPE,
              "\"%s\": %lld heads or parts do not divide by %lld groups", what,
              (long long)slab->count, (long long)f->groups);
    if (f->whole || f->n == 1 || f->groups > 0 || !f->even) continue;
    if (is_few(f, slab)) {
      XFI_CHECK(f->n % slab->count == 0, XFER_ERR_SHAPE,
                "\"%s\": tp %d of \"%s\" is no multiple of %lld key/value heads", what, f->n,
                side->spec, (long long)slab->count);
      continue;
    }
    if (slab->few == XFI_FEW_CUT && slab->count > 0 && f->n % slab->count == 0 &&
        slab->size % (f->n / slab->count) == 0)
      continue;
    XFI_CHECK(slab->count % f->n == 0, XFER_ERR_SHAPE,
              "\"%s\": %lld %s do not divide by the %d ranks of \"%s\" that split them", what,
              (long long)slab->count, slab->size > 1 ? "heads or groups" : "rows", f->n,
              side->spec);
  }
  XFI_CHECK(f->groups == 0 || f->whole ||
                (heads % f->n == 0 && (f->groups % f->n == 0 || f->n % f->groups == 0)),
            XFER_ERR_SHAPE, "\"%s\": %lld heads in %lld groups do not divide by tp %d of \"%s\"",
            what, (long long)heads, (long long)f->groups, f->n, side->spec);
  XFI_CHECK(f->groups == 0 || f->whole || rows % f->n == 0, XFER_ERR_SHAPE,
            "\"%s\": the %lld rows that lie together do not divide by tp %d of \"%s\"", what,
            (long long)rows, f->n, side->spec);
  return XFER_OK;
}

/* ---- tables of runs ---- */

void xfi_spread_free(xfi_spread *spread)
{
  for (int i = 0; i < spread->n_tables; i++) {
    xfi_free(spread->tables[i].runs);
    xfi_free(spread->tables[i].first);
    xfi_free(spread->tables[i].lengths);
  }
  memset(spread, 0, sizeof *spread);
}

/* Begins the spread's next table, to which the runs of n coordinates will be added one by one. */
static xfer_status table_begin(xfi_spread_table **table, xfi_spread *spread, int n)
{
  xfi_spread_table *t = &spread->tables[spread->n_tables++];

  *table = t;
  t->first = xfi_calloc((size_t)n + 1, sizeof *t->first);
  t->lengths = xfi_calloc((size_t)n, sizeof *t->lengths);
  XFI_CHECK(t->first != NULL && t->lengths != NULL, XFER_ERR_NOMEM, "the runs of %d ranks", n);
  /* Even a table without runs needs an address. */
  return xfi_vec_reserve(&t->runs, &t->capacity, 1, sizeof *t->runs);
}

static xfer_status table_run(xfi_spread_table *t, int64_t global, int64_t length, int64_t local)
{
  if (length == 0) return XFER_OK;
  return XFI_PUSH(t->runs, t->n_runs, t->capacity, (xfer_run){global, length, local});
}

static void table_coord(xfi_spread_table *t, int64_t local_length)
{
  t->lengths[t->n_coords++] = local_length;
  t->first[t->n_coords] = (int64_t)t->n_runs;
}

static void table_place(xfi_spread_table *t, xfi_spread *spread, int axis, int dim, bool allow_zero)
{
  t->table = (xfer_run_table){t->runs, t->first, t->lengths, t->n_coords, allow_zero};
  spread->placements[axis] = xfer_shard_runs(dim, &t->table);
}

/* ---- placing rows ---- */

/* Checks that rows [begin, end) of a shard are whole blocks of `block` rows, except for the last
 * block. If `block` is 0, there are no blocks. */
static xfer_status check_scale(int64_t begin, int64_t end, int64_t rows, int64_t block,
                               const xfer_side *side, const xfi_entry *entry)
{
  XFI_CHECK(block == 0 ||
                ((begin % block == 0 || begin >= rows) && (end % block == 0 || end >= rows)),
            XFER_ERR_UNSUPPORTED,
            "\"%s\": rows %lld to %lld of a shard in \"%s\" are no multiple of the block of %lld",
            entry->pattern, (long long)begin, (long long)end, side->spec, (long long)block);
  return XFER_OK;
}

/* Returns the part's slab if the part is a single slab with all its rows in order and so few
 * units that several ranks have the same one, else NULL. */
static const xfi_slab *few_units(const xfi_fusing *f, int part, int64_t rows)
{
  const xfi_slab *found = NULL;

  for (int k = 0; k < f->n_slabs; k++) {
    const xfi_slab *slab = &f->slabs[k];

    if (slab->part != part) continue;
    if (found != NULL || slab->offset != 0 || slab->stride != slab->size ||
        slab->order != XFI_AS_IT_IS)
      return NULL;
    found = slab;
  }
  return found != NULL && f->groups == 0 && f->inner == 0 && is_few(f, found) &&
                 found->count * found->size == rows
             ? found
             : NULL;
}

xfer_status xfi_cut_rows(xfi_spread *spread, int axis, const xfi_fusing *f, int part,
                         const xfer_side *side, const xfi_entry *entry)
{
  const int dim = entry->experts ? 1 : 0;
  const int64_t rows = entry->shape[dim];
  const int64_t block = f->inner == 0 && entry->n_dims - dim > 1 ? entry->block[0] : 0;
  const xfi_slab *few = few_units(f, part, rows);
  const int all_ranks = xfi_fusing_ranks(f), n = few != NULL ? (int)few->count : all_ranks;
  const int64_t each = xfi_ceil_div(rows, n);
  bool whole = true, chunks = true; /* until a rank shows otherwise */
  xfi_spread_table *table;
  xfi_row_ranges all = {0};
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(check_fusing(f, side, entry));
  XFI_TRY_DONE(table_begin(&table, spread, n));
  for (int r = 0; r < n; r++) {
    const int64_t left = rows - r * each, wanted = left < each ? left : each;
    int64_t local = 0, first = 0;
    int n_runs = 0;

    XFI_TRY_DONE(xfi_fusing_part(f, part, r * (all_ranks / n), &all));
    for (size_t i = 0; i < all.n; n_runs++) {
      int64_t begin = all.at[i].global, end = begin;

      for (; i < all.n && all.at[i].global == end; i++)
        end += all.at[i].length;
      XFI_TRY_DONE(check_scale(begin, end, rows, block, side, entry));
      XFI_TRY_DONE(table_run(table, begin, end - begin, local));
      local += end - begin;
      first = begin;
    }
    table_coord(table, local);
    whole = whole && n_runs == 1 && local == rows;
    chunks =
        chunks && (wanted > 0 ? n_runs == 1 && first == r * each && local == wanted : n_runs == 0);
  }
  if (few != NULL && n > 1) {
    spread->shape[axis] = n;
    spread->shape[spread->n_axes] = all_ranks / n;
    spread->placements[spread->n_axes++] = xfer_replicate();
  }
  if (whole) goto done;
  if (chunks)
    spread->placements[axis] = xfer_shard_rule(dim, rows % n == 0 ? XFER_EVEN : XFER_CHUNK);
  else
    table_place(table, spread, axis, dim, false);
done:
  xfi_free(all.at);
  return st;
}

/* ---- experts ---- */

xfer_status xfi_cut_map(xfi_spread *spread, int axis, const xfi_map *map, const xfer_side *side,
                        const xfi_entry *entry)
{
  const int n = spread->shape[axis];
  const int64_t n_experts = entry->shape[0];
  bool *held = xfi_calloc((size_t)n_experts, sizeof *held);
  xfi_spread_table *table;
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(held != NULL, XFER_ERR_NOMEM, "%lld experts", (long long)n_experts);
  XFI_TRY_DONE(table_begin(&table, spread, n));
  for (int r = 0; r < n; r++) {
    const int64_t count =
        map != NULL ? map->first[r + 1] - map->first[r] : (n_experts - r + n - 1) / n;

    for (int64_t i = 0; i < count; i++) {
      const int64_t expert = map != NULL ? map->experts[map->first[r] + i] : r + i * n;

      XFI_CHECK_DONE(expert >= 0 && expert < n_experts, XFER_ERR_ARG,
                     "\"%s\": the expert map has expert %lld, \"%s\" has %lld", side->spec,
                     (long long)expert, entry->pattern, (long long)n_experts);
      held[expert] = true;
      XFI_TRY_DONE(table_run(table, expert, 1, i));
    }
    table_coord(table, count);
  }
  for (int64_t e = 0; e < n_experts; e++) {
    XFI_CHECK_DONE(held[e], XFER_ERR_ARG, "\"%s\": the expert map gives expert %lld to no rank",
                   side->spec, (long long)e);
  }
  table_place(table, spread, axis, 0, false);
done:
  xfi_free(held);
  return st;
}

xfer_status xfi_cut_roomy(xfi_spread *spread, int axis, int dim, int64_t length, int64_t each,
                          int64_t room)
{
  const int n = spread->shape[axis];
  xfi_spread_table *table;

  XFI_TRY(table_begin(&table, spread, n));
  for (int64_t r = 0, left = length; r < n; r++, left -= left < each ? left : each) {
    const int64_t mine = left < each ? left : each;

    XFI_TRY(table_run(table, r * each, mine, 0));
    table_coord(table, room < 0 ? mine : room);
  }
  table_place(table, spread, axis, dim, true);
  return XFER_OK;
}
