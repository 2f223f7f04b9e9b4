/* Long runs are for the copy engine of the rank that receives them, however the layouts say where
 * they are: what a rank writes in another's memory it cannot have. */
#include "cuda_device.h"
#include "object.h"
#include "two_ranks.h"

#include <stdlib.h>
#include <string.h>

static bool are_processes; /* or the ranks' threads are taken for what they are */

uint64_t __real_xfi_cuda_locality(int ordinal);
uint64_t __wrap_xfi_cuda_locality(int ordinal);

uint64_t __wrap_xfi_cuda_locality(int ordinal)
{
  return are_processes ? 0 : __real_xfi_cuda_locality(ordinal);
}

/* ---- placements and boxes ------------------------------------------------------------------- */

enum { TENSORS = 8, BYTES = 4 * MIB }; /* as few as it takes: 32 MiB */

static bool by_boxes;
static int last_to_come;

static xfer_layout *box_of(const xfer_mesh *mesh, int holder)
{
  const int64_t shape[1] = {BYTES};
  const int64_t bounds[2] = {0, BYTES};
  const int64_t first[3] = {0, holder == 0, 1};
  xfer_boxes_desc boxes = XFER_BOXES_DESC_INIT;
  xfer_layout *layout = NULL;

  boxes.mesh = mesh;
  boxes.dtype = XFER_U8;
  boxes.n_dims = 1;
  boxes.shape = shape;
  boxes.first = first;
  boxes.bounds = bounds;
  OK(xfer_layout_create_boxes(&layout, &boxes));
  return layout;
}

/* What frees a peer's memory in the same process frees it for us, so of that the engine reads only
 * what goes at once. */
static void one_to_the_other(int rank)
{
  const bool engine = are_processes || last_to_come == 0;
  const int size = 2;
  part parts[TENSORS];
  void *at[TENSORS];
  char *memory = world_alloc((size_t)TENSORS * BYTES);
  cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;
  xfer_mesh *both = NULL;

  OK(xfer_mesh_create(&both, &size, 1, NULL));
  memset(memory, 7 * rank, (size_t)TENSORS * BYTES);
  for (size_t i = 0; i < TENSORS; i++) {
    at[i] = memory + i * BYTES;
    parts[i] = by_boxes
                   ? (part){NULL,
                            1,
                            xfer_view_boxes(&at[i], 1, NULL, 1),
                            {box_of(both, 1), box_of(both, 0)}}
                   : (part){"u8[4194304] (1)@1:R -> (1)@0:R", 1, xfer_view_dense(at[i]), {NULL}};
  }
  plan = plan_of(rank, parts, TENSORS);
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  const uint64_t before = sim_calls_of(BATCH);
  OK(run_last(last_to_come, rank, plan, 1, stream));
  OK(xfer_plan_wait(plan, 0));
  for (size_t i = 0; i < (size_t)TENSORS * BYTES; i += 511)
    NEED(memory[i] == 7);
  ranks_barrier();
  NEED(sim_calls_of(BATCH) == before + (engine ? 1 : 0));
  plan_end(plan, parts, TENSORS);
  xfer_mesh_destroy(both);
  world_free(memory);
}

static void test_placements(void)
{
  by_boxes = false;
  go(one_to_the_other, NULL);
}

static void test_boxes(void)
{
  by_boxes = true;
  go(one_to_the_other, NULL);
}

static void test_what_does_not_go_at_once(void)
{
  last_to_come = 1;
  go(one_to_the_other, NULL);
}

static void test_what_another_process_has(void)
{
  are_processes = true;
  last_to_come = 1;
  go(one_to_the_other, NULL);
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
 * both, and the next works. What comes after the kernels is tried again. */
static void run_with_failing_calls(int rank, xfer_plan *plan, cudaStream_t stream)
{
  static const struct {
    const char *name;
    uint64_t nth;
    bool is_tried_again;
  } calls[] = {{BATCH, 1, false},
               {BATCH, 2, false},
               {"copy kernel", 1, false},
               {"cudaEventRecord", 2, false},
               {"cudaStreamWaitEvent", 1, false},
               {"cudaStreamWaitEvent", 2, false},
               {"cudaStreamWaitEvent", 3, true},
               {"cudaEventRecord", 3, true}};

  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    const sim_fault fault = {
        .name = calls[i].name, .rank = 0, .nth = calls[i].nth, .code = cudaErrorUnknown};

    const uint64_t before = sim_count().faults;

    ranks_barrier();
    if (rank == 0) sim_fault_add(&fault);
    (void)run_last(0, rank, plan, i + 1, stream); /* the wait says what came of it */
    NEED((xfer_plan_wait(plan, 0) == XFER_OK) == calls[i].is_tried_again);
    ranks_barrier();
    NEED(sim_count().faults > before);
    ranks_barrier();
    if (rank == 0) sim_fault_clear();
    ranks_barrier();
    OK(xfer_plan_commit(plan));
  }
}

/* ---- rows apart ---------------------------------------------------------------------------- */

enum { PLANES = 2, ROWS = 130, ROW = 512 << 10, GAP = 512, SMALL = 3000 };
enum { CALLS = 6 }; /* 16, 16, 32, 64 and 128 of these rows, and the rest */
_Static_assert(PLANES *ROWS == 260, "as many calls");

static unsigned char value(int64_t plane, int64_t row, int64_t at)
{
  return (unsigned char)(plane * 31 + row * 7 + at % 251);
}

/* Planes of rows with gaps between them, more than go in one call; and what is too small for the
 * engine, which kernels take meanwhile. */
static void rows_to_the_other(int rank)
{
  const int64_t strides[3] = {ROWS * (ROW + GAP) + GAP, ROW + GAP, 1};
  const size_t n_bytes = PLANES * (size_t)strides[0];
  unsigned char *memory = world_alloc(n_bytes + SMALL);
  part parts[2] = {
      {"u8[2,130,524288] (1)@1:R -> (1)@0:R", 1, xfer_view_strided(memory, strides, 3), {NULL}},
      {"u8[3000] (1)@1:R -> (1)@0:R", 1, xfer_view_dense(memory + n_bytes), {NULL}}};
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;

  memset(memory, 0xee, n_bytes + SMALL);
  for (int64_t r = 0; rank == 1 && r < (int64_t)PLANES * ROWS; r++)
    for (int64_t i = 0; i < ROW; i++)
      memory[r / ROWS * strides[0] + r % ROWS * strides[1] + i] = value(r / ROWS, r % ROWS, i);
  if (rank == 1) memset(memory + n_bytes, 9, SMALL);
  plan = plan_of(rank, parts, 2);
  commit_without_memory(rank, plan);
  commit_with_failing_calls(rank, plan);
  run_with_failing_calls(rank, plan, stream);
  ranks_barrier();
  const uint64_t before = sim_calls_of(BATCH);
  OK(run_last(0, rank, plan, 10, stream));
  OK(xfer_plan_wait(plan, 0));
  NEED(sim_calls_of(BATCH) == before + CALLS);
  for (int64_t r = 0; rank == 0 && r < (int64_t)PLANES * ROWS; r++) {
    const unsigned char *row = memory + r / ROWS * strides[0] + r % ROWS * strides[1];

    for (int64_t i = 0; i < ROW; i += 127)
      NEED(row[i] == value(r / ROWS, r % ROWS, i));
    NEED(row[ROW] == 0xee && row[ROW + GAP - 1] == 0xee);
  }
  NEED(memory[n_bytes] == 9 && memory[n_bytes + SMALL - 1] == 9);
  plan_end(plan, parts, 2);
  world_free(memory);
}

static void test_rows(void)
{
  go(rows_to_the_other, NULL);
}

/* ---- runs ----------------------------------------------------------------------------------- */

static bool has_batches;

/* Two that are not beside each other, so that a driver without batches needs a call for each. */
static void two_runs(int rank)
{
  enum { FIRST = 64 * MIB, SECOND = 65 * MIB, APART = 64 };
  const size_t n_bytes = (size_t)FIRST + APART + SECOND;
  unsigned char *memory = world_alloc(n_bytes);
  part parts[2] = {
      {"u8[67108864] (1)@1:R -> (1)@0:R", 1, xfer_view_dense(memory), {NULL}},
      {"u8[68157440] (1)@1:R -> (1)@0:R", 1, xfer_view_dense(memory + FIRST + APART), {NULL}}};
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;

  memset(memory, rank == 1 ? 5 : 0xee, n_bytes);
  plan = plan_of(rank, parts, 2);
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  const char *const call = has_batches ? BATCH : "cudaMemcpyAsync";
  const uint64_t before = sim_calls_of(call);
  OK(run_last(0, rank, plan, 1, stream));
  OK(xfer_plan_wait(plan, 0));
  NEED(sim_calls_of(call) == before + (has_batches ? 1 : 2));
  for (size_t i = 0; rank == 0 && i < n_bytes; i += 7)
    NEED(memory[i] == (i >= FIRST && i < (size_t)FIRST + APART ? 0xee : 5));
  plan_end(plan, parts, 2);
  world_free(memory);
}

static void test_runs(void)
{
  has_batches = true;
  go(two_runs, NULL);
}

static void test_runs_without_batches(void)
{
  has_batches = false;
  go(two_runs, BATCH);
}

/* ---- more runs than a stream takes that may have to wait ------------------------------------- */

/* Rank 0 pulls them: where it cannot know when they go, kernels take some. */
static void many_runs(int rank)
{
  enum { N = 5000, RUN = 512, APART = 1024 };
  static const uint64_t calls[2] = {24, 20}; /* of 16, 16, 32, 64, 128, and then 256 of them */
  static part parts[2][N];
  part *mine = parts[rank];
  unsigned char *memory = world_alloc((size_t)N * APART);
  const cudaStream_t stream = world_stream();
  xfi_cuda_device *device = xfi_cuda(w.comms[rank]->device);
  xfer_plan *plan = NULL;

  device->engine_run_bytes = RUN;
  device->engine_all_bytes = RUN;
  for (size_t i = 0; i < N; i++)
    mine[i] = (part){"u8[512] (1)@1:R -> (1)@0:R", 1, xfer_view_dense(memory + i * APART), {NULL}};
  plan = plan_of(rank, mine, N);
  OK(xfer_plan_commit(plan));
  for (int last = 0; last < 2; last++) {
    ranks_barrier();
    const uint64_t before = sim_calls_of(BATCH);

    for (size_t i = 0; i < (size_t)N * APART; i++)
      memory[i] = (unsigned char)(rank == 0 ? 0xee : i % 241 + (size_t)last);
    OK(run_last(last, rank, plan, (uint64_t)last + 1, stream));
    OK(xfer_plan_wait(plan, 0));
    ranks_barrier();
    NEED(sim_calls_of(BATCH) == before + calls[last]);
    for (size_t i = 0; rank == 0 && i < (size_t)N * APART; i++)
      NEED(memory[i] == (i % APART < RUN ? i % 241 + (size_t)last : 0xee));
  }
  plan_end(plan, mine, N);
  world_free(memory);
}

static void test_many_runs(void)
{
  are_processes = true;
  go(many_runs, NULL);
}

/* ---- what is pushed ------------------------------------------------------------------------- */

/* Both send, so both push. Who comes last finds that the other is ready, and may use the engine;
 * who comes first must not: nobody knows when its copies would go. */
static void to_each_other(int rank)
{
  enum { SIZE = 32 * MIB };
  unsigned char *memory = world_alloc((size_t)2 * SIZE);
  part parts[2] = {{"u8[33554432] (1)@0:R -> (1)@1:R", 0, xfer_view_dense(memory), {NULL}},
                   {"u8[33554432] (1)@1:R -> (1)@0:R", 1, xfer_view_dense(memory + SIZE), {NULL}}};
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = plan_of(rank, parts, 2);

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
  plan_end(plan, parts, 2);
  world_free(memory);
}

static void test_pushes(void)
{
  go(to_each_other, NULL);
}

static void test_pushes_of_processes(void)
{
  are_processes = true;
  go(to_each_other, NULL);
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"engine_takes_placements", test_placements},
      {"engine_takes_boxes", test_boxes},
      {"engine_takes_rows", test_rows},
      {"engine_takes_runs", test_runs},
      {"engine_takes_runs_alone", test_runs_without_batches},
      {"engine_takes_many_runs_at_once", test_many_runs},
      {"engine_takes_pushes", test_pushes},
      {"engine_takes_pushes_of_processes", test_pushes_of_processes},
      {"engine_leaves_what_does_not_go_at_once", test_what_does_not_go_at_once},
      {"engine_takes_what_another_process_has", test_what_another_process_has}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
