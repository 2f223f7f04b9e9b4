/* Long runs are for the copy engine of the rank that receives them, however the layouts say where
 * they are: what a rank writes in another's memory it cannot have. */
#include "cuda_device.h"
#include "object.h"
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20 };
static const char BATCH[] = "cuMemcpyBatchAsync";

/* ---- plans of two ranks --------------------------------------------------------------------- */

/* A tensor that goes from one rank to the other, and where it lies on this one. */
typedef struct part {
  const char *line; /* NULL: the layouts are given */
  int from;
  xfer_view view;
  xfer_layout *layouts[2];
} part;

/* Bound, and not committed. */
static xfer_plan *plan_of(int rank, part *parts, size_t n)
{
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;
  xfer_tensor *tensors = calloc(n, sizeof *tensors);
  char(*names)[24] = calloc(n, sizeof *names);
  xfer_plan *plan = NULL;

  NEED(tensors != NULL && names != NULL);
  for (size_t i = 0; i < n; i++) {
    part *p = &parts[i];

    (void)snprintf(names[i], sizeof names[i], "t%zu", i);
    if (p->line != NULL) OK(xfer_problem_parse(&p->layouts[0], &p->layouts[1], p->line));
    tensors[i] = (xfer_tensor){.name = names[i], .src = p->layouts[0], .dst = p->layouts[1]};
  }
  options.lane = XFER_LANE_DIRECT;
  OK(xfer_plan_create(&plan, w.comms[rank], tensors, n, &options));
  for (size_t i = 0; i < n; i++)
    OK(xfer_plan_bind(plan, i, rank == parts[i].from ? &parts[i].view : NULL,
                      rank == parts[i].from ? NULL : &parts[i].view));
  free(tensors);
  free(names);
  return plan;
}

static void plan_end(xfer_plan *plan, part *parts, size_t n)
{
  ranks_barrier();
  xfer_plan_destroy(plan);
  for (size_t i = 0; i < 2 * n; i++)
    xfer_layout_destroy(parts[i / 2].layouts[i % 2]);
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

static bool are_processes; /* or the ranks' threads are taken for what they are */

uint64_t __real_xfi_cuda_place(int ordinal);
uint64_t __wrap_xfi_cuda_place(int ordinal);

uint64_t __wrap_xfi_cuda_place(int ordinal)
{
  return are_processes ? 0 : __real_xfi_cuda_place(ordinal);
}

/* Two ranks of a driver that has all but `lacks`. */
static void go(void (*work)(int rank), const char *lacks)
{
  world_make(2, COMM_GATHER, (sim_config){.eager = true, .lacks = lacks});
  world_go(work);
  world_destroy();
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

/* ---- a peer that leaves while this rank looks ------------------------------------------------ */

typedef enum peer { REFUSES, IS_LATE, COMES_LATE, FAILS_ONCE_READY } peer;

static peer peer_now;
static _Thread_local bool is_held; /* in its next look at a stream, */
static _Atomic bool looks;
static _Atomic bool may_go_on;                      /* until then */
static _Atomic(volatile unsigned char *) last_of_0; /* byte that rank 1 writes in rank 0's memory */

cudaError_t __real_cudaStreamQuery(cudaStream_t stream);
cudaError_t __wrap_cudaStreamQuery(cudaStream_t stream);

/* What holds up the stream ends by then, one way or the other. */
cudaError_t __wrap_cudaStreamQuery(cudaStream_t stream)
{
  const bool waits = is_held;

  is_held = false;
  while (waits && peer_now == COMES_LATE && __real_cudaStreamQuery(stream) == cudaErrorNotReady)
    world_sleep_ms(1);
  if (waits) looks = true;
  while (waits && (!may_go_on || __real_cudaStreamQuery(stream) == cudaErrorNotReady))
    world_sleep_ms(1);
  if (waits && peer_now == FAILS_ONCE_READY) world_sleep_ms(100); /* until its wait has left */
  return __real_cudaStreamQuery(stream);
}

/* Looked at while the machine writes it. */
__attribute__((noinline, no_sanitize("thread"))) static bool rank_1_has_pushed(void)
{
  return *last_of_0 == 1;
}

/* Rank 0 is about to push what goes at once; rank 1, which it was to go to, is gone by then. */
static void leaves_meanwhile(int rank)
{
  enum { SIZE = 32 * MIB, SHORT_MS = 300 };
  const sim_fault fault = {.name = BATCH, .rank = 1, .nth = 1, .code = cudaErrorUnknown};
  unsigned char *memory = world_alloc((size_t)2 * SIZE);
  part parts[2] = {{"u8[33554432] (1)@0:R -> (1)@1:R", 0, xfer_view_dense(memory), {NULL}},
                   {"u8[33554432] (1)@1:R -> (1)@0:R", 1, xfer_view_dense(memory + SIZE), {NULL}}};
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = plan_of(rank, parts, 2);

  memset(memory, 0xee, (size_t)2 * SIZE);
  memset(memory + (size_t)rank * SIZE, rank, SIZE);
  OK(xfer_plan_commit(plan));
  if (peer_now == IS_LATE || peer_now == COMES_LATE) ranks_set_timeout(plan, SHORT_MS);
  if (rank == 0) last_of_0 = memory + (size_t)2 * SIZE - 1;
  ranks_barrier();
  if (rank == 0) {
    is_held = true;
    may_go_on = peer_now == IS_LATE;
    (void)!xfer_plan_run(plan, 1, stream); /* the wait says what came of it */
    NEED(looks);
  }
  while (!looks)
    world_sleep_ms(1);
  if (peer_now == IS_LATE) ranks_barrier(); /* rank 0's run is over */
  if (rank == 1 && peer_now == FAILS_ONCE_READY) sim_fault_add(&fault);
  if (rank == 1 && peer_now == REFUSES) OK(xfer_plan_refuse(plan, "not now"));
  if (rank == 1 && peer_now != REFUSES) (void)!xfer_plan_run(plan, 1, stream);
  while (rank == 1 && peer_now == COMES_LATE &&
         !rank_1_has_pushed()) /* its word has come by then */
    world_sleep_ms(1);
  may_go_on = true;
  NEED(xfer_plan_wait(plan, 0) != XFER_OK);
  ranks_barrier();
  NEED(sim_settle(10000));
  for (size_t i = 0; i < SIZE; i += 511)
    NEED(rank == 0 || memory[i] == 0xee);
  plan_end(plan, parts, 2);
  world_free(memory);
}

static void test_who_refuses(void)
{
  peer_now = REFUSES;
  go(leaves_meanwhile, NULL);
}

static void test_who_is_late(void)
{
  peer_now = IS_LATE;
  go(leaves_meanwhile, NULL);
}

/* After rank 0 has given up waiting for it, and before that says what it may copy. */
static void test_who_comes_late(void)
{
  peer_now = COMES_LATE;
  go(leaves_meanwhile, NULL);
}

static void test_who_fails(void)
{
  peer_now = FAILS_ONCE_READY;
  go(leaves_meanwhile, NULL);
}

/* ---- what peers map ------------------------------------------------------------------------- */

/* A trainer with many allocations pushes, so nobody maps them, and only that of its peer has a
 * handle. */
static void many_allocations(int rank)
{
  enum { MANY = 300, EACH = 64 };
  part parts[MANY];
  unsigned char *memory[MANY];
  const cudaStream_t stream = world_stream();
  xfer_plan *plan = NULL;

  for (int i = 0; i < MANY; i++) {
    memory[i] = rank == 1 || i == 0 ? world_alloc(rank == 1 ? EACH : MANY * EACH)
                                    : memory[0] + (size_t)i * EACH;
    memset(memory[i], rank == 1 ? i % 251 : 0, EACH);
    parts[i] = (part){"u8[64] (1)@1:R -> (1)@0:R", 1, xfer_view_dense(memory[i]), {NULL}};
  }
  plan = plan_of(rank, parts, MANY);
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
  plan_end(plan, parts, MANY);
  ranks_barrier();
  for (int i = 0; i < (rank == 1 ? MANY : 1); i++)
    world_free(memory[i]);
}

static void test_handles(void)
{
  go(many_allocations, NULL);
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
      {"engine_takes_what_another_process_has", test_what_another_process_has},
      {"engine_spares_who_refuses", test_who_refuses},
      {"engine_spares_who_is_late", test_who_is_late},
      {"engine_spares_who_comes_late", test_who_comes_late},
      {"engine_spares_who_fails", test_who_fails},
      {"what_nobody_maps_has_no_handle", test_handles}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
