/* What measurements on hosts share: calls that must not fail, clocks, medians, ranks that are
 * threads, and steps that all of them take. */
#ifndef HOST_BENCH_H
#define HOST_BENCH_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <xfer/xfer.h>

/* Ends the program with the library's words. */
#define OK(call)                                                                                   \
  do {                                                                                             \
    const xfer_status ok_status = call;                                                            \
    if (ok_status != XFER_OK) {                                                                    \
      fprintf(stderr, "%s: %s: %s\n", #call, xfer_status_name(ok_status), xfer_last_error());      \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

/* Zeroed. */
static inline void *room(size_t n, size_t size)
{
  void *memory = calloc(n > 0 ? n : 1, size);

  if (memory == NULL) abort();
  return memory;
}

static inline double clock_ms(clockid_t clock)
{
  struct timespec t;

  (void)clock_gettime(clock, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static inline int ascending(const void *a, const void *b)
{
  const double x = *(const double *)a;
  const double y = *(const double *)b;

  return (x > y) - (x < y);
}

/* Sorts them. */
static inline double median(double *values, int n)
{
  qsort(values, (size_t)n, sizeof *values, ascending);
  return values[n / 2];
}

/* ---- ranks -------------------------------------------------------------------------------- */

typedef struct rank_thread {
  pthread_t thread;
  xfer_comm *comm;
  int rank;
  void (*work)(xfer_comm *comm, int rank);
} rank_thread;

static inline void *rank_main(void *argument)
{
  const rank_thread *r = argument;

  r->work(r->comm, r->rank);
  return NULL;
}

/* work() on a thread for each rank. */
static inline void run_ranks(int n_ranks, void (*work)(xfer_comm *comm, int rank))
{
  rank_thread *ranks = room((size_t)n_ranks, sizeof *ranks);
  xfer_comm **comms = room((size_t)n_ranks, sizeof(xfer_comm *));

  OK(xfer_comm_create_local(comms, n_ranks));
  for (int r = 0; r < n_ranks; r++) {
    ranks[r] = (rank_thread){.comm = comms[r], .rank = r, .work = work};
    if (pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]) != 0) abort();
  }
  for (int r = 0; r < n_ranks; r++)
    (void)pthread_join(ranks[r].thread, NULL);
  for (int r = 0; r < n_ranks; r++)
    xfer_comm_destroy(comms[r]);
  free(comms);
  free(ranks);
}

/* All ranks come, then all go. */
static inline void come_together(xfer_comm *comm)
{
  char *all = room((size_t)xfer_comm_size(comm), 1);

  OK(xfer_comm_all_gather(comm, all, "", 1));
  free(all);
}

/* ---- steps -------------------------------------------------------------------------------- */

/* On one rank, milliseconds: wall and CPU time of the thread. */
typedef struct took {
  double ms[2];
} took;

/* All ranks begin it at once. */
#define STEP(took, comm, call)                                                                     \
  do {                                                                                             \
    come_together(comm);                                                                           \
    const double wall = clock_ms(CLOCK_MONOTONIC), cpu = clock_ms(CLOCK_THREAD_CPUTIME_ID);        \
    call;                                                                                          \
    (took)->ms[0] = clock_ms(CLOCK_MONOTONIC) - wall;                                              \
    (took)->ms[1] = clock_ms(CLOCK_THREAD_CPUTIME_ID) - cpu;                                       \
  } while (0)

/* A line for each step: medians of what it took on the slowest rank. steps[rank] has shape
 * [n_times][n_steps]; all 0: was not taken that time. */
static inline void print_steps(const char *const *names, int n_steps, took *const *steps,
                               int n_ranks, int n_times)
{
  double *slowest = room((size_t)n_times, sizeof *slowest);

  for (int step = 0; step < n_steps; step++) {
    printf("  %-36s", names[step]);
    for (int k = 0; k < 2; k++) {
      int n = 0;

      for (int i = 0; i < n_times; i++) {
        slowest[n] = 0;
        for (int r = 0; r < n_ranks; r++) {
          const double ms = steps[r][i * n_steps + step].ms[k];

          if (ms > slowest[n]) slowest[n] = ms;
        }
        n += slowest[n] > 0;
      }
      printf(" %9.4f", n > 0 ? median(slowest, n) : 0);
    }
    printf("\n");
  }
  free(slowest);
}

#endif
