#include "pipeline.h"

#include "alloc.h"
#include "broadcast.h"
#include "channels.h"
#include "error.h"
#include "packed.h"
#include "staging.h"

static size_t align_up(size_t n)
{
  return (n + XFI_SLOT_ALIGN - 1) / XFI_SLOT_ALIGN * XFI_SLOT_ALIGN;
}

/* What slots need that are large enough for every step. */
static void measure_slots(xfi_pipeline *p, const xfi_schedule *rounds, const xfer_plan *plan)
{
  xfi_packed_measure(p, rounds);
  xfi_broadcast_measure(p, p->casts, plan);
  p->send_slot_bytes = align_up(p->send_slot_bytes);
  p->recv_slot_bytes = align_up(p->recv_slot_bytes);
  p->staging_bytes = 2 * (p->send_slot_bytes + p->recv_slot_bytes);
}

/* In the slots there are, once there are channels. */
static xfer_status make_steps(xfi_pipeline *p, xfi_schedule *rounds, const xfer_plan *plan,
                              uint64_t *staging_bytes)
{
  xfer_status st = XFER_OK;

  p->sent_bytes = 0;
  xfi_channels_measure(p->channels, &p->sent_bytes, staging_bytes);
  XFI_TRY(xfi_packed_add(p, rounds, plan));
  p->n_rounds = p->n_steps;
  XFI_TRY(xfi_broadcast_add(p, p->casts, plan));
  XFI_TRY(xfi_steps_make_batches(p, plan->device));
done:
  return st;
}

/* A plan among those of its comm that have slots. If it needs a larger block the others move there;
 * who cannot has to be committed again. */
static xfer_status join_staging(xfi_pipeline *p, xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  const char *before = plan->of->slots;

  XFI_TRY(xfi_staging_join(plan, p));
  if (plan->of->slots == before) return XFER_OK;
  for (xfer_plan *q = plan->of->first; q != NULL; q = q->next) {
    if (q == plan || q->pipeline->slots == NULL) continue; /* lost before */
    q->pipeline->slots = plan->of->slots;
    if (xfi_pipeline_move(q->pipeline, q) != XFER_OK) q->pipeline->slots = NULL;
  }
done:
  return st;
}

xfer_status xfi_pipeline_create(xfi_pipeline **pipeline, xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_pipeline *p = NULL;
  xfi_schedule *rounds = NULL;
  xfi_casts *casts = NULL;

  XFI_TRY(xfi_casts_create(&casts, plan));
  p = xfi_calloc(1, sizeof *p);
  XFI_CHECK(p != NULL, XFER_ERR_NOMEM, "pipeline");
  p->casts = casts;
  casts = NULL;
  XFI_TRY(xfi_schedule_create(&rounds, plan, false));
  measure_slots(p, rounds, plan);
  XFI_TRY(join_staging(p, plan));
  XFI_TRY(xfi_channels_create(&p->channels, plan));
  XFI_TRY(make_steps(p, rounds, plan, &p->staging_bytes));
  XFI_TRY(xfi_steps_make_streams(p, plan->device));
  *pipeline = p;
  p = NULL;
done:
  xfi_pipeline_destroy(p, plan);
  xfi_schedule_destroy(rounds);
  xfi_casts_free(casts);
  return st;
}

xfer_status xfi_pipeline_move(xfi_pipeline *p, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_schedule *rounds = NULL;
  uint64_t staging_bytes = 0; /* as before */

  XFI_TRY(xfi_channels_move(p->channels, plan));
  if (p->n_steps == 0) return XFER_OK;
  XFI_TRY(xfi_schedule_create(&rounds, plan, false));
  xfi_steps_free(p, plan->device);
  XFI_TRY(make_steps(p, rounds, plan, &staging_bytes));
done:
  xfi_schedule_destroy(rounds);
  return st;
}

void xfi_pipeline_destroy(xfi_pipeline *p, xfer_plan *plan)
{
  if (p == NULL) return;
  xfi_staging_leave(plan);
  xfi_channels_destroy(p->channels);
  xfi_casts_free(p->casts);
  xfi_steps_free(p, plan->device);
  xfi_steps_free_streams(p, plan->device);
  xfi_free(p->steps);
  xfi_free(p);
}

xfer_status xfi_pipeline_foresee(uint64_t *staging_bytes, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_pipeline p = {0};
  xfi_schedule *rounds = NULL;

  *staging_bytes = 0;
  if (plan->comm != NULL && plan->comm->ops->round == NULL) return XFER_OK;
  XFI_TRY(xfi_casts_list(&p.casts, plan));
  XFI_TRY(xfi_schedule_create(&rounds, plan, true));
  measure_slots(&p, rounds, plan);
  *staging_bytes = p.staging_bytes + xfi_channels_foresee(plan);
done:
  xfi_schedule_destroy(rounds);
  xfi_casts_free(p.casts);
  return st;
}

bool xfi_pipeline_is_empty(const xfi_pipeline *p)
{
  return p->n_steps == 0 && xfi_channels_count(p->channels) == 0;
}

xfer_status xfi_pipeline_start(xfi_pipeline *p, xfer_plan *plan, xfer_stream stream,
                               xfi_deadline deadline)
{
  xfi_event *before = xfi_staging_turn(plan);
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_channels_run(p->channels, plan, deadline));
  XFI_TRY(xfi_steps_start(p, plan, before, stream, deadline));
done:
  return st;
}
