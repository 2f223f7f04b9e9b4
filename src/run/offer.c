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
#include "bind.h"
#include "direct.h"
#include "error.h"
#include "lanes.h"
#include "staging.h"

enum { ALIGN = 256 }; /* as device memory is */

/* Of max_staging_bytes, what the offers of all plans of a comm may take. */
enum { CAP_PART = 4 };

struct xfi_offer {
  char *memory;
  uint64_t n_bytes;
  xfi_giver from;
  bool is_lost;    /* somebody may still read there */
  xfi_batch *fill; /* from the sources */
};

static uint64_t bytes_of(const xfer_plan *plan, size_t tensor)
{
  return (xfi_bind_src_bytes(plan, tensor) + ALIGN - 1) / ALIGN * ALIGN;
}

static uint64_t all_bytes(const xfer_plan *plan)
{
  uint64_t n_bytes = 0;

  for (size_t t = 0; plan->moves->sends.n_peers > 0 && t < plan->moves->n_tensors; t++)
    n_bytes += bytes_of(plan, t);
  return n_bytes;
}

bool xfi_offer_fits(const xfer_plan *plan)
{
  const uint64_t others = plan->of->offered_bytes - xfi_offer_bytes(plan);

  return plan->is_transient && plan->device->ops->pulls &&
         others + all_bytes(plan) <= plan->options.max_staging_bytes / CAP_PART;
}

uint64_t xfi_offer_bytes(const xfer_plan *plan)
{
  return plan->offer == NULL ? 0 : plan->offer->n_bytes;
}

/* All of this rank's part, by the pieces of its source. */
static xfer_status add_reads(xfi_copies *copies, const xfer_plan *plan, size_t tensor)
{
  const xfi_elem elem = {xfi_plan_class(plan->moves, tensor)->src->elem_bytes, NULL};
  const xfi_binding *b = plan->bindings[tensor];
  xfi_end offer = {&b->offer, {0}};
  xfi_end src = {&b->src, {0}};
  int64_t length[XFER_MAX_DIMS];

  for (int64_t p = 0; p < b->src.n_pieces; p++) {
    xfi_bound_shape(length, &b->src, p);
    xfi_bound_start(src.start, &b->src, p);
    xfi_bound_start(offer.start, &b->src, p);
    XFI_TRY(xfi_copies_add(copies, &offer, &src, length, b->src.n_dims, elem));
  }
  return XFER_OK;
}

/* is_read[n_tensors] of what some peer reads here. */
static void mark_read(bool *is_read, const xfer_plan *plan)
{
  const xfi_move_list *sends = &plan->moves->sends;

  for (size_t i = 0; i < sends->n_peers; i++) {
    const xfi_peer *peer = &sends->peers[i];

    if (!xfi_direct_carries(plan->direct, true, i)) continue;
    for (size_t k = peer->first; k < peer->first + peer->n; k++)
      is_read[sends->moves[k].tensor] = true;
  }
}

xfer_status xfi_offer_move(const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_copies copies = {NULL, 0, 0};
  bool *is_read = NULL;

  if (plan->offer == NULL) return XFER_OK;
  is_read = xfi_calloc(plan->moves->n_tensors, sizeof *is_read);
  XFI_CHECK_DONE(is_read != NULL, XFER_ERR_NOMEM, "%zu tensors", plan->moves->n_tensors);
  mark_read(is_read, plan);
  for (size_t t = 0; t < plan->moves->n_tensors; t++)
    if (is_read[t] && bytes_of(plan, t) > 0) XFI_TRY_DONE(add_reads(&copies, plan, t));
  st = plan->device->ops->batch_create(plan->device, &plan->offer->fill, copies.at, copies.n, 100,
                                       NULL);
done:
  xfi_copies_free(&copies);
  xfi_free(is_read);
  return st;
}

xfer_status xfi_offer_create(xfer_plan *plan)
{
  const uint64_t n_bytes = all_bytes(plan);
  xfi_offer *o;
  char *at;

  if (n_bytes == 0) return XFER_OK;
  o = plan->offer = xfi_calloc(1, sizeof *o);
  XFI_CHECK(o != NULL, XFER_ERR_NOMEM, "offers");
  o->from = plan->of->giver;
  XFI_TRY(xfi_staging_take(&o->memory, plan->of, n_bytes));
  o->n_bytes = n_bytes;
  plan->of->offered_bytes += n_bytes;
  at = o->memory;
  for (size_t t = 0; t < plan->moves->n_tensors; t++) {
    if (bytes_of(plan, t) == 0) continue;
    XFI_TRY(xfi_bind_offer(plan, t, at));
    at += bytes_of(plan, t);
  }
  return XFER_OK;
}

void xfi_offer_destroy(xfer_plan *plan)
{
  xfi_offer *o = plan->offer;

  if (o == NULL) return;
  for (size_t t = 0; t < plan->moves->n_tensors; t++)
    if (plan->bindings[t] != NULL) xfi_bound_clear(&plan->bindings[t]->offer);
  if (o->fill != NULL) plan->device->ops->batch_destroy(plan->device, o->fill);
  if (o->is_lost)
    xfi_abandon(o->memory);
  else if (o->memory != NULL)
    xfi_staging_give(plan->of, o->memory, &o->from);
  plan->of->offered_bytes -= o->n_bytes;
  xfi_free(o);
  plan->offer = NULL;
}

void xfi_offer_lose(xfer_plan *plan)
{
  if (plan->offer != NULL) plan->offer->is_lost = true;
}

bool xfi_offer_is_read(const xfer_plan *plan)
{
  return plan->offer != NULL && xfi_batch_is_read(plan->device, plan->offer->fill);
}

xfer_status xfi_offer_start(const xfer_plan *plan, xfer_stream stream)
{
  if (plan->offer == NULL) return XFER_OK;
  return plan->device->ops->batch_launch(plan->device, plan->offer->fill, stream, NULL);
}
