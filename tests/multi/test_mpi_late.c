/* The comm over MPI where a rank does not come, leaves or aborts: all waits end, and say why. */
#include "mpi_ranks.h"
#include "unit/in_time.h"

enum { SHORT_MS = 200 };

/* At the end of a try: ranks try again together. */
static void agree_on_the_try(void)
{
  int n = n_untrue;

  (void)MPI_Allreduce(MPI_IN_PLACE, &n, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  n_untrue = n;
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
      expect(error_has("rank 1 did not come"));
      expect(!comm->transport->holds_memory);
    }
    (void)MPI_Barrier(MPI_COMM_WORLD);
    expect_broken(comm->transport);
    expect(stream_one(comm->transport, world_rank, !world_rank, 1, SHORT_MS) == XFER_ERR_COMM);
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

static void gather_in_vain(void *context)
{
  (void)context;
  xfer_comm *comm = make();
  int late = world_size / 2;
  int all[64];
  char name[32];

  (void)snprintf(name, sizeof name, "rank %d ", late);
  if (world_rank != late) {
    xfer_status st = comm->transport->ops->all_gather(comm->transport, all, &late, sizeof late,
                                                      xfi_deadline_after(time_ms));
    expect(st == XFER_ERR_TIMEOUT || st == XFER_ERR_COMM);
    if (st == XFER_ERR_TIMEOUT) expect_in_time(error_has(name));
    expect_broken(comm->transport);
  }
  (void)MPI_Barrier(MPI_COMM_WORLD);
  if (world_rank == late) expect_broken(comm->transport); /* it has been told */
  drop(comm);
  agree_on_the_try();
}

static void test_gather_names_the_rank_that_does_not_come(void **state)
{
  (void)state;
  if (world_size < 2) return;
  assert_true(in_time(SHORT_MS, gather_in_vain, NULL));
}

/* Of those who wait in a circle the first deadline that passes ends the waits of all. */
static void test_who_waits_in_another_call_is_told(void **state)
{
  (void)state;
  if (world_size < 2) return;
  xfer_comm *comm = make();
  const int64_t start = xfi_now_ns();
  int all[64];

  comm->transport->inside = world_rank == 0 ? XFI_INSIDE_RUN : XFI_INSIDE_COMMIT;
  if (world_rank == 0)
    expect(stream_one(comm->transport, 1, 0, 100, 60000) == XFER_ERR_COMM);
  else
    expect(comm->transport->ops->all_gather(comm->transport, all, &world_rank, sizeof world_rank,
                                            xfi_deadline_after(3 * SHORT_MS)) != XFER_OK);
  expect(xfi_now_ns() - start < (int64_t)30 * 1000000000);
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
    expect(comm->transport->ops->round(comm->transport, &(xfi_messages){&m, 1, NULL, 0}, NULL,
                                       deadline) == XFER_ERR_TIMEOUT);
    expect(error_has("rank 1 did not come"));
    held = comm->transport->holds_memory;
    expect_broken(comm->transport);
  }
  (void)MPI_Barrier(MPI_COMM_WORLD);
  if (world_rank != 0) {
    expect_broken(comm->transport);
    expect(error_has("rank 1 did not come"));
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
static void broadcast_in_vain(void *context)
{
  static const size_t sizes[] = {(size_t)4 << 20, 100};
  const int i = *(const int *)context;
  const int late = i % 2 == 0 ? world_size - 1 : 1;
  const size_t n = sizes[(i < 4 ? i / 2 : i) % 2];
  unsigned char *bytes = calloc(1, n);
  xfer_comm *comm = make();
  char words[64];
  char all[64];

  assert_non_null(bytes);
  (void)snprintf(words, sizeof words, "rank %d did not come before the deadline", late);
  expect(broadcast_of_0(comm->transport, bytes, n, 60000) == XFER_OK);
  /* Else who has it gives up the next one while others still wait for it. */
  (void)MPI_Barrier(MPI_COMM_WORLD);
  stops_inside = world_rank == late && i >= 4;
  if (stops_inside) (void)broadcast_of_0(comm->transport, bytes, n, 60000);
  if (world_rank != late) {
    xfer_status st = broadcast_of_0(comm->transport, bytes, n, time_ms);

    if (st == XFER_OK)
      st = comm->transport->ops->all_gather(comm->transport, all, "x", 1,
                                            xfi_deadline_after(time_ms));
    expect(st == XFER_ERR_TIMEOUT || st == XFER_ERR_COMM);
    expect_in_time(by_messages || error_has(words));
    if (i >= 4) (void)MPI_Send(NULL, 0, MPI_BYTE, late, 1, MPI_COMM_WORLD);
  }
  (void)MPI_Barrier(MPI_COMM_WORLD);
  if (!comm->transport->holds_memory) free(bytes);
  drop(comm);
  agree_on_the_try();
}

static void test_broadcast_names_the_rank_that_does_not_come(void **state)
{
  (void)state;
  for (int i = 0; world_size >= 3 && i < 6; i++) /* time for them to say who */
    assert_true(in_time(by_messages ? SHORT_MS : 3 * SHORT_MS, broadcast_in_vain, &i));
}

static void wait_for_one_that_waits(void *context)
{
  const bool in_a_round = *(const int *)context == 1;
  xfer_comm *comm = make();
  xfer_status st = XFER_OK;
  char byte = 0;
  const xfi_message from_2 = {&byte, 1, 2};

  if (world_rank == 0) st = stream_one(comm->transport, 1, 0, STREAM_BYTES, (int)time_ms);
  if (world_rank == 1)
    st = in_a_round ? comm->transport->ops->round(
                          comm->transport, &(xfi_messages){NULL, 0, &from_2, 1}, NULL, soon())
                    : stream_one(comm->transport, 2, 1, STREAM_BYTES, 60000);
  if (world_rank < 2) {
    expect(st == (world_rank == 0 ? XFER_ERR_TIMEOUT : XFER_ERR_COMM));
    expect_in_time(error_has("rank 2 did not come before the deadline"));
  }
  (void)MPI_Barrier(MPI_COMM_WORLD);
  drop(comm);
  agree_on_the_try();
}

/* A rank that this one waits for may wait itself, in another way. */
static void test_who_is_late_is_found_through_another(void **state)
{
  (void)state;
  for (int i = 0; world_size >= 3 && i < 2; i++)
    assert_true(in_time(2 * SHORT_MS, wait_for_one_that_waits, &i));
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
    expect(comm->transport->ops->round(comm->transport, &(xfi_messages){NULL, 0, &m, 1}, NULL,
                                       deadline) == XFER_ERR_TIMEOUT);
    expect(error_has("rank 1 did not come"));
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

static int run(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_stream_names_the_rank_that_does_not_come),
      cmocka_unit_test(test_abort_ends_a_stream),
      cmocka_unit_test(test_comms_after_a_rank_that_left_first),
      cmocka_unit_test(test_gather_names_the_rank_that_does_not_come),
      cmocka_unit_test(test_who_waits_in_another_call_is_told),
      cmocka_unit_test(test_round_names_the_rank_that_does_not_come),
      cmocka_unit_test(test_broadcast_names_the_rank_that_does_not_come),
      cmocka_unit_test(test_who_is_late_is_found_through_another),
      cmocka_unit_test(test_a_receive_that_times_out_is_called_back),
      cmocka_unit_test(test_abort_ends_all_waits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
  return run_on_all_ranks(argc, argv, run);
}
