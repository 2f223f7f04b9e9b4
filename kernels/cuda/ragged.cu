/*
 * Short runs that begin anywhere in words of 16 bytes and follow each other on one side, which is
 * written or read in whole words there, as a peer's memory should be: less than 32 bytes at a time
 * have 0.2 to 0.4 of the link.
 *
 * Where they do so in dst, a word of it is put together from two of src, or from four where a run
 * ends in it. Where they do so in src, a warp brings it to shared memory and goes on in words that
 * runs are made of.
 */
#include "words.cuh"

namespace {

constexpr uint32_t WORD = 16;
constexpr uint32_t IMAGE_BYTES = 2048; /* of a warp */
constexpr uintptr_t OF_WORD = ~(uintptr_t)(WORD - 1);

/* 16 bytes at any address, of the two words that hold the first and the last of them. */
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

/* What the first and the last words of the tile hold goes byte by byte, so that no word is read
 * that reaches beyond src. */
__device__ __forceinline__ void copy_together(const xfi_cuda_piece &piece, const tile_at &tile)
{
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t run = tile.cols;
  const uint32_t n_bytes = tile.rows * run;
  const int64_t stride = piece.src_stride[0];
  const char *const src = piece.src + tile.row * stride;
  char *const dst = piece.dst + tile.row * run;
  const uint32_t head = (0 - (uint32_t)(uintptr_t)dst) & (WORD - 1);
  const uint32_t n_words = n_bytes < head + 3 * WORD ? 0 : (n_bytes - head) / WORD - 2;
  const uint32_t tail = head + n_words * WORD;
  const uint32_t step_rows = div_by(32 * WORD, piece.by_tile_cols);
  const uint32_t step_cols = 32 * WORD - step_rows * run;
  uint32_t row = div_by(head + lane * WORD, piece.by_tile_cols);
  uint32_t col = head + lane * WORD - row * run;
  const auto copy_byte = [&](uint32_t i) {
    const uint32_t r = div_by(i, piece.by_tile_cols);

    if (i < n_bytes) dst[i] = src[r * stride + (i - r * run)];
  };

  if (lane < head) copy_byte(lane);
  copy_byte(tail + lane);
  copy_byte(tail + lane + 32);
  for (uint32_t i = lane; i < n_words; i += 32) {
    const char *const from = src + row * stride;
    const uint32_t at = min(col, run - WORD);
    const uint32_t skip = col - at; /* of those: the word ends in the next run */
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

/* The next bytes of src, at most IMAGE_BYTES, to an image of it that lies as far from a multiple of
 * 16. */
__device__ __forceinline__ void load_image(char *image, const char *src, uint32_t n_bytes)
{
  constexpr int WORDS = IMAGE_BYTES / (32 * WORD);
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t head = min((0 - (uint32_t)(uintptr_t)src) & (WORD - 1), n_bytes);
  const uint32_t n_words = (n_bytes - head) / WORD;
  const uint32_t tail = head + n_words * WORD + lane;
  word<WORD> words[WORDS];

#pragma unroll
  for (int u = 0; u < WORDS; u++) {
    const uint32_t i = 32 * u + lane;
    if (i < n_words) words[u] = load_word<WORD>(src + head + i * WORD);
  }
  if (lane < head) image[lane] = src[lane];
  if (tail < n_bytes) image[tail] = src[tail];
#pragma unroll
  for (int u = 0; u < WORDS; u++) {
    const uint32_t i = 32 * u + lane;
    if (i < n_words) store_word(image + head + i * WORD, words[u]);
  }
}

/* Words `first` to first + n - 1 of the tile, which the image begins with. */
template <uint32_t word_bytes>
__device__ __forceinline__ void store_image(const xfi_cuda_piece &piece, const tile_at &tile,
                                            const char *image, uint32_t first, uint32_t n)
{
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t step_rows = div_by(32, piece.by_tile_cols);
  const uint32_t step_cols = 32 - step_rows * tile.cols;
  const int64_t stride = piece.dst_stride[0];
  const int64_t gap = stride - (int64_t)(tile.cols * word_bytes);
  const int64_t step = step_rows * stride + step_cols * (int64_t)word_bytes;
  const uint32_t row = div_by(first + lane, piece.by_tile_cols);
  uint32_t col = first + lane - row * tile.cols;
  char *to = piece.dst + (tile.row + row) * stride + col * (int64_t)word_bytes;

#pragma unroll 8
  for (uint32_t i = lane; i < n; i += 32) {
    store_word(to, load_word<word_bytes>(image + i * word_bytes));
    to += step;
    col += step_cols;
    if (col >= tile.cols) {
      col -= tile.cols;
      to += gap;
    }
  }
}

template <uint32_t word_bytes>
__device__ __forceinline__ void copy_apart(const xfi_cuda_piece &piece, const tile_at &tile,
                                           char *image)
{
  const uint32_t n_bytes = tile.rows * tile.cols * word_bytes;
  const char *const src = piece.src + tile.row * tile.cols * word_bytes;
  uint32_t n = 0;

#pragma unroll 1
  for (uint32_t first = 0; first < n_bytes; first += n) {
    const uint32_t skew = (uint32_t)(uintptr_t)(src + first) & (WORD - 1);

    n = min(IMAGE_BYTES - skew, n_bytes - first);
    load_image(image + skew, src + first, n);
    __syncwarp();
    store_image<word_bytes>(piece, tile, image + skew, first / word_bytes, n / word_bytes);
    __syncwarp();
  }
}

struct ragged : by_warps {
  static constexpr const char *NAME = "ragged copy kernel";

  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, int64_t index) const
  {
    __shared__ __align__(WORD) char images[WALKERS][IMAGE_BYTES];
    const tile_at tile = tile_of(piece, index);
    char *const image = images[threadIdx.x / 32];

    if (piece.dst_stride[0] == piece.run_words << piece.word_log2)
      copy_together(piece, tile);
    else if (piece.word_log2 == 0)
      copy_apart<1>(piece, tile, image);
    else if (piece.word_log2 == 1)
      copy_apart<2>(piece, tile, image);
    else
      copy_apart<4>(piece, tile, image);
  }
};

} // namespace

const xfi_cuda_kernels xfi_cuda_ragged_kernels = kernels_of<ragged>;
