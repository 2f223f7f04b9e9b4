/*
 * Links after binds that changed nothing but addresses: the two ends tell each other where pieces
 * are by now. How many there are both know, so it is one exchange, and none where nobody copies.
 */
#include "alloc.h"
#include "error.h"
#include "link.h"

/* The index of the allocation, which is one of those that the peer described; n_remotes: none. */
static size_t find_remote(const xfi_link *link, const xfi_place_now *now, size_t likely)
{
  for (size_t n = 0; n < link->n_remotes; n++) {
    const size_t i = (likely + n) % link->n_remotes;

    if (link->remotes[i].base == now->base && link->remotes[i].n_bytes == now->n_bytes) return i;
  }
  return link->n_remotes;
}

/* now[n_places] become the peer's places. False: some lie in what it never described. */
static bool hear(xfi_link *link, const xfi_place_now *now)
{
  size_t at = 0;

  for (size_t p = 0; p < link->n_places; p++) {
    const bool as_before = link->remotes[link->places[p][0]].base == now[p].base;

    at = find_remote(link, &now[p], as_before ? link->places[p][0] : at);
    if (at == link->n_remotes || now[p].address - now[p].base >= now[p].n_bytes) return false;
    link->places[p][0] = at;
    link->places[p][1] = now[p].address - now[p].base;
  }
  return true;
}

static bool is_copied_by_us(const xfi_link *link)
{
  return xfi_pushes(link->send_by) || xfi_pulls(link->recv_by);
}

static bool is_copied_by_peer(const xfi_link *link)
{
  return xfi_pushes(link->recv_by) || xfi_pulls(link->send_by);
}

/* The places of all links, ours to tell and theirs to hear, as one block each. */
static xfer_status exchange_places(const xfi_links *links, const xfer_plan *plan,
                                   xfi_place_now *ours, xfi_place_now *theirs,
                                   xfi_message *messages, xfi_deadline deadline)
{
  xfi_message *sends = messages;
  xfi_message *recvs = messages + links->n;
  int n_sends = 0;
  int n_recvs = 0;

  for (size_t i = 0; i < links->n; i++) {
    const xfi_link *link = &links->at[i];

    if (is_copied_by_peer(link))
      sends[n_sends++] = (xfi_message){ours, link->n_own_places * sizeof *ours, link->rank};
    if (is_copied_by_us(link))
      recvs[n_recvs++] = (xfi_message){theirs, link->n_places * sizeof *theirs, link->rank};
    ours += link->n_own_places;
    theirs += link->n_places;
  }
  return plan->comm->ops->exchange(plan->comm, sends, n_sends, recvs, n_recvs, deadline);
}

/* What nobody is bound to any more may be freed by the peer. */
static xfer_status unmap_unused(xfi_link *link, xfi_device *device)
{
  xfer_status st = XFER_OK;
  bool *used = xfi_calloc(link->n_remotes, sizeof *used);

  XFI_CHECK(used != NULL, XFER_ERR_NOMEM, "%zu allocations", link->n_remotes);
  used[0] = true; /* its page */
  for (size_t p = 0; is_copied_by_us(link) && p < link->n_places; p++)
    used[link->places[p][0]] = true;
  for (size_t i = 0; i < link->n_remotes; i++) {
    xfi_remote *remote = &link->remotes[i];

    if (used[i] || !remote->is_mapped) continue;
    device->ops->mem_unimport(device, remote->mapped);
    remote->is_mapped = false;
  }
done:
  xfi_free(used);
  return st;
}

/* False: what we copy to or from is not all mapped. */
static bool move_link(xfi_link *link, const xfi_place_now *now)
{
  if (!hear(link, now)) return false;
  if (xfi_pushes(link->send_by) && !xfi_link_is_mapped(link, false)) return false;
  if (xfi_pulls(link->recv_by) && !xfi_link_is_mapped(link, true)) return false;
  xfi_link_resolve(link);
  return true;
}

xfer_status xfi_links_move(xfi_links *links, xfer_plan *plan, xfer_status *mine, bool *moved,
                           xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  size_t n[2] = {0, 0}; /* ours, theirs */
  xfi_place_now *ours = NULL;
  xfi_place_now *theirs = NULL;
  xfi_message *messages = xfi_comm_calloc(plan->comm, 2 * links->n, sizeof *messages);

  for (size_t i = 0; i < links->n; i++) {
    n[0] += links->at[i].n_own_places;
    n[1] += links->at[i].n_places;
  }
  ours = xfi_comm_calloc(plan->comm, n[0], sizeof *ours);
  theirs = xfi_comm_calloc(plan->comm, n[1], sizeof *theirs);
  XFI_CHECK(messages != NULL && ours != NULL && theirs != NULL, XFER_ERR_NOMEM, "%zu pieces",
            n[0] + n[1]);
  n[0] = n[1] = 0;
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++) {
    if (is_copied_by_peer(&links->at[i])) *mine = xfi_link_tell(ours + n[0], plan, &links->at[i]);
    n[0] += links->at[i].n_own_places;
  }
  XFI_TRY(exchange_places(links, plan, ours, theirs, messages, deadline));
  *moved = *mine == XFER_OK;
  for (size_t i = 0; i < links->n && *moved; i++) {
    xfi_link *link = &links->at[i];

    if (is_copied_by_us(link)) *moved = move_link(link, theirs + n[1]);
    if (*moved) *mine = unmap_unused(link, plan->device);
    *moved = *moved && *mine == XFER_OK;
    n[1] += link->n_places;
  }
done:
  xfi_free(messages);
  xfi_free(ours);
  xfi_free(theirs);
  return st;
}
