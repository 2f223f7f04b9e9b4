/* Ranks of one host that share memory, as processes: one that is killed or late is named by
 * all others, and these may go on. */
#include "unit/host_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AT_ONCE_MS = 20000 };

typedef int process_body(int rank, meeting_place *place);

/* Each rank's body in a process of its own, which ends with its answer: 0 is right. `killed`: the
 * rank that ends by a signal; -1: none. */
static void with_processes(int n_ranks, int killed, process_body *body)
{
  meeting_place *place = open_place(n_ranks);
  pid_t pids[MOST_RANKS];

  for (int r = 0; r < n_ranks; r++) {
    pids[r] = fork();
    if (pids[r] == 0) _exit(body(r, place));
    assert_true(pids[r] > 0);
  }
  for (int r = 0; r < n_ranks; r++) {
    int how = 0;
    assert_int_equal(waitpid(pids[r], &how, 0), pids[r]);
    if (r == killed)
      assert_true(WIFSIGNALED(how));
    else
      assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
  }
  (void)munmap(place, sizeof *place);
}

static int heeds_the_end(int rank, meeting_place *place)
{
  xfi_comm *comm = join_at(place, rank, 0);

  if (rank == 1) (void)raise(SIGKILL);
  while (xfi_host_heed(comm, 1) == XFER_OK)
    (void)usleep(1000);
  return error_has("rank 1 has ended") ? 0 : 1;
}

static void test_the_end_of_a_process_is_heeded(void **state)
{
  (void)state;
  with_processes(2, 1, heeds_the_end);
}

static bool leaves_a_child;

/* A child that holds its parent's sockets until the others know that the parent has ended. */
static void outlive(const meeting_place *place)
{
  for (int ms = 0; ms < 2 * AT_ONCE_MS && place->n_gave_up < 2; ms++)
    (void)usleep(1000);
  _exit(0);
}

/* Rank 1 is killed while the others wait for it, 0 in a message and 2 in 0's: both name it, and
 * make a comm of two. */
static int survives(int rank, meeting_place *place)
{
  xfi_comm *comm = join_at(place, rank, 0);
  char byte = 'x';
  char all[3];
  const int64_t began = xfi_now_ns();
  const xfi_message from_1 = {&byte, 1, 1};
  const xfi_message from_0 = {&byte, 1, 0};

  if (rank == 1) {
    (void)usleep(200000);
    if (leaves_a_child && fork() == 0) outlive(place);
    (void)raise(SIGKILL);
  }
  if (comm->ops->exchange(comm, NULL, 0, rank == 0 ? &from_1 : &from_0, 1, soon()) != XFER_ERR_COMM)
    return 1;
  if (!error_has("the process of rank 1 has ended")) return 2;
  if (xfi_now_ns() - began > (int64_t)AT_ONCE_MS * 1000000) return 3;
  place->n_gave_up++;
  comm->ops->destroy(comm);
  place->n_ranks = 2;
  comm = join_at(place, rank / 2, 4);
  if (comm->ops->all_gather(comm, all, &"yz"[rank / 2], 1, soon()) != XFER_OK) return 4;
  if (memcmp(all, "yz", 2) != 0) return 5;
  comm->ops->destroy(comm);
  return 0;
}

static void test_a_killed_process_is_named_and_the_others_go_on(void **state)
{
  (void)state;
  with_processes(3, 1, survives);
}

static void test_children_of_a_killed_process_do_not_stand_for_it(void **state)
{
  (void)state;
  leaves_a_child = true;
  with_processes(3, 1, survives);
  leaves_a_child = false;
}

/* As a daemon does. */
static int closes_its_streams(int rank, meeting_place *place)
{
  char all[2];

  for (int file = STDIN_FILENO; file <= STDERR_FILENO; file++)
    (void)close(file);
  xfi_comm *comm = join_at(place, rank, 0);
  if (comm->ops->all_gather(comm, all, &"xy"[rank], 1, soon()) != XFER_OK) return 1;
  for (int file = STDIN_FILENO; file <= STDERR_FILENO; file++)
    if (fcntl(file, F_GETFD) != -1) return 2;
  comm->ops->destroy(comm);
  return 0;
}

static void test_what_is_printed_to_closed_streams_goes_to_no_rank(void **state)
{
  (void)state;
  with_processes(2, -1, closes_its_streams);
}

static int is_late(int rank, meeting_place *place)
{
  xfi_comm *comm = join_at(place, rank, 0);
  char all[3];

  if (rank == 2) {
    while (place->n_gave_up < 2)
      (void)usleep(1000);
    /* What the others sent before they gave up is there: where they have not ended yet, this rank
     * may have all it wants, and learns of it in the next. */
    xfer_status told = comm->ops->all_gather(comm, all, "x", 1, soon());
    if (told == XFER_OK) told = comm->ops->all_gather(comm, all, "x", 1, soon());
    if (told != XFER_ERR_COMM) return 1;
    return error_has("rank 2 did not come before the deadline") ? 0 : 2;
  }
  const xfer_status st = comm->ops->all_gather(comm, all, "x", 1, xfi_deadline_after(300));
  place->n_gave_up++;
  if (st != XFER_ERR_TIMEOUT && st != XFER_ERR_COMM) return 3;
  return error_has("rank 2 did not come before the deadline") ? 0 : 4;
}

static void test_a_late_process_is_named_by_all_and_told(void **state)
{
  (void)state;
  with_processes(3, -1, is_late);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_end_of_a_process_is_heeded),
      cmocka_unit_test(test_a_killed_process_is_named_and_the_others_go_on),
      cmocka_unit_test(test_children_of_a_killed_process_do_not_stand_for_it),
      cmocka_unit_test(test_what_is_printed_to_closed_streams_goes_to_no_rank),
      cmocka_unit_test(test_a_late_process_is_named_by_all_and_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
