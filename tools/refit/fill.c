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

/* A box on the host: line by line along the dim whose elements lie closest. */
static void do_box(const fill_box *box, bool zero, fill_sum *sum)
{
  int64_t index[XFER_MAX_DIMS] = {0};
  int inner = box->n_dims - 1;
  int d;

  for (int k = 0; k < box->n_dims; k++)
    if (box->length[k] > 1 && (box->length[inner] < 2 || box->stride[k] < box->stride[inner]))
      inner = k;
  do {
    line l = {box->base, (int64_t)box->elem_bytes, 1, box->seed, 1, zero};

    for (int k = 0; k < box->n_dims; k++) {
      l.at += index[k] * box->stride[k];
      l.index += (uint64_t)(index[k] * box->global_stride[k]);
    }
    if (box->n_dims > 0) {
      l.n = box->length[inner];
      l.step = box->stride[inner];
      l.stride = (uint64_t)box->global_stride[inner];
    }
    do_line(&l, (size_t)box->elem_bytes, sum);
    for (d = box->n_dims - 1; d >= 0; d--) { /* count up the other dims */
      if (d == inner) continue;
      if (++index[d] < box->length[d]) break;
      index[d] = 0;
    }
  } while (d >= 0);
}

/* ---- walking a part ---- */

/* Consecutive indices of a dim in one piece of the view; `global` -1: padding. */
typedef struct stretch {
  int64_t global;
  int64_t local;
  int64_t length;
} stretch;

typedef struct walk {
  const fill_job *job;
  int n_dims;
  int64_t shape[XFER_MAX_DIMS];      /* of the part */
  int64_t strides[XFER_MAX_DIMS];    /* in memory, bytes */
  stretch *stretches[XFER_MAX_DIMS]; /* [n[d]] */
  size_t n[XFER_MAX_DIMS];
  uint64_t *seeds; /* [experts] of the table's names, else [1] */
} walk;

static void walk_free(walk *w)
{
  for (int d = 0; d < w->n_dims; d++)
    free(w->stretches[d]);
  free(w->seeds);
}

/* The longest stretch of a dim: a piece of the view, or an expert, whose name is its own. */
static int64_t longest(const walk *w, int d)
{
  const xfer_view *v = w->job->view;

  if (d == 0 && w->job->tensor->n_experts > 0) return 1;
  if (v->kind == XFER_VIEW_PIECES && v->piece_dim == d) return w->shape[d] / v->n_pieces;
  return w->shape[d];
}

/* [local, local + length) of a dim, in stretches that do not cross a multiple of the longest. */
static void add_stretches(walk *w, int d, int64_t global, int64_t local, int64_t length)
{
  const int64_t most = longest(w, d);

  while (length > 0) {
    const int64_t left = most - local % most;
    const int64_t n = length < left ? length : left;

    w->stretches[d][w->n[d]++] = (stretch){global, local, n};
    if (global >= 0) global += n;
    local += n;
    length -= n;
  }
}

static bool find_stretches(walk *w, int d)
{
  const fill_job *job = w->job;
  int64_t at = 0;
  size_t n = 0;
  xfer_run *runs = NULL;
  bool ok = xfer_layout_runs(job->layout, job->rank, d, NULL, 0, &n) == XFER_OK;
  const size_t pieces = w->shape[d] > 0 ? (size_t)(w->shape[d] / longest(w, d)) : 0;

  w->stretches[d] = calloc(2 * n + pieces + 2, sizeof **w->stretches);
  runs = calloc(n + 1, sizeof *runs);
  ok = ok && w->stretches[d] != NULL && runs != NULL &&
       xfer_layout_runs(job->layout, job->rank, d, runs, n, &n) == XFER_OK;
  for (size_t r = 0; ok && r < n; r++) { /* ascending in local */
    add_stretches(w, d, -1, at, runs[r].local - at);
    add_stretches(w, d, runs[r].global, runs[r].local, runs[r].length);
    at = runs[r].local + runs[r].length;
  }
  if (ok) add_stretches(w, d, -1, at, w->shape[d] - at);
  free(runs);
  return ok;
}

/* The seed of each expert's name, or of the one name. */
static bool find_seeds(walk *w, int64_t n_experts)
{
  const xfer_refit_tensor *t = w->job->tensor;
  const char *place = t->n_experts > 0 ? strstr(t->hf, "{expert}") : NULL;
  char name[1024];

  w->seeds = calloc((size_t)n_experts + 1, sizeof *w->seeds);
  if (w->seeds == NULL) return false;
  w->seeds[0] = fnv1a(t->hf);
  for (int64_t e = 0; place != NULL && e < n_experts; e++) {
    snprintf(name, sizeof name, "%.*s%" PRId64 "%s", (int)(place - t->hf), t->hf,
             t->first_expert + e, place + strlen("{expert}"));
    w->seeds[e] = fnv1a(name);
  }
  return true;
}

static bool walk_init(walk *w)
{
  const fill_job *job = w->job;
  int64_t global[XFER_MAX_DIMS];
  int64_t stride = (int64_t)xfer_dtype_size(xfer_layout_dtype(job->layout));
  bool ok = true;

  w->n_dims = xfer_layout_shape(job->layout, global);
  if (xfer_layout_local_shape(job->layout, job->rank, w->shape) != XFER_OK) return false;
  for (int d = w->n_dims - 1; d >= 0; d--) {
    w->strides[d] = job->view->kind == XFER_VIEW_DENSE ? stride : job->view->strides[d];
    stride *= w->shape[d] > 0 ? w->shape[d] : 1;
  }
  for (int d = 0; d < w->n_dims && ok; d++)
    ok = find_stretches(w, d);
  return ok && find_seeds(w, w->n_dims > 0 ? global[0] : 0);
}

/* The product of one stretch of each dim. True: padding. */
static bool make_box(const walk *w, const size_t *chosen, fill_box *box)
{
  const xfer_refit_tensor *t = w->job->tensor;
  const xfer_view *v = w->job->view;
  char *base = v->base;
  int64_t offset = 0;
  bool zero = false;

  *box = (fill_box){.n_elems = 1, .n_dims = w->n_dims};
  box->elem_bytes = (int32_t)xfer_dtype_size(xfer_layout_dtype(w->job->layout));
  box->seed = w->seeds[0] + (uint64_t)t->offset;
  for (int d = 0; d < w->n_dims; d++) {
    const stretch *s = &w->stretches[d][chosen[d]];
    const bool expert = d == 0 && t->n_experts > 0;
    int64_t local = s->local;

    if (v->kind == XFER_VIEW_PIECES && v->piece_dim == d) {
      const int64_t length = w->shape[d] / v->n_pieces;

      base = v->pieces[local / length];
      local %= length;
    }
    offset += local * w->strides[d];
    box->length[d] = s->length;
    box->n_elems *= s->length;
    box->stride[d] = w->strides[d];
    box->global_stride[d] = expert ? 0 : t->strides[d];
    zero = zero || s->global < 0;
    if (s->global >= 0 && expert) box->seed += w->seeds[s->global] - w->seeds[0];
    if (s->global >= 0 && !expert) box->seed += (uint64_t)(s->global * t->strides[d]);
  }
  box->base = base + offset;
  return zero;
}

/* What is done with a box; false: after a message. */
static bool visit(const fill_job *job, const fill_box *box, bool zero, fill_sum *sum)
{
  const uint64_t n_bytes = (uint64_t)box->n_elems * (uint64_t)box->elem_bytes;
  bool ok = true;

  if (job->device == NULL) {
    do_box(box, zero, sum);
  } else {
    if (sum != NULL) sum->bytes += n_bytes;
    if (sum != NULL) ok = job->device->check(box, zero);
    if (sum == NULL && !zero) ok = job->device->fill(box);
  }
  if (job->watch != NULL) job->watch->done(job->watch->context, (double)n_bytes);
  return ok;
}

static bool walk_part(const walk *w, fill_sum *sum)
{
  size_t chosen[XFER_MAX_DIMS] = {0};
  bool ok = true;
  int d;

  for (d = 0; d < w->n_dims; d++) {
    if (w->n[d] == 0) return true;
  }
  do {
    fill_box box;
    const bool zero = make_box(w, chosen, &box);

    ok = visit(w->job, &box, zero, sum);
    for (d = w->n_dims - 1; d >= 0; d--) {
      if (++chosen[d] < w->n[d]) break;
      chosen[d] = 0;
    }
  } while (ok && d >= 0);
  return ok;
}

static bool walk_all(const fill_job *job, fill_sum *sum)
{
  walk w = {.job = job};
  const bool ok = walk_init(&w) && walk_part(&w, sum);

  walk_free(&w);
  return ok;
}

bool fill_write(const fill_job *job)
{
  return walk_all(job, NULL);
}

bool fill_check(const fill_job *job, fill_sum *sum)
{
  return walk_all(job, sum);
}
