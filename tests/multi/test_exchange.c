/* Exchanges: what differs is named on every rank before anything moves, and plans are found again.
 * Ranks are threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <xfer/xfer.h>

#include "object.h"
#include "unit/ranks.h"

enum { N_RANKS = 4, N_OPERATIONS = 3, N_BYTES = 32 };

/* Each rank sends N_OPERATIONS arrays to the next one. */
typedef struct lists {
  xfer_operation sends[N_OPERATIONS + 1];
  xfer_operation recvs[N_OPERATIONS + 1];
  size_t n_sends;
  size_t n_recvs;
  unsigned char from[N_OPERATIONS + 1][N_BYTES];
  unsigned char to[N_OPERATIONS + 1][N_BYTES];
  xfer_view views[2][N_OPERATIONS + 1];
} lists;

static void make_lists(lists *l, int rank)
{
  const int next = (rank + 1) % N_RANKS;
  const int last = (rank + N_RANKS - 1) % N_RANKS;

  memset(l, 0, sizeof *l);
  l->n_sends = l->n_recvs = N_OPERATIONS;
  for (int k = 0; k <= N_OPERATIONS; k++) {
    l->sends[k] = xfer_operation_bytes((uint64_t)(100 + k), next, N_BYTES);
    l->recvs[k] = xfer_operation_bytes((uint64_t)(100 + k), last, N_BYTES);
    memset(l->from[k], 10 * rank + k + 1, N_BYTES);
    l->views[0][k] = xfer_view_dense(l->from[k]);
    l->views[1][k] = xfer_view_dense(l->to[k]);
  }
}

/* After an exchange of all: did they come from the rank before, and nothing else? */
static bool came(const lists *l, int rank)
{
  const int last = (rank + N_RANKS - 1) % N_RANKS;

  for (size_t k = 0; k < l->n_recvs; k++)
    for (int b = 0; b < N_BYTES; b++)
      if (l->to[k][b] != 10 * last + (int)k + 1) return false;
  return true;
}

typedef struct job {
  xfer_comm *comms[N_RANKS];
  void (*spoil)(lists *l, int rank);
  xfer_status status[N_RANKS];
  char text[N_RANKS][512];
} job;

static void exchange_spoilt(int rank, void *context)
{
  job *j = context;
  lists l;
  xfer_plan *plan = NULL;

  make_lists(&l, rank);
  j->spoil(&l, rank);
  j->status[rank] = xfer_exchange(j->comms[rank], l.sends, l.views[0], l.n_sends, l.recvs,
                                  l.views[1], l.n_recvs, NULL);
  (void)snprintf(j->text[rank], sizeof j->text[rank], "%s", xfer_last_error());
  for (int k = 0; k < N_OPERATIONS; k++)
    for (int b = 0; b < N_BYTES; b++)
      expect(l.to[k][b] == 0);
  expect(xfer_plan_create_exchange(&plan, j->comms[rank], l.sends, l.n_sends, l.recvs, l.n_recvs,
                                   NULL) == j->status[rank]);
  expect(plan == NULL);
  make_lists(&l, rank); /* the comm is as good as before */
  expect(xfer_exchange(j->comms[rank], l.sends, l.views[0], l.n_sends, l.recvs, l.views[1],
                       l.n_recvs, NULL) == XFER_OK);
  expect(came(&l, rank));
}

/* Every rank has the status, or PEER, and the text. */
static void expect_refusal(void (*spoil)(lists *, int), xfer_status status, const char *text)
{
  job j = {.spoil = spoil};

  assert_int_equal(xfer_comm_create_local(j.comms, N_RANKS), XFER_OK);
  run_ranks(N_RANKS, exchange_spoilt, &j);
  for (int r = 0; r < N_RANKS; r++) {
    if (j.status[r] != status) assert_int_equal(j.status[r], XFER_ERR_PEER);
    if (strstr(j.text[r], text) == NULL) fail_msg("rank %d: %s", r, j.text[r]);
    xfer_comm_destroy(j.comms[r]);
  }
  assert_all_as_expected();
}

static void send_longer(lists *l, int rank)
{
  if (rank == 2) l->sends[1].shape[0] = N_BYTES - 1;
}

static void send_other_type(lists *l, int rank)
{
  if (rank != 0) return;
  l->sends[2].dtype = XFER_BF16;
  l->sends[2].shape[0] = 4;
  l->sends[2].shape[1] = 4;
  l->sends[2].n_dims = 2;
}

static void send_more(lists *l, int rank)
{
  if (rank == 3) l->n_sends++;
}

static void receive_more(lists *l, int rank)
{
  if (rank == 1) l->n_recvs++;
}

static void receive_from_nobody(lists *l, int rank)
{
  if (rank == 1) l->recvs[0].peer = 3;
}

static void send_to_itself(lists *l, int rank)
{
  if (rank != 2) return;
  l->sends[3].peer = 2;
  l->n_sends++;
}

static void send_twice(lists *l, int rank)
{
  if (rank == 1) l->sends[0].id = 102;
}

static void send_out_of_range(lists *l, int rank)
{
  if (rank == 1) l->sends[0].peer = N_RANKS;
}

static void receive_no_type(lists *l, int rank)
{
  if (rank == 0) l->recvs[1].dtype = 99;
}

static void receive_negative(lists *l, int rank)
{
  if (rank == 0) l->recvs[1].shape[0] = -1;
}

static void receive_many_dims(lists *l, int rank)
{
  if (rank == 0) l->recvs[1].n_dims = XFER_MAX_DIMS + 1;
}

static void receive_reserved(lists *l, int rank)
{
  if (rank == 0) l->recvs[1].reserved = 1;
}

static void send_too_much(lists *l, int rank)
{
  if (rank == 0) l->sends[1].shape[0] = INT64_MAX;
  if (rank == 1) l->recvs[1].shape[0] = INT64_MAX;
}

static void test_what_differs_is_named_on_every_rank(void **state)
{
  static const struct {
    void (*spoil)(lists *, int);
    xfer_status status;
    const char *text;
  } cases[] = {
      {send_longer, XFER_ERR_MISMATCH,
       "operation 101 from rank 2 to rank 3: the one sends u8[31], the other expects u8[32]"},
      {send_other_type, XFER_ERR_MISMATCH,
       "operation 102 from rank 0 to rank 1: the one sends bf16[4,4], the other expects u8[32]"},
      {send_more, XFER_ERR_MISMATCH,
       "operation 103 from rank 3 to rank 0: the one sends u8[32], the other expects nothing"},
      {receive_more, XFER_ERR_MISMATCH,
       "operation 103 from rank 0 to rank 1: the one sends nothing, the other expects u8[32]"},
      {receive_from_nobody, XFER_ERR_MISMATCH,
       "operation 100 from rank 0 to rank 1: the one sends u8[32], the other expects nothing"},
      {send_to_itself, XFER_ERR_MISMATCH,
       "operation 103 from rank 2 to rank 2: the one sends u8[32], the other expects nothing"},
      {send_twice, XFER_ERR_ARG, "operation 102 to rank 2 is given twice"},
      {send_out_of_range, XFER_ERR_ARG, "operation 100: its peer is rank 4 of 4 ranks"},
      {receive_no_type, XFER_ERR_ARG, "operation 101: dtype 99"},
      {receive_negative, XFER_ERR_SHAPE, "operation 101: dim 0 has size -1"},
      {receive_many_dims, XFER_ERR_ARG, "operation 101: 9 dims"},
      {receive_reserved, XFER_ERR_ARG, "operation 101: a reserved field is not 0"},
      {send_too_much, XFER_ERR_OVERFLOW, "operation 101: its bytes do not fit in 62 bits"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    print_message("%s\n", cases[i].text);
    expect_refusal(cases[i].spoil, cases[i].status, cases[i].text);
  }
}

enum { N_LONG = 101 };

typedef struct long_job {
  xfer_comm *comms[N_RANKS];
  size_t n_sends; /* of rank 0, to rank 1 */
  size_t n_recvs;
} long_job;

/* One list goes on where the other ends. */
static void exchange_long(int rank, void *context)
{
  const long_job *j = context;
  xfer_operation operations[N_LONG];
  xfer_plan *plan = NULL;
  char text[128];

  for (size_t i = 0; i < N_LONG; i++)
    operations[i] = xfer_operation_bytes(1000 + i, 1 - rank, 8);
  expect(xfer_plan_create_exchange(&plan, j->comms[rank], operations, rank == 0 ? j->n_sends : 0,
                                   operations, rank == 1 ? j->n_recvs : 0,
                                   NULL) == XFER_ERR_MISMATCH);
  (void)snprintf(text, sizeof text,
                 "operation %zu from rank 0 to rank 1: the one sends %s, the other expects %s",
                 1000 + (j->n_sends < j->n_recvs ? j->n_sends : j->n_recvs),
                 j->n_sends < j->n_recvs ? "nothing" : "u8[8]",
                 j->n_sends < j->n_recvs ? "u8[8]" : "nothing");
  expect(strcmp(xfer_last_error(), text) == 0);
  expect(plan == NULL);
}

static void test_what_differs_behind_many_is_named(void **state)
{
  static const size_t counts[][2] = {{31, 32}, {32, 31}, {32, 33}, {64, 65}, {100, 101}, {101, 0}};

  (void)state;
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    long_job j = {.n_sends = counts[i][0], .n_recvs = counts[i][1]};

    assert_int_equal(xfer_comm_create_local(j.comms, N_RANKS), XFER_OK);
    run_ranks(N_RANKS, exchange_long, &j);
    for (int r = 0; r < N_RANKS; r++)
      xfer_comm_destroy(j.comms[r]);
    assert_all_as_expected();
  }
}

/* ---- cached plans ------------------------------------------------------------------------- */

static int count_cached(const xfer_comm *comm)
{
  int n = 0;

  for (int i = 0; i < XFI_CACHE_SIZE; i++)
    n += comm->cache.at[i].plan != NULL;
  return n;
}

static bool exchange(job *j, lists *l, int rank)
{
  memset(l->to, 0, sizeof l->to);
  return xfer_exchange(j->comms[rank], l->sends, l->views[0], l->n_sends, l->recvs, l->views[1],
                       l->n_recvs, NULL) == XFER_OK &&
         came(l, rank);
}

/* What rank 0 sends and rank 1 receives changes: to the others it is the same call again. */
static void change_between_two(int rank, void *context)
{
  job *j = context;
  lists l[2];

  for (int k = 0; k < 2; k++)
    make_lists(&l[k], rank);
  if (rank == 0) l[1].sends[1].id = 7;
  if (rank == 1) l[1].recvs[1].id = 7;
  for (int call = 0; call < 6; call++) {
    expect(exchange(j, &l[call % 2], rank));
    expect(count_cached(j->comms[rank]) == (call == 0 ? 1 : 2));
  }
}

static void test_plans_are_kept_by_what_all_ranks_handed_over(void **state)
{
  job j = {0};

  (void)state;
  assert_int_equal(xfer_comm_create_local(j.comms, N_RANKS), XFER_OK);
  run_ranks(N_RANKS, change_between_two, &j);
  for (int r = 0; r < N_RANKS; r++)
    xfer_comm_destroy(j.comms[r]);
  assert_all_as_expected();
}

static void many_at_once(int rank, void *context)
{
  job *j = context;
  lists l;

  make_lists(&l, rank);
  for (int call = 0; call < 2 * XFI_CACHE_SIZE; call++) {
    for (int k = 0; k < N_OPERATIONS; k++)
      l.sends[k].id = l.recvs[k].id = (uint64_t)(call * 10 + k);
    expect(exchange(j, &l, rank));
  }
  expect(count_cached(j->comms[rank]) == XFI_CACHE_SIZE);
}

static void test_the_oldest_plan_goes_when_there_are_many(void **state)
{
  job j = {0};

  (void)state;
  assert_int_equal(xfer_comm_create_local(j.comms, N_RANKS), XFER_OK);
  run_ranks(N_RANKS, many_at_once, &j);
  for (int r = 0; r < N_RANKS; r++)
    xfer_comm_destroy(j.comms[r]);
  assert_all_as_expected();
}

/* ---- misuse ------------------------------------------------------------------------------- */

static void misuse(int rank, void *context)
{
  job *j = context;
  xfer_comm *comm = j->comms[rank];
  lists l;
  xfer_plan *plan = NULL;
  xfer_plan *other = NULL;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_status st;

  make_lists(&l, rank);
  options.lane = XFER_LANE_BROADCAST;
  st = xfer_plan_create_exchange(&plan, comm, l.sends, l.n_sends, l.recvs, l.n_recvs, &options);
  expect(st == XFER_ERR_UNSUPPORTED);
  options.lane = XFER_LANE_AUTO;
  options.flags = XFER_PLAN_FRESH_SOURCES | XFER_PLAN_VERIFY;
  st = xfer_plan_create_exchange(&plan, comm, l.sends, l.n_sends, l.recvs, l.n_recvs, &options);
  expect(st == XFER_ERR_UNSUPPORTED);
  st = xfer_exchange(comm, l.sends, rank == 1 ? NULL : l.views[0], l.n_sends, l.recvs, l.views[1],
                     l.n_recvs, NULL);
  expect(st == (rank == 1 ? XFER_ERR_ARG : XFER_ERR_PEER));
  st = xfer_plan_create_exchange(&plan, comm, rank == 1 ? NULL : l.sends, l.n_sends, l.recvs,
                                 l.n_recvs, NULL);
  expect(st == (rank == 1 ? XFER_ERR_ARG : XFER_ERR_PEER));
  st = xfer_exchange(comm, l.sends, l.views[0], rank == 1 ? (size_t)-1 : l.n_sends, l.recvs,
                     l.views[1], l.n_recvs, NULL); /* a length that was computed wrongly */
  expect(st == (rank == 1 ? XFER_ERR_OVERFLOW : XFER_ERR_PEER));
  expect(strstr(xfer_last_error(), "xfer_exchange: n_sends is 18446744073709551615, n_recvs") !=
         NULL);
  /* An exchange here, tensors there. */
  st = rank == 2
           ? xfer_plan_create(&plan, comm, NULL, 0, NULL)
           : xfer_plan_create_exchange(&plan, comm, l.sends, l.n_sends, l.recvs, l.n_recvs, NULL);
  expect(st == XFER_ERR_MISMATCH);
  expect(strcmp(xfer_last_error(), "rank 2 plans tensors, rank 0 an exchange") == 0);
  st = rank == 2 ? xfer_redistribute(comm, NULL, NULL, NULL, NULL, NULL)
                 : xfer_exchange(comm, l.sends, l.views[0], l.n_sends, l.recvs, l.views[1],
                                 l.n_recvs, NULL);
  expect(st == XFER_ERR_MISMATCH);
  expect(strcmp(xfer_last_error(), "rank 2 plans tensors, rank 0 an exchange") == 0);
  expect(xfer_plan_create_exchange(&plan, comm, l.sends, l.n_sends, l.recvs, l.n_recvs, NULL) ==
         XFER_OK);
  expect(xfer_plan_create(&other, comm, NULL, 0, NULL) == XFER_OK);
  expect(xfer_plan_bind_exchange(other, NULL, NULL) == XFER_ERR_ARG);
  expect(xfer_plan_bind_exchange(plan, NULL, l.views[1]) == XFER_ERR_ARG);
  /* By single tensors, sends first. */
  for (size_t k = 0; k < N_OPERATIONS; k++) {
    expect(xfer_plan_bind(plan, k, &l.views[0][k], NULL) == XFER_OK);
    expect(xfer_plan_bind(plan, N_OPERATIONS + k, NULL, &l.views[1][k]) == XFER_OK);
  }
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  expect(came(&l, rank));
  l.views[1][1] = l.views[1][0];
  for (int k = 0; k < 2; k++) { /* two come to one place, or partly */
    l.views[1][1].base = l.to[0] + k;
    expect(xfer_plan_bind_exchange(plan, l.views[0], l.views[1]) == XFER_OK);
    expect(xfer_plan_commit(plan) == XFER_ERR_SHAPE);
    expect(strstr(xfer_last_error(), "operation 10") != NULL);
  }
  xfer_plan_destroy(plan);
  xfer_plan_destroy(other);
}

static void test_misuse_is_refused_on_every_rank(void **state)
{
  job j = {0};

  (void)state;
  assert_int_equal(xfer_comm_create_local(j.comms, N_RANKS), XFER_OK);
  run_ranks(N_RANKS, misuse, &j);
  for (int r = 0; r < N_RANKS; r++)
    xfer_comm_destroy(j.comms[r]);
  assert_all_as_expected();
  assert_int_equal(xfer_plan_bind_exchange(NULL, NULL, NULL), XFER_ERR_ARG);
  assert_int_equal(xfer_exchange(NULL, NULL, NULL, 0, NULL, NULL, 0, NULL), XFER_ERR_ARG);
}

/* Rank 2 sends to itself as well. */
static void pass_once(int rank, void *context)
{
  job *j = context;
  lists l;
  xfer_plan *plan = NULL;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;

  make_lists(&l, rank);
  if (rank == 2) {
    l.sends[N_OPERATIONS].peer = l.recvs[N_OPERATIONS].peer = 2;
    l.n_sends++;
    l.n_recvs++;
  }
  options.flags = XFER_PLAN_FRESH_SOURCES;
  expect(xfer_plan_create_exchange(&plan, j->comms[rank], l.sends, l.n_sends, l.recvs, l.n_recvs,
                                   &options) == XFER_OK);
  for (uint64_t run = 1; run <= 3; run++) {
    expect(xfer_plan_bind_exchange(plan, l.views[0], l.views[1]) == XFER_OK);
    expect(xfer_plan_commit(plan) == XFER_OK);
    memset(l.to, 0, sizeof l.to);
    expect(xfer_plan_run(plan, run, NULL) == XFER_OK);
    expect(xfer_plan_wait(plan, 0) == XFER_OK);
    if (rank == 2) {
      expect(memcmp(l.to[N_OPERATIONS], l.from[N_OPERATIONS], N_BYTES) == 0);
      l.n_recvs = N_OPERATIONS;
    }
    expect(came(&l, rank));
    expect(xfer_plan_run(plan, run + 1, NULL) == XFER_ERR_STATE);
  }
  expect(xfer_plan_commit(plan) == XFER_ERR_STATE);
  expect(strstr(xfer_last_error(), "source part") != NULL);
  xfer_plan_destroy(plan);
}

static void test_sources_may_be_bound_for_one_run(void **state)
{
  job j = {0};

  (void)state;
  assert_int_equal(xfer_comm_create_local(j.comms, N_RANKS), XFER_OK);
  run_ranks(N_RANKS, pass_once, &j);
  for (int r = 0; r < N_RANKS; r++)
    xfer_comm_destroy(j.comms[r]);
  assert_all_as_expected();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_differs_is_named_on_every_rank),
      cmocka_unit_test(test_what_differs_behind_many_is_named),
      cmocka_unit_test(test_plans_are_kept_by_what_all_ranks_handed_over),
      cmocka_unit_test(test_the_oldest_plan_goes_when_there_are_many),
      cmocka_unit_test(test_misuse_is_refused_on_every_rank),
      cmocka_unit_test(test_sources_may_be_bound_for_one_run),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
