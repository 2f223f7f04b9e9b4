/* Registered memory: xfer_redistribute() reaches it directly and delivers every byte; where a rank
 * has not registered, or no longer, it goes through slots and delivers every byte. Mappings last as
 * long as the registration, and no longer. Ranks are threads, on a device that tells allocations
 * apart.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "told_job.h"

/* ---- right, and by which way -------------------------------------------------------------- */

static void every_form(job *j, int rank)
{
  int n_times;

  expect(count_mapped(&j->w, rank) == 0);
  for (int f = DENSE; f < N_FORMS; f++)
    for (int p = 0; p < N_PROBLEMS; p++)
      expect_packed(j, rank, &problems[p], (form)f, 1);
  expect(count_times(&j->w) == 0);
  register_both(j, rank);
  meet(j, rank);
  n_times = count_times(&j->w);
  expect(n_times == 5 * (N_RANKS - 1)); /* two sources and three destinations */
  meet(j, rank);
  for (int f = DENSE; f <= PIECES; f++)
    for (int p = 0; p < N_PROBLEMS; p++)
      expect_direct(j, rank, &problems[p], (form)f, 2);
  for (int p = 0; p < N_FULL; p++)
    expect_packed(j, rank, &problems[p], SCATTER, 3); /* the spare arena is not registered */
  expect(xfer_comm_register(j->comms[rank], j->w.arenas[rank][SPARE].base) == XFER_OK);
  meet(j, rank);
  expect(count_times(&j->w) == n_times + N_RANKS * (N_RANKS - 1));
  meet(j, rank);
  for (int p = 0; p < N_PROBLEMS; p++)
    expect_direct(j, rank, &problems[p], SCATTER, 4);
  expect(count_times(&j->w) == n_times + N_RANKS * (N_RANKS - 1)); /* calls map nothing anew */
}

static void test_views_into_registered_memory_are_reached_directly(void **state)
{
  job j = {.victim = NOBODY};

  (void)state;
  run_job(&j, every_form);
}

/* Boxes of five bytes on rank 1; the empty one between them is nowhere. */
static xfer_layout *layout_with_an_empty_box(void)
{
  static const int64_t shape = 8;
  static const int64_t first[2] = {0, 3};
  static const int64_t bounds[6] = {0, 2, 4, 4, 5, 8};
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_layout *layout = NULL;
  xfer_mesh *mesh = NULL;

  expect(xfer_mesh_create(&mesh, &(int){1}, 1, &(int){1}) == XFER_OK);
  desc.mesh = mesh;
  desc.dtype = XFER_U8;
  desc.n_dims = 1;
  desc.shape = &shape;
  desc.first = first;
  desc.bounds = bounds;
  expect(xfer_layout_create_boxes(&layout, &desc) == XFER_OK);
  xfer_mesh_destroy(mesh);
  return layout;
}

static void empty_box(job *j, int rank)
{
  unsigned char *from = j->w.arenas[rank][SRC].base;
  unsigned char *to = j->w.arenas[rank][DST].base;
  void *boxes[3] = {to, NULL, to + 16};
  const xfer_view src_view = xfer_view_dense(from);
  const xfer_view dst_view = xfer_view_boxes(boxes, 3, NULL, 1);
  xfer_layout *dst = layout_with_an_empty_box();
  xfer_layout *src = NULL;
  xfer_layout *other = NULL;

  if (xfer_problem_parse(&src, &other, "u8[8] (1)@0:R -> (1)@1:R") != XFER_OK) abort();
  for (int i = 0; i < 8; i++)
    from[i] = (unsigned char)(10 + i);
  register_both(j, rank);
  expect(xfer_redistribute(j->comms[rank], src, rank == 0 ? &src_view : NULL, dst,
                           rank == 1 ? &dst_view : NULL, NULL) == XFER_OK);
  if (rank == 1) expect(memcmp(to, "\12\13", 2) == 0 && memcmp(to + 16, "\17\20\21", 3) == 0);
  expect(sum(j, rank, j->devices[rank]->peer_bytes) == 5);
  xfer_layout_destroy(src);
  xfer_layout_destroy(other);
  xfer_layout_destroy(dst);
}

static void test_an_empty_box_that_is_nowhere_keeps_no_call_from_registered_memory(void **state)
{
  job j = {.victim = NOBODY};

  (void)state;
  run_job(&j, empty_box);
}

static void all_but_one(job *j, int rank)
{
  const bool late = rank == j->victim;

  for (int side = SRC; side <= DST; side++)
    expect(xfer_comm_register(j->comms[rank],
                              late && side == j->side ? NULL : memory_of(j, rank, side)) ==
           XFER_OK);
  for (int f = DENSE; f <= PIECES; f++)
    expect_packed(j, rank, &problems[0], (form)f, f);
  expect(xfer_comm_register(j->comms[rank], late ? memory_of(j, rank, j->side) : NULL) == XFER_OK);
  for (int f = DENSE; f <= PIECES; f++)
    expect_direct(j, rank, &problems[0], (form)f, f);
}

static void test_memory_that_one_rank_did_not_register_goes_through_slots(void **state)
{
  (void)state;
  for (int side = SRC; side <= DST; side++)
    for (int rank = 0; rank < N_RANKS; rank++) {
      job j = {.victim = rank, .side = side};
      const part is = part_of(&problems[0], side, rank);

      if (is_empty(&is)) continue;
      print_message("%s of rank %d\n", side == SRC ? "source" : "destination", rank);
      run_job(&j, all_but_one);
    }
}

static void call_again(job *j, int rank)
{
  register_both(j, rank);
  for (int version = 1; version <= 5; version++)
    expect_direct(j, rank, &problems[0], DENSE, version);
  expect(count_cached(j, rank) == 1);
  for (int version = 6; version <= 9; version++)
    for (int p = 0; p < N_FULL; p++)
      expect_direct(j, rank, &problems[p], (form)(version % 4), version);
  expect(count_cached(j, rank) == N_FULL);
  expect_packed(j, rank, &problems[0], SCATTER, 10);
  expect(count_cached(j, rank) == N_FULL + 1); /* beside the direct one */
  expect_direct(j, rank, &problems[0], DENSE, 11);
  expect(count_cached(j, rank) == N_FULL + 1);
}

static void test_later_calls_find_the_kept_plan_and_move_what_is_there_now(void **state)
{
  job j = {.victim = NOBODY};

  (void)state;
  run_job(&j, call_again);
}

/* ---- unregister --------------------------------------------------------------------------- */

static void undo(job *j, int rank)
{
  const int first = j->side;
  const int second = SRC + DST - j->side;

  register_both(j, rank);
  for (int p = 0; p < N_FULL; p++)
    expect_direct(j, rank, &problems[p], SHIFTED, 1);
  expect(count_cached(j, rank) == N_FULL);
  unregister(j, rank, first);
  expect(count_cached(j, rank) == 0);
  expect_packed(j, rank, &problems[0], SHIFTED, 2);
  unregister(j, rank, second);
  expect(count_mapped(&j->w, rank) == 0);
  for (int p = 0; p < N_PROBLEMS; p++)
    expect_packed(j, rank, &problems[p], STRIDED, 3);
  register_both(j, rank);
  expect_direct(j, rank, &problems[1], STRIDED, 4);
}

static void test_after_unregister_nothing_is_mapped_and_calls_are_still_right(void **state)
{
  (void)state;
  for (int side = SRC; side <= DST; side++) {
    job j = {.side = side};

    run_job(&j, undo);
  }
}

static void undo_beside_a_slow_one(job *j, int rank)
{
  register_both(j, rank);
  expect_direct(j, rank, &problems[0], DENSE, 1);
  j->devices[rank]->is_slow = rank == j->victim;
  for (int side = SRC; side <= DST; side++)
    unregister(j, rank, side);
  expect(count_mapped(&j->w, rank) == 0); /* now the memory may be freed */
}

static void test_unregister_returns_once_the_last_rank_has_closed_its_mappings(void **state)
{
  (void)state;
  for (int rank = 0; rank < N_RANKS; rank++) {
    job j = {.victim = rank};

    run_job(&j, undo_beside_a_slow_one);
  }
}

static void register_twice(job *j, int rank)
{
  register_both(j, rank);
  register_both(j, rank);
  expect_direct(j, rank, &problems[0], DENSE, 1);
  for (int side = SRC; side <= DST; side++)
    unregister(j, rank, side);
  expect_direct(j, rank, &problems[0], DENSE, 2);
  for (int side = SRC; side <= DST; side++)
    unregister(j, rank, side);
  expect(count_mapped(&j->w, rank) == 0);
  expect_packed(j, rank, &problems[0], DENSE, 3);
}

static void test_what_was_registered_twice_is_unregistered_twice(void **state)
{
  job j = {.victim = NOBODY};

  (void)state;
  run_job(&j, register_twice);
}

static void free_and_allocate(job *j, int rank)
{
  register_both(j, rank);
  expect_direct(j, rank, &problems[0], DENSE, 1);
  if (rank == j->victim) renew(&j->w, rank, DST);
  expect_packed(j, rank, &problems[0], DENSE, 2);
}

static void test_another_allocation_in_the_place_of_a_registered_one_is_not_registered(void **state)
{
  job j = {.victim = 2};

  (void)state;
  run_job(&j, free_and_allocate);
}

static void allocate_and_register_again(job *j, int rank)
{
  register_both(j, rank);
  expect_direct(j, rank, &problems[0], DENSE, 1);
  if (rank == j->victim) renew(&j->w, rank, DST);
  meet(j, rank);
  register_both(j, rank); /* the cached plan was made for what was there before */
  expect_direct(j, rank, &problems[0], DENSE, 2);
  expect_direct(j, rank, &problems[0], DENSE, 3);
}

static void test_another_allocation_in_the_place_of_one_can_be_registered_too(void **state)
{
  job j = {.victim = 2};

  (void)state;
  run_job(&j, allocate_and_register_again);
}

/* ---- memory that cannot be mapped --------------------------------------------------------- */

static void register_what_stays(job *j, int rank)
{
  for (int k = 0; k < N_ARENAS; k++)
    j->w.arenas[rank][k].stays = rank == j->victim || j->victim == NOBODY;
  meet(j, rank);
  register_both(j, rank);
  if (j->victim == NOBODY)
    expect_packed(j, rank, &problems[0], STRIDED, 1);
  else
    expect_direct(j, rank, &problems[0], STRIDED, 1); /* the other end copies */
  if (j->w.arenas[rank][SRC].stays) expect(count_mapped(&j->w, rank) == 0);
}

static void test_memory_that_cannot_be_exported_is_registered_and_calls_are_right(void **state)
{
  (void)state;
  for (int rank = NOBODY; rank < N_RANKS; rank++) {
    job j = {.victim = rank};

    print_message("memory of rank %d\n", rank);
    run_job(&j, register_what_stays);
  }
}

static void import_fails(job *j, int rank)
{
  told_device *d = j->devices[rank];

  d->import_fails = rank == j->victim ? XFER_ERR_CUDA : XFER_OK;
  expect_one(rank, j->victim, xfer_comm_register(j->comms[rank], memory_of(j, rank, SRC)),
             XFER_ERR_CUDA, "cannot map");
  meet(j, rank);
  expect(count_mapped(&j->w, rank) == 0);
  expect(d->n_exports_ended == 1);
  d->import_fails = XFER_OK;
  expect_packed(j, rank, &problems[0], DENSE, 1);
  meet(j, rank);
  register_both(j, rank);
  expect_direct(j, rank, &problems[0], DENSE, 2);
}

static void test_a_rank_that_cannot_map_fails_the_call_of_all_and_nothing_stays_mapped(void **state)
{
  job j = {.victim = 2};

  (void)state;
  run_job(&j, import_fails);
}

/* ---- refused ------------------------------------------------------------------------------ */

static void give_wrong_memory(job *j, int rank)
{
  xfer_comm *comm = j->comms[rank];
  unsigned char *base = j->w.arenas[rank][SRC].base;
  void *mine = memory_of(j, rank, SRC);
  void *unusable = j->w.unusable + 8;
  const bool odd = rank == j->victim;

  expect_one(rank, j->victim, xfer_comm_register(comm, odd ? unusable : base), XFER_ERR_ARG,
             "no use");
  expect(count_mapped(&j->w, rank) == 0);
  expect(xfer_comm_unregister(comm, NULL) == XFER_ERR_ARG); /* nobody registered anything */
  register_both(j, rank);
  expect_one(rank, j->victim, xfer_comm_unregister(comm, odd ? unusable : mine), XFER_ERR_ARG,
             "was not registered");
  expect_one(rank, j->victim, xfer_comm_unregister(comm, odd ? base : mine), XFER_ERR_ARG,
             "was not registered"); /* the same allocation, but not what was registered */
  expect_direct(j, rank, &problems[0], DENSE, 1); /* all is as it was */
  unregister(j, rank, SRC);
  expect_one(rank, j->victim, xfer_comm_unregister(comm, odd ? mine : memory_of(j, rank, DST)),
             XFER_ERR_ARG, "was not registered"); /* twice */
  unregister(j, rank, DST);
  expect(count_mapped(&j->w, rank) == 0);
}

static void test_wrong_memory_of_one_rank_is_refused_on_all(void **state)
{
  job j = {.victim = 1};

  (void)state;
  run_job(&j, give_wrong_memory);
}

static void test_no_comm_is_refused(void **state)
{
  char memory[8];

  (void)state;
  assert_int_equal(xfer_comm_register(NULL, memory), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "NULL"));
  assert_int_equal(xfer_comm_unregister(NULL, memory), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "NULL"));
}

/* Rank 0 gives each rank a byte, straight into its memory. */
static void expect_direct_on_a_host(xfer_comm *comm, int rank)
{
  unsigned char sent[N_RANKS] = {11, 12, 13, 14};
  unsigned char got[3] = {POISON, POISON, POISON};
  const xfer_view src_view = xfer_view_dense(sent);
  const xfer_view dst_view = xfer_view_dense(got + 1);
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;

  if (xfer_problem_parse(&src, &dst, "u8[4] (1)@0:R -> (4)@0-3:S0") != XFER_OK) abort();
  expect(xfer_redistribute(comm, src, &src_view, dst, &dst_view, NULL) == XFER_OK);
  expect(got[0] == POISON && got[1] == 11 + rank && got[2] == POISON);
  expect(comm->cache.at[0].plan != NULL && comm->cache.at[1].plan == NULL);
  expect(xfer_plan_report(comm->cache.at[0].plan, &report) == XFER_OK);
  expect(report.packed_bytes == 0 && report.n_rounds == 0);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

/* Where there is nothing to map, the calls are checked all the same. */
static void on_a_host(int rank, void *context)
{
  xfer_comm *comm = ((xfer_comm **)context)[rank];
  char memory[8] = {0};

  expect_direct_on_a_host(comm, rank);
  expect(xfer_comm_register(comm, memory) == XFER_OK);
  expect(xfer_comm_register(comm, NULL) == XFER_OK);
  expect_one(rank, 2, xfer_comm_unregister(comm, rank == 2 ? memory + 1 : memory), XFER_ERR_ARG,
             "was not registered");
  expect(xfer_comm_unregister(comm, memory) == XFER_OK);
  expect(xfer_comm_unregister(comm, NULL) == XFER_OK);
  expect(xfer_comm_unregister(comm, NULL) == XFER_ERR_ARG);
  expect_direct_on_a_host(comm, rank);
}

static void test_a_host_comm_takes_the_calls_and_is_direct_without_them(void **state)
{
  xfer_comm *comms[N_RANKS];

  (void)state;
  assert_int_equal(xfer_comm_create_local(comms, N_RANKS), XFER_OK);
  run_ranks(N_RANKS, on_a_host, comms);
  for (int r = 0; r < N_RANKS; r++)
    xfer_comm_destroy(comms[r]);
  assert_all_as_expected();
}

/* ---- ranks that leave, and memory that runs out ------------------------------------------- */

typedef enum last_call { REGISTER, UNREGISTER, REDISTRIBUTE, N_LAST_CALLS } last_call;

static void leave(job *j, int rank)
{
  xfer_status st = XFER_OK;

  register_both(j, rank);
  expect_direct(j, rank, &problems[0], PIECES, 1);
  if (rank == j->victim) {
    xfer_comm_destroy(j->comms[rank]);
    j->comms[rank] = NULL;
    return;
  }
  switch ((last_call)j->n) {
  case REGISTER:
    st = xfer_comm_register(j->comms[rank], j->w.arenas[rank][SPARE].base);
    break;
  case UNREGISTER:
    st = xfer_comm_unregister(j->comms[rank], memory_of(j, rank, SRC));
    break;
  case REDISTRIBUTE:
  case N_LAST_CALLS:
    st = move(j, rank, &problems[0], PIECES, 2);
    break;
  }
  expect(st == XFER_ERR_COMM || st == XFER_ERR_PEER);
  expect(xfer_last_error()[0] != '\0');
}

static void test_a_rank_that_leaves_is_an_error_of_all_others(void **state)
{
  (void)state;
  for (int call = REGISTER; call < N_LAST_CALLS; call++)
    for (int rank = 0; rank < N_RANKS; rank++) {
      job j = {.victim = rank, .n = call};

      run_job(&j, leave);
    }
}

static void lack_memory(job *j, int rank)
{
  const bool lacks = rank == j->victim;

  register_both(j, rank);
  if (lacks) xfi_alloc_fail_after(j->n);
  j->outcomes[rank] = xfer_comm_register(j->comms[rank], j->w.arenas[rank][SPARE].base);
  if (lacks) xfi_alloc_fail_after(-1);
  expect(j->outcomes[rank] == XFER_OK || xfer_last_error()[0] != '\0');
}

/* Until there are no more allocations; returns how many there were. */
static long fail_each(int victim)
{
  for (long n = 0; n < 100; n++) {
    job j = {.victim = victim, .n = n};
    int n_failed = 0;

    run_job(&j, lack_memory); /* which also sees that nothing stays mapped */
    for (int r = 0; r < N_RANKS; r++) {
      assert_int_not_equal(j.outcomes[r], XFER_ERR_TIMEOUT);
      assert_int_not_equal(j.outcomes[r], XFER_ERR_INTERNAL);
      n_failed += j.outcomes[r] != XFER_OK;
    }
    assert_true(n_failed == 0 || n_failed == N_RANKS);
    if (n_failed == 0) return n;
  }
  fail_msg("it never succeeds");
  return 0;
}

static void test_each_failed_allocation_fails_the_call_of_all_ranks(void **state)
{
  (void)state;
  for (int victim = 0; victim < N_RANKS; victim++)
    assert_true(fail_each(victim) >= 2);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_views_into_registered_memory_are_reached_directly),
      cmocka_unit_test(test_an_empty_box_that_is_nowhere_keeps_no_call_from_registered_memory),
      cmocka_unit_test(test_memory_that_one_rank_did_not_register_goes_through_slots),
      cmocka_unit_test(test_later_calls_find_the_kept_plan_and_move_what_is_there_now),
      cmocka_unit_test(test_after_unregister_nothing_is_mapped_and_calls_are_still_right),
      cmocka_unit_test(test_unregister_returns_once_the_last_rank_has_closed_its_mappings),
      cmocka_unit_test(test_what_was_registered_twice_is_unregistered_twice),
      cmocka_unit_test(test_another_allocation_in_the_place_of_a_registered_one_is_not_registered),
      cmocka_unit_test(test_another_allocation_in_the_place_of_one_can_be_registered_too),
      cmocka_unit_test(test_memory_that_cannot_be_exported_is_registered_and_calls_are_right),
      cmocka_unit_test(test_a_rank_that_cannot_map_fails_the_call_of_all_and_nothing_stays_mapped),
      cmocka_unit_test(test_wrong_memory_of_one_rank_is_refused_on_all),
      cmocka_unit_test(test_no_comm_is_refused),
      cmocka_unit_test(test_a_host_comm_takes_the_calls_and_is_direct_without_them),
      cmocka_unit_test(test_a_rank_that_leaves_is_an_error_of_all_others),
      cmocka_unit_test(test_each_failed_allocation_fails_the_call_of_all_ranks),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
