/* Building strings: growing and fixed, and what sticks when it fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text.h"

#include "alloc.h"

#include <stdio.h>
#include <string.h>

/* What a text without an error comes to; it is empty again. */
static char *end(xfi_text *text)
{
  char *taken = NULL;

  assert_int_equal(xfi_text_end(text, &taken), XFER_OK);
  assert_null(text->chars);
  assert_non_null(taken);
  return taken;
}

static void test_empty_text_is_the_empty_string(void **state)
{
  (void)state;
  xfi_text text = {0};

  char *taken = end(&text);
  assert_string_equal(taken, "");
  xfi_free(taken);
}

static void test_text_grows_over_many_appends(void **state)
{
  (void)state;
  xfi_text text = {0};

  for (int i = 0; i < 1000; i++) {
    xfi_text_printf(&text, "%03d,", i);
  }
  xfi_text_add(&text, "endless", 3);
  xfi_text_add(&text, "", 0);
  char *taken = end(&text);
  assert_int_equal(strlen(taken), 4003);
  assert_memory_equal(taken, "000,001,", 8);
  assert_string_equal(taken + 3996, "999,end");
  xfi_free(taken);
}

static void test_piece_of_any_length_is_whole(void **state)
{
  (void)state;
  char name[600];

  for (size_t n = 250; n < sizeof name; n += 7) {
    xfi_text text = {0};
    memset(name, 'y', n);
    name[n] = '\0';
    xfi_text_printf(&text, "<%s>", name);
    char *taken = end(&text);
    assert_int_equal(strlen(taken), n + 2);
    assert_int_equal(taken[n + 1], '>');
    xfi_free(taken);
  }
}

static void test_json_escapes_what_json_must(void **state)
{
  (void)state;
  xfi_text text = {0};

  xfi_text_json(&text, "a\"b\\c\n\x01 \xc3\xa9");
  assert_string_equal(text.chars, "\"a\\\"b\\\\c\\u000a\\u0001 \xc3\xa9\"");
  xfi_free(text.chars);
}

static void test_json_has_no_bytes_that_are_not_utf8(void **state)
{
  static const char *const whole[] = {
      "\x7f",         "\xc2\x80",         "\xe0\xa0\x80",    "\xed\x9f\xbf",
      "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"};
  static const char *const broken[] = {"\xff",
                                       "\x80",
                                       "\xc1\xbf",
                                       "\xc3",
                                       "\xe0\x9f\xbf",
                                       "\xed\xa0\x80",
                                       "\xe2\x82",
                                       "\xf0\x8f\xbf\xbf",
                                       "\xf4\x90\x80\x80",
                                       "\xf5\x80\x80\x80"};
  char want[64];

  (void)state;
  for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
    xfi_text text = {0};

    xfi_text_json(&text, whole[i]);
    snprintf(want, sizeof want, "\"%s\"", whole[i]);
    assert_string_equal(text.chars, want);
    xfi_free(text.chars);
  }
  for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
    xfi_text text = {0};

    strcpy(want, "\"");
    for (size_t k = 0; k < strlen(broken[i]); k++)
      strcat(want, "\\ufffd");
    strcat(want, "\"");
    xfi_text_json(&text, broken[i]);
    assert_string_equal(text.chars, want);
    xfi_free(text.chars);
  }
}

static void test_failed_allocation_sticks(void **state)
{
  (void)state;
  xfi_text text = {0};
  char *taken = NULL;

  xfi_text_printf(&text, "kept");
  xfi_alloc_fail_after(0);
  xfi_text_printf(&text, "%300s", "lost");
  xfi_text_printf(&text, "lost too");
  xfi_text_add(&text, "x", 1);
  assert_int_equal(xfi_text_end(&text, &taken), XFER_ERR_NOMEM);
  assert_null(taken);
  xfi_alloc_fail_after(-1);
}

static void test_fixed_text_is_cut_and_counted_whole(void **state)
{
  (void)state;
  char buffer[8];
  xfi_text text;

  xfi_text_fixed(&text, buffer, sizeof buffer);
  assert_string_equal(text.chars, "");
  xfi_text_printf(&text, "%s", "abcd");
  xfi_text_printf(&text, "%s", "efg");
  assert_int_equal(text.n_chars, 7);
  xfi_text_add(&text, "h", 1);
  xfi_text_printf(&text, "%s", "ij");
  assert_int_equal(text.n_chars, 10);
  assert_string_equal(buffer, "abcdefg");

  xfi_text_fixed(&text, buffer, sizeof buffer);
  xfi_text_printf(&text, "%0300d", 5);
  assert_int_equal(text.n_chars, 300);
  assert_string_equal(buffer, "0000000");

  xfi_text_fixed(&text, buffer, sizeof buffer);
  xfi_text_add(&text, "abcdefghi", 9);
  assert_int_equal(text.n_chars, 9);
  assert_string_equal(buffer, "abcdefg");

  xfi_text_fixed(&text, NULL, 0);
  xfi_text_add(&text, "abc", 3);
  xfi_text_printf(&text, "%d", 10);
  assert_int_equal(text.n_chars, 5);
  assert_int_equal(text.st, XFER_OK);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_empty_text_is_the_empty_string),
      cmocka_unit_test(test_text_grows_over_many_appends),
      cmocka_unit_test(test_piece_of_any_length_is_whole),
      cmocka_unit_test(test_json_escapes_what_json_must),
      cmocka_unit_test(test_json_has_no_bytes_that_are_not_utf8),
      cmocka_unit_test(test_failed_allocation_sticks),
      cmocka_unit_test(test_fixed_text_is_cut_and_counted_whole),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
