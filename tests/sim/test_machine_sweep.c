/*
 * Each call of CUDA and NCCL, and each allocation of the code that makes them, fails in turn on one
 * rank, in each step of a plan's life: comm, plan, commit, commit at other addresses, run, wait,
 * release.
 *
 *   test_machine_sweep [--seed S] [--every K] [--ranks N] NAME     every K-th of them
 *
 * What must hold: all ranks end with an error or all with success, within the deadline and what a
 * rank takes to leave; success means that every byte is there, and a failure before a run that none
 * was written; where only the very last word of a step was lost, the next step fails on all;
 * nothing is left behind but what a broken communicator may still write; and the same ranks make a
 * new comm and finish. (Allocations of the engine itself: tests/fault/test_allocations.c.)
 */
#include "as_processes.h"
#include "limited_waits.h"
#include "world.h"

#include "alloc.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIVE = 0x77, LEAVE_MS = 2000, SLACK_MS = 6000 };
enum { MOST = 1000, WIDTH = 3000, RELAYED_WIDTH = 40000 };

/* ---- allocations that fail, of the program's link ------------------------------------------ */

void *__real_xfi_calloc(size_t n, size_t size);
void *__wrap_xfi_calloc(size_t n, size_t size);

static _Atomic long until_failure = -1; /* allocations; < 0: none fails */
static _Atomic bool has_failed;
static _Thread_local bool is_victim;

void *__wrap_xfi_calloc(size_t n, size_t size)
{
  if (is_victim && until_failure >= 0 && atomic_fetch_sub(&until_failure, 1) == 0) {
    has_failed = true;
    return NULL;
  }
  return __real_xfi_calloc(n, size);
}

/* ---- one point ---------------------------------------------------------------------------- */

typedef enum step { COMM, PLAN, COMMIT, MOVE, RUN, WAIT, RELEASE, STEPS } step;
static const char *const step_names[] = {"comm", "plan", "commit", "move",
                                         "run",  "wait", "release"};

typedef struct point {
  comm_kind kind;
  xfer_lane lane;
  bool relays;
  int n_ranks;
  step at;
  int victim;
  const char *call; /* NULL: any that may fail; "": an allocation */
  long n;
} point;

static point now;
static ranks_meeting *meeting;
static bool are_processes;            /* ranks are taken for them while they make a comm */
static xfer_status said[WORLD_RANKS]; /* of the step */
static char texts[WORLD_RANKS][200];
static int64_t took_ms[WORLD_RANKS];
static bool is_right;
/* A deadline passed though nothing failed: again, with a longer one. */
static _Atomic bool is_slow;

/* Not a failure of this point alone: the sweep goes on and counts it. */
static void wrong(int rank, const char *what)
{
  fprintf(stderr, "%s: rank %d, last words: %s\n", what, rank, xfer_last_error());
  is_right = false;
}

/* Half of the points: there destinations stay whole, the old ones or the new ones. But where lanes
 * move, which those of staged plans do not. */
static bool is_staged(void)
{
  return now.at != MOVE && now.victim % 2 != 0;
}

static void bind_at(xfer_plan *plan, const tensor *t, size_t offset)
{
  char *bytes[2];

  for (int side = FROM; side <= TO; side++)
    bytes[side] = t->bytes[side] == NULL ? NULL : (char *)t->bytes[side] + offset;

  const xfer_view src = xfer_view_dense(bytes[FROM]);
  const xfer_view dst = xfer_view_dense(bytes[TO]);

  OK(xfer_plan_bind(plan, 0, &src, &dst));
}

static xfer_plan *plan_of(int rank, tensor *t, xfer_status *st)
{
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  const xfer_tensor list = {.name = "t", .src = t->layouts[FROM], .dst = t->layouts[TO]};
  xfer_plan *plan = NULL;

  options.lane = (uint32_t)now.lane;
  options.timeout_ms = (uint64_t)limit_ms;
  options.ranks_per_domain = world_ranks_per_domain(t->shape);
  options.flags =
      (now.kind == COMM_GATHER ? XFER_PLAN_VERIFY : 0) | (is_staged() ? XFER_PLAN_STAGED : 0);
  *st = xfer_plan_create(&plan, w.comms[rank], &list, 1, &options);
  if (*st == XFER_OK) bind_at(plan, t, TENSOR_ROOM);
  return plan;
}

static xfer_status take(step at, int rank, tensor *t, xfer_plan **plan, cudaStream_t stream)
{
  xfer_status st = XFER_OK;

  switch (at) {
  case COMM:
    st = are_processes ? make_comm_as_process(&w.comms[rank], meeting, rank)
                       : ranks_make_comm(&w.comms[rank], meeting, rank);
    if (st == XFER_OK) OK(xfer_comm_set_timeout(w.comms[rank], (uint64_t)limit_ms));
    return st;
  case PLAN:
    *plan = plan_of(rank, t, &st);
    return st;
  case COMMIT:
    return xfer_plan_commit(*plan);
  case MOVE:
    bind_at(*plan, t, 0);
    return xfer_plan_commit(*plan);
  case RUN:
    tensor_open(t, 1);
    return xfer_plan_run(*plan, 1, stream);
  case WAIT:
    st = xfer_plan_wait(*plan, 0);
    tensor_close(t);
    return st;
  default:
    return xfer_plan_release(*plan);
  }
}

static void arm(int rank)
{
  const sim_fault fault = {.name = now.call,
                           .rank = rank,
                           .nth = (uint64_t)now.n + 1,
                           .code = cudaErrorInitializationError};

  is_victim = rank == now.victim;
  if (!is_victim) return;
  if (now.call != NULL && now.call[0] == '\0')
    until_failure = now.n;
  else
    sim_fault_add(&fault);
}

static void disarm(void)
{
  if (!is_victim) return;
  until_failure = -1;
  sim_fault_clear();
}

/* The steps after one that came to the same on all ranks, or the next after one that did not. */
static void go_on(int rank, tensor *t, xfer_plan **plan, cudaStream_t stream)
{
  xfer_status all = XFER_OK;
  bool same = true;

  for (int r = 0; r < now.n_ranks; r++) {
    if (said[r] != XFER_OK) all = said[r];
    same = same && (said[r] == XFER_OK) == (said[0] == XFER_OK);
  }
  if (same && all != XFER_OK && now.at != RUN) return;
  if (!same && now.at == WAIT && !tensor_holds(t, 1)) wrong(rank, "complete, but not on all ranks");
  if (!same && now.at != RUN && now.at != RELEASE) {
    if (said[rank] != XFER_OK) return;
    if (take(now.at + 1, rank, t, plan, stream) == XFER_OK && now.at != MOVE)
      wrong(rank, "the next step works, though one rank is not in it");
    if (now.at == MOVE && take(WAIT, rank, t, plan, stream) == XFER_OK)
      wrong(rank, "a run works, though one rank is not in it");
    return;
  }
  for (step s = now.at + 1; s < STEPS; s++) {
    const xfer_status st = take(s, rank, t, plan, stream);
    if (st == XFER_ERR_TIMEOUT && all == XFER_OK) is_slow = true;
    if (is_slow) return;
    if ((st == XFER_OK) != (now.at != RUN || s != WAIT || all == XFER_OK))
      wrong(rank, "a later step");
    if (s == WAIT && st == XFER_OK && !tensor_holds(t, 1)) wrong(rank, "bytes are missing");
    if (st != XFER_OK) return;
  }
}

/* What the point is about, and what comes after. */
static void fail_a_step(int rank, tensor *t, xfer_plan **plan, cudaStream_t stream)
{
  arm(rank);
  ranks_barrier();
  const int64_t began = world_ms();
  said[rank] = take(now.at, rank, t, plan, stream);
  took_ms[rank] = world_ms() - began;
  (void)snprintf(texts[rank], sizeof texts[rank], "%s", xfer_last_error());
  ranks_barrier();
  disarm();
  if (said[rank] != XFER_OK && now.at < RUN && !tensor_is_all(t, LIVE))
    wrong(rank, "written before a run");
  ranks_barrier();
  go_on(rank, t, plan, stream);
  if (is_staged() && !tensor_is_all(t, LIVE) && !tensor_holds(t, 1)) wrong(rank, "half written");
}

static void live(int rank)
{
  cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;
  tensor t;

  if (now.relays)
    tensor_make(&t, FROM_LAST, rank, RELAYED_WIDTH);
  else
    tensor_make(&t, now.lane == XFER_LANE_BROADCAST ? FROM_FIRST : EACH_EACH, rank, WIDTH);
  tensor_fill(&t, 1, LIVE);
  w.comms[rank] = NULL;
  NEED(ranks_come(meeting, rank));
  for (step s = COMM; s < now.at; s++)
    if (!is_slow && take(s, rank, &t, &plan, stream) != XFER_OK) is_slow = true;
  ranks_barrier();
  if (!is_slow && now.at < STEPS) fail_a_step(rank, &t, &plan, stream);
  ranks_barrier();
  xfer_plan_destroy(plan);
  xfer_comm_destroy(w.comms[rank]);
  ranks_go(meeting, rank);
  ranks_barrier();
  tensor_free(&t);
  NEED(cudaStreamDestroy(stream) == cudaSuccess);
}

/* A life on the same devices, with a comm of its own. */
static void recover(void)
{
  const point was = now;

  now.at = STEPS;
  is_slow = false;
  meeting = ranks_meet(now.n_ranks, now.kind);
  NEED(meeting != NULL);
  world_go(live);
  ranks_meeting_free(meeting);
  NEED(!is_slow || limit_ms < LIMIT_MOST);
  if (is_slow) limit_ms *= 2;
  if (is_slow) recover();
  now = was;
}

typedef struct tally {
  long points, failed, by_deadline, parted, leaks, wrong, n_slow;
} tally;

static bool is_short_of(const char *what, uint64_t before, uint64_t after)
{
  if (after > before) fprintf(stderr, "%s: %lld more\n", what, (long long)(after - before));
  return after > before;
}

static bool verbose;
static bool slow_now;

static void judge(tally *sum)
{
  int n_failed = 0;
  bool late = false;
  bool slow = false;

  for (int r = 0; r < now.n_ranks; r++) {
    n_failed += said[r] != XFER_OK;
    late = late || said[r] == XFER_ERR_TIMEOUT;
    if (said[r] == XFER_ERR_INTERNAL || (said[r] != XFER_OK && texts[r][0] == '\0'))
      wrong(r, "an error without a reason");
    if (r == now.victim && has_failed && said[r] != XFER_OK && said[r] != XFER_ERR_NOMEM)
      wrong(r, "an allocation that failed is told so");
    if (took_ms[r] > limit_ms + LEAVE_MS) slow = true;
    if (took_ms[r] > limit_ms + LEAVE_MS + SLACK_MS) wrong(r, "an end in time");
  }
  if (n_failed > 0 && now.at == RUN) n_failed = now.n_ranks; /* waits are compared */
  sum->points++;
  sum->failed += n_failed == now.n_ranks;
  sum->parted += n_failed > 0 && n_failed < now.n_ranks;
  sum->by_deadline += late;
  sum->n_slow += slow;
  slow_now = slow;
}

static void say(const char *how)
{
  static const char *const kinds[] = {"nccl", "borrowed", "gather", "unblocked"};

  fprintf(stderr, "%s: %s, lane %d, %d ranks, %s: %s %ld of rank %d\n", how, kinds[now.kind],
          (int)now.lane, now.n_ranks, step_names[now.at],
          now.call == NULL      ? "call"
          : now.call[0] == '\0' ? "allocation"
                                : now.call,
          now.n, now.victim);
  for (int r = 0; r < now.n_ranks; r++)
    fprintf(stderr, "  rank %d after %lld ms: %s %s\n", r, (long long)took_ms[r],
            xfer_status_name(said[r]), said[r] == XFER_OK ? "" : texts[r]);
}

typedef enum played { NO_SUCH_CALL, TOO_SLOW, PLAYED } played;

static played play(tally *sum)
{
  const uint64_t faults = sim_count().faults;

  has_failed = false;
  is_right = true;
  is_slow = false;
  world_case((uint64_t)now.n);
  meeting = ranks_meet(now.n_ranks, now.kind);
  NEED(meeting != NULL);
  const sim_counts before = sim_count();
  world_go(live);
  ranks_meeting_free(meeting);
  if (is_slow) return TOO_SLOW;
  if (!has_failed && sim_count().faults == faults) return NO_SUCH_CALL;
  judge(sum);
  NEED(sim_settle(10000));
  const sim_counts after = sim_count();
  if (is_short_of("bytes", before.bytes, after.bytes) +
          is_short_of("pinned", before.pinned, after.pinned) +
          is_short_of("streams", before.streams, after.streams) +
          is_short_of("events", before.events, after.events) +
          is_short_of("imports", before.imports, after.imports) >
      0) {
    sum->leaks++;
    say("left behind");
  }
  if (sim_violations() > 0) wrong(-1, "a violation");
  NEED_NO_VIOLATION();
  if (!is_right) sum->wrong++;
  if (!is_right)
    say("WRONG");
  else if (verbose || slow_now)
    say(slow_now ? "slow" : "right");
  recover();
  return PLAYED;
}

/* ---- sweeps ------------------------------------------------------------------------------- */

static int every = 1;
static int only_ranks;

static void sweep_step(tally *sum, const char *call, size_t which)
{
  /* Allocations are few. */
  const int stride = call != NULL && call[0] == '\0' ? (every + 9) / 10 : every;

  now.call = call;
  for (now.victim = 0; now.victim < now.n_ranks; now.victim++) {
    played how = PLAYED;

    now.n = (long)((size_t)now.victim * 7 + (size_t)now.at * 11 + which * 5) % stride;
    while (how != NO_SUCH_CALL && now.n < MOST) {
      how = play(sum);
      NEED(how != TOO_SLOW || limit_ms < LIMIT_MOST);
      if (how == TOO_SLOW) limit_ms *= 2;
      if (how == PLAYED) now.n += stride;
    }
  }
}

static void sweep_form(comm_kind kind, xfer_lane lane, bool relays, step first, step last)
{
  static const char *const others[] = {NULL, "", "ncclGroupEnd", "ncclCommGetAsyncError",
                                       "cudaGetDevice"};
  tally sum = {0};

  for (int n = 2; n <= 4; n++) {
    if (only_ranks != 0 && n != only_ranks) continue;
    world_clear(n, (sim_config){.small_engine = n != 3});
    now = (point){.kind = kind, .lane = lane, .relays = relays, .n_ranks = n};
    for (now.at = first; now.at <= last; now.at++)
      for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        sweep_step(&sum, others[i], i);
  }
  printf("deadline %lld ms; failed calls and allocations: %ld, error on all ranks: %ld (some by "
         "deadline: %ld, slow: "
         "%ld), next step fails: %ld, left something: %ld, wrong: %ld\n",
         (long long)limit_ms, sum.points, sum.failed, sum.by_deadline, sum.n_slow, sum.parted,
         sum.leaks, sum.wrong);
  NEED(sum.points > 2 && sum.wrong == 0);
}

static void sweep(comm_kind kind, xfer_lane lane, step first, step last)
{
  sweep_form(kind, lane, false, first, last);
}

static void test_comm_nccl(void)
{
  sweep(COMM_NCCL, XFER_LANE_AUTO, COMM, COMM);
}

static void control_is_given_back(int rank)
{
  NEED(ranks_come(meeting, rank));
  OK(take(COMM, rank, NULL, NULL, NULL));
  ranks_barrier();
  NEED(sim_calls_of("ncclCommDestroy") == 2);
  xfer_comm_destroy(w.comms[rank]);
  ranks_go(meeting, rank);
}

/* Its control goes through shared memory, and NCCL's communicator for it is given back. */
static void test_comm_host(void)
{
  are_processes = true;
  world_clear(2, (sim_config){.seed = 0});
  now = (point){.kind = COMM_NCCL, .n_ranks = 2};
  meeting = ranks_meet(now.n_ranks, now.kind);
  NEED(meeting != NULL);
  world_go(control_is_given_back);
  ranks_meeting_free(meeting);
  sweep(COMM_NCCL, XFER_LANE_AUTO, COMM, COMM);
}

/* What NCCL refuses to one rank while the others wait for it is known at once. */
static void refused_to_one(const char *call)
{
  tally sum = {0};

  limit_ms = LIMIT_MOST;
  world_clear(3, (sim_config){.seed = 0});
  now = (point){.kind = COMM_NCCL,
                .lane = XFER_LANE_PACKED,
                .n_ranks = 3,
                .at = COMMIT,
                .victim = 1,
                .call = call};
  NEED(play(&sum) == PLAYED && sum.wrong == 0 && sum.failed == 1 && sum.by_deadline == 0);
  for (int r = 0; r < now.n_ranks; r++)
    NEED(took_ms[r] < limit_ms / 2 && (r == now.victim || strstr(texts[r], "rank 1") != NULL));
  limit_ms = LIMIT_MS;
}

static void test_life_host(void)
{
  are_processes = true;
  refused_to_one("ncclCommInitRankConfig");
  refused_to_one("ncclCommSplit");
  refused_to_one("ncclGroupEnd");
  sweep(COMM_NCCL, XFER_LANE_PACKED, PLAN, RELEASE);
}

static void test_comm_borrowed(void)
{
  sweep(COMM_UNBLOCKED, XFER_LANE_AUTO, COMM, COMM);
}

static void test_comm_gather(void)
{
  sweep(COMM_GATHER, XFER_LANE_DIRECT, COMM, COMM);
}

static void test_life_direct(void)
{
  sweep(COMM_NCCL, XFER_LANE_DIRECT, PLAN, RELEASE);
}

static void test_life_gather(void)
{
  sweep(COMM_GATHER, XFER_LANE_DIRECT, PLAN, RELEASE);
}

static void test_life_packed(void)
{
  sweep(COMM_NCCL, XFER_LANE_PACKED, PLAN, RELEASE);
}

static void test_life_broadcast(void)
{
  sweep(COMM_NCCL, XFER_LANE_BROADCAST, PLAN, RELEASE);
}

static void test_life_relayed(void)
{
  sweep_form(COMM_NCCL, XFER_LANE_PACKED, true, PLAN, RELEASE);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"sweep_comm_nccl", test_comm_nccl},           {"sweep_comm_borrowed", test_comm_borrowed},
      {"sweep_comm_host", test_comm_host},           {"sweep_life_host", test_life_host},
      {"sweep_comm_gather", test_comm_gather},       {"sweep_life_direct", test_life_direct},
      {"sweep_life_gather", test_life_gather},       {"sweep_life_packed", test_life_packed},
      {"sweep_life_broadcast", test_life_broadcast}, {"sweep_life_relayed", test_life_relayed}};
  int kept = 1;

  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--every") == 0 && i + 1 < argc)
      every = atoi(argv[++i]);
    else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc)
      only_ranks = atoi(argv[++i]);
    else if (strcmp(argv[i], "--verbose") == 0)
      verbose = true;
    else
      argv[kept++] = argv[i];
  }
  return world_main(kept, argv, tests, sizeof tests / sizeof *tests);
}
