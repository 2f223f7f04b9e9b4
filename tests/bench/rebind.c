/*
 * Binds at other addresses and the commit after them: rebind [TENSORS [RANKS [TIMES]]]. Tensors of
 * 4 KiB a rank go from the first half of the ranks, which are threads, to the other. Prints
 * milliseconds of wall and CPU time of the slowest rank, medians, and beside them those of a commit
 * that makes the lanes.
 */
#include "bench.h"

enum { MAX_RANKS = 16, PART = 4096, BIND = 0, COMMIT, MADE, N_STEPS };
static const char *const names[] = {"bind all at other addresses", "commit after it",
                                    "commit after a release"};
static int n_tensors = 500, n_ranks = 2, n_times = 1000;

static took *steps[MAX_RANKS]; /* [n_times][N_STEPS] each */

static xfer_plan *make_plan(xfer_comm *comm)
{
  const int half = n_ranks / 2;
  xfer_tensor *tensors = room((size_t)n_tensors, sizeof *tensors);
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;
  char line[100];

  (void)snprintf(line, sizeof line, "u8[%d] (%d):S0 -> (%d)@%d-%d:S0", half * PART, half, half,
                 half, 2 * half - 1);
  OK(xfer_problem_parse(&src, &dst, line));
  for (int t = 0; t < n_tensors; t++)
    tensors[t] = (xfer_tensor){"w", src, dst, {0}};
  OK(xfer_plan_create(&plan, comm, tensors, (size_t)n_tensors, NULL));
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  free(tensors);
  return plan;
}

static void bind_all(xfer_plan *plan, int rank, char *memory)
{
  for (int t = 0; t < n_tensors; t++) {
    const xfer_view view = xfer_view_dense(memory + (size_t)t * PART);

    OK(xfer_plan_bind(plan, (size_t)t, rank < n_ranks / 2 ? &view : NULL,
                      rank < n_ranks / 2 ? NULL : &view));
  }
}

static void measure(xfer_comm *comm, int rank)
{
  xfer_plan *plan = make_plan(comm);
  char *memory = room((size_t)n_tensors + 1, PART);

  bind_all(plan, rank, memory);
  OK(xfer_plan_commit(plan));
  for (int i = 0; i < n_times; i++) {
    took *to = steps[rank] + (size_t)i * N_STEPS;

    STEP(&to[BIND], comm, bind_all(plan, rank, memory + 8 + i % 512 * 8));
    STEP(&to[COMMIT], comm, OK(xfer_plan_commit(plan)));
    OK(xfer_plan_run(plan, (uint64_t)i, NULL));
    OK(xfer_plan_wait(plan, 0));
    if (i % 10 > 0) continue;
    OK(xfer_plan_release(plan));
    STEP(&to[MADE], comm, OK(xfer_plan_commit(plan)));
  }
  xfer_plan_destroy(plan);
  free(memory);
}

int main(int argc, char **argv)
{
  int *const settings[] = {&n_tensors, &n_ranks, &n_times};

  for (int i = 1; i < argc && i <= 3; i++)
    *settings[i - 1] = atoi(argv[i]);
  if (n_ranks < 2 || n_ranks > MAX_RANKS || n_tensors < 1 || n_times < 1) return 2;
  for (int r = 0; r < n_ranks; r++)
    steps[r] = room((size_t)n_times * N_STEPS, sizeof *steps[r]);
  run_ranks(n_ranks, measure);
  printf("%d tensors, %d ranks, %d times: wall and CPU ms of the slowest rank\n", n_tensors,
         n_ranks, n_times);
  print_steps(names, N_STEPS, steps, n_ranks, n_times);
  for (int r = 0; r < n_ranks; r++)
    free(steps[r]);
  return 0;
}
