/* Scales of blocks: which cells a part has, where the scales of weights come from, and what is
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "boxes.h"
#include "layouts_of.h"
#include "scales.h"

static void test_a_block_has_rows_and_columns_of_the_last_two_dims(void **state)
{
  (void)state;
  const xfer_conversion c = xfer_convert_blocks(3, 4, XFER_SCALE_F32);
  int64_t block[XFER_MAX_DIMS] = {-1, -1, -1};

  xfi_conversion_block(block, &c, 0);
  assert_int_equal(block[0], -1);
  xfi_conversion_block(block, &c, 1);
  assert_int_equal(block[0], 4);
  xfi_conversion_block(block, &c, 3);
  assert_true(block[0] == 1 && block[1] == 3 && block[2] == 4);
}

/* Blocks of 2 x 3; ranks hold the same by placements and by boxes, some of it past the end. */
static void test_a_part_has_the_cells_that_it_meets(void **state)
{
  (void)state;
  static const int64_t block[] = {2, 3};
  static const char *const sides[] = {"bf16[5,8] (2)@3,1:S0;pad=0:6",
                                      "bf16[5,8] {3=[0:3,0:8];1=[3:6,0:8]+[5:6,0:8]}"};

  for (size_t c = 0; c < sizeof sides / sizeof *sides; c++) {
    xfer_layout *l = layout_of(sides[c]);

    xfer_layout *cells = NULL;

    assert_int_equal(xfi_layout_of_cells(&cells, l, block, XFER_F32), XFER_OK);
    assert_true(cells->dims[0].size == 3 && cells->dims[1].size == 3);
    for (int p = 0; p < 2; p++) {
      const int64_t want[] = {p, 0, p + 2, 3};
      size_t first;

      print_message("%s, part %d\n", sides[c], p);
      assert_int_equal(xfi_boxes_of(&first, cells, p == 0 ? 3 : 1), 1);
      assert_memory_equal(xfi_listed_bounds(cells, first), want, sizeof want);
    }
    xfi_layout_destroy(cells);
    xfi_layout_destroy(l);
  }
}

/* ---- lists of tensors ---- */

enum { N = 4, WEIGHTS = 0, SCALES = 1, OTHERS = 2, SCALES_OF_OTHERS = 3 };

typedef struct list {
  xfer_tensor at[N];
  xfer_layout *weights;
  xfer_layout *listed; /* the same by boxes */
  xfer_layout *own;    /* by boxes, of the calling rank alone */
  xfer_layout *deep;
  xfer_layout *quantised;
  xfer_layout *scales;
  xfer_layout *powers;
} list;

static xfer_layout *own_boxes(void)
{
  static const int64_t shape[] = {5, 8};
  static const int64_t first[] = {0, 1};
  static const int64_t bounds[] = {1, 0, 3, 8};
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_layout *l = NULL;

  desc.dtype = XFER_BF16;
  desc.n_dims = 2;
  desc.shape = shape;
  desc.first = first;
  desc.bounds = bounds;
  assert_int_equal(xfi_layout_create_boxes(&l, &desc), XFER_OK);
  return l;
}

/* Two weights of one layout in blocks of other sizes. */
static void make_list(list *l)
{
  *l = (list){.weights = layout_of("bf16[5,8] (2)@3,1:S0"),
              .listed = layout_of("bf16[5,8] {3=[0:3,0:8];1=[3:5,0:8]}"),
              .own = own_boxes(),
              .deep = layout_of("bf16[1,1,1,1,1,1,1] (1):R"),
              .quantised = layout_of("f8e4m3[5,8] (1):R"),
              .scales = layout_of("f32[3,3] (1):R"),
              .powers = layout_of("f8e8m0[3,3] (1):R")};
  l->at[WEIGHTS] =
      (xfer_tensor){"w", l->weights, l->quantised, xfer_convert_blocks(2, 3, XFER_SCALE_F32)};
  l->at[SCALES] = (xfer_tensor){"s", NULL, l->scales, xfer_convert_scales_of(WEIGHTS)};
  l->at[OTHERS] =
      (xfer_tensor){"v", l->weights, l->quantised, xfer_convert_blocks(1, 8, XFER_SCALE_POW2)};
  l->at[SCALES_OF_OTHERS] = (xfer_tensor){"t", NULL, NULL, xfer_convert_scales_of(OTHERS)};
}

static void free_list(list *l)
{
  xfi_layout_destroy(l->weights);
  xfi_layout_destroy(l->listed);
  xfi_layout_destroy(l->own);
  xfi_layout_destroy(l->deep);
  xfi_layout_destroy(l->quantised);
  xfi_layout_destroy(l->scales);
  xfi_layout_destroy(l->powers);
}

static void test_scales_come_from_where_the_weights_are(void **state)
{
  (void)state;
  xfi_scale_tensors tensors = {NULL, NULL, 0};
  const xfer_layout *src;
  list l;

  make_list(&l);
  assert_int_equal(xfi_scale_tensors_make(&tensors, l.at, N), XFER_OK);
  assert_int_equal(tensors.n_made, 2);
  src = tensors.at[SCALES].src;
  assert_true(src->dims[0].size == 3 && src->dims[1].size == 3 && src->dtype == XFER_F32);
  assert_false(src->is_own);
  src = tensors.at[SCALES_OF_OTHERS].src;
  assert_true(src->dims[0].size == 5 && src->dims[1].size == 1);
  xfi_scale_tensors_free(&tensors);

  l.at[WEIGHTS].src = l.listed;
  assert_int_equal(xfi_scale_tensors_make(&tensors, l.at, N), XFER_OK);
  assert_false(tensors.at[SCALES].src->is_own);
  xfi_scale_tensors_free(&tensors);
  l.at[WEIGHTS].src = l.weights;

  l.at[OTHERS].conversion = l.at[WEIGHTS].conversion;
  assert_int_equal(xfi_scale_tensors_make(&tensors, l.at, N), XFER_OK);
  assert_int_equal(tensors.n_made, 1);
  xfi_scale_tensors_free(&tensors);

  l.at[WEIGHTS].src = l.own;
  l.at[OTHERS].src = NULL; /* another rank knows it */
  assert_int_equal(xfi_scale_tensors_make(&tensors, l.at, N), XFER_OK);
  assert_int_equal(tensors.n_made, 1);
  assert_true(tensors.at[SCALES].src->is_own);
  assert_null(tensors.at[SCALES_OF_OTHERS].src);
  xfi_scale_tensors_free(&tensors);
  free_list(&l);
}

static void no_such_tensor(list *l)
{
  l->at[SCALES].conversion = xfer_convert_scales_of(N);
}
static void of_no_weights(list *l)
{
  l->at[SCALES].conversion = xfer_convert_scales_of(SCALES_OF_OTHERS);
}
static void twice(list *l)
{
  l->at[SCALES_OF_OTHERS].conversion = xfer_convert_scales_of(WEIGHTS);
}
static void with_a_source(list *l)
{
  l->at[SCALES].src = l->scales;
}
static void no_powers(list *l)
{
  l->at[SCALES].dst = l->powers;
}
static void too_deep(list *l)
{
  l->at[WEIGHTS].src = l->deep;
}
static void without_scales(list *l)
{
  l->at[SCALES_OF_OTHERS].conversion = (xfer_conversion){0};
}

static void test_what_are_no_scales_is_refused(void **state)
{
  (void)state;
  static const struct {
    void (*make_wrong)(list *l);
    xfer_status st;
    const char *text;
  } wrongs[] = {
      {no_such_tensor, XFER_ERR_ARG, "scales of tensor 4, which is not quantised by blocks"},
      {of_no_weights, XFER_ERR_ARG, "scales of tensor 3, which is not quantised by blocks"},
      {twice, XFER_ERR_ARG, "tensor \"w\" has scales already"},
      {with_a_source, XFER_ERR_ARG, "scales are made, and have no source layout"},
      {no_powers, XFER_ERR_SHAPE, "scales that are no powers of two as f8e8m0"},
      {too_deep, XFER_ERR_UNSUPPORTED, "blocks of a tensor of 7 dims; at most 6"},
      {without_scales, XFER_ERR_ARG, "\"v\" is quantised by blocks, and no tensor has its scales"},
  };

  for (size_t c = 0; c < sizeof wrongs / sizeof *wrongs; c++) {
    xfi_scale_tensors tensors = {NULL, NULL, 0};
    list l;

    print_message("%s\n", wrongs[c].text);
    make_list(&l);
    wrongs[c].make_wrong(&l);
    assert_int_equal(xfi_scale_tensors_make(&tensors, l.at, N), wrongs[c].st);
    assert_non_null(strstr(xfer_last_error(), wrongs[c].text));
    assert_null(tensors.at);
    free_list(&l);
  }
}

static xfer_status make(void *context)
{
  xfi_scale_tensors tensors = {NULL, NULL, 0};
  xfer_status st = xfi_scale_tensors_make(&tensors, ((list *)context)->at, N);

  xfi_scale_tensors_free(&tensors);
  return st;
}

static void test_each_failed_allocation_is_survived(void **state)
{
  (void)state;
  list l;

  make_list(&l);
  assert_true(fail_each_allocation(make, &l) > 20);
  l.at[WEIGHTS].src = l.own;
  assert_true(fail_each_allocation(make, &l) > 20);
  free_list(&l);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_block_has_rows_and_columns_of_the_last_two_dims),
      cmocka_unit_test(test_a_part_has_the_cells_that_it_meets),
      cmocka_unit_test(test_scales_come_from_where_the_weights_are),
      cmocka_unit_test(test_what_are_no_scales_is_refused),
      cmocka_unit_test(test_each_failed_allocation_is_survived),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
