/*
 * Digests on a CUDA device: the device adds up the sums of all boxes, and copies them to pinned
 * host memory, where the caller reads them once its stream has passed the launch.
 */
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"
#include "launch.h"

#include <string.h>

struct xfi_digest {
  xfi_sum *device_sums; /* [n_sums] on the device; then the table */
  xfi_cuda_job job;
  xfi_sum *sums; /* [n_sums] on the host */
  size_t n_bytes;
};

void xfi_cuda_digest_destroy(xfi_device *device, xfi_digest *digest)
{
  (void)device;
  if (digest == NULL) return;
  if (digest->device_sums != NULL) (void)cudaFree(digest->device_sums);
  if (digest->sums != NULL) (void)cudaFreeHost(digest->sums);
  xfi_free(digest);
}

xfer_status xfi_cuda_digest_create(xfi_device *device, xfi_digest **digest,
                                   const xfi_digest_box *boxes, size_t n_boxes, size_t n_sums)
{
  xfer_status st = XFER_OK;
  xfi_cuda_table table = {0};
  xfi_digest *made = xfi_calloc(1, sizeof *made);

  XFI_CHECK_DONE(made != NULL, XFER_ERR_NOMEM, "a digest of %zu boxes", n_boxes);
  made->n_bytes = n_sums * sizeof *made->sums;
  XFI_CUDA_TRY_DONE(cudaHostAlloc, ((void **)&made->sums, made->n_bytes + 1, cudaHostAllocDefault));
  memset(made->sums, 0, made->n_bytes);
  XFI_TRY_DONE(xfi_cuda_digest_table_make(&table, boxes, n_boxes));
  if (table.n_pieces > 0) {
    const cudaStream_t aside = xfi_cuda(device)->aside;
    char *memory = NULL;

    XFI_CUDA_TRY_DONE(cudaMalloc, ((void **)&memory, made->n_bytes + xfi_cuda_table_bytes(&table)));
    made->device_sums = (xfi_sum *)(void *)memory;
    XFI_TRY_DONE(xfi_cuda_table_upload(&made->job, &table, memory + made->n_bytes, aside));
    made->job.n_blocks = XFI_CUDA_ALONE * xfi_cuda(device)->n_multiprocessors;
    XFI_CUDA_TRY_DONE(cudaStreamSynchronize, (aside));
  }
  *digest = made;
  made = NULL;
done:
  xfi_cuda_table_free(&table);
  xfi_cuda_digest_destroy(device, made);
  return st;
}

xfer_status xfi_cuda_digest_launch(xfi_device *device, xfi_digest *digest, xfer_stream stream)
{
  (void)device;
  if (digest->job.n_tiles == 0) return XFER_OK;
  XFI_CUDA_TRY(cudaMemsetAsync, (digest->device_sums, 0, digest->n_bytes, stream));
  XFI_TRY(xfi_cuda_digest(&digest->job, digest->device_sums, stream));
  XFI_CUDA_TRY(cudaMemcpyAsync, (digest->sums, digest->device_sums, digest->n_bytes,
                                 cudaMemcpyDeviceToHost, stream));
  return XFER_OK;
}

const xfi_sum *xfi_cuda_digest_sums(const xfi_digest *digest)
{
  return digest->sums;
}
