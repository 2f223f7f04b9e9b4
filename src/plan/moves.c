/*
 * Moves: the flows of each class, once per tensor, with the peer that each box comes from or goes
 * to.
 *
 * A receiver asks choose.c for the source of each stripe that it takes. A sender steps through the
 * destination replicas that can have chosen it: the choice adds the replica's number to a rotation
 * and takes it modulo the number of sources, so they lie n_sources apart.
 */
#include "moves.h"

#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "choose.h"
#include "class.h"
#include "error.h"
#include "vec.h"

/* Of the largest dtype. */
enum { MAX_ELEM_BYTES = 8 };

xfer_status xfi_plan_set_order(xfi_plan *plan, const uint32_t *given)
{
  xfer_status st = XFER_OK;
  size_t next[MAX_ELEM_BYTES + 1] = {0}; /* by wire_bytes: where in the order */

  plan->order = xfi_calloc(plan->n_tensors, sizeof *plan->order);
  XFI_CHECK(plan->order != NULL, XFER_ERR_NOMEM, "%zu tensors", plan->n_tensors);
  if (given != NULL) {
    if (plan->n_tensors > 0) memcpy(plan->order, given, plan->n_tensors * sizeof *given);
    return XFER_OK;
  }
  for (size_t c = 0; c < plan->n_classes; c++)
    for (int bytes = plan->classes[c].wire_bytes / 2; bytes > 0; bytes /= 2)
      next[bytes] += plan->classes[c].n_tensors;
  for (size_t t = 0; t < plan->n_tensors; t++)
    plan->order[next[xfi_plan_class(plan, t)->wire_bytes]++] = (uint32_t)t;
done:
  return st;
}

xfer_status xfi_moves_begin(const xfi_plan *plan, xfi_move_list *list)
{
  xfer_status st = XFER_OK;

  list->peer_bytes = xfi_calloc((size_t)plan->n_ranks, sizeof *list->peer_bytes);
  XFI_CHECK(list->peer_bytes != NULL, XFER_ERR_NOMEM, "%d ranks", plan->n_ranks);
done:
  return st;
}

xfer_status xfi_move_add(xfi_move_list *list, xfi_move move, uint64_t n_bytes)
{
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_vec_reserve(&list->moves, &list->capacity, list->n_moves + 1, sizeof *list->moves));
  list->moves[list->n_moves++] = move;
  if (list->peer_bytes != NULL) list->peer_bytes[move.peer] += n_bytes;
done:
  return st;
}

/* A box of a flow from this rank's source part, for one tensor. */
typedef struct send_job {
  xfi_plan *plan;
  const xfi_class *cls;
  uint32_t tensor;
  size_t box; /* in cls->sends */
  int my_replica;
  xfi_turn turn; /* its dst_replica varies */
} send_job;

/* Offer one stripe to one destination rank, which is next in turn. */
static xfer_status try_send(send_job *job, int peer)
{
  xfi_plan *plan = job->plan;
  xfer_status st = XFER_OK;
  uint64_t n_bytes;
  xfi_move move = {job->tensor, peer, (uint32_t)job->box, (uint16_t)job->turn.stripe,
                   (uint16_t)job->turn.n_stripes};

  if (move.peer == plan->rank) return XFER_OK; /* a self-copy, found on the receiving side */
  if (xfi_choose_source(plan, job->cls, &job->turn, move.peer) != plan->rank) return XFER_OK;
  n_bytes = xfi_move_bytes(job->cls, &job->cls->sends, &move);
  XFI_CHECK(xfi_add_fits(plan->out_bytes, n_bytes, &plan->out_bytes), XFER_ERR_OVERFLOW,
            "the bytes that rank %d sends do not fit in 64 bits", plan->rank);
  XFI_TRY(xfi_move_add(&plan->sends, move, job->cls->broadcast ? 0 : n_bytes));
done:
  return st;
}

/* Every destination replica that can have chosen this rank for a stripe: without domains. */
static xfer_status send_stripe(send_job *job)
{
  const xfi_class *cls = job->cls;
  const int step = cls->broadcast ? 1 : xfi_part_n_replicas(cls->src, job->turn.src_part);
  const int n_replicas = xfi_part_n_replicas(cls->dst, job->turn.dst_part);
  xfer_status st = XFER_OK;
  int first = 0;

  if (!cls->broadcast) {
    job->turn.dst_replica = 0;
    first = job->my_replica - xfi_choose_replica(cls, &job->turn);
    if (first < 0) first += step;
  }
  for (int r = first; r < n_replicas; r += step) {
    job->turn.dst_replica = r;
    XFI_TRY(try_send(job, xfi_part_rank(cls->dst, job->turn.dst_part, r)));
  }
done:
  return st;
}

/* All stripes of a box to a destination replica, that the ranks of its domain do not share out
 * otherwise. */
static xfer_status send_to_domain(send_job *job, int replica)
{
  const xfi_class *cls = job->cls;
  const int rank = xfi_part_rank(cls->dst, job->turn.dst_part, replica);
  const xfi_sharers sharers =
      xfi_find_sharers(job->plan, cls, job->turn.src_part, job->turn.dst_part, rank);
  xfer_status st = XFER_OK;

  job->turn.dst_replica = xfi_turn_replica(job->plan, sharers, rank, replica);
  job->turn.n_stripes =
      xfi_stripe_count(cls, xfi_flows_length(&cls->sends, job->box),
                       xfi_part_n_replicas(cls->src, job->turn.src_part), sharers.n);
  for (job->turn.stripe = 0; job->turn.stripe < job->turn.n_stripes; job->turn.stripe++)
    if (xfi_taker(cls, &job->turn, sharers.n) == sharers.index) XFI_TRY(try_send(job, rank));
done:
  return st;
}

static xfer_status send_box(send_job *job)
{
  const xfi_class *cls = job->cls;
  const int n_replicas = xfi_part_n_replicas(cls->dst, job->turn.dst_part);
  xfer_status st = XFER_OK;

  if (job->plan->options.ranks_per_domain > 0 && !cls->broadcast) {
    for (int r = 0; r < n_replicas; r++)
      XFI_TRY(send_to_domain(job, r));
    return XFER_OK;
  }
  job->turn.n_stripes = xfi_stripe_count(cls, xfi_flows_length(&cls->sends, job->box),
                                         xfi_part_n_replicas(cls->src, job->turn.src_part), 1);
  for (; job->turn.stripe < job->turn.n_stripes; job->turn.stripe++)
    XFI_TRY(send_stripe(job));
done:
  return st;
}

static xfer_status send_tensor(xfi_plan *plan, uint32_t tensor)
{
  const xfi_class *cls = xfi_plan_class(plan, tensor);
  send_job job = {.plan = plan, .cls = cls, .tensor = tensor};
  xfer_status st = XFER_OK;

  for (size_t f = 0; f < cls->sends.n; f++) {
    const xfi_flow *flow = &cls->sends.at[f];

    job.my_replica = flow->my_replica;
    for (size_t b = 0; b < flow->n; b++) {
      job.box = flow->first + b;
      job.turn = (xfi_turn){plan->tensors[tensor].ordinal, b, 0, 1, flow->mine, flow->part, 0};
      XFI_TRY(send_box(&job));
    }
  }
done:
  return st;
}

static xfer_status receive_box(xfi_plan *plan, uint32_t tensor, const xfi_flow *flow,
                               size_t box_in_flow)
{
  const xfi_class *cls = xfi_plan_class(plan, tensor);
  xfer_status st = XFER_OK;
  xfi_move move = {tensor, plan->rank, (uint32_t)(flow->first + box_in_flow), 0, 1};
  xfi_turn turn;

  if (xfi_part_replica(cls->src, flow->part, plan->rank) >= 0) {
    plan->self_bytes += xfi_move_bytes(cls, &cls->recvs, &move);
    return xfi_move_add(&plan->selfs, move, 0);
  }
  xfi_turn_begin(&turn, plan, cls, flow, box_in_flow, plan->tensors[tensor].ordinal);
  move.n_stripes = (uint16_t)turn.n_stripes;
  for (; turn.stripe < turn.n_stripes; turn.stripe++) {
    if (xfi_taker(cls, &turn, flow->sharers.n) != flow->sharers.index) continue;
    move.stripe = (uint16_t)turn.stripe;
    move.peer = xfi_choose_source(plan, cls, &turn, plan->rank);
    XFI_TRY(xfi_move_add(&plan->recvs, move,
                         cls->broadcast ? 0 : xfi_move_bytes(cls, &cls->recvs, &move)));
  }
done:
  return st;
}

static xfer_status receive_tensor(xfi_plan *plan, uint32_t tensor)
{
  const xfi_class *cls = xfi_plan_class(plan, tensor);
  xfer_status st = XFER_OK;

  if (!cls->in_dst) return XFER_OK;
  XFI_CHECK(xfi_add_fits(plan->in_bytes, cls->dst_bytes, &plan->in_bytes), XFER_ERR_OVERFLOW,
            "the bytes that rank %d receives do not fit in 64 bits", plan->rank);
  plan->zero_bytes += cls->zero_bytes;
  for (size_t f = 0; f < cls->recvs.n; f++)
    for (size_t b = 0; b < cls->recvs.at[f].n; b++)
      XFI_TRY(receive_box(plan, tensor, &cls->recvs.at[f], b));
done:
  return st;
}

xfer_status xfi_moves_group(const xfi_plan *plan, xfi_move_list *list)
{
  xfer_status st = XFER_OK;
  xfi_move *sorted = xfi_calloc(list->n_moves, sizeof *sorted);
  size_t *next =
      xfi_calloc((size_t)plan->n_ranks + 1, sizeof *next); /* [rank] where its next move goes */
  size_t n_peers = 0;

  XFI_CHECK(sorted != NULL && next != NULL, XFER_ERR_NOMEM, "%zu moves", list->n_moves);
  for (size_t i = 0; i < list->n_moves; i++)
    next[list->moves[i].peer + 1]++;
  for (int r = 0; r < plan->n_ranks; r++)
    n_peers += next[r + 1] > 0;
  list->peers = xfi_calloc(n_peers, sizeof *list->peers);
  XFI_CHECK(list->peers != NULL, XFER_ERR_NOMEM, "%zu peers", n_peers);
  for (int r = 0; r < plan->n_ranks; r++) {
    const size_t n = next[r + 1];

    next[r + 1] += next[r];
    if (n > 0) list->peers[list->n_peers++] = (xfi_peer){r, next[r], n, list->peer_bytes[r]};
  }
  for (size_t i = 0; i < list->n_moves; i++)
    sorted[next[list->moves[i].peer]++] = list->moves[i];
  xfi_free(list->moves);
  list->moves = sorted;
  list->capacity = list->n_moves;
  sorted = NULL;
  xfi_free(list->peer_bytes);
  list->peer_bytes = NULL;
done:
  xfi_free(sorted);
  xfi_free(next);
  return st;
}

/* A class is filled when its first tensor comes: its moves are then made from what is at hand. */
static xfer_status fill_class(xfi_plan *plan, uint32_t tensor, xfi_scratch *scratch)
{
  xfi_class *cls = &plan->classes[plan->tensors[tensor].class_index];
  xfer_status st = XFER_OK;

  if (cls->is_filled) return XFER_OK;
  XFI_TRY(xfi_class_fill(cls, plan, scratch));
  cls->is_filled = true;
done:
  return st;
}

/* The tensor at a place in the order will be planned soon. */
static void expect(const xfi_plan *plan, size_t at, int step)
{
  const xfi_class *cls;

  if (at >= plan->n_tensors) return;
  cls = xfi_plan_class(plan, plan->order[at]);
  if (cls->is_filled) return;
  xfi_layout_fetch(cls->src, plan->rank, step);
  xfi_layout_fetch(cls->dst, plan->rank, step);
}

xfer_status xfi_moves_fill(xfi_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_scratch scratch = {0};

  XFI_TRY(xfi_moves_begin(plan, &plan->sends));
  XFI_TRY(xfi_moves_begin(plan, &plan->recvs));
  for (size_t i = 0; i < plan->n_tensors; i++) {
    for (int step = 0; step < XFI_FETCH_STEPS; step++)
      expect(plan, i + (size_t)(XFI_FETCH_STEPS - step), step);
    XFI_TRY(fill_class(plan, plan->order[i], &scratch));
    XFI_TRY(send_tensor(plan, plan->order[i]));
    XFI_TRY(receive_tensor(plan, plan->order[i]));
  }
  XFI_TRY(xfi_moves_group(plan, &plan->sends));
  XFI_TRY(xfi_moves_group(plan, &plan->recvs));
done:
  xfi_scratch_free(&scratch);
  return st;
}
