/*
 * The direct lane, made at commit: this rank's copies to and from memory of its peers that is
 * mapped here. They form groups, each of which waits for the same peers and is launched as a whole.
 *
 * commit.c calls xfi_direct_create(), which is collective; the rest is local to a rank. Runs of the
 * lane are in direct_run.c.
 */
#include "direct.h"

#include <string.h>

#include "alloc.h"
#include "error.h"
#include "local.h"
#include "peers.h"
#include "vec.h"
#include "wire.h"

/* ---- copies ---- */

/* Append what this rank copies over a link in one direction (`send`: to the peer). A copy goes to
 * the list in parts[XFI_QUANT_PARTS] that waits for the scales which it needs (quant.c). */
static xfer_status add_transfer(xfi_copies *parts, const xfer_plan *plan, const xfi_link *link,
                                bool send)
{
  const bool both = link->transfer[send].by == XFI_BY_BOTH;
  xfi_walk w = xfi_walk_begin(plan, link, send);
  /* Room for the usual number of copies, one for each move or piece: growing a large list costs
   * page faults. */
  const size_t about = (size_t)(w.end - w.next) + link->n_own_locations + link->n_locations;
  xfer_status st = XFER_OK;
  xfi_copies *copies;

  XFI_TRY(xfi_vec_reserve(&parts->at, &parts->capacity, parts->n + about, sizeof *parts->at));
  while (xfi_walk_next(&w, &st)) {
    if (both && xfi_walk_is_pushed(&w) != send) continue; /* the peer copies this move */
    copies = &parts[xfi_quant_part(plan->quant, w.move->tensor)];
    XFI_TRY(xfi_copies_add(copies, &w.dst, &w.src, w.box.length, w.cls->src->n_dims,
                           xfi_plan_elem(plan, w.cls, XFI_END_TO_END)));
    xfi_copies_join_last(copies);
  }
  return st;
}

/* ---- groups ---- */

/* Does this rank copy anything over the link in this direction? */
static bool link_copies(const xfi_link *link, int mode)
{
  return mode == XFI_PUSH ? xfi_pushes(link->transfer[1].by) : xfi_pulls(link->transfer[0].by);
}

/* How many bytes it copies. */
static uint64_t copied_bytes(const xfi_link *link, const xfer_plan *plan, int mode)
{
  const bool send = mode == XFI_PUSH;
  const xfi_link_transfer *transfer = &link->transfer[send];
  const uint64_t all =
      xfi_plan_unicast_bytes(plan, send, &xfi_plan_moves(plan, send)->peers[transfer->peer]);

  if (transfer->by != XFI_BY_BOTH) return all;
  return send ? transfer->pushed_bytes : all - transfer->pushed_bytes;
}

static void add_flag(xfi_flags *flags, uint64_t *flag)
{
  flags->at[flags->n++] = flag;
}

static xfi_group *new_group(xfi_direct *d, int mode, int stream)
{
  const int n = d->watch.flags.n;
  xfi_group *g = &d->groups[d->n_groups++];

  *g = (xfi_group){.mode = mode,
                   .stream = stream,
                   .ready = {d->watch.flags.at + n, 0},
                   .done = {d->peer_flags + n, 0},
                   .links = d->group_links + n};
  return g;
}

static void join_group(xfi_group *g, xfi_direct *d, const xfi_link *link)
{
  g->strict = g->strict || g->mode == XFI_PUSH || link->near >= XFI_SAME_PROCESS;
  g->links[g->ready.n] = link;
  add_flag(&g->ready, xfi_word(d->page, link->rank, XFI_READY));
  add_flag(&g->done, xfi_word(link->page, d->rank, XFI_DONE + g->mode));
  d->watch.flags.n++;
}

static xfer_status add_copies(xfi_copies *parts, const xfer_plan *plan, const xfi_group *g)
{
  for (int i = 0; i < g->ready.n; i++)
    XFI_TRY(add_transfer(parts, plan, g->links[i], g->mode == XFI_PUSH));
  return g->has_local ? xfi_local_add(NULL, &parts[0], plan) : XFER_OK;
}

/* Make g->open, a batch of the same copies for runs in which nothing is left to wait for. None if
 * copies wait for scales, or if it would be no faster. */
static xfer_status make_open(xfi_group *g, const xfi_direct *d, const xfer_plan *plan,
                             const xfi_batch_spec *guarded, xfi_copies *copies)
{
  /* This rank sends to several peers that also send to it, as when the ranks that train also serve:
   * then the copy engines of all ranks get in each other's way. Between 4 H200 they reached 0.67 to
   * 0.94 of the link, mostly below 0.8 and different in each run of a program, and kernels 0.89. */
  const bool is_all_to_all = d->links.counts.n_both > 1;
  const xfi_device_ops *dev = d->device->ops;
  xfi_batch_spec spec = *guarded;

  if (plan->quant != NULL || dev->batch_wants_open == NULL || g->batches[0] == NULL ||
      !dev->batch_wants_open(g->batches[0]) || is_all_to_all) {
    xfi_batch_drop(d->device, &g->open);
    return XFER_OK;
  }
  if (!g->strict) { /* the guarded batch may have overwritten the list */
    copies->n = 0;
    XFI_TRY(add_copies(copies, plan, g));
  }
  spec.copies = copies->at;
  spec.n_copies = copies->n;
  spec.guard = NULL;
  spec.open = true;
  return dev->batch_create(d->device, &g->open, &spec);
}

/* Make the group's batches, at the present addresses. */
static xfer_status make_batches(xfi_group *g, const xfi_direct *d, const xfer_plan *plan)
{
  const xfer_plan *owner = xfi_plan_owner(plan);
  xfer_status st = XFER_OK;
  xfi_copies parts[XFI_QUANT_PARTS] = {{NULL, 0, 0}};
  const bool both_ways = plan->moves->sends.n_peers > 0 && plan->moves->recvs.n_peers > 0;
  xfi_batch_spec spec = {.percent = d->percent,
                         .guard = g->guard,
                         .beside = plan->lanes.local != NULL || both_ways,
                         .no_engine = g->at_once,
                         .known = owner->memory.allocations,
                         .n_known = owner->memory.n_allocations};

  XFI_TRY_DONE(add_copies(parts, plan, g));
  for (int k = 0; k < XFI_QUANT_PARTS; k++) {
    if (parts[k].n == 0) continue;
    spec.copies = parts[k].at;
    spec.n_copies = parts[k].n;
    XFI_TRY_DONE(d->device->ops->batch_create(d->device, &g->batches[k], &spec));
  }
  XFI_TRY_DONE(make_open(g, d, plan, &spec, &parts[0]));
done:
  for (int k = 0; k < XFI_QUANT_PARTS; k++)
    xfi_copies_free(&parts[k]);
  return st;
}

static xfer_status make_guard(xfi_group *g, const xfi_direct *d)
{
  uint64_t *flags[XFI_GUARD_FLAGS];
  xfi_flags guarded = {flags, 0};

  if (d->device->ops->guard_create == NULL) return XFER_OK;
  for (int i = 0; i < g->ready.n; i++) {
    add_flag(&guarded, g->ready.at[i]);
    add_flag(&guarded, xfi_word(d->page, g->links[i]->rank, XFI_ABORTED));
  }
  add_flag(&guarded, d->watch.given_up);
  return d->device->ops->guard_create(d->device, &g->guard, &guarded, g->strict);
}

/* Make the groups of one direction: one group of everything, or one for each peer on streams that
 * are used in turn. They are in the order in which they start, since the copy engine takes one
 * peer's copies after another's. If in every order several ranks would copy from one peer at a
 * time, kernels copy, all groups together: they reach 0.92 of the link then, and engines 0.5. */
static xfer_status list_groups(xfi_direct *d, int mode, bool one)
{
  const bool sends = mode == XFI_PULL; /* whether the peers send */
  xfi_group *g = NULL;
  size_t n = 0;
  bool even;
  xfi_visit *visits = xfi_calloc(d->links.n + 1, sizeof *visits);

  if (visits == NULL) return XFI_NO_MEMORY("%zu peers", d->links.n);
  for (size_t i = 0; i < d->links.n; i++)
    if (link_copies(&d->links.at[i], mode))
      visits[n++] =
          (xfi_visit){d->links.at[i].rank, &d->links.at[i].their_ranks[sends], &d->links.at[i], 0};
  visits[n] = (xfi_visit){d->rank, &d->links.ranks[sends], NULL, 0};
  even = xfi_order_visits(visits, n + 1, d->rank);
  for (size_t i = 0; i <= n; i++) {
    if (visits[i].link == NULL) continue; /* what this rank keeps */
    if (g == NULL || !one)
      g = new_group(d, mode, one ? -1 : d->n_groups % d->device->ops->n_copy_streams);
    g->at_once = !even;
    join_group(g, d, visits[i].link);
  }
  xfi_free(visits);
  return XFER_OK;
}

/* Let the last group make the copies within this rank too, if they are few, so that they need no
 * launch of their own. Not if the group then needs several launches; nor if the plan has a
 * snapshot, whose launch takes these copies (snapshot.c); nor if the launch of a cached plan would
 * then read a table, for which its next call would have to wait. */
static xfer_status join_local(xfi_direct *d, xfer_plan *plan)
{
  const xfi_device_ops *dev = d->device->ops;
  xfi_group *g = &d->groups[d->n_groups - 1];

  if (dev->batch_is_one_launch == NULL || plan->quant != NULL || plan->lanes.snapshot != NULL ||
      !xfi_local_may_join(plan))
    return XFER_OK;
  g->has_local = true;
  XFI_TRY(make_batches(g, d, plan));
  if (dev->batch_is_one_launch(g->batches[0]) &&
      !(plan->is_cached && xfi_batch_is_read(d->device, g->batches[0]))) {
    xfi_local_join(plan);
    return XFER_OK;
  }
  g->has_local = false;
  return make_batches(g, d, plan);
}

static xfer_status make_groups(xfi_direct *d, xfer_plan *plan)
{
  bool one = !d->device->ops->is_synchronous && d->links.n <= (XFI_GUARD_FLAGS - 1) / 2;
  int n = 0;

  for (size_t i = 0; i < d->links.n; i++)
    for (int mode = XFI_PUSH; mode <= XFI_PULL; mode++) {
      if (!link_copies(&d->links.at[i], mode)) continue;
      d->bytes += copied_bytes(&d->links.at[i], plan, mode);
      n++;
    }
  one = one && d->bytes <= d->device->one_batch_bytes;
  /* A peer's copies get twice as many multiprocessors as those within the rank (local.c). */
  d->percent = one || n == 0 ? 100 : plan->lanes.local != NULL ? 200 / (2 * n + 1) : 100 / n;
  XFI_TRY(list_groups(d, XFI_PUSH, one));
  XFI_TRY(list_groups(d, XFI_PULL, one));
  for (int g = 0; g < d->n_groups; g++) {
    XFI_TRY(make_guard(&d->groups[g], d));
    XFI_TRY(make_batches(&d->groups[g], d, plan));
  }
  return one && d->n_groups > 0 ? join_local(d, plan) : XFER_OK;
}

static xfer_status make_streams(xfi_direct *d)
{
  int n = 0;

  for (int g = 0; g < d->n_groups; g++)
    if (d->groups[g].stream >= n) n = d->groups[g].stream + 1;
  for (size_t i = 0; i < d->links.n; i++)
    d->shares_queues = d->shares_queues || d->links.at[i].near == XFI_SAME_DEVICE;
  if (d->n_groups > 1) XFI_TRY(xfi_event_create(d->device, &d->turn));
  d->streams = xfi_calloc((size_t)n, sizeof(xfer_stream));
  d->ended = xfi_calloc((size_t)n, sizeof *d->ended);
  XFI_CHECK(d->streams != NULL && d->ended != NULL, XFER_ERR_NOMEM, "%d streams", n);
  d->n_streams = n;
  for (int i = 0; i < n; i++) {
    XFI_TRY(xfi_stream_create(d->device, &d->streams[i]));
    XFI_TRY(xfi_event_create(d->device, &d->ended[i]));
  }
  return XFER_OK;
}

/* List the flags of peers that copy to or from this rank's memory: those that it sets on their
 * pages when its memory is ready (announce), and those that it waits for on its own page (await).
 */
static void list_waits(xfi_direct *d)
{
  const int n = d->watch.flags.n;

  d->await.at = d->watch.flags.at + n;
  d->announce.at = d->peer_flags + n;
  for (size_t i = 0; i < d->links.n; i++) {
    const xfi_link *link = &d->links.at[i];
    const bool by[2] = {xfi_pushes(link->transfer[0].by), xfi_pulls(link->transfer[1].by)};

    for (int mode = XFI_PUSH; mode <= XFI_PULL; mode++)
      if (by[mode]) add_flag(&d->await, xfi_word(d->page, link->rank, XFI_DONE + mode));
    if (by[XFI_PUSH] || by[XFI_PULL])
      add_flag(&d->announce, xfi_word(link->page, d->rank, XFI_READY));
  }
  d->watch.flags.n += d->await.n;
}

/* Allocate the page, and the lists of flags and groups. There is at most one group for each
 * direction of a link. */
static xfer_status make_room(xfi_direct *d, int n_ranks)
{
  const size_t n = d->links.n;
  const bool by_streams = d->links.counts.n_links > 0;

  d->groups = xfi_calloc(2 * n, sizeof *d->groups);
  d->watch.flags.at = xfi_calloc(4 * n, sizeof *d->watch.flags.at);
  d->peer_flags = xfi_calloc(3 * n, sizeof *d->peer_flags);
  d->group_links = xfi_calloc(2 * n, sizeof(const xfi_link *));
  XFI_CHECK(d->groups != NULL && d->watch.flags.at != NULL && d->peer_flags != NULL &&
                d->group_links != NULL,
            XFER_ERR_NOMEM, "%zu links", n);
  if (n > 0)
    XFI_TRY(
        d->device->ops->flags_alloc(d->device, &d->page, (size_t)n_ranks * XFI_WORDS, by_streams));
  if (n > 0) d->watch.given_up = xfi_word(d->page, d->rank, XFI_ABORTED);
  return XFER_OK;
}

xfer_status xfi_direct_create(xfi_direct **direct, xfer_plan *plan, const xfi_near *near,
                              xfer_status *mine, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  xfi_direct *d = xfi_comm_calloc(plan->comm, 1, sizeof *d);

  XFI_CHECK_DONE(d != NULL, XFER_ERR_NOMEM, "direct lane");
  d->device = plan->device;
  d->rank = plan->moves->rank;
  d->aborts_at_deadline = plan->is_cached;
  d->watch.alarm.ring = xfi_direct_ring;
  XFI_TRY_DONE(xfi_links_list(&d->links, plan, near));
  if (*mine == XFER_OK) *mine = xfi_links_list_ranks(&d->links, plan);
  if (*mine == XFER_OK) *mine = make_room(d, plan->moves->n_ranks);
  XFI_TRY_DONE(xfi_links_connect(&d->links, plan, d->page, mine, deadline));
  if (*mine == XFER_OK) *mine = make_groups(d, plan);
  if (*mine == XFER_OK) *mine = make_streams(d);
  if (*mine == XFER_OK) list_waits(d);
  *direct = d;
  d = NULL;
done:
  xfi_direct_destroy(d);
  return st;
}

xfer_status xfi_direct_rebind(xfi_direct *d, const xfer_plan *plan)
{
  for (int g = 0; g < d->n_groups; g++)
    XFI_TRY(make_batches(&d->groups[g], d, plan));
  return XFER_OK;
}

bool xfi_direct_is_read(const xfi_direct *d)
{
  bool any = false;

  for (int g = 0; g < d->n_groups && !any; g++) {
    any = xfi_batch_is_read(d->device, d->groups[g].open);
    for (int k = 0; k < XFI_QUANT_PARTS; k++)
      any = any || xfi_batch_is_read(d->device, d->groups[g].batches[k]);
  }
  return any;
}

int xfi_direct_sides_exported(const xfi_direct *d)
{
  int sides = 0;

  for (size_t i = 0; i < d->links.n; i++)
    sides |= xfi_link_sides_exported(&d->links.at[i]);
  return sides;
}

bool xfi_direct_drop_sources(xfi_direct *d)
{
  bool any = false;

  for (size_t i = 0; i < d->links.n; i++)
    any = xfi_link_drop_sources(&d->links.at[i], d->device) || any;
  return any;
}

void xfi_direct_destroy(xfi_direct *d)
{
  if (d == NULL) return;
  if (d->device->alarms != NULL) xfi_alarm_clear(d->device->alarms, &d->watch.alarm);
  for (int i = 0; i < d->n_streams; i++) {
    xfi_stream_destroy(d->device, d->streams[i]);
    xfi_event_destroy(d->device, d->ended[i]);
  }
  for (int g = 0; g < d->n_groups; g++) {
    for (int k = 0; k < XFI_QUANT_PARTS; k++)
      xfi_batch_drop(d->device, &d->groups[g].batches[k]);
    xfi_batch_drop(d->device, &d->groups[g].open);
    if (d->groups[g].guard != NULL) d->device->ops->guard_destroy(d->device, d->groups[g].guard);
  }
  xfi_event_destroy(d->device, d->turn);
  xfi_links_destroy(&d->links, d->device);
  if (d->page != NULL) d->device->ops->flags_free(d->device, d->page);
  xfi_free(d->groups);
  xfi_free(d->watch.flags.at);
  xfi_free(d->peer_flags);
  xfi_free(d->group_links);
  xfi_free(d->streams);
  xfi_free(d->ended);
  xfi_free(d);
}

static xfi_by by_of(const xfi_link *link, bool send)
{
  return link == NULL ? XFI_BY_NOBODY : link->transfer[send].by;
}

bool xfi_direct_carries(const xfi_direct *d, bool send, size_t peer)
{
  return d != NULL && by_of(xfi_links_find(&d->links, send, peer), send) != XFI_BY_NOBODY;
}

const char *xfi_direct_lane(const void *plan, bool relay, bool send, size_t peer)
{
  const xfer_plan *p = relay ? ((const xfer_plan *)plan)->relay : plan;
  const xfi_move_list *list = xfi_plan_moves(p, send);
  const xfi_link *link;
  xfi_by by;

  if (p->lanes.direct == NULL) return NULL;
  link = xfi_links_find(&p->lanes.direct->links, send, peer);
  by = by_of(link, send);
  if (by == XFI_BY_BOTH) return "direct: each copies a part";
  if (by != XFI_BY_NOBODY)
    return (by == XFI_BY_PUSH) == send ? "direct: this rank copies" : "direct: the peer copies";
  if (link != NULL) return link->lane;
  if (!xfi_plan_has_unicast(p, &list->peers[peer])) return "broadcast";
  if (p->options.lane == XFER_LANE_PACKED) return "packed: the lane was asked for";
  if (!p->device->ops->is_synchronous) return "packed: not of one host, user and container";
  if (xfi_plan_shares(p, list->peers[peer].rank))
    return "packed: through slots that both processes have";
  return "packed: another process's memory cannot be addressed";
}
