/* The expressions of rule files: what they come to, and what is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "error.h"
#include "expr.h"

static const xfi_var outer_vars[] = {{"heads", 5}, {"tp", 4}};
static const xfi_var inner_vars[] = {{"heads", 16}, {"none", 0}, {"kind.coder", 1}, {"kind.no", 0}};
static const xfi_scope outer = {.vars = outer_vars, .n_vars = 2};
static const xfi_scope names = {.vars = inner_vars, .n_vars = 4, .next = &outer};

static void test_values(void **state)
{
  static const struct {
    const char *text;
    int64_t value;
  } cases[] = {
      {"2 + 3 * 4 - 7 / 2 % 2", 13},
      {"0 - 7", -7},
      {"heads / tp", 4}, /* the first scope's heads */
      {"1 < 2 && 2 <= 2 && 3 > 2 && 2 >= 2 && 1 != 2", 1},
      {"1 == 2 || !none", 1},
      {"!heads", 0},
      {"none ? 1 : tp ? 2 : 3", 2},
      {"1 ? none ? 4 : 5 : 6", 5},
      /* What is not needed has no value to lack, nor one that is too large. */
      {"1 ? 2 : nothing", 2},
      {"0 ? nothing : 3", 3},
      {"1 ? 2 : 1 / 0", 2},
      {"0 ? 9223372036854775807 + 1 : 3", 3},
      {"tp ?? nothing", 4},
      {"tp ?? 1 / none", 4},
      {"nothing ?? 6", 6},
      {"nothing ?? more ?? 7", 7},
      {"nothing + 1 ?? 8", 8},
      {"(nothing ?? 1) + (none ?? 2)", 1},
      /* Beside each other they are no deeper. */
      {"(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+"
       "(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)+(1?1:1)",
       20},
      {"9223372036854775807", INT64_MAX},
      {"kind in [writer, coder]", 1},
      {"kind in[coder]", 1},
      {"kind in [ writer ,no ]", 0},
      {"!kind in [coder] || 3 * (kind in [no, coder]) == 3", 1},
      {"nothing in [coder] ?? 7", 0},
      {"1 ? 2 : kind in [coder]", 2},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int64_t value = 77;

    print_message("%s\n", cases[i].text);
    assert_int_equal(xfi_expr_eval(&value, cases[i].text, &names), XFER_OK);
    assert_int_equal(value, cases[i].value);
  }
}

static void test_what_has_no_value_says_why(void **state)
{
  static const struct {
    const char *text, *error;
  } cases[] = {
      {"nothing", "the configuration has no \"nothing\""},
      {"head", "the configuration has no \"head\""},
      {"nothing + (2 ?? 1)", "the configuration has no \"nothing\""},
      {"nothing + (more ?? 1)", "the configuration has no \"nothing\""},
      {"nothing ? 1 : 2", "the configuration has no \"nothing\""},
      {"1 ? nothing : 2", "the configuration has no \"nothing\""},
      {"nothing ?? more", "the configuration has no \"more\""},
      {"1 / none", "\"1 / none\" divides by zero"},
      {"1 % none", "\"1 % none\" divides by zero"},
      {"1 / none ?? 2", "\"1 / none ?? 2\" divides by zero"},
      {"9223372036854775807 + 1", "has no value that 63 bits hold"},
      {"0 - 9223372036854775807 - 2", "has no value that 63 bits hold"},
      {"9223372036854775807 * 2", "has no value that 63 bits hold"},
      {"(0 - 9223372036854775807 - 1) / (0 - 1)", "has no value that 63 bits hold"},
      {"9223372036854775808", "has no value that 63 bits hold"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int64_t value;

    print_message("%s\n", cases[i].text);
    assert_int_equal(xfi_expr_eval(&value, cases[i].text, &names), XFER_ERR_SHAPE);
    assert_non_null(strstr(xfer_last_error(), cases[i].error));
  }
}

/* Only a name without a value makes the whole expression one without a value. */
static void test_what_may_have_no_value(void **state)
{
  static const char *const NONE[] = {"nothing", "tp * nothing", "nothing ?? more"};
  static const char *const WRONG[] = {"1 / none", "1 / none ?? 2", "9223372036854775807 + 1"};
  int64_t value;
  bool has;

  (void)state;
  assert_int_equal(xfi_expr_find(&has, &value, "nothing ?? tp", &names), XFER_OK);
  assert_true(has && value == 4);
  for (size_t i = 0; i < 3; i++) {
    print_message("%s, %s\n", NONE[i], WRONG[i]);
    assert_int_equal(xfi_expr_find(&has, &value, NONE[i], &names), XFER_OK);
    assert_false(has);
    assert_int_equal(xfi_expr_find(&has, &value, WRONG[i], &names), XFER_ERR_SHAPE);
  }
}

/* A word without a value hides what the name is elsewhere. */
static void test_an_absent_name_is_looked_up_nowhere_else(void **state)
{
  static const char *const ABSENT[] = {"tp"};
  const xfi_scope scope = {
      .vars = inner_vars, .n_vars = 2, .absent = ABSENT, .n_absent = 1, .next = &outer};
  int64_t value;

  (void)state;
  assert_int_equal(xfi_expr_eval(&value, "tp", &scope), XFER_ERR_SHAPE);
  assert_int_equal(xfi_expr_eval(&value, "tp ?? heads", &scope), XFER_OK);
  assert_int_equal(value, 16);
}

static const char *means(const char **file, const char *name, size_t n_chars, const void *context)
{
  static const char *const WORDS[][2] = {{"width", "rows * lanes"}, {"lanes", "n_lanes ?? lanes"}};

  (void)context;
  *file = "words.json";
  for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
    if (strlen(WORDS[i][0]) == n_chars && memcmp(WORDS[i][0], name, n_chars) == 0)
      return WORDS[i][1];
  }
  return NULL;
}

/* Of a word the key of the configuration that it lacks; what means itself ends somewhere. */
static void test_a_word_without_a_value_says_which_key_is_missing(void **state)
{
  static const xfi_var rows = {"rows", 3}, key = {"rows", 0};
  const struct {
    const char *text, *error;
    const xfi_var *var;
  } cases[] = {
      {"2 * width",
       "\"2 * width\": the configuration has no \"lanes\" (words.json: \"n_lanes ?? lanes\")",
       &rows},
      {"width", "the configuration has no \"lanes\"", &key},
      {"nothing", "the configuration has no \"nothing\"", &rows}};
  int64_t value;

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const xfi_scope scope = {.vars = cases[i].var, .n_vars = 1, .means = means};

    print_message("%s\n", cases[i].text);
    assert_int_equal(xfi_expr_eval(&value, cases[i].text, &scope), XFER_ERR_SHAPE);
    assert_non_null(strstr(xfer_last_error(), cases[i].error));
  }
}

static xfi_found find_text(int64_t *value, const char *name, size_t n_chars, const void *context)
{
  (void)value;
  (void)context;
  return n_chars == 4 && memcmp(name, "text", 4) == 0 ? XFI_NO_NUMBER : XFI_NOT_FOUND;
}

/* Where nothing stands for a name another may; not so where a text does. */
static void test_what_is_no_number_stands_for_nothing_else(void **state)
{
  static const char *const REFUSED[] = {"text", "text ?? 1", "nothing ?? text ?? 2",
                                        "(nothing + text) ?? 3", "nothing + text ?? 3"};
  const xfi_scope last = {.find = find_text};
  const xfi_scope scope = {.vars = inner_vars, .n_vars = 2, .next = &last};
  int64_t value;

  (void)state;
  for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
    print_message("%s\n", REFUSED[i]);
    assert_int_equal(xfi_expr_eval(&value, REFUSED[i], &scope), XFER_ERR_IO);
    assert_non_null(strstr(xfer_last_error(), "\"text\" of the configuration is no whole number"));
  }
  assert_int_equal(xfi_expr_eval(&value, "heads ?? text", &scope), XFER_OK);
  assert_int_equal(value, 16);
  assert_int_equal(xfi_expr_eval(&value, "none ? text : 2", &scope), XFER_OK);
  assert_int_equal(value, 2);
}

#define LONG "a_name_that_is_longer_than_sixty_three_characters_which_is_as_long_as_any_may_be"
#define DEEP "1?1:1?1:1?1:1?1:1?1:1?1:1?1:1?1:"

/* Whether it is one does not depend on what names are worth. */
static void test_what_is_no_expression(void **state)
{
  static const char *const none[] = {
      "",
      "1 +",
      "(1",
      "1)",
      "1 2",
      "a ? 1",
      "a ? : 2",
      "a ? 1 :",
      "a ??",
      "1 ? ) :",
      "1 ? 2 : (",
      "tp ?? (",
      "nothing + (",
      "& 1",
      "kind in",
      "kind in coder",
      "kind in []",
      "kind in [coder",
      "kind in [coder,]",
      "kind in [coder writer]",
      "kind in [a.b]",
      "3 in [coder]",
      "kind inside",
      "1 = 2",
      "((((((((((((((((((((((((((((((((1))))))))))))))))))))))))))))))))",
      DEEP DEEP DEEP DEEP "1",
  };

  (void)state;
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
    print_message("%s\n", none[i]);
    assert_int_equal(xfi_expr_check(none[i]), XFER_ERR_IO);
    assert_non_null(strstr(xfer_last_error(), "is no expression (at "));
  }
  /* a name that is longer than any, whose error is cut off */
  assert_int_equal(xfi_expr_check("kind in [" LONG LONG LONG LONG LONG LONG LONG "]"), XFER_ERR_IO);
  assert_int_equal(xfi_expr_check("nothing / 0 + 1 ? 2 : 1 % 0"), XFER_OK);
}

static void test_braces_are_printed_as_values(void **state)
{
  static const struct {
    const char *text, *printed;
  } cases[] = {{"tp is {tp}, {heads * 2}", "tp is 4, 32"},
               {"{nothing} {1 +} {tp", "{nothing} {1 +} {tp"},
               {"0123456789012345678901234{tp}{heads}", "0123456789012345678901234416"},
               {"01234567890123456789012345678901234", "0123456789012345678901234567890"}};

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char out[32];

    xfi_expr_print(out, sizeof out, cases[i].text, &names);
    assert_string_equal(out, cases[i].printed);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_what_has_no_value_says_why),
      cmocka_unit_test(test_what_may_have_no_value),
      cmocka_unit_test(test_an_absent_name_is_looked_up_nowhere_else),
      cmocka_unit_test(test_a_word_without_a_value_says_which_key_is_missing),
      cmocka_unit_test(test_what_is_no_number_stands_for_nothing_else),
      cmocka_unit_test(test_what_is_no_expression),
      cmocka_unit_test(test_braces_are_printed_as_values),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
