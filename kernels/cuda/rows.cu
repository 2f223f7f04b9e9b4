/*
 * The batched N-D strided copy. Long runs go in words of 16 bytes wherever they begin, all else in
 * the widest words that fit.
 */
#include "words.cuh"

namespace {

/* Words stay as they are, or are zeros. */
template <int n_bytes> struct copy_words : no_end {
  using loaded = held<n_bytes>;
  static constexpr int IN_FLIGHT = XFI_CUDA_WARP_WORDS / 32;
  static constexpr int SRC_BYTES = n_bytes;
  static constexpr int DST_BYTES = n_bytes;

  __device__ __forceinline__ copy_words(const xfi_cuda_piece &piece, const tile_at &)
      : zeros(piece.src == NULL)
  {
  }
  __device__ __forceinline__ loaded load(const char *from, const word_at &) const
  {
    return zeros ? loaded{} : *reinterpret_cast<const loaded *>(from);
  }
  __device__ __forceinline__ void store(char *to, const loaded &w) const
  {
    *reinterpret_cast<loaded *>(to) = w;
  }

  bool zeros;
};

/* That of the next lane; the last lane's is the first's of `after`, the words that follow. */
__device__ __forceinline__ word<16> next_word(const word<16> &words, const word<16> &after)
{
  const uint32_t lane = threadIdx.x & 31;
  const word<16> mine = lane == 0 ? after : words;
  word<16> next;

#pragma unroll
  for (int i = 0; i < 4; i++)
    next.at[i] = __shfl_sync(0xffffffffu, mine.at[i], (lane + 1) & 31);
  return next;
}

/* Is it a part of one run, of more words than a warp has in flight, and these narrow? */
__device__ __forceinline__ bool is_shifted(const xfi_cuda_piece &piece, const tile_at &tile)
{
  return tile.rows == 1 && tile.cols > XFI_CUDA_WARP_WORDS && piece.word_log2 < 4 &&
         piece.src != NULL;
}

/* Such a part: each aligned word of dst is put together from two aligned ones of src, none of which
 * reaches beyond the part; up to 31 bytes at either end go one by one. All lanes call it at once.
 */
__device__ __forceinline__ void copy_shifted(const xfi_cuda_piece &piece, const tile_at &tile)
{
  constexpr int IN_FLIGHT = copy_words<16>::IN_FLIGHT;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t n_bytes = tile.cols << piece.word_log2;
  const int64_t in_row = tile.col << piece.word_log2;
  const run_at run = run_of(piece, (uint32_t)tile.row);
  const char *const src = piece.src + run.src + in_row;
  char *const dst = piece.dst + run.dst + in_row;
  uint32_t head = (0 - (uint32_t)(uintptr_t)dst) & 15;
  const uint32_t shift = (uint32_t)(uintptr_t)(src + head) & 15;
  if (head < shift) head += 16; /* the word of src begins before the part */
  const char *const from = src + (head - shift);
  const uint32_t n_loads = (n_bytes - (head - shift)) / 16;
  const uint32_t n_words = shift == 0 ? n_loads : n_loads - 1;
  const uint32_t tail = head + 16 * n_words;

  if (lane < head) dst[lane] = src[lane];
  if (tail + lane < n_bytes) dst[tail + lane] = src[tail + lane];
#pragma unroll 1
  for (uint32_t first = 0; first < n_words; first += 32 * IN_FLIGHT) {
    word<16> words[IN_FLIGHT + 1]; /* of the last, one lane's */
#pragma unroll
    for (int u = 0; u <= IN_FLIGHT; u++) {
      const uint32_t i = first + 32 * u + lane;
      words[u] = word<16>{};
      if (i < n_loads && (u < IN_FLIGHT || lane == 0))
        words[u] = load_word<16>(from + (int64_t)i * 16);
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      const uint32_t i = first + 32 * u + lane;
      const word<16> w = bytes_at(words[u], next_word(words[u], words[u + 1]), shift);
      if (i < n_words) store_word(dst + head + (int64_t)i * 16, w);
    }
  }
}

struct rows : by_warps {
  static constexpr const char *NAME = "copy kernel";

  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, int64_t index) const
  {
    const tile_at tile = tile_of(piece, index);

    if (is_shifted(piece, tile))
      copy_shifted(piece, tile);
    else
      by_word(piece.word_log2,
              [&](auto n) { do_tile<copy_words<decltype(n)::value>>(piece, tile); });
  }
};

} // namespace

const xfi_cuda_kernels xfi_cuda_rows_kernels = kernels_of<rows>;
