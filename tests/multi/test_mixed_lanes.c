/* Broadcasts beside packed rounds in which only some ranks take part, messages that need no slots,
   and a call that one rank refuses. Ranks are threads that cannot map each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "error.h"
#include "object.h"
#include "unit/ranks.h"
#include "xfer/xfer.h"

enum {
  RANKS = 8,
  ROWS = 6,
  COLUMNS = 8,
  ELEMS = ROWS * COLUMNS,
  BROADCASTS = 20, /* more than the first call takes */
  ODD_TENSOR = 5,
  ODD_RANK = 4,
  WINDOW = 64
};

/* What differs from one test to the next. */
typedef struct play {
  xfer_comm *comms[RANKS];
  bool has_pair; /* one more tensor, from rank 1 to rank 2, in packed rounds */
  bool has_odd;  /* one destination in rows, so that a broadcast goes through slots */
} play;

/* Each rank has a domain of its own: nothing is direct. */
static void own_domain(xfi_device *device, unsigned char domain[64])
{
  static _Atomic uint64_t last;
  const uint64_t mine = ++last;

  (void)device;
  memset(domain, 0, 64);
  memcpy(domain, &mine, sizeof mine);
}

static xfer_status (*host_launch)(xfi_device *device, xfi_batch *batch, xfer_stream stream,
                                  xfi_event *turn);
static _Atomic int n_launches; /* of copies */

static xfer_status count_launch(xfi_device *device, xfi_batch *batch, xfer_stream stream,
                                xfi_event *turn)
{
  n_launches++;
  return host_launch(device, batch, stream, turn);
}

static void run_play(play p, const xfi_device_ops *changed, void (*body)(int rank, void *context))
{
  xfi_device_ops ops;

  assert_int_equal(xfer_comm_create_local(p.comms, RANKS), XFER_OK);
  ops = *p.comms[0]->device->ops;
  ops.domain = own_domain;
  if (changed != NULL && changed->stream_check != NULL) ops.stream_check = changed->stream_check;
  host_launch = ops.batch_launch;
  ops.batch_launch = count_launch;
  for (int r = 0; r < RANKS; r++)
    p.comms[r]->device->ops = &ops;
  run_ranks(RANKS, body, &p);
  for (int r = 0; r < RANKS; r++)
    xfer_comm_destroy(p.comms[r]);
  assert_all_as_expected();
}

/* Where element i of a tensor lies on a rank. */
static int place_of(const play *p, int tensor, int rank, int i)
{
  if (!p->has_odd || tensor != ODD_TENSOR || rank != ODD_RANK) return i;
  return i / COLUMNS * 2 * COLUMNS + i % COLUMNS;
}

static void carry(int rank, void *context)
{
  static const int64_t rows[2] = {2 * COLUMNS * sizeof(int32_t), sizeof(int32_t)};
  const play *p = context;
  const int n = BROADCASTS + p->has_pair;
  int32_t(*memory)[2 * ELEMS] = calloc((size_t)n, sizeof *memory);
  char names[BROADCASTS + 1][32];
  xfer_tensor tensors[BROADCASTS + 1];
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  xfer_layout *all[2];
  xfer_layout *pair[2];
  xfer_plan *plan = NULL;

  if (memory == NULL) abort();
  options.window_bytes = WINDOW;
  options.min_broadcast_saving_bytes = 1;
  expect(xfer_problem_parse(&all[0], &all[1], "i32[6,8] (1)@0:R -> (7)@1-7:R") == XFER_OK);
  expect(xfer_problem_parse(&pair[0], &pair[1], "i32[6,8] (1)@1:R -> (1)@2:R") == XFER_OK);
  for (int t = 0; t < n; t++) {
    xfer_layout *const *l = t < BROADCASTS ? all : pair;

    (void)snprintf(names[t], sizeof names[t], "tensor %d", t);
    tensors[t] = (xfer_tensor){names[t], l[0], l[1], {0}};
  }
  expect(xfer_plan_create(&plan, p->comms[rank], tensors, (size_t)n, &options) == XFER_OK);
  for (int t = 0; t < n; t++) {
    const bool odd = p->has_odd && t == ODD_TENSOR && rank == ODD_RANK;
    const xfer_view view = odd ? xfer_view_strided(memory[t], rows, 2) : xfer_view_dense(memory[t]);

    for (int i = 0; i < ELEMS && rank == (t < BROADCASTS ? 0 : 1); i++)
      memory[t][i] = t * 1000 + i;
    expect(xfer_plan_bind(plan, (size_t)t, &view, &view) == XFER_OK);
  }
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  for (int t = 0; t < n; t++)
    for (int i = 0; i < ELEMS && (t < BROADCASTS || rank == 1 || rank == 2); i++)
      expect(memory[t][place_of(p, t, rank, i)] == t * 1000 + i);
  expect(xfer_plan_report(plan, &report) == XFER_OK);
  expect(report.broadcast_tensors == BROADCASTS);
  expect((report.n_rounds > 0) == (p->has_pair && (rank == 1 || rank == 2)));
  xfer_plan_destroy(plan);
  for (int i = 0; i < 2; i++) {
    xfer_layout_destroy(all[i]);
    xfer_layout_destroy(pair[i]);
  }
  free(memory);
}

static void test_broadcasts_are_in_one_order_whoever_has_rounds(void **state)
{
  (void)state;
  for (int which = 0; which < 4; which++) {
    const play p = {.has_pair = (which & 1) != 0, .has_odd = (which & 2) != 0};

    run_play(p, NULL, carry);
  }
}

/* ---- without slots ---- */

enum { WINDOWS = 3, LARGE = WINDOWS << 20 };

/* From one odd address to another. */
static void send_large(int rank, void *context)
{
  static unsigned char memory[2][LARGE + 1];
  const play *p = context;
  const xfer_view view = xfer_view_dense(memory[rank == 0 ? 0 : 1] + 1);
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor tensor = {.name = "large"};
  xfer_layout *layouts[2];
  xfer_plan *plan = NULL;

  expect(xfer_problem_parse(&layouts[0], &layouts[1], "u8[3145728] (1)@0:R -> (1)@1:R") == XFER_OK);
  tensor.src = layouts[0];
  tensor.dst = layouts[1];
  for (size_t i = 0; i < LARGE && rank == 0; i++)
    memory[0][i + 1] = (unsigned char)(i % 251);
  expect(xfer_plan_create(&plan, p->comms[rank], &tensor, 1, &options) == XFER_OK);
  expect(xfer_plan_bind(plan, 0, &view, &view) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  if (rank == 1) expect(memcmp(memory[0], memory[1], sizeof memory[0]) == 0);
  xfer_plan_destroy(plan);
  xfer_layout_destroy(layouts[0]);
  xfer_layout_destroy(layouts[1]);
}

static void test_one_run_is_not_copied_wherever_it_begins(void **state)
{
  (void)state;
  n_launches = 0;
  run_play((play){.has_pair = false}, NULL, send_large);
  assert_int_equal(n_launches, 0);
}

/* ---- a rank that refuses ---- */

static _Thread_local int this_rank;

static xfer_status refuse(xfi_device *device, xfer_stream stream)
{
  (void)device, (void)stream;
  if (this_rank != 1) return XFER_OK;
  xfi_set_error("the stream is of no use");
  return XFER_ERR_STATE;
}

static void redistribute(int rank, void *context)
{
  const play *p = context;
  const int64_t began = xfi_now_ns();
  int32_t memory[ELEMS] = {0};
  const xfer_view view = xfer_view_dense(memory);
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_status st;

  this_rank = rank;
  expect(xfer_problem_parse(&src, &dst, "i32[6,8] (4)@0-3:S0 -> (4)@4-7:S1") == XFER_OK);
  st = xfer_redistribute(p->comms[rank], src, rank < 4 ? &view : NULL, dst, rank < 4 ? NULL : &view,
                         NULL);
  if (rank == 1) expect(st == XFER_ERR_STATE);
  if (rank >= 4) expect(st != XFER_OK); /* they get nothing from rank 1 */
  expect(xfi_now_ns() - began < INT64_C(60000000000));
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

static void test_a_call_that_one_rank_refuses_ends_on_all(void **state)
{
  const xfi_device_ops refusing = {.stream_check = refuse};
  const play p = {.has_pair = false};

  (void)state;
  run_play(p, &refusing, redistribute);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_broadcasts_are_in_one_order_whoever_has_rounds),
      cmocka_unit_test(test_one_run_is_not_copied_wherever_it_begins),
      cmocka_unit_test(test_a_call_that_one_rank_refuses_ends_on_all),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
