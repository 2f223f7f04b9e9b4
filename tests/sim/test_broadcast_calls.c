/* Calls of xfer_redistribute() by which several ranks get the same, over NCCL. */
#include "world.h"

#include <stdlib.h>

enum {
  RANKS = 3,
  TENSORS = 2,
  MANY = 12 << 20,
  FEW = 3000,
  WARM = 2,
  CALLS = 4,
  TIMEOUT_MS = 20000
};

static tensor tensors[RANKS][TENSORS];
static int64_t width;

static uint64_t broadcasts(void)
{
  uint64_t n;

  ranks_barrier();
  n = sim_calls_of("ncclBroadcast");
  ranks_barrier();
  return n;
}

/* By turns from, and into, one of two allocations. */
static void call_by_turns(int rank)
{
  cudaStream_t stream = world_stream();

  for (int i = 0; i < TENSORS; i++)
    tensor_make(&tensors[rank][i], FROM_FIRST, rank, width);
  for (uint64_t call = 1; call <= WARM + CALLS; call++) {
    const tensor *t = &tensors[rank][call % TENSORS];
    const uint64_t before = broadcasts();

    tensor_fill(t, call, 0x5a);
    tensor_open(t, call);
    OK(tensor_redistribute(t, stream));
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    tensor_close(t);
    NEED(tensor_holds(t, call));
    NEED_NO_VIOLATION();
    if (call > WARM) NEED(broadcasts() - before == (width == MANY ? RANKS : 0));
  }
}

static void call(int64_t n_bytes)
{
  width = n_bytes;
  world_make(RANKS, COMM_NCCL, (sim_config){.eager = true});
  world_go(call_by_turns);
}

/* Once, wherever it lies, and nothing but the data: no connection is made again. */
static void test_much_is_broadcast(void)
{
  call(MANY);
}

/* Copies begin earlier. */
static void test_little_is_copied_to_each(void)
{
  call(FEW);
}

/* The first broadcast of a plan, on ranks that come before the last one does. */
static void run_before_the_last(int rank)
{
  const bool is_last = rank == RANKS - 1;
  tensor *t = &tensors[rank][0];
  cudaStream_t stream = world_stream();
  xfer_plan *plan;

  tensor_make(t, FROM_FIRST, rank, width);
  plan = world_plan(rank, t, 1, XFER_LANE_BROADCAST, TIMEOUT_MS);
  OK(xfer_plan_commit(plan));
  tensor_fill(t, 1, 0x5a);
  tensor_open(t, 1);
  if (is_last) ranks_barrier();
  OK(xfer_plan_run(plan, 1, stream));
  if (!is_last) ranks_barrier();
  OK(xfer_plan_wait(plan, 0));
  tensor_close(t);
  NEED(tensor_holds(t, 1));
  NEED_NO_VIOLATION();
}

static void test_a_first_broadcast_waits_for_nobody(void)
{
  width = MANY;
  world_make(RANKS, COMM_NCCL, (sim_config){.eager = true});
  world_go(run_before_the_last);
}

/* NCCL's environment goes before what a communicator is made with. */
static void call_with(const char *name)
{
  NEED(setenv(name, "0", 1) == 0);
  call(MANY);
}

static void test_nccl_is_told_not_to_block(void)
{
  call_with("NCCL_COMM_BLOCKING");
}

static void test_nccl_is_told_not_to_share(void)
{
  call_with("NCCL_COMM_SPLIT_SHARE_RESOURCES");
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"much_is_broadcast_in_one_call", test_much_is_broadcast},
      {"little_is_copied_to_each_in_one_call", test_little_is_copied_to_each},
      {"a_first_broadcast_waits_for_nobody", test_a_first_broadcast_waits_for_nobody},
      {"broadcasts_where_nccl_is_told_not_to_block", test_nccl_is_told_not_to_block},
      {"broadcasts_where_nccl_is_told_not_to_share", test_nccl_is_told_not_to_share},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
