/* The digest kernel: GB/s of memory read, beside what cudaMemcpyAsync within the device reads and
 * writes together and beside the memory's nominal rate. */
#include "bench.h"
#include "digest.h"
#include "error.h"
#include "h200.h"
#include "launch.h"

static const int64_t BYTES = INT64_C(4) << 30;

typedef struct launched {
  xfi_cuda_job job;
  xfi_sum *sums;
} launched;

static void enqueue(void *context)
{
  const launched *l = context;

  OK(xfi_cuda_digest(&l->job, l->sums, NULL));
}

static double run(const xfi_digest_box *boxes, size_t n, int n_blocks)
{
  xfi_cuda_table table;
  launched l = {.job = {.n_blocks = n_blocks}};
  void *pieces = NULL;
  void *first_tile = NULL;
  int64_t n_bytes = 0;

  for (size_t i = 0; i < n; i++)
    n_bytes += xfi_copy_bytes(&boxes[i].copy);
  OK(xfi_cuda_digest_table_make(&table, boxes, n));
  CUDA(cudaMalloc, (&pieces, table.n_pieces * sizeof *table.pieces));
  CUDA(cudaMalloc, (&first_tile, (table.n_pieces + 1) * sizeof *table.first_tile));
  CUDA(cudaMalloc, ((void **)&l.sums, n * sizeof *l.sums));
  CUDA(cudaMemcpy,
       (pieces, table.pieces, table.n_pieces * sizeof *table.pieces, cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy, (first_tile, table.first_tile, (table.n_pieces + 1) * sizeof *table.first_tile,
                    cudaMemcpyHostToDevice));
  l.job.pieces = pieces;
  l.job.first_tile = first_tile;
  l.job.n_pieces = (int64_t)table.n_pieces;
  l.job.n_tiles = table.first_tile[table.n_pieces];
  const double ms = bench_median_ms(enqueue, &l);
  CUDA(cudaFree, (pieces));
  CUDA(cudaFree, (first_tile));
  CUDA(cudaFree, (l.sums));
  xfi_cuda_table_free(&table);
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

int main(void)
{
  static const int64_t row_bytes[] = {2, 16, 64, 256, 384, 768, 1536, 4096, 5632, 16384};
  static const int blocks[] = {66, 132, 198, BLOCKS_ALONE};
  char *src = NULL;
  char *dst = NULL;
  int khz = 0;
  int bits = 0;

  CUDA(cudaDeviceGetAttribute, (&khz, cudaDevAttrMemoryClockRate, 0));
  CUDA(cudaDeviceGetAttribute, (&bits, cudaDevAttrGlobalMemoryBusWidth, 0));
  const double nominal = 2.0 * (double)khz * 1e3 * (double)bits / 8 / 1e9;
  CUDA(cudaMalloc, ((void **)&src, (size_t)BYTES));
  CUDA(cudaMalloc, ((void **)&dst, (size_t)BYTES));
  bench_fill(src, BYTES);
  printf("digest, 4 GiB, GB/s read, median of %d; of the memory's nominal %.0f\n", REPEATS,
         nominal);
  const double copied = 2.0 * (double)BYTES / (bench_copy_ms(dst, src, BYTES) * 1e6);
  printf("%-40s %8.0f %8.3f\n", "cudaMemcpyAsync, read plus written", copied, copied / nominal);
  for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
    const xfi_digest_box box = rows(src, 0, 1, BYTES, 0);
    const double rate = run(&box, 1, blocks[b]);
    printf("one run, %3d blocks %29.0f %8.3f\n", blocks[b], rate, rate / nominal);
  }
  for (int64_t by = 2; by <= 8; by *= 2) {
    const xfi_digest_box box = rows(src, by, 1, BYTES, 0);
    const double rate = run(&box, 1, BLOCKS_ALONE);
    printf("one run, %lld bytes off its place %18.0f %8.3f\n", (long long)by, rate, rate / nominal);
  }
  for (size_t i = 0; i < sizeof row_bytes / sizeof *row_bytes; i++) {
    const int64_t row = row_bytes[i];
    const xfi_digest_box box = rows(src, row, BYTES / row, row, 2 * row);
    const double rate = run(&box, 1, BLOCKS_ALONE);
    printf("rows of %5lld B, of twice as long ones %9.0f %8.3f\n", (long long)row, rate,
           rate / nominal);
  }
  enum { TENSORS = 10000 };
  xfi_digest_box *many = calloc(TENSORS, sizeof *many);
  if (many == NULL) return 1;
  for (int i = 0; i < TENSORS; i++) {
    const int64_t part = BYTES / TENSORS / 256 * 256;
    many[i] = rows(src + i * part, 0, 1, part, 0);
    many[i].sum = (uint32_t)i;
  }
  const double rate = run(many, TENSORS, BLOCKS_ALONE);
  printf("%d tensors of 419 KiB %23.0f %8.3f\n", TENSORS, rate, rate / nominal);
  free(many);
  CUDA(cudaFree, (src));
  CUDA(cudaFree, (dst));
  return 0;
}
