/* Numbers: how words hold them, as f32, and what conversions make of one. */
#ifndef XFI_CUDA_NUMBERS_CUH
#define XFI_CUDA_NUMBERS_CUH

#include "block_scales.h"
#include "tiles.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

/* The size of an element of an xfer_dtype. */
static constexpr __host__ __device__ int bytes_of(int type)
{
  return type == XFER_F32 ? 4 : type == XFER_BF16 || type == XFER_F16 ? 2 : 1;
}

/* ---- numbers of a word ---------------------------------------------------------------------- */

/* The bits of number i. */
template <int n_bytes, typename Word>
static __device__ __forceinline__ uint32_t number_at(const Word &w, int i)
{
  const uint32_t held = w.at[i * n_bytes / 4] >> (8 * (i * n_bytes % 4));

  return n_bytes == 2 ? held & 0xffff : held;
}

template <int n_bytes, typename Word>
static __device__ __forceinline__ void put_number(Word &w, int i, uint32_t bits)
{
  const uint32_t shift = 8 * (i * n_bytes % 4);
  const uint32_t mask = n_bytes == 4 ? 0 : ~(((1u << (8 * n_bytes % 32)) - 1) << shift);

  w.at[i * n_bytes / 4] = (w.at[i * n_bytes / 4] & mask) | bits << shift;
}

/* The number of these bits; NaNs of f16 keep their sign. */
template <int n_bytes>
static __device__ __forceinline__ float load_number(uint32_t bits, uint32_t type)
{
  if (n_bytes == 4) return __uint_as_float(bits);
  if (type == XFER_BF16) return __uint_as_float(bits << 16);
  if ((bits & 0x7fff) > 0x7c00) return __uint_as_float((bits & 0x8000) << 16 | XFI_F32_NAN);
  return __half2float(__ushort_as_half((unsigned short)bits));
}

/* Numbers i, which is even, and i + 1. NaNs stay NaNs. */
template <int type, typename Word>
static __device__ __forceinline__ float2 numbers_at(const Word &w, int i)
{
  if constexpr (type == XFER_F32) {
    return make_float2(__uint_as_float(w.at[i]), __uint_as_float(w.at[i + 1]));
  } else if constexpr (type == XFER_BF16) {
    return make_float2(__uint_as_float(w.at[i / 2] << 16),
                       __uint_as_float(w.at[i / 2] & 0xffff0000u));
  } else {
    const uint32_t two = w.at[i / 2];
    return make_float2(__half2float(__ushort_as_half((unsigned short)two)),
                       __half2float(__ushort_as_half((unsigned short)(two >> 16))));
  }
}

/* ---- conversion of one, whose bits are in the low end of a register -------------------------- */

template <int n_bytes>
static __device__ __forceinline__ uint32_t round_number(float x, uint32_t type)
{
  if (n_bytes == 4) return __float_as_uint(x);
  if (n_bytes == 2 && type == XFER_BF16) return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  if (n_bytes == 2) return __half_as_ushort(__float2half_rn(x));
  if (type == XFER_F8E4M3) return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
}

template <int n_bytes> static __device__ __forceinline__ uint32_t nan_number(float x, uint32_t type)
{
  const uint32_t sign = (__float_as_uint(x) & XFI_F32_SIGN) >> (32 - 8 * n_bytes);

  if (n_bytes == 4) return sign | XFI_F32_NAN;
  if (n_bytes == 2) return sign | (type == XFER_BF16 ? 0x7fc0 : 0x7e00);
  return sign | 0x7f;
}

template <int from_bytes, int to_bytes>
static __device__ __forceinline__ uint32_t convert_number(uint32_t bits, const xfi_convert &c)
{
  if (from_bytes == 4 && to_bytes == 4 && c.op == XFI_CONVERT_TO_SCALE)
    return xfi_scale_of(bits, c.scale);
  if (from_bytes == 4 && to_bytes == 1 && c.to == XFER_F8E8M0) return bits >> 23 & 0xff;
  float x = load_number<from_bytes>(bits, c.from);

  if (from_bytes == 2 && to_bytes == 4 && c.op == XFI_CONVERT_AS_IT_IS) return __float_as_uint(x);
  if (x != x) return nan_number<to_bytes>(x, c.to);
  if (c.op == XFI_CONVERT_TIMES) x = __fmul_rn(x, c.value);
  if (c.op == XFI_CONVERT_PLUS) x = __fadd_rn(x, c.value);
  return round_number<to_bytes>(x, c.to);
}

/* Scale by the block's scale and convert to f8e4m3; NaNs become 0x7f. */
template <int from_bytes>
static __device__ __forceinline__ uint32_t quantise_number(uint32_t bits, uint32_t type,
                                                           float scale)
{
  const float x = __fmul_rn(load_number<from_bytes>(bits, type), __frcp_rn(scale));

  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

#endif
