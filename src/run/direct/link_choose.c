/*
 * Who copies a flow. Where reading a peer's memory is as fast as writing it (device.h), its
 * receiver pulls: it writes its own memory only, whatever becomes of the sender. But narrow rows
 * are pushed, which is faster, and so is what becomes smaller on the way, and where both ranks send
 * what is not all for the copy engine: requests of kernels to read take from what flows the other
 * way. So is a flow from many allocations into few, since each that is not ours must be mapped;
 * elsewhere the side that has fewer to map copies. A flow of which some is quantised by blocks is
 * pushed always, since its sender has the scales.
 */
#include "error.h"
#include "link.h"

/* Rows below this are pushed, in moves of at least that many bytes. */
#define NARROW_ROW_BYTES (INT64_C(32) << 10)
#define NARROW_MOVE_BYTES (INT64_C(256) << 10)
/* What the copy engine takes: rows from here on, where they come to so much. */
#define ENGINE_ROW_BYTES (INT64_C(512) << 10)
#define ENGINE_FLOW_BYTES (UINT64_C(32) << 20)
/* So many more allocations to map count for more than which way is faster. */
#define MANY_ALLOCATIONS 256

static const int64_t *strides_of(const xfi_end *end)
{
  return xfi_bound_strides(end->bound, xfi_bound_piece_at(end->bound, end->start));
}

/* What of a move is contiguous on both sides. */
static int64_t row_bytes(const xfi_walk *w)
{
  const int64_t *src_strides = strides_of(&w->src);
  const int64_t *dst_strides = strides_of(&w->dst);
  int64_t row = w->cls->src->elem_bytes;

  for (int d = w->cls->src->n_dims - 1; d >= 0; d--) {
    if (w->box.length[d] == 1) continue;
    if (src_strides[d] != row || dst_strides[d] != row) break;
    row *= w->box.length[d];
  }
  return row;
}

static bool is_both_ways(const xfi_link *link)
{
  return link->send != XFI_NO_FLOW && link->recv != XFI_NO_FLOW;
}

bool xfi_walk_is_pushed(const xfi_walk *w)
{
  const int from = w->cls->src->elem_bytes;
  const int to = w->cls->dst->elem_bytes;
  const int64_t n_bytes = xfi_box_elems(w->box.length, w->cls->src->n_dims) * from;

  if (from != to) return to < from;
  if (is_both_ways(w->link)) return w->link->for_kernels[w->send];
  return n_bytes >= NARROW_MOVE_BYTES && row_bytes(w) < NARROW_ROW_BYTES;
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

/* Of a flow where both ranks send: is there something that the copy engine would not take? As if
 * there were where these are all: two that push to each other have 0.96 of the link, two that pull
 * 0.91; but among four 0.6 and 0.95. */
static xfer_status find_for_kernels(const xfer_plan *plan, xfi_link *link, bool send)
{
  const xfi_move_list *list = send ? &plan->moves->sends : &plan->moves->recvs;
  const xfi_peer *peer = &list->peers[send ? link->send : link->recv];
  xfer_status st = XFER_OK;
  bool some = plan->moves->n_ranks == 2 || xfi_run_flow_bytes(plan, send, peer) < ENGINE_FLOW_BYTES;

  for (xfi_walk w = xfi_walk_begin(plan, link, send); !some && xfi_walk_next(&w, &st);)
    some = row_bytes(&w) < ENGINE_ROW_BYTES || w.cls->conversion != 0;
  link->for_kernels[send] = some;
  return st;
}

/* Of a flow: what is pushed where there is a choice, and must some of it be, since its sender alone
 * has the scales? */
static xfer_status look_at_moves(const xfer_plan *plan, xfi_link *link, bool send)
{
  const bool pulls = plan->device->ops->pulls;
  xfer_status st = XFER_OK;

  if (!pulls && plan->quant == NULL) return XFER_OK;
  if (pulls && is_both_ways(link)) XFI_TRY(find_for_kernels(plan, link, send));
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
