/* What the comm over MPI refuses, two ranks, each way in no time: communicators and threads that it
 * cannot use, calls that the two do not mean alike, and a rank that does not come. plugin.h
 * is played by the test, and so is what MPI says of its threads. */
#include "error.h"
#include "mpi_comm.h"
#include "played_core.h"
#include "unit/interrupts.h"
#include "xfer/mpi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 2, SHORT_MS = 100, LONG_MS = 60000 };

static int rank;
static int level_said = MPI_THREAD_MULTIPLE;
static int is_main_said = 1;

int MPI_Query_thread(int *level)
{
  *level = level_said;
  return MPI_SUCCESS;
}

int MPI_Is_thread_main(int *is_main)
{
  *is_main = is_main_said;
  return MPI_SUCCESS;
}

static MPI_Comm duplicated;  /* the last one */
static MPI_Comm first_freed; /* since then */

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *made)
{
  const int code = PMPI_Comm_dup(comm, made);

  duplicated = *made;
  first_freed = MPI_COMM_NULL;
  return code;
}

int MPI_Comm_free(MPI_Comm *comm)
{
  if (first_freed == MPI_COMM_NULL) first_freed = *comm;
  return PMPI_Comm_free(comm);
}

static MPI_Request *heard_first; /* until it has ended, no other does; NULL: as MPI says */
static const uint64_t *only_in;  /* from when this is not 0 on */

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
  int code = MPI_SUCCESS;

  if (heard_first == NULL || *only_in == 0) return PMPI_Test(request, done, status);
  *done = 0;
  if (request != heard_first) return MPI_SUCCESS;
  while (*done == 0 && code == MPI_SUCCESS)
    code = PMPI_Test(request, done, status);
  heard_first = NULL;
  return code;
}

static void assert_text(const char *words)
{
  if (strstr(xfer_last_error(), words) == NULL)
    fail_msg("rank %d: \"%s\" lacks \"%s\"", rank, xfer_last_error(), words);
}

static void test_an_intercommunicator_is_refused(void **state)
{
  MPI_Comm own = MPI_COMM_NULL;
  MPI_Comm both = MPI_COMM_NULL;
  xfer_comm *comm = NULL;

  (void)state;
  assert_int_equal(MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &own), MPI_SUCCESS);
  assert_int_equal(MPI_Intercomm_create(own, 0, MPI_COMM_WORLD, 1 - rank, 1, &both), MPI_SUCCESS);
  assert_int_equal(xfer_comm_create_mpi(&comm, both), XFER_ERR_ARG);
  assert_text("inter-communicator");
  assert_null(comm);
  (void)MPI_Comm_free(&both);
  (void)MPI_Comm_free(&own);
}

static void test_threads_that_mpi_forbids_fail_on_all(void **state)
{
  static const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED};
  bool in_order = true;

  (void)state;
  for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
    xfer_comm *comm = NULL;

    if (rank == 1) level_said = levels[i];
    if (rank == 1) is_main_said = 0;
    assert_int_equal(xfer_comm_create_mpi(&comm, MPI_COMM_WORLD),
                     rank == 1 ? XFER_ERR_UNSUPPORTED : XFER_ERR_PEER);
    assert_text("the main thread must make the comm");
    assert_null(comm);
    in_order = in_order && first_freed == duplicated;
    level_said = MPI_THREAD_MULTIPLE;
    is_main_said = 1;
  }
  assert_true(in_order); /* freeing is collective: of several, the same first on all ranks */
}

/* ---- calls -------------------------------------------------------------------------------- */

typedef void play_fn(xfi_comm *comm, bool by_messages);

/* In shared memory, then as between hosts. */
static void in_both_ways(play_fn *play)
{
  for (int by_messages = 0; by_messages < 2; by_messages++) {
    xfer_comm *comm = NULL;

    assert_int_equal(xfer_comm_create_mpi(&comm, MPI_COMM_WORLD), XFER_OK);
    if (by_messages) comm->transport->shares_all = false;
    play(comm->transport, by_messages);
    (void)MPI_Barrier(MPI_COMM_WORLD);
    xfer_comm_destroy(comm);
  }
}

static void gather_other_sizes(xfi_comm *comm, bool by_messages)
{
  char all[RANKS * 24];

  (void)by_messages;
  assert_int_equal(comm->ops->all_gather(comm, all, "bytes, bytes, and bytes", rank == 0 ? 16 : 24,
                                         xfi_deadline_after(LONG_MS)),
                   XFER_ERR_MISMATCH);
  assert_text(rank == 0 ? "rank 0 gathers 16 bytes and rank 1 24:"
                        : "rank 1 gathers 24 bytes and rank 0 16:");
}

static void test_gathers_of_other_sizes_fail_everywhere(void **state)
{
  (void)state;
  in_both_ways(gather_other_sizes);
}

/* E6: a rank that meets the others' next gathering. */
static void gather_another(xfi_comm *comm, bool by_messages)
{
  char all[RANKS];

  if (!by_messages) return;
  if (rank == 0) comm->n_gatherings += 1;
  assert_int_equal(comm->ops->all_gather(comm, all, "x", 1, xfi_deadline_after(LONG_MS)),
                   XFER_ERR_MISMATCH);
  assert_text("is in gathering");
}

static void test_e6_another_gathering_fails_everywhere(void **state)
{
  (void)state;
  in_both_ways(gather_another);
}

static void gather_alone(xfi_comm *comm, bool by_messages)
{
  char all[RANKS];

  (void)by_messages;
  if (rank == 0) {
    assert_int_equal(comm->ops->all_gather(comm, all, "x", 1, xfi_deadline_after(SHORT_MS)),
                     XFER_ERR_TIMEOUT);
    assert_text("rank 1 did not come before the deadline");
  }
  (void)MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 1)
    assert_int_equal(comm->ops->all_gather(comm, all, "x", 1, xfi_deadline_after(LONG_MS)),
                     XFER_ERR_COMM);
}

static void test_e5_a_rank_that_does_not_gather_is_named(void **state)
{
  (void)state;
  in_both_ways(gather_alone);
}

static void gather_interrupted(xfi_comm *comm, bool by_messages)
{
  char all[RANKS];

  (void)by_messages;
  if (rank == 0) {
    interrupt_after(SHORT_MS);
    assert_int_equal(comm->ops->all_gather(comm, all, "x", 1, xfi_deadline_after(-1)),
                     XFER_ERR_TIMEOUT);
    assert_text("rank 1 did not come before this rank was interrupted");
    interrupt_no_more();
  }
  (void)MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 1) {
    assert_int_equal(comm->ops->all_gather(comm, all, "x", 1, xfi_deadline_after(LONG_MS)),
                     XFER_ERR_COMM);
    assert_text("was interrupted");
  }
}

static void test_a_rank_that_is_interrupted_gathers_no_more(void **state)
{
  (void)state;
  in_both_ways(gather_interrupted);
}

/* Rank 1 has what both give, and gives up; rank 0 hears that before it looks at what it has. */
static void give_up_early(xfi_comm *comm, bool by_messages)
{
  xfi_mpi_comm *t = (xfi_mpi_comm *)comm;
  const uint64_t always = 1;
  char all[RANKS] = "";

  (void)MPI_Barrier(MPI_COMM_WORLD);
  only_in = by_messages ? &t->gathering : &always;
  if (rank == 0) heard_first = &t->notice_recv;
  if (rank == 1) (void)usleep(50000); /* rank 0 comes to look */
  assert_int_equal(comm->ops->all_gather(comm, all, &"ab"[rank], 1, xfi_deadline_after(LONG_MS)),
                   XFER_OK);
  assert_memory_equal(all, "ab", RANKS);
  if (rank == 1) comm->ops->abort(comm, "rank 1: no more");
  assert_int_equal(comm->ops->all_gather(comm, all, "", 1, xfi_deadline_after(LONG_MS)),
                   XFER_ERR_COMM);
  assert_text("rank 1: no more");
}

static void test_a_gathering_before_a_failure_ends_well(void **state)
{
  (void)state;
  in_both_ways(give_up_early);
}

static void round_alone(xfi_comm *comm, bool by_messages)
{
  char byte = 0;
  const xfi_message from_1 = {&byte, 1, 1};

  (void)by_messages;
  if (rank == 0) {
    assert_int_equal(comm->ops->round(comm, &(xfi_messages){NULL, 0, &from_1, 1}, NULL,
                                      xfi_deadline_after(SHORT_MS)),
                     XFER_ERR_TIMEOUT);
    assert_text("rank 1 did not come before the deadline");
  }
}

static void test_e5_a_rank_that_sends_nothing_is_named(void **state)
{
  (void)state;
  in_both_ways(round_alone);
}

/* F1: what MPI's counts could not hold either. */
static void send_too_much(xfi_comm *comm, bool by_messages)
{
  char byte = 0;
  const xfi_message to_1 = {&byte, XFI_MESSAGE_BYTES + 1, 1};

  (void)by_messages;
  if (rank == 0) {
    assert_int_equal(comm->ops->round(comm, &(xfi_messages){&to_1, 1, NULL, 0}, NULL,
                                      xfi_deadline_after(LONG_MS)),
                     XFER_ERR_OVERFLOW);
    assert_text("at most 1073741824");
  }
}

static void test_f1_a_message_above_1_gib_is_refused(void **state)
{
  (void)state;
  in_both_ways(send_too_much);
}

/* ---- who leaves, and memory that cannot be shared ------------------------------------------- */

static xfer_comm *make(void)
{
  xfer_comm *comm = NULL;

  assert_int_equal(xfer_comm_create_mpi(&comm, MPI_COMM_WORLD), XFER_OK);
  return comm;
}

static void carry_nothing(void *context, size_t channel, char *slot, size_t n_bytes)
{
  (void)context, (void)channel, (void)slot, (void)n_bytes;
}

/* Nobody waits for a rank that gave its comm back, not until the deadline. */
static void test_a_rank_that_has_left_is_named(void **state)
{
  (void)state;
  for (int streams = 0; streams < 2; streams++) {
    xfer_comm *comm = make();
    xfi_comm *transport = comm->transport;
    const xfi_deadline deadline = xfi_deadline_after(LONG_MS);
    xfi_channel from_0 = {.peer = 0, .n_bytes = 5};
    char all[RANKS];

    if (rank == 1) {
      assert_int_equal(
          streams
              ? transport->ops->carry_channels(
                    transport, &(xfi_channel_set){&from_0, 1, 4096, carry_nothing, NULL}, deadline)
              : transport->ops->all_gather(transport, all, "x", 1, deadline),
          XFER_ERR_COMM);
      assert_text("rank 0 has left the comm");
      assert_false(xfi_deadline_expired(deadline));
    }
    xfer_comm_destroy(comm);
    (void)MPI_Barrier(MPI_COMM_WORLD);
  }
}

/* Rank 1 waits for long enough to look. */
static void test_a_child_that_leaves_is_not_its_rank(void **state)
{
  (void)state;
  xfer_comm *comm = make();
  const pid_t child = rank == 0 ? fork() : -1;
  char all[RANKS] = "";

  if (child == 0) {
    xfi_shared_end((xfi_shared *)comm->transport);
    _exit(0);
  }
  if (rank == 0) {
    assert_true(child > 0 && waitpid(child, NULL, 0) == child);
    (void)usleep(100000);
  }
  assert_int_equal(comm->transport->ops->all_gather(comm->transport, all, rank == 0 ? "a" : "b", 1,
                                                    xfi_deadline_after(LONG_MS)),
                   XFER_OK);
  assert_memory_equal(all, "ab", RANKS);
  xfer_comm_destroy(comm);
  (void)MPI_Barrier(MPI_COMM_WORLD);
}

/* A file that is larger than a process may write is a signal, by which it would end. */
static void test_where_files_are_limited_ranks_send_messages(void **state)
{
  (void)state;
  struct rlimit before;
  struct rlimit few;
  char all[RANKS] = "";

  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  few = before;
  few.rlim_cur = 4096;
  if (rank == 1) assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
  xfer_comm *comm = make();
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  assert_false(comm->transport->shares_all);
  assert_int_equal(comm->transport->ops->all_gather(comm->transport, all, rank == 0 ? "a" : "b", 1,
                                                    xfi_deadline_after(LONG_MS)),
                   XFER_OK);
  assert_memory_equal(all, "ab", RANKS);
  xfer_comm_destroy(comm);
}

/* MPI would end the process. Outside of cmocka, since nothing follows. */
static bool fails_after_mpi(xfi_comm *comm)
{
  const xfi_deadline deadline = xfi_deadline_after(LONG_MS);
  char all[RANKS];
  const xfi_message m = {all, 1, 1 - rank};
  const bool fails =
      comm->ops->check(comm) == XFER_ERR_COMM &&
      strstr(xfer_last_error(), "MPI is finalized") != NULL &&
      comm->ops->all_gather(comm, all, "x", 1, deadline) == XFER_ERR_COMM &&
      comm->ops->round(comm, &(xfi_messages){NULL, 0, &m, 1}, NULL, deadline) == XFER_ERR_COMM &&
      comm->ops->broadcast(comm, &m, 1, 0, NULL, deadline) == XFER_ERR_COMM;

  comm->ops->abort(comm, "nothing is sent");
  return fails;
}

int main(int argc, char **argv)
{
  xfer_comm *kept[2] = {NULL, NULL}; /* beyond MPI's end; the second is aborted at once */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_an_intercommunicator_is_refused),
      cmocka_unit_test(test_threads_that_mpi_forbids_fail_on_all),
      cmocka_unit_test(test_gathers_of_other_sizes_fail_everywhere),
      cmocka_unit_test(test_e6_another_gathering_fails_everywhere),
      cmocka_unit_test(test_e5_a_rank_that_does_not_gather_is_named),
      cmocka_unit_test(test_a_rank_that_is_interrupted_gathers_no_more),
      cmocka_unit_test(test_a_gathering_before_a_failure_ends_well),
      cmocka_unit_test(test_e5_a_rank_that_sends_nothing_is_named),
      cmocka_unit_test(test_f1_a_message_above_1_gib_is_refused),
      cmocka_unit_test(test_a_rank_that_has_left_is_named),
      cmocka_unit_test(test_a_child_that_leaves_is_not_its_rank),
      cmocka_unit_test(test_where_files_are_limited_ranks_send_messages),
  };
  int level = 0;

  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) return 1;
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  (void)MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  for (int i = 0; i < 2; i++) {
    if (xfer_comm_create_mpi(&kept[i], MPI_COMM_WORLD) != XFER_OK) return 1;
    kept[i]->transport->shares_all = false;
  }
  (void)MPI_Finalize();
  kept[1]->transport->ops->abort(kept[1]->transport, "nothing is sent");
  if (!fails_after_mpi(kept[0]->transport)) failed = 1;
  for (int i = 0; i < 2; i++)
    xfer_comm_destroy(kept[i]);
  xfer_comm *late = NULL;
  if (xfer_comm_create_mpi(&late, MPI_COMM_WORLD) != XFER_ERR_STATE) failed = 1;
  return failed;
}
