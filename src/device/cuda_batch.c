/*
 * Copies made ready, in two kinds that run side by side:
 *
 * - the copy engine takes the largest ones of long rows: no multiprocessor, and the speed of the
 *   link. It cannot be stopped once it is enqueued, so it takes none with a strict guard;
 * - one launch of the kernels takes the rest.
 *
 * Within one memory the kernels are as fast as the engine: gathers, scatters and what stays on a
 * rank are all theirs, on few blocks, so that what crosses the link beside them is not held up.
 */
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"
#include "launch.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Below, what lies between two engine operations, about 2.5 us, costs what the engine gains over
 * kernels: of 2 H200, 8 MiB a piece move at 0.85 of the link, 32 MiB at 0.95, 64 MiB at 0.98, and
 * pieces of any size by kernels at 0.95. It also loses a sixth once kernels have read allocations
 * of a peer that do not end with a page of 64 KiB, as small tensors do not. */
static const int64_t ENGINE_BYTES_MIN = INT64_C(64) << 20;
/* It reads a peer's short rows more slowly than kernels do. */
static const int64_t ENGINE_ROW_BYTES_MIN = 16 << 10;
static const int64_t PITCH_MAX = INT32_MAX; /* cudaDevAttrMaxPitch of every device so far */
/* A stream that waits for a flag takes about 1,000 operations before it holds up the host. */
enum { ENGINE_OPS_MAX = 256 };

enum { JOIN_RETRIES = 100, JOIN_RETRY_NS = 1000 * 1000 };

/* A 2-D copy by the engine; of height 1: a run. */
typedef struct engine_op {
  char *dst;
  const char *src;
  size_t dst_pitch;
  size_t src_pitch;
  size_t width;
  size_t height;
} engine_op;

typedef struct engine_ops {
  engine_op *at;
  size_t n;
} engine_ops;

struct xfi_batch {
  engine_ops engine;
  void *memory; /* of the jobs' tables, on the device */
  xfi_cuda_job jobs[XFI_CUDA_N_TABLES];
  cudaStream_t side; /* of the kernels where the engine has work too; NULL: they need none */
  cudaEvent_t fork;
  cudaEvent_t join;
};

/* ---- which copies the engine takes ---------------------------------------------------------- */

/* A copy and what would become of it as 2-D operations. */
typedef struct candidate {
  xfi_copy copy;
  int64_t n_ops;
  int64_t bytes_per_op;
  size_t index; /* keeps the order of equals */
} candidate;

/* How many 2-D operations the copy takes; 0: it is not for the engine. Rows of a source may overlap
 * each other, which only the kernels can do. */
static int64_t count_ops(const xfi_copy *c, int64_t *bytes_per_op)
{
  const int64_t last = c->n_dims - 1;
  int64_t n_ops = 1;

  for (int64_t d = 0; d < last; d++)
    n_ops *= c->extent[d];
  *bytes_per_op = c->run_bytes * (last >= 0 ? c->extent[last] : 1);
  if (*bytes_per_op < ENGINE_BYTES_MIN || n_ops > ENGINE_OPS_MAX) return 0;
  if (last < 0) return n_ops;
  if (c->run_bytes < ENGINE_ROW_BYTES_MIN) return 0;
  if (c->src_stride[last] > PITCH_MAX || c->dst_stride[last] > PITCH_MAX) return 0;
  return c->src_stride[last] < c->run_bytes || c->dst_stride[last] < c->run_bytes ? 0 : n_ops;
}

static int by_size(const void *a, const void *b)
{
  const candidate *x = a;
  const candidate *y = b;

  if (x->bytes_per_op != y->bytes_per_op) return x->bytes_per_op < y->bytes_per_op ? 1 : -1;
  return (x->index > y->index) - (x->index < y->index);
}

static void add_ops(engine_ops *ops, const candidate *from)
{
  const xfi_copy *c = &from->copy;
  const int64_t last = c->n_dims - 1;
  int64_t x[XFI_COPY_DIMS] = {0};

  for (int64_t i = 0; i < from->n_ops; i++) {
    engine_op op = {.dst = c->dst, .src = c->src, .width = (size_t)c->run_bytes, .height = 1};
    for (int64_t d = 0; d < last; d++) {
      op.dst += x[d] * c->dst_stride[d];
      op.src += x[d] * c->src_stride[d];
    }
    if (last >= 0) {
      op.height = (size_t)c->extent[last];
      op.dst_pitch = (size_t)c->dst_stride[last];
      op.src_pitch = (size_t)c->src_stride[last];
    }
    ops->at[ops->n++] = op;
    for (int64_t d = last - 1; d >= 0 && ++x[d] == c->extent[d]; d--)
      x[d] = 0;
  }
}

/* Gives the largest copies that the engine takes to it, and moves the others to the front of
 * `rest`. */
static xfer_status take(engine_ops *ops, const xfi_cuda_device *device, xfi_copy *rest,
                        size_t *n_rest)
{
  xfer_status st = XFER_OK;
  candidate *candidates = NULL;
  size_t n_candidates = 0;
  size_t n_left = 0;
  int64_t n_ops = 0;

  candidates = xfi_calloc(*n_rest, sizeof *candidates);
  XFI_CHECK(candidates != NULL, XFER_ERR_NOMEM, "a batch of %zu copies", *n_rest);
  for (size_t i = 0; i < *n_rest; i++) {
    candidate c = {.copy = rest[i], .index = i};
    const bool remote =
        rest[i].src != NULL && rest[i].convert == NULL &&
        (xfi_cuda_is_imported(device, rest[i].src) || xfi_cuda_is_imported(device, rest[i].dst));

    c.n_ops = remote ? count_ops(&rest[i], &c.bytes_per_op) : 0;
    if (c.n_ops == 0)
      rest[n_left++] = rest[i];
    else
      candidates[n_candidates++] = c;
  }
  qsort(candidates, n_candidates, sizeof *candidates, by_size);
  for (size_t i = 0; i < n_candidates && n_ops < ENGINE_OPS_MAX; i++)
    n_ops += candidates[i].n_ops;
  ops->at = xfi_calloc((size_t)(n_ops < ENGINE_OPS_MAX ? n_ops : ENGINE_OPS_MAX), sizeof *ops->at);
  XFI_CHECK(ops->at != NULL, XFER_ERR_NOMEM, "%lld operations", (long long)n_ops);
  for (size_t i = 0; i < n_candidates; i++) {
    if ((int64_t)ops->n + candidates[i].n_ops > ENGINE_OPS_MAX)
      rest[n_left++] = candidates[i].copy;
    else
      add_ops(ops, &candidates[i]);
  }
  *n_rest = n_left;
done:
  xfi_free(candidates);
  return st;
}

/* ---- the kernels' tables ------------------------------------------------------------------ */

static size_t table_bytes(const xfi_cuda_table *table)
{
  if (table->n_pieces == 0) return 0;
  return table->n_pieces * sizeof *table->pieces +
         (table->n_pieces + 1) * sizeof *table->first_tile;
}

/* Puts a table at `to`, which is `at` on the device. */
static xfi_cuda_job table_place(const xfi_cuda_table *table, char *to, char *at, int n_blocks)
{
  size_t n_bytes = table->n_pieces * sizeof *table->pieces;

  if (table->n_pieces == 0) return (xfi_cuda_job){.pieces = NULL};
  memcpy(to, table->pieces, n_bytes);
  memcpy(to + n_bytes, table->first_tile, (table->n_pieces + 1) * sizeof *table->first_tile);
  return (xfi_cuda_job){.pieces = (const xfi_cuda_piece *)(void *)at,
                        .first_tile = (const int64_t *)(void *)(at + n_bytes),
                        .n_pieces = (int64_t)table->n_pieces,
                        .n_tiles = table->first_tile[table->n_pieces],
                        .kinds = table->kinds,
                        .n_blocks = n_blocks};
}

static xfer_status upload(xfi_cuda_device *device, xfi_batch *batch,
                          const xfi_cuda_program *program, int n_blocks, const xfi_guard *guard)
{
  xfer_status st = XFER_OK;
  char *host = NULL;
  size_t first[XFI_CUDA_N_TABLES];
  size_t n_bytes = 0;

  for (int k = 0; k < XFI_CUDA_N_TABLES; k++) {
    first[k] = n_bytes;
    n_bytes += table_bytes(&program->tables[k]);
  }
  if (n_bytes == 0) return XFER_OK;
  host = xfi_calloc(1, n_bytes);
  XFI_CHECK(host != NULL, XFER_ERR_NOMEM, "%zu bytes of descriptors", n_bytes);
  XFI_CUDA_TRY(cudaMalloc, (&batch->memory, n_bytes));
  for (int k = 0; k < XFI_CUDA_N_TABLES; k++) {
    batch->jobs[k] = table_place(&program->tables[k], host + first[k],
                                 (char *)batch->memory + first[k], n_blocks);
    batch->jobs[k].go = xfi_cuda_guard_go(guard);
  }
  XFI_CUDA_TRY(cudaMemcpyAsync,
               (batch->memory, host, n_bytes, cudaMemcpyHostToDevice, device->aside));
  XFI_CUDA_TRY(cudaStreamSynchronize, (device->aside));
done:
  xfi_free(host);
  return st;
}

/* ---- the device's operations -------------------------------------------------------------- */

static xfer_status make_side(xfi_batch *batch)
{
  xfer_status st = XFER_OK;

  XFI_CUDA_TRY(cudaEventCreateWithFlags, (&batch->fork, cudaEventDisableTiming));
  XFI_CUDA_TRY(cudaEventCreateWithFlags, (&batch->join, cudaEventDisableTiming));
  XFI_CUDA_TRY(cudaStreamCreateWithFlags, (&batch->side, cudaStreamNonBlocking));
done:
  return st;
}

static xfer_status batch_fill(xfi_cuda_device *device, xfi_batch *batch, const xfi_copy *copies,
                              size_t n_copies, int percent, const xfi_guard *guard)
{
  const int share = XFI_CUDA_MULTIPROCESSORS * percent / 100;
  const int n_blocks = percent == 100 ? XFI_CUDA_BLOCKS_ALONE : share > 0 ? share : 1;
  xfer_status st = XFER_OK;
  xfi_cuda_program program = {0};
  xfi_copy *rest = NULL;
  size_t n_rest = 0;

  rest = xfi_calloc(n_copies, sizeof *rest);
  XFI_CHECK(rest != NULL, XFER_ERR_NOMEM, "a batch of %zu copies", n_copies);
  for (size_t i = 0; i < n_copies; i++) {
    xfi_copy c = copies[i];
    xfi_copy_simplify(&c);
    if (xfi_copy_bytes(&c) > 0) rest[n_rest++] = c;
  }
  if (!xfi_cuda_guard_is_strict(guard)) {
    n_rest = xfi_cuda_join(device, rest, n_rest);
    XFI_TRY(take(&batch->engine, device, rest, &n_rest));
  }
  XFI_TRY(xfi_cuda_compile(&program, rest, n_rest, n_blocks));
  XFI_TRY(upload(device, batch, &program, n_blocks, guard));
  if (batch->engine.n > 0 && n_rest > 0) XFI_TRY(make_side(batch));
done:
  xfi_free(rest);
  xfi_cuda_program_free(&program);
  return st;
}

xfer_status xfi_cuda_batch_create(xfi_device *base, xfi_batch **batch, const xfi_copy *copies,
                                  size_t n_copies, int percent, const xfi_guard *guard)
{
  xfer_status st = XFER_OK;
  xfi_batch *made = xfi_calloc(1, sizeof *made);

  XFI_CHECK(made != NULL, XFER_ERR_NOMEM, "a batch of %zu copies", n_copies);
  XFI_TRY(batch_fill(xfi_cuda(base), made, copies, n_copies, percent, guard));
  *batch = made;
  made = NULL;
done:
  xfi_cuda_batch_destroy(base, made);
  return st;
}

void xfi_cuda_batch_destroy(xfi_device *base, xfi_batch *batch)
{
  (void)base;
  if (batch == NULL) return;
  if (batch->side != NULL) (void)cudaStreamDestroy(batch->side);
  if (batch->join != NULL) (void)cudaEventDestroy(batch->join);
  if (batch->fork != NULL) (void)cudaEventDestroy(batch->fork);
  if (batch->memory != NULL) (void)cudaFree(batch->memory);
  xfi_free(batch->engine.at);
  xfi_free(batch);
}

static xfer_status engine_launch(const engine_ops *ops, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < ops->n; i++) {
    const engine_op *op = &ops->at[i];
    if (op->height == 1)
      XFI_CUDA_TRY(cudaMemcpyAsync, (op->dst, op->src, op->width, cudaMemcpyDefault, stream));
    else
      XFI_CUDA_TRY(cudaMemcpy2DAsync, (op->dst, op->dst_pitch, op->src, op->src_pitch, op->width,
                                       op->height, cudaMemcpyDefault, stream));
  }
done:
  return st;
}

/* Later work on `stream` comes after what went aside: also where a launch failed, whatever the
 * device says meanwhile. */
static xfer_status join_side(const xfi_batch *batch, xfer_stream stream)
{
  const struct timespec pause = {.tv_nsec = JOIN_RETRY_NS};
  cudaError_t error = cudaErrorUnknown;

  for (int n = 0; n < JOIN_RETRIES && error != cudaSuccess; n++) {
    if (n > 0) (void)nanosleep(&pause, NULL);
    error = cudaEventRecord(batch->join, batch->side);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(stream, batch->join, 0);
  }
  return error == cudaSuccess ? XFER_OK : xfi_cuda_failed(error, "cudaStreamWaitEvent");
}

xfer_status xfi_cuda_batch_launch(xfi_device *base, xfi_batch *batch, xfer_stream stream)
{
  xfer_status st = XFER_OK;
  xfer_status joined;

  (void)base;
  if (batch->side == NULL) {
    XFI_TRY(xfi_cuda_copy_all(batch->jobs, stream));
    XFI_TRY(engine_launch(&batch->engine, stream));
    goto done;
  }
  XFI_CUDA_TRY(cudaEventRecord, (batch->fork, stream));
  XFI_CUDA_TRY(cudaStreamWaitEvent, (batch->side, batch->fork, 0));
  st = xfi_cuda_copy_all(batch->jobs, batch->side);
  if (st == XFER_OK) st = engine_launch(&batch->engine, stream);
  joined = join_side(batch, stream);
  if (st == XFER_OK) st = joined;
done:
  return st;
}
