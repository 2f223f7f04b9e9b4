/*
 * Conversions of a tensor as a number: the kind in the low byte, the bits of its value in the upper
 * half; of blocks the xfer_block_scale in the second byte, columns and rows in the upper quarters;
 * of scales the tensor in the upper half; the rest 0. What a conversion does to an element is in
 * kernels/convert.h.
 */
#include "conversion.h"

#include <stdio.h>
#include <string.h>

#include "dtype.h"
#include "error.h"

#define KIND_MASK UINT64_C(0xff)
#define SCALE_SHIFT 8
#define SCALE_MASK UINT64_C(0xff)
#define VALUE_SHIFT 32
#define ROWS_SHIFT 48
#define SIZE_MASK UINT64_C(0xffff)

/* Of a value, which goes by its bits: a thread's mode may take small numbers for 0. */
#define SIGN UINT32_C(0x80000000)
#define INFINITE UINT32_C(0x7f800000)
#define NO_RECIPROCAL UINT32_C(0x00200000) /* 2^-128, the largest whose reciprocal is infinite */

/* By xfer_conversion_kind. */
static const struct {
  const char *name;
  bool has_value;
} kinds[] = {{"", false},   {"cast", false},   {"scale", true},
             {"add", true}, {"blocks", false}, {"scales", false}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* By xfer_block_scale. */
static const char *const scales[] = {"f32", "pow2", "ue8m0", "mx"};
enum { N_SCALES = sizeof scales / sizeof *scales };

xfer_conversion xfi_conversion_make(xfer_conversion_kind kind, float value)
{
  uint32_t bits;

  memcpy(&bits, &value, sizeof bits);
  return (uint64_t)kind | (uint64_t)bits << VALUE_SHIFT;
}

xfer_conversion_kind xfi_conversion_kind(xfer_conversion c)
{
  return (xfer_conversion_kind)(c & KIND_MASK);
}

static uint32_t value_bits(xfer_conversion c)
{
  return (uint32_t)(c >> VALUE_SHIFT);
}

float xfi_conversion_value(xfer_conversion c)
{
  const uint32_t bits = value_bits(c);
  float value;

  memcpy(&value, &bits, sizeof value);
  return value;
}

xfer_conversion xfi_conversion_of_blocks(uint32_t rows, uint32_t columns, uint32_t scale)
{
  return (uint64_t)XFER_CONVERSION_BLOCKS | (scale & SCALE_MASK) << SCALE_SHIFT |
         (columns & SIZE_MASK) << VALUE_SHIFT | (rows & SIZE_MASK) << ROWS_SHIFT;
}

xfer_conversion xfi_conversion_of_scales(size_t tensor)
{
  if (tensor > UINT32_MAX) return UINT64_MAX; /* no conversion: the plan will say so */
  return (uint64_t)XFER_CONVERSION_SCALES | (uint64_t)tensor << VALUE_SHIFT;
}

uint32_t xfi_conversion_rows(xfer_conversion c)
{
  return (uint32_t)(c >> ROWS_SHIFT & SIZE_MASK);
}

uint32_t xfi_conversion_columns(xfer_conversion c)
{
  return (uint32_t)(c >> VALUE_SHIFT & SIZE_MASK);
}

uint32_t xfi_conversion_scale(xfer_conversion c)
{
  return (uint32_t)(c >> SCALE_SHIFT & SCALE_MASK);
}

size_t xfi_conversion_tensor(xfer_conversion c)
{
  return (size_t)(c >> VALUE_SHIFT);
}

xfer_conversion xfi_conversion_settle(xfer_conversion given, const xfer_layout *src,
                                      const xfer_layout *dst)
{
  const xfer_conversion_kind kind = xfi_conversion_kind(given);

  if ((kind == XFER_CONVERSION_CAST || kind == XFER_CONVERSION_SCALES) && src->dtype == dst->dtype)
    return 0;
  return kind == XFER_CONVERSION_SCALES ? xfi_conversion_of_scales(0) : given;
}

static bool is_float(xfer_dtype dtype)
{
  return dtype == XFER_F32 || dtype == XFER_BF16 || dtype == XFER_F16;
}

static bool is_f8(xfer_dtype dtype)
{
  return dtype == XFER_F8E4M3 || dtype == XFER_F8E5M2;
}

static bool converts(xfer_conversion_kind kind, xfer_dtype from, xfer_dtype to)
{
  if (kind == XFER_CONVERSION_SCALES) return from == XFER_F32 && to == XFER_F8E8M0;
  if (kind == XFER_CONVERSION_BLOCKS) return is_float(from) && to == XFER_F8E4M3;
  return is_float(from) && (is_float(to) || is_f8(to));
}

bool xfi_conversion_is_known(xfer_conversion c)
{
  const xfer_conversion_kind kind = xfi_conversion_kind(c);

  if (kind == XFER_CONVERSION_BLOCKS)
    return c == xfi_conversion_of_blocks(xfi_conversion_rows(c), xfi_conversion_columns(c),
                                         xfi_conversion_scale(c)) &&
           xfi_conversion_rows(c) > 0 && xfi_conversion_columns(c) > 0 &&
           xfi_conversion_scale(c) < N_SCALES;
  if (kind == XFER_CONVERSION_SCALES)
    return c == xfi_conversion_of_scales(xfi_conversion_tensor(c));
  return (int)kind < N_KINDS &&
         c == xfi_conversion_make(kind, kinds[kind].has_value ? xfi_conversion_value(c) : 0);
}

xfer_status xfi_conversion_check(xfer_conversion c, const char *name)
{
  const xfer_conversion_kind kind = xfi_conversion_kind(c);
  const uint32_t bits = value_bits(c);

  XFI_CHECK(c != UINT64_MAX, XFER_ERR_ARG,
            "tensor \"%.100s\": the rows or columns of its conversion are not 1 to 65535, or its "
            "scale or "
            "the tensor that it names is none",
            name);
  XFI_CHECK(xfi_conversion_is_known(c), XFER_ERR_ARG,
            "tensor \"%.100s\": conversion %#llx is not known", name, (unsigned long long)c);
  if (!kinds[kind].has_value) return XFER_OK;
  XFI_CHECK(kind == XFER_CONVERSION_SCALE ? bits > NO_RECIPROCAL && bits < INFINITE
                                          : (bits & ~SIGN) < INFINITE,
            XFER_ERR_ARG, "tensor \"%.100s\": conversion \"%s\" by %g, which is to be finite%s",
            name, kinds[kind].name, (double)xfi_conversion_value(c),
            kind == XFER_CONVERSION_SCALE ? " and above 0, and its reciprocal finite" : "");
  return XFER_OK;
}

xfer_status xfi_conversion_fits(xfer_conversion c, const xfer_layout *src, const xfer_layout *dst,
                                const char *name)
{
  const char *from = xfi_dtype_name((int)src->dtype);
  const char *to = xfi_dtype_name((int)dst->dtype);

  if (c == 0)
    XFI_CHECK(
        src->dtype == dst->dtype, XFER_ERR_SHAPE,
        "tensor \"%.100s\": the source is %s, the destination %s, and no conversion is asked for",
        name, from, to);
  else
    XFI_CHECK(converts(xfi_conversion_kind(c), src->dtype, dst->dtype), XFER_ERR_SHAPE,
              "tensor \"%.100s\": there is no conversion from %s to %s", name, from, to);
  return XFER_OK;
}

void xfi_conversion_format(char *text, size_t n, xfer_conversion c)
{
  const xfer_conversion_kind kind = xfi_conversion_kind(c);

  if (kinds[kind].has_value)
    (void)snprintf(text, n, "%s %.9g", kinds[kind].name, (double)xfi_conversion_value(c));
  else if (kind == XFER_CONVERSION_BLOCKS)
    (void)snprintf(text, n, "%s %ux%u %s", kinds[kind].name, xfi_conversion_rows(c),
                   xfi_conversion_columns(c), scales[xfi_conversion_scale(c)]);
  else
    (void)snprintf(text, n, "%s", kinds[kind].name);
}
