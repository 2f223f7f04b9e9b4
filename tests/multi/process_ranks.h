/* The ranks of MPI in tests by the public API alone, over memory of their host, over MPI, or over
 * MPI as if the last rank were on a host of its own. For one file of a program. */
#ifndef XFER_TEST_PROCESS_RANKS_H
#define XFER_TEST_PROCESS_RANKS_H

#include "mpi_barrier.h"

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

typedef enum means { BY_HOST, BY_MPI, BY_HOSTS, N_MEANS } means;

static means by; /* of the comm that is made */

/* In place of MPI's: which ranks share memory. */
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *made)
{
  if (by == BY_HOSTS) return PMPI_Comm_split(comm, rank == size - 1, key, made);
  return PMPI_Comm_split_type(comm, type, key, info, made);
}

static xfer_comm *comm_of(means wanted)
{
  xfer_comm *comm = NULL;

  by = wanted;
  if ((by == BY_HOST ? xfer_comm_create_host(&comm, gather, NULL, rank, size)
                     : xfer_comm_create_mpi(&comm, MPI_COMM_WORLD)) != XFER_OK)
    MPI_Abort(MPI_COMM_WORLD, 1);
  return comm;
}

/* A committed plan of one tensor by a problem line. timeout_ms 0: the comm's. */
static xfer_plan *plan_of_line(xfer_comm *comm, const char *line, void *from, void *to,
                               uint32_t lane, uint64_t timeout_ms)
{
  const xfer_view views[2] = {xfer_view_dense(from), xfer_view_dense(to)};
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor tensor = {"t", NULL, NULL, {0}};
  xfer_layout *layouts[2] = {NULL, NULL};
  xfer_plan *plan = NULL;

  NEED(xfer_problem_parse(&layouts[0], &layouts[1], line) == XFER_OK);
  tensor.src = layouts[0];
  tensor.dst = layouts[1];
  options.lane = lane;
  options.timeout_ms = timeout_ms;
  NEED(xfer_plan_create(&plan, comm, &tensor, 1, &options) == XFER_OK);
  NEED(xfer_plan_bind(plan, 0, &views[0], &views[1]) == XFER_OK);
  NEED(xfer_plan_commit(plan) == XFER_OK);
  xfer_layout_destroy(layouts[0]);
  xfer_layout_destroy(layouts[1]);
  return plan;
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
