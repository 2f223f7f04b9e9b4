/* Layouts by boxes: what is refused, what is said of them, and how they travel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "boxes.h"
#include "error.h"
#include "problem.h"
#include "serial.h"

static const int64_t shape[] = {4, 6};

/* Of ranks 0 to n_ranks - 1. */
static xfer_status make(xfer_layout **layout, int n_ranks, const int64_t *first,
                        const int64_t *bounds)
{
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_mesh *mesh = NULL;
  xfer_status st;

  assert_int_equal(xfi_mesh_create(&mesh, &n_ranks, 1, NULL), XFER_OK);
  desc.mesh = mesh;
  desc.dtype = XFER_U8;
  desc.n_dims = 2;
  desc.shape = shape;
  desc.first = first;
  desc.bounds = bounds;
  st = xfi_layout_create_boxes(layout, &desc);
  xfi_mesh_destroy(mesh);
  return st;
}

static xfer_layout *of_line(const char *side)
{
  xfer_layout *layout = NULL;
  char line[512];

  snprintf(line, sizeof line, "u8[4,6] %s", side);
  assert_int_equal(xfi_layout_parse(&layout, line), XFER_OK);
  return layout;
}

static void test_what_is_no_box_is_refused(void **state)
{
  (void)state;
  static const struct {
    int64_t first[3];
    int64_t bounds[8];
    xfer_status st;
    const char *text;
  } cases[] = {
      {{0, 1, 2},
       {0, 0, 4, 6, 2, 3, 1, 6},
       XFER_ERR_SHAPE,
       "box 0 of rank 1 runs from 2 to 1 in dim 0; want 0 <= lo <= hi < 2^62"},
      {{0, 2, 2},
       {0, 0, 4, 6, 0, -1, 4, 6},
       XFER_ERR_SHAPE,
       "box 1 of rank 0 runs from -1 to 6 in dim 1; want 0 <= lo <= hi < 2^62"},
      {{0, 1, 2},
       {0, 0, 4, 6, 0, 0, 1, INT64_MAX},
       XFER_ERR_SHAPE,
       "box 0 of rank 1 runs from 0 to 9223372036854775807 in dim 1; want 0 <= lo <= hi < 2^62"},
      {{0, 1, 2},
       {0, 0, 4, 6, 0, 0, INT64_C(1) << 40, INT64_C(1) << 40},
       XFER_ERR_OVERFLOW,
       "the boxes of rank 1 up to box 0: their bytes do not fit in 62 bits"},
      {{0, 2, 2},
       {0, 0, 1, INT64_MAX / 2, 0, 0, 1, 5},
       XFER_ERR_OVERFLOW,
       "the boxes of rank 0 up to box 1: their bytes do not fit in 62 bits"},
      {{0, 2, 2},
       {0, 0, 1, INT64_MAX / 2, 0, 0, 2, INT64_MAX / 2},
       XFER_ERR_OVERFLOW,
       "the boxes of rank 0 up to box 1: their bytes do not fit in 62 bits"},
      {{0, 1, INT32_MAX}, {0}, XFER_ERR_ARG, "2147483647 boxes in one layout"},
      {{0, 2, 1}, {0}, XFER_ERR_ARG, "boxes: first[2] is below first[1]"},
      {{1, 2, 2}, {0}, XFER_ERR_ARG, "boxes: first does not begin at 0"},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    xfer_layout *layout = NULL;

    assert_int_equal(make(&layout, 2, cases[c].first, cases[c].bounds), cases[c].st);
    assert_string_equal(xfer_last_error(), cases[c].text);
    assert_null(layout);
  }
}

/* Descriptions of flat ranges, one way at a time wrong; then of boxes. */
static void test_what_describes_no_boxes_is_refused(void **state)
{
  (void)state;
  static const int64_t none_of_7[] = {7, -1};
  static const int64_t huge[] = {INT64_MAX, 2};
  static const int64_t huge_of_none[] = {INT64_MAX, 0};
  static const int64_t whole[] = {0, 24};
  static const int64_t below[] = {-1, 24};
  static const int64_t far[] = {0, INT64_MAX};
  static const int64_t first[] = {0, 1};
  const size_t size = sizeof(xfer_boxes_desc);
  const struct {
    xfer_boxes_desc desc;
    bool listed;
    xfer_status st;
    const char *text;
  } cases[] = {
#define DESC(n_bytes, dims, sizes, starts, ranges)                                                 \
  {.struct_size = (n_bytes),                                                                       \
   .dtype = XFER_U8,                                                                               \
   .n_dims = (dims),                                                                               \
   .shape = (sizes),                                                                               \
   .first = (starts),                                                                              \
   .bounds = (ranges)}
      {DESC(0, 2, shape, NULL, whole), false, XFER_ERR_ARG, "struct_size is 0"},
      {DESC(size, -1, shape, NULL, whole), false, XFER_ERR_ARG, "a tensor of -1 dims"},
      {DESC(size, 9, shape, NULL, whole), false, XFER_ERR_ARG, "a tensor of 9 dims"},
      {DESC(size, 2, shape, NULL, NULL), false, XFER_ERR_ARG, "bounds is NULL"},
      {DESC(size, 2, NULL, NULL, whole), false, XFER_ERR_ARG, "shape is NULL"},
      {DESC(size, 2, shape, first, whole), false, XFER_ERR_ARG, "first is not"},
      {DESC(size, 2, none_of_7, NULL, whole), false, XFER_ERR_SHAPE, "dim 1: size -1"},
      {DESC(size, 2, huge, NULL, whole), false, XFER_ERR_OVERFLOW, "dim 1: size 2"},
      {DESC(size, 2, huge_of_none, NULL, whole), false, XFER_ERR_OVERFLOW,
       "the end of a dim of 922"},
      {DESC(size, 2, shape, NULL, below), false, XFER_ERR_SHAPE, "a flat range from -1 to 24"},
      {DESC(size, 2, shape, NULL, far), false, XFER_ERR_SHAPE, "a flat range from 0 to 922"},
      {DESC(size, 0, NULL, NULL, whole), false, XFER_ERR_UNSUPPORTED, "the end of a scalar"},
      {DESC(size + 1, 2, shape, NULL, whole), false, XFER_ERR_ARG, "struct_size is "},
      {DESC(0, 2, shape, first, whole), true, XFER_ERR_ARG, "struct_size is 0"},
      {DESC(size, 2, shape, NULL, whole), true, XFER_ERR_ARG, "first is NULL"},
#undef DESC
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    xfer_layout *layout = NULL;

    print_message("%s\n", cases[c].text);
    assert_int_equal((cases[c].listed ? xfi_layout_create_boxes
                                      : xfi_layout_create_flat)(&layout, &cases[c].desc),
                     cases[c].st);
    assert_non_null(strstr(xfer_last_error(), cases[c].text));
    assert_null(layout);
  }
}

/* A range, and one that ends in the padding, with each allocation failing once. */
static void test_flat_ranges_survive_each_failed_allocation(void **state)
{
  (void)state;
  static const int64_t ranges[][2] = {{5, 23}, {0, 26}};

  for (int i = 0; i < 2; i++) {
    xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
    xfer_layout *layout = NULL;
    xfer_status st = XFER_ERR_NOMEM;

    desc.dtype = XFER_U8;
    desc.n_dims = 2;
    desc.shape = shape;
    desc.bounds = ranges[i];
    for (long n = 0; st != XFER_OK && n < 100; n++) {
      xfi_alloc_fail_after(n);
      st = xfi_layout_create_flat(&layout, &desc);
      xfi_alloc_fail_after(-1);
      assert_true(st == XFER_ERR_NOMEM || layout != NULL);
    }
    assert_int_equal(st, XFER_OK);
    xfi_layout_destroy(layout);
  }
}

/* Of a scalar a rank has one box, or none that could be stacked. */
static void test_boxes_of_a_scalar_stack_where_there_are_any(void **state)
{
  (void)state;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;

  assert_int_equal(xfi_problem_parse(&src, &dst, "u8[] {0=[];1=} -> (1):R"), XFER_OK);
  assert_true(xfi_boxes_stack(NULL, src, 0));
  assert_false(xfi_boxes_stack(NULL, src, 1));
  xfi_layout_destroy(src);
  xfi_layout_destroy(dst);
}

/* Boxes that all replicas hold are one part; a box that only some hold is another. */
static void test_parts_are_boxes_with_the_same_holders(void **state)
{
  (void)state;
  xfer_layout *l = of_line("{5=[0:2,0:6]+[2:4,0:3];3=[2:4,0:3]+[2:4,3:6];9=[2:4,0:3];1=}");
  const xfi_boxes *b = l->boxes;

  assert_int_equal(b->n_units, 3);
  assert_int_equal(b->n_parts, 3);
  assert_false(b->overlap);
  for (uint32_t u = 0; u < b->n_units; u++) {
    const int64_t *at = xfi_unit_bounds(l, u);
    const bool shared = at[0] == 2 && at[1] == 0;

    assert_int_equal(xfi_part_n_replicas(l, b->part_of[u]), shared ? 3 : 1);
    if (!shared) continue;
    assert_int_equal(xfi_part_rank(l, b->part_of[u], 0), 5);
    assert_int_equal(xfi_part_rank(l, b->part_of[u], 2), 9);
    assert_int_equal(xfi_part_replica(l, b->part_of[u], 3), 1);
    assert_int_equal(xfi_part_replica(l, b->part_of[u], 1), -1);
    assert_int_equal(xfi_boxes_listed(l, u, 3), 2);
  }
  xfi_layout_destroy(l);
}

/* The boxes that are read of overlapping ones hold every element once, from the first listed. */
static void test_each_element_is_read_from_the_first_box_that_has_it(void **state)
{
  (void)state;
  xfer_layout *l = of_line("{0=[1:3,1:4]+[0:2,0:2];1=[0:4,0:6];2=[1:3,1:4]+[3:4,5:6]}");
  const xfi_boxes *b = l->boxes;
  int seen[4][6] = {{0}};
  xfi_bounds list = {NULL, 0, 0};

  assert_true(b->overlap);
  for (uint32_t u = 0; u < b->n_units; u++) {
    list.n = 0;
    assert_int_equal(xfi_boxes_read_from(&list, l, u), XFER_OK);
    for (size_t i = 0; i < list.n; i++)
      for (int64_t x = list.at[4 * i]; x < list.at[4 * i + 2]; x++)
        for (int64_t y = list.at[4 * i + 1]; y < list.at[4 * i + 3]; y++) {
          const bool first = x >= 1 && x < 3 && y >= 1 && y < 4;
          const bool second = !first && x < 2 && y < 2;

          seen[x][y]++;
          assert_int_equal(xfi_part_first(l, b->part_of[u]), first || second ? 0 : 1);
        }
  }
  for (int x = 0; x < 4; x++)
    for (int y = 0; y < 6; y++)
      assert_int_equal(seen[x][y], 1);
  xfi_free(list.at);
  xfi_layout_destroy(l);
}

/* A grid, shifted every other row so that boxes overlap no others of it, against all boxes in turn:
 * as many as the tree needs one, two and three levels for. */
static void test_the_tree_finds_what_meets_a_box(void **state)
{
  (void)state;
  static const int sides[] = {0, 1, 4, 5, 16, 17, 20};

  for (size_t c = 0; c < sizeof sides / sizeof *sides; c++) {
    const int n = sides[c];
    const int64_t size[] = {60, 64};
    int64_t bounds[20 * 20 * 4];
    xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
    xfer_layout *l = NULL;
    xfi_units found = {NULL, 0, 0};

    for (int i = 0; i < n * n; i++) {
      const int64_t row = i / n;
      const int64_t column = 3 * (i % n) + row % 2;
      const int64_t box[] = {3 * row, column, 3 * row + 2, column + 3};

      memcpy(bounds + 4 * i, box, sizeof box);
    }
    desc.dtype = XFER_U8;
    desc.n_dims = 2;
    desc.shape = size;
    desc.first = (const int64_t[]){0, n * n};
    desc.bounds = bounds;
    assert_int_equal(xfi_layout_create_boxes(&l, &desc), XFER_OK);
    for (int64_t lo = 0; lo < 60; lo++) {
      const int64_t asked[] = {lo, (lo * 7) % 60, lo + 1 + lo % 5, (lo * 7) % 60 + 4};
      size_t k = 0;

      found.n = 0;
      assert_int_equal(xfi_boxes_meet(&found, l, asked), XFER_OK);
      for (uint32_t u = 0; u < l->boxes->n_units; u++) {
        if (!xfi_bounds_meet(xfi_unit_bounds(l, u), asked, 2)) continue;
        assert_true(k < found.n);
        assert_int_equal(found.at[k++], u);
      }
      assert_int_equal(k, found.n);
    }
    xfi_free(found.at);
    xfi_layout_destroy(l);
  }
}

/* Every range of a tensor: at most 2 n - 1 boxes, which are its elements in order. */
static void test_a_flat_range_is_few_boxes_in_order(void **state)
{
  (void)state;
  static const int64_t sizes[] = {3, 4, 2, 5};
  const int64_t n = 3 * 4 * 2 * 5;

  for (int64_t begin = 0; begin <= n + 2; begin++) {
    for (int64_t end = begin; end <= n + 4; end++) {
      xfi_bounds list = {NULL, 0, 0};
      int64_t at = begin;

      assert_int_equal(xfi_bounds_add_flat(&list, 4, sizes, begin, end), XFER_OK);
      assert_in_range(list.n, 0, end > n ? 8 : 7);
      for (size_t i = 0; i < list.n; i++) {
        const int64_t *b = list.at + 8 * i;
        const int64_t flat = ((b[0] * 4 + b[1]) * 2 + b[2]) * 5 + b[3];

        assert_true(flat == at || (flat >= n && at >= n));
        at += xfi_bounds_elems(b, 4);
      }
      assert_int_equal(at, end);
      xfi_free(list.at);
    }
  }
}

static void test_a_layout_by_boxes_travels(void **state)
{
  (void)state;
  static const char *const sides[] = {
      "{0=[0:2,0:6];1=[2:4,0:6]}",
      "{0=[0:2,0:6];2=[2:4,0:6]}",
      "{1=[0:2,0:6];0=[2:4,0:6]}",
      "{0=[0:2,0:6]+[2:4,0:6]}",
      "{0=[2:4,0:6]+[0:2,0:6]}",
      "{0=;1=}",
      "(2):S0",
  };
  enum { N = sizeof sides / sizeof *sides };
  xfer_layout *layouts[N];

  for (int i = 0; i < N; i++) {
    xfi_bytes made = {NULL, 0, 0};
    xfer_layout *back = NULL;

    layouts[i] = of_line(sides[i]);
    assert_int_equal(xfi_layout_write(&made, layouts[i]), XFER_OK);
    assert_int_equal(xfi_layout_read(&back, made.at, made.n), XFER_OK);
    assert_memory_equal(back->digest, layouts[i]->digest, sizeof back->digest);
    xfi_layout_destroy(back);
    for (size_t cut = 0; cut < made.n; cut += 8) {
      back = NULL;
      assert_int_equal(xfi_layout_read(&back, made.at, cut), XFER_ERR_MISMATCH);
      assert_null(back);
    }
    for (size_t at = 0; at < made.n; at++) { /* nothing that is wrong may do harm */
      made.at[at] ^= 0xff;
      if (xfi_layout_read(&back, made.at, made.n) == XFER_OK) xfi_layout_destroy(back);
      made.at[at] ^= 0xff;
    }
    xfi_bytes_free(&made);
    for (int k = 0; k < i; k++)
      assert_memory_not_equal(layouts[i]->digest, layouts[k]->digest, sizeof layouts[i]->digest);
  }
  for (int i = 0; i < N; i++)
    xfi_layout_destroy(layouts[i]);
}

/* The public queries. */
static void test_queries_answer_for_boxes(void **state)
{
  (void)state;
  xfer_layout *l = of_line("{0=[0:2,0:3]+[2:4,0:3];1=[0:1,0:6]+[1:4,0:2];2=[3:5,4:8];3=}");
  int64_t local[2];
  int64_t bounds[8] = {0};
  xfer_run runs[2];
  xfer_owner owners[4];
  size_t n = 0;

  assert_int_equal(xfer_layout_local_shape(l, 0, local), XFER_OK);
  assert_true(local[0] == 4 && local[1] == 3); /* stacked */
  assert_int_equal(xfer_layout_local_shape(l, 1, local), XFER_ERR_UNSUPPORTED);
  assert_int_equal(xfer_layout_local_shape(l, 2, local), XFER_OK);
  assert_true(local[0] == 2 && local[1] == 4); /* padded */
  assert_int_equal(xfer_layout_local_shape(l, 3, local), XFER_OK);
  assert_true(local[0] == 0 && local[1] == 0);
  assert_int_equal(xfer_layout_local_shape(l, 4, local), XFER_ERR_ARG);
  assert_int_equal(xfer_layout_runs(l, 2, 1, runs, 2, &n), XFER_OK);
  assert_true(n == 1 && runs[0].global == 4 && runs[0].length == 2 && runs[0].local == 0);
  assert_int_equal(xfer_layout_runs(l, 1, 0, runs, 2, &n), XFER_ERR_UNSUPPORTED);
  assert_int_equal(xfer_layout_boxes(l, 1, bounds, 1, &n), XFER_OK);
  assert_true(n == 2 && bounds[2] == 1 && bounds[3] == 6 && bounds[4] == 0);
  assert_int_equal(xfer_layout_owners(l, (int64_t[]){2, 1}, owners, 4, &n), XFER_OK);
  assert_int_equal(n, 2);
  for (size_t i = 0; i < n; i++)
    assert_int_equal(owners[i].local[0], 2); /* rank 0: first row of its second box; 1 likewise */
  xfi_layout_destroy(l);
}

static void test_a_global_index_of_boxes_goes_by_their_list(void **state)
{
  (void)state;
  static const struct {
    int rank, n;
    int64_t index[9][2];
  } cases[] = {
      {0, 6, {{1, 4}, {1, 5}, {-1, -1}, {2, 4}, {2, 5}, {-1, -1}}}, /* to column 7 of 6 */
      {1, 0, {{0}}},
      {2, 4, {{3, 5}, {0, 0}, {0, 1}, {0, 0}}}, /* an empty box before the last, a twofold one */
      {3, 9, {{3, 1}, {3, 2}, {3, 3}, {3, 4}, {3, 5}, {-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}}},
  };
  xfer_layout *l =
      of_line("{0=[1:3,4:7];1=;2=[3:4,5:6]+[0:1,0:2]+[2:2,0:6]+[0:1,0:1];3=f19:28;4=[9:9,0:6]}");

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    int64_t index[2] = {-3, -3};

    assert_int_equal(xfer_layout_local_bytes(l, cases[c].rank), cases[c].n);
    for (int i = 0; i < cases[c].n; i++) {
      assert_int_equal(xfer_layout_global_index(l, cases[c].rank, i, index), XFER_OK);
      assert_memory_equal(index, cases[c].index[i], sizeof index);
    }
    assert_int_equal(xfer_layout_global_index(l, cases[c].rank, cases[c].n, index), XFER_ERR_ARG);
  }
  assert_int_equal(xfer_layout_local_bytes(l, 4), 0);
  assert_int_equal(xfer_layout_local_bytes(l, 5), 0);
  xfi_layout_destroy(l);
}

/* The runs of two dims make 2^32 boxes, which would fill more memory than there is. */
static void test_boxes_are_counted_without_making_them_all(void **state)
{
  static const int64_t expected[2][4] = {{0, 0, 1, 1}, {0, 2, 1, 3}};
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  int64_t bounds[2][4];
  size_t n = 0;

  (void)state;
  assert_int_equal(xfi_problem_parse(&src, &dst,
                                     "u8[131072,131072] (2,2):S0f65536,S1f65536 -> "
                                     "(2,2):S0f65536,S1f65536"),
                   XFER_OK);
  assert_int_equal(xfer_layout_boxes(src, 0, NULL, 0, &n), XFER_OK);
  assert_true(n == (size_t)1 << 32);
  assert_int_equal(xfer_layout_boxes(src, 0, bounds[0], 2, &n), XFER_OK);
  assert_true(n == (size_t)1 << 32);
  assert_memory_equal(bounds, expected, sizeof expected);
  xfi_layout_destroy(src);
  xfi_layout_destroy(dst);
  assert_int_equal(xfi_problem_parse(&src, &dst,
                                     "u8[8192,8192,8192,8192,512] (2,2,2,2,2):"
                                     "S0f4096,S1f4096,S2f4096,S3f4096,S4f256 -> (1):R"),
                   XFER_OK);
  assert_int_equal(xfer_layout_boxes(src, 0, NULL, 0, &n), XFER_OK);
  assert_true(n == (size_t)1 << 56);
  xfi_layout_destroy(src);
  xfi_layout_destroy(dst);
}

/* Of either kind, those that hold nothing among them. */
static void test_the_ranks_of_a_layout_are_those_of_its_mesh_in_order(void **state)
{
  (void)state;
  static const struct {
    const char *side;
    int n, ranks[6];
  } cases[] = {
      {"(3):S0", 3, {0, 1, 2}},
      {"(2,3)@7,3-5,9,0:R,S1", 6, {7, 3, 4, 5, 9, 0}},
      {"{4=[0:4,0:6];0=;2=f3:3}", 3, {4, 0, 2}},
  };
  xfer_boxes_desc own = XFER_BOXES_DESC_INIT;
  xfer_layout *l = NULL;
  int ranks[6] = {-1, -1, -1, -1, -1, -1};

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    l = of_line(cases[c].side);
    assert_int_equal(xfer_layout_ranks(l, NULL), cases[c].n);
    assert_int_equal(xfer_layout_ranks(l, ranks), cases[c].n);
    assert_memory_equal(ranks, cases[c].ranks, (size_t)cases[c].n * sizeof *ranks);
    xfi_layout_destroy(l);
  }
  own.dtype = XFER_U8;
  own.n_dims = 2;
  own.shape = shape;
  own.first = (int64_t[]){0, 0};
  assert_int_equal(xfer_layout_create_boxes(&l, &own), XFER_OK);
  assert_int_equal(xfer_layout_ranks(l, ranks), 1);
  assert_int_equal(ranks[0], 0);
  xfi_layout_destroy(l);
}

/* Made, planned and given back, with each allocation failing once. */
static void test_a_failed_allocation_is_reported(void **state)
{
  (void)state;
  const char *line = "u8[4,6] {0=[1:3,1:4]+[0:2,0:2];1=[0:4,0:6]} -> {0=f0:7;1=f5:26}";
  xfer_status st = XFER_ERR_NOMEM;

  for (long n = 0; st != XFER_OK && n < 1000; n++) {
    xfer_layout *src = NULL;
    xfer_layout *dst = NULL;
    xfer_plan *plan = NULL;

    xfi_alloc_fail_after(n);
    st = xfer_problem_parse(&src, &dst, line);
    if (st == XFER_OK)
      st = xfer_plan_simulate(&plan, 2, 1, &(xfer_tensor){"t", src, dst, {0}}, 1, NULL);
    if (st != XFER_OK) assert_int_equal(st, XFER_ERR_NOMEM);
    xfer_plan_destroy(plan);
    xfer_layout_destroy(src);
    xfer_layout_destroy(dst);
  }
  xfi_alloc_fail_after(-1);
  assert_int_equal(st, XFER_OK);
}

/* What has no source is named with the box that needs it. */
static void test_what_has_no_source_is_named_with_its_box(void **state)
{
  (void)state;
  static const char *const lines[][2] = {
      {"u8[4,6] {0=[0:2,0:6];1=[2:4,0:5]} -> {1=[0:1,0:1]+[1:4,3:6]}",
       "tensor \"t\": rank 1 needs [2:4,5:6] of its box [1:4,3:6], which no source holds"},
      {"u8[4,6] {0=[0:2,0:6];1=[2:4,0:5]} -> (2):R",
       "tensor \"t\": rank 1 needs [2:4,5:6] of its box [0:4,0:6], which no source holds"},
      {"u8[4,6] {0=[0:2,0:6]+[2:4,0:5]} -> (1)@1:R",
       "tensor \"t\": rank 1 needs [2:4,5:6] of its box [0:4,0:6], which no source holds"},
  };

  for (size_t c = 0; c < sizeof lines / sizeof *lines; c++) {
    xfer_layout *src = NULL;
    xfer_layout *dst = NULL;
    xfer_plan *plan = NULL;

    assert_int_equal(xfer_problem_parse(&src, &dst, lines[c][0]), XFER_OK);
    assert_int_equal(xfer_plan_simulate(&plan, 2, 1, &(xfer_tensor){"t", src, dst, {0}}, 1, NULL),
                     XFER_ERR_SHAPE);
    assert_string_equal(xfer_last_error(), lines[c][1]);
    xfer_status st = XFER_ERR_NOMEM;
    for (long n = 0; st == XFER_ERR_NOMEM; n++) {
      xfi_alloc_fail_after(n);
      st = xfer_plan_simulate(&plan, 2, 1, &(xfer_tensor){"t", src, dst, {0}}, 1, NULL);
      xfi_alloc_fail_after(-1);
    }
    assert_int_equal(st, XFER_ERR_SHAPE);
    xfer_layout_destroy(src);
    xfer_layout_destroy(dst);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_no_box_is_refused),
      cmocka_unit_test(test_what_describes_no_boxes_is_refused),
      cmocka_unit_test(test_flat_ranges_survive_each_failed_allocation),
      cmocka_unit_test(test_boxes_of_a_scalar_stack_where_there_are_any),
      cmocka_unit_test(test_parts_are_boxes_with_the_same_holders),
      cmocka_unit_test(test_each_element_is_read_from_the_first_box_that_has_it),
      cmocka_unit_test(test_the_tree_finds_what_meets_a_box),
      cmocka_unit_test(test_a_flat_range_is_few_boxes_in_order),
      cmocka_unit_test(test_a_layout_by_boxes_travels),
      cmocka_unit_test(test_queries_answer_for_boxes),
      cmocka_unit_test(test_a_global_index_of_boxes_goes_by_their_list),
      cmocka_unit_test(test_boxes_are_counted_without_making_them_all),
      cmocka_unit_test(test_the_ranks_of_a_layout_are_those_of_its_mesh_in_order),
      cmocka_unit_test(test_a_failed_allocation_is_reported),
      cmocka_unit_test(test_what_has_no_source_is_named_with_its_box),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
