/* Messages between threads: posts, and copies by the receiver. The idea is in local.c. */
#include "local.h"

#include "error.h"
#include "futex.h"

#include <assert.h>
#include <sched.h>
#include <string.h>

typedef enum post_state {
  TAKEN = 0, /* or never used: the sender's to fill */
  POSTED,    /* the receiver may take it, the sender may take it back */
  COPYING,   /* the receiver is reading the sender's memory */
  REFUSED    /* the two ends differ; `wanted` says how */
} post_state;

/* ---- sending ---------------------------------------------------------------------------- */

static void offer(xfi_local_rank *me, xfi_carry_call call, const xfi_message *send)
{
  xfi_local_post *post = &me->posts[send->peer];

  assert(send->peer >= 0 && send->peer < me->base.size && send->peer != me->base.rank);
  post->data = send->data;
  post->offered = (xfi_terms){call, send->n_bytes};
  atomic_store(&post->state, POSTED);
  xfi_local_ring(&me->group->ranks[send->peer]);
}

/* After a failure: no receiver reads our memory once this returns. A refusal explains the failure
 * better than what it did to the comm. */
static xfer_status withdraw(xfi_local_rank *me, xfer_status st)
{
  for (int r = 0; r < me->base.size; r++) {
    int state = POSTED;
    (void)atomic_compare_exchange_strong(&me->posts[r].state, &state, TAKEN);
    while (state == COPYING) {
      (void)sched_yield();
      state = atomic_load(&me->posts[r].state);
    }
    if (state == REFUSED)
      st = xfi_terms_check(me->posts[r].offered, me->base.rank, me->posts[r].wanted, r);
  }
  return st;
}

/* ---- receiving -------------------------------------------------------------------------- */

typedef struct receives {
  const xfi_messages *of;
  int n_left;
  xfi_carry_call call;
} receives;

/* The sender may reuse the post once it is TAKEN and counted. */
static xfer_status receive(xfi_local_rank *me, const xfi_message *recv, receives *recvs)
{
  xfi_local_rank *sender = &me->group->ranks[recv->peer];
  xfi_local_post *post = &sender->posts[me->base.rank];
  xfer_status st = XFER_OK;
  int state = POSTED;

  if (!atomic_compare_exchange_strong(&post->state, &state, COPYING)) return XFER_OK;
  post->wanted = (xfi_terms){recvs->call, recv->n_bytes};
  st = xfi_terms_check(post->offered, recv->peer, post->wanted, me->base.rank);
  if (st != XFER_OK) {
    atomic_store(&post->state, REFUSED);
    XFI_LOCAL_BREAK(me->group, "%s", xfer_last_error());
    return st;
  }
  memcpy(recv->data, post->data, recv->n_bytes);
  me->awaits[recv->peer] = false;
  recvs->n_left--;
  atomic_store(&post->state, TAKEN);
  if (atomic_fetch_sub(&sender->n_unsent, 1) == 1) xfi_local_ring(sender);
  return XFER_OK;
}

/* Receives all that is wanted and there. */
static xfer_status receive_ready(xfi_local_rank *me, receives *recvs)
{
  for (int i = 0; i < recvs->of->n_recvs && recvs->n_left > 0; i++) {
    const xfi_message *recv = &recvs->of->recvs[i];
    const xfi_local_rank *sender = &me->group->ranks[recv->peer];
    const _Atomic int *state = &sender->posts[me->base.rank].state;

    if (me->awaits[recv->peer] && atomic_load_explicit(state, memory_order_relaxed) == POSTED)
      XFI_TRY(receive(me, recv, recvs));
  }
  return XFER_OK;
}

/* ---- a call ----------------------------------------------------------------------------- */

/* A rank that the call waits for, the first that `gone_only` allows; senders first. -1: none. */
static int find_awaited(const xfi_local_rank *me, bool gone_only)
{
  const xfi_local_rank *ranks = me->group->ranks;

  for (int sends = 0; sends < 2; sends++) {
    for (int r = 0; r < me->base.size; r++) {
      const bool waits = sends ? atomic_load(&me->posts[r].state) != TAKEN : me->awaits[r];
      if (waits && (!gone_only || atomic_load(&ranks[r].gone))) return r;
    }
  }
  return -1;
}

static xfer_status check_alarm(const xfi_local_rank *me)
{
  xfer_status st = xfi_broken_check(&me->group->broken);

  if (st != XFER_OK) return st;
  int gone = find_awaited(me, true);
  return gone < 0 ? XFER_OK : xfi_local_fail_for_gone(me, gone);
}

static void publish_waits(xfi_local_rank *me)
{
  bool *awaits = xfi_waits_note(me->base.waits);

  for (int r = 0; r < me->base.size; r++)
    awaits[r] = me->awaits[r] || atomic_load(&me->posts[r].state) != TAKEN;
  xfi_waits_say(me->base.waits);
}

/* `late`: who is seen to be; -1: nobody. */
static xfer_status fail_for_late(const xfi_local_rank *me, int late, xfi_deadline deadline)
{
  const int awaited = find_awaited(me, false);

  if (awaited < 0) return XFER_OK; /* the last one has come just now */
  if (late < 0) late = awaited;
  XFI_LOCAL_BREAK(me->group, "rank %d waited for rank %d until %s", me->base.rank, late,
                  xfi_deadline_end(deadline));
  return XFI_ERROR(XFER_ERR_TIMEOUT, "rank %d did not come before %s", late,
                   xfi_deadline_end(deadline));
}

/* Until all is received and all that we sent has been. */
static xfer_status serve(xfi_local_rank *me, receives *recvs, xfi_deadline deadline)
{
  xfi_late late = {0};
  int n_naps = 0;

  for (int yields = 0;; yields++) {
    uint32_t bell = atomic_load(&me->bell);
    XFI_TRY(receive_ready(me, recvs));
    if (recvs->n_left == 0 && atomic_load(&me->n_unsent) == 0) break;
    if (xfi_local_is_alarmed(me->group)) XFI_TRY(check_alarm(me));
    if (yields < XFI_LOCAL_YIELDS) {
      (void)sched_yield();
      continue;
    }
    const bool is_over = xfi_deadline_expired(deadline);

    if (is_over || n_naps > 0) publish_waits(me);
    if (is_over) {
      if (xfi_waits_find_late(me->base.waits, &late))
        XFI_TRY(fail_for_late(me, late.rank, deadline));
      continue;
    }
    atomic_store(&me->sleeping, true);
    xfi_futex_wait(&me->bell, bell, xfi_waits_part(deadline, n_naps++), XFI_FUTEX_OWN);
    atomic_store(&me->sleeping, false);
  }
  xfi_waits_end(me->base.waits);
  return XFER_OK;
}

static xfer_status transfer(xfi_local_rank *me, xfi_carry_call call, const xfi_messages *messages,
                            xfi_deadline deadline)
{
  receives wanted = {.of = messages, .n_left = messages->n_recvs, .call = call};
  xfer_status st = XFER_OK;

  if (xfi_local_is_alarmed(me->group)) st = xfi_broken_check(&me->group->broken);
  if (st != XFER_OK) return st;
  for (int i = 0; i < messages->n_recvs; i++)
    me->awaits[messages->recvs[i].peer] = true;
  atomic_store(&me->n_unsent, messages->n_sends);
  for (int i = 0; i < messages->n_sends; i++)
    offer(me, call, &messages->sends[i]);
  st = serve(me, &wanted, deadline);
  return st == XFER_OK ? XFER_OK : withdraw(me, st);
}

xfer_status xfi_local_exchange(xfi_comm *comm, const xfi_messages *messages, xfi_deadline deadline)
{
  return transfer((xfi_local_rank *)comm, XFI_OF_EXCHANGE, messages, deadline);
}

xfer_status xfi_local_round(xfi_comm *comm, const xfi_messages *messages, xfer_stream stream,
                            xfi_deadline deadline)
{
  (void)stream;
  return transfer((xfi_local_rank *)comm, XFI_OF_ROUND, messages, deadline);
}

/* One message after the other, to everybody at once. */
xfer_status xfi_local_broadcast(xfi_comm *comm, const xfi_message *messages, int n, int root,
                                xfer_stream stream, xfi_deadline deadline)
{
  xfi_local_rank *me = (xfi_local_rank *)comm;
  const bool sends = comm->rank == root;

  (void)stream;
  for (int i = 0; i < n; i++) {
    int n_peers = 0;

    for (int r = 0; r < comm->size; r++)
      if (sends ? r != root : r == root)
        me->casts[n_peers++] = (xfi_message){messages[i].data, messages[i].n_bytes, r};
    XFI_TRY(transfer(
        me, XFI_OF_BROADCAST,
        &(xfi_messages){me->casts, sends ? n_peers : 0, me->casts, sends ? 0 : n_peers}, deadline));
  }
  return XFER_OK;
}
