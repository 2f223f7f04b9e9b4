/* The local tensor of an entry: its name, and how the rows of the entry lie in it. */
#ifndef XFI_SLOT_H
#define XFI_SLOT_H

#include "fusing.h"
#include "placing.h"

/* The place of an entry's rows among the framework's own tensors. */
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
  int slot, n_slots;    /* the entry's number among the weights that share the local tensor, in the
                           order of their first slabs, and how many weights these are */
  bool last_expert;     /* the weight is one expert, behind the rank's others in its dim 0 */
  int n_beside;         /* weights of the other kind in the local tensor: in its last expert if
                           this one is not, and the other way round */
  int fuse_dim;         /* the dim of the tensor that counts rows */
  xfi_fusing fusing;    /* how its rows lie in the local tensor; n_slabs 0: as they are */
} xfi_slot;

xfer_status xfi_slot_make(xfi_slot *slot, const xfi_placing *placing, const xfi_entry *entry,
                          const xfi_ruling *ruling);
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

#endif
