/*
 * Meshes and layouts: which elements of a tensor a rank holds, and who holds an element.
 *
 * A layout splits each dim by a list of *cuts*, one per mesh axis that shards it, applied in order,
 * each to the part that the one before left. A rank's place in a dim is therefore a *part* number,
 * the mixed radix number of its coordinates on those axes, and its shard is the product over dims
 * of that part's runs. Going back, from a global interval to the parts that hold it, walks the same
 * cuts in closed form: nobody scans ranks.
 */
#ifndef XFI_LAYOUT_H
#define XFI_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xfer/xfer.h"

/* ---- mesh ---- */

/* The most ranks of a mesh, which keeps a word for each: a size that was mistyped must not take all
 * memory. */
enum { XFI_MOST_RANKS = 1 << 24 };

struct xfer_mesh {
  atomic_int n_refs;
  int n_axes;
  int size; /* product of shape */
  int shape[XFER_MAX_DIMS];
  int stride[XFER_MAX_DIMS]; /* step of each axis in `ranks` */
  int *ranks;                /* [size], row-major */
  int *order; /* [size] positions in `ranks`, by ascending rank; NULL: ranks ascend */
  int min_rank;
  int max_rank;
  uint64_t digest[2]; /* digest of shape and ranks */
};

xfer_status xfi_mesh_create(xfer_mesh **mesh, const int *shape, int n_axes, const int *ranks);
xfer_mesh *xfi_mesh_share(const xfer_mesh *mesh); /* one more owner */
void xfi_mesh_destroy(xfer_mesh *mesh);           /* one owner less */
/* Position of `rank` in mesh->ranks, or -1. */
int xfi_mesh_find(const xfer_mesh *mesh, int rank);

/* ---- layout ---- */

/* A table placement, kept with what the way back needs. */
typedef struct xfi_table xfi_table;

/* One mesh axis splitting the current part of a dim. */
typedef struct xfi_cut {
  int axis;
  int n_coords;         /* the axis's size */
  int32_t kind;         /* xfer_placement_kind, not REPLICATE */
  int32_t rule;         /* xfer_split_rule */
  int64_t split_factor; /* set in STRIDED cuts alone */
  xfi_table *table;     /* set in RUNS cuts alone */
} xfi_cut;

typedef struct xfi_dim {
  int64_t size;    /* valid global extent */
  int64_t padded;  /* what is split, >= size */
  int64_t n_parts; /* product of n_coords */
  xfi_cut *cuts;   /* [n_cuts] a slice of the layout's `cuts` */
  int n_cuts;
} xfi_dim;

/* What each rank of a layout by boxes holds (boxes.h); NULL: the layout is by placements. */
typedef struct xfi_boxes xfi_boxes;

/* What plans look at in many layouts stands at the beginning. */
struct xfer_layout {
  atomic_int n_refs;
  xfer_dtype dtype;
  int elem_bytes;
  int n_dims;
  xfer_mesh *mesh;
  xfi_boxes *boxes;
  uint64_t digest[2]; /* digest of who holds what: equal in equal layouts alone */
  int64_t n_elems;    /* product of sizes; n_elems * elem_bytes fits in 63 bits, padded sizes too */
  double n_held;      /* by boxes: elements of all lists together, without ZERO elements */
  bool is_own;        /* it has one unknown rank's boxes alone; a plan gathers the others' */
  int n_replicas;     /* product of the sizes of replica_axes */
  int n_replica_axes; /* axes that no dim is split by */
  xfi_dim dims[XFER_MAX_DIMS];
  int replica_axes[XFER_MAX_DIMS];
  xfi_cut cuts[XFER_MAX_DIMS]; /* dim by dim: no axis makes two */
};

xfer_status xfi_layout_create(xfer_layout **layout, const xfer_layout_desc *desc);
/* The first and the last step of making a layout: `begin` sets mesh and sizes; `end`, once it is
 * known who holds what, checks that the bytes fit and sets the digest. */
xfer_status xfi_layout_begin(xfer_layout **layout, const xfer_layout_desc *desc);
xfer_status xfi_layout_end(xfer_layout *layout);
xfer_layout *xfi_layout_share(const xfer_layout *layout);
void xfi_layout_destroy(xfer_layout *layout);
/* Ask for the memory that a rank's plan reads first, so that many layouts are not waited for one by
 * one: each step takes what the step before asked for, and should come some other work later. */
enum { XFI_FETCH_STEPS = 4 };
void xfi_layout_fetch(const xfer_layout *layout, int rank, int step);

/*
 * A part is what a set of ranks, its replicas, hold alike. By placements every rank of the mesh has
 * one, numbered by the mesh position of its first replica, the others a fixed step after it. By
 * boxes a part is all boxes that the same ranks hold, and a rank may have a share in several.
 */
int xfi_part_n_replicas(const xfer_layout *layout, uint32_t part);
/* Do several ranks hold a part that has elements? */
bool xfi_layout_has_replicas(const xfer_layout *layout);
/* Mesh position of the first replica. */
int xfi_part_first(const xfer_layout *layout, uint32_t part);
int xfi_part_rank(const xfer_layout *layout, uint32_t part, int replica);
/* Which replica of the part `rank` is; -1: the rank does not hold the part. */
int xfi_part_replica(const xfer_layout *layout, uint32_t part, int rank);

/* Which part of each dim and which replica a rank holds; of no use in layouts by boxes. */
typedef struct xfi_place {
  int part[XFER_MAX_DIMS];
  int number;  /* number of the tensor's part that these make */
  int replica; /* which replica of that part the rank is */
} xfi_place;

/* False: the rank is not in the mesh. */
bool xfi_layout_place(const xfer_layout *layout, int rank, xfi_place *place);
/* The mesh position that the coordinates of a dim's part add up to, the others being 0. */
int xfi_dim_position(const xfer_layout *layout, int dim, int64_t part);

/* The number of elements of a rank's part, ZERO elements included; `place` is the rank's. */
int64_t xfi_layout_elems(const xfer_layout *layout, int rank, const xfi_place *place);

/* Is some cut of the dim a table? Only then can parts share an index, or one part hold it twice. */
bool xfi_dim_has_table(const xfi_dim *dim);

/* Length of a part of a dim, padding included. */
int64_t xfi_dim_length(const xfi_dim *dim, int64_t part);

/* The global index of a local index below xfi_dim_length(); -1: a ZERO element. */
int64_t xfi_dim_global(const xfi_dim *dim, int64_t part, int64_t local);

/* A growing list of runs. */
typedef struct xfi_runs {
  xfer_run *at;
  size_t n;
  size_t capacity;
} xfi_runs;

/* The runs of a part: maximal, ascending in local, only valid indices. */
xfer_status xfi_dim_runs(const xfi_dim *dim, int64_t part, xfi_runs *runs);
/* Those runs for which the part is read as a source: an index that several parts hold, or that one
 * part holds twice, is in only one of their runs. */
xfer_status xfi_dim_runs_once(const xfi_dim *dim, int64_t part, xfi_runs *runs);

/* A piece of a global interval and a part that holds it. */
typedef struct xfi_hold {
  int64_t part;
  int64_t global;
  int64_t length;
  int64_t local;
} xfi_hold;

typedef struct xfi_holds {
  xfi_hold *at;
  size_t n;
  size_t capacity;
} xfi_holds;

/*
 * Append every (part, run) that holds part of [lo, hi), 0 <= lo <= hi <= size. With `once`, where a
 * global index is held at several places only the first counts (lowest part, then lowest local):
 * the place that a source is read from.
 */
xfer_status xfi_dim_holders(const xfi_dim *dim, int64_t lo, int64_t hi, bool once,
                            xfi_holds *holds);

#endif
