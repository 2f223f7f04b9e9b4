/* Each allocation of one rank fails in turn, in each call of a plan's life. Every rank must end
 * with an error, or every rank with success; nobody waits for the deadline; nothing leaks and no
 * destination is touched; a fresh plan on a fresh comm works, which is what the next turn begins
 * with; and so does one on the same comm after a create that failed.
 */
#include "alloc.h"
#include "fault/fault.h"
#include "object.h"
#include "xfer/exchange.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MORE = 3 };

/* Up to RECOMMIT each needs those before it. */
typedef enum call {
  CREATE,
  BIND,
  COMMIT,
  RUN,
  WAIT,
  RELEASE,
  RECOMMIT,
  REDISTRIBUTE,
  EXCHANGE,
  PLAN_EXCHANGE,
  REGISTER,
  UNREGISTER,
  DIGEST, /* these after WAIT */
  REPLICAS,
  COMMIT_ELSEWHERE
} call;

static const char *const call_names[] = {
    "create",   "bind",       "commit",       "run",      "wait",
    "release",  "recommit",   "redistribute", "exchange", "plan exchange",
    "register", "unregister", "digest",       "replicas", "commit elsewhere"};

static call first_not_needed(call at)
{
  if (at >= DIGEST) return RELEASE;
  return at >= REDISTRIBUTE ? CREATE : at;
}

/* What ranks are told: the agreement's three ways. */
typedef enum told_as { ALL_KNOW, SOME_KNOW, THEY_DIFFER, NUMBERS_DIFFER, OPTIONS_DIFFER } told_as;

static _Thread_local bool differs; /* this rank's exchange */

typedef struct turn {
  call at;
  told_as told;
  uint32_t lane;
  uint32_t ranks_per_domain;
  int victim;
  bool verify; /* and staged */
  long n;      /* the allocation that fails */
  xfer_comm *comms[N_RANKS];
  outcome outcomes[N_RANKS];
  bool untouched[N_RANKS];
  bool delivered[N_RANKS];
  bool goes_on[N_RANKS];
} turn;

/* Rank 3 was not told sources, rank 0 not the destinations but of the first tensor. */
static void forget_some(input *in)
{
  for (size_t t = 0; t < N_TENSORS; t++) {
    if (in->rank == 3) in->tensors[t].src = NULL;
    if (in->rank == 0 && t > 0) in->tensors[t].dst = NULL;
  }
}

/* Eight bytes to the next rank, and from the one before. */
static xfer_status exchange(xfer_plan **plan, input *in, xfer_comm *comm)
{
  const xfer_operation to = xfer_operation_bytes(7, (in->rank + 1) % N_RANKS, differs ? 9 : 8);
  const xfer_operation from = xfer_operation_bytes(7, (in->rank + N_RANKS - 1) % N_RANKS, 8);
  const xfer_view src = xfer_view_dense(in->src_memory[0]);
  const xfer_view dst = xfer_view_dense(in->dst_memory[0]);

  if (plan != NULL) return xfer_plan_create_exchange(plan, comm, &to, 1, &from, 1, &in->options);
  return xfer_exchange(comm, &to, &src, 1, &from, &dst, 1, NULL);
}

static xfer_status make_call(call at, xfer_plan **plan, input *in, xfer_comm *comm)
{
  xfer_digest digests[N_TENSORS];

  switch (at) {
  case EXCHANGE:
    return exchange(NULL, in, comm);
  case PLAN_EXCHANGE:
    return exchange(plan, in, comm);
  case REGISTER:
    return xfer_comm_register(comm, in->dst_memory);
  case UNREGISTER:
    return xfer_comm_unregister(comm, in->dst_memory);
  case DIGEST:
    return xfer_plan_digest(*plan, digests, N_TENSORS, XFER_PLAN_DST, NULL);
  case REPLICAS:
    return xfer_plan_check_replicas(*plan, NULL);
  case COMMIT_ELSEWHERE:
    return xfer_plan_commit(*plan);
  case CREATE:
    return xfer_plan_create(plan, comm, in->tensors, in->n_tensors, &in->options);
  case BIND:
    return input_bind(in, *plan);
  case COMMIT:
  case RECOMMIT:
    return xfer_plan_commit(*plan);
  case RUN:
    return xfer_plan_run(*plan, 1, NULL);
  case WAIT:
    return xfer_plan_wait(*plan, 0);
  case RELEASE:
    return xfer_plan_release(*plan);
  case REDISTRIBUTE:
    return xfer_redistribute(comm, in->tensors[0].src, &in->src_views[0], in->tensors[0].dst,
                             &in->dst_views[0], NULL);
  }
  return XFER_ERR_INTERNAL;
}

/* Is another plan made and carried out, or is the comm broken? */
static bool next_plan_is_good(input *in, xfer_comm *comm)
{
  xfer_plan *plan = NULL;
  xfer_status st = XFER_OK;

  for (call c = CREATE; c <= WAIT && st == XFER_OK; c++)
    st = make_call(c, &plan, in, comm);
  xfer_plan_destroy(plan);
  return st == XFER_ERR_COMM || (st == XFER_OK && is_delivered(in));
}

static const xfi_device_ops *real;

/* Nobody makes copies to where it has mapped nothing, as of a peer that has failed. */
static xfer_status batch_create(xfi_device *device, xfi_batch **batch, const xfi_batch_spec *spec)
{
  for (size_t i = 0; i < spec->n_copies; i++)
    expect((uintptr_t)spec->copies[i].dst >= PART_BYTES);
  return real->batch_create(device, batch, spec);
}

static void look_at_batches(xfer_comm *comm)
{
  static xfi_device_ops looking;
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

  (void)pthread_mutex_lock(&lock);
  if (real == NULL) {
    real = comm->device->ops;
    looking = *real;
    looking.batch_create = batch_create;
  }
  (void)pthread_mutex_unlock(&lock);
  comm->device->ops = &looking;
}

static void play(int rank, void *context)
{
  turn *t = context;
  input in;
  _Alignas(16) unsigned char elsewhere[N_TENSORS][PART_BYTES];
  xfer_plan *plan = NULL;
  xfer_status st = XFER_OK;

  look_at_batches(t->comms[rank]);
  input_create(&in, rank);
  in.options.lane = t->lane;
  in.options.ranks_per_domain = t->ranks_per_domain;
  in.options.window_bytes = 32;
  if (t->told == SOME_KNOW) forget_some(&in);
  if (t->told == THEY_DIFFER && rank == 2) in.tensors[1].name = "other";
  if (t->told == NUMBERS_DIFFER && rank == 2) in.n_tensors = 1;
  if (t->told == OPTIONS_DIFFER && rank == 2) in.options.min_broadcast_saving_bytes = 1;
  differs = t->told == THEY_DIFFER && rank == 2;
  if (t->verify) in.options.flags = XFER_PLAN_VERIFY | XFER_PLAN_STAGED;
  for (call c = CREATE; c < first_not_needed(t->at); c++)
    expect(make_call(c, &plan, &in, t->comms[rank]) == XFER_OK);

  if (t->at == UNREGISTER) expect(xfer_comm_register(t->comms[rank], in.dst_memory) == XFER_OK);
  if (t->at == COMMIT_ELSEWHERE) {
    memcpy(elsewhere, in.src_memory, sizeof elsewhere);
    for (size_t i = 0; i < N_TENSORS; i++)
      in.src_views[i] = xfer_view_dense(elsewhere[i]);
    expect(input_bind(&in, plan) == XFER_OK);
  }
  if (rank == t->victim) xfi_alloc_fail_after(t->n);
  st = make_call(t->at, &plan, &in, t->comms[rank]);
  if (rank == t->victim) xfi_alloc_fail_after(-1);
  t->outcomes[rank] = outcome_of(st);
  t->untouched[rank] = is_untouched(&in);
  t->delivered[rank] = is_delivered(&in);
  t->goes_on[rank] = t->at != CREATE || t->told > SOME_KNOW || st == XFER_OK ||
                     next_plan_is_good(&in, t->comms[rank]);
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void print_outcomes(const turn *t)
{
  print_message("%s, lane %u, told %d: allocation %ld of rank %d\n", call_names[t->at], t->lane,
                (int)t->told, t->n, t->victim);
  for (int r = 0; r < N_RANKS; r++)
    print_message("  rank %d: %s %s\n", r, xfer_status_name(t->outcomes[r].st),
                  t->outcomes[r].text);
}

static void assert_consistent(const turn *t)
{
  int n_failed = 0;
  bool good = true;

  for (int r = 0; r < N_RANKS; r++) {
    const outcome *o = &t->outcomes[r];

    n_failed += o->st != XFER_OK;
    good = good && t->goes_on[r];
    if (o->st == XFER_OK) continue;
    if (r == t->victim) good = good && (o->st == XFER_ERR_NOMEM || o->st == XFER_ERR_MISMATCH);
    good = good && o->st != XFER_ERR_TIMEOUT && o->st != XFER_ERR_INTERNAL && o->text[0] != '\0';
    good = good && (t->at > COMMIT || t->untouched[r]);
  }
  good = good && (t->at == BIND || n_failed == 0 || n_failed == N_RANKS);
  if (!good) print_outcomes(t);
  assert_true(good);
}

/* The n-th allocation of `victim` fails, until there are no more; then a few in vain, so that one
 * whose failure went unseen is not taken for the end. */
static void sweep_of(turn t)
{
  const xfer_status last = t.told >= THEY_DIFFER ? XFER_ERR_MISMATCH : XFER_OK;
  /* A bind that fails is done again for its text, and may be well then. */
  const bool binds = t.at == BIND || t.at == REDISTRIBUTE || t.at == EXCHANGE;
  int n_right = 0;

  for (t.n = 0; n_right < MORE && t.n < 1000; t.n++) {
    make_comms(t.comms);
    run_ranks(N_RANKS, play, &t);
    destroy_comms(t.comms);
    assert_all_as_expected();
    assert_consistent(&t);
    if (t.outcomes[t.victim].st == last) {
      n_right++;
    } else {
      if (n_right > 0 && !binds) print_outcomes(&t);
      assert_true(n_right == 0 || binds);
      n_right = 0;
    }
  }
  t.n -= MORE;
  print_message("%s, lane %u, domains of %u, rank %d: %ld allocations\n", call_names[t.at], t.lane,
                t.ranks_per_domain, t.victim, t.n);
  assert_true(t.n < 1000);
}

static void sweep(call at, told_as who, uint32_t lane, int victim)
{
  sweep_of((turn){.at = at, .told = who, .lane = lane, .victim = victim});
}

static void sweep_lanes(call at, told_as who)
{
  for (int way = 0; way < N_WAYS; way++)
    for (int victim = 0; victim < N_RANKS; victim++)
      sweep_of((turn){.at = at,
                      .told = who,
                      .lane = ways[way].lane,
                      .ranks_per_domain = ways[way].ranks_per_domain,
                      .victim = victim});
}

static void test_create_survives_each_failed_allocation(void **state)
{
  (void)state;
  for (int victim = 0; victim < N_RANKS; victim++)
    for (uint32_t size = 0; size <= 2; size += 2)
      sweep_of((turn){.at = CREATE,
                      .lane = size == 0 ? XFER_LANE_AUTO : XFER_LANE_PACKED,
                      .ranks_per_domain = size,
                      .victim = victim});
}

static void test_create_survives_each_failed_allocation_where_some_do_not_know_a_side(void **state)
{
  (void)state;
  for (int victim = 0; victim < N_RANKS; victim++)
    sweep(CREATE, SOME_KNOW, XFER_LANE_AUTO, victim);
}

static void test_create_survives_each_failed_allocation_where_ranks_differ(void **state)
{
  (void)state;
  for (int victim = 0; victim < N_RANKS; victim++)
    sweep(CREATE, THEY_DIFFER, XFER_LANE_AUTO, victim);
  sweep(CREATE, NUMBERS_DIFFER, XFER_LANE_AUTO, 1);
  sweep(CREATE, NUMBERS_DIFFER, XFER_LANE_AUTO, 2);
  sweep(CREATE, OPTIONS_DIFFER, XFER_LANE_AUTO, 1);
  sweep(PLAN_EXCHANGE, THEY_DIFFER, XFER_LANE_AUTO, 1);
  sweep(PLAN_EXCHANGE, THEY_DIFFER, XFER_LANE_AUTO, 2);
}

static void test_bind_survives_each_failed_allocation(void **state)
{
  (void)state;
  sweep(BIND, ALL_KNOW, XFER_LANE_AUTO, 2);
}

static void test_commit_survives_each_failed_allocation(void **state)
{
  (void)state;
  sweep_lanes(COMMIT, ALL_KNOW);
}

static void test_run_and_wait_allocate_nothing(void **state)
{
  (void)state;
  for (uint32_t lane = XFER_LANE_AUTO; lane <= XFER_LANE_BROADCAST; lane++)
    for (call at = RUN; at <= WAIT; at++)
      for (int victim = 0; victim < N_RANKS; victim++) {
        turn t = {.at = at, .lane = lane, .victim = victim, .n = 0};

        make_comms(t.comms);
        run_ranks(N_RANKS, play, &t);
        destroy_comms(t.comms);
        assert_all_as_expected();
        for (int r = 0; r < N_RANKS; r++) {
          if (t.outcomes[r].st != XFER_OK || !t.delivered[r]) print_outcomes(&t);
          assert_int_equal(t.outcomes[r].st, XFER_OK);
          assert_true(t.delivered[r]);
        }
      }
}

static void test_release_and_commit_again_survive_each_failed_allocation(void **state)
{
  (void)state;
  for (call at = RELEASE; at <= RECOMMIT; at++)
    sweep_lanes(at, ALL_KNOW);
}

static void test_redistribute_survives_each_failed_allocation(void **state)
{
  (void)state;
  for (int victim = 0; victim < N_RANKS; victim++)
    sweep(REDISTRIBUTE, victim == 1 ? SOME_KNOW : ALL_KNOW, XFER_LANE_AUTO, victim);
}

static void test_staged_commit_with_digests_survives_each_failed_allocation(void **state)
{
  (void)state;
  for (int victim = 0; victim < 2; victim++)
    sweep_of((turn){.at = COMMIT, .lane = XFER_LANE_PACKED, .victim = victim, .verify = true});
}

static void test_other_calls_survive_each_failed_allocation(void **state)
{
  (void)state;
  for (call at = EXCHANGE; at <= COMMIT_ELSEWHERE; at++)
    for (int victim = 0; victim < 2; victim++)
      sweep(at, ALL_KNOW, at == COMMIT_ELSEWHERE ? XFER_LANE_DIRECT : XFER_LANE_AUTO, victim);
  sweep(COMMIT_ELSEWHERE, ALL_KNOW, XFER_LANE_PACKED, 1);
}

static void test_making_comms_survives_each_failed_allocation(void **state)
{
  xfer_comm *comms[N_RANKS] = {NULL};
  xfer_status st = XFER_ERR_NOMEM;
  long n;

  (void)state;
  for (n = 0; st != XFER_OK && n < 1000; n++) {
    xfi_alloc_fail_after(n);
    st = xfer_comm_create_local(comms, N_RANKS);
    xfi_alloc_fail_after(-1);
    assert_true(st == XFER_OK || st == XFER_ERR_NOMEM);
    if (st != XFER_OK) assert_null(comms[0]);
  }
  print_message("comms: %ld allocations\n", n - 1);
  assert_int_equal(st, XFER_OK);
  destroy_comms(comms);
}

/* ---- a commit with nothing to do ----------------------------------------------------------- */

static void commit_without_memory(int rank, void *context)
{
  xfer_comm **comms = context;
  input in;
  xfer_plan *plan = NULL;

  input_create(&in, rank);
  for (call c = CREATE; c <= COMMIT; c++)
    expect(make_call(c, &plan, &in, comms[rank]) == XFER_OK);
  if (rank == 2) xfi_alloc_fail_after(0);
  const xfer_status st = xfer_plan_commit(plan);
  if (rank == 2) xfi_alloc_fail_after(-1);
  expect(st == (rank == 2 ? XFER_ERR_NOMEM : XFER_ERR_COMM));
  expect(xfer_plan_run(plan, 1, NULL) == XFER_ERR_COMM);
  expect(is_untouched(&in));
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_no_rank_runs_after_a_commit_that_had_no_memory(void **state)
{
  xfer_comm *comms[N_RANKS];

  (void)state;
  make_comms(comms);
  run_ranks(N_RANKS, commit_without_memory, comms);
  destroy_comms(comms);
  assert_all_as_expected();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_create_survives_each_failed_allocation),
      cmocka_unit_test(test_create_survives_each_failed_allocation_where_some_do_not_know_a_side),
      cmocka_unit_test(test_create_survives_each_failed_allocation_where_ranks_differ),
      cmocka_unit_test(test_bind_survives_each_failed_allocation),
      cmocka_unit_test(test_commit_survives_each_failed_allocation),
      cmocka_unit_test(test_run_and_wait_allocate_nothing),
      cmocka_unit_test(test_release_and_commit_again_survive_each_failed_allocation),
      cmocka_unit_test(test_redistribute_survives_each_failed_allocation),
      cmocka_unit_test(test_staged_commit_with_digests_survives_each_failed_allocation),
      cmocka_unit_test(test_other_calls_survive_each_failed_allocation),
      cmocka_unit_test(test_making_comms_survives_each_failed_allocation),
      cmocka_unit_test(test_no_rank_runs_after_a_commit_that_had_no_memory),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
