/*
 * What the plans of one comm share: the slots of their pipelines, in one block as large as the most
 * demanding plan needs, and a count that numbers the plans.
 *
 * Steps have addresses in the block, so a larger block means new steps for all plans: the commit
 * that needs it makes them, once nothing is in flight in the old one. On streams a run that uses
 * the block comes after the last run of another plan that used it.
 */
#ifndef XFI_STAGING_H
#define XFI_STAGING_H

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

/* How much of max_staging_bytes each of packed rounds and broadcasts may use: half of it if a plan
 * has both, since a rank's slots hold the larger step of either, each way. */
uint64_t xfi_plan_staging_share(const xfer_plan *plan);

/* Allocate a block by plans->allocator; and free a block by its own allocator, or leak it if the
 * transport may still read or write it. */
xfer_status xfi_staging_alloc(xfi_staging_block *block, const xfi_plans *plans, size_t n_bytes);
void xfi_staging_free(const xfi_plans *plans, xfi_staging_block *block);
/* Leak the block, since something may still read or write it. */
void xfi_staging_abandon(xfi_staging_block *block);
/* Give slots to a pipeline that is about to become the plan's. If the block is too small, a new one
 * is made, and the caller gives the other plans' steps their addresses in it. */
xfer_status xfi_staging_attach(xfer_plan *plan, xfi_pipeline *pipeline);
/* The plan, which has no run in flight, needs no slots any more. The last plan frees the block. */
void xfi_staging_detach(xfer_plan *plan);
/* Called when a run of the plan is about to use the block. Returns the event after which the run
 * has to come; NULL: it need not wait. */
xfi_event *xfi_staging_turn(xfer_plan *plan);
/* Leak the slots of all plans, since some work of a failed run may never end. */
void xfi_staging_leak_slots(xfi_plans *plans);
/* Was the block leaked after the plan was committed? */
bool xfi_staging_is_leaked(const xfer_plan *plan);

#endif
