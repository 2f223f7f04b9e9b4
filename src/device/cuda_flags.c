/*
 * Flags and guards: how streams of different GPUs wait for each other. A stream waits for a word of
 * its own rank's page (cuda_page.c), and a peer sets that word from one of its streams: both by
 * memory operations of streams, several in one call. A wait also ends when a peer fails, so copies
 * behind it are guarded: the guard checks the words once more.
 */
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"
#include "launch.h"

enum { OPS_PER_CALL = 64 };

/* ---- set and wait ------------------------------------------------------------------------- */

/* The i-th operation of a list: first the writes, then the waits. */
static CUstreamBatchMemOpParams op_of(const xfi_flags *set, const xfi_flags *wait, uint64_t value,
                                      int i)
{
  CUstreamBatchMemOpParams op = {0};

  if (i < set->n) { /* the default flags order it after all earlier work of the stream */
    op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    op.writeValue.address = (CUdeviceptr)(uintptr_t)set->at[i];
    op.writeValue.value64 = value;
  } else {
    op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    op.waitValue.address = (CUdeviceptr)(uintptr_t)wait->at[i - set->n];
    op.waitValue.value64 = value;
    op.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  }
  return op;
}

xfer_status xfi_cuda_flags_sync(xfi_device *base, const xfi_flags *set, const xfi_flags *wait,
                                uint64_t value, xfer_stream stream, xfi_deadline deadline,
                                int *late)
{
  xfi_cuda_device *device = xfi_cuda(base);
  const int n_ops = set->n + wait->n;
  CUstreamBatchMemOpParams ops[OPS_PER_CALL];

  (void)deadline, (void)late;
  for (int first = 0; first < n_ops; first += OPS_PER_CALL) {
    const int n = n_ops - first < OPS_PER_CALL ? n_ops - first : OPS_PER_CALL;
    for (int i = 0; i < n; i++)
      ops[i] = op_of(set, wait, value, first + i);
    const CUresult error = device->driver.stream_mem_ops(stream, (unsigned)n, ops, 0);
    if (error != CUDA_SUCCESS) return xfi_cuda_driver_failed(device, error, "cuStreamBatchMemOp");
  }
  return XFER_OK;
}

xfer_status xfi_cuda_flags_set_op(xfi_device *base, const xfi_flags *set, const xfi_guard *guard,
                                  uint64_t value, xfer_stream stream)
{
  (void)base;
  return xfi_cuda_flags_set(set->at, set->n, value, guard == NULL ? NULL : guard->go, stream);
}

void xfi_cuda_flags_store(xfi_device *base, uint64_t *flag, uint64_t value)
{
  (void)base;
  __atomic_store_n(flag, value, __ATOMIC_SEQ_CST);
}

/* ---- guards ------------------------------------------------------------------------------- */

xfer_status xfi_cuda_guard_create(xfi_device *base, xfi_guard **out, const xfi_flags *flags,
                                  bool strict)
{
  xfer_status st = XFER_OK;
  void *go = NULL;
  xfi_guard *guard = xfi_calloc(1, sizeof *guard);

  XFI_CHECK_DONE(guard != NULL, XFER_ERR_NOMEM, "a guard");
  guard->n_flags = flags->n;
  guard->strict = strict;
  for (int i = 0; i < flags->n; i++)
    guard->flags[i] = flags->at[i];
  XFI_TRY_DONE(base->ops->alloc(base, &go, sizeof *guard->go + sizeof *guard->blocks));
  guard->go = go;
  guard->blocks = (xfi_cuda_blocks *)(void *)(guard->go + 1);
  *out = guard;
  guard = NULL;
done:
  xfi_free(guard);
  return st;
}

void xfi_cuda_guard_destroy(xfi_device *base, xfi_guard *guard)
{
  if (guard == NULL) return;
  base->ops->free(base, guard->go);
  xfi_free(guard);
}

xfer_status xfi_cuda_guard_check_op(xfi_device *base, xfi_guard *guard, xfer_stream stream)
{
  (void)base;
  return xfi_cuda_guard_check(guard->flags, guard->n_flags, guard->go, stream);
}
