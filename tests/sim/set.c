/* Sets of memory. They are done in parts, with other operations in between. */
#include "machine.h"

#include <string.h>

typedef struct set_op {
  sim_op op;
  char *at;
  size_t n_bytes;
  int value;
  uint64_t id;
} set_op;

static bool set_step(sim_op *op)
{
  set_op *o = (set_op *)(void *)op;
  const size_t n = sim_draw(2) == 0 ? o->n_bytes : 1 + (size_t)sim_draw(o->n_bytes);
  const xfi_copy zeros = {.dst = o->at, .run_bytes = (int64_t)n};

  if (!sim_touch(op, o->at, n, true, o->id)) return true;
  sim_touched(op, &zeros);
  memset(o->at, o->value, n);
  o->at += n;
  o->n_bytes -= n;
  return o->n_bytes == 0;
}

static const sim_op_class set_class = {.name = "memset", .step = set_step, .in_graphs = true};

static cudaError_t set(void *at, int value, size_t n_bytes, sim_stream *stream)
{
  if (n_bytes == 0) return cudaSuccess;
  if (sim_id_at(at) == 0) return cudaErrorInvalidValue;
  set_op *op = sim_op_make(&set_class, sizeof *op);
  op->at = at;
  op->n_bytes = n_bytes;
  op->value = value;
  op->id = sim_id_at(at);
  return sim_enqueue(op, stream);
}

cudaError_t CUDARTAPI cudaMemsetAsync(void *at, int value, size_t n_bytes, cudaStream_t stream)
{
  SIM_ENTER(SIM_SAFE);
  return sim_leave(set(at, value, n_bytes, sim_stream_of(stream)));
}

/* Of device memory it does not wait. */
cudaError_t CUDARTAPI cudaMemset(void *at, int value, size_t n_bytes)
{
  SIM_ENTER(SIM_SAFE);
  return sim_leave(set(at, value, n_bytes, sim_stream_of(cudaStreamLegacy)));
}
