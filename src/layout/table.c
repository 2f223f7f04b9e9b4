/*
 * Run tables: copied, checked, and indexed by global position for the way back.
 */
#include <string.h>

#include "alloc.h"
#include "cut.h"
#include "error.h"
#include "vec.h"

static int by_local(const void *a, const void *b)
{
  const xfer_run *x = a;
  const xfer_run *y = b;

  return (x->local > y->local) - (x->local < y->local);
}

static int by_global(const void *a, const void *b)
{
  const xfi_table_entry *x = a;
  const xfi_table_entry *y = b;

  if (x->run.global != y->run.global) return x->run.global < y->run.global ? -1 : 1;
  if (x->coord != y->coord) return (x->coord > y->coord) - (x->coord < y->coord);
  return by_local(&x->run, &y->run);
}

/* Local indices [begin, end) of coordinate i have no run. */
static xfer_status check_gap(const xfi_table *t, int64_t i, int64_t begin, int64_t end)
{
  XFI_CHECK(begin == end || t->allow_zero != 0, XFER_ERR_SHAPE,
            "run table: coordinate %lld has no run for local indices %lld to %lld; set allow_zero "
            "if that is meant",
            (long long)i, (long long)begin, (long long)end - 1);
  return XFER_OK;
}

/* The part of coordinate i: short enough for later cuts to split it without overflow; runs fit, do
 * not overlap in local, and leave gaps only where allowed.
 */
static xfer_status check_coord(const xfi_table *t, int64_t i)
{
  int64_t at = 0;

  XFI_CHECK(t->local_lengths[i] >= 0 && t->local_lengths[i] <= INT64_MAX / 2, XFER_ERR_SHAPE,
            "run table: coordinate %lld has length %lld", (long long)i,
            (long long)t->local_lengths[i]);
  for (int64_t r = t->first[i]; r < t->first[i + 1]; r++) {
    const xfer_run *run = &t->runs[r];

    XFI_CHECK(run->length >= 1 && run->global >= 0 && run->local >= 0 &&
                  run->length <= INT64_MAX / 2 - run->global &&
                  run->length <= INT64_MAX / 2 - run->local,
              XFER_ERR_SHAPE,
              "run table: coordinate %lld has the run (%lld, %lld, %lld); want a length from 1, "
              "indices from 0 and ends below 2^62",
              (long long)i, (long long)run->global, (long long)run->length, (long long)run->local);
    XFI_CHECK(run->local >= at, XFER_ERR_SHAPE,
              "run table: coordinate %lld holds local index %lld twice", (long long)i,
              (long long)run->local);
    XFI_TRY(check_gap(t, i, at, run->local));
    at = run->local + run->length;
  }
  XFI_CHECK(at <= t->local_lengths[i], XFER_ERR_SHAPE,
            "run table: coordinate %lld has runs up to local index %lld, and a part of %lld",
            (long long)i, (long long)at - 1, (long long)t->local_lengths[i]);
  return check_gap(t, i, at, t->local_lengths[i]);
}

static xfer_status fill_back(xfi_table *t)
{
  const int64_t n = t->first[t->n_coords];

  t->entries = xfi_calloc((size_t)n, sizeof *t->entries);
  XFI_CHECK(t->entries != NULL, XFER_ERR_NOMEM, "run table of %lld runs", (long long)n);
  for (int64_t i = 0; i < t->n_coords; i++) {
    for (int64_t r = t->first[i]; r < t->first[i + 1]; r++) {
      t->entries[r] = (xfi_table_entry){t->runs[r], i};
      if (t->runs[r].length > t->longest) t->longest = t->runs[r].length;
    }
  }
  xfi_sort(t->entries, (size_t)n, sizeof *t->entries, by_global);
  return XFER_OK;
}

static xfer_status copy_given(xfi_table *t, const xfer_run_table *given)
{
  const int64_t n_coords = given->n_coords;
  int64_t n;

  XFI_CHECK(given->first != NULL && given->local_lengths != NULL, XFER_ERR_ARG,
            "run table without arrays");
  XFI_CHECK(given->first[0] == 0, XFER_ERR_ARG, "run table: first[0] is %lld",
            (long long)given->first[0]);
  for (int64_t i = 0; i < n_coords; i++)
    XFI_CHECK(given->first[i] <= given->first[i + 1], XFER_ERR_ARG,
              "run table: first[%lld] is below first[%lld]", (long long)i + 1, (long long)i);
  n = given->first[n_coords];
  XFI_CHECK(n <= INT32_MAX, XFER_ERR_ARG, "run table of %lld runs", (long long)n);
  XFI_CHECK(n == 0 || given->runs != NULL, XFER_ERR_ARG, "run table: %lld runs at NULL",
            (long long)n);
  XFI_CHECK(given->allow_zero == 0 || given->allow_zero == 1, XFER_ERR_ARG,
            "run table: allow_zero is %lld", (long long)given->allow_zero);
  t->n_coords = n_coords;
  t->allow_zero = given->allow_zero;
  t->first = xfi_calloc((size_t)n_coords + 1, sizeof *t->first);
  t->local_lengths = xfi_calloc((size_t)n_coords, sizeof *t->local_lengths);
  t->runs = xfi_calloc((size_t)n, sizeof *t->runs);
  XFI_CHECK(t->first != NULL && t->local_lengths != NULL && t->runs != NULL, XFER_ERR_NOMEM,
            "run table of %lld runs", (long long)n);
  memcpy(t->first, given->first, ((size_t)n_coords + 1) * sizeof *t->first);
  memcpy(t->local_lengths, given->local_lengths, (size_t)n_coords * sizeof *t->local_lengths);
  if (n > 0) memcpy(t->runs, given->runs, (size_t)n * sizeof *t->runs);
  return XFER_OK;
}

xfer_status xfi_table_create(xfi_table **table, const xfer_run_table *given)
{
  xfer_status st = XFER_OK;
  xfi_table *t = NULL;

  t = xfi_calloc(1, sizeof *t);
  XFI_CHECK_DONE(t != NULL, XFER_ERR_NOMEM, "run table");
  XFI_TRY_DONE(copy_given(t, given));
  for (int64_t i = 0; i < t->n_coords; i++) {
    xfi_sort(t->runs + t->first[i], (size_t)(t->first[i + 1] - t->first[i]), sizeof *t->runs,
             by_local);
    XFI_TRY_DONE(check_coord(t, i));
  }
  XFI_TRY_DONE(fill_back(t));

  *table = t;
  t = NULL;
done:
  xfi_table_destroy(t);
  return st;
}

void xfi_table_destroy(xfi_table *table)
{
  if (table == NULL) return;
  xfi_free(table->first);
  xfi_free(table->local_lengths);
  xfi_free(table->runs);
  xfi_free(table->entries);
  xfi_free(table);
}
