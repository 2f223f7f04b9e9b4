/*
 * Relays: what several ranks of a domain want and none of them has crosses to them once.
 *
 * Ranks of a domain that hold the same destination part share what comes to it from a source part
 * that no rank of the domain holds. Each box is cut in stripes, and each stripe goes to one of
 * them, its *taker*, which gives it to the others: so that all of them receive, and every byte
 * crosses to the domain once. Both are closed forms, like the choice of sources.
 *
 * What takers give is a plan over the same tensors: from destination part to destination part, of
 * elements as they are there. It runs once what crosses has come.
 */
#include <string.h>

#include "alloc.h"
#include "boxes.h"
#include "checked.h"
#include "choose.h"
#include "error.h"
#include "move_lists.h"
#include "vec.h"

/* Makes the relay's classes: those of the plan, each from its destination to its destination. */
static xfer_status make_classes(xfi_moves *relay, const xfi_moves *moves)
{
  relay->classes = xfi_calloc(moves->n_classes, sizeof *relay->classes);
  XFI_CHECK(relay->classes != NULL, XFER_ERR_NOMEM, "%zu classes", moves->n_classes);
  relay->n_classes = moves->n_classes;
  for (size_t c = 0; c < moves->n_classes; c++) {
    const xfi_class *from = &moves->classes[c];
    xfi_class *cls = &relay->classes[c];

    cls->src = cls->dst = from->dst;
    cls->wire_bytes = from->dst->elem_bytes;
    cls->first_tensor = from->first_tensor;
    cls->n_tensors = from->n_tensors;
    cls->first_ordinal = from->first_ordinal;
  }
  return XFER_OK;
}

/* The unit that this rank holds at a local row of its boxes, and where it begins. */
static uint32_t unit_at(int64_t *row, const xfer_layout *layout, int rank, int64_t local)
{
  const xfi_listed *listed = layout->boxes->listed;
  size_t first;
  const size_t n = xfi_boxes_of(&first, layout, rank);
  size_t lo = first + 1;
  size_t hi = first + n;

  XFI_BISECT(lo, hi, mid, listed[mid].row <= local);
  *row = listed[lo - 1].row;
  return listed[lo - 1].unit;
}

/* A flow that is shared, and where in the tensor it begins, by which these are sorted. */
typedef struct begun {
  xfi_flow flow;
  const int64_t *lo;
  int n_dims;
} begun;

static int by_begin(const void *a, const void *b)
{
  const begun *x = a;
  const begun *y = b;

  for (int d = 0; d < x->n_dims; d++)
    if (x->lo[d] != y->lo[d]) return x->lo[d] < y->lo[d] ? -1 : 1;
  return (x->flow.mine > y->flow.mine) - (x->flow.mine < y->flow.mine);
}

/* The flows that are shared. One rank gives what comes from several source parts, whose numbers
 * differ between layouts by boxes and by placements: so they go in the order of the tensor. */
static xfer_status copy_flows(xfi_flows *to, const xfi_flows *from, int n_dims)
{
  xfer_status st = XFER_OK;
  begun *order = xfi_calloc(from->n, sizeof *order);

  to->at = xfi_calloc(from->n, sizeof *to->at);
  XFI_CHECK_DONE(order != NULL && to->at != NULL, XFER_ERR_NOMEM, "%zu flows", from->n);
  to->capacity = from->n;
  for (size_t f = 0; f < from->n; f++)
    if (from->at[f].sharers.n > 1)
      order[to->n++] = (begun){from->at[f], xfi_flows_lo(from, from->at[f].first), n_dims};
  xfi_sort(order, to->n, sizeof *order, by_begin);
  for (size_t f = 0; f < to->n; f++)
    to->at[f] = order[f].flow;
done:
  xfi_free(order);
  return st;
}

/* Fill a class of the relay: its boxes are those that this rank receives. They lie at the same
 * place in the parts of all ranks that share them. */
static xfer_status fill_class(xfi_class *cls, const xfi_class *from, int rank)
{
  xfer_status st = XFER_OK;
  const bool listed = cls->dst->boxes != NULL && cls->dst->n_dims > 0;
  xfi_flows sends = {0};
  xfi_flows recvs = {0};

  if (cls->is_filled) return XFER_OK;
  XFI_TRY_DONE(copy_flows(&recvs, &from->recvs, cls->dst->n_dims));
  if (recvs.n == 0) goto done;
  XFI_TRY_DONE(xfi_flows_reserve(&sends, cls->dst->n_dims, from->recvs.n_boxes));
  XFI_TRY_DONE(xfi_flows_reserve(&recvs, cls->dst->n_dims, from->recvs.n_boxes));
  for (size_t b = 0; b < from->recvs.n_boxes; b++) {
    xfi_box in = xfi_flows_box(&from->recvs, b);
    xfi_box out;
    int64_t row = 0;

    memcpy(in.src_local, in.dst_local, sizeof in.src_local);
    if (listed) in.unit = unit_at(&row, cls->dst, rank, in.dst_local[0]);
    in.src_local[0] -= row;
    out = in;
    memcpy(out.src_local, in.dst_local, sizeof out.src_local);
    memcpy(out.dst_local, in.src_local, sizeof out.dst_local);
    xfi_flows_put(&sends, sends.n_boxes++, &out);
    xfi_flows_put(&recvs, recvs.n_boxes++, &in);
  }
  XFI_TRY_DONE(xfi_class_keep(cls, &sends, &recvs));
done:
  xfi_flows_free(&sends);
  xfi_flows_free(&recvs);
  cls->is_filled = st == XFER_OK;
  return st;
}

/* Adds the relay's moves of one stripe: this rank takes the stripe for its domain and sends it to
 * the others, or receives it from the rank that takes it. */
static xfer_status add_stripe(xfi_moves *moves, const xfi_flow *flow, const xfi_turn *turn,
                              uint32_t tensor)
{
  const xfi_class *cls = xfi_moves_class(moves, tensor);
  xfi_moves *relay = moves->relay;
  xfi_move move = {tensor, 0, (uint32_t)(flow->first + turn->box), (uint16_t)turn->stripe,
                   (uint16_t)turn->n_stripes};
  const uint64_t n_bytes = xfi_move_bytes(cls, &cls->recvs, &move);
  const int taker = xfi_taker(cls, turn, flow->sharers.n);

  if (taker != flow->sharers.index) {
    move.peer = xfi_find_near(moves, cls->dst, flow->mine, moves->rank, taker);
    return xfi_move_add(&relay->recvs, move, n_bytes);
  }
  for (int i = 0; i < flow->sharers.n; i++) {
    if (i == taker) continue;
    move.peer = xfi_find_near(moves, cls->dst, flow->mine, moves->rank, i);
    XFI_CHECK(xfi_add_fits(relay->out_bytes, n_bytes, &relay->out_bytes), XFER_ERR_OVERFLOW,
              "the bytes that rank %d sends do not fit in 64 bits", moves->rank);
    XFI_TRY(xfi_move_add(&relay->sends, move, n_bytes));
  }
  return XFER_OK;
}

static xfer_status add_tensor(xfi_moves *moves, uint32_t tensor)
{
  const xfi_class *cls = xfi_moves_class(moves, tensor);
  xfi_class *own = &moves->relay->classes[moves->tensors[tensor].class_index];

  XFI_TRY(fill_class(own, cls, moves->rank));
  for (size_t f = 0; f < own->recvs.n; f++) {
    const xfi_flow *flow = &own->recvs.at[f];

    for (size_t b = 0; b < flow->n; b++) {
      xfi_turn turn;

      xfi_turn_begin(&turn, moves, cls, flow, b, moves->tensors[tensor].ordinal);
      for (; turn.stripe < turn.n_stripes; turn.stripe++)
        XFI_TRY(add_stripe(moves, flow, &turn, tensor));
    }
  }
  return XFER_OK;
}

xfer_status xfi_relay_fill(xfi_moves *moves)
{
  xfi_moves *relay;

  if (moves->options.ranks_per_domain < 2 || moves->n_broadcast == moves->n_tensors) return XFER_OK;
  relay = moves->relay = xfi_calloc(1, sizeof *relay);
  XFI_CHECK(relay != NULL, XFER_ERR_NOMEM, "relays");
  relay->n_ranks = moves->n_ranks;
  relay->rank = moves->rank;
  relay->tensors = moves->tensors;
  relay->n_tensors = moves->n_tensors;
  XFI_TRY(make_classes(relay, moves));
  XFI_TRY(xfi_moves_set_order(relay, NULL)); /* elements are the destination's here */
  XFI_TRY(xfi_moves_begin(relay, &relay->sends));
  XFI_TRY(xfi_moves_begin(relay, &relay->recvs));
  for (size_t i = 0; i < relay->n_tensors; i++)
    XFI_TRY(add_tensor(moves, relay->order[i]));
  XFI_TRY(xfi_moves_group(relay, &relay->sends));
  return xfi_moves_group(relay, &relay->recvs);
}
