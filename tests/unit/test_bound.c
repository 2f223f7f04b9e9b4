/* Views bound to parts, and copies between them against walking every element. */
#include "bound.h"

#include "alloc.h"
#include "error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 4096 };

static const int64_t shape[3] = {4, 6, 5};

static xfi_bound bind(const xfer_view *view, const int64_t *part, int n_dims, int elem_bytes)
{
  xfi_bound b = {.is_set = false};

  assert_int_equal(xfi_bound_set(&b, view, part, n_dims, elem_bytes, "w"), XFER_OK);
  return b;
}

/* Where an element lies, from the view alone. */
static unsigned char *place(const xfer_view *v, const int64_t *part, int n_dims,
                            const int64_t *index, int elem_bytes)
{
  unsigned char *p = v->base;
  int64_t dense = 0;

  for (int d = 0; d < n_dims; d++)
    dense = dense * part[d] + index[d];
  if (v->kind == XFER_VIEW_DENSE) return p + dense * elem_bytes;
  for (int d = 0; d < n_dims; d++) {
    int64_t x = index[d];

    if (v->kind == XFER_VIEW_PIECES && d == v->piece_dim) {
      p = v->pieces[x / (part[d] / v->n_pieces)];
      x %= part[d] / v->n_pieces;
    }
  }
  for (int d = 0; d < n_dims; d++)
    p += (v->kind == XFER_VIEW_PIECES && d == v->piece_dim ? index[d] % (part[d] / v->n_pieces)
                                                           : index[d]) *
         v->strides[d];
  return p;
}

/* Copies the box [start, start + length) from one view to another, twice, and compares. */
static void check_box(const xfer_view *dst, const xfer_view *src, const int64_t *start,
                      const int64_t *length, unsigned char *dst_memory, bool zero)
{
  static unsigned char want[BYTES];
  xfi_bound to = bind(dst, shape, 3, 2);
  xfi_bound from = bind(src, shape, 3, 2);
  xfi_end dst_end = {&to, {start[0], start[1], start[2]}};
  xfi_end src_end = {&from, {start[0], start[1], start[2]}};
  xfi_copies copies = {NULL, 0, 0};
  int64_t x[3];

  memset(dst_memory, 0xAB, BYTES);
  for (x[0] = start[0]; x[0] < start[0] + length[0]; x[0]++)
    for (x[1] = start[1]; x[1] < start[1] + length[1]; x[1]++)
      for (x[2] = start[2]; x[2] < start[2] + length[2]; x[2]++) {
        unsigned char *p = place(dst, shape, 3, x, 2);

        if (zero)
          memset(p, 0, 2);
        else
          memcpy(p, place(src, shape, 3, x, 2), 2);
      }
  memcpy(want, dst_memory, BYTES);
  memset(dst_memory, 0xAB, BYTES);
  assert_int_equal(
      xfi_copies_add(&copies, &dst_end, zero ? NULL : &src_end, length, 3, (xfi_elem){2, NULL}),
      XFER_OK);
  xfi_ref_copy(copies.at, copies.n);
  assert_memory_equal(dst_memory, want, BYTES);
  xfi_copies_free(&copies);
  xfi_bound_clear(&to);
  xfi_bound_clear(&from);
}

static void test_copies_between_any_two_kinds_of_views(void **state)
{
  static unsigned char dst_memory[BYTES];
  static unsigned char src_memory[BYTES];
  static const int64_t strides[4][3] = {{60, 10, 2}, {2, 8, 48}, {200, 24, 4}, {300, 40, 8}};
  static const int64_t boxes[][2][3] = {{{0, 0, 0}, {4, 6, 5}}, {{1, 2, 3}, {2, 3, 1}},
                                        {{3, 5, 4}, {1, 1, 1}}, {{0, 1, 0}, {4, 4, 5}},
                                        {{2, 0, 1}, {0, 6, 4}}, {{0, 3, 2}, {3, 3, 3}}};
  void *dst_pieces[6];
  void *src_pieces[6];
  xfer_view dst[6];
  xfer_view src[6];

  (void)state;
  for (size_t i = 0; i < BYTES; i++)
    src_memory[i] = (unsigned char)(i * 7 + i / 256);
  for (int i = 0; i < 6; i++) { /* backwards, since pieces may lie in any order */
    dst_pieces[i] = dst_memory + (5 - i) * 640;
    src_pieces[i] = src_memory + (5 - i) * 640;
  }
  for (int i = 0; i < 4; i++) {
    dst[i] = i == 3 ? xfer_view_dense(dst_memory) : xfer_view_strided(dst_memory, strides[i], 3);
    src[i] = i == 3 ? xfer_view_dense(src_memory) : xfer_view_strided(src_memory, strides[i], 3);
  }
  dst[4] = xfer_view_pieces(dst_pieces, 3, 1, strides[0], 3);
  src[4] = xfer_view_pieces(src_pieces, 3, 1, strides[0], 3);
  dst[5] = xfer_view_pieces(dst_pieces, 2, 0, strides[3], 3);
  src[5] = xfer_view_pieces(src_pieces, 6, 1, strides[0], 3);
  for (int d = 0; d < 6; d++)
    for (int s = 0; s < 6; s++)
      for (size_t b = 0; b < sizeof boxes / sizeof *boxes; b++)
        for (int zero = 0; zero < 2; zero++)
          check_box(&dst[d], &src[s], boxes[b][0], boxes[b][1], dst_memory, zero != 0);
}

/* Two copies do the same once the last has been joined; how many they become. */
static size_t join_two(const xfi_copy *two)
{
  static unsigned char want[BYTES];
  unsigned char *const got = (unsigned char *)two[0].dst - 64;
  xfi_copies copies = {NULL, 0, 0};
  size_t n;

  memset(got, 0xAB, BYTES);
  xfi_ref_copy(two, 2);
  memcpy(want, got, BYTES);
  memset(got, 0xAB, BYTES);
  for (int i = 0; i < 2; i++) {
    xfi_copies_join_last(&copies); /* of none, and of one */
    assert_int_equal(xfi_copies_push(&copies, &two[i]), XFER_OK);
  }
  xfi_copies_join_last(&copies);
  xfi_ref_copy(copies.at, copies.n);
  assert_memory_equal(got, want, BYTES);
  n = copies.n;
  xfi_copies_free(&copies);
  return n;
}

/* Gate and up of 3 experts with 5 rows of 4 columns each, to rows of both by turns from columns of
 * both by turns; and to and from one half behind the other. */
static void test_halves_that_alternate_become_one(void **state)
{
  static unsigned char dst[BYTES];
  static unsigned char src[BYTES];
  const xfi_copy by_turns = {.src = (char *)src,
                             .dst = (char *)dst + 64,
                             .run_bytes = 2,
                             .n_dims = 3,
                             .extent = {3, 5, 4},
                             .src_stride = {80, 4, 20},
                             .dst_stride = {80, 16, 2}};
  const xfi_copy behind = {.src = (char *)src,
                           .dst = (char *)dst + 64,
                           .run_bytes = 40,
                           .n_dims = 1,
                           .extent = {3},
                           .src_stride = {80},
                           .dst_stride = {80}};
  const xfi_convert convert = {.from = XFER_BF16, .to = XFER_F16, .src_bytes = 2, .dst_bytes = 2};

  (void)state;
  for (size_t i = 0; i < BYTES; i++)
    src[i] = (unsigned char)(i * 7 + i / 256);
  for (int k = 0; k < 8; k++) {
    const bool is_behind = k == 1;
    xfi_copy two[2] = {is_behind ? behind : by_turns, is_behind ? behind : by_turns};

    two[1].src += is_behind ? 40 : 2;
    two[1].dst += is_behind ? 40 : 8;
    if (k == 2) two[1].src += 2;    /* they alternate on one side alone, */
    if (k == 3) two[1].dst += 800;  /* or on the other */
    if (k == 4) two[1].extent[1]--; /* one is shorter, */
    if (k == 5) two[1].src = NULL;  /* is zeros, */
    if (k == 6) two[0].src = NULL;  /* or the other, */
    if (k == 7) two[1].convert = &convert;
    assert_int_equal(join_two(two), k < 2 ? 1 : 2);
  }
}

static void test_a_scalar_is_one_copy(void **state)
{
  int64_t from = 42;
  int64_t to = 0;
  xfer_view src = xfer_view_dense(&from);
  xfer_view dst = xfer_view_dense(&to);
  xfi_bound a = bind(&src, NULL, 0, 8);
  xfi_bound b = bind(&dst, NULL, 0, 8);
  xfi_end src_end = {&a, {0}};
  xfi_end dst_end = {&b, {0}};
  xfi_copies copies = {NULL, 0, 0};

  (void)state;
  assert_int_equal(xfi_bound_reach(&a, 0, 8), 8);
  assert_int_equal(xfi_copies_add(&copies, &dst_end, &src_end, NULL, 0, (xfi_elem){8, NULL}),
                   XFER_OK);
  assert_int_equal(copies.n, 1);
  xfi_ref_copy(copies.at, copies.n);
  assert_int_equal(to, 42);
  xfi_copies_free(&copies);
}

/* A stride counts only where a step is possible: in pieces of one index none is. */
static void test_strides_of_dims_with_one_index_are_not_looked_at(void **state)
{
  static unsigned char memory[64];
  const int64_t one[2] = {1, 8};
  const int64_t odd[2] = {-7, 2};
  const int64_t pieces_part[2] = {2, 8};
  const int64_t zero_first[2] = {0, 2};
  void *pieces[2] = {memory, memory + 32};
  xfer_view view = xfer_view_strided(memory, odd, 2);
  xfer_view in_pieces = xfer_view_pieces(pieces, 2, 0, zero_first, 2);
  xfi_bound b = bind(&view, one, 2, 2);

  (void)state;
  xfi_bound_clear(&b);
  b = bind(&in_pieces, pieces_part, 2, 2);
  xfi_bound_clear(&b);
}

static void test_equal_is_the_same_memory_in_the_same_way(void **state)
{
  static unsigned char memory[BYTES];
  const int64_t strides[3] = {60, 10, 2};
  const int64_t wide[3] = {200, 24, 4};
  void *pieces[2] = {memory, memory + 1000};
  void *others[2] = {memory, memory + 2000};
  const xfer_view views[] = {xfer_view_dense(memory),
                             xfer_view_dense(memory + 2),
                             xfer_view_strided(memory, wide, 3),
                             xfer_view_pieces(pieces, 2, 0, strides, 3),
                             xfer_view_pieces(others, 2, 0, strides, 3),
                             xfer_view_pieces(pieces, 2, 1, strides, 3)};
  const xfer_view as_dense = xfer_view_strided(memory, strides, 3);
  const xfi_bound none = {.is_set = false};
  xfi_bound same = bind(&as_dense, shape, 3, 2);

  (void)state;
  for (int i = 0; i < 6; i++)
    for (int k = 0; k < 6; k++) {
      xfi_bound a = bind(&views[i], shape, 3, 2);
      xfi_bound b = bind(&views[k], shape, 3, 2);

      assert_int_equal(xfi_bound_equal(&a, &b), i == k);
      assert_int_equal(xfi_bound_equal(&a, &same), i == 0);
      assert_false(xfi_bound_equal(&a, &none));
      xfi_bound_clear(&a);
      xfi_bound_clear(&b);
    }
  assert_true(xfi_bound_equal(&none, &none));
  xfi_bound_clear(&same);
}

static void test_a_view_that_does_not_fit_leaves_the_bound_as_it_was(void **state)
{
  static unsigned char memory[BYTES];
  const int64_t strides[3] = {60, 10, 2};
  const int64_t small[3] = {60, 10, 1};
  const int64_t far[3] = {INT64_MAX / 2, 10, 2};
  void *pieces[4] = {memory, memory + 1000, NULL, memory};
  struct {
    xfer_view view;
    xfer_status st;
    const char *words;
  } cases[] = {
      {xfer_view_dense(NULL), XFER_ERR_ARG, "w: the view's base is NULL"},
      {xfer_view_strided(memory, strides, 2), XFER_ERR_SHAPE, "a view of 2 dims"},
      {xfer_view_strided(memory, NULL, 3), XFER_ERR_ARG, "w: the view has no strides"},
      {xfer_view_pieces(pieces, 2, 0, NULL, 3), XFER_ERR_ARG, "w: the view has no strides"},
      {xfer_view_strided(memory, small, 3), XFER_ERR_SHAPE, "stride 1 in dim 2"},
      {xfer_view_strided(memory, far, 3), XFER_ERR_OVERFLOW, "in dim 0"},
      {xfer_view_pieces(pieces, 3, 0, strides, 3), XFER_ERR_SHAPE, "3 pieces along dim 0"},
      {xfer_view_pieces(pieces, 0, 0, strides, 3), XFER_ERR_SHAPE, "0 pieces"},
      {xfer_view_pieces(pieces, -2, 0, strides, 3), XFER_ERR_SHAPE, "-2 pieces"},
      {xfer_view_pieces(pieces, 4, 0, strides, 3), XFER_ERR_ARG, "piece 2 is NULL"},
      {xfer_view_pieces(NULL, 2, 0, strides, 3), XFER_ERR_ARG, "without pointers"},
      {xfer_view_pieces(pieces, 2, 3, strides, 3), XFER_ERR_SHAPE, "along dim 3"},
      {xfer_view_pieces(pieces, 2, -1, strides, 3), XFER_ERR_SHAPE, "along dim -1"},
      {{.kind = -1}, XFER_ERR_ARG, "view kind -1"},
      {{.kind = XFER_VIEW_BOXES}, XFER_ERR_SHAPE, "a view by boxes of a layout that is by"},
  };
  xfer_view good = xfer_view_dense(memory);
  xfi_bound b = bind(&good, shape, 3, 2);
  xfi_bound before = b;

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(xfi_bound_set(&b, &cases[i].view, shape, 3, 2, "w"), cases[i].st);
    if (strstr(xfer_last_error(), cases[i].words) == NULL)
      fail_msg("\"%s\" lacks \"%s\"", xfer_last_error(), cases[i].words);
    assert_memory_equal(&b, &before, sizeof b);
  }
  xfi_alloc_fail_after(0);
  good = xfer_view_pieces(pieces, 2, 0, strides, 3);
  assert_int_equal(xfi_bound_set(&b, &good, shape, 3, 2, "w"), XFER_ERR_NOMEM);
  xfi_alloc_fail_after(-1);
  assert_memory_equal(&b, &before, sizeof b);
}

static void test_no_memory_for_boxes(void **state)
{
  char memory[8];
  const xfer_view view = xfer_view_dense(memory);
  xfer_view reserved = view;
  xfi_bound_box *boxes = xfi_calloc(2, sizeof *boxes);
  xfi_bound bound = {.is_set = false};

  (void)state;
  assert_non_null(boxes);
  reserved.reserved = 1;
  assert_int_equal(xfi_bound_set_boxes(&bound, &reserved, NULL, 2, 1, 1, "w"), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "a reserved field of the view is not 0"));
  boxes[0] = (xfi_bound_box){.length = {2}};
  boxes[1] = (xfi_bound_box){.row = 2, .length = {6}};
  xfi_alloc_fail_after(0);
  assert_int_equal(xfi_bound_set_boxes(&bound, &view, boxes, 2, 1, 1, "w"), XFER_ERR_NOMEM);
  xfi_alloc_fail_after(-1);
  assert_false(bound.is_set);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_no_memory_for_boxes),
      cmocka_unit_test(test_copies_between_any_two_kinds_of_views),
      cmocka_unit_test(test_halves_that_alternate_become_one),
      cmocka_unit_test(test_a_scalar_is_one_copy),
      cmocka_unit_test(test_strides_of_dims_with_one_index_are_not_looked_at),
      cmocka_unit_test(test_equal_is_the_same_memory_in_the_same_way),
      cmocka_unit_test(test_a_view_that_does_not_fit_leaves_the_bound_as_it_was),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
