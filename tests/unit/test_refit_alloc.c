/* Every allocation of a refit fails once: an error with a sentence, nothing leaked, outputs
 * untouched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <xfer/refit.h>

#include "../../tools/common/as_loaded.h"
#include "alloc.h"
#include "refit_files.h"

#define EXPERTS                                                                                    \
  "{\"pattern\":\"model.layers.{layer}.mlp.experts.gate_up_proj\",\"layer\":[0,1],\"shape\":[4,"   \
  "16,"                                                                                            \
  "24],\"dtype\":\"bf16\"},"                                                                       \
  "{\"pattern\":\"model.layers.{layer}.mlp.experts.down_proj\",\"layer\":[0,1],\"shape\":[4,12,"   \
  "16],"                                                                                           \
  "\"dtype\":\"bf16\"}"
#define TABLE                                                                                      \
  REFIT_TABLE(REFIT_DENSE_CONFIG                                                                   \
              ",\"model_type\":\"qwen3_vl_moe\",\"num_experts\":4,\"moe_intermediate_size\":12,"   \
              "\"weight_block_size\":[2,4]",                                                       \
              REFIT_ENDS "," REFIT_ATTENTION "," EXPERTS "," REFIT_N("x.weight", "[2]"))

static char memory[1 << 16];

/* So many times all is well at the end of a sweep: an allocation whose failure goes unseen is not
 * taken for the end. */
enum { MORE = 3 };
/* A sanitizer sees what one failure in five leaves behind. */
enum { STEP = ADDRESS_SANITIZER ? 5 : 1 };

static xfer_status give_and_view(xfer_locals *locals, const xfer_refit *refit)
{
  xfer_status st = XFER_OK;
  size_t n = 0;

  xfer_refit_tensors(refit, &n);
  for (size_t i = 0; i < xfer_locals_count(locals) && st == XFER_OK; i++) {
    xfer_local local;

    st = xfer_locals_get(locals, i, &local);
    if (st == XFER_OK)
      st = xfer_locals_give(locals, (xfer_refit_side)local.side, local.name,
                            (xfer_dtype)local.dtype, memory, local.shape, NULL, local.n_dims);
  }
  for (size_t t = 0; t < n && st == XFER_OK; t++) {
    xfer_view src, dst;
    uint32_t has = 0;

    st = xfer_locals_view(locals, t, &src, &dst, &has);
  }
  return st;
}

/* All that a rank does before it has a plan. */
static xfer_status do_all(const char *path, const char *gen_spec, const char *const *renames)
{
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;
  xfer_side_options side = XFER_SIDE_OPTIONS_INIT;
  xfer_model *model = NULL;
  xfer_side *train = NULL, *gen = NULL;
  xfer_refit *refit = NULL;
  xfer_locals *locals = NULL;
  xfer_status st;

  options.renames = renames;
  options.n_renames = 1;
  take_as_loaded(&side, gen_spec);
  st = xfer_model_load(&model, path, &options);
  if (st == XFER_OK) st = xfer_side_create(&train, "megatron:tp4,pp2,layers=1+1", NULL);
  side.first_rank = 8;
  if (st == XFER_OK) st = xfer_side_create(&gen, gen_spec, &side);
  if (st == XFER_OK) st = xfer_side_give_whole(train, "x.*", 0);
  if (st == XFER_OK) st = xfer_side_rename(gen, "a*", "b*");
  if (st == XFER_OK) st = xfer_refit_create(&refit, model, train, gen);
  for (int rank = 0; rank < 10 && st == XFER_OK; rank += 3) {
    st = xfer_locals_create(&locals, refit, rank);
    if (st == XFER_OK) st = give_and_view(locals, refit);
    xfer_locals_destroy(locals);
    locals = NULL;
  }
  assert_true(st == XFER_OK || st == XFER_ERR_NOMEM);
  xfer_refit_destroy(refit);
  xfer_side_destroy(gen);
  xfer_side_destroy(train);
  xfer_model_destroy(model);
  return st;
}

static void sweep(const char *path, const char *gen_spec)
{
  static const char *const renames[] = {"x.*", "x.*"};
  int n_right = 0;
  long n = 0;

  for (; n_right < MORE && n < 100000; n += STEP) {
    xfi_alloc_fail_after(n);
    const xfer_status st = do_all(path, gen_spec, renames);
    if (st != XFER_OK) assert_int_not_equal(strlen(xfer_last_error()), 0);
    assert_true(st == XFER_OK || n_right == 0);
    n_right += st == XFER_OK;
  }
  xfi_alloc_fail_after(-1);
  assert_int_equal(n_right, MORE);
  print_message("%ld allocations\n", n - MORE * STEP);
}

/* First, and apart: the library keeps the rules of sides once it has read them, and a sweep in
 * which they are read on the way would leave out as many allocations of what comes after. */
static void test_each_failed_allocation_of_a_side_is_survived(void **state)
{
  int n_right = 0;

  (void)state;
  for (long n = 0; n_right < MORE && n < 100000; n += STEP) {
    xfer_side *side = NULL;

    xfi_alloc_fail_after(n);
    const xfer_status st = xfer_side_create(&side, "megatron:tp4,pp2,layers=1+1", NULL);
    assert_true(st == XFER_OK || (st == XFER_ERR_NOMEM && side == NULL && n_right == 0));
    n_right += st == XFER_OK;
    xfer_side_destroy(side);
  }
  xfi_alloc_fail_after(-1);
  assert_int_equal(n_right, MORE);
}

static void test_each_failed_allocation_of_a_table_is_survived(void **state)
{
  char spec[300];

  (void)state;
  (void)snprintf(spec, sizeof spec, "vllm:tp2,ep2,quant=fp8_per_block,map=%s",
                 refit_write("map.json", "[[0,2],[3,1]]"));
  sweep(refit_write("table.json", TABLE), spec);
}

static void test_each_failed_allocation_of_a_checkpoint_is_survived(void **state)
{
  (void)state;
  mkdir(refit_path("hf"), 0777);
  refit_write("hf/config.json", "{\"num_hidden_layers\":2,\"hidden_size\":16}");
  refit_write(
      "hf/model.safetensors.index.json",
      "{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\",\"x.weight\":\"a.safetensors\"}}");
  refit_write_header("hf/a.safetensors",
                     "{\"model.norm.weight\":{\"dtype\":\"BF16\",\"shape\":[16]},"
                     "\"x.weight\":{\"dtype\":\"F32\",\"shape\":[2]}}");
  xfer_model *model = NULL;
  int n_right = 0;
  for (long n = 0; n_right < MORE && n < 10000; n += STEP) {
    xfi_alloc_fail_after(n);
    const xfer_status st = xfer_model_load(&model, refit_path("hf"), NULL);
    assert_true(st == XFER_OK || (st == XFER_ERR_NOMEM && model == NULL && n_right == 0));
    n_right += st == XFER_OK;
    xfer_model_destroy(model);
    model = NULL;
  }
  xfi_alloc_fail_after(-1);
  assert_int_equal(n_right, MORE);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_failed_allocation_of_a_side_is_survived),
      cmocka_unit_test(test_each_failed_allocation_of_a_table_is_survived),
      cmocka_unit_test(test_each_failed_allocation_of_a_checkpoint_is_survived),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
