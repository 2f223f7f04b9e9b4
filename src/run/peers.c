/* How many bytes of a peer's moves are not broadcast, and whether they can go through channels.
 * Asked by the lanes of a plan as they are built. */
#include "peers.h"

uint64_t xfi_plan_unicast_bytes(const xfer_plan *plan, bool send, const xfi_peer *peer)
{
  const xfi_move_list *list = xfi_plan_moves(plan, send);
  uint64_t n_bytes = 0;

  /* n_bytes of a relay's peers counts what crossed domains, and of a plan's peers it leaves out
   * what is cheaper to broadcast. */
  if (plan->main == NULL && xfi_plan_n_broadcast(plan) == plan->moves->n_broadcast)
    return peer->n_bytes;
  for (size_t i = peer->first; i < peer->first + peer->n; i++) {
    const xfi_class *cls = xfi_moves_class(plan->moves, list->moves[i].tensor);

    if (!xfi_plan_broadcasts(plan, cls))
      n_bytes += xfi_move_bytes(cls, xfi_class_flows(cls, send), &list->moves[i]);
  }
  return n_bytes;
}

bool xfi_plan_shares(const xfer_plan *plan, int peer)
{
  /* A channel's byte sequence of a box has no blocks. */
  return plan->comm != NULL && plan->quant == NULL && plan->device->ops->is_synchronous &&
         plan->comm->ops->shares != NULL && plan->comm->ops->shares(plan->comm, peer);
}
