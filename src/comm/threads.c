/*
 * A comm whose ranks are threads of one process, each with a handle of its own.
 *
 * They gather, wait and fail as processes that share memory do (shared.c). A segment is memory of
 * this process, without slots, and lives until the last handle is destroyed.
 *
 * Messages. Each rank has a *post* for each other rank, where it puts a pointer to what it sends.
 * The receiver copies straight from there into its own memory, and then releases the post.
 * Meanwhile the sender waits, and receives what arrives for it, so calls deadlock only where they
 * would with buffered messages too. A sender that gives up takes back the posts that nobody has
 * begun to copy, and waits for the others: no rank reads a buffer once the call of its owner has
 * returned.
 *
 * With more ranks than cores, a gathering costs about one thread switch per rank.
 */
#include "shared.h"

#include "alloc.h"
#include "error.h"

#include <assert.h>
#include <sched.h>
#include <string.h>

/* Of xfi_shared_ops: the longest sleep before a check of the comm, and yields before a sleep. */
enum { NAP_NS = 50000000, YIELDS = 8 };

typedef enum post_state {
  TAKEN = 0, /* or never used: the sender may fill the post */
  POSTED,    /* the receiver may take the message, and the sender may take it back */
  COPYING,   /* the receiver is reading the sender's memory */
  REFUSED    /* the receiver expects another message, whose envelope is in `wanted` */
} post_state;

/* A message from one rank to another. There is one at a time: both ends make their calls in the
 * same order, and a call ends only when all its messages have been taken. */
typedef struct post {
  const void *data;
  xfi_envelope sent;
  xfi_envelope wanted; /* set by the receiver if it refuses */
  _Atomic int state;   /* post_state */
} post;

/* One rank's handle. */
typedef struct local_rank {
  xfi_shared shared;
  struct local_group *group;
  post *posts;          /* [size] one to each rank */
  _Atomic int n_unsent; /* messages of the call in progress that have not been taken */
  bool *awaits;         /* [size] whose messages the call in progress still waits for */
  char pad[64];         /* keeps the next rank's first words off this one's last cache line */
} local_rank;

/* What the ranks share. Freed by the last handle. */
typedef struct local_group {
  int n_ranks;
  _Atomic int n_handles;
  local_rank *ranks; /* [n_ranks] */
  char *segments;
} local_group;

/* ---- sending ------------------------------------------------------------------------------- */

static void post_message(local_rank *me, xfi_carry_call call, const xfi_message *send)
{
  post *p = &me->posts[send->peer];

  assert(send->peer >= 0 && send->peer < me->group->n_ranks && send->peer != me->shared.base.rank);
  p->data = send->data;
  p->sent = xfi_comm_envelope(&me->shared.base, call, send->n_bytes);
  atomic_store(&p->state, POSTED);
  xfi_shared_ring(&me->shared, send->peer);
}

/* After a failure: take back all posts, so that no receiver reads this rank's memory once this
 * returns. If a receiver has refused a message, that is the error, which explains more than that
 * the comm is broken. */
static xfer_status withdraw(local_rank *me, xfer_status st)
{
  for (int r = 0; r < me->group->n_ranks; r++) {
    int state = POSTED;
    (void)atomic_compare_exchange_strong(&me->posts[r].state, &state, TAKEN);
    while (state == COPYING) {
      (void)sched_yield();
      state = atomic_load(&me->posts[r].state);
    }
    if (state == REFUSED)
      st = xfi_envelope_check(me->posts[r].sent, me->shared.base.rank, me->posts[r].wanted, r);
  }
  return st;
}

/* ---- receiving ----------------------------------------------------------------------------- */

typedef struct transfer {
  local_rank *me;
  xfi_carry_call call;
  const xfi_messages *of;
  int n_left; /* to receive */
} transfer;

/* Receive a message, unless its sender has taken it back. The sender may use the post again once
 * this has set it to TAKEN and counted it. */
static xfer_status receive(transfer *t, const xfi_message *recv)
{
  local_rank *me = t->me;
  const int rank = me->shared.base.rank;
  local_rank *sender = &me->group->ranks[recv->peer];
  post *p = &sender->posts[rank];
  xfer_status st = XFER_OK;
  int state = POSTED;

  if (!atomic_compare_exchange_strong(&p->state, &state, COPYING)) return XFER_OK;
  p->wanted = xfi_comm_envelope(&me->shared.base, t->call, recv->n_bytes);
  st = xfi_shared_check_envelope(&me->shared.base, p->sent, recv->peer, p->wanted);
  if (st != XFER_OK) {
    atomic_store(&p->state, st == XFER_ERR_MISMATCH ? REFUSED : POSTED);
    return st;
  }
  memcpy(recv->data, p->data, recv->n_bytes);
  me->awaits[recv->peer] = false;
  t->n_left--;
  atomic_store(&p->state, TAKEN);
  if (atomic_fetch_sub(&sender->n_unsent, 1) == 1) xfi_shared_ring(&me->shared, recv->peer);
  return XFER_OK;
}

static bool is_ready(const transfer *t, const xfi_message *recv)
{
  const post *p = &t->me->group->ranks[recv->peer].posts[t->me->shared.base.rank];

  return t->me->awaits[recv->peer] && atomic_load(&p->state) == POSTED;
}

/* ---- a call -------------------------------------------------------------------------------- */

static bool is_done(const transfer *t)
{
  return t->n_left == 0 && atomic_load(&t->me->n_unsent) == 0;
}

static bool can_go_on(const xfi_awaited *what)
{
  const transfer *t = what->of;

  for (int i = 0; i < t->of->n_recvs; i++)
    if (is_ready(t, &t->of->recvs[i])) return true;
  return is_done(t);
}

/* A rank that the call waits for: first those that have to send, then those that have to receive.
 */
static int find_peer(const xfi_awaited *what, xfi_rank_filter *of)
{
  const local_rank *me = ((const transfer *)what->of)->me;

  for (int r = 0; r < me->group->n_ranks; r++)
    if (me->awaits[r] && of(what->shared, r)) return r;
  for (int r = 0; r < me->group->n_ranks; r++)
    if (atomic_load(&me->posts[r].state) != TAKEN && of(what->shared, r)) return r;
  return -1;
}

/* Receive until all messages have arrived, and all that this rank sent have been taken. */
static xfer_status serve(transfer *t, xfi_deadline deadline)
{
  const xfi_awaited any = {can_go_on, find_peer, &t->me->shared, t, t->call != XFI_OF_EXCHANGE};

  while (!is_done(t)) {
    XFI_TRY(xfi_shared_await(&any, deadline));
    for (int i = 0; i < t->of->n_recvs; i++)
      if (is_ready(t, &t->of->recvs[i])) XFI_TRY(receive(t, &t->of->recvs[i]));
  }
  return XFER_OK;
}

static xfer_status local_carry(xfi_comm *comm, xfi_carry_call call, const xfi_messages *messages,
                               xfi_deadline deadline)
{
  local_rank *me = (local_rank *)comm;
  transfer t = {me, call, messages, messages->n_recvs};
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_shared_check(comm));
  for (int i = 0; i < messages->n_recvs; i++)
    me->awaits[messages->recvs[i].peer] = true;
  atomic_store(&me->n_unsent, messages->n_sends);
  for (int i = 0; i < messages->n_sends; i++)
    post_message(me, call, &messages->sends[i]);
  st = serve(&t, deadline);
  if (st != XFER_OK) st = withdraw(me, st);
  if (st != XFER_OK) xfi_comm_abort_with_error(comm, xfi_shared_abort);
  return st;
}

static const xfi_shared_ops shared_ops = {
    .carry = local_carry,
    .nap_ns = NAP_NS,
    .naps = 1,
    .yields = YIELDS,
};

/* ---- the comm ------------------------------------------------------------------------------ */

static void group_destroy(local_group *group)
{
  if (group == NULL) return;
  for (int r = 0; group->ranks != NULL && r < group->n_ranks; r++) {
    local_rank *rank = &group->ranks[r];

    xfi_shared_end(&rank->shared);
    xfi_free(rank->posts);
    xfi_free(rank->awaits);
  }
  xfi_free(group->segments);
  xfi_free(group->ranks);
  xfi_free(group);
}

static void local_destroy(xfi_comm *comm)
{
  local_group *group = ((local_rank *)comm)->group;

  xfi_shared_leave((xfi_shared *)comm);
  if (atomic_fetch_sub(&group->n_handles, 1) == 1) group_destroy(group);
}

static const xfi_comm_ops local_ops = {
    .recv_direct = true,
    .destroy = local_destroy,
    .all_gather = xfi_shared_all_gather,
    .exchange = xfi_shared_exchange,
    .round = xfi_shared_round,
    .broadcast = xfi_shared_broadcast,
    .check = xfi_shared_check,
    .abort = xfi_shared_abort,
    .abort_data = xfi_shared_abort,
    .refuse = xfi_shared_refuse,
    .check_refused = xfi_shared_check_refused,
};

static xfer_status rank_init(local_rank *rank, local_group *group, int number)
{
  const size_t n = (size_t)group->n_ranks;

  rank->shared.base = (xfi_comm){.ops = &local_ops, .rank = number, .size = group->n_ranks};
  rank->group = group;
  rank->posts = xfi_calloc(n, sizeof *rank->posts);
  rank->awaits = xfi_calloc(n, sizeof *rank->awaits);
  XFI_CHECK(rank->posts != NULL && rank->awaits != NULL, XFER_ERR_NOMEM, "%d ranks of a comm",
            group->n_ranks);
  return xfi_shared_init(&rank->shared, &shared_ops, group->n_ranks, number, false);
}

/* Make all segments, and tell every rank where each of them lies. */
static xfer_status segments_create(local_group *group)
{
  const int n = group->n_ranks;
  const size_t n_bytes = group->ranks[0].shared.n_bytes;
  char *at = xfi_calloc((size_t)n + 1, n_bytes); /* one more, to begin at a cache line */

  XFI_CHECK(at != NULL, XFER_ERR_NOMEM, "%d ranks of a comm", n);
  group->segments = at;
  at += -(uintptr_t)at % XFI_CACHE_LINE;
  for (int r = 0; r < n; r++) {
    xfi_shared *s = &group->ranks[r].shared;

    for (int i = 0; i < n; i++) {
      s->host_ranks[i] = i;
      s->at[i] = (xfi_segment *)(void *)(at + (size_t)i * n_bytes);
    }
  }
  return XFER_OK;
}

xfer_status xfi_comm_create_local(xfi_comm **comms, int n_ranks)
{
  xfer_status st = XFER_OK;
  local_group *made = NULL;

  XFI_CHECK_DONE(n_ranks >= 1, XFER_ERR_ARG, "a comm of %d ranks", n_ranks);
  made = xfi_calloc(1, sizeof *made);
  XFI_CHECK_DONE(made != NULL, XFER_ERR_NOMEM, "a comm of %d ranks", n_ranks);
  made->n_ranks = n_ranks;
  atomic_init(&made->n_handles, n_ranks);
  made->ranks = xfi_calloc((size_t)n_ranks, sizeof *made->ranks);
  XFI_CHECK_DONE(made->ranks != NULL, XFER_ERR_NOMEM, "%d ranks of a comm", n_ranks);
  for (int r = 0; r < n_ranks; r++)
    XFI_TRY_DONE(rank_init(&made->ranks[r], made, r));
  XFI_TRY_DONE(segments_create(made));
  for (int r = 0; r < n_ranks; r++)
    comms[r] = &made->ranks[r].shared.base;
  made = NULL; /* the handles' now */
done:
  group_destroy(made);
  return st;
}
