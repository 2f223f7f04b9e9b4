/* Staged plans: destinations are the old ones until the wait, stay so where a rank fails before it,
 * and are the new ones after it. (Ranks that fail or die in every call: tests/fault, half of whose
 * points are staged.) */
#include "fault/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "object.h"

enum { SHORT_MS = 200 };

static xfer_comm *comms[N_RANKS];
static uint32_t lane;

static void with_ranks(rank_body *body)
{
  for (lane = XFER_LANE_AUTO; lane <= XFER_LANE_BROADCAST; lane++) {
    make_comms(comms);
    run_ranks(N_RANKS, body, NULL);
    destroy_comms(comms);
  }
  assert_all_as_expected();
}

static xfer_plan_report_data report_of(const xfer_plan *plan)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;

  expect(xfer_plan_report(plan, &report) == XFER_OK);
  return report;
}

static xfer_plan *plan_of(input *in, int rank, uint32_t flags)
{
  xfer_plan *plan = NULL;

  input_create(in, rank);
  in->options.lane = lane;
  in->options.flags = flags;
  expect(xfer_plan_create(&plan, comms[rank], in->tensors, in->n_tensors, &in->options) == XFER_OK);
  expect(input_bind(in, plan) == XFER_OK);
  return plan;
}

static void run_twice(int rank, void *context)
{
  input in;
  xfer_plan *plain = plan_of(&in, rank, 0);
  uint64_t foreseen;
  xfer_plan *plan;

  (void)context;
  foreseen = report_of(plain).staging_bytes;
  xfer_plan_destroy(plain);
  input_destroy(&in);
  plan = plan_of(&in, rank, XFER_PLAN_STAGED);
  /* of 24, 8 and 32 bytes at most, each of a block's 256 */
  expect((report_of(plan).staging_bytes - foreseen) % 256 == 0);
  expect(report_of(plan).staging_bytes > foreseen || rank == 0);
  expect(xfer_plan_commit(plan) == XFER_OK);
  for (uint64_t version = 1; version <= 2; version++) {
    memset(in.dst_memory, POISON, sizeof in.dst_memory);
    expect(xfer_plan_run(plan, version, NULL) == XFER_OK);
    expect(is_untouched(&in));
    expect(report_of(plan).torn == 0);
    expect(xfer_plan_wait(plan, 0) == XFER_OK);
    expect(is_delivered(&in));
    expect(report_of(plan).torn == 0 && report_of(plan).committed_version == version);
  }
  expect(xfer_plan_release(plan) == XFER_OK);
  expect(is_delivered(&in));
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_destinations_are_old_until_the_wait(void **state)
{
  (void)state;
  with_ranks(run_twice);
}

/* Rank 1 does not come to the second run. */
static void miss_a_run(int rank, void *context)
{
  input in;
  xfer_plan *plan = plan_of(&in, rank, XFER_PLAN_STAGED);
  xfer_plan_report_data report;

  (void)context;
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  memset(in.dst_memory, POISON, sizeof in.dst_memory);
  plan->options.timeout_ms = SHORT_MS; /* of this run alone: a loaded machine is slow to commit */
  if (rank == 1) {
    (void)usleep(2 * SHORT_MS * 1000);
  } else {
    /* where nothing is to be waited for, run ends well */
    (void)!xfer_plan_run(plan, 2, NULL);
    expect(xfer_plan_wait(plan, 0) != XFER_OK);
    expect(is_untouched(&in));
    report = report_of(plan);
    expect(report.torn == 0 && report.committed_version == 1);
  }
  xfer_plan_destroy(plan);
  expect(is_untouched(&in));
  input_destroy(&in);
}

static void test_d2_h1_a_rank_that_is_missing_leaves_old_weights_whole(void **state)
{
  (void)state;
  with_ranks(miss_a_run);
}

/* Two boxes that do not stack, so that a mirror is in pieces; nothing of it is left behind. */
static void test_boxes_bound_anew_go_to_their_new_place(void **state)
{
  enum { COLUMNS = 8, LEFT = 3, N = 2 * COLUMNS };
  static const int64_t shape[] = {2, COLUMNS};
  static const int64_t first[] = {0, 2};
  static const int64_t bounds[] = {0, 0, 2, LEFT, 0, LEFT, 2, COLUMNS};
  uint8_t from[N];
  uint8_t to[2][N];
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_layout *parsed[2] = {NULL, NULL};
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  const xfer_view src = xfer_view_dense(from);
  xfer_tensor tensor = {"w", NULL, NULL, {0}};
  xfer_layout *boxes = NULL;
  xfer_mesh *mesh = NULL;
  xfer_comm *comm = NULL;
  xfer_plan *plan = NULL;

  (void)state;
  for (int i = 0; i < N; i++)
    from[i] = (uint8_t)(i + 1);
  memset(to, 0, sizeof to);
  assert_int_equal(xfer_mesh_create(&mesh, &(int){1}, 1, NULL), XFER_OK);
  desc.mesh = mesh;
  desc.dtype = XFER_U8;
  desc.n_dims = 2;
  desc.shape = shape;
  desc.first = first;
  desc.bounds = bounds;
  assert_int_equal(xfer_layout_create_boxes(&boxes, &desc), XFER_OK);
  assert_int_equal(xfer_problem_parse(&parsed[0], &parsed[1], "u8[2,8] (1):S0 -> (1):S0"), XFER_OK);
  tensor.src = parsed[0];
  tensor.dst = boxes;
  options.flags = XFER_PLAN_STAGED;
  assert_int_equal(xfer_comm_create_local(&comm, 1), XFER_OK);
  assert_int_equal(xfer_plan_create(&plan, comm, &tensor, 1, &options), XFER_OK);
  for (int i = 0; i < 2; i++) {
    const xfer_view dst = xfer_view_dense(to[i]);

    assert_int_equal(xfer_plan_bind(plan, 0, &src, &dst), XFER_OK);
    assert_int_equal(xfer_plan_commit(plan), XFER_OK);
  }
  assert_int_equal(xfer_plan_run(plan, 0, NULL), XFER_OK);
  assert_int_equal(xfer_plan_wait(plan, 0), XFER_OK);
  for (int i = 0; i < N; i++) {
    const int row = i / COLUMNS;
    const int column = i % COLUMNS;
    const int at =
        column < LEFT ? row * LEFT + column : 2 * LEFT + row * (COLUMNS - LEFT) + column - LEFT;

    assert_int_equal(to[0][i], 0);
    assert_int_equal(to[1][at], from[i]);
  }
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
  xfer_layout_destroy(boxes);
  xfer_layout_destroy(parsed[0]);
  xfer_layout_destroy(parsed[1]);
  xfer_mesh_destroy(mesh);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_destinations_are_old_until_the_wait),
      cmocka_unit_test(test_d2_h1_a_rank_that_is_missing_leaves_old_weights_whole),
      cmocka_unit_test(test_boxes_bound_anew_go_to_their_new_place),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
