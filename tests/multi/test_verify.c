/*
 * Digests of a plan's sides, replicas that are compared, and runs that verify themselves. Ranks are
 * threads. Each kind of damage that a wrong copy does is done to what a run delivered, and must be
 * found: a bit, rows, experts, a missing and a doubled element, gate and up.
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

#include "object.h"
#include "unit/ranks.h"
#include "xfer/xfer.h"

enum { RANKS = 4, MAX_TENSORS = 6, PART_BYTES = 4096, TEXT_BYTES = 512 };

typedef struct rank_state {
  xfer_plan *plan;
  xfer_layout *layouts[MAX_TENSORS][2];
  _Alignas(16) unsigned char bytes[MAX_TENSORS][2][PART_BYTES];
  int64_t sizes[MAX_TENSORS][2]; /* of the parts */
} rank_state;

/* One test's. */
typedef struct play {
  const char *const *lines; /* [n_tensors] */
  size_t n_tensors;
  uint32_t flags;
  uint32_t lane;
  void (*spoil_source)(int rank, rank_state *s); /* before the run */
  void (*spoil)(int rank, rank_state *s);        /* after it */
  xfer_status replicas;                          /* what comparing them comes to */
  xfer_status wait;
  const char *says; /* in the text of either */
  bool same[MAX_TENSORS];
  xfer_comm *comms[RANKS];
} play;

static const char *const names[MAX_TENSORS] = {"gate", "up", "experts", "norm", "scalar", "boxes"};

static unsigned char value_of(size_t tensor, int64_t byte)
{
  return (unsigned char)(tensor * 57 + (size_t)byte * 7 + (size_t)byte / 256 * 3 + 1);
}

/* The values of a part, by what the layout says of each of its elements. */
static void fill(rank_state *s, size_t t, int rank)
{
  const xfer_layout *l = s->layouts[t][0];
  const int64_t elem = (int64_t)xfer_dtype_size(xfer_layout_dtype(l));
  int64_t global[XFER_MAX_DIMS];
  int64_t local[XFER_MAX_DIMS];
  xfer_run runs[2][8];
  size_t n_runs[2] = {1, 1};
  const int n_dims = xfer_layout_shape(l, global);

  runs[0][0] = runs[1][0] = (xfer_run){0, 1, 0};
  for (int side = 0; side < 2; side++) {
    s->sizes[t][side] = 0;
    memset(s->bytes[t][side], 0xee, PART_BYTES);
    if (xfer_layout_local_shape(s->layouts[t][side], rank, local) != XFER_OK) continue;
    s->sizes[t][side] = elem;
    for (int d = 0; d < n_dims; d++)
      s->sizes[t][side] *= local[d];
    expect(s->sizes[t][side] <= PART_BYTES);
  }
  if (xfer_layout_local_shape(l, rank, local) != XFER_OK) return;
  for (int d = 0; d < n_dims; d++) {
    const xfer_status st = xfer_layout_runs(l, rank, d, runs[d], 8, &n_runs[d]);

    if (st == XFER_ERR_UNSUPPORTED) return; /* by boxes: all bytes are alike */
    expect(st == XFER_OK);
  }
  for (size_t i = 0; i < n_runs[0]; i++)
    for (size_t k = 0; k < n_runs[1]; k++)
      for (int64_t x = 0; x < runs[0][i].length; x++)
        for (int64_t y = 0; y < runs[1][k].length * elem; y++) {
          const int64_t columns = n_dims > 1 ? local[1] : 1;
          const int64_t all = n_dims > 1 ? global[1] : 1;
          const int64_t at = ((runs[0][i].local + x) * columns + runs[1][k].local) * elem + y;
          const int64_t index = ((runs[0][i].global + x) * all + runs[1][k].global) * elem + y;

          s->bytes[t][0][at] = value_of(t, index);
        }
}

static rank_state *open_plan(int rank, const play *p)
{
  rank_state *s = calloc(1, sizeof *s);
  xfer_tensor tensors[MAX_TENSORS];
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;

  if (s == NULL) abort();
  options.flags = p->flags;
  options.lane = p->lane;
  options.timeout_ms = 20000;
  for (size_t t = 0; t < p->n_tensors; t++) {
    expect(xfer_problem_parse(&s->layouts[t][0], &s->layouts[t][1], p->lines[t]) == XFER_OK);
    tensors[t] = (xfer_tensor){names[t], s->layouts[t][0], s->layouts[t][1], {0}};
    fill(s, t, rank);
  }
  expect(xfer_plan_create(&s->plan, p->comms[rank], tensors, p->n_tensors, &options) == XFER_OK);
  for (size_t t = 0; t < p->n_tensors; t++) {
    const xfer_view src = xfer_view_dense(s->bytes[t][0]);
    const xfer_view dst = xfer_view_dense(s->bytes[t][1]);

    expect(xfer_plan_bind(s->plan, t, &src, &dst) == XFER_OK);
  }
  expect(xfer_plan_commit(s->plan) == XFER_OK);
  return s;
}

static void close_plan(rank_state *s, size_t n_tensors)
{
  xfer_plan_destroy(s->plan);
  for (size_t t = 0; t < n_tensors; t++)
    for (int side = 0; side < 2; side++)
      xfer_layout_destroy(s->layouts[t][side]);
  free(s);
}

static void expect_text(xfer_status st, xfer_status want, const char *says)
{
  const char *text = st == XFER_OK ? "" : xfer_last_error();
  const bool fine = st == want && (st == XFER_OK || says == NULL || strstr(text, says) != NULL);

  if (!fine)
    print_message("%s \"%s\", not %s with \"%s\"\n", xfer_status_name(st), text,
                  xfer_status_name(want), says == NULL ? "" : says);
  expect(fine);
}

static void verify(int rank, void *context)
{
  const play *p = context;
  xfer_digest digests[2][MAX_TENSORS];
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  rank_state *s = open_plan(rank, p);

  if (p->spoil_source != NULL) p->spoil_source(rank, s);
  expect_text(xfer_plan_check_replicas(s->plan, NULL), p->replicas, p->says);
  expect(xfer_plan_run(s->plan, 5, NULL) == XFER_OK);
  expect_text(xfer_plan_wait(s->plan, 0), p->wait, p->says);
  expect(xfer_plan_report(s->plan, &report) == XFER_OK);
  expect(report.committed_version == (p->wait == XFER_OK ? 5u : 0u));
  expect(report.torn == (p->wait != XFER_OK));
  if (p->spoil != NULL) p->spoil(rank, s);
  for (int side = 0; side < 2 && p->wait == XFER_OK; side++)
    expect(xfer_plan_digest(s->plan, digests[side], p->n_tensors, (xfer_plan_side)side, NULL) ==
           XFER_OK);
  for (size_t t = 0; t < p->n_tensors && p->wait == XFER_OK; t++) {
    const bool same = memcmp(&digests[0][t], &digests[1][t], sizeof digests[0][t]) == 0;

    if (same != p->same[t]) print_message("tensor \"%s\" of rank %d\n", names[t], rank);
    expect(same == p->same[t]);
    expect(digests[0][t].word[0] != 0 && digests[0][t].word[1] != 0);
  }
  close_plan(s, p->n_tensors);
}

static void run_play(play p)
{
  assert_int_equal(xfer_comm_create_local(p.comms, RANKS), XFER_OK);
  run_ranks(RANKS, verify, &p);
  for (int r = 0; r < RANKS; r++)
    xfer_comm_destroy(p.comms[r]);
  assert_all_as_expected();
}

/* Shards, replicas, padding, a stage, another dtype; sources held by two ranks, destinations by
 * two. Experts of 16 rows. */
static const char *const lines[] = {
    "bf16[6,10] (2,2)@0-3:S0,R -> (4)@0-3:S1", "bf16[6,10] (2,2)@0-3:S0,R -> (4)@0-3:S1",
    "bf16[64,8] (4)@0-3:S0 -> (2,2)@0-3:S1,R", "f32[37] (2)@2-3:S0;pad=0:40 -> (4)@0-3:R",
    "f64[1] (4)@0-3:R -> (2)@0-1:R",           "u8[9,5] (3)@0-2:S0 -> (3)@1-3:S1",
};

static play sound(void)
{
  return (play){.lines = lines,
                .n_tensors = 6,
                .flags = XFER_PLAN_VERIFY,
                .same = {true, true, true, true, true, true}};
}

/* ---- what is right ---- */

static void test_both_sides_have_one_digest_by_every_lane(void **state)
{
  (void)state;
  for (uint32_t lane = XFER_LANE_AUTO; lane <= XFER_LANE_BROADCAST; lane++) {
    play p = sound();

    p.lane = lane;
    run_play(p);
    p.flags = 0;
    run_play(p);
  }
}

static xfer_digest first_digest; /* of the test below */

static void digest_alone(int rank, void *context)
{
  const play *p = context;
  xfer_digest digests[MAX_TENSORS];
  rank_state *s = open_plan(rank, p);

  for (int side = 0; side < 2; side++) {
    if (side == 1) expect(xfer_plan_run(s->plan, 1, NULL) == XFER_OK);
    if (side == 1) expect(xfer_plan_wait(s->plan, 0) == XFER_OK);
    expect(xfer_plan_digest(s->plan, digests, 1, (xfer_plan_side)side, NULL) == XFER_OK);
    if (rank == 0 && first_digest.word[0] == 0) first_digest = digests[0];
    if (rank == 0) expect(memcmp(&digests[0], &first_digest, sizeof *digests) == 0);
  }
  close_plan(s, p->n_tensors);
}

static void test_a_digest_is_the_same_whatever_the_layout(void **state)
{
  static const char *const same[] = {
      "bf16[12,20] (4)@0-3:S0 -> (4)@0-3:S1",       "bf16[12,20] (4)@0-3:S1 -> (2,2)@0-3:S0,S1",
      "bf16[12,20] (2,2)@0-3:R,S1 -> (1)@2:R",      "bf16[12,20] (1)@1:R -> (4)@0-3:R",
      "bf16[12,20] (2,2)@0-3:S1,S0 -> (3)@1-3:S1b", "bf16[12,20] (3)@0-2:S0;pad=0:18 -> (2)@0-1:S0",
  };

  (void)state;
  first_digest = (xfer_digest){{0, 0}};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
    play p = sound();

    p.lines = &same[i];
    p.n_tensors = 1;
    assert_int_equal(xfer_comm_create_local(p.comms, RANKS), XFER_OK);
    run_ranks(RANKS, digest_alone, &p);
    for (int r = 0; r < RANKS; r++)
      xfer_comm_destroy(p.comms[r]);
    assert_all_as_expected();
  }
}

/* ---- what is delivered and then damaged ---- */

static void flip_a_bit(int rank, rank_state *s)
{
  (void)rank;
  s->bytes[3][1][4 * 36 + 3] ^= 0x80; /* of the last element */
}

static void swap_rows(int rank, rank_state *s)
{
  unsigned char row[8];

  if (rank < 2) return;
  memcpy(row, s->bytes[2][1] + 3 * 8, sizeof row); /* rows of 4 columns */
  memcpy(s->bytes[2][1] + 3 * 8, s->bytes[2][1] + 5 * 8, sizeof row);
  memcpy(s->bytes[2][1] + 5 * 8, row, sizeof row);
}

static void swap_experts(int rank, rank_state *s)
{
  unsigned char expert[16 * 8];

  if (rank != 0 && rank != 1) return;
  memcpy(expert, s->bytes[2][1], sizeof expert);
  memcpy(s->bytes[2][1], s->bytes[2][1] + 2 * sizeof expert, sizeof expert);
  memcpy(s->bytes[2][1] + 2 * sizeof expert, expert, sizeof expert);
}

static void drop_the_last(int rank, rank_state *s)
{
  (void)rank;
  memset(s->bytes[3][1] + 4 * 36, 0, 4);
}

static void double_one(int rank, rank_state *s)
{
  if (rank == 1) memcpy(s->bytes[5][1] + 4, s->bytes[5][1] + 2, 1);
}

static void swap_gate_and_up(int rank, rank_state *s)
{
  unsigned char gate[PART_BYTES];

  (void)rank;
  memcpy(gate, s->bytes[0][1], sizeof gate);
  memcpy(s->bytes[0][1], s->bytes[1][1], sizeof gate);
  memcpy(s->bytes[1][1], gate, sizeof gate);
}

static void test_damage_of_one_tensor_is_in_its_digest(void **state)
{
  static void (*const spoils[])(int rank, rank_state *s) = {
      flip_a_bit, swap_rows, swap_experts, drop_the_last, double_one, swap_gate_and_up};
  static const bool same[][MAX_TENSORS] = {
      {true, true, true, false, true, true}, {true, true, false, true, true, true},
      {true, true, false, true, true, true}, {true, true, true, false, true, true},
      {true, true, true, true, true, false}, {false, false, true, true, true, true}};

  (void)state;
  for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++) {
    play p = sound();

    p.spoil = spoils[i];
    memcpy(p.same, same[i], sizeof p.same);
    print_message("damage %zu\n", i);
    run_play(p);
  }
}

/* ---- replicas ---- */

static void spoil_replica(int rank, rank_state *s)
{
  if (rank == 3) s->bytes[1][0][2 * (1 * 10 + 4)] ^= 1; /* row 4, column 4 of "up" */
}

static void test_a1_replicas_that_differ_are_named(void **state)
{
  play p = sound();

  (void)state;
  p.spoil_source = spoil_replica;
  p.replicas = p.wait = XFER_ERR_MISMATCH;
  p.says = "tensor \"up\": replicas of the source differ, first at [4,4]: rank 3 has another value "
           "than rank 2";
  run_play(p);
}

static void spoil_scalar(int rank, rank_state *s)
{
  if (rank == 1) s->bytes[4][0][7] ^= 0x80;
}

static void test_a1_a_replicated_scalar_that_differs_is_named(void **state)
{
  play p = sound();

  (void)state;
  p.spoil_source = spoil_scalar;
  p.replicas = p.wait = XFER_ERR_MISMATCH;
  p.says =
      "tensor \"scalar\": replicas of the source differ, first at [0]: rank 1 has another value "
      "than rank 0";
  run_play(p);
}

static void spoil_first_bytes(int rank, rank_state *s)
{
  if (rank % 2 == 1) memset(s->bytes[0][0], 0, 60);
}

static void test_a1_the_first_index_of_many_is_named(void **state)
{
  play p = sound();

  (void)state;
  p.spoil_source = spoil_first_bytes;
  p.replicas = p.wait = XFER_ERR_MISMATCH;
  p.says = "tensor \"gate\": replicas of the source differ, first at [0,0]: rank 1 ";
  run_play(p);
}

/* Ranks 1 and 2 list equal boxes, in which what a box before them has is never read. */
static const char *const listed[] = {"f32[3] {0=[0:2];1=[0:3];2=[0:3]} -> (3)@0-2:R",
                                     "f32[3] {0=[2:3];1=[0:3];2=[0:3]} -> (3)@0-2:R",
                                     "f32[3] {1=[0:3]+[0:2];2=[0:3]+[0:2]} -> (3)@0-2:R"};

static void spoil_second(int rank, rank_state *s)
{
  if (rank == 2) s->bytes[0][0][4 * 1] ^= 1;
}

static void spoil_third(int rank, rank_state *s)
{
  if (rank == 2) s->bytes[0][0][4 * 2] ^= 1;
}

static void spoil_second_box(int rank, rank_state *s)
{
  if (rank == 2) s->bytes[0][0][4 * (3 + 1)] ^= 1;
}

static void test_replicas_are_compared_where_another_box_is_read(void **state)
{
  static void (*const spoils[])(int rank, rank_state *s) = {spoil_second, spoil_third,
                                                            spoil_second_box};

  (void)state;
  for (size_t i = 0; i < sizeof listed / sizeof *listed; i++) {
    play p = sound();

    p.lines = &listed[i];
    p.n_tensors = 1;
    run_play(p);
    p.spoil_source = spoils[i];
    p.replicas = p.wait = XFER_ERR_MISMATCH;
    p.says = i == 1 ? "first at [2]: rank 2 has another value than rank 1"
                    : "first at [1]: rank 2 has another value than rank 1";
    run_play(p);
  }
}

/* ---- on the way ---- */

static const xfi_comm_ops *sound_ops;

/* A transport that loses a bit of the first byte that rank 2 gets. */
static xfer_status round_that_flips(xfi_comm *comm, const xfi_messages *messages,
                                    xfer_stream stream, xfi_deadline deadline)
{
  const xfer_status st = sound_ops->round(comm, messages, stream, deadline);

  if (comm->rank == 2 && messages->n_recvs > 0) *(unsigned char *)messages->recvs[0].data ^= 1;
  return st;
}

/* Where ranks say what they have of the one element, none says anything. */
static xfer_status gather_without_sums(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                                       xfi_deadline deadline)
{
  enum { SUMS_AT = 20, SUMS_BYTES = 32 }; /* behind a status, and what it has */
  unsigned char said[SUMS_AT + SUMS_BYTES] = {0};

  if (n_bytes != sizeof said) return sound_ops->all_gather(comm, all, mine, n_bytes, deadline);
  memcpy(said, mine, SUMS_AT);
  return sound_ops->all_gather(comm, all, said, n_bytes, deadline);
}

static void lose_a_bit(play p, bool without_sums)
{
  xfi_comm_ops ops;

  p.lane = XFER_LANE_PACKED;
  p.wait = XFER_ERR_MISMATCH;
  assert_int_equal(xfer_comm_create_local(p.comms, RANKS), XFER_OK);
  sound_ops = p.comms[0]->transport->ops;
  ops = *sound_ops;
  ops.round = round_that_flips;
  if (without_sums) ops.all_gather = gather_without_sums;
  for (int r = 0; r < RANKS; r++)
    p.comms[r]->transport->ops = &ops;
  run_ranks(RANKS, verify, &p);
  for (int r = 0; r < RANKS; r++)
    xfer_comm_destroy(p.comms[r]);
  assert_all_as_expected();
}

static void test_d1_a_bit_that_is_lost_on_the_way_fails_the_run(void **state)
{
  play p = sound();

  (void)state;
  p.says = "tensor \"gate\": rank 2 did not get what rank 0 has, first at [0,";
  lose_a_bit(p, false);
  p.says = "tensor \"gate\": destinations differ from the source at [0,";
  lose_a_bit(p, true);
}

/* ---- in passing ---- */

static const xfi_device_ops *sound_device;
static _Thread_local unsigned char *passing; /* a byte that is another one while a run looks */

static xfer_status launch_in_passing(xfi_device *device, xfi_digest *digest, xfer_stream stream)
{
  xfer_status st;

  *passing ^= 1;
  st = sound_device->digest_launch(device, digest, stream);
  *passing ^= 1;
  return st;
}

static void differ_in_passing(int rank, void *context)
{
  const play *p = context;
  rank_state *s = open_plan(rank, p);
  xfi_device_ops ops = *sound_device;

  ops.digest_launch = launch_in_passing;
  passing = &s->bytes[0][1][0];
  if (rank == 2) s->plan->device->ops = &ops;
  expect(xfer_plan_run(s->plan, 5, NULL) == XFER_OK);
  s->plan->device->ops = sound_device;
  expect_text(xfer_plan_wait(s->plan, 0), XFER_ERR_MISMATCH,
              "tensor \"gate\": sources and destinations differed, and do not any more");
  close_plan(s, p->n_tensors);
}

static void test_what_differed_in_passing_is_told_so(void **state)
{
  play p = sound();

  (void)state;
  assert_int_equal(xfer_comm_create_local(p.comms, RANKS), XFER_OK);
  sound_device = p.comms[0]->device->ops;
  run_ranks(RANKS, differ_in_passing, &p);
  for (int r = 0; r < RANKS; r++)
    xfer_comm_destroy(p.comms[r]);
  assert_all_as_expected();
}

/* ---- what is refused ---- */

static void refuse(int rank, void *context)
{
  const play *p = context;
  xfer_digest digests[MAX_TENSORS];
  const xfer_digest none = {{42, 42}};
  rank_state *s = open_plan(rank, p);
  const xfer_view other = xfer_view_dense(s->bytes[1][0]);

  digests[0] = none;
  expect_text(xfer_plan_digest(s->plan, digests, p->n_tensors - (rank == 1), XFER_PLAN_SRC, NULL),
              rank == 1 ? XFER_ERR_ARG : XFER_ERR_PEER, "the plan has 6 tensors");
  expect_text(xfer_plan_digest(s->plan, digests, p->n_tensors,
                               (xfer_plan_side)(rank == 2 ? 2 : XFER_PLAN_DST), NULL),
              rank == 2 ? XFER_ERR_ARG : XFER_ERR_PEER, "side is 2");
  expect_text(
      xfer_plan_digest(s->plan, rank == 0 ? NULL : digests, p->n_tensors, XFER_PLAN_SRC, NULL),
      rank == 0 ? XFER_ERR_ARG : XFER_ERR_PEER, "digests is NULL");
  expect_text(xfer_plan_digest(s->plan, digests, p->n_tensors,
                               rank == 2 ? XFER_PLAN_DST : XFER_PLAN_SRC, NULL),
              XFER_ERR_MISMATCH,
              "rank 2 looks for digests of destinations of plan 0 of the comm, rank 0 for digests "
              "of sources");
  expect_text(rank == 1 ? xfer_plan_check_replicas(s->plan, NULL)
                        : xfer_plan_digest(s->plan, digests, p->n_tensors, XFER_PLAN_SRC, NULL),
              XFER_ERR_MISMATCH, "rank 1 looks for replicas that differ");
  expect(xfer_plan_run(s->plan, 1, NULL) == XFER_OK);
  expect_text(xfer_plan_digest(s->plan, digests, p->n_tensors, XFER_PLAN_SRC, NULL), XFER_ERR_STATE,
              "a run is in flight");
  expect_text(xfer_plan_check_replicas(s->plan, NULL), XFER_ERR_STATE, "a run is in flight");
  expect(xfer_plan_wait(s->plan, 0) == XFER_OK);
  if (rank == 0) expect(xfer_plan_bind(s->plan, 0, &other, &other) == XFER_OK);
  expect_text(xfer_plan_check_replicas(s->plan, NULL), rank == 0 ? XFER_ERR_STATE : XFER_ERR_PEER,
              "not committed");
  expect(memcmp(&digests[0], &none, sizeof none) == 0);
  close_plan(s, p->n_tensors);
}

static void test_what_cannot_be_digested_now_is_refused_by_all(void **state)
{
  play p = sound();

  (void)state;
  assert_int_equal(xfer_comm_create_local(p.comms, RANKS), XFER_OK);
  run_ranks(RANKS, refuse, &p);
  for (int r = 0; r < RANKS; r++)
    xfer_comm_destroy(p.comms[r]);
  assert_all_as_expected();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_both_sides_have_one_digest_by_every_lane),
      cmocka_unit_test(test_a_digest_is_the_same_whatever_the_layout),
      cmocka_unit_test(test_damage_of_one_tensor_is_in_its_digest),
      cmocka_unit_test(test_a1_replicas_that_differ_are_named),
      cmocka_unit_test(test_replicas_are_compared_where_another_box_is_read),
      cmocka_unit_test(test_a1_a_replicated_scalar_that_differs_is_named),
      cmocka_unit_test(test_a1_the_first_index_of_many_is_named),
      cmocka_unit_test(test_d1_a_bit_that_is_lost_on_the_way_fails_the_run),
      cmocka_unit_test(test_what_differed_in_passing_is_told_so),
      cmocka_unit_test(test_what_cannot_be_digested_now_is_refused_by_all),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
