/**
 * @file layout.h Meshes, placements, layouts and the problem language: which rank holds what.
 */
#ifndef XFER_LAYOUT_H
#define XFER_LAYOUT_H

#include <xfer/dtype.h>
#include <xfer/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most dims of a tensor and most axes of a mesh. */
#define XFER_MAX_DIMS 8

/* ---- mesh --------------------------------------------------------------------------------- */

/** An n-D array of distinct communicator ranks. Making one creates nothing on the network. */
typedef struct xfer_mesh xfer_mesh;

/**
 * Make a mesh.
 *
 * @param mesh    Receives the mesh; the caller owns it.
 * @param shape   [n_axes] sizes, each at least 1; the last axis varies fastest in `ranks`.
 * @param n_axes  1 to XFER_MAX_DIMS.
 * @param ranks   The product of `shape` many distinct ranks >= 0, row-major; NULL: 0, 1, 2, ...
 * @retval XFER_ERR_ARG       A size below 1, a negative or repeated rank, or n_axes out of range.
 * @retval XFER_ERR_OVERFLOW  More than 2^24 ranks, or a rank that is not below 2^24.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_mesh_create(xfer_mesh **mesh, const int *shape,
                                                      int n_axes, const int *ranks);
/** Destroy a mesh; NULL is fine. Layouts made of it stay valid. */
XFER_API void xfer_mesh_destroy(xfer_mesh *mesh);
/** How many ranks the mesh has. */
XFER_API int xfer_mesh_size(const xfer_mesh *mesh);

/* ---- placements --------------------------------------------------------------------------- */

/** How a mesh axis distributes a tensor. */
typedef enum xfer_placement_kind {
  XFER_REPLICATE = 0, /**< Every coordinate of the axis holds the same elements. */
  XFER_SHARD = 1,     /**< The axis splits a dim by `rule`. */
  XFER_STRIDED = 2,   /**< The dim is cut into `split_factor` pieces by CHUNK, and each piece is
                           split by CHUNK; a coordinate holds its sub-piece of every piece,
                           concatenated. */
  XFER_RUNS = 3       /**< A table lists the runs of each coordinate. */
} xfer_placement_kind;

/** How a length n is split over m coordinates. */
typedef enum xfer_split_rule {
  XFER_CHUNK = 0,    /**< torch.chunk, DTensor's Shard: c = ceil(n/m); coordinate i holds
                          [min(n, c i), min(n, c i + c)), so the last ones may be short or empty. */
  XFER_BALANCED = 1, /**< torch.tensor_split: the first n mod m coordinates hold one more. */
  XFER_EVEN = 2      /**< m must divide n; otherwise the layout is refused. */
} xfer_split_rule;

/** `length` consecutive indices of one dim, from `global` in the tensor and `local` in the rank's
 * part. */
typedef struct xfer_run {
  int64_t global; /**< First index in the tensor. */
  int64_t length; /**< Number of indices; at least 1. */
  int64_t local;  /**< First index in the part. */
} xfer_run;

/**
 * The runs of each coordinate of one mesh axis along one dim.
 *
 * Coordinate i has the runs runs[first[i]] .. runs[first[i+1]-1] and a part of local_lengths[i]
 * indices. `global` counts in the part of the dim that the axes before this one left (the whole dim
 * if there are none). Runs of one coordinate must not overlap in `local`. The same global index may
 * occur more than once, across coordinates or in one: a plan then writes it to every place of a
 * destination, and reads a source at the first (lowest part, then lowest local). Local indices in
 * no run are ZERO elements: each run of the plan zeroes those of a destination, and never reads
 * those of a source.
 */
typedef struct xfer_run_table {
  const xfer_run *runs; /**< [first[n_coords]] The runs of all coordinates. */
  const int64_t *first; /**< [n_coords + 1] Each coordinate's first run, ascending from 0. */
  const int64_t *local_lengths; /**< [n_coords] The length of each coordinate's part. */
  int64_t n_coords;             /**< The size of the mesh axis. */
  int64_t allow_zero;           /**< 1: local indices in no run are intended; 0: they are an
                                     error. */
} xfer_run_table;

/** How one mesh axis distributes a tensor; a layout has one per axis. All zero is Replicate. */
typedef struct xfer_placement {
  int32_t kind;                /**< xfer_placement_kind */
  int32_t dim;                 /**< The dim that the axis splits; negative counts from the end. */
  int32_t rule;                /**< For SHARD: xfer_split_rule. */
  uint32_t reserved;           /**< Must be 0. */
  int64_t split_factor;        /**< For STRIDED: number of pieces, at least 1. */
  const xfer_run_table *table; /**< For RUNS: the table, read when the layout is made, not kept. */
} xfer_placement;

/** Every coordinate of the axis holds the same elements. */
XFER_API_INLINE xfer_placement xfer_replicate(void)
{
  xfer_placement p = {XFER_REPLICATE, 0, 0, 0, 0, NULL};
  return p;
}

/** The axis splits `dim` as torch.chunk does. */
XFER_API_INLINE xfer_placement xfer_shard(int dim)
{
  xfer_placement p = {XFER_SHARD, 0, XFER_CHUNK, 0, 0, NULL};
  p.dim = (int32_t)dim;
  return p;
}

/** The axis splits `dim` by `rule`. */
XFER_API_INLINE xfer_placement xfer_shard_rule(int dim, xfer_split_rule rule)
{
  xfer_placement p = {XFER_SHARD, 0, XFER_CHUNK, 0, 0, NULL};
  p.dim = (int32_t)dim;
  p.rule = (int32_t)rule;
  return p;
}

/** The axis splits `dim` in strides; `split_factor` is the number of shards of that dim made by the
 *  axes to its right, as in DTensor's strided sharding. */
XFER_API_INLINE xfer_placement xfer_shard_strided(int dim, int64_t split_factor)
{
  xfer_placement p = {XFER_STRIDED, 0, 0, 0, 0, NULL};
  p.dim = (int32_t)dim;
  p.split_factor = split_factor;
  return p;
}

/** The coordinates of the axis hold the runs of `dim` that `table` lists. */
XFER_API_INLINE xfer_placement xfer_shard_runs(int dim, const xfer_run_table *table)
{
  xfer_placement p = {XFER_RUNS, 0, 0, 0, 0, NULL};
  p.dim = (int32_t)dim;
  p.table = table;
  return p;
}

/* ---- layout ------------------------------------------------------------------------------- */

/** Which elements of one tensor each rank of a mesh holds. It says nothing about memory. */
typedef struct xfer_layout xfer_layout;

/** What a layout is made of. Start from XFER_LAYOUT_DESC_INIT. */
typedef struct xfer_layout_desc {
  size_t struct_size;               /**< Set by XFER_LAYOUT_DESC_INIT. */
  const xfer_mesh *mesh;            /**< The ranks. */
  int32_t dtype;                    /**< xfer_dtype */
  int32_t n_dims;                   /**< 0 to XFER_MAX_DIMS; 0 is a scalar. */
  const int64_t *shape;             /**< [n_dims] The tensor's global shape; sizes may be 0. */
  const int64_t *padded_shape;      /**< [n_dims] Sizes, each >= that of `shape`, also for dims that
                                         are not split. They determine splits and local parts, and
                                         rows past `shape` are ZERO elements. NULL: `shape`. */
  const xfer_placement *placements; /**< [n_placements] One per mesh axis. */
  int32_t n_placements;             /**< The mesh's number of axes. */
  int32_t n_order;                  /**< Length of `order`: 0 or the mesh's number of axes. */
  const int32_t *order;             /**< [n_order] Every axis once: the order in which axes that
                                         split the same dim split it. NULL: 0, 1, 2, ... */
} xfer_layout_desc;
#define XFER_LAYOUT_DESC_INIT                                                                      \
  {                                                                                                \
    sizeof(xfer_layout_desc), NULL, 0, 0, NULL, NULL, NULL, 0, 0, NULL                             \
  }

/**
 * Make a layout.
 *
 * Axes that shard the same dim split it one after the other: each splits the part that the previous
 * one left.
 *
 * @param layout  Receives the layout; the caller owns it.
 * @param desc    Copied with all it points to.
 * @retval XFER_ERR_ARG       A wrong count, kind, rule, dim, order or dtype.
 * @retval XFER_ERR_SHAPE     EVEN does not divide, a run table does not fit, a padded size too
 * small.
 * @retval XFER_ERR_OVERFLOW  The tensor's bytes do not fit in 62 bits.
 * @retval XFER_ERR_UNSUPPORTED  A split in far too many pieces.
 * @par Source  torch.distributed.tensor's Shard, Replicate and _StridedShard; see docs/concepts.md.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_create(xfer_layout **layout,
                                                        const xfer_layout_desc *desc);
/**
 * What a layout by boxes is made of. Start from XFER_BOXES_DESC_INIT.
 *
 * A box is 2 n_dims numbers: lo of each dim, then hi of each dim, half-open. One rank may list any
 * boxes, even overlapping or equal ones; a plan then writes an element into each box of a
 * destination that contains it. The elements of a box past the shape are ZERO elements. Ranks
 * whose boxes are equal within the shape are replicas. If boxes of sources overlap without that, a
 * plan reads an element from the first one: on the first such rank of the mesh, the first of its
 * list.
 */
typedef struct xfer_boxes_desc {
  size_t struct_size;    /**< Set by XFER_BOXES_DESC_INIT. */
  const xfer_mesh *mesh; /**< The ranks; only their order counts. NULL: the calling rank alone, if
                              every rank knows only its own boxes. */
  int32_t dtype;         /**< xfer_dtype */
  int32_t n_dims;        /**< 0 to XFER_MAX_DIMS. */
  const int64_t *shape;  /**< [n_dims] The tensor's global shape. */
  const int64_t *first;  /**< [mesh size + 1] Ascending from 0: the boxes of the i-th rank are
                              first[i] .. first[i+1]-1. */
  const int64_t *bounds; /**< [first[mesh size]][2][n_dims] The boxes. */
} xfer_boxes_desc;
#define XFER_BOXES_DESC_INIT                                                                       \
  {                                                                                                \
    sizeof(xfer_boxes_desc), NULL, 0, 0, NULL, NULL, NULL                                          \
  }

/**
 * Make a layout of each rank's boxes, such as those of a DTensor's spec, a sharded state dict, a
 * recorded load or a checkpoint's chunks.
 *
 * The view says where a rank's boxes lie: xfer_view_boxes() gives each a pointer and strides; in a
 * dense view they lie one after the other, each row-major. Without a mesh the layout contains only
 * this rank's boxes, and xfer_plan_create() gathers those of the others; a rank that has none
 * passes a layout with no boxes, or NULL. Queries treat such boxes as those of rank 0.
 *
 * @param layout  Receives the layout; the caller owns it.
 * @param desc    Copied with all it points to.
 * @retval XFER_ERR_ARG          A wrong count or dtype, or a missing array.
 * @retval XFER_ERR_SHAPE        A box with hi below lo, or lo below 0; the text names it.
 * @retval XFER_ERR_OVERFLOW     A rank's bytes do not fit in 62 bits.
 * @retval XFER_ERR_UNSUPPORTED  Two boxes of a scalar on one rank.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_create_boxes(xfer_layout **layout,
                                                              const xfer_boxes_desc *desc);

/**
 * Make a layout of ranges of the row-major order, as FSDP1, ZeRO-3 and Megatron's distributed
 * optimizer cut flattened tensors: one range per rank, of any length or empty; elements past the
 * end are padding. A range consists of at most 2 n_dims - 1 boxes, and one more of ZERO elements
 * past the end; a dense view of them is the range itself.
 *
 * @param layout  Receives the layout; the caller owns it.
 * @param desc    As for xfer_layout_create_boxes(), but `first` is NULL and `bounds` is
 *                [mesh size][2]: of each rank the first element and one past the last.
 * @retval XFER_ERR_SHAPE  A range that ends before it begins; otherwise as for
 *                         xfer_layout_create_boxes().
 * @retval XFER_ERR_UNSUPPORTED  A range past the end of a scalar.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_create_flat(xfer_layout **layout,
                                                             const xfer_boxes_desc *desc);
/** Destroy a layout; NULL is fine. Plans made of it stay valid. */
XFER_API void xfer_layout_destroy(xfer_layout *layout);

/** The element type. */
XFER_API xfer_dtype xfer_layout_dtype(const xfer_layout *layout);
/** The number of dims; copies the global shape to shape[0 .. n_dims-1] unless it is NULL. */
XFER_API int xfer_layout_shape(const xfer_layout *layout, int64_t *shape);
/**
 * The number of ranks of the layout's mesh, including those that hold nothing; copies them in the
 * mesh's order to ranks[0 ..] unless `ranks` is NULL. A comm for the layout must have more ranks
 * than the highest of these numbers. For one rank's own boxes, without a mesh, the list is rank 0
 * alone.
 */
XFER_API int xfer_layout_ranks(const xfer_layout *layout, int *ranks);

/**
 * The shape of a rank's part, padding included; a part may be empty. Boxes have such a shape if
 * they have equal sizes in all dims but the first, along which they are stacked.
 *
 * @param layout  The layout.
 * @param rank    A rank.
 * @param shape   [n_dims] Receives the sizes.
 * @retval XFER_ERR_ARG          `rank` is not in the mesh, so it has no part. The call thus also
 *                               tells which ranks have one.
 * @retval XFER_ERR_UNSUPPORTED  The boxes do not stack; xfer_layout_boxes() returns them.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_local_shape(const xfer_layout *layout, int rank,
                                                             int64_t *shape);

/**
 * The bytes of a rank's part, padding included, which is the size of a dense view of it. 0 if the
 * part is empty, if the rank is not in the mesh, or if `layout` is NULL.
 */
XFER_API size_t xfer_layout_local_bytes(const xfer_layout *layout, int rank);

/**
 * The global index of an element of a rank's part, so that a caller can fill or check the part
 * without index arithmetic of its own; xfer_layout_owners() answers the opposite question. The cost
 * grows with the numbers of dims and axes, not of elements; for boxes also with the number of boxes
 * of the rank.
 *
 * @param layout   The layout.
 * @param rank     A rank of the mesh.
 * @param element  The number of the element in a dense view of the part; the first is 0. The part
 *                 has xfer_layout_local_bytes() / xfer_dtype_size() of them.
 * @param index    [n_dims] Receives the global index; for a ZERO element -1 in each dim.
 * @retval XFER_ERR_ARG  `rank` is not in the mesh, or its part has no such element.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_global_index(const xfer_layout *layout, int rank,
                                                              int64_t element, int64_t *index);

/**
 * The runs of one dim that a rank holds: maximal, ascending in `local`.
 *
 * @param layout  The layout.
 * @param rank    A rank of the mesh.
 * @param dim     A dim; negative counts from the end.
 * @param runs    [capacity] Receives as many runs as fit; NULL with capacity 0 only counts.
 * @param capacity  Length of `runs`.
 * @param n_runs  Receives how many there are in all.
 * @retval XFER_ERR_ARG          No such dim, or `rank` is not in the mesh.
 * @retval XFER_ERR_UNSUPPORTED  The rank has several boxes; xfer_layout_boxes() returns them.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_runs(const xfer_layout *layout, int rank, int dim,
                                                      xfer_run *runs, size_t capacity,
                                                      size_t *n_runs);

/**
 * The boxes that a rank holds, in the order of its list; for a layout by placements, one box for
 * each combination of runs, ascending in local index.
 *
 * @param layout    The layout.
 * @param rank      A rank of the mesh.
 * @param bounds    [capacity][2][n_dims] Receives as many boxes as fit: lo, then hi. In a layout by
 *                  boxes they include elements past the shape.
 * @param capacity  Length of `bounds`, in boxes; 0 with NULL only counts.
 * @param n_boxes   Receives how many there are in all.
 * @retval XFER_ERR_ARG  `rank` is not in the mesh.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_boxes(const xfer_layout *layout, int rank,
                                                       int64_t *bounds, size_t capacity,
                                                       size_t *n_boxes);

/** A place that holds a global index. In a layout by boxes `local` counts within the box, but in
 * dim 0 from the first box of the rank's list, as if the boxes were stacked. */
typedef struct xfer_owner {
  int64_t local[XFER_MAX_DIMS]; /**< Index in that rank's part. */
  int32_t rank;                 /**< Who. */
  uint32_t reserved;            /**< 0. */
} xfer_owner;

/**
 * Find who holds a global index: every rank, and every place on it. The cost grows with the number
 * of owners, not of ranks; for a run table, it grows with the number of runs that begin near the
 * index, at most the length of the longest run before it.
 *
 * @param layout    The layout.
 * @param index     [n_dims] A global index inside the shape.
 * @param owners    [capacity] Receives as many owners as fit, in no promised order.
 * @param capacity  Length of `owners`.
 * @param n_owners  Receives how many there are in all.
 * @retval XFER_ERR_ARG  An argument is NULL (`owners` may be if `capacity` is 0); or the index lies
 *                       outside the shape.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_owners(const xfer_layout *layout,
                                                        const int64_t *index, xfer_owner *owners,
                                                        size_t capacity, size_t *n_owners);

/* ---- the problem language ----------------------------------------------------------------- */

/**
 * Make a layout from one line, for example "f32[17,11] (3,2)@0-5:S0b,S1": a type, a shape and one
 * side of a redistribution. docs/problem-language.md describes the grammar.
 *
 * @param layout  Receives the layout; the caller owns it.
 * @param line    The line.
 * @retval XFER_ERR_ARG       As for xfer_problem_parse().
 * @retval XFER_ERR_OVERFLOW  Likewise.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_parse(xfer_layout **layout, const char *line);

/**
 * Read a redistribution from one line, for example "bf16[4096,11008] (2,4)@0-7:S0,R ->
 * (4)@8-11:S1". docs/problem-language.md describes the grammar.
 *
 * @param src   Receives the source layout; the caller owns it.
 * @param dst   Receives the destination layout; the caller owns it.
 * @param line  The line.
 * @retval XFER_ERR_ARG       The line does not parse; the text gives the column. Or an error of
 *                            xfer_mesh_create() or xfer_layout_create().
 * @retval XFER_ERR_OVERFLOW  A mesh of more than 16,777,216 ranks, or a rank above 16777215; or an
 *                            error of xfer_layout_create().
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_problem_parse(xfer_layout **src, xfer_layout **dst,
                                                        const char *line);
/**
 * Write a redistribution as one line, the inverse of xfer_problem_parse(). The language cannot
 * express a run table; the function writes it as "S0x", and a NULL layout as "?".
 *
 * @param text     Receives the line, NUL-terminated; NULL: nothing is written.
 * @param n_bytes  Size of `text`.
 * @param src      The source layout.
 * @param dst      The destination layout.
 * @return The length of the whole text, like snprintf(); the function writes at most n_bytes - 1
 *         bytes of it.
 */
XFER_API size_t xfer_problem_format(char *text, size_t n_bytes, const xfer_layout *src,
                                    const xfer_layout *dst);

#ifdef __cplusplus
}
#endif
#endif
