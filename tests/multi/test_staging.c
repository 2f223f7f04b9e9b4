/* Staging memory: the plans of a comm share one block, which is as large as the one needs that
 * needs most, also where they are in flight at once; who gives it; what is said of it before a
 * commit. And plans that ranks do not use in one order. Ranks are threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <xfer/xfer.h>

#include "unit/ranks.h"

enum { N_RANKS = 4, N_PLANS = 6, MOST = 1 << 16 };

/* Columns of u32[4,columns]: plans that need more and less staging, in no order. */
static const int columns[N_PLANS] = {64, 4096, 128, 16384, 1024, 8192};

/* What a rank's caller gave. */
typedef struct giver {
  size_t now, most, largest; /* bytes */
  int n_calls;
  int refuse; /* gives nothing; 2: what is aligned badly */
} giver;

static void *give(void *context, size_t n_bytes)
{
  giver *g = context;
  char *p = NULL;

  if (g->refuse == 1) return NULL;
  p = aligned_alloc(64, (n_bytes + 191) / 64 * 64);
  if (p == NULL) abort();
  memcpy(p, &n_bytes, sizeof n_bytes);
  g->n_calls++;
  g->now += n_bytes;
  if (g->now > g->most) g->most = g->now;
  if (n_bytes > g->largest) g->largest = n_bytes;
  return p + 64 + (g->refuse == 2 ? 8 : 0);
}

static void take_back(void *context, void *memory)
{
  giver *g = context;
  char *p = (char *)memory - (uintptr_t)memory % 64 - 64;
  size_t n_bytes;

  memcpy(&n_bytes, p, sizeof n_bytes);
  g->now -= n_bytes;
  free(p);
}

typedef struct job {
  xfer_comm *comms[N_RANKS];
  giver givers[N_RANKS];
  uint32_t lane;
} job;

static uint32_t (*sources)[N_PLANS][MOST], (*destinations)[N_PLANS][MOST]; /* [N_RANKS] */

static const char *line_of(const job *j, int p, char *line, size_t n_bytes)
{
  (void)snprintf(line, n_bytes, "u32[4,%d] (4):S0 -> (4):%s", columns[p],
                 j->lane == XFER_LANE_BROADCAST ? "R" : "S1");
  return line;
}

static void layouts_of(const job *j, int p, xfer_tensor *tensor)
{
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  char line[80];

  expect(xfer_problem_parse(&src, &dst, line_of(j, p, line, sizeof line)) == XFER_OK);
  *tensor = (xfer_tensor){"t", src, dst, {0}};
}

static void free_layouts(const xfer_tensor *tensor)
{
  xfer_layout_destroy((xfer_layout *)(uintptr_t)tensor->src);
  xfer_layout_destroy((xfer_layout *)(uintptr_t)tensor->dst);
}

/* Bound, not committed. */
static xfer_plan *make_plan(const job *j, int rank, int p, uint64_t window)
{
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  const xfer_view src = xfer_view_dense(sources[rank][p]);
  const xfer_view dst = xfer_view_dense(destinations[rank][p]);
  xfer_plan *plan = NULL;
  xfer_tensor tensor;

  layouts_of(j, p, &tensor);
  options.lane = j->lane;
  options.window_bytes = window;
  expect(xfer_plan_create(&plan, j->comms[rank], &tensor, 1, &options) == XFER_OK);
  expect(xfer_plan_bind(plan, 0, &src, &dst) == XFER_OK);
  free_layouts(&tensor);
  return plan;
}

static uint32_t value_of(int p, int row, int column, int run)
{
  return (uint32_t)(((run * N_PLANS + p) * 4 + row) * MOST + column);
}

static void fill(int rank, int p, int run)
{
  memset(destinations[rank][p], 0xee, sizeof destinations[rank][p]);
  for (int c = 0; c < columns[p]; c++)
    sources[rank][p][c] = value_of(p, rank, c, run);
}

static bool came(const job *j, int rank, int p, int run)
{
  const bool all = j->lane == XFER_LANE_BROADCAST;
  const int n = all ? columns[p] : columns[p] / N_RANKS;

  for (int i = 0; i < 4 * n; i++)
    if (destinations[rank][p][i] != value_of(p, i / n, (all ? 0 : rank * n) + i % n, run))
      return false;
  return true;
}

static uint64_t staging_of(const xfer_plan *plan)
{
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;

  expect(xfer_plan_report(plan, &report) == XFER_OK);
  return report.staging_bytes;
}

/* All begin, then all are waited for: the n-th run. */
static void run_all(const job *j, int rank, xfer_plan **plans, int n, int run)
{
  for (int p = 0; p < n; p++)
    fill(rank, p, run);
  for (int p = 0; p < n; p++)
    expect(xfer_plan_run(plans[p], (uint64_t)run, NULL) == XFER_OK);
  for (int p = 0; p < n; p++) {
    expect(xfer_plan_wait(plans[p], 0) == XFER_OK);
    expect(came(j, rank, p, run));
  }
}

/* Plans are added one by one, all running in between, and go one by one. */
static void share(int rank, void *context)
{
  job *j = context;
  giver *g = &j->givers[rank];
  xfer_plan *plans[N_PLANS];
  uint64_t most = 0;
  int run = 0;

  expect(xfer_comm_set_staging(j->comms[rank], give, take_back, g) == XFER_OK);
  for (int p = 0; p < N_PLANS; p++) {
    uint64_t foreseen;

    plans[p] = make_plan(j, rank, p, 0);
    foreseen = staging_of(plans[p]);
    expect(xfer_plan_commit(plans[p]) == XFER_OK);
    expect(staging_of(plans[p]) > 0 && staging_of(plans[p]) == foreseen);
    if (foreseen > most) most = foreseen;
    expect(g->now == most);
    run_all(j, rank, plans, p + 1, ++run);
  }
  expect(g->n_calls == 3); /* each larger one than those before */
  expect(g->largest == most);
  for (int p = 0; p < N_PLANS; p++) {
    xfer_plan_destroy(plans[p]);
    expect(g->now == (p + 1 < N_PLANS ? most : 0));
  }
}

static void play(uint32_t lane, rank_body *body)
{
  job *j = calloc(1, sizeof *j);

  sources = calloc(N_RANKS, sizeof *sources);
  destinations = calloc(N_RANKS, sizeof *destinations);
  assert_true(j != NULL && sources != NULL && destinations != NULL);
  j->lane = lane;
  assert_int_equal(xfer_comm_create_local(j->comms, N_RANKS), XFER_OK);
  run_ranks(N_RANKS, body, j);
  for (int r = 0; r < N_RANKS; r++) {
    xfer_comm_destroy(j->comms[r]);
    expect(j->givers[r].now == 0);
  }
  free(sources);
  free(destinations);
  free(j);
  assert_all_as_expected();
}

static void test_plans_share_a_block_of_the_largest(void **state)
{
  (void)state;
  play(XFER_LANE_PACKED, share);
  play(XFER_LANE_BROADCAST, share);
}

/* A block that cannot be had is an error of the commit that needs it, of all ranks; the plans
 * before go on in theirs. */
static void refuse(int rank, void *context)
{
  job *j = context;
  giver *g = &j->givers[rank];
  xfer_plan *plans[2];

  expect(xfer_comm_set_staging(j->comms[rank], give, NULL, g) == XFER_ERR_ARG);
  expect(xfer_comm_set_staging(NULL, give, take_back, g) == XFER_ERR_ARG);
  expect(xfer_comm_set_staging(j->comms[rank], give, take_back, g) == XFER_OK);
  plans[0] = make_plan(j, rank, 0, 0);
  expect(xfer_plan_commit(plans[0]) == XFER_OK);
  plans[1] = make_plan(j, rank, 1, 0);
  for (int how = 1; how <= 2; how++) {
    const xfer_status own = how == 1 ? XFER_ERR_NOMEM : XFER_ERR_ARG;

    if (rank == 2) g->refuse = how;
    expect(xfer_plan_commit(plans[1]) == (rank == 2 ? own : XFER_ERR_PEER));
    expect(strstr(xfer_last_error(), how == 1 ? "the caller gave no memory" : "multiple of 16") !=
           NULL);
    g->refuse = 0;
    run_all(j, rank, plans, 1, how);
  }
  expect(xfer_plan_commit(plans[1]) == XFER_OK);
  run_all(j, rank, plans, 2, 3);
  expect(xfer_comm_set_staging(j->comms[rank], NULL, NULL, NULL) == XFER_OK);
  expect(xfer_plan_release(plans[0]) == XFER_OK);
  expect(xfer_plan_release(plans[1]) == XFER_OK);
  expect(g->now == 0);
  expect(xfer_plan_commit(plans[0]) == XFER_OK); /* by the library's own */
  run_all(j, rank, plans, 1, 4);
  expect(g->now == 0);
  xfer_plan_destroy(plans[0]);
  xfer_plan_destroy(plans[1]);
}

static void test_a_block_that_is_refused_is_an_error_and_spares_others(void **state)
{
  (void)state;
  play(XFER_LANE_PACKED, refuse);
}

/* No comm and no memory: the same figure as on the comm, also where there are many rounds. */
static void foresee(int rank, void *context)
{
  job *j = context;

  for (int i = 0; i < (j->lane == XFER_LANE_PACKED ? 2 : 1) * N_PLANS; i++) {
    const int p = i % N_PLANS;
    const uint64_t window = i < N_PLANS ? 0 : 256; /* broadcasts of more go in place */
    xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
    xfer_plan *plan = make_plan(j, rank, p, window);
    xfer_plan *simulated = NULL;
    xfer_tensor tensor;

    layouts_of(j, p, &tensor);
    options.lane = j->lane;
    options.window_bytes = window;
    expect(xfer_plan_simulate(&simulated, N_RANKS, rank, &tensor, 1, &options) == XFER_OK);
    expect(xfer_plan_commit(plan) == XFER_OK);
    expect(staging_of(simulated) > 0 && staging_of(simulated) == staging_of(plan));
    free_layouts(&tensor);
    xfer_plan_destroy(simulated);
    xfer_plan_destroy(plan);
  }
}

static void test_staging_is_known_before_a_commit_and_in_simulations(void **state)
{
  (void)state;
  play(XFER_LANE_PACKED, foresee);
  play(XFER_LANE_BROADCAST, foresee);
}

/* Ranks that mean other plans are told so at once, and go on. */
static void cross(int rank, void *context)
{
  job *j = context;
  xfer_plan *plans[2] = {make_plan(j, rank, 0, 0), make_plan(j, rank, 2, 0)};
  const int first = rank == 1;

  expect(xfer_plan_commit(plans[first]) == XFER_ERR_MISMATCH);
  expect(strstr(xfer_last_error(), "rank 1 commits plan 1 of the comm and rank 0 plan 0") != NULL);
  for (int p = 0; p < 2; p++)
    expect(xfer_plan_commit(plans[p]) == XFER_OK);
  for (int p = 0; p < 2; p++)
    expect(xfer_plan_run(plans[p], 1, NULL) == XFER_OK);
  expect(xfer_plan_wait(plans[first], 0) == XFER_ERR_MISMATCH);
  expect(strstr(xfer_last_error(),
                "rank 1 waits for plan 1 of the comm, rank 0 waits for plan 0") != NULL);
  expect(xfer_plan_wait(plans[1 - first], 0) != XFER_OK);
  for (int p = 0; p < 2; p++)
    expect(xfer_plan_commit(plans[p]) == XFER_OK);
  fill(rank, 0, 2);
  expect(xfer_plan_run(plans[0], 2, NULL) == XFER_OK);
  expect(xfer_plan_wait(plans[0], 0) == XFER_OK);
  expect(came(j, rank, 0, 2));
  xfer_plan_destroy(plans[0]);
  xfer_plan_destroy(plans[1]);
}

static void test_plans_in_opposite_order_are_told_apart_at_once(void **state)
{
  (void)state;
  play(XFER_LANE_DIRECT, cross);
  play(XFER_LANE_PACKED, cross);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_plans_share_a_block_of_the_largest),
      cmocka_unit_test(test_a_block_that_is_refused_is_an_error_and_spares_others),
      cmocka_unit_test(test_staging_is_known_before_a_commit_and_in_simulations),
      cmocka_unit_test(test_plans_in_opposite_order_are_told_apart_at_once),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
