/*
 * Links: what two ranks that may map each other's memory tell each other at commit, and the
 * mappings that result.
 */
#ifndef XFI_LINK_H
#define XFI_LINK_H

#include "bound_plan.h"
#include "bytes.h"
#include "order.h"

enum { XFI_WHY_BYTES = 160, XFI_WAY_BYTES = XFI_WHY_BYTES + 64 };

/* Instead of an index: there is no flow in that direction. */
#define XFI_NO_FLOW SIZE_MAX

/* An allocation of ours, as the peer knows it. */
typedef struct xfi_told {
  xfi_allocation at;
  int halves; /* XFI_OF_*: those that lie in it */
} xfi_told;

/* An allocation of a peer. */
typedef struct xfi_remote {
  uint64_t n_bytes;
  int halves;          /* likewise */
  xfi_mapping *mapped; /* ours; NULL until it is mapped */
} xfi_remote;

/* What each end of a link could map of its two flows. */
typedef struct xfi_verdict {
  unsigned char failed;
  unsigned char can_push;
  unsigned char can_pull;
  unsigned char can_signal; /* its page is mapped */
  char why[XFI_WHY_BYTES];  /* what could not be mapped last; empty: everything could */
} xfi_verdict;

/* Who copies a flow, as bits: its sender pushes, its receiver pulls, or each does a part. */
typedef enum xfi_by {
  XFI_BY_NOBODY = 0,
  XFI_BY_PUSH = 1,
  XFI_BY_PULL = 2,
  XFI_BY_BOTH = XFI_BY_PUSH | XFI_BY_PULL
} xfi_by;

/* The words of a rank's page about one peer. The peer writes them, except a word for which this
 * rank gives up waiting. */
enum {
  XFI_READY,                  /* the peer's memory may be accessed in run `epoch` */
  XFI_LEFT,                   /* void: the peer takes no part in this run, nor in a later one; our
                                 own: xfi_watch.given_up */
  XFI_STARTED,                /* the peer may be pushing; + 1: pulling */
  XFI_DONE = XFI_STARTED + 2, /* the peer has pushed; + 1: pulled */
  XFI_MET = XFI_DONE + 2,     /* the peer, on our device, has come to the first meeting of run
                                 `epoch`; + 1: to the second */
  XFI_WORDS = 8
};

static inline uint64_t *xfi_word(uint64_t *page, int rank, int which)
{
  return page + (size_t)rank * XFI_WORDS + which;
}

/* How near a rank is; each level includes what those before it allow. */
typedef enum xfi_near {
  XFI_FAR,
  XFI_SAME_HOST,    /* its memory may be mapped */
  XFI_SAME_PROCESS, /* when it is freed, our mapping is gone too */
  XFI_SAME_DEVICE   /* we share its queues, and may share a stream */
} xfi_near;

/* With how many peers a rank has flows, and with how many of them both ways. */
typedef struct xfi_flow_counts {
  uint32_t n_links;
  uint32_t n_both;
} xfi_flow_counts;

typedef struct xfi_links xfi_links;

/* One peer: both flows between us, and its half of each. */
typedef struct xfi_link {
  int rank;
  size_t send;    /* index in plan->moves->sends.peers; XFI_NO_FLOW: none */
  size_t recv;    /* likewise */
  xfi_by send_by; /* who copies what we send, */
  xfi_by recv_by; /* and what we receive */
  /* Of what we receive, and of what we send: */
  bool only_push[2];        /* only its sender can copy it */
  uint64_t pushed_bytes[2]; /* what its sender copies if both do */
  xfi_near near;
  const xfi_links *of; /* it is one of these */
  xfi_flow_counts their_counts;
  xfi_ranks their_ranks[2]; /* as the links' */
  xfi_told *told;           /* [n_told] our half of both flows, after the page */
  size_t n_told;
  size_t told_capacity;
  size_t n_own_places;     /* pieces of our half of both flows, */
  size_t n_own_src_places; /* of what we send first */

  /* During a commit: the bytes that we send to the peer and receive from it, and the verdicts. */
  xfi_bytes said;
  xfi_bytes heard;
  xfi_verdict ours;
  xfi_verdict theirs;
  char way[XFI_WAY_BYTES]; /* the explanation for a flow that nobody copies */

  xfi_remote *remotes; /* remotes[0] holds the peer's flag page, */
  size_t n_remotes;
  xfi_mem_handle page_handle; /* which has this handle */
  uint64_t page_offset;
  uint64_t *page; /* the peer's flags, mapped */
  /* The peer's: sources of what it sends us, then destinations of what we send. */
  xfi_bound *bounds;
  size_t n_bounds;
  size_t n_src_bounds;
  uint64_t (*places)[2]; /* (allocation, offset) of each piece of these, in order */
  size_t n_places;
  size_t n_src_places;
  size_t places_capacity;
} xfi_link;

/* Of this rank: */
struct xfi_links {
  xfi_link *at; /* by rising distance (rank - ours) modulo n_ranks */
  size_t n;
  xfi_flow_counts counts;
  xfi_ranks ranks[2];    /* from whom it gets much, and to whom it sends much, maybe itself */
  xfi_message *messages; /* [2 * n] to each link, then from each */
};

/* Does the sender, or the receiver, copy any of a flow? */
static inline bool xfi_pushes(xfi_by by)
{
  return (by & XFI_BY_PUSH) != 0;
}

static inline bool xfi_pulls(xfi_by by)
{
  return (by & XFI_BY_PULL) != 0;
}

/* The halves of the other end's memory that an end copies to or from: it pushes into destinations
 * of what goes out, and pulls from sources of what comes in. By whom these two are copied. */
static inline int xfi_halves_copied(xfi_by out, xfi_by in)
{
  return (xfi_pushes(out) ? XFI_OF_DST : 0) | (xfi_pulls(in) ? XFI_OF_SRC : 0);
}

/* Of the peer's memory by us, and of ours by the peer. */
static inline int xfi_link_halves_used(const xfi_link *link)
{
  return xfi_halves_copied(link->send_by, link->recv_by);
}

static inline int xfi_link_halves_lent(const xfi_link *link)
{
  return xfi_halves_copied(link->recv_by, link->send_by);
}

/* List the peers in reach with which this rank exchanges something, in any lane; if not directly,
 * the link only tells of their failures. near: [n_ranks]. */
xfer_status xfi_links_list(xfi_links *links, xfer_plan *plan, const xfi_near *near);
/* Note with which of them it exchanges much. */
xfer_status xfi_links_note_ranks(xfi_links *links, const xfer_plan *plan);
/* The link of a flow, by its index in the plan's sends or receives; NULL: there is none. */
const xfi_link *xfi_links_find(const xfi_links *links, bool send, size_t peer);
/* Is all memory of the peer's half of a flow mapped? */
bool xfi_link_is_mapped(const xfi_link *link, bool source);
/* Turn places into addresses in the mapped memory. */
void xfi_link_resolve(xfi_link *link);
/* If it is mapped. */
void xfi_remote_unmap(xfi_remote *remote, xfi_device *device);
/* Unmap the peer's sources, but for allocations that have destinations of ours as well; false: none
 * was mapped. */
bool xfi_link_drop_sources(xfi_link *link, xfi_device *device);
void xfi_links_destroy(xfi_links *links, xfi_device *device);

/* The moves of a flow that are not broadcast, one after the other, and where they lie on both
 * sides. */
typedef struct xfi_walk {
  const xfer_plan *plan;
  const xfi_link *link;
  bool send; /* from us */
  const xfi_move *next;
  const xfi_move *end;
  /* Both ends have a flow's moves in one order, so that the n-th tensor here is the n-th there,
   * whatever numbers they have. */
  size_t n_tensors;
  const xfi_move *move;
  const xfi_class *cls; /* its, */
  const xfi_flows *boxes;
  xfi_box box;
  xfi_end src;
  xfi_end dst;
} xfi_walk;
xfi_walk xfi_walk_begin(const xfer_plan *plan, const xfi_link *link, bool send);
/* False: there are no more moves, or *st is the error. */
bool xfi_walk_next(xfi_walk *walk, xfer_status *st);

/* ---- link_map.c ---- */

/* Make room for n bytes to send or receive. */
xfer_status xfi_link_make_room(xfi_bytes *bytes, const xfer_plan *plan, size_t n);
/* Exchange the `said` and `heard` of each link; empty ones are left out. */
xfer_status xfi_links_exchange(const xfi_links *links, const xfer_plan *plan,
                               xfi_deadline deadline);
/* Exchange descriptions, map, and decide who copies what. `page` is this rank's flag page, NULL
 * without links. All ranks, see xfi_direct_create(). */
xfer_status xfi_links_connect(xfi_links *links, xfer_plan *plan, uint64_t *page, xfer_status *mine,
                              xfi_deadline deadline);

/* ---- link_move.c ---- */

/* Keep the links if everything that was bound again differs only in its address, and exchange the
 * new places. *moved: all that this rank copies to and from is mapped already; otherwise the links
 * cannot be used any more. All ranks. */
xfer_status xfi_links_move(xfi_links *links, xfer_plan *plan, xfer_status *mine, bool *moved,
                           xfi_deadline deadline);

/* ---- link_choose.c ---- */

/* In how many allocations, of ours and of the peer's, these halves lie. */
size_t xfi_link_n_told(const xfi_link *link, int halves);
size_t xfi_link_n_remotes(const xfi_link *link, int halves);
/* Choose who should copy what: send_by and recv_by. */
xfer_status xfi_link_choose(xfi_link *link, const xfer_plan *plan);
/* Does the sender push this move of a flow that both ends copy? */
bool xfi_walk_is_pushed(const xfi_walk *walk);

/* ---- link_describe.c ---- */

/* Write to `said` what the peer must know of our half of both flows. */
xfer_status xfi_link_describe(xfi_link *link, const xfer_plan *plan, const uint64_t *page);
/* Write to `said` where our pieces are that the peer copies from or to; the room has been made. */
xfer_status xfi_link_tell(xfi_link *link, const xfer_plan *plan);
/* Read the peer's description from `heard`. Addresses stay places until they are mapped. */
xfer_status xfi_link_read(xfi_link *link);
/* Read where those are that we do. False: some lie in memory that the peer never described. */
bool xfi_link_read_places(xfi_link *link);

#endif
