/* Messages of a run that one rank takes no part in, and that lie there when the next run or call
 * begins, over MPI and over memory of a host, by every lane: no rank takes them for those of its
 * own run. It fails instead, or receives what is right. */
#include "process_ranks.h"

#include <string.h>

enum { WIDTH = 100, DEADLINE_MS = 8000, SHORT_MS = 1000 };

/* What the ranks do with plan `x`, which the last rank refuses and the others run, before all run
 * plan `y`. */
typedef enum scenario {
  RUN_NEXT,          /* nothing */
  OTHERS_WAIT_FOR_Y, /* the others run and wait for `y` instead, all commit both */
  DESTROY,           /* all destroy it */
  DESTROY_UNREFUSED, /* the same, and the last rank has not even refused; then `y` runs twice */
  CALL,              /* xfer_redistribute() instead of `y` */
  COMMIT,            /* all commit it, which fails */
  RELEASE,           /* all release it, which fails */
  N_SCENARIOS
} scenario;

static uint32_t from[WIDTH];
static uint32_t to[WIDTH];
static char line[80]; /* a few bytes of rank 0 go to the last, for which rank 0 does not wait */

static xfer_plan *plan_of(xfer_comm *comm, uint32_t lane)
{
  return plan_of_line(comm, line, from, to, lane, DEADLINE_MS);
}

static void fill(uint32_t value)
{
  for (int i = 0; i < WIDTH; i++)
    from[i] = value;
  memset(to, 0, sizeof to);
}

/* If the last rank has been told that all is well, it is. */
static void see(xfer_status st, uint32_t value)
{
  for (int i = 0; st == XFER_OK && rank == size - 1 && i < WIDTH; i++)
    NEED(to[i] == value);
}

static void run(xfer_plan *plan, uint64_t version)
{
  fill((uint32_t)version);
  (void)!xfer_plan_run(plan, version, NULL);
  see(xfer_plan_wait(plan, 0), (uint32_t)version);
}

static void call(xfer_comm *comm, uint32_t value)
{
  const xfer_view views[2] = {xfer_view_dense(from), xfer_view_dense(to)};
  xfer_layout *layouts[2] = {NULL, NULL};

  NEED(xfer_problem_parse(&layouts[0], &layouts[1], line) == XFER_OK);
  fill(value);
  see(xfer_redistribute(comm, layouts[0], &views[0], layouts[1], &views[1], NULL), value);
  xfer_layout_destroy(layouts[0]);
  xfer_layout_destroy(layouts[1]);
}

static void leave_over(xfer_comm *comm, uint32_t lane, scenario what)
{
  xfer_plan *x = plan_of(comm, lane);
  xfer_plan *const y = plan_of(comm, lane);
  xfer_plan *const begun = what == OTHERS_WAIT_FOR_Y ? y : x;
  const bool refuses = rank == size - 1;

  fill(1);
  if (!refuses)
    NEED(xfer_plan_run(begun, 1, NULL) == XFER_OK);
  else if (what != DESTROY_UNREFUSED)
    NEED(xfer_plan_refuse(x, "the loss is not a number") == XFER_OK);
  (void)MPI_Barrier(MPI_COMM_WORLD); /* the message has been sent */
  if (what == OTHERS_WAIT_FOR_Y) {
    NEED(xfer_plan_wait(refuses ? x : y, 0) != XFER_OK);
    NEED(xfer_comm_check(comm) == XFER_ERR_COMM);
    (void)!xfer_plan_commit(x);
    (void)!xfer_plan_commit(y);
  }
  if (what == COMMIT) NEED(xfer_plan_commit(x) != XFER_OK);
  if (what == RELEASE) NEED(xfer_plan_release(x) != XFER_OK);
  if (what == DESTROY || what == DESTROY_UNREFUSED) {
    xfer_plan_destroy(x);
    x = NULL;
  }
  if (what == CALL)
    call(comm, 2);
  else
    run(y, 2);
  if (what == DESTROY_UNREFUSED) {
    (void)!xfer_plan_commit(y);
    run(y, 3);
  }
  (void)MPI_Barrier(MPI_COMM_WORLD);
  xfer_plan_destroy(y);
  xfer_plan_destroy(x);
}

/* A message lies there for as many runs as the least number of tags that MPI may have. */
static void leave_over_for_long(xfer_comm *comm)
{
  enum { N_RUNS = 1 << 15 };
  xfer_plan *const x = plan_of(comm, XFER_LANE_AUTO);
  xfer_plan *y;

  fill(UINT32_MAX);
  NEED((rank == size - 1 ? xfer_plan_refuse(x, "too late") : xfer_plan_run(x, 1, NULL)) == XFER_OK);
  (void)MPI_Barrier(MPI_COMM_WORLD);
  xfer_plan_destroy(x);
  y = plan_of(comm, XFER_LANE_AUTO);
  for (uint32_t version = 1; version <= N_RUNS && failed == 0; version++)
    run(y, version);
  NEED(xfer_comm_check(comm) == XFER_OK);
  xfer_plan_destroy(y);
}

/* Between hosts the last rank leaves out a run that broadcasts, as the root or as the receiver, and
 * commits another plan: every rank fails, and is told of the call that it does not share, or in
 * vain waited for until the deadline. */
static void leave_out(bool is_root)
{
  xfer_comm *const comm = comm_of(BY_HOSTS);
  xfer_plan *plans[2];
  char way[80];

  (void)snprintf(way, sizeof way, "u32[%d] (1)@%d:R -> (1)@%d:R", WIDTH, is_root ? size - 1 : 0,
                 is_root ? 0 : size - 1);
  for (int i = 0; i < 2; i++)
    plans[i] = plan_of_line(comm, way, from, to, XFER_LANE_BROADCAST, SHORT_MS);
  if (rank == size - 1) {
    NEED(xfer_plan_commit(plans[1]) != XFER_OK);
  } else {
    (void)!xfer_plan_run(plans[0], 1, NULL);
    NEED(xfer_plan_wait(plans[0], 0) != XFER_OK);
  }
  NEED(strstr(xfer_last_error(), is_root ? "deadline" : "xfer_plan_commit()") != NULL);
  NEED(xfer_comm_check(comm) == XFER_ERR_COMM);
  (void)MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < 2; i++)
    xfer_plan_destroy(plans[i]);
  xfer_comm_destroy(comm);
}

/* Where all refuse a run nothing is left over: another one may come before its wait. */
static void refuse_all(xfer_comm *comm, uint32_t lane)
{
  xfer_plan *const x = plan_of(comm, lane);
  xfer_plan *const y = plan_of(comm, lane);

  NEED(xfer_plan_refuse(x, "not ready") == XFER_OK);
  fill(2);
  NEED(xfer_plan_run(y, 2, NULL) == XFER_OK);
  NEED(xfer_plan_wait(y, 0) == XFER_OK);
  see(XFER_OK, 2);
  NEED(xfer_plan_wait(x, 0) == XFER_ERR_STATE);
  NEED(xfer_plan_commit(x) == XFER_OK);
  fill(3);
  NEED(xfer_plan_run(x, 3, NULL) == XFER_OK);
  NEED(xfer_plan_wait(x, 0) == XFER_OK);
  see(XFER_OK, 3);
  xfer_plan_destroy(y);
  xfer_plan_destroy(x);
}

static void work(void)
{
  static const uint32_t lanes[] = {XFER_LANE_AUTO, XFER_LANE_PACKED, XFER_LANE_BROADCAST};

  (void)snprintf(line, sizeof line, "u32[%d] (1)@0:R -> (1)@%d:R", WIDTH, size - 1);
  for (size_t i = 0; i < N_MEANS * sizeof lanes / sizeof lanes[0]; i++) {
    const means wanted = (means)(i % N_MEANS);
    const uint32_t lane = lanes[i / N_MEANS];
    xfer_comm *comm = comm_of(wanted);

    refuse_all(comm, lane);
    if (wanted == BY_HOSTS && lane == XFER_LANE_AUTO) leave_over_for_long(comm);
    for (int what = 0; what < N_SCENARIOS; what++) {
      if (what == DESTROY_UNREFUSED && wanted == BY_HOSTS && lane == XFER_LANE_BROADCAST)
        continue; /* leave_out(), since it waits for deadlines */
      leave_over(comm, lane, (scenario)what);
      xfer_comm_destroy(comm);
      comm = comm_of(wanted);
    }
    xfer_comm_destroy(comm);
  }
  leave_out(true);
  leave_out(false);
}

int main(int argc, char **argv)
{
  return with_ranks(argc, argv, work);
}
