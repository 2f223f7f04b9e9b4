/*
 * The tiled transpose: copies of single words whose fast dim differs between the sides. A block
 * moves a square tile through shared memory, so that it reads along src's fast dim (dim 1) and
 * writes along dst's (dim 0).
 */
#include "tiles.cuh"

namespace {

constexpr int WARPS = 8;
constexpr int SHARED_BYTES = 64 * 65 * 8; /* the largest of the tiles below */

/* One word of padding, or of 4 bytes where words are smaller, puts neighbours of a column in
 * different banks. */
template <typename Word, bool WIDE> struct shape {
  static constexpr int side =
      WIDE ? XFI_CUDA_SWAP_WIDE(sizeof(Word)) : XFI_CUDA_SWAP_NARROW(sizeof(Word));
  static constexpr int pitch = side + (sizeof(Word) < 4 ? 4 / (int)sizeof(Word) : 1);
  static_assert(side * pitch * (int)sizeof(Word) <= SHARED_BYTES, "the tile fits");
};

/* Calls with each of a lane's words of a row of n. Of a wide tile what a warp takes at once begins
 * at a multiple of its size in memory, wherever the row does: of what crosses the link more is
 * wanted, and less is written in part. */
template <typename Word, bool WIDE, typename Do>
__device__ __forceinline__ void along_row(const char *row, int n, Do word)
{
  const int before = WIDE ? (int)((uintptr_t)row / sizeof(Word) % 32) : 0;

#pragma unroll
  for (int k = 0; k < shape<Word, WIDE>::side + (WIDE ? 32 : 0); k += 32) {
    const int i = (int)(threadIdx.x & 31) + k - before;

    if (i >= 0 && i < n) word(i);
  }
}

template <typename Word, bool WIDE>
__device__ __forceinline__ void swap_tile(const xfi_cuda_piece &piece, int64_t index, char *shared)
{
  constexpr int side = shape<Word, WIDE>::side;
  constexpr int pitch = shape<Word, WIDE>::pitch;
  Word *const tile = reinterpret_cast<Word *>(shared);
  const int warp = threadIdx.x / 32;
  const int64_t tiles0 = piece.cols_per_row;
  const int64_t tiles1 = piece.n_rows;

  const int64_t x0 = index % tiles0 * side;
  int64_t rest = index / tiles0;
  const int64_t x1 = rest % tiles1 * side;
  rest /= tiles1;
  const char *from = piece.src + x0 * piece.src_stride[0] + x1 * piece.src_stride[1];
  char *to = piece.dst + x0 * piece.dst_stride[0] + x1 * piece.dst_stride[1];
  for (uint32_t d = 2; d < piece.n_dims; d++) {
    const int64_t x = rest % piece.extent[d];
    rest /= piece.extent[d];
    from += x * piece.src_stride[d];
    to += x * piece.dst_stride[d];
  }
  const int n0 = (int)min((int64_t)side, (int64_t)piece.extent[0] - x0);
  const int n1 = (int)min((int64_t)side, (int64_t)piece.extent[1] - x1);

#pragma unroll 4
  for (int i0 = warp; i0 < n0; i0 += WARPS) {
    const char *row = from + i0 * piece.src_stride[0];

    along_row<Word, WIDE>(row, n1, [&](int i1) {
      tile[i0 * pitch + i1] = word_load<Word>(row + i1 * piece.src_stride[1]);
    });
  }
  __syncthreads();
#pragma unroll 4
  for (int i1 = warp; i1 < n1; i1 += WARPS) {
    char *row = to + i1 * piece.dst_stride[1];

    along_row<Word, WIDE>(row, n0, [&](int i0) {
      word_store<Word>(row + i0 * piece.dst_stride[0], tile[i0 * pitch + i1]);
    });
  }
  __syncthreads(); /* the next tile overwrites this one */
}

struct swapped {
  static constexpr const char *NAME = "transpose kernel";
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int BLOCKS = 0;
  static constexpr int WALKERS = 1;

  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, int64_t index) const
  {
    __shared__ __align__(16) char shared[SHARED_BYTES];

    by_word(piece.word_log2, [&](auto word) {
      using Word = decltype(word);
      if (min(piece.extent[0], piece.extent[1]) >= XFI_CUDA_SWAP_WIDE(sizeof(Word)))
        swap_tile<Word, true>(piece, index, shared);
      else
        swap_tile<Word, false>(piece, index, shared);
    });
  }
};

} // namespace

const xfi_cuda_kernels xfi_cuda_swapped_kernels = {load_table<swapped>, launch_table<swapped>};
