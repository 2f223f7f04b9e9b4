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
#include "channels.h"
#include "direct.h"
#include "error.h"
#include "slice.h"
#include "vec.h"

#define PEERS_PER_ROUND (XFI_ROUND_MESSAGES / 2)

/* One window of one flow. */
typedef struct window {
  uint64_t round;
  uint64_t first; /* bytes of the flow's stream */
  uint64_t end;
  size_t flow;
  bool send;
} window;

/* A flow that the lane carries, and how far its stream has been cut up. */
typedef struct flow {
  const xfi_peer *peer;
  bool send;
  uint64_t n_bytes;
  size_t move; /* next move, relative to peer->first */
  uint64_t at; /* bytes of the stream before that move */
} flow;

struct xfi_schedule {
  flow *flows;
  size_t n_flows;
  window *windows; /* by round, sends first, then as in `flows` */
  size_t n_windows;
  size_t capacity;
};

static int block_of(int n_ranks, int src, int dst)
{
  return ((dst - src + n_ranks) % n_ranks - 1) / PEERS_PER_ROUND;
}

/* The most peers that share a block. Peers ascend in rank, so by distance they are two ascending
 * runs, and those of one block stand together except around the wrap. */
static int most_in_block(const xfi_plan *m, const xfi_move_list *list, bool sends)
{
  int most = 0;
  int n = 0;
  int first = 0; /* how many are in the block of peers[0], which may come again at the end */
  int last = -1;

  for (size_t p = 0; p < list->n_peers; p++) {
    const int peer = list->peers[p].rank;
    const int block =
        sends ? block_of(m->n_ranks, m->rank, peer) : block_of(m->n_ranks, peer, m->rank);

    n = block == last ? n + 1 : 1;
    last = block;
    if (n > most) most = n;
    if (n == (int)p + 1) first = n;
  }
  if (list->n_peers > 0 && n + first > most)
    most = n + first > PEERS_PER_ROUND ? PEERS_PER_ROUND : n + first;
  return most < (int)list->n_peers ? most : (int)list->n_peers;
}

void xfi_packed_most(int *sends, int *recvs, const xfi_plan *m)
{
  *sends = most_in_block(m, &m->sends, true);
  *recvs = most_in_block(m, &m->recvs, false);
}

/* Bytes of a move that the lane carries; 0 for one that is broadcast. */
static uint64_t move_bytes(const xfer_plan *plan, const xfi_move *move, bool send, xfi_box *box)
{
  const xfi_class *cls = xfi_plan_class(plan->moves, move->tensor);

  xfi_move_box(box, cls, send ? &cls->sends : &cls->recvs, move);
  if (xfi_run_broadcasts(plan, cls)) return 0;
  return (uint64_t)(xfi_box_elems(box->length, cls->src->n_dims) * cls->wire_bytes);
}

static int by_round(const void *a, const void *b)
{
  const window *x = a;
  const window *y = b;

  if (x->round != y->round) return x->round < y->round ? -1 : 1;
  if (x->send != y->send) return x->send ? -1 : 1;
  return (x->flow > y->flow) - (x->flow < y->flow);
}

static xfer_status add_flow(xfi_schedule *s, const xfer_plan *plan, const xfi_peer *peer, bool send,
                            bool first_only)
{
  const xfi_plan *m = plan->moves;
  const xfi_move *moves = send ? m->sends.moves : m->recvs.moves;
  const int n_blocks = (m->n_ranks - 2) / PEERS_PER_ROUND + 1;
  const int block =
      send ? block_of(m->n_ranks, m->rank, peer->rank) : block_of(m->n_ranks, peer->rank, m->rank);
  xfer_status st = XFER_OK;
  flow *f = &s->flows[s->n_flows];
  xfi_box box;

  *f = (flow){peer, send, 0, 0, 0};
  for (size_t i = 0; i < peer->n; i++)
    f->n_bytes += move_bytes(plan, &moves[peer->first + i], send, &box);
  const uint64_t end = first_only && f->n_bytes > 0 ? 1 : f->n_bytes;
  for (uint64_t at = 0, k = 0; at < end; at += plan->window_bytes, k++) {
    const uint64_t left = f->n_bytes - at;

    XFI_TRY(xfi_vec_reserve(&s->windows, &s->capacity, s->n_windows + 1, sizeof *s->windows));
    s->windows[s->n_windows++] =
        (window){k * (uint64_t)n_blocks + (uint64_t)block, at,
                 at + (left < plan->window_bytes ? left : plan->window_bytes), s->n_flows, send};
  }
  s->n_flows++;
done:
  return st;
}

void xfi_schedule_destroy(xfi_schedule *s)
{
  if (s == NULL) return;
  xfi_free(s->flows);
  xfi_free(s->windows);
  xfi_free(s);
}

/* Why the first flow of the schedule is in it: what is said of it after "packed: ". */
static const char *first_reason(const xfi_schedule *s, const xfer_plan *plan)
{
  const flow *f = &s->flows[s->windows[0].flow];
  const xfi_peer *peers = f->send ? plan->moves->sends.peers : plan->moves->recvs.peers;
  const char *way = xfi_direct_way(plan, false, f->send, (size_t)(f->peer - peers));
  const char *colon = strchr(way, ':');

  return colon == NULL ? way : colon + 2;
}

/* Is a flow left to packed rounds? */
static bool is_packed(const xfer_plan *plan, size_t p, bool send)
{
  const xfi_move_list *list = send ? &plan->moves->sends : &plan->moves->recvs;

  return !xfi_direct_carries(plan->direct, send, p) && !xfi_run_shares(plan, list->peers[p].rank);
}

xfer_status xfi_schedule_create(xfi_schedule **schedule, const xfer_plan *plan, bool first_only)
{
  const xfi_plan *m = plan->moves;
  xfer_status st = XFER_OK;
  xfi_schedule *s = xfi_calloc(1, sizeof *s);

  XFI_CHECK(s != NULL, XFER_ERR_NOMEM, "schedule");
  s->flows = xfi_calloc(m->sends.n_peers + m->recvs.n_peers, sizeof *s->flows);
  XFI_CHECK(s->flows != NULL, XFER_ERR_NOMEM, "%zu peers", m->sends.n_peers + m->recvs.n_peers);
  for (size_t p = 0; p < m->sends.n_peers; p++)
    if (is_packed(plan, p, true)) XFI_TRY(add_flow(s, plan, &m->sends.peers[p], true, first_only));
  for (size_t p = 0; p < m->recvs.n_peers; p++)
    if (is_packed(plan, p, false))
      XFI_TRY(add_flow(s, plan, &m->recvs.peers[p], false, first_only));
  xfi_sort(s->windows, s->n_windows, sizeof *s->windows, by_round);
  XFI_CHECK(
      s->n_windows == 0 || plan->direct == NULL || plan->comm->ops->round != NULL,
      XFER_ERR_UNSUPPORTED,
      "nothing can go between rank %d and rank %d, since this comm has no other way than direct "
      "copies; %s",
      m->rank, s->flows[s->windows[0].flow].peer->rank, first_reason(s, plan));
  *schedule = s;
  s = NULL;
done:
  xfi_schedule_destroy(s);
  return st;
}

static size_t aligned(uint64_t n)
{
  return (size_t)((n + XFI_SLOT_ALIGN - 1) / XFI_SLOT_ALIGN * XFI_SLOT_ALIGN);
}

/* The windows of one round: [first, end). */
static size_t round_end(const xfi_schedule *s, size_t first)
{
  size_t end = first;

  while (end < s->n_windows && s->windows[end].round == s->windows[first].round)
    end++;
  return end;
}

void xfi_packed_measure(xfi_pipeline *p, const xfi_schedule *s)
{
  for (size_t i = 0, end; i < s->n_windows; i = end) {
    size_t send_bytes = 0;
    size_t recv_bytes = 0;

    end = round_end(s, i);
    for (size_t w = i; w < end; w++)
      *(s->windows[w].send ? &send_bytes : &recv_bytes) +=
          aligned(s->windows[w].end - s->windows[w].first);
    if (send_bytes > p->send_slot_bytes) p->send_slot_bytes = send_bytes;
    if (recv_bytes > p->recv_slot_bytes) p->recv_slot_bytes = recv_bytes;
  }
}

/* ---- steps ---- */

xfer_status xfi_slot_copies(xfi_copies *copies, const xfer_plan *plan, const xfi_class *cls,
                            char *slot, bool to_slot, const xfi_bound *bound, const int64_t *start,
                            const int64_t *length, int64_t first, int64_t end)
{
  const xfi_elem elem = xfi_run_elem(plan, cls, to_slot ? XFI_TO_WIRE : XFI_FROM_WIRE);
  const int n_dims = cls->src->n_dims;
  const int wire = cls->wire_bytes;
  xfer_status st = XFER_OK;
  xfi_slice slices[XFI_MAX_SLICES];
  const int n = xfi_slice_box(slices, length, n_dims, first, end);

  for (int i = 0; i < n; i++) {
    const xfi_bound dense =
        xfi_bound_dense(slot + slices[i].offset * wire, slices[i].length, n_dims, wire);
    const xfi_end in_slot = {&dense, {0}};
    xfi_end user = {bound, {0}};

    for (int d = 0; d < n_dims; d++)
      user.start[d] = start[d] + slices[i].start[d];
    XFI_TRY(xfi_copies_add(copies, to_slot ? &in_slot : &user, to_slot ? &user : &in_slot,
                           slices[i].length, n_dims, elem));
  }
done:
  return st;
}

/* The copies between a slot and the part [w->first, w->end) of a flow's stream. Windows come in
 * order, so the flow keeps its place. */
static xfer_status window_copies(xfi_copies *copies, const xfer_plan *plan, flow *f,
                                 const window *w, char *slot)
{
  const xfi_move *moves = f->send ? plan->moves->sends.moves : plan->moves->recvs.moves;
  xfer_status st = XFER_OK;

  while (f->move < f->peer->n && f->at < w->end) {
    const xfi_move *move = &moves[f->peer->first + f->move];
    const xfi_class *cls = xfi_plan_class(plan->moves, move->tensor);
    xfi_box box;
    const uint64_t n_bytes = move_bytes(plan, move, f->send, &box);
    const uint64_t elem = (uint64_t)cls->wire_bytes;
    const uint64_t from = f->at > w->first ? f->at : w->first;
    const uint64_t to = f->at + n_bytes < w->end ? f->at + n_bytes : w->end;

    if (from < to)
      XFI_TRY(xfi_slot_copies(copies, plan, cls, slot + (from - w->first), f->send,
                              f->send ? xfi_run_src(plan, move->tensor)
                                      : xfi_run_dst(plan, move->tensor),
                              f->send ? box.src_local : box.dst_local, box.length,
                              (int64_t)((from - f->at) / elem), (int64_t)((to - f->at) / elem)));
    if (f->at + n_bytes > w->end) break; /* the rest is the next window's */
    f->at += n_bytes;
    f->move++;
  }
done:
  return st;
}

/* One copy that is one run of all `n_bytes`: the caller's memory can be the message. */
static bool is_unpacked(const xfi_copies *copies, size_t first, size_t n_bytes)
{
  return n_bytes >= XFI_MIN_UNPACKED_BYTES && copies->n == first + 1 &&
         copies->at[first].convert == NULL && copies->at[first].n_dims == 0 &&
         (size_t)copies->at[first].run_bytes == n_bytes;
}

static xfer_status add_window(xfi_step *step, const xfer_plan *plan, flow *f, const window *w,
                              char *slot)
{
  xfi_copies *copies = w->send ? &step->gather : &step->scatter;
  const size_t first = copies->n;
  const size_t n_bytes = (size_t)(w->end - w->first);
  xfer_status st = XFER_OK;
  xfi_message *m = &step->messages[step->n_sends + step->n_recvs];

  *m = (xfi_message){slot, n_bytes, f->peer->rank};
  XFI_TRY(window_copies(copies, plan, f, w, slot));
  if ((w->send || plan->comm->ops->recv_direct) && is_unpacked(copies, first, n_bytes)) {
    m->data =
        w->send ? (char *)copies->at[first].src : copies->at[first].dst; /* a send is not written */
    copies->n--;
  }
  *(w->send ? &step->n_sends : &step->n_recvs) += 1;
done:
  return st;
}

xfer_status xfi_packed_add(xfi_pipeline *p, xfi_schedule *s, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0, end; i < s->n_windows; i = end) {
    char *send = xfi_steps_slot(p, p->n_steps, true);
    char *recv = xfi_steps_slot(p, p->n_steps, false);
    xfi_step *step = NULL;

    end = round_end(s, i);
    XFI_TRY(xfi_steps_add(&step, p, (int)(end - i)));
    for (size_t k = i; k < end; k++) {
      const window *w = &s->windows[k];
      char **slot = w->send ? &send : &recv;

      XFI_TRY(add_window(step, plan, &s->flows[w->flow], w, *slot));
      *slot += aligned(w->end - w->first);
      if (w->send) p->sent_bytes += w->end - w->first;
    }
  }
done:
  return st;
}
