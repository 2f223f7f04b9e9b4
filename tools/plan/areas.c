#include "areas.h"

#include <stdlib.h>
#include <string.h>

/* Before they are joined: `who` is the part's own. False: the box has no elements. */
static bool area_of(area *out, const shards *of, size_t part, size_t box, const int dims[2])
{
  const int64_t *lo = of->at[part].bounds + 2 * (size_t)of->n_dims * box;
  const int64_t *hi = lo + of->n_dims;

  for (int d = 0; d < of->n_dims; d++)
    if (lo[d] >= hi[d] || lo[d] >= of->shape[d]) return false;
  *out = (area){.part = part, .who = of->at[part]};
  for (int k = 0; k < 2; k++) {
    const int d = dims[k];

    out->lo[k] = d < 0 ? 0 : lo[d];
    out->hi[k] = d < 0 ? 1 : hi[d] < of->shape[d] ? hi[d] : of->shape[d];
  }
  return true;
}

static int by_place(const void *a, const void *b)
{
  const area *x = a;
  const area *y = b;

  for (int k = 0; k < 2; k++) {
    if (x->lo[k] != y->lo[k]) return x->lo[k] < y->lo[k] ? -1 : 1;
    if (x->hi[k] != y->hi[k]) return x->hi[k] < y->hi[k] ? -1 : 1;
  }
  return (x->number > y->number) - (x->number < y->number);
}

static bool same_place(const area *a, const area *b)
{
  return memcmp(a->lo, b->lo, sizeof a->lo) == 0 && memcmp(a->hi, b->hi, sizeof a->hi) == 0;
}

static int by_number(const void *a, const void *b)
{
  const area *x = a;
  const area *y = b;

  return (x->number > y->number) - (x->number < y->number);
}

static int ascending(const void *a, const void *b)
{
  const int x = *(const int *)a;
  const int y = *(const int *)b;

  return (x > y) - (x < y);
}

/* The ranks of n areas, ascending, each once. False: no memory. */
static bool join_ranks(shard *who, const area *from, size_t n)
{
  size_t total = 0;
  int kept = 0;

  for (size_t i = 0; i < n; i++)
    total += (size_t)from[i].who.n_ranks;
  int *ranks = calloc(total + 1, sizeof *ranks);
  if (ranks == NULL) return false;
  total = 0;
  for (size_t i = 0; i < n; i++) {
    memcpy(ranks + total, from[i].who.ranks, (size_t)from[i].who.n_ranks * sizeof *ranks);
    total += (size_t)from[i].who.n_ranks;
  }
  qsort(ranks, total, sizeof *ranks, ascending);
  for (size_t i = 0; i < total; i++)
    if (i == 0 || ranks[i] != ranks[kept - 1]) ranks[kept++] = ranks[i];
  *who = (shard){.ranks = ranks, .n_ranks = kept};
  return true;
}

/* Joins areas that lie at the same place into the first of them. */
static bool join(areas *all)
{
  const size_t n = all->n;
  bool ok = true;

  all->n = 0;
  for (size_t i = 0, next; i < n && ok; i = next) {
    shard who;

    for (next = i + 1; next < n && same_place(&all->at[i], &all->at[next]);)
      next++;
    ok = join_ranks(&who, &all->at[i], next - i);
    if (!ok) break;
    all->at[all->n] = all->at[i];
    all->at[all->n++].who = who;
  }
  return ok;
}

bool areas_find(areas *out, const shards *of, const int dims[2])
{
  size_t n = 0, number = 0;

  memset(out, 0, sizeof *out);
  for (size_t p = 0; p < of->n; p++)
    n += of->at[p].n_boxes;
  out->at = calloc(n + 1, sizeof *out->at);
  if (out->at == NULL) return false;
  for (int k = 0; k < 2; k++)
    out->shape[k] = dims[k] < 0 ? 1 : of->shape[dims[k]];
  for (size_t p = 0; p < of->n; p++)
    for (size_t b = 0; b < of->at[p].n_boxes; b++) {
      if (area_of(&out->at[out->n], of, p, b, dims)) out->at[out->n++].number = number++;
    }
  qsort(out->at, out->n, sizeof *out->at, by_place);
  const bool ok = join(out);
  qsort(out->at, out->n, sizeof *out->at, by_number);
  if (!ok) areas_free(out);
  return ok;
}

void areas_free(areas *out)
{
  for (size_t i = 0; out->at != NULL && i < out->n; i++)
    free(out->at[i].who.ranks);
  free(out->at);
  memset(out, 0, sizeof *out);
}
