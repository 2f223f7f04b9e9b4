/* SPECs: what they mean, and what is refused with a sentence. Ranks: checked against upstream's
 * groups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "refit_sides.h"

static void test_spec_gives_its_number_of_ranks(void **state)
{
  static const struct {
    const char *spec;
    int size;
  } cases[] = {
      {"full", 1},
      {"hf:", 1},
      {"hf:tp4", 4},
      {"megatron:", 1},
      {"megatron:tp2,pp4,cp2,dp3", 48},
      {"megatron:tp4,pp8,ep16,dp16,layers=11+6x12+11", 512},
      {"fsdp:dp8,dtype=bf16", 8},
      {"megatron:ep8,dp8,etp1,vdiv1187,mla_down=fused,experts=stacked", 8},
      {"vllm:tp4,dp2,pp3,engines5", 120},
      {"vllm:tp2,dp2,ep4,round_robin", 4},
      {"vllm:tp2,up_first,transposed", 2},
      {"fsdp:dp4,tp2,replicate3,ep2", 24},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xfer_side *side = NULL;

    print_message("%s\n", cases[i].spec);
    assert_int_equal(refit_side(&side, cases[i].spec, NULL), XFER_OK);
    assert_int_equal(xfer_side_size(side), cases[i].size);
    xfer_side_destroy(side);
  }
}

static void test_spec_that_is_wrong_is_refused_with_a_sentence(void **state)
{
  static const struct {
    const char *spec, *word;
  } cases[] = {
      {"", "no framework is called"},
      {"nemo:tp2", "no framework is called"},
      {"megatron", ""},
      {"megatron:tp", "wants a number"},
      {"megatron:tp0", "wants a number"},
      {"megatron:tp2,", "an empty item"},
      {"megatron:,tp2", "an empty item"},
      {"megatron:tp2,,pp2", "an empty item"},
      {"megatron:tp2,tp2", "given twice"},
      {"megatron:tpx", "no item"},
      {"megatron:an_item_whose_name_is_longer_than_any_that_a_side_of_rules_may_have=1", "no item"},
      {"megatron:tp-2",
       "no item \"tp-2\" there: a number follows its name, and none is negative, as in tp2"},
      {"megatron:tp=2", "no item \"tp\" there: write tp2"},
      {"megatron:TP2", "no item \"TP2\" there: write tp2"},
      {"megatron:Tp = 2", "write tp2"},
      {"megatron:tp-x", "no item \"tp-x\" there; it has"},
      {"megatron:tp 2", "write tp2"},
      {"vllm:Round_Robin", "no item \"Round_Robin\" there: write round_robin"},
      {"megatron:engines2", "no item"},
      {"vllm:cp2", "no item"},
      {"hf:dp2", "no item"},
      {"full:tp2", "no item"},
      {"megatron:ep3,dp4",
       "has tp x cp x dp = 4 ranks, no multiple of ep 3 x etp 1: dp3 makes it one"},
      {"megatron:tp2,pp2,ep4",
       "has tp x cp x dp = 2 ranks, no multiple of ep 4 x etp 1: dp2 makes it one"},
      {"megatron:ep4,etp2,dp4", "no multiple of ep 4 x etp 2: dp8 makes it one"},
      {"megatron:pp65536,vpp65536", "65536 chunks"},
      {"megatron:pp2,layers=", "\"megatron:pp2,layers=\": layers= lists no stage"},
      {"megatron:pp2,vpp2,layers=1+2", "layers= lists 2 stages, there are 4 virtual ones"},
      {"megatron:pp2,layers=1,2", "no item \"2\" there; it has"},
      {"megatron:pp2,layers=1,2", "layers=N+N"},
      {"megatron:tp2,dtype=bf17", "\"megatron:tp2,dtype=bf17\": dtype=bf17: no element type"},
      {"megatron:tp2,dtype=", "no element type"},
      {"fsdp:dp2,dtype=bf16,dtype=f32", "given twice"},
      {"megatron:pp2,layers=3", "lists 1 stages"},
      {"megatron:pp2,layers=3+", "\"megatron:pp2,layers=3+\": layers=3+: want counts"},
      {"megatron:pp2,layers=+3", "want counts"},
      {"megatron:pp2,layers=3x", "want counts"},
      {"megatron:pp2,layers=0x3+2", "want counts"},
      {"megatron:layers", "no item"},
      {"megatron:mla_down=half", "want one of"},
      {"megatron:mla_down", "no item"},
      {"vllm:tp4,ep2", "knows 1 and dp x tp"},
      {"vllm:tp4,round_robin", "without ep"},
      {"vllm:loaded,up_first", "loaded says"},
      {"vllm:tp1000000000", "wants a number"},
      {"vllm:tp99999999999", "wants a number"},
      {"vllm:tp65536,dp65536", "more ranks than"},
      {"fsdp:dp16777217", "\"fsdp:dp16777217\" has 16777217 ranks, more than 16777216"},
      {"fsdp:dp3,ep2", "does not divide"},
      {"fsdp:cp2", "no item"},
      {"vllm:tp2,ep2,map=", "wants a file"},
      {"vllm:tp2,ep2,map=/nonexistent.json", "cannot be read"},
      {"vllm:transposed,transposed", "given twice"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xfer_side *side = NULL;

    print_message("%s\n", cases[i].spec);
    if (strcmp(cases[i].spec, "megatron") == 0) { /* no item at all is one rank */
      assert_int_equal(refit_side(&side, cases[i].spec, NULL), XFER_OK);
      xfer_side_destroy(side);
      continue;
    }
    assert_int_not_equal(refit_side(&side, cases[i].spec, NULL), XFER_OK);
    assert_null(side);
    assert_non_null(strstr(xfer_last_error(), cases[i].word));
  }
}

static void test_serving_side_must_say_what_its_kernels_did(void **state)
{
  static const char *const names[] = {"loaded", "transposed"};
  static const int32_t values[] = {1, 1};
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_side *side = NULL;

  (void)state;
  assert_int_equal(xfer_side_create(&side, "vllm:tp2", NULL), XFER_ERR_ARG);
  refit_expect_error("kernels");
  assert_int_equal(xfer_side_create(&side, "vllm:tp2,loaded", NULL), XFER_OK);
  xfer_side_destroy(side);
  side = NULL;
  options.item_names = names;
  options.item_values = values;
  options.n_items = 2;
  assert_int_equal(xfer_side_create(&side, "vllm:tp2", &options), XFER_ERR_ARG);
  refit_expect_error("loaded says");
  options.n_items = 1;
  assert_int_equal(xfer_side_create(&side, "vllm:tp2,loaded", &options), XFER_ERR_ARG);
  refit_expect_error("loaded is given twice");
  assert_int_equal(xfer_side_create(&side, "megatron:tp2", &options), XFER_ERR_ARG);
  refit_expect_error("no item \"loaded\" there");
  assert_int_equal(xfer_side_create(&side, "vllm:tp2", &options), XFER_OK);
  xfer_side_destroy(side);
}

static void test_options_that_contradict_each_other_are_refused(void **state)
{
  static const int32_t ranks[] = {0, 1};
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_side *side = NULL;

  (void)state;
  options.ranks = ranks;
  assert_int_equal(xfer_side_create(&side, "megatron:tp2", &options), XFER_ERR_ARG);
  refit_expect_error("\"megatron:tp2\" has 2 ranks, 0 are listed");
  options.ranks = NULL;
  options.n_map = -1;
  assert_int_equal(xfer_side_create(&side, "megatron:tp2", &options), XFER_ERR_ARG);
  refit_expect_error("an expert map of -1 ranks");
  options.n_map = 0;
  options.reserved = 1;
  assert_int_equal(xfer_side_create(&side, "megatron:tp2", &options), XFER_ERR_UNSUPPORTED);
  refit_expect_error("side option reserved is 0x1: want 0");
}

static void test_a_long_spec_leaves_room_for_what_is_wrong_with_it(void **state)
{
  char spec[4096] = "vllm:";
  xfer_side *side = NULL;

  (void)state;
  for (int i = 0; i < 500; i++)
    strcat(spec, "tp2,");
  assert_int_equal(xfer_side_create(&side, spec, NULL), XFER_ERR_ARG);
  refit_expect_error("tp2,tp2\": tp is given twice");
  memset(spec, 'x', sizeof spec - 1);
  spec[sizeof spec - 1] = '\0';
  assert_int_equal(xfer_side_create(&side, spec, NULL), XFER_ERR_ARG);
  refit_expect_error("; there are ");
  memcpy(spec, "vllm:", 5);
  assert_int_equal(xfer_side_create(&side, spec, NULL), XFER_ERR_ARG);
  refit_expect_error("\" there; it has ");
}

static void test_expert_map_is_checked(void **state)
{
  const int32_t experts[] = {0, 1, 2, 1};
  const int32_t first[] = {0, 2, 4};
  const int32_t descending[] = {0, 3, 2};
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_side *side = NULL;

  (void)state;
  options.map_experts = experts;
  options.map_first = first;
  options.n_map = 2;
  assert_int_equal(refit_side(&side, "vllm:tp2,ep2", &options), XFER_OK);
  xfer_side_destroy(side);
  assert_int_equal(refit_side(&side, "vllm:tp4,ep4", &options), XFER_ERR_ARG);
  assert_int_equal(refit_side(&side, "vllm:tp2", &options), XFER_ERR_ARG);
  assert_int_equal(refit_side(&side, "vllm:tp2,ep2,round_robin", &options), XFER_ERR_ARG);
  assert_int_equal(xfer_side_create(&side, "full:", &options), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "takes no expert map"));
  options.n_map = 3;
  options.map_first = (const int32_t[]){0, 2, 4, 3}; /* the last is what may lie behind ep's */
  assert_int_equal(refit_side(&side, "vllm:tp2,ep2", &options), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "an expert map of 3 ranks, ep is 2"));
  options.n_map = 2;
  options.map_first = NULL;
  assert_int_equal(refit_side(&side, "vllm:tp2,ep2", &options), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "without its lists"));
  options.map_first = descending;
  assert_int_equal(refit_side(&side, "vllm:tp2,ep2", &options), XFER_ERR_ARG);

  char spec[300];
  options = (xfer_side_options)XFER_SIDE_OPTIONS_INIT;
  snprintf(spec, sizeof spec, "vllm:tp2,ep2,map=%s", refit_write("map.json", "[[0,1],[2,3]]"));
  assert_int_equal(refit_side(&side, spec, &options), XFER_OK);
  xfer_side_destroy(side);
  static const struct {
    const char *text, *word;
    xfer_status status;
  } maps[] = {
      {"[[0,1],[2,\"x\"]]", "entry 1 is no expert", XFER_ERR_IO},
      {"[[0,1,2,3]]", "map", XFER_ERR_ARG},
      {"{", "line 1", XFER_ERR_IO},
      {"{}", "an empty expert map", XFER_ERR_IO},
      {"[]", "want a list of a list", XFER_ERR_IO},
      {"{\"3x\":[[0,1],[2,3]]}", "is no layer", XFER_ERR_IO},
  };
  for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
    refit_write("map.json", maps[i].text);
    assert_int_equal(refit_side(&side, spec, &options), maps[i].status);
    print_message("%s: %s\n", maps[i].text, xfer_last_error());
    assert_non_null(strstr(xfer_last_error(), maps[i].word));
  }
  options.map_experts = experts;
  options.map_first = first;
  options.n_map = 2;
  refit_write("map.json", "[[0,1],[2,3]]");
  assert_int_equal(refit_side(&side, spec, &options), XFER_ERR_ARG);
  assert_non_null(strstr(xfer_last_error(), "or has one"));
}

static void test_patterns_are_checked(void **state)
{
  xfer_side *side = NULL;

  (void)state;
  assert_int_equal(refit_side(&side, "megatron:tp2", NULL), XFER_OK);
  assert_int_equal(xfer_side_rename(side, "a.*", "b.*.*"), XFER_ERR_ARG);
  assert_int_equal(xfer_side_rename(side, "", "x"), XFER_ERR_ARG);
  assert_int_equal(xfer_side_rename(side, "*********", "x"), XFER_ERR_ARG);
  assert_int_equal(xfer_side_ignore(side, NULL), XFER_ERR_ARG);
  assert_int_equal(xfer_side_give_whole(side, "*", 2), XFER_ERR_ARG);
  assert_int_equal(xfer_side_dtype(side, "*", (xfer_dtype)99), XFER_ERR_ARG);
  assert_int_equal(xfer_side_ignore(side, "*.rotary_emb.*"), XFER_OK);
  xfer_side_destroy(side);
}

/* Rank orders of one configuration, spelt out (Megatron-LM
 * tests/unit_tests/test_parallel_state.py). */
static void test_coordinates_of_a_rank(void **state)
{
  static const struct {
    const char *spec;
    int rank;
    const char *axis;
    int coordinate;
  } cases[] = {
      {"megatron:tp2,ep4,dp2", 3, "tp", 1},
      {"megatron:tp2,ep4,dp2", 3, "ep", 3},
      {"megatron:tp2,ep4,dp2", 3, "dp", 1},
      {"megatron:tp2,cp2,dp2,pp2", 13, "pp", 1},
      {"megatron:tp2,cp2,dp2,pp2", 13, "dp", 1},
      {"megatron:tp2,cp2,dp2,pp2", 13, "cp", 0},
      {"megatron:tp2,cp2,dp2,pp2", 13, "tp", 1},
      {"megatron:tp2,etp2,ep2,dp4", 5, "etp", 1},
      {"megatron:tp2,etp2,ep2,dp4", 5, "ep", 0},
      {"megatron:tp2,etp2,ep2,dp4", 5, "edp", 1},
      {"vllm:tp2,pp2,dp2,engines2", 13, "tp", 1},
      {"vllm:tp2,pp2,dp2,engines2", 13, "pp", 0},
      {"vllm:tp2,pp2,dp2,engines2", 13, "dp", 1},
      {"vllm:tp2,pp2,dp2,engines2", 13, "engine", 1},
      {"vllm:tp2,dp2,ep4", 3, "ep", 3},
      {"fsdp:dp4,tp2,replicate2,ep2", 13, "replicate", 1},
      {"fsdp:dp4,tp2,replicate2,ep2", 13, "dp", 2},
      {"fsdp:dp4,tp2,replicate2,ep2", 13, "ep", 0},
      {"fsdp:dp4,tp2,replicate2,ep2", 13, "edp", 1},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xfer_side *side = NULL;
    int coordinate = -1;

    print_message("%s rank %d %s\n", cases[i].spec, cases[i].rank, cases[i].axis);
    assert_int_equal(refit_side(&side, cases[i].spec, NULL), XFER_OK);
    assert_int_equal(xfer_side_coordinate(side, cases[i].axis, cases[i].rank, &coordinate),
                     XFER_OK);
    assert_int_equal(coordinate, cases[i].coordinate);
    coordinate = -7;
    assert_int_equal(xfer_side_coordinate(side, "xp", 0, &coordinate), XFER_ERR_ARG);
    assert_int_equal(xfer_side_coordinate(side, "tp", 1000, &coordinate), XFER_ERR_ARG);
    assert_int_equal(coordinate, -7); /* an output is written only on success */
    xfer_side_destroy(side);
  }
}

/* The error said "replicate" and "engine" of a side that has neither, and had no "attn_tp". */
static void test_an_unknown_axis_is_refused_with_those_of_the_side(void **state)
{
  static const struct {
    const char *spec, *error;
  } cases[] = {
      {"megatron:tp2", "\"megatron:tp2\" has no axis called \"xp\"; it has tp cp dp pp etp ep edp"},
      {"sglang:tp2", "\"sglang:tp2\" has no axis called \"xp\"; it has tp pp engine attn_tp moe_tp "
                     "ep edp"},
      {"fsdp:dp2", "\"fsdp:dp2\" has no axis called \"xp\"; it has tp dp replicate ep edp"},
      {"full", "\"full\" has no axis called \"xp\"; it has none"},
  };

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    xfer_side *side = NULL;
    int coordinate;

    assert_int_equal(refit_side(&side, cases[i].spec, NULL), XFER_OK);
    assert_int_equal(xfer_side_coordinate(side, "xp", 0, &coordinate), XFER_ERR_ARG);
    assert_string_equal(xfer_last_error(), cases[i].error);
    xfer_side_destroy(side);
  }
}

/* "tp2" with the value 2 was tp 22. */
static void test_an_items_name_without_its_number_is_wanted(void **state)
{
  static const struct {
    const char *name, *want;
  } cases[] = {
      {"tp2", "\"vllm:loaded\": \"tp2\" of item_names ends in a digit"},
      {"2", "\"vllm:loaded\": \"2\" of item_names ends in a digit"},
      {"tp4,pp", "\"vllm:loaded\": \"tp4,pp\" of item_names is not the name of one item"},
      {"loaded,tp", "\"vllm:loaded\": \"loaded,tp\" of item_names is not the name of one item"},
      {"dtype=bf16,tp4", "is not the name of one item"},
      {"vllm:tp", "is not the name of one item"},
      {"tp ", "no item \"tp \" there"},
      {"", "no item \"\" there"}};
  static const int32_t two[] = {2};
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_side *made = NULL;

  (void)state;
  options.item_values = two;
  options.n_items = 1;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    options.item_names = &cases[i].name;
    assert_int_equal(xfer_side_create(&made, "vllm:loaded", &options), XFER_ERR_ARG);
    refit_expect_error(cases[i].want);
  }
}

static void test_ranks_and_items_of_a_side_may_be_given_as_lists(void **state)
{
  static const int32_t ranks[] = {7, 3, 5, 1}, twice[] = {1, 2, 3, 1}, values[] = {4, 1};
  static const int32_t negative[] = {0, 1, -1, 2}, last[] = {0, 1, INT32_MAX, 2};
  static const char *const names[] = {"tp", "round_robin"}, *const in_spec[] = {"layers=2+2"};
  static const char *const no_name[] = {NULL};
  char long_name[200] = "";
  const char *const too_long = long_name;
  xfer_side_options options = XFER_SIDE_OPTIONS_INIT;
  xfer_side *made = NULL;
  int at = -1;

  (void)state;
  options.ranks = ranks;
  options.n_ranks = 4;
  options.item_names = names;
  options.item_values = values;
  options.n_items = 1;
  assert_int_equal(xfer_side_create(&made, "vllm:loaded", &options), XFER_OK);
  assert_int_equal(xfer_side_size(made), 4);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(xfer_side_coordinate(made, "tp", ranks[i], &at), XFER_OK);
    assert_int_equal(at, i);
  }
  assert_int_equal(xfer_side_coordinate(made, "tp", 0, &at), XFER_ERR_ARG);
  xfer_side_destroy(made);
  assert_int_equal(xfer_side_create(&made, "vllm:tp4,loaded", &options), XFER_ERR_ARG);
  refit_expect_error("twice");
  options.n_items = 2;
  assert_int_equal(xfer_side_create(&made, "vllm:loaded", &options), XFER_ERR_ARG);
  refit_expect_error("without ep");
  options.n_items = 1;
  options.ranks = twice;
  assert_int_equal(xfer_side_create(&made, "vllm:loaded", &options), XFER_ERR_ARG);
  refit_expect_error("\"vllm:loaded\": rank 1 is in the mesh twice");
  options.ranks = negative;
  assert_int_equal(xfer_side_create(&made, "vllm:loaded", &options), XFER_ERR_ARG);
  refit_expect_error("\"vllm:loaded\": rank -1");
  options.ranks = last;
  assert_int_equal(xfer_side_create(&made, "vllm:loaded", &options), XFER_ERR_OVERFLOW);
  refit_expect_error(
      "\"vllm:loaded\": rank 2147483647 at position 2 of the mesh is above 16777215");
  options.n_ranks = 3;
  assert_int_equal(xfer_side_create(&made, "vllm:loaded", &options), XFER_ERR_ARG);
  refit_expect_error("3 are listed");
  options.n_ranks = 4;
  options.first_rank = 7;
  assert_int_equal(xfer_side_create(&made, "vllm:loaded", &options), XFER_ERR_ARG);
  refit_expect_error("ranks are listed, and first_rank is 7 too");
  options.first_rank = 0;
  options.item_names = in_spec;
  assert_int_equal(xfer_side_create(&made, "vllm:loaded", &options), XFER_ERR_ARG);
  refit_expect_error("in the SPEC");
  options.item_names = no_name;
  assert_int_equal(xfer_side_create(&made, "vllm:loaded", &options), XFER_ERR_ARG);
  refit_expect_error("item 0 is NULL");
  options.item_names = names;
  options.item_values = negative + 2;
  assert_int_equal(xfer_side_create(&made, "vllm:loaded", &options), XFER_ERR_ARG);
  refit_expect_error("\"vllm:loaded\": item \"tp\" is -1");
  options.item_values = values;
  memset(long_name, 'x', sizeof long_name - 1);
  memcpy(long_name, "dtype=", 6);
  options.item_names = &too_long;
  assert_int_equal(xfer_side_create(&made, "vllm:loaded", &options), XFER_ERR_ARG);
  refit_expect_error("too long a name");
  options = (xfer_side_options)XFER_SIDE_OPTIONS_INIT;
  options.n_items = 1;
  assert_int_equal(xfer_side_create(&made, "vllm:tp2,loaded", &options), XFER_ERR_ARG);
  refit_expect_error("1 items without names");
  options.n_items = -1;
  assert_int_equal(xfer_side_create(&made, "vllm:tp2,loaded", &options), XFER_ERR_ARG);
  refit_expect_error("-1 items");
  options.n_items = 0;
  options.first_rank = -1;
  assert_int_equal(xfer_side_create(&made, "vllm:tp2,loaded", &options), XFER_ERR_ARG);
  refit_expect_error("first_rank is -1");
  options.first_rank = INT32_MAX;
  assert_int_equal(xfer_side_create(&made, "vllm:tp2,loaded", &options), XFER_ERR_ARG);
  refit_expect_error("first_rank is 2147483647");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_spec_gives_its_number_of_ranks),
      cmocka_unit_test(test_spec_that_is_wrong_is_refused_with_a_sentence),
      cmocka_unit_test(test_serving_side_must_say_what_its_kernels_did),
      cmocka_unit_test(test_options_that_contradict_each_other_are_refused),
      cmocka_unit_test(test_a_long_spec_leaves_room_for_what_is_wrong_with_it),
      cmocka_unit_test(test_expert_map_is_checked),
      cmocka_unit_test(test_patterns_are_checked),
      cmocka_unit_test(test_coordinates_of_a_rank),
      cmocka_unit_test(test_an_unknown_axis_is_refused_with_those_of_the_side),
      cmocka_unit_test(test_an_items_name_without_its_number_is_wanted),
      cmocka_unit_test(test_ranks_and_items_of_a_side_may_be_given_as_lists),
  };

  return cmocka_run_group_tests(tests, refit_files_begin, refit_files_end);
}
