/*
 * Words in memory that streams wait for and write, of 64 bits: cuStreamBatchMemOp, and the
 * launchers of kernels/cuda/flags.cu. Hosts write them at any time, so they are read and written
 * atomically.
 */
#include "machine.h"

#include "cuda_call.h"
#include "device.h"
#include "launch.h"

#include <stdlib.h>
#include <string.h>

typedef enum word_kind { WAIT, WRITE, LOOK } word_kind;

typedef struct word {
  word_kind kind;
  char *at;
  uint64_t value;
  uint64_t id;
} word;

typedef struct words_op {
  sim_op op;
  word *words; /* [n] */
  size_t n;
  size_t next;
  bool ordered; /* one after the other; else a kernel's, in any order */
  uint64_t
      *go; /* of a guard: writes are void where it is 0; looks make it 0 where a word is void */
  uint64_t go_id;
  bool seen_void;
} words_op;

static uint64_t word_read(const word *w)
{
  return __atomic_load_n((uint64_t *)(void *)w->at, __ATOMIC_ACQUIRE);
}

static void word_write(const word *w)
{
  __atomic_store_n((uint64_t *)(void *)w->at, w->value, __ATOMIC_RELEASE);
}

/* As cuda.h defines CU_STREAM_WAIT_VALUE_GEQ: it is cyclic. */
static bool is_satisfied(const word *w)
{
  return (int64_t)(word_read(w) - w->value) >= 0;
}

static bool is_there(const words_op *o, const word *w)
{
  return sim_touch(&o->op, w->at, sizeof w->value, w->kind == WRITE, w->id);
}

static bool words_ready(sim_op *op)
{
  const words_op *o = (const words_op *)(const void *)op;

  for (size_t i = o->next; i < o->n && !sim.config.deaf; i++) {
    const word *w = &o->words[i];
    if (w->kind == WAIT && sim_memory_at(w->at) != NULL && !is_satisfied(w)) return false;
    if (o->ordered) break;
  }
  return true;
}

static bool words_step(sim_op *op)
{
  words_op *o = (words_op *)(void *)op;
  const size_t at = o->ordered ? o->next : o->next + (size_t)sim_draw(o->n - o->next);
  word w = o->words[at];

  o->words[at] = o->words[o->next];
  o->next++;
  if (!is_there(o, &w)) return o->next == o->n;
  if (o->go != NULL && !sim_touch(op, o->go, sizeof *o->go, w.kind == LOOK, o->go_id)) return true;
  if (w.kind == WRITE && o->go != NULL && *o->go == 0) w.value |= XFI_FLAG_VOID;
  if (w.kind == WRITE) word_write(&w);
  if (w.kind == LOOK) o->seen_void = o->seen_void || (word_read(&w) & XFI_FLAG_VOID) != 0;
  if (o->next == o->n && w.kind == LOOK) *o->go = o->seen_void ? 0 : 1;
  return o->next == o->n;
}

static void words_drop(sim_op *op)
{
  free(((words_op *)(void *)op)->words);
}

static const sim_op_class waits_class = {.name = "wait for words",
                                         .ready = words_ready,
                                         .step = words_step,
                                         .drop = words_drop,
                                         .in_graphs = true,
                                         .needs_access = true};
static const sim_op_class writes_class = {.name = "write of words",
                                          .ready = words_ready,
                                          .step = words_step,
                                          .drop = words_drop,
                                          .in_graphs = true,
                                          .needs_access = true};

static words_op *words_make(const sim_op_class *cls, size_t n, bool ordered)
{
  words_op *op = sim_op_make(cls, sizeof *op);

  op->words = calloc(n + 1, sizeof *op->words);
  if (op->words == NULL) abort();
  op->n = n;
  op->ordered = ordered;
  return op;
}

/* ---- the driver's ------------------------------------------------------------------------- */

static word word_of(word_kind kind, CUdeviceptr at, uint64_t value)
{
  return (word){.kind = kind,
                .at = (char *)(uintptr_t)at, /* NOLINT: the driver's pointers are integers */
                .value = value,
                .id = sim_id_at((void *)(uintptr_t)at)}; /* NOLINT */
}

/* Is the word where the stream's device may wait for it or write it? Not in a peer's memory. */
static CUresult check(const word *w, const sim_stream *stream)
{
  const sim_memory *memory = sim_memory_at(w->at);

  if (memory == NULL || (uintptr_t)w->at % sizeof w->value != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((memory->kind == SIM_DEVICE && memory->device != sim_stream_device(stream)) ||
      memory->kind == SIM_IMPORTED)
    return CUDA_ERROR_NOT_SUPPORTED;
  return CUDA_SUCCESS;
}

static CUresult enqueue(words_op *op, sim_stream *stream)
{
  for (size_t i = 0; i < op->n; i++) {
    const CUresult error = check(&op->words[i], stream);
    if (error == CUDA_SUCCESS) continue;
    sim_op_drop(&op->op);
    return error;
  }
  if (op->n > 0) return (CUresult)sim_enqueue(op, stream);
  sim_op_drop(&op->op);
  return CUDA_SUCCESS;
}

/* Barriers and flushes are what every operation is here. */
static CUresult CUDAAPI sim_cuStreamBatchMemOp(CUstream handle, unsigned count,
                                               CUstreamBatchMemOpParams *params, unsigned flags)
{
  bool waits = false;

  SIM_ENTER_DRIVER(SIM_SAFE);
  if (count > 256 || flags != 0) return sim_leave_driver(CUDA_ERROR_INVALID_VALUE);
  words_op *op = words_make(&writes_class, count, true);
  op->n = 0;
  for (unsigned i = 0; i < count; i++) {
    const CUstreamBatchMemOpParams *p = &params[i];
    word *w = &op->words[op->n];
    switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      if (p->waitValue.flags != CU_STREAM_WAIT_VALUE_GEQ) abort(); /* the only one that is played */
      *w = word_of(WAIT, p->waitValue.address, p->waitValue.value64);
      break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      *w = word_of(WRITE, p->writeValue.address, p->writeValue.value64);
      break;
    default:
      abort();
    }
    waits = waits || w->kind == WAIT;
    op->n++;
  }
  if (waits) op->op.cls = &waits_class;
  return sim_leave_driver(enqueue(op, sim_stream_of(handle)));
}

const sim_function sim_word_functions[] = {SIM_FUNCTION(cuStreamBatchMemOp), {NULL, NULL}};

/* ---- kernels of flags --------------------------------------------------------------------- */

static xfer_status launch_words(word_kind kind, uint64_t *const *flags, int n, uint64_t value,
                                uint64_t *go, xfer_stream stream, const char *what)
{
  const int refused = sim_enter(what, SIM_SAFE);
  cudaError_t error = (cudaError_t)refused;

  if (refused == 0 && n > 0) {
    words_op *op = words_make(&writes_class, (size_t)n, false);
    op->go = go;
    op->go_id = sim_id_at(go);
    for (int i = 0; i < n; i++)
      op->words[i] = word_of(kind, (CUdeviceptr)(uintptr_t)flags[i], value);
    error = sim_kernel_enqueue(SIM_KERNEL_FLAGS, op, sim_stream_of(stream));
  }
  return xfi_cuda_check(sim_leave(error), what);
}

xfer_status xfi_cuda_flags_set(uint64_t *const *flags, int n_flags, uint64_t value,
                               const uint64_t *go, xfer_stream stream)
{
  return launch_words(WRITE, flags, n_flags, value, (uint64_t *)go, stream, "flag kernel");
}

xfer_status xfi_cuda_guard_check(uint64_t *const *flags, int n_flags, uint64_t *go,
                                 xfer_stream stream)
{
  return launch_words(LOOK, flags, n_flags, 0, go, stream, "guard kernel");
}
