/* Growing arrays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "vec.h"

#include "alloc.h"

typedef struct list {
  int *items;
  size_t cap;
  size_t n_items;
} list;

static xfer_status list_add(list *l, int item)
{
  xfer_status st = xfi_vec_reserve(&l->items, &l->cap, l->n_items + 1, sizeof *l->items);

  if (st == XFER_OK) l->items[l->n_items++] = item;
  return st;
}

static void test_appended_items_stay(void **state)
{
  (void)state;
  list l = {0};

  for (int i = 0; i < 1000; i++) {
    assert_int_equal(list_add(&l, i), XFER_OK);
  }
  for (int i = 0; i < 1000; i++) {
    assert_int_equal(l.items[i], i);
  }
  assert_true(l.cap >= 1000 && l.cap < 2048);
  xfi_free(l.items);
}

static void test_reserve_exactly_and_again_is_no_growth(void **state)
{
  (void)state;
  list l = {0};

  assert_int_equal(xfi_vec_reserve(&l.items, &l.cap, 100, sizeof *l.items), XFER_OK);
  assert_int_equal(l.cap, 100);
  int *before = l.items;
  assert_int_equal(xfi_vec_reserve(&l.items, &l.cap, 100, sizeof *l.items), XFER_OK);
  assert_int_equal(xfi_vec_reserve(&l.items, &l.cap, 0, sizeof *l.items), XFER_OK);
  assert_ptr_equal(l.items, before);
  assert_int_equal(l.items[99], 0);
  xfi_free(l.items);
}

static void test_failed_growth_changes_nothing(void **state)
{
  (void)state;
  list l = {0};

  assert_int_equal(list_add(&l, 42), XFER_OK);
  list before = l;
  xfi_alloc_fail_after(0);
  assert_int_equal(xfi_vec_reserve(&l.items, &l.cap, 50, sizeof *l.items), XFER_ERR_NOMEM);
  xfi_alloc_fail_after(-1);
  assert_int_equal(xfi_vec_reserve(&l.items, &l.cap, SIZE_MAX, sizeof *l.items), XFER_ERR_NOMEM);
  assert_ptr_equal(l.items, before.items);
  assert_int_equal(l.cap, before.cap);
  assert_int_equal(l.items[0], 42);
  xfi_free(l.items);
}

static int n_compared;

static int ascending(const void *a, const void *b)
{
  n_compared++;
  return *(const int *)a - *(const int *)b;
}

static void test_what_is_in_order_is_looked_at_once(void **state)
{
  (void)state;
  int none[1] = {0};
  int items[] = {1, 2, 2, 5};
  int mixed[] = {3, 1, 2};

  xfi_sort(none, 0, sizeof *none, ascending);
  xfi_sort(items, 4, sizeof *items, ascending);
  assert_int_equal(n_compared, 3);
  assert_memory_equal(items, ((const int[]){1, 2, 2, 5}), sizeof items);
  xfi_sort(mixed, 3, sizeof *mixed, ascending);
  assert_memory_equal(mixed, ((const int[]){1, 2, 3}), sizeof mixed);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_appended_items_stay),
      cmocka_unit_test(test_reserve_exactly_and_again_is_no_growth),
      cmocka_unit_test(test_failed_growth_changes_nothing),
      cmocka_unit_test(test_what_is_in_order_is_looked_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
