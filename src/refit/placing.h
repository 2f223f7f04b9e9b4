/*
 * One entry on one side: which rule holds it, in which local tensor its rows lie, on which stages,
 * and the layouts that come of it.
 */
#ifndef XFI_PLACING_H
#define XFI_PLACING_H

#include "cuts.h"
#include "layout.h"

/* Where a rank's part lies in the framework's own tensors. */
typedef struct xfi_slot {
  char *local; /* the local tensor's name, with {layer} and {expert} or {local} */
  char *last;  /* its name on the last stage where that differs, else NULL */
  char *made;  /* what the framework makes of it, likewise; NULL: nothing */
  int made_dtype;
  int order[XFER_MAX_DIMS]; /* order[k]: the tensor's dim that is dim k of the local tensor */
  bool whole;               /* no rank has a part of it alone */
  bool with_last_layer;     /* it is where the last layer is */
  bool own_names;           /* the checkpoint's own name and number of the layer */
  bool own_number;          /* the number alone */
  bool each_expert;         /* one local tensor per expert; dim 0 is none of theirs */
  bool flat;                /* its last dim, of one element, is none of the local tensor's */
  const xfi_grid *grid;     /* the ranks of a stage, as they share it */
  int slot, n_slots;        /* of the weights that lie in one, by their first block */
  bool last_expert;         /* these are one expert, after those of the rank in its dim 0 */
  int n_beside;             /* weights of the others there; of these, where it is one of them */
  int fuse_dim;             /* a dim of the tensor: the rows */
  xfi_fusing fusing;        /* of the rows; n_blocks 0: they are the part as it is */
} xfi_slot;

void xfi_slot_free(xfi_slot *slot);

/* Which it is of all weights in its local tensor, the last expert's after the others. */
static inline int xfi_slot_number(const xfi_slot *slot)
{
  return slot->slot + (slot->last_expert ? slot->n_beside : 0);
}

/* The tensor's dim that is dim k of its local tensor; -1: none is, as where it is one expert. */
static inline int xfi_slot_dim(const xfi_slot *slot, int k)
{
  const int at = k + slot->each_expert - slot->last_expert;

  return at < 0 || at >= XFER_MAX_DIMS ? -1 : slot->order[at];
}

/* How a side holds an entry. */
typedef struct xfi_holding {
  xfi_slot slot;
  xfer_layout **layouts; /* [n_layers or 1] */
  bool misc;             /* no tensor of the framework's: a named buffer or a callback takes it */
  bool unknown;          /* no rule holds it: whole, on every rank of the side */
  bool hook;             /* the framework makes other values of it */
  bool absent;           /* the side has none of it */
  bool made;             /* likewise, since they are scales of weights that it has unquantised */
  int64_t less;          /* the side's values are the checkpoint's less this */
} xfi_holding;

/* Ranks that hold an entry together: those of some stages, one rank, or all. */
typedef struct xfi_holders {
  int first_stage, last_stage; /* both, if `ends`; else all between */
  bool ends;
  bool all;
  int one_rank; /* -1: not one alone */
} xfi_holders;

/* What a side's rules say of one model. */
typedef struct xfi_placing {
  const xfer_side *side;
  const xfer_model *model;
  const xfi_local_rule **rules; /* the family's for this side, then the side's */
  size_t n_rules, rules_cap;
  xfi_var *set; /* the family's words for this side */
  size_t n_set, set_cap;
  xfi_scope scopes[2];       /* set, then items; then the model's */
  const char *block, *extra; /* what {block} is in the model's own layers, and in extra ones */
  const int *stages;         /* [model->n_layers] virtual */
  xfer_mesh **meshes;        /* that entries share: a handful for each stage */
  size_t n_meshes, meshes_cap;
} xfi_placing;

xfer_status xfi_placing_open(xfi_placing *placing, const xfer_side *side, const xfer_model *model,
                             const int *stages);
void xfi_placing_close(xfi_placing *placing);

xfer_status xfi_holding_make(xfi_holding *held, xfi_placing *placing, size_t entry);
void xfi_holding_free(xfi_holding *held, const xfi_entry *entry);

/* The rule that holds for an entry, and what its expressions come to there. */
typedef struct xfi_ruling {
  const xfi_local_rule *rule; /* NULL: none */
  int64_t is[XFI_N_TRAITS];
} xfi_ruling;

/* naming.c: the rule of an entry, and the local tensor that it names. */
xfer_status xfi_rule_find(xfi_ruling *ruling, const xfi_placing *placing, const xfi_entry *entry);
/* An entry that would have a rule if its layer were complete: refused, with what it lacks. */
xfer_status xfi_rule_missing(const xfi_placing *placing, const xfi_entry *entry);
xfer_status xfi_slot_make(xfi_slot *slot, const xfi_placing *placing, const xfi_entry *entry,
                          const xfi_ruling *ruling);
/* An expression of a rule about an entry; NULL is 0. */
xfer_status xfi_placing_eval(int64_t *value, const xfi_placing *placing, const xfi_entry *entry,
                             const char *expr);

/* spread.c: how the ranks of a stage hold it. */
xfer_status xfi_spread_make(xfi_spread *spread, const xfi_placing *placing, const xfi_entry *entry,
                            const xfi_ruling *ruling, const xfi_slot *slot, int layer);
/* Tensor parallelism splits `dim` evenly; negative: whole. For what xfer_side_place() says. */
xfer_status xfi_spread_place(xfi_spread *spread, const xfi_placing *placing, const xfi_entry *entry,
                             int dim);

/* Does the pattern, a text, fit the name in the entry's k-th layer? */
xfer_status xfi_entry_matches(bool *matches, const xfi_entry *entry, int k, const void *pattern);
/* Any name that the entry stands for? */
xfer_status xfi_entry_touches(bool *touches, const xfi_entry *entry, const char *pattern);

#endif
