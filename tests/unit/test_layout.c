/* Layouts: everything that is refused, places of ranks, digests, sizes past 32 bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layouts_of.h"

/* ---- a description that is right, and one way at a time to make it wrong ---- */

typedef struct description {
  xfer_layout_desc desc;
  xfer_mesh *mesh; /* (2,3) */
  int64_t shape[9];
  int64_t padded[9];
  xfer_placement placements[2];
  int32_t order[2];
  xfer_run runs[2];
  int64_t first[3];
  int64_t lengths[2];
  xfer_run_table table;
} description;

/* i16[6,8] padded to [6,12] on (2,3): S1, S1b in the order 1, 0. */
static void describe(description *d)
{
  const int axes[] = {2, 3};

  memset(d, 0, sizeof *d);
  assert_int_equal(xfi_mesh_create(&d->mesh, axes, 2, NULL), XFER_OK);
  d->desc = (xfer_layout_desc)XFER_LAYOUT_DESC_INIT;
  d->desc.mesh = d->mesh;
  d->desc.dtype = XFER_I16;
  d->desc.n_dims = 2;
  d->desc.shape = d->shape;
  d->desc.padded_shape = d->padded;
  d->desc.placements = d->placements;
  d->desc.n_placements = 2;
  d->desc.order = d->order;
  d->desc.n_order = 2;
  d->shape[0] = d->padded[0] = 6;
  d->shape[1] = 8;
  d->padded[1] = 12;
  d->placements[0] = xfer_shard(-1);
  d->placements[1] = xfer_shard_rule(1, XFER_BALANCED);
  d->order[0] = 1;
  d->runs[0] = (xfer_run){0, 2, 0};
  d->runs[1] = (xfer_run){2, 4, 0};
  d->first[1] = 1;
  d->first[2] = 2;
  d->lengths[0] = 2;
  d->lengths[1] = 4;
  d->table = (xfer_run_table){d->runs, d->first, d->lengths, 2, 0};
}

typedef void (*change)(description *d);

static void no_mesh(description *d)
{
  d->desc.mesh = NULL;
}
static void no_size(description *d)
{
  d->desc.struct_size = 0;
}
static void dtype_17(description *d)
{
  d->desc.dtype = 17;
}
static void dims_9(description *d)
{
  d->desc.n_dims = 9;
}
static void dims_below_0(description *d)
{
  d->desc.n_dims = -1;
}
static void no_shape(description *d)
{
  d->desc.shape = NULL;
}
static void size_below_0(description *d)
{
  d->shape[1] = -3;
}
static void padded_below_size(description *d)
{
  d->padded[1] = 7;
}
static void one_placement(description *d)
{
  d->desc.n_placements = 1;
}
static void no_placements(description *d)
{
  d->desc.placements = NULL;
}
static void short_order(description *d)
{
  d->desc.n_order = 1;
}
static void order_without_list(description *d)
{
  d->desc.order = NULL;
}
static void order_twice(description *d)
{
  d->order[1] = 1;
}
static void order_past_axes(description *d)
{
  d->order[1] = 2;
}
static void order_below_0(description *d)
{
  d->order[0] = -1;
}
static void kind_4(description *d)
{
  d->placements[1].kind = 4;
}
static void kind_below_0(description *d)
{
  d->placements[1].kind = -1;
}
static void reserved(description *d)
{
  d->placements[0].reserved = 1;
}
static void dim_2(description *d)
{
  d->placements[0].dim = 2;
}
static void dim_below(description *d)
{
  d->placements[0].dim = -3;
}
static void dim_of_scalar(description *d)
{
  d->desc.n_dims = 0;
}
static void rule_3(description *d)
{
  d->placements[1].rule = 3;
}
static void rule_below_0(description *d)
{
  d->placements[1].rule = -1;
}
static void factor_0(description *d)
{
  d->placements[1] = xfer_shard_strided(0, 0);
}
static void factor_huge(description *d)
{
  d->placements[1] = xfer_shard_strided(0, INT64_C(1) << 25);
  d->shape[0] = d->padded[0] = INT64_C(1) << 26;
}
static void even_5(description *d)
{
  d->placements[0] = xfer_shard_rule(0, XFER_EVEN);
  d->shape[0] = 5;
  d->padded[0] = 5;
}
static void even_of_a_part(description *d) /* 12 by 3, then 4 by 2: right; 7 by 3: 3, 2, 2 */
{
  d->placements[0] = xfer_shard_rule(1, XFER_EVEN);
  d->shape[1] = d->padded[1] = 7;
}
static void no_table(description *d)
{
  d->placements[0] = xfer_shard_runs(0, NULL);
}
static void table_of_2_for_3(description *d)
{
  d->placements[1] = xfer_shard_runs(0, &d->table);
}
static void table_too_long(description *d)
{
  d->placements[0] = xfer_shard_runs(0, &d->table);
  d->shape[0] = d->padded[0] = 5;
}
static void table_itself_wrong(description *d)
{
  d->placements[0] = xfer_shard_runs(0, &d->table);
  d->runs[0].length = 0;
}
static void bytes_past_62_bits(description *d)
{
  d->padded[0] = INT64_C(1) << 58; /* times 12 times 2 */
}
static void padded_past_62_bits(description *d)
{
  d->padded[1] = INT64_MAX;
}
static void product_past_64_bits(description *d)
{
  d->padded[0] = d->padded[1] = INT64_C(1) << 40;
}
static void part_past_62_bits(description *d) /* redundant, so the part is larger than the dim */
{
  d->placements[0] = xfer_shard_runs(0, &d->table);
  d->table.allow_zero = 1;
  d->lengths[1] = INT64_C(1) << 60;
}
static void dim_of_a_part_past_62_bits(description *d)
{
  part_past_62_bits(d);
  d->lengths[1] = INT64_MAX / 2;
}

static const struct {
  change make_wrong;
  xfer_status st;
  const char *text;
} wrongs[] = {
    {no_size, XFER_ERR_ARG, "xfer_layout_desc.struct_size is 0; begin with its _INIT macro"},
    {no_mesh, XFER_ERR_ARG, "a layout without a mesh: xfer_layout_desc.mesh is NULL"},
    {dtype_17, XFER_ERR_ARG, "dtype 17 is not known; want an xfer_dtype"},
    {dims_9, XFER_ERR_ARG, "a tensor of 9 dims; 0 to 8 are possible"},
    {dims_below_0, XFER_ERR_ARG, "a tensor of -1 dims; 0 to 8 are possible"},
    {no_shape, XFER_ERR_ARG, "a tensor of 2 dims without a shape"},
    {size_below_0, XFER_ERR_SHAPE, "dim 1 has size -3"},
    {padded_below_size, XFER_ERR_SHAPE, "dim 1 has size 8 but is padded to 7"},
    {one_placement, XFER_ERR_ARG, "1 placements for a mesh of 2 axes; want one for each axis"},
    {no_placements, XFER_ERR_ARG, "2 placements at NULL"},
    {short_order, XFER_ERR_ARG, "an order of 1 axes for a mesh of 2; it lists every axis, or none"},
    {order_without_list, XFER_ERR_ARG, "an order of 2 axes at NULL"},
    {order_twice, XFER_ERR_ARG, "the order does not list each of 2 axes once: entry 1 is 1"},
    {order_past_axes, XFER_ERR_ARG, "the order does not list each of 2 axes once: entry 1 is 2"},
    {order_below_0, XFER_ERR_ARG, "the order does not list each of 2 axes once: entry 0 is -1"},
    {kind_4, XFER_ERR_ARG, "axis 1 has placement kind 4, which is no xfer_placement_kind"},
    {kind_below_0, XFER_ERR_ARG, "axis 1 has placement kind -1, which is no xfer_placement_kind"},
    {reserved, XFER_ERR_ARG, "axis 0: a reserved field is not 0"},
    {dim_2, XFER_ERR_ARG,
     "axis 0 shards dim 2 of a tensor of 2 dims; dims count from 0, or from the end as -1"},
    {dim_below, XFER_ERR_ARG,
     "axis 0 shards dim -3 of a tensor of 2 dims; dims count from 0, or from the end as -1"},
    {dim_of_scalar, XFER_ERR_ARG,
     "axis 1 shards dim 1 of a tensor of 0 dims; dims count from 0, or from the end as -1"},
    {rule_3, XFER_ERR_ARG, "axis 1 has split rule 3, which is no xfer_split_rule"},
    {rule_below_0, XFER_ERR_ARG, "axis 1 has split rule -1, which is no xfer_split_rule"},
    {factor_0, XFER_ERR_ARG, "axis 1 has split factor 0; want at least 1"},
    {factor_huge, XFER_ERR_UNSUPPORTED, "dim 0: split factor 33554432 makes too many pieces"},
    {even_5, XFER_ERR_SHAPE, "dim 0: EVEN split of 5 indices over the 2 coordinates of axis 0"},
    {even_of_a_part, XFER_ERR_SHAPE,
     "dim 1: EVEN split of 3 indices over the 2 coordinates of axis 0"},
    {no_table, XFER_ERR_ARG, "axis 0 has no run table: its placement's table is NULL"},
    {table_of_2_for_3, XFER_ERR_ARG, "axis 1 has 3 coordinates, its run table 2"},
    {table_too_long, XFER_ERR_SHAPE,
     "dim 0: the run table of axis 0 reaches index 6 of a part of 5"},
    {table_itself_wrong, XFER_ERR_SHAPE,
     "run table: coordinate 0 has the run (0, 0, 0); want a length from 1, indices from 0 and ends "
     "below 2^62"},
    {bytes_past_62_bits, XFER_ERR_OVERFLOW, "a tensor of 2 dims whose bytes do not fit in 62 bits"},
    {padded_past_62_bits, XFER_ERR_OVERFLOW,
     "a tensor of 2 dims whose bytes do not fit in 62 bits"},
    {product_past_64_bits, XFER_ERR_OVERFLOW,
     "a tensor of 2 dims whose bytes do not fit in 62 bits"},
    {part_past_62_bits, XFER_ERR_OVERFLOW, "a local part whose bytes do not fit in 62 bits"},
    {dim_of_a_part_past_62_bits, XFER_ERR_OVERFLOW,
     "a local part whose bytes do not fit in 62 bits"},
};

static void test_what_is_no_layout_is_refused_with_the_values(void **state)
{
  (void)state;
  for (size_t c = 0; c < sizeof wrongs / sizeof *wrongs; c++) {
    xfer_layout *layout = NULL;
    description d;

    print_message("%s\n", wrongs[c].text);
    describe(&d);
    assert_int_equal(xfi_layout_create(&layout, &d.desc), XFER_OK);
    xfi_layout_destroy(layout);
    layout = NULL;
    wrongs[c].make_wrong(&d);
    assert_int_equal(xfi_layout_create(&layout, &d.desc), wrongs[c].st);
    assert_string_equal(xfer_last_error(), wrongs[c].text);
    assert_null(layout);
    xfi_mesh_destroy(d.mesh);
  }
}

/* ---- what a layout keeps ---- */

static void test_inputs_are_copied_and_the_mesh_is_shared(void **state)
{
  (void)state;
  xfer_layout *layout = NULL;
  xfer_layout *same = NULL;
  description d;

  describe(&d);
  d.placements[0] = xfer_shard_runs(0, &d.table);
  assert_int_equal(xfi_layout_create(&layout, &d.desc), XFER_OK);
  assert_int_equal(xfi_layout_create(&same, &d.desc), XFER_OK);
  xfi_mesh_destroy(d.mesh);
  memset(&d, 0xff, sizeof d);
  assert_int_equal(layout->dims[1].size, 8);
  assert_int_equal(layout->dims[1].padded, 12);
  assert_int_equal(xfi_mesh_find(layout->mesh, 5), 5);
  assert_int_equal(xfi_dim_length(&layout->dims[0], 1), 4);
  assert_ptr_equal(xfi_layout_share(layout), layout);
  xfi_layout_destroy(layout);
  assert_memory_equal(layout->digest, same->digest, sizeof same->digest);
  xfi_layout_destroy(layout);
  xfi_layout_destroy(same);
  xfi_layout_destroy(NULL);
}

static void test_a_scalar_and_an_empty_tensor_are_layouts(void **state)
{
  (void)state;
  xfer_layout *scalar = layout_of("f64[] (2,2):R,R");
  xfer_layout *empty = layout_of("u8[0,4611686018427387903] (2):S0");

  assert_int_equal(scalar->n_elems, 1);
  assert_int_equal(scalar->n_replicas, 4);
  assert_int_equal(empty->n_elems, 0);
  xfi_layout_destroy(scalar);
  xfi_layout_destroy(empty);
}

static void test_sizes_past_32_bits_are_counted(void **state)
{
  (void)state;
  static const struct {
    const char *side;
    int64_t n_elems;
  } cases[] = {
      {"u8[2147483649] (3):S0", 2147483649},
      {"f32[65536,65537] (2,2):S0,S1", INT64_C(65536) * 65537},
      {"bf16[128,4096,1048576] (8):S0", INT64_C(128) * 4096 * 1048576},
      {"u8[4611686018427387903] (7):S0", INT64_MAX / 2},
      {"f64[576460752303423487] (7):S0f3", INT64_MAX / 16},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    xfer_layout *layout = layout_of(cases[c].side);
    int64_t sum = 0;

    print_message("%s\n", cases[c].side);
    assert_int_equal(layout->n_elems, cases[c].n_elems);
    for (int64_t part = 0; part < layout->dims[0].n_parts; part++)
      sum += xfi_dim_length(&layout->dims[0], part);
    assert_int_equal(sum, layout->dims[0].size);
    xfi_layout_destroy(layout);
  }
}

/* A table may make a part of up to 2^62; cuts after it must not overflow. */
static void test_cuts_after_a_very_long_part_are_safe(void **state)
{
  (void)state;
  xfer_layout *layout = NULL;
  description d;

  describe(&d);
  d.placements[0] = xfer_shard_runs(0, &d.table);
  d.placements[1] = xfer_shard(0);
  d.desc.order = NULL;
  d.desc.n_order = 0;
  d.table.allow_zero = 1;
  d.lengths[1] = INT64_MAX / 2;
  assert_int_equal(xfi_layout_create(&layout, &d.desc), XFER_ERR_OVERFLOW);
  d.lengths[1] = INT64_MAX;
  assert_int_equal(xfi_layout_create(&layout, &d.desc), XFER_ERR_SHAPE);
  assert_string_equal(xfer_last_error(), "run table: coordinate 1 has length 9223372036854775807");
  assert_null(layout);
  xfi_mesh_destroy(d.mesh);
}

/* ---- places ---- */

static void test_each_rank_has_its_place_and_each_place_its_rank(void **state)
{
  (void)state;
  static const char *const sides[] = {
      "u8[8,8] (2,3,2):S0,R,S1",
      "u8[8,8] (2,3,2)@11,10,9,8,7,6,5,4,3,2,1,0:R,R,R",
      "u8[8,8] (2,3,2)@20-42/2:S1,S1,S0",
      "u8[8,8] (2,3,2)@20-42/2:S1,S0,S1;order=2,1,0",
      "u8[] (3,2):R,R",
      "u8[8,8] (2,3,2):R,S0,R;order=2,0,1",
  };

  for (size_t c = 0; c < sizeof sides / sizeof *sides; c++) {
    xfer_layout *layout = layout_of(sides[c]);
    int64_t n_places = layout->n_replicas;
    unsigned char seen[64] = {0};

    print_message("%s\n", sides[c]);
    for (int d = 0; d < layout->n_dims; d++)
      n_places *= layout->dims[d].n_parts;
    assert_int_equal(n_places, layout->mesh->size);
    for (int i = 0; i < layout->mesh->size; i++) {
      xfi_place place;
      int64_t number = 0;
      uint32_t part = 0;

      assert_true(xfi_layout_place(layout, layout->mesh->ranks[i], &place));
      for (int d = 0; d < layout->n_dims; d++) {
        assert_in_range(place.part[d], 0, layout->dims[d].n_parts - 1);
        number = number * layout->dims[d].n_parts + place.part[d];
        part += (uint32_t)xfi_dim_position(layout, d, place.part[d]);
      }
      assert_int_equal(xfi_part_rank(layout, part, place.replica), layout->mesh->ranks[i]);
      assert_int_equal(xfi_part_replica(layout, part, layout->mesh->ranks[i]), place.replica);
      assert_in_range(place.replica, 0, layout->n_replicas - 1);
      seen[number * layout->n_replicas + place.replica]++;
    }
    for (int i = 0; i < layout->mesh->size; i++)
      assert_int_equal(seen[i], 1);
    xfi_layout_destroy(layout);
  }
}

static void test_a_rank_outside_the_mesh_has_no_place(void **state)
{
  (void)state;
  xfer_layout *layout = layout_of("u8[8] (2)@3,1:S0");
  xfi_place place;

  assert_false(xfi_layout_place(layout, 0, &place));
  assert_false(xfi_layout_place(layout, 2, &place));
  assert_false(xfi_layout_place(layout, 4, &place));
  xfi_layout_destroy(layout);
}

/* ---- digests ---- */

static void test_digests_differ_where_anything_differs(void **state)
{
  (void)state;
  static const char *const sides[] = {
      "u8[8,8] (2,2):S0,S1",           "i8[8,8] (2,2):S0,S1",         "u8[8,9] (2,2):S0,S1",
      "u8[8,8,1] (2,2):S0,S1",         "u8[8,8] (2,2)@0,1,3,2:S0,S1", "u8[8,8] (2,2,1):S0,S1,R",
      "u8[8,8] (4,1):S0,S1",           "u8[8,8] (2,2):S1,S0",         "u8[8,8] (2,2):S0,R",
      "u8[8,8] (2,2):S0b,S1",          "u8[8,8] (2,2):S0e,S1",        "u8[8,8] (2,2):S0f1,S1",
      "u8[8,8] (2,2):S0f2,S1",         "u8[8,8] (2,2):S0,S1;pad=0:9", "u8[8,8] (2,2):S0,S0",
      "u8[8,8] (2,2):S0,S0;order=1,0", "u8[8,8] (2,2)@1-4:S0,S1",
  };
  enum { N = sizeof sides / sizeof *sides };
  xfer_layout *layouts[N];

  for (int i = 0; i < N; i++) {
    layouts[i] = layout_of(sides[i]);
    for (int k = 0; k < i; k++) {
      print_message("%s and %s\n", sides[k], sides[i]);
      assert_memory_not_equal(layouts[i]->digest, layouts[k]->digest, sizeof layouts[i]->digest);
    }
  }
  for (int i = 0; i < N; i++)
    xfi_layout_destroy(layouts[i]);
}

static void test_digests_are_equal_where_only_the_spelling_differs(void **state)
{
  (void)state;
  static const char *const pairs[][2] = {
      {"u8[8,8] (2,2):S0,S1", "u8[8,8] (2,2)@0,1-3:S0,S-1;pad=0:8"},
      {"u8[8,8] (2,2):S0,S1", "u8[8,8] (2,2):S0,S1;order=1,0"},
      {"u8[8,8] (2,2):R,S1", "u8[8,8] (2,2):R,S1;order=1,0"},
  };

  for (size_t c = 0; c < sizeof pairs / sizeof *pairs; c++) {
    xfer_layout *a = layout_of(pairs[c][0]);
    xfer_layout *b = layout_of(pairs[c][1]);

    print_message("%s\n", pairs[c][1]);
    assert_memory_equal(a->digest, b->digest, sizeof a->digest);
    xfi_layout_destroy(a);
    xfi_layout_destroy(b);
  }
}

/* ---- failed allocations ---- */

static xfer_status make(void *context)
{
  description *d = context;
  xfer_layout *layout = NULL;
  xfer_status st = xfi_layout_create(&layout, &d->desc);

  assert_true((layout != NULL) == (st == XFER_OK));
  xfi_layout_destroy(layout);
  return st;
}

static void test_create_survives_each_failed_allocation(void **state)
{
  (void)state;
  description d;

  describe(&d);
  assert_true(fail_each_allocation(make, &d) >= 4);
  d.placements[0] = xfer_shard_runs(0, &d.table);
  assert_true(fail_each_allocation(make, &d) >= 9);
  xfi_mesh_destroy(d.mesh);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_no_layout_is_refused_with_the_values),
      cmocka_unit_test(test_inputs_are_copied_and_the_mesh_is_shared),
      cmocka_unit_test(test_a_scalar_and_an_empty_tensor_are_layouts),
      cmocka_unit_test(test_sizes_past_32_bits_are_counted),
      cmocka_unit_test(test_cuts_after_a_very_long_part_are_safe),
      cmocka_unit_test(test_each_rank_has_its_place_and_each_place_its_rank),
      cmocka_unit_test(test_a_rank_outside_the_mesh_has_no_place),
      cmocka_unit_test(test_digests_differ_where_anything_differs),
      cmocka_unit_test(test_digests_are_equal_where_only_the_spelling_differs),
      cmocka_unit_test(test_create_survives_each_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
