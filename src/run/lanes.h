/*
 * What a commit makes of a plan, apart from the lanes that have a folder.
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

/* ---- twins.c ---- */

/* Memory of a plan's own that stands for what is bound: what peers read in place of sources
 * (offer.c), and what lanes write in place of destinations (shadow.c). */
struct xfi_twins {
  bool of_sources; /* else of destinations */
  xfi_lent block;
  bool is_lost;    /* somebody may still read or write there */
  xfi_batch *copy; /* of sources to their twins, or into destinations from theirs; NULL: nothing */
  xfer_stream stream; /* of shadows: where that is done, */
  xfi_event *written; /* and has been */
};

/* Of those of a rank, committed or not. */
uint64_t xfi_twins_bytes(const xfer_plan *plan, bool source);
/* With memory, and bound; NULL where there are none. What it made is the caller's, whatever it
 * returns. */
xfer_status xfi_twins_create(xfi_twins **twins, const xfer_plan *plan, bool source);
/* The copies, where all lies now, of the tensors that which[n_tensors] says; NULL: of all. */
xfer_status xfi_twins_prepare(xfi_twins *twins, const xfer_plan *plan, const bool *which);
/* They are left to who may still touch them. Of NULL too. */
void xfi_twins_lose(xfi_twins *twins);
void xfi_twins_destroy(xfi_twins **twins, xfer_plan *plan);

/* ---- offer.c ---- */

/* May this rank take memory for the plan's offers, if it is to have any? */
bool xfi_offer_fits(const xfer_plan *plan);
/* Memory for those of all sources; what it made is the plan's, whatever it returns. */
xfer_status xfi_offer_create(xfer_plan *plan);
void xfi_offer_destroy(xfer_plan *plan);
uint64_t xfi_offer_bytes(const xfer_plan *plan);
/* What is copied there, once it is known what peers read, and of sources that lie elsewhere now. */
xfer_status xfi_offer_move(const xfer_plan *plan);

/* ---- shadow.c ---- */

/* Shadows of all destinations, where the plan is staged; what it made is the plan's, whatever it
 * returns. */
xfer_status xfi_shadow_create(xfer_plan *plan);
uint64_t xfi_shadow_bytes(const xfer_plan *plan);
/* Of a run that is complete on all ranks: write the destinations. Collective. */
xfer_status xfi_shadow_write(xfer_plan *plan, xfi_deadline deadline);

#endif
