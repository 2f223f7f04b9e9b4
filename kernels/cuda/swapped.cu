/*
 * The tiled transpose: copies of single elements whose fastest dim differs between the sides. A
 * block moves a square through shared memory, so that it reads along src's fastest dim (dim 1) and
 * writes along dst's (dim 0). Where one of these dims is short, squares are small, and each team of
 * the block's threads moves one: a whole block would wait for memory for a few hundred bytes. If
 * elements are adjacent in rows, it reads and writes units of at
 * least 4 bytes, aligned wherever rows begin, so that a warp has more bytes in flight and fewer
 * partial writes.
 */
#include "numbers.cuh"

namespace {

constexpr int WARPS = 8;
constexpr int LINE_BYTES = 128; /* of memory */
constexpr int ROWS_IN_FLIGHT = 4;

/* How warps go along rows of at most SIDE elements of ELEM bytes, by units. If ALIGNED, rows begin
 * where lines of memory do; if not, a warp begins at the line in which its row begins. */
template <int SIDE, int ELEM, int UNIT, bool ALIGNED> struct rows_of {
  static constexpr int ELEMS = UNIT / ELEM; /* in a unit */
  static constexpr int LINE = LINE_BYTES / UNIT < 32 ? LINE_BYTES / UNIT : 32;
  static constexpr int PASSES = (SIDE / ELEMS + (ALIGNED ? 0 : LINE) + 31) / 32;

  /* How many elements of a row's first unit precede the row. */
  static __device__ __forceinline__ int phase_of(uint32_t row)
  {
    return ALIGNED ? 0 : (int)(row % UNIT) / ELEM;
  }

  /* log2 of the number of lanes that share a row of n elements; no more than it has units. */
  static __device__ __forceinline__ int lanes_log2(int n)
  {
    const int most = max((n + 2 * ELEMS - 2) / ELEMS, 1);

    return most > 16 ? 5 : 32 - __clz(most - 1);
  }

  /* Calls `unit` for each of this lane's units of a row of n elements, with the unit's first
   * element, which may precede the row, and the number of the pass. */
  template <typename Do>
  static __device__ __forceinline__ void along(const char *at, int n, int log2, Do unit)
  {
    const uint32_t row = (uint32_t)(uintptr_t)at;
    const int lane = (int)threadIdx.x & ((1 << log2) - 1);
    const int before = ALIGNED || log2 < 5 ? 0 : (int)(row / UNIT % LINE);
    const int first = (lane - before) * ELEMS - phase_of(row);

#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
      const int i = first + pass * 32 * ELEMS;

      if (i < n && (ALIGNED || i > -ELEMS)) unit(i, pass);
    }
  }
};

/* Where the square of a team begins, and its extents along dims 0 and 1. */
struct square_place {
  const char *from;
  char *to;
  int64_t src_row; /* from one row to the next, bytes */
  int64_t dst_row;
  int n0;
  int n1;
  int n_rows; /* that are read, along dim 0 */
  bool is_first;
  const float *scales; /* of the first element, and strides along both dims */
  uint32_t scale_strides[2];
  int thread; /* the calling one, and how many the team has */
  int n_threads;
  char *shared; /* the square in shared memory, its rows, and bytes from one to the next */
  int n_shared;
  int pitch;
};

/* A square in shared memory, of elements of FROM bytes that become TO bytes. If PACKED, they are
 * adjacent in rows of both sides. Its rows lie along dim 1, and begin at the same place of their
 * first unit as they do in memory. Those units of dst are written whose first elements are the
 * square's own, for which up to HALO more rows are read. */
template <int FROM, int TO, bool PACKED> struct swap_square {
  static constexpr int THREADS = 32 * WARPS;

  static constexpr int SIDE = XFI_CUDA_SWAP_SIDE(FROM);
  static constexpr int SRC_UNIT = PACKED ? XFI_CUDA_SWAP_UNIT(FROM) : FROM;
  static constexpr int DST_UNIT = PACKED ? XFI_CUDA_SWAP_UNIT(TO) : TO;
  static constexpr int ELEMS = DST_UNIT / TO;
  static constexpr int HALO = ELEMS - 1;
  static constexpr int ROWS = XFI_CUDA_SWAP_ROWS(SIDE, ELEMS);
  static constexpr int PITCH = XFI_CUDA_SWAP_PITCH(FROM, SIDE);
  template <bool ALIGNED> using src_rows = rows_of<SIDE, FROM, SRC_UNIT, ALIGNED>;
  template <bool ALIGNED> using dst_rows = rows_of<SIDE, TO, DST_UNIT, ALIGNED>;

  /* The place of row i0 in shared memory. Rows whose elements form one unit of dst are far apart,
   * so that rows which lanes read at once are adjacent, in different banks. */
  static __device__ __forceinline__ int row_at(const square_place &p, uint32_t i0)
  {
    return (int)(i0 % ELEMS * (p.n_shared / ELEMS) + i0 / ELEMS) * p.pitch;
  }

  template <bool ALIGNED>
  static __device__ __forceinline__ void read_rows(const square_place &p, int64_t step)
  {
    using rows = src_rows<ALIGNED>;
    const int log2 = rows::lanes_log2(p.n1);
    const int n_at_once = p.n_threads >> log2;
    const int64_t next = n_at_once * p.src_row;
    int i0 = p.thread >> log2;
    const char *row = p.from + i0 * p.src_row;

#pragma unroll 1
    for (; i0 < p.n_rows; i0 += ROWS_IN_FLIGHT * n_at_once, row += ROWS_IN_FLIGHT * next) {
      word<SRC_UNIT> held[ROWS_IN_FLIGHT][rows::PASSES];

#pragma unroll
      for (int r = 0; r < ROWS_IN_FLIGHT; r++) {
        const char *at = row + r * next;

        if (i0 + r * n_at_once < p.n_rows)
          rows::along(at, p.n1, log2, [&](int i1, int pass) {
            held[r][pass] = load_word<SRC_UNIT>(at + i1 * step);
          });
      }
#pragma unroll
      for (int r = 0; r < ROWS_IN_FLIGHT; r++) {
        const char *at = row + r * next;
        char *to = p.shared + row_at(p, i0 + r * n_at_once) +
                   rows::phase_of((uint32_t)(uintptr_t)at) * FROM;

        if (i0 + r * n_at_once < p.n_rows)
          rows::along(at, p.n1, log2,
                      [&](int i1, int pass) { store_word(to + i1 * FROM, held[r][pass]); });
      }
    }
  }
};

/* The square in tile `index` of a piece; with TEAMS, that of this thread's team, which is empty if
 * the piece has no more. */
template <typename Square, bool TEAMS>
__device__ __forceinline__ square_place place_of(const xfi_cuda_piece &piece, int64_t index,
                                                 char *shared)
{
  const xfi_cuda_square_tiles &squares = piece.squares;
  const int n_threads = TEAMS ? Square::THREADS >> squares.teams_log2 : Square::THREADS;
  const int team = TEAMS ? (int)threadIdx.x / n_threads : 0;
  const int n_shared = TEAMS ? (int)squares.n_rows : Square::ROWS;
  const int pitch = TEAMS ? (int)squares.pitch : Square::PITCH;
  const uint32_t number =
      TEAMS ? ((uint32_t)index << squares.teams_log2) + (uint32_t)team : (uint32_t)index;
  const int64_t x0 = (int64_t)(number % squares.n0) * Square::SIDE;
  uint32_t rest = number / squares.n0;
  const int64_t x1 = (int64_t)(rest % squares.n1) * Square::SIDE;
  square_place p = {piece.src + x0 * piece.src_stride[0] + x1 * piece.src_stride[1],
                    piece.dst + x0 * piece.dst_stride[0] + x1 * piece.dst_stride[1],
                    piece.src_stride[0],
                    piece.dst_stride[1],
                    (int)min((int64_t)Square::SIDE, (int64_t)piece.extent[0] - x0),
                    (int)min((int64_t)Square::SIDE, (int64_t)piece.extent[1] - x1),
                    0,
                    x0 == 0,
                    piece.scales + x0 * piece.scale_stride[0] + x1 * piece.scale_stride[1],
                    {piece.scale_stride[0], piece.scale_stride[1]},
                    TEAMS ? (int)threadIdx.x % n_threads : (int)threadIdx.x,
                    n_threads,
                    shared + team * n_shared * pitch,
                    n_shared,
                    pitch};

  rest /= squares.n1;
  for (uint32_t d = 2; d < piece.n_dims; d++) {
    const uint32_t above = div_by(rest, piece.by_extent[d]);
    const int64_t x = rest - above * piece.extent[d];
    rest = above;
    p.from += x * piece.src_stride[d];
    p.to += x * piece.dst_stride[d];
    p.scales += x * piece.scale_stride[d];
  }
  const bool begins_units = ((uintptr_t)p.to | (uint64_t)p.dst_row) % Square::DST_UNIT == 0;
  p.n_rows =
      (int)min((int64_t)p.n0 + (begins_units ? 0 : Square::HALO), (int64_t)piece.extent[0] - x0);
  if (TEAMS && number >= squares.n) p.n_rows = p.n1 = 0;
  return p;
}

/* How a kind of pieces writes units of dst. Elements are converted between the tile and dst. */
template <uint32_t KIND, int FROM, int TO, bool PACKED>
struct swap_units : swap_square<FROM, TO, PACKED> {
  static constexpr bool IS_SCALED = KIND >= XFI_CUDA_SWAP_QUANTISE;

  using square = swap_square<FROM, TO, PACKED>;
  using square::DST_UNIT, square::ELEMS, square::row_at;

  /* Writes the unit of a row of dst that begins at the row's element i0. The row is a column of the
   * square, at `column`, and `scales` has the scale of element 0. */
  template <bool ALIGNED>
  static __device__ __forceinline__ void
  write_unit(const square_place &p, const xfi_convert &convert, char *row, int64_t step, int i0,
             const char *column, const float *scales)
  {
    const uint32_t from = (uint32_t)(uintptr_t)p.from;
    float scale = IS_SCALED ? scales[max(i0, 0) * p.scale_strides[0]] : 0;
    word<DST_UNIT> made = {};

#pragma unroll
    for (int j = 0; j < ELEMS; j++) {
      const int i = i0 + j;
      const int phase =
          square::template src_rows<ALIGNED>::phase_of(from + (uint32_t)i * (uint32_t)p.src_row);

      if (i >= p.n_rows || (!ALIGNED && i < 0)) continue;
      const word<FROM> elem = load_word<FROM>(column + row_at(p, i) + phase * FROM);
      if (IS_SCALED && p.scale_strides[0] != 0) scale = scales[i * p.scale_strides[0]];
      if constexpr (IS_SCALED)
        put_number<TO>(made, j, quantise_number<FROM>(elem.at[0], convert.from, scale));
      else if constexpr (KIND >= XFI_CUDA_SWAP_CONVERT)
        put_number<TO>(made, j, convert_number<FROM, TO>(elem.at[0], convert));
      else if constexpr (ELEMS > 1)
        put_number<TO>(made, j, elem.at[0]);
      else
        made = elem;
    }
    if constexpr (ELEMS > 1) {
      if (i0 < 0 || i0 + ELEMS > p.n_rows) {
#pragma unroll
        for (int j = 0; j < ELEMS; j++)
          if (i0 + j >= 0 && i0 + j < p.n_rows)
            store_word(row + (i0 + j) * step, word<TO>{{number_at<TO>(made, j)}});
        return;
      }
    }
    store_word(row + i0 * step, made);
  }
};

/* The kernel of a kind of pieces. */
template <uint32_t KIND, int FROM, int TO, bool PACKED>
struct swapped : swap_units<KIND, FROM, TO, PACKED> {
  static constexpr const char *NAME = "transpose kernel";
  static constexpr int BLOCKS = 4;
  static constexpr int WALKERS = 1;
  static constexpr bool SMALL_TABLES = true;

  using units = swap_units<KIND, FROM, TO, PACKED>;
  using square = swap_square<FROM, TO, PACKED>;

  template <bool ALIGNED>
  static __device__ __forceinline__ void move(const xfi_cuda_piece &piece, const square_place &p)
  {
    using rows = typename square::template dst_rows<ALIGNED>;
    const xfi_convert convert = piece.convert;
    const int64_t step = PACKED ? TO : piece.dst_stride[0];
    const int log2 = rows::lanes_log2(p.n0);
    const int n_at_once = p.n_threads >> log2;
    int i1 = p.thread >> log2;
    char *row = p.to + i1 * p.dst_row;

    square::template read_rows<ALIGNED>(p, PACKED ? FROM : piece.src_stride[1]);
    __syncthreads();
#pragma unroll 1
    for (; i1 < p.n1; i1 += n_at_once, row += n_at_once * p.dst_row)
      rows::along(row, p.n0, log2, [&](int i0, int) {
        if (i0 >= 0 || p.is_first)
          units::template write_unit<ALIGNED>(p, convert, row, step, i0, p.shared + i1 * FROM,
                                              p.scales + i1 * p.scale_strides[1]);
      });
    __syncthreads(); /* the next tile overwrites this one */
  }

  __device__ __forceinline__ void operator()(const xfi_cuda_piece &piece, int64_t index) const
  {
    __shared__ __align__(16) char shared[square::ROWS * square::PITCH];

    if (piece.kind != KIND) return;
    if (piece.squares.teams_log2 > 0) {
      move<false>(piece, place_of<square, true>(piece, index, shared));
      return;
    }
    const square_place p = place_of<square, false>(piece, index, shared);
    const uint64_t src_begins = (uintptr_t)p.from | (uint64_t)p.src_row;
    const uint64_t dst_begins = (uintptr_t)p.to | (uint64_t)p.dst_row;

    /* Rows that begin lines are worth a case of their own where a unit has several elements. */
    constexpr bool HAS_LINES = PACKED && FROM < XFI_CUDA_SWAP_UNIT(FROM);
    if (HAS_LINES && (src_begins | dst_begins) % LINE_BYTES == 0)
      move<HAS_LINES>(piece, p);
    else
      move<false>(piece, p);
  }
};

#define PLAIN(log2) kernels_of<swapped<XFI_CUDA_SWAP + (log2), 1 << (log2), 1 << (log2), true>>
#define APART(log2)                                                                                \
  kernels_of<swapped<XFI_CUDA_SWAP_APART + (log2), 1 << (log2), 1 << (log2), false>>
#define CONVERT(from, to) kernels_of<swapped<XFI_CUDA_SWAP_CONVERT_KIND(from, to), from, to, true>>
#define QUANTISE(from) kernels_of<swapped<XFI_CUDA_SWAP_QUANTISE_KIND(from), from, 1, true>>

const xfi_cuda_kernels kinds[XFI_CUDA_N_SWAPS] = {
    PLAIN(0),      PLAIN(1),      PLAIN(2),      PLAIN(3),      PLAIN(4),      APART(0),
    APART(1),      APART(2),      APART(3),      APART(4),      CONVERT(4, 4), CONVERT(4, 2),
    CONVERT(4, 1), CONVERT(2, 4), CONVERT(2, 2), CONVERT(2, 1), QUANTISE(4),   QUANTISE(2)};

} // namespace

const xfi_cuda_kernels xfi_cuda_swapped_kernels = kernels_by_kind<kinds>;
