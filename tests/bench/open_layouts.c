/*
 * What it costs that ranks do not know all layouts: open_layouts [TENSORS [RANKS]]. Ranks are
 * threads, and most tensors have the layouts of others. Prints milliseconds of wall time of
 * xfer_plan_create() on the slowest rank, and CPU time of all, the better of two.
 */
#include "bench.h"

enum { DISTINCT = 24, TIMES = 2 };
static int n_tensors = 10000, n_ranks = 64;

typedef enum knows { ALL, OWN_SIDE, SOME, OWN_BOXES, N_KINDS } knows;
static const char *const names[] = {"every rank knows all", "half the ranks know one side each",
                                    "each rank knows others", "each rank knows its boxes"};

static took (*steps)[N_KINDS]; /* [n_ranks] */

/* Of one of the DISTINCT: rows cut among the first half of the ranks and among the second, one move
 * each, so that little of the time is the plan's. */
static void make_layouts(xfer_layout *of[2], int i)
{
  const int half = n_ranks / 2;
  char line[128];

  (void)snprintf(line, sizeof line, "bf16[%d,%d] (%d):S0 -> (%d)@%d-%d:S0", half * 4, i + 1, half,
                 half, half, 2 * half - 1);
  OK(xfer_problem_parse(&of[0], &of[1], line));
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
  OK(xfer_layout_create_boxes(&own, &desc));
  return own;
}

static int is_told(knows what, int rank, int t, int side)
{
  const unsigned mixed = (unsigned)(2 * t + side) * 2654435761U ^ (unsigned)rank * 2246822519U;

  if (what == OWN_SIDE || what == OWN_BOXES) return (rank < n_ranks / 2) == (side == 0);
  return what != SOME || rank == t % n_ranks || (mixed >> 16) % 2 == 0;
}

static void time_one(xfer_comm *comm, int rank, knows what, xfer_tensor *tensors,
                     xfer_layout *(*layouts)[2], xfer_layout *const *boxes)
{
  took *best = &steps[rank][what];

  for (int t = 0; t < n_tensors; t++) {
    xfer_layout *const *of = layouts[t % DISTINCT];
    const xfer_layout *own = boxes[t % DISTINCT];

    tensors[t] = (xfer_tensor){"w",
                               is_told(what, rank, t, 0) ? what == OWN_BOXES ? own : of[0] : NULL,
                               is_told(what, rank, t, 1) ? what == OWN_BOXES ? own : of[1] : NULL,
                               {0}};
  }
  for (int i = 0; i < TIMES; i++) {
    xfer_plan *plan = NULL;
    took now;

    STEP(&now, comm, OK(xfer_plan_create(&plan, comm, tensors, (size_t)n_tensors, NULL)));
    for (int k = 0; k < 2; k++)
      if (i == 0 || now.ms[k] < best->ms[k]) best->ms[k] = now.ms[k];
    xfer_plan_destroy(plan);
  }
}

static void run_rank(xfer_comm *comm, int rank)
{
  xfer_tensor *tensors = room((size_t)n_tensors, sizeof *tensors);
  xfer_layout *layouts[DISTINCT][2];
  xfer_layout *boxes[DISTINCT];

  for (int i = 0; i < DISTINCT; i++) {
    make_layouts(layouts[i], i);
    boxes[i] = make_boxes(rank, i);
  }
  for (int what = 0; what < N_KINDS; what++)
    time_one(comm, rank, (knows)what, tensors, layouts, boxes);
  for (int i = 0; i < DISTINCT; i++) {
    xfer_layout_destroy(layouts[i][0]);
    xfer_layout_destroy(layouts[i][1]);
    xfer_layout_destroy(boxes[i]);
  }
  free(tensors);
}

int main(int argc, char **argv)
{
  if (argc > 1) n_tensors = atoi(argv[1]);
  if (argc > 2) n_ranks = atoi(argv[2]);
  if (n_tensors < 1 || n_ranks < 2) return 1;
  steps = room((size_t)n_ranks, sizeof *steps);
  run_ranks(n_ranks, run_rank);
  printf("%d tensors, %d ranks\n", n_tensors, n_ranks);
  for (int what = 0; what < N_KINDS; what++) {
    double wall = 0, cpu = 0;

    for (int r = 0; r < n_ranks; r++) {
      if (steps[r][what].ms[0] > wall) wall = steps[r][what].ms[0];
      cpu += steps[r][what].ms[1];
    }
    printf("%-34s %8.0f ms, CPU %8.0f ms\n", names[what], wall, cpu);
  }
  free(steps);
  return 0;
}
