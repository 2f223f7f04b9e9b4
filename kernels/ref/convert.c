/*
 * Conversions of numbers in plain C. Every type goes through f32, which holds all values of the
 * smaller ones; rounding is done on the bits, or by a sum in the default mode (float_mode.h), which
 * those who call have entered.
 *
 * Compilers make vectors of it: what one number becomes has no branches, all cases being computed
 * and one chosen; and loops go over blocks of a constant length, in three steps by way of f32.
 */
#include "convert.h"

#include <stdbool.h>
#include <string.h>

#include "block_scales.h"

static uint32_t bits_of(float x)
{
  uint32_t bits;

  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits)
{
  float x;

  memcpy(&x, &bits, sizeof x);
  return x;
}

/* ---- loading as f32 ----------------------------------------------------------------------- */

/* Both are computed, since a compiler that skipped one would need a branch, and vectors have none.
 */
static inline uint32_t choose(bool first, uint32_t a, uint32_t b)
{
  return b ^ ((a ^ b) & -(uint32_t)first);
}

static inline float load_f32(const char *at)
{
  float x;

  memcpy(&x, at, sizeof x);
  return x;
}

static inline float load_bf16(const char *at)
{
  uint16_t half;

  memcpy(&half, at, sizeof half);
  return float_of((uint32_t)half << 16);
}

static inline float load_f16(const char *at)
{
  uint16_t half;

  memcpy(&half, at, sizeof half);
  const uint32_t rest = half & 0x7fff;
  const uint32_t denormal = bits_of((float)(int32_t)rest * 0x1p-24F);
  const uint32_t normal = (rest << 13) + (UINT32_C(112) << 23);
  uint32_t bits = choose(rest >= 0x0400, normal, denormal);

  bits = choose(rest >= 0x7c00, XFI_F32_INF, bits);
  bits = choose(rest > 0x7c00, XFI_F32_NAN, bits);
  return float_of((uint32_t)(half & 0x8000) << 16 | bits);
}

/* ---- rounding from f32 -------------------------------------------------------------------- */

/* Drop `n` low bits of a magnitude, to nearest even. */
static inline uint32_t round_off(uint32_t magnitude, int n)
{
  return (magnitude + (UINT32_C(1) << (n - 1)) - 1 + ((magnitude >> n) & 1)) >> n;
}

static inline void store_f32(char *at, float x)
{
  const uint32_t bits = bits_of(x);
  const uint32_t kept =
      (bits & ~XFI_F32_SIGN) > XFI_F32_INF ? (bits & XFI_F32_SIGN) | XFI_F32_NAN : bits;

  memcpy(at, &kept, sizeof kept);
}

static inline void store_bf16(char *at, float x)
{
  const uint32_t bits = bits_of(x);
  const uint32_t rounded =
      round_off(bits, 16); /* a carry goes on into the exponent, as it should */
  const uint32_t nan = (bits & XFI_F32_SIGN) >> 16 | 0x7fc0;
  const uint16_t half = (uint16_t)((bits & ~XFI_F32_SIGN) > XFI_F32_INF ? nan : rounded);

  memcpy(at, &half, sizeof half);
}

static inline void store_f16(char *at, float x)
{
  const uint32_t bits = bits_of(x);
  const uint32_t magnitude = bits & ~XFI_F32_SIGN;
  const uint32_t normal = round_off(magnitude - (UINT32_C(112) << 23), 13);
  /* the sum's last bit counts 2^-24, the smallest denormal one */
  const uint32_t denormal = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
  uint32_t half = choose(magnitude >= UINT32_C(0x38800000), normal, denormal); /* 2^-14 on */

  /* 65520 rounds to the first that is too large */
  half = choose(magnitude >= UINT32_C(0x477ff000), 0x7c00, half);
  half = choose(magnitude > XFI_F32_INF, 0x7e00, half);
  half |= (bits & XFI_F32_SIGN) >> 16;
  memcpy(at, &(uint16_t){(uint16_t)half}, sizeof(uint16_t));
}

/* An f8 type by its bits of fraction, the exponent of its smallest normal number and its largest
 * number. */
static inline uint8_t round_f8(float x, int fraction, int exponent_min, uint32_t largest)
{
  const uint32_t bits = bits_of(x);
  const uint32_t magnitude = bits & ~XFI_F32_SIGN;
  const uint32_t bias_gap = (uint32_t)(exponent_min - 1 + 127) << 23;
  const uint32_t smallest = (uint32_t)(exponent_min + 127) << 23;
  /* as for f16: the last bit of the sum counts as much as that of a denormal number */
  const uint32_t magic = (uint32_t)(exponent_min - fraction + 23 + 127) << 23;
  const uint32_t denormal = bits_of(float_of(magnitude) + float_of(magic)) - magic;
  uint32_t byte = round_off(magnitude - bias_gap, 23 - fraction);

  byte = byte > largest ? largest : byte;
  byte = choose(magnitude >= smallest, byte, denormal);
  byte = choose(magnitude > XFI_F32_INF, 0x7f, byte);
  return (uint8_t)(byte | (bits >> 24 & 0x80));
}

static inline void store_f8e4m3(char *at, float x)
{
  *(uint8_t *)at = round_f8(x, 3, -6, 0x7e);
}

static inline void store_f8e5m2(char *at, float x)
{
  *(uint8_t *)at = round_f8(x, 2, -14, 0x7b);
}

/* ---- operations: a NaN stays the one it is --------------------------------------------------- */

static inline float times(float x, float value)
{
  return float_of(choose(x != x, bits_of(x), bits_of(x * value)));
}

static inline float plus(float x, float value)
{
  return float_of(choose(x != x, bits_of(x), bits_of(x + value)));
}

/* Here NaNs have no sign. */
static inline float quantised(float x, float inverse)
{
  const float product = x * inverse;

  return product != product ? float_of(XFI_F32_NAN) : product;
}

/* ---- loops -------------------------------------------------------------------------------- */

#define N_AT_ONCE INT64_C(128)
/* Inlined into a function for one target, so that it uses that target's vectors. */
#define INLINED static inline __attribute__((always_inline))
#define FOR_EACH(i, n) for (int64_t i = 0; i < (n); i++)

INLINED void load(float *restrict x, const char *restrict src, int64_t n, uint8_t from)
{
  if (from == XFER_BF16)
    FOR_EACH(i, n) x[i] = load_bf16(src + 2 * i);
  else if (from == XFER_F16)
    FOR_EACH(i, n) x[i] = load_f16(src + 2 * i);
  else
    FOR_EACH(i, n) x[i] = load_f32(src + 4 * i);
}

INLINED void operate(float *x, int64_t n, uint32_t op, float value)
{
  if (op == XFI_CONVERT_TIMES)
    FOR_EACH(i, n) x[i] = times(x[i], value);
  else if (op == XFI_CONVERT_PLUS)
    FOR_EACH(i, n) x[i] = plus(x[i], value);
  else if (op == XFI_CONVERT_BLOCKS)
    FOR_EACH(i, n) x[i] = quantised(x[i], value);
}

INLINED void store(char *restrict dst, const char *restrict src, int64_t n, uint8_t to)
{
  if (to == XFER_BF16)
    FOR_EACH(i, n) store_bf16(dst + 2 * i, load_f32(src + 4 * i));
  else if (to == XFER_F16)
    FOR_EACH(i, n) store_f16(dst + 2 * i, load_f32(src + 4 * i));
  else if (to == XFER_F8E4M3)
    FOR_EACH(i, n) store_f8e4m3(dst + i, load_f32(src + 4 * i));
  else if (to == XFER_F8E5M2)
    FOR_EACH(i, n) store_f8e5m2(dst + i, load_f32(src + 4 * i));
  else
    FOR_EACH(i, n) store_f32(dst + 4 * i, load_f32(src + 4 * i));
}

/* The largest magnitude. Bits of numbers without a sign have the order of the numbers. */
INLINED int32_t most_of(const float *x, int64_t n, int32_t most)
{
  FOR_EACH(i, n)
  {
    const int32_t magnitude = (int32_t)(bits_of(x[i]) & ~XFI_F32_SIGN);

    most = magnitude > most ? magnitude : most;
  }
  return most;
}

/* Up to N_AT_ONCE numbers. */
INLINED void convert_some(char *restrict dst, const char *restrict src, int64_t n,
                          const xfi_convert *c, float value)
{
  const bool as_it_is = c->op == XFI_CONVERT_AS_IT_IS;
  float x[N_AT_ONCE];

  if (as_it_is && c->from == XFER_F32) {
    store(dst, src, n, c->to);
  } else if (as_it_is && c->from == XFER_BF16 && c->to == XFER_F32) {
    FOR_EACH(i, n) memcpy(dst + 4 * i, &(float){load_bf16(src + 2 * i)}, sizeof *x);
  } else {
    load(x, src, n, c->from);
    operate(x, n, c->op, value);
    store(dst, (const char *)x, n, c->to);
  }
}

static void convert_rest(char *dst, const char *src, int64_t n, const xfi_convert *c, float value)
{
  if (n >= 4) {
    convert_some(dst, src, n, c, value);
    return;
  }
  for (; n > 0; n--) { /* what has no loop needs no buffer */
    convert_some(dst, src, 1, c, value);
    dst += c->dst_bytes;
    src += c->src_bytes;
  }
}

INLINED void convert_all(char *dst, const char *src, int64_t n, const xfi_convert *c, float value)
{
  for (; n >= N_AT_ONCE; n -= N_AT_ONCE) {
    convert_some(dst, src, N_AT_ONCE, c, value);
    dst += N_AT_ONCE * c->dst_bytes;
    src += N_AT_ONCE * c->src_bytes;
  }
  convert_rest(dst, src, n, c, value);
}

INLINED int32_t most_of_all(const char *src, int64_t n, const xfi_convert *c, int32_t most)
{
  float x[N_AT_ONCE];

  for (; n >= N_AT_ONCE; n -= N_AT_ONCE) {
    load(x, src, N_AT_ONCE, c->from);
    most = most_of(x, N_AT_ONCE, most);
    src += N_AT_ONCE * c->src_bytes;
  }
  load(x, src, n, c->from);
  return most_of(x, n, most);
}

/* Makes these functions once for each kind of vectors. */
#define FOR_TARGET(name, attribute)                                                                \
  attribute static void convert_##name(char *restrict dst, const char *restrict src, int64_t n,    \
                                       const xfi_convert *c, float value)                          \
  {                                                                                                \
    convert_all(dst, src, n, c, value);                                                            \
  }                                                                                                \
  attribute static int32_t most_##name(const char *src, int64_t n, const xfi_convert *c,           \
                                       int32_t most)                                               \
  {                                                                                                \
    return most_of_all(src, n, c, most);                                                           \
  }

FOR_TARGET(plain, )
#ifdef __x86_64__
FOR_TARGET(avx2, __attribute__((target("avx2"))))
#define CHOOSE(what) (__builtin_cpu_supports("avx2") ? what##_avx2 : what##_plain)
#else
#define CHOOSE(what) what##_plain
#endif

/* The exponent of a power of two; a NaN stays one. */
static void to_exponents(char *dst, const char *src, int64_t n)
{
  FOR_EACH(i, n) dst[i] = (char)(bits_of(load_f32(src + 4 * i)) >> 23);
}

static void to_scales(char *dst, const char *src, int64_t n, uint32_t how)
{
  FOR_EACH(i, n)
  {
    const uint32_t scale = xfi_scale_of(bits_of(load_f32(src + 4 * i)), how);

    memcpy(dst + 4 * i, &scale, sizeof scale);
  }
}

void xfi_ref_run_with_scale(char *dst, const char *src, int64_t n, const xfi_convert *convert,
                            float *scale)
{
  int32_t most;

  if (convert->op == XFI_CONVERT_BLOCKS) {
    CHOOSE(convert)(dst, src, n, convert, 1 / *scale);
    return;
  }
  memcpy(&most, scale, sizeof most);
  most = CHOOSE(most)(src, n, convert, most);
  memcpy(scale, &most, sizeof most);
}

void xfi_ref_convert(char *dst, const char *src, int64_t n, const xfi_convert *convert)
{
  if (convert->to == XFER_F8E8M0)
    to_exponents(dst, src, n);
  else if (convert->op == XFI_CONVERT_TO_SCALE)
    to_scales(dst, src, n, convert->scale);
  else
    CHOOSE(convert)(dst, src, n, convert, convert->value);
}
