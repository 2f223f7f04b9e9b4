/* Local tensors handed in by name: spellings, renames, and what is missing, surplus or ill-shaped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "refit_locals.h"
/* How much is wrong with what was handed in, as a bind says. */
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
  one o = make(REFIT_MOE, "vllm:tp2", XFER_REFIT_GEN, NULL, 0);

  (void)state;
  give_all(&o, XFER_REFIT_GEN, older_spelling);
  assert_int_equal(count_problems(&o), 0);
  unmake(&o);
  o = make(REFIT_DENSE, "vllm:tp2", XFER_REFIT_GEN, peft, 2);
  give_all(&o, XFER_REFIT_GEN, add_peft);
  assert_int_equal(count_problems(&o), 0);
  unmake(&o);
  o = make(REFIT_DENSE, "megatron:vdiv1", XFER_REFIT_TRAIN, NULL, 0);
  give_all(&o, XFER_REFIT_TRAIN, text_of_more);
  assert_int_equal(count_problems(&o), 0);
  unmake(&o);
}

#define A50 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define A200 A50 A50 A50 A50

/* Every way to take the parts out one by one would take years. */
static void test_a_long_name_of_parts_that_spellings_leave_out_is_surplus_at_once(void **state)
{
  const int64_t shape[] = {16};
  one o = make(REFIT_DENSE, "megatron:", XFER_REFIT_TRAIN, NULL, 0);
  char name[2048] = "model";

  (void)state;
  for (int i = 0; i < 50; i++)
    strcat(name, ".module.language_model");
  strcat(name, ".x");
  assert_int_equal(
      xfer_locals_give(o.locals, XFER_REFIT_TRAIN, name, XFER_BF16, memory, shape, NULL, 1),
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
    one o = make(REFIT_DENSE, "vllm:tp2", XFER_REFIT_GEN, renames, 2);

    print_message("%s of %s\n", cases[i].from, cases[i].name);
    assert_int_equal(xfer_locals_give(o.locals, XFER_REFIT_GEN, cases[i].name, XFER_BF16, memory,
                                      shape, NULL, 1),
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
    one o = make(REFIT_DENSE, "vllm:tp2", XFER_REFIT_GEN, NULL, 0);

    give_all(&o, XFER_REFIT_GEN, cases[i].change);
    assert_int_equal(count_problems(&o), cases[i].n);
    assert_non_null(strstr(xfer_locals_problem(o.locals, 0), cases[i].word));
    unmake(&o);
  }
}

static void test_surplus_twice_and_lora_are_listed(void **state)
{
  static const char *const collide[] = {"other.weight", "model.norm.weight"};
  static const char *const adapters[] = {"model.layers.0.q_proj.lora_A.weight",
                                         "layers.0.linear_qkv.adapter.linear_in.weight"};
  const int64_t shape[] = {16}, none[] = {0};
  one o = make(REFIT_DENSE, "vllm:tp2", XFER_REFIT_GEN, collide, 1);

  (void)state;
  give_all(&o, XFER_REFIT_GEN, NULL);
  assert_int_equal(
      xfer_locals_give(o.locals, XFER_REFIT_GEN, "other.weight", XFER_BF16, memory, shape, NULL, 1),
      XFER_OK);
  for (size_t i = 0; i < 2; i++)
    assert_int_equal(
        xfer_locals_give(o.locals, XFER_REFIT_GEN, adapters[i], XFER_BF16, memory, shape, NULL, 1),
        XFER_OK);
  assert_int_equal(
      xfer_locals_give(o.locals, XFER_REFIT_GEN, "x._extra_state", XFER_U8, memory, shape, NULL, 1),
      XFER_OK);
  assert_int_equal(
      xfer_locals_give(o.locals, XFER_REFIT_GEN, "empty.weight", XFER_U8, memory, none, NULL, 1),
      XFER_OK);
  assert_int_equal(xfer_locals_ignored(o.locals), 2);
  assert_int_equal(count_problems(&o), 3);
  assert_non_null(strstr(xfer_locals_problem(o.locals, 0), "twice"));
  assert_non_null(strstr(xfer_locals_problem(o.locals, 1), "merged"));
  assert_non_null(strstr(xfer_locals_problem(o.locals, 2), "merged"));
  assert_int_equal(
      xfer_locals_give(o.locals, XFER_REFIT_TRAIN, "x", XFER_U8, memory, shape, NULL, 1),
      XFER_ERR_ARG);
  unmake(&o);
}

/* What has memory of its own no refit would write, so that it would stay as it was loaded. */
static void test_a_tied_output_layer_is_the_embeddings_memory(void **state)
{
  static const int64_t shape[] = {64, 16};
  one o = make(REFIT_TABLE(REFIT_DENSE_CONFIG ",\"tie_word_embeddings\":true", REFIT_DENSE_PARAMS),
               "vllm:tp2", XFER_REFIT_GEN, NULL, 0);

  (void)state;
  give_all(&o, XFER_REFIT_GEN, NULL);
  assert_int_equal(count_problems(&o), 0);
  assert_int_equal(xfer_locals_give(o.locals, XFER_REFIT_GEN, "lm_head.weight", XFER_BF16, memory,
                                    shape, NULL, 2),
                   XFER_OK);
  assert_int_equal(count_problems(&o), 0);
  assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_GEN, "lm_head.weight", XFER_BF16,
                                      memory + 4096, shape, NULL, 2),
                   XFER_OK);
  assert_int_equal(count_problems(&o), 1);
  assert_non_null(strstr(xfer_locals_problem(o.locals, 0), "has memory of its own beside "
                                                           "\"model.embed_tokens.weight\""));
  assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_GEN, "language_model.lm_head.weight",
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
    xfer_refit_side side;
    int rows, n_problems;
  } cases[] = {{"vllm:tp1", XFER_REFIT_GEN, 128, 1}, {"full", XFER_REFIT_TRAIN, 100, 0}};

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
                 specs[i], XFER_REFIT_TRAIN, NULL, 0);

    give_all(&o, XFER_REFIT_TRAIN, NULL);
    assert_int_equal(xfer_locals_give(o.locals, XFER_REFIT_TRAIN, "lm_head.weight", XFER_BF16,
                                      memory, shape, NULL, 2),
                     XFER_OK);
    assert_int_equal(count_problems(&o), 0);
    assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_TRAIN, "lm_head.weight", XFER_BF16,
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
  one o = make(REFIT_DENSE, "vllm:tp2", XFER_REFIT_GEN, other, 1);
  xfer_view src, dst;
  size_t n = 0, norm = 0;
  uint32_t has = 0;

  (void)state;
  (void)xfer_refit_tensors(o.refit, &n);
  for (size_t t = 0; t < n; t++) {
    assert_int_equal(xfer_locals_view(o.locals, t, &src, &dst, &has), XFER_ERR_STATE);
    assert_non_null(strstr(xfer_last_error(), "was not handed in"));
  }
  give_all(&o, XFER_REFIT_GEN, NULL);
  for (const xfer_tensor *t = xfer_refit_tensors(o.refit, &n);
       strcmp(t[norm].name, "model.norm.weight") != 0;)
    norm++;
  assert_true(norm < n);
  assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_GEN, "other.weight", XFER_BF16,
                                      memory + 64, shape, strides, 1),
                   XFER_OK);
  assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_GEN, "model.norm.weight", XFER_BF16,
                                      memory, wrong, NULL, 1),
                   XFER_ERR_MISMATCH);
  assert_non_null(strstr(xfer_last_error(), "is [17], its shape should be [16]"));
  assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_GEN, "model.norm.weight", XFER_BF16,
                                      NULL, shape, NULL, 1),
                   XFER_ERR_MISMATCH);
  assert_non_null(strstr(xfer_last_error(), "has no address"));
  assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_GEN, "model.nrom.weight", XFER_BF16,
                                      memory, shape, NULL, 1),
                   XFER_ERR_MISMATCH);
  assert_int_equal(xfer_locals_view(o.locals, norm, &src, &dst, &has), XFER_OK);
  assert_ptr_equal(dst.base, memory + 64);
  assert_int_equal(dst.strides[0], 6);
  assert_int_equal(xfer_locals_update(o.locals, XFER_REFIT_GEN, "model.norm.weight", XFER_BF16,
                                      memory + 32, shape, NULL, 1),
                   XFER_OK);
  assert_int_equal(xfer_locals_view(o.locals, norm, &src, &dst, &has), XFER_OK);
  assert_ptr_equal(dst.base, memory + 32);
  assert_int_equal(dst.strides[0], 2);
  assert_int_equal(count_problems(&o), 0);
  unmake(&o);
}

/* ---- what is wrong can be made right -------------------------------------------------------- */

typedef xfer_status (*hand_in_fn)(xfer_locals *locals, xfer_refit_side side, const char *name,
                                  xfer_dtype dtype, void *base, const int64_t *shape,
                                  const int64_t *strides, int n_dims);

static void hand_in_norm(one *o, hand_in_fn hand_in, int64_t size, xfer_status st)
{
  assert_int_equal(
      hand_in(o->locals, XFER_REFIT_GEN, "model.norm.weight", XFER_BF16, memory, &size, NULL, 1),
      st);
}

static void test_what_is_handed_in_rightly_is_no_problem_any_more(void **state)
{
  static const hand_in_fn ways[] = {xfer_locals_give, xfer_locals_update};
  static const change_fn changes[] = {drop_norm, wrong_shape, wrong_type};

  (void)state;
  for (size_t i = 0; i < 6; i++) {
    one o = make(REFIT_DENSE, "vllm:tp2", XFER_REFIT_GEN, NULL, 0);

    give_all(&o, XFER_REFIT_GEN, changes[i % 3]);
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
  one o = make(REFIT_DENSE, "vllm:tp2", XFER_REFIT_GEN, NULL, 0);

  (void)state;
  give_all(&o, XFER_REFIT_GEN, drop_norm);
  assert_int_equal(count_problems(&o), 1);
  hand_in_norm(&o, xfer_locals_give, 17, XFER_OK);
  assert_int_equal(count_problems(&o), 1);
  assert_non_null(strstr(xfer_locals_problem(o.locals, 0), "its shape should be"));
  unmake(&o);
}

/* A pattern that is meant for the table's names may match the framework's own. */
static void test_what_an_ignored_pattern_keeps_out_is_said(void **state)
{
  xfer_model *model = NULL;
  xfer_side *side = NULL;
  one o = {NULL, NULL, NULL};
  size_t n_kept_out;

  (void)state;
  assert_int_equal(xfer_model_load(&model, refit_write("table.json", REFIT_DENSE), NULL), XFER_OK);
  assert_int_equal(xfer_side_create(&side, "vllm:tp2,loaded", NULL), XFER_OK);
  assert_int_equal(xfer_side_ignore(side, "*qkv_proj*"), XFER_OK);
  assert_int_equal(xfer_refit_create(&o.refit, model, NULL, side), XFER_OK);
  assert_int_equal(xfer_locals_create(&o.locals, o.refit, 0), XFER_OK);
  give_all(&o, XFER_REFIT_GEN, NULL);
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
