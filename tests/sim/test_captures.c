/* Captures of graphs beside the library, and calls while the caller's stream captures. Names of
 * tests are rows of the review of the engine. */
#include "redistributes.h"

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <xfer/nccl.h>

enum { TIMEOUT_MS = 20000, RUNS = 60, LIVES = 40 };

static xfer_plan *plans[WORLD_RANKS];
static xfer_lane lane;

/* ---- E3: a program that captures all the time --------------------------------------------- */

static _Atomic bool stop;
static _Atomic int n_captured;
static _Atomic int n_invalid;

/* As inference engines do: in global mode, one graph after the other. */
static void *capture_main(void *unused)
{
  cudaStream_t stream = NULL;
  void *memory = NULL;

  (void)unused;
  NEED(cudaSetDevice(0) == cudaSuccess && cudaMalloc(&memory, 4096) == cudaSuccess);
  stream = world_stream();
  while (!atomic_load(&stop)) {
    cudaGraph_t graph = NULL;
    NEED(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    for (int i = 0; i < 5; i++) {
      if (cudaMemsetAsync(memory, i, 4096, stream) != cudaSuccess) break;
      world_sleep_ms(1);
    }
    const cudaError_t error = cudaStreamEndCapture(stream, &graph);
    if (error != cudaSuccess) (void)atomic_fetch_add(&n_invalid, 1);
    if (error == cudaSuccess) NEED(cudaGraphDestroy(graph) == cudaSuccess);
    (void)cudaGetLastError();
    (void)atomic_fetch_add(&n_captured, 1);
    world_sleep_ms(1);
  }
  NEED(cudaStreamDestroy(stream) == cudaSuccess && cudaFree(memory) == cudaSuccess);
  return NULL;
}

static void beside_captures(void (*work)(int rank))
{
  pthread_t thread;

  NEED(pthread_create(&thread, NULL, capture_main, NULL) == 0);
  world_go(work);
  atomic_store(&stop, true);
  (void)pthread_join(thread, NULL);
  NEED(n_captured > 3);
  NEED(n_invalid == 0);
}

static void set_up(int rank)
{
  tensor_make(&tensors[rank], EACH_EACH, rank, WIDTH);
  plans[rank] = world_plan(rank, &tensors[rank], 1, lane, TIMEOUT_MS);
  OK(xfer_plan_commit(plans[rank]));
}

static void many_runs(int rank)
{
  cudaStream_t stream = world_stream();

  for (uint64_t version = 1; version <= RUNS; version++)
    world_run(plans[rank], &tensors[rank], 1, version, stream);
  world_sleep_ms(700); /* for threads that look now and then */
  for (uint64_t version = RUNS + 1; version <= RUNS + 3; version++)
    world_run(plans[rank], &tensors[rank], 1, version, stream);
}

static void runs_beside_captures(comm_kind kind, xfer_lane l)
{
  lane = l;
  world_make(3, kind, (sim_config){.seed = 0});
  world_go(set_up);
  beside_captures(many_runs);
}

static void test_e3_captures_survive_runs_direct(void)
{
  runs_beside_captures(COMM_GATHER, XFER_LANE_DIRECT);
}

static void test_e3_captures_survive_runs_nccl(void)
{
  runs_beside_captures(COMM_NCCL, XFER_LANE_DIRECT);
}

static void test_e3_captures_survive_runs_packed(void)
{
  runs_beside_captures(COMM_NCCL, XFER_LANE_PACKED);
}

static void whole_lives(int rank)
{
  cudaStream_t stream = world_stream();

  for (int i = 0; i < LIVES; i++) {
    plans[rank] = world_plan(rank, &tensors[rank], 1, (xfer_lane)(i % 3), TIMEOUT_MS);
    OK(xfer_plan_commit(plans[rank]));
    world_run(plans[rank], &tensors[rank], 1, 1, stream);
    OK(xfer_plan_release(plans[rank]));
    OK(xfer_plan_commit(plans[rank]));
    world_run(plans[rank], &tensors[rank], 1, 2, stream);
    xfer_plan_destroy(plans[rank]);
    ranks_barrier();
  }
  xfer_comm_destroy(w.comms[rank]);
}

/* A comm of each maker is made while a stream captures. */
static void *make_comms(void *lent)
{
  unsigned char id[XFER_NCCL_ID_BYTES];
  xfer_comm *comm = NULL;

  NEED(cudaSetDevice(0) == cudaSuccess);
  OK(xfer_comm_create_cuda(&comm, world_gather_alone, NULL, 0, 1));
  xfer_comm_destroy(comm);
  OK(xfer_nccl_id(id));
  OK(xfer_comm_create_nccl_id(&comm, id, 0, 1));
  xfer_comm_destroy(comm);
  OK(xfer_comm_create_nccl(&comm, lent));
  xfer_comm_destroy(comm);
  return NULL;
}

static void test_e3_captures_survive_makers(void)
{
  cudaStream_t stream = NULL;
  cudaGraph_t graph = NULL;
  ncclComm_t lent = NULL;
  ncclUniqueId id;
  pthread_t thread;

  world_clear(1, (sim_config){.eager = true});
  NEED(cudaSetDevice(0) == cudaSuccess);
  NEED(ncclGetUniqueId(&id) == ncclSuccess && ncclCommInitRank(&lent, 1, id, 0) == ncclSuccess);
  stream = world_stream();
  NEED(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  NEED(pthread_create(&thread, NULL, make_comms, lent) == 0 && pthread_join(thread, NULL) == 0);
  NEED(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  NEED(cudaGraphDestroy(graph) == cudaSuccess);
}

static void make_tensor(int rank)
{
  tensor_make(&tensors[rank], EACH_EACH, rank, WIDTH);
}

static void test_e3_captures_survive_commits(void)
{
  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  world_go(make_tensor);
  beside_captures(whole_lives);
}

/* ---- E4, E6, E7: redistribute while a stream captures ------------------------------------- */

/* All ranks' streams capture: an error on each, and the captures live. */
static void all_capture(int rank)
{
  static const enum cudaStreamCaptureMode modes[] = {
      cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};
  cudaStream_t stream = world_stream();

  tensor_make(&tensors[rank], RING, rank, WIDTH);
  ranks_barrier();
  for (int i = 0; i < 3; i++) {
    cudaGraph_t graph = NULL;
    NEED(cudaStreamBeginCapture(stream, modes[i]) == cudaSuccess);
    ranks_barrier();
    const int64_t began = world_ms();
    NEED(redistribute(rank, stream) == XFER_ERR_STATE);
    NEED(world_ms() - began < 5000);
    ranks_barrier();
    NEED(cudaMemsetAsync(tensors[rank].bytes[TO], 0x5a, WIDTH, stream) == cudaSuccess);
    NEED(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    NEED(graph != NULL && cudaGraphDestroy(graph) == cudaSuccess);
    ranks_barrier();
    redistribute_well(rank, stream, (uint64_t)i + 1);
  }
}

static void test_e4_first_redistribute_while_the_stream_captures_gather(void)
{
  world_make(2, COMM_GATHER, (sim_config){.seed = 0});
  world_go(all_capture);
}

static void test_e4_first_redistribute_while_the_stream_captures_nccl(void)
{
  world_make(3, COMM_NCCL, (sim_config){.seed = 0});
  world_go(all_capture);
}

/* Rank 0's stream captures, the others' do not: all are told in good time, and the next call works.
 */
static void one_captures(int rank, bool first)
{
  cudaStream_t stream = world_stream();
  cudaGraph_t graph = NULL;

  tensor_make(&tensors[rank], RING, rank, WIDTH);
  ranks_barrier();
  if (!first) redistribute_well(rank, stream, 1);
  tensor_fill(&tensors[rank], 2, 0x77);
  if (rank == 0)
    NEED(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  if (rank != 0) tensor_open(&tensors[rank], 2);
  ranks_barrier();
  const int64_t began = world_ms();
  const xfer_status st = redistribute(rank, stream);
  NEED(rank == 0 ? st == XFER_ERR_STATE : st != XFER_OK);
  NEED(world_ms() - began < 5000);
  if (rank == 0) NEED(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  if (rank == 0) NEED(cudaGraphDestroy(graph) == cudaSuccess);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  if (rank != 0) tensor_close(&tensors[rank]);
  NEED_NO_VIOLATION();
  ranks_barrier();
  redistribute_well(rank, stream, 3);
}

static void one_captures_later(int rank)
{
  one_captures(rank, false);
}

static void one_captures_first(int rank)
{
  one_captures(rank, true);
}

static void test_e6_redistribute_tells_of_a_refused_rank_gather(void)
{
  world_make(2, COMM_GATHER, (sim_config){.seed = 0});
  world_go(one_captures_later);
}

static void test_e6_redistribute_tells_of_a_refused_rank_nccl(void)
{
  world_make(3, COMM_NCCL, (sim_config){.seed = 0});
  world_go(one_captures_later);
}

static void test_e7_redistribute_looks_at_the_stream_first_gather(void)
{
  world_make(2, COMM_GATHER, (sim_config){.seed = 0});
  world_go(one_captures_first);
}

static void test_e7_redistribute_looks_at_the_stream_first_nccl(void)
{
  world_make(3, COMM_NCCL, (sim_config){.seed = 0});
  world_go(one_captures_first);
}

/* A capture that the default stream would break is told as one of its own, and goes on. */
static void beside_a_capture(int rank)
{
  cudaStream_t other = NULL;
  cudaGraph_t graph = NULL;

  NEED(cudaStreamCreate(&other) == cudaSuccess);
  tensor_make(&tensors[rank], RING, rank, WIDTH);
  tensor_fill(&tensors[rank], 1, 0x77);
  ranks_barrier();
  if (rank == 0)
    NEED(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  ranks_barrier();
  NEED(redistribute(rank, NULL) == (rank == 0 ? XFER_ERR_STATE : XFER_ERR_PEER));
  NEED(strstr(xfer_last_error(), "the stream is capturing a graph") != NULL);
  NEED(tensor_is_all(&tensors[rank], 0x77));
  if (rank == 0) NEED(cudaStreamEndCapture(other, &graph) == cudaSuccess && graph != NULL);
  if (rank == 0) NEED(cudaGraphDestroy(graph) == cudaSuccess);
  ranks_barrier();
  redistribute_well(rank, NULL, 2);
  NEED(cudaStreamDestroy(other) == cudaSuccess);
}

static void test_e7_the_default_stream_beside_a_capture(void)
{
  world_make(2, COMM_GATHER, (sim_config){.seed = 0});
  world_go(beside_a_capture);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"e3_captures_survive_runs_direct", test_e3_captures_survive_runs_direct},
      {"e3_captures_survive_runs_nccl", test_e3_captures_survive_runs_nccl},
      {"e3_captures_survive_runs_packed", test_e3_captures_survive_runs_packed},
      {"e3_captures_survive_makers", test_e3_captures_survive_makers},
      {"e3_captures_survive_commits", test_e3_captures_survive_commits},
      {"e4_first_redistribute_while_the_stream_captures_gather",
       test_e4_first_redistribute_while_the_stream_captures_gather},
      {"e4_first_redistribute_while_the_stream_captures_nccl",
       test_e4_first_redistribute_while_the_stream_captures_nccl},
      {"e6_redistribute_tells_of_a_refused_rank_gather",
       test_e6_redistribute_tells_of_a_refused_rank_gather},
      {"e6_redistribute_tells_of_a_refused_rank_nccl",
       test_e6_redistribute_tells_of_a_refused_rank_nccl},
      {"e7_redistribute_looks_at_the_stream_first_gather",
       test_e7_redistribute_looks_at_the_stream_first_gather},
      {"e7_redistribute_looks_at_the_stream_first_nccl",
       test_e7_redistribute_looks_at_the_stream_first_nccl},
      {"e7_the_default_stream_beside_a_capture", test_e7_the_default_stream_beside_a_capture},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
