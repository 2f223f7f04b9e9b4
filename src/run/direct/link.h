/*
 * Links: what two ranks that may map each other's memory exchange at commit, and the mappings that
 * result.
 */
#ifndef XFI_LINK_H
#define XFI_LINK_H

#include "bound_plan.h"
#include "bytes.h"
#include "order.h"

enum { XFI_WHY_BYTES = 160, XFI_LANE_BYTES = XFI_WHY_BYTES + 64 };

/* Stands in place of an index where nothing goes in that direction. */
#define XFI_NO_TRANSFER SIZE_MAX

/* An allocation of this rank that was advertised to the peer. */
typedef struct xfi_advertised {
  xfi_allocation at;
  int sides; /* XFI_SIDE_*: which bound memory lies in it */
} xfi_advertised;

/* An allocation that the peer advertised. */
typedef struct xfi_remote {
  uint64_t n_bytes;
  int sides;           /* XFI_SIDE_*: which of the peer's bound memory lies in it */
  xfi_mapping *mapped; /* NULL: not mapped here */
} xfi_remote;

/* What one end of a link was able to map, sent to the other. */
typedef struct xfi_verdict {
  uint64_t n_bytes; /* of its description, which is sent next; 0: it has failed */
  unsigned char failed;
  unsigned char can_push;
  unsigned char can_pull;
  unsigned char can_signal; /* the other end's page is mapped */
  char why[XFI_WHY_BYTES];  /* the last thing that could not be mapped; empty: all could */
} xfi_verdict;

/* Who copies what goes from one end to the other, as bits: the sender pushes, the receiver pulls,
 * or each copies a part. */
typedef enum xfi_by {
  XFI_BY_NOBODY = 0,
  XFI_BY_PUSH = 1,
  XFI_BY_PULL = 2,
  XFI_BY_BOTH = XFI_BY_PUSH | XFI_BY_PULL
} xfi_by;

/* The words of a rank's page about one peer, whose values are numbers of runs (epochs). The peer
 * writes them; this rank writes a word only to end its own wait for it. */
enum {
  XFI_READY,   /* the peer's memory may be accessed in this run */
  XFI_ABORTED, /* void: the peer takes no part in this run or a later one. In the row of this rank
                  itself: xfi_watch.given_up */
  XFI_STARTED, /* the peer may be pushing in this run; + 1: pulling */
  XFI_DONE = XFI_STARTED + 2, /* the peer has pushed; + 1: pulled */
  XFI_BARRIER = XFI_DONE + 2, /* the peer, which uses our device too, has reached the first barrier
                                 of this run; + 1: the second */
  XFI_WORDS = 8
};

static inline uint64_t *xfi_word(uint64_t *page, int rank, int which)
{
  return page + (size_t)rank * XFI_WORDS + which;
}

/* How near a rank is. What is true of one level is true of all later levels. */
typedef enum xfi_near {
  XFI_FAR,
  XFI_SAME_HOST,    /* its memory can perhaps be mapped */
  XFI_SAME_PROCESS, /* memory that it frees is gone from our mappings too */
  XFI_SAME_DEVICE   /* we share the queues of the device, and perhaps a stream */
} xfi_near;

/* With how many peers a rank exchanges anything directly, and with how many in both directions. */
typedef struct xfi_peer_counts {
  uint32_t n_links;
  uint32_t n_both;
} xfi_peer_counts;

typedef struct xfi_links xfi_links;

/* What goes directly from one end of a link to the other. */
typedef struct xfi_link_transfer {
  size_t peer;           /* index in the peers of xfi_plan_moves(); XFI_NO_TRANSFER: nothing goes */
  xfi_by by;             /* who copies */
  bool only_push;        /* only the sender can copy */
  uint64_t pushed_bytes; /* bytes that the sender copies if both ends copy a part */
} xfi_link_transfer;

/* One peer, and what goes directly between it and this rank. Of each pair [0] is of the transfer
 * that we receive, [1] of the transfer that we send. A location is where a piece of a view lies:
 * (allocation, offset). */
typedef struct xfi_link {
  int rank;
  xfi_link_transfer transfer[2];
  xfi_near near;
  const xfi_links *links;       /* the list that this link is in */
  xfi_peer_counts their_counts; /* the peer's xfi_links.counts */
  xfi_ranks their_ranks[2];     /* the peer's xfi_links.ranks */

  /* What we advertised of our memory: the allocations, of which the first holds our page, and how
   * many locations our pieces have. The locations of what we send come first. */
  xfi_advertised *advertised; /* [n_advertised] */
  size_t n_advertised;
  size_t advertised_capacity;
  size_t n_own_locations;
  size_t n_own_src_locations;

  /* During a commit: the messages to the peer and from it, and what each end could map. */
  xfi_bytes send_buffer;
  xfi_bytes recv_buffer;
  xfi_verdict ours;
  xfi_verdict theirs;
  char lane[XFI_LANE_BYTES]; /* the lane of what nobody copies directly, and why, for reports */

  /* What the peer advertised of its memory. */
  xfi_remote *remotes; /* [n_remotes] allocations; the first holds the peer's page of flags */
  size_t n_remotes;
  xfi_mem_handle page_handle; /* handle of the allocation that holds that page */
  uint64_t page_offset;       /* where in that allocation the page begins */
  uint64_t *page;             /* the peer's flags, mapped */
  xfi_bound *bounds; /* [n_bounds] views: n_src_bounds of what it sends us, then of what we send */
  size_t n_bounds;
  size_t n_src_bounds;
  uint64_t (*locations)[2]; /* [n_locations] locations of all pieces of these views, in order */
  size_t n_locations;
  size_t n_src_locations;
  size_t locations_capacity;
} xfi_link;

/* All links of this rank. */
struct xfi_links {
  xfi_link *at; /* [n] links by rising distance (rank - ours) modulo n_ranks */
  size_t n;
  xfi_peer_counts counts;
  xfi_ranks ranks[2];    /* ranks from which this rank gets much, and ranks to which it sends much;
                            this rank may be one of them (order.h) */
  xfi_message *messages; /* [2 * n] a message to each peer, then one from each */
};

/* Does the sender, or the receiver, copy any of a transfer? */
static inline bool xfi_pushes(xfi_by by)
{
  return (by & XFI_BY_PUSH) != 0;
}

static inline bool xfi_pulls(xfi_by by)
{
  return (by & XFI_BY_PULL) != 0;
}

/* Which sides (XFI_SIDE_*) of the other end's memory an end accesses: destinations if it pushes
 * what goes out, sources if it pulls what comes in. `out` and `in` are who copies these. */
static inline int xfi_sides_copied(xfi_by out, xfi_by in)
{
  return (xfi_pushes(out) ? XFI_SIDE_DST : 0) | (xfi_pulls(in) ? XFI_SIDE_SRC : 0);
}

/* What we access of the peer's memory, and the peer of ours. */
static inline int xfi_link_sides_used(const xfi_link *link)
{
  return xfi_sides_copied(link->transfer[1].by, link->transfer[0].by);
}

static inline int xfi_link_sides_exported(const xfi_link *link)
{
  return xfi_sides_copied(link->transfer[0].by, link->transfer[1].by);
}

/* Make a link to each peer that is near enough and with which this rank exchanges anything, in any
 * lane: links over which nothing is copied still carry news of failures. near: [n_ranks]. */
xfer_status xfi_links_list(xfi_links *links, xfer_plan *plan, const xfi_near *near);
/* Fill links->ranks. */
xfer_status xfi_links_list_ranks(xfi_links *links, const xfer_plan *plan);
/* The link to the peer at an index of the plan's sends.peers or recvs.peers; NULL: none. */
const xfi_link *xfi_links_find(const xfi_links *links, bool send, size_t peer);
/* Which side (XFI_SIDE_*) of the peer's memory a location is of. */
static inline int xfi_link_side_of(const xfi_link *link, size_t location)
{
  return location < link->n_src_locations ? XFI_SIDE_SRC : XFI_SIDE_DST;
}

/* Is all bound memory of these sides (XFI_SIDE_*) of the peer's mapped? */
bool xfi_link_is_mapped(const xfi_link *link, int sides);
/* Turn the peer's locations into addresses in its mapped memory: fills link->bounds. */
void xfi_link_resolve(xfi_link *link);
/* Unmap an allocation of the peer's, if it is mapped. */
void xfi_remote_unmap(xfi_remote *remote, xfi_device *device);
/* Unmap the peer's sources, but no allocation that holds destinations which we write as well.
 * False: no source was mapped. */
bool xfi_link_drop_sources(xfi_link *link, xfi_device *device);
void xfi_links_destroy(xfi_links *links, xfi_device *device);

/* Iterates over the moves between the two ends of a link in one direction, without those that are
 * broadcast, and says where each lies on both sides. */
typedef struct xfi_walk {
  const xfer_plan *plan;
  const xfi_link *link;
  bool send; /* the moves go from this rank to the peer */
  const xfi_move *next;
  const xfi_move *end;
  /* Both ends have the moves in the same order, so the n-th tensor here is the n-th there, whatever
   * indices they have. */
  size_t n_tensors;
  const xfi_move *move; /* the present move, with its class, boxes, box and two ends */
  const xfi_class *cls;
  const xfi_flows *boxes;
  xfi_box box;
  xfi_end src;
  xfi_end dst;
} xfi_walk;
xfi_walk xfi_walk_begin(const xfer_plan *plan, const xfi_link *link, bool send);
/* False: there are no more moves, or *st is the error. */
bool xfi_walk_next(xfi_walk *walk, xfer_status *st);

/* ---- link_map.c ---- */

/* Make room for a message of n bytes. */
xfer_status xfi_link_make_room(xfi_bytes *bytes, const xfer_plan *plan, size_t n);
/* Send each link's send_buffer and receive its recv_buffer; empty ones are skipped. */
xfer_status xfi_links_exchange(const xfi_links *links, const xfer_plan *plan,
                               xfi_deadline deadline);
/* Exchange descriptions, map memory, and decide who copies what. `page` is this rank's page of
 * flags; NULL without links. Collective, as xfi_direct_create(). */
xfer_status xfi_links_connect(xfi_links *links, xfer_plan *plan, uint64_t *page, xfer_status *mine,
                              xfi_deadline deadline);

/* ---- link_rebind.c ---- */

/* After binds that changed nothing but addresses: exchange the new locations. *rebound is true if
 * all that this rank copies to and from is mapped already; if not, the links cannot be used any
 * more. Collective. */
xfer_status xfi_links_rebind(xfi_links *links, xfer_plan *plan, xfer_status *mine, bool *rebound,
                             xfi_deadline deadline);

/* ---- link_choose.c ---- */

/* How many allocations of ours, and of the peer's, hold memory of these sides (XFI_SIDE_*). */
size_t xfi_link_n_advertised(const xfi_link *link, int sides);
size_t xfi_link_n_remotes(const xfi_link *link, int sides);
/* Choose who copies the link's transfers: sets xfi_link_transfer.by. */
xfer_status xfi_link_choose(xfi_link *link, const xfer_plan *plan);
/* If both ends copy a part: does the sender push the present move? */
bool xfi_walk_is_pushed(const xfi_walk *walk);

/* ---- link_describe.c ---- */

/* Write to send_buffer what the peer must know of our memory: allocations, views and locations. */
xfer_status xfi_link_describe(xfi_link *link, const xfer_plan *plan, const uint64_t *page);
/* Write to send_buffer, which has room, only the locations of pieces that the peer copies from or
 * to.
 */
xfer_status xfi_link_describe_locations(xfi_link *link, const xfer_plan *plan);
/* Read the peer's description from recv_buffer; xfi_link_resolve() then makes addresses of it. */
xfer_status xfi_link_read(xfi_link *link);
/* Read the locations of pieces that we copy from or to. False: some lie in memory that the peer
 * never described. */
bool xfi_link_read_locations(xfi_link *link);

#endif
