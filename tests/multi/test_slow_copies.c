/* Threads whose copies take longer than a run's deadline and the time in which a rank leaves it:
 * nothing touches a rank's memory once its call has returned. And runs of many rounds, which end at
 * their deadline too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "clock.h"
#include "object.h"
#include "unit/ranks.h"

enum { N_RANKS = 2, WIDTH = 1 << 20, DEADLINE_MS = 200, SHORT_MS = 3, WINDOW_BYTES = 64 };
#define SOON_NS INT64_C(20000000000)
#define LOOK_NS 1000000

static const struct timespec copy_time = {1, 700000000};
static const xfi_device_ops *host_ops;
static xfi_device_ops slow_ops;
static xfer_comm *comms[N_RANKS];
static unsigned char memory[N_RANKS][WIDTH];
static _Atomic int n_copying;
static _Atomic bool has_returned; /* rank 1, which receives */
static bool fails;                /* instead of copying */
static bool has_rounds;           /* many of them, and no slow copies */

static xfer_status slow_batch_launch(xfi_device *device, xfi_batch *batch, xfer_stream stream,
                                     xfi_event *turn)
{
  xfer_status st;

  if (fails) return XFI_ERROR(XFER_ERR_CUDA, "no copies today");
  (void)atomic_fetch_add(&n_copying, 1);
  if (!has_rounds) (void)nanosleep(&copy_time, NULL);
  st = host_ops->batch_launch(device, batch, stream, turn);
  (void)atomic_fetch_sub(&n_copying, 1);
  return st;
}

static void make_ranks(void)
{
  xfi_comm *transports[N_RANKS];

  assert_int_equal(xfi_comm_create_local(transports, N_RANKS), XFER_OK);
  for (int r = 0; r < N_RANKS; r++) {
    xfi_device *device = NULL;

    assert_int_equal(xfi_device_create_host(&device), XFER_OK);
    host_ops = device->ops;
    slow_ops = *host_ops;
    slow_ops.batch_launch = slow_batch_launch;
    device->ops = &slow_ops;
    assert_int_equal(xfi_comm_wrap(&comms[r], transports[r], device), XFER_OK);
  }
}

static xfer_plan *make_plan(int rank)
{
  const xfer_view view = xfer_view_dense(memory[rank]);
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor tensor = {.name = "w"};
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;

  expect(xfer_problem_parse(&src, &dst, "u8[1048576] (1)@0:S0 -> (1)@1:S0") == XFER_OK);
  tensor.src = src;
  tensor.dst = dst;
  if (has_rounds) options.lane = XFER_LANE_PACKED;
  if (has_rounds) options.window_bytes = WINDOW_BYTES;
  expect(xfer_plan_create(&plan, comms[rank], &tensor, 1, &options) == XFER_OK);
  expect(xfer_plan_bind(plan, 0, rank == 0 ? &view : NULL, rank == 1 ? &view : NULL) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  plan->options.timeout_ms = has_rounds ? SHORT_MS : DEADLINE_MS; /* of runs alone */
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  return plan;
}

static void wait_for_slow_copies(int rank, void *context)
{
  xfer_plan *plan = make_plan(rank);
  const xfer_status st = xfer_plan_run(plan, 1, NULL);

  (void)context, (void)st;
  expect(xfer_plan_wait(plan, 0) != XFER_OK);
  expect(atomic_load(&n_copying) == 0);
  xfer_plan_destroy(plan);
}

static void give_slow_copies_up(int rank, void *context)
{
  xfer_plan *plan = make_plan(rank);
  const xfer_status st = xfer_plan_run(plan, 1, NULL);

  (void)context, (void)st; /* who only copies may have it done */
  xfer_plan_destroy(plan);
  expect(atomic_load(&n_copying) == 0);
}

/* Rank 0 says nothing more. */
static void receive_failed_copies(int rank, void *context)
{
  xfer_plan *plan = make_plan(rank);
  const int64_t began = xfi_now_ns();
  const xfer_status st = xfer_plan_run(plan, 1, NULL);

  (void)context;
  expect(rank == 1 || st != XFER_OK);
  if (rank == 1) {
    expect(xfer_plan_wait(plan, 0) != XFER_OK);
    atomic_store(&has_returned, true);
  }
  while (!atomic_load(&has_returned) && xfi_now_ns() - began < SOON_NS)
    xfi_sleep_ns(LOOK_NS);
  expect(atomic_load(&has_returned));
  xfer_plan_destroy(plan);
}

static void take_many_rounds(int rank, void *context)
{
  xfer_plan *plan = make_plan(rank);
  const int64_t began = xfi_now_ns();
  const xfer_status st = xfer_plan_run(plan, 1, NULL);

  (void)context;
  expect(st != XFER_OK);
  expect(xfer_plan_wait(plan, 0) != XFER_OK);
  expect(xfi_now_ns() - began < SOON_NS);
  xfer_plan_destroy(plan);
}

static void with_ranks(rank_body *body)
{
  make_ranks();
  run_ranks(N_RANKS, body, NULL);
  for (int r = 0; r < N_RANKS; r++)
    xfer_comm_destroy(comms[r]);
  assert_all_as_expected();
}

static void test_a_wait_that_fails_returns_once_copies_have_ended(void **state)
{
  (void)state;
  with_ranks(wait_for_slow_copies);
}

static void test_a_plan_is_destroyed_once_copies_have_ended(void **state)
{
  (void)state;
  with_ranks(give_slow_copies_up);
}

static void test_nobody_waits_for_copies_that_failed(void **state)
{
  (void)state;
  fails = true;
  with_ranks(receive_failed_copies);
  fails = false;
}

/* Of which none waits for long. */
static void test_many_rounds_end_at_their_deadline(void **state)
{
  (void)state;
  has_rounds = true;
  with_ranks(take_many_rounds);
  has_rounds = false;
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_wait_that_fails_returns_once_copies_have_ended),
      cmocka_unit_test(test_a_plan_is_destroyed_once_copies_have_ended),
      cmocka_unit_test(test_nobody_waits_for_copies_that_failed),
      cmocka_unit_test(test_many_rounds_end_at_their_deadline),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
