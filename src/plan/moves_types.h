/* What a plan's moves are made of, and what the parts are called. */
#ifndef XFI_MOVES_TYPES_H
#define XFI_MOVES_TYPES_H

#include "layout.h"

/* The options of a plan that decide who sends what to whom. */
typedef struct xfi_moves_options {
  uint32_t lane; /* xfer_lane */
  uint32_t ranks_per_domain;
  uint64_t min_broadcast_saving_bytes;
  /* xfi_moves.order of a plan whose ranks number the tensors differently; NULL: the plan makes it.
   * Only xfi_moves_create() reads it. */
  const uint32_t *order;
} xfi_moves_options;

/* A box and where it lies in the parts of source and destination. Everything counts elements. */
typedef struct xfi_box {
  int64_t lo[XFER_MAX_DIMS]; /* first global index of each dim */
  int64_t length[XFER_MAX_DIMS];
  int64_t src_local[XFER_MAX_DIMS];
  int64_t dst_local[XFER_MAX_DIMS];
  uint32_t unit; /* the other side's unit that the box lies in, if that side is by boxes. Its local
                    index counts from the unit, until xfi_move_box() knows the rank */
} xfi_box;

/* Ranks of one domain that hold the same destination part, and none of which has the source part
 * that the data comes from: the data comes to them once (relay.c). */
typedef struct xfi_sharers {
  int n;     /* 1 or less: nothing is shared */
  int index; /* index of the rank in question among the sharers, by rank */
} xfi_sharers;

/* What a part of this rank's exchanges with one part of the other side: boxes[first .. first + n),
 * ascending in `lo`. */
typedef struct xfi_flow {
  uint32_t mine;  /* this rank's part */
  int my_replica; /* which replica of `mine` this rank is */
  uint32_t part;  /* the other side's part */
  uint32_t first;
  uint32_t n;
  xfi_sharers sharers; /* ranks that share a flow that this rank receives */
} xfi_flow;

/* A list of flows, and their boxes in words of only n_dims dims, since plans have many: `unit`,
 * then n_dims each of `lo`, `length`, `src_local` and `dst_local`. */
typedef struct xfi_flows {
  xfi_flow *at;
  size_t n;
  size_t capacity;
  int n_dims;
  int64_t *boxes; /* [n_boxes][1 + 4 n_dims] */
  size_t n_boxes;
  size_t boxes_capacity; /* room of `boxes`, in words */
} xfi_flows;

typedef struct xfi_class {
  const xfer_layout *src; /* owned by the class's first tensor */
  const xfer_layout *dst;
  xfer_conversion conversion;
  int wire_bytes;      /* size of an element on its way: the source narrows, the destination widens.
                          Counts of bytes below use this size */
  size_t first_tensor; /* index of the tensor that error texts name */
  size_t n_tensors;
  uint32_t first_ordinal; /* the least xfi_tensor.ordinal of its tensors */
  bool broadcast;         /* the class takes the broadcast lane */
  bool is_filled;         /* all fields below are set */
  bool in_src;            /* this rank is in the source's mesh */
  bool in_dst;            /* this rank is in the destination's mesh */
  xfi_place src_place;    /* this rank's place in the source, if that is by placements */
  xfi_place dst_place;    /* this rank's place in the destination, if that is by placements */
  xfi_flows sends;        /* flows from this rank's source part */
  xfi_flows recvs;        /* flows into this rank's destination part */
  void *memory; /* memory of both lists, no larger than they need; NULL: they are the scratch's */
  uint64_t dst_bytes;  /* bytes of this rank's destination part, ZERO elements included */
  uint64_t zero_bytes; /* how many of dst_bytes are ZERO elements */
} xfi_class;

typedef struct xfi_tensor {
  char *name;
  xfer_layout *src;
  xfer_layout *dst;
  xfer_conversion conversion;
  uint32_t class_index;
  uint32_t ordinal; /* among all tensors, class by class: sources take turns by it */
} xfi_tensor;

/* One box, or one stripe of it, going to or coming from `peer`. */
typedef struct xfi_move {
  uint32_t tensor;
  int32_t peer;
  uint32_t box; /* index of the box in the class's sends or recvs */
  uint16_t stripe;
  uint16_t n_stripes;
} xfi_move;

/* All moves with one peer, in the order both ends have them: moves[first .. first + n). */
typedef struct xfi_peer {
  int rank;
  size_t first;
  size_t n;
  uint64_t n_bytes; /* bytes of the moves that do not take the broadcast lane */
} xfi_peer;

typedef struct xfi_move_list {
  xfi_move *moves;
  size_t n_moves;
  size_t capacity;
  xfi_peer *peers; /* ascending rank; this rank itself is never one */
  size_t n_peers;
  uint64_t *peer_bytes; /* [n_ranks] while the list is made: bytes of each rank's moves, without
                           broadcasts; NULL: the list has no peers */
} xfi_move_list;

typedef struct xfi_moves {
  int n_ranks;
  int rank;
  xfi_moves_options options;
  xfi_tensor *tensors; /* [n_tensors] */
  size_t n_tensors;
  uint32_t *order; /* [n_tensors] by wire_bytes, largest first, then index: streams stay aligned */
  xfi_class *classes;
  size_t n_classes;
  xfi_move_list sends;
  xfi_move_list recvs;
  xfi_move_list selfs; /* moves within this rank, of boxes in recvs; the list has no peers */
  uint64_t payload_bytes;
  uint64_t in_bytes; /* zero_bytes and self_bytes included */
  uint64_t self_bytes;
  uint64_t zero_bytes;
  uint64_t out_bytes;
  size_t n_broadcast;      /* tensors that take the broadcast lane */
  size_t n_converted;      /* tensors with a conversion */
  size_t n_replicated;     /* tensors of whose source several ranks hold a part */
  struct xfi_moves *relay; /* see relay.c; NULL: no domains */
} xfi_moves;

static inline const xfi_class *xfi_moves_class(const xfi_moves *moves, size_t tensor)
{
  return &moves->classes[moves->tensors[tensor].class_index];
}

/* ---- boxes of flows (flows.c) ---- */

static inline size_t xfi_flows_box_words(const xfi_flows *flows)
{
  return 1 + 4 * (size_t)flows->n_dims;
}

static inline const int64_t *xfi_flows_lo(const xfi_flows *flows, size_t box)
{
  return flows->boxes + box * xfi_flows_box_words(flows) + 1;
}

static inline const int64_t *xfi_flows_length(const xfi_flows *flows, size_t box)
{
  return xfi_flows_lo(flows, box) + flows->n_dims;
}

xfi_box xfi_flows_box(const xfi_flows *flows, size_t box);
/* The first of the boxes [at, end), ascending in `lo`, whose `lo` is from lo to hi in each dim, hi
 * left out; `end`: there is none. */
size_t xfi_flows_seek(const xfi_flows *flows, size_t at, size_t end, const int64_t *lo,
                      const int64_t *hi);
/* Write a box at index `at`: over the present one, or after the last, for which there is room. */
void xfi_flows_put(xfi_flows *flows, size_t at, const xfi_box *box);
/* Make room for n_boxes boxes in all. The number of dims never changes. */
xfer_status xfi_flows_reserve(xfi_flows *flows, int n_dims, size_t n_boxes);
void xfi_flows_free(xfi_flows *flows);
/* Copy the flows of a class into one block for both lists, since plans have many classes. */
xfer_status xfi_class_keep(xfi_class *cls, const xfi_flows *sends, const xfi_flows *recvs);
void xfi_class_free(xfi_class *cls);

#endif
