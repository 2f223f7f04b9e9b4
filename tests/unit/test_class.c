/* Flows of one class: what parts have in common, the proof, and both ends alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "class.h"
#include "plans_of.h"

/* The class of tensor 0 of the list, filled for `rank`. */
static xfer_status fill(xfi_class *cls, const tensor_list *list, int rank)
{
  char name[] = "model.w";
  xfi_tensor tensor = {.name = name};
  const xfi_moves plan = {.n_ranks = MAX_PLANS, .rank = rank, .tensors = &tensor, .n_tensors = 1};

  *cls = (xfi_class){.src = list->at[0].src,
                     .dst = list->at[0].dst,
                     .wire_bytes = list->at[0].src->elem_bytes,
                     .n_tensors = 1};
  xfi_scratch scratch = {0};
  const xfer_status st = xfi_class_fill(cls, &plan, &scratch);

  xfi_scratch_free(&scratch);
  return st;
}

static xfi_class filled(const tensor_list *list, int rank)
{
  xfi_class cls;

  if (fill(&cls, list, rank) != XFER_OK) fail_msg("rank %d: %s", rank, xfer_last_error());
  return cls;
}

static void test_flows_of_a_known_class(void **state)
{
  (void)state;
  const xfi_box boxes[] = {{{0, 0}, {2, 2}, {0, 0}, {0, 0}, 0},
                           {{2, 0}, {1, 2}, {0, 0}, {2, 0}, 0},
                           {{0, 2}, {2, 1}, {0, 2}, {0, 2}, 0}};
  tensor_list list = {.n = 0};
  xfi_class cls;

  add_line(&list, "w", 1, "f32[3,3] (2):S0 -> (2)@1-2:S1"); /* rows 0-1, 2; columns 0-1, 2 */
  cls = filled(&list, 1);
  assert_true(cls.in_src);
  assert_true(cls.in_dst);
  assert_int_equal(cls.dst_bytes, 3 * 2 * 4);
  assert_int_equal(cls.zero_bytes, 0);
  assert_int_equal(cls.recvs.n, 2);
  assert_int_equal(cls.recvs.n_boxes, 2);
  assert_int_equal(cls.recvs.at[0].part, 0);
  assert_int_equal(cls.recvs.at[1].part, 1);
  assert_memory_equal(xfi_flows_box(&cls.recvs, 0).lo, boxes[0].lo, 16);
  assert_memory_equal(xfi_flows_box(&cls.recvs, 0).length, boxes[0].length, 16);
  assert_memory_equal(xfi_flows_box(&cls.recvs, 1).lo, boxes[1].lo, 16);
  assert_memory_equal(xfi_flows_box(&cls.recvs, 1).length, boxes[1].length, 16);
  assert_memory_equal(xfi_flows_box(&cls.recvs, 1).src_local, boxes[1].src_local, 16);
  assert_memory_equal(xfi_flows_box(&cls.recvs, 1).dst_local, boxes[1].dst_local, 16);
  xfi_class_free(&cls);
  cls = filled(&list, 0);
  assert_false(cls.in_dst);
  assert_int_equal(cls.recvs.n, 0);
  assert_int_equal(cls.sends.n, 2);
  assert_int_equal(cls.sends.at[1].part, 1);
  assert_memory_equal(xfi_flows_box(&cls.sends, 1).lo, boxes[2].lo, 16);
  assert_memory_equal(xfi_flows_box(&cls.sends, 1).length, boxes[2].length, 16);
  assert_memory_equal(xfi_flows_box(&cls.sends, 1).src_local, boxes[2].src_local, 16);
  assert_int_equal(xfi_flows_box(&cls.sends, 1).dst_local[1], 0);
  xfi_class_free(&cls);
  cls = filled(&list, 7);
  assert_false(cls.in_src);
  assert_int_equal(cls.sends.n + cls.recvs.n, 0);
  xfi_class_free(&cls);
  free_tensors(&list);
}

/* All boxes of a grid with holes, looked for in every part of it. */
static void test_seek_finds_every_box_that_begins_inside_and_no_other(void **state)
{
  (void)state;
  enum { SIDE = 5, N = SIDE * SIDE * SIDE };
  int64_t words[N * 13];
  xfi_flows flows = {.n_dims = 3, .boxes = words};

  for (int64_t i = 0; i < N; i++) { /* ascending */
    const xfi_box box = {.lo = {i / SIDE / SIDE, i / SIDE % SIDE, i % SIDE}, .length = {1, 1, 1}};

    if (i * i % 7 < 3 || i == N - 1) xfi_flows_put(&flows, flows.n_boxes++, &box);
  }
  for (int64_t k = 0; k < N * N; k++) {
    const int64_t lo[3] = {k % N / SIDE / SIDE, k % N / SIDE % SIDE, k % SIDE};
    const int64_t hi[3] = {k / N / SIDE / SIDE + 1, k / N / SIDE % SIDE + 1, k / N % SIDE + 1};
    size_t at = 0;

    for (size_t b = 0; b < flows.n_boxes; b++) {
      const int64_t *x = xfi_flows_lo(&flows, b);

      if (x[0] < lo[0] || x[0] >= hi[0] || x[1] < lo[1] || x[1] >= hi[1] || x[2] < lo[2] ||
          x[2] >= hi[2])
        continue;
      assert_int_equal(xfi_flows_seek(&flows, at, flows.n_boxes, lo, hi), b);
      at = b + 1;
    }
    assert_int_equal(xfi_flows_seek(&flows, at, flows.n_boxes, lo, hi), flows.n_boxes);
  }
}

/* ---- both ends ---- */

static const xfi_flow *find_flow(const xfi_flows *flows, uint32_t part)
{
  for (size_t f = 0; f < flows->n; f++)
    if (flows->at[f].part == part) return &flows->at[f];
  return NULL;
}

static void check_ends(const xfi_class *from, const xfi_class *to, int n_dims)
{
  const xfi_flow *out = find_flow(&from->sends, (uint32_t)to->dst_place.number);
  const xfi_flow *in = find_flow(&to->recvs, (uint32_t)from->src_place.number);

  assert_true((out == NULL) == (in == NULL));
  if (out == NULL) return;
  assert_int_equal(out->n, in->n);
  for (size_t b = 0; b < out->n; b++) {
    const xfi_box x = xfi_flows_box(&from->sends, out->first + b);
    const xfi_box y = xfi_flows_box(&to->recvs, in->first + b);
    const size_t n = (size_t)n_dims * sizeof *x.lo;

    assert_memory_equal(x.lo, y.lo, n);
    assert_memory_equal(x.length, y.length, n);
    assert_memory_equal(x.src_local, y.src_local, n);
    assert_memory_equal(x.dst_local, y.dst_local, n);
  }
}

static void test_both_ends_of_a_flow_have_the_same_boxes(void **state)
{
  (void)state;
  static const char *const lines[] = {
      "u8[13] (4):S0 -> (3)@4-6:S0b",
      "u8[29] (2,3):S0f4,S0 -> (3)@6-8:S0f5",
      "u8[12,10] (2,3):S1f2,S0f3 -> (2,2)@6-9:S0f2,S0",
      "u8[12,10] (2,3):S0,S1;pad=0:14 -> (5)@6-10:S1;pad=1:20",
      "u8[6,5,4] (2,3):S0,S2b -> (2,2)@6-9:S1f2,S2",
  };

  for (size_t c = 0; c < sizeof lines / sizeof *lines; c++) {
    tensor_list list = {.n = 0};
    xfi_class classes[11];

    print_message("%s\n", lines[c]);
    add_line(&list, "w", 1, lines[c]);
    for (int r = 0; r < 11; r++)
      classes[r] = filled(&list, r);
    for (int r = 0; r < 11; r++)
      for (int k = 0; k < 11; k++)
        if (classes[r].in_src && classes[k].in_dst)
          check_ends(&classes[r], &classes[k], classes[r].src->n_dims);
    for (int r = 0; r < 11; r++)
      xfi_class_free(&classes[r]);
    free_tensors(&list);
  }
}

static void test_scalars_have_one_box_and_empty_tensors_none(void **state)
{
  (void)state;
  static const struct {
    const char *line;
    size_t n_boxes;
    uint64_t dst_bytes;
  } cases[] = {
      {"f64[] (1):R -> (1):R", 1, 8},
      {"f64[0] (1):R -> (1):R", 0, 0},
      {"f64[5,0,3] (1):S0 -> (1):S2", 0, 0},
      {"f64[0,3] (1):R -> (1):R;pad=0:2", 0, 48},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    tensor_list list = {.n = 0};
    xfi_class cls;

    print_message("%s\n", cases[c].line);
    add_line(&list, "w", 1, cases[c].line);
    cls = filled(&list, 0);
    assert_int_equal(cls.sends.n_boxes, cases[c].n_boxes);
    assert_int_equal(cls.recvs.n_boxes, cases[c].n_boxes);
    assert_int_equal(cls.dst_bytes, cases[c].dst_bytes);
    assert_int_equal(cls.zero_bytes, cases[c].n_boxes > 0 ? 0 : cases[c].dst_bytes);
    xfi_class_free(&cls);
    free_tensors(&list);
  }
}

static void test_zero_elements_are_counted(void **state)
{
  (void)state;
  static const struct {
    int rank;
    uint64_t dst_bytes;
    uint64_t zero_bytes;
  } cases[] = {{0, 4 * 3 * 2, 0}, {1, 4 * 3 * 2, 0}, {2, 4 * 3 * 2, 2 * 3 * 2}, {3, 24, 24}};
  tensor_list list = {.n = 0};

  add_line(&list, "w", 1, "f16[10,3] (1):R -> (4):S0;pad=0:16");
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    xfi_class cls = filled(&list, cases[c].rank);

    print_message("rank %d\n", cases[c].rank);
    assert_int_equal(cls.dst_bytes, cases[c].dst_bytes);
    assert_int_equal(cls.zero_bytes, cases[c].zero_bytes);
    xfi_class_free(&cls);
  }
  free_tensors(&list);
}

/* ---- the proof ---- */

/* A u8[9,4] whose dim `dim` two source ranks hold by `table`. */
static xfer_layout *partial(int dim, const xfer_run_table *table)
{
  const int axes[] = {2};
  const int64_t shape[] = {9, 4};
  const xfer_placement placement = xfer_shard_runs(dim, table);
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_layout *layout = NULL;
  xfer_mesh *mesh = NULL;

  assert_int_equal(xfi_mesh_create(&mesh, axes, 1, NULL), XFER_OK);
  desc.mesh = mesh;
  desc.dtype = XFER_U8;
  desc.n_dims = 2;
  desc.shape = shape;
  desc.placements = &placement;
  desc.n_placements = 1;
  if (xfi_layout_create(&layout, &desc) != XFER_OK) fail_msg("%s", xfer_last_error());
  xfi_mesh_destroy(mesh);
  return layout;
}

static void test_an_index_without_a_source_is_named_with_tensor_dim_and_rank(void **state)
{
  (void)state;
  static const struct {
    int dim;
    xfer_run runs[2];
    int64_t lengths[2];
    const char *dst;
    int rank;
    const char *text; /* NULL: this rank needs nothing that is missing */
  } cases[] = {
      {0,
       {{0, 4, 0}, {5, 4, 0}},
       {4, 4},
       "u8[9,4] (2)@2-3:S0",
       2,
       "tensor \"model.w\", dim 0: rank 2 needs index 4, which no source part holds"},
      {0, {{0, 4, 0}, {5, 4, 0}}, {4, 4}, "u8[9,4] (2)@2-3:S0", 3, NULL},
      {0,
       {{1, 4, 0}, {5, 4, 0}},
       {4, 4},
       "u8[9,4] (2)@2-3:S0",
       2,
       "tensor \"model.w\", dim 0: rank 2 needs index 0, which no source part holds"},
      {0,
       {{0, 4, 0}, {4, 4, 0}},
       {4, 4},
       "u8[9,4] (2)@2-3:S1",
       3,
       "tensor \"model.w\", dim 0: rank 3 needs index 8, which no source part holds"},
      {0, {{0, 4, 0}, {4, 4, 0}}, {4, 4}, "u8[9,4] (2,4)@2-9:S1,S1", 4, NULL}, /* has no columns */
      {1,
       {{0, 1, 0}, {2, 2, 0}},
       {1, 2},
       "u8[9,4] (2)@2-3:S0f3",
       3,
       "tensor \"model.w\", dim 1: rank 3 needs index 1, which no source part holds"},
      {1,
       {{0, 1, 0}, {0, 1, 0}},
       {1, 1},
       "u8[9,4] (2)@2-3:S1b",
       3,
       "tensor \"model.w\", dim 1: rank 3 needs index 2, which no source part holds"},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    const int64_t first[] = {0, 1, 2};
    const xfer_run_table table = {cases[c].runs, first, cases[c].lengths, 2, 0};
    tensor_list list = {.n = 0};
    xfi_class cls;

    print_message("case %zu\n", c);
    add_layouts(&list, "w", 1, partial(cases[c].dim, &table), layout_of(cases[c].dst));
    if (cases[c].text == NULL) {
      cls = filled(&list, cases[c].rank);
    } else {
      assert_int_equal(fill(&cls, &list, cases[c].rank), XFER_ERR_SHAPE);
      assert_string_equal(xfer_last_error(), cases[c].text);
    }
    xfi_class_free(&cls);
    free_tensors(&list);
  }
}

/* ---- the sources of a broadcast ---- */

static void test_source_flows_hold_each_element_once(void **state)
{
  (void)state;
  const xfer_run runs[] = {{0, 3, 0}, {2, 2, 3}, {1, 5, 0}};
  const int64_t first[] = {0, 2, 3};
  const int64_t lengths[] = {5, 5};
  const xfer_run_table table = {runs, first, lengths, 2, 0};
  tensor_list lists[3] = {{.n = 0}, {.n = 0}, {.n = 0}};

  add_line(&lists[0], "w", 1, "u8[6] (2):S0 -> (1):R");
  add_line(&lists[1], "w", 1, "u8[6] (3):S0f2 -> (1):R");
  add_layouts(&lists[2], "w", 1, layout_of_table(6, &table, NULL), layout_of("u8[6] (1):R"));
  for (int c = 0; c < 3; c++) {
    const xfi_class cls = {.src = lists[c].at[0].src, .dst = lists[c].at[0].dst};
    xfi_flows flows = {.n = 0};
    int seen[6] = {0};

    print_message("case %d\n", c);
    assert_int_equal(xfi_flows_of_sources(&flows, &cls), XFER_OK);
    for (size_t f = 0; f < flows.n; f++)
      assert_true(f == 0 || flows.at[f - 1].part < flows.at[f].part);
    for (size_t b = 0; b < flows.n_boxes; b++)
      for (int64_t x = 0; x < xfi_flows_length(&flows, b)[0]; x++)
        seen[xfi_flows_lo(&flows, b)[0] + x]++;
    for (int x = 0; x < 6; x++)
      assert_int_equal(seen[x], 1);
    xfi_flows_free(&flows);
    free_tensors(&lists[c]);
  }
}

/* ---- failed allocations ---- */

static xfer_status fill_again(void *context)
{
  xfi_class cls;
  xfer_status st = fill(&cls, context, 0);

  xfi_class_free(&cls);
  return st;
}

static xfer_status sources_again(void *context)
{
  const tensor_list *list = context;
  const xfi_class cls = {.src = list->at[0].src, .dst = list->at[0].dst};
  xfi_flows flows = {.n = 0};
  xfer_status st = xfi_flows_of_sources(&flows, &cls);

  xfi_flows_free(&flows);
  return st;
}

/* Replicas say nothing new, and there may be thousands of them. */
static void test_source_flows_look_at_one_replica_of_each_part(void **state)
{
  static const char *const lines[] = {"u8[6] (2):S0 -> (1):R", "u8[6] (512,2):R,S0 -> (1):R"};
  long n_allocations[2];

  (void)state;
  for (int c = 0; c < 2; c++) {
    tensor_list list = {.n = 0};

    add_line(&list, "w", 1, lines[c]);
    n_allocations[c] = fail_each_allocation(sources_again, &list);
    free_tensors(&list);
  }
  assert_int_equal(n_allocations[0], n_allocations[1]);
}

static void test_each_failed_allocation_is_reported(void **state)
{
  (void)state;
  const xfer_run runs[] = {{0, 3, 0}, {1, 3, 0}};
  const int64_t first[] = {0, 1, 2};
  const int64_t lengths[] = {3, 3};
  const xfer_run_table table = {runs, first, lengths, 2, 0};
  tensor_list list = {.n = 0};
  tensor_list tabled = {.n = 0};

  add_line(&list, "w", 1, "u8[60,60] (2,2):S0f10,S1f20 -> (2,2):S0f15,S0");
  add_layouts(&tabled, "w", 1, layout_of_table(4, &table, NULL), layout_of("u8[4] (2):R"));
  assert_true(fail_each_allocation(fill_again, &list) > 20);
  assert_true(fail_each_allocation(sources_again, &list) > 5);
  assert_true(fail_each_allocation(fill_again, &tabled) > 10);
  assert_true(fail_each_allocation(sources_again, &tabled) > 5);
  free_tensors(&list);
  free_tensors(&tabled);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_flows_of_a_known_class),
      cmocka_unit_test(test_seek_finds_every_box_that_begins_inside_and_no_other),
      cmocka_unit_test(test_both_ends_of_a_flow_have_the_same_boxes),
      cmocka_unit_test(test_scalars_have_one_box_and_empty_tensors_none),
      cmocka_unit_test(test_zero_elements_are_counted),
      cmocka_unit_test(test_an_index_without_a_source_is_named_with_tensor_dim_and_rank),
      cmocka_unit_test(test_source_flows_hold_each_element_once),
      cmocka_unit_test(test_source_flows_look_at_one_replica_of_each_part),
      cmocka_unit_test(test_each_failed_allocation_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
