/* Which classes take the broadcast lane. */
#include <fenv.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cost.h"

#include "plans_of.h"

static xfi_moves *plan_with_lane(const tensor_list *list, int n_ranks, xfer_lane lane)
{
  xfi_moves_options options = plain_options;

  options.lane = (uint32_t)lane;
  return plan_of(list, n_ranks, 0, &options);
}

static void test_the_choice_follows_what_most_ranks_must_carry(void **state)
{
  (void)state;
  static const struct {
    const char *line;
    int n_ranks;
    bool broadcast;
  } cases[] = {
      /* one source: n copies leave it, or one broadcast does */
      {"bf16[4096] (1):R -> (1)@1:R", 8, false},
      {"bf16[4096] (1):R -> (2)@1-2:R", 8, true},
      {"bf16[4096] (1):R -> (7)@1-7:R", 8, true},
      /* sharded destinations take the tensor once in all */
      {"bf16[4096] (1):R -> (7)@1-7:S0", 8, false},
      {"bf16[4096] (1):R -> (3,2)@1-6:R,S0", 8, true},
      /* replicated sources that hold everything cost their own ranks nothing */
      {"bf16[4096] (4):R -> (4):R", 8, false},
      {"bf16[4096] (4):R -> (8):R", 8, false},
      {"bf16[4096] (4):R -> (4)@4-7:R", 8, false},
      {"bf16[4096] (2):R -> (6)@2-7:R", 8, true},
      /* sharded sources */
      {"bf16[4096] (4):S0 -> (4)@4-7:R", 8, false},
      {"bf16[4096] (2):S0 -> (6)@2-7:R", 8, true},
      {"bf16[4096] (8):S0 -> (8):R", 8, false},
      /* destinations that are sources have their part: 1 of 2, 1.5, and 1.8 must leave a source */
      {"bf16[4096] (2):S0 -> (3):R", 8, false},
      {"bf16[4096] (2):S0 -> (4):R", 8, true},
      {"bf16[4096] (4):S0 -> (8):R", 8, true},
      {"bf16[4096] (4):S0 -> (6):R", 8, false},
      /* and one that is none sends its part to all */
      {"bf16[4096] (2):S0 -> (3)@1-3:R", 8, true},
      {"bf16[4096] (2):R -> (3)@1-3:R", 8, false},
      /* nothing to send */
      {"bf16[0] (1):R -> (7)@1-7:R", 8, false},
      {"bf16[] (1):R -> (7)@1-7:R", 8, true},
      /* alone */
      {"bf16[4096] (1):R -> (1):R", 1, false},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    tensor_list list = {.n = 0};
    xfi_moves *plan;

    print_message("%s\n", cases[c].line);
    add_line(&list, "w", 3, cases[c].line);
    plan = plan_with_lane(&list, cases[c].n_ranks, XFER_LANE_AUTO);
    assert_int_equal(plan->classes[0].broadcast, cases[c].broadcast);
    assert_int_equal(plan->n_broadcast, cases[c].broadcast ? 3 : 0);
    xfi_moves_destroy(plan);
    free_tensors(&list);
  }
}

/* 700 KB once in place of 6 times. */
static void test_broadcasts_save_as_much_as_is_asked(void **state)
{
  (void)state;
  static const uint64_t least[] = {3500000, 3500001};

  for (size_t i = 0; i < 2; i++) {
    xfi_moves_options options = plain_options;
    tensor_list list = {.n = 0};
    xfi_moves *plan;

    options.lane = XFER_LANE_AUTO;
    options.min_broadcast_saving_bytes = least[i];
    add_line(&list, "w", 7, "u8[100000] (1):R -> (6)@1-6:R");
    plan = plan_of(&list, 7, 0, &options);
    assert_int_equal(plan->n_broadcast, i == 0 ? 7 : 0);
    xfi_moves_destroy(plan);
    free_tensors(&list);
  }
}

/* Where both cost the same a sum that is rounded otherwise would decide. */
static void test_threads_of_any_mode_choose_alike(void **state)
{
  static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  bool broadcasts[4];

  (void)state;
  for (size_t m = 0; m < 4; m++) {
    tensor_list list = {.n = 0};
    xfi_moves *plan;

    add_line(&list, "w", 1, "f32[1000] (4):R -> (9):R");
    (void)fesetround(modes[m]);
    plan = plan_with_lane(&list, 9, XFER_LANE_AUTO);
    (void)fesetround(FE_TONEAREST);
    broadcasts[m] = plan->classes[0].broadcast;
    xfi_moves_destroy(plan);
    free_tensors(&list);
  }
  for (size_t m = 1; m < 4; m++)
    assert_int_equal(broadcasts[m], broadcasts[0]);
}

static void test_a_lane_that_is_named_is_taken(void **state)
{
  (void)state;
  tensor_list list = {.n = 0};
  xfi_moves *plan;

  add_line(&list, "small", 2, "bf16[4096] (1):R -> (7)@1-7:R");
  add_line(&list, "large", 5, "bf16[4096,8] (1):R -> (7)@1-7:S0");
  for (int lane = XFER_LANE_AUTO; lane <= XFER_LANE_BROADCAST; lane++) {
    static const size_t n_broadcast[] = {2, 0, 0, 7};

    print_message("lane %d\n", lane);
    plan = plan_with_lane(&list, 8, (xfer_lane)lane);
    assert_int_equal(plan->n_broadcast, n_broadcast[lane]);
    xfi_moves_destroy(plan);
  }
  free_tensors(&list);

  add_line(&list, "alone", 1, "bf16[4096] (1):R -> (1):R"); /* there is nobody to hear it */
  plan = plan_with_lane(&list, 1, XFER_LANE_BROADCAST);
  assert_int_equal(plan->n_broadcast, 0);
  xfi_moves_destroy(plan);
  free_tensors(&list);
}

/* A tensor of one source costs it less where other tensors leave from other ranks. */
static void test_sources_of_all_tensors_share(void **state)
{
  (void)state;
  tensor_list list = {.n = 0};
  xfi_moves *plan;

  add_line(&list, "w0", 1, "bf16[4096] (1)@0:R -> (4)@4-7:R");
  plan = plan_with_lane(&list, 8, XFER_LANE_AUTO);
  assert_int_equal(plan->n_broadcast, 1);
  xfi_moves_destroy(plan);
  add_line(&list, "w1", 1, "bf16[4096] (1)@1:R -> (4)@4-7:R");
  add_line(&list, "w2", 1, "bf16[4096] (1)@2:R -> (4)@4-7:R");
  add_line(&list, "w3", 1, "bf16[4096] (2)@2-3:R -> (4)@4-7:R");
  plan = plan_with_lane(&list, 8, XFER_LANE_AUTO);
  assert_int_equal(plan->n_classes, 4);
  assert_int_equal(plan->n_broadcast, 0);
  xfi_moves_destroy(plan);
  free_tensors(&list);
}

/* A destination table that repeats indices asks for more than the tensor. */
static void tabled(tensor_list *list)
{
  const xfer_run runs[] = {{0, 8, 0}, {0, 8, 0}, {0, 8, 8}};
  const int64_t first[] = {0, 1, 3};
  const int64_t lengths[] = {8, 16};
  const xfer_run_table table = {runs, first, lengths, 2, 0};
  const int ranks[] = {1, 2};

  add_layouts(list, "w", 1, layout_of("u8[8] (1):R"), layout_of_table(8, &table, ranks));
}

static void test_repeated_indices_count_as_often_as_they_are_held(void **state)
{
  (void)state;
  tensor_list list = {.n = 0};
  xfi_moves *plan;

  tabled(&list);
  plan = plan_with_lane(&list, 3, XFER_LANE_AUTO);
  assert_int_equal(plan->n_broadcast, 1); /* 24 bytes to send, 8 to broadcast */
  xfi_moves_destroy(plan);
  free_tensors(&list);
}

static xfer_status choose(void *context)
{
  xfi_moves *plan = context;

  plan->n_broadcast = 0;
  return xfi_cost_choose(plan);
}

static void test_choose_survives_each_failed_allocation(void **state)
{
  (void)state;
  tensor_list list = {.n = 0};
  xfi_moves *plan;

  tabled(&list);
  plan = plan_with_lane(&list, 3, XFER_LANE_AUTO);
  assert_int_equal(fail_each_allocation(choose, plan), 2);
  assert_int_equal(plan->n_broadcast, 1);
  xfi_moves_destroy(plan);
  free_tensors(&list);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_choice_follows_what_most_ranks_must_carry),
      cmocka_unit_test(test_broadcasts_save_as_much_as_is_asked),
      cmocka_unit_test(test_threads_of_any_mode_choose_alike),
      cmocka_unit_test(test_a_lane_that_is_named_is_taken),
      cmocka_unit_test(test_sources_of_all_tensors_share),
      cmocka_unit_test(test_repeated_indices_count_as_often_as_they_are_held),
      cmocka_unit_test(test_choose_survives_each_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
