/* The library's layouts against torch's own splitting: 39 cases with all indices of all ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "golden.h"
#include "layouts.h"

/* The layout of a golden case, made by the API or by the problem language. */
static void make_layout(xfer_layout **layout, orc_side *side, const golden *g, bool from_line)
{
  problem p = {0};
  xfer_layout *layouts[2] = {NULL, NULL};
  char line[200];
  (void)snprintf(line, sizeof line, "u8[%d] %s -> %s", g->n, g->side, g->side);
  assert_true(problem_read(&p, line));
  *side = p.tensors[0].sides[SRC];
  p.tensors[0].from_line = from_line;
  assert_int_equal(layouts_create(layouts, &p, 0), XFER_OK);
  *layout = layouts[SRC];
  xfer_layout_destroy(layouts[DST]);
  problem_free(&p);
}

static void assert_rank_holds(const xfer_layout *layout, int rank, const int64_t *index, int n)
{
  int64_t length = -1;
  int64_t local = 0;
  xfer_run runs[GOLDEN_MOST];
  size_t n_runs = 0;
  assert_int_equal(xfer_layout_local_shape(layout, rank, &length), XFER_OK);
  assert_int_equal(length, n);
  assert_int_equal(xfer_layout_runs(layout, rank, 0, runs, GOLDEN_MOST, &n_runs), XFER_OK);
  for (size_t r = 0; r < n_runs; r++) {
    assert_int_equal(runs[r].local, local);
    assert_true(runs[r].length > 0);
    for (int64_t k = 0; k < runs[r].length; k++)
      assert_int_equal(index[local + k], runs[r].global + k);
    local += runs[r].length;
    if (local < n) assert_true(index[local] != index[local - 1] + 1); /* maximal */
  }
  assert_int_equal(local, n);
  assert_int_equal(xfer_layout_local_bytes(layout, rank), n); /* of u8 */
  for (int64_t i = 0; i < n; i++) {
    int64_t global = -2;
    assert_int_equal(xfer_layout_global_index(layout, rank, i, &global), XFER_OK);
    assert_int_equal(global, index[i]);
  }
  assert_int_equal(xfer_layout_global_index(layout, rank, n, &local), XFER_ERR_ARG);
}

static void test_layout_equals_torch_on_39_golden_cases(void **state)
{
  (void)state;
  assert_int_equal(N_GOLDEN, 39);
  for (int i = 0; i < 2 * N_GOLDEN; i++) {
    const golden *g = &golden_1d[i / 2];
    xfer_layout *layout = NULL;
    orc_side side;
    make_layout(&layout, &side, g, i % 2 == 1);
    for (int r = 0; r < g->n_ranks; r++) {
      int64_t index[GOLDEN_MOST];
      assert_rank_holds(layout, r, index, golden_indices(g, r, index));
    }
    xfer_layout_destroy(layout);
  }
}

static void test_owners_are_the_inverse_on_39_golden_cases(void **state)
{
  (void)state;
  for (int i = 0; i < N_GOLDEN; i++) {
    const golden *g = &golden_1d[i];
    xfer_layout *layout = NULL;
    orc_side side;
    make_layout(&layout, &side, g, false);
    for (int r = 0; r < g->n_ranks; r++) {
      int64_t index[GOLDEN_MOST];
      int n = golden_indices(g, r, index);
      for (int k = 0; k < n; k++) {
        xfer_owner owner;
        size_t n_owners = 0;
        assert_int_equal(xfer_layout_owners(layout, &index[k], &owner, 1, &n_owners), XFER_OK);
        assert_int_equal(n_owners, 1);
        assert_int_equal(owner.rank, r);
        assert_int_equal(owner.local[0], k);
      }
    }
    xfer_layout_destroy(layout);
  }
}

static void test_layout_equals_the_oracle_on_39_golden_cases(void **state)
{
  orc_arena arena = {NULL};
  (void)state;
  for (int i = 0; i < N_GOLDEN; i++) {
    xfer_layout *layout = NULL;
    orc_side side;
    char why[300] = "";
    rng r = rng_of(1, (uint64_t)i, 0);
    make_layout(&layout, &side, &golden_1d[i], false);
    if (!layout_agrees(layout, &side, XFER_U8, side.n_ranks, &r, &arena, why, sizeof why)) {
      fail_msg("%d over %s: %s", golden_1d[i].n, golden_1d[i].side, why);
    }
    xfer_layout_destroy(layout);
  }
  orc_free(&arena);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_layout_equals_torch_on_39_golden_cases),
      cmocka_unit_test(test_owners_are_the_inverse_on_39_golden_cases),
      cmocka_unit_test(test_layout_equals_the_oracle_on_39_golden_cases),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
