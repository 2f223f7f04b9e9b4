/*
 * Several tensors, two meshes, many steps, under MPI.
 *
 * The first half of the ranks "trains": they hold the tensors and change them at each step. The
 * second half "serves": they hold the same tensors, split otherwise. The plan is made and committed
 * once; each step is one xfer_plan_run(). A value is a function of (step, tensor, global index), so
 * that each serving rank checks all it received by itself.
 *
 *   mpicc 02_two_meshes_mpi.c $(pkg-config --cflags --libs xfer_mpi) && mpiexec -n 6 ./a.out
 */
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>
#include <xfer/mpi.h>
#include <xfer/xfer.h>

enum { N_TENSORS = 4, N_STEPS = 3, MAX_RANKS = 256 };

/* What each tensor looks like: two dims, and the dim that each side splits; -1: replicated. */
static const struct {
  const char *name;
  int64_t shape[2];
  int src_dim, dst_dim;
} model[N_TENSORS] = {
    {"embed", {1000, 32}, 0, 0},
    {"up", {96, 32}, 0, 1},
    {"down", {32, 96}, 1, 1},
    {"norm", {1, 32}, -1, -1},
};

static void need(xfer_status st, const char *what)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, xfer_status_name(st), xfer_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

/* Tensor t over the ranks first_rank .. first_rank + n_ranks - 1. */
static xfer_layout *make_layout(int t, int dim, int first_rank, int n_ranks)
{
  const xfer_placement placement = dim < 0 ? xfer_replicate() : xfer_shard(dim);
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_mesh *mesh = NULL;
  xfer_layout *layout = NULL;
  int ranks[MAX_RANKS];

  need(n_ranks > MAX_RANKS ? XFER_ERR_UNSUPPORTED : XFER_OK, "more than 256 ranks of a side");
  for (int i = 0; i < n_ranks; i++)
    ranks[i] = first_rank + i;
  need(xfer_mesh_create(&mesh, &n_ranks, 1, ranks), "mesh");
  desc.mesh = mesh;
  desc.dtype = XFER_F64;
  desc.n_dims = 2;
  desc.shape = model[t].shape;
  desc.placements = &placement;
  desc.n_placements = 1;
  need(xfer_layout_create(&layout, &desc), "layout");
  xfer_mesh_destroy(mesh);
  return layout;
}

/* This rank's part of tensor t, zeroed; NULL where it has none. */
static double *make_part(const xfer_layout *layout, int rank)
{
  int64_t shape[2];

  if (xfer_layout_local_shape(layout, rank, shape) != XFER_OK) return NULL; /* not in the mesh */
  return calloc((size_t)(shape[0] * shape[1]) + 1, sizeof(double));
}

/* Set this rank's part of tensor t to what it is at `step`, or count what differs. */
static int visit(int t, const xfer_layout *layout, int rank, double *part, int step, int fill)
{
  xfer_run rows, cols; /* one run each, since every dim is split at most once; empty: none */
  size_t n_rows = 0, n_cols = 0;
  int n_wrong = 0;

  need(xfer_layout_runs(layout, rank, 0, &rows, 1, &n_rows), "rows");
  need(xfer_layout_runs(layout, rank, 1, &cols, 1, &n_cols), "columns");
  if (n_rows == 0 || n_cols == 0) return 0;
  for (int64_t i = 0; i < rows.length; i++)
    for (int64_t j = 0; j < cols.length; j++) {
      const int64_t index = (rows.global + i) * model[t].shape[1] + cols.global + j;
      const double value = 1e6 * (10 * step + t) + (double)index;
      double *element = &part[i * cols.length + j];

      if (fill) *element = value;
      n_wrong += *element != value;
    }
  return n_wrong;
}

int main(int argc, char **argv)
{
  int rank, size, n_wrong = 0, n_wrong_all = 0;
  xfer_comm *comm = NULL;
  xfer_plan *plan = NULL;
  xfer_tensor tensors[N_TENSORS];
  xfer_layout *src[N_TENSORS], *dst[N_TENSORS];
  double *src_parts[N_TENSORS], *dst_parts[N_TENSORS];

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int n_src = size > 1 ? size / 2 : 1; /* alone, rank 0 plays both parts */
  const int first_dst = size / 2;

  need(xfer_comm_create_mpi(&comm, MPI_COMM_WORLD), "comm");
  for (int t = 0; t < N_TENSORS; t++) {
    src[t] = make_layout(t, model[t].src_dim, 0, n_src);
    dst[t] = make_layout(t, model[t].dst_dim, first_dst, size - first_dst);
    tensors[t] = (xfer_tensor){model[t].name, src[t], dst[t], 0};
  }
  need(xfer_plan_create(&plan, comm, tensors, N_TENSORS, NULL), "plan");
  for (int t = 0; t < N_TENSORS; t++) {
    src_parts[t] = make_part(src[t], rank);
    dst_parts[t] = make_part(dst[t], rank);
    const xfer_view src_view = xfer_view_dense(src_parts[t]); /* ignored on a rank without a part */
    const xfer_view dst_view = xfer_view_dense(dst_parts[t]);
    need(xfer_plan_bind(plan, (size_t)t, &src_view, &dst_view), "bind");
  }
  need(xfer_plan_commit(plan), "commit");

  for (int step = 1; step <= N_STEPS; step++) {
    for (int t = 0; t < N_TENSORS; t++)
      if (src_parts[t] != NULL) (void)visit(t, src[t], rank, src_parts[t], step, 1); /* "train" */
    need(xfer_plan_run(plan, (uint64_t)step, NULL), "run");
    need(xfer_plan_wait(plan, 0), "wait");
    for (int t = 0; t < N_TENSORS; t++)
      if (dst_parts[t] != NULL) n_wrong += visit(t, dst[t], rank, dst_parts[t], step, 0);
  }

  MPI_Allreduce(&n_wrong, &n_wrong_all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d ranks, %d steps: %d elements wrong\n", size, N_STEPS, n_wrong_all);
  xfer_plan_destroy(plan);
  for (int t = 0; t < N_TENSORS; t++) {
    xfer_layout_destroy(src[t]);
    xfer_layout_destroy(dst[t]);
    free(src_parts[t]);
    free(dst_parts[t]);
  }
  xfer_comm_destroy(comm);
  MPI_Finalize();
  return n_wrong_all == 0 ? 0 : 1;
}
