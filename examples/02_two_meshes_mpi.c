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

enum { N_TENSORS = 4, N_STEPS = 3 };

/* What each tensor looks like, and what each side does to it: S0 splits rows, S1 columns. */
static const struct {
  const char *name, *tensor, *src, *dst;
} model[N_TENSORS] = {
    {"embed", "f64[1000,32]", "S0", "S0"},
    {"up", "f64[96,32]", "S0", "S1"},
    {"down", "f64[32,96]", "S1", "S1"},
    {"norm", "f64[1,32]", "R", "R"},
};

static void need(xfer_status st, const char *what)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, xfer_status_name(st), xfer_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

/* Set this rank's part of tensor t to what it is at `step`, or count what differs. */
static int visit(int t, const xfer_layout *layout, int rank, double *part, int step, int fill)
{
  const size_t n = xfer_layout_local_bytes(layout, rank) / sizeof *part; /* 0: it has none */
  int n_wrong = 0;

  for (size_t i = 0; i < n; i++) {
    int64_t index[2];

    need(xfer_layout_global_index(layout, rank, (int64_t)i, index), "index");
    const double value = 1e6 * (10 * step + t) + (double)(1000 * index[0] + index[1]);
    if (fill) part[i] = value;
    n_wrong += part[i] != value;
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
  char line[128];

  MPI_Init(&argc, &argv);
  if (argc > 1) {
    fprintf(stderr, "usage: mpiexec -n RANKS %s\n", argv[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int n_src = size > 1 ? size / 2 : 1; /* alone, rank 0 plays both parts */
  const int first_dst = size / 2;

  need(xfer_comm_create_mpi(&comm, MPI_COMM_WORLD), "comm");
  for (int t = 0; t < N_TENSORS; t++) { /* as "f64[1000,32] (3)@0-2:S0 -> (3)@3-5:S1" */
    snprintf(line, sizeof line, "%s (%d)@0-%d:%s -> (%d)@%d-%d:%s", model[t].tensor, n_src,
             n_src - 1, model[t].src, size - first_dst, first_dst, size - 1, model[t].dst);
    need(xfer_problem_parse(&src[t], &dst[t], line), line);
    tensors[t] = (xfer_tensor){model[t].name, src[t], dst[t], {0}};
  }
  need(xfer_plan_create(&plan, comm, tensors, N_TENSORS, NULL), "plan");
  for (int t = 0; t < N_TENSORS; t++) {
    src_parts[t] = malloc(xfer_layout_local_bytes(src[t], rank)); /* 0 where it has no part */
    dst_parts[t] = malloc(xfer_layout_local_bytes(dst[t], rank));
    const xfer_view src_view = xfer_view_dense(src_parts[t]);
    const xfer_view dst_view = xfer_view_dense(dst_parts[t]);
    need(xfer_plan_bind(plan, (size_t)t, &src_view, &dst_view), "bind");
  }
  need(xfer_plan_commit(plan), "commit");

  for (int step = 1; step <= N_STEPS; step++) {
    for (int t = 0; t < N_TENSORS; t++)
      (void)visit(t, src[t], rank, src_parts[t], step, 1); /* "train" */
    need(xfer_plan_run(plan, (uint64_t)step, NULL), "run");
    need(xfer_plan_wait(plan, 0), "wait");
    for (int t = 0; t < N_TENSORS; t++)
      n_wrong += visit(t, dst[t], rank, dst_parts[t], step, 0);
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
