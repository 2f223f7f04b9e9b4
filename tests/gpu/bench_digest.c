/* The digest kernel: GB/s of memory read, beside what cudaMemcpyAsync within the device reads and
 * writes together and beside the memory's nominal rate. */
#include "digest.h"
#include "error.h"
#include "launch.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPEATS = 15 };
static const int64_t BYTES = INT64_C(4) << 30;

static void check(cudaError_t error, const char *call)
{
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  exit(1);
}
#define CUDA(function, arguments) check(function arguments, #function)

static int ascending(const void *a, const void *b)
{
  const float *x = a;
  const float *y = b;

  return (*x > *y) - (*x < *y);
}

/* Median of milliseconds; job NULL: a copy of n_bytes. */
static double measure(const xfi_cuda_digest_job *job, char *dst, const char *src, int64_t n_bytes)
{
  cudaEvent_t begin = NULL;
  cudaEvent_t end = NULL;
  float ms[REPEATS];

  CUDA(cudaEventCreate, (&begin));
  CUDA(cudaEventCreate, (&end));
  for (int i = -2; i < REPEATS; i++) {
    CUDA(cudaEventRecord, (begin, NULL));
    if (job == NULL) {
      CUDA(cudaMemcpyAsync, (dst, src, (size_t)n_bytes, cudaMemcpyDeviceToDevice, NULL));
    } else if (xfi_cuda_digest(job, NULL) != XFER_OK) {
      fprintf(stderr, "%s\n", xfi_last_error());
      exit(1);
    }
    CUDA(cudaEventRecord, (end, NULL));
    CUDA(cudaEventSynchronize, (end));
    if (i >= 0) CUDA(cudaEventElapsedTime, (&ms[i], begin, end));
  }
  CUDA(cudaEventDestroy, (begin));
  CUDA(cudaEventDestroy, (end));
  qsort(ms, REPEATS, sizeof ms[0], ascending);
  return (double)ms[REPEATS / 2];
}

static double run(const xfi_digest_box *boxes, size_t n, int n_blocks)
{
  xfi_cuda_digest_table table;
  xfi_cuda_digest_job job = {.n_blocks = n_blocks};
  void *summands = NULL;
  void *first_tile = NULL;
  int64_t n_bytes = 0;

  for (size_t i = 0; i < n; i++)
    n_bytes += xfi_copy_bytes(&boxes[i].copy);
  if (xfi_cuda_digest_compile(&table, boxes, n) != XFER_OK) {
    fprintf(stderr, "%s\n", xfi_last_error());
    exit(1);
  }
  CUDA(cudaMalloc, (&summands, table.n_summands * sizeof *table.summands));
  CUDA(cudaMalloc, (&first_tile, (table.n_summands + 1) * sizeof *table.first_tile));
  CUDA(cudaMalloc, ((void **)&job.sums, n * sizeof *job.sums));
  CUDA(cudaMemcpy, (summands, table.summands, table.n_summands * sizeof *table.summands,
                    cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy, (first_tile, table.first_tile, (table.n_summands + 1) * sizeof *table.first_tile,
                    cudaMemcpyHostToDevice));
  job.summands = summands;
  job.first_tile = first_tile;
  job.n_summands = (int64_t)table.n_summands;
  job.n_tiles = table.first_tile[table.n_summands];
  const double ms = measure(&job, NULL, NULL, 0);
  CUDA(cudaFree, (summands));
  CUDA(cudaFree, (first_tile));
  CUDA(cudaFree, (job.sums));
  xfi_cuda_digest_table_free(&table);
  return (double)n_bytes / (ms * 1e6);
}

static xfi_digest_box rows(const char *src, int64_t offset, int64_t n, int64_t row_bytes,
                           int64_t pitch)
{
  return (xfi_digest_box){.copy = {.src = src,
                                   .dst = (char *)(XFI_DIGEST_ORIGIN + (uintptr_t)offset),
                                   .run_bytes = row_bytes,
                                   .n_dims = 1,
                                   .extent = {n},
                                   .src_stride = {row_bytes},
                                   .dst_stride = {pitch}},
                          .factor = 1};
}

/* Noise, which draws the power that weights do. */
static void fill(char *memory, int64_t n_bytes)
{
  enum { CHUNK = 1 << 24 };
  unsigned char *noise = malloc(CHUNK);
  uint32_t state = 1;

  if (noise == NULL) exit(1);
  for (size_t i = 0; i < CHUNK; i++) {
    state = state * 1664525u + 1013904223u;
    noise[i] = (unsigned char)(state >> 24);
  }
  for (int64_t at = 0; at < n_bytes; at += CHUNK)
    CUDA(cudaMemcpy, (memory + at, noise, CHUNK, cudaMemcpyHostToDevice));
  free(noise);
}

int main(void)
{
  static const int64_t row_bytes[] = {2, 16, 64, 256, 384, 768, 1536, 4096, 5632, 16384};
  static const int blocks[] = {66, 132, 198, XFI_CUDA_BLOCKS_ALONE};
  char *src = NULL;
  char *dst = NULL;
  int khz = 0;
  int bits = 0;

  CUDA(cudaDeviceGetAttribute, (&khz, cudaDevAttrMemoryClockRate, 0));
  CUDA(cudaDeviceGetAttribute, (&bits, cudaDevAttrGlobalMemoryBusWidth, 0));
  const double nominal = 2.0 * (double)khz * 1e3 * (double)bits / 8 / 1e9;
  CUDA(cudaMalloc, ((void **)&src, (size_t)BYTES));
  CUDA(cudaMalloc, ((void **)&dst, (size_t)BYTES));
  fill(src, BYTES);
  printf("digest, 4 GiB, GB/s read, median of %d; of the memory's nominal %.0f\n", REPEATS,
         nominal);
  const double copied = 2.0 * (double)BYTES / (measure(NULL, dst, src, BYTES) * 1e6);
  printf("%-40s %8.0f %8.3f\n", "cudaMemcpyAsync, read plus written", copied, copied / nominal);
  for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
    const xfi_digest_box box = rows(src, 0, 1, BYTES, 0);
    const double rate = run(&box, 1, blocks[b]);
    printf("one run, %3d blocks %29.0f %8.3f\n", blocks[b], rate, rate / nominal);
  }
  for (int64_t by = 2; by <= 8; by *= 2) {
    const xfi_digest_box box = rows(src, by, 1, BYTES, 0);
    const double rate = run(&box, 1, XFI_CUDA_BLOCKS_ALONE);
    printf("one run, %lld bytes off its place %18.0f %8.3f\n", (long long)by, rate, rate / nominal);
  }
  for (size_t i = 0; i < sizeof row_bytes / sizeof *row_bytes; i++) {
    const int64_t row = row_bytes[i];
    const xfi_digest_box box = rows(src, row, BYTES / row, row, 2 * row);
    const double rate = run(&box, 1, XFI_CUDA_BLOCKS_ALONE);
    printf("rows of %5lld B, of twice as long ones %9.0f %8.3f\n", (long long)row, rate,
           rate / nominal);
  }
  enum { TENSORS = 10000 };
  xfi_digest_box *many = calloc(TENSORS, sizeof *many);
  if (many == NULL) return 1;
  for (int i = 0; i < TENSORS; i++) {
    const int64_t part = BYTES / TENSORS / 256 * 256;
    many[i] = rows(src + i * part, 0, 1, part, 0);
    many[i].slot = (uint32_t)i;
  }
  const double rate = run(many, TENSORS, XFI_CUDA_BLOCKS_ALONE);
  printf("%d tensors of 419 KiB %23.0f %8.3f\n", TENSORS, rate, rate / nominal);
  free(many);
  CUDA(cudaFree, (src));
  CUDA(cudaFree, (dst));
  return 0;
}
