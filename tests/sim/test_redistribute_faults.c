/* Calls of xfer_redistribute() around one that fails: the one before it ends well, all are told,
 * and later ones work. Names of tests are rows of the review of the engine. */
#include "redistributes.h"

#include <pthread.h>

enum { TIMEOUT_MS = 20000 };

/* A run that fails on one rank after the other's call has returned: the next call says so, and the
 * ones after it work. */
static void one_run_fails(int rank)
{
  const sim_fault fault = {.name = "cudaEventRecord", .rank = 0, .nth = 1, .code = 2};
  cudaStream_t stream = world_stream();

  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
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
  if (rank == 1) world_hold_up(stream, w.n);
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
  world_make(3, COMM_NCCL, (sim_config){.n_devices = 4, .many_launches = true});
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

/* Messages of a call that has returned are ended with those of another one, which fails on rank 0:
 * xfer_comm_check() says so, or the next call. */
static void one_ends_anothers(int rank, bool asks)
{
  const sim_fault fault = {.name = "ncclGroupStart", .rank = 0, .nth = 1, .code = 1};
  const bool holds = rank == 0;
  cudaStream_t streams[2] = {world_stream(), world_stream()};
  tensor first;
  tensor second;
  xfer_status st;

  tensor_make(&first, RING, rank, 400000);
  tensor_make(&second, RING, rank, WIDTH);
  for (uint64_t key = 1; key < 9; key += 2) {
    tensors[rank] = first;
    redistribute_well(rank, streams[0], key);
    tensors[rank] = second;
    redistribute_well(rank, streams[1], key);
    tensors[rank] = first;
    tensor_fill(&first, key + 1, 0x5a);
    tensor_open(&first, 0);
    tensor_open(&second, 0);
    ranks_barrier();
    if (holds) world_hold_up(streams[0], w.n);
    OK(redistribute(rank, streams[0]));
    if (rank == 0) sim_fault_add(&fault);
    tensors[rank] = second;
    (void)!redistribute(rank, streams[1]);
    if (rank == 0) sim_fault_clear();
    ranks_barrier();
    if (holds) sim_hold(w.n, false);
    NEED(cudaStreamSynchronize(streams[0]) == cudaSuccess);
    st = asks ? xfer_comm_check(w.comms[rank]) : redistribute(rank, streams[1]);
    NEED(st != XFER_OK || tensor_holds(&first, key + 1));
    ranks_barrier();
    for (int i = 0; i < 3 && redistribute(rank, streams[1]) != XFER_OK; i++)
      ; /* where a rank has not heard of it yet */
    NEED(cudaStreamSynchronize(streams[1]) == cudaSuccess);
    OK(xfer_comm_check(w.comms[rank]));
    tensor_close(&first);
    tensor_close(&second);
    ranks_barrier();
  }
  NEED_NO_VIOLATION();
}

static void one_ends_anothers_and_is_asked(int rank)
{
  one_ends_anothers(rank, true);
}

static void one_ends_anothers_and_the_next_tells(int rank)
{
  one_ends_anothers(rank, false);
}

/* Ranks that cannot map each other. */
static void make_apart(void)
{
  sim_config config = {.n_devices = 3};

  config.apart[0] = 2;
  config.apart[1] = 1;
  world_make(2, COMM_NCCL, config);
}

static void test_check_tells_of_ended_messages(void)
{
  make_apart();
  world_go(one_ends_anothers_and_is_asked);
}

static void test_next_call_tells_of_ended_messages(void)
{
  make_apart();
  world_go(one_ends_anothers_and_the_next_tells);
}

/* Rank 1's stream is busy until the deadline of a call has passed that returned long before: rank
 * 0's stream goes on without its data. */
static void one_passes_its_deadline(int rank)
{
  cudaStream_t streams[2] = {world_stream(), world_stream()};
  tensor other;

  tensor_make(&tensors[rank], RING, rank, WIDTH);
  tensor_make(&other, EACH_EACH, rank, 500);
  for (uint64_t key = 1; key < 9; key += 2) {
    const tensor mine = tensors[rank];
    xfer_status st;

    redistribute_well(rank, streams[0], key);
    OK(xfer_comm_set_timeout(w.comms[rank], (uint64_t)world_time(300)));
    tensor_fill(&mine, key + 1, 0x5a);
    tensor_open(&mine, key + 1);
    ranks_barrier();
    if (rank == 1) world_hold_up(streams[0], w.n);
    OK_IN_TIME(redistribute(rank, streams[0]));
    if (rank == 0) NEED(cudaStreamSynchronize(streams[0]) == cudaSuccess);
    if (rank == 0) NEED(!tensor_holds(&mine, key + 1));
    ranks_barrier();
    if (rank == 1) sim_hold(w.n, false);
    OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
    if (key < 4) {
      NEED(rank == 1 || xfer_comm_check(w.comms[rank]) == XFER_ERR_TIMEOUT);
      NEED(rank == 1 || xfer_comm_check(w.comms[rank]) == XFER_OK);
      if (rank == 1) (void)!xfer_comm_check(w.comms[1]);
    }
    ranks_barrier();
    tensors[rank] = other; /* a call of another kind tells so as well */
    tensor_open(&other, 0);
    st = redistribute(rank, streams[1]);
    NEED(key < 4 || st == (rank == 0 ? XFER_ERR_TIMEOUT : XFER_ERR_PEER) || st == XFER_ERR_TIMEOUT);
    NEED(cudaStreamSynchronize(streams[1]) == cudaSuccess);
    NEED(cudaStreamSynchronize(streams[0]) == cudaSuccess);
    tensor_close(&other);
    tensor_close(&mine);
    tensors[rank] = mine;
    for (int i = 0; i < 3 && redistribute(rank, streams[0]) != XFER_OK; i++)
      ;
    NEED(cudaStreamSynchronize(streams[0]) == cudaSuccess);
    ranks_barrier();
  }
  NEED_NO_VIOLATION();
}

static void test_deadline_after_the_return(void)
{
  world_make(2, COMM_GATHER, (sim_config){.n_devices = 3});
  world_go(one_passes_its_deadline);
}

/* Rank 1's device hangs in copies of all that rank 0 has sent, which is to be read until its
 * deadline. Rank 0 then gives its comm back, and waits once for all of it. */
static void comm_ends_under_a_hung_reader(int rank)
{
  enum { PLANS = 6, SHORT_MS = 1500, ONE_WAIT_MS = 1000 };
  static tensor sent[2][PLANS];
  cudaStream_t stream = world_stream();
  int64_t began = 0;

  for (int i = 0; i < PLANS; i++) {
    tensor_make(&sent[rank][i], FROM_FIRST, rank, WIDTH + 16 * i);
    tensor_fill(&sent[rank][i], 1, 0x5a);
    OK(tensor_redistribute(&sent[rank][i], stream)); /* planned */
  }
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  NEED(sim_settle(TIMEOUT_MS));
  OK(xfer_comm_set_timeout(w.comms[rank], (uint64_t)world_time(SHORT_MS)));
  ranks_barrier();
  if (rank == 1) sim_hold(1, true);
  ranks_barrier();
  for (int i = 0; i < PLANS; i++)
    OK_IN_TIME(tensor_redistribute(&sent[rank][i], stream));
  ranks_barrier();
  began = world_ms();
  if (rank == 0) {
    xfer_comm_destroy(w.comms[0]);
    w.comms[0] = NULL;
    NEED_IN_TIME(world_ms() - began < world_time(SHORT_MS) + 2 * ONE_WAIT_MS);
    sim_hold(1, false);
  }
  ranks_barrier();
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
}

static void test_comm_ends_with_one_wait_for_a_hung_reader(void)
{
  world_make(2, COMM_GATHER, (sim_config){.n_devices = 2});
  world_go(comm_ends_under_a_hung_reader);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
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
      {"redistribute_check_tells_of_ended_messages", test_check_tells_of_ended_messages},
      {"redistribute_next_call_tells_of_ended_messages", test_next_call_tells_of_ended_messages},
      {"redistribute_deadline_after_the_return", test_deadline_after_the_return},
      {"e6_redistribute_tells_of_messages_that_do_not_come",
       test_e6_redistribute_tells_of_messages_that_do_not_come},
      {"comm_ends_with_one_wait_for_a_hung_reader", test_comm_ends_with_one_wait_for_a_hung_reader},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
