/*
 * Copies that are rows of a larger one, as those of experts in one tensor of their trainer are:
 * joined they are large enough for the copy engine. Only within one allocation on each side, since
 * the engine looks at the whole span.
 */
#include "cuda_device.h"

#include "alloc.h"
#include "error.h"

#include <stdlib.h>
#include <string.h>

/* Where copies may lie that are joined. */
typedef struct span {
  const char *base;
  size_t n_bytes;
} span;

/* Of everything but the addresses. */
static int by_form(const xfi_copy *a, const xfi_copy *b)
{
  const size_t n = sizeof *a->extent * (size_t)a->n_dims;
  int order = (a->run_bytes > b->run_bytes) - (a->run_bytes < b->run_bytes);

  if (order == 0) order = (a->convert > b->convert) - (a->convert < b->convert);
  if (order == 0) order = (a->n_dims > b->n_dims) - (a->n_dims < b->n_dims);
  if (order == 0) order = memcmp(a->extent, b->extent, n);
  if (order == 0) order = memcmp(a->src_stride, b->src_stride, n);
  return order == 0 ? memcmp(a->dst_stride, b->dst_stride, n) : order;
}

static int by_form_and_source(const void *a, const void *b)
{
  const xfi_copy *x = a;
  const xfi_copy *y = b;
  const int order = by_form(x, y);

  if (order != 0) return order;
  if (x->src != y->src) return x->src < y->src ? -1 : 1;
  return (x->dst > y->dst) - (x->dst < y->dst);
}

/* From the first byte on one side to behind the last one. */
static int64_t reach(const xfi_copy *c, const int64_t *stride, int64_t run_bytes)
{
  int64_t n = run_bytes;

  for (int64_t d = 0; d < c->n_dims; d++)
    n += (c->extent[d] - 1) * stride[d];
  return n;
}

static bool holds(const span *s, const char *bytes, int64_t n_bytes)
{
  return bytes >= s->base && bytes + n_bytes <= s->base + s->n_bytes;
}

/* What may be joined to what starts at `pointer`; empty where nobody knows. */
static span span_of(const xfi_cuda_device *device, const char *pointer)
{
  xfi_cuda_pointer found;
  span s = {NULL, 0};

  if (xfi_cuda_mapped(device, pointer, &s.base, &s.n_bytes)) return s;
  if (xfi_cuda_look(device, pointer, &found) == XFER_OK) s = (span){found.base, found.n_bytes};
  return s;
}

/* How many of at[0] to at[n - 1] are rows of one copy; at least 1. */
static size_t count_rows(const xfi_cuda_device *device, const xfi_copy *at, size_t n)
{
  const int64_t src_bytes = reach(at, at->src_stride, xfi_copy_src_run(at));
  const int64_t dst_bytes = reach(at, at->dst_stride, at->run_bytes);
  span src = {NULL, 0};
  span dst = {NULL, 0};
  size_t rows = 1;

  if (n < 2 || at->src == NULL || at->n_dims == XFI_COPY_DIMS) return 1;
  if (xfi_copy_has_scales(at)) return 1; /* each row has its own */
  const int64_t src_step = at[1].src - at[0].src;
  const int64_t dst_step = at[1].dst - at[0].dst;
  if (by_form(&at[0], &at[1]) != 0 || src_step <= 0 || dst_step <= 0) return 1;
  src = span_of(device, at->src);
  if (!holds(&src, at[1].src, src_bytes)) return 1;
  dst = span_of(device, at->dst);
  while (rows < n && by_form(&at[0], &at[rows]) == 0 &&
         at[rows].src - at[rows - 1].src == src_step &&
         at[rows].dst - at[rows - 1].dst == dst_step && holds(&src, at[rows].src, src_bytes) &&
         holds(&dst, at[rows].dst, dst_bytes))
    rows++;
  return rows;
}

/* Give a copy another dim, the slowest. */
static void repeat(xfi_copy *c, size_t rows, int64_t src_step, int64_t dst_step)
{
  const size_t n = sizeof *c->extent * (size_t)c->n_dims;

  memmove(c->extent + 1, c->extent, n);
  memmove(c->src_stride + 1, c->src_stride, n);
  memmove(c->dst_stride + 1, c->dst_stride, n);
  c->extent[0] = (int64_t)rows;
  c->src_stride[0] = src_step;
  c->dst_stride[0] = dst_step;
  c->n_dims++;
  xfi_copy_simplify(c);
}

size_t xfi_cuda_join(const xfi_cuda_device *device, xfi_copy *copies, size_t n)
{
  size_t n_joined = 0;
  size_t rows;

  if (n > 0) qsort(copies, n, sizeof *copies, by_form_and_source);
  for (size_t i = 0; i < n; i += rows) {
    xfi_copy c = copies[i];

    rows = count_rows(device, &copies[i], n - i);
    if (rows > 1)
      repeat(&c, rows, copies[i + 1].src - copies[i].src, copies[i + 1].dst - copies[i].dst);
    copies[n_joined++] = c;
  }
  return n_joined;
}
