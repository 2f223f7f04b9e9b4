/*
 * The pipeline of a plan: the steps of packed rounds and of broadcasts, in slots of the comm's
 * block, and channels. A commit makes it for all that the direct lane does not carry, and run.c
 * starts it.
 *
 * If the comm's block of slots has to grow, all other plans of the comm get new steps too.
 */
#include "pipeline.h"

#include "alloc.h"
#include "broadcast_list.h"
#include "channels.h"
#include "error.h"
#include "staging.h"

/* Find the bytes that are sent, and the memory that this takes: slots that are large enough for
 * every step, and those of channels. */
static xfer_status measure(xfi_pipeline *p, const xfer_plan *plan)
{
  XFI_TRY(xfi_packed_measure(p, plan));
  xfi_broadcast_measure(p, plan);
  p->staging_bytes = 2 * (p->slot_bytes[0] + p->slot_bytes[1]);
  xfi_channels_measure(plan, &p->sent_bytes, &p->staging_bytes);
  return XFER_OK;
}

/* Make the steps, in the present slots. */
static xfer_status make_steps(xfi_pipeline *p, const xfer_plan *plan)
{
  XFI_TRY(xfi_packed_add(p, plan));
  p->n_rounds = p->n_steps;
  XFI_TRY(xfi_broadcast_add(p, plan));
  return xfi_steps_make_batches(p, plan->device);
}

/* Give slots to the plan. If the block had to grow for that, the comm's other plans move to the new
 * one; a plan for which that fails has to be committed again. */
static xfer_status join_staging(xfi_pipeline *p, xfer_plan *plan)
{
  const char *before = plan->plans->slots.at;

  XFI_TRY(xfi_staging_attach(plan, p));
  if (plan->plans->slots.at == before) return XFER_OK;
  for (xfer_plan *q = plan->plans->first; q != NULL; q = q->next) {
    if (q == plan || q->lanes.pipeline->slots == NULL) continue; /* its slots were leaked before */
    q->lanes.pipeline->slots = plan->plans->slots.at;
    if (xfi_pipeline_rebind(q->lanes.pipeline, q) != XFER_OK) q->lanes.pipeline->slots = NULL;
  }
  return XFER_OK;
}

xfer_status xfi_pipeline_create(xfi_pipeline **pipeline, xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_pipeline *p = NULL;
  xfi_bcasts *bcasts = NULL;

  XFI_TRY_DONE(xfi_bcasts_create(&bcasts, plan)); /* collective */
  p = xfi_calloc(1, sizeof *p);
  XFI_CHECK_DONE(p != NULL, XFER_ERR_NOMEM, "pipeline");
  p->bcasts = bcasts;
  bcasts = NULL;
  XFI_TRY_DONE(measure(p, plan));
  XFI_TRY_DONE(join_staging(p, plan));
  XFI_TRY_DONE(xfi_channels_create(&p->channels, plan));
  XFI_TRY_DONE(make_steps(p, plan));
  XFI_TRY_DONE(xfi_steps_make_streams(p, plan->device));
  *pipeline = p;
  p = NULL;
done:
  xfi_pipeline_destroy(p, plan);
  xfi_bcasts_free(bcasts);
  return st;
}

xfer_status xfi_pipeline_rebind(xfi_pipeline *p, const xfer_plan *plan)
{
  XFI_TRY(xfi_channels_rebind(&p->channels, plan));
  if (p->n_steps == 0) return XFER_OK;
  xfi_steps_clear(p);
  return make_steps(p, plan);
}

void xfi_pipeline_destroy(xfi_pipeline *p, xfer_plan *plan)
{
  if (p == NULL) return;
  xfi_staging_detach(plan);
  xfi_channels_destroy(&p->channels);
  xfi_bcasts_free(p->bcasts);
  xfi_steps_free(p, plan->device);
  xfi_free(p);
}

xfer_status xfi_pipeline_estimate(uint64_t *staging_bytes, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_pipeline p = {0};

  *staging_bytes = 0;
  if (plan->comm != NULL && plan->comm->ops->round == NULL) return XFER_OK;
  XFI_TRY_DONE(xfi_bcasts_list(&p.bcasts, plan));
  XFI_TRY_DONE(measure(&p, plan));
  *staging_bytes = p.staging_bytes;
done:
  xfi_bcasts_free(p.bcasts);
  return st;
}

bool xfi_pipeline_is_empty(const xfi_pipeline *p)
{
  return p->n_steps == 0 && p->channels.all.n == 0;
}

xfer_status xfi_pipeline_start(xfi_pipeline *p, xfer_plan *plan, xfer_stream stream)
{
  xfi_event *before = xfi_staging_turn(plan);

  XFI_TRY(xfi_channels_run(&p->channels, plan));
  return xfi_steps_start(p, plan, before, stream);
}
