/* Strided copies in plain C: the host's engine, and what kernels/cuda/ must equal byte for byte.
 *
 * The innermost dim is one tight loop, chosen once per copy by the size of a run: words of 1 to 64
 * bytes are moved by a load and a store, longer runs by memcpy. The dims above it are an odometer
 * whose cost is paid once per innermost loop.
 */
#include "float_mode.h"
#include "kernels.h"

#include <stdbool.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- descriptions ------------------------------------------------------------------------- */

static void dim_move(xfi_copy *copy, int64_t to, int64_t from)
{
  copy->extent[to] = copy->extent[from];
  copy->src_stride[to] = copy->src_stride[from];
  copy->dst_stride[to] = copy->dst_stride[from];
  copy->scale_stride[to] = copy->scale_stride[from];
}

/* Is a step of the outer dim the same as `n` inner steps of `inner` bytes, on both sides? */
static bool continues(const xfi_copy *copy, int64_t outer, int64_t n, int64_t src_inner,
                      int64_t dst_inner, int64_t scale_inner)
{
  if (copy->dst_stride[outer] != n * dst_inner) return false;
  if (copy->scale_stride[outer] != n * scale_inner) return false;
  return copy->src == NULL || copy->src_stride[outer] == n * src_inner;
}

static void merge_dims(xfi_copy *copy)
{
  int64_t last = 0; /* of the merged dims */

  for (int64_t d = 1; d < copy->n_dims; d++) {
    if (continues(copy, last, copy->extent[d], copy->src_stride[d], copy->dst_stride[d],
                  copy->scale_stride[d])) {
      int64_t extent = copy->extent[last] * copy->extent[d];
      dim_move(copy, last, d);
      copy->extent[last] = extent;
    } else {
      dim_move(copy, ++last, d);
    }
  }
  if (copy->n_dims > 0) copy->n_dims = last + 1;
}

void xfi_copy_simplify(xfi_copy *copy)
{
  int64_t n_dims = 0; /* that have a choice of index */

  if (xfi_copy_bytes(copy) == 0) return;
  for (int64_t d = 0; d < copy->n_dims; d++)
    if (copy->extent[d] != 1) dim_move(copy, n_dims++, d);
  copy->n_dims = n_dims;
  /* Each byte is written once, so the order of writing is free, and dims that continue each other
   * come to stand side by side. */
  xfi_copy_sort_dims(copy, copy->dst_stride);
  merge_dims(copy);
  if (copy->n_dims > 0 &&
      continues(copy, copy->n_dims - 1, 1, xfi_copy_src_run(copy), copy->run_bytes, 0))
    copy->run_bytes *= copy->extent[--copy->n_dims];
}

/* ---- loops -------------------------------------------------------------------------------- */

/* One innermost dim: n runs of `run` bytes of dst, `ss` and `ds` bytes apart. */
typedef void line_fn(char *dst, const char *src, int64_t n, int64_t ds, int64_t ss, int64_t run,
                     const xfi_convert *convert);

/* memcpy of a constant is one load and one store; neither side need be aligned. The loop is, to be
 * within one line of the instruction cache: it takes up to 1.6 times as long across two. */
#define LINE_OF_WORDS(bytes)                                                                       \
  __attribute__((aligned(64))) static void line_##bytes(char *dst, const char *src, int64_t n,     \
                                                        int64_t ds, int64_t ss, int64_t run,       \
                                                        const xfi_convert *convert)                \
  {                                                                                                \
    (void)run, (void)convert;                                                                      \
    for (int64_t i = 0; i < n; i++)                                                                \
      memcpy(dst + i * ds, src + i * ss, bytes);                                                   \
  }

LINE_OF_WORDS(1)
LINE_OF_WORDS(2)
LINE_OF_WORDS(4)
LINE_OF_WORDS(8)
LINE_OF_WORDS(16)
LINE_OF_WORDS(32)
LINE_OF_WORDS(64)

static void line_of_runs(char *dst, const char *src, int64_t n, int64_t ds, int64_t ss, int64_t run,
                         const xfi_convert *convert)
{
  (void)convert;
  for (int64_t i = 0; i < n; i++)
    memcpy(dst + i * ds, src + i * ss, (size_t)run);
}

static void line_of_zeros(char *dst, const char *src, int64_t n, int64_t ds, int64_t ss,
                          int64_t run, const xfi_convert *convert)
{
  (void)src, (void)ss, (void)convert;
  for (int64_t i = 0; i < n; i++)
    memset(dst + i * ds, 0, (size_t)run);
}

static line_fn *choose_line(int64_t run_bytes, const xfi_convert *convert);

/* Short runs are first put side by side, since many numbers are converted at once. */
static void line_converting(char *dst, const char *src, int64_t n, int64_t ds, int64_t ss,
                            int64_t run, const xfi_convert *convert)
{
  enum { SHORT = 16, MOST = 1024 }; /* numbers */
  const int64_t n_in_run = run / convert->dst_bytes;
  const int64_t src_run = n_in_run * convert->src_bytes;
  char from[MOST * sizeof(float)];
  char to[MOST * sizeof(float)];

  while (n >= 8 && n_in_run < SHORT) {
    const int64_t taken = n * n_in_run <= MOST ? n : MOST / n_in_run;

    choose_line(src_run, NULL)(from, src, taken, src_run, ss, src_run, NULL);
    xfi_ref_convert(to, from, taken * n_in_run, convert);
    choose_line(run, NULL)(dst, to, taken, ds, run, run, NULL);
    dst += taken * ds;
    src += taken * ss;
    n -= taken;
  }
  for (int64_t i = 0; i < n; i++)
    xfi_ref_convert(dst + i * ds, src + i * ss, n_in_run, convert);
}

/* Stores that bypass the cache: memory that is written in whole lines need not be read first, which
 * would be a third of the traffic. They are used for runs of at least so many bytes. */
#define MIN_PAST_CACHE 256
#define MIN_DENSE_PAST_CACHE 64 /* where runs are adjacent */

#ifdef __SSE2__

/* Lines of which the run has only a part go through the cache, since they have to be read anyhow.
 */
static void run_past_cache(char *dst, const char *src, size_t n)
{
  const size_t word = sizeof(__m128i);
  const size_t line = 4 * word;
  const size_t head = (line - (uintptr_t)dst % line) % line;
  size_t i = head < n ? head : n;

  memcpy(dst, src, i);
  for (; i + line <= n; i += line)
    for (size_t k = 0; k < 4; k++)
      _mm_stream_si128((__m128i *)(void *)(dst + i + k * word),
                       _mm_loadu_si128((const __m128i *)(const void *)(src + i + k * word)));
  memcpy(dst + i, src + i, n - i);
}

static void line_past_cache(char *dst, const char *src, int64_t n, int64_t ds, int64_t ss,
                            int64_t run, const xfi_convert *convert)
{
  (void)convert;
  for (int64_t i = 0; i < n; i++)
    run_past_cache(dst + i * ds, src + i * ss, (size_t)run);
}

/* Orders these stores before later ones, which they otherwise are not. */
static void settle_past_cache(void)
{
  _mm_sfence();
}

#else

#define line_past_cache line_of_runs

static void settle_past_cache(void)
{
}

#endif

static line_fn *choose_line(int64_t run_bytes, const xfi_convert *convert)
{
  static line_fn *const of_words[] = {line_1, line_2, line_4, line_8, line_16, line_32, line_64};

  if (convert != NULL) return line_converting;
  if (run_bytes < 1 || run_bytes > 64 || (run_bytes & (run_bytes - 1)) != 0) return line_of_runs;
  return of_words[__builtin_ctzll((unsigned long long)run_bytes)];
}

/* ---- transposes ---------------------------------------------------------------------------- */

/* Where src is fastest along one dim and dst along another, a loop along either dim would fetch a
 * line of the other side's memory for each word. So tiles are read in rows of src, transposed in
 * buffers, and written in rows of dst. The buffers stay in the cache, where lines of memory that
 * are a power of two apart would push each other out; and dst is not written word by word, since
 * only a few stores can wait for memory at a time. */
#define TILE_BYTES (1 << 14)
#define MAX_TILED_RUN 8     /* longer ones gain little by it */
#define MAX_TILED_STRIDE 16 /* of the fastest dim, so that several words share a line of memory */
#define MIN_TILED_EXTENT 32

/* Do n lines of memory that are `stride` apart take more than a small cache holds? Lines at the
 * same place in their pages share only a few places of it. */
static bool outgrow_cache(int64_t n, int64_t stride)
{
  const int64_t line = 64;
  const int64_t page = 4096;
  const int64_t power = stride & -stride; /* the largest that divides it */
  const int64_t taken = power < line ? line : power > page ? page : power;

  return stride >= line && n * taken >= (1 << 17);
}

static bool is_tiled(const xfi_copy *copy, int64_t from, int64_t to)
{
  const int64_t run = copy->run_bytes;

  if (from == to || copy->src == NULL || run > MAX_TILED_RUN || (run & (run - 1)) != 0)
    return false;
  if (copy->src_stride[from] > MAX_TILED_STRIDE || copy->dst_stride[to] > MAX_TILED_STRIDE)
    return false;
  if (copy->extent[from] < MIN_TILED_EXTENT || copy->extent[to] < MIN_TILED_EXTENT) return false;
  return copy->convert != NULL ? copy->src_stride[from] == xfi_copy_src_run(copy)
                               : outgrow_cache(copy->extent[to], copy->src_stride[to]);
}

/* The last two dims: the fast one of src and that of dst. */
static void copy_tiles(const xfi_copy *c, const char *src, char *dst)
{
  const int64_t word = c->run_bytes;
  const int64_t from = c->n_dims - 2;
  const int64_t to = c->n_dims - 1;
  const int64_t width = word <= 2 ? 128 : 64;
  const int64_t height = TILE_BYTES / (width * word);
  const bool reads_rows = c->src_stride[from] == xfi_copy_src_run(c);
  const bool writes_rows = c->dst_stride[to] == word;
  line_fn *line = choose_line(word, NULL);
  line_fn *read = choose_line(0, c->convert);
  char in[TILE_BYTES];  /* has shape [height, width] */
  char out[TILE_BYTES]; /* has shape [width, height] */

  for (int64_t x = 0; x < c->extent[from]; x += width)
    for (int64_t y = 0; y < c->extent[to]; y += height) {
      const int64_t n_x = width < c->extent[from] - x ? width : c->extent[from] - x;
      const int64_t n_y = height < c->extent[to] - y ? height : c->extent[to] - y;
      const char *s = src + x * c->src_stride[from] + y * c->src_stride[to];
      char *d = dst + x * c->dst_stride[from] + y * c->dst_stride[to];
      char *turned = writes_rows ? out : d;
      const int64_t row = writes_rows ? height * word : c->dst_stride[from];

      if (reads_rows) read(in, s, n_y, width * word, c->src_stride[to], n_x * word, c->convert);
      for (int64_t i = 0; i < n_y && !reads_rows; i++)
        line(in + i * width * word, s + i * c->src_stride[to], n_x, word, c->src_stride[from], word,
             NULL);
      for (int64_t i = 0; i < n_x; i++)
        line(turned + i * row, in + i * word, n_y, c->dst_stride[to], width * word, word, NULL);
      if (writes_rows) line_of_runs(d, out, n_x, c->dst_stride[from], row, n_y * word, NULL);
    }
}

/* The dim along which src is fastest. */
static int64_t fastest_of_src(const xfi_copy *copy)
{
  int64_t fastest = copy->n_dims - 1;

  for (int64_t d = fastest - 1; d >= 0; d--)
    if (copy->extent[d] > 1 && copy->src_stride[d] < copy->src_stride[fastest]) fastest = d;
  return fastest;
}

static void copy_one(const xfi_copy *copy)
{
  const char *src = copy->src; /* stays NULL when zeroing */
  char *dst = copy->dst;
  line_fn *line = src == NULL ? line_of_zeros : choose_line(copy->run_bytes, copy->convert);
  int64_t index[XFI_COPY_DIMS] = {0};
  int64_t last = copy->n_dims - 1;
  const int64_t from = fastest_of_src(copy);

  if (last < 0) {
    line(dst, src, 1, 0, 0, copy->run_bytes, copy->convert);
    return;
  }
  if (is_tiled(copy, from, last)) {
    xfi_copy c = *copy;

    for (int64_t d = from; d + 1 < last; d++)
      xfi_copy_swap_dims(&c, d, d + 1);
    do {
      copy_tiles(&c, src, dst);
    } while (xfi_copy_next(&c, last - 1, index, &src, &dst));
    return;
  }
  do {
    line(dst, src, copy->extent[last], copy->dst_stride[last], copy->src_stride[last],
         copy->run_bytes, copy->convert);
  } while (xfi_copy_next(copy, last, index, &src, &dst));
}

/* Dims from d on, each run with its scale; dst is NULL where amaxes are found. */
static void copy_with_scales(const xfi_copy *copy, int64_t d, char *dst, const char *src,
                             float *scales)
{
  if (d == copy->n_dims) {
    xfi_ref_run_with_scale(dst, src, copy->run_bytes / copy->convert->dst_bytes, copy->convert,
                           scales);
    return;
  }
  for (int64_t i = 0; i < copy->extent[d]; i++)
    copy_with_scales(copy, d + 1, dst == NULL ? NULL : dst + i * copy->dst_stride[d],
                     src == NULL ? NULL : src + i * copy->src_stride[d],
                     scales + i * copy->scale_stride[d]);
}

void xfi_ref_copy(const xfi_copy *copies, size_t n_copies)
{
  fenv_t callers;
  bool computes = false;

  for (size_t i = 0; i < n_copies; i++) {
    const xfi_copy *c = &copies[i];

    if (xfi_copy_bytes(c) == 0) continue;
    if (c->convert != NULL && !computes) {
      xfi_float_mode_enter(&callers);
      computes = true;
    }
    if (xfi_copy_has_scales(c))
      copy_with_scales(c, 0, c->dst, c->src, c->scales);
    else
      copy_one(c);
  }
  if (computes) xfi_float_mode_leave(&callers);
}

/* ---- boxes, serialised --------------------------------------------------------------------- */

/* A place in a serialised box. */
typedef struct place {
  const xfi_strided *box;
  const xfi_strided_dim *dims;
  char *run;                    /* the first byte of the run */
  int64_t within;               /* bytes of it that are behind us */
  int64_t index[XFI_COPY_DIMS]; /* of the run */
} place;

static place place_at(char *base, const xfi_strided *box, const xfi_strided_dim *dims,
                      int64_t first)
{
  place p = {.box = box, .dims = dims, .run = base, .within = first};

  if (box->n_dims == 0 || first == 0) return p;
  p.within = first % box->run_bytes;
  first /= box->run_bytes;
  for (int64_t d = box->n_dims - 1; d > 0 && first > 0; d--) {
    p.index[d] = first % dims[d].extent;
    first /= dims[d].extent;
    p.run += p.index[d] * dims[d].stride;
  }
  p.index[0] += first;
  p.run += first * dims[0].stride;
  return p;
}

/* Steps on by n runs, no further than the end of the line. */
static void advance(place *p, int64_t n)
{
  const xfi_strided_dim *dims = p->dims;
  int64_t d = p->box->n_dims - 1;

  if (d < 0) return;
  p->run += n * dims[d].stride;
  p->index[d] += n;
  for (; d > 0 && p->index[d] == dims[d].extent; d--) {
    p->run += dims[d - 1].stride - dims[d].extent * dims[d].stride;
    p->index[d] = 0;
    p->index[d - 1]++;
  }
}

/* How many bytes of memory correspond to n_bytes of a serialised box. */
static int64_t in_memory(int64_t n_bytes, const xfi_convert *convert, bool packs)
{
  if (convert == NULL) return n_bytes;
  return packs ? n_bytes / convert->dst_bytes * convert->src_bytes
               : n_bytes / convert->src_bytes * convert->dst_bytes;
}

/* Copies n_bytes, by lines of whole runs and, at both ends, by parts of a run. */
static void carry(char *dense, place p, int64_t n_bytes, bool packs, line_fn *whole,
                  line_fn *partial)
{
  const xfi_convert *convert = p.box->convert;
  const int64_t run = p.box->run_bytes;
  const int64_t last = p.box->n_dims - 1;
  const int64_t stride = last < 0 ? 0 : p.dims[last].stride;

  while (n_bytes > 0) {
    char *memory = p.run + in_memory(p.within, convert, packs);
    const int64_t left = run - p.within;
    int64_t n = 1;
    int64_t taken = left < n_bytes ? left : n_bytes;
    line_fn *line;

    if (taken == run) {
      const int64_t in_line = last < 0 ? 1 : p.dims[last].extent - p.index[last];

      n = n_bytes >= in_line * run ? in_line : n_bytes / run;
      taken = n * run;
    }
    line = taken < run ? partial : whole;
    if (packs)
      line(dense, memory, n, run, stride, taken / n, convert);
    else
      line(memory, dense, n, stride, run, in_memory(taken / n, convert, packs), convert);
    advance(&p, n);
    p.within = 0;
    dense += taken;
    n_bytes -= taken;
  }
}

/* Boxes that are one line each, as small ones are. */
static void carry_lines(char *dense, char *const *bases, int64_t n, const xfi_strided *box,
                        const xfi_strided_dim *dim, bool packs, line_fn *whole)
{
  const xfi_convert *convert = box->convert;
  const int64_t run = box->run_bytes;
  const int64_t extent = box->n_dims == 0 ? 1 : dim->extent;
  const int64_t stride = box->n_dims == 0 ? 0 : dim->stride;
  const int64_t in_box = in_memory(run, convert, packs);

  for (int64_t i = 0; i < n; i++, dense += extent * run) {
    if (packs)
      whole(dense, bases[i], extent, run, stride, run, convert);
    else
      whole(bases[i], dense, extent, stride, run, in_box, convert);
  }
}

void xfi_ref_serialise(char *dense, char *const *bases, const xfi_strided *box,
                       const xfi_strided_dim *dims, int64_t first, int64_t n_bytes, bool packs,
                       bool past_cache)
{
  const int64_t box_bytes = xfi_strided_bytes(box, dims);
  const bool past = past_cache && box->convert == NULL &&
                    box->run_bytes >= (packs ? MIN_DENSE_PAST_CACHE : MIN_PAST_CACHE);
  line_fn *whole = past ? line_past_cache : choose_line(box->run_bytes, box->convert);
  line_fn *partial = past ? line_past_cache : choose_line(0, box->convert);
  fenv_t callers;

  if (box->convert != NULL) xfi_float_mode_enter(&callers);
  while (n_bytes > 0) {
    const int64_t left = box_bytes - first;
    int64_t n = 1;
    int64_t taken = left < n_bytes ? left : n_bytes;

    if (taken == box_bytes && box->n_dims <= 1) {
      n = n_bytes / box_bytes;
      taken = n * box_bytes;
      carry_lines(dense, bases, n, box, dims, packs, whole);
    } else {
      carry(dense, place_at(*bases, box, dims, first), taken, packs, whole, partial);
    }
    bases += n;
    first = 0;
    dense += taken;
    n_bytes -= taken;
  }
  if (box->convert != NULL) xfi_float_mode_leave(&callers);
  if (past) settle_past_cache();
}
