/*
 * Writing a problem: the canonical line, which parses back to equal layouts. Into the caller's
 * buffer and without allocation, since error texts use it.
 */
#include "boxes.h"
#include "dtype.h"
#include "layout.h"
#include "problem.h"
#include "text.h"

/* dtype "[" sizes "]" " " */
static void put_head(xfi_text *o, const xfer_layout *l)
{
  xfi_text_printf(o, "%s[", xfi_dtype_name((int)l->dtype));
  for (int d = 0; d < l->n_dims; d++)
    xfi_text_printf(o, "%s%lld", d > 0 ? "," : "", (long long)l->dims[d].size);
  xfi_text_printf(o, "] ");
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
static void put_ranks(xfi_text *o, const xfer_mesh *mesh)
{
  bool plain = true;
  int step = 1;
  int n = 0;

  for (int i = 0; i < mesh->size && plain; i++)
    plain = mesh->ranks[i] == i;
  if (plain) return;
  for (int i = 0; i < mesh->size; i += n) {
    n = range_length(mesh, i, &step);
    xfi_text_printf(o, "%c%d", i == 0 ? '@' : ',', mesh->ranks[i]);
    if (n > 1) xfi_text_printf(o, "-%d", mesh->ranks[i + n - 1]);
    if (n > 1 && step > 1) xfi_text_printf(o, "/%d", step);
  }
}

static void put_placement(xfi_text *o, int dim, const xfi_cut *cut)
{
  static const char *const rules[] = {[XFER_CHUNK] = "", [XFER_BALANCED] = "b", [XFER_EVEN] = "e"};

  xfi_text_printf(o, "S%d", dim);
  if (cut->kind == XFER_STRIDED)
    xfi_text_printf(o, "f%lld", (long long)cut->split_factor);
  else if (cut->kind == XFER_RUNS)
    xfi_text_printf(o, "x");
  else
    xfi_text_printf(o, "%s", rules[cut->rule]);
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
static void put_order(xfi_text *o, const xfer_layout *l)
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
      xfi_text_printf(o, "%s%d", i == 0 ? ";order=" : ",", axis);
      break;
    }
}

/* "{" rank "=" boxes {";" rank "=" boxes} "}" */
static void put_boxes(xfi_text *o, const xfer_layout *l)
{
  const xfi_boxes *b = l->boxes;

  for (int p = 0; p < l->mesh->size; p++) {
    xfi_text_printf(o, "%c%d=", p == 0 ? '{' : ';', l->mesh->ranks[p]);
    for (int64_t i = b->first[p]; i < b->first[p + 1]; i++) {
      const int64_t *bounds = xfi_listed_bounds(l, (size_t)i);

      xfi_text_printf(o, "%s", i == b->first[p] ? "[" : "+[");
      for (int d = 0; d < l->n_dims; d++)
        xfi_text_printf(o, "%s%lld:%lld", d == 0 ? "" : ",", (long long)bounds[d],
                        (long long)bounds[l->n_dims + d]);
      xfi_text_printf(o, "]");
    }
  }
  xfi_text_printf(o, "}");
}

static void put_side(xfi_text *o, const xfer_layout *l)
{
  int dim = 0;
  int place = 0;

  if (l->boxes != NULL) {
    put_boxes(o, l);
    return;
  }

  for (int a = 0; a < l->mesh->n_axes; a++)
    xfi_text_printf(o, "%c%d", a == 0 ? '(' : ',', l->mesh->shape[a]);
  xfi_text_printf(o, ")");
  put_ranks(o, l->mesh);
  for (int a = 0; a < l->mesh->n_axes; a++) {
    const xfi_cut *cut = find_cut(l, a, &dim, &place);

    xfi_text_printf(o, "%c", a == 0 ? ':' : ',');
    if (cut == NULL)
      xfi_text_printf(o, "R");
    else
      put_placement(o, dim, cut);
  }
  put_order(o, l);
  for (int d = 0; d < l->n_dims; d++)
    if (l->dims[d].padded != l->dims[d].size)
      xfi_text_printf(o, ";pad=%d:%lld", d, (long long)l->dims[d].padded);
}

size_t xfi_problem_format(char *text, size_t n_bytes, const xfer_layout *src,
                          const xfer_layout *dst)
{
  const xfer_layout *known = src != NULL ? src : dst;
  xfi_text o;

  xfi_text_fixed(&o, text, n_bytes);
  if (known != NULL) put_head(&o, known);
  if (src != NULL)
    put_side(&o, src);
  else
    xfi_text_printf(&o, "?");
  xfi_text_printf(&o, " -> ");
  if (src != NULL && dst != NULL && !same_shape(src, dst))
    put_head(&o, dst); /* for error texts */
  else if (src != NULL && dst != NULL && src->dtype != dst->dtype)
    xfi_text_printf(&o, "%s ", xfi_dtype_name((int)dst->dtype));
  if (dst != NULL)
    put_side(&o, dst);
  else
    xfi_text_printf(&o, "?");
  return o.n_chars;
}
