/*
 * What it costs that ranks do not know all layouts: open_layouts [TENSORS [RANKS]]. Ranks are
 * threads, and most tensors have the layouts of others. Prints milliseconds of wall time of
 * xfer_plan_create() on the slowest rank, and CPU time of all, the better of two.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <xfer/xfer.h>

enum { DISTINCT = 24, TIMES = 2 };
static int n_tensors = 10000, n_ranks = 64;

typedef enum knows { ALL, OWN_SIDE, SOME, OWN_BOXES, N_KINDS } knows;
static const char *const names[] = {"every rank knows all", "half the ranks know one side each",
                                    "each rank knows others", "each rank knows its boxes"};

typedef struct rank_data {
  xfer_comm *comm;
  int rank;
  double ms[N_KINDS][2];
} rank_data;

static void must(xfer_status st)
{
  if (st == XFER_OK) return;
  fprintf(stderr, "open_layouts: %s: %s\n", xfer_status_name(st), xfer_last_error());
  exit(1);
}

static double clock_ms(clockid_t clock)
{
  struct timespec t;

  (void)clock_gettime(clock, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Of one of the DISTINCT: rows cut among the first half of the ranks and among the second, one move
 * each, so that little of the time is the plan's. */
static void make_layouts(xfer_layout *of[2], int i)
{
  const int half = n_ranks / 2;
  char line[128];

  (void)snprintf(line, sizeof line, "bf16[%d,%d] (%d):S0 -> (%d)@%d-%d:S0", half * 4, i + 1, half,
                 half, half, 2 * half - 1);
  must(xfer_problem_parse(&of[0], &of[1], line));
}

/* The same by what the rank holds of either: two boxes, of which no other rank has any. */
static xfer_layout *make_boxes(int rank, int i)
{
  const int64_t shape[2] = {n_ranks / 2 * 4, i + 1};
  const int64_t first[2] = {0, 2};
  const int64_t at = 4 * (rank % (n_ranks / 2));
  const int64_t bounds[8] = {at, 0, at + 2, shape[1], at + 2, 0, at + 4, shape[1]};
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_layout *own = NULL;

  desc.dtype = XFER_BF16;
  desc.n_dims = 2;
  desc.shape = shape;
  desc.first = first;
  desc.bounds = bounds;
  must(xfer_layout_create_boxes(&own, &desc));
  return own;
}

static int is_told(knows what, int rank, int t, int side)
{
  const unsigned mixed = (unsigned)(2 * t + side) * 2654435761U ^ (unsigned)rank * 2246822519U;

  if (what == OWN_SIDE || what == OWN_BOXES) return (rank < n_ranks / 2) == (side == 0);
  return what != SOME || rank == t % n_ranks || (mixed >> 16) % 2 == 0;
}

static void time_one(rank_data *r, knows what, xfer_tensor *tensors, xfer_layout *(*layouts)[2],
                     xfer_layout *const *boxes)
{
  char *all = malloc((size_t)n_ranks);

  if (all == NULL) exit(1);
  for (int t = 0; t < n_tensors; t++) {
    xfer_layout *const *of = layouts[t % DISTINCT];
    const xfer_layout *own = boxes[t % DISTINCT];

    tensors[t] =
        (xfer_tensor){"w", is_told(what, r->rank, t, 0) ? what == OWN_BOXES ? own : of[0] : NULL,
                      is_told(what, r->rank, t, 1) ? what == OWN_BOXES ? own : of[1] : NULL, 0};
  }
  for (int i = 0; i < TIMES; i++) {
    xfer_plan *plan = NULL;

    must(xfer_comm_all_gather(r->comm, all, "", 1));
    const double wall = clock_ms(CLOCK_MONOTONIC), cpu = clock_ms(CLOCK_THREAD_CPUTIME_ID);

    must(xfer_plan_create(&plan, r->comm, tensors, (size_t)n_tensors, NULL));
    const double ms[2] = {clock_ms(CLOCK_MONOTONIC) - wall,
                          clock_ms(CLOCK_THREAD_CPUTIME_ID) - cpu};

    for (int k = 0; k < 2; k++)
      if (i == 0 || ms[k] < r->ms[what][k]) r->ms[what][k] = ms[k];
    xfer_plan_destroy(plan);
  }
  free(all);
}

static void *run_rank(void *arg)
{
  rank_data *r = arg;
  xfer_tensor *tensors = calloc((size_t)n_tensors, sizeof *tensors);
  xfer_layout *layouts[DISTINCT][2];
  xfer_layout *boxes[DISTINCT];

  if (tensors == NULL) exit(1);
  for (int i = 0; i < DISTINCT; i++) {
    make_layouts(layouts[i], i);
    boxes[i] = make_boxes(r->rank, i);
  }
  for (int what = 0; what < N_KINDS; what++)
    time_one(r, (knows)what, tensors, layouts, boxes);
  for (int i = 0; i < DISTINCT; i++) {
    xfer_layout_destroy(layouts[i][0]);
    xfer_layout_destroy(layouts[i][1]);
    xfer_layout_destroy(boxes[i]);
  }
  free(tensors);
  return NULL;
}

int main(int argc, char **argv)
{
  if (argc > 1) n_tensors = atoi(argv[1]);
  if (argc > 2) n_ranks = atoi(argv[2]);
  if (n_tensors < 1 || n_ranks < 2) return 1;
  xfer_comm **comms = calloc((size_t)n_ranks, sizeof(xfer_comm *));
  rank_data *ranks = calloc((size_t)n_ranks, sizeof *ranks);
  pthread_t *threads = calloc((size_t)n_ranks, sizeof *threads);

  if (comms == NULL || ranks == NULL || threads == NULL) return 1;
  must(xfer_comm_create_local(comms, n_ranks));
  for (int r = 0; r < n_ranks; r++) {
    ranks[r].comm = comms[r];
    ranks[r].rank = r;
    if (pthread_create(&threads[r], NULL, run_rank, &ranks[r]) != 0) return 1;
  }
  for (int r = 0; r < n_ranks; r++)
    (void)pthread_join(threads[r], NULL);
  printf("%d tensors, %d ranks\n", n_tensors, n_ranks);
  for (int what = 0; what < N_KINDS; what++) {
    double wall = 0, cpu = 0;

    for (int r = 0; r < n_ranks; r++) {
      if (ranks[r].ms[what][0] > wall) wall = ranks[r].ms[what][0];
      cpu += ranks[r].ms[what][1];
    }
    printf("%-34s %8.0f ms, CPU %8.0f ms\n", names[what], wall, cpu);
  }
  for (int r = 0; r < n_ranks; r++)
    xfer_comm_destroy(comms[r]);
  free(threads);
  free(ranks);
  free(comms);
  return 0;
}
