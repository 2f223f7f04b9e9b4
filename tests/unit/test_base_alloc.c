/* Allocation: zeroed, checked, and able to fail on request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "alloc.h"

#include <stdbool.h>
#include <string.h>

static void test_calloc_gives_zeroed_memory(void **state)
{
  (void)state;
  unsigned char zeros[96] = {0};
  unsigned char *p = xfi_calloc(12, 8);

  assert_non_null(p);
  assert_memory_equal(p, zeros, sizeof zeros);
  xfi_free(p);
}

static void test_calloc_of_nothing_is_a_valid_pointer(void **state)
{
  (void)state;
  void *none = xfi_calloc(0, 8);
  void *empty = xfi_calloc(8, 0);

  assert_non_null(none);
  assert_non_null(empty);
  xfi_free(none);
  xfi_free(empty);
}

static void test_calloc_of_a_product_that_overflows_is_null(void **state)
{
  (void)state;
  assert_null(xfi_calloc(SIZE_MAX / 2, 3));
  assert_null(xfi_calloc(SIZE_MAX, SIZE_MAX));
}

static void test_free_null_does_nothing(void **state)
{
  (void)state;
  xfi_free(NULL);
}

static void test_fail_after_n_fails_exactly_the_nth(void **state)
{
  (void)state;

  for (int n = 0; n < 4; n++) {
    xfi_alloc_fail_after(n);
    for (int i = 0; i < 6; i++) {
      void *p = xfi_calloc(1, 1);
      assert_int_equal(p == NULL, i == n);
      xfi_free(p);
    }
  }
}

static void test_fail_after_minus_one_turns_it_off(void **state)
{
  (void)state;
  xfi_alloc_fail_after(0);
  xfi_alloc_fail_after(-1);
  void *p = xfi_calloc(1, 1);

  assert_non_null(p);
  xfi_free(p);
}

static void test_strdup_copies_or_fails(void **state)
{
  (void)state;
  const char text[] = "model.layers.0";
  char *copy = xfi_strdup(text);

  assert_string_equal(copy, text);
  assert_ptr_not_equal(copy, text);
  xfi_free(copy);

  xfi_alloc_fail_after(0);
  assert_null(xfi_strdup(text));
  xfi_alloc_fail_after(-1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_calloc_gives_zeroed_memory),
      cmocka_unit_test(test_calloc_of_nothing_is_a_valid_pointer),
      cmocka_unit_test(test_calloc_of_a_product_that_overflows_is_null),
      cmocka_unit_test(test_free_null_does_nothing),
      cmocka_unit_test(test_fail_after_n_fails_exactly_the_nth),
      cmocka_unit_test(test_fail_after_minus_one_turns_it_off),
      cmocka_unit_test(test_strdup_copies_or_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
