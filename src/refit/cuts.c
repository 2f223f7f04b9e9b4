#include "cuts.h"

#include "alloc.h"
#include "error.h"
#include "vec.h"

#include <string.h>

/* ---- rows of a rank ---- */

void xfi_stretches_free(xfi_stretches *rows)
{
  xfi_free(rows->at);
}

static xfer_status add_rows(xfi_stretches *rows, int part, int64_t global, int64_t length)
{
  xfi_stretch *last = rows->n > 0 ? &rows->at[rows->n - 1] : NULL;
  const int64_t at = last == NULL ? 0 : last->at + last->length;
  xfer_status st = XFER_OK;

  if (length <= 0) return XFER_OK;
  if (last != NULL && last->part == part && last->global + last->length == global) {
    last->length += length;
    return XFER_OK;
  }
  XFI_TRY(xfi_vec_reserve(&rows->at, &rows->capacity, rows->n + 1, sizeof *rows->at));
  rows->at[rows->n++] = (xfi_stretch){part, global, length, at};
done:
  return st;
}

/* The row of a unit that comes i-th. */
static int64_t turned(const xfi_block *b, int64_t i)
{
  const int64_t half = b->size / 2;

  if (b->order == XFI_PAIRS_APART) return i < half ? 2 * i : 2 * (i - half) + 1;
  return i / 2 + (i % 2 != 0 ? half : 0);
}

/* Rows [from, to) of a unit. */
static xfer_status add_unit(xfi_stretches *rows, const xfi_block *b, int64_t unit, int64_t from,
                            int64_t to)
{
  int64_t base = b->offset + unit * b->stride;
  xfer_status st = XFER_OK;

  if (b->order == XFI_AS_IT_IS) return add_rows(rows, b->part, base + from, to - from);
  for (int64_t i = from; i < to; i++)
    XFI_TRY(add_rows(rows, b->part, base + turned(b, i), 1));
done:
  return st;
}

/* Units [lo, hi). */
static xfer_status add_units(xfi_stretches *rows, const xfi_block *b, int64_t lo, int64_t hi)
{
  xfer_status st = XFER_OK;

  if (b->stride == b->size && b->order == XFI_AS_IT_IS)
    return add_rows(rows, b->part, b->offset + lo * b->size, (hi - lo) * b->size);
  for (int64_t u = lo; u < hi; u++)
    XFI_TRY(add_unit(rows, b, u, 0, b->size));
done:
  return st;
}

static bool is_few(const xfi_fusing *f, const xfi_block *b)
{
  return b->count < f->n && b->count > 0 &&
         (b->few == XFI_FEW_REPLICATE || (b->few == XFI_FEW_ONE && b->count == 1));
}

static xfer_status block_rows(const xfi_fusing *f, const xfi_block *b, int r, xfi_stretches *rows)
{
  xfer_status st = XFER_OK;

  if (f->whole || f->n == 1) return add_units(rows, b, 0, b->count);
  if (is_few(f, b)) {
    int64_t unit = r / (f->n / b->count);

    return add_units(rows, b, unit, unit + 1);
  }
  if (f->even) {
    int64_t n = b->count / f->n;

    return add_units(rows, b, r * n, (r + 1) * n);
  }
  if (b->stride == b->size) { /* torch.chunk of the rows */
    int64_t all = b->count * b->size, n = xfi_ceil_div(all, f->n), lo = r * n;

    if (lo > all) lo = all;
    if (n > all - lo) n = all - lo;
    if (b->order == XFI_AS_IT_IS) return add_rows(rows, b->part, b->offset + lo, n);
    for (int64_t u = lo / b->size; u * b->size < lo + n; u++) {
      int64_t at = u * b->size;

      XFI_TRY(add_unit(rows, b, u, lo > at ? lo - at : 0,
                       lo + n - at < b->size ? lo + n - at : b->size));
    }
    return XFER_OK;
  }
  XFI_TRY(add_units(rows, b, 0, b->count));
done:
  return st;
}

/* The stretch [begin, end) of all groups. */
static xfer_status group_rows(const xfi_fusing *f, int r, xfi_stretches *rows)
{
  int64_t in_group = 0, begin, end, n;
  xfer_status st = XFER_OK;

  for (int k = 0; k < f->n_blocks; k++)
    in_group += f->blocks[k].count / f->groups * f->blocks[k].size;
  if (in_group == 0) return XFER_OK;
  n = in_group * f->groups / (f->whole ? 1 : f->n);
  begin = f->whole ? 0 : r * n;
  end = begin + n;
  for (int64_t g = begin / in_group; g < f->groups && g * in_group < end; g++) {
    int64_t at = g * in_group;

    for (int k = 0; k < f->n_blocks; k++) {
      const xfi_block *b = &f->blocks[k];
      int64_t units = b->count / f->groups;

      for (int64_t u = g * units; u < (g + 1) * units; u++, at += b->size) {
        int64_t from = begin > at ? begin - at : 0, to = end < at + b->size ? end - at : b->size;

        if (from < to) XFI_TRY(add_unit(rows, b, u, from, to));
      }
    }
  }
done:
  return st;
}

static xfer_status rows_of(const xfi_fusing *fusing, int r, xfi_stretches *rows)
{
  xfer_status st = XFER_OK;

  if (fusing->groups > 0) return group_rows(fusing, r, rows);
  for (int k = 0; k < fusing->n_blocks; k++)
    XFI_TRY(block_rows(fusing, &fusing->blocks[k], r, rows));
done:
  return st;
}

/* The i-th of n chunks of `all`, as they lie one after the other. */
static xfer_status add_chunk(xfi_stretches *rows, const xfi_stretches *all, int i, int n)
{
  int64_t total = 0, at = 0, each, lo, hi;
  xfer_status st = XFER_OK;

  for (size_t k = 0; k < all->n; k++)
    total += all->at[k].length;
  each = xfi_ceil_div(total, n);
  lo = i * each;
  hi = lo + each < total ? lo + each : total;
  for (size_t k = 0; k < all->n; at += all->at[k++].length) {
    const xfi_stretch *s = &all->at[k];
    int64_t from = lo > at ? lo - at : 0, to = hi - at < s->length ? hi - at : s->length;

    if (from < to) XFI_TRY(add_rows(rows, s->part, s->global + from, to - from));
  }
done:
  return st;
}

static xfer_status fusing_rows(const xfi_fusing *fusing, int r, xfi_stretches *rows)
{
  xfi_stretches all = {0};
  xfer_status st = XFER_OK;

  if (fusing->inner == 0) return rows_of(fusing, r, rows);
  XFI_TRY(rows_of(fusing, r % fusing->n, &all));
  XFI_TRY(add_chunk(rows, &all, r / fusing->n, fusing->inner));
done:
  xfi_stretches_free(&all);
  return st;
}

static int compare_stretches(const void *a, const void *b)
{
  const xfi_stretch *x = a, *y = b;

  return (x->global > y->global) - (x->global < y->global);
}

xfer_status xfi_fusing_part(const xfi_fusing *fusing, int part, int r, xfi_stretches *rows)
{
  size_t n = 0;
  xfer_status st = XFER_OK;

  rows->n = 0;
  XFI_TRY(fusing_rows(fusing, r, rows));
  for (size_t i = 0; i < rows->n; i++) {
    if (rows->at[i].part == part) rows->at[n++] = rows->at[i];
  }
  rows->n = n;
  xfi_sort(rows->at, n, sizeof *rows->at, compare_stretches);
done:
  return st;
}

int xfi_fusing_ranks(const xfi_fusing *fusing)
{
  return fusing->n * (fusing->inner > 0 ? fusing->inner : 1);
}

/* Refuses what does not divide; `what` and `spec` are for the sentence. */
static xfer_status check_fusing(const xfi_fusing *f, const char *what, const char *spec)
{
  int64_t rows = 0;
  xfer_status st = XFER_OK;

  for (int k = 0; k < f->n_blocks; k++) {
    const xfi_block *b = &f->blocks[k];

    rows += b->count * b->size;
    XFI_CHECK(f->groups == 0 || b->count % f->groups == 0, XFER_ERR_SHAPE,
              "\"%s\": %lld heads or parts do not divide by %lld groups", what, (long long)b->count,
              (long long)f->groups);
    if (f->whole || f->n == 1 || f->groups > 0 || !f->even) continue;
    if (is_few(f, b)) {
      XFI_CHECK(f->n % b->count == 0, XFER_ERR_SHAPE,
                "\"%s\": tp %d is no multiple of %lld key/value heads", what, f->n,
                (long long)b->count);
      continue;
    }
    XFI_CHECK(b->count % f->n == 0, XFER_ERR_SHAPE,
              "\"%s\": %lld %s do not divide by the %d ranks of \"%s\" that split them", what,
              (long long)b->count, b->size > 1 ? "heads or groups" : "rows", f->n, spec);
  }
  XFI_CHECK(f->groups == 0 || f->whole || rows % f->n == 0, XFER_ERR_SHAPE,
            "\"%s\": the %lld rows that lie together do not divide by tp %d", what, (long long)rows,
            f->n);
done:
  return st;
}

/* ---- tables of runs ---- */

void xfi_spread_free(xfi_spread *spread)
{
  for (int i = 0; i < spread->n_tables; i++) {
    xfi_free((void *)(uintptr_t)spread->tables[i].runs);
    xfi_free((void *)(uintptr_t)spread->tables[i].first);
    xfi_free((void *)(uintptr_t)spread->tables[i].local_lengths);
  }
  memset(spread, 0, sizeof *spread);
}

/* A table that grows coordinate by coordinate. */
typedef struct maker {
  xfer_run *runs;
  size_t n_runs, runs_cap;
  int64_t *first, *lengths;
  size_t n_coords, first_cap, lengths_cap;
} maker;

static xfer_status table_run(maker *m, int64_t global, int64_t length, int64_t local)
{
  xfer_status st = XFER_OK;

  if (length == 0) return XFER_OK;
  XFI_TRY(xfi_vec_reserve(&m->runs, &m->runs_cap, m->n_runs + 1, sizeof *m->runs));
  m->runs[m->n_runs++] = (xfer_run){global, length, local};
done:
  return st;
}

static xfer_status table_coord(maker *m, int64_t local_length)
{
  size_t n = m->n_coords;
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_vec_reserve(&m->first, &m->first_cap, n + 2, sizeof *m->first));
  XFI_TRY(xfi_vec_reserve(&m->lengths, &m->lengths_cap, n + 1, sizeof *m->lengths));
  m->lengths[n] = local_length;
  m->first[n + 1] = (int64_t)m->n_runs;
  m->n_coords = n + 1;
done:
  return st;
}

/* Hands the table to the spread and places it on an axis. */
static xfer_status table_place(maker *m, xfi_spread *spread, int axis, int dim, bool allow_zero)
{
  xfer_run_table *table = &spread->tables[spread->n_tables];
  xfer_status st = XFER_OK;

  /* A table of empty parts has no run, but needs an address. */
  XFI_TRY(xfi_vec_reserve(&m->runs, &m->runs_cap, 1, sizeof *m->runs));
  *table = (xfer_run_table){m->runs, m->first, m->lengths, (int64_t)m->n_coords, allow_zero};
  spread->n_tables++;
  spread->placements[axis] = xfer_shard_runs(dim, table);
  memset(m, 0, sizeof *m);
done:
  return st;
}

static void table_free(maker *m)
{
  xfi_free(m->runs);
  xfi_free(m->first);
  xfi_free(m->lengths);
}

/* ---- placing rows ---- */

static xfer_status check_scale(int64_t begin, int64_t end, int64_t rows, int64_t scale,
                               const char *what, const char *spec)
{
  xfer_status st = XFER_OK;

  XFI_CHECK(scale == 0 ||
                ((begin % scale == 0 || begin >= rows) && (end % scale == 0 || end >= rows)),
            XFER_ERR_UNSUPPORTED,
            "\"%s\": rows %lld to %lld of a shard in \"%s\" are no multiple of the block of %lld",
            what, (long long)begin, (long long)end, spec, (long long)scale);
done:
  return st;
}

typedef enum shape_of { ROWS_WHOLE = 1, ROWS_EVEN = 2 } shape_of;

static xfer_status make_table(xfi_spread *spread, int axis, int dim, const xfi_fusing *f, int part,
                              int64_t rows, int64_t scale, const char *what, const char *spec)
{
  maker m = {0};
  xfi_stretches all = {0};
  const int n = xfi_fusing_ranks(f);
  int shape = ROWS_WHOLE | (rows % n == 0 ? ROWS_EVEN : 0);
  xfer_status st = XFER_OK;

  for (int r = 0; r < n; r++) {
    int64_t local = 0, each = rows / n, first = 0;
    int n_runs = 0;

    XFI_TRY(xfi_fusing_part(f, part, r, &all));
    for (size_t i = 0; i < all.n; n_runs++) {
      int64_t begin = all.at[i].global, end = begin;

      for (; i < all.n && all.at[i].global == end; i++)
        end += all.at[i].length;
      XFI_TRY(check_scale(begin, end, rows, scale, what, spec));
      XFI_TRY(table_run(&m, begin, end - begin, local));
      local += end - begin;
      first = begin;
    }
    XFI_TRY(table_coord(&m, local));
    if (n_runs != 1 || local != rows) shape &= ~ROWS_WHOLE;
    if (n_runs != 1 || first != r * each || local != each) shape &= ~ROWS_EVEN;
  }
  if ((shape & ROWS_WHOLE) != 0) goto done;
  if ((shape & ROWS_EVEN) != 0)
    spread->placements[axis] = xfer_shard_rule(dim, XFER_EVEN);
  else
    XFI_TRY(table_place(&m, spread, axis, dim, false));
done:
  xfi_stretches_free(&all);
  table_free(&m);
  return st;
}

/* The one block of the part, if it is all its rows in their order; else NULL. */
static const xfi_block *plain_block(const xfi_fusing *f, int part)
{
  const xfi_block *found = NULL;

  for (int k = 0; k < f->n_blocks; k++) {
    const xfi_block *b = &f->blocks[k];

    if (b->part != part) continue;
    if (found != NULL || b->offset != 0 || b->stride != b->size || b->order != XFI_AS_IT_IS)
      return NULL;
    found = b;
  }
  return found;
}

static bool in_groups(const xfi_fusing *f)
{
  return f->groups > 0 && f->groups % f->n != 0;
}

xfer_status xfi_cut_rows(xfi_spread *spread, int axis, int dim, const xfi_fusing *f, int part,
                         int64_t rows, int64_t scale, const char *what, const char *spec)
{
  const xfi_block *b = plain_block(f, part);
  int n = f->n;
  xfer_status st = XFER_OK;

  XFI_TRY(check_fusing(f, what, spec));
  if (b == NULL || b->count * b->size != rows || (in_groups(f) && !f->whole) || f->inner > 0)
    return make_table(spread, axis, dim, f, part, rows, scale, what, spec);
  if (f->whole || n == 1) return XFER_OK;
  if (is_few(f, b)) { /* several ranks have the same */
    spread->shape[axis] = (int)b->count;
    spread->shape[spread->n_axes] = n / (int)b->count;
    spread->placements[spread->n_axes++] = xfer_replicate();
    n = (int)b->count;
    if (n == 1) return XFER_OK;
  }
  for (int64_t r = 0, k = xfi_ceil_div(rows, n); scale > 0 && r < n; r++)
    XFI_TRY(check_scale(r * k, (r + 1) * k, rows, scale, what, spec));
  spread->placements[axis] = xfer_shard_rule(dim, f->even ? XFER_EVEN : XFER_CHUNK);
done:
  return st;
}

/* ---- experts ---- */

static xfer_status map_rank(maker *m, const xfi_map *map, int r, bool *held, int64_t n_experts,
                            const char *what, const char *spec)
{
  int64_t n = 0;
  xfer_status st = XFER_OK;

  for (int i = map->first[r]; i < map->first[r + 1]; i++) {
    int expert = map->experts[i];

    XFI_CHECK(expert >= 0 && expert < n_experts, XFER_ERR_ARG,
              "\"%s\": the expert map has expert %d, \"%s\" has %lld", spec, expert, what,
              (long long)n_experts);
    held[expert] = true;
    XFI_TRY(table_run(m, expert, 1, n++));
  }
  XFI_TRY(table_coord(m, n));
done:
  return st;
}

static xfer_status round_rank(maker *m, int r, int n, int64_t n_experts)
{
  int64_t local = 0;
  xfer_status st = XFER_OK;

  for (int64_t e = r; e < n_experts; e += n)
    XFI_TRY(table_run(m, e, 1, local++));
  XFI_TRY(table_coord(m, local));
done:
  return st;
}

xfer_status xfi_cut_map(xfi_spread *spread, int axis, int n, const xfi_map *map, int64_t n_experts,
                        const char *what, const char *spec)
{
  bool *held = xfi_calloc((size_t)n_experts, sizeof *held);
  maker m = {0};
  xfer_status st = XFER_OK;

  XFI_CHECK(held != NULL, XFER_ERR_NOMEM, "%lld experts", (long long)n_experts);
  for (int r = 0; r < n; r++)
    XFI_TRY(map != NULL ? map_rank(&m, map, r, held, n_experts, what, spec)
                        : round_rank(&m, r, n, n_experts));
  for (int64_t e = 0; e < n_experts && map != NULL; e++) {
    XFI_CHECK(held[e], XFER_ERR_ARG, "\"%s\": the expert map gives expert %lld to no rank", spec,
              (long long)e);
  }
  XFI_TRY(table_place(&m, spread, axis, 0, false));
done:
  xfi_free(held);
  table_free(&m);
  return st;
}

xfer_status xfi_cut_roomy(xfi_spread *spread, int axis, int n, int dim, int64_t length,
                          int64_t each, int64_t room)
{
  maker m = {0};
  xfer_status st = XFER_OK;

  for (int64_t r = 0, left = length; r < n; r++, left -= left < each ? left : each) {
    XFI_TRY(table_run(&m, r * each, left < each ? left : each, 0));
    XFI_TRY(table_coord(&m, room));
  }
  XFI_TRY(table_place(&m, spread, axis, dim, true));
done:
  table_free(&m);
  return st;
}
