/*
 * Lines of short runs, which are adjacent on one side. A warp makes an image of a part of a line in
 * shared memory, so that this side, which may be a peer's memory, is written or read in whole words
 * of 16 bytes. The other side is accessed in words of which a run has a whole number, each by an Op
 * (words.cuh).
 */
#ifndef XFI_CUDA_LINES_CUH
#define XFI_CUDA_LINES_CUH

#include "words.cuh"

static constexpr uint32_t IMAGE_BYTES = 2048; /* of a warp */

/* A line, or a part of one. */
struct line {
  const char *src;
  char *dst;
  uint32_t n_runs;
};

/* Calls call(line) for each line of a tile, or for the part of one that the tile is. */
template <typename Do>
static __device__ __forceinline__ void each_line(const xfi_cuda_piece &piece, int64_t index,
                                                 Do call)
{
  uint32_t row = (uint32_t)index * piece.lines.tile_runs;
  uint32_t n_runs = piece.extent[0];
  uint32_t end = min(row + piece.lines.tile_runs, piece.lines.n_runs);

  if (piece.lines.tiles_per_line > 1) {
    const uint32_t number = (uint32_t)(index / piece.lines.tiles_per_line);
    const uint32_t first =
        (uint32_t)(index - number * piece.lines.tiles_per_line) * piece.lines.tile_runs;
    row = number * piece.extent[0] + first;
    n_runs = min(piece.lines.tile_runs, piece.extent[0] - first);
    end = row + n_runs;
  }
#pragma unroll 1
  for (; row < end; row += n_runs) {
    const run_at run = run_of(piece, row);
    call(line{piece.src + run.src, piece.dst + run.dst, n_runs});
  }
}

/* Copies at most IMAGE_BYTES between memory and an image, whose addresses are equal modulo 16. */
static __device__ __forceinline__ void copy_whole(char *dst, const char *src, uint32_t n_bytes)
{
  constexpr int WORDS = IMAGE_BYTES / (32 * 16);
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t head = min((0 - (uint32_t)(uintptr_t)src) & 15, n_bytes);
  const uint32_t n_words = (n_bytes - head) / 16;
  const uint32_t tail = head + n_words * 16 + lane;
  word<16> words[WORDS];

#pragma unroll
  for (int u = 0; u < WORDS; u++) {
    const uint32_t i = 32 * u + lane;
    if (i < n_words) words[u] = load_word<16>(src + head + i * 16);
  }
  if (lane < head) dst[lane] = src[lane];
  if (tail < n_bytes) dst[tail] = src[tail];
#pragma unroll
  for (int u = 0; u < WORDS; u++) {
    const uint32_t i = 32 * u + lane;
    if (i < n_words) store_word(dst + head + i * 16, words[u]);
  }
}

/* The addresses of a lane's words of a line whose runs are `stride` bytes apart: its own one of the
 * 32 words from `first` on, and each 32nd word after that. */
template <uint32_t word_bytes> struct word_walk {
  __device__ __forceinline__ word_walk(const xfi_cuda_piece &piece, int64_t stride, uint32_t first)
      : run(piece.lines.run_words), gap(stride - (int64_t)(run * word_bytes))
  {
    const uint32_t word = first + (threadIdx.x & 31);
    const uint32_t step_rows = div_by(32, piece.lines.by_run_words);
    const uint32_t row = div_by(word, piece.lines.by_run_words);

    step_cols = 32 - step_rows * run;
    step = step_rows * stride + step_cols * (int64_t)word_bytes;
    col = word - row * run;
    at = row * stride + col * (int64_t)word_bytes;
  }
  __device__ __forceinline__ int64_t next()
  {
    const int64_t now = at;

    at += step;
    col += step_cols;
    if (col >= run) {
      col -= run;
      at += gap;
    }
    return now;
  }

  uint32_t run;
  uint32_t step_cols;
  uint32_t col;
  int64_t gap;
  int64_t step;
  int64_t at;
};

/* Copies n words of the line, from word `first` on, to their image. */
template <typename Op>
static __device__ __forceinline__ void gather(const Op &op, char *image,
                                              const xfi_cuda_piece &piece, const char *src,
                                              uint32_t first, uint32_t n)
{
  constexpr int IN_FLIGHT = 8;
  word_walk<Op::SRC_BYTES> walk(piece, piece.src_stride[0], first);

#pragma unroll 1
  for (uint32_t begin = threadIdx.x & 31; begin < n; begin += 32 * IN_FLIGHT) {
    typename Op::loaded words[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      const int64_t at = walk.next();
      if (begin + 32 * u < n) words[u] = op.load(src + at, {});
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      const uint32_t i = begin + 32 * u;
      if (i < n) op.store(image + i * Op::DST_BYTES, words[u]);
    }
  }
}

/* Copies them from their image. */
template <typename Op>
static __device__ __forceinline__ void scatter(const Op &op, const xfi_cuda_piece &piece, char *dst,
                                               const char *image, uint32_t first, uint32_t n)
{
  word_walk<Op::DST_BYTES> walk(piece, piece.dst_stride[0], first);

#pragma unroll 8
  for (uint32_t i = threadIdx.x & 31; i < n; i += 32)
    op.store(dst + walk.next(), op.load(image + i * Op::SRC_BYTES, {}));
}

/* Copies a line by its image, which lies in memory as the side whose runs are adjacent. */
template <typename Op, bool dst_is_dense>
static __device__ __forceinline__ void copy_by_image(const Op &op, const xfi_cuda_piece &piece,
                                                     const line &of, char *image)
{
  constexpr uint32_t WORD_BYTES = dst_is_dense ? Op::DST_BYTES : Op::SRC_BYTES;
  const uint32_t n_bytes = of.n_runs * piece.lines.run_words * WORD_BYTES;
  const char *const dense = dst_is_dense ? of.dst : of.src;
  uint32_t n = 0;

#pragma unroll 1
  for (uint32_t first = 0; first < n_bytes; first += n) {
    const uint32_t skew = (uint32_t)(uintptr_t)(dense + first) & 15;
    const uint32_t word = first / WORD_BYTES;

    n = min(IMAGE_BYTES - skew, n_bytes - first);
    if constexpr (dst_is_dense) {
      gather(op, image + skew, piece, of.src, word, n / WORD_BYTES);
      __syncwarp();
      copy_whole(of.dst + first, image + skew, n);
    } else {
      copy_whole(image + skew, of.src + first, n);
      __syncwarp();
      scatter(op, piece, of.dst, image + skew, word, n / WORD_BYTES);
    }
    __syncwarp();
  }
}

template <typename Op>
static __device__ __forceinline__ void copy_lines(const xfi_cuda_piece &piece, int64_t index,
                                                  char *image)
{
  const Op op(piece, tile_at{});

  if (piece.dst_stride[0] == (int64_t)piece.lines.run_words * Op::DST_BYTES)
    each_line(piece, index, [&](const line &of) { copy_by_image<Op, true>(op, piece, of, image); });
  else
    each_line(piece, index,
              [&](const line &of) { copy_by_image<Op, false>(op, piece, of, image); });
}

#endif
