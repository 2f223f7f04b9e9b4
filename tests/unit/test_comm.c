/* What every transport shares, over one in which the test plays the other ranks: gatherings that
 * are not the same one everywhere, and no memory to agree with. */
#include "alloc.h"
#include "comm.h"
#include "error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { FEW = 3, MANY = 1025 }; /* ranks; of more than 1024 an agreement needs memory */

static int n_aborts;

static void note_abort(xfi_comm *comm, const char *why)
{
  (void)comm;
  (void)why;
  n_aborts++;
}

/* All others say the same as this rank. */
static xfer_status echo(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                        xfi_deadline deadline)
{
  (void)deadline;
  for (size_t r = 0; r < (size_t)comm->size; r++)
    memcpy((char *)all + r * n_bytes, mine, n_bytes);
  return XFER_OK;
}

enum { ROW_BYTES = 256 }; /* that one gathering takes */

static xfer_status echo_rows(xfi_comm *comm, const char **rows, const void *mine, size_t n_bytes,
                             xfi_deadline deadline)
{
  static char room[MANY * ROW_BYTES];

  assert_true(n_bytes <= ROW_BYTES);
  *rows = room;
  return echo(comm, room, mine, n_bytes, deadline);
}

static size_t changed_word; /* of what the last rank says first: its size, its number, for whom */

static xfer_status echo_changed(xfi_comm *comm, const char **rows, const void *mine, size_t n_bytes,
                                xfi_deadline deadline)
{
  const xfer_status st = echo_rows(comm, rows, mine, n_bytes, deadline);
  uint64_t *last = (uint64_t *)(void *)((char *)*rows + (size_t)(comm->size - 1) * n_bytes);

  last[changed_word]++;
  return st;
}

static const xfi_comm_ops ops = {.all_gather = echo, .abort = note_abort};

static void test_gatherings_that_are_not_the_same_fail(void **state)
{
  static const char *const texts[] = {
      "rank 0 gathers 8 bytes and rank 2 9: all", "rank 0 is in gathering",
      "rank 0 is in another call and rank 2 in xfer_comm_all_gather()"};
  xfi_comm comm = {.ops = &ops, .size = FEW};
  uint64_t mine = 7;
  uint64_t all[FEW] = {0};

  (void)state;
  for (changed_word = 0; changed_word < 3; changed_word++) {
    assert_int_equal(
        xfi_comm_gather(&comm, all, &mine, sizeof mine, echo_changed, ROW_BYTES, (xfi_deadline){0}),
        XFER_ERR_MISMATCH);
    assert_non_null(strstr(xfer_last_error(), texts[changed_word]));
  }
}

static void test_any_number_of_bytes_is_gathered_without_memory(void **state)
{
  static unsigned char all[MANY * 3 * ROW_BYTES];
  unsigned char mine[3 * ROW_BYTES];
  const xfi_deadline never = xfi_deadline_after(-1);
  xfi_comm comm = {.ops = &ops};

  (void)state;
  for (size_t i = 0; i < sizeof mine; i++)
    mine[i] = (unsigned char)(i * 7 % 251);
  xfi_alloc_fail_after(0);
  for (size_t n = 0; n <= sizeof mine; n += 1 + n / 8) {
    comm.size = n % 2 == 0 ? FEW : MANY;
    memset(all, 0, sizeof all);
    assert_int_equal(xfi_comm_gather(&comm, all, mine, n, echo_rows, ROW_BYTES, never), XFER_OK);
    for (size_t r = 0; r < (size_t)comm.size; r++)
      assert_memory_equal(all + r * n, mine, n);
  }
  xfi_alloc_fail_after(-1);
  /* Of those that come in several parts one may be too late. */
  assert_int_equal(
      xfi_comm_gather(&comm, all, mine, sizeof mine, echo_rows, ROW_BYTES, (xfi_deadline){0}),
      XFER_ERR_TIMEOUT);
}

static void test_many_ranks_need_memory_to_agree(void **state)
{
  xfi_comm comm = {.ops = &ops, .size = MANY};

  (void)state;
  n_aborts = 0;
  assert_int_equal(xfi_comm_agree(&comm, XFER_OK, (xfi_deadline){0}), XFER_OK);
  xfi_alloc_fail_after(0);
  assert_int_equal(xfi_comm_agree(&comm, XFER_OK, (xfi_deadline){0}), XFER_ERR_NOMEM);
  xfi_alloc_fail_after(-1);
  assert_int_equal(n_aborts, 1); /* the others wait for this rank */
}

/* Whose text it is cannot be told then, but that some rank failed can. */
static void test_no_memory_for_the_text_of_a_failure(void **state)
{
  xfi_comm comm = {.ops = &ops, .size = FEW};

  (void)state;
  n_aborts = 0;
  xfi_set_error("the cause");
  xfi_alloc_fail_after(0);
  assert_int_equal(xfi_comm_agree(&comm, XFER_ERR_ARG, (xfi_deadline){0}), XFER_ERR_ARG);
  xfi_alloc_fail_after(-1);
  assert_string_equal(xfer_last_error(), "the cause");
  assert_int_equal(n_aborts, 1);
}

static xfer_status fall(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                        xfi_deadline deadline)
{
  (void)comm;
  (void)all;
  (void)mine;
  (void)n_bytes;
  (void)deadline;
  xfi_set_error("the comm is broken: rank 1 fell");
  return XFER_ERR_COMM;
}

/* A rank that has failed, and cannot tell the others, says that too. */
static void test_what_is_wrong_and_that_the_comm_is_broken_are_both_told(void **state)
{
  static const struct {
    xfer_status mine;
    const char *text;
    xfer_status st;
    const char *said;
  } cases[] = {
      {XFER_OK, "", XFER_ERR_COMM, "the comm is broken: rank 1 fell"},
      {XFER_ERR_ARG, "the cause", XFER_ERR_ARG, "the cause; the comm is broken: rank 1 fell"},
      {XFER_ERR_PEER, "rank 2: no", XFER_ERR_COMM, "rank 2: no; the comm is broken: rank 1 fell"},
      {XFER_ERR_NOMEM, "rank 1 fell", XFER_ERR_NOMEM, "rank 1 fell"}, /* and broke it so */
      {XFER_ERR_COMM, "rank 2 left; the comm is broken: rank 1 fell", XFER_ERR_COMM,
       "rank 2 left; the comm is broken: rank 1 fell"}, /* it knew */
  };
  static const xfi_comm_ops falling = {.all_gather = fall, .abort = note_abort};
  xfi_comm comm = {.ops = &falling, .size = FEW};

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    xfer_status st = cases[i].mine;

    xfi_set_error("%s", cases[i].text);
    assert_int_equal(xfi_comm_agree(&comm, st, (xfi_deadline){0}), cases[i].st);
    assert_string_equal(xfer_last_error(), cases[i].said);
    xfi_set_error("%s", cases[i].text);
    assert_null(xfi_comm_agree_gather(&comm, &st, NULL, 0, (xfi_deadline){0}));
    assert_int_equal(st, cases[i].st);
    assert_string_equal(xfer_last_error(), cases[i].said);
  }
}

static void test_the_first_reason_stays(void **state)
{
  xfi_broken broken = {.lock = PTHREAD_MUTEX_INITIALIZER};

  (void)state;
  assert_int_equal(xfi_broken_check(&broken), XFER_OK);
  assert_true(xfi_broken_set(&broken, "rank %d fell", 1));
  assert_false(xfi_broken_set(&broken, "rank 2 heard of it"));
  assert_int_equal(xfi_broken_check(&broken), XFER_ERR_COMM);
  assert_string_equal(xfer_last_error(), "the comm is broken: rank 1 fell");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gatherings_that_are_not_the_same_fail),
      cmocka_unit_test(test_any_number_of_bytes_is_gathered_without_memory),
      cmocka_unit_test(test_no_memory_for_the_text_of_a_failure),
      cmocka_unit_test(test_many_ranks_need_memory_to_agree),
      cmocka_unit_test(test_what_is_wrong_and_that_the_comm_is_broken_are_both_told),
      cmocka_unit_test(test_the_first_reason_stays),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
