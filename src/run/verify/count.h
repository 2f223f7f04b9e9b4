/*
 * Digests of a plan's tensors, and what follows from them: that the replicas of a source are equal,
 * and that destinations hold what sources do.
 *
 * All of it is sums over elements (kernels/digest.h) that ranks add up: each counts what it holds
 * with a factor, and factors are such that the total is a tensor's digest, or 0 where all is well.
 * So ranks exchange one sum for the whole plan, and look for the tensor and the index only when it
 * is not 0.
 */
#ifndef XFI_COUNT_H
#define XFI_COUNT_H

#include "bound_plan.h"

/* What is counted of a tensor. */
typedef enum xfi_count {
  XFI_COUNT_SRC,         /* each element once: the digest of a side */
  XFI_COUNT_DST,         /* likewise */
  XFI_COUNT_REPLICAS,    /* 0 if replicas of the source are equal */
  XFI_COUNT_MOVED,       /* 0 if every destination holds what the source does */
  XFI_COUNT_RUN,         /* both of these */
  XFI_COUNT_OWN_REPLICA, /* the first place of this rank's that counts so: for one element */
  XFI_COUNT_OWN_SRC,
  XFI_COUNT_OWN_DST
} xfi_count;

/* Elements of a tensor, by global index, and of replicas by the unit of their box: what one place
 * of a rank's says of an element another may say too. */
enum { XFI_WITHIN_UNIT = XFER_MAX_DIMS };
typedef struct xfi_within {
  int64_t lo[XFER_MAX_DIMS + 1];
  int64_t hi[XFER_MAX_DIMS + 1];
} xfi_within;

/* A growing list of boxes. */
typedef struct xfi_counted {
  xfi_digest_box *at;
  size_t n;
  size_t capacity;
} xfi_counted;

/* Append what this rank counts of a tensor. `within` NULL: of all of it. */
xfer_status xfi_count_add(xfi_counted *list, const xfer_plan *plan, size_t tensor, uint32_t slot,
                          xfi_count what, const xfi_within *within);

/* Make ready what this rank counts of tensors [first, first + n), in so many slots. */
xfer_status xfi_count_make(xfi_digest **digest, const xfer_plan *plan, size_t first, size_t n,
                           xfi_count what, const xfi_within *within);
/* Count them into sums[n] and wait for it. */
xfer_status xfi_count_now(xfi_sum *sums, const xfer_plan *plan, size_t first, size_t n,
                          xfi_count what, const xfi_within *within, xfer_stream stream);

/* Add, and is it 0? */
void xfi_sum_add(xfi_sum *sum, xfi_sum other);
bool xfi_sum_is_zero(xfi_sum sum);

/* ---- verify.c ---- */

/* Make ready what a run of a plan with XFER_PLAN_VERIFY counts, again after a bind; and give it
 * back. */
xfer_status xfi_verify_prepare(xfer_plan *plan);
void xfi_verify_drop(xfer_plan *plan);
/* Enqueue it; nothing where plan->verify is NULL. */
xfer_status xfi_verify_start(const xfer_plan *plan, xfer_stream stream);
/* This rank's total, once the run is done on it. */
xfi_sum xfi_verify_mine(const xfer_plan *plan);
/* Of the totals in plan->words. All ranks. */
xfer_status xfi_verify_outcome(const xfer_plan *plan, xfi_deadline deadline);

/* Tensor by tensor, weighted so that what is wrong in one does not make up for another. */
xfi_sum xfi_verify_total(const xfi_sum *sums, size_t n);
/* All ranks, whose sums of a count that should be 0 did not come to that: finds the first tensor,
 * index and ranks. XFER_ERR_MISMATCH names them. */
xfer_status xfi_verify_explain(const xfer_plan *plan, const xfi_sum *sums, xfi_count what,
                               xfi_deadline deadline);

#endif
