/**
 * @file xfer.h
 * Move sharded tensors from any mesh and layout to any other.
 *
 * A *mesh* names the ranks, a *layout* says which elements of a tensor each of them holds, a *view*
 * says where a rank's part lies in its memory. Two layouts of one tensor make a *plan*; a *comm*
 * carries it out. Planning is pure arithmetic on metadata and the same on every rank.
 *
 * Conventions, true of every function unless its comment says otherwise:
 * - It returns XFER_OK (0) or a negative xfer_status; xfer_last_error() then has one sentence with
 * the values. An output is written only on success.
 * - Inputs are copied: a mesh may be destroyed once a layout was made of it.
 * - Objects of different comms may be used from different threads at once; one comm and all that
 * was made with it belong to one thread at a time. Meshes and layouts never change once made.
 * - "Collective" means: every rank of the comm makes the same calls in the same order. A collective
 *   call agrees on its status before it returns: if one rank fails, all do, the others with
 *   XFER_ERR_PEER.
 *
 * Sizes: bytes are size_t, elements and indices int64_t, ranks int. Intervals are half-open.
 */
#ifndef XFER_XFER_H
#define XFER_XFER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define XFER_API __attribute__((visibility("default")))
#define XFER_MUST_CHECK __attribute__((warn_unused_result))
#else
#define XFER_API
#define XFER_MUST_CHECK
#endif
/** A maker that is inline in C and C++ and exported as well, for callers without a compiler. */
#define XFER_API_INLINE inline

#define XFER_VERSION_MAJOR 0
#define XFER_VERSION_MINOR 1
#define XFER_VERSION_PATCH 0

/** Most dims of a tensor and most axes of a mesh. */
#define XFER_MAX_DIMS 8

/* ---- status ------------------------------------------------------------------------------- */

/** What a call came to. Values never change; new ones are appended. */
typedef enum xfer_status {
  XFER_OK = 0,               /**< Done. */
  XFER_ERR_ARG = -1,         /**< An argument is wrong by itself. */
  XFER_ERR_SHAPE = -2,       /**< Sizes, strides or placements do not fit each other. */
  XFER_ERR_UNSUPPORTED = -3, /**< Well-formed, but not something this library or build can do. */
  XFER_ERR_STATE = -4,       /**< Not now: the object is not in the state that the call needs. */
  XFER_ERR_NOMEM = -5,       /**< Out of memory. */
  XFER_ERR_OVERFLOW = -6,    /**< A size does not fit in 64 bits or in what a lower layer takes. */
  XFER_ERR_IO = -7,          /**< A file cannot be read or is malformed. */
  XFER_ERR_MISMATCH = -8,    /**< Ranks, or the two sides, disagree. */
  XFER_ERR_PEER = -9,        /**< Another rank failed; its own error says why. */
  XFER_ERR_TIMEOUT = -10,    /**< A deadline passed. */
  XFER_ERR_CUDA = -11,       /**< CUDA failed; the text quotes it. */
  XFER_ERR_COMM = -12,       /**< The transport failed; the text quotes it. */
  XFER_ERR_INTERNAL = -13    /**< A defect of this library. */
} xfer_status;

/** The name of a status, such as "XFER_ERR_SHAPE"; "unknown status" for a value it does not know.
 */
XFER_API const char *xfer_status_name(xfer_status status);

/**
 * The calling thread's text for its last failed call: one sentence, with the values. Never NULL; ""
 * when nothing failed yet. Valid until the thread's next failing call. Allocates nothing.
 */
XFER_API const char *xfer_last_error(void);

/** The library's version, for example "0.1.0". */
XFER_API const char *xfer_version(void);

/**
 * Compare a size or offset that a binding without a C compiler believes in with the library's own.
 *
 * @param name   A struct, "xfer_view", for its size; or a field, "xfer_view.strides", for its
 * offset.
 * @param value  What the binding has.
 * @retval XFER_ERR_MISMATCH  They differ; the text has both.
 * @retval XFER_ERR_ARG       No such struct or field.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_abi_check(const char *name, size_t value);

/* ---- element types ------------------------------------------------------------------------ */

/** Element types. Data is moved, never converted, so only the name and the size matter. */
typedef enum xfer_dtype {
  XFER_U8 = 1,
  XFER_I8 = 2,
  XFER_BOOL = 3,
  XFER_F8E4M3 = 4,
  XFER_F8E5M2 = 5,
  XFER_F8E8M0 = 6,
  XFER_U16 = 7,
  XFER_I16 = 8,
  XFER_F16 = 9,
  XFER_BF16 = 10,
  XFER_U32 = 11,
  XFER_I32 = 12,
  XFER_F32 = 13,
  XFER_U64 = 14,
  XFER_I64 = 15,
  XFER_F64 = 16
} xfer_dtype;

/** Bytes of one element: 1, 2, 4 or 8; 0 for a value that is no dtype. */
XFER_API size_t xfer_dtype_size(xfer_dtype dtype);
/** Its name in the problem language, for example "bf16"; "?" for a value that is no dtype. */
XFER_API const char *xfer_dtype_name(xfer_dtype dtype);
/** The dtype of that name. @retval XFER_ERR_ARG No dtype is called `name`. */
XFER_API XFER_MUST_CHECK xfer_status xfer_dtype_parse(xfer_dtype *dtype, const char *name);

/* ---- mesh --------------------------------------------------------------------------------- */

/** An n-D array of distinct communicator ranks. Nothing is created on the network. */
typedef struct xfer_mesh xfer_mesh;

/**
 * Make a mesh.
 *
 * @param mesh    Receives the mesh; the caller owns it.
 * @param shape   [n_axes] sizes, each at least 1; the last axis varies fastest in `ranks`.
 * @param n_axes  1 to XFER_MAX_DIMS.
 * @param ranks   The product of `shape` many distinct ranks >= 0, row-major; NULL: 0, 1, 2, ...
 * @retval XFER_ERR_ARG       A size below 1, a negative or repeated rank, or n_axes out of range.
 * @retval XFER_ERR_OVERFLOW  More ranks than an int can count.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_mesh_create(xfer_mesh **mesh, const int *shape,
                                                      int n_axes, const int *ranks);
/** Give a mesh back; NULL is fine. */
XFER_API void xfer_mesh_destroy(xfer_mesh *mesh);
/** How many ranks the mesh has. */
XFER_API int xfer_mesh_size(const xfer_mesh *mesh);

/* ---- placements --------------------------------------------------------------------------- */

/** What a mesh axis does to a tensor. */
typedef enum xfer_placement_kind {
  XFER_REPLICATE = 0, /**< Every coordinate of the axis holds the same. */
  XFER_SHARD = 1,     /**< The axis splits a dim by `rule`. */
  XFER_STRIDED = 2,   /**< The dim is cut in `split_factor` pieces, each of them split by CHUNK; a
                           coordinate holds its sub-piece of every piece, concatenated. */
  XFER_RUNS = 3       /**< A table lists the runs of each coordinate. */
} xfer_placement_kind;

/** How a length n is split over m coordinates. */
typedef enum xfer_split_rule {
  XFER_CHUNK = 0,    /**< torch.chunk, DTensor's Shard: c = ceil(n/m); coordinate i holds
                          [min(n, c i), min(n, c i + c)), so the last ones may be short or empty. */
  XFER_BALANCED = 1, /**< torch.tensor_split: the first n mod m coordinates hold one more. */
  XFER_EVEN = 2      /**< m must divide n; else the layout is refused. */
} xfer_split_rule;

/** `length` consecutive indices of one dim: `global` there, `local` in the rank's part. */
typedef struct xfer_run {
  int64_t global; /**< First index in the tensor. */
  int64_t length; /**< How many. */
  int64_t local;  /**< First index in the part. */
} xfer_run;

/**
 * The runs of each coordinate of one mesh axis along one dim.
 *
 * Coordinate i has the runs runs[first[i]] .. runs[first[i+1]-1] and a part of local_lengths[i]
 * indices. `global` counts in the part of the dim that the axes before this one left (the whole dim
 * if there are none). Runs of one coordinate must not overlap in `local`; the same global index may
 * occur more than once, across coordinates or in one: a destination then gets it at every place, a
 * source is read at the first (lowest part, then lowest local). Local indices in no run are ZERO
 * elements: a destination has them zeroed by each run of the plan, a source's are never read.
 */
typedef struct xfer_run_table {
  const xfer_run *runs;         /**< [first[n_coords]] */
  const int64_t *first;         /**< [n_coords + 1], ascending from 0. */
  const int64_t *local_lengths; /**< [n_coords] */
  int64_t n_coords;             /**< The size of the mesh axis. */
  int64_t allow_zero;           /**< 1: local indices in no run are meant; 0: they are an error. */
} xfer_run_table;

/** One placement per mesh axis makes a layout. All zero is Replicate. */
typedef struct xfer_placement {
  int32_t kind;                /**< xfer_placement_kind */
  int32_t dim;                 /**< The dim that is split; negative counts from the end. */
  int32_t rule;                /**< SHARD: xfer_split_rule. */
  uint32_t reserved;           /**< Must be 0. */
  int64_t split_factor;        /**< STRIDED: at least 1. */
  const xfer_run_table *table; /**< RUNS: read when the layout is made, not kept. */
} xfer_placement;

/** Every coordinate of the axis holds the same. */
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

/** The axis's coordinates hold the runs of `dim` that `table` lists. */
XFER_API_INLINE xfer_placement xfer_shard_runs(int dim, const xfer_run_table *table)
{
  xfer_placement p = {XFER_RUNS, 0, 0, 0, 0, NULL};
  p.dim = (int32_t)dim;
  p.table = table;
  return p;
}

/* ---- layout ------------------------------------------------------------------------------- */

/** Which elements of one tensor each rank of a mesh holds. Knows no memory. */
typedef struct xfer_layout xfer_layout;

/** What a layout is made of. Start from XFER_LAYOUT_DESC_INIT. */
typedef struct xfer_layout_desc {
  size_t struct_size;               /**< Set by XFER_LAYOUT_DESC_INIT. */
  const xfer_mesh *mesh;            /**< The ranks. */
  int32_t dtype;                    /**< xfer_dtype */
  int32_t n_dims;                   /**< 0 to XFER_MAX_DIMS; 0 is a scalar. */
  const int64_t *shape;             /**< [n_dims] The tensor's global shape; sizes may be 0. */
  const int64_t *padded_shape;      /**< [n_dims] Sizes that are split, each >= shape's; local parts
                                         are as of these, and rows past `shape` are ZERO elements.
                                         NULL: `shape`. */
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
 * Axes that shard the same dim split it one after the other, each the part that the one before
 * left.
 *
 * @param layout  Receives the layout; the caller owns it.
 * @param desc    Copied with all it points to.
 * @retval XFER_ERR_ARG       A wrong count, kind, rule, dim, order or dtype.
 * @retval XFER_ERR_SHAPE     EVEN does not divide, a run table does not fit, a padded size too
 * small.
 * @retval XFER_ERR_OVERFLOW  The tensor's bytes do not fit in 62 bits.
 * @par Source  torch.distributed.tensor's Shard, Replicate and _StridedShard; see docs/concepts.md.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_create(xfer_layout **layout,
                                                        const xfer_layout_desc *desc);
/**
 * What a layout by boxes is made of. Start from XFER_BOXES_DESC_INIT.
 *
 * A box is 2 n_dims numbers: lo of each dim, then hi of each dim, half-open. The boxes of one rank
 * may be any, also overlapping or equal; a destination then gets the elements in each of them. What
 * of a box lies past the shape are ZERO elements. Ranks with an equal box are replicas of it; of
 * sources that overlap otherwise, an element is read from the first, by rank and list.
 */
typedef struct xfer_boxes_desc {
  size_t struct_size;    /**< Set by XFER_BOXES_DESC_INIT. */
  const xfer_mesh *mesh; /**< The ranks; of its shape only the order counts. NULL: the calling rank
                              alone, where every rank knows its own boxes only. */
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
 * Make a layout of each rank's boxes: a DTensor's spec, a sharded state dict, what a recorded load
 * wrote, a checkpoint's chunks.
 *
 * Where a rank's boxes lie is the view's to say: xfer_view_boxes() gives each a pointer and
 * strides; in a dense view they lie one after the other, each row-major.
 * Without a mesh the layout has this rank's boxes only, and xfer_plan_create() gathers the others';
 * a rank that has none passes a layout with no boxes, or NULL. Until then queries take it as rank
 * 0's.
 *
 * @param layout  Receives the layout; the caller owns it.
 * @param desc    Copied with all it points to.
 * @retval XFER_ERR_ARG          A wrong count or dtype, or an array that is missing.
 * @retval XFER_ERR_SHAPE        A box with hi below lo, or lo below 0; the text names it.
 * @retval XFER_ERR_OVERFLOW     A rank's bytes do not fit in 62 bits.
 * @retval XFER_ERR_UNSUPPORTED  Two boxes of a scalar on one rank.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_create_boxes(xfer_layout **layout,
                                                              const xfer_boxes_desc *desc);

/**
 * Make a layout of ranges of the row-major order, as FSDP1, ZeRO-3 and Megatron's distributed
 * optimizer cut flattened tensors: each rank one range, ragged or empty, past the end as padding.
 * A range is at most 2 n_dims - 1 boxes, and one more of ZERO elements for what lies past the end;
 * a dense view of them is the range itself.
 *
 * @param layout  Receives the layout; the caller owns it.
 * @param desc    As for xfer_layout_create_boxes(), but `first` is NULL and `bounds` is
 *                [mesh size][2]: of each rank the first element and one past the last.
 * @retval XFER_ERR_SHAPE  A range that ends before it begins; else as xfer_layout_create_boxes().
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_create_flat(xfer_layout **layout,
                                                             const xfer_boxes_desc *desc);
/** Give a layout back; NULL is fine. */
XFER_API void xfer_layout_destroy(xfer_layout *layout);

/** The element type. */
XFER_API xfer_dtype xfer_layout_dtype(const xfer_layout *layout);
/** The number of dims; copies the global shape to shape[0 .. n_dims-1] unless it is NULL. */
XFER_API int xfer_layout_shape(const xfer_layout *layout, int64_t *shape);

/**
 * The shape of a rank's part, padding included; a part may be empty. Boxes have one if they are
 * equally long in all dims but the first: stacked there.
 *
 * @param layout  The layout.
 * @param rank    A rank.
 * @param shape   [n_dims] Receives the sizes.
 * @retval XFER_ERR_ARG          `rank` is not in the mesh: it has no part.
 * @retval XFER_ERR_UNSUPPORTED  Boxes that do not stack; xfer_layout_boxes() has them.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_local_shape(const xfer_layout *layout, int rank,
                                                             int64_t *shape);

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
 * @retval XFER_ERR_UNSUPPORTED  The rank has several boxes; xfer_layout_boxes() has them.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_runs(const xfer_layout *layout, int rank, int dim,
                                                      xfer_run *runs, size_t capacity,
                                                      size_t *n_runs);

/**
 * The boxes that a rank holds, in the order of its list; by placements, one for each combination of
 * runs, ascending in local index.
 *
 * @param layout    The layout.
 * @param rank      A rank of the mesh.
 * @param bounds    [capacity][2][n_dims] Receives as many boxes as fit: lo, then hi. By boxes what
 *                  lies past the shape is part of them.
 * @param capacity  Of `bounds`, in boxes; 0 with NULL only counts.
 * @param n_boxes   Receives how many there are in all.
 * @retval XFER_ERR_ARG  `rank` is not in the mesh.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_boxes(const xfer_layout *layout, int rank,
                                                       int64_t *bounds, size_t capacity,
                                                       size_t *n_boxes);

/** A place where a global index is held. By boxes, `local` counts in the box, and in dim 0 from the
 * first box of the rank's list: as if they were stacked. */
typedef struct xfer_owner {
  int64_t local[XFER_MAX_DIMS]; /**< Index in that rank's part. */
  int32_t rank;                 /**< Who. */
  uint32_t reserved;            /**< 0. */
} xfer_owner;

/**
 * Who holds a global index: every rank, and on it every place. Costs no more for more ranks, apart
 * from the owners themselves.
 *
 * @param layout    The layout.
 * @param index     [n_dims] A global index inside the shape.
 * @param owners    [capacity] Receives as many owners as fit, in no promised order.
 * @param capacity  Length of `owners`.
 * @param n_owners  Receives how many there are in all.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_layout_owners(const xfer_layout *layout,
                                                        const int64_t *index, xfer_owner *owners,
                                                        size_t capacity, size_t *n_owners);

/* ---- the problem language ----------------------------------------------------------------- */

/**
 * Read a redistribution from one line, for example
 * "bf16[4096,11008] (2,4)@0-7:S0,R -> (4)@8-11:S1". docs/problem-language.md has the grammar.
 *
 * @param src   Receives the source layout; the caller owns it.
 * @param dst   Receives the destination layout; the caller owns it.
 * @param line  The line.
 * @retval XFER_ERR_ARG  The line does not parse; the text has the column. Or what
 *                       xfer_mesh_create() and xfer_layout_create() say.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_problem_parse(xfer_layout **src, xfer_layout **dst,
                                                        const char *line);
/**
 * Write a redistribution as one line, the inverse of xfer_problem_parse(); a run table, which has
 * no spelling, is written as "S0x", and a layout that is NULL as "?".
 *
 * @return the length of the whole text, as snprintf() does; at most n_bytes - 1 of it are written.
 */
XFER_API size_t xfer_problem_format(char *text, size_t n_bytes, const xfer_layout *src,
                                    const xfer_layout *dst);

/* ---- views -------------------------------------------------------------------------------- */

/** How an xfer_view describes memory. */
typedef enum xfer_view_kind {
  XFER_VIEW_DENSE = 0,   /**< Row-major from `base`, no gaps. */
  XFER_VIEW_STRIDED = 1, /**< Element x lies at base + sum of x[d] * strides[d]. */
  XFER_VIEW_PIECES = 2,  /**< Along `piece_dim` the part is cut in n_pieces equal pieces, each with
                              its own base pointer; inside a piece as STRIDED. */
  XFER_VIEW_BOXES = 3    /**< Of a layout by boxes: each box of the rank's list has its own base
                              pointer and strides. */
} xfer_view_kind;

/**
 * Where a rank's part of one tensor lies in its memory. All zero is a dense view of nothing, which
 * is right where the part is empty. Views of destinations must not overlap each other, except that
 * the same view may be bound to several tensors that share memory on purpose (tied weights).
 */
typedef struct xfer_view {
  int32_t kind;                   /**< xfer_view_kind */
  int32_t n_dims;                 /**< STRIDED, PIECES: the tensor's number of dims. */
  void *base;                     /**< DENSE, STRIDED: the part's first element. A source is not
                                       written. */
  int64_t strides[XFER_MAX_DIMS]; /**< STRIDED, PIECES: bytes from one index to the next, > 0 where
                                       the dim has more than one, in any order, gaps allowed. */
  void *const *pieces;            /**< PIECES, BOXES: [n_pieces] base pointers; copied by bind. */
  int64_t n_pieces;               /**< PIECES: must divide the part's size in piece_dim. BOXES: the
                                       number of the rank's boxes. */
  int32_t piece_dim;              /**< PIECES: the dim that is cut. */
  uint32_t reserved;              /**< Must be 0. */
  const int64_t *box_strides;     /**< BOXES: [n_pieces][n_dims] bytes, as `strides`; NULL: each box
                                       is dense. Copied by bind. */
} xfer_view;

/** A dense row-major part at `base`. */
XFER_API_INLINE xfer_view xfer_view_dense(void *base)
{
  xfer_view v = {XFER_VIEW_DENSE, 0, NULL, {0, 0, 0, 0, 0, 0, 0, 0}, NULL, 0, 0, 0, NULL};
  v.base = base;
  return v;
}

/** A part at `base` with `n_dims` strides in bytes. */
XFER_API_INLINE xfer_view xfer_view_strided(void *base, const int64_t *strides, int n_dims)
{
  xfer_view v = {XFER_VIEW_STRIDED, 0, NULL, {0, 0, 0, 0, 0, 0, 0, 0}, NULL, 0, 0, 0, NULL};
  int d;
  v.base = base;
  v.n_dims = (int32_t)n_dims;
  for (d = 0; d < n_dims && d < XFER_MAX_DIMS; d++)
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
 * Boxes of a layout by boxes, each at its own place: box i of the rank's list at boxes[i] with
 * strides[i * n_dims ...], NULL: each dense. An empty box may be at NULL.
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

/* ---- comm --------------------------------------------------------------------------------- */

/** The ranks and how bytes travel between them. Other makers: xfer/mpi.h, xfer/nccl.h. */
typedef struct xfer_comm xfer_comm;

/** A CUDA stream, the type behind cudaStream_t, without its header. Ignored by host comms. */
typedef struct CUstream_st *xfer_stream;

/**
 * Make a comm whose ranks are threads of this process; memory is host memory.
 *
 * @param comms    [n_ranks] Receives one handle per rank. Each is destroyed by its owner.
 * @param n_ranks  At least 1.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_create_local(xfer_comm **comms, int n_ranks);

/** Give a comm back; NULL is fine. Its plans must be gone. Not collective. */
XFER_API void xfer_comm_destroy(xfer_comm *comm);
/** This rank. */
XFER_API int xfer_comm_rank(const xfer_comm *comm);
/** The number of ranks. */
XFER_API int xfer_comm_size(const xfer_comm *comm);

/**
 * Give every rank n_bytes of each rank. Collective; blocks. For small control data.
 *
 * @param comm     The comm.
 * @param all      [size * n_bytes] Receives the bytes, by rank. Host memory.
 * @param mine     [n_bytes] This rank's. Host memory.
 * @param n_bytes  The same on every rank.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_all_gather(xfer_comm *comm, void *all,
                                                          const void *mine, size_t n_bytes);

/**
 * Let the peers map memory now and keep it mapped, so that xfer_redistribute() can write straight
 * into it call after call. Collective; plans do not need it. On a host comm there is nothing to do.
 *
 * @param comm     The comm.
 * @param memory   In one allocation of this device, which must live until it is unregistered or the
 *                comm destroyed; NULL: this rank has nothing to register in this call. Of memory
 *                that is mapped chunk by chunk each chunk is an allocation.
 * @retval XFER_ERR_ARG  Memory that the device's copies cannot use.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_register(xfer_comm *comm, void *memory);
/**
 * Undo one call of xfer_comm_register(), the first in which every rank named what it names now: the
 * mappings of all ranks' memory are closed, and the memory may be freed. Memory that was registered
 * twice stays mapped until both calls are undone. Collective.
 *
 * @param comm    The comm.
 * @param memory  What this rank registered in that call; NULL likewise.
 * @retval XFER_ERR_ARG       It was not registered.
 * @retval XFER_ERR_MISMATCH  There is no such call; nothing was undone.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_comm_unregister(xfer_comm *comm, void *memory);

/* ---- one tensor, one call ----------------------------------------------------------------- */

/**
 * Move one tensor from its source layout to its destination layout.
 *
 * Collective over all ranks of the comm, also those in neither mesh. The plan is kept with the comm
 * and found again by its metadata.
 * Data goes straight into the peers' memory where ranks are threads, and where all ranks' memory
 * was registered by xfer_comm_register(); else through slots. Stream: starts after what is already
 * on `stream`; a later reader on it sees the result. On a host comm the data is there when the call
 * returns.
 *
 * @param comm        The comm; every rank of both meshes must be one of its ranks.
 * @param src_layout  Source; NULL on a rank that does not know it, if some rank does.
 * @param src_view    Where this rank's source part lies; may be NULL where it has none.
 * @param dst_layout  Destination, of the same shape and dtype; NULL likewise.
 * @param dst_view    Where this rank's destination part lies; may be NULL where it has none.
 * @param stream      A CUDA stream; NULL: the default stream. Ignored by host comms.
 * @retval XFER_ERR_MISMATCH  Ranks disagree about the layouts. Nothing was moved.
 * @retval XFER_ERR_SHAPE     The layouts or views do not fit. Nothing was moved.
 * @retval XFER_ERR_PEER      Another rank failed before anything was moved.
 * @retval XFER_ERR_TIMEOUT   A rank did not take part in time; the destination may be torn.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status
xfer_redistribute(xfer_comm *comm, const xfer_layout *src_layout, const xfer_view *src_view,
                  const xfer_layout *dst_layout, const xfer_view *dst_view, xfer_stream stream);

/* ---- plans -------------------------------------------------------------------------------- */

/** Many tensors, planned once and run at every step. */
typedef struct xfer_plan xfer_plan;

/** One tensor of a plan. */
typedef struct xfer_tensor {
  const char *name;       /**< For errors and reports; part of what ranks must agree on. */
  const xfer_layout *src; /**< Who holds it before; NULL: not known on this rank. */
  const xfer_layout *dst; /**< Who holds it after; NULL: not known on this rank. */
  uint64_t reserved;      /**< Must be 0. */
} xfer_tensor;

/** The ways data can take. */
typedef enum xfer_lane {
  XFER_LANE_AUTO = 0,   /**< The plan chooses for each tensor and pair of ranks. */
  XFER_LANE_DIRECT = 1, /**< Straight into the peer's memory; packed where it cannot be reached. */
  XFER_LANE_PACKED = 2, /**< Through bounded slots, one message per peer per round. */
  XFER_LANE_BROADCAST = 3 /**< Each owner broadcasts its part; ranks keep what they need. */
} xfer_lane;

/** Options of a plan; zero is the default in every field. The same on every rank. */
typedef struct xfer_plan_options {
  size_t struct_size;         /**< Set by XFER_PLAN_OPTIONS_INIT. */
  uint64_t max_staging_bytes; /**< Upper bound on staging memory per rank. 0: 1 GiB on a device,
                                   64 MiB on a host. */
  uint64_t window_bytes;      /**< Most bytes per peer and round, at most 1 GiB. 0: chosen. Made
                                   smaller where max_staging_bytes asks for it. */
  uint64_t link_bytes_per_s;  /**< For predicting: a rank's bandwidth. 0: 350e9. */
  uint64_t message_ns;        /**< Likewise: the cost of one message. 0: 30000. */
  uint64_t timeout_ms;        /**< Deadline of every wait. 0: 600000. */
  uint32_t lane;              /**< xfer_lane */
  uint32_t ranks_per_domain;  /**< Ranks r with equal r / ranks_per_domain are near each other;
                                   sources in the same domain are preferred. 0: no domains. */
  uint32_t flags;             /**< OR of XFER_PLAN_*. */
  uint32_t reserved;          /**< Must be 0. */
} xfer_plan_options;
#define XFER_PLAN_OPTIONS_INIT                                                                     \
  {                                                                                                \
    sizeof(xfer_plan_options), 0, 0, 0, 0, 0, 0, 0, 0, 0                                           \
  }

/**
 * Plan a set of tensors. Collective.
 *
 * A rank that does not know one side's layouts passes NULL for them and receives them from the
 * lowest rank that gave them. Everything else must be the same on every rank and is compared.
 *
 * @param plan       Receives the plan; the caller owns it and destroys it before the comm.
 * @param comm       The comm; not owned.
 * @param tensors    [n_tensors] Copied.
 * @param n_tensors  0 or more.
 * @param options    NULL: all defaults.
 * @retval XFER_ERR_MISMATCH  Ranks disagree; the text names the first tensor and both descriptions.
 * @retval XFER_ERR_SHAPE     A tensor's two layouts differ in shape or dtype, or some destination
 *                            element has no source.
 * @retval XFER_ERR_ARG       A mesh names a rank that the comm does not have, or an option is
 * wrong.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_create(xfer_plan **plan, xfer_comm *comm,
                                                      const xfer_tensor *tensors, size_t n_tensors,
                                                      const xfer_plan_options *options);

/**
 * Plan as `rank` of `n_ranks` would, with no comm and no memory. The plan can be reported and
 * printed, not bound or run. Not collective. Parameters and errors as xfer_plan_create().
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_simulate(xfer_plan **plan, int n_ranks, int rank,
                                                        const xfer_tensor *tensors,
                                                        size_t n_tensors,
                                                        const xfer_plan_options *options);

/** Give a plan back; NULL is fine. Waits for what this rank has enqueued, and for what peers have
 * begun on its memory. Not collective. */
XFER_API void xfer_plan_destroy(xfer_plan *plan);

/**
 * Say where one tensor's parts lie on this rank. Local. After a commit it makes the plan
 * uncommitted, unless the tensor lies where it did.
 *
 * @param plan      The plan.
 * @param tensor    Index into the array given at create.
 * @param src_view  Needed where this rank's source part is not empty, else ignored; NULL: none.
 * @param dst_view  Likewise for the destination.
 * @retval XFER_ERR_SHAPE  The view does not fit the part: number of dims, strides, pieces.
 * @retval XFER_ERR_STATE  A run is in flight, or the plan is a simulation.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_bind(xfer_plan *plan, size_t tensor,
                                                    const xfer_view *src_view,
                                                    const xfer_view *dst_view);

/**
 * Get everything ready to run: check that all parts are bound and no destinations overlap, allocate
 * staging, exchange addresses, choose lanes. Collective. Again after a bind, or after bound memory
 * was freed or remapped; where nothing changed on any rank there is nothing to do.
 *
 * @retval XFER_ERR_ARG    Memory that the device's copies cannot use, or a view that reaches past
 *                         its allocation; the text names the tensor.
 * @retval XFER_ERR_STATE  A non-empty part is not bound, or a run is in flight.
 * @retval XFER_ERR_SHAPE  Destination views overlap each other or a source; the text names both
 *                         tensors. One view may be both where a tensor stays as it is here.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_commit(xfer_plan *plan);

/**
 * Move every tensor from its source layout to its destination layout.
 *
 * Collective. One run may be in flight per plan.
 * Stream: starts after what is already on `stream`; returns once enqueued, allocates nothing, does
 * not wait for the device. On a host comm the data has moved when it returns.
 *
 * @param plan     Committed. Its bound views are read and written until `stream` passes this point.
 * @param version  The caller's number for these weights, above the last committed one;
 *                 xfer_plan_wait() commits it.
 * @param stream   A CUDA stream; NULL: the default stream. Ignored by host comms.
 * @retval XFER_ERR_STATE    Not committed, a run in flight, the last run failed and no commit came
 *                           since, `version` does not grow, bound memory freed or remapped, or
 *                           `stream` capturing. Nothing was begun. Where the other ranks did begin,
 *                           xfer_plan_wait() tells them; without it they wait until their deadline.
 * @retval XFER_ERR_UNSUPPORTED  `stream` is cudaStreamPerThread. Likewise.
 * @retval XFER_ERR_PEER     Another rank failed and left the plan's runs. Likewise.
 * @retval XFER_ERR_TIMEOUT  A peer did not come; the text names it. Destinations are torn.
 * @retval XFER_ERR_CUDA     A copy or launch failed. Destinations are torn.
 * @retval XFER_ERR_COMM     The transport failed. Destinations are torn.
 * @since 0.1
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_run(xfer_plan *plan, uint64_t version,
                                                   xfer_stream stream);

/**
 * Wait until the last run is complete on every rank, then commit its version. Collective, once per
 * run, and again after a TIMEOUT that came before the run's own deadline.
 *
 * After a failure, but for that one, nothing of the run touches this rank's memory any more, and
 * the plan needs xfer_plan_commit() before the next run. A rank whose deadline passed writes no
 * memory of a rank that did not come. What no call can prevent: a process that is killed while its
 * copies are on their way leaves the memory that it was writing half new.
 *
 * @param plan        A run is in flight, or was refused on this rank.
 * @param timeout_ms  How long to wait for this rank's part; 0: until the run's own deadline, which
 *                    is the plan's timeout after its beginning. Once it is complete the ranks
 *                    agree, for which each waits for the others until that deadline and 4 s more.
 * @retval XFER_OK          Every rank's destinations are complete.
 * @retval XFER_ERR_STATE   No run is in flight.
 * @retval XFER_ERR_TIMEOUT  The run is not complete on this rank after `timeout_ms`: wait again, as
 *                           the others wait for this rank. Or a peer missed the run's deadline: the
 *                           text names it, and the run has failed.
 * @retval XFER_ERR_PEER    Another rank's run failed; destinations may be torn.
 * @retval XFER_ERR_MISMATCH  Ranks ran different versions; the text has two. None is committed.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_wait(xfer_plan *plan, uint64_t timeout_ms);

/**
 * Free staging and close mappings of peer memory. Collective. Bindings stay; xfer_plan_commit()
 * restores the rest. After it bound memory may be freed.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_release(xfer_plan *plan);

/** What a plan does on this rank, in figures. Start from XFER_PLAN_REPORT_INIT. */
typedef struct xfer_plan_report_data {
  size_t struct_size;         /**< Set by XFER_PLAN_REPORT_INIT. */
  uint64_t n_tensors;         /**< Of the plan. */
  uint64_t n_classes;         /**< Distinct (shape, dtype, layouts). */
  uint64_t n_moves;           /**< In which this rank takes part, self-copies counted once. */
  uint64_t payload_bytes;     /**< Each tensor of the plan once. */
  uint64_t in_bytes;          /**< Written on this rank: received, copied from itself and zeroed. */
  uint64_t self_bytes;        /**< Of these, copied from itself. */
  uint64_t zero_bytes;        /**< Of these, zeroed. */
  uint64_t wire_bytes;        /**< Of these, received from other ranks. */
  uint64_t out_bytes;         /**< Sent to other ranks. */
  uint64_t n_send_peers;      /**< Ranks that this rank sends to. */
  uint64_t n_recv_peers;      /**< Ranks that this rank receives from. */
  uint64_t broadcast_tensors; /**< Tensors that take the broadcast lane. */
  uint64_t direct_bytes;  /**< Once committed: bytes this rank copies to or from peers' memory. */
  uint64_t packed_bytes;  /**< Once committed: bytes this rank sends packed: in rounds, or
                                    through memory that it shares with the peer. */
  uint64_t n_rounds;      /**< Once committed: packed rounds in which this rank takes part; none
                               with ranks that share memory. */
  uint64_t staging_bytes; /**< Once committed: staging memory of this rank. */
  uint64_t window_bytes;  /**< Bytes per peer and round. */
  uint64_t bound_bytes;   /**< max(wire_bytes, out_bytes): what the wire must carry at least. */
  uint64_t predicted_ns;  /**< By link_bytes_per_s and message_ns. */
  uint64_t committed_version; /**< Of the last complete run; 0: none yet. */
  uint64_t torn;              /**< 1: a failed run left destinations half new. */
} xfer_plan_report_data;
#define XFER_PLAN_REPORT_INIT                                                                      \
  {                                                                                                \
    sizeof(xfer_plan_report_data), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0   \
  }

/** Fill `report`: the fields that its struct_size has. Local; may be called in any state. */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_report(const xfer_plan *plan,
                                                      xfer_plan_report_data *report);

/** A box of one tensor that goes from one rank to another. */
typedef struct xfer_move {
  uint64_t tensor;                  /**< Index into the array given at create. */
  int32_t src_rank;                 /**< Equal to dst_rank for a self-copy. */
  int32_t dst_rank;                 /**< Who gets it. */
  int64_t lo[XFER_MAX_DIMS];        /**< Global index, first. */
  int64_t hi[XFER_MAX_DIMS];        /**< Global index, one past the last. */
  int64_t src_local[XFER_MAX_DIMS]; /**< Where `lo` lies in the source rank's part. */
  int64_t dst_local[XFER_MAX_DIMS]; /**< Where `lo` lies in the destination rank's part. */
  uint64_t n_bytes;                 /**< Of the box. */
  int32_t n_dims;                   /**< Of the tensor. */
  int32_t broadcast;                /**< 1: carried by the broadcast lane. */
} xfer_move;

/**
 * The i-th move in which this rank takes part, 0 <= i < n_moves of the report. Local.
 * @retval XFER_ERR_ARG  No such move.
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_move(const xfer_plan *plan, size_t i,
                                                    xfer_move *move);

/**
 * The plan as text: a summary for people, or with `json` != 0 one JSON object with the report and
 * all moves of this rank. Both list the peers; once committed they say how data travels to and from
 * each, and where that is not directly, why: "packed: rank 1 cannot map rank 5: ...".
 * @param text  Receives a string that the caller gives back with xfer_text_free().
 */
XFER_API XFER_MUST_CHECK xfer_status xfer_plan_print(const xfer_plan *plan, char **text, int json);
/** Give back a string that the library made; NULL is fine. */
XFER_API void xfer_text_free(char *text);

#ifdef __cplusplus
}
#endif
#endif
