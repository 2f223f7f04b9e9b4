/* The batched N-D strided copy, in the widest words that fit. */
#include "words.cuh"

namespace {

/* Words are copied, or are zeros. */
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

struct rows : by_warps {
  static constexpr const char *NAME = "copy kernel of rows";

  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, int64_t index) const
  {
    const tile_at tile = tile_of(piece, index);

    by_word(piece.runs.word_log2,
            [&](auto n) { do_tile<copy_words<decltype(n)::value>>(piece, tile); });
  }
};

} // namespace

const xfi_cuda_kernels xfi_cuda_rows_kernels = kernels_of<rows>;
