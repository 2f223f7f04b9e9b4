/* Which copies are the engine's, of sizes that no test could move, and how they are enqueued. */
#include "cuda_device.h"
#include "object.h"
#include "world.h"

#include <stdio.h>
#include <string.h>

enum { MIB = 1 << 20 };
static const char BATCH[] = "cuMemcpyBatchAsync";

static xfi_device *device_now;
static xfi_mapping *far; /* a peer's memory of 2^45 bytes, as far as the device knows; */
static char *near;       /* and some of ours */

static bool is_another; /* process, that exports now */
static bool is_beside;  /* other copies, as the engine is told */

uint64_t __real_xfi_process_number(void);
uint64_t __wrap_xfi_process_number(void);
cudaError_t __wrap_cudaIpcOpenMemHandle(void **base, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t __wrap_cudaIpcCloseMemHandle(void *base);

uint64_t __wrap_xfi_process_number(void)
{
  return __real_xfi_process_number() + (is_another ? 1 : 0);
}

cudaError_t __wrap_cudaIpcOpenMemHandle(void **base, cudaIpcMemHandle_t handle, unsigned flags)
{
  static char mapped[96];

  (void)handle, (void)flags;
  *base = mapped;
  return cudaSuccess;
}

cudaError_t __wrap_cudaIpcCloseMemHandle(void *base)
{
  (void)base;
  return cudaSuccess;
}

/* Rows that lie too far apart for a 2-D copy. */
static xfi_copy runs_apart(int64_t n, int64_t run_bytes)
{
  return (xfi_copy){.src = far->base,
                    .dst = near,
                    .run_bytes = run_bytes,
                    .n_dims = 1,
                    .extent = {n},
                    .src_stride = {((int64_t)1 << 31) + run_bytes},
                    .dst_stride = {3 * run_bytes}};
}

/* What the engine takes of copies, and how many it leaves. */
static size_t take(xfi_cuda_runs *runs, bool open, xfi_copy *copies, size_t n)
{
  const xfi_batch_spec spec = {.copies = copies, .n_copies = n, .open = open, .beside = is_beside};

  OK(xfi_cuda_engine_take(runs, xfi_cuda(device_now), &spec, &n));
  return n;
}

/* It takes all of these copies but the one of `n_rows` rows of `run_bytes`; 0: all of them. */
static void leaves(int64_t n_rows, int64_t run_bytes, bool open, const xfi_copy *given, size_t n)
{
  xfi_cuda_runs runs = {.n = 0};
  xfi_copy copies[3];

  memcpy(copies, given, n * sizeof *copies);
  n = take(&runs, open, copies, n);
  NEED(n == (n_rows > 0));
  NEED(n == 0 || (copies[0].extent[0] == n_rows && copies[0].run_bytes == run_bytes));
  xfi_cuda_engine_free(&runs);
}

/* It takes runs of `least` bytes and more, up to `most` of them, where they have `all` bytes. */
static void takes(bool open, int64_t least, int64_t most, int64_t all)
{
  const int64_t enough = all / least;
  const xfi_copy fits = runs_apart(enough, least);
  const xfi_copy many = runs_apart(most - 56, least);
  const xfi_copy long_ones = runs_apart(56, 2 * least);

  leaves(0, 0, open, &fits, 1);
  leaves(0, 0, open, (xfi_copy[]){runs_apart(most, least)}, 1);
  if (enough > 1) leaves(enough - 1, least, open, (xfi_copy[]){runs_apart(enough - 1, least)}, 1);
  leaves(2 * enough, least - 1, open, (xfi_copy[]){runs_apart(2 * enough, least - 1)}, 1);
  leaves(most + 1, least, open, (xfi_copy[]){runs_apart(most + 1, least)}, 1);
  /* Longer ones come first; equals as they are. */
  leaves(0, 0, open, (xfi_copy[]){many, long_ones}, 2);
  leaves(most - 56, least, open, (xfi_copy[]){many, runs_apart(57, 2 * least)}, 2);
  leaves(1, least, open, (xfi_copy[]){many, long_ones, runs_apart(1, least)}, 3);
}

/* What it takes, however large: no zeros, no elements that change, and nothing that stays here. */
static void takes_what_crosses(int64_t least, int64_t all)
{
  const xfi_convert convert = {.src_bytes = 1, .dst_bytes = 1};
  xfi_copy copy = runs_apart(all / least, least);

  copy.src_stride[0] = 0; /* the same row many times */
  leaves(0, 0, false, &copy, 1);
  copy = runs_apart(all / least, least);
  copy.convert = &convert;
  leaves(all / least, least, false, &copy, 1);
  copy.convert = NULL;
  copy.src = near;
  leaves(all / least, least, false, &copy, 1);
  copy.dst = far->base; /* a push */
  leaves(0, 0, false, &copy, 1);
  copy.src = NULL;
  leaves(all / least, least, false, &copy, 1);
}

/* A batch of nothing, and two runs on each kind of stream: the legacy one takes no batches. */
static void launches(bool by_batches)
{
  const cudaStream_t streams[] = {world_stream(), NULL, cudaStreamLegacy};
  xfi_copy nothing = runs_apart(1, 0);
  CUdeviceptr dst[2] = {(CUdeviceptr)(uintptr_t)near, (CUdeviceptr)(uintptr_t)near + 8};
  CUdeviceptr src[2] = {(CUdeviceptr)(uintptr_t)near + 32, (CUdeviceptr)(uintptr_t)near + 24};
  size_t n_bytes[2] = {8, 8};
  const xfi_cuda_runs runs = {.dst = dst, .src = src, .n_bytes = n_bytes, .n = 2};
  xfi_batch *batch = NULL;

  OK(xfi_batch_make(device_now, &batch, &nothing, 1, 100));
  OK(device_now->ops->batch_launch(device_now, batch, streams[0], NULL));
  device_now->ops->batch_destroy(device_now, batch);
  for (int i = 0; i < 3; i++) {
    const uint64_t in_batches = sim_calls_of(BATCH);
    const uint64_t alone = sim_calls_of("cudaMemcpyAsync");
    const bool batches = by_batches && i == 0;

    memset(near, 0, 16);
    memset(near + 24, i + 1, 16);
    OK(xfi_cuda_engine_launch(xfi_cuda(device_now), &runs, streams[i]));
    NEED(cudaStreamSynchronize(streams[i]) == cudaSuccess);
    NEED(near[0] == i + 1 && near[15] == i + 1);
    NEED(sim_calls_of(BATCH) == in_batches + (batches ? 1 : 0));
    NEED(sim_calls_of("cudaMemcpyAsync") == alone + (batches ? 0 : 2));
  }
}

/* A device, and so much memory of a peer's, as they say, on a device of this number. */
static xfi_device *begin_beside(const char *lacks, int of_peer, size_t n_bytes)
{
  enum { ROOM = 96 };
  xfi_allocation wide = {NULL, n_bytes, 1, 0};
  xfi_mem_handle handle;
  xfi_device *peer = NULL;
  void *memory = NULL;

  world_clear(2, (sim_config){.eager = true, .lacks = lacks});
  NEED(cudaSetDevice(of_peer) == cudaSuccess);
  OK(xfi_device_create_cuda(&peer));
  NEED(cudaMalloc(&wide.base, ROOM) == cudaSuccess);
  OK(peer->ops->mem_export(peer, wide, &handle));
  is_another = false;
  NEED(cudaSetDevice(0) == cudaSuccess);
  OK(xfi_device_create_cuda(&device_now));
  NEED(cudaMalloc(&memory, ROOM) == cudaSuccess);
  near = memory;
  OK(device_now->ops->mem_import(device_now, &handle, &far, xfi_deadline_after(1000)));
  return peer;
}

static xfi_device *begin(const char *lacks, int of_peer)
{
  return begin_beside(lacks, of_peer, (size_t)1 << 45);
}

static void end(xfi_device *peer)
{
  device_now->ops->mem_unimport(device_now, far);
  device_now->ops->destroy(device_now);
  peer->ops->destroy(peer);
}

/* `most`: where it may be kept waiting, and where it goes at once. */
static void engine_of_a_driver(const char *lacks, int64_t least, const int64_t most[2], int64_t all)
{
  xfi_device *peer = begin(lacks, 1);

  takes(false, least, most[0], all);
  takes(true, least, most[1], all);
  takes_what_crosses(least, all);
  launches(lacks == NULL);
  end(peer);
}

static void test_what_is_large_and_few(void)
{
  engine_of_a_driver(NULL, (int64_t)MIB / 2, (int64_t[]){4096, 20000}, (int64_t)32 * MIB);
  engine_of_a_driver(BATCH, (int64_t)64 * MIB, (int64_t[]){256, 256}, (int64_t)64 * MIB);
}

/* What it makes of one copy: so many runs and 2-D copies. */
static void makes(size_t n_runs, size_t n_rows, xfi_copy copy)
{
  xfi_cuda_runs runs = {.n = 0};
  const size_t n = take(&runs, false, &copy, 1);

  NEED(n == (xfi_cuda_engine_is_empty(&runs) ? 1 : 0));
  NEED(runs.n == n_runs && runs.n_rows == n_rows);
  xfi_cuda_engine_free(&runs);
}

/* What it makes of two copies, the second's rows being the longer ones. */
static void shares(size_t n_runs, size_t n_rows, xfi_copy second, xfi_copy first)
{
  xfi_cuda_runs runs = {.n = 0};
  xfi_copy copies[2] = {second, first};

  copies[1].run_bytes += 8;
  NEED(take(&runs, false, copies, 2) == (n_runs > 0 ? 0 : 1));
  NEED(runs.n == n_runs && runs.n_rows == n_rows);
  xfi_cuda_engine_free(&runs);
}

/* `n` times 64 rows, of which 64 MiB are worth a 2-D copy. */
static xfi_copy rows_of(int64_t n, int64_t run_bytes, int64_t src_stride)
{
  return (xfi_copy){.src = far->base,
                    .dst = near,
                    .run_bytes = run_bytes,
                    .n_dims = 2,
                    .extent = {n, 64},
                    .src_stride = {64 * src_stride + 8, src_stride},
                    .dst_stride = {64 * 2 * run_bytes, 2 * run_bytes}};
}

static void test_rows_in_one_copy(void)
{
  xfi_device *peer = begin(NULL, 1);
  xfi_copy narrow = rows_of(1, MIB, 3 * MIB);

  makes(0, 3, rows_of(3, MIB, 3 * MIB));
  makes(0, 256, rows_of(256, MIB, 3 * MIB));
  makes(0, 0, rows_of(257, MIB, 3 * MIB)); /* too many, and so are their runs */
  shares(57 * 64, 200, rows_of(57, MIB, 3 * MIB), rows_of(200, MIB, 3 * MIB));
  shares(0, 200, rows_of(64, MIB, 3 * MIB), rows_of(200, MIB, 3 * MIB));
  makes(192, 0, rows_of(3, MIB - 1, 3 * MIB));
  makes(0, 1, rows_of(1, MIB, INT32_MAX));
  makes(64, 0, rows_of(1, MIB, (int64_t)INT32_MAX + 1));
  makes(64, 0, rows_of(1, MIB, 0)); /* one row many times */
  narrow.extent[1] = 63;
  makes(63, 0, narrow);
  end(peer);
  peer = begin(BATCH, 1); /* where a run of 64 MiB is worth a call too */
  makes(0, 3, rows_of(3, MIB, 3 * MIB));
  makes(0, 0, narrow);
  end(peer);
}

static void test_nothing_between_processes_on_a_gpu(void)
{
  xfi_device *peer = begin(NULL, 0);
  const xfi_copy pull = runs_apart(64, MIB);
  xfi_copy push = pull;

  push.src = near;
  push.dst = far->base;
  leaves(64, MIB, false, &pull, 1);
  leaves(64, MIB, true, &push, 1);
  end(peer);
}

/* Of another process's memory whose size is no multiple of 64 KiB, beside other copies. */
static void test_nothing_of_odd_sizes(void)
{
  for (int i = 0; i < 6; i++) {
    const int units = 8 + i / 2; /* of 32 KiB */
    const bool odd = units % 2 != 0 && i % 2 != 0;

    is_another = true;
    xfi_device *peer = begin_beside(NULL, 1, (size_t)units << 15);
    xfi_copy copy = runs_apart(64, MIB);

    is_beside = i % 2 != 0;
    leaves(odd ? 64 : 0, MIB, false, &copy, 1);
    copy.src = near;
    copy.dst = far->base;
    leaves(odd ? 64 : 0, MIB, true, &copy, 1);
    end(peer);
  }
  is_beside = false;
}

/* Is it told of copies that are made beside: of those within a rank, and the other way? */
typedef struct neighbours {
  const char *line;
  bool beside[2]; /* on each rank */
} neighbours;

static const neighbours *next_to;
static const xfi_device_ops *cuda_ops;
static bool was_told[2]; /* each rank's device, in any batch */

static xfer_status listen(xfi_device *device, xfi_batch **batch, const xfi_batch_spec *spec)
{
  for (int r = 0; r < 2; r++)
    if (w.comms[r]->device == device) was_told[r] = was_told[r] || spec->beside;
  return cuda_ops->batch_create(device, batch, spec);
}

static void commit_beside(int rank)
{
  char *memory = world_alloc(MIB);
  const xfer_view views[2] = {xfer_view_dense(memory), xfer_view_dense(memory + MIB / 2)};
  xfer_tensor moved = {.name = "t"};
  xfer_plan *plan = NULL;
  xfer_layout *layouts[2];

  OK(xfer_problem_parse(&layouts[0], &layouts[1], next_to->line));
  moved.src = layouts[0];
  moved.dst = layouts[1];
  OK(xfer_plan_create(&plan, w.comms[rank], &moved, 1, NULL));
  OK(xfer_plan_bind(plan, 0, &views[0], &views[1]));
  OK(xfer_plan_commit(plan));
  NEED(was_told[rank] == next_to->beside[rank]);
  xfer_plan_destroy(plan);
  for (int i = 0; i < 2; i++)
    xfer_layout_destroy(layouts[i]);
  world_free(memory);
}

static void test_copies_beside(void)
{
  static const neighbours all[] = {{"u8[8192] (1)@0:R -> (1)@1:R", {false, false}},
                                   {"u8[8192] (2):S0 -> (1)@1:R", {false, true}},
                                   {"u8[8192] (2)@0,1:S0 -> (2)@1,0:S0", {true, true}},
                                   {"u8[2,4096] (2):S0 -> (2):S1", {true, true}}};

  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    next_to = &all[i];
    world_make(2, COMM_GATHER, (sim_config){.eager = true});
    cuda_ops = w.comms[0]->device->ops;
    xfi_device_ops listening = *cuda_ops;
    listening.batch_create = listen;
    for (int r = 0; r < 2; r++) {
      was_told[r] = false;
      w.comms[r]->device->ops = &listening;
    }
    world_go(commit_beside);
    world_destroy();
  }
}

/* ---- all to all ----------------------------------------------------------------------------- */

/* Each of `n` ranks pushes 1 MiB to each: the engine does where there is one peer alone. */
static void each_to_all(int rank)
{
  const int n = xfer_comm_size(w.comms[rank]);
  const size_t n_bytes = (size_t)n * MIB;
  char *memory = world_alloc(2 * n_bytes);
  cudaStream_t stream = world_stream();
  xfer_tensor moved = {.name = "t"};
  xfer_plan *plan = NULL;
  xfer_layout *layouts[2];
  char line[80];

  xfi_cuda(w.comms[rank]->device)->engine_all_bytes = MIB;
  (void)snprintf(line, sizeof line, "u8[%d,%d,1048576] (%d):S0 -> (%d):S1", n, n, n, n);
  OK(xfer_problem_parse(&layouts[0], &layouts[1], line));
  moved.src = layouts[0];
  moved.dst = layouts[1];
  memset(memory, 3 + rank, n_bytes);
  const xfer_view views[2] = {xfer_view_dense(memory), xfer_view_dense(memory + n_bytes)};
  OK(xfer_plan_create(&plan, w.comms[rank], &moved, 1, NULL));
  OK(xfer_plan_bind(plan, 0, &views[0], &views[1]));
  OK(xfer_plan_commit(plan));
  ranks_barrier();
  const uint64_t before = sim_calls_of(BATCH);
  if (rank != 0) OK(xfer_plan_run(plan, 1, stream));
  ranks_barrier(); /* what the last one pushes goes at once */
  if (rank == 0) OK(xfer_plan_run(plan, 1, stream));
  OK(xfer_plan_wait(plan, 0));
  for (size_t i = 0; i < n_bytes; i += 511)
    NEED(memory[n_bytes + i] == 3 + (char)(i / MIB));
  ranks_barrier();
  NEED(sim_calls_of(BATCH) == before + (n == 2 ? 1 : 0));
  xfer_plan_destroy(plan);
  for (int i = 0; i < 2; i++)
    xfer_layout_destroy(layouts[i]);
  world_free(memory);
}

static void test_all_to_all(void)
{
  for (int n = 2; n <= 3; n++) {
    world_make(n, COMM_GATHER, (sim_config){.eager = true});
    world_go(each_to_all);
    world_destroy();
  }
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"the_engine_takes_what_is_large_and_few", test_what_is_large_and_few},
      {"the_engine_takes_rows_in_one_copy", test_rows_in_one_copy},
      {"the_engine_takes_nothing_on_one_gpu", test_nothing_between_processes_on_a_gpu},
      {"the_engine_takes_nothing_of_odd_sizes", test_nothing_of_odd_sizes},
      {"the_engine_is_told_of_copies_beside", test_copies_beside},
      {"the_engine_takes_nothing_from_all_to_all", test_all_to_all}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
