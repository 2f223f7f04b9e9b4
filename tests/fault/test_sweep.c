/*
 * Each call of the transport and of the device fails in turn, on one rank, in each call of a plan's
 * life. All ranks must end with an error or all with success, none by its deadline; what was said
 * to be there is there, and what failed before a run has written nothing. The number of points is
 * printed: tests/README.md has it. (Allocations are swept in test_allocations.c, CUDA and NCCL
 * on the simulated machine in tests/sim.)
 */
#include "fault/calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* ---- calls that fail ---------------------------------------------------------------------- */

static _Thread_local long until_failure = -1; /* calls of this rank; < 0: none fails */
static _Thread_local const char *failed_call;

static bool fails_now(const char *call)
{
  if (until_failure < 0 || until_failure-- > 0) return false;
  failed_call = call;
  xfi_set_error("%s fails for the test", call);
  return true;
}

/* ---- one point ---------------------------------------------------------------------------- */

typedef struct point {
  step at;
  int way;
  int victim;
  long n; /* the call that fails */
  xfer_comm *comms[N_RANKS];
  outcome outcomes[N_RANKS];
  bool untouched[N_RANKS];
  bool delivered[N_RANKS];
  const char *call; /* that failed; NULL: there were fewer */
} point;

/* Half of the points: there destinations stay whole, the old ones or the new ones. */
static bool is_staged(const point *p)
{
  return p->victim % 2 != 0;
}

static void play(int rank, void *context)
{
  point *p = context;
  input in;
  xfer_plan *plan = NULL;
  xfer_status st;

  input_create(&in, rank);
  in.options.lane = ways[p->way].lane;
  in.options.ranks_per_domain = ways[p->way].ranks_per_domain;
  in.options.window_bytes = 32;
  in.options.flags = XFER_PLAN_VERIFY | (is_staged(p) ? XFER_PLAN_STAGED : 0);
  for (step s = CREATE; s < p->at; s++) {
    expect(take(s, &plan, &in, p->comms[rank]) == XFER_OK);
    if (s == CREATE) expect(input_bind(&in, plan) == XFER_OK);
  }
  until_failure = rank == p->victim ? p->n : -1;
  failed_call = NULL;
  st = take(p->at, &plan, &in, p->comms[rank]);
  until_failure = -1;
  p->outcomes[rank] = outcome_of(st);
  p->untouched[rank] = is_untouched(&in);
  p->delivered[rank] = is_delivered(&in);
  if (rank == p->victim) p->call = failed_call;
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static bool is_right(const point *p)
{
  int n_failed = 0;
  bool good = true;

  for (int r = 0; r < N_RANKS; r++) {
    const outcome *o = &p->outcomes[r];

    n_failed += o->st != XFER_OK;
    if (o->st != XFER_OK)
      good = good && o->st != XFER_ERR_TIMEOUT && o->st != XFER_ERR_INTERNAL && o->text[0] != '\0';
    good = good && (p->at > COMMIT || p->untouched[r]);
    good = good && (p->at < RUN_AND_WAIT || o->st != XFER_OK || p->delivered[r]);
    good = good && (!is_staged(p) || p->untouched[r] || p->delivered[r]);
  }
  return good && (n_failed == 0 || n_failed == N_RANKS);
}

/* The n-th call of `victim` fails, until it makes no more; returns how many there were. */
static long sweep(step at, int way, int victim, long *n_wrong)
{
  point p = {.at = at, .way = way, .victim = victim};

  for (p.n = 0; p.n < 1000; p.n++) {
    make_comms(p.comms);
    for (int r = 0; r < N_RANKS; r++)
      replace_calls(p.comms[r]);
    run_ranks(N_RANKS, play, &p);
    destroy_comms(p.comms);
    assert_all_as_expected();
    if (!is_right(&p)) {
      print_message("%s, lane %u, domains of %u: call %ld of rank %d, %s\n", step_names[at],
                    ways[way].lane, ways[way].ranks_per_domain, p.n, victim,
                    p.call == NULL ? "none" : p.call);
      for (int r = 0; r < N_RANKS; r++)
        print_message("  rank %d: %s %s\n", r, xfer_status_name(p.outcomes[r].st),
                      p.outcomes[r].text);
      ++*n_wrong;
    }
    if (p.call == NULL) break;
  }
  return p.n;
}

static void test_e5_each_failed_call_ends_all_ranks_alike(void **state)
{
  long n_points = 0;
  long n_wrong = 0;

  (void)state;
  for (step at = CREATE; at < N_STEPS; at++)
    for (int way = 0; way < N_WAYS; way++)
      for (int victim = 0; victim < N_RANKS; victim++)
        n_points += sweep(at, way, victim, &n_wrong);
  print_message("calls of transport and device that failed: %ld, wrong: %ld\n", n_points, n_wrong);
  assert_true(n_points > 300);
  assert_int_equal(n_wrong, 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_e5_each_failed_call_ends_all_ranks_alike),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
