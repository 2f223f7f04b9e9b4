/*
 * The tiled transpose: copies of single words whose fast dim differs between the sides. A block
 * moves a square tile through shared memory, so that it reads along src's fast dim (dim 1) and
 * writes along dst's (dim 0). Where rows are words that follow each other both go by units of at
 * least 4 bytes, at multiples of their size wherever rows begin: so a warp has more on the way, and
 * less is written in part.
 */
#include "tiles.cuh"

namespace {

constexpr int WARPS = 8;
constexpr int LINE_BYTES = 128; /* of memory: where a warp's units begin */
constexpr int ROWS_IN_FLIGHT = 4;

/* Words in units, one to four to one, and the tile of them, whose rows lie along dim 1. Each begins
 * in its first unit where it does in memory. A tile writes the units of dst whose first words are
 * its own, so it reads up to HALO rows of the next one too. */
template <uint32_t KIND, typename Word, typename Unit> struct swapped {
  static constexpr const char *NAME = "transpose kernel";
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int BLOCKS = 4;
  static constexpr int WALKERS = 1;

  static constexpr int WORD_BYTES = sizeof(Word);
  static constexpr int WORDS = sizeof(Unit) / sizeof(Word); /* of a unit */
  static constexpr int SIDE = XFI_CUDA_SWAP_SIDE(WORD_BYTES);
  static constexpr int HALO = WORDS - 1;
  static constexpr int ROWS = SIDE + (WORDS > 1 ? WORDS : 0);
  static constexpr int PITCH = SIDE / WORDS + (sizeof(Unit) < 4 ? 4 / (int)sizeof(Unit) : 1);
  static constexpr int LINE = LINE_BYTES / sizeof(Unit) < 32 ? LINE_BYTES / sizeof(Unit) : 32;
  static constexpr int PASSES = (SIDE / WORDS + LINE + 31) / 32; /* of a warp over a row */

  /* Where row i0 of the tile lies: rows whose words make one unit of dst are far apart, so that
   * those which lanes read at once follow each other, in banks of their own. */
  static __device__ __forceinline__ int row_at(uint32_t i0)
  {
    return (int)((i0 % WORDS * (ROWS / WORDS) + i0 / WORDS) * PITCH * sizeof(Unit));
  }

  /* Words of a row's first unit that precede it. */
  static __device__ __forceinline__ int phase_of(uint32_t row)
  {
    return (int)(row % sizeof(Unit)) / WORD_BYTES;
  }

  /* log2 of the lanes that share a row of n words: no more than it has units. */
  static __device__ __forceinline__ int lanes_log2(int n)
  {
    const int most = (n + 2 * WORDS - 2) / WORDS;

    return most > 16 ? 5 : 32 - __clz(most - 1);
  }

  /* Calls with the first word, in the row of n or before it, of each unit of this lane's, and in
   * which pass it is. */
  template <typename Do>
  static __device__ __forceinline__ void along_row(const char *row, int n, int log2, Do unit)
  {
    const int lane = (int)threadIdx.x & ((1 << log2) - 1);
    const int before = log2 < 5 ? 0 : (int)((uint32_t)(uintptr_t)row / sizeof(Unit) % LINE);
    const int first = (lane - before) * WORDS - phase_of((uint32_t)(uintptr_t)row);

#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
      const int i = first + pass * 32 * WORDS;

      if (i > -WORDS && i < n) unit(i, pass);
    }
  }

  static __device__ __forceinline__ void read_rows(const xfi_cuda_piece &piece, const char *from,
                                                   int n_rows, int n1, char *tile)
  {
    const int log2 = lanes_log2(n1);
    const int step = THREADS >> log2;

#pragma unroll 1
    for (int i0 = (int)threadIdx.x >> log2; i0 < n_rows; i0 += ROWS_IN_FLIGHT * step) {
      Unit held[ROWS_IN_FLIGHT][PASSES];

#pragma unroll
      for (int r = 0; r < ROWS_IN_FLIGHT; r++) {
        const char *row = from + (i0 + r * step) * piece.src_stride[0];

        if (i0 + r * step < n_rows)
          along_row(row, n1, log2, [&](int i1, int pass) {
            held[r][pass] = word_load<Unit>(row + i1 * piece.src_stride[1]);
          });
      }
#pragma unroll
      for (int r = 0; r < ROWS_IN_FLIGHT; r++) {
        const char *row = from + (i0 + r * step) * piece.src_stride[0];
        char *in_tile = tile + row_at(i0 + r * step);

        if (i0 + r * step < n_rows)
          along_row(row, n1, log2, [&](int i1, int pass) {
            const int phase = phase_of((uint32_t)(uintptr_t)row);
            word_store<Unit>(in_tile + (i1 + phase) * WORD_BYTES, held[r][pass]);
          });
      }
    }
  }

  /* A unit of row i1 of dst, from word i0 of it on, of the n_rows that were read. */
  static __device__ __forceinline__ void write_unit(const xfi_cuda_piece &piece, const char *from,
                                                    char *row, int i0, int i1, int n_rows,
                                                    const char *tile)
  {
    Word words[WORDS] = {};

#pragma unroll
    for (int j = 0; j < WORDS; j++) {
      const int i = i0 + j;
      const int phase =
          phase_of((uint32_t)(uintptr_t)from + (uint32_t)i * (uint32_t)piece.src_stride[0]);

      if (i >= 0 && i < n_rows)
        words[j] = word_load<Word>(tile + row_at(i) + (i1 + phase) * WORD_BYTES);
    }
    if (i0 >= 0 && i0 + WORDS <= n_rows) {
      Unit unit;
      memcpy(&unit, words, sizeof unit);
      word_store<Unit>(row + i0 * piece.dst_stride[0], unit);
      return;
    }
#pragma unroll
    for (int j = 0; j < WORDS; j++)
      if (i0 + j >= 0 && i0 + j < n_rows)
        word_store<Word>(row + (i0 + j) * piece.dst_stride[0], words[j]);
  }

  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, int64_t index) const
  {
    __shared__ __align__(16) char tile[ROWS * PITCH * sizeof(Unit)];
    const int64_t tiles0 = piece.cols_per_row;
    const int64_t tiles1 = piece.n_rows;
    const int64_t x0 = index % tiles0 * SIDE;
    int64_t rest = index / tiles0;
    const int64_t x1 = rest % tiles1 * SIDE;
    const int n0 = (int)min((int64_t)SIDE, (int64_t)piece.extent[0] - x0);
    const int n1 = (int)min((int64_t)SIDE, (int64_t)piece.extent[1] - x1);
    const char *from = piece.src + x0 * piece.src_stride[0] + x1 * piece.src_stride[1];
    char *to = piece.dst + x0 * piece.dst_stride[0] + x1 * piece.dst_stride[1];

    if (piece.kind != KIND) return;
    rest /= tiles1;
    for (uint32_t d = 2; d < piece.n_dims; d++) {
      const int64_t x = rest % piece.extent[d];
      rest /= piece.extent[d];
      from += x * piece.src_stride[d];
      to += x * piece.dst_stride[d];
    }
    const bool is_whole = (((uintptr_t)to | (uint64_t)piece.dst_stride[1]) % sizeof(Unit)) == 0;
    const int n_rows = is_whole ? n0 : (int)min((int64_t)n0 + HALO, (int64_t)piece.extent[0] - x0);
    const int first = x0 == 0 ? -HALO : 0; /* of a unit */
    read_rows(piece, from, n_rows, n1, tile);
    __syncthreads();
    const int log2 = lanes_log2(n0);
#pragma unroll 1
    for (int i1 = (int)threadIdx.x >> log2; i1 < n1; i1 += THREADS >> log2) {
      char *row = to + i1 * piece.dst_stride[1];

      along_row(row, n0, log2, [&](int i0, int) {
        if (i0 >= first) write_unit(piece, from, row, i0, i1, n_rows, tile);
      });
    }
    __syncthreads(); /* the next tile overwrites this one */
  }
};

template <typename Kind>
constexpr xfi_cuda_kernels kernels_of = {load_table<Kind>, launch_table<Kind>};

const xfi_cuda_kernels kinds[XFI_CUDA_N_SWAPS] = {
    kernels_of<swapped<0, unsigned char, unsigned>>,
    kernels_of<swapped<1, unsigned short, unsigned>>,
    kernels_of<swapped<2, unsigned, unsigned>>,
    kernels_of<swapped<3, uint2, uint2>>,
    kernels_of<swapped<4, uint4, uint4>>,
    kernels_of<swapped<XFI_CUDA_SWAP_APART, unsigned char, unsigned char>>,
    kernels_of<swapped<XFI_CUDA_SWAP_APART + 1, unsigned short, unsigned short>>};

xfer_status load_all(void)
{
  xfer_status st = XFER_OK;

  for (int kind = 0; kind < XFI_CUDA_N_SWAPS && st == XFER_OK; kind++)
    st = kinds[kind].load();
  return st;
}

xfer_status copy(const xfi_cuda_job *job, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  for (int kind = 0; kind < XFI_CUDA_N_SWAPS && st == XFER_OK; kind++)
    if ((job->kinds >> kind & 1) != 0) st = kinds[kind].copy(job, stream);
  return st;
}

} // namespace

const xfi_cuda_kernels xfi_cuda_swapped_kernels = {load_all, copy};
