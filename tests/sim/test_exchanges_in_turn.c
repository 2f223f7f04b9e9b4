/* xfer_exchange() call after call, of arrays to the next rank and to this one itself, which lie
 * elsewhere each time. */
#include "world.h"

#include <string.h>

#include "xfer/exchange.h"

enum { MOST = 6, CALLS = 8, SMALL = 3000, LARGE = 300000, GAP = 336, TIMEOUT_MS = 20000 };

static int n_arrays;   /* to the next rank, and as many to itself, */
static size_t n_bytes; /* of as many bytes each */
static uint64_t n_launched;
static unsigned char *memory[WORLD_RANKS][CALLS][2];

static unsigned char value_of(int from, int call, int array, size_t i)
{
  return (unsigned char)(from * 89 + call * 31 + array * 7 + (int)(i % 251));
}

/* The first half of the arrays goes to the next rank, the second stays. */
static void exchange(int rank, int call, cudaStream_t stream)
{
  xfer_operation sends[2 * MOST];
  xfer_operation recvs[2 * MOST];
  xfer_view src[2 * MOST];
  xfer_view dst[2 * MOST];
  const size_t n = (size_t)(2 * n_arrays);

  for (int i = 0; i < 2 * n_arrays; i++) {
    const bool goes = i < n_arrays;
    const size_t at = (size_t)i * (n_bytes + GAP);

    sends[i] = xfer_operation_bytes((uint64_t)i, goes ? (rank + 1) % w.n : rank, n_bytes);
    recvs[i] = xfer_operation_bytes((uint64_t)i, goes ? (rank + w.n - 1) % w.n : rank, n_bytes);
    src[i] = xfer_view_dense(memory[rank][call][0] + at);
    dst[i] = xfer_view_dense(memory[rank][call][1] + at);
  }
  OK(xfer_exchange(w.comms[rank], sends, src, n, recvs, dst, n, stream));
}

static void make(int rank)
{
  const size_t n_all = (size_t)(2 * n_arrays) * (n_bytes + GAP);

  OK(xfer_comm_set_timeout(w.comms[rank], TIMEOUT_MS));
  for (int c = 0; c < CALLS; c++)
    for (int to = 0; to < 2; to++) {
      unsigned char *at = memory[rank][c][to] = world_alloc(n_all);

      memset(at, 0x5a, n_all);
      for (int a = 0; to == 0 && a < 2 * n_arrays; a++)
        for (size_t i = 0; i < n_bytes; i++)
          at[(size_t)a * (n_bytes + GAP) + i] = value_of(rank, c, a, i);
    }
}

static void check(int rank, int call)
{
  const unsigned char *at = memory[rank][call][1];

  for (int a = 0; a < 2 * n_arrays; a++) {
    const int from = a < n_arrays ? (rank + w.n - 1) % w.n : rank;

    for (size_t i = 0; i < (n_bytes + GAP); i++)
      NEED(at[(size_t)a * (n_bytes + GAP) + i] ==
           (i < n_bytes ? value_of(from, call, a, i) : 0x5a));
  }
}

/* Calls of which none can begin on rank 1, whose host goes on all the same. */
static void calls_behind_a_held_one(int rank, int first, int last, cudaStream_t stream)
{
  ranks_barrier();
  if (rank == 1) world_hold_up(stream, w.n);
  ranks_barrier();
  for (int c = first; c < last; c++)
    exchange(rank, c, stream);
  ranks_barrier();
  NEED(rank != 1 || cudaStreamQuery(stream) == cudaErrorNotReady);
  NEED(rank != 1 || memory[1][first][1][0] == 0x5a);
  ranks_barrier();
}

static void exchanges(int rank)
{
  cudaStream_t stream = world_stream();

  make(rank);
  exchange(rank, 0, stream);
  calls_behind_a_held_one(rank, 1, 3, stream);
  world_let_go_on(rank, stream);
  const uint64_t n_before = world_launches();
  calls_behind_a_held_one(rank, 3, CALLS, stream);
  if (rank == 0) n_launched = world_launches() - n_before;
  ranks_barrier();
  world_let_go_on(rank, stream);
  for (int c = 0; c < CALLS; c++)
    check(rank, c);
  NEED_NO_VIOLATION();
  ranks_barrier();
  for (int c = 0; c < CALLS; c++)
    for (int to = 0; to < 2; to++)
      world_free(memory[rank][c][to]);
}

static void go_with(int n, size_t each, sim_config config, int n_ranks)
{
  n_arrays = n;
  n_bytes = each;
  world_make(n_ranks, COMM_NCCL, config);
  world_go(exchanges);
}

static void test_few_that_stay_go_with_those_that_are_read(void)
{
  go_with(4, SMALL, (sim_config){.n_devices = 4}, 3);
  NEED(n_launched == (CALLS - 3) * 3 * 2);
}

static void test_much_that_stays_goes_by_itself(void)
{
  go_with(4, LARGE, (sim_config){.n_devices = 4}, 3);
  NEED(n_launched == (CALLS - 3) * 3 * 3);
}

/* Six and six do not travel with one launch, and on the device no call could change them before the
 * one before it is over. */
static void test_exchanges_of_many_do_not_wait_for_those_before(void)
{
  go_with(6, SMALL, (sim_config){.n_devices = 4}, 3);
  NEED(n_launched == (CALLS - 3) * 3 * 3);
}

/* Of ranks that cannot map each other's memory, whose copies for peers are given up. */
static void test_what_stays_comes_where_nobody_reads(void)
{
  go_with(4, SMALL, (sim_config){.n_devices = 3, .apart = {2, 1}}, 2);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"few_that_stay_go_with_those_that_are_read", test_few_that_stay_go_with_those_that_are_read},
      {"much_that_stays_goes_by_itself", test_much_that_stays_goes_by_itself},
      {"exchanges_of_many_do_not_wait_for_those_before",
       test_exchanges_of_many_do_not_wait_for_those_before},
      {"what_stays_comes_where_nobody_reads", test_what_stays_comes_where_nobody_reads}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
