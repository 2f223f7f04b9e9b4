/*
 * The arithmetic of one split. Rules: torch.chunk, torch.tensor_split, even division, DTensor's
 * strided sharding. A strided split cuts n in pieces of c1 = ceil(n/f) and each piece by CHUNK; the
 * local position of an index is then (whole pieces before it) * (own share of a whole piece) +
 * (offset in the share).
 */
#include "cut.h"

#include "checked.h"
#include "error.h"
#include "vec.h"

static int64_t min64(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

static int64_t chunk_length(int64_t n, int64_t m, int64_t i)
{
  const int64_t c = xfi_ceil_div(n, m);

  return min64(n, c * (i + 1)) - min64(n, c * i);
}

int64_t xfi_cut_start(const xfi_cut *cut, int64_t n, int64_t coord)
{
  const int64_t m = cut->n_coords;

  if (cut->rule == XFER_BALANCED) return coord * (n / m) + min64(coord, n % m);
  return min64(n, xfi_ceil_div(n, m) * coord);
}

int64_t xfi_cut_length(const xfi_cut *cut, int64_t n, int64_t coord)
{
  const int64_t m = cut->n_coords;
  int64_t c1;

  if (cut->kind == XFER_RUNS) return cut->table->local_lengths[coord];
  if (cut->kind == XFER_SHARD) {
    if (cut->rule == XFER_BALANCED) return n / m + (coord < n % m);
    return chunk_length(n, m, coord);
  }
  if (n == 0) return 0;
  c1 = xfi_ceil_div(n, cut->split_factor);
  return (n / c1) * chunk_length(c1, m, coord) + chunk_length(n % c1, m, coord);
}

static xfer_status strided_runs(const xfi_cut *cut, int64_t n, int64_t coord, xfi_cut_visit visit,
                                void *context)
{
  const int64_t m = cut->n_coords;
  const int64_t c1 = n == 0 ? 1 : xfi_ceil_div(n, cut->split_factor);
  int64_t local = 0;

  for (int64_t start = 0; start < n; start += c1) {
    const int64_t nj = min64(c1, n - start);
    const int64_t length = chunk_length(nj, m, coord);

    if (length == 0) continue;
    XFI_TRY(visit(context, coord, (xfer_run){start + xfi_ceil_div(nj, m) * coord, length, local}));
    local += length;
  }
  return XFER_OK;
}

xfer_status xfi_cut_runs(const xfi_cut *cut, int64_t n, int64_t coord, xfi_cut_visit visit,
                         void *context)
{
  int64_t length;

  switch (cut->kind) {
  case XFER_RUNS:
    for (int64_t i = cut->table->first[coord]; i < cut->table->first[coord + 1]; i++)
      XFI_TRY(visit(context, coord, cut->table->runs[i]));
    break;
  case XFER_STRIDED:
    XFI_TRY(strided_runs(cut, n, coord, visit, context));
    break;
  default:
    length = xfi_cut_length(cut, n, coord);
    if (length > 0)
      XFI_TRY(visit(context, coord, (xfer_run){xfi_cut_start(cut, n, coord), length, 0}));
  }
  return XFER_OK;
}

static int64_t strided_global(const xfi_cut *cut, int64_t n, int64_t coord, int64_t local)
{
  const int64_t m = cut->n_coords;
  const int64_t c1 = xfi_ceil_div(n, cut->split_factor);
  const int64_t share = chunk_length(c1, m, coord);
  /* Of the last piece, which may be shorter, a coordinate can have more than of the others. */
  const int64_t j = share > 0 ? min64(local / share, n / c1) : n / c1;
  const int64_t nj = min64(c1, n - j * c1);

  return j * c1 + xfi_ceil_div(nj, m) * coord + (local - j * share);
}

static int64_t table_global(const xfi_table *table, int64_t coord, int64_t local)
{
  const int64_t end = table->first[coord + 1];
  int64_t lo = table->first[coord];
  int64_t hi = end;

  XFI_BISECT(lo, hi, mid, table->runs[mid].local + table->runs[mid].length <= local);
  if (lo == end || table->runs[lo].local > local) return -1;
  return table->runs[lo].global + (local - table->runs[lo].local);
}

int64_t xfi_cut_global(const xfi_cut *cut, int64_t n, int64_t coord, int64_t local)
{
  if (cut->kind == XFER_RUNS) return table_global(cut->table, coord, local);
  if (cut->kind == XFER_STRIDED) return strided_global(cut, n, coord, local);
  return xfi_cut_start(cut, n, coord) + local;
}

/* Which coordinate holds index x under SHARD. */
static int64_t shard_coord(const xfi_cut *cut, int64_t n, int64_t x)
{
  const int64_t m = cut->n_coords;
  const int64_t q = n / m;
  const int64_t longer = (n % m) * (q + 1); /* indices held by the coordinates with one more */

  if (cut->rule != XFER_BALANCED) return x / xfi_ceil_div(n, m);
  return x < longer ? x / (q + 1) : n % m + (x - longer) / q;
}

static xfer_status shard_holders(const xfi_cut *cut, int64_t n, int64_t lo, int64_t hi,
                                 xfi_cut_visit visit, void *context)
{
  while (lo < hi) {
    const int64_t i = shard_coord(cut, n, lo);
    const int64_t start = xfi_cut_start(cut, n, i);
    const int64_t end = min64(hi, start + xfi_cut_length(cut, n, i));

    XFI_TRY(visit(context, i, (xfer_run){lo, end - lo, lo - start}));
    lo = end;
  }
  return XFER_OK;
}

static xfer_status strided_holders(const xfi_cut *cut, int64_t n, int64_t lo, int64_t hi,
                                   xfi_cut_visit visit, void *context)
{
  const int64_t m = cut->n_coords;
  const int64_t c1 = n == 0 ? 1 : xfi_ceil_div(n, cut->split_factor);

  while (lo < hi) {
    const int64_t j = lo / c1;
    const int64_t q = lo - j * c1;
    const int64_t nj = min64(c1, n - j * c1);
    const int64_t c2 = xfi_ceil_div(nj, m);
    const int64_t i = q / c2;
    const int64_t end = min64(hi, j * c1 + min64(nj, (i + 1) * c2));

    XFI_TRY(visit(context, i, (xfer_run){lo, end - lo, j * chunk_length(c1, m, i) + (q - i * c2)}));
    lo = end;
  }
  return XFER_OK;
}

/* The first entry whose global is >= `at`. */
static int64_t first_at(const xfi_table_entry *entries, int64_t n, int64_t at)
{
  int64_t lo = 0;

  XFI_BISECT(lo, n, mid, entries[mid].run.global < at);
  return lo;
}

static xfer_status table_holders(const xfi_table *table, int64_t lo, int64_t hi,
                                 xfi_cut_visit visit, void *context)
{
  const xfi_table_entry *entries = table->entries;
  const int64_t n = table->first[table->n_coords];

  for (int64_t e = first_at(entries, n, lo - table->longest); e < n; e++) {
    const xfer_run *run = &entries[e].run;
    const int64_t from = max64(lo, run->global);
    const int64_t to = min64(hi, run->global + run->length);

    if (run->global >= hi) break;
    if (from >= to) continue;
    XFI_TRY(visit(context, entries[e].coord,
                  (xfer_run){from, to - from, run->local + (from - run->global)}));
  }
  return XFER_OK;
}

xfer_status xfi_cut_holders(const xfi_cut *cut, int64_t n, int64_t lo, int64_t hi,
                            xfi_cut_visit visit, void *context)
{
  if (cut->kind == XFER_RUNS) return table_holders(cut->table, lo, hi, visit, context);
  if (cut->kind == XFER_STRIDED) return strided_holders(cut, n, lo, hi, visit, context);
  return shard_holders(cut, n, lo, hi, visit, context);
}
