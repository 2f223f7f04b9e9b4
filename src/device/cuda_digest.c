/* Digests on a CUDA device: a table there, sums beside it, and a copy of them in pinned memory. */
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"
#include "launch.h"

#include <string.h>

struct xfi_digest {
  void *memory; /* on the device: the sums, then the table */
  xfi_cuda_digest_job job;
  xfi_sum *sums; /* [n_slots] on the host */
  size_t n_bytes;
};

void xfi_cuda_digest_destroy(xfi_device *device, xfi_digest *digest)
{
  (void)device;
  if (digest == NULL) return;
  if (digest->memory != NULL) (void)cudaFree(digest->memory);
  if (digest->sums != NULL) (void)cudaFreeHost(digest->sums);
  xfi_free(digest);
}

static xfer_status upload(xfi_cuda_device *device, xfi_digest *digest,
                          const xfi_cuda_digest_table *table)
{
  const size_t n = table->n_summands;
  const size_t summands_bytes = n * sizeof *table->summands;
  const size_t table_bytes = summands_bytes + (n + 1) * sizeof *table->first_tile;
  xfer_status st = XFER_OK;
  char *at = NULL;
  char *host = xfi_calloc(1, table_bytes);

  XFI_CHECK(host != NULL, XFER_ERR_NOMEM, "%zu bytes of descriptors", table_bytes);
  XFI_CUDA_TRY(cudaMalloc, (&digest->memory, digest->n_bytes + table_bytes));
  at = (char *)digest->memory + digest->n_bytes;
  memcpy(host, table->summands, summands_bytes);
  memcpy(host + summands_bytes, table->first_tile, (n + 1) * sizeof *table->first_tile);
  digest->job = (xfi_cuda_digest_job){.summands = (const xfi_cuda_summand *)(void *)at,
                                      .first_tile = (const int64_t *)(void *)(at + summands_bytes),
                                      .n_summands = (int64_t)n,
                                      .n_tiles = table->first_tile[n],
                                      .n_blocks = XFI_CUDA_BLOCKS_ALONE,
                                      .sums = digest->memory};
  XFI_CUDA_TRY(cudaMemcpyAsync, (at, host, table_bytes, cudaMemcpyHostToDevice, device->aside));
  XFI_CUDA_TRY(cudaStreamSynchronize, (device->aside));
done:
  xfi_free(host);
  return st;
}

xfer_status xfi_cuda_digest_create(xfi_device *device, xfi_digest **digest,
                                   const xfi_digest_box *boxes, size_t n_boxes, size_t n_slots)
{
  xfer_status st = XFER_OK;
  xfi_cuda_digest_table table = {.summands = NULL};
  xfi_digest *made = xfi_calloc(1, sizeof *made);

  XFI_CHECK(made != NULL, XFER_ERR_NOMEM, "a digest of %zu boxes", n_boxes);
  made->n_bytes = n_slots * sizeof *made->sums;
  XFI_CUDA_TRY(cudaHostAlloc, ((void **)&made->sums, made->n_bytes + 1, cudaHostAllocDefault));
  memset(made->sums, 0, made->n_bytes);
  XFI_TRY(xfi_cuda_digest_compile(&table, boxes, n_boxes));
  if (table.n_summands > 0) XFI_TRY(upload(xfi_cuda(device), made, &table));
  *digest = made;
  made = NULL;
done:
  xfi_cuda_digest_table_free(&table);
  xfi_cuda_digest_destroy(device, made);
  return st;
}

xfer_status xfi_cuda_digest_launch(xfi_device *device, xfi_digest *digest, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  (void)device;
  if (digest->job.n_tiles == 0) return XFER_OK;
  XFI_CUDA_TRY(cudaMemsetAsync, (digest->job.sums, 0, digest->n_bytes, stream));
  XFI_TRY(xfi_cuda_digest(&digest->job, stream));
  XFI_CUDA_TRY(cudaMemcpyAsync,
               (digest->sums, digest->job.sums, digest->n_bytes, cudaMemcpyDeviceToHost, stream));
done:
  return st;
}

const xfi_sum *xfi_cuda_digest_sums(const xfi_digest *digest)
{
  return digest->sums;
}
