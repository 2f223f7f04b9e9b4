/* Slices of boxes, against walking every element. */
#include "slice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct box {
  int n_dims;
  int64_t length[XFER_MAX_DIMS];
} box;

static const box boxes[] = {
    {0, {0}},          {1, {1}},          {1, {7}},       {2, {3, 4}},
    {2, {1, 5}},       {2, {5, 1}},       {3, {2, 3, 4}}, {3, {4, 1, 3}},
    {4, {2, 1, 2, 3}}, {5, {1, 2, 1, 3}}, {3, {1, 1, 1}}, {8, {2, 1, 2, 1, 2, 1, 2, 2}},
};

static int64_t n_elems(const box *b)
{
  int64_t n = 1;

  for (int d = 0; d < b->n_dims; d++)
    n *= b->length[d];
  return n;
}

/* Row-major number of an index. */
static int64_t number_of(const box *b, const int64_t *index)
{
  int64_t n = 0;

  for (int d = 0; d < b->n_dims; d++)
    n = n * b->length[d] + index[d];
  return n;
}

/* Marks the elements of a slice in the order in which it holds them; false: one was not next. */
static void walk(const box *b, const xfi_slice *s, int64_t first, int64_t *next)
{
  int64_t at[XFER_MAX_DIMS] = {0};
  int d;

  assert_int_equal(s->offset, *next - first);
  do {
    int64_t index[XFER_MAX_DIMS];

    for (d = 0; d < b->n_dims; d++)
      index[d] = s->start[d] + at[d];
    assert_int_equal(number_of(b, index), *next);
    ++*next;
    for (d = b->n_dims - 1; d >= 0 && ++at[d] == s->length[d]; d--)
      at[d] = 0;
  } while (d >= 0);
}

static void test_slices_are_the_elements_in_order(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
    box b = boxes[i];

    for (int d = 0; d < b.n_dims; d++)
      if (b.length[d] == 0) b.length[d] = 2;
    for (int64_t first = 0; first < n_elems(&b); first++)
      for (int64_t end = first + 1; end <= n_elems(&b); end++) {
        xfi_slice slices[XFI_MAX_SLICES];
        const int n = xfi_slice_box(slices, b.length, b.n_dims, first, end);
        int64_t next = first;

        assert_in_range(n, 1, XFI_MAX_SLICES);
        for (int s = 0; s < n; s++)
          walk(&b, &slices[s], first, &next);
        assert_int_equal(next, end);
      }
  }
}

static void test_a_whole_box_is_one_slice(void **state)
{
  const int64_t length[3] = {INT64_C(1) << 20, INT64_C(1) << 20, INT64_C(1) << 20};
  xfi_slice slices[XFI_MAX_SLICES];

  (void)state;
  assert_int_equal(xfi_slice_box(slices, length, 3, 0, INT64_C(1) << 60), 1);
  assert_memory_equal(slices[0].length, length, sizeof length);
}

static void test_slices_far_out_do_not_wrap(void **state)
{
  const int64_t length[2] = {INT64_C(1) << 31, INT64_C(1) << 30};
  const int64_t end = INT64_C(1) << 61;
  xfi_slice slices[XFI_MAX_SLICES];

  (void)state;
  assert_int_equal(xfi_slice_box(slices, length, 2, end - 3, end), 1);
  assert_int_equal(slices[0].start[0], length[0] - 1);
  assert_int_equal(slices[0].start[1], length[1] - 3);
  assert_int_equal(slices[0].length[1], 3);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_slices_are_the_elements_in_order),
      cmocka_unit_test(test_a_whole_box_is_one_slice),
      cmocka_unit_test(test_slices_far_out_do_not_wrap),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
