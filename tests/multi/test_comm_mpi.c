/* The comm over MPI, run with several numbers of ranks. plugin.h is played by the test, so
 * that what it hands over can be seen.
 */
#define _GNU_SOURCE /* sched_setaffinity */

#include "mpi_ranks.h"

#include <pthread.h>
#include <sched.h>

static void test_all_calls(void **state)
{
  (void)state;
  xfer_comm *comm = make();

  check_gathers(comm->transport, 60);
  check_random_messages(comm->transport, 60, true);
  check_broadcasts(comm->transport, 30);
  check_agreement(comm->transport);
  check_agreement_names_the_cause(comm->transport);
  drop(comm);
}

static void test_long_gathers_go_in_pieces(void **state)
{
  (void)state;
  xfer_comm *comm = make();
  size_t n = 3000001; /* more than the library gathers at once, for any number of ranks */
  unsigned char *mine = malloc(n);
  unsigned char *all = malloc(n * (size_t)world_size);

  assert_true(mine != NULL && all != NULL);
  fill(mine, n, (uint64_t)world_rank);
  assert_int_equal(comm->transport->ops->all_gather(comm->transport, all, mine, n, soon()),
                   XFER_OK);
  for (int r = 0; r < world_size; r++)
    assert_true(is_filled(all + (size_t)r * n, n, (uint64_t)r));
  free(mine);
  free(all);
  drop(comm);
}

static void test_long_messages_pass_both_ways(void **state)
{
  (void)state;
  xfer_comm *comm = make();
  size_t n = (size_t)5 << 20;
  unsigned char *out = malloc(n);
  unsigned char *in = malloc(n);
  int next = (world_rank + 1) % world_size;
  int last = (world_rank + world_size - 1) % world_size;
  xfi_message send = {out, n, next};
  xfi_message recv = {in, n, last};

  assert_true(out != NULL && in != NULL);
  for (uint64_t i = 0; world_size > 1 && i < 3; i++) {
    fill(out, n, i * 100 + (uint64_t)world_rank);
    expect(comm->transport->ops->round(comm->transport, &(xfi_messages){&send, 1, &recv, 1}, NULL,
                                       soon()) == XFER_OK);
    expect(is_filled(in, n, i * 100 + (uint64_t)last));
  }
  free(out);
  free(in);
  drop(comm);
}

/* ---- streams ------------------------------------------------------------------------------ */

/* In some calls what a rank sends is the same for every second one. */
static int kind_of(int call, int peer)
{
  return call / 4 % 2 == 0 ? peer : peer % 2;
}

/* The channel sends what one before it does, if any: they are carried together. */
static void join_same(xfi_channel *channels, size_t k, int call)
{
  for (size_t i = 0; i < k; i++) {
    if (!channels[i].send || channels[i].next_same != 0 ||
        kind_of(call, channels[i].peer) != kind_of(call, channels[k].peer))
      continue;
    channels[i].next_same = k;
    channels[k].is_again = true;
  }
}

/* Both ends find the same number; now and then there is no channel. */
static size_t stream_bytes(int call, int from, int to)
{
  const uint64_t random = mix((uint64_t)(call * 7001 + from * 71 + to));

  return random % 5 == 0 ? 0 : 1 + (random >> 8) % (random % 2 == 0 ? 100 : STREAM_BYTES);
}

static void check_streams(xfi_comm *comm, int n_calls)
{
  static const size_t slots[] = {XFI_CHANNEL_SLOT_BYTES, 1000, 4096, 7};
  xfi_channel channels[2 * 64];
  loads l = {.comm = comm, .channels = channels};

  l.bytes = malloc((size_t)2 * (size_t)comm->size * STREAM_BYTES);
  assert_non_null(l.bytes);
  for (int call = 0; call < n_calls; call++) {
    size_t n = 0;
    for (int i = 0; i < 2 * comm->size; i++) {
      const bool send = i % 2 == 0;
      const int peer = i / 2;
      const size_t n_bytes = send ? stream_bytes(call, comm->rank, kind_of(call, peer))
                                  : stream_bytes(call, peer, kind_of(call, comm->rank));
      if (peer == comm->rank || n_bytes == 0) continue;
      channels[n] = (xfi_channel){.peer = peer, .send = send, .n_bytes = n_bytes};
      l.at[n] = 0;
      memset(l.bytes + n * STREAM_BYTES, 0, STREAM_BYTES);
      if (send)
        fill(l.bytes + n * STREAM_BYTES, n_bytes, seed_of(call, comm->rank, kind_of(call, peer)));
      if (send) join_same(channels, n, call);
      n++;
    }
    l.n_carried = 0;
    l.sleeps_at = comm->rank == call % comm->size ? 1 + call % 3 : 0;
    expect(comm->ops->carry_channels(
               comm, &(xfi_channel_set){channels, n, slots[call % 4], carry_load, &l}, soon()) ==
           XFER_OK);
    for (size_t i = 0; i < n; i++) {
      const uint64_t seed = seed_of(call, channels[i].peer, kind_of(call, comm->rank));

      expect(l.at[i] == (channels[i].is_again ? 0 : channels[i].n_bytes));
      expect(channels[i].n_done == channels[i].n_bytes);
      expect(channels[i].send || is_filled(l.bytes + i * STREAM_BYTES, channels[i].n_bytes, seed));
    }
  }
  free(l.bytes);
}

static void test_streams(void **state)
{
  (void)state;
  xfer_comm *comm = make();

  check_streams(comm->transport, 40);
  drop(comm);
}

static void test_streams_that_differ_are_named(void **state)
{
  static const size_t sizes[][2] = {{40, 48}, {48, 40}, {5000, 4096}}; /* sent, expected */

  (void)state;
  for (int i = 0; world_size >= 2 && i < 3; i++) {
    xfer_comm *comm = make();
    xfer_status st = XFER_OK;

    if (world_rank < 2) st = stream_one(comm->transport, 0, 1, sizes[i][world_rank], 60000);
    if (world_rank == 1) {
      expect(st == XFER_ERR_MISMATCH);
      expect(error_has("rank 0 sends"));
    }
    (void)MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank != 1) expect_broken(comm->transport);
    drop(comm);
  }
}

/* Only then does a rank that waits keep its core. */
static void test_cores_are_counted(void **state)
{
  (void)state;
  cpu_set_t before;
  cpu_set_t one;

  if (world_size < 2) return;
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (size_t i = 0; CPU_COUNT(&one) == 0; i++)
    if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
  int n_cores = CPU_COUNT(&before);
  assert_int_equal(MPI_Allreduce(MPI_IN_PLACE, &n_cores, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD), 0);
  xfer_comm *comm = make();
  if (n_cores >= world_size) /* as it comes, unless the launcher bound some of them to one */
    assert_true(comm->transport->has_cores);
  drop(comm);

  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  comm = make();
  int first = xfi_cores_own().first;
  assert_int_equal(MPI_Bcast(&first, 1, MPI_INT, 0, MPI_COMM_WORLD), 0);
  int is_alike = CPU_ISSET((size_t)first, &one);
  assert_int_equal(MPI_Allreduce(MPI_IN_PLACE, &is_alike, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD), 0);
  if (is_alike) assert_false(comm->transport->has_cores);
  assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
  drop(comm);
}

static void test_comms_come_and_go(void **state)
{
  (void)state;
  for (int i = 0; i < 50; i++) {
    xfer_comm *a = make();
    xfer_comm *b = make();
    check_gathers(b->transport, 2);
    check_gathers(a->transport, 2);
    xfer_comm_destroy(a);
    xfer_comm_destroy(b);
  }
  assert_all_as_expected();
}

static void test_sizes_that_differ_are_named(void **state)
{
  (void)state;
  static const size_t sizes[][2] = {{40, 48}, {48, 40}}; /* sent, expected */
  char bytes[64] = "";

  for (int i = 0; world_size >= 2 && i < 2; i++) {
    xfer_comm *comm = make();
    xfi_comm *transport = comm->transport;
    xfi_message m = {bytes, sizes[i][world_rank == 0 ? 0 : 1], world_rank == 0 ? 1 : 0};
    if (world_rank == 0) {
      xfer_status st =
          transport->ops->round(transport, &(xfi_messages){&m, 1, NULL, 0}, NULL, soon());
      expect(st == XFER_OK || st == XFER_ERR_COMM); /* short messages are sent ahead */
    }
    if (world_rank == 1) {
      expect(transport->ops->round(transport, &(xfi_messages){NULL, 0, &m, 1}, NULL, soon()) ==
             XFER_ERR_MISMATCH);
      expect(error_has(i == 0 ? "rank 0 sends 40 bytes in round to rank 1, which expects 48"
                              : "rank 0 sends more in round to rank 1 than the 40 bytes"));
    }
    (void)MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank != 1) expect_broken(transport);
    drop(comm);
  }
}

static void test_gathers_that_differ_fail_everywhere(void **state)
{
  (void)state;
  if (world_size < 2) return;
  xfer_comm *comm = make();
  char bytes[64] = "";
  char all[64 * 64];
  size_t n = world_rank == world_size - 1 ? 16 : 24;

  expect(comm->transport->ops->all_gather(comm->transport, all, bytes, n, soon()) ==
         XFER_ERR_MISMATCH);
  expect(error_has("16") && error_has("24"));
  expect_broken(comm->transport);
  drop(comm);
}

static void *make_it(void *made)
{
  *(xfer_comm **)made = make();
  return NULL;
}

/* As Python does, which looks for signals meanwhile. */
static void test_who_gives_up_tells_whichever_thread_made_the_comm(void **state)
{
  xfer_comm *comm = NULL;
  pthread_t maker;
  char all[64];

  (void)state;
  assert_int_equal(pthread_create(&maker, NULL, make_it, &comm), 0);
  assert_int_equal(pthread_join(maker, NULL), 0);
  if (world_rank == 0) {
    comm->transport->ops->abort(comm->transport, "rank 0: no more");
  } else {
    expect(comm->transport->ops->all_gather(comm->transport, all, "", 1, soon()) == XFER_ERR_COMM);
    expect(error_has("rank 0: no more"));
  }
  expect(comm->transport->ops->check(comm->transport) == XFER_ERR_COMM);
  (void)MPI_Barrier(MPI_COMM_WORLD); /* rank 0 makes no call that would tell them */
  drop(comm);
}

static void test_wrong_arguments_are_refused(void **state)
{
  (void)state;
  xfer_comm *comm = NULL;

  assert_int_equal(xfer_comm_create_mpi(NULL, MPI_COMM_WORLD), XFER_ERR_ARG);
  assert_true(error_has("xfer_comm_create_mpi: comm is NULL"));
  assert_int_equal(xfer_comm_create_mpi(&comm, MPI_COMM_NULL), XFER_ERR_ARG);
  assert_null(comm);
}

/* Each allocation of the last rank fails once: all ranks fail together, and then succeed together.
 */
static void test_create_survives_each_failed_allocation(void **state)
{
  (void)state;
  bool fails = world_rank == world_size - 1;
  xfer_comm *comm = NULL;
  xfer_status st = XFER_ERR_NOMEM;

  for (long n = 0; st != XFER_OK && n < 50; n++) {
    if (fails) xfi_alloc_fail_after(n);
    st = xfer_comm_create_mpi(&comm, MPI_COMM_WORLD);
    xfi_alloc_fail_after(-1);
    if (st == XFER_OK) break;
    assert_int_equal(st, fails ? XFER_ERR_NOMEM : XFER_ERR_PEER);
    assert_null(comm);
  }
  assert_int_equal(st, XFER_OK);
  drop(comm);
}

static int run(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_calls),
      cmocka_unit_test(test_long_gathers_go_in_pieces),
      cmocka_unit_test(test_long_messages_pass_both_ways),
      cmocka_unit_test(test_streams),
      cmocka_unit_test(test_streams_that_differ_are_named),
      cmocka_unit_test(test_cores_are_counted),
      cmocka_unit_test(test_comms_come_and_go),
      cmocka_unit_test(test_sizes_that_differ_are_named),
      cmocka_unit_test(test_gathers_that_differ_fail_everywhere),
      cmocka_unit_test(test_who_gives_up_tells_whichever_thread_made_the_comm),
      cmocka_unit_test(test_wrong_arguments_are_refused),
      cmocka_unit_test(test_create_survives_each_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
  return run_on_all_ranks(argc, argv, run);
}
