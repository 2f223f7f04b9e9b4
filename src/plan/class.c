/*
 * What a class is for one rank: the parts that it holds, the flows of its boxes, and the bytes of a
 * tensor. Computed once for each class, whatever the number of its tensors.
 */
#include "class.h"

#include "choose.h"
#include "error.h"

static xfer_status fill_flows(xfi_class *cls, const xfi_moves *moves, bool is_source,
                              xfi_scratch *scratch)
{
  const xfi_class_side side = {cls,
                               moves,
                               is_source,
                               is_source ? cls->src : cls->dst,
                               is_source ? cls->dst : cls->src,
                               is_source ? &scratch->sends : &scratch->recvs,
                               scratch};

  side.flows->n = side.flows->n_boxes = 0;
  if (cls->src->boxes == NULL && cls->dst->boxes == NULL) return xfi_flows_fill_by_dims(&side);
  return xfi_flows_fill_by_boxes(&side);
}

bool xfi_class_find_dst(xfi_class *cls, int rank)
{
  cls->in_dst = xfi_layout_place(cls->dst, rank, &cls->dst_place);
  return cls->in_dst;
}

xfer_status xfi_class_fill_receives(xfi_class *cls, const xfi_moves *moves, xfi_scratch *scratch)
{
  int64_t n = xfi_layout_elems(cls->dst, moves->rank, &cls->dst_place);

  XFI_TRY(fill_flows(cls, moves, false, scratch));
  cls->dst_bytes = (uint64_t)(n * cls->wire_bytes);
  for (size_t b = 0; b < scratch->recvs.n_boxes; b++)
    n -= xfi_box_elems(xfi_flows_length(&scratch->recvs, b), cls->dst->n_dims);
  cls->zero_bytes = (uint64_t)(n * cls->wire_bytes); /* what nobody sends, as is proven */
  for (size_t f = 0; f < scratch->recvs.n; f++) {
    xfi_flow *flow = &scratch->recvs.at[f];

    flow->sharers = xfi_find_sharers(moves, cls, flow->part, flow->mine, moves->rank);
  }
  cls->recvs = scratch->recvs;
  return XFER_OK;
}

xfer_status xfi_class_fill(xfi_class *cls, const xfi_moves *moves, xfi_scratch *scratch)
{
  scratch->sends.n = scratch->sends.n_boxes = 0;
  scratch->recvs.n = scratch->recvs.n_boxes = 0;
  cls->in_src = xfi_layout_place(cls->src, moves->rank, &cls->src_place);
  if (cls->in_src) XFI_TRY(fill_flows(cls, moves, true, scratch));
  if (xfi_class_find_dst(cls, moves->rank)) XFI_TRY(xfi_class_fill_receives(cls, moves, scratch));
  return xfi_class_keep(cls, &scratch->sends, &scratch->recvs);
}
