/* Deadlines: never, now, and in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "clock.h"

static void test_now_does_not_go_back(void **state)
{
  (void)state;
  int64_t before = xfi_now_ns();

  for (int i = 0; i < 1000; i++) {
    int64_t now = xfi_now_ns();
    assert_true(now >= before);
    before = now;
  }
}

static void test_negative_timeout_never_expires(void **state)
{
  (void)state;
  xfi_deadline never = xfi_deadline_after(-1);

  assert_false(xfi_deadline_expired(never));
  assert_true(xfi_deadline_left_ms(never) == INT64_MAX);
}

static void test_timeout_too_far_to_count_never_expires(void **state)
{
  (void)state;
  const int64_t far[] = {INT64_MAX, INT64_MAX / 1000000};

  for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
    xfi_deadline deadline = xfi_deadline_after(far[i]);
    assert_false(xfi_deadline_expired(deadline));
    assert_true(deadline.at_ns == INT64_MAX);
  }
}

static void test_zero_timeout_is_expired_at_once(void **state)
{
  (void)state;
  xfi_deadline now = xfi_deadline_after(0);

  assert_true(xfi_deadline_expired(now));
  assert_true(xfi_deadline_left_ms(now) == 0);
}

static void test_left_counts_down_and_rounds_up(void **state)
{
  (void)state;
  xfi_deadline hour = xfi_deadline_after(3600000);
  int64_t left = xfi_deadline_left_ms(hour);

  assert_false(xfi_deadline_expired(hour));
  assert_true(left > 3500000 && left <= 3600000);

  xfi_deadline soon = {xfi_now_ns() + 900000000};
  left = xfi_deadline_left_ms(soon);
  assert_true(left >= 1 && left <= 900);
}

static void test_timespec_is_the_same_moment(void **state)
{
  (void)state;
  xfi_deadline deadline = {INT64_C(12) * 1000000000 + 345};
  struct timespec at = xfi_deadline_timespec(deadline);

  assert_int_equal(at.tv_sec, 12);
  assert_int_equal(at.tv_nsec, 345);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_now_does_not_go_back),
      cmocka_unit_test(test_negative_timeout_never_expires),
      cmocka_unit_test(test_timeout_too_far_to_count_never_expires),
      cmocka_unit_test(test_zero_timeout_is_expired_at_once),
      cmocka_unit_test(test_left_counts_down_and_rounds_up),
      cmocka_unit_test(test_timespec_is_the_same_moment),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
