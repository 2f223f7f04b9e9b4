/*
 * A process is killed, or stopped for a while, as it comes to each call of the transport and of the
 * device in each call of a plan's life; ranks are processes that meet over sockets. The others must
 * come back in time, and must not say that all is well where it is not; then they make a new comm
 * without it, and move something. One that was stopped finds an error when it goes on, or had done
 * its part.
 *
 * Stops only where XFER_STOP_EVERY=N asks for those in every N-th call. The number of points is
 * printed: tests/README.md has it.
 */
#include "fault/calls.h"
#include "unit/meeting.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "clock.h"

enum { DEADLINE_MS = 400, SLACK_MS = 12000, LEAVE_MS = 2000 };

/* What the processes of one point share. */
typedef struct shared {
  _Atomic bool hit;   /* the signal was raised */
  _Atomic int n_here; /* ranks that have come to the call */
  outcome outcomes[N_RANKS];
  bool untouched[N_RANKS];
  bool delivered[N_RANKS];
  bool went_on[N_RANKS]; /* with those that are left */
  int64_t ms[N_RANKS];   /* that the call took */
} shared;

typedef struct point {
  step at;
  int way; /* of fault.h */
  int victim;
  int signal;
  long n; /* the call that it is raised in */
  shared *seen;
  meeting_place *first, *second;
} point;

/* Half of the points: there destinations stay whole, the old ones or the new ones. */
static bool is_staged(const point *p)
{
  return p->victim % 2 != 0;
}

static long until_signal = -1;
static const point *now;

static bool fails_now(const char *call)
{
  (void)call;
  if (until_signal < 0 || until_signal-- > 0) return false;
  now->seen->hit = true;
  (void)raise(now->signal);
  return false;
}

static xfer_comm *meet(meeting_place *place, int rank)
{
  visitor v = {place, rank, 0, -1};
  xfer_comm *comm = NULL;

  if (xfer_comm_create_host(&comm, gather_there, &v, rank, place->n_ranks) != XFER_OK) _exit(9);
  return comm;
}

/* Those that are left give each other a byte each. */
static bool go_on(meeting_place *place, int rank)
{
  xfer_comm *comm = meet(place, rank);
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  const unsigned char mine = (unsigned char)(10 + rank);
  unsigned char all[N_RANKS - 1] = {0};
  const xfer_view from = xfer_view_dense(&mine);
  const xfer_view to = xfer_view_dense(all);
  bool right = xfer_problem_parse(&src, &dst, "u8[3] (3):S0 -> (3):R") == XFER_OK;

  right = right && xfer_redistribute(comm, src, &from, dst, &to, NULL) == XFER_OK;
  for (int r = 0; r < N_RANKS - 1; r++)
    right = right && all[r] == 10 + r;
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  xfer_comm_destroy(comm);
  return right;
}

static void play(const point *p, int rank)
{
  xfer_comm *comm = meet(p->first, rank);
  shared *seen = p->seen;
  input in;
  xfer_plan *plan = NULL;
  xfer_status st;
  int64_t began;

  now = p;
  replace_calls(comm);
  input_create(&in, rank);
  in.options.lane = ways[p->way].lane;
  in.options.ranks_per_domain = ways[p->way].ranks_per_domain;
  in.options.window_bytes = 32;
  in.options.flags = XFER_PLAN_VERIFY | (is_staged(p) ? XFER_PLAN_STAGED : 0);
  in.options.timeout_ms = p->signal == SIGSTOP ? DEADLINE_MS : 20000;
  for (step s = CREATE; s < p->at; s++) {
    expect(take(s, &plan, &in, comm) == XFER_OK);
    if (s == CREATE) expect(input_bind(&in, plan) == XFER_OK);
  }
  (void)atomic_fetch_add(&seen->n_here, 1); /* what came before is over on all */
  while (seen->n_here < N_RANKS)
    (void)usleep(50);
  until_signal = rank == p->victim ? p->n : -1;
  began = xfi_now_ns();
  st = take(p->at, &plan, &in, comm);
  until_signal = -1;
  seen->ms[rank] = (xfi_now_ns() - began) / 1000000;
  seen->outcomes[rank] = outcome_of(st);
  seen->untouched[rank] = is_untouched(&in);
  seen->delivered[rank] = is_delivered(&in);
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
  input_destroy(&in);
  if (seen->hit && rank != p->victim)
    seen->went_on[rank] = go_on(p->second, rank - (rank > p->victim));
}

/* Of a victim that is stopped: it goes on when nobody waits for it any more. */
static bool wait_for_all(const point *p, const pid_t *children)
{
  int status = 0;
  bool good = true;
  bool stopped;

  if (waitpid(children[p->victim], &status, WUNTRACED) != children[p->victim]) return false;
  stopped = WIFSTOPPED(status);
  for (int r = 0; r < N_RANKS; r++) {
    if (r == p->victim) continue;
    (void)waitpid(children[r], &status, 0);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  if (stopped) {
    (void)kill(children[p->victim], SIGCONT);
    (void)waitpid(children[p->victim], &status, 0);
    good = good && WIFEXITED(status);
  }
  return good;
}

static bool is_right(const point *p)
{
  const shared *seen = p->seen;
  bool good = true;

  for (int r = 0; r < N_RANKS; r++) {
    const outcome *o = &seen->outcomes[r];

    if (r == p->victim && p->signal == SIGKILL && seen->hit) continue;
    good = good && (o->st == XFER_OK || (o->st != XFER_ERR_INTERNAL && o->text[0] != '\0'));
    good = good && (o->st == XFER_OK || seen->hit);
    good = good && (p->at > COMMIT || seen->untouched[r]);
    good = good && (p->at < RUN_AND_WAIT || o->st != XFER_OK || seen->delivered[r]);
    good = good && (!is_staged(p) || seen->untouched[r] || seen->delivered[r]);
    good = good && (r == p->victim || seen->ms[r] < DEADLINE_MS + LEAVE_MS + SLACK_MS);
    good = good && (!seen->hit || r == p->victim || seen->went_on[r]);
  }
  return good;
}

static bool try_point(point *p)
{
  pid_t children[N_RANKS];
  bool good;

  p->seen = mmap(NULL, sizeof *p->seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(p->seen, MAP_FAILED);
  p->first = open_place(N_RANKS);
  p->second = open_place(N_RANKS - 1);
  for (int r = 0; r < N_RANKS; r++) {
    children[r] = fork();
    assert_true(children[r] >= 0);
    if (children[r] == 0) {
      play(p, r);
      _exit(n_unexpected == 0 ? 0 : 8);
    }
  }
  good = wait_for_all(p, children);
  good = good && is_right(p);
  if (!good) {
    print_message("%s, lane %u, domains of %u: signal %d in call %ld of rank %d\n",
                  step_names[p->at], ways[p->way].lane, ways[p->way].ranks_per_domain, p->signal,
                  p->n, p->victim);
    for (int r = 0; r < N_RANKS; r++)
      print_message("  rank %d after %lld ms: %s %s%s\n", r, (long long)p->seen->ms[r],
                    xfer_status_name(p->seen->outcomes[r].st), p->seen->outcomes[r].text,
                    p->seen->went_on[r] ? "; went on" : "");
  }
  (void)munmap(p->first, sizeof *p->first);
  (void)munmap(p->second, sizeof *p->second);
  return good;
}

/* Each call in turn, or each of `every`, until the victim makes no more. */
static void sweep(point p, long every, long *n_points, long *n_wrong)
{
  bool hit = true;

  for (p.n = every / 2; hit && p.n < 1000; p.n += every) {
    *n_wrong += !try_point(&p);
    hit = p.seen->hit;
    *n_points += hit;
    (void)munmap(p.seen, sizeof *p.seen);
  }
}

static void signals(int signal, long every)
{
  long n_points = 0;
  long n_wrong = 0;

  for (step at = CREATE; at < N_STEPS; at++)
    for (int way = 1; way < N_WAYS; way++) /* nothing is direct between processes without GPUs */
      for (int victim = 0; victim < N_RANKS; victim++)
        sweep((point){.at = at, .way = way, .victim = victim, .signal = signal}, every, &n_points,
              &n_wrong);
  print_message("signal %d: %ld points, wrong: %ld\n", signal, n_points, n_wrong);
  assert_true(n_points > 5);
  assert_int_equal(n_wrong, 0);
}

static void test_e5_a_rank_that_is_killed_at_any_call_is_left_behind(void **state)
{
  (void)state;
  signals(SIGKILL, 1);
}

/* Each point waits for seconds. */
static void test_e5_a_rank_that_is_stopped_at_any_call_is_left_behind(void **state)
{
  const char *every = getenv("XFER_STOP_EVERY");

  (void)state;
  if (every == NULL) skip();
  signals(SIGSTOP, strtol(every, NULL, 10));
}

/* ---- the way -------------------------------------------------------------------------------- */

static bool says_the_way(meeting_place *place, int rank)
{
  xfer_comm *comm = meet(place, rank);
  input in;
  xfer_plan *plan = NULL;
  char *text = NULL;
  bool right;

  input_create(&in, rank);
  right = xfer_plan_create(&plan, comm, in.tensors, in.n_tensors, &in.options) == XFER_OK &&
          input_bind(&in, plan) == XFER_OK && xfer_plan_commit(plan) == XFER_OK &&
          xfer_plan_print(plan, &text, 0) == XFER_OK &&
          strstr(text, "packed: through slots that both processes have") != NULL;
  xfer_text_free(text);
  xfer_plan_destroy(plan);
  input_destroy(&in);
  xfer_comm_destroy(comm);
  return right;
}

static void test_a_plan_says_why_data_of_processes_on_a_host_is_packed(void **state)
{
  meeting_place *place = open_place(N_RANKS);
  int status = 0;

  (void)state;
  for (int r = 0; r < N_RANKS; r++)
    if (fork() == 0) _exit(says_the_way(place, r) ? 0 : 8);
  for (int r = 0; r < N_RANKS; r++) {
    assert_true(wait(&status) > 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  (void)munmap(place, sizeof *place);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_e5_a_rank_that_is_killed_at_any_call_is_left_behind),
      cmocka_unit_test(test_e5_a_rank_that_is_stopped_at_any_call_is_left_behind),
      cmocka_unit_test(test_a_plan_says_why_data_of_processes_on_a_host_is_packed),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
