/* Calls that fail, queues that are full, memory of other kinds, ranks that share a device. Names of
 * tests are rows of the review of the engine. */
#include "world.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 3000, TIMEOUT_MS = 20000, SHORT_MS = 1000, MIB = 1 << 20 };

static tensor tensors[WORLD_RANKS];
static xfer_plan *plans[WORLD_RANKS];

static void commit_one(int rank, form shape, xfer_lane lane, uint64_t timeout_ms)
{
  tensor_make(&tensors[rank], shape, rank, WIDTH);
  plans[rank] = world_plan(rank, &tensors[rank], 1, lane, timeout_ms);
  OK(xfer_plan_commit(plans[rank]));
}

/* ---- E9: ranks that share a device -------------------------------------------------------- */

static form shape = EACH_EACH;

static void on_legacy_stream(int rank)
{
  commit_one(rank, shape, XFER_LANE_DIRECT, TIMEOUT_MS);
  for (uint64_t version = 1; version < 20; version++)
    world_run(plans[rank], &tensors[rank], 1, version, NULL);
  NEED(xfer_plan_run(plans[rank], 20, cudaStreamPerThread) == XFER_ERR_UNSUPPORTED);
  NEED(strstr(xfer_last_error(), "another one on each thread") != NULL);
}

static void test_e9_two_ranks_on_one_device_with_the_default_stream(void)
{
  world_of(2, COMM_GATHER, (sim_config){.n_devices = 1}, on_legacy_stream);
}

static void test_e9_four_ranks_on_two_devices_with_the_default_stream(void)
{
  world_of(4, COMM_GATHER, (sim_config){.n_devices = 2}, on_legacy_stream);
}

/* All streams of a device share one queue, also those that are a rank's own. */
static void on_one_queue(int rank)
{
  on_legacy_stream(rank);
  for (uint64_t version = 20; version < 40; version++)
    world_run(plans[rank], &tensors[rank], 1, version, world_stream());
}

static void test_e9_four_ranks_on_two_devices_of_one_queue(void)
{
  world_of(4, COMM_GATHER, (sim_config){.n_devices = 2, .connections = 1}, on_one_queue);
}

static void test_e9_strangers_on_two_devices_of_one_queue(void)
{
  shape = RING;
  world_of(4, COMM_GATHER, (sim_config){.n_devices = 2, .connections = 1}, on_one_queue);
}

/* Of four ranks of a device two run on the default stream, one on a stream that is ordered with
 * that one, and one on a stream that is not. */
static void on_streams_of_every_kind(int rank)
{
  cudaStream_t stream = rank == 3 ? world_stream() : NULL;

  if (rank == 2) NEED(cudaStreamCreate(&stream) == cudaSuccess);
  commit_one(rank, EACH_EACH, XFER_LANE_DIRECT, TIMEOUT_MS);
  for (uint64_t version = 1; version < 20; version++)
    world_run(plans[rank], &tensors[rank], 1, version, stream);
  ranks_barrier();
  if (rank == 2) NEED(cudaStreamDestroy(stream) == cudaSuccess);
}

static void test_e9_ranks_on_streams_of_every_kind(void)
{
  world_of(4, COMM_GATHER, (sim_config){.n_devices = 1}, on_streams_of_every_kind);
}

/* Rank 1 does not run: rank 0 waits for nothing on the stream that they share, and gives up. */
static void alone_on_legacy_stream(int rank)
{
  commit_one(rank, EACH_EACH, XFER_LANE_DIRECT, TIMEOUT_MS);
  world_run(plans[rank], &tensors[rank], 1, 1, NULL);
  ranks_set_timeout(plans[rank], SHORT_MS);
  if (rank == 0) {
    NEED(xfer_plan_run(plans[0], 2, NULL) == XFER_ERR_TIMEOUT);
    NEED(strstr(xfer_last_error(), "rank 1 did not start in run 2") != NULL);
  }
  ranks_barrier();
}

/* Those that share one send nothing to each other. */
static void test_e9_strangers_on_two_devices_with_the_default_stream(void)
{
  shape = RING;
  world_of(4, COMM_GATHER, (sim_config){.n_devices = 2}, on_legacy_stream);
}

static void test_e9_a_rank_that_does_not_come_to_the_default_stream(void)
{
  world_of(2, COMM_GATHER, (sim_config){.n_devices = 1}, alone_on_legacy_stream);
}

/* ---- as many peers as a guard has room for, and one more --------------------------------------
 */

static void with_many_peers(int rank)
{
  commit_one(rank, EACH_EACH, XFER_LANE_DIRECT, TIMEOUT_MS);
  world_run(plans[rank], &tensors[rank], 1, 1, world_stream());
}

static void test_as_many_peers_as_a_guard_has_room_for(void)
{
  for (int n = 32; n <= 33; n++) {
    world_of(n, COMM_GATHER, (sim_config){.n_devices = n}, with_many_peers);
    for (int r = 0; r < n; r++) {
      xfer_plan_destroy(plans[r]);
      tensor_free(&tensors[r]);
    }
    world_destroy();
  }
}

/* ---- E12: a control call that fails ------------------------------------------------------- */

static const char *failing;
static int failing_code;

/* Rank 0's calls fail somewhere in a commit. Nobody hangs, nothing is mixed up, and either the comm
 * is of use to all, or rank 0 is told at once that it is of none. */
static void failed_control(int rank)
{
  tensor_make(&tensors[rank], RING, rank, WIDTH);
  plans[rank] = world_plan(rank, &tensors[rank], 1, XFER_LANE_AUTO, TIMEOUT_MS);
  for (uint64_t nth = 1; nth < 40; nth += 3) {
    const sim_fault fault = {.name = failing, .rank = 0, .nth = nth, .code = failing_code};
    ranks_barrier();
    if (rank == 0) sim_fault_add(&fault);
    ranks_barrier();
    const xfer_view src = xfer_view_dense(tensors[rank].bytes[FROM]);
    const xfer_view dst = xfer_view_dense(tensors[rank].bytes[TO]);
    OK(xfer_plan_bind(plans[rank], 0, &src, &dst));
    ranks_set_timeout(plans[rank], SHORT_MS);
    (void)!xfer_plan_commit(plans[rank]);
    ranks_barrier();
    if (rank == 0) sim_fault_clear();
    ranks_barrier();
    ranks_set_timeout(plans[rank], 4 * SHORT_MS);
    const int64_t began = world_ms();
    const xfer_status st = xfer_plan_commit(plans[rank]);
    NEED(world_ms() - began < 20 * SHORT_MS);
    NEED(rank != 0 ||
         st != XFER_ERR_TIMEOUT); /* broken at once, not by a peer that does not come */
    NEED_NO_VIOLATION();
    if (st != XFER_OK) return;
    ranks_set_timeout(plans[rank], TIMEOUT_MS);
    world_run(plans[rank], &tensors[rank], 1, nth, world_stream());
  }
}

static void fail_control(const char *name, int code)
{
  failing = name;
  failing_code = code;
  world_of(2, COMM_NCCL, (sim_config){.seed = 0}, failed_control);
}

static void test_e12_failed_all_gather_breaks_the_comm(void)
{
  fail_control("ncclAllGather", 3); /* ncclInternalError */
}

static void test_e12_failed_copy_breaks_the_comm(void)
{
  fail_control("cudaMemcpyAsync", cudaErrorUnknown);
}

static void test_e12_failed_record_breaks_the_comm(void)
{
  fail_control("cudaEventRecord", cudaErrorUnknown);
}

/* ---- E13: a source that overlaps itself --------------------------------------------------- */

/* Rows of rank 0's source begin before the one above ends: no 2-D copy of the driver's takes that.
 */
static void self_overlap(int rank)
{
  enum { ROWS = 1000, COLUMNS = 3000, STEP = 4 };
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_tensor list = {.name = "t"};
  xfer_plan *plan = NULL;
  unsigned char *memory = NULL;
  const int64_t strides[] = {STEP, 1};

  OK(xfer_problem_parse(&src, &dst, "u8[1000,3000] (1)@0:R -> (1)@1:R"));
  list.src = src;
  list.dst = dst;
  NEED(cudaMalloc((void **)&memory, 4 * MIB) == cudaSuccess);
  for (int i = 0; i < 4 * MIB; i++)
    memory[i] = (unsigned char)(rank == 0 ? i % 251 : 0xee);
  OK(xfer_plan_create(&plan, w.comms[rank], &list, 1, NULL));
  const xfer_view from = xfer_view_strided(memory, strides, 2);
  const xfer_view to = xfer_view_dense(memory);
  OK(xfer_plan_bind(plan, 0, rank == 0 ? &from : NULL, rank == 1 ? &to : NULL));
  OK(xfer_plan_commit(plan));
  OK(xfer_plan_run(plan, 1, world_stream()));
  OK(xfer_plan_wait(plan, 0));
  for (int i = 0; i < ROWS * COLUMNS && rank == 1; i++)
    NEED(memory[i] == (i / COLUMNS * STEP + i % COLUMNS) % 251);
  xfer_plan_destroy(plan);
}

static void test_e13_source_that_overlaps_itself_arrives(void)
{
  world_of(2, COMM_GATHER, (sim_config){.seed = 0}, self_overlap);
}

/* ---- E15: many operations ----------------------------------------------------------------- */

enum { MANY = 520, PIECE = 8192 };

/* Rank 0 pushes 520 pieces to each of two peers that share a stream, and little to others;
 * the peers come late, and run does not wait for them. One source serves all. */
static void many_operations(int rank)
{
  static xfer_tensor list[2 * MANY + 3];
  static char names[2 * MANY + 3][16];
  xfer_layout *layouts[5][2] = {{NULL}};
  xfer_plan *plan = NULL;
  char *source = NULL;
  char *target = NULL;
  const size_t n = 2 * MANY + 3;

  for (int peer = 1; peer <= 5; peer++) {
    char line[64];
    (void)snprintf(line, sizeof line, "u8[%d] (1)@0:R -> (1)@%d:R", PIECE, peer);
    OK(xfer_problem_parse(&layouts[peer - 1][FROM], &layouts[peer - 1][TO], line));
  }
  for (size_t i = 0; i < n && rank == 0; i++) {
    const int peer = i < MANY ? 1 : i < 2 * MANY ? 5 : (int)(i - 2 * MANY) + 2;
    (void)snprintf(names[i], sizeof names[i], "t%zu", i);
    list[i] = (xfer_tensor){
        .name = names[i], .src = layouts[peer - 1][FROM], .dst = layouts[peer - 1][TO]};
  }
  ranks_barrier(); /* the list is one for all */
  if (rank == 0) NEED(cudaMalloc((void **)&source, PIECE) == cudaSuccess);
  if (rank != 0) {
    const size_t parts = rank == 1 || rank == 5 ? MANY : 1;
    NEED(cudaMalloc((void **)&target, parts * PIECE) == cudaSuccess);
  }
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  options.lane = XFER_LANE_DIRECT;
  options.timeout_ms = TIMEOUT_MS;
  OK(xfer_plan_create(&plan, w.comms[rank], list, n, &options));
  for (size_t i = 0, k = 0; i < n; i++) {
    const int peer = i < MANY ? 1 : i < 2 * MANY ? 5 : (int)(i - 2 * MANY) + 2;
    const xfer_view from = xfer_view_dense(source);
    const xfer_view to = xfer_view_dense(rank == peer ? target + k++ * PIECE : NULL);
    OK(xfer_plan_bind(plan, i, rank == 0 ? &from : NULL, rank == peer ? &to : NULL));
  }
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  if (rank == 0) {
    const uint64_t full = sim_count().full;
    OK(xfer_plan_run(plan, 1, world_stream()));
    NEED(sim_count().full == full);
  }
  ranks_barrier();
  if (rank != 0) OK(xfer_plan_run(plan, 1, world_stream()));
  OK(xfer_plan_wait(plan, 0));
}

static void test_e15_a_run_does_not_block(void)
{
  world_of(6, COMM_GATHER, (sim_config){.eager = true}, many_operations);
}

/* ---- E16: odds and ends ------------------------------------------------------------------- */

/* Sources in pinned memory of the host, packed, and to the rank itself. */
static void pinned_source(int rank)
{
  tensor *t = &tensors[rank];
  cudaStream_t stream = world_stream();

  for (int i = 0; i < 2; i++) {
    tensor_make(t, i == 0 ? RING : EACH_EACH, rank, i == 0 ? WIDTH : 3 * MIB);
    sim_guard_drop(t->guards[FROM]);
    NEED(cudaFree(t->bytes[FROM]) == cudaSuccess);
    NEED(cudaHostAlloc((void **)&t->bytes[FROM], t->n_bytes[FROM], cudaHostAllocDefault) ==
         cudaSuccess);
    t->guards[FROM] = sim_guard(rank, t->bytes[FROM], t->n_bytes[FROM]);
    plans[rank] = world_plan(rank, t, 1, XFER_LANE_PACKED, TIMEOUT_MS);
    OK(xfer_plan_commit(plans[rank]));
    world_run(plans[rank], t, 1, 1, stream);
    xfer_plan_destroy(plans[rank]);
    sim_guard_drop(t->guards[FROM]);
    sim_guard_drop(t->guards[TO]);
  }
}

static void test_e16_pinned_sources(void)
{
  world_of(2, COMM_NCCL, (sim_config){.seed = 0}, pinned_source);
}

/* A plan that only sends messages registers no memory of the host. */
static void no_page(int rank)
{
  ranks_barrier();
  const uint64_t calls = sim_calls_of("cudaHostRegister");
  ranks_barrier();
  commit_one(rank, RING, XFER_LANE_PACKED, TIMEOUT_MS);
  ranks_barrier();
  NEED(sim_calls_of("cudaHostRegister") == calls);
  world_run(plans[rank], &tensors[rank], 1, 1, world_stream());
}

static void test_e16_no_page_where_none_is_needed(void)
{
  world_of(2, COMM_NCCL, (sim_config){.seed = 0}, no_page);
}

static volatile sig_atomic_t n_taken;

static void take_signal(int number)
{
  (void)number;
  n_taken = n_taken + 1;
}

static void set_signals(int how)
{
  sigset_t all;

  (void)sigfillset(&all);
  (void)pthread_sigmask(how, &all, NULL);
}

/* Signals are open while the library makes its threads, and blocked in all others after that. */
static void live_a_while(int rank)
{
  unsigned char id[XFER_NCCL_ID_BYTES];
  static unsigned char shared[XFER_NCCL_ID_BYTES];
  xfer_comm *comm = NULL;

  set_signals(SIG_UNBLOCK);
  if (rank == 0) OK(xfer_nccl_id(shared));
  ranks_barrier();
  memcpy(id, shared, sizeof id);
  OK(xfer_comm_create_nccl_id(&comm, id, rank, w.n));
  xfer_comm_destroy(w.comms[rank]);
  w.comms[rank] = comm;
  commit_one(rank, RING, XFER_LANE_AUTO, TIMEOUT_MS);
  world_run(plans[rank], &tensors[rank], 1, 1, world_stream());
  set_signals(SIG_BLOCK);
  ranks_barrier();
  if (rank == 0) (void)kill(getpid(), SIGUSR1);
  world_sleep_ms(300);
  ranks_barrier();
  NEED(n_taken == 0);
  world_run(plans[rank], &tensors[rank], 1, 2, world_stream());
}

static void test_e16_threads_of_the_library_take_no_signals(void)
{
  const struct sigaction action = {.sa_handler = take_signal};

  NEED(sigaction(SIGUSR1, &action, NULL) == 0);
  set_signals(SIG_BLOCK);
  world_of(2, COMM_NCCL, (sim_config){.seed = 0}, live_a_while);
}

/* A rank gives its comm back while the other keeps its own. */
static void leave_alone(int rank)
{
  commit_one(rank, RING, XFER_LANE_PACKED, TIMEOUT_MS);
  world_run(plans[rank], &tensors[rank], 1, 1, world_stream());
  xfer_plan_destroy(plans[rank]);
  ranks_barrier();
  const int64_t began = world_ms();
  if (rank == 0) xfer_comm_destroy(w.comms[0]);
  NEED(world_ms() - began < TIMEOUT_MS);
  ranks_barrier();
  if (rank == 1) xfer_comm_destroy(w.comms[1]);
  ranks_barrier();
  w.comms[rank] = NULL;
  plans[rank] = NULL;
}

static void test_a_comm_ends_before_its_peers(void)
{
  world_of(2, COMM_NCCL, (sim_config){.nccl_ends_together = true}, leave_alone);
}

/* 300 plans that have run, of 8 ranks: waits that are over take no room. */
static void many_plans(int rank)
{
  enum { PLANS = 320 };
  static xfer_plan *made[WORLD_RANKS][PLANS];
  cudaStream_t stream = world_stream();

  tensor_make(&tensors[rank], EACH_EACH, rank, 100);
  for (int i = 0; i < PLANS; i++) {
    made[rank][i] = world_plan(rank, &tensors[rank], 1, XFER_LANE_DIRECT, TIMEOUT_MS * 10);
    OK(xfer_plan_commit(made[rank][i]));
    world_run(made[rank][i], &tensors[rank], 1, 1, stream);
  }
  for (int i = 0; i < PLANS; i++)
    xfer_plan_destroy(made[rank][i]);
}

static void test_e16_waits_that_are_over_take_no_room(void)
{
  world_of(8, COMM_GATHER, (sim_config){.eager = true}, many_plans);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"e9_two_ranks_on_one_device_with_the_default_stream",
       test_e9_two_ranks_on_one_device_with_the_default_stream},
      {"e9_four_ranks_on_two_devices_with_the_default_stream",
       test_e9_four_ranks_on_two_devices_with_the_default_stream},
      {"e9_strangers_on_two_devices_with_the_default_stream",
       test_e9_strangers_on_two_devices_with_the_default_stream},
      {"e9_four_ranks_on_two_devices_of_one_queue", test_e9_four_ranks_on_two_devices_of_one_queue},
      {"e9_strangers_on_two_devices_of_one_queue", test_e9_strangers_on_two_devices_of_one_queue},
      {"e9_ranks_on_streams_of_every_kind", test_e9_ranks_on_streams_of_every_kind},
      {"e9_a_rank_that_does_not_come_to_the_default_stream",
       test_e9_a_rank_that_does_not_come_to_the_default_stream},
      {"as_many_peers_as_a_guard_has_room_for", test_as_many_peers_as_a_guard_has_room_for},
      {"e12_failed_all_gather_breaks_the_comm", test_e12_failed_all_gather_breaks_the_comm},
      {"e12_failed_copy_breaks_the_comm", test_e12_failed_copy_breaks_the_comm},
      {"e12_failed_record_breaks_the_comm", test_e12_failed_record_breaks_the_comm},
      {"e13_source_that_overlaps_itself_arrives", test_e13_source_that_overlaps_itself_arrives},
      {"e15_a_run_does_not_block", test_e15_a_run_does_not_block},
      {"e16_pinned_sources", test_e16_pinned_sources},
      {"e16_no_page_where_none_is_needed", test_e16_no_page_where_none_is_needed},
      {"e16_threads_of_the_library_take_no_signals",
       test_e16_threads_of_the_library_take_no_signals},
      {"a_comm_ends_before_its_peers", test_a_comm_ends_before_its_peers},
      {"e16_waits_that_are_over_take_no_room", test_e16_waits_that_are_over_take_no_room},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
