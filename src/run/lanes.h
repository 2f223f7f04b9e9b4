/*
 * What a commit makes for a plan, apart from the lanes that have a folder of their own.
 */
#ifndef XFI_LANES_H
#define XFI_LANES_H

#include "staging.h"

/* ---- commit.c ---- */

/* Give back all that commit made. */
void xfi_run_drop_lanes(xfer_plan *plan);

/* ---- local.c ---- */

/* Self-copies and ZERO elements as one batch; NULL: there are none. */
struct xfi_local {
  xfi_batch *batch;
  xfi_anchor (*ends)[2]; /* [n] source and destination of each copy */
  size_t n;
  size_t capacity;
  bool in_pieces; /* some view is, so that ends say nothing */
};
xfer_status xfi_local_create(xfi_local **local, const xfer_plan *plan);
/* The same at other addresses. */
xfer_status xfi_local_move(xfer_plan *plan);
void xfi_local_destroy(xfi_local *local, xfi_device *device);
/* Append its copies to others. */
xfer_status xfi_local_add(xfi_copies *copies, const xfer_plan *plan);

/* ---- twins.c ---- */

/* Memory of the plan that replaces what is bound: peers read it instead of sources (offer.c), or
 * lanes write it instead of destinations (shadow.c). */
struct xfi_twins {
  bool of_sources; /* else of destinations */
  xfi_lent block;
  bool is_lost;       /* something may still read or write it: not to be freed */
  bool has_local;     /* of offers: `copy` has the copies within the rank too */
  xfi_batch *copy;    /* from sources to twins, or from twins to destinations; NULL: nothing */
  xfer_stream stream; /* of shadows: where that is done; of offers: where peers are waited for */
  xfi_event *event; /* of shadows: it has been; of offers: the caller's stream has done its part */
};

/* Their bytes on this rank, committed or not. */
uint64_t xfi_twins_bytes(const xfer_plan *plan, bool source);
/* Allocates and binds them; NULL where there are none. The caller destroys *twins, whatever this
 * returns. */
xfer_status xfi_twins_create(xfi_twins **twins, const xfer_plan *plan, bool source);
/* Makes the copies, at present addresses, of the tensors in which[n_tensors]; NULL: of all. */
xfer_status xfi_twins_prepare(xfi_twins *twins, const xfer_plan *plan, const bool *which);
/* Something may still touch them: leak their memory. NULL is fine. */
void xfi_twins_lose(xfi_twins *twins);
void xfi_twins_destroy(xfi_twins **twins, xfer_plan *plan);

/* ---- offer.c ---- */

/* Whether this rank has room for the plan's offers, if there are any. */
bool xfi_offer_fits(const xfer_plan *plan);
/* Allocates offers of all sources; they are the plan's, whatever this returns. */
xfer_status xfi_offer_create(xfer_plan *plan);
void xfi_offer_destroy(xfer_plan *plan);
uint64_t xfi_offer_bytes(const xfer_plan *plan);
/* Makes the copies to them, once it is known what peers read, or when sources have moved. */
xfer_status xfi_offer_move(xfer_plan *plan);
/* In a run: *stream becomes where it waits until peers have read them, after all that is on
 * *stream. */
xfer_status xfi_offer_wait_apart(const xfer_plan *plan, xfer_stream *stream);

/* ---- shadow.c ---- */

/* Allocates shadows of all destinations, if the plan is staged; they are the plan's, whatever this
 * returns. */
xfer_status xfi_shadow_create(xfer_plan *plan);
uint64_t xfi_shadow_bytes(const xfer_plan *plan);
/* Writes the destinations of a run that is complete on all ranks. Collective. */
xfer_status xfi_shadow_write(xfer_plan *plan, xfi_deadline deadline);

#endif
