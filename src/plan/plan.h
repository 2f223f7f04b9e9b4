/*
 * Plans: for one rank, which boxes of which tensors go to and come from whom. A pure function of
 * metadata: both ends of a pair derive the same list in the same order, with no negotiation.
 *
 * Tensors with equal (source layout, destination layout) form a *class*. Overlaps of parts are
 * found once per class (*flows*) and only instantiated per tensor (*moves*), so cost follows a
 * rank's own moves.
 */
#ifndef XFI_PLAN_H
#define XFI_PLAN_H

#include "choose.h"
#include "conversion.h"
#include "plan_types.h"

/* Both layouts of each tensor are known. The tensors are copied. */
xfer_status xfi_plan_create(xfi_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                            size_t n_tensors, const xfi_plan_options *options);
/* Make a plan without moves: tensors are checked and sorted into classes, which are not filled. */
xfer_status xfi_plan_classify(xfi_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                              size_t n_tensors, const xfi_plan_options *options);
void xfi_plan_destroy(xfi_plan *plan);

/* ---- as text (print.c) ---- */

/* The lists of a plan's moves, in the order in which they are told. */
typedef struct xfi_listing {
  const xfi_move_list *list;
  const xfi_plan *of; /* the plan or its relay */
  bool send;
} xfi_listing;
enum { XFI_LISTINGS = 5 };
/* Fill the listings of a plan, and return their number. */
int xfi_plan_listings(xfi_listing lists[XFI_LISTINGS], const xfi_plan *plan);
/* The box of a move of a listing, and the move's bytes as the plan counts them. */
uint64_t xfi_listing_box(xfi_box *box, const xfi_listing *from, const xfi_plan *plan,
                         const xfi_move *move);

/* How data travels to or from sends.peers[peer] or recvs.peers[peer] of a plan or of its relay;
 * NULL: this is not settled yet. */
typedef const char *(*xfi_way_fn)(const void *context, bool relay, bool send, size_t peer);

xfer_status xfi_plan_print(const xfi_plan *plan, const xfer_plan_report_data *report,
                           xfi_way_fn way, const void *context, char **text, bool json);

#endif
