/* Option structs of other ages than the library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "options.h"

#include "error.h"

#include <string.h>

/* What the library knows; an older caller's; a newer caller's. */
typedef struct known_options {
  size_t struct_size;
  int64_t window;
  int64_t flags;
} known_options;

typedef struct old_options {
  size_t struct_size;
  int64_t window;
} old_options;

enum { FIRST = sizeof(old_options) };

typedef struct new_options {
  known_options known;
  int64_t extra;
  int64_t more;
} new_options;

static const known_options untouched = {1, 2, 3};

static void test_no_options_are_all_defaults(void **state)
{
  (void)state;
  known_options own = untouched;

  assert_int_equal(xfi_options_copy(&own, sizeof own, FIRST, NULL, "known_options"), XFER_OK);
  assert_int_equal(own.struct_size, sizeof own);
  assert_int_equal(own.window, 0);
  assert_int_equal(own.flags, 0);
}

static void test_the_last_field_of_the_first_version_says_who_is_too_short(void **state)
{
  (void)state;
  struct {
    size_t struct_size;
  } shorter = {sizeof shorter};
  old_options older = {sizeof older, 5};
  known_options own = untouched;

  assert_int_equal(XFI_OPTIONS_COPY(&own, &older, known_options, window), XFER_OK);
  assert_int_equal(own.window, 5);
  assert_int_equal(own.flags, 0);
  assert_int_equal(XFI_OPTIONS_COPY(&own, &shorter, known_options, window), XFER_ERR_ARG);
  assert_int_equal(XFI_REPORT_COPY(&older, &own, known_options, window), XFER_OK);
  assert_int_equal(XFI_REPORT_COPY(&shorter, &own, known_options, window), XFER_ERR_ARG);
}

static void test_same_age_copies_all(void **state)
{
  (void)state;
  known_options theirs = {sizeof theirs, 5, 6};
  known_options own = untouched;

  assert_int_equal(xfi_options_copy(&own, sizeof own, FIRST, &theirs, "known_options"), XFER_OK);
  assert_memory_equal(&own, &theirs, sizeof own);
}

static void test_older_caller_gets_defaults_for_the_rest(void **state)
{
  (void)state;
  const size_t old_size = sizeof(old_options);
  known_options theirs = {old_size, 5, 99};
  known_options own = untouched;

  assert_int_equal(xfi_options_copy(&own, sizeof own, FIRST, &theirs, "known_options"), XFER_OK);
  assert_int_equal(own.struct_size, sizeof own);
  assert_int_equal(own.window, 5);
  assert_int_equal(own.flags, 0);
}

static void test_newer_caller_with_zero_extras_is_served(void **state)
{
  (void)state;
  new_options theirs = {{sizeof theirs, 5, 6}, 0, 0};
  known_options own = untouched;

  assert_int_equal(xfi_options_copy(&own, sizeof own, FIRST, &theirs, "known_options"), XFER_OK);
  assert_int_equal(own.struct_size, sizeof own);
  assert_int_equal(own.window, 5);
  assert_int_equal(own.flags, 6);
}

static void test_newer_caller_with_set_extra_is_refused(void **state)
{
  (void)state;
  new_options theirs = {{sizeof theirs, 5, 6}, 0, 1};
  known_options own = untouched;

  assert_int_equal(xfi_options_copy(&own, sizeof own, FIRST, &theirs, "known_options"),
                   XFER_ERR_UNSUPPORTED);
  assert_memory_equal(&own, &untouched, sizeof own);
  assert_non_null(strstr(xfer_last_error(), "known_options: byte "));
}

static void test_impossible_struct_size_is_refused(void **state)
{
  (void)state;
  /* The middle ones end inside a field, which may be a pointer, or before the first version did. */
  const size_t sizes[] = {0, 1, sizeof(size_t) - 1, sizeof(size_t), 12, 20, 4097, SIZE_MAX};

  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    known_options theirs = {sizes[i], 5, 6};
    known_options own = untouched;
    assert_int_equal(xfi_options_copy(&own, sizeof own, FIRST, &theirs, "known_options"),
                     XFER_ERR_ARG);
    assert_memory_equal(&own, &untouched, sizeof own);
  }
}

/* A report of any age: the fields that both know, zero in the others, and nothing past the end. */
static void test_a_report_fills_what_its_caller_knows(void **state)
{
  (void)state;
  const known_options own = {sizeof own, 5, 6};
  const size_t old_size = sizeof(old_options);
  known_options older = {old_size, -1, 99};
  new_options newer = {{sizeof newer, -1, -1}, -1, -1};
  known_options wrong = {3, 1, 2};
  known_options cut = {sizeof cut - 1, 1, 2};
  known_options early = {FIRST - sizeof(size_t), 1, 2};

  assert_int_equal(xfi_report_copy(&older, &own, sizeof own, FIRST, "report"), XFER_OK);
  assert_int_equal(older.struct_size, old_size);
  assert_int_equal(older.window, 5);
  assert_int_equal(older.flags, 99);
  assert_int_equal(xfi_report_copy(&newer, &own, sizeof own, FIRST, "report"), XFER_OK);
  assert_int_equal(newer.known.struct_size, sizeof newer);
  assert_int_equal(newer.known.flags, 6);
  assert_int_equal(newer.extra, 0);
  assert_int_equal(xfi_report_copy(&wrong, &own, sizeof own, FIRST, "report"), XFER_ERR_ARG);
  assert_int_equal(wrong.window, 1);
  assert_int_equal(xfi_report_copy(&cut, &own, sizeof own, FIRST, "report"), XFER_ERR_ARG);
  assert_int_equal(cut.window, 1);
  assert_int_equal(xfi_report_copy(&early, &own, sizeof own, FIRST, "report"), XFER_ERR_ARG);
  assert_int_equal(early.window, 1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_no_options_are_all_defaults),
      cmocka_unit_test(test_the_last_field_of_the_first_version_says_who_is_too_short),
      cmocka_unit_test(test_same_age_copies_all),
      cmocka_unit_test(test_older_caller_gets_defaults_for_the_rest),
      cmocka_unit_test(test_newer_caller_with_zero_extras_is_served),
      cmocka_unit_test(test_newer_caller_with_set_extra_is_refused),
      cmocka_unit_test(test_impossible_struct_size_is_refused),
      cmocka_unit_test(test_a_report_fills_what_its_caller_knows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
