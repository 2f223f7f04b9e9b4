/*
 * The batched N-D strided copy. Warps walk over tiles on their own: no barrier, no shared memory. A
 * tile is a part of one long run, or several whole short runs; either way neighbouring lanes touch
 * neighbouring words. Long runs go in words of 16 bytes wherever they begin.
 */
#include "tiles.cuh"

namespace {

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
/* Words that a lane loads before it stores the first. */
constexpr int IN_FLIGHT = XFI_CUDA_WARP_WORDS / 32;

/* Part of one run: nothing to divide. */
template <typename Word>
__device__ __forceinline__ void copy_part(const char *src, char *dst, uint32_t n_words)
{
  const uint32_t lane = threadIdx.x & 31;

  for (uint32_t first = lane; first < n_words; first += 32 * IN_FLIGHT) {
    Word words[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      const uint32_t i = first + 32 * u;
      words[u] = Word{};
      if (i < n_words && src != NULL) words[u] = word_load<Word>(src + (int64_t)i * sizeof(Word));
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      const uint32_t i = first + 32 * u;
      if (i < n_words) word_store<Word>(dst + (int64_t)i * sizeof(Word), words[u]);
    }
  }
}

/* The 16 bytes that begin `shift` bytes, 0 to 15, into the 32 of both. */
__device__ __forceinline__ uint4 bytes_at(uint4 low, uint4 high, uint32_t shift)
{
  const bool by_two = (shift & 8) != 0;
  const bool by_one = (shift & 4) != 0;
  const uint32_t bits = (shift & 3) * 8;
  const uint32_t w0 = by_two ? low.z : low.x;
  const uint32_t w1 = by_two ? low.w : low.y;
  const uint32_t w2 = by_two ? high.x : low.z;
  const uint32_t w3 = by_two ? high.y : low.w;
  const uint32_t w4 = by_two ? high.z : high.x;
  const uint32_t w5 = by_two ? high.w : high.y;
  const uint32_t v1 = by_one ? w2 : w1;
  const uint32_t v2 = by_one ? w3 : w2;
  const uint32_t v3 = by_one ? w4 : w3;

  return make_uint4(__funnelshift_r(by_one ? w1 : w0, v1, bits), __funnelshift_r(v1, v2, bits),
                    __funnelshift_r(v2, v3, bits), __funnelshift_r(v3, by_one ? w5 : w4, bits));
}

/* That of the next lane; the last lane's is the first's of `after`, the words that follow. */
__device__ __forceinline__ uint4 next_word(uint4 words, uint4 after)
{
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t next = (lane + 1) & 31;
  const uint4 mine = lane == 0 ? after : words;

  return make_uint4(__shfl_sync(0xffffffffu, mine.x, next), __shfl_sync(0xffffffffu, mine.y, next),
                    __shfl_sync(0xffffffffu, mine.z, next), __shfl_sync(0xffffffffu, mine.w, next));
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
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t n_bytes = tile.cols << piece.word_log2;
  const int64_t in_row = tile.col << piece.word_log2;
  int64_t src_row;
  int64_t dst_row;

  row_offsets(piece, (uint32_t)tile.row, &src_row, &dst_row);
  const char *const src = piece.src + src_row + in_row;
  char *const dst = piece.dst + dst_row + in_row;
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
    uint4 words[IN_FLIGHT + 1]; /* of the last, one lane's */
#pragma unroll
    for (int u = 0; u <= IN_FLIGHT; u++) {
      const uint32_t i = first + 32 * u + lane;
      words[u] = uint4{};
      if (i < n_loads && (u < IN_FLIGHT || lane == 0))
        words[u] = word_load<uint4>(from + (int64_t)i * 16);
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      const uint32_t i = first + 32 * u + lane;
      const uint4 word = bytes_at(words[u], next_word(words[u], words[u + 1]), shift);
      if (i < n_words) word_store<uint4>(dst + head + (int64_t)i * 16, word);
    }
  }
}

/* Several runs in a line along dim 0. A lane keeps its place instead of dividing for each word:
 * divisions cost a twentieth of the rate. */
template <typename Word>
__device__ __forceinline__ void copy_line(const xfi_cuda_piece &piece, const tile_at &tile)
{
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t step_rows = div_by(32, piece.by_tile_cols);
  const uint32_t step_cols = 32 - step_rows * tile.cols;
  const int64_t src_stride = piece.src_stride[0];
  const int64_t dst_stride = piece.dst_stride[0];
  uint32_t row = div_by(lane, piece.by_tile_cols);
  uint32_t col = lane - row * tile.cols;
  int64_t from;
  int64_t to;

  row_offsets(piece, (uint32_t)tile.row, &from, &to);
  const char *const src = piece.src + from;
  char *const dst = piece.dst + to;
  while (row < tile.rows) {
    Word words[IN_FLIGHT];
    char *at[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      const uint32_t in_row = col * (uint32_t)sizeof(Word);
      words[u] = Word{};
      at[u] = NULL;
      if (row < tile.rows) {
        at[u] = dst + row * dst_stride + in_row;
        words[u] = word_load<Word>(src + row * src_stride + in_row);
      }
      row += step_rows;
      col += step_cols;
      if (col >= tile.cols) {
        col -= tile.cols;
        row++;
      }
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      if (at[u] != NULL) word_store<Word>(at[u], words[u]);
    }
  }
}

/* Several runs, in more than one line or of zeros. */
template <typename Word>
__device__ __forceinline__ void copy_runs(const xfi_cuda_piece &piece, const tile_at &tile)
{
  const uint32_t n_words = tile.rows * tile.cols;
  const uint32_t lane = threadIdx.x & 31;
  const xfi_cuda_div by_cols = piece.by_tile_cols;
  const char *const src = piece.src;
  char *const dst = piece.dst;

  for (uint32_t first = lane; first < n_words; first += 32 * IN_FLIGHT) {
    Word words[IN_FLIGHT];
    int64_t to[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      const uint32_t i = first + 32 * u;
      words[u] = Word{};
      if (i < n_words) {
        const uint32_t row = div_by(i, by_cols);
        const int64_t in_row = (int64_t)(i - row * tile.cols) * (int64_t)sizeof(Word);
        int64_t from;
        row_offsets(piece, (uint32_t)tile.row + row, &from, &to[u]);
        to[u] += in_row;
        if (src != NULL) words[u] = word_load<Word>(src + from + in_row);
      }
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      if (first + 32 * u < n_words) word_store<Word>(dst + to[u], words[u]);
    }
  }
}

template <typename Word>
__device__ __forceinline__ void copy_tile(const xfi_cuda_piece &piece, const tile_at &tile)
{
  if (tile.rows > 1) {
    const uint32_t row = (uint32_t)tile.row;
    const uint32_t in_line = row - div_by(row, piece.by_extent[0]) * piece.extent[0];
    if (piece.src != NULL && in_line + tile.rows <= piece.extent[0]) {
      copy_line<Word>(piece, tile);
    } else {
      copy_runs<Word>(piece, tile);
    }
    return;
  }
  int64_t from;
  int64_t to;
  row_offsets(piece, (uint32_t)tile.row, &from, &to);
  const int64_t in_row = tile.col * (int64_t)sizeof(Word);
  copy_part<Word>(piece.src == NULL ? NULL : piece.src + from + in_row, piece.dst + to + in_row,
                  tile.cols);
}

__global__ void __launch_bounds__(THREADS, 2)
    rows_kernel(const xfi_cuda_piece *__restrict__ pieces, const int64_t *__restrict__ first_tile,
                int64_t n_pieces, int64_t n_tiles, const uint64_t *go)
{
  if (go != NULL && *go == 0) return;
  const int64_t n_warps = (int64_t)gridDim.x * WARPS;
  int64_t at = 0;

  for (int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; t < n_tiles; t += n_warps) {
    at = piece_of(first_tile, n_pieces, at, t);
    const xfi_cuda_piece &piece = pieces[at];
    const tile_at tile = tile_of(piece, t - first_tile[at]);
    if (is_shifted(piece, tile)) {
      copy_shifted(piece, tile);
      continue;
    }
    switch (piece.word_log2) {
    case 0:
      copy_tile<unsigned char>(piece, tile);
      break;
    case 1:
      copy_tile<unsigned short>(piece, tile);
      break;
    case 2:
      copy_tile<unsigned int>(piece, tile);
      break;
    case 3:
      copy_tile<uint2>(piece, tile);
      break;
    default:
      copy_tile<uint4>(piece, tile);
      break;
    }
  }
}

} // namespace

extern "C" xfer_status xfi_cuda_rows_load(void)
{
  return load(rows_kernel, "copy kernel");
}

extern "C" xfer_status xfi_cuda_copy_rows(const xfi_cuda_job *job, xfer_stream stream)
{
  return launch_job(rows_kernel, job, THREADS, WARPS, job->n_blocks, "copy kernel", stream);
}
