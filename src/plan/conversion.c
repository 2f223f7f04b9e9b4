/*
 * Conversions of a tensor as a number: the kind in the low byte, the bits of its value in the upper
 * half, the rest 0. What a conversion does to an element is in kernels/convert.h.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dtype.h"
#include "error.h"
#include "plan.h"

#define KIND_MASK UINT64_C(0xff)
#define VALUE_SHIFT 32

/* By xfi_kind. */
static const struct {
  const char *name;
  bool has_value;
} kinds[] = {{"", false}, {"cast", false}, {"scale", true}, {"add", true}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

xfer_conversion xfi_conversion_make(xfi_kind kind, float value)
{
  uint32_t bits;

  memcpy(&bits, &value, sizeof bits);
  return (uint64_t)kind | (uint64_t)bits << VALUE_SHIFT;
}

xfi_kind xfi_conversion_kind(xfer_conversion c)
{
  return (xfi_kind)(c & KIND_MASK);
}

float xfi_conversion_value(xfer_conversion c)
{
  const uint32_t bits = (uint32_t)(c >> VALUE_SHIFT);
  float value;

  memcpy(&value, &bits, sizeof value);
  return value;
}

xfer_conversion xfi_conversion_settle(xfer_conversion given, const xfer_layout *src,
                                      const xfer_layout *dst)
{
  return xfi_conversion_kind(given) == XFI_KIND_CAST && src->dtype == dst->dtype ? 0 : given;
}

static bool is_float(xfer_dtype dtype)
{
  return dtype == XFER_F32 || dtype == XFER_BF16 || dtype == XFER_F16;
}

static bool is_f8(xfer_dtype dtype)
{
  return dtype == XFER_F8E4M3 || dtype == XFER_F8E5M2;
}

xfer_status xfi_conversion_check(xfer_conversion c, const char *name)
{
  const xfi_kind kind = xfi_conversion_kind(c);
  const float value = xfi_conversion_value(c);
  xfer_status st = XFER_OK;

  XFI_CHECK(
      (int)kind < N_KINDS && c == xfi_conversion_make(kind, kinds[kind].has_value ? value : 0),
      XFER_ERR_ARG, "tensor \"%s\": conversion %#llx is not known", name, (unsigned long long)c);
  XFI_CHECK(isfinite(value) && (kind != XFI_KIND_SCALE || (value > 0 && isfinite(1 / value))),
            XFER_ERR_ARG, "tensor \"%s\": conversion \"%s\" by %g", name, kinds[kind].name,
            (double)value);
done:
  return st;
}

xfer_status xfi_conversion_fits(xfer_conversion c, const xfer_layout *src, const xfer_layout *dst,
                                const char *name)
{
  const char *from = xfi_dtype_name((int)src->dtype);
  const char *to = xfi_dtype_name((int)dst->dtype);
  xfer_status st = XFER_OK;

  if (c == 0)
    XFI_CHECK(src->dtype == dst->dtype, XFER_ERR_SHAPE,
              "tensor \"%s\": the source is %s, the destination %s, and no conversion is asked for",
              name, from, to);
  else
    XFI_CHECK(is_float(src->dtype) && (is_float(dst->dtype) || is_f8(dst->dtype)), XFER_ERR_SHAPE,
              "tensor \"%s\": there is no conversion from %s to %s", name, from, to);
done:
  return st;
}

void xfi_conversion_format(char *text, size_t n, xfer_conversion c)
{
  const xfi_kind kind = xfi_conversion_kind(c);

  if (kinds[kind].has_value)
    (void)snprintf(text, n, "%s %.9g", kinds[kind].name, (double)xfi_conversion_value(c));
  else
    (void)snprintf(text, n, "%s", kinds[kind].name);
}
