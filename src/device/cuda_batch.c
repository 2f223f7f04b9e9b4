/*
 * Copies made ready, in three kinds that run side by side:
 *
 * - the copy engine takes the largest ones of long rows: no multiprocessor, and the speed of the
 *   link. It cannot be stopped once it is enqueued, so it takes none with a strict guard;
 * - a graph (cuda_graph.c) takes regular ones of middling size, in one launch for all;
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

/* Below, what lies between two engine operations, about 2.5 us, costs more than the engine gains
 * over the graph; and it reads a peer's short rows more slowly than kernels do. */
static const int64_t ENGINE_BYTES_MIN = INT64_C(16) << 20;
static const int64_t ENGINE_ROW_BYTES_MIN = 16 << 10;
/* A node of the graph costs some 10 us at commit. */
static const int64_t GRAPH_BYTES_MIN = 64 << 10;
static const int64_t GRAPH_ROW_BYTES_MIN = 512;
static const int64_t PITCH_MAX = INT32_MAX; /* cudaDevAttrMaxPitch of every device so far */
/* Of the engine's operations: a stream that waits for a flag takes about 1,000 before it holds up
 * the host. */
enum { ENGINE_OPS_MAX = 256, GRAPH_OPS_MAX = 2048 };

enum { KINDS = 3, JOIN_RETRIES = 100, JOIN_RETRY_NS = 1000 * 1000 };

struct xfi_batch {
  xfi_cuda_ops engine;
  cudaGraphExec_t graph; /* NULL: none */
  void *memory;          /* of the jobs' tables, on the device */
  xfi_cuda_job rows;
  xfi_cuda_job swapped;
  xfi_cuda_job converts;
  int n_kinds;                  /* that have work */
  cudaStream_t side[KINDS - 1]; /* [n_kinds - 1] */
  cudaEvent_t fork;
  cudaEvent_t join[KINDS - 1];
};

/* ---- which copy is of which kind ---------------------------------------------------------- */

/* A copy and what would become of it as 2-D operations. */
typedef struct candidate {
  xfi_copy copy;
  int64_t n_ops;
  int64_t bytes_per_op;
  size_t index; /* keeps the order of equals */
} candidate;

/* What a kind takes. */
typedef struct taste {
  int64_t bytes_min; /* of an operation */
  int64_t row_bytes_min;
  int64_t n_ops_max;
} taste;

static const taste of_engine = {ENGINE_BYTES_MIN, ENGINE_ROW_BYTES_MIN, ENGINE_OPS_MAX};
static const taste of_graph = {GRAPH_BYTES_MIN, GRAPH_ROW_BYTES_MIN, GRAPH_OPS_MAX};

/* How many 2-D operations the copy takes; 0: it is not for this kind. Rows of a source may overlap
 * each other, which only the kernels can do. */
static int64_t count_ops(const taste *t, const xfi_copy *c, int64_t *bytes_per_op)
{
  const int64_t last = c->n_dims - 1;
  int64_t n_ops = 1;

  for (int64_t d = 0; d < last; d++)
    n_ops *= c->extent[d];
  *bytes_per_op = c->run_bytes * (last >= 0 ? c->extent[last] : 1);
  if (*bytes_per_op < t->bytes_min || n_ops > t->n_ops_max) return 0;
  if (last < 0) return n_ops;
  if (c->run_bytes < t->row_bytes_min) return 0;
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

static void add_ops(xfi_cuda_ops *ops, const candidate *from)
{
  const xfi_copy *c = &from->copy;
  const int64_t last = c->n_dims - 1;
  int64_t x[XFI_COPY_DIMS] = {0};

  for (int64_t i = 0; i < from->n_ops; i++) {
    xfi_cuda_op op = {.dst = c->dst, .src = c->src, .width = (size_t)c->run_bytes, .height = 1};
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

/* Gives the largest copies that a kind takes to it, and moves the others to the front of `rest`. */
static xfer_status take(xfi_cuda_ops *ops, const taste *t, const xfi_cuda_device *device,
                        xfi_copy *rest, size_t *n_rest)
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

    c.n_ops = remote ? count_ops(t, &rest[i], &c.bytes_per_op) : 0;
    if (c.n_ops == 0)
      rest[n_left++] = rest[i];
    else
      candidates[n_candidates++] = c;
  }
  qsort(candidates, n_candidates, sizeof *candidates, by_size);
  for (size_t i = 0; i < n_candidates && n_ops < t->n_ops_max; i++)
    n_ops += candidates[i].n_ops;
  ops->at = xfi_calloc((size_t)(n_ops < t->n_ops_max ? n_ops : t->n_ops_max), sizeof *ops->at);
  XFI_CHECK(ops->at != NULL, XFER_ERR_NOMEM, "%lld operations", (long long)n_ops);
  for (size_t i = 0; i < n_candidates; i++) {
    if ((int64_t)ops->n + candidates[i].n_ops > t->n_ops_max)
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
                        .n_blocks = n_blocks};
}

static xfer_status upload(xfi_cuda_device *device, xfi_batch *batch,
                          const xfi_cuda_program *program, int n_blocks, const xfi_guard *guard)
{
  xfer_status st = XFER_OK;
  char *host = NULL;
  const size_t swapped_at = table_bytes(&program->rows);
  const size_t converts_at = swapped_at + table_bytes(&program->swapped);
  const size_t n_bytes = converts_at + table_bytes(&program->converts);

  if (n_bytes == 0) return XFER_OK;
  host = xfi_calloc(1, n_bytes);
  XFI_CHECK(host != NULL, XFER_ERR_NOMEM, "%zu bytes of descriptors", n_bytes);
  XFI_CUDA_TRY(cudaMalloc, (&batch->memory, n_bytes));
  batch->rows = table_place(&program->rows, host, batch->memory, n_blocks);
  batch->swapped = table_place(&program->swapped, host + swapped_at,
                               (char *)batch->memory + swapped_at, n_blocks);
  batch->converts = table_place(&program->converts, host + converts_at,
                                (char *)batch->memory + converts_at, n_blocks);
  batch->rows.go = batch->swapped.go = batch->converts.go = xfi_cuda_guard_go(guard);
  XFI_CUDA_TRY(cudaMemcpyAsync,
               (batch->memory, host, n_bytes, cudaMemcpyHostToDevice, device->aside));
  XFI_CUDA_TRY(cudaStreamSynchronize, (device->aside));
done:
  xfi_free(host);
  return st;
}

/* ---- the device's operations -------------------------------------------------------------- */

static xfer_status make_sides(xfi_batch *batch)
{
  xfer_status st = XFER_OK;

  if (batch->n_kinds < 2) return XFER_OK;
  XFI_CUDA_TRY(cudaEventCreateWithFlags, (&batch->fork, cudaEventDisableTiming));
  for (int i = 0; i < batch->n_kinds - 1; i++) {
    XFI_CUDA_TRY(cudaStreamCreateWithFlags, (&batch->side[i], cudaStreamNonBlocking));
    XFI_CUDA_TRY(cudaEventCreateWithFlags, (&batch->join[i], cudaEventDisableTiming));
  }
done:
  return st;
}

static xfer_status batch_fill(xfi_cuda_device *device, xfi_batch *batch, const xfi_copy *copies,
                              size_t n_copies, bool beside, const xfi_guard *guard)
{
  const int n_blocks = beside ? XFI_CUDA_BLOCKS_BESIDE : XFI_CUDA_BLOCKS_ALONE;
  xfer_status st = XFER_OK;
  xfi_cuda_program program = {.rows = {.pieces = NULL}};
  xfi_cuda_ops in_graph = {NULL, 0};
  xfi_copy *rest = NULL;
  size_t n_rest = 0;

  rest = xfi_calloc(n_copies, sizeof *rest);
  XFI_CHECK(rest != NULL, XFER_ERR_NOMEM, "a batch of %zu copies", n_copies);
  for (size_t i = 0; i < n_copies; i++) {
    xfi_copy c = copies[i];
    xfi_copy_simplify(&c);
    if (xfi_copy_bytes(&c) > 0) rest[n_rest++] = c;
  }
  if (!xfi_cuda_guard_is_strict(guard))
    XFI_TRY(take(&batch->engine, &of_engine, device, rest, &n_rest));
  XFI_TRY(take(&in_graph, &of_graph, device, rest, &n_rest));
  XFI_TRY(xfi_cuda_graph_create(&batch->graph, device, &in_graph, guard));
  XFI_TRY(xfi_cuda_compile(&program, rest, n_rest, n_blocks));
  XFI_TRY(upload(device, batch, &program, n_blocks, guard));
  batch->n_kinds = (batch->engine.n > 0) + (batch->graph != NULL) + (n_rest > 0);
  XFI_TRY(make_sides(batch));
done:
  xfi_free(rest);
  xfi_free(in_graph.at);
  xfi_cuda_program_free(&program);
  return st;
}

xfer_status xfi_cuda_batch_create(xfi_device *base, xfi_batch **batch, const xfi_copy *copies,
                                  size_t n_copies, bool beside, const xfi_guard *guard)
{
  xfer_status st = XFER_OK;
  xfi_batch *made = xfi_calloc(1, sizeof *made);

  XFI_CHECK(made != NULL, XFER_ERR_NOMEM, "a batch of %zu copies", n_copies);
  XFI_TRY(batch_fill(xfi_cuda(base), made, copies, n_copies, beside, guard));
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
  for (int i = 0; i < KINDS - 1; i++) {
    if (batch->side[i] != NULL) (void)cudaStreamDestroy(batch->side[i]);
    if (batch->join[i] != NULL) (void)cudaEventDestroy(batch->join[i]);
  }
  if (batch->fork != NULL) (void)cudaEventDestroy(batch->fork);
  if (batch->graph != NULL) (void)cudaGraphExecDestroy(batch->graph);
  if (batch->memory != NULL) (void)cudaFree(batch->memory);
  xfi_free(batch->engine.at);
  xfi_free(batch);
}

static xfer_status engine_launch(const xfi_cuda_ops *ops, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < ops->n; i++) {
    const xfi_cuda_op *op = &ops->at[i];
    if (op->height == 1)
      XFI_CUDA_TRY(cudaMemcpyAsync, (op->dst, op->src, op->width, cudaMemcpyDefault, stream));
    else
      XFI_CUDA_TRY(cudaMemcpy2DAsync, (op->dst, op->dst_pitch, op->src, op->src_pitch, op->width,
                                       op->height, cudaMemcpyDefault, stream));
  }
done:
  return st;
}

/* The kinds before the last that has work go aside. */
static xfer_status launch_kinds(xfi_batch *batch, int n_sides, xfer_stream stream)
{
  xfer_status st = XFER_OK;
  int side = 0;

  if (batch->rows.n_tiles > 0 || batch->swapped.n_tiles > 0 || batch->converts.n_tiles > 0) {
    const xfer_stream at = side < n_sides ? batch->side[side++] : stream;
    XFI_TRY(xfi_cuda_copy_rows(&batch->rows, at));
    XFI_TRY(xfi_cuda_copy_swapped(&batch->swapped, at));
    XFI_TRY(xfi_cuda_copy_converts(&batch->converts, at));
  }
  if (batch->graph != NULL)
    XFI_CUDA_TRY(cudaGraphLaunch, (batch->graph, side < n_sides ? batch->side[side++] : stream));
  XFI_TRY(engine_launch(&batch->engine, stream));
done:
  return st;
}

/* Later work on `stream` comes after what went aside: also where a launch failed, whatever the
 * device says meanwhile. */
static xfer_status join_side(const xfi_batch *batch, int i, xfer_stream stream)
{
  const struct timespec pause = {.tv_nsec = JOIN_RETRY_NS};
  cudaError_t error = cudaErrorUnknown;

  for (int n = 0; n < JOIN_RETRIES && error != cudaSuccess; n++) {
    if (n > 0) (void)nanosleep(&pause, NULL);
    error = cudaEventRecord(batch->join[i], batch->side[i]);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(stream, batch->join[i], 0);
  }
  return error == cudaSuccess ? XFER_OK : xfi_cuda_failed(error, "cudaStreamWaitEvent");
}

xfer_status xfi_cuda_batch_launch(xfi_device *base, xfi_batch *batch, xfer_stream stream)
{
  const int n_sides = batch->n_kinds > 1 ? batch->n_kinds - 1 : 0;
  xfer_status st = XFER_OK;

  (void)base;
  if (n_sides > 0) XFI_CUDA_TRY(cudaEventRecord, (batch->fork, stream));
  for (int i = 0; i < n_sides; i++)
    XFI_CUDA_TRY(cudaStreamWaitEvent, (batch->side[i], batch->fork, 0));
  st = launch_kinds(batch, n_sides, stream);
  for (int i = 0; i < n_sides; i++) {
    const xfer_status joined = join_side(batch, i, stream);

    if (st == XFER_OK) st = joined;
  }
done:
  return st;
}
