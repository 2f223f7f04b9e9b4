/* xfer_redistribute() call after call, of tensors that lie elsewhere each time. */
#include "world.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

enum { WIDTH = 3000, TIMEOUT_MS = 20000, CALLS = 8 };

static tensor tensors[WORLD_RANKS][CALLS];
static uint64_t n_sent;     /* messages of NCCL, after the first calls, */
static uint64_t n_launched; /* and launches */

static void redistribute(const tensor *t, cudaStream_t stream)
{
  OK(tensor_redistribute(t, stream));
}

static void make_tensors(int rank, form shape)
{
  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  for (int i = 0; i < CALLS; i++) {
    tensor_make(&tensors[rank][i], shape, rank, WIDTH);
    tensor_fill(&tensors[rank][i], (uint64_t)i + 1, 0x5a);
    tensor_open(&tensors[rank][i], (uint64_t)i + 1);
  }
}

static void check_tensors(int rank, cudaStream_t stream)
{
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  for (int i = 0; i < CALLS; i++) {
    tensor_close(&tensors[rank][i]);
    NEED(tensor_holds(&tensors[rank][i], (uint64_t)i + 1));
  }
  NEED_NO_VIOLATION();
  ranks_barrier();
}

static void check_one(int rank, int i)
{
  ranks_barrier();
  tensor_close(&tensors[rank][i]);
  NEED(tensor_holds(&tensors[rank][i], (uint64_t)i + 1));
  NEED_NO_VIOLATION();
  ranks_barrier();
}

/* How often peers' memory was mapped. */
static uint64_t mappings(void)
{
  return sim_calls_of("cudaIpcOpenMemHandle") + sim_calls_of("cuMemMap");
}

/* Calls of tensors first to last - 1, none of which can begin on rank 1. */
static void calls_behind_a_held_one(int rank, int first, int last, cudaStream_t stream)
{
  ranks_barrier();
  if (rank == 1) world_hold_up(stream, w.n);
  ranks_barrier();
  for (int i = first; i < last; i++)
    redistribute(&tensors[rank][i], stream);
  ranks_barrier();
  NEED(rank != 1 || cudaStreamQuery(stream) == cudaErrorNotReady);
  NEED(rank != 1 || tensor_is_all(&tensors[rank][first], 0x5a));
  ranks_barrier();
}

/* A small transfer's copies travel with their launches: no call waits for the runs before it.
 * Nobody maps the tensors, which are elsewhere in each call; but for the first two, each of which
 * makes a plan. */
static void calls_while_the_first_waits(int rank, form shape)
{
  cudaStream_t stream = world_stream();

  make_tensors(rank, shape);
  redistribute(&tensors[rank][0], stream);
  calls_behind_a_held_one(rank, 1, 3, stream);
  world_let_go_on(rank, stream);
  const uint64_t n_mapped = mappings();
  const uint64_t n_before = sim_calls_of("ncclSend");
  const uint64_t n_launches = world_launches();
  calls_behind_a_held_one(rank, 3, CALLS, stream);
  NEED(mappings() == n_mapped);
  if (rank == 0) n_sent = sim_calls_of("ncclSend") - n_before;
  if (rank == 0) n_launched = world_launches() - n_launches;
  ranks_barrier();
  world_let_go_on(rank, stream);
  check_tensors(rank, stream);
}

static void ring(int rank)
{
  calls_while_the_first_waits(rank, RING);
}

static void each_each(int rank)
{
  calls_while_the_first_waits(rank, EACH_EACH);
}

/* Peers read copies that stay where they are. */
static void test_small_calls_do_not_wait_for_those_before(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3});
  world_go(ring);
  NEED(n_sent == 0);
}

/* What each rank keeps is copied with what its peers read. */
static void test_small_calls_of_columns_do_not_wait_for_those_before(void)
{
  world_make(3, COMM_NCCL, (sim_config){.n_devices = 4});
  world_go(each_each);
  NEED(n_sent == 0);
  NEED(n_launched == (CALLS - 3) * 3 * 2);
}

/* Where one rank has no room for a copy, and where none can read another's, messages go. */
static void test_small_messages_do_not_wait_for_those_before(void)
{
  world_make(3, COMM_NCCL, (sim_config){.n_devices = 4, .without_room = 2});
  world_go(each_each);
  NEED(n_sent > 0);
}

static void test_small_messages_between_islands_do_not_wait_for_those_before(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3, .apart = {2, 1}});
  world_go(ring);
  NEED(n_sent > 0);
}

/* Of 12 ranks each has 11 messages, whose table does not travel with a launch. */
static void calls_at_once(int rank)
{
  cudaStream_t stream = world_stream();

  make_tensors(rank, EACH_EACH);
  for (int i = 0; i < CALLS; i++)
    redistribute(&tensors[rank][i], stream);
  check_tensors(rank, stream);
}

static void test_calls_with_large_tables(void)
{
  world_make(12, COMM_NCCL, (sim_config){.n_devices = 12});
  world_go(calls_at_once);
}

static void test_messages_with_large_tables(void)
{
  world_make(12, COMM_NCCL, (sim_config){.n_devices = 12, .without_room = 1});
  world_go(calls_at_once);
}

/* Whose streams wait behind each other. */
static void calls_again_and_again(int rank)
{
  cudaStream_t stream = world_stream();

  make_tensors(rank, EACH_EACH);
  for (int k = 0; k < 100; k++)
    redistribute(&tensors[rank][k % CALLS], stream);
  check_tensors(rank, stream);
}

static void test_calls_of_ranks_that_share_a_queue(void)
{
  world_make(4, COMM_GATHER, (sim_config){.n_devices = 1, .connections = 1});
  world_go(calls_again_and_again);
}

/* The tensor is freed, and another lies at its address: peers have kept nothing of it. */
static void calls_of_freed_memory(int rank)
{
  cudaStream_t stream = world_stream();

  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  for (uint64_t key = 1; key <= CALLS; key++) {
    tensor *t = &tensors[rank][0];

    tensor_make(t, EACH_EACH, rank, WIDTH);
    tensor_fill(t, key, 0x5a);
    tensor_open(t, key);
    redistribute(t, stream);
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    ranks_barrier();
    tensor_close(t);
    NEED(tensor_holds(t, key));
    NEED_NO_VIOLATION();
    tensor_free(t);
    ranks_barrier();
  }
}

static void test_calls_of_freed_memory(void)
{
  world_make(3, COMM_NCCL, (sim_config){.seed = 0});
  world_go(calls_of_freed_memory);
}

/* Plans of one comm offer at once, and take their turns. */
static void calls_of_two_forms(int rank)
{
  cudaStream_t stream = world_stream();
  tensor *const of[2] = {tensors[rank], tensors[rank] + 1};

  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  tensor_make(of[0], RING, rank, WIDTH);
  tensor_make(of[1], EACH_EACH, rank, WIDTH);
  for (uint64_t key = 1; key <= CALLS; key++) {
    for (int i = 0; i < 2; i++) {
      tensor_fill(of[i], key, 0x5a);
      tensor_open(of[i], key);
    }
    for (int i = 0; i < 2; i++)
      redistribute(of[i], stream);
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    ranks_barrier();
    for (int i = 0; i < 2; i++) {
      tensor_close(of[i]);
      NEED(tensor_holds(of[i], key));
    }
    NEED_NO_VIOLATION();
    ranks_barrier();
  }
}

static void test_calls_of_two_forms(void)
{
  world_make(4, COMM_NCCL, (sim_config){.seed = 0});
  world_go(calls_of_two_forms);
}

/* A call that failed on all ranks is no call: the next one comes after the one before, on whatever
 * streams, where there is room for one plan. */
static void call_on_another_stream(int rank)
{
  cudaStream_t streams[3] = {world_stream(), world_stream(), world_stream()};

  make_tensors(rank, RING);
  redistribute(&tensors[rank][0], streams[0]);
  NEED(cudaStreamSynchronize(streams[0]) == cudaSuccess);
  ranks_barrier();
  if (rank == 1) world_hold_up(streams[0], w.n);
  redistribute(&tensors[rank][1], streams[0]);
  if (rank == 1) OK(xfer_comm_refuse(w.comms[rank], "not now"));
  NEED(tensor_redistribute(&tensors[rank][2], streams[1]) != XFER_OK);
  redistribute(&tensors[rank][3], streams[2]);
  NEED(rank != 0 || cudaStreamQuery(streams[2]) == cudaErrorNotReady);
  world_sleep_ms(20); /* for what would go too early */
  ranks_barrier();
  if (rank == 1) sim_hold(w.n, false);
  for (int i = 0; i < 3; i++)
    NEED(cudaStreamSynchronize(streams[i]) == cudaSuccess);
  check_one(rank, 1);
  check_one(rank, 3);
}

static void test_a_call_after_one_that_failed_comes_after_the_one_before(void)
{
  world_make(2, COMM_GATHER, (sim_config){.n_devices = 3, .room = WIDTH + WIDTH / 2});
  world_go(call_on_another_stream);
}

/* ---- copies that are of no use, and that are not there -----------------------------------------
 */

/* Between ranks of which none reads another's memory nothing is copied for them. */
static uint64_t
    n_bytes_of[2]; /* on all devices, after the first call: with room for copies, without */

static void one_call(int rank)
{
  cudaStream_t stream = world_stream();

  make_tensors(rank, RING);
  redistribute(&tensors[rank][0], stream);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  if (rank == 0) n_bytes_of[sim_config_now().without_room] = sim_count().bytes;
  ranks_barrier();
  check_one(rank, 0);
  for (int i = 0; i < CALLS; i++)
    tensor_free(&tensors[rank][i]);
}

static void test_who_is_read_by_nobody_keeps_no_copies(void)
{
  for (int without = 0; without < 2; without++) {
    world_make(2, COMM_NCCL,
               (sim_config){.n_devices = 2, .apart = {2, 1}, .without_room = without});
    world_go(one_call);
    world_destroy();
  }
  NEED(n_bytes_of[0] == n_bytes_of[1]);
}

/* Memory for the copies, which comes before all else of a plan's, is not to be had on rank 1. */
static void call_without_memory(int rank)
{
  cudaStream_t stream = world_stream();

  make_tensors(rank, EACH_EACH);
  for (int i = 0; i < 3; i++) {
    const sim_fault full = {
        .name = "cudaMalloc", .rank = 1, .nth = 1, .code = cudaErrorMemoryAllocation};

    ranks_barrier();
    if (rank == 0 && i == 0) sim_fault_add(&full);
    ranks_barrier();
    redistribute(&tensors[rank][i], stream);
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    check_one(rank, i);
  }
}

static void test_without_memory_for_copies_messages_go(void)
{
  const uint64_t n_before = sim_calls_of("ncclSend");

  world_make(3, COMM_NCCL, (sim_config){.n_devices = 3});
  world_go(call_without_memory);
  NEED(sim_count().faults == 1);
  NEED(sim_calls_of("ncclSend") > n_before);
  world_destroy();
}

/* ---- copies for which there is no room, and then there is ---------------------------------------
 */

enum { KEPT = 64, ROOM = 2 * WIDTH + WIDTH / 2 };

static uint64_t sends_of(const tensor *t, int n, cudaStream_t stream)
{
  uint64_t before;
  uint64_t after;

  ranks_barrier();
  before = sim_calls_of("ncclSend");
  ranks_barrier();
  for (int i = 0; i < n; i++) {
    tensor_fill(t, (uint64_t)i + 1, 0x5a);
    tensor_open(t, (uint64_t)i + 1);
    ranks_barrier();
    redistribute(t, stream);
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    NEED(sim_settle(TIMEOUT_MS)); /* else a second plan may be made */
    ranks_barrier();
    tensor_close(t);
    NEED(tensor_holds(t, (uint64_t)i + 1));
  }
  ranks_barrier();
  after = sim_calls_of("ncclSend");
  ranks_barrier();
  return after - before;
}

/* Of two tensors one finds room. */
static void calls_of_one_then_of_another(int rank)
{
  cudaStream_t stream = world_stream();
  tensor *const of = tensors[rank];

  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  for (int i = 0; i < 2; i++)
    tensor_make(&of[i], RING, rank, WIDTH + i);
  (void)sends_of(&of[0], 1, stream); /* making lanes sends as well */
  NEED(sends_of(&of[0], 3, stream) == 0);
  (void)sends_of(&of[1], 1, stream);
  NEED(sends_of(&of[1], KEPT - 2, stream) >= KEPT - 2);
  NEED(sends_of(&of[0], 1, stream) == 0); /* it was used not long ago */
  NEED(sends_of(&of[1], KEPT, stream) >= KEPT);
  (void)sends_of(&of[1], 1, stream);
  NEED(sends_of(&of[1], KEPT, stream) == 0);
  (void)sends_of(&of[0], 1, stream);
  NEED(sends_of(&of[0], 3, stream) >= 3);
  NEED_NO_VIOLATION();
}

static void test_who_was_not_called_for_long_makes_room(void)
{
  world_make(3, COMM_NCCL, (sim_config){.n_devices = 3, .room = ROOM});
  world_go(calls_of_one_then_of_another);
}

/* ---- late -------------------------------------------------------------------------------------
 */

enum { WIDE = 2 << 20, SHORT_MS = 700, HELD_MS = 2500 };

static void *let_go(void *unused)
{
  world_sleep_ms(world_time(HELD_MS));
  sim_hold(1, false);
  return unused;
}

static _Atomic bool is_held;

/* True: rank 1's device stands still with the copy half done. False: it is done. */
static bool hold_while_it_reads(const unsigned char *bytes)
{
  int n_there = 0;

  while (n_there < 64) {
    sim_hold(1, true); /* nothing is written while we look */
    for (int i = n_there = 0; i < WIDE; i += WIDE / 64)
      n_there += bytes[i] != 0x5a;
    if (n_there > 0 && n_there < 64) return true;
    sim_hold(1, false);
    (void)sched_yield();
  }
  return false;
}

/* Rank 1's device stops in the middle of what it reads, which is to stay there though the next call
 * gives rank 0 a source of another form. There is room for one plan. */
static void read_while_the_next_comes(int rank)
{
  static tensor wide[2];
  cudaStream_t stream = world_stream();
  pthread_t helper;
  tensor *t = &wide[rank];
  unsigned char *spread = world_alloc((size_t)2 * WIDE);
  const int64_t stride = 2;
  xfer_view src;
  xfer_view dst;

  tensor_make(t, RING, rank, WIDE);
  tensor_fill(t, 1, 0x5a);
  tensor_open(t, 1);
  redistribute(t, stream);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  OK(xfer_comm_set_timeout(w.comms[rank], (uint64_t)world_time(SHORT_MS)));
  while (!is_held) {
    memset(t->bytes[TO], 0x5a, WIDE);
    ranks_barrier();
    OK_IN_TIME(tensor_redistribute(t, stream));
    if (rank == 1) is_held = hold_while_it_reads(t->bytes[TO]);
    ranks_barrier();
    if (!is_held) NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    ranks_barrier();
  }
  if (rank == 1) NEED(pthread_create(&helper, NULL, let_go, NULL) == 0);
  ranks_barrier();
  src = rank == 0 ? xfer_view_strided(spread, &stride, 1) : xfer_view_dense(t->bytes[FROM]);
  dst = xfer_view_dense(t->bytes[TO]);
  const xfer_status st =
      xfer_redistribute(w.comms[rank], t->layouts[FROM], &src, t->layouts[TO], &dst, stream);
  NEED_IN_TIME(rank != 0 ||
               (st == XFER_ERR_TIMEOUT && strstr(xfer_last_error(), "rank 1 did not finish")));
  if (rank == 1) NEED(pthread_join(helper, NULL) == 0);
  ranks_barrier();
  NEED(sim_settle(TIMEOUT_MS));
  NEED_NO_VIOLATION();
  ranks_barrier();
}

static void test_who_reads_late_reads_what_was_there(void)
{
  world_make(2, COMM_GATHER, (sim_config){.n_devices = 2, .room = WIDE + WIDE / 2});
  world_go(read_while_the_next_comes);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"small_calls_do_not_wait_for_those_before", test_small_calls_do_not_wait_for_those_before},
      {"small_calls_of_columns_do_not_wait_for_those_before",
       test_small_calls_of_columns_do_not_wait_for_those_before},
      {"small_messages_do_not_wait_for_those_before",
       test_small_messages_do_not_wait_for_those_before},
      {"small_messages_between_islands_do_not_wait_for_those_before",
       test_small_messages_between_islands_do_not_wait_for_those_before},
      {"calls_with_large_tables", test_calls_with_large_tables},
      {"messages_with_large_tables", test_messages_with_large_tables},
      {"calls_of_ranks_that_share_a_queue", test_calls_of_ranks_that_share_a_queue},
      {"calls_of_freed_memory", test_calls_of_freed_memory},
      {"calls_of_two_forms", test_calls_of_two_forms},
      {"a_call_after_one_that_failed_comes_after_the_one_before",
       test_a_call_after_one_that_failed_comes_after_the_one_before},
      {"who_is_read_by_nobody_keeps_no_copies", test_who_is_read_by_nobody_keeps_no_copies},
      {"without_memory_for_copies_messages_go", test_without_memory_for_copies_messages_go},
      {"who_was_not_called_for_long_makes_room", test_who_was_not_called_for_long_makes_room},
      {"who_reads_late_reads_what_was_there", test_who_reads_late_reads_what_was_there},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
