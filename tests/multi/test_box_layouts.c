/* Plans of boxes: what ranks must agree on, views that do not fit, and memory that is both sides'.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xfer/xfer.h>

#include "../unit/ranks.h"
#include "alloc.h"
#include "serial.h"

enum { N_RANKS = 3 };

/* What each rank says of the source: boxes of a shape, or a whole layout. */
typedef struct said {
  int64_t shape[2];
  int64_t first[2];
  int64_t bounds[8];
  bool whole;
  bool silent;
} said;

typedef struct job {
  xfer_comm *comms[N_RANKS];
  said said[N_RANKS];
  int victim; /* whose n-th allocation fails; -1: nobody's */
  long n;
  xfer_status st[N_RANKS];
  char text[N_RANKS][512];
} job;

static void make_comms(job *j)
{
  assert_int_equal(xfer_comm_create_local(j->comms, N_RANKS), XFER_OK);
}

static void drop_comms(job *j)
{
  for (int r = 0; r < N_RANKS; r++)
    xfer_comm_destroy(j->comms[r]);
}

static xfer_layout *source_of(const said *s)
{
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  xfer_layout *layout = NULL;
  xfer_mesh *mesh = NULL;

  if (s->silent) return NULL;
  desc.dtype = XFER_F32;
  desc.n_dims = 2;
  desc.shape = s->shape;
  desc.first = s->first;
  desc.bounds = s->bounds;
  if (s->whole) {
    expect(xfer_mesh_create(&mesh, &(int){1}, 1, NULL) == XFER_OK);
    desc.mesh = mesh;
  }
  expect(xfer_layout_create_boxes(&layout, &desc) == XFER_OK);
  xfer_mesh_destroy(mesh);
  return layout;
}

/* A plan to rank 2, which wants all of it. */
static void plan(int rank, void *context)
{
  job *j = context;
  xfer_layout *src = source_of(&j->said[rank]);
  xfer_layout *none = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *made = NULL;

  expect(xfer_problem_parse(&none, &dst, "f32[4,6] (1):R -> (1)@2:R") == XFER_OK);
  if (rank == j->victim) xfi_alloc_fail_after(j->n);
  j->st[rank] =
      xfer_plan_create(&made, j->comms[rank], &(xfer_tensor){"w", src, dst, {0}}, 1, NULL);
  if (rank == j->victim) xfi_alloc_fail_after(-1);
  (void)snprintf(j->text[rank], sizeof j->text[rank], "%s", xfer_last_error());
  xfer_plan_destroy(made);
  xfer_layout_destroy(src);
  xfer_layout_destroy(none);
  xfer_layout_destroy(dst);
}

static const said upper = {{4, 6}, {0, 1}, {0, 0, 2, 6}, false, false};
static const said lower = {{4, 6}, {0, 2}, {2, 0, 4, 3, 2, 3, 4, 6}, false, false};
static const said nothing = {{4, 6}, {0, 0}, {0}, false, true};

static void test_own_boxes_must_fit_each_other(void **state)
{
  (void)state;
  const said wider = {{4, 7}, {0, 1}, {2, 0, 4, 7}, false, false};
  const said whole = {{4, 6}, {0, 1}, {0, 0, 4, 6}, true, false};
  const struct {
    const said *of_1;
    const char *text; /* NULL: they do */
  } cases[] = {
      {&lower, NULL},
      {&wider, "tensor \"w\", dim 1: rank 1 has boxes of 7 indices, rank 0 of 6"},
      {&whole, "tensor \"w\": rank 1 has a whole layout, others their own boxes"},
  };

  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    job j = {.said = {upper, *cases[c].of_1, nothing}, .victim = -1};

    make_comms(&j);
    run_ranks(N_RANKS, plan, &j);
    drop_comms(&j);
    assert_all_as_expected();
    for (int r = 0; r < N_RANKS; r++) {
      assert_int_equal(j.st[r], cases[c].text == NULL ? XFER_OK : XFER_ERR_MISMATCH);
      if (cases[c].text != NULL) assert_string_equal(j.text[r], cases[c].text);
    }
  }
}

/* Of two tensors, which rank 1 gives in the other order. */
static void plan_two(int rank, void *context)
{
  job *j = context;
  static const char *const names[] = {"narrow", "wide"};
  static const said parts[2][N_RANKS] = {
      {{{2, 6}, {0, 1}, {0, 0, 1, 6}, false, false}, {{2, 6}, {0, 1}, {1, 0, 2, 6}, false, false}},
      {{{2, 7}, {0, 1}, {0, 0, 1, 7}, false, false}, {{2, 7}, {0, 1}, {1, 0, 2, 7}, false, false}}};
  static const char *const lines[] = {"f32[2,6] (1):R -> (1)@2:R", "f32[2,7] (1):R -> (1)@2:R"};
  xfer_tensor tensors[2] = {{0}};
  xfer_layout *none[2];
  xfer_layout *dst[2];
  xfer_plan *made = NULL;

  for (int t = 0; t < 2; t++) {
    const int at = rank == 1 ? 1 - t : t;

    expect(xfer_problem_parse(&none[t], &dst[t], lines[t]) == XFER_OK);
    tensors[at] = (xfer_tensor){
        .name = names[t], .src = rank < 2 ? source_of(&parts[t][rank]) : NULL, .dst = dst[t]};
  }
  j->st[rank] = xfer_plan_create(&made, j->comms[rank], tensors, 2, NULL);
  (void)snprintf(j->text[rank], sizeof j->text[rank], "%s", xfer_last_error());
  for (int t = 0; t < 2; t++) {
    xfer_layout_destroy((xfer_layout *)tensors[t].src);
    xfer_layout_destroy(none[t]);
    xfer_layout_destroy(dst[t]);
  }
}

static void test_another_order_is_told_before_own_boxes_that_do_not_fit(void **state)
{
  (void)state;
  job j = {.victim = -1};

  make_comms(&j);
  run_ranks(N_RANKS, plan_two, &j);
  drop_comms(&j);
  assert_all_as_expected();
  for (int r = 0; r < N_RANKS; r++) {
    assert_int_equal(j.st[r], XFER_ERR_MISMATCH);
    assert_string_equal(j.text[r], "tensor 0: rank 1 has \"wide\", rank 0 has \"narrow\"");
  }
}

static void test_what_nobody_has_is_named_to_all(void **state)
{
  (void)state;
  job j = {.said = {upper, nothing, nothing}, .victim = -1};

  make_comms(&j);
  run_ranks(N_RANKS, plan, &j);
  drop_comms(&j);
  assert_all_as_expected();
  assert_int_equal(j.st[2], XFER_ERR_SHAPE);
  assert_string_equal(j.text[2], "tensor \"w\": rank 2 needs [2:4,0:6] of its box [0:4,0:6], "
                                 "which no source holds");
  for (int r = 0; r < 2; r++)
    assert_int_equal(j.st[r], XFER_ERR_PEER);
}

/* Of `n` tensors, each cut among all ranks and then whole on one. Every fourth comes from boxes of
 * the ranks' own. */
static xfer_plan_report_data report_of_some(const job *j, int rank, int n, bool knows_all)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  xfer_tensor *tensors = calloc((size_t)n, sizeof *tensors);
  xfer_layout *(*layouts)[2] = calloc((size_t)n, sizeof *layouts);
  xfer_plan *made = NULL;

  if (tensors == NULL || layouts == NULL) abort();
  for (int t = 0; t < n; t++) {
    const said mine = {{N_RANKS, t + 2}, {0, 1}, {rank, 0, rank + 1, t + 2}, false, false};
    const bool own = t % 4 == 0 && !knows_all;
    char line[64];

    (void)snprintf(line, sizeof line, "f32[3,%d] (3):S0 -> (1)@%d:R", t + 2, t % N_RANKS);
    expect(xfer_problem_parse(&layouts[t][0], &layouts[t][1], line) == XFER_OK);
    tensors[t].name = "w";
    if (own) {
      xfer_layout_destroy(layouts[t][0]);
      layouts[t][0] = source_of(&mine);
    }
    if (own || knows_all || (t + rank) % 3 == 0 || (5 * t + rank) % 7 < 2)
      tensors[t].src = layouts[t][0];
    if (knows_all || (t + rank) % 3 == 1 || (3 * t + rank) % 5 < 2) tensors[t].dst = layouts[t][1];
  }
  expect(xfer_plan_create(&made, j->comms[rank], tensors, (size_t)n, NULL) == XFER_OK);
  expect(made == NULL || xfer_plan_report(made, &report) == XFER_OK);
  xfer_plan_destroy(made);
  for (int t = 0; t < n; t++)
    for (int side = 0; side < 2; side++)
      xfer_layout_destroy(layouts[t][side]);
  free(layouts);
  free(tensors);
  return report;
}

static void plan_of_some(int rank, void *context)
{
  for (const int *n = (const int[]){1, 31, 32, 33, 64, 200, 0}; *n != 0; n++) {
    const xfer_plan_report_data some = report_of_some(context, rank, *n, false);
    const xfer_plan_report_data all = report_of_some(context, rank, *n, true);

    expect(all.payload_bytes > 0 && some.payload_bytes == all.payload_bytes);
    expect(some.n_moves == all.n_moves);
    expect(some.in_bytes == all.in_bytes);
    expect(some.out_bytes == all.out_bytes);
  }
}

static void test_whoever_knows_what_the_plan_is_the_same(void **state)
{
  job j = {.victim = -1};

  (void)state;
  make_comms(&j);
  run_ranks(N_RANKS, plan_of_some, &j);
  drop_comms(&j);
  assert_all_as_expected();
}

static _Atomic int n_read;

xfer_status __real_xfi_layout_take(xfer_layout **layout, xfi_reader *reader);
xfer_status __wrap_xfi_layout_take(xfer_layout **layout, xfi_reader *reader);

xfer_status __wrap_xfi_layout_take(xfer_layout **layout, xfi_reader *reader)
{
  atomic_fetch_add(&n_read, 1);
  return __real_xfi_layout_take(layout, reader);
}

/* Replicas: all ranks have the same boxes of their own. */
static void plan_of_replicas(int rank, void *context)
{
  enum { N = 5 };
  job *j = context;
  xfer_tensor tensors[N] = {{0}};
  xfer_layout *dst[N];
  xfer_plan *made = NULL;

  for (int t = 0; t < N; t++) {
    const said all = {{4, t + 1}, {0, 1}, {0, 0, 4, t + 1}, false, false};
    xfer_layout *none = NULL;
    char line[64];

    (void)snprintf(line, sizeof line, "f32[4,%d] (1):R -> (1)@2:R", t + 1);
    expect(xfer_problem_parse(&none, &dst[t], line) == XFER_OK);
    xfer_layout_destroy(none);
    tensors[t] = (xfer_tensor){.name = "w", .src = source_of(&all), .dst = dst[t]};
  }
  expect(xfer_plan_create(&made, j->comms[rank], tensors, N, NULL) == XFER_OK);
  xfer_plan_destroy(made);
  for (int t = 0; t < N; t++) {
    xfer_layout_destroy((xfer_layout *)tensors[t].src);
    xfer_layout_destroy(dst[t]);
  }
}

static void test_what_many_ranks_have_is_read_once(void **state)
{
  job j = {.victim = -1};

  (void)state;
  n_read = 0;
  make_comms(&j);
  run_ranks(N_RANKS, plan_of_replicas, &j);
  drop_comms(&j);
  assert_all_as_expected();
  assert_int_equal(n_read, N_RANKS * 5);
}

/* More boxes on rank 0 than are gathered at once; the others were told nothing of them. */
static void plan_of_many(int rank, void *context)
{
  enum { N = 400000 };
  job *j = context;
  xfer_boxes_desc desc = XFER_BOXES_DESC_INIT;
  int64_t(*bounds)[2] = calloc(N, sizeof *bounds);
  xfer_tensor tensor = {.name = "w"};
  xfer_layout *none = NULL;
  xfer_plan *made = NULL;

  for (int64_t i = 0; i < N && bounds != NULL; i++)
    memcpy(bounds[i], (int64_t[2]){i, i + 1}, sizeof *bounds);
  desc.dtype = XFER_U8;
  desc.n_dims = 1;
  desc.shape = &(int64_t){N};
  desc.first = (int64_t[2]){0, N};
  desc.bounds = (const int64_t *)bounds;
  if (rank == 0) expect(xfer_layout_create_boxes((xfer_layout **)&tensor.src, &desc) == XFER_OK);
  expect(xfer_problem_parse(&none, (xfer_layout **)&tensor.dst, "u8[400000] (1):R -> (1)@2:R") ==
         XFER_OK);
  expect(xfer_plan_create(&made, j->comms[rank], &tensor, 1, NULL) == XFER_OK);
  xfer_plan_destroy(made);
  xfer_layout_destroy((xfer_layout *)tensor.src);
  xfer_layout_destroy((xfer_layout *)tensor.dst);
  xfer_layout_destroy(none);
  free(bounds);
}

static void test_many_boxes_are_gathered_in_steps(void **state)
{
  job j = {.victim = -1};

  (void)state;
  make_comms(&j);
  run_ranks(N_RANKS, plan_of_many, &j);
  drop_comms(&j);
  assert_all_as_expected();
}

/* All fail or none, and nobody waits for a rank that has no memory. */
static void test_gathering_survives_each_failed_allocation(void **state)
{
  (void)state;
  for (int victim = 0; victim < N_RANKS; victim++) {
    job j = {.said = {upper, lower, nothing}, .victim = victim, .st = {XFER_ERR_NOMEM}};

    for (j.n = 0; j.n < 1000; j.n++) {
      int n_failed = 0;

      make_comms(&j);
      run_ranks(N_RANKS, plan, &j);
      drop_comms(&j);
      assert_all_as_expected();
      for (int r = 0; r < N_RANKS; r++) {
        n_failed += j.st[r] != XFER_OK;
        assert_int_not_equal(j.st[r], XFER_ERR_TIMEOUT);
      }
      if (n_failed == 0) break;
      assert_int_equal(n_failed, N_RANKS);
      assert_int_equal(j.st[victim], XFER_ERR_NOMEM);
    }
    assert_in_range(j.n, 10, 999);
  }
}

/* ---- views, on one rank ---- */

static xfer_plan *plan_of(xfer_comm *comm, const char *line)
{
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *made = NULL;

  assert_int_equal(xfer_problem_parse(&src, &dst, line), XFER_OK);
  assert_int_equal(xfer_plan_create(&made, comm, &(xfer_tensor){"w", src, dst, {0}}, 1, NULL),
                   XFER_OK);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  return made;
}

static void test_views_that_do_not_fit_the_boxes_are_refused(void **state)
{
  (void)state;
  char memory[64] = {0};
  void *at[2] = {memory, memory + 32};
  void *missing[2] = {memory, NULL};
  const int64_t strides[] = {6, 1, 3, 1};
  const int64_t thin[] = {6, 1, 0, 1};
  const struct {
    xfer_view view;
    xfer_status st;
    const char *text; /* after the tensor and side */
  } cases[] = {
      {xfer_view_boxes(at, 2, strides, 2), XFER_OK, ""},
      {xfer_view_boxes(at, 2, NULL, 2), XFER_OK, ""},
      {xfer_view_dense(memory), XFER_OK, ""},
      {xfer_view_boxes(at, 1, strides, 2), XFER_ERR_SHAPE, "a view of 1 boxes, the rank has 2"},
      {xfer_view_boxes(at, 2, strides, 3), XFER_ERR_SHAPE, "a view of 3 dims for a tensor of 2"},
      {xfer_view_boxes(missing, 2, strides, 2), XFER_ERR_ARG, "box 1 is at NULL"},
      {xfer_view_boxes(at, 2, thin, 2), XFER_ERR_SHAPE,
       "stride 0 in dim 0, below the 1 bytes of an element: bind a contiguous array, and copy "
       "to or from it"},
      {xfer_view_strided(memory, strides, 2), XFER_ERR_SHAPE,
       "view kind 1 of 2 boxes that do not stack"},
      {xfer_view_dense(NULL), XFER_ERR_ARG, "the view's base is NULL"},
  };
  xfer_comm *comm = NULL;
  xfer_plan *p;

  assert_int_equal(xfer_comm_create_local(&comm, 1), XFER_OK);
  p = plan_of(comm, "u8[4,6] (1):R -> {0=[0:2,0:6]+[2:4,0:3]}");
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    const xfer_view src = xfer_view_dense(memory);
    char text[256];

    assert_int_equal(xfer_plan_bind(p, 0, &src, &cases[c].view), cases[c].st);
    (void)snprintf(text, sizeof text, "tensor \"w\", destination view: %s", cases[c].text);
    if (cases[c].st != XFER_OK) assert_string_equal(xfer_last_error(), text);
  }
  xfer_plan_destroy(p);
  xfer_comm_destroy(comm);
}

static void test_destination_boxes_must_not_overlap_in_memory(void **state)
{
  (void)state;
  char memory[64] = {0};
  char from[24];
  void *apart[2] = {memory, memory + 12};
  void *meet[2] = {memory, memory + 11};
  xfer_view src = xfer_view_dense(from);
  xfer_view good = xfer_view_boxes(apart, 2, NULL, 2);
  xfer_view bad = xfer_view_boxes(meet, 2, NULL, 2);
  xfer_comm *comm = NULL;
  xfer_plan *p;

  assert_int_equal(xfer_comm_create_local(&comm, 1), XFER_OK);
  p = plan_of(comm, "u8[4,6] (1):R -> {0=[0:2,0:6]+[1:3,2:8]}");
  assert_int_equal(xfer_plan_bind(p, 0, &src, &bad), XFER_OK);
  assert_int_equal(xfer_plan_commit(p), XFER_ERR_SHAPE);
  assert_string_equal(xfer_last_error(),
                      "pieces of the destination view of tensor \"w\" overlap each other");
  for (int i = 0; i < 24; i++)
    from[i] = (char)(i + 1);
  memset(memory, -1, sizeof memory);
  assert_int_equal(xfer_plan_bind(p, 0, &src, &good), XFER_OK);
  assert_int_equal(xfer_plan_commit(p), XFER_OK);
  assert_int_equal(xfer_plan_run(p, 1, NULL), XFER_OK);
  assert_int_equal(xfer_plan_wait(p, 0), XFER_OK);
  for (int i = 0; i < 24; i++) { /* 2 x 6, then 2 x 6 of which the last two columns are padding */
    const int x = i < 12 ? i / 6 : 1 + (i - 12) / 6;
    const int y = i < 12 ? i % 6 : 2 + (i - 12) % 6;

    assert_int_equal(memory[i], y < 6 ? 6 * x + y + 1 : 0);
  }
  assert_int_equal(memory[24], -1);
  xfer_plan_destroy(p);
  xfer_comm_destroy(comm);
}

/* The same boxes in the same memory on both sides: nothing to do. */
static void test_boxes_may_stay_where_they_are(void **state)
{
  (void)state;
  char memory[24];
  void *at[2] = {memory, memory + 12};
  xfer_view view = xfer_view_boxes(at, 2, NULL, 2);
  xfer_comm *comm = NULL;
  xfer_plan *p;

  for (int i = 0; i < 24; i++)
    memory[i] = (char)i;
  assert_int_equal(xfer_comm_create_local(&comm, 1), XFER_OK);
  p = plan_of(comm, "u8[4,6] {0=[0:2,0:6]+[2:4,0:6]} -> {0=[0:2,0:6]+[2:4,0:6]}");
  assert_int_equal(xfer_plan_bind(p, 0, &view, &view), XFER_OK);
  assert_int_equal(xfer_plan_commit(p), XFER_OK);
  assert_int_equal(xfer_plan_run(p, 1, NULL), XFER_OK);
  assert_int_equal(xfer_plan_wait(p, 0), XFER_OK);
  for (int i = 0; i < 24; i++)
    assert_int_equal(memory[i], i);
  xfer_plan_destroy(p);
  p = plan_of(comm, "u8[4,6] {0=[0:2,0:6]+[2:4,0:6]} -> {0=[2:4,0:6]+[0:2,0:6]}");
  assert_int_equal(xfer_plan_bind(p, 0, &view, &view), XFER_OK);
  assert_int_equal(xfer_plan_commit(p), XFER_ERR_SHAPE); /* they would swap places */
  xfer_plan_destroy(p);
  xfer_comm_destroy(comm);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_own_boxes_must_fit_each_other),
      cmocka_unit_test(test_another_order_is_told_before_own_boxes_that_do_not_fit),
      cmocka_unit_test(test_what_nobody_has_is_named_to_all),
      cmocka_unit_test(test_whoever_knows_what_the_plan_is_the_same),
      cmocka_unit_test(test_what_many_ranks_have_is_read_once),
      cmocka_unit_test(test_many_boxes_are_gathered_in_steps),
      cmocka_unit_test(test_gathering_survives_each_failed_allocation),
      cmocka_unit_test(test_views_that_do_not_fit_the_boxes_are_refused),
      cmocka_unit_test(test_destination_boxes_must_not_overlap_in_memory),
      cmocka_unit_test(test_boxes_may_stay_where_they_are),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
