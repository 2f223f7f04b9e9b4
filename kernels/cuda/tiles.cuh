/* What the kernels share: the walk over the tiles of a table, division, and access to words. */
#ifndef XFI_CUDA_TILES_CUH
#define XFI_CUDA_TILES_CUH

#include "flags.cuh"

#include <type_traits>

/* x / d; see xfi_cuda_div. */
static __device__ __forceinline__ uint32_t div_by(uint32_t x, xfi_cuda_div d)
{
  return (__umulhi(x, d.magic) + x) >> d.shift;
}

/*
 * The piece p with first_tile[p] <= t < first_tile[p + 1], at or after `at`. The lanes of a warp
 * probe 32 places at once, so that a million pieces take four dependent loads. All lanes call with
 * equal arguments.
 */
static __device__ __forceinline__ int64_t piece_of(const int64_t *__restrict__ first_tile,
                                                   int64_t n_pieces, int64_t at, int64_t t)
{
  const int64_t lane = threadIdx.x & 31;
  int64_t lo = at;
  int64_t hi = n_pieces;

  if (t < first_tile[lo + 1]) return lo;
  while (hi - lo > 1) {
    const int64_t step = (hi - lo + 31) / 32;
    const int64_t probe = lo + (lane + 1) * step;
    const bool below = probe < hi && first_tile[probe] <= t;
    lo += __popc(__ballot_sync(0xffffffffu, below)) * step;
    hi = min(hi, lo + step);
  }
  return lo;
}

/* Where a run begins on both sides, from where the piece does, and the index of its scale. */
struct run_at {
  int64_t src;
  int64_t dst;
  uint32_t block;
};

static __device__ __forceinline__ run_at run_of(const xfi_cuda_piece &piece, uint32_t number)
{
  run_at at = {0, 0, 0};
  const uint32_t n_dims = piece.n_dims;

#pragma unroll 1
  for (uint32_t d = 0; d < n_dims; d++) {
    const uint32_t rest = d + 1 < n_dims ? div_by(number, piece.by_extent[d]) : 0;
    const uint32_t x = number - rest * piece.extent[d];
    at.src += (int64_t)x * piece.src_stride[d];
    at.dst += (int64_t)x * piece.dst_stride[d];
    at.block += x * piece.scale_stride[d];
    number = rest;
  }
  return at;
}

/* What a warp moves at once. */
struct tile_at {
  int64_t run;      /* the first one */
  int64_t word;     /* the first one in each run */
  uint32_t n_runs;  /* how many there are */
  uint32_t n_words; /* of each run */
};

/* Tile `index` of a piece whose tiles are those of runs. */
static __device__ __forceinline__ tile_at tile_of(const xfi_cuda_piece &piece, int64_t index)
{
  const xfi_cuda_run_tiles &tiles = piece.runs;
  const int64_t nth = tiles.tiles_per_run == 1 ? index : index / tiles.tiles_per_run;
  tile_at tile;

  tile.run = nth * tiles.tile_runs;
  tile.word = (index - nth * tiles.tiles_per_run) * tiles.tile_words;
  tile.n_runs = (uint32_t)min((int64_t)tiles.tile_runs, (int64_t)tiles.n_runs - tile.run);
  tile.n_words = (uint32_t)min((int64_t)tiles.tile_words, tiles.run_words - tile.word);
  return tile;
}

/* ---- words ---------------------------------------------------------------------------------- */

template <int n_bytes> struct word {
  uint32_t at[n_bytes < 4 ? 1 : n_bytes / 4];
};

/* The type of a memory access of n bytes. */
template <int n_bytes>
using held = std::conditional_t<
    n_bytes <= 2, std::conditional_t<n_bytes == 1, uint8_t, uint16_t>,
    std::conditional_t<n_bytes == 4, uint32_t, std::conditional_t<n_bytes == 8, uint2, uint4>>>;

/* There are no cache hints, since evict-first made rows of 64 bytes 7 % slower and all others 1 %.
 */
template <int n_bytes> static __device__ __forceinline__ word<n_bytes> load_word(const char *from)
{
  const auto v = *reinterpret_cast<const held<n_bytes> *>(from);
  word<n_bytes> w = {};

  memcpy(&w, &v, n_bytes);
  return w;
}

template <int n_bytes>
static __device__ __forceinline__ void store_word(char *to, const word<n_bytes> &w)
{
  held<n_bytes> v;

  memcpy(&v, &w, n_bytes);
  *reinterpret_cast<held<n_bytes> *>(to) = v;
}

/* Calls `call` with the size of a word, 1 << word_log2 bytes, as a constant. */
template <typename Do> static __device__ __forceinline__ void by_word(uint32_t word_log2, Do call)
{
  switch (word_log2) {
  case 0:
    call(std::integral_constant<int, 1>());
    break;
  case 1:
    call(std::integral_constant<int, 2>());
    break;
  case 2:
    call(std::integral_constant<int, 4>());
    break;
  case 3:
    call(std::integral_constant<int, 8>());
    break;
  default:
    call(std::integral_constant<int, 16>());
    break;
  }
}

/* The word that begins `shift` bytes into the first of two adjacent words of 8 or 16 bytes. `shift`
 * is less than a word. */
template <int n_bytes>
static __device__ __forceinline__ word<n_bytes> bytes_at(const word<n_bytes> &low,
                                                         const word<n_bytes> &high, uint32_t shift)
{
  constexpr int N = n_bytes / 4;
  uint32_t w[2 * N];
  word<n_bytes> made;

#pragma unroll
  for (int i = 0; i < N; i++) {
    w[i] = low.at[i];
    w[N + i] = high.at[i];
  }
#pragma unroll
  for (int by = N / 2; by > 0; by /= 2) {
    const bool is_by = (shift & (4 * by)) != 0;
#pragma unroll
    for (int i = 0; i < N + by; i++)
      w[i] = is_by ? w[i + by] : w[i];
  }
#pragma unroll
  for (int i = 0; i < N; i++)
    made.at[i] = __funnelshift_r(w[i], w[i + 1], (shift & 3) * 8);
  return made;
}

/* ---- tables --------------------------------------------------------------------------------- */

static constexpr int BLOCK_THREADS = 512; /* of the blocks that jobs count */

/* Shares the tiles out among the walkers, which are the warps of all blocks or the blocks. Each
 * calls call(piece, number of the tile within the piece) for its own. */
template <int threads, int walkers, typename Do>
static __device__ __forceinline__ void each_tile(const xfi_cuda_piece *__restrict__ pieces,
                                                 const int64_t *__restrict__ first_tile,
                                                 int64_t n_pieces, int64_t n_tiles, Do call)
{
  const uint32_t walker = walkers == 1 ? 0 : threadIdx.x / (threads / walkers);
  const int64_t step = (int64_t)gridDim.x * walkers;
  int64_t at = 0;

  for (int64_t t = (int64_t)blockIdx.x * walkers + walker; t < n_tiles; t += step) {
    at = piece_of(first_tile, n_pieces, at, t);
    call(pieces[at], t - first_tile[at]);
  }
}

/*
 * A Kind moves the tiles of one kind of pieces. A kernel is made of it for tables in memory and, if
 * it takes them, one for small tables that are parameters:
 *
 *   NAME              what errors call its kernels
 *   THREADS           of a block
 *   BLOCKS            how many blocks a multiprocessor must have room for
 *   WALKERS           how many walkers a block has, as above
 *   SMALL_TABLES      does it take small tables?
 *   (piece, index)    moves a tile; called by a walker
 */
struct by_warps {
  static constexpr int THREADS = BLOCK_THREADS;
  static constexpr int BLOCKS = 2;
  static constexpr int WALKERS = THREADS / 32;
  static constexpr bool SMALL_TABLES = true;
};

template <typename Kind>
static __global__ void __launch_bounds__(Kind::THREADS, Kind::BLOCKS)
    table_kernel(const xfi_cuda_piece *__restrict__ pieces, const int64_t *__restrict__ first_tile,
                 int64_t n_pieces, int64_t n_tiles, const __grid_constant__ xfi_cuda_gate gate)
{
  const bool opens = gate_opens(gate);

  if (opens) each_tile<Kind::THREADS, Kind::WALKERS>(pieces, first_tile, n_pieces, n_tiles, Kind());
  gate_ends(gate, opens);
}

/* What a launch has of parameters. */
static_assert(sizeof(xfi_cuda_small_table) + sizeof(xfi_cuda_gate) + 2 * sizeof(int64_t) <= 4096,
              "a small table is too large");

template <typename Kind>
static __global__ void __launch_bounds__(Kind::THREADS, Kind::BLOCKS)
    small_table_kernel(const __grid_constant__ xfi_cuda_small_table table, int64_t n_pieces,
                       int64_t n_tiles, const __grid_constant__ xfi_cuda_gate gate)
{
  const bool opens = gate_opens(gate);

  if (opens)
    each_tile<Kind::THREADS, Kind::WALKERS>(table.pieces, table.first_tile, n_pieces, n_tiles,
                                            Kind());
  gate_ends(gate, opens);
}

template <typename Kind> static xfer_status load_table()
{
  xfer_status st = load(table_kernel<Kind>, Kind::NAME);

  if constexpr (Kind::SMALL_TABLES)
    if (st == XFER_OK) st = load(small_table_kernel<Kind>, Kind::NAME);
  return st;
}

template <typename Kind>
static xfer_status launch_table(const xfi_cuda_job *job, xfer_stream stream)
{
  /* A job that is alone counts XFI_CUDA_ALONE blocks for each multiprocessor, where such a kernel
   * has room for one. */
  const int divisor = Kind::BLOCKS == 1 && job->is_alone ? XFI_CUDA_ALONE : 1;
  const int64_t most = (int64_t)job->n_blocks * (BLOCK_THREADS / Kind::THREADS) / divisor;
  const unsigned n_blocks = blocks_for(job->n_tiles, Kind::WALKERS, most);

  if (job->n_tiles == 0) return XFER_OK;
  if constexpr (Kind::SMALL_TABLES)
    if (job->small != NULL)
      return launch(small_table_kernel<Kind>, n_blocks, Kind::THREADS, stream, Kind::NAME,
                    *job->small, job->n_pieces, job->n_tiles, job->gate);
  return launch(table_kernel<Kind>, n_blocks, Kind::THREADS, stream, Kind::NAME, job->pieces,
                job->first_tile, job->n_pieces, job->n_tiles, job->gate);
}

template <typename Kind>
constexpr xfi_cuda_kernels kernels_of = {load_table<Kind>, launch_table<Kind>};

/* For a table with several kinds of pieces, each of which has its own kernels: KINDS[n]. */
template <const auto &KINDS> static xfer_status load_kinds()
{
  xfer_status st = XFER_OK;

  for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS && st == XFER_OK; k++)
    st = KINDS[k].load();
  return st;
}

template <const auto &KINDS>
static xfer_status launch_kinds(const xfi_cuda_job *job, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS && st == XFER_OK; k++)
    if ((job->kinds >> k & 1) != 0) st = KINDS[k].copy(job, stream);
  return st;
}

template <const auto &KINDS>
constexpr xfi_cuda_kernels kernels_by_kind = {load_kinds<KINDS>, launch_kinds<KINDS>};

#endif
