/**
 * @file view.h Views: where a rank's part of a tensor lies in its memory.
 */
#ifndef XFER_VIEW_H
#define XFER_VIEW_H

#include <xfer/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How an xfer_view describes memory. */
typedef enum xfer_view_kind {
  XFER_VIEW_DENSE = 0,   /**< The part is row-major from `base`, without gaps. */
  XFER_VIEW_STRIDED = 1, /**< Element x lies at base + sum of x[d] * strides[d]. */
  XFER_VIEW_PIECES = 2,  /**< Along `piece_dim` the part is cut into n_pieces equal pieces, each
                              with its own base pointer; inside a piece as for STRIDED. */
  XFER_VIEW_BOXES = 3    /**< For a layout by boxes: each box of the rank's list has its own base
                              pointer and strides. */
} xfer_view_kind;

/**
 * Where a rank's part of one tensor lies in its memory. The comment of a field begins with the
 * kinds of views that use it. All zero is a dense view without memory, for an empty part. The
 * memory belongs to the caller. Destination views must not overlap each other, except that one view
 * may be bound to several tensors that share memory on purpose (tied weights), have one dtype there
 * and, but for casts, the same conversion.
 *
 * The struct does not grow, since views lie in arrays: what is new is a kind of its own, which an
 * older library refuses, and gives fields that the others do not use, or `reserved`, a meaning.
 */
typedef struct xfer_view {
  int32_t kind;                   /**< xfer_view_kind */
  int32_t n_dims;                 /**< STRIDED, PIECES, BOXES: the tensor's number of dims. */
  void *base;                     /**< DENSE, STRIDED: the part's first element. The library does
                                       not write a source. */
  int64_t strides[XFER_MAX_DIMS]; /**< STRIDED, PIECES: bytes from one index to the next, in any
                                       order, with gaps allowed. If the dim has more than one index,
                                       at least the size of an element. Those of a destination must
                                       nest: in some order of the dims, each is at least the extent
                                       of the inner dims, from their first byte to their last. */
  void *const *pieces;            /**< PIECES, BOXES: [n_pieces] base pointers; copied by bind. */
  int64_t n_pieces;               /**< PIECES: it must divide the part's size in piece_dim. BOXES:
                                       the number of the rank's boxes. */
  int32_t piece_dim;              /**< PIECES: the dim that is cut. */
  uint32_t reserved;              /**< Must be 0. */
  const int64_t *box_strides;     /**< BOXES: [n_pieces][n_dims] bytes, as `strides`; NULL: each box
                                       is dense. Copied by bind. */
} xfer_view;

/** A dense row-major part at `base`, which may be const memory if it is a source's. */
#if defined(__GNUC__) && __GNUC__ >= 11 && !defined(__clang__)
__attribute__((access(none, 1))) /* so that a destination need not be initialized */
#endif
XFER_API_INLINE xfer_view
xfer_view_dense(const void *base)
{
  xfer_view v = {XFER_VIEW_DENSE, 0, NULL, {0, 0, 0, 0, 0, 0, 0, 0}, NULL, 0, 0, 0, NULL};
  v.base = (void *)(uintptr_t)base;
  return v;
}

/** A part at `base`, as above, with `n_dims` strides in bytes. If `strides` is NULL, bind refuses
 * the view. */
#if defined(__GNUC__) && __GNUC__ >= 11 && !defined(__clang__)
__attribute__((access(none, 1))) /* so that a destination need not be initialized */
#endif
XFER_API_INLINE xfer_view
xfer_view_strided(const void *base, const int64_t *strides, int n_dims)
{
  xfer_view v = {XFER_VIEW_STRIDED, 0, NULL, {0, 0, 0, 0, 0, 0, 0, 0}, NULL, 0, 0, 0, NULL};
  int d;
  v.base = (void *)(uintptr_t)base;
  v.n_dims = strides == NULL && n_dims > 0 ? -1 : (int32_t)n_dims;
  for (d = 0; d < v.n_dims && d < XFER_MAX_DIMS; d++)
    v.strides[d] = strides[d];
  return v;
}

/** A part in `n_pieces` pieces along `piece_dim`, each with the same `n_dims` strides in bytes. */
XFER_API_INLINE xfer_view xfer_view_pieces(void *const *pieces, int64_t n_pieces, int piece_dim,
                                           const int64_t *strides, int n_dims)
{
  xfer_view v = xfer_view_strided(NULL, strides, n_dims);
  v.kind = XFER_VIEW_PIECES;
  v.pieces = pieces;
  v.n_pieces = n_pieces;
  v.piece_dim = (int32_t)piece_dim;
  return v;
}

/**
 * The boxes of a layout by boxes, each at its own place: box i of the rank's list at boxes[i] with
 * strides[i * n_dims ...] in bytes. `strides` NULL: each box is dense. An empty box may be at NULL.
 */
XFER_API_INLINE xfer_view xfer_view_boxes(void *const *boxes, int64_t n_boxes,
                                          const int64_t *strides, int n_dims)
{
  xfer_view v = xfer_view_dense(NULL);
  v.kind = XFER_VIEW_BOXES;
  v.n_dims = (int32_t)n_dims;
  v.pieces = boxes;
  v.n_pieces = n_boxes;
  v.box_strides = strides;
  return v;
}

#ifdef __cplusplus
}
#endif
#endif
