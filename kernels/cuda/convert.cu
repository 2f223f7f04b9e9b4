/*
 * Strided copies whose elements change on the way, by words of as many elements as have 16 bytes in
 * the larger of the two types, so that the loads or the stores of a warp are as wide as they can be
 * and neither has gaps. A loop is made for each pair of types: asked for each element, types cost
 * half the rate. Numbers equal kernels/ref/convert.c bit for bit; NaNs, which the hardware's
 * conversions rid of their sign, are put right afterwards.
 */
#include "numbers.cuh"
#include "words.cuh"

#include "block_scales.h"

namespace {

/* ---- one number: bits in the low end of a register ------------------------------------------ */

template <int n_bytes> __device__ __forceinline__ uint32_t round_number(float x, uint32_t type)
{
  if (n_bytes == 4) return __float_as_uint(x);
  if (n_bytes == 2 && type == XFER_BF16) return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  if (n_bytes == 2) return __half_as_ushort(__float2half_rn(x));
  if (type == XFER_F8E4M3) return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
}

template <int n_bytes> __device__ __forceinline__ uint32_t nan_number(float x, uint32_t type)
{
  const uint32_t sign = (__float_as_uint(x) & XFI_F32_SIGN) >> (32 - 8 * n_bytes);

  if (n_bytes == 4) return sign | XFI_F32_NAN;
  if (n_bytes == 2) return sign | (type == XFER_BF16 ? 0x7fc0 : 0x7e00);
  return sign | 0x7f;
}

template <int from_bytes, int to_bytes>
__device__ __forceinline__ uint32_t convert_number(uint32_t bits, const xfi_convert &c)
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

/* Words of N, number by number: what is not aligned, and scales. */
template <int N, int from_bytes, int to_bytes> struct each_number : no_end {
  using loaded = word<N * from_bytes>;
  static constexpr int IN_FLIGHT = 4;
  static constexpr int SRC_BYTES = N * from_bytes;
  static constexpr int DST_BYTES = N * to_bytes;

  __device__ __forceinline__ each_number(const xfi_cuda_piece &piece, const tile_at &)
      : convert(piece.convert)
  {
  }
  __device__ __forceinline__ loaded load(const char *from, uint32_t) const
  {
    return load_word<SRC_BYTES>(from);
  }
  __device__ __forceinline__ void store(char *to, const loaded &w) const
  {
    word<DST_BYTES> made = {};

#pragma unroll
    for (int i = 0; i < N; i++) {
      const uint32_t bits = number_at<from_bytes>(w, i);
      put_number<to_bytes>(made, i, convert_number<from_bytes, to_bytes>(bits, convert));
    }
    store_word(to, made);
  }

  const xfi_convert &convert;
};

/* ---- words of one pair of types ------------------------------------------------------------- */

/* Two numbers, the first in the low half of what they take. */
template <int type> __device__ __forceinline__ uint32_t round_two(float x, float y)
{
  if constexpr (type == XFER_BF16) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
    return __bfloat16_as_ushort(two.x) | (uint32_t)__bfloat16_as_ushort(two.y) << 16;
  } else if constexpr (type == XFER_F16) {
    const __half2 two = __floats2half2_rn(x, y);
    return __half_as_ushort(two.x) | (uint32_t)__half_as_ushort(two.y) << 16;
  } else {
    return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE,
                                    type == XFER_F8E4M3 ? __NV_E4M3 : __NV_E5M2);
  }
}

template <int from, int to> struct all_numbers : no_end {
  static constexpr int FROM_BYTES = bytes_of(from);
  static constexpr int TO_BYTES = bytes_of(to);
  static constexpr int N = 16 / (FROM_BYTES > TO_BYTES ? FROM_BYTES : TO_BYTES); /* as compile.c */
  using loaded = word<N * FROM_BYTES>;
  static constexpr int IN_FLIGHT = 8;
  static constexpr int SRC_BYTES = N * FROM_BYTES;
  static constexpr int DST_BYTES = N * TO_BYTES;

  __device__ __forceinline__ all_numbers(const xfi_cuda_piece &piece, const tile_at &)
      : times(piece.convert.op == XFI_CONVERT_TIMES ? piece.convert.value : 1.0F),
        plus(piece.convert.op == XFI_CONVERT_PLUS ? piece.convert.value : -0.0F), /* x - 0 is x */
        keeps_nans(from == XFER_BF16 && to == XFER_F32 && piece.convert.op == XFI_CONVERT_AS_IT_IS)
  {
  }
  __device__ __forceinline__ loaded load(const char *at, uint32_t) const
  {
    return load_word<SRC_BYTES>(at);
  }
  __device__ __forceinline__ void store(char *at, const loaded &w) const
  {
    word<DST_BYTES> made = {};
    bool has_nan = false;

#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const float2 two = numbers_at<from>(w, i);
      const float x = __fadd_rn(__fmul_rn(two.x, times), plus);
      const float y = __fadd_rn(__fmul_rn(two.y, times), plus);
      has_nan |= two.x != two.x || two.y != two.y;
      if constexpr (to == XFER_F32) {
        made.at[i] = __float_as_uint(x);
        made.at[i + 1] = __float_as_uint(y);
      } else {
        made.at[i * TO_BYTES / 4] |= round_two<to>(x, y) << (8 * (i * TO_BYTES % 4));
      }
    }
    if (has_nan) put_nans(made, w);
    store_word(at, made);
  }

private:
  __device__ __forceinline__ void put_nans(word<DST_BYTES> &made, const loaded &w) const
  {
#pragma unroll
    for (int i = 0; i < N; i++) {
      const float x = load_number<FROM_BYTES>(number_at<FROM_BYTES>(w, i), from);
      const uint32_t nan = keeps_nans ? __float_as_uint(x) : nan_number<TO_BYTES>(x, to);
      if (x != x) put_number<TO_BYTES>(made, i, nan);
    }
  }

  float times;
  float plus;
  bool keeps_nans;
};

/* ---- kernels -------------------------------------------------------------------------------- */

struct one_by_one {
  template <int from_bytes>
  static __device__ __forceinline__ void by_destination(const xfi_cuda_piece &piece,
                                                        const tile_at &tile)
  {
    if (piece.convert.dst_bytes == 1)
      do_tile<each_number<1, from_bytes, 1>>(piece, tile);
    else if (piece.convert.dst_bytes == 2)
      do_tile<each_number<1, from_bytes, 2>>(piece, tile);
    else
      do_tile<each_number<1, from_bytes, 4>>(piece, tile);
  }

  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, const tile_at &tile) const
  {
    if (piece.word_log2 != 0 && piece.convert.dst_bytes == 4)
      do_tile<each_number<4, 4, 4>>(piece, tile);
    else if (piece.word_log2 != 0)
      do_tile<each_number<4, 4, 1>>(piece, tile);
    else if (piece.convert.src_bytes == 4)
      by_destination<4>(piece, tile);
    else
      by_destination<2>(piece, tile);
  }
};

template <int from, int to> constexpr kind_fn pair = kind_kernel<only<all_numbers<from, to>>>;

#define FROM(type)                                                                                 \
  pair<type, XFER_F32>, pair<type, XFER_BF16>, pair<type, XFER_F16>, pair<type, XFER_F8E4M3>,      \
      pair<type, XFER_F8E5M2>

const kind_fn kernels[XFI_CUDA_N_CONVERTS] = {FROM(XFER_F32), FROM(XFER_BF16), FROM(XFER_F16),
                                              kind_kernel<one_by_one>};

} // namespace

extern "C" xfer_status xfi_cuda_converts_load(void)
{
  return load_kinds(kernels, "convert kernel");
}

extern "C" xfer_status xfi_cuda_copy_converts(const xfi_cuda_job *job, xfer_stream stream)
{
  return launch_kinds(kernels, job, "convert kernel", stream);
}
