/*
 * Which replica of a source sends: a closed form, so that a sender finds its destinations by
 * stepping and a receiver its source by one division, whatever the number of ranks.
 *
 * A rank that holds the data itself is its own source. Else sources in its domain share the work,
 * else all do: a box of at least 1 MiB for each is cut in stripes, one per replica, and whatever is
 * smaller rotates by (tensor, destination part, destination replica, box). Fewer stripes than
 * replicas stand as far apart as they can, so that the next boxes fall between them.
 */
#include "plan.h"

/* A stripe is worth a message of its own from this size on; more than MAX_STRIPES gain nothing. */
#define MIN_STRIPE_BYTES (INT64_C(1) << 20)
#define MAX_STRIPES 8

int64_t xfi_box_elems(const xfi_box *box, int n_dims)
{
  int64_t n = 1;

  for (int d = 0; d < n_dims; d++)
    n *= box->length[d];
  return n;
}

/* The outermost dim long enough for n stripes, or -1. */
static int stripe_dim(const xfi_box *box, int n_dims, int n)
{
  for (int d = 0; d < n_dims; d++)
    if (box->length[d] >= n) return d;
  return -1;
}

int xfi_stripe_count(const xfi_class *cls, const xfi_box *box)
{
  int64_t n = xfi_box_elems(box, cls->src->n_dims) * cls->src->elem_bytes / MIN_STRIPE_BYTES;

  if (cls->broadcast) return 1;
  if (n > cls->src->n_replicas) n = cls->src->n_replicas;
  if (n > MAX_STRIPES) n = MAX_STRIPES;
  return n > 1 && stripe_dim(box, cls->src->n_dims, (int)n) >= 0 ? (int)n : 1;
}

/* length * i / n for 0 <= i <= n, without the product, which need not fit. */
static int64_t share(int64_t length, int i, int n)
{
  return length / n * i + length % n * i / n;
}

void xfi_move_box(xfi_box *box, const xfi_class *cls, const xfi_flows *flows, const xfi_move *move)
{
  const int n = move->n_stripes;
  int d;
  int64_t start;

  *box = flows->boxes[move->box];
  if (n <= 1) return;
  d = stripe_dim(box, cls->src->n_dims, n);
  start = share(box->length[d], move->stripe, n);
  box->length[d] = share(box->length[d], move->stripe + 1, n) - start;
  box->lo[d] += start;
  box->src_local[d] += start;
  box->dst_local[d] += start;
}

static bool same_part(const int64_t *a, const int64_t *b, int n_dims)
{
  for (int d = 0; d < n_dims; d++)
    if (a[d] != b[d]) return false;
  return true;
}

/* Does `rank` hold the source part? */
static bool holds(const xfer_layout *src, int rank, const int64_t *part)
{
  xfi_place place;

  return xfi_layout_place(src, rank, &place) && same_part(place.part, part, src->n_dims);
}

/* The ranks of `domain` that hold the part take turns; -1: none does. */
static int nearby_source(const xfi_plan *plan, const xfer_layout *src, const int64_t *part,
                         int domain, uint64_t turn)
{
  const int64_t size = plan->options.ranks_per_domain;
  const int64_t first = domain * size;
  const int64_t end = first + size < plan->n_ranks ? first + size : plan->n_ranks;
  int n = 0;

  for (int64_t r = first; r < end; r++)
    n += holds(src, (int)r, part);
  if (n == 0) return -1;
  n = (int)(turn % (uint64_t)n);
  for (int64_t r = first; r < end; r++)
    if (holds(src, (int)r, part) && n-- == 0) return (int)r;
  return -1;
}

/* Numbers the boxes that go anywhere. Both ends compute it. The destination replica's number is one
 * of the terms. */
static uint64_t number_of(const xfi_class *cls, const xfi_turn *turn, const xfi_place *dst_place)
{
  uint64_t part = 0;

  for (int d = 0; d < cls->dst->n_dims; d++)
    part = part * (uint64_t)cls->dst->dims[d].n_parts + (uint64_t)dst_place->part[d];
  return part * (uint64_t)cls->dst->n_replicas + (uint64_t)dst_place->replica + turn->ordinal +
         turn->box;
}

int xfi_choose_replica(const xfi_class *cls, const xfi_turn *turn, const xfi_place *dst_place)
{
  const uint64_t n = (uint64_t)cls->src->n_replicas;

  if (cls->broadcast) return (int)(turn->ordinal % n); /* one source for all */
  return (int)((number_of(cls, turn, dst_place) +
                (uint64_t)turn->stripe * n / (uint64_t)turn->n_stripes) %
               n);
}

int xfi_choose_source(const xfi_plan *plan, const xfi_class *cls, const xfi_turn *turn,
                      const int64_t *src_part, const xfi_place *dst_place, int dst_rank)
{
  xfi_place place;

  if (holds(cls->src, dst_rank, src_part)) return dst_rank;
  if (plan->options.ranks_per_domain > 0 && !cls->broadcast) {
    const int domain = (int)((uint32_t)dst_rank / plan->options.ranks_per_domain);
    const int rank = nearby_source(plan, cls->src, src_part, domain,
                                   number_of(cls, turn, dst_place) + (uint64_t)turn->stripe);

    if (rank >= 0) return rank;
  }
  for (int d = 0; d < cls->src->n_dims; d++)
    place.part[d] = src_part[d];
  place.replica = xfi_choose_replica(cls, turn, dst_place);
  return xfi_layout_rank(cls->src, &place);
}
