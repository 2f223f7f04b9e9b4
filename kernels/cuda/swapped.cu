/*
 * The tiled transpose: copies of single words whose fast dim differs between the sides. A block
 * moves a square tile through shared memory, so that it reads along src's fast dim (dim 1) and
 * writes along dst's (dim 0).
 */
#include "tiles.cuh"

namespace {

constexpr int WARPS = 8;
constexpr int SHARED_BYTES = 32 * 33 * 16; /* the largest of the tiles below */

/* One word of padding, or of 4 bytes where words are smaller, puts neighbours of a column in
 * different banks. */
template <typename Word> struct shape {
  static constexpr int side = sizeof(Word) <= 4 ? 64 : 32;
  static constexpr int pitch = side + (sizeof(Word) < 4 ? 4 / (int)sizeof(Word) : 1);
  static_assert(side * pitch * (int)sizeof(Word) <= SHARED_BYTES, "the tile fits");
};

template <typename Word>
__device__ __forceinline__ void swap_tile(const xfi_cuda_piece &piece, int64_t index, char *shared)
{
  constexpr int side = shape<Word>::side;
  constexpr int pitch = shape<Word>::pitch;
  Word *const tile = reinterpret_cast<Word *>(shared);
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x / 32;
  const int64_t tiles0 = piece.cols_per_row;
  const int64_t tiles1 = piece.n_rows;

  const int64_t x0 = index % tiles0 * side;
  int64_t rest = index / tiles0;
  const int64_t x1 = rest % tiles1 * side;
  rest /= tiles1;
  int64_t from = x0 * piece.src_stride[0] + x1 * piece.src_stride[1];
  int64_t to = x0 * piece.dst_stride[0] + x1 * piece.dst_stride[1];
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
#pragma unroll
    for (int i1 = lane; i1 < side; i1 += 32) {
      if (i1 < n1) {
        tile[i0 * pitch + i1] =
            word_load<Word>(piece.src + from + i0 * piece.src_stride[0] + i1 * piece.src_stride[1]);
      }
    }
  }
  __syncthreads();
#pragma unroll 4
  for (int i1 = warp; i1 < n1; i1 += WARPS) {
#pragma unroll
    for (int i0 = lane; i0 < side; i0 += 32) {
      if (i0 < n0) {
        word_store<Word>(piece.dst + to + i0 * piece.dst_stride[0] + i1 * piece.dst_stride[1],
                         tile[i0 * pitch + i1]);
      }
    }
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

    by_word(piece.word_log2, [&](auto word) { swap_tile<decltype(word)>(piece, index, shared); });
  }
};

} // namespace

extern "C" xfer_status xfi_cuda_swapped_load(void)
{
  return load_table<swapped>();
}

extern "C" xfer_status xfi_cuda_copy_swapped(const xfi_cuda_job *job, xfer_stream stream)
{
  return launch_table<swapped>(job, stream);
}
