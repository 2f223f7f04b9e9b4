/*
 * Strided copies whose elements change on the way: the tiles and the walk of rows.cu, with words of
 * as many elements as have 16 bytes in the larger of the two types, so that the loads or the stores
 * of a warp are as wide as they can be and neither has gaps. A loop is made for each pair of sizes;
 * which type of that size it is, is asked for each element, for which there is time enough: memory
 * is the limit. Numbers equal kernels/ref/convert.c bit for bit; NaNs, which the hardware's
 * conversions rid of their sign, are taken apart.
 */
#include "tiles.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace {

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int IN_FLIGHT = 4; /* words that a lane loads before it stores the first */
constexpr uint32_t SIGN = 0x80000000u;
constexpr uint32_t NAN_F32 = 0x7fc00000u;

/* ---- numbers, by the bytes of their type ---------------------------------------------------- */

template <int n_bytes> struct bits_of;
template <> struct bits_of<1> {
  using type = uint8_t;
};
template <> struct bits_of<2> {
  using type = uint16_t;
};
template <> struct bits_of<4> {
  using type = uint32_t;
};

__device__ __forceinline__ float load_number(uint32_t bits, uint32_t type)
{
  (void)type;
  return __uint_as_float(bits);
}

__device__ __forceinline__ float load_number(uint16_t bits, uint32_t type)
{
  if (type == XFER_BF16) return __uint_as_float((uint32_t)bits << 16);
  if ((bits & 0x7fff) > 0x7c00) return __uint_as_float((uint32_t)(bits & 0x8000) << 16 | NAN_F32);
  return __half2float(__ushort_as_half(bits));
}

__device__ __forceinline__ void round_number(float x, uint32_t type, uint32_t *bits)
{
  (void)type;
  *bits = __float_as_uint(x);
  if (x != x) *bits = (*bits & SIGN) | NAN_F32;
}

__device__ __forceinline__ void round_number(float x, uint32_t type, uint16_t *bits)
{
  const uint32_t sign = (__float_as_uint(x) & SIGN) >> 16;

  if (type == XFER_BF16)
    *bits = x != x ? (uint16_t)(sign | 0x7fc0) : __bfloat16_as_ushort(__float2bfloat16_rn(x));
  else
    *bits = x != x ? (uint16_t)(sign | 0x7e00) : __half_as_ushort(__float2half_rn(x));
}

__device__ __forceinline__ void round_number(float x, uint32_t type, uint8_t *bits)
{
  const uint32_t sign = (__float_as_uint(x) & SIGN) >> 24;
  uint8_t rounded;

  if (type == XFER_F8E4M3)
    rounded = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  else
    rounded = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
  *bits = x != x ? (uint8_t)(sign | 0x7f) : rounded;
}

template <typename From, typename To>
__device__ __forceinline__ To convert_number(From bits, const xfi_convert &c)
{
  const float x = load_number(bits, c.from);
  To to;

  if (sizeof(From) == 2 && sizeof(To) == 4 && c.op == XFI_CONVERT_AS_IT_IS) {
    to = (To)__float_as_uint(x); /* exact, and load_number() has seen to NaNs */
    return to;
  }
  float y = x;
  if (c.op == XFI_CONVERT_TIMES && x == x) y = __fmul_rn(x, c.value);
  if (c.op == XFI_CONVERT_PLUS && x == x) y = __fadd_rn(x, c.value);
  round_number(y, c.to, &to);
  return to;
}

/* ---- words of N numbers --------------------------------------------------------------------- */

template <int n_bytes> struct word_of;
template <> struct word_of<1> {
  using type = unsigned char;
};
template <> struct word_of<2> {
  using type = unsigned short;
};
template <> struct word_of<4> {
  using type = unsigned int;
};
template <> struct word_of<8> {
  using type = uint2;
};
template <> struct word_of<16> {
  using type = uint4;
};

template <typename Bits, int N> union word {
  typename word_of<N *(int)sizeof(Bits)>::type all;
  Bits at[N];
};

template <int N, int from_bytes, int to_bytes> struct loops {
  using from_bits = typename bits_of<from_bytes>::type;
  using to_bits = typename bits_of<to_bytes>::type;
  using from_word = word<from_bits, N>;
  using to_word = word<to_bits, N>;

  static __device__ __forceinline__ from_word load(const char *from)
  {
    from_word w;
    w.all = word_load<decltype(w.all)>(from);
    return w;
  }

  static __device__ __forceinline__ void store(char *to, const from_word &loaded,
                                               const xfi_convert &convert)
  {
    to_word w;
#pragma unroll
    for (int i = 0; i < N; i++)
      w.at[i] = convert_number<from_bits, to_bits>(loaded.at[i], convert);
    word_store(to, w.all);
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

    for (uint32_t first = threadIdx.x & 31; first < n_words; first += 32 * IN_FLIGHT) {
      from_word loaded[IN_FLIGHT];
      int64_t to[IN_FLIGHT];
#pragma unroll
      for (int u = 0; u < IN_FLIGHT; u++) {
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
      for (int u = 0; u < IN_FLIGHT; u++)
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

__global__ void __launch_bounds__(THREADS, 2)
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
  const int64_t useful = (job->n_tiles + WARPS - 1) / WARPS;
  const unsigned n_blocks = (unsigned)(useful < job->n_blocks ? useful : job->n_blocks);
  return launch(convert_kernel, n_blocks, THREADS, stream, "convert kernel", job->pieces,
                job->first_tile, job->n_pieces, job->n_tiles, job->go);
}
