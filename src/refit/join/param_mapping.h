/* The local tensor of an entry: its name, and how the rows of the entry lie in it. */
#ifndef XFI_PARAM_MAPPING_H
#define XFI_PARAM_MAPPING_H

#include "fused_rows.h"
#include "rule_set.h"

/* The place of an entry's rows among the framework's own tensors. */
typedef struct xfi_param_mapping {
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
  int index, n_weights; /* the entry's number among the weights that share the local tensor, in
                        the order of their first slabs, and how many weights these are */
  bool last_expert;     /* the weight is one expert, behind the rank's others in its dim 0 */
  int n_other_weights;  /* weights of the other kind in the local tensor: in its last expert if
                    this one is not, and the other way round */
  int row_dim;          /* the dim of the tensor that counts rows */
  xfi_fused_rows fused; /* how its rows lie in the local tensor; n_slabs 0: as they are */
} xfi_param_mapping;

xfer_status xfi_param_mapping_make(xfi_param_mapping *mapping, const xfi_rule_set *set,
                                   const xfi_entry *entry, const xfi_applied_rule *applied);
void xfi_param_mapping_free(xfi_param_mapping *mapping);

/* Which of all weights in its local tensor it is, with those of a last expert behind the others. */
static inline int xfi_param_mapping_number(const xfi_param_mapping *mapping)
{
  return mapping->index + (mapping->last_expert ? mapping->n_other_weights : 0);
}

/* Which dim of the tensor is dim k of its local tensor; -1: none (the dim of experts, if the tensor
 * is one expert). */
static inline int xfi_param_mapping_dim(const xfi_param_mapping *mapping, int k)
{
  const int at = k + mapping->each_expert - mapping->last_expert;

  return at < 0 || at >= XFER_MAX_DIMS ? -1 : mapping->order[at];
}

#endif
