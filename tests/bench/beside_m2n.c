/*
 * Beside NCCL M2N (ncclReshard): the same tensors from the first half of a host's GPUs to the
 * second, by a plan of ours and by M2N in the ways that it can be used, in turn.
 *
 *   beside_m2n 4 [SECONDS [MODELS [NAMES]]]
 *
 * A process for each GPU, forked here. SECONDS: begin no workload when so many are over; MODELS:
 * where the model tables are; NAMES: parts of the workloads' names, with commas between them.
 *
 * Each way's bytes are checked before and after it is timed, in destinations that were overwritten
 * with nonsense. A time is from a common barrier to the end of the last rank's stream, the median
 * of rounds in which our direct lane and a way of M2N take turns. M2N waits without a limit of
 * time, and so processes that take too long end: the way that they were at is lost, with those of
 * the workload that would have come after it, and others go on with the next.
 */
#include "m2n_table.h"

#include <xfer/nccl.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  ROUNDS_FEW = 3, /* where each takes so long that no more are worth it */
  ROUNDS_MIN = 5,
  ROUNDS_MAX = 21,
  CLEARED_MS = 300, /* in which the driver clears what was freed, and copies are slower */
  MAKE_S = 40,      /* what memory, plans and our own lanes may take */
  WAY_S = 20,       /* and each way of M2N */
  TIMEOUT_MS = 20000,
  TRIES_MAX = 2 /* failures after which a way is given up */
};
static const double TURNS_S = 0.6; /* what all rounds of a way should take */

typedef struct bench {
  perf_world w;
  perf_case c;
  xfer_plan *plans[2];
  uint64_t versions[2];
  m2n m2n;
  ncclResult_t result; /* M2N's last */
} bench;

static results *all; /* shared by all processes */
static const bench_workload *current;

/* ---- one run ------------------------------------------------------------------------------ */

enum { ISSUE, END, DONE, N_TIMES };

/* Seconds; all ranks have the same. */
static void run_once(bench *b, int way, double took[N_TIMES])
{
  const perf_world *w = &b->w;
  double began;
  double at[N_TIMES];

  perf_barrier(w);
  began = progress_now();
  if (way >= FIRST_M2N) {
    if (b->result == ncclSuccess)
      b->result = m2n_issue(&b->m2n, &m2n_ways[way - FIRST_M2N], w->stream);
  } else if (xfer_plan_run(b->plans[way], ++b->versions[way], w->stream) != XFER_OK) {
    perf_die(w, "run", xfer_last_error());
  }
  at[ISSUE] = progress_now();
  CUDA(w, cudaStreamSynchronize, (w->stream));
  at[END] = progress_now();
  if (way < FIRST_M2N && xfer_plan_wait(b->plans[way], 0) != XFER_OK)
    perf_die(w, "wait", xfer_last_error());
  at[DONE] = progress_now();
  took[ISSUE] = perf_max(w, at[ISSUE] - began);
  took[END] = perf_max(w, at[END]) + perf_max(w, -began);
  took[DONE] = perf_max(w, at[DONE]) + perf_max(w, -began);
}

/* Did all ranks' calls of M2N succeed? If not, the note says what the first that failed said. */
static bool m2n_is_well(bench *b, figures *f)
{
  char mine[PERF_NOTE_BYTES] = "";
  char notes[64][PERF_NOTE_BYTES];

  if (b->result != ncclSuccess)
    (void)snprintf(mine, sizeof mine, "rank %d: %s: %.120s", b->w.rank,
                   ncclGetErrorString(b->result), ncclM2nGetLastError());
  perf_gather(&b->w, notes, mine, sizeof mine);
  for (int r = 0; r < b->w.size; r++) {
    if (notes[r][0] == '\0') continue;
    if (b->w.rank == 0) memcpy(f->note, notes[r], sizeof f->note);
    return false;
  }
  return true;
}

/* Seconds that the run took. */
static double checked_run(bench *b, int way, figures *f)
{
  double took[N_TIMES];
  double wrong;

  perf_case_poison(&b->c, &b->w);
  CUDA(&b->w, cudaStreamSynchronize, (b->w.stream));
  run_once(b, way, took);
  if (!m2n_is_well(b, f)) return -1;
  wrong = perf_case_check(&b->c, &b->w);
  if (b->w.rank == 0) f->wrong += wrong;
  return took[END];
}

/* ---- rounds ------------------------------------------------------------------------------- */

static double median_ms(double *seconds, int n)
{
  return progress_median(seconds, (size_t)n) * 1e3;
}

/* `way` and, unless it is that, our direct lane: who begins changes with each round. */
static void take_turns(bench *b, int way, int n, figures *f)
{
  double times[N_TIMES][ROUNDS_MAX];
  double beside[ROUNDS_MAX];
  double took[N_TIMES];

  for (int i = 0; i < n; i++)
    for (int k = 0; k < 2; k++) {
      const int turn = (i + k) % 2 == 0 ? way : DIRECT;

      if (k == 1 && way == DIRECT) continue;
      run_once(b, turn, took);
      if (turn != way) beside[i] = took[END];
      for (int t = 0; t < N_TIMES && turn == way; t++)
        times[t][i] = took[t];
    }
  if (b->w.rank != 0) return;
  f->issue = median_ms(times[ISSUE], n);
  f->end = median_ms(times[END], n);
  f->done = median_ms(times[DONE], n);
  f->beside = way == DIRECT ? f->end : median_ms(beside, n);
  f->rounds = n;
}

static int rounds_of(double seconds)
{
  const double n = TURNS_S / seconds;

  if (n < 1) return ROUNDS_FEW;
  return n < ROUNDS_MIN ? ROUNDS_MIN : n > ROUNDS_MAX ? ROUNDS_MAX : (int)n;
}

/* Is the way's result of two checked runs and those between them? */
static bool measure(bench *b, int way, figures *f)
{
  const double seconds = checked_run(b, way, f);

  if (seconds < 0) return false;
  (void)usleep(CLEARED_MS * 1000);
  take_turns(b, way, rounds_of(2 * seconds), f);
  if (checked_run(b, way, f) < 0) return false;
  if (b->w.rank == 0) f->measured = true;
  return true;
}

/* ---- our ways ----------------------------------------------------------------------------- */

static void make_plan(bench *b, int way, figures *f)
{
  static const uint32_t lanes[2] = {XFER_LANE_DIRECT, XFER_LANE_PACKED};
  const double before = perf_used_mib(&b->w);
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  double took[N_TIMES];
  double began;
  double ms;

  options.lane = lanes[way];
  options.timeout_ms = TIMEOUT_MS;
  perf_barrier(&b->w);
  began = progress_now();
  if (xfer_plan_create(&b->plans[way], b->w.comm, b->c.tensors, b->c.n_tensors, &options) !=
          XFER_OK ||
      !perf_case_bind(&b->c, b->plans[way]) || xfer_plan_commit(b->plans[way]) != XFER_OK)
    perf_die(&b->w, table_way_name(way), xfer_last_error());
  ms = perf_max(&b->w, progress_now() - began) * 1e3;
  b->versions[way] = 0;
  run_once(b, way, took); /* the first is slower, and may take memory */
  const double mib = perf_max(&b->w, perf_used_mib(&b->w) - before);
  if (b->w.rank != 0) return;
  f->setup = ms;
  f->mib = mib;
}

static void measure_ours(bench *b, int way, figures *f)
{
  if (b->w.rank == 0) all->way = way;
  make_plan(b, way, f);
  (void)measure(b, way, f);
  table_way(&b->w, way, f);
}

/* ---- M2N's -------------------------------------------------------------------------------- */

/* The handle and the first call. */
static bool open_way(bench *b, int way, figures *f)
{
  const double before = perf_used_mib(&b->w);
  double took[N_TIMES];
  double began;

  perf_barrier(&b->w);
  began = progress_now();
  b->result = m2n_open(&b->m2n, &m2n_ways[way - FIRST_M2N]);
  run_once(b, way, took);
  const double ms = perf_max(&b->w, progress_now() - began) * 1e3;
  const double mib = perf_max(&b->w, perf_used_mib(&b->w) - before);
  if (!m2n_is_well(b, f)) return false;
  if (b->w.rank != 0) return true;
  f->setup = ms;
  f->mib = mib;
  return true;
}

static void measure_m2n(bench *b, int way, figures *f)
{
  const m2n_way *how = &m2n_ways[way - FIRST_M2N];
  bool ok;

  if (how->n_comms > 1 && b->c.n_tensors == 1) return; /* nothing that others could carry */
  if (all->hung[way] || all->failures[way] >= TRIES_MAX) {
    if (b->w.rank == 0) (void)snprintf(f->note, sizeof f->note, "given up, as above");
    table_way(&b->w, way, f);
    return;
  }
  (void)alarm(WAY_S);
  if (b->w.rank == 0) all->way = way;
  m2n_describe(&b->m2n, &b->w, current, &b->c);
  m2n_need_comms(&b->m2n, &b->w, how);
  ok = open_way(b, way, f) && measure(b, way, f);
  if (ok) b->result = m2n_close(&b->m2n);
  ok = ok && m2n_is_well(b, f);
  if (!ok) m2n_abandon(&b->m2n, how);
  if (!ok && b->w.rank == 0) all->failures[way]++;
  b->result = ncclSuccess;
  m2n_forget(&b->m2n);
  table_way(&b->w, way, f);
  perf_barrier(&b->w); /* what rank 0 wrote is there for all */
}

/* ---- a workload --------------------------------------------------------------------------- */

static void current_line(const perf_world *w, int i, char *text, size_t size)
{
  bench_tensor_line(bench_workload_tensor(current, i), w->n_train, text, size);
}

static bool make_case(bench *b)
{
  const perf_lines lines = {.n = bench_workload_tensors(current), .line = current_line};

  if (current->model != NULL)
    return perf_case_model(&b->c, &b->w, current->model, current->train, current->gen,
                           b->w.n_train);
  return perf_case_lines(&b->c, &b->w, &lines);
}

static void measure_workload(bench *b, int i)
{
  figures *of = all->of[i];
  double bytes;

  (void)alarm(MAKE_S);
  if (!make_case(b) || !perf_case_fill(&b->c, &b->w)) perf_die(&b->w, current->name, "memory");
  bytes = perf_max(&b->w, (double)b->c.dst_bytes);
  if (b->w.rank == 0) {
    all->gb[i] = bytes / 1e9;
    printf("%s: %zu tensors, %.3f GB to each that receives\n", current->name, b->c.n_tensors,
           all->gb[i]);
  }
  for (int way = DIRECT; way <= PACKED; way++)
    measure_ours(b, way, &of[way]);
  xfer_plan_destroy(b->plans[PACKED]);
  for (int way = FIRST_M2N; way < N_WAYS && current->model == NULL; way++)
    measure_m2n(b, way, &of[way]);
  (void)alarm(MAKE_S);
  xfer_plan_destroy(b->plans[DIRECT]);
  perf_case_free(&b->c, &b->w);
}

static bool is_wanted(const perf_world *w, const bench_workload *what)
{
  return (what->per_side == 0 || what->per_side == w->n_train) && perf_wanted(w, what->name);
}

/* Workloads from the one at `first` on, by processes that this one becomes and waits for. */
_Noreturn static void session(const perf_world *options, int first, double seconds)
{
  static bench b;

  b.w = *options;
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* ranks end with this one, and this with its parent */
  perf_ranks_start(&b.w.ranks, b.w.size, 0);
  b.w.rank = b.w.ranks.rank;
  (void)alarm(MAKE_S);
  perf_world_start(&b.w);
  if (b.w.rank == 0) all->started = true;
  for (int i = first; (current = bench_workload_get(i)) != NULL; i++) {
    const bool late = perf_max(&b.w, progress_now() - all->began) > seconds;

    perf_barrier(&b.w);
    if (b.w.rank == 0) {
      all->at = i;
      all->way = DIRECT;
    }
    if (is_wanted(&b.w, current) && !late) measure_workload(&b, i);
  }
  if (b.w.rank == 0) all->at = WORKLOADS_MAX;
  perf_barrier(&b.w);
  (void)fflush(stdout);
  _exit(EXIT_SUCCESS); /* M2N may have left what NCCL would wait for */
}

/* ---- processes ---------------------------------------------------------------------------- */

/* What a process was at when it ended before it should. */
static void note_the_end(int status)
{
  figures *f = &all->of[all->at][all->way];
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);

  f->measured = false;
  (void)snprintf(f->note, sizeof f->note, "its processes ended with status %d", code);
  printf("  %-15s not measured: %s\n", table_way_name(all->way), f->note);
  if (all->way >= FIRST_M2N) all->hung[all->way] = true;
}

static int run(const perf_world *options, double seconds)
{
  bool ended_early = false;

  for (int first = 0; first < WORKLOADS_MAX; first = all->at + 1) {
    int status = 0;
    pid_t pid;

    all->started = false;
    all->at = first;
    all->way = DIRECT;
    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) session(options, first, seconds);
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return EXIT_FAILURE;
    if (all->at == WORKLOADS_MAX) break;
    ended_early = true;
    if (!all->started) break; /* nor would the next */
    note_the_end(status);
  }
  return table_print(all) == 0 && !ended_early ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
  const int size = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2;
  const double seconds = argc > 2 ? strtod(argv[2], NULL) : 600;
  const perf_world options = {.size = size,
                              .n_train = size / 2,
                              .models = argc > 3 ? argv[3] : "models",
                              .only = argc > 4 ? argv[4] : NULL};

  if (size < 2 || size > 8 || size % 2 != 0) {
    fprintf(stderr, "beside_m2n GPUS [SECONDS [MODELS [NAMES]]]: 2, 4, 6 or 8 GPUs\n");
    return 2;
  }
  all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return EXIT_FAILURE;
  all->began = progress_now();
  return run(&options, seconds);
}
