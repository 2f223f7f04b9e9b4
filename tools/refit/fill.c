#include "fill.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the function ---- */

static inline uint64_t mix(uint64_t x)
{
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static uint64_t fnv1a(const char *text)
{
  uint64_t h = UINT64_C(0xcbf29ce484222325);

  for (; *text != '\0'; text++)
    h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
  return h;
}

/* A stretch of elements: the i-th lies at `at` + i * step bytes and has index `index` + i * stride.
 */
typedef struct line {
  char *at;
  int64_t step;
  int64_t n;
  uint64_t index; /* seed included */
  uint64_t stride;
  bool zero; /* padding */
} line;

/* One loop for each size of element; the compiler unrolls them where the elements are neighbours.
 */
#define DEFINE_LINES(T)                                                                            \
  static void write_##T(const line *l)                                                             \
  {                                                                                                \
    if (l->step == (int64_t)sizeof(T) && l->stride == 1) {                                         \
      T *restrict at = (T *)(void *)l->at;                                                         \
      for (int64_t i = 0; i < l->n; i++)                                                           \
        at[i] = (T)mix(l->index + (uint64_t)i);                                                    \
      return;                                                                                      \
    }                                                                                              \
    for (int64_t i = 0; i < l->n; i++) {                                                           \
      *(T *)(void *)(l->at + i * l->step) = (T)mix(l->index + (uint64_t)i * l->stride);            \
    }                                                                                              \
  }                                                                                                \
  static void check_##T(const line *l, fill_sum *sum)                                              \
  {                                                                                                \
    uint64_t differ = 0, digest = 0;                                                               \
    for (int64_t i = 0; i < l->n; i++) {                                                           \
      const uint64_t want = l->zero ? 0 : mix(l->index + (uint64_t)i * l->stride);                 \
      const T have = *(const T *)(const void *)(l->at + i * l->step);                              \
      differ |= (uint64_t)(T)(have ^ (T)want);                                                     \
      digest += ((uint64_t)have + 1) * (want | 1);                                                 \
    }                                                                                              \
    sum->bytes += (uint64_t)l->n * sizeof(T);                                                      \
    if (!l->zero) sum->digest += digest;                                                           \
    for (int64_t i = 0; i < l->n && differ != 0; i++) {                                            \
      const uint64_t want = l->zero ? 0 : mix(l->index + (uint64_t)i * l->stride);                 \
      T have = *(const T *)(const void *)(l->at + i * l->step);                                    \
      for (have = (T)(have ^ (T)want); have != 0; have = (T)(have >> 4 >> 4))                      \
        sum->wrong += (have & 255) != 0;                                                           \
    }                                                                                              \
  }
DEFINE_LINES(uint8_t)
DEFINE_LINES(uint16_t)
DEFINE_LINES(uint32_t)
DEFINE_LINES(uint64_t)

static void do_line(const line *l, size_t size, fill_sum *sum)
{
  if (sum == NULL) {
    if (size == 1) write_uint8_t(l);
    if (size == 2) write_uint16_t(l);
    if (size == 4) write_uint32_t(l);
    if (size == 8) write_uint64_t(l);
  } else {
    if (size == 1) check_uint8_t(l, sum);
    if (size == 2) check_uint16_t(l, sum);
    if (size == 4) check_uint32_t(l, sum);
    if (size == 8) check_uint64_t(l, sum);
  }
}

/* ---- walking a part ---- */

typedef struct walk {
  const xfer_refit_tensor *tensor;
  const xfer_view *view;
  int n_dims;
  size_t size;
  int64_t shape[XFER_MAX_DIMS];   /* of the part */
  int64_t strides[XFER_MAX_DIMS]; /* in memory, bytes */
  int64_t *global[XFER_MAX_DIMS]; /* [shape[d]] global index of each local one; -1: padding */
  uint64_t *seeds;                /* [experts] of the table's names, else [1] */
  int inner;                      /* the dim of lines */
  fill_sum *sum;                  /* NULL: write */
  const fill_watch *watch;        /* NULL: nobody */
} walk;

static void walk_free(walk *w)
{
  for (int d = 0; d < w->n_dims; d++)
    free(w->global[d]);
  free(w->seeds);
}

static bool find_globals(walk *w, const xfer_layout *layout, int rank, int d)
{
  size_t n = 0;
  xfer_run *runs = NULL;
  bool ok = xfer_layout_runs(layout, rank, d, NULL, 0, &n) == XFER_OK;

  w->global[d] = malloc((size_t)(w->shape[d] + 1) * sizeof **w->global);
  runs = calloc(n + 1, sizeof *runs);
  ok = ok && w->global[d] != NULL && runs != NULL &&
       xfer_layout_runs(layout, rank, d, runs, n, &n) == XFER_OK;
  for (int64_t i = 0; ok && i < w->shape[d]; i++)
    w->global[d][i] = -1;
  for (size_t r = 0; ok && r < n; r++) {
    for (int64_t i = 0; i < runs[r].length; i++)
      w->global[d][runs[r].local + i] = runs[r].global + i;
  }
  free(runs);
  return ok;
}

/* The seed of each expert's name, or of the one name. */
static bool find_seeds(walk *w, int64_t n_experts)
{
  const char *hf = w->tensor->hf;
  const char *place = w->tensor->n_experts > 0 ? strstr(hf, "{expert}") : NULL;
  char name[1024];

  w->seeds = calloc((size_t)n_experts + 1, sizeof *w->seeds);
  if (w->seeds == NULL) return false;
  w->seeds[0] = fnv1a(hf);
  for (int64_t e = 0; place != NULL && e < n_experts; e++) {
    snprintf(name, sizeof name, "%.*s%" PRId64 "%s", (int)(place - hf), hf,
             w->tensor->first_expert + e, place + strlen("{expert}"));
    w->seeds[e] = fnv1a(name);
  }
  return true;
}

static void find_strides(walk *w)
{
  int64_t stride = (int64_t)w->size;

  for (int d = w->n_dims - 1; d >= 0; d--) {
    w->strides[d] = w->view->kind == XFER_VIEW_DENSE ? stride : w->view->strides[d];
    stride *= w->shape[d] > 0 ? w->shape[d] : 1;
  }
  w->inner = w->n_dims - 1;
  for (int d = 0; d < w->n_dims; d++) {
    const bool cut = w->view->kind == XFER_VIEW_PIECES && w->view->piece_dim == d;

    if (w->shape[d] > 1 && !cut && (w->shape[w->inner] < 2 || w->strides[d] < w->strides[w->inner]))
      w->inner = d;
  }
}

static bool walk_init(walk *w, const xfer_layout *layout, int rank)
{
  int64_t global[XFER_MAX_DIMS];
  bool ok = true;

  w->n_dims = xfer_layout_shape(layout, global);
  w->size = xfer_dtype_size(xfer_layout_dtype(layout));
  if (xfer_layout_local_shape(layout, rank, w->shape) != XFER_OK) return false;
  for (int d = 0; d < w->n_dims && ok; d++)
    ok = find_globals(w, layout, rank, d);
  ok = ok && find_seeds(w, w->n_dims > 0 ? global[0] : 0);
  find_strides(w);
  return ok;
}

/* Where the element at `index` lies. */
static char *address(const walk *w, const int64_t *index)
{
  const xfer_view *v = w->view;
  char *base = v->base;
  int64_t offset = 0;

  for (int d = 0; d < w->n_dims; d++) {
    int64_t i = index[d];

    if (v->kind == XFER_VIEW_PIECES && v->piece_dim == d) {
      const int64_t length = w->shape[d] / v->n_pieces;

      base = v->pieces[i / length];
      i %= length;
    }
    offset += i * w->strides[d];
  }
  return base + offset;
}

/* How many elements from `i` on in the inner dim make one line: neighbours on both sides. */
static int64_t line_length(const walk *w, int64_t i)
{
  const int64_t *g = w->global[w->inner];
  int64_t end = w->shape[w->inner], n = 1;

  if (w->view->kind == XFER_VIEW_PIECES && w->view->piece_dim == w->inner) {
    const int64_t length = end / w->view->n_pieces;

    end = (i / length + 1) * length;
  }
  if (g[i] < 0) {
    while (i + n < end && g[i + n] < 0)
      n++;
  } else {
    while (i + n < end && g[i + n] == g[i] + n)
      n++;
  }
  return n;
}

static line make_line(const walk *w, const int64_t *index)
{
  const xfer_refit_tensor *t = w->tensor;
  line l = {address(w, index), (int64_t)w->size, 1, w->seeds[0] + (uint64_t)t->offset, 1, false};

  for (int d = 0; d < w->n_dims; d++) {
    const int64_t g = w->global[d][index[d]];

    if (g < 0) l.zero = true;
    if (g >= 0 && d == 0 && t->n_experts > 0) {
      l.index += w->seeds[g] - w->seeds[0];
    } else if (g >= 0) {
      l.index += (uint64_t)(g * t->strides[d]);
    }
  }
  if (w->n_dims > 0) {
    l.step = w->strides[w->inner];
    l.stride = (uint64_t)t->strides[w->inner];
    l.n = w->inner == 0 && t->n_experts > 0 ? 1 : line_length(w, index[w->inner]);
  }
  return l;
}

static void walk_part(const walk *w)
{
  int64_t index[XFER_MAX_DIMS] = {0};

  for (int d = 0; d < w->n_dims; d++) {
    if (w->shape[d] == 0) return;
  }
  for (;;) {
    const line l = make_line(w, index);
    int d = w->n_dims - 1;

    do_line(&l, w->size, w->sum);
    if (w->watch != NULL) w->watch->done(w->watch->context, (double)l.n * (double)w->size);
    if (w->n_dims == 0) return;
    index[w->inner] += l.n;
    if (index[w->inner] < w->shape[w->inner]) continue;
    index[w->inner] = 0;
    for (; d >= 0; d--) { /* count up the other dims */
      if (d == w->inner) continue;
      if (++index[d] < w->shape[d]) break;
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

static bool walk_all(const xfer_refit_tensor *tensor, const xfer_layout *layout, int rank,
                     const xfer_view *view, fill_sum *sum, const fill_watch *watch)
{
  walk w = {.tensor = tensor, .view = view, .sum = sum, .watch = watch};
  const bool ok = walk_init(&w, layout, rank);

  if (ok) walk_part(&w);
  walk_free(&w);
  return ok;
}

bool fill_write(const xfer_refit_tensor *tensor, const xfer_layout *layout, int rank,
                const xfer_view *view, const fill_watch *watch)
{
  return walk_all(tensor, layout, rank, view, NULL, watch);
}

bool fill_check(const xfer_refit_tensor *tensor, const xfer_layout *layout, int rank,
                const xfer_view *view, fill_sum *sum, const fill_watch *watch)
{
  return walk_all(tensor, layout, rank, view, sum, watch);
}
