/* Ranks that are threads: what they exchange, and that every failure ends all waits with its name.
 */
#include "alloc.h"
#include "shared.h"
#include "unit/comm_checks.h"
#include "unit/in_time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static xfi_comm *comms[MAX_RANKS];

static void with_ranks(int n_ranks, rank_body *body, void *context)
{
  assert_int_equal(xfi_comm_create_local(comms, n_ranks), XFER_OK);
  run_ranks(n_ranks, body, context);
  for (int r = 0; r < n_ranks; r++)
    if (comms[r] != NULL) comms[r]->ops->destroy(comms[r]);
  assert_all_as_expected();
}

/* ---- what is exchanged -------------------------------------------------------------------- */

static void everything(int rank, void *context)
{
  xfi_comm *comm = comms[rank];
  int n_times = *(int *)context;

  expect(comm->rank == rank);
  check_gathers(comm, n_times);
  check_random_messages(comm, n_times, false);
  check_random_messages(comm, n_times, true);
  check_broadcasts(comm, n_times);
  check_agreement(comm);
  check_agreement_names_the_cause(comm);
}

static void test_all_calls_with_1_to_7_ranks(void **state)
{
  (void)state;
  int n_times = 60;
  for (int n = 1; n <= 7; n++)
    with_ranks(n, everything, &n_times);
}

static void test_all_calls_with_32_ranks(void **state)
{
  (void)state;
  int n_times = 9;
  with_ranks(32, everything, &n_times);
}

/* Pairs keep going while the others are elsewhere: rank 0 serves the others last to first. */
static void visit(int rank, void *context)
{
  (void)context;
  xfi_comm *comm = comms[rank];
  int value = rank;
  xfi_message out = {.data = &value, .n_bytes = sizeof value, .peer = 0};

  if (rank != 0) {
    expect(comm->ops->exchange(comm, &(xfi_messages){&out, 1, NULL, 0}, soon()) == XFER_OK);
    return;
  }
  for (int peer = comm->size - 1; peer > 0; peer--) {
    int got = -1;
    xfi_message in = {.data = &got, .n_bytes = sizeof got, .peer = peer};
    expect(comm->ops->exchange(comm, &(xfi_messages){NULL, 0, &in, 1}, soon()) == XFER_OK);
    expect(got == peer);
  }
}

static void test_messages_are_matched_by_sender(void **state)
{
  (void)state;
  with_ranks(9, visit, NULL);
}

/* Rank 0 waits for 1, which waits for 2, which waits for 0 to take its first message: 0 must serve
 * 2 meanwhile. */
static void chain(int rank, void *context)
{
  (void)context;
  xfi_comm *comm = comms[rank];
  char a = 'a';
  char b = '.';
  char c = '.';
  xfi_message both[2] = {{&b, 1, 1}, {&c, 1, 2}};
  xfi_message to_0 = {&a, 1, 0};
  xfi_message to_1 = {&a, 1, 1};
  xfi_message from_2 = {&b, 1, 2};

  if (rank == 0)
    expect(comm->ops->exchange(comm, &(xfi_messages){NULL, 0, both, 2}, soon()) == XFER_OK);
  if (rank == 1) {
    expect(comm->ops->exchange(comm, &(xfi_messages){NULL, 0, &from_2, 1}, soon()) == XFER_OK);
    expect(comm->ops->exchange(comm, &(xfi_messages){&to_0, 1, NULL, 0}, soon()) == XFER_OK);
  }
  if (rank == 2) {
    expect(comm->ops->exchange(comm, &(xfi_messages){&to_0, 1, NULL, 0}, soon()) == XFER_OK);
    expect(comm->ops->exchange(comm, &(xfi_messages){&to_1, 1, NULL, 0}, soon()) == XFER_OK);
  }
}

static void test_a_waiting_rank_serves_the_others(void **state)
{
  (void)state;
  with_ranks(3, chain, NULL);
}

/* ---- failures ----------------------------------------------------------------------------- */

enum { SHORT_MS = 200 };

/* After a failure, on any rank that took part. */
static void expect_broken(xfi_comm *comm)
{
  int value = 0;
  int all[MAX_RANKS];
  xfi_message m = {&value, sizeof value, comm->rank == 0 ? 1 : 0};

  expect(comm->ops->all_gather(comm, all, &value, sizeof value, soon()) == XFER_ERR_COMM);
  expect(comm->ops->exchange(comm, &(xfi_messages){&m, 1, NULL, 0}, soon()) == XFER_ERR_COMM);
  expect(comm->ops->broadcast(comm, &m, 1, 0, NULL, soon()) == XFER_ERR_COMM);
  expect(error_has("the comm is broken: "));
}

static void gather_without_rank_2(int rank, void *context)
{
  _Atomic int *n_timeouts = context;
  xfi_comm *comm = comms[rank];
  int value = rank;
  int all[4];

  if (rank == 2) return;
  xfer_status st =
      comm->ops->all_gather(comm, all, &value, sizeof value, xfi_deadline_after(time_ms));
  expect(st == XFER_ERR_TIMEOUT || st == XFER_ERR_COMM);
  expect_in_time(error_has("rank 2"));
  if (st == XFER_ERR_TIMEOUT) atomic_fetch_add(n_timeouts, 1);
  expect_broken(comm);
}

static void gather_in_vain(void *context)
{
  _Atomic int n_timeouts = 0;

  (void)context;
  with_ranks(4, gather_without_rank_2, &n_timeouts);
  assert_true(n_timeouts >= 1); /* the others may be told before they give up */
}

static void test_gather_names_the_rank_that_does_not_come(void **state)
{
  (void)state;
  assert_true(in_time(SHORT_MS, gather_in_vain, NULL));
}

static void message_without_rank_2(int rank, void *context)
{
  bool sending = *(bool *)context;
  xfi_comm *comm = comms[rank];
  int value = 0;
  xfi_message m = {&value, sizeof value, 2};
  xfi_deadline deadline = xfi_deadline_after(SHORT_MS);

  if (rank == 2) return;
  xfer_status st = sending ? comm->ops->round(comm, &(xfi_messages){&m, 1, NULL, 0}, NULL, deadline)
                           : comm->ops->exchange(comm, &(xfi_messages){NULL, 0, &m, 1}, deadline);
  expect(st == XFER_ERR_TIMEOUT || st == XFER_ERR_COMM);
  expect(error_has("rank 2"));
  expect_broken(comm);
}

static void test_messages_name_the_rank_that_does_not_come(void **state)
{
  (void)state;
  for (int sending = 0; sending < 2; sending++) {
    bool context = sending != 0;
    with_ranks(3, message_without_rank_2, &context);
  }
}

static void broadcast_without_rank_1(int rank, void *context)
{
  xfi_comm *comm = comms[rank];
  int value = 0;
  const xfi_message m = {&value, sizeof value, 0};
  int root = *(int *)context;

  if (rank == 1) return;
  xfer_status st = comm->ops->broadcast(comm, &m, 1, root, NULL, xfi_deadline_after(time_ms));
  if (root == 1 || root == rank) expect(st == XFER_ERR_TIMEOUT || st == XFER_ERR_COMM);
  if (st != XFER_OK) expect_in_time(error_has("rank 1"));
}

static void broadcast_in_vain(void *root)
{
  with_ranks(3, broadcast_without_rank_1, root);
}

static void test_broadcast_names_the_rank_that_does_not_come(void **state)
{
  (void)state;
  for (int root = 0; root < 2; root++)
    assert_true(in_time(SHORT_MS, broadcast_in_vain, &root));
}

static void abort_while_others_wait(int rank, void *context)
{
  (void)context;
  xfi_comm *comm = comms[rank];
  int value = 0;
  int all[4];
  xfi_message m = {&value, sizeof value, 3};
  xfer_status st = XFER_OK;

  if (rank == 3) {
    (void)usleep(10000);
    comm->ops->abort(comm, "the sky falls");
  } else if (rank == 0) {
    st = comm->ops->exchange(comm, &(xfi_messages){NULL, 0, &m, 1}, soon());
  } else {
    st = comm->ops->all_gather(comm, all, &value, sizeof value, soon());
  }
  expect(rank == 3 || (st == XFER_ERR_COMM && error_has("the sky falls")));
  expect_broken(comm);
}

static void test_abort_ends_all_waits(void **state)
{
  (void)state;
  int64_t start = xfi_now_ns();
  with_ranks(4, abort_while_others_wait, NULL);
  assert_true(xfi_now_ns() - start < (int64_t)30 * 1000000000);
}

static void leave_while_others_wait(int rank, void *context)
{
  (void)context;
  xfi_comm *comm = comms[rank];
  int value = 0;
  int all[4];
  xfi_message m = {&value, sizeof value, 3};
  xfer_status st = XFER_OK;

  if (rank == 3) {
    (void)usleep(10000);
    comms[3] = NULL;
    comm->ops->destroy(comm);
    return;
  }
  st = rank == 0 ? comm->ops->exchange(comm, &(xfi_messages){&m, 1, NULL, 0}, soon())
                 : comm->ops->all_gather(comm, all, &value, sizeof value, soon());
  expect(st == XFER_ERR_COMM && error_has("rank 3"));
  expect_broken(comm);
}

static void test_a_destroyed_handle_ends_the_waits_for_it(void **state)
{
  (void)state;
  with_ranks(4, leave_while_others_wait, NULL);
}

/* Rank 2 leaves at once; the two others have nothing to do with it and go on. */
static void go_on_without_rank_2(int rank, void *context)
{
  (void)context;
  xfi_comm *comm = comms[rank];

  if (rank == 2) {
    comms[2] = NULL;
    comm->ops->destroy(comm);
    return;
  }
  for (int i = 0; i < 500; i++) {
    int got = -1;
    xfi_message out = {&i, sizeof i, 1 - rank};
    xfi_message in = {&got, sizeof got, 1 - rank};
    expect(comm->ops->exchange(comm, &(xfi_messages){&out, 1, &in, 1}, soon()) == XFER_OK);
    expect(got == i);
  }
}

static void test_a_destroyed_handle_is_no_matter_to_others(void **state)
{
  (void)state;
  with_ranks(3, go_on_without_rank_2, NULL);
}

static bool is_never_there(const xfi_awaited *what)
{
  (void)what;
  return false;
}

/* Rank 1 goes after the wait looked for a reason, and before it looks who has gone. */
static int find_one_that_goes(const xfi_awaited *what, xfi_rank_filter *of)
{
  if (of == xfi_shared_is_lost && comms[1] != NULL) {
    comms[1]->ops->refuse(comms[1], XFI_DESTROYED | 7, "no luck");
    comms[1]->ops->destroy(comms[1]);
    comms[1] = NULL;
  }
  return of(what->shared, 1) ? 1 : -1;
}

static void test_the_reason_of_a_rank_that_goes_is_told(void **state)
{
  (void)state;
  assert_int_equal(xfi_comm_create_local(comms, 2), XFER_OK);
  comms[0]->inside = XFI_INSIDE_RUN;
  comms[0]->plan = 7;

  const xfi_awaited what = {.is_there = is_never_there,
                            .find_late = find_one_that_goes,
                            .shared = (xfi_shared *)comms[0]};
  assert_int_equal(xfi_shared_await(&what, soon()), XFER_ERR_PEER);
  assert_string_equal(xfer_last_error(), "rank 1: no luck");
  comms[0]->ops->destroy(comms[0]);
  comms[0] = NULL;
}

static void differ_in_size(int rank, void *context)
{
  (void)context;
  xfi_comm *comm = comms[rank];
  char bytes[64] = "";
  xfi_message m = {bytes, rank == 0 ? 40 : 48, 1 - rank};
  xfer_status st = rank == 0
                       ? comm->ops->round(comm, &(xfi_messages){&m, 1, NULL, 0}, NULL, soon())
                       : comm->ops->round(comm, &(xfi_messages){NULL, 0, &m, 1}, NULL, soon());

  expect(st == XFER_ERR_MISMATCH);
  expect(error_has("rank 0 sends 40 bytes in round to rank 1, which expects 48 in round"));
  expect_broken(comm);
}

static void differ_in_call(int rank, void *context)
{
  (void)context;
  xfi_comm *comm = comms[rank];
  char bytes[64] = "";
  xfi_message m = {bytes, 8, 1 - rank};
  xfer_status st = rank == 0 ? comm->ops->round(comm, &(xfi_messages){&m, 1, NULL, 0}, NULL, soon())
                             : comm->ops->exchange(comm, &(xfi_messages){NULL, 0, &m, 1}, soon());

  expect(st == XFER_ERR_MISMATCH);
  expect(error_has("8 bytes in round to rank 1, which expects 8 in exchange"));
}

static void differ_in_gather(int rank, void *context)
{
  (void)context;
  xfi_comm *comm = comms[rank];
  char bytes[64] = "";
  char all[4 * 64];

  expect(comm->ops->all_gather(comm, all, bytes, rank == 2 ? 16 : 24, soon()) == XFER_ERR_MISMATCH);
  expect(error_has("16") && error_has("24"));
  expect_broken(comm);
}

/* Bytes of the caller's and words of the library's, as many by chance. */
static void differ_in_who_gathers(int rank, void *context)
{
  (void)context;
  xfi_comm *comm = comms[rank];
  char bytes[24] = "";
  char all[3 * 24];

  if (rank == 1) comm->inside = XFI_INSIDE_ALL_GATHER;
  expect(comm->ops->all_gather(comm, all, bytes, 24, soon()) == XFER_ERR_MISMATCH);
  expect(error_has(rank == 1 ? "rank 1 is in xfer_comm_all_gather() and rank 0 in another call"
                             : "in another call and rank 1 in xfer_comm_all_gather()"));
  expect_broken(comm);
}

static void test_ends_that_differ_both_say_so(void **state)
{
  (void)state;
  with_ranks(2, differ_in_size, NULL);
  with_ranks(2, differ_in_call, NULL);
  with_ranks(4, differ_in_gather, NULL);
  with_ranks(3, differ_in_who_gathers, NULL);
}

/* Senders time out while receivers may be copying: nobody may read a buffer whose owner has
 * returned. */
static void give_up_at_any_moment(int rank, void *context)
{
  xfi_comm *comm = comms[rank];
  size_t n = 20000;
  unsigned char *out = malloc(n);
  unsigned char *in = malloc(n);
  int delay_us = *(int *)context;
  xfi_message send = {out, n, (rank + 1) % comm->size};
  xfi_message recv = {in, n, (rank + comm->size - 1) % comm->size};
  xfer_status st = XFER_OK;

  memset(out, 1, n);
  if (rank == 0) (void)usleep((unsigned)delay_us);
  for (int i = 0; st == XFER_OK && i < 20; i++)
    st = comm->ops->round(comm, &(xfi_messages){&send, 1, &recv, 1}, NULL, xfi_deadline_after(1));
  memset(out, 2, n);
  free(out);
  free(in);
  expect(st == XFER_OK || st == XFER_ERR_TIMEOUT || st == XFER_ERR_COMM);
}

static void test_no_buffer_is_touched_after_its_call(void **state)
{
  (void)state;
  for (int delay_us = 0; delay_us < 2000; delay_us += 50)
    with_ranks(4, give_up_at_any_moment, &delay_us);
}

/* The ranks of a gathering that one of them gives up all come to the same result. */
static void gather_at_the_deadline(int rank, void *context)
{
  _Atomic int *n_ok = context;
  xfi_comm *comm = comms[rank];
  int all[4];

  if (rank == 0) (void)usleep(900 + 10 * (unsigned)(xfi_now_ns() % 30));
  xfer_status st = comm->ops->all_gather(comm, all, &rank, sizeof rank, xfi_deadline_after(1));
  expect(st == XFER_OK || st == XFER_ERR_TIMEOUT || st == XFER_ERR_COMM);
  if (st == XFER_OK) atomic_fetch_add(n_ok, 1);
}

static void test_gather_at_the_deadline_is_all_or_nothing(void **state)
{
  (void)state;
  for (int i = 0; i < 100; i++) {
    _Atomic int n_ok = 0;
    with_ranks(4, gather_at_the_deadline, &n_ok);
    assert_true(n_ok == 0 || n_ok == 4);
  }
}

/* ---- memory ------------------------------------------------------------------------------- */

static void test_create_survives_each_failed_allocation(void **state)
{
  (void)state;
  xfi_comm *made[3] = {NULL};
  xfer_status st = XFER_ERR_NOMEM;

  for (long n = 0; st != XFER_OK && n < 40; n++) {
    xfi_alloc_fail_after(n);
    st = xfi_comm_create_local(made, 3);
    if (st != XFER_OK) assert_null(made[0]);
  }
  xfi_alloc_fail_after(-1);
  assert_int_equal(st, XFER_OK);
  for (int r = 0; r < 3; r++)
    made[r]->ops->destroy(made[r]);
  assert_int_equal(xfi_comm_create_local(made, 0), XFER_ERR_ARG);
}

/* More bytes than a step of a gathering takes. */
static void gather_without_memory(int rank, void *context)
{
  enum { N = 40000 };
  unsigned char *bytes = malloc(N);
  unsigned char *all = malloc((size_t)3 * N);

  (void)context;
  fill(bytes, N, (uint64_t)rank);
  xfi_alloc_fail_after(0);
  expect(comms[rank]->ops->all_gather(comms[rank], all, bytes, N, soon()) == XFER_OK);
  xfi_alloc_fail_after(-1);
  for (int r = 0; r < 3; r++)
    expect(is_filled(all + (size_t)r * N, N, (uint64_t)r));
  free(bytes);
  free(all);
}

static void test_a_gathering_needs_no_memory(void **state)
{
  (void)state;
  with_ranks(3, gather_without_memory, NULL);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_calls_with_1_to_7_ranks),
      cmocka_unit_test(test_all_calls_with_32_ranks),
      cmocka_unit_test(test_messages_are_matched_by_sender),
      cmocka_unit_test(test_a_waiting_rank_serves_the_others),
      cmocka_unit_test(test_gather_names_the_rank_that_does_not_come),
      cmocka_unit_test(test_messages_name_the_rank_that_does_not_come),
      cmocka_unit_test(test_broadcast_names_the_rank_that_does_not_come),
      cmocka_unit_test(test_abort_ends_all_waits),
      cmocka_unit_test(test_a_destroyed_handle_ends_the_waits_for_it),
      cmocka_unit_test(test_a_destroyed_handle_is_no_matter_to_others),
      cmocka_unit_test(test_the_reason_of_a_rank_that_goes_is_told),
      cmocka_unit_test(test_ends_that_differ_both_say_so),
      cmocka_unit_test(test_no_buffer_is_touched_after_its_call),
      cmocka_unit_test(test_gather_at_the_deadline_is_all_or_nothing),
      cmocka_unit_test(test_create_survives_each_failed_allocation),
      cmocka_unit_test(test_a_gathering_needs_no_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
