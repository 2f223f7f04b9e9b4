/* The copy engine has one peer's copies after another's: which comes first, and whether it pulls
 * from a peer that pulls from it. Ranks are taken for processes, whose memory peers may pull
 * whenever it goes. */
#include "world.h"

#include <stdio.h>
#include <string.h>

enum { MIB = 1 << 20, SHARE = 33 * MIB };
static const char BATCH[] = "cuMemcpyBatchAsync";

uint64_t __wrap_xfi_cuda_locality(int ordinal);

uint64_t __wrap_xfi_cuda_locality(int ordinal)
{
  (void)ordinal;
  return 0;
}

/* One tensor of which rank r has `src`, and is to have `dst`; committed. */
static xfer_plan *plan_of(int rank, const char *line, unsigned char *src, unsigned char *dst)
{
  xfer_tensor moved = {.name = "t"};
  xfer_layout *layouts[2];
  xfer_plan *plan = NULL;
  const xfer_view views[2] = {xfer_view_dense(src), xfer_view_dense(dst)};

  OK(xfer_problem_parse(&layouts[0], &layouts[1], line));
  moved.src = layouts[0];
  moved.dst = layouts[1];
  OK(xfer_plan_create(&plan, w.comms[rank], &moved, 1, NULL));
  OK(xfer_plan_bind(plan, 0, src == NULL ? NULL : &views[0], dst == NULL ? NULL : &views[1]));
  OK(xfer_plan_commit(plan));
  for (int i = 0; i < 2; i++)
    xfer_layout_destroy(layouts[i]);
  return plan;
}

/* ---- several peers ----------------------------------------------------------------------------
 */

static _Atomic(volatile unsigned char *) from_1; /* what rank 2 has of it */
static int n_receivers;

__attribute__((noinline, no_sanitize("thread"))) static bool has_come(void)
{
  return *from_1 == 2;
}

/* Rank 2 begins with rank 0, as rank 3 would with rank 1. That rank 1 is ready first changes
 * nothing, or all who wait for rank 0 would come to rank 1 at once. */
static void pulled_from_two(int rank)
{
  enum { SPARE = 3, A_WHILE_MS = 50 };
  unsigned char *memory = world_alloc(rank == 2 ? (size_t)2 * SHARE : (size_t)SHARE);
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;

  memset(memory, rank == 2 ? 0 : rank + 1, rank == 2 ? (size_t)2 * SHARE : (size_t)SHARE);
  plan = plan_of(rank, "u8[69206016] (2)@0-1:S0 -> (1)@2:R", rank == 2 ? NULL : memory,
                 rank == 2 ? memory : NULL);
  if (rank == 2) from_1 = memory + SHARE;
  ranks_barrier();
  const uint64_t before = sim_calls_of(BATCH);
  ranks_barrier();
  if (rank == 0) world_hold_up(stream, SPARE); /* and so what says that it is ready */
  OK(xfer_plan_run(plan, 1, stream));
  ranks_barrier();
  if (rank == 0) {
    world_sleep_ms(A_WHILE_MS);
    NEED(!has_come());
    sim_hold(SPARE, false);
  }
  OK(xfer_plan_wait(plan, 0));
  ranks_barrier();
  NEED(sim_calls_of(BATCH) == before + 2);
  for (size_t i = 0; rank == 2 && i < (size_t)2 * SHARE; i += 511)
    NEED(memory[i] == 1 + i / SHARE);
  xfer_plan_destroy(plan);
  world_free(memory);
}

static void test_peers(void)
{
  world_make(3, COMM_GATHER, (sim_config){.eager = true, .n_devices = 4});
  world_go(pulled_from_two);
  world_destroy();
}

/* Halves from ranks 0 and 1 to ranks that both engines go to, or three that would meet there, where
 * kernels copy. */
static void pulled_from_both(int rank)
{
  const bool meets = n_receivers == 3;
  const size_t half = SHARE;
  unsigned char *memory = world_alloc(half + 2 * half);
  unsigned char *const dst = memory + half;
  xfer_plan *plan = NULL;

  memset(memory, rank + 1, half);
  memset(dst, 0, 2 * half);
  plan = plan_of(
      rank, meets ? "u8[69206016] (2)@0-1:S0 -> (3)@1-3:R" : "u8[69206016] (2)@0-1:S0 -> (2)@2-3:R",
      rank < 2 ? memory : NULL, rank > (meets ? 0 : 1) ? dst : NULL);
  ranks_barrier();
  const uint64_t before = sim_calls_of(BATCH);
  ranks_barrier();
  OK(xfer_plan_run(plan, 1, world_stream()));
  OK(xfer_plan_wait(plan, 0));
  ranks_barrier();
  NEED(sim_calls_of(BATCH) == before + (meets ? 0 : 4));
  for (size_t i = 0; rank > (meets ? 0 : 1) && i < 2 * half; i += 511)
    NEED(dst[i] == 1 + i / half);
  xfer_plan_destroy(plan);
  world_free(memory);
}

static void test_peers_where_ranks_meet(void)
{
  for (n_receivers = 2; n_receivers <= 3; n_receivers++) {
    world_make(4, COMM_GATHER, (sim_config){.eager = true, .n_devices = 4});
    world_go(pulled_from_both);
    world_destroy();
  }
}

/* ---- peers that send to each other ------------------------------------------------------------
 */

/* Does a rank itself copy what it has from a peer? */
static bool pulls_from(const xfer_plan *plan, int peer)
{
  char from[32];
  char *text = NULL;

  (void)snprintf(from, sizeof from, "  from rank %-6d ", peer);
  OK(xfer_plan_print(plan, &text, 0));
  const char *line = strstr(text, from);
  NEED(line != NULL);
  const char *way = strstr(line, "direct: ");
  NEED(way != NULL);
  const bool pulls = strncmp(way, "direct: this rank copies", 24) == 0;
  xfer_text_free(text);
  return pulls;
}

/* From four parts to halves that two ranks each have, where ranks 1 and 2 have something of each
 * other and other things from the others, engines pull all. Of three ranks that all send to all,
 * kernels push. */
static void pulled_by_each_other(int rank)
{
  static const int from[4][2] = {{1, 1}, {2, 3}, {0, 1}, {2, 2}};
  const bool halves = xfer_comm_size(w.comms[rank]) == 4;
  const size_t n_dst = (halves ? 2 : 3) * (size_t)SHARE;
  unsigned char *memory = world_alloc(SHARE + n_dst);
  unsigned char *const dst = memory + SHARE;
  xfer_plan *plan = NULL;

  memset(memory, rank + 1, SHARE);
  memset(dst, 0, n_dst);
  plan =
      plan_of(rank, halves ? "u8[138412032] (4):S0 -> (2,2):R,S0" : "u8[103809024] (3):S0 -> (3):R",
              memory, dst);
  for (int i = 0; i < 2; i++)
    NEED(pulls_from(plan, halves ? from[rank][i] : (rank + 1 + i) % 3) == halves);
  ranks_barrier();
  OK(xfer_plan_run(plan, 1, world_stream()));
  OK(xfer_plan_wait(plan, 0));
  for (size_t i = 0; i < n_dst; i += 511)
    NEED(dst[i] == 1 + i / SHARE + (halves && rank % 2 == 1 ? 2 : 0));
  xfer_plan_destroy(plan);
  world_free(memory);
}

static void test_peers_of_each_other(void)
{
  for (int n_ranks = 3; n_ranks <= 4; n_ranks++) {
    world_make(n_ranks, COMM_GATHER, (sim_config){.eager = true, .n_devices = 4});
    world_go(pulled_by_each_other);
    world_destroy();
  }
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"the_engine_goes_from_peer_to_peer", test_peers},
      {"kernels_go_to_all_peers_where_ranks_meet", test_peers_where_ranks_meet},
      {"the_engine_pulls_from_one_that_pulls_from_it", test_peers_of_each_other}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
