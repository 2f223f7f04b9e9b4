/* Captures of graphs beside the library, and calls while the caller's stream captures. Names of
 * tests are rows of the review of the engine. */
#include "world.h"

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <xfer/nccl.h>

enum { WIDTH = 3000, TIMEOUT_MS = 20000, RUNS = 60, LIVES = 40 };

static tensor tensors[WORLD_RANKS];
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
static int gather_alone(void *context, void *all, const void *mine, size_t n_bytes)
{
  (void)context;
  memcpy(all, mine, n_bytes);
  return 0;
}

static void *make_comms(void *lent)
{
  unsigned char id[XFER_NCCL_ID_BYTES];
  xfer_comm *comm = NULL;

  NEED(cudaSetDevice(0) == cudaSuccess);
  OK(xfer_comm_create_cuda(&comm, gather_alone, NULL, 0, 1));
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

static xfer_status redistribute(int rank, cudaStream_t stream)
{
  const tensor *t = &tensors[rank];
  const xfer_view src = xfer_view_dense(t->bytes[FROM]);
  const xfer_view dst = xfer_view_dense(t->bytes[TO]);

  return xfer_redistribute(w.comms[rank], t->layouts[FROM], &src, t->layouts[TO], &dst, stream);
}

static void redistribute_well(int rank, cudaStream_t stream, uint64_t key)
{
  tensor_fill(&tensors[rank], key, 0x5a);
  tensor_open(&tensors[rank], key);
  OK(redistribute(rank, stream));
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  tensor_close(&tensors[rank]);
  NEED(tensor_holds(&tensors[rank], key));
  NEED_NO_VIOLATION();
  ranks_barrier();
}

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

/* A run that fails on one rank after the other's call has returned: the next call says so, and the
 * ones after it work. */
static void one_run_fails(int rank)
{
  const sim_fault fault = {.name = "cudaEventRecord", .rank = 0, .nth = 1, .code = 2};
  cudaStream_t stream = world_stream();

  OK(xfer_comm_set_timeout(w.comms[rank], 3000));
  tensor_make(&tensors[rank], RING, rank, WIDTH);
  for (uint64_t i = 0; i < 12; i++) {
    redistribute_well(rank, stream, 2 * i + 1);
    if (rank == 0) sim_fault_add(&fault);
    ranks_barrier();
    tensor_open(&tensors[rank], 2 * i + 2);
    (void)!redistribute(rank, stream);
    ranks_barrier();
    if (rank == 0) sim_fault_clear();
    ranks_barrier();
    (void)!redistribute(rank, stream);
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    tensor_close(&tensors[rank]);
    ranks_barrier();
  }
}

static void test_e6_redistribute_goes_on_after_a_run_that_failed(void)
{
  world_make(2, COMM_GATHER, (sim_config){.eager = true});
  world_go(one_run_fails);
}

static void *let_go_later(void *unused)
{
  world_sleep_ms(100);
  sim_hold(1, false);
  return unused;
}

/* A run that does not begin on rank 0, of which all have said that they will: the others' streams
 * go on at once. The run before it is as it should be, also where rank 1's device is late for it.
 */
static void one_run_does_not_begin(int rank, bool late)
{
  const sim_fault fault = {.name = "cudaStreamIsCapturing", .rank = 0, .nth = 2, .code = 2};
  cudaStream_t stream = world_stream();
  pthread_t thread;

  late = late && rank == 1;
  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  tensor_make(&tensors[rank], RING, rank, WIDTH);
  for (int side = FROM; side <= TO; side++)
    OK(xfer_comm_register(w.comms[rank], tensors[rank].bytes[side]));
  for (uint64_t i = 1; i < 9; i += 2) {
    const int64_t began = world_ms();

    redistribute_well(rank, stream, i);
    if (late) sim_hold(1, true);
    tensor_fill(&tensors[rank], i + 1, 0x5a);
    tensor_open(&tensors[rank], i + 1);
    OK(redistribute(rank, stream));
    if (rank == 0) sim_fault_add(&fault);
    if (late) NEED(pthread_create(&thread, NULL, let_go_later, NULL) == 0);
    const xfer_status st = redistribute(rank, stream);
    NEED(rank == 0 ? st == XFER_ERR_NOMEM : st == XFER_OK || st == XFER_ERR_PEER);
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    NEED(world_ms() - began < TIMEOUT_MS / 2);
    if (late) NEED(pthread_join(thread, NULL) == 0);
    NEED(tensor_holds(&tensors[rank], i + 1));
    ranks_barrier();
    sim_fault_clear();
    ranks_barrier();
    (void)!redistribute(rank, stream); /* says so where a rank has not heard of it yet */
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    NEED(world_ms() - began < TIMEOUT_MS / 2);
    tensor_close(&tensors[rank]);
    ranks_barrier();
  }
}

static void one_does_not_begin(int rank)
{
  one_run_does_not_begin(rank, false);
}

static void one_does_not_begin_behind_a_late_one(int rank)
{
  one_run_does_not_begin(rank, true);
}

static void *let_spare_go_later(void *unused)
{
  world_sleep_ms(50);
  sim_hold(w.n, false);
  return unused;
}

/* The stream waits for what runs on the spare device, which is held. */
static void put_behind_the_spare(cudaStream_t stream)
{
  cudaStream_t other = NULL;
  cudaEvent_t event = NULL;

  NEED(cudaSetDevice(w.n) == cudaSuccess);
  NEED(cudaStreamCreate(&other) == cudaSuccess && cudaEventCreate(&event) == cudaSuccess);
  sim_hold(w.n, true);
  NEED(cudaEventRecord(event, other) == cudaSuccess);
  NEED(cudaSetDevice(1) == cudaSuccess);
  NEED(cudaStreamWaitEvent(stream, event, 0) == cudaSuccess);
  NEED(cudaEventDestroy(event) == cudaSuccess && cudaStreamDestroy(other) == cudaSuccess);
}

/* A call of the device in the second of two runs fails on rank 0. The first, for which rank 1's
 * stream is late, had begun well, so it ends as it should.
 */
static void fail_behind_a_late_run(int rank, cudaStream_t stream, const sim_fault *fault,
                                   uint64_t key)
{
  const int64_t began = world_ms();
  pthread_t thread;

  redistribute_well(rank, stream, key - 1);
  tensor_fill(&tensors[rank], key, 0x5a);
  tensor_open(&tensors[rank], key);
  if (rank == 1) put_behind_the_spare(stream);
  OK(redistribute(rank, stream));
  ranks_barrier();
  if (rank == 0) sim_fault_add(fault);
  if (rank == 1) NEED(pthread_create(&thread, NULL, let_spare_go_later, NULL) == 0);
  (void)!redistribute(rank, stream);
  if (rank == 0) sim_fault_clear();
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  NEED(world_ms() - began < TIMEOUT_MS / 2);
  if (rank == 1) NEED(pthread_join(thread, NULL) == 0);
  NEED(tensor_holds(&tensors[rank], key));
  NEED_NO_VIOLATION();
  ranks_barrier();
  (void)!redistribute(rank, stream); /* says so where a rank has not heard of it yet */
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  tensor_close(&tensors[rank]);
  ranks_barrier();
}

static cudaStream_t make_registered(int rank)
{
  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  tensor_make(&tensors[rank], RING, rank, WIDTH);
  for (int side = FROM; side <= TO; side++)
    OK(xfer_comm_register(w.comms[rank], tensors[rank].bytes[side]));
  return world_stream();
}

static void each_call_fails(int rank)
{
  cudaStream_t stream = make_registered(rank);
  uint64_t n_failed = 0;

  for (uint64_t n = 1; n_failed == n - 1; n++) {
    const sim_fault fault = {.rank = 0, .nth = n, .code = 2};

    if (rank == 0) world_case(n);
    fail_behind_a_late_run(rank, stream, &fault, 2 * n);
    n_failed = sim_count().faults;
    ranks_barrier();
  }
  NEED(n_failed > 10);
}

/* None that is the communicator's own. */
static void each_call_of_the_run_fails(int rank)
{
  static const char *const names[] = {"cudaStreamIsCapturing", "cudaStreamWaitEvent",
                                      "cuStreamBatchMemOp",    "guard kernel",
                                      "copy kernel",           "flag kernel"};
  cudaStream_t stream = make_registered(rank);

  for (uint64_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    const sim_fault fault = {.name = names[i], .rank = 0, .nth = 1, .code = 2};

    if (rank == 0) world_case(i);
    fail_behind_a_late_run(rank, stream, &fault, 2 * i + 2);
    NEED(sim_count().faults == i + 1);
    ranks_barrier();
  }
}

static void test_e6_redistribute_that_fails_spares_the_one_before_gather(void)
{
  world_make(2, COMM_GATHER, (sim_config){.n_devices = 3});
  world_go(each_call_fails);
}

static void test_e6_redistribute_that_fails_spares_the_one_before_nccl(void)
{
  world_make(3, COMM_NCCL, (sim_config){.n_devices = 4});
  world_go(each_call_of_the_run_fails);
}

static void test_e6_redistribute_tells_of_a_run_that_does_not_begin_gather(void)
{
  world_make(2, COMM_GATHER, (sim_config){.seed = 0});
  world_go(one_does_not_begin_behind_a_late_one);
}

static void test_e6_redistribute_tells_of_a_run_that_does_not_begin_nccl(void)
{
  world_make(3, COMM_NCCL, (sim_config){.seed = 0}); /* its ranks meet on their devices */
  world_go(one_does_not_begin);
}

/* A run whose messages rank 0 does not send: nobody's stream waits for them until the deadline,
 * also of who exchanges nothing with rank 0. The run before it had begun well, and the next call
 * but one is well again. */
static void messages_do_not_come(int rank)
{
  static const char *const names[] = {"copy kernel", "ncclSend", "ncclRecv"};
  cudaStream_t stream = world_stream();

  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  tensor_make(&tensors[rank], RING, rank, WIDTH);
  for (uint64_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    const sim_fault fault = {.name = names[i], .rank = 0, .nth = 1, .code = 2};
    const uint64_t key = 2 * i + 2;
    const int64_t began = world_ms();

    if (rank == 0) world_case(i);
    redistribute_well(rank, stream, key - 1);
    tensor_fill(&tensors[rank], key, 0x5a);
    tensor_open(&tensors[rank], key);
    OK(redistribute(rank, stream));
    if (rank == 0) NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    ranks_barrier();
    if (rank == 0) sim_fault_add(&fault);
    const xfer_status st = redistribute(rank, stream);
    NEED(rank == 0 ? st == XFER_ERR_CUDA || st == XFER_ERR_COMM || st == XFER_ERR_NOMEM
                   : st == XFER_OK || st == XFER_ERR_PEER);
    if (rank == 0) sim_fault_clear();
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    if (rank == 0) NEED(tensor_holds(&tensors[rank], key));
    NEED(world_ms() - began < TIMEOUT_MS / 2);
    ranks_barrier();
    (void)!redistribute(rank, stream); /* says so where a rank has not heard of it yet */
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    tensor_close(&tensors[rank]);
    NEED_NO_VIOLATION();
    ranks_barrier();
  }
}

/* On devices that cannot reach each other, where a small tensor goes in messages. */
static void test_e6_redistribute_tells_of_messages_that_do_not_come(void)
{
  world_make(4, COMM_NCCL, (sim_config){.apart = {0xe, 0xd, 0xb, 0x7}});
  world_go(messages_do_not_come);
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
      {"e6_redistribute_goes_on_after_a_run_that_failed",
       test_e6_redistribute_goes_on_after_a_run_that_failed},
      {"e6_redistribute_tells_of_a_run_that_does_not_begin_gather",
       test_e6_redistribute_tells_of_a_run_that_does_not_begin_gather},
      {"e6_redistribute_tells_of_a_run_that_does_not_begin_nccl",
       test_e6_redistribute_tells_of_a_run_that_does_not_begin_nccl},
      {"e6_redistribute_that_fails_spares_the_one_before_gather",
       test_e6_redistribute_that_fails_spares_the_one_before_gather},
      {"e6_redistribute_that_fails_spares_the_one_before_nccl",
       test_e6_redistribute_that_fails_spares_the_one_before_nccl},
      {"e6_redistribute_tells_of_messages_that_do_not_come",
       test_e6_redistribute_tells_of_messages_that_do_not_come},
      {"e7_redistribute_looks_at_the_stream_first_gather",
       test_e7_redistribute_looks_at_the_stream_first_gather},
      {"e7_redistribute_looks_at_the_stream_first_nccl",
       test_e7_redistribute_looks_at_the_stream_first_nccl},
      {"e7_the_default_stream_beside_a_capture", test_e7_the_default_stream_beside_a_capture},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
