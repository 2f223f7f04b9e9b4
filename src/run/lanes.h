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

/* The local lane: one batch that copies within this rank and zeroes ZERO elements. */
struct xfi_local {
  xfi_batch *batch;
  xfi_anchor (*ends)[2]; /* [n] source and destination of each copy */
  size_t n;
  size_t capacity;
  bool in_pieces; /* some view has several pieces: `ends` does not give its addresses */
};
/* *local stays NULL if there is nothing to do. */
xfer_status xfi_local_create(xfi_local **local, const xfer_plan *plan);
/* Give plan->local the addresses of what is bound now. */
xfer_status xfi_local_move(xfer_plan *plan);
void xfi_local_destroy(xfi_local *local, xfi_device *device);
/* Append the copies of the local lane to a list. */
xfer_status xfi_local_add(xfi_copies *copies, const xfer_plan *plan);

/* ---- twins.c ---- */

/* Dense copies, in one block of the plan's own, of all that this rank has bound on one side: peers
 * read offers in place of its sources (offer.c), or lanes write shadows in place of its
 * destinations (shadow.c). */
struct xfi_twins {
  bool of_sources; /* they are offers; else shadows */
  xfi_lent block;
  bool is_lost;       /* something may still read or write the block, so it is never freed */
  bool has_local;     /* offers: `copy` contains the copies of the local lane too */
  xfi_batch *copy;    /* from sources to offers, or from shadows to destinations; NULL: nothing */
  xfer_stream stream; /* shadows: on which `copy` runs; offers: which waits until peers have read */
  xfi_event *event;   /* shadows: `copy` is done; offers: the caller's stream may go on */
};

/* How many bytes they have on this rank, committed or not. */
uint64_t xfi_twins_bytes(const xfer_plan *plan, bool source);
/* Allocates and binds them; *twins stays NULL if there are none. The caller destroys *twins,
 * whatever this returns. */
xfer_status xfi_twins_create(xfi_twins **twins, const xfer_plan *plan, bool source);
/* Makes `copy` for what is bound now, of the tensors in which[n_tensors]; NULL: of all. */
xfer_status xfi_twins_prepare(xfi_twins *twins, const xfer_plan *plan, const bool *which);
/* Something may still read or write the block: leak it. NULL is fine. */
void xfi_twins_lose(xfi_twins *twins);
void xfi_twins_destroy(xfi_twins **twins, xfer_plan *plan);

/* ---- offer.c ---- */

/* May the plan have offers, and do they fit into this rank's share of max_staging_bytes? */
bool xfi_offer_fits(const xfer_plan *plan);
/* Allocates plan->offer, of all sources. xfi_offer_destroy() frees it also after a failure. */
xfer_status xfi_offer_create(xfer_plan *plan);
void xfi_offer_destroy(xfer_plan *plan);
uint64_t xfi_offer_bytes(const xfer_plan *plan);
/* Makes the copies into offers, once it is known which of them peers read, or after binds. */
xfer_status xfi_offer_move(xfer_plan *plan);
/* In a run: the waits for peers that read offers go to a stream of their own, after all that is on
 * *stream, so that the caller's stream can go on. *stream becomes that stream. */
xfer_status xfi_offer_wait_apart(const xfer_plan *plan, xfer_stream *stream);

/* ---- shadow.c ---- */

/* Allocates plan->shadow, of all destinations, if the plan is staged. It is the plan's to free,
 * also after a failure. */
xfer_status xfi_shadow_create(xfer_plan *plan);
uint64_t xfi_shadow_bytes(const xfer_plan *plan);
/* After a run that is complete on all ranks: copies shadows to destinations. Collective. */
xfer_status xfi_shadow_write(xfer_plan *plan, xfi_deadline deadline);

#endif
