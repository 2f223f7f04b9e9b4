/*
 * What the broadcast lane sends, the same list on every rank: for each source part of a tensor one
 * replica is the root, and roots take turns by rank.
 */
#ifndef XFI_BROADCAST_LIST_H
#define XFI_BROADCAST_LIST_H

#include "steps.h"

/* One part of one tensor. */
typedef struct xfi_cast {
  int root;
  uint32_t tensor;
  size_t order;           /* in the plan */
  const xfi_flows *flows; /* the sources of its class, */
  const xfi_flow *source; /* of which it is this one; by boxes their src_local counts from a unit */
  uint64_t n_bytes;
  char *memory; /* broadcast in place: where this rank has the part; NULL: through slots */
} xfi_cast;

struct xfi_casts {
  xfi_flows *sources; /* [n_classes] all source parts of each broadcast class */
  size_t n_classes;
  xfi_cast *at; /* [n] by root, then in the plan's order */
  size_t n;
  size_t capacity;
};

/* Bytes of a window through slots. */
uint64_t xfi_casts_window(const xfer_plan *plan);

/* Collective. A part is broadcast in place if every rank has it, or is to have it, as one run. */
xfer_status xfi_casts_create(xfi_casts **casts, const xfer_plan *plan);
/* Other addresses: does this rank still have as one run what is broadcast in place? */
xfer_status xfi_casts_move(bool *kept, xfi_casts *casts, const xfer_plan *plan);
/* The list alone: nothing is in place. Not collective. */
xfer_status xfi_casts_list(xfi_casts **casts, const xfer_plan *plan);
void xfi_casts_free(xfi_casts *casts);

/* Box b of a part. */
static inline xfi_box xfi_cast_box(const xfi_cast *c, size_t b)
{
  return xfi_flows_box(c->flows, c->source->first + b);
}

/* What this rank gets of a part, in its class's recvs; n 0: it needs nothing of it, or holds it. */
typedef struct xfi_needed {
  const xfi_flow *at;
  size_t n;
} xfi_needed;
xfi_needed xfi_cast_needed(const xfer_plan *plan, const xfi_cast *c);

/* ---- broadcast.c: the list turned into steps ---- */

/* What slots the list needs, then its steps. */
void xfi_broadcast_measure(xfi_pipeline *pipeline, const xfer_plan *plan);
xfer_status xfi_broadcast_add(xfi_pipeline *pipeline, const xfer_plan *plan);

#endif
