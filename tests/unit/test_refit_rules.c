/* Rules of a folder: what they may say, and what is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/stat.h>
#include <xfer/refit.h>

#include "refit_sides.h"

#define FAMILY                                                                                     \
  "{\"format\":\"xfer-family-v1\",\n\"family\":\"mine\",\n\"model_type\":[\"mine\"],\n"            \
  "\"include\":[\"decoder\"]}"
#define MINE REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"mine\"", REFIT_DENSE_PARAMS)

static xfer_status load_by(xfer_model **model, const char *table, const xfer_rules *rules)
{
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;

  options.rules = rules;
  return xfer_model_load(model, refit_write("table.json", table), &options);
}

#define SIDE(more, local)                                                                          \
  "{\"format\":\"xfer-side-v1\",\"side\":\"mine\",\"numbers\":{\"tp\":1},\"ranks\":[[\"tp\","      \
  "\"tp\"]],"                                                                                      \
  "\"dense\":[[\"tp\",\"tp\",\"cut\"]],\"experts\":[],\"expert_cut\":\"even\",\n" more             \
  "\"locals\":[\n{\"each\":[\"*\"],\"local\":\"@.%\"" local "}]}"
#define QUANT(block, scales, dtype)                                                                \
  "\"quants\":[{\"name\":\"q\",\"block\":" block ",\"scales\":\"" scales "\",\"dtype\":\"" dtype   \
  "\"}],\n"
#define DEEP "1?1:1?1:1?1:1?1:1?1:1?1:1?1:1?1:"
#define LONG "a_name_that_is_longer_than_sixty_three_characters_which_is_as_long_as_any_may_be"

/* A file of rules, and what its refusal says. */
typedef struct wrong_file {
  const char *rules, *word;
} wrong_file;

static void load_each(const char *folder, const wrong_file *cases, size_t n)
{
  char file[64];
  xfer_rules *rules = NULL;

  (void)snprintf(file, sizeof file, "%s/a.json", folder);
  mkdir(refit_path(folder), 0777);
  for (size_t i = 0; i < n; i++) {
    refit_write(file, cases[i].rules);
    assert_int_equal(xfer_rules_load(&rules, refit_path(folder)), XFER_ERR_IO);
    refit_expect_error(cases[i].word);
  }
}

static void test_fields_of_a_side_say_what_they_want(void **state)
{
  static const wrong_file cases[] = {
      {SIDE("", ",\"units\":[\"2\",\"1\"]"), "line 3: \"units\" and \"across\" are of what is cut"},
      {SIDE("", ",\"cut\":\"vocabulary\",\"across\":[\"2\",\"1\"]"),
       "are of what is cut by rows or"},
      {SIDE("", ",\"cut\":\"rows\",\"units\":[\"2\"]"),
       "line 3: \"units\" of a local tensor must be a list of two"},
      {SIDE("", ",\"cut\":\"rows\",\"across\":[\"2\",\"1\",\"1\"]"),
       "\"across\" of a local tensor must be a list of two"},
      {SIDE("\"spellings\":[[\"a\",\"b\"],\n[\"*********\",\"b\"]],", ""),
       "line 3: name pattern \"*********\" has more than 8 stars"},
      {SIDE("\"spellings\":[[\"a\",\"*\"]],", ""),
       "line 2: rename \"a\" -> \"*\": the new name has more stars than the old"},
      {SIDE("\"wide\":[[\"a\",\"1\",\"cut\"],[\"b\",\"1\",\"fsdp\"],\n[\"c\",\"1\",\"cut\"]],", ""),
       "line 3: a second axis for \"cut\""},
      {SIDE("", ",\"cut\":\"rows\",\"units\":[\"2\",\"1 +\"]"), "\"1 +\" is no expression"},
      {SIDE("", ",\"when\":[\"1\",\"1 +\"]"), "\"1 +\" is no expression"},
      {SIDE("", ",\"when\":[1]"), "must be an expression, or a list of expressions"},
      {SIDE("", ",\"when\":\"1 +\""), "\"1 +\" is no expression"},
      {SIDE("", ",\"whole\":\"" DEEP DEEP DEEP DEEP DEEP "1\""), "is no expression"},
      {SIDE("", ",\"made\":\"x\""), "\"made\" and \"made_dtype\" go together"},
      {SIDE("", ",\"last_name\":\"{blok}x.%\""),
       "line 3: \"{blok}x.%\" has no placeholder at \"{blok}x.%\""},
      {SIDE("", ",\"last_name\":\"x{name\""), "has no placeholder at \"{name\""},
      {SIDE("\"layer_prefix\":\"a.{name}.\",", ""), "line 2: \"a.{name}.\" has no placeholder"},
      {SIDE(QUANT("[\"8\"]", "weight_scale", "f32"), ""),
       "\"block\" of a way to quantise must be a list of two"},
      {SIDE(QUANT("[\"8\",\"(\"]", "weight_scale", "f32"), ""), "\"(\" is no expression"},
      {SIDE(QUANT("[\"8\",\"8\"]", "scales", "f32"), ""), "scales are called \"weight_..\", not"},
      {SIDE(QUANT("[\"8\",\"8\"]", "weight_scale", "bf16"), ""), "scales are f32 or f8e8m0"},
      {SIDE("\"quants\":[1,2,3,4,5],", ""), "more than 4 ways to quantise"},
      {SIDE("\"stage\":\"pp\",", ""), "line 2: no axis of the ranks is called \"pp\""},
      {SIDE("\"flags\":[\"" LONG "\"],", ""), "has a name of more than 63 characters"},
      {SIDE("\"choices\":{\"" LONG "\":[\"a\"]},", ""), "has a name of more than 63 characters"},
  };

  (void)state;
  load_each("sides", cases, sizeof cases / sizeof *cases);
}

#define TENSOR(fields)                                                                             \
  "{\"format\":\"xfer-family-v1\",\"family\":\"mine\",\"tensors\":[\n" fields "]}"
#define LAYER(word) "{\"name\":\"" word ".{layer}.x\",\"role\":\"mlp.up\"}"

static void test_fields_of_a_family_say_what_they_want(void **state)
{
  static const wrong_file cases[] = {
      {TENSOR(
           LAYER("a") "," LAYER("b") "," LAYER("c") "," LAYER("a") "," LAYER("d") ",\n" LAYER("e")),
       "line 3: layers of more than 4 names"},
      {TENSOR("{\"name\":\"x.{expert}\",\"role\":\"moe.up\",\"dims\":[\"experts\",\"rows\"]}"),
       "line 2: dims are \"experts\""},
      {TENSOR("{\"name\":\"x\",\"role\":\"a\",\"dims\":[\"rows\",\"columns\",\"rows\"]}"),
       "each once, but that neighbours may be one"},
      {TENSOR("{\"name\":\"x\",\"role\":\"a\",\"dims\":[\"columns\",\"columns\"]}"),
       "dims without \"rows\""},
  };

  (void)state;
  load_each("tensors", cases, sizeof cases / sizeof *cases);
}

/* As SIDE, with axes and a list of local tensors. */
#define AXES(dense, locals)                                                                        \
  "{\"format\":\"xfer-side-v1\",\"side\":\"mine\",\"numbers\":{\"tp\":1,\"dp\":1},\"ranks\":[["    \
  "\"tp\","                                                                                        \
  "\"tp\"],[\"dp\",\"dp\"]],\"dense\":[" dense                                                     \
  "],\"experts\":[],\"expert_cut\":\"even\",\"locals\":[" locals                                   \
  "{\"each\":[\"*\"],\"local\":\"{name}\"}]}"
#define TP "[\"tp\",\"tp\",\"cut\"]"
#define FSDP "[\"dp\",\"dp\",\"fsdp\"]"
#define GATE_UP(more)                                                                              \
  "{\"parts\":[\"mlp.gate\",\"mlp.up\"],\"local\":\"l.{layer}.gate_up\",\"cut\":\"rows\"" more "}" \
  ","
#define SEVEN(x) "\"" x "t\",\"" x "u\",\"" x "v\",\"" x "w\",\"" x "x\",\"" x "y\",\"" x "z\","
#define GATE REFIT_P("mlp.gate_proj.weight", "[32,16]")
#define SCALED                                                                                     \
  REFIT_TABLE(                                                                                     \
      REFIT_DENSE_CONFIG ",\"weight_block_size\":[8,8]",                                           \
      GATE "," REFIT_P("mlp.gate_proj.weight_scale_inv", "[4,2]") "," REFIT_P(                     \
          "mlp.up_proj.weight", "[32,16]") "," REFIT_P("mlp.up_proj.weight_scale_inv", "[4,2]"))

/* Rules that can be read, and what they make of a SPEC; of a model and a rank with a table. */
static void refuse(const char *text, const char *spec, const char *table, const char *placed,
                   const char *word)
{
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_rules *rules = NULL;
  xfer_model *model = NULL;
  xfer_side *gen = NULL;
  xfer_refit *refit = NULL;
  xfer_locals *locals = NULL;
  xfer_status st;

  refit_write("units/a.json", text);
  assert_int_equal(xfer_rules_load(&rules, refit_path("units")), XFER_OK);
  options.rules = rules;
  st = xfer_side_create(&gen, spec, &options);
  if (table != NULL) {
    assert_int_equal(st, XFER_OK);
    assert_int_equal(refit_load(&model, table), XFER_OK);
    if (placed != NULL) assert_int_equal(xfer_side_place(gen, placed, 0), XFER_OK);
    st = xfer_refit_create(&refit, model, NULL, gen);
    if (st == XFER_OK) st = xfer_locals_create(&locals, refit, 0);
  }
  assert_int_not_equal(st, XFER_OK);
  refit_expect_error(word);
  xfer_refit_destroy(refit);
  xfer_side_destroy(gen);
  xfer_model_destroy(model);
  xfer_rules_destroy(rules);
}

static void test_what_rules_cannot_do_is_refused_by_name(void **state)
{
  static const struct {
    const char *rules, *spec, *table, *word;
  } cases[] = {
      {SIDE("", ",\"cut\":\"rows\",\"units\":[\"7\",\"1\"]"), "mine:tp2", REFIT_DENSE,
       "does not divide into 7 units"},
      {SIDE("", ",\"cut\":\"columns\",\"across\":[\"0\",\"1\"]"), "mine:tp2", REFIT_DENSE,
       "does not divide into 0 units"},
      {SIDE("", ",\"cut\":\"rows\",\"units\":[\"1\",\"0\"]"), "mine:tp2", REFIT_DENSE,
       "by multiples of 0"},
      {SIDE("", ",\"cut\":\"rows\",\"units\":[\"nothing + (2 ?? 1)\",\"1\"]"), "mine:tp2",
       REFIT_DENSE, "the configuration has no \"nothing\""},
      {SIDE("", ",\"cut\":\"rows\",\"units\":[\"nothing\",\"1\"]"), "mine:tp2", REFIT_DENSE,
       "a.json: line 3: \"nothing\": the configuration has no \"nothing\""},
      {SIDE("", ",\"cut\":\"rows\",\"units\":[\"9223372036854775807 + 1\",\"1\"]"), "mine:tp2",
       REFIT_DENSE, "has no value that 63 bits hold"},
      /* Of a list of conditions all must hold, and the first that does not decides. */
      {AXES(TP,
            "{\"each\":[\"mlp.up\"],\"when\":[\"tp == 2\",\"0\",\"nothing\"],\"refusal\":\"no\"},"
            "{\"each\":[\"mlp.up\"],\"when\":[\"tp == 2\",\"1\"],\"refusal\":\"as it is\"},"),
       "mine:tp2", REFIT_DENSE, "as it is"},
      {AXES(TP, "{\"each\":[\"mlp.up\"],\"when\":[\"1\",\"nothing\"],\"refusal\":\"no\"},"),
       "mine:tp2", REFIT_DENSE, "the configuration has no \"nothing\""},
      {SIDE("\"vocabulary\":\"1 / 0\",\n", ",\"cut\":\"vocabulary\""), "mine:tp2", REFIT_DENSE,
       "a.json: line 2: \"1 / 0\" divides by zero"},
      {SIDE("\"require\":[[\"1\",\"a\"],\n[\"nothing\",\"b\"]],", ""), "mine:tp2", NULL,
       "a.json: line 3: \"nothing\": the configuration has no"},
      {AXES("[\"tp\",\"tp / 0\",\"cut\"]", ""), "mine:tp2", NULL, "a.json: line 1, column "},
      {SIDE("\"vocabulary\":\"0\",", ",\"cut\":\"vocabulary\""), "mine:tp2", REFIT_DENSE,
       "a vocabulary in units of 0"},
      {SIDE(QUANT("[\"0\",\"8\"]", "weight_scale", "f32"), ""), "mine:quant=q", REFIT_DENSE,
       "quant=q by blocks of 0"},
      {SIDE("", ""), "mine:", REFIT_DENSE, "two tensors are called"},
      {SIDE("", ",\"cut\":\"rows\",\"wide\":\"1\""), "mine:tp2", REFIT_DENSE,
       "is wide, and \"mine:tp2\" has no such grid"},
      {AXES("[\"tp\",\"tp - 2\",\"cut\"]", ""), "mine:tp2", NULL, "an axis of 0 ranks"},
      {AXES("[\"tp\",\"3\",\"cut\"]", ""), "mine:tp2", NULL, "the axes of 3 ranks do not divide"},
      {AXES("[\"tp\",\"65536\",\"cut\"],[\"dp\",\"65536\",\"fsdp\"]", ""), "mine:tp2", NULL,
       "has more ranks than an int counts"},
      {AXES(FSDP "," TP, GATE_UP("")), "mine:dp2", REFIT_DENSE, "holds several weights, and"},
      {AXES(TP, GATE_UP(",\"units\":[\"2\",\"1\"]")), "mine:tp2", REFIT_DENSE,
       "units of several weights that lie one after the other"},
      {AXES(TP, GATE_UP(",\"alternate\":\"1\"")), "mine:tp2", SCALED,
       "rows with block scales cannot be interleaved"},
      {AXES(TP, "{\"each\":[\"mlp.*\"],\"local\":\"{name}\",\"cut\":\"columns\"},"), "mine:tp8",
       SCALED, "2 per shard of dim 1 in \"mine:tp8\" is not a multiple of the block of 8"},
      {SIDE("\"flags\":[" SEVEN("a") SEVEN("b") SEVEN("c") SEVEN("d") SEVEN("e") SEVEN("f")
                SEVEN("g") "\"h\"],",
            ""),
       "mine:tp2", NULL, "has too many items"},
      {AXES(TP, GATE_UP("")), "mine:tp2",
       REFIT_TABLE("\"num_hidden_layers\":2", GATE "," REFIT_P("mlp.up_proj.weight", "[32,8]")),
       "its parts have sizes 16 and 8"},
      {AXES(TP, "{\"each\":[\"attn.q\"],\"local\":\"model.layers.{layer}.mlp.down_proj.weight\"},"),
       "mine:tp2", REFIT_DENSE, "part 2 of 1 is missing or there twice"},
  };

  (void)state;
  mkdir(refit_path("units"), 0777);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    refuse(cases[i].rules, cases[i].spec, cases[i].table, NULL, cases[i].word);
  refuse(AXES(FSDP "," TP, ""), "mine:tp2", REFIT_DENSE, "lm_head.*",
         "tp is not the axis that counts fastest");
}

static void test_rules_of_a_folder_add_a_family(void **state)
{
  xfer_rules *rules = NULL;
  xfer_model *model = NULL;
  xfer_side *train = NULL;
  xfer_refit *refit = NULL;

  (void)state;
  mkdir(refit_path("rules"), 0777);
  assert_int_equal(xfer_rules_load(&rules, refit_path("rules")), XFER_ERR_IO);
  refit_expect_error("no *.json");
  refit_write("rules/a.json",
              "{\n\"format\":\"xfer-family-v1\",\n\"family\":\"x\",\n\"oops\":\"1\"}");
  assert_int_equal(xfer_rules_load(&rules, refit_path("rules")), XFER_ERR_IO);
  refit_expect_error("a.json: line 4: a family has no field \"oops\"");
  refit_write("rules/a.json",
              "{\"format\":\"xfer-family-v1\",\"family\":\"x\",\"include\":[\"y\"]}");
  assert_int_equal(xfer_rules_load(&rules, refit_path("rules")), XFER_ERR_IO);
  refit_expect_error("no family is called \"y\"");
  refit_write("rules/a.json", "{\"format\":\"xfer-family-v1\",\"family\":\"x\","
                              "\"config\":{\"tied\":\"1 +\"}}");
  assert_int_equal(xfer_rules_load(&rules, refit_path("rules")), XFER_ERR_IO);
  refit_expect_error("\"1 +\" is no expression");
  refit_write("rules/a.json", "{\"format\":\"xfer-family-v1\",\"family\":\"x\","
                              "\"sides\":{\"nemo\":{\"set\":{\"a\":\"1\"}}}}");
  assert_int_equal(xfer_rules_load(&rules, refit_path("rules")), XFER_ERR_IO);
  refit_expect_error("no side is called \"nemo\"");
  assert_int_equal(xfer_rules_load(&rules, "/nowhere/x"), XFER_ERR_IO);
  refit_expect_error("cannot be read as a folder");
  refit_write("rules/a.json", FAMILY);
  assert_int_equal(xfer_rules_load(&rules, refit_path("rules")), XFER_OK);
  assert_int_equal(refit_side(&train, "megatron:tp2", NULL), XFER_OK);
  assert_int_equal(refit_load(&model, MINE), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, train, NULL), XFER_ERR_UNSUPPORTED);
  refit_expect_error("model_type \"mine\"");
  xfer_model_destroy(model);
  assert_int_equal(load_by(&model, MINE, rules), XFER_OK);
  xfer_rules_destroy(rules); /* the model keeps what it needs */
  assert_int_equal(xfer_refit_create(&refit, model, train, NULL), XFER_OK);
  xfer_refit_destroy(refit);
  xfer_model_destroy(model);
  xfer_side_destroy(train);
  assert_int_equal(xfer_rules_load(NULL, "x"), XFER_ERR_ARG);
  xfer_rules_destroy(NULL);
}

/* q, k and v in one tensor of as many rows as the configuration says. */
static void test_a_tensor_has_the_rows_of_what_it_holds(void **state)
{
  static const struct {
    const char *table, *word;
  } cases[] = {
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"mine\",\"qkv_rows\":31,\"fewer\":0",
                   REFIT_P("self_attn.qkv_proj.weight", "[31,16]")),
       "has 31 rows, too few for what it holds"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"mine\",\"qkv_rows\":33,\"fewer\":0",
                   REFIT_P("self_attn.qkv_proj.weight", "[33,16]")),
       "has 33 rows; what it holds makes 32"},
      {REFIT_TABLE(REFIT_DENSE_CONFIG ",\"model_type\":\"mine\",\"qkv_rows\":32,\"fewer\":9",
                   REFIT_P("self_attn.qkv_proj.weight", "[32,16]")),
       "is no number of rows"}};
  xfer_rules *rules = NULL;
  xfer_model *model = NULL;

  (void)state;
  mkdir(refit_path("held"), 0777);
  refit_write(
      "held/a.json",
      "{\"format\":\"xfer-family-v1\",\"family\":\"mine\",\"model_type\":[\"mine\"],"
      "\"include\":[\"decoder\"],\"tensors\":[{\"name\":\"layers.{layer}.self_attn.qkv_proj\","
      "\"dims\":[\"rows\",\"columns\"],\"holds\":[[\"attn.q\",\"heads\",\"head_dim\"],"
      "[\"attn.k\",\"kv_heads - fewer\",\"head_dim\"],[\"attn.v\",\"kv_heads\",\"head_dim\"]],"
      "\"shape\":[\"qkv_rows\",\"hidden\"]}]}");
  assert_int_equal(xfer_rules_load(&rules, refit_path("held")), XFER_OK);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(load_by(&model, cases[i].table, rules), XFER_ERR_SHAPE);
    refit_expect_error(cases[i].word);
  }
  xfer_rules_destroy(rules);
}

/* Experts one by one, whose weights are columns by rows. */
static void test_dims_of_experts_that_a_name_counts(void **state)
{
  xfer_rules *rules = NULL;
  xfer_model *model = NULL;
  xfer_side *full = NULL;
  xfer_refit *refit = NULL;
  xfer_locals *locals = NULL;
  xfer_refit_tensor tensor;
  xfer_local local;

  (void)state;
  mkdir(refit_path("turned"), 0777);
  refit_write(
      "turned/a.json",
      "{\"format\":\"xfer-family-v1\",\"family\":\"mine\",\"model_type\":[\"mine\"],\"tensors\":"
      "[{\"name\":\"blocks.{layer}.x.experts.{expert}\",\"role\":\"moe.up\","
      "\"dims\":[\"columns\",\"rows\"]}]}");
  assert_int_equal(xfer_rules_load(&rules, refit_path("turned")), XFER_OK);
  assert_int_equal(load_by(&model,
                           REFIT_TABLE("\"model_type\":\"mine\"",
                                       REFIT_N("blocks.3.x.experts.0.weight", "[4,6]")),
                           rules),
                   XFER_OK);
  assert_int_equal(refit_side(&full, "full", NULL), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, full, NULL), XFER_OK);
  assert_int_equal(xfer_refit_tensor_get(refit, 0, &tensor), XFER_OK);
  assert_int_equal(tensor.layer, 3);
  assert_int_equal(xfer_locals_create(&locals, refit, 0), XFER_OK);
  assert_int_equal(xfer_locals_get(locals, 0, &local), XFER_OK);
  assert_string_equal(local.name, "blocks.3.x.experts.0.weight");
  assert_int_equal(local.n_dims, 2);
  assert_int_equal(local.shape[0], 4);
  assert_int_equal(local.shape[1], 6);
  xfer_locals_destroy(locals);
  xfer_refit_destroy(refit);
  xfer_side_destroy(full);
  xfer_model_destroy(model);
  xfer_rules_destroy(rules);
}

/* A list of experts has one view, whose pieces are the experts: rows of each in two stretches would
 * be read from the first alone. */
static void test_listed_experts_lie_in_one_stretch(void **state)
{
  static const char *const taken[] = {"\"moe.up\"", "{\"role\":\"moe.up\",\"take\":\"a\"},"
                                                    "{\"role\":\"moe.up\",\"take\":\"b\"}"};
  char text[1024];

  (void)state;
  mkdir(refit_path("listed"), 0777);
  for (int i = 0; i < 2; i++) {
    static float memory[2][4][6];
    const int64_t shape[2] = {4, 6};
    xfer_rules *rules = NULL;
    xfer_model *model = NULL;
    xfer_side *served = NULL;
    xfer_refit *refit = NULL;
    xfer_locals *locals = NULL;
    xfer_view src, dst;
    uint32_t has = 0;

    (void)snprintf(
        text, sizeof text,
        "{\"format\":\"xfer-family-v1\",\"family\":\"mine\",\"model_type\":[\"mine\"],"
        "\"tensors\":[{\"name\":\"blocks.{layer}.x.{expert}\",\"role\":\"moe.up\","
        "\"rows\":[[\"pair\",\"2\",[[\"a\",\"1\"],[\"b\",\"1\"]]]]}],\"sides\":{\"vllm\":{"
        "\"locals\":[{\"parts\":[%s],\"local\":\"{layer_prefix}{local}.%%\",\"cut\":\"rows\"}]}}}",
        taken[i]);
    refit_write("listed/a.json", text);
    assert_int_equal(xfer_rules_load(&rules, refit_path("listed")), XFER_OK);
    assert_int_equal(load_by(&model,
                             REFIT_TABLE("\"model_type\":\"mine\"",
                                         "{\"pattern\":\"blocks.0.x.{expert}.weight\",\"expert\":"
                                         "[0,1],\"shape\":[4,6],\"dtype\":\"f32\"}"),
                             rules),
                     XFER_OK);
    assert_int_equal(refit_side(&served, "vllm:tp1", NULL), XFER_OK);
    assert_int_equal(xfer_refit_create(&refit, model, NULL, served), XFER_OK);
    assert_int_equal(xfer_locals_create(&locals, refit, 0), XFER_OK);
    for (int e = 0; e < 2; e++)
      assert_int_equal(
          xfer_locals_give(locals, XFER_REFIT_GEN,
                           e == 0 ? "model.layers.0.0.weight" : "model.layers.0.1.weight", XFER_F32,
                           memory[e], shape, NULL, 2),
          XFER_OK);
    assert_int_equal(xfer_locals_view(locals, 0, &src, &dst, &has),
                     i == 0 ? XFER_OK : XFER_ERR_UNSUPPORTED);
    if (i == 1) refit_expect_error("in 4 stretches of rows");
    xfer_locals_destroy(locals);
    xfer_refit_destroy(refit);
    xfer_side_destroy(served);
    xfer_model_destroy(model);
    xfer_rules_destroy(rules);
  }
}

static void test_a_last_expert_is_for_a_tensor_of_experts(void **state)
{
  xfer_rules *rules = NULL;
  xfer_model *model = NULL;
  xfer_side *served = NULL;
  xfer_refit *refit = NULL;

  (void)state;
  mkdir(refit_path("last"), 0777);
  refit_write("last/a.json",
              "{\"format\":\"xfer-family-v1\",\"family\":\"mine\",\"model_type\":[\"mine\"],"
              "\"include\":[\"decoder\"],\"sides\":{\"vllm\":{\"locals\":[{\"parts\":["
              "\"mlp.gate\",{\"role\":\"mlp.up\",\"last_expert\":true}],"
              "\"local\":\"{layer_prefix}x.%\"}]}}}");
  assert_int_equal(xfer_rules_load(&rules, refit_path("last")), XFER_OK);
  assert_int_equal(load_by(&model, MINE, rules), XFER_OK);
  assert_int_equal(refit_side(&served, "vllm:tp1", NULL), XFER_OK);
  assert_int_equal(xfer_refit_create(&refit, model, NULL, served), XFER_ERR_UNSUPPORTED);
  refit_expect_error("a last expert is of one weight, the others of experts");
  xfer_side_destroy(served);
  xfer_model_destroy(model);
  xfer_rules_destroy(rules);
}

#define EXPERTS_OF(model_type, hidden, size, gate_up, down)                                        \
  REFIT_TABLE(                                                                                     \
      "\"num_hidden_layers\":2,\"hidden_size\":" hidden ",\"moe_intermediate_size\":" size         \
      ",\"num_experts\":4,\"model_type\":\"" model_type "\"",                                      \
      REFIT_P("mlp.experts.gate_up_proj", gate_up) "," REFIT_P("mlp.experts.down_proj", down))
#define EXPERTS(model_type) EXPERTS_OF(model_type, "24", "8", "[4,24,16]", "[4,8,24]")

/* As transformers 5 saves its configuration. */
#define SAVED_EXPERTS                                                                              \
  REFIT_TABLE("\"text_config\":{\"num_hidden_layers\":2,\"hidden_size\":24,"                       \
              "\"moe_intermediate_size\":8,\"num_local_experts\":4},"                              \
              "\"model_type\":\"qwen3_vl_moe\"",                                                   \
              REFIT_P("mlp.experts.gate_up_proj",                                                  \
                      "[4,24,16]") "," REFIT_P("mlp.experts.down_proj", "[4,8,24]"))

static void test_fused_experts_have_the_form_of_their_model_type(void **state)
{
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;
  xfer_model *model = NULL;

  (void)state;
  assert_int_equal(refit_load(&model, EXPERTS("qwen3_vl_moe")), XFER_OK);
  xfer_model_destroy(model);
  model = NULL;
  options.experts_end = 2;
  assert_int_equal(xfer_model_load(&model, refit_path("table.json"), &options),
                   XFER_ERR_UNSUPPORTED);
  refit_expect_error("the checkpoint holds all experts in one tensor");
  assert_int_equal(refit_load(&model, EXPERTS("llama")), XFER_ERR_UNSUPPORTED);
  refit_expect_error("model_type");
  assert_int_equal(refit_load(&model, EXPERTS("qwen3_5_moe")), XFER_ERR_UNSUPPORTED);
  refit_expect_error("want [experts, 2 * moe_size, hidden]");
  assert_int_equal(refit_load(&model, SAVED_EXPERTS), XFER_OK);
  xfer_model_destroy(model);
  model = NULL;
  assert_int_equal(refit_load(&model, EXPERTS("qwen3_moe")), XFER_ERR_UNSUPPORTED);
  refit_expect_error("want [experts, 2 * moe_size, hidden]");
  assert_null(model);
}

/* Columns by rows as they are published, or turned as transformers has them: sizes alone tell. */
static void test_experts_that_may_be_turned_are_refused(void **state)
{
  static const struct {
    const char *text, *word;
  } cases[] = {
      {EXPERTS_OF("qwen3_vl_moe", "16", "8", "[4,16,16]", "[4,8,16]"), "experts.gate_up_proj"},
      {EXPERTS_OF("qwen3_vl_moe", "8", "8", "[4,16,8]", "[4,8,8]"), "experts.down_proj"},
      {EXPERTS_OF("qwen3_vl_moe", "24", "8", "[4,16,24]", "[4,24,8]"), NULL},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xfer_model *model = NULL;

    assert_int_equal(refit_load(&model, cases[i].text),
                     cases[i].word == NULL ? XFER_OK : XFER_ERR_UNSUPPORTED);
    if (cases[i].word != NULL) refit_expect_error(cases[i].word);
    xfer_model_destroy(model);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fused_experts_have_the_form_of_their_model_type),
      cmocka_unit_test(test_experts_that_may_be_turned_are_refused),
      cmocka_unit_test(test_a_last_expert_is_for_a_tensor_of_experts),
      cmocka_unit_test(test_fields_of_a_side_say_what_they_want),
      cmocka_unit_test(test_fields_of_a_family_say_what_they_want),
      cmocka_unit_test(test_what_rules_cannot_do_is_refused_by_name),
      cmocka_unit_test(test_listed_experts_lie_in_one_stretch),
      cmocka_unit_test(test_rules_of_a_folder_add_a_family),
      cmocka_unit_test(test_a_tensor_has_the_rows_of_what_it_holds),
      cmocka_unit_test(test_dims_of_experts_that_a_name_counts),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
