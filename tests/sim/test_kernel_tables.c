/*
 * The tables of the CUDA kernels (kernels/cuda/tables.c), walked as the kernels do (table_walk.h):
 * each byte of the destination is written once, by the element that is due there; and no word is
 * loaded that is not aligned, or that reaches beyond the source.
 */
#include "launch.h"
#include "rng.h"
#include "table_walk.h"
#include "world.h"

#include <string.h>

enum {
  ROOM = 1 << 18, /* of a side */
  SLACK = 320,    /* for what is put before a copy */
  COPIES_MAX = 4,
  SCALES = 1 << 14,
  POISON = 0xa5,
  CASES = ADDRESS_SANITIZER || THREAD_SANITIZER ? 2000 : 8000
};

/* Both sides of a case, what is due, and how often each byte was written and is due. Sources whose
 * amaxes are found count instead how often their elements are read. */
typedef struct memory {
  tile_visitor v;
  char src[ROOM + SLACK] __attribute__((aligned(256)));
  char dst[ROOM + SLACK] __attribute__((aligned(256)));
  char want[ROOM + SLACK] __attribute__((aligned(256)));
  unsigned char writes[ROOM + SLACK];
  unsigned char due[ROOM + SLACK];
  unsigned char reads[ROOM + SLACK];
  unsigned char reads_due[ROOM + SLACK];
  float scales[SCALES];
  float scales_want[SCALES];
  const char *dst_base; /* what dst[0] is to the copies */
} memory;

static memory m;
static rng r;
static xfi_convert converts[COPIES_MAX];
static uint32_t kinds_seen[XFI_CUDA_N_TABLES];

/* ---- what is walked ------------------------------------------------------------------------ */

static void move_bytes(tile_visitor *v, const xfi_cuda_piece *piece, char *dst, const char *src,
                       int64_t n, int64_t scale)
{
  const xfi_convert *c = piece->convert.dst_bytes == 0 ? NULL : &piece->convert;
  const int64_t n_bytes = c == NULL ? n : n * c->dst_bytes;
  const int64_t at = dst - m.dst_base;

  (void)v;
  if (c != NULL && c->op == XFI_CONVERT_AMAX) {
    for (int64_t i = 0; i < n; i++)
      m.reads[src - m.src + i * c->src_bytes]++;
    xfi_ref_run_with_scale(NULL, src, n, c, piece->scales + scale);
    return;
  }
  NEED(at >= 0 && at + n_bytes <= ROOM + SLACK);
  for (int64_t i = at; i < at + n_bytes; i++)
    m.writes[i]++;
  if (src == NULL)
    memset(m.dst + at, 0, (size_t)n);
  else if (c == NULL)
    memcpy(m.dst + at, src, (size_t)n);
  else if (xfi_convert_has_scales(c))
    xfi_ref_run_with_scale(m.dst + at, src, n, c, piece->scales + scale);
  else
    xfi_ref_convert(m.dst + at, src, n, c);
}

/* A word that begins before the source lies in the same 16 bytes, and one of up to 4 bytes that
 * ends beyond it in the same 4: as memory is allocated. */
static void check_load(tile_visitor *v, const xfi_cuda_piece *piece, const char *at, int64_t n)
{
  const bool is_converted = piece->convert.dst_bytes != 0;
  int64_t span = piece->run_elems * (is_converted ? piece->convert.src_bytes : 1);

  (void)v;
  for (uint32_t d = 0; d < piece->n_dims; d++)
    span += (piece->extent[d] - 1) * piece->src_stride[d];
  NEED((uintptr_t)at % (uintptr_t)n == 0);
  NEED(at + n > piece->src && at + n <= piece->src + span + (n <= 4 ? n - 1 : 0));
}

static void walk_table(tile_visitor *v, int k, const xfi_cuda_table *table)
{
  for (size_t i = 0; i < table->n_pieces; i++) {
    const xfi_cuda_piece *const piece = &table->pieces[i];

    NEED(i > 0 || table->first_tile[i] == 0);
    NEED(table->first_tile[i] < table->first_tile[i + 1]);
    NEED((table->kinds >> piece->kind & 1) != 0);
    for (int64_t tile = 0; tile < table->first_tile[i + 1] - table->first_tile[i]; tile++)
      walk_tile(v, k, piece, tile);
  }
}

static void walk_copies(const xfi_copy *copies, size_t n, int n_blocks)
{
  xfi_cuda_tables tables;
  xfi_cuda_small_table small;

  OK(xfi_cuda_tables_make(&tables, copies, n, n_blocks));
  for (int k = 0; k < XFI_CUDA_N_TABLES; k++) {
    xfi_cuda_table *const table = &tables.at[k];
    const xfi_cuda_job job = xfi_cuda_job_of(table);

    NEED(job.n_tiles == (table->n_pieces == 0 ? 0 : table->first_tile[table->n_pieces]));
    walk_table(&m.v, k, table);
    if (k <= XFI_CUDA_SWAPPED && table->n_pieces > 0 && table->n_pieces <= XFI_CUDA_SMALL_TABLE) {
      NEED(xfi_cuda_small_table_make(&small, &tables, k));
      NEED(memcmp(small.pieces, table->pieces, table->n_pieces * sizeof *small.pieces) == 0);
    }
    kinds_seen[k] |= table->kinds;
  }
  xfi_cuda_tables_free(&tables);
}

/* ---- what is due --------------------------------------------------------------------------- */

static void fill_source(void)
{
  r = rng_of(world_seed(), 0, 4);
  for (size_t at = 0; at < sizeof m.src; at++)
    m.src[at] = (char)rng_next(&r);
}

static void clear(size_t used)
{
  memset(m.dst, POISON, used);
  memset(m.want, POISON, used);
  memset(m.writes, 0, used);
  memset(m.due, 0, used);
  memset(m.reads, 0, sizeof m.reads);
  memset(m.reads_due, 0, sizeof m.reads_due);
  m.v = (tile_visitor){move_bytes, check_load};
}

/* By kernels/ref, and counted run by run. */
static void make_due(const xfi_copy *copies, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    xfi_copy c = copies[i];
    const bool finds_amax = c.convert != NULL && c.convert->op == XFI_CONVERT_AMAX;
    const char *src = c.src;
    char *dst = finds_amax ? m.dst : c.dst; /* of amaxes there is none */
    int64_t index[XFI_COPY_DIMS] = {0};

    do {
      for (int64_t b = 0; b < c.run_bytes && finds_amax; b++)
        m.reads_due[src - m.src + b * c.convert->src_bytes]++;
      for (int64_t b = 0; b < c.run_bytes && !finds_amax; b++)
        m.due[dst - m.dst_base + b]++;
    } while (xfi_copy_next(&c, c.n_dims, index, &src, &dst));
    if (!finds_amax) c.dst = m.want + (c.dst - m.dst_base);
    if (c.scales != NULL) c.scales = m.scales_want + (c.scales - m.scales);
    xfi_ref_copy(&c, 1);
  }
}

static void need_what_is_due(size_t used)
{
  NEED(memcmp(m.writes, m.due, used) == 0);
  NEED(memcmp(m.dst, m.want, used) == 0);
  NEED(memcmp(m.reads, m.reads_due, sizeof m.reads) == 0);
  NEED(memcmp(m.scales, m.scales_want, sizeof m.scales) == 0);
}

/* ---- random copies ------------------------------------------------------------------------- */

/* Dims in any order, with gaps of some units beside some of them. Returns the bytes spanned. */
static int64_t random_strides(const xfi_copy *c, int64_t run, int64_t unit, int64_t *strides)
{
  const int gaps = (int[]){0, 0, 40, 100}[rng_below(&r, 4)]; /* percent */
  int order[XFI_COPY_DIMS] = {0, 1, 2, 3, 4, 5, 6, 7};
  int64_t span = run;

  if (rng_percent(&r, 50)) rng_shuffle(&r, order, (int)c->n_dims);
  for (int64_t i = c->n_dims - 1; i >= 0; i--) {
    if (rng_percent(&r, gaps)) span += unit * rng_int(&r, 1, 40);
    strides[order[i]] = span;
    span *= c->extent[order[i]];
    if (span > ROOM) return span;
  }
  return span;
}

/* Runs of a source that overlap. Returns the bytes spanned. */
static int64_t random_overlaps(const xfi_copy *c, int64_t run, int64_t unit, int64_t *strides)
{
  int64_t span = run;

  for (int64_t d = 0; d < c->n_dims; d++) {
    strides[d] = unit * rng_int(&r, 1, 40);
    span += (c->extent[d] - 1) * strides[d];
  }
  return span;
}

/* A scale for each run, or one for the runs along some dims. Returns how many. */
static int64_t random_scales(xfi_copy *c, int64_t first)
{
  const bool finds_amax = c->convert->op == XFI_CONVERT_AMAX;
  int64_t n = 1;

  for (int64_t d = c->n_dims - 1; d >= 0; d--) {
    if (rng_percent(&r, 40) || n * c->extent[d] > SCALES / COPIES_MAX) continue;
    c->scale_stride[d] = n;
    n *= c->extent[d];
  }
  c->scales = m.scales + first;
  for (int64_t i = 0; i < n; i++)
    c->scales[i] = finds_amax ? 0 : (float)rng_int(&r, 1, 1000) / 100;
  memcpy(m.scales_want + first, c->scales, (size_t)n * sizeof *c->scales);
  return n;
}

/* Any conversion that there is a kernel for. */
static xfi_convert random_convert(void)
{
  static const struct {
    xfer_dtype dtype;
    uint8_t n_bytes;
  } types[] = {{XFER_F32, 4}, {XFER_BF16, 2}, {XFER_F16, 2}, {XFER_F8E4M3, 1}, {XFER_F8E5M2, 1}};
  const int from = rng_int(&r, 0, 2);
  const int to = rng_int(&r, 0, 4);
  xfi_convert c = {.from = (uint8_t)types[from].dtype,
                   .to = (uint8_t)types[to].dtype,
                   .src_bytes = types[from].n_bytes,
                   .dst_bytes = types[to].n_bytes,
                   .op = (uint32_t)rng_int(&r, from == to ? 1 : 0, 2),
                   .value = 1.5F};

  switch (rng_int(&r, 0, 9)) {
  case 0:
    return (xfi_convert){XFER_F32, XFER_F32, 4, 4, XFI_CONVERT_TO_SCALE, 0, XFER_SCALE_POW2};
  case 1:
    return (xfi_convert){XFER_F32, XFER_F8E8M0, 4, 1, XFI_CONVERT_AS_IT_IS, 0, 0};
  case 2:
  case 3:
    c = (xfi_convert){c.from, XFER_F8E4M3, c.src_bytes, 1, XFI_CONVERT_BLOCKS, 0, 0};
    c.op = rng_percent(&r, 50) ? XFI_CONVERT_BLOCKS : XFI_CONVERT_AMAX;
    return c;
  default:
    return c;
  }
}

/* Random extents, of at most so many runs. */
static void random_extents(xfi_copy *c, int64_t n_runs)
{
  c->n_dims = rng_int(&r, 0, 4);
  for (int64_t d = 0; d < c->n_dims; d++) {
    const int64_t longest = (int[]){5, 40, 300}[rng_below(&r, 3)];

    c->extent[d] = 1 + rng_below(&r, longest < n_runs ? longest : n_runs);
    n_runs /= c->extent[d];
  }
}

/* A copy to what is free of dst, of runs that begin at, and have, multiples of a number of
 * elements. False: it came out too large. */
static bool random_copy(xfi_copy *c, const xfi_convert *v, int64_t room, int64_t *used,
                        int64_t *n_scales)
{
  const int64_t from = v == NULL ? 1 : v->src_bytes;
  const int64_t to = v == NULL ? 1 : v->dst_bytes;
  const bool finds_amax = v != NULL && v->op == XFI_CONVERT_AMAX;
  const int64_t grain = v == NULL ? INT64_C(1) << rng_int(&r, 0, 4) : rng_percent(&r, 40) ? 16 : 1;
  const int64_t longest = INT64_C(1) << rng_below(&r, rng_percent(&r, 10) ? 15 : 9);
  const int64_t n_elems = grain * (rng_percent(&r, 30) ? 1 : 1 + rng_below(&r, longest));
  int64_t src_span;
  int64_t dst_span = 0;

  *c = (xfi_copy){.run_bytes = n_elems * to, .convert = v};
  random_extents(c, room / 2 / (n_elems * (from > to ? from : to)) + 1);
  src_span = random_strides(c, n_elems * from, grain * from, c->src_stride);
  if (!finds_amax) dst_span = random_strides(c, c->run_bytes, grain * to, c->dst_stride);
  if (src_span > room || *used + dst_span + SLACK > room) return false;
  if (!finds_amax && rng_percent(&r, 10))
    src_span = random_overlaps(c, n_elems * from, grain * from, c->src_stride);
  c->src = m.src + grain * from * rng_int(&r, 0, 3);
  if (c->src + src_span > m.src + sizeof m.src) return false;
  if (v == NULL && rng_percent(&r, 5)) c->src = NULL;
  *used = (*used / (grain * to) + rng_int(&r, 1, 3)) * grain * to;
  if (!finds_amax) c->dst = m.dst + *used;
  *used += dst_span;
  if (xfi_copy_has_scales(c)) *n_scales += random_scales(c, *n_scales);
  return true;
}

static void test_random_copies_are_made_once(void)
{
  fill_source();
  m.dst_base = m.dst;
  for (uint64_t i = 0; i < CASES; i++) {
    const int64_t room = i % 16 == 0 ? ROOM : ROOM / 16;
    xfi_copy copies[COPIES_MAX];
    int64_t used = 0;
    int64_t n_scales = 0;
    size_t n = 0;

    world_case(i);
    r = rng_of(world_seed(), i, 0);
    clear((size_t)room + SLACK);
    for (int tries = 0; tries < 2 * COPIES_MAX && n < COPIES_MAX; tries++) {
      converts[n] = random_convert();
      n += random_copy(&copies[n], rng_percent(&r, 50) ? &converts[n] : NULL, room, &used,
                       &n_scales);
    }
    make_due(copies, n);
    walk_copies(copies, n, (int[]){0, 1, 7}[i % 3]); /* for 0 blocks tiles are the largest */
    need_what_is_due((size_t)room + SLACK);
  }
  NEED(kinds_seen[XFI_CUDA_ROWS] == 1);
  NEED(kinds_seen[XFI_CUDA_RAGGED] == (1U << XFI_CUDA_N_RAGGED) - 1);
  NEED(kinds_seen[XFI_CUDA_SWAPPED] == (1U << XFI_CUDA_N_SWAPS) - 1);
  NEED(kinds_seen[XFI_CUDA_CONVERTS] == ~0U); /* XFI_CUDA_N_CONVERTS is 32 */
  NEED(kinds_seen[XFI_CUDA_BLOCKS] == (1U << XFI_CUDA_N_BLOCKS) - 1);
}

static void test_random_boxes_of_digests_are_read_once(void)
{
  fill_source();
  for (uint64_t i = 0; i < CASES / 2; i++) {
    const int64_t room = i % 16 == 0 ? ROOM : ROOM / 16;
    xfi_digest_box box = {.factor = i * 3 + 1, .sum = (uint32_t)i};
    xfi_cuda_table table;
    int64_t used = 0;
    int64_t n_scales = 0;

    world_case(i);
    r = rng_of(world_seed(), i, 1);
    m.dst_base = (const char *)XFI_DIGEST_ORIGIN + rng_below(&r, 5000);
    clear((size_t)room + SLACK);
    while (!random_copy(&box.copy, NULL, room, &used, &n_scales) || box.copy.src == NULL)
      used = 0;
    box.copy.dst = (char *)(uintptr_t)m.dst_base + (box.copy.dst - m.dst);
    make_due(&box.copy, 1);
    OK(xfi_cuda_digest_table_make(&table, &box, 1));
    walk_table(&m.v, DIGEST_TABLE, &table);
    for (size_t k = 0; k < table.n_pieces; k++)
      NEED(table.pieces[k].digest.factor == box.factor && table.pieces[k].digest.sum == box.sum);
    xfi_cuda_table_free(&table);
    need_what_is_due((size_t)room + SLACK);
  }
}

/* ---- copies that no memory holds ----------------------------------------------------------- */

/* Elements of a copy whose destination has no gaps. */
typedef struct huge {
  tile_visitor v;
  const xfi_copy *copy;
  char *first; /* of dst that was moved to */
  char *end;
} huge;

/* Does an element come from where its place in dst says? */
static void check_element(const xfi_copy *c, const char *dst, const char *src)
{
  const int64_t from = c->convert == NULL ? 1 : c->convert->src_bytes;
  const int64_t to = c->convert == NULL ? 1 : c->convert->dst_bytes;
  int64_t run = (dst - c->dst) / c->run_bytes;
  int64_t offset = (dst - c->dst) % c->run_bytes / to * from;

  for (int64_t d = c->n_dims - 1; d >= 0; d--) {
    offset += run % c->extent[d] * c->src_stride[d];
    run /= c->extent[d];
  }
  NEED(run == 0 && src == c->src + offset);
}

static void check_move(tile_visitor *v, const xfi_cuda_piece *piece, char *dst, const char *src,
                       int64_t n, int64_t scale)
{
  huge *h = (huge *)(void *)v;
  const xfi_convert *c = h->copy->convert;
  const int64_t from = c == NULL ? 1 : c->src_bytes;
  const int64_t to = c == NULL ? 1 : c->dst_bytes;

  (void)piece, (void)scale;
  if (n == 0) return;
  check_element(h->copy, dst, src);
  check_element(h->copy, dst + (n - 1) * to, src + (n - 1) * from);
  if (h->first == NULL || dst < h->first) h->first = dst;
  if (dst + n * to > h->end) h->end = dst + n * to;
}

static void test_copies_of_gigabytes_have_their_elements(void)
{
  static const xfi_convert widens = {XFER_BF16, XFER_F32, 2, 4, XFI_CONVERT_AS_IT_IS, 0, 0};
  static const xfi_convert halves = {XFER_F32, XFER_BF16, 4, 2, XFI_CONVERT_AS_IT_IS, 0, 0};
  const int64_t G = INT64_C(1) << 30;
  const xfi_copy copies[] = {
      {.run_bytes = 2 * G + 5},
      {.run_bytes = 16 * G + 32},
      {.run_bytes = 8 * G + 20, .convert = &widens},
      {.run_bytes = 1, .n_dims = 1, .extent = {2 * G + 2048}, .src_stride = {2}},
      {.run_bytes = 3, .n_dims = 2, .extent = {1000003, 1021}, .src_stride = {8000, 5}},
      {.run_bytes = 21, .n_dims = 2, .extent = {1000003, 1021}, .src_stride = {50000, 33}},
      {.run_bytes = 210, .n_dims = 2, .extent = {100003, 1021}, .src_stride = {500000, 333}},
      {.run_bytes = 4001, .n_dims = 2, .extent = {100003, 1021}, .src_stride = {5 * G, 4321}},
      {.run_bytes = 2, .n_dims = 2, .extent = {70001, 90001}, .src_stride = {2, 140002}},
      {.run_bytes = 2,
       .convert = &halves,
       .n_dims = 2,
       .extent = {70001, 40001},
       .src_stride = {4, 280004}},
      {.run_bytes = 44,
       .convert = &widens,
       .n_dims = 2,
       .extent = {1021, G / 1024},
       .src_stride = {24 * G, 24}},
      {.run_bytes = 16, .n_dims = 3, .extent = {3, 70001, 40001}, .src_stride = {16, 48, 3360048}},
  };

  for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
    for (int64_t shift = 0; shift < 8; shift += 4) {
      xfi_copy c = copies[i];
      const int64_t n_bytes = xfi_copy_bytes(&c);
      huge h = {.v = {check_move, check_load}, .copy = &c};
      xfi_cuda_tables tables;

      world_case(i);
      r = rng_of(world_seed(), i, 2);
      c.src = (const char *)(uintptr_t)(G << 20) + shift;
      c.dst = (char *)(uintptr_t)(G << 16) + 2 * shift;
      for (int64_t d = c.n_dims - 1, stride = c.run_bytes; d >= 0; stride *= c.extent[d--])
        c.dst_stride[d] = stride;
      OK(xfi_cuda_tables_make(&tables, &c, 1, 132));
      for (int k = 0; k < XFI_CUDA_N_TABLES; k++)
        for (size_t p = 0; p < tables.at[k].n_pieces; p++) {
          const int64_t *first = &tables.at[k].first_tile[p];
          const xfi_cuda_piece *piece = &tables.at[k].pieces[p];

          walk_tile(&h.v, k, piece, 0);
          walk_tile(&h.v, k, piece, first[1] - first[0] - 1);
          for (int tile = 0; tile < 20; tile++)
            walk_tile(&h.v, k, piece, rng_below(&r, first[1] - first[0]));
        }
      NEED(h.first == c.dst && h.end == c.dst + n_bytes);
      xfi_cuda_tables_free(&tables);
    }
  }
}

static void test_divisions_are_exact(void)
{
  r = rng_of(world_seed(), 0, 3);
  for (int i = 0; i < 200000; i++) {
    const int bits = rng_int(&r, 1, 31);
    const uint32_t d =
        (uint32_t)(i < 1000 ? i + 1 : rng_below(&r, INT64_C(1) << bits) + (bits < 31));
    const xfi_cuda_div by = xfi_cuda_div_make(d);
    const uint32_t x = (uint32_t)rng_below(&r, INT64_C(1) << 31);
    const uint32_t multiple = x / d * d;
    const uint32_t last = INT32_MAX;

    NEED(walk_div(x, by) == x / d && walk_div(multiple, by) == x / d);
    NEED(multiple == 0 || walk_div(multiple - 1, by) == x / d - 1);
    NEED(walk_div(last, by) == last / d && walk_div(0, by) == 0);
  }
}

int main(int argc, char **argv)
{
  static const world_test tests[] = {
      {"random_copies_are_made_once", test_random_copies_are_made_once},
      {"random_boxes_of_digests_are_read_once", test_random_boxes_of_digests_are_read_once},
      {"copies_of_gigabytes_have_their_elements", test_copies_of_gigabytes_have_their_elements},
      {"divisions_are_exact", test_divisions_are_exact}};

  return world_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
