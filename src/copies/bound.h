/*
 * Views bound to parts: from "local index" to addresses, and copies between two of them.
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

/* Of a source that is quantised by blocks (blocks.h). */
typedef struct xfi_blocks xfi_blocks;

/* A view with the shape of the part that it holds. Every kind of view becomes pieces: a dense or
 * strided one is one piece. Also what a slot is, and what peers are told of a view: a change of
 * this changes PLAN_VERSION (agree/statement.c). */
typedef struct xfi_bound {
  bool is_set; /* else it lies nowhere; where it has pieces, as what is bound next may lie too */
  int n_dims;
  int piece_dim;
  int64_t shape[XFER_MAX_DIMS];
  int64_t strides[XFER_MAX_DIMS]; /* bytes */
  int64_t piece_length;           /* indices of piece_dim in one piece */
  int64_t n_pieces;
  char **pieces; /* [n_pieces], owned; NULL: the one piece is `only` */
  char *only;
  xfi_bound_box *boxes; /* [n_pieces], owned: each piece is a box. NULL: the fields above hold */
  const xfi_blocks *blocks; /* not owned; NULL: it is not quantised by blocks */
} xfi_bound;

/* Check a view against the shape of its part and copy it. `what` names tensor and side for errors.
 */
xfer_status xfi_bound_set(xfi_bound *bound, const xfer_view *view, const int64_t *shape, int n_dims,
                          int elem_bytes, const char *what);
/* The same for the `n` boxes of a rank's list, whose rows and lengths are given. They become the
 * bound's, also on failure; empty ones are left out. */
xfer_status xfi_bound_set_boxes(xfi_bound *bound, const xfer_view *view, xfi_bound_box *boxes,
                                int64_t n, int n_dims, int elem_bytes, const char *what);
/* The dense box of `shape` at `base`. */
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

/* The piece that an element lies in, and where. */
int64_t xfi_bound_piece_at(const xfi_bound *bound, const int64_t *index);
char *xfi_bound_address(const xfi_bound *bound, int64_t piece, const int64_t *index);

/* An address in a bound view that is one array: moves along with it. */
typedef struct xfi_anchor {
  const xfi_bound *bound; /* NULL: no address */
  uintptr_t offset;       /* bytes from its `only` */
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

/* The same memory in the same way, or both never set. */
bool xfi_bound_equal(const xfi_bound *a, const xfi_bound *b);
/* Equal but for where the pieces are, and whether they are. */
bool xfi_bound_is_alike(const xfi_bound *a, const xfi_bound *b);

/* Is the view the bound's, at any address? Found for one array, dense or strided. */
bool xfi_bound_lies_as(const xfi_bound *bound, const xfer_view *view, int elem_bytes);

/* Bytes from the first to the last of a piece, which is not empty. */
size_t xfi_bound_reach(const xfi_bound *bound, int64_t piece, int elem_bytes);

/* The shape of a piece; and where it starts. */
void xfi_bound_shape(int64_t *shape, const xfi_bound *bound, int64_t piece);
void xfi_bound_start(int64_t *start, const xfi_bound *bound, int64_t piece);

/* A growing list of copies. */
typedef struct xfi_copies {
  xfi_copy *at;
  size_t n;
  size_t capacity;
} xfi_copies;
void xfi_copies_free(xfi_copies *copies);
/* Append one as it is. */
xfer_status xfi_copies_push(xfi_copies *copies, const xfi_copy *copy);

/* What elements of a copy are. */
typedef struct xfi_elem {
  int bytes;                  /* of one in the destination */
  const xfi_convert *convert; /* on the way there; NULL: none */
} xfi_elem;

/* A box in somebody's memory: where it starts in local indices. src NULL in add: zero the box. */
typedef struct xfi_end {
  const xfi_bound *bound;
  int64_t start[XFER_MAX_DIMS];
} xfi_end;

/* Append the copies that move a box of `length` elements per dim, simplified. */
xfer_status xfi_copies_add(xfi_copies *copies, const xfi_end *dst, const xfi_end *src,
                           const int64_t *length, int n_dims, xfi_elem elem);
/* The last copy and the one before it become one if they alternate on both sides, as the gate and
 * up of a layer's experts do. */
void xfi_copies_join_last(xfi_copies *copies);

/* ---- what is written must not overlap (overlap.c) ---- */

/* A source or destination view of the tensor called `name`. */
typedef struct xfi_use {
  const xfi_bound *bound;
  const char *name;
  int elem_bytes;
  size_t tensor;
  bool is_source;
  /* Of a destination. NULL: it is given what it has; "": it is not its source's view; else why it
   * may not be that. */
  const char *moves;
  bool zeroes; /* of a destination that stays: its padding is written, which is its source's too */
  bool unties; /* of a destination: another may not be the same view */
} xfi_use;

/* No destination overlaps another or a source; one that stays may be anybody's source, or where
 * it has padding its own. Destinations that are the same view are a declared tie, if they may;
 * sources may overlap each other. */
xfer_status xfi_uses_check_disjoint(const xfi_use *uses, size_t n);

#endif
