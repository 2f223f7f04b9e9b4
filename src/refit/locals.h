/* The framework tensors of one rank: which there are, what was handed in, and the views that come
 * of it. */
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
  int dims[XFER_MAX_DIMS];        /* of its tensors, in the order of its own */
  int64_t strides[XFER_MAX_DIMS]; /* in bytes, as handed in */
  size_t n_bytes;                 /* of a dense one */
  size_t first_part;              /* in locals->parts */
  int n_parts;
  void *base;    /* NULL: not handed in */
  bool given;    /* rightly */
  bool wrong;    /* handed in otherwise: some of the problems are its */
  bool left_out; /* handed in under a name that the side ignores */
  bool misc;
  bool unused; /* of the framework, but nothing of it moves: listed nowhere, and taken if handed in
                */
  char *made;  /* misc: the tensor that the framework makes of it */
  int made_dtype;
  void *owned; /* memory of a misc tensor that the library took; `free` gives it back */
  void (*free)(void *memory);
} xfi_local_tensor;

/* Something that is wrong. */
typedef struct xfi_local_problem {
  char *text;
  const xfi_local_tensor *of; /* its tensor; NULL: of a name that is none's */
  bool is_missing;            /* at the last bind */
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

/* Row-major without gaps. */
void xfi_local_make_dense(xfi_local_tensor *local);

/* give.c. `again`: in place of what was handed in before; what is wrong is XFER_ERR_MISMATCH then,
 * and else a problem. */
xfer_status xfi_locals_give(xfer_locals *locals, int side, const char *name, xfer_dtype dtype,
                            void *base, const int64_t *shape, const int64_t *strides, int n_dims,
                            bool again);
/* Lists what is missing now; misc tensors are not if a callback takes them. */
xfer_status xfi_locals_complete(xfer_locals *locals);
/* Memory for the misc tensors that a callback takes. */
xfer_status xfi_locals_own(xfer_locals *locals, const xfi_host_memory *memory);

/* view.c: *has is 0 where the rank has no part of the tensor on that side, or an empty one. Pieces
 * are valid until the next call for the same side. */
xfer_status xfi_locals_view(xfer_locals *locals, size_t tensor, int side, xfer_view *view,
                            bool *has);

#endif
