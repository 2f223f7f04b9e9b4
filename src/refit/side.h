/*
 * A side: how one framework holds a model, as data.
 *
 * Whatever the framework, a rank of a pipeline stage has coordinates on one of two grids over the
 * stage's ranks, the dense one (replicas, tp) and the experts' (replicas, ep, tp); FSDP adds an
 * axis that cuts what the others left. So a side comes down to two answers about an entry of the
 * model: its *spread*, one placement per axis, and its *slot*, the place of a rank's part in the
 * framework's own tensors.
 */
#ifndef XFI_SIDE_H
#define XFI_SIDE_H

#include "model.h"

typedef enum xfi_framework {
  XFI_MEGATRON = 1,
  XFI_FSDP = 2,
  XFI_FULL = 4,
  XFI_VLLM = 8,
  XFI_HF = 16
} xfi_framework;

typedef enum xfi_mla_down { XFI_MLA_REPLICATED = 0, XFI_MLA_SHARDED, XFI_MLA_FUSED } xfi_mla_down;

/* A name pattern and what a caller said of it. */
typedef struct xfi_said {
  char *pattern;
  char *to; /* renames */
  int value;
} xfi_said;

typedef struct xfi_saids {
  xfi_said *at;
  size_t n;
  size_t capacity;
} xfi_saids;

struct xfer_side {
  atomic_int n_refs;
  char *spec;
  xfi_framework framework;
  int tp, cp, pp, ep, etp, dp, replicate, engines, vdiv; /* 1 where not given, vdiv 128 */
  int *stage_layers;                                     /* [pp] as listed; NULL: even */
  int mla_down;                                          /* xfi_mla_down */
  int stacked;                                           /* Megatron's experts are one tensor */
  int round_robin;
  uint32_t weights; /* OR of xfer_weights; 0: not a serving side */
  int first_rank;
  int size;
  int *map_experts; /* [map_first[ep]] or NULL */
  int *map_first;   /* [ep + 1] */
  xfi_saids renames, ignores, places, wholes, dtypes;
};

/* Fills the fields that the SPEC decides. */
xfer_status xfi_spec_parse(xfer_side *side, const char *spec);
/* Reads "map=FILE": a JSON list of a list of experts for each rank. */
xfer_status xfi_map_read(xfer_side *side, const char *path);

xfer_status xfi_side_create(xfer_side **side, const char *spec, const xfer_side_options *options);
xfer_side *xfi_side_share(const xfer_side *side);
void xfi_side_destroy(xfer_side *side);
xfer_status xfi_said_add(xfi_saids *saids, const char *pattern, const char *to, int value);

/* ---- ranks ---- */

/* Ranks of one stage; each stage has as many. */
int xfi_side_stage_size(const xfer_side *side);
/* The i-th rank of a stage, in the order in which both grids count. */
int xfi_side_rank(const xfer_side *side, int stage, int i);
/* The stage of a rank; -1: not on this side. */
int xfi_side_stage_of(const xfer_side *side, int rank);
/* See xfer_side_coordinate(). */
xfer_status xfi_side_coordinate(const xfer_side *side, const char *axis, int rank, int *coordinate);
/* The stage of the i-th kept layer, for each; -1 in the text of an error. [model->n_layers] */
xfer_status xfi_side_stages(const xfer_side *side, const xfer_model *model, int **stages);

/* ---- spread ---- */

typedef struct xfi_spread {
  int n_axes;
  int shape[XFER_MAX_DIMS]; /* of the stage's ranks */
  xfer_placement placements[XFER_MAX_DIMS];
  int32_t n_order;
  int32_t order[XFER_MAX_DIMS];
  bool padded;
  int64_t padded_shape[XFER_MAX_DIMS];
  xfer_run_table tables[2]; /* what RUNS placements point to; owned */
  int n_tables;
} xfi_spread;

void xfi_spread_free(xfi_spread *spread);
/* How the ranks of a stage hold an entry that the families know. Refuses what the framework would.
 */
xfer_status xfi_spread_make(xfi_spread *spread, const xfer_side *side, const xfer_model *model,
                            const xfi_entry *entry);
/* Tensor parallelism splits `dim` evenly; negative: whole. For what xfer_side_place() says. */
xfer_status xfi_spread_place(xfi_spread *spread, const xfer_side *side, const xfi_entry *entry,
                             int dim);

/* A run table that grows coordinate by coordinate. */
typedef struct xfi_table_maker {
  xfer_run *runs;
  size_t n_runs, runs_cap;
  int64_t *first, *lengths;
  size_t n_coords, first_cap, lengths_cap;
} xfi_table_maker;
xfer_status xfi_table_run(xfi_table_maker *maker, int64_t global, int64_t length, int64_t local);
xfer_status xfi_table_coord(xfi_table_maker *maker, int64_t local_length);
/* Hands the table to the spread and places it on an axis; the maker is empty again. */
xfer_status xfi_table_place(xfi_table_maker *maker, xfi_spread *spread, int axis, int dim,
                            bool allow_zero);
void xfi_table_free(xfi_table_maker *maker);

/* Tables of the special cuts (tables.c). `n` is the number of tp ranks, `dim` what is cut. */
xfer_status xfi_table_mamba(xfi_spread *spread, int axis, int n, const xfer_side *side,
                            const xfer_model *model, const xfi_entry *entry);
xfer_status xfi_table_qkv(xfi_spread *spread, int axis, int n, const xfer_model *model,
                          const xfi_entry *entry);
xfer_status xfi_table_map(xfi_spread *spread, int axis, const xfer_side *side,
                          const xfi_entry *entry);
xfer_status xfi_table_first_only(xfi_spread *spread, int axis, int n, const xfi_entry *entry,
                                 int dim);

/* Megatron's linear_qkv: rows of one query group are [q.. k v], and plain Shard(0) cuts them. */
typedef struct xfi_qkv {
  int64_t groups;
  int64_t rows[3]; /* of q, k and v in a group */
  int64_t local;   /* rows of linear_qkv on a rank */
} xfi_qkv;
xfer_status xfi_qkv_make(xfi_qkv *qkv, const xfer_model *model, const xfi_entry *entry, int n);
/* The k-th stretch of `which` (0 q, 1 k, 2 v) on tp rank `r`: rows of linear_qkv's local part, of
 * the tensor's local part, and of the tensor. False: no more. */
typedef struct xfi_stretch {
  int64_t fused, local, global, length;
} xfi_stretch;
bool xfi_qkv_stretch(const xfi_qkv *qkv, int r, int which, int64_t k, xfi_stretch *stretch);

/* ---- slot ---- */

typedef enum xfi_fuse { XFI_FUSE_CAT = 0, XFI_FUSE_MIX, XFI_FUSE_QKV } xfi_fuse;

typedef struct xfi_slot {
  char *local;              /* the local tensor's name, with {layer} and {expert} or {local} */
  char *last;               /* its name on the last stage where that differs, else NULL */
  int order[XFER_MAX_DIMS]; /* order[k]: the tensor's dim that is dim k of the local tensor */
  bool each_expert;         /* one local tensor per expert; dim 0 is none of theirs */
  int slot, n_slots;        /* of the tensors that lie in one, side by side in `fuse_dim` */
  int fuse_dim;             /* a dim of the tensor */
  xfi_fuse fuse;
} xfi_slot;

void xfi_slot_free(xfi_slot *slot);
xfer_status xfi_slot_make(xfi_slot *slot, const xfer_side *side, const xfer_model *model,
                          const xfi_entry *entry);
/* The whole tensor as the checkpoint has it, under the checkpoint's name. */
xfer_status xfi_slot_plain(xfi_slot *slot, const xfi_entry *entry);

#endif
