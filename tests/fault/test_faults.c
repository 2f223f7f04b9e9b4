/* Faults met in the field by those who move weights between training and serving, each with what
 * guards against it here. The letters are those of a list of such faults; others of the list are
 * tested where their guard is: A8 and A9 in tests/property, E4, F1 and F3 in tests/multi, E5 in
 * test_lost_ranks.c, A7, A10 and B2 with the models in tests/refit.
 */
#include "fault/fault.h"
#include "run.h"
#include "unit/in_time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static xfer_comm *comms[N_RANKS];

static void with_ranks(rank_body *body)
{
  make_comms(comms);
  run_ranks(N_RANKS, body, NULL);
  destroy_comms(comms);
  assert_all_as_expected();
}

/* One tensor, or a few of one layout, that is planned and run once. */
typedef struct move {
  xfer_layout *src;
  xfer_layout *dst;
  xfer_tensor tensors[2];
  xfer_plan *plan;
} move;

static void move_create(move *m, int rank, const char *line, size_t n_tensors, uint64_t window)
{
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;

  *m = (move){.src = NULL};
  options.window_bytes = window;
  options.lane = window == 0 ? XFER_LANE_AUTO : XFER_LANE_PACKED;
  expect(xfer_problem_parse(&m->src, &m->dst, line) == XFER_OK);
  for (size_t t = 0; t < n_tensors; t++)
    m->tensors[t] = (xfer_tensor){t == 0 ? "gate" : "up", m->src, m->dst, {0}};
  expect(xfer_plan_create(&m->plan, comms[rank], m->tensors, n_tensors, &options) == XFER_OK);
}

static void move_run(move *m)
{
  expect(xfer_plan_commit(m->plan) == XFER_OK);
  expect(xfer_plan_run(m->plan, 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(m->plan, 0) == XFER_OK);
}

static void move_destroy(move *m)
{
  xfer_plan_destroy(m->plan);
  xfer_layout_destroy(m->src);
  xfer_layout_destroy(m->dst);
}

/* ---- A: layouts --------------------------------------------------------------------------- */

/* Each rank trains rows of [gate; up] of its own; the other side wants all of gate, then all of up:
 * gathered as [g0 u0 g1 u1] the sizes add up and the weights are wrong. */
static void fuse(int rank, void *context)
{
  enum { ROWS = 3, COLUMNS = 2 };
  int32_t memory[8 * ROWS * COLUMNS];
  move m;

  (void)context;
  for (int i = 0; i < 8 * ROWS * COLUMNS; i++)
    memory[i] = rank < 2 ? rank * 1000 + i : -1;
  move_create(&m, rank, "i32[6,2] (2)@0-1:S0 -> (2)@2-3:R", 2, 0);
  for (size_t t = 0; t < 2; t++) {
    const xfer_view src = xfer_view_dense(memory + t * ROWS * COLUMNS);
    const xfer_view dst = xfer_view_dense(memory + t * 2 * ROWS * COLUMNS);

    expect(xfer_plan_bind(m.plan, t, &src, &dst) == XFER_OK);
  }
  move_run(&m);
  for (int i = 0; i < 4 * ROWS * COLUMNS && rank >= 2; i++) {
    const int up = i / (2 * ROWS * COLUMNS);
    const int in_tensor = i % (2 * ROWS * COLUMNS);
    const int from = in_tensor / (ROWS * COLUMNS);

    expect(memory[i] == from * 1000 + up * ROWS * COLUMNS + in_tensor % (ROWS * COLUMNS));
  }
  move_destroy(&m);
}

static void test_a2_gate_and_up_of_all_ranks_stay_apart(void **state)
{
  (void)state;
  with_ranks(fuse);
}

/* An expert dim stands before the sharded one, and the shard dim was not shifted: sizes no longer
 * fit the other side. */
static void test_a3_a_shard_dim_that_was_not_shifted_is_named(void **state)
{
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;

  (void)state;
  assert_int_equal(xfer_problem_parse(&src, &dst, "bf16[5,8,6] (4):S0e -> (4):S1e"),
                   XFER_ERR_SHAPE);
  assert_non_null(strstr(xfer_last_error(), "dim 0"));
  assert_non_null(strstr(xfer_last_error(), "5"));
}

/* A vocabulary of 10, padded to 12 on one side and to 16 on the other. */
static void repad(int rank, void *context)
{
  unsigned char memory[16];
  move m;
  xfer_view view = xfer_view_dense(memory);

  (void)context;
  for (int i = 0; i < 16; i++) /* padding of the source is never read */
    memory[i] = (unsigned char)(rank < 2 && rank * 6 + i < 10 ? 1 + rank * 6 + i : 0xEE);
  move_create(&m, rank, "u8[10] (2)@0-1:S0;pad=0:12 -> (2)@2-3:S0;pad=0:16", 1, 0);
  expect(xfer_plan_bind(m.plan, 0, &view, &view) == XFER_OK);
  move_run(&m);
  for (int i = 0; i < 8 && rank >= 2; i++) {
    const int global = (rank - 2) * 8 + i;

    expect(memory[i] == (global < 10 ? 1 + global : 0));
  }
  for (int i = 8; i < 16 && rank >= 2; i++)
    expect(memory[i] == 0xEE);
  move_destroy(&m);
}

static void test_a4_vocabularies_with_other_paddings(void **state)
{
  (void)state;
  with_ranks(repad);
}

/* The sizes of all tensors are the same on all ranks, their order is not. */
static void reorder(int rank, void *context)
{
  input in;
  xfer_plan *plan = NULL;

  (void)context;
  input_create(&in, rank);
  in.tensors[1] = in.tensors[0];
  in.tensors[rank == 2].name = "query";
  in.tensors[rank != 2].name = "value";
  expect(xfer_plan_create(&plan, comms[rank], in.tensors, 2, NULL) == XFER_ERR_MISMATCH);
  expect(strstr(xfer_last_error(), "query") != NULL && strstr(xfer_last_error(), "value") != NULL);
  input_destroy(&in);
}

static void test_a6_another_order_of_equal_tensors_is_seen(void **state)
{
  (void)state;
  with_ranks(reorder);
}

/* Two destinations in one buffer, as far apart as the smaller one is long. */
static void clobber(int rank, void *context)
{
  int32_t memory[64] = {0};
  move m;

  (void)context;
  move_create(&m, rank, "i32[6,2] (2)@0-1:S0 -> (2)@2-3:R", 2, 0);
  for (size_t t = 0; t < 2; t++) {
    const xfer_view view = xfer_view_dense(memory + t * 11);

    expect(xfer_plan_bind(m.plan, t, &view, &view) == XFER_OK);
  }
  expect(xfer_plan_commit(m.plan) == (rank < 2 ? XFER_ERR_PEER : XFER_ERR_SHAPE));
  expect(strstr(xfer_last_error(), "\"gate\"") != NULL);
  expect(strstr(xfer_last_error(), "\"up\"") != NULL);
  move_destroy(&m);
}

static void test_a11_destinations_that_clobber_each_other_are_refused(void **state)
{
  (void)state;
  with_ranks(clobber);
}

/* ---- B, C: bytes -------------------------------------------------------------------------- */

static void mistype(int rank, void *context)
{
  move m = {.src = NULL};

  (void)context;
  expect(xfer_problem_parse(&m.src, &m.dst,
                            rank < 2 ? "f32[6,2] (2)@0-1:S0 -> (2)@2-3:R"
                                     : "bf16[6,2] (2)@0-1:S0 -> (2)@2-3:R") == XFER_OK);
  m.tensors[0] = (xfer_tensor){"gate", m.src, m.dst, {0}};
  expect(xfer_plan_create(&m.plan, comms[rank], m.tensors, 1, NULL) == XFER_ERR_MISMATCH);
  expect(strstr(xfer_last_error(), "bf16") != NULL && strstr(xfer_last_error(), "f32") != NULL);
  move_destroy(&m);
}

static void test_b1_bytes_of_another_type_are_never_sent(void **state)
{
  (void)state;
  with_ranks(mistype);
}

/* A transposed source and a destination with gaps: the bytes in the gaps stay. */
static void stride(int rank, void *context)
{
  const int64_t by_column[2] = {4, 12}; /* 3 rows a rank */
  const int64_t with_gaps[2] = {16, 8};
  int32_t memory[32];
  move m;
  xfer_view src = xfer_view_strided(memory, by_column, 2);
  xfer_view dst = xfer_view_strided(memory, with_gaps, 2);

  (void)context;
  for (int i = 0; i < 32; i++)
    memory[i] = -1;
  for (int x = 0; x < 3 && rank < 2; x++)
    for (int y = 0; y < 2; y++)
      memory[x + 3 * y] = (rank * 3 + x) * 10 + y;
  move_create(&m, rank, "i32[6,2] (2)@0-1:S0 -> (2)@2-3:R", 1, 0);
  expect(xfer_plan_bind(m.plan, 0, &src, &dst) == XFER_OK);
  move_run(&m);
  for (int i = 0; i < 32 && rank >= 2; i++)
    expect(memory[i] == (i < 24 && i % 2 == 0 ? i / 4 * 10 + i % 4 / 2 : -1));
  move_destroy(&m);
}

static void test_c1_tensors_that_are_not_contiguous(void **state)
{
  (void)state;
  with_ranks(stride);
}

/* The source is filled with the next step's values as soon as run has returned, and the destination
 * read: on a host all is done then. Every window of every message is full of data. */
static void overwrite(int rank, void *context)
{
  int32_t memory[12];
  move m;
  xfer_view view = xfer_view_dense(memory);

  (void)context;
  move_create(&m, rank, "i32[6,2] (2)@0-1:S0 -> (2)@2-3:R", 1, 16);
  expect(xfer_plan_bind(m.plan, 0, &view, &view) == XFER_OK);
  expect(xfer_plan_commit(m.plan) == XFER_OK);
  for (int step = 1; step <= 50; step++) {
    for (int i = 0; i < 6 && rank < 2; i++)
      memory[i] = step * 100 + rank * 6 + i;
    expect(xfer_plan_run(m.plan, (uint64_t)step, NULL) == XFER_OK);
    for (int i = 0; i < 6 && rank < 2; i++)
      memory[i] = -1;
    for (int i = 0; i < 12 && rank >= 2; i++)
      expect(memory[i] == step * 100 + i);
    expect(xfer_plan_wait(m.plan, 0) == XFER_OK);
  }
  move_destroy(&m);
}

static void test_c2_c3_nothing_is_read_late_and_no_byte_is_a_marker(void **state)
{
  (void)state;
  with_ranks(overwrite);
}

/* ---- D, H: what is said of a run ---------------------------------------------------------- */

static void count(int rank, void *context)
{
  static const uint64_t in_bytes[N_RANKS] = {0, 48 + 32, 48 + 4 + 32, 4 + 32};
  input in;
  xfer_plan *plan = NULL;
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;

  (void)context;
  input_create(&in, rank);
  in.options.lane = XFER_LANE_DIRECT;
  expect(xfer_plan_create(&plan, comms[rank], in.tensors, in.n_tensors, &in.options) == XFER_OK);
  expect(input_bind(&in, plan) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, 3, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  expect(is_delivered(&in));
  expect(xfer_plan_report(plan, &report) == XFER_OK);
  expect(report.n_tensors == N_TENSORS && report.payload_bytes == 96 + 5 + 32);
  expect(report.in_bytes == in_bytes[rank]);
  expect(report.self_bytes == (rank == 1 ? 24u : 0u));
  expect(report.zero_bytes == (rank == 3 ? 3u : 0u));
  expect(report.wire_bytes == report.in_bytes - report.self_bytes - report.zero_bytes);
  expect(report.committed_version == 3 && report.torn == 0);
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_d1_every_byte_is_counted_and_there(void **state)
{
  (void)state;
  with_ranks(count);
}

/* The second run fails: its version is not committed, the plan says that weights may be half new,
 * and after the next good run that they are whole. */
static void fail_once(int rank, void *context)
{
  input in;
  xfer_plan *plan = NULL;
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;

  (void)context;
  input_create(&in, rank);
  in.options.lane = XFER_LANE_PACKED;
  expect(xfer_plan_create(&plan, comms[rank], in.tensors, in.n_tensors, &in.options) == XFER_OK);
  expect(input_bind(&in, plan) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  plan->options.timeout_ms = 1000;
  if (rank != 0) { /* who holds a part of every source never comes */
    expect(xfer_plan_run(plan, 2, NULL) != XFER_OK);
    expect(xfer_plan_wait(plan, 0) != XFER_OK);
    expect(xfer_plan_report(plan, &report) == XFER_OK);
    expect(report.torn == 1 && report.committed_version == 1);
  }
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_d2_h1_a_failed_run_commits_no_version_and_says_torn(void **state)
{
  (void)state;
  with_ranks(fail_once);
  with_ranks(count); /* recovery: a new comm and a new plan of the same tensors */
}

/* ---- E, F --------------------------------------------------------------------------------- */

static xfer_comm *others[N_RANKS];

/* Two comms of the same ranks, whose calls cross: rank 0 makes its plan on the one while the others
 * are on the other. Nothing of one comm is taken for the other's. */
static void cross(int rank, void *context)
{
  input in;
  xfer_plan *plan = NULL;
  xfer_comm *const first = rank == 0 ? comms[rank] : others[rank];
  int all[N_RANKS];

  (void)context;
  input_create(&in, rank);
  in.options.timeout_ms = 500;
  expect(xfer_plan_create(&plan, first, in.tensors, in.n_tensors, &in.options) != XFER_OK);
  expect(plan == NULL);
  expect(xfer_comm_all_gather(rank == 0 ? others[rank] : comms[rank], all, &rank, sizeof rank) !=
         XFER_OK);
  input_destroy(&in);
}

static void test_e3_two_comms_in_another_order_end_at_the_deadline(void **state)
{
  (void)state;
  make_comms(others);
  with_ranks(cross);
  destroy_comms(others);
}

/* Two plans that rank 0 runs in another order: each waits for the others' data until its deadline,
 * and then hears why. */
static void cross_plans(int rank, void *context)
{
  int32_t memory[2][4] = {{0}};
  const xfer_view src = xfer_view_dense(memory[0]);
  const xfer_view dst = xfer_view_dense(memory[1]);
  move moves[2];

  (void)context;
  for (int p = 0; p < 2; p++) {
    move_create(&moves[p], rank, "i32[4,4] (4):S0 -> (4):S1", 1, 0);
    expect(xfer_plan_bind(moves[p].plan, 0, &src, &dst) == XFER_OK);
    expect(xfer_plan_commit(moves[p].plan) == XFER_OK);
    moves[p].plan->options.timeout_ms = (uint64_t)time_ms;
  }
  expect_in_time(xfer_plan_run(moves[rank == 0].plan, 1, NULL) == XFER_ERR_TIMEOUT);
  expect_in_time(xfer_plan_wait(moves[rank == 0].plan, 0) == XFER_ERR_MISMATCH);
  expect_in_time(strstr(xfer_last_error(), "rank 1 waits for plan 0 of the comm, rank 0 waits for "
                                           "plan 1") != NULL);
  move_destroy(&moves[0]);
  move_destroy(&moves[1]);
}

static void run_two_plans_in_another_order(void *context)
{
  (void)context;
  with_ranks(cross_plans);
}

static void test_e3_two_plans_in_another_order_are_told_apart(void **state)
{
  (void)state;
  assert_true(in_time(100, run_two_plans_in_another_order, NULL));
}

/* Who cannot take part in a gathering says so to those that wait there. */
static void gather_badly(int rank, void *context)
{
  const int way = *(const int *)context;
  const size_t size = rank != 0 ? 4 : way == 1 ? 0 : way == 2 ? SIZE_MAX / 2 : 4;
  int all[N_RANKS];
  const xfer_status st =
      xfer_comm_all_gather(comms[rank], all, rank == 0 && way == 0 ? NULL : &rank, size);
  const xfer_status own[] = {XFER_ERR_ARG, XFER_ERR_MISMATCH, XFER_ERR_OVERFLOW};
  const char *const says[] = {"rank 0: xfer_comm_all_gather: mine is NULL",
                              "all ranks make the same calls", "rank 0: all-gather of 92233720"};

  if (rank == 0) expect(st == own[way]);
  if (rank != 0) expect(st == (way == 1 ? XFER_ERR_MISMATCH : XFER_ERR_COMM));
  if (rank != 0) expect(strstr(xfer_last_error(), says[way]) != NULL);
}

static void test_a_gathering_with_one_wrong_rank_ends_on_all(void **state)
{
  (void)state;
  for (int way = 0; way < 3; way++) {
    make_comms(comms);
    run_ranks(N_RANKS, gather_badly, &way);
    destroy_comms(comms);
  }
  assert_all_as_expected();
}

/* A tensor of 40 windows, the last one short; the cap on staging is kept. */
static void split(int rank, void *context)
{
  enum { N = 159 };
  int32_t memory[N];
  move m;
  xfer_view view = xfer_view_dense(memory);
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;

  (void)context;
  for (int i = 0; i < N; i++)
    memory[i] = rank == 0 ? i : -1;
  move_create(&m, rank, "i32[159] (1)@0:R -> (1)@3:R", 1, 16);
  expect(xfer_plan_bind(m.plan, 0, &view, &view) == XFER_OK);
  move_run(&m);
  expect(xfer_plan_report(m.plan, &report) == XFER_OK);
  expect(report.n_rounds == (rank % 3 == 0 ? 40u : 0u));
  expect(report.staging_bytes <= 32);
  for (int i = 0; i < N && rank == 3; i++)
    expect(memory[i] == i);
  move_destroy(&m);
}

static void test_f2_a_tensor_larger_than_a_window_is_split(void **state)
{
  (void)state;
  with_ranks(split);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a2_gate_and_up_of_all_ranks_stay_apart),
      cmocka_unit_test(test_a3_a_shard_dim_that_was_not_shifted_is_named),
      cmocka_unit_test(test_a4_vocabularies_with_other_paddings),
      cmocka_unit_test(test_a6_another_order_of_equal_tensors_is_seen),
      cmocka_unit_test(test_a11_destinations_that_clobber_each_other_are_refused),
      cmocka_unit_test(test_b1_bytes_of_another_type_are_never_sent),
      cmocka_unit_test(test_c1_tensors_that_are_not_contiguous),
      cmocka_unit_test(test_c2_c3_nothing_is_read_late_and_no_byte_is_a_marker),
      cmocka_unit_test(test_d1_every_byte_is_counted_and_there),
      cmocka_unit_test(test_d2_h1_a_failed_run_commits_no_version_and_says_torn),
      cmocka_unit_test(test_e3_two_comms_in_another_order_end_at_the_deadline),
      cmocka_unit_test(test_e3_two_plans_in_another_order_are_told_apart),
      cmocka_unit_test(test_a_gathering_with_one_wrong_rank_ends_on_all),
      cmocka_unit_test(test_f2_a_tensor_larger_than_a_window_is_split),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
