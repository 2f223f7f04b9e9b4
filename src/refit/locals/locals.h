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
  int dims[XFER_MAX_DIMS]; /* dim k of the local tensor is dim dims[k] of the model's tensor */
  int64_t strides[XFER_MAX_DIMS]; /* in bytes, as handed in */
  size_t n_bytes;                 /* its size if it is dense */
  size_t first_part;              /* in locals->parts */
  int n_parts;
  void *base;    /* NULL: not handed in */
  bool given;    /* handed in without problems */
  bool wrong;    /* handed in, with problems */
  bool left_out; /* handed in under a name that the side ignores */
  bool misc;
  bool unused; /* nothing of it moves, so it is not listed; it may be handed in all the same */
  char *made;  /* misc: the name of the tensor that the framework computes from it */
  int made_dtype;
  void *owned; /* memory of a misc tensor, which the library allocated; `free` frees it */
  void (*free)(void *memory);
} xfi_local_tensor;

/* A problem with a tensor that was handed in or is missing. */
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
  bool *moved;          /* [n_tensors] a part of it was handed in since the last bind */
  uint64_t bound_to;    /* the serial number of the plan of that bind; 0: there was none */
  void **pieces[2];     /* of the views returned last, source and destination */
  size_t pieces_capacity[2];
  xfi_local_problem *problems;
  size_t n_problems, problems_capacity;
  const void *tied[2]; /* each side's address of the tensor under the embedding's second name; NULL:
                          not handed in */
  size_t n_ignored;
  xfer_misc_fn misc_fn;
  void *misc_context;
};

xfer_status xfi_locals_create(xfer_locals **locals, const xfer_refit *refit, int rank);
void xfi_locals_destroy(xfer_locals *locals);

/* Sets the strides to those of a dense, row-major tensor. */
void xfi_local_make_dense(xfi_local_tensor *local);

/* A tensor that the caller hands in. */
typedef struct xfi_given {
  const char *name;
  xfer_dtype dtype;
  void *base;
  const int64_t *shape, *strides; /* [n_dims]; strides NULL: dense */
  int n_dims;
  bool again; /* it replaces one handed in before */
} xfi_given;

/* give.c: takes it. An error becomes a problem in the list; but if `again`, it is returned at once
 * as XFER_ERR_MISMATCH. */
xfer_status xfi_locals_give(xfer_locals *locals, int side, const xfi_given *given);
/* Adds a problem for each missing tensor. Misc tensors are not missing if there is a callback that
 * takes them. */
xfer_status xfi_locals_complete(xfer_locals *locals);
/* Allocates the misc tensors that a callback takes. */
xfer_status xfi_locals_own(xfer_locals *locals, const xfi_host_memory *memory);

/* view.c: *has is 0 where the rank has no part of the tensor on that side, or an empty one. Pieces
 * are valid until the next call for the same side. */
xfer_status xfi_locals_view(xfer_locals *locals, size_t tensor, int side, xfer_view *view,
                            bool *has);

#endif
