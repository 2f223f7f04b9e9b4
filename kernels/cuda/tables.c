/*
 * Makes the tables of the CUDA kernels from copies. For each copy it chooses a kernel and the
 * widest word that the alignment of both sides allows, and it cuts the work into tiles of about the
 * same size.
 */
#include "tables.h"

#include <string.h>

#include "alloc.h"
#include "error.h"
#include "vec.h"

enum {
  WORD_BYTES_MAX = 16,
  /* Large enough to hide the search for a tile's piece behind the copying of its bytes. */
  TILE_BYTES_MAX = 16 * 1024,
  /* What a warp loads in one round; smaller tiles would leave lanes idle. */
  TILE_BYTES_MIN = 2 * 1024,
  TILE_WORDS_MAX = 2048,
  /* A line along dim 0 of at least this many words is a tile of its own, since kernels do without
   * divisions within one line. */
  LINE_WORDS_MIN = XFI_CUDA_WARP_WORDS,
  WARPS_PER_BLOCK = 16,
  SWAP_EXTENT_MIN = 8, /* with less, a square tile is mostly empty */
  /* Runs at odd addresses that have fewer narrow words, or fewer converted elements, are as fast
   * word by word. */
  SKEWED_WORDS_MIN = 64,
  SKEWED_ELEMS_MIN = 48,
  TOGETHER_BYTES_MAX = 2048, /* longer runs are as fast one by one */
  APART_BYTES_MAX = 768,
  APART_WORD_LOG2_MAX = 2,
  LINE_BYTES_MIN = 256,
  LINE_ELEMS_MAX = 96 /* longer runs of converted elements are as fast one by one */
};
static const int64_t RUNS_MAX = INT64_C(1) << 31; /* what xfi_cuda_div can divide is below */

xfi_cuda_div xfi_cuda_div_make(uint32_t d)
{
  uint32_t shift = 0;

  while ((UINT64_C(1) << shift) < d)
    shift++;
  const uint64_t magic = (((UINT64_C(1) << shift) - d) << 32) / d + 1;
  return (xfi_cuda_div){.magic = (uint32_t)magic, .shift = shift};
}

bool xfi_cuda_halve(xfi_copy halves[2], const xfi_copy *c)
{
  int64_t widest = 0;
  int64_t low;

  if (xfi_copy_runs(c) < RUNS_MAX) return false;
  for (int64_t d = 1; d < c->n_dims; d++)
    if (c->extent[d] > c->extent[widest]) widest = d;
  low = c->extent[widest] / 2;
  halves[0] = halves[1] = *c;
  halves[0].extent[widest] = low;
  halves[1].extent[widest] -= low;
  halves[1].dst += low * c->dst_stride[widest];
  if (c->src != NULL) halves[1].src += low * c->src_stride[widest];
  if (xfi_copy_has_scales(c)) halves[1].scales += low * c->scale_stride[widest];
  return true;
}

uint32_t xfi_cuda_word_log2(uint64_t bits)
{
  return (uint32_t)__builtin_ctzll((unsigned long long)(bits | WORD_BYTES_MAX));
}

/* A power of two that divides the result also divides the address of each run of this side. */
static uint64_t starts_of(const xfi_copy *c, const char *base, const int64_t *stride)
{
  uint64_t bits = (uint64_t)(uintptr_t)base;

  for (int64_t d = 0; d < c->n_dims; d++)
    bits |= (uint64_t)stride[d];
  return bits;
}

static uint64_t src_starts(const xfi_copy *c)
{
  return c->src == NULL ? 0 : starts_of(c, c->src, c->src_stride);
}

static uint64_t dst_starts(const xfi_copy *c)
{
  return starts_of(c, c->dst, c->dst_stride);
}

static xfer_status make_room(xfi_cuda_table *t, size_t n_pieces)
{
  XFI_TRY(xfi_vec_reserve(&t->pieces, &t->pieces_cap, n_pieces, sizeof *t->pieces));
  return xfi_vec_reserve(&t->first_tile, &t->first_tile_cap, n_pieces + 1, sizeof *t->first_tile);
}

/* The table of copies whose order of dims stays the same. */
static xfi_cuda_table *table_of(xfi_cuda_tables *tables, const xfi_copy *c)
{
  if (c->convert == NULL) return &tables->at[XFI_CUDA_ROWS];
  return &tables->at[xfi_copy_has_scales(c) ? XFI_CUDA_BLOCKS : XFI_CUDA_CONVERTS];
}

xfer_status xfi_cuda_piece_begin(xfi_cuda_piece **piece, xfi_cuda_table *t, const xfi_copy *c)
{
  xfi_cuda_piece *made;

  XFI_TRY(make_room(t, t->n_pieces + 1));
  made = &t->pieces[t->n_pieces]; /* zeros */
  made->src = c->src;
  made->dst = c->dst;
  made->run_elems = c->run_bytes / (c->convert == NULL ? 1 : c->convert->dst_bytes);
  made->n_dims = (uint32_t)c->n_dims;
  for (int64_t d = 0; d < c->n_dims; d++) {
    int64_t from = c->n_dims - 1 - d;
    made->extent[d] = (uint32_t)c->extent[from];
    made->by_extent[d] = xfi_cuda_div_make(made->extent[d]);
    made->src_stride[d] = c->src_stride[from];
    made->dst_stride[d] = c->dst_stride[from];
    made->scale_stride[d] = (uint32_t)c->scale_stride[from];
  }
  *piece = made;
  return XFER_OK;
}

void xfi_cuda_piece_end(xfi_cuda_table *t, int64_t n_tiles)
{
  t->kinds |= UINT32_C(1) << t->pieces[t->n_pieces].kind;
  t->first_tile[t->n_pieces + 1] = t->first_tile[t->n_pieces] + n_tiles;
  t->n_pieces++;
}

static int64_t least(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

/* The most words of n elements that a run may touch. */
static int64_t touched_words(int64_t run_elems, int64_t n)
{
  return (run_elems + 2 * n - 2) / n;
}

/* Ends a piece of `n_runs` runs: a run has `run_words` words of 1 << word_log2 elements, and a tile
 * at most `tile_words`. */
static void end_runs(xfi_cuda_table *table, xfi_cuda_piece *piece, uint32_t word_log2,
                     int64_t n_runs, int64_t run_words, int64_t tile_words)
{
  xfi_cuda_run_tiles *tiles = &piece->runs;

  tiles->n_runs = (uint32_t)n_runs;
  tiles->run_words = run_words;
  tiles->word_log2 = word_log2;
  if (run_words > tile_words) {
    tiles->tile_runs = 1;
    tiles->tile_words = (uint32_t)tile_words;
    tiles->tiles_per_run = (run_words + tile_words - 1) / tile_words;
  } else {
    tiles->tile_runs = (uint32_t)(tile_words / run_words);
    if (tiles->tile_runs > piece->extent[0] && piece->extent[0] * run_words >= LINE_WORDS_MIN)
      tiles->tile_runs = piece->extent[0]; /* there is a dim */
    tiles->tile_words = (uint32_t)run_words;
    tiles->tiles_per_run = 1;
  }
  tiles->by_tile_words = xfi_cuda_div_make(tiles->tile_words);
  xfi_cuda_piece_end(table,
                     (n_runs + tiles->tile_runs - 1) / tiles->tile_runs * tiles->tiles_per_run);
}

static xfer_status add_rows(xfi_cuda_table *table, const xfi_copy *c, uint32_t word_log2,
                            int64_t tile_bytes)
{
  xfi_cuda_piece *piece;

  XFI_TRY(xfi_cuda_piece_begin(&piece, table, c));
  end_runs(table, piece, word_log2, xfi_copy_runs(c), c->run_bytes >> word_log2,
           least(tile_bytes >> word_log2, TILE_WORDS_MAX));
  return XFER_OK;
}

/* Are runs adjacent on this side, in lines along the fastest dim of dst? If there are several
 * lines, each must have at least `least_bytes`. */
static bool is_in_lines(const xfi_copy *c, int64_t run_bytes, const int64_t *stride,
                        int64_t least_bytes)
{
  const int64_t last = c->n_dims - 1;

  return last >= 0 && stride[last] == run_bytes &&
         (last == 0 || c->extent[last] * run_bytes >= least_bytes);
}

/* Are they so in dst? Lines begin and end there byte by byte, which costs the more the wider words
 * are, so these lines must be longer. */
static bool is_dense(const xfi_copy *c, uint32_t word_log2)
{
  return is_in_lines(c, c->run_bytes, c->dst_stride, 2 * LINE_BYTES_MIN << word_log2);
}

/* Are runs short, and adjacent in lines on one of the sides? */
static bool has_lines(const xfi_copy *c, uint32_t word_log2)
{
  const bool dense = is_dense(c, word_log2);

  if (dense && c->run_bytes >= WORD_BYTES_MAX) return c->run_bytes <= TOGETHER_BYTES_MAX;
  return (dense || is_in_lines(c, c->run_bytes, c->src_stride, LINE_BYTES_MIN)) &&
         word_log2 <= APART_WORD_LOG2_MAX && c->run_bytes <= APART_BYTES_MAX;
}

/* Likewise for lines of runs along dim 0. */
static void end_lines(xfi_cuda_table *table, xfi_cuda_piece *piece, uint32_t word_log2,
                      int64_t n_runs, int64_t run_words, int64_t tile_words)
{
  xfi_cuda_line_tiles *tiles = &piece->lines;
  const int64_t in_line = piece->extent[0];
  const int64_t in_tile = tile_words / run_words;
  const int64_t n_lines = n_runs / in_line;

  tiles->n_runs = (uint32_t)n_runs;
  tiles->run_words = (uint32_t)run_words;
  tiles->word_log2 = word_log2;
  tiles->by_run_words = xfi_cuda_div_make(tiles->run_words);
  if (in_line > in_tile) {
    tiles->tile_runs = (uint32_t)in_tile;
    tiles->tiles_per_line = (in_line + in_tile - 1) / in_tile;
    xfi_cuda_piece_end(table, n_lines * tiles->tiles_per_line);
  } else {
    const int64_t lines = least(in_tile / in_line, n_lines);
    tiles->tile_runs = (uint32_t)(lines * in_line);
    tiles->tiles_per_line = 1;
    xfi_cuda_piece_end(table, (n_lines + lines - 1) / lines);
  }
}

static xfer_status add_lines(xfi_cuda_table *table, const xfi_copy *c, uint32_t word_log2,
                             int64_t tile_bytes)
{
  const bool together = is_dense(c, word_log2) && c->run_bytes >= WORD_BYTES_MAX;
  const uint32_t log2 = together ? 0 : word_log2;
  xfi_cuda_piece *piece;

  XFI_TRY(xfi_cuda_piece_begin(&piece, table, c));
  piece->kind = together ? XFI_CUDA_RAGGED_TOGETHER : XFI_CUDA_RAGGED_BY_IMAGE;
  end_lines(table, piece, log2, xfi_copy_runs(c), c->run_bytes >> log2, tile_bytes >> log2);
  return XFER_OK;
}

/* Words are those of 16 bytes in dst that a run touches, wherever it begins in them. */
static xfer_status add_skewed(xfi_cuda_table *table, const xfi_copy *c, int64_t tile_bytes)
{
  xfi_cuda_piece *piece;

  XFI_TRY(xfi_cuda_piece_begin(&piece, table, c));
  piece->kind = XFI_CUDA_RAGGED_SKEWED;
  end_runs(table, piece, xfi_cuda_word_log2(WORD_BYTES_MAX), xfi_copy_runs(c),
           touched_words(c->run_bytes, WORD_BYTES_MAX), tile_bytes / WORD_BYTES_MAX);
  return XFER_OK;
}

/* Is the last run the only one that ends in its last word of src? That word may reach beyond the
 * allocation, so it is not read as a whole. Where runs overlap in src, others may end in it too. */
static bool ends_apart(const xfi_copy *c)
{
  for (int64_t d = 0; d < c->n_dims; d++)
    if (c->src_stride[d] < WORD_BYTES_MAX) return false;
  return true;
}

/* Adds a copy whose runs do not begin and end at multiples of 16 bytes. */
static xfer_status add_narrow(xfi_cuda_tables *tables, const xfi_copy *c, uint32_t word_log2,
                              int64_t tile_bytes)
{
  if (!ends_apart(c)) return add_rows(&tables->at[XFI_CUDA_ROWS], c, word_log2, tile_bytes);
  if (has_lines(c, word_log2))
    return add_lines(&tables->at[XFI_CUDA_RAGGED], c, word_log2, tile_bytes);
  if (c->run_bytes >> word_log2 >= SKEWED_WORDS_MIN)
    return add_skewed(&tables->at[XFI_CUDA_RAGGED], c, tile_bytes);
  return add_rows(&tables->at[XFI_CUDA_ROWS], c, word_log2, tile_bytes);
}

/* Is there a kernel of words for these two types alone? */
static bool is_pair(const xfi_convert *v)
{
  return !xfi_convert_has_scales(v) && v->op != XFI_CONVERT_TO_SCALE && v->to != XFER_F8E8M0;
}

/* The kind of a piece whose words have `n_elems` elements. */
static uint32_t kind_of(const xfi_convert *v, int64_t n_elems)
{
  const uint32_t from = xfi_convert_type(v->from);

  if (xfi_convert_has_scales(v)) {
    if (n_elems == 1) return XFI_CUDA_BLOCKS_ONE_BY_ONE;
    if (v->op == XFI_CONVERT_BLOCKS) return XFI_CUDA_QUANTISE + from;
    return v->src_bytes == 4 ? XFI_CUDA_AMAX_OF_4_BYTES : XFI_CUDA_AMAX_OF_2_BYTES;
  }
  if (n_elems == 1 || !is_pair(v)) return XFI_CUDA_CONVERT_ONE_BY_ONE;
  return XFI_CUDA_CONVERT + 5 * from + xfi_convert_type(v->to);
}

/* Adds runs of converted elements. A word has as many of them as take 16 bytes in the larger type.
 * Where such words would not be aligned, runs go by the words of dst, wherever they begin in these,
 * or by single elements. What finds amaxes stores nothing at the elements' places, so only its
 * source counts. */
static xfer_status add_elements(xfi_cuda_table *table, const xfi_copy *c, int64_t tile_bytes)
{
  const xfi_convert *v = c->convert;
  const int64_t wide = v->src_bytes > v->dst_bytes ? v->src_bytes : v->dst_bytes;
  const uint64_t dst_bits =
      (uint64_t)c->run_bytes | (v->op == XFI_CONVERT_AMAX ? 0 : dst_starts(c));
  const int64_t run_elems = c->run_bytes / v->dst_bytes;
  int64_t n_elems = WORD_BYTES_MAX / wide; /* of a word: a power of two */
  const bool fits = src_starts(c) % (uint64_t)(n_elems * v->src_bytes) == 0 &&
                    dst_bits % (uint64_t)(n_elems * v->dst_bytes) == 0;
  const bool in_lines = !fits && run_elems < LINE_ELEMS_MAX && !xfi_convert_has_scales(v) &&
                        (is_in_lines(c, c->run_bytes, c->dst_stride, LINE_BYTES_MIN) ||
                         is_in_lines(c, run_elems * v->src_bytes, c->src_stride, LINE_BYTES_MIN));
  const bool is_skewed =
      !fits && !in_lines && is_pair(v) && run_elems >= SKEWED_ELEMS_MIN && ends_apart(c);
  xfi_cuda_piece *piece;

  if (!fits && !is_skewed) n_elems = 1;
  XFI_TRY(xfi_cuda_piece_begin(&piece, table, c));
  piece->convert = *v;
  piece->kind = kind_of(v, n_elems) + (is_skewed ? XFI_CUDA_CONVERT_SKEWED : 0);
  piece->scales = c->scales;
  if (in_lines) {
    piece->kind = XFI_CUDA_CONVERT_LINES;
    end_lines(table, piece, 0, xfi_copy_runs(c), run_elems, tile_bytes / wide);
    return XFER_OK;
  }
  end_runs(table, piece, xfi_cuda_word_log2((uint64_t)n_elems), xfi_copy_runs(c),
           is_skewed ? touched_words(run_elems, n_elems) : run_elems / n_elems,
           least(tile_bytes / (n_elems * wide), TILE_WORDS_MAX));
  return XFER_OK;
}

/* The dim along which src is fastest, if runs are single elements of `dst_bytes`, dst is fastest
 * along another dim, and both are long enough for tiles; else -1. */
static int64_t swapped_dim(const xfi_copy *c, int64_t dst_bytes)
{
  int64_t last = c->n_dims - 1;
  int64_t fast = last;

  if (c->src == NULL || c->n_dims < 2 || c->run_bytes != dst_bytes) return -1;
  for (int64_t d = 0; d < last; d++) {
    if (c->src_stride[d] < c->src_stride[fast]) fast = d;
  }
  if (fast == last || c->extent[fast] < SWAP_EXTENT_MIN || c->extent[last] < SWAP_EXTENT_MIN)
    return -1;
  return fast;
}

/* Are elements adjacent along the fastest dim of each side? */
static bool is_packed(const xfi_copy *c, int64_t fast, int64_t src_bytes)
{
  return c->src_stride[fast] == src_bytes && c->dst_stride[c->n_dims - 1] == c->run_bytes;
}

/* How the piece's dims 0 and 1 are cut into squares, and how many a tile has. */
static void end_squares(xfi_cuda_table *table, xfi_cuda_piece *piece, int64_t src_bytes,
                        int64_t in_unit, int64_t tile_bytes)
{
  const int64_t side = XFI_CUDA_SWAP_SIDE(src_bytes);
  const int64_t n0 = least(piece->extent[0], side);
  const int64_t n1 = least(piece->extent[1], side);
  const int64_t room =
      XFI_CUDA_SWAP_ROWS(side, in_unit) * XFI_CUDA_SWAP_PITCH(src_bytes, side); /* of a block */
  xfi_cuda_square_tiles *squares = &piece->squares;

  squares->n0 = (uint32_t)((piece->extent[0] + side - 1) / side);
  squares->n1 = (uint32_t)((piece->extent[1] + side - 1) / side);
  squares->n = squares->n0 * squares->n1;
  for (uint32_t d = 2; d < piece->n_dims; d++)
    squares->n *= piece->extent[d];
  squares->n_rows = (uint32_t)XFI_CUDA_SWAP_ROWS(n0, in_unit);
  squares->pitch = (uint32_t)XFI_CUDA_SWAP_PITCH(src_bytes, n1);
  while (squares->teams_log2 < XFI_CUDA_SWAP_TEAMS_LOG2 &&
         (int64_t)squares->n_rows * squares->pitch << (squares->teams_log2 + 1) <= room &&
         n0 * n1 * src_bytes << (squares->teams_log2 + 1) <= tile_bytes)
    squares->teams_log2++;
  xfi_cuda_piece_end(table,
                     (squares->n + (INT64_C(1) << squares->teams_log2) - 1) >> squares->teams_log2);
}

/* Adds a transpose of elements of 1 << src_log2 bytes, or of converted ones. */
static xfer_status add_swapped(xfi_cuda_table *table, const xfi_copy *copy, uint32_t src_log2,
                               int64_t fast, int64_t tile_bytes)
{
  xfi_copy c = *copy;
  const int64_t src_bytes = xfi_copy_src_run(copy);
  const bool packed = is_packed(copy, fast, src_bytes);
  xfi_cuda_piece *piece;

  xfi_copy_swap_dims(&c, fast, c.n_dims - 2); /* becomes the piece's dim 1 */
  XFI_TRY(xfi_cuda_piece_begin(&piece, table, &c));
  piece->kind = (packed ? XFI_CUDA_SWAP : XFI_CUDA_SWAP_APART) + src_log2;
  if (c.convert != NULL) {
    piece->convert = *c.convert;
    piece->kind = xfi_copy_has_scales(&c)
                      ? (uint32_t)XFI_CUDA_SWAP_QUANTISE_KIND(src_bytes)
                      : (uint32_t)XFI_CUDA_SWAP_CONVERT_KIND(src_bytes, c.run_bytes);
    piece->scales = c.scales;
  }
  end_squares(table, piece, src_bytes, packed ? XFI_CUDA_SWAP_UNIT(c.run_bytes) / c.run_bytes : 1,
              tile_bytes);
  return XFER_OK;
}

/* Adds a copy that converts elements. */
static xfer_status add_converts(xfi_cuda_tables *tables, const xfi_copy *c, int64_t tile_bytes)
{
  const xfi_convert *v = c->convert;
  const int64_t fast = v->op == XFI_CONVERT_AMAX ? -1 : swapped_dim(c, v->dst_bytes);

  if (fast >= 0 && is_packed(c, fast, v->src_bytes))
    return add_swapped(&tables->at[XFI_CUDA_SWAPPED], c, 0, fast, tile_bytes);
  return add_elements(table_of(tables, c), c, tile_bytes);
}

/* Adds one merged copy, in as many parts as its runs need. */
static xfer_status add_copy(xfi_cuda_tables *tables, const xfi_copy *c, int64_t tile_bytes)
{
  xfi_copy halves[2];

  if (xfi_cuda_halve(halves, c)) {
    XFI_TRY(add_copy(tables, &halves[0], tile_bytes));
    return add_copy(tables, &halves[1], tile_bytes);
  }
  if (c->convert != NULL) return add_converts(tables, c, tile_bytes);
  const uint32_t word_log2 =
      xfi_cuda_word_log2(src_starts(c) | dst_starts(c) | (uint64_t)c->run_bytes);
  const int64_t fast = swapped_dim(c, INT64_C(1) << word_log2);
  if (fast >= 0) return add_swapped(&tables->at[XFI_CUDA_SWAPPED], c, word_log2, fast, tile_bytes);
  if (c->src != NULL && INT64_C(1) << word_log2 < WORD_BYTES_MAX)
    return add_narrow(tables, c, word_log2, tile_bytes);
  return add_rows(&tables->at[XFI_CUDA_ROWS], c, word_log2, tile_bytes);
}

/* Tiles of a small batch are smaller, so that each warp of the launch has one. */
static int64_t tile_bytes_for(const xfi_copy *copies, size_t n_copies, int n_blocks)
{
  int64_t n_bytes = 0;
  int64_t tile_bytes = TILE_BYTES_MAX;

  for (size_t i = 0; i < n_copies; i++)
    n_bytes += xfi_copy_bytes(&copies[i]);
  while (tile_bytes > TILE_BYTES_MIN && n_bytes / tile_bytes < (int64_t)n_blocks * WARPS_PER_BLOCK)
    tile_bytes /= 2;
  return tile_bytes;
}

xfer_status xfi_cuda_tables_make(xfi_cuda_tables *tables, const xfi_copy *copies, size_t n_copies,
                                 int n_blocks)
{
  xfer_status st = XFER_OK;
  xfi_cuda_tables made = {0};
  int64_t tile_bytes = tile_bytes_for(copies, n_copies, n_blocks);

  /* The copies of a batch tend to be alike, and letting a large table grow costs page faults. */
  if (n_copies > 0) XFI_TRY_DONE(make_room(table_of(&made, copies), n_copies));
  for (size_t i = 0; i < n_copies; i++) {
    xfi_copy c = copies[i];
    if (xfi_copy_bytes(&c) == 0) continue;
    xfi_copy_simplify(&c); /* the fastest dim of dst is the last: writes are coalesced */
    XFI_TRY_DONE(add_copy(&made, &c, tile_bytes));
  }
  *tables = made;
  made = (xfi_cuda_tables){0};
done:
  xfi_cuda_tables_free(&made);
  return st;
}

bool xfi_cuda_small_table_make(xfi_cuda_small_table *small, const xfi_cuda_tables *tables, int k)
{
  const xfi_cuda_table *table = &tables->at[k];

  if (table->n_pieces > XFI_CUDA_SMALL_TABLE || k > XFI_CUDA_SWAPPED) return false;
  if (table->n_pieces == 0) return true;
  memcpy(small->pieces, table->pieces, table->n_pieces * sizeof *small->pieces);
  memcpy(small->first_tile, table->first_tile, (table->n_pieces + 1) * sizeof *small->first_tile);
  return true;
}

void xfi_cuda_table_free(xfi_cuda_table *table)
{
  xfi_free(table->pieces);
  xfi_free(table->first_tile);
  *table = (xfi_cuda_table){0};
}

void xfi_cuda_tables_free(xfi_cuda_tables *tables)
{
  for (int k = 0; k < XFI_CUDA_N_TABLES; k++)
    xfi_cuda_table_free(&tables->at[k]);
}
