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
  XFI_COUNT_SRC,      /* each element once: the digest of the source */
  XFI_COUNT_DST,      /* each element once: the digest of the destination */
  XFI_COUNT_REPLICAS, /* 0 if replicas of the source are equal */
  XFI_COUNT_MOVED,    /* 0 if every destination holds what the source does */
  XFI_COUNT_RUN,      /* what XFI_COUNT_REPLICAS and XFI_COUNT_MOVED count */
  /* Counts of one element, to find ranks that differ: the first place at which this rank has it as
   * a replica of the source, in the source, and in the destination. */
  XFI_COUNT_OWN_REPLICA,
  XFI_COUNT_OWN_SRC,
  XFI_COUNT_OWN_DST
} xfi_count;

/* A box of a tensor's elements, by global index. In counts of replicas it limits the units of a
 * layout by boxes too, at XFI_WITHIN_UNIT: a rank may hold an element in several units. */
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

/* What is to be counted: of the tensors [first, first + n) of a plan, `within` a box of each; NULL:
 * of the whole tensors. */
typedef struct xfi_counting {
  const xfer_plan *plan;
  size_t first;
  size_t n;
  xfi_count what;
  const xfi_within *within;
} xfi_counting;

/* Append what this rank counts of the i-th of these tensors, for the sum with that index. */
xfer_status xfi_count_add(xfi_counted *list, const xfi_counting *counting, size_t i);
/* Prepare what this rank counts, a sum for each tensor. */
xfer_status xfi_count_make(xfi_digest **digest, const xfi_counting *counting);
/* Count the same into sums[n], and wait until that is done. */
xfer_status xfi_count_now(xfi_sum *sums, const xfi_counting *counting, xfer_stream stream);

/* Add `other` to *sum; and is a sum 0? */
void xfi_sum_add(xfi_sum *sum, xfi_sum other);
bool xfi_sum_is_zero(xfi_sum sum);

/* ---- verify.c ---- */

/* Prepare, at each commit, what a run of a plan with XFER_PLAN_VERIFY counts; and free it. */
xfer_status xfi_verify_prepare(xfer_plan *plan);
void xfi_verify_drop(xfer_plan *plan);
/* Enqueue the count; does nothing if plan->lanes.verify is NULL. */
xfer_status xfi_verify_start(const xfer_plan *plan, xfer_stream stream);
/* This rank's total, once the run has ended on it. */
xfi_sum xfi_verify_mine(const xfer_plan *plan);
/* Do the totals of all ranks, in plan->run.results, add up to 0? If not, explains it. Collective.
 */
xfer_status xfi_verify_outcome(const xfer_plan *plan, xfi_deadline deadline);

/* The sum over tensors, each with a weight of its own, so that errors in two tensors do not cancel
 * out. */
xfi_sum xfi_verify_total(const xfi_sum *sums, size_t n);
/* When a count that should be 0 is not: finds the first tensor and index that differ, and the
 * ranks. XFER_ERR_MISMATCH names them. Collective. */
xfer_status xfi_verify_explain(const xfer_plan *plan, const xfi_sum *sums, xfi_count what,
                               xfi_deadline deadline);

#endif
