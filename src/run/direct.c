/*
 * The direct lane: copies straight between this rank's memory and mapped memory of peers.
 *
 * Each rank has a page of flags with some words per peer (link.h). The side that copies waits for
 * READY on its own page, copies, and sets DONE on the peer's; the other sets READY there and waits
 * for DONE on its own. So each rank waits on its own page only, and whoever pushes or pulls does
 * the same.
 *
 * In trouble. A wait ends at the run's deadline, or when the peer fails, by a flag made void; the
 * copies behind it are guarded and then do nothing, but for large ones that pull: those write our
 * own memory only, and read what the peer keeps until its plan is released. A rank that leaves a
 * failed run makes its words on its peers' pages void, and then waits for those that had started on
 * its memory. A peer says STARTED before it looks whether we have left, and we say that we have
 * left before we look at STARTED: one of the two sees the other.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "alloc.h"
#include "error.h"
#include "link.h"
#include "run.h"

/* Up to this many bytes all copies go in one batch on the caller's stream: fewer launches count
 * more than streams side by side. */
#define ONE_BATCH_BYTES (UINT64_C(16) << 20)

/* With it a void flag is one that this rank gave up waiting for. */
#define LATE (UINT64_C(1) << 61)

/* Between two looks at a flag, and between two tries of a device that fails. */
enum { LOOK_NS = 20000, RETRY_NS = 1000000 };

enum { PUSH, PULL };

/* Copies one way that wait for the same peers and run on one stream. */
typedef struct group {
  int way;
  xfi_batch *batch;
  xfi_guard *guard; /* where the device has any */
  xfi_flags ready;  /* on our page */
  xfi_flags left;
  xfi_flags started; /* on theirs */
  xfi_flags done;
  int *ranks; /* [ready.n] */
  int stream; /* index; -1: the caller's */
} group;

/* Own flags that streams may be waiting for. */
typedef struct watch {
  xfi_alarm alarm;
  xfi_flags flags;
  uint64_t value;
  uint64_t *late; /* the first that its deadline was missed for; NULL: none */
} watch;

struct xfi_direct {
  xfi_device *device;
  xfi_links links;
  bool *sends; /* [n peers] */
  bool *recvs;
  uint64_t bytes;
  uint64_t *page; /* [n_ranks][XFI_WORDS]; NULL without links */
  group *groups;
  int n_groups;
  xfi_flags tell;  /* READY on pages of peers that copy for us */
  xfi_flags await; /* DONE on our page by the same peers */
  int *await_ranks;
  watch watch;
  xfer_stream *streams;
  xfi_event **ended; /* [n_streams] */
  int n_streams;
  bool may_share; /* a stream with another rank; the last of `streams` then takes its place */
};

static int64_t ring(xfi_alarm *alarm, int64_t now_ns);

/* ---- copies ---- */

/* What this rank copies of one flow: `send`: from us to the peer. */
static xfer_status add_flow(xfi_copies *copies, const xfer_plan *plan, const xfi_link *link,
                            bool send, uint64_t *bytes)
{
  const xfi_move_list *list = send ? &plan->moves->sends : &plan->moves->recvs;
  const xfi_peer *peer = &list->peers[send ? link->send : link->recv];
  const bool both = (send ? link->send_by : link->recv_by) == XFI_BY_BOTH;
  xfer_status st = XFER_OK;
  size_t cursor = 0;

  for (size_t i = peer->first; i < peer->first + peer->n; i++) {
    const xfi_move *move = &list->moves[i];
    const xfi_class *cls = xfi_plan_class(plan->moves, move->tensor);
    const int n_dims = cls->src->n_dims;
    const int elem_bytes = cls->src->elem_bytes;
    xfi_end src = {NULL, {0}};
    xfi_end dst = {NULL, {0}};
    xfi_box box;

    if (xfi_run_broadcasts(plan, cls)) continue;
    xfi_move_box(&box, cls, send ? &cls->sends : &cls->recvs, move);
    src.bound =
        send ? xfi_run_src(plan, move->tensor) : xfi_link_bound(link, move->tensor, true, &cursor);
    dst.bound =
        send ? xfi_link_bound(link, move->tensor, false, &cursor) : xfi_run_dst(plan, move->tensor);
    XFI_CHECK(src.bound != NULL && dst.bound != NULL, XFER_ERR_INTERNAL,
              "rank %d did not describe tensor %u", link->rank, move->tensor);
    if (both && xfi_link_is_narrow(src.bound, dst.bound, box.length, n_dims, elem_bytes) != send)
      continue; /* the peer's */
    memcpy(src.start, box.src_local, sizeof src.start);
    memcpy(dst.start, box.dst_local, sizeof dst.start);
    XFI_TRY(xfi_copies_add(copies, &dst, &src, box.length, n_dims, elem_bytes));
    *bytes += (uint64_t)(xfi_box_elems(&box, n_dims) * elem_bytes);
  }
done:
  return st;
}

/* ---- groups ---- */

static bool link_goes(const xfi_link *link, int way)
{
  return way == PUSH ? xfi_link_pushes(link) : xfi_link_pulls(link);
}

static xfer_status make_flags(xfi_flags *flags, size_t n)
{
  flags->at = xfi_calloc(n, sizeof *flags->at);
  if (flags->at != NULL) return XFER_OK;
  xfi_set_error("%zu flags", n);
  return XFER_ERR_NOMEM;
}

static void add_flag(xfi_flags *flags, uint64_t *flag)
{
  flags->at[flags->n++] = flag;
}

static xfer_status new_group(group **out, xfi_direct *d, int way, int stream)
{
  xfer_status st = XFER_OK;
  group *g = &d->groups[d->n_groups++];

  g->way = way;
  g->stream = stream;
  g->ranks = xfi_calloc(d->links.n, sizeof *g->ranks);
  XFI_CHECK(g->ranks != NULL, XFER_ERR_NOMEM, "%zu peers", d->links.n);
  XFI_TRY(make_flags(&g->ready, d->links.n));
  XFI_TRY(make_flags(&g->left, d->links.n));
  XFI_TRY(make_flags(&g->started, d->links.n));
  XFI_TRY(make_flags(&g->done, d->links.n));
  *out = g;
done:
  return st;
}

static void join_group(group *g, xfi_direct *d, const xfi_link *link, int rank)
{
  g->ranks[g->ready.n] = link->rank;
  add_flag(&g->ready, xfi_word(d->page, link->rank, XFI_READY));
  add_flag(&g->left, xfi_word(d->page, link->rank, XFI_LEFT));
  add_flag(&g->started, xfi_word(link->page, rank, XFI_STARTED + g->way));
  add_flag(&g->done, xfi_word(link->page, rank, XFI_DONE + g->way));
}

/* The batch of a group whose peers are known, with its guard. */
static xfer_status finish_group(group *g, const xfi_direct *d, const xfi_copies *copies)
{
  const xfi_device_ops *dev = d->device->ops;
  xfer_status st = XFER_OK;
  uint64_t *flags[XFI_GUARD_FLAGS];
  xfi_flags guarded = {flags, 0};

  if (dev->guard_create != NULL) {
    for (int i = 0; i < g->ready.n; i++) {
      add_flag(&guarded, g->ready.at[i]);
      add_flag(&guarded, g->left.at[i]);
    }
    XFI_TRY(dev->guard_create(d->device, &g->guard, &guarded, g->way == PUSH));
  }
  if (copies->n > 0)
    XFI_TRY(dev->batch_create(d->device, &g->batch, copies->at, copies->n, g->guard));
done:
  return st;
}

/* In the order of their start. The engine takes one peer's copies after the other's, and a peer
 * that all begin with receives no more than one would send: so each rank starts with another, both
 * where ranks send to each other and where some send and others receive. By rising rank the first
 * is the one at `rank` modulo their number; links are by distance, those above `rank` first. */
static const xfi_link *nth_link(const xfi_direct *d, int rank, size_t i)
{
  size_t above = 0;

  while (above < d->links.n && d->links.at[above].rank > rank)
    above++;
  return &d->links.at[((size_t)rank + above + i) % d->links.n];
}

/* What goes one way: one group with everything, or one per peer with the streams dealt in turn. */
static xfer_status make_way(xfi_direct *d, const xfer_plan *plan, int way, bool one)
{
  xfer_status st = XFER_OK;
  xfi_copies copies = {NULL, 0, 0};
  uint64_t ignored = 0;
  group *g = NULL;

  for (size_t i = 0; i < d->links.n; i++) {
    const xfi_link *link = nth_link(d, plan->moves->rank, i);

    if (!link_goes(link, way)) continue;
    if (g == NULL)
      XFI_TRY(new_group(&g, d, way, one ? -1 : d->n_groups % d->device->ops->n_copy_streams));
    join_group(g, d, link, plan->moves->rank);
    XFI_TRY(add_flow(&copies, plan, link, way == PUSH, &ignored));
    if (one) continue;
    XFI_TRY(finish_group(g, d, &copies));
    g = NULL;
    copies.n = 0;
  }
  if (g != NULL) XFI_TRY(finish_group(g, d, &copies));
done:
  xfi_copies_free(&copies);
  return st;
}

static xfer_status make_groups(xfi_direct *d, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_copies copies = {NULL, 0, 0};
  bool one = !d->device->ops->is_synchronous && d->links.n <= XFI_GUARD_FLAGS / 2;

  d->groups = xfi_calloc(2 * d->links.n, sizeof *d->groups);
  XFI_CHECK(d->groups != NULL, XFER_ERR_NOMEM, "%zu links", d->links.n);
  for (size_t i = 0; i < d->links.n; i++) {
    const xfi_link *link = &d->links.at[i];

    if (link_goes(link, PUSH)) XFI_TRY(add_flow(&copies, plan, link, true, &d->bytes));
    if (link_goes(link, PULL)) XFI_TRY(add_flow(&copies, plan, link, false, &d->bytes));
    copies.n = 0;
  }
  one = one && d->bytes <= ONE_BATCH_BYTES;
  XFI_TRY(make_way(d, plan, PUSH, one));
  XFI_TRY(make_way(d, plan, PULL, one));
done:
  xfi_copies_free(&copies);
  return st;
}

static xfer_status make_streams(xfi_direct *d)
{
  xfer_status st = XFER_OK;
  int n = 0;

  for (int g = 0; g < d->n_groups; g++)
    if (d->groups[g].stream >= n) n = d->groups[g].stream + 1;
  for (size_t i = 0; i < d->links.n; i++)
    d->may_share = d->may_share || d->links.at[i].is_here;
  if (d->may_share) n++;
  d->streams = xfi_calloc((size_t)n, sizeof(xfer_stream));
  d->ended = xfi_calloc((size_t)n, sizeof *d->ended);
  XFI_CHECK(d->streams != NULL && d->ended != NULL, XFER_ERR_NOMEM, "%d streams", n);
  for (; d->n_streams < n; d->n_streams++) {
    XFI_TRY(d->device->ops->stream_create(d->device, &d->streams[d->n_streams]));
    st = d->device->ops->event_create(d->device, &d->ended[d->n_streams]);
    if (st != XFER_OK) d->device->ops->stream_destroy(d->device, d->streams[d->n_streams]);
    XFI_TRY(st);
  }
done:
  return st;
}

/* The peers that copy for us, and all that we wait for. */
static xfer_status list_waits(xfi_direct *d, int rank)
{
  xfer_status st = XFER_OK;

  XFI_TRY(make_flags(&d->tell, d->links.n));
  XFI_TRY(make_flags(&d->await, 2 * d->links.n));
  XFI_TRY(make_flags(&d->watch.flags, 4 * d->links.n));
  d->await_ranks = xfi_calloc(2 * d->links.n, sizeof *d->await_ranks);
  XFI_CHECK(d->await_ranks != NULL, XFER_ERR_NOMEM, "%zu links", d->links.n);
  for (size_t i = 0; i < d->links.n; i++) {
    const xfi_link *link = &d->links.at[i];
    const bool by[2] = {xfi_link_is_pushed(link), xfi_link_is_pulled(link)};

    for (int way = PUSH; way <= PULL; way++) {
      if (!by[way]) continue;
      d->await_ranks[d->await.n] = link->rank;
      add_flag(&d->await, xfi_word(d->page, link->rank, XFI_DONE + way));
    }
    if (by[PUSH] || by[PULL]) add_flag(&d->tell, xfi_word(link->page, rank, XFI_READY));
  }
  for (int g = 0; g < d->n_groups; g++)
    for (int i = 0; i < d->groups[g].ready.n; i++)
      add_flag(&d->watch.flags, d->groups[g].ready.at[i]);
  for (int i = 0; i < d->await.n; i++)
    add_flag(&d->watch.flags, d->await.at[i]);
done:
  return st;
}

/* The part of commit that is this rank's alone. */
static xfer_status prepare(xfi_direct *d, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < d->links.n; i++) {
    const xfi_link *link = &d->links.at[i];

    if (link->send_by != XFI_BY_NOBODY) d->sends[link->send] = true;
    if (link->recv_by != XFI_BY_NOBODY) d->recvs[link->recv] = true;
  }
  XFI_TRY(make_groups(d, plan));
  XFI_TRY(make_streams(d));
  XFI_TRY(list_waits(d, plan->moves->rank));
done:
  return st;
}

static xfer_status make_room(xfi_direct *d, const xfer_plan *plan)
{
  const size_t n_flags = (size_t)plan->moves->n_ranks * XFI_WORDS;
  xfer_status st = XFER_OK;
  bool by_streams = false;

  d->sends = xfi_calloc(plan->moves->sends.n_peers, sizeof *d->sends);
  d->recvs = xfi_calloc(plan->moves->recvs.n_peers, sizeof *d->recvs);
  XFI_CHECK(d->sends != NULL && d->recvs != NULL, XFER_ERR_NOMEM, "direct lane");
  for (size_t i = 0; i < d->links.n; i++)
    by_streams =
        by_streams || d->links.at[i].send != XFI_NO_FLOW || d->links.at[i].recv != XFI_NO_FLOW;
  if (d->links.n > 0)
    XFI_TRY(d->device->ops->flags_alloc(d->device, &d->page, n_flags, by_streams));
done:
  return st;
}

xfer_status xfi_direct_create(xfi_direct **direct, xfer_plan *plan, const bool *same,
                              const bool *here, xfer_status *mine, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  xfi_direct *d = xfi_comm_calloc(plan->comm, 1, sizeof *d);

  XFI_CHECK(d != NULL, XFER_ERR_NOMEM, "direct lane");
  d->device = plan->device;
  d->watch.alarm.ring = ring;
  XFI_TRY(xfi_links_list(&d->links, plan, same, here));
  if (*mine == XFER_OK) *mine = make_room(d, plan);
  XFI_TRY(xfi_links_connect(&d->links, plan, d->page, mine, deadline));
  if (*mine == XFER_OK) *mine = prepare(d, plan);
  *direct = d;
  d = NULL;
done:
  xfi_direct_destroy(d);
  return st;
}

static void free_group(xfi_direct *d, group *g)
{
  const xfi_device_ops *dev = d->device->ops;

  if (g->batch != NULL) dev->batch_destroy(d->device, g->batch);
  if (g->guard != NULL) dev->guard_destroy(d->device, g->guard);
  xfi_free(g->ready.at);
  xfi_free(g->left.at);
  xfi_free(g->started.at);
  xfi_free(g->done.at);
  xfi_free(g->ranks);
}

void xfi_direct_destroy(xfi_direct *d)
{
  if (d == NULL) return;
  if (d->device->alarms != NULL) xfi_alarm_clear(d->device->alarms, &d->watch.alarm);
  for (int i = 0; i < d->n_streams; i++) {
    d->device->ops->stream_destroy(d->device, d->streams[i]);
    d->device->ops->event_destroy(d->device, d->ended[i]);
  }
  for (int g = 0; g < d->n_groups; g++)
    free_group(d, &d->groups[g]);
  xfi_links_destroy(&d->links, d->device);
  if (d->page != NULL) d->device->ops->flags_free(d->device, d->page);
  xfi_free(d->sends);
  xfi_free(d->recvs);
  xfi_free(d->groups);
  xfi_free(d->tell.at);
  xfi_free(d->await.at);
  xfi_free(d->await_ranks);
  xfi_free(d->watch.flags.at);
  xfi_free(d->streams);
  xfi_free(d->ended);
  xfi_free(d);
}

bool xfi_direct_sends(const xfi_direct *direct, size_t peer)
{
  return direct->sends[peer];
}

bool xfi_direct_receives(const xfi_direct *direct, size_t peer)
{
  return direct->recvs[peer];
}

const char *xfi_direct_way(const void *plan, bool send, size_t peer)
{
  const xfer_plan *p = plan;

  return p->direct == NULL ? NULL : xfi_links_way(&p->direct->links, p, send, peer);
}

uint64_t xfi_direct_bytes(const xfi_direct *direct)
{
  return direct->bytes;
}

/* ---- running ---- */

static uint64_t read_flag(const uint64_t *flag)
{
  return __atomic_load_n(flag, __ATOMIC_SEQ_CST);
}

/* The run that a value is of. */
static uint64_t run_of(uint64_t value)
{
  return value & ~(XFI_FLAG_VOID | LATE);
}

/* Does nothing come of run `epoch`? A rank that left after it says so of the next. */
static bool is_void(const uint64_t *flag, uint64_t epoch)
{
  const uint64_t seen = read_flag(flag);

  return (seen & XFI_FLAG_VOID) != 0 && run_of(seen) <= epoch;
}

/* Make a flag void that is still below `value`; false: it is not. */
static bool give_up(uint64_t *flag, uint64_t value)
{
  uint64_t seen = read_flag(flag);

  while (seen < value)
    if (__atomic_compare_exchange_n(flag, &seen, value | XFI_FLAG_VOID | LATE, false,
                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      return true;
  return false;
}

/* The run's deadline has come: no stream waits any longer. */
static int64_t ring(xfi_alarm *alarm, int64_t now_ns)
{
  watch *w = (watch *)alarm;

  (void)now_ns;
  for (int i = 0; i < w->flags.n; i++)
    if (give_up(w->flags.at[i], w->value) && w->late == NULL)
      __atomic_store_n(&w->late, w->flags.at[i], __ATOMIC_SEQ_CST);
  return INT64_MAX;
}

/* Of a peer whose signal did not come. */
#define LATE_TEXT "rank %d %s in run %llu within the deadline"
#define NOT_STARTED "did not start"
#define NOT_FINISHED "did not finish"

#define LEFT_TEXT "rank %d failed and left the plan's runs"

static xfer_status check_left(const xfi_flags *left, const int *ranks, uint64_t epoch)
{
  xfer_status st = XFER_OK;

  for (int i = 0; i < left->n; i++)
    XFI_CHECK(!is_void(left->at[i], epoch), XFER_ERR_PEER, LEFT_TEXT, ranks[i]);
done:
  return st;
}

xfer_status xfi_direct_check(const xfi_direct *d, uint64_t epoch)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < d->links.n; i++)
    XFI_CHECK(!is_void(xfi_word(d->page, d->links.at[i].rank, XFI_LEFT), epoch), XFER_ERR_PEER,
              LEFT_TEXT, d->links.at[i].rank);
done:
  return st;
}

/* Tell, then wait. Without alarms a wait is over when the call returns: late, or in vain? */
static xfer_status sync_flags(const xfi_direct *d, const xfer_plan *plan, const xfi_flags *set,
                              const xfi_flags *wait, const int *ranks, xfer_stream stream,
                              const char *what)
{
  xfer_status st = XFER_OK;
  int late = 0;

  if (set->n + wait->n == 0) return XFER_OK;
  st = d->device->ops->flags_sync(d->device, set, wait, plan->epoch, stream, plan->run_ends, &late);
  XFI_CHECK(st != XFER_ERR_TIMEOUT, XFER_ERR_TIMEOUT, LATE_TEXT, ranks[late], what,
            (unsigned long long)plan->epoch);
  XFI_TRY(st);
  for (int i = 0; d->device->alarms == NULL && i < wait->n; i++)
    XFI_CHECK(!is_void(wait->at[i], plan->epoch), XFER_ERR_PEER, "rank %d failed in this run",
              ranks[i]);
done:
  return st;
}

static xfer_status start_group(const xfi_direct *d, const xfer_plan *plan, const group *g,
                               const xfi_flags *tell, xfer_stream stream)
{
  const xfi_device_ops *dev = d->device->ops;
  xfer_status st = XFER_OK;

  XFI_TRY(sync_flags(d, plan, tell, &g->ready, g->ranks, stream, NOT_STARTED));
  for (int i = 0; i < g->started.n; i++)
    dev->flags_store(d->device, g->started.at[i], plan->epoch);
  st = check_left(&g->left, g->ranks, plan->epoch);
  for (int i = 0; st != XFER_OK && i < g->done.n; i++) /* nothing was started after all */
    dev->flags_store(d->device, g->done.at[i], plan->epoch | XFI_FLAG_VOID);
  XFI_TRY(st);
  if (g->guard != NULL) XFI_TRY(dev->guard_check(d->device, g->guard, stream));
  if (g->batch != NULL) XFI_TRY(dev->batch_launch(d->device, g->batch, stream));
  XFI_TRY(dev->flags_set(d->device, &g->done, g->guard, plan->epoch, stream));
done:
  return st;
}

/* Ranks that share the stream: what the first to come puts there to wait for its peers would hold
 * up theirs. So none puts anything there before all have come, and this lane's on a stream of its
 * own. */
static xfer_status meet(const xfi_direct *d, const xfer_plan *plan)
{
  const struct timespec pause = {.tv_nsec = LOOK_NS};
  const xfi_link *links = d->links.at;
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < d->links.n; i++)
    if (links[i].is_here && links[i].page != NULL)
      d->device->ops->flags_store(d->device, xfi_word(links[i].page, plan->moves->rank, XFI_MET),
                                  plan->epoch);
  for (size_t i = 0; i < d->links.n; i++) {
    if (!links[i].is_here) continue;
    while (read_flag(xfi_word(d->page, links[i].rank, XFI_MET)) < plan->epoch) {
      XFI_TRY(xfi_direct_check(d, plan->epoch));
      XFI_CHECK(!xfi_deadline_expired(plan->run_ends), XFER_ERR_TIMEOUT, LATE_TEXT, links[i].rank,
                NOT_STARTED, (unsigned long long)plan->epoch);
      (void)nanosleep(&pause, NULL);
    }
  }
done:
  return st;
}

xfer_status xfi_direct_start(xfi_direct *d, xfer_plan *plan, xfer_stream stream)
{
  const xfi_device_ops *dev = d->device->ops;
  const xfi_flags nothing = {NULL, 0};
  xfer_status st = XFER_OK;
  const bool watched = d->device->alarms != NULL && d->watch.flags.n > 0;
  bool told = d->tell.n == 0;

  if (watched) xfi_alarm_clear(d->device->alarms, &d->watch.alarm); /* of the run before */
  d->watch.value = plan->epoch;
  d->watch.late = NULL;
  if (watched) xfi_alarm_set(d->device->alarms, &d->watch.alarm, plan->run_ends);
  for (int i = 0; i < d->n_streams; i++)
    XFI_TRY(dev->stream_wait(d->device, d->streams[i], plan->started));
  if (d->may_share && dev->stream_is_shared(d->device, stream)) {
    XFI_TRY(meet(d, plan));
    stream = d->streams[d->n_streams - 1];
  }
  /* One call sets and waits where both are on the caller's stream. */
  if (!told && (d->n_groups == 0 || d->groups[0].stream >= 0)) {
    XFI_TRY(sync_flags(d, plan, &d->tell, &nothing, NULL, stream, NOT_STARTED));
    told = true;
  }
  for (int i = 0; i < d->n_groups; i++) {
    const group *g = &d->groups[i];

    XFI_TRY(start_group(d, plan, g, told ? &nothing : &d->tell,
                        g->stream < 0 ? stream : d->streams[g->stream]));
    told = true;
  }
done:
  return st;
}

xfer_status xfi_direct_finish(xfi_direct *d, xfer_plan *plan, xfer_stream stream)
{
  const xfi_device_ops *dev = d->device->ops;
  const xfi_flags nothing = {NULL, 0};
  xfer_status st = XFER_OK;

  for (int i = 0; i < d->n_streams; i++) {
    XFI_TRY(dev->event_record(d->device, d->ended[i], d->streams[i]));
    XFI_TRY(dev->stream_wait(d->device, stream, d->ended[i]));
  }
  XFI_TRY(sync_flags(d, plan, &nothing, &d->await, d->await_ranks, stream, NOT_FINISHED));
done:
  return st;
}

/* ---- the end of a run ---- */

xfer_status xfi_direct_outcome(const xfi_direct *d, const xfer_plan *plan)
{
  const uint64_t *late = __atomic_load_n(&d->watch.late, __ATOMIC_SEQ_CST);
  xfer_status st = XFER_OK;

  if (late != NULL) {
    const size_t word = (size_t)(late - d->page);

    XFI_CHECK(false, XFER_ERR_TIMEOUT, LATE_TEXT, (int)(word / XFI_WORDS),
              word % XFI_WORDS == XFI_READY ? NOT_STARTED : NOT_FINISHED,
              (unsigned long long)plan->epoch);
  }
  XFI_TRY(xfi_direct_check(d, plan->epoch));
  for (int i = 0; i < d->await.n; i++)
    XFI_CHECK(!is_void(d->await.at[i], plan->epoch), XFER_ERR_PEER, "rank %d failed in this run",
              d->await_ranks[i]);
done:
  return st;
}

/* Has a peer that copies for us ended what it started in this run? */
static bool is_at_rest(const xfi_direct *d, const xfer_plan *plan, int i)
{
  const uint64_t *done = d->await.at[i];
  const uint64_t *started = done - XFI_DONE + XFI_STARTED;
  const uint64_t seen = read_flag(done);

  if (read_flag(started) != plan->epoch) return true;
  return seen >= plan->epoch && (seen & LATE) == 0;
}

/* Until all are; the first that is not by the deadline, or -1. */
static int await_rest(const xfi_direct *d, const xfer_plan *plan, xfi_deadline deadline)
{
  const struct timespec pause = {.tv_nsec = LOOK_NS};

  for (int i = 0; i < d->await.n; i++)
    while (!is_at_rest(d, plan, i)) {
      if (xfi_deadline_expired(deadline)) return i;
      (void)nanosleep(&pause, NULL);
    }
  return -1;
}

/* A word of ours on a peer's page says that nothing comes of this run. */
static void say_void(const xfi_direct *d, const xfer_plan *plan, const xfi_link *link, int which)
{
  if (link->page != NULL)
    d->device->ops->flags_store(d->device, xfi_word(link->page, plan->moves->rank, which),
                                plan->epoch | XFI_FLAG_VOID);
}

/* Wait for an event, whatever the device says meanwhile: where it goes on saying something else
 * than "not yet", it has stopped. */
static xfer_status await_event(const xfi_direct *d, xfi_event *event, xfi_deadline deadline)
{
  const struct timespec pause = {.tv_nsec = RETRY_NS};
  xfer_status st = XFER_ERR_CUDA;

  for (int n = 0; n < 100 && st != XFER_OK && st != XFER_ERR_TIMEOUT; n++) {
    if (n > 0) (void)nanosleep(&pause, NULL);
    st = d->device->ops->event_sync(d->device, event, deadline);
  }
  return st == XFER_ERR_TIMEOUT ? st : XFER_OK;
}

/* What this rank has enqueued ends: its streams wait for nothing any more. */
static xfer_status drain(const xfi_direct *d, const xfer_plan *plan, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;

  for (int i = 0; i < d->watch.flags.n; i++)
    (void)give_up(d->watch.flags.at[i], plan->epoch);
  for (int i = 0; i < d->n_streams; i++) {
    (void)d->device->ops->event_record(d->device, d->ended[i], d->streams[i]);
    XFI_TRY(await_event(d, d->ended[i], deadline));
  }
  XFI_TRY(await_event(d, plan->finished, deadline));
done:
  return st;
}

xfer_status xfi_direct_leave(xfi_direct *d, const xfer_plan *plan)
{
  const xfi_deadline deadline = xfi_deadline_after(XFI_LEAVE_MS);
  xfer_status st = XFER_OK;
  xfer_status drained;
  int late;

  for (size_t i = 0; i < d->links.n; i++) {
    say_void(d, plan, &d->links.at[i], XFI_LEFT); /* before READY, which lets waits go */
    say_void(d, plan, &d->links.at[i], XFI_READY);
  }
  drained = drain(d, plan, deadline);
  if (d->device->alarms != NULL) xfi_alarm_clear(d->device->alarms, &d->watch.alarm);
  for (size_t i = 0; i < d->links.n && drained == XFER_OK; i++)
    for (int way = PUSH; way <= PULL; way++)
      say_void(d, plan, &d->links.at[i], XFI_DONE + way);
  late = await_rest(d, plan, deadline);
  XFI_TRY(drained);
  XFI_CHECK(late < 0, XFER_ERR_TIMEOUT, "rank %d may still copy to or from this rank's memory",
            d->await_ranks[late]);
done:
  return st;
}
