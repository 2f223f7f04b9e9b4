/*
 * What goes between this rank and each of its peers: its moves, and how much of them the broadcast
 * lane or channels carry.
 */
#ifndef XFI_PEERS_H
#define XFI_PEERS_H

#include "bound_plan.h"

/* The moves from this rank or to it, and the boxes of a class's moves. */
static inline const xfi_move_list *xfi_plan_moves(const xfer_plan *plan, bool send)
{
  return send ? &plan->moves->sends : &plan->moves->recvs;
}

static inline const xfi_flows *xfi_class_flows(const xfi_class *cls, bool send)
{
  return send ? &cls->sends : &cls->recvs;
}

/* The index of a rank in the list's peers, which ascend; n_peers: it is not one of them. */
static inline size_t xfi_peer_find(const xfi_move_list *list, int rank)
{
  size_t first = 0;
  size_t end = list->n_peers;

  XFI_BISECT(first, end, mid, list->peers[mid].rank < rank);
  return first < list->n_peers && list->peers[first].rank == rank ? first : list->n_peers;
}

/* The index of the i-th peer by distance: of sends from `rank` to the peer, of receives from the
 * peer to `rank`, modulo the number of ranks. */
static inline size_t xfi_peer_by_distance(const xfi_move_list *list, int rank, bool send, size_t i)
{
  size_t first = 0;
  size_t end = list->n_peers;

  XFI_BISECT(first, end, mid, list->peers[mid].rank < rank);
  return (send ? first + i : first + list->n_peers - 1 - i) % list->n_peers;
}

/* How many tensors the broadcast lane carries: those that the plan found cheaper to broadcast. None
 * if the comm has no broadcast, or if all ranks share memory: their channels pack data for several
 * ranks once, which is at least as fast. */
static inline size_t xfi_plan_n_broadcast(const xfer_plan *plan)
{
  const xfi_comm *comm = plan->comm;

  if (comm != NULL && (comm->ops->broadcast == NULL ||
                       (comm->shares_all && plan->device->ops->is_synchronous &&
                        plan->quant == NULL && plan->options.lane == XFER_LANE_AUTO)))
    return 0;
  return plan->moves->n_broadcast;
}

/* Does the broadcast lane carry a class? */
static inline bool xfi_plan_broadcasts(const xfer_plan *plan, const xfi_class *cls)
{
  return cls->broadcast && xfi_plan_n_broadcast(plan) > 0;
}

/* Does this rank send to or receive from the peer anything that is not broadcast? */
static inline bool xfi_plan_has_unicast(const xfer_plan *plan, const xfi_peer *peer)
{
  return xfi_plan_n_broadcast(plan) == 0 ? peer->n > 0 : peer->n_bytes > 0;
}

/* How many bytes that are not broadcast this rank sends to or receives from the peer. */
uint64_t xfi_plan_unicast_bytes(const xfer_plan *plan, bool send, const xfi_peer *peer);

/* Does what this rank and the peer exchange go through a channel in shared memory, unless the
 * direct lane or a broadcast carries it? The same on both ends. */
bool xfi_plan_shares(const xfer_plan *plan, int peer);

#endif
