/* Plans as text: every figure, tensor and move is there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plans_of.h"

enum { N_FIGURES = 24 };

/* Each figure has its own value, so that none can stand for another. */
static xfer_plan_report_data figures(void)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  uint64_t *at = &report.n_tensors;

  for (uint64_t i = 0; i < N_FIGURES; i++)
    at[i] = 101 + i;
  assert_int_equal(report.replicated_tensors, 100 + N_FIGURES);
  return report;
}

static const char *lane_of(const void *context, bool relay, bool send, size_t peer)
{
  assert_null(context);
  if (relay) return "direct";
  if (send && peer == 1) return NULL;
  return send ? "packed: no \"way\"" : "direct";
}

static const char *const names[] = {
    "n_tensors",         "n_classes",         "n_moves",       "payload_bytes",     "in_bytes",
    "self_bytes",        "zero_bytes",        "wire_bytes",    "out_bytes",         "n_send_peers",
    "n_recv_peers",      "broadcast_tensors", "direct_bytes",  "packed_bytes",      "n_rounds",
    "staging_bytes",     "window_bytes",      "bound_bytes",   "committed_version", "torn",
    "converted_tensors", "crossed_bytes",     "relayed_bytes", "replicated_tensors"};

static void test_the_summary_has_every_figure_and_peer(void **state)
{
  (void)state;
  const xfer_plan_report_data report = figures();
  tensor_list list = {.n = 0};
  char want[4096] = "plan of rank 1 of 3\n";
  char *text = NULL;
  xfi_moves *plan;

  add_line(&list, "w", 2, "f32[9,6] (3):S0 -> (3):S1");
  plan = plan_of(&list, 3, 1, &plain_options);
  assert_int_equal(xfi_moves_print(plan, &report, lane_of, NULL, &text, false), XFER_OK);
  for (int i = 0; i < N_FIGURES; i++)
    snprintf(want + strlen(want), 64, "  %-18s %d\n", names[i], 101 + i);
  strcat(want, "  from rank 0               2 moves               48 bytes, direct\n"
               "  from rank 2               2 moves               48 bytes, direct\n"
               "  to rank   0               2 moves               48 bytes, packed: no \"way\"\n"
               "  to rank   2               2 moves               48 bytes\n");
  assert_string_equal(text, want);
  xfi_free(text);
  xfi_moves_destroy(plan);
  free_tensors(&list);
}

/* What is printed of rank 0's plan for a tensor that it broadcasts. */
static char *text_of_broadcast(const char *line, int n_ranks, bool json)
{
  const xfer_plan_report_data report = figures();
  xfi_moves_options options = plain_options;
  tensor_list list = {.n = 0};
  char *text = NULL;
  xfi_moves *plan;

  options.lane = XFER_LANE_BROADCAST;
  add_line(&list, "w", 1, line);
  plan = plan_of(&list, n_ranks, 0, &options);
  assert_int_equal(xfi_moves_print(plan, &report, lane_of, NULL, &text, json), XFER_OK);
  xfi_moves_destroy(plan);
  free_tensors(&list);
  return text;
}

/* A broadcast has no bytes for each peer; and nobody reads a hundred thousand lines. */
static void test_peers_of_broadcasts_and_very_many_peers(void **state)
{
  (void)state;
  char *text = text_of_broadcast("u8[2] (1):R -> (10003)@1-10003:R", 10004, false);

  assert_non_null(
      strstr(text, "  to rank   1               1 moves           by broadcast, packed"));
  assert_non_null(strstr(text, "  to rank   10000 "));
  assert_null(strstr(text, "  to rank   10001 "));
  assert_non_null(strstr(text, "  to 3 more ranks\n"));
  xfi_free(text);
}

static void test_json_has_every_figure_tensor_and_move(void **state)
{
  (void)state;
  static const char tail[] =
      ",\n\"peers\":[\n{\"from\":0,\"bytes\":5,\"lane\":\"direct\"}]"
      ",\n\"tensors\":[\n{\"name\":\"a \\\"b\\\\\\u000a\",\"dtype\":\"bf16\",\"shape\":[3,2]},"
      "\n{\"name\":\"s\",\"dtype\":\"u8\",\"shape\":[]}],\n\"moves\":["
      "\n{\"tensor\":0,\"src\":1,\"dst\":1,\"lo\":[2,0],\"length\":[1,2],\"src_local\":[0,0],"
      "\"dst_local\":[1,0],\"broadcast\":false},"
      "\n{\"tensor\":0,\"src\":0,\"dst\":1,\"lo\":[0,0],\"length\":[1,2],\"src_local\":[0,0],"
      "\"dst_local\":[0,0],\"broadcast\":false},"
      "\n{\"tensor\":1,\"src\":0,\"dst\":1,\"lo\":[],\"length\":[],\"src_local\":[],"
      "\"dst_local\":[],\"broadcast\":false}]}\n";
  const xfer_plan_report_data report = figures();
  tensor_list list = {.n = 0};
  char want[4096] = "{\"rank\":1,\"n_ranks\":2";
  char *text = NULL;
  xfi_moves *plan;

  add_line(&list, "a \"b\\\n", 1, "bf16[3,2] (2):S0 -> (2)@1,0:S0f2");
  add_line(&list, "s", 1, "u8[] (1):R -> (1)@1:R");
  plan = plan_of(&list, 2, 1, &plain_options);
  assert_int_equal(xfi_moves_print(plan, &report, lane_of, NULL, &text, true), XFER_OK);
  print_message("%s\n", text);
  for (int i = 0; i < N_FIGURES; i++)
    snprintf(want + strlen(want), 64, ",\n\"%s\":%d", names[i], 101 + i);
  strcat(want, tail);
  assert_string_equal(text, want);
  xfi_free(text);
  xfi_moves_destroy(plan);
  free_tensors(&list);
}

static void test_json_of_a_source_and_of_a_broadcast(void **state)
{
  (void)state;
  char *text = text_of_broadcast("u8[2] (1):R -> (2)@1-2:R", 3, true);

  assert_non_null(strstr(text, "\"peers\":[\n{\"to\":1,\"bytes\":0,\"lane\":\"packed: no "
                               "\\\"way\\\"\"},\n{\"to\":2,\"bytes\":0,\"lane\":null}]"));
  assert_non_null(strstr(text, "\"moves\":[\n{\"tensor\":0,\"src\":0,\"dst\":1,\"lo\":[0],"
                               "\"length\":[2],\"src_local\":[0],\"dst_local\":[0],"
                               "\"broadcast\":true},\n{\"tensor\":0,\"src\":0,\"dst\":2,"));
  xfi_free(text);
}

static void test_json_says_what_becomes_of_elements(void **state)
{
  (void)state;
  const xfer_plan_report_data report = figures();
  tensor_list list = {.n = 0};
  char *text = NULL;
  xfi_moves *plan;

  add_layouts(&list, "w", 1, layout_of("f32[9,6] (3):S0"), layout_of("f8e4m3[9,6] (3):S1"));
  list.at[0].conversion = xfer_convert_scale(0.5F);
  plan = plan_of(&list, 3, 1, &plain_options);
  assert_int_equal(xfi_moves_print(plan, &report, lane_of, NULL, &text, true), XFER_OK);
  assert_non_null(strstr(text, "{\"name\":\"w\",\"dtype\":\"f32\",\"shape\":[9,6],"
                               "\"conversion\":\"scale 0.5\",\"to\":\"f8e4m3\"}"));
  xfi_free(text);
  xfi_moves_destroy(plan);
  free_tensors(&list);
}

static void test_json_of_an_empty_plan(void **state)
{
  (void)state;
  const xfer_plan_report_data report = figures();
  tensor_list list = {.n = 0};
  char *text = NULL;
  xfi_moves *plan = plan_of(&list, 1, 0, &plain_options);

  assert_int_equal(xfi_moves_print(plan, &report, lane_of, NULL, &text, true), XFER_OK);
  assert_non_null(strstr(
      text, ",\n\"replicated_tensors\":124,\n\"peers\":[],\n\"tensors\":[],\n\"moves\":[]}\n"));
  xfi_free(text);
  xfi_moves_destroy(plan);
}

/* ---- failed allocations ---- */

static bool as_json;

static xfer_status print_again(void *context)
{
  const xfer_plan_report_data report = figures();
  char *text = NULL;
  xfer_status st = xfi_moves_print(context, &report, lane_of, NULL, &text, as_json);

  assert_true((text != NULL) == (st == XFER_OK));
  xfi_free(text);
  return st;
}

static void test_print_survives_each_failed_allocation(void **state)
{
  (void)state;
  tensor_list list = {.n = 0};
  xfi_moves *plan;

  add_line(&list, "w", 2, "f32[9,6] (3):S0 -> (3):S1");
  plan = plan_of(&list, 3, 1, &plain_options);
  as_json = false;
  assert_true(fail_each_allocation(print_again, plan) > 3);
  as_json = true;
  assert_true(fail_each_allocation(print_again, plan) > 3);
  xfi_moves_destroy(plan);
  free_tensors(&list);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_summary_has_every_figure_and_peer),
      cmocka_unit_test(test_peers_of_broadcasts_and_very_many_peers),
      cmocka_unit_test(test_json_has_every_figure_tensor_and_move),
      cmocka_unit_test(test_json_of_a_source_and_of_a_broadcast),
      cmocka_unit_test(test_json_says_what_becomes_of_elements),
      cmocka_unit_test(test_json_of_an_empty_plan),
      cmocka_unit_test(test_print_survives_each_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
