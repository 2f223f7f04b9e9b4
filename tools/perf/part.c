/* From layouts and views to boxes: the product of the runs of each dim, cut where the view's pieces
 * end. */
#include "part.h"

#include "fill_change.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct walk {
  perf_op op;
  const xfer_view *view;
  int n_dims;
  int64_t strides[XFER_MAX_DIMS]; /* bytes */
  int64_t global_strides[XFER_MAX_DIMS];
  int64_t steps[XFER_MAX_DIMS];  /* rows of the tensor that has the numbers, for one of a dim */
  xfer_run *runs[XFER_MAX_DIMS]; /* [n_runs[d]] */
  size_t n_runs[XFER_MAX_DIMS];
  int64_t piece_length; /* indices of piece_dim; 0: one piece */
  unsigned long long *wrong;
  xfer_stream stream;
  int64_t local[XFER_MAX_DIMS]; /* the box that is being built */
  fill_box box;
} walk;

size_t perf_part_bytes(const xfer_layout *layout, int rank, int64_t *shape)
{
  int64_t sizes[XFER_MAX_DIMS] = {0};
  size_t n_bytes = xfer_dtype_size(xfer_layout_dtype(layout));
  int n_dims = xfer_layout_shape(layout, NULL);

  if (xfer_layout_local_shape(layout, rank, sizes) != XFER_OK) return 0;
  for (int d = 0; d < n_dims; d++) {
    if (shape != NULL) shape[d] = sizes[d];
    n_bytes *= (size_t)sizes[d];
  }
  return n_bytes;
}

static int box_done(walk *w)
{
  char *base = w->view->base;
  int64_t n_elems = 1;

  if (w->piece_length > 0) {
    int64_t *at = &w->local[w->view->piece_dim];
    base = w->view->pieces[*at / w->piece_length];
    *at %= w->piece_length;
  }
  w->box.base = base;
  for (int d = 0; d < w->n_dims; d++) {
    w->box.base += w->local[d] * w->strides[d];
    n_elems *= w->box.length[d];
  }
  w->box.n_elems = n_elems;
  return w->op == PERF_FILL ? fill_box_write(&w->box, w->stream)
                            : fill_box_check(&w->box, w->wrong, w->stream);
}

static int each_run(walk *w, int d, uint64_t index);

/* One run of dim d, or as much of it as lies in one piece. */
static int one_run(walk *w, int d, uint64_t seed, int64_t global, int64_t length, int64_t local)
{
  w->local[d] = local;
  w->box.length[d] = length;
  if (d >= w->n_dims - 2) w->box.first[d - w->n_dims + 2] = global * w->steps[d];
  return each_run(w, d + 1, seed + (uint64_t)(global * w->global_strides[d]));
}

static int each_run(walk *w, int d, uint64_t seed)
{
  if (d == w->n_dims) {
    int64_t kept[XFER_MAX_DIMS];
    for (int k = 0; k < w->n_dims; k++)
      kept[k] = w->local[k];
    w->box.seed = seed;
    int failed = box_done(w);
    for (int k = 0; k < w->n_dims; k++)
      w->local[k] = kept[k];
    return failed;
  }
  for (size_t i = 0; i < w->n_runs[d]; i++) {
    xfer_run run = w->runs[d][i];
    while (run.length > 0) {
      int64_t n = run.length;
      if (w->piece_length > 0 && d == w->view->piece_dim) {
        int64_t left = w->piece_length - run.local % w->piece_length;
        if (n > left) n = left;
      }
      if (one_run(w, d, seed, run.global, n, run.local) != 0) return -1;
      run.global += n;
      run.local += n;
      run.length -= n;
    }
  }
  return 0;
}

static int load_runs(walk *w, const xfer_layout *layout, int rank)
{
  for (int d = 0; d < w->n_dims; d++) {
    if (xfer_layout_runs(layout, rank, d, NULL, 0, &w->n_runs[d]) != XFER_OK) return -1;
    w->runs[d] = calloc(w->n_runs[d] + 1, sizeof *w->runs[d]);
    if (w->runs[d] == NULL) return -1;
    if (xfer_layout_runs(layout, rank, d, w->runs[d], w->n_runs[d], &w->n_runs[d]) != XFER_OK)
      return -1;
  }
  return 0;
}

int perf_part(perf_op op, const xfer_layout *layout, int rank, const xfer_view *view,
              const perf_content *content, unsigned long long *wrong, uint64_t *n_bytes,
              xfer_stream stream)
{
  walk w = {.op = op, .view = view, .wrong = wrong, .stream = stream};
  int64_t shape[XFER_MAX_DIMS] = {0};
  int64_t local[XFER_MAX_DIMS] = {0};
  int64_t stride = (int64_t)xfer_dtype_size(xfer_layout_dtype(layout));
  int64_t global_stride = 1;
  int failed = 0;

  const size_t part_bytes = perf_part_bytes(layout, rank, local);
  if (part_bytes == 0) return 0;
  w.n_dims = xfer_layout_shape(layout, shape);
  w.box = (fill_box){.n_dims = w.n_dims,
                     .elem_bytes = (int32_t)stride,
                     .change = content->change,
                     .extent = {content->extent[0], content->extent[1]}};
  for (int d = 0; d < 2 && content->change.is_scales; d++)
    shape[w.n_dims - 2 + d] = content->extent[d];
  for (int d = w.n_dims - 1; d >= 0; d--) {
    w.strides[d] = view->kind == XFER_VIEW_DENSE ? stride : view->strides[d];
    w.steps[d] = fill_change_step(&w.box.change, w.n_dims, d);
    w.global_strides[d] =
        (content->strides != NULL ? content->strides[d] : global_stride) * w.steps[d];
    w.box.stride[d] = w.strides[d];
    w.box.global_stride[d] = w.global_strides[d];
    stride *= local[d];
    global_stride *= shape[d];
  }
  if (view->kind == XFER_VIEW_PIECES) w.piece_length = local[view->piece_dim] / view->n_pieces;
  failed = load_runs(&w, layout, rank);
  if (failed != 0) fprintf(stderr, "runs: %s\n", xfer_last_error());
  if (failed == 0) failed = each_run(&w, 0, content->seed);
  if (n_bytes != NULL) *n_bytes += part_bytes;
  for (int d = 0; d < w.n_dims; d++)
    free(w.runs[d]);
  return failed;
}
