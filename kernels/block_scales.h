/*
 * Block quantisation: an element becomes x * (1 / s) in f8e4m3, where s is the scale of its block.
 * A block's scale comes from its amax, the largest magnitude in it, so each scale is a place in a
 * table that holds first the one and then the other:
 *
 *   XFI_CONVERT_AMAX      table = max(table, |x| of a run)   bits of a magnitude, 0 at first
 *   XFI_CONVERT_TO_SCALE  table = scale of it
 *   XFI_CONVERT_BLOCKS    dst = x * (1 / table)
 *
 * A maximum does not ask who adds what, so blocks may lie in parts, and on several ranks.
 *
 * The scales, amax being at least `eps`, with 448 the largest f8e4m3:
 *
 *   F32     amax / 448                   eps 1e-4
 *   POW2    2^ceil(log2(amax / 448))     eps 1e-4
 *   UE8M0   the power of two not below amax / 448, up to 2^127 (so of NaNs too), eps 1e-4
 *   MX      as POW2, from 2^-127 to 2^127, eps 2^-126
 *
 * F32 and POW2 are per_block_cast_to_fp8() of vLLM 0.33 (vllm/utils/deep_gemm.py); F32 and UE8M0
 * the function of that name, and per_token_cast_to_fp8() for rows of 1, of DeepGEMM
 * (deep_gemm/utils/math.py); MX is _mxfp8_e4m3_quantize_torch() of vLLM
 * (quantization/utils/mxfp8_utils.py). Of POW2 and MX log2 is rounded to f32 before ceil, as
 * torch's is, which makes a power of two of what is up to 22 ulps above it; of a bf16 amax that
 * cannot be. Where amax is a NaN or infinite, so is the scale of F32 and POW2: elements become
 * NaNs, or 0 if finite beside an infinity. NaNs are 0x7f, as on a GPU; torch on a CPU keeps some
 * signs of them.
 */
#ifndef XFI_BLOCK_SCALES_H
#define XFI_BLOCK_SCALES_H

#include <stdint.h>
#include <string.h>

#include "convert.h"

#ifdef __CUDACC__
#define XFI_BLOCKS_INLINE static __host__ __device__ __forceinline__
#else
#define XFI_BLOCKS_INLINE static inline
#endif

/* Below, numbers are positive and go by their bits, since a compiler may not make of 2^-127 what it
 * likes. */

/* ceil(log2(x)) of a positive, finite number's bits, with log2 rounded to f32: for x = 2^k (1 + n
 * ulp) that is k where n is at most half the distance from k to the next number, times ln 2. */
XFI_BLOCKS_INLINE int xfi_ceil_log2(uint32_t bits)
{
  int k = (int)(bits >> 23) - 127;
  uint32_t n = bits & 0x7fffff;
  int from_0;
  uint32_t slack = 22;

  if (k == -127) { /* denormal: n * 2^-149 */
    k = -126;
    while ((n & 0x800000) == 0) {
      n <<= 1;
      k--;
    }
    n &= 0x7fffff;
  }
  from_0 = k < 0 ? -k - 1 : k; /* the numbers between k and k + 1 begin so far from 0 */
  for (int at_least = 64; from_0 < at_least; at_least /= 2)
    slack /= 2;
  return n > slack ? k + 1 : k;
}

/* 2^k from 2^-127 on; above 2^127 infinite. */
XFI_BLOCKS_INLINE uint32_t xfi_bits_of_power(int k)
{
  if (k > 127) return XFI_F32_INF;
  return k < -126 ? UINT32_C(0x400000) : (uint32_t)(k + 127) << 23;
}

/* What an amax that is no number, or infinite, comes to. */
XFI_BLOCKS_INLINE uint32_t xfi_scale_of_none(uint32_t amax_bits, uint32_t how)
{
  if (how == XFER_SCALE_UE8M0) return xfi_bits_of_power(127);
  if (amax_bits > XFI_F32_INF) return XFI_F32_NAN;
  return how == XFER_SCALE_MX ? xfi_bits_of_power(127) : XFI_F32_INF;
}

/* The scale of an amax, both by their bits. */
XFI_BLOCKS_INLINE uint32_t xfi_scale_of(uint32_t amax, uint32_t how)
{
  const float eps = how == XFER_SCALE_MX ? 0x1p-126F : 1e-4F;
  float x;

  if (amax >= XFI_F32_INF) return xfi_scale_of_none(amax, how);
  memcpy(&x, &amax, sizeof x);
  x = (x < eps ? eps : x) / 448;
  memcpy(&amax, &x, sizeof x);
  if (how == XFER_SCALE_F32) return amax;
  if (how == XFER_SCALE_UE8M0) return (amax + 0x7fffff) & XFI_F32_INF;
  return xfi_bits_of_power(xfi_ceil_log2(amax));
}

#endif
