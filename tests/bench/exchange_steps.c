/*
 * What an exchange costs: exchange_steps [OPERATIONS [RANKS [BYTES [REPEATS]]]]. So many operations
 * of so many bytes in all, from each rank to each other in turn. Prints milliseconds, the medians
 * of the slowest rank's: wall time and CPU time. Ranks are threads, or with MPI processes.
 */
#include "bench.h"

#include <string.h>

#ifdef OVER_MPI
#include <mpi.h>
#include <xfer/mpi.h>
#endif

enum { CREATE, BIND, COMMIT, RUN, REBIND, RECOMMIT, ONE_CALL, N_STEPS, MAX_RANKS = 16 };
static const char *const names[] = {"create, agreement and planning",
                                    "bind all",
                                    "commit",
                                    "run and wait",
                                    "bind all at other addresses",
                                    "commit after it",
                                    "xfer_exchange() at other addresses"};

static int n_operations = 10000, n_ranks = 4, n_bytes = 64, repeats = 21;

typedef struct rank_data {
  int rank;
  int n;
  xfer_operation *sends, *recvs;
  xfer_view *views[2];
  char *memory[2];
} rank_data;

static took *steps[MAX_RANKS]; /* [repeats][N_STEPS] each */

static void prepare(rank_data *r)
{
  const int others = n_ranks - 1;
  size_t n_room;

  r->n = n_operations / n_ranks;
  n_room = (size_t)r->n * (size_t)n_bytes + 4096;
  r->sends = room((size_t)r->n, sizeof *r->sends);
  r->recvs = room((size_t)r->n, sizeof *r->recvs);
  for (int side = 0; side < 2; side++) {
    r->views[side] = room((size_t)r->n, sizeof *r->views[side]);
    r->memory[side] = room(n_room, 1);
    memset(r->memory[side], side + 1, n_room); /* touched before it is timed */
  }
  for (int k = 0; k < r->n; k++) {
    const int to = (r->rank + 1 + k % others) % n_ranks;
    const int from = (r->rank + n_ranks - 1 - k % others) % n_ranks;

    r->sends[k] = xfer_operation_bytes((uint64_t)k, to, (size_t)n_bytes);
    r->recvs[k] = xfer_operation_bytes((uint64_t)k, from, (size_t)n_bytes);
  }
}

static void place(rank_data *r, int shift)
{
  for (int side = 0; side < 2; side++)
    for (int k = 0; k < r->n; k++)
      r->views[side][k] =
          xfer_view_dense(r->memory[side] + shift % 4096 + (size_t)k * (size_t)n_bytes);
}

static void measure(xfer_comm *comm, int rank)
{
  rank_data data = {.rank = rank};
  rank_data *r = &data;

  prepare(r);
  const size_t n = (size_t)r->n;
  for (int i = 0; i < repeats; i++) {
    took *to = steps[rank] + (size_t)i * N_STEPS;
    xfer_plan *plan = NULL;

    place(r, 0);
    STEP(&to[CREATE], comm,
         OK(xfer_plan_create_exchange(&plan, comm, r->sends, n, r->recvs, n, NULL)));
    STEP(&to[BIND], comm, OK(xfer_plan_bind_exchange(plan, r->views[0], r->views[1])));
    STEP(&to[COMMIT], comm, OK(xfer_plan_commit(plan)));
    STEP(&to[RUN], comm, OK(xfer_plan_run(plan, 1, NULL)); OK(xfer_plan_wait(plan, 0)));
    place(r, 64 + 8 * i);
    STEP(&to[REBIND], comm, OK(xfer_plan_bind_exchange(plan, r->views[0], r->views[1])));
    STEP(&to[RECOMMIT], comm, OK(xfer_plan_commit(plan)));
    xfer_plan_destroy(plan);
    if (i == 0) /* this one plans */
      OK(xfer_exchange(comm, r->sends, r->views[0], n, r->recvs, r->views[1], n, NULL));
    place(r, 128 + 8 * i);
    STEP(&to[ONE_CALL], comm,
         OK(xfer_exchange(comm, r->sends, r->views[0], n, r->recvs, r->views[1], n, NULL)));
  }
}

static void report(void)
{
  printf("%d operations of %d bytes between %d ranks: wall and CPU ms of the slowest rank, medians "
         "of %d\n",
         n_operations, n_bytes, n_ranks, repeats);
  print_steps(names, N_STEPS, steps, n_ranks, repeats);
}

static void go(void)
{
  for (int r = 0; r < n_ranks; r++)
    steps[r] = room((size_t)repeats * N_STEPS, sizeof *steps[r]);
#ifdef OVER_MPI
  xfer_comm *comm = NULL;

  OK(xfer_comm_create_mpi(&comm, MPI_COMM_WORLD));
  measure(comm, xfer_comm_rank(comm));
  for (int r = 0; r < n_ranks; r++)
    (void)MPI_Bcast(steps[r], repeats * N_STEPS * 2, MPI_DOUBLE, r, MPI_COMM_WORLD);
  if (xfer_comm_rank(comm) == 0) report();
  xfer_comm_destroy(comm);
#else
  run_ranks(n_ranks, measure);
  report();
#endif
}

int main(int argc, char **argv)
{
  int *const settings[] = {&n_operations, &n_ranks, &n_bytes, &repeats};

#ifdef OVER_MPI
  int level = MPI_THREAD_SINGLE;

  (void)MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
#endif
  for (int i = 1; i < argc && i <= 4; i++)
    *settings[i - 1] = atoi(argv[i]);
#ifdef OVER_MPI
  (void)MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
#endif
  if (n_ranks < 2 || n_ranks > MAX_RANKS || n_operations < n_ranks || n_bytes < 1 || repeats < 1)
    return 2;
  go();
#ifdef OVER_MPI
  (void)MPI_Finalize();
#endif
  return 0;
}
