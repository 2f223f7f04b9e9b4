/* Local tensors handed in by name: spellings, renames, and what is missing, surplus or ill-shaped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "refit_locals.h"

/* Layers that are called h.N, of weights that are columns by rows. */
#define GPT2                                                                                       \
  REFIT_TABLE(                                                                                     \
      "\"model_type\":\"gpt2\",\"n_embd\":16,\"n_head\":4",                                        \
      REFIT_N("h.0.attn.c_attn.weight", "[16,48]") "," REFIT_N(                                    \
          "h.1.attn.c_attn.weight", "[16,48]") "," REFIT_N("h.0.mlp.c_proj.weight", "[32,16]"))

/* As older checkpoints have it. */
#define KIMI(shape)                                                                                \
  REFIT_TABLE("\"model_type\":\"kimi_linear\",\"moe_intermediate_size\":4096,\"linear_attn_"       \
              "config\":{\"num_heads\":4}",                                                        \
              REFIT_P("self_attn.A_log", shape))

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

static void test_names_and_shapes_are_the_frameworks_own(void **state)
{
  static const struct {
    const char *table, *spec;
    int side;
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
      {KIMI("[1,1,4,1]"), "vllm:tp2", 1, "model.layers.1.self_attn.A_log", {2}, 1},
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
  one o = make(KIMI("[1,1,4,1]"), "fsdp:dp2", XFER_SIDE_TRAIN, NULL, 0);
  xfer_locals *second = NULL;
  xfer_local local;

  (void)state;
  assert_true(has_local(&o, "model.layers.0.self_attn.A_log", flat, 1));
  assert_int_equal(xfer_locals_give(o.locals, XFER_SIDE_TRAIN, "model.layers.0.self_attn.A_log",
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
  one o = make(KIMI("[1,1,4,1]"), "fsdp:dp2", XFER_SIDE_TRAIN, NULL, 0);
  xfer_view src, dst;
  size_t n = 0, t = 0;
  int has = 0;

  (void)state;
  assert_int_equal(xfer_locals_update(o.locals, XFER_SIDE_TRAIN, "model.layers.0.self_attn.A_log",
                                      XFER_BF16, memory, four, apart, 2),
                   XFER_ERR_MISMATCH);
  assert_int_equal(xfer_locals_update(o.locals, XFER_SIDE_TRAIN, "model.layers.0.self_attn.A_log",
                                      XFER_BF16, memory, own, odd, 4),
                   XFER_OK);
  const xfer_tensor *tensors = xfer_refit_tensors(o.refit, &n);
  while (t < n && strstr(tensors[t].name, "A_log") == NULL)
    t++;
  assert_int_equal(xfer_locals_view(o.locals, t, &src, &dst, &has), XFER_OK);
  assert_int_equal(has, 1);
  assert_int_equal(src.strides[0], 4);
  unmake(&o);
}

/* Sizes whose product would come to the tensor's only past 63 bits, or by two minus signs. */
static void test_sizes_that_multiply_past_63_bits_are_no_shape(void **state)
{
  const int64_t shapes[][2] = {{(INT64_C(1) << 62) + 1, 4}, {-2, -2}};
  const int64_t strides[] = {INT64_C(1) << 62, INT64_C(1) << 62}, two[] = {2, 2};
  one o = make(KIMI("[1,1,4,1]"), "fsdp:dp2", XFER_SIDE_TRAIN, NULL, 0);

  (void)state;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    assert_int_equal(xfer_locals_update(o.locals, XFER_SIDE_TRAIN, "model.layers.0.self_attn.A_log",
                                        XFER_BF16, memory, shapes[i], NULL, 2),
                     XFER_ERR_MISMATCH);
    assert_non_null(strstr(xfer_last_error(), "its shape should be [4]"));
  }
  assert_int_equal(xfer_locals_update(o.locals, XFER_SIDE_TRAIN, "model.layers.0.self_attn.A_log",
                                      XFER_BF16, memory, two, strides, 2),
                   XFER_ERR_MISMATCH);
  unmake(&o);
}

/* Hands every local tensor in, `change` deciding what of it is different. */
static size_t count_problems(one *o)
{
  size_t n = 0;
  xfer_plan *plan = NULL;
  size_t n_tensors = 0;

  xfer_refit_tensors(o->refit, &n_tensors);
  assert_int_equal(xfer_plan_simulate(&plan, 4, 0, NULL, 0, NULL), XFER_OK);
  const xfer_status st = xfer_locals_bind(o->locals, plan);
  while (xfer_locals_problem(o->locals, n) != NULL)
    n++;
  assert_true(n == 0 || st == XFER_ERR_MISMATCH);
  if (n > 0) assert_non_null(strstr(xfer_last_error(), xfer_locals_problem(o->locals, 0)));
  xfer_plan_destroy(plan);
  return n;
}

static void older_spelling(xfer_local *local, char *name, bool *give)
{
  char *at = strstr(name, "routed_experts.");

  (void)local;
  (void)give;
  if (at != NULL) memmove(at, at + 15, strlen(at + 15) + 1);
}

static void add_peft(xfer_local *local, char *name, bool *give)
{
  char old[128];
  char *dot;

  (void)local;
  (void)give;
  snprintf(old, sizeof old, "%.100s", name);
  dot = strrchr(old, '.');
  *dot = '\0';
  snprintf(name, 256, "base_model.model.%s.base_layer.%s", old, dot + 1);
}

/* As Megatron calls the text of a model that sees, within what wraps it for data parallelism. */
static void text_of_more(xfer_local *local, char *name, bool *give)
{
  char own[200];

  (void)local;
  (void)give;
  snprintf(own, sizeof own, "%.199s", name);
  snprintf(name, 256, "module.language_model.%s", own);
}

static void drop_norm(xfer_local *local, char *name, bool *give)
{
  (void)local;
  *give = strcmp(name, "model.norm.weight") != 0;
}

static void wrong_shape(xfer_local *local, char *name, bool *give)
{
  (void)give;
  if (strcmp(name, "model.norm.weight") == 0) local->shape[0]++;
}

static void wrong_type(xfer_local *local, char *name, bool *give)
{
  (void)give;
  if (strcmp(name, "model.norm.weight") == 0) local->dtype = XFER_F32;
}

static void other_name(xfer_local *local, char *name, bool *give)
{
  (void)local;
  (void)give;
  if (strcmp(name, "model.norm.weight") == 0) strcpy(name, "model.nrom.weight");
}

static void test_spellings_and_renames_lead_to_the_same(void **state)
{
  static const char *const peft[] = {"base_model.model.*", "*", "*.base_layer.*", "*.*"};
  one o = make(REFIT_MOE, "vllm:tp2", XFER_SIDE_GEN, NULL, 0);

  (void)state;
  give_all(&o, XFER_SIDE_GEN, older_spelling);
  assert_int_equal(count_problems(&o), 0);
  unmake(&o);
  o = make(REFIT_DENSE, "vllm:tp2", XFER_SIDE_GEN, peft, 2);
  give_all(&o, XFER_SIDE_GEN, add_peft);
  assert_int_equal(count_problems(&o), 0);
  unmake(&o);
  o = make(REFIT_DENSE, "megatron:vdiv1", XFER_SIDE_TRAIN, NULL, 0);
  give_all(&o, XFER_SIDE_TRAIN, text_of_more);
  assert_int_equal(count_problems(&o), 0);
  unmake(&o);
}

#define A50 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define A200 A50 A50 A50 A50

/* Every way to take the parts out one by one would take years. */
static void test_a_long_name_of_parts_that_spellings_leave_out_is_surplus_at_once(void **state)
{
  const int64_t shape[] = {16};
  one o = make(REFIT_DENSE, "megatron:", XFER_SIDE_TRAIN, NULL, 0);
  char name[2048] = "model";

  (void)state;
  for (int i = 0; i < 50; i++)
    strcat(name, ".module.language_model");
  strcat(name, ".x");
  assert_int_equal(
      xfer_locals_give(o.locals, XFER_SIDE_TRAIN, name, XFER_BF16, memory, shape, NULL, 1),
      XFER_OK);
  assert_int_equal(xfer_locals_ignored(o.locals), 0);
  assert_non_null(strstr(xfer_locals_problem(o.locals, 0), "language_model"));
  unmake(&o);
}

/* Stars from the left take the least that lets the rest match, in no more time than that needs. */
static void test_stars_take_the_shortest_text(void **state)
{
  static const struct {
    const char *from, *to, *name, *renamed;
  } cases[] = {
      {"a.*.b.*", "*-*", "a.x.b.y.b.z", "x-y.b.z"},
      {"*.weight", "*", "w.weight.weight", "w.weight"},
      {"*ab*ab", "*-*", "xababab", "x-ab"},
      {"*aab*", "*-*", "aaab", "a-"},
      {"*a*b*c", "*-*-*", "cbabc", "cb--"},
      {"*a*b*c", "*-*-*", "abcbcc", "--cbc"},
      {"**", "*-*", "xy", "-xy"},
      {"a*", "x", "b", "b"},
      {"a*b", "x", "a", "a"},
      {"ab*ba", "x", "aba", "aba"},
      {"abc", "x", "abcd", "abcd"},
      {"********Z", "x", A200, A200},
      {"*a*a*a*a*a*a*a*Z", "x", A200, A200},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    /* A name that becomes what it should is then a tensor's, and any other is surplus. */
    const char *renames[] = {cases[i].from, cases[i].to, cases[i].renamed, "model.norm.weight"};
    const int64_t shape[] = {16};
    one o = make(REFIT_DENSE, "vllm:tp2", XFER_SIDE_GEN, renames, 2);

    print_message("%s of %s\n", cases[i].from, cases[i].name);
    assert_int_equal(
        xfer_locals_give(o.locals, XFER_SIDE_GEN, cases[i].name, XFER_BF16, memory, shape, NULL, 1),
        XFER_OK);
    assert_null(xfer_locals_problem(o.locals, 0));
    unmake(&o);
  }
}

static void test_what_is_wrong_is_listed(void **state)
{
  static const struct {
    change_fn change;
    size_t n;
    const char *word;
  } cases[] = {{drop_norm, 1, "missing"},
               {wrong_shape, 1, "shape"},
               {wrong_type, 1, "f32"},
               {other_name, 2, "nrom"}};

  (void)state;
  for (size_t i = 0; i < 4; i++) {
    one o = make(REFIT_DENSE, "vllm:tp2", XFER_SIDE_GEN, NULL, 0);

    give_all(&o, XFER_SIDE_GEN, cases[i].change);
    assert_int_equal(count_problems(&o), cases[i].n);
    assert_non_null(strstr(xfer_locals_problem(o.locals, 0), cases[i].word));
    unmake(&o);
  }
}

static void test_surplus_twice_and_lora_are_listed(void **state)
{
  static const char *const collide[] = {"other.weight", "model.norm.weight"};
  const int64_t shape[] = {16}, none[] = {0};
  one o = make(REFIT_DENSE, "vllm:tp2", XFER_SIDE_GEN, collide, 1);

  (void)state;
  give_all(&o, XFER_SIDE_GEN, NULL);
  assert_int_equal(
      xfer_locals_give(o.locals, XFER_SIDE_GEN, "other.weight", XFER_BF16, memory, shape, NULL, 1),
      XFER_OK);
  assert_int_equal(xfer_locals_give(o.locals, XFER_SIDE_GEN, "model.layers.0.q_proj.lora_A.weight",
                                    XFER_BF16, memory, shape, NULL, 1),
                   XFER_OK);
  assert_int_equal(
      xfer_locals_give(o.locals, XFER_SIDE_GEN, "x._extra_state", XFER_U8, memory, shape, NULL, 1),
      XFER_OK);
  assert_int_equal(
      xfer_locals_give(o.locals, XFER_SIDE_GEN, "empty.weight", XFER_U8, memory, none, NULL, 1),
      XFER_OK);
  assert_int_equal(xfer_locals_ignored(o.locals), 2);
  assert_int_equal(count_problems(&o), 2);
  assert_non_null(strstr(xfer_locals_problem(o.locals, 0), "twice"));
  assert_non_null(strstr(xfer_locals_problem(o.locals, 1), "merged"));
  assert_int_equal(
      xfer_locals_give(o.locals, XFER_SIDE_TRAIN, "x", XFER_U8, memory, shape, NULL, 1),
      XFER_ERR_ARG);
  unmake(&o);
}

/* What has memory of its own no refit would write, so that it would stay as it was loaded. */
static void test_a_tied_output_layer_is_the_embeddings_memory(void **state)
{
  static const int64_t shape[] = {64, 16};
  one o = make(REFIT_TABLE(REFIT_DENSE_CONFIG ",\"tie_word_embeddings\":true", REFIT_DENSE_PARAMS),
               "vllm:tp2", XFER_SIDE_GEN, NULL, 0);

  (void)state;
  give_all(&o, XFER_SIDE_GEN, NULL);
  assert_int_equal(count_problems(&o), 0);
  assert_int_equal(xfer_locals_give(o.locals, XFER_SIDE_GEN, "lm_head.weight", XFER_BF16, memory,
                                    shape, NULL, 2),
                   XFER_OK);
  assert_int_equal(count_problems(&o), 0);
  assert_int_equal(xfer_locals_update(o.locals, XFER_SIDE_GEN, "lm_head.weight", XFER_BF16,
                                      memory + 4096, shape, NULL, 2),
                   XFER_OK);
  assert_int_equal(count_problems(&o), 1);
  assert_non_null(strstr(xfer_locals_problem(o.locals, 0), "has memory of its own beside "
                                                           "\"model.embed_tokens.weight\""));
  assert_int_equal(xfer_locals_update(o.locals, XFER_SIDE_GEN, "language_model.lm_head.weight",
                                      XFER_BF16, memory, shape, NULL, 2),
                   XFER_OK);
  assert_int_equal(count_problems(&o), 0);
  unmake(&o);
}

/* Both would be written, one over the other. A trainer may have them so: both are read. */
static void test_an_engines_untied_output_layer_is_not_the_embeddings_memory(void **state)
{
  static const struct {
    const char *spec;
    int side, rows, n_problems;
  } cases[] = {{"vllm:tp1", XFER_SIDE_GEN, 128, 1}, {"full", XFER_SIDE_TRAIN, 100, 0}};

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const int64_t shape[] = {cases[i].rows, 16};
    one o = make(REFIT_DENSE, cases[i].spec, cases[i].side, NULL, 0);

    give_all(&o, cases[i].side, NULL);
    assert_int_equal(count_problems(&o), 0);
    assert_int_equal(xfer_locals_update(o.locals, cases[i].side, "lm_head.weight", XFER_BF16,
                                        memory, shape, NULL, 2),
                     XFER_OK);
    assert_int_equal(count_problems(&o), cases[i].n_problems);
    if (cases[i].n_problems > 0)
      assert_non_null(strstr(xfer_locals_problem(o.locals, 0), "is the memory of"));
    unmake(&o);
  }
}

/* The state dict of a trainer has both names, the checkpoint of a tied model only the embedding's.
 */
static void test_a_trainers_tied_output_layer_is_a_second_name_too(void **state)
{
  static const char *const specs[] = {"fsdp:dp2", "full", "hf:tp2"};
  static const int64_t shape[] = {50, 16};

  (void)state;
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    one o = make(REFIT_TABLE(REFIT_DENSE_CONFIG ",\"tie_word_embeddings\":true",
                             REFIT_N("model.embed_tokens.weight", "[100,16]")),
                 specs[i], XFER_SIDE_TRAIN, NULL, 0);

    give_all(&o, XFER_SIDE_TRAIN, NULL);
    assert_int_equal(xfer_locals_give(o.locals, XFER_SIDE_TRAIN, "lm_head.weight", XFER_BF16,
                                      memory, shape, NULL, 2),
                     XFER_OK);
    assert_int_equal(count_problems(&o), 0);
    assert_int_equal(xfer_locals_update(o.locals, XFER_SIDE_TRAIN, "lm_head.weight", XFER_BF16,
                                        memory + 4096, shape, NULL, 2),
                     XFER_OK);
    assert_int_equal(count_problems(&o), 1);
    assert_non_null(strstr(xfer_locals_problem(o.locals, 0), "has memory of its own beside"));
    assert_non_null(strstr(xfer_locals_problem(o.locals, 0), "ignore it where it is a copy"));
    unmake(&o);
  }
}

/* In place of what was handed in before; what is wrong changes nothing, and is no problem. */
static void test_an_update_takes_the_place_of_what_was_given(void **state)
{
  static const char *const other[] = {"other.weight", "model.norm.weight"};
  const int64_t shape[] = {16}, wrong[] = {17}, strides[] = {6};
  one o = make(REFIT_DENSE, "vllm:tp2", XFER_SIDE_GEN, other, 1);
  xfer_view src, dst;
  size_t n = 0, norm = 0;
  int has = 0;

  (void)state;
  (void)xfer_refit_tensors(o.refit, &n);
  for (size_t t = 0; t < n; t++) {
    assert_int_equal(xfer_locals_view(o.locals, t, &src, &dst, &has), XFER_ERR_STATE);
    assert_non_null(strstr(xfer_last_error(), "was not handed in"));
  }
  give_all(&o, XFER_SIDE_GEN, NULL);
  for (const xfer_tensor *t = xfer_refit_tensors(o.refit, &n);
       strcmp(t[norm].name, "model.norm.weight") != 0;)
    norm++;
  assert_true(norm < n);
  assert_int_equal(xfer_locals_update(o.locals, XFER_SIDE_GEN, "other.weight", XFER_BF16,
                                      memory + 64, shape, strides, 1),
                   XFER_OK);
  assert_int_equal(xfer_locals_update(o.locals, XFER_SIDE_GEN, "model.norm.weight", XFER_BF16,
                                      memory, wrong, NULL, 1),
                   XFER_ERR_MISMATCH);
  assert_non_null(strstr(xfer_last_error(), "is [17], its shape should be [16]"));
  assert_int_equal(xfer_locals_update(o.locals, XFER_SIDE_GEN, "model.norm.weight", XFER_BF16, NULL,
                                      shape, NULL, 1),
                   XFER_ERR_MISMATCH);
  assert_non_null(strstr(xfer_last_error(), "has no address"));
  assert_int_equal(xfer_locals_update(o.locals, XFER_SIDE_GEN, "model.nrom.weight", XFER_BF16,
                                      memory, shape, NULL, 1),
                   XFER_ERR_MISMATCH);
  assert_int_equal(xfer_locals_view(o.locals, norm, &src, &dst, &has), XFER_OK);
  assert_ptr_equal(dst.base, memory + 64);
  assert_int_equal(dst.strides[0], 6);
  assert_int_equal(xfer_locals_update(o.locals, XFER_SIDE_GEN, "model.norm.weight", XFER_BF16,
                                      memory + 32, shape, NULL, 1),
                   XFER_OK);
  assert_int_equal(xfer_locals_view(o.locals, norm, &src, &dst, &has), XFER_OK);
  assert_ptr_equal(dst.base, memory + 32);
  assert_int_equal(dst.strides[0], 2);
  assert_int_equal(count_problems(&o), 0);
  unmake(&o);
}

/* ---- what is wrong can be made right -------------------------------------------------------- */

typedef xfer_status (*hand_in_fn)(xfer_locals *locals, int side, const char *name, int32_t dtype,
                                  void *base, const int64_t *shape, const int64_t *strides,
                                  int n_dims);

static void hand_in_norm(one *o, hand_in_fn hand_in, int64_t size, xfer_status st)
{
  assert_int_equal(
      hand_in(o->locals, XFER_SIDE_GEN, "model.norm.weight", XFER_BF16, memory, &size, NULL, 1),
      st);
}

static void test_what_is_handed_in_rightly_is_no_problem_any_more(void **state)
{
  static const hand_in_fn ways[] = {xfer_locals_give, xfer_locals_update};
  static const change_fn changes[] = {drop_norm, wrong_shape, wrong_type};

  (void)state;
  for (size_t i = 0; i < 6; i++) {
    one o = make(REFIT_DENSE, "vllm:tp2", XFER_SIDE_GEN, NULL, 0);

    give_all(&o, XFER_SIDE_GEN, changes[i % 3]);
    assert_int_equal(count_problems(&o), 1);
    assert_int_equal(count_problems(&o), 1);
    hand_in_norm(&o, ways[i / 3], 16, XFER_OK);
    assert_int_equal(count_problems(&o), 0);
    hand_in_norm(&o, xfer_locals_give, 16, XFER_OK); /* twice */
    assert_int_equal(count_problems(&o), 1);
    hand_in_norm(&o, xfer_locals_update, 17, XFER_ERR_MISMATCH);
    assert_int_equal(count_problems(&o), 1);
    hand_in_norm(&o, xfer_locals_update, 16, XFER_OK);
    assert_int_equal(count_problems(&o), 0);
    unmake(&o);
  }
}

/* Of what is missing and wrong then, one remains. */
static void test_a_missing_tensor_that_is_handed_in_wrongly_is_one_problem(void **state)
{
  one o = make(REFIT_DENSE, "vllm:tp2", XFER_SIDE_GEN, NULL, 0);

  (void)state;
  give_all(&o, XFER_SIDE_GEN, drop_norm);
  assert_int_equal(count_problems(&o), 1);
  hand_in_norm(&o, xfer_locals_give, 17, XFER_OK);
  assert_int_equal(count_problems(&o), 1);
  assert_non_null(strstr(xfer_locals_problem(o.locals, 0), "its shape should be"));
  unmake(&o);
}

/* A pattern that is meant for the table's names may match the framework's own. */
static void test_what_an_ignored_pattern_keeps_out_is_said(void **state)
{
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_model *model = NULL;
  xfer_side *side = NULL;
  one o = {NULL, NULL, NULL};
  size_t n_kept_out;

  (void)state;
  options.weights = XFER_WEIGHTS_LOADED;
  assert_int_equal(xfer_model_load(&model, refit_write("table.json", REFIT_DENSE), NULL), XFER_OK);
  assert_int_equal(xfer_side_create(&side, "vllm:tp2", &options), XFER_OK);
  assert_int_equal(xfer_side_ignore(side, "*qkv_proj*"), XFER_OK);
  assert_int_equal(xfer_refit_create(&o.refit, model, NULL, side), XFER_OK);
  assert_int_equal(xfer_locals_create(&o.locals, o.refit, 0), XFER_OK);
  give_all(&o, XFER_SIDE_GEN, NULL);
  n_kept_out = count_problems(&o);
  for (size_t i = 0; i < n_kept_out; i++) {
    assert_non_null(strstr(xfer_locals_problem(o.locals, i), "qkv_proj"));
    assert_non_null(strstr(xfer_locals_problem(o.locals, i),
                           "is missing: what was handed in matches a pattern that is ignored"));
  }
  assert_true(n_kept_out > 0);
  assert_int_equal(xfer_locals_ignored(o.locals), n_kept_out);
  xfer_side_destroy(side);
  xfer_model_destroy(model);
  unmake(&o);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_names_and_shapes_are_the_frameworks_own),
      cmocka_unit_test(test_dims_of_one_element_are_one_with_their_neighbours),
      cmocka_unit_test(test_dims_of_one_element_may_have_any_stride),
      cmocka_unit_test(test_sizes_that_multiply_past_63_bits_are_no_shape),
      cmocka_unit_test(test_spellings_and_renames_lead_to_the_same),
      cmocka_unit_test(test_a_long_name_of_parts_that_spellings_leave_out_is_surplus_at_once),
      cmocka_unit_test(test_stars_take_the_shortest_text),
      cmocka_unit_test(test_what_is_wrong_is_listed),
      cmocka_unit_test(test_what_an_ignored_pattern_keeps_out_is_said),
      cmocka_unit_test(test_surplus_twice_and_lora_are_listed),
      cmocka_unit_test(test_a_tied_output_layer_is_the_embeddings_memory),
      cmocka_unit_test(test_an_engines_untied_output_layer_is_not_the_embeddings_memory),
      cmocka_unit_test(test_a_trainers_tied_output_layer_is_a_second_name_too),
      cmocka_unit_test(test_an_update_takes_the_place_of_what_was_given),
      cmocka_unit_test(test_what_is_handed_in_rightly_is_no_problem_any_more),
      cmocka_unit_test(test_a_missing_tensor_that_is_handed_in_wrongly_is_one_problem),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
