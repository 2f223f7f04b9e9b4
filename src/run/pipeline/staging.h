/*
 * What the plans of one comm share: the slots of their pipelines, one block as large as the most
 * demanding plan needs, and a count by which ranks tell their plans apart.
 *
 * Steps have addresses in the block, so a larger block means new steps for all plans: the commit
 * that needs it makes them, once nothing is under way in the old one. On streams a run that uses
 * the block comes after the last run of another plan that used it.
 */
#ifndef XFI_STAGING_H
#define XFI_STAGING_H

#include "bound_plan.h"

/* Who allocates memory for slots; all NULL: the device. */
typedef struct xfi_giver {
  xfer_alloc_fn alloc;
  xfer_free_fn free;
  void *context;
} xfi_giver;

/* Memory, and whom it came from; all zero: none. */
typedef struct xfi_lent {
  char *at;
  size_t n_bytes;
  xfi_giver from;
} xfi_lent;

struct xfi_plans {
  xfi_comm *comm;
  xfi_device *device;
  uint64_t n_created; /* the same on every rank */
  uint64_t n_turns;   /* runs that send, of the caller's plans; likewise, if in one order */
  xfi_giver giver;    /* for the next block */
  xfi_lent slots;
  uint64_t offered_bytes; /* all plans' offers, which have blocks of their own */
  xfer_plan *first;       /* list, by xfer_plan.next, of the plans that use `slots` */
  xfer_plan *last;        /* the one whose run used them last; NULL: none */
};

/* Allocate from the present giver; and free by the one that it came from. Memory that a transport
 * may still touch is abandoned instead. */
xfer_status xfi_staging_take(xfi_lent *block, const xfi_plans *plans, size_t n_bytes);
void xfi_staging_give(const xfi_plans *plans, xfi_lent *block);
/* Leak it, since something may still touch it. */
void xfi_staging_abandon(xfi_lent *block);
/* Give slots to a pipeline that is about to become the plan's. If the block was too small there is
 * a new one, and the slots of the other plans are gone. */
xfer_status xfi_staging_join(xfer_plan *plan, xfi_pipeline *pipeline);
/* The plan needs slots no more, and none of its runs is under way. The last one frees the block. */
void xfi_staging_leave(xfer_plan *plan);
/* A run of the plan uses the block from now on: it comes after the returned event, unless NULL. */
xfi_event *xfi_staging_turn(xfer_plan *plan);
/* Abandon the block, since something of a failed run may never end. */
void xfi_staging_lose(xfi_plans *plans);
/* Whether that happened after the plan was committed. */
bool xfi_staging_is_lost(const xfer_plan *plan);

#endif
