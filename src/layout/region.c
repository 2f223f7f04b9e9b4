/*
 * What a part of a dim holds, and which parts hold an interval: the cuts of the dim, composed.
 *
 * Forward, runs start as the whole valid dim and each cut keeps, of the runs so far, what its own
 * runs select. Backward, an interval is handed from cut to cut; each splits it among its
 * coordinates and passes every piece on in the coordinates' own indices, until after the last cut
 * the piece is local.
 */
#include "alloc.h"
#include "cut.h"
#include "error.h"
#include "vec.h"

static void split_part(const xfi_dim *dim, int64_t part, int64_t coords[XFER_MAX_DIMS])
{
  for (int c = dim->n_cuts - 1; c >= 0; c--) {
    coords[c] = part % dim->cuts[c].n_coords;
    part /= dim->cuts[c].n_coords;
  }
}

int64_t xfi_dim_length(const xfi_dim *dim, int64_t part)
{
  int64_t coords[XFER_MAX_DIMS];
  int64_t n = dim->padded;

  split_part(dim, part, coords);
  for (int c = 0; c < dim->n_cuts; c++)
    n = xfi_cut_length(&dim->cuts[c], n, coords[c]);
  return n;
}

int64_t xfi_dim_global(const xfi_dim *dim, int64_t part, int64_t local)
{
  int64_t coords[XFER_MAX_DIMS];
  int64_t n[XFER_MAX_DIMS + 1] = {dim->padded}; /* what each cut splits */
  int64_t at = local;

  split_part(dim, part, coords);
  for (int c = 0; c < dim->n_cuts; c++)
    n[c + 1] = xfi_cut_length(&dim->cuts[c], n[c], coords[c]);
  for (int c = dim->n_cuts - 1; c >= 0 && at >= 0; c--)
    at = xfi_cut_global(&dim->cuts[c], n[c], coords[c], at);
  return at < dim->size ? at : -1;
}

/* Append a run, joining it to the last one where both indices continue. */
static xfer_status append_run(xfi_runs *runs, xfer_run run)
{
  xfer_run *last = runs->n > 0 ? &runs->at[runs->n - 1] : NULL;

  if (last != NULL && last->global + last->length == run.global &&
      last->local + last->length == run.local) {
    last->length += run.length;
    return XFER_OK;
  }
  return XFI_APPEND(runs->at, runs->n, runs->capacity, run);
}

/* Cutting `from` (global, length, local; ascending in local) into `to`. */
typedef struct selection {
  const xfi_runs *from;
  xfi_runs *to;
} selection;

/* Index of the first run that ends after local index `at`. */
static size_t first_after(const xfi_runs *runs, int64_t at)
{
  size_t lo = 0;
  size_t hi = runs->n;

  XFI_BISECT(lo, hi, mid, runs->at[mid].local + runs->at[mid].length <= at);
  return lo;
}

/* `wanted.global` counts in the local indices of `from`. */
static xfer_status select_run(void *context, int64_t coord, xfer_run wanted)
{
  const selection *s = context;
  const int64_t end = wanted.global + wanted.length;

  (void)coord;
  for (size_t i = first_after(s->from, wanted.global); i < s->from->n; i++) {
    const xfer_run *r = &s->from->at[i];
    const int64_t lo = r->local > wanted.global ? r->local : wanted.global;
    const int64_t hi = r->local + r->length < end ? r->local + r->length : end;

    if (r->local >= end) break;
    XFI_TRY(append_run(s->to, (xfer_run){r->global + (lo - r->local), hi - lo,
                                         wanted.local + (lo - wanted.global)}));
  }
  return XFER_OK;
}

xfer_status xfi_dim_runs(const xfi_dim *dim, int64_t part, xfi_runs *runs)
{
  xfer_status st = XFER_OK;
  int64_t coords[XFER_MAX_DIMS];
  int64_t n = dim->padded;
  xfi_runs from = {NULL, 0, 0};

  split_part(dim, part, coords);
  runs->n = 0;
  if (dim->size > 0) XFI_TRY_DONE(append_run(runs, (xfer_run){0, dim->size, 0}));
  for (int c = 0; c < dim->n_cuts; c++) {
    xfi_runs spare = from;
    selection s = {&from, runs};

    from = *runs; /* swap the two lists */
    *runs = spare;
    runs->n = 0;
    XFI_TRY_DONE(xfi_cut_runs(&dim->cuts[c], n, coords[c], select_run, &s));
    n = xfi_cut_length(&dim->cuts[c], n, coords[c]);
  }
done:
  xfi_free(from.at);
  return st;
}

/* One step of the way back: the interval that reached cut `level`. */
typedef struct walk {
  const xfi_dim *dim;
  xfi_holds *holds;
  int level;
  int64_t n;      /* length of the part that this cut splits */
  int64_t part;   /* number of that part */
  int64_t global; /* what index 0 of that part would be, for this interval */
} walk;

static xfer_status append_hold(xfi_holds *holds, xfi_hold hold)
{
  return XFI_APPEND(holds->at, holds->n, holds->capacity, hold);
}

static xfer_status descend(void *context, int64_t coord, xfer_run run)
{
  const walk *w = context;
  const xfi_cut *cut = &w->dim->cuts[w->level];
  walk next = *w;

  next.level = w->level + 1;
  next.n = xfi_cut_length(cut, w->n, coord);
  next.part = w->part * cut->n_coords + coord;
  next.global = w->global + run.global - run.local;
  if (next.level == w->dim->n_cuts)
    return append_hold(w->holds,
                       (xfi_hold){next.part, w->global + run.global, run.length, run.local});
  return xfi_cut_holders(&w->dim->cuts[next.level], next.n, run.local, run.local + run.length,
                         descend, &next);
}

static xfer_status all_holders(const xfi_dim *dim, int64_t lo, int64_t hi, xfi_holds *holds)
{
  walk w = {dim, holds, 0, dim->padded, 0, 0};

  if (lo >= hi) return XFER_OK;
  if (dim->n_cuts == 0) return append_hold(holds, (xfi_hold){0, lo, hi - lo, lo});
  return xfi_cut_holders(&dim->cuts[0], dim->padded, lo, hi, descend, &w);
}

static int by_global(const void *a, const void *b)
{
  const xfi_hold *x = a;
  const xfi_hold *y = b;

  if (x->global != y->global) return x->global < y->global ? -1 : 1;
  if (x->part != y->part) return x->part < y->part ? -1 : 1;
  return (x->local > y->local) - (x->local < y->local);
}

/* Of holds by_global, append the first holder (lowest part, then lowest local) of each index: a
 * sweep in which the holds around the current index are `open`, and the best of them lasts until
 * one begins or ends. */
static xfer_status append_first_holders(xfi_holds *out, const xfi_hold *holds, size_t n)
{
  xfer_status st = XFER_OK;
  const xfi_hold **open = xfi_calloc(n, sizeof *open);
  size_t n_open = 0;
  size_t next = 0;
  int64_t at = 0;

  XFI_CHECK_DONE(open != NULL, XFER_ERR_NOMEM, "%zu runs", n);
  while (next < n || n_open > 0) {
    const xfi_hold *best = NULL;
    int64_t end = INT64_MAX;
    size_t kept = 0;

    if (n_open == 0) at = holds[next].global;
    while (next < n && holds[next].global == at)
      open[n_open++] = &holds[next++];
    if (next < n) end = holds[next].global;
    for (size_t i = 0; i < n_open; i++) {
      const xfi_hold *h = open[i];

      if (h->global + h->length < end) end = h->global + h->length;
      if (best == NULL || h->part < best->part || (h->part == best->part && h->local < best->local))
        best = h;
    }
    XFI_TRY_DONE(
        append_hold(out, (xfi_hold){best->part, at, end - at, best->local + (at - best->global)}));
    at = end;
    for (size_t i = 0; i < n_open; i++)
      if (open[i]->global + open[i]->length > at) open[kept++] = open[i];
    n_open = kept;
  }
done:
  xfi_free(open);
  return st;
}

bool xfi_dim_has_table(const xfi_dim *dim)
{
  for (int c = 0; c < dim->n_cuts; c++)
    if (dim->cuts[c].kind == XFER_RUNS) return true;
  return false;
}

xfer_status xfi_dim_holders(const xfi_dim *dim, int64_t lo, int64_t hi, bool once, xfi_holds *holds)
{
  xfer_status st = XFER_OK;
  xfi_holds all = {NULL, 0, 0};

  if (!once || !xfi_dim_has_table(dim)) return all_holders(dim, lo, hi, holds);
  XFI_TRY_DONE(all_holders(dim, lo, hi, &all));
  xfi_sort(all.at, all.n, sizeof *all.at, by_global);
  XFI_TRY_DONE(append_first_holders(holds, all.at, all.n));
done:
  xfi_free(all.at);
  return st;
}

static int by_local(const void *a, const void *b)
{
  const xfi_hold *x = a;
  const xfi_hold *y = b;

  return (x->local > y->local) - (x->local < y->local);
}

xfer_status xfi_dim_runs_once(const xfi_dim *dim, int64_t part, xfi_runs *runs)
{
  xfer_status st = XFER_OK;
  xfi_holds holds = {NULL, 0, 0};

  if (!xfi_dim_has_table(dim)) return xfi_dim_runs(dim, part, runs);
  XFI_TRY_DONE(xfi_dim_holders(dim, 0, dim->size, true, &holds));
  xfi_sort(holds.at, holds.n, sizeof *holds.at, by_local);
  runs->n = 0;
  for (size_t i = 0; i < holds.n; i++) {
    const xfi_hold *h = &holds.at[i];

    if (h->part == part) XFI_TRY_DONE(append_run(runs, (xfer_run){h->global, h->length, h->local}));
  }
done:
  xfi_free(holds.at);
  return st;
}
