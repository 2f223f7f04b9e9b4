/*
 * Links after binds that changed nothing but addresses: the two ends tell each other where pieces
 * are by now. How many there are both know, so it is one exchange, and none where nobody copies.
 */
#include "alloc.h"
#include "error.h"
#include "link.h"

static bool is_copied_by_us(const xfi_link *link)
{
  return xfi_pushes(link->send_by) || xfi_pulls(link->recv_by);
}

static bool is_copied_by_peer(const xfi_link *link)
{
  return xfi_pushes(link->recv_by) || xfi_pulls(link->send_by);
}

/* What nobody is bound to any more may be freed by the peer. */
static xfer_status unmap_unused(xfi_link *link, xfi_device *device)
{
  xfer_status st = XFER_OK;
  bool *used = xfi_calloc(link->n_remotes, sizeof *used);

  XFI_CHECK_DONE(used != NULL, XFER_ERR_NOMEM, "%zu allocations", link->n_remotes);
  used[0] = true; /* its page */
  for (size_t p = 0; is_copied_by_us(link) && p < link->n_places; p++)
    used[link->places[p][0]] = true;
  for (size_t i = 0; i < link->n_remotes; i++) {
    xfi_remote *remote = &link->remotes[i];

    if (used[i] || remote->mapped == NULL) continue;
    device->ops->mem_unimport(device, remote->mapped);
    remote->mapped = NULL;
  }
done:
  xfi_free(used);
  return st;
}

/* False: what we copy to or from is not all mapped. */
static bool move_link(xfi_link *link)
{
  if (!xfi_link_read_places(link)) return false;
  if (xfi_pushes(link->send_by) && !xfi_link_is_mapped(link, false)) return false;
  if (xfi_pulls(link->recv_by) && !xfi_link_is_mapped(link, true)) return false;
  xfi_link_resolve(link);
  return true;
}

xfer_status xfi_links_move(xfi_links *links, xfer_plan *plan, xfer_status *mine, bool *moved,
                           xfi_deadline deadline)
{
  for (size_t i = 0; i < links->n; i++) {
    xfi_link *link = &links->at[i];
    const size_t n_said = is_copied_by_peer(link) ? link->n_own_places : 0;
    const size_t n_heard = is_copied_by_us(link) ? link->n_places : 0;

    XFI_TRY(xfi_link_make_room(&link->said, plan, n_said * sizeof *link->places));
    XFI_TRY(xfi_link_make_room(&link->heard, plan, n_heard * sizeof *link->places));
    if (n_said > 0 && *mine == XFER_OK) *mine = xfi_link_tell(link, plan);
  }
  XFI_TRY(xfi_links_exchange(links, plan, deadline));
  *moved = *mine == XFER_OK;
  for (size_t i = 0; i < links->n && *moved; i++) {
    xfi_link *link = &links->at[i];

    if (is_copied_by_us(link)) *moved = move_link(link);
    if (*moved) *mine = unmap_unused(link, plan->device);
    *moved = *moved && *mine == XFER_OK;
  }
  return XFER_OK;
}
