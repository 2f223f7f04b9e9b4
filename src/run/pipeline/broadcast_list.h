/*
 * What the broadcast lane sends, the same list on every rank: for each source part of a tensor one
 * replica is the root, and roots follow each other by rank.
 */
#ifndef XFI_BROADCAST_LIST_H
#define XFI_BROADCAST_LIST_H

#include "steps.h"

/* One part of one tensor, sent by `root` to all ranks. */
typedef struct xfi_bcast {
  int root;
  uint32_t tensor;
  size_t order;           /* the tensor's place in the plan's order */
  const xfi_flows *flows; /* all source parts of its class */
  const xfi_flow
      *source; /* the part that is sent; in layouts by boxes src_local counts from a unit */
  uint64_t n_bytes;
  char *memory; /* the part on this rank, if it is broadcast in place; NULL: through slots */
} xfi_bcast;

struct xfi_bcasts {
  xfi_flows *sources; /* [n_classes] the source parts of each broadcast class */
  size_t n_classes;
  xfi_bcast *at; /* [n] parts to broadcast, by root, then in the plan's order */
  size_t n;
  size_t capacity;
};

/* The bytes of a window that is broadcast through slots. */
uint64_t xfi_bcasts_window(const xfer_plan *plan);

/* Make the list, and find which parts are broadcast in place: those that are one run in the memory
 * of every rank. Collective. */
xfer_status xfi_bcasts_create(xfi_bcasts **bcasts, const xfer_plan *plan);
/* Rebind the list after binds at other addresses: *kept is false if some part that is broadcast in
 * place is no longer one run here. */
xfer_status xfi_bcasts_rebind(bool *kept, xfi_bcasts *bcasts, const xfer_plan *plan);
/* Make the list alone, with no part in place. Not collective. */
xfer_status xfi_bcasts_list(xfi_bcasts **bcasts, const xfer_plan *plan);
void xfi_bcasts_free(xfi_bcasts *bcasts);

/* Box b of a part that is broadcast. */
static inline xfi_box xfi_bcast_box(const xfi_bcast *c, size_t b)
{
  return xfi_flows_box(c->flows, c->source->first + b);
}

/* The flows in recvs of a part's class that this rank gets from the part; n is 0 if the rank needs
 * nothing of the part, or has it already. */
typedef struct xfi_needed {
  const xfi_flow *at;
  size_t n;
} xfi_needed;
xfi_needed xfi_bcast_needed(const xfer_plan *plan, const xfi_bcast *c);

/* ---- broadcast.c: the list turned into steps ---- */

/* The first adds to the sizes of slots what the list needs; the second appends the list's steps. */
void xfi_broadcast_measure(xfi_pipeline *pipeline, const xfer_plan *plan);
xfer_status xfi_broadcast_add(xfi_pipeline *pipeline, const xfer_plan *plan);

#endif
