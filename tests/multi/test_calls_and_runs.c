/* Two processes, of which one calls xfer_redistribute() before it begins runs of plans and the
 * other after. What goes through slots that all plans share has begun by then, and is taken back.
 */
#include "run.h"
#include "unit/meeting.h"
#include <xfer/xfer.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { RANKS = 2, PLANS = 2, CALL = PLANS, N_BYTES = 100, DEADLINE_MS = 30000, PATIENCE_S = 120 };
enum { SLOW_US = 300 * 1000 };

static meeting_place *place;
static int n_bad;
static int me;

static void need(int ok, const char *what)
{
  if (ok) return;
  (void)fprintf(stderr, "rank %d: %s: %s\n", me, what, xfer_last_error());
  n_bad++;
}

/* The sender is slow to take back. */
void __real_xfi_commit_undo_send(xfer_plan *plan);
void __wrap_xfi_commit_undo_send(xfer_plan *plan);
void __wrap_xfi_commit_undo_send(xfer_plan *plan)
{
  if (me == 0) (void)usleep(SLOW_US);
  __real_xfi_commit_undo_send(plan);
}

/* Of each plan, and of the call. */
static unsigned char memory[PLANS + 1][N_BYTES];

static int holds(int which, int value)
{
  for (int i = 0; i < N_BYTES; i++)
    if (memory[which][i] != value) return 0;
  return 1;
}

static xfer_status call(xfer_comm *comm, const xfer_layout *src, const xfer_layout *dst, int value)
{
  const xfer_view view = xfer_view_dense(memory[CALL]);

  memset(memory[CALL], me == 0 ? value : 0, N_BYTES);
  return xfer_redistribute(comm, src, &view, dst, &view, NULL);
}

static void run(xfer_plan *plan)
{
  need(xfer_plan_run(plan, 1, NULL) == XFER_OK, "run");
}

static void calls_and_runs(xfer_comm *comm)
{
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plans[PLANS] = {NULL, NULL};

  need(xfer_problem_parse(&src, &dst, "u8[100] (1)@0:R -> (1)@1:R") == XFER_OK, "layouts");
  need(xfer_comm_set_timeout(comm, DEADLINE_MS) == XFER_OK, "deadline");
  for (int p = 0; p < PLANS; p++) {
    const xfer_tensor tensor = {.name = "t", .src = src, .dst = dst};
    const xfer_view view = xfer_view_dense(memory[p]);

    memset(memory[p], me == 0 ? 10 + p : 0, N_BYTES);
    need(xfer_plan_create(&plans[p], comm, &tensor, 1, NULL) == XFER_OK, "create");
    need(xfer_plan_bind(plans[p], 0, me == 0 ? &view : NULL, me == 1 ? &view : NULL) == XFER_OK,
         "bind");
    need(xfer_plan_commit(plans[p]) == XFER_OK, "commit");
  }
  for (int i = 1; i <= 2; i++) {
    need(call(comm, src, dst, i) == XFER_OK, "call");
    need(holds(CALL, i), "bytes of a call");
  }
  if (me == 0) run(plans[0]);
  need(call(comm, src, dst, 3) == XFER_ERR_MISMATCH, "call in another order");
  if (me == 1) run(plans[0]);
  run(plans[1]);
  for (int p = 0; p < PLANS; p++) {
    need(xfer_plan_wait(plans[p], 0) == XFER_OK, "wait");
    need(holds(p, 10 + p), "bytes of a run");
  }
  need(call(comm, src, dst, 4) == XFER_OK, "call");
  need(holds(CALL, 4), "bytes of the last call");
  for (int p = 0; p < PLANS; p++)
    xfer_plan_destroy(plans[p]);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

static _Noreturn void process_main(int rank)
{
  visitor v = {place, rank, 0, -1};
  xfer_comm *comm = NULL;

  me = rank;
  (void)alarm(PATIENCE_S);
  need(xfer_comm_create_host(&comm, gather_there, &v, rank, RANKS) == XFER_OK, "comm");
  if (comm != NULL) calls_and_runs(comm);
  xfer_comm_destroy(comm);
  _exit(n_bad == 0 ? 0 : 1);
}

static void test_a_call_in_another_order_leaves_nothing_in_slots(void **state)
{
  pid_t pids[RANKS];

  (void)state;
  place = open_place(RANKS);
  for (int r = 0; r < RANKS; r++) {
    pids[r] = fork();
    if (pids[r] == 0) process_main(r);
    assert_true(pids[r] > 0);
  }
  for (int r = 0; r < RANKS; r++) {
    int how = 0;

    assert_int_equal(waitpid(pids[r], &how, 0), pids[r]);
    assert_int_equal(how, 0);
  }
  (void)munmap(place, sizeof *place);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_call_in_another_order_leaves_nothing_in_slots)};

  return cmocka_run_group_tests(tests, NULL, NULL);
}
