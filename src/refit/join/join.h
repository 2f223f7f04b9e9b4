/*
 * The join: for each entry of a model and each side its local tensor and its layouts, and from them
 * the tensors of a plan. An entry has one layout per pipeline stage, shared by all its layers
 * there, so that the work is that of a few dozen entries and not of 140,000 tensors.
 */
#ifndef XFI_JOIN_H
#define XFI_JOIN_H

#include "held_entry.h"

/* Entries of a side that share local tensors: by_name[begin .. end), in the order of the weights
 * there.
 */
typedef struct xfi_entry_group {
  size_t begin;
  size_t end;
} xfi_entry_group;

/* One side of a join: how it holds each entry of the model. */
typedef struct xfi_joined_side {
  xfer_side *side; /* NULL: this rank does not know the side */
  xfi_rule_set set;
  int *stages;          /* [model->n_layers] virtual */
  xfi_held_entry *held; /* [n_entries] */
  size_t *by_name;      /* [n_entries] sorted by local tensor, then by the weight's index there */
  xfi_entry_group *groups;
  size_t n_groups;
} xfi_joined_side;

/* Where a tensor comes from. */
typedef struct xfi_origin {
  size_t entry;
  int place;
  char *hf_name; /* its name in the checkpoint; NULL: the same as the tensor's */
} xfi_origin;

struct xfer_refit {
  xfer_model *model;
  xfi_joined_side sides[2]; /* xfer_refit_side */
  xfer_tensor *tensors;
  size_t n_tensors;
  xfi_origin *origins; /* [n_tensors] */
  int64_t **tensor_of; /* [n_entries][places] index of the tensor; -1: ignored */
  size_t n_ignored;
  size_t n_absent; /* how many of these a side is known not to hold */
};

xfer_status xfi_refit_create(xfer_refit **refit, xfer_model *model, const xfer_side *train,
                             const xfer_side *gen);
void xfi_refit_destroy(xfer_refit *refit);

/* local_groups.c: finds the groups. */
xfer_status xfi_joined_side_group(xfi_joined_side *joined, const xfer_model *model);
/* Check that every weight of a local tensor occurs once, and that of weights in one tensor all or
 * none are ignored.
 */
xfer_status xfi_joined_side_check(const xfer_refit *refit, const xfi_joined_side *joined);

#endif
