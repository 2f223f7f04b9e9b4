/*
 * Offers: copies of sources, in memory of the plan's own, that peers read in their place. A plan
 * whose memory may be freed or elsewhere by its next run lends nobody a mapping of it; but of its
 * offers peers keep one, so that a run is a copy within each rank and then the direct lane, all of
 * it pulled, and a commit at other addresses concerns each rank alone.
 *
 * They are dense. What stays on a rank, or takes the packed lane to who cannot map them, is read
 * from the sources.
 */
#include "alloc.h"
#include "direct.h"
#include "error.h"
#include "lanes.h"
#include "run.h"

/* Of max_staging_bytes, what the offers of all plans of a comm may take. */
enum { CAP_PART = 2 };
/* Copies within the rank of this many bytes are made with those to the offers, in one launch. */
enum { WITH_OFFERS_BYTES = 1 << 20 };

static uint64_t cap(const xfer_plan *plan)
{
  return plan->options.max_staging_bytes / CAP_PART;
}

/* May anybody read them? */
static bool sends(const xfer_plan *plan)
{
  const xfi_plan *m = plan->moves;

  return m->sends.n_peers > 0 && xfi_run_n_broadcast(plan) < m->n_tensors;
}

/* The bytes of offers, before it is known whether anybody does. */
static uint64_t needed(const xfer_plan *plan)
{
  return sends(plan) ? xfi_twins_bytes(plan, true) : 0;
}

/* Once there is one: of a second plan that is to take its turns there will be as many. Without that
 * messages take less time, where there are any. */
bool xfi_offer_fits(const xfer_plan *plan)
{
  const uint64_t others = plan->of->offered_bytes - xfi_offer_bytes(plan);
  const uint64_t n = plan->offers || plan->comm->ops->round == NULL ? 1 : 2;

  if (!plan->is_transient || !plan->device->ops->pulls) return false;
  return others + n * needed(plan) <= cap(plan);
}

bool xfi_run_awaits_readers(const xfer_plan *plan)
{
  const xfi_deadline now = {0};

  return plan->offer != NULL && !plan->shares_gpu &&
         xfi_event_sync(plan->device, plan->finished, now) == XFER_ERR_TIMEOUT;
}

bool xfi_run_fits_twice(const xfer_plan *plan)
{
  return plan->of->offered_bytes + needed(plan) <= cap(plan);
}

uint64_t xfi_offer_bytes(const xfer_plan *plan)
{
  return plan->offer == NULL ? 0 : plan->offer->block.n_bytes;
}

/* is_read[n_tensors] of what some peer reads here; false: nothing. */
static bool mark_read(bool *is_read, const xfer_plan *plan)
{
  const xfi_move_list *sends = &plan->moves->sends;
  bool any = false;

  for (size_t i = 0; i < sends->n_peers; i++) {
    const xfi_peer *peer = &sends->peers[i];

    if (!xfi_direct_carries(plan->direct, true, i)) continue;
    for (size_t k = peer->first; k < peer->first + peer->n; k++)
      any = is_read[sends->moves[k].tensor] = true;
  }
  return any;
}

/* May what the rank keeps be copied with them? */
static bool may_take_local(const xfer_plan *plan)
{
  const xfi_plan *m = plan->moves;

  return plan->local != NULL && m->self_bytes + m->zero_bytes <= WITH_OFFERS_BYTES;
}

/* Nothing is left for the local lane, if all travels with one launch: what the device has to keep
 * no commit could change before the run under way is over. */
static xfer_status take_local(xfer_plan *plan, const bool *is_read)
{
  xfi_twins *o = plan->offer;

  o->has_local = true;
  XFI_TRY(xfi_twins_prepare(o, plan, is_read));
  o->has_local = !xfi_batch_is_read(plan->device, o->copy);
  if (!o->has_local) return xfi_twins_prepare(o, plan, is_read);
  xfi_local_destroy(plan->local, plan->device);
  plan->local = NULL;
  return XFER_OK;
}

xfer_status xfi_offer_move(xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  bool *is_read = NULL;

  if (plan->offer == NULL) return XFER_OK;
  is_read = xfi_calloc(plan->moves->n_tensors, sizeof *is_read);
  XFI_CHECK(is_read != NULL, XFER_ERR_NOMEM, "%zu tensors", plan->moves->n_tensors);
  if (mark_read(is_read, plan) && may_take_local(plan))
    st = take_local(plan, is_read);
  else
    st = xfi_twins_prepare(plan->offer, plan, is_read);
  xfi_free(is_read);
  return st;
}

/* A relay goes on with what has come, so it waits where it runs, and its plan with it. */
xfer_status xfi_offer_wait_apart(const xfer_plan *plan, xfer_stream *stream)
{
  const xfi_twins *o = plan->offer;

  if (o == NULL || plan->relay != NULL || plan->main != NULL) return XFER_OK;
  XFI_TRY(xfi_event_record(plan->device, o->event, *stream));
  XFI_TRY(xfi_stream_wait(plan->device, o->stream, o->event));
  *stream = o->stream;
  return XFER_OK;
}

xfer_status xfi_offer_create(xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  if (sends(plan)) st = xfi_twins_create(&plan->offer, plan, true);
  plan->of->offered_bytes += xfi_offer_bytes(plan);
  return st;
}

void xfi_offer_destroy(xfer_plan *plan)
{
  plan->of->offered_bytes -= xfi_offer_bytes(plan);
  xfi_twins_destroy(&plan->offer, plan);
}
