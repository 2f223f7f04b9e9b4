/* Two plans in flight, of one of which a run fails or does not begin on a rank. What that rank does
 * before its wait for that run does not wait for ranks that are in the run: they are told before,
 * and nobody waits for the deadline.
 */
#include "fault/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const char why[] = "the loss is not a number";

/* How rank 1 does not begin the run of the first plan, and what all ranks do before they wait. */
typedef struct scenario {
  const char *name;
  uint32_t lane;
  bool by_version;  /* its version does not grow; otherwise the caller refuses */
  bool other_first; /* the other plan runs before the first one, otherwise after it */
  bool waits_first; /* the wait for the other plan comes first */
  bool gathers;     /* all gather bytes before they wait */
  bool destroys;    /* rank 1 destroys the plan in place of its wait */
} scenario;

static const scenario scenarios[] = {
    {.name = "run", .lane = XFER_LANE_DIRECT},
    {.name = "run, by version", .lane = XFER_LANE_DIRECT, .by_version = true},
    {.name = "wait", .lane = XFER_LANE_DIRECT, .other_first = true, .waits_first = true},
    {.name = "gather", .lane = XFER_LANE_DIRECT, .other_first = true, .gathers = true},
    {.name = "run, wait, gather", .lane = XFER_LANE_DIRECT, .waits_first = true, .gathers = true},
    {.name = "run, destroy", .lane = XFER_LANE_DIRECT, .waits_first = true, .destroys = true},
    {.name = "packed", .lane = XFER_LANE_PACKED},
    {.name = "packed, wait", .lane = XFER_LANE_PACKED, .other_first = true, .waits_first = true},
    {.name = "packed, gather", .lane = XFER_LANE_PACKED, .other_first = true, .gathers = true},
    {.name = "broadcast", .lane = XFER_LANE_BROADCAST}};
enum { N_SCENARIOS = sizeof scenarios / sizeof *scenarios };

static xfer_comm *comms[N_RANKS];

typedef struct one {
  input in;
  xfer_plan *plan;
} one;

static void start(one *x, int rank, uint32_t lane)
{
  input_create(&x->in, rank);
  x->in.options.lane = lane;
  expect(xfer_plan_create(&x->plan, comms[rank], x->in.tensors, x->in.n_tensors, &x->in.options) ==
         XFER_OK);
  expect(input_bind(&x->in, x->plan) == XFER_OK);
  expect(xfer_plan_commit(x->plan) == XFER_OK);
}

static void end(one *x)
{
  xfer_plan_destroy(x->plan);
  input_destroy(&x->in);
}

static void run_well(one *x, uint64_t version)
{
  memset(x->in.dst_memory, POISON, sizeof x->in.dst_memory);
  expect(xfer_plan_run(x->plan, version, NULL) == XFER_OK);
  expect(xfer_plan_wait(x->plan, 0) == XFER_OK);
  expect(is_delivered(&x->in));
}

/* The run that rank 1 does not begin. */
static void run_badly(const one *x, const scenario *s)
{
  const bool is_out = x->in.rank == 1;

  if (is_out && !s->by_version)
    expect(xfer_plan_refuse(x->plan, why) == XFER_OK);
  else if (is_out)
    expect(xfer_plan_run(x->plan, 1, NULL) == XFER_ERR_STATE);
  else
    (void)!xfer_plan_run(x->plan, 2, NULL);
}

static void wait_for_bad(const one *x, const scenario *s)
{
  const xfer_status st = xfer_plan_wait(x->plan, 0);

  expect(st != XFER_OK && st != XFER_ERR_TIMEOUT);
  expect((st == XFER_ERR_STATE) == (x->in.rank == 1));
  expect(strstr(xfer_last_error(), s->by_version ? "versions must grow" : why) != NULL);
}

/* Where data goes in messages the comm is broken. */
static void gather(int rank, const scenario *s)
{
  int all[N_RANKS];
  const xfer_status st = xfer_comm_all_gather(comms[rank], all, &rank, sizeof rank);

  expect(st == XFER_OK || (s->lane != XFER_LANE_DIRECT && st == XFER_ERR_COMM));
}

/* Where data goes directly, only the run that rank 1 did not begin fails. */
static void wait_for_good(const one *x, const scenario *s)
{
  const xfer_status st = xfer_plan_wait(x->plan, 0);

  expect(st != XFER_ERR_TIMEOUT);
  expect(s->lane != XFER_LANE_DIRECT || (st == XFER_OK && is_delivered(&x->in)));
}

static void play(int rank, void *context)
{
  const scenario *s = context;
  one bad, good;

  start(&bad, rank, s->lane);
  start(&good, rank, s->lane);
  run_well(&bad, 1);
  if (s->other_first) (void)!xfer_plan_run(good.plan, 2, NULL);
  run_badly(&bad, s);
  if (!s->other_first) (void)!xfer_plan_run(good.plan, 2, NULL);
  if (s->gathers) gather(rank, s);
  if (s->waits_first) wait_for_good(&good, s);
  if (s->destroys && rank == 1) {
    xfer_plan_destroy(bad.plan);
    bad.plan = NULL;
  } else if (s->destroys) {
    expect(xfer_plan_wait(bad.plan, 0) != XFER_OK);
  } else {
    wait_for_bad(&bad, s);
  }
  if (!s->waits_first) wait_for_good(&good, s);
  for (uint64_t version = 3; version < 5 && s->lane == XFER_LANE_DIRECT && !s->destroys;
       version++) {
    expect(xfer_plan_commit(bad.plan) == XFER_OK);
    run_well(&bad, version);
    run_well(&good, version);
  }
  end(&good);
  end(&bad);
}

static void test_ranks_in_a_run_are_told_before_another_call(void **state)
{
  (void)state;
  for (int i = 0; i < N_SCENARIOS; i++) {
    scenario s = scenarios[i];

    print_message("%s\n", s.name);
    make_comms(comms);
    run_ranks(N_RANKS, play, &s);
    destroy_comms(comms);
    assert_all_as_expected();
  }
}

/* No rank begins the run, and no rank waits for it: they run the other plan, and commit anew. */
static void refuse_on_all(int rank, void *context)
{
  one bad, good;

  (void)context;
  start(&bad, rank, XFER_LANE_DIRECT);
  start(&good, rank, XFER_LANE_DIRECT);
  run_well(&bad, 1);
  expect(xfer_plan_refuse(bad.plan, why) == XFER_OK);
  run_well(&good, 1);
  expect(xfer_plan_run(bad.plan, 2, NULL) == XFER_ERR_STATE);
  expect(xfer_plan_commit(bad.plan) == XFER_OK);
  run_well(&bad, 2);
  run_well(&good, 2);
  end(&good);
  end(&bad);
}

static void test_a_run_that_no_rank_begins_harms_none(void **state)
{
  (void)state;
  make_comms(comms);
  run_ranks(N_RANKS, refuse_on_all, NULL);
  destroy_comms(comms);
  assert_all_as_expected();
}

/* Rank 1 gives a version that does not grow, asks whether the other plan is done, and runs. */
static void ask_between(int rank, void *context)
{
  int is_over = 0;
  one first, other;

  (void)context;
  start(&first, rank, XFER_LANE_DIRECT);
  start(&other, rank, XFER_LANE_DIRECT);
  run_well(&first, 1);
  expect(xfer_plan_run(other.plan, 1, NULL) == XFER_OK);
  if (rank == 1) {
    expect(xfer_plan_run(first.plan, 1, NULL) == XFER_ERR_STATE);
    expect(xfer_plan_test(other.plan, &is_over) == XFER_OK);
  }
  run_well(&first, 2);
  expect(xfer_plan_wait(other.plan, 0) == XFER_OK);
  end(&other);
  end(&first);
}

static void test_to_ask_for_one_plan_does_not_fail_a_run_of_another(void **state)
{
  (void)state;
  make_comms(comms);
  run_ranks(N_RANKS, ask_between, NULL);
  destroy_comms(comms);
  assert_all_as_expected();
}

/* Rank 1 refuses a run that sends messages, runs a plan without messages, or tries to while that is
 * in flight, and destroys the first plan. Nobody else came to the run. */
static void skip_run(int rank, void *context)
{
  const bool is_in_flight = *(const bool *)context;
  one skipped, direct, packed;

  start(&skipped, rank, XFER_LANE_PACKED);
  start(&direct, rank, XFER_LANE_DIRECT);
  start(&packed, rank, XFER_LANE_PACKED);
  run_well(&skipped, 1);
  if (is_in_flight) expect(xfer_plan_run(direct.plan, 1, NULL) == XFER_OK);
  if (rank == 1) expect(xfer_plan_refuse(skipped.plan, why) == XFER_OK);
  if (is_in_flight && rank == 1) expect(xfer_plan_run(direct.plan, 2, NULL) == XFER_ERR_STATE);
  if (is_in_flight)
    expect(xfer_plan_wait(direct.plan, 0) == XFER_OK);
  else
    run_well(&direct, 1);
  end(&skipped);
  run_well(&packed, 1);
  run_well(&packed, 2);
  end(&packed);
  end(&direct);
}

static void test_a_refused_run_that_no_rank_came_to_is_not_counted(void **state)
{
  (void)state;
  for (int in_flight = 0; in_flight < 2; in_flight++) {
    bool is_in_flight = in_flight != 0;

    make_comms(comms);
    run_ranks(N_RANKS, skip_run, &is_in_flight);
    destroy_comms(comms);
    assert_all_as_expected();
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ranks_in_a_run_are_told_before_another_call),
      cmocka_unit_test(test_a_run_that_no_rank_begins_harms_none),
      cmocka_unit_test(test_to_ask_for_one_plan_does_not_fail_a_run_of_another),
      cmocka_unit_test(test_a_refused_run_that_no_rank_came_to_is_not_counted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
