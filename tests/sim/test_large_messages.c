/* What is large of one tensor is a message of its own in the packed lane, over NCCL. */
#include "world.h"

enum { RANKS = 2, TENSORS = 5, MIB = 1 << 20, RUNS = 3, TIMEOUT_MS = 60000, LIVE = 0x5a };

typedef struct kind {
  form shape;
  int64_t width;
} kind;

static const kind *kinds;
static uint64_t n_messages; /* of a run, of all ranks */
static uint64_t n_copies;   /* likewise, launches of kernels that copy */

static uint64_t calls(const char *name)
{
  uint64_t n;

  ranks_barrier();
  n = sim_calls_of(name);
  ranks_barrier();
  return n;
}

static void run_some(int rank)
{
  tensor tensors[TENSORS];
  cudaStream_t stream = world_stream();
  xfer_plan *plan;

  for (int i = 0; i < TENSORS; i++)
    tensor_make(&tensors[i], kinds[i].shape, rank, kinds[i].width);
  plan = world_plan(rank, tensors, TENSORS, XFER_LANE_PACKED, TIMEOUT_MS);
  OK(xfer_plan_commit(plan));
  for (uint64_t version = 1; version <= RUNS; version++) {
    const uint64_t sent = calls("ncclSend");
    const uint64_t launched = calls("copy kernel");

    world_run(plan, tensors, TENSORS, version, stream);
    NEED(calls("ncclSend") - sent == n_messages);
    NEED(calls("copy kernel") - launched == n_copies);
  }
  ranks_barrier();
  xfer_plan_destroy(plan);
}

static void run(const kind of[TENSORS], uint64_t messages, uint64_t copies)
{
  kinds = of;
  n_messages = messages;
  n_copies = copies;
  world_make(RANKS, COMM_NCCL, (sim_config){.eager = true});
  world_go(run_some);
}

/* One way: from memory to memory, but for the small ones, which come together at each end. */
static void test_from_and_into_the_tensors(void)
{
  static const kind of[TENSORS] = {{FROM_FIRST, 17 * MIB},
                                   {FROM_FIRST, 5000},
                                   {FROM_FIRST, 3000},
                                   {FROM_FIRST, 16 * MIB},
                                   {FROM_FIRST, 18 * MIB}};

  run(of, 4, 2);
}

/* Both ways, of rows that become columns: both ends cut alike where one has to scatter. Each rank
 * keeps a part. */
static void test_where_an_end_has_rows(void)
{
  static const kind of[TENSORS] = {
      {RING, 33 * MIB}, {EACH_EACH, 5008}, {EACH_EACH, 33 * MIB}, {RING, 3000}, {RING, 100}};

  run(of, 2 * 4, 6);
}

/* A message begins at a multiple of 16 bytes, or else goes on with the one before. */
static void test_beside_odd_sizes(void)
{
  static const kind of[TENSORS] = {{FROM_FIRST, 17 * MIB},
                                   {FROM_FIRST, 5000},
                                   {FROM_FIRST, 16 * MIB},
                                   {FROM_FIRST, 18 * MIB},
                                   {FROM_FIRST, 3000}};

  run(of, 2, 2);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"large_messages_from_and_into_the_tensors", test_from_and_into_the_tensors},
      {"large_messages_where_an_end_has_rows", test_where_an_end_has_rows},
      {"large_messages_beside_odd_sizes", test_beside_odd_sizes},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
