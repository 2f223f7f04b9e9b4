/*
 * Who copies what goes from one rank to another. In each table the first case that holds decides.
 * The figures were measured on 2 to 4 GPUs; tests/bench/ALTERNATIVES.md has their problems.
 *
 * A transfer, all that one rank sends to another:
 *
 *   case                                          copied by           why
 *   F1 peers map snapshots alone (snapshot.c)     the receiver        it can read them
 *   F2 some moves are quantised by blocks         the sender          it has the scales
 *   F3 sources are bound for one run              the sender          no peer has to map them
 *   F4 reading is slower than writing (device.h)  who maps less       89 us for each allocation
 *   F5 one side has MANY_ALLOCATIONS more to map  the other side      89 us for each allocation
 *   F6 else                                       each move by itself
 *
 * A move of F6. Where neither is faster it is pulled, so that a rank writes its own memory alone,
 * whatever becomes of the sender:
 *
 *   case                                          is      figure
 *   M1 elements become larger                     pulled  small ones cross the link
 *   M2 below NARROW_MOVE_BYTES, and elements      pushed  none was kept
 *      become smaller or both ranks send
 *   M3 else below NARROW_MOVE_BYTES               pulled  none was kept
 *   M4 scattered rows (is_scattered())            pulled  u8 of 8 columns 1.7 ms, pushed 3.1
 *   M5 elements become smaller                    pushed  small ones cross the link
 *   M6 both ranks send, except as in M7           pushed  4 GPUs to all 8.6 ms, pulled 13.2;
 *                                                         2 GPUs 0.91 of the link, pulled 0.88
 *   M7 both send, in rows from ENGINE_ROW_BYTES   pulled  4 parts to halves 6.0 ms, pushed 7.7
 *      on (is_beside_one_way())
 *   M8 rows below NARROW_ROW_BYTES                pushed  1536 B: 376 GB/s, pulled 333
 *   M9 else                                       pulled  1 MiB: 387 GB/s, pushed 395
 */
#include "error.h"
#include "link.h"
#include "peers.h"

#define MANY_ALLOCATIONS 256
#define NARROW_MOVE_BYTES (INT64_C(256) << 10)
#define NARROW_ROW_BYTES (INT64_C(32) << 10)
/* Rows from this size on are copied by the copy engine. */
#define ENGINE_ROW_BYTES (INT64_C(512) << 10)
/* Scattered rows are shorter than these. Ragged ones are measured in bytes or, if elements are
 * converted, in elements. At least LINE_BYTES are contiguous in the source. */
#define SHORT_ROW_BYTES 64
#define RAGGED_ROW_BYTES 768
#define RAGGED_ROW_ELEMS 96
#define LINE_BYTES 256

static const int64_t *strides_of(const xfi_end *end)
{
  return xfi_bound_strides(end->bound, xfi_bound_piece_at(end->bound, end->start));
}

/* How much of a move is contiguous. */
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

/* M4: rows that are short, or ragged (not in words of 16 bytes), of which several are contiguous in
 * the source. To read whole lines is faster than to write parts of them. */
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

/* M7: each of the two ranks exchanges both ways with the other alone, and one way with further
 * ranks. For those the engines pull, and kernels that push beside engines are slow. Elsewhere
 * requests to read would share the link with the data that goes the other way. */
static bool is_beside_one_way(const xfi_link *link)
{
  const xfi_peer_counts *ours = &link->links->counts;
  const xfi_peer_counts *theirs = &link->their_counts;

  return ours->n_both == 1 && theirs->n_both == 1 && ours->n_links + theirs->n_links > 2;
}

bool xfi_walk_is_pushed(const xfi_walk *w)
{
  const bool both_ways =
      w->link->transfer[0].peer != XFI_NO_TRANSFER && w->link->transfer[1].peer != XFI_NO_TRANSFER;
  const int from = w->cls->src->elem_bytes;
  const int to = w->cls->dst->elem_bytes;
  const int64_t n_bytes = xfi_box_elems(w->box.length, w->cls->src->n_dims) * from;
  const rows r = rows_of(w);

  if (from < to) return false;                                     /* M1 */
  if (n_bytes < NARROW_MOVE_BYTES) return from != to || both_ways; /* M2, M3 */
  if (is_scattered(w, &r)) return false;                           /* M4 */
  if (from != to) return true;                                     /* M5 */
  if (both_ways)                                                   /* M6, M7 */
    return !is_beside_one_way(w->link) || r.both < ENGINE_ROW_BYTES;
  return r.both < NARROW_ROW_BYTES; /* M8, M9 */
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

/* Find how many bytes of a transfer had better be pushed, and whether only the sender can copy it.
 */
static xfer_status measure_moves(const xfer_plan *plan, xfi_link *link, bool send)
{
  xfi_link_transfer *transfer = &link->transfer[send];
  const bool pulls = plan->device->ops->pulls;
  xfer_status st = XFER_OK;

  if (!pulls && plan->quant == NULL) return XFER_OK;
  for (xfi_walk w = xfi_walk_begin(plan, link, send); xfi_walk_next(&w, &st);) {
    if (w.cls->conversion.kind == XFER_CONVERSION_BLOCKS) transfer->only_push = true;
    if (pulls && xfi_walk_is_pushed(&w))
      transfer->pushed_bytes += xfi_move_bytes(w.cls, w.boxes, w.move);
  }
  return st;
}

/* The cases F2 to F6, once measure_moves() has filled the transfer. */
static xfi_by choose(const xfer_plan *plan, const xfi_link *link, bool send, uint64_t n_bytes)
{
  const xfi_link_transfer *transfer = &link->transfer[send];
  /* The numbers of allocations in which source and destination lie. */
  const size_t n_src =
      send ? xfi_link_n_advertised(link, XFI_SIDE_SRC) : xfi_link_n_remotes(link, XFI_SIDE_SRC);
  const size_t n_dst =
      send ? xfi_link_n_remotes(link, XFI_SIDE_DST) : xfi_link_n_advertised(link, XFI_SIDE_DST);

  if (transfer->only_push || xfi_plan_is_fresh(plan)) return XFI_BY_PUSH;           /* F2, F3 */
  if (!plan->device->ops->pulls) return n_dst <= n_src ? XFI_BY_PUSH : XFI_BY_PULL; /* F4 */
  if (n_src > n_dst + MANY_ALLOCATIONS) return XFI_BY_PUSH;                         /* F5 */
  if (n_dst > n_src + MANY_ALLOCATIONS) return XFI_BY_PULL;                         /* F5 */
  if (transfer->pushed_bytes == 0) return XFI_BY_PULL;                              /* F6 */
  return transfer->pushed_bytes < n_bytes ? XFI_BY_BOTH : XFI_BY_PUSH;
}

xfer_status xfi_link_choose(xfi_link *link, const xfer_plan *plan)
{
  for (int send = 0; send < 2; send++) {
    xfi_link_transfer *transfer = &link->transfer[send];
    const xfi_peer *peers = xfi_plan_moves(plan, send)->peers;

    if (transfer->peer == XFI_NO_TRANSFER) continue;
    transfer->by = XFI_BY_PULL; /* F1 */
    if (plan->lanes.uses_snapshots) continue;
    XFI_TRY(measure_moves(plan, link, send));
    transfer->by =
        choose(plan, link, send, xfi_plan_unicast_bytes(plan, send, &peers[transfer->peer]));
  }
  return XFER_OK;
}
