/* Weights have the sizes by which engines make their tensors (src/refit/model/sizes.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "refit_sides.h"

#define SIZED(type, said)                                                                          \
  REFIT_TABLE("\"num_hidden_layers\":1,\"hidden_size\":16,\"model_type\":\"" type "\"," said,      \
              "{\"name\":\"model.layers.0.mlp.gate_proj.weight\",\"shape\":[32,16],"               \
              "\"dtype\":\"bf16\"},"                                                               \
              "{\"name\":\"model.layers.0.mlp.up_proj.weight\",\"shape\":[32,16],"                 \
              "\"dtype\":\"bf16\"},"                                                               \
              "{\"name\":\"model.layers.0.mlp.down_proj.weight\",\"shape\":[16,32],"               \
              "\"dtype\":\"bf16\"}")
#define SHARED(type, said)                                                                         \
  REFIT_TABLE(                                                                                     \
      "\"num_hidden_layers\":1,\"hidden_size\":16,\"num_experts\":1,"                              \
      "\"first_k_dense_replace\":0,\"model_type\":\"" type "\"," said,                             \
      "{\"name\":\"model.layers.0.mlp.shared_experts.gate_proj.weight\",\"shape\":[32,16],"        \
      "\"dtype\":\"bf16\"},"                                                                       \
      "{\"name\":\"model.layers.0.mlp.shared_experts.up_proj.weight\",\"shape\":[32,16],"          \
      "\"dtype\":\"bf16\"},"                                                                       \
      "{\"name\":\"model.layers.0.mlp.shared_experts.down_proj.weight\",\"shape\":[16,32],"        \
      "\"dtype\":\"bf16\"}")
#define FORWARD(said)                                                                              \
  REFIT_TABLE("\"num_hidden_layers\":1,\"hidden_size\":16,\"model_type\":\"lfm2\"," said,          \
              "{\"name\":\"model.layers.0.feed_forward.w1.weight\",\"shape\":[32,16],"             \
              "\"dtype\":\"bf16\"},"                                                               \
              "{\"name\":\"model.layers.0.feed_forward.w3.weight\",\"shape\":[32,16],"             \
              "\"dtype\":\"bf16\"},"                                                               \
              "{\"name\":\"model.layers.0.feed_forward.w2.weight\",\"shape\":[16,32],"             \
              "\"dtype\":\"bf16\"}")

/* Engines make tensors by these keys. */
static void test_weights_are_as_large_as_the_configuration_says(void **state)
{
  static const struct {
    const char *text, *word;
  } cases[] = {
      {SIZED("qwen2", "\"intermediate_size\":32"), NULL},
      {SIZED("qwen2", "\"rms_norm_eps\":1"), NULL}, /* nothing is said */
      {SIZED("qwen2", "\"intermediate_size\":16"),
       "rows; the configuration says 16 (intermediate_size)"},
      {SIZED("llama4_text", "\"intermediate_size\":16,\"intermediate_size_mlp\":32"), NULL},
      {SIZED("llama4_text", "\"intermediate_size\":32,\"intermediate_size_mlp\":16"),
       "the configuration says 16 (intermediate_size_mlp)"},
      {SHARED("deepseek_v3", "\"moe_intermediate_size\":16,\"n_shared_experts\":2"), NULL},
      {SHARED("deepseek_v3", "\"moe_intermediate_size\":16,\"n_shared_experts\":1"),
       "the configuration says 16 (shared_size)"},
      {SHARED("bailing_moe_v2", "\"num_shared_experts\":2,\"moe_intermediate_size\":8,"
                                "\"moe_shared_expert_intermediate_size\":16"),
       NULL}, /* of one of them */
      {SHARED("bailing_moe_v2",
              "\"num_shared_experts\":2,\"moe_shared_expert_intermediate_size\":32"),
       "the configuration says 64 (shared_size)"},
      {SHARED("param2moe", "\"num_shared_experts\":2,\"moe_shared_expert_intermediate_size\":32"),
       NULL}, /* of all of them */
      /* Of which the class takes two thirds, unless told otherwise. */
      {FORWARD("\"intermediate_size\":48"), NULL},
      {FORWARD("\"intermediate_size\":48,\"block_auto_adjust_ff_dim\":true"), NULL},
      {FORWARD("\"intermediate_size\":48,\"block_auto_adjust_ff_dim\":false"),
       "the configuration says 48 (adjusts ? rows : mlp_size)"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    print_message("case %zu\n", i);
    refit_expect(cases[i].text, cases[i].word);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_weights_are_as_large_as_the_configuration_says),
  };
  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
