/* Ranks that come late, never, or leave: the others end with an error in bounded time, the plan
 * says that its destinations are torn, nobody touches memory that was given back, and where all
 * ranks are still there the next commit makes the plan whole.
 */
#include "error.h"
#include "fault/fault.h"
#include "run.h"
#include "unit/in_time.h"
#include "xfer/exchange.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

enum { SHORT_MS = 500, LOST = 3, MOST_JOBS = 8 };

typedef struct job {
  uint32_t lane;
  uint32_t ranks_per_domain;
  bool waits;            /* the others call wait after their failed run */
  _Atomic int n_gave_up; /* of the others */
  xfer_comm *comms[N_RANKS];
  input inputs[N_RANKS];
  xfer_plan *plans[N_RANKS];
} job;

static int64_t now_ms(void)
{
  struct timespec t;

  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void sleep_ms(int ms)
{
  const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

  (void)nanosleep(&t, NULL);
}

enum { LONG_MS = 60000 };

/* Up to the first run. That alone has a short deadline, since a loaded machine is slow to commit.
 */
static void begin(job *j, int rank, uint64_t run_timeout_ms)
{
  input *in = &j->inputs[rank];

  input_create(in, rank);
  in->options.lane = j->lane;
  in->options.ranks_per_domain = j->ranks_per_domain;
  in->options.window_bytes = 32;
  in->options.timeout_ms = LONG_MS;
  expect(xfer_plan_create(&j->plans[rank], j->comms[rank], in->tensors, in->n_tensors,
                          &in->options) == XFER_OK);
  expect(input_bind(in, j->plans[rank]) == XFER_OK);
  expect(xfer_plan_commit(j->plans[rank]) == XFER_OK);
  j->plans[rank]->options.timeout_ms = run_timeout_ms;
}

static void end(job *j, int rank)
{
  xfer_plan_destroy(j->plans[rank]);
  input_destroy(&j->inputs[rank]);
}

static xfer_plan_report_data report_of(const job *j, int rank)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;

  expect(xfer_plan_report(j->plans[rank], &report) == XFER_OK);
  return report;
}

/* What the late rank waits for: its sleep may end before a loaded host has let the others give up.
 */
static void await_the_others(const job *j)
{
  const int64_t began = now_ms();

  while (j->n_gave_up < N_RANKS - 1 && now_ms() - began < LONG_MS)
    sleep_ms(1);
  expect(j->n_gave_up == N_RANKS - 1);
}

/* Side by side, since most of the time is waiting. */
typedef struct jobs {
  job at[MOST_JOBS];
  int n;
  rank_body *body;
} jobs;

static void play_one(int member, void *context)
{
  jobs *all = context;

  all->body(member % N_RANKS, &all->at[member / N_RANKS]);
}

static void play_all(jobs *all)
{
  for (int i = 0; i < all->n; i++)
    make_comms(all->at[i].comms);
  run_ranks(all->n * N_RANKS, play_one, all);
  for (int i = 0; i < all->n; i++)
    destroy_comms(all->at[i].comms);
  assert_all_as_expected();
}

static void play_lanes(rank_body *body)
{
  jobs all = {.n = 4, .body = body};

  for (uint32_t lane = XFER_LANE_AUTO; lane <= XFER_LANE_BROADCAST; lane++)
    all.at[lane].lane = lane;
  play_all(&all);
}

/* ---- never -------------------------------------------------------------------------------- */

static void run_without_one(int rank, void *context)
{
  job *j = context;
  int64_t start;
  xfer_status st;

  begin(j, rank, SHORT_MS);
  start = now_ms();
  if (rank != LOST) {
    st = xfer_plan_run(j->plans[rank], 7, NULL);
    expect(rank != 0 || st != XFER_OK); /* every flow of the lost rank begins at rank 0 */
    expect(st == XFER_OK || strstr(xfer_last_error(), "rank") != NULL);
    expect(xfer_plan_wait(j->plans[rank], SHORT_MS) != XFER_OK);
    expect(report_of(j, rank).torn == 1);
    expect(report_of(j, rank).committed_version == 0);
    expect(xfer_plan_run(j->plans[rank], 8, NULL) != XFER_OK);
    expect(now_ms() - start < LONG_MS / 2);
  }
  end(j, rank);
}

static void test_a_rank_that_never_runs_is_an_error_of_all_others(void **state)
{
  (void)state;
  play_lanes(run_without_one);
}

/* Rank 0 alone has flows with the lost rank, and more patience than those who wait for rank 0. */
static void name_the_lost(int rank, void *context)
{
  job *j = context;
  xfer_status st;

  begin(j, rank, rank == 0 || rank == LOST ? LONG_MS : (uint64_t)time_ms);
  while (rank == LOST && j->n_gave_up < N_RANKS - 2)
    sleep_ms(1);
  st = xfer_plan_run(j->plans[rank], 1, NULL);
  if (st == XFER_OK) st = xfer_plan_wait(j->plans[rank], 0);
  expect(st != XFER_OK);
  if (rank != 0 && rank != LOST && strstr(xfer_last_error(), "rank 3") == NULL) {
    (void)fprintf(stderr, "lane %u, rank %d: %s\n", j->lane, rank, xfer_last_error());
    expect_in_time(false);
  }
  j->n_gave_up++;
  end(j, rank);
}

static void name_the_lost_by_every_lane(void *context)
{
  (void)context;
  play_lanes(name_the_lost);
}

static void test_the_lost_rank_is_named_by_those_who_wait_for_another(void **state)
{
  (void)state;
  assert_true(in_time(SHORT_MS, name_the_lost_by_every_lane, NULL));
}

/* ---- left --------------------------------------------------------------------------------- */

static void leave(int rank, void *context)
{
  job *j = context;
  const int64_t start = now_ms();

  begin(j, rank, SHORT_MS);
  if (rank == LOST) {
    end(j, rank);
    xfer_comm_destroy(j->comms[rank]);
    j->comms[rank] = NULL;
    return;
  }
  if (xfer_plan_run(j->plans[rank], 1, NULL) == XFER_OK) expect(rank != 0);
  expect(xfer_plan_wait(j->plans[rank], 0) != XFER_OK);
  expect(report_of(j, rank).torn == 1);
  expect(xfer_plan_commit(j->plans[rank]) != XFER_OK);
  expect(xfer_redistribute(j->comms[rank], j->inputs[rank].src[0], &j->inputs[rank].src_views[0],
                           j->inputs[rank].dst[0], &j->inputs[rank].dst_views[0],
                           NULL) == XFER_ERR_COMM);
  expect(now_ms() - start < LONG_MS / 2);
  end(j, rank);
}

static void test_a_rank_that_destroys_its_comm_is_an_error_of_all_others(void **state)
{
  (void)state;
  play_lanes(leave);
}

/* ---- late --------------------------------------------------------------------------------- */

/* The others have given up, and given their plans and memory back, when the late rank begins. */
static void run_late(int rank, void *context)
{
  job *j = context;
  xfer_status st;

  begin(j, rank, SHORT_MS);
  if (rank == LOST) await_the_others(j);
  st = xfer_plan_run(j->plans[rank], 1, NULL);
  expect((rank != LOST && rank != 0) || st != XFER_OK);
  if (j->waits) expect(xfer_plan_wait(j->plans[rank], 0) != XFER_OK);
  end(j, rank);
  j->n_gave_up++;
}

static void test_a_late_rank_touches_nothing_of_those_who_gave_up(void **state)
{
  jobs all = {.n = 8, .body = run_late};

  (void)state;
  for (uint32_t i = 0; i < 8; i++) {
    all.at[i].lane = i / 2;
    all.at[i].waits = i % 2 != 0;
  }
  play_all(&all);
}

/* All meet again in wait: the plan is whole after a commit. */
static void run_late_and_again(int rank, void *context)
{
  job *j = context;

  begin(j, rank, SHORT_MS);
  if (rank == LOST) await_the_others(j);
  if (xfer_plan_run(j->plans[rank], 1, NULL) == XFER_OK) expect(rank != 0);
  j->n_gave_up++;
  j->plans[rank]->options.timeout_ms = LONG_MS;
  expect(xfer_plan_wait(j->plans[rank], 0) != XFER_OK);
  expect(report_of(j, rank).torn == 1);
  expect(report_of(j, rank).committed_version == 0);
  expect(xfer_plan_run(j->plans[rank], 1, NULL) == XFER_ERR_STATE);
  expect(xfer_plan_commit(j->plans[rank]) == XFER_OK);
  expect(xfer_plan_run(j->plans[rank], 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(j->plans[rank], 0) == XFER_OK);
  expect(is_delivered(&j->inputs[rank]));
  expect(report_of(j, rank).torn == 0);
  expect(report_of(j, rank).committed_version == 1);
  end(j, rank);
}

static void test_a_torn_plan_is_whole_after_the_next_commit_and_run(void **state)
{
  jobs all = {.n = 1, .body = run_late_and_again};

  (void)state;
  all.at[0].lane = XFER_LANE_DIRECT;
  play_all(&all);
}

/* What xfer_redistribute() does with a cached plan. */
static xfer_status run_and_assume_complete(xfer_plan *plan)
{
  xfer_status st = xfi_run_start(plan, plan->version + 1, NULL);
  const xfer_status told = xfi_run_assume_complete(plan);

  return st != XFER_OK ? st : told;
}

static void run_once_late_and_again(int rank, void *context)
{
  job *j = context;
  xfer_status st;

  begin(j, rank, SHORT_MS);
  if (rank == LOST) await_the_others(j);
  st = run_and_assume_complete(j->plans[rank]);
  expect((rank != LOST && rank != 0) || st != XFER_OK);
  j->n_gave_up++;
  while (j->n_gave_up < N_RANKS)
    xfi_sleep_ns(1000 * 1000);
  (void)xfi_run_check(j->plans[rank]); /* who had all in time is told now, as by the next call */
  j->plans[rank]->options.timeout_ms = LONG_MS;
  for (int i = 0; i < 2; i++) {
    memset(j->inputs[rank].dst_memory, POISON, sizeof j->inputs[rank].dst_memory);
    expect(xfi_plan_commit(j->plans[rank], XFER_OK) == XFER_OK);
    expect(run_and_assume_complete(j->plans[rank]) == XFER_OK);
    expect(is_delivered(&j->inputs[rank]));
  }
  end(j, rank);
}

static void test_a_failed_redistribution_does_not_spoil_the_next(void **state)
{
  jobs all = {.n = 1, .body = run_once_late_and_again};

  (void)state;
  all.at[0].lane = XFER_LANE_DIRECT;
  play_all(&all);
}

/* The last rank makes none of these calls. */
static void wait_in_vain(int rank, void *context)
{
  job *j = context;
  xfer_comm *comm = j->comms[rank];
  const bool kept = j->waits; /* a plan was kept before the deadline was set */
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  uint64_t mine = 1;
  uint64_t all[N_RANKS];
  const xfer_view from = xfer_view_dense(&mine);
  const xfer_view to = xfer_view_dense(all);
  const int64_t began = now_ms();

  expect(xfer_problem_parse(&src, &dst, "u64[4] (4):S0 -> (4):R") == XFER_OK);
  if (kept) expect(xfer_redistribute(comm, src, &from, dst, &to, NULL) == XFER_OK);
  expect(xfer_comm_set_timeout(comm, SHORT_MS) == XFER_OK);
  expect(xfer_comm_check(comm) == XFER_OK);
  if (rank != LOST) {
    const xfer_status st = j->lane == XFER_LANE_DIRECT ? xfer_comm_register(comm, &mine)
                           : j->lane == XFER_LANE_PACKED
                               ? xfer_comm_all_gather(comm, all, &mine, sizeof mine)
                               : xfer_redistribute(comm, src, &from, dst, &to, NULL);

    expect(st == XFER_ERR_TIMEOUT || st == XFER_ERR_COMM);
    expect(now_ms() - began < LONG_MS);
    expect(xfer_comm_check(comm) == XFER_ERR_COMM);
  }
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

static void test_a_comm_has_a_deadline_of_its_own(void **state)
{
  jobs all = {.n = 4, .body = wait_in_vain};

  (void)state;
  for (int i = 0; i < all.n; i++)
    all.at[i].lane = (uint32_t)i; /* which call it is */
  all.at[3].waits = true;
  play_all(&all);
  assert_int_equal(xfer_comm_set_timeout(NULL, 1), XFER_ERR_ARG);
}

static void plan_by_the_comms_deadline(int rank, void *context)
{
  job *j = context;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_plan *plan = NULL;

  expect(xfer_comm_set_timeout(j->comms[rank], UINT64_MAX) == XFER_ERR_ARG);
  expect(xfer_comm_set_timeout(j->comms[rank], 7000 + (uint64_t)(rank == 1)) == XFER_OK);
  expect(xfer_plan_create(&plan, j->comms[rank], NULL, 0, NULL) == XFER_ERR_MISMATCH);
  expect(strcmp(xfer_last_error(), "plan option timeout_ms is 7001 on rank 1, 7000 on rank 0") ==
         0);
  options.timeout_ms = 8000;
  expect(xfer_plan_create(&plan, j->comms[rank], NULL, 0, &options) == XFER_OK);
  expect(plan->options.timeout_ms == 8000);
  xfer_plan_destroy(plan);
  expect(xfer_comm_set_timeout(j->comms[rank], 0) == XFER_OK);
  expect(xfer_plan_create(&plan, j->comms[rank], NULL, 0, NULL) == XFER_OK);
  expect(plan->options.timeout_ms == 600000);
  xfer_plan_destroy(plan);
}

static void test_plans_have_the_comms_deadline_or_their_own(void **state)
{
  jobs all = {.n = 1, .body = plan_by_the_comms_deadline};

  (void)state;
  play_all(&all);
}

/* ---- relays -------------------------------------------------------------------------------- */

/* Of the ways, the one whose ranks 2 and 3 are a domain and relay to each other what they want. */
enum { RELAYING_WAY = 3, FAILING = 3, LATE = 2, WAIT_MS = 20000 };

static _Thread_local const xfi_device_ops *sound_device;
static _Atomic bool late_is_there; /* it has what comes from outside, and looks at its relays */
static _Atomic bool failed_is_gone;
static _Atomic bool late_is_over;
static _Thread_local int n_checks; /* of streams, in a run: of the plan, then of its relays */

static void await(const _Atomic bool *flag)
{
  for (int ms = 0; ms < WAIT_MS && !*flag; ms++)
    sleep_ms(1);
  expect(*flag);
}

static xfer_status check_late(xfi_device *device, xfer_stream stream)
{
  (void)device, (void)stream;
  if (++n_checks == 2) {
    late_is_there = true;
    await(&failed_is_gone);
  }
  return XFER_OK;
}

static xfer_status unpack_never(xfi_device *device, xfi_batch *batch, xfer_stream stream,
                                xfi_event *turn)
{
  (void)device, (void)batch, (void)stream, (void)turn;
  await(&late_is_there);
  xfi_set_error("for the test");
  return XFER_ERR_CUDA;
}

/* Rank 3 fails before its relays, and gives its plan back; rank 2 comes to its own after that. */
static void relay_to_one_that_left(int rank, void *context)
{
  job *j = context;
  input *in = &j->inputs[rank];
  xfer_plan *plan;
  xfi_device_ops ops;
  xfer_status st;

  begin(j, rank, LONG_MS);
  plan = j->plans[rank];
  sound_device = plan->device->ops;
  ops = *sound_device;
  ops.stream_check = rank == LATE ? check_late : ops.stream_check;
  ops.batch_launch = rank == FAILING ? unpack_never : ops.batch_launch;
  plan->device->ops = &ops;
  expect(plan->relay != NULL);
  st = xfer_plan_run(plan, 1, NULL);
  expect((rank != FAILING && rank != LATE) || st != XFER_OK);
  if (rank == LATE) expect(strstr(xfer_last_error(), "rank 3 aborted the run") != NULL);
  plan->device->ops = sound_device;
  if (rank == FAILING) {
    plan->comm->ops->abort(plan->comm, "for the test"); /* else wait would wait for the others */
    expect(xfer_plan_wait(plan, 0) != XFER_OK);
  }
  end(j, rank);
  if (rank == LATE) late_is_over = true;
  if (rank != FAILING) return;
  memset(in->dst_memory, POISON, sizeof in->dst_memory); /* which is nobody's but ours now */
  failed_is_gone = true;
  await(&late_is_over);
  expect(is_untouched(in));
}

static void test_a_peer_that_relays_late_touches_nothing_of_one_that_left(void **state)
{
  jobs all = {.n = 1, .body = relay_to_one_that_left};

  (void)state;
  all.at[0].lane = ways[RELAYING_WAY].lane;
  all.at[0].ranks_per_domain = ways[RELAYING_WAY].ranks_per_domain;
  play_all(&all);
}

/* ---- a life without faults ---------------------------------------------------------------- */

static void run_well(job *j, int rank, uint64_t version)
{
  input *in = &j->inputs[rank];

  memset(in->dst_memory, POISON, sizeof in->dst_memory);
  expect(xfer_plan_run(j->plans[rank], version, NULL) == XFER_OK);
  expect(xfer_plan_wait(j->plans[rank], 0) == XFER_OK);
  expect(is_delivered(in));
  expect(report_of(j, rank).committed_version == version);
}

static void release_and_rebind(int rank, void *context)
{
  job *j = context;
  input *in = &j->inputs[rank];
  _Alignas(16) unsigned char moved[PART_BYTES];

  begin(j, rank, LONG_MS);
  run_well(j, rank, 1);
  expect(xfer_plan_release(j->plans[rank]) == XFER_OK);
  expect(xfer_plan_release(j->plans[rank]) == XFER_OK);
  expect(xfer_plan_commit(j->plans[rank]) == XFER_OK);
  expect(xfer_plan_commit(j->plans[rank]) == XFER_OK);
  run_well(j, rank, 2);
  if (rank == 0) { /* one rank alone moves one source */
    memcpy(moved, in->src_memory[2], sizeof moved);
    memset(in->src_memory[2], 0, PART_BYTES);
    in->src_views[2] = xfer_view_dense(moved);
    expect(xfer_plan_bind(j->plans[rank], 2, &in->src_views[2], NULL) == XFER_OK);
  }
  expect(xfer_plan_commit(j->plans[rank]) == XFER_OK);
  run_well(j, rank, 3);
  if (rank == 1) expect(xfer_plan_bind(j->plans[rank], 0, NULL, NULL) == XFER_OK);
  expect(xfer_plan_commit(j->plans[rank]) != XFER_OK);
  end(j, rank); /* while it is not committed */
}

static void test_release_rebind_and_destroy_in_any_state(void **state)
{
  (void)state;
  play_lanes(release_and_rebind);
}

/* By a slip: the comm ends with the last of its plans, which go on until then. */
static void test_a_comm_that_is_given_back_ends_with_its_last_plan(void **state)
{
  float src[4] = {1, 2, 3, 4};
  float dst[4] = {0};
  const xfer_view from = xfer_view_dense(src);
  const xfer_view to = xfer_view_dense(dst);
  const xfer_operation bytes = xfer_operation_bytes(1, 0, sizeof src);
  xfer_tensor tensor = {"w", NULL, NULL, {0}};
  xfer_layout *sides[2];
  xfer_plan *plans[2];
  xfer_comm *comm;

  (void)state;
  assert_int_equal(xfer_problem_parse(&sides[0], &sides[1], "f32[4] (1):R -> (1):R"), XFER_OK);
  tensor.src = sides[0];
  tensor.dst = sides[1];
  assert_int_equal(xfer_comm_create_local(&comm, 1), XFER_OK);
  assert_int_equal(xfer_plan_create(&plans[0], comm, &tensor, 1, NULL), XFER_OK);
  assert_int_equal(xfer_plan_create_exchange(&plans[1], comm, &bytes, 1, &bytes, 1, NULL), XFER_OK);
  xfer_comm_destroy(comm);
  assert_int_equal(xfer_plan_bind(plans[0], 0, &from, &to), XFER_OK);
  assert_int_equal(xfer_plan_bind_exchange(plans[1], &from, &to), XFER_OK);
  for (int i = 0; i < 2; i++) {
    memset(dst, 0, sizeof dst);
    assert_int_equal(xfer_plan_commit(plans[i]), XFER_OK);
    assert_int_equal(xfer_plan_run(plans[i], 0, NULL), XFER_OK);
    assert_int_equal(xfer_plan_wait(plans[i], 0), XFER_OK);
    assert_memory_equal(dst, src, sizeof dst);
    xfer_plan_destroy(plans[i]);
    xfer_layout_destroy(sides[i]);
  }
}

/* ---- wrong arguments ----------------------------------------------------------------------- */

/* The comm's, or the plan's own where that can be one. */
static void test_a_rank_with_wrong_arguments_waits_until_its_deadline(void **state)
{
  static const uint64_t own_ms[] = {0, SHORT_MS};
  const xfer_operation none = xfer_operation_bytes(1, 99, 4);
  xfer_comm *comms[N_RANKS];
  input in;
  xfer_plan *plan = NULL;
  xfer_status st;

  (void)state;
  input_create(&in, 0);
  in.tensors[1].name = NULL;
  for (int i = 0; i < 4; i++) {
    const int64_t began = now_ms();

    make_comms(comms);
    in.options.timeout_ms = own_ms[i % 2];
    assert_int_equal(xfer_comm_set_timeout(comms[0], SHORT_MS), XFER_OK);
    st = i < 2 ? xfer_plan_create(&plan, comms[0], in.tensors, in.n_tensors, &in.options)
               : xfer_plan_create_exchange(&plan, comms[0], &none, 1, NULL, 0, &in.options);
    assert_int_equal(st, XFER_ERR_ARG);
    assert_true(now_ms() - began < LONG_MS / 2);
    destroy_comms(comms);
  }
  input_destroy(&in);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_rank_that_never_runs_is_an_error_of_all_others),
      cmocka_unit_test(test_the_lost_rank_is_named_by_those_who_wait_for_another),
      cmocka_unit_test(test_a_rank_that_destroys_its_comm_is_an_error_of_all_others),
      cmocka_unit_test(test_a_late_rank_touches_nothing_of_those_who_gave_up),
      cmocka_unit_test(test_a_torn_plan_is_whole_after_the_next_commit_and_run),
      cmocka_unit_test(test_a_failed_redistribution_does_not_spoil_the_next),
      cmocka_unit_test(test_a_comm_has_a_deadline_of_its_own),
      cmocka_unit_test(test_plans_have_the_comms_deadline_or_their_own),
      cmocka_unit_test(test_a_peer_that_relays_late_touches_nothing_of_one_that_left),
      cmocka_unit_test(test_release_rebind_and_destroy_in_any_state),
      cmocka_unit_test(test_a_comm_that_is_given_back_ends_with_its_last_plan),
      cmocka_unit_test(test_a_rank_with_wrong_arguments_waits_until_its_deadline),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
