/*
 * Do destination views overlap each other, or a source? Exactly, and without a byte map.
 *
 * Each view is a set of equal runs on a grid. With its dims sorted by falling stride its runs come
 * in ascending order of address, provided that a step of a dim clears all that lies inside it; a
 * destination view that does not have this property is refused, a source counts as all that lies
 * between its ends. Views are swept by address; two whose extents meet are walked side by side.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "bound.h"
#include "error.h"

/* One piece of a view: runs of `copy.run_bytes` at copy.dst + grid. */
typedef struct grid {
  xfi_copy copy;
  const char *end; /* one past its last byte */
  size_t owner;    /* index of the view */
} grid;

static int by_address(const void *a, const void *b)
{
  const grid *x = a;
  const grid *y = b;

  if (x->copy.dst != y->copy.dst) return x->copy.dst < y->copy.dst ? -1 : 1;
  return (x->owner > y->owner) - (x->owner < y->owner);
}

/* False: the grid's runs do not ascend, so it may overlap itself. */
static bool ascends(const grid *g)
{
  int64_t inside = g->copy.run_bytes;

  for (int64_t d = g->copy.n_dims - 1; d >= 0; d--) {
    if (g->copy.dst_stride[d] < inside) return false;
    inside += g->copy.dst_stride[d] * (g->copy.extent[d] - 1);
  }
  return true;
}

/* Bytes from the first to the last. Strides are positive. */
static int64_t reach(const xfi_copy *copy)
{
  int64_t n = copy->run_bytes;

  for (int64_t d = 0; d < copy->n_dims; d++)
    n += copy->dst_stride[d] * (copy->extent[d] - 1);
  return n;
}

/* A walk over a grid's runs. */
typedef struct cursor {
  const grid *g;
  int64_t index[XFI_COPY_DIMS];
  const char *at;
  bool done;
} cursor;

static void advance(cursor *c)
{
  const xfi_copy *copy = &c->g->copy;
  int64_t d;

  for (d = copy->n_dims - 1; d >= 0; d--) {
    c->at += copy->dst_stride[d];
    if (++c->index[d] < copy->extent[d]) return;
    c->at -= copy->dst_stride[d] * copy->extent[d];
    c->index[d] = 0;
  }
  c->done = true;
}

/* Jump to the last outermost index whose block starts at or before `to`. */
static void skip_to(cursor *c, const char *to)
{
  const xfi_copy *copy = &c->g->copy;
  int64_t step;

  if (copy->n_dims == 0 || c->at >= to) return;
  for (int64_t d = 1; d < copy->n_dims; d++)
    if (c->index[d] != 0) return; /* inside a block: step on */
  step = (to - c->at) / copy->dst_stride[0];
  if (step > copy->extent[0] - 1 - c->index[0]) step = copy->extent[0] - 1 - c->index[0];
  c->index[0] += step;
  c->at += step * copy->dst_stride[0];
}

static bool grids_meet(const grid *a, const grid *b)
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

/* Append the grid of one piece of a view that is not empty. `copies` is room. */
static xfer_status add_grid(grid *all, size_t *n, const xfi_use *use, size_t owner, int64_t piece,
                            xfi_copies *copies)
{
  const xfi_bound *bound = use->bound;
  xfer_status st = XFER_OK;
  xfi_end end = {bound, {0}};
  int64_t length[XFER_MAX_DIMS];
  grid *g = &all[*n];

  xfi_bound_shape(length, bound, piece);
  if (bound->boxes != NULL)
    end.start[0] = bound->boxes[piece].row;
  else if (bound->pieces != NULL)
    end.start[bound->piece_dim] = piece * bound->piece_length;
  copies->n = 0;
  XFI_TRY(
      xfi_copies_add(copies, &end, NULL, length, bound->n_dims, (xfi_elem){use->elem_bytes, NULL}));
  if (copies->n == 0) goto done;
  *g = (grid){copies->at[0], copies->at[0].dst + reach(&copies->at[0]), owner};
  if (!ascends(g)) {
    XFI_CHECK(use->is_source, XFER_ERR_SHAPE,
              "tensor \"%s\": the strides of its destination view make it overlap itself",
              use->name);
    g->copy.n_dims = 0;
    g->copy.run_bytes = g->end - g->copy.dst;
  }
  ++*n;
done:
  return st;
}

/* One grid per piece of every view that is not empty. */
static xfer_status make_grids(grid **grids, size_t *n_grids, const xfi_use *uses, size_t n)
{
  xfer_status st = XFER_OK;
  grid *all = NULL;
  xfi_copies copies = {NULL, 0, 0};
  size_t n_all = 0;

  for (size_t i = 0; i < n; i++)
    n_all += (size_t)uses[i].bound->n_pieces;
  all = xfi_calloc(n_all, sizeof *all);
  XFI_CHECK(all != NULL, XFER_ERR_NOMEM, "%zu views", n_all);
  n_all = 0;
  for (size_t i = 0; i < n; i++)
    for (int64_t p = 0; p < uses[i].bound->n_pieces; p++)
      XFI_TRY(add_grid(all, &n_all, &uses[i], i, p, &copies));
  *grids = all;
  *n_grids = n_all;
  all = NULL;
done:
  xfi_copies_free(&copies);
  xfi_free(all);
  return st;
}

/* Neither writes what the other reads or writes. */
static bool may_meet(const xfi_use *a, const xfi_use *b)
{
  return (a->is_source && (b->is_source || b->stays)) || (b->is_source && a->stays);
}

/* Two destinations that are one view. */
static bool is_tie(const xfi_use *a, const xfi_use *b)
{
  return a != b && !a->is_source && !b->is_source && a->elem_bytes == b->elem_bytes &&
         xfi_bound_equal(a->bound, b->bound);
}

static void say_overlap(const xfi_use *a, const xfi_use *b)
{
  if (!a->is_source && !b->is_source)
    xfi_set_error("the destination views of tensors \"%s\" and \"%s\" overlap", a->name, b->name);
  else
    xfi_set_error("the source view of tensor \"%s\" and the destination view of \"%s\" overlap",
                  a->is_source ? a->name : b->name, a->is_source ? b->name : a->name);
}

xfer_status xfi_uses_check_disjoint(const xfi_use *uses, size_t n)
{
  xfer_status st = XFER_OK;
  grid *grids = NULL;
  size_t n_grids = 0;
  size_t first_open = 0; /* grids before it end at or before the current one */

  XFI_TRY(make_grids(&grids, &n_grids, uses, n));
  qsort(grids, n_grids, sizeof *grids, by_address);
  for (size_t i = 0; i < n_grids && st == XFER_OK; i++) {
    while (first_open < i && grids[first_open].end <= grids[i].copy.dst)
      first_open++;
    for (size_t k = first_open; k < i && st == XFER_OK; k++) {
      const xfi_use *a = &uses[grids[k].owner];
      const xfi_use *b = &uses[grids[i].owner];

      if (grids[k].end <= grids[i].copy.dst || may_meet(a, b)) continue;
      if (!grids_meet(&grids[k], &grids[i]) || is_tie(a, b)) continue;
      say_overlap(a, b);
      st = XFER_ERR_SHAPE;
    }
  }
done:
  xfi_free(grids);
  return st;
}
