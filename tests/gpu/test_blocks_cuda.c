/* The block kernel against kernels/ref/, byte for byte: amaxes, scales of all kinds, and elements
 * by them, of each source type; whole blocks and ragged ones, by words and by single elements. */
#include "on_device.h"

#include "block_scales.h"

#include <string.h>

enum { ROWS = 300, COLUMNS = 1000, N_ELEMS = ROWS * COLUMNS, N_CELLS = N_ELEMS };

static const struct {
  xfer_dtype dtype;
  uint8_t n_bytes;
} types[] = {{XFER_F32, 4}, {XFER_BF16, 2}, {XFER_F16, 2}};

/* [blocks][rows][blocks][columns] of a matrix that has COLUMNS columns, from element `first` on. */
typedef struct shape {
  int64_t first;
  int64_t n_rows; /* blocks */
  int64_t rows;
  int64_t n_columns;
  int64_t columns;
} shape;

static const shape shapes[] = {
    {0, 2, 128, 7, 128}, {0, 1, 44, 7, 128},   {896, 2, 128, 1, 104}, {1, 2, 128, 7, 128},
    {0, 300, 1, 7, 128}, {0, 300, 1, 31, 32},  {8, 5, 60, 1, 960},    {3, 30, 10, 9, 100},
    {0, 4, 64, 1, 1},    {0, 300, 1, 1, 1000}, {8, 12, 25, 13, 24},
};

/* Memory of both. */
typedef struct both {
  char *host;
  char *device;
  size_t n_bytes;
} both;

static both both_make(size_t n_bytes)
{
  both made = {.host = calloc(1, n_bytes), .n_bytes = n_bytes};

  assert_non_null(made.host);
  CUDA(cudaMalloc, ((void **)&made.device, n_bytes));
  return made;
}

static void both_free(both *b)
{
  free(b->host);
  CUDA(cudaFree, (b->device));
}

static void check_same(const both *b, const char *what, const shape *s, int type)
{
  char *seen = malloc(b->n_bytes);

  CUDA(cudaMemcpy, (seen, b->device, b->n_bytes, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < b->n_bytes; i++) {
    if (seen[i] == b->host[i]) continue;
    print_error("%s of dtype %d, blocks of %d x %d from %d: byte %zu is %02x, not %02x\n", what,
                types[type].dtype, (int)s->rows, (int)s->columns, (int)s->first, i,
                (unsigned char)seen[i], (unsigned char)b->host[i]);
    break;
  }
  assert_memory_equal(seen, b->host, b->n_bytes);
  free(seen);
}

static void do_both(const xfi_copy *c, const both *src, const both *dst, const both *scales)
{
  xfi_copy copy = *c;

  copy.src = src->host + (intptr_t)c->src;
  copy.dst = dst == NULL ? NULL : dst->host + (intptr_t)c->dst;
  copy.scales = scales == NULL ? NULL : (float *)(void *)scales->host;
  xfi_ref_copy(&copy, 1);
  copy.src = src->device + (intptr_t)c->src;
  copy.dst = dst == NULL ? NULL : dst->device + (intptr_t)c->dst;
  copy.scales = scales == NULL ? NULL : (float *)(void *)scales->device;
  run_on_device(&copy, 1, BLOCKS_ALONE);
}

static void check_shape(const shape *s, int type, uint32_t how, const both *src, const both *dst,
                        const both *scales)
{
  const int64_t wide = types[type].n_bytes;
  const int64_t n_cells = s->n_rows * s->n_columns;
  const uint8_t from = (uint8_t)types[type].dtype;
  const xfi_convert amax = {from, XFER_F8E4M3, (uint8_t)wide, 1, XFI_CONVERT_AMAX, 0, 0};
  const xfi_convert quantise = {from, XFER_F8E4M3, (uint8_t)wide, 1, XFI_CONVERT_BLOCKS, 0, 0};
  const xfi_convert to_scale = {XFER_F32, XFER_F32, 4, 4, XFI_CONVERT_TO_SCALE, 0, how};
  const xfi_convert exponents = {XFER_F32, XFER_F8E8M0, 4, 1, XFI_CONVERT_AS_IT_IS, 0, 0};
  const int64_t row = COLUMNS;
  const int64_t height = s->n_rows * s->rows;

  memset(scales->host, 0, scales->n_bytes);
  CUDA(cudaMemset, (scales->device, 0, scales->n_bytes));
  memset(dst->host, 0, dst->n_bytes);
  CUDA(cudaMemset, (dst->device, 0, dst->n_bytes));
  do_both(&(xfi_copy){.src = (char *)(s->first * wide),
                      .run_bytes = s->columns,
                      .convert = &amax,
                      .n_dims = 3,
                      .extent = {s->n_rows, s->n_columns, s->rows},
                      .src_stride = {s->rows * row * wide, s->columns * wide, row * wide},
                      .scale_stride = {s->n_columns, 1, 0}},
          src, NULL, scales);
  check_same(scales, "amax", s, type);
  do_both(&(xfi_copy){.run_bytes = 4 * n_cells, .convert = &to_scale}, scales, scales, NULL);
  check_same(scales, "scale", s, type);
  do_both(&(xfi_copy){.src = (char *)(s->first * wide),
                      .dst = (char *)s->first,
                      .run_bytes = s->columns,
                      .convert = &quantise,
                      .n_dims = 3,
                      .extent = {s->n_rows, s->rows, s->n_columns},
                      .src_stride = {s->rows * row * wide, row * wide, s->columns * wide},
                      .dst_stride = {s->rows * row, row, s->columns},
                      .scale_stride = {s->n_columns, 0, 1}},
          src, dst, scales);
  check_same(dst, "element", s, type);
  do_both(
      &(xfi_copy){.src = (char *)(s->first * wide),
                  .dst = (char *)s->first,
                  .run_bytes = 1,
                  .convert = &quantise,
                  .n_dims = 4,
                  .extent = {s->n_rows, s->rows, s->n_columns, s->columns},
                  .src_stride = {s->rows * wide, wide, s->columns * height * wide, height * wide},
                  .dst_stride = {s->rows * row, row, s->columns, 1},
                  .scale_stride = {s->n_columns, 0, 1, 0}},
      src, dst, scales);
  check_same(dst, "transposed element", s, type);
  do_both(&(xfi_copy){.run_bytes = n_cells, .convert = &exponents}, scales, dst, NULL);
  check_same(dst, "exponent", s, type);
}

static void test_blocks_equal_ref(void **state)
{
  both src;
  both dst;
  both scales;
  uint64_t random = 9;

  (void)state;
  NEEDS_GPUS(1);
  src = both_make((size_t)N_ELEMS * 4);
  dst = both_make((size_t)N_ELEMS);
  scales = both_make((size_t)N_CELLS * 4);
  random_fill(&random, src.host, src.n_bytes); /* NaNs, infinities and denormals among them */
  CUDA(cudaMemcpy, (src.device, src.host, src.n_bytes, cudaMemcpyHostToDevice));
  for (int noise = 1; noise >= 0; noise--) {
    for (int type = 0; type < 3; type++)
      for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint32_t how = XFER_SCALE_F32; how <= XFER_SCALE_MX; how++)
          check_shape(&shapes[i], type, how, &src, &dst, &scales);
    for (size_t i = 0; i < src.n_bytes / 4; i++) { /* then numbers alone, of many magnitudes */
      uint32_t bits;

      memcpy(&bits, src.host + 4 * i, sizeof bits);
      bits &= UINT32_C(0xbfffbfff);
      memcpy(src.host + 4 * i, &bits, sizeof bits);
    }
    CUDA(cudaMemcpy, (src.device, src.host, src.n_bytes, cudaMemcpyHostToDevice));
  }
  both_free(&src);
  both_free(&dst);
  both_free(&scales);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks_equal_ref)};

  return cmocka_run_group_tests(tests, NULL, NULL);
}
