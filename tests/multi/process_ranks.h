/* The ranks of MPI in tests by the public API alone, over MPI itself or over memory of their host.
 * For one file of a program. */
#ifndef XFER_TEST_PROCESS_RANKS_H
#define XFER_TEST_PROCESS_RANKS_H

#include <stdbool.h>
#include <stdio.h>

#include <mpi.h>

#include <xfer/mpi.h>

static int rank, size;
static int failed;

static void need(bool condition, int line)
{
  if (condition) return;
  fprintf(stderr, "rank %d, line %d: not so: %s\n", rank, line, xfer_last_error());
  failed++;
}
#define NEED(condition) need(condition, __LINE__)

static int gather(void *context, void *all, const void *mine, size_t n_bytes)
{
  (void)context;
  return MPI_Allgather(mine, (int)n_bytes, MPI_BYTE, all, (int)n_bytes, MPI_BYTE, MPI_COMM_WORLD);
}

static xfer_comm *comm_of(bool over_mpi)
{
  xfer_comm *comm = NULL;

  if ((over_mpi ? xfer_comm_create_mpi(&comm, MPI_COMM_WORLD)
                : xfer_comm_create_host(&comm, gather, NULL, rank, size)) != XFER_OK)
    MPI_Abort(MPI_COMM_WORLD, 1);
  return comm;
}

/* main() of all ranks: 0 if nothing failed on any. */
static int with_ranks(int argc, char **argv, void (*work)(void))
{
  int level = MPI_THREAD_SINGLE;

  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) return 1;
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
  work();
  (void)MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  (void)MPI_Finalize();
  return failed == 0 ? 0 : 1;
}

#endif
