/*
 * The direct lane: copies straight between this rank's memory and mapped memory of peers.
 *
 * One flag page per rank and plan, in its own memory, has two words per peer: READY, the peer's
 * memory may be accessed in run `epoch`; DONE, the peer has copied what it copies for us in it. The
 * side that copies waits for READY, copies, sets DONE; the other sets READY and waits for DONE. So
 * each rank waits on its own page only, and whoever pushes or pulls does the same.
 */
#include <string.h>

#include "alloc.h"
#include "error.h"
#include "link.h"
#include "run.h"
#include "vec.h"

enum { READY, DONE, FLAGS_PER_PEER };

/* Up to this many bytes all copies go in one batch on the caller's stream: fewer launches count
 * more than streams side by side. */
#define ONE_BATCH_BYTES (UINT64_C(16) << 20)

/* Copies that wait for the same peers and run on one stream. */
typedef struct group {
  xfi_batch *batch;
  uint64_t **ready; /* [n_peers] on our page */
  uint64_t **done;  /* [n_peers] on theirs */
  int *ranks;
  int n_peers;
  int stream; /* index; -1: the caller's */
} group;

struct xfi_direct {
  xfi_device *device;
  xfi_links links;
  bool *sends; /* [n peers] */
  bool *recvs;
  uint64_t bytes;
  uint64_t *page; /* [n_ranks][FLAGS_PER_PEER] */
  group *groups;
  int n_groups;
  uint64_t **tell;  /* READY on pages of peers that copy for us */
  uint64_t **await; /* DONE on our page by the same peers */
  int *await_ranks;
  int n_await;
  xfer_stream *streams;
  xfi_event **ended; /* [n_streams] */
  int n_streams;
};

static uint64_t *flag(uint64_t *page, int rank, int which)
{
  return page + (size_t)rank * FLAGS_PER_PEER + (size_t)which;
}

/* ---- copies ---- */

/* What this rank copies of one flow: `send`: from us to the peer. */
static xfer_status add_flow(xfi_copies *copies, const xfer_plan *plan, const xfi_link *link,
                            bool send, uint64_t *bytes)
{
  const xfi_move_list *list = send ? &plan->moves->sends : &plan->moves->recvs;
  const xfi_peer *peer = &list->peers[send ? link->send : link->recv];
  xfer_status st = XFER_OK;
  size_t cursor = 0;

  for (size_t i = peer->first; i < peer->first + peer->n; i++) {
    const xfi_move *move = &list->moves[i];
    const xfi_class *cls = xfi_plan_class(plan->moves, move->tensor);
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
    memcpy(src.start, box.src_local, sizeof src.start);
    memcpy(dst.start, box.dst_local, sizeof dst.start);
    XFI_TRY(xfi_copies_add(copies, &dst, &src, box.length, cls->src->n_dims, cls->src->elem_bytes));
    *bytes += (uint64_t)(xfi_box_elems(&box, cls->src->n_dims) * cls->src->elem_bytes);
  }
done:
  return st;
}

static xfer_status add_link(xfi_copies *copies, const xfer_plan *plan, const xfi_link *link,
                            uint64_t *bytes)
{
  xfer_status st = XFER_OK;

  if (link->pushes) XFI_TRY(add_flow(copies, plan, link, true, bytes));
  if (link->pulls) XFI_TRY(add_flow(copies, plan, link, false, bytes));
done:
  return st;
}

/* ---- groups ---- */

static xfer_status new_group(group **out, xfi_direct *d, int stream)
{
  xfer_status st = XFER_OK;
  group *g = &d->groups[d->n_groups];

  g->ready = xfi_calloc(d->links.n, sizeof *g->ready);
  g->done = xfi_calloc(d->links.n, sizeof *g->done);
  g->ranks = xfi_calloc(d->links.n, sizeof *g->ranks);
  d->n_groups++;
  XFI_CHECK(g->ready != NULL && g->done != NULL && g->ranks != NULL, XFER_ERR_NOMEM, "%zu peers",
            d->links.n);
  g->stream = stream;
  *out = g;
done:
  return st;
}

static void join_group(group *g, xfi_direct *d, const xfi_link *link, int rank)
{
  g->ready[g->n_peers] = flag(d->page, link->rank, READY);
  g->done[g->n_peers] = flag(link->page, rank, DONE);
  g->ranks[g->n_peers++] = link->rank;
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

/* One group with everything, or one per peer with the streams dealt in turn. */
static xfer_status make_groups(xfi_direct *d, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_copies copies = {NULL, 0, 0};
  bool one;
  group *g = NULL;

  d->groups = xfi_calloc(d->links.n, sizeof *d->groups);
  XFI_CHECK(d->groups != NULL, XFER_ERR_NOMEM, "%zu links", d->links.n);
  for (size_t i = 0; i < d->links.n; i++)
    XFI_TRY(add_link(&copies, plan, &d->links.at[i], &d->bytes));
  one = d->bytes <= ONE_BATCH_BYTES && !d->device->ops->is_synchronous;
  if (!one) copies.n = 0;
  for (size_t i = 0; i < d->links.n; i++) {
    const xfi_link *link = nth_link(d, plan->moves->rank, i);
    uint64_t ignored = 0;

    if (!link->pushes && !link->pulls) continue;
    if (!one || g == NULL)
      XFI_TRY(new_group(&g, d, one ? -1 : d->n_groups % d->device->ops->n_copy_streams));
    join_group(g, d, link, plan->moves->rank);
    if (one) continue;
    XFI_TRY(add_link(&copies, plan, link, &ignored));
    if (copies.n > 0)
      XFI_TRY(d->device->ops->batch_create(d->device, &g->batch, copies.at, copies.n));
    copies.n = 0;
  }
  if (one && g != NULL && copies.n > 0)
    XFI_TRY(d->device->ops->batch_create(d->device, &g->batch, copies.at, copies.n));
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

/* The peers that copy for us. */
static xfer_status list_waits(xfi_direct *d, int rank)
{
  xfer_status st = XFER_OK;

  d->tell = xfi_calloc(d->links.n, sizeof *d->tell);
  d->await = xfi_calloc(d->links.n, sizeof *d->await);
  d->await_ranks = xfi_calloc(d->links.n, sizeof *d->await_ranks);
  XFI_CHECK(d->tell != NULL && d->await != NULL && d->await_ranks != NULL, XFER_ERR_NOMEM,
            "%zu links", d->links.n);
  for (size_t i = 0; i < d->links.n; i++) {
    const xfi_link *link = &d->links.at[i];

    if (!link->is_pushed && !link->is_pulled) continue;
    d->tell[d->n_await] = flag(link->page, rank, READY);
    d->await[d->n_await] = flag(d->page, link->rank, DONE);
    d->await_ranks[d->n_await++] = link->rank;
  }
done:
  return st;
}

/* The part of commit that is this rank's alone. */
static xfer_status prepare(xfi_direct *d, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  for (size_t i = 0; i < d->links.n; i++) {
    const xfi_link *link = &d->links.at[i];

    if (link->pushes || link->is_pulled) d->sends[link->send] = true;
    if (link->pulls || link->is_pushed) d->recvs[link->recv] = true;
  }
  XFI_TRY(make_groups(d, plan));
  XFI_TRY(make_streams(d));
  XFI_TRY(list_waits(d, plan->moves->rank));
done:
  return st;
}

static xfer_status make_page(xfi_direct *d, const xfer_plan *plan)
{
  const xfi_device_ops *dev = d->device->ops;
  const size_t n_flags = (size_t)plan->moves->n_ranks * FLAGS_PER_PEER;
  xfer_status st = XFER_OK;
  void *page = NULL;

  d->sends = xfi_calloc(plan->moves->sends.n_peers, sizeof *d->sends);
  d->recvs = xfi_calloc(plan->moves->recvs.n_peers, sizeof *d->recvs);
  XFI_CHECK(d->sends != NULL && d->recvs != NULL, XFER_ERR_NOMEM, "direct lane");
  if (dev->flags_alloc != NULL) {
    XFI_TRY(dev->flags_alloc(d->device, &d->page, n_flags));
  } else {
    XFI_TRY(dev->alloc(d->device, &page, n_flags * sizeof *d->page));
    d->page = page;
  }
done:
  return st;
}

xfer_status xfi_direct_create(xfi_direct **direct, xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  xfi_direct *d = xfi_calloc(1, sizeof *d);

  if (d == NULL) {
    xfi_set_error("direct lane");
    st = XFER_ERR_NOMEM;
  } else {
    d->device = plan->device;
    st = make_page(d, plan);
  }
  XFI_TRY(xfi_comm_agree(plan->comm, st, xfi_run_deadline(plan)));
  XFI_CHECK(d != NULL, XFER_ERR_INTERNAL, "the ranks agreed on a rank out of memory");
  XFI_TRY(xfi_links_create(&d->links, plan, d->page));
  XFI_TRY(xfi_comm_agree(plan->comm, prepare(d, plan), xfi_run_deadline(plan)));

  *direct = d;
  d = NULL;
done:
  if (plan->device->ops->exports_end != NULL) plan->device->ops->exports_end(plan->device);
  xfi_direct_destroy(d, false);
  return st;
}

void xfi_direct_destroy(xfi_direct *d, bool abandoned)
{
  if (d == NULL) return;
  for (int i = 0; i < d->n_streams; i++) {
    d->device->ops->stream_destroy(d->device, d->streams[i]);
    d->device->ops->event_destroy(d->device, d->ended[i]);
  }
  for (int g = 0; g < d->n_groups; g++) {
    if (d->groups[g].batch != NULL) d->device->ops->batch_destroy(d->device, d->groups[g].batch);
    xfi_free(d->groups[g].ready);
    xfi_free(d->groups[g].done);
    xfi_free(d->groups[g].ranks);
  }
  xfi_links_destroy(&d->links, d->device);
  if (d->page != NULL && abandoned && d->device->ops->flags_share == NULL)
    xfi_abandon(d->page);
  else if (d->page != NULL && d->device->ops->flags_free != NULL)
    d->device->ops->flags_free(d->device, d->page);
  else if (d->page != NULL)
    d->device->ops->free(d->device, d->page);
  xfi_free(d->sends);
  xfi_free(d->recvs);
  xfi_free(d->groups);
  xfi_free(d->tell);
  xfi_free(d->await);
  xfi_free(d->await_ranks);
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

/* What a failed rank writes in place of an epoch. */
#define FAILED UINT64_MAX

/* On the host a wait is over when the call returns: did one of the peers give up? */
static xfer_status check_failed(uint64_t *const *flags, const int *ranks, int n)
{
  xfer_status st = XFER_OK;

  for (int i = 0; i < n; i++)
    XFI_CHECK(__atomic_load_n(flags[i], __ATOMIC_RELAXED) != FAILED, XFER_ERR_PEER,
              "rank %d failed in this run", ranks[i]);
done:
  return st;
}

void xfi_direct_fail(xfi_direct *d, int rank)
{
  for (size_t i = 0; d != NULL && i < d->links.n; i++) {
    const xfi_link *link = &d->links.at[i];

    /* From the host: streams may be waiting themselves. */
    if (link->page != NULL)
      d->device->ops->flags_release(d->device, flag(link->page, rank, 0), FLAGS_PER_PEER, FAILED);
  }
}

/* Of a peer whose signal did not come. */
#define LATE_TEXT "rank %d %s in run %llu within the deadline"
#define NOT_STARTED "did not start"
#define NOT_FINISHED "did not finish"

/* A flag wait whose failure names the peer. */
static xfer_status wait_flags(const xfi_direct *d, uint64_t *const *flags, const int *ranks, int n,
                              uint64_t epoch, xfer_stream stream, xfi_deadline deadline,
                              const char *what)
{
  xfer_status st = XFER_OK;
  int late = 0;

  if (n == 0) return XFER_OK;
  st = d->device->ops->flags_wait(d->device, flags, n, epoch, stream, deadline, &late);
  XFI_CHECK(st != XFER_ERR_TIMEOUT || late < 0, XFER_ERR_TIMEOUT, LATE_TEXT, ranks[late], what,
            (unsigned long long)epoch);
  XFI_TRY(st);
  if (d->device->ops->is_synchronous) XFI_TRY(check_failed(flags, ranks, n));
done:
  return st;
}

void xfi_direct_name_late(const xfi_direct *d, const xfer_plan *plan)
{
  const xfi_device_ops *dev = d->device->ops;
  const uint64_t *late = dev->late_flag != NULL ? dev->late_flag(d->device) : NULL;
  const uint64_t *end = d->page + (size_t)plan->moves->n_ranks * FLAGS_PER_PEER;

  if (late == NULL || late < d->page || late >= end) return;
  const int rank = (int)((late - d->page) / FLAGS_PER_PEER);
  const bool started = (late - d->page) % FLAGS_PER_PEER == DONE;
  xfi_set_error(LATE_TEXT, rank, started ? NOT_FINISHED : NOT_STARTED,
                (unsigned long long)plan->epoch);
}

static xfer_status start_group(const xfi_direct *d, const group *g, uint64_t epoch,
                               xfer_stream stream, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;

  XFI_TRY(wait_flags(d, g->ready, g->ranks, g->n_peers, epoch, stream, deadline, NOT_STARTED));
  if (g->batch != NULL) XFI_TRY(d->device->ops->batch_launch(d->device, g->batch, stream));
  XFI_TRY(d->device->ops->flags_set(d->device, g->done, g->n_peers, epoch, stream));
done:
  return st;
}

xfer_status xfi_direct_start(xfi_direct *d, xfer_plan *plan, xfer_stream stream,
                             xfi_deadline deadline)
{
  const xfi_device_ops *dev = d->device->ops;
  xfer_status st = XFER_OK;

  if (d->n_await > 0) XFI_TRY(dev->flags_set(d->device, d->tell, d->n_await, plan->epoch, stream));
  for (int i = 0; i < d->n_streams; i++)
    XFI_TRY(dev->stream_wait(d->device, d->streams[i], plan->started));
  for (int i = 0; i < d->n_groups; i++) {
    const group *g = &d->groups[i];

    XFI_TRY(
        start_group(d, g, plan->epoch, g->stream < 0 ? stream : d->streams[g->stream], deadline));
  }
done:
  return st;
}

xfer_status xfi_direct_finish(xfi_direct *d, xfer_plan *plan, xfer_stream stream,
                              xfi_deadline deadline)
{
  const xfi_device_ops *dev = d->device->ops;
  xfer_status st = XFER_OK;

  for (int i = 0; i < d->n_streams; i++) {
    XFI_TRY(dev->event_record(d->device, d->ended[i], d->streams[i]));
    XFI_TRY(dev->stream_wait(d->device, stream, d->ended[i]));
  }
  XFI_TRY(wait_flags(d, d->await, d->await_ranks, d->n_await, plan->epoch, stream, deadline,
                     NOT_FINISHED));
done:
  return st;
}
