/*
 * Runs that go wrong: peers that are late or refused, deadlines that pass. Names of tests are rows
 * of the review of the engine.
 */
#include "machine.h"
#include "world.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 5000, SHORT_MS = 300, LONG_MS = 20000, LIVE = 0x77, STREAMS = 2 };

static tensor tensors[2][WORLD_RANKS]; /* of the first plan, of the second */
static xfer_plan *plans[2][WORLD_RANKS];
static cudaStream_t streams[STREAMS][WORLD_RANKS];
static comm_kind kind;
static xfer_lane lane;

/* Of the program's link: ranks are taken for processes while they make a comm. */
pid_t __real_getpid(void);
pid_t __wrap_getpid(void);
static bool are_processes;

pid_t __wrap_getpid(void)
{
  return are_processes ? 1000 + sim_self()->rank : __real_getpid();
}

static void make(int rank, int p, form shape)
{
  tensor_make(&tensors[p][rank], shape, rank, WIDTH);
  streams[p][rank] = world_stream();
  plans[p][rank] = world_plan(rank, &tensors[p][rank], 1, lane, LONG_MS);
  OK(xfer_plan_commit(plans[p][rank]));
}

static void run_well(int rank, int p, uint64_t version)
{
  world_run(plans[p][rank], &tensors[p][rank], 1, version, streams[p][rank]);
}

static void unmake(int rank, int p)
{
  xfer_plan_destroy(plans[p][rank]);
  ranks_barrier();
  tensor_free(&tensors[p][rank]);
}

/* A device is busy with other work once all tensors have their values. */
static void fill_and_hold(const tensor *t, uint64_t version, int byte, int held)
{
  tensor_fill(t, version, byte);
  tensor_open(t, version);
  ranks_barrier();
  if (t->rank == 0) sim_hold(held, true);
  ranks_barrier();
}

/* The plan's run fails here, and says so in good time. */
static void need_failed_wait(int rank, int p, int64_t within_ms)
{
  const int64_t began = world_ms();
  const xfer_status st = xfer_plan_wait(plans[p][rank], 0);

  NEED(st != XFER_OK);
  NEED(world_ms() - began < within_ms);
  tensor_close(&tensors[p][rank]);
}

/* ---- E1, E2: a peer that is late ---------------------------------------------------------- */

/*
 * Rank 0 runs, rank 1 still reads its weights; rank 0's deadline passes. Rank 1's memory is not
 * touched until it says that it may be. Then it runs, and both learn that this run has failed.
 */
static void late_run(int rank, uint64_t version)
{
  tensor *t = &tensors[0][rank];

  ranks_set_timeout(plans[0][rank], SHORT_MS);
  tensor_fill(t, version, LIVE);
  ranks_barrier();
  if (rank == 0) {
    tensor_open(t, version);
    OK(xfer_plan_run(plans[0][0], version, streams[0][0]));
    NEED(cudaStreamSynchronize(streams[0][0]) == cudaSuccess); /* as a caller may do */
    world_sleep_ms(100);
  }
  ranks_barrier();
  NEED_NO_VIOLATION();
  if (rank == 1) {
    NEED(tensor_is_all(t, LIVE));
    tensor_open(t, version);
    (void)!xfer_plan_run(plans[0][1], version, streams[0][1]);
  }
  need_failed_wait(rank, 0, 10000);
  ranks_set_timeout(plans[0][rank], LONG_MS);
  ranks_barrier();
  NEED_NO_VIOLATION();
}

static void e1_late(int rank)
{
  make(rank, 0, RING);
  run_well(rank, 0, 1);
  late_run(rank, 2);
  unmake(rank, 0);
}

static void e2_again(int rank)
{
  make(rank, 0, RING);
  run_well(rank, 0, 1);
  for (uint64_t version = 2; version < 8; version += 2) {
    late_run(rank, version);
    OK(xfer_plan_commit(plans[0][rank]));
    run_well(rank, 0, version + 1);
  }
  unmake(rank, 0);
}

static void in_world(int n, comm_kind k, xfer_lane l, void (*work)(int rank))
{
  kind = k;
  lane = l;
  world_make(n, kind, (sim_config){.seed = 0});
  world_go(work);
  world_destroy();
}

static void test_e1_late_rank_keeps_its_memory_gather(void)
{
  in_world(2, COMM_GATHER, XFER_LANE_DIRECT, e1_late);
}

static void test_e1_late_rank_keeps_its_memory_nccl(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_DIRECT, e1_late);
}

static void test_e2_runs_after_a_timeout_and_a_commit_gather(void)
{
  in_world(2, COMM_GATHER, XFER_LANE_DIRECT, e2_again);
}

static void test_e2_runs_after_a_timeout_and_a_commit_nccl(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_DIRECT, e2_again);
}

/* A plan whose deadline passes does not let go the waits of another with a later deadline. */
static void e1_other_plan(int rank)
{
  make(rank, 0, RING);
  make(rank, 1, RING);
  ranks_set_timeout(plans[0][rank], SHORT_MS);
  for (int p = 0; p < 2; p++)
    tensor_fill(&tensors[p][rank], 1, LIVE);
  ranks_barrier();
  for (int p = 0; p < 2 && rank == 0; p++) {
    tensor_open(&tensors[p][0], 1);
    OK(xfer_plan_run(plans[p][0], 1, streams[p][0]));
  }
  if (rank == 1) world_sleep_ms(3 * SHORT_MS);
  ranks_barrier();
  NEED_NO_VIOLATION();
  for (int p = 1; p >= 0 && rank == 1; p--) {
    NEED(tensor_is_all(&tensors[p][1], LIVE));
    tensor_open(&tensors[p][1], 1);
    const xfer_status st = xfer_plan_run(plans[p][1], 1, streams[p][1]);
    NEED(p == 0 || st == XFER_OK);
  }
  OK(xfer_plan_wait(plans[1][rank], 0));
  NEED(tensor_holds(&tensors[1][rank], 1));
  need_failed_wait(rank, 0, 10000);
  ranks_barrier();
  NEED_NO_VIOLATION();
  unmake(rank, 0);
  unmake(rank, 1);
}

static void test_e1_deadline_of_one_plan_spares_the_other(void)
{
  in_world(2, COMM_GATHER, XFER_LANE_DIRECT, e1_other_plan);
}

/* Rank 1's run is refused, since its memory moved; telling rank 0 does not open it. So is a look at
 * what it holds. */
static void refused(int rank)
{
  xfer_digest digest;

  make(rank, 0, RING);
  run_well(rank, 0, 1);
  ranks_barrier();
  if (rank == 1) {
    tensor_free(&tensors[0][1]);
    tensor_make(&tensors[0][1], RING, 1, WIDTH);
  }
  tensor_fill(&tensors[0][rank], 2, LIVE);
  ranks_barrier();
  NEED(xfer_plan_digest(plans[0][rank], &digest, 1, XFER_PLAN_SRC, streams[0][rank]) ==
       (rank == 1 ? XFER_ERR_STATE : XFER_ERR_PEER));
  NEED(strstr(xfer_last_error(), "freed or remapped") != NULL);
  if (rank == 0) tensor_open(&tensors[0][0], 2);
  const xfer_status st = xfer_plan_run(plans[0][rank], 2, streams[0][rank]);
  NEED(rank == 1 ? st == XFER_ERR_STATE : st == XFER_OK || st == XFER_ERR_PEER);
  need_failed_wait(rank, 0, LONG_MS / 2);
  ranks_barrier();
  NEED_NO_VIOLATION();
  if (rank == 1) NEED(tensor_is_all(&tensors[0][1], LIVE));
  if (lane != XFER_LANE_DIRECT) return; /* its comm is broken */
  const xfer_view src = xfer_view_dense(tensors[0][rank].bytes[FROM]);
  const xfer_view dst = xfer_view_dense(tensors[0][rank].bytes[TO]);
  OK(xfer_plan_bind(plans[0][rank], 0, &src, &dst));
  OK(xfer_plan_commit(plans[0][rank]));
  run_well(rank, 0, 3);
  unmake(rank, 0);
}

static void test_e1_refused_rank_keeps_its_memory_gather(void)
{
  in_world(2, COMM_GATHER, XFER_LANE_DIRECT, refused);
}

static void test_e1_refused_rank_keeps_its_memory_nccl(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_DIRECT, refused);
}

/* ---- E6: a word that says no more than that nothing came ----------------------------------- */

static _Atomic bool is_let_go;

/* Ranks 1 and 2 have halves for rank 0, and nothing for each other. Rank 2 fails; rank 0 meets that
 * and says so to rank 1, which is not to take the end of its wait for rank 0's copies. */
static void one_of_two_fails(int rank)
{
  const sim_fault fault = {.name = "cudaEventRecord", .rank = 2, .nth = 1, .code = 1};
  xfer_tensor list = {.name = "t"};
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  void *memory = world_alloc(400);
  const xfer_view view = xfer_view_dense(memory);
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;

  OK(xfer_problem_parse(&src, &dst, "u8[400] (2)@1-2:S0 -> (1)@0:R"));
  list.src = src;
  list.dst = dst;
  OK(xfer_plan_create(&plan, w.comms[rank], &list, 1, NULL));
  OK(xfer_plan_bind(plan, 0, &view, &view));
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  if (rank == 2) sim_fault_add(&fault);
  NEED((xfer_plan_run(plan, 1, stream) == XFER_OK) == (rank != 2));
  ranks_barrier();
  if (rank == 1) NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  if (rank == 1) is_let_go = true;
  while (rank == 0 && !is_let_go)
    world_sleep_ms(1);
  if (rank == 0) world_sleep_ms(300); /* rank 1 comes to its wait */
  NEED(xfer_plan_wait(plan, 0) != XFER_OK);
  NEED(rank != 1 || strstr(xfer_last_error(), "rank 0 failed in this run") != NULL);
  NEED_NO_VIOLATION();
}

static void test_e6_a_peer_of_a_peer_that_failed_is_told(void)
{
  in_world(3, COMM_GATHER, XFER_LANE_DIRECT, one_of_two_fails);
}

/* ---- E5: a wait that is too short --------------------------------------------------------- */

/* The device takes 150 ms; a wait of 20 ms says so and harms nothing. `both`: all ranks wait so. */
static void short_wait(int rank, bool both)
{
  make(rank, 0, EACH_EACH);
  run_well(rank, 0, 1);
  for (uint64_t version = 2; version < 5; version++) {
    tensor *t = &tensors[0][rank];
    fill_and_hold(t, version, LIVE, 0);
    OK(xfer_plan_run(plans[0][rank], version, streams[0][rank]));
    if (both || rank == 1) {
      const int64_t began = world_ms();
      NEED(xfer_plan_wait(plans[0][rank], 20) == XFER_ERR_TIMEOUT);
      NEED(world_ms() - began < 5000);
    }
    ranks_barrier();
    if (rank == 0) sim_hold(0, false);
    OK(xfer_plan_wait(plans[0][rank], 0));
    tensor_close(t);
    NEED(tensor_holds(t, version));
    NEED_NO_VIOLATION();
  }
  run_well(rank, 0, 9);
  unmake(rank, 0);
}

static void both_short(int rank)
{
  short_wait(rank, true);
}

static void one_short(int rank)
{
  short_wait(rank, false);
}

static void test_e5_short_wait_on_all_ranks_nccl(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_DIRECT, both_short);
}

static void test_e5_short_wait_on_all_ranks_packed(void)
{
  in_world(3, COMM_NCCL, XFER_LANE_PACKED, both_short);
}

static void test_e5_short_wait_on_one_rank_nccl(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_DIRECT, one_short);
}

static void test_e5_short_wait_on_one_rank_packed(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_PACKED, one_short);
}

/* ---- E2: more than a queue takes ----------------------------------------------------------- */

/* Of a run of more rounds than a stream's queue has room for, a peer never comes. */
static void unmet(int rank)
{
  enum { BYTES = 600 << 10, WINDOW = 1 << 10 };
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor list = {.name = "t"};
  xfer_plan *plan = NULL;
  void *memory = world_alloc(BYTES);
  const xfer_view view = xfer_view_dense(memory);
  const cudaStream_t stream = world_stream();

  options.lane = XFER_LANE_PACKED;
  options.window_bytes = WINDOW;
  options.timeout_ms = LONG_MS;
  OK(xfer_problem_parse((xfer_layout **)&list.src, (xfer_layout **)&list.dst,
                        "u8[614400] (1)@0:R -> (1)@1:R"));
  OK(xfer_plan_create(&plan, w.comms[rank], &list, 1, &options));
  OK(xfer_plan_bind(plan, 0, &view, &view));
  OK(xfer_plan_commit(plan));
  OK(xfer_plan_run(plan, 1, stream));
  OK(xfer_plan_wait(plan, 0));
  ranks_set_timeout(plan, SHORT_MS);
  ranks_barrier();
  if (rank == 0) {
    const int64_t began = world_ms();
    NEED(xfer_plan_run(plan, 2, stream) == XFER_ERR_TIMEOUT);
    NEED(xfer_plan_wait(plan, 0) != XFER_OK);
    NEED(world_ms() - began < 10000);
  }
  ranks_barrier();
  NEED_NO_VIOLATION();
}

static void test_e2_a_full_queue_ends_at_the_deadline_packed(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_PACKED, unmet);
}

/* ---- E2: rounds of two plans --------------------------------------------------------------- */

/* What is left on a stream ends by itself. */
static void need_end(cudaStream_t stream, int64_t within_ms)
{
  const int64_t began = world_ms();

  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    NEED(world_ms() - began < within_ms);
    world_sleep_ms(10);
  }
}

/* Rank 1 comes to neither run; the later deadline is that of the later one, and nobody waits. */
static void earlier_deadline(int rank)
{
  for (int p = 0; p < 2; p++) {
    make(rank, p, RING);
    run_well(rank, p, 1);
    tensor_open(&tensors[p][rank], 2);
  }
  ranks_set_timeout(plans[0][rank], SHORT_MS);
  ranks_barrier();
  for (int p = 0; p < 2 && rank == 0; p++)
    OK(xfer_plan_run(plans[p][0], 2, streams[p][0]));
  if (rank == 0) need_end(streams[0][0], LONG_MS / 2);
  ranks_barrier();
  NEED_NO_VIOLATION();
}

static void test_e2_the_earlier_deadline_of_two_runs_is_kept_packed(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_PACKED, earlier_deadline);
}

/* Rank 1's stream waits for a device that is busy with other work. */
static void wait_for_other_work(cudaStream_t stream, int device)
{
  cudaEvent_t event;

  sim_hold(device, true);
  NEED(cudaSetDevice(device) == cudaSuccess);
  NEED(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  NEED(cudaEventRecord(event, world_stream()) == cudaSuccess);
  NEED(cudaSetDevice(1) == cudaSuccess);
  NEED(cudaStreamWaitEvent(stream, event, 0) == cudaSuccess);
}

static uint64_t run_ms; /* the deadline of the run, and that of the commit */
static uint64_t connect_ms;

/* A run of the first plan waits for rank 1; then the second, which fits in the same slots, connects
 * in vain. What was in flight ends with the messages that fail, and nobody looks at it again. */
static void connect_in_vain(int rank)
{
  struct timespec began;
  struct timespec ended;

  make(rank, 0, RING);
  run_well(rank, 0, 1);
  tensor_make(&tensors[1][rank], RING, rank, WIDTH / 2);
  plans[1][rank] = world_plan(rank, &tensors[1][rank], 1, lane, connect_ms);
  ranks_set_timeout(plans[0][rank], run_ms);
  tensor_open(&tensors[0][rank], 2);
  if (rank == 1) wait_for_other_work(streams[0][1], 2);
  ranks_barrier();
  OK(xfer_plan_run(plans[0][rank], 2, streams[0][rank]));
  NEED(xfer_plan_commit(plans[1][rank]) != XFER_OK);
  if (rank == 0) need_end(streams[0][0], LONG_MS / 2);
  if (rank == 0) sim_hold(2, false); /* rank 1 frees memory, which waits for it */
  ranks_barrier();
  world_sleep_ms(4 * SHORT_MS); /* both deadlines pass */
  NEED(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &began) == 0);
  world_sleep_ms(1000);
  NEED(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ended) == 0);
  NEED((ended.tv_sec - began.tv_sec) * 1000 + (ended.tv_nsec - began.tv_nsec) / 1000000 < 100);
  ranks_barrier();
  NEED_NO_VIOLATION();
}

static void connects_in_vain(uint64_t run, uint64_t connect)
{
  run_ms = run;
  connect_ms = connect;
  lane = XFER_LANE_PACKED;
  are_processes = true;
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3});
  are_processes = false;
  world_go(connect_in_vain);
}

static void test_e2_what_a_commit_broke_is_not_looked_at_packed(void)
{
  connects_in_vain(4 * SHORT_MS, SHORT_MS);
}

static void test_e2_a_run_ends_in_time_while_a_commit_connects_packed(void)
{
  connects_in_vain(SHORT_MS, LONG_MS);
}

/* ---- a look that does not block ----------------------------------------------------------- */

/* While a device is busy with other work its rank's part is not over, and looking says so. */
static void look(int rank)
{
  tensor *t = &tensors[0][rank];

  make(rank, 0, EACH_EACH);
  for (uint64_t version = 0; version < 3; version++) {
    int over = -1;
    fill_and_hold(t, version, LIVE, 0);
    OK(xfer_plan_run(plans[0][rank], version, streams[0][rank]));
    OK(xfer_plan_test(plans[0][rank], &over));
    NEED(over == 0);
    ranks_barrier();
    if (rank == 0) sim_hold(0, false);
    while (over == 0)
      OK(xfer_plan_test(plans[0][rank], &over));
    NEED(over == 1);
    NEED(tensor_holds(t, version));
    OK(xfer_plan_wait(plans[0][rank], 0));
    tensor_close(t);
    NEED_NO_VIOLATION();
  }
  unmake(rank, 0);
}

static void test_looking_does_not_block_nccl(void)
{
  in_world(3, COMM_NCCL, XFER_LANE_DIRECT, look);
}

static void test_looking_does_not_block_packed(void)
{
  in_world(3, COMM_NCCL, XFER_LANE_PACKED, look);
}

/* The last rank, whose messages rank 0 waits for, does not come; rank 1, with which rank 0
 * exchanges nothing but what they relay, has left. */
static void look_for_who_relays(int rank)
{
  int over = 0;

  make(rank, 0, FROM_LAST);
  ranks_set_timeout(plans[0][rank], 5 * SHORT_MS);
  tensor_fill(&tensors[0][rank], 1, LIVE);
  tensor_open(&tensors[0][rank], 1);
  ranks_barrier();
  const int64_t began = world_ms();
  if (rank == 0) OK(xfer_plan_run(plans[0][0], 1, streams[0][0]));
  ranks_barrier();
  if (rank == 1) {
    xfer_plan_destroy(plans[0][1]);
    plans[0][1] = NULL;
  }
  ranks_barrier();
  if (rank == 0) OK(xfer_plan_test(plans[0][0], &over));
  NEED(rank != 0 || over == 1 || world_ms() - began > 5 * SHORT_MS);
  tensor_close(&tensors[0][rank]);
  unmake(rank, 0);
}

static void test_looking_sees_that_a_rank_that_relays_has_left(void)
{
  in_world(3, COMM_NCCL, XFER_LANE_PACKED, look_for_who_relays);
}

/* ---- E8: after a failed wait -------------------------------------------------------------- */

/*
 * One device is busy with other work for longer than the deadline. Once wait has failed the caller
 * restores its tensor, and nothing of the run may touch it any more. How long wait takes to be sure
 * is its own affair.
 */
static void restored(int rank)
{
  tensor *t = &tensors[0][rank];

  make(rank, 0, RING);
  run_well(rank, 0, 1);
  for (uint64_t version = 2; version < 8; version += 2) {
    const int held = (int)(version / 2) % w.n;
    ranks_set_timeout(plans[0][rank], SHORT_MS);
    fill_and_hold(t, version, 0x11, held);
    xfer_status st = xfer_plan_run(plans[0][rank], version, streams[0][rank]);
    if (st == XFER_OK && rank != held) st = xfer_plan_wait(plans[0][rank], 0);
    if (rank != held) {
      NEED(st != XFER_OK);
      tensor_close(t);
      tensor_fill(t, 100, LIVE);
    }
    if (rank == held) {
      world_sleep_ms(3 * SHORT_MS);
      sim_hold(held, false);
      NEED(xfer_plan_wait(plans[0][rank], 0) != XFER_OK);
      tensor_close(t);
      tensor_fill(t, 100, LIVE);
    }
    ranks_barrier();
    NEED(sim_settle(10000));
    ranks_barrier(); /* what comes next makes it busy again */
    NEED(tensor_is_all(t, LIVE));
    NEED_NO_VIOLATION();
    if (lane == XFER_LANE_PACKED) return; /* its comm may be broken */
    ranks_set_timeout(plans[0][rank], LONG_MS);
    OK(xfer_plan_commit(plans[0][rank]));
    run_well(rank, 0, version + 1);
  }
  unmake(rank, 0);
}

static void test_e8_nothing_is_touched_after_a_failed_wait_direct(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_DIRECT, restored);
}

static void test_e8_nothing_is_touched_after_a_failed_wait_packed(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_PACKED, restored);
}

/* ---- E10: peers are told ------------------------------------------------------------------ */

static void test_e10_peers_are_told_packed(void)
{
  in_world(3, COMM_NCCL, XFER_LANE_PACKED, refused);
}

static void test_e10_peers_are_told_broadcast(void)
{
  in_world(3, COMM_NCCL, XFER_LANE_BROADCAST, refused);
}

/* ---- E5: a rank that does not come -------------------------------------------------------- */

enum { LEAVING_MS = 2000, SLACK_MS = 700 }; /* beyond the deadline; of this host */
enum { TRIES = 8 };                         /* whose load is now and then more than that */

static _Atomic bool is_late;

/* The last rank is elsewhere: neither its run nor its wait comes. */
static void alone(int rank)
{
  make(rank, 0, EACH_EACH);
  run_well(rank, 0, 1);
  ranks_set_timeout(plans[0][rank], SHORT_MS);
  tensor_fill(&tensors[0][rank], 2, LIVE);
  tensor_open(&tensors[0][rank], 2);
  ranks_barrier();
  if (rank != w.n - 1) {
    (void)!xfer_plan_run(plans[0][rank], 2, streams[0][rank]);
    const int64_t began = world_ms();
    need_failed_wait(rank, 0, LONG_MS);
    if (world_ms() - began > SHORT_MS + LEAVING_MS + SLACK_MS) is_late = true;
  }
  ranks_barrier();
}

static void waits_end_in_time(xfer_lane l)
{
  for (int i = 0; i == 0 || (is_late && i < TRIES); i++) {
    is_late = false;
    in_world(3, COMM_NCCL, l, alone);
  }
  NEED(!is_late);
}

static void test_e5_waits_end_in_time_direct(void)
{
  waits_end_in_time(XFER_LANE_DIRECT);
}

static void test_e5_waits_end_in_time_packed(void)
{
  waits_end_in_time(XFER_LANE_PACKED);
}

static void test_e5_waits_end_in_time_broadcast(void)
{
  waits_end_in_time(XFER_LANE_BROADCAST);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"e1_late_rank_keeps_its_memory_gather", test_e1_late_rank_keeps_its_memory_gather},
      {"e1_late_rank_keeps_its_memory_nccl", test_e1_late_rank_keeps_its_memory_nccl},
      {"e1_deadline_of_one_plan_spares_the_other", test_e1_deadline_of_one_plan_spares_the_other},
      {"e1_refused_rank_keeps_its_memory_gather", test_e1_refused_rank_keeps_its_memory_gather},
      {"e1_refused_rank_keeps_its_memory_nccl", test_e1_refused_rank_keeps_its_memory_nccl},
      {"e2_runs_after_a_timeout_and_a_commit_gather",
       test_e2_runs_after_a_timeout_and_a_commit_gather},
      {"e2_runs_after_a_timeout_and_a_commit_nccl", test_e2_runs_after_a_timeout_and_a_commit_nccl},
      {"e2_a_full_queue_ends_at_the_deadline_packed",
       test_e2_a_full_queue_ends_at_the_deadline_packed},
      {"e2_the_earlier_deadline_of_two_runs_is_kept_packed",
       test_e2_the_earlier_deadline_of_two_runs_is_kept_packed},
      {"e2_what_a_commit_broke_is_not_looked_at_packed",
       test_e2_what_a_commit_broke_is_not_looked_at_packed},
      {"e2_a_run_ends_in_time_while_a_commit_connects_packed",
       test_e2_a_run_ends_in_time_while_a_commit_connects_packed},
      {"e5_short_wait_on_all_ranks_nccl", test_e5_short_wait_on_all_ranks_nccl},
      {"e5_short_wait_on_all_ranks_packed", test_e5_short_wait_on_all_ranks_packed},
      {"e5_short_wait_on_one_rank_nccl", test_e5_short_wait_on_one_rank_nccl},
      {"e5_short_wait_on_one_rank_packed", test_e5_short_wait_on_one_rank_packed},
      {"e5_waits_end_in_time_direct", test_e5_waits_end_in_time_direct},
      {"e5_waits_end_in_time_packed", test_e5_waits_end_in_time_packed},
      {"e5_waits_end_in_time_broadcast", test_e5_waits_end_in_time_broadcast},
      {"looking_does_not_block_nccl", test_looking_does_not_block_nccl},
      {"looking_does_not_block_packed", test_looking_does_not_block_packed},
      {"looking_sees_that_a_rank_that_relays_has_left",
       test_looking_sees_that_a_rank_that_relays_has_left},
      {"e8_nothing_is_touched_after_a_failed_wait_direct",
       test_e8_nothing_is_touched_after_a_failed_wait_direct},
      {"e8_nothing_is_touched_after_a_failed_wait_packed",
       test_e8_nothing_is_touched_after_a_failed_wait_packed},
      {"e6_a_peer_of_a_peer_that_failed_is_told", test_e6_a_peer_of_a_peer_that_failed_is_told},
      {"e10_peers_are_told_packed", test_e10_peers_are_told_packed},
      {"e10_peers_are_told_broadcast", test_e10_peers_are_told_broadcast},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
