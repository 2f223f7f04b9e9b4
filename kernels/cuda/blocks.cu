/*
 * Copies whose runs have scales: amaxes of blocks, and elements by the scale of their block. The
 * tiles and the walk of rows.cu, with words of as many elements as have 16 bytes in the source. A
 * run is a row of a block, so the lanes of a run that fit a warp settle its amax among them, and
 * whoever holds it goes on to the next row of the block before it tells the table. Scales equal
 * kernels/ref bit for bit whatever the order, since a maximum has none.
 */
#include "tiles.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace {

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int IN_FLIGHT = 4;
constexpr uint32_t ALL = 0xffffffffu;
constexpr uint32_t MAGNITUDE = 0x7fffffffu;

/* Where run `row` begins, and its scale. */
struct run_at {
  int64_t src;
  int64_t dst;
  uint32_t scale;
};

__device__ __forceinline__ run_at run_of(const xfi_cuda_piece &piece, uint32_t row)
{
  run_at at = {0, 0, 0};

  for (uint32_t d = 0; d < piece.n_dims; d++) {
    const uint32_t rest = d + 1 < piece.n_dims ? div_by(row, piece.by_extent[d]) : 0;
    const uint32_t x = row - rest * piece.extent[d];
    at.src += (int64_t)x * piece.src_stride[d];
    at.dst += (int64_t)x * piece.dst_stride[d];
    at.scale += x * piece.scale_stride[d];
    row = rest;
  }
  return at;
}

/* ---- words of N elements as f32 ------------------------------------------------------------- */

template <int n_bytes> __device__ __forceinline__ float number_of(uint32_t bits, uint32_t type)
{
  if (n_bytes == 4) return __uint_as_float(bits);
  if (type == XFER_BF16) return __uint_as_float(bits << 16);
  return __half2float(__ushort_as_half((unsigned short)bits));
}

template <int N, int n_bytes> struct numbers {
  float at[N];
};

template <int N, int n_bytes>
__device__ __forceinline__ numbers<N, n_bytes> load_numbers(const char *from, uint32_t type)
{
  numbers<N, n_bytes> x;

  if constexpr (N == 1 && n_bytes == 2) {
    x.at[0] = number_of<2>(word_load<uint16_t>(from), type);
  } else if constexpr (N == 1) {
    x.at[0] = word_load<float>(from);
  } else {
    const uint4 v = word_load<uint4>(from);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < N; i++) {
      const uint32_t held = words[i * n_bytes / 4] >> (8 * (i * n_bytes % 4));
      x.at[i] = number_of<n_bytes>(n_bytes == 2 ? held & 0xffff : held, type);
    }
  }
  return x;
}

/* ---- by the scale of a block ---------------------------------------------------------------- */

/* NaNs become 0x7f. */
template <int N, int n_bytes>
__device__ __forceinline__ void store_quantised(char *to, const numbers<N, n_bytes> &x,
                                                float inverse)
{
  if constexpr (N == 1) {
    word_store<uint8_t>(
        to, __nv_cvt_float_to_fp8(__fmul_rn(x.at[0], inverse), __NV_SATFINITE, __NV_E4M3));
  } else {
    uint32_t words[N / 4] = {};

#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const float2 pair = make_float2(__fmul_rn(x.at[i], inverse), __fmul_rn(x.at[i + 1], inverse));
      const uint32_t two = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
      words[i / 4] |= two << (8 * (i % 4));
    }
    if constexpr (N == 8)
      word_store<uint2>(to, make_uint2(words[0], words[1]));
    else
      word_store<uint32_t>(to, words[0]);
  }
}

template <int N, int n_bytes>
__device__ __forceinline__ void quantise(const xfi_cuda_piece &piece, const tile_at &tile)
{
  const uint32_t n_words = tile.rows * tile.cols;

  for (uint32_t first = threadIdx.x & 31; first < n_words; first += 32 * IN_FLIGHT) {
    numbers<N, n_bytes> loaded[IN_FLIGHT];
    float scale[IN_FLIGHT];
    int64_t to[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      const uint32_t i = first + 32 * u;
      if (i >= n_words) continue;
      const uint32_t row = div_by(i, piece.by_tile_cols);
      const int64_t col = tile.col + (i - row * tile.cols);
      const run_at run = run_of(piece, (uint32_t)tile.row + row);
      loaded[u] =
          load_numbers<N, n_bytes>(piece.src + run.src + col * (N * n_bytes), piece.convert.from);
      scale[u] = piece.scales[run.scale];
      to[u] = run.dst + col * N;
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++)
      if (first + 32 * u < n_words)
        store_quantised<N, n_bytes>(piece.dst + to[u], loaded[u], __frcp_rn(scale[u]));
  }
}

/* ---- amaxes --------------------------------------------------------------------------------- */

/* What a lane knows of one block. */
struct known {
  uint32_t scale;
  uint32_t amax;
};

__device__ __forceinline__ void tell(float *scales, const known &k)
{
  if (k.amax != 0) atomicMax(reinterpret_cast<unsigned *>(scales + k.scale), k.amax);
}

template <int N, int n_bytes>
__device__ __forceinline__ void find_amax(const xfi_cuda_piece &piece, const tile_at &tile)
{
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t n_words = tile.rows * tile.cols;
  /* Lanes of one run: a warp's worth of words are whole runs. */
  const uint32_t group =
      piece.run_words <= 32 && (piece.run_words & (piece.run_words - 1)) == 0 ? tile.cols : 1;
  known k = {0, 0};

  for (uint32_t first = 0; first < n_words; first += 32 * IN_FLIGHT) {
    uint32_t amax[IN_FLIGHT];
    uint32_t scale[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      const uint32_t i = first + 32 * u + lane;
      amax[u] = 0;
      scale[u] = k.scale;
      if (i >= n_words) continue;
      const uint32_t row = div_by(i, piece.by_tile_cols);
      const int64_t col = tile.col + (i - row * tile.cols);
      const run_at run = run_of(piece, (uint32_t)tile.row + row);
      const numbers<N, n_bytes> x =
          load_numbers<N, n_bytes>(piece.src + run.src + col * (N * n_bytes), piece.convert.from);
      scale[u] = run.scale;
#pragma unroll
      for (int e = 0; e < N; e++)
        amax[u] = max(amax[u], __float_as_uint(x.at[e]) & MAGNITUDE);
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      for (uint32_t apart = group / 2; apart > 0; apart /= 2)
        amax[u] = max(amax[u], __shfl_xor_sync(ALL, amax[u], apart));
      if (lane % group != 0) continue;
      if (scale[u] != k.scale) {
        tell(piece.scales, k);
        k = {scale[u], 0};
      }
      k.amax = max(k.amax, amax[u]);
    }
  }
  tell(piece.scales, k);
}

template <int N, int n_bytes>
__device__ __forceinline__ void do_tile(const xfi_cuda_piece &piece, const tile_at &tile)
{
  if (piece.convert.op == XFI_CONVERT_AMAX)
    find_amax<N, n_bytes>(piece, tile);
  else
    quantise<N, n_bytes>(piece, tile);
}

__global__ void __launch_bounds__(THREADS, 1)
    blocks_kernel(const xfi_cuda_piece *__restrict__ pieces, const int64_t *__restrict__ first_tile,
                  int64_t n_pieces, int64_t n_tiles, const uint64_t *go)
{
  if (go != NULL && *go == 0) return;
  const int64_t n_warps = (int64_t)gridDim.x * WARPS;
  int64_t at = 0;

  for (int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; t < n_tiles; t += n_warps) {
    at = piece_of(first_tile, n_pieces, at, t);
    const xfi_cuda_piece &piece = pieces[at];
    const tile_at tile = tile_of(piece, t - first_tile[at]);
    if (piece.convert.src_bytes == 4 && piece.word_log2 != 0)
      do_tile<4, 4>(piece, tile);
    else if (piece.convert.src_bytes == 4)
      do_tile<1, 4>(piece, tile);
    else if (piece.word_log2 != 0)
      do_tile<8, 2>(piece, tile);
    else
      do_tile<1, 2>(piece, tile);
  }
}

} // namespace

extern "C" xfer_status xfi_cuda_blocks_load(void)
{
  return load(blocks_kernel, "block kernel");
}

extern "C" xfer_status xfi_cuda_copy_blocks(const xfi_cuda_job *job, xfer_stream stream)
{
  if (job->n_tiles == 0) return XFER_OK;
  const unsigned n_blocks = blocks_for(job->n_tiles, WARPS, (job->n_blocks + 1) / 2);
  return launch(blocks_kernel, n_blocks, THREADS, stream, "block kernel", job->pieces,
                job->first_tile, job->n_pieces, job->n_tiles, job->go);
}
