/* Each allocation of one rank fails in turn while a plan that quantises by blocks, which its source
 * cuts, is made and committed: every rank ends with an error or every rank with success, nobody
 * waits for the deadline, and nothing leaks. */
#include "alloc.h"
#include "unit/ranks.h"
#include "xfer/xfer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>

enum { N_RANKS = 3, ELEMS = 40 * 24 };

typedef struct turn {
  xfer_comm *comms[N_RANKS];
  xfer_status created[N_RANKS];
  xfer_status committed[N_RANKS];
  bool at_commit;
  int victim;
  long n; /* the allocation that fails */
} turn;

static void play(int rank, void *context)
{
  turn *t = context;
  static const char *const lines[2] = {"f32[40,24] (2)@0-1:S0 -> f8e4m3 (2)@1-2:S1",
                                       "f32[3,2] (1):R -> (3)@0-2:R"};
  float src[ELEMS] = {1};
  unsigned char dst[ELEMS];
  float scales[6];
  const xfer_view from = xfer_view_dense(src);
  const xfer_view to = xfer_view_dense(dst);
  const xfer_view by = xfer_view_dense(scales);
  xfer_layout *layouts[4] = {NULL};
  xfer_plan *plan = NULL;

  for (int i = 0; i < 2; i++)
    expect(xfer_problem_parse(&layouts[2 * i], &layouts[2 * i + 1], lines[i]) == XFER_OK);
  const xfer_tensor tensors[2] = {
      {"weights", layouts[0], layouts[1], xfer_convert_blocks(16, 16, XFER_SCALE_F32)},
      {"scales", NULL, layouts[3], xfer_convert_scales_of(0)}};
  if (rank == t->victim && !t->at_commit) xfi_alloc_fail_after(t->n);
  t->created[rank] = xfer_plan_create(&plan, t->comms[rank], tensors, 2, NULL);
  xfi_alloc_fail_after(-1);
  if (t->created[rank] == XFER_OK) {
    expect(xfer_plan_bind(plan, 0, &from, &to) == XFER_OK);
    expect(xfer_plan_bind(plan, 1, NULL, &by) == XFER_OK);
    if (rank == t->victim && t->at_commit) xfi_alloc_fail_after(t->n);
    t->committed[rank] = xfer_plan_commit(plan);
    xfi_alloc_fail_after(-1);
  }
  xfer_plan_destroy(plan);
  for (int i = 0; i < 4; i++)
    xfer_layout_destroy(layouts[i]);
}

/* All succeeded? All have failed otherwise, the victim for want of memory. */
static bool came_through(const xfer_status *st, int victim)
{
  for (int r = 0; r < N_RANKS; r++) {
    assert_int_equal(st[r] == XFER_OK, st[victim] == XFER_OK);
    assert_true(st[r] != XFER_ERR_TIMEOUT && st[r] != XFER_ERR_INTERNAL);
  }
  assert_true(st[victim] == XFER_OK || st[victim] == XFER_ERR_NOMEM);
  return st[victim] == XFER_OK;
}

static void sweep(bool at_commit)
{
  for (int victim = 0; victim < N_RANKS; victim++) {
    turn t = {.at_commit = at_commit, .victim = victim};
    bool through = false;

    for (t.n = 0; t.n < 2000 && !through; t.n++) {
      assert_int_equal(xfer_comm_create_local(t.comms, N_RANKS), XFER_OK);
      run_ranks(N_RANKS, play, &t);
      for (int r = 0; r < N_RANKS; r++)
        xfer_comm_destroy(t.comms[r]);
      assert_all_as_expected();
      through = came_through(at_commit ? t.committed : t.created, victim);
    }
    print_message("rank %d: %ld allocations\n", victim, t.n);
    assert_true(through);
  }
}

static void test_create_survives_each_failed_allocation(void **state)
{
  (void)state;
  sweep(false);
}

static void test_commit_survives_each_failed_allocation(void **state)
{
  (void)state;
  sweep(true);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_create_survives_each_failed_allocation),
      cmocka_unit_test(test_commit_survives_each_failed_allocation),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
