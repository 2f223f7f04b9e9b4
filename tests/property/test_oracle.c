/* The oracle by itself: against the golden cases and against examples worked out by hand. Nothing
 * of libxfer decides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "golden.h"
#include "problem.h"

static orc_arena arena;

static orc_side side_of(int64_t n, const char *text)
{
  orc_side side = {.n_dims = 1, .shape = {n}};
  const char *end = problem_read_side(&side, text, &arena);
  assert_non_null(end);
  assert_int_equal(*end, '\0');
  return side;
}

static void assert_holds(const orc_side *side, int rank, const int64_t *index, int n)
{
  orc_part part;
  assert_int_equal(orc_part_of(&part, side, rank, &arena), ORC_FINE);
  assert_int_equal(part.dims[0].n, n);
  for (int k = 0; k < n; k++)
    assert_int_equal(part.dims[0].index[k], index[k]);
}

/* "0 1 / 2 /" and so on, by rank; Z is a ZERO element. */
static void assert_splits(int64_t n, const char *text, const char *wanted)
{
  orc_side side = side_of(n, text);
  int64_t index[GOLDEN_MOST];
  int rank = 0, n_index = 0;
  for (const char *at = wanted;; at++) {
    if (*at == '/' || *at == '\0') {
      assert_holds(&side, rank++, index, n_index);
      n_index = 0;
    }
    if (*at == 'Z') index[n_index++] = ORC_ZERO;
    if (*at >= '0' && *at <= '9') {
      char *end;
      index[n_index++] = strtoll(at, &end, 10);
      at = end - 1;
    }
    if (*at == '\0') break;
  }
  assert_int_equal(rank, side.n_ranks);
}

static void test_oracle_equals_torch_on_39_golden_cases(void **state)
{
  (void)state;
  assert_int_equal(N_GOLDEN, 39);
  for (int i = 0; i < N_GOLDEN; i++) {
    const golden *g = &golden_1d[i];
    orc_side side = side_of(g->n, g->side);
    print_message("%d over %s\n", g->n, g->side);
    assert_int_equal(side.n_ranks, g->n_ranks);
    for (int r = 0; r < g->n_ranks; r++) {
      int64_t index[GOLDEN_MOST];
      assert_holds(&side, r, index, golden_indices(g, r, index));
    }
  }
}

static void test_oracle_splits_as_the_rules_say(void **state)
{
  static const struct {
    int64_t n;
    const char *side, *wanted;
  } cases[] = {
      {10, "(4):S0", "0 1 2/3 4 5/6 7 8/9"},
      {5, "(4):S0", "0 1/2 3/4/"},
      {10, "(4):S0b", "0 1 2/3 4 5/6 7/8 9"},
      {2, "(4):S0b", "0/1//"},
      {8, "(4):S0e", "0 1/2 3/4 5/6 7"},
      {3, "(2):R", "0 1 2/0 1 2"},
      {18, "(4,2):S0,S0", "0 1 2/3 4/5 6 7/8 9/10 11 12/13 14/15 16/17"},
      {9, "(4):S0f2", "0 1 5/2 3 6/4 7/8"},
      {8, "(2,2):S0,S0f2", "0 2/1 3/4 6/5 7"},
      {8, "(2,2):S0f2,S0", "0 1/4 5/2 3/6 7"},
      {8, "(2,2):S0,S0;order=1,0", "0 1/4 5/2 3/6 7"},
      {7, "(3,2):S0f2,S0", "0 1/4/2 3/5/6/"},
      {7, "(3,2):S0,S0;order=1,0", "0 1/4/2 3/5//6"},
      {5, "(2):S0;pad=0:8", "0 1 2 3/4 Z Z Z"},
      {0, "(2):S0;pad=0:3", "Z Z/Z"},
      {4, "(2)@1,0:S0", "2 3/0 1"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    print_message("%lld over %s\n", (long long)cases[i].n, cases[i].side);
    assert_splits(cases[i].n, cases[i].side, cases[i].wanted);
  }
}

static void test_oracle_equals_strided_and_ordered_where_sizes_divide(void **state)
{
  int n_equal = 0, n_different = 0;
  (void)state;
  for (int a = 1; a <= 4; a++) {
    for (int b = 1; b <= 4; b++) {
      for (int64_t n = 0; n <= 40; n++) {
        char strided[40], ordered[40];
        bool same = true;
        (void)snprintf(strided, sizeof strided, "(%d,%d):S0f%d,S0", a, b, b);
        (void)snprintf(ordered, sizeof ordered, "(%d,%d):S0,S0;order=1,0", a, b);
        orc_side x = side_of(n, strided), y = side_of(n, ordered);
        for (int r = 0; r < a * b; r++) {
          orc_part p, q;
          assert_int_equal(orc_part_of(&p, &x, r, &arena), ORC_FINE);
          assert_int_equal(orc_part_of(&q, &y, r, &arena), ORC_FINE);
          same =
              same && p.dims[0].n == q.dims[0].n &&
              memcmp(p.dims[0].index, q.dims[0].index, (size_t)p.dims[0].n * sizeof(int64_t)) == 0;
        }
        if (n % (a * b) == 0) assert_true(same);
        n_equal += same;
        n_different += !same;
      }
    }
  }
  assert_true(n_equal > 0 && n_different > 0);
}

static void test_oracle_refuses_uneven_even(void **state)
{
  (void)state;
  orc_side side = side_of(18, "(4,2):S0,S0e"); /* 5 does not divide by 2 */
  assert_int_equal(orc_check(&side, &arena), ORC_UNEVEN);
  side = side_of(20, "(5,2):S0,S0e");
  assert_int_equal(orc_check(&side, &arena), ORC_FINE);
}

/* Two coordinates: [3 0 1 _] and [1 1 2], where _ is a ZERO element and 1 is held three times. */
static orc_run table_runs[] = {{0, 2, 1}, {3, 1, 0}, {1, 1, 0}, {1, 2, 1}};
static int64_t table_first[] = {0, 2, 4};
static int64_t table_lengths[] = {4, 3};
static const orc_table table = {2, table_runs, table_first, table_lengths};

static void test_oracle_reads_run_tables_with_duplicates_and_zeros(void **state)
{
  static const int64_t first[] = {3, 0, 1, ORC_ZERO}, second[] = {1, 1, 2}, half[] = {1, ORC_ZERO};
  orc_side side = side_of(4, "(2):R");
  orc_run runs[4];
  orc_owner owners[4];
  orc_part part;
  int64_t one = 1;
  (void)state;
  side.places[0] = (orc_place){ORC_TABLE, 0, 0, &table};
  assert_holds(&side, 0, first, 4);
  assert_holds(&side, 1, second, 3);

  assert_int_equal(orc_part_of(&part, &side, 0, &arena), ORC_FINE);
  assert_int_equal(orc_n_zeros(&part), 1);
  assert_int_equal(orc_runs(runs, 4, &part.dims[0]), 2);
  assert_int_equal(runs[0].global, 3);
  assert_int_equal(runs[1].global, 0);
  assert_int_equal(runs[1].length, 2);
  assert_int_equal(runs[1].local, 1);
  assert_int_equal(orc_owners(owners, 4, &side, &one, &arena), 3);
  assert_int_equal(owners[0].rank, 0);
  assert_int_equal(owners[0].local[0], 2);
  assert_int_equal(owners[2].local[0], 1);

  /* an axis to the right cuts what the table left */
  side = side_of(4, "(2,2):R,S0");
  side.places[0] = (orc_place){ORC_TABLE, 0, 0, &table};
  assert_holds(&side, 1, half, 2);

  side = side_of(2, "(2):R");
  side.places[0] = (orc_place){ORC_TABLE, 0, 0, &table};
  assert_int_equal(orc_check(&side, &arena), ORC_UNFIT);
}

static void test_oracle_notices_a_source_that_lacks_elements(void **state)
{
  orc_side src = side_of(4, "(2):R"), dst = side_of(4, "(1):R");
  (void)state;
  assert_true(orc_covers(&src, &dst, &arena));
  src.places[0] = (orc_place){ORC_TABLE, 0, 0, &table};
  assert_true(orc_covers(&src, &dst, &arena));
  src.n_axes = src.mesh[0] = src.n_ranks = 1; /* 2 is on the other rank */
  orc_table first_only = {1, table_runs, table_first, table_lengths};
  src.places[0].table = &first_only;
  assert_false(orc_covers(&src, &dst, &arena));
}

static void test_problem_line_is_read_as_it_is_written(void **state)
{
  problem p = {0};
  problem_tensor t;
  char line[4096], again[4096];
  int n = 0;
  (void)state;
  for (uint64_t k = 0; k < 500; k++) {
    problem_random(&p, 7, k);
    if (p.n_tensors == 0 || !p.tensors[0].from_line) continue;
    t = p.tensors[0];
    (void)problem_line(line, sizeof line, &t);
    assert_true(problem_read(&p, line));
    p.tensors[0].has_order[SRC] = t.has_order[SRC];
    p.tensors[0].has_order[DST] = t.has_order[DST];
    (void)problem_line(again, sizeof again, &p.tensors[0]);
    assert_string_equal(line, again);
    n++;
  }
  assert_true(n > 50);
  problem_free(&p);
}

static int free_arena(void **state)
{
  (void)state;
  orc_free(&arena);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_oracle_equals_torch_on_39_golden_cases),
      cmocka_unit_test(test_oracle_splits_as_the_rules_say),
      cmocka_unit_test(test_oracle_equals_strided_and_ordered_where_sizes_divide),
      cmocka_unit_test(test_oracle_refuses_uneven_even),
      cmocka_unit_test(test_oracle_reads_run_tables_with_duplicates_and_zeros),
      cmocka_unit_test(test_oracle_notices_a_source_that_lacks_elements),
      cmocka_unit_test(test_problem_line_is_read_as_it_is_written),
  };
  return cmocka_run_group_tests(tests, NULL, free_arena);
}
