/*
 * kill_calls [--every K] [--ranks N] [--seed S] [--relays 1]
 *
 * Ranks are processes with a simulated GPU each, without NCCL. One of them is killed in its n-th
 * call of CUDA, for every K-th n, from the making of its comm to the release of its plan; with
 * --relays all but the last rank are a domain and relay to each other what comes from that. The
 * others come back at once, do not say that all is well where it is not, and where the plan is
 * staged, half of the points, hold the old weights or the new ones; then they make a new comm
 * without it and finish a refit. The last line has the number of points.
 */
#include "unit/meeting.h"
#include "world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WIDTH = 3000, RELAYED_WIDTH = 40000, OLD = 0x77 };
/* Who is told at once is told long before the deadline. */
enum { DEADLINE_MS = 60000, SOON_MS = 20000, PATIENCE_S = 2, AGAIN_S = 20, MOST_CALLS = 4000 };

/* One point, and what its processes say. */
typedef struct point {
  int victim;
  long n;
  meeting_place *first, *second;
  bool staged;
} point;

enum { RIGHT = 0, LATE = 3, WRONG_BYTES, HALF_WRITTEN, NO_RELAY, NOT_AGAIN };
static const char *const verdicts[] = {
    "right", "?", "?", "late", "wrong bytes", "half written", "no relay", "no new comm"};
static bool relays;

/* Whoever is in the domain has something of it by relays. */
static bool is_relayed(const xfer_plan *plan, const tensor *t)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;

  if (t->shape != FROM_LAST || t->rank == w.n - 1) return true;
  return xfer_plan_report(plan, &report) == XFER_OK && report.relayed_bytes > 0;
}

/* The life of a plan; the first failure. *slowest: of its calls. */
static xfer_status live(const tensor *t, visitor *v, bool staged, int64_t *slowest)
{
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  const xfer_tensor list = {.name = "t", .src = t->layouts[FROM], .dst = t->layouts[TO]};
  const xfer_view src = xfer_view_dense(t->bytes[FROM]);
  const xfer_view dst = xfer_view_dense(t->bytes[TO]);
  xfer_comm *comm = NULL;
  xfer_plan *plan = NULL;
  xfer_status st = XFER_OK;

  options.timeout_ms = DEADLINE_MS;
  options.ranks_per_domain = world_ranks_per_domain(t->shape);
  if (t->shape == FROM_LAST) options.lane = XFER_LANE_DIRECT; /* else it is broadcast */
  options.flags = staged ? XFER_PLAN_STAGED : 0;
  for (int step = 0; step < 6 && st == XFER_OK; step++) {
    const int64_t began = world_ms();

    if (step == 0) st = xfer_comm_create_cuda(&comm, gather_there, v, v->rank, v->place->n_ranks);
    if (step == 1) st = xfer_plan_create(&plan, comm, &list, 1, &options);
    if (step == 1 && st == XFER_OK && !is_relayed(plan, t)) _exit(NO_RELAY);
    if (step == 1 && st == XFER_OK) st = xfer_plan_bind(plan, 0, &src, &dst);
    if (step == 2) st = xfer_plan_commit(plan);
    if (step == 3) st = xfer_plan_run(plan, 1, NULL);
    if (step == 4) st = xfer_plan_wait(plan, 0);
    if (step == 5 && xfer_plan_release(plan) != XFER_OK) step = 6; /* the run is complete */
    if (world_ms() - began > *slowest) *slowest = world_ms() - began;
  }
  xfer_plan_destroy(plan);
  xfer_comm_destroy(comm);
  return st;
}

/* Those that are left, which may come one after the other's deadline. */
static bool again(const point *p, int rank)
{
  visitor v = {p->second, rank - (rank > p->victim), 0, -1};
  int64_t slowest = 0;
  tensor t;

  w.n = p->second->n_ranks;
  tensor_make(&t, EACH_EACH, v.rank, WIDTH);
  tensor_fill(&t, 2, OLD);
  if (live(&t, &v, false, &slowest) == XFER_OK && tensor_holds(&t, 2)) return true;
  fprintf(stderr, "rank %d, in %lld ms at most: %s\n", rank, (long long)slowest, xfer_last_error());
  return false;
}

static int play(const point *p, int rank)
{
  visitor v = {p->first, rank, 0, -1};
  int64_t slowest = 0;
  tensor t;

  world_clear(p->first->n_ranks, (sim_config){.n_devices = p->first->n_ranks});
  sim_rank(rank);
  NEED(cudaSetDevice(rank) == cudaSuccess);
  tensor_make(&t, relays ? FROM_LAST : EACH_EACH, rank, relays ? RELAYED_WIDTH : WIDTH);
  for (int side = FROM; side <= TO; side++)
    if (t.n_bytes[side] > 0) sim_guard_drop(t.guards[side]); /* runs are other processes' too */
  tensor_fill(&t, 1, OLD);
  if (rank == p->victim)
    sim_fault_add(&(sim_fault){.rank = rank, .nth = (uint64_t)p->n, .kills = true});
  const xfer_status st = live(&t, &v, p->staged, &slowest);
  if (rank == p->victim) return RIGHT; /* it makes fewer calls */
  if (slowest > SOON_MS) return LATE;
  if (st == XFER_OK && !tensor_holds(&t, 1)) return WRONG_BYTES;
  if (p->staged && !tensor_is_all(&t, OLD) && !tensor_holds(&t, 1)) return HALF_WRITTEN;
  return again(p, rank) ? RIGHT : NOT_AGAIN;
}

/* False: the victim makes fewer calls. */
static bool try_point(int n_ranks, point *p, long *n_wrong)
{
  pid_t children[MOST_RANKS];
  bool killed = false;

  p->first = open_place(n_ranks);
  p->first->patience_s = PATIENCE_S;
  p->second = open_place(n_ranks - 1);
  p->second->patience_s = AGAIN_S;
  for (int r = 0; r < n_ranks; r++) {
    children[r] = fork();
    if (children[r] == 0) _exit(play(p, r));
    if (children[r] < 0) abort();
  }
  for (int r = 0; r < n_ranks; r++) {
    int status = 0;
    if (waitpid(children[r], &status, 0) != children[r]) abort();
    if (r == p->victim) killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (r == p->victim || (WIFEXITED(status) && WEXITSTATUS(status) == RIGHT)) continue;
    ++*n_wrong;
    printf("call %ld of rank %d%s: rank %d: %s\n", p->n, p->victim, p->staged ? ", staged" : "", r,
           WIFEXITED(status) && WEXITSTATUS(status) <= NOT_AGAIN ? verdicts[WEXITSTATUS(status)]
                                                                 : "it died");
  }
  (void)munmap(p->first, sizeof *p->first);
  (void)munmap(p->second, sizeof *p->second);
  return killed;
}

int main(int argc, char **argv)
{
  long every = 1;
  int n_ranks = 3;
  long n_points = 0;
  long n_wrong = 0;

  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--every") == 0) every = atol(argv[i + 1]);
    if (strcmp(argv[i], "--ranks") == 0) n_ranks = atoi(argv[i + 1]);
    if (strcmp(argv[i], "--relays") == 0) relays = atoi(argv[i + 1]) != 0;
    if (strcmp(argv[i], "--seed") == 0) world_set_seed(strtoull(argv[i + 1], NULL, 10));
  }
  if (n_ranks < (relays ? 3 : 2) || n_ranks > MOST_RANKS || every < 1) return 2;
  for (int victim = 0; victim < n_ranks; victim++) {
    point p = {.victim = victim, .staged = victim % 2 != 0};
    for (p.n = 1 + victim % every; p.n < MOST_CALLS; p.n += every) {
      if (!try_point(n_ranks, &p, &n_wrong)) break;
      n_points++;
    }
  }
  printf("kills %s: points=%ld wrong=%ld\n", n_wrong == 0 && n_points > 2 ? "ok" : "FAILED",
         n_points, n_wrong);
  return n_wrong == 0 && n_points > 2 ? 0 : 1;
}
