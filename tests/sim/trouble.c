/*
 * trouble --cases N --seed S [--first K] [--only K] [--calm] [--without MISHAP]
 *         [--verbose]
 *
 * Runs in which something goes wrong, at random: ranks that are late, refused or dead, devices that
 * are busy, calls that fail in a run or in a commit; with one plan or two, on one comm or two, in
 * all lanes, beside a thread that captures graphs or not. What must hold:
 *
 * - every call comes back in good time;
 * - where a wait says OK on one rank, the destinations of all ranks hold what they should;
 * - no operation touches memory of a rank before its run or after its wait, whatever that said;
 * - a commit works on all ranks or on none; after one that worked, runs do;
 * - no capture of another thread is invalidated.
 *
 * With --calm nothing goes wrong: plans and comms side by side. Deadlines are real, so a loaded
 * host can miss them without any trouble: where that is a run's, it is counted; where plans cannot
 * even be made, the case begins again with all times doubled, up to SLACK_MOST times as long. The
 * last line is `trouble ok: cases=N wrong=0`.
 */
#include "case_runner.h"
#include "rng.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  PLANS = 2,
  ROUNDS_MAX = 4,
  LIVE = 0x77,
  PROMPT_MS = 8000, /* where all can hear each other */
  BUSY_MS = 200,    /* after its deadline a run is given half a second for copies in flight */
  LONGEST_MS = 40000,
  SETTLE_MS = 20000,
  CASES = 25,
  SLACK_MOST = 64
};

typedef enum mishap { NOTHING, LATE, BUSY, REFUSED, FAILING, FAILING_COMMIT, DEAD, MISHAPS } mishap;
static const char *const mishap_names[] = {"nothing", "late",           "busy", "refused",
                                           "failing", "failing commit", "dead"};

/* What a case is, the same on every rank. */
typedef struct plan_case {
  form shape;
  xfer_lane lane;
  int64_t width;
  int comm;
} plan_case;

static struct {
  int n_ranks;
  int n_plans;
  int n_comms;
  int n_rounds;
  comm_kind kind;
  uint64_t timeout_ms;
  bool captures;
  plan_case plans[PLANS];
  struct {
    mishap what;
    int rank;
    int64_t ms;
    int percent;
    bool to_the_end; /* calls fail in the wait too, so that peers may hear nothing */
  } rounds[ROUNDS_MAX];
} now;

static bool without[MISHAPS];
static xfer_comm *comms[PLANS][WORLD_RANKS];
static xfer_plan *plans[PLANS][WORLD_RANKS];
static tensor tensors[PLANS][WORLD_RANKS];
static cudaStream_t streams[PLANS][WORLD_RANKS];
static xfer_status said[PLANS][WORLD_RANKS]; /* of the last call of all ranks */
static _Atomic uint64_t n_failed_runs, n_runs, n_slow;

/* ---- cases -------------------------------------------------------------------------------- */

static void draw(uint64_t number)
{
  rng r = rng_of(world_seed(), number, 1);

  now.n_ranks = rng_int(&r, 2, 4);
  now.n_plans = rng_int(&r, 1, PLANS);
  now.n_comms = now.n_plans == 2 && rng_percent(&r, 40) ? 2 : 1;
  now.n_rounds = rng_int(&r, 2, ROUNDS_MAX);
  now.kind = rng_percent(&r, 60) ? COMM_NCCL : COMM_GATHER;
  now.timeout_ms = set.calm ? 20000 : (uint64_t)rng_int(&r, 60, 200) * (uint64_t)set.slack;
  now.captures = rng_percent(&r, 25) && !set.calm;
  for (int p = 0; p < now.n_plans; p++) {
    now.plans[p] = (plan_case){
        .shape = (form)rng_int(&r, RING, FROM_LAST),
        .lane = now.kind == COMM_GATHER ? XFER_LANE_DIRECT : (xfer_lane)rng_int(&r, 0, 3),
        .width = rng_percent(&r, 90) ? rng_int(&r, 1, 20000) : rng_int(&r, 100000, 3000000),
        .comm = p % now.n_comms};
  }
  for (int i = 0; i < now.n_rounds; i++) {
    mishap what = set.calm || rng_percent(&r, 25) ? NOTHING : (mishap)rng_int(&r, LATE, DEAD);
    if (what == DEAD && (i + 1 < now.n_rounds || now.kind == COMM_GATHER || !rng_percent(&r, 30)))
      what = LATE;
    if (without[what]) what = NOTHING;
    now.rounds[i].what = what;
    now.rounds[i].rank = rng_int(&r, 0, now.n_ranks - 1);
    now.rounds[i].ms = rng_int(&r, 0, 2 * (int)now.timeout_ms);
    if (what == BUSY && now.rounds[i].ms > (int64_t)now.timeout_ms + BUSY_MS)
      now.rounds[i].ms = (int64_t)now.timeout_ms + BUSY_MS;
    now.rounds[i].percent = rng_int(&r, 1, 10);
    now.rounds[i].to_the_end = rng_percent(&r, 10);
  }
}

static sim_config topology(uint64_t number)
{
  rng r = rng_of(world_seed(), number, 2);
  sim_config config = {.n_devices = now.n_ranks};
  const bool cut = now.kind == COMM_NCCL && rng_percent(&r, 30);

  for (int d = 1; d < now.n_ranks && cut; d++) {
    config.apart[0] |= UINT64_C(1) << d;
    config.apart[d] |= 1;
  }
  config.small_engine = rng_percent(&r, 50);
  config.many_launches = rng_percent(&r, 50);
  return config;
}

/* ---- one rank ----------------------------------------------------------------------------- */

/* A call that must come back in time. */
static void need_prompt(int round, int64_t began, const char *call)
{
  const mishap what = round < 0 ? NOTHING : now.rounds[round].what;
  const bool deaf =
      what == DEAD || what == FAILING_COMMIT || (what == FAILING && now.rounds[round].to_the_end);

  if (world_ms() - began > (deaf ? LONGEST_MS : PROMPT_MS) * set.slack)
    world_failed(__FILE__, __LINE__, call);
}

static void bind(int rank, int p)
{
  const tensor *t = &tensors[p][rank];
  const xfer_view src = xfer_view_dense(t->bytes[FROM]);
  const xfer_view dst = xfer_view_dense(t->bytes[TO]);

  OK(xfer_plan_bind(plans[p][rank], 0, &src, &dst));
}

static void move_memory(int rank, int p)
{
  const plan_case *c = &now.plans[p];

  tensor_free(&tensors[p][rank]);
  tensor_make(&tensors[p][rank], c->shape, rank, c->width);
}

static void open_all(int rank, uint64_t run)
{
  for (int p = 0; p < now.n_plans; p++)
    tensor_open(&tensors[p][rank], run);
}

static void begin_mishap(int round, int rank)
{
  const mishap what = now.rounds[round].what;
  const sim_fault fault = {
      .rank = rank, .percent = now.rounds[round].percent, .code = cudaErrorMemoryAllocation};

  if (rank != now.rounds[round].rank) return;
  if (what == LATE) world_sleep_ms(now.rounds[round].ms);
  if (what == BUSY) sim_hold(rank, true);
  if (what == FAILING) sim_fault_add(&fault);
  for (int p = 0; p < now.n_plans && what == REFUSED; p++) {
    move_memory(rank, p);
    tensor_fill(&tensors[p][rank], 0, LIVE);
  }
}

static void *let_go(void *argument)
{
  const int round = *(const int *)argument;

  world_sleep_ms(now.rounds[round].ms);
  sim_hold(now.rounds[round].rank, false);
  return NULL;
}

/* Runs and waits of all plans; what the waits said is in `said`. */
static void run_all(int round, int rank, uint64_t run)
{
  const bool own = rank == now.rounds[round].rank;
  const bool dead = own && now.rounds[round].what == DEAD;
  pthread_t helper;

  begin_mishap(round, rank);
  if (!dead) open_all(rank, run);
  for (int p = 0; p < now.n_plans && !dead; p++) {
    const int64_t began = world_ms();
    (void)!xfer_plan_run(plans[p][rank], run, streams[p][rank]);
    need_prompt(round, began, "xfer_plan_run comes back in time");
  }
  if (own && !now.rounds[round].to_the_end) sim_fault_clear();
  const bool holds = own && now.rounds[round].what == BUSY;
  if (holds && pthread_create(&helper, NULL, let_go, &round) != 0) abort();
  for (int p = 0; p < now.n_plans && !dead; p++) {
    const int64_t began = world_ms();
    said[p][rank] = xfer_plan_wait(plans[p][rank], 0);
    need_prompt(round, began, "xfer_plan_wait comes back in time");
    tensor_close(&tensors[p][rank]);
    if (said[p][rank] != XFER_OK && tensors[p][rank].n_bytes[TO] > 0)
      memset(tensors[p][rank].bytes[TO], LIVE, tensors[p][rank].n_bytes[TO]);
  }
  if (holds) (void)pthread_join(helper, NULL);
  if (own) sim_fault_clear();
}

/* After all have come: was it right? Whether a new commit is needed. */
static bool look(int round, int rank, uint64_t run)
{
  bool failed = false;

  NEED_NO_VIOLATION();
  for (int p = 0; p < now.n_plans; p++) {
    bool any_ok = false;
    for (int r = 0; r < now.n_ranks; r++) {
      any_ok = any_ok || said[p][r] == XFER_OK;
      failed = failed || said[p][r] != XFER_OK;
    }
    if (said[p][rank] == XFER_OK) NEED(tensor_holds(&tensors[p][rank], run + (uint64_t)p));
    if (said[p][rank] != XFER_OK) NEED(tensor_is_all(&tensors[p][rank], LIVE));
    if (any_ok && now.rounds[round].what == DEAD)
      world_failed(__FILE__, __LINE__, "a rank is dead");
  }
  if (rank == 0) (void)atomic_fetch_add(&n_runs, 1);
  if (rank == 0 && failed) (void)atomic_fetch_add(&n_failed_runs, 1);
  if (rank == 0 && failed && now.rounds[round].what == NOTHING) (void)atomic_fetch_add(&n_slow, 1);
  return failed;
}

/* All plans are committed again: on all ranks or on none. False: their comm is of no more use. */
static bool commit_all(int round, int rank)
{
  const bool faulty = round >= 0 && now.rounds[round].what == FAILING_COMMIT;
  const sim_fault fault = {.rank = rank,
                           .percent = faulty ? now.rounds[round].percent : 0,
                           .code = cudaErrorMemoryAllocation};
  bool all = true;

  if (faulty && rank == now.rounds[round].rank) sim_fault_add(&fault);
  for (int p = 0; p < now.n_plans; p++) {
    bind(rank, p);
    const int64_t began = world_ms();
    said[p][rank] = xfer_plan_commit(plans[p][rank]);
    need_prompt(round, began, "xfer_plan_commit comes back in time");
  }
  if (faulty && rank == now.rounds[round].rank) sim_fault_clear();
  ranks_barrier();
  for (int p = 0; p < now.n_plans; p++) {
    bool any = false;
    for (int r = 0; r < now.n_ranks; r++) {
      any = any || said[p][r] == XFER_OK;
      all = all && said[p][r] == XFER_OK;
    }
    if (any && said[p][rank] == XFER_ERR_PEER)
      world_failed(__FILE__, __LINE__, "all or none commit");
  }
  ranks_barrier();
  return all;
}

static void make_plans(int rank)
{
  for (int p = 0; p < now.n_plans; p++) {
    w.comms[rank] = comms[now.plans[p].comm][rank];
    plans[p][rank] = world_plan(rank, &tensors[p][rank], 1, now.plans[p].lane, now.timeout_ms);
  }
}

static void work(int rank)
{
  uint64_t run = 1;

  for (int p = 0; p < now.n_plans; p++) {
    tensor_make(&tensors[p][rank], now.plans[p].shape, rank, now.plans[p].width);
    streams[p][rank] = world_stream();
  }
  make_plans(rank);
  bool usable = commit_all(-1, rank);
  for (int i = 0; i < now.n_rounds && usable; i++, run += 2) {
    for (int p = 0; p < now.n_plans; p++) {
      tensor_fill(&tensors[p][rank], run + (uint64_t)p, LIVE);
      said[p][rank] = XFER_ERR_STATE;
    }
    ranks_barrier();
    run_all(i, rank, run);
    ranks_barrier();
    NEED(sim_settle(SETTLE_MS));
    const bool failed = look(i, rank, run);
    ranks_barrier();
    if (now.rounds[i].what == DEAD) break;
    if (failed || now.rounds[i].what == FAILING_COMMIT) usable = commit_all(i, rank);
    if (!usable) usable = commit_all(-1, rank); /* a call that failed once may work now */
  }
  for (int p = 0; p < now.n_plans; p++)
    xfer_plan_destroy(plans[p][rank]);
  ranks_barrier();
  for (int p = 0; p < now.n_plans; p++) {
    tensor_free(&tensors[p][rank]);
    NEED(cudaStreamDestroy(streams[p][rank]) == cudaSuccess);
  }
  for (int c = 0; c < now.n_comms; c++)
    xfer_comm_destroy(comms[c][rank]);
}

/* ---- a thread that captures --------------------------------------------------------------- */

static _Atomic bool stop;

static void *capture_main(void *unused)
{
  cudaStream_t stream = world_stream();

  (void)unused;
  while (!atomic_load(&stop)) {
    cudaGraph_t graph = NULL;
    NEED(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    world_sleep_ms(3);
    NEED(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    NEED(cudaGraphDestroy(graph) == cudaSuccess);
    world_sleep_ms(1);
  }
  NEED(cudaStreamDestroy(stream) == cudaSuccess);
  return NULL;
}

static void one_case(uint64_t number)
{
  pthread_t thread;

  draw(number);
  if (set.verbose) {
    printf("case %" PRIu64 ": ranks=%d plans=%d comms=%d kind=%d timeout=%" PRIu64 ":", number,
           now.n_ranks, now.n_plans, now.n_comms, (int)now.kind, now.timeout_ms);
    for (int i = 0; i < now.n_rounds; i++)
      printf(" %s(%d, %" PRId64 " ms)", mishap_names[now.rounds[i].what], now.rounds[i].rank,
             now.rounds[i].ms);
    printf("\n");
    (void)fflush(stdout);
  }
  case_runner_world(number, now.n_ranks, now.kind, topology(number), comms, now.n_comms);
  atomic_store(&stop, false);
  if (now.captures && pthread_create(&thread, NULL, capture_main, NULL) != 0) abort();
  world_go(work);
  atomic_store(&stop, true);
  if (now.captures) (void)pthread_join(thread, NULL);
}

static void report(void)
{
  printf("runs=%" PRIu64 " failed=%" PRIu64 " slow=%" PRIu64 "\n", n_runs, n_failed_runs, n_slow);
}

static void leave_out(const char *name)
{
  for (int m = 0; m < MISHAPS; m++)
    without[m] = without[m] || strcmp(mishap_names[m], name) == 0;
}

int main(int argc, char **argv)
{
  static const case_program program = {"trouble", CASES,       SLACK_MOST, one_case,
                                       report,    "--without", leave_out};

  return case_runner_main(argc, argv, &program);
}
