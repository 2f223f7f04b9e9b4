/* Runs that go wrong, and captures beside runs, as tests/sim has them, on real GPUs. Names are rows
 * of the review of the engine. */
#include "rank_world.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SHORT_MS = 1500, IN_TIME_MS = 15000 };

static int64_t now_ms(void)
{
  struct timespec t;

  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void sleep_ms(int ms)
{
  (void)usleep((useconds_t)ms * 1000);
}

static bool is_last(void)
{
  return w.ranks.rank == w.ranks.size - 1;
}

static void poison_all(const tensor *tensors, int n)
{
  poison(tensors, n);
  CUDA(cudaStreamSynchronize, (w.stream));
}

static void expect_poison(const tensor *tensors, int n, const char *why)
{
  for (int i = 0; i < n; i++) {
    unsigned char *bytes = malloc(tensors[i].n_bytes[1] + 1);

    if (tensors[i].n_bytes[1] > 0)
      CUDA(cudaMemcpy,
           (bytes, tensors[i].memory[1], tensors[i].n_bytes[1], cudaMemcpyDeviceToHost));
    for (size_t k = 0; k < tensors[i].n_bytes[1]; k++)
      EXPECT(bytes[k] == POISON, why);
    free(bytes);
  }
}

static void expect_failed_wait(xfer_plan *plan, const char *words)
{
  const int64_t began = now_ms();

  EXPECT(xfer_plan_wait(plan, 0) != XFER_OK, "the run has failed, and wait says that it is well");
  EXPECT(now_ms() - began < IN_TIME_MS, "the wait took too long");
  EXPECT(strstr(xfer_last_error(), words) != NULL, xfer_last_error());
}

/* E8: what wait has given back is the caller's. */
static void expect_left_alone(const tensor *tensors, int n)
{
  barrier();
  poison_all(tensors, n);
  sleep_ms(200);
  expect_poison(tensors, n, "written after the wait had failed");
  barrier();
}

static void recover(xfer_plan *plan, uint64_t version, const tensor *tensors, int n)
{
  OK(xfer_plan_commit(plan));
  run_and_check(plan, version, tensors, n);
}

static xfer_plan *plan_begin(const tensor *tensors, int n, uint32_t lane, uint64_t window)
{
  CUDA(cudaStreamSynchronize, (w.stream));
  barrier(); /* the plan's deadline may be shorter than a GPU takes to start */
  xfer_plan *plan = plan_make(tensors, n, lane, window);
  OK(xfer_plan_commit(plan));
  run_and_check(plan, 1, tensors, n);
  return plan;
}

/* ---- E1, E2, E6, E8: a peer that is late, a peer that refuses ------------------------------ */

void suite_late(int n_rounds)
{
  tensor tensors[TENSORS_MAX];
  const int n = field_tensors(tensors);
  uint64_t version = 1;

  w.timeout_ms = SHORT_MS;
  xfer_plan *plan = plan_begin(tensors, n, XFER_LANE_DIRECT, 0);
  for (int i = 0; i < n_rounds; i++) {
    poison_all(tensors, n);
    barrier();
    if (!is_last()) { /* E1: their deadline passes while the last rank still reads its weights */
      OK(xfer_plan_run(plan, ++version, w.stream));
      CUDA(cudaStreamSynchronize, (w.stream));
      sleep_ms(100);
    }
    barrier();
    if (is_last()) {
      expect_poison(tensors, n, "E1: written before it said that it may be");
      (void)!xfer_plan_run(plan, ++version, w.stream);
    }
    expect_failed_wait(plan, "");
    expect_left_alone(tensors, n);
    recover(plan, ++version, tensors, n); /* E2: as if nothing had been */

    poison_all(tensors, n);
    barrier();
    version++;
    if (is_last()) {
      OK(xfer_plan_refuse(plan, "no weights today"));
    } else {
      const xfer_status st = xfer_plan_run(plan, version, w.stream);
      EXPECT(st == XFER_OK || st == XFER_ERR_PEER, xfer_last_error());
    }
    expect_failed_wait(plan, "no weights today");
    if (is_last()) expect_poison(tensors, n, "E1: written though it refused");
    expect_left_alone(tensors, n);
    recover(plan, ++version, tensors, n);
  }
  plan_end(plan, tensors, n);
}

static xfer_status redistribute(const tensor *t)
{
  return xfer_redistribute(w.comm, t->src, &t->views[0], t->dst, &t->views[1], w.stream);
}

static void CUDART_CB doze(void *unused)
{
  (void)unused;
  sleep_ms(2 * SHORT_MS);
}

/* Was this rank told, or another one? */
static bool was_told(xfer_status st)
{
  xfer_status all[64];
  bool any = false;

  EXPECT(perf_ranks_all_gather(&w.ranks, all, &st, sizeof st) == 0, "a rank did not come");
  for (int r = 0; r < w.ranks.size; r++)
    any = any || all[r] != XFER_OK;
  return any;
}

/* The deadline of a call passes after it has returned, since the last rank's stream is busy:
 * xfer_comm_check() says so wherever the data has not come, and later to who has sent it; later
 * calls are well. */
void suite_calls(int n_rounds)
{
  tensor tensors[TENSORS_MAX];
  const int n = field_tensors(tensors);
  const tensor *t = &tensors[0];

  for (int i = 0; i < n_rounds; i++) {
    xfer_status st;
    xfer_status later;

    OK(xfer_comm_set_timeout(w.comm, DEADLINE_MS));
    for (int k = 0; k < 4 && redistribute(&tensors[1]) != XFER_OK; k++)
      ; /* where a rank has not told of its failure yet */
    poison(t, 1);
    OK(redistribute(t));
    check(t, 1);
    EXPECT(wrong_bytes() == 0, "wrong bytes after a call that is well");
    OK(xfer_comm_check(w.comm));
    OK(xfer_comm_set_timeout(w.comm, SHORT_MS));
    poison_all(t, 1);
    barrier();
    if (is_last()) CUDA(cudaLaunchHostFunc, (w.stream, doze, NULL));
    OK(redistribute(t));
    CUDA(cudaStreamSynchronize, (w.stream));
    st = xfer_comm_check(w.comm);
    check(t, 1);
    EXPECT(wrong_bytes() == 0 || st != XFER_OK, "wrong bytes, and the comm says that it is well");
    barrier();
    later = xfer_comm_check(w.comm);
    EXPECT(was_told(st != XFER_OK ? st : later), "nobody gave up waiting");
    CUDA(cudaMemsetAsync, (w.wrong, 0, sizeof *w.wrong, w.stream));
    barrier();
  }
  tensors_free(tensors, n);
}

/* A rank's process is stopped in the middle of a run, and goes on when the others have given up,
 * which breaks the comm. */
void suite_stopped(int unused)
{
  tensor tensors[TENSORS_MAX];
  const int n = field_tensors(tensors);
  pid_t pids[64];
  const pid_t mine = getpid();

  (void)unused;
  EXPECT(perf_ranks_all_gather(&w.ranks, pids, &mine, sizeof mine) == 0, "a rank did not come");
  w.timeout_ms = SHORT_MS;
  xfer_plan *plan = plan_begin(tensors, n, XFER_LANE_DIRECT, 0);
  poison_all(tensors, n);
  barrier();
  OK(xfer_plan_run(plan, 2, w.stream));
  if (is_last()) (void)raise(SIGSTOP);
  expect_failed_wait(plan, "");
  if (w.ranks.rank == 0) (void)kill(pids[w.ranks.size - 1], SIGCONT);
  expect_left_alone(tensors, n);
  EXPECT(xfer_plan_commit(plan) == XFER_ERR_COMM, xfer_last_error());
  plan_end(plan, tensors, n);
}

/* The program of a rank breaks its own GPU: the library's calls end there, and the others are told.
 */
void suite_crash(int unused)
{
  tensor tensors[TENSORS_MAX];
  const int n = field_tensors(tensors);
  const int64_t began = now_ms();

  (void)unused;
  w.timeout_ms = SHORT_MS;
  xfer_plan *plan = plan_begin(tensors, n, XFER_LANE_AUTO, 0);
  barrier();
  if (is_last()) {
    tensor nowhere = tensors[0];
    nowhere.views[1] = xfer_view_dense((void *)(uintptr_t)16); /* NOLINT: not mapped */
    (void)part_visit(&nowhere, false, NULL);
    EXPECT(cudaStreamSynchronize(w.stream) != cudaSuccess, "the GPU did not break");
  }
  barrier();
  (void)!xfer_plan_run(plan, 2, w.stream);
  expect_failed_wait(plan, "");
  printf("rank %d, told: %s\n", w.ranks.rank, xfer_last_error());
  xfer_plan_destroy(plan);
  xfer_comm_destroy(w.comm);
  EXPECT(now_ms() - began < 3 * IN_TIME_MS, "it took too long");
  barrier();
  (void)fflush(NULL);
  _exit(0);
}

/* ---- E5: a wait that is too short ---------------------------------------------------------- */

static void CUDART_CB hold(void *unused)
{
  (void)unused;
  sleep_ms(150);
}

static bool is_other_source(void)
{
  return w.ranks.rank > 0 && w.ranks.rank < w.ranks.size / 2;
}

void suite_waits(int n_rounds)
{
  tensor tensors[TENSORS_MAX];
  const int n = field_tensors(tensors);

  for (uint32_t lane = XFER_LANE_DIRECT; lane <= (w.has_nccl ? XFER_LANE_PACKED : XFER_LANE_DIRECT);
       lane++) {
    xfer_plan *plan = plan_begin(tensors, n, lane, 0);
    for (int i = 0; i < n_rounds; i++) {
      const bool is_short = i % 2 == 0 || is_last(); /* all ranks, then one alone */
      xfer_status st = XFER_ERR_TIMEOUT;
      poison_all(tensors, n);
      barrier();
      if (w.ranks.rank == 0) CUDA(cudaLaunchHostFunc, (w.stream, hold, NULL));
      OK(xfer_plan_run(plan, (uint64_t)i + 2, w.stream));
      if (is_short) st = xfer_plan_wait(plan, 20);
      /* Another source has nothing to do with rank 0, so it may be done and wait for the others. */
      EXPECT(st == XFER_ERR_TIMEOUT || (st == XFER_OK && is_other_source()), xfer_last_error());
      if (st != XFER_OK) OK(xfer_plan_wait(plan, 0));
      check(tensors, n);
      EXPECT(wrong_bytes() == 0, "wrong bytes");
    }
    xfer_plan_destroy(plan);
    barrier();
  }
  tensors_free(tensors, n);
}

/* ---- E3, E4, E7: captures ------------------------------------------------------------------ */

static struct {
  _Atomic bool stop;
  _Atomic int n;
  _Atomic int n_invalid;
} captures;

/* The calling thread's own calls disturb no capture; the library is called without. Returns the
 * mode before. */
static enum cudaStreamCaptureMode in_mode(enum cudaStreamCaptureMode mode)
{
  CUDA(cudaThreadExchangeStreamCaptureMode, (&mode));
  return mode;
}

/* As inference engines do: in global mode, one graph after the other. */
static void *capture_all_the_time(void *memory)
{
  cudaStream_t stream = NULL;
  int n_gpus = 1;

  CUDA(cudaGetDeviceCount, (&n_gpus));
  CUDA(cudaSetDevice, (w.ranks.rank % n_gpus));
  CUDA(cudaStreamCreateWithFlags, (&stream, cudaStreamNonBlocking));
  while (!captures.stop) {
    cudaGraph_t graph = NULL;
    CUDA(cudaStreamBeginCapture, (stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 5; i++) {
      if (cudaMemsetAsync(memory, i, 4096, stream) != cudaSuccess) break;
      (void)usleep(50);
    }
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess)
      captures.n_invalid++;
    else
      CUDA(cudaGraphDestroy, (graph));
    (void)cudaGetLastError();
    captures.n++;
  }
  CUDA(cudaStreamDestroy, (stream));
  return NULL;
}

static void runs_beside_captures(int n_runs)
{
  tensor tensors[TENSORS_MAX];
  const int n = field_tensors(tensors);
  void *memory = NULL;
  pthread_t thread;

  CUDA(cudaMalloc, (&memory, 4096));
  CUDA(cudaStreamSynchronize, (w.stream));
  for (uint32_t lane = XFER_LANE_DIRECT; lane <= (w.has_nccl ? XFER_LANE_PACKED : XFER_LANE_DIRECT);
       lane++) {
    xfer_plan *first = plan_make(tensors, n, lane, 0);
    OK(xfer_plan_commit(first)); /* NCCL makes communicators beside no capture in global mode */
    xfer_plan_destroy(first);
    barrier();
    captures.stop = false;
    captures.n = 0;
    EXPECT(pthread_create(&thread, NULL, capture_all_the_time, memory) == 0, "thread");
    for (int i = 0, life = 0; i < n_runs; life++) { /* whole lives, each of a tenth of the runs */
      xfer_plan *plan = plan_make(tensors, n, lane, 0);
      OK(xfer_plan_commit(plan));
      for (int k = 0; k < n_runs / 10 + 1 && i < n_runs; k++, i++) {
        enum cudaStreamCaptureMode before = in_mode(cudaStreamCaptureModeRelaxed);
        poison(tensors, n);
        (void)in_mode(before);
        OK(xfer_plan_run(plan, (uint64_t)k + 1, w.stream));
        before = in_mode(cudaStreamCaptureModeRelaxed);
        check(tensors, n);
        (void)in_mode(before);
        OK(xfer_plan_wait(plan, 0));
      }
      xfer_plan_destroy(plan);
      barrier();
    }
    while (captures.n < n_runs)
      sleep_ms(1);
    captures.stop = true;
    (void)pthread_join(thread, NULL);
    EXPECT(wrong_bytes() == 0, "wrong bytes");
    printf("rank %d: %d captures in global mode beside %d runs, %d invalidated\n", w.ranks.rank,
           captures.n, n_runs, captures.n_invalid);
    EXPECT(captures.n_invalid == 0, "E3: captures were invalidated");
  }
  CUDA(cudaFree, (memory));
  tensors_free(tensors, n);
}

/* The first call of all while streams capture: refused in good time, and the captures live. Then
 * while rank 0's captures alone. */
static void redistribute_while_capturing(void)
{
  static const enum cudaStreamCaptureMode modes[] = {
      cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};
  tensor tensors[TENSORS_MAX];
  const int n = field_tensors(tensors);

  CUDA(cudaStreamSynchronize, (w.stream));
  for (int i = 0; i < 6; i++) {
    const bool captures_here = i < 3 || w.ranks.rank == 0;
    cudaGraph_t graph = NULL;

    barrier();
    if (captures_here) CUDA(cudaStreamBeginCapture, (w.stream, modes[i % 3]));
    barrier();
    const int64_t began = now_ms();
    const xfer_status st = redistribute(&tensors[0]);
    EXPECT(captures_here ? st == XFER_ERR_STATE : st == XFER_ERR_PEER, xfer_last_error());
    EXPECT(now_ms() - began < IN_TIME_MS, "E7: it took too long");
    barrier();
    if (captures_here) {
      CUDA(cudaStreamEndCapture, (w.stream, &graph));
      EXPECT(graph != NULL, "E4: the capture was lost");
      CUDA(cudaGraphDestroy, (graph));
    }
    poison(tensors, 1);
    OK(redistribute(&tensors[0]));
    check(tensors, 1);
    EXPECT(wrong_bytes() == 0, "wrong bytes");
  }
  barrier();
  tensors_free(tensors, n);
}

void suite_captures(int n_runs)
{
  redistribute_while_capturing();
  runs_beside_captures(n_runs);
}

/* ---- E2, E10: messages for which nobody comes, more than a stream's queue takes ------------- */

void suite_queue(int unused)
{
  tensor t;
  char line[128];

  (void)unused;
  w.timeout_ms = SHORT_MS;
  (void)snprintf(line, sizeof line, "u8[614400] (%d)@0-%d:R -> (1)@%d:R", w.ranks.size - 1,
                 w.ranks.size - 2, w.ranks.size - 1);
  tensor_make(&t, 0, line, false);
  xfer_plan *plan = plan_begin(&t, 1, XFER_LANE_PACKED, 1 << 10);
  poison_all(&t, 1);
  barrier();
  if (!is_last()) {
    const int64_t began = now_ms();
    const xfer_status st = xfer_plan_run(plan, 2, w.stream);
    EXPECT(st == XFER_ERR_TIMEOUT || st == XFER_ERR_PEER || st == XFER_OK, xfer_last_error());
    expect_failed_wait(plan, "");
    EXPECT(now_ms() - began < IN_TIME_MS, "it took too long");
  }
  barrier();
  if (is_last()) {
    expect_poison(&t, 1, "written by a run in which it was not");
    EXPECT(xfer_plan_run(plan, 2, w.stream) != XFER_OK || xfer_plan_wait(plan, 0) != XFER_OK,
           "the others have failed");
  }
  expect_left_alone(&t, 1);
  plan_end(plan, &t, 1);
}
