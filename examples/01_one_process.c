/*
 * One tensor, one call, one process.
 *
 * Four threads play four ranks. A 6 x 8 matrix is split by rows over all four of them, a mesh of
 * shape (4). Afterwards it is split over a (2,2) mesh of the same ranks: rows over the first axis,
 * columns over the second. Each rank fills its source part with the global index of every element,
 * so that it can check its destination part alone.
 *
 *   cc 01_one_process.c $(pkg-config --cflags --libs xfer) -lpthread && ./a.out
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <xfer/xfer.h>

enum { N_RANKS = 4, ROWS = 6, COLS = 8 };

/* What all ranks share: layouts never change once made. */
static xfer_layout *src_layout;
static xfer_layout *dst_layout;

static void need(xfer_status st, const char *what)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, xfer_status_name(st), xfer_last_error());
  exit(1);
}

static xfer_layout *make_layout(const int *mesh_shape, int n_axes, const xfer_placement *placements)
{
  const int64_t shape[2] = {ROWS, COLS};
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_mesh *mesh = NULL;
  xfer_layout *layout = NULL;

  need(xfer_mesh_create(&mesh, mesh_shape, n_axes, NULL), "mesh"); /* NULL: ranks 0, 1, 2, 3 */
  desc.mesh = mesh;
  desc.dtype = XFER_F32;
  desc.n_dims = 2;
  desc.shape = shape;
  desc.placements = placements;
  desc.n_placements = n_axes;
  need(xfer_layout_create(&layout, &desc), "layout");
  xfer_mesh_destroy(mesh); /* the layout has its own copy */
  return layout;
}

/* The global index of element (i, j) of a rank's part: walk the runs of each dim. */
static float expected(const xfer_layout *layout, int rank, const int64_t local[2])
{
  int64_t global[2] = {0, 0};

  for (int d = 0; d < 2; d++) {
    xfer_run runs[8];
    size_t n_runs = 0;

    need(xfer_layout_runs(layout, rank, d, runs, 8, &n_runs), "runs");
    for (size_t r = 0; r < n_runs; r++)
      if (local[d] >= runs[r].local && local[d] < runs[r].local + runs[r].length)
        global[d] = runs[r].global + local[d] - runs[r].local;
  }
  return (float)(global[0] * COLS + global[1]);
}

/* Fill a part with what it should hold, or count the elements that are wrong. */
static int visit(const xfer_layout *layout, int rank, float *part, int fill)
{
  int64_t shape[2];
  int n_wrong = 0;

  need(xfer_layout_local_shape(layout, rank, shape), "local shape");
  for (int64_t i = 0; i < shape[0]; i++)
    for (int64_t j = 0; j < shape[1]; j++) {
      const int64_t local[2] = {i, j};
      float *element = &part[i * shape[1] + j];

      if (fill) *element = expected(layout, rank, local);
      n_wrong += *element != expected(layout, rank, local);
    }
  return n_wrong;
}

static void *run_rank(void *arg)
{
  xfer_comm *comm = (xfer_comm *)arg;
  const int rank = xfer_comm_rank(comm);
  float src[ROWS * COLS] = {0}; /* large enough for any part */
  float dst[ROWS * COLS] = {0};
  const xfer_view src_view = xfer_view_dense(src);
  const xfer_view dst_view = xfer_view_dense(dst);

  (void)visit(src_layout, rank, src, 1);
  need(xfer_redistribute(comm, src_layout, &src_view, dst_layout, &dst_view, NULL), "redistribute");
  const int n_wrong = visit(dst_layout, rank, dst, 0);
  printf("rank %d: first element %g, %d wrong\n", rank, (double)dst[0], n_wrong);
  xfer_comm_destroy(comm);
  return n_wrong == 0 ? NULL : arg;
}

int main(void)
{
  const int row_mesh[1] = {4};
  const int square_mesh[2] = {2, 2};
  const xfer_placement by_rows[1] = {xfer_shard(0)};
  const xfer_placement by_both[2] = {xfer_shard(0), xfer_shard(1)};
  xfer_comm *comms[N_RANKS];
  pthread_t threads[N_RANKS];
  int failed = 0;

  src_layout = make_layout(row_mesh, 1, by_rows);
  dst_layout = make_layout(square_mesh, 2, by_both);
  need(xfer_comm_create_local(comms, N_RANKS), "comm");
  for (int r = 0; r < N_RANKS; r++)
    if (pthread_create(&threads[r], NULL, run_rank, comms[r]) != 0) return 1;
  for (int r = 0; r < N_RANKS; r++) {
    void *wrong = NULL;

    pthread_join(threads[r], &wrong);
    failed += wrong != NULL;
  }
  xfer_layout_destroy(src_layout);
  xfer_layout_destroy(dst_layout);
  printf(failed == 0 ? "ok\n" : "FAILED\n");
  return failed == 0 ? 0 : 1;
}
