/*
 * Exchanges: operations that ranks pair by an id, as tensors of a plan. An operation is a tensor
 * that one rank holds before and one after, so only the agreement differs from that of other plans.
 */
#ifndef XFI_OPERATIONS_H
#define XFI_OPERATIONS_H

#include "comm.h"
#include "vec.h"
#include "xfer/exchange.h"

/* What a search in a list compares. */
typedef struct xfi_op_key {
  uint64_t id;
  int32_t peer;
  uint32_t index; /* the operation's index in the caller's list */
} xfi_op_key;

/* One of the caller's lists. */
typedef struct xfi_op_list {
  const xfer_operation *at; /* the caller's operations, not owned */
  size_t n;
  xfi_op_key *keys; /* [n] sorted by peer, then id */
} xfi_op_list;

typedef struct xfi_operations {
  int rank;
  xfi_op_list sends;
  xfi_op_list recvs;
} xfi_operations;

/* The index of a peer's first key, or where it would be. */
static inline size_t xfi_op_list_find(const xfi_op_list *list, int peer)
{
  size_t lo = 0;
  size_t hi = list->n;

  XFI_BISECT(lo, hi, mid, list->keys[mid].peer < peer);
  return lo;
}

/* Put both lists in order. XFER_ERR_ARG: an id is given twice. */
xfer_status xfi_operations_sort(xfi_operations *ops);
void xfi_operations_free(xfi_operations *ops);

/* ---- agree_operations.c ---- */

/* Collective: every send is somebody's receive and the other way round. `mine` is the result of
 * this rank's own checks, whose text is set. */
xfer_status xfi_operations_agree(xfi_comm *comm, xfer_status mine, const xfi_operations *ops,
                                 const xfer_plan_options *options, xfi_deadline deadline);

/* ---- operations.c ---- */

#define XFI_NO_OPERATION UINT32_MAX

/* Agreed operations as tensors. */
typedef struct xfi_op_tensors {
  xfer_tensor *tensors; /* [n] */
  size_t n;
  uint32_t *order;           /* [n] xfi_moves_options.order: equal on both ends of a pair */
  uint32_t (*operations)[2]; /* [n] indices of its send and its receive, or XFI_NO_OPERATION */
  char (*names)[64];         /* [n] names of the tensors */
  xfer_layout **layouts;     /* [n_layouts] layouts of the tensors, owned */
  size_t n_layouts;
} xfi_op_tensors;

xfer_status xfi_op_tensors_create(xfi_op_tensors *made, const xfi_operations *ops);
void xfi_op_tensors_free(xfi_op_tensors *made);

#endif
