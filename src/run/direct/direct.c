/*
 * The direct lane as a commit makes it: copies straight between this rank's memory and mapped
 * memory of peers, grouped by the peers that they wait for. direct_run.c runs them.
 */
#include "direct.h"

#include <string.h>

#include "alloc.h"
#include "error.h"
#include "vec.h"

/* Up to this many bytes all copies go in one batch on the caller's stream: fewer launches count
 * more than streams side by side. */
#define ONE_BATCH_BYTES (UINT64_C(16) << 20)

/* ---- copies ---- */

/* By what has to be known of blocks before they begin, see quant.c. */
typedef struct flows {
  xfi_copies parts[XFI_QUANT_PARTS];
} flows;

static void empty_flows(flows *f)
{
  for (int k = 0; k < XFI_QUANT_PARTS; k++)
    f->parts[k].n = 0;
}

static void free_flows(flows *f)
{
  for (int k = 0; k < XFI_QUANT_PARTS; k++)
    xfi_copies_free(&f->parts[k]);
}

/* What this rank copies of one flow: `send`: from us to the peer. f NULL: only *bytes. */
static xfer_status add_flow(flows *f, const xfer_plan *plan, const xfi_link *link, bool send,
                            uint64_t *bytes)
{
  const xfi_move_list *list = send ? &plan->moves->sends : &plan->moves->recvs;
  const xfi_peer *peer = &list->peers[send ? link->send : link->recv];
  const bool both = (send ? link->send_by : link->recv_by) == XFI_BY_BOTH;
  xfer_status st = XFER_OK;
  xfi_cursor cursor = {0, 0};

  if (f != NULL)
    XFI_TRY(xfi_vec_reserve(&f->parts->at, &f->parts->capacity, f->parts->n + peer->n,
                            sizeof *f->parts->at));
  for (size_t i = peer->first; i < peer->first + peer->n; i++) {
    const xfi_move *move = &list->moves[i];
    const xfi_class *cls = xfi_plan_class(plan->moves, move->tensor);
    const int n_dims = cls->src->n_dims;
    xfi_end src;
    xfi_end dst;
    xfi_box box;

    if (xfi_run_broadcasts(plan, cls)) continue;
    if (f != NULL || both) {
      xfi_move_box(&box, cls, send ? &cls->sends : &cls->recvs, move);
      XFI_TRY(xfi_link_ends(&src, &dst, plan, link, send, move, &box, &cursor));
      if (both && xfi_link_is_pushed_move(link, cls, &src, &dst, box.length) != send)
        continue; /* the peer's */
    }
    if (f != NULL)
      XFI_TRY(xfi_copies_add(&f->parts[xfi_quant_part(plan->quant, move->tensor)], &dst, &src,
                             box.length, n_dims, xfi_run_elem(plan, cls, XFI_WHOLE_WAY)));
    *bytes += xfi_move_bytes(cls, send ? &cls->sends : &cls->recvs, move);
  }
done:
  return st;
}

/* ---- groups ---- */

static bool link_goes(const xfi_link *link, int way)
{
  return way == XFI_PUSH ? xfi_pushes(link->send_by) : xfi_pulls(link->recv_by);
}

static xfer_status make_flags(xfi_flags *flags, size_t n)
{
  flags->at = xfi_calloc(n, sizeof *flags->at);
  return flags->at != NULL ? XFER_OK : XFI_NO_MEMORY("%zu flags", n);
}

static void add_flag(xfi_flags *flags, uint64_t *flag)
{
  flags->at[flags->n++] = flag;
}

static xfer_status new_group(xfi_group **out, xfi_direct *d, int way, int stream)
{
  xfer_status st = XFER_OK;
  xfi_group *g = &d->groups[d->n_groups++];

  g->way = way;
  g->stream = stream;
  g->links = xfi_calloc(d->links.n, sizeof(const xfi_link *));
  XFI_CHECK(g->links != NULL, XFER_ERR_NOMEM, "%zu peers", d->links.n);
  XFI_TRY(make_flags(&g->ready, d->links.n));
  XFI_TRY(make_flags(&g->done, d->links.n));
  *out = g;
done:
  return st;
}

static void join_group(xfi_group *g, xfi_direct *d, const xfi_link *link, int rank)
{
  g->strict = g->strict || g->way == XFI_PUSH || link->near >= XFI_SAME_PROCESS;
  g->links[g->ready.n] = link;
  add_flag(&g->ready, xfi_word(d->page, link->rank, XFI_READY));
  add_flag(&g->done, xfi_word(link->page, rank, XFI_DONE + g->way));
}

/* Copies may go without a strict guard where nothing can keep them from going at once: not where
 * scales have to be known first. */
static xfer_status make_batches(xfi_group *g, const xfi_direct *d, const flows *f, bool may_open)
{
  const xfi_device_ops *dev = d->device->ops;
  xfer_status st = XFER_OK;

  for (int k = 0; k < XFI_QUANT_PARTS; k++) {
    const xfi_copies *copies = &f->parts[k];

    if (copies->n == 0) continue;
    XFI_TRY(
        dev->batch_create(d->device, &g->batches[k], copies->at, copies->n, g->percent, g->guard));
    if (may_open && g->strict && dev->batch_create_open != NULL)
      XFI_TRY(dev->batch_create_open(d->device, &g->open, copies->at, copies->n, g->percent));
  }
done:
  return st;
}

static void drop_batches(xfi_group *g, const xfi_direct *d)
{
  for (int k = 0; k < XFI_QUANT_PARTS; k++) {
    if (g->batches[k] != NULL) d->device->ops->batch_destroy(d->device, g->batches[k]);
    g->batches[k] = NULL;
  }
  if (g->open != NULL) d->device->ops->batch_destroy(d->device, g->open);
  g->open = NULL;
}

/* The batches of a group whose peers are known, with its guard. */
static xfer_status finish_group(xfi_group *g, const xfi_direct *d, const flows *f, bool may_open)
{
  const xfi_device_ops *dev = d->device->ops;
  xfer_status st = XFER_OK;
  uint64_t *flags[XFI_GUARD_FLAGS];
  xfi_flags guarded = {flags, 0};

  if (dev->guard_create != NULL) {
    for (int i = 0; i < g->ready.n; i++) {
      add_flag(&guarded, g->ready.at[i]);
      add_flag(&guarded, xfi_word(d->page, g->links[i]->rank, XFI_LEFT));
    }
    XFI_TRY(dev->guard_create(d->device, &g->guard, &guarded, g->strict));
  }
  XFI_TRY(make_batches(g, d, f, may_open));
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

/* What goes one way: one group with everything, or one per peer with the streams dealt in turn,
 * each with `percent` of the device. */
static xfer_status make_way(xfi_direct *d, const xfer_plan *plan, int way, bool one, int percent)
{
  xfer_status st = XFER_OK;
  flows f = {{{NULL, 0, 0}}};
  uint64_t ignored = 0;
  xfi_group *g = NULL;

  for (size_t i = 0; i < d->links.n; i++) {
    const xfi_link *link = nth_link(d, plan->moves->rank, i);

    if (!link_goes(link, way)) continue;
    if (g == NULL)
      XFI_TRY(new_group(&g, d, way, one ? -1 : d->n_groups % d->device->ops->n_copy_streams));
    g->percent = percent;
    join_group(g, d, link, plan->moves->rank);
    XFI_TRY(add_flow(&f, plan, link, way == XFI_PUSH, &ignored));
    if (one) continue;
    XFI_TRY(finish_group(g, d, &f, plan->quant == NULL));
    g = NULL;
    empty_flows(&f);
  }
  if (g != NULL) XFI_TRY(finish_group(g, d, &f, plan->quant == NULL));
done:
  free_flows(&f);
  return st;
}

static xfer_status make_groups(xfi_direct *d, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  bool one = !d->device->ops->is_synchronous && d->links.n <= XFI_GUARD_FLAGS / 2;
  int n = 0;
  int percent;

  d->groups = xfi_calloc(2 * d->links.n, sizeof *d->groups);
  XFI_CHECK(d->groups != NULL, XFER_ERR_NOMEM, "%zu links", d->links.n);
  for (size_t i = 0; i < d->links.n; i++) {
    const xfi_link *link = &d->links.at[i];

    n += link_goes(link, XFI_PUSH) + link_goes(link, XFI_PULL);
    if (link_goes(link, XFI_PUSH)) XFI_TRY(add_flow(NULL, plan, link, true, &d->bytes));
    if (link_goes(link, XFI_PULL)) XFI_TRY(add_flow(NULL, plan, link, false, &d->bytes));
  }
  one = one && d->bytes <= ONE_BATCH_BYTES;
  percent = one || n == 0 ? 100 : plan->local != NULL ? 200 / (2 * n + 1) : 100 / n; /* local.c */
  XFI_TRY(make_way(d, plan, XFI_PUSH, one, percent));
  XFI_TRY(make_way(d, plan, XFI_PULL, one, percent));
done:
  return st;
}

static xfer_status make_streams(xfi_direct *d)
{
  xfer_status st = XFER_OK;
  int n = 0;

  for (int g = 0; g < d->n_groups; g++)
    if (d->groups[g].stream >= n) n = d->groups[g].stream + 1;
  for (size_t i = 0; i < d->links.n; i++)
    d->may_share = d->may_share || d->links.at[i].near == XFI_SAME_DEVICE;
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
  for (size_t i = 0; i < d->links.n; i++) {
    const xfi_link *link = &d->links.at[i];
    const bool by[2] = {xfi_pushes(link->recv_by), xfi_pulls(link->send_by)};

    for (int way = XFI_PUSH; way <= XFI_PULL; way++)
      if (by[way]) add_flag(&d->await, xfi_word(d->page, link->rank, XFI_DONE + way));
    if (by[XFI_PUSH] || by[XFI_PULL]) add_flag(&d->tell, xfi_word(link->page, rank, XFI_READY));
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

xfer_status xfi_direct_create(xfi_direct **direct, xfer_plan *plan, const xfi_near *near,
                              xfer_status *mine, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  xfi_direct *d = xfi_comm_calloc(plan->comm, 1, sizeof *d);

  XFI_CHECK(d != NULL, XFER_ERR_NOMEM, "direct lane");
  d->device = plan->device;
  d->watch.alarm.ring = xfi_direct_ring;
  XFI_TRY(xfi_links_list(&d->links, plan, near));
  if (*mine == XFER_OK) *mine = make_room(d, plan);
  XFI_TRY(xfi_links_connect(&d->links, plan, d->page, mine, deadline));
  if (*mine == XFER_OK) *mine = prepare(d, plan);
  *direct = d;
  d = NULL;
done:
  xfi_direct_destroy(d);
  return st;
}

/* The batches of a group anew. */
static xfer_status move_group(xfi_group *g, const xfi_direct *d, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;
  flows f = {{{NULL, 0, 0}}};
  uint64_t ignored = 0;

  for (int i = 0; i < g->ready.n; i++)
    XFI_TRY(add_flow(&f, plan, g->links[i], g->way == XFI_PUSH, &ignored));
  drop_batches(g, d);
  XFI_TRY(make_batches(g, d, &f, plan->quant == NULL));
done:
  free_flows(&f);
  return st;
}

xfer_status xfi_direct_move(xfi_direct *d, xfer_plan *plan, xfer_status *mine, bool *moved,
                            xfi_deadline deadline)
{
  xfer_status st = XFER_OK;

  XFI_TRY(xfi_links_move(&d->links, plan, mine, moved, deadline));
  for (int g = 0; g < d->n_groups && *moved && *mine == XFER_OK; g++)
    *mine = move_group(&d->groups[g], d, plan);
done:
  return st;
}

bool xfi_direct_has_flows(const xfi_direct *d)
{
  for (size_t i = 0; i < d->links.n; i++)
    if (d->links.at[i].send_by != XFI_BY_NOBODY || d->links.at[i].recv_by != XFI_BY_NOBODY)
      return true;
  return false;
}

static void free_group(xfi_direct *d, xfi_group *g)
{
  const xfi_device_ops *dev = d->device->ops;

  drop_batches(g, d);
  if (g->guard != NULL) dev->guard_destroy(d->device, g->guard);
  xfi_free(g->ready.at);
  xfi_free(g->done.at);
  xfi_free(g->links);
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
  xfi_free(d->watch.flags.at);
  xfi_free(d->streams);
  xfi_free(d->ended);
  xfi_free(d);
}

const char *xfi_direct_way(const void *plan, bool relay, bool send, size_t peer)
{
  const xfer_plan *p = relay ? ((const xfer_plan *)plan)->relay : plan;

  return p->direct == NULL ? NULL : xfi_links_way(&p->direct->links, p, send, peer);
}
