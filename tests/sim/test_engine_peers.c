/* Who has left, is late or fails while a rank looks whether to hand its copies to the engine; and
 * which allocations peers are told of. */
#include "object.h"
#include "two_ranks.h"

#include <string.h>

/* ---- a peer that leaves while this rank looks ------------------------------------------------ */

typedef enum peer { REFUSES, IS_LATE, COMES_LATE, FAILS_ONCE_READY } peer;

static peer peer_now;
static _Thread_local bool is_held; /* in its next look at a stream, */
static _Atomic bool looks;
static _Atomic bool may_go_on;                      /* until then */
static _Atomic(volatile unsigned char *) last_of_0; /* byte that rank 1 writes in rank 0's memory */

cudaError_t __real_cudaStreamQuery(cudaStream_t stream);
cudaError_t __wrap_cudaStreamQuery(cudaStream_t stream);

/* What holds up the stream ends by then, one way or the other. */
cudaError_t __wrap_cudaStreamQuery(cudaStream_t stream)
{
  const bool waits = is_held;

  is_held = false;
  while (waits && peer_now == COMES_LATE && __real_cudaStreamQuery(stream) == cudaErrorNotReady)
    world_sleep_ms(1);
  if (waits) looks = true;
  while (waits && (!may_go_on || __real_cudaStreamQuery(stream) == cudaErrorNotReady))
    world_sleep_ms(1);
  if (waits && peer_now == FAILS_ONCE_READY) world_sleep_ms(100); /* until its wait has left */
  return __real_cudaStreamQuery(stream);
}

/* Looked at while the machine writes it. */
__attribute__((noinline, no_sanitize("thread"))) static bool rank_1_has_pushed(void)
{
  return *last_of_0 == 1;
}

/* Rank 0 is about to push what goes at once; rank 1, which it was to go to, is gone by then. */
static void leaves_meanwhile(int rank)
{
  enum { SIZE = 32 * MIB, SHORT_MS = 300 };
  const sim_fault fault = {.name = BATCH, .rank = 1, .nth = 1, .code = cudaErrorUnknown};
  unsigned char *memory = world_alloc((size_t)2 * SIZE);
  part parts[2] = {{"u8[33554432] (1)@0:R -> (1)@1:R", 0, xfer_view_dense(memory), {NULL}},
                   {"u8[33554432] (1)@1:R -> (1)@0:R", 1, xfer_view_dense(memory + SIZE), {NULL}}};
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = plan_of(rank, parts, 2);

  memset(memory, 0xee, (size_t)2 * SIZE);
  memset(memory + (size_t)rank * SIZE, rank, SIZE);
  OK(xfer_plan_commit(plan));
  if (peer_now == IS_LATE || peer_now == COMES_LATE) ranks_set_timeout(plan, SHORT_MS);
  if (rank == 0) last_of_0 = memory + (size_t)2 * SIZE - 1;
  ranks_barrier();
  if (rank == 0) {
    is_held = true;
    may_go_on = peer_now == IS_LATE;
    (void)!xfer_plan_run(plan, 1, stream); /* the wait says what came of it */
    NEED(looks);
  }
  while (!looks)
    world_sleep_ms(1);
  if (peer_now == IS_LATE) ranks_barrier(); /* rank 0's run is over */
  if (rank == 1 && peer_now == FAILS_ONCE_READY) sim_fault_add(&fault);
  if (rank == 1 && peer_now == REFUSES) OK(xfer_plan_refuse(plan, "not now"));
  if (rank == 1 && peer_now != REFUSES) (void)!xfer_plan_run(plan, 1, stream);
  while (rank == 1 && peer_now == COMES_LATE &&
         !rank_1_has_pushed()) /* its word has come by then */
    world_sleep_ms(1);
  may_go_on = true;
  NEED(xfer_plan_wait(plan, 0) != XFER_OK);
  ranks_barrier();
  NEED(sim_settle(10000));
  for (size_t i = 0; i < SIZE; i += 511)
    NEED(rank == 0 || memory[i] == 0xee);
  plan_end(plan, parts, 2);
  world_free(memory);
}

static void test_who_refuses(void)
{
  peer_now = REFUSES;
  go(leaves_meanwhile, NULL);
}

static void test_who_is_late(void)
{
  peer_now = IS_LATE;
  go(leaves_meanwhile, NULL);
}

/* After rank 0 has given up waiting for it, and before that says what it may copy. */
static void test_who_comes_late(void)
{
  peer_now = COMES_LATE;
  go(leaves_meanwhile, NULL);
}

static void test_who_fails(void)
{
  peer_now = FAILS_ONCE_READY;
  go(leaves_meanwhile, NULL);
}

/* ---- what peers map ------------------------------------------------------------------------- */

/* A trainer with many allocations pushes, so nobody maps them, and only that of its peer has a
 * handle. */
static void many_allocations(int rank)
{
  enum { MANY = 300, EACH = 64 };
  part parts[MANY];
  unsigned char *memory[MANY];
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;

  for (int i = 0; i < MANY; i++) {
    memory[i] = rank == 1 || i == 0 ? world_alloc(rank == 1 ? EACH : MANY * EACH)
                                    : memory[0] + (size_t)i * EACH;
    memset(memory[i], rank == 1 ? i % 251 : 0, EACH);
    parts[i] = (part){"u8[64] (1)@1:R -> (1)@0:R", 1, xfer_view_dense(memory[i]), {NULL}};
  }
  plan = plan_of(rank, parts, MANY);
  ranks_barrier();
  const uint64_t before = sim_calls_of("cudaIpcGetMemHandle");
  ranks_barrier();
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  NEED(sim_calls_of("cudaIpcGetMemHandle") == before + 1);
  OK(xfer_plan_run(plan, 1, stream));
  OK(xfer_plan_wait(plan, 0));
  for (int i = 0; rank == 0 && i < MANY; i++)
    NEED(memory[i][0] == i % 251 && memory[i][EACH - 1] == i % 251);
  plan_end(plan, parts, MANY);
  ranks_barrier();
  for (int i = 0; i < (rank == 1 ? MANY : 1); i++)
    world_free(memory[i]);
}

static void test_handles(void)
{
  go(many_allocations, NULL);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {{"engine_spares_who_refuses", test_who_refuses},
                                     {"engine_spares_who_is_late", test_who_is_late},
                                     {"engine_spares_who_comes_late", test_who_comes_late},
                                     {"engine_spares_who_fails", test_who_fails},
                                     {"what_nobody_maps_has_no_handle", test_handles}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
