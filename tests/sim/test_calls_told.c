/* xfer_redistribute() returns before its data has moved: whom nothing reached is told, by
 * xfer_comm_check() or by the next call. */
#include "world.h"

enum { WIDTH = 3000, TIMEOUT_MS = 20000, SHORT_MS = 1000, LATE_US = 100000, CALLS = 4 };

static tensor tensors[WORLD_RANKS][CALLS];

static void make_tensors(int rank, form shape)
{
  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  for (int i = 0; i < CALLS; i++) {
    tensor_make(&tensors[rank][i], shape, rank, WIDTH);
    tensor_fill(&tensors[rank][i], (uint64_t)i + 1, 0x5a);
  }
}

/* ---- a reader that is late ----------------------------------------------------------------- */

/* Rank 1's stream is held up from here on, and the next calls have little time. */
static void hold_up(int rank, cudaStream_t stream)
{
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  NEED(sim_settle(TIMEOUT_MS));
  ranks_barrier();
  if (rank == 1) world_hold_up(stream, w.n);
  OK(xfer_comm_set_timeout(w.comms[rank], (uint64_t)world_time(SHORT_MS)));
  ranks_barrier();
}

/* Rank 0's stream goes on at its deadline; then rank 1's does, and what it reads has been written
 * since. */
static void is_told(int rank, int n_calls, cudaStream_t stream)
{
  if (rank == 0) {
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
    sim_hold(w.n, false);
  }
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  if (rank == 1 && xfer_comm_check(w.comms[1]) == XFER_OK)
    for (int i = 0; i < n_calls; i++)
      NEED(tensor_holds(&tensors[1][i], (uint64_t)i + 1));
  ranks_barrier();
  if (rank == 0) NEED(xfer_comm_check(w.comms[0]) == XFER_ERR_TIMEOUT);
  ranks_barrier();
}

static void source_is_written_after_the_deadline(int rank)
{
  cudaStream_t stream = world_stream();
  const tensor *t = &tensors[rank][0];

  make_tensors(rank, FROM_FIRST);
  OK(xfer_comm_register(w.comms[rank], t->bytes[rank == 0 ? FROM : TO]));
  OK(tensor_redistribute(t, stream));
  hold_up(rank, stream);
  tensor_fill(t, 1, 0x5a);
  ranks_barrier();
  OK_IN_TIME(tensor_redistribute(t, stream));
  if (rank == 0) NEED(cudaMemsetAsync(t->bytes[FROM], 0xee, WIDTH, stream) == cudaSuccess);
  is_told(rank, 1, stream);
}

static void test_late_reader_of_registered_memory_is_told(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3});
  world_go(source_is_written_after_the_deadline);
}

/* Rank 1's deadline for the last of them is later than rank 0's. */
static void copies_are_written_after_the_deadline(int rank)
{
  const sim_fault late = {.name = "cudaStreamWaitEvent", .rank = 1, .nth = 1, .delay_us = LATE_US};
  cudaStream_t stream = world_stream();

  make_tensors(rank, FROM_FIRST);
  OK(tensor_redistribute(&tensors[rank][0], stream));
  hold_up(rank, stream);
  for (int i = 1; i < CALLS; i++) {
    ranks_barrier();
    if (rank == 1 && i == CALLS - 1) sim_fault_add(&late);
    ranks_barrier();
    OK_IN_TIME(tensor_redistribute(&tensors[rank][i], stream));
  }
  is_told(rank, CALLS, stream);
}

static void test_late_reader_of_two_copies_is_told(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3});
  world_go(copies_are_written_after_the_deadline);
}

static void test_late_reader_of_one_copy_is_told(void)
{
  world_make(2, COMM_GATHER, (sim_config){.n_devices = 3, .room = WIDTH + WIDTH / 2});
  world_go(copies_are_written_after_the_deadline);
}

/* ---- a peer that fails late ---------------------------------------------------------------- */

/* Rank 1's part of a call fails when rank 0 is in the next one. */
static void fails_when_the_other_is_further(int rank)
{
  const sim_fault fault = {.name = "guard kernel",
                           .rank = 1,
                           .nth = 1,
                           .code = cudaErrorMemoryAllocation,
                           .delay_us = LATE_US};
  cudaStream_t stream = world_stream();
  bool is_well = true;

  make_tensors(rank, RING);
  for (int i = 0; i < CALLS; i++)
    for (int side = FROM; side <= TO; side++)
      OK(xfer_comm_register(w.comms[rank], tensors[rank][i].bytes[side]));
  OK(tensor_redistribute(&tensors[rank][0], stream));
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  if (rank == 1) sim_fault_add(&fault);
  ranks_barrier();
  for (int i = 1; i < 3; i++)
    if (tensor_redistribute(&tensors[rank][i], stream) != XFER_OK) is_well = false;
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  if (xfer_comm_check(w.comms[rank]) != XFER_OK) is_well = false;
  NEED(!is_well || (tensor_holds(&tensors[rank][1], 2) && tensor_holds(&tensors[rank][2], 3)));
  ranks_barrier();
  for (int i = 0; i < 3 && tensor_redistribute(&tensors[rank][3], stream) != XFER_OK; i++)
    ; /* where a rank has not heard of it yet */
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  NEED(tensor_holds(&tensors[rank][3], 4));
}

static void test_who_is_in_the_next_call_is_told_of_a_failure(void)
{
  world_make(2, COMM_GATHER, (sim_config){.n_devices = 2, .many_launches = true});
  world_go(fails_when_the_other_is_further);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"late_reader_of_registered_memory_is_told", test_late_reader_of_registered_memory_is_told},
      {"late_reader_of_two_copies_is_told", test_late_reader_of_two_copies_is_told},
      {"late_reader_of_one_copy_is_told", test_late_reader_of_one_copy_is_told},
      {"who_is_in_the_next_call_is_told_of_a_failure",
       test_who_is_in_the_next_call_is_told_of_a_failure},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
