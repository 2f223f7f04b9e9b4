/* The direct lane's parts: made at commit by direct.c, used by runs in direct_run.c. */
#ifndef XFI_DIRECT_H
#define XFI_DIRECT_H

#include "link.h"
#include "quant.h"

/* The ways of a copy: by whom it is done. */
enum { XFI_PUSH, XFI_PULL };

/* Copies one way that wait for the same peers and run on one stream. */
typedef struct xfi_group {
  int way;
  int stream;                          /* index; -1: the caller's */
  xfi_batch *batches[XFI_QUANT_PARTS]; /* one after the other */
  xfi_batch *open;                     /* or this, where its copies go at once; or NULL */
  xfi_guard *guard;                    /* where the device has any */
  bool strict;                         /* they write a peer's memory, or read what may be freed */
  bool at_once;                        /* they go beside those of the other groups */
  /* Of the lane's watch.flags, peer_flags and `of`, from where the group before ends: */
  xfi_flags ready;        /* on our page */
  xfi_flags done;         /* on theirs */
  const xfi_link **links; /* [ready.n] */
} xfi_group;

/* Own flags that streams may be waiting for. */
typedef struct xfi_watch {
  xfi_alarm alarm;
  xfi_flags flags;
  uint64_t value;
  uint64_t *late; /* the first that its deadline was missed for; NULL: none */
  /* A word of our own on our page, void once such a wait was given up, for as long as the lane
   * lives: the peer may say after all that it is ready, and what its word lets go must not go. */
  uint64_t *given_up;
} xfi_watch;

struct xfi_direct {
  xfi_device *device;
  int rank; /* this one */
  xfi_links links;
  uint64_t bytes; /* that this rank copies */
  uint64_t *page; /* [n_ranks][XFI_WORDS]; NULL without links */
  xfi_group *groups;
  int n_groups;
  int percent;           /* of the device that each may have */
  uint64_t **peer_flags; /* DONE of all groups, then `tell` */
  const xfi_link **of;   /* whose the groups' are */
  xfi_flags tell;        /* READY on pages of peers that copy for us */
  xfi_flags await;       /* DONE on our page by the same peers */
  xfi_watch watch;       /* of READY of all groups, then `await` */
  xfer_stream *streams;
  xfi_event **ended; /* [n_streams] */
  int n_streams;
  xfi_event *turn; /* of the groups at the copy engine: whose peer is ready first does not overtake,
                      or several ranks would come to one peer; NULL: there is one group */
  /* Nobody waits for its runs: peers are told at the deadline itself, since what follows on the
   * stream writes what they may come to read. */
  bool tells_at_deadline;
  bool shares_queues; /* of the device, with another rank */
};

/* Rings when the deadline of a run has come: no stream waits any longer. */
int64_t xfi_direct_ring(xfi_alarm *alarm, int64_t now_ns);

/* All ranks take part, also one that has failed: *mine is what it came to so far, and becomes what
 * this rank's part came to. Maps what can be mapped; the rest is left to the packed lane. near:
 * [n_ranks]. */
xfer_status xfi_direct_create(xfi_direct **direct, xfer_plan *plan, const xfi_near *near,
                              xfer_status *mine, xfi_deadline deadline);
/* Nothing of a run may be on its way. */
void xfi_direct_destroy(xfi_direct *direct);
/* The same lane at other addresses, of this rank's memory or, once its links have moved, of peers'
 * too. */
xfer_status xfi_direct_move(xfi_direct *direct, const xfer_plan *plan);
/* Does a run under way read what its copies are made of? */
bool xfi_direct_is_read(const xfi_direct *direct);
/* Does a peer have to know where this rank's memory is? */
bool xfi_direct_has_flows(const xfi_direct *direct);
/* XFI_OF_*: the halves of what this rank bound that some peer has mapped. */
int xfi_direct_lends(const xfi_direct *direct);
/* Unmap what this rank has mapped of peers' sources, and does not read any more; true: there was
 * any, and the lane is of no more use. */
bool xfi_direct_drop_sources(xfi_direct *direct);
/* Is a flow carried directly? By index in plan->moves->sends.peers and recvs.peers. */
bool xfi_direct_carries(const xfi_direct *direct, bool send, size_t peer);
/* How a flow travels, in words, by index in plan->moves->sends.peers or recvs.peers; NULL: not
 * committed; `relay`: of the plan's relay. An xfi_way_fn of a plan. */
const char *xfi_direct_way(const void *plan, bool relay, bool send, size_t peer);

/* ---- direct_run.c ---- */

/* Enqueue: tell peers that this rank's memory is ready, copy, and tell them that it is done. */
xfer_status xfi_direct_start(xfi_direct *direct, xfer_plan *plan, xfer_stream stream);
/* Enqueue on `stream`: wait for this rank's copies. */
xfer_status xfi_direct_join(const xfi_direct *direct, xfer_stream stream);
/* Enqueue on `stream`: wait until peers have done theirs. */
xfer_status xfi_direct_finish(const xfi_direct *direct, const xfer_plan *plan, xfer_stream stream);
/* XFER_ERR_PEER with its name if a peer takes no part in run `epoch`. */
xfer_status xfi_direct_check(const xfi_direct *direct, uint64_t epoch);
/* Of a run whose work on this rank has ended: did all signals come? Names who was late. */
xfer_status xfi_direct_outcome(const xfi_direct *direct, const xfer_plan *plan);
/* Of a run: the peers whose signals have not come, besides those that are in `awaits`, [n_ranks].
 */
void xfi_direct_note(const xfi_direct *direct, uint64_t epoch, bool *awaits);
/* An xfi_purpose of a run's messages: has a peer left it? Then this rank's part comes to nothing
 * too, which its other peers hear from here. */
xfer_status xfi_direct_look(void *direct, uint64_t epoch);
/* This rank's streams wait for none of its peers any more. */
void xfi_direct_give_up(xfi_direct *direct, const xfer_plan *plan);
/* A run failed: tell peers, let this rank's streams go, and return once nobody touches its memory
 * any more. XFER_ERR_TIMEOUT names a peer that may still do. */
xfer_status xfi_direct_leave(xfi_direct *direct, const xfer_plan *plan, xfi_deadline deadline);

#endif
