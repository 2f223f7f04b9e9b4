#include "table_walk.h"

#include "world.h"

enum { WORD = 16, IMAGE = 2048, DIGEST_BLOCK = 2048, DIGEST_TILE_BLOCKS = 8 };

static int64_t least(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

/* ---- runs ---------------------------------------------------------------------------------- */

/* Where a run begins. */
typedef struct run_place {
  const char *src;
  char *dst;
  int64_t scale;
} run_place;

uint32_t walk_div(uint32_t x, xfi_cuda_div d)
{
  return ((uint32_t)((uint64_t)x * d.magic >> 32) + x) >> d.shift;
}

/* `steps` from a place along a dim; what is NULL stays so. */
static run_place step(const xfi_cuda_piece *p, run_place at, uint32_t d, int64_t steps)
{
  if (at.src != NULL) at.src += steps * p->src_stride[d];
  if (at.dst != NULL) at.dst += steps * p->dst_stride[d];
  at.scale += steps * p->scale_stride[d];
  return at;
}

static run_place run_of(const xfi_cuda_piece *p, uint32_t run)
{
  run_place at = {p->src, p->dst, 0};

  for (uint32_t d = 0; d < p->n_dims; d++) {
    const uint32_t rest = d + 1 < p->n_dims ? walk_div(run, p->by_extent[d]) : 0;

    at = step(p, at, d, run - rest * p->extent[d]);
    run = rest;
  }
  return at;
}

/* Bytes of an element on each side. */
static int64_t from_bytes(const xfi_cuda_piece *p)
{
  return p->convert.dst_bytes == 0 ? 1 : p->convert.src_bytes;
}

static int64_t to_bytes(const xfi_cuda_piece *p)
{
  return p->convert.dst_bytes == 0 ? 1 : p->convert.dst_bytes;
}

/* Elements from number `first` of a run on. */
static void move(tile_visitor *v, const xfi_cuda_piece *p, run_place run, int64_t first, int64_t n)
{
  v->move(v, p, run.dst == NULL ? NULL : run.dst + first * to_bytes(p),
          run.src == NULL ? NULL : run.src + first * from_bytes(p), n, run.scale);
}

/* ---- which kernel has a piece -------------------------------------------------------------- */

/* Of a kernel that has one pair of types. */
static void need_pair(const xfi_cuda_piece *p, uint32_t pair)
{
  static const uint8_t types[] = {XFER_F32, XFER_BF16, XFER_F16, XFER_F8E4M3, XFER_F8E5M2};

  NEED(types[pair / 5] == p->convert.from && types[pair % 5] == p->convert.to);
  NEED(p->convert.op <= XFI_CONVERT_PLUS);
}

/* Elements of a word of the kernels of runs. Those of converting ones are constants, whatever the
 * table says. */
static int64_t word_elems(int table, const xfi_cuda_piece *p)
{
  const bool is_skewed = table == XFI_CUDA_CONVERTS && p->kind >= XFI_CUDA_CONVERT_SKEWED;

  if (table == XFI_CUDA_ROWS) return INT64_C(1) << p->runs.word_log2;
  if (table == XFI_CUDA_RAGGED) return WORD;
  if (table == XFI_CUDA_BLOCKS && p->kind == XFI_CUDA_BLOCKS_ONE_BY_ONE) return 1;
  if (table == XFI_CUDA_BLOCKS) {
    if (p->kind < XFI_CUDA_AMAX_OF_4_BYTES)
      need_pair(&(xfi_cuda_piece){.convert = {.from = p->convert.from, .to = XFER_F8E4M3}},
                5 * p->kind + 3);
    else
      NEED(p->convert.src_bytes == (p->kind == XFI_CUDA_AMAX_OF_4_BYTES ? 4 : 2));
    return WORD / p->convert.src_bytes;
  }
  if (p->kind == XFI_CUDA_CONVERT_ONE_BY_ONE) {
    NEED(p->runs.word_log2 == 0 || p->convert.src_bytes == 4);
    return p->runs.word_log2 == 0 ? 1 : 4;
  }
  need_pair(p, p->kind - (is_skewed ? XFI_CUDA_CONVERT_SKEWED : XFI_CUDA_CONVERT));
  return WORD / most(p->convert.src_bytes, p->convert.dst_bytes);
}

/* ---- words of runs: words.cuh -------------------------------------------------------------- */

typedef struct tile {
  uint32_t run; /* the first one */
  int64_t word; /* the first one of it */
  uint32_t n_runs;
  int64_t n_words; /* of each */
} tile;

static tile tile_of(const xfi_cuda_piece *p, int64_t index)
{
  const int64_t nth = index / p->runs.tiles_per_run;
  const int64_t run = nth * p->runs.tile_runs;
  const int64_t word = (index - nth * p->runs.tiles_per_run) * p->runs.tile_words;

  NEED(run < p->runs.n_runs && word < p->runs.run_words);
  return (tile){(uint32_t)run, word, (uint32_t)least(p->runs.tile_runs, p->runs.n_runs - run),
                least(p->runs.tile_words, p->runs.run_words - word)};
}

/* The run of word i of a tile, whose number in it is *col. Within a line there are only steps. */
static run_place run_in_tile(const xfi_cuda_piece *p, const tile *t, uint32_t i, int64_t *col)
{
  const uint32_t row = t->n_runs == 1 ? 0 : walk_div(i, p->runs.by_tile_words);

  *col = t->word + i - (int64_t)row * t->n_words;
  if (row > 0 && t->run % p->extent[0] + t->n_runs <= p->extent[0])
    return step(p, run_of(p, t->run), 0, row);
  return run_of(p, t->run + row);
}

static void walk_words(tile_visitor *v, int table, const xfi_cuda_piece *p, int64_t index)
{
  const tile t = tile_of(p, index);
  const int64_t n = word_elems(table, p);

  for (uint32_t i = 0; i < t.n_runs * t.n_words; i++) {
    int64_t col;
    const run_place run = run_in_tile(p, &t, i, &col);

    if (run.src != NULL) v->load(v, p, run.src + col * n * from_bytes(p), n * from_bytes(p));
    NEED((uintptr_t)run.dst % (uintptr_t)(n * to_bytes(p)) == 0);
    move(v, p, run, col * n, n);
  }
}

/* ---- words of dst, wherever runs begin in them: skewed.cuh --------------------------------- */

/* The words of src that have elements `first` to `end` of a run. */
static void load_words(tile_visitor *v, const xfi_cuda_piece *p, run_place run, int64_t first,
                       int64_t end, uintptr_t n_bytes)
{
  const char *const last = run.src + end * from_bytes(p) - 1;
  const char *word = run.src + first * from_bytes(p);

  for (word -= (uintptr_t)word % n_bytes; word <= last; word += n_bytes)
    v->load(v, p, word, (int64_t)n_bytes);
}

static void walk_skewed(tile_visitor *v, int table, const xfi_cuda_piece *p, int64_t index)
{
  const tile t = tile_of(p, index);
  const int64_t n = word_elems(table, p);
  const run_place last = run_of(p, p->runs.n_runs - 1);
  const char *const src_end = last.src + p->run_elems * from_bytes(p);
  const int64_t tail = least(
      (int64_t)((uintptr_t)src_end % (uintptr_t)(n * from_bytes(p))) / from_bytes(p), p->run_elems);
  const bool has_last_run = t.run + t.n_runs == p->runs.n_runs;

  for (uint32_t i = 0; i < t.n_runs * t.n_words; i++) {
    int64_t col;
    const run_place run = run_in_tile(p, &t, i, &col);
    const int64_t skew = (int64_t)((uintptr_t)run.dst % (uintptr_t)(n * to_bytes(p))) / to_bytes(p);
    const int64_t first = col * n - skew;
    int64_t end = least(first + n, p->run_elems);

    if (has_last_run) /* whatever the run is: no word is read that lies at the piece's end */
      end = least(end, (src_end - tail * from_bytes(p) - run.src) / from_bytes(p));
    if (most(first, 0) >= end) continue;
    load_words(v, p, run, most(first, 0), end, (uintptr_t)(n * from_bytes(p)));
    move(v, p, run, most(first, 0), end - most(first, 0));
  }
  if (has_last_run && t.word + t.n_words == p->runs.run_words)
    move(v, p, last, p->run_elems - tail, tail);
}

/* ---- lines of adjacent runs: lines.cuh, ragged.cu ------------------------------------------ */

/* All of a line by words of an element, or by these and words of 16 bytes in dst, which are
 * assembled from at most two runs. */
static void walk_together(tile_visitor *v, const xfi_cuda_piece *p, run_place line, int64_t n_runs)
{
  const int64_t run = p->lines.run_words;
  const int64_t n_bytes = n_runs * run;
  const int64_t head = (int64_t)(-(uintptr_t)line.dst % WORD);
  const int64_t n_words = n_bytes < head + 3 * WORD ? 0 : (n_bytes - head) / WORD - 2;
  const int64_t tail = head + n_words * WORD;

  NEED(p->dst_stride[0] == run && run >= WORD && n_bytes - tail <= 64);
  for (int64_t i = 0; i < n_bytes; i++) { /* the words, and the bytes beside them, byte by byte */
    const uint32_t row = walk_div((uint32_t)i, p->lines.by_run_words);

    move(v, p, step(p, line, 0, row), i - row * run, 1);
  }
  for (int64_t i = head; i < tail; i += WORD) {
    const uint32_t row = walk_div((uint32_t)i, p->lines.by_run_words);
    const run_place at = step(p, line, 0, row);
    const int64_t first = least(i - row * run, run - WORD);

    load_words(v, p, at, first, first + WORD, WORD);
    if (i - row * run > first) load_words(v, p, step(p, line, 0, row + 1), 0, WORD, WORD);
  }
}

static void walk_by_image(tile_visitor *v, int table, const xfi_cuda_piece *p, run_place line,
                          int64_t n_runs)
{
  const int64_t n = table == XFI_CUDA_RAGGED ? INT64_C(1) << p->lines.word_log2 : 1;
  const int64_t src_word = n * from_bytes(p);
  const int64_t dst_word = n * to_bytes(p);
  const bool dst_is_dense = p->dst_stride[0] == p->lines.run_words * dst_word;
  const int64_t dense_word = dst_is_dense ? dst_word : src_word;
  const uintptr_t dense = dst_is_dense ? (uintptr_t)line.dst : (uintptr_t)line.src;
  const int64_t n_bytes = n_runs * p->lines.run_words * dense_word;

  NEED(table == XFI_CUDA_CONVERTS || n <= 4);
  NEED(dst_is_dense || p->src_stride[0] == p->lines.run_words * src_word);
  for (int64_t first = 0, part; first < n_bytes; first += part) {
    part = least(IMAGE - (int64_t)((dense + (uintptr_t)first) % WORD), n_bytes - first);
    NEED(part % dense_word == 0);
    for (int64_t i = first / dense_word; i < (first + part) / dense_word; i++) {
      const uint32_t row = walk_div((uint32_t)i, p->lines.by_run_words);
      const run_place run = step(p, line, 0, row);
      const int64_t at = (i - row * p->lines.run_words) * n;

      v->load(v, p, run.src + at * from_bytes(p), src_word);
      NEED((uintptr_t)run.dst % (uintptr_t)dst_word == 0);
      move(v, p, run, at, n);
    }
  }
}

static void walk_lines(tile_visitor *v, int table, const xfi_cuda_piece *p, int64_t index)
{
  const uint32_t in_line = p->extent[0];
  uint32_t run = (uint32_t)index * p->lines.tile_runs;
  uint32_t n_runs = in_line;
  uint32_t end = (uint32_t)least(run + p->lines.tile_runs, p->lines.n_runs);

  if (p->lines.tiles_per_line > 1) { /* a part of a line */
    const uint32_t first = (uint32_t)(index % p->lines.tiles_per_line) * p->lines.tile_runs;

    run = (uint32_t)(index / p->lines.tiles_per_line) * in_line + first;
    n_runs = (uint32_t)least(p->lines.tile_runs, in_line - first);
    end = run + n_runs;
  }
  NEED(run < end && end <= p->lines.n_runs);
  for (; run < end; run += n_runs) {
    if (table == XFI_CUDA_RAGGED && p->kind == XFI_CUDA_RAGGED_TOGETHER)
      walk_together(v, p, run_of(p, run), n_runs);
    else
      walk_by_image(v, table, p, run_of(p, run), n_runs);
  }
}

/* ---- transposes: swapped.cu ---------------------------------------------------------------- */

/* Do elements follow each other in rows of both sides, for this kernel? Its types are the piece's.
 */
static bool is_packed(const xfi_cuda_piece *p, int64_t from, int64_t to)
{
  static const uint8_t converts[][2] = {{4, 4}, {4, 2}, {4, 1}, {2, 4}, {2, 2}, {2, 1}};
  const bool is_plain = p->kind < XFI_CUDA_SWAP_CONVERT;

  if (is_plain) {
    NEED(from == INT64_C(1) << p->kind % XFI_CUDA_SWAP_APART);
  } else if (p->kind < XFI_CUDA_SWAP_QUANTISE) {
    const uint8_t *const pair = converts[p->kind - XFI_CUDA_SWAP_CONVERT];
    NEED(pair[0] == from && pair[1] == to && !xfi_convert_has_scales(&p->convert));
  } else {
    NEED(from == (p->kind == XFI_CUDA_SWAP_QUANTISE ? 4 : 2) && to == 1);
    NEED(p->convert.op == XFI_CONVERT_BLOCKS);
  }
  return !is_plain || p->kind < XFI_CUDA_SWAP_APART;
}

/* A row of dst, by units of at least 4 bytes if elements follow each other. A tile has the units
 * that begin in it, and that of the row's beginning. */
static void walk_row(tile_visitor *v, const xfi_cuda_piece *p, run_place row, int64_t x0, int64_t n,
                     int64_t unit)
{
  const int64_t to = p->convert.dst_bytes == 0 ? p->run_elems : p->convert.dst_bytes;
  const int64_t n_elems = unit / to;
  const int64_t phase = (int64_t)((uintptr_t)row.dst % (uintptr_t)unit) / to;

  NEED((uintptr_t)row.dst % (uintptr_t)to == 0);
  for (int64_t i = -phase; i < n; i += n_elems)
    for (int64_t k = i; k < least(i + n_elems, p->extent[0] - x0); k++)
      if (k >= 0 && (i >= 0 || x0 == 0)) move(v, p, step(p, row, 0, k), 0, p->run_elems);
}

/* A team's part of shared memory: room for the square's rows, where they begin as in memory, and
 * for those that its last units reach into. */
static void check_shared(const xfi_cuda_piece *p, int64_t n0, int64_t n1, int64_t from, int64_t to,
                         int64_t side, bool packed)
{
  const int64_t in_unit = packed && to < 4 ? 4 / to : 1;
  const int64_t room = (side + (in_unit > 1 ? in_unit : 0)) * (side * from + (from < 4 ? 4 : from));

  NEED(p->squares.teams_log2 <= 3);
  NEED((int64_t)p->squares.n_rows * p->squares.pitch << p->squares.teams_log2 <= room);
  NEED(p->squares.n_rows >= n0 + in_unit - 1 && p->squares.n_rows % in_unit == 0);
  NEED(p->squares.pitch >= n1 * from + (packed && from < 4 ? 4 - from : 0));
  NEED(p->squares.pitch / most(from, 4) % 2 == 1 && p->squares.pitch % most(from, 4) == 0);
}

static void walk_square(tile_visitor *v, const xfi_cuda_piece *p, int64_t index)
{
  const int64_t from = p->convert.dst_bytes == 0 ? p->run_elems : p->convert.src_bytes;
  const int64_t to = p->convert.dst_bytes == 0 ? p->run_elems : p->convert.dst_bytes;
  const int64_t side = from <= 2 ? 128 : from <= 8 ? 64 : 32;
  const bool packed = is_packed(p, from, to);
  const int64_t src_unit = packed ? most(from, 4) : from;
  const int64_t x0 = index % p->squares.n0 * side;
  const int64_t x1 = index / p->squares.n0 % p->squares.n1 * side;
  const int64_t n0 = least(side, p->extent[0] - x0);
  const int64_t n1 = least(side, p->extent[1] - x1);
  int64_t rest = index / p->squares.n0 / p->squares.n1;
  run_place at = step(p, step(p, (run_place){p->src, p->dst, 0}, 0, x0), 1, x1);

  NEED(n0 > 0 && n1 > 0);
  check_shared(p, n0, n1, from, to, side, packed);
  NEED(!packed || (p->dst_stride[0] == to && p->src_stride[1] == from));
  for (uint32_t d = 2; d < p->n_dims; d++) {
    at = step(p, at, d, rest % p->extent[d]);
    rest /= p->extent[d];
  }
  NEED(rest == 0);
  for (int64_t i = 0; i < n0; i++) { /* rows of src; those beyond n0 are other tiles' as well */
    const char *const row = step(p, at, 0, i).src;

    NEED((uintptr_t)row % (uintptr_t)from == 0);
    for (int64_t k = 0; k < n1; k++) {
      const char *const elem = row + k * p->src_stride[1];
      v->load(v, p, elem - (uintptr_t)elem % (uintptr_t)src_unit, src_unit);
    }
  }
  for (int64_t i = 0; i < n1; i++)
    walk_row(v, p, step(p, at, 1, i), x0, n0, packed ? most(to, 4) : to);
}

/* ---- digests: digest.cu -------------------------------------------------------------------- */

/* The bytes of a run in a unit of the order, in which it begins at `begin`. A whole unit is loaded
 * by words. */
static void walk_unit(tile_visitor *v, const xfi_cuda_piece *p, run_place run, int64_t begin,
                      int64_t unit)
{
  const int64_t at = unit * XFI_DIGEST_UNIT - begin;
  const int64_t first = most(at, 0);
  const int64_t end = least(at + XFI_DIGEST_UNIT, p->digest.run_bytes);
  const int64_t word = INT64_C(1) << p->digest.word_log2;

  if (first >= end) return;
  for (int64_t i = at; i < end && end - first == XFI_DIGEST_UNIT; i += word)
    v->load(v, p, run.src + i, word);
  v->move(v, p, run.dst + first, run.src + first, end - first, 0);
}

static void walk_digest(tile_visitor *v, const xfi_cuda_piece *p, int64_t index)
{
  if (p->digest.tile_runs == 1) { /* blocks of a long run */
    const int64_t units = DIGEST_BLOCK / XFI_DIGEST_UNIT;
    const run_place run = run_of(p, (uint32_t)(index / p->digest.tiles_per_run));
    const int64_t begin = xfi_digest_offset(run.dst);
    const int64_t block =
        begin / DIGEST_BLOCK + index % p->digest.tiles_per_run * DIGEST_TILE_BLOCKS;

    for (int64_t u = 0; u < DIGEST_TILE_BLOCKS * units; u++)
      walk_unit(v, p, run, begin, block * units + u);
    return;
  }
  const uint32_t first = (uint32_t)index * p->digest.tile_runs;
  const uint32_t n_runs = (uint32_t)least(p->digest.tile_runs, p->digest.n_runs - first);

  for (uint32_t i = 0; i < n_runs * p->digest.run_units; i++) {
    const uint32_t row = walk_div(i, p->digest.by_run_units);
    const run_place run = run_of(p, first + row);
    const int64_t begin = xfi_digest_offset(run.dst);

    walk_unit(v, p, run, begin, begin / XFI_DIGEST_UNIT + i - row * p->digest.run_units);
  }
}

/* ---- tiles --------------------------------------------------------------------------------- */

void walk_tile(tile_visitor *v, int table, const xfi_cuda_piece *p, int64_t index)
{
  const bool is_skewed = table == XFI_CUDA_RAGGED
                             ? p->kind == XFI_CUDA_RAGGED_SKEWED
                             : table == XFI_CUDA_CONVERTS && p->kind >= XFI_CUDA_CONVERT_SKEWED &&
                                   p->kind < XFI_CUDA_CONVERT_ONE_BY_ONE;
  const bool has_lines =
      table == XFI_CUDA_RAGGED || (table == XFI_CUDA_CONVERTS && p->kind == XFI_CUDA_CONVERT_LINES);

  if (table == DIGEST_TABLE)
    walk_digest(v, p, index);
  else if (table == XFI_CUDA_SWAPPED)
    for (int64_t i = index << p->squares.teams_log2;
         i < least((index + 1) << p->squares.teams_log2, p->squares.n); i++)
      walk_square(v, p, i);
  else if (is_skewed)
    walk_skewed(v, table, p, index);
  else if (has_lines)
    walk_lines(v, table, p, index);
  else
    walk_words(v, table, p, index);
}
