/* The gather kernel beside the copy engine and a plain copy by the same kernel: GB/s of HBM, read
 * plus written. */
#include "bench.h"
#include "error.h"
#include "h200.h"
#include "kernels.h"
#include "launch.h"

static const int64_t BYTES = INT64_C(2) << 30;

static void enqueue(void *context)
{
  OK(xfi_cuda_copy_all(context, NULL));
}

static xfi_cuda_job upload(const xfi_cuda_table *table, int n_blocks)
{
  xfi_cuda_job job = {.n_blocks = n_blocks, .is_alone = n_blocks >= BLOCKS_ALONE};
  size_t n = table->n_pieces;
  void *pieces = NULL;
  void *first_tile = NULL;

  if (n == 0) return job;
  CUDA(cudaMalloc, (&pieces, n * sizeof *table->pieces));
  CUDA(cudaMalloc, (&first_tile, (n + 1) * sizeof *table->first_tile));
  CUDA(cudaMemcpy, (pieces, table->pieces, n * sizeof *table->pieces, cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy, (first_tile, table->first_tile, (n + 1) * sizeof *table->first_tile,
                    cudaMemcpyHostToDevice));
  job.pieces = pieces;
  job.first_tile = first_tile;
  job.n_pieces = (int64_t)n;
  job.n_tiles = table->first_tile[n];
  job.kinds = table->kinds;
  return job;
}

static double run_bytes(const xfi_copy *copies, size_t n, int n_blocks, int64_t n_bytes)
{
  xfi_cuda_tables tables;

  OK(xfi_cuda_tables_make(&tables, copies, n, n_blocks));
  xfi_cuda_job jobs[XFI_CUDA_N_TABLES];
  for (int i = 0; i < XFI_CUDA_N_TABLES; i++)
    jobs[i] = upload(&tables.at[i], n_blocks);
  const double rate = (double)n_bytes / (bench_median_ms(enqueue, jobs) * 1e6);
  for (int i = 0; i < XFI_CUDA_N_TABLES; i++) {
    CUDA(cudaFree, ((void *)jobs[i].pieces));
    CUDA(cudaFree, ((void *)jobs[i].first_tile));
  }
  xfi_cuda_tables_free(&tables);
  return rate;
}

static double run(const xfi_copy *copies, size_t n, int n_blocks)
{
  return run_bytes(copies, n, n_blocks, 2 * BYTES);
}

/* Elements that change on the way, 2 GiB of the wider type: as one run, as rows of 1536 elements
 * that lie two apart in the source, and as a matrix of so many columns that is transposed. `flat`
 * is what the copy kernel reaches. */
static void conversions(const char *src, char *dst, double flat)
{
  static const struct {
    const char *name;
    xfi_convert convert;
  } cases[] = {
      {"f32 to bf16", {XFER_F32, XFER_BF16, 4, 2, XFI_CONVERT_AS_IT_IS, 0, 0}},
      {"f32 to f8e4m3, scaled", {XFER_F32, XFER_F8E4M3, 4, 1, XFI_CONVERT_TIMES, 3.5F, 0}},
      {"bf16 to f32", {XFER_BF16, XFER_F32, 2, 4, XFI_CONVERT_AS_IT_IS, 0, 0}},
      {"bf16 to f16", {XFER_BF16, XFER_F16, 2, 2, XFI_CONVERT_AS_IT_IS, 0, 0}},
      {"bf16 to f8e4m3, scaled", {XFER_BF16, XFER_F8E4M3, 2, 1, XFI_CONVERT_TIMES, 3.5F, 0}},
      {"bf16 plus 1", {XFER_BF16, XFER_BF16, 2, 2, XFI_CONVERT_PLUS, 1, 0}},
  };

  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const xfi_convert *v = &cases[i].convert;
    const int64_t wide = v->src_bytes > v->dst_bytes ? v->src_bytes : v->dst_bytes;
    const int64_t row = 1536;
    const int64_t n = BYTES / wide / row;
    const int64_t n_bytes = n * row * (v->src_bytes + v->dst_bytes);
    xfi_copy c = {.src = src, .dst = dst, .run_bytes = n * row * v->dst_bytes, .convert = v};
    const double whole = run_bytes(&c, 1, BLOCKS_ALONE, n_bytes);

    c = (xfi_copy){.src = src,
                   .dst = dst,
                   .run_bytes = row * v->dst_bytes,
                   .convert = v,
                   .n_dims = 1,
                   .extent = {n},
                   .src_stride = {2 * row * v->src_bytes},
                   .dst_stride = {row * v->dst_bytes}};
    const double rows = run_bytes(&c, 1, BLOCKS_ALONE, n_bytes);

    c = (xfi_copy){.src = src,
                   .dst = dst,
                   .run_bytes = v->dst_bytes,
                   .convert = v,
                   .n_dims = 2,
                   .extent = {row, n},
                   .src_stride = {v->src_bytes, row * v->src_bytes},
                   .dst_stride = {n * v->dst_bytes, v->dst_bytes}};
    const double swapped = run_bytes(&c, 1, BLOCKS_ALONE, n_bytes);
    printf("%-24s one run %6.0f %6.3f   rows of 1536 %6.0f %6.3f   transposed %6.0f %6.3f\n",
           cases[i].name, whole, whole / flat, rows, rows / flat, swapped, swapped / flat);
  }
}

/* Blocks of a bf16 matrix of 4096 columns, 2 GiB: their amaxes, of the matrix's bytes, and
 * elements by their scales, of bytes read, scales too, and written. Their scales follow. */
static void in_blocks(const char *src, char *dst, double flat)
{
  static const struct {
    const char *name;
    int64_t rows;
    int64_t columns;
  } cases[] = {{"bf16 to blocks of 128 x 128", 128, 128},
               {"bf16 to blocks of 1 x 128", 1, 128},
               {"bf16 to blocks of 1 x 32", 1, 32}};
  const int64_t row = 4096;
  const int64_t n_rows = BYTES / (2 * row);

  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const int64_t r = cases[i].rows;
    const int64_t c = cases[i].columns;
    const xfi_convert amax = {XFER_BF16, XFER_F8E4M3, 2, 1, XFI_CONVERT_AMAX, 0, 0};
    const xfi_convert quantise = {XFER_BF16, XFER_F8E4M3, 2, 1, XFI_CONVERT_BLOCKS, 0, 0};
    float *scales = (float *)(void *)(dst + n_rows * row);
    const xfi_copy find = {.src = src,
                           .run_bytes = c,
                           .convert = &amax,
                           .scales = scales,
                           .n_dims = 3,
                           .extent = {n_rows / r, row / c, r},
                           .src_stride = {2 * r * row, 2 * c, 2 * row},
                           .scale_stride = {row / c, 1, 0}};
    const xfi_copy by = {.src = src,
                         .dst = dst,
                         .run_bytes = c,
                         .convert = &quantise,
                         .scales = scales,
                         .n_dims = 3,
                         .extent = {n_rows / r, r, row / c},
                         .src_stride = {2 * r * row, 2 * row, 2 * c},
                         .dst_stride = {r * row, row, c},
                         .scale_stride = {row / c, 0, 1}};
    const double finds = run_bytes(&find, 1, BLOCKS_ALONE, 2 * n_rows * row);
    const int64_t n_scales = n_rows / r * (row / c);
    const double makes = run_bytes(&by, 1, BLOCKS_ALONE, 3 * n_rows * row + 4 * n_scales);

    printf("%-34s amax    %8.0f %8.3f   quantise     %8.0f %8.3f\n", cases[i].name, finds,
           finds / flat, makes, makes / flat);
  }
}

/* Runs whose ends lie at different places of a word. */
static void shifted(const char *src, char *dst, double flat)
{
  const int64_t row = 8194;
  const xfi_copy rows = {.src = src + row,
                         .dst = dst,
                         .run_bytes = row - 2,
                         .n_dims = 1,
                         .extent = {BYTES / row},
                         .src_stride = {2 * row - 2},
                         .dst_stride = {row - 2}};

  for (int64_t by = 1; by <= 8; by *= 2) {
    const xfi_copy c = {.src = src + by, .dst = dst, .run_bytes = BYTES};
    const double rate = run(&c, 1, BLOCKS_ALONE);
    printf("one run, %lld B further on %46.0f %15.3f\n", (long long)by, rate, rate / flat);
  }
  const double rate = run_bytes(&rows, 1, BLOCKS_ALONE, 2 * rows.extent[0] * rows.run_bytes);
  printf("right halves of rows of %lld B %40.0f %15.3f\n", (long long)rows.src_stride[0], rate,
         rate / flat);
}

/* Matrices of words, transposed: rows of 16384 words, rows that begin at odd places, and 8 columns.
 */
static void transposes(const char *src, char *dst, double flat)
{
  static const int64_t columns[] = {16384, 5763, 8};

  for (int64_t word = 1; word <= 16; word *= 2) {
    printf("transpose of %2lld B words, columns:  ", (long long)word);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
      const int64_t cols = columns[i];
      const int64_t rows = BYTES / cols / word / 2 * 2 + (cols % 2); /* odd with odd rows */
      const xfi_copy c = {.src = src,
                          .dst = dst,
                          .run_bytes = word,
                          .n_dims = 2,
                          .extent = {cols, rows},
                          .src_stride = {word, cols * word},
                          .dst_stride = {rows * word, word}};
      const double rate = run_bytes(&c, 1, BLOCKS_ALONE, 2 * cols * rows * word);
      printf(" %6lld %6.0f %6.3f", (long long)cols, rate, rate / flat);
    }
    printf("\n");
  }
}

/* The middle dims of 4 change places with the last, of a few words: squares are small. */
static void small_transposes(const char *src, char *dst, double flat)
{
  static const int64_t shapes[][2] = {{8, 12}, {12, 43}, {24, 11}, {12, 128}, {128, 12}};

  for (int64_t word = 1; word <= 16; word *= 2) {
    printf("transpose of %2lld B words:", (long long)word);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
      const int64_t rows = shapes[i][0];
      const int64_t cols = shapes[i][1];
      const int64_t n = BYTES / word / rows / cols;
      const xfi_copy c = {.src = src,
                          .dst = dst,
                          .run_bytes = word,
                          .n_dims = 3,
                          .extent = {n, cols, rows},
                          .src_stride = {rows * cols * word, word, cols * word},
                          .dst_stride = {rows * word, n * rows * word, word}};
      const double rate = run_bytes(&c, 1, BLOCKS_ALONE, 2 * n * cols * rows * word);
      printf("  %3lld x %3lld %5.0f %5.3f", (long long)rows, (long long)cols, rate, rate / flat);
    }
    printf("\n");
  }
}

/* Short runs at odd addresses, which lie two apart on one side. */
static void odd_rows(const char *src, char *dst, double flat)
{
  static const int64_t row_bytes[] = {1,   6,   17,  25,  36,  65,   68,   127, 132,
                                      255, 260, 300, 511, 516, 1023, 1028, 2047};

  for (size_t i = 0; i < sizeof row_bytes / sizeof *row_bytes; i++) {
    const int64_t row = row_bytes[i];
    const int64_t n = BYTES / 2 / row;
    xfi_copy c = {.src = src,
                  .dst = dst,
                  .run_bytes = row,
                  .n_dims = 1,
                  .extent = {n},
                  .src_stride = {2 * row},
                  .dst_stride = {row}};
    const double gather = run_bytes(&c, 1, BLOCKS_ALONE, 2 * n * row);

    c.src_stride[0] = row;
    c.dst_stride[0] = 2 * row;
    const double scatter = run_bytes(&c, 1, BLOCKS_ALONE, 2 * n * row);
    printf("odd rows of %4lld B                 gather  %8.0f %8.3f   scatter      %8.0f %8.3f\n",
           (long long)row, gather, gather / flat, scatter, scatter / flat);
  }
}

int main(void)
{
  static const int64_t row_bytes[] = {2, 16, 64, 128, 256, 384, 1536, 4096, 16384};
  static const int blocks[] = {16, 48, 132, BLOCKS_ALONE, 528};
  char *src = NULL;
  char *dst = NULL;
  double flat[5];

  CUDA(cudaMalloc, ((void **)&src, (size_t)BYTES * 2));
  CUDA(cudaMalloc, ((void **)&dst, (size_t)BYTES * 2));
  bench_fill(src, BYTES * 2);
  printf("HBM, 2 GiB, GB/s read plus written, median of %d\n", REPEATS);
  printf("%-34s %8.0f\n", "copy engine",
         2.0 * (double)BYTES / (bench_copy_ms(dst, src, BYTES) * 1e6));
  printf("%-34s", "kernel, blocks:");
  for (size_t b = 0; b < 5; b++)
    printf(" %8d", blocks[b]);
  printf("   of copy\n%-34s", "one run");
  for (size_t b = 0; b < 5; b++) {
    xfi_copy c = {.src = src, .dst = dst, .run_bytes = BYTES};
    flat[b] = run(&c, 1, blocks[b]);
    printf(" %8.0f", flat[b]);
  }
  printf("   %.3f\n", flat[3] / flat[3]);
  for (size_t i = 0; i < sizeof row_bytes / sizeof row_bytes[0]; i++) {
    int64_t row = row_bytes[i];
    double at_alone = 0;
    printf("gather of rows of %6lld B, stride x2 ", (long long)row);
    for (size_t b = 0; b < 5; b++) {
      xfi_copy c = {.src = src,
                    .dst = dst,
                    .run_bytes = row,
                    .n_dims = 1,
                    .extent = {BYTES / row},
                    .src_stride = {2 * row},
                    .dst_stride = {row}};
      double rate = run(&c, 1, blocks[b]);
      if (b == 3) at_alone = rate;
      printf(" %8.0f", rate);
    }
    printf("   %.3f\n", at_alone / flat[3]);
  }
  transposes(src, dst, flat[3]);
  small_transposes(src, dst, flat[3]);
  enum { PIECES = 5461 };
  xfi_copy *many = calloc(PIECES, sizeof *many);
  for (int i = 0; i < PIECES; i++) {
    int64_t piece = BYTES / PIECES / 256 * 256;
    many[i] = (xfi_copy){
        .src = src + i * piece, .dst = dst + (PIECES - 1 - i) * piece, .run_bytes = piece};
  }
  double rate = run(many, PIECES, BLOCKS_ALONE);
  printf("%d pieces of 384 KiB %50.0f %15.3f\n", PIECES, rate, rate / flat[3]);
  free(many);
  shifted(src, dst, flat[3]);
  odd_rows(src, dst, flat[3]);
  conversions(src, dst, flat[3]);
  in_blocks(src, dst, flat[3]);
  CUDA(cudaFree, (src));
  CUDA(cudaFree, (dst));
  return 0;
}
