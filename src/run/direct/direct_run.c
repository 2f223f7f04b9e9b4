/*
 * Runs of the direct lane: who waits for whom, and what happens when a rank fails. run.c calls this
 * on the thread that makes the comm's calls. xfi_direct_ring() and xfi_direct_propagate_abort() are
 * called by the alarm's thread too, so all flags are read and written atomically.
 *
 * Each rank has a page of flags with some words per peer (link.h). The rank that copies waits for
 * READY on its own page, copies, and sets DONE on the peer's page. The other rank sets READY on the
 * copying rank's page and waits for DONE on its own. So every rank waits on its own page alone, and
 * the protocol is the same for pushes and pulls.
 *
 * Failure. A wait ends at the run's deadline, or when the peer fails, by a flag that becomes void.
 * The copies behind the wait are guarded and then do nothing, with two exceptions: large copies
 * that pull from another process, which write this rank's memory alone and read memory that stays
 * mapped until the plan is released; and "open" ones, which are launched only when nothing is left
 * to wait for. A rank that aborts a run makes its words on its peers' pages void, and then waits
 * for peers that have started to copy to or from its memory. A peer sets STARTED before it reads
 * whether we have aborted, and we set ABORTED before we read STARTED, so one of the two sees the
 * other.
 */
#include "direct.h"

#include <sched.h>
#include <stddef.h>

#include "error.h"
#include "late.h"
#include "trace.h"

/* This rank sets it in a flag, beside XFI_FLAG_VOID, when it gives up waiting for that flag. */
#define LATE (UINT64_C(1) << 61)
/* In XFI_ABORTED, beside XFI_FLAG_VOID: the peer aborted the run because another rank failed. */
#define FOLLOWS (UINT64_C(1) << 60)

enum { POLL_NS = 20000 }; /* between two reads of a flag */
/* How often a run polls whether its streams are idle, so that copies need no guard, and how often a
 * rank yields while it waits for ranks of its process, before it sleeps. */
enum { POLLS = 200 };

/* ---- flags ---- */

static uint64_t read_flag(const uint64_t *flag)
{
  return __atomic_load_n(flag, __ATOMIC_SEQ_CST);
}

/* The number of the run in a flag's value. */
static uint64_t run_of(uint64_t value)
{
  return value & ~(XFI_FLAG_VOID | LATE | FOLLOWS);
}

/* Does the flag say that run `epoch` has failed? A rank that aborts after that run makes the flag
 * void for the next one. */
static bool is_void(const uint64_t *flag, uint64_t epoch)
{
  const uint64_t seen = read_flag(flag);

  return (seen & XFI_FLAG_VOID) != 0 && run_of(seen) <= epoch;
}

/* End the wait for the i-th of the watched flags. False: the peer has set it already. */
static bool give_up(xfi_watch *w, int i, uint64_t value)
{
  uint64_t seen = read_flag(w->flags.at[i]);

  if (seen >= value) return false;
  __atomic_store_n(w->given_up, value | XFI_FLAG_VOID, __ATOMIC_SEQ_CST); /* before streams go on */
  while (seen < value &&
         !__atomic_compare_exchange_n(w->flags.at[i], &seen, value | XFI_FLAG_VOID | LATE, false,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    ;
  return true;
}

/* Make one of our words on a peer's page void, since the run does not complete here. `value` is the
 * run's number, with FOLLOWS if that is so. */
static void make_void(const xfi_direct *d, uint64_t value, const xfi_link *link, int which)
{
  if (link->page != NULL)
    d->device->ops->flags_store(d->device, xfi_word(link->page, d->rank, which),
                                value | XFI_FLAG_VOID);
}

/* Is some watched flag missing? */
static bool is_any_late(const xfi_watch *w)
{
  int i = 0;

  while (i < w->flags.n && read_flag(w->flags.at[i]) >= w->value)
    i++;
  return i < w->flags.n;
}

int64_t xfi_direct_ring(xfi_alarm *alarm, int64_t now_ns)
{
  xfi_watch *w = (xfi_watch *)alarm;
  const xfi_direct *d = (const xfi_direct *)(const void *)((char *)w - offsetof(xfi_direct, watch));
  const bool aborts = d->aborts_at_deadline && is_any_late(w);

  (void)now_ns;
  for (size_t i = 0; i < d->links.n && aborts; i++)
    make_void(d, w->value, &d->links.at[i], XFI_ABORTED); /* before any stream of ours continues */
  for (int i = 0; i < w->flags.n; i++)
    if (give_up(w, i, w->value) && w->late == NULL)
      __atomic_store_n(&w->late, w->flags.at[i], __ATOMIC_SEQ_CST);
  return INT64_MAX;
}

/* Error texts about a peer whose signal is missing. */
#define LATE_TEXT "rank %d %s in run %llu before %s"
#define NOT_STARTED "did not start"
#define NOT_FINISHED "did not finish"
#define NOT_COME "did not come" /* the rank that such a peer waits for */

/* The rank that writes a word of our page. */
static int rank_of(const xfi_direct *d, const uint64_t *word)
{
  return (int)((size_t)(word - d->page) / XFI_WORDS);
}

static bool has_aborted(const xfi_direct *d, const xfi_link *link, uint64_t epoch)
{
  return is_void(xfi_word(d->page, link->rank, XFI_ABORTED), epoch);
}

xfer_status xfi_direct_check(const xfi_direct *d, uint64_t epoch)
{
  int follower = -1;

  for (size_t i = 0; i < d->links.n; i++) {
    const int rank = d->links.at[i].rank;

    if (!has_aborted(d, &d->links.at[i], epoch)) continue;
    XFI_CHECK((read_flag(xfi_word(d->page, rank, XFI_ABORTED)) & FOLLOWS) != 0, XFER_ERR_PEER,
              "rank %d aborted the run: it failed, or its plan is destroyed", rank);
    follower = rank;
  }
  XFI_CHECK(follower < 0, XFER_ERR_PEER,
            "rank %d aborted the run: another rank failed, or its plan is destroyed", follower);
  return XFER_OK;
}

/* Add the ranks whose flags on our page are missing to `awaits`. */
static void add_awaited(const xfi_direct *d, uint64_t epoch, const xfi_flags *flags, bool *awaits)
{
  for (int i = 0; i < flags->n; i++) {
    const uint64_t seen = read_flag(flags->at[i]);

    if (seen < epoch || (seen & LATE) != 0) awaits[rank_of(d, flags->at[i])] = true;
  }
}

void xfi_direct_add_awaited(const xfi_direct *d, uint64_t epoch, bool *awaits)
{
  add_awaited(d, epoch, &d->watch.flags, awaits);
}

/* Publish that this rank waits for the peers of these flags (late.h). The peer of `late` counts as
 * awaited even if it has given up too and made the flag void. */
static void publish_waits(const xfi_direct *d, const xfer_plan *plan, const xfi_flags *flags,
                          const uint64_t *late)
{
  bool *awaits = xfi_waits_clear(plan->comm->waits);

  if (awaits == NULL) return;
  add_awaited(d, plan->run.epoch, flags, awaits);
  awaits[rank_of(d, late)] = true;
  xfi_waits_publish(plan->comm->waits, XFI_POLLING, plan->comm->inside);
}

/* Fail since `flag`, one of these flags, was missing at the run's deadline. The text names the rank
 * that is late: the peer, or a rank for which the peer itself waits. */
static xfer_status fail_for_late(const xfi_direct *d, const xfer_plan *plan, const xfi_flags *flags,
                                 const uint64_t *flag, const char *what)
{
  const int peer = rank_of(d, flag);
  xfi_late late = {0};

  do
    publish_waits(d, plan, flags, flag);
  while (!xfi_waits_find_late(plan->comm->waits, &late));
  XFI_TRY(xfi_late_check(plan->comm, &late, plan->run.deadline));
  if (late.rank < 0) late.rank = peer;
  return XFI_ERROR(XFER_ERR_TIMEOUT, LATE_TEXT, late.rank, late.rank == peer ? what : NOT_COME,
                   (unsigned long long)plan->run.epoch, xfi_deadline_end(plan->run.deadline));
}

static const xfi_flags no_flags;

/* Set flags, then wait for others. Whether a void flag ended the wait is checked later: in
 * start_group(), or at the end of the run. */
static xfer_status sync_flags(const xfi_direct *d, const xfer_plan *plan, const xfi_flags *set,
                              const xfi_flags *wait, xfer_stream stream, const char *what)
{
  const xfi_device_ops *dev = d->device->ops;
  xfer_status st = XFER_OK;
  int late = 0;

  if (set->n + wait->n == 0) return XFER_OK;
  st = dev->flags_sync(d->device, set, wait, plan->run.epoch, stream,
                       xfi_waits_part(plan->run.deadline, 0), &late);
  for (int n = 1; st == XFER_ERR_TIMEOUT; n++) {
    if (xfi_deadline_expired(plan->run.deadline))
      return fail_for_late(d, plan, wait, wait->at[late], what);
    XFI_TRY(plan->comm->ops->check(plan->comm)); /* if it is broken, the peer may never come */
    publish_waits(d, plan, wait, wait->at[late]);
    st = dev->flags_sync(d->device, &no_flags, wait, plan->run.epoch, stream,
                         xfi_waits_part(plan->run.deadline, n), &late);
  }
  if (st == XFER_OK) xfi_waits_end(plan->comm->waits);
  return st;
}

/* ---- starting ---- */

/* Are all flags set that the group waits for, and is its stream idle? Then its copies start at once
 * and need no guard. *n_polls: how many polls the run has left, some microseconds in all. */
static bool can_go_unguarded(const xfi_direct *d, const xfi_group *g, uint64_t epoch, int *n_polls,
                             xfer_stream stream)
{
  bool can_go = false;

  if (g->open == NULL) return false;
  do
    can_go = d->device->ops->stream_is_idle(d->device, stream);
  while (!can_go && --*n_polls > 0);
  for (int i = 0; i < g->ready.n && can_go; i++)
    can_go = !is_void(g->ready.at[i], epoch) && !has_aborted(d, g->links[i], epoch) &&
             !is_void(d->watch.given_up, epoch);
  return can_go;
}

/* This group copies nothing in this run after all: tell its peers, which would wait for its DONE
 * once they have seen its STARTED. */
static void undo_started(const xfi_direct *d, const xfi_group *g, uint64_t epoch)
{
  for (int i = 0; i < g->done.n; i++)
    d->device->ops->flags_store(d->device, g->done.at[i], epoch | XFI_FLAG_VOID);
}

static xfer_status launch(const xfi_direct *d, const xfer_plan *plan, const xfi_group *g,
                          int *n_polls, xfer_stream stream)
{
  const xfi_device_ops *dev = d->device->ops;
  const bool open = can_go_unguarded(d, g, plan->run.epoch, n_polls, stream);
  bool launched = false;

  if (g->guard != NULL && !open && plan->quant == NULL && g->batches[0] != NULL)
    XFI_TRY(dev->guarded_launch(d->device, g->batches[0], &g->done, plan->run.epoch, stream,
                                &launched));
  if (launched) return XFER_OK;
  if (g->guard != NULL) XFI_TRY(dev->guard_check(d->device, g->guard, stream));
  if (open) XFI_TRY(dev->batch_launch(d->device, g->open, stream, d->turn));
  for (int k = 0; k < XFI_QUANT_PARTS && !open; k++) {
    if (g->batches[k] == NULL) continue;
    XFI_TRY(xfi_quant_await(plan, k, stream));
    XFI_TRY(dev->batch_launch(d->device, g->batches[k], stream, d->turn));
  }
  return dev->flags_set(d->device, &g->done, g->guard, plan->run.epoch, stream);
}

static xfer_status start_group(const xfi_direct *d, const xfer_plan *plan, const xfi_group *g,
                               const xfi_flags *announce, int *n_polls, xfer_stream stream)
{
  const xfi_device_ops *dev = d->device->ops;
  xfer_status st = XFER_OK;

  XFI_TRY(sync_flags(d, plan, announce, &g->ready, stream, NOT_STARTED));
  for (int i = 0; i < g->ready.n; i++)
    dev->flags_store(d->device, xfi_word(g->links[i]->page, d->rank, XFI_STARTED + g->mode),
                     plan->run.epoch);
  st = xfi_direct_check(d, plan->run.epoch);
  if (st != XFER_OK) undo_started(d, g, plan->run.epoch);
  XFI_TRY(st);
  st = launch(d, plan, g, n_polls, stream);
  if (st != XFER_OK && dev->is_synchronous) undo_started(d, g, plan->run.epoch); /* it has ended */
  return st;
}

/* Do the two ranks use barrier()? Both decide alike: where one cannot reach the other's page,
 * nothing is copied directly between them. */
static bool needs_barrier(const xfi_link *link)
{
  return link->near == XFI_SAME_DEVICE && link->ours.can_signal && link->theirs.can_signal;
}

/* A barrier of ranks that share a process and a device. Their streams share the device's queues,
 * and some ranks use the same stream, so a wait would block the very flag that it waits for if that
 * were enqueued behind it. So all of them enqueue their READY before any waits for one, and their
 * DONE likewise: one barrier for each in a run. */
static xfer_status barrier(const xfi_direct *d, const xfer_plan *plan, int index)
{
  const xfi_link *links = d->links.at;
  int n_polls = POLLS;

  for (size_t i = 0; i < d->links.n; i++)
    if (needs_barrier(&links[i]))
      d->device->ops->flags_store(d->device, xfi_word(links[i].page, d->rank, XFI_BARRIER + index),
                                  plan->run.epoch);
  for (size_t i = 0; i < d->links.n; i++) {
    uint64_t *word = xfi_word(d->page, links[i].rank, XFI_BARRIER + index);

    if (!needs_barrier(&links[i])) continue;
    while (read_flag(word) < plan->run.epoch) {
      XFI_TRY(xfi_direct_check(d, plan->run.epoch));
      XFI_TRY(plan->comm->ops->check(plan->comm));
      if (xfi_deadline_expired(plan->run.deadline))
        return fail_for_late(d, plan, &(xfi_flags){&word, 1}, word,
                             index == 0 ? NOT_STARTED : NOT_FINISHED);
      publish_waits(d, plan, &(xfi_flags){&word, 1}, word);
      if (--n_polls > 0)
        (void)sched_yield();
      else
        xfi_sleep_ns(POLL_NS);
    }
  }
  xfi_waits_end(plan->comm->waits);
  return XFER_OK;
}

xfer_status xfi_direct_start(xfi_direct *d, xfer_plan *plan, xfer_stream stream)
{
  xfer_status st = XFER_OK;
  const bool watched = d->device->alarms != NULL && d->watch.flags.n > 0;
  bool announced = d->announce.n == 0;
  int n_polls = POLLS;

  if (watched) xfi_alarm_clear(d->device->alarms, &d->watch.alarm); /* of the run before */
  d->watch.value = plan->run.epoch;
  if (watched) xfi_alarm_set(d->device->alarms, &d->watch.alarm, plan->run.deadline);
  for (int i = 0; i < d->n_streams; i++)
    XFI_TRY(xfi_stream_wait(d->device, d->streams[i], plan->run.started));
  /* If both setting and waiting are on the caller's stream, start_group() does both in one call. */
  if (!announced && (d->shares_queues || d->n_groups == 0 || d->groups[0].stream >= 0)) {
    XFI_TRY(sync_flags(d, plan, &d->announce, &no_flags, stream, NOT_STARTED));
    announced = true;
  }
  if (d->shares_queues) XFI_TRY(barrier(d, plan, 0));
  for (int i = 0; i < d->n_groups; i++) {
    const xfi_group *g = &d->groups[i];
    const xfi_span span =
        xfi_span_begin(XFI_SYS_RUN, d->rank, XFI_TRACK_DIRECT + i, "direct copies");

    st = start_group(d, plan, g, announced ? &no_flags : &d->announce, &n_polls,
                     g->stream < 0 ? stream : d->streams[g->stream]);
    xfi_span_end(&span, st, "with rank %d%s", g->links[0]->rank,
                 g->ready.n > 1 ? " and others" : "");
    XFI_TRY(st);
    announced = true;
  }
  return st;
}

xfer_status xfi_direct_join(const xfi_direct *d, xfer_stream stream)
{
  for (int i = 0; i < d->n_streams; i++) {
    XFI_TRY(xfi_event_record(d->device, d->ended[i], d->streams[i]));
    XFI_TRY(xfi_stream_wait(d->device, stream, d->ended[i]));
  }
  return XFER_OK;
}

xfer_status xfi_direct_finish(const xfi_direct *d, const xfer_plan *plan, xfer_stream stream)
{
  if (d->shares_queues) XFI_TRY(barrier(d, plan, 1));
  return sync_flags(d, plan, &no_flags, &d->await, stream, NOT_FINISHED);
}

/* ---- the end of a run ---- */

/* The flag for which the alarm ended the wait; NULL: none. The alarm sets given_up, releases the
 * streams, and only then sets `late`; until it has, the flag is found here. */
static const uint64_t *find_late(const xfi_direct *d, uint64_t epoch)
{
  const uint64_t *late = __atomic_load_n(&d->watch.late, __ATOMIC_SEQ_CST);
  const xfi_flags *flags = &d->watch.flags;
  int i = 0;

  if (late != NULL || flags->n == 0 || !is_void(d->watch.given_up, epoch)) return late;
  while (i < flags->n - 1 && read_flag(flags->at[i]) >= epoch && !is_void(flags->at[i], epoch))
    i++;
  return flags->at[i];
}

xfer_status xfi_direct_outcome(const xfi_direct *d, const xfer_plan *plan)
{
  const uint64_t *late = find_late(d, plan->run.epoch);

  if (late != NULL)
    return fail_for_late(d, plan, &d->watch.flags, late,
                         (size_t)(late - d->page) % XFI_WORDS == XFI_READY ? NOT_STARTED
                                                                           : NOT_FINISHED);
  XFI_TRY(xfi_direct_check(d, plan->run.epoch));
  for (int i = 0; i < d->await.n; i++)
    XFI_CHECK(!is_void(d->await.at[i], plan->run.epoch), XFER_ERR_PEER,
              "rank %d did not copy: it or another rank failed in this run",
              rank_of(d, d->await.at[i]));
  return XFER_OK;
}

/* Has the peer of flag i of d->await ended the copies that it started in this run? */
static bool has_drained(const xfi_direct *d, const xfer_plan *plan, int i)
{
  const uint64_t *done = d->await.at[i];
  const uint64_t *started = done - XFI_DONE + XFI_STARTED;
  const uint64_t seen = read_flag(done);

  if (read_flag(started) != plan->run.epoch) return true;
  return seen >= plan->run.epoch && (seen & LATE) == 0;
}

/* Wait until every peer has ended its copies. Returns the index of the first flag whose peer has
 * not by the deadline; -1: all have. On a host there is no deadline, since a thread that has
 * started to copy waits for nobody. */
static int await_peers(const xfi_direct *d, const xfer_plan *plan, xfi_deadline deadline)
{
  const bool ends_by_itself = d->device->ops->is_synchronous;

  for (int i = 0; i < d->await.n; i++)
    while (!has_drained(d, plan, i)) {
      if (!ends_by_itself && xfi_deadline_expired(deadline)) return i;
      xfi_sleep_ns(POLL_NS);
    }
  return -1;
}

xfer_status xfi_direct_propagate_abort(void *direct, uint64_t epoch)
{
  const xfi_direct *d = direct;
  const xfer_status st = xfi_direct_check(d, epoch);

  for (size_t i = 0; i < d->links.n && st != XFER_OK; i++)
    make_void(d, epoch | FOLLOWS, &d->links.at[i], XFI_ABORTED);
  return st;
}

void xfi_direct_give_up(xfi_direct *d, const xfer_plan *plan, xfer_status why)
{
  const uint64_t aborted = plan->run.epoch | (why == XFER_ERR_PEER ? FOLLOWS : 0);

  for (size_t i = 0; i < d->links.n; i++) {
    make_void(d, aborted, &d->links.at[i], XFI_ABORTED); /* before READY, which ends waits */
    make_void(d, plan->run.epoch, &d->links.at[i], XFI_READY);
  }
  for (int i = 0; i < d->watch.flags.n; i++)
    (void)give_up(&d->watch, i, plan->run.epoch);
}

/* Wait until all that this rank has enqueued for the run has ended. */
static xfer_status drain(const xfi_direct *d, const xfer_plan *plan, xfi_deadline deadline)
{
  for (int i = 0; i < d->n_streams; i++) {
    XFI_TRY(xfi_run_record(d->device, d->ended[i], d->streams[i]));
    XFI_TRY(xfi_run_await_event(d->device, d->ended[i], deadline));
  }
  return xfi_run_await_event(d->device, plan->run.finished, deadline);
}

xfer_status xfi_direct_abort(xfi_direct *d, const xfer_plan *plan, xfer_status why,
                             xfi_deadline deadline)
{
  xfer_status drained;
  int late;

  xfi_direct_give_up(d, plan, why);
  drained = drain(d, plan, deadline);
  if (d->device->alarms != NULL) xfi_alarm_clear(d->device->alarms, &d->watch.alarm);
  for (size_t i = 0; i < d->links.n && drained == XFER_OK; i++)
    for (int mode = XFI_PUSH; mode <= XFI_PULL; mode++)
      make_void(d, plan->run.epoch, &d->links.at[i], XFI_DONE + mode);
  late = await_peers(d, plan, deadline);
  XFI_TRY(drained);
  XFI_CHECK(late < 0, XFER_ERR_TIMEOUT, "rank %d may still copy to or from this rank's memory",
            rank_of(d, d->await.at[late]));
  return XFER_OK;
}
