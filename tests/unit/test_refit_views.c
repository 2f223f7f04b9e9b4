/* Where the views of local tensors lie, whatever form an engine has made of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "refit_locals.h"

/* Two values of mxfp4 in a byte, of an expert that is one of two. */
#define V4(name, shape)                                                                            \
  "{\"pattern\":\"layers.{layer}.ffn.experts.{expert}." name                                       \
  ".weight\",\"layer\":[0,0],\"expert\":[0,1],\"shape\":" shape ",\"dtype\":\"i8\"}"
#define MXFP4                                                                                      \
  REFIT_TABLE("\"model_type\":\"deepseek_v4\",\"moe_intermediate_size\":32,\"hidden_size\":64,"    \
              "\"num_attention_heads\":1,\"n_routed_experts\":2",                                  \
              V4("w1", "[32,32]") "," V4("w3", "[32,32]") "," V4("w2", "[64,16]"))

/* Gate and up of one local tensor are its two halves, or alternate. */
static void test_views_follow_what_the_kernels_did(void **state)
{
  static const struct {
    const char *spec;
    int64_t up_offset, strides[3];
  } cases[] = {
      {"vllm:tp2", 4 * 16 * 2, {8 * 16 * 2, 16 * 2, 2}},
      {"vllm:tp2,up_first", 0, {8 * 16 * 2, 16 * 2, 2}},
      {"vllm:tp2,interleaved", 16 * 2, {8 * 16 * 2, 2 * 16 * 2, 2}},
      {"vllm:tp2,transposed", 4 * 2, {8 * 16 * 2, 2, 8 * 2}},
      {"vllm:tp2,transposed,interleaved,up_first", 0, {8 * 16 * 2, 4, 8 * 2}},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    one o = make(REFIT_MOE, cases[i].spec, XFER_REFIT_GEN, NULL, 0);
    xfer_view src, dst;
    uint32_t has = 0;
    size_t up = 2; /* gate of layers 0 and 1, then up */

    print_message("%s\n", cases[i].spec);
    give_all(&o, XFER_REFIT_GEN, NULL);
    assert_string_equal(xfer_refit_tensors(o.refit, NULL)[up].name,
                        "model.layers.0.mlp.experts.{expert}.up_proj.weight");
    assert_int_equal(xfer_locals_view(o.locals, up, &src, &dst, &has), XFER_OK);
    assert_int_equal(has, XFER_LOCALS_DST);
    assert_int_equal((char *)dst.base - memory, cases[i].up_offset);
    for (int d = 0; d < 3; d++)
      assert_int_equal(dst.strides[d], cases[i].strides[d]);
    unmake(&o);
  }
}

/* What lies in one tensor of the checkpoint follows each other in the list, layer by layer, so that
 * what takes turns there crosses as one. */
static void test_what_takes_turns_follows_each_other(void **state)
{
  static const char TABLE[] =
      REFIT_TABLE("\"model_type\":\"gpt_oss\",\"num_hidden_layers\":2,\"hidden_size\":16,"
                  "\"intermediate_size\":8,\"num_local_experts\":2,\"num_attention_heads\":4",
                  "{\"pattern\":\"model.layers.{layer}.mlp.experts.down_proj\",\"layer\":[0,1],"
                  "\"shape\":[2,8,16],\"dtype\":\"bf16\"},"
                  "{\"pattern\":\"model.layers.{layer}.mlp.experts.gate_up_proj\",\"layer\":[0,1],"
                  "\"shape\":[2,16,16],\"dtype\":\"bf16\"}");
  static const char *const names[] = {
      "0.mlp.experts.down_proj",          "1.mlp.experts.down_proj",
      "0.mlp.experts.gate_up_proj[gate]", "0.mlp.experts.gate_up_proj[up]",
      "1.mlp.experts.gate_up_proj[gate]", "1.mlp.experts.gate_up_proj[up]"};
  one o = make(TABLE, "full", XFER_REFIT_TRAIN, NULL, 0);
  size_t n = 0;
  const xfer_tensor *tensors = xfer_refit_tensors(o.refit, &n);

  (void)state;
  assert_int_equal(n, sizeof names / sizeof *names);
  for (size_t i = 0; i < n; i++)
    assert_string_equal(tensors[i].name + strlen("model.layers."), names[i]);
  unmake(&o);
}

/* Two routed experts and a shared one. */
#define MLP(name, numbers)                                                                         \
  "{\"pattern\":\"model.layers.{layer}.mlp." name "gate_proj.weight\",\"layer\":[0,0]," numbers    \
  "\"shape\":[8,16],\"dtype\":\"bf16\"},"                                                          \
  "{\"pattern\":\"model.layers.{layer}.mlp." name "up_proj.weight\",\"layer\":[0,0]," numbers      \
  "\"shape\":[8,16],\"dtype\":\"bf16\"},"                                                          \
  "{\"pattern\":\"model.layers.{layer}.mlp." name "down_proj.weight\",\"layer\":[0,0]," numbers    \
  "\"shape\":[16,8],\"dtype\":\"bf16\"}"
#define SHARING                                                                                    \
  REFIT_TABLE("\"model_type\":\"glm4_moe\",\"num_hidden_layers\":1,\"first_k_dense_replace\":0,"   \
              "\"hidden_size\":16,\"moe_intermediate_size\":8,\"n_routed_experts\":2",             \
              MLP("experts.{expert}.", "\"expert\":[0,1],") "," MLP("shared_experts.", ""))

/* The shared one is the last, whatever the kernels did to each. */
static void test_a_last_expert_lies_behind_the_others(void **state)
{
  static const struct {
    const char *spec;
    int64_t w13[3], w2[3], up_offset, up_strides[2], down_strides[2];
  } cases[] = {
      {"sglang:tp2", {3, 8, 16}, {3, 16, 4}, 2 * 256 + 4 * 32, {32, 2}, {8, 2}},
      {"sglang:tp2,up_first", {3, 8, 16}, {3, 16, 4}, 2 * 256, {32, 2}, {8, 2}},
      {"sglang:tp2,transposed", {3, 16, 8}, {3, 4, 16}, 2 * 256 + 4 * 2, {2, 16}, {2, 32}},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    one o = make(SHARING, cases[i].spec, XFER_REFIT_GEN, NULL, 0);
    const int64_t offsets[2] = {cases[i].up_offset, 2 * 128};
    xfer_view src, dst;
    uint32_t has = 0;

    print_message("%s\n", cases[i].spec);
    assert_true(has_local(&o, "model.layers.0.mlp.experts.w13_weight", cases[i].w13, 3));
    assert_true(has_local(&o, "model.layers.0.mlp.experts.w2_weight", cases[i].w2, 3));
    give_all(&o, XFER_REFIT_GEN, NULL);
    for (size_t k = 0; k < 2; k++) { /* up of the shared one, and down */
      const int64_t *strides = k == 0 ? cases[i].up_strides : cases[i].down_strides;

      assert_non_null(strstr(xfer_refit_tensors(o.refit, NULL)[4 + k].name, "shared_experts."));
      assert_int_equal(xfer_locals_view(o.locals, 4 + k, &src, &dst, &has), XFER_OK);
      assert_int_equal(dst.n_dims, 2);
      assert_int_equal((char *)dst.base - memory, offsets[k]);
      assert_int_equal(dst.strides[0], strides[0]);
      assert_int_equal(dst.strides[1], strides[1]);
    }
    unmake(&o);
  }
}

#define PACKED                                                                                     \
  REFIT_TABLE(                                                                                     \
      "\"model_type\":\"gpt_oss\",\"num_hidden_layers\":1,\"hidden_size\":64,"                     \
      "\"intermediate_size\":64,\"num_local_experts\":4,\"num_attention_heads\":4",                \
      "{\"name\":\"model.layers.0.mlp.experts.gate_up_proj_blocks\",\"shape\":[4,128,2,16],"       \
      "\"dtype\":\"u8\"},"                                                                         \
      "{\"name\":\"model.layers.0.mlp.experts.down_proj_blocks\",\"shape\":[4,64,2,16],"           \
      "\"dtype\":\"u8\"}")

/* The checkpoint has blocks and their bytes in two dims, the engine in one: both are taken where
 * they lie one after the other, and gate and up stay every other row. */
static void test_blocks_of_packed_weights_are_columns(void **state)
{
  static const char name[] = "model.layers.0.mlp.experts.gate_up_proj_blocks";
  static const char engine[] = "model.layers.0.mlp.experts.routed_experts.w13_weight";
  const int64_t blocks[] = {4, 128, 2, 16}, flat[] = {4, 128, 32}, half[] = {4, 64, 32};
  const int64_t apart[] = {128 * 64, 64, 32, 1};
  const int64_t rows[] = {4, 2, 64, 32}, wrong[] = {4, 3, 64, 32};
  one o = make(PACKED, "full", XFER_REFIT_TRAIN, NULL, 0);
  xfer_view src, dst;
  uint32_t has = 0;

  (void)state;
  assert_true(has_local(&o, name, flat, 3));
  assert_int_equal(
      xfer_locals_update(o.locals, XFER_REFIT_TRAIN, name, XFER_U8, memory, blocks, apart, 4),
      XFER_ERR_MISMATCH);
  assert_non_null(
      strstr(xfer_last_error(), "is [4, 128, 2, 16], its shape should be [4, 128, 32]"));
  give_all(&o, XFER_REFIT_TRAIN, NULL);
  assert_int_equal(
      xfer_locals_update(o.locals, XFER_REFIT_TRAIN, name, XFER_U8, memory, wrong, NULL, 4),
      XFER_ERR_MISMATCH);
  assert_int_equal(
      xfer_locals_update(o.locals, XFER_REFIT_TRAIN, name, XFER_U8, memory, rows, NULL, 4),
      XFER_OK);
  assert_int_equal(
      xfer_locals_update(o.locals, XFER_REFIT_TRAIN, name, XFER_U8, memory, blocks, NULL, 4),
      XFER_OK);
  for (size_t part = 0; part < 2; part++) { /* gate, then up */
    assert_int_equal(xfer_locals_view(o.locals, part, &src, &dst, &has), XFER_OK);
    assert_int_equal((char *)src.base - memory, part * 32);
    assert_int_equal(src.strides[0], 128 * 32);
    assert_int_equal(src.strides[1], 64);
    assert_int_equal(src.strides[2], 1);
  }
  unmake(&o);
  o = make(PACKED, "vllm:tp2", XFER_REFIT_GEN, NULL, 0);
  assert_true(has_local(&o, engine, half, 3));
  unmake(&o);
}

/* One view has all experts of a layer, which therefore lie alike. */
static void test_c1_experts_with_other_strides_are_refused_by_name(void **state)
{
  static const char name[] = "model.layers.1.mlp.experts.3.down_proj.weight";
  const int64_t shape[] = {16, 8}, apart[] = {64, 2};
  one o = make(REFIT_MOE, "full", XFER_REFIT_TRAIN, NULL, 0);
  xfer_view src, dst;
  uint32_t has = 0;
  int n_refused = 0;
  size_t n = 0;

  (void)state;
  give_all(&o, XFER_REFIT_TRAIN, NULL);
  assert_int_equal(
      xfer_locals_update(o.locals, XFER_REFIT_TRAIN, name, XFER_BF16, memory, shape, apart, 2),
      XFER_OK);
  (void)xfer_refit_tensors(o.refit, &n);
  for (size_t t = 0; t < n; t++) {
    if (xfer_locals_view(o.locals, t, &src, &dst, &has) == XFER_OK) continue;
    assert_non_null(
        strstr(xfer_last_error(), "experts.3.down_proj.weight\" have different strides"));
    n_refused++;
  }
  assert_int_equal(n_refused, 1);
  unmake(&o);
}

/* Parts of a local tensor are found by its strides, before any view of them is looked at. */
static void test_strides_that_no_memory_has_are_refused(void **state)
{
  static const char name[] = "model.layers.0.mlp.gate_up_proj.weight";
  const int64_t shape[] = {64, 16}, least[] = {INT64_MIN, 2}, many[] = {INT64_C(1) << 57, 2};
  const int64_t most[] = {INT64_MAX, 2}, fit[] = {(INT64_C(1) << 56) - 1, 2};
  const int64_t *const cases[] = {least, most, many};
  one o = make(REFIT_DENSE, "vllm:", XFER_REFIT_GEN, NULL, 0);

  (void)state;
  assert_true(has_local(&o, name, shape, 2));
  give_all(&o, XFER_REFIT_GEN, NULL);
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(
        xfer_locals_update(o.locals, XFER_REFIT_GEN, name, XFER_BF16, memory, shape, cases[i], 2),
        XFER_ERR_MISMATCH);
    assert_non_null(strstr(xfer_last_error(), "in dim 0 reaches past 2^62 bytes"));
  }
  assert_int_equal(
      xfer_locals_update(o.locals, XFER_REFIT_GEN, name, XFER_BF16, memory, shape, fit, 2),
      XFER_OK);
  unmake(&o);
}

/* Nor is there any behind what mmap() returns where it fails: a part further on would seem to lie
 * at the beginning of the address space. */
static void test_an_address_without_room_behind_it_is_refused(void **state)
{
  static const char name[] = "model.layers.0.mlp.gate_up_proj.weight";
  void *const none = (void *)-1, *const low = (void *)(uintptr_t)64; /* NOLINT: no memory */
  const int64_t shape[] = {64, 16}, dense[] = {32, 2}, back[] = {-32, 2};
  const int64_t *const strides[] = {NULL, dense, back};
  one o = make(REFIT_DENSE, "vllm:", XFER_REFIT_GEN, NULL, 0);

  (void)state;
  assert_true(has_local(&o, name, shape, 2));
  give_all(&o, XFER_REFIT_GEN, NULL);
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_GEN, name, XFER_BF16,
                                        strides[i] == back ? low : none, shape, strides[i], 2),
                     XFER_ERR_MISMATCH);
    assert_non_null(strstr(xfer_last_error(), "gate_up_proj.weight\" at 0x"));
    assert_non_null(strstr(xfer_last_error(), "reaches past the end of the address space"));
  }
  assert_int_equal(
      xfer_locals_update(o.locals, XFER_REFIT_GEN, name, XFER_BF16, memory, shape, NULL, 2),
      XFER_OK);
  unmake(&o);
}

/* vLLM's parameters of MXFP8's scales are bytes. */
static void test_scales_that_are_powers_of_two_may_be_bytes(void **state)
{
  static const char name[] = "model.layers.0.mlp.gate_up_proj.weight_scale";
  const int64_t shape[] = {64, 1};
  one o = make(REFIT_DENSE, "vllm:quant=mxfp8", XFER_REFIT_GEN, NULL, 0);

  (void)state;
  assert_true(has_local(&o, name, shape, 2));
  assert_int_equal(
      xfer_locals_give(o.locals, XFER_REFIT_GEN, name, XFER_U8, memory, shape, NULL, 2), XFER_OK);
  assert_int_equal(
      xfer_locals_update(o.locals, XFER_REFIT_GEN, name, XFER_F8E8M0, memory, shape, NULL, 2),
      XFER_OK);
  assert_int_equal(
      xfer_locals_update(o.locals, XFER_REFIT_GEN, name, XFER_I8, memory, shape, NULL, 2),
      XFER_ERR_MISMATCH);
  assert_non_null(strstr(xfer_last_error(), "is i8, it should be f8e8m0"));
  unmake(&o);
}

/* vLLM's parameters of packed experts are bytes, whatever their checkpoint calls them. */
static void test_packed_values_may_be_bytes(void **state)
{
  static const char name[] = "model.layers.0.ffn.experts.routed_experts.w2_weight";
  const int64_t shape[] = {2, 64, 16};
  one o = make(MXFP4, "vllm:", XFER_REFIT_GEN, NULL, 0);

  (void)state;
  assert_int_equal(
      xfer_locals_give(o.locals, XFER_REFIT_GEN, name, XFER_U8, memory, shape, NULL, 3), XFER_OK);
  assert_int_equal(
      xfer_locals_update(o.locals, XFER_REFIT_GEN, name, XFER_BOOL, memory, shape, NULL, 3),
      XFER_ERR_MISMATCH);
  assert_non_null(strstr(xfer_last_error(), "is bool, it should be i8"));
  unmake(&o);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_views_follow_what_the_kernels_did),
      cmocka_unit_test(test_what_takes_turns_follows_each_other),
      cmocka_unit_test(test_a_last_expert_lies_behind_the_others),
      cmocka_unit_test(test_blocks_of_packed_weights_are_columns),
      cmocka_unit_test(test_c1_experts_with_other_strides_are_refused_by_name),
      cmocka_unit_test(test_strides_that_no_memory_has_are_refused),
      cmocka_unit_test(test_an_address_without_room_behind_it_is_refused),
      cmocka_unit_test(test_scales_that_are_powers_of_two_may_be_bytes),
      cmocka_unit_test(test_packed_values_may_be_bytes),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
