/*
 * The parts of all training ranks, each once, and what of them this rank needs: the runs of both
 * layouts intersected in each dim. A training rank's memory is known here by made-up addresses, one
 * stretch for each of its local tensors.
 */
#include "slices.h"

#include "bytes.h"
#include "fill.h"

#include <stdlib.h>
#include <string.h>

enum { RUNS_MAX = 4096 };

/* A stretch of one dim on both sides. */
typedef struct stretch {
  int64_t src;
  int64_t dst;
  int64_t length;
} stretch;

typedef struct maker {
  perf_slices *out;
  const perf_world *w;
  const perf_case *c;
  xfer_locals *locals; /* of the training rank `root` */
  int root;
  uintptr_t *bases; /* [n_locals + 1] made-up address of each */
  size_t *piece_of; /* [n_locals] 1 + the piece of a whole local tensor; 0: none yet */
  size_t n_locals;
} maker;

static void *grown(void *array, size_t n, size_t *cap, size_t size)
{
  if (n < *cap) return array;
  *cap = *cap == 0 ? 1024 : 2 * *cap;
  return realloc(array, *cap * size);
}

static size_t add_piece(maker *m, size_t local, size_t offset, size_t n_bytes)
{
  perf_slices *s = m->out;

  s->pieces = grown(s->pieces, s->n_pieces, &s->cap_pieces, sizeof *s->pieces);
  if (s->pieces == NULL) perf_die(m->w, "pieces", "no memory");
  s->pieces[s->n_pieces] =
      (perf_piece){.root = m->root, .local = local, .offset = offset, .n_bytes = n_bytes};
  return s->n_pieces++;
}

static size_t find_local(const maker *m, uintptr_t at)
{
  size_t low = 0;
  size_t high = m->n_locals;

  while (high - low > 1) {
    size_t middle = (low + high) / 2;
    if (m->bases[middle] <= at)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* ---- layouts ------------------------------------------------------------------------------ */

static size_t runs_of(const maker *m, const xfer_layout *layout, int rank, int d, xfer_run *runs)
{
  size_t n = 0;

  if (xfer_layout_runs(layout, rank, d, runs, RUNS_MAX, &n) != XFER_OK || n > RUNS_MAX)
    perf_die(m->w, "runs", xfer_last_error());
  return n;
}

/* Does a lower training rank hold the same? */
static bool is_copy(const maker *m, const xfer_layout *layout)
{
  static xfer_run mine[RUNS_MAX];
  static xfer_run others[RUNS_MAX];
  int n_dims = xfer_layout_shape(layout, NULL);

  for (int r = 0; r < m->root; r++) {
    bool same = fill_part_bytes(layout, r, NULL) > 0;
    for (int d = 0; d < n_dims && same; d++) {
      size_t n = runs_of(m, layout, m->root, d, mine);
      same = runs_of(m, layout, r, d, others) == n && memcmp(mine, others, n * sizeof *mine) == 0;
    }
    if (same) return true;
  }
  return false;
}

/* Lists the stretches of one dim that both ranks hold, cut where the source's pieces end. */
static size_t meet(const maker *m, const xfer_tensor *t, int d, int64_t piece, stretch *out)
{
  static xfer_run src[RUNS_MAX];
  static xfer_run dst[RUNS_MAX];
  size_t n_src = runs_of(m, t->src, m->root, d, src);
  size_t n_dst = runs_of(m, t->dst, m->w->rank, d, dst);
  size_t n = 0;

  for (size_t i = 0; i < n_src; i++) {
    for (size_t k = 0; k < n_dst; k++) {
      int64_t from = src[i].global > dst[k].global ? src[i].global : dst[k].global;
      int64_t src_end = src[i].global + src[i].length;
      int64_t dst_end = dst[k].global + dst[k].length;
      int64_t end = src_end < dst_end ? src_end : dst_end;
      while (from < end) {
        stretch s = {src[i].local + from - src[i].global, dst[k].local + from - dst[k].global,
                     end - from};
        if (piece > 0 && s.length > piece - s.src % piece) s.length = piece - s.src % piece;
        if (n == RUNS_MAX) perf_die(m->w, "slices", "too many");
        out[n++] = s;
        from += s.length;
      }
    }
  }
  return n;
}

/* ---- slices ------------------------------------------------------------------------------- */

typedef struct box {
  uintptr_t src;
  char *dst;
  int n_dims;
  int64_t length[XFER_MAX_DIMS];
  int64_t src_stride[XFER_MAX_DIMS];
  int64_t dst_stride[XFER_MAX_DIMS];
} box;

/* Dims of one index go, and neighbours that continue each other on both sides become one. */
static void simplify(box *b)
{
  int n = 0;

  for (int d = 0; d < b->n_dims; d++) {
    if (b->length[d] == 1 && d < b->n_dims - 1) continue;
    if (n > 0 && b->src_stride[n - 1] == b->length[d] * b->src_stride[d] &&
        b->dst_stride[n - 1] == b->length[d] * b->dst_stride[d]) {
      n--;
      b->length[n] *= b->length[d];
    } else {
      b->length[n] = b->length[d];
    }
    b->src_stride[n] = b->src_stride[d];
    b->dst_stride[n] = b->dst_stride[d];
    n++;
  }
  b->n_dims = n;
}

static void add_slices(maker *m, box b, size_t piece, uintptr_t piece_at)
{
  perf_slices *s = m->out;
  int outer = 0;

  simplify(&b);
  outer = b.n_dims > 2 ? b.n_dims - 2 : 0;
  if (outer > 1) perf_die(m->w, "slices", "more dims than were expected");
  for (int64_t i = 0; i < (outer == 1 ? b.length[0] : 1); i++) {
    int last = b.n_dims - 1;
    perf_slice slice = {.piece = piece, .height = 1};
    slice.offset = b.src - piece_at + (size_t)(outer == 1 ? i * b.src_stride[0] : 0);
    slice.dst = b.dst + (outer == 1 ? i * b.dst_stride[0] : 0);
    slice.width = (size_t)(b.length[last] * b.src_stride[last]);
    slice.src_pitch = slice.dst_pitch = slice.width;
    if (b.n_dims > 1) {
      slice.height = (size_t)b.length[last - 1];
      slice.src_pitch = (size_t)b.src_stride[last - 1];
      slice.dst_pitch = (size_t)b.dst_stride[last - 1];
    }
    s->slices = grown(s->slices, s->n_slices, &s->cap_slices, sizeof *s->slices);
    if (s->slices == NULL) perf_die(m->w, "slices", "no memory");
    s->slices[s->n_slices++] = slice;
  }
}

static void strides_of(const xfer_layout *layout, int rank, const xfer_view *view, int64_t *strides)
{
  int64_t shape[XFER_MAX_DIMS] = {0};
  int64_t stride = (int64_t)xfer_dtype_size(xfer_layout_dtype(layout));

  (void)fill_part_bytes(layout, rank, shape);
  for (int d = xfer_layout_shape(layout, NULL) - 1; d >= 0; d--) {
    strides[d] = view->kind == XFER_VIEW_DENSE ? stride : view->strides[d];
    stride *= shape[d];
  }
}

/* The slices of a tensor's part at `root`, or with expert >= 0 of that index of dim 0. */
static void slice_part(maker *m, size_t tensor, const xfer_view *src, int64_t expert, size_t piece,
                       uintptr_t piece_at)
{
  static stretch met[XFER_MAX_DIMS][RUNS_MAX];
  const xfer_tensor *t = &m->c->tensors[tensor];
  size_t n_met[XFER_MAX_DIMS] = {0};
  size_t at[XFER_MAX_DIMS] = {0};
  int64_t shape[XFER_MAX_DIMS] = {0};
  box b = {.n_dims = xfer_layout_shape(t->src, NULL)};
  xfer_view unused;
  xfer_view dst;
  uint32_t has = 0;
  int64_t cut = 0;

  if (!perf_case_view(m->c, tensor, &unused, &dst, &has)) perf_die(m->w, "view", xfer_last_error());
  if ((has & XFER_LOCALS_DST) == 0) return;
  (void)fill_part_bytes(t->src, m->root, shape);
  if (src->kind == XFER_VIEW_PIECES) cut = shape[src->piece_dim] / src->n_pieces;
  strides_of(t->src, m->root, src, b.src_stride);
  strides_of(t->dst, m->w->rank, &dst, b.dst_stride);
  for (int d = 0; d < b.n_dims; d++) {
    n_met[d] = meet(m, t, d, cut > 0 && d == src->piece_dim ? cut : 0, met[d]);
    if (n_met[d] == 0) return;
  }
  for (int d = 0; d >= 0;) {
    box one = b;
    one.src = (uintptr_t)src->base;
    one.dst = dst.base;
    bool wanted = true;
    for (int k = 0; k < b.n_dims; k++) {
      stretch s = met[k][at[k]];
      if (k == 0 && expert >= 0) {
        wanted = s.src <= expert && expert < s.src + s.length;
        s = (stretch){expert, s.dst + expert - s.src, 1};
      }
      if (cut > 0 && k == src->piece_dim) {
        one.src += (uintptr_t)src->pieces[s.src / cut];
        s.src %= cut;
      }
      one.length[k] = s.length;
      one.src += (uintptr_t)(s.src * b.src_stride[k]);
      one.dst += s.dst * b.dst_stride[k];
    }
    if (wanted) add_slices(m, one, piece, piece_at);
    for (d = b.n_dims - 1; d >= 0 && ++at[d] == n_met[d]; d--)
      at[d] = 0;
  }
}

/* ---- pieces ------------------------------------------------------------------------------- */

static void add_experts(maker *m, size_t tensor, const xfer_view *src)
{
  int64_t shape[XFER_MAX_DIMS] = {0};
  int64_t strides[XFER_MAX_DIMS] = {0};

  (void)fill_part_bytes(m->c->tensors[tensor].src, m->root, shape);
  strides_of(m->c->tensors[tensor].src, m->root, src, strides);
  for (int64_t e = 0; e < shape[0]; e++) {
    uintptr_t at = (uintptr_t)src->base + (uintptr_t)(e * strides[0]);
    size_t local = find_local(m, at);
    size_t piece = add_piece(m, local, at - m->bases[local], (size_t)(shape[1] * strides[1]));
    slice_part(m, tensor, src, e, piece, at);
  }
}

static void add_whole(maker *m, size_t tensor, const xfer_view *src)
{
  uintptr_t at = (uintptr_t)(src->kind == XFER_VIEW_PIECES ? src->pieces[0] : src->base);
  size_t local = find_local(m, at);

  if (m->piece_of[local] == 0)
    m->piece_of[local] = 1 + add_piece(m, local, 0, m->bases[local + 1] - m->bases[local]);
  slice_part(m, tensor, src, -1, m->piece_of[local] - 1, m->bases[local]);
}

static bool make_up(maker *m)
{
  uintptr_t at = (uintptr_t)1 << 40;

  for (size_t i = 0; i < m->n_locals; i++) {
    xfer_local local;
    if (xfer_locals_get(m->locals, i, &local) != XFER_OK) return false;
    m->bases[i] = at;
    if (xfer_locals_give(m->locals, (xfer_refit_side)local.side, local.name,
                         (xfer_dtype)local.dtype, (void *)at, local.shape, NULL,
                         local.n_dims) != XFER_OK)
      return false;
    at += bytes_of(local.shape, local.n_dims, xfer_dtype_size((xfer_dtype)local.dtype));
  }
  m->bases[m->n_locals] = at;
  return true;
}

static bool add_root(maker *m, bool per_expert)
{
  for (size_t t = 0; t < m->c->n_tensors; t++) {
    const xfer_layout *layout = m->c->tensors[t].src;
    xfer_view src;
    xfer_view dst;
    uint32_t has = 0;
    if (xfer_locals_view(m->locals, t, &src, &dst, &has) != XFER_OK) return false;
    if ((has & XFER_LOCALS_SRC) == 0 || is_copy(m, layout)) continue;
    if (per_expert && xfer_layout_shape(layout, NULL) == 3 && src.kind != XFER_VIEW_PIECES)
      add_experts(m, t, &src);
    else
      add_whole(m, t, &src);
  }
  return true;
}

static int by_piece(const void *a, const void *b)
{
  const perf_slice *x = a;
  const perf_slice *y = b;

  if (x->piece != y->piece) return x->piece < y->piece ? -1 : 1;
  return (x->offset > y->offset) - (x->offset < y->offset);
}

bool perf_slices_make(perf_slices *s, const perf_world *w, const perf_case *c, bool per_expert)
{
  bool ok = true;

  memset(s, 0, sizeof *s);
  for (int root = 0; root < w->n_train && ok; root++) {
    maker m = {.out = s, .w = w, .c = c, .root = root};
    ok = xfer_locals_create(&m.locals, c->refit, root) == XFER_OK;
    m.n_locals = ok ? xfer_locals_count(m.locals) : 0;
    m.bases = calloc(m.n_locals + 1, sizeof *m.bases);
    m.piece_of = calloc(m.n_locals + 1, sizeof *m.piece_of);
    ok = ok && m.bases != NULL && m.piece_of != NULL && make_up(&m) && add_root(&m, per_expert);
    free(m.bases);
    free(m.piece_of);
    xfer_locals_destroy(m.locals);
  }
  if (s->n_slices > 0) qsort(s->slices, s->n_slices, sizeof *s->slices, by_piece);
  return ok;
}

void perf_slices_free(perf_slices *s)
{
  free(s->pieces);
  free(s->slices);
  memset(s, 0, sizeof *s);
}
