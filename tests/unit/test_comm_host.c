/* Ranks of one host that share memory, as threads: what they exchange, and what ends it. */
#include "alloc.h"
#include "unit/host_ranks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static void everything(int rank, void *context)
{
  xfi_comm *comm = join_at(context, rank, 0);

  expect(comm->rank == rank);
  check_gathers(comm, 40);
  check_random_messages(comm, 40, false);
  check_random_messages(comm, 40, true);
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

/* Larger than all slots, both ways at once, with the sides in opposite order. */
static void large_both_ways(int rank, void *context)
{
  enum { LARGE = 8 << 20 };
  xfi_comm *comm = join_at(context, rank, 0);
  unsigned char *out = malloc(LARGE);
  unsigned char *in = malloc(LARGE);
  const xfi_message send = {out, LARGE, 1 - rank};
  const xfi_message receive = {in, LARGE, 1 - rank};

  fill(out, LARGE, (uint64_t)rank);
  expect(comm->ops->round(comm, &(xfi_messages){&send, 1, &receive, 1}, NULL, soon()) == XFER_OK);
  expect(is_filled(in, LARGE, (uint64_t)(1 - rank)));
  comm->ops->destroy(comm);
  free(out);
  free(in);
}

static void test_messages_larger_than_the_slots(void **state)
{
  (void)state;
  with_threads(2, large_both_ways);
}

static bool by_interrupt; /* else by a deadline */

/* Rank 0 sends so much that it takes longer than the deadline, or than it takes to be asked. */
static void longer_than_it_may(int rank, void *context)
{
  enum { N_BYTES = 512 << 20, SHORT_MS = 2 };
  const int64_t soon_ns = xfi_now_ns() + INT64_C(30000000000);
  xfi_comm *comm = join_at(context, rank, 0);
  void *memory = mmap(NULL, N_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const xfi_message message = {memory, N_BYTES, 1 - rank};
  const xfi_messages messages = {&message, rank == 0, &message, rank == 1};
  const xfi_deadline deadline = by_interrupt ? soon() : xfi_deadline_after(SHORT_MS);

  expect(memory != MAP_FAILED);
  if (by_interrupt) xfer_interrupt_set(says_no, NULL);
  const xfer_status st = comm->ops->round(comm, &messages, NULL, deadline);
  xfer_interrupt_set(NULL, NULL);
  expect(st == XFER_ERR_TIMEOUT || st == XFER_ERR_COMM);
  expect(error_has(by_interrupt ? "was interrupted" : "the deadline"));
  expect(xfi_now_ns() < soon_ns);
  comm->ops->destroy(comm);
  (void)munmap(memory, N_BYTES);
}

static void test_what_goes_on_ends_at_its_deadline(void **state)
{
  (void)state;
  for (int i = 0; i < 2; i++) {
    by_interrupt = i == 1;
    with_threads(2, longer_than_it_may);
  }
}

static bool in_one_call;

static void not_of_one_mind(int rank, void *context)
{
  xfi_comm *comm = join_at(context, rank, 0);
  char bytes[2][64] = {""};
  const xfi_message send = {bytes[0], rank == 0 ? 64 : 32, 1 - rank};
  const xfi_message receive = {bytes[1], in_one_call ? send.n_bytes : 64, 1 - rank};

  if (rank == 1) memset(bytes[1], 7, sizeof bytes[1]);
  const xfer_status st =
      rank == 0 || in_one_call
          ? comm->ops->exchange(comm, &(xfi_messages){&send, 1, &receive, 1}, soon())
          : comm->ops->round(comm, &(xfi_messages){&send, 1, &receive, 1}, NULL, soon());
  expect(st == XFER_ERR_MISMATCH || st == XFER_ERR_COMM);
  expect(error_has("bytes in "));
  expect(rank == 0 || bytes[1][0] == 7); /* nothing was written */
  expect(comm->ops->exchange(comm, &(xfi_messages){NULL, 0, NULL, 0}, soon()) == XFER_ERR_COMM);
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
  const xfer_status st = xfi_comm_create_host(&comm, gather_there, &v, rank, 3, false);

  expect(comm == NULL);
  expect(st == (rank == 1 ? XFER_ERR_COMM : XFER_ERR_PEER));
  expect(error_has(rank == 1 ? "answered 1" : "rank 1: "));
}

static void test_a_rank_that_cannot_join_fails_on_all(void **state)
{
  (void)state;
  with_threads(3, fails_while_meeting);
}

/* What is wrong with what the caller says or gathers. */
typedef struct mistake {
  int numbers[3]; /* the ranks that they say they are */
  int sizes[3];
  int turns[3]; /* by so many places are the words turned in each gathering; -1: none is given */
  bool by_one;  /* of rank 2 alone */
  const char *text;
} mistake;

static const mistake *mistake_now;

static int gather_wrongly(void *context, void *all, const void *mine, size_t n_bytes)
{
  const visitor *v = context;
  const int by = mistake_now->by_one && v->rank != 2 ? 0 : mistake_now->turns[v->turn];
  char words[3][MOST_WORD] = {""};
  const int answer = gather_there(context, all, mine, n_bytes);

  xfi_set_error("of the caller's own");
  for (int r = 0; r < 3 && by >= 0; r++)
    memcpy(words[r], (char *)all + (size_t)((r + by) % 3) * n_bytes, n_bytes);
  for (int r = 0; r < 3; r++)
    memcpy((char *)all + (size_t)r * n_bytes, words[r], n_bytes);
  return answer;
}

static void meets_wrongly(int rank, void *context)
{
  visitor v = {context, rank, 0, -1};
  xfi_comm *comm = NULL;
  const xfer_status st = xfi_comm_create_host(&comm, gather_wrongly, &v, mistake_now->numbers[rank],
                                              mistake_now->sizes[rank], false);

  expect(comm == NULL);
  expect(st == XFER_ERR_COMM || st == XFER_ERR_PEER);
  expect(error_has(mistake_now->text));
}

/* Rank 1 has the library before this one, or the others one before that of rank 1. */
static int gather_versions(void *context, void *all, const void *mine, size_t n_bytes)
{
  const visitor *v = context;
  const int answer = gather_there(context, all, mine, n_bytes);

  for (int r = 0; r < 3; r++) {
    uint32_t version;

    memcpy(&version, (char *)all + (size_t)r * n_bytes, sizeof version);
    if ((r == 1) != (v->rank == 1)) version--;
    memcpy((char *)all + (size_t)r * n_bytes, &version, sizeof version);
  }
  return answer;
}

static void meets_another_version(int rank, void *context)
{
  visitor v = {context, rank, 0, -1};
  xfi_comm *comm = NULL;

  expect(xfi_comm_create_host(&comm, gather_versions, &v, rank, 3, false) == XFER_ERR_MISMATCH);
  expect(error_has(rank == 1 ? "rank 1 has version " : "rank 1 version "));
}

static void meets_one_in_a_gathering(int rank, void *context)
{
  xfi_comm *comm = join_at(context, rank, 0);
  const xfi_gathering mine = xfi_comm_gathering(comm, 8, 1);
  xfi_gathering theirs = mine;

  expect(xfi_comm_check_same(comm, mine, theirs, 1 - rank) == XFER_OK);
  theirs.version++;
  expect(xfi_comm_check_same(comm, mine, theirs, 1 - rank) == XFER_ERR_MISMATCH);
  expect(error_has("all need the same"));
  comm->ops->destroy(comm);
}

static void test_ranks_of_another_version_are_not_taken(void **state)
{
  (void)state;
  with_threads(3, meets_another_version);
  with_threads(2, meets_one_in_a_gathering);
}

static void test_who_is_not_who_is_meant_is_named(void **state)
{
  (void)state;
  static const mistake mistakes[] = {
      {{0, 0, 2}, {3, 3, 3}, {0}, false, "two ranks have the number 0"},
      {{0, 2, 2}, {3, 3, 3}, {0}, false, "two ranks have the number 2"},
      {{1, 0, 2}, {3, 3, 3}, {0}, false, "the word of rank 1 at the place of rank 0"},
      {{0, 1, 2}, {3, 4, 3}, {0}, false, " makes a comm of "},
      {{0, 1, 2}, {3, 3, 3}, {1, 1, 1}, false, "the word of rank 1 at the place of rank 0"},
      {{0, 1, 2}, {3, 3, 3}, {0, 2, 2}, false, "the word of rank 2 at the place of rank 0"},
      {{0, 1, 2}, {3, 3, 3}, {-1, -1, -1}, false, "not put the bytes of rank 0 at its place"},
      {{0, 1, 2}, {3, 3, 3}, {0, -1, -1}, false, "not put the bytes of rank 0 at its place"},
      {{0, 1, 2}, {3, 3, 3}, {1, 0, 0}, true, "the word of rank 1 at the place of rank 0"},
  };

  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
    print_message("%s\n", mistakes[i].text);
    mistake_now = &mistakes[i];
    with_threads(3, meets_wrongly);
  }
}

static void test_create_survives_each_failed_allocation(void **state)
{
  (void)state;
  meeting_place *place = open_place(1);
  xfer_status st = XFER_ERR_NOMEM;
  xfi_comm *comm = NULL;

  assert_int_equal(dup2(STDERR_FILENO, STDIN_FILENO), STDIN_FILENO);
  for (long n = 0; st != XFER_OK && n < 20; n++) {
    visitor v = {place, 0, 0, -1};
    xfi_alloc_fail_after(n);
    st = xfi_comm_create_host(&comm, gather_there, &v, 0, 1, false);
    if (st != XFER_OK) assert_null(comm);
    assert_true(fcntl(STDIN_FILENO, F_GETFD) >= 0); /* what was not made is not closed as file 0 */
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

/* Rank 1 warns of the second thing that both do, and leaves, or breaks the comm. */
static bool breaks;

static void warns(int rank, void *context)
{
  xfi_comm *comm = join_at(context, rank, 0);
  char all[2];

  if (rank == 1) {
    xfi_shared_refuse(comm, 2, "no luck");
    expect(comm->ops->all_gather(comm, all, "x", 1, soon()) == XFER_OK);
    expect(comm->ops->all_gather(comm, all, "x", 1, soon()) == XFER_OK);
    if (breaks) comm->ops->abort(comm, "enough");
    comm->ops->destroy(comm);
    return;
  }
  expect(xfi_shared_check_all(comm, 1) == XFER_OK);
  expect(comm->ops->all_gather(comm, all, "x", 1, soon()) == XFER_OK);
  expect(xfi_shared_check_all(comm, 2) == XFER_ERR_PEER && error_has("rank 1: no luck"));
  expect(comm->ops->all_gather(comm, all, "x", 1, soon()) == XFER_OK || breaks);
  while (xfi_shared_check_all(comm, 3) == XFER_OK)
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

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_calls_with_1_to_7_ranks),
      cmocka_unit_test(test_messages_larger_than_the_slots),
      cmocka_unit_test(test_what_goes_on_ends_at_its_deadline),
      cmocka_unit_test(test_messages_that_differ_are_not_taken),
      cmocka_unit_test(test_abort_ends_all_waits),
      cmocka_unit_test(test_a_rank_that_left_is_named),
      cmocka_unit_test(test_a_rank_that_cannot_join_fails_on_all),
      cmocka_unit_test(test_who_is_not_who_is_meant_is_named),
      cmocka_unit_test(test_ranks_of_another_version_are_not_taken),
      cmocka_unit_test(test_create_survives_each_failed_allocation),
      cmocka_unit_test(test_calls_survive_each_failed_allocation),
      cmocka_unit_test(test_warnings_are_heeded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
