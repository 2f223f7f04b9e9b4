/*
 * Whole plans on GPUs through the public API, ranks being processes; every destination byte is
 * checked on the device.
 *
 *   test_ranks SUITE N_RANKS COMM [N] [SEED]      COMM is gather, nccl (from an id) or borrowed
 * (from a communicator)
 *
 * With `gather` ranks may share a GPU. Exit status 0 and a last line "ok", or 1; 77 when there are
 * too few GPUs.
 */
#include "chunks.h"
#include "random_line.h"
#include "rank_world.h"

#include <xfer/nccl.h>
#include <xfer/xfer.h>

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- random problems ---------------------------------------------------------------------- */

static void suite_random(int n_cases)
{
  static const uint32_t lanes[] = {XFER_LANE_AUTO, XFER_LANE_DIRECT, XFER_LANE_PACKED,
                                   XFER_LANE_BROADCAST};
  static const uint64_t windows[] = {0, 4096, 65536, 1000000};

  for (int i = 0; i < n_cases; i++) {
    tensor tensors[TENSORS_MAX];
    int n = (int)from_to(1, TENSORS_MAX);
    uint32_t lane = lanes[w.has_nccl ? i % 4 : i % 2];
    uint64_t window = windows[from_to(0, 3)];
    for (int t = 0; t < n; t++) {
      char line[700];
      random_line(&w.random, w.ranks.size, line, sizeof line);
      tensor_make(&tensors[t], t, line, from_to(0, 1) == 1);
    }
    CUDA(cudaStreamSynchronize, (w.stream));
    bool is_staged = i % 5 == 0; /* then destinations are written in wait() */
    w.plan_flags = (i % 3 == 0 ? XFER_PLAN_VERIFY : 0) | (is_staged ? XFER_PLAN_STAGED : 0);
    xfer_plan *plan = plan_make(tensors, n, lane, window);
    w.plan_flags = 0;
    OK(xfer_plan_commit(plan));
    for (uint64_t version = 1; version <= 2; version++) {
      poison(tensors, n);
      OK(xfer_plan_run(plan, version, w.stream));
      if (!is_staged) check(tensors, n);
      OK(xfer_plan_wait(plan, 0));
      if (is_staged) check(tensors, n);
    }
    if (wrong_bytes() != 0) {
      for (int t = 0; t < n; t++)
        fprintf(stderr, "case %d, lane %u, window %llu%s: %s\n", i, lane,
                (unsigned long long)window, is_staged ? ", staged" : "", tensors[t].line);
    }
    EXPECT(wrong_bytes() == 0, "wrong bytes");
    plan_end(plan, tensors, n);
  }
}

/* ---- back-to-back runs -------------------------------------------------------------------- */

static void suite_repeat(int n_runs)
{
  tensor tensors[TENSORS_MAX];
  int n = field_tensors(tensors);

  CUDA(cudaStreamSynchronize, (w.stream));
  for (uint32_t lane = XFER_LANE_DIRECT; lane <= (w.has_nccl ? XFER_LANE_PACKED : XFER_LANE_DIRECT);
       lane++) {
    xfer_plan *plan = plan_make(tensors, n, lane, 0);
    OK(xfer_plan_commit(plan));
    int n_here = lane == XFER_LANE_DIRECT ? n_runs : n_runs / 10 + 1;
    for (int i = 1; i <= n_here; i++) {
      poison(tensors, n);
      OK(xfer_plan_run(plan, (uint64_t)i, w.stream));
      check(tensors, n);
      OK(xfer_plan_wait(plan, 0));
    }
    EXPECT(wrong_bytes() == 0, "wrong bytes");
    xfer_plan_destroy(plan);
    barrier();
  }
  tensors_free(tensors, n);
}

/* xfer_redistribute enqueues: nobody waits between the calls. */
static void suite_redistribute(int n_runs)
{
  tensor tensors[TENSORS_MAX];
  int n = field_tensors(tensors);

  for (int i = 0; i < n_runs; i++) {
    const tensor *t = &tensors[i % n];
    poison(t, 1);
    OK(xfer_redistribute(w.comm, t->src, &t->views[0], t->dst, &t->views[1], w.stream));
    check(t, 1);
  }
  EXPECT(wrong_bytes() == 0, "wrong bytes");
  barrier();
  tensors_free(tensors, n);
}

/* ---- memory that moves, and errors -------------------------------------------------------- */

/* Memory is freed and allocated anew while a plan is committed: a named error; bound again, all is
 * well. */
static void suite_remap(int n_rounds)
{
  tensor tensors[TENSORS_MAX];
  int n = field_tensors(tensors);
  uint64_t version = 0;

  CUDA(cudaStreamSynchronize, (w.stream));
  xfer_plan *plan = plan_make(tensors, n, XFER_LANE_AUTO, 0);
  for (int i = 0; i < n_rounds; i++) {
    OK(xfer_plan_commit(plan));
    run_and_check(plan, ++version, tensors, n);
    if (i % 2 == 0) OK(xfer_plan_release(plan)); /* the polite way */
    barrier();
    tensors_free(tensors, n);
    (void)field_tensors(tensors);
    CUDA(cudaStreamSynchronize, (w.stream));
    xfer_status st = xfer_plan_run(plan, version + 1, w.stream);
    EXPECT(st == XFER_ERR_STATE, "memory was freed, and a run did not notice");
    barrier();
    bind_all(plan, tensors, n);
  }
  OK(xfer_plan_commit(plan));
  run_and_check(plan, ++version, tensors, n);
  OK(xfer_plan_commit(plan)); /* nothing changed */
  run_and_check(plan, ++version, tensors, n);
  plan_end(plan, tensors, n);
}

static void renew(const tensor *tensors, int n)
{
  for (int i = 0; i < n; i++) {
    for (int side = 0; side < 2; side++)
      if (tensors[i].n_bytes[side] > 0)
        chunks_renew(tensors[i].memory[side], tensors[i].n_bytes[side], w.leaves);
    tensor_fill(&tensors[i]);
  }
}

static bool says(const xfer_plan *plan, const char *words)
{
  char *text = NULL;

  OK(xfer_plan_print(plan, &text, 0));
  const bool found = strstr(text, words) != NULL;
  xfer_text_free(text);
  return found;
}

/* Memory in chunks that leave the process is written directly; unmapped and mapped anew at the same
 * addresses, it is a named error until it is bound again. Chunks that do not leave take slots,
 * or cannot be sent. */
static void suite_chunks(int n_rounds)
{
  tensor tensors[TENSORS_MAX];
  int n;
  uint64_t version = 0;

  w.chunked = true;
  w.leaves = true;
  n = field_tensors(tensors);
  CUDA(cudaStreamSynchronize, (w.stream));
  xfer_plan *plan = plan_make(tensors, n, XFER_LANE_DIRECT, 0);
  for (int i = 0; i < n_rounds; i++) {
    OK(xfer_plan_commit(plan));
    run_and_check(plan, ++version, tensors, n);
    barrier();
    renew(tensors, n);
    CUDA(cudaStreamSynchronize, (w.stream));
    xfer_status st = xfer_plan_run(plan, version + 1, w.stream);
    EXPECT(st == XFER_ERR_STATE, "memory was remapped, and a run did not notice");
    barrier();
    bind_all(plan, tensors, n);
  }
  xfer_plan_destroy(plan);
  barrier();
  w.leaves = false;
  renew(tensors, n);
  if (!w.has_nccl && w.ranks.size > 1) {
    plan = plan_make(tensors, n, XFER_LANE_AUTO, 0);
    EXPECT(xfer_plan_commit(plan) == XFER_ERR_UNSUPPORTED, "there is a way after all");
    EXPECT(strstr(xfer_last_error(), "neither of cudaMalloc nor in chunks") != NULL,
           xfer_last_error());
    xfer_plan_destroy(plan);
    barrier();
  }
  if (w.has_nccl) {
    plan = plan_make(tensors, n, XFER_LANE_AUTO, 0);
    OK(xfer_plan_commit(plan));
    EXPECT(!says(plan, "direct: "), "what does not leave was mapped");
    EXPECT(w.ranks.size == 1 || says(plan, "packed: ") || says(plan, "broadcast"), "no way");
    run_and_check(plan, 1, tensors, n);
    xfer_plan_destroy(plan);
    barrier();
  }
  tensors_free(tensors, n);
}

static void suite_errors(int unused)
{
  tensor tensors[TENSORS_MAX];
  int n = field_tensors(tensors);
  cudaGraph_t graph = NULL;
  int last = w.ranks.size - 1;

  (void)unused;
  CUDA(cudaStreamSynchronize, (w.stream));
  xfer_plan *plan = plan_make(tensors, n, XFER_LANE_AUTO, 0);
  EXPECT(xfer_plan_run(plan, 1, w.stream) == XFER_ERR_STATE, "not committed");
  xfer_view pageable = xfer_view_dense(malloc(tensors[2].n_bytes[1] + 1));
  if (w.ranks.rank == last) OK(xfer_plan_bind(plan, 2, &tensors[2].views[0], &pageable));
  xfer_status st = xfer_plan_commit(plan);
  EXPECT(st == (w.ranks.rank == last ? XFER_ERR_ARG : XFER_ERR_PEER), xfer_last_error());
  EXPECT(strstr(xfer_last_error(), "pageable") != NULL, xfer_last_error());
  if (w.ranks.rank == last) OK(xfer_plan_bind(plan, 2, &tensors[2].views[0], &tensors[2].views[1]));
  OK(xfer_plan_commit(plan));
  CUDA(cudaStreamBeginCapture, (w.stream, cudaStreamCaptureModeThreadLocal));
  EXPECT(xfer_plan_run(plan, 1, w.stream) == XFER_ERR_STATE, "a capturing stream");
  CUDA(cudaStreamEndCapture, (w.stream, &graph));
  if (graph != NULL) CUDA(cudaGraphDestroy, (graph));
  run_and_check(plan, 1, tensors, n);
  plan_end(plan, tensors, n);
  free(pageable.base);
}

/*
 * The last rank dies between two runs, or right after it has enqueued one. The others must not
 * hang: within the deadline and some seconds each call comes back, the last wait with an error.
 */
static void suite_kill(int in_run)
{
  tensor tensors[TENSORS_MAX];
  int n = field_tensors(tensors);
  xfer_status st = XFER_OK;

  CUDA(cudaStreamSynchronize, (w.stream));
  xfer_plan *plan = plan_make(tensors, n, XFER_LANE_AUTO, 0);
  OK(xfer_plan_commit(plan));
  run_and_check(plan, 1, tensors, n);
  barrier();
  perf_ranks_patience(&w.ranks, DEADLINE_MS / 1000);
  (void)alarm(6 * DEADLINE_MS / 1000);
  if (w.ranks.rank == w.ranks.size - 1) {
    if (in_run != 0) OK(xfer_plan_run(plan, 2, w.stream));
    (void)kill(getpid(), SIGKILL);
  }
  st = xfer_plan_run(plan, 2, w.stream);
  if (st == XFER_OK) st = xfer_plan_wait(plan, 0);
  EXPECT(st != XFER_OK, "a rank died and nobody noticed");
  CUDA(cudaStreamSynchronize, (w.stream)); /* released */
  printf("rank %d, told: %s\n", w.ranks.rank, xfer_last_error());
  xfer_plan_destroy(plan);
  xfer_comm_destroy(w.comm);
  (void)fflush(NULL);
  _exit(0);
}

int main(int argc, char **argv)
{
  static const struct {
    const char *name;
    void (*run)(int n);
    int n; /* default */
  } suites[] = {{"random", suite_random, 100},
                {"repeat", suite_repeat, 1000},
                {"redistribute", suite_redistribute, 400},
                {"domains", suite_domains, 100},
                {"remap", suite_remap, 6},
                {"chunks", suite_chunks, 4},
                {"errors", suite_errors, 0},
                {"kill", suite_kill, 1},
                {"late", suite_late, 3},
                {"calls", suite_calls, 3},
                {"stopped", suite_stopped, 0},
                {"crash", suite_crash, 0},
                {"waits", suite_waits, 4},
                {"captures", suite_captures, 1000},
                {"queue", suite_queue, 0}};
  const size_t n_suites = sizeof suites / sizeof suites[0];
  size_t chosen = 0;

  if (argc < 4) {
    fprintf(stderr, "test_ranks SUITE N_RANKS gather|nccl|borrowed [N] [SEED]\n");
    return 2;
  }
  while (chosen < n_suites && strcmp(argv[1], suites[chosen].name) != 0)
    chosen++;
  if (chosen == n_suites) {
    fprintf(stderr, "no suite %s\n", argv[1]);
    return 2;
  }
  perf_ranks_start(&w.ranks, atoi(argv[2]), strcmp(argv[1], "kill") == 0);
  world_make(argv[3], argc > 5 ? (uint64_t)atoll(argv[5]) : 1);
  suites[chosen].run(argc > 4 ? atoi(argv[4]) : suites[chosen].n);
  xfer_comm_destroy(w.comm);
  if (w.borrowed != NULL) (void)ncclCommDestroy(w.borrowed);
  barrier();
  if (w.ranks.rank == 0) printf("ok\n");
  return 0;
}
