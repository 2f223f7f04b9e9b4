/* The convert kernel against kernels/ref/, byte for byte: every pair of types, by words of several
 * elements and by single ones, dense and strided. */
#include "on_device.h"

#include <string.h>

enum { GUARD = 64, POISON = 0xa5 };
static int64_t n_elems = 1 << 20; /* --small: fewer, under a sanitizer */

static const struct {
  xfer_dtype dtype;
  uint8_t n_bytes;
} types[] = {{XFER_F32, 4}, {XFER_BF16, 2}, {XFER_F16, 2}, {XFER_F8E4M3, 1}, {XFER_F8E5M2, 1}};
enum { N_FROM = 3, N_TO = 5 };

/* Memory of both, with the same bytes. */
typedef struct both {
  char *host;
  char *device;
} both;

static both both_make(size_t n_bytes)
{
  both made = {.host = calloc(1, n_bytes)};

  assert_non_null(made.host);
  CUDA(cudaMalloc, ((void **)&made.device, n_bytes));
  return made;
}

static void both_free(both *b)
{
  free(b->host);
  CUDA(cudaFree, (b->device));
}

/* Of f32 the values around each of bf16, whose upper half is each pattern; of 16 bits each pattern;
 * then noise. */
static void fill(char *memory, int n_bytes)
{
  static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x0fff, 0x1000, 0x1001};
  uint64_t random = 5;

  random_fill(&random, memory, (size_t)n_elems * (size_t)n_bytes);
  for (uint32_t i = 0; i < 0x10000 && i < n_elems / 9; i++) {
    const uint16_t half = (uint16_t)i;

    if (n_bytes == 2) memcpy(memory + 2 * (size_t)i, &half, sizeof half);
    for (size_t k = 0; k < sizeof low / sizeof *low && n_bytes == 4; k++) {
      const uint32_t bits = i << 16 | low[k];
      memcpy(memory + 4 * ((size_t)i * 9 + k), &bits, sizeof bits);
    }
  }
}

/* `c` has offsets for pointers. */
static void check(const xfi_copy *c, const both *src, const both *dst, size_t dst_bytes,
                  const char *what)
{
  char *seen = malloc(dst_bytes);
  xfi_copy copy = *c;

  memset(dst->host, POISON, dst_bytes);
  CUDA(cudaMemset, (dst->device, POISON, dst_bytes));
  copy.src = src->host + (intptr_t)c->src;
  copy.dst = dst->host + (intptr_t)c->dst;
  xfi_ref_copy(&copy, 1);
  copy.src = src->device + (intptr_t)c->src;
  copy.dst = dst->device + (intptr_t)c->dst;
  run_on_device(&copy, 1, BLOCKS_ALONE);
  CUDA(cudaMemcpy, (seen, dst->device, dst_bytes, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < dst_bytes; i++) {
    if (seen[i] == dst->host[i]) continue;
    print_error("%s, %d to %d, op %u: byte %zu is %02x, not %02x\n", what, c->convert->from,
                c->convert->to, c->convert->op, i, (unsigned char)seen[i],
                (unsigned char)dst->host[i]);
    break;
  }
  assert_memory_equal(seen, dst->host, dst_bytes);
  free(seen);
}

/* Rows that begin at any element on either side, next to each other on both, on one or on none, in
 * one line and in lines of 9; the longest have several tiles. */
static void check_odd_rows(const xfi_convert *v, const both *src, const both *dst, size_t dst_bytes)
{
  static const int64_t rows[] = {1, 7, 16, 31, 33, 67, 101, 129, 255, 1025, 9001};

  for (size_t i = 0; i < 3 * sizeof rows / sizeof *rows; i++)
    for (int64_t first = 0; first < 3; first++) {
      const int64_t row = rows[i / 3];
      const int64_t n_lines = n_elems / 2 / (9 * (row + 3));
      const int64_t from = (row + (i % 3 == 1 ? 0 : first)) * v->src_bytes;
      const int64_t to = (row + (i % 3 == 2 ? 0 : 2 * first)) * v->dst_bytes;
      const xfi_copy c = {.src = (const char *)(intptr_t)(first * v->src_bytes),
                          .dst = (char *)(intptr_t)(5 * first * v->dst_bytes),
                          .run_bytes = row * v->dst_bytes,
                          .convert = v,
                          .n_dims = 2,
                          .extent = {n_lines, 9},
                          .src_stride = {9 * from + first * v->src_bytes, from},
                          .dst_stride = {9 * to + first * v->dst_bytes, to}};

      if (n_lines > 0) check(&c, src, dst, dst_bytes, "odd rows");
    }
}

/* A matrix of src, from element `first` on, whose columns dst has as rows. */
static void check_transposed(const xfi_convert *v, const both *src, const both *dst,
                             size_t dst_bytes, int64_t columns, int64_t rows, int64_t first)
{
  const xfi_copy c = {.src = (const char *)(intptr_t)(first * v->src_bytes),
                      .dst = (char *)(intptr_t)(3 * first * v->dst_bytes),
                      .run_bytes = v->dst_bytes,
                      .convert = v,
                      .n_dims = 2,
                      .extent = {columns, rows},
                      .src_stride = {v->src_bytes, columns * v->src_bytes},
                      .dst_stride = {rows * v->dst_bytes, v->dst_bytes}};

  check(&c, src, dst, dst_bytes, "transposed");
}

/* All elements as one run; from the second element on, so that words do not fit; every other row
 * of 24, by rows that are far apart in the destination; and transposed. */
static void check_pair(const xfi_convert *v, const both *src, const both *dst)
{
  const size_t dst_bytes = 2 * (size_t)n_elems * v->dst_bytes + GUARD;
  const int64_t row = 24;
  const int64_t side = n_elems < 1 << 20 ? 10 : 100;
  xfi_copy c = {.run_bytes = n_elems * v->dst_bytes, .convert = v};

  check(&c, src, dst, dst_bytes, "one run");
  c.src += v->src_bytes;
  c.run_bytes -= v->dst_bytes;
  check(&c, src, dst, dst_bytes, "one run from the second element on");
  c.dst += 3 * v->dst_bytes;
  check(&c, src, dst, dst_bytes, "to the fourth");
  check_odd_rows(v, src, dst, dst_bytes);
  c = (xfi_copy){.run_bytes = row * v->dst_bytes,
                 .convert = v,
                 .n_dims = 2,
                 .extent = {100, n_elems / (2 * row) / 100},
                 .src_stride = {2 * row * v->src_bytes, 200 * row * v->src_bytes},
                 .dst_stride = {3 * row * v->dst_bytes, 300 * row * v->dst_bytes}};
  check(&c, src, dst, dst_bytes, "rows");
  check_transposed(v, src, dst, dst_bytes, 7 * side, 9 * side, 0);
  check_transposed(v, src, dst, dst_bytes, 256, n_elems / 256, 0);
  check_transposed(v, src, dst, dst_bytes, 9, 131, 1);
  check_transposed(v, src, dst, dst_bytes, 131, 11, 3);
}

static void test_each_pair_equals_ref(void **state)
{
  static const float values[] = {0, 3.7F, -1.0F};
  both src;
  both dst;

  (void)state;
  NEEDS_GPUS(1);
  dst = both_make((size_t)n_elems * 8 + GUARD);
  for (int from = 0; from < N_FROM; from++) {
    src = both_make((size_t)n_elems * types[from].n_bytes); /* and not a byte more is read */
    fill(src.host, types[from].n_bytes);
    CUDA(cudaMemcpy,
         (src.device, src.host, (size_t)n_elems * types[from].n_bytes, cudaMemcpyHostToDevice));
    for (int to = 0; to < N_TO; to++)
      for (uint32_t op = XFI_CONVERT_AS_IT_IS; op <= XFI_CONVERT_PLUS; op++) {
        const xfi_convert v = {.from = (uint8_t)types[from].dtype,
                               .to = (uint8_t)types[to].dtype,
                               .src_bytes = types[from].n_bytes,
                               .dst_bytes = types[to].n_bytes,
                               .op = op,
                               .value = values[op]};

        if (from != to || op != XFI_CONVERT_AS_IT_IS) check_pair(&v, &src, &dst);
      }
    both_free(&src);
  }
  both_free(&dst);
}

/* One run of more elements than an int counts, which begins in the middle of words. */
static void test_run_of_more_than_2_31_elements_is_whole(void **state)
{
  enum { SRC_BYTE = 0x3f, MADE = 0x34, SEEN = 24 }; /* 0.7461 in bf16 becomes 0.75 */
  const int64_t n = (INT64_C(1) << 31) + 5;
  const xfi_convert v = {.from = XFER_BF16, .to = XFER_F8E4M3, .src_bytes = 2, .dst_bytes = 1};
  unsigned char want[SEEN];
  unsigned char seen[SEEN];
  char *src = NULL;
  char *dst = NULL;

  (void)state;
  NEEDS_GPUS(1);
  CUDA(cudaMalloc, ((void **)&src, (size_t)(n + 1) * 2));
  CUDA(cudaMalloc, ((void **)&dst, (size_t)n + SEEN));
  CUDA(cudaMemset, (src, SRC_BYTE, (size_t)(n + 1) * 2));
  CUDA(cudaMemset, (dst, POISON, (size_t)n + SEEN));
  const xfi_copy c = {.src = src + 2, .dst = dst + 3, .run_bytes = n, .convert = &v};
  run_on_device(&c, 1, BLOCKS_ALONE);
  memset(want, MADE, SEEN);
  memset(want, POISON, 3);
  CUDA(cudaMemcpy, (seen, dst, SEEN, cudaMemcpyDeviceToHost));
  assert_memory_equal(seen, want, SEEN);
  memset(want, MADE, SEEN);
  memset(want + 3, POISON, SEEN - 3);
  CUDA(cudaMemcpy, (seen, dst + n, SEEN, cudaMemcpyDeviceToHost));
  assert_memory_equal(seen, want, SEEN);
  CUDA(cudaFree, (src));
  CUDA(cudaFree, (dst));
}

int main(int argc, char **argv)
{
  const struct CMUnitTest small[] = {
      cmocka_unit_test(test_each_pair_equals_ref),
  };
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_pair_equals_ref),
      cmocka_unit_test(test_run_of_more_than_2_31_elements_is_whole),
  };

  if (argc > 1 && strcmp(argv[1], "--small") == 0) { /* under a sanitizer */
    n_elems = 1 << 13;
    return cmocka_run_group_tests_name("conversions, small", small, NULL, NULL);
  }
  return cmocka_run_group_tests_name("conversions", tests, NULL, NULL);
}
