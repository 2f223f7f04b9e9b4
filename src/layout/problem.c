/*
 * Reading a problem: recursive descent, one function per rule of the grammar. Nothing is skipped
 * and nothing is guessed; an error says the column, counted from 1, and what was expected there.
 */
#include "problem.h"

#include <ctype.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "alloc.h"
#include "boxes.h"
#include "checked.h"
#include "dtype.h"
#include "error.h"
#include "layout.h"
#include "vec.h"

typedef struct parser {
  const char *line;
  const char *at; /* the next character */
  bool one_side;  /* the line is a layout, not a problem */
} parser;

/* dtype "[" sizes "]" */
typedef struct head {
  xfer_dtype dtype;
  int n_dims;
  int64_t shape[XFER_MAX_DIMS];
} head;

typedef struct side {
  int n_axes;
  int mesh[XFER_MAX_DIMS];
  int64_t n_ranks; /* product of mesh */
  int *ranks;      /* [n_given] */
  size_t n_given;
  size_t capacity;
  xfer_placement placements[XFER_MAX_DIMS]; /* [n_axes] */
  bool ordered;
  int32_t order[XFER_MAX_DIMS]; /* [n_axes] */
  bool is_padded[XFER_MAX_DIMS];
  int64_t padded[XFER_MAX_DIMS]; /* [n_dims] */
} side;

static int column(const parser *p, const char *at)
{
  return (int)(at - p->line) + 1;
}

/* Takes `text` if it is next. */
static bool take(parser *p, const char *text)
{
  const size_t n = strlen(text);

  if (strncmp(p->at, text, n) != 0) return false;
  p->at += n;
  return true;
}

/* The same; it must be. */
static xfer_status expect(parser *p, const char *text, const char *what)
{
  XFI_CHECK(take(p, text), XFER_ERR_ARG, "column %d: expected %s", column(p, p->at), what);
  return XFER_OK;
}

/* int, at most `max`; `after` is what stands before it. */
static xfer_status parse_int(parser *p, const char *after, int64_t max, int64_t *value)
{
  const char *start = p->at;
  int64_t v = 0;

  XFI_CHECK(*start >= '0' && *start <= '9', XFER_ERR_ARG, "column %d: expected a digit after '%s'",
            column(p, start), after);
  for (; *p->at >= '0' && *p->at <= '9'; p->at++)
    XFI_CHECK(xfi_imul_fits(v, 10, &v) && xfi_iadd_fits(v, *p->at - '0', &v) && v <= max,
              XFER_ERR_ARG, "column %d: a number above %lld", column(p, start), (long long)max);
  *value = v;
  return XFER_OK;
}

/* int, a rank: one of the most that a mesh has, since a comm has all ranks below it too, and who
 * plans works through them. */
static xfer_status parse_rank(parser *p, const char *after, int64_t *rank)
{
  const char *start = p->at;

  XFI_TRY(parse_int(p, after, INT64_MAX, rank));
  XFI_CHECK(*rank < XFI_MOST_RANKS, XFER_ERR_OVERFLOW, "column %d: rank %lld is above %d",
            column(p, start), (long long)*rank, XFI_MOST_RANKS - 1);
  return XFER_OK;
}

/* ["-"] int, a dim; counted from the start in *dim. */
static xfer_status parse_dim(parser *p, const char *after, int n_dims, int *dim)
{
  const char *start = p->at;
  const bool negative = take(p, "-");
  int64_t value = 0;

  XFI_TRY(parse_int(p, negative ? "-" : after, INT_MAX, &value));
  if (negative) value = n_dims - value;
  XFI_CHECK(value >= 0 && value < n_dims, XFER_ERR_ARG, "column %d: no such dim, the tensor has %d",
            column(p, start), n_dims);
  *dim = (int)value;
  return XFER_OK;
}

/* dtype "[" [int {"," int}] "]" */
static xfer_status parse_head(parser *p, head *h)
{
  const char *open = strchr(p->at, '[');
  char name[8] = "";

  XFI_CHECK(open != NULL, XFER_ERR_ARG, "column %d: expected a dtype and '['", column(p, p->at));
  if ((size_t)(open - p->at) < sizeof name) memcpy(name, p->at, (size_t)(open - p->at));
  XFI_CHECK(xfi_dtype_parse(&h->dtype, name) == XFER_OK, XFER_ERR_ARG,
            "column %d: expected a dtype such as bf16, f32 or f8e4m3 before '['", column(p, p->at));
  p->at = open + 1;
  if (take(p, "]")) return XFER_OK;
  do {
    XFI_CHECK(h->n_dims < XFER_MAX_DIMS, XFER_ERR_ARG, "column %d: a tensor of more than %d dims",
              column(p, p->at), XFER_MAX_DIMS);
    XFI_TRY(parse_int(p, p->at[-1] == '[' ? "[" : ",", INT64_MAX, &h->shape[h->n_dims]));
    h->n_dims++;
  } while (take(p, ","));
  return expect(p, "]", "a digit, ',' or ']'");
}

/* "(" int {"," int} ")" */
static xfer_status parse_mesh(parser *p, side *s)
{
  const char *start = p->at;
  int64_t size = 0;

  XFI_TRY(expect(p, "(", "'(' or '{'"));
  s->n_ranks = 1;
  do {
    const char *number = p->at;

    XFI_CHECK(s->n_axes < XFER_MAX_DIMS, XFER_ERR_ARG, "column %d: a mesh of more than %d axes",
              column(p, number), XFER_MAX_DIMS);
    XFI_TRY(parse_int(p, number[-1] == '(' ? "(" : ",", INT_MAX, &size));
    XFI_CHECK(size >= 1, XFER_ERR_ARG, "column %d: a mesh axis of size 0", column(p, number));
    s->mesh[s->n_axes++] = (int)size;
    s->n_ranks *= size; /* below 2^62, both being ints */
    XFI_CHECK(s->n_ranks <= XFI_MOST_RANKS, XFER_ERR_OVERFLOW,
              "column %d: a mesh of more than %d ranks", column(p, start), XFI_MOST_RANKS);
  } while (take(p, ","));
  return expect(p, ")", "a digit, ',' or ')'");
}

/* int ["-" int ["/" step]] */
static xfer_status parse_range(parser *p, side *s)
{
  const char *start = p->at;
  int64_t first = 0;
  int64_t last = 0;
  int64_t step = 1;

  XFI_TRY(parse_rank(p, start[-1] == '@' ? "@" : ",", &first));
  last = first;
  if (take(p, "-")) {
    const char *number = p->at;

    XFI_TRY(parse_rank(p, "-", &last));
    XFI_CHECK(last >= first, XFER_ERR_ARG, "column %d: a range from %d down to %d",
              column(p, number), (int)first, (int)last);
    if (take(p, "/")) {
      number = p->at;
      XFI_TRY(parse_int(p, "/", INT_MAX, &step));
      XFI_CHECK(step >= 1, XFER_ERR_ARG, "column %d: a step of 0", column(p, number));
    }
  }
  /* Compared before anything is stored: a short line must not ask for much memory. */
  XFI_CHECK((last - first) / step + 1 <= s->n_ranks - (int64_t)s->n_given, XFER_ERR_ARG,
            "column %d: more ranks than the mesh's %d", column(p, start), (int)s->n_ranks);
  XFI_TRY(xfi_vec_reserve(&s->ranks, &s->capacity, (size_t)s->n_ranks, sizeof *s->ranks));
  for (int64_t rank = first; rank <= last; rank += step)
    s->ranks[s->n_given++] = (int)rank;
  return XFER_OK;
}

/* ["@" range {"," range}] */
static xfer_status parse_ranks(parser *p, side *s)
{
  if (!take(p, "@")) return XFER_OK;
  do {
    XFI_TRY(parse_range(p, s));
  } while (take(p, ","));
  XFI_CHECK((int64_t)s->n_given == s->n_ranks, XFER_ERR_ARG,
            "column %d: %zu ranks for a mesh of %d; expected ',' and a rank", column(p, p->at),
            s->n_given, (int)s->n_ranks);
  return XFER_OK;
}

/* "R" | "S" dim ["b" | "e" | "f" int] */
static xfer_status parse_placement(parser *p, int n_dims, xfer_placement *placement)
{
  int64_t factor = 0;
  int dim = 0;

  *placement = xfer_replicate();
  if (take(p, "R")) return XFER_OK;
  XFI_TRY(expect(p, "S", "'R' or 'S'"));
  XFI_TRY(parse_dim(p, "S", n_dims, &dim));
  *placement = xfer_shard(dim);
  if (take(p, "b")) {
    *placement = xfer_shard_rule(dim, XFER_BALANCED);
  } else if (take(p, "e")) {
    *placement = xfer_shard_rule(dim, XFER_EVEN);
  } else if (take(p, "f")) {
    const char *number = p->at;

    XFI_TRY(parse_int(p, "f", INT64_MAX, &factor));
    XFI_CHECK(factor >= 1, XFER_ERR_ARG, "column %d: a split factor of 0", column(p, number));
    *placement = xfer_shard_strided(dim, factor);
  }
  return XFER_OK;
}

/* ":" p {"," p}, one p for each axis */
static xfer_status parse_placements(parser *p, int n_dims, side *s)
{
  XFI_CHECK(take(p, ":"), XFER_ERR_ARG, "column %d: expected %s':'", column(p, p->at),
            s->n_given == 0 ? "'@' or " : "");
  for (int axis = 0; axis < s->n_axes; axis++) {
    XFI_CHECK(axis == 0 || take(p, ","), XFER_ERR_ARG,
              "column %d: expected ',' and a placement for axis %d of %d", column(p, p->at), axis,
              s->n_axes);
    XFI_TRY(parse_placement(p, n_dims, &s->placements[axis]));
  }
  XFI_CHECK(*p->at != ',', XFER_ERR_ARG, "column %d: more placements than mesh axes, %d",
            column(p, p->at), s->n_axes);
  return XFER_OK;
}

/* axis {"," axis}, each axis once */
static xfer_status parse_order(parser *p, side *s)
{
  bool seen[XFER_MAX_DIMS] = {false};
  int64_t axis = 0;

  XFI_CHECK(!s->ordered, XFER_ERR_ARG, "column %d: a second order", column(p, p->at));
  s->ordered = true;
  for (int i = 0; i < s->n_axes; i++) {
    XFI_CHECK(i == 0 || take(p, ","), XFER_ERR_ARG,
              "column %d: expected ',' and an axis: the order lists all %d", column(p, p->at),
              s->n_axes);
    const char *number = p->at;

    XFI_TRY(parse_int(p, i == 0 ? "order=" : ",", INT_MAX, &axis));
    XFI_CHECK(axis < s->n_axes && !seen[axis], XFER_ERR_ARG,
              "column %d: expected an axis below %d that is not listed yet", column(p, number),
              s->n_axes);
    seen[axis] = true;
    s->order[i] = (int32_t)axis;
  }
  return XFER_OK;
}

/* dim ":" int */
static xfer_status parse_pad(parser *p, const head *h, side *s)
{
  const char *start = p->at;
  int dim = 0;

  XFI_TRY(parse_dim(p, "pad=", h->n_dims, &dim));
  XFI_CHECK(!s->is_padded[dim], XFER_ERR_ARG, "column %d: dim %d is padded twice", column(p, start),
            dim);
  s->is_padded[dim] = true;
  XFI_TRY(expect(p, ":", "':' and the padded size"));
  start = p->at;
  XFI_TRY(parse_int(p, ":", INT64_MAX, &s->padded[dim]));
  XFI_CHECK(s->padded[dim] >= h->shape[dim], XFER_ERR_ARG,
            "column %d: dim %d of size %lld is padded to %lld", column(p, start), dim,
            (long long)h->shape[dim], (long long)s->padded[dim]);
  return XFER_OK;
}

static xfer_status parse_options(parser *p, const head *h, side *s)
{
  while (take(p, ";")) {
    if (take(p, "order=")) {
      XFI_TRY(parse_order(p, s));
    } else {
      XFI_TRY(expect(p, "pad=", "'order=' or 'pad='"));
      XFI_TRY(parse_pad(p, h, s));
    }
  }
  return XFER_OK;
}

static xfer_status make_layout(xfer_layout **layout, const head *h, const side *s)
{
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_status st = XFER_OK;
  xfer_mesh *mesh = NULL;

  XFI_TRY_DONE(xfi_mesh_create(&mesh, s->mesh, s->n_axes, s->n_given > 0 ? s->ranks : NULL));
  desc.mesh = mesh;
  desc.dtype = (int32_t)h->dtype;
  desc.n_dims = h->n_dims;
  desc.shape = h->shape;
  desc.padded_shape = s->padded;
  desc.placements = s->placements;
  desc.n_placements = s->n_axes;
  desc.n_order = s->ordered ? s->n_axes : 0;
  desc.order = s->ordered ? s->order : NULL;
  XFI_TRY_DONE(xfi_layout_create(layout, &desc));
done:
  xfi_mesh_destroy(mesh);
  return st;
}

/* "[" [int ":" int {"," int ":" int}] "]" */
static xfer_status parse_box(parser *p, const head *h, xfi_bounds *boxes)
{
  int64_t bounds[2 * XFER_MAX_DIMS];

  XFI_TRY(expect(p, "[", "'[' and a box"));
  for (int d = 0; d < h->n_dims; d++) {
    const char *start = p->at;

    XFI_CHECK(d == 0 || take(p, ","), XFER_ERR_ARG, "column %d: expected ',' and dim %d of %d",
              column(p, p->at), d, h->n_dims);
    XFI_TRY(parse_int(p, d == 0 ? "[" : ",", INT64_MAX / 2, &bounds[d]));
    XFI_TRY(expect(p, ":", "':' and the end of the interval"));
    XFI_TRY(parse_int(p, ":", INT64_MAX / 2, &bounds[h->n_dims + d]));
    XFI_CHECK(bounds[d] <= bounds[h->n_dims + d], XFER_ERR_ARG,
              "column %d: an interval that ends before it begins", column(p, start));
  }
  XFI_TRY(expect(p, "]", "']'"));
  return xfi_bounds_add(boxes, h->n_dims, bounds);
}

/* rank "=" ["f" int ":" int | box {"+" box}] */
static xfer_status parse_list(parser *p, const head *h, int64_t *rank, xfi_bounds *boxes)
{
  int64_t begin = 0;
  int64_t end = 0;

  XFI_TRY(parse_rank(p, p->at[-1] == '{' ? "{" : ";", rank));
  XFI_TRY(expect(p, "=", "'=' and the rank's boxes"));
  if (take(p, "f")) {
    XFI_TRY(parse_int(p, "f", INT64_MAX / 2, &begin));
    XFI_TRY(expect(p, ":", "':' and the end of the range"));
    XFI_TRY(parse_int(p, ":", INT64_MAX / 2, &end));
    XFI_TRY(xfi_bounds_add_flat(boxes, h->n_dims, h->shape, begin, end));
  } else if (*p->at == '[') {
    do {
      XFI_TRY(parse_box(p, h, boxes));
    } while (take(p, "+"));
  }
  return XFER_OK;
}

/* "{" list {";" list} "}", the opening brace taken */
static xfer_status parse_boxes(parser *p, const head *h, xfer_layout **layout)
{
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_status st = XFER_OK;
  xfi_bounds boxes = {NULL, 0, 0};
  int64_t *first = NULL;
  int *ranks = NULL;
  size_t first_capacity = 0;
  size_t ranks_capacity = 0;
  xfer_mesh *mesh = NULL;
  int n = 0;

  XFI_TRY_DONE(xfi_vec_reserve(&first, &first_capacity, 1, sizeof *first));
  do {
    int64_t rank = 0;

    XFI_TRY_DONE(parse_list(p, h, &rank, &boxes));
    XFI_TRY_DONE(xfi_vec_reserve(&first, &first_capacity, (size_t)n + 2, sizeof *first));
    XFI_TRY_DONE(xfi_vec_reserve(&ranks, &ranks_capacity, (size_t)n + 1, sizeof *ranks));
    ranks[n++] = (int)rank;
    first[n] = (int64_t)boxes.n;
  } while (take(p, ";"));
  XFI_TRY_DONE(expect(p, "}", "'+', ';' or '}'"));
  XFI_TRY_DONE(xfi_mesh_create(&mesh, &n, 1, ranks));
  desc.mesh = mesh;
  desc.dtype = (int32_t)h->dtype;
  desc.n_dims = h->n_dims;
  desc.shape = h->shape;
  desc.first = first;
  desc.bounds = boxes.at;
  XFI_TRY_DONE(xfi_layout_create_boxes(layout, &desc));
done:
  xfi_mesh_destroy(mesh);
  xfi_free(boxes.at);
  xfi_free(first);
  xfi_free(ranks);
  return st;
}

/* "(" int {"," int} ")" ["@" range {"," range}] ":" p {"," p} {";" opt}, or boxes */
static xfer_status parse_side(parser *p, const head *h, xfer_layout **layout)
{
  xfer_status st = XFER_OK;
  side s = {.n_axes = 0};

  if (take(p, "{")) return parse_boxes(p, h, layout);
  memcpy(s.padded, h->shape, sizeof s.padded);
  XFI_TRY_DONE(parse_mesh(p, &s));
  XFI_TRY_DONE(parse_ranks(p, &s));
  XFI_TRY_DONE(parse_placements(p, h->n_dims, &s));
  XFI_TRY_DONE(parse_options(p, h, &s));
  XFI_CHECK_DONE(*p->at == '\0' || *p->at == ' ', XFER_ERR_ARG,
                 "column %d: expected ';'%s or the end of the line", column(p, p->at),
                 p->one_side ? "" : ", ' -> '");
  XFI_TRY_DONE(make_layout(layout, h, &s));
done:
  xfi_free(s.ranks);
  return st;
}

/* [dtype " "], where the destination's is another */
static xfer_status parse_dtype(parser *p, head *h)
{
  const char *end = p->at + strcspn(p->at, " ({");
  char name[8] = "";

  if (end == p->at || *end != ' ' || !isalpha((unsigned char)*p->at)) return XFER_OK;
  if ((size_t)(end - p->at) < sizeof name) memcpy(name, p->at, (size_t)(end - p->at));
  XFI_CHECK(xfi_dtype_parse(&h->dtype, name) == XFER_OK, XFER_ERR_ARG,
            "column %d: expected '(' or '{', or a dtype and a blank", column(p, p->at));
  p->at = end + 1;
  return XFER_OK;
}

/* dtype "[" [int {"," int}] "]" " " side, with which either kind of line begins */
static xfer_status parse_first(parser *p, head *h, xfer_layout **layout)
{
  XFI_CHECK(strlen(p->line) < INT_MAX, XFER_ERR_ARG, "a line of more than %d characters",
            INT_MAX - 1);
  XFI_TRY(parse_head(p, h));
  XFI_TRY(expect(p, " ", "one blank after ']'"));
  return parse_side(p, h, layout);
}

static xfer_status expect_end(const parser *p)
{
  XFI_CHECK(*p->at == '\0', XFER_ERR_ARG, "column %d: expected the end of the line",
            column(p, p->at));
  return XFER_OK;
}

xfer_status xfi_layout_parse(xfer_layout **layout, const char *line)
{
  parser p = {line, line, true};
  xfer_status st = XFER_OK;
  xfer_layout *made = NULL;
  head h = {.n_dims = 0};

  XFI_TRY_DONE(parse_first(&p, &h, &made));
  XFI_TRY_DONE(expect_end(&p));

  *layout = made;
  made = NULL;
done:
  xfi_layout_destroy(made);
  return st;
}

/* first " -> " [dtype " "] side */
xfer_status xfi_problem_parse(xfer_layout **src, xfer_layout **dst, const char *line)
{
  parser p = {line, line, false};
  xfer_status st = XFER_OK;
  xfer_layout *from = NULL;
  xfer_layout *to = NULL;
  head h = {.n_dims = 0};

  XFI_TRY_DONE(parse_first(&p, &h, &from));
  XFI_TRY_DONE(expect(&p, " -> ", "' -> '"));
  XFI_TRY_DONE(parse_dtype(&p, &h));
  XFI_TRY_DONE(parse_side(&p, &h, &to));
  XFI_TRY_DONE(expect_end(&p));

  *src = from;
  *dst = to;
  from = NULL;
  to = NULL;
done:
  xfi_layout_destroy(from);
  xfi_layout_destroy(to);
  return st;
}
