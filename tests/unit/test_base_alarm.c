/* Alarms: they ring once their time has come, again if asked, and never after they were cleared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "alarm.h"
#include "alloc.h"

typedef struct bell {
  xfi_alarm alarm;
  _Atomic int n_rung;
  int again; /* times */
  int slow_ms;
} bell;

static int64_t ring(xfi_alarm *alarm, int64_t now_ns)
{
  bell *b = (bell *)alarm;

  if (b->slow_ms > 0) (void)usleep((useconds_t)b->slow_ms * 1000);
  return atomic_fetch_add(&b->n_rung, 1) < b->again ? now_ns : INT64_MAX;
}

static xfi_alarms *alarms;

static int setup(void **state)
{
  (void)state;
  return xfi_alarms_create(&alarms, NULL, NULL) != XFER_OK;
}

static int teardown(void **state)
{
  (void)state;
  xfi_alarms_destroy(alarms);
  xfi_alarms_destroy(NULL);
  return 0;
}

static void await(const bell *b, int n)
{
  for (int i = 0; i < 60000 && atomic_load(&b->n_rung) < n; i++)
    (void)usleep(1000);
}

static bool has_no_threads;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *),
                          void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *),
                          void *argument)
{
  return has_no_threads ? EAGAIN : __real_pthread_create(thread, attr, main, argument);
}

static void test_without_memory_or_a_thread_there_are_no_alarms(void **state)
{
  xfi_alarms *none = NULL;

  (void)state;
  xfi_alloc_fail_after(0);
  assert_int_equal(xfi_alarms_create(&none, NULL, NULL), XFER_ERR_NOMEM);
  has_no_threads = true;
  assert_int_equal(xfi_alarms_create(&none, NULL, NULL), XFER_ERR_NOMEM);
  has_no_threads = false;
  assert_null(none);
}

static void test_an_alarm_rings_at_its_deadline_and_not_before(void **state)
{
  bell b = {.alarm = {.ring = ring}};
  const int64_t began = xfi_now_ns();

  (void)state;
  xfi_alarm_set(alarms, &b.alarm, xfi_deadline_after(30));
  await(&b, 1);
  assert_int_equal(b.n_rung, 1);
  assert_true(xfi_now_ns() - began >= 30 * 1000000);
  xfi_alarm_clear(alarms, &b.alarm);
}

static void test_an_alarm_rings_again_as_often_as_it_asks(void **state)
{
  bell b = {.alarm = {.ring = ring}, .again = 3};

  (void)state;
  xfi_alarm_set(alarms, &b.alarm, xfi_deadline_after(0));
  await(&b, 4);
  (void)usleep(20000);
  assert_int_equal(b.n_rung, 4);
  xfi_alarm_clear(alarms, &b.alarm);
}

static void test_an_alarm_that_was_cleared_or_put_off_does_not_ring(void **state)
{
  bell cleared = {.alarm = {.ring = ring}};
  bell later = {.alarm = {.ring = ring}};

  (void)state;
  for (int ms = 20;; ms *= 2) {
    const xfi_deadline soon = xfi_deadline_after(ms);
    xfi_alarm_set(alarms, &cleared.alarm, soon);
    xfi_alarm_set(alarms, &later.alarm, soon);
    xfi_alarm_set(alarms, &later.alarm, xfi_deadline_after(60000));
    xfi_alarm_clear(alarms, &cleared.alarm);
    if (!xfi_deadline_expired(soon)) break; /* else this host was too slow to clear it in time */
    cleared.n_rung = later.n_rung = 0;
  }
  bell last = {.alarm = {.ring = ring}};
  xfi_alarm_set(alarms, &last.alarm, xfi_deadline_after(60)); /* later than those would have */
  await(&last, 1);
  assert_int_equal(last.n_rung, 1);
  xfi_alarm_clear(alarms, &last.alarm);
  assert_int_equal(cleared.n_rung, 0);
  assert_int_equal(later.n_rung, 0);
  xfi_alarm_clear(alarms, &later.alarm);
  xfi_alarm_clear(alarms, &later.alarm); /* twice is fine */
}

static void test_clearing_waits_for_an_alarm_that_rings(void **state)
{
  bell b = {.alarm = {.ring = ring}, .slow_ms = 50};

  (void)state;
  xfi_alarm_set(alarms, &b.alarm, xfi_deadline_after(0));
  (void)usleep(20000); /* it rings by now; if not, it does not ring at all */
  xfi_alarm_clear(alarms, &b.alarm);
  const int n = b.n_rung;
  (void)usleep(80000);
  assert_int_equal(b.n_rung, n);
}

static void test_many_alarms_ring_each_at_its_time(void **state)
{
  static bell bells[500];

  (void)state;
  for (int i = 0; i < 500; i++) {
    bells[i].alarm.ring = ring;
    xfi_alarm_set(alarms, &bells[i].alarm, xfi_deadline_after(1 + i % 50));
  }
  for (int i = 0; i < 500; i++)
    await(&bells[i], 1);
  for (int i = 0; i < 500; i++) {
    xfi_alarm_clear(alarms, &bells[i].alarm);
    assert_int_equal(bells[i].n_rung, 1);
  }
}

static void test_no_memory_for_alarms(void **state)
{
  xfi_alarms *made = NULL;

  (void)state;
  xfi_alloc_fail_after(0);
  assert_int_equal(xfi_alarms_create(&made, NULL, NULL), XFER_ERR_NOMEM);
  xfi_alloc_fail_after(-1);
  assert_null(made);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_without_memory_or_a_thread_there_are_no_alarms),
      cmocka_unit_test(test_an_alarm_rings_at_its_deadline_and_not_before),
      cmocka_unit_test(test_an_alarm_rings_again_as_often_as_it_asks),
      cmocka_unit_test(test_an_alarm_that_was_cleared_or_put_off_does_not_ring),
      cmocka_unit_test(test_clearing_waits_for_an_alarm_that_rings),
      cmocka_unit_test(test_many_alarms_ring_each_at_its_time),
      cmocka_unit_test(test_no_memory_for_alarms),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
