/* Element types: names and sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dtype.h"

#include "error.h"

#include <limits.h>
#include <string.h>

static const struct {
  const char *name;
  xfer_dtype dtype;
  size_t n_bytes;
} rows[] = {
    {"u8", XFER_U8, 1},         {"i8", XFER_I8, 1},         {"bool", XFER_BOOL, 1},
    {"f8e4m3", XFER_F8E4M3, 1}, {"f8e5m2", XFER_F8E5M2, 1}, {"f8e8m0", XFER_F8E8M0, 1},
    {"u16", XFER_U16, 2},       {"i16", XFER_I16, 2},       {"f16", XFER_F16, 2},
    {"bf16", XFER_BF16, 2},     {"u32", XFER_U32, 4},       {"i32", XFER_I32, 4},
    {"f32", XFER_F32, 4},       {"u64", XFER_U64, 8},       {"i64", XFER_I64, 8},
    {"f64", XFER_F64, 8},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static void test_each_dtype_has_its_name_and_size(void **state)
{
  (void)state;
  for (int i = 0; i < N_ROWS; i++) {
    xfer_dtype dtype = (xfer_dtype)0;

    print_message("%s\n", rows[i].name);
    assert_int_equal(xfi_dtype_size((int)rows[i].dtype), rows[i].n_bytes);
    assert_string_equal(xfi_dtype_name((int)rows[i].dtype), rows[i].name);
    assert_int_equal(xfi_dtype_parse(&dtype, rows[i].name), XFER_OK);
    assert_int_equal(dtype, rows[i].dtype);
  }
}

static void test_a_value_that_is_no_dtype_has_no_size_and_no_name(void **state)
{
  (void)state;
  static const int values[] = {0, -1, N_ROWS + 1, INT_MAX, INT_MIN};

  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    print_message("%d\n", values[i]);
    assert_int_equal(xfi_dtype_size(values[i]), 0);
    assert_string_equal(xfi_dtype_name(values[i]), "?");
  }
}

static void test_parse_of_an_unknown_name_quotes_it_and_writes_nothing(void **state)
{
  (void)state;
  static const char *const names[] = {"", "f33", "F32", "bf16 ", "float32", "?"};
  static const char *const texts[] = {
      "no dtype is called \"\"",        "no dtype is called \"f33\"",
      "no dtype is called \"F32\"",     "no dtype is called \"bf16 \"",
      "no dtype is called \"float32\"", "no dtype is called \"?\""};

  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    xfer_dtype dtype = XFER_I16;

    assert_int_equal(xfi_dtype_parse(&dtype, names[i]), XFER_ERR_ARG);
    assert_non_null(strstr(xfer_last_error(), texts[i]));
    assert_non_null(strstr(xfer_last_error(), "want one such as bf16"));
    assert_int_equal(dtype, XFER_I16);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_dtype_has_its_name_and_size),
      cmocka_unit_test(test_a_value_that_is_no_dtype_has_no_size_and_no_name),
      cmocka_unit_test(test_parse_of_an_unknown_name_quotes_it_and_writes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
