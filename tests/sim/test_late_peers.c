/*
 * A peer that is late, refused or failed: its memory is left alone, and the others are told. Names
 * of tests are rows of the review of the engine.
 */
#include "rank_plans.h"

#include <string.h>

/* ---- E1, E2: a peer that is late ---------------------------------------------------------- */

/*
 * Rank 0 runs, rank 1 still reads its weights; rank 0's deadline passes. Rank 1's memory is not
 * touched until it says that it may be. Then it runs, and both learn that this run has failed.
 */
static void late_run(int rank, uint64_t version)
{
  tensor *t = &tensors[0][rank];

  set_short_timeout(rank, 0);
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
    OK_IN_TIME(xfer_plan_commit(plans[0][rank]));
    run_well(rank, 0, version + 1);
  }
  unmake(rank, 0);
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

static void test_e2_runs_after_a_timeout_and_a_commit_packed(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_PACKED, e2_again);
}

static void test_e2_runs_after_a_timeout_and_a_commit_broadcast(void)
{
  in_world(2, COMM_NCCL, XFER_LANE_BROADCAST, e2_again);
}

/* Rank 0 waits for ranks 1 and 3, whose devices wait for rank 2. */
static void e1_chain(int rank)
{
  static _Atomic bool has_given_up;

  make(rank, 0, RING);
  run_well(rank, 0, 1);
  if (rank == 0) set_short_timeout(rank, 0);
  tensor_fill(&tensors[0][rank], 2, LIVE);
  tensor_open(&tensors[0][rank], 2);
  ranks_barrier();
  while (rank == 2 && !has_given_up)
    world_sleep_ms(1);
  (void)!xfer_plan_run(plans[0][rank], 2, streams[0][rank]);
  need_failed_wait(rank, 0, 10000);
  if (rank == 0) NEED_IN_TIME(strstr(xfer_last_error(), "rank 2 did not come") != NULL);
  if (rank == 0) has_given_up = true;
  ranks_barrier();
  xfer_plan_destroy(plans[0][rank]);
  ranks_barrier();
  tensor_free(&tensors[0][rank]);
}

static void test_e1_late_rank_is_named_by_those_who_wait_for_another_gather(void)
{
  in_world(5, COMM_GATHER, XFER_LANE_DIRECT, e1_chain);
}

/* A plan whose deadline passes does not let go the waits of another with a later deadline. */
static void e1_other_plan(int rank)
{
  make(rank, 0, RING);
  make(rank, 1, RING);
  set_short_timeout(rank, 0);
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
  NEED(rank != 1 || strstr(xfer_last_error(), "rank 0 did not copy: it or another rank") != NULL);
  NEED_NO_VIOLATION();
}

static void test_e6_a_peer_of_a_peer_that_failed_is_told(void)
{
  in_world(3, COMM_GATHER, XFER_LANE_DIRECT, one_of_two_fails);
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
    set_short_timeout(rank, 0);
    fill_and_hold(t, version, 0x11, held);
    xfer_status st = xfer_plan_run(plans[0][rank], version, streams[0][rank]);
    if (st == XFER_OK && rank != held) st = xfer_plan_wait(plans[0][rank], 0);
    if (rank != held) {
      NEED(st != XFER_OK);
      tensor_close(t);
      tensor_fill(t, 100, LIVE);
    }
    if (rank == held) {
      world_sleep_ms(SHORT_MS + 500); /* the others wait for it for two seconds more */
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
    ranks_set_timeout(plans[0][rank], LONG_MS);
    OK_IN_TIME(xfer_plan_commit(plans[0][rank]));
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

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"e1_late_rank_keeps_its_memory_gather", test_e1_late_rank_keeps_its_memory_gather},
      {"e1_late_rank_keeps_its_memory_nccl", test_e1_late_rank_keeps_its_memory_nccl},
      {"e1_late_rank_is_named_by_those_who_wait_for_another_gather",
       test_e1_late_rank_is_named_by_those_who_wait_for_another_gather},
      {"e1_deadline_of_one_plan_spares_the_other", test_e1_deadline_of_one_plan_spares_the_other},
      {"e2_runs_after_a_timeout_and_a_commit_packed",
       test_e2_runs_after_a_timeout_and_a_commit_packed},
      {"e2_runs_after_a_timeout_and_a_commit_broadcast",
       test_e2_runs_after_a_timeout_and_a_commit_broadcast},
      {"e1_refused_rank_keeps_its_memory_gather", test_e1_refused_rank_keeps_its_memory_gather},
      {"e1_refused_rank_keeps_its_memory_nccl", test_e1_refused_rank_keeps_its_memory_nccl},
      {"e2_runs_after_a_timeout_and_a_commit_gather",
       test_e2_runs_after_a_timeout_and_a_commit_gather},
      {"e2_runs_after_a_timeout_and_a_commit_nccl", test_e2_runs_after_a_timeout_and_a_commit_nccl},
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
