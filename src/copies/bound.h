/*
 * Views bound to parts: they map local indices to addresses; and copies between two of them.
 */
#ifndef XFI_BOUND_H
#define XFI_BOUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"
#include "xfer/xfer.h"

/* A box of a layout by boxes. Its first row in dim 0 has local index `row`. */
typedef struct xfi_bound_box {
  int64_t row;
  int64_t length[XFER_MAX_DIMS];
  int64_t strides[XFER_MAX_DIMS]; /* bytes */
} xfi_bound_box;

/* The blocks of a source that is quantised by blocks (blocks.h). */
typedef struct xfi_blocks xfi_blocks;

/* A view together with the shape of the part that it holds. Every kind of view becomes a list of
 * pieces; a dense or strided view is one piece. Slots of staging memory are described in the same
 * way, and peers are sent this description, so a change of it requires a new PLAN_VERSION
 * (agree/statement.c). */
typedef struct xfi_bound {
  bool is_set; /* if not, it has no address yet */
  int n_dims;
  int piece_dim;
  int64_t shape[XFER_MAX_DIMS];
  int64_t strides[XFER_MAX_DIMS]; /* bytes */
  int64_t piece_length;           /* indices of piece_dim in one piece */
  int64_t n_pieces;
  char **pieces; /* [n_pieces], owned; NULL: the one piece is `only` */
  char *only;
  xfi_bound_box *boxes; /* [n_pieces], owned: each piece is a box. NULL: shape and strides hold */
  const xfi_blocks *blocks; /* not owned; NULL: the source is not quantised by blocks */
} xfi_bound;

/* Check a view against the shape of its part and copy it. `what` names tensor and side for errors.
 */
xfer_status xfi_bound_set(xfi_bound *bound, const xfer_view *view, const int64_t *shape, int n_dims,
                          int elem_bytes, const char *what);
/* The same for the `n` boxes of a rank, whose rows and lengths are given. The bound takes ownership
 * of `boxes`, even on failure, and drops empty ones. */
xfer_status xfi_bound_set_boxes(xfi_bound *bound, const xfer_view *view, xfi_bound_box *boxes,
                                int64_t n, int n_dims, int elem_bytes, const char *what);
/* A dense array of `shape` at `base`. */
xfi_bound xfi_bound_dense(char *base, const int64_t *shape, int n_dims, int elem_bytes);
void xfi_bound_clear(xfi_bound *bound);

static inline char *xfi_bound_piece(const xfi_bound *bound, int64_t i)
{
  return bound->pieces == NULL ? bound->only : bound->pieces[i];
}

static inline const int64_t *xfi_bound_strides(const xfi_bound *bound, int64_t piece)
{
  return bound->boxes != NULL ? bound->boxes[piece].strides : bound->strides;
}

/* The piece in which an element lies, and the element's address. */
int64_t xfi_bound_piece_at(const xfi_bound *bound, const int64_t *index);
char *xfi_bound_address(const xfi_bound *bound, int64_t piece, const int64_t *index);

/* An address in a bound view that is one array. It stays valid if the view is bound to another
 * address. */
typedef struct xfi_anchor {
  const xfi_bound *bound; /* NULL: no address */
  uintptr_t offset;       /* bytes from the bound's `only` */
} xfi_anchor;

static inline xfi_anchor xfi_anchor_at(const xfi_bound *bound, const void *address)
{
  return bound == NULL ? (xfi_anchor){NULL, 0}
                       : (xfi_anchor){bound, (uintptr_t)address - (uintptr_t)bound->only};
}

static inline char *xfi_anchor_address(const xfi_anchor *anchor)
{
  return anchor->bound == NULL ? NULL : (char *)((uintptr_t)anchor->bound->only + anchor->offset);
}

/* Do both describe the same memory in the same way, or are both not set? */
bool xfi_bound_equal(const xfi_bound *a, const xfi_bound *b);
/* Are both equal except for the addresses of pieces and for `is_set`? */
bool xfi_bound_is_alike(const xfi_bound *a, const xfi_bound *b);

/* Does the view describe the same array as the bound, at any address? False unless it is one array,
 * dense or strided. */
bool xfi_bound_lies_as(const xfi_bound *bound, const xfer_view *view, int elem_bytes);

/* The number of bytes from the first to the last of a piece, which must not be empty. */
size_t xfi_bound_reach(const xfi_bound *bound, int64_t piece, int elem_bytes);

/* The shape of a piece, and the local index of its first element. */
void xfi_bound_shape(int64_t *shape, const xfi_bound *bound, int64_t piece);
void xfi_bound_start(int64_t *start, const xfi_bound *bound, int64_t piece);

/* A growing list of copies. */
typedef struct xfi_copies {
  xfi_copy *at;
  size_t n;
  size_t capacity;
} xfi_copies;
void xfi_copies_free(xfi_copies *copies);
/* Append a copy as it is. */
xfer_status xfi_copies_push(xfi_copies *copies, const xfi_copy *copy);

/* What a copy does to its elements. */
typedef struct xfi_elem {
  int bytes;                  /* size of an element in the destination */
  const xfi_convert *convert; /* the conversion on the way; NULL: there is none */
} xfi_elem;

/* One end of a copy: a bound view, and the local index at which the box starts. */
typedef struct xfi_end {
  const xfi_bound *bound;
  int64_t start[XFER_MAX_DIMS];
} xfi_end;

/* Append the simplified copies that move a box of `length` elements per dim. If `src` is NULL they
 * write zeros. */
xfer_status xfi_copies_add(xfi_copies *copies, const xfi_end *dst, const xfi_end *src,
                           const int64_t *length, int n_dims, xfi_elem elem);
/* Join the last copy and the one before it if they alternate on both sides, as gate and up of a
 * layer's experts do. */
void xfi_copies_join_last(xfi_copies *copies);

/* ---- what is written must not overlap (overlap.c) ---- */

/* A source or destination view of the tensor called `name`. */
typedef struct xfi_use {
  const xfi_bound *bound;
  const char *name;
  int elem_bytes;
  size_t tensor;
  bool is_source;
  /* For a destination alone. NULL: it gets the values that it already has; "": it is not its
   * source's view; else the reason why it may not be its source's view. */
  const char *moves;
  bool zeroes; /* a destination that gets the values it has, except that its padding is zeroed */
  bool unties; /* a destination that may not be the same view as another one */
  xfer_dtype dtype;           /* a destination's dtype */
  xfer_conversion conversion; /* how a destination's values are made; a cast counts as none */
} xfi_use;

/* Checks that no destination overlaps another destination or a source. There are three exceptions:
 * a destination that gets the values it already has may overlap any source, or only its own source
 * if its padding is zeroed; destinations with the same view are a declared tie, unless one of them
 * forbids it, or they would put other bytes there for the same values; and sources may overlap each
 * other. */
xfer_status xfi_uses_check_disjoint(const xfi_use *uses, size_t n);

#endif
