/*
 * One entry on one side: the rule that applies, the local tensor in which its rows lie, the stages,
 * and the resulting layouts.
 */
#ifndef XFI_PLACING_H
#define XFI_PLACING_H

#include "cuts.h"
#include "layout.h"

/* Where a rank's part lies in the framework's own tensors. */
typedef struct xfi_slot {
  char *local; /* the local tensor's name, with {layer} and {expert} or {local} */
  char *last;  /* its name on the last stage, if that differs; else NULL */
  char *made;  /* the name of the tensor that the framework computes from it; NULL: none */
  int made_dtype;
  int order[XFER_MAX_DIMS]; /* order[k]: the tensor's dim that is dim k of the local tensor */
  bool whole;               /* every rank that has any of it has all */
  bool with_last_layer;     /* it is on the stage of the last layer */
  bool own_names;           /* it has the checkpoint's own name and layer number */
  bool own_number;          /* it has the checkpoint's layer number */
  bool each_expert;         /* each expert is a local tensor, which lacks the tensor's dim 0 */
  bool flat;            /* the local tensor lacks the tensor's last dim, which has one element */
  const xfi_grid *grid; /* how the ranks of a stage share it */
  int slot, n_slots;    /* which of the weights that share the local tensor it is, by their first
                           slabs */
  bool last_expert;     /* the weight is one expert, behind the rank's others in its dim 0 */
  int n_beside;         /* weights of the other kind in the local tensor: in its last expert if
                           this one is not, and the other way round */
  int fuse_dim;         /* the dim of the tensor that counts rows */
  xfi_fusing fusing;    /* how its rows lie in the local tensor; n_slabs 0: as they are */
} xfi_slot;

void xfi_slot_free(xfi_slot *slot);

/* Which of all weights in its local tensor it is, with those of a last expert behind the others. */
static inline int xfi_slot_number(const xfi_slot *slot)
{
  return slot->slot + (slot->last_expert ? slot->n_beside : 0);
}

/* Which dim of the tensor is dim k of its local tensor; -1: none (the dim of experts, if the tensor
 * is one expert). */
static inline int xfi_slot_dim(const xfi_slot *slot, int k)
{
  const int at = k + slot->each_expert - slot->last_expert;

  return at < 0 || at >= XFER_MAX_DIMS ? -1 : slot->order[at];
}

/* How a side holds an entry. */
typedef struct xfi_holding {
  xfi_slot slot;
  xfer_layout **layouts; /* [n_layers or 1] */
  bool misc;           /* the framework has no such tensor: a named buffer or a callback takes it */
  bool unknown;        /* no rule holds it, so every rank of the side has it whole */
  bool hook;           /* the framework computes other values from it */
  bool absent;         /* the side does not have it */
  bool scales_dropped; /* these are scales, and the side has their weights in a type without scales;
                          then `absent` is set too */
  int64_t less;        /* the side's values are the checkpoint's minus this */
} xfi_holding;

/* The ranks that hold an entry: those of some stages, one rank, or all. */
typedef struct xfi_holders {
  int first_stage, last_stage; /* these two alone if `ends`, else those between too */
  bool ends;
  bool all;
  int one_rank; /* -1: not one alone */
} xfi_holders;

/* A side's rules for one model. */
typedef struct xfi_placing {
  const xfer_side *side;
  const xfer_model *model;
  const xfi_local_rule **rules; /* the family's for this side, then the side's */
  size_t n_rules, rules_cap;
  xfi_var *vars; /* the words that families set for this side */
  size_t n_vars, vars_cap;
  xfi_scope scopes[2]; /* vars, then the SPEC's items; then the model's */
  /* what {block} stands for in a name; NULL: nothing */
  const char *layer_prefix, *extra_layer_prefix;
  const int *stages;  /* [model->n_layers] virtual */
  xfer_mesh **meshes; /* that entries share: a handful for each stage */
  size_t n_meshes, meshes_cap;
} xfi_placing;

xfer_status xfi_placing_open(xfi_placing *placing, const xfer_side *side, const xfer_model *model,
                             const int *stages);
void xfi_placing_close(xfi_placing *placing);

xfer_status xfi_holding_make(xfi_holding *held, xfi_placing *placing, size_t entry);
void xfi_holding_free(xfi_holding *held, const xfi_entry *entry);

/* The rule that applies to an entry, and the values of its expressions. */
typedef struct xfi_ruling {
  const xfi_local_rule *rule; /* NULL: none */
  int64_t is[XFI_N_TRAITS];
} xfi_ruling;

/* naming.c: the rule of an entry, and the local tensor that it names. */
xfer_status xfi_rule_find(xfi_ruling *ruling, const xfi_placing *placing, const xfi_entry *entry);
/* Fails, with what is missing, if a rule would apply to the entry if its layer were complete. */
xfer_status xfi_rule_missing(const xfi_placing *placing, const xfi_entry *entry);
xfer_status xfi_slot_make(xfi_slot *slot, const xfi_placing *placing, const xfi_entry *entry,
                          const xfi_ruling *ruling);
/* An expression of a rule about an entry; NULL is 0. */
xfer_status xfi_placing_eval(int64_t *value, const xfi_placing *placing, const xfi_entry *entry,
                             const char *expr);

/* spread.c: how the ranks of a stage hold it. */
xfer_status xfi_spread_make(xfi_spread *spread, const xfi_placing *placing, const xfi_entry *entry,
                            const xfi_ruling *ruling, const xfi_slot *slot, int layer);
/* Tensor parallelism splits `dim` evenly; negative: whole. For xfer_side_place(). */
xfer_status xfi_spread_place(xfi_spread *spread, const xfi_placing *placing, const xfi_entry *entry,
                             int dim);

/* Does the pattern, a text, match the name in the entry's k-th layer? */
xfer_status xfi_entry_matches(bool *matches, const xfi_entry *entry, int k, const void *pattern);
/* Does it match any name that the entry stands for? */
xfer_status xfi_entry_touches(bool *touches, const xfi_entry *entry, const char *pattern);

#endif
