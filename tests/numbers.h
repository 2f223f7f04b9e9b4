/*
 * What a number becomes in another type, by looking it up: all values of a type are known by its
 * definition, the nearest one is found by halving, and of two as near it is the one whose last bit
 * is 0. Shares nothing with kernels/ref/convert.c.
 */
#ifndef NUMBERS_H
#define NUMBERS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <xfer/xfer.h>

/* A float type. */
typedef struct number_type {
  xfer_dtype dtype;
  int n_bytes;
  int fraction; /* bits */
  int exponent; /* bits */
  bool saturates;
  uint32_t nan;
  uint32_t largest; /* finite */
} number_type;

static const number_type number_types[] = {
    {XFER_F32, 4, 23, 8, false, 0x7fc00000, 0x7f7fffff},
    {XFER_BF16, 2, 7, 8, false, 0x7fc0, 0x7f7f},
    {XFER_F16, 2, 10, 5, false, 0x7e00, 0x7bff},
    {XFER_F8E4M3, 1, 3, 4, true, 0x7f, 0x7e},
    {XFER_F8E5M2, 1, 2, 5, true, 0x7f, 0x7b},
};
enum { N_NUMBER_TYPES = sizeof number_types / sizeof *number_types };

static inline const number_type *number_type_of(xfer_dtype dtype)
{
  for (int i = 0; i < N_NUMBER_TYPES; i++)
    if (number_types[i].dtype == dtype) return &number_types[i];
  return NULL;
}

/* A finite magnitude, or the one that would follow the largest. */
static inline double number_magnitude(const number_type *t, uint32_t bits)
{
  const int bias = (1 << (t->exponent - 1)) - 1;
  const int exponent = (int)(bits >> t->fraction);
  const double fraction = (double)(bits & ((1U << t->fraction) - 1)) / (double)(1U << t->fraction);

  return exponent == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, exponent - bias);
}

static inline double number_value(const number_type *t, uint32_t bits)
{
  const uint32_t sign = 1U << (8 * t->n_bytes - 1);
  const uint32_t magnitude = bits & (sign - 1);
  double x = NAN;

  if (magnitude <= t->largest) x = number_magnitude(t, magnitude);
  if (magnitude == t->largest + 1 && (!t->saturates || t->dtype == XFER_F8E5M2)) x = HUGE_VAL;
  return copysign(x, (bits & sign) != 0 ? -1 : 1);
}

static inline uint32_t number_nearest(const number_type *t, double x)
{
  const uint32_t sign = signbit(x) ? 1U << (8 * t->n_bytes - 1) : 0;
  const double magnitude = fabs(x);
  uint32_t lo = 0;
  uint32_t hi = t->largest + 1; /* half way to it is too large */

  if (isnan(x)) return sign | t->nan;
  if (magnitude >= number_magnitude(t, hi)) return sign | (t->saturates ? t->largest : hi);
  while (hi - lo > 1) {
    const uint32_t mid = lo + (hi - lo) / 2;

    if (number_magnitude(t, mid) <= magnitude)
      lo = mid;
    else
      hi = mid;
  }
  const double below = magnitude - number_magnitude(t, lo);
  const double above = number_magnitude(t, hi) - magnitude;
  if (below > above || (below == above && lo % 2 == 1)) lo = hi;
  return sign | (t->saturates && lo > t->largest ? t->largest : lo);
}

static inline float float_of(uint32_t bits)
{
  float x;

  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline uint32_t bits_of(float x)
{
  uint32_t bits;

  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* What a conversion makes of a number: x * times + plus, one of which changes nothing, in f32; or,
 * where `times` is 0, a cast. */
static inline uint32_t number_converted(xfer_dtype from, xfer_dtype to, uint32_t bits, float times,
                                        float plus)
{
  const double x = number_value(number_type_of(from), bits);
  volatile float y = (float)x;

  if (from == XFER_BF16 && to == XFER_F32 && times == 0) return bits << 16;
  if (isnan(x)) return number_nearest(number_type_of(to), x);
  if (times != 0) y = y * times;
  if (plus != 0) y = y + plus;
  if (to == XFER_F32) return bits_of(y);
  return number_nearest(number_type_of(to), (double)y);
}

#endif
