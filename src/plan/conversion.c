/*
 * Conversions of a tensor: whether one is possible, and its text. What a conversion does to an
 * element is in kernels/convert.h.
 */
#include "conversion.h"

#include <stdio.h>
#include <string.h>

#include "dtype.h"
#include "error.h"

/* A value is judged by its bits: a thread's mode may take small numbers for 0. */
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

bool xfi_conversion_equal(const xfer_conversion *a, const xfer_conversion *b)
{
  /* The struct has no padding, and values that differ in bits are others: x + 0 and x + -0. */
  return memcmp(a, b, sizeof *a) == 0; /* NOLINT(*-suspicious-memory-comparison,cert-*) */
}

xfer_conversion xfi_conversion_settle(const xfer_conversion *given, const xfer_layout *src,
                                      const xfer_layout *dst)
{
  if ((given->kind == XFER_CONVERSION_CAST || given->kind == XFER_CONVERSION_SCALES) &&
      src->dtype == dst->dtype)
    return (xfer_conversion){0};
  return given->kind == XFER_CONVERSION_SCALES ? xfer_convert_scales_of(0) : *given;
}

static bool is_float(xfer_dtype dtype)
{
  return dtype == XFER_F32 || dtype == XFER_BF16 || dtype == XFER_F16;
}

static bool is_f8(xfer_dtype dtype)
{
  return dtype == XFER_F8E4M3 || dtype == XFER_F8E5M2;
}

static bool converts(int32_t kind, xfer_dtype from, xfer_dtype to)
{
  if (kind == XFER_CONVERSION_SCALES) return from == XFER_F32 && to == XFER_F8E8M0;
  if (kind == XFER_CONVERSION_BLOCKS) return is_float(from) && to == XFER_F8E4M3;
  return is_float(from) && (is_float(to) || is_f8(to));
}

/* Whether no field is set that the conversion's kind does not have. */
static bool has_only_its_fields(const xfer_conversion *c)
{
  xfer_conversion own = {.kind = c->kind};

  if (kinds[c->kind].has_value) own.value = c->value;
  if (c->kind == XFER_CONVERSION_SCALES) own.tensor = c->tensor;
  if (c->kind == XFER_CONVERSION_BLOCKS) {
    own.rows = c->rows;
    own.columns = c->columns;
    own.scale = c->scale;
  }
  return xfi_conversion_equal(&own, c);
}

static xfer_status check_value(const xfer_conversion *c, const char *name)
{
  const bool divides = c->kind == XFER_CONVERSION_SCALE;
  uint32_t bits;

  memcpy(&bits, &c->value, sizeof bits);
  XFI_CHECK(divides ? bits > NO_RECIPROCAL && bits < INFINITE : (bits & ~SIGN) < INFINITE,
            XFER_ERR_ARG, "tensor \"%.100s\": conversion \"%s\" by %g, which is to be finite%s",
            name, kinds[c->kind].name, (double)c->value,
            divides ? " and above 0, and its reciprocal finite" : "");
  return XFER_OK;
}

static xfer_status check_blocks(const xfer_conversion *c, const char *name)
{
  XFI_CHECK(c->rows > 0 && c->columns > 0 && c->rows <= UINT16_MAX && c->columns <= UINT16_MAX,
            XFER_ERR_ARG, "tensor \"%.100s\": blocks of %d rows and %d columns, not 1 to 65535",
            name, c->rows, c->columns);
  XFI_CHECK(c->scale >= 0 && c->scale < N_SCALES, XFER_ERR_ARG,
            "tensor \"%.100s\": scale %d of blocks is not known", name, c->scale);
  return XFER_OK;
}

xfer_status xfi_conversion_check(const xfer_conversion *c, const char *name)
{
  XFI_CHECK(c->kind >= 0 && c->kind < N_KINDS, XFER_ERR_ARG,
            "tensor \"%.100s\": conversion %d is not known", name, c->kind);
  XFI_CHECK(c->kind != XFER_CONVERSION_NONE || has_only_its_fields(c), XFER_ERR_ARG,
            "tensor \"%.100s\": a field of its conversion is set, and no kind", name);
  XFI_CHECK(has_only_its_fields(c), XFER_ERR_ARG,
            "tensor \"%.100s\": conversion \"%s\" with a field that it does not have", name,
            kinds[c->kind].name);
  if (kinds[c->kind].has_value) return check_value(c, name);
  return c->kind == XFER_CONVERSION_BLOCKS ? check_blocks(c, name) : XFER_OK;
}

xfer_status xfi_conversion_fits(const xfer_conversion *c, const xfer_layout *src,
                                const xfer_layout *dst, const char *name)
{
  const char *from = xfi_dtype_name((int)src->dtype);
  const char *to = xfi_dtype_name((int)dst->dtype);

  if (c->kind == XFER_CONVERSION_NONE)
    XFI_CHECK(
        src->dtype == dst->dtype, XFER_ERR_SHAPE,
        "tensor \"%.100s\": the source is %s, the destination %s, and no conversion is asked for",
        name, from, to);
  else
    XFI_CHECK(converts(c->kind, src->dtype, dst->dtype), XFER_ERR_SHAPE,
              "tensor \"%.100s\": there is no conversion from %s to %s", name, from, to);
  return XFER_OK;
}

void xfi_conversion_format(char *text, size_t n, const xfer_conversion *c)
{
  if (kinds[c->kind].has_value)
    (void)snprintf(text, n, "%s %.9g", kinds[c->kind].name, (double)c->value);
  else if (c->kind == XFER_CONVERSION_BLOCKS)
    (void)snprintf(text, n, "%s %dx%d %s", kinds[c->kind].name, c->rows, c->columns,
                   scales[c->scale]);
  else
    (void)snprintf(text, n, "%s", kinds[c->kind].name);
}
