/* The proof of coverage against a lookup that is wrong: what the planner's own arithmetic should
 * never give, it must not take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "boxes.h"
#include "class.h"
#include "plans_of.h"
#include "vec.h"

typedef enum wrong { SOUND, TOO_LONG, TWICE, MISSING, ASTRAY } wrong;

static wrong wrong_now;

xfer_status __real_xfi_dim_holders(const xfi_dim *dim, int64_t lo, int64_t hi, bool once,
                                   xfi_holds *holds);
xfer_status __wrap_xfi_dim_holders(const xfi_dim *dim, int64_t lo, int64_t hi, bool once,
                                   xfi_holds *holds);

xfer_status __wrap_xfi_dim_holders(const xfi_dim *dim, int64_t lo, int64_t hi, bool once,
                                   xfi_holds *holds)
{
  xfer_status st = __real_xfi_dim_holders(dim, lo, hi, once, holds);

  if (st != XFER_OK || holds->n == 0) return st;
  if (wrong_now == TOO_LONG) holds->at[holds->n - 1].length++;
  if (wrong_now == MISSING || (wrong_now == ASTRAY && lo > 0)) holds->n--;
  if (wrong_now != TWICE && (wrong_now != ASTRAY || lo > 0)) return st;
  st = xfi_vec_reserve(&holds->at, &holds->capacity, holds->n + 1, sizeof *holds->at);
  if (st != XFER_OK) return st;
  holds->at[holds->n] = holds->at[holds->n - 1];
  holds->at[holds->n].part++; /* of another source, so that the two do not become one */
  if (wrong_now == ASTRAY) holds->at[holds->n].global = hi; /* in place of the next run's */
  holds->n++;
  return st;
}

xfer_status __real_xfi_boxes_meet(xfi_units *units, const xfer_layout *layout,
                                  const int64_t *bounds);
xfer_status __wrap_xfi_boxes_meet(xfi_units *units, const xfer_layout *layout,
                                  const int64_t *bounds);

xfer_status __wrap_xfi_boxes_meet(xfi_units *units, const xfer_layout *layout,
                                  const int64_t *bounds)
{
  xfer_status st = __real_xfi_boxes_meet(units, layout, bounds);

  if (st == XFER_OK && wrong_now == TWICE) st = __real_xfi_boxes_meet(units, layout, bounds);
  return st;
}

static void prove(const char *line, wrong how, xfer_status want, const char *says)
{
  tensor_list list = {.n = 0};
  char name[] = "model.w";
  xfi_tensor tensor = {.name = name};
  const xfi_moves plan = {.n_ranks = MAX_PLANS, .rank = 0, .tensors = &tensor, .n_tensors = 1};
  xfi_scratch scratch = {0};
  xfer_status st;

  wrong_now = SOUND;
  add_line(&list, "w", 1, line);
  xfi_class cls = {.src = list.at[0].src, .dst = list.at[0].dst, .wire_bytes = 4, .n_tensors = 1};
  wrong_now = how;
  st = xfi_class_fill(&cls, &plan, &scratch);
  wrong_now = SOUND;
  assert_int_equal(st, want);
  if (st != XFER_OK) assert_non_null(strstr(xfer_last_error(), says));
  xfi_class_free(&cls);
  xfi_scratch_free(&scratch);
  free_tensors(&list);
}

static const char by_rows[] = "f32[12] (3)@1-3:S0 -> (1)@0:R";

static void test_what_is_covered_once_is_proved(void **state)
{
  (void)state;
  prove(by_rows, SOUND, XFER_OK, "");
}

static void test_a_piece_past_its_run_is_seen(void **state)
{
  (void)state;
  prove(by_rows, TOO_LONG, XFER_ERR_INTERNAL, "would get local index 12 twice");
}

static void test_a_piece_that_comes_twice_is_seen(void **state)
{
  (void)state;
  prove(by_rows, TWICE, XFER_ERR_INTERNAL, "twice");
}

static void test_a_missing_piece_is_seen(void **state)
{
  (void)state;
  prove(by_rows, MISSING, XFER_ERR_SHAPE, "needs index 8, which no source part holds");
}

/* The destination holds 0 to 2 and 6 to 8. */
static void test_a_piece_in_another_ones_place_is_seen(void **state)
{
  (void)state;
  prove("f32[12] (3)@1-3:S0 -> (2)@0,4:S0f2", ASTRAY, XFER_ERR_SHAPE,
        "needs index 6, which no source part holds");
}

static void test_a_box_that_comes_twice_is_seen(void **state)
{
  (void)state;
  static const char by_boxes[] = "f32[4,6] {1=[0:2,0:6];2=[2:4,0:6]} -> (1)@0:R";

  prove(by_boxes, SOUND, XFER_OK, "");
  prove(by_boxes, TWICE, XFER_ERR_INTERNAL, "would get an element twice");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_covered_once_is_proved),
      cmocka_unit_test(test_a_piece_past_its_run_is_seen),
      cmocka_unit_test(test_a_piece_that_comes_twice_is_seen),
      cmocka_unit_test(test_a_missing_piece_is_seen),
      cmocka_unit_test(test_a_piece_in_another_ones_place_is_seen),
      cmocka_unit_test(test_a_box_that_comes_twice_is_seen),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
