/*
 * What the plans of one comm share: the slots of their pipelines, one block that is as large as the
 * plan needs that needs most, and a count by which ranks tell their plans apart.
 *
 * Steps have addresses in the block, so a larger one means new steps for all: that is done by the
 * commit that needs it, once nothing is under way in the old one. On streams a run that uses the
 * block comes after the last other plan's that did.
 */
#ifndef XFI_STAGING_H
#define XFI_STAGING_H

#include "bound_plan.h"

/* Who gives memory for slots; all NULL: the device. */
typedef struct xfi_giver {
  xfer_alloc_fn alloc;
  xfer_free_fn free;
  void *context;
} xfi_giver;

/* Memory that is lent by one; zero: none. */
typedef struct xfi_lent {
  char *at;
  size_t n_bytes;
  xfi_giver from;
} xfi_lent;

struct xfi_plans {
  xfi_comm *comm;
  xfi_device *device;
  uint64_t n_created; /* the same on every rank */
  xfi_giver giver;    /* of the next block */
  xfi_lent slots;
  uint64_t offered_bytes; /* of their offers, which are blocks of their own */
  xfer_plan *first;       /* those that have slots there, by xfer_plan.next */
  xfer_plan *last;        /* whose run used them last; NULL: none */
};

/* Memory from whoever gives it now, and back to who gave it, if there is any; what a transport may
 * still touch is left to it. */
xfer_status xfi_staging_take(xfi_lent *block, const xfi_plans *plans, size_t n_bytes);
void xfi_staging_give(const xfi_plans *plans, xfi_lent *block);
/* All of it is left to who may still touch it. */
void xfi_staging_abandon(xfi_lent *block);
/* Slots for a pipeline of the plan's that is not the plan's yet. In another block than before if
 * that was too small: the slots of the other plans are gone. */
xfer_status xfi_staging_join(xfer_plan *plan, xfi_pipeline *pipeline);
/* It needs none any more; nothing of its runs is under way. The last one gives the block back. */
void xfi_staging_leave(xfer_plan *plan);
/* A run of the plan uses the block now: after this event, unless it is NULL. */
xfi_event *xfi_staging_turn(xfer_plan *plan);
/* Something of a run that failed may never end: leave the block to it. */
void xfi_staging_lose(xfi_plans *plans);
/* Was it lost after the plan was committed? */
bool xfi_staging_is_lost(const xfer_plan *plan);

#endif
