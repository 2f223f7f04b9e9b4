/*
 * Plans: for one rank, which boxes of which tensors go to and come from whom. A pure function of
 * metadata: both ends of a pair derive the same list in the same order, with no negotiation.
 *
 * Tensors with equal (source layout, destination layout) form a *class*. Overlaps of parts are
 * found once per class (*flows*) and only instantiated per tensor (*moves*), so cost follows a
 * rank's own moves.
 */
#ifndef XFI_PLAN_H
#define XFI_PLAN_H

#include "layout.h"

/* Of the plan's options, those that decide who sends what to whom. */
typedef struct xfi_plan_options {
  uint32_t lane; /* xfer_lane */
  uint32_t ranks_per_domain;
  /* xfi_plan.order, where both ends of a pair have it by other numbers; NULL: made. Read by create
   * only. */
  const uint32_t *order;
} xfi_plan_options;

/* A box and where it lies in both parts. Everything counts elements. */
typedef struct xfi_box {
  int64_t lo[XFER_MAX_DIMS]; /* global */
  int64_t length[XFER_MAX_DIMS];
  int64_t src_local[XFER_MAX_DIMS];
  int64_t dst_local[XFER_MAX_DIMS];
  uint32_t unit; /* of the other side, if that is by boxes: its local index counts from there, until
                    xfi_move_box() knows the rank */
} xfi_box;

/* Ranks of one domain that hold the same destination part, and none of which has the source part
 * that it comes from: it comes to them once (relay.c). */
typedef struct xfi_sharers {
  int n;     /* 1 or less: it is not shared */
  int index; /* of the rank that is looked at, among them by rank */
} xfi_sharers;

/* What a part of this rank's exchanges with one part of the other side: boxes[first .. first + n),
 * ascending in `lo`. */
typedef struct xfi_flow {
  uint32_t mine;
  int my_replica; /* of it */
  uint32_t part;  /* of the other side */
  uint32_t first;
  uint32_t n;
  xfi_sharers sharers; /* of receives */
} xfi_flow;

/* Boxes take words for the dims there are, since plans have many: `unit`, then n_dims each of `lo`,
 * `length`, `src_local`, `dst_local`. */
typedef struct xfi_flows {
  xfi_flow *at;
  size_t n;
  size_t capacity;
  int n_dims;
  int64_t *boxes; /* [n_boxes][1 + 4 n_dims] */
  size_t n_boxes;
  size_t boxes_capacity; /* words */
} xfi_flows;

typedef struct xfi_class {
  const xfer_layout *src; /* owned by the class's first tensor */
  const xfer_layout *dst;
  xfer_conversion conversion;
  int wire_bytes; /* of an element on its way: the source narrows, the destination widens. Counts of
                     bytes below are of these */
  size_t first_tensor; /* for errors */
  size_t n_tensors;
  uint32_t first_ordinal; /* of its tensors */
  bool broadcast;         /* takes the broadcast lane */
  bool is_filled;         /* all below is known */
  bool in_src;            /* this rank is in its mesh */
  bool in_dst;
  xfi_place src_place; /* by placements */
  xfi_place dst_place;
  xfi_flows sends;     /* from this rank's source part */
  xfi_flows recvs;     /* into its destination part */
  void *memory;        /* of both, as much as they need; NULL: they are the scratch's */
  uint64_t dst_bytes;  /* of this rank's destination part, ZERO elements included */
  uint64_t zero_bytes; /* of these, ZERO elements */
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
  uint32_t box; /* in the class's sends or recvs */
  uint16_t stripe;
  uint16_t n_stripes;
} xfi_move;

/* All moves with one peer, in the order both ends have them: moves[first .. first + n). */
typedef struct xfi_peer {
  int rank;
  size_t first;
  size_t n;
  uint64_t n_bytes; /* of those that do not take the broadcast lane */
} xfi_peer;

typedef struct xfi_move_list {
  xfi_move *moves;
  size_t n_moves;
  size_t capacity;
  xfi_peer *peers; /* ascending rank; this rank itself is never one */
  size_t n_peers;
} xfi_move_list;

typedef struct xfi_plan {
  int n_ranks;
  int rank;
  xfi_plan_options options;
  xfi_tensor *tensors; /* [n_tensors] */
  size_t n_tensors;
  uint32_t *order; /* [n_tensors] by wire_bytes, largest first, then index: streams stay aligned */
  xfi_class *classes;
  size_t n_classes;
  xfi_move_list sends;
  xfi_move_list recvs;
  xfi_move_list selfs; /* boxes of recvs; no peers */
  uint64_t payload_bytes;
  uint64_t in_bytes; /* zero and self included */
  uint64_t self_bytes;
  uint64_t zero_bytes;
  uint64_t out_bytes;
  size_t n_broadcast;     /* tensors that take the broadcast lane */
  size_t n_converted;     /* tensors with a conversion */
  struct xfi_plan *relay; /* see relay.c; NULL: no domains */
} xfi_plan;

/* tensors: both layouts known. Copied. */
xfer_status xfi_plan_create(xfi_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                            size_t n_tensors, const xfi_plan_options *options);
/* The same without moves: tensors checked and sorted into classes, which are not filled. */
xfer_status xfi_plan_classify(xfi_plan **plan, int n_ranks, int rank, const xfer_tensor *tensors,
                              size_t n_tensors, const xfi_plan_options *options);
void xfi_plan_destroy(xfi_plan *plan);

/* Sets plan->order: largest elements first, so that packed streams never misalign one; or as
 * given. */
xfer_status xfi_plan_set_order(xfi_plan *plan, const uint32_t *given);

static inline const xfi_class *xfi_plan_class(const xfi_plan *plan, size_t tensor)
{
  return &plan->classes[plan->tensors[tensor].class_index];
}

/* Does the source convert what travels? Else the destination does. */
static inline bool xfi_class_narrows(const xfi_class *cls)
{
  return cls->conversion != 0 && cls->wire_bytes == cls->dst->elem_bytes;
}

/* A move's box with its stripe applied, and where it lies on both ranks. `flows` is what move->box
 * counts in. */
void xfi_move_box(xfi_box *box, const xfi_class *cls, const xfi_flows *flows, const xfi_move *move);
uint64_t xfi_move_bytes(const xfi_class *cls, const xfi_flows *flows, const xfi_move *move);
/* Where a box of `layout` lies on `rank`, from where it lies in its unit. */
void xfi_box_resolve(int64_t *local, uint32_t unit, const xfer_layout *layout, int rank);
/* Elements of a box. */
int64_t xfi_box_elems(const int64_t *length, int n_dims);

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
/* In place of the one that is there, or of the next one, for which there is room. */
void xfi_flows_put(xfi_flows *flows, size_t at, const xfi_box *box);
/* Room for so many boxes in all; of no other number of dims than before. */
xfer_status xfi_flows_reserve(xfi_flows *flows, int n_dims, size_t n_boxes);
void xfi_flows_free(xfi_flows *flows);
/* The flows of a class, copied: one block for both, since plans have many. */
xfer_status xfi_class_keep(xfi_class *cls, const xfi_flows *sends, const xfi_flows *recvs);

/* ---- classes (class.c) ---- */

/* What classes are filled with, one after the other; zero at first. */
typedef struct xfi_scratch xfi_scratch;

/* Fill sends and recvs of a class for the plan's rank, and prove that recvs tile its part. */
xfer_status xfi_class_fill(xfi_class *cls, const xfi_plan *plan, xfi_scratch *scratch);
/* Is the rank in the destination's mesh? Sets in_dst and dst_place. */
bool xfi_class_find_dst(xfi_class *cls, int rank);
/* Of a class that has this rank there: its receiving half, which lies in the scratch until another
 * class is filled. */
xfer_status xfi_class_fill_receives(xfi_class *cls, const xfi_plan *plan, xfi_scratch *scratch);
void xfi_class_free(xfi_class *cls);
/* Every source part of a class, whoever holds it: one flow each, whose boxes are what it is read
 * from; by boxes, their units are the source's. */
xfer_status xfi_class_sources(xfi_flows *flows, const xfi_class *cls);

/* ---- who sends what to whom (choose.c) ---- */

/* How many stripes a box of this length is cut into, one of n_replicas sources and to one of
 * n_sharers each. */
int xfi_stripe_count(const xfi_class *cls, const int64_t *length, int n_replicas, int n_sharers);

/* A stripe of a box of a flow, for one tensor and destination. */
typedef struct xfi_turn {
  uint32_t ordinal; /* of the tensor */
  size_t box;       /* in the flow */
  int stripe;
  int n_stripes;
  uint32_t src_part;
  uint32_t dst_part;
  int dst_replica;
} xfi_turn;

/* The replica of the source part whose turn it is. */
int xfi_choose_replica(const xfi_class *cls, const xfi_turn *turn);

/* The ranks of a rank's domain: [*first, *end). Where there are domains. */
void xfi_domain_of(int *first, int *end, const xfi_plan *plan, int rank);
/* How many of them hold a source part. */
int xfi_count_near(const xfi_plan *plan, const xfer_layout *src, uint32_t part, int rank);

/* The rank that sends to dst_rank. */
int xfi_choose_source(const xfi_plan *plan, const xfi_class *cls, const xfi_turn *turn,
                      int dst_rank);

/* ---- once per domain (relay.c) ---- */

/* Those that share with `rank` what comes from the source part to its destination part. */
xfi_sharers xfi_find_sharers(const xfi_plan *plan, const xfi_class *cls, uint32_t src_part,
                             uint32_t dst_part, int rank);
/* What stands for a rank's replica in turns of what it shares: its domain, as all that share have
 * the same sources. */
int xfi_turn_replica(const xfi_plan *plan, xfi_sharers sharers, int rank, int replica);
/* The index of the one that takes a stripe. */
int xfi_taker(const xfi_class *cls, const xfi_turn *turn, int n_sharers);
/* The rank with that index among those that share with `rank`. */
int xfi_sharer(const xfi_plan *plan, const xfi_class *cls, uint32_t dst_part, int rank, int index);
/* Make plan->relay of a plan with all its moves. */
xfer_status xfi_relay_fill(xfi_plan *plan);

/* ---- conversions (conversion.c) ---- */

typedef enum xfi_kind {
  XFI_KIND_NONE = 0, /* their numbers are part of what ranks agree on */
  XFI_KIND_CAST = 1,
  XFI_KIND_SCALE = 2,
  XFI_KIND_ADD = 3,
  XFI_KIND_BLOCKS = 4, /* to f8e4m3 with a scale for each block; see scales.h */
  XFI_KIND_SCALES = 5  /* the scales of such a tensor */
} xfi_kind;

xfer_conversion xfi_conversion_make(xfi_kind kind, float value);
xfer_conversion xfi_conversion_of_blocks(uint32_t rows, uint32_t columns, uint32_t scale);
xfer_conversion xfi_conversion_of_scales(size_t tensor);
xfi_kind xfi_conversion_kind(xfer_conversion c);
float xfi_conversion_value(xfer_conversion c);
/* Of blocks; `scale`: an xfer_block_scale. */
uint32_t xfi_conversion_rows(xfer_conversion c);
uint32_t xfi_conversion_columns(xfer_conversion c);
uint32_t xfi_conversion_scale(xfer_conversion c);
/* Of scales: whose. */
size_t xfi_conversion_tensor(xfer_conversion c);
/* A cast that changes nothing is none; so are scales as they are, and of others it is the same
 * whose they are. */
xfer_conversion xfi_conversion_settle(xfer_conversion given, const xfer_layout *src,
                                      const xfer_layout *dst);
/* Does it say a kind, and nothing that the kind does not have? */
bool xfi_conversion_is_known(xfer_conversion c);
/* The same as a status, and is its value one? */
xfer_status xfi_conversion_check(xfer_conversion c, const char *name);
/* Does it go from one layout's dtype to the other's? */
xfer_status xfi_conversion_fits(xfer_conversion c, const xfer_layout *src, const xfer_layout *dst,
                                const char *name);
/* In words: "cast", "scale 0.5"; empty: none. */
void xfi_conversion_format(char *text, size_t n, xfer_conversion c);

/* ---- as text (print.c) ---- */

/* The lists of a plan's moves, in the order in which they are told. */
typedef struct xfi_listing {
  const xfi_move_list *list;
  const xfi_plan *of; /* the plan or its relay */
  bool send;
} xfi_listing;
enum { XFI_LISTINGS = 5 };
/* How many there are. */
int xfi_plan_listings(xfi_listing lists[XFI_LISTINGS], const xfi_plan *plan);
/* A move of one of them, and its bytes as they are counted. */
uint64_t xfi_listing_box(xfi_box *box, const xfi_listing *from, const xfi_plan *plan,
                         const xfi_move *move);

/* How data travels to or from sends.peers[peer] or recvs.peers[peer] of a plan or of its relay;
 * NULL: that is not settled. */
typedef const char *(*xfi_way_fn)(const void *context, bool relay, bool send, size_t peer);

xfer_status xfi_plan_print(const xfi_plan *plan, const xfer_plan_report_data *report,
                           xfi_way_fn way, const void *context, char **text, bool json);

#endif
