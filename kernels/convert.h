/*
 * Elements that change on the way: what one number becomes, and loops over many. ref/convert.c is
 * the definition; kernels/cuda/convert.cu must equal it bit for bit.
 */
#ifndef XFI_CONVERT_H
#define XFI_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "xfer/xfer.h"

/* Bits of an f32. */
#define XFI_F32_SIGN UINT32_C(0x80000000)
#define XFI_F32_INF UINT32_C(0x7f800000)
#define XFI_F32_NAN UINT32_C(0x7fc00000)

/* What happens to a number, as f32, before it is rounded to the destination's type. */
typedef enum xfi_convert_op {
  XFI_CONVERT_AS_IT_IS = 0,
  XFI_CONVERT_TIMES = 1,
  XFI_CONVERT_PLUS = 2,
  /* Quantisation by blocks (block_scales.h): */
  XFI_CONVERT_BLOCKS = 3,  /* times 1 / the scale of its run */
  XFI_CONVERT_AMAX = 4,    /* finds a block's largest magnitude; writes no elements */
  XFI_CONVERT_TO_SCALE = 5 /* makes a block's scale of its largest magnitude, both f32 */
} xfi_convert_op;

/* One conversion: from f32, bf16 or f16 to these or to f8e4m3 or f8e5m2; and from f32, of a power
 * of two, to f8e8m0. */
typedef struct xfi_convert {
  uint8_t from;      /* xfer_dtype */
  uint8_t to;        /* xfer_dtype */
  uint8_t src_bytes; /* of an element */
  uint8_t dst_bytes;
  uint32_t op;    /* xfi_convert_op */
  float value;    /* TIMES, PLUS: the other operand */
  uint32_t scale; /* TO_SCALE: xfer_block_scale */
} xfi_convert;

static inline bool xfi_convert_has_scales(const xfi_convert *convert)
{
  return convert->op == XFI_CONVERT_BLOCKS || convert->op == XFI_CONVERT_AMAX;
}

/* The index of an element type in tables of loops and of kernels. */
static inline uint32_t xfi_convert_type(uint8_t type)
{
  static const uint8_t order[] = {XFER_F32, XFER_BF16, XFER_F16, XFER_F8E4M3, XFER_F8E5M2};
  uint32_t place = 0;

  while (place < 4 && order[place] != type)
    place++;
  return place;
}

/*
 * n elements, one after the other on both sides, which need not be aligned. Rounding is to nearest
 * even; denormals count. What is too large becomes infinite in f32, bf16 and f16, and the largest
 * number in f8 (saturation), infinities too. A NaN becomes the quiet NaN of its sign: 0x7fc00000,
 * 0x7fc0, 0x7e00, 0x7f; bf16 to f32 as it is keeps its bits.
 */
void xfi_ref_convert(char *dst, const char *src, int64_t n, const xfi_convert *convert);

/* A run of a copy by blocks, with the run's scale. */
void xfi_ref_run_with_scale(char *dst, const char *src, int64_t n, const xfi_convert *convert,
                            float *scale);

#endif
