/* The comm over MPI, run with several numbers of ranks. The core's door is played by the test, so
 * that what it hands over can be seen.
 */
#define _GNU_SOURCE /* sched_setaffinity */

#include "mpi_comm.h"
#include "played_core.h"
#include "unit/comm_checks.h"
#include "xfer/mpi.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

enum { SHORT_MS = 200 };

static int world_rank;
static int world_size;
static bool by_messages; /* gather, as between hosts */

static xfer_comm *make(void)
{
  xfer_comm *comm = NULL;

  assert_int_equal(xfer_comm_create_mpi(&comm, MPI_COMM_WORLD), XFER_OK);
  assert_int_equal(comm->transport->rank, world_rank);
  assert_int_equal(comm->transport->size, world_size);
  assert_true(comm->transport->shares_all || world_size == 1); /* a host has no reason not to */
  comm->transport->shares_all = comm->transport->shares_all && !by_messages;
  return comm;
}

/* Every rank is done with its waits; nobody leaves MPI while another one still expects it. */
static void drop(xfer_comm *comm)
{
  assert_int_equal(MPI_Barrier(MPI_COMM_WORLD), MPI_SUCCESS);
  xfer_comm_destroy(comm);
  assert_all_as_expected();
}

static bool error_has(const char *words)
{
  if (strstr(xfi_last_error(), words) != NULL) return true;
  (void)fprintf(stderr, "rank %d: \"%s\" lacks \"%s\"\n", world_rank, xfi_last_error(), words);
  return false;
}

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
    expect(comm->transport->ops->round(comm->transport, &send, 1, &recv, 1, NULL, soon()) ==
           XFER_OK);
    expect(is_filled(in, n, i * 100 + (uint64_t)last));
  }
  free(out);
  free(in);
  drop(comm);
}

/* ---- streams ------------------------------------------------------------------------------ */

enum { STREAM_BYTES = 300000 };

/* What one rank's channels carry. */
typedef struct loads {
  const xfi_comm *comm;
  const xfi_channel *channels;
  unsigned char *bytes; /* [n][STREAM_BYTES] */
  size_t at[2 * 64];
  int n_carried;
  int sleeps_at; /* before carrying the n-th time; 0: never */
} loads;

static void carry_load(void *context, size_t channel, char *slot, size_t n_bytes)
{
  loads *l = context;
  unsigned char *bytes = l->bytes + channel * STREAM_BYTES + l->at[channel];

  if (++l->n_carried == l->sleeps_at) (void)usleep(20000);
  if (l->channels[channel].send)
    memcpy(slot, bytes, n_bytes);
  else
    memcpy(bytes, slot, n_bytes);
  l->at[channel] += n_bytes;
}

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
    expect(comm->ops->stream(comm, channels, n, slots[call % 4], carry_load, &l, soon()) ==
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

static void expect_broken(xfi_comm *comm);

/* One stream from `from` to `to`, each rank with its own size; what it came to. */
static xfer_status stream_one(xfi_comm *comm, int from, int to, size_t n_bytes, int ms)
{
  xfi_channel channel = {
      .peer = comm->rank == from ? to : from, .send = comm->rank == from, .n_bytes = n_bytes};
  loads l = {.comm = comm, .channels = &channel, .bytes = malloc(STREAM_BYTES)};

  assert_non_null(l.bytes);
  memset(l.bytes, 0, STREAM_BYTES);
  xfer_status st =
      comm->ops->stream(comm, &channel, 1, 4096, carry_load, &l, xfi_deadline_after(ms));
  free(l.bytes); /* nobody has it, whatever it came to */
  return st;
}

static void test_stream_names_the_rank_that_does_not_come(void **state)
{
  (void)state;
  if (world_size < 2) return;
  for (int sends = 0; sends < 2; sends++) {
    xfer_comm *comm = make();

    if (world_rank == 0) {
      expect(stream_one(comm->transport, !sends, sends, STREAM_BYTES, SHORT_MS) ==
             XFER_ERR_TIMEOUT);
      expect(error_has("stream: rank 1 did not come"));
      expect(!comm->transport->holds_memory);
    }
    (void)MPI_Barrier(MPI_COMM_WORLD);
    expect_broken(comm->transport);
    expect(stream_one(comm->transport, world_rank, !world_rank, 1, SHORT_MS) == XFER_ERR_COMM);
    drop(comm);
  }
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

static void test_abort_ends_a_stream(void **state)
{
  (void)state;
  if (world_size < 2) return;
  xfer_comm *comm = make();
  const int64_t start = xfi_now_ns();

  if (world_rank == 0) {
    (void)usleep(20000);
    comm->transport->ops->abort(comm->transport, "the sky falls");
  }
  if (world_rank == 1) expect(stream_one(comm->transport, 0, 1, 100, 60000) == XFER_ERR_COMM);
  (void)MPI_Barrier(MPI_COMM_WORLD);
  expect_broken(comm->transport);
  expect(error_has("the sky falls"));
  expect(xfi_now_ns() - start < (int64_t)30 * 1000000000);
  drop(comm);
}

/* Only then does a rank that waits keep its core. */
static void test_cores_are_counted(void **state)
{
  (void)state;
  cpu_set_t before;
  cpu_set_t one;

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
  const int first = ((xfi_mpi_comm *)comm->transport)->cards[0].cores.first;
  int is_alike = CPU_ISSET((size_t)first, &one);
  assert_int_equal(MPI_Allreduce(MPI_IN_PLACE, &is_alike, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD), 0);
  if (is_alike) assert_int_equal(comm->transport->has_cores, world_size == 1);
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

/* While the others wait for it. What they then tell it must not be in the way of comms that come.
 */
static void test_comms_after_a_rank_that_left_first(void **state)
{
  int all[64];

  (void)state;
  if (world_size < 2) return;
  xfer_comm *comm = make();
  if (world_rank != 1)
    expect(comm->transport->ops->all_gather(comm->transport, all, &world_rank, sizeof world_rank,
                                            xfi_deadline_after(SHORT_MS)) != XFER_OK);
  xfer_comm_destroy(comm);
  for (int i = 0; i < 3; i++) {
    comm = make();
    check_gathers(comm->transport, 2);
    xfer_comm_destroy(comm);
  }
  assert_all_as_expected();
}

static void expect_broken(xfi_comm *comm)
{
  int value = 0;
  int all[64];
  xfi_message m = {&value, sizeof value, comm->rank == 0 ? 1 : 0};

  expect(comm->ops->all_gather(comm, all, &value, sizeof value, soon()) == XFER_ERR_COMM);
  expect(comm->ops->round(comm, &m, 1, NULL, 0, NULL, soon()) == XFER_ERR_COMM);
  expect(comm->ops->broadcast(comm, &m, 1, 0, NULL, soon()) == XFER_ERR_COMM);
  expect(error_has("the comm is broken: "));
}

static void test_gather_names_the_rank_that_does_not_come(void **state)
{
  (void)state;
  if (world_size < 2) return;
  xfer_comm *comm = make();
  int late = world_size / 2;
  int all[64];
  char name[32];

  (void)snprintf(name, sizeof name, "rank %d ", late);
  if (world_rank != late) {
    xfer_status st = comm->transport->ops->all_gather(comm->transport, all, &late, sizeof late,
                                                      xfi_deadline_after(SHORT_MS));
    expect(st == XFER_ERR_TIMEOUT || st == XFER_ERR_COMM);
    if (st == XFER_ERR_TIMEOUT) expect(error_has(name));
    expect_broken(comm->transport);
  }
  (void)MPI_Barrier(MPI_COMM_WORLD);
  if (world_rank == late) expect_broken(comm->transport); /* it has been told */
  drop(comm);
}

/* Some megabytes, which MPI does not send ahead. */
static void test_round_names_the_rank_that_does_not_come(void **state)
{
  (void)state;
  if (world_size < 2) return;
  size_t n = (size_t)4 << 20;
  unsigned char *bytes = calloc(1, n);
  xfer_comm *comm = make();
  xfi_message m = {bytes, n, 1};
  bool held = false;

  assert_non_null(bytes);
  if (world_rank == 0) {
    xfi_deadline deadline = xfi_deadline_after(SHORT_MS);
    expect(comm->transport->ops->round(comm->transport, &m, 1, NULL, 0, NULL, deadline) ==
           XFER_ERR_TIMEOUT);
    expect(error_has("round: rank 1 did not come"));
    held = comm->transport->holds_memory;
    expect_broken(comm->transport);
  }
  (void)MPI_Barrier(MPI_COMM_WORLD);
  if (world_rank != 0) {
    expect_broken(comm->transport);
    expect(error_has("round: rank 1 did not come"));
  }
  if (!held) free(bytes);
  drop(comm);
}

static xfer_status broadcast_of_0(xfi_comm *comm, unsigned char *bytes, size_t n, int64_t ms)
{
  const xfi_message m = {bytes, n, 0};

  return comm->ops->broadcast(comm, &m, 1, 0, NULL, xfi_deadline_after(ms));
}

static bool stops_inside; /* the next broadcast, until each other rank has said that it gave up */

int MPI_Ibcast(void *bytes, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request)
{
  for (int r = 0; stops_inside && r < world_size; r++)
    if (r != world_rank) (void)MPI_Recv(NULL, 0, MPI_BYTE, r, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  stops_inside = false;
  return PMPI_Ibcast(bytes, n, type, root, comm, request);
}

/* Rank 0 cannot send to the late one, or has sent it; others wait for that one or for rank 0. It
 * does not come, or is stopped inside of MPI. */
static void test_broadcast_names_the_rank_that_does_not_come(void **state)
{
  static const size_t sizes[] = {(size_t)4 << 20, 100};

  (void)state;
  for (int i = 0; world_size >= 3 && i < 6; i++) {
    const int late = i % 2 == 0 ? world_size - 1 : 1;
    const size_t n = sizes[(i < 4 ? i / 2 : i) % 2];
    unsigned char *bytes = calloc(1, n);
    xfer_comm *comm = make();
    char words[64];
    char all[64];

    assert_non_null(bytes);
    (void)snprintf(words, sizeof words, "rank %d did not come before the deadline", late);
    expect(broadcast_of_0(comm->transport, bytes, n, 60000) == XFER_OK);
    stops_inside = world_rank == late && i >= 4;
    if (stops_inside) (void)broadcast_of_0(comm->transport, bytes, n, 60000);
    if (world_rank != late) {
      xfer_status st = broadcast_of_0(comm->transport, bytes, n, 3 * SHORT_MS);

      if (st == XFER_OK)
        st = comm->transport->ops->all_gather(comm->transport, all, "x", 1,
                                              xfi_deadline_after(3 * SHORT_MS));
      expect(st == XFER_ERR_TIMEOUT || st == XFER_ERR_COMM);
      expect(by_messages || error_has(words));
      if (i >= 4) (void)MPI_Send(NULL, 0, MPI_BYTE, late, 1, MPI_COMM_WORLD);
    }
    (void)MPI_Barrier(MPI_COMM_WORLD);
    if (!comm->transport->holds_memory) free(bytes);
    drop(comm);
  }
}

/* A rank that this one waits for may wait itself, in another way. */
static void test_who_is_late_is_found_through_another(void **state)
{
  (void)state;
  for (int i = 0; world_size >= 3 && i < 2; i++) {
    xfer_comm *comm = make();

    xfer_status st = XFER_OK;
    char byte = 0;
    const xfi_message from_2 = {&byte, 1, 2};
    if (world_rank == 0) st = stream_one(comm->transport, 1, 0, STREAM_BYTES, 2 * SHORT_MS);
    if (world_rank == 1 && i == 0) st = stream_one(comm->transport, 2, 1, STREAM_BYTES, 60000);
    if (world_rank == 1 && i == 1)
      st = comm->transport->ops->round(comm->transport, NULL, 0, &from_2, 1, NULL, soon());
    if (world_rank < 2) {
      expect(st == (world_rank == 0 ? XFER_ERR_TIMEOUT : XFER_ERR_COMM));
      expect(error_has("rank 2 did not come before the deadline"));
    }
    (void)MPI_Barrier(MPI_COMM_WORLD);
    drop(comm);
  }
}

static void test_a_receive_that_times_out_is_called_back(void **state)
{
  (void)state;
  if (world_size < 2) return;
  xfer_comm *comm = make();
  char byte = 0;
  xfi_message m = {&byte, 1, 1};

  if (world_rank == 0) {
    xfi_deadline deadline = xfi_deadline_after(SHORT_MS);
    expect(comm->transport->ops->round(comm->transport, NULL, 0, &m, 1, NULL, deadline) ==
           XFER_ERR_TIMEOUT);
    expect(error_has("round: rank 1 did not come"));
    expect(!comm->transport->holds_memory);
  }
  drop(comm);
}

static void test_abort_ends_all_waits(void **state)
{
  (void)state;
  if (world_size < 2) return;
  xfer_comm *comm = make();
  int all[64];
  int64_t start = xfi_now_ns();

  if (world_rank == world_size - 1) {
    (void)usleep(20000);
    comm->transport->ops->abort(comm->transport, "the sky falls");
  } else {
    expect(comm->transport->ops->all_gather(comm->transport, all, all, sizeof all[0], soon()) ==
           XFER_ERR_COMM);
  }
  expect_broken(comm->transport);
  expect(error_has("the sky falls"));
  expect(xfi_now_ns() - start < (int64_t)30 * 1000000000);
  drop(comm);
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
      xfer_status st = transport->ops->round(transport, &m, 1, NULL, 0, NULL, soon());
      expect(st == XFER_OK || st == XFER_ERR_COMM); /* short messages are sent ahead */
    }
    if (world_rank == 1) {
      expect(transport->ops->round(transport, NULL, 0, &m, 1, NULL, soon()) == XFER_ERR_MISMATCH);
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

/* The exit status is the maximum over ranks; a failing rank says its number. */
int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_calls),
      cmocka_unit_test(test_long_gathers_go_in_pieces),
      cmocka_unit_test(test_long_messages_pass_both_ways),
      cmocka_unit_test(test_streams),
      cmocka_unit_test(test_stream_names_the_rank_that_does_not_come),
      cmocka_unit_test(test_streams_that_differ_are_named),
      cmocka_unit_test(test_abort_ends_a_stream),
      cmocka_unit_test(test_cores_are_counted),
      cmocka_unit_test(test_comms_come_and_go),
      cmocka_unit_test(test_comms_after_a_rank_that_left_first),
      cmocka_unit_test(test_gather_names_the_rank_that_does_not_come),
      cmocka_unit_test(test_round_names_the_rank_that_does_not_come),
      cmocka_unit_test(test_broadcast_names_the_rank_that_does_not_come),
      cmocka_unit_test(test_who_is_late_is_found_through_another),
      cmocka_unit_test(test_a_receive_that_times_out_is_called_back),
      cmocka_unit_test(test_abort_ends_all_waits),
      cmocka_unit_test(test_sizes_that_differ_are_named),
      cmocka_unit_test(test_gathers_that_differ_fail_everywhere),
      cmocka_unit_test(test_wrong_arguments_are_refused),
      cmocka_unit_test(test_create_survives_each_failed_allocation),
  };
  xfer_comm *none = NULL;
  int level = MPI_THREAD_SINGLE;
  int before = xfer_comm_create_mpi(&none, MPI_COMM_NULL) == XFER_ERR_STATE ? 0 : 1;

  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) return 1;
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  (void)MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  int failed = before + cmocka_run_group_tests(tests, NULL, NULL);
  by_messages = true;
  failed += cmocka_run_group_tests(tests, NULL, NULL);
  if (failed != 0)
    (void)fprintf(stderr, "rank %d of %d: %d failed\n", world_rank, world_size, failed);
  (void)MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  (void)MPI_Finalize();
  return failed;
}
