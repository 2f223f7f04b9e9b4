/*
 * Binds at other addresses and the commit after them: rebind [TENSORS [RANKS [TIMES]]]. Tensors of
 * 4 KiB a rank go from the first half of the ranks, which are threads, to the other. Prints
 * microseconds of wall and CPU time of the slowest rank, medians, and beside them those of a commit
 * that makes the lanes.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <xfer/xfer.h>

enum { MAX_RANKS = 16, PART = 4096, BIND = 0, COMMIT, MADE, N_STEPS };
static const char *const names[] = {"bind all at other addresses", "commit after it",
                                    "commit after a release"};
static int n_tensors = 500, n_ranks = 2, n_times = 1000;

typedef struct rank_data {
  xfer_comm *comm;
  int rank;
  double (*us)[N_STEPS][2];
} rank_data;

static void must(xfer_status st)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "rebind: %s: %s\n", xfer_status_name(st), xfer_last_error());
  exit(1);
}

static double clock_us(clockid_t clock)
{
  struct timespec t;

  (void)clock_gettime(clock, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static xfer_plan *make_plan(const rank_data *r)
{
  const int half = n_ranks / 2;
  xfer_tensor *tensors = calloc((size_t)n_tensors, sizeof *tensors);
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;
  char line[100];

  if (tensors == NULL) abort();
  (void)snprintf(line, sizeof line, "u8[%d] (%d):S0 -> (%d)@%d-%d:S0", half * PART, half, half,
                 half, 2 * half - 1);
  must(xfer_problem_parse(&src, &dst, line));
  for (int t = 0; t < n_tensors; t++)
    tensors[t] = (xfer_tensor){"w", src, dst, 0};
  must(xfer_plan_create(&plan, r->comm, tensors, (size_t)n_tensors, NULL));
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  free(tensors);
  return plan;
}

static void bind_all(xfer_plan *plan, const rank_data *r, char *memory)
{
  for (int t = 0; t < n_tensors; t++) {
    const xfer_view view = xfer_view_dense(memory + (size_t)t * PART);

    must(xfer_plan_bind(plan, (size_t)t, r->rank < n_ranks / 2 ? &view : NULL,
                        r->rank < n_ranks / 2 ? NULL : &view));
  }
}

#define STEP(step, call)                                                                           \
  do {                                                                                             \
    char all[MAX_RANKS];                                                                           \
    must(xfer_comm_all_gather(r->comm, all, "", 1));                                               \
    const double wall = clock_us(CLOCK_MONOTONIC), cpu = clock_us(CLOCK_THREAD_CPUTIME_ID);        \
    call;                                                                                          \
    r->us[i][step][0] = clock_us(CLOCK_MONOTONIC) - wall;                                          \
    r->us[i][step][1] = clock_us(CLOCK_THREAD_CPUTIME_ID) - cpu;                                   \
  } while (0)

static void *measure(void *context)
{
  rank_data *r = context;
  xfer_plan *plan = make_plan(r);
  char *memory = calloc((size_t)n_tensors + 1, PART);

  if (memory == NULL) abort();
  bind_all(plan, r, memory);
  must(xfer_plan_commit(plan));
  for (int i = 0; i < n_times; i++) {
    STEP(BIND, bind_all(plan, r, memory + 8 + i % 512 * 8));
    STEP(COMMIT, must(xfer_plan_commit(plan)));
    must(xfer_plan_run(plan, (uint64_t)i, NULL));
    must(xfer_plan_wait(plan, 0));
    if (i % 10 > 0) continue;
    must(xfer_plan_release(plan));
    STEP(MADE, must(xfer_plan_commit(plan)));
  }
  xfer_plan_destroy(plan);
  free(memory);
  return NULL;
}

static int by_value(const void *a, const void *b)
{
  const double *x = a;
  const double *y = b;

  return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
  int *const settings[] = {&n_tensors, &n_ranks, &n_times};
  static rank_data ranks[MAX_RANKS];
  xfer_comm *comms[MAX_RANKS];
  pthread_t threads[MAX_RANKS];
  double *slowest;

  for (int i = 1; i < argc && i <= 3; i++)
    *settings[i - 1] = atoi(argv[i]);
  if (n_ranks < 2 || n_ranks > MAX_RANKS || n_tensors < 1 || n_times < 1) return 2;
  slowest = calloc((size_t)n_times, sizeof *slowest);
  must(xfer_comm_create_local(comms, n_ranks));
  for (int r = 0; r < n_ranks; r++) {
    ranks[r] = (rank_data){comms[r], r, calloc((size_t)n_times, sizeof *ranks[r].us)};
    if (slowest == NULL || ranks[r].us == NULL) abort();
    if (pthread_create(&threads[r], NULL, measure, &ranks[r]) != 0) abort();
  }
  for (int r = 0; r < n_ranks; r++)
    (void)pthread_join(threads[r], NULL);
  printf("%d tensors, %d ranks, %d times: wall and CPU us of the slowest rank\n", n_tensors,
         n_ranks, n_times);
  for (int step = 0; step < N_STEPS; step++) {
    double median[2];

    for (int k = 0; k < 2; k++) {
      int n = 0;

      for (int i = 0; i < n_times; i++) {
        if (step == MADE && i % 10 > 0) continue;
        slowest[n] = 0;
        for (int r = 0; r < n_ranks; r++)
          if (ranks[r].us[i][step][k] > slowest[n]) slowest[n] = ranks[r].us[i][step][k];
        n++;
      }
      qsort(slowest, (size_t)n, sizeof *slowest, by_value);
      median[k] = slowest[n / 2];
    }
    printf("  %-28s %8.1f %8.1f\n", names[step], median[0], median[1]);
  }
  for (int r = 0; r < n_ranks; r++) {
    xfer_comm_destroy(comms[r]);
    free(ranks[r].us);
  }
  free(slowest);
  return 0;
}
