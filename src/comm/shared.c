/*
 * How ranks that share memory wait for each other, and gather: by flags in that memory, without
 * messages. Comms of threads and of processes of one host are made of this, and the ranks of one
 * host in a comm over MPI use it among themselves. All of it runs on the thread that makes the
 * comm's calls, except for what shared.h says of alarms.
 *
 * A waiting rank first polls; with more ranks than cores it yields in between, so that the others
 * get to write what it waits for. Then it publishes for whom it waits (late.c) and sleeps until it
 * is woken. Now and then it checks whether the comm is broken, or a process that it waits for has
 * ended.
 *
 * No wake-up is lost: a rank says that it sleeps and then polls once more, and a rank that writes
 * reads who sleeps after its write. In the single order of sequentially consistent atomics, at
 * least one of the two sees what the other has done.
 */
#include "shared.h"

#include "error.h"
#include "futex.h"
#include "process.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
  YIELD_NS = 2000000, /* the end of yielding: on a loaded host a single yield may take any time */
  ALARM_MS = 1000     /* how long the reason of a rank that gave up may take to arrive */
};

static xfi_segment *own_of(const xfi_shared *s)
{
  return s->at[s->host_rank];
}

bool xfi_shared_is_inherited(const xfi_shared *s)
{
  return s->process != xfi_process_number();
}

bool xfi_shared_leaves_inherited(const xfi_shared *s)
{
  return xfi_shared_is_inherited(s) || s->pid != getpid();
}

xfer_status xfi_shared_check_process(const xfi_shared *s)
{
  XFI_CHECK(!xfi_shared_is_inherited(s), XFER_ERR_STATE,
            "this process is a child that was forked from rank %d: it is no rank itself",
            s->base.rank);
  return XFER_OK;
}

/* ---- bells, alarms ------------------------------------------------------------------------- */

static int futex_scope(const xfi_shared *s)
{
  return s->neighbours == NULL ? XFI_FUTEX_OWN : XFI_FUTEX_SHARED;
}

/* Sleep until this rank is woken, or its bell is no longer `bell`, for nap_ns at most. */
static void sleep_a_while(const xfi_shared *s, uint32_t bell, xfi_deadline deadline)
{
  const int64_t until = xfi_now_ns() + s->ops->nap_ns;

  if (until < deadline.at_ns) deadline.at_ns = until;
  xfi_futex_wait(&own_of(s)->bell, bell, deadline, futex_scope(s));
}

static void wake(const xfi_shared *s, int rank)
{
  xfi_segment *segment = xfi_segment_of(s, rank);

  (void)atomic_fetch_add(&segment->bell, 1);
  xfi_futex_wake_all(&segment->bell, futex_scope(s));
}

void xfi_shared_ring(xfi_shared *s, int rank)
{
  xfi_waiting *theirs = xfi_waiting_of(s, rank);
  uint32_t asleep = XFI_ASLEEP;

  if (atomic_load(&theirs->until) == asleep &&
      atomic_compare_exchange_strong(&theirs->until, &asleep, XFI_AWAKE))
    wake(s, rank);
}

void xfi_shared_leave(xfi_shared *s)
{
  if (xfi_shared_leaves_inherited(s) || s->at == NULL || own_of(s) == NULL) return;
  atomic_store(&own_of(s)->has_left, 1);
  for (int r = 0; r < s->base.size; r++)
    if (xfi_segment_of(s, r) != NULL) wake(s, r);
}

void xfi_shared_alarm(xfi_shared *s, const char *why)
{
  if (xfi_shared_is_inherited(s) || s->at == NULL || own_of(s) == NULL) return;
  (void)snprintf(own_of(s)->why, sizeof own_of(s)->why, "%s", why);
  for (int r = 0; r < s->base.size; r++) {
    xfi_segment *segment = xfi_segment_of(s, r);
    uint32_t none = 0;

    if (segment == NULL || r == s->base.rank) continue;
    (void)atomic_compare_exchange_strong(&segment->alarm, &none, (uint32_t)s->base.rank + 1);
    wake(s, r);
  }
}

bool xfi_shared_poll_alarm(xfi_shared *s)
{
  const uint32_t alarm = s->at == NULL || own_of(s) == NULL ? 0 : atomic_load(&own_of(s)->alarm);

  if (alarm == 0 || atomic_load(&s->broken.is)) return false;
  return xfi_broken_set(&s->broken, "%.*s", XFI_BROKEN_BYTES - 1,
                        xfi_segment_of(s, (int)alarm - 1)->why);
}

xfer_status xfi_shared_check(xfi_comm *comm)
{
  xfi_shared *s = (xfi_shared *)comm;

  (void)xfi_shared_poll_alarm(s); /* no need to pass it on: who raised it has alarmed everybody */
  return atomic_load(&s->broken.is) ? xfi_broken_check(&s->broken) : XFER_OK;
}

void xfi_shared_abort(xfi_comm *comm, const char *why)
{
  xfi_shared *s = (xfi_shared *)comm;

  (void)xfi_shared_poll_alarm(s); /* if another rank was first, its reason stays */
  if (xfi_broken_set(&s->broken, "%s", why)) xfi_shared_alarm(s, s->broken.why);
}

void xfi_shared_refuse(xfi_comm *comm, uint64_t what, const char *why)
{
  xfi_shared *s = (xfi_shared *)comm;
  xfi_segment *own = own_of(s);

  if (own == NULL || xfi_shared_is_inherited(s)) return;
  const uint64_t kind = XFI_KIND_OF(what);
  const uint64_t i = own->n_refused[kind]++ % XFI_REFUSALS;
  atomic_store(&own->refused[kind][i],
               0); /* or the old refusal would be read with the new reason */
  (void)snprintf(own->whys[kind][i], sizeof own->whys[kind][i], "rank %d: %s", comm->rank, why);
  atomic_store(&own->refused[kind][i], what);
  for (int r = 0; r < comm->size; r++)
    if (r != comm->rank && xfi_segment_of(s, r) != NULL) wake(s, r);
}

/* XFER_ERR_PEER with the reason if a rank has refused it; with `others`, a rank besides this one.
 */
static xfer_status check_refused_by(xfi_comm *comm, uint64_t what, bool others)
{
  const uint64_t kind = XFI_KIND_OF(what);

  for (int r = 0; r < comm->size && what != 0; r++) {
    const xfi_segment *theirs = xfi_segment_of((const xfi_shared *)comm, r);

    for (int i = 0; theirs != NULL && (r != comm->rank || !others) && i < XFI_REFUSALS; i++) {
      if (atomic_load(&theirs->refused[kind][i]) != what) continue;
      xfi_set_error("%.*s", XFI_BROKEN_BYTES - 1, theirs->whys[kind][i]);
      if (atomic_load(&theirs->refused[kind][i]) == what) return XFER_ERR_PEER;
    }
  }
  return XFER_OK;
}

xfer_status xfi_shared_check_refused(xfi_comm *comm, uint64_t what)
{
  return check_refused_by(comm, what, true);
}

xfer_status xfi_shared_check_envelope(xfi_comm *comm, xfi_envelope sent, int from,
                                      xfi_envelope expected)
{
  const xfer_status st = xfi_envelope_check(sent, from, expected, comm->rank);

  if (st == XFER_OK || expected.call == XFI_OF_EXCHANGE) return st;
  XFI_TRY(check_refused_by(comm, sent.run.lanes, false));
  XFI_TRY(xfi_shared_check_run(comm, true));
  return st;
}

xfer_status xfi_shared_begin(xfi_shared *s)
{
  XFI_TRY(xfi_shared_check_process(s));
  if (s->base.shares_all && atomic_load(&own_of(s)->alarm) == 0 && !atomic_load(&s->broken.is))
    return XFER_OK;
  return s->base.ops->check(&s->base);
}

/* ---- waiting ------------------------------------------------------------------------------- */

static bool has_left(const xfi_shared *s, int rank)
{
  return atomic_load(&xfi_segment_of(s, rank)->has_left) != 0;
}

/* An xfi_rank_filter that marks each rank it is asked about as awaited, and accepts none. */
static bool mark_awaited(const xfi_shared *s, int rank)
{
  s->awaits[rank] = true;
  return false;
}

static void publish_waits(const xfi_awaited *what)
{
  xfi_shared *s = what->shared;

  (void)xfi_waits_clear(s);
  (void)what->find_late(what, mark_awaited);
  xfi_waits_publish(s, XFI_ASLEEP, s->base.inside);
}

/* Take over an alarm that has reached another rank: the rank that raised it may have ended before
 * it came to this one. */
static void copy_alarm(xfi_shared *s, int rank)
{
  uint32_t none = 0;
  const uint32_t alarm = rank < 0 ? 0 : atomic_load(&xfi_segment_of(s, rank)->alarm);

  if (alarm == 0 || xfi_segment_of(s, (int)alarm - 1) == NULL) return;
  (void)atomic_compare_exchange_strong(&own_of(s)->alarm, &none, alarm);
}

/* Fails, with the reason, if an awaited rank has left or its process has ended before it wrote what
 * is awaited. */
static xfer_status check_lost(const xfi_awaited *what)
{
  const int lost = what->find_late(what, xfi_shared_is_lost);
  /* A rank that leaves says so before its socket closes, so the sockets are read first, above. */
  const int gone = what->find_late(what, has_left);

  if ((gone < 0 && lost < 0) || what->is_there(what)) return XFER_OK;
  copy_alarm(what->shared, gone);
  copy_alarm(what->shared, lost);
  XFI_TRY(what->shared->base.ops->check(&what->shared->base));
  XFI_TRY(
      xfi_shared_check_run(&what->shared->base, what->is_of_run)); /* it says why before it goes */
  XFI_CHECK(gone < 0, XFER_ERR_COMM, "rank %d has left the comm", gone);
  return XFI_ERROR(XFER_ERR_COMM, "the process of rank %d has ended", lost);
}

xfer_status xfi_shared_check_all(xfi_comm *comm, uint64_t what)
{
  const xfi_shared *s = (const xfi_shared *)comm;
  bool leaves = false;
  int gone = 0;

  for (; gone < comm->size; gone++) {
    const bool is_lost = xfi_shared_is_lost(s, gone); /* first, as in check_lost() */

    leaves = has_left(s, gone);
    if (is_lost || leaves) break;
  }
  XFI_TRY(xfi_shared_check(comm)); /* fails for the reason that a rank reported before it left */
  XFI_TRY(xfi_shared_check_refused(comm, what));
  XFI_CHECK(gone == comm->size, XFER_ERR_COMM, "rank %d has %s", gone,
            leaves ? "left the comm" : "ended");
  return XFER_OK;
}

xfer_status xfi_waits_check(xfi_shared *s)
{
  return s == NULL || !s->base.shares_all ? XFER_OK : xfi_shared_check_all(&s->base, 0);
}

/* The deadline has passed. OK if what is awaited has arrived after all; else the error names the
 * late rank, and this rank's list of whom it waits for stays published, for the others' searches.
 */
static xfer_status give_up(const xfi_awaited *what, xfi_deadline deadline)
{
  xfi_shared *s = what->shared;
  xfi_late late = {0};

  do {
    publish_waits(what);
    if (what->is_there(what)) return XFER_OK;
    XFI_TRY(s->base.ops->check(&s->base));
  } while (!xfi_waits_find_late(s, &late));
  XFI_TRY(xfi_late_check(&s->base, &late, deadline));
  return XFI_ERROR(XFER_ERR_TIMEOUT, "rank %d did not come before %s",
                   late.rank >= 0 ? late.rank : what->find_late(what, xfi_any_rank),
                   xfi_deadline_end(deadline));
}

xfer_status xfi_shared_await(const xfi_awaited *what, xfi_deadline deadline)
{
  xfi_shared *s = what->shared;
  const xfi_comm *comm = &s->base;
  xfer_status st = XFER_OK;
  xfi_deadline spin_end = {0};
  uint32_t bell;
  int n_naps = 0;

  for (int n_polls = 0; !what->is_there(what); n_polls++) {
    if (n_polls == 0)
      spin_end.at_ns = xfi_now_ns() + (comm->has_cores ? s->ops->spin_ns : YIELD_NS);
    if ((comm->has_cores || n_polls < s->ops->yields) && !xfi_deadline_expired(spin_end)) {
      if (!comm->has_cores) (void)sched_yield();
      continue;
    }
    st = s->base.ops->check(&s->base);
    if (st == XFER_OK) st = xfi_shared_check_run(&s->base, what->is_of_run);
    /* What is awaited may have arrived before the comm was broken. */
    if (st != XFER_OK) return what->is_there(what) ? XFER_OK : st;
    if (xfi_deadline_expired(deadline)) XFI_TRY(give_up(what, deadline));
    if (++n_naps % s->ops->naps == 0) XFI_TRY(check_lost(what));
    bell = atomic_load(&own_of(s)->bell);
    publish_waits(what);
    if (!what->is_there(what)) sleep_a_while(s, bell, deadline);
  }
  xfi_waits_end(s);
  return st;
}

/* ---- gathering ----------------------------------------------------------------------------- */

/* A rank that has not contributed to the step yet, and for which `of` is true; -1: none. */
static int find_missing(const xfi_awaited *what, xfi_rank_filter *of)
{
  const xfi_shared *s = what->shared;

  for (int r = 0; r < s->base.size; r++)
    if (atomic_load(&xfi_segment_of(s, r)->n_contributed) < s->n_steps && of(s, r)) return r;
  return -1;
}

/* Have all ranks contributed to the step? */
static bool all_contributed(const xfi_awaited *what)
{
  return find_missing(what, xfi_any_rank) < 0;
}

/* Did the step take place? That is decided once, for all ranks, by the first one that either has
 * all contributions or gives up: `decided` becomes 2 * step, or one less. `mine` is what this rank
 * would decide; returns what was decided. */
static bool decide(xfi_shared *s, uint64_t step, bool mine)
{
  const uint64_t before = 2 * step - 2;
  uint64_t is = atomic_load(&s->at[0]->decided);

  if (is == before && atomic_compare_exchange_strong(&s->at[0]->decided, &is, 2 * step - !mine))
    return mine;
  return is >= 2 * step;
}

bool xfi_shared_has_gathered(const xfi_shared *s)
{
  return atomic_load(&s->at[0]->decided) >= 2 * s->n_steps;
}

/* Another rank has given up and will alarm all others: wait for that, since it has the reason. */
static xfer_status await_alarm(xfi_shared *s)
{
  const xfi_deadline soon = xfi_deadline_after(ALARM_MS);

  while (!xfi_deadline_expired(soon)) {
    const uint32_t bell = atomic_load(&own_of(s)->bell);
    int lost = 0;

    while (lost < s->base.size && !xfi_shared_is_lost(s, lost))
      lost++;
    for (int r = 0; r < s->base.size; r++)
      copy_alarm(s, r);
    XFI_TRY(s->base.ops->check(&s->base));
    XFI_CHECK(lost == s->base.size, XFER_ERR_COMM, "the process of rank %d has ended", lost);
    sleep_a_while(s, bell, soon);
  }
  return XFI_ERROR(XFER_ERR_COMM, "another rank gave up");
}

/* Wait for all contributions to the step. The last rank to contribute wakes those that sleep. */
static xfer_status await_contributions(xfi_shared *s, xfi_deadline deadline)
{
  const xfi_awaited all = {all_contributed, find_missing, s, NULL, false};
  xfer_status st;

  if (all_contributed(&all))
    for (int r = 0; r < s->base.size; r++)
      xfi_shared_ring(s, r);
  st = xfi_shared_await(&all, deadline);
  if (!decide(s, s->n_steps, st == XFER_OK)) return st == XFER_OK ? await_alarm(s) : st;
  xfi_waits_end(s);
  return XFER_OK;
}

/* Two buffers are used alternately: before a rank reuses one, all ranks have contributed to the
 * step between, so they have read this one. */
static xfer_status gather_step(xfi_shared *s, const unsigned char *mine, unsigned char *all,
                               size_t n_bytes, size_t at, xfi_deadline deadline)
{
  const xfi_comm *comm = &s->base;
  const uint64_t step = ++s->n_steps;
  const size_t left = n_bytes - at;
  const size_t n = left < XFI_SEGMENT_GATHER_BYTES ? left : XFI_SEGMENT_GATHER_BYTES;
  xfi_contribution *contributions = &own_of(s)->contributions[step % 2];

  contributions->of = xfi_comm_gathering(comm, n_bytes, at);
  if (n > 0) memcpy(contributions->bytes, mine + at, n);
  atomic_store(&own_of(s)->n_contributed, step);
  XFI_TRY(await_contributions(s, deadline));
  for (int r = 0; r < comm->size; r++)
    XFI_TRY(xfi_comm_check_same(comm, contributions->of,
                                xfi_segment_of(s, r)->contributions[step % 2].of, r));
  for (int r = 0; r < comm->size && n > 0; r++)
    memcpy(all + (size_t)r * n_bytes + at, xfi_segment_of(s, r)->contributions[step % 2].bytes, n);
  return XFER_OK;
}

xfer_status xfi_shared_gather(xfi_shared *s, void *all, const void *mine, size_t n_bytes,
                              xfi_deadline deadline)
{
  size_t at = 0;

  XFI_TRY(xfi_shared_begin(s));
  do {
    if (at > 0) XFI_TRY(xfi_comm_check_deadline(deadline));
    XFI_TRY(gather_step(s, mine, all, n_bytes, at, deadline));
    at += XFI_SEGMENT_GATHER_BYTES;
  } while (at < n_bytes);
  return XFER_OK;
}

xfer_status xfi_shared_all_gather(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                                  xfi_deadline deadline)
{
  const xfer_status st = xfi_shared_gather((xfi_shared *)comm, all, mine, n_bytes, deadline);

  if (st != XFER_OK) xfi_comm_abort_with_error(comm, comm->ops->abort);
  return st;
}

/* ---- messages ------------------------------------------------------------------------------ */

static xfer_status carry(xfi_comm *comm, xfi_carry_call call, const xfi_messages *messages,
                         xfi_deadline deadline)
{
  return ((xfi_shared *)comm)->ops->carry(comm, call, messages, deadline);
}

xfer_status xfi_shared_exchange(xfi_comm *comm, const xfi_messages *messages, xfi_deadline deadline)
{
  return carry(comm, XFI_OF_EXCHANGE, messages, deadline);
}

xfer_status xfi_shared_round(xfi_comm *comm, const xfi_messages *messages, xfer_stream stream,
                             xfi_deadline deadline)
{
  (void)stream;
  return carry(comm, XFI_OF_ROUND, messages, deadline);
}

/* Broadcast one message after the other, each to all ranks at once. */
xfer_status xfi_shared_broadcast(xfi_comm *comm, const xfi_message *messages, int n, int root,
                                 xfer_stream stream, xfi_deadline deadline)
{
  xfi_message *broadcast_sends = ((xfi_shared *)comm)->broadcast_sends;
  const bool sends = comm->rank == root;

  (void)stream;
  for (int i = 0; i < n; i++) {
    int n_peers = 0;

    for (int r = 0; r < comm->size; r++)
      if (sends ? r != root : r == root)
        broadcast_sends[n_peers++] = (xfi_message){messages[i].data, messages[i].n_bytes, r};
    XFI_TRY(carry(
        comm, XFI_OF_BROADCAST,
        &(xfi_messages){broadcast_sends, sends ? n_peers : 0, broadcast_sends, sends ? 0 : n_peers},
        deadline));
  }
  return XFER_OK;
}
