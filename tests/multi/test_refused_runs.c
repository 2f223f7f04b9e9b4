/* Runs that processes refuse, over MPI and over memory of a host, by every lane: where all ranks
 * give an old version nothing is broken; where one refuses the others are told at once, whatever
 * they wait for. */
#include "process_ranks.h"

#include <string.h>

enum { MOST_RANKS = 8, WIDTH = 40000, SOON_S = 20 };

static uint32_t from[MOST_RANKS * WIDTH];
static uint32_t to[MOST_RANKS * WIDTH];

/* Row r of each rank goes to rank r, or to all where rows are broadcast; FEW: a few bytes of rank 0
 * go to the last, which does not wait for anybody. */
enum { FEW = XFER_LANE_BROADCAST + 1 };

static xfer_plan *plan_of(xfer_comm *comm, uint32_t lane)
{
  const xfer_view views[2] = {xfer_view_dense(from), xfer_view_dense(to)};
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor tensor = {"t", NULL, NULL, 0};
  xfer_layout *layouts[2] = {NULL, NULL};
  xfer_plan *plan = NULL;
  char line[80];

  if (lane == FEW)
    (void)snprintf(line, sizeof line, "u32[%d] (1)@0:R -> (1)@%d:R", 100, size - 1);
  else
    (void)snprintf(line, sizeof line, "u32[%d,%d] (%d):S1 -> (%d):%s", size, WIDTH, size, size,
                   lane == XFER_LANE_BROADCAST ? "R" : "S0");
  NEED(xfer_problem_parse(&layouts[0], &layouts[1], line) == XFER_OK);
  tensor.src = layouts[0];
  tensor.dst = layouts[1];
  options.lane = lane == FEW ? (uint32_t)XFER_LANE_AUTO : lane;
  NEED(xfer_plan_create(&plan, comm, &tensor, 1, &options) == XFER_OK);
  NEED(xfer_plan_bind(plan, 0, &views[0], &views[1]) == XFER_OK);
  NEED(xfer_plan_commit(plan) == XFER_OK);
  xfer_layout_destroy(layouts[0]);
  xfer_layout_destroy(layouts[1]);
  return plan;
}

static void run_well(xfer_plan *plan, uint32_t lane, uint64_t version)
{
  const int last = lane == FEW ? 99 : WIDTH - 1;
  const size_t n = sizeof from / sizeof from[0];

  for (size_t i = 0; i < n; i++)
    from[i] = (uint32_t)version;
  memset(to, 0, sizeof to);
  NEED(xfer_plan_run(plan, version, NULL) == XFER_OK);
  NEED(xfer_plan_wait(plan, 0) == XFER_OK);
  if (lane != FEW || rank == size - 1)
    NEED(to[0] == (uint32_t)version && to[last] == (uint32_t)version);
}

/* All ranks give the version of the run before, in various states of the comm. */
static void refused_by_all(xfer_comm *comm, uint32_t lane)
{
  xfer_plan *const plan = plan_of(comm, lane);
  xfer_plan *const other = plan_of(comm, XFER_LANE_AUTO);

  for (uint64_t version = 3; version < 6; version++) {
    run_well(plan, lane, version);
    NEED(xfer_plan_run(plan, version, NULL) == XFER_ERR_STATE);
    NEED(xfer_plan_wait(plan, 0) == XFER_ERR_STATE);
    NEED(strstr(xfer_last_error(), "versions must grow") != NULL);
    NEED(xfer_comm_check(comm) == XFER_OK);
    run_well(other, XFER_LANE_AUTO, version);
    NEED(xfer_plan_run(plan, version + 1, NULL) == XFER_ERR_STATE); /* no commit followed */
    NEED(xfer_plan_commit(plan) == XFER_OK);
  }
  run_well(plan, lane, 100);
  xfer_plan_destroy(other);
  xfer_plan_destroy(plan);
}

/* The last rank refuses, after the others have begun or before. */
static void refused_by_one(xfer_comm *comm, uint32_t lane, bool is_late)
{
  static const char why[] = "the loss is not a number";
  xfer_plan *const plan = plan_of(comm, lane);
  const double began = MPI_Wtime();
  const bool refuses = rank == size - 1;

  run_well(plan, lane, 1);
  for (const double until = MPI_Wtime() + 0.1; refuses && is_late && MPI_Wtime() < until;)
    ;
  if (refuses)
    NEED(xfer_plan_refuse(plan, why) == XFER_OK);
  else
    (void)!xfer_plan_run(plan, 2, NULL);
  NEED(xfer_plan_wait(plan, 0) != XFER_OK);
  NEED(strstr(xfer_last_error(), why) != NULL);
  NEED(MPI_Wtime() - began < SOON_S); /* the deadline is far */
  NEED(xfer_comm_check(comm) == XFER_ERR_COMM);
  xfer_plan_destroy(plan);
}

static void work(void)
{
  static const uint32_t lanes[] = {XFER_LANE_AUTO, XFER_LANE_PACKED, XFER_LANE_BROADCAST, FEW};

  for (size_t i = 0; i < 2 * sizeof lanes / sizeof lanes[0]; i++) {
    const uint32_t lane = lanes[i / 2];
    xfer_comm *comm = comm_of(i % 2 == 0);

    refused_by_all(comm, lane);
    for (int is_late = 0; is_late < 2; is_late++) {
      refused_by_one(comm, lane, is_late);
      (void)MPI_Barrier(MPI_COMM_WORLD);
      xfer_comm_destroy(comm);
      comm = comm_of(i % 2 == 0);
    }
    xfer_comm_destroy(comm);
  }
}

int main(int argc, char **argv)
{
  return with_ranks(argc, argv, work);
}
