/*
 * Links after binds that changed nothing but addresses: the two ends tell each other where pieces
 * are by now that the other copies from or to. How many these are both know, so it is one exchange,
 * and none where nobody copies.
 */
#include "alloc.h"
#include "error.h"
#include "link.h"

/* Of n pieces, of which the first n_src are of a source, those of some halves. */
static size_t n_of_halves(size_t n_src, size_t n, int halves)
{
  return ((halves & XFI_OF_SRC) != 0 ? n_src : 0) + ((halves & XFI_OF_DST) != 0 ? n - n_src : 0);
}

/* What nobody is bound to any more may be freed by the peer. */
static xfer_status unmap_unused(xfi_link *link, xfi_device *device)
{
  xfer_status st = XFER_OK;
  const int halves = xfi_link_halves_used(link);
  bool *used = xfi_calloc(link->n_remotes, sizeof *used);

  XFI_CHECK_DONE(used != NULL, XFER_ERR_NOMEM, "%zu allocations", link->n_remotes);
  used[0] = true; /* its page */
  for (size_t p = 0; p < link->n_places; p++)
    if ((halves & (p < link->n_src_places ? XFI_OF_SRC : XFI_OF_DST)) != 0)
      used[link->places[p][0]] = true;
  for (size_t i = 0; i < link->n_remotes; i++)
    if (!used[i]) xfi_remote_unmap(&link->remotes[i], device);
done:
  xfi_free(used);
  return st;
}

/* False: what we copy to or from is not all mapped. */
static bool rebind_link(xfi_link *link)
{
  if (!xfi_link_read_places(link)) return false;
  if (xfi_pushes(link->send_by) && !xfi_link_is_mapped(link, false)) return false;
  if (xfi_pulls(link->recv_by) && !xfi_link_is_mapped(link, true)) return false;
  xfi_link_resolve(link);
  return true;
}

xfer_status xfi_links_rebind(xfi_links *links, xfer_plan *plan, xfer_status *mine, bool *rebound,
                             xfi_deadline deadline)
{
  for (size_t i = 0; i < links->n; i++) {
    xfi_link *link = &links->at[i];
    const size_t n_said =
        n_of_halves(link->n_own_src_places, link->n_own_places, xfi_link_halves_lent(link));
    const size_t n_heard =
        n_of_halves(link->n_src_places, link->n_places, xfi_link_halves_used(link));

    XFI_TRY(xfi_link_make_room(&link->said, plan, n_said * sizeof *link->places));
    XFI_TRY(xfi_link_make_room(&link->heard, plan, n_heard * sizeof *link->places));
    if (n_said > 0 && *mine == XFER_OK) *mine = xfi_link_tell(link, plan);
  }
  XFI_TRY(xfi_links_exchange(links, plan, deadline));
  *rebound = *mine == XFER_OK;
  for (size_t i = 0; i < links->n && *rebound; i++) {
    xfi_link *link = &links->at[i];

    if (xfi_link_halves_used(link) != 0) *rebound = rebind_link(link);
    if (*rebound) *mine = unmap_unused(link, plan->device);
    *rebound = *rebound && *mine == XFER_OK;
  }
  return XFER_OK;
}
