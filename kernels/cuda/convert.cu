/*
 * Strided copies that convert elements. A word has as many elements as take 16 bytes in the larger
 * of the two types, so that the loads or the stores of a warp are as wide as they can be, and
 * neither leave gaps. Each pair of types has a loop of its own, since a test of the types for each
 * element would halve the rate. Numbers equal those of kernels/ref/convert.c bit for bit; NaNs,
 * whose sign the hardware's conversions drop, are put right afterwards.
 */
#include "lines.cuh"
#include "numbers.cuh"
#include "skewed.cuh"

namespace {

/* Converts N elements one by one: where words would not be aligned, and for scales. */
template <int N, int from_bytes, int to_bytes> struct each_number : no_end {
  using loaded = word<N * from_bytes>;
  static constexpr int IN_FLIGHT = 4;
  static constexpr int SRC_BYTES = N * from_bytes;
  static constexpr int DST_BYTES = N * to_bytes;

  __device__ __forceinline__ each_number(const xfi_cuda_piece &piece, const tile_at &)
      : convert(piece.convert)
  {
  }
  __device__ __forceinline__ loaded load(const char *from, const word_at &) const
  {
    return load_word<SRC_BYTES>(from);
  }
  __device__ __forceinline__ void store(char *to, const loaded &w) const
  {
    word<DST_BYTES> made = {};

#pragma unroll
    for (int i = 0; i < N; i++) {
      const uint32_t bits = number_at<from_bytes>(w, i);
      put_number<to_bytes>(made, i, convert_number<from_bytes, to_bytes>(bits, convert));
    }
    store_word(to, made);
  }

  const xfi_convert &convert;
};

/* ---- words of one pair of types ------------------------------------------------------------- */

/* Rounds two numbers. The first is in the low half of the bits that both take. */
template <int type> __device__ __forceinline__ uint32_t round_two(float x, float y)
{
  if constexpr (type == XFER_BF16) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
    return __bfloat16_as_ushort(two.x) | (uint32_t)__bfloat16_as_ushort(two.y) << 16;
  } else if constexpr (type == XFER_F16) {
    const __half2 two = __floats2half2_rn(x, y);
    return __half_as_ushort(two.x) | (uint32_t)__half_as_ushort(two.y) << 16;
  } else {
    return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE,
                                    type == XFER_F8E4M3 ? __NV_E4M3 : __NV_E5M2);
  }
}

template <int from, int to> struct all_numbers : no_end {
  static constexpr int FROM_BYTES = bytes_of(from);
  static constexpr int TO_BYTES = bytes_of(to);
  static constexpr int N = 16 / (FROM_BYTES > TO_BYTES ? FROM_BYTES : TO_BYTES); /* as tables.c */
  static constexpr int SRC_BYTES = N * FROM_BYTES;
  static constexpr int DST_BYTES = N * TO_BYTES;
  static constexpr int IN_FLIGHT = 8;
  using loaded = word<SRC_BYTES>;

  __device__ __forceinline__ all_numbers(const xfi_cuda_piece &piece, const tile_at &)
      : times(piece.convert.op == XFI_CONVERT_TIMES ? piece.convert.value : 1.0F),
        plus(piece.convert.op == XFI_CONVERT_PLUS ? piece.convert.value : -0.0F), /* x - 0 is x */
        keeps_nans(from == XFER_BF16 && to == XFER_F32 && piece.convert.op == XFI_CONVERT_AS_IT_IS)
  {
  }
  __device__ __forceinline__ loaded load(const char *at, const word_at &) const
  {
    return load_word<SRC_BYTES>(at);
  }
  __device__ __forceinline__ void store(char *at, const loaded &w) const
  {
    store_word(at, converted(w));
  }
  __device__ __forceinline__ word<DST_BYTES> converted(const word<SRC_BYTES> &w) const
  {
    word<DST_BYTES> made = {};
    bool has_nan = false;

#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const float2 two = numbers_at<from>(w, i);
      const float x = __fadd_rn(__fmul_rn(two.x, times), plus);
      const float y = __fadd_rn(__fmul_rn(two.y, times), plus);
      has_nan |= two.x != two.x || two.y != two.y;
      if constexpr (to == XFER_F32) {
        made.at[i] = __float_as_uint(x);
        made.at[i + 1] = __float_as_uint(y);
      } else {
        made.at[i * TO_BYTES / 4] |= round_two<to>(x, y) << (8 * (i * TO_BYTES % 4));
      }
    }
    if (has_nan) put_nans(made, w);
    return made;
  }

private:
  __device__ __forceinline__ void put_nans(word<DST_BYTES> &made, const loaded &w) const
  {
#pragma unroll
    for (int i = 0; i < N; i++) {
      const float x = load_number<FROM_BYTES>(number_at<FROM_BYTES>(w, i), from);
      const uint32_t nan = keeps_nans ? __float_as_uint(x) : nan_number<TO_BYTES>(x, to);
      if (x != x) put_number<TO_BYTES>(made, i, nan);
    }
  }

  float times;
  float plus;
  bool keeps_nans;
};

template <int from, int to> using skewed_numbers = skewed<all_numbers<from, to>>;

/* ---- kernels -------------------------------------------------------------------------------- */

struct converts : by_warps_alone {
  static constexpr const char *NAME = "convert kernel";
};

struct one_by_one : converts {
  template <int from_bytes>
  static __device__ __forceinline__ void by_destination(const xfi_cuda_piece &piece,
                                                        const tile_at &tile)
  {
    if (piece.convert.dst_bytes == 1)
      do_tile<each_number<1, from_bytes, 1>>(piece, tile);
    else if (piece.convert.dst_bytes == 2)
      do_tile<each_number<1, from_bytes, 2>>(piece, tile);
    else
      do_tile<each_number<1, from_bytes, 4>>(piece, tile);
  }

  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, int64_t index) const
  {
    if (piece.kind != XFI_CUDA_CONVERT_ONE_BY_ONE) return;
    const tile_at tile = tile_of(piece, index);

    if (piece.runs.word_log2 != 0 && piece.convert.dst_bytes == 4)
      do_tile<each_number<4, 4, 4>>(piece, tile);
    else if (piece.runs.word_log2 != 0)
      do_tile<each_number<4, 4, 1>>(piece, tile);
    else if (piece.convert.src_bytes == 4)
      by_destination<4>(piece, tile);
    else
      by_destination<2>(piece, tile);
  }
};

struct in_lines : converts {
  template <int from_bytes>
  static __device__ __forceinline__ void by_destination(const xfi_cuda_piece &piece, int64_t index,
                                                        char *image)
  {
    if (piece.convert.dst_bytes == 1)
      copy_lines<each_number<1, from_bytes, 1>>(piece, index, image);
    else if (piece.convert.dst_bytes == 2)
      copy_lines<each_number<1, from_bytes, 2>>(piece, index, image);
    else
      copy_lines<each_number<1, from_bytes, 4>>(piece, index, image);
  }

  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, int64_t index) const
  {
    __shared__ __align__(16) char images[WALKERS][IMAGE_BYTES];
    char *const image = images[threadIdx.x / 32];

    if (piece.kind != XFI_CUDA_CONVERT_LINES) return;
    if (piece.convert.src_bytes == 4)
      by_destination<4>(piece, index, image);
    else
      by_destination<2>(piece, index, image);
  }
};

template <uint32_t kind, template <int, int> typename Numbers, int from, int to>
constexpr xfi_cuda_kernels pair = kernels_of<words_of<converts, kind, Numbers<from, to>>>;

#define FROM(kind, Numbers, type)                                                                  \
  pair<(kind), Numbers, type, XFER_F32>, pair<(kind) + 1, Numbers, type, XFER_BF16>,               \
      pair<(kind) + 2, Numbers, type, XFER_F16>, pair<(kind) + 3, Numbers, type, XFER_F8E4M3>,     \
      pair<(kind) + 4, Numbers, type, XFER_F8E5M2>
#define PAIRS(kind, Numbers)                                                                       \
  FROM(kind, Numbers, XFER_F32), FROM((kind) + 5, Numbers, XFER_BF16),                             \
      FROM((kind) + 10, Numbers, XFER_F16)

const xfi_cuda_kernels kinds[XFI_CUDA_N_CONVERTS] = {PAIRS(XFI_CUDA_CONVERT, all_numbers),
                                                     PAIRS(XFI_CUDA_CONVERT_SKEWED, skewed_numbers),
                                                     kernels_of<one_by_one>, kernels_of<in_lines>};

} // namespace

const xfi_cuda_kernels xfi_cuda_converts_kernels = kernels_by_kind<kinds>;
