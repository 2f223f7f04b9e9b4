/* Scales that a checkpoint has: one for each row, one for a whole weight, or of blocks by another
 * name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "refit_sides.h"

#define ROWS_OF(name, rows, columns, scales)                                                       \
  "{\"pattern\":\"model.layers.{layer}." name ".weight\",\"layer\":[0,1],\"shape\":[" #rows        \
  "," #columns "],\"dtype\":\"f8e4m3\"},{\"pattern\":\"model.layers.{layer}." name                 \
  ".weight_scale\",\"layer\":[0,1],\"shape\":" scales ",\"dtype\":\"bf16\"}"
#define ROWS                                                                                       \
  REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"llama\"",                                      \
              REFIT_ENDS "," ROWS_OF("mlp.gate_proj", 32, 16, "[32,1]") "," ROWS_OF(               \
                  "mlp.up_proj", 32, 16, "[32,1]") "," ROWS_OF("mlp.down_proj", 16, 32, "[16,1]"))

/* A local tensor of each of the two layers. */
typedef struct scale {
  const char *end; /* of its name */
  int n_dims, shape[2];
} scale;

/* Rank 2, the first that serves, has these scales alone, in f32. */
static void expect_scales(refit_sides *s, const scale *want, size_t n)
{
  xfer_locals *locals = NULL;
  xfer_local local;
  size_t n_found = 0;

  assert_int_equal(refit_sides_join(s), XFER_OK);
  refit_expect_plans(s);
  assert_int_equal(xfer_locals_create(&locals, s->refit, 2), XFER_OK);
  for (size_t i = 0; i < xfer_locals_count(locals); i++) {
    size_t k = 0;

    assert_int_equal(xfer_locals_get(locals, i, &local), XFER_OK);
    if (strstr(local.name, "_scale") == NULL) continue;
    print_message("%s\n", local.name);
    while (k < n && strstr(local.name, want[k].end) == NULL)
      k++;
    assert_true(k < n);
    n_found++;
    assert_int_equal(local.dtype, XFER_F32);
    assert_int_equal(local.n_dims, want[k].n_dims);
    for (int d = 0; d < local.n_dims; d++)
      assert_int_equal(local.shape[d], want[k].shape[d]);
  }
  assert_int_equal(n_found, 2 * n);
  xfer_locals_destroy(locals);
  refit_sides_end(s);
}

/* Those of what is cut by rows are cut with them, and lie in one tensor with others; what is cut by
 * columns has all of its scales on each rank. vLLM has them in f32, whatever the checkpoint has. */
static void test_scales_of_rows_go_with_their_rows(void **state)
{
  static const scale want[] = {{".gate_up_proj.weight_scale", 2, {32, 1}},
                               {".down_proj.weight_scale", 2, {16, 1}}};
  refit_sides s = refit_sides_make(ROWS, "full", "vllm:tp2");

  (void)state;
  expect_scales(&s, want, sizeof want / sizeof *want);
}

/* A scale for all of a weight, with a dim or without one: those of weights that lie in one tensor
 * lie in one, uncut, and of each expert there is one beside a down projection. */
#define EXPERTS_OF(name, rows, columns)                                                            \
  "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}." name                                 \
  ".weight\",\"layer\":[0,1],\"expert\":[0,3],\"shape\":[" #rows "," #columns                      \
  "],\"dtype\":\"f8e4m3\"},{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}." name         \
  ".weight_scale\",\"layer\":[0,1],\"expert\":[0,3],\"shape\":[],\"dtype\":\"f32\"}"
#define INPUT_OF(name) REFIT_P(name ".input_scale", "[1]")
#define MLP_OF_WHOLE                                                                               \
  ROWS_OF("mlp.gate_proj", 32, 16, "[1]")                                                          \
  "," ROWS_OF("mlp.up_proj", 32, 16, "[]") "," ROWS_OF("mlp.down_proj", 16, 32, "[1]")
#define INPUTS_OF_MLP INPUT_OF("mlp.gate_proj") "," INPUT_OF("mlp.up_proj")
#define EXPERTS_OF_WHOLE                                                                           \
  EXPERTS_OF("gate_proj", 8, 16)                                                                   \
  "," EXPERTS_OF("up_proj", 8, 16) "," EXPERTS_OF("down_proj", 16, 8)
#define MOE_CONFIG                                                                                 \
  REFIT_DENSE_CONFIG ",\"model_type\":\"qwen3_moe\",\"num_experts\":4,\"moe_intermediate_size\":8"

static void test_scales_of_whole_weights_are_on_all_ranks(void **state)
{
  static const scale want[] = {{".mlp.gate_up_proj.weight_scale", 1, {2}},
                               {".mlp.down_proj.weight_scale", 1, {1}},
                               {".mlp.gate_up_proj.input_scale", 1, {2}},
                               {".w13_weight_scale", 2, {4, 2}},
                               {".w2_weight_scale", 1, {4}}};
  refit_sides s = refit_sides_make(
      REFIT_TABLE(MOE_CONFIG, REFIT_ENDS "," MLP_OF_WHOLE "," INPUTS_OF_MLP "," EXPERTS_OF_WHOLE),
      "full", "vllm:tp2");

  (void)state;
  expect_scales(&s, want, sizeof want / sizeof *want);
}

/* Without them their weights would be cast, unscaled, and the engine keep old ones. */
static void test_weights_quantised_on_the_way_are_refused_without_their_scales(void **state)
{
  static const struct {
    const char *table, *train, *gen, *word;
  } cases[] = {
      {REFIT_TABLE(REFIT_BLOCKS("[8,16]"), REFIT_DENSE_PARAMS), "full", "vllm:quant=fp8_per_block",
       ".weight_scale_inv\" are ignored: ignore both or neither"},
      {REFIT_TABLE(REFIT_FP8, REFIT_FP8_MLP(512)), "full:dtype=bf16",
       "vllm:", "model.layers.0.mlp.up_proj.weight\" is quantised on the way, and its scales"},
      {ROWS, "full:dtype=bf16", "vllm:", "_scale\" are ignored: ignore both or neither"},
  };

  (void)state;
  for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
    refit_sides s = refit_sides_make(cases[i / 2].table, cases[i / 2].train, cases[i / 2].gen);

    print_message("%s -> %s: %s\n", cases[i / 2].train, cases[i / 2].gen, cases[i / 2].word);
    assert_int_equal(xfer_side_ignore(i % 2 == 0 ? s.train : s.gen, "*scale*"), XFER_OK);
    assert_int_equal(refit_sides_join(&s), XFER_ERR_ARG);
    refit_expect_error(cases[i / 2].word);
    refit_sides_end(&s);
  }

  refit_sides s = refit_sides_make(cases[0].table, cases[0].train, cases[0].gen);
  assert_int_equal(xfer_side_ignore(s.gen, "*.o_proj.weight*"), XFER_OK);
  assert_int_equal(refit_sides_join(&s), XFER_OK);
  refit_expect_plans(&s);
  refit_sides_end(&s);
}

/* compressed-tensors does not call scales of blocks inverse, and says of groups of layers how large
 * these are. Engines have them in f32, whatever the checkpoint has. */
static void test_scales_of_blocks_by_another_name(void **state)
{
  static const scale want[] = {{".gate_up_proj.weight_scale", 2, {4, 1}},
                               {".down_proj.weight_scale", 2, {2, 1}}};
  refit_sides s = refit_sides_make(
      REFIT_TABLE(
          REFIT_DENSE_CONFIG ",\"model_type\":\"llama\",\"quantization_config\":{\"config_"
                             "groups\":{\"g\":{\"weights\":{\"block_structure\":[8,16]}}}}",
          REFIT_ENDS "," ROWS_OF("mlp.gate_proj", 32, 16, "[4,1]") "," ROWS_OF(
              "mlp.up_proj", 32, 16, "[4,1]") "," ROWS_OF("mlp.down_proj", 16, 32, "[2,2]")),
      "full", "vllm:tp2");

  (void)state;
  expect_scales(&s, want, sizeof want / sizeof *want);
}

static void test_scales_of_rows_are_refused_where_no_rule_knows_them(void **state)
{
  static const struct {
    const char *table, *train, *gen, *word;
  } cases[] = {
      {ROWS, "full", "vllm:quant=fp8_per_block", "the model has a scale for each row"},
      {ROWS, "megatron:tp2", "vllm:", "no rule says what \"megatron:tp2\" makes of a scale"},
      {ROWS, "full:dtype=bf16", "vllm:", "are scales of weights that are not quantised on the way"},
      /* a role that no published checkpoint quantises */
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"qwen3_moe\"",
                   REFIT_ENDS "," ROWS_OF("mlp.gate", 8, 16, "[8,1]")),
       "full", "vllm:", "makes of a scale for each of its rows"},
      /* a scale for each group of columns, which is no row's */
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"llama\"",
                   REFIT_ENDS "," ROWS_OF("mlp.down_proj", 16, 32, "[16,2]")),
       "full", "vllm:", "no rule says what \"vllm:\" makes of this beside its weight"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"llama\",\"quantization_config\":{"
                                      "\"quant_method\":\"gptq\"}",
                   REFIT_ENDS "," REFIT_P("mlp.down_proj.qzeros", "[2,16]")),
       "full",
       "vllm:", "an adapter; the checkpoint is quantised (gptq): refit the unquantised one"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"llama\"",
                   REFIT_ENDS "," ROWS_OF("mlp.down_proj", 16, 32, "[1]")),
       "full", "megatron:", "makes of a scale for all of a weight"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"llama\"",
                   REFIT_ENDS "," REFIT_P("self_attn.k_scale", "[1]")),
       "full", "vllm:", "what vLLM makes of scales of its cache no rule says"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"llama\"",
                   REFIT_ENDS "," REFIT_P("self_attn.kv_scale", "[1]")),
       "full", "sglang:", "what SGLang makes of scales of its cache no rule says"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refit_sides s = refit_sides_make(cases[i].table, cases[i].train, cases[i].gen);

    assert_int_not_equal(refit_sides_join(&s), XFER_OK);
    refit_expect_error(cases[i].word);
    refit_sides_end(&s);
  }
}

/* vLLM has such a one as often as there are weights. */
static void test_one_scale_of_several_weights_is_refused(void **state)
{
  xfer_model *model = NULL;

  (void)state;
  assert_int_equal(
      refit_load(&model,
                 REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"phi3\",\"intermediate_size\":32",
                             REFIT_ENDS "," ROWS_OF("mlp.gate_up_proj", 64, 16, "[1]"))),
      XFER_ERR_UNSUPPORTED);
  refit_expect_error("is one scale of several weights");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_scales_of_rows_go_with_their_rows),
      cmocka_unit_test(test_scales_of_whole_weights_are_on_all_ranks),
      cmocka_unit_test(test_weights_quantised_on_the_way_are_refused_without_their_scales),
      cmocka_unit_test(test_scales_of_blocks_by_another_name),
      cmocka_unit_test(test_scales_of_rows_are_refused_where_no_rule_knows_them),
      cmocka_unit_test(test_one_scale_of_several_weights_is_refused),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
