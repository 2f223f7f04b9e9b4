/* The size of a window and the lane decide how bytes travel, never which ones arrive. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "carry.h"

static const uint64_t windows[] = {1,  2,  3,    7,    8,     9,       63,
                                   64, 65, 1000, 4096, 65537, 1 << 20, 1 << 30};

enum { N_WINDOWS = sizeof windows / sizeof windows[0], N_PROBLEMS = 24 };

static void assert_same_for_any_window(xfer_lane lane)
{
  carrier *c = carrier_create();
  problem p = {0};
  assert_non_null(c);
  /* The bytes that must arrive are a function of (seed, number) alone, so each right result is the
   * same one. */
  for (uint64_t k = 0, n_done = 0; n_done < N_PROBLEMS; k++) {
    bool moved = false;
    problem_random(&p, 77, k);
    if (p.n_tensors == 0 || p.n_ranks > 12 || p.mischief != NO_MISCHIEF) continue;
    for (int i = 0; i < N_WINDOWS; i++) {
      char why[800];
      p.one_call = p.null_options = false;
      p.options.struct_size = sizeof p.options;
      p.options.lane = (uint32_t)lane;
      p.options.window_bytes = windows[i];
      p.options.min_broadcast_saving_bytes = 1;
      verdict v = carrier_run(c, &p, why, sizeof why);
      moved = moved || v == RIGHT;
      if (v == RIGHT || v == REFUSED) continue;
      problem_print(stderr, &p);
      fail_msg("problem %d: %s", (int)k, why);
    }
    n_done += moved;
  }
  carrier_destroy(c);
  problem_free(&p);
}

static void test_packed_lane_gives_the_same_bytes_for_any_window(void **state)
{
  (void)state;
  assert_same_for_any_window(XFER_LANE_PACKED);
}

static void test_broadcast_lane_gives_the_same_bytes_for_any_window(void **state)
{
  (void)state;
  assert_same_for_any_window(XFER_LANE_BROADCAST);
}

static void test_chosen_lanes_give_the_same_bytes_for_any_window(void **state)
{
  (void)state;
  assert_same_for_any_window(XFER_LANE_AUTO);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_packed_lane_gives_the_same_bytes_for_any_window),
      cmocka_unit_test(test_broadcast_lane_gives_the_same_bytes_for_any_window),
      cmocka_unit_test(test_chosen_lanes_give_the_same_bytes_for_any_window),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
