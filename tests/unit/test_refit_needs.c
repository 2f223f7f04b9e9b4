/* What a checkpoint may not lack, and what it may; and that a table may list some of a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "refit_sides.h"

#define CONFIG                                                                                     \
  "\"vocab_size\":64,\"hidden_size\":16,\"num_hidden_layers\":2,\"num_attention_heads\":4,"        \
  "\"num_key_value_heads\":2,\"head_dim\":4,\"tie_word_embeddings\":true"

/* The tensors of layers whose numbers are layer_0 and on, and of what lies outside. */
static const char *const LAYER[] = {"input_layernorm",  "post_attention_layernorm",
                                    "self_attn.q_proj", "self_attn.k_proj",
                                    "self_attn.v_proj", "self_attn.o_proj",
                                    "self_attn.q_norm", "self_attn.k_norm",
                                    "mlp.gate_proj",    "mlp.up_proj",
                                    "mlp.down_proj"};
static const char *const OUTSIDE[] = {"embed_tokens", "norm"};
enum { N_LAYER = sizeof LAYER / sizeof *LAYER, N_OUTSIDE = sizeof OUTSIDE / sizeof *OUTSIDE };

static const char *shape_of(const char *name)
{
  if (strstr(name, "q_norm") != NULL || strstr(name, "k_norm") != NULL) return "[4]";
  if (strstr(name, "norm") != NULL) return "[16]";
  if (strstr(name, "embed") != NULL) return "[64,16]";
  if (strstr(name, "k_proj") != NULL || strstr(name, "v_proj") != NULL) return "[8,16]";
  if (strstr(name, "gate") != NULL || strstr(name, "up") != NULL) return "[32,16]";
  return strstr(name, "down") != NULL ? "[16,32]" : "[16,16]";
}

/* What the names of projections end in, and what lies beside each (NULL: nothing). */
static const char *form = "weight", *companion;

static void add(char *header, size_t size, const char *name, const char *without)
{
  const bool projects = strstr(name, "_proj") != NULL;
  size_t n = strlen(header);

  if (projects && companion != NULL)
    snprintf(header + n, size - n, "%s\"%s.%s\":{\"dtype\":\"F16\",\"shape\":[4,4]}",
             n > 1 ? "," : "", name, companion);
  if (without != NULL && strcmp(name, without) == 0) return;
  n = strlen(header);
  snprintf(header + n, size - n, "%s\"%s.%s\":{\"dtype\":\"BF16\",\"shape\":%s}", n > 1 ? "," : "",
           name, projects ? form : "weight", shape_of(name));
}

/* A checkpoint of two layers without one tensor (NULL: whole). */
static void write_checkpoint(const char *config, const char *without)
{
  char header[1 << 14] = "{", name[96];

  for (int i = 0; i < N_OUTSIDE; i++) {
    snprintf(name, sizeof name, "model.%s", OUTSIDE[i]);
    add(header, sizeof header - 2, name, without);
  }
  for (int i = 0; i < 2 * N_LAYER; i++) {
    snprintf(name, sizeof name, "model.layers.%d.%s", i / N_LAYER, LAYER[i % N_LAYER]);
    add(header, sizeof header - 2, name, without);
  }
  strcat(header, "}");
  mkdir(refit_path("ck"), 0777);
  refit_write("ck/config.json", config);
  refit_write_header("ck/model.safetensors", header);
}

static xfer_status join_to(const char *spec, const char *path, const xfer_model_options *options)
{
  xfer_model *model = NULL;
  xfer_side *side = NULL;
  xfer_refit *refit = NULL;
  xfer_status st;

  assert_int_equal(xfer_model_load(&model, path, options), XFER_OK);
  assert_int_equal(xfer_side_create(&side, spec, NULL), XFER_OK);
  st = xfer_refit_create(&refit, model, NULL, side);
  assert_int_equal(refit != NULL, st == XFER_OK);
  xfer_refit_destroy(refit);
  xfer_side_destroy(side);
  xfer_model_destroy(model);
  return st;
}

static xfer_status join(const char *path, const xfer_model_options *options)
{
  return join_to("full", path, options);
}

static void test_a_weight_that_a_checkpoint_lost_is_named(void **state)
{
  static const char config[] = "{\"model_type\":\"qwen3\"," CONFIG "}";
  char name[96];

  (void)state;
  write_checkpoint(config, NULL);
  assert_int_equal(join(refit_path("ck"), NULL), XFER_OK);
  for (int i = 0; i < 2 * N_LAYER; i++) {
    snprintf(name, sizeof name, "model.layers.%d.%s", i / N_LAYER, LAYER[i % N_LAYER]);
    print_message("%s\n", name);
    write_checkpoint(config, name);
    assert_int_equal(join(refit_path("ck"), NULL), XFER_ERR_IO);
    refit_expect_error(name);
    refit_expect_error("is missing, the ");
  }
  for (int i = 0; i < N_OUTSIDE; i++) {
    snprintf(name, sizeof name, "model.%s", OUTSIDE[i]);
    write_checkpoint(config, name);
    assert_int_equal(join(refit_path("ck"), NULL), XFER_ERR_IO);
    refit_expect_error(OUTSIDE[i]);
  }
}

/* An engine would take the number of its class. */
static void test_a_checkpoints_configuration_counts_its_layers(void **state)
{
#define UNCOUNTED                                                                                  \
  "{\"model_type\":\"seed_oss\",\"vocab_size\":64,\"hidden_size\":16,\"num_attention_heads\":4,"   \
  "\"num_key_value_heads\":2,\"head_dim\":4,\"tie_word_embeddings\":true"
  (void)state;
  write_checkpoint(UNCOUNTED ",\"num_hidden_layers\":2}", NULL);
  assert_int_equal(join(refit_path("ck"), NULL), XFER_OK);
  write_checkpoint(UNCOUNTED "}", NULL);
  assert_int_equal(join(refit_path("ck"), NULL), XFER_ERR_IO);
  refit_expect_error("does not say how many layers the model has");
#undef UNCOUNTED
}

/* MiMo with the layer that predicts a further token, whose number in the checkpoint is 0. */
static void write_further(const char *without)
{
  static const char *const FURTHER[] = {"token_layernorm", "hidden_layernorm", "final_layernorm",
                                        "input_proj"};
  char header[1 << 14] = "{", name[96];

  for (int i = 0; i < N_OUTSIDE; i++) {
    snprintf(name, sizeof name, "model.%s", OUTSIDE[i]);
    add(header, sizeof header - 2, name, without);
  }
  for (int i = 0; i < 3 * N_LAYER; i++) {
    const int layer = i / N_LAYER;

    if (strstr(LAYER[i % N_LAYER], "q_norm") || strstr(LAYER[i % N_LAYER], "k_norm")) continue;
    snprintf(name, sizeof name, "model.%s.%d.%s", layer < 2 ? "layers" : "mtp_layers",
             layer < 2 ? layer : 0, LAYER[i % N_LAYER]);
    add(header, sizeof header - 2, name, without);
  }
  for (size_t i = 0; i < sizeof FURTHER / sizeof *FURTHER; i++) {
    snprintf(name, sizeof name, "model.mtp_layers.0.%s", FURTHER[i]);
    add(header, sizeof header - 2, name, without);
  }
  strcat(header, "}");
  mkdir(refit_path("ck"), 0777);
  refit_write("ck/config.json",
              "{\"model_type\":\"mimo\",\"num_nextn_predict_layers\":1," CONFIG "}");
  refit_write_header("ck/model.safetensors", header);
}

static void test_what_a_further_layer_lost_is_named(void **state)
{
  static const char *const LOST[] = {"self_attn.q_proj", "mlp.up_proj",     "input_layernorm",
                                     "input_proj",       "token_layernorm", "final_layernorm"};
  char name[96];

  (void)state;
  write_further(NULL);
  assert_int_equal(join(refit_path("ck"), NULL), XFER_OK);
  for (size_t i = 0; i < sizeof LOST / sizeof *LOST; i++) {
    snprintf(name, sizeof name, "model.mtp_layers.0.%s", LOST[i]);
    write_further(name);
    assert_int_equal(join(refit_path("ck"), NULL), XFER_ERR_IO);
    refit_expect_error(name);
    refit_expect_error("is missing, the ");
  }
}

/* AWQ and GPTQ, compressed-tensors' packed integers, a model with adapters: the weights are there,
 * in forms that the sides of engines refuse by name. Without one, what lies beside it is no weight.
 */
static void test_a_weight_in_another_form_is_there(void **state)
{
  static const char *const FORMS[][2] = {{"qweight", "qzeros"},
                                         {"weight_packed", "weight_shape"},
                                         {"base_layer.weight", "lora_A.weight"}};
  static const char config[] = "{\"model_type\":\"qwen3\"," CONFIG "}";

  (void)state;
  for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) {
    form = FORMS[i][0];
    companion = FORMS[i][1];
    write_checkpoint(config, NULL);
    assert_int_equal(join(refit_path("ck"), NULL), XFER_OK);
    assert_int_equal(join_to("vllm:tp2,loaded", refit_path("ck"), NULL), XFER_ERR_UNSUPPORTED);
    refit_expect_error("no rule says what \"vllm:tp2,loaded\" makes of this beside its weight");
    write_checkpoint(config, "model.layers.1.self_attn.v_proj");
    assert_int_equal(join(refit_path("ck"), NULL), XFER_ERR_IO);
    refit_expect_error("\"model.layers.1.self_attn.v_proj\" is missing");
  }
  form = "weight";
  companion = NULL;
}

#define TENSOR(name, dtype, shape)                                                                 \
  "{\"name\":\"model.layers." name "\",\"dtype\":\"" dtype "\",\"shape\":" shape "}"
#define O(layer) TENSOR(layer ".self_attn.o_proj.weight", "f8e4m3", "[16,16]")
#define O_SCALES(layer) TENSOR(layer ".self_attn.o_proj.weight_scale", "f32", "[16,1]")
#define O_INPUT(layer) TENSOR(layer ".self_attn.o_proj.input_scale", "f32", "[1]")
#define UP(layer) TENSOR(layer ".mlp.experts.gate_up_proj_blocks", "u8", "[2,64,1,16]")
#define UP_SCALES(layer) TENSOR(layer ".mlp.experts.gate_up_proj_scales", "u8", "[2,64,1]")
#define DOWN(layer) TENSOR(layer ".mlp.experts.down_proj_blocks", "u8", "[2,32,1,16]")
#define DOWN_SCALES(layer) TENSOR(layer ".mlp.experts.down_proj_scales", "u8", "[2,32,1]")
#define UP_2 UP("0") "," UP_SCALES("0") "," UP("1") "," UP_SCALES("1") ","
#define QWEN3 "\"model_type\":\"qwen3\"," CONFIG
#define GPT_OSS                                                                                    \
  "\"model_type\":\"gpt_oss\",\"num_local_experts\":2,\"intermediate_size\":32,\"hidden_size\":"   \
  "32,"                                                                                            \
  "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8"

typedef struct table_case {
  const char *table, *missing; /* NULL: none */
} table_case;

static void check_tables(const table_case *cases, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    print_message("%s\n", cases[i].table);
    assert_int_equal(join(refit_write("some.json", cases[i].table), NULL),
                     cases[i].missing == NULL ? XFER_OK : XFER_ERR_IO);
    if (cases[i].missing != NULL) refit_expect_error(cases[i].missing);
  }
}

/* A layer whose weight has another type is not quantised; and scales alone are no weight. */
static void test_what_a_quantised_weight_lost_is_missed(void **state)
{
  static const table_case CASES[] = {
      {REFIT_TABLE(QWEN3, O("0") "," O_SCALES("0") "," O("1") "," O_SCALES("1")), NULL},
      {REFIT_TABLE(QWEN3, O("0") "," O_SCALES("0") "," O("1")), "1.self_attn.o_proj.weight_scale"},
      {REFIT_TABLE(QWEN3, O("0") "," O("1") "," O_SCALES("1")), "0.self_attn.o_proj.weight_scale"},
      {REFIT_TABLE(QWEN3, O("0") "," O_SCALES("0") "," TENSOR("1.self_attn.o_proj.weight", "bf16",
                                                              "[16,16]")),
       NULL},
      {REFIT_TABLE(QWEN3, O("0") "," O_SCALES("0") "," O_INPUT("0") "," O("1") "," O_SCALES("1")),
       "1.self_attn.o_proj.input_scale"},
      {REFIT_TABLE(GPT_OSS, UP_2 DOWN("0") "," DOWN_SCALES("0") "," DOWN("1") "," DOWN_SCALES("1")),
       NULL},
      {REFIT_TABLE(GPT_OSS, UP_2 DOWN("0") "," DOWN_SCALES("0") "," DOWN("1")),
       "1.mlp.experts.down_proj_scales"},
      {REFIT_TABLE(GPT_OSS, UP_2 DOWN("0") "," DOWN_SCALES("0") "," DOWN_SCALES("1")),
       "1.mlp.experts.down_proj_blocks"},
  };

  (void)state;
  check_tables(CASES, sizeof CASES / sizeof *CASES);
}

static void write_header(const char *config, const char *tensors)
{
  char header[4096];

  snprintf(header, sizeof header, "{%s}", tensors);
  mkdir(refit_path("ck"), 0777);
  refit_write("ck/config.json", config);
  refit_write_header("ck/model.safetensors", header);
}

#define UNTIED                                                                                     \
  "\"vocab_size\":16,\"hidden_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":4"
#define O_OF(dtype, shape, end)                                                                    \
  "\"model.layers.0.self_attn.o_proj." end "\":{\"dtype\":\"" dtype "\",\"shape\":" shape "}"

/* Nor do layers help each other where all have lost them. */
static void test_an_fp8_weight_has_scales(void **state)
{
  static const char config[] = "{\"model_type\":\"qwen3\"," UNTIED "}";

  (void)state;
  write_header(config, O_OF("F8_E4M3", "[16,16]", "weight"));
  assert_int_equal(join(refit_path("ck"), NULL), XFER_ERR_IO);
  refit_expect_error("the scales of \"model.layers.{layer}.self_attn.o_proj.weight\" are missing");
  write_header(config,
               O_OF("F8_E4M3", "[16,16]", "weight") "," O_OF("F32", "[16,1]", "weight_scale"));
  assert_int_equal(join(refit_path("ck"), NULL), XFER_ERR_IO);
  refit_expect_error("\"model.layers.0.self_attn.q_norm\" is missing");
}

#define SOME(name) "\"" name "\":{\"dtype\":\"BF16\",\"shape\":[16]}"

/* The layers of multi-token prediction alone, and names under a prefix that no rule knows: there
 * nothing is missed, and an engine's side says that no rule places such names. */
static void test_without_known_layers_nothing_is_missed(void **state)
{
  static const char config[] =
      "{\"model_type\":\"mimo\",\"num_nextn_predict_layers\":1," CONFIG "}";

  (void)state;
  write_header(config, SOME("model.mtp_layers.0.input_layernorm.weight"));
  assert_int_equal(join(refit_path("ck"), NULL), XFER_OK);
  write_header(config, SOME("module.model.layers.0.input_layernorm.weight"));
  assert_int_equal(join(refit_path("ck"), NULL), XFER_OK);
  assert_int_equal(join_to("vllm:tp1,loaded", refit_path("ck"), NULL), XFER_ERR_UNSUPPORTED);
  refit_expect_error("no rule of family \"mimo\" says where 1 tensors are");
}

#define BF16(name) TENSOR(name, "bf16", "[16]")
#define FALCON(layer, name)                                                                        \
  "{\"name\":\"transformer.h." layer "." name ".weight\",\"dtype\":\"bf16\",\"shape\":[16]}"
#define NORM_0 BF16("0.input_layernorm.weight") ","
#define NAS "\"model_type\":\"nemotron-nas\"," CONFIG
#define CLA "\"model_type\":\"hunyuan_v1_moe\",\"use_cla\":true,\"cla_share_factor\":2," CONFIG
#define PROJ(layer, name, shape) TENSOR(layer ".self_attn." name "_proj.weight", "bf16", shape)
#define QO(layer)                                                                                  \
  PROJ(layer, "q", "[16,16]")                                                                      \
  "," PROJ(layer, "o", "[16,16]") "," BF16(layer ".input_layernorm.weight")
#define KV(layer) PROJ(layer, "k", "[8,16]") "," PROJ(layer, "v", "[8,16]")
#define KDA                                                                                        \
  "\"model_type\":\"kimi_linear\",\"linear_attn_config\":{\"num_heads\":4,\"head_dim\":4}," CONFIG
#define A(layer) TENSOR(layer ".self_attn.A_log", "f32", "[1,1,4,1]")
#define CONV(layer) TENSOR(layer ".self_attn.k_conv1d.weight", "bf16", "[16,1,4]")

/* Attention that is but a linear layer, layers that share keys and values; and what only some
 * layers lost. */
static void test_families_know_what_their_layers_have(void **state)
{
  static const table_case CASES[] = {
      {REFIT_TABLE(NAS, NORM_0 TENSOR("0.self_attn.linear_attn.weight", "bf16",
                                      "[16,16]") "," QO("1") "," KV("1")),
       NULL},
      {REFIT_TABLE(CLA, QO("0") "," KV("0") "," QO("1")), NULL},
      {REFIT_TABLE(CLA, QO("0") "," PROJ("0", "k", "[8,16]") "," QO("1") "," KV("1")),
       "layers.0.self_attn.v_proj"},
      {REFIT_TABLE("\"model_type\":\"falcon\"," CONFIG,
                   FALCON("0", "input_layernorm") "," FALCON("1", "post_attention_layernorm")),
       "h.1.input_layernorm"},
      {REFIT_TABLE(KDA, A("0") "," CONV("0") "," CONV("1")), "layers.1.self_attn.A_log"},
  };

  (void)state;
  check_tables(CASES, sizeof CASES / sizeof *CASES);
}

/* Phi without the tensor whose name is `lost`, and without the output layer's weight. */
static void write_phi(const char *lost, const char *more)
{
  static const char config[] = "{\"model_type\":\"phi\"," UNTIED "}";
  static const char *const NAMES[] = {"embed_tokens",
                                      "final_layernorm",
                                      "layers.0.input_layernorm",
                                      "layers.0.mlp.fc1",
                                      "layers.0.mlp.fc2",
                                      "layers.0.self_attn.q_proj",
                                      "layers.0.self_attn.k_proj",
                                      "layers.0.self_attn.v_proj",
                                      "layers.0.self_attn.dense"};
  char tensors[4096] = "", bias[64];

  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
    size_t n = strlen(tensors);

    snprintf(tensors + n, sizeof tensors - n,
             "%s\"model.%s.weight\":{\"dtype\":\"BF16\",\"shape\":[16%s]}", i > 0 ? "," : "",
             NAMES[i], strstr(NAMES[i], "norm") != NULL ? "" : ",16");
    snprintf(bias, sizeof bias, "%s.bias", NAMES[i]);
    n = strlen(tensors);
    if (i > 0 && strcmp(bias, lost) != 0)
      snprintf(tensors + n, sizeof tensors - n, ",\"model.%s\":{\"dtype\":\"BF16\",\"shape\":[16]}",
               bias);
  }
  strcat(tensors, more);
  write_header(config, tensors);
}

/* A model that classifies has another head; a bias that is left is none. */
static void test_an_output_layer_is_missed_by_its_bias(void **state)
{
  (void)state;
  write_phi("", "");
  assert_int_equal(join(refit_path("ck"), NULL), XFER_OK);
  write_phi("", "," SOME("lm_head.bias"));
  assert_int_equal(join(refit_path("ck"), NULL), XFER_ERR_IO);
  refit_expect_error("\"lm_head\" is missing");
}

static void test_a_bias_that_a_checkpoint_lost_is_named(void **state)
{
  static const char *const LOST[] = {"final_layernorm.bias", "layers.0.input_layernorm.bias",
                                     "layers.0.mlp.fc2.bias", "layers.0.self_attn.dense.bias"};

  (void)state;
  for (size_t i = 0; i < sizeof LOST / sizeof *LOST; i++) {
    write_phi(LOST[i], "");
    assert_int_equal(join(refit_path("ck"), NULL), XFER_ERR_IO);
    refit_expect_error(LOST[i]);
    refit_expect_error("is missing, the ");
  }
}

/* Without a model_type the family is a guess. */
static void test_without_a_model_type_nothing_is_missed(void **state)
{
  (void)state;
  write_checkpoint("{\"model_type\":\"qwen3\"," CONFIG "}", "model.layers.1.mlp.down_proj");
  assert_int_equal(join(refit_path("ck"), NULL), XFER_ERR_IO);
  refit_write("ck/config.json", "{" CONFIG "}");
  assert_int_equal(join(refit_path("ck"), NULL), XFER_OK);
}

/* Of a range of layers nothing outside it is wanted, unless the ends are. */
static void test_layers_that_are_not_wanted_are_not_missed(void **state)
{
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;

  (void)state;
  options.layers_end = 1;
  write_checkpoint("{\"model_type\":\"qwen3\"," CONFIG "}", "model.layers.1.mlp.down_proj");
  assert_int_equal(join(refit_path("ck"), &options), XFER_OK);
  write_checkpoint("{\"model_type\":\"qwen3\"," CONFIG "}", "model.norm");
  assert_int_equal(join(refit_path("ck"), &options), XFER_OK);
  options.ends = 1;
  assert_int_equal(join(refit_path("ck"), &options), XFER_ERR_IO);
  refit_expect_error("\"norm\" is missing");
  options.layers_begin = 1;
  options.layers_end = 2;
  options.ends = 0;
  write_checkpoint("{\"model_type\":\"qwen3\"," CONFIG "}", "model.layers.1.input_layernorm");
  assert_int_equal(join(refit_path("ck"), &options), XFER_ERR_IO);
}

static void test_a_table_may_list_some_of_a_model(void **state)
{
  (void)state;
  assert_int_equal(join(refit_write("some.json", REFIT_TABLE("\"model_type\":\"qwen3\"," CONFIG,
                                                             REFIT_ATTENTION)),
                        NULL),
                   XFER_OK);
  assert_int_equal(
      join(refit_write("some.json",
                       REFIT_TABLE("\"model_type\":\"qwen3\"," CONFIG, REFIT_ATTENTION
                                   "," REFIT_N("model.layers.0.input_layernorm.weight", "[16]"))),
           NULL),
      XFER_ERR_IO);
  refit_expect_error("model.layers.1.input_layernorm");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_weight_that_a_checkpoint_lost_is_named),
      cmocka_unit_test(test_a_checkpoints_configuration_counts_its_layers),
      cmocka_unit_test(test_what_a_further_layer_lost_is_named),
      cmocka_unit_test(test_a_weight_in_another_form_is_there),
      cmocka_unit_test(test_what_a_quantised_weight_lost_is_missed),
      cmocka_unit_test(test_an_fp8_weight_has_scales),
      cmocka_unit_test(test_without_known_layers_nothing_is_missed),
      cmocka_unit_test(test_families_know_what_their_layers_have),
      cmocka_unit_test(test_an_output_layer_is_missed_by_its_bias),
      cmocka_unit_test(test_a_bias_that_a_checkpoint_lost_is_named),
      cmocka_unit_test(test_without_a_model_type_nothing_is_missed),
      cmocka_unit_test(test_layers_that_are_not_wanted_are_not_missed),
      cmocka_unit_test(test_a_table_may_list_some_of_a_model),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
