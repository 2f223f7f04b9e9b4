/* Reading and writing of problems: the grammar of the problem language, independent of the
 * library's parser. */
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "problem.h"

/* ---- reading ---- */

static bool take(const char **at, const char *word)
{
  size_t n = strlen(word);
  if (strncmp(*at, word, n) != 0) return false;
  *at += n;
  return true;
}

static bool take_int(const char **at, int64_t *value)
{
  char *end;
  if (!isdigit((unsigned char)**at) && **at != '-') return false;
  *value = strtoll(*at, &end, 10);
  *at = end;
  return true;
}

static bool read_ranks(orc_side *side, const char **at)
{
  int n = 0;
  do {
    int64_t first, last, step = 1;
    if (!take_int(at, &first)) return false;
    last = first;
    if (take(at, "-") && !take_int(at, &last)) return false;
    if (take(at, "/") && !take_int(at, &step)) return false;
    for (int64_t r = first; r <= last && n < ORC_MAX_RANKS; r += step)
      side->ranks[n++] = (int)r;
  } while (take(at, ","));
  return n == side->n_ranks;
}

/* "[4: 3+1@0 0+2@1]" for each coordinate: the length of its part, then runs global+length@local. */
static bool read_table(orc_place *place, const char **at, int64_t n_coords, orc_arena *arena)
{
  enum { MOST = 1000 };
  orc_table *table = orc_alloc(arena, sizeof *table);
  int64_t n = 0;
  *table = (orc_table){n_coords, orc_alloc(arena, MOST * sizeof(orc_run)),
                       orc_alloc(arena, ((size_t)n_coords + 1) * sizeof(int64_t)),
                       orc_alloc(arena, (size_t)n_coords * sizeof(int64_t))};
  table->first[0] = 0;
  for (int64_t i = 0; i < n_coords; i++) {
    if (!take(at, "[") || !take_int(at, &table->lengths[i]) || !take(at, ":")) return false;
    for (; take(at, " ") && n < MOST; n++) {
      orc_run *run = &table->runs[n];
      if (!take_int(at, &run->global) || !take(at, "+") || !take_int(at, &run->length))
        return false;
      if (!take(at, "@") || !take_int(at, &run->local)) return false;
    }
    if (!take(at, "]")) return false;
    table->first[i + 1] = n;
  }
  place->kind = ORC_TABLE;
  place->table = table;
  return true;
}

static bool read_place(orc_place *place, const char **at, const orc_side *side, int axis,
                       orc_arena *arena)
{
  int64_t dim;
  *place = (orc_place){ORC_REPLICATE, 0, 0, NULL};
  if (take(at, "R")) return true;
  if (!take(at, "S") || !take_int(at, &dim)) return false;
  place->dim = (int)(dim < 0 ? dim + side->n_dims : dim);
  place->kind = take(at, "b") ? ORC_BALANCED : take(at, "e") ? ORC_EVEN : ORC_CHUNK;
  if (take(at, "f")) {
    place->kind = ORC_STRIDED;
    return take_int(at, &place->factor);
  }
  if (take(at, "x")) return read_table(place, at, side->mesh[axis], arena);
  return true;
}

static bool read_option(orc_side *side, const char **at)
{
  int64_t a, b;
  if (take(at, "order=")) {
    for (int i = 0; i < side->n_axes; i++) {
      if ((i > 0 && !take(at, ",")) || !take_int(at, &a)) return false;
      side->order[i] = (int)a;
    }
    return true;
  }
  if (!take(at, "pad=") || !take_int(at, &a) || !take(at, ":") || !take_int(at, &b)) return false;
  side->padded[a < 0 ? a + side->n_dims : a] = b;
  return true;
}

const char *problem_read_side(orc_side *side, const char *text, orc_arena *arena)
{
  const char *at = text;
  int64_t size;
  memcpy(side->padded, side->shape, sizeof side->padded);
  side->n_axes = 0;
  side->n_ranks = 1;
  if (!take(&at, "(")) return NULL;
  do {
    if (side->n_axes == ORC_MAX_DIMS || !take_int(&at, &size)) return NULL;
    side->mesh[side->n_axes++] = (int)size;
    side->n_ranks *= (int)size;
  } while (take(&at, ","));
  if (!take(&at, ")")) return NULL;
  for (int r = 0; r < ORC_MAX_RANKS; r++)
    side->ranks[r] = r;
  if (take(&at, "@") && !read_ranks(side, &at)) return NULL;
  for (int a = 0; a < side->n_axes; a++) {
    side->order[a] = a;
    if (!take(&at, a == 0 ? ":" : ",")) return NULL;
    if (!read_place(&side->places[a], &at, side, a, arena)) return NULL;
  }
  while (take(&at, ";")) {
    if (!read_option(side, &at)) return NULL;
  }
  return at;
}

static bool read_tensor(problem_tensor *t, const char *line, orc_arena *arena)
{
  char name[16] = {0};
  const char *at = line;
  size_t n = strcspn(at, "[");
  if (n >= sizeof name) return false;
  memcpy(name, at, n);
  at += n + 1;
  if (xfer_dtype_parse(&t->dtypes[SRC], name) != XFER_OK) return false;
  t->dtypes[DST] = t->dtypes[SRC];
  orc_side *src = &t->sides[SRC], *dst = &t->sides[DST];
  for (src->n_dims = 0; !take(&at, "]");) {
    if (src->n_dims > 0 && !take(&at, ",")) return false;
    if (src->n_dims == ORC_MAX_DIMS || !take_int(&at, &src->shape[src->n_dims++])) return false;
  }
  dst->n_dims = src->n_dims;
  memcpy(dst->shape, src->shape, sizeof dst->shape);
  if (!take(&at, " ")) return false;
  at = problem_read_side(src, at, arena);
  if (at == NULL || !take(&at, " -> ")) return false;
  at = problem_read_side(dst, at, arena);
  return at != NULL && *at == '\0';
}

bool problem_read(problem *p, const char *line)
{
  orc_reset(&p->arena);
  *p = (problem){.arena = p->arena, .n_tensors = 1, .n_runs = 1, .plain_views = true};
  p->options = (xfer_plan_options)XFER_PLAN_OPTIONS_INIT;
  problem_tensor *t = &p->tensors[0];
  if (!read_tensor(t, line, &p->arena)) return false;
  for (int s = SRC; s <= DST; s++) {
    t->giving[s] = UINT64_MAX;
    t->has_order[s] = true;
    t->has_pad[s] = true;
    for (int r = 0; r < t->sides[s].n_ranks; r++) {
      if (t->sides[s].ranks[r] >= p->n_ranks) p->n_ranks = t->sides[s].ranks[r] + 1;
    }
  }
  return true;
}

/* ---- writing ---- */

typedef struct writer {
  char *text;
  size_t size;
  size_t n;
  bool tables; /* write run tables in full, which the library does not read */
} writer;

__attribute__((format(printf, 2, 3))) static void put(writer *w, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  size_t left = w->n < w->size ? w->size - w->n : 0;
  w->n += (size_t)vsnprintf(left > 0 ? w->text + w->n : NULL, left, format, args);
  va_end(args);
}

static void put_table(writer *w, const orc_table *table)
{
  for (int64_t i = 0; i < table->n_coords; i++) {
    put(w, "[%lld:", (long long)table->lengths[i]);
    for (int64_t r = table->first[i]; r < table->first[i + 1]; r++) {
      const orc_run *run = &table->runs[r];
      put(w, " %lld+%lld@%lld", (long long)run->global, (long long)run->length,
          (long long)run->local);
    }
    put(w, "]");
  }
}

static void put_place(writer *w, const orc_place *place)
{
  static const char *const suffix[] = {"", "", "b", "e", "f", "x"};
  if (place->kind == ORC_REPLICATE) {
    put(w, "R");
    return;
  }
  put(w, "S%d%s", place->dim, suffix[place->kind]);
  if (place->kind == ORC_STRIDED) put(w, "%lld", (long long)place->factor);
  if (place->kind == ORC_TABLE && w->tables) put_table(w, place->table);
}

static void put_side(writer *w, const orc_side *side, bool has_order)
{
  for (int a = 0; a < side->n_axes; a++)
    put(w, "%s%d", a == 0 ? "(" : ",", side->mesh[a]);
  put(w, ")@");
  for (int r = 0; r < side->n_ranks; r++) {
    int last = r;
    while (last + 1 < side->n_ranks && side->ranks[last + 1] == side->ranks[last] + 1)
      last++;
    put(w, "%s%d", r == 0 ? "" : ",", side->ranks[r]);
    if (last > r) put(w, "-%d", side->ranks[last]);
    r = last;
  }
  for (int a = 0; a < side->n_axes; a++) {
    put(w, a == 0 ? ":" : ",");
    put_place(w, &side->places[a]);
  }
  for (int a = 0; has_order && a < side->n_axes; a++) {
    put(w, "%s%d", a == 0 ? ";order=" : ",", side->order[a]);
  }
  for (int d = 0; d < side->n_dims; d++) {
    if (side->padded[d] != side->shape[d]) put(w, ";pad=%d:%lld", d, (long long)side->padded[d]);
  }
}

static void put_tensor(writer *w, const problem_tensor *t)
{
  put(w, "%s[", xfer_dtype_name(t->dtypes[SRC]));
  for (int d = 0; d < t->sides[SRC].n_dims; d++) {
    put(w, "%s%lld", d == 0 ? "" : ",", (long long)t->sides[SRC].shape[d]);
  }
  put(w, "] ");
  put_side(w, &t->sides[SRC], t->has_order[SRC]);
  put(w, " -> ");
  put_side(w, &t->sides[DST], t->has_order[DST]);
}

size_t problem_line(char *text, size_t n_bytes, const problem_tensor *t)
{
  writer w = {text, n_bytes, 0, false};
  put_tensor(&w, t);
  return w.n;
}

static void print_tensor(FILE *file, const problem_tensor *t)
{
  writer w = {NULL, 0, 0, true};
  put_tensor(&w, t);
  w = (writer){malloc(w.n + 1), w.n + 1, 0, true};
  if (w.text == NULL) return;
  put_tensor(&w, t);
  fprintf(file, "%s\n", w.text);
  free(w.text);
}

void problem_print(FILE *file, const problem *p)
{
  static const char *const lanes[] = {"auto", "direct", "packed", "broadcast"};
  static const char *const fusions[] = {"", " concatenated", " interleaved", " tied"};
  static const char *const mischiefs[] = {"",
                                          " mischief=other name",
                                          " mischief=other window",
                                          " mischief=other dtype",
                                          " mischief=rank too high",
                                          " mischief=not bound"};
  static const char *const changes[] = {"", "cast", "scaled", "shifted"};
  const xfer_plan_options *o = &p->options;
  fprintf(file,
          "  ranks=%d lane=%s window=%llu staging=%llu saving=%llu domain=%u "
          "runs=%d%s%s%s%s\n",
          p->n_ranks, p->null_options ? "(no options)" : lanes[o->lane],
          (unsigned long long)o->window_bytes, (unsigned long long)o->max_staging_bytes,
          (unsigned long long)o->min_broadcast_saving_bytes, o->ranks_per_domain, p->n_runs,
          p->one_call ? " redistribute" : "", p->release_between ? " release" : "",
          p->rebind_between ? " rebind" : "", mischiefs[p->mischief]);
  for (int i = 0; i < p->n_tensors; i++) {
    const problem_tensor *t = &p->tensors[i];
    fprintf(file, "    t%d%s%s%s: ", i, fusions[t->fused[SRC]],
            t->fused[SRC] != APART && t->fused[DST] != APART ? "/" : "", fusions[t->fused[DST]]);
    if (t->change != NO_CHANGE)
      fprintf(file, "%s %g to %s: ", changes[t->change], (double)t->by,
              xfer_dtype_name(t->dtypes[DST]));
    print_tensor(file, t);
  }
}
