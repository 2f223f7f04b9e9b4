/*
 * Which replica of a source sends: a closed form, so that a sender finds its destinations by
 * stepping and a receiver its source by one division, whatever the number of ranks.
 *
 * A rank that holds the data itself is its own source. Else sources in its domain share the work,
 * else all do: a box of at least 1 MiB for each is cut in stripes, one per replica, and whatever is
 * smaller rotates by (tensor, destination part, destination replica, box). Fewer stripes than
 * replicas stand as far apart as they can, so that the next boxes fall between them.
 */
#include "choose.h"

#include "boxes.h"

/* From this size on a stripe is worth a message of its own; more than MAX_STRIPES gain nothing. */
#define MIN_STRIPE_BYTES (INT64_C(1) << 20)
#define MAX_STRIPES 8
/* Ranks of a domain share a box as long as each takes so many bytes of it; of a smaller box fewer
 * ranks take something. */
#define MIN_SHARE_BYTES (INT64_C(16) << 10)
#define MAX_SHARES 256

int64_t xfi_box_elems(const int64_t *length, int n_dims)
{
  int64_t n = 1;

  for (int d = 0; d < n_dims; d++)
    n *= length[d];
  return n;
}

/* The outermost dim long enough for n stripes, or -1. */
static int stripe_dim(const int64_t *length, int n_dims, int n)
{
  for (int d = 0; d < n_dims; d++)
    if (length[d] >= n) return d;
  return -1;
}

int xfi_stripe_count(const xfi_class *cls, const int64_t *length, int n_replicas, int n_sharers)
{
  const int64_t n_bytes = xfi_box_elems(length, cls->src->n_dims) * cls->wire_bytes;
  int64_t n_shares = n_bytes / MIN_SHARE_BYTES;
  int64_t n = n_bytes / MIN_STRIPE_BYTES;

  if (cls->broadcast) return 1;
  if (n > n_replicas) n = n_replicas;
  if (n > MAX_STRIPES) n = MAX_STRIPES;
  if (n_shares > n_sharers) n_shares = n_sharers;
  if (n_shares > MAX_SHARES) n_shares = MAX_SHARES;
  if (n < 1) n = 1;
  if (n_shares > 1) n = (n + n_shares - 1) / n_shares * n_shares; /* as many for each */
  return n > 1 && stripe_dim(length, cls->src->n_dims, (int)n) >= 0 ? (int)n : 1;
}

/* length * i / n for 0 <= i <= n, without that product, which could overflow. */
static int64_t share(int64_t length, int i, int n)
{
  return length / n * i + length % n * i / n;
}

void xfi_box_resolve(int64_t *local, uint32_t unit, const xfer_layout *layout, int rank)
{
  if (layout->boxes == NULL || layout->n_dims == 0) return;
  local[0] += layout->boxes->listed[xfi_boxes_listed(layout, unit, rank)].row;
}

void xfi_move_box(xfi_box *box, const xfi_class *cls, const xfi_flows *flows, const xfi_move *move)
{
  const bool send = flows == &cls->sends;
  const int n = move->n_stripes;
  int d;
  int64_t start;

  *box = xfi_flows_box(flows, move->box);
  xfi_box_resolve(send ? box->dst_local : box->src_local, box->unit, send ? cls->dst : cls->src,
                  move->peer);
  if (n <= 1) return;
  d = stripe_dim(box->length, cls->src->n_dims, n);
  start = share(box->length[d], move->stripe, n);
  box->length[d] = share(box->length[d], move->stripe + 1, n) - start;
  box->lo[d] += start;
  box->src_local[d] += start;
  box->dst_local[d] += start;
}

uint64_t xfi_move_bytes(const xfi_class *cls, const xfi_flows *flows, const xfi_move *move)
{
  const int64_t *length = xfi_flows_length(flows, move->box);
  const int n = move->n_stripes;
  int64_t elems = xfi_box_elems(length, cls->src->n_dims);

  if (n > 1) {
    const int64_t cut = length[stripe_dim(length, cls->src->n_dims, n)];

    elems = elems / cut * (share(cut, move->stripe + 1, n) - share(cut, move->stripe, n));
  }
  return (uint64_t)(elems * cls->wire_bytes);
}

/* The ranks of a rank's domain, [*first, *end), in a plan that has domains. */
static void domain_of(int *first, int *end, const xfi_moves *moves, int rank)
{
  const int64_t size = moves->options.ranks_per_domain;
  const int64_t begin = rank / size * size;

  *first = (int)begin;
  *end = (int)(begin + size < moves->n_ranks ? begin + size : moves->n_ranks);
}

int xfi_count_near(const xfi_moves *moves, const xfer_layout *layout, uint32_t part, int rank)
{
  int first;
  int end;
  int n = 0;

  domain_of(&first, &end, moves, rank);
  for (int r = first; r < end; r++)
    n += xfi_part_replica(layout, part, r) >= 0;
  return n;
}

int xfi_find_near(const xfi_moves *moves, const xfer_layout *layout, uint32_t part, int rank,
                  int index)
{
  int first;
  int end;

  domain_of(&first, &end, moves, rank);
  for (int r = first; r < end; r++)
    if (xfi_part_replica(layout, part, r) >= 0 && index-- == 0) return r;
  return -1;
}

/* Numbers the boxes that go anywhere. Both ends compute it. The destination replica's number is one
 * of the terms. */
static uint64_t number_of(const xfi_class *cls, const xfi_turn *turn)
{
  return (uint64_t)xfi_part_first(cls->dst, turn->dst_part) + (uint64_t)turn->dst_replica +
         turn->ordinal + turn->box;
}

int xfi_choose_replica(const xfi_class *cls, const xfi_turn *turn)
{
  const uint64_t n = (uint64_t)xfi_part_n_replicas(cls->src, turn->src_part);

  if (cls->broadcast) return (int)(turn->ordinal % n); /* one source for all */
  return (int)((number_of(cls, turn) + (uint64_t)turn->stripe * n / (uint64_t)turn->n_stripes) % n);
}

int xfi_choose_near(const xfi_class *cls, const xfi_turn *turn, int n)
{
  return (int)((number_of(cls, turn) + (uint64_t)turn->stripe) % (uint64_t)n);
}

int xfi_choose_source(const xfi_moves *moves, const xfi_class *cls, const xfi_turn *turn,
                      int dst_rank)
{
  if (xfi_part_replica(cls->src, turn->src_part, dst_rank) >= 0) return dst_rank;
  if (moves->options.ranks_per_domain > 0 && !cls->broadcast) {
    const int n = xfi_count_near(moves, cls->src, turn->src_part, dst_rank);

    if (n > 0)
      return xfi_find_near(moves, cls->src, turn->src_part, dst_rank,
                           xfi_choose_near(cls, turn, n));
  }
  return xfi_part_rank(cls->src, turn->src_part, xfi_choose_replica(cls, turn));
}

/* ---- what ranks of a domain share ---- */

xfi_sharers xfi_find_sharers(const xfi_moves *moves, const xfi_class *cls, uint32_t src_part,
                             uint32_t dst_part, int rank)
{
  xfi_sharers sharers = {0, 0};
  int first;
  int end;

  if (moves->options.ranks_per_domain < 2 || cls->broadcast) return (xfi_sharers){1, 0};
  domain_of(&first, &end, moves, rank);
  for (int r = first; r < end; r++) {
    if (xfi_part_replica(cls->src, src_part, r) >= 0) return (xfi_sharers){1, 0};
    if (xfi_part_replica(cls->dst, dst_part, r) < 0) continue;
    sharers.n++;
    sharers.index += r < rank;
  }
  return sharers;
}

int xfi_taker(const xfi_class *cls, const xfi_turn *turn, int n_sharers)
{
  const int first =
      xfi_part_first(cls->src, turn->src_part) + xfi_part_first(cls->dst, turn->dst_part);
  const uint64_t number = (uint64_t)first + turn->ordinal + turn->box + (uint64_t)turn->stripe;

  return n_sharers <= 1 ? 0 : (int)(number % (uint64_t)n_sharers);
}
