/* Ranks that are not in the same call: one is alone in a comm's maker, or they gather as many bytes
 * in different calls. */
#include "as_processes.h"
#include "limited_waits.h"
#include "world.h"

#include <string.h>

enum { WIDTH = 3000 };

static ranks_meeting *meeting;

static void in_meeting(comm_kind kind, void (*work)(int rank))
{
  world_clear(2, (sim_config){.seed = 0});
  meeting = ranks_meet(2, kind);
  NEED(meeting != NULL);
  limit_ms = LIMIT_MOST;
  world_go(work);
}

/* Rank 1 gathers bytes of its own, as many as the others gather in their call. */
static void one_gathers(int rank)
{
  uint32_t all[2] = {0};
  const uint32_t own = 0;
  xfer_plan *plan;
  xfer_status st;
  tensor t;

  tensor_make(&t, EACH_EACH, rank, WIDTH);
  NEED(ranks_come(meeting, rank));
  OK(make_comm_as_process(&w.comms[rank], meeting, rank));
  plan = world_plan(rank, &t, 1, XFER_LANE_AUTO, LIMIT_MOST);
  st =
      rank == 1 ? xfer_comm_all_gather(w.comms[1], all, &own, sizeof own) : xfer_plan_release(plan);
  NEED(st == XFER_ERR_MISMATCH || st == XFER_ERR_COMM); /* the other one said it first */
  NEED(strstr(xfer_last_error(), "in xfer_comm_all_gather()") != NULL);
  NEED(strstr(xfer_last_error(), "in xfer_plan_release()") != NULL);
}

static void test_ranks_of_one_host_in_different_calls_are_told_which(void)
{
  in_meeting(COMM_NCCL, one_gathers);
}

static const sim_fault lost = {.name = "ncclCommGetAsyncError", .rank = 0, .nth = 1, .code = 3};

/* Both use the communicator that is lent; then rank 1 does not come to what rank 0 asks of it. What
 * that may still touch is left to it. */
static void borrow_alone(int rank)
{
  NEED(ranks_come(meeting, rank));
  OK(ranks_make_comm(&w.comms[rank], meeting, rank));
  xfer_comm_destroy(w.comms[rank]);
  ranks_barrier();
  if (rank == 0) {
    limit_ms = LIMIT_MS;
    NEED(ranks_make_comm(&w.comms[0], meeting, 0) == XFER_ERR_TIMEOUT);
    NEED(strstr(xfer_last_error(), "the borrowed communicator: not all ranks came") != NULL);
    sim_fault_add(&lost);
    NEED(ranks_make_comm(&w.comms[0], meeting, 0) == XFER_ERR_COMM);
    NEED(strstr(xfer_last_error(), "the borrowed communicator: ") != NULL);
    sim_fault_clear();
  }
  ranks_barrier();
}

static void test_comm_lent_by_one(void)
{
  in_meeting(COMM_BORROWED, borrow_alone);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {{"comm_lent_by_one", test_comm_lent_by_one},
                                     {"ranks_of_one_host_in_different_calls_are_told_which",
                                      test_ranks_of_one_host_in_different_calls_are_told_which}};

  return world_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
