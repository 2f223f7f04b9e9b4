/*
 * A serving rank is lost in the middle of the steps, and the others go on without it.
 *
 * Ranks 0 and 1 train, ranks 2 to 4 serve; they are threads here, and would be processes. Before
 * step 3 rank 4 goes away without a word. The others' run fails within the deadline, on each of
 * them; the version that was served stays the last complete one, and the plan says that what it
 * wrote to is torn. They give plan and comm back, make a new comm of those that are left, a new
 * plan of the same tensors for three ranks' worth of weights on two, and run the step again.
 *
 *   cc 05_recover.c $(pkg-config --cflags --libs xfer) -lpthread && ./a.out
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <xfer/xfer.h>

enum { N_RANKS = 5, N_TRAIN = 2, LOST = 4, LOST_AT = 3, N_STEPS = 5, ROWS = 6, COLUMNS = 12 };

static xfer_comm *comms[N_RANKS]; /* of those that are there; remade by rank 0 */
static pthread_barrier_t meeting; /* of those that are left: how they find each other is theirs */
static int n_wrong, n_failed_steps;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void need(xfer_status st, const char *what)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, xfer_status_name(st), xfer_last_error());
  exit(1);
}

/* This rank's part of a layout at `step`: fill it, or count what differs. */
static int visit(const xfer_layout *layout, int rank, float *part, int step, int fill)
{
  const size_t n = xfer_layout_local_bytes(layout, rank) / sizeof *part;
  int wrong = 0;

  for (size_t i = 0; i < n; i++) {
    int64_t index[2];

    need(xfer_layout_global_index(layout, rank, (int64_t)i, index), "index");
    const float value = (float)(1000 * step) + (float)(index[0] * COLUMNS + index[1]);
    if (fill) part[i] = value;
    wrong += part[i] != value;
  }
  return wrong;
}

/* Steps [step, end) among n ranks; returns the step that failed, or `end`. */
static int serve(int rank, int n, int step, int end)
{
  float weights[ROWS * COLUMNS], served[ROWS * COLUMNS];
  const xfer_view src_view = xfer_view_dense(weights);
  const xfer_view dst_view = xfer_view_dense(served);
  xfer_tensor tensor = {.name = "w"};
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  xfer_layout *src = NULL, *dst = NULL;
  xfer_plan *plan = NULL;
  xfer_status st = XFER_OK;
  char line[64];
  int wrong = 0;

  snprintf(line, sizeof line, "f32[6,12] (2)@0-1:S0 -> (%d)@2-%d:S1", n - N_TRAIN, n - 1);
  need(xfer_problem_parse(&src, &dst, line), line);
  tensor.src = src;
  tensor.dst = dst;
  options.timeout_ms = 1000;
  need(xfer_plan_create(&plan, comms[rank], &tensor, 1, &options), "plan");
  need(xfer_plan_bind(plan, 0, &src_view, &dst_view), "bind");
  need(xfer_plan_commit(plan), "commit");
  while (step < end && st == XFER_OK && !(rank == LOST && step == LOST_AT)) {
    if (rank < N_TRAIN) (void)visit(src, rank, weights, step, 1); /* "train" */
    st = xfer_plan_run(plan, (uint64_t)step, NULL);
    if (xfer_plan_wait(plan, 0) != XFER_OK) st = XFER_ERR_PEER; /* also tells the others */
    if (st == XFER_OK && rank >= N_TRAIN) wrong += visit(dst, rank, served, step, 0);
    if (st == XFER_OK) step++;
  }
  need(xfer_plan_report(plan, &report), "report");
  wrong += report.committed_version != (uint64_t)step - 1 || report.torn != (st != XFER_OK);
  if (st != XFER_OK) printf("rank %d: step %d failed: %s\n", rank, step, xfer_last_error());
  xfer_plan_destroy(plan);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  xfer_comm_destroy(comms[rank]);
  pthread_mutex_lock(&lock);
  n_wrong += wrong;
  n_failed_steps += st != XFER_OK;
  pthread_mutex_unlock(&lock);
  return step;
}

static void *be_a_rank(void *argument)
{
  const int rank = *(int *)argument;
  const int step = serve(rank, N_RANKS, 1, N_STEPS + 1);

  if (rank == LOST) return NULL;
  pthread_barrier_wait(&meeting); /* nobody uses the old comm any more */
  if (rank == 0) need(xfer_comm_create_local(comms, N_RANKS - 1), "comm of those that are left");
  pthread_barrier_wait(&meeting);
  (void)serve(rank, N_RANKS - 1, step, N_STEPS + 1);
  return NULL;
}

int main(void)
{
  pthread_t threads[N_RANKS];
  int ranks[N_RANKS];

  need(xfer_comm_create_local(comms, N_RANKS), "comm");
  if (pthread_barrier_init(&meeting, NULL, N_RANKS - 1) != 0) return 1;
  for (int r = 0; r < N_RANKS; r++) {
    ranks[r] = r;
    if (pthread_create(&threads[r], NULL, be_a_rank, &ranks[r]) != 0) return 1;
  }
  for (int r = 0; r < N_RANKS; r++)
    if (pthread_join(threads[r], NULL) != 0) return 1;
  pthread_barrier_destroy(&meeting);
  printf("%d ranks saw step %d fail; %d steps, %d wrong\n", n_failed_steps, LOST_AT, N_STEPS,
         n_wrong);
  return n_wrong == 0 && n_failed_steps == N_RANKS - 1 ? 0 : 1;
}
