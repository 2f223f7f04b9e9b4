/*
 * How links are connected at commit: the two ends exchange descriptions of their memory, decide who
 * copies, and map what the copies need. Both ends know both descriptions, and what the other end
 * was able to map, so they decide alike without asking each other. Handles are exchanged only for
 * memory that is to be mapped: a trainer may have tens of thousands of allocations, and nobody maps
 * those that it pushes from.
 *
 * Which end should copy a transfer is chosen in link_choose.c. If that end cannot map what it
 * needs, the other end copies; if neither can, the transfer takes the packed lane. A rank that has
 * failed keeps to all exchanges, but sends nothing that a peer could use.
 */
#include "link.h"

#include <stdio.h>

#include "error.h"

/* ---- messages over all links ---- */

static void set_messages(const xfi_links *links, size_t i, xfi_bytes ours, xfi_bytes theirs)
{
  links->messages[i] = (xfi_message){ours.at, ours.n, links->at[i].rank};
  links->messages[links->n + i] = (xfi_message){theirs.at, theirs.n, links->at[i].rank};
}

/* Exchange the messages of all links; those without bytes are skipped. */
static xfer_status exchange(const xfi_links *links, const xfer_plan *plan, xfi_deadline deadline)
{
  int n[2] = {0, 0};

  for (int k = 0; k < 2; k++) {
    xfi_message *all = links->messages + (size_t)k * links->n;

    for (size_t i = 0; i < links->n; i++)
      if (all[i].n_bytes > 0) all[n[k]++] = all[i];
  }
  if (plan->comm->ops->exchange == NULL) return XFER_OK; /* there are no links */
  return plan->comm->ops->exchange(
      plan->comm, &(xfi_messages){links->messages, n[0], links->messages + links->n, n[1]},
      deadline);
}

/* Exchange each link's `ours` with the peer, whose becomes `theirs`. */
static xfer_status exchange_verdicts(const xfi_links *links, const xfer_plan *plan,
                                     xfi_deadline deadline)
{
  for (size_t i = 0; i < links->n; i++) {
    xfi_link *link = &links->at[i];

    set_messages(links, i, (xfi_bytes){(unsigned char *)&link->ours, sizeof link->ours, 0},
                 (xfi_bytes){(unsigned char *)&link->theirs, sizeof link->theirs, 0});
  }
  return exchange(links, plan, deadline);
}

xfer_status xfi_link_make_room(xfi_bytes *bytes, const xfer_plan *plan, size_t n)
{
  xfi_bytes_free(bytes);
  bytes->at = xfi_comm_calloc(plan->comm, n, 1);
  if (bytes->at == NULL) return XFI_NO_MEMORY("%zu bytes for a peer or from one", n);
  bytes->n = bytes->capacity = n;
  return XFER_OK;
}

xfer_status xfi_links_exchange(const xfi_links *links, const xfer_plan *plan, xfi_deadline deadline)
{
  for (size_t i = 0; i < links->n; i++)
    set_messages(links, i, links->at[i].send_buffer, links->at[i].recv_buffer);
  return exchange(links, plan, deadline);
}

/* Exchange descriptions of memory over all links whose two ends have not failed. */
static xfer_status exchange_descriptions(xfi_links *links, const xfer_plan *plan,
                                         const uint64_t *page, xfer_status *mine,
                                         xfi_deadline deadline)
{
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++)
    *mine = xfi_link_describe(&links->at[i], plan, page);
  for (size_t i = 0; i < links->n; i++)
    links->at[i].ours.n_bytes = *mine == XFER_OK ? links->at[i].send_buffer.n : 0;
  XFI_TRY(exchange_verdicts(links, plan, deadline));
  for (size_t i = 0; i < links->n; i++) {
    xfi_link *link = &links->at[i];
    const bool both = link->ours.n_bytes > 0 && link->theirs.n_bytes > 0; /* else one has failed */

    if (!both) link->send_buffer.n = 0;
    XFI_TRY(xfi_link_make_room(&link->recv_buffer, plan, both ? link->theirs.n_bytes : 0));
  }
  XFI_TRY(xfi_links_exchange(links, plan, deadline));
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++)
    if (links->at[i].recv_buffer.n > 0) *mine = xfi_link_read(&links->at[i]);
  return XFER_OK;
}

/* ---- handles ---- */

/* Has neither end failed? Both ends know this. */
static bool is_alive(const xfi_link *link)
{
  return link->ours.failed == 0 && link->theirs.failed == 0;
}

/* Which sides (XFI_SIDE_*) of one end's memory the other end maps: of ours the peer (`by_peer`), or
 * of the peer's this rank; none after a failure. In the first attempt it maps what it needs for its
 * own copies, in the second what it needs for copies that the owner should make and cannot. */
static int sides_mapped(const xfi_link *link, bool by_peer, bool second)
{
  const xfi_verdict *mapper = by_peer ? &link->theirs : &link->ours;
  const xfi_verdict *owner = by_peer ? &link->ours : &link->theirs;
  const xfi_by out = link->transfer[!by_peer].by; /* of what leaves the end that maps */
  const xfi_by in = link->transfer[by_peer].by;
  const bool push = xfi_pulls(out) && !owner->can_pull && !mapper->can_push;
  const bool pull = xfi_pushes(in) && !owner->can_push && !mapper->can_pull;

  if (!is_alive(link)) return 0;
  if (!second) return xfi_sides_copied(out, in);
  return (push ? XFI_SIDE_DST : 0) | (pull ? XFI_SIDE_SRC : 0);
}

/* Exchange handles of what the ends map in this attempt. A rank that fails meanwhile sends zeros,
 * which no peer can map. */
static xfer_status exchange_handles(xfi_links *links, const xfer_plan *plan, bool second,
                                    xfer_status *mine, xfi_deadline deadline)
{
  for (size_t i = 0; i < links->n; i++) {
    xfi_link *link = &links->at[i];
    const int peer_maps = sides_mapped(link, true, second);
    const size_t n_wanted = xfi_link_n_remotes(link, sides_mapped(link, false, second));
    xfi_mem_handle *handle;

    XFI_TRY(xfi_link_make_room(&link->send_buffer, plan,
                               xfi_link_n_advertised(link, peer_maps) * sizeof *handle));
    XFI_TRY(xfi_link_make_room(&link->recv_buffer, plan, n_wanted * sizeof *handle));
    handle = (xfi_mem_handle *)(void *)link->send_buffer.at;
    for (size_t k = 0; k < link->n_advertised && *mine == XFER_OK; k++)
      if ((link->advertised[k].sides & peer_maps) != 0)
        *mine = plan->device->ops->mem_export(plan->device, link->advertised[k].at, handle++);
  }
  return xfi_links_exchange(links, plan, deadline);
}

/* ---- mapping ---- */

/* Map one allocation of the peer's. If it cannot be reached that is no error: nothing is mapped,
 * and `why` says why. */
static xfer_status map_remote(xfi_remote *remote, const xfi_mem_handle *handle, xfi_device *device,
                              char *why, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;

  if (remote->mapped != NULL) return XFER_OK;
  st = device->ops->mem_import(device, handle, &remote->mapped, deadline);
  if (st == XFER_ERR_UNSUPPORTED) snprintf(why, XFI_WHY_BYTES, "%s", xfer_last_error());
  return st == XFER_ERR_UNSUPPORTED ? XFER_OK : st;
}

/* Map the peer's page, and then what is wanted of its memory: without the page, neither end can
 * tell the other when it may copy. */
static xfer_status map_link(xfi_link *link, xfi_device *device, int wanted, xfi_deadline deadline)
{
  const xfi_mem_handle *handle = (const xfi_mem_handle *)(const void *)link->recv_buffer.at;
  xfi_verdict *v = &link->ours;
  const xfi_remote *last = link->remotes;

  XFI_TRY(map_remote(link->remotes, &link->page_handle, device, v->why, deadline));
  v->can_signal = last->mapped != NULL;
  for (size_t i = 0; i < link->n_remotes && last->mapped != NULL; i++) {
    if ((link->remotes[i].sides & wanted) == 0) continue;
    last = &link->remotes[i];
    XFI_TRY(map_remote(&link->remotes[i], handle++, device, v->why, deadline));
  }
  if ((wanted & XFI_SIDE_DST) != 0) v->can_push = xfi_link_is_mapped(link, XFI_SIDE_DST);
  if ((wanted & XFI_SIDE_SRC) != 0) v->can_pull = xfi_link_is_mapped(link, XFI_SIDE_SRC);
  return XFER_OK;
}

/* Map memory: first for what this rank should copy, then for what its peers should and cannot. */
static xfer_status attempt(xfi_links *links, const xfer_plan *plan, bool second, xfer_status *mine,
                           xfi_deadline deadline)
{
  XFI_TRY(exchange_handles(links, plan, second, mine, deadline));
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++) {
    if (!is_alive(&links->at[i])) continue;
    *mine =
        map_link(&links->at[i], plan->device, sides_mapped(&links->at[i], false, second), deadline);
    if (*mine == XFER_ERR_TIMEOUT)
      xfi_set_error("rank %d, whose memory is to be mapped, did not answer before %s",
                    links->at[i].rank, xfi_deadline_end(deadline));
  }
  return XFER_OK;
}

/* Settle who copies each transfer: whoever was chosen, or else whoever is able to. */
static void decide(xfi_link *link, int rank)
{
  const bool signals = link->ours.can_signal != 0 && link->theirs.can_signal != 0;
  const bool is_ours = link->ours.why[0] != '\0';

  for (int send = 0; send < 2; send++) {
    xfi_link_transfer *transfer = &link->transfer[send];
    const xfi_verdict *sender = send ? &link->ours : &link->theirs;
    const xfi_verdict *receiver = send ? &link->theirs : &link->ours;
    const xfi_by can = (signals && sender->can_push ? XFI_BY_PUSH : 0) |
                       (signals && receiver->can_pull && !transfer->only_push ? XFI_BY_PULL : 0);

    if ((transfer->by & can) != transfer->by) transfer->by = can;
  }
  snprintf(link->lane, sizeof link->lane, "packed: rank %d cannot map rank %d: %.*s",
           is_ours ? rank : link->rank, is_ours ? link->rank : rank, XFI_WHY_BYTES - 1,
           is_ours ? link->ours.why : link->theirs.why);
}

static xfer_status resolve(xfi_link *link, xfi_device *device)
{
  if (link->remotes[0].mapped != NULL) {
    uint64_t *page = (uint64_t *)(void *)(link->remotes[0].mapped->base + link->page_offset);

    XFI_CHECK(device->ops->flags_share == NULL || device->ops->flags_share(device, page),
              XFER_ERR_PEER, "rank %d has failed", link->rank);
    link->page = page;
  }
  xfi_link_resolve(link);
  return XFER_OK;
}

xfer_status xfi_links_connect(xfi_links *links, xfer_plan *plan, uint64_t *page, xfer_status *mine,
                              xfi_deadline deadline)
{
  XFI_TRY(exchange_descriptions(links, plan, page, mine, deadline));
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++)
    if (links->at[i].recv_buffer.n > 0) *mine = xfi_link_choose(&links->at[i], plan);
  for (size_t i = 0; i < links->n; i++)
    links->at[i].ours.failed = *mine != XFER_OK;
  for (int n = 0; n < 3; n++) {
    if (*mine != XFER_OK &&
        xfi_deadline_expired(deadline)) { /* there is no time left to tell the peers here */
      xfi_comm_abort_with_error(plan->comm, plan->comm->ops->abort);
      return *mine;
    }
    XFI_TRY(exchange_verdicts(links, plan, deadline));
    if (n < (plan->lanes.uses_snapshots ? 1 : 2))
      XFI_TRY(attempt(links, plan, n > 0, mine, deadline));
  }
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++) {
    decide(&links->at[i], plan->moves->rank);
    if (is_alive(&links->at[i])) *mine = resolve(&links->at[i], plan->device);
    xfi_bytes_free(&links->at[i].send_buffer);
    xfi_bytes_free(&links->at[i].recv_buffer);
  }
  return XFER_OK;
}
