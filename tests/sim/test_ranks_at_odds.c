/* Ranks that are not in the same call: one is alone in a comm's maker, or they gather as many bytes
 * in different calls. */
#include "as_processes.h"
#include "limited_waits.h"
#include "object.h"
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

/* Rank 1 comes to no gathering: those who wait in one are told so there, over NCCL alone too, whose
 * abort is local, and every call says so from then on. */
static void is_told(int rank, xfer_status (*call)(int rank), const char *why)
{
  const int64_t began = world_ms();
  uint64_t all[3];
  const uint64_t own = 0;
  const xfer_status st = call(rank);

  NEED(rank == 1 || st == XFER_ERR_COMM);
  NEED(rank == 1 || strstr(xfer_last_error(), why) != NULL);
  NEED(world_ms() - began < LIMIT_MOST / 2);
  NEED(xfer_comm_all_gather(w.comms[rank], all, &own, sizeof own) == XFER_ERR_COMM);
  NEED(strncmp(xfer_last_error(), XFI_BROKEN, sizeof XFI_BROKEN - 1) == 0);
  NEED(strstr(xfer_last_error() + 1, XFI_BROKEN) == NULL);
  NEED(strstr(xfer_last_error(), why) != NULL);
}

static xfer_status gather_nothing(int rank)
{
  uint64_t all[3];
  const uint64_t own = 0;
  const xfer_status st =
      xfer_comm_all_gather(w.comms[rank], all, rank == 1 ? NULL : &own, sizeof own);

  NEED(rank != 1 || st == XFER_ERR_ARG);
  return st;
}

/* Also to one that comes late. */
static void wrong_argument_is_told(int rank)
{
  OK(xfer_comm_set_timeout(w.comms[rank], LIMIT_MOST));
  if (rank == 0) world_sleep_ms(2500);
  is_told(rank, gather_nothing, "rank 1: xfer_comm_all_gather: mine is NULL");
}

static void test_rank_with_a_wrong_argument_is_told_over_nccl_alone(void)
{
  limit_ms = LIMIT_MOST;
  world_of(3, COMM_NCCL, (sim_config){.seed = 0}, wrong_argument_is_told);
}

/* A plan, for which rank 1 has no memory. */
static xfer_status create_without_memory(int rank)
{
  xfer_plan *plan = NULL;

  if (rank != 1) return xfer_plan_create(&plan, w.comms[rank], NULL, 0, NULL);
  NEED(xfi_comm_calloc(w.comms[1]->transport, SIZE_MAX, 2) == NULL);
  return XFER_ERR_NOMEM;
}

static void lack_of_memory_is_told(int rank)
{
  is_told(rank, create_without_memory, "rank 1 is out of memory");
}

static void test_rank_without_memory_is_told_over_nccl_alone(void)
{
  limit_ms = LIMIT_MOST;
  world_of(3, COMM_NCCL, (sim_config){.seed = 0}, lack_of_memory_is_told);
}

/* NCCL's environment as each rank has it. Of the program's link: --wrap=getenv. */
static _Thread_local const char *own_cumem;

char *__real_getenv(const char *name);
char *__wrap_getenv(const char *name);

char *__wrap_getenv(const char *name)
{
  return own_cumem != NULL && strcmp(name, "NCCL_CUMEM_ENABLE") == 0 ? (char *)own_cumem
                                                                     : __real_getenv(name);
}

/* Messages have no connections, since rank 1 does not come to make them: if the ranks differ in how
 * NCCL is set, texts say so. */
static void do_not_connect(int rank, bool differ)
{
  static const char text[] = "NCCL_CUMEM_ENABLE is 0 on rank 1 and not set on rank 0";
  enum { DEADLINE_MS = 4000 };
  const sim_fault fault = {.name = "ncclCommInitRankConfig", .rank = 1, .nth = 1, .code = 3};
  xfer_plan *plan;
  tensor t;

  tensor_make(&t, EACH_EACH, rank, WIDTH);
  plan = world_plan(rank, &t, 1, XFER_LANE_PACKED, DEADLINE_MS);
  own_cumem = differ && rank == 1 ? "0" : NULL;
  if (rank == 1) sim_fault_add(&fault);
  ranks_barrier();
  NEED(xfer_plan_commit(plan) != XFER_OK);
  NEED(strstr(xfer_last_error(), "ncclCommInitRankConfig") != NULL);
  NEED((strstr(xfer_last_error(), text) != NULL) == differ);
  ranks_barrier();
  if (rank == 1) sim_fault_clear();
  xfer_plan_destroy(plan);
}

static void with_other_settings(int rank)
{
  do_not_connect(rank, true);
}

static void with_the_same_settings(int rank)
{
  do_not_connect(rank, false);
}

static void test_settings_of_nccl_that_differ_are_named(void)
{
  limit_ms = LIMIT_MOST;
  world_of(2, COMM_NCCL, (sim_config){.seed = 0}, with_other_settings);
  world_destroy();
  world_of(2, COMM_NCCL, (sim_config){.seed = 0}, with_the_same_settings);
}

/* Rank 1 refuses a run of a plan that rank 0 begins, and before its wait both run another plan, of
 * as many bytes: rank 1 does not receive in that what rank 0 sent in the first. */
static void refuse_and_run(int rank)
{
  xfer_plan *plans[2];
  tensor tensors[2];

  for (int p = 0; p < 2; p++) {
    tensor_make(&tensors[p], FROM_FIRST, rank, WIDTH);
    plans[p] = world_plan(rank, &tensors[p], 1, XFER_LANE_PACKED, LIMIT_MOST);
    OK(xfer_plan_commit(plans[p]));
  }
  if (rank == 1)
    OK(xfer_plan_refuse(plans[0], "on purpose"));
  else
    OK(xfer_plan_run(plans[0], 1, NULL));
  ranks_barrier();
  if (rank == 1) {
    NEED(xfer_plan_run(plans[1], 1, NULL) == XFER_ERR_STATE);
    NEED(strstr(xfer_last_error(), "refused a run of another plan") != NULL);
  } else {
    (void)!xfer_plan_run(plans[1], 1, NULL); /* rank 1 may have left it already */
  }
  NEED(xfer_plan_wait(plans[1], 0) != XFER_OK);
  NEED(strstr(xfer_last_error(), "deadline") == NULL);
  NEED(xfer_plan_wait(plans[0], 0) != XFER_OK);
  for (int p = 0; p < 2; p++) {
    OK(xfer_plan_commit(plans[p]));
    world_run(plans[p], &tensors[p], 1, 2, NULL);
  }
}

static void test_run_after_a_refused_one_of_another_plan(void)
{
  limit_ms = LIMIT_MOST;
  world_of(2, COMM_NCCL, (sim_config){.seed = 0}, refuse_and_run);
}

/* Rank 1 refuses a run and destroys its plan in place of the wait, as where an exception leaves it.
 * The others wait for its data, or only for its answer, and are told why at once. */
static void leave_a_refused_plan(int rank)
{
  const int64_t began = world_ms();
  xfer_status st = XFER_OK;
  xfer_plan *plan;
  tensor t;

  tensor_make(&t, EACH_EACH, rank, WIDTH);
  NEED(ranks_come(meeting, rank));
  OK(make_comm_as_process(&w.comms[rank], meeting, rank));
  plan = world_plan(rank, &t, 1, XFER_LANE_AUTO, LIMIT_MOST);
  OK(xfer_plan_commit(plan));
  if (rank == 1) {
    OK(xfer_plan_refuse(plan, "LookupError: no batch"));
    xfer_plan_destroy(plan);
  } else {
    st = xfer_plan_run(plan, 1, NULL);
    if (st == XFER_OK) st = xfer_plan_wait(plan, 0);
    NEED(st == XFER_ERR_PEER || st == XFER_ERR_COMM); /* another one said it first */
    NEED(strstr(xfer_last_error(), "rank 1: LookupError: no batch") != NULL);
    xfer_plan_destroy(plan);
  }
  NEED(world_ms() - began < LIMIT_MOST / 2);
}

static void test_whoever_comes_to_a_plan_that_a_rank_has_left_is_told_why(void)
{
  in_meeting(COMM_GATHER, leave_a_refused_plan);
  in_meeting(COMM_NCCL, leave_a_refused_plan);
}

/* Rank 1 breaks the comm, and the others are in a run's wait, which would last until the deadline.
 */
static void run_on_a_broken_comm(int rank)
{
  const int64_t began = world_ms();
  int over = 0;
  xfer_plan *plan;
  tensor t;

  tensor_make(&t, EACH_EACH, rank, WIDTH);
  NEED(ranks_come(meeting, rank));
  OK(make_comm_as_process(&w.comms[rank], meeting, rank));
  plan = world_plan(rank, &t, 1, XFER_LANE_DIRECT, LIMIT_MOST);
  OK(xfer_plan_commit(plan));
  if (rank != 1) OK(xfer_plan_run(plan, 1, NULL));
  ranks_barrier();
  if (rank == 1) {
    NEED(xfer_comm_all_gather(w.comms[1], NULL, NULL, 1) == XFER_ERR_ARG);
  } else {
    while (over == 0)
      OK(xfer_plan_test(plan, &over));
    NEED(xfer_plan_wait(plan, 0) == XFER_ERR_COMM);
    NEED(strstr(xfer_last_error(), "rank 1: xfer_comm_all_gather: all is NULL") != NULL);
  }
  NEED(world_ms() - began < LIMIT_MOST / 2);
  ranks_barrier();
  xfer_plan_destroy(plan);
}

static void test_wait_for_a_run_on_a_broken_comm(void)
{
  in_meeting(COMM_GATHER, run_on_a_broken_comm);
  in_meeting(COMM_NCCL, run_on_a_broken_comm);
}

/* Rank 1 leaves one plan. A run of another that rank 0 has begun is not over for that. */
static void leave_another_plan(int rank)
{
  int over = 0;
  xfer_plan *plans[2];
  tensor tensors[2];

  NEED(ranks_come(meeting, rank));
  OK(make_comm_as_process(&w.comms[rank], meeting, rank));
  for (int p = 0; p < 2; p++) {
    tensor_make(&tensors[p], EACH_EACH, rank, WIDTH);
    plans[p] = world_plan(rank, &tensors[p], 1, XFER_LANE_DIRECT, LIMIT_MOST);
    OK(xfer_plan_commit(plans[p]));
    tensor_fill(&tensors[p], 1, 0);
  }
  if (rank == 1) {
    OK(xfer_plan_refuse(plans[1], "on purpose"));
    xfer_plan_destroy(plans[1]);
  } else {
    OK(xfer_plan_run(plans[0], 1, NULL));
  }
  ranks_barrier();
  if (rank == 0) {
    NEED(xfer_plan_run(plans[1], 1, NULL) == XFER_ERR_PEER);
    OK(xfer_plan_test(plans[0], &over));
    NEED(over == 0);
  }
  ranks_barrier();
  if (rank == 1) OK(xfer_plan_run(plans[0], 1, NULL));
  OK(xfer_plan_wait(plans[0], 0));
  NEED(tensor_holds(&tensors[0], 1));
  xfer_plan_destroy(plans[0]);
  if (rank == 0) xfer_plan_destroy(plans[1]);
}

static void test_a_run_is_not_over_for_another_plan_that_a_rank_has_left(void)
{
  in_meeting(COMM_GATHER, leave_another_plan);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"comm_lent_by_one", test_comm_lent_by_one},
      {"ranks_of_one_host_in_different_calls_are_told_which",
       test_ranks_of_one_host_in_different_calls_are_told_which},
      {"rank_with_a_wrong_argument_is_told_over_nccl_alone",
       test_rank_with_a_wrong_argument_is_told_over_nccl_alone},
      {"rank_without_memory_is_told_over_nccl_alone",
       test_rank_without_memory_is_told_over_nccl_alone},
      {"run_after_a_refused_one_of_another_plan", test_run_after_a_refused_one_of_another_plan},
      {"wait_for_a_run_on_a_broken_comm", test_wait_for_a_run_on_a_broken_comm},
      {"settings_of_nccl_that_differ_are_named", test_settings_of_nccl_that_differ_are_named},
      {"whoever_comes_to_a_plan_that_a_rank_has_left_is_told_why",
       test_whoever_comes_to_a_plan_that_a_rank_has_left_is_told_why},
      {"a_run_is_not_over_for_another_plan_that_a_rank_has_left",
       test_a_run_is_not_over_for_another_plan_that_a_rank_has_left}};

  return world_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
