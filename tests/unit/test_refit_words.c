/* Words of families: whose they are, what they come to, and what is said where they have no value.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/stat.h>
#include <xfer/refit.h>

#include "refit_sides.h"

/* A family that includes one with words of its own, and what becomes of a refit of REFIT_DENSE.
 */
static xfer_status load_with(const char *words, const char *config)
{
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;
  char text[8192];
  xfer_rules *rules = NULL;
  xfer_model *model = NULL;
  xfer_side *full = NULL;
  xfer_refit *refit = NULL;
  xfer_status st;

  mkdir(refit_path("words"), 0777);
  (void)snprintf(text, sizeof text,
                 "{\"format\":\"xfer-family-v1\",\"family\":\"mine\",\"model_type\":[\"mine\"],"
                 "\"include\":[\"llama\"],\n%s}",
                 words);
  refit_write("words/a.json", text);
  assert_int_equal(xfer_rules_load(&rules, refit_path("words")), XFER_OK);
  options.rules = rules;
  (void)snprintf(text, sizeof text,
                 REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"mine\"%s", REFIT_DENSE_PARAMS),
                 config);
  st = xfer_model_load(&model, refit_write("table.json", text), &options);
  assert_int_equal(refit_side(&full, "full", NULL), XFER_OK);
  if (st == XFER_OK) st = xfer_refit_create(&refit, model, full, NULL);
  xfer_refit_destroy(refit);
  xfer_side_destroy(full);
  xfer_model_destroy(model);
  xfer_rules_destroy(rules);
  return st;
}

typedef struct of_words {
  const char *words, *config, *word; /* `word` of the error; NULL: there is none */
} of_words;

static void expect_each(const of_words *cases, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    print_message("%s\n", cases[i].words);
    assert_int_equal(load_with(cases[i].words, cases[i].config) == XFER_OK, cases[i].word == NULL);
    if (cases[i].word != NULL) refit_expect_error(cases[i].word);
  }
}

/* The included family has each of these words, and the configuration its keys. */
static void test_a_word_without_a_value_is_not_the_included_familys(void **state)
{
  static const of_words cases[] = {
      {"\"config\":{\"kv_heads\":\"1/0\"}", "", "a.json: line 2: \"1/0\" divides by zero"},
      {"\"config\":{\"kv_heads\":\"hidden_size / none\"}", ",\"none\":0",
       "a.json: line 2: \"hidden_size / none\" divides by zero"},
      {"\"config\":{\"kv_heads\":\"9223372036854775807 * 2\"}", "",
       "\"9223372036854775807 * 2\" has no value that 63 bits hold"},
      {"\"config\":{\"kv_heads\":\"num_key_value_headz\"}", "",
       "\"kv_heads\": the configuration has no \"num_key_value_headz\""},
      {"\"config\":{\"kv_heads\":\"2 * kv_headz\"}", "", "a.json: \"2 * kv_headz\")"},
      /* Nor is it the configuration's key of that name. */
      {"\"config\":{\"head_dim\":\"head_dimm\"}", "", "the configuration has no \"head_dimm\""},
      {"\"config\":{\"a\":\"num_headz\",\"heads\":\"a\"}", "",
       "\"heads\": the configuration has no \"num_headz\""},
      {"\"config\":{\"a\":\"num_headz\",\"kv_heads\":\"a ?? 2\"}", "", NULL},
      {"\"config\":{\"kv_heads\":\"num_key_value_headz ?? 2\"}", "", NULL},
      {"\"config\":{\"kv_heads\":\"three\"}", ",\"three\":3", "3"},
      /* What it replaces is not even looked at. */
      {"\"config\":{\"experts\":\"4\"}", ",\"num_experts\":\"four\"", NULL},
  };

  (void)state;
  expect_each(cases, sizeof cases / sizeof *cases);
}

/* An expression about one layer may have no value for it; a wrong one is refused all the same. */
static void test_expressions_about_layers_say_where_they_fail(void **state)
{
  static const of_words cases[] = {
      {"\"config\":{\"sparse\":\"layer / none\",\"experts\":\"2\"}", ",\"none\":0",
       "a.json: line 2: \"layer / none\" divides by zero"},
      {"\"counts\":{\"n\":\"layer % none\"},\"needs\":{\"embed\":\"n\"}", ",\"none\":0",
       "\"layer % none\" divides by zero"},
      {"\"where\":{\"attn.q\":\"layer % none\"}", ",\"none\":0",
       "\"layer % none\" divides by zero"},
      {"\"needs\":{\"attn.q\":\"1 / none\"}", ",\"none\":0", "\"1 / none\" divides by zero"},
      {"\"where\":{\"attn.q\":\"kinds == 1\"}", ",\"kinds\":[1,\"1\"]",
       "\"kinds\" of the configuration is no whole number"},
      {"\"where\":{\"attn.q\":\"kinds == 1\"}", ",\"kinds\":[1]", NULL},
      {"\"where\":{\"attn.q\":\"kinds == 1\"}", ",\"kinds\":[1,0]",
       "layer 1 has a \"attn.q\"; by the configuration it has none"},
  };

  (void)state;
  expect_each(cases, sizeof cases / sizeof *cases);
}

/* Names that nothing has are most likely misspelt. */
static void test_names_that_nothing_has_are_refused(void **state)
{
#define LOCAL(fields) "\"sides\":{\"vllm\":{\"locals\":[{" fields ",\"local\":\"x\"}]}}"
#define ROLE "no family has a tensor of the role \""
  static const struct {
    const char *rules, *word;
  } cases[] = {
      {"\"where\":{\"attn.qq\":\"1\"}", "a.json: line 2: " ROLE "attn.qq\""},
      {"\"needs\":{\n\"attn.qq\":\"1\"}", "a.json: line 3: " ROLE "attn.qq\""},
      {"\"sizes\":{\n\"attn.qq\":[\"1\",\"1\"]}", "a.json: line 3: " ROLE "attn.qq\""},
      {"\"scaled\":[\"mpl.*\"]", ROLE "mpl.*\""},
      {"\"sides\":{\"vllm\":{\"unquantised\":[\"mlp.upp\"]}}", ROLE "mlp.upp\""},
      {LOCAL("\"each\":[\"mlp.up\",\"mlp.upp\"]"), ROLE "mlp.upp\""},
      {LOCAL("\"parts\":[{\"role\":\"mlp.upp\"}]"), ROLE "mlp.upp\""},
      {LOCAL("\"each\":[\"mlp.up\"],\"with\":[\"mlp.upp\"]"), ROLE "mlp.upp\""},
      {LOCAL("\"each\":[\"mlp.up\"],\"without\":[\"mlp.upp\"]"), ROLE "mlp.upp\""},
      {LOCAL("\"parts\":[{\"role\":\"attn.q\",\"take\":\"gatee\"}]"),
       "line 2: no \"attn.q\" has rows called \"gatee\""},
      {"\"tensors\":[{\"name\":\"x\",\"role\":\"pml.up\"}]",
       "no side has a tensor of the role \"pml.up\""},
      {"\"tensors\":[{\"name\":\"x\",\"role\":\"mlp.upp\"}]",
       "no side and no \"needs\" name the role \"mlp.upp\" in full"},
      {"\"tensors\":[{\"name\":\"x\",\"shape\":[\"2\"],\"holds\":[\n[\"pml.up\",\"1\",\"2\"]]}]",
       "line 3: no side has a tensor of the role \"pml.up\""},
      {"\"config\":{\"kv_head\":\"2\"}", "line 2: no expression uses the word \"kv_head\""},
      {"\"counts\":{\"kv_head\":\"2\"}", "no expression uses the word \"kv_head\""},
      {"\"sides\":{\"vllm\":{\"set\":{\"kv_head\":\"2\"}}}",
       "no expression uses the word \"kv_head\""},
      {"\"sides\":{\n\"nemo\":{}}", "line 3: no side is called \"nemo\""},
  };
  char text[1024];
  xfer_rules *rules = NULL;

  (void)state;
  mkdir(refit_path("names"), 0777);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    print_message("%s\n", cases[i].rules);
    (void)snprintf(text, sizeof text, "{\"format\":\"xfer-family-v1\",\"family\":\"mine\",\n%s}",
                   cases[i].rules);
    refit_write("names/a.json", text);
    assert_int_equal(xfer_rules_load(&rules, refit_path("names")), XFER_ERR_IO);
    refit_expect_error(cases[i].word);
  }
#undef ROLE
#undef LOCAL
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_word_without_a_value_is_not_the_included_familys),
      cmocka_unit_test(test_expressions_about_layers_say_where_they_fail),
      cmocka_unit_test(test_names_that_nothing_has_are_refused),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
