/*
 * How a class finds its flows: dim by dim where both sides are by placements (flows_by_dims.c), box
 * by box where one is not (flows_by_boxes.c). Both list the same boxes in the same order.
 */
#ifndef XFI_FLOWS_FILL_H
#define XFI_FLOWS_FILL_H

#include "boxes.h"
#include "held.h"
#include "moves_types.h"

/* An interval of one dim with its place in both parts. */
typedef struct xfi_interval {
  int64_t part; /* number of a part of the other side's dim */
  int64_t global;
  int64_t length;
  int64_t src_local;
  int64_t dst_local;
} xfi_interval;

typedef struct xfi_intervals {
  xfi_interval *at;
  size_t n;
  size_t capacity;
} xfi_intervals;

/* What a box of this rank's has in common with one of the other side's. */
typedef struct xfi_common_box {
  uint32_t src_part;
  uint32_t dst_part;
  int my_replica;
  uint32_t dst_unit; /* the destination's unit: it may hold an index in several units */
  int n_dims;
  xfi_box box;
} xfi_common_box;

/* Where a box begins in the dim that is swept, and its index. */
typedef struct xfi_start {
  int64_t lo;
  size_t i;
} xfi_start;

/* Memory for filling classes, one after the other; zero at first. */
typedef struct xfi_scratch {
  xfi_common_box *common;
  size_t n_common;
  size_t common_capacity;
  xfi_common_box **order;
  size_t order_capacity;
  xfi_start *starts;
  size_t starts_capacity;
  xfi_units units;
  xfi_bounds bounds;
  xfi_held_list held;
  xfi_flows flows; /* the flows of one box */
  xfi_flows sends; /* the flows of the class that is filled */
  xfi_flows recvs;
} xfi_scratch;
void xfi_scratch_free(xfi_scratch *scratch);

/* One side of a class, on this rank, whose flows are filled. */
typedef struct xfi_class_side {
  xfi_class *cls;
  const xfi_moves *moves;
  bool is_source;
  const xfer_layout *mine;
  const xfer_layout *other;
  xfi_flows *flows; /* the scratch's list that is filled */
  xfi_scratch *scratch;
} xfi_class_side;

/* Append the intersections of this rank's runs with the parts of the other side's dim, and sort the
 * list. */
xfer_status xfi_intervals_add(xfi_intervals *list, const xfi_runs *runs, const xfi_dim *other,
                              bool is_source);

/* The product of lists, one per dim: a flow for each combination of parts of `other`. */
xfer_status xfi_flows_add(xfi_flows *flows, const xfi_intervals *lists, const xfer_layout *other,
                          uint32_t mine, int my_replica);

/* Fill side->flows, and prove them if they are the destination's. */
xfer_status xfi_flows_fill_by_dims(const xfi_class_side *side);
xfer_status xfi_flows_fill_by_boxes(const xfi_class_side *side);
/* Lists every source part of a class, whoever holds it, as a flow whose boxes are what is read from
 * the part. In layouts by boxes the boxes' units are those of the source. */
xfer_status xfi_flows_of_sources(xfi_flows *flows, const xfi_class *cls);

#endif
