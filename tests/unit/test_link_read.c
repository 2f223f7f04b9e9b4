/* What a peer tells of its memory: read as it is said, or refused where it cannot be so. */
#include "link.h"

#include "alloc.h"
#include "error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* From one rank and to one; one allocation; one destination of one piece in it. */
typedef struct told {
  struct {
    uint64_t n_remotes, page_offset, n_bounds, n_src_bounds, n_ranks[2], counts;
  } head;
  xfi_mem_handle page;
  int32_t ranks[2];
  struct {
    uint64_t n_bytes, sides;
  } remote;
  uint64_t back;
  xfi_bound bound;
  uint64_t location[2];
} told;

static char of_the_peer[8]; /* addresses there mean nothing here */

static told good(void)
{
  told t;

  memset(&t, 0, sizeof t);
  t.head.n_remotes = t.head.n_bounds = 1;
  t.head.n_ranks[0] = t.head.n_ranks[1] = 1;
  t.ranks[0] = 3;
  t.ranks[1] = 7;
  t.bound.n_pieces = 1;
  t.bound.piece_length = 4;
  t.bound.shape[0] = 4;
  t.bound.pieces = (char **)(void *)of_the_peer;
  t.bound.only = of_the_peer;
  t.bound.blocks = (xfi_blocks *)(void *)of_the_peer;
  t.remote.n_bytes = 64;
  t.remote.sides = XFI_SIDE_DST;
  t.location[1] = 16;
  return t;
}

static void release(xfi_link *link)
{
  for (size_t i = 0; i < link->n_bounds && link->bounds != NULL; i++)
    xfi_bound_clear(&link->bounds[i]);
  xfi_free(link->their_ranks[0].at);
  xfi_free(link->their_ranks[1].at);
  xfi_free(link->remotes);
  xfi_free(link->bounds);
  xfi_free(link->locations);
}

static xfer_status read_told(told t, size_t n_bytes)
{
  xfi_link link = {.rank = 3, .recv_buffer = {(unsigned char *)&t, n_bytes, 0}};
  const xfer_status st = xfi_link_read(&link);

  if (st == XFER_OK) {
    assert_int_equal(link.n_locations, 1);
    assert_int_equal(link.locations[0][1], 16);
    for (int i = 0; i < 2; i++) {
      assert_int_equal(link.their_ranks[i].n, 1);
      assert_int_equal(link.their_ranks[i].at[0], t.ranks[i]);
    }
    assert_int_equal(link.remotes[0].n_bytes, 64);
    assert_int_equal(link.remotes[0].sides, XFI_SIDE_DST);
    assert_null(link.bounds[0].pieces);
    assert_null(link.bounds[0].only);
    assert_null(link.bounds[0].blocks);
  }
  release(&link);
  return st;
}

static void refused(told t, size_t n_bytes)
{
  assert_int_equal(read_told(t, n_bytes), XFER_ERR_MISMATCH);
  assert_string_equal(xfer_last_error(), "rank 3 sent a malformed description");
}

static void test_what_is_well_formed_is_read(void **state)
{
  (void)state;
  assert_int_equal(sizeof(told), sizeof good().head + sizeof(xfi_mem_handle) + 8 + 16 + 8 +
                                     sizeof good().bound + sizeof good().location);
  assert_int_equal(read_told(good(), sizeof(told)), XFER_OK);
}

static void test_what_is_cut_is_refused(void **state)
{
  (void)state;
  for (size_t n = 0; n < sizeof(told); n++) {
    refused(good(), n);
  }
}

#define REFUSED(field, value)                                                                      \
  do {                                                                                             \
    told t = good();                                                                               \
    t.field = (value);                                                                             \
    refused(t, sizeof t);                                                                          \
  } while (0)

static void test_numbers_that_cannot_be_are_refused(void **state)
{
  (void)state;
  REFUSED(head.n_remotes, 0);
  REFUSED(head.n_remotes, sizeof(told));
  REFUSED(head.n_remotes, UINT64_MAX);
  REFUSED(head.n_bounds, sizeof(told));
  REFUSED(head.n_bounds, UINT64_MAX);
  REFUSED(head.n_src_bounds, 2);
  REFUSED(head.n_ranks[0], sizeof(told));
  REFUSED(head.n_ranks[1], sizeof(told));
  REFUSED(head.n_ranks[1], UINT64_MAX);
  REFUSED(back, 1); /* before the first */
  REFUSED(back, UINT64_MAX);
  REFUSED(bound.piece_dim, XFER_MAX_DIMS);
  REFUSED(bound.piece_dim, -1);
  REFUSED(bound.piece_length, 0);
  REFUSED(bound.piece_length, -1);
  REFUSED(bound.piece_length, 3); /* of 4 indices */
  REFUSED(bound.shape[0], INT64_MAX);
  REFUSED(bound.n_pieces, 0);
  REFUSED(bound.n_pieces, 17);
  REFUSED(bound.n_pieces, -1);
  REFUSED(bound.n_pieces, INT64_MAX);
  REFUSED(bound.boxes, (xfi_bound_box *)(void *)of_the_peer);
  REFUSED(location[0], 1);
  REFUSED(location[0], UINT64_MAX);
  REFUSED(location[1], 64);
  REFUSED(head.page_offset, 64);
}

/* A second bound that is told to be like one before it. */
typedef struct told_twice {
  told first;
  uint64_t back;
  uint64_t location[2];
} told_twice;

static told_twice twice(uint64_t back)
{
  told_twice t = {.first = good(), .back = back, .location = {0, 32}};

  t.first.head.n_bounds = 2;
  return t;
}

static void test_a_bound_is_like_one_before_it(void **state)
{
  told_twice t = twice(1);
  xfi_link link = {.rank = 3, .recv_buffer = {(unsigned char *)&t, sizeof t, 0}};

  (void)state;
  assert_int_equal(xfi_link_read(&link), XFER_OK);
  assert_int_equal(link.n_locations, 2);
  assert_int_equal(link.locations[1][1], 32);
  assert_int_equal(link.bounds[1].shape[0], 4);
  assert_int_equal(link.bounds[1].piece_length, 4);
  assert_true(link.bounds[1].is_set);
  release(&link);

  t = twice(2);
  link = (xfi_link){.rank = 3, .recv_buffer = {(unsigned char *)&t, sizeof t, 0}};
  assert_int_equal(xfi_link_read(&link), XFER_ERR_MISMATCH);
  release(&link);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_well_formed_is_read),
      cmocka_unit_test(test_what_is_cut_is_refused),
      cmocka_unit_test(test_a_bound_is_like_one_before_it),
      cmocka_unit_test(test_numbers_that_cannot_be_are_refused),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
