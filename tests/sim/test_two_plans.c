/* Two plans of one comm in flight at once: they share slots, and where one fails the other's
 * messages are not taken for its own. */
#include "world.h"

#include <string.h>

enum { PLANS = 2, TIMEOUT_MS = 1500, LONG_MS = 60000, LIVE = 0x77 };

static const char *failing;
static xfer_lane lane;

/* A rank's plans, whose messages differ in size, after a run of each. */
static void make_both(int rank, tensor *tensors, xfer_plan **plans, cudaStream_t *streams)
{
  static const int64_t widths[PLANS] = {5000, 9000};

  for (int p = 0; p < PLANS; p++) {
    tensor_make(&tensors[p], EACH_EACH, rank, widths[p]);
    streams[p] = world_stream();
    plans[p] = world_plan(rank, &tensors[p], 1, lane, LONG_MS);
    OK(xfer_plan_commit(plans[p]));
    world_run(plans[p], &tensors[p], 1, 1, streams[p]);
  }
}

/* Rank 0's run of the first plan fails in the middle; then both ranks run the second, whose
 * messages have other sizes. Where NCCL is asked to match the two, all is lost. */
static void one_fails(int rank)
{
  tensor tensors[PLANS];
  xfer_plan *plans[PLANS];
  cudaStream_t streams[PLANS];

  make_both(rank, tensors, plans, streams);
  for (uint64_t nth = 1; nth < 8; nth++) {
    const uint64_t version = 2 * nth;
    const sim_fault fault = {
        .name = failing, .rank = 0, .nth = nth, .code = cudaErrorMemoryAllocation};
    bool all = true;

    for (int p = 0; p < PLANS; p++) {
      tensor_fill(&tensors[p], version + (uint64_t)p, LIVE);
      tensor_open(&tensors[p], version);
      ranks_set_timeout(plans[p], TIMEOUT_MS);
    }
    ranks_barrier();
    if (rank == 0) sim_fault_add(&fault);
    ranks_barrier();
    (void)!xfer_plan_run(plans[0], version, streams[0]);
    if (rank == 0) sim_fault_clear();
    (void)!xfer_plan_run(plans[1], version, streams[1]);
    for (int p = 0; p < PLANS; p++) {
      const xfer_status st = xfer_plan_wait(plans[p], 0);
      tensor_close(&tensors[p]);
      if (st == XFER_OK) NEED(tensor_holds(&tensors[p], version + (uint64_t)p));
    }
    ranks_barrier();
    NEED(sim_settle(10000));
    ranks_barrier(); /* what comes next makes it busy again */
    NEED_NO_VIOLATION();
    for (int p = 0; p < PLANS; p++) {
      const xfer_view src = xfer_view_dense(tensors[p].bytes[FROM]);
      const xfer_view dst = xfer_view_dense(tensors[p].bytes[TO]);
      ranks_set_timeout(plans[p], LONG_MS);
      OK(xfer_plan_bind(plans[p], 0, &src, &dst));
      all = xfer_plan_commit(plans[p]) == XFER_OK && all;
    }
    NEED_NO_VIOLATION();
    if (!all) return; /* the comm is broken, and says so */
    for (int p = 0; p < PLANS; p++)
      world_run(plans[p], &tensors[p], 1, version + 1, streams[p]);
  }
}

/* Rank 1 comes about when rank 0's deadlines pass, so that it may find the first plan's run over
 * and the second's not. */
static void one_is_late(int rank)
{
  enum { SHORT_MS = 60 };
  static const int64_t widths[PLANS] = {5000, 9000};
  tensor tensors[PLANS];
  xfer_plan *plans[PLANS];
  cudaStream_t streams[PLANS];
  bool usable = true;

  for (int p = 0; p < PLANS; p++) {
    tensor_make(&tensors[p], EACH_EACH, rank, widths[p]);
    streams[p] = world_stream();
    plans[p] = world_plan(rank, &tensors[p], 1, lane, LONG_MS);
    OK(xfer_plan_commit(plans[p]));
  }
  for (uint64_t i = 1; i <= 12 && usable; i++) {
    for (int p = 0; p < PLANS; p++) {
      tensor_fill(&tensors[p], i + (uint64_t)p, LIVE);
      ranks_set_timeout(plans[p], SHORT_MS + 3 * (uint64_t)p);
    }
    ranks_barrier();
    if (rank == 1) world_sleep_ms(SHORT_MS - 3 + (int64_t)i);
    for (int p = 0; p < PLANS; p++)
      tensor_open(&tensors[p], i);
    for (int p = 0; p < PLANS; p++)
      (void)!xfer_plan_run(plans[p], i, streams[p]);
    for (int p = 0; p < PLANS; p++) {
      const xfer_status st = xfer_plan_wait(plans[p], 0);
      tensor_close(&tensors[p]);
      if (st == XFER_OK) NEED(tensor_holds(&tensors[p], i + (uint64_t)p));
    }
    ranks_barrier();
    NEED(sim_settle(10000));
    ranks_barrier(); /* what comes next makes it busy again */
    NEED_NO_VIOLATION();
    for (int p = 0; p < PLANS; p++)
      ranks_set_timeout(plans[p], LONG_MS);
    for (int p = 0; p < PLANS; p++)
      usable = xfer_plan_commit(plans[p]) == XFER_OK && usable;
  }
}

static void test_late_rank_packed(void)
{
  lane = XFER_LANE_PACKED;
  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  world_go(one_is_late);
}

/* Rank 0 refuses a run of the second plan while the first's messages are under way, which that
 * ends; then the second is committed again, before anybody waits for the first. */
static void one_is_committed_meanwhile(int rank)
{
  static const int64_t widths[PLANS] = {400000, 3000};
  tensor tensors[PLANS];
  xfer_plan *plans[PLANS];
  cudaStream_t streams[PLANS];
  xfer_status st;
  int n_failed = 0;

  for (int p = 0; p < PLANS; p++) {
    tensor_make(&tensors[p], RING, rank, widths[p]);
    streams[p] = world_stream();
    plans[p] = world_plan(rank, &tensors[p], 1, lane, LONG_MS);
    OK(xfer_plan_commit(plans[p]));
  }
  for (uint64_t version = 1; version < 13; version += 2) {
    for (int p = 0; p < PLANS; p++) {
      tensor_fill(&tensors[p], version + (uint64_t)p, LIVE);
      tensor_open(&tensors[p], version);
    }
    ranks_barrier();
    if (rank == 0 && version > 6) world_hold_up(streams[0], w.n);
    OK(xfer_plan_run(plans[0], version, streams[0]));
    if (rank == 0)
      OK(xfer_plan_refuse(plans[1], "not now"));
    else
      (void)!xfer_plan_run(plans[1], version, streams[1]);
    NEED(xfer_plan_wait(plans[1], 0) != XFER_OK);
    OK(xfer_plan_commit(plans[1]));
    if (rank == 0 && version > 6) sim_hold(w.n, false);
    st = xfer_plan_wait(plans[0], 0);
    tensor_close(&tensors[0]);
    NEED(st != XFER_OK || tensor_holds(&tensors[0], version));
    n_failed += st != XFER_OK;
    ranks_barrier();
    OK(xfer_plan_commit(plans[0]));
    for (int p = 0; p < PLANS; p++)
      world_run(plans[p], &tensors[p], 1, version + 1, streams[p]);
    NEED_NO_VIOLATION();
  }
  NEED(n_failed > 0);
}

static void test_committed_meanwhile_packed(void)
{
  lane = XFER_LANE_PACKED;
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3});
  world_go(one_is_committed_meanwhile);
}

/* All begin, on streams of their own, before one is waited for; plans come one by one, and what
 * they share grows. */
static void both_arrive(int rank)
{
  enum { MANY = 4, RUNS = 12 };
  static const int64_t widths[MANY] = {3000, 40000, 900, 70000};
  tensor tensors[MANY];
  xfer_plan *plans[MANY];
  cudaStream_t streams[MANY];

  for (int n = 0; n < MANY; n++) {
    tensor_make(&tensors[n], EACH_EACH, rank, widths[n]);
    streams[n] = world_stream();
    plans[n] = world_plan(rank, &tensors[n], 1, lane, 60000);
    OK(xfer_plan_commit(plans[n]));
    for (uint64_t i = 1; i <= RUNS; i++) {
      const uint64_t version = (uint64_t)n * RUNS + i;

      for (int p = 0; p <= n; p++) {
        tensor_fill(&tensors[p], version + (uint64_t)p, LIVE);
        tensor_open(&tensors[p], version);
      }
      ranks_barrier();
      for (int p = 0; p <= n; p++)
        OK(xfer_plan_run(plans[p], version, streams[p]));
      for (int p = 0; p <= n; p++) {
        OK(xfer_plan_wait(plans[p], 0));
        tensor_close(&tensors[p]);
        NEED(tensor_holds(&tensors[p], version + (uint64_t)p));
      }
      ranks_barrier();
    }
  }
  NEED_NO_VIOLATION();
}

static void test_share_slots_packed(void)
{
  lane = XFER_LANE_PACKED;
  world_make(3, COMM_NCCL, (sim_config){.seed = 0});
  world_go(both_arrive);
}

static void test_share_slots_broadcast(void)
{
  lane = XFER_LANE_BROADCAST;
  world_make(3, COMM_NCCL, (sim_config){.seed = 0});
  world_go(both_arrive);
}

/* A plan for each group of tensors, on one stream: an event between them passes when the first
 * group is there, though the second waits for a rank that has not begun it. */
static void groups_end_in_turn(int rank)
{
  static const int64_t widths[PLANS] = {5000, 9000};
  tensor tensors[PLANS];
  xfer_plan *plans[PLANS];
  const cudaStream_t stream = world_stream();
  cudaEvent_t first_ended;
  int over = -1;

  NEED(cudaEventCreateWithFlags(&first_ended, cudaEventDisableTiming) == cudaSuccess);
  for (int p = 0; p < PLANS; p++) {
    tensor_make(&tensors[p], EACH_EACH, rank, widths[p]);
    plans[p] = world_plan(rank, &tensors[p], 1, lane, 60000);
    OK(xfer_plan_commit(plans[p]));
    tensor_fill(&tensors[p], 1 + (uint64_t)p, LIVE);
    tensor_open(&tensors[p], 1);
  }
  ranks_barrier();
  OK(xfer_plan_run(plans[0], 1, stream));
  NEED(cudaEventRecord(first_ended, stream) == cudaSuccess);
  if (rank == 0) OK(xfer_plan_run(plans[1], 1, stream));
  NEED(cudaEventSynchronize(first_ended) == cudaSuccess);
  NEED(tensor_holds(&tensors[0], 1));
  if (rank == 0) OK(xfer_plan_test(plans[1], &over));
  NEED(rank != 0 || over == 0);
  ranks_barrier();
  if (rank != 0) OK(xfer_plan_run(plans[1], 1, stream));
  for (int p = 0; p < PLANS; p++) {
    OK(xfer_plan_wait(plans[p], 0));
    tensor_close(&tensors[p]);
    NEED(tensor_holds(&tensors[p], 1 + (uint64_t)p));
  }
  NEED(cudaEventDestroy(first_ended) == cudaSuccess);
  NEED_NO_VIOLATION();
}

static void test_groups_packed(void)
{
  lane = XFER_LANE_PACKED;
  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  world_go(groups_end_in_turn);
}

static void test_groups_direct(void)
{
  lane = XFER_LANE_DIRECT;
  world_make(3, COMM_GATHER, (sim_config){.seed = 0});
  world_go(groups_end_in_turn);
}

/* Rank 0's device is busy with other work for longer than a failed run is waited for: what the run
 * left in the slots may still be read, so no other plan may use them. */
static void one_does_not_end(int rank)
{
  enum { SHORT_MS = 300 };
  tensor tensors[PLANS];
  xfer_plan *plans[PLANS];
  cudaStream_t streams[PLANS];

  make_both(rank, tensors, plans, streams);
  ranks_set_timeout(plans[0], (uint64_t)world_time(SHORT_MS));
  tensor_open(&tensors[0], 2);
  ranks_barrier();
  if (rank == 0) sim_hold(0, true);
  ranks_barrier();
  (void)!xfer_plan_run(plans[0], 2, streams[0]);
  if (rank == 0) {
    NEED(xfer_plan_wait(plans[0], 0) != XFER_OK);
    NEED_IN_TIME(strstr(xfer_last_error(), "the work of run 2 is not done before the deadline"));
    NEED(xfer_plan_run(plans[1], 2, streams[1]) == XFER_ERR_STATE);
    NEED(strstr(xfer_last_error(), "staging memory was left to a failed run") != NULL);
    sim_hold(0, false);
  }
  ranks_barrier();
  if (rank != 0) NEED(xfer_plan_wait(plans[0], 0) != XFER_OK);
  ranks_barrier();
  NEED(sim_settle(10000));
  tensor_close(&tensors[0]);
  NEED_NO_VIOLATION();
}

static void test_a_device_that_does_not_end(void)
{
  lane = XFER_LANE_PACKED;
  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  world_go(one_does_not_end);
}

/* A refused run of the first plan ends the messages that are in flight. The second has none. */
static void one_is_refused(int rank)
{
  tensor tensors[PLANS];
  xfer_plan *plans[PLANS];
  cudaStream_t streams[PLANS];

  for (int p = 0; p < PLANS; p++) {
    tensor_make(&tensors[p], EACH_EACH, rank, 5000);
    streams[p] = world_stream();
    plans[p] =
        world_plan(rank, &tensors[p], 1, p == 0 ? XFER_LANE_PACKED : XFER_LANE_DIRECT, LONG_MS);
    OK(xfer_plan_commit(plans[p]));
    world_run(plans[p], &tensors[p], 1, 1, streams[p]);
  }
  if (rank == 0)
    OK(xfer_plan_refuse(plans[0], "on purpose"));
  else
    (void)!xfer_plan_run(plans[0], 2, streams[0]);
  NEED(xfer_plan_wait(plans[0], 0) != XFER_OK);
  world_run(plans[1], &tensors[1], 1, 2, streams[1]);
  OK(xfer_plan_commit(plans[0]));
  world_run(plans[0], &tensors[0], 1, 3, streams[0]);
  NEED_NO_VIOLATION();
}

static void test_refused_packed_spares_direct(void)
{
  world_make(3, COMM_NCCL, (sim_config){.seed = 0});
  world_go(one_is_refused);
}

/* What a refused run of the first plan ends, the second one's next run misses: a commit makes that
 * good, and the comm is well. */
static void one_asks_for_a_commit(int rank)
{
  tensor tensors[PLANS];
  xfer_plan *plans[PLANS];
  const cudaStream_t stream = world_stream();

  for (int p = 0; p < PLANS; p++) {
    tensor_make(&tensors[p], EACH_EACH, rank, 5000);
    plans[p] = world_plan(rank, &tensors[p], 1, XFER_LANE_PACKED, LONG_MS);
    OK(xfer_plan_commit(plans[p]));
  }
  if (rank == 0)
    OK(xfer_plan_refuse(plans[0], "on purpose"));
  else
    (void)!xfer_plan_run(plans[0], 1, stream);
  NEED(xfer_plan_wait(plans[0], 0) != XFER_OK);
  NEED(xfer_plan_run(plans[1], 1, stream) == XFER_ERR_COMM);
  NEED(strstr(xfer_last_error(), "need another commit") != NULL);
  ranks_barrier(); /* who waits for it leaves it */
  NEED(xfer_plan_wait(plans[1], 0) == XFER_ERR_COMM);
  OK(xfer_comm_check(w.comms[rank]));
  for (int p = 0; p < PLANS; p++) {
    OK(xfer_plan_commit(plans[p]));
    world_run(plans[p], &tensors[p], 1, 2, stream);
  }
  NEED_NO_VIOLATION();
}

static void test_refused_asks_others_for_a_commit_packed(void)
{
  world_make(3, COMM_NCCL, (sim_config){.seed = 0});
  world_go(one_asks_for_a_commit);
}

static void with_failing(const char *name, xfer_lane l)
{
  failing = name;
  lane = l;
  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  world_go(one_fails);
}

static void test_failed_record_packed(void)
{
  with_failing("cudaEventRecord", XFER_LANE_PACKED);
}

static void test_failed_kernel_packed(void)
{
  with_failing("copy kernel", XFER_LANE_PACKED);
}

static void test_failed_send_packed(void)
{
  with_failing("ncclSend", XFER_LANE_PACKED);
}

static void test_failed_broadcast(void)
{
  with_failing("ncclBroadcast", XFER_LANE_BROADCAST);
}

static void test_failed_kernel_direct(void)
{
  with_failing("copy kernel", XFER_LANE_DIRECT);
}

/* ---- a plan that stays where the comm's messages do not ------------------------------------ */

/* The first plan's run fails, and with it all connections end, of which its commit makes its own
 * again. The second, whose runs are well, needs no commit: it goes on by others. */
static void one_stays(int rank)
{
  static const form forms[PLANS] = {FROM_FIRST, RING};
  const sim_fault fault = {.name = "ncclSend", .rank = 0, .nth = 1, .code = 1};
  tensor tensors[PLANS];
  xfer_plan *plans[PLANS];
  cudaStream_t stream = world_stream();

  for (int p = 0; p < PLANS; p++) {
    tensor_make(&tensors[p], forms[p], rank, 5000);
    plans[p] =
        world_plan(rank, &tensors[p], 1, p == 0 ? XFER_LANE_PACKED : lane, (uint64_t)LONG_MS);
    OK(xfer_plan_commit(plans[p]));
    world_run(plans[p], &tensors[p], 1, 1, stream);
  }
  for (uint64_t version = 2; version < 8; version += 2) {
    tensor_open(&tensors[0], version);
    ranks_set_timeout(plans[0], TIMEOUT_MS);
    if (rank == 0) sim_fault_add(&fault);
    ranks_barrier();
    (void)!xfer_plan_run(plans[0], version, stream);
    if (rank == 0) sim_fault_clear();
    NEED(xfer_plan_wait(plans[0], 0) != XFER_OK);
    tensor_close(&tensors[0]);
    ranks_barrier();
    NEED(sim_settle(10000));
    ranks_barrier();
    ranks_set_timeout(plans[0], LONG_MS);
    OK_IN_TIME(xfer_plan_commit(plans[0]));
    for (uint64_t run = version; run < version + 2; run++)
      world_run(plans[1], &tensors[1], 1, run, stream);
    world_run(plans[0], &tensors[0], 1, version + 1, stream);
  }
}

static void with_one_that_stays(xfer_lane l)
{
  lane = l;
  world_make(3, COMM_NCCL, (sim_config){.eager = true});
  world_go(one_stays);
}

static void test_one_stays_packed(void)
{
  with_one_that_stays(XFER_LANE_PACKED);
}

static void test_one_stays_broadcast(void)
{
  with_one_that_stays(XFER_LANE_BROADCAST);
}

/* Rank 0 runs a plan and then makes a call of as many bytes, rank 1 the call first: each would take
 * the other's messages. */
static void run_and_call(int rank)
{
  tensor tensors[PLANS];
  xfer_plan *plan;
  cudaStream_t stream = world_stream();

  for (int p = 0; p < PLANS; p++) {
    tensor_make(&tensors[p], EACH_EACH, rank, 3000);
    tensor_fill(&tensors[p], (uint64_t)p + 1, LIVE);
    tensor_open(&tensors[p], (uint64_t)p + 1);
  }
  plan = world_plan(rank, &tensors[0], 1, lane, LONG_MS);
  OK(xfer_plan_commit(plan));
  OK(tensor_redistribute(&tensors[1], stream));
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  for (uint64_t i = 1; i <= 2; i++) {
    if (rank == 0) OK(xfer_plan_run(plan, i, stream));
    NEED(tensor_redistribute(&tensors[1], stream) == XFER_ERR_MISMATCH);
    NEED(strstr(xfer_last_error(),
                i == 1 ? "rank 1 has begun 0 runs" : "rank 1 has begun 1 runs") != NULL);
    NEED(strstr(xfer_last_error(), i == 1 ? ", rank 0 1: " : ", rank 0 2: ") != NULL);
    if (rank == 1) OK(xfer_plan_run(plan, i, stream));
    OK(tensor_redistribute(&tensors[1], stream)); /* before the run is over */
    OK(xfer_plan_wait(plan, 0));
  }
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  for (int p = 0; p < PLANS; p++) {
    tensor_close(&tensors[p]);
    NEED(tensor_holds(&tensors[p], (uint64_t)p + 1));
  }
  NEED_NO_VIOLATION();
}

static void test_a_call_in_another_order(void)
{
  lane = XFER_LANE_PACKED;
  world_make(2, COMM_NCCL, (sim_config){.seed = 0});
  world_go(run_and_call);
}

/* Each rank runs two plans of as many bytes, in another order than the other. Once that is known,
 * of one or of both, calls are told of nothing. */
static int n_waited;

static void both_orders(int rank)
{
  tensor tensors[PLANS + 1];
  xfer_plan *plans[PLANS];
  cudaStream_t stream = world_stream();

  for (int p = 0; p <= PLANS; p++) {
    tensor_make(&tensors[p], EACH_EACH, rank, 3000);
    tensor_fill(&tensors[p], (uint64_t)p + 1, LIVE);
    tensor_open(&tensors[p], (uint64_t)p + 1);
  }
  for (int p = 0; p < PLANS; p++) {
    plans[p] = world_plan(rank, &tensors[p], 1, lane, LONG_MS);
    OK(xfer_plan_commit(plans[p]));
  }
  for (int p = 0; p < PLANS; p++)
    OK(xfer_plan_run(plans[(p + rank) % PLANS], 1, stream));
  for (int p = 0; p < n_waited; p++)
    NEED(xfer_plan_wait(plans[p], 0) != XFER_OK);
  for (int p = 0; p < PLANS; p++)
    xfer_plan_destroy(plans[p]);
  ranks_barrier();
  OK(tensor_redistribute(&tensors[PLANS], stream));
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  tensor_close(&tensors[PLANS]);
  NEED(tensor_holds(&tensors[PLANS], PLANS + 1));
}

static void test_plans_in_another_order(void)
{
  lane = XFER_LANE_PACKED;
  for (n_waited = 1; n_waited <= PLANS; n_waited++) {
    world_make(2, COMM_NCCL, (sim_config){.seed = 0});
    world_go(both_orders);
    world_destroy();
  }
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"two_plans_failed_record_packed", test_failed_record_packed},
      {"two_plans_failed_kernel_packed", test_failed_kernel_packed},
      {"two_plans_failed_send_packed", test_failed_send_packed},
      {"two_plans_failed_broadcast", test_failed_broadcast},
      {"two_plans_failed_kernel_direct", test_failed_kernel_direct},
      {"two_plans_a_device_that_does_not_end", test_a_device_that_does_not_end},
      {"two_plans_late_rank_packed", test_late_rank_packed},
      {"two_plans_committed_meanwhile_packed", test_committed_meanwhile_packed},
      {"two_plans_refused_packed_spares_direct", test_refused_packed_spares_direct},
      {"two_plans_refused_asks_others_for_a_commit_packed",
       test_refused_asks_others_for_a_commit_packed},
      {"two_plans_of_which_one_stays_packed", test_one_stays_packed},
      {"two_plans_of_which_one_stays_broadcast", test_one_stays_broadcast},
      {"two_plans_share_slots_packed", test_share_slots_packed},
      {"two_plans_share_slots_broadcast", test_share_slots_broadcast},
      {"two_plans_event_between_groups_packed", test_groups_packed},
      {"two_plans_event_between_groups_direct", test_groups_direct},
      {"a_plan_and_a_call_in_another_order", test_a_call_in_another_order},
      {"a_call_after_plans_in_another_order", test_plans_in_another_order},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
