/* Conversions against those that are looked up in all values of a type. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* feenableexcept */
#endif
#include "kernels.h"

#include <fenv.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "numbers.h"

enum { N_RANDOM = 400000 };

static uint32_t convert(xfer_dtype from, int from_bytes, xfer_dtype to, int to_bytes, uint32_t bits,
                        xfi_convert_op op, float value)
{
  const xfi_convert c = {.from = (uint8_t)from,
                         .to = (uint8_t)to,
                         .src_bytes = (uint8_t)from_bytes,
                         .dst_bytes = (uint8_t)to_bytes,
                         .op = op,
                         .value = value};
  char src[2 * sizeof bits] = {0};
  uint32_t got = 0;
  char dst[2 * sizeof bits] = {0};

  memcpy(src + 1, &bits, (size_t)from_bytes); /* neither side need be aligned */
  xfi_ref_convert(dst + 1, src + 1, 1, &c);
  memcpy(&got, dst + 1, (size_t)to_bytes);
  return got;
}

static void check(const number_type *t, uint32_t bits)
{
  const uint32_t got = convert(XFER_F32, 4, t->dtype, t->n_bytes, bits, XFI_CONVERT_AS_IT_IS, 0);
  const uint32_t wanted = number_nearest(t, (double)float_of(bits));

  if (got != wanted) print_error("dtype %d of %08x: %x, not %x\n", t->dtype, bits, got, wanted);
  assert_int_equal(got, wanted);
}

static uint32_t random_bits(void)
{
  static uint64_t state = 1;
  uint64_t z = state += 0x9e3779b97f4a7c15u;

  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (uint32_t)(z ^ (z >> 31));
}

static void test_rounding_f32_at_every_value_and_between(void **state)
{
  (void)state;
  for (int k = 1; k < N_NUMBER_TYPES; k++) {
    const number_type *t = &number_types[k];
    const uint32_t sign = 1U << 31;

    for (uint32_t v = 0; v <= t->largest; v++) {
      const float at = (float)number_magnitude(t, v);
      const float half = (float)((number_magnitude(t, v) + number_magnitude(t, v + 1)) / 2);

      for (uint32_t by = 0; by < 3; by++) {
        check(t, bits_of(at) + by);
        check(t, (bits_of(half) + by - 1) | sign);
        check(t, bits_of(half) + by - 1);
      }
    }
    check(t, 0x7f800000);
    check(t, 0xff800000);
    check(t, 0x7f800001);
    check(t, 0xffc12345);
    check(t, 0xffffffff);
    check(t, 0x7f7fffff);
    check(t, sign);
    for (int i = 0; i < N_RANDOM; i++)
      check(t, random_bits());
  }
}

/* Every pattern of the two 16-bit types, to all. */
static void test_every_pattern_of_16_bits(void **state)
{
  (void)state;
  for (int from = 1; from <= 2; from++)
    for (int to = 0; to < N_NUMBER_TYPES; to++)
      for (uint32_t v = 0; v < 0x10000 && to != from; v++) {
        const number_type *f = &number_types[from];
        const number_type *t = &number_types[to];
        const uint32_t got = convert(f->dtype, 2, t->dtype, t->n_bytes, v, XFI_CONVERT_AS_IT_IS, 0);

        assert_int_equal(got, number_converted(f->dtype, t->dtype, v, 0, 0));
      }
}

/* The sum and the product are those of f32, and are rounded once more. */
static void test_operations_come_before_rounding(void **state)
{
  (void)state;
  for (int i = 0; i < N_RANDOM; i++) {
    const uint32_t bits = random_bits();
    const float value = float_of(0x3f000000 + (random_bits() & 0xffffff));
    const float product = (float)((double)float_of(bits) * (double)value);
    volatile float sum = float_of(bits) + value;
    const number_type *t = &number_types[1 + i % (N_NUMBER_TYPES - 1)];

    if (isnan(product)) continue;
    assert_int_equal(convert(XFER_F32, 4, t->dtype, t->n_bytes, bits, XFI_CONVERT_TIMES, value),
                     number_nearest(t, (double)product));
    assert_int_equal(convert(XFER_F32, 4, t->dtype, t->n_bytes, bits, XFI_CONVERT_PLUS, value),
                     number_nearest(t, (double)sum));
    assert_int_equal(convert(XFER_F32, 4, XFER_F32, 4, bits, XFI_CONVERT_PLUS, value),
                     bits_of(sum));
  }
  assert_int_equal(convert(XFER_BF16, 2, XFER_BF16, 2, 0x3f80, XFI_CONVERT_PLUS, -1), 0);
  assert_int_equal(convert(XFER_BF16, 2, XFER_F32, 4, 0x3f80, XFI_CONVERT_PLUS, 1), 0x40000000);
  assert_int_equal(convert(XFER_BF16, 2, XFER_F32, 4, 0x8000, XFI_CONVERT_AS_IT_IS, 0), 0x80000000);
}

/* Numbers one after the other, at any address, against each by itself. */
static void check_many(const char *src, int64_t n, const xfi_convert *c)
{
  const size_t n_bytes = (size_t)n * c->dst_bytes;
  char *const got = malloc(n_bytes + 2);
  char *const wanted = malloc(n_bytes + 2);

  assert_non_null(got);
  assert_non_null(wanted);
  memset(got, 0xa5, n_bytes + 2);
  memset(wanted, 0xa5, n_bytes + 2);
  xfi_ref_convert(got + 1, src, n, c);
  for (int64_t i = 0; i < n; i++)
    xfi_ref_convert(wanted + 1 + i * c->dst_bytes, src + i * c->src_bytes, 1, c);
  assert_memory_equal(got, wanted, n_bytes + 2);
  free(got);
  free(wanted);
}

/* All of 16 bits; of f32 what is near each value of them, and near half way between two. */
static void test_many_at_once_are_each_by_itself(void **state)
{
  enum { N_PATTERNS = 1 << 16, PER_PATTERN = 8 };
  static char src[sizeof(uint32_t) * N_PATTERNS * PER_PATTERN + 1];

  (void)state;
  for (int from = 0; from <= 2; from++) {
    const number_type *f = &number_types[from];
    const int64_t n = from == 0 ? N_PATTERNS * PER_PATTERN : N_PATTERNS;

    for (int64_t i = 0; i < n; i++) {
      const int64_t bits = from == 0 ? i * (0x10000 / PER_PATTERN) + i % 3 - 1 : i;
      memcpy(src + 1 + i * f->n_bytes, &(uint32_t){(uint32_t)bits}, (size_t)f->n_bytes);
    }
    for (int to = 0; to < N_NUMBER_TYPES; to++)
      for (uint32_t op = XFI_CONVERT_AS_IT_IS; op <= XFI_CONVERT_PLUS; op++) {
        const number_type *t = &number_types[to];
        const xfi_convert c = {.from = (uint8_t)f->dtype,
                               .to = (uint8_t)t->dtype,
                               .src_bytes = (uint8_t)f->n_bytes,
                               .dst_bytes = (uint8_t)t->n_bytes,
                               .op = op,
                               .value = -1.25F};

        check_many(src + 1, n, &c);
        for (int64_t some = 0; some < 300; some++)
          check_many(src + 1 + some * f->n_bytes * 200, some, &c);
      }
  }
}

/* ---- whatever the thread's mode ------------------------------------------------------------ */

enum { PER_BLOCK = 32, N_BLOCKS = 64, N_MODE = PER_BLOCK * N_BLOCKS, N_OPS = 3 };

/* What numbers become, as they are copied and as they are packed, and by blocks. */
typedef struct converted {
  char copied[N_NUMBER_TYPES][N_OPS][4 * N_MODE];
  char packed[N_NUMBER_TYPES][N_OPS][4 * N_MODE];
  char quantised[N_MODE];
  float scales[N_BLOCKS];
} converted;

static void set_default(void)
{
}

static void set_upward(void)
{
  (void)fesetround(FE_UPWARD);
}

static void set_traps(void)
{
  (void)feenableexcept(FE_ALL_EXCEPT);
}

/* As torch.set_flush_denormal() does, and the start of a library that -ffast-math links. */
static void set_flush(void)
{
#ifdef __SSE__
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
}

static void quantise(converted *out, char *src)
{
  const xfi_convert steps[] = {
      {XFER_F32, XFER_F8E4M3, 4, 1, XFI_CONVERT_AMAX, 0, XFER_SCALE_MX},
      {XFER_F32, XFER_F32, 4, 4, XFI_CONVERT_TO_SCALE, 0, XFER_SCALE_MX},
      {XFER_F32, XFER_F8E4M3, 4, 1, XFI_CONVERT_BLOCKS, 0, XFER_SCALE_MX},
  };
  xfi_copy blocks = {
      .src = src, .run_bytes = PER_BLOCK, .convert = &steps[0], .scales = out->scales};
  const xfi_copy scales = {.src = (char *)out->scales,
                           .dst = (char *)out->scales,
                           .run_bytes = sizeof out->scales,
                           .convert = &steps[1]};

  blocks.n_dims = 1;
  blocks.extent[0] = N_BLOCKS;
  blocks.src_stride[0] = 4 * PER_BLOCK;
  blocks.dst_stride[0] = PER_BLOCK;
  blocks.scale_stride[0] = 1;
  xfi_ref_copy(&blocks, 1);
  xfi_ref_copy(&scales, 1);
  blocks.dst = out->quantised;
  blocks.convert = &steps[2];
  xfi_ref_copy(&blocks, 1);
}

static void convert_in(void (*set)(void), converted *out, char *src)
{
  fenv_t before;

  memset(out, 0, sizeof *out);
  (void)fegetenv(&before);
  set();
  for (int k = 0; k < N_NUMBER_TYPES; k++)
    for (uint32_t op = 0; op < N_OPS; op++) {
      const number_type *t = &number_types[k];
      const xfi_convert c = {XFER_F32, (uint8_t)t->dtype, 4, (uint8_t)t->n_bytes, op, 0.3F, 0};
      const int64_t n_bytes = (int64_t)N_MODE * t->n_bytes;
      const xfi_copy copy = {
          .src = src, .dst = out->copied[k][op], .run_bytes = n_bytes, .convert = &c};
      const xfi_strided box = {&c, n_bytes, 0};

      xfi_ref_copy(&copy, 1);
      xfi_ref_serialise(out->packed[k][op], &src, &box, NULL, 0, n_bytes, true, false);
    }
  quantise(out, src);
  (void)fesetenv(&before);
}

/* Denormal numbers of every type, signalling NaNs, blocks of zeros and of the smallest numbers. */
static void test_no_mode_of_the_thread_has_a_say(void **state)
{
  void (*const modes[])(void) = {set_upward, set_traps, set_flush};
  static uint32_t numbers[N_MODE];
  static converted wanted;
  static converted got;

  (void)state;
  for (int i = 0; i < N_MODE; i++) {
    numbers[i] = random_bits();
    if (i < N_MODE / 2) numbers[i] = (numbers[i] & 0x807fffff) | (random_bits() % 160) << 23;
    if (i < 2 * PER_BLOCK) numbers[i] = i < PER_BLOCK ? 0 : 0x00800000;
  }
  convert_in(set_default, &wanted, (char *)numbers);
  for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
    convert_in(modes[m], &got, (char *)numbers);
    assert_memory_equal(&got, &wanted, sizeof got);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rounding_f32_at_every_value_and_between),
      cmocka_unit_test(test_every_pattern_of_16_bits),
      cmocka_unit_test(test_operations_come_before_rounding),
      cmocka_unit_test(test_many_at_once_are_each_by_itself),
      cmocka_unit_test(test_no_mode_of_the_thread_has_a_say),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
