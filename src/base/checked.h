/* Arithmetic that says when it does not fit. For every product or sum that a caller can influence.
 */
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

#endif
