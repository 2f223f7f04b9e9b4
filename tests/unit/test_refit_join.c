/* What does not join is refused by name; what is declared joins. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <xfer/refit.h>

#include "refit_files.h"

typedef struct sides {
  xfer_model *model;
  xfer_side *train;
  xfer_side *gen;
  xfer_refit *refit;
} sides;

static sides make(const char *table, const char *train, const char *gen)
{
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  sides s = {NULL, NULL, NULL, NULL};

  assert_int_equal(xfer_model_load(&s.model, refit_write("table.json", table), NULL), XFER_OK);
  options.weights = XFER_WEIGHTS_LOADED;
  assert_int_equal(xfer_side_create(&s.train, train, &options), XFER_OK);
  options.first_rank = xfer_side_size(s.train);
  assert_int_equal(xfer_side_create(&s.gen, gen, &options), XFER_OK);
  return s;
}

static xfer_status join(sides *s)
{
  return xfer_refit_create(&s->refit, s->model, s->train, s->gen);
}

static void unmake(sides *s)
{
  xfer_refit_destroy(s->refit);
  xfer_side_destroy(s->gen);
  xfer_side_destroy(s->train);
  xfer_model_destroy(s->model);
}

#define FP8 "\"weight_block_size\":[128,128],\"num_hidden_layers\":2,\"hidden_size\":256"
#define FP8_MLP(rows)                                                                              \
  "{\"pattern\":\"model.layers.{layer}.mlp.up_proj.weight\",\"layer\":[0,1],\"shape\":[" #rows     \
  ",256],\"dtype\":\"f8e4m3\"},"                                                                   \
  "{\"pattern\":\"model.layers.{layer}.mlp.up_proj.weight_scale_inv\",\"layer\":[0,1],\"shape\":[" \
  "4,2],\"dtype\":\"f32\"}"

#define PHI3                                                                                       \
  REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"phi3\",\"intermediate_size\":32",              \
              REFIT_P("self_attn.qkv_proj.weight", "[32,16]"))

static void test_what_a_framework_would_refuse_is_refused_by_name(void **state)
{
  static const struct {
    const char *table, *train, *gen, *word;
  } cases[] = {
      {REFIT_DENSE, "megatron:", "vllm:tp3", "vocabulary"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_ATTENTION), "megatron:", "vllm:tp3",
       "4 heads or groups do not divide"},
      {REFIT_DENSE, "megatron:tp64", "vllm:", "that lie together do not divide"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_P("mlp.down_proj.weight", "[16,32]")),
       "megatron:", "vllm:tp3", "does not divide by the 3 ranks"},
      {REFIT_DENSE, "megatron:pp3", "vllm:", "layers"},
      {REFIT_DENSE, "megatron:pp2,layers=2+1", "vllm:", "lists more than"},
      {REFIT_DENSE, "megatron:pp2,layers=1+0", "vllm:", "lists 1 layers"},
      {REFIT_TABLE(FP8, FP8_MLP(512)), "megatron:", "vllm:tp8", "block"},
      {REFIT_TABLE(FP8, FP8_MLP(512)), "megatron:tp8", "vllm:", "block"},
      /* A5: 12 heads go over 6 ranks, their 4 of keys and values do not */
      {REFIT_TABLE("\"num_hidden_layers\":2,\"hidden_size\":48,\"num_attention_heads\":12,"
                   "\"num_key_value_heads\":4,\"head_dim\":4",
                   REFIT_P("self_attn.q_proj.weight", "[48,48]") "," REFIT_P(
                       "self_attn.k_proj.weight", "[16,48]") "," REFIT_P("self_attn.v_proj.weight",
                                                                         "[16,48]")),
       "megatron:", "vllm:tp6", "tp 6 is no multiple of 4 key/value heads"},
      {REFIT_TABLE("\"num_hidden_layers\":2,\"hidden_size\":16,\"num_experts\":4,"
                   "\"moe_intermediate_size\":8,\"model_type\":\"qwen3_moe\"",
                   "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight\","
                   "\"layer\":[0,1],\"expert\":[0,3],\"shape\":[16,8],\"dtype\":\"bf16\"}"),
       "megatron:ep3,dp3", "vllm:", "4 experts do not divide by ep 3"},
      /* a layer lacks k_proj: the model was mutilated */
      {REFIT_TABLE(REFIT_DENSE_CONFIG,
                   REFIT_P("self_attn.q_proj.weight", "[16,16]") "," REFIT_P(
                       "self_attn.v_proj.weight",
                       "[8,16]") ","
                                 "{\"name\":\"model.layers.1.self_attn.k_proj.weight\",\"shape\":["
                                 "8,16],\"dtype\":\"bf16\"}"),
       "megatron:", "vllm:", "missing"},
      /* gate is there in one layer only, so up is not fused there */
      {REFIT_TABLE(REFIT_DENSE_CONFIG,
                   REFIT_P("mlp.up_proj.weight",
                           "[32,16]") ","
                                      "{\"name\":\"model.layers.1.mlp.gate_proj.weight\",\"shape\":"
                                      "[32,16],\"dtype\":\"bf16\"}"),
       "megatron:", "vllm:", "with a part that is missing in layer 0: mlp.gate"},
      {REFIT_TABLE("\"num_hidden_layers\":2,\"hidden_size\":16,\"num_attention_heads\":3,"
                   "\"num_key_value_heads\":2,\"head_dim\":4",
                   REFIT_P("self_attn.q_proj.weight", "[12,16]") "," REFIT_P(
                       "self_attn.k_proj.weight", "[8,16]") "," REFIT_P("self_attn.v_proj.weight",
                                                                        "[8,16]")),
       "megatron:", "vllm:", "3 heads or parts do not divide by 2 groups"},
      /* 72 rows each, which are no whole heads */
      {REFIT_TABLE("\"num_hidden_layers\":2,\"hidden_size\":48,\"num_attention_heads\":12,"
                   "\"num_key_value_heads\":3,\"head_dim\":4",
                   REFIT_P("self_attn.q_proj.weight", "[48,48]") "," REFIT_P(
                       "self_attn.k_proj.weight", "[12,48]") "," REFIT_P("self_attn.v_proj.weight",
                                                                         "[12,48]")),
       "megatron:tp8", "vllm:", "12 heads in 3 groups do not divide by tp 8"},
      {PHI3, "hf:tp2", "vllm:", "transformers cuts what lies in one tensor as one"},
      /* gate and up of different types in one tensor */
      {REFIT_TABLE(REFIT_DENSE_CONFIG,
                   REFIT_P("mlp.up_proj.weight",
                           "[32,16]") ","
                                      "{\"pattern\":\"model.layers.{layer}.mlp.gate_proj.weight\","
                                      "\"layer\":[0,1],\"shape\":[32,16],"
                                      "\"dtype\":\"f32\"}"),
       "megatron:", "vllm:", "f32"},
      /* quantised in a form that nobody lays out */
      {REFIT_TABLE(REFIT_DENSE_CONFIG,
                   REFIT_ATTENTION "," REFIT_P("self_attn.q_proj.weight_scale", "[16,1]")),
       "full", "vllm:", "no rule says what \"vllm:\" makes of this beside its weight"},
      /* an architecture that nobody knows */
      {REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_P("oracle.delphi.weight", "[16,16]")),
       "megatron:", "vllm:", "oracle.delphi"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_N("vision.patch.weight", "[16,16]")), "fsdp:tp2",
       "vllm:", "vision.patch"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    sides s = make(cases[i].table, cases[i].train, cases[i].gen);

    print_message("%s -> %s: %s\n", cases[i].train, cases[i].gen, cases[i].word);
    assert_int_not_equal(join(&s), XFER_OK);
    assert_null(s.refit);
    print_message("  %s\n", xfer_last_error());
    assert_non_null(strstr(xfer_last_error(), cases[i].word));
    unmake(&s);
  }
}

/* Plans on every rank; the proof that each destination element has a source is the plan's. */
static void expect_plans(const sides *s)
{
  size_t n = 0;
  const xfer_tensor *tensors = xfer_refit_tensors(s->refit, &n);

  for (int r = 0; r < xfer_refit_ranks(s->refit); r++) {
    xfer_plan *plan = NULL;

    assert_int_equal(xfer_plan_simulate(&plan, xfer_refit_ranks(s->refit), r, tensors, n, NULL),
                     XFER_OK);
    xfer_plan_destroy(plan);
  }
}

static void test_a_said_type_is_a_cast_or_refused_by_name(void **state)
{
  static const char table[] = REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_P("mlp.gate.weight", "[8,16]"));
  sides s = make(table, "megatron:", "vllm:");
  size_t n = 0;
  size_t n_casts = 0;

  (void)state;
  assert_int_equal(xfer_side_dtype(s.gen, "*.mlp.gate.weight", XFER_F32), XFER_OK);
  assert_int_equal(join(&s), XFER_OK);
  const xfer_tensor *tensors = xfer_refit_tensors(s.refit, &n);
  for (size_t t = 0; t < n; t++) {
    const bool is_router = strstr(tensors[t].name, ".mlp.gate.weight") != NULL;

    assert_true(tensors[t].conversion == (is_router ? xfer_convert_cast() : 0));
    n_casts += is_router;
  }
  assert_true(n_casts > 0);
  expect_plans(&s);
  unmake(&s);

  s = make(table, "megatron:", "vllm:");
  assert_int_equal(xfer_side_dtype(s.gen, "*.mlp.gate.weight", XFER_I16), XFER_OK);
  assert_int_equal(join(&s), XFER_ERR_MISMATCH);
  assert_non_null(strstr(xfer_last_error(), "model.layers.0.mlp.gate.weight"));
  assert_non_null(strstr(xfer_last_error(), "i16"));
  assert_non_null(strstr(xfer_last_error(), "bf16"));
  unmake(&s);
}

static void test_weights_that_a_trainer_has_unquantised_get_their_scales_on_the_way(void **state)
{
  /* tp8 of the trainer cuts blocks of 512 rows, which it does not have */
  sides s = make(REFIT_TABLE(FP8, FP8_MLP(512)), "megatron:tp8", "vllm:");
  size_t n = 0;
  size_t n_pairs = 0;

  (void)state;
  assert_int_equal(xfer_side_dtype(s.train, "*", XFER_BF16), XFER_OK);
  assert_int_equal(join(&s), XFER_OK);
  const xfer_tensor *tensors = xfer_refit_tensors(s.refit, &n);
  for (size_t t = 0; t < n; t++) {
    if (strstr(tensors[t].name, "scale_inv") != NULL) continue;
    assert_true(tensors[t].conversion == xfer_convert_blocks(128, 128, XFER_SCALE_F32));
    for (size_t k = 0; k < n; k++) {
      if (tensors[k].conversion != xfer_convert_scales_of(t)) continue;
      assert_null(tensors[k].src);
      assert_int_equal(strncmp(tensors[k].name, tensors[t].name, strlen(tensors[t].name)), 0);
      n_pairs++;
    }
  }
  assert_true(n_pairs == 2 && n == 4);
  expect_plans(&s);
  unmake(&s);

  s = make(REFIT_TABLE(FP8, FP8_MLP(512)), "megatron:", "vllm:");
  assert_int_equal(xfer_side_dtype(s.gen, "*", XFER_BF16), XFER_OK);
  assert_int_equal(join(&s), XFER_ERR_MISMATCH);
  assert_non_null(strstr(xfer_last_error(), "there is no conversion"));
  unmake(&s);
}

#define BLOCKS(size) REFIT_DENSE_CONFIG ",\"weight_block_size\":" size
#define GPT_OSS                                                                                    \
  REFIT_TABLE(REFIT_DENSE_CONFIG                                                                   \
              ",\"model_type\":\"gpt_oss\",\"num_local_experts\":4,\"intermediate_size\":32",      \
              REFIT_P("mlp.experts.gate_up_proj", "[4,16,64]"))
#define PHI3_BLOCKS                                                                                \
  REFIT_TABLE(BLOCKS("[16,16]") ",\"model_type\":\"phi3\",\"intermediate_size\":32",               \
              REFIT_P("self_attn.qkv_proj.weight", "[32,16]"))

static void test_ways_to_quantise_that_do_not_fit_are_refused(void **state)
{
  static const struct {
    const char *table, *train, *gen, *word;
  } cases[] = {
      {REFIT_TABLE(FP8, FP8_MLP(512)), "full", "vllm:quant=mxfp8",
       "1 x 32 with weight_scale in f8e8m0, the model is by 128 x 128 with weight_scale_inv in "
       "f32"},
      {REFIT_DENSE, "full:quant=fp8_per_block", "vllm:quant=mxfp8", "full:quant=fp8_per_block by"},
      {REFIT_DENSE, "full:quant=fp8_per_block", "vllm:", "there is no conversion"},
      {REFIT_TABLE(BLOCKS("[70000,8]"), REFIT_DENSE_PARAMS), "full", "vllm:quant=fp8_per_block",
       "blocks of 70000"},
      {REFIT_DENSE, "full", "vllm:quant=fp8_per_block", "no whole number of blocks of 128"},
      {REFIT_TABLE(BLOCKS("[8,16]"), REFIT_DENSE_PARAMS), "full", "vllm:tp2,quant=fp8_per_block",
       "multiple of the block of"},
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
      sides s = make(cases[i].table, cases[i].train, cases[i].gen);

      assert_int_not_equal(join(&s), XFER_OK);
      unmake(&s);
    }
    print_message("  %s\n", xfer_last_error());
    assert_non_null(strstr(xfer_last_error(), cases[i].word));
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
    sides s = make(REFIT_TABLE(BLOCKS("[8,16]"), REFIT_DENSE_PARAMS), "megatron:tp2,dtype=f32",
                   cases[i].gen);
    const xfer_tensor *tensors;
    size_t n = 0, n_quantised = 0, n_scales = 0;

    assert_int_equal(xfer_side_dtype(s.gen, "*.o_proj.weight", XFER_BF16), XFER_OK);
    assert_int_equal(xfer_side_dtype(s.gen, "model.layers.1.mlp.*", XFER_BF16), XFER_OK);
    assert_int_equal(join(&s), XFER_OK);
    tensors = xfer_refit_tensors(s.refit, &n);
    for (size_t t = 0; t < n; t++) {
      const xfer_dtype type = (xfer_dtype)xfer_layout_dtype(tensors[t].dst);

      if (strstr(tensors[t].name, "o_proj") != NULL ||
          strstr(tensors[t].name, "layers.1.mlp.") != NULL) {
        assert_true(type == XFER_BF16 && tensors[t].conversion == xfer_convert_cast());
      } else if (strstr(tensors[t].name, "weight_scale") != NULL) {
        assert_true(type == cases[i].scales && tensors[t].src == NULL);
        n_scales++;
      } else if (type == XFER_F8E4M3) {
        assert_true(tensors[t].conversion ==
                    xfer_convert_blocks(cases[i].rows, cases[i].columns, (int)cases[i].scale));
        n_quantised++;
      } else {
        assert_true(type == (i == 0 ? XFER_BF16 : XFER_F16));
      }
    }
    assert_true(n_quantised == 6 + 3 && n_scales == n_quantised);
    expect_plans(&s);
    unmake(&s);
  }
}

/* A pattern that is of weights alone takes their scales along. */
static void test_scales_are_of_the_layers_that_their_weights_have(void **state)
{
  static const char *const layers[] = {"model.layers.0.", "model.layers.1."};

  (void)state;
  for (int k = 0; k < 2; k++) {
    sides s = make(REFIT_TABLE(BLOCKS("[8,16]"), REFIT_DENSE_PARAMS), "megatron:tp2",
                   "vllm:quant=fp8_per_block");
    const xfer_tensor *tensors;
    size_t n = 0, n_scales = 0;
    char pattern[64];

    snprintf(pattern, sizeof pattern, "%s*.weight", layers[k]);
    assert_int_equal(xfer_side_dtype(s.gen, pattern, XFER_BF16), XFER_OK);
    assert_int_equal(join(&s), XFER_OK);
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
    expect_plans(&s);
    unmake(&s);

    s = make(REFIT_TABLE(FP8, FP8_MLP(448)), "megatron:tp2", "vllm:");
    assert_int_equal(xfer_side_give_whole(s.train, pattern, 0), XFER_OK);
    assert_int_equal(join(&s), XFER_ERR_UNSUPPORTED);
    print_message("  %s\n", xfer_last_error());
    assert_non_null(strstr(xfer_last_error(), "multiple of the block of"));
    unmake(&s);
  }
}

/* dtype= asks what the table has, not what the other side makes of it. */
static void test_a_type_for_all_but_f32_is_of_the_table(void **state)
{
  static const char *const gens[] = {"vllm:", "vllm:quant=fp8_per_block"};

  (void)state;
  for (int k = 0; k < 2; k++) {
    sides s = make(REFIT_TABLE(BLOCKS("[8,16]"),
                               "{\"pattern\":\"model.layers.{layer}.mlp.down_proj.weight\","
                               "\"layer\":[0,1],\"shape\":[16,32],\"dtype\":\"f32\"}"),
                   "megatron:dtype=bf16", gens[k]);
    const xfer_tensor *tensors;
    size_t n = 0;

    assert_int_equal(join(&s), XFER_OK);
    tensors = xfer_refit_tensors(s.refit, &n);
    for (size_t t = 0; t < n; t++)
      if (tensors[t].src != NULL) assert_int_equal(xfer_layout_dtype(tensors[t].src), XFER_F32);
    assert_int_equal(n, k == 0 ? 2 : 4);
    unmake(&s);
  }
}

static void test_what_lies_in_one_tensor_is_quantised_or_not(void **state)
{
  sides s =
      make(REFIT_TABLE(BLOCKS("[8,16]"), REFIT_DENSE_PARAMS), "full", "vllm:quant=fp8_per_block");

  (void)state;
  assert_int_equal(xfer_side_dtype(s.gen, "model.layers.1.mlp.gate_proj.*", XFER_BF16), XFER_OK);
  assert_int_equal(join(&s), XFER_ERR_MISMATCH);
  print_message("  %s\n", xfer_last_error());
  assert_non_null(
      strstr(xfer_last_error(), "is bf16 and \"model.layers.{layer}.mlp.up_proj.weight\""));
  unmake(&s);
}

static void test_layers_none_of_which_a_family_knows_are_refused(void **state)
{
  sides s = make(REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_P("oracle.delphi.weight", "[16,16]")),
                 "full", "vllm:tp2");

  (void)state;
  assert_int_not_equal(join(&s), XFER_OK);
  print_message("  %s\n", xfer_last_error());
  assert_non_null(strstr(xfer_last_error(), "says where 2 tensors are, the first"));
  unmake(&s);
}

static void test_what_is_said_of_unknown_tensors_must_fit_them(void **state)
{
  static const struct {
    const char *pattern;
    int dim;
    const char *word;
  } cases[] = {{"*.oracle.*", 2, "has 2 dims, none of them dim 2"},
               {"model.layers.1.oracle.*", 1, "says where 1 tensors are, the first"}};

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    sides s = make(REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_P("oracle.delphi.weight", "[16,16]")),
                   "megatron:tp2", "vllm:tp2");

    assert_int_equal(xfer_side_place(s.train, cases[i].pattern, cases[i].dim), XFER_OK);
    assert_int_equal(xfer_side_place(s.gen, "*.oracle.*", 1), XFER_OK);
    assert_int_not_equal(join(&s), XFER_OK);
    print_message("  %s\n", xfer_last_error());
    assert_non_null(strstr(xfer_last_error(), cases[i].word));
    unmake(&s);
  }
}

/* A framework has such a model in its own form, so none of the table's names is one of its tensors.
 */
static void test_models_of_no_family_are_refused(void **state)
{
  static const struct {
    const char *gen;
    bool refused;
  } cases[] = {{"vllm:tp2", true}, {"sglang:", true}, {"fsdp:dp2", false}, {"full", false}};

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    sides s = make(REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"oracle\"", REFIT_DENSE_PARAMS),
                   "full", cases[i].gen);

    assert_int_equal(join(&s), cases[i].refused ? XFER_ERR_UNSUPPORTED : XFER_OK);
    if (cases[i].refused)
      assert_non_null(strstr(xfer_last_error(), "no rule of model_type \"oracle\" says where"));
    unmake(&s);
  }
}

/* Ranks of one side alone would not know by how much the other's values differ. */
static void test_values_that_differ_by_side_need_both_sides(void **state)
{
  sides s = make(REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"qwen3_next\","
                                                "\"linear_value_head_dim\":8",
                             REFIT_P("linear_attn.norm.weight", "[8]")),
                 "megatron:", "vllm:");

  (void)state;
  assert_int_equal(xfer_refit_create(&s.refit, s.model, s.train, NULL), XFER_ERR_UNSUPPORTED);
  print_message("  %s\n", xfer_last_error());
  assert_non_null(strstr(xfer_last_error(), "all ranks must be told both sides"));
  unmake(&s);
}

static void test_unknown_tensors_join_once_declared(void **state)
{
  static const char table[] =
      REFIT_TABLE(REFIT_DENSE_CONFIG,
                  REFIT_DENSE_PARAMS "," REFIT_P("oracle.delphi.weight", "[16,16]") "," REFIT_N(
                      "vision.patch.weight", "[16,16]") "," REFIT_N("junk.weight", "[3]"));
  xfer_refit_report_data report = XFER_REFIT_REPORT_INIT;
  sides s = make(table, "megatron:tp2,pp2", "vllm:tp2");

  (void)state;
  assert_int_equal(xfer_side_place(s.train, "*.oracle.*", 1), XFER_OK);
  assert_int_equal(xfer_side_give_whole(s.train, "vision.*", 3), XFER_OK);
  assert_int_equal(xfer_side_ignore(s.gen, "junk*"), XFER_OK);
  assert_int_equal(join(&s), XFER_OK);
  assert_int_equal(xfer_refit_report(s.refit, &report), XFER_OK);
  assert_int_equal(report.misc_bytes, 3 * 16 * 16 * 2); /* no rule of the serving side has them */
  assert_int_equal(report.ruled_bytes + report.misc_bytes, report.payload_bytes);
  assert_int_equal(report.ignored, 1);
  expect_plans(&s);
  unmake(&s);
}

static void test_a_rank_that_serves_gives_nothing(void **state)
{
  sides s = make(REFIT_DENSE, "full", "vllm:tp2");

  (void)state;
  assert_int_equal(xfer_side_give_whole(s.gen, "*norm*", 1), XFER_OK);
  assert_int_equal(join(&s), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "can give \"*norm*\" whole"));
  unmake(&s);
}

static void test_placed_on_both_sides_is_cut_on_both(void **state)
{
  static const char table[] =
      REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_N("vision.patch.weight", "[16,12]"));
  int64_t shape[2];
  sides s = make(table, "megatron:tp2", "vllm:tp4");

  (void)state;
  assert_int_equal(xfer_side_place(s.train, "vision.*", 0), XFER_OK);
  assert_int_equal(xfer_side_place(s.gen, "vision.*", 1), XFER_OK);
  assert_int_equal(join(&s), XFER_OK);
  const xfer_tensor *t = xfer_refit_tensors(s.refit, NULL);
  assert_int_equal(xfer_layout_local_shape(t->src, 1, shape), XFER_OK);
  assert_true(shape[0] == 8 && shape[1] == 12);
  assert_int_equal(xfer_layout_local_shape(t->dst, 5, shape), XFER_OK);
  assert_true(shape[0] == 16 && shape[1] == 3);
  expect_plans(&s);
  unmake(&s);
  s = make(table, "megatron:tp2", "vllm:tp4");
  assert_int_equal(xfer_side_place(s.train, "vision.*", 2), XFER_OK);
  assert_int_equal(join(&s), XFER_ERR_ARG); /* it has no dim 2 */
  unmake(&s);
}

static void test_scalars_travel(void **state)
{
  sides s = make(REFIT_DENSE, "megatron:tp2", "vllm:tp2");

  (void)state;
  assert_int_equal(xfer_model_add(s.model, "model.layers.0.self_attn.k_scale", XFER_F32, NULL, 0),
                   XFER_OK);
  assert_int_equal(xfer_side_place(s.train, "*.k_scale", -1), XFER_OK);
  assert_int_equal(xfer_side_place(s.gen, "*.k_scale", -1), XFER_OK);
  assert_int_equal(join(&s), XFER_OK);
  expect_plans(&s);
  unmake(&s);
}

static void test_expert_maps_must_hold_every_expert(void **state)
{
  static const char table[] = REFIT_TABLE(
      "\"num_hidden_layers\":1",
      "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight\",\"layer\":"
      "[0,0],\"expert\":[0,3],\"shape\":[8,8],\"dtype\":\"bf16\"}");
  static const int32_t lacks[] = {0, 1, 1, 2}, beyond[] = {0, 1, 2, 4},
                       twice[] = {0, 1, 3, 2, 3, 0};
  static const int32_t first4[] = {0, 2, 4}, first6[] = {0, 3, 6};
  static const struct {
    const int32_t *experts, *first;
    bool ok;
  } cases[] = {{lacks, first4, false}, {beyond, first4, false}, {twice, first6, true}};

  (void)state;
  for (size_t i = 0; i < 3; i++) {
    xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
    sides s = make(table, "megatron:ep2,dp2", "vllm:tp2");

    xfer_side_destroy(s.gen);
    options.weights = XFER_WEIGHTS_LOADED;
    options.first_rank = 2;
    options.map_experts = cases[i].experts;
    options.map_first = cases[i].first;
    options.n_map = 2;
    assert_int_equal(xfer_side_create(&s.gen, "vllm:tp2,ep2", &options), XFER_OK);
    assert_int_equal(join(&s) == XFER_OK, cases[i].ok);
    if (cases[i].ok) expect_plans(&s);
    unmake(&s);
  }
}

static void test_neither_side_is_an_error(void **state)
{
  sides s = make(REFIT_DENSE, "full", "full");

  (void)state;
  assert_int_equal(xfer_refit_create(&s.refit, s.model, NULL, NULL), XFER_ERR_ARG);
  assert_int_equal(xfer_refit_create(&s.refit, NULL, s.train, s.gen), XFER_ERR_ARG);
  assert_int_equal(join(&s), XFER_OK);
  assert_int_equal(xfer_side_ignore(s.train, "x"),
                   XFER_ERR_STATE); /* the refit goes by what was said */
  unmake(&s);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_a_framework_would_refuse_is_refused_by_name),
      cmocka_unit_test(test_a_said_type_is_a_cast_or_refused_by_name),
      cmocka_unit_test(test_weights_that_a_trainer_has_unquantised_get_their_scales_on_the_way),
      cmocka_unit_test(test_ways_to_quantise_that_do_not_fit_are_refused),
      cmocka_unit_test(test_a_side_that_quantises_has_scales_beside_its_weights),
      cmocka_unit_test(test_scales_are_of_the_layers_that_their_weights_have),
      cmocka_unit_test(test_a_type_for_all_but_f32_is_of_the_table),
      cmocka_unit_test(test_layers_none_of_which_a_family_knows_are_refused),
      cmocka_unit_test(test_what_is_said_of_unknown_tensors_must_fit_them),
      cmocka_unit_test(test_values_that_differ_by_side_need_both_sides),
      cmocka_unit_test(test_what_lies_in_one_tensor_is_quantised_or_not),
      cmocka_unit_test(test_unknown_tensors_join_once_declared),
      cmocka_unit_test(test_a_rank_that_serves_gives_nothing),
      cmocka_unit_test(test_placed_on_both_sides_is_cut_on_both),
      cmocka_unit_test(test_models_of_no_family_are_refused),
      cmocka_unit_test(test_scalars_travel),
      cmocka_unit_test(test_expert_maps_must_hold_every_expert),
      cmocka_unit_test(test_neither_side_is_an_error),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
