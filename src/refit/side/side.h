/*
 * A side: how one framework holds a model. Its rules describe the framework, its SPEC the user's
 * choices.
 *
 * The ranks of a side form a grid, `axes`, of which pipeline stages are one axis. The ranks of each
 * stage then form up to three grids: `dense` for most tensors, `experts` for those of routed
 * experts, and `wide` for tensors that the framework cuts over more ranks than the dense ones.
 */
#ifndef XFI_SIDE_H
#define XFI_SIDE_H

#include "model.h"

/* What a caller overrides for the names that match a pattern. From PLACE on: how the side holds
 * tensors. */
typedef enum xfi_override_kind {
  XFI_OVERRIDE_RENAME = 0,
  XFI_OVERRIDE_IGNORE,
  XFI_OVERRIDE_PLACE,
  XFI_OVERRIDE_WHOLE,
  XFI_OVERRIDE_DTYPE
} xfi_override_kind;

typedef struct xfi_override {
  xfi_override_kind kind;
  char *pattern;
  char *to;  /* the new name of a rename */
  int value; /* PLACE: a dim; WHOLE: a place in the mesh; DTYPE: an element type */
} xfi_override;

/* A grid of ranks. The axis that varies fastest comes first. */
typedef struct xfi_grid {
  const xfi_grid_rule *rule;
  int sizes[XFI_MAX_AXES];
  int replicas; /* ranks of the stage over the product of the sizes */
  int cut;      /* the axis of tensor parallelism; -1: none */
  int experts;  /* the axis of expert parallelism; -1: none */
} xfi_grid;

/* Which experts each rank of the ep axis holds, in local order. */
typedef struct xfi_expert_map {
  int layer;            /* -1: all layers that have no map of their own */
  int n_ranks;          /* of the ep axis, once it is known */
  int *experts, *first; /* [first[n_ranks]], [n_ranks + 1] */
} xfi_expert_map;

enum { XFI_MAX_ITEMS = 48 };

struct xfer_side {
  atomic_int n_refs;
  char spec[80 + 1]; /* the beginning of the SPEC, which errors quote */
  xfer_rules *rules;
  const xfi_side_rules *framework; /* those of the SPEC's framework */
  xfi_var vars[XFI_MAX_ITEMS];     /* the SPEC's items: numbers, 1 or 0 for flags and choices */
  char *var_names[XFI_MAX_ITEMS];  /* of choices; owned */
  int n_vars;
  int pp;     /* stages */
  int chunks; /* parts of the model on each stage: virtual stage v is chunk v / pp of stage v % pp
               */
  xfi_grid axes;                 /* over all ranks */
  int stage_axis;                /* the axis of pipeline stages; -1: none */
  xfi_grid dense, wide, experts; /* over the ranks of a stage; one without axes is not used */
  int *stage_layers; /* [pp * chunks] how many layers each virtual stage has; NULL: evenly many */
  int size;
  xfer_mesh *mesh;     /* [size] of the comm's ranks, in the side's order */
  int *ranks_by_stage; /* [pp][ranks of a stage] of the comm, in the order of the grids */
  xfi_expert_map *maps;
  size_t n_maps, maps_cap;
  xfer_dtype dtype;            /* of all tensors that are not f32 in the model; 0: the model's */
  const xfi_quant_rule *quant; /* how the side quantises weights; NULL: it does not */
  bool partial, strict;        /* see xfer_side_options */
  xfi_override *overrides;     /* in the caller's order */
  size_t n_overrides, overrides_cap;
};

xfer_status xfi_side_create(xfer_side **side, const char *spec, const xfer_side_options *options);
xfer_side *xfi_side_share(const xfer_side *side);
void xfi_side_destroy(xfer_side *side);
/* Does the caller ignore the name, or is it a module's own state and no tensor? */
bool xfi_side_ignores(const xfer_side *side, const char *name);
xfer_status xfi_side_add_override(xfer_side *side, xfi_override_kind kind, const char *pattern,
                                  const char *to, int value);

/* spec.c: the items of the SPEC, then those of the options. */
xfer_status xfi_spec_parse(xfer_side *side, const char *spec, const xfer_side_options *options);
xfi_scope xfi_side_scope(const xfer_side *side, const xfi_scope *next);

/* expert_maps.c: expert maps, of a file or of the options, the latter once the grids are made. */
xfer_status xfi_expert_map_read(xfer_side *side, const char *path);
xfer_status xfi_expert_map_copy(xfer_side *side, const xfer_side_options *options);
xfer_status xfi_expert_map_check(const xfer_side *side);
/* Does each layer that has a map of its own have experts? */
xfer_status xfi_expert_map_check_layers(const xfer_side *side, const xfer_model *model);
/* The map of a layer; NULL: none. */
const xfi_expert_map *xfi_expert_map_find(const xfer_side *side, int layer);
void xfi_expert_maps_free(xfer_side *side);

/* ---- grid.c: ranks ---- */

/* Sizes, grids and ranks, once the items are known. */
xfer_status xfi_grid_make(xfer_side *side, const xfer_side_options *options);
/* The number of ranks of a stage, which is the same for all. */
int xfi_side_stage_size(const xfer_side *side);
/* The stage of a rank; -1: it is not on this side. *place becomes its place in the stage, unless
 * NULL.
 */
int xfi_side_stage_of(const xfer_side *side, int rank, int *place);
/* A rank's coordinate on the axis that tensor parallelism cuts, 0 if there is none. */
int xfi_grid_cut_of(const xfi_grid *grid, int place);
/* See xfer_side_coordinate(). */
xfer_status xfi_side_coordinate(const xfer_side *side, const char *axis, int rank, int *coordinate);
/* The virtual stage of the i-th kept layer, for each. [model->n_layers] */
xfer_status xfi_side_stages(const xfer_side *side, const xfer_model *model, int **stages);

#endif
