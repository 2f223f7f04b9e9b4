/* Sources whose memory is theirs for one run: who copies them, what is mapped, and what stays. */
#include "object.h" /* before a type called tensor */

#include "chunk_memory.h"
#include "counted_mappings.h"

#include <string.h>

enum { PASSING = 4, ROWS = 2, ROW = 1 << 19, PASSING_BYTES = ROWS * ROW };

/* Every second one in pieces. */
static void bind_new_source(xfer_plan *plan, int i, unsigned char *memory, int value)
{
  static const int64_t strides[2] = {ROW, 1};
  void *const pieces[ROWS] = {memory, memory + ROW};
  const xfer_view whole = xfer_view_dense(memory);
  const xfer_view rows = xfer_view_pieces(pieces, ROWS, 0, strides, 2);

  memset(memory, value, PASSING_BYTES);
  OK(xfer_plan_bind(plan, (size_t)i, i % 2 == 0 ? &whole : &rows, NULL));
}

static void bind_destination(xfer_plan *plan, int i, unsigned char *memory)
{
  const xfer_view view = xfer_view_dense(memory);

  memset(memory, 0xee, PASSING_BYTES);
  OK(xfer_plan_bind(plan, (size_t)i, NULL, &view));
}

/* What would be pulled else. Each source lies in new memory, which is freed
 * once its run is over: no peer has it, and the lanes stay. The receiver too goes elsewhere in its
 * memory. */
static void send_what_passes(int rank)
{
  enum { RUNS = 4, MOVES = 3 };
  unsigned char *const to = world_alloc(2 * PASSING * PASSING_BYTES);
  xfer_plan *plan = NULL;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;
  xfer_tensor list[PASSING];
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  const xfi_direct *lanes = NULL;

  options.flags = XFER_PLAN_FRESH_SOURCES;
  OK(xfer_problem_parse(&src, &dst, "u8[2,524288] (1)@0:R -> (1)@1:R"));
  for (int i = 0; i < PASSING; i++)
    list[i] = (xfer_tensor){.name = "w", .src = src, .dst = dst};
  OK(xfer_plan_create(&plan, w.comms[rank], list, PASSING, &options));
  for (int run = 1; run <= RUNS; run++) {
    unsigned char *memory[PASSING];

    for (int i = 0; i < PASSING; i++) {
      memory[i] = rank == 0 ? world_alloc((size_t)PASSING_BYTES * (size_t)(1 + run % 2))
                            : to + ((run >= MOVES ? PASSING : 0) + i) * PASSING_BYTES;
      if (rank == 0)
        bind_new_source(plan, i, memory[i], run * PASSING + i);
      else
        bind_destination(plan, i, memory[i]);
    }
    OK(xfer_plan_commit(plan));
    NEED(run == 1 || plan->lanes.direct == lanes);
    lanes = plan->lanes.direct;
    ranks_barrier();
    NEED(n_mapped == 2 + 1); /* pages, and what is written */
    OK(xfer_plan_run(plan, (uint64_t)run, world_stream()));
    OK(xfer_plan_wait(plan, 0));
    for (int i = 0; i < PASSING && rank == 0; i++)
      world_free(memory[i]);
    for (int i = 0; i < PASSING && rank == 1; i++)
      NEED(memory[i][0] == run * PASSING + i && memory[i][PASSING_BYTES - 1] == run * PASSING + i);
    ranks_barrier();
  }
  NEED(xfer_plan_commit(plan) == (rank == 0 ? XFER_ERR_STATE : XFER_ERR_PEER));
  NEED(strstr(xfer_last_error(), "tensor 0 \"w\": the source part of rank 0 is not bound") != NULL);
  ranks_barrier();
  xfer_plan_destroy(plan);
  world_free(to);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

static void test_fresh_sources_are_pushed(void)
{
  in_counted_world(send_what_passes);
}

/* Where their sender cannot write, their receiver reads them, and keeps nothing mapped. */
static void pull_into_what_cannot_be_mapped(int rank)
{
  unsigned char *const to = rank == 1 ? chunks_alloc(2 << 20, 0, false) : NULL;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_plan *plan = NULL;
  xfer_layout *src = NULL;
  xfer_layout *dst = NULL;

  options.flags = XFER_PLAN_FRESH_SOURCES;
  OK(xfer_problem_parse(&src, &dst, "u8[2,524288] (1)@0:R -> (1)@1:R"));
  OK(xfer_plan_create(&plan, w.comms[rank], &(xfer_tensor){.name = "w", .src = src, .dst = dst}, 1,
                      &options));
  for (int run = 1; run <= 3; run++) {
    unsigned char *const from = rank == 0 ? world_alloc(PASSING_BYTES) : NULL;

    if (rank == 0)
      bind_new_source(plan, 0, from, run);
    else
      bind_destination(plan, 0, to);
    OK(xfer_plan_commit(plan));
    ranks_barrier();
    NEED(n_mapped == 2 + 1); /* pages, and what is read */
    ranks_barrier();
    OK(xfer_plan_run(plan, (uint64_t)run, world_stream()));
    OK(xfer_plan_wait(plan, 0));
    NEED(n_mapped == 2);
    NEED(rank == 0 || (to[0] == run && to[PASSING_BYTES - 1] == run));
    NEED(xfer_plan_run(plan, 9, world_stream()) == XFER_ERR_STATE);
    NEED(strstr(xfer_last_error(), "each run needs its own sources") != NULL);
    if (rank == 0) world_free(from);
    ranks_barrier();
  }
  xfer_plan_destroy(plan);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
}

static void test_fresh_sources_are_unmapped(void)
{
  in_counted_world(pull_into_what_cannot_be_mapped);
}

/* To the other rank and to itself, from memory that is freed after each run, or of the allocation
 * that has the destinations. */
static void exchange_passing(int rank, bool beside)
{
  unsigned char *const to = world_alloc(4 * PASSING_BYTES);
  const int peers[2] = {1 - rank, rank};
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_operation operations[2];
  xfer_plan *plan = NULL;
  const xfi_direct *lanes = NULL;

  options.flags = XFER_PLAN_FRESH_SOURCES;
  for (int i = 0; i < 2; i++)
    operations[i] = xfer_operation_bytes(7, peers[i], PASSING_BYTES);
  OK(xfer_plan_create_exchange(&plan, w.comms[rank], operations, 2, operations, 2, &options));
  for (int run = 1; run <= 3; run++) {
    unsigned char *from[2];
    xfer_view sends[2];
    xfer_view recvs[2];

    for (int i = 0; i < 2; i++) {
      from[i] = beside ? to + (size_t)(2 + i) * PASSING_BYTES
                       : world_alloc((size_t)PASSING_BYTES * (size_t)(1 + run % 2));
      memset(from[i], 10 * run + 2 * rank + i, PASSING_BYTES);
      sends[i] = xfer_view_dense(from[i]);
      recvs[i] = xfer_view_dense(to + (size_t)i * PASSING_BYTES);
    }
    OK(xfer_plan_bind_exchange(plan, sends, recvs));
    OK(xfer_plan_commit(plan));
    NEED(run == 1 || plan->lanes.direct == lanes);
    lanes = plan->lanes.direct;
    ranks_barrier();
    NEED(n_mapped == 2 + 2); /* pages, and what is written */
    OK(xfer_plan_run(plan, (uint64_t)run, world_stream()));
    OK(xfer_plan_wait(plan, 0));
    for (int i = 0; i < 2; i++) {
      if (!beside) world_free(from[i]);
      NEED(to[i * PASSING_BYTES] == 10 * run + 2 * peers[i] + i);
      NEED(to[(i + 1) * PASSING_BYTES - 1] == 10 * run + 2 * peers[i] + i);
    }
    ranks_barrier();
  }
  xfer_plan_destroy(plan);
  world_free(to);
}

static void exchange_what_passes(int rank)
{
  exchange_passing(rank, false);
}

static void exchange_what_stays(int rank)
{
  exchange_passing(rank, true);
}

static void test_fresh_sources_of_an_exchange(void)
{
  in_counted_world(exchange_what_passes);
}

static void test_fresh_sources_beside_destinations(void)
{
  in_counted_world(exchange_what_stays);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"fresh_sources_are_pushed", test_fresh_sources_are_pushed},
      {"fresh_sources_are_unmapped", test_fresh_sources_are_unmapped},
      {"fresh_sources_of_an_exchange", test_fresh_sources_of_an_exchange},
      {"fresh_sources_beside_destinations", test_fresh_sources_beside_destinations}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
