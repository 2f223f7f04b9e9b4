/* Run tables: what is refused, and how they are kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cut.h"

#include "layouts_of.h"

#define MOST (INT64_MAX / 2)
#define WANT_RUN "; want a length from 1, indices from 0 and ends below 2^62"

static void test_runs_are_kept_by_local_and_entries_by_global(void **state)
{
  (void)state;
  const xfer_run runs[] = {{9, 1, 2}, {3, 2, 0}, {3, 4, 0}, {3, 1, 4}};
  const int64_t first[] = {0, 2, 2, 4};
  const int64_t lengths[] = {3, 0, 5};
  const xfer_run_table given = {runs, first, lengths, 3, 0};
  const xfi_table_entry want[] = {{{3, 2, 0}, 0}, {{3, 4, 0}, 2}, {{3, 1, 4}, 2}, {{9, 1, 2}, 0}};
  const xfer_run sorted[] = {{3, 2, 0}, {9, 1, 2}, {3, 4, 0}, {3, 1, 4}};
  xfi_table *table = NULL;

  assert_int_equal(xfi_table_create(&table, &given), XFER_OK);
  assert_int_equal(table->n_coords, 3);
  assert_int_equal(table->longest, 4);
  assert_memory_equal(table->first, first, sizeof first);
  assert_memory_equal(table->local_lengths, lengths, sizeof lengths);
  assert_memory_equal(table->runs, sorted, sizeof sorted);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(table->entries[i].coord, want[i].coord);
    assert_memory_equal(&table->entries[i].run, &want[i].run, sizeof want[i].run);
  }
  xfi_table_destroy(table);
}

static void test_a_table_may_be_empty_or_all_zero(void **state)
{
  (void)state;
  const int64_t first[] = {0, 0, 0};
  const int64_t none[] = {0, 0};
  const int64_t some[] = {5, 0};
  const xfer_run_table empty = {NULL, first, none, 2, 0};
  const xfer_run_table zero = {NULL, first, some, 2, 1};
  xfi_table *table = NULL;

  assert_int_equal(xfi_table_create(&table, &empty), XFER_OK);
  assert_int_equal(table->longest, 0);
  xfi_table_destroy(table);
  assert_int_equal(xfi_table_create(&table, &zero), XFER_OK);
  assert_int_equal(table->local_lengths[0], 5);
  xfi_table_destroy(table);
  xfi_table_destroy(NULL);
}

/* Two runs, two coordinates. */
typedef struct bad_table {
  xfer_run runs[2];
  int64_t first[3];
  int64_t lengths[2];
  int64_t allow_zero;
  xfer_status st;
  const char *text;
} bad_table;

static const bad_table bad_tables[] = {
    {{{0, 1, 0}, {1, 1, 0}}, {1, 1, 2}, {1, 1}, 0, XFER_ERR_ARG, "run table: first[0] is 1"},
    {{{0, 1, 0}, {1, 1, 0}}, {-1, 1, 2}, {1, 1}, 0, XFER_ERR_ARG, "run table: first[0] is -1"},
    {{{0, 1, 0}, {1, 1, 0}},
     {0, 2, 1},
     {1, 1},
     0,
     XFER_ERR_ARG,
     "run table: first[2] is below first[1]"},
    {{{0, 1, 0}, {1, 1, 0}},
     {0, -5, -5},
     {1, 1},
     0,
     XFER_ERR_ARG,
     "run table: first[1] is below first[0]"},
    {{{0, 1, 0}, {1, 1, 0}},
     {0, 1, INT64_C(1) << 31},
     {1, 1},
     0,
     XFER_ERR_ARG,
     "run table of 2147483648 runs"},
    {{{0, 1, 0}, {1, 1, 0}}, {0, 1, 2}, {1, 1}, 7, XFER_ERR_ARG, "run table: allow_zero is 7"},
    {{{0, 1, 0}, {1, 1, 0}},
     {0, 1, 2},
     {1, -1},
     1,
     XFER_ERR_SHAPE,
     "run table: coordinate 1 has length -1"},
    {{{0, 1, 0}, {1, 1, 0}},
     {0, 1, 2},
     {1, INT64_MAX},
     1,
     XFER_ERR_SHAPE,
     "run table: coordinate 1 has length 9223372036854775807"},
    {{{0, 0, 0}, {1, 1, 0}},
     {0, 1, 2},
     {1, 1},
     0,
     XFER_ERR_SHAPE,
     "run table: coordinate 0 has the run (0, 0, 0)" WANT_RUN},
    {{{0, 1, 0}, {-1, 1, 0}},
     {0, 1, 2},
     {1, 1},
     0,
     XFER_ERR_SHAPE,
     "run table: coordinate 1 has the run (-1, 1, 0)" WANT_RUN},
    {{{0, 1, 0}, {1, 1, -1}},
     {0, 1, 2},
     {1, 1},
     0,
     XFER_ERR_SHAPE,
     "run table: coordinate 1 has the run (1, 1, -1)" WANT_RUN},
    {{{0, 1, 0}, {1, MOST, 0}},
     {0, 1, 2},
     {1, MOST},
     0,
     XFER_ERR_SHAPE,
     "run table: coordinate 1 has the run (1, 4611686018427387903, 0)" WANT_RUN},
    {{{0, 1, 0}, {0, MOST, 1}},
     {0, 1, 2},
     {1, MOST},
     1,
     XFER_ERR_SHAPE,
     "run table: coordinate 1 has the run (0, 4611686018427387903, 1)" WANT_RUN},
    {{{0, 3, 0}, {7, 2, 2}},
     {0, 2, 2},
     {4, 0},
     1,
     XFER_ERR_SHAPE,
     "run table: coordinate 0 holds local index 2 twice"},
    {{{0, 3, 1}, {7, 2, 1}},
     {0, 0, 2},
     {0, 4},
     1,
     XFER_ERR_SHAPE,
     "run table: coordinate 1 holds local index 1 twice"},
    {{{0, 3, 0}, {7, 2, 5}},
     {0, 2, 2},
     {7, 0},
     0,
     XFER_ERR_SHAPE,
     "run table: coordinate 0 has no run for local indices 3 to 4; set allow_zero if that is "
     "meant"},
    {{{0, 3, 0}, {7, 2, 3}},
     {0, 2, 2},
     {4, 0},
     1,
     XFER_ERR_SHAPE,
     "run table: coordinate 0 has runs up to local index 4, and a part of 4"},
    {{{0, 3, 0}, {7, 2, 3}},
     {0, 2, 2},
     {6, 0},
     0,
     XFER_ERR_SHAPE,
     "run table: coordinate 0 has no run for local indices 5 to 5; set allow_zero if that is "
     "meant"},
};

static void test_what_is_no_table_is_refused_with_the_values(void **state)
{
  (void)state;
  for (size_t c = 0; c < sizeof bad_tables / sizeof *bad_tables; c++) {
    const bad_table *bad = &bad_tables[c];
    const xfer_run_table given = {bad->runs, bad->first, bad->lengths, 2, bad->allow_zero};
    xfi_table *table = NULL;

    print_message("%s\n", bad->text);
    assert_int_equal(xfi_table_create(&table, &given), bad->st);
    assert_string_equal(xfer_last_error(), bad->text);
    assert_null(table);
  }
}

static void test_a_table_without_an_array_is_refused(void **state)
{
  (void)state;
  const xfer_run runs[] = {{0, 1, 0}};
  const int64_t first[] = {0, 1};
  const int64_t lengths[] = {1};
  const xfer_run_table no_first = {runs, NULL, lengths, 1, 0};
  const xfer_run_table no_lengths = {runs, first, NULL, 1, 0};
  const xfer_run_table no_runs = {NULL, first, lengths, 1, 0};
  xfi_table *table = NULL;

  assert_int_equal(xfi_table_create(&table, &no_first), XFER_ERR_ARG);
  assert_string_equal(xfer_last_error(), "run table without arrays");
  assert_int_equal(xfi_table_create(&table, &no_lengths), XFER_ERR_ARG);
  assert_string_equal(xfer_last_error(), "run table without arrays");
  assert_int_equal(xfi_table_create(&table, &no_runs), XFER_ERR_ARG);
  assert_string_equal(xfer_last_error(), "run table: 1 runs at NULL");
  assert_null(table);
}

static xfer_status make(void *context)
{
  xfi_table *table = NULL;
  xfer_status st = xfi_table_create(&table, context);

  assert_true((table != NULL) == (st == XFER_OK));
  xfi_table_destroy(table);
  return st;
}

static void test_create_survives_each_failed_allocation(void **state)
{
  (void)state;
  const xfer_run runs[] = {{9, 1, 2}, {3, 2, 0}};
  const int64_t first[] = {0, 2};
  const int64_t lengths[] = {3};
  xfer_run_table given = {runs, first, lengths, 1, 0};

  assert_int_equal(fail_each_allocation(make, &given), 5);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_runs_are_kept_by_local_and_entries_by_global),
      cmocka_unit_test(test_a_table_may_be_empty_or_all_zero),
      cmocka_unit_test(test_what_is_no_table_is_refused_with_the_values),
      cmocka_unit_test(test_a_table_without_an_array_is_refused),
      cmocka_unit_test(test_create_survives_each_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
