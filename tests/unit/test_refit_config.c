/* A table and its configuration must not contradict each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "refit_sides.h"

static void test_experts_are_as_many_as_the_configuration_says(void **state)
{
#define LISTED(first, last)                                                                        \
  REFIT_TABLE("\"num_hidden_layers\":2,\"hidden_size\":16,\"num_experts\":4,"                      \
              "\"moe_intermediate_size\":8,\"model_type\":\"qwen3_moe\"",                          \
              "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight\","       \
              "\"layer\":[0,1],\"expert\":[" #first "," #last                                      \
              "],\"shape\":[16,8],\"dtype\":\"bf16\"}")
  xfer_model *model = NULL;

  (void)state;
  assert_int_equal(refit_load(&model, LISTED(0, 3)), XFER_OK);
  xfer_model_destroy(model);
  model = NULL;
  assert_int_equal(refit_load(&model, LISTED(0, 5)), XFER_ERR_IO);
  refit_expect_error("has 6 experts; the configuration says 4");
  assert_int_equal(refit_load(&model, LISTED(0, 2)), XFER_ERR_IO);
  refit_expect_error("has 3 experts; the configuration says 4");
  assert_int_equal(refit_load(&model, LISTED(1, 3)), XFER_ERR_IO);
  refit_expect_error("has expert 1 in layer 0, and not the one before it");
#undef LISTED
}

static void test_layers_have_experts_where_the_configuration_says(void **state)
{
#define SPARSE(type, said, dense, sparse)                                                          \
  REFIT_TABLE("\"num_hidden_layers\":3,\"hidden_size\":16,\"n_routed_experts\":4,"                 \
              "\"num_experts\":4,\"moe_intermediate_size\":8,\"model_type\":\"" type "\"," said,   \
              "{\"pattern\":\"model.layers.{layer}.mlp.down_proj.weight\",\"layer_list\":" dense   \
              ",\"shape\":[16,32],\"dtype\":\"bf16\"},"                                            \
              "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight\","       \
              "\"layer_list\":" sparse ",\"expert\":[0,3],\"shape\":[16,8],\"dtype\":\"bf16\"}")
  static const struct {
    const char *text, *word;
  } cases[] = {
      {SPARSE("deepseek_v3", "\"first_k_dense_replace\":1", "[0]", "[1,2]"), NULL},
      {SPARSE("deepseek_v3", "\"first_k_dense_replace\":2", "[0]", "[1,2]"),
       "layer 1 has experts; the configuration says that it has none"},
      {SPARSE("deepseek_v3", "\"first_k_dense_replace\":0,\"moe_layer_freq\":2", "[1]", "[0,2]"),
       NULL},
      {SPARSE("deepseek_v3", "\"first_k_dense_replace\":0,\"moe_layer_freq\":1", "[1]", "[0,2]"),
       "layer 1 has no experts; the configuration says that it has some"},
      {SPARSE("mimo_v2", "\"moe_layer_freq\":[0,1,1]", "[0]", "[1,2]"), NULL},
      {SPARSE("mimo_v2", "\"moe_layer_freq\":[0,0,1]", "[0]", "[1,2]"), "layer 1 has experts"},
      {SPARSE("exaone_moe", "\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\"]", "[0]",
              "[1,2]"),
       NULL},
      {SPARSE("exaone_moe", "\"mlp_layer_types\":[\"dense\",\"sparse\",\"dense\"]", "[0]", "[1,2]"),
       "layer 2 has experts"},
      {SPARSE("qwen3_moe", "\"decoder_sparse_step\":1,\"mlp_only_layers\":[2]", "[2]", "[0,1]"),
       NULL},
      {SPARSE("qwen3_moe", "\"decoder_sparse_step\":1,\"mlp_only_layers\":[1]", "[2]", "[0,1]"),
       "layer 1 has experts"},
      {SPARSE("qwen3_moe", "\"decoder_sparse_step\":2", "[0,2]", "[1]"), NULL},
      {SPARSE("qwen3_moe", "\"decoder_sparse_step\":1", "[0]", "[1]"),
       "the last layer is 1; the configuration says 3 layers"},
      {SPARSE("qwen3_moe", "\"decoder_sparse_step\":null", "[0]", "[2]"),
       "layer 1 has no tensor; the configuration says 3 layers"},
      {SPARSE("qwen3_moe", "\"decoder_sparse_step\":null", "[2]", "[1]"),
       "layer 0 has no tensor; the configuration says 3 layers"},
      {SPARSE("nemotron-nas", "\"decoder_sparse_step\":null", "[0]", "[2]"), NULL},
      {SPARSE("qwen3_moe", "\"decoder_sparse_step\":null", "[0]", "[1,2]"),
       "layer 0 has no experts; the configuration says that it has some"}, /* as its class has it */
      {SPARSE("deepseek_v3", "\"moe_layer_freq\":1", "[0]", "[1,2]"), "layer 1 has experts"},
      {SPARSE("deepseek_v2", "\"moe_layer_freq\":1", "[0]", "[1,2]"), "layer 0 has no experts"},
      {REFIT_TABLE("\"num_hidden_layers\":1,\"hidden_size\":16,\"num_experts\":1,"
                   "\"first_k_dense_replace\":0,\"model_type\":\"deepseek_v3\"",
                   "{\"name\":\"model.layers.0.mlp.down_proj.weight\",\"shape\":[16,32],"
                   "\"dtype\":\"bf16\"}"),
       NULL},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    print_message("case %zu\n", i);
    refit_expect(cases[i].text, cases[i].word);
  }
#undef SPARSE
}

static void test_layers_are_of_the_kind_that_the_configuration_says(void **state)
{
#define HYBRID(said)                                                                               \
  REFIT_TABLE(                                                                                     \
      "\"hidden_size\":16,\"mamba_num_heads\":2,\"mamba_head_dim\":2,\"n_groups\":1,"              \
      "\"ssm_state_size\":3,\"model_type\":\"nemotron_h\"," said,                                  \
      "{\"pattern\":\"backbone.layers.{layer}.mixer.in_proj.weight\",\"layer_list\":[0,2],"        \
      "\"shape\":[16,16],\"dtype\":\"bf16\"},"                                                     \
      "{\"pattern\":\"backbone.layers.{layer}.mixer.up_proj.weight\",\"layer\":[1,1],"             \
      "\"shape\":[16,16],\"dtype\":\"bf16\"}")
  static const struct {
    const char *text, *word;
  } cases[] = {
      {HYBRID("\"hybrid_override_pattern\":\"M-M\""), NULL},
      {HYBRID("\"layer_types\":[\"mamba\",\"mlp\",\"linear_attention\"]"), NULL},
      {HYBRID("\"num_hidden_layers\":3"), NULL},
      {HYBRID("\"hybrid_override_pattern\":\"M--\""),
       "layer 2 has a \"mamba.in\"; by the configuration it has none"},
      {HYBRID("\"hybrid_override_pattern\":\"MMM\""),
       "layer 1 has no \"mamba.in\"; by the configuration it has one"},
      {HYBRID("\"hybrid_override_pattern\":\"M-M-\""),
       "the last layer is 2; the configuration says 4 layers"},
      {HYBRID("\"num_hidden_layers\":3,\"layers_block_type\":[\"mamba\",\"mlp\"]"),
       "the configuration says 2 layers"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    print_message("case %zu\n", i);
    refit_expect(cases[i].text, cases[i].word);
  }
#undef HYBRID
}

/* SGLang asks for an interval, and what a list says of each layer must be that. */
static void test_a_word_counts_layers_of_which_an_expression_holds(void **state)
{
#define KINDS(said)                                                                                \
  REFIT_TABLE("\"num_hidden_layers\":2,\"hidden_size\":16,\"model_type\":\"qwen3_next\"," said,    \
              "{\"pattern\":\"model.layers.{layer}.input_layernorm.weight\",\"layer\":[0,1],"      \
              "\"shape\":[16],\"dtype\":\"bf16\"}")
#define TYPES(a, b) "\"layer_types\":[\"" a "_attention\",\"" b "_attention\"]"
  static const struct {
    const char *text, *word;
  } cases[] = {
      {KINDS("\"full_attention_interval\":2," TYPES("linear", "full")), NULL},
      {KINDS("\"full_attention_interval\":2," TYPES("full", "linear")),
       "layer_types says otherwise"},
      {KINDS("\"full_attention_interval\":2," TYPES("linear", "linear")),
       "layer_types says otherwise"},
      {KINDS("\"full_attention_interval\":2"), NULL},
      {KINDS(TYPES("linear", "linear")), NULL},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xfer_model *model = NULL;
    xfer_side *full = NULL, *served = NULL;
    xfer_refit *refit = NULL;

    print_message("case %zu\n", i);
    assert_int_equal(refit_load(&model, cases[i].text), XFER_OK);
    assert_int_equal(xfer_side_create(&full, "full", NULL), XFER_OK);
    assert_int_equal(xfer_side_create(&served, "sglang:tp1,loaded", NULL), XFER_OK);
    assert_int_equal(xfer_refit_create(&refit, model, full, served),
                     cases[i].word == NULL ? XFER_OK : XFER_ERR_UNSUPPORTED);
    if (cases[i].word != NULL) refit_expect_error(cases[i].word);
    xfer_refit_destroy(refit);
    xfer_side_destroy(served);
    xfer_side_destroy(full);
    xfer_model_destroy(model);
  }
#undef TYPES
#undef KINDS
}

/* Each family by its own key; what the checkpoint lacks then is not silently left out. */
static void test_layers_are_counted_by_the_key_of_their_family(void **state)
{
#define COUNTED(type, said, name)                                                                  \
  REFIT_TABLE(said "\"hidden_size\":16,\"n_embd\":16,\"num_attention_heads\":4,\"n_head\":4,"      \
                   "\"vocab_size\":64,\"model_type\":\"" type "\"",                                \
              "{\"pattern\":\"" name "\",\"layer\":[0,1],\"shape\":[16],\"dtype\":\"bf16\"}")
  static const struct {
    const char *text, *word;
  } cases[] = {
      {COUNTED("gpt2", "\"n_layer\":2,", "transformer.h.{layer}.ln_1.weight"), NULL},
      {COUNTED("gpt2", "\"n_layer\":3,", "transformer.h.{layer}.ln_1.weight"),
       "the last layer is 1; the configuration says 3 layers"},
      {COUNTED("gpt2", "\"n_layer\":1,", "transformer.h.{layer}.ln_1.weight"),
       "is in layer 1; the configuration says 1 layers, and 0 further ones"},
      {COUNTED("deepseek_v3", "\"num_hidden_layers\":1,\"num_nextn_predict_layers\":1,",
               "model.layers.{layer}.input_layernorm.weight"),
       NULL},
      {COUNTED("minimax_m2", "\"num_hidden_layers\":1,\"num_mtp_modules\":1,",
               "model.layers.{layer}.input_layernorm.weight"),
       NULL},
      {COUNTED("minimax_m2", "\"num_hidden_layers\":1,\"num_nextn_predict_layers\":1,",
               "model.layers.{layer}.input_layernorm.weight"),
       "and 0 further ones (num_mtp_modules)"},
      {COUNTED("bloom", "\"n_layer\":3,", "transformer.h.{layer}.input_layernorm.weight"),
       "the last layer is 1; the configuration says 3 layers"},
      {COUNTED("exaone", "\"num_layers\":3,", "transformer.h.{layer}.ln_1.weight"),
       "the last layer is 1; the configuration says 3 layers"},
      {COUNTED("telechat", "\"n_layer\":3,", "transformer.h.{layer}.input_layernorm.weight"),
       "the last layer is 1; the configuration says 3 layers"},
      {COUNTED("falcon", "\"n_layer\":3,", "transformer.h.{layer}.input_layernorm.weight"),
       "the last layer is 1; the configuration says 3 layers"},
      /* Each of LongCat's layers counts as two where transformers says num_hidden_layers. */
      {COUNTED("longcat_flash", "\"num_layers\":2,\"num_hidden_layers\":4,",
               "model.layers.{layer}.input_layernorm.0.weight"),
       NULL},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    print_message("case %zu\n", i);
    refit_expect(cases[i].text, cases[i].word);
  }
#undef COUNTED
}

static void test_experts_in_one_tensor_are_as_many_as_the_configuration_says(void **state)
{
  (void)state;
  refit_expect(REFIT_TABLE("\"num_hidden_layers\":1,\"hidden_size\":16,\"moe_num_experts\":4,"
                           "\"model_type\":\"step3_text\"",
                           "{\"name\":\"model.layers.0.moe.up_proj.weight\",\"shape\":[6,8,16],"
                           "\"dtype\":\"bf16\"}"),
               "has 6 experts; the configuration says 4");
}

/* Frameworks are asked about each model that sees or hears, whatever its text is. */
static void test_a_known_text_in_an_unknown_model_that_sees_is_refused(void **state)
{
#define SEES(whole, text)                                                                          \
  REFIT_TABLE("\"model_type\":\"" whole "\",\"text_config\":{" REFIT_DENSE_CONFIG                  \
              ",\"model_type\":\"" text "\"}",                                                     \
              REFIT_DENSE_PARAMS)
#define UNTIED "\",\"tie_word_embeddings\":false,\"name\":\""
  static const struct {
    const char *table, *train, *gen, *word; /* NULL: it is taken */
  } cases[] = {
      {SEES("mistral3", "ministral3"), "megatron:tp2,vdiv1", "full", NULL},
      {SEES("mistral3", "mistral"), "megatron:tp2,vdiv1", "full",
       "no rules for this model that sees"},
      {SEES("llava", "llama"), "megatron:tp2,vdiv1", "full", "no rules for this model that sees"},
      {SEES("mistral3", "mistral"), "full", "sglang:tp2,loaded", NULL},
      {SEES("voxtral", "llama"), "full", "vllm:tp2,loaded", "no answer of vLLM"},
      {SEES("internvl", "qwen3"), "full", "sglang:tp2,loaded", "what SGLang makes of this model"},
      {SEES("internvl", "qwen3"), "torchtitan:dp2", "full", "what TorchTitan makes of this family"},
      {SEES("internvl", "qwen3"), "full", "vllm:tp2", "does not say whether it is tied"},
      {SEES("internvl" UNTIED, "qwen3"), "full", "vllm:tp2", NULL},
      {SEES("llava", "llama"), "full", "vllm:tp2", NULL},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refit_sides s = refit_sides_make(cases[i].table, cases[i].train, cases[i].gen);
    const xfer_status st = refit_sides_join(&s);

    print_message("%s -> %s\n", cases[i].train, cases[i].gen);
    assert_int_equal(st, cases[i].word == NULL ? XFER_OK : XFER_ERR_UNSUPPORTED);
    if (cases[i].word != NULL) refit_expect_error(cases[i].word);
    refit_sides_end(&s);
  }
#undef UNTIED
#undef SEES
}

#define ONE(name, shape, dtype)                                                                    \
  "{\"name\":\"model.layers.0.mlp." name ".weight\",\"shape\":" shape ",\"dtype\":\"" dtype "\"}"
#define ROUTED(name, shape, last)                                                                  \
  "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}." name                                 \
  ".weight\",\"layer\":[0,0],\"expert\":[0," last "],\"shape\":" shape ",\"dtype\":\"bf16\"}"
#define EXPERTS_TO(last)                                                                           \
  ROUTED("gate_proj", "[8,16]", last)                                                              \
  "," ROUTED("up_proj", "[8,16]", last) "," ROUTED("down_proj", "[16,8]", last)
#define SHARED(dtype)                                                                              \
  ONE("shared_experts.gate_proj", "[8,16]", dtype)                                                 \
  "," ONE("shared_experts.up_proj", "[8,16]", dtype) "," ONE("shared_experts.down_proj", "[16,8]", \
                                                             dtype)
#define OF(type, more, params)                                                                     \
  REFIT_TABLE("\"num_hidden_layers\":1,\"hidden_size\":16,\"moe_intermediate_size\":8,"            \
              "\"model_type\":\"" type "\"," more,                                                 \
              params)
#define FEW(type, more)                                                                            \
  OF(type, "\"first_k_dense_replace\":0,\"n_routed_experts\":4," more,                             \
     EXPERTS_TO("3") "," SHARED("bf16"))
#define PAIR(type)                                                                                 \
  OF(type, "\"first_k_dense_replace\":0,\"n_routed_experts\":4,\"n_shared_experts\":2",            \
     EXPERTS_TO("3") "," ONE("shared_experts.gate_proj", "[16,16]", "bf16") "," ONE(               \
         "shared_experts.up_proj", "[16,16]", "bf16") "," ONE("shared_experts.down_proj",          \
                                                              "[16,16]", "bf16"))
#define MANY(type, n, last, more)                                                                  \
  OF(type, "\"first_k_dense_replace\":0,\"n_routed_experts\":" n ",\"n_shared_experts\":1" more,   \
     EXPERTS_TO(last) "," SHARED("bf16"))

/* Layers that are not ignored are as before: refused, or not. */
static void test_what_is_refused_is_so_where_another_layer_is_ignored(void **state)
{
  static const char *const ignored[][3] = {{"model.layers.0.*"},
                                           {"model.layers.1.*"},
                                           {"model.layers.0.*", "model.layers.1.*", "nothing"},
                                           {"model.layers.*"}};

  (void)state;
  for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
    refit_sides s = refit_sides_make(
        REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"qwen2\"", REFIT_DENSE_PARAMS), "full",
        "vllm:tp1");

    for (int k = 0; k < 3 && ignored[i][k] != NULL; k++)
      assert_int_equal(xfer_side_ignore(s.gen, ignored[i][k]), XFER_OK);
    assert_int_equal(refit_sides_join(&s), i < 2 ? XFER_ERR_UNSUPPORTED : XFER_OK);
    if (i < 2) refit_expect_error("vLLM has biases of attention here, and the model has none");
    refit_sides_end(&s);
  }
}

/* A checkpoint may have it beside the embedding, whose memory it is on both sides. */
static void test_a_tied_head_that_the_checkpoint_lists_does_not_travel(void **state)
{
  static const char *const cases[][2] = {{"megatron:pp2", "vllm:tp2"},
                                         {"megatron:tp2", "vllm:tp2"},
                                         {"full", "megatron:tp2,pp2"},
                                         {"megatron:tp2,pp2", "sglang:tp2"}};

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refit_sides s = refit_sides_make(
        REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"llama\",\"tie_word_embeddings\":true",
                    REFIT_DENSE_PARAMS),
        cases[i][0], cases[i][1]);
    size_t n = 0;

    assert_int_equal(refit_sides_join(&s), XFER_OK);
    const xfer_tensor *tensors = xfer_refit_tensors(s.refit, &n);
    for (size_t t = 0; t < n; t++)
      assert_string_not_equal(tensors[t].name, "lm_head.weight");
    for (int rank = 0; rank < xfer_refit_ranks(s.refit); rank++) {
      xfer_locals *locals = NULL;

      assert_int_equal(xfer_locals_create(&locals, s.refit, rank), XFER_OK);
      xfer_locals_destroy(locals);
    }
    refit_sides_end(&s);
  }
}

/* Checkpoints of Llama 2 have them; engines and trainers make their own. */
static void test_rotary_frequencies_do_not_travel(void **state)
{
  static const char *const cases[][2] = {{"megatron:tp2", "vllm:tp2"},
                                         {"fsdp:dp3", "sglang:tp2"},
                                         {"torchtitan:dp2", "vllm:tp1"},
                                         {"hf:tp2", "fsdp:dp3"}};

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refit_sides s = refit_sides_make(
        REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"llama\"",
                    REFIT_DENSE_PARAMS "," REFIT_P("self_attn.rotary_emb.inv_freq", "[2]")),
        cases[i][0], cases[i][1]);
    xfer_refit_report_data report = XFER_REFIT_REPORT_INIT;

    assert_int_equal(refit_sides_join(&s), XFER_OK);
    assert_int_equal(xfer_refit_report(s.refit, &report), XFER_OK);
    assert_int_equal(report.ignored, i < 3 ? 2 : 0);
    assert_int_equal(report.misc_bytes, 0);
    refit_sides_end(&s);
  }
}

/* SGLang has a shared expert as one more routed one where it finds that faster. */
static void test_sglang_decides_whether_a_shared_expert_is_a_routed_one(void **state)
{
  static const struct {
    const char *table, *gen;
    int64_t experts; /* of rank 0; as many as without it where it is apart */
  } cases[] = {
      {FEW("glm4_moe", "\"n_shared_experts\":1"), "sglang:tp2,loaded", 5},
      {FEW("glm4_moe", "\"n_group\":1"), "sglang:tp2,loaded", 5},
      {FEW("glm4_moe", "\"n_shared_experts\":1"), "sglang:tp2,loaded,shared_apart", 4},
      {FEW("glm4_moe", "\"n_shared_experts\":1"), "sglang:tp2,ep2,loaded", 2},
      {FEW("glm4_moe", "\"n_shared_experts\":1"), "sglang:tp2,ep2,deepep,loaded", 2},
      {PAIR("glm4_moe"), "sglang:tp2,loaded,shared_apart", 4},
      {FEW("glm4_moe_lite", "\"n_shared_experts\":1"), "sglang:tp2,loaded", 5},
      {PAIR("glm4_moe_lite"), "sglang:tp2,loaded", 4},
      {FEW("deepseek_v3", "\"n_shared_experts\":1"), "sglang:tp2,loaded", 4},
      {MANY("deepseek_v3", "256", "255", ""), "sglang:tp2,loaded", 257},
      {MANY("deepseek_v3", "256", "255", ""), "sglang:tp2,ep2,loaded", 128},
      {MANY("deepseek_v3", "256", "255", ",\"architectures\":[\"DeepseekV3ForCausalLM\"]"),
       "sglang:tp2,loaded", 257},
      {MANY("deepseek_v2", "256", "255", ""), "sglang:tp2,loaded", 256},
      {MANY("kimi_k2", "384", "383", ",\"architectures\":[\"DeepseekV3ForCausalLM\"]"),
       "sglang:tp2,loaded", 384},
      {MANY("glm_moe_dsa", "256", "255", ""), "sglang:tp2,loaded", 257},
      {MANY("glm_moe_dsa", "16", "15", ""), "sglang:tp2,loaded", 16},
      {MANY("deepseek_v32", "256", "255", ""), "sglang:tp2,loaded", 256},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *w2 = "model.layers.0.mlp.experts.w2_weight";
    refit_sides s = refit_sides_make(cases[i].table, "full", cases[i].gen);

    print_message("%zu: %s\n", i, cases[i].gen);
    assert_int_equal(refit_sides_join(&s), XFER_OK);
    assert_int_equal(refit_first_dim_of(s.refit, w2, 3), cases[i].experts);
    assert_int_equal(
        refit_first_dim_of(s.refit, "model.layers.0.mlp.shared_experts.down_proj.weight", 3) == -1,
        cases[i].experts % 2 == 0);
    refit_sides_end(&s);
  }
}

/* Megatron-Core has the two projections apart in sparse attention, whatever its option says. */
static void test_megatron_fuses_no_down_projections_of_sparse_attention(void **state)
{
  (void)state;
  for (int sparse = 0; sparse < 2; sparse++) {
    refit_sides s = refit_sides_make(sparse ? FEW("glm_moe_dsa", "\"indexer_rope_interleave\":true")
                                            : FEW("deepseek_v3", "\"n_shared_experts\":1"),
                                     "megatron:tp2,mla_down=fused", "full");
    const xfer_status st = refit_sides_join(&s);

    assert_int_equal(st, sparse ? XFER_ERR_UNSUPPORTED : XFER_OK);
    if (sparse) refit_expect_error("Megatron fuses no down projections");
    refit_sides_end(&s);
  }
}

/* What its loader, or no rule, has as one of them. */
static void test_shared_experts_that_cannot_be_routed_ones_are_refused(void **state)
{
  static const struct {
    const char *table, *word;
    xfer_status status;
  } cases[] = {
      {PAIR("glm4_moe"), "more than one shared expert", XFER_ERR_UNSUPPORTED},
      {OF("glm4_moe", "\"first_k_dense_replace\":0,\"n_routed_experts\":4", EXPERTS_TO("3")),
       "say shared_apart", XFER_ERR_UNSUPPORTED},
      {OF("glm4_moe", "\"first_k_dense_replace\":0,\"n_routed_experts\":4",
          EXPERTS_TO("3") "," SHARED("f8e4m3")),
       "they lie in one tensor", XFER_ERR_MISMATCH},
      {MANY("deepseek_v3", "384", "383", ",\"quantization_config\":{\"quant_method\":\"quark\"}"),
       "quantised so", XFER_ERR_UNSUPPORTED},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refit_sides s = refit_sides_make(cases[i].table, "full", "sglang:tp2,loaded");

    print_message("%zu\n", i);
    assert_int_equal(refit_sides_join(&s), cases[i].status);
    refit_expect_error(cases[i].word);
    refit_sides_end(&s);
  }
}

static void test_a_shared_expert_among_routed_ones_is_of_their_size(void **state)
{
  const char *table =
      OF("glm4_moe", "\"first_k_dense_replace\":0,\"n_routed_experts\":4",
         EXPERTS_TO("3") "," ONE("shared_experts.gate_proj", "[12,16]", "bf16") "," ONE(
             "shared_experts.up_proj", "[12,16]", "bf16") "," ONE("shared_experts.down_proj",
                                                                  "[16,12]", "bf16"));
  refit_sides s = refit_sides_make(table, "full", "sglang:tp2,loaded");
  xfer_locals *locals = NULL;

  (void)state;
  assert_int_equal(refit_sides_join(&s), XFER_OK);
  assert_int_equal(xfer_locals_create(&locals, s.refit, 1), XFER_ERR_SHAPE);
  refit_expect_error("its last expert has 12 in dim 1, the others have 8");
  refit_sides_end(&s);
}

/* A model of one layer, with more of them up to `last` that predict further tokens. */
#define FURTHER(type, last)                                                                        \
  OF(type,                                                                                         \
     "\"first_k_dense_replace\":9,\"n_routed_experts\":4,\"num_attention_heads\":2,"               \
     "\"use_moe_router_bias\":true,"                                                               \
     "\"num_nextn_predict_layers\":" last,                                                         \
     "{\"pattern\":\"model.layers.{layer}.input_layernorm.weight\",\"layer\":[0," last "],"        \
     "\"shape\":[16],\"dtype\":\"bf16\"}")

/* What no rule knows of SGLang's draft models is refused in them alone. */
static void test_draft_models_of_which_no_rule_says_what_they_have_are_refused(void **state)
{
  static const struct {
    const char *table, *gen, *word;
  } cases[] = {
      {FURTHER("glm4_moe", "1"), "sglang:tp2,loaded,draft", NULL},
      {FURTHER("glm4_moe", "2"), "sglang:tp2,loaded", NULL},
      {FURTHER("glm4_moe", "2"), "sglang:tp2,loaded,draft", "one layer of several"},
      {FURTHER("deepseek_v2", "1"), "sglang:tp2,loaded", NULL},
      {FURTHER("deepseek_v2", "1"), "sglang:tp2,loaded,draft", "what the draft model of this"},
      {FURTHER("deepseek_v3", "1"), "sglang:tp2,pp2,loaded,draft", "last stage of the main one"},
      {FURTHER("step3p5", "1"), "sglang:tp2,loaded,draft", "says of layer 45"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refit_sides s = refit_sides_make(cases[i].table, "full", cases[i].gen);

    print_message("%zu: %s\n", i, cases[i].gen);
    assert_int_equal(refit_sides_join(&s), cases[i].word == NULL ? XFER_OK : XFER_ERR_UNSUPPORTED);
    if (cases[i].word != NULL) refit_expect_error(cases[i].word);
    refit_sides_end(&s);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_draft_models_of_which_no_rule_says_what_they_have_are_refused),
      cmocka_unit_test(test_sglang_decides_whether_a_shared_expert_is_a_routed_one),
      cmocka_unit_test(test_a_shared_expert_among_routed_ones_is_of_their_size),
      cmocka_unit_test(test_megatron_fuses_no_down_projections_of_sparse_attention),
      cmocka_unit_test(test_shared_experts_that_cannot_be_routed_ones_are_refused),
      cmocka_unit_test(test_a_known_text_in_an_unknown_model_that_sees_is_refused),
      cmocka_unit_test(test_experts_are_as_many_as_the_configuration_says),
      cmocka_unit_test(test_layers_have_experts_where_the_configuration_says),
      cmocka_unit_test(test_layers_are_of_the_kind_that_the_configuration_says),
      cmocka_unit_test(test_a_word_counts_layers_of_which_an_expression_holds),
      cmocka_unit_test(test_layers_are_counted_by_the_key_of_their_family),
      cmocka_unit_test(test_experts_in_one_tensor_are_as_many_as_the_configuration_says),
      cmocka_unit_test(test_what_is_refused_is_so_where_another_layer_is_ignored),
      cmocka_unit_test(test_a_tied_head_that_the_checkpoint_lists_does_not_travel),
      cmocka_unit_test(test_rotary_frequencies_do_not_travel),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
