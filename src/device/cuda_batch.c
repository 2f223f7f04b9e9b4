/*
 * Batches: copies that a commit prepares and runs launch many times. The copy engine takes some of
 * them (cuda_engine.c), and kernels copy the rest, in one launch if they can.
 *
 * Within one GPU's memory kernels are as fast as the engine. So they make all gathers, scatters and
 * copies within a rank, and on few blocks only, so as not to hold up what crosses the link at the
 * same time.
 */
#include "cuda_device.h"

#include <string.h>

#include "alloc.h"
#include "error.h"
#include "launch.h"

enum { JOIN_RETRIES = 100, JOIN_RETRY_NS = 1000 * 1000 };
enum { ROOM_MIN_BYTES = 4096 }; /* enough for the tables of a few copies, so that they can grow */

struct xfi_batch {
  const xfi_guard *guard; /* NULL: none */
  xfi_cuda_runs engine;
  xfi_cuda_job jobs[XFI_CUDA_N_TABLES];
  xfi_cuda_small_table small[XFI_CUDA_N_TABLES]; /* tables small enough to be launch parameters */
  void *memory;                                  /* the other tables, on the device */
  size_t n_room;
  bool is_read; /* launches read `memory` */
  cudaStream_t
      side; /* the kernels' stream if the engine has work too; NULL: they use the caller's */
  cudaEvent_t fork;
  cudaEvent_t join;
};

/* ---- the kernels' tables ------------------------------------------------------------------ */

size_t xfi_cuda_table_bytes(const xfi_cuda_table *table)
{
  if (table->n_pieces == 0) return 0;
  return table->n_pieces * sizeof *table->pieces +
         (table->n_pieces + 1) * sizeof *table->first_tile;
}

xfer_status xfi_cuda_table_upload(xfi_cuda_job *job, const xfi_cuda_table *table, char *at,
                                  cudaStream_t stream)
{
  const size_t pieces_bytes = table->n_pieces * sizeof *table->pieces;
  const size_t tiles_bytes = (table->n_pieces + 1) * sizeof *table->first_tile;

  XFI_CUDA_TRY(cudaMemcpyAsync, (at, table->pieces, pieces_bytes, cudaMemcpyHostToDevice, stream));
  XFI_CUDA_TRY(cudaMemcpyAsync,
               (at + pieces_bytes, table->first_tile, tiles_bytes, cudaMemcpyHostToDevice, stream));
  *job = xfi_cuda_job_of(table);
  job->pieces = (const xfi_cuda_piece *)(void *)at;
  job->first_tile = (const int64_t *)(void *)(at + pieces_bytes);
  return XFER_OK;
}

/* Make room for the tables. Memory that is large enough is kept, since cudaFree() waits for all
 * work of the device. */
static xfer_status make_room(xfi_batch *batch, size_t n_bytes)
{
  const size_t n_room = n_bytes > ROOM_MIN_BYTES ? n_bytes : ROOM_MIN_BYTES;

  if (n_bytes <= batch->n_room) return XFER_OK;
  if (batch->memory != NULL) (void)cudaFree(batch->memory);
  batch->memory = NULL;
  batch->n_room = 0;
  XFI_CUDA_TRY(cudaMalloc, (&batch->memory, n_room));
  batch->n_room = n_room;
  return XFER_OK;
}

/* Turn small tables into launch parameters, and free them; the others go to the device. */
static void carry(xfi_batch *batch, xfi_cuda_tables *tables)
{
  for (int k = 0; k < XFI_CUDA_N_TABLES; k++) {
    if (!xfi_cuda_small_table_make(&batch->small[k], tables, k)) continue;
    batch->jobs[k] = xfi_cuda_job_of(&tables->at[k]);
    batch->jobs[k].small = &batch->small[k];
    xfi_cuda_table_free(&tables->at[k]);
  }
}

static xfer_status upload(const xfi_cuda_device *device, xfi_batch *batch,
                          const xfi_cuda_tables *tables)
{
  size_t n_bytes = 0;
  char *at;

  for (int k = 0; k < XFI_CUDA_N_TABLES; k++)
    n_bytes += xfi_cuda_table_bytes(&tables->at[k]);
  if (n_bytes == 0) return XFER_OK;
  XFI_TRY(make_room(batch, n_bytes));
  at = batch->memory;
  for (int k = 0; k < XFI_CUDA_N_TABLES; k++) {
    const xfi_cuda_table *table = &tables->at[k];

    if (table->n_pieces == 0) continue;
    XFI_TRY(xfi_cuda_table_upload(&batch->jobs[k], table, at, device->aside));
    at += xfi_cuda_table_bytes(table);
  }
  batch->is_read = true;
  XFI_CUDA_TRY(cudaStreamSynchronize, (device->aside));
  return XFER_OK;
}

/* ---- the device's operations -------------------------------------------------------------- */

/* Let the engine take what suits it. The first *n copies of the array are left for the kernels. */
static xfer_status let_engine_take(xfi_batch *batch, const xfi_cuda_device *device,
                                   const xfi_batch_spec *spec, size_t *n)
{
  xfi_copy *copies = spec->copies;

  *n = 0;
  for (size_t i = 0; i < spec->n_copies; i++) {
    xfi_copy_simplify(&copies[i]);
    if (xfi_copy_bytes(&copies[i]) > 0) copies[(*n)++] = copies[i];
  }
  *n = xfi_cuda_join(device, spec, *n);
  return spec->no_engine ? XFER_OK : xfi_cuda_engine_take(&batch->engine, device, spec, n);
}

/* Fill a batch. If it is an open one and the engine takes nothing, it stays empty: its kernels
 * would be no faster than those of the batch with a guard. */
static xfer_status batch_fill(xfi_cuda_device *device, xfi_batch *batch, const xfi_batch_spec *spec)
{
  const bool is_alone = spec->percent == 100;
  const int share = device->n_multiprocessors * spec->percent / 100;
  const int n_blocks = is_alone ? XFI_CUDA_ALONE * share : share > 0 ? share : 1;
  const xfi_guard *guard = spec->guard;
  size_t n_copies = spec->n_copies;
  xfer_status st = XFER_OK;
  xfi_cuda_tables tables = {0};

  batch->guard = guard;
  batch->engine.is_full = guard != NULL && guard->strict;
  if (!batch->engine.is_full) XFI_TRY_DONE(let_engine_take(batch, device, spec, &n_copies));
  if (spec->open && xfi_cuda_engine_is_empty(&batch->engine)) goto done;
  XFI_TRY_DONE(xfi_cuda_tables_make(&tables, spec->copies, n_copies, n_blocks));
  carry(batch, &tables);
  XFI_TRY_DONE(upload(device, batch, &tables));
  for (int k = 0; k < XFI_CUDA_N_TABLES; k++) {
    batch->jobs[k].n_blocks = n_blocks;
    batch->jobs[k].is_alone = is_alone;
    batch->jobs[k].gate.go = guard == NULL ? NULL : guard->go;
  }
  if (!xfi_cuda_engine_is_empty(&batch->engine) && n_copies > 0) {
    XFI_CUDA_TRY_DONE(cudaEventCreateWithFlags, (&batch->fork, cudaEventDisableTiming));
    XFI_CUDA_TRY_DONE(cudaEventCreateWithFlags, (&batch->join, cudaEventDisableTiming));
    XFI_CUDA_TRY_DONE(cudaStreamCreateWithFlags, (&batch->side, cudaStreamNonBlocking));
  }
done:
  xfi_cuda_tables_free(&tables);
  return st;
}

xfer_status xfi_cuda_batch_create(xfi_device *base, xfi_batch **batch, const xfi_batch_spec *spec)
{
  xfer_status st = XFER_OK;
  xfi_batch *before = *batch;
  xfi_batch *made = NULL;

  *batch = NULL;
  if (spec->open && !xfi_cuda(base)->maps_across)
    goto done; /* the engine takes only copies between GPUs */
  made = xfi_calloc(1, sizeof *made);
  XFI_CHECK_DONE(made != NULL, XFER_ERR_NOMEM, "a batch of %zu copies", spec->n_copies);
  if (before != NULL) {
    made->memory = before->memory;
    made->n_room = before->n_room;
    before->memory = NULL;
  }
  XFI_TRY_DONE(batch_fill(xfi_cuda(base), made, spec));
  if (spec->open && xfi_cuda_engine_is_empty(&made->engine)) goto done;
  *batch = made;
  made = NULL;
done:
  xfi_cuda_batch_destroy(base, made);
  xfi_cuda_batch_destroy(base, before);
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
  xfi_cuda_engine_free(&batch->engine);
  xfi_free(batch);
}

bool xfi_cuda_batch_is_read(const xfi_batch *batch)
{
  return batch->is_read;
}

bool xfi_cuda_batch_wants_open(const xfi_batch *batch)
{
  return batch->engine.is_full;
}

/* Order later work on `stream` after that of the side stream: also after a launch has failed, and
 * in spite of transient errors, since work without an order would write to memory that is in use.
 */
static xfer_status join_side(const xfi_batch *batch, xfer_stream stream)
{
  cudaError_t error = cudaErrorUnknown;

  for (int n = 0; n < JOIN_RETRIES && error != cudaSuccess; n++) {
    if (n > 0) xfi_sleep_ns(JOIN_RETRY_NS);
    error = cudaEventRecord(batch->join, batch->side);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(stream, batch->join, 0);
  }
  return xfi_cuda_check(error, "cudaStreamWaitEvent");
}

static xfer_status launch_engine(const xfi_cuda_device *device, const xfi_batch *batch,
                                 xfer_stream stream, xfi_event *turn)
{
  if (xfi_cuda_engine_is_empty(&batch->engine)) return XFER_OK;
  if (turn != NULL) XFI_CUDA_TRY(cudaStreamWaitEvent, (stream, xfi_cuda_event(turn), 0));
  XFI_TRY(xfi_cuda_engine_launch(device, &batch->engine, stream));
  if (turn != NULL) XFI_CUDA_TRY(cudaEventRecord, (xfi_cuda_event(turn), stream));
  return XFER_OK;
}

xfer_status xfi_cuda_batch_launch(xfi_device *base, xfi_batch *batch, xfer_stream stream,
                                  xfi_event *turn)
{
  xfer_status st = XFER_OK;
  xfer_status joined;
  const xfi_cuda_device *device = xfi_cuda(base);

  if (batch->side == NULL) {
    XFI_TRY(xfi_cuda_copy_all(batch->jobs, stream));
    return launch_engine(device, batch, stream, turn);
  }
  XFI_CUDA_TRY(cudaEventRecord, (batch->fork, stream));
  XFI_CUDA_TRY(cudaStreamWaitEvent, (batch->side, batch->fork, 0));
  st = xfi_cuda_copy_all(batch->jobs, batch->side);
  if (st == XFER_OK) st = launch_engine(device, batch, stream, turn);
  joined = join_side(batch, stream);
  return st == XFER_OK ? joined : st;
}

/* The table of a batch that is a single launch; XFI_CUDA_N_TABLES: it is none or several. */
static int find_only(const xfi_batch *batch)
{
  int only = XFI_CUDA_N_TABLES;
  int n = xfi_cuda_engine_is_empty(&batch->engine) ? 0 : 1;

  for (int k = 0; k < XFI_CUDA_N_TABLES; k++) {
    const uint32_t kinds = batch->jobs[k].kinds; /* each kind has its own kernel */

    if (batch->jobs[k].n_tiles == 0) continue;
    n += (kinds & (kinds - 1)) == 0 ? 1 : 2;
    only = k;
  }
  return n == 1 ? only : XFI_CUDA_N_TABLES;
}

bool xfi_cuda_batch_is_one_launch(const xfi_batch *batch)
{
  return find_only(batch) != XFI_CUDA_N_TABLES;
}

xfer_status xfi_cuda_guarded_launch(xfi_device *device, const xfi_batch *batch,
                                    const xfi_flags *set, uint64_t value, xfer_stream stream,
                                    bool *launched)
{
  const xfi_guard *guard = batch->guard;
  const int only = find_only(batch);
  xfi_cuda_job job;

  (void)device;
  *launched = false;
  if (only == XFI_CUDA_N_TABLES || guard->n_flags > XFI_CUDA_GATE_FLAGS ||
      set->n > XFI_CUDA_GATE_DONE)
    return XFER_OK;
  job = batch->jobs[only];
  job.gate = (xfi_cuda_gate){
      .n_flags = guard->n_flags, .n_done = set->n, .value = value, .blocks = guard->blocks};
  memcpy(job.gate.flags, guard->flags, (size_t)guard->n_flags * sizeof *guard->flags);
  memcpy(job.gate.done, set->at, (size_t)set->n * sizeof *set->at);
  XFI_TRY(xfi_cuda_kernels_of(only)->copy(&job, stream));
  *launched = true;
  return XFER_OK;
}
