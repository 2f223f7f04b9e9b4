/* Long runs are for the copy engine of the rank that receives them, however the layouts say where
 * they are: what a rank writes in another's memory it cannot have. */
#include "world.h"

#include <stdio.h>
#include <string.h>

enum { TENSORS = 8, BYTES = 4 << 20 }; /* as few as it takes: 32 MiB */

/* So many runs go to the engine in one call. */
enum { CALL_RUNS = 256 };
static const char BATCH[] = "cuMemcpyBatchAsync";

static xfer_layout *layout_of(const xfer_mesh *mesh, int holder, bool by_boxes)
{
  const int64_t shape[1] = {BYTES};
  const int64_t bounds[2] = {0, BYTES};
  const int64_t first[3] = {0, holder == 0, 1};
  xfer_boxes_desc boxes = XFER_BOXES_DESC_INIT;
  xfer_layout_desc desc = XFER_LAYOUT_DESC_INIT;
  xfer_layout *layout = NULL;
  xfer_mesh *one = NULL;
  const int size = 1;
  const xfer_placement replicate = xfer_replicate();

  if (by_boxes) {
    boxes.mesh = mesh;
    boxes.dtype = XFER_U8;
    boxes.n_dims = 1;
    boxes.shape = shape;
    boxes.first = first;
    boxes.bounds = bounds;
    OK(xfer_layout_create_boxes(&layout, &boxes));
    return layout;
  }
  OK(xfer_mesh_create(&one, &size, 1, &holder));
  desc.mesh = one;
  desc.dtype = XFER_U8;
  desc.n_dims = 1;
  desc.shape = shape;
  desc.placements = &replicate;
  desc.n_placements = 1;
  OK(xfer_layout_create(&layout, &desc));
  xfer_mesh_destroy(one);
  return layout;
}

/* Ranks of one process pull what goes at once: that of the rank that comes to a run last. */
static xfer_status run_last(int last, int rank, xfer_plan *plan, uint64_t version,
                            cudaStream_t stream)
{
  xfer_status st = XFER_OK;

  ranks_barrier();
  if (rank != last) st = xfer_plan_run(plan, version, stream);
  ranks_barrier();
  return rank == last ? xfer_plan_run(plan, version, stream) : st;
}

static bool by_boxes;

static void one_to_the_other(int rank)
{
  const int size = 2;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor tensors[TENSORS];
  char names[TENSORS][8];
  char *memory = world_alloc((size_t)TENSORS * BYTES);
  cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;
  xfer_mesh *both = NULL;

  OK(xfer_mesh_create(&both, &size, 1, NULL));
  memset(memory, 7 * rank, (size_t)TENSORS * BYTES);
  for (int i = 0; i < TENSORS; i++) {
    (void)snprintf(names[i], sizeof names[i], "t%d", i);
    tensors[i] = (xfer_tensor){
        .name = names[i], .src = layout_of(both, 1, by_boxes), .dst = layout_of(both, 0, by_boxes)};
  }
  options.lane = XFER_LANE_DIRECT;
  OK(xfer_plan_create(&plan, w.comms[rank], tensors, TENSORS, &options));
  for (int i = 0; i < TENSORS; i++) {
    void *at = memory + (size_t)i * BYTES;
    const bool boxed = by_boxes;
    const xfer_view view = boxed ? xfer_view_boxes(&at, 1, NULL, 1) : xfer_view_dense(at);
    OK(xfer_plan_bind(plan, (size_t)i, rank == 1 ? &view : NULL, rank == 0 ? &view : NULL));
  }
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  const uint64_t before = sim_calls_of(BATCH);
  OK(run_last(0, rank, plan, 1, stream));
  OK(xfer_plan_wait(plan, 0));
  NEED(rank == 1 || (memory[0] == 7 && memory[(size_t)TENSORS * BYTES - 1] == 7));
  ranks_barrier();
  NEED(sim_calls_of(BATCH) == before + 1);
  ranks_barrier();
  xfer_plan_destroy(plan);
  for (int i = 0; i < TENSORS; i++) {
    xfer_layout_destroy((xfer_layout *)(uintptr_t)tensors[i].src);
    xfer_layout_destroy((xfer_layout *)(uintptr_t)tensors[i].dst);
  }
  xfer_mesh_destroy(both);
  world_free(memory);
}

static void go(bool boxes)
{
  by_boxes = boxes;
  world_make(2, COMM_GATHER, (sim_config){.eager = true});
  world_go(one_to_the_other);
  world_destroy();
}

static void test_placements(void)
{
  go(false);
}

static void test_boxes(void)
{
  go(true);
}

/* ---- memory that is short ------------------------------------------------------------------ */

void *__real_xfi_calloc(size_t n, size_t size);
void *__wrap_xfi_calloc(size_t n, size_t size);

static _Thread_local bool is_victim;
static long until_failure = -1; /* of the victim's allocations; < 0: none fails */
static _Atomic bool has_failed;

void *__wrap_xfi_calloc(size_t n, size_t size)
{
  if (!is_victim || until_failure < 0 || until_failure-- > 0) return __real_xfi_calloc(n, size);
  has_failed = true;
  return NULL;
}

/* Each of the allocations that rank 0's device makes in a commit fails in turn; then none does. */
static void commit_without_memory(int rank, xfer_plan *plan)
{
  bool again = true;

  is_victim = rank == 0;
  for (long n = 0; again; n++) {
    ranks_barrier();
    has_failed = false;
    if (is_victim) until_failure = n;
    const xfer_status st = xfer_plan_commit(plan);
    ranks_barrier();
    if (is_victim) until_failure = -1;
    again = has_failed;
    NEED(st == (!again ? XFER_OK : is_victim ? XFER_ERR_NOMEM : XFER_ERR_PEER));
  }
}

/* ---- calls that fail ----------------------------------------------------------------------- */

/* Each call of rank 0 fails in turn in a commit; then none does. */
static void commit_with_failing_calls(int rank, xfer_plan *plan)
{
  static _Atomic bool again;
  uint64_t n = 0;

  again = true;
  for (ranks_barrier(); again; ranks_barrier()) {
    const sim_fault fault = {.rank = 0, .nth = ++n, .code = cudaErrorInitializationError};
    const uint64_t before = sim_count().faults;

    ranks_barrier();
    if (rank == 0) sim_fault_add(&fault);
    ranks_barrier();
    const xfer_status st = xfer_plan_commit(plan);
    ranks_barrier();
    if (rank == 0) sim_fault_clear();
    if (rank == 0) again = sim_count().faults != before;
    ranks_barrier();
    NEED(again || st == XFER_OK);
    OK(xfer_plan_release(plan));
  }
  OK(xfer_plan_commit(plan));
}

/* A copy of the engine's fails in a run, or what keeps it beside the kernels: the run fails on
 * both, and the next works. */
static void run_with_failing_calls(int rank, xfer_plan *plan, cudaStream_t stream)
{
  static const struct {
    const char *name;
    uint64_t nth;
  } calls[] = {{BATCH, 1},
               {BATCH, 2},
               {"copy kernel", 1},
               {"cudaEventRecord", 2},
               {"cudaStreamWaitEvent", 1},
               {"cudaStreamWaitEvent", 2},
               {"cudaEventRecord", 3}};

  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    const sim_fault fault = {
        .name = calls[i].name, .rank = 0, .nth = calls[i].nth, .code = cudaErrorUnknown};

    ranks_barrier();
    if (rank == 0) sim_fault_add(&fault);
    const xfer_status st = run_last(0, rank, plan, i + 1, stream);
    const xfer_status told = xfer_plan_wait(plan, 0);
    ranks_barrier();
    if (rank == 0) sim_fault_clear();
    NEED(st == XFER_OK || told != XFER_OK);
    ranks_barrier();
    OK(xfer_plan_commit(plan));
  }
}

/* ---- rows apart ---------------------------------------------------------------------------- */

enum { PLANES = 2, ROWS = 130, ROW = 512 << 10, GAP = 512, SMALL = 3000 };
_Static_assert(PLANES *ROWS > CALL_RUNS, "two calls");

static unsigned char value(int64_t plane, int64_t row, int64_t at)
{
  return (unsigned char)(plane * 31 + row * 7 + at % 251);
}

/* Planes of rows with gaps between them, more than go in one call; and what is too small for the
 * engine, which kernels take meanwhile. */
static void rows_to_the_other(int rank)
{
  static const char *const lines[2] = {"u8[2,130,524288] (1)@1:R -> (1)@0:R",
                                       "u8[3000] (1)@1:R -> (1)@0:R"};
  const int64_t strides[3] = {ROWS * (ROW + GAP) + GAP, ROW + GAP, 1};
  const size_t n_bytes = PLANES * (size_t)strides[0];
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_layout *layouts[2][2] = {{NULL}};
  xfer_tensor tensors[2];
  unsigned char *memory = world_alloc(n_bytes + SMALL);
  const xfer_view views[2] = {xfer_view_strided(memory, strides, 3),
                              xfer_view_dense(memory + n_bytes)};
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;

  memset(memory, 0xee, n_bytes + SMALL);
  for (int64_t r = 0; rank == 1 && r < (int64_t)PLANES * ROWS; r++)
    for (int64_t i = 0; i < ROW; i++)
      memory[r / ROWS * strides[0] + r % ROWS * strides[1] + i] = value(r / ROWS, r % ROWS, i);
  if (rank == 1) memset(memory + n_bytes, 9, SMALL);
  for (int i = 0; i < 2; i++) {
    OK(xfer_problem_parse(&layouts[i][0], &layouts[i][1], lines[i]));
    tensors[i] = (xfer_tensor){
        .name = i == 0 ? "rows" : "small", .src = layouts[i][0], .dst = layouts[i][1]};
  }
  options.lane = XFER_LANE_DIRECT;
  OK(xfer_plan_create(&plan, w.comms[rank], tensors, 2, &options));
  for (size_t i = 0; i < 2; i++)
    OK(xfer_plan_bind(plan, i, rank == 1 ? &views[i] : NULL, rank == 0 ? &views[i] : NULL));
  commit_without_memory(rank, plan);
  commit_with_failing_calls(rank, plan);
  run_with_failing_calls(rank, plan, stream);
  ranks_barrier();
  const uint64_t before = sim_calls_of(BATCH);
  OK(run_last(0, rank, plan, 10, stream));
  OK(xfer_plan_wait(plan, 0));
  NEED(sim_calls_of(BATCH) == before + 2);
  for (int64_t r = 0; rank == 0 && r < (int64_t)PLANES * ROWS; r++) {
    const unsigned char *row = memory + r / ROWS * strides[0] + r % ROWS * strides[1];

    for (int64_t i = 0; i < ROW; i += 127)
      NEED(row[i] == value(r / ROWS, r % ROWS, i));
    NEED(row[ROW] == 0xee && row[ROW + GAP - 1] == 0xee);
  }
  NEED(memory[n_bytes] == 9 && memory[n_bytes + SMALL - 1] == 9);
  ranks_barrier();
  xfer_plan_destroy(plan);
  for (int i = 0; i < 4; i++)
    xfer_layout_destroy(layouts[i / 2][i % 2]);
  world_free(memory);
}

static void test_rows(void)
{
  world_make(2, COMM_GATHER, (sim_config){.eager = true});
  world_go(rows_to_the_other);
  world_destroy();
}

/* ---- runs ----------------------------------------------------------------------------------- */

static bool has_batches;

/* Two that are not beside each other, so that a driver without batches needs a call for each. */
static void two_runs(int rank)
{
  enum { MIB = 1 << 20, FIRST = 64 * MIB, SECOND = 65 * MIB, APART = 64 };
  static const char *const lines[2] = {"u8[67108864] (1)@1:R -> (1)@0:R",
                                       "u8[68157440] (1)@1:R -> (1)@0:R"};
  const size_t n_bytes = (size_t)FIRST + APART + SECOND;
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_layout *layouts[2][2] = {{NULL}};
  xfer_tensor tensors[2];
  unsigned char *memory = world_alloc(n_bytes);
  const xfer_view views[2] = {xfer_view_dense(memory), xfer_view_dense(memory + FIRST + APART)};
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;

  memset(memory, rank == 1 ? 5 : 0xee, n_bytes);
  for (int i = 0; i < 2; i++) {
    OK(xfer_problem_parse(&layouts[i][0], &layouts[i][1], lines[i]));
    tensors[i] = (xfer_tensor){.name = lines[i], .src = layouts[i][0], .dst = layouts[i][1]};
  }
  options.lane = XFER_LANE_DIRECT;
  OK(xfer_plan_create(&plan, w.comms[rank], tensors, 2, &options));
  for (size_t i = 0; i < 2; i++)
    OK(xfer_plan_bind(plan, i, rank == 1 ? &views[i] : NULL, rank == 0 ? &views[i] : NULL));
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  const char *const call = has_batches ? BATCH : "cudaMemcpyAsync";
  const uint64_t before = sim_calls_of(call);
  OK(run_last(0, rank, plan, 1, stream));
  OK(xfer_plan_wait(plan, 0));
  NEED(sim_calls_of(call) == before + (has_batches ? 1 : 2));
  for (size_t i = 0; rank == 0 && i < n_bytes; i += 7)
    NEED(memory[i] == (i >= FIRST && i < (size_t)FIRST + APART ? 0xee : 5));
  ranks_barrier();
  xfer_plan_destroy(plan);
  for (int i = 0; i < 4; i++)
    xfer_layout_destroy(layouts[i / 2][i % 2]);
  world_free(memory);
}

static void test_runs(void)
{
  has_batches = true;
  world_make(2, COMM_GATHER, (sim_config){.eager = true});
  world_go(two_runs);
  world_destroy();
}

static void test_runs_without_batches(void)
{
  has_batches = false;
  world_make(2, COMM_GATHER, (sim_config){.eager = true, .lacks = BATCH});
  world_go(two_runs);
  world_destroy();
}

/* ---- what is pushed ------------------------------------------------------------------------- */

/* Both send, so both push. Who comes last finds that the other is ready, and may use the engine;
 * who comes first must not: nobody knows when its copies would go. */
static void to_each_other(int rank)
{
  enum { SIZE = 32 << 20 };
  static const char *const lines[2] = {"u8[33554432] (1)@0:R -> (1)@1:R",
                                       "u8[33554432] (1)@1:R -> (1)@0:R"};
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_layout *layouts[2][2] = {{NULL}};
  xfer_tensor tensors[2];
  unsigned char *memory = world_alloc((size_t)2 * SIZE);
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;

  for (int i = 0; i < 2; i++) {
    OK(xfer_problem_parse(&layouts[i][0], &layouts[i][1], lines[i]));
    tensors[i] = (xfer_tensor){.name = lines[i], .src = layouts[i][0], .dst = layouts[i][1]};
  }
  options.lane = XFER_LANE_DIRECT;
  OK(xfer_plan_create(&plan, w.comms[rank], tensors, 2, &options));
  for (int i = 0; i < 2; i++) {
    const xfer_view view = xfer_view_dense(memory + (size_t)i * SIZE);

    OK(xfer_plan_bind(plan, (size_t)i, rank == i ? &view : NULL, rank == i ? NULL : &view));
  }
  commit_without_memory(rank, plan);
  commit_with_failing_calls(rank, plan);
  for (uint64_t run = 1; run <= 4; run++) {
    const uint64_t before = sim_calls_of(BATCH);

    memset(memory, 0xee, (size_t)2 * SIZE);
    memset(memory + (size_t)rank * SIZE, (int)(7 * run) + rank, SIZE);
    OK(run_last((int)(run % 2), rank, plan, run, stream));
    OK(xfer_plan_wait(plan, 0));
    NEED(sim_calls_of(BATCH) == before + 1);
    for (size_t i = 0; i < SIZE; i += 511)
      NEED(memory[(size_t)(1 - rank) * SIZE + i] == (unsigned char)(7 * run + 1 - (uint64_t)rank));
    ranks_barrier();
  }
  xfer_plan_destroy(plan);
  for (int i = 0; i < 4; i++)
    xfer_layout_destroy(layouts[i / 2][i % 2]);
  world_free(memory);
}

static void test_pushes(void)
{
  world_make(2, COMM_GATHER, (sim_config){.eager = true});
  world_go(to_each_other);
  world_destroy();
}

/* ---- what peers map ------------------------------------------------------------------------- */

/* A trainer with many allocations pushes, so nobody maps them, and only that of its peer has a
 * handle. */
static void many_allocations(int rank)
{
  enum { MANY = 300, EACH = 64 };
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  static xfer_tensor tensors[MANY];
  static char names[MANY][8];
  xfer_layout *layouts[2] = {NULL};
  unsigned char *memory[MANY];
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;

  OK(xfer_problem_parse(&layouts[0], &layouts[1], "u8[64] (1)@1:R -> (1)@0:R"));
  for (int i = 0; i < MANY; i++) {
    if (rank == 0) (void)snprintf(names[i], sizeof names[i], "t%d", i);
    memory[i] = rank == 1 || i == 0 ? world_alloc(rank == 1 ? EACH : MANY * EACH)
                                    : memory[0] + (size_t)i * EACH;
    memset(memory[i], rank == 1 ? i % 251 : 0, EACH);
  }
  ranks_barrier();
  if (rank == 0)
    for (int i = 0; i < MANY; i++)
      tensors[i] = (xfer_tensor){.name = names[i], .src = layouts[0], .dst = layouts[1]};
  ranks_barrier();
  options.lane = XFER_LANE_DIRECT;
  OK(xfer_plan_create(&plan, w.comms[rank], tensors, MANY, &options));
  for (int i = 0; i < MANY; i++) {
    const xfer_view view = xfer_view_dense(memory[i]);

    OK(xfer_plan_bind(plan, (size_t)i, rank == 1 ? &view : NULL, rank == 0 ? &view : NULL));
  }
  ranks_barrier();
  const uint64_t before = sim_calls_of("cudaIpcGetMemHandle");
  ranks_barrier();
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  NEED(sim_calls_of("cudaIpcGetMemHandle") == before + 1);
  OK(xfer_plan_run(plan, 1, stream));
  OK(xfer_plan_wait(plan, 0));
  for (int i = 0; rank == 0 && i < MANY; i++)
    NEED(memory[i][0] == i % 251 && memory[i][EACH - 1] == i % 251);
  ranks_barrier();
  xfer_plan_destroy(plan);
  ranks_barrier();
  for (int i = 0; i < (rank == 1 ? MANY : 1); i++)
    world_free(memory[i]);
  for (int i = 0; i < 2; i++)
    xfer_layout_destroy(layouts[i]);
}

static void test_handles(void)
{
  world_make(2, COMM_GATHER, (sim_config){.eager = true});
  world_go(many_allocations);
  world_destroy();
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {{"engine_takes_placements", test_placements},
                                     {"engine_takes_boxes", test_boxes},
                                     {"engine_takes_rows", test_rows},
                                     {"engine_takes_runs", test_runs},
                                     {"engine_takes_runs_alone", test_runs_without_batches},
                                     {"engine_takes_pushes", test_pushes},
                                     {"what_nobody_maps_has_no_handle", test_handles}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
