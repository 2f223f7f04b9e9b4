/*
 * The packed lane. All that goes to one peer is one sequence of bytes, the boxes of its moves one
 * after the other, which is cut in windows. Window k of a pair travels in the same round on both
 * ends:
 *
 *   block = (distance from sender to receiver - 1) / PEERS_PER_ROUND,  round = k * n_blocks + block
 *
 * so a round has at most one window per peer and PEERS_PER_ROUND peers each way, every rank issues
 * its rounds in increasing order, and no rank needs to know about other pairs.
 *
 * A window is one message. If a pair has few windows and the comm takes several messages, a large
 * part of one move is a message of its own, alike on both ends. A message that is one run of the
 * caller's memory on an end needs no slot there.
 */
#include "pipeline.h"

#include <string.h>

#include "alloc.h"
#include "direct.h"
#include "error.h"
#include "peers.h"
#include "staging.h"
#include "vec.h"
#include "wire.h"

#define PEERS_PER_ROUND (XFI_ROUND_MESSAGES / 2)
enum {
  SHORT_TRANSFER = 4,  /* a short transfer has at most so many windows */
  ALONE_PER_WINDOW = 8 /* in a window at most so many parts are messages of their own */
};

/* What goes to a peer or comes from it, and how far its bytes have been cut up. */
typedef struct transfer {
  const xfi_peer *peer;
  bool send;
  int block;
  uint64_t n_bytes;
  uint64_t n_cut;
  size_t move; /* the next one, relative to peer->first, */
  uint64_t at; /* and how many of the transfer's bytes come before it */
} transfer;

/* Sorted by block, then sends first, then by rank. No transfer is empty. */
typedef struct transfers {
  transfer *at;
  size_t n;
} transfers;

static int block_of(const xfi_moves *m, bool send, int peer)
{
  const int distance = send ? peer - m->rank : m->rank - peer;

  return ((distance + m->n_ranks) % m->n_ranks - 1) / PEERS_PER_ROUND;
}

/* The most peers that share a block. In the order of distance those of a block are adjacent. */
static int most_in_block(const xfi_moves *m, const xfi_move_list *list, bool send)
{
  int most = 0;
  int n = 0;
  int last = -1;

  for (size_t i = 0; i < list->n_peers; i++) {
    const size_t p = xfi_peer_by_distance(list, m->rank, send, i);
    const int block = block_of(m, send, list->peers[p].rank);

    n = block == last ? n + 1 : 1;
    last = block;
    if (n > most) most = n;
  }
  return most;
}

int xfi_packed_most(const xfi_moves *m)
{
  return most_in_block(m, &m->sends, true) + most_in_block(m, &m->recvs, false);
}

static int by_block(const void *a, const void *b)
{
  const transfer *x = a;
  const transfer *y = b;

  if (x->block != y->block) return x->block < y->block ? -1 : 1;
  if (x->send != y->send) return x->send ? -1 : 1;
  return (x->peer->rank > y->peer->rank) - (x->peer->rank < y->peer->rank);
}

/* Why a transfer is packed: the part of the report's text after "packed: ". */
static const char *reason(const transfer *t, const xfer_plan *plan)
{
  const size_t peer = (size_t)(t->peer - xfi_plan_moves(plan, t->send)->peers);
  const char *lane = xfi_direct_lane(plan, false, t->send, peer);
  const char *colon = strchr(lane, ':');

  return colon == NULL ? lane : colon + 2;
}

/* Add the transfers of one list that no other lane carries. */
static void add_transfers(transfers *list, const xfer_plan *plan, bool send)
{
  const xfi_moves *m = plan->moves;
  const xfi_move_list *moves = xfi_plan_moves(plan, send);

  for (size_t p = 0; p < moves->n_peers; p++) {
    const xfi_peer *peer = &moves->peers[p];
    const int block = block_of(m, send, peer->rank);

    if (xfi_plan_has_unicast(plan, peer) && !xfi_direct_carries(plan->lanes.direct, send, p) &&
        !xfi_plan_shares(plan, peer->rank))
      list->at[list->n++] =
          (transfer){peer, send, block, xfi_plan_unicast_bytes(plan, send, peer), 0, 0, 0};
  }
}

/* List all transfers of the lane. The caller frees the list, also after a failure. */
static xfer_status list_transfers(transfers *list, const xfer_plan *plan)
{
  const size_t most = plan->moves->sends.n_peers + plan->moves->recvs.n_peers;

  *list = (transfers){xfi_calloc(most, sizeof *list->at), 0};
  XFI_CHECK(list->at != NULL, XFER_ERR_NOMEM, "%zu peers", most);
  add_transfers(list, plan, true);
  add_transfers(list, plan, false);
  xfi_sort(list->at, list->n, sizeof *list->at, by_block);
  XFI_CHECK(
      list->n == 0 || plan->lanes.direct == NULL || plan->comm->ops->round != NULL,
      XFER_ERR_UNSUPPORTED,
      "nothing can go between rank %d and rank %d, since this comm has no other way than direct "
      "copies; %s",
      plan->moves->rank, list->at->peer->rank, reason(list->at, plan));
  return XFER_OK;
}

static size_t block_end(const transfers *list, size_t first)
{
  size_t end = first;

  while (end < list->n && list->at[end].block == list->at[first].block)
    end++;
  return end;
}

/* Bytes of a transfer's next window. */
static size_t window_bytes(const transfer *t, const xfer_plan *plan)
{
  const uint64_t left = t->n_bytes - t->n_cut;

  return (size_t)(left < plan->window_bytes ? left : plan->window_bytes);
}

/* The first round of each block needs the most: a transfer's first window is its largest. */
xfer_status xfi_packed_measure(xfi_pipeline *p, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  transfers list;

  XFI_TRY_DONE(list_transfers(&list, plan));
  for (size_t i = 0, end; i < list.n; i = end) {
    size_t n_bytes[2] = {0, 0}; /* of receives, of sends */

    end = block_end(&list, i);
    for (size_t k = i; k < end; k++) {
      n_bytes[list.at[k].send] += xfi_slot_aligned(window_bytes(&list.at[k], plan));
      if (list.at[k].send) p->sent_bytes += list.at[k].n_bytes;
    }
    for (int send = 0; send < 2; send++)
      if (n_bytes[send] > p->slot_bytes[send]) p->slot_bytes[send] = n_bytes[send];
  }
done:
  xfi_free(list.at);
  return st;
}

/* ---- steps ---- */

/* The part [first, end) of a move, in elements. */
typedef struct part {
  const xfi_move *move;
  const xfi_class *cls;
  int64_t first;
  int64_t end;
  size_t n_bytes;
} part;

/* Cut off the next part of the transfer's bytes, which ends at `end` at the latest. False: there is
 * none. */
static bool cut(part *out, transfer *t, const xfer_plan *plan, uint64_t end)
{
  const xfi_move *moves = xfi_plan_moves(plan, t->send)->moves + t->peer->first;

  while (t->n_cut < end) {
    const xfi_move *move = &moves[t->move];
    const xfi_class *cls = xfi_moves_class(plan->moves, move->tensor);
    const uint64_t elem = (uint64_t)cls->wire_bytes;
    const uint64_t before = t->n_cut;
    const uint64_t last = xfi_plan_broadcasts(plan, cls)
                              ? t->at
                              : t->at + xfi_move_bytes(cls, xfi_class_flows(cls, t->send), move);

    t->n_cut = last < end ? last : end;
    *out = (part){move, cls, (int64_t)((before - t->at) / elem),
                  (int64_t)((t->n_cut - t->at) / elem), (size_t)(t->n_cut - before)};
    if (last <= end) {
      t->at = last;
      t->move++;
    }
    if (out->n_bytes > 0) return true;
  }
  return false;
}

/* The messages that a transfer may have in a round, with the same number for all others. */
static int most_messages(const xfer_plan *plan)
{
  return plan->comm->ops->takes_several ? XFI_ROUND_MESSAGES / plan->round_windows : 1;
}

/* From how many bytes on a part of the transfer's next window is a message of its own, alike on
 * both ends. In a long transfer packing overlaps with other windows, so a single message for each
 * is fastest. */
static size_t least_alone(const transfer *t, const xfer_plan *plan)
{
  const size_t n_bytes = window_bytes(t, plan) / ALONE_PER_WINDOW;

  if (t->n_bytes > SHORT_TRANSFER * plan->window_bytes) return SIZE_MAX;
  return n_bytes > XFI_MIN_UNPACKED_BYTES ? n_bytes : XFI_MIN_UNPACKED_BYTES;
}

/* All copies of the message are listed. If they are a single run, the caller's memory becomes the
 * message, unless the comm cannot use it as fast as a slot. */
static void end_message(xfi_message *m, const xfer_plan *plan, bool send, xfi_copies *copies,
                        size_t first)
{
  const xfi_comm_ops *comm = plan->comm->ops;
  const xfi_copy *copy = &copies->at[first];
  char *data = send ? (char *)copy->src /* a send is not written */ : copy->dst;

  if (m->n_bytes < XFI_MIN_UNPACKED_BYTES || copies->n != first + 1 || copy->convert != NULL ||
      (size_t)copy->run_bytes != m->n_bytes || (!send && !comm->recv_direct) ||
      (comm->fast_unit != 0 && (uintptr_t)data % comm->fast_unit != 0))
    return;
  m->data = data;
  copies->n--;
}

static xfi_message *begin_message(xfi_step *step, const transfer *t, char *slot)
{
  xfi_message *m = &step->messages[step->n_sends + step->n_recvs];

  *(t->send ? &step->n_sends : &step->n_recvs) += 1;
  *m = (xfi_message){slot, 0, t->peer->rank};
  return m;
}

static xfer_status add_window(xfi_step *step, const xfer_plan *plan, transfer *t, char *slot)
{
  const uint64_t end = t->n_cut + window_bytes(t, plan);
  const size_t alone = least_alone(t, plan);
  xfi_copies *copies = &step->copies[t->send];
  xfi_message *m = begin_message(step, t, slot);
  size_t first = copies->n;
  int n_left = most_messages(plan) - 1;
  bool is_alone = false; /* the message is one large part */
  uint64_t at = 0;       /* of the window */
  part p;

  for (; cut(&p, t, plan, end); at += p.n_bytes) {
    const bool may_begin = at > 0 && at % XFI_SLOT_ALIGN == 0 && n_left > 0;
    xfi_box box;

    if (may_begin && (is_alone || p.n_bytes >= alone)) {
      end_message(m, plan, t->send, copies, first);
      m = begin_message(step, t, slot + at);
      first = copies->n;
      n_left--;
    }
    xfi_move_box(&box, p.cls, xfi_class_flows(p.cls, t->send), p.move);
    XFI_TRY(xfi_slot_copies(copies, plan, &(xfi_elem_range){p.move->tensor, &box, p.first, p.end},
                            slot + at, t->send));
    m->n_bytes += p.n_bytes;
    is_alone = p.n_bytes >= alone;
  }
  end_message(m, plan, t->send, copies, first);
  return XFER_OK;
}

/* Add the round of the next windows of the `n` transfers of a block, if any are left. */
static xfer_status add_round(xfi_pipeline *p, const xfer_plan *plan, transfer *at, size_t n)
{
  char *slots[2] = {xfi_steps_slot(p, p->n_steps, false), xfi_steps_slot(p, p->n_steps, true)};
  xfi_step *step = NULL;

  for (transfer *t = at; t < at + n; t++) {
    const size_t n_bytes = window_bytes(t, plan);

    if (n_bytes == 0) continue;
    if (step == NULL) XFI_TRY(xfi_steps_add(&step, p, (int)n * most_messages(plan)));
    XFI_TRY(add_window(step, plan, t, slots[t->send]));
    slots[t->send] += xfi_slot_aligned(n_bytes);
  }
  return XFER_OK;
}

xfer_status xfi_packed_add(xfi_pipeline *p, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  uint64_t longest = 0;
  transfers list;

  XFI_TRY_DONE(list_transfers(&list, plan));
  for (size_t i = 0; i < list.n; i++)
    if (list.at[i].n_bytes > longest) longest = list.at[i].n_bytes;
  for (uint64_t first = 0; first < longest; first += plan->window_bytes)
    for (size_t i = 0, end; i < list.n; i = end) {
      end = block_end(&list, i);
      XFI_TRY_DONE(add_round(p, plan, &list.at[i], end - i));
    }
done:
  xfi_free(list.at);
  return st;
}
