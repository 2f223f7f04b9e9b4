/*
 * Digests. Each warp takes its tiles on its own and accumulates in registers, which it adds to the
 * sums when it comes to another box. A tile of a long run is some blocks of 2 KiB in the tensor's
 * order, of which a lane has four units with one chunk weight; a tile of short runs is several
 * whole runs, unit by unit.
 */
#include "tiles.cuh"

namespace {

constexpr int WARPS = BLOCK_THREADS / 32;
constexpr int UNITS = 4; /* that a lane has in flight */
constexpr int64_t UNIT = XFI_DIGEST_UNIT;
constexpr int64_t BLOCK = UNITS * 32 * UNIT;
constexpr int64_t TILE_BLOCKS = 8; /* as in digest_table.c */

__constant__ uint32_t keys[2][XFI_DIGEST_KEYS] = XFI_DIGEST_KEY_TABLE;

using unit = word<UNIT>;

/* Adds a unit, weighted by its four keys, from number `key` on. */
__device__ __forceinline__ void weigh(uint64_t h[2], const unit &u, uint32_t key)
{
#pragma unroll
  for (int w = 0; w < 4; w++) {
#pragma unroll
    for (int s = 0; s < 2; s++)
      h[s] += (uint64_t)u.at[w] * keys[s][key + w];
  }
}

/* Loads bytes lo to hi - 1 of the unit that would begin at `at`. The others are 0. */
template <int n_bytes>
__device__ __forceinline__ unit unit_load(const char *at, int64_t lo, int64_t hi)
{
  unit u = {};
  if (lo <= 0 && hi >= UNIT) {
    constexpr int N = UNIT / n_bytes;
    held<n_bytes> words[N];
#pragma unroll
    for (int i = 0; i < N; i++)
      words[i] = *reinterpret_cast<const held<n_bytes> *>(at + i * sizeof *words);
    memcpy(&u, words, sizeof u);
    return u;
  }
#pragma unroll
  for (int i = 0; i < (int)UNIT; i++) {
    if (i >= lo && i < hi) u.at[i / 4] |= (uint32_t)(unsigned char)at[i] << (8 * (i % 4));
  }
  return u;
}

/* Adds what a run has of a block. The run has bytes [begin, end) of the order, whose first byte
 * would lie at `zero`. */
template <int n_bytes>
__device__ __forceinline__ void add_block(uint64_t sum[2], const char *zero, int64_t block,
                                          int64_t begin, int64_t end)
{
  const int64_t lane = threadIdx.x & 31;
  const int64_t first = block * BLOCK + lane * UNIT;
  uint64_t h[2] = {0, 0};
  uint64_t weight[2];
  unit units[UNITS];

  if (block * BLOCK >= begin && (block + 1) * BLOCK <= end) {
#pragma unroll
    for (int u = 0; u < UNITS; u++)
      units[u] = unit_load<n_bytes>(zero + first + u * 32 * UNIT, 0, UNIT);
  } else {
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      const int64_t at = first + u * 32 * UNIT;
      units[u] = unit_load<n_bytes>(zero + at, begin - at, end - at);
    }
  }
#pragma unroll
  for (int u = 0; u < UNITS; u++)
    weigh(h, units[u], 4 * u);
  xfi_digest_chunk(weight, (uint64_t)(block * 32 + lane));
  sum[0] += h[0] * weight[0];
  sum[1] += h[1] * weight[1];
}

/* Where run `row` begins, in memory and in the order. */
__device__ __forceinline__ void row_at(const xfi_cuda_piece &s, uint32_t row, const char **src,
                                       int64_t *offset)
{
  const run_at run = run_of(s, row);

  *src = s.src + run.src;
  *offset = xfi_digest_offset(s.dst) + run.dst;
}

template <int n_bytes>
__device__ __forceinline__ void add_part(uint64_t sum[2], const xfi_cuda_piece &s, int64_t tile)
{
  const int64_t row = s.digest.tiles_per_run == 1 ? tile : tile / s.digest.tiles_per_run;
  const int64_t col = tile - row * s.digest.tiles_per_run;
  const char *src;
  int64_t begin;

  row_at(s, (uint32_t)row, &src, &begin);
  const int64_t end = begin + s.digest.run_bytes;
  const int64_t first = begin / BLOCK + col * TILE_BLOCKS;
  const int64_t last = min(first + TILE_BLOCKS, (end + BLOCK - 1) / BLOCK);
  for (int64_t block = first; block < last; block++)
    add_block<n_bytes>(sum, src - begin, block, begin, end);
}

template <int n_bytes>
__device__ __forceinline__ void add_runs(uint64_t sum[2], const xfi_cuda_piece &s, int64_t tile)
{
  const uint32_t first_row = (uint32_t)tile * s.digest.tile_runs;
  const uint32_t n_units =
      min(s.digest.tile_runs, s.digest.n_runs - first_row) * s.digest.run_units;
  const uint32_t lane = threadIdx.x & 31;

  for (uint32_t first = lane; first < n_units; first += 32 * UNITS) {
    unit units[UNITS];
    int64_t number[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      const uint32_t i = first + 32 * u;
      units[u] = unit{};
      number[u] = 0;
      if (i < n_units) {
        const uint32_t row = div_by(i, s.digest.by_run_units);
        const char *src;
        int64_t begin;
        row_at(s, first_row + row, &src, &begin);
        number[u] = begin / UNIT + (i - row * s.digest.run_units);
        const int64_t at = number[u] * UNIT;
        units[u] =
            unit_load<n_bytes>(src + (at - begin), begin - at, begin + s.digest.run_bytes - at);
      }
    }
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      uint64_t h[2] = {0, 0};
      uint64_t weight[2];
      weigh(h, units[u], xfi_digest_key_of((uint64_t)number[u]));
      xfi_digest_chunk(weight, xfi_digest_chunk_of((uint64_t)number[u]));
      sum[0] += h[0] * weight[0];
      sum[1] += h[1] * weight[1];
    }
  }
}

/* Adds the warp's sum of a box to that of the box, and begins anew. */
__device__ __forceinline__ void give(xfi_sum *sums, const xfi_cuda_piece &s, uint64_t sum[2])
{
#pragma unroll
  for (int k = 0; k < 2; k++) {
    unsigned long long total = sum[k];
    for (int step = 16; step > 0; step /= 2)
      total += __shfl_xor_sync(0xffffffffu, total, step);
    if ((threadIdx.x & 31) == 0)
      atomicAdd((unsigned long long *)&sums[s.digest.sum].word[k], total * s.digest.factor);
    sum[k] = 0;
  }
}

__global__ void __launch_bounds__(BLOCK_THREADS, 2)
    digest_kernel(const xfi_cuda_piece *__restrict__ pieces, const int64_t *__restrict__ first_tile,
                  int64_t n_pieces, int64_t n_tiles, xfi_sum *sums)
{
  uint64_t sum[2] = {0, 0};
  const xfi_cuda_piece *of = NULL; /* the box that `sum` belongs to */

  const auto add = [&](const xfi_cuda_piece &s, int64_t index) {
    if (of != NULL && of != &s) give(sums, *of, sum);
    of = &s;
    by_word(s.digest.word_log2, [&](auto n) {
      if (s.digest.tile_runs == 1)
        add_part<decltype(n)::value>(sum, s, index);
      else
        add_runs<decltype(n)::value>(sum, s, index);
    });
  };

  each_tile<BLOCK_THREADS, WARPS>(pieces, first_tile, n_pieces, n_tiles, add);
  if (of != NULL) give(sums, *of, sum);
}

} // namespace

extern "C" xfer_status xfi_cuda_digest_load(void)
{
  return load(digest_kernel, "digest kernel");
}

extern "C" xfer_status xfi_cuda_digest(const xfi_cuda_job *job, xfi_sum *sums, xfer_stream stream)
{
  if (job->n_tiles == 0) return XFER_OK;
  const unsigned n_blocks = blocks_for(job->n_tiles, WARPS, job->n_blocks);
  return launch(digest_kernel, n_blocks, BLOCK_THREADS, stream, "digest kernel", job->pieces,
                job->first_tile, job->n_pieces, job->n_tiles, sums);
}
