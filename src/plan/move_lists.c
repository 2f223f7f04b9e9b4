/*
 * Moves: the flows of each class, once per tensor, with the peer that each box comes from or goes
 * to.
 *
 * A receiver asks choose.c for the source of each stripe that it takes. A sender steps through the
 * destination replicas that can have chosen it: the choice adds the replica's number to a rotation
 * and takes it modulo the number of sources, so they lie n_sources apart. Where domains say who the
 * sources are, it looks at each replica once per class, and steps through the class's tensors.
 */
#include "move_lists.h"

#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "choose.h"
#include "class.h"
#include "error.h"
#include "vec.h"

/* The bytes of an element of the largest dtype. */
enum { MAX_ELEM_BYTES = 8 };

xfer_status xfi_moves_set_order(xfi_moves *moves, const uint32_t *given)
{
  size_t next[MAX_ELEM_BYTES + 1] = {0}; /* by wire_bytes: where in the order */

  moves->order = xfi_calloc(moves->n_tensors, sizeof *moves->order);
  XFI_CHECK(moves->order != NULL, XFER_ERR_NOMEM, "%zu tensors", moves->n_tensors);
  if (given != NULL) {
    if (moves->n_tensors > 0) memcpy(moves->order, given, moves->n_tensors * sizeof *given);
    return XFER_OK;
  }
  for (size_t c = 0; c < moves->n_classes; c++)
    for (int bytes = moves->classes[c].wire_bytes / 2; bytes > 0; bytes /= 2)
      next[bytes] += moves->classes[c].n_tensors;
  for (size_t t = 0; t < moves->n_tensors; t++)
    moves->order[next[xfi_moves_class(moves, t)->wire_bytes]++] = (uint32_t)t;
  return XFER_OK;
}

xfer_status xfi_moves_begin(const xfi_moves *moves, xfi_move_list *list)
{
  list->peer_bytes = xfi_calloc((size_t)moves->n_ranks, sizeof *list->peer_bytes);
  XFI_CHECK(list->peer_bytes != NULL, XFER_ERR_NOMEM, "%d ranks", moves->n_ranks);
  return XFER_OK;
}

xfer_status xfi_move_add(xfi_move_list *list, xfi_move move, uint64_t n_bytes)
{
  XFI_CHECK(list->n_moves < XFI_MOST_MOVES, XFER_ERR_OVERFLOW,
            "a rank sends or receives in more than %zu moves, the most that its plan may have",
            XFI_MOST_MOVES);
  XFI_TRY(XFI_APPEND(list->moves, list->n_moves, list->capacity, move));
  if (list->peer_bytes != NULL) list->peer_bytes[move.peer] += n_bytes;
  return XFER_OK;
}

static xfer_status add_send(xfi_moves *moves, const xfi_class *cls, uint32_t tensor, size_t box,
                            const xfi_turn *turn, int peer)
{
  const xfi_move move = {tensor, peer, (uint32_t)box, (uint16_t)turn->stripe,
                         (uint16_t)turn->n_stripes};
  const uint64_t n_bytes = xfi_move_bytes(cls, &cls->sends, &move);

  XFI_CHECK(xfi_add_fits(moves->out_bytes, n_bytes, &moves->out_bytes), XFER_ERR_OVERFLOW,
            "the bytes that rank %d sends do not fit in 64 bits", moves->rank);
  return xfi_move_add(&moves->sends, move, cls->broadcast ? 0 : n_bytes);
}

/* ---- sends of a tensor ---- */

/* A box of a flow from this rank's source part, for one tensor, and to whom it may go. */
typedef struct send_job {
  xfi_moves *moves;
  const xfi_class *cls;
  uint32_t tensor;
  size_t box; /* in cls->sends */
  int my_replica;
  xfi_turn turn; /* its dst_replica varies */
} send_job;

/* Add the moves of a stripe to every destination replica that has chosen this rank as its source.
 */
static xfer_status send_stripe(send_job *job)
{
  const xfi_class *cls = job->cls;
  const int step = cls->broadcast ? 1 : xfi_part_n_replicas(cls->src, job->turn.src_part);
  const int n_replicas = xfi_part_n_replicas(cls->dst, job->turn.dst_part);
  int first = 0;

  if (!cls->broadcast) {
    job->turn.dst_replica = 0;
    first = job->my_replica - xfi_choose_replica(cls, &job->turn);
    if (first < 0) first += step;
  }
  for (int r = first; r < n_replicas; r += step) {
    const int peer = xfi_part_rank(cls->dst, job->turn.dst_part, r);

    job->turn.dst_replica = r;
    if (peer == job->moves->rank) continue; /* a self-copy, found on the receiving side */
    if (xfi_choose_source(job->moves, cls, &job->turn, peer) == job->moves->rank)
      XFI_TRY(add_send(job->moves, cls, job->tensor, job->box, &job->turn, peer));
  }
  return XFER_OK;
}

static xfer_status send_tensor(xfi_moves *moves, uint32_t tensor)
{
  const xfi_class *cls = xfi_moves_class(moves, tensor);
  send_job job = {.moves = moves, .cls = cls, .tensor = tensor};

  for (size_t f = 0; f < cls->sends.n; f++) {
    const xfi_flow *flow = &cls->sends.at[f];

    job.my_replica = flow->my_replica;
    for (size_t b = 0; b < flow->n; b++) {
      job.box = flow->first + b;
      job.turn = (xfi_turn){moves->tensors[tensor].ordinal, b, 0, 1, flow->mine, flow->part, 0};
      job.turn.n_stripes = xfi_stripe_count(cls, xfi_flows_length(&cls->sends, job.box),
                                            xfi_part_n_replicas(cls->src, flow->mine), 1);
      for (; job.turn.stripe < job.turn.n_stripes; job.turn.stripe++)
        XFI_TRY(send_stripe(&job));
    }
  }
  return XFER_OK;
}

/* ---- sends of a class, where there are domains ---- */

/* What this rank may send to the ranks of one domain, in turn with the other sources of a flow. */
typedef struct offer {
  xfi_moves *moves;
  const xfi_class *cls;
  const xfi_flow *flow;
  const uint32_t *by_ordinal; /* tensors */
  int n_sources;
  int mine;  /* this one among them */
  bool near; /* they are those in the domain */
} offer;

/* Add the moves of a stripe to one rank of the domain: of those tensors in whose turn this rank is
 * the source. */
static xfer_status offer_stripe(const offer *o, xfi_turn turn, xfi_sharers sharers, int peer)
{
  const xfi_class *cls = o->cls;
  int i = o->mine -
          (o->near ? xfi_choose_near(cls, &turn, o->n_sources) : xfi_choose_replica(cls, &turn));

  for (size_t t = (size_t)(i < 0 ? i + o->n_sources : i); t < cls->n_tensors;
       t += (size_t)o->n_sources) {
    turn.ordinal = cls->first_ordinal + (uint32_t)t;
    if (xfi_taker(cls, &turn, sharers.n) == sharers.index)
      XFI_TRY(add_send(o->moves, cls, o->by_ordinal[turn.ordinal], o->flow->first + turn.box, &turn,
                       peer));
  }
  return XFER_OK;
}

/* A rank that holds a part. */
typedef struct holder {
  int rank;
  int replica;
} holder;

/* Adds the moves of a flow to the ranks of one domain that hold the destination part. */
static xfer_status offer_flow(const offer *o, const holder *to, int n)
{
  const xfi_class *cls = o->cls;
  const xfi_flow *flow = o->flow;
  const int n_replicas = xfi_part_n_replicas(cls->src, flow->mine);

  for (int i = 0; i < n; i++) {
    const xfi_sharers sharers = o->near ? (xfi_sharers){1, 0} : (xfi_sharers){n, i};

    if (o->near && xfi_part_replica(cls->src, flow->mine, to[i].rank) >= 0) continue; /* its own */
    for (size_t b = 0; b < flow->n; b++) {
      const int64_t *length = xfi_flows_length(&cls->sends, flow->first + b);
      xfi_turn turn = {cls->first_ordinal,
                       b,
                       0,
                       xfi_stripe_count(cls, length, n_replicas, sharers.n),
                       flow->mine,
                       flow->part,
                       xfi_turn_replica(o->moves, sharers, to[i].rank, to[i].replica)};

      for (; turn.stripe < turn.n_stripes; turn.stripe++)
        XFI_TRY(offer_stripe(o, turn, sharers, to[i].rank));
    }
  }
  return XFER_OK;
}

static int by_rank(const void *a, const void *b)
{
  const holder *x = a;
  const holder *y = b;

  return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Lists the ranks that hold a part, by rank, so those of one domain follow each other. */
static xfer_status find_holders(holder **holders, int *n, const xfer_layout *layout, uint32_t part)
{
  *n = xfi_part_n_replicas(layout, part);
  *holders = xfi_calloc((size_t)*n, sizeof **holders);
  XFI_CHECK(*holders != NULL, XFER_ERR_NOMEM, "%d ranks", *n);
  for (int r = 0; r < *n; r++)
    (*holders)[r] = (holder){xfi_part_rank(layout, part, r), r};
  xfi_sort(*holders, (size_t)*n, sizeof **holders, by_rank);
  return XFER_OK;
}

/* The index behind the last holder that is in the same domain as holder `first`. */
static int domain_end(const holder *at, int first, int n, uint32_t size)
{
  int end = first;

  while (end < n && (uint32_t)at[end].rank / size == (uint32_t)at[first].rank / size)
    end++;
  return end;
}

static xfer_status send_flow(xfi_moves *moves, const xfi_class *cls, const xfi_flow *flow,
                             const uint32_t *by_ordinal)
{
  const uint32_t size = moves->options.ranks_per_domain;
  xfer_status st = XFER_OK;
  holder *from = NULL;
  holder *to = NULL;
  int n_from;
  int n_to;
  int s = 0;

  XFI_TRY_DONE(find_holders(&from, &n_from, cls->src, flow->mine));
  XFI_TRY_DONE(find_holders(&to, &n_to, cls->dst, flow->part));
  for (int first = 0, end; first < n_to; first = end) {
    offer o = {moves, cls, flow, by_ordinal, 0, -1, true};

    end = domain_end(to, first, n_to, size);
    while (s < n_from && (uint32_t)from[s].rank / size < (uint32_t)to[first].rank / size)
      s++;
    for (; s < n_from && (uint32_t)from[s].rank / size == (uint32_t)to[first].rank / size; s++) {
      if (from[s].rank == moves->rank) o.mine = o.n_sources;
      o.n_sources++;
    }
    if (o.n_sources == 0)
      o = (offer){moves, cls, flow, by_ordinal, n_from, flow->my_replica, false};
    if (o.mine >= 0) XFI_TRY_DONE(offer_flow(&o, to + first, end - first));
  }
done:
  xfi_free(from);
  xfi_free(to);
  return st;
}

static xfer_status receive_box(xfi_moves *moves, uint32_t tensor, const xfi_flow *flow,
                               size_t box_in_flow)
{
  const xfi_class *cls = xfi_moves_class(moves, tensor);
  xfi_move move = {tensor, moves->rank, (uint32_t)(flow->first + box_in_flow), 0, 1};
  xfi_turn turn;

  if (xfi_part_replica(cls->src, flow->part, moves->rank) >= 0) {
    moves->self_bytes += xfi_move_bytes(cls, &cls->recvs, &move);
    return xfi_move_add(&moves->selfs, move, 0);
  }
  xfi_turn_begin(&turn, moves, cls, flow, box_in_flow, moves->tensors[tensor].ordinal);
  move.n_stripes = (uint16_t)turn.n_stripes;
  for (; turn.stripe < turn.n_stripes; turn.stripe++) {
    if (xfi_taker(cls, &turn, flow->sharers.n) != flow->sharers.index) continue;
    move.stripe = (uint16_t)turn.stripe;
    move.peer = xfi_choose_source(moves, cls, &turn, moves->rank);
    XFI_TRY(xfi_move_add(&moves->recvs, move,
                         cls->broadcast ? 0 : xfi_move_bytes(cls, &cls->recvs, &move)));
  }
  return XFER_OK;
}

static xfer_status receive_tensor(xfi_moves *moves, uint32_t tensor)
{
  const xfi_class *cls = xfi_moves_class(moves, tensor);

  if (!cls->in_dst) return XFER_OK;
  XFI_CHECK(xfi_add_fits(moves->in_bytes, cls->dst_bytes, &moves->in_bytes), XFER_ERR_OVERFLOW,
            "the bytes that rank %d receives do not fit in 64 bits", moves->rank);
  moves->zero_bytes += cls->zero_bytes;
  for (size_t f = 0; f < cls->recvs.n; f++)
    for (size_t b = 0; b < cls->recvs.at[f].n; b++)
      XFI_TRY(receive_box(moves, tensor, &cls->recvs.at[f], b));
  return XFER_OK;
}

/* Replace the moves of a list by the same ones in another order. */
static void take_moves(xfi_move_list *list, xfi_move **sorted)
{
  xfi_free(list->moves);
  list->moves = *sorted;
  list->capacity = list->n_moves;
  *sorted = NULL;
}

xfer_status xfi_moves_group(const xfi_moves *moves, xfi_move_list *list)
{
  xfer_status st = XFER_OK;
  xfi_move *sorted = xfi_calloc(list->n_moves, sizeof *sorted);
  size_t *next =
      xfi_calloc((size_t)moves->n_ranks + 1, sizeof *next); /* [rank] where its next move goes */
  size_t n_peers = 0;

  XFI_CHECK_DONE(sorted != NULL && next != NULL, XFER_ERR_NOMEM, "%zu moves", list->n_moves);
  for (size_t i = 0; i < list->n_moves; i++)
    next[list->moves[i].peer + 1]++;
  for (int r = 0; r < moves->n_ranks; r++)
    n_peers += next[r + 1] > 0;
  list->peers = xfi_calloc(n_peers, sizeof *list->peers);
  XFI_CHECK_DONE(list->peers != NULL, XFER_ERR_NOMEM, "%zu peers", n_peers);
  for (int r = 0; r < moves->n_ranks; r++) {
    const size_t n = next[r + 1];

    next[r + 1] += next[r];
    if (n > 0) list->peers[list->n_peers++] = (xfi_peer){r, next[r], n, list->peer_bytes[r]};
  }
  for (size_t i = 0; i < list->n_moves; i++)
    sorted[next[list->moves[i].peer]++] = list->moves[i];
  take_moves(list, &sorted);
  xfi_free(list->peer_bytes);
  list->peer_bytes = NULL;
done:
  xfi_free(sorted);
  xfi_free(next);
  return st;
}

/* A class is filled when its first tensor comes: its moves are then made from what is at hand. */
static xfer_status fill_tensor(xfi_moves *moves, uint32_t tensor, const uint32_t *by_ordinal,
                               xfi_scratch *scratch)
{
  xfi_class *cls = &moves->classes[moves->tensors[tensor].class_index];
  const bool by_class = by_ordinal != NULL && !cls->broadcast;

  if (!cls->is_filled) {
    XFI_TRY(xfi_class_fill(cls, moves, scratch));
    cls->is_filled = true;
    for (size_t f = 0; f < cls->sends.n && by_class; f++)
      XFI_TRY(send_flow(moves, cls, &cls->sends.at[f], by_ordinal));
  }
  if (!by_class) XFI_TRY(send_tensor(moves, tensor));
  return receive_tensor(moves, tensor);
}

/* List the tensors by ordinal. Needed only for a plan with domains, whose sends are made class by
 * class. */
static xfer_status list_by_ordinal(const xfi_moves *moves, uint32_t **by_ordinal)
{
  if (moves->options.ranks_per_domain == 0) return XFER_OK;
  *by_ordinal = xfi_calloc(moves->n_tensors, sizeof **by_ordinal);
  XFI_CHECK(*by_ordinal != NULL, XFER_ERR_NOMEM, "%zu tensors", moves->n_tensors);
  for (size_t t = 0; t < moves->n_tensors; t++)
    (*by_ordinal)[moves->tensors[t].ordinal] = (uint32_t)t;
  return XFER_OK;
}

/* Sort moves that were made class by class into the order of tensors. */
static xfer_status order_moves(const xfi_moves *moves, xfi_move_list *list)
{
  xfer_status st = XFER_OK;
  xfi_move *sorted = xfi_calloc(list->n_moves, sizeof *sorted);
  size_t *next = xfi_calloc(moves->n_tensors, sizeof *next); /* [tensor] where its next move goes */
  size_t at = 0;

  XFI_CHECK_DONE(sorted != NULL && next != NULL, XFER_ERR_NOMEM, "%zu moves", list->n_moves);
  for (size_t i = 0; i < list->n_moves; i++)
    next[list->moves[i].tensor]++;
  for (size_t i = 0; i < moves->n_tensors; i++) {
    const size_t n = next[moves->order[i]];

    next[moves->order[i]] = at;
    at += n;
  }
  for (size_t i = 0; i < list->n_moves; i++)
    sorted[next[list->moves[i].tensor]++] = list->moves[i];
  take_moves(list, &sorted);
done:
  xfi_free(sorted);
  xfi_free(next);
  return st;
}

/* Fetch what the tensor at a place of the order needs, which will be planned soon. */
static void expect(const xfi_moves *moves, size_t at, int step)
{
  const xfi_class *cls;

  if (at >= moves->n_tensors) return;
  cls = xfi_moves_class(moves, moves->order[at]);
  if (cls->is_filled) return;
  xfi_layout_fetch(cls->src, moves->rank, step);
  xfi_layout_fetch(cls->dst, moves->rank, step);
}

xfer_status xfi_moves_fill(xfi_moves *moves)
{
  xfer_status st = XFER_OK;
  xfi_scratch scratch = {0};
  uint32_t *by_ordinal = NULL;

  XFI_TRY_DONE(xfi_moves_begin(moves, &moves->sends));
  XFI_TRY_DONE(xfi_moves_begin(moves, &moves->recvs));
  XFI_TRY_DONE(list_by_ordinal(moves, &by_ordinal));
  for (size_t i = 0; i < moves->n_tensors; i++) {
    for (int step = 0; step < XFI_FETCH_STEPS; step++)
      expect(moves, i + (size_t)(XFI_FETCH_STEPS - step), step);
    XFI_TRY_DONE(fill_tensor(moves, moves->order[i], by_ordinal, &scratch));
  }
  if (by_ordinal != NULL) XFI_TRY_DONE(order_moves(moves, &moves->sends));
  XFI_TRY_DONE(xfi_moves_group(moves, &moves->sends));
  XFI_TRY_DONE(xfi_moves_group(moves, &moves->recvs));
done:
  xfi_free(by_ordinal);
  xfi_scratch_free(&scratch);
  return st;
}
