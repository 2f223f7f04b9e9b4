/* One split in closed form, against its definition spelt out index by index. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cut.h"

#include "layouts_of.h"

#define LARGE (INT64_C(1) << 61)

enum { MAX_N = 64, MAX_VISITS = 256 };

static xfi_cut shard(int n_coords, int rule)
{
  return (xfi_cut){0, n_coords, XFER_SHARD, rule, 0, NULL};
}

static xfi_cut strided(int n_coords, int64_t split_factor)
{
  return (xfi_cut){0, n_coords, XFER_STRIDED, 0, split_factor, NULL};
}

/* ---- the definition ---- */

/* torch.chunk: lists [start, end) of the i-th of m chunks of n. */
static void chunk(int64_t n, int64_t m, int64_t i, int64_t *start, int64_t *end)
{
  const int64_t c = (n + m - 1) / m;

  *start = c * i < n ? c * i : n;
  *end = c * (i + 1) < n ? c * (i + 1) : n;
}

/* The indices of coordinate i, in local order; returns how many. */
static int indices(const xfi_cut *cut, int64_t n, int64_t i, int64_t *out)
{
  const int64_t m = cut->n_coords;
  int64_t start;
  int64_t end;
  int count = 0;

  if (cut->kind == XFER_STRIDED) {
    for (int64_t j = 0; j < cut->split_factor; j++) {
      int64_t from;
      int64_t to;

      chunk(n, cut->split_factor, j, &from, &to);
      if (from == to) continue;
      chunk(to - from, m, i, &start, &end);
      for (int64_t x = start; x < end; x++)
        out[count++] = from + x;
    }
    return count;
  }
  if (cut->rule == XFER_BALANCED) {
    start = 0;
    for (int64_t k = 0; k < i; k++)
      start += n / m + (k < n % m);
    end = start + n / m + (i < n % m);
  } else {
    chunk(n, m, i, &start, &end);
  }
  for (int64_t x = start; x < end; x++)
    out[count++] = x;
  return count;
}

/* ---- what was visited ---- */

typedef struct visits {
  int64_t coords[MAX_VISITS];
  xfer_run runs[MAX_VISITS];
  int n;
  int stop_at; /* the visit that fails; 0: none */
} visits;

static xfer_status note(void *context, int64_t coord, xfer_run run)
{
  visits *v = context;

  if (v->stop_at > 0 && v->n + 1 == v->stop_at) return XFER_ERR_STATE;
  assert_true(v->n < MAX_VISITS);
  v->coords[v->n] = coord;
  v->runs[v->n++] = run;
  return XFER_OK;
}

static void check_forward(const xfi_cut *cut, int64_t n)
{
  for (int64_t i = 0; i < cut->n_coords; i++) {
    int64_t want[MAX_N];
    const int n_want = indices(cut, n, i, want);
    int at = 0;
    visits v = {.n = 0};

    assert_int_equal(xfi_cut_length(cut, n, i), n_want);
    assert_int_equal(xfi_cut_runs(cut, n, i, note, &v), XFER_OK);
    for (int r = 0; r < v.n; r++) {
      assert_int_equal(v.coords[r], i);
      assert_int_equal(v.runs[r].local, at);
      assert_true(v.runs[r].length > 0);
      for (int64_t x = 0; x < v.runs[r].length; x++)
        assert_int_equal(v.runs[r].global + x, want[at++]);
    }
    assert_int_equal(at, n_want);
    if (cut->kind == XFER_SHARD && n_want > 0) assert_int_equal(xfi_cut_start(cut, n, i), want[0]);
  }
}

/* Each index of [lo, hi) is given once, with the place at which `indices` has it. */
static void check_back(const xfi_cut *cut, int64_t n, int64_t lo, int64_t hi)
{
  int64_t at = lo;
  visits v = {.n = 0};

  assert_int_equal(xfi_cut_holders(cut, n, lo, hi, note, &v), XFER_OK);
  for (int r = 0; r < v.n; r++) {
    int64_t held[MAX_N];
    const int n_held = indices(cut, n, v.coords[r], held);

    assert_int_equal(v.runs[r].global, at);
    assert_true(v.runs[r].length > 0);
    assert_true(v.runs[r].local >= 0 && v.runs[r].local + v.runs[r].length <= n_held);
    for (int64_t x = 0; x < v.runs[r].length; x++)
      assert_int_equal(held[v.runs[r].local + x], at + x);
    at += v.runs[r].length;
  }
  assert_int_equal(at, hi);
}

static void check_cut(const xfi_cut *cut, int64_t n)
{
  check_forward(cut, n);
  for (int64_t lo = 0; lo <= n; lo++)
    for (int64_t hi = lo; hi <= n; hi += hi + 3 < n ? 3 : 1)
      check_back(cut, n, lo, hi);
}

static void test_every_shard_of_small_sizes_is_as_defined(void **state)
{
  (void)state;
  for (int rule = XFER_CHUNK; rule <= XFER_EVEN; rule++)
    for (int m = 1; m <= 9; m++)
      for (int64_t n = 0; n <= 20; n++) {
        const xfi_cut cut = shard(m, rule);

        if (rule == XFER_EVEN && n % m != 0) continue;
        check_cut(&cut, n);
      }
}

static void test_every_strided_shard_of_small_sizes_is_as_defined(void **state)
{
  (void)state;
  for (int m = 1; m <= 5; m++)
    for (int64_t factor = 1; factor <= 7; factor++)
      for (int64_t n = 0; n <= 20; n++) {
        const xfi_cut cut = strided(m, factor);

        check_cut(&cut, n);
      }
}

static void test_known_splits(void **state)
{
  (void)state;
  static const struct {
    xfi_cut cut;
    int64_t n;
    int64_t lengths[4];
    int64_t first[4]; /* global index of local index 0; -1: empty */
  } cases[] = {
      {{0, 4, XFER_SHARD, XFER_CHUNK, 0, NULL}, 10, {3, 3, 3, 1}, {0, 3, 6, 9}},
      {{0, 4, XFER_SHARD, XFER_CHUNK, 0, NULL}, 5, {2, 2, 1, 0}, {0, 2, 4, -1}},
      {{0, 4, XFER_SHARD, XFER_BALANCED, 0, NULL}, 10, {3, 3, 2, 2}, {0, 3, 6, 8}},
      {{0, 4, XFER_SHARD, XFER_BALANCED, 0, NULL}, 3, {1, 1, 1, 0}, {0, 1, 2, -1}},
      {{0, 4, XFER_SHARD, XFER_EVEN, 0, NULL}, 8, {2, 2, 2, 2}, {0, 2, 4, 6}},
      {{0, 4, XFER_STRIDED, 0, 2, NULL}, 9, {3, 3, 2, 1}, {0, 2, 4, 8}},
      {{0, 4, XFER_STRIDED, 0, 1, NULL}, 10, {3, 3, 3, 1}, {0, 3, 6, 9}},
      {{0, 4, XFER_STRIDED, 0, 100, NULL}, 3, {3, 0, 0, 0}, {0, -1, -1, -1}},
      {{0, 4, XFER_SHARD, XFER_CHUNK, 0, NULL}, 0, {0, 0, 0, 0}, {-1, -1, -1, -1}},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    print_message("case %zu\n", c);
    for (int i = 0; i < 4; i++) {
      visits v = {.n = 0};

      assert_int_equal(xfi_cut_length(&cases[c].cut, cases[c].n, i), cases[c].lengths[i]);
      assert_int_equal(xfi_cut_runs(&cases[c].cut, cases[c].n, i, note, &v), XFER_OK);
      assert_int_equal(v.n > 0 ? v.runs[0].global : -1, cases[c].first[i]);
    }
  }
}

/* Near 2^62, the largest part there is, nothing overflows (the sanitizer would say so), lengths add
 * up, and the way back finds the two ends of each coordinate's part. */
static void test_sizes_past_32_bits_split_and_are_found_again(void **state)
{
  (void)state;
  static const int64_t sizes[] = {(INT64_C(1) << 31) + 1, (INT64_C(1) << 32) + 5,
                                  (INT64_C(1) << 40) - 3, LARGE, 2 * LARGE - 1};
  const xfi_cut cuts[] = {shard(7, XFER_CHUNK),      shard(7, XFER_BALANCED), shard(1, XFER_EVEN),
                          shard(100000, XFER_CHUNK), strided(7, 5),           strided(3, 1000)};

  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
      const xfi_cut *cut = &cuts[c];
      int64_t sum = 0;

      print_message("%lld, cut %zu\n", (long long)sizes[s], c);
      for (int64_t i = 0; i < cut->n_coords; i++)
        sum += xfi_cut_length(cut, sizes[s], i);
      assert_int_equal(sum, sizes[s]);
      for (int64_t x = 0; x < sizes[s] - sizes[s] / 9; x += sizes[s] / 9) {
        visits v = {.n = 0};

        assert_int_equal(xfi_cut_holders(cut, sizes[s], x, x + 1, note, &v), XFER_OK);
        assert_int_equal(v.n, 1);
        assert_int_equal(v.runs[0].global, x);
        assert_true(v.runs[0].local < xfi_cut_length(cut, sizes[s], v.coords[0]));
        if (cut->kind == XFER_SHARD)
          assert_int_equal(xfi_cut_start(cut, sizes[s], v.coords[0]) + v.runs[0].local, x);
      }
    }
  }
}

/* Coordinate 0 holds 4..6 and 0..1 in this order, coordinate 1 holds 1..4 after a gap. */
static xfi_table *small_table(void)
{
  static const xfer_run runs[] = {{4, 2, 0}, {0, 1, 2}, {1, 3, 2}};
  static const int64_t first[] = {0, 2, 3};
  static const int64_t lengths[] = {3, 6};
  const xfer_run_table given = {runs, first, lengths, 2, 1};
  xfi_table *table = NULL;

  assert_int_equal(xfi_table_create(&table, &given), XFER_OK);
  return table;
}

static void test_a_table_is_read_as_it_stands(void **state)
{
  (void)state;
  xfi_cut cut = {0, 2, XFER_RUNS, 0, 0, small_table()};
  visits v = {.n = 0};

  assert_int_equal(xfi_cut_length(&cut, 100, 0), 3);
  assert_int_equal(xfi_cut_length(&cut, 100, 1), 6);
  assert_int_equal(xfi_cut_runs(&cut, 100, 0, note, &v), XFER_OK);
  assert_int_equal(xfi_cut_runs(&cut, 100, 1, note, &v), XFER_OK);
  assert_int_equal(v.n, 3);
  assert_memory_equal(v.runs, cut.table->runs, 3 * sizeof *v.runs);
  v.n = 0;
  assert_int_equal(xfi_cut_holders(&cut, 100, 2, 5, note, &v), XFER_OK);
  assert_int_equal(v.n, 2);
  assert_int_equal(v.coords[0], 1);
  assert_memory_equal(&v.runs[0], (&(xfer_run){2, 2, 3}), sizeof *v.runs);
  assert_int_equal(v.coords[1], 0);
  assert_memory_equal(&v.runs[1], (&(xfer_run){4, 1, 0}), sizeof *v.runs);
  v.n = 0;
  assert_int_equal(xfi_cut_holders(&cut, 100, 6, 100, note, &v), XFER_OK);
  assert_int_equal(xfi_cut_holders(&cut, 100, 3, 3, note, &v), XFER_OK);
  assert_int_equal(v.n, 0);
  xfi_table_destroy(cut.table);
}

static void test_a_failing_visit_ends_the_walk(void **state)
{
  (void)state;
  xfi_table *table = small_table();
  const xfi_cut cuts[] = {
      shard(3, XFER_CHUNK), shard(3, XFER_BALANCED), strided(3, 2), {0, 2, XFER_RUNS, 0, 0, table}};

  for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
    visits runs = {.n = 0, .stop_at = 1};
    visits holders = {.n = 0, .stop_at = 2};

    print_message("cut %zu\n", c);
    assert_int_equal(xfi_cut_runs(&cuts[c], 6, 0, note, &runs), XFER_ERR_STATE);
    assert_int_equal(runs.n, 0);
    assert_int_equal(xfi_cut_holders(&cuts[c], 6, 0, 6, note, &holders), XFER_ERR_STATE);
    assert_int_equal(holders.n, 1);
  }
  xfi_table_destroy(table);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_shard_of_small_sizes_is_as_defined),
      cmocka_unit_test(test_every_strided_shard_of_small_sizes_is_as_defined),
      cmocka_unit_test(test_known_splits),
      cmocka_unit_test(test_sizes_past_32_bits_split_and_are_found_again),
      cmocka_unit_test(test_a_table_is_read_as_it_stands),
      cmocka_unit_test(test_a_failing_visit_ends_the_walk),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
