/* Runs of few bytes, some of which stay on their rank: what they ask of CUDA, and what they leave
 * where something goes wrong. */
#include "rank_plans.h"

enum { WIDE = 4096, PLAIN_RUNS = 2 };

/* So far, by all ranks. */
typedef struct asked {
  uint64_t launches; /* of kernels that copy */
  uint64_t words;    /* lists of waits for words and writes of them */
} asked;

static int64_t width;
static uint64_t n_launches; /* of a run of a rank */

static asked ask(void)
{
  return (asked){world_launches(), sim_calls_of("cuStreamBatchMemOp")};
}

static void make_wide(int rank)
{
  tensor_make(&tensors[0][rank], EACH_EACH, rank, width);
  streams[0][rank] = world_stream();
  plans[0][rank] = world_plan(rank, &tensors[0][rank], 1, lane, LONG_MS);
  OK(xfer_plan_commit(plans[0][rank]));
}

/* A run, of which all calls but the wait are counted. */
static void counted_run(int rank)
{
  const tensor *t = &tensors[0][rank];
  asked before;
  asked after;

  for (uint64_t version = 1; version <= PLAIN_RUNS; version++)
    run_well(rank, 0, version);
  tensor_fill(t, PLAIN_RUNS + 1, LIVE);
  tensor_open(t, PLAIN_RUNS + 1);
  ranks_barrier();
  before = ask();
  ranks_barrier();
  OK(xfer_plan_run(plans[0][rank], PLAIN_RUNS + 1, streams[0][rank]));
  ranks_barrier();
  after = ask();
  ranks_barrier();
  OK(xfer_plan_wait(plans[0][rank], 0));
  tensor_close(t);
  NEED(tensor_holds(t, PLAIN_RUNS + 1));
  NEED_NO_VIOLATION();
  NEED(after.launches - before.launches == n_launches * (uint64_t)w.n);
  NEED(after.words - before.words == 2 * (uint64_t)w.n);
}

static void counted(int rank)
{
  make_wide(rank);
  counted_run(rank);
  unmake(rank, 0);
}

static void count(int n, int64_t wide, uint64_t launches)
{
  width = wide;
  n_launches = launches;
  in_world(n, COMM_GATHER, XFER_LANE_DIRECT, counted);
}

static void test_a_small_run_is_one_launch(void)
{
  count(2, WIDE, 1);
}

static void test_a_small_run_of_four_is_one_launch(void)
{
  count(4, WIDE, 1);
}

static void test_much_that_stays_has_a_launch_of_its_own(void)
{
  count(2, (1 << 20) + WIDE, 2);
}

/* ---- at other addresses ------------------------------------------------------------------- */

static void bind_at(int rank, size_t i, const tensor *t)
{
  const xfer_view src = xfer_view_dense(t->bytes[FROM]);
  const xfer_view dst = xfer_view_dense(t->bytes[TO]);

  OK(xfer_plan_bind(plans[0][rank], i, &src, &dst));
}

/* Two tensors go elsewhere, one of them to odd addresses, so that the copies take two kernels; and
 * back. */
static void elsewhere(int rank)
{
  tensor here[2];
  tensor there[2];
  cudaStream_t stream = world_stream();

  for (int i = 0; i < 2; i++) {
    tensor_make(&here[i], EACH_EACH, rank, WIDE);
    tensor_make(&there[i], EACH_EACH, rank, WIDE);
  }
  there[1].bytes[TO]++;
  plans[0][rank] = world_plan(rank, here, 2, lane, LONG_MS);
  OK(xfer_plan_commit(plans[0][rank]));
  for (uint64_t version = 1; version < 6; version++) {
    const tensor *now = version % 2 == 1 ? here : there;
    const uint64_t before = world_launches();

    world_run(plans[0][rank], now, 2, version, stream);
    ranks_barrier();
    NEED(version > 1 || world_launches() <= before + (uint64_t)w.n);
    for (size_t i = 0; i < 2; i++)
      bind_at(rank, i, now == here ? &there[i] : &here[i]);
    OK(xfer_plan_commit(plans[0][rank]));
  }
  xfer_plan_destroy(plans[0][rank]);
  ranks_barrier();
  there[1].bytes[TO]--;
  for (int i = 0; i < 2; i++) {
    tensor_free(&here[i]);
    tensor_free(&there[i]);
  }
}

static void test_what_stays_follows_a_bind(void)
{
  in_world(2, COMM_GATHER, XFER_LANE_DIRECT, elsewhere);
}

/* ---- calls -------------------------------------------------------------------------------- */

/* Rank 0 gathers a tensor of which it has a part: nobody reads its memory, which lies elsewhere in
 * each call. */
static void gathered(int rank)
{
  enum { CALLS = 6, BYTES = 3 * WIDE };
  cudaStream_t stream = world_stream();
  unsigned char *src[CALLS];
  unsigned char *dst[CALLS];
  xfer_layout *from = NULL;
  xfer_layout *to = NULL;
  uint64_t n_before = 0;
  uint64_t n_gathered = 0;
  int n_longer = 0; /* calls in which each rank gathers more than once */

  OK(xfer_problem_parse(&from, &to, "u8[12288] (3):S0 -> (1)@0:R"));
  for (int c = 0; c < CALLS; c++) {
    src[c] = world_alloc(WIDE);
    dst[c] = world_alloc(BYTES);
    for (int i = 0; i < WIDE; i++)
      src[c][i] = (unsigned char)(7 * c + 31 * rank + i);
  }
  for (int c = 0; c < CALLS; c++) {
    const xfer_view src_view = xfer_view_dense(src[c]);
    const xfer_view dst_view = xfer_view_dense(dst[c]);

    ranks_barrier();
    n_before = world_launches();
    n_gathered = sim_calls_of("ncclAllGather");
    ranks_barrier();
    OK(xfer_redistribute(w.comms[rank], from, &src_view, to, rank == 0 ? &dst_view : NULL, stream));
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    ranks_barrier();
    NEED(world_launches() - n_before == 3); /* one that pulls, two for copies that it pulls from */
    n_longer += sim_calls_of("ncclAllGather") - n_gathered > 3;
    for (int i = 0; rank == 0 && i < BYTES; i++)
      NEED(dst[c][i] == (unsigned char)(7 * c + 31 * (i / WIDE) + i % WIDE));
  }
  NEED(n_longer <= 2); /* those that make a plan */
  NEED_NO_VIOLATION();
  ranks_barrier();
  for (int c = 0; c < CALLS; c++) {
    world_free(src[c]);
    world_free(dst[c]);
  }
  xfer_layout_destroy(from);
  xfer_layout_destroy(to);
}

static void test_a_call_that_gathers_is_one_launch(void)
{
  in_world(3, COMM_NCCL, XFER_LANE_AUTO, gathered);
}

/* ---- trouble ------------------------------------------------------------------------------ */

/* Rank 0 runs, and rank 1 does not come before the deadline: rank 0 copies nothing at all. */
static void late(int rank)
{
  tensor *t = &tensors[0][rank];

  make_wide(rank);
  run_well(rank, 0, 1);
  set_short_timeout(rank, 0);
  tensor_fill(t, 2, LIVE);
  ranks_barrier();
  if (rank == 0) {
    tensor_open(t, 2);
    OK(xfer_plan_run(plans[0][0], 2, streams[0][0]));
    NEED(cudaStreamSynchronize(streams[0][0]) == cudaSuccess);
    NEED(tensor_is_all(t, LIVE));
  }
  ranks_barrier();
  NEED_NO_VIOLATION();
  if (rank == 1) {
    tensor_open(t, 2);
    (void)!xfer_plan_run(plans[0][1], 2, streams[0][1]);
  }
  need_failed_wait(rank, 0, 10000);
  unmake(rank, 0);
}

static void test_behind_a_late_rank_nothing_is_copied(void)
{
  width = WIDE;
  in_world(2, COMM_GATHER, XFER_LANE_DIRECT, late);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"a_small_run_is_one_launch", test_a_small_run_is_one_launch},
      {"a_small_run_of_four_is_one_launch", test_a_small_run_of_four_is_one_launch},
      {"much_that_stays_has_a_launch_of_its_own", test_much_that_stays_has_a_launch_of_its_own},
      {"what_stays_follows_a_bind", test_what_stays_follows_a_bind},
      {"a_call_that_gathers_is_one_launch", test_a_call_that_gathers_is_one_launch},
      {"behind_a_late_rank_nothing_is_copied", test_behind_a_late_rank_nothing_is_copied}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
