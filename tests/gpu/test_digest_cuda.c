/* The digest kernel against kernels/ref. One process, one device: also for the sanitizer. */
#include "gpu.h"

#include "digest.h"
#include "error.h"
#include "h200.h"
#include "launch.h"

#include <string.h>

enum { ARENA = 1 << 21, BOXES_MAX = 8, SUMS = 5 };

/* Sums of boxes whose sources are device memory. */
static void run_on_device(xfi_sum *sums, const xfi_digest_box *boxes, size_t n, int n_blocks)
{
  xfi_cuda_table table;
  xfi_cuda_job job = {.n_blocks = n_blocks};
  xfi_sum *there = NULL;
  void *pieces = NULL;
  void *first_tile = NULL;

  OK(xfi_cuda_digest_table_make(&table, boxes, n));
  if (table.n_pieces > 0) {
    const size_t bytes = table.n_pieces * sizeof *table.pieces;
    const size_t tile_bytes = (table.n_pieces + 1) * sizeof *table.first_tile;

    CUDA(cudaMalloc, (&pieces, bytes));
    CUDA(cudaMalloc, (&first_tile, tile_bytes));
    CUDA(cudaMalloc, ((void **)&there, SUMS * sizeof *there));
    CUDA(cudaMemcpy, (pieces, table.pieces, bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy, (first_tile, table.first_tile, tile_bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy, (there, sums, SUMS * sizeof *sums, cudaMemcpyHostToDevice));
    job.pieces = pieces;
    job.first_tile = first_tile;
    job.n_pieces = (int64_t)table.n_pieces;
    job.n_tiles = table.first_tile[table.n_pieces];
  }
  OK(xfi_cuda_digest(&job, there, NULL));
  CUDA(cudaDeviceSynchronize, ());
  if (table.n_pieces > 0)
    CUDA(cudaMemcpy, (sums, there, SUMS * sizeof *sums, cudaMemcpyDeviceToHost));
  CUDA(cudaFree, (pieces));
  CUDA(cudaFree, (first_tile));
  CUDA(cudaFree, (there));
  xfi_cuda_table_free(&table);
}

/* In elements of 1 to 8 bytes, aligned as tensors are or not at all. */
static xfi_digest_box random_box(uint64_t *state)
{
  const int64_t elem = INT64_C(1) << random_from(state, 0, 3);
  const int64_t kind = random_from(state, 0, 3);
  xfi_digest_box box = {.factor = random_next(state),
                        .sum = (uint32_t)random_from(state, 0, SUMS - 1)};
  xfi_copy *c = &box.copy;
  int64_t span;

  c->run_bytes = kind == 0 ? elem : elem * random_from(state, 1, kind == 1 ? 40 : 3000);
  c->n_dims = random_from(state, 0, 3);
  span = c->run_bytes;
  for (int64_t d = c->n_dims - 1; d >= 0; d--) {
    c->extent[d] = random_from(state, 1, random_from(state, 0, 1) ? 4 : 40);
    if (random_from(state, 0, 1) == 0) span += elem * random_from(state, 0, 9);
    c->src_stride[d] = span;
    c->dst_stride[d] = elem * random_from(state, 1, 100000);
    span *= c->extent[d];
  }
  if (span > ARENA) {
    c->n_dims = 0;
    span = c->run_bytes;
  }
  if (c->n_dims > 1 && random_from(state, 0, 1) == 0) { /* transposed */
    const int64_t kept = c->src_stride[0];
    c->src_stride[0] = c->src_stride[1];
    c->src_stride[1] = kept;
    span = ARENA;
    c->extent[0] = c->extent[1] =
        1 + (c->extent[0] < c->extent[1] ? c->extent[0] : c->extent[1]) / 2;
    for (int64_t d = 0; d < c->n_dims; d++)
      if (c->extent[d] * c->src_stride[d] > ARENA / 4) c->extent[d] = 1;
  }
  c->src =
      (const char *)(intptr_t)(span >= ARENA ? 0
                                             : elem * random_from(state, 0, (ARENA - span) / elem));
  c->dst =
      (char *)(XFI_DIGEST_ORIGIN +
               (uintptr_t)(elem * random_from(state, 0,
                                              random_from(state, 0, 1) ? 5000 : INT64_C(1) << 36)));
  return box;
}

static void test_random_boxes_equal_ref(void **state)
{
  static const int blocks[] = {1, 7, 48, BLOCKS_ALONE};
  uint64_t random = 43;
  int n_cases = getenv("XFER_GPU_CASES") != NULL ? atoi(getenv("XFER_GPU_CASES")) : 3000;
  char *host = malloc(ARENA);
  char *device = NULL;

  (void)state;
  NEEDS_GPUS(1);
  CUDA(cudaMalloc, ((void **)&device, ARENA));
  random_fill(&random, host, ARENA);
  CUDA(cudaMemcpy, (device, host, ARENA, cudaMemcpyHostToDevice));
  for (int i = 0; i < n_cases; i++) {
    const size_t n = (size_t)random_from(&random, 1, BOXES_MAX);
    xfi_digest_box boxes[BOXES_MAX];
    xfi_sum want[SUMS] = {{{1, 2}}, {{3, 4}}};
    xfi_sum got[SUMS] = {{{1, 2}}, {{3, 4}}};

    for (size_t k = 0; k < n; k++) {
      boxes[k] = random_box(&random);
      boxes[k].copy.src = host + (intptr_t)boxes[k].copy.src;
    }
    xfi_ref_digest(want, boxes, n);
    for (size_t k = 0; k < n; k++)
      boxes[k].copy.src = device + (boxes[k].copy.src - host);
    run_on_device(got, boxes, n, blocks[i % 4]);
    if (memcmp(got, want, sizeof want) != 0) print_error("case %d of %zu boxes\n", i, n);
    assert_memory_equal(got, want, sizeof want);
  }
  print_message("%d cases\n", n_cases);
  CUDA(cudaFree, (device));
  free(host);
}

/* One run of more than 4 GiB of zeros with a few bytes in it, and 2^31 and more runs: the digests
 * of those bytes alone. */
static void test_sizes_past_32_bits_equal_ref(void **state)
{
  const int64_t n_bytes = (INT64_C(1) << 32) + 4096;
  const int64_t at[] = {0,
                        (INT64_C(1) << 31) - 1,
                        INT64_C(1) << 31,
                        (INT64_C(1) << 32) - 1,
                        INT64_C(1) << 32,
                        n_bytes - 1};
  char *device = NULL;
  size_t free_bytes = 0;
  size_t total_bytes = 0;

  (void)state;
  NEEDS_GPUS(1);
  CUDA(cudaMemGetInfo, (&free_bytes, &total_bytes));
  if (free_bytes < 2 * (size_t)n_bytes) skip();
  CUDA(cudaMalloc, ((void **)&device, (size_t)n_bytes));
  CUDA(cudaMemset, (device, 0, (size_t)n_bytes));
  for (size_t i = 0; i < sizeof at / sizeof *at; i++)
    CUDA(cudaMemset, (device + at[i], 0x81 + (int)i, 1));
  for (int64_t stride = 1; stride <= 3; stride++) { /* of the order: 1: one run */
    xfi_digest_box box = {.copy = {.src = device,
                                   .dst = (char *)(XFI_DIGEST_ORIGIN + 48),
                                   .run_bytes = 1,
                                   .n_dims = 1,
                                   .extent = {n_bytes},
                                   .src_stride = {1},
                                   .dst_stride = {stride}},
                          .factor = 3};
    xfi_sum got[SUMS] = {{{0, 0}}};
    xfi_sum want[SUMS] = {{{0, 0}}};

    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
      const char byte = (char)(0x81 + (int)i);
      const xfi_digest_box one = {
          .copy = {.src = &byte, .dst = box.copy.dst + at[i] * stride, .run_bytes = 1},
          .factor = 3};
      xfi_ref_digest(want, &one, 1);
    }
    run_on_device(got, &box, 1, BLOCKS_ALONE);
    assert_memory_equal(got, want, sizeof want);
  }
  CUDA(cudaFree, (device));
}

static void test_no_boxes_launch_nothing(void **state)
{
  xfi_digest_box none = {.copy = {.run_bytes = 4, .n_dims = 1, .extent = {0}}, .factor = 1};
  xfi_sum sums[SUMS] = {{{5, 6}}};

  (void)state;
  NEEDS_GPUS(1);
  run_on_device(sums, &none, 1, 1);
  run_on_device(sums, NULL, 0, 1);
  assert_int_equal(sums[0].word[0], 5);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest small[] = {
      cmocka_unit_test(test_random_boxes_equal_ref),
      cmocka_unit_test(test_no_boxes_launch_nothing),
  };
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_boxes_equal_ref),
      cmocka_unit_test(test_sizes_past_32_bits_equal_ref),
      cmocka_unit_test(test_no_boxes_launch_nothing),
  };

  if (argc > 1 && strcmp(argv[1], "--small") == 0)
    return cmocka_run_group_tests_name("digest, small", small, NULL, NULL);
  return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
