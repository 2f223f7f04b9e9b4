/* Copies. They are done in parts, with other operations in between. */
#include "machine.h"

#include "device.h"

#include <stdlib.h>
#include <string.h>

/* One of several copies, and the allocations that its ends lay in when it was enqueued. */
typedef struct part {
  xfi_copy copy;
  uint64_t src_id;
  uint64_t dst_id;
  xfi_convert convert; /* of the copy, if it has one */
} part;

typedef struct copy_op {
  sim_op op;
  part *parts; /* [n] what is left to do */
  size_t n;
  const void *table; /* of a kernel, which reads it */
  size_t table_bytes;
  uint64_t table_id;
  xfi_cuda_gate gate;
  uint64_t go_id;
  uint64_t flag_ids[XFI_CUDA_GATE_FLAGS];
  uint64_t done_ids[XFI_CUDA_GATE_DONE];
  bool has_begun;
  bool stays;   /* some of it found the gate shut */
  char *staged; /* pageable bytes that were taken when the call was made */
} copy_op;

uint64_t sim_id_at(const void *pointer)
{
  const sim_memory *memory = pointer != NULL ? sim_memory_at(pointer) : NULL;

  return memory != NULL ? memory->id : 0;
}

/* ---- doing them --------------------------------------------------------------------------- */

/* Bytes from the first to the last that one end touches. */
static size_t span(const xfi_copy *copy, const int64_t *strides)
{
  int64_t n_bytes = strides == copy->src_stride ? xfi_copy_src_run(copy) : copy->run_bytes;

  for (int64_t d = 0; d < copy->n_dims; d++)
    n_bytes += (copy->extent[d] - 1) * strides[d];
  return (size_t)n_bytes;
}

/* What is not cut: where elements change, one of them. */
static int64_t unit_of(const xfi_copy *copy)
{
  return copy->convert == NULL ? 1 : copy->convert->dst_bytes;
}

/* The same of the run. */
static xfi_copy split_run(xfi_copy *rest)
{
  const int64_t unit = unit_of(rest);
  const int64_t n_units = rest->run_bytes / unit;
  xfi_copy first = *rest;

  if (n_units < 2) return first;
  first.run_bytes = unit * (1 + (int64_t)sim_draw((uint64_t)n_units - 1));
  rest->run_bytes -= first.run_bytes;
  if (rest->dst != NULL) rest->dst += first.run_bytes; /* amaxes have none */
  if (rest->src != NULL) rest->src += xfi_copy_src_run(&first);
  return first;
}

/* Splits some of it off: along the first dim that has more than one index, else the run. */
static xfi_copy split(xfi_copy *rest)
{
  xfi_copy first = *rest;
  int64_t d = 0;

  while (d < rest->n_dims && rest->extent[d] == 1)
    d++;
  if (d == rest->n_dims) return split_run(rest);
  first.extent[d] = 1 + (int64_t)sim_draw((uint64_t)rest->extent[d] - 1);
  rest->extent[d] -= first.extent[d];
  if (rest->dst != NULL) rest->dst += first.extent[d] * rest->dst_stride[d];
  if (rest->src != NULL) rest->src += first.extent[d] * rest->src_stride[d];
  if (xfi_copy_has_scales(rest)) rest->scales += first.extent[d] * rest->scale_stride[d];
  return first;
}

/* The scales that a copy reads, or makes if it finds amaxes, which write nothing else. */
static bool touch_scales(const sim_op *op, const xfi_copy *copy)
{
  size_t n = 1;

  for (int64_t d = 0; d < copy->n_dims; d++)
    n += (size_t)((copy->extent[d] - 1) * copy->scale_stride[d]);
  return sim_touch(op, copy->scales, n * sizeof *copy->scales,
                   copy->convert->op == XFI_CONVERT_AMAX, sim_id_at(copy->scales));
}

bool sim_copy_part(const sim_op *op, xfi_copy *copy, uint64_t src_id, uint64_t dst_id)
{
  /* Nothing is done twice: what is converted in place would not stand it. */
  const bool whole = sim_draw(3) == 0 || xfi_copy_bytes(copy) < 2 * unit_of(copy);
  const xfi_copy now = whole ? *copy : split(copy);

  if (xfi_copy_bytes(&now) == 0) return true;
  const bool fine =
      (!xfi_copy_has_scales(&now) || touch_scales(op, &now)) &&
      (now.dst == NULL || sim_touch(op, now.dst, span(&now, now.dst_stride), true, dst_id)) &&
      (now.src == NULL || sim_touch(op, now.src, span(&now, now.src_stride), false, src_id));
  if (!fine) return true;
  if (now.dst != NULL) sim_touched(op, &now);
  xfi_ref_copy(&now, 1);
  return whole;
}

/* The first block's look, for all. False: what there is to look at is gone. */
static bool look_at_gate(copy_op *o)
{
  const xfi_cuda_gate *gate = &o->gate;

  if (gate->go != NULL) {
    if (!sim_touch(&o->op, gate->go, sizeof *gate->go, false, o->go_id)) return false;
    o->stays = *gate->go == 0;
  }
  if (gate->n_flags > 0) {
    if (gate->blocks->n_begun != 0 || (gate->blocks->verdict & ~XFI_FLAG_VOID) == gate->value)
      sim_violation("two launches at once behind one gate, or two of one value");
    gate->blocks->n_begun = 1;
  }
  for (int i = 0; i < gate->n_flags; i++) {
    if (!sim_touch(&o->op, gate->flags[i], sizeof *gate->flags[i], false, o->flag_ids[i]))
      return false;
    o->stays = o->stays || (__atomic_load_n(gate->flags[i], __ATOMIC_ACQUIRE) & XFI_FLAG_VOID) != 0;
  }
  return true;
}

/* The last block's word, to one after the other. */
static bool tell(copy_op *o)
{
  xfi_cuda_gate *gate = &o->gate;
  const int i = gate->n_done - 1;

  if (i < 0) return true;
  *gate->blocks = (xfi_cuda_blocks){.verdict = gate->value};
  if (!sim_touch(&o->op, gate->done[i], sizeof *gate->done[i], true, o->done_ids[i])) return true;
  __atomic_store_n(gate->done[i], gate->value | (o->stays ? XFI_FLAG_VOID : 0), __ATOMIC_RELEASE);
  gate->n_done--;
  return i == 0;
}

static bool copies_step(sim_op *op)
{
  copy_op *o = (copy_op *)(void *)op;
  const uint64_t most = 1 + sim_draw(o->n + 1); /* of parts in this step */

  if (o->n == 0 && o->has_begun) return tell(o);
  if (o->table != NULL && !sim_touch(op, o->table, o->table_bytes, false, o->table_id)) return true;
  if (!o->has_begun && !look_at_gate(o)) return true;
  o->has_begun = true;
  if (o->stays) o->n = 0;
  for (uint64_t i = 0; i < most && o->n > 0; i++) {
    const size_t at = (size_t)sim_draw(o->n);
    part *p = &o->parts[at];
    if (!sim_copy_part(op, &p->copy, p->src_id, p->dst_id)) continue;
    o->parts[at] = o->parts[--o->n];
  }
  return o->n == 0 && o->gate.n_done == 0;
}

static void copies_drop(sim_op *op)
{
  copy_op *o = (copy_op *)(void *)op;

  free(o->parts);
  free(o->staged);
}

static const sim_op_class copies_class = {
    .name = "copy", .step = copies_step, .drop = copies_drop, .in_graphs = true};
static const sim_op_class kernel_class = {.name = "copy kernel",
                                          .step = copies_step,
                                          .drop = copies_drop,
                                          .in_graphs = true,
                                          .needs_access = true};

static copy_op *copies_make(const sim_op_class *cls, const xfi_copy *copies, size_t n)
{
  copy_op *op = sim_op_make(cls, sizeof *op);

  op->parts = calloc(n + 1, sizeof *op->parts);
  if (op->parts == NULL) abort();
  op->n = n;
  for (size_t i = 0; i < n; i++) {
    part *p = &op->parts[i];

    *p = (part){.copy = copies[i], sim_id_at(copies[i].src), sim_id_at(copies[i].dst)};
    if (p->copy.convert == NULL) continue;
    p->convert = *p->copy.convert; /* the table may be a parameter of the launch */
    p->copy.convert = &p->convert;
  }
  return op;
}

/* ---- copies of the API -------------------------------------------------------------------- */

typedef enum place { GONE, PAGEABLE, PINNED, ON_DEVICE } place;

static place place_of(const void *pointer)
{
  const sim_memory *memory = sim_memory_at(pointer);

  if (memory == NULL) return sim_memory_is_ours(pointer) ? GONE : PAGEABLE;
  return memory->kind == SIM_PINNED || memory->kind == SIM_REGISTERED ? PINNED : ON_DEVICE;
}

static bool kind_fits(enum cudaMemcpyKind kind, place dst, place src)
{
  switch (kind) {
  case cudaMemcpyHostToHost:
    return dst != ON_DEVICE && src != ON_DEVICE;
  case cudaMemcpyHostToDevice:
    return src != ON_DEVICE && dst != PAGEABLE;
  case cudaMemcpyDeviceToHost:
    return dst != ON_DEVICE && src != PAGEABLE;
  case cudaMemcpyDeviceToDevice: /* of pinned memory it may work; nothing says that it does */
    return dst == ON_DEVICE && src == ON_DEVICE;
  default:
    return true;
  }
}

static bool is_empty(void *context)
{
  const copy_op *const *op = context;

  return *op == NULL;
}

/* Tells the caller of a copy to pageable memory, who waits for it. */
typedef struct told_op {
  sim_op op;
  const copy_op **waiting;
} told_op;

static bool told_step(sim_op *op)
{
  *((told_op *)(void *)op)->waiting = NULL;
  return true;
}

static const sim_op_class told_class = {.name = "end of a copy", .step = told_step};

/* Dense pageable bytes are taken at once; a copy to pageable memory is waited for. */
static cudaError_t copy_async(xfi_copy copy, enum cudaMemcpyKind kind, sim_stream *stream)
{
  const place dst = place_of(copy.dst);
  const place src = place_of(copy.src);

  if (xfi_copy_bytes(&copy) == 0) return cudaSuccess;
  if (dst == GONE || src == GONE) return cudaErrorInvalidValue;
  if (!kind_fits(kind, dst, src)) return cudaErrorInvalidValue;
  copy_op *op = copies_make(&copies_class, &copy, 1);
  if (src == PAGEABLE && *sim_stream_capture(stream) == NULL) {
    const size_t n_bytes = span(&copy, copy.src_stride);
    op->staged = malloc(n_bytes);
    if (op->staged == NULL) abort();
    memcpy(op->staged, copy.src, n_bytes);
    op->parts[0].copy.src = op->staged;
  }
  const cudaError_t error = sim_enqueue(op, stream);
  if (error != cudaSuccess || dst != PAGEABLE || *sim_stream_capture(stream) != NULL) return error;
  const copy_op *waiting = op;
  told_op *told = sim_op_make(&told_class, sizeof *told);
  told->waiting = &waiting;
  const cudaError_t again = sim_enqueue(told, stream);
  if (again == cudaSuccess) sim_wait_until(is_empty, &waiting, "a copy to pageable memory");
  return again;
}

static xfi_copy dense(void *dst, const void *src, size_t n_bytes)
{
  return (xfi_copy){.dst = dst, .src = src, .run_bytes = (int64_t)n_bytes};
}

static xfi_copy rows(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                     size_t height)
{
  xfi_copy copy = dense(dst, src, width);

  copy.n_dims = 1;
  copy.extent[0] = (int64_t)height;
  copy.dst_stride[0] = (int64_t)dst_pitch;
  copy.src_stride[0] = (int64_t)src_pitch;
  return copy;
}

cudaError_t sim_copies_enqueue(const xfi_copy *copies, size_t n, const void *table,
                               size_t table_bytes, const xfi_cuda_gate *gate, sim_stream *stream)
{
  copy_op *op = copies_make(&kernel_class, copies, n);

  op->table = table;
  op->table_bytes = table_bytes;
  op->table_id = sim_id_at(table);
  op->gate = *gate;
  op->go_id = sim_id_at(gate->go);
  for (int i = 0; i < gate->n_flags; i++)
    op->flag_ids[i] = sim_id_at(gate->flags[i]);
  for (int i = 0; i < gate->n_done; i++)
    op->done_ids[i] = sim_id_at(gate->done[i]);
  return sim_enqueue(op, stream);
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void *dst, const void *src, size_t n_bytes,
                                      enum cudaMemcpyKind kind, cudaStream_t stream)
{
  SIM_ENTER(SIM_SAFE);
  return sim_leave(copy_async(dense(dst, src, n_bytes), kind, sim_stream_of(stream)));
}

cudaError_t CUDARTAPI cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src,
                                        size_t src_pitch, size_t width, size_t height,
                                        enum cudaMemcpyKind kind, cudaStream_t stream)
{
  SIM_ENTER(SIM_SAFE);
  if (width > dst_pitch || width > src_pitch || dst_pitch > INT32_MAX || src_pitch > INT32_MAX)
    return sim_leave(cudaErrorInvalidPitchValue);
  return sim_leave(
      copy_async(rows(dst, dst_pitch, src, src_pitch, width, height), kind, sim_stream_of(stream)));
}

/* Many runs, in any order: one operation. */
static CUresult CUDAAPI sim_cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                                               size_t count, CUmemcpyAttributes *attributes,
                                               size_t *firsts, size_t n_attributes,
                                               size_t *fail_index, CUstream stream)
{
  SIM_ENTER_DRIVER(SIM_SAFE);
  xfi_copy *copies;
  CUresult error = CUDA_SUCCESS;

  if (count == 0 || n_attributes != 1 || firsts[0] != 0 || stream == NULL ||
      stream == cudaStreamLegacy)
    return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
  if (attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
    return sim_leave_driver(CUDA_ERROR_NOT_SUPPORTED); /* by us */
  if (*sim_stream_capture(sim_stream_of(stream)) != NULL)
    return sim_leave_driver(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  copies = calloc(count, sizeof *copies);
  if (copies == NULL) abort();
  for (size_t i = 0; i < count && error == CUDA_SUCCESS; i++) {
    copies[i] = dense((void *)(uintptr_t)dsts[i], (const void *)(uintptr_t)srcs[i], sizes[i]);
    *fail_index = i;
    if (sizes[i] == 0 || place_of(copies[i].dst) < PINNED || place_of(copies[i].src) < PINNED)
      error = CUDA_ERROR_INVALID_VALUE;
  }
  if (error == CUDA_SUCCESS)
    error = (CUresult)sim_enqueue(copies_make(&copies_class, copies, count), sim_stream_of(stream));
  free(copies);
  return sim_leave_driver(error);
}

const sim_function sim_copy_functions[] = {SIM_FUNCTION(cuMemcpyBatchAsync), {NULL, NULL}};

/* ---- copies that are waited for ----------------------------------------------------------- */

/* On the legacy stream. */
static cudaError_t copy_sync(xfi_copy copy, enum cudaMemcpyKind kind)
{
  sim_stream *stream = sim_stream_of(cudaStreamLegacy);
  const copy_op *waiting = NULL;
  cudaError_t error = copy_async(copy, kind, stream);

  if (error != cudaSuccess) return error;
  told_op *told = sim_op_make(&told_class, sizeof *told);
  told->waiting = &waiting;
  waiting = (const copy_op *)(void *)told; /* anything but NULL */
  error = sim_enqueue(told, stream);
  if (error == cudaSuccess) sim_wait_until(is_empty, &waiting, "a copy");
  return error;
}

cudaError_t CUDARTAPI cudaMemcpy(void *dst, const void *src, size_t n_bytes,
                                 enum cudaMemcpyKind kind)
{
  SIM_ENTER(SIM_SAFE);
  return sim_leave(copy_sync(dense(dst, src, n_bytes), kind));
}
