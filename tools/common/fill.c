#include "fill.h"

#include "bytes.h"
#include "fill_change.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- walking a part ---- */

/* Consecutive indices of a dim in one piece of the view; `global` -1: padding. */
typedef struct stretch {
  int64_t global;
  int64_t local;
  int64_t length;
} stretch;

typedef struct walk {
  const fill_job *job;
  const int64_t *box; /* [2][n_dims] of the view's boxes that one, as if it were the part; NULL: all
                         is one */
  char *base;
  int n_dims;
  int64_t global[XFER_MAX_DIMS];
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

/* Finds the stretches of one dim of a box. The indices of the box past the tensor's shape are
 * padding. */
static bool find_box_stretches(walk *w, int d)
{
  const int64_t inside = w->global[d] - w->box[d];
  const int64_t n = inside < 0 ? 0 : inside < w->shape[d] ? inside : w->shape[d];
  const int64_t pieces = w->shape[d] > 0 ? w->shape[d] / longest(w, d) : 0;

  w->stretches[d] = calloc((size_t)pieces + 2, sizeof **w->stretches);
  if (w->stretches[d] == NULL) return false;
  add_stretches(w, d, w->box[d], 0, n);
  add_stretches(w, d, -1, n, w->shape[d] - n);
  return true;
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
  w->seeds[0] = fill_box_seed(t->hf);
  for (int64_t e = 0; place != NULL && e < n_experts; e++) {
    snprintf(name, sizeof name, "%.*s%" PRId64 "%s", (int)(place - t->hf), t->hf,
             t->first_expert + e, place + strlen("{expert}"));
    w->seeds[e] = fill_box_seed(name);
  }
  return true;
}

static bool walk_init(walk *w)
{
  const fill_job *job = w->job;
  int64_t stride = (int64_t)xfer_dtype_size(xfer_layout_dtype(job->layout));
  bool ok = true;

  w->n_dims = xfer_layout_shape(job->layout, w->global);
  if (w->box == NULL && xfer_layout_local_shape(job->layout, job->rank, w->shape) != XFER_OK)
    return false;
  for (int d = w->n_dims - 1; d >= 0; d--) {
    const bool dense = job->view->kind == XFER_VIEW_DENSE || w->box != NULL;

    if (w->box != NULL) w->shape[d] = w->box[w->n_dims + d] - w->box[d];
    w->strides[d] = dense ? stride : job->view->strides[d];
    stride *= w->shape[d] > 0 ? w->shape[d] : 1;
  }
  for (int d = 0; d < w->n_dims && ok; d++) {
    ok = w->box != NULL ? find_box_stretches(w, d) : find_stretches(w, d);
  }
  return ok && find_seeds(w, job->tensor->n_experts > 0 ? w->global[0] : 0);
}

/* The product of one stretch of each dim. True: padding. */
static bool make_box(const walk *w, const size_t *chosen, fill_box *box)
{
  const xfer_refit_tensor *t = w->job->tensor;
  const xfer_view *v = w->job->view;
  char *base = w->base;
  int64_t offset = 0;
  bool zero = false;

  *box = (fill_box){.n_elems = 1, .n_dims = w->n_dims, .change = w->job->change};
  memcpy(box->extent, w->job->extent, sizeof box->extent);
  box->elem_bytes = (int32_t)xfer_dtype_size(xfer_layout_dtype(w->job->layout));
  box->seed = w->seeds[0] + (uint64_t)t->offset;
  for (int d = 0; d < w->n_dims; d++) {
    const stretch *s = &w->stretches[d][chosen[d]];
    const bool expert = d == 0 && t->n_experts > 0;
    const int64_t step = fill_change_step(&w->job->change, w->n_dims, d);
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
    box->global_stride[d] = expert ? 0 : t->strides[d] * step;
    if (d >= w->n_dims - 2) box->first[d - w->n_dims + 2] = s->global * step;
    zero = zero || s->global < 0;
    if (s->global >= 0 && expert) box->seed += w->seeds[s->global] - w->seeds[0];
    if (s->global >= 0 && !expert) box->seed += (uint64_t)(s->global * step * t->strides[d]);
  }
  box->base = base + offset;
  return zero;
}

/* Writes or checks one box. Returns false after a message on stderr. */
static bool visit(const fill_job *job, const fill_box *box, bool zero, fill_sum *sum)
{
  const uint64_t n_bytes = (uint64_t)box->n_elems * (uint64_t)box->elem_bytes;
  bool ok = true;

  if (job->device == NULL) {
    sum == NULL ? fill_host_write(box) : fill_host_check(box, zero, sum);
  } else {
    if (sum != NULL) sum->bytes += n_bytes;
    if (sum != NULL) ok = job->device->check(job->device->context, box, zero);
    if (sum == NULL && !zero) ok = job->device->fill(job->device->context, box);
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

static bool walk_one(const fill_job *job, const int64_t *box, void *base, fill_sum *sum)
{
  walk w = {.job = job, .box = box, .base = base};
  const bool ok = walk_init(&w) && walk_part(&w, sum);

  walk_free(&w);
  return ok;
}

static bool walk_all(const fill_job *job, fill_sum *sum)
{
  const xfer_view *v = job->view;
  const size_t n_dims = (size_t)xfer_layout_shape(job->layout, NULL);
  size_t n = (size_t)v->n_pieces;

  if (v->kind != XFER_VIEW_BOXES) return walk_one(job, NULL, v->base, sum);
  int64_t *bounds = calloc(n, 2 * (n_dims + 1) * sizeof *bounds);
  bool ok = bounds != NULL && xfer_layout_boxes(job->layout, job->rank, bounds, n, &n) == XFER_OK;
  for (size_t i = 0; i < n && ok; i++)
    ok = walk_one(job, bounds + 2 * n_dims * i, v->pieces[i], sum);
  free(bounds);
  return ok;
}

/* ---- whole parts ---- */

size_t fill_part_bytes(const xfer_layout *layout, int rank, int64_t *shape)
{
  const int n_dims = xfer_layout_shape(layout, NULL);
  int64_t sizes[XFER_MAX_DIMS] = {0};

  if (xfer_layout_local_shape(layout, rank, sizes) != XFER_OK) return 0;
  for (int d = 0; d < n_dims && shape != NULL; d++)
    shape[d] = sizes[d];
  return bytes_of(sizes, n_dims, xfer_dtype_size(xfer_layout_dtype(layout)));
}

xfer_refit_tensor fill_whole(const char *name, const xfer_layout *layout)
{
  xfer_refit_tensor tensor = {.hf = name, .layer = -1};
  int64_t shape[XFER_MAX_DIMS];
  int64_t stride = 1;

  tensor.n_dims = xfer_layout_shape(layout, shape);
  for (int d = tensor.n_dims - 1; d >= 0; d--) {
    tensor.strides[d] = stride;
    stride *= shape[d];
  }
  return tensor;
}

bool fill_job_of(fill_job *job, xfer_refit_tensor *info, const xfer_refit *refit,
                 const xfer_tensor *tensors, size_t t, bool is_source)
{
  size_t of;

  if (!fill_change_of(tensors, t, is_source, &job->change, &of)) return false;
  if (refit == NULL) *info = fill_whole(tensors[of].name, tensors[of].src);
  if (refit != NULL && xfer_refit_tensor_get(refit, of, info) != XFER_OK) return false;
  if (job->change.block[0] > 0) fill_change_extent(tensors[of].src, job->extent);
  job->tensor = info;
  job->layout = is_source ? tensors[t].src : tensors[t].dst;
  return true;
}

bool fill_write(const fill_job *job)
{
  return walk_all(job, NULL);
}

bool fill_check(const fill_job *job, fill_sum *sum)
{
  return walk_all(job, sum);
}
