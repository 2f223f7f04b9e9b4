/* Whole redistributions between meshes of every relation, by every lane; sizes around 2^31 and 2^32
   bytes in planning; a thousand runs of one plan; and the calls that must be refused, on every
   rank. Ranks are threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "carry.h"
#include "crew.h"

/* ---- every relation of meshes, every lane ---- */

typedef struct relation {
  const char *what;
  const char *line;
  int n_more; /* ranks of the comm above those of the meshes */
} relation;

static const relation relations[] = {
    {"more sources than destinations", "f32[24,10] (6)@0-5:S0 -> (2)@6-7:S1", 0},
    {"fewer sources than destinations", "bf16[24,10] (2)@0-1:S1 -> (6)@2-7:S0", 0},
    {"one source, everybody else", "f32[33,5] (1)@3:R -> (7)@0-2,4-7:R", 0},
    {"everybody to one", "i64[33,5] (7)@0-2,4-7:S0 -> (1)@3:R", 0},
    {"more ranks than rows", "u8[3,4] (8):S0 -> (8)@7,6,5,4,3,2,1,0:S0", 0},
    {"no rows at all", "f64[0,4] (3):S0 -> (2)@3-4:S1", 0},
    {"a scalar", "f32[] (2)@0-1:R -> (3)@2-4:R", 0},
    {"a scalar onto its own ranks", "f64[] (2,2):R,R -> (4):R", 0},
    {"ranks in neither mesh", "bf16[16,6] (2)@1,3:S0 -> (2)@4,6:S1", 3},
    {"the same mesh and layout", "f16[9,7] (2,2):S0,S1 -> (2,2):S0,S1", 0},
    {"the same mesh, transposed", "f16[9,7] (2,2):S0,S1 -> (2,2):S1,S0", 0},
    {"overlapping meshes", "u16[30,3] (4)@0-3:S0 -> (3)@2,5,0:S0", 0},
    {"FSDP over TP as it is stored", "bf16[18,5] (4,2):S0,S0;order=1,0 -> (2)@8-9:S0", 0},
    {"FSDP over TP as DTensor says it", "bf16[18,5] (4,2):S0f2,S0 -> (3):S0b", 0},
    {"padded vocabularies that differ",
     "bf16[1000,4] (2)@0-1:S0;pad=0:1024 -> (4)@2-5:S0;pad=0:1088", 0},
    {"replicas on both sides", "f32[20,8] (2,3)@0-5:R,S0 -> (2,2)@6-9:S1,R", 0},
    {"dims that do not divide", "i8[7,5,3] (2,2,2):S0,S1,S2 -> (3,2)@1-6:S2b,S0", 0},
    {"one of two boxes of a part here, the other there",
     "f32[8,4] (2)@0-1:S0x[4: 0+2@0 6+2@2][4: 2+4@0] -> (2)@0-1:S0x[2: 6+2@0][6: 0+6@0]", 0},
    {"another of two boxes of a part here, one there",
     "f32[8,4] (2)@0-1:S0x[4: 0+2@0 6+2@2][4: 2+4@0] -> (2)@0-1:S0x[2: 0+2@0][6: 2+6@0]", 0},
    {"eight dims", "u8[2,1,3,2,1,2,2,3] (2,2)@0-3:S0,S7 -> (3)@1-3:S-1", 0},
};

static void assert_carried(carrier *c, problem *p, const char *what)
{
  static const uint64_t windows[] = {0, 24, 1 << 20};
  char why[800];
  for (uint32_t i = 0; i < 24; i++) {
    p->options.lane = i % 4;
    p->options.window_bytes = windows[i / 4 % 3];
    p->plain_views = i % 8 < 4;
    p->one_call = i >= 20;
    p->n_runs = i >= 16 ? 2 : 1;
    p->number = i;
    if (carrier_run(c, p, why, sizeof why) == RIGHT) continue;
    problem_print(stderr, p);
    fail_msg("%s: %s", what, why);
  }
}

static void test_redistribute_between_meshes_of_any_relation(void **state)
{
  carrier *c = carrier_create();
  problem p = {0};
  (void)state;
  for (size_t i = 0; i < sizeof relations / sizeof relations[0]; i++) {
    print_message("%s: %s\n", relations[i].what, relations[i].line);
    assert_true(problem_read(&p, relations[i].line));
    p.n_ranks += relations[i].n_more;
    p.simulate = p.queries = true;
    assert_carried(c, &p, relations[i].what);
  }
  carrier_destroy(c);
  problem_free(&p);
}

/* As large and as dense as what is sent from where it lies; but it is changed on the way. */
static void test_redistribute_sends_what_is_changed_through_slots(void **state)
{
  carrier *c = carrier_create();
  problem p = {0};
  char why[800];
  (void)state;
  assert_true(problem_read(&p, "bf16[524288] (1)@0:R -> (1)@1:R"));
  p.tensors[0].change = SCALED;
  p.tensors[0].by = 2;
  for (uint32_t lane = XFER_LANE_PACKED; lane <= XFER_LANE_BROADCAST; lane++) {
    p.options.lane = lane;
    if (carrier_run(c, &p, why, sizeof why) != RIGHT) fail_msg("lane %u: %s", lane, why);
  }
  carrier_destroy(c);
  problem_free(&p);
}

/* ---- sizes around 2^31 and 2^32 ---- */

static void assert_interval(const xfer_plan *plan, int rank, uint64_t n_moves, int64_t begin,
                            int64_t end)
{
  /* The plan's moves may come in any order: follow them from `begin`. */
  while (begin < end) {
    int64_t before = begin;
    for (uint64_t k = 0; k < n_moves; k++) {
      xfer_move m;
      assert_int_equal(xfer_plan_move_get(plan, k, &m), XFER_OK);
      if (m.dst_rank == rank && m.lo[0] == begin && m.hi[0] > begin) begin = m.hi[0];
    }
    assert_true(begin > before);
  }
  assert_int_equal(begin, end);
}

static int64_t chunk_at(int64_t n, int64_t m, int64_t i)
{
  int64_t at = (n + m - 1) / m * i;
  return at < n ? at : n;
}

static void assert_plans_1d(const char *dtype, int64_t elem, int64_t n, uint64_t window,
                            uint32_t lane)
{
  char line[100];
  xfer_tensor tensor = {.name = "big"};
  xfer_layout *src = NULL, *dst = NULL;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  options.window_bytes = window;
  options.lane = lane;
  (void)snprintf(line, sizeof line, "%s[%lld] (2)@0-1:S0 -> (3)@2-4:S0", dtype, (long long)n);
  assert_int_equal(xfer_problem_parse(&src, &dst, line), XFER_OK);
  tensor.src = src;
  tensor.dst = dst;
  for (int rank = 0; rank < 5; rank++) {
    xfer_plan *plan = NULL;
    xfer_plan_report_data rep = XFER_PLAN_REPORT_INIT;
    int64_t m = rank < 2 ? 2 : 3;
    int64_t at = rank < 2 ? rank : rank - 2;
    int64_t begin = chunk_at(n, m, at), end = chunk_at(n, m, at + 1);
    assert_int_equal(xfer_plan_simulate(&plan, 5, rank, &tensor, 1, &options), XFER_OK);
    assert_int_equal(xfer_plan_report(plan, &rep), XFER_OK);
    assert_int_equal(rep.payload_bytes, n * elem);
    assert_int_equal(rep.out_bytes, rank < 2 ? (end - begin) * elem : 0);
    assert_int_equal(rep.in_bytes, rank < 2 ? 0 : (end - begin) * elem);
    assert_int_equal(rep.wire_bytes, rep.in_bytes);
    if (rank >= 2) assert_interval(plan, rank, rep.n_moves, begin, end);
    xfer_plan_destroy(plan);
  }
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

static void test_plans_at_2_to_the_31_and_32_bytes(void **state)
{
  (void)state;
  for (int bits = 31; bits <= 32; bits++) {
    for (int64_t more = -1; more <= 1; more++) {
      int64_t n = ((int64_t)1 << bits) + more;
      print_message("%lld bytes and elements\n", (long long)n);
      assert_plans_1d("u8", 1, n, 0, XFER_LANE_AUTO);
      assert_plans_1d("u8", 1, n, (uint64_t)1 << 30, XFER_LANE_PACKED);
      assert_plans_1d("f64", 8, n / 8 + more, 0, XFER_LANE_DIRECT);
      assert_plans_1d("f64", 8, n, 0, XFER_LANE_AUTO);    /* 2^35 bytes */
      assert_plans_1d("u8", 1, 3 * n, 0, XFER_LANE_AUTO); /* each destination has n */
      assert_plans_1d("u8", 1, 2 * n, 0, XFER_LANE_AUTO); /* each source has n */
    }
  }
}

static void test_plans_transposed_shards_of_2_to_the_32_bytes(void **state)
{
  xfer_tensor tensor = {.name = "big"};
  (void)state;
  for (int64_t rows = 65535; rows <= 65537; rows++) {
    char line[100];
    xfer_layout *src = NULL, *dst = NULL;
    uint64_t in = 0, out = 0;
    (void)snprintf(line, sizeof line, "u8[%lld,65536] (4)@0-3:S0 -> (4)@4-7:S1", (long long)rows);
    assert_int_equal(xfer_problem_parse(&src, &dst, line), XFER_OK);
    tensor.src = src;
    tensor.dst = dst;
    for (int rank = 0; rank < 8; rank++) {
      xfer_plan *plan = NULL;
      xfer_plan_report_data rep = XFER_PLAN_REPORT_INIT;
      assert_int_equal(xfer_plan_simulate(&plan, 8, rank, &tensor, 1, NULL), XFER_OK);
      assert_int_equal(xfer_plan_report(plan, &rep), XFER_OK);
      if (rank >= 4) assert_int_equal(rep.wire_bytes, rows * 16384);
      in += rep.wire_bytes;
      out += rep.out_bytes;
      xfer_plan_destroy(plan);
    }
    assert_int_equal(in, rows * 65536);
    assert_int_equal(out, in);
    xfer_layout_destroy(src);
    xfer_layout_destroy(dst);
  }
}

/* ---- one plan, many runs ---- */

enum { N_RANKS = 4, N_RUNS = 1000, N_ROWS = 50, N_COLUMNS = 12 };

typedef struct long_job {
  xfer_comm *comms[N_RANKS];
  xfer_layout *src, *dst;
  uint32_t lane;
  int n_wrong;
  long pages_after_100, pages_after_all;
  void (*work)(struct long_job *j, int rank);
} long_job;

static void play(void *context, int rank)
{
  long_job *j = context;
  j->work(j, rank);
}

static void note_wrong(long_job *j, int rank, const char *what, xfer_status st)
{
  (void)__atomic_fetch_add(&j->n_wrong, 1, __ATOMIC_RELAXED);
  fprintf(stderr, "rank %d: %s: %s (%s)\n", rank, what, xfer_status_name(st), xfer_last_error());
}

static bool expect(long_job *j, int rank, const char *what, xfer_status is, xfer_status wanted)
{
  if (is != wanted) note_wrong(j, rank, what, is);
  return is == wanted;
}

static void run_ranks(long_job *j, const char *line, void (*work)(long_job *j, int rank))
{
  crew *c = crew_create(N_RANKS);
  assert_non_null(c);
  assert_int_equal(xfer_problem_parse(&j->src, &j->dst, line), XFER_OK);
  assert_int_equal(xfer_comm_create_local(j->comms, N_RANKS), XFER_OK);
  j->work = work;
  if (!crew_run(c, N_RANKS, play, j, 100)) {
    fprintf(stderr, "a rank hangs\n");
    abort();
  }
  for (int r = 0; r < N_RANKS; r++)
    xfer_comm_destroy(j->comms[r]);
  xfer_layout_destroy(j->src);
  xfer_layout_destroy(j->dst);
  crew_destroy(c);
  assert_int_equal(j->n_wrong, 0);
}

/* Without those of files: code that runs for the first time takes some too. */
static long own_pages(void)
{
  long size = 0, resident = 0, shared = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL) return 0;
  if (fscanf(file, "%ld %ld %ld", &size, &resident, &shared) != 3) resident = shared = 0;
  fclose(file);
  return resident - shared;
}

static int32_t value(int64_t row, int64_t column, int run)
{
  return (int32_t)(row * 1000 + column + run * 1000000);
}

/* f32-sized rows on ranks 0 and 1, columns on ranks 2 and 3. */
static void work_many_runs(long_job *j, int rank)
{
  enum { SIZE = N_ROWS * N_COLUMNS / 2, HALF = N_COLUMNS / 2 };
  int32_t part[SIZE] = {0};
  xfer_tensor tensor = {"weights", j->src, j->dst, {0}};
  xfer_view view = xfer_view_dense(part);
  xfer_plan *plan = NULL;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  options.lane = j->lane;
  options.window_bytes = 256;
  bool on = expect(j, rank, "create", xfer_plan_create(&plan, j->comms[rank], &tensor, 1, &options),
                   XFER_OK);
  on = on &&
       expect(j, rank, "bind",
              xfer_plan_bind(plan, 0, rank < 2 ? &view : NULL, rank < 2 ? NULL : &view), XFER_OK);
  on = on && expect(j, rank, "commit", xfer_plan_commit(plan), XFER_OK);
  for (int run = 1; on && run <= N_RUNS; run++) {
    for (int k = 0; rank < 2 && k < SIZE; k++) {
      part[k] = value(rank * (N_ROWS / 2) + k / N_COLUMNS, k % N_COLUMNS, run);
    }
    on = on && expect(j, rank, "run", xfer_plan_run(plan, (uint64_t)run, NULL), XFER_OK);
    on = on && expect(j, rank, "wait", xfer_plan_wait(plan, 0), XFER_OK);
    for (int k = 0; on && rank >= 2 && k < SIZE; k++) {
      on = part[k] == value(k / HALF, (rank - 2) * HALF + k % HALF, run);
      if (!on) note_wrong(j, rank, "a wrong byte", XFER_OK);
    }
    if (rank == 0 && run == 100) j->pages_after_100 = own_pages();
    if (rank == 0 && run == N_RUNS) j->pages_after_all = own_pages();
  }
  xfer_plan_destroy(plan);
}

static void test_1000_runs_of_one_plan_are_right_and_take_no_memory(void **state)
{
  (void)state;
  for (uint32_t lane = XFER_LANE_AUTO; lane <= XFER_LANE_BROADCAST; lane++) {
    long_job j = {.lane = lane};
    run_ranks(&j, "i32[50,12] (2)@0-1:S0 -> (2)@2-3:S1", work_many_runs);
    if (!THREAD_SANITIZER) assert_true(j.pages_after_all - j.pages_after_100 < 32);
  }
}

/* ---- refused, on every rank ---- */

static void work_wrong_states(long_job *j, int rank)
{
  int32_t part[N_ROWS * N_COLUMNS] = {0};
  xfer_tensor tensor = {"weights", j->src, j->dst, {0}};
  xfer_view view = xfer_view_dense(part);
  const xfer_view *src = rank < 2 ? &view : NULL, *dst = rank < 2 ? NULL : &view;
  xfer_plan *plan = NULL;
  if (!expect(j, rank, "create", xfer_plan_create(&plan, j->comms[rank], &tensor, 1, NULL),
              XFER_OK))
    return;
  (void)expect(j, rank, "run before commit", xfer_plan_run(plan, 1, NULL), XFER_ERR_STATE);
  (void)expect(j, rank, "wait before run", xfer_plan_wait(plan, 0), XFER_ERR_STATE);
  (void)expect(j, rank, "commit before bind", xfer_plan_commit(plan), XFER_ERR_STATE);
  (void)expect(j, rank, "bind", xfer_plan_bind(plan, 0, src, dst), XFER_OK);
  (void)expect(j, rank, "bind a tensor that is not there", xfer_plan_bind(plan, 1, src, dst),
               XFER_ERR_ARG);
  (void)expect(j, rank, "run before commit", xfer_plan_run(plan, 1, NULL), XFER_ERR_STATE);
  (void)expect(j, rank, "commit", xfer_plan_commit(plan), XFER_OK);
  (void)expect(j, rank, "run", xfer_plan_run(plan, 5, NULL), XFER_OK);
  (void)expect(j, rank, "run while one is in flight", xfer_plan_run(plan, 6, NULL), XFER_ERR_STATE);
  (void)expect(j, rank, "bind while one is in flight", xfer_plan_bind(plan, 0, src, dst),
               XFER_ERR_STATE);
  (void)expect(j, rank, "wait", xfer_plan_wait(plan, 0), XFER_OK);
  (void)expect(j, rank, "wait twice", xfer_plan_wait(plan, 0), XFER_ERR_STATE);
  (void)expect(j, rank, "the same version", xfer_plan_run(plan, 5, NULL), XFER_ERR_STATE);
  (void)expect(j, rank, "an older version", xfer_plan_run(plan, 4, NULL), XFER_ERR_STATE);
  (void)expect(j, rank, "bind the same", xfer_plan_bind(plan, 0, src, dst), XFER_OK);
  (void)expect(j, rank, "run after that", xfer_plan_run(plan, 6, NULL), XFER_OK);
  (void)expect(j, rank, "wait", xfer_plan_wait(plan, 0), XFER_OK);
  (void)expect(j, rank, "commit again", xfer_plan_commit(plan), XFER_OK);
  (void)expect(j, rank, "release", xfer_plan_release(plan), XFER_OK);
  (void)expect(j, rank, "run after release", xfer_plan_run(plan, 7, NULL), XFER_ERR_STATE);
  (void)expect(j, rank, "commit after release", xfer_plan_commit(plan), XFER_OK);
  (void)expect(j, rank, "run", xfer_plan_run(plan, 7, NULL), XFER_OK);
  (void)expect(j, rank, "wait", xfer_plan_wait(plan, 0), XFER_OK);
  xfer_plan_destroy(plan);
}

static void test_calls_in_the_wrong_state_are_refused_on_every_rank(void **state)
{
  long_job j = {0};
  (void)state;
  run_ranks(&j, "i32[50,12] (2)@0-1:S0 -> (2)@2-3:S1", work_wrong_states);
}

static void commit_two(long_job *j, int rank, const xfer_view *first, const xfer_view *second,
                       xfer_status wanted)
{
  int32_t part[N_ROWS * N_COLUMNS] = {0};
  xfer_tensor tensors[2] = {{"up", j->src, j->dst, {0}}, {"down", j->src, j->dst, {0}}};
  xfer_view src = xfer_view_dense(part);
  xfer_plan *plan = NULL;
  if (!expect(j, rank, "create", xfer_plan_create(&plan, j->comms[rank], tensors, 2, NULL),
              XFER_OK))
    return;
  (void)expect(j, rank, "bind", xfer_plan_bind(plan, 0, &src, first), XFER_OK);
  (void)expect(j, rank, "bind", xfer_plan_bind(plan, 1, &src, second), XFER_OK);
  xfer_status st = xfer_plan_commit(plan);
  bool said = st == wanted || (wanted != XFER_OK && st == XFER_ERR_PEER);
  if (!said) note_wrong(j, rank, "commit of two destinations", st);
  if (st == XFER_ERR_SHAPE &&
      (strstr(xfer_last_error(), "up") == NULL || strstr(xfer_last_error(), "down") == NULL)) {
    note_wrong(j, rank, "the text does not name both tensors", st);
  }
  xfer_plan_destroy(plan);
}

/* Both tensors are i32[50,12] in columns of 6 on ranks 2 and 3. */
static void work_overlaps(long_job *j, int rank)
{
  int32_t memory[4 * N_ROWS * N_COLUMNS];
  const int64_t wide[2] = {N_COLUMNS * 4, 4}, apart[2] = {N_COLUMNS * 4, 8};
  xfer_view left = xfer_view_strided(memory, wide, 2),
            right = xfer_view_strided(memory + 6, wide, 2);
  xfer_view shifted = xfer_view_strided(memory + 5, wide, 2),
            even = xfer_view_strided(memory, apart, 2);
  xfer_view odd = xfer_view_strided(memory + 1, apart, 2), dense = xfer_view_dense(memory);
  commit_two(j, rank, &left, &right, XFER_OK);
  commit_two(j, rank, &even, &odd, XFER_OK);
  commit_two(j, rank, &left, &left, XFER_OK); /* the same view: shared on purpose */
  commit_two(j, rank, &left, &shifted, XFER_ERR_SHAPE);
  commit_two(j, rank, &even, &left, XFER_ERR_SHAPE);
  commit_two(j, rank, &dense, &right, XFER_ERR_SHAPE);
}

static void test_overlapping_destinations_are_refused_and_neighbours_are_not(void **state)
{
  long_job j = {0};
  (void)state;
  run_ranks(&j, "i32[50,12] (2)@0-1:S0 -> (2)@2-3:S1", work_overlaps);
}

static void work_misfits(long_job *j, int rank)
{
  int32_t part[N_ROWS * N_COLUMNS] = {0};
  int64_t strides[3] = {N_COLUMNS * 4, 4, 4};
  void *pieces[4] = {part, part, part, part};
  xfer_tensor tensor = {"weights", j->src, j->dst, {0}};
  xfer_plan *plan = NULL;
  if (!expect(j, rank, "create", xfer_plan_create(&plan, j->comms[rank], &tensor, 1, NULL),
              XFER_OK))
    return;
  xfer_view bad[5];
  bad[0] = xfer_view_strided(part, strides, 1);
  bad[1] = xfer_view_strided(part, strides, 3);
  bad[2] = xfer_view_pieces(pieces, 4, 0, strides, 2); /* 25 and 50 rows do not divide by 4 */
  strides[1] = 0;
  bad[3] = xfer_view_strided(part, strides, 2);
  strides[1] = -4;
  bad[4] = xfer_view_strided(part, strides, 2);
  for (int i = 0; i < 5; i++) {
    const xfer_view *src = rank < 2 ? &bad[i] : NULL, *dst = rank < 2 ? NULL : &bad[i];
    (void)expect(j, rank, "bind of a view that does not fit", xfer_plan_bind(plan, 0, src, dst),
                 XFER_ERR_SHAPE);
  }
  xfer_plan_destroy(plan);
}

static void test_views_that_do_not_fit_are_refused(void **state)
{
  long_job j = {0};
  (void)state;
  run_ranks(&j, "i32[50,12] (2)@0-1:S0 -> (2)@2-3:S1", work_misfits);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_redistribute_between_meshes_of_any_relation),
      cmocka_unit_test(test_redistribute_sends_what_is_changed_through_slots),
      cmocka_unit_test(test_plans_at_2_to_the_31_and_32_bytes),
      cmocka_unit_test(test_plans_transposed_shards_of_2_to_the_32_bytes),
      cmocka_unit_test(test_1000_runs_of_one_plan_are_right_and_take_no_memory),
      cmocka_unit_test(test_calls_in_the_wrong_state_are_refused_on_every_rank),
      cmocka_unit_test(test_overlapping_destinations_are_refused_and_neighbours_are_not),
      cmocka_unit_test(test_views_that_do_not_fit_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
