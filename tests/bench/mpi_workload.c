#include "mpi_workload.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void workload_need(xfer_status st, const char *what)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, xfer_status_name(st), xfer_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

void *workload_room(size_t n_bytes)
{
  void *memory = malloc(n_bytes + 1);

  if (memory == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  memset(memory, 0, n_bytes); /* touched before it is timed */
  return memory;
}

/* ---- boxes ---- */

int64_t workload_elems(const workload *w, const box *b)
{
  int64_t n = 1;

  for (int d = 0; d < w->n_dims; d++)
    n *= b->hi[d] > b->lo[d] ? b->hi[d] - b->lo[d] : 0;
  return n;
}

static box box_of(const workload *w, int side, int rank)
{
  box b = {{0}, {0}};
  int64_t bounds[2 * MAX_DIMS];
  size_t n = 0;

  if (xfer_layout_boxes(w->layouts[side], rank, bounds, 1, &n) != XFER_OK || n != 1) return b;
  for (int d = 0; d < w->n_dims; d++) {
    b.lo[d] = bounds[d];
    b.hi[d] = bounds[w->n_dims + d];
  }
  return b;
}

void workload_hold(workload *w)
{
  workload_need(xfer_problem_parse(&w->layouts[SRC], &w->layouts[DST], w->line), w->line);
  w->n_dims = xfer_layout_shape(w->layouts[SRC], NULL);
  for (int side = SRC; side <= DST; side++) {
    for (int r = 0; r < w->size; r++)
      w->boxes[side][r] = box_of(w, side, r);
    w->part_bytes[side] = (size_t)workload_elems(w, &w->boxes[side][w->rank]) * sizeof(float);
    w->arrays[side] = workload_room((size_t)w->n_tensors * w->part_bytes[side]);
  }
}

void workload_free(workload *w)
{
  for (int side = SRC; side <= DST; side++) {
    xfer_layout_destroy(w->layouts[side]);
    free(w->arrays[side]);
  }
}

box workload_common(const workload *w, int from, int to)
{
  const box *a = &w->boxes[SRC][from];
  const box *b = &w->boxes[DST][to];
  box both = {{0}, {0}};

  for (int d = 0; d < w->n_dims; d++) {
    both.lo[d] = a->lo[d] > b->lo[d] ? a->lo[d] : b->lo[d];
    both.hi[d] = a->hi[d] < b->hi[d] ? a->hi[d] : b->hi[d];
  }
  return both;
}

/* Bytes between neighbours in each dim of a dense box; the place of `at` in it. */
static int64_t strides_of(const workload *w, const box *b, const box *at, int64_t *strides)
{
  int64_t stride = (int64_t)sizeof(float);
  int64_t offset = 0;

  for (int d = w->n_dims - 1; d >= 0; d--) {
    strides[d] = stride;
    offset += (at->lo[d] - b->lo[d]) * stride;
    stride *= b->hi[d] - b->lo[d];
  }
  return offset;
}

void workload_copy(const workload *w, const box *part, char *dst, const box *in_dst,
                   const char *src, const box *in_src)
{
  int64_t to[MAX_DIMS];
  int64_t from[MAX_DIMS];
  int64_t n[MAX_DIMS] = {1, 1, 1};
  int64_t run = (int64_t)sizeof(float);
  int last = w->n_dims - 1;

  dst += strides_of(w, in_dst, part, to);
  src += strides_of(w, in_src, part, from);
  for (; last >= 0 && to[last] == run && from[last] == run; last--)
    run *= part->hi[last] - part->lo[last];
  for (int d = last, k = MAX_DIMS - 1; d >= 0; d--, k--) { /* at the end, so that loops are three */
    n[k] = part->hi[d] - part->lo[d];
    to[k] = to[d];
    from[k] = from[d];
  }
  for (int k = 0; k < MAX_DIMS; k++)
    if (n[k] == 1) to[k] = from[k] = 0;
  for (int64_t i = 0; i < n[0]; i++)
    for (int64_t j = 0; j < n[1]; j++)
      for (int64_t k = 0; k < n[2]; k++)
        memcpy(dst + i * to[0] + j * to[1] + k * to[2],
               src + i * from[0] + j * from[1] + k * from[2], (size_t)run);
}

/* ---- values ---- */

static float value(uint64_t tensor, uint64_t index, uint64_t round)
{
  return (float)((tensor * 31 + index + round * 7919) % 16777213);
}

int workload_visit(const workload *w, int side, uint64_t round)
{
  const box *b = &w->boxes[side][w->rank];
  const int64_t n = workload_elems(w, b);
  int64_t shape[MAX_DIMS];
  int n_wrong = 0;

  (void)xfer_layout_shape(w->layouts[side], shape);
  for (int t = 0; t < w->n_tensors; t++) {
    float *at = (float *)(void *)(w->arrays[side] + (size_t)t * w->part_bytes[side]);

    for (int64_t i = 0; i < n; i++) {
      int64_t index = 0;
      int64_t left = i;
      int64_t place[MAX_DIMS];

      for (int d = w->n_dims - 1; d >= 0; left /= b->hi[d] - b->lo[d], d--)
        place[d] = b->lo[d] + left % (b->hi[d] - b->lo[d]);
      for (int d = 0; d < w->n_dims; d++)
        index = index * shape[d] + place[d];
      if (side == SRC)
        at[i] = value((uint64_t)t, (uint64_t)index, round);
      else
        n_wrong += at[i] != value((uint64_t)t, (uint64_t)index, round);
    }
  }
  return n_wrong;
}
