/* A rank is interrupted while it waits, over threads and over memory that ranks share: it comes
 * back soon, and so do those who wait with it for a third, who hear why.
 */
#include "clock.h"
#include "unit/interrupts.h"
#include "unit/meeting.h"
#include "unit/ranks.h"
#include "xfer/xfer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { RANKS = 3, LATE = 2, SOON_MS = 100, AT_ONCE_MS = 10000, BYTES = 1 << 20 };

typedef struct job {
  bool shares; /* memory; else ranks are threads */
  bool runs;   /* a plan; else gathers */
  uint32_t lane;
  xfer_comm *comms[RANKS];
  meeting_place *place;
} job;

static xfer_plan *plan_of(const job *j, int rank, unsigned char *memory)
{
  const xfer_view view = xfer_view_dense(memory);
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;

  options.lane = j->lane;
  expect(xfer_problem_parse(&src, &dst, "u8[1048576] (1)@2:R -> (2)@0-1:R") == XFER_OK);
  const xfer_tensor t = {.name = "t", .src = src, .dst = dst};
  expect(xfer_plan_create(&plan, j->comms[rank], &t, 1, &options) == XFER_OK);
  expect(xfer_plan_bind(plan, 0, &view, &view) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  return plan;
}

/* The call that the last rank comes to late. */
static xfer_status play(const job *j, int rank, xfer_plan *plan)
{
  char all[RANKS];

  if (!j->runs) return xfer_comm_all_gather(j->comms[rank], all, "x", 1);
  const xfer_status ran = xfer_plan_run(plan, 1, NULL);
  char why[512];

  (void)snprintf(why, sizeof why, "%s", xfer_last_error());
  const xfer_status waited = xfer_plan_wait(plan, 0);
  expect(waited != XFER_OK);
  if (rank == 0) expect(strstr(why, "this rank was interrupted") != NULL);
  return ran != XFER_OK ? ran : waited;
}

static void rank_work(int rank, void *context)
{
  job *j = context;
  visitor v = {j->place, rank, 0, -1};
  static unsigned char memory[RANKS][BYTES];

  if (j->shares)
    expect(xfer_comm_create_host(&j->comms[rank], gather_there, &v, rank, RANKS) == XFER_OK);
  xfer_plan *plan = j->runs ? plan_of(j, rank, memory[rank]) : NULL;
  const int64_t began = xfi_now_ns();

  if (rank == 0) interrupt_after(SOON_MS);
  /* Where memory is written directly rank 1 waits for the last one alone. */
  while (rank == LATE && j->place->n_gave_up < (j->lane == XFER_LANE_DIRECT ? 1 : LATE))
    (void)usleep(1000);
  const xfer_status st = play(j, rank, plan);
  expect(rank != 0 || st == XFER_ERR_TIMEOUT);
  expect(st != XFER_OK);
  expect(j->runs || strstr(xfer_last_error(), "interrupted") != NULL);
  expect(xfi_now_ns() - began < AT_ONCE_MS * INT64_C(1000000));
  j->place->n_gave_up++;
  while (j->place->n_gave_up < RANKS)
    (void)usleep(1000);
  interrupt_no_more();
  xfer_plan_destroy(plan);
}

static void interrupted(job j)
{
  j.place = open_place(RANKS);
  if (!j.shares) assert_int_equal(xfer_comm_create_local(j.comms, RANKS), XFER_OK);
  run_ranks(RANKS, rank_work, &j);
  for (int r = 0; r < RANKS; r++)
    xfer_comm_destroy(j.comms[r]);
  (void)munmap(j.place, sizeof *j.place);
  assert_all_as_expected();
}

static void test_a_gathering_of_threads_is_interrupted(void **state)
{
  (void)state;
  interrupted((job){.shares = false});
}

static void test_a_gathering_over_shared_memory_is_interrupted(void **state)
{
  (void)state;
  interrupted((job){.shares = true});
}

static void test_runs_of_threads_are_interrupted(void **state)
{
  (void)state;
  for (uint32_t lane = XFER_LANE_DIRECT; lane <= XFER_LANE_BROADCAST; lane++)
    interrupted((job){.runs = true, .lane = lane});
}

static void test_runs_over_shared_memory_are_interrupted(void **state)
{
  (void)state;
  for (uint32_t lane = XFER_LANE_PACKED; lane <= XFER_LANE_BROADCAST; lane++)
    interrupted((job){.shares = true, .runs = true, .lane = lane});
}

/* As a program that goes on after a signal: the function said no, and all is as if nobody had
 * asked. */
static int never(void *n_asked)
{
  ++*(_Atomic int *)n_asked;
  return 0;
}

static void go_on(int rank, void *context)
{
  static _Atomic int n_asked;
  const int64_t began = xfi_now_ns();
  job *j = context;
  char all[RANKS];

  if (rank == 0) xfer_interrupt_set(never, &n_asked);
  while (rank == LATE && n_asked < 3 && xfi_now_ns() - began < AT_ONCE_MS * INT64_C(1000000))
    (void)usleep(1000);
  expect(n_asked >= 3 || rank != LATE);
  expect(xfer_comm_all_gather(j->comms[rank], all, "x", 1) == XFER_OK);
  interrupt_no_more();
}

static void test_who_says_no_waits_on(void **state)
{
  (void)state;
  job j = {.shares = false};

  assert_int_equal(xfer_comm_create_local(j.comms, RANKS), XFER_OK);
  run_ranks(RANKS, go_on, &j);
  for (int r = 0; r < RANKS; r++)
    xfer_comm_destroy(j.comms[r]);
  assert_all_as_expected();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_gathering_of_threads_is_interrupted),
      cmocka_unit_test(test_a_gathering_over_shared_memory_is_interrupted),
      cmocka_unit_test(test_runs_of_threads_are_interrupted),
      cmocka_unit_test(test_runs_over_shared_memory_are_interrupted),
      cmocka_unit_test(test_who_says_no_waits_on),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
