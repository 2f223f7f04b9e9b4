/* What public functions refuse before they do anything: NULL where something must be, numbers past
 * their range, fields that are reserved. Each with a text. */
#include "refit_files.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <xfer/exchange.h>
#include <xfer/refit.h>
#include <xfer/xfer.h>

/* The call answers `status`, with a text that has `words`. */
#define REFUSED_AS(status, words, call)                                                            \
  do {                                                                                             \
    const xfer_status answer = (call);                                                             \
    if (answer != (status) || strstr(xfer_last_error(), words) == NULL)                            \
      fail_msg("%s: %s: %s", #call, xfer_status_name(answer), xfer_last_error());                  \
  } while (0)
#define REFUSED(words, call) REFUSED_AS(XFER_ERR_ARG, words, call)

/* "xfer_mesh_create: mesh is NULL" */
static bool names_null(const char *call)
{
  const char *text = xfer_last_error();
  const size_t n = strcspn(call, "(");
  const char *end = strstr(text, " is NULL");

  return strncmp(text, call, n) == 0 && text[n] == ':' && end != NULL && end[8] == '\0';
}

#define REFUSED_NULL(call)                                                                         \
  do {                                                                                             \
    REFUSED(" is NULL", call);                                                                     \
    if (!names_null(#call)) fail_msg("%s: %s", #call, xfer_last_error());                          \
  } while (0)

static xfer_layout *src, *dst;
static xfer_plan *plan; /* simulated */
static xfer_comm *comm; /* of one rank */
static xfer_model *model;
static xfer_side *train, *gen;
static xfer_refit *refit;
static xfer_locals *locals;

static int begin(void **state)
{
  bool ok;

  if (refit_files_begin(state) != 0) return 1;
  ok = xfer_problem_parse(&src, &dst, "f32[4,4] (2)@0-1:S0 -> (2)@0-1:S1") == XFER_OK;
  const xfer_tensor tensor = {.name = "w", .src = src, .dst = dst};
  ok = ok && xfer_plan_simulate(&plan, 2, 0, &tensor, 1, NULL) == XFER_OK;
  ok = ok && xfer_comm_create_local(&comm, 1) == XFER_OK;
  ok = ok && xfer_model_load(&model, refit_write("table.json", REFIT_DENSE), NULL) == XFER_OK;
  ok = ok && xfer_side_create(&train, "megatron:tp2", NULL) == XFER_OK;
  ok = ok && xfer_side_create(&gen, "vllm:tp2,loaded", NULL) == XFER_OK;
  ok = ok && xfer_refit_create(&refit, model, train, gen) == XFER_OK;
  ok = ok && xfer_locals_create(&locals, refit, 0) == XFER_OK;
  if (!ok) print_message("%s\n", xfer_last_error());
  return ok ? 0 : 1;
}

static int end(void **state)
{
  xfer_locals_destroy(locals);
  xfer_refit_destroy(refit);
  xfer_side_destroy(gen);
  xfer_side_destroy(train);
  xfer_model_destroy(model);
  xfer_comm_destroy(comm);
  xfer_plan_destroy(plan);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  return refit_files_end(state);
}

static void test_layouts_refuse_null_and_what_is_not_there(void **state)
{
  const xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  const xfer_boxes_desc boxes = XFER_BOXES_DESC_INIT;
  const int one = 1;
  const int64_t index[2] = {0, 4};
  const int64_t first[2] = {0, 1};
  const int64_t past[2] = {0, 2};
  int64_t shape[2] = {4, 4};
  xfer_boxes_desc own = XFER_BOXES_DESC_INIT;
  xfer_mesh *mesh;
  xfer_layout *layout;
  xfer_dtype dtype;
  xfer_run run;
  xfer_owner owner;
  size_t n;

  (void)state;
  REFUSED_NULL(xfer_mesh_create(NULL, &one, 1, NULL));
  REFUSED_NULL(xfer_mesh_create(&mesh, NULL, 1, NULL));
  REFUSED_NULL(xfer_dtype_parse(NULL, "f32"));
  REFUSED_NULL(xfer_dtype_parse(&dtype, NULL));
  REFUSED_NULL(xfer_layout_create(NULL, &desc));
  REFUSED_NULL(xfer_layout_create(&layout, NULL));
  REFUSED_NULL(xfer_layout_create_boxes(NULL, &boxes));
  REFUSED_NULL(xfer_layout_create_boxes(&layout, NULL));
  own.dtype = XFER_U8;
  own.n_dims = 1;
  own.shape = shape;
  own.first = first;
  REFUSED("boxes at NULL", xfer_layout_create_boxes(&layout, &own));
  own.n_dims = XFER_MAX_DIMS + 1;
  REFUSED("dims", xfer_layout_create_boxes(&layout, &own));
  REFUSED("dims", xfer_layout_create_flat(&layout, &own));
  REFUSED_NULL(xfer_layout_create_flat(NULL, &boxes));
  REFUSED_NULL(xfer_layout_create_flat(&layout, NULL));
  REFUSED("flat ranges: bounds is NULL", xfer_layout_create_flat(&layout, &boxes));
  own.n_dims = 0;
  own.first = NULL;
  own.bounds = past;
  REFUSED_AS(XFER_ERR_UNSUPPORTED, "past the end of a scalar",
             xfer_layout_create_flat(&layout, &own));
  REFUSED_NULL(xfer_layout_local_shape(NULL, 0, shape));
  REFUSED_NULL(xfer_layout_local_shape(src, 0, NULL));
  REFUSED("not in the mesh", xfer_layout_local_shape(src, 2, shape));
  REFUSED_NULL(xfer_layout_runs(NULL, 0, 0, &run, 1, &n));
  REFUSED_NULL(xfer_layout_runs(src, 0, 0, NULL, 1, &n));
  REFUSED_NULL(xfer_layout_runs(src, 0, 0, &run, 1, NULL));
  REFUSED("dim", xfer_layout_runs(src, 0, 2, &run, 1, &n));
  REFUSED("dim", xfer_layout_runs(src, 0, -3, &run, 1, &n));
  REFUSED_NULL(xfer_layout_boxes(NULL, 0, shape, 0, &n));
  REFUSED_NULL(xfer_layout_boxes(src, 0, NULL, 1, &n));
  REFUSED_NULL(xfer_layout_boxes(src, 0, shape, 0, NULL));
  REFUSED_NULL(xfer_layout_owners(NULL, index, &owner, 1, &n));
  REFUSED_NULL(xfer_layout_owners(src, NULL, &owner, 1, &n));
  REFUSED_NULL(xfer_layout_owners(src, index, NULL, 1, &n));
  REFUSED_NULL(xfer_layout_owners(src, index, &owner, 1, NULL));
  REFUSED("index 4 lies outside the size of 4", xfer_layout_owners(src, index, &owner, 1, &n));
  assert_int_equal(xfer_layout_local_bytes(NULL, 0), 0);
  REFUSED_NULL(xfer_layout_global_index(NULL, 0, 0, shape));
  REFUSED_NULL(xfer_layout_global_index(src, 0, 0, NULL));
  REFUSED("not in the mesh", xfer_layout_global_index(src, 2, 0, shape));
  REFUSED("element -1 of rank 0, whose part has 8", xfer_layout_global_index(src, 0, -1, shape));
  REFUSED("element 8 of rank 0, whose part has 8", xfer_layout_global_index(src, 0, 8, shape));
  REFUSED_NULL(xfer_layout_parse(NULL, "f32[4] (1):R"));
  REFUSED_NULL(xfer_layout_parse(&layout, NULL));
  REFUSED_NULL(xfer_problem_parse(NULL, &layout, "f32[4] (1):R -> (1):R"));
  REFUSED_NULL(xfer_problem_parse(&layout, NULL, "f32[4] (1):R -> (1):R"));
  REFUSED_NULL(xfer_problem_parse(&layout, &layout, NULL));
}

static int no_row(void *context, int rank, const xfer_plan_report_data *report,
                  const xfer_traffic *from, size_t n)
{
  (void)context;
  (void)rank;
  (void)report;
  (void)from;
  (void)n;
  return 0;
}

static xfer_layout *own_of_one_dim(void)
{
  xfer_layout *made = NULL;

  assert_int_equal(xfer_layout_parse(&made, "f32[4] (2):S0"), XFER_OK);
  return made;
}

static void test_plans_refuse_null_and_what_is_not_there(void **state)
{
  const xfer_tensor tensor = {.name = "w", .src = src, .dst = dst};
  const xfer_tensor nameless = {.src = src, .dst = dst};
  const xfer_tensor one_sided = {.name = "w", .src = src};
  const int64_t bounds[2] = {0, 1};
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_layout *own = NULL;
  xfer_layout *other = own_of_one_dim();
  char long_name[500] = "";
  xfer_plan *made = NULL;
  xfer_move move;
  xfer_digest digest;
  char *text;
  int over;

  (void)state;
  REFUSED_NULL(xfer_plan_create(&made, NULL, &tensor, 1, NULL));
  REFUSED_NULL(xfer_plan_create(NULL, comm, &tensor, 1, NULL));
  REFUSED_NULL(xfer_plan_create(&made, comm, NULL, 1, NULL));
  REFUSED_NULL(xfer_plan_simulate(NULL, 2, 0, &tensor, 1, NULL));
  REFUSED("rank 2 of 2", xfer_plan_simulate(&made, 2, 2, &tensor, 1, NULL));
  REFUSED("rank -1 of 2", xfer_plan_simulate(&made, 2, -1, &tensor, 1, NULL));
  REFUSED_NULL(xfer_plan_simulate(&made, 2, 0, NULL, 1, NULL));
  REFUSED_AS(XFER_ERR_OVERFLOW, "1073741824 tensors, more than the 1073741823",
             xfer_plan_simulate(&made, 2, 0, &tensor, 1 << 30, NULL));
  REFUSED("has no name", xfer_plan_simulate(&made, 2, 0, &nameless, 1, NULL));
  REFUSED("both layouts", xfer_plan_simulate(&made, 2, 0, &one_sided, 1, NULL));
  desc.dtype = XFER_U8;
  desc.n_dims = 1;
  desc.shape = &bounds[1];
  desc.first = bounds; /* one box */
  desc.bounds = bounds;
  assert_int_equal(xfer_layout_create_boxes(&own, &desc), XFER_OK);
  const xfer_tensor of_own_boxes = {.name = "w", .src = own, .dst = own};
  REFUSED("every rank's boxes", xfer_plan_simulate(&made, 2, 0, &of_own_boxes, 1, NULL));
  xfer_layout_destroy(own);
  assert_int_equal(xfer_problem_format(NULL, 8, src, dst), strlen("f32[4,4] (2):S0 -> (2):S1"));
  memset(long_name, 'x', sizeof long_name - 1);
  const xfer_tensor long_named = {.name = long_name, .src = src, .dst = other};
  REFUSED_AS(XFER_ERR_SHAPE, "the source has 2 dims, the destination 1",
             xfer_plan_simulate(&made, 2, 0, &long_named, 1, NULL));
  xfer_layout_destroy(other);
  REFUSED_NULL(xfer_plan_traffic(2, &tensor, 1, NULL, NULL, NULL));
  REFUSED_AS(XFER_ERR_OVERFLOW, "2147483647 ranks, more than the 16777216",
             xfer_plan_simulate(&made, INT_MAX, 0, &tensor, 1, NULL));
  REFUSED_AS(XFER_ERR_OVERFLOW, "16777217 ranks",
             xfer_plan_traffic((1 << 24) + 1, &tensor, 1, NULL, no_row, NULL));
  REFUSED_AS(XFER_ERR_STATE, "a simulated plan has no runs", xfer_plan_run(plan, 1, NULL));
  REFUSED_AS(XFER_ERR_STATE, "a simulated plan has no runs", xfer_plan_refuse(plan, "no"));
  REFUSED_AS(XFER_ERR_STATE, "a simulated plan has no runs", xfer_plan_wait(plan, 0));
  REFUSED_AS(XFER_ERR_STATE, "a simulated plan has no runs", xfer_plan_test(plan, &over));
  REFUSED("traffic of 0 ranks", xfer_plan_traffic(0, &tensor, 1, NULL, no_row, NULL));
  REFUSED_NULL(xfer_plan_bind(NULL, 0, NULL, NULL));
  REFUSED_NULL(xfer_plan_commit(NULL));
  REFUSED_NULL(xfer_plan_run(NULL, 1, NULL));
  REFUSED_NULL(xfer_plan_wait(NULL, 0));
  REFUSED_NULL(xfer_plan_test(NULL, &over));
  REFUSED_NULL(xfer_plan_test(plan, NULL));
  REFUSED_NULL(xfer_plan_release(NULL));
  REFUSED_NULL(xfer_plan_digest(NULL, &digest, 1, XFER_PLAN_SRC, NULL));
  REFUSED_NULL(xfer_plan_check_replicas(NULL, NULL));
  REFUSED_NULL(xfer_plan_report(plan, NULL));
  REFUSED_NULL(xfer_plan_move_get(plan, 0, NULL));
  REFUSED("past the last", xfer_plan_move_get(plan, 100, &move));
  REFUSED_NULL(xfer_plan_print(plan, NULL, 0));
  REFUSED_NULL(xfer_plan_print(NULL, &text, 0));
  REFUSED_AS(XFER_ERR_STATE, "simulated", xfer_plan_commit(plan));
  REFUSED_AS(XFER_ERR_STATE, "simulated", xfer_plan_release(plan));
  REFUSED_AS(XFER_ERR_STATE, "simulated", xfer_plan_bind(plan, 0, NULL, NULL));
  REFUSED_AS(XFER_ERR_STATE, "simulated", xfer_plan_digest(plan, &digest, 1, XFER_PLAN_SRC, NULL));
  REFUSED_AS(XFER_ERR_STATE, "simulated", xfer_plan_check_replicas(plan, NULL));
  assert_null(made);
}

/* Each until it is bound rightly. */
static void test_a_commit_says_why_any_bind_failed(void **state)
{
  float memory[4][16];
  const xfer_view views[] = {xfer_view_dense(memory[0]), xfer_view_dense(memory[1]),
                             xfer_view_dense(memory[2]), xfer_view_dense(memory[3])};
  xfer_view bad = views[0];
  xfer_layout *whole[2];
  xfer_plan *made = NULL;

  (void)state;
  assert_int_equal(xfer_problem_parse(&whole[0], &whole[1], "f32[4,4] (1):R -> (1):R"), XFER_OK);
  const xfer_tensor tensors[] = {{"one", whole[0], whole[1], {0}},
                                 {"two", whole[0], whole[1], {0}}};
  assert_int_equal(xfer_plan_create(&made, comm, tensors, 2, NULL), XFER_OK);
  bad.kind = 9;
  REFUSED("tensor \"two\"", xfer_plan_bind(made, 1, &views[2], &bad));
  REFUSED("tensor \"one\"", xfer_plan_bind(made, 0, &bad, &views[1]));
  REFUSED("tensor \"one\"", xfer_plan_commit(made));
  assert_int_equal(xfer_plan_bind(made, 0, &views[0], &views[1]), XFER_OK);
  REFUSED("tensor \"two\"", xfer_plan_commit(made));
  assert_int_equal(xfer_plan_bind(made, 1, NULL, NULL), XFER_OK);
  REFUSED_AS(XFER_ERR_STATE, "is not bound", xfer_plan_commit(made));
  assert_int_equal(xfer_plan_bind(made, 1, &views[2], &views[3]), XFER_OK);
  assert_int_equal(xfer_plan_commit(made), XFER_OK);
  xfer_plan_destroy(made);
  xfer_layout_destroy(whole[0]);
  xfer_layout_destroy(whole[1]);
}

/* Its text says nothing of a bind, which the call does not have; also if its plan is kept. */
static void test_a_call_without_a_view_names_the_view(void **state)
{
  float memory[2][16] = {{1}, {0}};
  const xfer_view from = xfer_view_dense(memory[0]), to = xfer_view_dense(memory[1]);
  xfer_layout *whole[2];

  (void)state;
  assert_int_equal(xfer_problem_parse(&whole[0], &whole[1], "f32[4,4] (1):R -> (1):R"), XFER_OK);
  for (int i = 0; i < 2; i++) {
    REFUSED_AS(XFER_ERR_STATE,
               "xfer_redistribute: rank 0 has a part of the source, and src_view is NULL",
               xfer_redistribute(comm, whole[0], NULL, whole[1], &to, NULL));
    REFUSED_AS(XFER_ERR_STATE,
               "xfer_redistribute: rank 0 has a part of the destination, and dst_view is NULL",
               xfer_redistribute(comm, whole[0], &from, whole[1], NULL, NULL));
    assert_int_equal(xfer_redistribute(comm, whole[0], &from, whole[1], &to, NULL), XFER_OK);
    assert_true(memory[1][0] == 1);
    memory[1][0] = 0;
  }
  xfer_layout_destroy(whole[0]);
  xfer_layout_destroy(whole[1]);
}

static int no_gather(void *context, void *all, const void *mine, size_t n_bytes)
{
  (void)context;
  (void)all;
  (void)mine;
  (void)n_bytes;
  return 1;
}

static void test_comms_refuse_null_and_what_is_not_there(void **state)
{
  xfer_comm *made = NULL;
  xfer_operation operation = xfer_operation_bytes(1, 0, 4);
  const xfer_operation to_nobody = xfer_operation_bytes(1, 1, 4);
  const xfer_view view = xfer_view_dense(&made);
  xfer_plan *exchange = NULL;
  char byte = 0;

  (void)state;
  REFUSED_NULL(xfer_comm_create_local(NULL, 1));
  REFUSED("0 ranks", xfer_comm_create_local(&made, 0));
  REFUSED("-1 ranks", xfer_comm_create_local(&made, -1));
  REFUSED_NULL(xfer_comm_create_host(NULL, no_gather, NULL, 0, 1));
  REFUSED_NULL(xfer_comm_create_host(&made, NULL, NULL, 0, 1));
  REFUSED("rank 1 of 1", xfer_comm_create_host(&made, no_gather, NULL, 1, 1));
  REFUSED("rank -1 of 1", xfer_comm_create_host(&made, no_gather, NULL, -1, 1));
  REFUSED("rank 0 of 0", xfer_comm_create_host(&made, no_gather, NULL, 0, 0));
  REFUSED_NULL(xfer_comm_set_timeout(NULL, 1));
  REFUSED("ms", xfer_comm_set_timeout(comm, (uint64_t)INT64_MAX + 1));
  REFUSED_NULL(xfer_comm_check(NULL));
  assert_int_equal(xfer_comm_check(comm), XFER_OK);
  REFUSED_NULL(xfer_comm_all_gather(NULL, &byte, &byte, 1));
  REFUSED_NULL(xfer_comm_register(NULL, &byte));
  REFUSED_NULL(xfer_comm_unregister(NULL, &byte));
  REFUSED("not registered", xfer_comm_unregister(comm, &byte));
  REFUSED_NULL(xfer_redistribute(NULL, src, &view, dst, &view, NULL));
  REFUSED_NULL(xfer_exchange(NULL, NULL, NULL, 0, NULL, NULL, 0, NULL));
  REFUSED_NULL(xfer_plan_create_exchange(&exchange, NULL, NULL, 0, NULL, 0, NULL));
  REFUSED_NULL(xfer_plan_create_exchange(&exchange, comm, NULL, 1, NULL, 0, NULL));
  REFUSED("operation 1", xfer_plan_create_exchange(&exchange, comm, &to_nobody, 1, NULL, 0, NULL));
  operation.reserved = 1;
  REFUSED("reserved", xfer_plan_create_exchange(&exchange, comm, &operation, 1, NULL, 0, NULL));
  REFUSED_NULL(xfer_plan_bind_exchange(NULL, &view, &view));
  REFUSED("no exchange", xfer_plan_bind_exchange(plan, &view, &view));
  assert_null(made);
  assert_null(exchange);
}

static void test_models_and_sides_refuse_null_and_what_is_not_there(void **state)
{
  xfer_rules *rules;
  xfer_model *made = NULL;
  xfer_side *side = NULL;
  xfer_refit *joined = NULL;
  xfer_model_options options = XFER_MODEL_OPTIONS_INIT;
  const char *const half_a_rename[2] = {"a", NULL};
  const char *const table = refit_path("table.json");
  const int64_t shape[1] = {-1};
  int coordinate;

  (void)state;
  REFUSED_NULL(xfer_rules_load(NULL, "rules"));
  REFUSED_NULL(xfer_rules_load(&rules, NULL));
  REFUSED_NULL(xfer_model_load(NULL, table, NULL));
  REFUSED_NULL(xfer_model_load(&made, NULL, NULL));
  options.layers_begin = -1;
  REFUSED("layers_begin is -1 and layers_end 0", xfer_model_load(&made, table, &options));
  options.layers_begin = 0;
  options.experts_begin = 2;
  options.experts_end = 2;
  REFUSED("experts_begin is 2 and experts_end 2", xfer_model_load(&made, table, &options));
  options.experts_begin = options.experts_end = 0;
  options.reserved = 1;
  assert_int_equal(xfer_model_load(&made, table, &options), XFER_ERR_UNSUPPORTED);
  options.reserved = 0;
  options.n_renames = 1;
  REFUSED("1 renames", xfer_model_load(&made, table, &options));
  options.renames = half_a_rename;
  REFUSED("rename 0 is NULL", xfer_model_load(&made, table, &options));
  REFUSED_NULL(xfer_model_add(NULL, "a", XFER_F32, shape, 1));
  REFUSED_NULL(xfer_model_add(model, NULL, XFER_F32, shape, 1));
  REFUSED_NULL(xfer_model_add(model, "a", XFER_F32, NULL, 1));
  REFUSED("dims", xfer_model_add(model, "a", XFER_F32, shape, XFER_MAX_DIMS + 1));
  REFUSED_AS(XFER_ERR_STATE, "a refit was made", xfer_model_add(model, "a", XFER_F32, shape, 0));
  assert_int_equal(xfer_model_load(&made, table, NULL), XFER_OK);
  REFUSED("pattern", xfer_model_add(made, "a.{layer}", XFER_F32, shape, 0));
  REFUSED("without a name", xfer_model_add(made, "", XFER_F32, shape, 0));
  REFUSED("dtype", xfer_model_add(made, "a", (xfer_dtype)99, shape, 0));
  REFUSED("size -1", xfer_model_add(made, "a", XFER_F32, shape, 1));
  xfer_model_destroy(made);
  REFUSED_NULL(xfer_side_create(NULL, "hf:tp2", NULL));
  REFUSED_NULL(xfer_side_create(&side, NULL, NULL));
  REFUSED_NULL(xfer_side_coordinate(NULL, "tp", 0, &coordinate));
  REFUSED_NULL(xfer_side_coordinate(train, NULL, 0, &coordinate));
  REFUSED_NULL(xfer_side_coordinate(train, "tp", 0, NULL));
  REFUSED_NULL(xfer_side_rename(train, "a", NULL));
  REFUSED_NULL(xfer_side_ignore(train, NULL));
  REFUSED_NULL(xfer_side_ignore(NULL, "a"));
  REFUSED_NULL(xfer_side_place(NULL, "a", 0));
  REFUSED_NULL(xfer_side_give_whole(NULL, "a", 0));
  REFUSED("none of the side's", xfer_side_give_whole(train, "a", 7));
  REFUSED("element type", xfer_side_dtype(train, "a", (xfer_dtype)99));
  REFUSED_AS(XFER_ERR_STATE, "a refit was made", xfer_side_ignore(train, "a"));
  REFUSED_NULL(xfer_refit_create(NULL, model, train, gen));
  REFUSED_NULL(xfer_refit_create(&joined, NULL, train, gen));
  REFUSED("neither side", xfer_refit_create(&joined, model, NULL, NULL));
  assert_null(joined);
  assert_null(side);
}

static void test_refits_and_locals_refuse_null_and_what_is_not_there(void **state)
{
  xfer_refit_tensor tensor;
  xfer_refit_report_data report;
  xfer_locals *made = NULL;
  xfer_local local;
  xfer_local_part part;
  xfer_view views[2];
  const int64_t shape[1] = {1};
  size_t n = 0;
  uint32_t has;

  (void)state;
  (void)xfer_refit_tensors(refit, &n);
  REFUSED_NULL(xfer_refit_tensor_get(NULL, 0, &tensor));
  REFUSED_NULL(xfer_refit_tensor_get(refit, 0, NULL));
  REFUSED("no tensor", xfer_refit_tensor_get(refit, n, &tensor));
  REFUSED_NULL(xfer_refit_report(NULL, &report));
  REFUSED_NULL(xfer_refit_report(refit, NULL));
  REFUSED_NULL(xfer_locals_create(NULL, refit, 0));
  REFUSED_NULL(xfer_locals_create(&made, NULL, 0));
  REFUSED("rank -1", xfer_locals_create(&made, refit, -1));
  REFUSED_NULL(xfer_locals_get(NULL, 0, &local));
  REFUSED_NULL(xfer_locals_get(locals, 0, NULL));
  REFUSED("", xfer_locals_get(locals, xfer_locals_count(locals), &local));
  REFUSED_NULL(xfer_locals_part_get(NULL, 0, 0, &part));
  REFUSED_NULL(xfer_locals_part_get(locals, 0, 0, NULL));
  REFUSED("", xfer_locals_part_get(locals, xfer_locals_count(locals), 0, &part));
  REFUSED("", xfer_locals_part_get(locals, 0, 1000, &part));
  REFUSED_NULL(xfer_locals_give(NULL, XFER_REFIT_TRAIN, "a", XFER_F32, &n, shape, NULL, 1));
  REFUSED_NULL(xfer_locals_give(locals, XFER_REFIT_TRAIN, NULL, XFER_F32, &n, shape, NULL, 1));
  REFUSED_NULL(xfer_locals_give(locals, XFER_REFIT_TRAIN, "a", XFER_F32, &n, NULL, NULL, 1));
  REFUSED("side 9",
          xfer_locals_give(locals, (xfer_refit_side)9, "a", XFER_F32, &n, shape, NULL, 1));
  REFUSED("-1 dims", xfer_locals_give(locals, XFER_REFIT_GEN, "a", XFER_F32, &n, shape, NULL, -1));
  REFUSED_NULL(xfer_locals_view(NULL, 0, &views[0], &views[1], &has));
  REFUSED_NULL(xfer_locals_view(locals, 0, NULL, &views[1], &has));
  REFUSED_NULL(xfer_locals_view(locals, 0, &views[0], NULL, &has));
  REFUSED_NULL(xfer_locals_view(locals, 0, &views[0], &views[1], NULL));
  REFUSED("no tensor", xfer_locals_view(locals, n, &views[0], &views[1], &has));
  REFUSED_NULL(xfer_locals_bind(NULL, plan));
  REFUSED_NULL(xfer_locals_bind(locals, NULL));
  REFUSED_NULL(xfer_locals_take_misc(NULL, NULL, NULL));
  REFUSED_NULL(xfer_locals_wait(NULL, plan, 0));
  REFUSED_NULL(xfer_locals_wait(locals, NULL, 0));
  assert_null(made);
}

/* One rank has all of it, before and after. */
static xfer_refit *refit_of(const char *table)
{
  xfer_model *of = NULL;
  xfer_side *whole = NULL;
  xfer_refit *made = NULL;

  assert_int_equal(xfer_model_load(&of, refit_write("of.json", table), NULL), XFER_OK);
  assert_int_equal(xfer_side_create(&whole, "full", NULL), XFER_OK);
  assert_int_equal(xfer_refit_create(&made, of, whole, whole), XFER_OK);
  xfer_side_destroy(whole);
  xfer_model_destroy(of);
  return made;
}

static xfer_locals *list_of(const xfer_refit *of, int rank, void *memory)
{
  xfer_locals *list = NULL;
  xfer_local local;

  assert_int_equal(xfer_locals_create(&list, of, rank), XFER_OK);
  for (size_t i = 0; i < xfer_locals_count(list); i++) {
    assert_int_equal(xfer_locals_get(list, i, &local), XFER_OK);
    assert_int_equal(xfer_locals_give(list, (xfer_refit_side)local.side, local.name,
                                      (xfer_dtype)local.dtype, memory, local.shape, NULL,
                                      local.n_dims),
                     XFER_OK);
  }
  return list;
}

/* Of another plan the parts may be larger than what was handed in. */
static void test_a_list_is_bound_to_a_plan_of_its_tensors_and_its_rank(void **state)
{
  static char memory[64];
  xfer_refit *small = refit_of(REFIT_TABLE("", REFIT_N("a.weight", "[2]")));
  xfer_refit *large = refit_of(REFIT_TABLE("", REFIT_N("a.weight", "[3]")));
  xfer_locals *own = list_of(small, 0, memory), *others = list_of(large, 0, memory);
  xfer_locals *none = list_of(small, 1, memory);
  xfer_plan *of_small = NULL;
  size_t n = 0;
  const xfer_tensor *tensors = xfer_refit_tensors(small, &n);

  (void)state;
  assert_int_equal(xfer_plan_create(&of_small, comm, tensors, n, NULL), XFER_OK);
  REFUSED("tensor 0 of the plan, \"a.weight\", has other layouts",
          xfer_locals_bind(others, of_small));
  REFUSED("the list is rank 1's and the plan rank 0's", xfer_locals_bind(none, of_small));
  assert_int_equal(xfer_locals_bind(own, of_small), XFER_OK);
  xfer_locals_destroy(own);
  xfer_locals_destroy(others);
  xfer_locals_destroy(none);
  xfer_plan_destroy(of_small);
  xfer_refit_destroy(small);
  xfer_refit_destroy(large);
}

/* What has no status has an answer for NULL. */
static void test_a_view_that_fails_writes_no_output(void **state)
{
  static char memory[1 << 16];
  xfer_locals *given = NULL;
  xfer_local local;
  xfer_view views[2];
  uint32_t has = 9;

  (void)state;
  assert_int_equal(xfer_locals_create(&given, refit, 0), XFER_OK);
  for (size_t i = 0; i < xfer_locals_count(given); i++) {
    assert_int_equal(xfer_locals_get(given, i, &local), XFER_OK);
    if (local.side == XFER_REFIT_TRAIN)
      assert_int_equal(xfer_locals_give(given, (xfer_refit_side)local.side, local.name,
                                        (xfer_dtype)local.dtype, memory, local.shape, NULL,
                                        local.n_dims),
                       XFER_OK);
  }
  memset(views, 7, sizeof views);
  REFUSED_AS(XFER_ERR_STATE, "was not handed in",
             xfer_locals_view(given, 0, &views[0], &views[1], &has));
  assert_int_equal(views[0].kind, 0x07070707);
  assert_int_equal(has, 9);
  xfer_locals_destroy(given);
}

static void test_null_is_destroyed_and_is_empty(void **state)
{
  size_t n = 1;

  (void)state;
  xfer_mesh_destroy(NULL);
  xfer_layout_destroy(NULL);
  xfer_plan_destroy(NULL);
  xfer_comm_destroy(NULL);
  xfer_rules_destroy(NULL);
  xfer_model_destroy(NULL);
  xfer_side_destroy(NULL);
  xfer_refit_destroy(NULL);
  xfer_locals_destroy(NULL);
  xfer_text_free(NULL);
  assert_int_equal(xfer_layout_shape(NULL, NULL), 0);
  assert_int_equal(xfer_layout_ranks(NULL, NULL), 0);
  assert_int_equal(xfer_comm_rank(NULL), -1);
  assert_int_equal(xfer_comm_size(NULL), 0);
  assert_int_equal(xfer_refit_ranks(NULL), 0);
  assert_null(xfer_refit_tensors(NULL, &n));
  assert_int_equal(n, 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_layouts_refuse_null_and_what_is_not_there),
      cmocka_unit_test(test_plans_refuse_null_and_what_is_not_there),
      cmocka_unit_test(test_a_commit_says_why_any_bind_failed),
      cmocka_unit_test(test_a_call_without_a_view_names_the_view),
      cmocka_unit_test(test_comms_refuse_null_and_what_is_not_there),
      cmocka_unit_test(test_models_and_sides_refuse_null_and_what_is_not_there),
      cmocka_unit_test(test_refits_and_locals_refuse_null_and_what_is_not_there),
      cmocka_unit_test(test_a_list_is_bound_to_a_plan_of_its_tensors_and_its_rank),
      cmocka_unit_test(test_a_view_that_fails_writes_no_output),
      cmocka_unit_test(test_null_is_destroyed_and_is_empty),
  };

  return cmocka_run_group_tests(tests, begin, end);
}
