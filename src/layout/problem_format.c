/*
 * Writing a problem: the canonical line, which parses back to equal layouts. Into the caller's
 * buffer and without allocation, since error texts use it.
 */
#include <stdarg.h>
#include <stdio.h>

#include "boxes.h"
#include "dtype.h"
#include "layout.h"
#include "problem.h"

/* A text that is counted whole and written as far as it fits, as snprintf() does. */
typedef struct out {
  char *text;
  size_t capacity;
  size_t length;
} out;

__attribute__((format(printf, 2, 3))) static void put(out *o, const char *fmt, ...)
{
  const size_t at = o->length < o->capacity ? o->length : o->capacity;
  va_list args;

  va_start(args, fmt);
  const int n = vsnprintf(at < o->capacity ? o->text + at : NULL, o->capacity - at, fmt, args);
  va_end(args);
  if (n > 0) o->length += (size_t)n;
}

/* dtype "[" sizes "]" " " */
static void put_head(out *o, const xfer_layout *l)
{
  put(o, "%s[", xfi_dtype_name((int)l->dtype));
  for (int d = 0; d < l->n_dims; d++)
    put(o, "%s%lld", d > 0 ? "," : "", (long long)l->dims[d].size);
  put(o, "] ");
}

static bool same_shape(const xfer_layout *a, const xfer_layout *b)
{
  bool same = a->n_dims == b->n_dims;

  for (int d = 0; same && d < a->n_dims; d++)
    same = a->dims[d].size == b->dims[d].size;
  return same;
}

/* How many ranks from position i on are one range; its step goes to *step. */
static int range_length(const xfer_mesh *mesh, int i, int *step)
{
  int n = 1;

  *step = 1;
  if (i + 1 == mesh->size || mesh->ranks[i + 1] < mesh->ranks[i]) return 1;
  *step = mesh->ranks[i + 1] - mesh->ranks[i];
  /* Ranks are >= 0 and only an ascending pair gets here, so that no difference overflows. */
  while (i + n < mesh->size && mesh->ranks[i + n] - mesh->ranks[i + n - 1] == *step)
    n++;
  return n > 2 || *step == 1 ? n : 1; /* "3,7", not "3-7/4" */
}

/* ["@" range {"," range}] */
static void put_ranks(out *o, const xfer_mesh *mesh)
{
  bool plain = true;
  int step = 1;
  int n = 0;

  for (int i = 0; i < mesh->size && plain; i++)
    plain = mesh->ranks[i] == i;
  if (plain) return;
  for (int i = 0; i < mesh->size; i += n) {
    n = range_length(mesh, i, &step);
    put(o, "%c%d", i == 0 ? '@' : ',', mesh->ranks[i]);
    if (n > 1) put(o, "-%d", mesh->ranks[i + n - 1]);
    if (n > 1 && step > 1) put(o, "/%d", step);
  }
}

static void put_placement(out *o, int dim, const xfi_cut *cut)
{
  static const char *const rules[] = {[XFER_CHUNK] = "", [XFER_BALANCED] = "b", [XFER_EVEN] = "e"};

  put(o, "S%d", dim);
  if (cut->kind == XFER_STRIDED)
    put(o, "f%lld", (long long)cut->split_factor);
  else if (cut->kind == XFER_RUNS)
    put(o, "x");
  else
    put(o, "%s", rules[cut->rule]);
}

/* The cut that an axis makes, and the dim that it cuts; NULL: it replicates. */
static const xfi_cut *find_cut(const xfer_layout *l, int axis, int *dim, int *place)
{
  for (*dim = 0; *dim < l->n_dims; ++*dim)
    for (*place = 0; *place < l->dims[*dim].n_cuts; ++*place)
      if (l->dims[*dim].cuts[*place].axis == axis) return &l->dims[*dim].cuts[*place];
  return NULL;
}

/* ";order=" and the axes, where some dim is not cut in ascending order: always the smallest axis
 * whose predecessors in its dim are listed. */
static void put_order(out *o, const xfer_layout *l)
{
  int next[XFER_MAX_DIMS] = {0}; /* [n_dims] cuts listed so far */
  bool listed[XFER_MAX_DIMS] = {false};
  bool plain = true;
  int dim = 0;
  int place = 0;

  for (int d = 0; d < l->n_dims; d++)
    for (int c = 1; c < l->dims[d].n_cuts; c++)
      plain = plain && l->dims[d].cuts[c - 1].axis < l->dims[d].cuts[c].axis;
  if (plain) return;
  for (int i = 0; i < l->mesh->n_axes; i++)
    for (int axis = 0; axis < l->mesh->n_axes; axis++) {
      const xfi_cut *cut = find_cut(l, axis, &dim, &place);

      if (listed[axis] || (cut != NULL && next[dim] != place)) continue;
      listed[axis] = true;
      if (cut != NULL) next[dim]++;
      put(o, "%s%d", i == 0 ? ";order=" : ",", axis);
      break;
    }
}

/* "{" rank "=" boxes {";" rank "=" boxes} "}" */
static void put_boxes(out *o, const xfer_layout *l)
{
  const xfi_boxes *b = l->boxes;

  for (int p = 0; p < l->mesh->size; p++) {
    put(o, "%c%d=", p == 0 ? '{' : ';', l->mesh->ranks[p]);
    for (int64_t i = b->first[p]; i < b->first[p + 1]; i++) {
      const int64_t *bounds = xfi_listed_bounds(l, (size_t)i);

      put(o, "%s", i == b->first[p] ? "[" : "+[");
      for (int d = 0; d < l->n_dims; d++)
        put(o, "%s%lld:%lld", d == 0 ? "" : ",", (long long)bounds[d],
            (long long)bounds[l->n_dims + d]);
      put(o, "]");
    }
  }
  put(o, "}");
}

static void put_side(out *o, const xfer_layout *l)
{
  int dim = 0;
  int place = 0;

  if (l->boxes != NULL) {
    put_boxes(o, l);
    return;
  }

  for (int a = 0; a < l->mesh->n_axes; a++)
    put(o, "%c%d", a == 0 ? '(' : ',', l->mesh->shape[a]);
  put(o, ")");
  put_ranks(o, l->mesh);
  for (int a = 0; a < l->mesh->n_axes; a++) {
    const xfi_cut *cut = find_cut(l, a, &dim, &place);

    put(o, "%c", a == 0 ? ':' : ',');
    if (cut == NULL)
      put(o, "R");
    else
      put_placement(o, dim, cut);
  }
  put_order(o, l);
  for (int d = 0; d < l->n_dims; d++)
    if (l->dims[d].padded != l->dims[d].size)
      put(o, ";pad=%d:%lld", d, (long long)l->dims[d].padded);
}

size_t xfi_problem_format(char *text, size_t n_bytes, const xfer_layout *src,
                          const xfer_layout *dst)
{
  const xfer_layout *known = src != NULL ? src : dst;
  out o = {text, n_bytes, 0};

  if (n_bytes > 0) text[0] = '\0';
  if (known != NULL) put_head(&o, known);
  if (src != NULL)
    put_side(&o, src);
  else
    put(&o, "?");
  put(&o, " -> ");
  if (src != NULL && dst != NULL && !same_shape(src, dst))
    put_head(&o, dst); /* for error texts */
  else if (src != NULL && dst != NULL && src->dtype != dst->dtype)
    put(&o, "%s ", xfi_dtype_name((int)dst->dtype));
  if (dst != NULL)
    put_side(&o, dst);
  else
    put(&o, "?");
  return o.length;
}
