/* Do destination views overlap? Random views against a map of bytes. */
#include "alloc.h"
#include "bound.h"
#include "conversion.h"
#include "error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { BYTES = 1 << 14, MOST_VIEWS = 3, MOST_PIECES = 4, N_CASES = 20000 };

static char memory[BYTES];
static const char *const names[MOST_VIEWS] = {"a", "b", "c"};

/* A view of up to three dims with its part. */
typedef struct part {
  xfer_view view;
  int n_dims;
  int64_t shape[3];
  int elem_bytes;
  void *pieces[MOST_PIECES];
  xfer_dtype dtype;
  xfer_conversion conversion;
} part;

static uint64_t state_of_rng = 1;

static int64_t below(int64_t n)
{
  state_of_rng = state_of_rng * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((state_of_rng >> 33) % (uint64_t)n);
}

/* Nested strides in a random order of dims, with gaps now and then. */
static void random_part(part *p)
{
  int order[3] = {0, 1, 2};
  int64_t strides[3];
  int64_t inside;

  p->n_dims = (int)below(4);
  p->elem_bytes = 1 << below(4);
  inside = p->elem_bytes;
  for (int d = 0; d < p->n_dims; d++) {
    const int other = (int)below(p->n_dims);
    const int swap = order[d];

    p->shape[d] = 1 + below(4);
    if (order[d] >= p->n_dims || order[other] >= p->n_dims) continue;
    order[d] = order[other];
    order[other] = swap;
  }
  for (int i = 0; i < p->n_dims; i++) {
    const int d = order[i];

    strides[d] = inside + (below(2) == 0 ? 0 : below(12));
    inside = strides[d] * p->shape[d];
  }
  p->view = xfer_view_strided(memory + below(120), strides, p->n_dims);
  if (p->n_dims == 0 || below(3) != 0) return;
  for (int i = 0; i < MOST_PIECES; i++)
    p->pieces[i] = memory + below(500);
  p->view = xfer_view_pieces(p->pieces, p->shape[0], 0, strides, p->n_dims);
}

/* True: a byte of the part was marked before. Marks each where `marks`. */
static bool visit(unsigned char *map, const part *p, bool marks)
{
  int64_t x[3] = {0};
  bool met = false;
  int d;

  do {
    const char *at = p->view.kind == XFER_VIEW_PIECES ? p->pieces[x[0]] : p->view.base;

    for (d = p->view.kind == XFER_VIEW_PIECES ? 1 : 0; d < p->n_dims; d++)
      at += x[d] * p->view.strides[d];
    for (int b = 0; b < p->elem_bytes; b++) {
      met = met || map[at - memory + b] != 0;
      if (marks) map[at - memory + b] = 1;
    }
    for (d = p->n_dims - 1; d >= 0 && ++x[d] == p->shape[d]; d--)
      x[d] = 0;
  } while (d >= 0);
  return met;
}

static bool mark(unsigned char *map, const part *p)
{
  return visit(map, p, true);
}

static bool touches(unsigned char *map, const part *p)
{
  return visit(map, p, false);
}

/* An address that is never read. */
static void *far_off(int64_t n)
{
  return (void *)((uintptr_t)memory + (uintptr_t)n);
}

/* The views from first_source on are sources. */
static xfer_status check_with_sources(part *parts, size_t n, size_t first_source)
{
  xfi_bound bounds[MOST_VIEWS] = {{.is_set = false}};
  xfi_use uses[MOST_VIEWS] = {{.bound = NULL}};
  xfer_status st;

  for (size_t i = 0; i < n; i++) {
    assert_int_equal(xfi_bound_set(&bounds[i], &parts[i].view, parts[i].shape, parts[i].n_dims,
                                   parts[i].elem_bytes, names[i]),
                     XFER_OK);
    uses[i] = (xfi_use){&bounds[i],
                        names[i],
                        parts[i].elem_bytes,
                        .moves = "",
                        .is_source = i >= first_source,
                        .tensor = i,
                        .dtype = parts[i].dtype,
                        .conversion = parts[i].conversion};
  }
  st = xfi_uses_check_disjoint(uses, n);
  for (size_t i = 0; i < n; i++)
    xfi_bound_clear(&bounds[i]);
  return st;
}

static xfer_status check(part *parts, size_t n)
{
  return check_with_sources(parts, n, n);
}

static void test_random_views_against_a_map_of_bytes(void **state)
{
  static unsigned char map[BYTES];
  int n_met = 0;

  (void)state;
  for (int k = 0; k < N_CASES; k++) {
    part parts[MOST_VIEWS];
    const size_t n = (size_t)(1 + below(MOST_VIEWS));
    bool met = false;

    memset(map, 0, sizeof map);
    for (size_t i = 0; i < n; i++) {
      random_part(&parts[i]);
      met = mark(map, &parts[i]) || met;
    }
    n_met += met;
    if (check(parts, n) != (met ? XFER_ERR_SHAPE : XFER_OK))
      fail_msg("case %d: %s, but the views %s", k, met ? "not seen" : xfer_last_error(),
               met ? "meet" : "do not meet");
  }
  assert_in_range(n_met, N_CASES / 5, N_CASES * 4 / 5);
}

/* Elements of one to three adjacent columns of one array, or of every second row of it. */
static void random_columns(part *p, int64_t row_bytes)
{
  const int64_t every = 1 + below(2);
  const int64_t strides[3] = {4 * every * row_bytes, every * row_bytes, 4};

  *p = (part){.n_dims = 3, .shape = {1 + below(3), 1 + below(4), 1 + below(3)}, .elem_bytes = 4};
  p->view = xfer_view_strided(memory + below(2 * row_bytes), strides, 3);
}

static void test_random_columns_of_one_array_against_a_map_of_bytes(void **state)
{
  static unsigned char map[BYTES];
  int n_met = 0;

  (void)state;
  for (int k = 0; k < N_CASES; k++) {
    const int64_t row_bytes = 12 + below(40);
    part parts[2];
    bool met;

    memset(map, 0, sizeof map);
    for (size_t i = 0; i < 2; i++)
      random_columns(&parts[i], row_bytes);
    if (parts[0].view.base == parts[1].view.base) continue; /* perhaps one view twice, a tie */
    assert_false(mark(map, &parts[0]));
    met = mark(map, &parts[1]);
    n_met += met;
    if (check(parts, 2) != (met ? XFER_ERR_SHAPE : XFER_OK))
      fail_msg("case %d: %s, but the views %s", k, met ? "not seen" : xfer_last_error(),
               met ? "meet" : "do not meet");
  }
  assert_in_range(n_met, N_CASES / 5, N_CASES * 4 / 5);
}

static void test_the_same_view_twice_is_a_tie(void **state)
{
  const int64_t strides[2] = {40, 4};
  void *pieces[2] = {memory, memory + 100};
  part parts[2] = {{.n_dims = 2, .shape = {2, 3}, .elem_bytes = 4}};

  (void)state;
  parts[0].view = xfer_view_strided(memory, strides, 2);
  parts[1] = parts[0];
  assert_int_equal(check(parts, 2), XFER_OK);
  parts[1].elem_bytes = 2;
  assert_int_equal(check(parts, 2), XFER_ERR_SHAPE);
  parts[1].elem_bytes = 4;
  parts[1].shape[1] = 2;
  assert_int_equal(check(parts, 2), XFER_ERR_SHAPE);
  assert_non_null(strstr(xfer_last_error(), "\"a\" and \"b\" overlap"));
  parts[0].view = parts[1].view = xfer_view_pieces(pieces, 2, 0, strides, 2);
  parts[1].shape[1] = 3;
  assert_int_equal(check(parts, 2), XFER_OK);
}

static void test_the_same_view_of_other_bytes_is_no_tie(void **state)
{
  part parts[2] = {{.n_dims = 1, .shape = {3}, .elem_bytes = 2, .dtype = XFER_BF16}};

  (void)state;
  parts[0].view = xfer_view_dense(memory);
  parts[1] = parts[0];
  parts[1].dtype = XFER_F16;
  assert_int_equal(check(parts, 2), XFER_ERR_SHAPE);
  assert_string_equal(xfer_last_error(),
                      "tensors \"a\" and \"b\" have one destination view, but one "
                      "is bf16 and the other f16");
  parts[1].dtype = XFER_BF16;
  parts[1].conversion = xfer_convert_scale(2);
  assert_int_equal(check(parts, 2), XFER_ERR_SHAPE);
  assert_non_null(strstr(xfer_last_error(), "converted differently"));
  parts[0].conversion = parts[1].conversion;
  assert_int_equal(check(parts, 2), XFER_OK);
}

static void test_sources_may_meet_each_other_but_no_destination(void **state)
{
  static unsigned char map[BYTES];
  int n_met = 0;

  (void)state;
  for (int k = 0; k < N_CASES; k++) {
    part parts[MOST_VIEWS];
    bool met = false;

    for (size_t i = 0; i < MOST_VIEWS; i++)
      random_part(&parts[i]);
    memset(map, 0, sizeof map);
    if (mark(map, &parts[0])) continue; /* a destination that overlaps itself */
    for (size_t i = 1; i < MOST_VIEWS; i++)
      met = touches(map, &parts[i]) || met;
    n_met += met;
    if (check_with_sources(parts, MOST_VIEWS, 1) != (met ? XFER_ERR_SHAPE : XFER_OK))
      fail_msg("case %d: %s, but the views %s", k, met ? "not seen" : xfer_last_error(),
               met ? "meet" : "do not meet");
  }
  assert_in_range(n_met, N_CASES / 5, N_CASES * 4 / 5);
}

static void test_touching_views_and_combs_do_not_overlap(void **state)
{
  const int64_t comb[2] = {64, 8};
  part parts[3] = {{.n_dims = 2, .shape = {3, 8}, .elem_bytes = 4},
                   {.n_dims = 2, .shape = {3, 8}, .elem_bytes = 4},
                   {.n_dims = 2, .shape = {3, 8}, .elem_bytes = 4}};

  (void)state;
  parts[0].view = xfer_view_strided(memory, comb, 2);
  parts[1].view = xfer_view_strided(memory + 4, comb, 2); /* its teeth in between */
  parts[2].view = xfer_view_dense(memory + 3 * 64);
  assert_int_equal(check(parts, 3), XFER_OK);
  parts[2].view = xfer_view_dense(memory + 3 * 64 - 1);
  assert_int_equal(check(parts, 3), XFER_ERR_SHAPE);
  assert_int_equal(check(parts, 0), XFER_OK);
}

/* Walked row by row this would take hours. */
static void test_large_views_are_compared_without_walking_them(void **state)
{
  const int64_t rows[2] = {INT64_C(1) << 20, 1};
  part parts[2] = {{.n_dims = 2, .shape = {INT64_C(1) << 20, 1000}, .elem_bytes = 1},
                   {.n_dims = 1, .shape = {24}, .elem_bytes = 1}};

  (void)state;
  parts[0].view = xfer_view_strided(memory, rows, 2); /* never touched */
  parts[1].view = xfer_view_dense(far_off((INT64_C(1) << 39) + 1000));
  assert_int_equal(check(parts, 2), XFER_OK);
  parts[1].view = xfer_view_dense(far_off((INT64_C(1) << 39) + 999));
  assert_int_equal(check(parts, 2), XFER_ERR_SHAPE);
}

/* Very many pieces between the rows of one view: pairs of them would take a minute. */
static void test_many_pieces_between_the_rows_of_a_view_take_little_time(void **state)
{
  enum { PIECES = 200000, MOST_SECONDS = 10 };
  const int64_t rows[2] = {64, 1};
  const int64_t stride = 1;
  const clock_t start = clock();
  void **pieces = malloc(PIECES * sizeof *pieces);
  part parts[2] = {{.n_dims = 2, .shape = {PIECES, 8}, .elem_bytes = 1},
                   {.n_dims = 1, .shape = {PIECES * 4}, .elem_bytes = 1}};

  (void)state;
  assert_non_null(pieces);
  for (int64_t i = 0; i < PIECES; i++)
    pieces[i] = far_off(64 * i + 8);
  parts[0].view = xfer_view_strided(memory, rows, 2);
  parts[1].view = xfer_view_pieces(pieces, PIECES, 0, &stride, 1);
  assert_int_equal(check(parts, 2), XFER_OK);
  pieces[PIECES - 1] = far_off(64 * (PIECES - 1) + 7);
  assert_int_equal(check(parts, 2), XFER_ERR_SHAPE);
  free(pieces);
  assert_true((clock() - start) / CLOCKS_PER_SEC < MOST_SECONDS);
}

/* Walked run by run, pair after pair, these would take a minute. */
static void test_many_columns_of_one_array_take_little_time(void **state)
{
  enum { COLUMNS = 400, ROWS = 20000, MOST_SECONDS = 10 };
  const int64_t strides[2] = {0, 4 * COLUMNS};
  const clock_t start = clock();
  void *pieces[COLUMNS];
  part p = {.n_dims = 2, .shape = {COLUMNS, ROWS}, .elem_bytes = 4};

  (void)state;
  for (int64_t i = 0; i < COLUMNS; i++)
    pieces[i] = far_off(4 * i);
  p.view = xfer_view_pieces(pieces, COLUMNS, 0, strides, 2);
  assert_int_equal(check(&p, 1), XFER_OK);
  pieces[COLUMNS - 1] = far_off(4 * (COLUMNS - 1) - 1);
  assert_int_equal(check(&p, 1), XFER_ERR_SHAPE);
  assert_true((clock() - start) / CLOCKS_PER_SEC < MOST_SECONDS);
}

static void test_each_failed_allocation_is_an_error(void **state)
{
  const int64_t comb[2] = {64, 8};
  part combs[2] = {{.n_dims = 2, .shape = {3, 8}, .elem_bytes = 4},
                   {.n_dims = 2, .shape = {3, 8}, .elem_bytes = 4}};
  xfer_status st = XFER_ERR_NOMEM;
  long n = 0;

  (void)state;
  combs[0].view = xfer_view_strided(memory, comb, 2);
  combs[1].view = xfer_view_strided(memory + 4, comb, 2); /* looked at run by run */
  for (; st != XFER_OK && n < 20; n++) {
    xfi_alloc_fail_after(n);
    st = check(combs, 2);
    xfi_alloc_fail_after(-1);
    if (st != XFER_OK) assert_int_equal(st, XFER_ERR_NOMEM);
  }
  assert_in_range(n, 3, 19);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_views_against_a_map_of_bytes),
      cmocka_unit_test(test_random_columns_of_one_array_against_a_map_of_bytes),
      cmocka_unit_test(test_the_same_view_twice_is_a_tie),
      cmocka_unit_test(test_the_same_view_of_other_bytes_is_no_tie),
      cmocka_unit_test(test_sources_may_meet_each_other_but_no_destination),
      cmocka_unit_test(test_touching_views_and_combs_do_not_overlap),
      cmocka_unit_test(test_large_views_are_compared_without_walking_them),
      cmocka_unit_test(test_many_pieces_between_the_rows_of_a_view_take_little_time),
      cmocka_unit_test(test_many_columns_of_one_array_take_little_time),
      cmocka_unit_test(test_each_failed_allocation_is_an_error),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
