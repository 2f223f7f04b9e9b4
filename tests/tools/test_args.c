/* The command lines of programs: more than one in a process, as tests/gpu/test_refits.c has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "args.h"

static int parse(const char **model, char *first, char *second)
{
  const arg_option options[] = {{"--model", ARG_TEXT, model, "FILE  a model", 0, 0},
                                {NULL, ARG_FLAG, NULL, NULL, 0, 0}};
  static const char *const examples[] = {NULL};
  const arg_program program = {"test_args", "", "", options, examples, NULL};
  char *words[] = {"test_args", first, second};

  return args_parse(&program, second != NULL ? 3 : 2, words);
}

static void an_option_counts_once_in_each_line(void **state)
{
  const char *model = NULL;

  (void)state;
  assert_int_equal(parse(&model, "--model=a", NULL), ARGS_GO_ON);
  assert_string_equal(model, "a");
  assert_int_equal(parse(&model, "--model=b", NULL), ARGS_GO_ON);
  assert_string_equal(model, "b");
  assert_int_equal(parse(&model, "--model=a", "--model=b"), ARGS_WRONG);
}

static void an_empty_value_is_none(void **state)
{
  const char *model = NULL;

  (void)state;
  assert_int_equal(parse(&model, "--model=", NULL), ARGS_WRONG);
  assert_int_equal(parse(&model, "--model", ""), ARGS_WRONG);
  assert_null(model);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(an_option_counts_once_in_each_line),
                                     cmocka_unit_test(an_empty_value_is_none)};

  return cmocka_run_group_tests(tests, NULL, NULL);
}
