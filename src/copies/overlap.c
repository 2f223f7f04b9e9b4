/*
 * Finds whether destination views overlap each other or a source. The answer is exact, and needs no
 * map of bytes.
 *
 * Each view is a set of equal runs on a grid. If its dims are sorted by falling stride, its runs
 * are in ascending order of address, provided that the stride of each dim is at least the extent of
 * the dims inside it. A destination view without this property is refused; a source without it is
 * treated as all bytes between its ends. Views are swept in order of address, as extents. Only for
 * two overlapping extents are the grids made, and only if the remainders of their addresses do not
 * separate the two are their runs compared one by one.
 */
#include "alloc.h"
#include "bound.h"
#include "checked.h"
#include "conversion.h"
#include "dtype.h"
#include "error.h"
#include "vec.h"

/* From the first to the last byte of one piece of a view. */
typedef struct extent {
  const char *start;
  const char *end;
  size_t owner; /* index of the view */
  int64_t piece;
} extent;

/* A piece: runs of copy.run_bytes bytes from copy.dst on, by the copy's extents and destination
 * strides. */
typedef struct grid {
  xfi_copy copy;
  bool is_made;
} grid;

enum { N_INLINE = 8 }; /* number of extents that need no allocation */

typedef struct sweep {
  const xfi_use *uses;
  extent *at;  /* [n] `inlined`, or allocated */
  grid *grids; /* [n] NULL: none was needed until now */
  size_t n;
  xfi_copies copies; /* scratch */
  extent inlined[N_INLINE];
} sweep;

static int by_address(const void *a, const void *b)
{
  const extent *x = a;
  const extent *y = b;

  if (x->start != y->start) return x->start < y->start ? -1 : 1;
  return (x->owner > y->owner) - (x->owner < y->owner);
}

/* Do the grid's runs ascend? If not, it may overlap itself. */
static bool ascends(const grid *g)
{
  int64_t inside = g->copy.run_bytes;

  for (int64_t d = g->copy.n_dims - 1; d >= 0; d--) {
    if (g->copy.dst_stride[d] < inside) return false;
    inside += g->copy.dst_stride[d] * (g->copy.extent[d] - 1);
  }
  return true;
}

/* A walk over a grid's runs. */
typedef struct cursor {
  const grid *g;
  int64_t index[XFI_COPY_DIMS];
  char *at;
  bool done;
} cursor;

static void advance(cursor *c)
{
  const char *none = NULL;

  c->done = !xfi_copy_next(&c->g->copy, c->g->copy.n_dims, c->index, &none, &c->at);
}

/* Jumps to the last outermost index whose block starts at or before `to`. */
static void skip_to(cursor *c, const char *to)
{
  const xfi_copy *copy = &c->g->copy;
  int64_t step;

  if (copy->n_dims == 0 || c->at >= to) return;
  for (int64_t d = 1; d < copy->n_dims; d++)
    if (c->index[d] != 0) return; /* inside a block: use advance() */
  step = (to - c->at) / copy->dst_stride[0];
  if (step > copy->extent[0] - 1 - c->index[0]) step = copy->extent[0] - 1 - c->index[0];
  c->index[0] += step;
  c->at += step * copy->dst_stride[0];
}

static int64_t add_strides(int64_t gcd, const grid *g)
{
  for (int64_t d = 0; d < g->copy.n_dims; d++)
    gcd = xfi_gcd(g->copy.dst_stride[d], gcd);
  return gcd;
}

/* Do the grids lie apart like columns of one array? If `step` divides every stride of both, all
 * runs of `a` begin at the same address modulo `step`, and all runs of `b` begin `offset` after it.
 * So modulo `step` the bytes of `a` are [0, a's run) and those of `b` are [offset, offset + b's
 * run). If these ranges do not overlap, also not around `step`, the grids share no byte. If the
 * result is false, they may still share none. */
static bool are_apart_in_each_step(const grid *a, const grid *b)
{
  const int64_t step = add_strides(add_strides(0, a), b);
  int64_t offset;

  if (step == 0) return false;
  offset = (int64_t)((uintptr_t)b->copy.dst - (uintptr_t)a->copy.dst) % step;
  if (offset < 0) offset += step;
  return offset >= a->copy.run_bytes && offset + b->copy.run_bytes <= step;
}

static bool grids_overlap(const grid *a, const grid *b)
{
  cursor x = {a, {0}, a->copy.dst, false};
  cursor y = {b, {0}, b->copy.dst, false};

  while (!x.done && !y.done) {
    if (x.at + a->copy.run_bytes <= y.at) {
      skip_to(&x, y.at);
      if (x.at + a->copy.run_bytes <= y.at) advance(&x);
    } else if (y.at + b->copy.run_bytes <= x.at) {
      skip_to(&y, x.at);
      if (y.at + b->copy.run_bytes <= x.at) advance(&y);
    } else {
      return true;
    }
  }
  return false;
}

/* ---- extents ---- */

/* Returns whether, with dims in the given order, each dim's stride is at least the extent of the
 * dims inside it. If not, another order may have this property. *n_bytes becomes the number of
 * bytes from the first to the last; 0: the piece is empty. */
static bool measure(int64_t *n_bytes, const xfi_use *use, int64_t piece)
{
  const int64_t *strides = xfi_bound_strides(use->bound, piece);
  int64_t shape[XFER_MAX_DIMS];
  int64_t inside = use->elem_bytes;
  bool nests = true;

  xfi_bound_shape(shape, use->bound, piece);
  *n_bytes = 0;
  for (int d = use->bound->n_dims - 1; d >= 0; d--) {
    if (shape[d] == 0) return true;
    nests = nests && (shape[d] == 1 || strides[d] >= inside);
    inside += strides[d] * (shape[d] - 1);
  }
  *n_bytes = inside;
  return nests;
}

static xfer_status make_grid(grid *g, sweep *s, const xfi_use *use, int64_t piece)
{
  const xfi_bound *bound = use->bound;
  xfi_end end = {bound, {0}};
  int64_t length[XFER_MAX_DIMS];

  xfi_bound_shape(length, bound, piece);
  xfi_bound_start(end.start, bound, piece);
  s->copies.n = 0;
  XFI_TRY(xfi_copies_add(&s->copies, &end, NULL, length, bound->n_dims,
                         (xfi_elem){use->elem_bytes, NULL}));
  *g = (grid){s->copies.at[0], true};
  return XFER_OK;
}

/* Appends the extent of a piece, unless the piece is empty. */
static xfer_status add_extent(sweep *s, size_t owner, int64_t piece)
{
  const xfi_use *use = &s->uses[owner];
  const char *start = xfi_bound_piece(use->bound, piece);
  int64_t n_bytes;
  const bool nests = measure(&n_bytes, use, piece);
  grid g;

  if (!nests && !use->is_source) {
    XFI_TRY(make_grid(&g, s, use, piece));
    XFI_CHECK(ascends(&g), XFER_ERR_SHAPE,
              "tensor \"%.100s\": the strides of its destination view do not nest, so it may "
              "overlap itself",
              use->name);
  }
  if (n_bytes > 0) s->at[s->n++] = (extent){start, start + n_bytes, owner, piece};
  return XFER_OK;
}

/* Makes an extent for each piece of every view, and sorts them by address. */
static xfer_status make_extents(sweep *s, size_t n)
{
  for (size_t i = 0; i < n; i++)
    s->n += (size_t)s->uses[i].bound->n_pieces;
  s->at = s->n <= N_INLINE ? s->inlined : xfi_calloc(s->n, sizeof *s->at);
  XFI_CHECK(s->at != NULL, XFER_ERR_NOMEM, "%zu views", s->n);
  s->n = 0;
  for (size_t i = 0; i < n; i++)
    for (int64_t p = 0; p < s->uses[i].bound->n_pieces; p++)
      XFI_TRY(add_extent(s, i, p));
  xfi_sort(s->at, s->n, sizeof *s->at, by_address);
  return XFER_OK;
}

/* ---- pairs of extents that overlap ---- */

static xfer_status ensure_grid(sweep *s, size_t i)
{
  grid *g = &s->grids[i];
  const extent *e = &s->at[i];

  if (g->is_made) return XFER_OK;
  XFI_TRY(make_grid(g, s, &s->uses[e->owner], e->piece));
  if (!ascends(g)) { /* only a source can be like this */
    g->copy.n_dims = 0;
    g->copy.run_bytes = e->end - e->start;
  }
  return XFER_OK;
}

/* Extents i and k overlap: do their runs? */
static xfer_status runs_overlap(bool *overlap, sweep *s, size_t i, size_t k)
{
  if (s->grids == NULL) s->grids = xfi_calloc(s->n, sizeof *s->grids);
  XFI_CHECK(s->grids != NULL, XFER_ERR_NOMEM, "%zu views", s->n);
  XFI_TRY(ensure_grid(s, i));
  XFI_TRY(ensure_grid(s, k));
  *overlap = !are_apart_in_each_step(&s->grids[k], &s->grids[i]) &&
             grids_overlap(&s->grids[k], &s->grids[i]);
  return XFER_OK;
}

/* Does writing the destination preserve the values of the source? */
static bool preserves(const xfi_use *destination, const xfi_use *source)
{
  return destination->moves == NULL &&
         (!destination->zeroes || destination->tensor == source->tensor);
}

/* May the two overlap, because neither changes what the other reads or writes? */
static bool may_overlap(const xfi_use *a, const xfi_use *b)
{
  if (a->is_source) return b->is_source || preserves(b, a);
  return b->is_source && preserves(a, b);
}

/* Are these two destinations with the same view? */
static bool are_one_view(const xfi_use *a, const xfi_use *b)
{
  return a != b && !a->is_source && !b->is_source && !a->unties && a->elem_bytes == b->elem_bytes &&
         xfi_bound_equal(a->bound, b->bound);
}

/* And are equal values of both the same bytes there? */
static bool is_tie(const xfi_use *a, const xfi_use *b)
{
  return are_one_view(a, b) && a->dtype == b->dtype &&
         xfi_conversion_equal(&a->conversion, &b->conversion);
}

/* Two destinations. */
static void set_destinations_error(const xfi_use *a, const xfi_use *b)
{
  if (!are_one_view(a, b))
    xfi_set_error("the destination views of tensors \"%.100s\" and \"%.100s\" overlap", a->name,
                  b->name);
  else if (a->dtype != b->dtype)
    xfi_set_error("tensors \"%.100s\" and \"%.100s\" have one destination view, but one is %s and "
                  "the other %s",
                  a->name, b->name, xfi_dtype_name((int)a->dtype), xfi_dtype_name((int)b->dtype));
  else
    xfi_set_error("tensors \"%.100s\" and \"%.100s\" have one destination view, but their elements "
                  "are converted differently",
                  a->name, b->name);
}

static void set_overlap_error(const xfi_use *a, const xfi_use *b)
{
  const xfi_use *src = a->is_source ? a : b;
  const xfi_use *dst = a->is_source ? b : a;

  if (!src->is_source && a->tensor == b->tensor)
    xfi_set_error("pieces of the destination view of tensor \"%.100s\" overlap each other",
                  a->name);
  else if (!src->is_source)
    set_destinations_error(a, b);
  else if (src->tensor == dst->tensor && dst->moves != NULL && dst->moves[0] != '\0')
    xfi_set_error("tensor \"%.100s\" has one view for source and destination, but does not stay "
                  "as it is here: %s",
                  src->name, dst->moves);
  else
    xfi_set_error(
        "the source view of tensor \"%.100s\" and the destination view of \"%.100s\" overlap",
        src->name, dst->name);
}

static xfer_status check_pair(sweep *s, size_t i, size_t k)
{
  const xfi_use *a = &s->uses[s->at[k].owner];
  const xfi_use *b = &s->uses[s->at[i].owner];
  bool overlap = false;

  if (may_overlap(a, b)) return XFER_OK;
  XFI_TRY(runs_overlap(&overlap, s, i, k));
  if (!overlap || is_tie(a, b)) return XFER_OK;
  set_overlap_error(a, b);
  return XFER_ERR_SHAPE;
}

static void move_extent(sweep *s, size_t to, size_t from)
{
  s->at[to] = s->at[from];
  if (s->grids != NULL) s->grids[to] = s->grids[from];
}

/* Checks extent i against earlier extents that have not ended, which are [0, *n_open), and adds it
 * to them. Extents that have ended are dropped: one long extent may overlap very many short ones,
 * and the list must stay short. */
static xfer_status check_extent(sweep *s, size_t i, size_t *n_open)
{
  size_t n = 0;

  for (size_t k = 0; k < *n_open; k++) {
    if (s->at[k].end <= s->at[i].start) continue;
    XFI_TRY(check_pair(s, i, k));
    move_extent(s, n++, k);
  }
  move_extent(s, n++, i);
  *n_open = n;
  return XFER_OK;
}

xfer_status xfi_uses_check_disjoint(const xfi_use *uses, size_t n)
{
  xfer_status st = XFER_OK;
  sweep s = {.uses = uses};
  size_t n_open = 0;

  XFI_TRY_DONE(make_extents(&s, n));
  for (size_t i = 0; i < s.n; i++)
    XFI_TRY_DONE(check_extent(&s, i, &n_open));
done:
  xfi_copies_free(&s.copies);
  xfi_free(s.grids);
  if (s.at != s.inlined) xfi_free(s.at);
  return st;
}
