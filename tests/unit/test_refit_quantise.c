/* Types of a side: casts, and blocks with their scales. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "refit_sides.h"

#define GPT_OSS                                                                                    \
  REFIT_TABLE(REFIT_DENSE_CONFIG                                                                   \
              ",\"model_type\":\"gpt_oss\",\"num_local_experts\":4,\"intermediate_size\":32",      \
              REFIT_P("mlp.experts.gate_up_proj", "[4,16,64]"))
#define PHI3_BLOCKS                                                                                \
  REFIT_TABLE(REFIT_BLOCKS("[16,16]") ",\"model_type\":\"phi3\",\"intermediate_size\":32",         \
              REFIT_P("self_attn.qkv_proj.weight", "[32,16]"))

static bool is_blocks(const xfer_conversion *c, int rows, int columns, xfer_block_scale scale)
{
  return c->kind == XFER_CONVERSION_BLOCKS && c->rows == rows && c->columns == columns &&
         c->scale == (int32_t)scale;
}

static bool is_scales_of(const xfer_conversion *c, size_t tensor)
{
  return c->kind == XFER_CONVERSION_SCALES && c->tensor == tensor;
}

static void test_a_said_type_is_a_cast_or_refused_by_name(void **state)
{
  static const char table[] = REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_P("mlp.gate.weight", "[8,16]"));
  refit_sides s = refit_sides_make(table, "megatron:", "vllm:");
  size_t n = 0;
  size_t n_casts = 0;

  (void)state;
  assert_int_equal(xfer_side_dtype(s.gen, "*.mlp.gate.weight", XFER_F32), XFER_OK);
  assert_int_equal(refit_sides_join(&s), XFER_OK);
  const xfer_tensor *tensors = xfer_refit_tensors(s.refit, &n);
  for (size_t t = 0; t < n; t++) {
    const bool is_router = strstr(tensors[t].name, ".mlp.gate.weight") != NULL;

    assert_int_equal(tensors[t].conversion.kind,
                     is_router ? XFER_CONVERSION_CAST : XFER_CONVERSION_NONE);
    n_casts += is_router;
  }
  assert_true(n_casts > 0);
  refit_expect_plans(&s);
  refit_sides_end(&s);

  s = refit_sides_make(table, "megatron:", "vllm:");
  assert_int_equal(xfer_side_dtype(s.gen, "*.mlp.gate.weight", XFER_I16), XFER_OK);
  assert_int_equal(refit_sides_join(&s), XFER_ERR_MISMATCH);
  refit_expect_error("model.layers.0.mlp.gate.weight");
  refit_expect_error("i16");
  refit_expect_error("bf16");
  refit_sides_end(&s);
}

static void test_weights_that_a_trainer_has_unquantised_get_their_scales_on_the_way(void **state)
{
  /* tp8 of the trainer cuts blocks of 512 rows, which it does not have */
  refit_sides s =
      refit_sides_make(REFIT_TABLE(REFIT_FP8, REFIT_FP8_MLP(512)), "megatron:tp8", "vllm:");
  size_t n = 0;
  size_t n_pairs = 0;

  (void)state;
  assert_int_equal(xfer_side_dtype(s.train, "*", XFER_BF16), XFER_OK);
  assert_int_equal(refit_sides_join(&s), XFER_OK);
  const xfer_tensor *tensors = xfer_refit_tensors(s.refit, &n);
  for (size_t t = 0; t < n; t++) {
    if (strstr(tensors[t].name, "scale_inv") != NULL) continue;
    assert_true(is_blocks(&tensors[t].conversion, 128, 128, XFER_SCALE_F32));
    for (size_t k = 0; k < n; k++) {
      if (!is_scales_of(&tensors[k].conversion, t)) continue;
      assert_null(tensors[k].src);
      assert_int_equal(strncmp(tensors[k].name, tensors[t].name, strlen(tensors[t].name)), 0);
      n_pairs++;
    }
  }
  assert_true(n_pairs == 2 && n == 4);
  refit_expect_plans(&s);
  refit_sides_end(&s);

  s = refit_sides_make(REFIT_TABLE(REFIT_FP8, REFIT_FP8_MLP(512)), "megatron:", "vllm:");
  assert_int_equal(xfer_side_dtype(s.gen, "*", XFER_BF16), XFER_OK);
  assert_int_equal(refit_sides_join(&s), XFER_ERR_MISMATCH);
  refit_expect_error("there is no conversion");
  refit_sides_end(&s);
}

static void test_ways_to_quantise_that_do_not_fit_are_refused(void **state)
{
  static const struct {
    const char *table, *train, *gen, *word;
  } cases[] = {
      {REFIT_TABLE(REFIT_FP8, REFIT_FP8_MLP(512)), "full", "vllm:quant=mxfp8",
       "1 x 32 with weight_scale in f8e8m0, the model is by 128 x 128 with weight_scale_inv in "
       "f32"},
      {REFIT_DENSE, "full:quant=fp8_per_block", "vllm:quant=mxfp8", "full:quant=fp8_per_block by"},
      {REFIT_DENSE, "full:quant=fp8_per_block", "vllm:", "there is no conversion"},
      {REFIT_TABLE(REFIT_BLOCKS("[70000,8]"), REFIT_DENSE_PARAMS), "full",
       "vllm:quant=fp8_per_block", "blocks of 70000"},
      {REFIT_DENSE, "full", "vllm:quant=fp8_per_block", "no whole number of blocks of 128"},
      {REFIT_TABLE(REFIT_BLOCKS("[8,16]"), REFIT_DENSE_PARAMS), "full",
       "vllm:tp2,quant=fp8_per_block", "multiple of the block of"},
      {PHI3_BLOCKS, "full", "full:quant=fp8_per_block",
       "its 8 rows are no whole number of blocks of 16"},
      {GPT_OSS, "full", "vllm:quant=fp8_per_block", "that alternate have no blocks"},
      {"", "full", "vllm:quant=fp8", "want one of fp8_per_block mxfp8"},
      {"", "full", "megatron:quant=mxfp8", "no item \"quant\""},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    print_message("%s -> %s: %s\n", cases[i].train, cases[i].gen, cases[i].word);
    if (cases[i].table[0] == '\0') {
      xfer_side *side = NULL;

      assert_int_equal(xfer_side_create(&side, cases[i].gen, NULL), XFER_ERR_ARG);
    } else {
      refit_sides s = refit_sides_make(cases[i].table, cases[i].train, cases[i].gen);

      assert_int_not_equal(refit_sides_join(&s), XFER_OK);
      refit_sides_end(&s);
    }
    refit_expect_error(cases[i].word);
  }
}

/* What an engine has by its SPEC, less what was said of single weights. */
static void test_a_side_that_quantises_has_scales_beside_its_weights(void **state)
{
  static const struct {
    const char *gen;
    int32_t rows, columns;
    xfer_block_scale scale;
    xfer_dtype scales;
  } cases[] = {{"vllm:quant=fp8_per_block", 8, 16, XFER_SCALE_F32, XFER_F32},
               {"vllm:quant=mxfp8,dtype=f16", 1, 32, XFER_SCALE_MX, XFER_F8E8M0}};

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refit_sides s = refit_sides_make(REFIT_TABLE(REFIT_BLOCKS("[8,16]"), REFIT_DENSE_PARAMS),
                                     "megatron:tp2,dtype=f32", cases[i].gen);
    const xfer_tensor *tensors;
    size_t n = 0, n_quantised = 0, n_scales = 0;

    assert_int_equal(xfer_side_dtype(s.gen, "*.o_proj.weight", XFER_BF16), XFER_OK);
    assert_int_equal(xfer_side_dtype(s.gen, "model.layers.1.mlp.*", XFER_BF16), XFER_OK);
    assert_int_equal(refit_sides_join(&s), XFER_OK);
    tensors = xfer_refit_tensors(s.refit, &n);
    for (size_t t = 0; t < n; t++) {
      const xfer_dtype type = (xfer_dtype)xfer_layout_dtype(tensors[t].dst);

      if (strstr(tensors[t].name, "o_proj") != NULL ||
          strstr(tensors[t].name, "layers.1.mlp.") != NULL) {
        assert_true(type == XFER_BF16 && tensors[t].conversion.kind == XFER_CONVERSION_CAST);
      } else if (strstr(tensors[t].name, "weight_scale") != NULL) {
        assert_true(type == cases[i].scales && tensors[t].src == NULL);
        n_scales++;
      } else if (type == XFER_F8E4M3) {
        assert_true(
            is_blocks(&tensors[t].conversion, cases[i].rows, cases[i].columns, cases[i].scale));
        n_quantised++;
      } else {
        assert_true(type == (i == 0 ? XFER_BF16 : XFER_F16));
      }
    }
    assert_true(n_quantised == 6 + 3 && n_scales == n_quantised);
    refit_expect_plans(&s);
    refit_sides_end(&s);
  }
}

/* A pattern that is of weights alone takes their scales along. */
static void test_scales_are_of_the_layers_that_their_weights_have(void **state)
{
  static const char *const layers[] = {"model.layers.0.", "model.layers.1."};

  (void)state;
  for (int k = 0; k < 2; k++) {
    refit_sides s = refit_sides_make(REFIT_TABLE(REFIT_BLOCKS("[8,16]"), REFIT_DENSE_PARAMS),
                                     "megatron:tp2", "vllm:quant=fp8_per_block");
    const xfer_tensor *tensors;
    size_t n = 0, n_scales = 0;
    char pattern[64];

    snprintf(pattern, sizeof pattern, "%s*.weight", layers[k]);
    assert_int_equal(xfer_side_dtype(s.gen, pattern, XFER_BF16), XFER_OK);
    assert_int_equal(refit_sides_join(&s), XFER_OK);
    tensors = xfer_refit_tensors(s.refit, &n);
    for (size_t t = 0; t < n; t++) {
      const bool own = strncmp(tensors[t].name, layers[k], strlen(layers[k])) == 0;
      const bool scale = strstr(tensors[t].name, "weight_scale_inv") != NULL;
      const bool proj = strstr(tensors[t].name, "_proj.weight") != NULL;

      assert_false(own && scale);
      n_scales += scale;
      if (!scale)
        assert_int_equal(xfer_layout_dtype(tensors[t].dst), proj && !own ? XFER_F8E4M3 : XFER_BF16);
    }
    assert_int_equal(n_scales, 7);
    refit_expect_plans(&s);
    refit_sides_end(&s);

    s = refit_sides_make(REFIT_TABLE(REFIT_FP8, REFIT_FP8_MLP(448)), "megatron:tp2", "vllm:");
    assert_int_equal(xfer_side_give_whole(s.train, pattern, 0), XFER_OK);
    assert_int_equal(refit_sides_join(&s), XFER_ERR_UNSUPPORTED);
    refit_expect_error("multiple of the block of");
    refit_sides_end(&s);
  }
}

/* dtype= asks what the table has, not what the other side makes of it. */
static void test_a_type_for_all_but_f32_is_of_the_table(void **state)
{
  static const char *const gens[] = {"vllm:", "vllm:quant=fp8_per_block"};

  (void)state;
  for (int k = 0; k < 2; k++) {
    refit_sides s =
        refit_sides_make(REFIT_TABLE(REFIT_BLOCKS("[8,16]"),
                                     "{\"pattern\":\"model.layers.{layer}.mlp.down_proj.weight\","
                                     "\"layer\":[0,1],\"shape\":[16,32],\"dtype\":\"f32\"}"),
                         "megatron:dtype=bf16", gens[k]);
    const xfer_tensor *tensors;
    size_t n = 0;

    assert_int_equal(refit_sides_join(&s), XFER_OK);
    tensors = xfer_refit_tensors(s.refit, &n);
    for (size_t t = 0; t < n; t++)
      if (tensors[t].src != NULL) assert_int_equal(xfer_layout_dtype(tensors[t].src), XFER_F32);
    assert_int_equal(n, k == 0 ? 2 : 4);
    refit_sides_end(&s);
  }
}

static void test_what_lies_in_one_tensor_is_quantised_or_not(void **state)
{
  refit_sides s = refit_sides_make(REFIT_TABLE(REFIT_BLOCKS("[8,16]"), REFIT_DENSE_PARAMS), "full",
                                   "vllm:quant=fp8_per_block");

  (void)state;
  assert_int_equal(xfer_side_dtype(s.gen, "model.layers.1.mlp.gate_proj.*", XFER_BF16), XFER_OK);
  assert_int_equal(refit_sides_join(&s), XFER_ERR_MISMATCH);
  refit_expect_error("is bf16 and \"model.layers.{layer}.mlp.up_proj.weight\"");
  refit_sides_end(&s);
}

#define LEFT(list)                                                                                 \
  REFIT_TABLE(REFIT_BLOCKS("[8,16]") ",\"model_type\":\"llama\",\"quantization_config\":{" list    \
                                     "}",                                                          \
              REFIT_DENSE_PARAMS)

/* A list of the configuration says which weights an engine leaves as they are. */
static void test_what_the_configuration_leaves_has_no_scales(void **state)
{
  static const struct {
    const char *table, *has, *has_not; /* names of scales */
  } cases[] = {
      {LEFT("\"modules_to_not_convert\":[\"lm_head\",\"model.layers.0.mlp.down_proj\"]"),
       "model.layers.1.mlp.down_proj.weight_scale_inv",
       "model.layers.0.mlp.down_proj.weight_scale_inv"},
      {LEFT("\"ignored_layers\":[\"model.layers.1.self_attn.o_proj\"],\"modules_to_not_convert\":["
            "\"model.layers.0.self_attn.o_proj\"]"),
       "model.layers.0.self_attn.o_proj.weight_scale_inv",
       "model.layers.1.self_attn.o_proj.weight_scale_inv"},
      {LEFT("\"ignored_layers\":[],\"modules_to_not_convert\":[\"model.layers.0.mlp.gate_proj\","
            "\"model.layers.0.mlp.up_proj\"]"),
       "model.layers.1.mlp.gate_up_proj.weight_scale_inv",
       "model.layers.0.mlp.gate_up_proj.weight_scale_inv"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refit_sides s = refit_sides_make(cases[i].table, "full", "vllm:quant=fp8_per_block");
    xfer_locals *locals = NULL;
    xfer_local local;
    bool has = false;

    assert_int_equal(refit_sides_join(&s), XFER_OK);
    refit_expect_plans(&s);
    assert_int_equal(xfer_locals_create(&locals, s.refit, 1), XFER_OK);
    for (size_t k = 0; k < xfer_locals_count(locals); k++) {
      assert_int_equal(xfer_locals_get(locals, k, &local), XFER_OK);
      assert_string_not_equal(local.name, cases[i].has_not);
      has = has || strcmp(local.name, cases[i].has) == 0;
    }
    assert_true(has);
    xfer_locals_destroy(locals);
    refit_sides_end(&s);
  }
}

/* Parts of names, other places of layers, what an engine makes of several: one may mean it. */
static void test_an_unclear_list_of_what_is_left_is_refused(void **state)
{
  static const char *const tables[] = {LEFT("\"modules_to_not_convert\":[\"self_attn\"]"),
                                       LEFT("\"modules_to_not_convert\":[\"o_proj\"]"),
                                       LEFT("\"modules_to_not_convert\":[\"model.language_model."
                                            "layers.0.self_attn.o_proj\"]"),
                                       LEFT("\"ignored_layers\":[\"model.layers.0.mlp.gate_up\"]")};

  (void)state;
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
    refit_sides s = refit_sides_make(tables[i], "full", "vllm:quant=fp8_per_block");

    assert_int_equal(refit_sides_join(&s), XFER_ERR_UNSUPPORTED);
    refit_expect_error("which the configuration may or may not mean by");
    assert_int_equal(xfer_side_dtype(s.gen, "*_proj.weight", XFER_BF16), XFER_OK);
    assert_int_equal(refit_sides_join(&s), XFER_OK);
    refit_sides_end(&s);
  }
}

#define TURNED(size)                                                                               \
  REFIT_TABLE(REFIT_BLOCKS(size) ",\"model_type\":\"llama4_text\"", REFIT_ENDS "," REFIT_ATTENTION)

/* vLLM turns the rows of each head of 4, of which q has 4, before it quantises them. */
static void test_scales_of_turned_rows_stay_where_their_blocks_are(void **state)
{
  static const struct {
    const char *table;
    int64_t rows; /* of the scales of q */
  } cases[] = {{TURNED("[4,16]"), 4}, {TURNED("[8,16]"), 2}};

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refit_sides s = refit_sides_make(cases[i].table, "full", "vllm:quant=fp8_per_block");
    xfer_locals *locals = NULL;
    xfer_local_part part;
    xfer_local local;
    int64_t n_rows = 0;

    assert_int_equal(refit_sides_join(&s), XFER_OK);
    refit_expect_plans(&s);
    assert_int_equal(xfer_locals_create(&locals, s.refit, 1), XFER_OK);
    for (size_t k = 0; k < xfer_locals_count(locals); k++) {
      assert_int_equal(xfer_locals_get(locals, k, &local), XFER_OK);
      if (strcmp(local.name, "model.layers.1.self_attn.qkv_proj.weight_scale_inv") != 0) continue;
      n_rows = local.shape[0];
      assert_int_equal(local.n_parts, 3);
      assert_int_equal(xfer_locals_part_get(locals, k, 0, &part), XFER_OK);
      assert_int_equal(part.first, 0);
      assert_int_equal(part.end - part.begin, cases[i].rows);
      assert_int_equal(part.step, 1);
    }
    assert_int_equal(n_rows, 2 * cases[i].rows);
    xfer_locals_destroy(locals);
    refit_sides_end(&s);
  }
  refit_sides s = refit_sides_make(TURNED("[2,16]"), "full", "vllm:quant=fp8_per_block");
  assert_int_equal(refit_sides_join(&s), XFER_ERR_UNSUPPORTED);
  refit_expect_error("turns the rows of each head of 4, which are no part of a block of 2");
  refit_sides_end(&s);
}

#define INDEXER                                                                                    \
  REFIT_TABLE(REFIT_BLOCKS("[8,16]") ",\"model_type\":\"deepseek_v32\"",                           \
              "{\"pattern\":\"model.layers.{layer}.self_attn.indexer.wk.weight\",\"layer\":[0,1]," \
              "\"shape\":[8,16],\"dtype\":\"f8e4m3\"},"                                            \
              "{\"pattern\":\"model.layers.{layer}.self_attn.indexer.wk.weight_scale_inv\","       \
              "\"layer\":[0,1],\"shape\":[1,1],\"dtype\":\"f32\"}," REFIT_P(                       \
                  "self_attn.indexer.weights_proj.weight", "[4,16]"))

/* vLLM has the indexer's keys unquantised with other weights, whatever the checkpoint has. */
static void test_a_rule_has_fp8_weights_without_scales(void **state)
{
  refit_sides s = refit_sides_make(INDEXER, "fsdp:dp2,dtype=bf16", "vllm:tp2");
  const xfer_tensor *tensors;
  size_t n = 0;

  (void)state;
  assert_int_equal(refit_sides_join(&s), XFER_OK);
  tensors = xfer_refit_tensors(s.refit, &n);
  assert_int_equal(n, 4); /* no scales */
  for (size_t t = 0; t < n; t++)
    assert_true(xfer_layout_dtype(tensors[t].dst) == XFER_BF16 &&
                tensors[t].conversion.kind == XFER_CONVERSION_NONE);
  refit_expect_plans(&s);
  refit_sides_end(&s);

  s = refit_sides_make(INDEXER, "full", "vllm:tp2");
  assert_int_equal(refit_sides_join(&s), XFER_ERR_MISMATCH);
  refit_expect_error("indexer.wk.weight\" is f8e4m3 with scales");
  refit_expect_error("have it unquantised on the training side");
  refit_sides_end(&s);
}

/* Hands in memory for all that a rank holds, one after the other. */
static void give_all(xfer_locals *locals)
{
  static _Alignas(16) char memory[1 << 16];
  size_t at = 0;

  for (size_t i = 0; i < xfer_locals_count(locals); i++) {
    xfer_local local;
    size_t n_bytes;

    assert_int_equal(xfer_locals_get(locals, i, &local), XFER_OK);
    n_bytes = xfer_dtype_size((xfer_dtype)local.dtype);
    for (int d = 0; d < local.n_dims; d++)
      n_bytes *= (size_t)local.shape[d];
    assert_true(at + n_bytes <= sizeof memory);
    assert_int_equal(xfer_locals_give(locals, (xfer_refit_side)local.side, local.name,
                                      (xfer_dtype)local.dtype, memory + at, local.shape, NULL,
                                      local.n_dims),
                     XFER_OK);
    at += (n_bytes + 15) / 16 * 16;
  }
}

/* A plan has its sources of scales bound from the beginning, so it does not look like a new one. */
static void test_a_plan_where_one_was_destroyed_is_bound_as_a_new_one(void **state)
{
  refit_sides s = {NULL, NULL, NULL, NULL};
  xfer_locals *locals = NULL;
  xfer_comm *comm = NULL;
  xfer_plan *plan = NULL;
  size_t n = 0;

  (void)state;
  assert_int_equal(refit_load(&s.model, REFIT_TABLE(REFIT_BLOCKS("[8,16]"), REFIT_DENSE_PARAMS)),
                   XFER_OK);
  assert_int_equal(refit_side(&s.train, "full", NULL), XFER_OK);
  assert_int_equal(refit_side(&s.gen, "vllm:quant=fp8_per_block", NULL), XFER_OK);
  assert_int_equal(refit_sides_join(&s), XFER_OK);
  assert_int_equal(xfer_comm_create_local(&comm, 1), XFER_OK);
  assert_int_equal(xfer_locals_create(&locals, s.refit, 0), XFER_OK);
  give_all(locals);
  const xfer_tensor *tensors = xfer_refit_tensors(s.refit, &n);
  for (int i = 0; i < 8; i++) { /* malloc gives the same place again, sooner or later */
    assert_int_equal(xfer_plan_create(&plan, comm, tensors, n, NULL), XFER_OK);
    assert_int_equal(xfer_locals_bind(locals, plan), XFER_OK);
    assert_int_equal(xfer_plan_commit(plan), XFER_OK);
    xfer_plan_destroy(plan);
  }
  xfer_comm_destroy(comm);
  xfer_locals_destroy(locals);
  refit_sides_end(&s);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_said_type_is_a_cast_or_refused_by_name),
      cmocka_unit_test(test_weights_that_a_trainer_has_unquantised_get_their_scales_on_the_way),
      cmocka_unit_test(test_ways_to_quantise_that_do_not_fit_are_refused),
      cmocka_unit_test(test_a_side_that_quantises_has_scales_beside_its_weights),
      cmocka_unit_test(test_scales_are_of_the_layers_that_their_weights_have),
      cmocka_unit_test(test_a_type_for_all_but_f32_is_of_the_table),
      cmocka_unit_test(test_what_lies_in_one_tensor_is_quantised_or_not),
      cmocka_unit_test(test_what_the_configuration_leaves_has_no_scales),
      cmocka_unit_test(test_an_unclear_list_of_what_is_left_is_refused),
      cmocka_unit_test(test_scales_of_turned_rows_stay_where_their_blocks_are),
      cmocka_unit_test(test_a_rule_has_fp8_weights_without_scales),
      cmocka_unit_test(test_a_plan_where_one_was_destroyed_is_bound_as_a_new_one),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
