/* Models and problem lines as memory of one rank, filled and checked on the device. */
#include "case.h"

#include "as_loaded.h"
#include "bytes.h"
#include "fill_stream.h"
#include "tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa5 };

static bool add_buffer(perf_case *c, const perf_world *w, size_t n_bytes, bool is_dst)
{
  perf_buffer *b = &c->buffers[c->n_buffers++];

  b->n_bytes = n_bytes;
  b->is_dst = is_dst;
  if (is_dst) c->dst_bytes += n_bytes;
  CUDA(w, cudaMalloc, ((void **)&b->base, n_bytes > 0 ? n_bytes : 1));
  return true;
}

/* ---- a model ------------------------------------------------------------------------------ */

static bool give_locals(perf_case *c, const perf_world *w)
{
  size_t n = xfer_locals_count(c->locals);

  c->buffers = calloc(n + 1, sizeof *c->buffers);
  if (c->buffers == NULL) return false;
  for (size_t i = 0; i < n; i++) {
    xfer_local local;
    if (xfer_locals_get(c->locals, i, &local) != XFER_OK) return false;
    const uint64_t n_bytes =
        bytes_of(local.shape, local.n_dims, xfer_dtype_size((xfer_dtype)local.dtype));
    if (!add_buffer(c, w, n_bytes, local.side == XFER_REFIT_GEN)) return false;
    if (xfer_locals_give(c->locals, (xfer_refit_side)local.side, local.name,
                         (xfer_dtype)local.dtype, c->buffers[i].base, local.shape, NULL,
                         local.n_dims) != XFER_OK)
      return false;
  }
  return true;
}

bool perf_case_model(perf_case *c, const perf_world *w, const char *table, const char *train,
                     const char *gen, int gen_first)
{
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  char path[TABLES_PATH_BYTES];

  memset(c, 0, sizeof *c);
  if (w->models == NULL)
    (void)tables_find(path, table);
  else
    (void)snprintf(path, sizeof path, "%s/%s.json", w->models, table);
  if (xfer_model_load(&c->model, path, NULL) != XFER_OK) return false;
  take_as_loaded(&options, train);
  if (xfer_side_create(&c->sides[0], train, &options) != XFER_OK) return false;
  take_as_loaded(&options, gen);
  options.first_rank = gen_first;
  if (xfer_side_create(&c->sides[1], gen, &options) != XFER_OK) return false;
  if (xfer_refit_create(&c->refit, c->model, c->sides[0], c->sides[1]) != XFER_OK) return false;
  if (xfer_locals_create(&c->locals, c->refit, w->rank) != XFER_OK) return false;
  c->tensors = xfer_refit_tensors(c->refit, &c->n_tensors);
  return give_locals(c, w);
}

/* ---- problem lines ------------------------------------------------------------------------ */

/* Another dtype for the source of a line. */
static bool change_source(xfer_layout **source, const char *text, const char *from)
{
  char changed[256];
  xfer_layout *ignored = NULL;

  (void)snprintf(changed, sizeof changed, "%s%s", from, strchr(text, '['));
  xfer_layout_destroy(*source);
  *source = NULL;
  if (xfer_problem_parse(source, &ignored, changed) != XFER_OK) return false;
  xfer_layout_destroy(ignored);
  return true;
}

/* The i-th tensor of the lines: with blocks weights and their scales alternate. */
static bool add_line(perf_case *c, const perf_world *w, const perf_lines *lines, int i)
{
  const bool is_scales = lines->scales != NULL && i % 2 == 1;
  const int number = lines->scales != NULL ? i / 2 : i;
  xfer_conversion conversion = {0};
  xfer_layout *layouts[2] = {NULL, NULL};
  char text[PERF_LINE_BYTES];

  (is_scales ? lines->scales : lines->line)(w, number, text, sizeof text);
  if (xfer_problem_parse(&layouts[0], &layouts[1], text) != XFER_OK) return false;
  if (is_scales) {
    xfer_layout_destroy(layouts[0]);
    layouts[0] = NULL;
    conversion = xfer_convert_scales_of((size_t)i - 1);
  } else if (lines->from != NULL && !change_source(&layouts[0], text, lines->from)) {
    return false;
  }
  if (lines->scales != NULL && !is_scales)
    conversion = xfer_convert_blocks(128, 128, XFER_SCALE_F32);
  else if (!is_scales && xfer_layout_dtype(layouts[0]) != xfer_layout_dtype(layouts[1]))
    conversion = xfer_convert_cast();
  (void)snprintf(c->names[i], sizeof c->names[i], "tensor %d", i);
  c->own[i] = (xfer_tensor){c->names[i], layouts[0], layouts[1], conversion};
  c->n_tensors++;
  for (int side = 0; side < 2; side++) {
    size_t n_bytes = layouts[side] != NULL ? fill_part_bytes(layouts[side], w->rank, NULL) : 0;
    if (n_bytes == 0) continue;
    if (!add_buffer(c, w, n_bytes, side == 1)) return false;
    c->views[i][side] = xfer_view_dense(c->buffers[c->n_buffers - 1].base);
  }
  return true;
}

bool perf_case_lines(perf_case *c, const perf_world *w, const perf_lines *lines)
{
  const int n = lines->scales != NULL ? 2 * lines->n : lines->n;

  memset(c, 0, sizeof *c);
  c->own = calloc((size_t)n, sizeof *c->own);
  c->names = calloc((size_t)n, sizeof *c->names);
  c->views = calloc((size_t)n, sizeof *c->views);
  c->buffers = calloc(2 * (size_t)n, sizeof *c->buffers);
  if (c->own == NULL || c->names == NULL || c->views == NULL || c->buffers == NULL) return false;
  c->tensors = c->own;
  for (int i = 0; i < n; i++)
    if (!add_line(c, w, lines, i)) return false;
  return true;
}

/* ---- both --------------------------------------------------------------------------------- */

void perf_case_free(perf_case *c, const perf_world *w)
{
  for (size_t i = 0; i < c->n_buffers; i++)
    CUDA(w, cudaFree, (c->buffers[i].base));
  for (size_t i = 0; c->own != NULL && i < c->n_tensors; i++) {
    xfer_layout_destroy((xfer_layout *)c->own[i].src);
    xfer_layout_destroy((xfer_layout *)c->own[i].dst);
  }
  xfer_locals_destroy(c->locals);
  xfer_refit_destroy(c->refit);
  xfer_side_destroy(c->sides[0]);
  xfer_side_destroy(c->sides[1]);
  xfer_model_destroy(c->model);
  free(c->buffers);
  free(c->own);
  free(c->names);
  free(c->views);
  memset(c, 0, sizeof *c);
}

bool perf_case_bind(const perf_case *c, xfer_plan *plan)
{
  if (c->locals != NULL) return xfer_locals_bind(c->locals, plan) == XFER_OK;
  for (size_t i = 0; i < c->n_tensors; i++)
    if (xfer_plan_bind(plan, i, &c->views[i][0], &c->views[i][1]) != XFER_OK) return false;
  return true;
}

bool perf_case_view(const perf_case *c, size_t tensor, xfer_view *src, xfer_view *dst,
                    uint32_t *has)
{
  if (c->locals != NULL) return xfer_locals_view(c->locals, tensor, src, dst, has) == XFER_OK;
  *src = c->views[tensor][0];
  *dst = c->views[tensor][1];
  *has = (src->base != NULL ? XFER_LOCALS_SRC : 0) | (dst->base != NULL ? XFER_LOCALS_DST : 0);
  return true;
}

/* Fills this rank's sources, or checks its destinations and sets *n_bytes to their size. */
static bool each_part(const perf_case *c, const perf_world *w, bool is_source, uint64_t *n_bytes)
{
  fill_stream on = {w->wrong, 1, w->stream};
  const fill_device device = fill_device_of(&on);
  fill_sum sum = {0};
  bool ok = true;

  for (size_t t = 0; t < c->n_tensors && ok; t++) {
    xfer_view src;
    xfer_view dst;
    xfer_refit_tensor info;
    fill_job part = {.rank = w->rank, .view = is_source ? &src : &dst, .device = &device};
    uint32_t has = 0;

    ok = perf_case_view(c, t, &src, &dst, &has);
    if (!ok || (has & (is_source ? XFER_LOCALS_SRC : XFER_LOCALS_DST)) == 0) continue;
    ok = fill_job_of(&part, &info, c->refit, c->tensors, t, is_source) &&
         (is_source ? fill_write(&part) : fill_check(&part, &sum));
  }
  if (!is_source) *n_bytes = sum.bytes;
  return ok;
}

bool perf_case_fill(const perf_case *c, const perf_world *w)
{
  return each_part(c, w, true, NULL);
}

void perf_case_poison(const perf_case *c, const perf_world *w)
{
  for (size_t i = 0; i < c->n_buffers; i++) {
    const perf_buffer *b = &c->buffers[i];
    if (b->is_dst) CUDA(w, cudaMemsetAsync, (b->base, POISON, b->n_bytes, w->stream));
  }
}

double perf_case_check(const perf_case *c, const perf_world *w)
{
  unsigned long long wrong = 0;
  uint64_t visited = 0;

  CUDA(w, cudaMemsetAsync, (w->wrong, 0, sizeof *w->wrong, w->stream));
  if (!each_part(c, w, false, &visited)) perf_die(w, "check", xfer_last_error());
  CUDA(w, cudaMemcpyAsync, (&wrong, w->wrong, sizeof wrong, cudaMemcpyDeviceToHost, w->stream));
  CUDA(w, cudaStreamSynchronize, (w->stream));
  if (visited > c->dst_bytes) visited = c->dst_bytes;
  return perf_sum(w, (double)wrong + (double)(c->dst_bytes - visited));
}
