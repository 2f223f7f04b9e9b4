/* Strided copies in plain C: the host's engine, and what kernels/cuda/ must equal byte for byte.
 *
 * The innermost dim is one tight loop, chosen once per copy by the size of a run: words of 1 to 16
 * bytes are moved by a load and a store, longer runs by memcpy. The dims above it are an odometer
 * whose cost is paid once per innermost loop.
 */
#include "kernels.h"

#include <stdbool.h>
#include <string.h>

/* ---- descriptions ------------------------------------------------------------------------- */

int64_t xfi_copy_bytes(const xfi_copy *copy)
{
  int64_t n_bytes = copy->run_bytes;

  for (int64_t d = 0; d < copy->n_dims; d++)
    n_bytes *= copy->extent[d];
  return n_bytes;
}

static void dim_move(xfi_copy *copy, int64_t to, int64_t from)
{
  copy->extent[to] = copy->extent[from];
  copy->src_stride[to] = copy->src_stride[from];
  copy->dst_stride[to] = copy->dst_stride[from];
}

/* Keeps the dims that have a choice of index. */
static void drop_single_dims(xfi_copy *copy)
{
  int64_t n_dims = 0;

  for (int64_t d = 0; d < copy->n_dims; d++)
    if (copy->extent[d] != 1) dim_move(copy, n_dims++, d);
  copy->n_dims = n_dims;
}

/* Falling destination strides: each byte is written once, so the order of writing is free, and dims
 * that continue each other come to stand side by side. Stable, since equal views should give equal
 * loops. */
static void sort_dims(xfi_copy *copy)
{
  for (int64_t d = 1; d < copy->n_dims; d++) {
    int64_t extent = copy->extent[d];
    int64_t src_stride = copy->src_stride[d];
    int64_t dst_stride = copy->dst_stride[d];
    int64_t at = d;

    for (; at > 0 && copy->dst_stride[at - 1] < dst_stride; at--)
      dim_move(copy, at, at - 1);
    copy->extent[at] = extent;
    copy->src_stride[at] = src_stride;
    copy->dst_stride[at] = dst_stride;
  }
}

/* Is a step of the outer dim the same as `n` inner steps of `inner` bytes, on both sides? */
static bool continues(const xfi_copy *copy, int64_t outer, int64_t n, int64_t src_inner,
                      int64_t dst_inner)
{
  if (copy->dst_stride[outer] != n * dst_inner) return false;
  return copy->src == NULL || copy->src_stride[outer] == n * src_inner;
}

static void merge_dims(xfi_copy *copy)
{
  int64_t last = 0; /* of the merged dims */

  for (int64_t d = 1; d < copy->n_dims; d++) {
    if (continues(copy, last, copy->extent[d], copy->src_stride[d], copy->dst_stride[d])) {
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
  if (xfi_copy_bytes(copy) == 0) return;
  drop_single_dims(copy);
  sort_dims(copy);
  merge_dims(copy);
  if (copy->n_dims > 0 && continues(copy, copy->n_dims - 1, 1, copy->run_bytes, copy->run_bytes))
    copy->run_bytes *= copy->extent[--copy->n_dims];
}

/* ---- loops -------------------------------------------------------------------------------- */

/* One innermost dim: n runs, `ss` and `ds` bytes apart. */
typedef void line_fn(char *dst, const char *src, int64_t n, int64_t ds, int64_t ss, int64_t run);

/* memcpy of a constant is one load and one store; neither side need be aligned. */
#define LINE_OF_WORDS(bytes)                                                                       \
  static void line_##bytes(char *dst, const char *src, int64_t n, int64_t ds, int64_t ss,          \
                           int64_t run)                                                            \
  {                                                                                                \
    (void)run;                                                                                     \
    for (int64_t i = 0; i < n; i++)                                                                \
      memcpy(dst + i * ds, src + i * ss, bytes);                                                   \
  }

LINE_OF_WORDS(1)
LINE_OF_WORDS(2)
LINE_OF_WORDS(4)
LINE_OF_WORDS(8)
LINE_OF_WORDS(16)

static void line_of_runs(char *dst, const char *src, int64_t n, int64_t ds, int64_t ss, int64_t run)
{
  for (int64_t i = 0; i < n; i++)
    memcpy(dst + i * ds, src + i * ss, (size_t)run);
}

static void line_of_zeros(char *dst, const char *src, int64_t n, int64_t ds, int64_t ss,
                          int64_t run)
{
  (void)src, (void)ss;
  for (int64_t i = 0; i < n; i++)
    memset(dst + i * ds, 0, (size_t)run);
}

static line_fn *choose_line(const xfi_copy *copy)
{
  if (copy->src == NULL) return line_of_zeros;
  switch (copy->run_bytes) {
  case 1:
    return line_1;
  case 2:
    return line_2;
  case 4:
    return line_4;
  case 8:
    return line_8;
  case 16:
    return line_16;
  default:
    return line_of_runs;
  }
}

static void copy_one(const xfi_copy *copy)
{
  const char *src = copy->src; /* stays NULL when zeroing */
  char *dst = copy->dst;
  line_fn *line = choose_line(copy);
  int64_t index[XFI_COPY_DIMS] = {0};
  int64_t last = copy->n_dims - 1;

  if (last < 0) {
    line(dst, src, 1, 0, 0, copy->run_bytes);
    return;
  }
  for (int64_t d = last; d >= 0;) {
    line(dst, src, copy->extent[last], copy->dst_stride[last], copy->src_stride[last],
         copy->run_bytes);
    for (d = last - 1; d >= 0; d--) {
      bool wraps = ++index[d] == copy->extent[d];
      int64_t steps = wraps ? 1 - copy->extent[d] : 1;
      dst += steps * copy->dst_stride[d];
      if (src != NULL) src += steps * copy->src_stride[d];
      if (!wraps) break;
      index[d] = 0;
    }
  }
}

void xfi_ref_copy(const xfi_copy *copies, size_t n_copies)
{
  for (size_t i = 0; i < n_copies; i++)
    if (xfi_copy_bytes(&copies[i]) != 0) copy_one(&copies[i]);
}
