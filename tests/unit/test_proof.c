/* The proof of coverage against a lookup that is wrong: what the planner's own arithmetic should
 * never give, it must not take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "class.h"
#include "plans_of.h"
#include "vec.h"

typedef enum wrong { SOUND, TOO_LONG, TWICE, MISSING } wrong;

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
  if (wrong_now == MISSING) holds->n--;
  if (wrong_now != TWICE) return st;
  st = xfi_vec_reserve(&holds->at, &holds->capacity, holds->n + 1, sizeof *holds->at);
  if (st != XFER_OK) return st;
  holds->at[holds->n] = holds->at[holds->n - 1];
  holds->at[holds->n].part++; /* of another source, so that the two do not become one */
  holds->n++;
  return st;
}

static void prove(wrong how, xfer_status want, const char *says)
{
  tensor_list list = {.n = 0};
  char name[] = "model.w";
  xfi_tensor tensor = {.name = name};
  const xfi_plan plan = {.n_ranks = MAX_PLANS, .rank = 0, .tensors = &tensor, .n_tensors = 1};
  xfi_scratch scratch = {0};
  xfer_status st;

  wrong_now = SOUND;
  add_line(&list, "w", 1, "f32[12] (3)@1-3:S0 -> (1)@0:R");
  xfi_class cls = {.src = list.at[0].src, .dst = list.at[0].dst, .wire_bytes = 4, .n_tensors = 1};
  wrong_now = how;
  st = xfi_class_fill(&cls, &plan, &scratch);
  wrong_now = SOUND;
  assert_int_equal(st, want);
  if (st != XFER_OK) assert_non_null(strstr(xfi_last_error(), says));
  xfi_class_free(&cls);
  xfi_scratch_free(&scratch);
  free_tensors(&list);
}

static void test_what_is_covered_once_is_proved(void **state)
{
  (void)state;
  prove(SOUND, XFER_OK, "");
}

static void test_a_piece_past_its_run_is_seen(void **state)
{
  (void)state;
  prove(TOO_LONG, XFER_ERR_INTERNAL, "would get local index 12 twice");
}

static void test_a_piece_that_comes_twice_is_seen(void **state)
{
  (void)state;
  prove(TWICE, XFER_ERR_INTERNAL, "twice");
}

static void test_a_missing_piece_is_seen(void **state)
{
  (void)state;
  prove(MISSING, XFER_ERR_SHAPE, "needs index 8, which no source part holds");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_covered_once_is_proved),
      cmocka_unit_test(test_a_piece_past_its_run_is_seen),
      cmocka_unit_test(test_a_piece_that_comes_twice_is_seen),
      cmocka_unit_test(test_a_missing_piece_is_seen),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
