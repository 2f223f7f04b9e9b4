/* The broadcast lane: large parts that are one run on every rank go in place, with no staging, and
   all others through slots. Ranks are threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "unit/ranks.h"
#include "xfer/xfer.h"

enum { RANKS = 4, ROWS = 6, COLUMNS = 8, ELEMS = ROWS * COLUMNS, WINDOW = 64, MOST_TENSORS = 70 };

/* What is sent, and how the views of one rank differ from dense ones. */
typedef struct play {
  const char *line;
  size_t n_tensors;
  int odd_rank; /* its destinations, or sources where it is the root, are strided; -1: nobody's */
  int64_t row_stride;
  int64_t column_stride;
  int idle_rank; /* above 0: it holds nothing */
  bool staged;   /* expected */
  xfer_comm *comms[RANKS];
} play;

static int32_t value_of(size_t tensor, int row, int column)
{
  return (int32_t)(1 + tensor * 1000) + row * COLUMNS + column;
}

/* Where element (row, column) lies in a rank's memory, counted in elements. */
static int64_t offset_of(const play *p, int rank, int row, int column)
{
  if (rank != p->odd_rank) return row * COLUMNS + column;
  return (row * p->row_stride + column * p->column_stride) / (int64_t)sizeof(int32_t);
}

static void fill(const play *p, int rank, size_t tensor, int32_t *memory)
{
  for (int row = 0; row < ROWS; row++)
    for (int column = 0; column < COLUMNS; column++)
      memory[offset_of(p, rank, row, column)] = value_of(tensor, row, column);
}

static bool is_filled(const play *p, int rank, size_t tensor, const int32_t *memory)
{
  for (int row = 0; row < ROWS; row++)
    for (int column = 0; column < COLUMNS; column++)
      if (memory[offset_of(p, rank, row, column)] != value_of(tensor, row, column)) return false;
  return true;
}

static void carry(int rank, void *context)
{
  const play *p = context;
  const int64_t strides[2] = {p->row_stride, p->column_stride};
  int32_t(*memory)[2 * ELEMS] = calloc(p->n_tensors, sizeof *memory);
  char names[MOST_TENSORS][32];
  xfer_tensor tensors[MOST_TENSORS];
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;

  options.lane = XFER_LANE_BROADCAST;
  options.window_bytes = WINDOW;
  expect(xfer_problem_parse(&src, &dst, p->line) == XFER_OK);
  for (size_t t = 0; t < p->n_tensors; t++) {
    (void)snprintf(names[t], sizeof names[t], "tensor %zu", t);
    tensors[t] = (xfer_tensor){names[t], src, dst, {0}};
  }
  expect(xfer_plan_create(&plan, p->comms[rank], tensors, p->n_tensors, &options) == XFER_OK);
  for (size_t t = 0; t < p->n_tensors; t++) {
    const xfer_view view =
        rank == p->odd_rank ? xfer_view_strided(memory[t], strides, 2) : xfer_view_dense(memory[t]);

    if (rank == 0) fill(p, rank, t, memory[t]);
    expect(xfer_plan_bind(plan, t, &view, &view) == XFER_OK);
  }
  expect(xfer_plan_commit(plan) == XFER_OK);
  for (uint64_t version = 1; version <= 3; version++) {
    for (size_t t = 0; t < p->n_tensors && rank != 0; t++)
      memset(memory[t], 0xAB, sizeof memory[t]);
    expect(xfer_plan_run(plan, version, NULL) == XFER_OK);
    expect(xfer_plan_wait(plan, 0) == XFER_OK);
    for (size_t t = 0; t < p->n_tensors && (rank == 0 || rank != p->idle_rank); t++)
      expect(is_filled(p, rank, t, memory[t]));
  }
  expect(xfer_plan_report(plan, &report) == XFER_OK);
  expect(report.broadcast_tensors == p->n_tensors);
  expect((report.staging_bytes > 0) == p->staged);
  expect(report.packed_bytes == (rank == 0 ? p->n_tensors * ELEMS * sizeof(int32_t) : 0));
  xfer_plan_destroy(plan);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  free(memory);
}

static void run_play(play p)
{
  assert_int_equal(xfer_comm_create_local(p.comms, RANKS), XFER_OK);
  run_ranks(RANKS, carry, &p);
  for (int r = 0; r < RANKS; r++)
    xfer_comm_destroy(p.comms[r]);
  assert_all_as_expected();
}

#define ONE_TO_ALL "i32[6,8] (1)@0:R -> (3)@1-3:R"

static void test_dense_tensors_go_in_place(void **state)
{
  (void)state;
  run_play((play){.line = ONE_TO_ALL, .n_tensors = 1, .odd_rank = -1});
  run_play((play){.line = ONE_TO_ALL, .n_tensors = MOST_TENSORS, .odd_rank = -1});
}

/* One rank that cannot is enough. */
static void test_a_strided_view_on_one_rank_takes_slots_on_all(void **state)
{
  (void)state;
  for (int rank = 0; rank < RANKS; rank++)
    run_play((play){.line = ONE_TO_ALL,
                    .n_tensors = 5,
                    .odd_rank = rank,
                    .row_stride = 2 * COLUMNS * (int64_t)sizeof(int32_t),
                    .column_stride = (int64_t)sizeof(int32_t),
                    .staged = true});
}

/* A transposed view is one run of memory, but not in the order of the others'. */
static void test_a_transposed_view_takes_slots(void **state)
{
  (void)state;
  for (int rank = 0; rank < RANKS; rank++)
    run_play((play){.line = ONE_TO_ALL,
                    .n_tensors = 2,
                    .odd_rank = rank,
                    .row_stride = (int64_t)sizeof(int32_t),
                    .column_stride = ROWS * (int64_t)sizeof(int32_t),
                    .staged = true});
}

/* A rank of the comm that needs nothing has nowhere to receive into but a slot. */
static void test_a_rank_that_needs_nothing_takes_a_slot(void **state)
{
  (void)state;
  run_play((play){.line = "i32[6,8] (1)@0:R -> (2)@1-2:R",
                  .n_tensors = 2,
                  .odd_rank = -1,
                  .idle_rank = 3,
                  .staged = true});
}

/* ---- many pieces --------------------------------------------------------------------------- */

enum { PIECES = 16384, MOST_SECONDS = 20 };

typedef struct cyclic {
  const char *line; /* two ranks have every other piece of a dim, all get everything */
  int dim;
  xfer_comm *comms[RANKS];
} cyclic;

/* The part of a rank, whose elements are their row-major indices. */
static void fill_part(int32_t *part, const xfer_layout *layout, int rank, int dim)
{
  xfer_run *runs = calloc(PIECES, sizeof *runs);
  int64_t shape[2];
  int64_t local[2];
  size_t n = 0;

  expect(runs != NULL && xfer_layout_shape(layout, shape) == 2 &&
         xfer_layout_local_shape(layout, rank, local) == XFER_OK &&
         xfer_layout_runs(layout, rank, dim, runs, PIECES, &n) == XFER_OK && n == PIECES);
  for (size_t i = 0; i < n; i++) {
    for (int64_t k = 0; k < runs[i].length * local[1 - dim]; k++) {
      const int64_t along = k % runs[i].length;
      const int64_t across = k / runs[i].length;
      const int64_t to = runs[i].local + along;
      const int64_t index = runs[i].global + along;

      if (dim == 0)
        part[to * local[1] + across] = (int32_t)(index * shape[1] + across);
      else
        part[across * local[1] + to] = (int32_t)(across * shape[1] + index);
    }
  }
  free(runs);
}

static void gather_pieces(int rank, void *context)
{
  const cyclic *c = context;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  int32_t *part = calloc(4 * PIECES, sizeof *part);
  int32_t *all = calloc(4 * PIECES, sizeof *all);
  const xfer_view from = xfer_view_dense(part);
  const xfer_view to = xfer_view_dense(all);
  xfer_tensor tensor = {.name = "w"};
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;

  options.lane = XFER_LANE_BROADCAST;
  expect(part != NULL && all != NULL && xfer_problem_parse(&src, &dst, c->line) == XFER_OK);
  if (rank < 2) fill_part(part, src, rank, c->dim);
  tensor.src = src;
  tensor.dst = dst;
  expect(xfer_plan_create(&plan, c->comms[rank], &tensor, 1, &options) == XFER_OK);
  expect(xfer_plan_bind(plan, 0, &from, &to) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  for (int32_t i = 0; i < 4 * PIECES; i++)
    if (all[i] != i) {
      expect(all[i] == i);
      break;
    }
  xfer_plan_destroy(plan);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  free(part);
  free(all);
}

/* Block-cyclic rows, or columns: the time of a commit is that of the pieces, not of pairs of them,
 * which would be minutes. */
static void test_many_pieces_take_little_time(void **state)
{
  (void)state;
  cyclic plays[] = {{"i32[65536,1] (2)@0-1:S0f16384 -> (4)@0-3:R", 0, {NULL}},
                    {"i32[2,32768] (2)@0-1:S1f16384 -> (4)@0-3:R", 1, {NULL}}};

  for (size_t i = 0; i < sizeof plays / sizeof *plays; i++) {
    const clock_t start = clock();

    assert_int_equal(xfer_comm_create_local(plays[i].comms, RANKS), XFER_OK);
    run_ranks(RANKS, gather_pieces, &plays[i]);
    for (int r = 0; r < RANKS; r++)
      xfer_comm_destroy(plays[i].comms[r]);
    assert_all_as_expected();
    assert_true((clock() - start) / CLOCKS_PER_SEC < MOST_SECONDS);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_dense_tensors_go_in_place),
      cmocka_unit_test(test_a_strided_view_on_one_rank_takes_slots_on_all),
      cmocka_unit_test(test_a_transposed_view_takes_slots),
      cmocka_unit_test(test_a_rank_that_needs_nothing_takes_a_slot),
      cmocka_unit_test(test_many_pieces_take_little_time),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
