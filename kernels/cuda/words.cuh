/*
 * How the kernels that copy runs go through the words of a tile. Each warp takes its tiles on its
 * own, without barriers or shared memory. A tile is a part of one long run, or several whole short
 * runs; in both cases adjacent lanes access adjacent words.
 *
 * An Op does the work of one word:
 *
 *   Op(piece, tile)          made once for a tile
 *   loaded                   what a lane holds of a word between load() and store()
 *   IN_FLIGHT                how many words a lane loads before it stores the first
 *   SRC_BYTES, DST_BYTES     the size of a word on each side
 *   load(from, at)           loads the word at `from`; `at` says which word it is
 *   store(to, word)          stores it
 *   end()                    is called after the tile's last word
 *
 * All lanes of a warp call store_words() and end() together.
 */
#ifndef XFI_CUDA_WORDS_CUH
#define XFI_CUDA_WORDS_CUH

#include "tiles.cuh"

/* A word of a run. */
struct word_at {
  char *to;       /* where it goes */
  uint32_t col;   /* its number among the run's words in the tile */
  uint32_t block; /* the index of the run's scale */
};

/* The base of an Op that has nothing to do after the last word. */
struct no_end {
  __device__ __forceinline__ void end() const
  {
  }
};

/* Where a lane's next word comes from and goes to, and whether there is such a word. */
struct place {
  const char *from;
  word_at at;
  bool is_one;
};

/* Stores the first n words of a lane, each at its place in `to`. */
template <typename Op>
static __device__ __forceinline__ void store_words(Op &op, const typename Op::loaded *words, int n,
                                                   char *const *to)
{
#pragma unroll
  for (int u = 0; u < Op::IN_FLIGHT; u++)
    if (u < n) op.store(to[u], words[u]);
}

/* All lanes run this loop together. A lane that has no word left loads the tile's last one again,
 * so that there is no branch between loads. next(i) is the place of word i of the tile; it is
 * called in order of i. */
template <typename Op, typename Next>
static __device__ __forceinline__ void do_words(Op &op, uint32_t n_words, Next next)
{
#pragma unroll 1
  for (uint32_t first = 0; first < n_words; first += 32 * Op::IN_FLIGHT) {
    typename Op::loaded words[Op::IN_FLIGHT];
    char *to[Op::IN_FLIGHT];
    int n = 0;
#pragma unroll
    for (int u = 0; u < Op::IN_FLIGHT; u++) {
      const place p = next(first + 32 * u + (threadIdx.x & 31));
      to[u] = p.at.to;
      words[u] = op.load(p.from, p.at);
      n += p.is_one;
    }
    store_words(op, words, n, to);
  }
}

/* A tile that is a part of one run. It needs no division. */
template <typename Op>
static __device__ __forceinline__ void do_part(Op &op, const xfi_cuda_piece &piece,
                                               const tile_at &tile)
{
  const run_at run = run_of(piece, (uint32_t)tile.run);
  const char *const src = piece.src + run.src + tile.word * Op::SRC_BYTES;
  char *const dst = piece.dst + run.dst + tile.word * Op::DST_BYTES;

  do_words(op, tile.n_words, [&](uint32_t i) {
    const uint32_t col = min(i, tile.n_words - 1);
    return place{src + col * (uint32_t)Op::SRC_BYTES,
                 {dst + col * (uint32_t)Op::DST_BYTES, col, run.block},
                 i < tile.n_words};
  });
}

/* A tile of several runs that lie in one line along dim 0. A lane keeps track of its position,
 * since a division for each word would cost a twentieth of the rate. */
template <typename Op>
static __device__ __forceinline__ void do_line(Op &op, const xfi_cuda_piece &piece,
                                               const tile_at &tile)
{
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t step_rows = div_by(32, piece.runs.by_tile_words);
  const uint32_t step_cols = 32 - step_rows * tile.n_words;
  const int64_t src_stride = piece.src_stride[0];
  const int64_t dst_stride = piece.dst_stride[0];
  const uint32_t block_stride = piece.scale_stride[0];
  const run_at run = run_of(piece, (uint32_t)tile.run);
  const char *const src = piece.src + run.src;
  char *const dst = piece.dst + run.dst;
  uint32_t row = div_by(lane, piece.runs.by_tile_words);
  uint32_t col = lane - row * tile.n_words;

  do_words(op, tile.n_runs * tile.n_words, [&](uint32_t) {
    const bool is_one = row < tile.n_runs;
    const uint32_t r = is_one ? row : tile.n_runs - 1;
    const uint32_t c = is_one ? col : tile.n_words - 1;
    row += step_rows;
    col += step_cols;
    if (col >= tile.n_words) {
      col -= tile.n_words;
      row++;
    }
    return place{
        src + r * src_stride + c * (uint32_t)Op::SRC_BYTES,
        {dst + r * dst_stride + c * (uint32_t)Op::DST_BYTES, c, run.block + r * block_stride},
        is_one};
  });
}

/* A tile of several runs that lie in more than one line. */
template <typename Op>
static __device__ __forceinline__ void do_runs(Op &op, const xfi_cuda_piece &piece,
                                               const tile_at &tile)
{
  const uint32_t n_words = tile.n_runs * tile.n_words;

  do_words(op, n_words, [&](uint32_t i) {
    const uint32_t word = min(i, n_words - 1);
    const uint32_t row = div_by(word, piece.runs.by_tile_words);
    const uint32_t col = word - row * tile.n_words;
    const run_at run = run_of(piece, (uint32_t)tile.run + row);
    return place{piece.src + run.src + col * (uint32_t)Op::SRC_BYTES,
                 {piece.dst + run.dst + col * (uint32_t)Op::DST_BYTES, col, run.block},
                 i < n_words};
  });
}

template <typename Op>
static __device__ __forceinline__ void do_tile(const xfi_cuda_piece &piece, const tile_at &tile)
{
  Op op(piece, tile);

  if (tile.n_runs == 1) {
    do_part(op, piece, tile);
  } else {
    const uint32_t row = (uint32_t)tile.run;
    const uint32_t in_line = row - div_by(row, piece.by_extent[0]) * piece.extent[0];
    if (in_line + tile.n_runs <= piece.extent[0])
      do_line(op, piece, tile);
    else
      do_runs(op, piece, tile);
  }
  op.end();
}

/* ---- kernels -------------------------------------------------------------------------------- */

/* Kernels of which a multiprocessor runs one block, and which take no small tables. */
struct by_warps_alone : by_warps {
  static constexpr int BLOCKS = 1;
  static constexpr bool SMALL_TABLES = false;
};

/* A Kind that has one Op. Several of them in one kernel would run out of registers. */
template <typename Base, uint32_t KIND, typename Op> struct words_of : Base {
  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, int64_t index) const
  {
    if (piece.kind == KIND) do_tile<Op>(piece, tile_of(piece, index));
  }
};

#endif
