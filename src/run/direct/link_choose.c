/*
 * Who copies what goes from one rank to another, by the first of these that holds:
 *
 * - If peers map snapshots and nothing else (snapshot.c), the receiver pulls.
 * - If some of it is quantised by blocks, the sender pushes all, since it has the scales.
 * - If sources are bound for one run, the sender pushes, so that no peer has to map them.
 * - If reading a peer's memory is slower than writing it (device.h), the side that has to map fewer
 *   allocations copies.
 * - If one side has to map many more allocations than the other, the other copies.
 * - Else each move is pulled, so that a rank writes its own memory alone, whatever becomes of the
 *   sender; but moves are pushed where that is faster (xfi_walk_is_pushed()): of narrow rows, of
 *   elements that become smaller, and most moves between ranks that both send.
 */
#include "error.h"
#include "flows.h"
#include "link.h"

/* Shorter rows are pushed, in moves of at least NARROW_MOVE_BYTES. */
#define NARROW_ROW_BYTES (INT64_C(32) << 10)
#define NARROW_MOVE_BYTES (INT64_C(256) << 10)
/* Rows from this size on are copied by the copy engine. */
#define ENGINE_ROW_BYTES (INT64_C(512) << 10)
/* Rows shorter than these, ragged ones in bytes or, if elements are converted, in elements, are
 * pulled if at least LINE_BYTES of them are contiguous in the source. */
#define SHORT_ROW_BYTES 64
#define RAGGED_ROW_BYTES 768
#define RAGGED_ROW_ELEMS 96
#define LINE_BYTES 256
/* So many more allocations to map count for more than the speed of the copies. */
#define MANY_ALLOCATIONS 256

static const int64_t *strides_of(const xfi_end *end)
{
  return xfi_bound_strides(end->bound, xfi_bound_piece_at(end->bound, end->start));
}

/* The contiguous rows of a move. */
typedef struct rows {
  int64_t both; /* bytes in the destination of what is contiguous on both sides */
  int64_t src;  /* bytes of what is contiguous in the source */
} rows;

static rows rows_of(const xfi_walk *w)
{
  const int64_t *src_strides = strides_of(&w->src);
  const int64_t *dst_strides = strides_of(&w->dst);
  rows r = {w->cls->dst->elem_bytes, w->cls->src->elem_bytes};
  bool both = true;

  for (int d = w->cls->src->n_dims - 1; d >= 0; d--) {
    const int64_t length = w->box.length[d];

    if (length == 1) continue;
    if (src_strides[d] != r.src) break;
    both = both && dst_strides[d] == r.both;
    r.src *= length;
    if (both) r.both *= length;
  }
  return r;
}

/* Short or ragged rows of which several are contiguous in the source: to pull them in long reads is
 * faster than to push so little at a time, even if elements become smaller. */
static bool is_scattered(const xfi_walk *w, const rows *r)
{
  const int from = w->cls->src->elem_bytes;
  const int to = w->cls->dst->elem_bytes;
  const int64_t ragged = from == to ? RAGGED_ROW_BYTES : (int64_t)to * RAGGED_ROW_ELEMS;
  const int64_t *strides = strides_of(&w->dst);
  int64_t bits = r->both;

  if (r->src < LINE_BYTES || r->src / from == r->both / to) return false;
  for (int d = 0; d < w->cls->src->n_dims; d++)
    if (w->box.length[d] > 1 && strides[d] >= r->both) bits |= strides[d];
  return (from == to && r->both < SHORT_ROW_BYTES) || (r->both < ragged && bits % 16 != 0);
}

/* If two ranks send to each other, requests to read share the link with the data that goes the
 * other way, and engines that read from each other are slower than kernels that write: so long rows
 * are pushed. But if each of the two exchanges both ways with the other alone, and with further
 * ranks one way, for which engines pull, kernels are slower: among 4 GPUs they reached 0.65 of the
 * link, and 0.84 when the engines pulled everything. */
static bool is_pulled_too(const xfi_link *link)
{
  const xfi_flow_counts *ours = &link->of->counts;
  const xfi_flow_counts *theirs = &link->their_counts;

  return ours->n_both == 1 && theirs->n_both == 1 && ours->n_links + theirs->n_links > 2;
}

bool xfi_walk_is_pushed(const xfi_walk *w)
{
  const bool both_ways = w->link->send != XFI_NO_FLOW && w->link->recv != XFI_NO_FLOW;
  const int from = w->cls->src->elem_bytes;
  const int to = w->cls->dst->elem_bytes;
  const int64_t n_bytes = xfi_box_elems(w->box.length, w->cls->src->n_dims) * from;
  const rows r = rows_of(w);

  if (from < to) return false;
  if (n_bytes < NARROW_MOVE_BYTES) return from != to || both_ways;
  if (is_scattered(w, &r)) return false;
  if (from != to) return true;
  if (both_ways) return !is_pulled_too(w->link) || r.both < ENGINE_ROW_BYTES;
  return r.both < NARROW_ROW_BYTES;
}

size_t xfi_link_n_advertised(const xfi_link *link, int sides)
{
  size_t n = 0;

  for (size_t i = 0; i < link->n_advertised; i++)
    n += (link->advertised[i].sides & sides) != 0;
  return n;
}

size_t xfi_link_n_remotes(const xfi_link *link, int sides)
{
  size_t n = 0;

  for (size_t i = 0; sides != 0 && i < link->n_remotes; i++) /* else it may not be read */
    n += (link->remotes[i].sides & sides) != 0;
  return n;
}

/* Fills link->pushed_bytes, of what had better be pushed, and link->only_push, in one direction. */
static xfer_status measure_moves(const xfer_plan *plan, xfi_link *link, bool send)
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

/* Called after measure_moves(). */
static xfi_by choose(const xfer_plan *plan, const xfi_link *link, bool send, uint64_t n_bytes)
{
  /* In how many allocations source and destination lie. */
  const size_t n_src =
      send ? xfi_link_n_advertised(link, XFI_SIDE_SRC) : xfi_link_n_remotes(link, XFI_SIDE_SRC);
  const size_t n_dst =
      send ? xfi_link_n_remotes(link, XFI_SIDE_DST) : xfi_link_n_advertised(link, XFI_SIDE_DST);

  if (link->only_push[send] || xfi_run_is_fresh(plan)) return XFI_BY_PUSH;
  if (!plan->device->ops->pulls) return n_dst <= n_src ? XFI_BY_PUSH : XFI_BY_PULL;
  if (n_src > n_dst + MANY_ALLOCATIONS) return XFI_BY_PUSH;
  if (n_dst > n_src + MANY_ALLOCATIONS || link->pushed_bytes[send] == 0) return XFI_BY_PULL;
  return link->pushed_bytes[send] < n_bytes ? XFI_BY_BOTH : XFI_BY_PUSH;
}

static xfer_status choose_flow(xfi_by *by, const xfer_plan *plan, xfi_link *link, bool send)
{
  const xfi_move_list *list = xfi_run_moves(plan, send);
  const size_t index = send ? link->send : link->recv;

  if (index == XFI_NO_FLOW) return XFER_OK;
  if (plan->lanes.uses_snapshots) { /* peers map nothing but snapshots */
    *by = XFI_BY_PULL;
    return XFER_OK;
  }
  XFI_TRY(measure_moves(plan, link, send));
  *by = choose(plan, link, send, xfi_run_flow_bytes(plan, send, &list->peers[index]));
  return XFER_OK;
}

xfer_status xfi_link_choose(xfi_link *link, const xfer_plan *plan)
{
  XFI_TRY(choose_flow(&link->send_by, plan, link, true));
  return choose_flow(&link->recv_by, plan, link, false);
}
