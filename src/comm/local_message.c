/* Messages between threads: posts, inboxes and copies by the receiver. The idea is in local.c. */
#include "local.h"

#include "error.h"
#include "futex.h"
#include "vec.h"

#include <assert.h>
#include <sched.h>
#include <string.h>

typedef enum post_state {
  POSTED,   /* the receiver may take it, the sender may take it back */
  COPYING,  /* the receiver is reading the sender's memory */
  DONE,     /* it has */
  REFUSED,  /* the two ends differ; `wanted` says how */
  WITHDRAWN /* the sender has given up */
} post_state;

static const char *const call_names[] = {"exchange", "round", "broadcast"};

/* ---- sending ---------------------------------------------------------------------------- */

/* Room for the posts and receives of a call. No post is on offer now. */
static xfer_status reserve(xfi_local_rank *me, int n_sends, int n_recvs)
{
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_vec_reserve(&me->posts, &me->posts_capacity, (size_t)n_sends, sizeof *me->posts));
  XFI_TRY(xfi_vec_reserve(&me->received, &me->received_capacity, (size_t)n_recvs,
                          sizeof *me->received));
done:
  return st;
}

static void offer(xfi_local_rank *me, const xfi_message *send, xfi_local_post *post,
                  xfi_local_call in)
{
  xfi_local_rank *peer = &me->group->ranks[send->peer];
  xfi_local_post *newest = atomic_load_explicit(&peer->inbox, memory_order_relaxed);

  assert(send->peer >= 0 && send->peer < me->base.size && send->peer != me->base.rank);
  post->data = send->data;
  post->offered = (xfi_local_terms){.in = in, .n_bytes = send->n_bytes};
  post->from = me->base.rank;
  post->to = send->peer;
  atomic_store_explicit(&post->state, POSTED, memory_order_relaxed);
  do {
    post->next = newest;
  } while (!atomic_compare_exchange_weak(&peer->inbox, &newest, post));
  xfi_local_ring(peer);
}

static xfer_status fail_for_terms(const xfi_local_post *post)
{
  xfi_set_error("rank %d sends %zu bytes in %s to rank %d, which expects %zu in %s", post->from,
                post->offered.n_bytes, call_names[post->offered.in], post->to, post->wanted.n_bytes,
                call_names[post->wanted.in]);
  return XFER_ERR_MISMATCH;
}

/* After a failure: no receiver reads our memory once this returns. A refusal explains the failure
 * better than what it did to the comm. */
static xfer_status withdraw(xfi_local_rank *me, int n_sends, xfer_status st)
{
  for (int i = 0; i < n_sends; i++) {
    int state = POSTED;
    (void)atomic_compare_exchange_strong(&me->posts[i].state, &state, WITHDRAWN);
    while (state == COPYING) {
      (void)sched_yield();
      state = atomic_load(&me->posts[i].state);
    }
    if (state == REFUSED) st = fail_for_terms(&me->posts[i]);
  }
  return st;
}

/* ---- receiving -------------------------------------------------------------------------- */

typedef struct receives {
  const xfi_message *messages; /* [n] */
  int n;
  int n_left;
  xfi_local_call in;
} receives;

/* Moves the inbox to the end of the backlog, oldest first. */
static void take_inbox(xfi_local_rank *me)
{
  xfi_local_post *newest = NULL;
  xfi_local_post *oldest = NULL;

  if (atomic_load_explicit(&me->inbox, memory_order_relaxed) == NULL) return;
  newest = atomic_exchange(&me->inbox, NULL);
  *me->backlog_end = NULL;
  for (xfi_local_post *post = newest, *next; post != NULL; post = next) {
    next = post->next;
    post->next = oldest;
    oldest = post;
  }
  *me->backlog_end = oldest;
  me->backlog_end = &newest->next;
}

/* The first receive from `peer` that still waits; -1: none. */
static int find_receive(const xfi_local_rank *me, const receives *recvs, int peer)
{
  for (int i = 0; i < recvs->n; i++)
    if (recvs->messages[i].peer == peer && !me->received[i]) return i;
  return -1;
}

/* The sender may reuse the post once it is DONE and counted. */
static xfer_status receive(xfi_local_rank *me, xfi_local_post *post, receives *recvs, int i)
{
  xfi_local_rank *sender = &me->group->ranks[post->from];
  int state = POSTED;

  if (!atomic_compare_exchange_strong(&post->state, &state, COPYING))
    return xfi_broken_check(&me->group->broken);
  post->wanted = (xfi_local_terms){.in = recvs->in, .n_bytes = recvs->messages[i].n_bytes};
  if (post->wanted.in != post->offered.in || post->wanted.n_bytes != post->offered.n_bytes) {
    xfer_status st = fail_for_terms(post);
    atomic_store(&post->state, REFUSED);
    XFI_LOCAL_BREAK(me->group, "%s", xfi_last_error());
    return st;
  }
  memcpy(recvs->messages[i].data, post->data, post->offered.n_bytes);
  me->received[i] = true;
  recvs->n_left--;
  atomic_store(&post->state, DONE);
  if (atomic_fetch_sub(&sender->n_unsent, 1) == 1) xfi_local_ring(sender);
  return XFER_OK;
}

/* Receives all that has come and is wanted. */
static xfer_status receive_ready(xfi_local_rank *me, receives *recvs)
{
  xfer_status st = XFER_OK;
  xfi_local_post **link = &me->backlog;

  take_inbox(me);
  while (recvs->n_left > 0 && *link != NULL) {
    xfi_local_post *post = *link;
    int i = find_receive(me, recvs, post->from);
    if (i < 0) {
      link = &post->next;
      continue;
    }
    *link = post->next; /* read before the sender can have the post back */
    if (*link == NULL) me->backlog_end = link;
    XFI_TRY(receive(me, post, recvs, i));
  }
done:
  return st;
}

/* ---- a call ----------------------------------------------------------------------------- */

/* A rank that the call waits for, the first that `gone_only` allows; -1: none. */
static int find_awaited(const xfi_local_rank *me, const receives *recvs, int n_sends,
                        bool gone_only)
{
  const xfi_local_rank *ranks = me->group->ranks;

  for (int i = 0; i < recvs->n; i++) {
    int peer = recvs->messages[i].peer;
    if (!me->received[i] && (!gone_only || atomic_load(&ranks[peer].gone))) return peer;
  }
  for (int i = 0; i < n_sends; i++) {
    int peer = me->posts[i].to;
    if (atomic_load(&me->posts[i].state) == DONE) continue;
    if (!gone_only || atomic_load(&ranks[peer].gone)) return peer;
  }
  return -1;
}

static xfer_status check_alarm(const xfi_local_rank *me, const receives *recvs, int n_sends)
{
  xfer_status st = xfi_broken_check(&me->group->broken);

  if (st != XFER_OK) return st;
  int gone = find_awaited(me, recvs, n_sends, true);
  return gone < 0 ? XFER_OK : xfi_local_fail_for_gone(me, gone, call_names[recvs->in]);
}

static xfer_status fail_for_late(const xfi_local_rank *me, const receives *recvs, int n_sends)
{
  const char *what = call_names[recvs->in];
  int late = find_awaited(me, recvs, n_sends, false);

  if (late < 0) return XFER_OK; /* the last one has come just now */
  XFI_LOCAL_BREAK(me->group, "rank %d waited in %s for rank %d until the deadline", me->base.rank,
                  what, late);
  xfi_set_error("%s: rank %d did not come before the deadline", what, late);
  return XFER_ERR_TIMEOUT;
}

/* Until all is received and all that we sent has been. */
static xfer_status serve(xfi_local_rank *me, receives *recvs, int n_sends, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;

  for (int yields = 0;; yields++) {
    uint32_t bell = atomic_load(&me->bell);
    XFI_TRY(receive_ready(me, recvs));
    if (recvs->n_left == 0 && atomic_load(&me->n_unsent) == 0) break;
    if (xfi_local_is_alarmed(me->group)) XFI_TRY(check_alarm(me, recvs, n_sends));
    if (yields < XFI_LOCAL_YIELDS) {
      (void)sched_yield();
      continue;
    }
    if (xfi_deadline_expired(deadline)) XFI_TRY(fail_for_late(me, recvs, n_sends));
    atomic_store(&me->sleeping, true);
    xfi_futex_wait(&me->bell, bell, deadline, XFI_FUTEX_OWN);
    atomic_store(&me->sleeping, false);
  }
done:
  return st;
}

/* A call's first step: fails alone only on a comm that it breaks. */
static xfer_status begin(xfi_local_rank *me, int n_sends, int n_recvs)
{
  xfer_status st = XFER_OK;

  if (xfi_local_is_alarmed(me->group)) XFI_TRY(xfi_broken_check(&me->group->broken));
  st = reserve(me, n_sends, n_recvs);
  if (st != XFER_OK) XFI_LOCAL_BREAK(me->group, "rank %d: %s", me->base.rank, xfi_last_error());
  XFI_TRY(st);
  for (int i = 0; i < n_recvs; i++)
    me->received[i] = false;
  atomic_store(&me->n_unsent, n_sends);
done:
  return st;
}

static xfer_status finish(xfi_local_rank *me, int n_sends, receives recvs, xfi_deadline deadline)
{
  xfer_status st = serve(me, &recvs, n_sends, deadline);

  return st == XFER_OK ? XFER_OK : withdraw(me, n_sends, st);
}

static xfer_status transfer(xfi_local_rank *me, xfi_local_call in, const xfi_message *sends,
                            int n_sends, const xfi_message *recvs, int n_recvs,
                            xfi_deadline deadline)
{
  xfer_status st = begin(me, n_sends, n_recvs);

  if (st != XFER_OK) return st;
  for (int i = 0; i < n_sends; i++)
    offer(me, &sends[i], &me->posts[i], in);
  return finish(me, n_sends,
                (receives){.messages = recvs, .n = n_recvs, .n_left = n_recvs, .in = in}, deadline);
}

xfer_status xfi_local_exchange(xfi_comm *comm, const xfi_message *sends, int n_sends,
                               const xfi_message *recvs, int n_recvs, xfi_deadline deadline)
{
  return transfer((xfi_local_rank *)comm, XFI_IN_EXCHANGE, sends, n_sends, recvs, n_recvs,
                  deadline);
}

xfer_status xfi_local_round(xfi_comm *comm, const xfi_message *sends, int n_sends,
                            const xfi_message *recvs, int n_recvs, xfer_stream stream,
                            xfi_deadline deadline)
{
  (void)stream;
  return transfer((xfi_local_rank *)comm, XFI_IN_ROUND, sends, n_sends, recvs, n_recvs, deadline);
}

/* One buffer, offered to everybody. */
static xfer_status broadcast_as_root(xfi_local_rank *me, void *data, size_t n_bytes,
                                     xfi_deadline deadline)
{
  int n_sends = 0;
  xfer_status st = begin(me, me->base.size - 1, 0);

  if (st != XFER_OK) return st;
  for (int r = 0; r < me->base.size; r++) {
    xfi_message send = {.data = data, .n_bytes = n_bytes, .peer = r};
    if (r != me->base.rank) offer(me, &send, &me->posts[n_sends++], XFI_IN_BROADCAST);
  }
  return finish(me, n_sends, (receives){.in = XFI_IN_BROADCAST}, deadline);
}

xfer_status xfi_local_broadcast(xfi_comm *comm, const xfi_message *messages, int n, int root,
                                xfer_stream stream, xfi_deadline deadline)
{
  xfi_local_rank *me = (xfi_local_rank *)comm;
  xfer_status st = XFER_OK;

  (void)stream;
  for (int i = 0; i < n; i++) {
    const xfi_message recv = {messages[i].data, messages[i].n_bytes, root};

    if (root == comm->rank)
      XFI_TRY(broadcast_as_root(me, messages[i].data, messages[i].n_bytes, deadline));
    else
      XFI_TRY(transfer(me, XFI_IN_BROADCAST, NULL, 0, &recv, 1, deadline));
  }
done:
  return st;
}

/* Runs allocate nothing: room for a round's or a broadcast's messages is made here. */
xfer_status xfi_local_connect(xfi_comm *comm, const bool *peers, bool broadcasts,
                              xfi_deadline deadline)
{
  const int n_sends = comm->size > XFI_ROUND_MESSAGES ? comm->size : XFI_ROUND_MESSAGES;

  (void)peers, (void)broadcasts, (void)deadline;
  return reserve((xfi_local_rank *)comm, n_sends, XFI_ROUND_MESSAGES);
}
