/* The copy engine has one peer's copies after another's: which comes first. Ranks are taken for
 * processes, whose memory peers may pull whenever it goes. */
#include "world.h"

#include <string.h>

enum { MIB = 1 << 20, SHARE = 33 * MIB };
static const char BATCH[] = "cuMemcpyBatchAsync";

uint64_t __wrap_xfi_cuda_place(int ordinal);

uint64_t __wrap_xfi_cuda_place(int ordinal)
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

int main(int argc, char **argv)
{
  static const world_test tests[] = {{"the_engine_goes_from_peer_to_peer", test_peers}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
