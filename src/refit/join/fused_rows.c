#include "fused_rows.h"

#include "alloc.h"
#include "checked.h"
#include "error.h"
#include "vec.h"

static xfer_status add_rows(xfi_row_ranges *rows, int part, int64_t global, int64_t length)
{
  xfi_row_range *last = rows->n > 0 ? &rows->at[rows->n - 1] : NULL;
  const int64_t at = last == NULL ? 0 : last->at + last->length;

  if (length <= 0) return XFER_OK;
  if (last != NULL && last->part == part && last->global + last->length == global) {
    last->length += length;
    return XFER_OK;
  }
  return XFI_APPEND(rows->at, rows->n, rows->capacity, (xfi_row_range){part, global, length, at});
}

/* The row of a unit that is in place i in the slab's order. */
static int64_t reordered_row(const xfi_slab *slab, int64_t i)
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
      XFI_TRY(add_rows(rows, slab->part, base + reordered_row(slab, i), 1));
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

static bool is_few(const xfi_fused_rows *f, const xfi_slab *slab)
{
  return !f->whole && slab->count < f->n_tp && slab->count > 0 &&
         (slab->few == XFI_FEW_REPLICATE || (slab->few == XFI_FEW_ONE && slab->count == 1));
}

/* Appends what the r-th rank has of the rows of a slab, or of all groups if `slab` is NULL. */
static xfer_status add_share(xfi_row_ranges *rows, const xfi_row_ranges *all,
                             const xfi_fused_rows *f, const xfi_slab *slab, int r)
{
  /* Rows of a slab whose units do not follow each other cannot be chunked. */
  const bool units_apart = slab != NULL && slab->stride != slab->size && !f->even;

  if (slab != NULL && is_few(f, slab))
    return add_chunk(rows, all, r / (f->n_tp / slab->count), slab->count);
  if (f->whole || units_apart) return add_chunk(rows, all, 0, 1);
  return add_chunk(rows, all, r, f->n_tp);
}

static xfer_status rows_of(const xfi_fused_rows *f, int r, xfi_row_ranges *rows)
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

static xfer_status rows_with_fsdp(const xfi_fused_rows *fused, int r, xfi_row_ranges *rows)
{
  xfi_row_ranges all = {0};
  xfer_status st = XFER_OK;

  if (fused->n_fsdp == 0) return rows_of(fused, r, rows);
  XFI_TRY_DONE(rows_of(fused, r % fused->n_tp, &all));
  XFI_TRY_DONE(add_chunk(rows, &all, r / fused->n_tp, fused->n_fsdp));
done:
  xfi_free(all.at);
  return st;
}

static int compare_ranges(const void *a, const void *b)
{
  const xfi_row_range *x = a, *y = b;

  return (x->global > y->global) - (x->global < y->global);
}

xfer_status xfi_fused_part(const xfi_fused_rows *fused, int part, int r, xfi_row_ranges *rows)
{
  size_t n = 0;

  rows->n = 0;
  XFI_TRY(rows_with_fsdp(fused, r, rows));
  for (size_t i = 0; i < rows->n; i++) {
    if (rows->at[i].part == part) rows->at[n++] = rows->at[i];
  }
  rows->n = n;
  xfi_sort(rows->at, n, sizeof *rows->at, compare_ranges);
  return XFER_OK;
}

int xfi_fused_ranks(const xfi_fused_rows *fused)
{
  return fused->n_tp * (fused->n_fsdp > 0 ? fused->n_fsdp : 1);
}

xfer_status xfi_fused_check(const xfi_fused_rows *f, const xfer_side *side, const xfi_entry *entry)
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
    if (f->whole || f->n_tp == 1 || f->groups > 0 || !f->even) continue;
    if (is_few(f, slab)) {
      XFI_CHECK(f->n_tp % slab->count == 0, XFER_ERR_SHAPE,
                "\"%s\": tp %d of \"%s\" is no multiple of %lld key/value heads", what, f->n_tp,
                side->spec, (long long)slab->count);
      continue;
    }
    if (slab->few == XFI_FEW_CUT && slab->count > 0 && f->n_tp % slab->count == 0 &&
        slab->size % (f->n_tp / slab->count) == 0)
      continue;
    XFI_CHECK(slab->count % f->n_tp == 0, XFER_ERR_SHAPE,
              "\"%s\": %lld %s do not divide by the %d ranks of \"%s\" that split them", what,
              (long long)slab->count, slab->size > 1 ? "heads or groups" : "rows", f->n_tp,
              side->spec);
  }
  XFI_CHECK(f->groups == 0 || f->whole ||
                (heads % f->n_tp == 0 && (f->groups % f->n_tp == 0 || f->n_tp % f->groups == 0)),
            XFER_ERR_SHAPE, "\"%s\": %lld heads in %lld groups do not divide by tp %d of \"%s\"",
            what, (long long)heads, (long long)f->groups, f->n_tp, side->spec);
  XFI_CHECK(f->groups == 0 || f->whole || rows % f->n_tp == 0, XFER_ERR_SHAPE,
            "\"%s\": the %lld rows that lie together do not divide by tp %d of \"%s\"", what,
            (long long)rows, f->n_tp, side->spec);
  return XFER_OK;
}

const xfi_slab *xfi_fused_few(const xfi_fused_rows *f, int part, int64_t rows)
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
  return found != NULL && f->groups == 0 && f->n_fsdp == 0 && is_few(f, found) &&
                 found->count * found->size == rows
             ? found
             : NULL;
}
