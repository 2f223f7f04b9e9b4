/*
 * Runs at odd addresses. One side, which may be a peer's memory, is written or read in words of 16
 * bytes, since accesses of less than 32 bytes reach only 0.2 to 0.4 of the link. Long runs are
 * copied one by one (skewed.cuh). Short runs are copied in lines, in which they are adjacent on one
 * side. If that side is dst and no run is shorter than a word, each word is assembled from two of
 * src, or from four if a run ends in it; all other lines go by an image (lines.cuh).
 */
#include "lines.cuh"
#include "skewed.cuh"

namespace {

constexpr uint32_t WORD = 16;
constexpr uintptr_t OF_WORD = ~(uintptr_t)(WORD - 1);

/* 16 bytes at any address, by the two words that hold the first and the last of them. */
struct any_bytes {
  word<WORD> low;
  word<WORD> high;
  uint32_t shift;

  __device__ __forceinline__ explicit any_bytes(const char *from)
  {
    low = load_word<WORD>((const char *)((uintptr_t)from & OF_WORD));
    high = load_word<WORD>((const char *)(((uintptr_t)from + WORD - 1) & OF_WORD));
    shift = (uint32_t)(uintptr_t)from & (WORD - 1);
  }
  __device__ __forceinline__ word<WORD> get() const
  {
    return bytes_at(low, high, shift);
  }
};

/* What precedes the first whole word of dst, and the last 32 to 47 bytes, are copied byte by byte.
 * So no word of src is read that lies beyond the line; one that begins before the line lies in the
 * same allocation. */
__device__ __forceinline__ void copy_together(const xfi_cuda_piece &piece, const line &of)
{
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t run = piece.lines.run_words;
  const uint32_t n_bytes = of.n_runs * run;
  const int64_t stride = piece.src_stride[0];
  const char *const src = of.src;
  char *const dst = of.dst;
  const uint32_t head = (0 - (uint32_t)(uintptr_t)dst) & (WORD - 1);
  const uint32_t n_words = n_bytes < head + 3 * WORD ? 0 : (n_bytes - head) / WORD - 2;
  const uint32_t tail = head + n_words * WORD;
  const uint32_t step_rows = div_by(32 * WORD, piece.lines.by_run_words);
  const uint32_t step_cols = 32 * WORD - step_rows * run;
  uint32_t row = div_by(head + lane * WORD, piece.lines.by_run_words);
  uint32_t col = head + lane * WORD - row * run;
  const auto copy_byte = [&](uint32_t i) {
    const uint32_t r = div_by(i, piece.lines.by_run_words);

    if (i < n_bytes) dst[i] = src[r * stride + (i - r * run)];
  };

  if (lane < head) copy_byte(lane);
  copy_byte(tail + lane);
  copy_byte(tail + lane + 32);
  for (uint32_t i = lane; i < n_words; i += 32) {
    const char *const from = src + row * stride;
    const uint32_t at = min(col, run - WORD);
    const uint32_t skip = col - at; /* how many bytes of the word are the next run's */
    const any_bytes bytes(from + at);
    const any_bytes next(skip > 0 ? from + stride : from + at);

    store_word(dst + head + i * WORD, bytes_at(bytes.get(), next.get(), skip));
    row += step_rows;
    col += step_cols;
    if (col >= run) {
      col -= run;
      row++;
    }
  }
}

/* An Op whose words stay as they are. */
template <int n_bytes> struct same_words {
  using loaded = word<n_bytes>;
  static constexpr int SRC_BYTES = n_bytes;
  static constexpr int DST_BYTES = n_bytes;

  __device__ __forceinline__ same_words(const xfi_cuda_piece &, const tile_at &)
  {
  }
  __device__ __forceinline__ loaded load(const char *from, const word_at &) const
  {
    return load_word<n_bytes>(from);
  }
  __device__ __forceinline__ void store(char *to, const loaded &w) const
  {
    store_word(to, w);
  }
};

/* Words of 16 elements, which are bytes. */
struct bytes {
  static constexpr int N = WORD;
  static constexpr int FROM_BYTES = 1;
  static constexpr int TO_BYTES = 1;
  static constexpr int SRC_BYTES = WORD;
  static constexpr int DST_BYTES = WORD;

  __device__ __forceinline__ bytes(const xfi_cuda_piece &, const tile_at &)
  {
  }
  __device__ __forceinline__ word<WORD> converted(const word<WORD> &w) const
  {
    return w;
  }
};

/* Each kind has kernels of its own, since one kernel for all would run out of registers. */
struct together : by_warps {
  static constexpr const char *NAME = "copy kernel of adjacent runs";

  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, int64_t index) const
  {
    if (piece.kind == XFI_CUDA_RAGGED_TOGETHER)
      each_line(piece, index, [&](const line &of) { copy_together(piece, of); });
  }
};

struct by_image : by_warps {
  static constexpr const char *NAME = "copy kernel of lines";
  static constexpr int BLOCKS = 1;

  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, int64_t index) const
  {
    __shared__ __align__(WORD) char images[WALKERS][IMAGE_BYTES];
    char *const image = images[threadIdx.x / 32];

    if (piece.kind != XFI_CUDA_RAGGED_BY_IMAGE) return;
    if (piece.lines.word_log2 == 0)
      copy_lines<same_words<1>>(piece, index, image);
    else if (piece.lines.word_log2 == 1)
      copy_lines<same_words<2>>(piece, index, image);
    else
      copy_lines<same_words<4>>(piece, index, image);
  }
};

struct skewed_runs : by_warps {
  static constexpr int BLOCKS = 1;
  static constexpr const char *NAME = "copy kernel of skewed runs";
};

const xfi_cuda_kernels kinds[XFI_CUDA_N_RAGGED] = {
    kernels_of<together>, kernels_of<by_image>,
    kernels_of<words_of<skewed_runs, XFI_CUDA_RAGGED_SKEWED, skewed<bytes>>>};

} // namespace

const xfi_cuda_kernels xfi_cuda_ragged_kernels = kernels_by_kind<kinds>;
