/*
 * Copies whose runs have scales: these kernels find the amaxes of blocks, and scale elements by the
 * scale of their block, in words of 16 bytes of the source. A maximum does not depend on the order
 * in which it is taken, so scales equal those of kernels/ref bit for bit.
 */
#include "numbers.cuh"
#include "words.cuh"

namespace {

constexpr uint32_t ALL = 0xffffffffu;

/* ---- by the scale of a block ---------------------------------------------------------------- */

/* The part of an Op that loads a word with the scale of its run. */
template <int src_bytes, int dst_bytes> struct by_scale : no_end {
  struct loaded {
    word<src_bytes> numbers;
    float scale;
  };
  static constexpr int SRC_BYTES = src_bytes;
  static constexpr int DST_BYTES = dst_bytes;

  __device__ __forceinline__ by_scale(const xfi_cuda_piece &piece, const tile_at &)
      : scales(piece.scales), type(piece.convert.from)
  {
  }
  __device__ __forceinline__ loaded load(const char *from, const word_at &at) const
  {
    return {load_word<SRC_BYTES>(from), scales[at.block]};
  }

  const float *scales;
  uint32_t type;
};

/* Quantises whole words. NaNs become 0x7f. */
template <int from> struct quantise : by_scale<16, 16 / bytes_of(from)> {
  using base = by_scale<16, 16 / bytes_of(from)>;
  static constexpr int N = base::DST_BYTES;
  static constexpr int IN_FLIGHT = 8;

  using base::base;
  __device__ __forceinline__ void store(char *at, const typename base::loaded &w) const
  {
    const float inverse = __frcp_rn(w.scale);
    word<N> made = {};

#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const float2 x = numbers_at<from>(w.numbers, i);
      const float2 two = make_float2(__fmul_rn(x.x, inverse), __fmul_rn(x.y, inverse));
      made.at[i / 4] |= (uint32_t)__nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3)
                        << (8 * (i % 4));
    }
    store_word(at, made);
  }
};

/* Quantises single elements, where words would not be aligned. */
template <int from_bytes> struct quantise_one : by_scale<from_bytes, 1> {
  using base = by_scale<from_bytes, 1>;
  static constexpr int IN_FLIGHT = 4;

  using base::base;
  __device__ __forceinline__ void store(char *at, const typename base::loaded &w) const
  {
    store_word(at, word<1>{{quantise_number<from_bytes>(w.numbers.at[0], this->type, w.scale)}});
  }
};

/* ---- amaxes --------------------------------------------------------------------------------- */

/* Magnitudes are compared as bits, two at once for 2-byte types. */
template <int from_bytes> __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b)
{
  return from_bytes == 4 ? max(a, b) : __vmaxu2(a, b);
}

template <int from_bytes, int n_bytes>
__device__ __forceinline__ uint32_t largest_of(const word<n_bytes> &w)
{
  uint32_t found = 0;

#pragma unroll
  for (uint32_t bits : w.at)
    found = larger<from_bytes>(found, bits & (from_bytes == 4 ? 0x7fffffffu : 0x7fff7fffu));
  return found;
}

/* Stores amaxes in the table of scales. Lanes that have words of the same runs combine theirs
 * before they update it. If they have several words, each lane ends up with a share of these, so
 * that eight words take eight shuffles for any number of lanes. */
template <int from_bytes> struct amax_table {
  __device__ __forceinline__ amax_table(const xfi_cuda_piece &piece, const tile_at &tile)
      : scales(piece.scales), type(piece.convert.from), lanes(lanes_of(tile))
  {
  }
  /* Combines `found`, each of which belongs at `to`, and stores it. Lanes that are less than
   * `apart` from each other have different words already. */
  template <int n>
  __device__ __forceinline__ void settle(uint32_t (&found)[n], uint32_t (&to)[n],
                                         uint32_t apart) const
  {
    if constexpr (n > 1) {
      if (apart < lanes) {
        const bool upper = (threadIdx.x & apart) != 0;
        uint32_t half[n / 2];
        uint32_t half_to[n / 2];

#pragma unroll
        for (int i = 0; i < n / 2; i++) {
          const uint32_t low = found[i];
          const uint32_t high = found[i + n / 2];
          const uint32_t theirs = __shfl_xor_sync(ALL, upper ? low : high, apart);
          half[i] = larger<from_bytes>(upper ? high : low, theirs);
          half_to[i] = upper ? to[i + n / 2] : to[i];
        }
        settle(half, half_to, 2 * apart);
        return;
      }
    }
    for (uint32_t by = apart; by < lanes; by *= 2)
      found[0] = larger<from_bytes>(
          found[0], __shfl_xor_sync(ALL, found[0], by)); /* the only one that is left */
    if ((threadIdx.x & (lanes - 1) & ~(apart - 1)) != 0) return;
#pragma unroll
    for (int i = 0; i < n; i++)
      if (found[i] != 0) tell(to[i], found[i]);
  }

private:
  static __device__ __forceinline__ uint32_t lanes_of(const tile_at &tile)
  {
    if (tile.n_runs == 1) return 32; /* whose words are all of one run */
    return tile.n_words <= 32 && (tile.n_words & (tile.n_words - 1)) == 0 ? tile.n_words : 1;
  }
  __device__ __forceinline__ void tell(uint32_t to, uint32_t found) const
  {
    if (from_bytes == 2)
      found = __float_as_uint(load_number<from_bytes>(max(found >> 16, found & 0xffff), type));
    atomicMax(reinterpret_cast<unsigned *>(scales + to), found);
  }

  float *scales;
  uint32_t type;
  uint32_t lanes; /* that have the same runs */
};

/* An Op that finds amaxes. A lane accumulates the amax of the block that it is at. */
template <int from_bytes, int n_bytes> struct amax {
  struct loaded {
    word<n_bytes> numbers;
    uint32_t block;
  };
  static constexpr int IN_FLIGHT = 8;
  static constexpr int SRC_BYTES = n_bytes;
  static constexpr int DST_BYTES = 0;

  __device__ __forceinline__ amax(const xfi_cuda_piece &piece, const tile_at &tile)
      : block(run_of(piece, (uint32_t)tile.run).block), largest(0), table(piece, tile)
  {
  }
  __device__ __forceinline__ loaded load(const char *from, const word_at &at) const
  {
    return {load_word<n_bytes>(from), at.block};
  }
  __device__ __forceinline__ void store_all(const loaded *words, int n)
  {
    uint32_t found[IN_FLIGHT];
    bool stays = true;

#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
      found[u] = u < n ? largest_of<from_bytes>(words[u].numbers) : 0;
      stays &= u >= n || words[u].block == block;
    }
    if (__all_sync(ALL, stays)) {
#pragma unroll
      for (int u = 0; u < IN_FLIGHT; u++)
        largest = larger<from_bytes>(largest, found[u]);
      return;
    }
    end();
    largest = 0;
    uint32_t to[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++)
      to[u] = words[u].block;
    table.settle(found, to, 1);
  }
  __device__ __forceinline__ void end() const
  {
    uint32_t found[1] = {largest};
    uint32_t to[1] = {block};
    table.settle(found, to, 1);
  }

private:
  uint32_t block;               /* that `largest` is of */
  uint32_t largest;             /* bits of magnitudes */
  amax_table<from_bytes> table; /* last, since nvcc 13 generates a tenth more code if it is first */
};

template <int from_bytes, int n_bytes>
__device__ __forceinline__ void store_words(amax<from_bytes, n_bytes> &op,
                                            const typename amax<from_bytes, n_bytes>::loaded *words,
                                            int n, char *const *)
{
  op.store_all(words, n);
}

/* ---- kernels -------------------------------------------------------------------------------- */

struct scaled : by_warps_alone {
  static constexpr const char *NAME = "block kernel";
};

struct one_by_one : scaled {
  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, int64_t index) const
  {
    const bool finds = piece.convert.op == XFI_CONVERT_AMAX;

    if (piece.kind != XFI_CUDA_BLOCKS_ONE_BY_ONE) return;
    const tile_at tile = tile_of(piece, index);

    if (piece.convert.src_bytes == 4)
      finds ? do_tile<amax<4, 4>>(piece, tile) : do_tile<quantise_one<4>>(piece, tile);
    else
      finds ? do_tile<amax<2, 2>>(piece, tile) : do_tile<quantise_one<2>>(piece, tile);
  }
};

const xfi_cuda_kernels kinds[XFI_CUDA_N_BLOCKS] = {
    kernels_of<words_of<scaled, XFI_CUDA_QUANTISE, quantise<XFER_F32>>>,
    kernels_of<words_of<scaled, XFI_CUDA_QUANTISE + 1, quantise<XFER_BF16>>>,
    kernels_of<words_of<scaled, XFI_CUDA_QUANTISE + 2, quantise<XFER_F16>>>,
    kernels_of<words_of<scaled, XFI_CUDA_AMAX_OF_4_BYTES, amax<4, 16>>>,
    kernels_of<words_of<scaled, XFI_CUDA_AMAX_OF_2_BYTES, amax<2, 16>>>,
    kernels_of<one_by_one>};

} // namespace

const xfi_cuda_kernels xfi_cuda_blocks_kernels = kernels_by_kind<kinds>;
