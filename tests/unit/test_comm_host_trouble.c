/* Ranks that meet over sockets and share memory, as threads: calls of the system that fail, and
 * peers that are none of theirs. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* struct ucred */
#endif
#include "unit/host_ranks.h"
#include "unit/in_time.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- of the program's link: a peer of another user, and calls of the system that fail ------- */

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

static _Thread_local int n_refused; /* files that are too many before one is sent */

ssize_t __real_sendmsg(int file, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int file, const struct msghdr *message, int flags);

ssize_t __wrap_sendmsg(int file, const struct msghdr *message, int flags)
{
  const bool is_refused = message->msg_controllen > 0 && n_refused > 0;

  if (fails()) return -1;
  if (!is_refused) return __real_sendmsg(file, message, flags);
  n_refused--;
  errno = ETOOMANYREFS;
  return -1;
}

MAY_FAIL(ssize_t, recvmsg, (int file, struct msghdr *message, int flags), (file, message, flags))
MAY_FAIL(int, memfd_create, (const char *name, unsigned flags), (name, flags))
MAY_FAIL(int, ftruncate, (int file, off_t n_bytes), (file, n_bytes))

void *__real_mmap(void *at, size_t n_bytes, int access, int flags, int file, off_t from);
void *__wrap_mmap(void *at, size_t n_bytes, int access, int flags, int file, off_t from);

void *__wrap_mmap(void *at, size_t n_bytes, int access, int flags, int file, off_t from)
{
  return fails() ? MAP_FAILED : __real_mmap(at, n_bytes, access, flags, file, from);
}

static _Thread_local bool reads_late; /* when a rank has given up */
static _Atomic bool is_waiting;
static _Atomic bool has_given_up;

ssize_t __real_recv(int file, void *bytes, size_t n_bytes, int flags);
ssize_t __wrap_recv(int file, void *bytes, size_t n_bytes, int flags);

/* Called also before a rank sleeps. */
ssize_t __wrap_recv(int file, void *bytes, size_t n_bytes, int flags)
{
  if (reads_late) is_waiting = true;
  while (reads_late && !has_given_up)
    (void)sched_yield();
  return fails() ? -1 : __real_recv(file, bytes, n_bytes, flags);
}

MAY_FAIL(int, poll, (struct pollfd * files, nfds_t n, int wait_ms), (files, n, wait_ms))

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
  trouble.made[rank] = xfi_comm_create_host(&comm, gather_there, &v, rank, 3, false);
  expect((comm != NULL) == (trouble.made[rank] == XFER_OK));
  if (comm != NULL) {
    const xfer_status st = comm->ops->all_gather(comm, all, &"xyz"[rank], 1, soon());

    expect(st == XFER_OK ? memcmp(all, "xyz", 3) == 0 : xfer_last_error()[0] != '\0');
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
      assert_true(trouble.n > 16);
    }
  }
}

/* ---- an alarm that comes early ------------------------------------------------------------- */

static void gathers_then_gives_up(int rank, void *context)
{
  visitor v = {context, rank, 0, -1};
  xfi_comm *comm = NULL;
  char all[3] = "";

  expect(xfi_comm_create_host(&comm, gather_there, &v, rank, 3, false) == XFER_OK);
  reads_late = rank == 1;
  while (rank == 0 && !is_waiting)
    (void)usleep(100);
  expect(comm->ops->all_gather(comm, all, &"xyz"[rank], 1, soon()) == XFER_OK);
  expect(memcmp(all, "xyz", 3) == 0);
  reads_late = false;
  if (rank == 0) comm->ops->abort(comm, "rank 0: no more");
  if (rank == 0) has_given_up = true;
  expect(comm->ops->all_gather(comm, all, "", 1, soon()) == XFER_ERR_COMM);
  expect(comm->ops->check(comm) == XFER_ERR_COMM);
  expect(strstr(xfer_last_error(), "rank 0: no more") != NULL);
  comm->ops->destroy(comm);
}

/* One that was completed by the rank that gives up after it ends well on all. */
static void test_a_gathering_before_a_failure_ends_well(void **state)
{
  (void)state;
  for (int i = 0; i < 20; i++) {
    is_waiting = false;
    has_given_up = false;
    with_threads(3, gathers_then_gives_up);
  }
}

enum { SHORT_MS = 50 };
static _Atomic int n_gave_up;

static void comes_when_others_have_given_up(int rank, void *context)
{
  visitor v = {context, rank, 0, -1};
  xfi_comm *comm = NULL;
  char all[3] = "";

  expect(xfi_comm_create_host(&comm, gather_there, &v, rank, 3, false) == XFER_OK);
  expect(comm->ops->all_gather(comm, all, &"xyz"[rank], 1, soon()) == XFER_OK);
  while (rank == 1 && n_gave_up < 2)
    (void)sched_yield();
  const xfer_status st = comm->ops->all_gather(comm, all, &"xyz"[rank], 1,
                                               rank == 1 ? soon() : xfi_deadline_after(time_ms));
  expect(st == XFER_ERR_COMM || (rank != 1 && st == XFER_ERR_TIMEOUT));
  expect_in_time(error_has("rank 1 did not come"));
  n_gave_up++;
  while (n_gave_up < 3) /* whose sockets are still open */
    (void)sched_yield();
  comm->ops->destroy(comm);
}

static void three_of_which_one_is_late(void *body)
{
  rank_body *const *late = body;

  n_gave_up = 0;
  with_threads(3, *late);
}

/* Although what they gave has come to it. */
static void test_a_rank_that_comes_late_fails_as_the_others_did(void **state)
{
  rank_body *body = comes_when_others_have_given_up;

  (void)state;
  assert_true(in_time(SHORT_MS, three_of_which_one_is_late, &body));
}

static void *untouched; /* a page that rank 1 gives, and that nobody can read yet */

static void read_it_late(int signal)
{
  (void)signal;
  while (n_gave_up < 2)
    (void)sched_yield();
  if (mprotect(untouched, (size_t)sysconf(_SC_PAGESIZE), PROT_READ) != 0) abort();
}

static void comes_late_inside_the_call(int rank, void *context)
{
  visitor v = {context, rank, 0, -1};
  const char *mine = rank == 1 ? untouched : "x";
  xfi_comm *comm = NULL;
  char all[3] = "";

  expect(xfi_comm_create_host(&comm, gather_there, &v, rank, 3, false) == XFER_OK);
  const xfer_status st =
      comm->ops->all_gather(comm, all, mine, 1, rank == 1 ? soon() : xfi_deadline_after(time_ms));
  expect(st == (rank == 1 ? XFER_ERR_COMM : XFER_ERR_TIMEOUT) ||
         (rank != 1 && st == XFER_ERR_COMM));
  expect_in_time(error_has("rank 1 did not come"));
  n_gave_up++;
  while (n_gave_up < 3)
    (void)sched_yield();
  comm->ops->destroy(comm);
}

static void give_what_cannot_be_read_yet(void *body)
{
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);

  untouched = mmap(NULL, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(untouched != MAP_FAILED);
  three_of_which_one_is_late(body);
  (void)munmap(untouched, page);
}

/* Although nobody had given up as it began. */
static void test_a_rank_that_is_late_inside_the_call_fails_too(void **state)
{
  const struct sigaction late = {.sa_handler = read_it_late};
  rank_body *body = comes_late_inside_the_call;
  struct sigaction before;

  (void)state;
  assert_int_equal(sigaction(SIGSEGV, &late, &before), 0);
  assert_true(in_time(SHORT_MS, give_what_cannot_be_read_yet, &body));
  assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
}

/* ---- strangers ---------------------------------------------------------------------------- */

/* What somebody else says to rank 0 who has read its address. */
typedef struct stranger {
  const char *name; /* NULL: rank 0's */
  int32_t rank;
  int n_files;
  size_t n_bytes;
} stranger;

enum { NAME_BYTES = 32, HELLO_BYTES = 2 * NAME_BYTES + sizeof(int32_t) };
static const stranger *stranger_now;

/* Rank 1's: once addresses are told, the stranger comes first. */
static int gather_behind_a_stranger(void *context, void *all, const void *mine, size_t n_bytes)
{
  visitor *v = context;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const char *name = (const char *)all + 4 * sizeof(int32_t); /* of rank 0, behind four numbers */
  char hello[HELLO_BYTES] = "";                               /* it does not know rank 1's name */
  struct iovec bytes = {hello, stranger_now->n_bytes};
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(2 * sizeof(int))];
  } control = {.room = {0}};
  const size_t n_control = (size_t)stranger_now->n_files * sizeof(int);
  const struct msghdr message = {.msg_iov = &bytes,
                                 .msg_iovlen = 1,
                                 .msg_control = n_control > 0 ? &control : NULL,
                                 .msg_controllen = n_control > 0 ? CMSG_SPACE(n_control) : 0};
  const int answer = gather_there(context, all, mine, n_bytes);

  if (v->turn != 1) return answer;
  memcpy(address.sun_path + 1, name, NAME_BYTES);
  memcpy(hello, stranger_now->name != NULL ? stranger_now->name : name, NAME_BYTES);
  memcpy(hello + 2 * NAME_BYTES, &stranger_now->rank, sizeof stranger_now->rank);
  const int made = socket(AF_UNIX, SOCK_STREAM, 0);
  expect(connect(made, (struct sockaddr *)&address,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + NAME_BYTES)) == 0);
  control.head = (struct cmsghdr){CMSG_LEN(n_control), SOL_SOCKET, SCM_RIGHTS};
  for (size_t at = 0; at < n_control; at += sizeof made)
    memcpy(control.room + CMSG_LEN(at), &made, sizeof made);
  expect(sendmsg(made, &message, 0) == (ssize_t)stranger_now->n_bytes);
  (void)close(made);
  return answer;
}

static void behind_a_stranger(int rank, void *context)
{
  visitor v = {context, rank, 0, -1};
  xfi_comm *comm = NULL;
  char all[2];

  expect(xfi_comm_create_host(&comm, rank == 1 ? gather_behind_a_stranger : gather_there, &v, rank,
                              2, false) == XFER_OK);
  expect(comm->ops->all_gather(comm, all, &"xy"[rank], 1, soon()) == XFER_OK);
  expect(memcmp(all, "xy", 2) == 0);
  comm->ops->destroy(comm);
}

static int count_open(void)
{
  DIR *files = opendir("/proc/self/fd");
  int n = 0;

  assert_non_null(files);
  while (readdir(files) != NULL)
    n++;
  (void)closedir(files);
  return n;
}

static void test_strangers_are_not_taken_for_ranks(void **state)
{
  (void)state;
  static const stranger strangers[] = {{NULL, 1, 1, 7},
                                       {NULL, 1, 0, HELLO_BYTES},
                                       {NULL, 1, 2, HELLO_BYTES},
                                       {"a name that nobody has, and more", 1, 1, HELLO_BYTES},
                                       {"a name that nobody has, and more", 1, 2, HELLO_BYTES},
                                       {NULL, 0, 1, HELLO_BYTES},
                                       {NULL, 2, 1, HELLO_BYTES}};
  const int n_open = count_open();

  for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
    stranger_now = &strangers[i];
    with_threads(2, behind_a_stranger);
    assert_int_equal(count_open(), n_open);
  }
}

static void join_in_trouble(int rank, void *context)
{
  visitor v = {context, rank, 0, -1};
  xfi_comm *comm = NULL;
  const bool own = meets_a_stranger || accepts_nobody;

  expect(xfi_comm_create_host(&comm, gather_there, &v, rank, 2, false) ==
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

/* A user's files that nobody has taken are as many as a process may open. */
static void give_when_there_is_room(int rank, void *context)
{
  visitor v = {context, rank, 0, -1};
  xfi_comm *comm = NULL;
  char all[3] = "";

  n_refused = 5 * rank;
  expect(xfi_comm_create_host(&comm, gather_there, &v, rank, 3, false) == XFER_OK);
  expect(n_refused == 0);
  expect(comm->ops->all_gather(comm, all, &"xyz"[rank], 1, soon()) == XFER_OK);
  expect(memcmp(all, "xyz", 3) == 0);
  comm->ops->destroy(comm);
}

static void test_memory_is_given_when_there_is_room(void **state)
{
  (void)state;
  with_threads(3, give_when_there_is_room);
}

/* Where there never is, a rank that waits for it can be told to end, and all hear of it. */
static void give_until_interrupted(int rank, void *context)
{
  visitor v = {context, rank, 0, -1};
  xfi_comm *comm = NULL;

  n_refused = rank == 0 ? INT_MAX : 0;
  xfer_interrupt_set(rank == 0 ? says_no : NULL, NULL);
  expect(xfi_comm_create_host(&comm, gather_there, &v, rank, 3, false) ==
         (rank == 0 ? XFER_ERR_TIMEOUT : XFER_ERR_PEER));
  expect(error_has("did not give each other memory before this rank was interrupted"));
  expect(comm == NULL);
  xfer_interrupt_set(NULL, NULL);
  n_refused = 0;
}

static void test_a_rank_that_gets_no_room_is_interrupted(void **state)
{
  (void)state;
  with_threads(3, give_until_interrupted);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_rank_that_gets_no_room_is_interrupted),
      cmocka_unit_test(test_memory_is_given_when_there_is_room),
      cmocka_unit_test(test_each_call_of_the_system_fails),
      cmocka_unit_test(test_a_gathering_before_a_failure_ends_well),
      cmocka_unit_test(test_a_rank_that_comes_late_fails_as_the_others_did),
      cmocka_unit_test(test_a_rank_that_is_late_inside_the_call_fails_too),
      cmocka_unit_test(test_strangers_are_not_taken_for_ranks),
      cmocka_unit_test(test_a_rank_that_meets_a_stranger_or_nobody_fails_on_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
