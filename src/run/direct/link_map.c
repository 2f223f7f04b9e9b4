/*
 * Making links: tell each other what our halves look like, decide who copies, and map what that
 * takes. Both ends have both halves' descriptions and tell each other what they could map, so they
 * decide alike. Handles are exchanged for what is to be mapped alone: a trainer may have tens of
 * thousands of allocations, and nobody maps those that it pushes from.
 *
 * Who should copy a flow is in link_choose.c. A side that cannot map leaves it to the other; where
 * neither can, the flow takes the packed lane.
 */
#include "link.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "bytes.h"
#include "error.h"

/* What each end says of its attempts at the two flows of a link. */
typedef struct verdict {
  unsigned char failed;
  unsigned char can_push;
  unsigned char can_pull;
  unsigned char can_signal; /* its page is mapped */
  char why[XFI_WHY_BYTES];  /* the last thing that could not be mapped; empty: all could */
} verdict;

/* Room for telling each other, by link: [0] ours, [1] theirs. */
typedef struct talk {
  size_t n;
  xfi_message *messages; /* [2 * n]: sends, then receives */
  xfi_bytes *ours;       /* descriptions */
  uint64_t *sizes[2];    /* of descriptions; 0: that rank has failed */
  verdict *verdicts[2];
  xfi_mem_handle *handles[2]; /* of all links, one after the other */
} talk;

static void talk_free(talk *t)
{
  for (size_t i = 0; t->ours != NULL && i < t->n; i++)
    xfi_bytes_free(&t->ours[i]);
  xfi_free(t->ours);
  xfi_free(t->messages);
  for (int k = 0; k < 2; k++) {
    xfi_free(t->sizes[k]);
    xfi_free(t->verdicts[k]);
    xfi_free(t->handles[k]);
  }
}

static xfer_status talk_make(talk *t, const xfer_plan *plan, size_t n)
{
  xfer_status st = XFER_OK;

  t->n = n;
  t->ours = xfi_comm_calloc(plan->comm, n, sizeof *t->ours);
  t->messages = xfi_comm_calloc(plan->comm, 2 * n, sizeof *t->messages);
  XFI_CHECK(t->ours != NULL && t->messages != NULL, XFER_ERR_NOMEM, "%zu links", n);
  for (int k = 0; k < 2; k++) {
    t->sizes[k] = xfi_comm_calloc(plan->comm, n, sizeof *t->sizes[k]);
    t->verdicts[k] = xfi_comm_calloc(plan->comm, n, sizeof *t->verdicts[k]);
    XFI_CHECK(t->sizes[k] != NULL && t->verdicts[k] != NULL, XFER_ERR_NOMEM, "%zu links", n);
  }
done:
  return st;
}

/* The n_bytes that are said to each link, and those that it says. */
static xfer_status swap(const talk *t, const xfi_links *links, const xfer_plan *plan, void *ours,
                        void *theirs, size_t n_bytes, xfi_deadline deadline)
{
  for (size_t i = 0; i < t->n; i++) {
    const int rank = links->at[i].rank;

    t->messages[i] = (xfi_message){(char *)ours + i * n_bytes, n_bytes, rank};
    t->messages[t->n + i] = (xfi_message){(char *)theirs + i * n_bytes, n_bytes, rank};
  }
  return plan->comm->ops->exchange(plan->comm, t->messages, (int)t->n, t->messages + t->n,
                                   (int)t->n, deadline);
}

/* Descriptions go between ranks that have not failed. */
static xfer_status exchange_descriptions(xfi_links *links, talk *t, const xfer_plan *plan,
                                         const uint64_t *page, xfer_status *mine,
                                         xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  size_t n = 0; /* of links that take part */

  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++)
    *mine = xfi_link_describe(&t->ours[i], plan, &links->at[i], page);
  for (size_t i = 0; i < links->n; i++)
    t->sizes[0][i] = *mine == XFER_OK ? t->ours[i].n : 0;
  XFI_TRY(swap(t, links, plan, t->sizes[0], t->sizes[1], sizeof **t->sizes, deadline));
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++) {
    xfi_link *link = &links->at[i];

    link->n_bytes = t->sizes[1][i];
    if (link->n_bytes == 0) continue; /* the peer has failed, as all will hear at the end */
    link->bytes = xfi_comm_calloc(plan->comm, link->n_bytes, 1);
    XFI_CHECK(link->bytes != NULL, XFER_ERR_NOMEM, "%zu bytes from rank %d", link->n_bytes,
              link->rank);
    t->messages[n] = (xfi_message){t->ours[i].at, t->ours[i].n, link->rank};
    t->messages[t->n + n++] = (xfi_message){link->bytes, link->n_bytes, link->rank};
  }
  XFI_TRY(plan->comm->ops->exchange(plan->comm, t->messages, (int)n, t->messages + t->n, (int)n,
                                    deadline));
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++)
    if (links->at[i].bytes != NULL) *mine = xfi_link_read(&links->at[i]);
done:
  return st;
}

/* ---- handles ---- */

/* Both ends go on, as both know. */
static bool goes_on(const talk *t, size_t i)
{
  return t->verdicts[0][i].failed == 0 && t->verdicts[1][i].failed == 0;
}

/* The halves of one end's memory that the other maps, seen from the other, whose flows go out and
 * in by `out` and `in`: for what it should copy, and in the second attempt for what the one should
 * and cannot. */
static int halves_mapped(xfi_by out, xfi_by in, const verdict *other, const verdict *one,
                         bool second)
{
  const bool push = second ? xfi_pulls(out) && !one->can_pull && !other->can_push : xfi_pushes(out);
  const bool pull = second ? xfi_pushes(in) && !one->can_push && !other->can_pull : xfi_pulls(in);

  return (push ? XFI_OF_DST : 0) | (pull ? XFI_OF_SRC : 0);
}

/* Of this rank's memory by the peer, and of the peer's by this rank; of who has failed, none. */
static int halves_asked(const talk *t, size_t i, const xfi_link *link, bool second)
{
  if (!goes_on(t, i)) return 0;
  return halves_mapped(link->recv_by, link->send_by, &t->verdicts[1][i], &t->verdicts[0][i],
                       second);
}

static int halves_wanted(const talk *t, size_t i, const xfi_link *link, bool second)
{
  if (!goes_on(t, i)) return 0;
  return halves_mapped(link->send_by, link->recv_by, &t->verdicts[0][i], &t->verdicts[1][i],
                       second);
}

/* Ours go out; a rank that fails sends what nobody can map. */
static xfer_status exchange_handles(const xfi_links *links, talk *t, const xfer_plan *plan,
                                    bool second, xfer_status *mine, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  size_t n_all[2] = {0, 0};
  int n_messages[2] = {0, 0};
  xfi_mem_handle *at[2];

  for (size_t i = 0; i < links->n; i++) {
    n_all[0] += xfi_link_n_told(&links->at[i], halves_asked(t, i, &links->at[i], second));
    n_all[1] += xfi_link_n_remotes(&links->at[i], halves_wanted(t, i, &links->at[i], second));
  }
  for (int k = 0; k < 2; k++) {
    xfi_free(t->handles[k]);
    at[k] = t->handles[k] = xfi_comm_calloc(plan->comm, n_all[k], sizeof *at[k]);
    XFI_CHECK(at[k] != NULL, XFER_ERR_NOMEM, "%zu handles", n_all[k]);
  }
  for (size_t i = 0; i < links->n; i++) {
    const xfi_link *link = &links->at[i];
    const int asked = halves_asked(t, i, link, second);
    const size_t n[2] = {xfi_link_n_told(link, asked),
                         xfi_link_n_remotes(link, halves_wanted(t, i, link, second))};

    for (size_t k = 0, o = 0; k < link->n_told && *mine == XFER_OK; k++)
      if ((link->told[k].halves & asked) != 0)
        *mine = plan->device->ops->mem_export(plan->device, link->told[k].at, &at[0][o++]);
    for (int k = 0; k < 2; k++) {
      if (n[k] > 0)
        t->messages[(size_t)k * t->n + (size_t)n_messages[k]++] =
            (xfi_message){at[k], n[k] * sizeof *at[k], link->rank};
      at[k] += n[k];
    }
  }
  st = plan->comm->ops->exchange(plan->comm, t->messages, n_messages[0], t->messages + t->n,
                                 n_messages[1], deadline);
done:
  return st;
}

/* ---- mapping ---- */

/* XFER_OK with remote->is_mapped false: out of reach, which is no error, and why. */
static xfer_status map_remote(xfi_remote *remote, const xfi_mem_handle *handle, xfi_device *device,
                              char *why, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  void *base = NULL;

  if (remote->is_mapped) return XFER_OK;
  st = device->ops->mem_import(device, handle, &base, deadline);
  if (st == XFER_OK) {
    remote->mapped = base;
    remote->is_mapped = true;
  }
  if (st == XFER_ERR_UNSUPPORTED) snprintf(why, XFI_WHY_BYTES, "%s", xfi_last_error());
  return st == XFER_ERR_UNSUPPORTED ? XFER_OK : st;
}

/* The page first: without it nothing else is worth mapping. */
static xfer_status map_link(xfi_link *link, xfi_device *device, const xfi_mem_handle *handle,
                            int wanted, verdict *v, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  const xfi_remote *last = link->remotes;

  XFI_TRY(map_remote(link->remotes, &link->page_handle, device, v->why, deadline));
  v->can_signal = last->is_mapped;
  for (size_t i = 0; i < link->n_remotes && last->is_mapped; i++) {
    if ((link->remotes[i].halves & wanted) == 0) continue;
    last = &link->remotes[i];
    XFI_TRY(map_remote(&link->remotes[i], handle++, device, v->why, deadline));
  }
  if ((wanted & XFI_OF_DST) != 0) v->can_push = v->can_signal && xfi_link_is_mapped(link, false);
  if ((wanted & XFI_OF_SRC) != 0) v->can_pull = v->can_signal && xfi_link_is_mapped(link, true);
done:
  return st;
}

/* First what this rank should copy, then what its peers should and cannot. */
static xfer_status attempt(xfi_links *links, talk *t, const xfer_plan *plan, bool second,
                           xfer_status *mine, xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  const xfi_mem_handle *handle;

  XFI_TRY(exchange_handles(links, t, plan, second, mine, deadline));
  handle = t->handles[1];
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++) {
    xfi_link *link = &links->at[i];
    const int wanted = halves_wanted(t, i, link, second);

    if (!goes_on(t, i)) continue;
    *mine = map_link(link, plan->device, handle, wanted, &t->verdicts[0][i], deadline);
    handle += xfi_link_n_remotes(link, wanted);
  }
done:
  return st;
}

/* What was meant, if who was meant can; else whoever can. */
static xfi_by settle_flow(xfi_by meant, bool can_push, bool can_pull)
{
  if (can_push && (meant == XFI_BY_PUSH || !can_pull)) return XFI_BY_PUSH;
  if (can_pull && (meant == XFI_BY_PULL || !can_push)) return XFI_BY_PULL;
  return can_push ? meant : XFI_BY_NOBODY;
}

static void settle(xfi_link *link, int rank, const verdict *mine, const verdict *theirs)
{
  const bool signals = mine->can_signal != 0 && theirs->can_signal != 0;

  link->send_by = settle_flow(link->send_by, signals && mine->can_push,
                              signals && theirs->can_pull && !link->only_push[1]);
  link->recv_by = settle_flow(link->recv_by, signals && theirs->can_push,
                              signals && mine->can_pull && !link->only_push[0]);
  if (mine->why[0] != '\0')
    snprintf(link->way, sizeof link->way, "packed: rank %d cannot map rank %d: %s", rank,
             link->rank, mine->why);
  else
    snprintf(link->way, sizeof link->way, "packed: rank %d cannot map rank %d: %.*s", link->rank,
             rank, XFI_WHY_BYTES - 1, theirs->why);
}

static xfer_status resolve(xfi_link *link, xfi_device *device)
{
  xfer_status st = XFER_OK;

  if (link->remotes[0].is_mapped) {
    uint64_t *page = (uint64_t *)(void *)(link->remotes[0].mapped + link->page_offset);

    XFI_CHECK(device->ops->flags_share == NULL || device->ops->flags_share(device, page),
              XFER_ERR_PEER, "rank %d has failed and left", link->rank);
    link->page = page;
  }
  xfi_link_resolve(link);
done:
  return st;
}

xfer_status xfi_links_connect(xfi_links *links, xfer_plan *plan, uint64_t *page, xfer_status *mine,
                              xfi_deadline deadline)
{
  xfer_status st = XFER_OK;
  talk t = {0};

  XFI_TRY(talk_make(&t, plan, links->n));
  XFI_TRY(exchange_descriptions(links, &t, plan, page, mine, deadline));
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++)
    if (links->at[i].bytes != NULL) *mine = xfi_link_choose(&links->at[i], plan);
  for (size_t i = 0; i < links->n; i++)
    t.verdicts[0][i].failed = *mine != XFER_OK;
  for (int n = 0; n < 3; n++) {
    XFI_TRY(swap(&t, links, plan, t.verdicts[0], t.verdicts[1], sizeof **t.verdicts, deadline));
    if (n < 2) XFI_TRY(attempt(links, &t, plan, n > 0, mine, deadline));
  }
  for (size_t i = 0; i < links->n && *mine == XFER_OK; i++) {
    settle(&links->at[i], plan->moves->rank, &t.verdicts[0][i], &t.verdicts[1][i]);
    if (goes_on(&t, i)) *mine = resolve(&links->at[i], plan->device);
  }
done:
  talk_free(&t);
  return st;
}
