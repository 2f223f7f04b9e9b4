/* Model tables: read right, and refused with a sentence when they are not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "refit_sides.h"

static xfer_refit_report_data report_of(xfer_model *model)
{
  xfer_refit_report_data report = XFER_REFIT_REPORT_INIT;
  xfer_side *full = NULL;
  xfer_refit *refit = NULL;

  assert_int_equal(xfer_side_create(&full, "full", NULL), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, full, full), XFER_OK);
  assert_int_equal(xfer_refit_report(refit, &report), XFER_OK);
  xfer_refit_destroy(refit);
  xfer_side_destroy(full);
  return report;
}

/* Six tensors of three elements. */
#define TOTALS(said)                                                                               \
  "{\"format\":\"xfer-model-v1\",\"config\":{},\"totals\":{" said                                  \
  "},\"params\":[{\"pattern\":\"layers.{layer}.a.{expert}\",\"layer\":[0,1],\"expert\":[0,2],"     \
  "\"shape\":[3],\"dtype\":\"bf16\"}]}"

static void test_table_counts_its_tensors_and_bytes(void **state)
{
  xfer_model *model = NULL;

  (void)state;
  assert_int_equal(refit_load(&model, REFIT_DENSE), XFER_OK);
  const xfer_refit_report_data report = report_of(model);
  assert_int_equal(report.hf_tensors, 3 + 2 * 7);
  assert_int_equal(report.payload_bytes,
                   2 * (2 * 100 * 16 + 16 + 2 * (16 * 16 * 2 + 8 * 16 * 2 + 3 * 32 * 16)));
  xfer_model_destroy(model);
}

#define FIFTY "12345678901234567890123456789012345678901234567890"

static void test_malformed_tables_are_refused(void **state)
{
  static const struct {
    const char *text, *word;
  } cases[] = {
      {"", "expected near end"},
      {"[]", "its format is \"\""},
      {"{\"format\":\"other\"}", "its format is \"other\""},
      {"{\"format\":\"xfer-model-v1\"}", "a table needs \"config\""},
      {"{\"format\":\"xfer-model-v1\",\"config\":{}}", "a table needs \"params\""},
      {"{\"format\":\"xfer-model-v1\",\"config\":[],\"params\":[]}",
       "\"config\" of a table must be an object"},
      {"{\"format\":\"xfer-model-v1\",\"config\":{},\"params\":{}}",
       "\"params\" of a table must be a list"},
      {"{\"format\":\"xfer-model-v1\",\"config\":{},\"params\":[],\n\"extra_param\":{}}",
       "line 2: a table has no field \"extra_param\""},
      {"{\"format\":\"xfer-model-v1\",\"config\":{},\"params\":[],\"bogus\":1}",
       "table.json: line 1: a table has no field \"bogus\""},
      {"{\"format\":\"xfer-model-v1\",\"config\":{},\"params\":[],\n\"source\":\"" FIFTY FIFTY FIFTY
           FIFTY "\",\"bogus\":1}",
       "table.json: line 2, column 213: a table has no field \"bogus\""},
      {REFIT_TABLE("", "7"), "is no object"},
      {REFIT_TABLE("", ""), "no tensor is left"},
      {REFIT_TABLE("", "\n{}"), "table.json: line 2: a tensor needs either"},
      {REFIT_TABLE("", "{\"name\":\"a\",\"pattern\":\"b\",\"shape\":[1],\"dtype\":\"bf16\"}"),
       "needs either"},
      {REFIT_TABLE("", "{\"name\":\"a\",\"shape\":[1],\"dtype\":\"bf15\"}"), "is called \"bf15\""},
      {REFIT_TABLE("", "{\"name\":\"a\",\"shape\":[1]}"), "\"a\" has no dtype"},
      {REFIT_TABLE("", "{\"name\":\"a\",\"shape\":[-1],\"dtype\":\"bf16\"}"), "dim 0 of its shape"},
      {REFIT_TABLE("", "{\"name\":\"a\",\"shape\":[1.5],\"dtype\":\"bf16\"}"),
       "dim 0 of its shape"},
      {REFIT_TABLE("", "{\"name\":\"a\",\"shape\":3,\"dtype\":\"bf16\"}"), "must be a list"},
      {REFIT_TABLE("", "{\"name\":\"a\",\"dtype\":\"bf16\"}"), "has no shape"},
      {REFIT_TABLE("", "{\"name\":\"a\",\"foo\":1,\"shape\":[1],\"dtype\":\"bf16\"}"),
       "line 1: a tensor has no field \"foo\""},
      {REFIT_TABLE("",
                   "{\"pattern\":\"a.{layer}\",\"layer\":[0,1],\"layer_list\":[2],\"shape\":[1],"
                   "\"dtype\":\"bf16\"}"),
       "has both \"layer\" and \"layer_list\""},
      {REFIT_TABLE("", "{\"name\":\"a\",\"shape\":[1,1,1,1,1,1,1,1,1],\"dtype\":\"bf16\"}"),
       "has no shape"},
      {REFIT_TABLE("", "{\"name\":\"a\",\"shape\":[4294967296,4294967296],\"dtype\":\"bf16\"}"),
       "table.json: \"a\" has more bytes than 63 bits count"},
      {REFIT_TABLE("", "{\"name\":\"a\",\"shape\":[0,4294967296,4294967296],\"dtype\":\"bf16\"}"),
       "table.json: \"a\" has more bytes than 63 bits count"},
      {REFIT_TABLE("", "{\"name\":\"a.{layer}\",\"shape\":[1],\"dtype\":\"bf16\"}"),
       "is a pattern"},
      {REFIT_TABLE("", "{\"pattern\":\"a\",\"layer\":[0,1],\"shape\":[1],\"dtype\":\"bf16\"}"),
       "a list of layers go together"},
      {REFIT_TABLE("",
                   "{\"pattern\":\"a.{layer}\",\"layer\":[3,1],\"shape\":[1],\"dtype\":\"bf16\"}"),
       "[first, last]"},
      {REFIT_TABLE("",
                   "{\"pattern\":\"a.{layer}\",\"layer\":[1],\"shape\":[1],\"dtype\":\"bf16\"}"),
       "[first, last]"},
      {REFIT_TABLE(
           "", "{\"pattern\":\"a.{layer}\",\"layer_list\":[2,1],\"shape\":[1],\"dtype\":\"bf16\"}"),
       "must ascend"},
      {REFIT_TABLE(
           "", "{\"pattern\":\"a.{layer}\",\"layer_list\":[-1],\"shape\":[1],\"dtype\":\"bf16\"}"),
       "layer -1"},
      {REFIT_TABLE(
           "",
           "{\"pattern\":\"a.{layer}.{expert}\",\"layer\":[0,1],\"shape\":[1],\"dtype\":\"bf16\"}"),
       "a range of experts go together"},
      {REFIT_TABLE("",
                   "{\"name\":\"a\",\"shape\":[1],\"dtype\":\"bf16\"},{\"name\":\"a\",\"shape\":"
                   "[1],\"dtype\":\"bf16\"}"),
       "\"a\" is in the model twice"},
      {REFIT_TABLE("",
                   "{\"pattern\":\"a.{layer}\",\"layer\":[1,0],\"shape\":[1],\"dtype\":\"bf16\"}"),
       "a range is [first, last]"},
      {REFIT_TABLE("", "{\"pattern\":\"a.{layer}\",\"layer\":[0,1048576],\"shape\":[1],"
                       "\"dtype\":\"bf16\"}"),
       "a range up to 1048576; numbers of layers and experts are below 1048576"},
      {TOTALS("\"tensor\":6"), "totals has no field \"tensor\""},
      {TOTALS("\"tensors\":\"6\""), "\"tensors\" of totals must be a whole number from 0"},
      {TOTALS("\"tensors\":4"), "its totals say 4 tensors, and its params make 6"},
      {TOTALS("\"elements\":17"), "its totals say 17 elements, and its params make 18"},
      {TOTALS("\"tensors\":6,\"bytes\":3"), "its totals say 3 bytes, and its params make 36"},
      {REFIT_TABLE("\"num_attention_heads\":-1",
                   "{\"name\":\"a\",\"shape\":[1],\"dtype\":\"bf16\"}"),
       "num_attention_heads"},
      {REFIT_TABLE("\"hidden_size\":\"x\"", "{\"name\":\"a\",\"shape\":[1],\"dtype\":\"bf16\"}"),
       "hidden_size"},
      {REFIT_TABLE("\"weight_block_size\":[128]",
                   "{\"name\":\"a\",\"shape\":[1],\"dtype\":\"bf16\"}"),
       "not two numbers"},
      {REFIT_TABLE("\"weight_block_size\":[8,8,8]",
                   "{\"name\":\"a\",\"shape\":[1],\"dtype\":\"bf16\"}"),
       "not two numbers"},
      {REFIT_TABLE("\"weight_block_size\":[0,1]",
                   "{\"name\":\"a\",\"shape\":[1],\"dtype\":\"bf16\"}"),
       "not two numbers"},
      /* k_proj with rows that the configuration does not make */
      {REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_P("self_attn.k_proj.weight", "[9,16]")), "make 8"},
      /* scales without a weight, without a block, of a wrong size */
      {REFIT_TABLE("\"weight_block_size\":[128,128]",
                   REFIT_P("mlp.down_proj.weight_scale_inv", "[1,1]")),
       "no weight beside it"},
      {REFIT_TABLE("", REFIT_P("mlp.down_proj.weight_scale_inv",
                               "[1,1]") "," REFIT_P("mlp.down_proj.weight", "[16,16]")),
       "no weight_block_size"},
      {REFIT_TABLE("\"weight_block_size\":[8,8]",
                   REFIT_P("mlp.down_proj.weight_scale_inv",
                           "[1,1]") "," REFIT_P("mlp.down_proj.weight", "[16,16]")),
       "1 blocks in dim 0"},
      {REFIT_TABLE("\"weight_block_size\":[128,128]",
                   REFIT_P("mlp.down_proj.weight_scale_inv",
                           "[1]") "," REFIT_P("mlp.down_proj.weight", "[16]")),
       "one scale of a whole weight"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"weight_block_size\":[128,128]",
                   REFIT_P("self_attn.q_proj.weight_scale_inv", "[1152921504606846976,1]")),
       "scales of more rows than 63 bits count"},
      /* one for all of a weight, by the name of those of blocks */
      {REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_P("self_attn.k_proj.weight_scale_inv", "[]")),
       "one scale of a whole weight"},
      {REFIT_TABLE("", REFIT_P("mlp.down_proj.weight_scale_inv",
                               "[1]") "," REFIT_P("mlp.down_proj.weight", "[16,16]")),
       "one scale of a whole weight"},
      /* fused experts that do not show their form */
      {REFIT_TABLE("\"hidden_size\":16", REFIT_P("mlp.experts.gate_up_proj", "[4,16,16]")),
       "in which form"},
      {REFIT_TABLE("\"hidden_size\":16", REFIT_P("mlp.experts.down_proj", "[4,16,8]")),
       "in which form"},
      {REFIT_TABLE("",
                   "{\"pattern\":\"a.{layer}\",\"layer_list\":3,\"shape\":[1],\"dtype\":\"bf16\"}"),
       "\"layer_list\" of a tensor must be a list"},
      {REFIT_TABLE(
           "",
           "{\"pattern\":\"a.{layer}\",\"layer_list\":[\"x\"],\"shape\":[1],\"dtype\":\"bf16\"}"),
       "entry 0 of layer_list is no layer"},
      {REFIT_TABLE("", "{\"pattern\":\"a.{expert}\",\"expert\":[0,1],\"shape\":[1,1,1,1,1,1,1,1],"
                       "\"dtype\":\"bf16\"}"),
       "has 9 dims, more than 8"},
      {REFIT_TABLE("", "{\"pattern\":\"a.{expert}\",\"expert\":[0,7],\"shape\":[1073741824,"
                       "1073741824],\"dtype\":\"bf16\"}"),
       "table.json: \"a.{expert}\" has more bytes than 63 bits count"},
      {REFIT_TABLE("\"num_hidden_layers\":1048576", REFIT_N("a", "[1]")), "1048576 layers"},
      {REFIT_TABLE("\"num_hidden_layers\":0", REFIT_N("a", "[1]")), ": 0 layers"},
      {REFIT_TABLE("", "{\"name\":\"\",\"shape\":[1],\"dtype\":\"bf16\"}"),
       "\"name\" of a tensor must be a text that is not empty"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xfer_model *model = NULL;

    print_message("%.100s\n", cases[i].text);
    assert_int_not_equal(refit_load(&model, cases[i].text), XFER_OK);
    assert_null(model);
    refit_expect_error(cases[i].word);
  }
}

#define OWN(layer, k)                                                                              \
  REFIT_N("model.layers." layer ".self_attn.q_proj.weight", "[16,16]")                             \
  "," k REFIT_N("model.layers." layer ".self_attn.v_proj.weight",                                  \
                "[8,16]") "," REFIT_N("model.layers." layer ".self_attn.o_proj.weight", "[16,16]")
#define KEYS(layer) REFIT_N("model.layers." layer ".self_attn.k_proj.weight", "[8,16]") ","

/* The tensors of a table on one side alone, in their order; false: it is refused. */
static bool join(const char *table, const char *spec, int32_t *layers, size_t *n)
{
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_model *model = NULL;
  xfer_side *side = NULL;
  xfer_refit *refit = NULL;
  xfer_refit_tensor tensor;
  xfer_status st;

  take_as_loaded(&options, spec);
  refit_write("table.json", table);
  assert_int_equal(xfer_model_load(&model, refit_path("table.json"), NULL), XFER_OK);
  assert_int_equal(xfer_side_create(&side, spec, &options), XFER_OK);
  st = xfer_refit_create(&refit, model, NULL, side);
  if (st == XFER_OK) (void)xfer_refit_tensors(refit, n);
  for (size_t i = 0; st == XFER_OK && i < *n; i++) {
    assert_int_equal(xfer_refit_tensor_get(refit, i, &tensor), XFER_OK);
    layers[i] = tensor.layer;
  }
  xfer_refit_destroy(refit);
  xfer_side_destroy(side);
  xfer_model_destroy(model);
  return st == XFER_OK;
}

/* Names one by one are gathered: the same tensors in the same order, and what a layer lacks is
 * missed as well. */
static void test_layers_one_by_one_are_as_a_pattern_has_them(void **state)
{
  int32_t pattern[8], names[8];
  size_t n = 0, n_names = 0;
  xfer_model *model = NULL;

  (void)state;
  assert_true(join(REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_ATTENTION), "vllm:tp2", pattern, &n));
  assert_true(join(REFIT_TABLE(REFIT_DENSE_CONFIG, OWN("1", KEYS("1")) "," OWN("0", KEYS("0"))),
                   "vllm:tp2", names, &n_names));
  assert_int_equal(n, 8);
  assert_int_equal(n_names, 8);
  assert_memory_equal(pattern, names, sizeof names);
  assert_false(join(REFIT_TABLE(REFIT_DENSE_CONFIG, OWN("0", KEYS("0")) "," OWN("1", "")),
                    "vllm:tp2", names, &n_names));
  print_message("  %s\n", xfer_last_error());
  assert_non_null(strstr(xfer_last_error(), "missing in layer 1: attn.k"));
  refit_write("table.json", REFIT_TABLE(REFIT_DENSE_CONFIG, OWN("0", KEYS("0")) "," OWN("0", "")));
  assert_int_equal(xfer_model_load(&model, refit_path("table.json"), NULL), XFER_ERR_IO);
  assert_non_null(strstr(xfer_last_error(), "is in the model twice"));
}

/* "num_attention": "heads" is no num_attention_heads, and a number is one at any size. */
static void test_texts_stand_for_no_figure(void **state)
{
  xfer_model *model = NULL;

  (void)state;
  refit_write(
      "table.json",
      REFIT_TABLE("\"num_attention\":\"heads\",\"some_size\":1099511627776," REFIT_DENSE_CONFIG,
                  REFIT_DENSE_PARAMS));
  assert_int_equal(xfer_model_load(&model, refit_path("table.json"), NULL), XFER_OK);
  xfer_model_destroy(model);
}

static void test_a_name_that_is_too_long_is_refused(void **state)
{
  char name[600];
  char text[1000];
  xfer_model *model = NULL;

  (void)state;
  memset(name, 'a', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  (void)snprintf(text, sizeof text, REFIT_TABLE("", REFIT_N("%s", "[1]")), name);
  assert_int_equal(refit_load(&model, text), XFER_ERR_IO);
  refit_expect_error("a tensor name of 599 characters");
}

static void test_ranges_keep_what_they_say(void **state)
{
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;
  xfer_model *model = NULL;
  const char *path = refit_write("table.json", REFIT_DENSE);

  (void)state;
  options.layers_begin = 1;
  options.layers_end = 2;
  assert_int_equal(xfer_model_load(&model, path, &options), XFER_OK);
  assert_int_equal(report_of(model).hf_tensors, 7);
  xfer_model_destroy(model);
  options.ends = 1;
  assert_int_equal(xfer_model_load(&model, path, &options), XFER_OK);
  assert_int_equal(report_of(model).hf_tensors, 7 + 3);
  xfer_model_destroy(model);
  options.ends = 0;
  options.layers_begin = 5;
  options.layers_end = 6;
  assert_int_equal(xfer_model_load(&model, path, &options), XFER_ERR_ARG);
  options.layers_end = 5;
  assert_int_equal(xfer_model_load(&model, path, &options), XFER_ERR_ARG);
  options.layers_begin = 0;
  options.layers_end = 6; /* the last of them is not there */
  assert_int_equal(xfer_model_load(&model, path, &options), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "the model has"));
  options.layers_begin = 1;
  options.layers_end = 0; /* the first of all layers */
  assert_int_equal(xfer_model_load(&model, path, &options), XFER_ERR_ARG);
  refit_expect_error("layers_begin is 1 and layers_end 0");
  options.layers_begin = 0;
  options.experts_begin = 3;
  assert_int_equal(xfer_model_load(&model, path, &options), XFER_ERR_ARG);
  refit_expect_error("experts_begin is 3 and experts_end 0");
  options = (xfer_model_options)XFER_MODEL_OPTIONS_INIT;
  options.extra = "mtp";
  assert_int_equal(xfer_model_load(&model, path, &options), XFER_ERR_ARG);
  mkdir(refit_path("plain"), 0777);
  refit_write("plain/config.json", "{}");
  refit_write_header("plain/a.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}");
  assert_int_equal(xfer_model_load(&model, refit_path("plain"), &options), XFER_ERR_ARG);
  refit_expect_error("has no extra_params");
}

static void test_totals_of_extra_params_are_checked(void **state)
{
  static const char table[] =
      "{\"format\":\"xfer-model-v1\",\"config\":{},\"totals\":{\"tensors\":1},"
      "\"extra_totals\":{\"mtp\":{\"tensors\":1,\"bytes\":8}},"
      "\"params\":[{\"name\":\"a\",\"shape\":[3],\"dtype\":\"bf16\"}],"
      "\"extra_params\":{\"mtp\":[{\"name\":\"b\",\"shape\":[5],\"dtype\":\"bf16\"}]}}";
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;
  xfer_model *model = NULL;

  (void)state;
  assert_int_equal(refit_load(&model, table), XFER_OK);
  xfer_model_destroy(model);
  options.extra = "mtp";
  assert_int_equal(xfer_model_load(&model, refit_write("table.json", table), &options),
                   XFER_ERR_IO);
  refit_expect_error("its totals say 8 bytes, and its extra_params make 10");
}

/* Experts by name, in any order, are the experts of a pattern. */
static void test_experts_may_be_listed_by_name(void **state)
{
  static const char config[] =
      "\"model_type\":\"mixtral\",\"vocab_size\":64,\"hidden_size\":8,\"num_hidden_layers\":1,"
      "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"intermediate_size\":8,"
      "\"num_local_experts\":3";
  static const char *const listed[] = {"0.w1", "0.w2", "0.w3", "1.w1", "1.w2",
                                       "1.w3", "2.w3", "2.w2", "2.w1"};
  char text[4000];

  (void)state;
  for (int n = 9; n >= 8; n--) {
    xfer_model *model = NULL;
    size_t at = (size_t)snprintf(text, sizeof text,
                                 "{\"format\":\"xfer-model-v1\",\"config\":{%s},"
                                 "\"params\":[",
                                 config);

    for (int i = 0; i < n; i++)
      at += (size_t)snprintf(text + at, sizeof text - at,
                             "%s{\"name\":\"model.layers.0.block_sparse_moe.experts.%s.weight\","
                             "\"shape\":[8,8],\"dtype\":\"bf16\"}",
                             i == 0 ? "" : ",", listed[i]);
    (void)snprintf(text + at, sizeof text - at, "]}");
    assert_int_equal(refit_load(&model, text), n == 9 ? XFER_OK : XFER_ERR_IO);
    if (n == 9) assert_int_equal(report_of(model).payload_bytes, 9 * 8 * 8 * 2);
    if (n == 8) refit_expect_error("has 2 experts; the configuration says 3");
    xfer_model_destroy(model);
  }
}

/* ERNIE 4.5 VL has some for text and smaller ones for images. */
static void test_experts_of_two_kinds_are_refused(void **state)
{
  xfer_model *model = NULL;

  (void)state;
#define EXPERTS(range, rows)                                                                       \
  "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight\",\"layer\":[0,0],"     \
  "\"expert\":" range ",\"shape\":[" rows ",16],\"dtype\":\"bf16\"}"
  assert_int_equal(
      refit_load(&model, REFIT_TABLE("\"num_hidden_layers\":1,\"hidden_size\":16",
                                     EXPERTS("[0,1]", "16") "," EXPERTS("[2,3]", "8"))),
      XFER_ERR_IO);
#undef EXPERTS
  refit_expect_error("has expert 2 in layer 0, and the one before it is of another kind");
}

static void test_added_tensors_join_the_table(void **state)
{
  const int64_t shape[] = {4};
  const int64_t negative = -1;
  xfer_model *model = NULL;

  (void)state;
  assert_int_equal(refit_load(&model, REFIT_DENSE), XFER_OK);
  assert_int_equal(xfer_model_add(model, "model.layers.0.self_attn.k_scale", XFER_F32, NULL, 0),
                   XFER_OK);
  assert_int_equal(xfer_model_add(model, "model.layers.1.self_attn.k_scale", XFER_F32, NULL, 0),
                   XFER_OK);
  assert_int_equal(xfer_model_add(model, "model.layers.1.self_attn.k_scale", XFER_F32, NULL, 0),
                   XFER_ERR_ARG);
  assert_int_equal(xfer_model_add(model, "model.layers.0.self_attn.v_scale", XFER_F32, NULL, 0),
                   XFER_OK); /* the one that was refused left nothing behind */
  report_of(model);
  xfer_model_destroy(model);

  assert_int_equal(refit_load(&model, REFIT_DENSE), XFER_OK);
  assert_int_equal(xfer_model_add(model, "model.norm.weight", XFER_BF16, shape, 1), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "model.norm.weight"));
  xfer_model_destroy(model);

  assert_int_equal(refit_load(&model, REFIT_DENSE), XFER_OK);
  assert_int_equal(xfer_model_add(model, "x", 99, shape, 1), XFER_ERR_ARG);
  refit_expect_error("dtype 99");
  assert_int_equal(xfer_model_add(model, "", XFER_F32, shape, 1), XFER_ERR_ARG);
  assert_int_equal(xfer_model_add(model, "x", XFER_F32, &negative, 1), XFER_ERR_ARG);
  refit_expect_error("size -1 of dim 0");
  assert_int_equal(xfer_model_add(model, "x.{layer}", XFER_F32, shape, 1), XFER_ERR_ARG);
  assert_int_equal(xfer_model_add(model, "x", XFER_F32, shape, 9), XFER_ERR_ARG);
  refit_expect_error("9 dims");
  report_of(model);
  assert_int_equal(xfer_model_add(model, "x", XFER_F32, shape, 1), XFER_ERR_STATE);
  xfer_model_destroy(model);
}

/* Scales that fit no weight: the entry of their weight was split from those of other layers. */
static void test_a_refused_tensor_takes_no_other_with_it(void **state)
{
  static const char table[] =
      REFIT_TABLE(REFIT_DENSE_CONFIG ",\"weight_block_size\":[8,8]", REFIT_DENSE_PARAMS);
  const int64_t wrong[] = {20, 76}, right[] = {2, 4};
  xfer_model *model = NULL;

  (void)state;
  assert_int_equal(refit_load(&model, table), XFER_OK);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(
        xfer_model_add(model, "model.layers.0.mlp.down_proj.weight_scale_inv", XFER_F32, wrong, 2),
        XFER_ERR_MISMATCH);
    refit_expect_error("has 20 blocks in dim 0");
  }
  assert_int_equal(
      xfer_model_add(model, "model.layers.1.mlp.down_proj.weight_scale_inv", XFER_F32, right, 2),
      XFER_OK);
  assert_int_equal(report_of(model).hf_tensors, 3 + 2 * 7 + 1);
  xfer_model_destroy(model);
}

static void test_renames_lead_to_known_names(void **state)
{
  static const char table[] = REFIT_TABLE(
      REFIT_DENSE_CONFIG,
      "{\"pattern\":\"thinker.model.layers.{layer}.mlp.down_proj.weight\",\"layer\":[0,1],"
      "\"shape\":[16,32],\"dtype\":\"bf16\"}");
  static const char two_of_one[] =
      REFIT_TABLE(REFIT_DENSE_CONFIG, "{\"name\":\"a\",\"shape\":[1],\"dtype\":\"bf16\"},"
                                      "{\"name\":\"thinker.a\",\"shape\":[1],\"dtype\":\"bf16\"}");
  static const char *const renames[] = {"thinker.*", "*"};
  static const char *const bad[] = {"a", "*"};
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;
  xfer_side *train = NULL;
  xfer_refit *refit = NULL;
  xfer_model *model = NULL;

  (void)state;
  assert_int_equal(xfer_side_create(&train, "megatron:tp2", NULL), XFER_OK);
  assert_int_equal(refit_load(&model, table), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, train, NULL), XFER_ERR_UNSUPPORTED);
  xfer_model_destroy(model);
  options.renames = renames;
  options.n_renames = 1;
  assert_int_equal(xfer_model_load(&model, refit_path("table.json"), &options), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, train, NULL), XFER_OK);
  xfer_refit_destroy(refit);
  xfer_model_destroy(model);
  options.renames = bad;
  assert_int_equal(xfer_model_load(&model, refit_path("table.json"), &options), XFER_ERR_ARG);
  refit_write("table.json", two_of_one);
  options.renames = renames;
  assert_int_equal(xfer_model_load(&model, refit_path("table.json"), &options), XFER_ERR_ARG);
  refit_expect_error("\"a\" and \"thinker.a\" are one name, \"a\"");
  xfer_side_destroy(train);
}

static void test_the_last_of_many_renames_must_match_too(void **state)
{
  static const char *renames[2 * 65];
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;
  xfer_model *model = NULL;
  const char *path = refit_write("table.json", REFIT_DENSE);

  (void)state;
  for (int i = 0; i < 2 * 65; i++)
    renames[i] = "*";
  options.renames = renames;
  options.n_renames = 65;
  assert_int_equal(xfer_model_load(&model, path, &options), XFER_OK);
  xfer_model_destroy(model);
  renames[2 * 64] = "nothing.*";
  assert_int_equal(xfer_model_load(&model, path, &options), XFER_ERR_ARG);
  refit_expect_error("rename \"nothing.*\": no tensor of the model matches");
}

static void test_a_rename_puts_nothing_into_layers(void **state)
{
  static const char table[] =
      REFIT_TABLE(REFIT_DENSE_CONFIG, "{\"name\":\"norm\",\"shape\":[16],\"dtype\":\"bf16\"}");
  static const char *const renames[] = {"norm", "model.layers.{layer}.input_layernorm.weight"};
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;
  xfer_side *train = NULL;
  xfer_refit *refit = NULL;
  xfer_model *model = NULL;

  (void)state;
  assert_int_equal(refit_load(&model, table), XFER_OK);
  xfer_model_destroy(model);
  options.renames = renames;
  options.n_renames = 1;
  assert_int_equal(xfer_model_load(&model, refit_path("table.json"), &options), XFER_OK);
  assert_int_equal(xfer_side_create(&train, "megatron:tp2", NULL), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, train, NULL), XFER_ERR_UNSUPPORTED);
  refit_expect_error("no rule of family");
  xfer_side_destroy(train);
  xfer_model_destroy(model);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table_counts_its_tensors_and_bytes),
      cmocka_unit_test(test_malformed_tables_are_refused),
      cmocka_unit_test(test_layers_one_by_one_are_as_a_pattern_has_them),
      cmocka_unit_test(test_texts_stand_for_no_figure),
      cmocka_unit_test(test_a_name_that_is_too_long_is_refused),
      cmocka_unit_test(test_ranges_keep_what_they_say),
      cmocka_unit_test(test_totals_of_extra_params_are_checked),
      cmocka_unit_test(test_experts_may_be_listed_by_name),
      cmocka_unit_test(test_experts_of_two_kinds_are_refused),
      cmocka_unit_test(test_added_tensors_join_the_table),
      cmocka_unit_test(test_a_refused_tensor_takes_no_other_with_it),
      cmocka_unit_test(test_renames_lead_to_known_names),
      cmocka_unit_test(test_the_last_of_many_renames_must_match_too),
      cmocka_unit_test(test_a_rename_puts_nothing_into_layers),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
