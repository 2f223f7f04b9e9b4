/* What is large of one tensor is a message of its own in the packed lane, over NCCL. */
#include "world.h"

#include <string.h>

enum {
  MIB = 1 << 20,
  QUARTER = MIB / 4,
  WIDTHS_MAX = 15,
  RUNS = 4,
  TIMEOUT_MS = 60000,
  OFF = 8 /* no multiple of 16 */
};

typedef struct kind {
  form shape;
  int64_t width; /* 0: the list ends */
} kind;

/* What a run takes, all ranks together. */
typedef struct cost {
  uint64_t messages;
  uint64_t copies; /* launches of kernels that copy */
} cost;

static const kind *kinds;
static cost wanted;
static cost wanted_off; /* where destinations begin OFF a multiple of 16; none: they never do */

static uint64_t calls(const char *name)
{
  uint64_t n;

  ranks_barrier();
  n = sim_calls_of(name);
  ranks_barrier();
  return n;
}

static void bind_at(xfer_plan *plan, const tensor *tensors, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    const xfer_view src = xfer_view_dense(tensors[i].bytes[FROM]);
    const xfer_view dst = xfer_view_dense(tensors[i].bytes[TO]);

    OK(xfer_plan_bind(plan, i, &src, &dst));
  }
  OK(xfer_plan_commit(plan));
}

static void run_some(int rank)
{
  tensor tensors[WIDTHS_MAX];
  size_t n = 0;
  cudaStream_t stream = world_stream();
  xfer_plan *plan;

  for (; n < WIDTHS_MAX && kinds[n].width > 0; n++)
    tensor_make(&tensors[n], kinds[n].shape, rank, kinds[n].width);
  plan = world_plan(rank, tensors, n, XFER_LANE_PACKED, TIMEOUT_MS);
  OK(xfer_plan_commit(plan));
  for (uint64_t version = 1; version <= RUNS; version++) {
    const bool is_off = wanted_off.messages > 0 && version % 2 == 0;
    const cost *want = is_off ? &wanted_off : &wanted;
    uint64_t sent;
    uint64_t launched;

    for (size_t i = 0; i < n && wanted_off.messages > 0 && version > 1; i++)
      if (tensors[i].bytes[TO] != NULL) tensors[i].bytes[TO] += is_off ? OFF : -OFF;
    if (wanted_off.messages > 0) bind_at(plan, tensors, n);
    sent = calls("ncclSend");
    launched = calls("copy kernel");
    world_run(plan, tensors, n, version, stream);
    NEED(calls("ncclSend") - sent == want->messages);
    NEED(calls("copy kernel") - launched == want->copies);
  }
  ranks_barrier();
  xfer_plan_destroy(plan);
}

static void run_ranks(int n_ranks, uint64_t window_bytes, const kind *of, cost want)
{
  kinds = of;
  wanted = want;
  world_make(n_ranks, COMM_NCCL, (sim_config){.eager = true});
  w.window_bytes = window_bytes;
  world_go(run_some);
}

static void run(const kind *of, uint64_t messages, uint64_t copies)
{
  run_ranks(2, 0, of, (cost){messages, copies});
}

/* One way: from memory to memory, but for the small ones, which come together at each end. */
static void test_from_and_into_the_tensors(void)
{
  static const kind of[] = {{FROM_FIRST, 17 * QUARTER}, {FROM_FIRST, 5000},
                            {FROM_FIRST, 3000},         {FROM_FIRST, 16 * QUARTER},
                            {FROM_FIRST, 18 * QUARTER}, {0}};

  run(of, 4, 2);
}

/* Both ways, of rows that become columns: both ends cut alike where one has to scatter. Each rank
 * keeps a part. */
static void test_where_an_end_has_rows(void)
{
  static const kind of[] = {{RING, 33 * QUARTER}, {EACH_EACH, 5008}, {EACH_EACH, 33 * QUARTER},
                            {RING, 3008},         {RING, 112},       {0}};

  run(of, 2 * 4, 6);
}

/* A message begins at a multiple of 16 bytes, or else goes on with the one before. */
static void test_beside_odd_sizes(void)
{
  static const kind of[] = {{FROM_FIRST, 17 * QUARTER}, {FROM_FIRST, 5000},
                            {FROM_FIRST, 16 * QUARTER}, {FROM_FIRST, 18 * QUARTER},
                            {FROM_FIRST, 3000},         {0}};

  run(of, 2, 2);
}

/* Nor is it received in place elsewhere, which is this end's business: commits go from one to the
 * other. */
static void test_at_odd_addresses(void)
{
  static const kind of[] = {
      {FROM_FIRST, 17 * QUARTER}, {FROM_FIRST, 16 * QUARTER}, {FROM_FIRST, 18 * QUARTER}, {0}};

  wanted_off = (cost){3, 1};
  run(of, 3, 0);
}

/* Seven peers leave room for nine messages to each, the last of which has all the rest. */
static void test_of_many_peers(void)
{
  enum { SMALL = 4096, LARGE = 5 * MIB / 4 };
  static const kind of[] = {{FROM_FIRST, SMALL}, {FROM_FIRST, LARGE}, {FROM_FIRST, SMALL},
                            {FROM_FIRST, LARGE}, {FROM_FIRST, SMALL}, {FROM_FIRST, LARGE},
                            {FROM_FIRST, SMALL}, {FROM_FIRST, LARGE}, {FROM_FIRST, SMALL},
                            {FROM_FIRST, LARGE}, {FROM_FIRST, SMALL}, {FROM_FIRST, LARGE},
                            {FROM_FIRST, SMALL}, {FROM_FIRST, LARGE}, {FROM_FIRST, SMALL}};

  run_ranks(8, 0, of, (cost){7 * 9, 8});
}

/* Four windows, of which the second has two parts. */
static void test_of_four_windows(void)
{
  static const kind of[] = {
      {FROM_FIRST, 5 * MIB}, {FROM_FIRST, 3 * MIB}, {FROM_FIRST, 8 * MIB}, {0}};

  run_ranks(2, 4 * MIB, of, (cost){5, 0});
}

/* Where there are more, each window is one message. */
static void test_of_five_windows(void)
{
  static const kind of[] = {
      {FROM_FIRST, 5 * MIB}, {FROM_FIRST, 3 * MIB}, {FROM_FIRST, 8 * MIB}, {FROM_FIRST, 16}, {0}};

  run_ranks(2, 4 * MIB, of, (cost){5, 4});
}

/* The others come only once the run has failed: whoever is waited for is named once. */
static void run_late(int rank)
{
  enum { SOON_MS = 300 };
  tensor tensors[2];
  cudaStream_t stream = world_stream();
  xfer_plan *plan;

  for (int i = 0; i < 2; i++)
    tensor_make(&tensors[i], FROM_FIRST, rank, 17 * QUARTER);
  plan = world_plan(rank, tensors, 2, XFER_LANE_PACKED, TIMEOUT_MS);
  OK(xfer_plan_commit(plan));
  ranks_set_timeout(plan, SOON_MS);
  if (rank == 0) {
    OK(xfer_plan_run(plan, 1, stream));
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  }
  ranks_barrier();
  if (rank > 0) (void)!xfer_plan_run(plan, 1, stream);
  NEED(xfer_plan_wait(plan, TIMEOUT_MS) != XFER_OK);
  if (rank == 0) NEED(strstr(xfer_last_error(), "rank 0 was exchanging with ranks 1,2") != NULL);
  ranks_barrier();
  xfer_plan_destroy(plan);
}

static void test_that_are_late(void)
{
  world_make(3, COMM_NCCL, (sim_config){.eager = true});
  world_go(run_late);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"large_messages_from_and_into_the_tensors", test_from_and_into_the_tensors},
      {"large_messages_where_an_end_has_rows", test_where_an_end_has_rows},
      {"large_messages_beside_odd_sizes", test_beside_odd_sizes},
      {"large_messages_at_odd_addresses", test_at_odd_addresses},
      {"large_messages_of_many_peers", test_of_many_peers},
      {"large_messages_of_four_windows", test_of_four_windows},
      {"large_messages_of_five_windows", test_of_five_windows},
      {"large_messages_that_are_late", test_that_are_late},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
