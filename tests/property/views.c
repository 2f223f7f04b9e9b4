/* See views.h. */
#include "views.h"

#include <string.h>

/* A row-major run of gaps and bases; the next free byte is at `end`. */
typedef struct cursor {
  rng *r;
  int64_t end;
  bool plain;
  bool aligned; /* elements lie at multiples of their size, as GPUs want of those they convert */
} cursor;

static int64_t rounded(int64_t n, int64_t elem)
{
  return (n + elem - 1) / elem * elem;
}

static int64_t random_gap(cursor *c, int64_t elem)
{
  int64_t gap;
  if (c->plain || !rng_percent(c->r, 30)) return 0;
  gap = rng_percent(c->r, 80) ? elem * rng_below(c->r, 4) : rng_below(c->r, 2 * elem + 3);
  return c->aligned ? rounded(gap, elem) : gap;
}

/* Strides for a block of shape n: from the fastest dim to the slowest, each past the end of the
   faster ones. Returns the bytes from the first element's first to the last one's last. */
static int64_t random_strides(cursor *c, int64_t *strides, const int64_t *n, int n_dims,
                              int64_t elem, bool dense)
{
  int dims[ORC_MAX_DIMS];
  int64_t extent = elem;
  for (int i = 0; i < n_dims; i++)
    dims[i] = n_dims - 1 - i;
  if (!dense && rng_percent(c->r, 50)) rng_shuffle(c->r, dims, n_dims);
  for (int i = 0; i < n_dims; i++) {
    int d = dims[i];
    strides[d] = extent + (dense ? 0 : random_gap(c, elem));
    extent += strides[d] * (n[d] - 1);
  }
  return extent;
}

static int64_t next_base(cursor *c, int64_t elem, int64_t extent)
{
  c->end += c->plain ? 0 : rng_below(c->r, 40);
  if (c->plain || rng_percent(c->r, 75) || c->aligned) c->end = rounded(c->end, elem);
  c->end += extent;
  return c->end - extent;
}

static void choose_pieces(cursor *c, placed *v, int not_dim)
{
  v->piece_dim = rng_int(c->r, 0, v->n_dims - 1);
  if (v->piece_dim == not_dim) {
    v->kind = XFER_VIEW_STRIDED;
    return;
  }
  do {
    v->n_pieces = rng_below(c->r, v->shape[v->piece_dim]) + 1;
  } while (v->shape[v->piece_dim] % v->n_pieces != 0);
}

/* Place a block: v has its shape. `not_dim` is not cut in pieces; -1: any may be. */
static void place_block(cursor *c, placed *v, int not_dim, orc_arena *arena)
{
  int64_t n[ORC_MAX_DIMS];
  int64_t kind = rng_below(c->r, 100);
  v->kind = c->plain || kind < 35 ? XFER_VIEW_DENSE
            : kind < 75           ? XFER_VIEW_STRIDED
                                  : XFER_VIEW_PIECES;
  v->n_pieces = 1;
  v->piece_dim = 0;
  if (v->n_dims == 0 && v->kind == XFER_VIEW_PIECES) v->kind = XFER_VIEW_STRIDED;
  if (v->kind == XFER_VIEW_PIECES) choose_pieces(c, v, not_dim);

  memcpy(n, v->shape, sizeof n);
  if (v->kind == XFER_VIEW_PIECES) n[v->piece_dim] /= v->n_pieces;
  int64_t extent = random_strides(c, v->strides, n, v->n_dims, v->elem, v->kind == XFER_VIEW_DENSE);
  v->bases = orc_alloc(arena, (size_t)v->n_pieces * sizeof *v->bases);
  for (int64_t i = 0; i < v->n_pieces; i++)
    v->bases[i] = next_base(c, v->elem, extent);
  for (int64_t i = v->n_pieces - 1; i > 0; i--) {
    int64_t j = rng_below(c->r, i + 1);
    int64_t swap = v->bases[i];
    v->bases[i] = v->bases[j];
    v->bases[j] = swap;
  }
}

/* The stride of a dim of one index is never used: put something there that must not be looked at.
 */
static void spoil_unused_strides(cursor *c, placed *v)
{
  for (int d = 0; d < v->n_dims; d++) {
    int64_t n =
        v->kind == XFER_VIEW_PIECES && d == v->piece_dim ? v->shape[d] / v->n_pieces : v->shape[d];
    if (n != 1 || !rng_percent(c->r, 20)) continue;
    v->strides[d] = v->shape[d] == 1 && rng_percent(c->r, 50) ? 0 : 1 + rng_below(c->r, 1 << 30);
  }
}

static bool is_empty(const placed *v)
{
  for (int d = 0; d < v->n_dims; d++) {
    if (v->shape[d] == 0) return true;
  }
  return false;
}

/* The part of a shared block that belongs to one of the two: from index `first` of `dim` in steps
 * of `step`. */
static void take_share(placed *v, const placed *block, int dim, int64_t first, int64_t step,
                       orc_arena *arena)
{
  v->kind = block->kind == XFER_VIEW_DENSE ? XFER_VIEW_STRIDED : block->kind;
  v->piece_dim = block->piece_dim;
  v->n_pieces = block->n_pieces;
  memcpy(v->strides, block->strides, sizeof v->strides);
  v->strides[dim] *= step;
  v->bases = orc_alloc(arena, (size_t)v->n_pieces * sizeof *v->bases);
  for (int64_t i = 0; i < v->n_pieces; i++)
    v->bases[i] = block->bases[i] + first * block->strides[dim];
}

static void place_pair(cursor *c, placed *a, placed *b, fusion how, int dim, orc_arena *arena)
{
  placed block = *a;
  block.shape[dim] += b->shape[dim];
  if (is_empty(&block)) return;
  place_block(c, &block, dim, arena);
  bool interleaved = how == INTERLEAVED && a->shape[dim] == b->shape[dim];
  take_share(a, &block, dim, 0, interleaved ? 2 : 1, arena);
  take_share(b, &block, dim, interleaved ? 1 : a->shape[dim], interleaved ? 2 : 1, arena);
}

int64_t views_place(placed *out, const problem *p, int side, const orc_part *parts, const bool *has,
                    rng *r, orc_arena *arena)
{
  cursor c = {r, 32, p->plain_views, false};
  for (int i = 0; i < p->n_tensors; i++) {
    out[i] = (placed){.empty = true, .elem = (int64_t)xfer_dtype_size(p->tensors[i].dtypes[side])};
    out[i].n_dims = p->tensors[i].sides[side].n_dims;
    for (int d = 0; has[i] && d < out[i].n_dims; d++)
      out[i].shape[d] = parts[i].dims[d].n;
    out[i].empty = !has[i] || is_empty(&out[i]);
  }
  for (int i = 0; i < p->n_tensors; i++) {
    const problem_tensor *next = &p->tensors[i + 1];
    bool pair = i + 1 < p->n_tensors && has[i] && has[i + 1] &&
                (next->fused[side] == CONCATENATED || next->fused[side] == INTERLEAVED);
    c.aligned = p->tensors[i].change != NO_CHANGE;
    if (p->tensors[i].fused[side] == TIED) {
      out[i] = out[i - 1];
    } else if (pair && !c.plain) {
      place_pair(&c, &out[i], &out[i + 1], next->fused[side], next->fuse_dim, arena);
      spoil_unused_strides(&c, &out[i]);
      spoil_unused_strides(&c, &out[i + 1]);
      i++;
    } else if (!out[i].empty) {
      place_block(&c, &out[i], -1, arena);
      if (out[i].kind != XFER_VIEW_DENSE) spoil_unused_strides(&c, &out[i]);
    }
  }
  return c.end + 32;
}

xfer_view placed_view(const placed *v, unsigned char *memory, orc_arena *arena)
{
  if (v->kind == XFER_VIEW_DENSE) return xfer_view_dense(memory + v->bases[0]);
  if (v->kind == XFER_VIEW_STRIDED)
    return xfer_view_strided(memory + v->bases[0], v->strides, v->n_dims);
  void **pieces = orc_alloc(arena, (size_t)v->n_pieces * sizeof *pieces);
  for (int64_t i = 0; i < v->n_pieces; i++)
    pieces[i] = memory + v->bases[i];
  return xfer_view_pieces(pieces, v->n_pieces, v->piece_dim, v->strides, v->n_dims);
}

int64_t placed_offset(const placed *v, const int64_t *x)
{
  int64_t at = 0;
  int64_t piece = 0;
  for (int d = 0; d < v->n_dims; d++) {
    int64_t k = x[d];
    if (v->kind == XFER_VIEW_PIECES && d == v->piece_dim) {
      piece = k / (v->shape[d] / v->n_pieces);
      k %= v->shape[d] / v->n_pieces;
    }
    at += k * v->strides[d];
  }
  return v->bases[piece] + at;
}
