/* Whole plans: what is refused, classes, order, sizes past 32 bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "plans_of.h"

static void test_layouts_that_do_not_fit_are_named_with_their_values(void **state)
{
  (void)state;
  static const struct {
    const char *src;
    const char *dst;
    xfer_status st;
    const char *text;
  } cases[] = {
      {"u8[8] (1):R", "i8[8] (1):R", XFER_ERR_SHAPE,
       "tensor \"bad\": the source is u8, the destination i8, and no conversion is asked for"},
      {"u8[8] (1):R", "u8[8,1] (1):R", XFER_ERR_SHAPE,
       "tensor \"bad\": the source has 1 dims, the destination 2"},
      {"u8[] (1):R", "u8[1] (1):R", XFER_ERR_SHAPE,
       "tensor \"bad\": the source has 0 dims, the destination 1"},
      {"u8[8,5] (1):R", "u8[8,4294967301] (1):R", XFER_ERR_SHAPE,
       "tensor \"bad\", dim 1: the source has 5 indices, the destination 4294967301"},
      {"u8[8,5] (2)@0,4:R", "u8[8,5] (1):R", XFER_ERR_ARG,
       "tensor \"bad\": its source mesh has rank 4, the comm only ranks 0 to 3"},
      {"u8[8,5] (1):R", "u8[8,5] (3)@7,0,2:R", XFER_ERR_ARG,
       "tensor \"bad\": its destination mesh has rank 7, the comm only ranks 0 to 3"},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    tensor_list list = {.n = 0};
    xfi_moves *plan = NULL;

    print_message("%s\n", cases[c].text);
    add_line(&list, "good", 2, "u8[8] (4):S0 -> (4)@3,2,1,0:S0");
    add_layouts(&list, "bad", 1, layout_of(cases[c].src), layout_of(cases[c].dst));
    for (int r = 0; r < 4; r++) {
      assert_int_equal(xfi_moves_create(&plan, 4, r, list.at, list.n, &plain_options), cases[c].st);
      assert_string_equal(xfer_last_error(), cases[c].text);
      assert_null(plan);
    }
    free_tensors(&list);
  }
}

static void test_conversions_go_from_floats_to_floats_and_travel_small(void **state)
{
  static const struct {
    const char *src;
    const char *dst;
    xfer_conversion_kind kind;
    float value;
    xfer_status st;
    uint64_t payload_bytes;
    const char *text;
  } cases[] = {
      {"f32[6] (1):R", "bf16[6] (2):S0", XFER_CONVERSION_CAST, 0, XFER_OK, 12, ""},
      {"bf16[6] (1):R", "f32[6] (2):S0", XFER_CONVERSION_CAST, 0, XFER_OK, 12, ""},
      {"f32[6] (1):R", "f8e5m2[6] (2):S0", XFER_CONVERSION_SCALE, 2, XFER_OK, 6, ""},
      {"f16[6] (1):R", "f16[6] (2):S0", XFER_CONVERSION_ADD, -1, XFER_OK, 12, ""},
      {"u8[6] (1):R", "u8[6] (2):S0", XFER_CONVERSION_CAST, 0, XFER_OK, 6, ""},
      {"u8[6] (1):R", "bf16[6] (2):S0", XFER_CONVERSION_CAST, 0, XFER_ERR_SHAPE, 0,
       "tensor \"w\": there is no conversion from u8 to bf16"},
      {"f8e4m3[6] (1):R", "bf16[6] (2):S0", XFER_CONVERSION_CAST, 0, XFER_ERR_SHAPE, 0,
       "tensor \"w\": there is no conversion from f8e4m3 to bf16"},
      {"f32[6] (1):R", "u8[6] (2):S0", XFER_CONVERSION_CAST, 0, XFER_ERR_SHAPE, 0,
       "tensor \"w\": there is no conversion from f32 to u8"},
      {"u8[6] (1):R", "u8[6] (2):S0", XFER_CONVERSION_ADD, 1, XFER_ERR_SHAPE, 0,
       "tensor \"w\": there is no conversion from u8 to u8"},
  };

  (void)state;
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    tensor_list list = {.n = 0};
    xfi_moves *plan = NULL;

    print_message("%s -> %s\n", cases[c].src, cases[c].dst);
    add_layouts(&list, "w", 1, layout_of(cases[c].src), layout_of(cases[c].dst));
    list.at[0].conversion =
        (xfer_conversion){.kind = (int32_t)cases[c].kind, .value = cases[c].value};
    assert_int_equal(xfi_moves_create(&plan, 2, 1, list.at, list.n, &plain_options), cases[c].st);
    if (cases[c].st != XFER_OK) assert_string_equal(xfer_last_error(), cases[c].text);
    if (plan != NULL) {
      assert_int_equal(plan->payload_bytes, cases[c].payload_bytes);
      assert_int_equal(plan->in_bytes, cases[c].payload_bytes / 2);
      assert_int_equal(plan->n_converted, strncmp(cases[c].src, "u8", 2) != 0);
    }
    xfi_moves_destroy(plan);
    free_tensors(&list);
  }
}

static void test_sources_with_replicas_are_counted_alike_by_all_ranks(void **state)
{
  static const struct {
    const char *src;
    size_t n;
  } cases[] = {
      {"f32[4,6] (4):S0", 0},
      {"f32[4,6] (4):R", 1},
      {"f32[4,6] (2,2):S0,R", 1},
      {"f32[4,6] (2,2):S0,S1", 0},
      {"f32[0,6] (4):R", 0},
      {"f32[4,6] (1)@2:R", 0},
      {"f32[4,6] {0=[0:2,0:6];1=[2:4,0:6]}", 0},
      {"f32[4,6] {0=[0:2,0:6];1=[0:2,0:6]+[2:4,0:6]}", 1},
      {"f32[4,6] {0=f0:9;1=f9:24}", 0},
  };

  (void)state;
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    tensor_list list = {.n = 0};

    print_message("%s\n", cases[c].src);
    add_layouts(&list, "w", 3, layout_of(cases[c].src),
                layout_of(c == 4 ? "f32[0,6] (1)@3:R" : "f32[4,6] (1)@3:R"));
    add_line(&list, "cut", 2, "f32[8] (4):S0 -> (4):R");
    for (int r = 0; r < 4; r++) {
      xfi_moves *plan = plan_of(&list, 4, r, &plain_options);

      assert_int_equal(plan->n_replicated, 3 * cases[c].n);
      xfi_moves_destroy(plan);
    }
    free_tensors(&list);
  }
}

static void test_a_conversion_must_be_one(void **state)
{
  static const struct {
    xfer_conversion conversion;
    const char *text; /* of the error; NULL: there is none */
  } cases[] = {
      {{0}, NULL},
      {{XFER_CONVERSION_CAST, .value = 0}, NULL},
      {{XFER_CONVERSION_SCALE, .value = 1e-30F}, NULL},
      {{XFER_CONVERSION_SCALE, .value = 0x1.000008p-128F}, NULL},
      {{XFER_CONVERSION_ADD, .value = -1}, NULL},
      {{XFER_CONVERSION_BLOCKS, .rows = 65535, .columns = 1, .scale = XFER_SCALE_MX}, NULL},
      {{XFER_CONVERSION_SCALES, .tensor = UINT64_MAX}, NULL}, /* create knows how many there are */
      {{7, .value = 0}, "tensor \"w\": conversion 7 is not known"},
      {{-1, .value = 0}, "tensor \"w\": conversion -1 is not known"},
      {{XFER_CONVERSION_SCALE, .value = 0}, "and above 0, and its reciprocal finite"},
      {{XFER_CONVERSION_SCALE, .value = 1e-44F}, "and above 0, and its reciprocal finite"},
      {{XFER_CONVERSION_SCALE, .value = 0x1p-128F}, "and above 0, and its reciprocal finite"},
      {{XFER_CONVERSION_SCALE, .value = -1}, "and above 0, and its reciprocal finite"},
      {{XFER_CONVERSION_ADD, .value = INFINITY},
       "tensor \"w\": conversion \"add\" by inf, which is to be finite"},
      {{XFER_CONVERSION_BLOCKS, .rows = 0, .columns = 64}, "blocks of 0 rows and 64 columns"},
      {{XFER_CONVERSION_BLOCKS, .rows = 128, .columns = 65536}, "not 1 to 65535"},
      {{XFER_CONVERSION_BLOCKS, .rows = 128, .columns = 64, .scale = 9}, "scale 9 of blocks is"},
      {{XFER_CONVERSION_CAST, .value = 1},
       "conversion \"cast\" with a field that it does not have"},
      {{XFER_CONVERSION_NONE, .tensor = 1}, "a field of its conversion is set, and no kind"},
      {{XFER_CONVERSION_ADD, .value = 1, .rows = 1}, "with a field that it does not have"},
      {{XFER_CONVERSION_ADD, .value = 1, .scale = 1}, "with a field that it does not have"},
      {{XFER_CONVERSION_SCALES, .columns = 1}, "with a field that it does not have"},
      {{XFER_CONVERSION_CAST, .reserved = 1}, "with a field that it does not have"},
      {{XFER_CONVERSION_BLOCKS, .rows = 8, .columns = 8, .tensor = 1},
       "with a field that it does not have"},
  };

  (void)state;
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    const xfer_status st = xfi_conversion_check(&cases[c].conversion, "w");

    print_message("case %zu\n", c);
    assert_int_equal(st, cases[c].text == NULL ? XFER_OK : XFER_ERR_ARG);
    if (cases[c].text != NULL) assert_non_null(strstr(xfer_last_error(), cases[c].text));
  }
}

static void test_conversions_by_blocks_have_few_dtypes(void **state)
{
  const xfer_conversion blocks = xfer_convert_blocks(128, 64, XFER_SCALE_UE8M0);
  const xfer_conversion scales = xfer_convert_scales_of(0);
  const struct {
    const xfer_conversion *conversion;
    const char *src;
    const char *dst;
    bool fits;
  } pairs[] = {{&blocks, "bf16[6] (1):R", "f8e4m3[6] (1):R", true},
               {&blocks, "u8[6] (1):R", "f8e4m3[6] (1):R", false},
               {&blocks, "bf16[6] (1):R", "f8e5m2[6] (1):R", false},
               {&scales, "f32[6] (1):R", "f8e8m0[6] (1):R", true},
               {&scales, "bf16[6] (1):R", "f8e8m0[6] (1):R", false},
               {&scales, "f32[6] (1):R", "bf16[6] (1):R", false}};
  char text[64];

  (void)state;
  xfi_conversion_format(text, sizeof text, &blocks);
  assert_string_equal(text, "blocks 128x64 ue8m0");
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    xfer_layout *src = layout_of(pairs[i].src);
    xfer_layout *dst = layout_of(pairs[i].dst);

    print_message("%s -> %s\n", pairs[i].src, pairs[i].dst);
    assert_int_equal(xfi_conversion_fits(pairs[i].conversion, src, dst, "w"),
                     pairs[i].fits ? XFER_OK : XFER_ERR_SHAPE);
    xfi_layout_destroy(src);
    xfi_layout_destroy(dst);
  }
}

static void test_padding_may_differ_between_the_sides(void **state)
{
  (void)state;
  tensor_list list = {.n = 0};
  xfi_moves *plan;

  add_line(&list, "vocabulary", 1, "bf16[1000,8] (2):S0;pad=0:1024 -> (4):S0;pad=0:1008");
  plan = plan_of(&list, 4, 3, &plain_options);
  assert_int_equal(plan->in_bytes, 252 * 8 * 2);
  assert_int_equal(plan->zero_bytes, 8 * 8 * 2);
  assert_int_equal(plan->payload_bytes, 1000 * 8 * 2);
  xfi_moves_destroy(plan);
  free_tensors(&list);
}

static void test_bytes_of_all_tensors_must_fit_in_64_bits(void **state)
{
  (void)state;
  tensor_list list = {.n = 0};
  xfi_moves *plan = NULL;

  add_line(&list, "w", 4, "u8[4611686018427387903] (2):S0 -> (2):S0");
  plan = plan_of(&list, 2, 1, &plain_options);
  assert_true(plan->payload_bytes == 4 * (uint64_t)(INT64_MAX / 2));
  xfi_moves_destroy(plan);
  plan = NULL;
  add_line(&list, "x", 1, "u8[5] (2):S0 -> (2):S0");
  assert_int_equal(xfi_moves_create(&plan, 2, 1, list.at, list.n, &plain_options),
                   XFER_ERR_OVERFLOW);
  assert_string_equal(xfer_last_error(), "the tensors' bytes do not fit in 64 bits");
  assert_null(plan);
  free_tensors(&list);

  add_line(&list, "w", 5, "u8[4611686018427387903] (2):S0 -> (2):S0"); /* alike: one product */
  assert_int_equal(xfi_moves_create(&plan, 2, 1, list.at, list.n, &plain_options),
                   XFER_ERR_OVERFLOW);
  assert_string_equal(xfer_last_error(), "the tensors' bytes do not fit in 64 bits");
  assert_null(plan);
  free_tensors(&list);
}

/* Padding and copies can make more of them than the tensors have. */
static void test_bytes_of_a_rank_must_fit_in_64_bits(void **state)
{
  (void)state;
  static const struct {
    const char *line;
    size_t fit;
    const char *text;
  } cases[] = {
      {"u8[1] (1):R -> (1):R;pad=0:4611686018427387903", 4,
       "the bytes that rank 0 receives do not fit in 64 bits"},
      {"u8[4611686018427387903] (1):R -> (4)@1-4:R", 1,
       "the bytes that rank 0 sends do not fit in 64 bits"},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    tensor_list list = {.n = 0};
    xfi_moves *plan = NULL;

    print_message("%s\n", cases[c].line);
    add_line(&list, "w", cases[c].fit, cases[c].line);
    plan = plan_of(&list, 5, 0, &plain_options);
    xfi_moves_destroy(plan);
    plan = NULL;
    add_line(&list, "x", 1, cases[c].line);
    assert_int_equal(xfi_moves_create(&plan, 5, 0, list.at, list.n, &plain_options),
                     XFER_ERR_OVERFLOW);
    assert_string_equal(xfer_last_error(), cases[c].text);
    assert_null(plan);
    free_tensors(&list);
  }
}

/* Of a box that cannot be cut for 201 ranks one takes it all, and gives it to 200 others. */
static void test_bytes_that_are_relayed_must_fit_in_64_bits(void **state)
{
  (void)state;
  const xfi_moves_options options = {XFER_LANE_DIRECT, 201, 0, NULL};
  tensor_list list = {.n = 0};
  xfi_moves *plan = NULL;

  add_line(&list, "w", 1, "u8[200,200,200,200,200,200,200,200] (1)@0:R -> (201)@201-401:R");
  assert_int_equal(xfi_moves_create(&plan, 402, 201, list.at, 1, &options), XFER_ERR_OVERFLOW);
  assert_string_equal(xfer_last_error(), "the bytes that rank 201 sends do not fit in 64 bits");
  assert_null(plan);
  free_tensors(&list);
}

static void test_more_tensors_than_can_be_numbered_are_refused(void **state)
{
  (void)state;
  xfi_moves *plan = NULL;

  assert_int_equal(xfi_moves_create(&plan, 2, 0, NULL, 1 << 30, &plain_options), XFER_ERR_OVERFLOW);
  assert_string_equal(xfer_last_error(),
                      "1073741824 tensors, more than the 1073741823 that a plan may have");
  assert_null(plan);
}

static void test_a_plan_of_no_tensors_moves_nothing(void **state)
{
  (void)state;
  xfi_moves *plan = NULL;

  assert_int_equal(xfi_moves_create(&plan, 2, 0, NULL, 0, &plain_options), XFER_OK);
  assert_int_equal(plan->n_classes, 0);
  assert_int_equal(plan->sends.n_moves + plan->recvs.n_moves + plan->selfs.n_moves, 0);
  xfi_moves_destroy(plan);
  xfi_moves_destroy(NULL);
}

static void test_sizes_past_32_bits_are_counted(void **state)
{
  (void)state;
  static const struct {
    const char *line;
    uint64_t in_bytes; /* of rank 2 */
  } cases[] = {
      {"u8[2147483649] (2):S0 -> (1)@2:R", 2147483649},
      {"f32[65536,65537] (2):S0 -> (2)@2-3:S1", UINT64_C(65536) * 32769 * 4},
      {"f64[576460752303423487] (2):S0 -> (1)@2:R", (INT64_MAX / 16) * 8},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    tensor_list list = {.n = 0};
    xfi_moves *plans[4];
    uint64_t sent = 0;

    print_message("%s\n", cases[c].line);
    add_line(&list, "w", 1, cases[c].line);
    plans_of(plans, &list, 4, &plain_options);
    assert_true(plans[2]->in_bytes == cases[c].in_bytes);
    for (size_t p = 0; p < plans[2]->recvs.n_peers; p++)
      sent += plans[2]->recvs.peers[p].n_bytes;
    assert_true(sent == cases[c].in_bytes);
    assert_true(plans[0]->out_bytes + plans[1]->out_bytes ==
                plans[2]->in_bytes + plans[3]->in_bytes);
    free_plans(plans, 4);
    free_tensors(&list);
  }
}

/* ---- classes and order ---- */

static void test_tensors_of_equal_layouts_are_one_class_whoever_made_them(void **state)
{
  (void)state;
  static const uint32_t classes[] = {0, 0, 1, 0, 2, 1, 3};
  static const uint32_t ordinals[] = {0, 1, 3, 2, 5, 4, 6}; /* class by class */
  tensor_list list = {.n = 0};
  xfi_moves *plan;

  add_line(&list, "a", 2, "u8[8] (2):S0 -> (2):R");
  add_line(&list, "b", 1, "u8[8] (2):S0 -> (2):S0b");
  add_line(&list, "c", 1, "u8[8] (2)@0-1:S-1 -> (2):R;pad=0:8"); /* as the first two */
  add_line(&list, "d", 1, "u8[8] (2):R -> (2):S0");
  add_line(&list, "e", 1, "u8[8] (2):S0 -> (2):S0b");
  add_line(&list, "f", 1, "u8[9] (2):S0 -> (2):R");
  plan = plan_of(&list, 2, 0, &plain_options);
  assert_int_equal(plan->n_classes, 4);
  for (size_t t = 0; t < plan->n_tensors; t++) {
    print_message("tensor %zu\n", t);
    assert_int_equal(plan->tensors[t].class_index, classes[t]);
    assert_int_equal(plan->tensors[t].ordinal, ordinals[t]);
    assert_ptr_equal(xfi_moves_class(plan, t), &plan->classes[classes[t]]);
    assert_string_equal(plan->tensors[t].name, list.at[t].name);
  }
  assert_int_equal(plan->classes[0].n_tensors, 3);
  assert_int_equal(plan->classes[1].first_tensor, 2);
  xfi_moves_destroy(plan);
  free_tensors(&list);
}

static void test_hundreds_of_classes_are_kept_apart(void **state)
{
  (void)state;
  const xfi_moves_options options = {XFER_LANE_AUTO, 0, 0, NULL};
  tensor_list list = {.n = 0};
  xfi_moves *plan;

  for (int i = 0; i < 200; i++) {
    char line[64];

    snprintf(line, sizeof line, "u8[%d] (2):S0 -> (2):R", i);
    add_line(&list, "w", 2, line);
  }
  plan = plan_of(&list, 2, 0, &options);
  assert_int_equal(plan->n_classes, 200);
  for (uint32_t t = 0; t < 400; t++)
    assert_int_equal(plan->tensors[t].class_index, t / 2);
  xfi_moves_destroy(plan);
  free_tensors(&list);
}

/* As fp8 weights with a scale each, whose last bits alone differ or, as bf16's, the first ones.
 * Looked for one after the other they would take half a minute. */
static void test_very_many_conversions_are_kept_apart_in_little_time(void **state)
{
  enum { FINE = 100000, COARSE = 100 * 128, MOST_SECONDS = 10 };
  const clock_t start = clock();
  xfer_tensor *tensors = xfi_calloc(FINE + COARSE, sizeof *tensors);
  tensor_list list = {.n = 0};
  xfi_moves *plan = NULL;

  (void)state;
  add_line(&list, "w", 1, "f32[8] (2):S0 -> f8e4m3 (2):R");
  for (int i = 0; i < FINE + COARSE; i++)
    tensors[i] = list.at[0];
  for (int i = 0; i < FINE; i++)
    tensors[i].conversion = xfer_convert_scale(1 + ldexpf((float)i, -23));
  for (int i = 0; i < COARSE; i++)
    tensors[FINE + i].conversion =
        xfer_convert_scale(ldexpf(1 + ldexpf((float)(i % 128), -7), 1 + i / 128));
  assert_int_equal(xfi_moves_classify(&plan, 2, 0, tensors, FINE + COARSE, &plain_options),
                   XFER_OK);
  assert_int_equal(plan->n_classes, FINE + COARSE);
  assert_true((clock() - start) / CLOCKS_PER_SEC < MOST_SECONDS);
  xfi_moves_destroy(plan);
  xfi_free(tensors);
  free_tensors(&list);
}

static void test_more_boxes_than_memory_holds_are_refused_before_they_are_made(void **state)
{
  tensor_list list = {.n = 0};
  xfi_moves *plan = NULL;

  (void)state;
  add_line(&list, "w", 1, "f32[100000,100000] (2,2):S0f50000,S1f50000 -> (1):R");
  for (int r = 0; r < 4; r++) {
    assert_int_equal(xfi_moves_create(&plan, 4, r, list.at, list.n, &plain_options),
                     XFER_ERR_UNSUPPORTED);
    assert_string_equal(xfer_last_error(), "more than 67108864 boxes of one tensor on one rank");
  }
  free_tensors(&list);
}

static void test_the_order_is_by_element_size_largest_first(void **state)
{
  (void)state;
  static const uint32_t order[] = {2, 5, 1, 6, 3, 0, 4};
  tensor_list list = {.n = 0};
  xfi_moves *plan;

  add_line(&list, "0", 1, "u8[8] (2):S0 -> (2):R");
  add_line(&list, "1", 1, "f32[8] (2):S0 -> (2):R");
  add_line(&list, "2", 1, "i64[8] (2):S0 -> (2):R");
  add_line(&list, "3", 1, "bf16[8] (2):S0 -> (2):R");
  add_line(&list, "4", 1, "f8e4m3[8] (2):S0 -> (2):R");
  add_line(&list, "5", 1, "f64[8] (2):S0 -> (2):R");
  add_line(&list, "6", 1, "u32[8] (2):S0 -> (2):R");
  plan = plan_of(&list, 2, 0, &plain_options);
  assert_memory_equal(plan->order, order, sizeof order);
  for (size_t i = 0; i < 7; i++)
    assert_int_equal(plan->recvs.moves[i].tensor, order[i]);
  xfi_moves_destroy(plan);
  free_tensors(&list);
}

static void test_inputs_are_copied_and_layouts_shared(void **state)
{
  (void)state;
  char name[] = "w";
  tensor_list list = {.n = 0};
  xfi_moves *plan;

  add_line(&list, name, 1, "u8[8] (2):S0 -> (2):R");
  plan = plan_of(&list, 2, 1, &plain_options);
  name[0] = 'x';
  free_tensors(&list);
  assert_string_equal(plan->tensors[0].name, "w");
  assert_int_equal(plan->tensors[0].src->dims[0].size, 8);
  assert_int_equal(plan->tensors[0].dst->n_replicas, 2);
  xfi_moves_destroy(plan);
}

/* ---- failed allocations ---- */

typedef struct job {
  const tensor_list *list;
  const xfi_moves_options *options;
  int rank;
} job;

static xfer_status make(void *context)
{
  const job *j = context;
  xfi_moves *plan = NULL;
  xfer_status st = xfi_moves_create(&plan, 4, j->rank, j->list->at, j->list->n, j->options);

  assert_true((plan != NULL) == (st == XFER_OK));
  xfi_moves_destroy(plan);
  return st;
}

static void test_create_survives_each_failed_allocation(void **state)
{
  (void)state;
  xfi_moves_options options = plain_options;
  tensor_list list = {.n = 0};

  options.lane = XFER_LANE_AUTO;
  add_line(&list, "w", 2, "f32[8,12] (2,2):S0,S1 -> (4):S1f2");
  add_line(&list, "norm", 1, "bf16[12] (1):R -> (4):R");
  add_line(&list, "large", 2, "bf16[65536] (2):R -> (2)@2-3:R");
  for (int i = 0; i < 9; i++)
    add_line(&list, "many classes", 1,
             i % 2 == 0 ? "u8[8] (2):S0 -> (2)@2-3:R;pad=0:9" : "u8[3,3] (4):S1f2 -> (3):S0");
  for (int rank = 0; rank < 4; rank++) {
    options.ranks_per_domain = 0;
    assert_true(fail_each_allocation(make, &(job){&list, &options, rank}) > 30);
    options.ranks_per_domain = 2; /* the last two relay */
    assert_true(fail_each_allocation(make, &(job){&list, &options, rank}) > 30);
  }
  free_tensors(&list);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_layouts_that_do_not_fit_are_named_with_their_values),
      cmocka_unit_test(test_conversions_go_from_floats_to_floats_and_travel_small),
      cmocka_unit_test(test_sources_with_replicas_are_counted_alike_by_all_ranks),
      cmocka_unit_test(test_a_conversion_must_be_one),
      cmocka_unit_test(test_conversions_by_blocks_have_few_dtypes),
      cmocka_unit_test(test_padding_may_differ_between_the_sides),
      cmocka_unit_test(test_bytes_of_all_tensors_must_fit_in_64_bits),
      cmocka_unit_test(test_bytes_of_a_rank_must_fit_in_64_bits),
      cmocka_unit_test(test_bytes_that_are_relayed_must_fit_in_64_bits),
      cmocka_unit_test(test_more_tensors_than_can_be_numbered_are_refused),
      cmocka_unit_test(test_a_plan_of_no_tensors_moves_nothing),
      cmocka_unit_test(test_sizes_past_32_bits_are_counted),
      cmocka_unit_test(test_tensors_of_equal_layouts_are_one_class_whoever_made_them),
      cmocka_unit_test(test_hundreds_of_classes_are_kept_apart),
      cmocka_unit_test(test_very_many_conversions_are_kept_apart_in_little_time),
      cmocka_unit_test(test_more_boxes_than_memory_holds_are_refused_before_they_are_made),
      cmocka_unit_test(test_the_order_is_by_element_size_largest_first),
      cmocka_unit_test(test_inputs_are_copied_and_layouts_shared),
      cmocka_unit_test(test_create_survives_each_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
