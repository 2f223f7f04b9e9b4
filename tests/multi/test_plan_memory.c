/* Plans whose memory moves, or whose device fails, while other ranks are in the run. Ranks are
   threads, their memory that of told_device.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "told_job.h"

#include <stdio.h>

/* A plan for the first problem, bound to what view_of() gives. */
typedef struct bound_plan {
  xfer_plan *plan;
  xfer_layout *src;
  xfer_layout *dst;
  xfer_view src_view;
  xfer_view dst_view;
} bound_plan;

static bound_plan make_plan(job *j, int rank, uint32_t lane)
{
  const part has = part_of(&problems[0], SRC, rank);
  const part gets = part_of(&problems[0], DST, rank);
  void *pieces[MOST_ROWS];
  xfer_tensor tensor = {"tensor", NULL, NULL, {0}};
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  bound_plan b = {.src_view = view_of(DENSE, SRC, &has, j->w.arenas[rank], pieces),
                  .dst_view = view_of(DENSE, DST, &gets, j->w.arenas[rank], pieces)};

  options.lane = lane;
  options.timeout_ms = 20000;
  if (xfer_problem_parse(&b.src, &b.dst, problems[0].line) != XFER_OK) abort();
  tensor.src = b.src;
  tensor.dst = b.dst;
  expect(xfer_plan_create(&b.plan, j->comms[rank], &tensor, 1, &options) == XFER_OK);
  return b;
}

static void bind_plan(const bound_plan *b)
{
  expect(xfer_plan_bind(b->plan, 0, &b->src_view, &b->dst_view) == XFER_OK);
}

static void destroy_plan(bound_plan *b)
{
  xfer_plan_destroy(b->plan);
  xfer_layout_destroy(b->src);
  xfer_layout_destroy(b->dst);
}

/* One run of a plan whose destinations are poisoned before; where it works, they are right. */
static xfer_status run_plan(job *j, int rank, xfer_plan *plan, int version)
{
  arena *arenas = j->w.arenas[rank];
  image after;
  xfer_status st;

  memset(&after, POISON, sizeof after);
  draw(&after, DENSE, SRC, &problems[0], rank, version);
  for (int k = 0; k < N_ARENAS; k++)
    memcpy(arenas[k].base, after.bytes[k], ARENA_BYTES);
  draw(&after, DENSE, DST, &problems[0], rank, version);
  meet(j, rank);
  st = xfer_plan_run(plan, (uint64_t)version, NULL);
  if (rank == j->victim) j->outcomes[rank] = st;
  st = xfer_plan_wait(plan, 0);
  if (st == XFER_OK) expect(shows(&after, arenas));
  return st;
}

static void remap_between_runs(job *j, int rank)
{
  bound_plan b = make_plan(j, rank, XFER_LANE_DIRECT);
  xfer_plan *plan = b.plan;

  for (int version = 1; version <= 3; version += 2) {
    bind_plan(&b);
    expect(xfer_plan_commit(plan) == XFER_OK);
    expect(run_plan(j, rank, plan, version) == XFER_OK);
    if (rank == j->victim) renew(&j->w, rank, j->side);
    expect(run_plan(j, rank, plan, version + 1) != XFER_OK);
    if (rank == j->victim) expect(j->outcomes[rank] == XFER_ERR_STATE);
  }
  /* Everybody at once, and nobody waits for the run that was refused. */
  expect(xfer_plan_commit(plan) == XFER_OK);
  renew(&j->w, rank, rank == 0 ? SRC : DST);
  expect(xfer_plan_run(plan, 5, NULL) == XFER_ERR_STATE);
  meet(j, rank);
  bind_plan(&b);
  expect(xfer_plan_commit(plan) == XFER_OK);
  expect(run_plan(j, rank, plan, 5) == XFER_OK);
  destroy_plan(&b);
}

static void test_memory_remapped_at_one_address_needs_a_commit_and_gets_one(void **state)
{
  (void)state;
  for (int side = SRC; side <= DST; side++) {
    job j = {.victim = 1, .side = side}; /* which has both */

    run_job(&j, remap_between_runs);
  }
}

static void expect_words(const xfer_plan *plan, const char *first, const char *second)
{
  char *text = NULL;

  expect(xfer_plan_print(plan, &text, 0) == XFER_OK);
  if (strstr(text, first) == NULL || strstr(text, second) == NULL) print_message("%s\n", text);
  expect(strstr(text, first) != NULL && strstr(text, second) != NULL);
  xfer_text_free(text);
}

/* Rank 2's memory can be mapped, rank 3's cannot, and no source can. */
static void say_the_way(job *j, int rank)
{
  bound_plan b;

  j->w.arenas[rank][DST].stays = rank == 3;
  j->w.arenas[rank][SRC].stays = true;
  meet(j, rank);
  b = make_plan(j, rank, XFER_LANE_AUTO);
  bind_plan(&b);
  if (rank == 0) expect_words(b.plan, "  to rank   2", " bytes\n"); /* not settled */
  expect(xfer_plan_commit(b.plan) == XFER_OK);
  if (rank == 0)
    expect_words(
        b.plan, "bytes, direct: this rank copies\n",
        "bytes, packed: rank 0 cannot map rank 3: the memory of another process cannot be");
  if (rank == 2) expect_words(b.plan, "bytes, direct: the peer copies\n", "from rank 0");
  if (rank == 3) expect_words(b.plan, "packed: rank 3 cannot map rank 0: ", "from rank 0");
  destroy_plan(&b);
  b = make_plan(j, rank, XFER_LANE_PACKED);
  bind_plan(&b);
  expect(xfer_plan_commit(b.plan) == XFER_OK);
  if (rank == 0) expect_words(b.plan, "packed: the lane was asked for\n", "to rank");
  destroy_plan(&b);
}

static void test_a_committed_plan_says_how_data_travels_and_why(void **state)
{
  job j = {.victim = NOBODY};

  (void)state;
  run_job(&j, say_the_way);
}

/* A comm without messages, as ranks that share a GPU have. */
static void have_no_other_way(job *j, int rank)
{
  xfi_comm *transport = j->comms[rank]->transport;
  const xfi_comm_ops *before = transport->ops;
  xfi_comm_ops bare = *before;
  bound_plan b;
  xfer_status st;

  bare.round = NULL;
  bare.broadcast = NULL;
  transport->ops = &bare;
  j->w.arenas[rank][DST].stays = rank == 3;
  j->w.arenas[rank][SRC].stays = true;
  meet(j, rank);
  b = make_plan(j, rank, XFER_LANE_AUTO);
  bind_plan(&b);
  st = xfer_plan_commit(b.plan);
  expect(st == XFER_ERR_UNSUPPORTED || st == XFER_ERR_PEER);
  if (rank == 3) {
    expect(st == XFER_ERR_UNSUPPORTED);
    expect(strstr(xfer_last_error(), "no other way") != NULL);
    expect(strstr(xfer_last_error(), "; rank 3 cannot map rank 0: the memory") != NULL);
  }
  j->w.arenas[rank][DST].stays = false;
  meet(j, rank);
  expect(xfer_plan_commit(b.plan) == XFER_OK);
  expect(run_plan(j, rank, b.plan, 1) == XFER_OK);
  destroy_plan(&b);
  meet(j, rank);
  transport->ops = before;
}

static void test_a_pair_without_a_way_fails_the_commit_and_says_why(void **state)
{
  job j = {.victim = NOBODY};

  (void)state;
  run_job(&j, have_no_other_way);
}

/* Rank 1 copies for rank 2 directly, and exchanges with rank 3 through slots. */
static void fail_beside_rounds(job *j, int rank)
{
  bound_plan b;
  const int64_t began = xfi_now_ns();

  j->w.arenas[rank][DST].stays = rank == 3;
  j->w.arenas[rank][SRC].stays = true;
  meet(j, rank);
  b = make_plan(j, rank, XFER_LANE_AUTO);
  bind_plan(&b);
  expect(xfer_plan_commit(b.plan) == XFER_OK);
  expect(run_plan(j, rank, b.plan, 1) == XFER_OK);
  j->devices[rank]->launch_fails = rank == 1;
  expect(run_plan(j, rank, b.plan, 2) != XFER_OK);
  expect(xfi_now_ns() - began < INT64_C(15000000000)); /* nobody waited for the deadline */
  destroy_plan(&b);
}

static void test_a_rank_whose_copies_fail_does_not_keep_others_in_their_rounds(void **state)
{
  job j = {.victim = NOBODY};

  (void)state;
  run_job(&j, fail_beside_rounds);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memory_remapped_at_one_address_needs_a_commit_and_gets_one),
      cmocka_unit_test(test_a_committed_plan_says_how_data_travels_and_why),
      cmocka_unit_test(test_a_pair_without_a_way_fails_the_commit_and_says_why),
      cmocka_unit_test(test_a_rank_whose_copies_fail_does_not_keep_others_in_their_rounds),
  };

  return cmocka_run_group_tests(tests, NULL, NULL);
}
