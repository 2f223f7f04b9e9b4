#include "cuts.h"

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "vec.h"

/* ---- tables of runs ---- */

/* Begins the sharding's next table, to which the runs of n coordinates will be added one by one. */
static xfer_status table_begin(xfi_sharding_table **table, xfi_sharding *sharding, int n)
{
  xfi_sharding_table *t = &sharding->tables[sharding->n_tables++];

  *table = t;
  t->first = xfi_calloc((size_t)n + 1, sizeof *t->first);
  t->lengths = xfi_calloc((size_t)n, sizeof *t->lengths);
  XFI_CHECK(t->first != NULL && t->lengths != NULL, XFER_ERR_NOMEM, "the runs of %d ranks", n);
  /* Even a table without runs needs an address. */
  return xfi_vec_reserve(&t->runs, &t->capacity, 1, sizeof *t->runs);
}

static xfer_status table_run(xfi_sharding_table *t, int64_t global, int64_t length, int64_t local)
{
  if (length == 0) return XFER_OK;
  return XFI_APPEND(t->runs, t->n_runs, t->capacity, (xfer_run){global, length, local});
}

static void table_coord(xfi_sharding_table *t, int64_t local_length)
{
  t->lengths[t->n_coords++] = local_length;
  t->first[t->n_coords] = (int64_t)t->n_runs;
}

static void table_place(xfi_sharding_table *t, xfi_sharding *sharding, int axis, int dim,
                        bool allow_zero)
{
  t->table = (xfer_run_table){t->runs, t->first, t->lengths, t->n_coords, allow_zero};
  sharding->placements[axis] = xfer_shard_runs(dim, &t->table);
}

/* ---- placing rows ---- */

/* Checks that rows [begin, end) of a shard are whole blocks of scales, except for the last block.
 * FSDP may cut inside one. */
static xfer_status check_blocks(const xfi_sharding_input *in, int64_t begin, int64_t end)
{
  const xfi_entry *e = in->entry;
  const int dim = xfi_entry_row_dim(e);
  const int64_t rows = e->shape[dim];
  const int64_t block = in->mapping->fused.n_fsdp == 0 && e->n_dims - dim > 1 ? e->block[0] : 0;

  XFI_CHECK(block == 0 ||
                ((begin % block == 0 || begin >= rows) && (end % block == 0 || end >= rows)),
            XFER_ERR_UNSUPPORTED,
            "\"%s\": rows %lld to %lld of a shard in \"%s\" are no multiple of the block of %lld",
            e->pattern, (long long)begin, (long long)end, in->set->side->spec, (long long)block);
  return XFER_OK;
}

/* How the runs of all ranks look: each has all rows, or the r-th the r-th of equal chunks. */
typedef struct row_form {
  int64_t rows, each; /* of the entry, and of a chunk */
  bool whole, chunks; /* until a rank shows otherwise */
} row_form;

/* Adds the rows of the r-th rank to a table, those that follow each other as one run. */
static xfer_status add_rank(xfi_sharding_table *table, row_form *form, const xfi_sharding_input *in,
                            const xfi_row_ranges *all, int r)
{
  const int64_t left = form->rows - r * form->each;
  const int64_t wanted = left < form->each ? left : form->each;
  int64_t local = 0, first = 0;
  int n_runs = 0;

  for (size_t i = 0; i < all->n; n_runs++) {
    int64_t begin = all->at[i].global, end = begin;

    for (; i < all->n && all->at[i].global == end; i++)
      end += all->at[i].length;
    XFI_TRY(check_blocks(in, begin, end));
    XFI_TRY(table_run(table, begin, end - begin, local));
    local += end - begin;
    first = begin;
  }
  table_coord(table, local);
  form->whole = form->whole && n_runs == 1 && local == form->rows;
  form->chunks =
      form->chunks &&
      (wanted > 0 ? n_runs == 1 && first == r * form->each && local == wanted : n_runs == 0);
  return XFER_OK;
}

xfer_status xfi_cut_rows(xfi_sharding *sharding, const xfi_sharding_input *in, int axis)
{
  const xfi_fused_rows *f = &in->mapping->fused;
  const int dim = xfi_entry_row_dim(in->entry), part = in->mapping->index;
  const int64_t rows = in->entry->shape[dim];
  const xfi_slab *few = xfi_fused_few(f, part, rows);
  const int all_ranks = xfi_fused_ranks(f), n = few != NULL ? (int)few->count : all_ranks;
  row_form form = {.rows = rows, .each = xfi_ceil_div(rows, n), .whole = true, .chunks = true};
  xfi_sharding_table *table;
  xfi_row_ranges all = {0};
  xfer_status st = XFER_OK;

  XFI_TRY_DONE(xfi_fused_check(f, in->set->side, in->entry));
  XFI_TRY_DONE(table_begin(&table, sharding, n));
  for (int r = 0; r < n; r++) {
    XFI_TRY_DONE(xfi_fused_part(f, part, r * (all_ranks / n), &all));
    XFI_TRY_DONE(add_rank(table, &form, in, &all, r));
  }
  if (few != NULL && n > 1) {
    sharding->shape[axis] = n;
    sharding->shape[sharding->n_axes] = all_ranks / n;
    sharding->placements[sharding->n_axes++] = xfer_replicate();
  }
  if (form.whole) goto done;
  if (form.chunks)
    sharding->placements[axis] = xfer_shard_rule(dim, rows % n == 0 ? XFER_EVEN : XFER_CHUNK);
  else
    table_place(table, sharding, axis, dim, false);
done:
  xfi_free(all.at);
  return st;
}

/* ---- experts ---- */

xfer_status xfi_cut_map(xfi_sharding *sharding, const xfi_sharding_input *in, int axis,
                        const xfi_expert_map *map)
{
  const char *spec = in->set->side->spec;
  const int n = sharding->shape[axis];
  const int64_t n_experts = in->entry->shape[0];
  bool *held = xfi_calloc((size_t)n_experts, sizeof *held);
  xfi_sharding_table *table;
  xfer_status st = XFER_OK;

  XFI_CHECK_DONE(held != NULL, XFER_ERR_NOMEM, "%lld experts", (long long)n_experts);
  XFI_TRY_DONE(table_begin(&table, sharding, n));
  for (int r = 0; r < n; r++) {
    const int64_t count =
        map != NULL ? map->first[r + 1] - map->first[r] : (n_experts - r + n - 1) / n;

    for (int64_t i = 0; i < count; i++) {
      const int64_t expert = map != NULL ? map->experts[map->first[r] + i] : r + i * n;

      XFI_CHECK_DONE(expert >= 0 && expert < n_experts, XFER_ERR_ARG,
                     "\"%s\": the expert map has expert %lld, \"%s\" has %lld", spec,
                     (long long)expert, in->entry->pattern, (long long)n_experts);
      held[expert] = true;
      XFI_TRY_DONE(table_run(table, expert, 1, i));
    }
    table_coord(table, count);
  }
  for (int64_t e = 0; e < n_experts; e++) {
    XFI_CHECK_DONE(held[e], XFER_ERR_ARG, "\"%s\": the expert map gives expert %lld to no rank",
                   spec, (long long)e);
  }
  table_place(table, sharding, axis, 0, false);
done:
  xfi_free(held);
  return st;
}

xfer_status xfi_cut_padded(xfi_sharding *sharding, const xfi_sharding_input *in, int axis, int dim,
                           int64_t each, int64_t padded)
{
  const int n = sharding->shape[axis];
  xfi_sharding_table *table;

  XFI_TRY(table_begin(&table, sharding, n));
  for (int64_t r = 0, left = in->entry->shape[dim]; r < n; r++, left -= left < each ? left : each) {
    const int64_t mine = left < each ? left : each;

    XFI_TRY(table_run(table, r * each, mine, 0));
    table_coord(table, padded < 0 ? mine : padded);
  }
  table_place(table, sharding, axis, dim, true);
  return XFER_OK;
}
