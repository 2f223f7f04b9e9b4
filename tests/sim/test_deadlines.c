/*
 * Waits and their deadlines: runs and waits end in time, whoever does not come, a wait that is too
 * short harms nothing, and a look does not wait. Names of tests are rows of the review of the
 * engine.
 */
#include "as_processes.h"
#include "rank_plans.h"
#include "unit/interrupts.h"

#include <string.h>
#include <time.h>

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

/* ---- E5: a rank that does not come -------------------------------------------------------- */

enum { LEAVING_MS = 2000, SLACK_MS = 700 }; /* beyond the deadline; of this host */
enum { TRIES = 8 };                         /* whose load is now and then more than that */

static _Atomic bool is_late;

/* The last rank is elsewhere: neither its run nor its wait comes. */
static void alone(int rank)
{
  make(rank, 0, EACH_EACH);
  run_well(rank, 0, 1);
  set_short_timeout(rank, 0);
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

/* ---- an interrupt -------------------------------------------------------------------------- */

/* Rank 0's wait is interrupted before rank 1 has begun, whose memory nobody touches any more. Rank
 * 1 then hears of it, long before its deadline, and a commit makes all well. */
static void interrupted(int rank)
{
  enum { SOON_MS = 100 };
  tensor *t = &tensors[0][rank];

  make(rank, 0, RING);
  run_well(rank, 0, 1);
  tensor_fill(t, 2, LIVE);
  ranks_barrier();
  if (rank == 1) {
    world_sleep_ms(5 * SOON_MS);
    NEED(tensor_is_all(t, LIVE));
  }
  tensor_open(t, 2);
  (void)!xfer_plan_run(plans[0][rank], 2, streams[0][rank]);
  if (rank == 0) interrupt_after(SOON_MS);
  need_failed_wait(rank, 0, LONG_MS / 2);
  NEED(strstr(xfer_last_error(), rank == 0 ? "this rank was interrupted" : "rank 0") != NULL);
  interrupt_no_more();
  ranks_barrier();
  NEED_NO_VIOLATION();
  NEED(xfer_plan_run(plans[0][rank], 3, streams[0][rank]) == XFER_ERR_STATE);
  OK_IN_TIME(xfer_plan_commit(plans[0][rank]));
  run_well(rank, 0, 3);
  unmake(rank, 0);
}

static void test_a_wait_is_interrupted_direct(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_DIRECT, interrupted);
}

static void test_a_wait_is_interrupted_gather(void)
{
  in_world(2, COMM_GATHER, XFER_LANE_DIRECT, interrupted);
}

static void test_a_wait_is_interrupted_packed(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_PACKED, interrupted);
}

/* ---- E2: more than a queue takes ----------------------------------------------------------- */

static bool by_interrupt; /* before the deadline */

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
  if (!by_interrupt) ranks_set_timeout(plan, (uint64_t)SHORT_MS);
  ranks_barrier();
  if (rank == 0) {
    const int64_t began = world_ms();
    if (by_interrupt) interrupt_after(SHORT_MS);
    NEED(xfer_plan_run(plan, 2, stream) == XFER_ERR_TIMEOUT);
    NEED(xfer_plan_wait(plan, 0) != XFER_OK);
    interrupt_no_more();
    NEED(world_ms() - began < 10000);
  }
  ranks_barrier();
  NEED_NO_VIOLATION();
}

static void test_e2_a_full_queue_ends_at_the_deadline_packed(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_PACKED, unmet);
}

static void test_a_full_queue_is_interrupted_packed(void)
{
  by_interrupt = true;
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
  set_short_timeout(rank, 0);
  ranks_barrier();
  for (int p = 0; p < 2 && rank == 0; p++)
    OK_IN_TIME(xfer_plan_run(plans[p][0], 2, streams[p][0]));
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
static ranks_meeting *meeting;

/* A run of the first plan waits for rank 1; then the second, which fits in the same slots, connects
 * in vain. What was in flight ends with the messages that fail, and nobody looks at it again. */
static void connect_in_vain(int rank)
{
  struct timespec began;
  struct timespec ended;

  NEED(ranks_come(meeting, rank));
  OK(make_comm_as_process(&w.comms[rank], meeting, rank));
  ranks_go(meeting, rank);
  make(rank, 0, RING);
  run_well(rank, 0, 1);
  tensor_make(&tensors[1][rank], RING, rank, WIDTH / 2);
  plans[1][rank] = world_plan(rank, &tensors[1][rank], 1, lane, connect_ms);
  ranks_set_timeout(plans[0][rank], run_ms);
  tensor_open(&tensors[0][rank], 2);
  if (rank == 1) wait_for_other_work(streams[0][1], 2);
  ranks_barrier();
  OK_IN_TIME(xfer_plan_run(plans[0][rank], 2, streams[0][rank]));
  NEED_IN_TIME(xfer_plan_commit(plans[1][rank]) != XFER_OK);
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

static void connects_in_vain(int64_t run, int64_t connect)
{
  run_ms = (uint64_t)run;
  connect_ms = (uint64_t)connect;
  lane = XFER_LANE_PACKED;
  world_clear(2, (sim_config){.n_devices = 3});
  meeting = ranks_meet(2, COMM_NCCL);
  NEED(meeting != NULL);
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
  ranks_set_timeout(plans[0][rank], (uint64_t)(5 * SHORT_MS));
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

int main(int argc, char **argv)
{
  static const world_test tests[] = {
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
      {"a_full_queue_is_interrupted_packed", test_a_full_queue_is_interrupted_packed},
      {"a_wait_is_interrupted_direct", test_a_wait_is_interrupted_direct},
      {"a_wait_is_interrupted_gather", test_a_wait_is_interrupted_gather},
      {"a_wait_is_interrupted_packed", test_a_wait_is_interrupted_packed},
      {"looking_does_not_block_nccl", test_looking_does_not_block_nccl},
      {"looking_does_not_block_packed", test_looking_does_not_block_packed},
      {"looking_sees_that_a_rank_that_relays_has_left",
       test_looking_sees_that_a_rank_that_relays_has_left},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
