/* See oracle.h. Slow and plain on purpose. */
#include "oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

typedef struct orc_block {
  struct orc_block *next;
  size_t size;
  size_t used;
} orc_block;

static void add_block(orc_arena *arena, size_t size)
{
  orc_block *block = malloc(sizeof *block + size);
  if (block == NULL) {
    fputs("oracle: out of memory\n", stderr);
    abort();
  }
  *block = (orc_block){arena->blocks, size, 0};
  arena->blocks = block;
}

void *orc_alloc(orc_arena *arena, size_t n_bytes)
{
  size_t need = (n_bytes + 15) / 16 * 16;
  if (arena->blocks == NULL || arena->blocks->size - arena->blocks->used < need) {
    add_block(arena, need > 65536 ? need : 65536);
  }
  unsigned char *p = (unsigned char *)(arena->blocks + 1) + arena->blocks->used;
  arena->blocks->used += need;
  return p;
}

void orc_free(orc_arena *arena)
{
  while (arena->blocks != NULL) {
    orc_block *next = arena->blocks->next;
    free(arena->blocks);
    arena->blocks = next;
  }
}

void orc_reset(orc_arena *arena)
{
  size_t total = 0;
  if (arena->blocks == NULL) return;
  for (orc_block *b = arena->blocks; b != NULL; b = b->next)
    total += b->size;
  if (arena->blocks->next != NULL) {
    orc_free(arena);
    add_block(arena, total);
  }
  arena->blocks->used = 0;
}

/* A place in an arena to return to, giving back all that was taken since. */
typedef struct mark {
  orc_block *block;
  size_t used;
} mark;

static mark mark_set(const orc_arena *arena)
{
  return (mark){arena->blocks, arena->blocks != NULL ? arena->blocks->used : 0};
}

static void mark_return(orc_arena *arena, mark m)
{
  if (m.block == NULL) {
    orc_reset(arena);
    return;
  }
  while (arena->blocks != m.block) {
    orc_block *next = arena->blocks->next;
    free(arena->blocks);
    arena->blocks = next;
  }
  arena->blocks->used = m.used;
}

/* ---- cutting a list ---- */

static orc_list list_create(orc_arena *arena, int64_t n)
{
  orc_list list = {n, orc_alloc(arena, (size_t)n * sizeof(int64_t))};
  return list;
}

static orc_list list_slice(orc_list whole, int64_t begin, int64_t end)
{
  if (begin > whole.n) begin = whole.n;
  if (end > whole.n) end = whole.n;
  return (orc_list){end - begin, whole.index + begin};
}

/* torch.chunk(list, m)[i]: pieces of ceil(n/m), until there is nothing left. */
static orc_list cut_chunk(orc_list whole, int64_t m, int64_t i)
{
  int64_t c = (whole.n + m - 1) / m;
  return list_slice(whole, c * i, c * i + c);
}

/* torch.tensor_split(list, m)[i]: hand out the remainder one by one from the first on. */
static orc_list cut_balanced(orc_list whole, int64_t m, int64_t i)
{
  int64_t begin = 0;
  for (int64_t before = 0; before < i; before++)
    begin += whole.n / m + (before < whole.n % m ? 1 : 0);
  return list_slice(whole, begin, begin + whole.n / m + (i < whole.n % m ? 1 : 0));
}

/* Cut in f pieces, each of them in m; the i-th sub-piece of every piece, one after the other. */
static orc_list cut_strided(orc_list whole, int64_t f, int64_t m, int64_t i, orc_arena *arena)
{
  orc_list out = list_create(arena, whole.n);
  out.n = 0;
  for (int64_t j = 0; j < f; j++) {
    orc_list sub = cut_chunk(cut_chunk(whole, f, j), m, i);
    for (int64_t k = 0; k < sub.n; k++)
      out.index[out.n++] = sub.index[k];
  }
  return out;
}

static orc_verdict cut_table(orc_list *out, orc_list whole, const orc_table *table, int64_t m,
                             int64_t i, orc_arena *arena)
{
  if (table->n_coords != m) return ORC_UNFIT;
  orc_list mine = list_create(arena, table->lengths[i]);
  for (int64_t k = 0; k < mine.n; k++)
    mine.index[k] = ORC_ZERO;
  for (int64_t r = table->first[i]; r < table->first[i + 1]; r++) {
    const orc_run *run = &table->runs[r];
    for (int64_t k = 0; k < run->length; k++) {
      if (run->global + k >= whole.n || run->local + k >= mine.n) return ORC_UNFIT;
      mine.index[run->local + k] = whole.index[run->global + k];
    }
  }
  *out = mine;
  return ORC_FINE;
}

static orc_verdict cut(orc_list *list, const orc_place *place, int64_t m, int64_t i,
                       orc_arena *arena)
{
  switch (place->kind) {
  case ORC_REPLICATE:
    break;
  case ORC_EVEN:
    if (list->n % m != 0) return ORC_UNEVEN;
    *list = list_slice(*list, list->n / m * i, list->n / m * (i + 1));
    break;
  case ORC_CHUNK:
    *list = cut_chunk(*list, m, i);
    break;
  case ORC_BALANCED:
    *list = cut_balanced(*list, m, i);
    break;
  case ORC_STRIDED:
    *list = cut_strided(*list, place->factor, m, i, arena);
    break;
  case ORC_TABLE:
    return cut_table(list, *list, place->table, m, i, arena);
  }
  return ORC_FINE;
}

/* ---- parts ---- */

/* Where `rank` stands in the mesh: coord has shape [n_axes]. */
static bool find_coord(int *coord, const orc_side *side, int rank)
{
  for (int at = 0; at < side->n_ranks; at++) {
    if (side->ranks[at] != rank) continue;
    for (int a = side->n_axes - 1, rest = at; a >= 0; a--) {
      coord[a] = rest % side->mesh[a];
      rest /= side->mesh[a];
    }
    return true;
  }
  return false;
}

static orc_verdict part_at(orc_part *part, const orc_side *side, const int *coord, orc_arena *arena)
{
  part->n_dims = side->n_dims;
  for (int d = 0; d < side->n_dims; d++) {
    part->dims[d] = list_create(arena, side->padded[d]);
    for (int64_t k = 0; k < side->padded[d]; k++)
      part->dims[d].index[k] = k;
  }
  for (int o = 0; o < side->n_axes; o++) {
    int a = side->order[o];
    const orc_place *place = &side->places[a];
    if (place->kind == ORC_REPLICATE) continue;
    orc_verdict v = cut(&part->dims[place->dim], place, side->mesh[a], coord[a], arena);
    if (v != ORC_FINE) return v;
  }
  for (int d = 0; d < side->n_dims; d++) {
    for (int64_t k = 0; k < part->dims[d].n; k++) {
      if (part->dims[d].index[k] >= side->shape[d]) part->dims[d].index[k] = ORC_ZERO;
    }
  }
  return ORC_FINE;
}

orc_verdict orc_part_of(orc_part *part, const orc_side *side, int rank, orc_arena *arena)
{
  int coord[ORC_MAX_DIMS] = {0};
  if (!find_coord(coord, side, rank)) return ORC_OUTSIDE;
  return part_at(part, side, coord, arena);
}

orc_verdict orc_check(const orc_side *side, orc_arena *arena)
{
  for (int r = 0; r < side->n_ranks; r++) {
    orc_part part;
    mark before = mark_set(arena);
    orc_verdict v = orc_part_of(&part, side, side->ranks[r], arena);
    mark_return(arena, before);
    if (v != ORC_FINE) return v;
  }
  return ORC_FINE;
}

/* ---- counting ---- */

bool orc_has_table(const orc_side *side)
{
  for (int a = 0; a < side->n_axes; a++) {
    if (side->places[a].kind == ORC_TABLE) return true;
  }
  return false;
}

int64_t orc_n_elems(const orc_part *part)
{
  int64_t n = 1;
  for (int d = 0; d < part->n_dims; d++)
    n *= part->dims[d].n;
  return n;
}

int64_t orc_n_zeros(const orc_part *part)
{
  int64_t n_real = 1;
  for (int d = 0; d < part->n_dims; d++) {
    int64_t n = 0;
    for (int64_t k = 0; k < part->dims[d].n; k++)
      n += part->dims[d].index[k] != ORC_ZERO;
    n_real *= n;
  }
  return orc_n_elems(part) - n_real;
}

/* How many places of `list` have an index that `other` has too. */
static int64_t list_common(const orc_list *list, const orc_list *other, orc_arena *arena)
{
  int64_t n = 0;
  int64_t top = 0; /* one above the highest index of `other` */
  mark before = mark_set(arena);
  for (int64_t k = 0; k < other->n; k++) {
    if (other->index[k] >= top) top = other->index[k] + 1;
  }
  unsigned char *has = orc_alloc(arena, (size_t)top);
  memset(has, 0, (size_t)top);
  for (int64_t k = 0; k < other->n; k++) {
    if (other->index[k] != ORC_ZERO) has[other->index[k]] = 1;
  }
  for (int64_t k = 0; k < list->n; k++) {
    int64_t index = list->index[k];
    n += index != ORC_ZERO && index < top && has[index];
  }
  mark_return(arena, before);
  return n;
}

int64_t orc_n_common(const orc_part *dst, const orc_part *src, orc_arena *arena)
{
  int64_t n = 1;
  for (int d = 0; d < dst->n_dims; d++)
    n *= list_common(&dst->dims[d], &src->dims[d], arena);
  return n;
}

/* Walk all elements of a part that are not ZERO: set their mark, or ask whether all are set. */
static bool marks_walk(unsigned char *marks, const orc_side *side, const orc_part *part, bool set)
{
  int64_t x[ORC_MAX_DIMS] = {0};
  int64_t n = orc_n_elems(part);

  for (int64_t e = 0; e < n; e++) {
    int64_t flat = 0;
    bool zero = false;
    for (int d = 0; d < part->n_dims; d++) {
      int64_t index = part->dims[d].index[x[d]];
      zero = zero || index == ORC_ZERO;
      flat = flat * side->shape[d] + index;
    }
    if (!zero && set) marks[flat] = 1;
    if (!zero && !set && marks[flat] == 0) return false;
    for (int d = part->n_dims - 1; d >= 0 && ++x[d] == part->dims[d].n; d--)
      x[d] = 0;
  }
  return true;
}

bool orc_covers(const orc_side *src, const orc_side *dst, orc_arena *arena)
{
  size_t n = 1;
  bool all = true;
  mark before = mark_set(arena);
  for (int d = 0; d < src->n_dims; d++)
    n *= (size_t)src->shape[d];
  unsigned char *marks = orc_alloc(arena, n);
  memset(marks, 0, n);

  mark at = mark_set(arena);
  for (int r = 0; r < src->n_ranks + dst->n_ranks; r++) {
    bool give = r < src->n_ranks;
    const orc_side *side = give ? src : dst;
    int rank = side->ranks[give ? r : r - src->n_ranks];
    orc_part part;
    if (all && orc_part_of(&part, side, rank, arena) == ORC_FINE) {
      all = marks_walk(marks, side, &part, give);
    }
    mark_return(arena, at);
  }
  mark_return(arena, before);
  return all;
}

/* ---- the two queries ---- */

size_t orc_runs(orc_run *runs, size_t capacity, const orc_list *list)
{
  size_t n = 0;
  orc_run run = {0, 0, 0};
  for (int64_t k = 0; k <= list->n; k++) {
    int64_t index = k < list->n ? list->index[k] : ORC_ZERO;
    if (run.length > 0 && index == run.global + run.length) {
      run.length++;
      continue;
    }
    if (run.length > 0 && n++ < capacity) runs[n - 1] = run;
    run = (orc_run){index, index == ORC_ZERO ? 0 : 1, k};
  }
  return n;
}

size_t orc_owners(orc_owner *owners, size_t capacity, const orc_side *side, const int64_t *index,
                  orc_arena *arena)
{
  size_t n = 0;
  for (int rank = 0; rank < ORC_MAX_RANKS; rank++) {
    orc_part part;
    int64_t x[ORC_MAX_DIMS] = {0};
    mark before = mark_set(arena);
    bool inside = orc_part_of(&part, side, rank, arena) == ORC_FINE;
    int64_t n_elems = inside ? orc_n_elems(&part) : 0;
    for (int64_t e = 0; e < n_elems; e++) {
      bool here = true;
      for (int d = 0; d < part.n_dims; d++)
        here = here && part.dims[d].index[x[d]] == index[d];
      if (here && n++ < capacity) {
        owners[n - 1].rank = rank;
        memcpy(owners[n - 1].local, x, sizeof x);
      }
      for (int d = part.n_dims - 1; d >= 0 && ++x[d] == part.dims[d].n; d--)
        x[d] = 0;
    }
    mark_return(arena, before);
  }
  return n;
}
