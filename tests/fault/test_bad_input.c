/* What one rank, or every rank, gives wrongly: a non-zero status on every rank, one sentence with
 * the values on the rank that decides, and nothing written. Each case spoils the input of a plan
 * that works.
 */
#include "fault/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { ALL = -1 };

typedef void spoil_fn(input *in);

typedef struct bad {
  const char *what;
  spoil_fn *spoil;
  int decider; /* ALL: every rank finds it, and says the same */
  xfer_status st;
  const char *words[3]; /* in the decider's text */
} bad;

static void respell(input *in, size_t tensor, const char *line)
{
  xfer_layout_destroy(in->src[tensor]);
  xfer_layout_destroy(in->dst[tensor]);
  if (xfer_problem_parse(&in->src[tensor], &in->dst[tensor], line) != XFER_OK) abort();
  in->tensors[tensor].src = in->src[tensor];
  in->tensors[tensor].dst = in->dst[tensor];
}

/* Takes the destination of one line and the source of another. */
static void respell_sides(input *in, const char *src_line, const char *dst_line)
{
  xfer_layout *unused_src = NULL;
  xfer_layout *src = NULL;

  respell(in, 0, src_line);
  src = in->src[0];
  xfer_layout_destroy(in->dst[0]);
  if (xfer_problem_parse(&unused_src, &in->dst[0], dst_line) != XFER_OK) abort();
  xfer_layout_destroy(unused_src);
  in->src[0] = src;
  in->tensors[0].dst = in->dst[0];
}

/* ---- ranks disagree ----------------------------------------------------------------------- */

static void other_name(input *in)
{
  if (in->rank == 2) in->tensors[1].name = "other";
}

static void long_names_with_one_beginning(input *in)
{
  static const char *const names[2] = {
      "model.language_model.layers.17.self_attention.linear_query_key_value.weight_scale_inv.a",
      "model.language_model.layers.17.self_attention.linear_query_key_value.weight_scale_inv.b"};

  in->tensors[1].name = names[in->rank == 2];
}

static void other_order(input *in)
{
  const xfer_tensor first = in->tensors[0];

  if (in->rank != 3) return;
  in->tensors[0] = in->tensors[1];
  in->tensors[1] = first;
}

static void other_count(input *in)
{
  if (in->rank == 1) in->n_tensors = 2;
}

static void lacks_the_second(input *in)
{
  if (in->rank != 1) return;
  in->n_tensors = 2;
  in->tensors[1] = in->tensors[2];
}

static void has_none(input *in)
{
  if (in->rank == 0) in->n_tensors = 0;
}

static void other_dtype(input *in)
{
  if (in->rank == 1) respell(in, 0, "f32[6,4] (2)@0-1:S0 -> (2)@1-2:S1");
}

static void other_shape(input *in)
{
  if (in->rank == 1) respell(in, 0, "i32[6,5] (2)@0-1:S0 -> (2)@1-2:S1");
}

static void other_layout(input *in)
{
  if (in->rank == 0) respell(in, 0, "i32[6,4] (2)@0-1:S1 -> (2)@1-2:S1");
}

static void other_rule(input *in)
{
  if (in->rank == 3) respell(in, 0, "i32[6,4] (2)@0-1:S0b -> (2)@1-2:S1");
}

static void other_ranks(input *in)
{
  if (in->rank == 3) respell(in, 0, "i32[6,4] (2)@0-1:S0 -> (2)@2-3:S1");
}

/* From 100 ranks, more than an error has room for, the last of which is said, by a placement. */
static void respell_many(input *in, int last, const char *placement, const char *dst)
{
  char line[1024];
  int n = snprintf(line, sizeof line, "i32[6,4] (100)@");

  for (int i = 0; i < 99; i++)
    n += snprintf(line + n, sizeof line - (size_t)n, "%d,", 999 - 2 * i);
  snprintf(line + n, sizeof line - (size_t)n, "%d:%s -> %s", last, placement, dst);
  respell(in, 0, line);
}

static void other_rank_at_the_end_of_many(input *in)
{
  respell_many(in, in->rank == 3 ? 0 : 2, "S0", "(2)@1-2:S1");
}

static void other_placement_of_many(input *in)
{
  respell_many(in, 0, in->rank == 3 ? "S1" : "S0", "(2)@1-2:S1");
}

static void other_destination_behind_many(input *in)
{
  respell_many(in, 0, "S0", in->rank == 3 ? "(2)@2-3:S1" : "(2)@1-2:S1");
}

static void other_padding(input *in)
{
  if (in->rank == 2) respell(in, 1, "u8[5] (2)@0-1:S0;pad=0:8 -> (2)@2-3:S0;pad=0:6");
}

static void other_window(input *in)
{
  if (in->rank == 2) in->options.window_bytes = 4096;
}

static void other_lane(input *in)
{
  in->options.lane = in->rank == 2 ? XFER_LANE_PACKED : XFER_LANE_BROADCAST;
}

static void other_layout_of_a_side_that_some_lack(input *in)
{
  if (in->rank == 0) in->tensors[0].src = NULL;
  if (in->rank == 3) respell(in, 0, "i32[6,4] (2)@0-1:S1 -> (2)@1-2:S1");
}

static void no_source(input *in)
{
  in->tensors[1].src = NULL;
}

static void no_destination(input *in)
{
  in->tensors[2].dst = NULL;
}

/* ---- the two sides do not fit ------------------------------------------------------------- */

static void sides_of_two_dtypes(input *in)
{
  respell_sides(in, "f32[6,4] (2)@0-1:S0 -> (1):R", "bf16[6,4] (1):R -> (2)@1-2:S1");
}

static void sides_of_two_shapes(input *in)
{
  respell_sides(in, "i32[6,4] (2)@0-1:S0 -> (1):R", "i32[6,5] (1):R -> (2)@1-2:S1");
}

static void sides_of_two_ranks(input *in)
{
  respell_sides(in, "i32[6,4] (2)@0-1:S0 -> (1):R", "i32[6,4,1] (1):R -> (2)@1-2:S1");
}

static void a_mesh_above_the_comm(input *in)
{
  respell(in, 0, "i32[6,4] (2)@0-1:S0 -> (2)@3-4:S1");
}

static void a_source_with_a_hole(input *in)
{
  const int shape[1] = {2};
  const xfer_run runs[2] = {{0, 2, 0}, {3, 3, 0}};
  const int64_t first[3] = {0, 1, 2};
  const int64_t lengths[2] = {2, 3};
  const int64_t sizes[2] = {6, 4};
  const xfer_run_table table = {runs, first, lengths, 2, 0};
  const xfer_placement p = xfer_shard_runs(0, &table);
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_mesh *mesh = NULL;

  if (xfer_mesh_create(&mesh, shape, 1, NULL) != XFER_OK) abort();
  desc.mesh = mesh;
  desc.dtype = XFER_I32;
  desc.n_dims = 2;
  desc.shape = sizes;
  desc.placements = &p;
  desc.n_placements = 1;
  xfer_layout_destroy(in->src[0]);
  if (xfer_layout_create(&in->src[0], &desc) != XFER_OK) abort();
  xfer_mesh_destroy(mesh);
  in->tensors[0].src = in->src[0];
}

/* ---- arguments of one rank ---------------------------------------------------------------- */

static void no_name(input *in)
{
  if (in->rank == 1) in->tensors[2].name = NULL;
}

static void conversion_of_a_tensor(input *in)
{
  if (in->rank == 2) in->tensors[1].conversion.kind = 7;
}

static void size_of_options(input *in)
{
  if (in->rank == 0) in->options.struct_size = 3;
}

static void unknown_lane(input *in)
{
  if (in->rank == 3) in->options.lane = 9;
}

static void unknown_flag(input *in)
{
  if (in->rank == 3) in->options.flags = 0x40;
}

static void reserved_of_options(input *in)
{
  if (in->rank == 3) in->options.reserved = 1;
}

static void huge_window(input *in)
{
  in->options.window_bytes = UINT64_C(1) << 31;
}

static void little_staging(input *in)
{
  in->options.max_staging_bytes = 40;
}

/* ---- views -------------------------------------------------------------------------------- */

static void no_view_of_a_source(input *in)
{
  if (in->rank == 1) in->src_views[0] = (xfer_view){.base = NULL};
}

static void view_of_other_dims(input *in)
{
  const int64_t strides[3] = {16, 4, 4};

  if (in->rank == 1) in->dst_views[0] = xfer_view_strided(in->dst_memory[0], strides, 3);
}

static void view_of_small_strides(input *in)
{
  const int64_t strides[2] = {16, 2};

  if (in->rank == 1) in->dst_views[0] = xfer_view_strided(in->dst_memory[0], strides, 2);
}

static void view_past_the_end_of_memory(input *in)
{
  const int64_t strides[2] = {INT64_MAX / 4, 4};

  if (in->rank == 1) in->dst_views[0] = xfer_view_strided(in->dst_memory[0], strides, 2);
}

static void pieces_that_do_not_divide(input *in)
{
  if (in->rank == 2) in->dst_views[0].n_pieces = 4;
}

static void pieces_along_no_dim(input *in)
{
  if (in->rank == 2) in->dst_views[0].piece_dim = 2;
}

static void pieces_without_a_pointer(input *in)
{
  if (in->rank == 2) in->pieces[1] = NULL;
}

static void pieces_without_pointers(input *in)
{
  if (in->rank == 2) in->dst_views[0].pieces = NULL;
}

static void unknown_kind_of_view(input *in)
{
  if (in->rank == 2) in->dst_views[0].kind = 5;
}

static void reserved_of_a_view(input *in)
{
  if (in->rank == 3) in->src_views[0].reserved = 1; /* not read: no source part there */
  if (in->rank == 2) in->dst_views[1].reserved = 1;
}

static void views_that_overlap(input *in)
{
  if (in->rank == 2) in->dst_views[1] = xfer_view_dense(in->dst_memory[0] + 4);
}

static void view_that_overlaps_itself(input *in)
{
  const int64_t strides[2] = {4, 4};

  if (in->rank == 1) in->dst_views[0] = xfer_view_strided(in->dst_memory[0], strides, 2);
}

static void pieces_that_are_one(input *in)
{
  if (in->rank == 2) in->pieces[1] = in->pieces[0];
}

static const bad cases[] = {
    {"another name", other_name, ALL, XFER_ERR_MISMATCH, {"tensor 1", "\"padded\"", "\"other\""}},
    {"long names with one beginning",
     long_names_with_one_beginning,
     ALL,
     XFER_ERR_MISMATCH,
     {"tensor 1", "inv.a\"", "inv.b\""}},
    {"another order", other_order, ALL, XFER_ERR_MISMATCH, {"tensor 0", "rank 3", "\"padded\""}},
    {"fewer tensors",
     other_count,
     ALL,
     XFER_ERR_MISMATCH,
     {"rank 1 has 2 tensors, rank 0 3: tensor 2 is none on rank 1, \"copied\" on rank 0"}},
    {"a tensor is not there",
     lacks_the_second,
     ALL,
     XFER_ERR_MISMATCH,
     {"rank 1 has 2 tensors, rank 0 3: tensor 1 is \"copied\" on rank 1, \"padded\" on rank 0"}},
    {"no tensors",
     has_none,
     ALL,
     XFER_ERR_MISMATCH,
     {"rank 1 has 3 tensors, rank 0 0: tensor 0 is \"wide\" on rank 1, none on rank 0"}},
    {"another dtype", other_dtype, ALL, XFER_ERR_MISMATCH, {"\"wide\"", "f32[6,4]", "i32[6,4]"}},
    {"another shape", other_shape, ALL, XFER_ERR_MISMATCH, {"rank 1", "i32[6,5]", "i32[6,4]"}},
    {"another placement", other_layout, ALL, XFER_ERR_MISMATCH, {"\"wide\"", ":S1 ->", ":S0 ->"}},
    {"another rule", other_rule, ALL, XFER_ERR_MISMATCH, {"rank 3", ":S0b ->", ":S0 ->"}},
    {"another mesh", other_ranks, ALL, XFER_ERR_MISMATCH, {"rank 3", "@2-3", "@1-2"}},
    {"another rank at the end of many",
     other_rank_at_the_end_of_many,
     ALL,
     XFER_ERR_MISMATCH,
     {"tensor 0 \"wide\": the source meshes of rank 3 and rank 0 differ past what is shown here: "
      "i32[6,4] (100)@999,997"}},
    {"another placement of many ranks",
     other_placement_of_many,
     ALL,
     XFER_ERR_MISMATCH,
     {"tensor 0 \"wide\": ranks have layouts that differ past what is shown here"}},
    {"another destination behind many ranks",
     other_destination_behind_many,
     ALL,
     XFER_ERR_MISMATCH,
     {"rank 3 has i32[6,4] ? -> (2)@2-3:S1, rank 0 has i32[6,4] ? -> (2)@1-2:S1"}},
    {"another padding", other_padding, ALL, XFER_ERR_MISMATCH, {"\"padded\"", "0:6", "0:8"}},
    {"another window", other_window, ALL, XFER_ERR_MISMATCH, {"rank 2", "window_bytes", "4096"}},
    {"another lane",
     other_lane,
     ALL,
     XFER_ERR_MISMATCH,
     {"option lane is 2 on rank 2", "3 on rank 0"}},
    {"another placement, where some have none",
     other_layout_of_a_side_that_some_lack,
     ALL,
     XFER_ERR_MISMATCH,
     {"\"wide\"", "rank 3", ":S1 ->"}},
    {"no rank has a source", no_source, ALL, XFER_ERR_ARG, {"tensor 1", "\"padded\"", "source"}},
    {"no rank has a destination", no_destination, ALL, XFER_ERR_ARG, {"tensor 2", "destination"}},
    {"two dtypes", sides_of_two_dtypes, ALL, XFER_ERR_SHAPE, {"\"wide\"", "f32", "bf16"}},
    {"two shapes", sides_of_two_shapes, ALL, XFER_ERR_SHAPE, {"dim 1", "4 indices", "5"}},
    {"two numbers of dims", sides_of_two_ranks, ALL, XFER_ERR_SHAPE, {"\"wide\"", "2 dims", "3"}},
    {"a mesh above the comm",
     a_mesh_above_the_comm,
     ALL,
     XFER_ERR_ARG,
     {"rank 4", "only ranks 0 to 3"}},
    {"a source with a hole", a_source_with_a_hole, 1, XFER_ERR_SHAPE, {"\"wide\"", "dim 0"}},
    {"no name", no_name, 1, XFER_ERR_ARG, {"tensor 2"}},
    {"a conversion that there is not", conversion_of_a_tensor, 2, XFER_ERR_ARG, {"\"padded\""}},
    {"a wrong struct_size", size_of_options, 0, XFER_ERR_ARG, {"struct_size is 3"}},
    {"an unknown lane", unknown_lane, 3, XFER_ERR_ARG, {"lane is 9: want 0 to 3"}},
    {"an unknown flag",
     unknown_flag,
     3,
     XFER_ERR_UNSUPPORTED,
     {"flags is 0x40", "knows the bits of 0x7"}},
    {"a reserved field of options", reserved_of_options, 3, XFER_ERR_UNSUPPORTED, {"want 0"}},
    {"a window above 1 GiB", huge_window, ALL, XFER_ERR_ARG, {"window_bytes", "2147483648"}},
    {"too little staging", little_staging, ALL, XFER_ERR_ARG, {"max_staging_bytes 40"}},
    {"no view", no_view_of_a_source, 1, XFER_ERR_ARG, {"\"wide\"", "source", "NULL"}},
    {"a view of other dims", view_of_other_dims, 1, XFER_ERR_SHAPE, {"\"wide\"", "3 dims"}},
    {"small strides",
     view_of_small_strides,
     1,
     XFER_ERR_SHAPE,
     {"stride 2 in dim 1", "4 bytes", "contiguous"}},
    {"large strides", view_past_the_end_of_memory, 1, XFER_ERR_OVERFLOW, {"\"wide\"", "dim 0"}},
    {"pieces that do not divide", pieces_that_do_not_divide, 2, XFER_ERR_SHAPE, {"4 pieces", "6"}},
    {"pieces along no dim", pieces_along_no_dim, 2, XFER_ERR_SHAPE, {"dim 2", "2 dims"}},
    {"a piece without memory", pieces_without_a_pointer, 2, XFER_ERR_ARG, {"piece 1 is NULL"}},
    {"pieces without pointers", pieces_without_pointers, 2, XFER_ERR_ARG, {"without pointers"}},
    {"an unknown kind of view", unknown_kind_of_view, 2, XFER_ERR_ARG, {"view kind 5"}},
    {"a reserved field of a view", reserved_of_a_view, 2, XFER_ERR_ARG, {"reserved"}},
    {"views that overlap", views_that_overlap, 2, XFER_ERR_SHAPE, {"\"wide\"", "\"padded\""}},
    {"a view that overlaps itself",
     view_that_overlaps_itself,
     1,
     XFER_ERR_SHAPE,
     {"\"wide\"", "itself"}},
    {"two pieces in one place", pieces_that_are_one, 2, XFER_ERR_SHAPE, {"\"wide\"", "overlap"}},
};

typedef struct job {
  const bad *bad;
  uint32_t lane;
  xfer_comm *comms[N_RANKS];
  outcome first[N_RANKS]; /* failure */
} job;

static void note(outcome *o, xfer_status st)
{
  if (o->st == XFER_OK) *o = outcome_of(st);
}

/* A rank whose bind fails still commits, as a program must whose other ranks do. */
static void play(int rank, void *context)
{
  job *j = context;
  input in;
  xfer_plan *plan = NULL;
  outcome *o = &j->first[rank];

  *o = (outcome){.st = XFER_OK};
  input_create(&in, rank);
  in.options.lane = j->lane;
  j->bad->spoil(&in);
  note(o, xfer_plan_create(&plan, j->comms[rank], in.tensors, in.n_tensors, &in.options));
  if (plan != NULL) {
    note(o, input_bind(&in, plan));
    note(o, xfer_plan_commit(plan));
    expect(o->st != XFER_OK);
    expect(xfer_plan_run(plan, 1, NULL) == XFER_ERR_STATE);
  }
  expect(is_untouched(&in));
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static bool has_words(const job *j, int rank)
{
  for (int i = 0; i < 3 && j->bad->words[i] != NULL; i++)
    if (strstr(j->first[rank].text, j->bad->words[i]) == NULL) return false;
  return true;
}

/* The others' text quotes the decider's. */
static bool is_right(const job *j, int rank)
{
  const outcome *o = &j->first[rank];
  char name[16];

  if (j->bad->decider == ALL || j->bad->decider == rank)
    return o->st == j->bad->st && has_words(j, rank);
  (void)snprintf(name, sizeof name, "rank %d", j->bad->decider);
  if (o->st == j->bad->st) return has_words(j, rank); /* it finds the same of its own part */
  return o->st == XFER_ERR_PEER && strstr(o->text, name) != NULL;
}

static void test_bad_input_is_refused_on_every_rank(void **state)
{
  int n_wrong = 0;

  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    job j = {.bad = &cases[i], .lane = (uint32_t)(i % 4)};

    make_comms(j.comms);
    run_ranks(N_RANKS, play, &j);
    destroy_comms(j.comms);
    for (int r = 0; r < N_RANKS; r++) {
      if (is_right(&j, r)) continue;
      print_message("%s: rank %d: %s \"%s\"\n", cases[i].what, r, xfer_status_name(j.first[r].st),
                    j.first[r].text);
      n_wrong++;
    }
    assert_all_as_expected();
  }
  assert_int_equal(n_wrong, 0);
}

/* A comm on which a plan was refused is as good as new. */
static void play_again(int rank, void *context)
{
  job *j = context;
  input in;
  xfer_plan *plan = NULL;

  play(rank, j);
  input_create(&in, rank);
  expect(xfer_plan_create(&plan, j->comms[rank], in.tensors, in.n_tensors, &in.options) == XFER_OK);
  expect(input_bind(&in, plan) == XFER_OK);
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(xfer_plan_run(plan, 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  expect(is_delivered(&in));
  xfer_plan_destroy(plan);
  input_destroy(&in);
}

static void test_a_comm_works_after_a_plan_was_refused(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    job j = {.bad = &cases[i]};

    make_comms(j.comms);
    run_ranks(N_RANKS, play_again, &j);
    destroy_comms(j.comms);
    assert_all_as_expected();
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bad_input_is_refused_on_every_rank),
      cmocka_unit_test(test_a_comm_works_after_a_plan_was_refused),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
