/* Arithmetic that says when it does not fit, for every product or sum that a caller can influence;
 * and divisions that several rooms need. */
#ifndef XFI_CHECKED_H
#define XFI_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each returns whether the result fits. *out is meaningful only then. */

static inline bool xfi_mul_fits(size_t a, size_t b, size_t *out)
{
  return !__builtin_mul_overflow(a, b, out);
}

static inline bool xfi_add_fits(size_t a, size_t b, size_t *out)
{
  return !__builtin_add_overflow(a, b, out);
}

static inline bool xfi_imul_fits(int64_t a, int64_t b, int64_t *out)
{
  return !__builtin_mul_overflow(a, b, out);
}

static inline bool xfi_iadd_fits(int64_t a, int64_t b, int64_t *out)
{
  return !__builtin_add_overflow(a, b, out);
}

/* ceil(a / b) for a >= 0, b >= 1 */
static inline int64_t xfi_ceil_div(int64_t a, int64_t b)
{
  return a / b + (a % b != 0);
}

/* The greatest common divisor of numbers from 0 on. */
static inline int64_t xfi_gcd(int64_t a, int64_t b)
{
  while (b != 0) {
    const int64_t rest = a % b;

    a = b;
    b = rest;
  }
  return a;
}

#endif
