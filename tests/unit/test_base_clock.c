/* Deadlines: never, now, and in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "clock.h"
#include "error.h"
#include "futex.h"

#include <xfer/status.h>

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
  assert_true(never.at_ns == INT64_MAX);
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
}

static void test_the_text_names_the_timeout(void **state)
{
  (void)state;
  const xfi_deadline bare = {.at_ns = 1, .made_ns = xfi_now_ns()};
  const xfi_deadline short_one = xfi_deadline_after(1500);

  assert_string_equal(xfi_deadline_end(xfi_deadline_after(600000)), "the deadline of 600 s");
  assert_string_equal(xfi_deadline_end(xfi_deadline_after(1)), "the deadline of 1 ms");
  assert_string_equal(xfi_deadline_end(short_one), "the deadline of 1500 ms");
  assert_string_equal(xfi_deadline_end(xfi_deadline_later(short_one, 250)),
                      "the deadline of 1500 ms");
  assert_string_equal(xfi_deadline_end(bare), "the deadline");
  assert_string_equal(xfi_deadline_end(xfi_deadline_later(bare, 250)), "the deadline");
  assert_string_equal(xfi_deadline_end(xfi_deadline_after(INT64_MAX)),
                      "the deadline of 9223372036854775807 ms");
}

static void test_timespec_is_the_same_moment(void **state)
{
  (void)state;
  xfi_deadline deadline = {.at_ns = INT64_C(12) * 1000000000 + 345};
  struct timespec at = xfi_deadline_timespec(deadline);

  assert_int_equal(at.tv_sec, 12);
  assert_int_equal(at.tv_nsec, 345);
}

/* ---- interrupts ---- */

enum { HOUR_MS = 3600000, SLACK_MS = 30000 /* of this host */ };

static int n_asked;
static int answer;

static int say(void *context)
{
  const int64_t *made_ns = context;

  assert_true(made_ns == NULL || xfi_now_ns() - *made_ns >= 20000000);
  n_asked++;
  xfi_set_error("a call of the function's failed");
  return answer;
}

static int let_go(void **state)
{
  (void)state;
  n_asked = answer = 0;
  xfer_interrupt_set(NULL, NULL);
  return 0;
}

/* Until a wait of so long has ended; whether that was before its deadline. */
static bool is_cut(xfi_deadline deadline, int ms)
{
  const xfi_deadline end = {.at_ns = xfi_now_ns() + ms * INT64_C(1000000)};

  do
    if (xfi_deadline_expired(deadline)) return true;
  while (!xfi_deadline_expired(end));
  return false;
}

static void test_a_wait_asks_once_it_has_lasted_and_now_and_then(void **state)
{
  (void)state;
  const xfi_deadline never = xfi_deadline_after(-1);

  xfer_interrupt_set(say, (void *)&never.made_ns);
  assert_false(is_cut(never, 200));
  assert_in_range(n_asked, 1, 10);
}

static void test_an_interrupt_ends_what_was_made_before_it(void **state)
{
  (void)state;
  const xfi_deadline never = xfi_deadline_after(-1);
  const xfi_deadline hour = xfi_deadline_after(HOUR_MS);
  const xfi_deadline bare = {.at_ns = INT64_MAX};

  xfer_interrupt_set(say, NULL);
  answer = 1;
  assert_string_equal(xfi_deadline_end(never), "the deadline");
  xfi_set_error("what failed before");
  assert_true(is_cut(never, SLACK_MS));
  assert_string_equal(xfer_last_error(), "what failed before");
  xfer_interrupt_set(NULL, NULL);
  assert_true(xfi_deadline_expired(hour));
  assert_true(xfi_deadline_was_cut(hour));
  assert_false(xfi_deadline_was_cut(bare));
  assert_string_equal(xfi_deadline_end(hour), "this rank was interrupted");
  assert_false(xfi_deadline_expired(bare));
  assert_true(xfi_deadline_later(hour, 1000).at_ns <= xfi_now_ns() + 1000 * 1000000);
}

static void test_what_is_made_after_an_interrupt_holds_until_the_next(void **state)
{
  (void)state;

  xfer_interrupt_set(say, NULL);
  answer = 1;
  assert_true(is_cut(xfi_deadline_after(HOUR_MS), SLACK_MS));
  answer = 0;
  const xfi_deadline grace = xfi_deadline_after(HOUR_MS);
  assert_false(is_cut(grace, 100));
  answer = 1;
  assert_true(is_cut(grace, SLACK_MS));
}

static int wait_too(void *context)
{
  assert_int_equal(n_asked++, 0);
  assert_false(is_cut(*(const xfi_deadline *)context, 100));
  return 0;
}

static void test_what_the_function_waits_for_asks_nobody(void **state)
{
  (void)state;
  xfi_deadline never = xfi_deadline_after(-1);

  xfer_interrupt_set(wait_too, &never);
  while (n_asked == 0)
    assert_false(xfi_deadline_expired(never));
}

static void test_sleeps_are_short_where_somebody_is_asked(void **state)
{
  (void)state;
  const _Atomic uint32_t word = 0;
  const int64_t began = xfi_now_ns();

  xfer_interrupt_set(say, NULL);
  xfi_futex_wait(&word, 0, xfi_deadline_after(-1), XFI_FUTEX_OWN);
  assert_true(xfi_now_ns() - began < SLACK_MS * INT64_C(1000000));
  xfer_interrupt_set(NULL, NULL);
  assert_true(xfi_deadline_timespec(xfi_deadline_after(-1)).tv_sec > INT32_MAX);
}

/* Its deadline is later than another by so much, and counts from then on. */
static void test_later_is_later(void **state)
{
  (void)state;
  const xfi_deadline hour = xfi_deadline_after(HOUR_MS);
  const xfi_deadline later = xfi_deadline_later(hour, 7);

  assert_true(later.at_ns == hour.at_ns + 7000000 && later.made_ns >= hour.made_ns);
  assert_true(xfi_deadline_later(xfi_deadline_after(-1), 7).at_ns == INT64_MAX);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_now_does_not_go_back),
      cmocka_unit_test(test_negative_timeout_never_expires),
      cmocka_unit_test(test_timeout_too_far_to_count_never_expires),
      cmocka_unit_test(test_zero_timeout_is_expired_at_once),
      cmocka_unit_test(test_the_text_names_the_timeout),
      cmocka_unit_test(test_timespec_is_the_same_moment),
      cmocka_unit_test(test_later_is_later),
      cmocka_unit_test_setup(test_a_wait_asks_once_it_has_lasted_and_now_and_then, let_go),
      cmocka_unit_test_setup(test_an_interrupt_ends_what_was_made_before_it, let_go),
      cmocka_unit_test_setup(test_what_is_made_after_an_interrupt_holds_until_the_next, let_go),
      cmocka_unit_test_setup(test_what_the_function_waits_for_asks_nobody, let_go),
      cmocka_unit_test_setup(test_sleeps_are_short_where_somebody_is_asked, let_go),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
