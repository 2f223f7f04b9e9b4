/*
 * Run tables: copied, checked, and indexed by global position for the way back.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "cut.h"
#include "error.h"

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
  if (x->coord != y->coord) return x->coord < y->coord ? -1 : 1;
  return by_local(&x->run, &y->run);
}

/* The part of coordinate i: runs fit, do not overlap in local, and leave gaps only where allowed. */
static xfer_status check_coord(const xfi_table *t, int64_t i)
{
  xfer_status st = XFER_OK;
  int64_t at = 0;

  XFI_CHECK(t->local_lengths[i] >= 0, XFER_ERR_SHAPE, "run table: coordinate %lld has length %lld",
            (long long)i, (long long)t->local_lengths[i]);
  for (int64_t r = t->first[i]; r < t->first[i + 1]; r++) {
    const xfer_run *run = &t->runs[r];

    XFI_CHECK(run->length >= 1 && run->global >= 0 && run->local >= 0 &&
                  run->length <= INT64_MAX / 2 - run->global && run->length <= INT64_MAX / 2 - run->local,
              XFER_ERR_SHAPE, "run table: coordinate %lld has the run (%lld, %lld, %lld)", (long long)i,
              (long long)run->global, (long long)run->length, (long long)run->local);
    XFI_CHECK(run->local >= at, XFER_ERR_SHAPE,
              "run table: coordinate %lld holds local index %lld twice", (long long)i, (long long)run->local);
    XFI_CHECK(run->local == at || t->allow_zero != 0, XFER_ERR_SHAPE,
              "run table: coordinate %lld has no run for local indices %lld to %lld", (long long)i,
              (long long)at, (long long)run->local);
    at = run->local + run->length;
  }
  XFI_CHECK(at <= t->local_lengths[i] && (at == t->local_lengths[i] || t->allow_zero != 0), XFER_ERR_SHAPE,
            "run table: coordinate %lld has runs up to local index %lld of %lld", (long long)i, (long long)at,
            (long long)t->local_lengths[i]);
done:
  return st;
}

/* Of entries that overlap, `once` keeps the lowest (coord, local) at each index. Sweeps the sorted
 * entries: at each position the best entry that covers it, up to the next position where that changes. */
static xfer_status fill_once(xfi_table *t)
{
  const int64_t n = t->first[t->n_coords];
  xfer_status st = XFER_OK;
  int64_t at = 0;
  int64_t next = 0; /* first entry that starts after `at` */

  t->once = xfi_calloc((size_t)(2 * n + 1), sizeof *t->once); /* each start and end begins at most one */
  XFI_CHECK(t->once != NULL, XFER_ERR_NOMEM, "run table of %lld runs", (long long)n);
  while (next < n || t->n_once > 0) {
    const xfi_table_entry *best = NULL;
    int64_t end = INT64_MAX;
    int64_t e;

    for (; next < n && t->every[next].run.global <= at; next++) continue;
    for (e = next - 1; e >= 0 && t->every[e].run.global > at - t->longest; e--) {
      const xfi_table_entry *entry = &t->every[e];

      if (entry->run.global + entry->run.length <= at) continue;
      if (entry->run.global + entry->run.length < end) end = entry->run.global + entry->run.length;
      if (best == NULL || entry->coord < best->coord ||
          (entry->coord == best->coord && entry->run.local < best->run.local))
        best = entry;
    }
    if (next < n && t->every[next].run.global < end) end = t->every[next].run.global;
    if (best != NULL) {
      xfi_table_entry *last = t->n_once > 0 ? &t->once[t->n_once - 1] : NULL;
      const int64_t local = best->run.local + (at - best->run.global);

      if (last != NULL && last->coord == best->coord && last->run.global + last->run.length == at &&
          last->run.local + last->run.length == local)
        last->run.length += end - at;
      else
        t->once[t->n_once++] = (xfi_table_entry){{at, end - at, local}, best->coord};
    } else if (next == n) {
      break;
    }
    at = end;
  }
done:
  return st;
}

static xfer_status fill_back(xfi_table *t)
{
  const int64_t n = t->first[t->n_coords];
  xfer_status st = XFER_OK;

  t->every = xfi_calloc((size_t)n, sizeof *t->every);
  XFI_CHECK(t->every != NULL, XFER_ERR_NOMEM, "run table of %lld runs", (long long)n);
  for (int64_t i = 0; i < t->n_coords; i++) {
    for (int64_t r = t->first[i]; r < t->first[i + 1]; r++) {
      t->every[r] = (xfi_table_entry){t->runs[r], i};
      if (t->runs[r].length > t->longest) t->longest = t->runs[r].length;
    }
  }
  qsort(t->every, (size_t)n, sizeof *t->every, by_global);
  XFI_TRY(fill_once(t));
  for (int64_t e = 0; e < t->n_once; e++) /* merged entries may be longer than any given one */
    if (t->once[e].run.length > t->longest) t->longest = t->once[e].run.length;
done:
  return st;
}

static xfer_status copy_given(xfi_table *t, const xfer_run_table *given)
{
  xfer_status st = XFER_OK;
  const int64_t n_coords = given->n_coords;
  int64_t n;

  XFI_CHECK(given->first != NULL && given->local_lengths != NULL, XFER_ERR_ARG, "run table without arrays");
  XFI_CHECK(given->first[0] == 0, XFER_ERR_ARG, "run table: first[0] is %lld", (long long)given->first[0]);
  for (int64_t i = 0; i < n_coords; i++)
    XFI_CHECK(given->first[i] <= given->first[i + 1], XFER_ERR_ARG, "run table: first[%lld] is below first[%lld]",
              (long long)i + 1, (long long)i);
  n = given->first[n_coords];
  XFI_CHECK(n <= INT32_MAX && (n == 0 || given->runs != NULL), XFER_ERR_ARG, "run table of %lld runs",
            (long long)n);
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
done:
  return st;
}

xfer_status xfi_table_create(xfi_table **table, const xfer_run_table *given)
{
  xfer_status st = XFER_OK;
  xfi_table *t = NULL;

  t = xfi_calloc(1, sizeof *t);
  XFI_CHECK(t != NULL, XFER_ERR_NOMEM, "run table");
  XFI_TRY(copy_given(t, given));
  for (int64_t i = 0; i < t->n_coords; i++) {
    qsort(t->runs + t->first[i], (size_t)(t->first[i + 1] - t->first[i]), sizeof *t->runs, by_local);
    XFI_TRY(check_coord(t, i));
  }
  XFI_TRY(fill_back(t));

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
  xfi_free(table->every);
  xfi_free(table->once);
  xfi_free(table);
}
