/*
 * Strided copies whose elements change on the way: the tiles and the walk of rows.cu, with words of
 * as many elements as have 16 bytes in the larger of the two types, so that the loads or the stores
 * of a warp are as wide as they can be and neither has gaps. A loop is made for each pair of sizes;
 * which type of that size it is, is asked for each element, for which there is time enough: memory
 * is the limit. Numbers equal kernels/ref/convert.c bit for bit; NaNs, which the hardware's
 * conversions rid of their sign, are taken apart.
 */
#include "tiles.cuh"

#include "block_scales.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace {

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
/* Words that a lane loads before it stores the first: twice those of rows.cu, on half as many
 * lanes, since each needs more registers. */
constexpr int IN_FLIGHT = 8;
constexpr int IN_FLIGHT_OF_RUNS = 4;
constexpr uint32_t SIGN = 0x80000000u;
constexpr uint32_t NAN_F32 = 0x7fc00000u;

/* ---- numbers: bits in the low end of a register --------------------------------------------- */

template <int n_bytes> __device__ __forceinline__ float load_number(uint32_t bits, uint32_t type)
{
  if (n_bytes == 4) return __uint_as_float(bits);
  if (type == XFER_BF16) return __uint_as_float(bits << 16);
  if ((bits & 0x7fff) > 0x7c00) return __uint_as_float((bits & 0x8000) << 16 | NAN_F32);
  return __half2float(__ushort_as_half((unsigned short)bits));
}

/* Not of a NaN. */
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
  const uint32_t sign = (__float_as_uint(x) & SIGN) >> (32 - 8 * n_bytes);

  if (n_bytes == 4) return sign | NAN_F32;
  if (n_bytes == 2) return sign | (type == XFER_BF16 ? 0x7fc0 : 0x7e00);
  return sign | 0x7f;
}

/* From an amax to its scale. */
__device__ __forceinline__ uint32_t scale_number(uint32_t amax, uint32_t how)
{
  const float eps = xfi_block_eps(how);

  if (amax >= XFI_BLOCKS_INF) return xfi_scale_of_none(amax, how);
  return xfi_scale_of(__float_as_uint(__fdiv_rn(fmaxf(__uint_as_float(amax), eps), 448)), how);
}

template <int from_bytes, int to_bytes>
__device__ __forceinline__ uint32_t convert_number(uint32_t bits, const xfi_convert &c)
{
  if (from_bytes == 4 && to_bytes == 4 && c.op == XFI_CONVERT_TO_SCALE)
    return scale_number(bits, c.scale);
  if (from_bytes == 4 && to_bytes == 1 && c.to == XFER_F8E8M0) return bits >> 23 & 0xff;
  float x = load_number<from_bytes>(bits, c.from);

  if (from_bytes == 2 && to_bytes == 4 && c.op == XFI_CONVERT_AS_IT_IS) return __float_as_uint(x);
  if (x != x) return nan_number<to_bytes>(x, c.to);
  if (c.op == XFI_CONVERT_TIMES) x = __fmul_rn(x, c.value);
  if (c.op == XFI_CONVERT_PLUS) x = __fadd_rn(x, c.value);
  return round_number<to_bytes>(x, c.to);
}

/* ---- words of N numbers --------------------------------------------------------------------- */

/* A word in registers. */
template <int n_bytes> struct word {
  uint32_t at[n_bytes < 4 ? 1 : n_bytes / 4];
};

template <int n_bytes> __device__ __forceinline__ word<n_bytes> load_word(const char *from)
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

template <int n_bytes> __device__ __forceinline__ void store_word(char *to, const word<n_bytes> &w)
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

template <int N, int from_bytes, int to_bytes>
__device__ __forceinline__ word<N * to_bytes> convert_word(const word<N * from_bytes> &from,
                                                           const xfi_convert &c)
{
  word<N *to_bytes> to = {};

#pragma unroll
  for (int i = 0; i < N; i++) {
    const uint32_t held = from.at[i * from_bytes / 4] >> (8 * (i * from_bytes % 4));
    const uint32_t bits = from_bytes == 2 ? held & 0xffff : held;
    to.at[i * to_bytes / 4] |= convert_number<from_bytes, to_bytes>(bits, c)
                               << (8 * (i * to_bytes % 4));
  }
  return to;
}

template <int N, int from_bytes, int to_bytes> struct loops {
  using from_word = word<N * from_bytes>;

  static __device__ __forceinline__ from_word load(const char *from)
  {
    return load_word<N * from_bytes>(from);
  }

  static __device__ __forceinline__ void store(char *to, const from_word &loaded,
                                               const xfi_convert &convert)
  {
    store_word<N * to_bytes>(to, convert_word<N, from_bytes, to_bytes>(loaded, convert));
  }

  /* Part of one run. */
  static __device__ __forceinline__ void part(const char *src, char *dst, uint32_t n_words,
                                              const xfi_convert &convert)
  {
    for (uint32_t first = threadIdx.x & 31; first < n_words; first += 32 * IN_FLIGHT) {
      from_word loaded[IN_FLIGHT];
#pragma unroll
      for (int u = 0; u < IN_FLIGHT; u++) {
        const uint32_t i = first + 32 * u;
        if (i < n_words) loaded[u] = load(src + i * (uint32_t)(N * from_bytes));
      }
#pragma unroll
      for (int u = 0; u < IN_FLIGHT; u++) {
        const uint32_t i = first + 32 * u;
        if (i < n_words) store(dst + i * (uint32_t)(N * to_bytes), loaded[u], convert);
      }
    }
  }

  /* Several runs. */
  static __device__ __forceinline__ void runs(const xfi_cuda_piece &piece, const tile_at &tile,
                                              const xfi_convert &convert)
  {
    const uint32_t n_words = tile.rows * tile.cols;

    for (uint32_t first = threadIdx.x & 31; first < n_words; first += 32 * IN_FLIGHT_OF_RUNS) {
      from_word loaded[IN_FLIGHT_OF_RUNS];
      int64_t to[IN_FLIGHT_OF_RUNS];
#pragma unroll
      for (int u = 0; u < IN_FLIGHT_OF_RUNS; u++) {
        const uint32_t i = first + 32 * u;
        if (i >= n_words) continue;
        const uint32_t row = div_by(i, piece.by_tile_cols);
        const uint32_t col = i - row * tile.cols;
        int64_t from;
        row_offsets(piece, (uint32_t)tile.row + row, &from, &to[u]);
        to[u] += col * (uint32_t)(N * to_bytes);
        loaded[u] = load(piece.src + from + col * (uint32_t)(N * from_bytes));
      }
#pragma unroll
      for (int u = 0; u < IN_FLIGHT_OF_RUNS; u++)
        if (first + 32 * u < n_words) store(piece.dst + to[u], loaded[u], convert);
    }
  }

  static __device__ __forceinline__ void tile(const xfi_cuda_piece &piece, const tile_at &t)
  {
    const xfi_convert convert = piece.convert;
    int64_t from;
    int64_t to;

    if (t.rows > 1) {
      runs(piece, t, convert);
      return;
    }
    row_offsets(piece, (uint32_t)t.row, &from, &to);
    part(piece.src + from + t.col * (N * from_bytes), piece.dst + to + t.col * (N * to_bytes),
         t.cols, convert);
  }
};

template <int from_bytes, int to_bytes>
__device__ __forceinline__ void convert_words(const xfi_cuda_piece &piece, const tile_at &tile)
{
  constexpr int n = 16 / (from_bytes > to_bytes ? from_bytes : to_bytes); /* as in compile.c */

  if (piece.word_log2 == 0)
    loops<1, from_bytes, to_bytes>::tile(piece, tile);
  else
    loops<n, from_bytes, to_bytes>::tile(piece, tile);
}

template <int from_bytes>
__device__ __forceinline__ void convert_from(const xfi_cuda_piece &piece, const tile_at &tile)
{
  switch (piece.convert.dst_bytes) {
  case 1:
    convert_words<from_bytes, 1>(piece, tile);
    break;
  case 2:
    convert_words<from_bytes, 2>(piece, tile);
    break;
  default:
    convert_words<from_bytes, 4>(piece, tile);
    break;
  }
}

__global__ void __launch_bounds__(THREADS, 1)
    convert_kernel(const xfi_cuda_piece *__restrict__ pieces,
                   const int64_t *__restrict__ first_tile, int64_t n_pieces, int64_t n_tiles,
                   const uint64_t *go)
{
  if (go != NULL && *go == 0) return;
  const int64_t n_warps = (int64_t)gridDim.x * WARPS;
  int64_t at = 0;

  for (int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; t < n_tiles; t += n_warps) {
    at = piece_of(first_tile, n_pieces, at, t);
    const xfi_cuda_piece &piece = pieces[at];
    const tile_at tile = tile_of(piece, t - first_tile[at]);
    if (piece.convert.src_bytes == 4)
      convert_from<4>(piece, tile);
    else
      convert_from<2>(piece, tile);
  }
}

} // namespace

extern "C" xfer_status xfi_cuda_converts_load(void)
{
  return load(convert_kernel, "convert kernel");
}

extern "C" xfer_status xfi_cuda_copy_converts(const xfi_cuda_job *job, xfer_stream stream)
{
  if (job->n_tiles == 0) return XFER_OK;
  /* One of these has a multiprocessor to itself. */
  const unsigned n_blocks = blocks_for(job->n_tiles, WARPS, (job->n_blocks + 1) / 2);
  return launch(convert_kernel, n_blocks, THREADS, stream, "convert kernel", job->pieces,
                job->first_tile, job->n_pieces, job->n_tiles, job->go);
}
