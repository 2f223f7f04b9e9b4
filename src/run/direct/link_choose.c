/*
 * Who copies a flow. Where reading a peer's memory is as fast as writing it (device.h), its
 * receiver pulls: it writes its own memory only, whatever becomes of the sender. But narrow rows
 * are pushed, which is faster, and so is what becomes smaller on the way, and all where both ranks
 * send; and so is a flow from many allocations into few, since each that is not ours must be
 * mapped. Elsewhere the side that has fewer to map copies. A flow of which some is
 * quantised by blocks is pushed always, since its sender has the scales.
 */
#include "alloc.h"
#include "error.h"
#include "link.h"

#include <string.h>

/* Rows below this are pushed, in moves of at least that many bytes. */
#define NARROW_ROW_BYTES (INT64_C(32) << 10)
#define NARROW_MOVE_BYTES (INT64_C(256) << 10)
/* So many more allocations to map count for more than which way is faster. */
#define MANY_ALLOCATIONS 256

static const int64_t *strides_of(const xfi_end *end)
{
  return xfi_bound_strides(end->bound, xfi_bound_piece_at(end->bound, end->start));
}

/* The rows of a move are short on some side. */
static bool is_narrow(const xfi_end *src, const xfi_end *dst, const int64_t *length, int n_dims,
                      int elem_bytes)
{
  const int64_t *src_strides;
  const int64_t *dst_strides;
  int64_t row = elem_bytes; /* what is contiguous on both sides */
  int64_t all = elem_bytes;
  bool goes_on = true;

  for (int d = 0; d < n_dims; d++)
    all *= length[d];
  if (all < NARROW_MOVE_BYTES) return false;
  src_strides = strides_of(src);
  dst_strides = strides_of(dst);
  for (int d = n_dims - 1; d >= 0; d--) {
    if (length[d] == 1) continue;
    goes_on = goes_on && src_strides[d] == row && dst_strides[d] == row;
    if (goes_on) row *= length[d];
  }
  return row < NARROW_ROW_BYTES;
}

/* Where both ranks send, requests to read would take from what flows the other way. */
bool xfi_link_is_pushed_move(const xfi_link *link, const xfi_class *cls, const xfi_end *src,
                             const xfi_end *dst, const int64_t *length)
{
  const bool both_ways = link->send != XFI_NO_FLOW && link->recv != XFI_NO_FLOW;
  const int from = cls->src->elem_bytes;
  const int to = cls->dst->elem_bytes;

  return from != to ? to < from : both_ways || is_narrow(src, dst, length, cls->src->n_dims, from);
}

size_t xfi_link_n_told(const xfi_link *link, int halves)
{
  size_t n = 0;

  for (size_t i = 0; i < link->n_told; i++)
    n += (link->told[i].halves & halves) != 0;
  return n;
}

size_t xfi_link_n_remotes(const xfi_link *link, int halves)
{
  size_t n = 0;

  for (size_t i = 0; halves != 0 && i < link->n_remotes; i++) /* else it may not be read */
    n += (link->remotes[i].halves & halves) != 0;
  return n;
}

xfer_status xfi_link_ends(xfi_end *src, xfi_end *dst, const xfer_plan *plan, const xfi_link *link,
                          bool send, const xfi_move *move, const xfi_box *box, xfi_cursor *cursor)
{
  xfer_status st = XFER_OK;
  const xfi_bound *theirs = xfi_link_bound(link, move->tensor, !send, cursor);

  XFI_CHECK(theirs != NULL, XFER_ERR_INTERNAL, "rank %d did not describe tensor %u", link->rank,
            move->tensor);
  src->bound = send ? xfi_run_src(plan, move->tensor) : theirs;
  dst->bound = send ? theirs : xfi_run_dst(plan, move->tensor);
  memcpy(src->start, box->src_local, sizeof src->start);
  memcpy(dst->start, box->dst_local, sizeof dst->start);
done:
  return st;
}

/* Of a flow: what is pushed where there is a choice, and must some of it be, since its sender alone
 * has the scales? */
static xfer_status look_at_moves(const xfer_plan *plan, xfi_link *link, bool send,
                                 const xfi_move_list *list, const xfi_peer *peer)
{
  xfer_status st = XFER_OK;
  xfi_cursor cursor = {0, 0};

  for (size_t i = peer->first; i < peer->first + peer->n; i++) {
    const xfi_move *move = &list->moves[i];
    const xfi_class *cls = xfi_plan_class(plan->moves, move->tensor);
    const xfi_flows *boxes = send ? &cls->sends : &cls->recvs;
    xfi_end src;
    xfi_end dst;
    xfi_box box;

    if (xfi_run_broadcasts(plan, cls)) continue;
    if (xfi_conversion_kind(cls->conversion) == XFI_KIND_BLOCKS) link->only_push[send] = true;
    if (!plan->device->ops->pulls) continue;
    xfi_move_box(&box, cls, boxes, move);
    XFI_TRY(xfi_link_ends(&src, &dst, plan, link, send, move, &box, &cursor));
    if (xfi_link_is_pushed_move(link, cls, &src, &dst, box.length))
      link->pushed_bytes[send] += xfi_move_bytes(cls, boxes, move);
  }
done:
  return st;
}

/* Who should copy a flow. */
static xfer_status choose(xfi_by *by, const xfer_plan *plan, xfi_link *link, bool send)
{
  const xfi_move_list *list = send ? &plan->moves->sends : &plan->moves->recvs;
  const size_t index = send ? link->send : link->recv;
  const bool pulls = plan->device->ops->pulls;
  /* What its source and its destination lie in. */
  const size_t n_src =
      send ? xfi_link_n_told(link, XFI_OF_SRC) : xfi_link_n_remotes(link, XFI_OF_SRC);
  const size_t n_dst =
      send ? xfi_link_n_remotes(link, XFI_OF_DST) : xfi_link_n_told(link, XFI_OF_DST);
  xfer_status st = XFER_OK;

  if (index == XFI_NO_FLOW) return XFER_OK;
  XFI_TRY(look_at_moves(plan, link, send, list, &list->peers[index]));
  if (link->only_push[send] || (pulls ? n_src > n_dst + MANY_ALLOCATIONS : n_dst <= n_src))
    *by = XFI_BY_PUSH;
  else if (!pulls || n_dst > n_src + MANY_ALLOCATIONS || link->pushed_bytes[send] == 0)
    *by = XFI_BY_PULL;
  else
    *by = link->pushed_bytes[send] < xfi_run_flow_bytes(plan, send, &list->peers[index])
              ? XFI_BY_BOTH
              : XFI_BY_PUSH;
done:
  return st;
}

xfer_status xfi_link_choose(xfi_link *link, const xfer_plan *plan)
{
  xfer_status st = XFER_OK;

  XFI_TRY(choose(&link->send_by, plan, link, true));
  XFI_TRY(choose(&link->recv_by, plan, link, false));
done:
  return st;
}
