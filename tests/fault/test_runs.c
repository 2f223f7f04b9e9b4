/* Runs that ranks do not agree on: other versions, and a run that one rank refuses; and memory that
 * would be read and written. By every lane; nobody waits for the deadline.
 */
#include "fault/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static xfer_comm *comms[N_RANKS];

static void by_every_lane(rank_body *body)
{
  for (uint32_t lane = XFER_LANE_DIRECT; lane <= XFER_LANE_BROADCAST; lane++) {
    make_comms(comms);
    run_ranks(N_RANKS, body, &lane);
    destroy_comms(comms);
    assert_all_as_expected();
  }
}

/* A committed plan of the small problem, by one lane. */
static void start(input *in, xfer_plan **plan, int rank, uint32_t lane)
{
  input_create(in, rank);
  in->options.lane = lane;
  expect(xfer_plan_create(plan, comms[rank], in->tensors, in->n_tensors, &in->options) == XFER_OK);
  expect(input_bind(in, *plan) == XFER_OK);
  expect(xfer_plan_commit(*plan) == XFER_OK);
}

static void run_again(input *in, xfer_plan *plan, uint64_t version)
{
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, version, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  expect(is_delivered(in));
}

static void disagree_on_the_version(int rank, void *context)
{
  input in;
  xfer_plan *plan = NULL;

  start(&in, &plan, rank, *(const uint32_t *)context);
  expect(xfer_plan_run(plan, rank == 1 ? 100 : 7, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_ERR_MISMATCH);
  expect(strstr(xfer_last_error(), "version 100") != NULL);
  expect(strstr(xfer_last_error(), "version 7") != NULL);
  run_again(&in, plan, 8);
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_versions_that_differ_are_seen_and_not_committed(void **state)
{
  (void)state;
  by_every_lane(disagree_on_the_version);
}

static void bind_elsewhere_and_back(input *in, xfer_plan *plan)
{
  static unsigned char elsewhere[PART_BYTES];
  const xfer_view dst = xfer_view_dense(elsewhere);

  expect(xfer_plan_bind(plan, 0, &in->src_views[0], &dst) == XFER_OK);
  expect(input_bind(in, plan) == XFER_OK);
}

/* Of a call that comes too early, and where messages are left over since the comm is broken. */
static bool is_too_early(xfer_status st, int rank, uint32_t lane)
{
  const bool whole = xfer_comm_check(comms[rank]) == XFER_OK;

  return (whole || lane != XFER_LANE_DIRECT) && st == (whole ? XFER_ERR_STATE : XFER_ERR_COMM);
}

/* One rank's version does not grow. It says so by waiting, and nobody waits for the deadline. */
static void refuse_one_run(int rank, void *context)
{
  const uint32_t lane = *(const uint32_t *)context;
  input in;
  xfer_plan *plan = NULL;
  xfer_status st = XFER_OK;

  start(&in, &plan, rank, lane);
  run_again(&in, plan, 5);
  st = xfer_plan_run(plan, rank == 1 ? 5 : 6, NULL);
  expect((st == XFER_ERR_STATE) == (rank == 1));
  expect(xfer_plan_bind(NULL, 0, NULL, NULL) == XFER_ERR_ARG); /* another text in between */
  if (rank == 1) bind_elsewhere_and_back(&in, plan);
  st = xfer_plan_wait(plan, 0);
  expect(st == XFER_ERR_STATE || rank != 1);
  expect(st != XFER_OK && st != XFER_ERR_TIMEOUT);
  if (rank == 1)
    expect(strstr(xfer_last_error(), "version 5 after version 5: versions must grow") != NULL);
  if (lane == XFER_LANE_DIRECT) run_again(&in, plan, 7);
  expect(is_too_early(xfer_plan_wait(plan, 0), rank, lane));
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_a_rank_whose_run_is_refused_lets_the_others_go(void **state)
{
  (void)state;
  by_every_lane(refuse_one_run);
}

/* One rank binds again and does not commit. It says so by waiting, and nobody waits for the
 * deadline.
 */
static void forget_the_commit(int rank, void *context)
{
  static const char *const why = "the plan is not committed since the last bind";
  static unsigned char elsewhere[PART_BYTES];
  const xfer_view dst = xfer_view_dense(elsewhere);
  const uint32_t lane = *(const uint32_t *)context;
  input in;
  xfer_plan *plan = NULL;
  xfer_status st = XFER_OK;

  start(&in, &plan, rank, lane);
  run_again(&in, plan, 5);
  if (rank == 1) expect(xfer_plan_bind(plan, 0, &in.src_views[0], &dst) == XFER_OK);
  st = xfer_plan_run(plan, 6, NULL);
  expect((st == XFER_ERR_STATE) == (rank == 1));
  expect(rank != 1 || strstr(xfer_last_error(), why) != NULL);
  st = xfer_plan_wait(plan, 0);
  expect((st == XFER_ERR_STATE) == (rank == 1));
  expect(st != XFER_OK && st != XFER_ERR_TIMEOUT && strstr(xfer_last_error(), why) != NULL);
  expect(input_bind(&in, plan) == XFER_OK);
  if (lane == XFER_LANE_DIRECT) run_again(&in, plan, 7);
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_a_rank_that_forgets_to_commit_lets_the_others_go(void **state)
{
  (void)state;
  by_every_lane(forget_the_commit);
}

/* All wait for data of rank 1, which breaks the comm in the place of its run, and keeps its plan:
 * nobody waits until the deadline. */
static atomic_int n_waiting;

static void break_the_comm(int rank, void *context)
{
  static unsigned char memory[N_RANKS][2];
  const xfer_view src = xfer_view_dense(&memory[rank][0]);
  const xfer_view dst = xfer_view_dense(&memory[rank][1]);
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor tensor = {.name = "from 1"};
  xfer_layout *layouts[2];
  xfer_plan *plan = NULL;
  xfer_status st = XFER_OK;

  options.lane = *(const uint32_t *)context;
  options.timeout_ms = 20000;
  expect(xfer_problem_parse(&layouts[0], &layouts[1], "u8[1] (1)@1:R -> (4):R") == XFER_OK);
  tensor.src = layouts[0];
  tensor.dst = layouts[1];
  expect(xfer_plan_create(&plan, comms[rank], &tensor, 1, &options) == XFER_OK);
  expect(xfer_plan_bind(plan, 0, rank == 1 ? &src : NULL, &dst) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  if (rank == 1) {
    expect(xfer_comm_all_gather(comms[1], NULL, NULL, 1) == XFER_ERR_ARG);
    while (atomic_load(&n_waiting) > 0)
      (void)usleep(1000);
  } else {
    (void)!xfer_plan_run(plan, 1, NULL);
    st = xfer_plan_wait(plan, 0);
    expect(st == XFER_ERR_COMM || st == XFER_ERR_PEER);
    expect(strstr(xfer_last_error(), "rank 1: xfer_comm_all_gather: all is NULL") != NULL);
    (void)atomic_fetch_sub(&n_waiting, 1);
  }
  xfer_plan_destroy(plan);
  xfer_layout_destroy(layouts[0]);
  xfer_layout_destroy(layouts[1]);
}

static void test_a_rank_that_breaks_the_comm_ends_the_runs_of_others(void **state)
{
  (void)state;
  for (uint32_t lane = XFER_LANE_DIRECT; lane <= XFER_LANE_BROADCAST; lane++) {
    make_comms(comms);
    atomic_store(&n_waiting, N_RANKS - 1);
    run_ranks(N_RANKS, break_the_comm, &lane);
    destroy_comms(comms);
    assert_all_as_expected();
  }
}

/* One rank's caller will not run: the others hear why, and the ranks go on where no message is
 * missing. */
static void refuse_by_the_caller(int rank, void *context)
{
  static const char *const why = "the loss is not a number";
  const uint32_t lane = *(const uint32_t *)context;
  input in;
  xfer_plan *plan = NULL;

  start(&in, &plan, rank, lane);
  if (rank == 2)
    expect(xfer_plan_refuse(plan, why) == XFER_OK &&
           xfer_plan_run(plan, 1, NULL) == XFER_ERR_STATE);
  else
    (void)!xfer_plan_run(plan, 1, NULL);
  if (rank == 2) bind_elsewhere_and_back(&in, plan);
  expect(rank != 2 || is_untouched(&in));
  expect(xfer_plan_refuse(plan, NULL) == XFER_ERR_ARG);
  expect((xfer_plan_wait(plan, 0) == XFER_ERR_STATE) == (rank == 2));
  expect(strstr(xfer_last_error(), why) != NULL);
  expect(rank == 2 || strstr(xfer_last_error(), "rank 2") != NULL);
  const bool whole = xfer_comm_check(comms[rank]) == XFER_OK;
  expect(whole || lane != XFER_LANE_DIRECT);
  expect(xfer_plan_refuse(plan, why) == (whole ? XFER_OK : XFER_ERR_COMM)); /* the next commit */
  expect(xfer_plan_wait(plan, 0) == (whole ? XFER_ERR_STATE : XFER_ERR_COMM));
  expect(!whole || strstr(xfer_last_error(), "refused the next commit, not a run") != NULL);
  if (lane == XFER_LANE_DIRECT) run_again(&in, plan, 2);
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_a_run_that_the_caller_refuses_is_said_on_every_rank(void **state)
{
  (void)state;
  by_every_lane(refuse_by_the_caller);
}

/* Who refuses and says nothing is still understood. */
static void refuse_without_a_reason(int rank, void *context)
{
  static const char *const why = "refused by the caller, who gave no reason";
  input in;
  xfer_plan *plan = NULL;

  start(&in, &plan, rank, *(const uint32_t *)context);
  if (rank == 2) expect(xfer_comm_refuse(comms[rank], "") == XFER_OK);
  expect(xfer_plan_commit(plan) == (rank == 2 ? XFER_ERR_ARG : XFER_ERR_PEER));
  expect(strstr(xfer_last_error(), why) != NULL);
  expect(xfer_plan_commit(plan) == XFER_OK);
  if (rank == 2)
    expect(xfer_plan_refuse(plan, "") == XFER_OK);
  else
    (void)!xfer_plan_run(plan, 1, NULL);
  expect((xfer_plan_wait(plan, 0) == XFER_ERR_STATE) == (rank == 2));
  expect(strstr(xfer_last_error(), why) != NULL);
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_a_refusal_without_a_reason_says_so(void **state)
{
  (void)state;
  by_every_lane(refuse_without_a_reason);
}

enum { N_CALLS = 10 };

/* The i-th of the calls that xfer_comm_refuse() names; where it is refused without arguments. */
static xfer_status call(int i, input *in, xfer_plan *plan, int rank, bool refused)
{
  xfer_comm *comm = comms[rank];
  xfer_plan *made = NULL;
  xfer_digest digests[8];
  const size_t n = refused ? 0 : in->n_tensors;
  xfer_layout *src = refused ? NULL : in->src[0];
  xfer_layout *dst = refused ? NULL : in->dst[0];
  xfer_status st = XFER_ERR_STATE;

  switch (i) {
  case 0:
    st = xfer_plan_create(&made, comm, refused ? NULL : in->tensors, n, NULL);
    break;
  case 1:
    st = xfer_plan_create_exchange(&made, comm, NULL, 0, NULL, 0, NULL);
    break;
  case 2:
    st = xfer_plan_commit(plan);
    break;
  case 3:
    st = xfer_plan_digest(plan, digests, n, XFER_PLAN_SRC, NULL);
    break;
  case 4:
    st = xfer_plan_check_replicas(plan, NULL);
    break;
  case 5:
    st = xfer_redistribute(comm, src, &in->src_views[0], dst, &in->dst_views[0], NULL);
    break;
  case 6:
    st = xfer_exchange(comm, NULL, NULL, 0, NULL, NULL, 0, NULL);
    break;
  case 7:
    st = xfer_comm_register(comm, refused ? NULL : in->src_views[0].base);
    break;
  case 8:
    st = xfer_comm_unregister(comm, refused ? NULL : in->src_views[0].base);
    break;
  default:
    st = xfer_plan_release(plan);
    break;
  }
  xfer_plan_destroy(made);
  return st;
}

/* Each call refused by one rank, and then made by all: nothing is left of the refusal. Commit comes
 * twice, since a plan whose commit failed wants another one. */
static void refuse_calls(int rank, void *context)
{
  static const char *const why = "no arguments for it";
  input in;
  xfer_plan *plan = NULL;

  start(&in, &plan, rank, *(const uint32_t *)context);
  expect(in.n_tensors <= 8);
  expect(xfer_comm_refuse(comms[rank], NULL) == XFER_ERR_ARG);
  for (int i = 0; i < N_CALLS; i++) {
    if (rank == 1) expect(xfer_comm_refuse(comms[rank], why) == XFER_OK);
    expect(call(i, &in, plan, rank, rank == 1) == (rank == 1 ? XFER_ERR_ARG : XFER_ERR_PEER));
    expect(strstr(xfer_last_error(), rank == 1 ? why : "rank 1: no arguments for it") != NULL);
    expect(call(i, &in, plan, rank, false) == XFER_OK);
  }
  run_again(&in, plan, 1);
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_a_call_that_the_caller_refuses_fails_on_every_rank(void **state)
{
  (void)state;
  by_every_lane(refuse_calls);
}

/* A plan whose ranks tell each other of a block that both have, and nothing else. After a good run
 * one of them refuses the next: who waits for its word on the block is told. */
static void refuse_where_blocks_are_cut(int rank, void *context)
{
  static const char *const lines[2] = {"f32[24,16] (2)@0-1:S0 -> f8e4m3 (2)@0-1:S0",
                                       "f32[2,1] (1):R -> (2)@0-1:S0"};
  float from[12 * 16] = {1};
  unsigned char to[12 * 16];
  float scale;
  const xfer_view views[3] = {xfer_view_dense(from), xfer_view_dense(to), xfer_view_dense(&scale)};
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_layout *layouts[4] = {NULL};
  xfer_plan *plan = NULL;

  options.lane = *(const uint32_t *)context;
  options.timeout_ms = 5000;
  for (int i = 0; i < 2; i++)
    expect(xfer_problem_parse(&layouts[2 * i], &layouts[2 * i + 1], lines[i]) == XFER_OK);
  const xfer_tensor tensors[2] = {
      {"weights", layouts[0], layouts[1], xfer_convert_blocks(16, 16, XFER_SCALE_F32)},
      {"scales", NULL, layouts[3], xfer_convert_scales_of(0)}};
  expect(xfer_plan_create(&plan, comms[rank], tensors, 2, &options) == XFER_OK);
  expect(xfer_plan_bind(plan, 0, &views[0], &views[1]) == XFER_OK);
  expect(xfer_plan_bind(plan, 1, NULL, &views[2]) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  if (rank == 1)
    expect(xfer_plan_refuse(plan, "no more") == XFER_OK);
  else
    expect(xfer_plan_run(plan, 2, NULL) != XFER_ERR_TIMEOUT);
  expect((xfer_plan_wait(plan, 0) == XFER_ERR_STATE) == (rank == 1));
  expect(strstr(xfer_last_error(), "no more") != NULL);
  xfer_plan_destroy(plan);
  for (int i = 0; i < 4; i++)
    xfer_layout_destroy(layouts[i]);
}

static void test_a_refused_run_is_said_where_blocks_are_cut(void **state)
{
  (void)state;
  by_every_lane(refuse_where_blocks_are_cut);
}

/* All ranks give an old version by mistake: nothing has happened, and the next is run. */
static void refuse_all(int rank, void *context)
{
  input in;
  xfer_plan *plan = NULL;

  start(&in, &plan, rank, *(const uint32_t *)context);
  expect(xfer_plan_run(plan, UINT64_MAX, NULL) == XFER_ERR_STATE);
  expect(xfer_plan_run(plan, 1, NULL) == XFER_OK);
  expect(xfer_plan_release(plan) == XFER_ERR_STATE);
  expect(strstr(xfer_last_error(), "releasing") != NULL);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  expect(is_delivered(&in));
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_a_run_that_all_ranks_refuse_changes_nothing(void **state)
{
  (void)state;
  by_every_lane(refuse_all);
}

/* Numbers of steps begin at 0. */
static void begin_at_0(int rank, void *context)
{
  input in;
  xfer_plan *plan = NULL;
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  int over = -1;

  start(&in, &plan, rank, *(const uint32_t *)context);
  expect(xfer_plan_test(plan, &over) == XFER_ERR_STATE && over == -1);
  expect(xfer_plan_run(plan, 0, NULL) == XFER_OK);
  expect(xfer_plan_test(plan, NULL) == XFER_ERR_ARG);
  expect(xfer_plan_test(plan, &over) == XFER_OK && over == 1); /* a host has moved it by now */
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  expect(xfer_plan_test(plan, &over) == XFER_ERR_STATE);
  expect(is_delivered(&in));
  expect(xfer_plan_run(plan, 0, NULL) == XFER_ERR_STATE);
  expect(strcmp(xfer_last_error(), "version 0 after version 0: versions must grow") == 0);
  over = -1;
  expect(xfer_plan_test(plan, &over) == XFER_OK && over == 1);
  expect(xfer_plan_wait(plan, 0) == XFER_ERR_STATE);
  run_again(&in, plan, 1);
  expect(xfer_plan_report(plan, &report) == XFER_OK && report.committed_version == 1);
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_versions_begin_at_0_and_grow(void **state)
{
  (void)state;
  by_every_lane(begin_at_0);
  assert_int_equal(xfer_plan_test(NULL, NULL), XFER_ERR_ARG);
}

/* Once the lanes are gone there is nothing left to tell the others of. */
static void refuse_and_release(int rank, void *context)
{
  input in;
  xfer_plan *plan = NULL;

  start(&in, &plan, rank, *(const uint32_t *)context);
  expect(xfer_plan_run(plan, UINT64_MAX, NULL) == XFER_ERR_STATE);
  expect(xfer_plan_release(plan) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_ERR_STATE);
  run_again(&in, plan, 1);
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_a_refused_run_is_forgotten_with_the_lanes(void **state)
{
  (void)state;
  by_every_lane(refuse_and_release);
}

/* Nothing is released, since the peers of either plan keep theirs: both go on. */
static void release_other_plans(int rank, void *context)
{
  input in[2];
  xfer_plan *plans[2] = {NULL, NULL};

  for (int p = 0; p < 2; p++)
    start(&in[p], &plans[p], rank, *(const uint32_t *)context);
  expect(xfer_plan_release(plans[rank == 1]) == XFER_ERR_MISMATCH);
  expect(strstr(xfer_last_error(), "rank 1 releases plan ") != NULL);
  for (int p = 0; p < 2; p++) {
    expect(xfer_plan_run(plans[p], 1, NULL) == XFER_OK);
    expect(xfer_plan_wait(plans[p], 0) == XFER_OK);
    expect(is_delivered(&in[p]));
  }
  for (int p = 0; p < 2; p++) {
    xfer_plan_destroy(plans[p]);
    input_destroy(&in[p]);
  }
}

static void test_ranks_that_release_other_plans_release_none(void **state)
{
  (void)state;
  by_every_lane(release_other_plans);
}

/* One tensor stays in memory that another is read from; one moves onto what a third is read from.
 */
static void share_memory(int rank, void *context)
{
  static const char *const line = "i32[4] (4):S0 -> (4):S0";
  int32_t kept = rank + 1;
  int32_t other = -1;
  const xfer_view kept_view = xfer_view_dense(&kept);
  const xfer_view other_view = xfer_view_dense(&other);
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;

  options.lane = *(const uint32_t *)context;
  expect(xfer_problem_parse(&src, &dst, line) == XFER_OK);
  const xfer_tensor tensors[] = {{"stays", src, dst, {0}}, {"moves", src, dst, {0}}};
  expect(xfer_plan_create(&plan, comms[rank], tensors, 2, &options) == XFER_OK);
  expect(xfer_plan_bind(plan, 0, &kept_view, &kept_view) == XFER_OK);
  expect(xfer_plan_bind(plan, 1, &kept_view, &other_view) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  expect(kept == rank + 1 && other == rank + 1);
  expect(xfer_plan_bind(plan, 0, &other_view, &kept_view) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_ERR_SHAPE);
  expect(strstr(xfer_last_error(), "the source view of tensor") != NULL);
  xfer_plan_destroy(plan);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

/* What stays has padding, which is zeroed, and which is no padding to another tensor. */
static void share_padding(int rank, void *context)
{
  int32_t kept[2] = {rank + 1, -1};
  int32_t other[2] = {-1, -1};
  const xfer_view kept_view = xfer_view_dense(kept);
  const xfer_view other_view = xfer_view_dense(other);
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_layout *src[2];
  xfer_layout *dst[2];
  xfer_plan *plan = NULL;

  options.lane = *(const uint32_t *)context;
  expect(xfer_problem_parse(&src[0], &dst[0], "i32[7] (4):S0;pad=0:8 -> (4):S0;pad=0:8") ==
         XFER_OK);
  expect(xfer_problem_parse(&src[1], &dst[1], "i32[8] (4):S0 -> (4):S0") == XFER_OK);
  const xfer_tensor tensors[] = {{"stays", src[0], dst[0], {0}}, {"reads", src[1], dst[1], {0}}};
  expect(xfer_plan_create(&plan, comms[rank], tensors, 2, &options) == XFER_OK);
  expect(xfer_plan_bind(plan, 0, &kept_view, &kept_view) == XFER_OK);
  expect(xfer_plan_bind(plan, 1, &kept_view, &other_view) == XFER_OK);
  const xfer_status st = xfer_plan_commit(plan);
  expect(st == (rank == 3 ? XFER_ERR_SHAPE : XFER_ERR_PEER));
  if (rank == 3)
    expect(strstr(xfer_last_error(), "the source view of tensor \"reads\" and the destination "
                                     "view of \"stays\" overlap") != NULL);
  xfer_plan_destroy(plan);
  for (int i = 0; i < 2; i++) {
    xfer_layout_destroy(src[i]);
    xfer_layout_destroy(dst[i]);
  }
}

static void test_memory_that_is_read_is_not_written(void **state)
{
  (void)state;
  by_every_lane(share_memory);
  by_every_lane(share_padding);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_versions_that_differ_are_seen_and_not_committed),
      cmocka_unit_test(test_a_rank_whose_run_is_refused_lets_the_others_go),
      cmocka_unit_test(test_a_rank_that_forgets_to_commit_lets_the_others_go),
      cmocka_unit_test(test_a_rank_that_breaks_the_comm_ends_the_runs_of_others),
      cmocka_unit_test(test_a_run_that_the_caller_refuses_is_said_on_every_rank),
      cmocka_unit_test(test_a_refusal_without_a_reason_says_so),
      cmocka_unit_test(test_a_call_that_the_caller_refuses_fails_on_every_rank),
      cmocka_unit_test(test_a_refused_run_is_said_where_blocks_are_cut),
      cmocka_unit_test(test_a_run_that_all_ranks_refuse_changes_nothing),
      cmocka_unit_test(test_versions_begin_at_0_and_grow),
      cmocka_unit_test(test_ranks_that_release_other_plans_release_none),
      cmocka_unit_test(test_a_refused_run_is_forgotten_with_the_lanes),
      cmocka_unit_test(test_memory_that_is_read_is_not_written),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
