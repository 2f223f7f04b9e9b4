/* What a commit asks the driver about memory that it knows, and whether it is seen when that was
 * freed, or made anew at the same address. */
#include "world.h"

#include <cuda.h>

#include <stdio.h>
#include <string.h>

enum { TENSORS = 100, WIDTH = 512, FEW = 20, TIMES = 50 };

static tensor tensors[2][TENSORS];

static uint64_t n_asked(void)
{
  return sim_calls_of("cuPointerGetAttribute") + sim_calls_of("cuPointerGetAttributes");
}

/* How often all ranks ask the driver about memory, in a commit. */
static uint64_t asked_by_commit(xfer_plan *plan)
{
  uint64_t before;
  uint64_t after;

  ranks_barrier();
  before = n_asked();
  ranks_barrier();
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  after = n_asked();
  ranks_barrier();
  return after - before;
}

static void bind_all(xfer_plan *plan, const tensor *t)
{
  for (size_t i = 0; i < TENSORS; i++) {
    const xfer_view from = xfer_view_dense(t[i].bytes[FROM]);
    const xfer_view to = xfer_view_dense(t[i].bytes[TO]);

    OK(xfer_plan_bind(plan, i, &from, &to));
  }
}

static xfer_plan *committed(int rank)
{
  xfer_plan *plan;

  for (size_t i = 0; i < TENSORS; i++)
    tensor_make(&tensors[rank][i], RING, rank, WIDTH);
  plan = world_plan(rank, tensors[rank], TENSORS, XFER_LANE_AUTO, 20000);
  for (int i = 0; i < 2; i++) { /* the ranks are of one process: the first one allocates for both */
    ranks_barrier();
    OK(xfer_plan_commit(plan));
  }
  ranks_barrier();
  return plan;
}

static void end(int rank, xfer_plan *plan)
{
  ranks_barrier();
  xfer_plan_destroy(plan);
  for (size_t i = 0; i < TENSORS; i++)
    tensor_free(&tensors[rank][i]);
}

static void in_world(void (*work)(int rank), sim_config config)
{
  world_of(2, COMM_GATHER, config, work);
  world_destroy();
}

/* ---- nothing was allocated ------------------------------------------------------------------ */

static void commit_again(int rank)
{
  xfer_plan *plan = committed(rank);
  void *other = NULL;

  bind_all(plan, tensors[rank]);
  NEED(asked_by_commit(plan) < FEW);
  world_run(plan, tensors[rank], TENSORS, 1, world_stream());
  NEED(asked_by_commit(plan) < FEW);
  if (rank == 1) other = world_alloc(WIDTH);
  NEED(asked_by_commit(plan) > 2 * TENSORS); /* by either rank: it may be of any device */
  NEED(asked_by_commit(plan) < FEW);
  if (other != NULL) world_free(other);
  NEED(asked_by_commit(plan) < FEW);
  world_run(plan, tensors[rank], TENSORS, 2, world_stream());
  end(rank, plan);
}

static void test_a_commit_asks_only_where_something_was_allocated(void)
{
  in_world(commit_again, (sim_config){.eager = true});
}

/* Whether the numbers tell is tried by both ranks, whose allocations take numbers as well. */
static void test_ranks_that_try_at_once_can_tell(void)
{
  const sim_fault slow[] = {
      {.name = "cudaMalloc", .rank = SIM_NO_RANK, .percent = 100, .delay_us = 300},
      {.name = "cuMemMap", .rank = SIM_NO_RANK, .percent = 100, .delay_us = 300}};

  world_make(2, COMM_GATHER, (sim_config){.eager = true});
  for (int i = 0; i < 2; i++)
    sim_fault_add(&slow[i]);
  world_go(commit_again);
  sim_fault_clear();
  NEED_NO_VIOLATION();
  world_destroy();
}

/* A machine that cannot tell: every commit asks. */
static void ask_always(int rank)
{
  xfer_plan *plan = committed(rank);

  for (int i = 0; i < 2; i++)
    NEED(asked_by_commit(plan) > 2 * TENSORS);
  world_run(plan, tensors[rank], TENSORS, 1, world_stream());
  end(rank, plan);
}

static void test_numbers_that_do_not_follow_each_other_tell_nothing(void)
{
  in_world(ask_always, (sim_config){.eager = true, .numbers_apart = true});
}

static void without(const char *call)
{
  const sim_fault none = {
      .name = call, .rank = SIM_NO_RANK, .percent = 100, .code = CUDA_ERROR_OUT_OF_MEMORY};

  world_make(2, COMM_GATHER, (sim_config){.eager = true});
  sim_fault_add(&none);
  world_go(ask_always);
  sim_fault_clear();
  NEED_NO_VIOLATION();
  world_destroy();
}

static void test_without_a_chunk_every_commit_asks(void)
{
  without("cuMemCreate");
}

static void test_without_addresses_every_commit_asks(void)
{
  without("cuMemAddressReserve");
}

static void test_where_a_chunk_is_not_mapped_every_commit_asks(void)
{
  without("cuMemMap");
}

/* ---- memory that is freed, and made anew ---------------------------------------------------- */

/* The allocation is gone, and there is another one; true: at the same address. */
static bool made_anew(tensor *t, int side)
{
  unsigned char *before = t->bytes[side];

  world_free(before);
  t->bytes[side] = world_alloc(t->n_bytes[side] + TENSOR_ROOM);
  return t->bytes[side] == before;
}

static void make_anew(int rank)
{
  xfer_plan *plan = committed(rank);
  int n_same = 0;

  for (uint64_t i = 1; i <= TIMES; i++) {
    const size_t which = (size_t)(i * 7 % TENSORS);

    ranks_barrier();
    sim_guard_drop(tensors[rank][which].guards[i % 2]);
    n_same += made_anew(&tensors[rank][which], i % 2);
    tensors[rank][which].guards[i % 2] =
        sim_guard(rank, tensors[rank][which].bytes[i % 2], tensors[rank][which].n_bytes[i % 2]);
    bind_all(plan, tensors[rank]);
    OK(xfer_plan_commit(plan));
    world_run(plan, tensors[rank], TENSORS, i, world_stream());
  }
  NEED(n_same > 0);
  end(rank, plan);
}

static void test_memory_made_anew_at_the_same_address_is_seen(void)
{
  in_world(make_anew, (sim_config){.eager = true});
}

static void free_one(int rank)
{
  xfer_plan *plan = committed(rank);
  tensor *last = &tensors[rank][TENSORS - 1];

  ranks_barrier();
  if (rank == 0) {
    sim_guard_drop(last->guards[FROM]);
    world_free(last->bytes[FROM]);
  }
  OK(xfer_plan_commit(plan)); /* nothing else can be there, and the run looks */
  const xfer_status st = xfer_plan_run(plan, 1, world_stream());
  NEED(rank == 1 || (st == XFER_ERR_STATE && strstr(xfer_last_error(), "was freed") != NULL));
  NEED(xfer_plan_wait(plan, 0) != XFER_OK);
  NEED(xfer_plan_commit(plan) != XFER_OK); /* now that it was seen */
  NEED(strstr(xfer_last_error(), "freed") != NULL);
  ranks_barrier();
  if (rank == 0) {
    last->bytes[FROM] = world_alloc(last->n_bytes[FROM] + TENSOR_ROOM);
    last->guards[FROM] = sim_guard(rank, last->bytes[FROM], last->n_bytes[FROM]);
  }
  bind_all(plan, tensors[rank]);
  OK(xfer_plan_commit(plan));
  world_run(plan, tensors[rank], TENSORS, 2, world_stream());
  end(rank, plan);
}

static void test_freed_memory_is_refused_before_the_first_byte(void)
{
  in_world(free_one, (sim_config){.eager = true});
}

/* ---- other memory at each run --------------------------------------------------------------- */

static uint64_t n_made(void)
{
  return sim_calls_of("cudaMalloc") + sim_calls_of("cudaFree") +
         sim_calls_of("cudaStreamCreateWithFlags");
}

/* Nobody maps memory of a packed plan: it goes on with what it has, wherever that lies. */
static void run_elsewhere(int rank)
{
  tensor places[2];
  uint64_t before;
  xfer_plan *plan;

  for (int i = 0; i < 2; i++)
    tensor_make(&places[i], RING, rank, WIDTH);
  plan = world_plan(rank, places, 1, XFER_LANE_PACKED, 20000);
  OK(xfer_plan_commit(plan));
  world_run(plan, places, 1, 1, world_stream());
  ranks_barrier();
  before = n_made();
  ranks_barrier();
  for (uint64_t i = 2; i <= 6; i++) {
    const xfer_view from = xfer_view_dense(places[i % 2].bytes[FROM]);
    const xfer_view to = xfer_view_dense(places[i % 2].bytes[TO]);

    OK(xfer_plan_bind(plan, 0, &from, &to));
    OK(xfer_plan_commit(plan));
    world_run(plan, &places[i % 2], 1, i, NULL);
  }
  ranks_barrier();
  NEED(n_made() == before);
  ranks_barrier();
  xfer_plan_destroy(plan);
  for (int i = 0; i < 2; i++)
    tensor_free(&places[i]);
}

static void test_a_packed_plan_makes_nothing_anew_at_other_memory(void)
{
  world_of(2, COMM_NCCL, (sim_config){.eager = true}, run_elsewhere);
  world_destroy();
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"a_commit_asks_only_where_something_was_allocated",
       test_a_commit_asks_only_where_something_was_allocated},
      {"ranks_that_try_at_once_can_tell", test_ranks_that_try_at_once_can_tell},
      {"numbers_that_do_not_follow_each_other_tell_nothing",
       test_numbers_that_do_not_follow_each_other_tell_nothing},
      {"without_a_chunk_every_commit_asks", test_without_a_chunk_every_commit_asks},
      {"without_addresses_every_commit_asks", test_without_addresses_every_commit_asks},
      {"where_a_chunk_is_not_mapped_every_commit_asks",
       test_where_a_chunk_is_not_mapped_every_commit_asks},
      {"memory_made_anew_at_the_same_address_is_seen",
       test_memory_made_anew_at_the_same_address_is_seen},
      {"freed_memory_is_refused_before_the_first_byte",
       test_freed_memory_is_refused_before_the_first_byte},
      {"a_packed_plan_makes_nothing_anew_at_other_memory",
       test_a_packed_plan_makes_nothing_anew_at_other_memory},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
