/*
 * Links after binds that changed nothing but addresses: each end sends the other the new locations
 * of the pieces that the other copies from or to. Both know how many there are, so a single
 * exchange is enough, and none takes place between ends that copy nothing. Called by rebind.c,
 * at commit.
 */
#include "alloc.h"
#include "error.h"
#include "link.h"

/* How many of n locations, the first n_src of which are of sources, belong to these sides. */
static size_t count_locations(size_t n_src, size_t n, int sides)
{
  return ((sides & XFI_SIDE_SRC) != 0 ? n_src : 0) + ((sides & XFI_SIDE_DST) != 0 ? n - n_src : 0);
}

/* Unmap allocations in which nothing is bound any more, since the peer may free them. */
static xfer_status unmap_unused(xfi_link *link, xfi_device *device)
{
  xfer_status st = XFER_OK;
  const int sides = xfi_link_sides_used(link);
  bool *used = xfi_calloc(link->n_remotes, sizeof *used);

  XFI_CHECK_DONE(used != NULL, XFER_ERR_NOMEM, "%zu allocations", link->n_remotes);
  used[0] = true; /* its page */
  for (size_t p = 0; p < link->n_locations; p++)
    if ((sides & xfi_link_side_of(link, p)) != 0) used[link->locations[p][0]] = true;
  for (size_t i = 0; i < link->n_remotes; i++)
    if (!used[i]) xfi_remote_unmap(&link->remotes[i], device);
done:
  xfi_free(used);
  return st;
}

xfer_status xfi_links_rebind(xfi_links *links, xfer_plan *plan, xfer_status *mine, bool *rebound,
                             xfi_deadline deadline)
{
  for (size_t i = 0; i < links->n; i++) {
    xfi_link *link = &links->at[i];
    const size_t n_sent = count_locations(link->n_own_src_locations, link->n_own_locations,
                                          xfi_link_sides_exported(link));
    const size_t n_received =
        count_locations(link->n_src_locations, link->n_locations, xfi_link_sides_used(link));

    XFI_TRY(xfi_link_make_room(&link->send_buffer, plan, n_sent * sizeof *link->locations));
    XFI_TRY(xfi_link_make_room(&link->recv_buffer, plan, n_received * sizeof *link->locations));
    if (n_sent > 0 && *mine == XFER_OK) *mine = xfi_link_describe_locations(link, plan);
  }
  XFI_TRY(xfi_links_exchange(links, plan, deadline));
  *rebound = *mine == XFER_OK;
  for (size_t i = 0; i < links->n && *rebound; i++) {
    xfi_link *link = &links->at[i];

    *rebound = xfi_link_read_locations(link) && xfi_link_is_mapped(link, xfi_link_sides_used(link));
    if (*rebound) xfi_link_resolve(link);
    if (*rebound) *mine = unmap_unused(link, plan->device);
    *rebound = *rebound && *mine == XFER_OK;
  }
  return XFER_OK;
}
