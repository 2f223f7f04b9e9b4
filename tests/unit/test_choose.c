/* Who sends: stripes, turns of replicas, self and near sources first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plans_of.h"

/* ---- stripes ---- */

/* A class of a tensor that n_replicas sources hold. */
static xfi_class class_of(const char *line, tensor_list *list)
{
  add_line(list, "w", 1, line);
  return (xfi_class){.src = list->at[list->n - 1].src,
                     .dst = list->at[list->n - 1].dst,
                     .wire_bytes = list->at[list->n - 1].src->elem_bytes};
}

static void test_a_stripe_is_at_least_one_mebibyte_and_one_of_at_most_eight(void **state)
{
  (void)state;
  static const struct {
    const char *line;
    int64_t length[2];
    bool broadcast;
    int n;
  } cases[] = {
      {"u8[1048576,64] (4):R -> (1):R", {1048576, 1}, false, 1},
      {"u8[1048576,64] (4):R -> (1):R", {1048576, 2}, false, 2},
      {"u8[1048576,64] (4):R -> (1):R", {1048576, 3}, false, 3},
      {"u8[1048576,64] (4):R -> (1):R", {1048575, 3}, false, 2},
      {"u8[1048576,64] (4):R -> (1):R", {1048576, 64}, false, 4},
      {"u8[1048576,64] (4):R -> (1):R", {1048576, 64}, true, 1},
      {"u8[1048576,64] (64):R -> (1):R", {1048576, 64}, false, 8},
      {"u8[1048576,64] (1):R -> (1):R", {1048576, 64}, false, 1},
      {"f64[1048576,64] (64):R -> (1):R", {262144, 1}, false, 2},
      {"f64[1048576,64] (64):R -> (1):R", {3, 1048576}, false, 8},
      {"f64[1,1] (2):R -> (1):R", {1, 1}, false, 1},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    tensor_list list = {.n = 0};
    xfi_class cls = class_of(cases[c].line, &list);
    xfi_box box = {{0}, {cases[c].length[0], cases[c].length[1]}, {0}, {0}, 0};

    print_message("%s: %lld x %lld\n", cases[c].line, (long long)box.length[0],
                  (long long)box.length[1]);
    cls.broadcast = cases[c].broadcast;
    assert_int_equal(xfi_box_elems(box.length, 2), box.length[0] * box.length[1]);
    assert_int_equal(xfi_stripe_count(&cls, box.length, cls.src->n_replicas, 1), cases[c].n);
    free_tensors(&list);
  }
}

static void test_a_box_with_no_dim_long_enough_is_not_cut(void **state)
{
  (void)state;
  tensor_list list = {.n = 0};
  xfi_class cls = class_of("f64[4,4,4,4,4,4,4,4] (64):R -> (1):R", &list);
  xfi_box box = {{0}, {4, 4, 4, 4, 4, 4, 4, 4}, {0}, {0}, 0};

  for (int d = 0; d < 8; d++)
    box.length[d] = 7; /* 46 MB, but only 7 long */
  assert_int_equal(xfi_stripe_count(&cls, box.length, cls.src->n_replicas, 1), 1);
  box.length[6] = 8;
  assert_int_equal(xfi_stripe_count(&cls, box.length, cls.src->n_replicas, 1), 8);
  box.length[0] = 1000;
  assert_int_equal(xfi_stripe_count(&cls, box.length, cls.src->n_replicas, 300), 256);
  free_tensors(&list);
}

/* Stripes follow each other, differ by at most one index, and end where the box does. */
static void test_stripes_tile_a_box_of_any_length(void **state)
{
  (void)state;
  static const int64_t lengths[] = {8, 9, 15, 1000003, INT64_C(1) << 33, INT64_MAX / 2};
  tensor_list list = {.n = 0};
  xfi_class cls = class_of("u8[2,3] (8):R -> (1):R", &list);

  for (size_t c = 0; c < sizeof lengths / sizeof *lengths; c++) {
    for (uint16_t n = 1; n <= 8; n++) {
      xfi_box whole = {{5, 100}, {1, lengths[c]}, {6, 200}, {7, 300}, 0};
      int64_t words[1 + 4 * 2];
      xfi_flows flows = {.n_dims = 2, .boxes = words, .n_boxes = 1};
      int64_t at = 0;

      xfi_flows_put(&flows, 0, &whole);
      print_message("%lld in %d\n", (long long)lengths[c], n);
      for (uint16_t s = 0; s < n; s++) {
        const xfi_move move = {0, 0, 0, s, n};
        xfi_box box;

        xfi_move_box(&box, &cls, &flows, &move);
        assert_int_equal(box.lo[0], 5);
        assert_int_equal(box.length[0], 1);
        assert_int_equal(box.lo[1], 100 + at);
        assert_int_equal(box.src_local[1], 200 + at);
        assert_int_equal(box.dst_local[1], 300 + at);
        assert_in_range(box.length[1], lengths[c] / n, lengths[c] / n + 1);
        at += box.length[1];
      }
      assert_int_equal(at, lengths[c]);
    }
  }
  free_tensors(&list);
}

/* ---- turns ---- */

/* Over as many tensors, boxes or destination replicas as there are sources, each has one turn. */
static void test_each_source_has_its_turn_by_every_term(void **state)
{
  (void)state;
  tensor_list list = {.n = 0};
  xfi_class cls = class_of("u8[60] (5):R -> (5,3)@5-19:R,S0", &list);
  enum { TENSOR, BOX, REPLICA, PART, STRIPE, N_TERMS };

  for (int term = 0; term < N_TERMS; term++) {
    int turns[5] = {0};

    print_message("term %d\n", term);
    for (int i = 0; i < 5; i++) {
      xfi_turn turn = {7, 2, 0, 5, 0, 1, 1};

      if (term == TENSOR) turn.ordinal += (uint32_t)i;
      if (term == BOX) turn.box += (size_t)i;
      if (term == STRIPE) turn.stripe = i;
      if (term == REPLICA) turn.dst_replica = i;
      if (term == PART) {
        turn.dst_part = (uint32_t)i;
        if (i >= 3) continue; /* there are three */
      }
      const int replica = xfi_choose_replica(&cls, &turn);
      assert_in_range(replica, 0, 4);
      turns[replica]++;
    }
    for (int i = 0; i < 5; i++)
      assert_true(turns[i] == 1 || (term == PART && turns[i] == 0));
  }
  cls.broadcast = true;
  for (uint32_t i = 0; i < 10; i++)
    assert_int_equal(xfi_choose_replica(&cls, &(xfi_turn){i, 3, 0, 1, 0, 2, 1}), i % 5);
  free_tensors(&list);
}

/* ---- the sender's rank ---- */

static void test_self_comes_first_then_near_then_all(void **state)
{
  (void)state;
  /* source part 0 is on ranks 0, 2, 4, 6 and part 1 on 1, 3, 5, 7; domains of 3 */
  static const struct {
    uint32_t ranks_per_domain;
    uint32_t src_part;
    int dst_rank;
    uint64_t may; /* bit r: rank r may be chosen for some turn, and is for one */
  } cases[] = {
      {0, 0, 4, 1 << 4},
      {0, 1, 4, 0xaa},
      {0, 0, 8, 0x55},
      {3, 0, 4, 1 << 4},
      {3, 1, 4, 1 << 3 | 1 << 5},
      {3, 0, 1, 1 << 0 | 1 << 2},
      {3, 1, 8, 1 << 7},
      {3, 0, 8, 1 << 6},
      {3, 0, 9, 0x55},
      {100, 1, 9, 0xaa},
      {1, 0, 9, 0x55},
      {1, 1, 5, 1 << 5},
      {INT32_MAX, 1, 9, 0xaa},
      {UINT32_MAX, 1, 9, 0xaa},
      {UINT32_MAX, 0, 9, 0x55},
  };
  tensor_list list = {.n = 0};
  xfi_class cls = class_of("u8[60] (4,2):R,S0 -> (10):R", &list);

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    const xfi_moves plan = {.n_ranks = 10, .options.ranks_per_domain = cases[c].ranks_per_domain};
    uint64_t chosen = 0;

    print_message("domains of %u, part %d to rank %d\n", cases[c].ranks_per_domain,
                  (int)cases[c].src_part, cases[c].dst_rank);
    for (uint32_t i = 0; i < 8; i++)
      chosen |= UINT64_C(1) << xfi_choose_source(
                    &plan, &cls, &(xfi_turn){i, 0, 0, 1, cases[c].src_part, 0, cases[c].dst_rank},
                    cases[c].dst_rank);
    assert_int_equal(chosen, cases[c].may);
  }
  free_tensors(&list);
}

/* One source for all destinations, near or not; who holds it needs none. */
static void test_a_broadcast_has_one_source(void **state)
{
  (void)state;
  const xfi_moves plan = {.n_ranks = 10, .options.ranks_per_domain = 2};
  tensor_list list = {.n = 0};
  xfi_class cls = class_of("u8[60] (4,2):R,S0 -> (10):R", &list);

  cls.broadcast = true;
  for (int dst_rank = 0; dst_rank < 10; dst_rank++)
    assert_int_equal(
        xfi_choose_source(&plan, &cls, &(xfi_turn){6, 0, 0, 1, 1, 0, dst_rank}, dst_rank),
        dst_rank < 8 && dst_rank % 2 == 1 ? dst_rank : 5);
  free_tensors(&list);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_stripe_is_at_least_one_mebibyte_and_one_of_at_most_eight),
      cmocka_unit_test(test_a_box_with_no_dim_long_enough_is_not_cut),
      cmocka_unit_test(test_stripes_tile_a_box_of_any_length),
      cmocka_unit_test(test_each_source_has_its_turn_by_every_term),
      cmocka_unit_test(test_self_comes_first_then_near_then_all),
      cmocka_unit_test(test_a_broadcast_has_one_source),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
