/*
 * What the copy engine moves: long runs to or from a peer's memory. It uses no multiprocessor and
 * reaches the whole link bandwidth, where kernels reach 0.95 of it. But once such a copy is
 * enqueued nothing can stop it, so the engine takes none that have a strict guard. Batches
 * (cuda_batch.c) ask for this at commit, and launch it in runs.
 *
 * Between 2 H200 or H100, runs that are enqueued by the hundred in one call reach 0.97 of the link
 * from 384 KiB on and 0.99 from 1 MiB on; the host needs 0.7 to 1 us for each. The rows of one 2-D
 * copy are as fast from 1 MiB on, and need 0.05 us each; shorter ones are slower than kernels if
 * they are pulled. A call for each copy leaves a gap of 2.5 us, so such copies must be large.
 * Between two processes on one GPU the runs of a call start one after the other, 4.4 us each, while
 * the host waits: these are left to kernels.
 */
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"

#include <stdlib.h>

/* Most runs of the first call and of later ones. A call starts once all its runs are enqueued. */
enum { FIRST_RUNS = 16, CALL_RUNS = 256 };
/* A stream queues about 26,000 runs in such calls before it blocks the host, and about 340 that
 * have a call each; one that waits for a peer may not progress for any time. */
enum { OPS_MAX = 4096, OPEN_OPS_MAX = 20000, ALONE_OPS_MAX = 256 };
static const int64_t PITCH_MAX = INT32_MAX; /* cudaDevAttrMaxPitch of every device so far */

/* A copy, and the operations that it takes: runs, or 2-D copies. */
typedef struct candidate {
  xfi_copy *copy;
  int64_t n_ops;
  bool rows;
} candidate;

static bool has_batches(const xfi_cuda_device *device)
{
#if CUDA_VERSION >= 12080
  return device->driver.memcpy_batch != NULL;
#else
  (void)device;
  return false;
#endif
}

void xfi_cuda_engine_limits(xfi_cuda_device *device)
{
  /* With a call for each copy, 8 MiB reach 0.85 of the link, 32 MiB 0.95 and 64 MiB 0.98. */
  device->engine_call_bytes = INT64_C(64) << 20;
  device->engine_row_bytes = INT64_C(1) << 20;
  device->engine_run_bytes = has_batches(device) ? INT64_C(512) << 10 : device->engine_call_bytes;
  device->engine_all_bytes = INT64_C(32)
                             << 20; /* smaller batches end before a second stream pays off */
}

/* Is the innermost dim worth a 2-D copy? */
static bool is_rows(const xfi_cuda_device *device, const xfi_copy *c)
{
  const int64_t d = c->n_dims - 1;

  return d >= 0 && c->run_bytes >= device->engine_row_bytes &&
         c->run_bytes * c->extent[d] >= device->engine_call_bytes &&
         c->src_stride[d] >= c->run_bytes && c->src_stride[d] <= PITCH_MAX &&
         c->dst_stride[d] >= c->run_bytes && c->dst_stride[d] <= PITCH_MAX;
}

/* How the engine would make a copy; n_ops is 0 if the copy is not for the engine. */
static candidate classify(const xfi_cuda_device *device, xfi_copy *c, bool beside,
                          xfi_cuda_span *last)
{
  candidate found = {.copy = c, .rows = is_rows(device, c)};

  if (c->src == NULL || c->convert != NULL) return found;
  if (!found.rows && c->run_bytes < device->engine_run_bytes) return found;
  if (!xfi_cuda_suits_engine(device, c, beside, last)) return found;
  found.n_ops = xfi_copy_runs(c) / (found.rows ? c->extent[c->n_dims - 1] : 1);
  return found;
}

/* The operations chosen so far. */
typedef struct chosen {
  size_t n_runs;
  size_t n_rows; /* 2-D copies, each a call of its own */
} chosen;

/* Choose how a candidate is copied, as far as those before it leave room. */
static void choose(candidate *c, const xfi_cuda_device *device, chosen *before, size_t max_ops)
{
  size_t *count;

  if (c->rows && before->n_rows + (size_t)c->n_ops > ALONE_OPS_MAX) {
    c->rows = false;
    c->n_ops = c->copy->run_bytes < device->engine_run_bytes ? 0 : xfi_copy_runs(c->copy);
  }
  if (before->n_runs + before->n_rows + (size_t)c->n_ops > max_ops) c->n_ops = 0;
  count = c->rows ? &before->n_rows : &before->n_runs;
  *count += (size_t)c->n_ops;
}

static int by_run(const void *a, const void *b)
{
  const candidate *x = a;
  const candidate *y = b;

  if (x->copy->run_bytes != y->copy->run_bytes)
    return x->copy->run_bytes < y->copy->run_bytes ? 1 : -1;
  return (x->copy > y->copy) - (x->copy < y->copy); /* keeps the order of equals */
}

static void add(xfi_cuda_runs *runs, const candidate *from)
{
  const xfi_copy *c = from->copy;
  const int64_t last = c->n_dims - 1;
  int64_t index[XFI_COPY_DIMS] = {0};
  const char *src = c->src;
  char *dst = c->dst;

  do {
    if (from->rows) {
      runs->rows[runs->n_rows++] = (xfi_cuda_rows){.dst = dst,
                                                   .src = src,
                                                   .dst_pitch = (size_t)c->dst_stride[last],
                                                   .src_pitch = (size_t)c->src_stride[last],
                                                   .n_bytes = (size_t)c->run_bytes,
                                                   .n = (size_t)c->extent[last]};
    } else {
      runs->dst[runs->n] = (CUdeviceptr)(uintptr_t)dst;
      runs->src[runs->n] = (CUdeviceptr)(uintptr_t)src;
      runs->n_bytes[runs->n++] = (size_t)c->run_bytes;
    }
  } while (xfi_copy_next(c, from->rows ? last : c->n_dims, index, &src, &dst));
}

/* List the chosen operations, and empty their copies. */
static xfer_status list_runs(xfi_cuda_runs *runs, const candidate *candidates, size_t n, chosen all)
{
  runs->dst = xfi_calloc(all.n_runs, sizeof *runs->dst);
  runs->src = xfi_calloc(all.n_runs, sizeof *runs->src);
  runs->n_bytes = xfi_calloc(all.n_runs, sizeof *runs->n_bytes);
  runs->rows = xfi_calloc(all.n_rows, sizeof *runs->rows);
  XFI_CHECK(runs->dst != NULL && runs->src != NULL && runs->n_bytes != NULL && runs->rows != NULL,
            XFER_ERR_NOMEM, "%zu runs", all.n_runs + all.n_rows);
  for (size_t i = 0; i < n; i++) {
    if (candidates[i].n_ops == 0) continue;
    add(runs, &candidates[i]);
    candidates[i].copy->run_bytes = 0;
  }
  return XFER_OK;
}

xfer_status xfi_cuda_engine_take(xfi_cuda_runs *runs, const xfi_cuda_device *device,
                                 const xfi_batch_spec *spec, size_t *n_rest)
{
  xfi_copy *rest = spec->copies;
  const int64_t open_max = has_batches(device) ? OPEN_OPS_MAX : ALONE_OPS_MAX;
  const int64_t max_ops = spec->open || open_max < OPS_MAX ? open_max : OPS_MAX;
  xfer_status st = XFER_OK;
  size_t n_candidates = 0;
  size_t n_left = 0;
  chosen all = {0, 0};
  int64_t n_ops = 0; /* of all candidates; n_rows of them are 2-D */
  int64_t n_rows = 0;
  int64_t n_bytes = 0;
  xfi_cuda_span last = {NULL, 0};
  candidate *candidates = xfi_calloc(*n_rest, sizeof *candidates);

  XFI_CHECK_DONE(candidates != NULL, XFER_ERR_NOMEM, "a batch of %zu copies", *n_rest);
  for (size_t i = 0; i < *n_rest; i++) {
    const candidate c = classify(device, &rest[i], spec->beside, &last);
    const bool fits = c.n_ops <= max_ops;

    runs->is_full = runs->is_full || (!fits && max_ops < open_max);
    if (c.n_ops == 0 || !fits) continue;
    candidates[n_candidates++] = c;
    n_ops += c.n_ops;
    n_rows += c.rows ? c.n_ops : 0;
    n_bytes += xfi_copy_bytes(&rest[i]);
  }
  if (n_candidates == 0 || n_bytes < device->engine_all_bytes) goto done;
  if (n_ops > max_ops || n_rows > ALONE_OPS_MAX) /* there is not room for all: the largest first */
    qsort(candidates, n_candidates, sizeof *candidates, by_run);
  for (size_t i = 0; i < n_candidates; i++) {
    choose(&candidates[i], device, &all, (size_t)max_ops);
    runs->is_full = runs->is_full || (candidates[i].n_ops == 0 && max_ops < open_max);
  }
  XFI_TRY_DONE(list_runs(runs, candidates, n_candidates, all));
  for (size_t i = 0; i < *n_rest; i++)
    if (rest[i].run_bytes > 0) rest[n_left++] = rest[i];
  *n_rest = n_left;
done:
  xfi_free(candidates);
  return st;
}

void xfi_cuda_engine_free(xfi_cuda_runs *runs)
{
  xfi_free(runs->dst);
  xfi_free(runs->src);
  xfi_free(runs->n_bytes);
  xfi_free(runs->rows);
}

/* How many runs the next call takes, after `done` of `n`: each call at most doubles their number,
 * so that the engine always has work while the host enqueues more. */
static size_t runs_of_call(size_t done, size_t n)
{
  const size_t max_ops = done < FIRST_RUNS ? FIRST_RUNS : done < CALL_RUNS ? done : CALL_RUNS;

  return n - done < max_ops ? n - done : max_ops;
}

/* Runs `first` to first + n - 1, in one call. */
static xfer_status launch_batch(const xfi_cuda_device *device, const xfi_cuda_runs *runs,
                                size_t first, size_t n, xfer_stream stream)
{
#if CUDA_VERSION >= 12080
  CUmemcpyAttributes in_order = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  size_t from = 0; /* the first run that the attributes apply to */
  size_t failed = 0;
  const CUresult error =
      device->driver.memcpy_batch(runs->dst + first, runs->src + first, runs->n_bytes + first, n,
                                  &in_order, &from, 1, &failed, stream);

  if (error != CUDA_SUCCESS) return xfi_cuda_driver_failed(device, error, "cuMemcpyBatchAsync");
#else
  (void)device, (void)runs, (void)first, (void)n, (void)stream;
#endif
  return XFER_OK;
}

xfer_status xfi_cuda_engine_launch(const xfi_cuda_device *device, const xfi_cuda_runs *runs,
                                   xfer_stream stream)
{
  /* The legacy stream does not support batches. */
  const bool batches = has_batches(device) && stream != NULL && stream != cudaStreamLegacy;

  for (size_t i = 0; i < runs->n_rows; i++) {
    const xfi_cuda_rows *r = &runs->rows[i];

    XFI_CUDA_TRY(cudaMemcpy2DAsync, (r->dst, r->dst_pitch, r->src, r->src_pitch, r->n_bytes, r->n,
                                     cudaMemcpyDefault, stream));
  }
  for (size_t i = 0, n = 0; batches && i < runs->n; i += n) {
    n = runs_of_call(i, runs->n);
    XFI_TRY(launch_batch(device, runs, i, n, stream));
  }
  for (size_t i = 0; !batches && i < runs->n; i++)
    XFI_CUDA_TRY(cudaMemcpyAsync,
                 ((void *)(uintptr_t)runs->dst[i], (const void *)(uintptr_t)runs->src[i],
                  runs->n_bytes[i], cudaMemcpyDefault, stream));
  return XFER_OK;
}
