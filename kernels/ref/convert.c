/*
 * Conversions of numbers in plain C. Every type goes through f32, which holds all values of the
 * smaller ones; rounding is done on the bits, so that no mode of the machine has a say in it.
 */
#include "convert.h"

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
  uint32_t sign;
  uint32_t rest;

  memcpy(&half, at, sizeof half);
  sign = (uint32_t)(half & 0x8000) << 16;
  rest = half & 0x7fff;
  if (rest > 0x7c00) return float_of(sign | XFI_F32_NAN);
  if (rest == 0x7c00) return float_of(sign | XFI_F32_INF);
  if (rest >= 0x0400) return float_of(sign | ((rest << 13) + (UINT32_C(112) << 23)));
  return float_of(sign | bits_of((float)rest * 0x1p-24f));
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
  uint32_t half;

  if (magnitude > XFI_F32_INF)
    half = 0x7e00;
  else if (magnitude >= UINT32_C(0x477ff000)) /* 65520 rounds to the first that is too large */
    half = 0x7c00;
  else if (magnitude >= UINT32_C(0x38800000)) /* 2^-14, the smallest normal one */
    half = round_off(magnitude - (UINT32_C(112) << 23), 13);
  else /* the sum's last bit counts 2^-24, the smallest denormal one */
    half = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
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
  uint32_t byte;

  if (magnitude > XFI_F32_INF) {
    byte = 0x7f;
  } else if (magnitude >= smallest) {
    byte = round_off(magnitude - bias_gap, 23 - fraction);
    if (byte > largest) byte = largest;
  } else { /* as for f16: the last bit of the sum counts as much as that of a denormal number */
    const uint32_t magic = (uint32_t)(exponent_min - fraction + 23 + 127) << 23;

    byte = bits_of(float_of(magnitude) + float_of(magic)) - magic;
  }
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
  return x != x ? x : x * value;
}

static inline float plus(float x, float value)
{
  return x != x ? x : x + value;
}

/* ---- blocks -------------------------------------------------------------------------------- */

/* The exponent of a power of two; a NaN stays one. */
static void to_exponents(char *dst, const char *src, int64_t n)
{
  for (int64_t i = 0; i < n; i++)
    *(uint8_t *)(dst + i) = (uint8_t)(bits_of(load_f32(src + 4 * i)) >> 23);
}

static void to_scales(char *dst, const char *src, int64_t n, uint32_t how)
{
  for (int64_t i = 0; i < n; i++) {
    const uint32_t scale = xfi_scale_of(bits_of(load_f32(src + 4 * i)), how);

    memcpy(dst + 4 * i, &scale, sizeof scale);
  }
}

/* NaNs have no sign there. */
static inline float quantised(float x)
{
  return x != x ? float_of(XFI_F32_NAN) : x;
}

#define BLOCK_LOOPS(from, from_bytes)                                                              \
  static void quantise_##from(char *dst, const char *src, int64_t n, float inverse)                \
  {                                                                                                \
    for (int64_t i = 0; i < n; i++)                                                                \
      store_f8e4m3(dst + i, quantised(load_##from(src + (from_bytes)*i) * inverse));               \
  }                                                                                                \
  static uint32_t amax_##from(const char *src, int64_t n)                                          \
  {                                                                                                \
    uint32_t most = 0;                                                                             \
                                                                                                   \
    for (int64_t i = 0; i < n; i++) {                                                              \
      const uint32_t magnitude = bits_of(load_##from(src + (from_bytes)*i)) & ~XFI_F32_SIGN;       \
                                                                                                   \
      if (magnitude > most) most = magnitude;                                                      \
    }                                                                                              \
    return most;                                                                                   \
  }

BLOCK_LOOPS(f32, 4)
BLOCK_LOOPS(bf16, 2)
BLOCK_LOOPS(f16, 2)

void xfi_ref_run_with_scale(char *dst, const char *src, int64_t n, const xfi_convert *convert,
                            float *scale)
{
  static const struct {
    void (*quantise)(char *dst, const char *src, int64_t n, float inverse);
    uint32_t (*amax)(const char *src, int64_t n);
  } loops[] = {{quantise_f32, amax_f32}, {quantise_bf16, amax_bf16}, {quantise_f16, amax_f16}};
  const uint32_t from = xfi_convert_type(convert->from);
  uint32_t most;
  uint32_t held;

  if (convert->op == XFI_CONVERT_BLOCKS) {
    loops[from].quantise(dst, src, n, 1 / *scale);
    return;
  }
  most = loops[from].amax(src, n);
  memcpy(&held, scale, sizeof held);
  if (most > held) memcpy(scale, &most, sizeof most);
}

/* ---- loops -------------------------------------------------------------------------------- */

typedef void loop_fn(char *dst, const char *src, int64_t n, const xfi_convert *convert);

/* A loop for each operation, so that none of them asks in it. */
#define LOOP(from, from_bytes, to, to_bytes)                                                       \
  static void from##_to_##to(char *dst, const char *src, int64_t n, const xfi_convert *convert)    \
  {                                                                                                \
    const float value = convert->value;                                                            \
                                                                                                   \
    if (convert->op == XFI_CONVERT_TIMES)                                                          \
      for (int64_t i = 0; i < n; i++)                                                              \
        store_##to(dst + (to_bytes)*i, times(load_##from(src + (from_bytes)*i), value));           \
    else if (convert->op == XFI_CONVERT_PLUS)                                                      \
      for (int64_t i = 0; i < n; i++)                                                              \
        store_##to(dst + (to_bytes)*i, plus(load_##from(src + (from_bytes)*i), value));            \
    else                                                                                           \
      for (int64_t i = 0; i < n; i++)                                                              \
        store_##to(dst + (to_bytes)*i, load_##from(src + (from_bytes)*i));                         \
  }

#define LOOPS(from, from_bytes)                                                                    \
  LOOP(from, from_bytes, bf16, 2)                                                                  \
  LOOP(from, from_bytes, f16, 2)                                                                   \
  LOOP(from, from_bytes, f8e4m3, 1)                                                                \
  LOOP(from, from_bytes, f8e5m2, 1)

LOOPS(f32, 4)
LOOPS(bf16, 2)
LOOPS(f16, 2)
LOOP(f32, 4, f32, 4)
LOOP(f16, 2, f32, 4)

/* To f32 nothing is rounded: without an operation the bits stay. */
static void bf16_to_f32(char *dst, const char *src, int64_t n, const xfi_convert *convert)
{
  for (int64_t i = 0; i < n; i++) {
    float x = load_bf16(src + 2 * i);

    if (convert->op == XFI_CONVERT_AS_IT_IS) {
      memcpy(dst + 4 * i, &x, sizeof x);
      continue;
    }
    x = convert->op == XFI_CONVERT_TIMES ? times(x, convert->value) : plus(x, convert->value);
    store_f32(dst + 4 * i, x);
  }
}

void xfi_ref_convert(char *dst, const char *src, int64_t n, const xfi_convert *convert)
{
#define ROW(from)                                                                                  \
  {                                                                                                \
    from##_to_f32, from##_to_bf16, from##_to_f16, from##_to_f8e4m3, from##_to_f8e5m2               \
  }
  static loop_fn *const loops[3][5] = {ROW(f32), ROW(bf16), ROW(f16)};
#undef ROW

  if (convert->to == XFER_F8E8M0)
    to_exponents(dst, src, n);
  else if (convert->op == XFI_CONVERT_TO_SCALE)
    to_scales(dst, src, n, convert->scale);
  else
    loops[xfi_convert_type(convert->from)][xfi_convert_type(convert->to)](dst, src, n, convert);
}
