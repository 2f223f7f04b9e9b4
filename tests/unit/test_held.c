/* What ranks count of a tensor: together each element once, whichever replica's turn it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "boxes.h"
#include "held.h"
#include "layouts_of.h"

enum { ROWS = 4, COLUMNS = 6, N_RANKS = 6, N_TURNS = 4 };

static const char *const sides[] = {
    "u8[4,6] (2,3):S0,R",
    "u8[4,6] (2,3):S1f2,S0;pad=1:8",
    "u8[4,6] {0=[0:4,0:6];2=[0:4,0:6];1=}",
    "u8[4,6] {3=[1:3,1:4]+[0:2,0:2];4=[0:4,0:6]+[4:5,0:6];5=[1:3,1:4]+[0:4,0:9]}",
};

/* Does a box of the rank have index `lo` at its local index? */
static bool lies_there(const xfer_layout *l, int rank, const xfi_held *held)
{
  size_t first;
  const size_t n = xfi_boxes_of(&first, l, rank);

  for (size_t i = first; i < first + n; i++) {
    const int64_t *given = xfi_listed_bounds(l, i);

    if (held->bounds[0] - given[0] + l->boxes->listed[i].row == held->local[0] &&
        held->bounds[1] - given[1] == held->local[1])
      return true;
  }
  return false;
}

static void test_together_ranks_count_each_element_once(void **state)
{
  (void)state;
  for (size_t c = 0; c < sizeof sides / sizeof *sides; c++) {
    xfer_layout *l = layout_of(sides[c]);

    for (uint32_t turn = 0; turn < N_TURNS; turn++) {
      int seen[ROWS][COLUMNS] = {{0}};

      print_message("%s, turn %u\n", sides[c], turn);
      for (int rank = 0; rank < N_RANKS; rank++) {
        xfi_held_list list = {NULL, 0, 0};

        assert_int_equal(xfi_layout_held(&list, l, rank, true), XFER_OK);
        for (size_t i = 0; i < list.n; i++) {
          const xfi_held *h = &list.at[i];

          assert_int_equal(h->replica, xfi_part_replica(l, h->part, rank));
          if (l->boxes != NULL) assert_true(lies_there(l, rank, h));
          if (h->replica != (int)(turn % (uint32_t)xfi_part_n_replicas(l, h->part))) continue;
          for (int64_t x = h->bounds[0]; x < h->bounds[2]; x++)
            for (int64_t y = h->bounds[1]; y < h->bounds[3]; y++)
              seen[x][y]++;
        }
        xfi_free(list.at);
      }
      for (int x = 0; x < ROWS; x++)
        for (int y = 0; y < COLUMNS; y++)
          assert_int_equal(seen[x][y], 1);
    }
    xfi_layout_destroy(l);
  }
}

static xfer_status list_all(void *context)
{
  xfer_status st = XFER_OK;
  xfi_held_list list = {NULL, 0, 0};

  for (int rank = 0; rank < N_RANKS && st == XFER_OK; rank++)
    st = xfi_layout_held(&list, context, rank, true);
  xfi_free(list.at);
  return st;
}

static void test_each_failed_allocation_is_survived(void **state)
{
  (void)state;
  for (size_t c = 0; c < sizeof sides / sizeof *sides; c++) {
    xfer_layout *l = layout_of(sides[c]);

    assert_true(fail_each_allocation(list_all, l) > 0);
    xfi_layout_destroy(l);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_together_ranks_count_each_element_once),
      cmocka_unit_test(test_each_failed_allocation_is_survived),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
