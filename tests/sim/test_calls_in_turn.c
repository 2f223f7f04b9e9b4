/* xfer_redistribute() call after call, of tensors that lie elsewhere each time. */
#include "world.h"

#include <string.h>

enum { WIDTH = 3000, TIMEOUT_MS = 20000, CALLS = 6 };

static tensor tensors[WORLD_RANKS][CALLS];
static cudaStream_t spare;

static void redistribute(int rank, const tensor *t, cudaStream_t stream)
{
  const xfer_view src = xfer_view_dense(t->bytes[FROM]);
  const xfer_view dst = xfer_view_dense(t->bytes[TO]);

  OK(xfer_redistribute(w.comms[rank], t->layouts[FROM], &src, t->layouts[TO], &dst, stream));
}

static void make_tensors(int rank, form shape)
{
  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  for (int i = 0; i < CALLS; i++) {
    tensor_make(&tensors[rank][i], shape, rank, WIDTH);
    tensor_fill(&tensors[rank][i], (uint64_t)i + 1, 0x5a);
    tensor_open(&tensors[rank][i], (uint64_t)i + 1);
  }
}

static void check_tensors(int rank, cudaStream_t stream)
{
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  for (int i = 0; i < CALLS; i++) {
    tensor_close(&tensors[rank][i]);
    NEED(tensor_holds(&tensors[rank][i], (uint64_t)i + 1));
  }
  NEED_NO_VIOLATION();
  ranks_barrier();
}

/* Rank 1's stream waits for another one, on a device that is held. */
static void put_behind_the_spare(cudaStream_t stream)
{
  cudaEvent_t event = NULL;

  NEED(cudaSetDevice(w.n) == cudaSuccess);
  NEED(cudaStreamCreate(&spare) == cudaSuccess && cudaEventCreate(&event) == cudaSuccess);
  sim_hold(w.n, true);
  NEED(cudaEventRecord(event, spare) == cudaSuccess);
  NEED(cudaSetDevice(1) == cudaSuccess);
  NEED(cudaStreamWaitEvent(stream, event, 0) == cudaSuccess);
  NEED(cudaEventDestroy(event) == cudaSuccess);
}

/* A small transfer's copies travel with their launches: no call waits for the runs before it, none
 * of which can begin on rank 1. */
static void calls_while_the_first_waits(int rank, form shape)
{
  cudaStream_t stream = world_stream();

  make_tensors(rank, shape);
  redistribute(rank, &tensors[rank][0], stream);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  ranks_barrier();
  if (rank == 1) put_behind_the_spare(stream);
  ranks_barrier();
  for (int i = 1; i < CALLS; i++)
    redistribute(rank, &tensors[rank][i], stream);
  ranks_barrier();
  NEED(rank != 1 || cudaStreamQuery(stream) == cudaErrorNotReady);
  NEED(rank != 1 || tensor_is_all(&tensors[rank][1], 0x5a));
  if (rank == 1) sim_hold(w.n, false);
  check_tensors(rank, stream);
}

static void ring(int rank)
{
  calls_while_the_first_waits(rank, RING);
}

static void each_each(int rank)
{
  calls_while_the_first_waits(rank, EACH_EACH);
}

static void test_small_calls_do_not_wait_for_those_before(void)
{
  world_make(2, COMM_NCCL, (sim_config){.n_devices = 3});
  world_go(ring);
}

static void test_small_calls_of_columns_do_not_wait_for_those_before(void)
{
  world_make(3, COMM_NCCL, (sim_config){.n_devices = 4});
  world_go(each_each);
}

/* Of 12 ranks each has 11 messages, whose table does not travel with a launch. */
static void calls_at_once(int rank)
{
  cudaStream_t stream = world_stream();

  make_tensors(rank, EACH_EACH);
  for (int i = 0; i < CALLS; i++)
    redistribute(rank, &tensors[rank][i], stream);
  check_tensors(rank, stream);
}

static void test_calls_with_large_tables(void)
{
  world_make(12, COMM_NCCL, (sim_config){.n_devices = 12});
  world_go(calls_at_once);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"small_calls_do_not_wait_for_those_before", test_small_calls_do_not_wait_for_those_before},
      {"small_calls_of_columns_do_not_wait_for_those_before",
       test_small_calls_of_columns_do_not_wait_for_those_before},
      {"calls_with_large_tables", test_calls_with_large_tables},
  };

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
