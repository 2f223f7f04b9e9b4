/* Figures of a configuration: each form of name, and what is refused as no number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>

#include "config_values.h"
#include "expr.h"
#include "refit_sides.h"

#define CONFIG                                                                                     \
  "{\"n\":7,\"yes\":true,\"no\":false,\"none\":null,\"half\":0.5,\"kind\":\"a.b\",\"pattern\":"    \
  "\"M-M\",\"list\":[2,\"x\",null],\"inside\":{\"n\":3,\"deep\":{\"size\":4}},"                    \
  "\"architectures\":[\"AForB\"],\"model_type\":\"seeing\",\"text_config\":{\"n\":8,"              \
  "\"model_type\":\"text\"}}"

typedef struct figure {
  const char *name;
  xfi_found found;
  int64_t value; /* if it is found */
} figure;

static void expect_each(const figure *cases, size_t n, int64_t layer)
{
  json_t *top = json_loads(CONFIG, 0, NULL);
  const xfi_config_layer of = {top, layer};

  assert_non_null(top);
  for (size_t i = 0; i < n; i++) {
    const char *name = cases[i].name;
    int64_t value = 77;

    print_message("%s\n", name);
    assert_int_equal(layer < 0 ? xfi_config_value(&value, name, strlen(name), top)
                               : xfi_config_value_of_layer(&value, name, strlen(name), &of),
                     cases[i].found);
    assert_int_equal(value, cases[i].found == XFI_FOUND ? cases[i].value : 77);
  }
  json_decref(top);
}

static void test_config_values_of_a_model(void **state)
{
  static const figure cases[] = {
      {"n", XFI_FOUND, 8}, /* the text part's */
      {"whole.n", XFI_FOUND, 7},
      {"inside.n", XFI_FOUND, 3},
      {"inside.deep.size", XFI_FOUND, 4},
      {"inside.deep.sizes", XFI_NOT_FOUND, 0},
      {"inside", XFI_NOT_FOUND, 0},
      {"yes", XFI_FOUND, 1},
      {"no", XFI_FOUND, 0},
      {"none", XFI_NOT_FOUND, 0},
      {"none.null", XFI_FOUND, 1},
      {"yes.null", XFI_NOT_FOUND, 0},
      {"absent.null", XFI_NOT_FOUND, 0},
      {"half", XFI_NO_NUMBER, 0},
      {"kind", XFI_NO_NUMBER, 0},
      {"kind.a.b", XFI_FOUND, 1},
      {"kind.a", XFI_NOT_FOUND, 0},
      {"kind.size", XFI_FOUND, 3},
      {"list", XFI_NOT_FOUND, 0},
      {"list.size", XFI_FOUND, 3},
      {"list.x", XFI_NOT_FOUND, 0},
      {"n.size", XFI_NOT_FOUND, 0},
      {"architectures.AForB", XFI_FOUND, 1},
      {"architectures.AFor", XFI_NOT_FOUND, 0},
      {"model_type.text", XFI_FOUND, 1},
      {"whole.model_type.seeing", XFI_FOUND, 1},
      {"whole.model_type.text", XFI_NOT_FOUND, 0},
  };

  (void)state;
  expect_each(cases, sizeof cases / sizeof *cases, -1);
}

static void test_config_values_of_a_layer(void **state)
{
  static const figure second[] = {
      {"list", XFI_NO_NUMBER, 0},     {"list.x", XFI_FOUND, 1},
      {"list.y", XFI_FOUND, 0},       {"list.has", XFI_FOUND, 0},
      {"list.size", XFI_FOUND, 3},    {"pattern.M", XFI_FOUND, 0},
      {"pattern.-", XFI_FOUND, 1},    {"pattern.M-M", XFI_FOUND, 1},
      {"pattern.size", XFI_FOUND, 3}, {"n", XFI_FOUND, 8},
      {"inside.n", XFI_FOUND, 3},     {"architectures.AForB", XFI_NOT_FOUND, 0},
  };
  static const figure third[] = {{"list", XFI_NOT_FOUND, 0},
                                 {"list.has", XFI_FOUND, 1},
                                 {"list.x", XFI_NOT_FOUND, 0},
                                 {"pattern.M", XFI_FOUND, 1}};
  static const figure beyond[] = {
      {"list", XFI_NOT_FOUND, 0}, {"list.x", XFI_NOT_FOUND, 0}, {"pattern.M", XFI_NOT_FOUND, 0}};

  (void)state;
  expect_each(second, sizeof second / sizeof *second, 1);
  expect_each(third, sizeof third / sizeof *third, 2);
  expect_each(beyond, sizeof beyond / sizeof *beyond, 3);
}

/* A number that is a text, or a fraction, would count as one that is not there. */
static void test_config_values_that_are_no_numbers_are_refused(void **state)
{
  static const struct {
    const char *text, *word;
  } cases[] = {
      {REFIT_TABLE("\"num_experts\":\"4\",\"model_type\":\"qwen3_moe\"",
                   REFIT_P("mlp.gate.weight", "[4,16]")),
       "\"n_routed_experts ?? num_experts ?? num_local_experts ?? moe_num_experts\": "
       "\"num_experts\" of the configuration is no whole number"},
      {REFIT_TABLE("\"num_experts\":4.5,\"model_type\":\"qwen3_moe\"",
                   REFIT_P("mlp.gate.weight", "[4,16]")),
       "\"num_experts\" of the configuration is no whole number"},
      {REFIT_TABLE("\"tie_word_embeddings\":\"true\",\"model_type\":\"llama\"",
                   REFIT_P("mlp.gate_proj.weight", "[4,16]")),
       "table.json: line 1: \"tie_word_embeddings\" is neither true nor false"},
      {REFIT_TABLE("\"quantization_config\":\"fp8\",\"model_type\":\"llama\"",
                   REFIT_P("mlp.gate_proj.weight", "[4,16]")),
       "\"quantization_config\" is no object"},
      {REFIT_TABLE("\"num_experts\":NaN,\"model_type\":\"qwen3_moe\"",
                   REFIT_P("mlp.gate.weight", "[4,16]")),
       "\"num_experts\" of the configuration is no whole number"},
      {REFIT_TABLE("\"num_attention_heads\":-Infinity,\"model_type\":\"llama\"",
                   REFIT_P("mlp.gate_proj.weight", "[4,16]")),
       "\"num_attention_heads\" is no whole number from 0 to 1073741823"},
      {REFIT_TABLE("\"n_layer\":Infinity,\"model_type\":\"gpt2\"",
                   REFIT_P("mlp.gate_proj.weight", "[4,16]")),
       "\"n_layer\" of the configuration is no whole number"},
      {REFIT_TABLE("\"weight_block_size\":[128,NaN],\"model_type\":\"llama\"",
                   REFIT_P("mlp.gate_proj.weight", "[4,16]")),
       "the size of blocks is not two numbers"},
      {REFIT_TABLE("\"rope_theta\":NaN,\"limits\":[-Infinity,Infinity],\"x\":\"NaN \\\" NaN\","
                   "\"num_experts\":4,\"model_type\":\"qwen3_moe\"",
                   REFIT_P("mlp.gate.weight", "[4,16]")),
       NULL},
      {REFIT_TABLE("\"num_experts\":-4,\"model_type\":\"llama\"",
                   REFIT_P("mlp.gate_proj.weight", "[4,16]")),
       "\"num_experts\" is -4"},
      {"\xef\xbb\xbf{}", "line 1: it begins with a byte order mark"},
      {REFIT_TABLE("\"n_layer\":\"2\",\"model_type\":\"gpt2\"",
                   REFIT_P("mlp.gate_proj.weight", "[4,16]")),
       "\"n_layer\" of the configuration is no whole number"},
      {REFIT_TABLE("\"num_experts\":null,\"num_local_experts\":4,\"model_type\":\"qwen3_moe\"",
                   REFIT_P("mlp.gate.weight", "[4,16]")),
       NULL},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xfer_model *model = NULL;

    print_message("case %zu\n", i);
    assert_int_equal(refit_load(&model, cases[i].text),
                     cases[i].word == NULL ? XFER_OK : XFER_ERR_IO);
    if (cases[i].word != NULL) refit_expect_error(cases[i].word);
    xfer_model_destroy(model);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_config_values_of_a_model),
      cmocka_unit_test(test_config_values_of_a_layer),
      cmocka_unit_test(test_config_values_that_are_no_numbers_are_refused),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
