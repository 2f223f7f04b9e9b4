/* Binds that change nothing but addresses: the next commit is one small agreement, with a word to
 * the peers where they copy, and everything arrives. Ranks are threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "counted_calls.h"
#include "unit/ranks.h"

enum { N_RANKS = 4, N_TENSORS = 12, ROWS = 8, COLUMNS = 8, REBINDS = 100, SHIFTS = 48 };
enum { PART = ROWS * COLUMNS / N_RANKS, WIDE = 3, OUT = ROWS * WIDE }; /* 12 columns with padding */
enum { ROOM = N_TENSORS * (OUT + 4) + 64, NONSENSE = 0xee };

static void make_comms(xfer_comm **comms)
{
  assert_int_equal(xfer_comm_create_local(comms, N_RANKS), XFER_OK);
  count_calls(comms, N_RANKS);
}

/* ---- a plan of rows to columns, the last ones zeros
 * -------------------------------------------------------------- */

typedef struct job {
  xfer_comm *comms[N_RANKS];
  uint32_t lane;
  bool verifies;  /* each run compares digests of what its addresses hold */
  bool in_pieces; /* some views are */
} job;

typedef struct memory {
  uint32_t from[ROOM];
  uint32_t second[ROOM]; /* rows of sources in pieces, which move the other way */
  uint32_t to[ROOM];
} memory;

static uint32_t value_of(int tensor, int row, int column, int run)
{
  return (uint32_t)(((run * 16 + tensor) * ROWS + row) * COLUMNS + column) + 1;
}

static xfer_plan *make_plan(const job *j, int rank)
{
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor tensors[N_TENSORS];
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_plan *plan = NULL;

  options.lane = j->lane;
  options.flags = j->verifies ? XFER_PLAN_VERIFY : 0;
  expect(xfer_problem_parse(&src, &dst, "u32[8,8] (4):S0 -> (4):S1;pad=1:12") == XFER_OK);
  for (int t = 0; t < N_TENSORS; t++)
    tensors[t] = (xfer_tensor){"w", src, dst, {0}};
  expect(xfer_plan_create(&plan, j->comms[rank], tensors, N_TENSORS, &options) == XFER_OK);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  return plan;
}

static uint32_t *second_row(memory *m, int tensor, int shift)
{
  return m->second + tensor * PART + SHIFTS - shift;
}

/* `shift` words further on, told in turn in two ways that come to the same; in_pieces: every third
 * tensor has a piece for each of its source's rows. */
static void bind(xfer_plan *plan, memory *m, int shift, bool in_pieces)
{
  static const int64_t strides[2] = {4 * COLUMNS, 4};

  for (int t = 0; t < N_TENSORS; t++) {
    uint32_t *from = m->from + t * PART + shift;
    void *const rows[PART / COLUMNS] = {from, second_row(m, t, shift)};
    const xfer_view dst = xfer_view_dense(m->to + t * OUT + shift);
    xfer_view src =
        (shift + t) % 2 == 0 ? xfer_view_dense(from) : xfer_view_strided(from, strides, 2);

    if (in_pieces && t % 3 == 0) src = xfer_view_pieces(rows, PART / COLUMNS, 0, strides, 2);
    expect(xfer_plan_bind(plan, (size_t)t, &src, &dst) == XFER_OK);
  }
}

static void fill(memory *m, int rank, int shift, int run)
{
  memset(m, NONSENSE, sizeof *m);
  for (int t = 0; t < N_TENSORS; t++) {
    for (int i = 0; i < PART; i++)
      m->from[t * PART + shift + i] =
          value_of(t, rank * ROWS / N_RANKS + i / COLUMNS, i % COLUMNS, run);
    memcpy(second_row(m, t, shift), m->from + t * PART + shift + COLUMNS,
           COLUMNS * sizeof *m->from);
  }
}

static bool came(const memory *m, int rank, int shift, int run)
{
  uint32_t want[ROOM];

  memset(want, NONSENSE, sizeof want);
  for (int t = 0; t < N_TENSORS; t++)
    for (int i = 0; i < OUT; i++) {
      const int column = rank * WIDE + i % WIDE;

      want[t * OUT + shift + i] = column < COLUMNS ? value_of(t, i / WIDE, column, run) : 0;
    }
  return memcmp(want, m->to, sizeof want) == 0;
}

static void run_well(xfer_plan *plan, const memory *m, int rank, int shift, int run)
{
  expect(xfer_plan_run(plan, (uint64_t)run, NULL) == XFER_OK);
  expect(xfer_plan_wait(plan, 0) == XFER_OK);
  expect(came(m, rank, shift, run));
}

/* Every third time all ranks bind anew, else one of them alone. */
static void rebind_often(int rank, void *context)
{
  const job *j = context;
  const bool direct = j->lane == XFER_LANE_DIRECT;
  xfer_plan *plan = make_plan(j, rank);
  static memory memories[N_RANKS];
  memory *m = &memories[rank];
  int shift = 0;

  bind(plan, m, 0, j->in_pieces);
  expect(xfer_plan_commit(plan) == XFER_OK);
  for (int run = 1; run <= REBINDS; run++) {
    const xfi_direct *lane = plan->lanes.direct;

    if (run % 3 == 0 || run % N_RANKS == rank) shift = run % SHIFTS;
    fill(m, rank, shift, run);
    bind(plan, m, shift, j->in_pieces);
    n_gathers = n_exchanges = 0;
    expect(xfer_plan_commit(plan) == XFER_OK);
    expect(n_gathers == (direct ? 2 : 1));
    expect(n_exchanges == (direct ? 1 : 0));
    expect(plan->lanes.direct == lane); /* and not made anew */
    run_well(plan, m, rank, shift, run);
  }
  xfer_plan_destroy(plan);
}

static void test_other_addresses_take_a_small_agreement(void **state)
{
  static const uint32_t lanes[] = {XFER_LANE_DIRECT, XFER_LANE_PACKED};

  (void)state;
  for (int i = 0; i < 8; i++) {
    job j = {.lane = lanes[i % 2], .verifies = i / 2 % 2 == 1, .in_pieces = i >= 4};

    make_comms(j.comms);
    run_ranks(N_RANKS, rebind_often, &j);
    for (int r = 0; r < N_RANKS; r++)
      xfer_comm_destroy(j.comms[r]);
    assert_all_as_expected();
  }
}

/* What mmap() gives where it fails is no memory of either side. */
static void bind_a_failed_mapping(xfer_plan *plan, memory *m, int rank)
{
  const xfer_view none = xfer_view_dense((void *)-1);

  for (int source = 0; source < 2; source++) {
    const xfer_view from = xfer_view_dense(m->from);
    const xfer_view to = xfer_view_dense(m->to);

    if (rank == 3)
      expect(xfer_plan_bind(plan, 5, source ? &none : &from, source ? &to : &none) == XFER_OK);
    expect(xfer_plan_commit(plan) == (rank == 3 ? XFER_ERR_ARG : XFER_ERR_PEER));
    expect(strstr(xfer_last_error(), source ? "tensor \"w\", source view: "
                                            : "tensor \"w\", destination view: ") != NULL);
    expect(strstr(xfer_last_error(), "bytes from 0xffffffffffffffff are wanted") != NULL);
  }
}

/* What is no other address alone makes the lanes anew; what is wrong is an error of all ranks, and
 * the next commit makes good. */
static void change_more(int rank, void *context)
{
  const job *j = context;
  xfer_plan *plan = make_plan(j, rank);
  static memory memories[N_RANKS];
  memory *m = &memories[rank];
  xfer_view twice;
  xfer_status st;

  bind(plan, m, 0, true);
  expect(xfer_plan_commit(plan) == XFER_OK);
  fill(m, rank, 3, 1);
  bind(plan, m, 3, true);
  if (rank == 1) {
    twice = xfer_view_dense(m->to + 4);
    expect(xfer_plan_bind(plan, 5, NULL, &twice) == XFER_OK); /* no source, and over another */
  }
  st = xfer_plan_commit(plan);
  expect(st == (rank == 1 ? XFER_ERR_STATE : XFER_ERR_PEER));
  expect(xfer_plan_run(plan, 1, NULL) == XFER_ERR_STATE);
  bind(plan, m, 3, true);
  expect(xfer_plan_commit(plan) == XFER_OK);
  run_well(plan, m, rank, 3, 1);
  bind(plan, m, 5, true);
  if (rank == 2) {
    const xfer_view from = xfer_view_dense(m->from);

    twice = xfer_view_dense(m->to + 6);
    expect(xfer_plan_bind(plan, 5, &from, &twice) == XFER_OK);
  }
  expect(xfer_plan_commit(plan) == (rank == 2 ? XFER_ERR_SHAPE : XFER_ERR_PEER));
  bind(plan, m, 6, true);
  bind_a_failed_mapping(plan, m, rank);
  fill(m, rank, 7, 2);
  bind(plan, m, 7, true);
  expect(xfer_plan_commit(plan) == XFER_OK);
  run_well(plan, m, rank, 7, 2);
  expect(xfer_plan_release(plan) == XFER_OK);
  fill(m, rank, 9, 3);
  bind(plan, m, 9, true);
  expect(xfer_plan_commit(plan) == XFER_OK);
  run_well(plan, m, rank, 9, 3);
  xfer_plan_destroy(plan);
}

/* A bind that fails leaves nothing of the one before to run with: the commit says on all ranks what
 * was wrong, until it is mended. */
static void bind_wrongly(int rank, void *context)
{
  static const int64_t strides[2] = {2, 4};
  const job *j = context;
  xfer_plan *plan = make_plan(j, rank);
  static memory memories[N_RANKS];
  memory *m = &memories[rank];
  const xfer_view from = xfer_view_dense(m->from);
  const xfer_view wrong = xfer_view_strided(m->to, strides, 2);

  bind(plan, m, 0, false);
  expect(xfer_plan_commit(plan) == XFER_OK);
  fill(m, rank, 0, 1);
  run_well(plan, m, rank, 0, 1);
  for (int t = 7; rank == 1 && t >= 2; t -= 5)
    expect(xfer_plan_bind(plan, (size_t)t, &from, &wrong) == XFER_ERR_SHAPE);
  for (int i = 0; i < 2; i++) {
    expect(xfer_plan_commit(plan) == (rank == 1 ? XFER_ERR_SHAPE : XFER_ERR_PEER));
    expect(strstr(xfer_last_error(), "tensor \"w\", destination view: stride 2 in dim 0") != NULL);
  }
  expect(xfer_plan_check_replicas(plan, NULL) == XFER_ERR_STATE);
  if (rank == 1) { /* one of them */
    const xfer_view to = xfer_view_dense(m->to + 2 * OUT);

    expect(xfer_plan_bind(plan, 2, &from, &to) == XFER_OK);
  }
  expect(xfer_plan_commit(plan) == (rank == 1 ? XFER_ERR_SHAPE : XFER_ERR_PEER));
  expect(strstr(xfer_last_error(), "tensor \"w\", destination view: stride 2 in dim 0") != NULL);
  if (rank == 1) { /* the other without a view */
    expect(xfer_plan_bind(plan, 7, NULL, NULL) == XFER_OK);
  }
  expect(xfer_plan_commit(plan) == (rank == 1 ? XFER_ERR_STATE : XFER_ERR_PEER));
  expect(strstr(xfer_last_error(), "tensor 7 \"w\": the source part of rank 1 is not bound") !=
         NULL);
  bind(plan, m, 0, false);
  expect(xfer_plan_commit(plan) == XFER_OK);
  fill(m, rank, 0, 2);
  run_well(plan, m, rank, 0, 2);
  xfer_plan_destroy(plan);
}

static void test_a_bind_that_failed_is_not_forgotten(void **state)
{
  static const uint32_t lanes[] = {XFER_LANE_DIRECT, XFER_LANE_PACKED};

  (void)state;
  for (int i = 0; i < 4; i++) {
    job j = {.lane = lanes[i % 2], .verifies = i >= 2};

    make_comms(j.comms);
    run_ranks(N_RANKS, bind_wrongly, &j);
    for (int r = 0; r < N_RANKS; r++)
      xfer_comm_destroy(j.comms[r]);
    assert_all_as_expected();
  }
}

static void test_what_is_more_or_wrong_is_made_good(void **state)
{
  static const uint32_t lanes[] = {XFER_LANE_DIRECT, XFER_LANE_PACKED};

  (void)state;
  for (int i = 0; i < 2; i++) {
    job j = {.lane = lanes[i]};

    make_comms(j.comms);
    run_ranks(N_RANKS, change_more, &j);
    for (int r = 0; r < N_RANKS; r++)
      xfer_comm_destroy(j.comms[r]);
    assert_all_as_expected();
  }
}

/* Many in one call: what is wrong with one of them is said, and the others are bound. */
static void bind_many(int rank, void *context)
{
  const job *j = context;
  xfer_plan *plan = make_plan(j, rank);
  static memory memories[N_RANKS];
  memory *m = &memories[rank];
  static const int64_t too_narrow[2] = {2, 4};
  size_t tensors[N_TENSORS];
  xfer_view from[N_TENSORS];
  xfer_view to[N_TENSORS];

  for (int run = 1; run <= 3; run++) {
    for (int t = 0; t < N_TENSORS; t++) {
      const int i = (t + run) % N_TENSORS; /* in any order */

      tensors[t] = (size_t)i;
      from[t] = xfer_view_dense(m->from + i * PART + run);
      to[t] = xfer_view_dense(m->to + i * OUT + run);
    }
    if (run == 2) {
      to[3] = xfer_view_strided(m->to, too_narrow, 2);
      from[5] = xfer_view_dense(NULL); /* none */
    }
    expect(xfer_plan_bind_many(plan, tensors, from, to, N_TENSORS) ==
           (run == 2 ? XFER_ERR_SHAPE : XFER_OK));
    if (run == 2) {
      expect(strstr(xfer_last_error(), "destination view: stride 2 in dim 0") != NULL);
      expect(xfer_plan_bind(plan, tensors[3], &from[3], &to[2]) == XFER_OK);
      expect(xfer_plan_commit(plan) == XFER_ERR_STATE);
      expect(strstr(xfer_last_error(), "tensor 7 \"w\": the source part of rank") != NULL);
      continue;
    }
    expect(xfer_plan_commit(plan) == XFER_OK);
    fill(m, rank, run, run);
    run_well(plan, m, rank, run, run);
  }
  expect(xfer_plan_bind_many(plan, NULL, NULL, NULL, 0) == XFER_OK);
  expect(xfer_plan_bind_many(plan, NULL, from, to, 1) == XFER_ERR_ARG);
  expect(xfer_plan_bind_many(plan, tensors, from, to, 1 << 30) == XFER_ERR_OVERFLOW);
  expect(strstr(xfer_last_error(), "1073741824 tensors, more than") != NULL);
  tensors[0] = N_TENSORS;
  expect(xfer_plan_bind_many(plan, tensors, from, to, 1) == XFER_ERR_ARG);
  xfer_plan_destroy(plan);
}

static void test_many_are_bound_in_one_call(void **state)
{
  job j = {.lane = XFER_LANE_DIRECT};

  (void)state;
  make_comms(j.comms);
  run_ranks(N_RANKS, bind_many, &j);
  for (int r = 0; r < N_RANKS; r++)
    xfer_comm_destroy(j.comms[r]);
  assert_all_as_expected();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_other_addresses_take_a_small_agreement),
      cmocka_unit_test(test_what_is_more_or_wrong_is_made_good),
      cmocka_unit_test(test_a_bind_that_failed_is_not_forgotten),
      cmocka_unit_test(test_many_are_bound_in_one_call),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
