/*
 * Plans that a comm keeps for calls that plan, bind and run in one. Every rank keeps the same, at
 * the same places.
 */
#include "direct.h"
#include "object.h"

#include <string.h>

static xfi_kept *free_entry(xfer_comm *comm)
{
  xfi_kept *oldest = &comm->kept[0];

  for (int i = 0; i < comm->n_kept; i++) {
    if (comm->kept[i].plan == NULL) return &comm->kept[i];
    if (comm->kept[i].used < oldest->used) oldest = &comm->kept[i];
  }
  if (comm->n_kept < XFI_CACHE_PLANS) return &comm->kept[comm->n_kept++];
  xfi_run_destroy(oldest->plan);
  oldest->plan = NULL;
  return oldest;
}

xfi_kept *xfi_kept_make(xfer_plan_options *options, xfer_comm *comm, const uint64_t src[2],
                        const uint64_t dst[2], bool mapped)
{
  xfi_kept *k = free_entry(comm);

  *options = (xfer_plan_options)XFER_PLAN_OPTIONS_INIT;
  options->timeout_ms = comm->timeout_ms;
  if (!mapped && comm->transport->ops->round != NULL) options->lane = XFER_LANE_PACKED;
  memcpy(k->src, src, sizeof k->src);
  memcpy(k->dst, dst, sizeof k->dst);
  k->mapped = mapped;
  return k;
}

xfer_status xfi_kept_check(const xfer_comm *comm, xfer_stream stream)
{
  xfer_status st = XFER_OK;

  for (int i = 0; i < comm->n_kept && st == XFER_OK; i++) {
    const xfer_plan *plan = comm->kept[i].plan;

    if (plan != NULL && plan->state == XFI_RUNNING)
      st = xfi_direct_check(plan->direct, plan->epoch);
  }
  return st == XFER_OK ? comm->device->ops->stream_check(comm->device, stream) : st;
}

xfer_status xfi_kept_run(xfer_comm *comm, xfi_kept *k, xfer_stream stream)
{
  xfer_status st = xfi_run_start(k->plan, k->plan->version + 1, stream);

  if (st != XFER_OK) (void)xfi_run_follow(k->plan, stream); /* tells the others; keeps the text */
  if (st == XFER_OK && comm->device->ops->is_synchronous) st = xfi_run_follow(k->plan, stream);
  return st;
}
