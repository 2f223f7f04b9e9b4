/* Words of numbers in registers, and numbers as f32. */
#ifndef XFI_CUDA_NUMBERS_CUH
#define XFI_CUDA_NUMBERS_CUH

#include "tiles.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

/* Of an xfer_dtype. */
static constexpr __host__ __device__ int bytes_of(int type)
{
  return type == XFER_F32 ? 4 : type == XFER_BF16 || type == XFER_F16 ? 2 : 1;
}

/* ---- words ---------------------------------------------------------------------------------- */

template <int n_bytes> struct word {
  uint32_t at[n_bytes < 4 ? 1 : n_bytes / 4];
};

template <int n_bytes> static __device__ __forceinline__ word<n_bytes> load_word(const char *from)
{
  word<n_bytes> w;

  if constexpr (n_bytes == 1) {
    w.at[0] = word_load<uint8_t>(from);
  } else if constexpr (n_bytes == 2) {
    w.at[0] = word_load<uint16_t>(from);
  } else if constexpr (n_bytes == 4) {
    w.at[0] = word_load<uint32_t>(from);
  } else if constexpr (n_bytes == 8) {
    const uint2 v = word_load<uint2>(from);
    w.at[0] = v.x;
    w.at[1] = v.y;
  } else {
    const uint4 v = word_load<uint4>(from);
    w.at[0] = v.x;
    w.at[1] = v.y;
    w.at[2] = v.z;
    w.at[3] = v.w;
  }
  return w;
}

template <int n_bytes>
static __device__ __forceinline__ void store_word(char *to, const word<n_bytes> &w)
{
  if constexpr (n_bytes == 1)
    word_store<uint8_t>(to, (uint8_t)w.at[0]);
  else if constexpr (n_bytes == 2)
    word_store<uint16_t>(to, (uint16_t)w.at[0]);
  else if constexpr (n_bytes == 4)
    word_store<uint32_t>(to, w.at[0]);
  else if constexpr (n_bytes == 8)
    word_store<uint2>(to, make_uint2(w.at[0], w.at[1]));
  else
    word_store<uint4>(to, make_uint4(w.at[0], w.at[1], w.at[2], w.at[3]));
}

/* The bytes of a word that begin `shift` bytes into the two. */
static __device__ __forceinline__ word<8> bytes_at(const word<8> &low, const word<8> &high,
                                                   uint32_t shift)
{
  const bool by_one = (shift & 4) != 0;
  const uint32_t bits = (shift & 3) * 8;
  const uint32_t middle = by_one ? high.at[0] : low.at[1];

  return {{__funnelshift_r(by_one ? low.at[1] : low.at[0], middle, bits),
           __funnelshift_r(middle, by_one ? high.at[1] : high.at[0], bits)}};
}

static __device__ __forceinline__ word<16> bytes_at(const word<16> &low, const word<16> &high,
                                                    uint32_t shift)
{
  const uint4 v = bytes_at(make_uint4(low.at[0], low.at[1], low.at[2], low.at[3]),
                           make_uint4(high.at[0], high.at[1], high.at[2], high.at[3]), shift);

  return {{v.x, v.y, v.z, v.w}};
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

#endif
