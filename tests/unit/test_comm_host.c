/* Ranks that meet over sockets of one host: as threads, what they exchange; as processes, that one
 * that is killed, late or of another mind is named by all others, and that these may go on.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* struct ucred */
#endif
#include "alloc.h"
#include "unit/comm_checks.h"
#include "unit/meeting.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { AT_ONCE_MS = 20000 };

static xfi_comm *join_at(meeting_place *place, int rank, int first_turn)
{
  visitor v = {place, rank, first_turn, -1};
  xfi_comm *comm = NULL;

  if (xfi_comm_create_host(&comm, gather_there, &v, rank, place->n_ranks) != XFER_OK) {
    (void)fprintf(stderr, "rank %d: %s\n", rank, xfi_last_error());
    _exit(9);
  }
  return comm;
}

static bool error_has(const char *words)
{
  if (strstr(xfi_last_error(), words) != NULL) return true;
  (void)fprintf(stderr, "\"%s\" lacks \"%s\"\n", xfi_last_error(), words);
  return false;
}

/* ---- threads ------------------------------------------------------------------------------ */

static void with_threads(int n_ranks, rank_body *body)
{
  meeting_place *place = open_place(n_ranks);

  run_ranks(n_ranks, body, place);
  (void)munmap(place, sizeof *place);
  assert_all_as_expected();
}

static void everything(int rank, void *context)
{
  xfi_comm *comm = join_at(context, rank, 0);

  expect(comm->rank == rank);
  check_gathers(comm, 40);
  check_random_messages(comm, 40, 3, false);
  check_random_messages(comm, 40, 1, true);
  check_broadcasts(comm, 40);
  check_agreement(comm);
  check_agreement_names_the_cause(comm);
  comm->ops->destroy(comm);
}

static void test_all_calls_with_1_to_7_ranks(void **state)
{
  (void)state;
  for (int n = 1; n <= MOST_RANKS; n++)
    with_threads(n, everything);
}

/* Larger than any socket's room, both ways at once, with the sides in opposite order. */
static void large_both_ways(int rank, void *context)
{
  enum { LARGE = 8 << 20 };
  xfi_comm *comm = join_at(context, rank, 0);
  unsigned char *out = malloc(LARGE);
  unsigned char *in = malloc(LARGE);
  const xfi_message send = {out, LARGE, 1 - rank};
  const xfi_message receive = {in, LARGE, 1 - rank};

  fill(out, LARGE, (uint64_t)rank);
  expect(comm->ops->round(comm, &send, 1, &receive, 1, NULL, soon()) == XFER_OK);
  expect(is_filled(in, LARGE, (uint64_t)(1 - rank)));
  comm->ops->destroy(comm);
  free(out);
  free(in);
}

static void test_messages_larger_than_the_sockets(void **state)
{
  (void)state;
  with_threads(2, large_both_ways);
}

static bool in_one_call;

static void not_of_one_mind(int rank, void *context)
{
  xfi_comm *comm = join_at(context, rank, 0);
  char bytes[2][64] = {""};
  const xfi_message send = {bytes[0], rank == 0 ? 64 : 32, 1 - rank};
  const xfi_message receive = {bytes[1], in_one_call ? send.n_bytes : 64, 1 - rank};

  if (rank == 1) memset(bytes[1], 7, sizeof bytes[1]);
  const xfer_status st = rank == 0 || in_one_call
                             ? comm->ops->exchange(comm, &send, 1, &receive, 1, soon())
                             : comm->ops->round(comm, &send, 1, &receive, 1, NULL, soon());
  expect(st == XFER_ERR_MISMATCH || st == XFER_ERR_COMM);
  expect(error_has("bytes in "));
  expect(rank == 0 || bytes[1][0] == 7); /* nothing was written */
  expect(comm->ops->exchange(comm, NULL, 0, NULL, 0, soon()) == XFER_ERR_COMM);
  comm->ops->destroy(comm);
}

static void test_messages_that_differ_are_not_taken(void **state)
{
  (void)state;
  for (int i = 0; i < 2; i++) {
    in_one_call = i == 1;
    with_threads(2, not_of_one_mind);
  }
}

static void *abort_soon(void *context)
{
  xfi_comm *comm = context;

  (void)usleep(100000);
  comm->ops->abort(comm, "enough");
  return NULL;
}

/* Rank 2 breaks the comm from another thread while rank 0 waits for it, and 1 for nobody yet. */
static void broken_by_another_thread(int rank, void *context)
{
  xfi_comm *comm = join_at(context, rank, 0);
  char all[3];
  pthread_t thread;

  if (rank == 2) {
    expect(pthread_create(&thread, NULL, abort_soon, comm) == 0);
    expect(pthread_join(thread, NULL) == 0);
  }
  if (rank == 1) (void)usleep(300000);
  expect(comm->ops->all_gather(comm, all, "x", 1, soon()) == XFER_ERR_COMM);
  expect(error_has("enough"));
  comm->ops->destroy(comm);
}

static void test_abort_ends_all_waits(void **state)
{
  (void)state;
  with_threads(3, broken_by_another_thread);
}

static void leaver(int rank, void *context)
{
  xfi_comm *comm = join_at(context, rank, 0);
  char all[3];

  if (rank != 1) {
    expect(comm->ops->all_gather(comm, all, "x", 1, soon()) == XFER_ERR_COMM);
    expect(error_has("rank 1 has left the comm"));
  }
  comm->ops->destroy(comm);
}

static void test_a_rank_that_left_is_named(void **state)
{
  (void)state;
  with_threads(3, leaver);
}

static void fails_while_meeting(int rank, void *context)
{
  visitor v = {context, rank, 0, rank == 1 ? 0 : -1};
  xfi_comm *comm = NULL;
  const xfer_status st = xfi_comm_create_host(&comm, gather_there, &v, rank, 3);

  expect(comm == NULL);
  expect(st == (rank == 1 ? XFER_ERR_COMM : XFER_ERR_PEER));
  expect(error_has(rank == 1 ? "answered 1" : "rank 1: "));
}

static void test_a_rank_that_cannot_join_fails_on_all(void **state)
{
  (void)state;
  with_threads(3, fails_while_meeting);
}

static void test_create_survives_each_failed_allocation(void **state)
{
  (void)state;
  meeting_place *place = open_place(1);
  xfer_status st = XFER_ERR_NOMEM;
  xfi_comm *comm = NULL;

  for (long n = 0; st != XFER_OK && n < 10; n++) {
    visitor v = {place, 0, 0, -1};
    xfi_alloc_fail_after(n);
    st = xfi_comm_create_host(&comm, gather_there, &v, 0, 1);
    if (st != XFER_OK) assert_null(comm);
  }
  xfi_alloc_fail_after(-1);
  assert_int_equal(st, XFER_OK);
  comm->ops->destroy(comm);
  (void)munmap(place, sizeof *place);
}

/* A call without memory says so and breaks the comm. */
static void test_calls_survive_each_failed_allocation(void **state)
{
  (void)state;
  enum { LONG = 200 }; /* goes in two parts */
  static const char mine[LONG] = "x";
  char all[LONG];
  const xfi_message one = {all, 1, 0};

  for (int call = 0; call < 2; call++) {
    xfer_status st = XFER_ERR_NOMEM;

    for (long n = 0; st != XFER_OK && n < 10; n++) {
      meeting_place *place = open_place(1);
      xfi_comm *comm = join_at(place, 0, 0);

      xfi_alloc_fail_after(n);
      st = call == 0 ? comm->ops->all_gather(comm, all, mine, LONG, soon())
                     : comm->ops->broadcast(comm, &one, 1, 0, NULL, soon());
      xfi_alloc_fail_after(-1);
      if (st != XFER_OK) assert_int_equal(st, XFER_ERR_NOMEM);
      assert_int_equal(comm->ops->broadcast(comm, &one, 1, 0, NULL, soon()),
                       st == XFER_OK ? XFER_OK : XFER_ERR_COMM);
      comm->ops->destroy(comm);
      (void)munmap(place, sizeof *place);
    }
    assert_int_equal(st, XFER_OK);
  }
}

/* ---- of the program's link: a peer of another user, and calls of the system that fail ---- */

static _Thread_local bool meets_a_stranger;
static _Thread_local bool accepts_nobody;
static _Thread_local long until_failure = -1; /* of this rank's calls; < 0: none fails */
static _Thread_local bool has_failed;
static int failure; /* the errno */

static bool fails(void)
{
  if (until_failure < 0 || until_failure-- > 0) return false;
  has_failed = true;
  errno = failure;
  return true;
}

#define MAY_FAIL(type, name, parameters, arguments)                                                \
  type __real_##name parameters;                                                                   \
  type __wrap_##name parameters;                                                                   \
  type __wrap_##name parameters                                                                    \
  {                                                                                                \
    return fails() ? -1 : __real_##name arguments;                                                 \
  }

MAY_FAIL(ssize_t, getrandom, (void *bytes, size_t n_bytes, unsigned flags), (bytes, n_bytes, flags))
MAY_FAIL(int, socket, (int domain, int type, int protocol), (domain, type, protocol))
MAY_FAIL(int, bind, (int file, const struct sockaddr *at, socklen_t n_bytes), (file, at, n_bytes))
MAY_FAIL(int, listen, (int file, int n), (file, n))
MAY_FAIL(int, connect, (int file, const struct sockaddr *to, socklen_t n_bytes),
         (file, to, n_bytes))
MAY_FAIL(ssize_t, send, (int file, const void *bytes, size_t n_bytes, int flags),
         (file, bytes, n_bytes, flags))
MAY_FAIL(ssize_t, recv, (int file, void *bytes, size_t n_bytes, int flags),
         (file, bytes, n_bytes, flags))

int __real_getsockopt(int socket, int level, int name, void *value, socklen_t *n);
int __wrap_getsockopt(int socket, int level, int name, void *value, socklen_t *n);
int __real_accept4(int socket, struct sockaddr *address, socklen_t *n, int flags);
int __wrap_accept4(int socket, struct sockaddr *address, socklen_t *n, int flags);

int __wrap_getsockopt(int socket, int level, int name, void *value, socklen_t *n)
{
  if (fails()) return -1;
  const int result = __real_getsockopt(socket, level, name, value, n);

  if (meets_a_stranger && name == SO_PEERCRED) ((struct ucred *)value)->uid++;
  return result;
}

int __wrap_accept4(int socket, struct sockaddr *address, socklen_t *n, int flags)
{
  if (fails()) return -1;
  if (!accepts_nobody) return __real_accept4(socket, address, n, flags);
  errno = EMFILE;
  return -1;
}

/* The n-th call of one rank: while a comm of three is made, or in a gathering. */
static struct {
  int rank;
  long n;
  bool is_met;
  xfer_status made[MOST_RANKS];
} trouble;

static void in_trouble(int rank, void *context)
{
  visitor v = {context, rank, 0, -1};
  xfi_comm *comm = NULL;
  char all[3] = "";

  has_failed = false;
  until_failure = rank == trouble.rank ? trouble.n : -1;
  trouble.made[rank] = xfi_comm_create_host(&comm, gather_there, &v, rank, 3);
  expect((comm != NULL) == (trouble.made[rank] == XFER_OK));
  if (comm != NULL) {
    const xfer_status st = comm->ops->all_gather(comm, all, &"xyz"[rank], 1, soon());

    expect(st == XFER_OK ? memcmp(all, "xyz", 3) == 0 : xfi_last_error()[0] != '\0');
    comm->ops->destroy(comm);
  }
  until_failure = -1;
  if (rank == trouble.rank) trouble.is_met = has_failed;
}

/* Each call of each rank fails, or is interrupted: a comm is made on all or on none, a gathering
 * ends, and what it says is right. */
static void test_each_call_of_the_system_fails(void **state)
{
  (void)state;
  static const int failures[] = {EMFILE, EINTR};

  for (int f = 0; f < 2; f++) {
    failure = failures[f];
    for (trouble.rank = 0; trouble.rank < 3; trouble.rank++) {
      trouble.is_met = true;
      for (trouble.n = 0; trouble.is_met; trouble.n++) {
        print_message("errno %d in call %ld of rank %d\n", failure, trouble.n, trouble.rank);
        with_threads(3, in_trouble);
        for (int r = 1; r < 3; r++)
          assert_int_equal(trouble.made[r] == XFER_OK, trouble.made[0] == XFER_OK);
      }
      assert_true(trouble.n > 15);
    }
  }
}

/* ---- strangers ---- */

/* What somebody else says to rank 0 who has read its address. */
typedef struct stranger {
  const char *name; /* NULL: rank 0's */
  int32_t rank;
  int32_t is_alarm;
  size_t n_bytes;
} stranger;

enum { NAME_BYTES = 32, HELLO_BYTES = NAME_BYTES + 2 * sizeof(int32_t) };
static const stranger *stranger_now;

/* Rank 1's: once addresses are told, the stranger comes first. */
static int gather_behind_a_stranger(void *context, void *all, const void *mine, size_t n_bytes)
{
  visitor *v = context;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const char *name = (const char *)all + sizeof(int32_t); /* behind rank 0's status */
  char hello[HELLO_BYTES];
  const int answer = gather_there(context, all, mine, n_bytes);

  if (v->turn != 1) return answer;
  memcpy(address.sun_path + 1, name, NAME_BYTES);
  address.sun_path[1 + NAME_BYTES] = 'd';
  memcpy(hello, stranger_now->name != NULL ? stranger_now->name : name, NAME_BYTES);
  memcpy(hello + NAME_BYTES, &stranger_now->rank, sizeof stranger_now->rank);
  memcpy(hello + NAME_BYTES + sizeof(int32_t), &stranger_now->is_alarm, sizeof(int32_t));
  const int made = socket(AF_UNIX, SOCK_STREAM, 0);
  expect(connect(made, (struct sockaddr *)&address,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 2 + NAME_BYTES)) == 0);
  expect(send(made, hello, stranger_now->n_bytes, 0) == (ssize_t)stranger_now->n_bytes);
  (void)close(made);
  return answer;
}

static void behind_a_stranger(int rank, void *context)
{
  visitor v = {context, rank, 0, -1};
  xfi_comm *comm = NULL;
  char all[2];

  expect(xfi_comm_create_host(&comm, rank == 1 ? gather_behind_a_stranger : gather_there, &v, rank,
                              2) == XFER_OK);
  expect(comm->ops->all_gather(comm, all, &"xy"[rank], 1, soon()) == XFER_OK);
  expect(memcmp(all, "xy", 2) == 0);
  comm->ops->destroy(comm);
}

static void test_strangers_are_not_taken_for_ranks(void **state)
{
  (void)state;
  static const stranger strangers[] = {{NULL, 1, 0, 7},
                                       {NULL, 1, 1, HELLO_BYTES},
                                       {"a name that nobody has, and more", 1, 0, HELLO_BYTES},
                                       {NULL, 0, 0, HELLO_BYTES},
                                       {NULL, 2, 0, HELLO_BYTES}};

  for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
    stranger_now = &strangers[i];
    with_threads(2, behind_a_stranger);
  }
}

/* ---- warnings ---- */

/* Rank 1 warns of the second thing that both do, and leaves, or breaks the comm. */
static bool breaks;

static void warns(int rank, void *context)
{
  xfi_comm *comm = join_at(context, rank, 0);
  char all[2];

  if (rank == 1) {
    xfi_host_warn(comm, 2, "no luck");
    expect(comm->ops->all_gather(comm, all, "x", 1, soon()) == XFER_OK);
    expect(comm->ops->all_gather(comm, all, "x", 1, soon()) == XFER_OK);
    if (breaks) comm->ops->abort(comm, "enough");
    comm->ops->destroy(comm);
    return;
  }
  expect(xfi_host_heed(comm, 1) == XFER_OK);
  expect(comm->ops->all_gather(comm, all, "x", 1, soon()) == XFER_OK);
  expect(xfi_host_heed(comm, 2) == XFER_ERR_PEER && error_has("rank 1: no luck"));
  expect(comm->ops->all_gather(comm, all, "x", 1, soon()) == XFER_OK || breaks);
  while (xfi_host_heed(comm, 3) == XFER_OK)
    (void)usleep(1000);
  expect(error_has(breaks ? "enough" : "rank 1 has left the comm"));
  comm->ops->destroy(comm);
}

static void test_warnings_are_heeded(void **state)
{
  (void)state;
  for (int i = 0; i < 2; i++) {
    breaks = i == 1;
    with_threads(2, warns);
  }
}

static void join_in_trouble(int rank, void *context)
{
  visitor v = {context, rank, 0, -1};
  xfi_comm *comm = NULL;
  const bool own = meets_a_stranger || accepts_nobody;

  expect(xfi_comm_create_host(&comm, gather_there, &v, rank, 2) ==
         (own ? XFER_ERR_COMM : XFER_ERR_PEER));
  expect(error_has(meets_a_stranger ? "rank 0 is another user's process"
                   : own            ? "1 ranks did not connect"
                                    : "rank "));
  expect(comm == NULL);
}

static void meet_a_stranger(int rank, void *context)
{
  meets_a_stranger = rank == 1;
  join_in_trouble(rank, context);
}

static void accept_nobody(int rank, void *context)
{
  accepts_nobody = rank == 0;
  join_in_trouble(rank, context);
}

static void test_a_rank_that_meets_a_stranger_or_nobody_fails_on_all(void **state)
{
  (void)state;
  with_threads(2, meet_a_stranger);
  with_threads(2, accept_nobody);
}

/* ---- processes ---------------------------------------------------------------------------- */

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
      cmocka_unit_test(test_a_killed_process_is_named_and_the_others_go_on),
      cmocka_unit_test(test_children_of_a_killed_process_do_not_stand_for_it),
      cmocka_unit_test(test_a_late_process_is_named_by_all_and_told),
      cmocka_unit_test(test_the_end_of_a_process_is_heeded),
      cmocka_unit_test(test_all_calls_with_1_to_7_ranks),
      cmocka_unit_test(test_messages_larger_than_the_sockets),
      cmocka_unit_test(test_messages_that_differ_are_not_taken),
      cmocka_unit_test(test_abort_ends_all_waits),
      cmocka_unit_test(test_a_rank_that_left_is_named),
      cmocka_unit_test(test_a_rank_that_cannot_join_fails_on_all),
      cmocka_unit_test(test_create_survives_each_failed_allocation),
      cmocka_unit_test(test_calls_survive_each_failed_allocation),
      cmocka_unit_test(test_each_call_of_the_system_fails),
      cmocka_unit_test(test_strangers_are_not_taken_for_ranks),
      cmocka_unit_test(test_warnings_are_heeded),
      cmocka_unit_test(test_a_rank_that_meets_a_stranger_or_nobody_fails_on_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
