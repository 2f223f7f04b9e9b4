/*
 * How fast the lanes are on host threads, beside a plain loop of memcpy over the same rows by the
 * same number of threads: four threads hold a matrix by rows, four others get it by columns or by
 * rows. The last two columns are the loop's time over the plan's: above 1 the plan is faster.
 *
 *   host_lanes [ROUNDS]
 */
#include "bench.h"

#include <string.h>

enum { SIDE = 4, RANKS = 2 * SIDE, MAX_ROUNDS = 101 };

typedef struct workload {
  const char *line;
  int64_t rows;      /* copied by one thread */
  int64_t row_bytes; /* each */
  int64_t pitch;     /* from row to row in the longer of the two buffers */
} workload;

static const workload workloads[] = {
    {"f32[16384,16384] (4)@0-3:S0 -> (4)@4-7:S1", 16384, 16384, 65536},
    {"f32[524288,384] (4)@0-3:S0 -> (4)@4-7:S1", 524288, 384, 1536},
    {"f32[16384,16384] (4)@0-3:S0 -> (4)@4-7:S0", 1, INT64_C(268435456), INT64_C(268435456)},
};

static int n_rounds = 7;
static pthread_barrier_t barrier;
static double ms[MAX_ROUNDS];
static char *buffers[RANKS];
static const workload *current;
static uint32_t lane; /* of the plan; UINT32_MAX: the plain loop */

/* Each source thread copies its rows, a quarter to each destination. */
static void plain_loop(int rank)
{
  const workload *w = current;
  const int64_t part = w->rows / SIDE;

  if (rank >= SIDE) return;
  if (w->rows == 1) {
    memcpy(buffers[SIDE + rank], buffers[rank], (size_t)w->row_bytes);
    return;
  }
  for (int turn = 0; turn < SIDE; turn++) {
    const int to = (rank + turn) % SIDE;

    for (int64_t r = 0; r < part; r++)
      memcpy(buffers[SIDE + to] + (rank * part + r) * w->row_bytes,
             buffers[rank] + r * w->pitch + to * w->row_bytes, (size_t)w->row_bytes);
  }
}

static xfer_plan *make_plan(xfer_comm *comm, int rank, xfer_layout *src, xfer_layout *dst)
{
  const xfer_tensor tensor = {"matrix", src, dst, {0}};
  const xfer_view view = xfer_view_dense(buffers[rank]);
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_plan *plan = NULL;

  options.lane = lane;
  OK(xfer_plan_create(&plan, comm, &tensor, 1, &options));
  OK(xfer_plan_bind(plan, 0, &view, &view));
  OK(xfer_plan_commit(plan));
  return plan;
}

static void run_rank(xfer_comm *comm, int rank)
{
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;

  OK(xfer_problem_parse(&src, &dst, current->line));
  if (lane != UINT32_MAX) plan = make_plan(comm, rank, src, dst);
  for (int round = 0; round < n_rounds; round++) {
    double start;

    pthread_barrier_wait(&barrier);
    start = clock_ms(CLOCK_MONOTONIC);
    if (plan == NULL)
      plain_loop(rank);
    else
      OK(xfer_plan_run(plan, (uint64_t)round + 1, NULL));
    pthread_barrier_wait(&barrier);
    if (rank == 0) ms[round] = clock_ms(CLOCK_MONOTONIC) - start;
    if (plan != NULL) OK(xfer_plan_wait(plan, 0));
  }
  xfer_plan_destroy(plan);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

/* Median of the rounds but the first, in milliseconds. */
static double measure(uint32_t which)
{
  lane = which;
  run_ranks(RANKS, run_rank);
  return median(ms + 1, n_rounds - 1);
}

int main(int argc, char **argv)
{
  if (argc > 1) n_rounds = atoi(argv[1]);
  if (n_rounds < 2 || n_rounds > MAX_ROUNDS) return 2;
  pthread_barrier_init(&barrier, NULL, RANKS);
  printf("%-45s %10s %10s %10s %7s %7s\n", "problem", "loop ms", "direct ms", "packed ms", "direct",
         "packed");
  for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++) {
    const size_t bytes = (size_t)workloads[i].rows * (size_t)workloads[i].row_bytes;
    double loop;
    double direct;
    double packed;

    current = &workloads[i];
    for (int r = 0; r < RANKS; r++) {
      buffers[r] = malloc(bytes);
      if (buffers[r] == NULL) return 1;
      memset(buffers[r], r, bytes);
    }
    loop = measure(UINT32_MAX);
    direct = measure(XFER_LANE_DIRECT);
    packed = measure(XFER_LANE_PACKED);
    printf("%-45s %10.1f %10.1f %10.1f %7.2f %7.2f\n", current->line, loop, direct, packed,
           loop / direct, loop / packed);
    for (int r = 0; r < RANKS; r++)
      free(buffers[r]);
  }
  return 0;
}
