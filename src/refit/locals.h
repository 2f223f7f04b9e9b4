/* The framework tensors of one rank: which it has, what was handed in, and the resulting views. */
#ifndef XFI_LOCALS_H
#define XFI_LOCALS_H

#include "alloc.h"
#include "join.h"

typedef struct xfi_local_tensor {
  char *name;
  int side;
  int expert; /* the checkpoint's number of the one expert in it; -1 */
  xfer_dtype dtype;
  int n_dims;
  int64_t shape[XFER_MAX_DIMS];
  int dims[XFER_MAX_DIMS];        /* dims[k]: the dim of its tensors that is its dim k */
  int64_t strides[XFER_MAX_DIMS]; /* in bytes, as handed in */
  size_t n_bytes;                 /* if it is dense */
  size_t first_part;              /* in locals->parts */
  int n_parts;
  void *base;    /* NULL: not handed in */
  bool given;    /* handed in, and nothing is wrong with it */
  bool wrong;    /* handed in, with problems */
  bool left_out; /* handed in under a name that the side ignores */
  bool misc;
  bool unused; /* the framework has it, but nothing of it moves: it is in no list, but may be handed
                * in
                */
  char *made;  /* misc: the name of the tensor that the framework makes of it */
  int made_dtype;
  void *owned; /* memory of a misc tensor that the library took; `free` gives it back */
  void (*free)(void *memory);
} xfi_local_tensor;

/* Something that is wrong with what was handed in. */
typedef struct xfi_local_problem {
  char *text;
  const xfi_local_tensor *of; /* NULL: no local tensor has the name */
  bool is_missing;            /* it was missing at the last bind */
} xfi_local_problem;

/* A local tensor's name and its place in the list. */
typedef struct xfi_name_ref {
  const char *name;
  size_t at;
} xfi_name_ref;

int xfi_compare_names(const void *a, const void *b);

struct xfer_locals {
  const xfer_refit *refit;
  int rank;
  xfi_local_tensor *at;
  size_t n, capacity;
  size_t n_listed; /* the others are unused */
  xfer_local_part *parts;
  size_t n_parts, parts_capacity;
  xfi_name_ref *by_name[2]; /* [n_by_name] of each side, ascending */
  size_t n_by_name[2];
  int64_t *local_of[2]; /* [n_tensors] the (first) local tensor of a tensor; -1: none */
  bool *moved;          /* [n_tensors] something of it was handed in since the last bind */
  uint64_t bound_to;    /* the serial number of the plan of that bind; 0: there was none */
  void **pieces[2];     /* of the views returned last, source and destination */
  size_t pieces_capacity[2];
  xfi_local_problem *problems;
  size_t n_problems, problems_capacity;
  const void *tied[2]; /* each side's second name of the embedding: where it is; NULL: not given */
  size_t n_ignored;
  xfer_misc_fn misc_fn;
  void *misc_context;
};

xfer_status xfi_locals_create(xfer_locals **locals, const xfer_refit *refit, int rank);
void xfi_locals_destroy(xfer_locals *locals);

/* Gives it the strides of a dense, row-major tensor. */
void xfi_local_make_dense(xfi_local_tensor *local);

/* give.c: takes a tensor that the caller hands in. What is wrong with it becomes a problem; if it
 * comes `again`, in place of one handed in before, it is XFER_ERR_MISMATCH at once. */
xfer_status xfi_locals_give(xfer_locals *locals, int side, const char *name, xfer_dtype dtype,
                            void *base, const int64_t *shape, const int64_t *strides, int n_dims,
                            bool again);
/* Makes problems of what is missing; misc tensors are not missing if a callback takes them. */
xfer_status xfi_locals_complete(xfer_locals *locals);
/* Allocates the misc tensors that a callback takes. */
xfer_status xfi_locals_own(xfer_locals *locals, const xfi_host_memory *memory);

/* view.c: *has is 0 where the rank has no part of the tensor on that side, or an empty one. Pieces
 * are valid until the next call for the same side. */
xfer_status xfi_locals_view(xfer_locals *locals, size_t tensor, int side, xfer_view *view,
                            bool *has);

#endif
