/*
 * The one way from src/ to code that touches elements: how a strided copy is described, and the
 * functions that make it on the host. kernels/ref/ is plain C and defines what is right;
 * kernels/cuda/, whose launchers are in cuda/launch.h, must equal it byte for byte.
 */
#ifndef XFI_KERNELS_H
#define XFI_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "convert.h"
#include "plugin_api.h"

#define XFI_COPY_DIMS 8

/*
 * One strided copy. For every index x with 0 <= x[d] < extent[d], `run_bytes` bytes go from
 * src + sum x[d] src_stride[d] to dst + sum x[d] dst_stride[d]. Dim 0 is the slowest. Strides are
 * bytes and positive. Gather, scatter, pack, unpack, transpose and zero-fill are all this. If
 * elements are converted, run_bytes counts in dst, and a run has as many elements in src.
 */
typedef struct xfi_copy {
  const char *src; /* NULL: the bytes written are 0 */
  char *dst;
  int64_t run_bytes;          /* contiguous on both sides; at least 1 */
  const xfi_convert *convert; /* NULL: bytes stay as they are. Not owned */
  float *scales;              /* quantisation by blocks: the scale of the first run */
  int64_t n_dims;             /* 0 to XFI_COPY_DIMS; 0: one run */
  int64_t extent[XFI_COPY_DIMS];
  int64_t src_stride[XFI_COPY_DIMS];
  int64_t dst_stride[XFI_COPY_DIMS];
  int64_t scale_stride[XFI_COPY_DIMS]; /* of the runs' scales, counted in scales */
} xfi_copy;

/* Does each run have a scale? */
static inline bool xfi_copy_has_scales(const xfi_copy *copy)
{
  return copy->convert != NULL && xfi_convert_has_scales(copy->convert);
}

/* How many bytes a run has in src. */
static inline int64_t xfi_copy_src_run(const xfi_copy *copy)
{
  const xfi_convert *c = copy->convert;

  return c == NULL ? copy->run_bytes : copy->run_bytes / c->dst_bytes * c->src_bytes;
}

/* Steps to the next run along the first `n_dims` dims, the last of which is the fastest: advances
 * `index`, which is zero for the first run, and the pointers to the run on both sides. *src may be
 * NULL. False: that was the last run. */
static inline bool xfi_copy_next(const xfi_copy *copy, int64_t n_dims, int64_t *index,
                                 const char **src, char **dst)
{
  for (int64_t d = n_dims - 1; d >= 0; d--) {
    const bool wraps = ++index[d] == copy->extent[d];
    const int64_t steps = wraps ? 1 - copy->extent[d] : 1;

    *dst += steps * copy->dst_stride[d];
    if (*src != NULL) *src += steps * copy->src_stride[d];
    if (!wraps) return true;
    index[d] = 0;
  }
  return false;
}

static inline int64_t xfi_copy_runs(const xfi_copy *copy)
{
  int64_t n_runs = 1;

  for (int64_t d = 0; d < copy->n_dims; d++)
    n_runs *= copy->extent[d];
  return n_runs;
}

/* Bytes that a copy writes. */
static inline int64_t xfi_copy_bytes(const xfi_copy *copy)
{
  return copy->run_bytes * xfi_copy_runs(copy);
}

static inline void xfi_swap(int64_t *words, int64_t a, int64_t b)
{
  const int64_t first = words[a];

  words[a] = words[b];
  words[b] = first;
}

static inline void xfi_copy_swap_dims(xfi_copy *c, int64_t a, int64_t b)
{
  xfi_swap(c->extent, a, b);
  xfi_swap(c->src_stride, a, b);
  xfi_swap(c->dst_stride, a, b);
  xfi_swap(c->scale_stride, a, b);
}

/* Sorts the dims by falling `stride`, which is the copy's src_stride or dst_stride. Stable, so that
 * equal views give equal loops. */
static inline void xfi_copy_sort_dims(xfi_copy *c, const int64_t *stride)
{
  for (int64_t d = 1; d < c->n_dims; d++)
    for (int64_t at = d; at > 0 && stride[at - 1] < stride[at]; at--)
      xfi_copy_swap_dims(c, at - 1, at);
}

/* Gives the same copy fewer and larger dims: dims of extent 1 go, the others are sorted by falling
 * destination stride, dims that continue each other on both sides become one, and the innermost
 * becomes part of the run where it is contiguous. */
XFI_PLUGIN_API void xfi_copy_simplify(xfi_copy *copy);

/* Makes the copies, one after the other, by plain loops. */
void xfi_ref_copy(const xfi_copy *copies, size_t n_copies);

/* The form of a box in memory, without its address. A serialised box has its runs one after the
 * other, in the order of their indices, with dim 0 the slowest. */
typedef struct xfi_strided_dim {
  int64_t extent;
  int64_t stride; /* bytes, positive */
} xfi_strided_dim;

typedef struct xfi_strided {
  const xfi_convert *convert; /* on the way from or to memory; NULL: none. Not owned */
  int64_t run_bytes;          /* of a serialised run, which is contiguous in memory; at least 1 */
  int64_t n_dims; /* 0 to XFI_COPY_DIMS; 0: one run. The dims are in an array of the caller's */
} xfi_strided;

static inline int64_t xfi_strided_bytes(const xfi_strided *box, const xfi_strided_dim *dims)
{
  int64_t n_bytes = box->run_bytes;

  for (int64_t d = 0; d < box->n_dims; d++)
    n_bytes *= dims[d].extent;
  return n_bytes;
}

/* Boxes of one form, which begin at `bases`, are serialised one after the other. This packs n_bytes
 * of the result, from byte `first` of the first box on, to `dense`; or, unless `packs`, unpacks
 * them from `dense`. With `past_cache` stores bypass the cache: for more bytes than it holds, or
 * for what another core reads next, since lines come slowly from our cache to that core. */
void xfi_ref_serialise(char *dense, char *const *bases, const xfi_strided *box,
                       const xfi_strided_dim *dims, int64_t first, int64_t n_bytes, bool packs,
                       bool past_cache);

#endif
