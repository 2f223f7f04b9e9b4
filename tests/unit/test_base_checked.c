/* Checked arithmetic: at, below and above each edge. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checked.h"

static void test_sizes_fit_up_to_size_max(void **state)
{
  (void)state;
  size_t out = 0;

  assert_true(xfi_mul_fits(SIZE_MAX / 2, 2, &out));
  assert_true(out == SIZE_MAX - 1);
  assert_false(xfi_mul_fits(SIZE_MAX / 2 + 1, 2, &out));
  assert_true(xfi_mul_fits(SIZE_MAX, 0, &out));
  assert_true(out == 0);
  assert_true(xfi_add_fits(SIZE_MAX - 1, 1, &out));
  assert_true(out == SIZE_MAX);
  assert_false(xfi_add_fits(SIZE_MAX, 1, &out));
}

static void test_elements_fit_in_both_directions(void **state)
{
  (void)state;
  int64_t out = 0;

  assert_true(xfi_imul_fits(INT64_C(1) << 31, INT64_C(1) << 31, &out));
  assert_true(out == INT64_C(1) << 62);
  assert_false(xfi_imul_fits(INT64_C(1) << 32, INT64_C(1) << 31, &out));
  assert_true(xfi_imul_fits(INT64_MIN, 1, &out));
  assert_false(xfi_imul_fits(INT64_MIN, -1, &out));
  assert_true(xfi_iadd_fits(INT64_MAX - 1, 1, &out));
  assert_true(out == INT64_MAX);
  assert_false(xfi_iadd_fits(INT64_MAX, 1, &out));
  assert_false(xfi_iadd_fits(INT64_MIN, -1, &out));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sizes_fit_up_to_size_max),
      cmocka_unit_test(test_elements_fit_in_both_directions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
