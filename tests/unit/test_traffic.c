/* What every rank gets from whom: as its own list of moves has it, for all ways of choosing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "plans_of.h"
#include "traffic.h"

enum { N_RANKS = 24 };

typedef struct seen {
  const tensor_list *list;
  const xfi_moves_options *options;
  int n_rows;
} seen;

/* The same figures from one rank's moves. */
static void count_moves(const xfi_moves *plan, xfer_traffic *counted)
{
  const xfi_move_list *lists[] = {&plan->recvs, &plan->selfs,
                                  plan->relay == NULL ? NULL : &plan->relay->recvs};

  for (int l = 0; l < 3 && lists[l] != NULL; l++) {
    for (size_t i = 0; i < lists[l]->n_moves; i++) {
      const xfi_move *m = &lists[l]->moves[i];
      const xfi_class *cls = xfi_moves_class(plan, m->tensor);
      const uint64_t n_bytes = xfi_move_bytes(cls, &cls->recvs, m);

      counted[m->peer].n_bytes += n_bytes;
      counted[m->peer].n_moves++;
      if (cls->broadcast) counted[m->peer].broadcast_bytes += n_bytes;
      if (l == 2) counted[m->peer].relayed_bytes += n_bytes;
    }
  }
}

static bool compare_row(void *context, const xfi_moves *classes, const xfi_traffic_row *row)
{
  seen *s = context;
  xfi_moves *plan = plan_of(s->list, N_RANKS, row->rank, s->options);
  xfer_traffic counted[N_RANKS] = {{0, 0, 0, 0, 0, 0}};
  size_t n = 0;

  count_moves(plan, counted);
  assert_int_equal(row->rank, s->n_rows++);
  assert_int_equal(row->in_bytes, plan->in_bytes);
  assert_int_equal(row->zero_bytes, plan->zero_bytes);
  assert_int_equal(classes->payload_bytes, plan->payload_bytes);
  for (int r = 0; r < N_RANKS; r++)
    n += counted[r].n_moves > 0;
  assert_int_equal(row->n, n);
  for (size_t i = 0; i < row->n; i++) {
    const xfer_traffic *want = &counted[row->from[i].src_rank];

    assert_int_equal(row->from[i].dst_rank, row->rank);
    assert_int_equal(row->from[i].n_bytes, want->n_bytes);
    assert_int_equal(row->from[i].n_moves, want->n_moves);
    assert_int_equal(row->from[i].broadcast_bytes, want->broadcast_bytes);
    assert_int_equal(row->from[i].relayed_bytes, want->relayed_bytes);
  }
  xfi_moves_destroy(plan);
  return true;
}

/* Classes of several tensors: sources that are many, few, also destinations, near; stripes;
 * padding; strided and repeated indices. */
static void fill_list(tensor_list *list)
{
  list->n = list->n_owned = 0;
  add_line(list, "rows", 7, "f32[64,48] (4,2)@0-7:S0,R -> (3,4)@8-19:S1,R");
  add_line(list, "all", 3, "u8[4096] (8)@0-7:R -> (16)@8-23:R");
  add_line(list, "same", 5, "bf16[30,8] (3,2)@0-5:S0,R -> (6)@0-5:S0");
  add_line(list, "large", 2, "u8[64,131072] (2,3)@0-5:S0,R -> (2,4)@16-23:S0,R");
  add_line(list, "strided", 11, "u16[29] (3,2)@1-6:S0f2,S0 -> (4,2)@10-17:S0,R;pad=0:32");
  add_line(list, "swapped", 4, "i64[5,6] (6)@23,21,19,17,15,13:R -> (2,3)@0-5:S1b,S0");
  add_line(list, "boxes", 3,
           "u8[24,5] (4)@0-3:S0 -> {7=[0:12,0:5]+[9:13,2:4];5=[0:12,0:5];6=[12:24,0:5];4=}");
  add_line(list, "one", 1, "f64[] (1)@9:R -> (2,6)@0-11:R,R");
}

static void test_rows_are_those_of_moves(void **state)
{
  (void)state;
  tensor_list list;
  const xfi_moves_options options[] = {
      {XFER_LANE_AUTO, 0, 0, NULL},      {XFER_LANE_DIRECT, 0, 0, NULL},
      {XFER_LANE_BROADCAST, 0, 0, NULL}, {XFER_LANE_DIRECT, 8, 0, NULL},
      {XFER_LANE_AUTO, 5, 0, NULL},      {XFER_LANE_PACKED, 4, 0, NULL},
      {XFER_LANE_BROADCAST, 8, 0, NULL}};

  fill_list(&list);
  for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
    seen s = {&list, &options[o], 0};

    print_message("lane %u, %u ranks per domain\n", options[o].lane, options[o].ranks_per_domain);
    assert_int_equal(xfi_traffic(N_RANKS, list.at, list.n, &options[o], compare_row, &s), XFER_OK);
    assert_int_equal(s.n_rows, N_RANKS);
  }
  free_tensors(&list);
}

static bool stop_at_third(void *context, const xfi_moves *classes, const xfi_traffic_row *row)
{
  (void)classes;
  ++*(int *)context;
  return row->rank < 2;
}

static void test_nobody_is_told_after_enough(void **state)
{
  (void)state;
  tensor_list list;
  int n = 0;

  fill_list(&list);
  assert_int_equal(xfi_traffic(N_RANKS, list.at, list.n, &plain_options, stop_at_third, &n),
                   XFER_OK);
  assert_int_equal(n, 3);
  free_tensors(&list);
}

static bool count_row(void *context, const xfi_moves *classes, const xfi_traffic_row *row)
{
  (void)classes;
  for (size_t i = 0; i < row->n; i++)
    *(uint64_t *)context += row->from[i].n_moves;
  return true;
}

static void test_moves_are_counted_beyond_32_bits(void **state)
{
  (void)state;
  enum { N = 70000 }; /* tensors, and boxes from each of two sources */
  xfer_tensor *tensors = calloc(N, sizeof *tensors);
  tensor_list list = {.n = 0};
  uint64_t n_moves = 0;

  assert_non_null(tensors);
  add_line(&list, "w", 1, "u8[140000] (2):S0f70000 -> (1)@2:R");
  for (size_t i = 0; i < N; i++)
    tensors[i] = list.at[0];
  assert_int_equal(xfi_traffic(3, tensors, N, &plain_options, count_row, &n_moves), XFER_OK);
  assert_int_equal(n_moves, UINT64_C(2) * N * N);
  free_tensors(&list);
  free(tensors);
}

static void test_missing_source_is_named(void **state)
{
  (void)state;
  static const xfer_run runs[] = {{0, 3, 0}};
  static const int64_t first[] = {0, 1};
  static const int64_t lengths[] = {3};
  const xfer_run_table table = {runs, first, lengths, 1, 0};
  tensor_list list = {.n = 0};
  int n = 0;

  add_layouts(&list, "short", 1, layout_of_table(4, &table, NULL), layout_of("u8[4] (2)@1,2:R"));
  assert_int_equal(xfi_traffic(N_RANKS, list.at, list.n, &plain_options, stop_at_third, &n),
                   XFER_ERR_SHAPE);
  assert_non_null(strstr(xfer_last_error(), "\"short\""));
  free_tensors(&list);
}

static bool go_on(void *context, const xfi_moves *classes, const xfi_traffic_row *row)
{
  (void)context, (void)classes, (void)row;
  return true;
}

typedef struct job {
  const tensor_list *list;
  const xfi_moves_options *options;
} job;

static xfer_status survey(void *context)
{
  const job *j = context;

  return xfi_traffic(N_RANKS, j->list->at, j->list->n, j->options, go_on, NULL);
}

static void test_each_failed_allocation_is_survived(void **state)
{
  (void)state;
  static const xfi_moves_options near = {XFER_LANE_DIRECT, 8, 0, NULL};
  tensor_list list;
  tensor_list far = {.n = 0};

  fill_list(&list);
  add_line(&far, "w", 1, "u8[64] (8)@0-7:S0 -> (8)@8-15:R");
  assert_true(fail_each_allocation(survey, &(job){&list, &plain_options}) > 20);
  assert_true(fail_each_allocation(survey, &(job){&list, &near}) > 20);
  assert_true(fail_each_allocation(survey, &(job){&far, &near}) > 20);
  free_tensors(&list);
  free_tensors(&far);
}

/* Of one tensor part 0 gets three bytes and part 64 two, of the other each of 65 parts one. */
static bool is_of_its_parts(void *context, const xfi_moves *classes, const xfi_traffic_row *row)
{
  const uint64_t want = row->rank < 66 ? 3 + 1 : row->rank < 130 ? 2 + 1 : 1;

  (void)classes;
  if (row->rank > 1)
    *(bool *)context = *(bool *)context && row->n == 1 && row->from[0].src_rank == 0 &&
                       row->from[0].n_bytes == want;
  return true;
}

static void test_many_parts_and_those_far_apart_are_kept_apart(void **state)
{
  (void)state;
  tensor_list list = {.n = 0};
  bool right = true;

  add_line(&list, "far", 1, "u8[5] (1)@0:R -> (2,64)@2-129:S0,R");
  add_line(&list, "many", 1, "u8[65] (1)@0:R -> (65,2)@2-131:S0,R");
  assert_int_equal(xfi_traffic(132, list.at, list.n, &plain_options, is_of_its_parts, &right),
                   XFER_OK);
  assert_true(right);
  free_tensors(&list);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rows_are_those_of_moves),
      cmocka_unit_test(test_nobody_is_told_after_enough),
      cmocka_unit_test(test_moves_are_counted_beyond_32_bits),
      cmocka_unit_test(test_missing_source_is_named),
      cmocka_unit_test(test_many_parts_and_those_far_apart_are_kept_apart),
      cmocka_unit_test(test_each_failed_allocation_is_survived),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
