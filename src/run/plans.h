/*
 * What the plans of one comm share: the counts that number plans, lanes and runs, the plans whose
 * run failed, and the slots of their pipelines.
 */
#ifndef XFI_PLANS_H
#define XFI_PLANS_H

#include "bound_plan.h"

/* The caller's functions that allocate slots; all NULL: the device does. */
typedef struct xfi_allocator {
  xfer_alloc_fn alloc;
  xfer_free_fn free;
  void *context;
} xfi_allocator;

/* A block of memory, and its allocator; all zero: there is no block. */
typedef struct xfi_staging_block {
  char *at;
  size_t n_bytes;
  xfi_allocator from;
} xfi_staging_block;

struct xfi_plans {
  xfi_comm *comm;
  xfi_device *device;
  uint64_t timeout_ms;  /* of the comm's own calls, and of plans that set none */
  uint64_t n_created;   /* number of plans made, which numbers them; the same on every rank */
  uint64_t n_lanes;     /* how often lanes were made, for all plans; the same on every rank */
  uint64_t n_sequenced; /* runs that send messages (xfi_run_take_sequence()); the same on every rank
                         * if all run their plans in one order */
  uint64_t n_agreed;    /* the most such runs that any rank had counted when ranks last agreed */
  xfer_plan *failed;    /* the caller's plans whose run failed or did not begin on this rank, until
                         * it is settled, a list by run.next_failed */
  xfi_allocator allocator; /* the allocator of the next block */
  xfi_staging_block slots;
  uint64_t snapshot_bytes; /* size of all plans' snapshots, which have blocks of their own */
  xfer_plan *first;        /* the plans that use `slots`, a list by xfer_plan.next */
  xfer_plan *last;         /* the plan whose run used `slots` last; NULL: no run has */
  bool is_ending;          /* the comm ends, and its plans are destroyed one after the other */
  xfi_deadline abort_by; /* the deadline that their aborts share; at_ns 0: there was no abort yet */
};

/* Wait until the last run, which may not have been waited for, has ended on this rank. */
xfer_status xfi_run_await_last(const xfer_plan *plan);

#endif
