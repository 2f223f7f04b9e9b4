/* Who sends what to whom: stripes of boxes, whose turn each is, and what ranks of a domain share.
 */
#ifndef XFI_CHOOSE_H
#define XFI_CHOOSE_H

#include "moves_types.h"

/* A move's box with its stripe applied, and where it lies on both ranks. `flows` is what move->box
 * counts in. */
void xfi_move_box(xfi_box *box, const xfi_class *cls, const xfi_flows *flows, const xfi_move *move);
uint64_t xfi_move_bytes(const xfi_class *cls, const xfi_flows *flows, const xfi_move *move);
/* Where a box of `layout` lies on `rank`, from where it lies in its unit. */
void xfi_box_resolve(int64_t *local, uint32_t unit, const xfer_layout *layout, int rank);
/* The number of elements of a box. */
int64_t xfi_box_elems(const int64_t *length, int n_dims);

/* How many stripes a box of this length is cut into. Each goes from one of n_replicas sources to
 * one of n_sharers. */
int xfi_stripe_count(const xfi_class *cls, const int64_t *length, int n_replicas, int n_sharers);

/* A stripe of a box of a flow, for one tensor and destination. */
typedef struct xfi_turn {
  uint32_t ordinal; /* xfi_tensor.ordinal */
  size_t box;       /* index of the box in the flow */
  int stripe;
  int n_stripes;
  uint32_t src_part;
  uint32_t dst_part;
  int dst_replica;
} xfi_turn;

/* The replica of the source part whose turn it is. */
int xfi_choose_replica(const xfi_class *cls, const xfi_turn *turn);
/* The index of the source whose turn it is, among n sources in the destination's domain. */
int xfi_choose_near(const xfi_class *cls, const xfi_turn *turn, int n);

/* For a plan with domains: how many ranks of `rank`'s domain hold a part, and the one of them at an
 * index (-1: there is none). */
int xfi_count_near(const xfi_moves *moves, const xfer_layout *layout, uint32_t part, int rank);
int xfi_find_near(const xfi_moves *moves, const xfer_layout *layout, uint32_t part, int rank,
                  int index);

/* The rank that sends to dst_rank. */
int xfi_choose_source(const xfi_moves *moves, const xfi_class *cls, const xfi_turn *turn,
                      int dst_rank);

/* ---- once per domain ---- */

/* The ranks that share with `rank` what comes from the source part to its destination part. */
xfi_sharers xfi_find_sharers(const xfi_moves *moves, const xfi_class *cls, uint32_t src_part,
                             uint32_t dst_part, int rank);
/* The number by which a rank takes turns: its replica, or for a box that it shares its domain,
 * since all ranks that share have the same sources. */
static inline int xfi_turn_replica(const xfi_moves *moves, xfi_sharers sharers, int rank,
                                   int replica)
{
  return sharers.n > 1 ? (int)((uint32_t)rank / moves->options.ranks_per_domain) : replica;
}

/* The first stripe of a box of a flow into a part of the plan's rank. */
static inline void xfi_turn_begin(xfi_turn *turn, const xfi_moves *moves, const xfi_class *cls,
                                  const xfi_flow *flow, size_t box, uint32_t ordinal)
{
  turn->ordinal = ordinal;
  turn->box = box;
  turn->stripe = 0;
  turn->n_stripes = xfi_stripe_count(cls, xfi_flows_length(&cls->recvs, flow->first + box),
                                     xfi_part_n_replicas(cls->src, flow->part), flow->sharers.n);
  turn->src_part = flow->part;
  turn->dst_part = flow->mine;
  turn->dst_replica = xfi_turn_replica(moves, flow->sharers, moves->rank, flow->my_replica);
}

/* The index of the rank that takes a stripe, among near ranks that hold the destination's part. */
int xfi_taker(const xfi_class *cls, const xfi_turn *turn, int n_sharers);

#endif
