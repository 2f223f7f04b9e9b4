/* Runs that begin anywhere in words. Each word of dst is assembled from two of src. */
#ifndef XFI_CUDA_SKEWED_CUH
#define XFI_CUDA_SKEWED_CUH

#include "words.cuh"

/* How many elements precede `to` in its word. */
template <int word_bytes, int elem_bytes>
static __device__ __forceinline__ int skew_of(const char *to)
{
  return (int)((uint32_t)(uintptr_t)to % word_bytes) / elem_bytes;
}

/* Stores bytes `first` to `end` of each lane's word, which begins at `to`; a lane whose `end` is
 * not above `first` has none. Each byte of a word is stored by another lane, so that they cross a
 * link as one access. All lanes call it together. */
template <int n_bytes>
static __device__ __forceinline__ void store_parts(char *to, const word<n_bytes> &w, int first,
                                                   int end)
{
  constexpr uint32_t ALL = 0xffffffffu;
  constexpr int AT_ONCE = 32 / n_bytes;
  const int lane = (int)threadIdx.x & 31;
  const int byte = lane % n_bytes;
  const int nth = lane / n_bytes;
  uint32_t left = __ballot_sync(ALL, first < end);

  while (left != 0) {
    uint32_t from = left;
#pragma unroll
    for (int i = 1; i < AT_ONCE; i++)
      if (i <= nth) from &= from - 1;
    const int owner = (__ffs((int)from) - 1) & 31;
    const uintptr_t at = __shfl_sync(ALL, (uintptr_t)to, owner);
    const int begins = __shfl_sync(ALL, first, owner);
    const int ends = __shfl_sync(ALL, end, owner);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < n_bytes / 4; i++) {
      const uint32_t theirs = __shfl_sync(ALL, w.at[i], owner);
      if (byte / 4 == i) bits = theirs;
    }
    if (from != 0 && byte >= begins && byte < ends)
      ((char *)at)[byte] = (char)(bits >> (8 * (byte % 4)));
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
      left &= left - 1;
  }
}

/* The elements that the piece's last run has in its last word of src, unless it fills that word.
 * They are copied one by one, so that nothing is read beyond them, where the allocation may end. No
 * other run ends in that word. */
template <typename Words> struct run_tail {
  static constexpr int FROM_BYTES = Words::FROM_BYTES;

  __device__ __forceinline__ int elems() const
  {
    return (int)min((int64_t)((uintptr_t)src_end() % Words::SRC_BYTES / FROM_BYTES),
                    piece.run_elems);
  }
  /* Where the last whole word ends. */
  __device__ __forceinline__ const char *begin() const
  {
    return src_end() - elems() * FROM_BYTES;
  }
  /* The first n lanes copy one element each. */
  __device__ __forceinline__ void copy(int n, const Words &words) const
  {
    const int lane = (int)threadIdx.x & 31;
    const run_at run = run_of(piece, piece.runs.n_runs - 1);

    if (lane < n) {
      const int64_t element = piece.run_elems - n + lane;
      const word<FROM_BYTES> one =
          load_word<FROM_BYTES>(piece.src + run.src + element * FROM_BYTES);
      const word<Words::DST_BYTES> made = words.converted({{one.at[0]}});
      store_word(piece.dst + run.dst + element * Words::TO_BYTES,
                 word<Words::TO_BYTES>{{made.at[0]}});
    }
  }

  const xfi_cuda_piece &piece;

private:
  __device__ __forceinline__ const char *src_end() const
  {
    return piece.src + run_of(piece, piece.runs.n_runs - 1).src + piece.run_elems * FROM_BYTES;
  }
};

/* The two words of src that hold the elements of a word of dst. */
template <int n_bytes> struct word_pair {
  word<n_bytes> low;
  word<n_bytes> high;
  uint32_t shift; /* where the first element begins in the two words, in bytes */
  int first;      /* elements first to end - 1 of the word are the run's */
  int end;
};

/*
 * An Op (words.cuh) for Words, which have N elements of FROM_BYTES that become TO_BYTES by
 * converted(word). Words are counted as dst has them, from the one that holds the run's first
 * element. Each is made of the two words of src that hold its elements; where the run begins or
 * ends within a word, a part of it is stored.
 */
template <typename Words> struct skewed : Words {
  using base = Words;
  using base::DST_BYTES, base::FROM_BYTES, base::N, base::SRC_BYTES, base::TO_BYTES;
  using loaded = word_pair<SRC_BYTES>;
  static constexpr int IN_FLIGHT = 4;
  static constexpr int ELEMS_MAX = 1 << 30; /* more than a tile has */

  __device__ __forceinline__ skewed(const xfi_cuda_piece &piece, const tile_at &tile)
      : base(piece, tile), tail{piece}, is_last_run(tile.run + tile.n_runs == piece.runs.n_runs),
        is_last(is_last_run && tile.word + tile.n_words == piece.runs.run_words),
        before(min(tile.word * N, (int64_t)N)),
        after((int)min(piece.run_elems - tile.word * N, (int64_t)ELEMS_MAX)),
        stop(is_last_run ? this->tail.begin() : (const char *)INT64_MAX)
  {
  }
  __device__ __forceinline__ loaded load(const char *from_word, const word_at &at) const
  {
    const int skew = skew_of<DST_BYTES, TO_BYTES>(at.to);
    const int element = (int)at.col * N - skew; /* of the tile */
    const char *const begin = from_word - skew * FROM_BYTES;
    const int whole = (int)min(stop - begin, (int64_t)(N * FROM_BYTES)) / FROM_BYTES;
    loaded w = {{},
                {},
                (uint32_t)(uintptr_t)begin % SRC_BYTES,
                max(0, -before - element),
                min(whole, after - element)};

    if (w.first < w.end) {
      const char *const low = begin - w.shift;
      const char *const last = begin + w.end * FROM_BYTES - 1;
      const bool has_low = begin + w.first * FROM_BYTES < low + SRC_BYTES;
      const bool has_high = last >= low + SRC_BYTES;
      w.low = load_word<SRC_BYTES>(has_low ? low : low + SRC_BYTES);
      w.high = load_word<SRC_BYTES>(has_high ? low + SRC_BYTES : low);
    }
    return w;
  }
  /* All lanes call it at once, with words or without. */
  __device__ __forceinline__ void store(char *to_word, const loaded &w) const
  {
    const word<DST_BYTES> made = this->converted(bytes_at(w.low, w.high, w.shift));
    char *const begin = to_word - skew_of<DST_BYTES, TO_BYTES>(to_word) * TO_BYTES;
    const bool is_whole = w.first == 0 && w.end == N;

    if (is_whole) store_word(begin, made);
    store_parts(begin, made, w.first * TO_BYTES, is_whole ? 0 : w.end * TO_BYTES);
  }

  __device__ __forceinline__ void end() const
  {
    tail.copy(is_last ? tail.elems() : 0, *this);
  }

private:
  run_tail<Words> tail;
  bool is_last_run; /* the tile has the last run of the piece */
  bool is_last;     /* the tile is the last one of the piece */
  int before;       /* how many elements of the run precede the tile's; at most N */
  int after;        /* how many there are from the tile's first one on */
  const char *stop; /* no word of src is read beyond this */
};

template <typename Words>
static __device__ __forceinline__ void
store_words(skewed<Words> &op, const typename skewed<Words>::loaded *words, int n, char *const *to)
{
#pragma unroll
  for (int u = 0; u < skewed<Words>::IN_FLIGHT; u++) {
    typename skewed<Words>::loaded w = words[u];
    if (u >= n) w.first = w.end = 0;
    op.store(to[u], w);
  }
}

#endif
