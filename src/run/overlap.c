/*
 * Do destination views overlap? Exactly, and without a byte map.
 *
 * Each view is a set of equal runs on a grid. With its dims sorted by falling stride its runs come
 * in ascending order of address, provided that a step of a dim clears all that lies inside it; a
 * view that does not have this property is refused. Views are swept by address; two whose extents
 * meet are walked side by side.
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
static bool finish(grid *g)
{
  int64_t inside = g->copy.run_bytes;

  for (int64_t d = g->copy.n_dims - 1; d >= 0; d--) {
    if (g->copy.dst_stride[d] < inside) return false;
    inside += g->copy.dst_stride[d] * (g->copy.extent[d] - 1);
  }
  g->end = g->copy.dst + inside;
  return true;
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

/* One grid per piece of every view that is not empty. */
static xfer_status make_grids(grid **grids, size_t *n_grids, const xfi_bound *const *bounds,
                              const char *const *names, const int *elem_bytes, size_t n)
{
  xfer_status st = XFER_OK;
  grid *all = NULL;
  size_t n_all = 0;

  for (size_t i = 0; i < n; i++)
    n_all += (size_t)bounds[i]->n_pieces;
  all = xfi_calloc(n_all, sizeof *all);
  XFI_CHECK(all != NULL, XFER_ERR_NOMEM, "%zu views", n_all);
  n_all = 0;
  for (size_t i = 0; i < n; i++) {
    for (int64_t p = 0; p < bounds[i]->n_pieces; p++) {
      xfi_copies copies = {NULL, 0, 0};
      xfi_end end = {bounds[i], {0}};
      int64_t length[XFER_MAX_DIMS];

      memcpy(length, bounds[i]->shape, sizeof length);
      if (bounds[i]->pieces != NULL) {
        end.start[bounds[i]->piece_dim] = p * bounds[i]->piece_length;
        length[bounds[i]->piece_dim] = bounds[i]->piece_length;
      }
      XFI_TRY(xfi_copies_add(&copies, &end, NULL, length, bounds[i]->n_dims, elem_bytes[i]));
      if (copies.n == 1) all[n_all++] = (grid){copies.at[0], NULL, i};
      xfi_copies_free(&copies);
      XFI_CHECK(n_all == 0 || finish(&all[n_all - 1]), XFER_ERR_SHAPE,
                "tensor \"%s\": the strides of its destination view make it overlap itself",
                names[i]);
    }
  }
  *grids = all;
  *n_grids = n_all;
  all = NULL;
done:
  xfi_free(all);
  return st;
}

xfer_status xfi_bounds_check_disjoint(const xfi_bound *const *bounds, const char *const *names,
                                      const int *elem_bytes, size_t n)
{
  xfer_status st = XFER_OK;
  grid *grids = NULL;
  size_t n_grids = 0;
  size_t first_open = 0; /* grids before it end at or before the current one */

  XFI_TRY(make_grids(&grids, &n_grids, bounds, names, elem_bytes, n));
  qsort(grids, n_grids, sizeof *grids, by_address);
  for (size_t i = 0; i < n_grids; i++) {
    while (first_open < i && grids[first_open].end <= grids[i].copy.dst)
      first_open++;
    for (size_t k = first_open; k < i; k++) {
      const size_t a = grids[k].owner;
      const size_t b = grids[i].owner;

      if (grids[k].end <= grids[i].copy.dst || !grids_meet(&grids[k], &grids[i])) continue;
      if (a != b && elem_bytes[a] == elem_bytes[b] && xfi_bound_equal(bounds[a], bounds[b]))
        continue;
      XFI_CHECK(false, XFER_ERR_SHAPE, "the destination views of tensors \"%s\" and \"%s\" overlap",
                names[a], names[b]);
    }
  }
done:
  xfi_free(grids);
  return st;
}
