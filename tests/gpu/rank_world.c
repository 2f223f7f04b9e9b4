/* Ranks as processes with a GPU each, or a share of one. */
#include "rank_world.h"

#include "chunks.h"
#include "fill_stream.h"
#include "random_line.h"

#include <xfer/nccl.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TOO_FEW = 77 };

world w;

void die(const char *file, int line, const char *what, const char *why)
{
  fprintf(stderr, "%s:%d: rank %d: %s: %s\n", file, line, w.ranks.rank, what, why);
  (void)fflush(NULL);
  _exit(1);
}

int64_t from_to(int64_t a, int64_t b)
{
  return random_draw(&w.random, a, b);
}

/* ---- the world ---------------------------------------------------------------------------- */

static void nccl_check(ncclResult_t result, const char *what)
{
  if (result != ncclSuccess) die(__FILE__, __LINE__, what, ncclGetErrorString(result));
}

static void comm_make(const char *kind)
{
  unsigned char id[XFER_NCCL_ID_BYTES] = {0};
  unsigned char ids[64][XFER_NCCL_ID_BYTES];

  if (strcmp(kind, "gather") == 0) {
    OK(xfer_comm_create_cuda(&w.comm, perf_ranks_all_gather, &w.ranks, w.ranks.rank, w.ranks.size));
    return;
  }
  w.has_nccl = true;
  if (w.ranks.rank == 0) OK(xfer_nccl_id(id));
  EXPECT(perf_ranks_all_gather(&w.ranks, ids, id, sizeof id) == 0, "a rank did not come");
  if (strcmp(kind, "nccl") == 0) {
    OK(xfer_comm_create_nccl_id(&w.comm, ids[0], w.ranks.rank, w.ranks.size));
    return;
  }
  ncclUniqueId unique;
  memcpy(&unique, ids[0], sizeof unique);
  nccl_check(ncclCommInitRank(&w.borrowed, w.ranks.size, unique, w.ranks.rank), "ncclCommInitRank");
  OK(xfer_comm_create_nccl(&w.comm, w.borrowed));
}

void world_make(const char *kind, uint64_t seed)
{
  int n_gpus = 0;
  bool shares = strcmp(kind, "gather") == 0;

  if (cudaGetDeviceCount(&n_gpus) != cudaSuccess || n_gpus == 0 ||
      (!shares && n_gpus < w.ranks.size)) {
    if (w.ranks.rank == 0)
      printf("SKIPPED: %d ranks over %s, %d GPUs\n", w.ranks.size, kind, n_gpus);
    (void)fflush(NULL);
    _exit(TOO_FEW);
  }
  CUDA(cudaSetDevice, (w.ranks.rank % n_gpus));
  CUDA(cudaStreamCreateWithFlags, (&w.stream, cudaStreamNonBlocking));
  CUDA(cudaMalloc, ((void **)&w.wrong, sizeof *w.wrong));
  CUDA(cudaMemset, (w.wrong, 0, sizeof *w.wrong));
  w.random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
  comm_make(kind);
}

unsigned long long wrong_bytes(void)
{
  unsigned long long wrong = 0;

  CUDA(cudaStreamSynchronize, (w.stream));
  CUDA(cudaMemcpy, (&wrong, w.wrong, sizeof wrong, cudaMemcpyDeviceToHost));
  return wrong;
}

/* ---- tensors ------------------------------------------------------------------------------ */

static void *memory_alloc(size_t n_bytes)
{
  void *memory = NULL;

  if (w.chunked) return chunks_alloc(n_bytes, w.leaves);
  CUDA(cudaMalloc, (&memory, n_bytes));
  return memory;
}

/* A dense or strided view of new memory, with `lead` bytes before it. */
static void part_make(tensor *t, int side, bool strided)
{
  const xfer_layout *layout = side == 0 ? t->src : t->dst;
  int64_t shape[XFER_MAX_DIMS] = {0};
  int64_t strides[XFER_MAX_DIMS] = {0};
  int64_t span = (int64_t)xfer_dtype_size(xfer_layout_dtype(layout));
  int64_t word = span;
  int n_dims = xfer_layout_shape(layout, NULL);
  int64_t lead = word * from_to(0, 5); /* drawn on every rank alike */
  int64_t gap = strided ? from_to(0, 2) : 0;
  int64_t turn = strided ? from_to(0, 3) : 0;
  size_t n_bytes = fill_part_bytes(layout, w.ranks.rank, shape);

  t->n_bytes[side] = 0;
  if (n_bytes == 0) return;
  for (int k = n_dims - 1; k >= 0; k--) {
    int d = (int)((k + turn) % n_dims);
    strides[d] = span;
    span = span * shape[d] + gap * word;
  }
  t->n_bytes[side] = (size_t)(span + lead);
  t->memory[side] = memory_alloc(t->n_bytes[side]);
  t->views[side] = xfer_view_strided(t->memory[side] + lead, strides, n_dims);
}

bool part_visit(const tensor *t, bool is_source, uint64_t *n_bytes)
{
  fill_stream on = {w.wrong, 1, w.stream};
  const fill_device device = fill_device_of(&on);
  const xfer_refit_tensor whole = fill_whole(t->name, t->src);
  const fill_job job = {.tensor = &whole,
                        .layout = is_source ? t->src : t->dst,
                        .rank = w.ranks.rank,
                        .view = &t->views[is_source ? 0 : 1],
                        .device = &device};
  fill_sum sum = {0};
  const bool ok = is_source ? fill_write(&job) : fill_check(&job, &sum);

  if (n_bytes != NULL) *n_bytes = sum.bytes;
  return ok;
}

void tensor_fill(const tensor *t)
{
  if (t->n_bytes[0] > 0) EXPECT(part_visit(t, true, NULL), "fill");
}

void tensor_make(tensor *t, int index, const char *line, bool strided)
{
  memset(t, 0, sizeof *t);
  (void)snprintf(t->name, sizeof t->name, "t%d", index);
  (void)snprintf(t->line, sizeof t->line, "%.*s", (int)sizeof t->line - 1, line);
  OK(xfer_problem_parse(&t->src, &t->dst, line));
  part_make(t, 0, strided);
  part_make(t, 1, strided);
  tensor_fill(t);
}

void barrier(void)
{
  EXPECT(perf_ranks_barrier(&w.ranks) == 0, "a rank did not come");
}

static void tensor_free(tensor *t)
{
  for (int side = 0; side < 2; side++) {
    if (t->n_bytes[side] == 0) continue;
    if (w.chunked)
      chunks_free(t->memory[side], t->n_bytes[side]);
    else
      CUDA(cudaFree, (t->memory[side]));
  }
  xfer_layout_destroy(t->src);
  xfer_layout_destroy(t->dst);
}

void tensors_free(tensor *tensors, int n)
{
  for (int t = 0; t < n; t++)
    tensor_free(&tensors[t]);
}

void plan_end(xfer_plan *plan, tensor *tensors, int n)
{
  xfer_plan_destroy(plan);
  barrier();
  tensors_free(tensors, n);
}

int field_tensors(tensor *tensors)
{
  static const char *const forms[] = {"bf16[%d,768] (%d)@0-%d:S0 -> (%d)@%d-%d:S1",
                                      "bf16[64,%d,256] (%d)@0-%d:S0 -> (%d)@%d-%d:S1",
                                      "f32[%d,64] (%d)@0-%d:S0 -> (%d)@%d-%d:S0;pad=0:1200",
                                      "u8[%d,1000] (%d)@0-%d:R -> (%d)@%d-%d:R"};
  static const int sizes[] = {2048, 768, 1001, 333};
  int n = w.ranks.size;
  int half = n > 1 ? n / 2 : 1;
  int first = n > 1 ? half : 0;

  for (int i = 0; i < 4; i++) {
    char line[256];
    (void)snprintf(line, sizeof line, forms[i], sizes[i], half, half - 1, n - first, first, n - 1);
    tensor_make(&tensors[i], i, line, i % 2 == 1);
  }
  return 4;
}

void poison(const tensor *tensors, int n)
{
  for (int i = 0; i < n; i++) {
    if (tensors[i].n_bytes[1] > 0) {
      CUDA(cudaMemsetAsync, (tensors[i].memory[1], POISON, tensors[i].n_bytes[1], w.stream));
    }
  }
}

void check(const tensor *tensors, int n)
{
  for (int i = 0; i < n; i++) {
    if (tensors[i].n_bytes[1] == 0) continue;
    uint64_t n_bytes = 0;
    EXPECT(part_visit(&tensors[i], false, &n_bytes), "check");
    EXPECT(n_bytes == fill_part_bytes(tensors[i].dst, w.ranks.rank, NULL), "a part of other bytes");
  }
}

void bind_all(xfer_plan *plan, const tensor *tensors, int n)
{
  for (int i = 0; i < n; i++)
    OK(xfer_plan_bind(plan, (size_t)i, &tensors[i].views[0], &tensors[i].views[1]));
}

xfer_plan *plan_make(const tensor *tensors, int n, uint32_t lane, uint64_t window)
{
  xfer_plan *plan = NULL;
  xfer_tensor list[TENSORS_MAX] = {{.name = NULL}};
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;

  options.lane = lane;
  options.window_bytes = window;
  options.timeout_ms = w.timeout_ms > 0 ? w.timeout_ms : DEADLINE_MS;
  options.flags = w.plan_flags;
  options.ranks_per_domain = w.ranks_per_domain;
  for (int i = 0; i < n; i++)
    list[i] = (xfer_tensor){.name = tensors[i].name, .src = tensors[i].src, .dst = tensors[i].dst};
  OK(xfer_plan_create(&plan, w.comm, list, (size_t)n, &options));
  bind_all(plan, tensors, n);
  return plan;
}

void run_and_check(xfer_plan *plan, uint64_t version, const tensor *tensors, int n)
{
  poison(tensors, n);
  OK(xfer_plan_run(plan, version, w.stream));
  check(tensors, n);
  OK(xfer_plan_wait(plan, 0));
  EXPECT(wrong_bytes() == 0, "wrong bytes");
}
