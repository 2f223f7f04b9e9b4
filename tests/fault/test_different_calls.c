/* Ranks in different calls wait for each other: all are told which calls these are. */
#include "fault/fault.h"
#include "run.h"
#include "unit/interrupts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { SHORT_MS = 1500, JUST_MS = 150, MOST_TRIES = 8 };

typedef struct job {
  uint32_t lane;
  xfer_comm *comms[N_RANKS];
  outcome outcomes[N_RANKS];
} job;

/* What rank 1 is in. */
static xfer_status create(job *j, input *in, xfer_plan *plan)
{
  (void)plan;
  return xfer_plan_create(&plan, j->comms[1], in->tensors, in->n_tensors, &in->options);
}

static xfer_status run(job *j, input *in, xfer_plan *plan)
{
  (void)j, (void)in;
  return xfer_plan_run(plan, 1, NULL);
}

/* The others commit. */
static void call_differently(int rank, job *j, xfer_status (*odd)(job *, input *, xfer_plan *))
{
  input in;
  xfer_plan *plan = NULL;

  input_create(&in, rank);
  in.options.lane = j->lane;
  expect(xfer_plan_create(&plan, j->comms[rank], in.tensors, in.n_tensors, &in.options) == XFER_OK);
  expect(input_bind(&in, plan) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  if (odd == run) plan->options.timeout_ms = SHORT_MS;
  j->outcomes[rank] = outcome_of(rank == 1 ? odd(j, &in, plan) : xfer_plan_commit(plan));
  if (rank == 1 && odd != create) expect(xfer_plan_wait(plan, 0) != XFER_OK);
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

/* Who tells others of its run that failed is in xfer_plan_wait() by then. */
static bool all_are_told(const job *j, const char *odd)
{
  for (int r = 0; r < N_RANKS; r++) {
    const outcome *o = &j->outcomes[r];

    if (o->st != XFER_ERR_MISMATCH && o->st != XFER_ERR_COMM) return false;
    if (strstr(o->text, "in xfer_plan_commit()") == NULL) return false;
    if (strstr(o->text, odd) == NULL && (r == 1 || strstr(o->text, "in xfer_plan_wait()") == NULL))
      return false;
  }
  return true;
}

/* ---- both gather: not how many bytes, which says nothing to a caller ----------------------- */

static void one_creates(int rank, void *context)
{
  call_differently(rank, context, create);
}

static void test_ranks_in_different_calls_are_told_which(void **state)
{
  job j = {.lane = XFER_LANE_AUTO};

  (void)state;
  make_comms(j.comms);
  run_ranks(N_RANKS, one_creates, &j);
  destroy_comms(j.comms);
  assert_all_as_expected();
  assert_true(all_are_told(&j, "in xfer_plan_create()"));
}

/* ---- one waits for flags or messages, in a circle until the deadline ----------------------- */

static void one_runs(int rank, void *context)
{
  call_differently(rank, context, run);
}

/* On a loaded host rank 1 may give up before the others have come. */
static void test_a_run_beside_another_call_is_told_by_its_deadline(void **state)
{
  (void)state;
  for (uint32_t lane = XFER_LANE_DIRECT; lane <= XFER_LANE_BROADCAST; lane++) {
    job j = {.lane = lane};
    bool are_told = false;

    for (int i = 0; i < MOST_TRIES && !are_told; i++) {
      make_comms(j.comms);
      run_ranks(N_RANKS, one_runs, &j);
      destroy_comms(j.comms);
      assert_all_as_expected();
      are_told = all_are_told(&j, "in xfer_plan_run()");
    }
    assert_true(are_told);
  }
}

static xfer_status run_interrupted(job *j, input *in, xfer_plan *plan)
{
  xfer_status st;

  (void)j, (void)in;
  plan->options.timeout_ms = SHORT_MS;
  interrupt_after(SHORT_MS - JUST_MS);
  st = xfer_plan_run(plan, 1, NULL);
  interrupt_no_more();
  return st;
}

static void one_is_interrupted(int rank, void *context)
{
  call_differently(rank, context, run_interrupted);
}

/* Its deadline passes while it looks who is late. On a loaded host it may pass before. */
static void test_an_interrupt_just_before_the_deadline_is_one(void **state)
{
  (void)state;
  for (uint32_t lane = XFER_LANE_DIRECT; lane <= XFER_LANE_BROADCAST; lane++) {
    job j = {.lane = lane};
    bool is_told = false;

    for (int i = 0; i < MOST_TRIES && !is_told; i++) {
      make_comms(j.comms);
      run_ranks(N_RANKS, one_is_interrupted, &j);
      destroy_comms(j.comms);
      assert_all_as_expected();
      is_told = j.outcomes[1].st == XFER_ERR_TIMEOUT &&
                strstr(j.outcomes[1].text, "this rank was interrupted") != NULL;
    }
    assert_true(is_told);
  }
}

/* ---- both run, but other plans, whose messages differ ---------------------------------------- */

/* Rank 1 begins with the plan of more rows. */
static void cross_plans(int rank, void *context)
{
  static const char *const lines[2] = {"u8[4,4] (4):S0 -> (4):S1", "u8[4,400] (4):S0 -> (4):S1"};
  job *j = context;
  static unsigned char memory[N_RANKS][2][400];
  const xfer_view src = xfer_view_dense(memory[rank][0]);
  const xfer_view dst = xfer_view_dense(memory[rank][1]);
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_layout *layouts[2][2];
  xfer_plan *plans[2];
  xfer_status st;

  options.lane = j->lane;
  for (int p = 0; p < 2; p++) {
    expect(xfer_problem_parse(&layouts[p][0], &layouts[p][1], lines[p]) == XFER_OK);
    const xfer_tensor tensor = {"t", layouts[p][0], layouts[p][1], {0}};
    expect(xfer_plan_create(&plans[p], j->comms[rank], &tensor, 1, &options) == XFER_OK);
    expect(xfer_plan_bind(plans[p], 0, &src, &dst) == XFER_OK);
    expect(xfer_plan_commit(plans[p]) == XFER_OK);
  }
  st = xfer_plan_run(plans[rank == 1], 1, NULL);
  if (st == XFER_OK) st = xfer_plan_wait(plans[rank == 1], 0);
  j->outcomes[rank] = outcome_of(st);
  for (int p = 0; p < 2; p++) {
    xfer_plan_destroy(plans[p]);
    xfer_layout_destroy(layouts[p][0]);
    xfer_layout_destroy(layouts[p][1]);
  }
}

static void test_messages_of_other_plans_are_told_apart_and_why(void **state)
{
  (void)state;
  for (uint32_t lane = XFER_LANE_PACKED; lane <= XFER_LANE_BROADCAST; lane++) {
    job j = {.lane = lane};

    make_comms(j.comms);
    run_ranks(N_RANKS, cross_plans, &j);
    destroy_comms(j.comms);
    assert_all_as_expected();
    for (int r = 0; r < N_RANKS; r++) {
      assert_true(j.outcomes[r].st == XFER_ERR_MISMATCH || j.outcomes[r].st == XFER_ERR_COMM);
      assert_non_null(strstr(j.outcomes[r].text, "all ranks make the same calls in one order"));
    }
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ranks_in_different_calls_are_told_which),
      cmocka_unit_test(test_a_run_beside_another_call_is_told_by_its_deadline),
      cmocka_unit_test(test_an_interrupt_just_before_the_deadline_is_one),
      cmocka_unit_test(test_messages_of_other_plans_are_told_apart_and_why),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
