/* The direct lane's parts: made at commit by direct.c, used by runs in direct_run.c. */
#ifndef XFI_DIRECT_H
#define XFI_DIRECT_H

#include "link.h"
#include "quant.h"

/* The two modes of a copy by this rank: it pushes into a peer's memory, or pulls out of it. */
enum { XFI_PUSH, XFI_PULL };

/* Copies in one direction that wait for the same peers and run on one stream. */
typedef struct xfi_group {
  int mode;                            /* XFI_PUSH or XFI_PULL */
  int stream;                          /* index of the lane's stream; -1: the caller's stream */
  xfi_batch *batches[XFI_QUANT_PARTS]; /* the copies, launched one after the other */
  xfi_batch *open;  /* launched instead if all peers are ready already; NULL: no batch is faster */
  xfi_guard *guard; /* NULL: the device has no guards */
  bool strict;      /* the copies write peers' memory, or read memory that may be freed meanwhile */
  bool at_once;     /* all groups copy together, since several ranks would visit one peer anyway */
  bool has_local;   /* the copies of the local lane are among them */
  /* Slices of the lane's watch.flags, peer_flags and group_links: */
  xfi_flags ready;        /* the peers' READY, on this rank's page */
  xfi_flags done;         /* DONE on the peers' pages */
  const xfi_link **links; /* [ready.n] the links to these peers */
} xfi_group;

/* Flags on this rank's page for which its streams may be waiting. */
typedef struct xfi_watch {
  xfi_alarm alarm; /* rings at the deadline of the run */
  xfi_flags flags;
  uint64_t value; /* the value that the flags are to reach */
  uint64_t *late; /* the first flag that missed the deadline; NULL: none */
  /* A word on this rank's page that becomes void once a wait was given up, and stays void while the
   * lane lives. All guards read it: if the peer sets READY after all, the copies that waited for it
   * must not be made. */
  uint64_t *given_up;
} xfi_watch;

struct xfi_direct {
  xfi_device *device;
  int rank; /* this rank */
  xfi_links links;
  uint64_t bytes; /* bytes that this rank copies */
  uint64_t *page; /* [n_ranks][XFI_WORDS] this rank's flags; NULL without links */
  xfi_group *groups;
  int n_groups;
  int percent;           /* most multiprocessors of the device that each group uses, in per cent */
  uint64_t **peer_flags; /* flags on peers' pages: DONE of all groups, then `announce` */
  const xfi_link **group_links; /* links of all groups */
  xfi_flags announce;           /* READY on the pages of peers that copy to or from our memory */
  xfi_flags await;              /* DONE of these peers on our page */
  xfi_watch watch;              /* READY of all groups, then `await` */
  xfer_stream *streams;
  xfi_event **ended; /* [n_streams] where each stream's copies ended */
  int n_streams;
  xfi_event *turn; /* keeps the order of the groups on the copy engine, also where a later peer is
                      ready first: else several ranks would copy from one peer. NULL: one group */
  /* Nobody waits for the runs, so peers learn of a failure at the deadline itself: later work on
   * the caller's stream may write what they still read. */
  bool aborts_at_deadline;
  bool shares_queues; /* another rank uses the same queues of the device */
};

/* The alarm of a run's deadline, which ends all waits of streams. */
int64_t xfi_direct_ring(xfi_alarm *alarm, int64_t now_ns);

/* Maps what can be mapped, and leaves the rest to the packed lane. Collective, also for a rank that
 * has failed before: *mine is its status so far, and becomes the status of its part in this
 * call. `near` has shape [n_ranks]. */
xfer_status xfi_direct_create(xfi_direct **direct, xfer_plan *plan, const xfi_near *near,
                              xfer_status *mine, xfi_deadline deadline);
/* Called when no run is under way. */
void xfi_direct_destroy(xfi_direct *direct);
/* Gives the lane the addresses of what this rank has bound now, and of what peers have, once
 * xfi_links_rebind() has exchanged these. */
xfer_status xfi_direct_rebind(xfi_direct *direct, const xfer_plan *plan);
/* Does a run under way read the batches? */
bool xfi_direct_is_read(const xfi_direct *direct);
/* XFI_SIDE_*: which sides of this rank's bound memory some peer has mapped. */
int xfi_direct_sides_exported(const xfi_direct *direct);
/* Unmap peers' sources, which nothing reads any more. True: some were mapped, and the lane cannot
 * be used again. */
bool xfi_direct_drop_sources(xfi_direct *direct);
/* Does the direct lane carry what goes to, or comes from, a peer? `peer` is an index in the plan's
 * sends.peers or recvs.peers. */
bool xfi_direct_carries(const xfi_direct *direct, bool send, size_t peer);
/* How the transfer to or from a peer travels, in words for reports: an xfi_lane_fn of a plan or,
 * with `relay`, of its relay. NULL: not committed. */
const char *xfi_direct_lane(const void *plan, bool relay, bool send, size_t peer);

/* ---- direct_run.c ---- */

/* Enqueue: set READY on peers' pages, make this rank's copies, and set DONE on peers' pages. */
xfer_status xfi_direct_start(xfi_direct *direct, xfer_plan *plan, xfer_stream stream);
/* Enqueue on `stream`: wait for this rank's copies, which run on other streams. */
xfer_status xfi_direct_join(const xfi_direct *direct, xfer_stream stream);
/* Enqueue on `stream`: wait for the copies of peers. */
xfer_status xfi_direct_finish(const xfi_direct *direct, const xfer_plan *plan, xfer_stream stream);
/* XFER_ERR_PEER if a peer takes no part in run `epoch`. The text names one that failed by itself,
 * if this rank is linked to such a one. */
xfer_status xfi_direct_check(const xfi_direct *direct, uint64_t epoch);
/* After a run's work on this rank has ended: did all signals come? The text names who was late. */
xfer_status xfi_direct_outcome(const xfi_direct *direct, const xfer_plan *plan);
/* Set awaits[rank] for each peer whose flags of a run are missing. */
void xfi_direct_add_awaited(const xfi_direct *direct, uint64_t epoch, bool *awaits);
/* The xfi_cancellation of a run's messages. XFER_ERR_PEER if a peer has aborted the run: then this
 * rank's part fails too, and its other peers learn of it here. */
xfer_status xfi_direct_propagate_abort(void *direct, uint64_t epoch);
/* After a run has failed with the status `why`: abort it on the peers, and then end the waits of
 * this rank's streams. Does not wait itself, and may be called again. */
void xfi_direct_give_up(xfi_direct *direct, const xfer_plan *plan, xfer_status why);
/* The same, and return once no peer copies to or from this rank's memory any more. XFER_ERR_TIMEOUT
 * names a peer that may still do so. */
xfer_status xfi_direct_abort(xfi_direct *direct, const xfer_plan *plan, xfer_status why,
                             xfi_deadline deadline);

#endif
