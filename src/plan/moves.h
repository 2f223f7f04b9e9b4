/* Instantiating the flows of each class for each of its tensors. */
#ifndef XFI_MOVES_H
#define XFI_MOVES_H

#include "plan_types.h"

/* Sets plan->order: largest elements first, so that packed streams never misalign one; or as
 * given. */
xfer_status xfi_plan_set_order(xfi_plan *plan, const uint32_t *given);
/* Fill sends, recvs, selfs and the byte counts of a plan. */
xfer_status xfi_moves_fill(xfi_plan *plan);
/* Then make plan->relay (relay.c). */
xfer_status xfi_relay_fill(xfi_plan *plan);

/* What goes to and comes from each rank, [n_ranks] each, broadcasts left out. */
typedef struct xfi_peer_bytes {
  uint64_t *sent;
  uint64_t *received;
} xfi_peer_bytes;
xfer_status xfi_peer_bytes_make(xfi_peer_bytes *bytes, int n_ranks);
void xfi_peer_bytes_free(xfi_peer_bytes *bytes);

/* Append a move. `peer_bytes`: what each rank's moves come to, by rank; NULL: not asked for. */
xfer_status xfi_move_add(xfi_move_list *list, xfi_move move, uint64_t *peer_bytes,
                         uint64_t n_bytes);
/* Sort moves by peer, keeping the order within one, and list the peers. */
xfer_status xfi_moves_group(const xfi_plan *plan, xfi_move_list *list, const uint64_t *peer_bytes);

#endif
