/* Refits of hundreds of layers that all differ: they take little time and leave no error text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "refit_sides.h"

#define MANY                                                                                       \
  "\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":16,\"num_attention_heads\":4,"      \
  "\"num_key_value_heads\":2,\"head_dim\":4"
enum { MANY_BYTES = 1 << 19 };

/* A table of layers each with an MLP of its own size, so each an entry of its own. */
static char *table_of_many(int n_layers)
{
  static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
  char *table = calloc(1, MANY_BYTES);
  int n;

  assert_non_null(table);
  n = snprintf(table, MANY_BYTES,
               "{\"format\":\"xfer-model-v1\",\"config\":{" MANY
               ",\"num_hidden_layers\":%d},\"params\":[" REFIT_ENDS,
               n_layers);
  for (int i = 0; i < 3 * n_layers; i++) {
    const int layer = i / 3, wide = 16 + 8 * layer;

    n += snprintf(table + n, (size_t)(MANY_BYTES - n),
                  ",{\"pattern\":\"model.layers.{layer}.mlp.%s.weight\",\"layer\":[%d,%d],"
                  "\"shape\":[%d,%d],\"dtype\":\"bf16\"}",
                  names[i % 3], layer, layer, i % 3 == 2 ? 16 : wide, i % 3 == 2 ? wide : 16);
  }
  snprintf(table + n, (size_t)(MANY_BYTES - n),
           ",{\"pattern\":\"model.layers.{layer}.input_layernorm.weight\",\"layer\":[0,%d],"
           "\"shape\":[16],\"dtype\":\"bf16\"}]}",
           n_layers - 1);
  return table;
}

static void test_a_refit_that_is_made_leaves_the_text_of_the_last_error(void **state)
{
  char *table = table_of_many(2);
  xfer_locals *locals = NULL;
  xfer_side *none = NULL;
  char text[512];

  (void)state;
  assert_int_equal(xfer_side_create(&none, "vllm:tp0", NULL), XFER_ERR_ARG);
  snprintf(text, sizeof text, "%s", xfer_last_error());
  refit_sides s = refit_sides_make(table, "megatron:tp2", "vllm:tp2");
  assert_int_equal(refit_sides_join(&s), XFER_OK);
  assert_int_equal(xfer_locals_create(&locals, s.refit, 0), XFER_OK);
  assert_string_equal(xfer_last_error(), text);
  xfer_locals_destroy(locals);
  refit_sides_end(&s);
  free(table);
}

/* Looked for among all entries, what a layer has would take a minute. */
static void test_hundreds_of_layers_that_differ_take_little_time(void **state)
{
  enum { LAYERS = 1500, MOST_SECONDS = 20 };
  const clock_t start = clock();
  char *table = table_of_many(LAYERS);
  refit_sides s = refit_sides_make(table, "megatron:tp2", "vllm:tp2");
  size_t n = 0;

  (void)state;
  if (refit_sides_join(&s) != XFER_OK) fail_msg("%s", xfer_last_error());
  (void)xfer_refit_tensors(s.refit, &n);
  assert_int_equal(n, 3 + 4 * LAYERS);
  refit_sides_end(&s);
  free(table);
  assert_true((clock() - start) / CLOCKS_PER_SEC < MOST_SECONDS);
}

/* Looked for again for each pair of layers, their maps would take half a minute. */
static void test_an_expert_map_for_each_of_many_layers_takes_little_time(void **state)
{
  enum { LAYERS = 3000, MOST_SECONDS = 10 };
  static const char table[] =
      REFIT_TABLE("\"model_type\":\"qwen3_moe\",\"hidden_size\":16,\"num_hidden_layers\":3000,"
                  "\"num_experts\":4,\"moe_intermediate_size\":8",
                  "{\"pattern\":\"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight\","
                  "\"layer\":[0,2999],\"expert\":[0,3],\"shape\":[16,8],\"dtype\":\"bf16\"}");
  const clock_t start = clock();
  char *map = calloc(1, MANY_BYTES);
  char gen[256];
  size_t n = 0;

  (void)state;
  assert_non_null(map);
  for (int i = 0; i < LAYERS; i++)
    n += (size_t)snprintf(map + n, MANY_BYTES - n, "%c\"%d\":[[%d,%d],[%d,%d]]", i == 0 ? '{' : ',',
                          i, i % 4, (i + 1) % 4, (i + 2) % 4, (i + 3) % 4);
  snprintf(map + n, MANY_BYTES - n, "}");
  snprintf(gen, sizeof gen, "vllm:tp2,ep2,map=%s", refit_write("map.json", map));
  refit_sides s = refit_sides_make(table, "full", gen);
  if (refit_sides_join(&s) != XFER_OK) fail_msg("%s", xfer_last_error());
  (void)xfer_refit_tensors(s.refit, &n);
  assert_int_equal(n, LAYERS);
  refit_sides_end(&s);
  free(map);
  assert_true((clock() - start) / CLOCKS_PER_SEC < MOST_SECONDS);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_refit_that_is_made_leaves_the_text_of_the_last_error),
      cmocka_unit_test(test_hundreds_of_layers_that_differ_take_little_time),
      cmocka_unit_test(test_an_expert_map_for_each_of_many_layers_takes_little_time),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
