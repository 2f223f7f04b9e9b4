/* The launcher of kernels/cuda/digest.cu: reads the same table, on the device, and adds by
 * kernels/ref, one piece after another with other operations in between. */
#include "machine.h"

#include "cuda_call.h"
#include "launch.h"

#include <stdlib.h>

typedef struct digest_op {
  sim_op op;
  xfi_digest_box *boxes; /* [n] what is left to add */
  size_t n;
  xfi_sum *sums;
  uint64_t sums_id;
  const xfi_cuda_piece *table;
  uint64_t table_id;
} digest_op;

static size_t span(const xfi_copy *copy)
{
  int64_t n_bytes = copy->run_bytes;

  for (int64_t d = 0; d < copy->n_dims; d++)
    n_bytes += (copy->extent[d] - 1) * copy->src_stride[d];
  return (size_t)n_bytes;
}

static bool digest_step(sim_op *op)
{
  digest_op *o = (digest_op *)(void *)op;
  const size_t at = (size_t)sim_draw(o->n);
  const xfi_digest_box *box = &o->boxes[at];
  xfi_sum *sum = &o->sums[box->sum];

  if (!sim_touch(op, o->table, sizeof *o->table, false, o->table_id) ||
      !sim_touch(op, sum, sizeof *sum, true, o->sums_id) ||
      !sim_touch(op, box->copy.src, span(&box->copy), false, sim_id_at(box->copy.src)))
    return true;
  xfi_ref_digest(o->sums, box, 1);
  o->boxes[at] = o->boxes[--o->n];
  return o->n == 0;
}

static void digest_drop(sim_op *op)
{
  free(((digest_op *)(void *)op)->boxes);
}

static const sim_op_class digest_class = {
    .name = "digest kernel", .step = digest_step, .drop = digest_drop, .needs_access = true};

static xfi_digest_box box_of(const xfi_cuda_piece *s)
{
  xfi_digest_box box = {
      {.src = s->src, .dst = s->dst, .run_bytes = s->digest.run_bytes, .n_dims = s->n_dims},
      s->digest.factor,
      s->digest.sum};

  for (uint32_t d = 0; d < s->n_dims; d++) {
    box.copy.extent[d] = s->extent[d];
    box.copy.src_stride[d] = s->src_stride[d];
    box.copy.dst_stride[d] = s->dst_stride[d];
  }
  return box;
}

xfer_status xfi_cuda_digest(const xfi_cuda_job *job, xfi_sum *sums, xfer_stream handle)
{
  if (job->n_tiles == 0) return XFER_OK;
  const int refused = sim_enter("digest kernel", SIM_SAFE);
  cudaError_t error = (cudaError_t)refused;

  if (refused == 0) {
    digest_op *op = sim_op_make(&digest_class, sizeof *op);
    op->boxes = calloc((size_t)job->n_pieces, sizeof *op->boxes);
    if (op->boxes == NULL) abort();
    op->n = (size_t)job->n_pieces;
    for (size_t i = 0; i < op->n; i++)
      op->boxes[i] = box_of(&job->pieces[i]);
    op->sums = sums;
    op->sums_id = sim_id_at(sums);
    op->table = job->pieces;
    op->table_id = sim_id_at(job->pieces);
    error = sim_kernel_enqueue(SIM_KERNEL_DIGEST, op, sim_stream_of(handle));
  }
  return xfi_cuda_check(sim_leave(error), "digest kernel");
}
