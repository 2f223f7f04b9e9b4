/*
 * Block quantisation on ranks that are threads, and (in tests/sim) on simulated GPUs of which half
 * cannot reach the other: sources that cut blocks and such that do not, beside a tensor that is not
 * converted, run twice, bound anew between. What is expected is made element by element from the
 * formula, by the numbers of tests/numbers.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/ranks.h"
#include "numbers.h"
#ifdef BLOCKS_ON_SIM
#include "../sim/refit_place.h"
#else
#include "refit_place.h"
#endif

enum {
  N_RANKS = 4,
  ROWS = 150,
  COLUMNS = 208,
  ELEMS = ROWS * COLUMNS,
  N_CASES = 9,
  N_TENSORS = 2 * N_CASES + 1
};

/* Blocks, where they come from, and where they and their scales go. */
typedef struct blocks_case {
  int rows;
  int columns;
  int scale;
  const char *src;
  const char *dst;
  const char *scales;
} blocks_case;

static const blocks_case cases[N_CASES] = {
    {128, 128, XFER_SCALE_F32, "(2)@0-1:S0", "(2)@2-3:S1", "(4)@0-3:R"},
    {128, 128, XFER_SCALE_POW2, "(2,2)@0-3:S0,S1", "(4)@0-3:R", "(2)@1-2:S0"},
    {16, 16, XFER_SCALE_F32, "(2)@0-1:S1", "(2)@2-3:S0", "(2)@2-3:S0"},
    {1, 16, XFER_SCALE_UE8M0, "(1)@1:R", "(3)@1-3:S0", "(3)@1-3:S0"},
    {1, 32, XFER_SCALE_MX, "(2,2)@0-3:R,S0", "(2)@0-1:S0", "(2)@2-3:S1"},
    {64, 1, XFER_SCALE_F32, "(3)@1-3:S0", "(1)@0:R", "(1)@0:R"},
    /* Each counts as much as is worth a part of a run, cut or not. */
    {4096, 4096, XFER_SCALE_F32, "(1)@1:R", "(2)@2-3:S1", "(4)@0-3:R"},
    {4096, 4096, XFER_SCALE_F32, "(2)@0-1:S0", "(2)@2-3:S1", "(2)@2-3:R"},
    {4096, 4096, XFER_SCALE_F32, "(2)@1-2:R", "(2)@2-3:S0", "(1)@3:R"},
};

static int ceil_div(int a, int b)
{
  return (a + b - 1) / b;
}

/* The bf16 of element i in one run. */
static uint16_t element(int tensor, int run, int i)
{
  const uint32_t of = (uint32_t)tensor * 40503 + (uint32_t)run * 977;
  const uint32_t z = (uint32_t)i * 2654435761U ^ of * 2246822519U;
  const uint32_t exponent = 110 + (z >> 16) % 30;

  if (z % 17 == 0) return 0;
  return (uint16_t)((z & 0x8000) | exponent << 7 | (z & 0x7f));
}

static double value(int tensor, int run, int i)
{
  return number_value(number_type_of(XFER_BF16), element(tensor, run, i));
}

/* What a case comes to in one run: elements, and scales by cell, as bytes where they are exponents.
 */
typedef struct answer {
  uint8_t eight[ELEMS];
  float scales[ELEMS];
  uint8_t exponents[ELEMS];
} answer;

static answer *answers[2][N_CASES];

/* The scale of a block of which the largest magnitude is `amax`. */
static float scale_of(double amax, int how, int *exponent)
{
  const double eps = how == XFER_SCALE_MX ? 0x1p-126 : (double)1e-4F;
  const float scale = (float)(amax > eps ? amax : eps) / 448;

  *exponent = 0;
  if (how == XFER_SCALE_F32) return scale;
  *exponent = frexpf(scale, exponent) > 0.5F ? *exponent : *exponent - 1;
  return ldexpf(1, *exponent);
}

static void answer_block(answer *a, int c, int run, int row, int column)
{
  const blocks_case *b = &cases[c];
  const int cell = row * ceil_div(COLUMNS, b->columns) + column;
  double amax = 0;
  int exponent;

  for (int pass = 0; pass < 2; pass++) {
    for (int i = row * b->rows; i < (row + 1) * b->rows && i < ROWS; i++)
      for (int j = column * b->columns; j < (column + 1) * b->columns && j < COLUMNS; j++) {
        const double x = value(2 * c, run, i * COLUMNS + j);

        if (pass == 0)
          amax = fabs(x) > amax ? fabs(x) : amax;
        else
          a->eight[i * COLUMNS + j] = (uint8_t)number_nearest(
              number_type_of(XFER_F8E4M3), (double)((float)x * (1 / a->scales[cell])));
      }
    a->scales[cell] = scale_of(amax, b->scale, &exponent);
    a->exponents[cell] = (uint8_t)(exponent + 127);
  }
}

static void make_answers(void)
{
  for (int run = 0; run < 2; run++)
    for (int c = 0; c < N_CASES; c++) {
      answers[run][c] = calloc(1, sizeof(answer));
      if (answers[run][c] == NULL) abort();
      for (int i = 0; i < ceil_div(ROWS, cases[c].rows); i++)
        for (int j = 0; j < ceil_div(COLUMNS, cases[c].columns); j++)
          answer_block(answers[run][c], c, run, i, j);
    }
}

static void free_answers(void)
{
  for (int run = 0; run < 2; run++)
    for (int c = 0; c < N_CASES; c++)
      free(answers[run][c]);
}

static bool has_exponents(int c)
{
  return cases[c].scale == XFER_SCALE_UE8M0 || cases[c].scale == XFER_SCALE_MX;
}

/* ---- one rank ---- */

static void layouts_of(xfer_layout **src, xfer_layout **dst, int c, bool of_scales)
{
  const blocks_case *b = &cases[c];
  const int rows = of_scales ? ceil_div(ROWS, b->rows) : ROWS;
  const int columns = of_scales ? ceil_div(COLUMNS, b->columns) : COLUMNS;
  const char *dtype = of_scales ? has_exponents(c) ? "f8e8m0" : "f32" : "f8e4m3";
  xfer_layout *other = NULL;
  char line[160];

  (void)snprintf(line, sizeof line, "bf16[%d,%d] %s -> %s", rows, columns, b->src, b->dst);
  expect(xfer_problem_parse(src, &other, line) == XFER_OK);
  xfer_layout_destroy(other);
  (void)snprintf(line, sizeof line, "%s[%d,%d] %s -> %s", dtype, rows, columns, b->src,
                 of_scales ? b->scales : b->dst);
  expect(xfer_problem_parse(&other, dst, line) == XFER_OK);
  xfer_layout_destroy(other);
  if (!of_scales) return;
  xfer_layout_destroy(*src);
  *src = NULL;
}

/* Memory for a rank's part, and the global index of each row and column in it. */
typedef struct part {
  char *memory;
  int64_t shape[2];
  int rows[ROWS];
  int columns[COLUMNS];
} part;

static void indices_of(int *indices, const xfer_layout *layout, int rank, int dim)
{
  xfer_run runs[8];
  size_t n = 0;

  expect(xfer_layout_runs(layout, rank, dim, runs, 8, &n) == XFER_OK && n <= 8);
  for (size_t i = 0; i < n && i < 8; i++)
    for (int64_t k = 0; k < runs[i].length; k++)
      indices[runs[i].local + k] = (int)(runs[i].global + k);
}

static part part_of(const xfer_layout *layout, int rank)
{
  part p = {.memory = NULL};

  if (layout == NULL || xfer_layout_local_shape(layout, rank, p.shape) != XFER_OK) return p;
  p.memory = place_take(
      (size_t)(p.shape[0] * p.shape[1]) * xfer_dtype_size(xfer_layout_dtype(layout)) + 1);
  if (p.memory == NULL) abort();
  indices_of(p.rows, layout, rank, 0);
  indices_of(p.columns, layout, rank, 1);
  return p;
}

/* The index in the whole of element i of a part. */
static int index_of(const part *p, int64_t i, int n_columns)
{
  return p->rows[i / p->shape[1]] * n_columns + p->columns[i % p->shape[1]];
}

static int64_t n_elems(const part *p)
{
  return p->memory == NULL ? 0 : p->shape[0] * p->shape[1];
}

static void fill(const part *p, int tensor, int run)
{
  for (int64_t i = 0; i < n_elems(p); i++) {
    const uint16_t x = element(tensor, run, index_of(p, i, COLUMNS));

    memcpy(p->memory + 2 * i, &x, sizeof x);
  }
}

/* Does a part have its elements of a whole array? */
static void check(const part *p, const void *whole, size_t n_bytes, int n_columns)
{
  int n_wrong = 0;

  for (int64_t i = 0; i < n_elems(p); i++)
    n_wrong +=
        memcmp(p->memory + (size_t)i * n_bytes,
               (const char *)whole + (size_t)index_of(p, i, n_columns) * n_bytes, n_bytes) != 0;
  expect(n_wrong == 0);
}

typedef struct job {
  xfer_comm *comms[N_RANKS];
  xfer_lane lane;
} job;

/* Of each case the weights and their scales, then one that stays as it is. */
static void list_tensors(xfer_tensor *tensors)
{
  for (int c = 0; c < N_CASES; c++) {
    xfer_tensor *t = &tensors[2 * c];

    t[0] = (xfer_tensor){.name = "weights",
                         .conversion = xfer_convert_blocks(cases[c].rows, cases[c].columns,
                                                           (xfer_block_scale)cases[c].scale)};
    t[1] = (xfer_tensor){.name = "scales", .conversion = xfer_convert_scales_of((size_t)(2 * c))};
    for (int k = 0; k < 2; k++)
      layouts_of((xfer_layout **)&t[k].src, (xfer_layout **)&t[k].dst, c, k == 1);
  }
  tensors[N_TENSORS - 1] = (xfer_tensor){.name = "plain"};
  expect(xfer_problem_parse((xfer_layout **)&tensors[N_TENSORS - 1].src,
                            (xfer_layout **)&tensors[N_TENSORS - 1].dst,
                            "bf16[150,208] (2)@0-1:S0 -> (2)@2-3:S1") == XFER_OK);
}

static void run_and_check(xfer_plan *plan, const part *src, const part *dst, int run)
{
  for (int t = 0; t < N_TENSORS; t++)
    fill(&src[t], t, run);
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, (uint64_t)run + 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  for (int c = 0; c < N_CASES; c++) {
    const answer *a = answers[run][c];
    const int n_columns = ceil_div(COLUMNS, cases[c].columns);

    check(&dst[2 * c], a->eight, 1, COLUMNS);
    if (has_exponents(c))
      check(&dst[2 * c + 1], a->exponents, 1, n_columns);
    else
      check(&dst[2 * c + 1], a->scales, sizeof *a->scales, n_columns);
  }
  for (int64_t i = 0; i < n_elems(&dst[N_TENSORS - 1]); i++) {
    const uint16_t x = element(N_TENSORS - 1, run, index_of(&dst[N_TENSORS - 1], i, COLUMNS));

    expect(memcmp(dst[N_TENSORS - 1].memory + 2 * i, &x, sizeof x) == 0);
  }
}

/* A run that one rank refuses comes to nothing on all, with what they tell each other before its
 * lanes; the next commit makes that good. */
static void refuse_one(xfer_plan *plan, int rank)
{
  if (rank == 1)
    expect(xfer_plan_refuse(plan, "not this one") == XFER_OK);
  else
    expect(xfer_plan_run(plan, 2, NULL) != XFER_ERR_TIMEOUT); /* the wait says what came of it */
  expect(xfer_plan_wait(plan, 0) == (rank == 1 ? XFER_ERR_STATE : XFER_ERR_PEER));
}

static void carry(int rank, void *context)
{
  const job *j = context;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  xfer_tensor tensors[N_TENSORS];
  xfer_plan *plan = NULL;
  part src[2][N_TENSORS];
  part dst[N_TENSORS];

  place_enter(rank);
  options.lane = j->lane;
  options.flags = XFER_PLAN_VERIFY;
  options.window_bytes = 3000;
  list_tensors(tensors);
  expect(xfer_plan_create(&plan, j->comms[rank], tensors, N_TENSORS, &options) == XFER_OK);
  for (int t = 0; t < N_TENSORS; t++) {
    src[0][t] = part_of(tensors[t].src, rank);
    src[1][t] = part_of(tensors[t].src, rank);
    dst[t] = part_of(tensors[t].dst, rank);
  }
  for (int run = 0; run < 2; run++) {
    for (int t = 0; t < N_TENSORS; t++) {
      const xfer_view from = xfer_view_dense(src[run][t].memory);
      const xfer_view to = xfer_view_dense(dst[t].memory);

      expect(xfer_plan_bind(plan, (size_t)t, src[run][t].memory == NULL ? NULL : &from,
                            dst[t].memory == NULL ? NULL : &to) == XFER_OK);
    }
    run_and_check(plan, src[run], dst, run);
    /* On other lanes messages that are not sent break the comm of threads. */
    if (run == 0 && j->lane == XFER_LANE_DIRECT) refuse_one(plan, rank);
  }
  expect(xfer_plan_report(plan, &report) == XFER_OK);
  expect(report.converted_tensors == N_CASES + 2); /* of two the scales too */
  xfer_plan_destroy(plan);
  for (int t = 0; t < N_TENSORS; t++) {
    for (int run = 0; run < 2; run++)
      if (src[run][t].memory != NULL) place_give(src[run][t].memory);
    if (dst[t].memory != NULL) place_give(dst[t].memory);
    xfer_layout_destroy((xfer_layout *)tensors[t].src);
    xfer_layout_destroy((xfer_layout *)tensors[t].dst);
  }
}

/* ---- weights that travel while others are looked at ----------------------------------------- */

enum {
  LARGE_ROWS = 4096,
  LARGE_COLUMNS = 2112,
  LARGE = LARGE_ROWS * LARGE_COLUMNS,
  SEVEN_ROWS = 7 * LARGE_COLUMNS,
  N_LARGE = 2
};

/* A power of two in all of a block's elements, halved up to six times. */
static int top_of(int tensor, int run, int i)
{
  const int row = i / LARGE_COLUMNS / 128;
  const int column = i % LARGE_COLUMNS / 128;

  return (row * 7 + column * 3 + tensor + run) % 40;
}

/* What is in a row comes again seven rows later, but for the tops. */
static void fill_large(void *memory, int tensor, int run)
{
  uint16_t *x = memory;

  for (int row = 0; row < LARGE_ROWS; row++) {
    const int first = row * LARGE_COLUMNS;

    if (row % 128 >= 7) {
      memcpy(x + first, x + first - SEVEN_ROWS, LARGE_COLUMNS * sizeof *x);
      continue;
    }
    for (int i = first; i < first + LARGE_COLUMNS; i++)
      x[i] = (uint16_t)((i % 3 == 0) << 15 | (120 + top_of(tensor, run, i) - i % 7) << 7);
  }
}

/* 448 in e4m3 is 0x7e, and half of a number eight less. */
static void check_large(const void *elements, const void *scales, int tensor, int run)
{
  const uint8_t *eight = elements;
  int n_wrong = memcmp(eight + SEVEN_ROWS, eight, LARGE - SEVEN_ROWS) != 0;

  for (int i = 0; i < SEVEN_ROWS; i++)
    n_wrong += eight[i] != ((i % 3 == 0) << 7 | (0x7e - 8 * (i % 7)));
  for (int row = 0, cell = 0; row < LARGE_ROWS; row += 128)
    for (int column = 0; column < LARGE_COLUMNS; column += 128, cell++) {
      const int top = top_of(tensor, run, row * LARGE_COLUMNS + column);

      n_wrong += ((const float *)scales)[cell] != ldexpf(1, 120 + top - 127) / 448;
    }
  expect(n_wrong == 0);
}

static void carry_large(int rank, void *context)
{
  const job *j = context;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor tensors[2 * N_LARGE];
  char *memory[2 * N_LARGE] = {NULL};
  xfer_plan *plan = NULL;

  place_enter(rank);
  for (int t = 0; t < 2 * N_LARGE; t++) {
    xfer_layout *src = NULL;
    xfer_layout *dst = NULL;

    expect(xfer_problem_parse(&src, &dst,
                              t % 2 == 0 ? "bf16[4096,2112] (1)@0:R -> f8e4m3 (1)@2:R"
                                         : "f32[32,17] (1)@0:R -> (1)@2:R") == XFER_OK);
    if (t % 2 == 1) xfer_layout_destroy(src);
    tensors[t] = (xfer_tensor){"large", t % 2 == 0 ? src : NULL, dst,
                               t % 2 == 0 ? xfer_convert_blocks(128, 128, XFER_SCALE_F32)
                                          : xfer_convert_scales_of((size_t)t - 1)};
    if (rank == 2 || (rank == 0 && t % 2 == 0)) memory[t] = place_take(2 * (size_t)LARGE);
  }
  options.lane = j->lane;
  expect(xfer_plan_create(&plan, j->comms[rank], tensors, 2 * N_LARGE, &options) == XFER_OK);
  for (int t = 0; t < 2 * N_LARGE; t++) {
    const xfer_view view = xfer_view_dense(memory[t]);

    expect(xfer_plan_bind(plan, (size_t)t, rank == 0 && t % 2 == 0 ? &view : NULL,
                          rank == 2 ? &view : NULL) == XFER_OK);
  }
  expect(xfer_plan_commit(plan) == XFER_OK);
  for (int run = 0; run < 2; run++) {
    for (int t = 0; rank == 0 && t < N_LARGE; t++)
      fill_large(memory[2 * t], t, run);
    expect(xfer_plan_run(plan, (uint64_t)run, NULL) == XFER_OK);
    expect(xfer_plan_wait(plan, 0) == XFER_OK);
    for (int t = 0; rank == 2 && t < N_LARGE; t++)
      check_large(memory[2 * t], memory[2 * t + 1], t, run);
  }
  xfer_plan_destroy(plan);
  for (int t = 0; t < 2 * N_LARGE; t++) {
    if (memory[t] != NULL) place_give(memory[t]);
    xfer_layout_destroy((xfer_layout *)tensors[t].src);
    xfer_layout_destroy((xfer_layout *)tensors[t].dst);
  }
}

/* A tensor of no dims is one block. */
static void carry_number(int rank, void *context)
{
  static const char *const lines[] = {"bf16[] (1)@0:R -> f8e4m3 (1)@2:R",
                                      "f32[] (1)@0:R -> (1)@2:R"};
  const job *j = context;
  const uint16_t three = 0x4040; /* in bf16 */
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor tensors[2] = {{"number", NULL, NULL, xfer_convert_blocks(128, 128, XFER_SCALE_F32)},
                            {"scale", NULL, NULL, xfer_convert_scales_of(0)}};
  char *memory[2];
  xfer_plan *plan = NULL;

  place_enter(rank);
  for (int t = 0; t < 2; t++) {
    expect(xfer_problem_parse((xfer_layout **)&tensors[t].src, (xfer_layout **)&tensors[t].dst,
                              lines[t]) == XFER_OK);
    memory[t] = place_take(sizeof(float));
  }
  xfer_layout_destroy((xfer_layout *)tensors[1].src);
  tensors[1].src = NULL;
  memcpy(memory[0], &three, sizeof three);
  options.lane = j->lane;
  expect(xfer_plan_create(&plan, j->comms[rank], tensors, 2, &options) == XFER_OK);
  for (size_t t = 0; t < 2; t++) {
    const xfer_view view = xfer_view_dense(memory[t]);

    expect(xfer_plan_bind(plan, t, rank == 0 && t == 0 ? &view : NULL, rank == 2 ? &view : NULL) ==
           XFER_OK);
  }
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, 0, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  if (rank == 2)
    expect(memory[0][0] == 0x7e && *(const float *)(const void *)memory[1] == 3.0F / 448);
  xfer_plan_destroy(plan);
  for (int t = 0; t < 2; t++) {
    place_give(memory[t]);
    xfer_layout_destroy((xfer_layout *)tensors[t].src);
    xfer_layout_destroy((xfer_layout *)tensors[t].dst);
  }
}

/* Ranks 0 and 1 have the weights, and rank 1 gets them. Where one of the two refuses a run only the
 * other makes scales, which are no source that could differ. */
static void refuse_on_one(int rank, void *context)
{
  static const char *const lines[] = {"bf16[4,4] (2)@0-1:R -> f8e4m3 (1)@1:R",
                                      "f32[1,1] (1)@0:R -> (1)@1:R"};
  const job *j = context;
  xfer_tensor tensors[2] = {{"weights", NULL, NULL, xfer_convert_blocks(4, 4, XFER_SCALE_F32)},
                            {"scales", NULL, NULL, xfer_convert_scales_of(0)}};
  char *memory[3];
  xfer_plan *plan = NULL;

  place_enter(rank);
  for (int t = 0; t < 2; t++)
    expect(xfer_problem_parse((xfer_layout **)&tensors[t].src, (xfer_layout **)&tensors[t].dst,
                              lines[t]) == XFER_OK);
  for (int i = 0; i < 3; i++)
    memory[i] = place_take(32);
  xfer_layout_destroy((xfer_layout *)tensors[1].src);
  tensors[1].src = NULL;
  memset(memory[0], 0x40, 32);
  expect(xfer_plan_create(&plan, j->comms[rank], tensors, 2, NULL) == XFER_OK);
  for (size_t t = 0; t < 2; t++) {
    const xfer_view from = xfer_view_dense(memory[0]);
    const xfer_view to = xfer_view_dense(memory[1 + t]);

    expect(xfer_plan_bind(plan, t, t == 0 && rank <= 1 ? &from : NULL, rank == 1 ? &to : NULL) ==
           XFER_OK);
  }
  expect(xfer_plan_commit(plan) == XFER_OK);
  if (rank == 0)
    expect(xfer_plan_refuse(plan, "not ready") == XFER_OK);
  else
    expect(xfer_plan_run(plan, 0, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == (rank == 0 ? XFER_ERR_STATE : XFER_ERR_PEER));
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_check_replicas(plan, NULL) == XFER_OK);
  if (rank == 0) memory[0][0] = 0;
  expect(xfer_plan_check_replicas(plan, NULL) == XFER_ERR_MISMATCH);
  expect(strstr(xfer_last_error(), "\"weights\"") != NULL);
  xfer_plan_destroy(plan);
  for (int i = 0; i < 3; i++)
    place_give(memory[i]);
  for (int t = 0; t < 2; t++) {
    xfer_layout_destroy((xfer_layout *)tensors[t].src);
    xfer_layout_destroy((xfer_layout *)tensors[t].dst);
  }
}

static void on_lane(xfer_lane lane, void (*work)(int rank, void *context))
{
  job j = {.lane = lane};

  assert_int_equal(place_make_comms(j.comms, N_RANKS), XFER_OK);
  run_ranks(N_RANKS, work, &j);
  for (int r = 0; r < N_RANKS; r++)
    xfer_comm_destroy(j.comms[r]);
  assert_all_as_expected();
}

static void on_all_lanes(void (*work)(int rank, void *context))
{
  for (int lane = XFER_LANE_AUTO; lane <= XFER_LANE_BROADCAST; lane++)
    on_lane((xfer_lane)lane, work);
}

static void test_blocks_on_all_lanes(void **state)
{
  (void)state;
  make_answers();
  on_all_lanes(carry);
  free_answers();
}

static void test_large_weights_in_parts(void **state)
{
  (void)state;
  on_all_lanes(carry_large);
}

static void test_a_tensor_of_no_dims_is_one_block(void **state)
{
  (void)state;
  on_all_lanes(carry_number);
}

static void test_blocks_of_a_refused_run_have_no_replicas(void **state)
{
  (void)state;
  on_lane(XFER_LANE_AUTO, refuse_on_one);
}

/* All, or those of a pattern. */
int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_blocks_on_all_lanes), cmocka_unit_test(test_large_weights_in_parts),
      cmocka_unit_test(test_a_tensor_of_no_dims_is_one_block),
      cmocka_unit_test(test_blocks_of_a_refused_run_have_no_replicas)};

  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
