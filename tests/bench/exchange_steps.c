/*
 * What an exchange costs: exchange_steps [OPERATIONS [RANKS [BYTES [REPEATS]]]]. So many operations
 * of so many bytes in all, from each rank to each other in turn. Prints milliseconds, the medians
 * of the slowest rank's: wall time and CPU time. Ranks are threads, or with MPI processes.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef OVER_MPI
#include <mpi.h>
#include <xfer/mpi.h>
#endif
#include <xfer/xfer.h>

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
  xfer_comm *comm;
  int rank;
  int n;
  xfer_operation *sends, *recvs;
  xfer_view *views[2];
  char *memory[2];
  double (*ms)[N_STEPS][2]; /* [repeats] wall, CPU */
} rank_data;

static double clock_ms(clockid_t clock)
{
  struct timespec t;

  (void)clock_gettime(clock, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void must(xfer_status st)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "exchange_steps: %s: %s\n", xfer_status_name(st), xfer_last_error());
  exit(1);
}

static void prepare(rank_data *r)
{
  const int others = n_ranks - 1;
  size_t room;

  r->n = n_operations / n_ranks;
  room = (size_t)r->n * (size_t)n_bytes + 4096;
  r->sends = calloc((size_t)r->n, sizeof *r->sends);
  r->recvs = calloc((size_t)r->n, sizeof *r->recvs);
  r->ms = calloc((size_t)repeats, sizeof *r->ms);
  for (int side = 0; side < 2; side++) {
    r->views[side] = calloc((size_t)r->n, sizeof *r->views[side]);
    r->memory[side] = malloc(room);
    if (r->views[side] == NULL || r->memory[side] == NULL) abort();
    memset(r->memory[side], side, room);
  }
  if (r->sends == NULL || r->recvs == NULL || r->ms == NULL) abort();
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

static void come_together(const rank_data *r)
{
  char all[MAX_RANKS];

  must(xfer_comm_all_gather(r->comm, all, "", 1));
}

#define STEP(step, call)                                                                           \
  do {                                                                                             \
    come_together(r);                                                                              \
    const double wall = clock_ms(CLOCK_MONOTONIC), cpu = clock_ms(CLOCK_THREAD_CPUTIME_ID);        \
    call;                                                                                          \
    r->ms[i][step][0] = clock_ms(CLOCK_MONOTONIC) - wall;                                          \
    r->ms[i][step][1] = clock_ms(CLOCK_THREAD_CPUTIME_ID) - cpu;                                   \
  } while (0)

static void *measure(void *context)
{
  rank_data *r = context;
  const size_t n = (size_t)r->n;

  for (int i = 0; i < repeats; i++) {
    xfer_plan *plan = NULL;

    place(r, 0);
    STEP(CREATE, must(xfer_plan_create_exchange(&plan, r->comm, r->sends, n, r->recvs, n, NULL)));
    STEP(BIND, must(xfer_plan_bind_exchange(plan, r->views[0], r->views[1])));
    STEP(COMMIT, must(xfer_plan_commit(plan)));
    STEP(RUN, must(xfer_plan_run(plan, 1, NULL)); must(xfer_plan_wait(plan, 0)));
    place(r, 64 + 8 * i);
    STEP(REBIND, must(xfer_plan_bind_exchange(plan, r->views[0], r->views[1])));
    STEP(RECOMMIT, must(xfer_plan_commit(plan)));
    xfer_plan_destroy(plan);
    if (i == 0) /* this one plans */
      must(xfer_exchange(r->comm, r->sends, r->views[0], n, r->recvs, r->views[1], n, NULL));
    place(r, 128 + 8 * i);
    STEP(ONE_CALL,
         must(xfer_exchange(r->comm, r->sends, r->views[0], n, r->recvs, r->views[1], n, NULL)));
  }
  return NULL;
}

static int by_value(const void *a, const void *b)
{
  const double *x = a;
  const double *y = b;

  return (*x > *y) - (*x < *y);
}

static void report(rank_data *ranks)
{
  double *slowest = calloc((size_t)repeats, sizeof *slowest);

  if (slowest == NULL) abort();
  printf("%d operations of %d bytes between %d ranks: wall and CPU ms of the slowest rank, medians "
         "of %d\n",
         n_operations, n_bytes, n_ranks, repeats);
  for (int step = 0; step < N_STEPS; step++) {
    double median[2];

    for (int k = 0; k < 2; k++) {
      for (int i = 0; i < repeats; i++) {
        slowest[i] = 0;
        for (int r = 0; r < n_ranks; r++)
          if (ranks[r].ms[i][step][k] > slowest[i]) slowest[i] = ranks[r].ms[i][step][k];
      }
      qsort(slowest, (size_t)repeats, sizeof *slowest, by_value);
      median[k] = slowest[repeats / 2];
    }
    printf("  %-36s %8.3f %8.3f\n", names[step], median[0], median[1]);
  }
  free(slowest);
}

static void go(rank_data *ranks)
{
#ifdef OVER_MPI
  rank_data mine = {0};

  (void)MPI_Comm_rank(MPI_COMM_WORLD, &mine.rank);
  must(xfer_comm_create_mpi(&mine.comm, MPI_COMM_WORLD));
  prepare(&mine);
  (void)measure(&mine);
  for (int r = 0; r < n_ranks; r++) {
    ranks[r].ms = calloc((size_t)repeats, sizeof *mine.ms);
    if (ranks[r].ms == NULL) abort();
    if (r == mine.rank) memcpy(ranks[r].ms, mine.ms, (size_t)repeats * sizeof *mine.ms);
    (void)MPI_Bcast(ranks[r].ms, repeats * N_STEPS * 2, MPI_DOUBLE, r, MPI_COMM_WORLD);
  }
  if (mine.rank == 0) report(ranks);
  xfer_comm_destroy(mine.comm);
#else
  xfer_comm *comms[MAX_RANKS];
  pthread_t threads[MAX_RANKS];

  must(xfer_comm_create_local(comms, n_ranks));
  for (int r = 0; r < n_ranks; r++) {
    ranks[r].comm = comms[r];
    ranks[r].rank = r;
    prepare(&ranks[r]);
  }
  for (int r = 0; r < n_ranks; r++)
    if (pthread_create(&threads[r], NULL, measure, &ranks[r]) != 0) abort();
  for (int r = 0; r < n_ranks; r++)
    (void)pthread_join(threads[r], NULL);
  report(ranks);
  for (int r = 0; r < n_ranks; r++)
    xfer_comm_destroy(comms[r]);
#endif
}

int main(int argc, char **argv)
{
  int *const settings[] = {&n_operations, &n_ranks, &n_bytes, &repeats};
  static rank_data ranks[MAX_RANKS];

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
  go(ranks);
#ifdef OVER_MPI
  (void)MPI_Finalize();
#endif
  return 0;
}
