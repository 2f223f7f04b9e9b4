/* The local tensors of a rank: the frameworks' own names, shapes and strides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "refit_locals.h"
#include "refit_sides.h"

/* Layers that are called h.N, of weights that are columns by rows. */
#define GPT2                                                                                       \
  REFIT_TABLE(                                                                                     \
      "\"model_type\":\"gpt2\",\"n_embd\":16,\"n_head\":4",                                        \
      REFIT_N("h.0.attn.c_attn.weight", "[16,48]") "," REFIT_N(                                    \
          "h.1.attn.c_attn.weight",                                                                \
          "[16,48]") "," REFIT_N("h.0.mlp.c_proj.weight",                                          \
                                 "[32,16]") "," REFIT_N("h.1.mlp.c_proj.weight", "[32,16]"))

/* As older checkpoints have it. */
#define KIMI(shape)                                                                                \
  REFIT_TABLE("\"model_type\":\"kimi_linear\",\"moe_intermediate_size\":4096,\"linear_attn_"       \
              "config\":{\"num_heads\":4}",                                                        \
              REFIT_P("self_attn.A_log", shape))

/* Kimi-K3's gate lies with q, k and v, whose rows have room for a multiple of 16. */
#define OF_ATTENTION(name, shape) REFIT_P("self_attn." name "_proj.weight", shape)
#define GATED                                                                                      \
  OF_ATTENTION("k", "[8,16]") "," OF_ATTENTION("v", "[8,16]") "," OF_ATTENTION("g", "[8,16]")
#define KIMI_K3_LAYER                                                                              \
  OF_ATTENTION("q", "[8,16]")                                                                      \
  "," GATED "," OF_ATTENTION("f_a", "[2,16]") "," OF_ATTENTION("b", "[4,16]")
#define KIMI_K3                                                                                    \
  REFIT_TABLE("\"model_type\":\"kimi_linear\",\"moe_intermediate_size\":4096,\"linear_attn_"       \
              "config\":{\"num_heads\":4,\"head_dim\":2,\"use_full_rank_gate\":true}",             \
              KIMI_K3_LAYER)

/* What Gemma 3 of 4B says of its text, with a layer: all else is what its class has without it. */
#define GEMMA3                                                                                     \
  REFIT_TABLE(                                                                                     \
      "\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\","                 \
      "\"hidden_size\":2560,\"intermediate_size\":10240,\"num_hidden_layers\":1}",                 \
      REFIT_N("language_model.model.layers.0.self_attn.q_proj.weight", "[2048,2560]") "," REFIT_N( \
          "language_model.model.layers.0.self_attn.k_proj.weight",                                 \
          "[1024,2560]") "," REFIT_N("language_model.model.layers.0.self_attn.v_proj.weight",      \
                                     "[1024,2560]"))

/* Heads of full attention as transformers 5 saves them: of single layers. */
#define GEMMA4_ATTENTION(layer, q, kv)                                                             \
  REFIT_N("model.layers." layer ".self_attn.q_proj.weight", q)                                     \
  "," REFIT_N("model.layers." layer ".self_attn.k_proj.weight",                                    \
              kv) "," REFIT_N("model.layers." layer ".self_attn.v_proj.weight", kv)
#define GEMMA4                                                                                     \
  REFIT_TABLE(                                                                                     \
      "\"model_type\":\"gemma4_text\",\"hidden_size\":16,\"num_hidden_layers\":2,"                 \
      "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":4,"                        \
      "\"per_layer_config\":{\"1\":{\"head_dim\":8}}",                                             \
      GEMMA4_ATTENTION("0", "[16,16]", "[8,16]") "," GEMMA4_ATTENTION("1", "[32,16]", "[16,16]"))

/* The same of 12 layers, whose numbers transformers writes with two digits. */
#define GEMMA4_LAYER(name, layers, shape)                                                          \
  "{\"pattern\":\"model.layers.{layer}.self_attn." name ".weight\",\"layer_list\":" layers         \
  ",\"shape\":" shape ",\"dtype\":\"bf16\"}"
#define GEMMA4_LAYERS(layers, q, kv)                                                               \
  GEMMA4_LAYER("q_proj", layers, q)                                                                \
  "," GEMMA4_LAYER("k_proj", layers, kv) "," GEMMA4_LAYER("v_proj", layers, kv)
#define GEMMA4_OF_12                                                                               \
  REFIT_TABLE("\"model_type\":\"gemma4_text\",\"hidden_size\":16,\"num_hidden_layers\":12,"        \
              "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":4,"                \
              "\"per_layer_config\":{\"05\":{\"head_dim\":8},\"11\":{\"head_dim\":8}}",            \
              GEMMA4_LAYERS("[0,1,2,3,4,6,7,8,9,10]", "[16,16]",                                   \
                            "[8,16]") "," GEMMA4_LAYERS("[5,11]", "[32,16]", "[16,16]"))

static void test_names_and_shapes_are_the_frameworks_own(void **state)
{
  static const struct {
    const char *table, *spec;
    xfer_refit_side side;
    const char *name;
    int64_t shape[3];
    int n_dims;
  } cases[] = {
      {REFIT_DENSE,
       "megatron:tp2",
       0,
       "decoder.layers.1.self_attention.linear_qkv.weight",
       {16, 16},
       2},
      {REFIT_DENSE, "megatron:tp2", 0, "decoder.layers.0.mlp.linear_fc1.weight", {32, 16}, 2},
      {REFIT_DENSE, "megatron:tp2", 0, "embedding.word_embeddings.weight", {128, 16}, 2},
      {REFIT_DENSE, "megatron:tp2,vdiv10", 0, "output_layer.weight", {50, 16}, 2},
      {REFIT_DENSE, "vllm:tp4", 1, "model.layers.1.self_attn.qkv_proj.weight", {12, 16}, 2},
      {REFIT_DENSE, "vllm:tp2", 1, "model.layers.0.mlp.gate_up_proj.weight", {32, 16}, 2},
      {REFIT_DENSE, "vllm:tp2", 1, "lm_head.weight", {64, 16}, 2},
      {REFIT_DENSE, "fsdp:dp3", 0, "model.layers.0.mlp.down_proj.weight", {6, 32}, 2},
      {REFIT_MOE,
       "megatron:ep2,dp2",
       0,
       "decoder.layers.0.mlp.experts.linear_fc1.weight1",
       {16, 16},
       2},
      {REFIT_MOE,
       "megatron:ep2,dp2,experts=stacked",
       0,
       "decoder.layers.0.mlp.experts.linear_fc1.weight",
       {2, 16, 16},
       3},
      {REFIT_MOE,
       "vllm:tp2",
       1,
       "model.layers.1.mlp.experts.routed_experts.w13_weight",
       {4, 8, 16},
       3},
      {REFIT_MOE,
       "vllm:tp2,ep2",
       1,
       "model.layers.1.mlp.experts.routed_experts.w2_weight",
       {2, 16, 8},
       3},
      {REFIT_MOE, "full", 0, "model.layers.1.mlp.experts.3.down_proj.weight", {16, 8}, 2},
      {GPT2, "vllm:tp2", 1, "transformer.h.1.attn.c_attn.weight", {24, 16}, 2},
      {GPT2, "vllm:tp2", 1, "transformer.h.0.mlp.c_proj.weight", {16, 16}, 2},
      {GPT2, "full", 0, "h.1.attn.c_attn.weight", {16, 48}, 2},
      {GPT2, "fsdp:dp2", 0, "h.1.attn.c_attn.weight", {8, 48}, 2},
      {GEMMA3, "vllm:tp2", 1, "model.layers.0.self_attn.qkv_proj.weight", {2048, 2560}, 2},
      {GEMMA3, "vllm:tp8", 1, "model.layers.0.self_attn.qkv_proj.weight", {768, 2560}, 2},
      {GEMMA4, "vllm:tp2", 1, "model.layers.0.self_attn.qkv_proj.weight", {16, 16}, 2},
      {GEMMA4, "vllm:tp2", 1, "model.layers.1.self_attn.qkv_proj.weight", {32, 16}, 2},
      {GEMMA4_OF_12, "vllm:tp2", 1, "model.layers.4.self_attn.qkv_proj.weight", {16, 16}, 2},
      {GEMMA4_OF_12, "vllm:tp2", 1, "model.layers.11.self_attn.qkv_proj.weight", {32, 16}, 2},
      {KIMI("[1,1,4,1]"), "vllm:tp2", 1, "model.layers.1.self_attn.A_log", {2}, 1},
      {KIMI_K3, "vllm:tp1", 1, "model.layers.1.self_attn.in_proj_qkvgfab.weight", {48, 16}, 2},
      {KIMI_K3, "vllm:tp2", 1, "model.layers.1.self_attn.in_proj_qkvgfab.weight", {32, 16}, 2},
      {KIMI("[1,1,4,1]"), "full", 0, "model.layers.1.self_attn.A_log", {4}, 1},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    one o = make(cases[i].table, cases[i].spec, cases[i].side, NULL, 0);

    print_message("%s %s\n", cases[i].spec, cases[i].name);
    assert_true(has_local(&o, cases[i].name, cases[i].shape, cases[i].n_dims));
    unmake(&o);
  }
}

/* FSDP cuts the first dim, of which there is one: the first rank has all, and takes it as it is. */
static void test_dims_of_one_element_are_one_with_their_neighbours(void **state)
{
  const int64_t own[] = {1, 1, 4, 1}, flat[] = {4};
  one o = make(KIMI("[1,1,4,1]"), "fsdp:dp2", XFER_REFIT_TRAIN, NULL, 0);
  xfer_locals *second = NULL;
  xfer_local local;

  (void)state;
  assert_true(has_local(&o, "model.layers.0.self_attn.A_log", flat, 1));
  assert_int_equal(xfer_locals_give(o.locals, XFER_REFIT_TRAIN, "model.layers.0.self_attn.A_log",
                                    XFER_BF16, memory, own, NULL, 4),
                   XFER_OK);
  assert_null(strstr(xfer_last_error(), "shape"));
  assert_int_equal(xfer_locals_create(&second, o.refit, 1), XFER_OK);
  for (size_t i = 0; i < xfer_locals_count(second); i++) {
    assert_int_equal(xfer_locals_get(second, i, &local), XFER_OK);
    assert_int_equal(local.shape[0], 0);
  }
  xfer_locals_destroy(second);
  unmake(&o);
}

/* torch gives a dim of one element any stride; what lies apart is not one with its neighbour. */
static void test_dims_of_one_element_may_have_any_stride(void **state)
{
  const int64_t own[] = {1, 1, 4, 1}, odd[] = {6, 94, 4, 22}, four[] = {2, 2}, apart[] = {6, 2};
  one o = make(KIMI("[1,1,4,1]"), "fsdp:dp2", XFER_REFIT_TRAIN, NULL, 0);
  xfer_view src, dst;
  size_t n = 0, t = 0;
  uint32_t has = 0;

  (void)state;
  assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_TRAIN, "model.layers.0.self_attn.A_log",
                                      XFER_BF16, memory, four, apart, 2),
                   XFER_ERR_MISMATCH);
  assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_TRAIN, "model.layers.0.self_attn.A_log",
                                      XFER_BF16, memory, own, odd, 4),
                   XFER_OK);
  const xfer_tensor *tensors = xfer_refit_tensors(o.refit, &n);
  while (t < n && strstr(tensors[t].name, "A_log") == NULL)
    t++;
  assert_int_equal(xfer_locals_view(o.locals, t, &src, &dst, &has), XFER_OK);
  assert_int_equal(has, XFER_LOCALS_SRC);
  assert_int_equal(src.strides[0], 4);
  unmake(&o);
}

/* Sizes whose product would come to the tensor's only past 63 bits, or by two minus signs. */
static void test_sizes_that_multiply_past_63_bits_are_no_shape(void **state)
{
  const int64_t shapes[][2] = {{(INT64_C(1) << 62) + 1, 4}, {-2, -2}};
  const int64_t strides[] = {INT64_C(1) << 62, INT64_C(1) << 62}, two[] = {2, 2};
  one o = make(KIMI("[1,1,4,1]"), "fsdp:dp2", XFER_REFIT_TRAIN, NULL, 0);

  (void)state;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_TRAIN,
                                        "model.layers.0.self_attn.A_log", XFER_BF16, memory,
                                        shapes[i], NULL, 2),
                     XFER_ERR_MISMATCH);
    assert_non_null(strstr(xfer_last_error(), "its shape should be [4]"));
  }
  assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_TRAIN, "model.layers.0.self_attn.A_log",
                                      XFER_BF16, memory, two, strides, 2),
                   XFER_ERR_MISMATCH);
  unmake(&o);
}

/* A plan of transformers has the embedding only where the output layer is tied to it. */
static void test_transformers_cuts_a_tied_embedding(void **state)
{
  (void)state;
  for (int tied = 0; tied < 2; tied++) {
    refit_sides s = refit_sides_make(
        tied != 0 ? REFIT_TABLE(REFIT_DENSE_CONFIG
                                ",\"model_type\":\"qwen3\",\"tie_word_embeddings\":true",
                                REFIT_DENSE_PARAMS)
                  : REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"qwen3\"", REFIT_DENSE_PARAMS),
        "full", "hf:tp5");

    assert_int_equal(refit_sides_join(&s), XFER_OK);
    assert_int_equal(refit_first_dim_of(s.refit, "model.embed_tokens.weight", 2),
                     tied != 0 ? 20 : 100);
    refit_sides_end(&s);
  }
}

/* As LLaVA 1.5 and 1.6 are published: 32 layers of 32 heads, of which nothing is said. */
static void test_a_text_may_leave_to_its_class_what_that_says(void **state)
{
#define ATTENTION(name, last, rows)                                                                \
  "{\"pattern\":\"language_model.model.layers.{layer}.self_attn." name                             \
  "_proj.weight\",\"layer\":[0," last "],\"shape\":[" rows ",4096],\"dtype\":\"bf16\"}"
#define SEES(config, last, rows)                                                                   \
  REFIT_TABLE(config, ATTENTION("q", last, "4096") "," ATTENTION("k", last, rows) "," ATTENTION(   \
                          "v", last, rows))
#define TEXT(type) "\"model_type\":\"llava\",\"text_config\":{\"model_type\":\"" type "\"}"
  static const struct {
    const char *table, *word;
    int64_t rows;
  } cases[] = {
      {SEES(TEXT("llama"), "31", "4096"), NULL, 3072},
      {SEES(TEXT("mistral"), "31", "1024"), NULL, 1536},
      {SEES(TEXT("mistral"), "30", "1024"), "the configuration says 32 layers", 0},
      {SEES(TEXT("qwen2"), "31", "4096"), "vLLM has biases of attention here", 0},
      {SEES(TEXT("qwen2"), "30", "4096"), "the configuration says 32 layers", 0},
      {SEES("\"model_type\":\"qwen3\"", "30", "4096"), "the configuration says 32 layers", 0},
      {SEES(TEXT("starcoder2"), "31", "4096"), "the configuration has no \"num_attention_heads\"",
       0},
      {SEES("\"model_type\":\"llama\"", "31", "4096"),
       "the configuration has no \"num_attention_heads\"", 0},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xfer_model *model = NULL;
    xfer_side *train = NULL, *gen = NULL;
    xfer_refit *refit = NULL;
    xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
    xfer_status st = refit_load(&model, cases[i].table);

    print_message("%zu\n", i);
    assert_int_equal(refit_side(&train, "full", NULL), XFER_OK);
    options.first_rank = 1;
    assert_int_equal(refit_side(&gen, "vllm:tp4", &options), XFER_OK);
    if (st == XFER_OK) st = xfer_refit_create(&refit, model, train, gen);
    if (cases[i].word != NULL) {
      assert_int_not_equal(st, XFER_OK);
      refit_expect_error(cases[i].word);
    } else {
      assert_int_equal(st, XFER_OK);
      assert_int_equal(refit_first_dim_of(refit, "model.layers.31.self_attn.qkv_proj.weight", 2),
                       cases[i].rows);
    }
    xfer_refit_destroy(refit);
    xfer_side_destroy(gen);
    xfer_side_destroy(train);
    xfer_model_destroy(model);
  }
#undef TEXT
#undef SEES
#undef ATTENTION
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_names_and_shapes_are_the_frameworks_own),
      cmocka_unit_test(test_dims_of_one_element_are_one_with_their_neighbours),
      cmocka_unit_test(test_dims_of_one_element_may_have_any_stride),
      cmocka_unit_test(test_sizes_that_multiply_past_63_bits_are_no_shape),
      cmocka_unit_test(test_transformers_cuts_a_tied_embedding),
      cmocka_unit_test(test_a_text_may_leave_to_its_class_what_that_says),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
