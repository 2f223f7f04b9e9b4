/* Strided copies against one that finds each byte's place by itself. */
#include "kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "property/rng.h"

enum { BUFFER_BYTES = 1 << 16, N_CASES = 4000, GUARD = 0xa5 };

static unsigned char source[BUFFER_BYTES];
static unsigned char got[BUFFER_BYTES];
static unsigned char wanted[BUFFER_BYTES];

static rng random_numbers;

static int64_t random_below(int64_t n)
{
  return rng_below(&random_numbers, n);
}

static int setup(void **state)
{
  (void)state;
  for (int i = 0; i < BUFFER_BYTES; i++)
    source[i] = (unsigned char)random_below(256);
  return 0;
}

static void naive_copy(unsigned char *dst, const xfi_copy *copy)
{
  for (int64_t n = 0; n < xfi_copy_bytes(copy); n++) {
    int64_t rest = n / copy->run_bytes;
    int64_t from = n % copy->run_bytes;
    int64_t to = from;
    for (int64_t d = copy->n_dims - 1; d >= 0; d--) {
      from += rest % copy->extent[d] * copy->src_stride[d];
      to += rest % copy->extent[d] * copy->dst_stride[d];
      rest /= copy->extent[d];
    }
    dst[to] = copy->src == NULL ? 0 : (unsigned char)copy->src[from];
  }
}

/* Strides that nest in the order `perm`, with gaps now and then. Returns the span in bytes. */
static int64_t random_strides(int64_t *stride, const xfi_copy *copy, const int *perm)
{
  int64_t span = copy->run_bytes;

  for (int i = 0; i < copy->n_dims; i++) {
    int d = perm[i];
    if (random_below(3) == 0) span += random_below(9);
    stride[d] = span;
    span *= copy->extent[d] == 0 ? 1 : copy->extent[d];
  }
  return span;
}

static void random_permutation(int *perm, int64_t n, int shuffle)
{
  for (int i = 0; i < n; i++)
    perm[i] = (int)n - 1 - i;
  for (int64_t i = n - 1; shuffle && i > 0; i--) {
    int64_t j = random_below(i + 1);
    int kept = perm[i];
    perm[i] = perm[j];
    perm[j] = kept;
  }
}

/* False if it came out too large for the buffers. */
static int random_copy(xfi_copy *copy)
{
  static const int64_t runs[] = {1, 2, 4, 8, 16, 3, 7, 24, 64, 100};
  int src_perm[XFI_COPY_DIMS];
  int dst_perm[XFI_COPY_DIMS];
  int shuffle = random_below(2) == 0;

  *copy =
      (xfi_copy){.run_bytes = runs[random_below(10)], .n_dims = random_below(XFI_COPY_DIMS + 1)};
  for (int64_t d = 0; d < copy->n_dims; d++)
    copy->extent[d] = random_below(100) == 0 ? 0 : 1 + random_below(5);
  random_permutation(src_perm, copy->n_dims, shuffle);
  random_permutation(dst_perm, copy->n_dims, shuffle);
  int64_t src_span = random_strides(copy->src_stride, copy, src_perm);
  int64_t dst_span = random_strides(copy->dst_stride, copy, dst_perm);
  if (src_span > BUFFER_BYTES || dst_span > BUFFER_BYTES) return 0;
  copy->src = (const char *)source + random_below(BUFFER_BYTES - src_span + 1);
  if (random_below(10) == 0) copy->src = NULL;
  copy->dst = (char *)got + random_below(BUFFER_BYTES - dst_span + 1);
  return 1;
}

static void check(const xfi_copy *copy)
{
  memset(got, GUARD, sizeof got);
  memset(wanted, GUARD, sizeof wanted);
  naive_copy(wanted + (copy->dst - (char *)got), copy);
  xfi_ref_copy(copy, 1);
  assert_memory_equal(got, wanted, sizeof got);
}

static void test_random_copies_equal_the_naive_one(void **state)
{
  (void)state;
  random_numbers.state = 1;
  for (int n = 0; n < N_CASES;) {
    xfi_copy copy;
    if (!random_copy(&copy)) continue;
    check(&copy);
    n++;
  }
}

enum { TILED_BYTES = 3 << 20, TILED_MARGIN = 8 };

/* Extents about the edges of tiles, which are 32 to 128 words wide. */
static int64_t tiled_extent(void)
{
  static const int64_t edges[] = {32, 64, 96, 128, 192, 256};

  return edges[random_below(6)] - 2 + random_below(5);
}

/* src fast along one dim, dst along another, a third before, between or behind them. */
static void random_transpose(xfi_copy *copy)
{
  static const int64_t runs[] = {1, 2, 4, 8, 16, 3};
  const int64_t from = random_below(3);
  const int64_t to = (from + 1 + random_below(2)) % 3;
  const int64_t other = 3 - from - to;
  const int64_t run = runs[random_below(6)];
  int64_t *const src = copy->src_stride;
  int64_t *const dst = copy->dst_stride;

  *copy = (xfi_copy){.run_bytes = run, .n_dims = 3};
  copy->extent[from] = tiled_extent();
  copy->extent[to] = tiled_extent();
  copy->extent[other] = 1 + random_below(2);
  src[from] = run + (random_below(3) == 0 ? random_below(9) : 0);
  src[to] = copy->extent[from] * src[from] + random_below(3);
  if (src[to] <= 4096 && random_below(3) > 0) src[to] = 4096;
  src[other] = copy->extent[to] * src[to];
  dst[to] = run + (random_below(3) == 0 ? random_below(9) : 0);
  dst[from] = copy->extent[to] * dst[to] + random_below(3);
  dst[other] = copy->extent[from] * dst[from];
}

static int64_t span_of(const xfi_copy *copy, const int64_t *stride)
{
  int64_t span = copy->run_bytes;

  for (int64_t d = 0; d < copy->n_dims; d++)
    span += (copy->extent[d] - 1) * stride[d];
  return span;
}

static void test_transposes_equal_the_naive_copy(void **state)
{
  unsigned char *memory = malloc((size_t)3 * TILED_BYTES);
  unsigned char *const is = memory + TILED_BYTES;
  unsigned char *const should_be = is + TILED_BYTES;

  (void)state;
  assert_non_null(memory);
  random_numbers.state = 4;
  for (int64_t i = 0; i < TILED_BYTES; i++)
    memory[i] = (unsigned char)random_below(256);
  for (int n = 0; n < 150;) {
    xfi_copy copy;

    random_transpose(&copy);
    const int64_t src_bytes = span_of(&copy, copy.src_stride);
    const int64_t dst_bytes = span_of(&copy, copy.dst_stride) + TILED_MARGIN + TILED_MARGIN;
    if (src_bytes + TILED_MARGIN > TILED_BYTES || dst_bytes > TILED_BYTES) continue;
    copy.src = (const char *)memory + random_below(TILED_MARGIN);
    const int64_t offset = random_below(TILED_MARGIN);
    memset(is, GUARD, (size_t)dst_bytes);
    memset(should_be, GUARD, (size_t)dst_bytes);
    naive_copy(should_be + offset, &copy);
    copy.dst = (char *)is + offset;
    if (n % 2 == 0) xfi_copy_simplify(&copy);
    xfi_ref_copy(&copy, 1);
    assert_memory_equal(is, should_be, (size_t)dst_bytes);
    n++;
  }
  free(memory);
}

static void test_a_transpose_converts_each_element(void **state)
{
  enum { ROWS = 150, COLS = 131 };
  static uint32_t from[COLS][ROWS];
  static uint16_t to[ROWS][COLS];
  const xfi_convert to_bf16 = {
      .from = XFER_F32, .to = XFER_BF16, .src_bytes = sizeof **from, .dst_bytes = sizeof **to};
  const xfi_copy copy = {.src = (const char *)from,
                         .dst = (char *)to,
                         .run_bytes = sizeof **to,
                         .convert = &to_bf16,
                         .n_dims = 2,
                         .extent = {ROWS, COLS},
                         .src_stride = {sizeof **from, sizeof *from},
                         .dst_stride = {sizeof *to, sizeof **to}};

  (void)state;
  for (int i = 0; i < ROWS; i++)
    for (int k = 0; k < COLS; k++)
      from[k][i] = (uint32_t)(i * COLS + k) << 16;
  xfi_ref_copy(&copy, 1);
  for (int i = 0; i < ROWS; i++)
    for (int k = 0; k < COLS; k++)
      assert_int_equal(to[i][k], i * COLS + k);
}

static void test_simplify_keeps_the_result(void **state)
{
  (void)state;
  random_numbers.state = 2;
  for (int n = 0; n < N_CASES;) {
    xfi_copy copy;
    if (!random_copy(&copy)) continue;
    xfi_copy simple = copy;
    xfi_copy_simplify(&simple);
    assert_int_equal(xfi_copy_bytes(&simple), xfi_copy_bytes(&copy));
    assert_true(simple.n_dims <= copy.n_dims);
    memset(wanted, GUARD, sizeof wanted);
    naive_copy(wanted + (copy.dst - (char *)got), &copy);
    memset(got, GUARD, sizeof got);
    xfi_ref_copy(&simple, 1);
    assert_memory_equal(got, wanted, sizeof got);
    xfi_copy again = simple;
    xfi_copy_simplify(&again);
    assert_memory_equal(&again, &simple, sizeof again);
    n++;
  }
}

static void test_simplify_of_a_dense_copy_is_one_run(void **state)
{
  (void)state;
  xfi_copy copy = {.src = (const char *)source,
                   .dst = (char *)got,
                   .run_bytes = 4,
                   .n_dims = 4,
                   .extent = {2, 3, 1, 5},
                   .src_stride = {60, 20, 7, 4},
                   .dst_stride = {60, 20, 9, 4}};
  xfi_copy_simplify(&copy);
  assert_int_equal(copy.n_dims, 0);
  assert_int_equal(copy.run_bytes, 120);
}

static void test_simplify_finds_runs_in_any_order_of_dims(void **state)
{
  (void)state;
  xfi_copy copy = {.src = (const char *)source,
                   .dst = (char *)got,
                   .run_bytes = 2,
                   .n_dims = 2,
                   .extent = {6, 5},
                   .src_stride = {2, 100},
                   .dst_stride = {2, 12}};
  xfi_copy_simplify(&copy);
  assert_int_equal(copy.n_dims, 1);
  assert_int_equal(copy.run_bytes, 12);
  assert_int_equal(copy.extent[0], 5);
  assert_int_equal(copy.src_stride[0], 100);
}

static void test_simplify_of_zeroing_looks_at_the_destination_alone(void **state)
{
  (void)state;
  xfi_copy copy = {.src = NULL,
                   .dst = (char *)got,
                   .run_bytes = 8,
                   .n_dims = 2,
                   .extent = {4, 4},
                   .src_stride = {1000, 99},
                   .dst_stride = {32, 8}};
  xfi_copy_simplify(&copy);
  assert_int_equal(copy.n_dims, 0);
  assert_int_equal(copy.run_bytes, 128);
  check(&copy);
}

/* The copy with one side dense, in row-major order. */
static void make_dense(int64_t *stride, const xfi_copy *copy)
{
  int64_t next = copy->run_bytes;

  for (int64_t d = copy->n_dims - 1; d >= 0; d--) {
    stride[d] = next;
    next *= copy->extent[d];
  }
}

/* A random copy that is not empty, its memory in one place; now and then of runs that pass by the
 * cache. */
static void random_box(xfi_copy *copy, int64_t *n_bytes)
{
  do {
    *n_bytes = 0;
    if (!random_copy(copy)) continue;
    if (copy->n_dims <= 2 && random_below(2) == 0) {
      copy->run_bytes = 200 + random_below(900);
      for (int64_t d = copy->n_dims - 1, next = copy->run_bytes; d >= 0; d--) {
        copy->src_stride[d] = copy->dst_stride[d] = next + random_below(70);
        next = copy->src_stride[d] * copy->extent[d];
      }
      copy->dst = (char *)got + random_below(100);
    }
    *n_bytes = xfi_copy_bytes(copy);
  } while (*n_bytes == 0);
}

static void test_boxes_are_packed_and_unpacked_from_any_byte_to_any_byte(void **state)
{
  enum { MOST = 3 };
  static unsigned char dense[BUFFER_BYTES + 1];
  static unsigned char memory[MOST][BUFFER_BYTES];
  static unsigned char expected[MOST][BUFFER_BYTES];
  int64_t box_bytes;

  (void)state;
  random_numbers.state = 3;
  for (int n = 0; n < N_CASES; n++) {
    xfi_copy copy;
    xfi_strided_dim dims[XFI_COPY_DIMS];
    char *bases[MOST];

    random_box(&copy, &box_bytes);
    const ptrdiff_t offset = copy.dst - (char *)got;
    const int64_t room = BUFFER_BYTES / box_bytes;
    const int64_t n_bytes = box_bytes * (1 + random_below(room < MOST ? room : MOST));
    const xfi_strided box = {NULL, copy.run_bytes, copy.n_dims};
    for (int64_t d = 0; d < copy.n_dims; d++)
      dims[d] = (xfi_strided_dim){copy.extent[d], copy.dst_stride[d]};
    make_dense(copy.src_stride, &copy);
    memset(memory, GUARD, sizeof memory);
    memset(expected, GUARD, sizeof expected);
    for (int64_t i = 0; i < n_bytes / box_bytes; i++) {
      bases[i] = (char *)memory[i] + offset;
      copy.src = (const char *)source + i * box_bytes;
      naive_copy(expected[i] + offset, &copy);
    }
    for (int64_t at = 0, take; at < n_bytes; at += take) {
      take = n % 3 == 0 ? n_bytes : 1 + random_below(n_bytes - at);
      xfi_ref_serialise((char *)source + at, bases + at / box_bytes, &box, dims, at % box_bytes,
                        take, false, n % 2 == 0);
    }
    assert_memory_equal(memory, expected, sizeof memory);
    memset(dense, GUARD, sizeof dense);
    for (int64_t at = 0, take; at < n_bytes; at += take) {
      take = n % 3 == 0 ? n_bytes : 1 + random_below(n_bytes - at);
      xfi_ref_serialise((char *)dense + at, bases + at / box_bytes, &box, dims, at % box_bytes,
                        take, true, n % 2 == 0);
    }
    assert_memory_equal(dense, source, (size_t)n_bytes);
    assert_int_equal(dense[n_bytes], GUARD);
  }
}

static void test_several_copies_run_in_order(void **state)
{
  (void)state;
  xfi_copy copies[2] = {{.src = (const char *)source, .dst = (char *)got, .run_bytes = 100},
                        {.src = NULL, .dst = (char *)got + 10, .run_bytes = 5}};
  memset(got, GUARD, sizeof got);
  xfi_ref_copy(copies, 2);
  assert_memory_equal(got, source, 10);
  assert_memory_equal(got + 10, "\0\0\0\0\0", 5);
  assert_memory_equal(got + 15, source + 15, 85);
  assert_int_equal(got[100], GUARD);
  xfi_ref_copy(NULL, 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_copies_equal_the_naive_one),
      cmocka_unit_test(test_transposes_equal_the_naive_copy),
      cmocka_unit_test(test_a_transpose_converts_each_element),
      cmocka_unit_test(test_simplify_keeps_the_result),
      cmocka_unit_test(test_boxes_are_packed_and_unpacked_from_any_byte_to_any_byte),
      cmocka_unit_test(test_simplify_of_a_dense_copy_is_one_run),
      cmocka_unit_test(test_simplify_finds_runs_in_any_order_of_dims),
      cmocka_unit_test(test_simplify_of_zeroing_looks_at_the_destination_alone),
      cmocka_unit_test(test_several_copies_run_in_order),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
