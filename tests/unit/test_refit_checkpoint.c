/* Checkpoints: read right, and refused with a sentence when they are broken, as are files that
 * cannot be read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <sys/resource.h>

#include <cmocka.h>

#include "refit_sides.h"

#define EXPERT_AT(l, e, p, offsets)                                                                \
  "\"model.layers." #l ".mlp.experts." #e "." p                                                    \
  "_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[8,16],\"data_offsets\":" offsets "}"
#define EXPERT(l, e, p) EXPERT_AT(l, e, p, "[0,256]")
#define SECOND(l, e, p) EXPERT_AT(l, e, p, "[256,512]")

/* A checkpoint's tensors. */
static xfer_refit *refit_of_folder(const char *name)
{
  xfer_model *model = NULL;
  xfer_side *full = NULL;
  xfer_refit *refit = NULL;

  assert_int_equal(xfer_model_load(&model, refit_path(name), NULL), XFER_OK);
  assert_int_equal(xfer_side_create(&full, "full", NULL), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, full, NULL), XFER_OK);
  xfer_side_destroy(full);
  xfer_model_destroy(model);
  return refit;
}

static void test_checkpoint_names_become_stacked_experts(void **state)
{
  xfer_refit *refit;
  size_t n = 0;

  (void)state;
  mkdir(refit_path("hf"), 0777);
  refit_write("hf/config.json", "{\"text_config\":{\"num_hidden_layers\":2,\"hidden_size\":16}}");
  refit_write_header("hf/a.safetensors",
                     "{\"__metadata__\":{}," EXPERT(0, 0, "up") "," SECOND(1, 1, "up") "}");
  refit_write_header("hf/b.safetensors", "{" EXPERT(0, 1, "up") "," SECOND(1, 0, "up") "}");
  refit = refit_of_folder("hf");
  const xfer_tensor *tensors = xfer_refit_tensors(refit, &n);
  assert_int_equal(n, 2);
  assert_string_equal(tensors[1].name, "model.layers.1.mlp.experts.{expert}.up_proj.weight");
  xfer_refit_destroy(refit);
}

/* What lies beside a whole model are adapters, or the same weights in another form. */
static void test_without_an_index_the_whole_models_file_is_read_alone(void **state)
{
  xfer_refit *refit;
  size_t n = 0;

  (void)state;
  mkdir(refit_path("whole"), 0777);
  refit_write("whole/config.json", "{}");
  refit_write_header("whole/model.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[0]}}");
  refit_write_header("whole/consolidated.safetensors", "{\"b\":{\"dtype\":\"F32\",\"shape\":[0]}}");
  refit_write_header("whole/model-00001-of-00002.safetensors", "{}");
  refit = refit_of_folder("whole");
  assert_string_equal(xfer_refit_tensors(refit, &n)[0].name, "a");
  assert_int_equal(n, 1);
  xfer_refit_destroy(refit);
}

static void refuse_folder(const char *name, const char *word)
{
  xfer_model *model = NULL;

  assert_int_equal(xfer_model_load(&model, refit_path(name), NULL), XFER_ERR_IO);
  assert_null(model);
  refit_expect_error(word);
}

#define FIRST "model.layers.0.mlp.experts.0.up_proj.weight"

static void test_checkpoint_that_is_broken_is_refused(void **state)
{
  static const struct {
    const char *text, *word;
  } headers[] = {
      {"", "of 0 bytes"},
      {"[]", "no JSON object"},
      {"{", "no JSON object"},
      {"{" EXPERT(0, 0, "up") "," SECOND(0, 2, "up") "}",
       "has expert 2 in layer 0, and not the one before it"},
      {"{" EXPERT(0, 0, "up") "," EXPERT_AT(0, 1, "up", "[255,511]") "}", "begin at 255, within"},
      /* expert 1 is missing */
      {"{\"a\":{\"dtype\":\"X9\",\"shape\":[1]}}", "is called \"X9\""},
      {"{\"a\":{\"dtype\":\"F32\"}}", "has no shape"},
      {"{\"a\":{\"shape\":[1]}}", "\"a\" has no dtype"},
      {"{\"a\":{\"dtype\":7,\"shape\":[1]}}", "\"a\" has no dtype"},
      {"{\"a\":7}", "\"a\" has no dtype"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1]}}", "dim 0 of its shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[8,16]}}", "data_offsets"},
      {"{\"a{\":{\"dtype\":\"F32\",\"shape\":[1]}}", "no name of a tensor"},
      {"{}", "has no tensor"},
  };

  static const struct {
    const char *text, *word;
  } indices[] = {
      {"{\"weight_map\":{\"" FIRST "\":\"a.safetensors\",\"b\":\"a.safetensors\"}}",
       "has \"b\" in a.safetensors, which does not have it"},
      {"{\"weight_map\":{\"b\":\"a.safetensors\"}}", "\"" FIRST "\" lies in a.safetensors, and"},
      {"{\"weight_map\":{\"a\":\"../a.safetensors\"}}",
       "has \"a\" in \"../a.safetensors\", and files of a checkpoint are in its own folder"},
      {"{\"weight_map\":{\"a\":3}}", "no file for \"a\""},
      {"{\"weight_map\":[]}", "no weight_map"},
      {"{\"weight_map\":{\"a\":\"b.safetensors\"}}", "b.safetensors cannot be read"},
  };

  (void)state;
  mkdir(refit_path("bad"), 0777);
  refit_write("bad/config.json", "{}");
  for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {

    print_message("%s\n", headers[i].text);
    refit_write_header("bad/a.safetensors", headers[i].text);
    refuse_folder("bad", headers[i].word);
  }
  assert_int_equal(remove(refit_path("bad/a.safetensors")), 0);
  assert_int_equal(mkfifo(refit_path("bad/a.safetensors"), 0600), 0);
  refuse_folder("bad", "a.safetensors is no regular file");
  assert_int_equal(remove(refit_path("bad/a.safetensors")), 0);
  refit_write("bad/a.safetensors", "1234567");
  refuse_folder("bad", "ends before its header");
  refit_write("bad/a.safetensors", "zzzzzzzzzzzz"); /* a length beyond the file */
  refuse_folder("bad", "a header of");
  refit_write_header("bad/a.safetensors", "{" EXPERT(0, 0, "up") "}");
  for (size_t i = 0; i < sizeof indices / sizeof *indices; i++) {
    refit_write("bad/model.safetensors.index.json", indices[i].text);
    refuse_folder("bad", indices[i].word);
  }
  mkdir(refit_path("none"), 0777);
  refit_write("none/config.json", "{}");
  refuse_folder("none", "has no *.safetensors");
  refit_write("none/config.json", "[]");
  refuse_folder("none", "no object");
  refit_write("none/config.json", "{}");
  refit_write_header("none/a.safetensors", "{" EXPERT(0, 0, "up") "}");
  refit_write_header("none/b.safetensors", "{" EXPERT(0, 0, "up") "}");
  refuse_folder("none", "is in the model twice");
  refit_write("none/model.safetensors.index.json",
              "{\"weight_map\":{\"" FIRST "\":\"a.safetensors\",\"c\":\"b.safetensors\"}}");
  refuse_folder("none", "\"" FIRST "\" lies in b.safetensors, and its index does not have it");
}

static void test_a_model_type_that_is_no_text_is_refused(void **state)
{
  static const char *const types[] = {"5", "[\"llama\"]", "true", "{}"};
  xfer_model *model = NULL;
  char text[128];

  (void)state;
  mkdir(refit_path("type"), 0777);
  refit_write_header("type/a.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}");
  for (size_t i = 0; i < 2 * sizeof types / sizeof *types; i++) {
    snprintf(text, sizeof text,
             i % 2 == 0 ? "{\"model_type\":%s}" : "{\"text_config\":{\"model_type\":%s}}",
             types[i / 2]);
    print_message("%s\n", text);
    refit_write("type/config.json", text);
    refuse_folder("type", "line 1: \"model_type\" is no text");
  }
  refit_write("type/config.json", "{\"model_type\":null}");
  assert_int_equal(xfer_model_load(&model, refit_path("type"), NULL), XFER_OK);
  xfer_model_destroy(model);
}

static void test_files_that_say_how_many_they_are_must_all_be_there(void **state)
{
  static const struct {
    const char *files[4];
    const char *word; /* NULL: they are all */
  } cases[] = {
      {{"model-00001-of-00003", "model-00003-of-00003"},
       "of the 3 files \"model-*-of-3.safetensors\" 2 are there; "
       "\"model-00002-of-00003.safetensors\" is missing"},
      {{"model-00001-of-00003", "model-00002-of-00003"},
       "2 are there; \"model-00003-of-00003.safetensors\" is missing"},
      {{"model-00000-of-00003", "model-00002-of-00003"},
       "2 are there; \"model-00001-of-00003.safetensors\" is missing"},
      {{"model-2-of-2"},
       "of the 2 files \"model-*-of-2.safetensors\" 1 are there; "
       "\"model-1-of-2.safetensors\" is missing"},
      {{"model-1-of-10", "model-10-of-10", "model-2-of-10"},
       "3 are there; \"model-3-of-10.safetensors\" is missing"},
      {{"a-1-of-2", "b-1-of-2"},
       "of the 2 files \"a-*-of-2.safetensors\" 1 are there; \"a-2-of-2.safetensors\" is missing"},
      {{"a-1-of-2", "a-1-of-3"}, "1 are there; \"a-2-of-2.safetensors\" is missing"},
      {{"a-1-of-2", "a-1-of-3", "a-2-of-2"},
       "of the 3 files \"a-*-of-3.safetensors\" 1 are there; \"a-2-of-3.safetensors\" is missing"},
      {{"a-1-of-2", "a-2-of-2", "a-3-of-2"}, "of the 2 files \"a-*-of-2.safetensors\" 3 are there"},
      {{"model-1-of-2", "model-2-of-2"}, NULL},
      {{"model-00000-of-00002", "model-00001-of-00002"}, NULL},
      {{"a-1-of-2", "a-1-of-2-old", "a-2-of-2", "b"}, NULL},
      {{"best-of-3", "-1-of-3", "of-2", "x-of-"}, NULL}, /* these say no such thing */
  };
  char name[64], text[128];

  (void)state;
  mkdir(refit_path("parts"), 0777);
  refit_write("parts/config.json", "{}");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xfer_model *model = NULL;

    print_message("%s ..\n", cases[i].files[0]);
    for (int k = 0; k < 4 && cases[i].files[k] != NULL; k++) {
      snprintf(name, sizeof name, "parts/%s.safetensors", cases[i].files[k]);
      snprintf(text, sizeof text, "{\"t%d\":{\"dtype\":\"F32\",\"shape\":[1]}}", k);
      refit_write_header(name, text);
    }
    if (cases[i].word != NULL)
      refuse_folder("parts", cases[i].word);
    else
      assert_int_equal(xfer_model_load(&model, refit_path("parts"), NULL), XFER_OK);
    xfer_model_destroy(model);
    for (int k = 0; k < 4 && cases[i].files[k] != NULL; k++) {
      snprintf(name, sizeof name, "parts/%s.safetensors", cases[i].files[k]);
      assert_int_equal(remove(refit_path(name)), 0);
    }
  }
}

/* ---- files, of tables as well ---- */

/* A header alone is for plans; what has only some of its weights is a broken download. */
static void test_a_file_that_is_cut_off_is_refused(void **state)
{
  static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
  xfer_model *model = NULL;

  (void)state;
  mkdir(refit_path("cut"), 0777);
  refit_write("cut/config.json", "{}");
  for (int n_data = 0; n_data <= 8; n_data++) {
    refit_write_header("cut/model.safetensors", header);
    assert_int_equal(truncate(refit_path("cut/model.safetensors"),
                              (off_t)(8 + sizeof header - 1 + (size_t)n_data)),
                     0);
    if (n_data > 0 && n_data < 8) {
      refuse_folder("cut", "is cut off: it has ");
      continue;
    }
    assert_int_equal(xfer_model_load(&model, refit_path("cut"), NULL), XFER_OK);
    xfer_model_destroy(model);
    model = NULL;
  }
}

static void test_unreadable_paths_are_refused(void **state)
{
  xfer_model *model = NULL;

  (void)state;
  assert_int_equal(xfer_model_load(&model, "/nonexistent", NULL), XFER_ERR_IO);
  assert_int_equal(xfer_model_load(&model, refit_folder, NULL), XFER_ERR_IO);
  assert_int_equal(xfer_model_load(&model, NULL, NULL), XFER_ERR_ARG);
}

/* What is there and cannot be opened, or is too large. */
static void test_files_that_cannot_be_read_are_refused(void **state)
{
  struct rlimit before;
  xfer_model *model = NULL;

  (void)state;
  assert_int_equal(truncate(refit_write("large.json", ""), INT64_C(1) << 33), 0);
  assert_int_equal(xfer_model_load(&model, refit_path("large.json"), NULL), XFER_ERR_IO);
  refit_expect_error("has 8589934592 bytes");
  refit_write("small.json", "{}");
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  const struct rlimit none = {3, before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  const xfer_status st = xfer_model_load(&model, refit_path("small.json"), NULL);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_int_equal(st, XFER_ERR_IO);
  refit_expect_error("cannot be read: Too many open files");
}

static void test_files_that_are_no_files_are_refused(void **state)
{
  xfer_model *model = NULL;

  (void)state;
  assert_int_equal(mkfifo(refit_path("pipe"), 0600), 0);
  assert_int_equal(xfer_model_load(&model, refit_path("pipe"), NULL), XFER_ERR_IO);
  refit_expect_error("no regular file");
  assert_int_equal(
      refit_load(&model, REFIT_TABLE("\"time_step_limit\":[0.0,Infinity],\"x\":-Infinity",
                                     REFIT_N("a.weight", "[2]"))),
      XFER_OK);
  xfer_model_destroy(model);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_without_an_index_the_whole_models_file_is_read_alone),
      cmocka_unit_test(test_checkpoint_names_become_stacked_experts),
      cmocka_unit_test(test_checkpoint_that_is_broken_is_refused),
      cmocka_unit_test(test_a_model_type_that_is_no_text_is_refused),
      cmocka_unit_test(test_files_that_say_how_many_they_are_must_all_be_there),
      cmocka_unit_test(test_a_file_that_is_cut_off_is_refused),
      cmocka_unit_test(test_unreadable_paths_are_refused),
      cmocka_unit_test(test_files_that_cannot_be_read_are_refused),
      cmocka_unit_test(test_files_that_are_no_files_are_refused),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
