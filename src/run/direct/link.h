/*
 * Links: what two ranks that may map each other's memory tell each other at commit, and the
 * mapping.
 */
#ifndef XFI_LINK_H
#define XFI_LINK_H

#include "bound_plan.h"
#include "bytes.h"

enum { XFI_WHY_BYTES = 160, XFI_WAY_BYTES = XFI_WHY_BYTES + 64 };

/* In place of an index: nothing goes that way. */
#define XFI_NO_FLOW SIZE_MAX

/* The halves of the two flows between two ranks, as bits: a rank's memory that it sends from, and
 * that it receives in. */
enum { XFI_OF_SRC = 1, XFI_OF_DST = 2 };

/* An allocation of ours, as the peer knows it. */
typedef struct xfi_told {
  xfi_allocation at;
  int halves; /* that lie in it */
} xfi_told;

/* An allocation of a peer. */
typedef struct xfi_remote {
  uint64_t n_bytes;
  int halves;          /* likewise */
  xfi_mapping *mapped; /* ours; NULL until it is mapped */
} xfi_remote;

/* What each end says of its attempts at the two flows of a link. */
typedef struct xfi_verdict {
  unsigned char failed;
  unsigned char can_push;
  unsigned char can_pull;
  unsigned char can_signal; /* its page is mapped */
  char why[XFI_WHY_BYTES];  /* the last thing that could not be mapped; empty: all could */
} xfi_verdict;

/* Who copies a flow, as bits: its sender pushes, its receiver pulls, or each a part of it. */
typedef enum xfi_by {
  XFI_BY_NOBODY = 0,
  XFI_BY_PUSH = 1,
  XFI_BY_PULL = 2,
  XFI_BY_BOTH = XFI_BY_PUSH | XFI_BY_PULL
} xfi_by;

/* The words of a rank's page about one peer. The peer writes them, but for one that this rank gives
 * up waiting for. */
enum {
  XFI_READY,                  /* the peer's memory may be accessed in run `epoch` */
  XFI_LEFT,                   /* void: the peer takes no part in this run, nor in a later one; our
                                 own: xfi_watch.given_up */
  XFI_STARTED,                /* the peer may be pushing; + 1: pulling */
  XFI_DONE = XFI_STARTED + 2, /* the peer has pushed; + 1: pulled */
  XFI_MET = XFI_DONE + 2,     /* the peer has come to run `epoch`, on a stream that we share */
  XFI_WORDS = 8
};

static inline uint64_t *xfi_word(uint64_t *page, int rank, int which)
{
  return page + (size_t)rank * XFI_WORDS + which;
}

/* How near a rank is. */
typedef enum xfi_near {
  XFI_FAR,
  XFI_SAME_HOST,    /* its memory may be mapped */
  XFI_SAME_PROCESS, /* and is gone for us, too, when it is freed */
  XFI_SAME_DEVICE   /* and we may share a stream */
} xfi_near;

/* How many peers a rank has flows with, and with how many of them both ways. */
typedef struct xfi_flow_counts {
  uint32_t n_links;
  uint32_t n_both;
} xfi_flow_counts;

/* One peer: both flows between us, and its half of each. */
typedef struct xfi_link {
  int rank;
  size_t send;    /* index in plan->moves->sends.peers; XFI_NO_FLOW: none */
  size_t recv;    /* likewise */
  xfi_by send_by; /* who copies what we send */
  xfi_by recv_by; /* and what we receive */
  /* Of what we receive, and of what we send: */
  bool only_push[2];        /* nobody but its sender can copy it */
  uint64_t pushed_bytes[2]; /* what its sender copies where both do */
  xfi_near near;
  xfi_flow_counts counts[2]; /* ours, the peer's */
  xfi_told *told;            /* [n_told] our half of both flows, after the page */
  size_t n_told;
  size_t told_capacity;
  size_t n_own_places; /* pieces of our half of both flows */

  /* During a commit: what we tell the peer, and it us, in bytes; and what came of it. */
  xfi_bytes said;
  xfi_bytes heard;
  xfi_verdict ours;
  xfi_verdict theirs;
  char way[XFI_WAY_BYTES]; /* what is said of a flow that nobody copies */

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

typedef struct xfi_links {
  /* By rising distance (rank - ours) modulo n_ranks: everybody starts with another peer. */
  xfi_link *at;
  size_t n;
  xfi_message *messages; /* [2 * n] to each link, then from each */
} xfi_links;

/* Does the sender, or the receiver, copy of a flow that `by` copies? */
static inline bool xfi_pushes(xfi_by by)
{
  return (by & XFI_BY_PUSH) != 0;
}

static inline bool xfi_pulls(xfi_by by)
{
  return (by & XFI_BY_PULL) != 0;
}

/* Peers in reach with which there is something to exchange, in whatever lane: where not directly,
 * only to hear of their failures. near: [n_ranks]. */
xfer_status xfi_links_list(xfi_links *links, xfer_plan *plan, const xfi_near *near);
/* The link of a flow, by its index in the plan's sends or receives; NULL: there is none. */
const xfi_link *xfi_links_find(const xfi_links *links, bool send, size_t peer);
/* Is all that the peer's half of a flow lies in mapped? */
bool xfi_link_is_mapped(const xfi_link *link, bool source);
/* From places to addresses, in what is mapped. */
void xfi_link_resolve(xfi_link *link);
/* Unmap the peer's sources; false: none was mapped. */
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
/* False: that was all, or *st says what is wrong. */
bool xfi_walk_next(xfi_walk *walk, xfer_status *st);

/* ---- link_map.c ---- */

/* Room for n bytes that are said or heard. */
xfer_status xfi_link_make_room(xfi_bytes *bytes, const xfer_plan *plan, size_t n);
/* What each link is said, where it is not empty, and what is heard from it. */
xfer_status xfi_links_exchange(const xfi_links *links, const xfer_plan *plan,
                               xfi_deadline deadline);
/* Exchange descriptions, map, and decide who copies what. `page` is this rank's flag page, NULL
 * without links. All ranks, see xfi_direct_create(). */
xfer_status xfi_links_connect(xfi_links *links, xfer_plan *plan, uint64_t *page, xfer_status *mine,
                              xfi_deadline deadline);

/* ---- link_move.c ---- */

/* The same links, where all that was bound anew is alike: hear where it is now. *moved: what this
 * rank copies to and from is mapped already; else the links are of no more use. All ranks. */
xfer_status xfi_links_move(xfi_links *links, xfer_plan *plan, xfer_status *mine, bool *moved,
                           xfi_deadline deadline);

/* ---- link_choose.c ---- */

/* How many allocations of ours, and of the peer's, some of these halves lie in. */
size_t xfi_link_n_told(const xfi_link *link, int halves);
size_t xfi_link_n_remotes(const xfi_link *link, int halves);
/* Who should copy what: send_by and recv_by. */
xfer_status xfi_link_choose(xfi_link *link, const xfer_plan *plan);
/* Does the sender push this move of a flow that is copied by both? */
bool xfi_walk_is_pushed(const xfi_walk *walk);

/* ---- link_describe.c ---- */

/* Say what the peer has to know of our half of both flows. */
xfer_status xfi_link_describe(xfi_link *link, const xfer_plan *plan, const uint64_t *page);
/* Say where its pieces are now, for which there is room. */
xfer_status xfi_link_tell(xfi_link *link, const xfer_plan *plan);
/* Take apart a description that was heard. Addresses stay as places until they are mapped. */
xfer_status xfi_link_read(xfi_link *link);
/* And where its pieces are now. False: some lie in what the peer never described. */
bool xfi_link_read_places(xfi_link *link);

#endif
