/* What does not join is refused by name; what is declared joins. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "refit_sides.h"

static void test_what_a_framework_would_refuse_is_refused_by_name(void **state)
{
#define MOE                                                                                        \
  REFIT_TABLE("\"num_hidden_layers\":2,\"hidden_size\":16,\"num_experts\":4,"                      \
              "\"moe_intermediate_size\":8,\"model_type\":\"qwen3_moe\"",                          \
              "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight\","       \
              "\"layer\":[0,1],\"expert\":[0,3],\"shape\":[16,8],\"dtype\":\"bf16\"}")
  static const struct {
    const char *table, *train, *gen, *word;
  } cases[] = {
      {REFIT_DENSE, "megatron:", "vllm:tp3", "vocabulary"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_ATTENTION), "megatron:", "vllm:tp3",
       "4 heads or groups do not divide"},
      {REFIT_DENSE, "megatron:tp64", "vllm:", "4 heads in 2 groups do not divide by tp 64"},
      {REFIT_DENSE, "megatron:tp3", "vllm:", "4 heads in 2 groups do not divide by tp 3"},
      /* heads and their one group do, 2 + 2 rows of keys and values do not */
      {REFIT_TABLE("\"num_hidden_layers\":2,\"hidden_size\":24,\"num_attention_heads\":12,"
                   "\"num_key_value_heads\":1,\"head_dim\":2",
                   REFIT_P("self_attn.q_proj.weight", "[24,24]") "," REFIT_P(
                       "self_attn.k_proj.weight", "[2,24]") "," REFIT_P("self_attn.v_proj.weight",
                                                                        "[2,24]")),
       "megatron:tp12", "vllm:", "the 28 rows that lie together do not divide by tp 12"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_P("mlp.down_proj.weight", "[16,32]")),
       "megatron:", "vllm:tp3", "does not divide by the 3 ranks"},
      {REFIT_DENSE, "megatron:pp3", "vllm:", "layers"},
      {REFIT_DENSE, "megatron:pp2,layers=2+1", "vllm:", "lists more than"},
      {REFIT_DENSE, "megatron:pp2,layers=1+0", "vllm:", "lists 1 layers"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"glm4_moe\"",
                   REFIT_ENDS "," REFIT_N("model.layers.2.embed_tokens.weight", "[100,16]")),
       "megatron:", "vllm:draft", "\"vllm:draft\" has it and \"megatron:\" has not"},
      {REFIT_TABLE(REFIT_FP8, REFIT_FP8_MLP(512)), "megatron:", "vllm:tp8", "block"},
      {REFIT_TABLE(REFIT_FP8, REFIT_FP8_MLP(512)), "megatron:tp8", "vllm:", "block"},
      /* A5: 12 heads go over 6 ranks, their 4 of keys and values do not */
      {REFIT_TABLE("\"num_hidden_layers\":2,\"hidden_size\":48,\"num_attention_heads\":12,"
                   "\"num_key_value_heads\":4,\"head_dim\":4",
                   REFIT_P("self_attn.q_proj.weight", "[48,48]") "," REFIT_P(
                       "self_attn.k_proj.weight", "[16,48]") "," REFIT_P("self_attn.v_proj.weight",
                                                                         "[16,48]")),
       "megatron:", "vllm:tp6", "tp 6 of \"vllm:tp6\" is no multiple of 4 key/value heads"},
      {MOE, "megatron:ep3,dp3", "vllm:", "4 experts do not divide by ep 3"},
      {MOE, "torchtitan:ep3,dp3", "vllm:", "where a rank of ep has no expert"},
      {MOE, "torchtitan:dp5", "vllm:", "cuts dim 1 evenly or not at all, and 16 over 1 ranks"},
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
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"sdar\"", REFIT_ATTENTION), "full",
       "hf:tp2", "cuts other tensors of this family than these rules do"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"nemotron\"", REFIT_ATTENTION), "hf:tp2",
       "vllm:", "transformers has no plan of tensor parallelism for this family"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"qwen3\"", REFIT_DENSE_PARAMS), "full",
       "hf:tp3", "transformers takes no tp that the vocabulary does not divide by"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"oracle\"",
                   REFIT_P("oracle.delphi.weight", "[16,16]")),
       "full", "hf:tp2", "no rule of model_type \"oracle\" says where"},
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
    refit_sides s = refit_sides_make(cases[i].table, cases[i].train, cases[i].gen);

    print_message("%s -> %s: %s\n", cases[i].train, cases[i].gen, cases[i].word);
    assert_int_not_equal(refit_sides_join(&s), XFER_OK);
    assert_null(s.refit);
    refit_expect_error(cases[i].word);
    refit_sides_end(&s);
  }
#undef MOE
}

static void test_layers_none_of_which_a_family_knows_are_refused(void **state)
{
  refit_sides s =
      refit_sides_make(REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_P("oracle.delphi.weight", "[16,16]")),
                       "full", "vllm:tp2");

  (void)state;
  assert_int_not_equal(refit_sides_join(&s), XFER_OK);
  refit_expect_error("says where 2 tensors are, the first");
  refit_sides_end(&s);
}

/* The embedding has a name that is known: it says nothing of the layers. */
static void test_layers_of_other_names_are_refused_beside_a_known_embedding(void **state)
{
  refit_sides s =
      refit_sides_make(REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"llama\""
                                                      ",\"tie_word_embeddings\":true",
                                   REFIT_N("model.embed_tokens.weight", "[100,16]") "," REFIT_P(
                                       "oracle.delphi.weight", "[16,16]")),
                       "full", "vllm:tp2");

  (void)state;
  assert_int_equal(refit_sides_join(&s), XFER_ERR_UNSUPPORTED);
  refit_expect_error("says where 2 tensors are, the first");
  refit_sides_end(&s);
}

/* An engine goes by the configuration, whichever tensors the checkpoint has. */
static void test_biases_that_the_configuration_alone_has_are_refused(void **state)
{
  static const struct {
    const char *key, *error;
  } cases[] = {{"attention_bias", "has biases of attention here, and the model has none"},
               {"mlp_bias", "mlp_bias says that the MLP has biases"}};

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char table[4096];
    refit_sides s;

    (void)snprintf(table, sizeof table,
                   REFIT_TABLE("%s,\"model_type\":\"llama\",\"%s\":true", "%s"), REFIT_DENSE_CONFIG,
                   cases[i].key, REFIT_DENSE_PARAMS);
    s = refit_sides_make(table, "full", "vllm:tp2");
    assert_int_equal(refit_sides_join(&s), XFER_ERR_UNSUPPORTED);
    refit_expect_error(cases[i].error);
    refit_sides_end(&s);
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
    refit_sides s = refit_sides_make(
        REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"oracle\"", REFIT_DENSE_PARAMS), "full",
        cases[i].gen);

    assert_int_equal(refit_sides_join(&s), cases[i].refused ? XFER_ERR_UNSUPPORTED : XFER_OK);
    if (cases[i].refused) refit_expect_error("no rule of model_type \"oracle\" says where");
    refit_sides_end(&s);
  }
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
    refit_sides s = refit_sides_make(
        REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_P("oracle.delphi.weight", "[16,16]")), "megatron:tp2",
        "vllm:tp2");

    assert_int_equal(xfer_side_place(s.train, cases[i].pattern, cases[i].dim), XFER_OK);
    assert_int_equal(xfer_side_place(s.gen, "*.oracle.*", 1), XFER_OK);
    assert_int_not_equal(refit_sides_join(&s), XFER_OK);
    refit_expect_error(cases[i].word);
    refit_sides_end(&s);
  }
}

static void test_unknown_tensors_join_once_declared(void **state)
{
  static const char table[] =
      REFIT_TABLE(REFIT_DENSE_CONFIG,
                  REFIT_DENSE_PARAMS "," REFIT_P("oracle.delphi.weight", "[16,16]") "," REFIT_N(
                      "vision.patch.weight", "[16,16]") "," REFIT_N("junk.weight", "[3]"));
  xfer_refit_report_data report = XFER_REFIT_REPORT_INIT;
  refit_sides s = refit_sides_make(table, "megatron:tp2,pp2", "vllm:tp2");

  (void)state;
  assert_int_equal(xfer_side_place(s.train, "*.oracle.*", 1), XFER_OK);
  assert_int_equal(xfer_side_give_whole(s.train, "vision.*", 3), XFER_OK);
  assert_int_equal(xfer_side_ignore(s.gen, "junk*"), XFER_OK);
  assert_int_equal(refit_sides_join(&s), XFER_OK);
  assert_int_equal(xfer_refit_report(s.refit, &report), XFER_OK);
  assert_int_equal(report.misc_bytes, 3 * 16 * 16 * 2); /* no rule of the serving side has them */
  assert_int_equal(report.ruled_bytes + report.misc_bytes, report.payload_bytes);
  assert_int_equal(report.ignored, 1);
  refit_expect_plans(&s);
  refit_sides_end(&s);
}

/* Ranks of one side alone would not know by how much the other's values differ. */
static void test_values_that_differ_by_side_need_both_sides(void **state)
{
  refit_sides s = refit_sides_make(REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"qwen3_next\","
                                                                  "\"linear_value_head_dim\":8",
                                               REFIT_P("linear_attn.norm.weight", "[8]")),
                                   "megatron:", "vllm:");

  (void)state;
  assert_int_equal(xfer_refit_create(&s.refit, s.model, s.train, NULL), XFER_ERR_UNSUPPORTED);
  refit_expect_error("all ranks must be told both sides");
  refit_sides_end(&s);
}

static void test_a_rank_that_serves_gives_nothing(void **state)
{
  refit_sides s = refit_sides_make(REFIT_DENSE, "full", "vllm:tp2");

  (void)state;
  assert_int_equal(xfer_side_give_whole(s.gen, "*norm*", 1), XFER_OK);
  assert_int_equal(refit_sides_join(&s), XFER_ERR_ARG);
  refit_expect_error("can give \"*norm*\" whole");
  refit_sides_end(&s);
}

static void test_placed_on_both_sides_is_cut_on_both(void **state)
{
  static const char table[] =
      REFIT_TABLE(REFIT_DENSE_CONFIG, REFIT_N("vision.patch.weight", "[16,12]"));
  int64_t shape[2];
  refit_sides s = refit_sides_make(table, "megatron:tp2", "vllm:tp4");

  (void)state;
  assert_int_equal(xfer_side_place(s.train, "vision.*", 0), XFER_OK);
  assert_int_equal(xfer_side_place(s.gen, "vision.*", 1), XFER_OK);
  assert_int_equal(refit_sides_join(&s), XFER_OK);
  const xfer_tensor *t = xfer_refit_tensors(s.refit, NULL);
  assert_int_equal(xfer_layout_local_shape(t->src, 1, shape), XFER_OK);
  assert_true(shape[0] == 8 && shape[1] == 12);
  assert_int_equal(xfer_layout_local_shape(t->dst, 5, shape), XFER_OK);
  assert_true(shape[0] == 16 && shape[1] == 3);
  refit_expect_plans(&s);
  refit_sides_end(&s);
  s = refit_sides_make(table, "megatron:tp2", "vllm:tp4");
  assert_int_equal(xfer_side_place(s.train, "vision.*", 2), XFER_OK);
  assert_int_equal(refit_sides_join(&s), XFER_ERR_ARG); /* it has no dim 2 */
  refit_sides_end(&s);
}

static void test_scalars_travel(void **state)
{
  refit_sides s = refit_sides_make(REFIT_DENSE, "megatron:tp2", "vllm:tp2");

  (void)state;
  assert_int_equal(xfer_model_add(s.model, "model.layers.0.self_attn.k_scale", XFER_F32, NULL, 0),
                   XFER_OK);
  assert_int_equal(xfer_side_place(s.train, "*.k_scale", -1), XFER_OK);
  assert_int_equal(xfer_side_place(s.gen, "*.k_scale", -1), XFER_OK);
  assert_int_equal(refit_sides_join(&s), XFER_OK);
  refit_expect_plans(&s);
  refit_sides_end(&s);
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
    refit_sides s = refit_sides_make(table, "megatron:ep2,dp2", "vllm:tp2");

    xfer_side_destroy(s.gen);
    options.first_rank = 2;
    options.map_experts = cases[i].experts;
    options.map_first = cases[i].first;
    options.n_map = 2;
    assert_int_equal(xfer_side_create(&s.gen, "vllm:tp2,ep2,loaded", &options), XFER_OK);
    assert_int_equal(refit_sides_join(&s) == XFER_OK, cases[i].ok);
    if (cases[i].ok) refit_expect_plans(&s);
    refit_sides_end(&s);
  }
}

static void test_maps_may_differ_by_layer(void **state)
{
  static const char table[] = REFIT_TABLE(
      "\"num_hidden_layers\":2,\"hidden_size\":16,\"moe_intermediate_size\":8,"
      "\"model_type\":\"qwen3_moe\"",
      "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight\",\"layer\":[0,1],"
      "\"expert\":[0,3],\"shape\":[16,8],\"dtype\":\"bf16\"}");
  char spec[300];
  xfer_model *model = NULL;
  xfer_side *gen = NULL;
  xfer_refit *refit = NULL;
  xfer_run runs[4];
  size_t n = 0;

  (void)state;
  assert_int_equal(refit_load(&model, table), XFER_OK);
  snprintf(spec, sizeof spec, "vllm:tp2,ep2,map=%s",
           refit_write("map.json", "{\"0\":[[0,1],[2,3]],\"1\":[[3,2,1],[0]]}"));
  assert_int_equal(refit_side(&gen, spec, NULL), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, NULL, gen), XFER_OK);
  assert_int_equal(xfer_layout_runs(xfer_refit_tensors(refit, NULL)[0].dst, 0, 0, runs, 4, &n),
                   XFER_OK);
  assert_true(n == 1 && runs[0].global == 0 && runs[0].length == 2);
  assert_int_equal(xfer_layout_runs(xfer_refit_tensors(refit, NULL)[1].dst, 0, 0, runs, 4, &n),
                   XFER_OK);
  assert_true(n == 3 && runs[0].global == 3 && runs[1].global == 2 && runs[2].global == 1);
  xfer_refit_destroy(refit);
  xfer_side_destroy(gen);
  refit = NULL;
  snprintf(spec, sizeof spec, "vllm:tp2,ep2,map=%s",
           refit_write("map.json", "{\"0\":[[0,1],[2,3]]}"));
  assert_int_equal(refit_side(&gen, spec, NULL), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, NULL, gen), XFER_ERR_ARG);
  refit_expect_error("the expert map has no layer 1, which has experts");
  xfer_side_destroy(gen);
  (void)refit_write("map.json", "{\"0\":[[0,1],[2,3]],\"1\":[[0,1],[2,3]],\"2\":[[1,0],[3,2]]}");
  assert_int_equal(refit_side(&gen, spec, NULL), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, NULL, gen), XFER_ERR_ARG);
  refit_expect_error("the expert map has layer 2, which has no experts in the model");
  xfer_side_destroy(gen);
  (void)refit_write("map.json", "{\"0\":[[0,1],[2,3]],\"00\":[[1,0],[2,3]],\"1\":[[0,1],[2,3]]}");
  assert_int_equal(refit_side(&gen, spec, NULL), XFER_ERR_IO);
  refit_expect_error("\"00\" is no layer");
  snprintf(spec, sizeof spec, "vllm:tp2,ep2,map=%s", refit_write("map.json", "[[0,1],[2,4]]"));
  assert_int_equal(refit_side(&gen, spec, NULL), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, NULL, gen), XFER_ERR_ARG);
  refit_expect_error("the expert map has expert 4");
  xfer_side_destroy(gen);
  xfer_model_destroy(model);
}

/* SGLang's loaders of other families know no redundant experts, nor do those of models that see. */
static void test_expert_maps_of_sglang_are_for_models_that_have_them(void **state)
{
#define EXPERTS(types)                                                                             \
  REFIT_TABLE("\"num_hidden_layers\":1,\"hidden_size\":16,\"n_routed_experts\":4,"                 \
              "\"num_experts\":4,\"first_k_dense_replace\":0,\"moe_intermediate_size\":8,"         \
              "\"model_type\":" types,                                                             \
              "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight\","       \
              "\"layer\":[0,0],\"expert\":[0,3],\"shape\":[16,8],\"dtype\":\"bf16\"}")
#define SEEING(type, text) EXPERTS("\"" type "\",\"text_config\":{\"model_type\":\"" text "\"}")
  static const char *const tables[] = {
      EXPERTS("\"qwen3_moe\""), EXPERTS("\"deepseek_v3\""),       SEEING("kimi_k25", "kimi_k2"),
      EXPERTS("\"glm4_moe\""),  SEEING("kimi_vl", "deepseek_v3"), SEEING("interns1", "qwen3_moe")};
  char spec[300];

  (void)state;
  for (int i = 0; i < 6; i++) {
    xfer_model *model = NULL;
    xfer_side *gen = NULL;
    xfer_refit *refit = NULL;

    snprintf(spec, sizeof spec, "sglang:tp2,ep2,loaded,map=%s",
             refit_write("map.json", "[[0,1,2],[3,0,1]]"));
    assert_int_equal(refit_load(&model, tables[i]), XFER_OK);
    assert_int_equal(refit_side(&gen, spec, NULL), XFER_OK);
    assert_int_equal(xfer_refit_create(&refit, model, NULL, gen),
                     i < 3 ? XFER_OK : XFER_ERR_UNSUPPORTED);
    if (i >= 3) refit_expect_error("whether SGLang has an expert map in this model");
    xfer_refit_destroy(refit);
    xfer_side_destroy(gen);
    xfer_model_destroy(model);
  }
#undef SEEING
#undef EXPERTS
}

/* Joins REFIT_DENSE from Megatron to vLLM with one pattern ignored. */
static xfer_status join_without(const char *pattern, bool partial, bool strict)
{
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  refit_sides s = {NULL, NULL, NULL, NULL};
  xfer_status st;

  options.partial = partial;
  options.strict = strict;
  assert_int_equal(refit_load(&s.model, REFIT_DENSE), XFER_OK);
  assert_int_equal(refit_side(&s.train, "megatron:", &options), XFER_OK);
  assert_int_equal(refit_side(&s.gen, "vllm:", &options), XFER_OK);
  assert_int_equal(xfer_side_ignore(s.train, pattern), XFER_OK);
  assert_int_equal(xfer_side_ignore(s.gen, pattern), XFER_OK);
  st = refit_sides_join(&s);
  refit_sides_end(&s);
  return st;
}

static void test_what_is_ignored_is_not_silent(void **state)
{
  (void)state;
  assert_int_equal(join_without("*.q_proj.weight", false, false), XFER_ERR_ARG);
  refit_expect_error("q_proj.weight\" is ignored");
  assert_int_equal(join_without("*.q_proj.weight", true, false), XFER_OK);
  assert_int_equal(join_without("*.self_attn.*", false, false), XFER_OK);
  assert_int_equal(join_without("nothing.*", false, true), XFER_ERR_ARG);
  refit_expect_error("nothing.*");
  assert_int_equal(join_without("*", false, false), XFER_ERR_ARG);
  refit_expect_error("nothing is left");
}

static void test_patterns_that_match_nothing_are_errors(void **state)
{
  static const char *const renames[] = {"thinker.*", "*"};
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;
  xfer_model *model = NULL;
  xfer_side *train = NULL;
  xfer_refit *refit = NULL;

  (void)state;
  options.renames = renames;
  options.n_renames = 1;
  assert_int_equal(xfer_model_load(&model, refit_write("table.json", REFIT_DENSE), &options),
                   XFER_ERR_ARG);
  refit_expect_error("thinker.*");
  options = (xfer_model_options)XFER_MODEL_OPTIONS_INIT;
  options.experts_end = 2;
  assert_int_equal(xfer_model_load(&model, refit_path("table.json"), &options), XFER_ERR_ARG);
  refit_expect_error("experts");
  assert_int_equal(refit_load(&model, REFIT_DENSE), XFER_OK);
  for (int k = 0; k < 3; k++) {
    assert_int_equal(refit_side(&train, "megatron:tp2", NULL), XFER_OK);
    if (k == 0) assert_int_equal(xfer_side_place(train, "visual.*", -1), XFER_OK);
    if (k == 1) assert_int_equal(xfer_side_give_whole(train, "visual.*", 0), XFER_OK);
    if (k == 2) assert_int_equal(xfer_side_dtype(train, "visual.*", XFER_F32), XFER_OK);
    assert_int_equal(xfer_refit_create(&refit, model, train, NULL), XFER_ERR_ARG);
    refit_expect_error("visual.*");
    xfer_side_destroy(train);
  }
  xfer_model_destroy(model);
}

static void test_an_error_of_a_layout_names_its_tensor_and_its_side(void **state)
{
  refit_sides s = refit_sides_make(
      REFIT_TABLE("\"num_hidden_layers\":1", REFIT_N("x.weight", "[1,4611686018427387903]")),
      "fsdp:dp2", "full");

  (void)state;
  assert_int_equal(refit_sides_join(&s), XFER_ERR_OVERFLOW);
  refit_expect_error("\"x.weight\" in \"fsdp:dp2\": a tensor of 2 dims whose bytes");
  refit_sides_end(&s);
}

static void test_a_vocabulary_that_cannot_be_padded_is_an_error(void **state)
{
  refit_sides s =
      refit_sides_make(REFIT_TABLE("\"num_hidden_layers\":1",
                                   "{\"name\":\"model.embed_tokens.weight\",\"dtype\":\"u8\","
                                   "\"shape\":[9223372036854775807,1]}"),
                       "megatron:tp1", "full");

  (void)state;
  assert_int_equal(refit_sides_join(&s), XFER_ERR_SHAPE);
  refit_expect_error("\"model.embed_tokens.weight\": a vocabulary of 9223372036854775807");
  refit_sides_end(&s);
}

static void test_neither_side_is_an_error(void **state)
{
  refit_sides s = refit_sides_make(REFIT_DENSE, "full", "full");

  (void)state;
  assert_int_equal(xfer_refit_create(&s.refit, s.model, NULL, NULL), XFER_ERR_ARG);
  assert_int_equal(xfer_refit_create(&s.refit, NULL, s.train, s.gen), XFER_ERR_ARG);
  assert_int_equal(refit_sides_join(&s), XFER_OK);
  assert_int_equal(xfer_side_ignore(s.train, "x"),
                   XFER_ERR_STATE); /* the refit goes by what was said */
  refit_sides_end(&s);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_a_framework_would_refuse_is_refused_by_name),
      cmocka_unit_test(test_layers_none_of_which_a_family_knows_are_refused),
      cmocka_unit_test(test_layers_of_other_names_are_refused_beside_a_known_embedding),
      cmocka_unit_test(test_biases_that_the_configuration_alone_has_are_refused),
      cmocka_unit_test(test_models_of_no_family_are_refused),
      cmocka_unit_test(test_what_is_said_of_unknown_tensors_must_fit_them),
      cmocka_unit_test(test_unknown_tensors_join_once_declared),
      cmocka_unit_test(test_values_that_differ_by_side_need_both_sides),
      cmocka_unit_test(test_a_rank_that_serves_gives_nothing),
      cmocka_unit_test(test_placed_on_both_sides_is_cut_on_both),
      cmocka_unit_test(test_scalars_travel),
      cmocka_unit_test(test_expert_maps_must_hold_every_expert),
      cmocka_unit_test(test_expert_maps_of_sglang_are_for_models_that_have_them),
      cmocka_unit_test(test_maps_may_differ_by_layer),
      cmocka_unit_test(test_what_is_ignored_is_not_silent),
      cmocka_unit_test(test_patterns_that_match_nothing_are_errors),
      cmocka_unit_test(test_an_error_of_a_layout_names_its_tensor_and_its_side),
      cmocka_unit_test(test_a_vocabulary_that_cannot_be_padded_is_an_error),
      cmocka_unit_test(test_neither_side_is_an_error),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
