/*
 * The packed lane: all that goes to one peer is one stream of bytes, the boxes of its moves one
 * after the other, cut in windows. Window k of a pair travels in the same round on both ends:
 *
 *   block = (distance from sender to receiver - 1) / PEERS_PER_ROUND,  round = k * n_blocks + block
 *
 * so a round has at most one message per peer and PEERS_PER_ROUND peers each way, every rank issues
 * its rounds in increasing order, and nobody needs to know what other pairs do.
 */
#include "packed.h"

#include <string.h>

#include "alloc.h"
#include "direct.h"
#include "error.h"
#include "vec.h"

#define PEERS_PER_ROUND (XFI_ROUND_MESSAGES / 2)

/* A flow that the lane carries, and how far its stream has been cut up. */
typedef struct flow {
  const xfi_peer *peer;
  bool send;
  int block;
  uint64_t n_bytes;
  size_t move; /* next move, relative to peer->first */
  uint64_t at; /* bytes of the stream before that move */
} flow;

/* By block, sends first, then by rank; each has a stream that is not empty. */
typedef struct flows {
  flow *at;
  size_t n;
} flows;

static int block_of(const xfi_plan *m, bool send, int peer)
{
  const int distance = send ? peer - m->rank : m->rank - peer;

  return ((distance + m->n_ranks) % m->n_ranks - 1) / PEERS_PER_ROUND;
}

/* The most peers that share a block: by distance those of one stand together. */
static int most_in_block(const xfi_plan *m, const xfi_move_list *list, bool send)
{
  int most = 0;
  int n = 0;
  int last = -1;

  for (size_t i = 0; i < list->n_peers; i++) {
    const size_t p = xfi_run_by_distance(list, m->rank, send, i);
    const int block = block_of(m, send, list->peers[p].rank);

    n = block == last ? n + 1 : 1;
    last = block;
    if (n > most) most = n;
  }
  return most;
}

int xfi_packed_most(const xfi_plan *m)
{
  return most_in_block(m, &m->sends, true) + most_in_block(m, &m->recvs, false);
}

static int by_block(const void *a, const void *b)
{
  const flow *x = a;
  const flow *y = b;

  if (x->block != y->block) return x->block < y->block ? -1 : 1;
  if (x->send != y->send) return x->send ? -1 : 1;
  return (x->peer->rank > y->peer->rank) - (x->peer->rank < y->peer->rank);
}

/* Why a flow is packed: what is said of it after "packed: ". */
static const char *reason(const flow *f, const xfer_plan *plan)
{
  const xfi_peer *peers = f->send ? plan->moves->sends.peers : plan->moves->recvs.peers;
  const char *way = xfi_direct_way(plan, false, f->send, (size_t)(f->peer - peers));
  const char *colon = strchr(way, ':');

  return colon == NULL ? way : colon + 2;
}

/* Those of one list that nothing else carries. */
static void add_flows(flows *list, const xfer_plan *plan, bool send)
{
  const xfi_plan *m = plan->moves;
  const xfi_move_list *moves = send ? &m->sends : &m->recvs;

  for (size_t p = 0; p < moves->n_peers; p++) {
    const xfi_peer *peer = &moves->peers[p];
    const int block = block_of(m, send, peer->rank);

    if (xfi_run_has_flow(plan, peer) && !xfi_direct_carries(plan->direct, send, p) &&
        !xfi_run_shares(plan, peer->rank))
      list->at[list->n++] = (flow){peer, send, block, xfi_run_flow_bytes(plan, send, peer), 0, 0};
  }
}

/* All of them; to be freed, whatever it returns. */
static xfer_status list_flows(flows *list, const xfer_plan *plan)
{
  const size_t most = plan->moves->sends.n_peers + plan->moves->recvs.n_peers;

  *list = (flows){xfi_calloc(most, sizeof *list->at), 0};
  XFI_CHECK(list->at != NULL, XFER_ERR_NOMEM, "%zu peers", most);
  add_flows(list, plan, true);
  add_flows(list, plan, false);
  xfi_sort(list->at, list->n, sizeof *list->at, by_block);
  XFI_CHECK(
      list->n == 0 || plan->direct == NULL || plan->comm->ops->round != NULL, XFER_ERR_UNSUPPORTED,
      "nothing can go between rank %d and rank %d, since this comm has no other way than direct "
      "copies; %s",
      plan->moves->rank, list->at->peer->rank, reason(list->at, plan));
  return XFER_OK;
}

static size_t block_end(const flows *list, size_t first)
{
  size_t end = first;

  while (end < list->n && list->at[end].block == list->at[first].block)
    end++;
  return end;
}

/* Bytes of a flow's window that begins at `first`. */
static size_t window_bytes(const flow *f, const xfer_plan *plan, uint64_t first)
{
  const uint64_t left = f->n_bytes > first ? f->n_bytes - first : 0;

  return (size_t)(left < plan->window_bytes ? left : plan->window_bytes);
}

/* No window of a flow is larger than its first, and those of a block meet in one round. */
xfer_status xfi_packed_measure(xfi_pipeline *p, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  flows list;

  XFI_TRY_DONE(list_flows(&list, plan));
  for (size_t i = 0, end; i < list.n; i = end) {
    size_t n_bytes[2] = {0, 0}; /* of receives, of sends */

    end = block_end(&list, i);
    for (size_t k = i; k < end; k++) {
      n_bytes[list.at[k].send] += xfi_slot_aligned(window_bytes(&list.at[k], plan, 0));
      if (list.at[k].send) p->sent_bytes += list.at[k].n_bytes;
    }
    if (n_bytes[1] > p->send_slot_bytes) p->send_slot_bytes = n_bytes[1];
    if (n_bytes[0] > p->recv_slot_bytes) p->recv_slot_bytes = n_bytes[0];
  }
done:
  xfi_free(list.at);
  return st;
}

/* ---- steps ---- */

/* The copies between a slot and the part [first, end) of a flow's stream. Windows come in order, so
 * the flow keeps its place. */
static xfer_status window_copies(xfi_copies *copies, const xfer_plan *plan, flow *f, uint64_t first,
                                 uint64_t end, char *slot)
{
  const xfi_move_list *list = f->send ? &plan->moves->sends : &plan->moves->recvs;

  for (uint64_t n_bytes; f->move < f->peer->n && f->at < end; f->at += n_bytes, f->move++) {
    const xfi_move *move = &list->moves[f->peer->first + f->move];
    const xfi_class *cls = xfi_plan_class(plan->moves, move->tensor);
    const xfi_flows *boxes = f->send ? &cls->sends : &cls->recvs;
    const uint64_t elem = (uint64_t)cls->wire_bytes;
    const uint64_t from = f->at > first ? f->at : first;
    xfi_box box;

    n_bytes = xfi_run_broadcasts(plan, cls) ? 0 : xfi_move_bytes(cls, boxes, move);
    const uint64_t to = f->at + n_bytes < end ? f->at + n_bytes : end;

    xfi_move_box(&box, cls, boxes, move);
    if (from < to)
      XFI_TRY(xfi_slot_copies(copies, plan, cls, slot + (from - first), f->send,
                              f->send ? xfi_run_src(plan, move->tensor)
                                      : xfi_run_dst(plan, move->tensor),
                              f->send ? box.src_local : box.dst_local, box.length,
                              (int64_t)((from - f->at) / elem), (int64_t)((to - f->at) / elem)));
    if (f->at + n_bytes > end) break; /* the rest is the next window's */
  }
  return XFER_OK;
}

/* One copy that is one run of all `n_bytes`: the caller's memory can be the message. */
static bool is_unpacked(const xfi_copies *copies, size_t first, size_t n_bytes)
{
  return n_bytes >= XFI_MIN_UNPACKED_BYTES && copies->n == first + 1 &&
         copies->at[first].convert == NULL && (size_t)copies->at[first].run_bytes == n_bytes;
}

static xfer_status add_window(xfi_step *step, const xfer_plan *plan, flow *f, uint64_t first,
                              size_t n_bytes, char *slot)
{
  xfi_copies *copies = f->send ? &step->gather : &step->scatter;
  const size_t before = copies->n;
  xfi_message *m = &step->messages[step->n_sends + step->n_recvs];

  *m = (xfi_message){slot, n_bytes, f->peer->rank};
  XFI_TRY(window_copies(copies, plan, f, first, first + n_bytes, slot));
  if ((f->send || plan->comm->ops->recv_direct) && is_unpacked(copies, before, n_bytes)) {
    m->data = f->send ? (char *)copies->at[before].src /* a send is not written */
                      : copies->at[before].dst;
    copies->n--;
  }
  *(f->send ? &step->n_sends : &step->n_recvs) += 1;
  return XFER_OK;
}

/* The windows that begin at `first` of the `n` flows of a block, if there are any. */
static xfer_status add_round(xfi_pipeline *p, const xfer_plan *plan, flow *at, size_t n,
                             uint64_t first)
{
  char *slots[2] = {xfi_steps_slot(p, p->n_steps, false), xfi_steps_slot(p, p->n_steps, true)};
  xfi_step *step = NULL;

  for (flow *f = at; f < at + n; f++) {
    const size_t n_bytes = window_bytes(f, plan, first);

    if (n_bytes == 0) continue;
    if (step == NULL) XFI_TRY(xfi_steps_add(&step, p, (int)n));
    XFI_TRY(add_window(step, plan, f, first, n_bytes, slots[f->send]));
    slots[f->send] += xfi_slot_aligned(n_bytes);
  }
  return XFER_OK;
}

xfer_status xfi_packed_add(xfi_pipeline *p, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  uint64_t longest = 0;
  flows list;

  XFI_TRY_DONE(list_flows(&list, plan));
  for (size_t i = 0; i < list.n; i++)
    if (list.at[i].n_bytes > longest) longest = list.at[i].n_bytes;
  for (uint64_t first = 0; first < longest; first += plan->window_bytes)
    for (size_t i = 0, end; i < list.n; i = end) {
      end = block_end(&list, i);
      XFI_TRY_DONE(add_round(p, plan, &list.at[i], end - i, first));
    }
done:
  xfi_free(list.at);
  return st;
}
