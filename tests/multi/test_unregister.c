/* Which call of xfer_comm_register() an unregister undoes, where ranks named nothing, or one
   allocation several times: the same call on every rank. Ranks are threads, on the device of
   told_device.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "told_job.h"

/* How often the other ranks have an arena mapped. */
static int times_mapped(job *j, int rank, int which)
{
  int n = 0;

  (void)pthread_mutex_lock(&j->w.lock);
  for (int by = 0; by < N_RANKS; by++)
    n += j->w.arenas[rank][which].n_mapped[by];
  (void)pthread_mutex_unlock(&j->w.lock);
  return n;
}

/* Rank 0 names its arena, the others nothing. */
static void *of_rank_0(job *j, int rank, int which)
{
  return rank == 0 ? j->w.arenas[0][which].base : NULL;
}

static void register_all_of_rank_0(job *j, int rank)
{
  for (int k = 0; k < N_ARENAS; k++)
    expect(xfer_comm_register(j->comms[rank], of_rank_0(j, rank, k)) == XFER_OK);
}

static void undo_forwards(job *j, int rank)
{
  register_all_of_rank_0(j, rank);
  for (int k = 0; k < N_ARENAS; k++) {
    expect(xfer_comm_unregister(j->comms[rank], of_rank_0(j, rank, k)) == XFER_OK);
    for (int i = 0; i < N_ARENAS; i++)
      expect((times_mapped(j, 0, i) > 0) == (i > k));
    meet(j, rank);
  }
}

static void undo_backwards(job *j, int rank)
{
  register_all_of_rank_0(j, rank);
  for (int k = N_ARENAS - 1; k >= 0; k--) {
    expect(xfer_comm_unregister(j->comms[rank], of_rank_0(j, rank, k)) == XFER_OK);
    for (int i = 0; i < N_ARENAS; i++)
      expect((times_mapped(j, 0, i) > 0) == (i < k));
    meet(j, rank);
  }
}

/* Rank 0 registers one arena twice, the others two of their own. */
static void undo_the_second(job *j, int rank)
{
  for (int k = 0; k < 2; k++)
    expect(xfer_comm_register(j->comms[rank], j->w.arenas[rank][rank == 0 ? 0 : k].base) ==
           XFER_OK);
  expect(xfer_comm_unregister(j->comms[rank], j->w.arenas[rank][rank == 0 ? 0 : 1].base) ==
         XFER_OK);
  expect(times_mapped(j, 1, 1) == 0);
  expect(times_mapped(j, 1, 0) > 0);
  expect(times_mapped(j, 0, 0) > 0);
  meet(j, rank);
}

/* Each rank names what it did register, but in different calls. */
static void undo_two_calls_at_once(job *j, int rank)
{
  for (int k = 0; k < 2; k++)
    expect(xfer_comm_register(j->comms[rank], j->w.arenas[rank][k].base) == XFER_OK);
  expect(xfer_comm_unregister(j->comms[rank], j->w.arenas[rank][rank == 2].base) ==
         XFER_ERR_MISMATCH);
  for (int k = 0; k < 2; k++) {
    expect(times_mapped(j, rank, k) > 0);
    meet(j, rank);
    expect(xfer_comm_unregister(j->comms[rank], j->w.arenas[rank][k].base) == XFER_OK);
    expect(times_mapped(j, rank, k) == 0);
  }
}

/* Memory of one rank that the device cannot use. */
static void register_in_vain(job *j, int rank)
{
  expect(xfer_comm_register(j->comms[rank], rank == 1 ? (void *)j->w.unusable
                                                      : j->w.arenas[rank][0].base) != XFER_OK);
  expect(j->devices[rank]->n_exports_ended == 1);
}

static void run(void (*body)(job *j, int rank))
{
  job j = {.n = 0};

  run_job(&j, body);
}

static void test_calls_are_undone_in_their_order(void **state)
{
  (void)state;
  run(undo_forwards);
}

static void test_calls_are_undone_backwards(void **state)
{
  (void)state;
  run(undo_backwards);
}

static void test_memory_registered_twice_does_not_hide_the_second_call(void **state)
{
  (void)state;
  run(undo_the_second);
}

static void test_names_of_different_calls_are_refused_and_undo_nothing(void **state)
{
  (void)state;
  run(undo_two_calls_at_once);
}

static void test_a_failed_call_ends_its_exports(void **state)
{
  (void)state;
  run(register_in_vain);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_calls_are_undone_in_their_order),
      cmocka_unit_test(test_calls_are_undone_backwards),
      cmocka_unit_test(test_memory_registered_twice_does_not_hide_the_second_call),
      cmocka_unit_test(test_names_of_different_calls_are_refused_and_undo_nothing),
      cmocka_unit_test(test_a_failed_call_ends_its_exports),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
