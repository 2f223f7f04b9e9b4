/*
 * Copies made ready. The copy engine takes large copies of regular rows, since it uses no
 * multiprocessor and strided rows cost it nothing; one launch of the kernels takes all others. Both
 * run side by side.
 *
 * Copies from or to our own slots are gathers and scatters: all by the kernel, on few blocks,
 * beside NCCL. (The engine was slower there: docs/performance.md.)
 */
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"
#include "launch.h"

#include <stdlib.h>
#include <string.h>

/* What one engine operation must carry to be worth its launch of about 5 us, and the rows it likes.
 */
static const int64_t ENGINE_BYTES_MIN = INT64_C(2) << 20;
static const int64_t ENGINE_ROW_BYTES_MIN = 256;
static const int64_t ENGINE_PITCH_MAX = INT32_MAX; /* cudaDevAttrMaxPitch of every device so far */
/* A stream that waits for a flag takes about 1,000 operations before it holds up the host. */
enum { ENGINE_OPS_MAX = 512 };

/* One call of cudaMemcpy2DAsync, or with height 1 of cudaMemcpyAsync. */
typedef struct engine_op {
  char *dst;
  const char *src;
  size_t dst_pitch;
  size_t src_pitch;
  size_t width;
  size_t height;
} engine_op;

struct xfi_batch {
  engine_op *ops; /* [n_ops] */
  size_t n_ops;
  void *memory; /* of the two jobs' tables, on the device */
  xfi_cuda_job rows;
  xfi_cuda_job swapped;
  cudaStream_t side; /* NULL unless both engine and kernels have work */
  cudaEvent_t fork;
  cudaEvent_t join;
};

/* A copy and what the engine would make of it. */
typedef struct candidate {
  xfi_copy copy;
  int64_t n_ops;
  int64_t bytes_per_op;
  size_t index; /* keeps the order of equals */
} candidate;

/* How many engine operations the copy takes; 0: it is not for the engine. */
static int64_t engine_ops(const xfi_cuda_device *device, const xfi_copy *c, int64_t *bytes_per_op)
{
  int64_t last = c->n_dims - 1;
  int64_t n_ops = 1;

  if (c->src == NULL) return 0;
  bool remote = xfi_cuda_is_imported(device, c->src) || xfi_cuda_is_imported(device, c->dst);
  if (!remote && c->n_dims > 0) return 0; /* within one memory the kernel is as fast on rows */
  for (int64_t d = 0; d < last; d++)
    n_ops *= c->extent[d];
  *bytes_per_op = c->run_bytes * (last >= 0 ? c->extent[last] : 1);
  if (*bytes_per_op < ENGINE_BYTES_MIN || n_ops > ENGINE_OPS_MAX) return 0;
  if (last < 0) return n_ops;
  if (c->run_bytes < ENGINE_ROW_BYTES_MIN) return 0;
  if (c->src_stride[last] > ENGINE_PITCH_MAX || c->dst_stride[last] > ENGINE_PITCH_MAX) return 0;
  return n_ops;
}

static int by_size(const void *a, const void *b)
{
  const candidate *x = a;
  const candidate *y = b;

  if (x->bytes_per_op != y->bytes_per_op) return x->bytes_per_op < y->bytes_per_op ? 1 : -1;
  return (x->index > y->index) - (x->index < y->index);
}

static void engine_add(xfi_batch *batch, const candidate *from)
{
  const xfi_copy *c = &from->copy;
  int64_t last = c->n_dims - 1;
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
    batch->ops[batch->n_ops++] = op;
    for (int64_t d = last - 1; d >= 0 && ++x[d] == c->extent[d]; d--)
      x[d] = 0;
  }
}

/* Gives the largest operations to the engine and moves the other copies to the front of `rest`. */
static xfer_status engine_take(const xfi_cuda_device *device, xfi_batch *batch, xfi_copy *rest,
                               size_t *n_rest)
{
  xfer_status st = XFER_OK;
  candidate *candidates = NULL;
  size_t n_candidates = 0;
  size_t n_left = 0;
  int64_t n_ops = 0;

  candidates = xfi_calloc(*n_rest, sizeof *candidates);
  batch->ops = xfi_calloc(ENGINE_OPS_MAX, sizeof *batch->ops);
  XFI_CHECK(candidates != NULL && batch->ops != NULL, XFER_ERR_NOMEM, "a batch of %zu copies",
            *n_rest);
  for (size_t i = 0; i < *n_rest; i++) {
    candidate c = {.copy = rest[i], .index = i};
    c.n_ops = engine_ops(device, &rest[i], &c.bytes_per_op);
    if (c.n_ops == 0) {
      rest[n_left++] = rest[i];
    } else {
      candidates[n_candidates++] = c;
    }
  }
  qsort(candidates, n_candidates, sizeof *candidates, by_size);
  for (size_t i = 0; i < n_candidates; i++) {
    if (n_ops + candidates[i].n_ops > ENGINE_OPS_MAX) {
      rest[n_left++] = candidates[i].copy;
      continue;
    }
    n_ops += candidates[i].n_ops;
    engine_add(batch, &candidates[i]);
  }
  *n_rest = n_left;
done:
  xfi_free(candidates);
  return st;
}

/* Is every copy to or from our own memory, which are the slots of rounds? */
static bool is_staging(const xfi_cuda_device *device, const xfi_copy *copies, size_t n_copies)
{
  for (size_t i = 0; i < n_copies; i++) {
    bool src = copies[i].src != NULL && xfi_cuda_own(device, copies[i].src) != NULL;
    if (!src && xfi_cuda_own(device, copies[i].dst) == NULL) return false;
  }
  return true;
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
                          const xfi_cuda_program *program, int n_blocks)
{
  xfer_status st = XFER_OK;
  char *host = NULL;
  size_t rows_bytes = table_bytes(&program->rows);
  size_t n_bytes = rows_bytes + table_bytes(&program->swapped);

  if (n_bytes == 0) return XFER_OK;
  host = xfi_calloc(1, n_bytes);
  XFI_CHECK(host != NULL, XFER_ERR_NOMEM, "%zu bytes of descriptors", n_bytes);
  XFI_CUDA_TRY(cudaMalloc, (&batch->memory, n_bytes));
  batch->rows = table_place(&program->rows, host, batch->memory, n_blocks);
  batch->swapped = table_place(&program->swapped, host + rows_bytes,
                               (char *)batch->memory + rows_bytes, n_blocks);
  XFI_CUDA_TRY(cudaMemcpyAsync,
               (batch->memory, host, n_bytes, cudaMemcpyHostToDevice, device->aside));
  XFI_CUDA_TRY(cudaStreamSynchronize, (device->aside));
done:
  xfi_free(host);
  return st;
}

/* ---- the device's operations -------------------------------------------------------------- */

static xfer_status batch_fill(xfi_cuda_device *device, xfi_batch *batch, const xfi_copy *copies,
                              size_t n_copies)
{
  xfer_status st = XFER_OK;
  xfi_cuda_program program = {.rows = {.pieces = NULL}};
  xfi_copy *rest = NULL;
  size_t n_rest = 0;
  int n_blocks = XFI_CUDA_BLOCKS_BESIDE;

  rest = xfi_calloc(n_copies, sizeof *rest);
  XFI_CHECK(rest != NULL, XFER_ERR_NOMEM, "a batch of %zu copies", n_copies);
  for (size_t i = 0; i < n_copies; i++) {
    xfi_copy c = copies[i];
    xfi_copy_simplify(&c);
    if (xfi_copy_bytes(&c) > 0) rest[n_rest++] = c;
  }
  if (!is_staging(device, rest, n_rest)) {
    n_blocks = XFI_CUDA_BLOCKS_ALONE;
    XFI_TRY(engine_take(device, batch, rest, &n_rest));
  }
  XFI_TRY(xfi_cuda_compile(&program, rest, n_rest, n_blocks));
  XFI_TRY(upload(device, batch, &program, n_blocks));
  if (batch->n_ops > 0 && n_rest > 0) {
    XFI_CUDA_TRY(cudaStreamCreateWithFlags, (&batch->side, cudaStreamNonBlocking));
    XFI_CUDA_TRY(cudaEventCreateWithFlags, (&batch->fork, cudaEventDisableTiming));
    XFI_CUDA_TRY(cudaEventCreateWithFlags, (&batch->join, cudaEventDisableTiming));
  }
done:
  xfi_free(rest);
  xfi_cuda_program_free(&program);
  return st;
}

xfer_status xfi_cuda_batch_create(xfi_device *base, xfi_batch **batch, const xfi_copy *copies,
                                  size_t n_copies)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);
  xfi_batch *made = NULL;

  made = xfi_calloc(1, sizeof *made);
  XFI_CHECK(made != NULL, XFER_ERR_NOMEM, "a batch of %zu copies", n_copies);
  XFI_TRY(batch_fill(device, made, copies, n_copies));
  *batch = made;
  made = NULL;
done:
  xfi_cuda_batch_destroy(base, made);
  xfi_cuda_leave(device, before);
  return st;
}

void xfi_cuda_batch_destroy(xfi_device *base, xfi_batch *batch)
{
  if (batch == NULL) return;
  int before = xfi_cuda_enter(xfi_cuda(base));
  if (batch->side != NULL) (void)cudaStreamDestroy(batch->side);
  if (batch->fork != NULL) (void)cudaEventDestroy(batch->fork);
  if (batch->join != NULL) (void)cudaEventDestroy(batch->join);
  if (batch->memory != NULL) (void)cudaFree(batch->memory);
  xfi_cuda_leave(xfi_cuda(base), before);
  xfi_free(batch->ops);
  xfi_free(batch);
}

static xfer_status engine_launch(const xfi_batch *batch, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < batch->n_ops; i++) {
    const engine_op *op = &batch->ops[i];
    if (op->height == 1) {
      XFI_CUDA_TRY(cudaMemcpyAsync,
                   (op->dst, op->src, op->width, cudaMemcpyDeviceToDevice, stream));
    } else {
      XFI_CUDA_TRY(cudaMemcpy2DAsync, (op->dst, op->dst_pitch, op->src, op->src_pitch, op->width,
                                       op->height, cudaMemcpyDeviceToDevice, stream));
    }
  }
done:
  return st;
}

xfer_status xfi_cuda_batch_launch(xfi_device *base, xfi_batch *batch, xfer_stream stream)
{
  xfi_cuda_device *device = xfi_cuda(base);
  xfer_status st = XFER_OK;
  int before = xfi_cuda_enter(device);
  xfer_stream side = batch->side != NULL ? batch->side : stream;

  if (batch->side != NULL) {
    XFI_CUDA_TRY(cudaEventRecord, (batch->fork, stream));
    XFI_CUDA_TRY(cudaStreamWaitEvent, (batch->side, batch->fork, 0));
  }
  XFI_TRY(xfi_cuda_copy_rows(&batch->rows, side));
  XFI_TRY(xfi_cuda_copy_swapped(&batch->swapped, side));
  XFI_TRY(engine_launch(batch, stream));
  if (batch->side != NULL) {
    XFI_CUDA_TRY(cudaEventRecord, (batch->join, batch->side));
    XFI_CUDA_TRY(cudaStreamWaitEvent, (stream, batch->join, 0));
  }
done:
  xfi_cuda_leave(device, before);
  return st;
}
