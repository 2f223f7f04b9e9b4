/*
 * Traffic: what every rank gets from whom, without any rank's list of moves.
 *
 * All ranks that hold a destination part alike take in the same flows, and what their number, the
 * replica, changes is who sends: it is added to the turn of the source (choose.c). So a class and a
 * part have one *intake*, found once; a rank's own is that with the turns shifted. Tensors of a
 * class differ in their ordinals alone, which follow each other: turns repeat after as many as
 * there are sources, and ranks that share, and are counted rather than listed. The cost is that of
 * the pairs of ranks that exchange something, class by class, whatever the number of tensors.
 */
#include "traffic.h"

#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "class.h"
#include "error.h"
#include "moves.h"
#include "vec.h"

/* What one replica of a source part sends to destination replica 0. */
typedef struct share {
  int replica;
  uint64_t n_moves;
  uint64_t n_bytes;
} share;

/* A flow over all tensors of the class. */
typedef struct stream {
  uint32_t part;  /* of the source */
  int my_replica; /* by boxes: of this rank's part */
  uint64_t n_moves;
  uint64_t n_bytes;
  size_t first; /* shares[first .. first + n) */
  size_t n;
} stream;

typedef struct intake {
  size_t cls;
  uint32_t part; /* of the destination, where it is kept */
  uint64_t in_bytes;
  uint64_t zero_bytes;
  stream *streams;
  size_t n_streams;
  size_t streams_capacity;
  share *shares;
  size_t n_shares;
  size_t shares_capacity;
} intake;

typedef struct survey {
  xfi_moves *moves; /* its rank is the one that is looked at */
  xfi_scratch scratch;
  intake **kept; /* open addressing by class and part; NULL is free */
  size_t mask;
  size_t n_kept;
  share *turns; /* of one flow, by replica */
  size_t turns_capacity;
  xfi_traffic_row row;
  size_t row_capacity;
  uint32_t *index; /* [n_ranks] where a source is in the row, + 1; 0: it is not */
} survey;

static void intake_free(intake *in)
{
  if (in == NULL) return;
  xfi_free(in->streams);
  xfi_free(in->shares);
  xfi_free(in);
}

/* ---- finding an intake ---- */

/* Adds what each replica of a source sends of one stripe of a box, over the class's tensors. */
static void count_turns(survey *s, const xfi_class *cls, xfi_turn turn, uint64_t n_bytes,
                        int n_replicas)
{
  const size_t n = (size_t)n_replicas;

  for (size_t i = 0; i < n && i < cls->n_tensors; i++) {
    const uint64_t times = (cls->n_tensors - i + n - 1) / n;
    share *to;

    turn.ordinal = cls->first_ordinal + (uint32_t)i;
    to = &s->turns[xfi_choose_replica(cls, &turn)];
    to->n_moves += times;
    to->n_bytes += times * n_bytes;
  }
}

static xfer_status add_stream(survey *s, intake *in, const xfi_class *cls, const xfi_flow *flow)
{
  const int n_replicas = xfi_part_n_replicas(cls->src, flow->part);
  stream made = {.part = flow->part, .my_replica = flow->my_replica, .first = in->n_shares};

  XFI_TRY(xfi_vec_reserve(&s->turns, &s->turns_capacity, (size_t)n_replicas, sizeof *s->turns));
  memset(s->turns, 0, (size_t)n_replicas * sizeof *s->turns);
  for (size_t b = 0; b < flow->n; b++) {
    const int64_t *length = xfi_flows_length(&cls->recvs, flow->first + b);
    xfi_move move = {0, 0, (uint32_t)(flow->first + b), 0, 1};
    xfi_turn turn = {0,          b,          0, xfi_stripe_count(cls, length, n_replicas, 1),
                     flow->part, flow->mine, 0};

    made.n_moves += cls->n_tensors;
    made.n_bytes += cls->n_tensors * xfi_move_bytes(cls, &cls->recvs, &move);
    move.n_stripes = (uint16_t)turn.n_stripes;
    for (; turn.stripe < turn.n_stripes; turn.stripe++) {
      move.stripe = (uint16_t)turn.stripe;
      count_turns(s, cls, turn, xfi_move_bytes(cls, &cls->recvs, &move), n_replicas);
    }
  }
  for (int r = 0; r < n_replicas; r++) {
    if (s->turns[r].n_moves == 0) continue;
    XFI_TRY(XFI_APPEND(in->shares, in->n_shares, in->shares_capacity,
                       (share){r, s->turns[r].n_moves, s->turns[r].n_bytes}));
  }
  made.n = in->n_shares - made.first;
  return XFI_APPEND(in->streams, in->n_streams, in->streams_capacity, made);
}

/* Makes the intake of a part from its class, which is filled for a rank that holds the part. */
static xfer_status intake_create(intake **out, survey *s, size_t c, uint32_t part)
{
  const xfi_class *cls = &s->moves->classes[c];
  xfer_status st = XFER_OK;
  intake *in = xfi_calloc(1, sizeof *in);

  XFI_CHECK_DONE(in != NULL, XFER_ERR_NOMEM, "what goes to a part");
  in->cls = c;
  in->part = part;
  in->in_bytes = cls->dst_bytes * cls->n_tensors;
  in->zero_bytes = cls->zero_bytes * cls->n_tensors;
  for (size_t f = 0; f < cls->recvs.n; f++)
    XFI_TRY_DONE(add_stream(s, in, cls, &cls->recvs.at[f]));
  *out = in;
  in = NULL;
done:
  intake_free(in);
  return st;
}

static size_t slot_of(const survey *s, size_t c, uint32_t part)
{
  size_t slot = (c * 0x9e3779b1u + part) * 0x85ebca6bu & s->mask;

  while (s->kept[slot] != NULL && (s->kept[slot]->cls != c || s->kept[slot]->part != part))
    slot = (slot + 1) & s->mask;
  return slot;
}

static xfer_status grow(survey *s)
{
  intake **old = s->kept;
  const size_t n = old == NULL ? 0 : s->mask + 1;

  if (old != NULL && 2 * (s->n_kept + 1) <= n) return XFER_OK;
  s->kept = xfi_calloc(n == 0 ? 64 : 2 * n, sizeof *s->kept);
  if (s->kept == NULL) s->kept = old;
  XFI_CHECK(s->kept != old, XFER_ERR_NOMEM, "what goes to %zu parts", s->n_kept);
  s->mask = (n == 0 ? 64 : 2 * n) - 1;
  for (size_t i = 0; i < n; i++)
    if (old[i] != NULL) s->kept[slot_of(s, old[i]->cls, old[i]->part)] = old[i];
  xfi_free(old);
  return XFER_OK;
}

/* ---- a rank's row ---- */

static xfer_status add(survey *s, int src_rank, const xfi_class *cls, uint64_t n_bytes,
                       uint64_t n_moves, bool is_relayed)
{
  xfi_traffic_row *row = &s->row;
  xfer_traffic *from;

  if (s->index[src_rank] == 0) {
    XFI_TRY(XFI_APPEND(row->from, row->n, s->row_capacity,
                       (xfer_traffic){.src_rank = src_rank, .dst_rank = row->rank}));
    s->index[src_rank] = (uint32_t)row->n;
  }
  from = &row->from[s->index[src_rank] - 1];
  from->n_bytes += n_bytes;
  from->n_moves += n_moves;
  if (cls->broadcast) from->broadcast_bytes += n_bytes;
  if (is_relayed) from->relayed_bytes += n_bytes;
  return XFER_OK;
}

/* Adds one stripe of `times` tensors to what its sender sends: the source, for the rank that takes
 * the stripe for its domain, and that rank for the others of the domain. */
static xfer_status add_turn(survey *s, const xfi_class *cls, const xfi_flow *flow,
                            const xfi_turn *turn, uint64_t times)
{
  const xfi_moves *moves = s->moves;
  const xfi_move move = {0, 0, (uint32_t)(flow->first + turn->box), (uint16_t)turn->stripe,
                         (uint16_t)turn->n_stripes};
  const int taker = xfi_taker(cls, turn, flow->sharers.n);
  const uint64_t n_bytes = times * xfi_move_bytes(cls, &cls->recvs, &move);

  if (taker == flow->sharers.index)
    return add(s, xfi_choose_source(moves, cls, turn, moves->rank), cls, n_bytes, times, false);
  return add(s, xfi_find_near(moves, cls->dst, flow->mine, moves->rank, taker), cls, n_bytes, times,
             true);
}

/* After how many tensors of a class everything comes from the same ranks again. */
static size_t period_of(const xfi_moves *moves, const xfi_class *cls, const xfi_flow *flow)
{
  const int n_near = xfi_count_near(moves, cls->src, flow->part, moves->rank);
  const int64_t n_sources = n_near > 0 ? n_near : xfi_part_n_replicas(cls->src, flow->part);
  const int64_t n_sharers = flow->sharers.n > 1 ? flow->sharers.n : 1;

  return (size_t)(n_sources / xfi_gcd(n_sources, n_sharers) * n_sharers);
}

/* Sources near the destination come first: turn by turn, as the plan itself does. */
static xfer_status add_by_turns(survey *s, const xfi_class *cls, const xfi_flow *flow)
{
  const size_t period = period_of(s->moves, cls, flow);
  const size_t n = period < cls->n_tensors ? period : cls->n_tensors;

  for (size_t i = 0; i < n * flow->n; i++) {
    const size_t tensor = i / flow->n;
    xfi_turn turn;

    xfi_turn_begin(&turn, s->moves, cls, flow, i % flow->n, cls->first_ordinal + (uint32_t)tensor);
    for (; turn.stripe < turn.n_stripes; turn.stripe++)
      XFI_TRY(add_turn(s, cls, flow, &turn, (cls->n_tensors - tensor + period - 1) / period));
  }
  return XFER_OK;
}

static xfer_status add_stream_to_row(survey *s, const xfi_class *cls, const intake *in,
                                     const stream *from, int my_replica)
{
  const int n = xfi_part_n_replicas(cls->src, from->part);
  const int shift = cls->broadcast ? 0 : my_replica % n;

  if (xfi_part_replica(cls->src, from->part, s->row.rank) >= 0)
    return add(s, s->row.rank, cls, from->n_bytes, from->n_moves, false);
  for (size_t i = 0; i < from->n; i++) {
    const share *one = &in->shares[from->first + i];
    const int replica = one->replica + shift;

    XFI_TRY(add(s, xfi_part_rank(cls->src, from->part, replica < n ? replica : replica - n), cls,
                one->n_bytes, one->n_moves, false));
  }
  return XFER_OK;
}

static xfer_status add_intake(survey *s, const xfi_class *cls, const intake *in)
{
  const bool near = s->moves->options.ranks_per_domain > 0 && !cls->broadcast;
  const bool listed = cls->dst->boxes != NULL;

  s->row.in_bytes += in->in_bytes;
  s->row.zero_bytes += in->zero_bytes;
  for (size_t i = 0; i < in->n_streams; i++) {
    const stream *from = &in->streams[i];
    const int replica = listed ? from->my_replica : cls->dst_place.replica;

    if (near && xfi_part_replica(cls->src, from->part, s->row.rank) < 0)
      XFI_TRY(add_by_turns(s, cls, &cls->recvs.at[i]));
    else
      XFI_TRY(add_stream_to_row(s, cls, in, from, replica));
  }
  return XFER_OK;
}

static xfer_status add_class(survey *s, size_t c)
{
  xfi_class *cls = &s->moves->classes[c];
  const bool near = s->moves->options.ranks_per_domain > 0 && !cls->broadcast;
  const bool keep = cls->dst->boxes == NULL && !near && cls->dst->n_replicas > 1;
  xfer_status st;
  intake *in = NULL;
  uint32_t part = 0;
  size_t slot = 0;

  if (!xfi_class_find_dst(cls, s->moves->rank)) return XFER_OK;
  if (keep) {
    part = (uint32_t)cls->dst_place.number;
    XFI_TRY(grow(s));
    slot = slot_of(s, c, part);
    in = s->kept[slot];
  }
  if (in == NULL) {
    XFI_TRY(xfi_class_fill_receives(cls, s->moves, &s->scratch));
    XFI_TRY(intake_create(&in, s, c, part));
    if (keep) {
      s->kept[slot] = in;
      s->n_kept++;
    }
  }
  st = add_intake(s, cls, in);
  if (!keep) intake_free(in);
  return st;
}

static void survey_free(survey *s)
{
  for (size_t i = 0; s->kept != NULL && i <= s->mask; i++)
    intake_free(s->kept[i]);
  xfi_free(s->kept);
  xfi_free(s->turns);
  xfi_free(s->row.from);
  xfi_free(s->index);
  xfi_scratch_free(&s->scratch);
  xfi_moves_destroy(s->moves);
}

xfer_status xfi_traffic(int n_ranks, const xfer_tensor *tensors, size_t n_tensors,
                        const xfi_moves_options *options, xfi_traffic_fn fn, void *context)
{
  xfer_status st = XFER_OK;
  survey s = {.moves = NULL};
  bool more = true;

  XFI_TRY_DONE(xfi_moves_classify(&s.moves, n_ranks, 0, tensors, n_tensors, options));
  s.index = xfi_calloc((size_t)n_ranks, sizeof *s.index);
  XFI_CHECK_DONE(s.index != NULL, XFER_ERR_NOMEM, "%d ranks", n_ranks);
  for (int r = 0; r < n_ranks && more; r++) {
    s.moves->rank = r;
    s.row = (xfi_traffic_row){.rank = r, .from = s.row.from};
    for (size_t c = 0; c < s.moves->n_classes; c++)
      XFI_TRY_DONE(add_class(&s, c));
    for (size_t i = 0; i < s.row.n; i++)
      s.index[s.row.from[i].src_rank] = 0;
    more = fn(context, s.moves, &s.row);
  }
done:
  survey_free(&s);
  return st;
}
