/* Ranks of one host that share memory, as processes: one that is killed or late is named by
 * all others, and these may go on. */
#include "unit/host_ranks.h"
#include "unit/in_time.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AT_ONCE_MS = 20000, SHORT_MS = 300 };
enum { NOT_IN_TIME = 75 }; /* of a process: what it expects within time_ms was not so */

typedef int process_body(int rank, meeting_place *place);

static void need_right(int how)
{
  if (WIFEXITED(how) && WEXITSTATUS(how) == NOT_IN_TIME)
    n_untrue++;
  else
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

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
      need_right(how);
  }
  (void)munmap(place, sizeof *place);
}

static bool lowers_its_limit; /* below the files that it has */

static int heeds_the_end(int rank, meeting_place *place)
{
  xfi_comm *comm = join_at(place, rank, 0);
  struct rlimit files;

  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return 2;
  if (lowers_its_limit) files.rlim_cur = 1;
  if (setrlimit(RLIMIT_NOFILE, &files) != 0) return 2;
  if (rank == 1) (void)raise(SIGKILL);
  while (xfi_shared_check_all(comm, 1) == XFER_OK)
    (void)usleep(1000);
  return error_has("rank 1 has ended") ? 0 : 1;
}

static void test_the_end_of_a_process_is_heeded(void **state)
{
  (void)state;
  with_processes(2, 1, heeds_the_end);
  lowers_its_limit = true;
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
  if (comm->ops->exchange(comm, &(xfi_messages){NULL, 0, rank == 0 ? &from_1 : &from_0, 1},
                          soon()) != XFER_ERR_COMM)
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

/* By fork(), or as by _Fork(), of which no handler hears. */
static bool is_unheard;

/* Rank 1 has a child that gives back what it has of its parent's. */
static int has_a_tidy_child(int rank, meeting_place *place)
{
  xfi_comm *comm = join_at(place, rank, 0);
  char all[2];
  int how = 0;

  if (rank == 1) {
    const pid_t child = is_unheard ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child == 0) {
      comm->ops->destroy(comm);
      _exit(0);
    }
    if (waitpid(child, &how, 0) != child || how != 0) return 1;
  }
  for (int i = 0; i < 3; i++) {
    if (comm->ops->all_gather(comm, all, &"xy"[rank], 1, soon()) != XFER_OK) return 2;
    if (memcmp(all, "xy", 2) != 0) return 3;
  }
  comm->ops->destroy(comm);
  return 0;
}

static void test_a_child_gives_a_comm_back_and_nobody_notices(void **state)
{
  (void)state;
  for (int i = 0; i < 2; i++) {
    is_unheard = i == 1;
    with_processes(2, -1, has_a_tidy_child);
  }
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
    return error_has("rank 2 did not come before the deadline") ? 0 : NOT_IN_TIME;
  }
  const xfer_status st = comm->ops->all_gather(comm, all, "x", 1, xfi_deadline_after(time_ms));
  place->n_gave_up++;
  if (st != XFER_ERR_TIMEOUT && st != XFER_ERR_COMM) return 3;
  return error_has("rank 2 did not come before the deadline") ? 0 : NOT_IN_TIME;
}

static void three_of_which_one_is_late(void *context)
{
  (void)context;
  with_processes(3, -1, is_late);
}

static void test_a_late_process_is_named_by_all_and_told(void **state)
{
  (void)state;
  assert_true(in_time(SHORT_MS, three_of_which_one_is_late, NULL));
}

static int n_files;    /* that rank 1 may open */
static bool was_short; /* of a file for the caller */

/* A gathering that opens a file, as those over gloo and torch's stores do. */
static int gather_by_a_file(void *context, void *all, const void *mine, size_t n_bytes)
{
  const int file = dup(STDOUT_FILENO);

  was_short |= file < 0;
  if (file >= 0) (void)close(file);
  return gather_there(context, all, mine, n_bytes);
}

/* Is a comm made, and if not, do all know why? */
static int has_few_files(int rank, meeting_place *place)
{
  visitor v = {place, rank, 0, -1};
  const int first = dup(STDOUT_FILENO);
  const struct rlimit few = {(rlim_t)(first + n_files), (rlim_t)(first + n_files)};
  xfi_comm *comm = NULL;
  char words[80];

  (void)close(first);
  if (rank == 1 && setrlimit(RLIMIT_NOFILE, &few) != 0) return 1;
  (void)snprintf(words, sizeof words, "Too many open files: the limit of this process is %d ",
                 first + n_files);
  const xfer_status st =
      xfi_comm_create_host(&comm, gather_by_a_file, &v, rank, place->n_ranks, false);
  if (st == XFER_OK) place->n_gave_up = 1; /* enough */
  if (was_short && n_files > 0) return 4;
  if (st == XFER_OK) return 0;
  if (st != (rank == 1 ? XFER_ERR_COMM : XFER_ERR_PEER)) return 2;
  return error_has(words) && (rank == 1 || error_has("rank 1: ")) ? 0 : 3;
}

static void test_too_few_files_are_said_on_all(void **state)
{
  (void)state;
  for (n_files = 0; n_files < 40; n_files++) {
    meeting_place *place = open_place(4);
    pid_t pids[4];
    int how = 0;

    print_message("%d files\n", n_files);
    for (int r = 0; r < 4; r++) {
      pids[r] = fork();
      if (pids[r] == 0) _exit(has_few_files(r, place));
      assert_true(pids[r] > 0);
    }
    for (int r = 0; r < 4; r++) {
      assert_int_equal(waitpid(pids[r], &how, 0), pids[r]);
      assert_int_equal(how, 0);
    }
    const bool is_enough = place->n_gave_up != 0;
    (void)munmap(place, sizeof *place);
    if (is_enough) break;
  }
  assert_true(n_files > 6 && n_files < 40);
}

/* ---- who is late ---------------------------------------------------------------------------- */

enum { LONG = 1 << 20 }; /* more than the slots hold */
static char longs[2][LONG];

static xfer_status broadcast_of_0(xfi_comm *comm, xfi_deadline deadline)
{
  const xfi_message one = {longs[0], LONG, 0};

  return comm->ops->broadcast(comm, &one, 1, 0, NULL, deadline);
}

/* Each one's to the next, and the last one's to the first. */
static xfer_status round_in_a_ring(xfi_comm *comm, xfi_deadline deadline)
{
  const xfi_message send = {longs[0], LONG, (comm->rank + 1) % comm->size};
  const xfi_message recv = {longs[1], LONG, (comm->rank + comm->size - 1) % comm->size};

  return comm->ops->round(comm, &(xfi_messages){&send, 1, &recv, 1}, NULL, deadline);
}

static void carry_nothing(void *context, size_t channel, char *slot, size_t n_bytes)
{
  (void)context, (void)channel, (void)slot, (void)n_bytes;
}

/* Everybody's same bytes to all others. */
static xfer_status stream_to_all(xfi_comm *comm, xfi_deadline deadline)
{
  const size_t n_peers = (size_t)comm->size - 1;
  xfi_channel channels[2 * MOST_RANKS];

  for (size_t i = 0; i < 2 * n_peers; i++) {
    const bool send = i < n_peers;

    channels[i] = (xfi_channel){.peer = (comm->rank + 1 + (int)(i % n_peers)) % comm->size,
                                .send = send,
                                .n_bytes = LONG,
                                .next_same = send && i + 1 < n_peers ? i + 1 : 0,
                                .is_again = send && i > 0};
  }
  return comm->ops->carry_channels(
      comm, &(xfi_channel_set){channels, 2 * n_peers, XFI_CHANNEL_SLOT_BYTES, carry_nothing, NULL},
      deadline);
}

static xfer_status gather_of_all(xfi_comm *comm, xfi_deadline deadline)
{
  char all[MOST_RANKS];

  return comm->ops->all_gather(comm, all, "x", 1, deadline);
}

typedef xfer_status collective(xfi_comm *comm, xfi_deadline deadline);
static collective *const collectives[] = {broadcast_of_0, round_in_a_ring, stream_to_all,
                                          gather_of_all};
enum { N_COLLECTIVES = sizeof collectives / sizeof *collectives };

/* Rank 1's child, in place of its parent: it begins to send, as a call does before ranks have met,
 * and then makes the call. */
static int stands_in(xfi_comm *comm, collective *call)
{
  xfi_channel one = {.peer = 0, .send = true, .n_bytes = 1};

  comm->ops->carry_begin(comm,
                         &(xfi_channel_set){&one, 1, XFI_CHANNEL_SLOT_BYTES, carry_nothing, NULL});
  if (call(comm, soon()) != XFER_ERR_STATE) return 1;
  if (!error_has("this process is a child that was forked from rank 1")) return 2;
  comm->ops->destroy(comm);
  return 0;
}

static int has_a_child_that_calls(int rank, meeting_place *place)
{
  xfi_comm *comm = join_at(place, rank, 0);
  int how = 0;

  for (int i = 0; i < N_COLLECTIVES; i++) {
    const pid_t child = rank == 1 ? fork() : -1;

    if (child == 0) _exit(stands_in(comm, collectives[i]));
    if (rank == 1 && (waitpid(child, &how, 0) != child || how != 0)) return 1;
    for (int k = 0; k < N_COLLECTIVES; k++)
      if (collectives[k](comm, soon()) != XFER_OK) return 2;
  }
  comm->ops->destroy(comm);
  return 0;
}

static void test_a_child_that_calls_is_refused_and_nobody_notices(void **state)
{
  (void)state;
  with_processes(3, -1, has_a_child_that_calls);
}

static collective *collective_now;
static int late_now;

/* What a process of a rank that waits for it ends with. */
static int names_the_late(xfer_status st)
{
  char words[64];

  if (st != XFER_ERR_TIMEOUT && st != XFER_ERR_COMM) return 2;
  (void)snprintf(words, sizeof words, "rank %d did not come before the deadline", late_now);
  return error_has(words) ? 0 : NOT_IN_TIME;
}

/* The first to give up need not wait for the late one itself. */
static int waits_for_the_late(int rank, meeting_place *place)
{
  xfi_comm *comm = join_at(place, rank, 0);
  const int64_t later_ms = rank == (late_now + 2) % comm->size ? 0 : time_ms / 3;

  if (collective_now(comm, soon()) != XFER_OK) return 1;
  if (rank == late_now) {
    while (place->n_gave_up < comm->size - 1)
      (void)usleep(1000);
    return 0;
  }
  xfer_status st = XFER_OK;
  while (st == XFER_OK) /* it may have all it needs, once */
    st = collective_now(comm, xfi_deadline_after(time_ms + later_ms));
  const int answer = names_the_late(st);
  place->n_gave_up++;
  return answer;
}

static void four_of_which_one_is_late(void *context)
{
  process_body *const *body = context;

  with_processes(4, -1, *body);
}

static void test_the_late_one_is_named_by_all_whoever_waits_for_it(void **state)
{
  process_body *body = waits_for_the_late;

  (void)state;
  for (int i = 0; i < N_COLLECTIVES; i++) {
    collective_now = collectives[i];
    for (late_now = 0; late_now < 4; late_now++) {
      print_message("collective %d, rank %d is late\n", i, late_now);
      assert_true(in_time(SHORT_MS, four_of_which_one_is_late, &body));
    }
  }
}

/* Rank 0 fills slots again that one has not emptied which has no part in the call. */
static int waits_for_a_reader(int rank, meeting_place *place)
{
  xfi_comm *comm = join_at(place, rank, 0);
  const xfi_message first = {longs[0], XFI_CHANNEL_SLOTS * XFI_CHANNEL_SLOT_BYTES, 0};
  xfer_status st;

  /* What rank 3 does not come to read is in slots that all of rank 0's peers read. */
  if (rank != 3 && comm->ops->broadcast(comm, &first, 1, 0, NULL, soon()) != XFER_OK) return 1;
  if (rank == 3) {
    while (place->n_gave_up < 3)
      (void)usleep(1000);
    return 0;
  }
  if (rank == 0) {
    xfi_channel both[] = {{.peer = 1, .send = true, .n_bytes = LONG, .next_same = 1},
                          {.peer = 2, .send = true, .n_bytes = LONG, .is_again = true}};
    st = comm->ops->carry_channels(
        comm, &(xfi_channel_set){both, 2, XFI_CHANNEL_SLOT_BYTES, carry_nothing, NULL},
        xfi_deadline_after(time_ms + time_ms / 3));
  } else {
    xfi_channel one = {.peer = 0, .n_bytes = LONG};
    st = comm->ops->carry_channels(
        comm, &(xfi_channel_set){&one, 1, XFI_CHANNEL_SLOT_BYTES, carry_nothing, NULL},
        xfi_deadline_after(time_ms));
  }
  const int answer = names_the_late(st);
  place->n_gave_up++;
  return answer;
}

static void test_a_reader_of_an_earlier_call_is_named(void **state)
{
  process_body *body = waits_for_a_reader;

  (void)state;
  late_now = 3;
  assert_true(in_time(SHORT_MS, four_of_which_one_is_late, &body));
}

/* Calls go on until a process is stopped, in any of them and wherever it is. */
static int is_cut_short(int rank, meeting_place *place)
{
  xfi_comm *comm = join_at(place, rank, 0);
  xfer_status st = XFER_OK;

  for (uint64_t i = 0; st == XFER_OK; i++) {
    if (i == 20) place->n_gave_up++;
    st = collectives[mix(i) % N_COLLECTIVES](
        comm, xfi_deadline_after(place->n_gave_up < comm->size ? 20000 : time_ms));
  }
  return rank == late_now ? 0 : names_the_late(st);
}

/* After so many microseconds of calls. */
static void stop_one_after(void *context)
{
  enum { N_RANKS = 3 };
  const useconds_t *after_us = context;
  meeting_place *place = open_place(N_RANKS);
  pid_t pids[N_RANKS];
  int how[N_RANKS];

  for (int r = 0; r < N_RANKS; r++) {
    pids[r] = fork();
    if (pids[r] == 0) _exit(is_cut_short(r, place));
    assert_true(pids[r] > 0);
  }
  while (place->n_gave_up < N_RANKS)
    (void)usleep(1000);
  (void)usleep(*after_us);
  (void)kill(pids[late_now], SIGSTOP);
  for (int r = 0; r < N_RANKS; r++)
    if (r != late_now) assert_int_equal(waitpid(pids[r], &how[r], 0), pids[r]);
  (void)kill(pids[late_now], SIGCONT);
  assert_int_equal(waitpid(pids[late_now], &how[late_now], 0), pids[late_now]);
  for (int r = 0; r < N_RANKS; r++)
    need_right(how[r]);
  (void)munmap(place, sizeof *place);
}

static void test_a_stopped_process_is_named_wherever_it_was(void **state)
{
  (void)state;
  for (int i = 0; i < 12; i++) {
    useconds_t after_us = (useconds_t)(mix((uint64_t)i) % 20000);

    late_now = i % 3;
    assert_true(in_time(500, stop_one_after, &after_us));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_end_of_a_process_is_heeded),
      cmocka_unit_test(test_a_killed_process_is_named_and_the_others_go_on),
      cmocka_unit_test(test_children_of_a_killed_process_do_not_stand_for_it),
      cmocka_unit_test(test_a_child_gives_a_comm_back_and_nobody_notices),
      cmocka_unit_test(test_a_child_that_calls_is_refused_and_nobody_notices),
      cmocka_unit_test(test_what_is_printed_to_closed_streams_goes_to_no_rank),
      cmocka_unit_test(test_a_late_process_is_named_by_all_and_told),
      cmocka_unit_test(test_too_few_files_are_said_on_all),
      cmocka_unit_test(test_the_late_one_is_named_by_all_whoever_waits_for_it),
      cmocka_unit_test(test_a_reader_of_an_earlier_call_is_named),
      cmocka_unit_test(test_a_stopped_process_is_named_wherever_it_was),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
