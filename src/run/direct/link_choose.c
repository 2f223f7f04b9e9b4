/*
 * Who copies a flow. Where reading a peer's memory is as fast as writing it (device.h), its
 * receiver pulls: it writes its own memory only, whatever becomes of the sender. But narrow rows
 * are pushed, which is faster, and so is what becomes smaller on the way, and all where both ranks
 * send; and so is a flow from many allocations into few, since each that is not ours must be
 * mapped. Elsewhere the side that has fewer to map copies. A flow of which some is
 * quantised by blocks is pushed always, since its sender has the scales.
 */
#include "error.h"
#include "link.h"

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
static bool is_narrow(const xfi_walk *w)
{
  const int64_t *length = w->box.length;
  const int elem_bytes = w->cls->src->elem_bytes;
  const int n_dims = w->cls->src->n_dims;
  const int64_t *src_strides;
  const int64_t *dst_strides;
  int64_t row = elem_bytes; /* what is contiguous on both sides */
  bool goes_on = true;

  if (xfi_box_elems(length, n_dims) * elem_bytes < NARROW_MOVE_BYTES) return false;
  src_strides = strides_of(&w->src);
  dst_strides = strides_of(&w->dst);
  for (int d = n_dims - 1; d >= 0; d--) {
    if (length[d] == 1) continue;
    goes_on = goes_on && src_strides[d] == row && dst_strides[d] == row;
    if (goes_on) row *= length[d];
  }
  return row < NARROW_ROW_BYTES;
}

/* Where both ranks send, requests to read would take from what flows the other way. */
bool xfi_walk_is_pushed(const xfi_walk *w)
{
  const bool both_ways = w->link->send != XFI_NO_FLOW && w->link->recv != XFI_NO_FLOW;
  const int from = w->cls->src->elem_bytes;
  const int to = w->cls->dst->elem_bytes;

  return from != to ? to < from : both_ways || is_narrow(w);
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

/* Of a flow: what is pushed where there is a choice, and must some of it be, since its sender alone
 * has the scales? */
static xfer_status look_at_moves(const xfer_plan *plan, xfi_link *link, bool send)
{
  const bool pulls = plan->device->ops->pulls;
  xfer_status st = XFER_OK;

  if (!pulls && plan->quant == NULL) return XFER_OK;
  for (xfi_walk w = xfi_walk_begin(plan, link, send); xfi_walk_next(&w, &st);) {
    if (xfi_conversion_kind(w.cls->conversion) == XFER_CONVERSION_BLOCKS)
      link->only_push[send] = true;
    if (pulls && xfi_walk_is_pushed(&w))
      link->pushed_bytes[send] += xfi_move_bytes(w.cls, w.boxes, w.move);
  }
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

  if (index == XFI_NO_FLOW) return XFER_OK;
  if (plan->offers) { /* nothing else may be mapped */
    *by = XFI_BY_PULL;
    return XFER_OK;
  }
  XFI_TRY(look_at_moves(plan, link, send));
  if (link->only_push[send] || (pulls ? n_src > n_dst + MANY_ALLOCATIONS : n_dst <= n_src))
    *by = XFI_BY_PUSH;
  else if (!pulls || n_dst > n_src + MANY_ALLOCATIONS || link->pushed_bytes[send] == 0)
    *by = XFI_BY_PULL;
  else
    *by = link->pushed_bytes[send] < xfi_run_flow_bytes(plan, send, &list->peers[index])
              ? XFI_BY_BOTH
              : XFI_BY_PUSH;
  return XFER_OK;
}

xfer_status xfi_link_choose(xfi_link *link, const xfer_plan *plan)
{
  XFI_TRY(choose(&link->send_by, plan, link, true));
  return choose(&link->recv_by, plan, link, false);
}
