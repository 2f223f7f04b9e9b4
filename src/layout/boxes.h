/*
 * Layouts by boxes: for each rank of the mesh a list of boxes of the tensor, in any number,
 * overlapping or not. Elements of a box that lie past the tensor's shape are ZERO elements.
 *
 * Equal boxes of different ranks, clipped to the shape, are one *unit*; a rank that lists a box
 * twice has it in two units. Units are sorted by where they begin and stand under a tree of bounds,
 * so that those that meet a box are found without looking at the others. Units that the same ranks
 * hold make a part. Local indices count as if a rank's boxes were stacked along dim 0, in the order
 * of its list.
 */
#ifndef XFI_BOXES_H
#define XFI_BOXES_H

#include "layout.h"

#define XFI_NO_UNIT UINT32_MAX

/* How many nodes of the tree make one of the next level. They lie side by side in memory, so to
 * look at all of them is cheaper than to choose among them. */
enum { XFI_FAN = 16, XFI_MAX_LEVELS = 8 }; /* enough for less than 2^31 units */

/* What is known of a listed box, in one place: planning looks up those of one rank in many layouts.
 */
typedef struct xfi_listed {
  int64_t row;   /* local index in dim 0 of its first row */
  uint32_t unit; /* XFI_NO_UNIT: outside the shape */
  uint32_t part; /* the unit's part */
  int replica;   /* which replica of the part the box's rank is */
} xfi_listed;

/* What is known of a part: its replicas, and the first of them, since most parts have no other. */
typedef struct xfi_part {
  uint32_t at; /* index of the first replica in xfi_boxes.positions */
  int n_replicas;
  int first; /* mesh position of the first replica */
} xfi_part;

/* Bounds are n_dims words lo, then n_dims words hi. `listed` boxes are those of the mesh's ranks,
 * one list after the other. */
struct xfi_boxes {
  bool overlap;       /* some units share elements */
  bool has_replicas;  /* some parts have several replicas */
  int64_t *first;     /* [mesh size + 1] index of each position's first listed box */
  int64_t *bounds;    /* [listed][2 n_dims] of the boxes as given */
  xfi_listed *listed; /* [listed] */
  uint32_t n_units;
  int64_t *unit_bounds;   /* [n_units][2 n_dims] of clipped units, ascending; then of nodes */
  uint32_t *first_holder; /* [n_units + 1] index of each unit's first holder in `holders` */
  uint32_t *holders;      /* [first_holder[n_units]] listed boxes, ascending */
  uint32_t *part_of;      /* [n_units] each unit's part */
  uint32_t n_parts;
  xfi_part *parts; /* [n_parts] */
  int *positions;  /* mesh positions of each part's replicas, ascending */
  /* Level 0 of the tree are the units; a node of the next has bounds around XFI_FAN of them. */
  int n_levels;
  uint32_t level_first[XFI_MAX_LEVELS + 1]; /* [n_levels + 1] index in unit_bounds */
};

static inline const int64_t *xfi_unit_bounds(const xfer_layout *layout, uint32_t unit)
{
  return layout->boxes->unit_bounds + (size_t)unit * 2 * (size_t)layout->n_dims;
}

static inline const int64_t *xfi_listed_bounds(const xfer_layout *layout, size_t listed)
{
  return layout->boxes->bounds + listed * 2 * (size_t)layout->n_dims;
}

/* Clip a listed box to the shape: the result is the bounds of its unit. False: all of the box lies
 * outside, so it has no unit. */
static inline bool xfi_listed_clip(int64_t *clipped, const xfer_layout *layout, size_t listed)
{
  const int64_t *given = xfi_listed_bounds(layout, listed);
  const int n_dims = layout->n_dims;
  bool inside = true;

  for (int d = 0; d < n_dims; d++) {
    const int64_t hi = given[n_dims + d];

    clipped[d] = given[d];
    clipped[n_dims + d] = hi < layout->dims[d].size ? hi : layout->dims[d].size;
    inside = inside && clipped[d] < clipped[n_dims + d];
  }
  return inside;
}

xfer_status xfi_layout_create_boxes(xfer_layout **layout, const xfer_boxes_desc *desc);
/* Each rank holds a range of the row-major order; desc->bounds is [ranks][2]. */
xfer_status xfi_layout_create_flat(xfer_layout **layout, const xfer_boxes_desc *desc);
void xfi_boxes_destroy(xfi_boxes *boxes);

/* The boxes of a rank of the mesh: how many, and the first of them among all listed. */
size_t xfi_boxes_of(size_t *first, const xfer_layout *layout, int rank);
/* Do a rank's boxes, stacked along dim 0, make one array? Sets its shape. No boxes make an empty
 * array. */
bool xfi_boxes_stack(int64_t *shape, const xfer_layout *layout, int rank);
/* The number of elements that a rank of the mesh holds, ZERO elements included. */
int64_t xfi_boxes_elems(const xfer_layout *layout, int rank);

/* The part's replica at a mesh position, or -1. */
int xfi_boxes_replica(const xfi_boxes *boxes, uint32_t part, int position);
/* The listed box by which `rank`, a holder of the unit, holds it. */
size_t xfi_boxes_listed(const xfer_layout *layout, uint32_t unit, int rank);

/* Have two boxes elements in common? If one is empty, the answer may be yes. */
bool xfi_bounds_meet(const int64_t *a, const int64_t *b, int n_dims);

/* The number of elements between the bounds. */
int64_t xfi_bounds_elems(const int64_t *bounds, int n_dims);

/* ---- finding units ---- */

/* Set the levels of the tree over n_units. Returns the number of nodes of all levels. */
size_t xfi_boxes_levels(xfi_boxes *boxes, uint32_t n_units);
/* Fill the bounds of all levels above the units. */
void xfi_boxes_index(xfer_layout *layout);

/* Growing lists. */
typedef struct xfi_units {
  uint32_t *at;
  size_t n;
  size_t capacity;
} xfi_units;

typedef struct xfi_bounds {
  int64_t *at;
  size_t n; /* number of bounds, of 2 n_dims words each */
  size_t capacity;
} xfi_bounds;

/* Append all units that meet the bounds, ascending. */
xfer_status xfi_boxes_meet(xfi_units *units, const xfer_layout *layout, const int64_t *bounds);

/* Append the boxes for which a unit is read: its elements that no unit listed before it holds. */
xfer_status xfi_boxes_read_from(xfi_bounds *list, const xfer_layout *layout, uint32_t unit);

xfer_status xfi_bounds_add(xfi_bounds *list, int n_dims, const int64_t *bounds);
/* Append the boxes of a range of the row-major order; what lies past the end is one past `shape`.
 */
xfer_status xfi_bounds_add_flat(xfi_bounds *list, int n_dims, const int64_t *shape, int64_t begin,
                                int64_t end);
/* Take the box `bounds` out of the boxes of a list from index `from` on. */
xfer_status xfi_bounds_subtract(xfi_bounds *list, size_t from, int n_dims, const int64_t *bounds);

#endif
