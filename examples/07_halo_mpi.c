/*
 * A halo exchange under MPI: sends and receives that each rank lists, with strided arrays.
 *
 * A periodic grid is divided among the ranks of a 2-D Cartesian communicator. Each holds a block of
 * N x N cells with a frame of one cell, its halo, which at every step receives the outermost cells
 * of the four neighbours: rows are contiguous, columns are strided. The exchange is planned and
 * committed once; each step is one xfer_plan_run(). A cell is a function of the step and its place
 * in the grid, so that each rank checks its halo by itself.
 *
 *   mpicc 07_halo_mpi.c $(pkg-config --cflags --libs xfer_mpi) && mpiexec -n 6 ./a.out
 */
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>
#include <xfer/mpi.h>
#include <xfer/xfer.h>

enum { N = 5, WIDTH = N + 2, N_STEPS = 3, N_SIDES = 4 };

/* The sides of a block, as steps in rows and columns; side ^ 1 is the opposite one. */
static const int way[N_SIDES][2] = {{-1, 0}, {1, 0}, {0, -1}, {0, 1}};

static void need(xfer_status st, const char *what)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, xfer_status_name(st), xfer_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

/* The row (dim 0) or column (dim 1) where a side's N cells begin: of the halo, or of the block's
 * own outermost cells. */
static int first(int side, int dim, int is_halo)
{
  if (way[side][dim] < 0) return is_halo ? 0 : 1;
  if (way[side][dim] > 0) return is_halo ? N + 1 : N;
  return 1;
}

/* A view of these cells. */
static xfer_view cells(double *block, int side, int is_halo)
{
  const int64_t along_row[1] = {sizeof *block};
  const int64_t along_column[1] = {WIDTH * (int64_t)sizeof *block};
  double *at = block + (ptrdiff_t)first(side, 0, is_halo) * WIDTH + first(side, 1, is_halo);

  return xfer_view_strided(at, way[side][0] != 0 ? along_row : along_column, 1);
}

/* The cell at (row, column) of the block at `place`, which may lie in its halo. */
static double cell(int step, const int n_blocks[2], const int place[2], int row, int column)
{
  const int n_rows = n_blocks[0] * N, n_columns = n_blocks[1] * N;
  const int y = (place[0] * N + row - 1 + n_rows) % n_rows;
  const int x = (place[1] * N + column - 1 + n_columns) % n_columns;

  return 1e6 * step + 1e3 * y + x;
}

int main(int argc, char **argv)
{
  const int periods[2] = {1, 1};
  int rank, size, n_blocks[2] = {0, 0}, place[2], n_wrong = 0, n_wrong_all = 0;
  MPI_Comm grid;
  xfer_comm *comm = NULL;
  xfer_plan *plan = NULL;
  xfer_operation sends[N_SIDES], recvs[N_SIDES];
  xfer_view from[N_SIDES], into[N_SIDES];
  static double block[WIDTH * WIDTH];

  MPI_Init(&argc, &argv);
  if (argc > 1) {
    fprintf(stderr, "usage: mpiexec -n RANKS %s\n", argv[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Dims_create(size, 2, n_blocks);
  MPI_Cart_create(MPI_COMM_WORLD, 2, n_blocks, periods, 0, &grid);
  MPI_Comm_rank(grid, &rank);
  MPI_Cart_coords(grid, rank, 2, place);
  need(xfer_comm_create_mpi(&comm, grid), "comm");
  for (int s = 0; s < N_SIDES; s++) { /* what goes out on a side arrives on the opposite one */
    const int neighbour[2] = {place[0] + way[s][0], place[1] + way[s][1]};
    int peer;

    MPI_Cart_rank(grid, neighbour, &peer);
    sends[s] = (xfer_operation){(uint64_t)s, peer, XFER_F64, 1, 0, {N}};
    recvs[s] = (xfer_operation){(uint64_t)s ^ 1, peer, XFER_F64, 1, 0, {N}};
    from[s] = cells(block, s, 0);
    into[s] = cells(block, s, 1);
  }
  need(xfer_plan_create_exchange(&plan, comm, sends, N_SIDES, recvs, N_SIDES, NULL), "plan");
  need(xfer_plan_bind_exchange(plan, from, into), "bind");
  need(xfer_plan_commit(plan), "commit");

  for (int step = 1; step <= N_STEPS; step++) {
    for (int row = 1; row <= N; row++) /* "compute" */
      for (int column = 1; column <= N; column++)
        block[row * WIDTH + column] = cell(step, n_blocks, place, row, column);
    need(xfer_plan_run(plan, (uint64_t)step, NULL), "run");
    need(xfer_plan_wait(plan, 0), "wait");
    for (int row = 0; row < WIDTH; row++)
      for (int column = 0; column < WIDTH; column++)
        if (row % (N + 1) != 0 || column % (N + 1) != 0) /* corners are not exchanged */
          n_wrong += block[row * WIDTH + column] != cell(step, n_blocks, place, row, column);
  }

  MPI_Allreduce(&n_wrong, &n_wrong_all, 1, MPI_INT, MPI_SUM, grid);
  if (rank == 0)
    printf("%d x %d blocks, %d steps: %d cells wrong\n", n_blocks[0], n_blocks[1], N_STEPS,
           n_wrong_all);
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
  MPI_Comm_free(&grid);
  MPI_Finalize();
  return n_wrong_all == 0 ? 0 : 1;
}
