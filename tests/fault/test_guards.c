/* Guards that no other test misses: each test here fails where its guard is taken out. */
#include "fault/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "direct.h"
#include "object.h"

#include "unit/layouts_of.h"

static xfer_comm *comms[N_RANKS];

static void with_ranks(rank_body *body, void *context)
{
  make_comms(comms);
  run_ranks(N_RANKS, body, context);
  destroy_comms(comms);
  assert_all_as_expected();
}

/* ---- boxes of one's own ------------------------------------------------------------------- */

/* Every rank has a row of its own; rank 1 takes it for another type. */
static void plan_by_own_boxes(int rank, void *context)
{
  const int64_t shape[2] = {N_RANKS, 8};
  const int64_t first[2] = {0, 1};
  const int64_t bounds[4] = {rank, 0, rank + 1, 8};
  const bool other = *(const bool *)context && rank == 1;
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_layout *own = NULL;
  xfer_plan *plan = NULL;
  xfer_status st;

  desc.dtype = other ? XFER_I8 : XFER_U8;
  desc.n_dims = 2;
  desc.shape = shape;
  desc.first = first;
  desc.bounds = bounds;
  expect(xfer_layout_create_boxes(&own, &desc) == XFER_OK);
  const xfer_tensor tensor = {.name = "w", .src = own, .dst = own};
  st = xfer_plan_create(&plan, comms[rank], &tensor, 1, NULL);
  if (*(const bool *)context) {
    expect(st == XFER_ERR_MISMATCH);
    expect(strstr(xfer_last_error(), "another dtype") != NULL);
  } else {
    expect(st == XFER_OK);
  }
  xfer_plan_destroy(plan);
  xfer_layout_destroy(own);
}

static void test_own_boxes_of_another_type_are_refused(void **state)
{
  bool differ[] = {false, true};

  (void)state;
  for (int i = 0; i < 2; i++)
    with_ranks(plan_by_own_boxes, &differ[i]);
}

/* ---- options ------------------------------------------------------------------------------ */

static void give_bad_options(int rank, void *context)
{
  input in;
  xfer_layout *from = NULL;
  xfer_layout *to = NULL;
  xfer_plan *plan = NULL;

  (void)context;
  input_create(&in, rank);
  in.options.ranks_per_domain = (uint32_t)INT32_MAX + 1;
  expect(xfer_plan_create(&plan, comms[rank], in.tensors, in.n_tensors, &in.options) ==
         XFER_ERR_ARG);
  expect(strstr(xfer_last_error(), "ranks_per_domain") != NULL);
  in.options.ranks_per_domain = 0;
  in.options.lane = XFER_LANE_BROADCAST;
  in.options.max_staging_bytes = 63;
  expect(xfer_plan_create(&plan, comms[rank], in.tensors, in.n_tensors, &in.options) ==
         XFER_ERR_ARG);
  expect(strstr(xfer_last_error(), "max_staging_bytes 63 is too small for") != NULL);
  expect(xfer_problem_parse(&from, &to, "u8[8] (1)@0:R -> (1)@1:R") == XFER_OK);
  const xfer_tensor one = {"one message", from, to, {0}};
  expect(xfer_plan_create(&plan, comms[rank], &one, 1, &in.options) == XFER_ERR_ARG);
  expect(strstr(xfer_last_error(), "max_staging_bytes 63 is too small for a broadcast") != NULL);
  xfer_layout_destroy(from);
  xfer_layout_destroy(to);
  in.options.max_staging_bytes = 0;
  in.options.lane = XFER_LANE_AUTO;
  in.options.timeout_ms = (uint64_t)INT64_MAX + 1;
  expect(xfer_plan_create(&plan, comms[rank], in.tensors, in.n_tensors, &in.options) ==
         XFER_ERR_ARG);
  expect(strstr(xfer_last_error(), "timeout_ms") != NULL);
  input_destroy(&in);
}

static void test_options_past_their_bounds_are_refused(void **state)
{
  (void)state;
  with_ranks(give_bad_options, NULL);
}

/* ---- scales ------------------------------------------------------------------------------- */

static void test_weights_have_scales_once(void **state)
{
  xfer_layout *weights[2] = {NULL, NULL};
  xfer_layout *scales[2] = {NULL, NULL};
  xfer_layout *powers[2] = {NULL, NULL};
  xfer_plan *plan = NULL;

  (void)state;
  assert_int_equal(xfer_problem_parse(&weights[0], &weights[1], "f32[4,4] (1):R -> f8e4m3 (1):R"),
                   XFER_OK);
  assert_int_equal(xfer_problem_parse(&scales[0], &scales[1], "f32[2,2] (1):R -> (1):R"), XFER_OK);
  const xfer_tensor tensors[] = {
      {"w", weights[0], weights[1], xfer_convert_blocks(2, 2, XFER_SCALE_F32)},
      {"s", NULL, scales[1], xfer_convert_scales_of(0)},
      {"again", NULL, scales[1], xfer_convert_scales_of(0)}};
  assert_int_equal(xfer_plan_simulate(&plan, 1, 0, tensors, 2, NULL), XFER_OK);
  xfer_plan_destroy(plan);
  plan = NULL;
  assert_int_equal(xfer_plan_simulate(&plan, 1, 0, tensors, 3, NULL), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "has scales already"));
  assert_int_equal(xfer_plan_simulate(&plan, 1, 0, tensors, 1, NULL), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "\"w\""));
  const xfer_tensor of_none[] = {{"w", scales[0], scales[1], {0}},
                                 {"s", NULL, scales[1], xfer_convert_scales_of(0)}};
  assert_int_equal(xfer_plan_simulate(&plan, 1, 0, of_none, 2, NULL), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "which is not quantised by blocks"));
  xfer_layout *deep[2] = {NULL, NULL};
  assert_int_equal(
      xfer_problem_parse(&deep[0], &deep[1], "f32[1,1,1,1,1,1,1,1] (1):R -> f8e4m3 (1):R"),
      XFER_OK);
  const xfer_tensor too_deep[] = {
      {"w", deep[0], deep[1], xfer_convert_blocks(2, 2, XFER_SCALE_F32)}, tensors[1]};
  assert_int_equal(xfer_plan_simulate(&plan, 1, 0, too_deep, 2, NULL), XFER_ERR_UNSUPPORTED);
  assert_non_null(strstr(xfer_last_error(), "blocks of a tensor of 8 dims"));
  assert_int_equal(xfer_problem_parse(&powers[0], &powers[1], "f8e8m0[2,2] (1):R -> (1):R"),
                   XFER_OK);
  const xfer_tensor no_powers[] = {tensors[0], {"s", NULL, powers[1], xfer_convert_scales_of(0)}};
  assert_int_equal(xfer_plan_simulate(&plan, 1, 0, no_powers, 2, NULL), XFER_ERR_SHAPE);
  assert_non_null(strstr(xfer_last_error(), "no powers of two"));
  assert_null(plan);
  for (int i = 0; i < 2; i++) {
    xfer_layout_destroy(deep[i]);
    xfer_layout_destroy(powers[i]);
    xfer_layout_destroy(weights[i]);
    xfer_layout_destroy(scales[i]);
  }
}

/* ---- peers that are late, or leave -------------------------------------------------------- */

enum { SHORT_MS = 100, AMPLE_MS = 60000 };

static xfer_plan *plans[N_RANKS];
static _Atomic bool has_run; /* rank 0 */
static const xfi_device_ops *sound_device;
static _Thread_local xfer_plan *left_by_1; /* the plan in which rank 1 leaves this rank */

/* Rank 1 says READY and leaves at once. */
static xfer_status sync_and_be_left(xfi_device *device, const xfi_flags *set, const xfi_flags *wait,
                                    uint64_t value, xfer_stream stream, xfi_deadline deadline,
                                    int *late)
{
  const xfer_status st = sound_device->flags_sync(device, set, wait, value, stream, deadline, late);

  if (left_by_1 != NULL)
    __atomic_store_n(xfi_word(left_by_1->lanes.direct->page, 1, XFI_ABORTED),
                     left_by_1->run.epoch | XFI_FLAG_VOID, __ATOMIC_SEQ_CST);
  return st;
}

static void run_a_ring(int rank, void *context)
{
  const bool leaves = *(const bool *)context;
  unsigned char memory[2][8] = {{0}, {0}};
  const xfer_view src_view = xfer_view_dense(memory[0]);
  const xfer_view dst_view = xfer_view_dense(memory[1]);
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfi_device_ops ops;
  xfer_status st = XFER_OK;

  options.lane = XFER_LANE_DIRECT;
  expect(xfer_problem_parse(&src, &dst, "u8[16] (2)@0-1:S0 -> (2)@1,0:S0") == XFER_OK);
  const xfer_tensor tensor = {"w", src, dst, {0}};
  expect(xfer_plan_create(&plans[rank], comms[rank], &tensor, 1, &options) == XFER_OK);
  expect(xfer_plan_bind(plans[rank], 0, &src_view, &dst_view) == XFER_OK);
  expect(xfer_plan_commit(plans[rank]) == XFER_OK);
  plans[rank]->options.timeout_ms = leaves ? AMPLE_MS : SHORT_MS;
  if (rank == 0 && leaves) {
    sound_device = plans[rank]->device->ops;
    ops = *sound_device;
    ops.flags_sync = sync_and_be_left;
    plans[rank]->device->ops = &ops;
    left_by_1 = plans[rank];
  }
  if (rank != 1 || leaves) st = xfer_plan_run(plans[rank], 1, NULL);
  if (rank == 0) has_run = true;
  while (rank == 1 && !has_run)
    (void)usleep(1000);
  if (rank == 0) {
    expect(st == (leaves ? XFER_ERR_PEER : XFER_ERR_TIMEOUT));
    expect(strstr(xfer_last_error(), leaves ? "rank 1 aborted the run: it failed"
                                            : "rank 1 did not start in run 1") != NULL);
  }
  if (rank == 0 && leaves) {
    left_by_1 = NULL;
    plans[rank]->device->ops = sound_device;
  }
  xfer_plan_destroy(plans[rank]);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

static void test_e5_a_peer_that_is_late_or_leaves_is_named_by_run(void **state)
{
  bool leaves[] = {false, true};

  (void)state;
  for (int i = 0; i < 2; i++) {
    has_run = false;
    with_ranks(run_a_ring, &leaves[i]);
  }
}

/* Has a rank aborted the run that this one is about to begin? */
static bool has_aborted(const xfer_plan *plan, int rank)
{
  return (__atomic_load_n(xfi_word(plan->lanes.direct->page, rank, XFI_ABORTED), __ATOMIC_SEQ_CST) &
          XFI_FLAG_VOID) != 0;
}

/* Waits for the ranks that come before this one: 1 before 0 and 2, which come before 3. */
static void await_turn(const xfer_plan *plan, int rank)
{
  for (int r = 0; r < N_RANKS; r++)
    while (rank != 1 && r != rank && (r == 1 || rank == 3) && !has_aborted(plan, r))
      (void)usleep(1000);
}

/* Rank 1 fails, so ranks 0 and 2 do; rank 3 comes last, and reads the flag of rank 0 first. */
static void come_after_all_failed(int rank, void *context)
{
  unsigned char memory[2][N_RANKS] = {{0}, {0}};
  const xfer_view src_view = xfer_view_dense(memory[0]);
  const xfer_view dst_view = xfer_view_dense(memory[1]);
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;
  xfer_status st = XFER_OK;

  (void)context;
  options.lane = XFER_LANE_DIRECT;
  expect(xfer_problem_parse(&src, &dst, "u8[4,4] (4):S0 -> (4):S1") == XFER_OK);
  const xfer_tensor tensor = {"w", src, dst, {0}};
  expect(xfer_plan_create(&plan, comms[rank], &tensor, 1, &options) == XFER_OK);
  expect(xfer_plan_bind(plan, 0, &src_view, &dst_view) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  await_turn(plan, rank);
  st = xfer_plan_run(plan, rank == 1 ? UINT64_MAX : 1, NULL);
  expect(st == (rank == 1 ? XFER_ERR_STATE : XFER_ERR_PEER));
  expect(rank == 1 || strstr(xfer_last_error(), "rank 1 aborted the run: it failed") != NULL);
  expect(xfer_plan_wait(plan, 0) == st);
  xfer_plan_destroy(plan);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

static void test_of_ranks_that_failed_a_run_the_first_cause_is_named(void **state)
{
  (void)state;
  with_ranks(come_after_all_failed, NULL);
}

/* ---- E1: rounds --------------------------------------------------------------------------- */

enum { MANY = 60 };

static const xfi_comm_ops *sound_ops;
static xfer_comm *many[MANY];
static _Atomic int most_messages;

static xfer_status round_that_counts(xfi_comm *comm, const xfi_messages *messages,
                                     xfer_stream stream, xfi_deadline deadline)
{
  const int n = messages->n_sends + messages->n_recvs;

  if (n > most_messages) most_messages = n;
  return sound_ops->round(comm, messages, stream, deadline);
}

/* Each of 60 ranks sends to each: 118 messages, were they one round. */
static void each_to_each(int rank, void *context)
{
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  unsigned char from[MANY];
  unsigned char to[MANY];
  const xfer_view src_view = xfer_view_dense(from);
  const xfer_view dst_view = xfer_view_dense(to);

  (void)context;
  for (int i = 0; i < MANY; i++)
    from[i] = (unsigned char)(3 * rank + 5 * i);
  expect(xfer_problem_parse(&src, &dst, "u8[60,60] (60):S0 -> (60):S1") == XFER_OK);
  const xfer_tensor tensor = {"w", src, dst, {0}};
  options.lane = XFER_LANE_PACKED;
  options.timeout_ms = 60000;
  expect(xfer_plan_create(&plan, many[rank], &tensor, 1, &options) == XFER_OK);
  expect(xfer_plan_bind(plan, 0, &src_view, &dst_view) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  expect(xfer_plan_report(plan, &report) == XFER_OK && report.n_rounds == 2);
  for (int i = 0; i < MANY; i++)
    expect(to[i] == (unsigned char)(3 * i + 5 * rank));
  xfer_plan_destroy(plan);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

static void test_e1_a_round_has_at_most_64_messages(void **state)
{
  xfi_comm_ops ops;

  (void)state;
  assert_int_equal(xfer_comm_create_local(many, MANY), XFER_OK);
  sound_ops = many[0]->transport->ops;
  ops = *sound_ops;
  ops.round = round_that_counts;
  for (int r = 0; r < MANY; r++)
    many[r]->transport->ops = &ops;
  run_ranks(MANY, each_to_each, NULL);
  for (int r = 0; r < MANY; r++)
    xfer_comm_destroy(many[r]);
  assert_all_as_expected();
  assert_in_range(most_messages, 1, XFI_ROUND_MESSAGES);
}

/* ---- in place ----------------------------------------------------------------------------- */

typedef struct in_place {
  const char *line;            /* NULL: to `swapped` */
  xfer_status commit[N_RANKS]; /* what it comes to */
  const char *why;             /* of those that refuse */
  int zeroes[N_RANKS][2];      /* what is 0 afterwards: from and to */
  const xfer_layout *to;       /* in place of the line's destination */
  uint32_t lane, flags, domain;
} in_place;

static void bind_in_place(int rank, void *context)
{
  const in_place *p = context;
  unsigned char memory[16] = {1, 2, 3, 4, 5, 6, 7, 8};
  const xfer_view view = xfer_view_dense(memory);
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;
  xfer_status st;

  options.lane = p->lane;
  options.flags = p->flags;
  options.ranks_per_domain = p->domain;
  expect(xfer_problem_parse(&src, &dst, p->line) == XFER_OK);
  const xfer_tensor tensor = {"w", src, p->to != NULL ? p->to : dst, {0}};
  expect(xfer_plan_create(&plan, comms[rank], &tensor, 1, &options) == XFER_OK);
  expect(xfer_plan_bind(plan, 0, &view, &view) == XFER_OK);
  st = xfer_plan_commit(plan);
  if (st != p->commit[rank])
    print_message("rank %d: %s %s\n", rank, xfer_status_name(st), xfer_last_error());
  expect(st == p->commit[rank]);
  if (st == XFER_ERR_SHAPE) expect(strstr(xfer_last_error(), p->why) != NULL);
  for (uint64_t version = 1; version < 3 && st == XFER_OK; version++) {
    expect(xfer_plan_run(plan, version, NULL) == XFER_OK);
    expect(xfer_plan_wait(plan, 0) == XFER_OK);
  }
  for (int i = 0; i < 8; i++)
    expect(memory[i] ==
           (p->zeroes[rank][0] <= i && i < p->zeroes[rank][1] ? 0 : (unsigned char)(i + 1)));
  xfer_plan_destroy(plan);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

static void test_a_tensor_is_in_place_only_where_each_element_stays(void **state)
{
  enum { FINE = XFER_OK, OTHERS = XFER_ERR_PEER, BAD = XFER_ERR_SHAPE };
  static const xfer_run turned[] = {{4, 4, 0}, {0, 4, 4}};
  static const xfer_run few[] = {{0, 5, 0}};
  static const int64_t first[][2] = {{0, 2}, {0, 1}};
  static const int64_t length = 8;
  xfer_layout *swapped =
      layout_of_table(8, &(xfer_run_table){turned, first[0], &length, 1, 0}, NULL);
  xfer_layout *less = layout_of_table(8, &(xfer_run_table){few, first[1], &length, 1, 1}, NULL);
  in_place plays[] = {
      {.line = "u8[8] (2)@0-1:S0 -> (2)@0-1:S0"},
      {.line = "u8[8] (2)@0-1:S0 -> (2)@1,0:S0",
       .commit = {BAD, BAD, OTHERS, OTHERS},
       .why = "but does not stay as it is here: of its elements some come from another rank"},
      {.line = "u8[8] (1):R -> (1):R",
       .to = swapped,
       .commit = {BAD, OTHERS, OTHERS, OTHERS},
       .why = "some of its elements lie elsewhere"},
      {.line = "u8[8] (1):R -> (1):R",
       .to = less,
       .commit = {BAD, OTHERS, OTHERS, OTHERS},
       .why = "some of the source's elements are ZERO elements"},
      /* padding on both sides, which is zeroed */
      {.line = "u8[5] (1)@0:S0;pad=0:8 -> (1)@0:S0;pad=0:8", .zeroes = {{5, 8}}},
      {.line = "u8[5] (2)@1-2:S0;pad=0:8 -> (2)@1-2:S0;pad=0:8", .zeroes = {{0}, {0}, {1, 4}}},
      {.line = "u8[5] (2)@0-1:S0;pad=0:8 -> (2,2)@0,2,1,3:S0,R;pad=0:8", /* read by 2 and 3 */
       .zeroes = {{0}, {1, 4}, {0}, {1, 4}}},
      /* boxes that are equal, and some that only overlap */
      {.line = "u8[4] {0=[0:4];1=[0:4]} -> {0=[0:4];1=[0:4]}"},
      {.line = "u8[5] {0=[0:8]} -> {0=[0:8]}", .zeroes = {{5, 8}}},
      {.line = "u8[4] {0=[0:4];1=[0:2]+[2:4]} -> {0=[0:4];1=[0:2]+[2:4]}",
       .commit = {OTHERS, BAD, OTHERS, OTHERS},
       .why = "some come from another rank, whose box is read for them"},
  };
  static const uint32_t lanes[] = {XFER_LANE_AUTO, XFER_LANE_PACKED, XFER_LANE_BROADCAST};
  static const uint32_t flags[] = {0, XFER_PLAN_STAGED, XFER_PLAN_VERIFY};

  (void)state;
  for (size_t k = 0; k < 18 * (sizeof plays / sizeof *plays); k++) {
    in_place *play = &plays[k / 18];

    play->lane = lanes[k % 3];
    play->flags = flags[k / 3 % 3];
    play->domain = k / 9 % 2 == 0 ? 0 : 2;
    print_message("%s, lane %u, flags %u, domain %u\n", play->line, play->lane, play->flags,
                  play->domain);
    with_ranks(bind_in_place, play);
  }
  xfer_layout_destroy(swapped);
  xfer_layout_destroy(less);
}

/* ---- one call ----------------------------------------------------------------------------- */

/* After a call that every rank means alike, one in which rank 1 means another source. */
static void call_with_another_layout(int rank, void *context)
{
  int32_t from[4] = {rank, rank + 10, rank + 20, rank + 30};
  int32_t to[4] = {-1, -1, -1, -1};
  const xfer_view src_view = xfer_view_dense(from);
  const xfer_view dst_view = xfer_view_dense(to);
  xfer_layout *src[2];
  xfer_layout *dst[2];

  (void)context;
  expect(xfer_problem_parse(&src[0], &dst[0], "i32[4] (2)@0-1:S0 -> (1)@2:R") == XFER_OK);
  expect(xfer_problem_parse(&src[1], &dst[1], "i32[4] (2)@1,0:S0 -> (1)@2:R") == XFER_OK);
  expect(xfer_redistribute(comms[rank], src[0], &src_view, dst[0], &dst_view, NULL) == XFER_OK);
  expect(to[0] == (rank == 2 ? 0 : -1) && to[3] == (rank == 2 ? 11 : -1));
  memset(to, 0xff, sizeof to);
  expect(xfer_redistribute(comms[rank], src[rank == 1], &src_view, dst[0], &dst_view, NULL) ==
         XFER_ERR_MISMATCH);
  expect(to[0] == -1 && to[3] == -1);
  for (int i = 0; i < 2; i++) {
    xfer_layout_destroy(src[i]);
    xfer_layout_destroy(dst[i]);
  }
}

static void test_a_kept_plan_is_not_found_by_layouts_that_differ(void **state)
{
  (void)state;
  with_ranks(call_with_another_layout, NULL);
}

/* ---- H2: what a binding believes ---------------------------------------------------------- */

static void test_h2_sizes_and_names_that_are_not_ours_are_refused(void **state)
{
  (void)state;
  assert_int_equal(xfer_abi_check("xfer_view", sizeof(xfer_view)), XFER_OK);
  assert_int_equal(xfer_abi_check("xfer_view.strides", offsetof(xfer_view, strides)), XFER_OK);
  assert_int_equal(xfer_abi_check("xfer_view.strides", offsetof(xfer_view, strides) + 8),
                   XFER_ERR_MISMATCH);
  assert_int_equal(xfer_abi_check("xfer_view.no_field", 0), XFER_ERR_ARG);
  assert_int_equal(xfer_abi_check(NULL, 0), XFER_ERR_ARG);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_own_boxes_of_another_type_are_refused),
      cmocka_unit_test(test_options_past_their_bounds_are_refused),
      cmocka_unit_test(test_weights_have_scales_once),
      cmocka_unit_test(test_e5_a_peer_that_is_late_or_leaves_is_named_by_run),
      cmocka_unit_test(test_of_ranks_that_failed_a_run_the_first_cause_is_named),
      cmocka_unit_test(test_e1_a_round_has_at_most_64_messages),
      cmocka_unit_test(test_a_tensor_is_in_place_only_where_each_element_stays),
      cmocka_unit_test(test_a_kept_plan_is_not_found_by_layouts_that_differ),
      cmocka_unit_test(test_h2_sizes_and_names_that_are_not_ours_are_refused),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
