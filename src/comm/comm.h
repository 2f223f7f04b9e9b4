/*
 * How bytes travel between ranks: the transport, which knows nothing of tensors. run/ and agree/
 * use this table alone; comm/threads.c, comm/host.c, comm/mpi.c and comm/nccl.c fill it in.
 *
 * Every rank of the comm makes the same calls in the same order, except exchange(), round() and
 * carry_channels(): only ranks that have messages make these, the two ends of a pair in the same
 * order. Every wait ends at its deadline with XFER_ERR_TIMEOUT and a text that names the peer.
 * After a failure the comm is broken: later calls fail at once with XFER_ERR_COMM on all ranks that
 * can be reached.
 */
#ifndef XFI_COMM_H
#define XFI_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"
#include "error.h"
#include "plugin_api.h"
#include "xfer/xfer.h"

/* One message of an exchange or a round. Its size is the same on both ends, and above 0. */
typedef struct xfi_message {
  void *data; /* memory of the message, which a send only reads */
  size_t n_bytes;
  int peer; /* the other rank, never this one */
} xfi_message;

/* The messages of one call: at most one to and one from each peer, unless the comm takes_several;
 * those from one rank to another are then in the same order on both. */
typedef struct xfi_messages {
  const xfi_message *sends;
  int n_sends;
  const xfi_message *recvs;
  int n_recvs;
} xfi_messages;

/* Most messages of one round, sends plus receives: larger NCCL groups have deadlocked. */
#define XFI_ROUND_MESSAGES 64

/* Most bytes of one message. */
#define XFI_MESSAGE_BYTES ((size_t)1 << 30)

/* A channel carries bytes in order from this rank to a peer, or from it, through a few slots of
 * memory that the two share. */
typedef struct xfi_channel {
  int peer; /* at most one channel each way per peer */
  bool send;
  uint64_t n_bytes; /* bytes to carry, the same on both ends; above 0 */
  uint64_t n_done;  /* bytes carried so far: the caller sets 0, and the comm counts */
  size_t next_same; /* index of the next channel that sends the same bytes as this one; they are put
                       into slots once, for the first of such channels. 0: none */
  bool is_again;    /* this channel is the next_same of an earlier one */
} xfi_channel;

/* Copies the channel's next n_bytes into the slot, or out of it. */
typedef void xfi_carry_fn(void *context, size_t channel, char *slot, size_t n_bytes);

/* Channels that are carried together. */
typedef struct xfi_channel_set {
  xfi_channel *channels; /* [n] */
  size_t n;
  size_t slot_bytes; /* most bytes of a slot; the same on both ends */
  xfi_carry_fn *carry;
  void *context; /* passed to `carry` */
} xfi_channel_set;

#define XFI_CHANNEL_SLOTS 4

/* Most bytes of a slot: small enough that the slots of several peers stay in a core's cache. */
#define XFI_CHANNEL_SLOT_BYTES ((size_t)64 << 10)

typedef struct xfi_comm xfi_comm;
typedef struct xfi_shared xfi_shared; /* segment.h */

/* What the two ends of a message or a channel must agree on. */
typedef enum xfi_carry_call {
  XFI_OF_CHANNELS,
  XFI_OF_EXCHANGE,
  XFI_OF_ROUND,
  XFI_OF_BROADCAST
} xfi_carry_call;
/* A run whose messages other ranks may have sent, though this one refuses it. All 0: another one.
 */
typedef struct xfi_run_id {
  uint64_t sequence; /* its number, see xfi_run_take_sequence() */
  uint64_t lanes;    /* the number of its lanes, by which ranks refuse it */
} xfi_run_id;
typedef struct xfi_envelope {
  xfi_carry_call call; /* the call that the bytes belong to */
  uint64_t n_bytes;
  xfi_run_id run; /* the run that they belong to */
} xfi_envelope;
/* XFER_ERR_MISMATCH unless what `from` sends is what `to` expects. */
XFI_PLUGIN_API xfer_status xfi_envelope_check(xfi_envelope sent, int from, xfi_envelope expected,
                                              int to);

/* Gather host memory of all ranks into `all`, of shape [size, n_bytes]; blocks. */
typedef xfer_status xfi_all_gather_fn(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                                      xfi_deadline deadline);
/* Exchange any number of control messages between pairs, in host memory; blocks until all are sent
 * and received. */
typedef xfer_status xfi_exchange_fn(xfi_comm *comm, const xfi_messages *messages,
                                    xfi_deadline deadline);
/* One bounded exchange of data in device memory: at most XFI_ROUND_MESSAGES messages of at most
 * XFI_MESSAGE_BYTES each. Ordered on `stream`. */
typedef xfer_status xfi_round_fn(xfi_comm *comm, const xfi_messages *messages, xfer_stream stream,
                                 xfi_deadline deadline);
/* All ranks: copy the root's bytes of each message to everybody's `data`; `peer` is ignored. The
 * same limits as a round. Ordered on `stream`. */
typedef xfer_status xfi_broadcast_fn(xfi_comm *comm, const xfi_message *messages, int n, int root,
                                     xfer_stream stream, xfi_deadline deadline);

/* How many of the runs that a rank has refused the others remember, and of the plans that it has
 * destroyed: the last ones of each kind, so that a plan is not forgotten for later runs. */
#define XFI_REFUSALS 16
/* A bit set in a plan's number where a run's could be: the rank has destroyed that plan. */
#define XFI_DESTROYED (UINT64_C(1) << 63)
/* The kind of what is refused: 0 a run, 1 a plan that is destroyed. */
#define XFI_KINDS 2
#define XFI_KIND_OF(what) ((what) >> 63)

typedef struct xfi_comm_ops {
  bool recv_direct;   /* data may be received straight into the caller's tensors */
  bool takes_several; /* a round may have several messages from one rank to another */
  size_t fast_unit;   /* messages are slow unless they begin at multiples of it; 0: anywhere */

  void (*destroy)(xfi_comm *comm);

  xfi_all_gather_fn *all_gather;
  xfi_exchange_fn *exchange; /* NULL: not needed, since ranks never map each other's memory */
  xfi_round_fn *round;       /* NULL, with broadcast: only peers' mapped memory can be reached */
  xfi_broadcast_fn *broadcast;
  /* Whether this rank shares memory with the peer: the same on both ends, for the comm's whole
   * life. NULL: with none. */
  bool (*shares)(const xfi_comm *comm, int peer);
  /* Carry all bytes of some channels, in any order between channels. When it returns, sent bytes
   * may still be in slots; but only `carry` touches the caller's memory, so that is free again. */
  xfer_status (*carry_channels)(xfi_comm *comm, const xfi_channel_set *all, xfi_deadline deadline);
  /* Begin to send, without waiting, as far as slots are free; only channels to a single peer. The
   * next call for these channels must be carry_channels(), or carry_undo(); after the latter all
   * ranks complete another collective call before any of them carries. */
  void (*carry_begin)(xfi_comm *comm, const xfi_channel_set *all);
  void (*carry_undo)(xfi_comm *comm, const xfi_channel_set *all);
  /* All ranks, before the first run and after abort_data(): make the connections that are otherwise
   * made by the first message, to the ranks of peers[] and, if asked, for broadcasts. NULL: nothing
   * to do. */
  xfer_status (*connect)(xfi_comm *comm, const bool *peers, bool broadcasts, xfi_deadline deadline);
  /* XFER_ERR_COMM with its text if the comm is known to be broken on this rank. Does not wait. */
  xfer_status (*check)(xfi_comm *comm);
  /* Break the comm: pending and later calls fail on every rank that can be reached. Any thread;
   * over MPI only the thread that makes the comm's calls. */
  void (*abort)(xfi_comm *comm, const char *why);
  /* For a rank that does not take part in the gathering that comes next, and is about to abort():
   * tell those who come to it by the deadline why. By the thread that makes the comm's calls. NULL:
   * abort() tells. */
  void (*decline)(xfi_comm *comm, const char *why, xfi_deadline deadline);
  /* Cancel this rank's rounds and broadcasts, also on the device. If data has connections of its
   * own, gathering and exchanging go on and connect() makes new ones; otherwise this is abort().
   * NULL: there are no rounds. */
  void (*abort_data)(xfi_comm *comm, const char *why);
  /* XFER_OK if no rounds were cancelled since *n_data_aborts of the comm was n_aborts. NULL: none
   * can be, and each has succeeded or failed when it returns. */
  xfer_status (*check_data)(xfi_comm *comm, uint64_t n_aborts);
  /* Tell all ranks that this one takes no part in the messages of a run, given by the number of its
   * lanes; or, given XFI_DESTROYED | its number, that this rank has destroyed a plan and comes
   * neither to a commit, nor to its next run, nor to the wait for that. A rank that waits there
   * fails, which breaks the comm; if none does, nothing is broken. If the ranks cannot be told,
   * this may break the comm. No run is refused where messages can be cancelled. */
  void (*refuse)(xfi_comm *comm, uint64_t what, const char *why);
  /* XFER_ERR_PEER, with its text, if a rank has refused `what`; nobody refuses 0. */
  xfer_status (*check_refused)(xfi_comm *comm, uint64_t what);
  /* Drop the cancellation checks with this context of rounds in flight. NULL: nothing is checked.
   */
  void (*unwatch)(xfi_comm *comm, const void *context);
} xfi_comm_ops;

/* Whether a round or broadcast is to be cancelled, because a peer takes no part in the run:
 * `check`, which any thread calls, then fails. NULL: never. */
typedef struct xfi_cancellation {
  xfer_status (*check)(void *context, uint64_t number);
  void *context;
  uint64_t number;
} xfi_cancellation;

/* The public call that a rank is in: for error texts, and so that the caller's own all-gather is
 * not taken for one inside another call. */
typedef enum xfi_inside {
  XFI_INSIDE_ANOTHER,
  XFI_INSIDE_ALL_GATHER,
  XFI_INSIDE_REGISTER,
  XFI_INSIDE_UNREGISTER,
  XFI_INSIDE_PLAN_CREATE,
  XFI_INSIDE_PLAN_EXCHANGE,
  XFI_INSIDE_COMMIT,
  XFI_INSIDE_WAIT,
  XFI_INSIDE_RELEASE,
  XFI_INSIDE_DIGEST,
  XFI_INSIDE_REPLICAS,
  XFI_INSIDE_REDISTRIBUTE,
  XFI_INSIDE_EXCHANGE,
  XFI_INSIDE_RUN
} xfi_inside;

struct xfi_comm {
  const xfi_comm_ops *ops;
  int rank;
  int size;
  bool shares_all; /* every rank shares memory with every other; the same on all ranks */
  bool has_cores;  /* every rank of the host has a core of its own, as far as is known */
  /* Set by a failed call whose messages could not be cancelled: memory that was given to round() or
   * broadcast() may still be read or written and must be leaked, not freed. */
  bool holds_memory;
  uint64_t n_gatherings; /* gatherings made by xfi_comm_gather() */
  xfi_shared *waits;     /* memory in which ranks publish for whom they wait (late.h); NULL: none */
  /* How often abort_data() has cancelled rounds on this rank; NULL, as check_data is then: none can
   * be cancelled. */
  const _Atomic uint64_t *n_data_aborts;
  xfi_inside inside;
  xfi_run_id run; /* the run whose messages are next */
  uint64_t plan;  /* number of the plan that a commit, run or wait is for, see refuse */
  xfi_cancellation cancellation;     /* when to cancel the next rounds and broadcasts */
  bool refuses;                      /* the next call that checks xfi_comm_refused() fails, */
  char refusal[XFI_ERROR_BYTES + 4]; /* with this text, which is cut like any error text */
};

/* Can messages that were handed to the comm be cancelled? Where they cannot, ranks can refuse a
 * single run, whose messages nobody then takes. */
static inline bool xfi_comm_can_cancel(const xfi_comm *comm)
{
  return comm->n_data_aborts != NULL;
}

/* The envelope of what this rank sends or expects now. A run that failed may leave messages behind,
 * and the sequence number keeps another run from taking them for its own. An exchange is part of no
 * run. */
static inline xfi_envelope xfi_comm_envelope(const xfi_comm *comm, xfi_carry_call call,
                                             uint64_t n_bytes)
{
  return (xfi_envelope){call, n_bytes, call == XFI_OF_EXCHANGE ? (xfi_run_id){0, 0} : comm->run};
}

/* This library's version. The messages between ranks may differ in every version. */
#define XFI_VERSION                                                                                \
  ((uint32_t)XFER_VERSION_MAJOR << 20 | XFER_VERSION_MINOR << 10 | XFER_VERSION_PATCH)

/* Identifies a gathering: how many bytes each rank contributes, its number if the transport counts
 * gatherings, the public call, and the XFI_VERSION. Equal on all ranks. */
typedef struct xfi_gathering {
  uint64_t n_bytes;
  uint64_t number;
  uint32_t inside;
  uint32_t version;
} xfi_gathering;

/* The gathering that this rank is in. */
static inline xfi_gathering xfi_comm_gathering(const xfi_comm *comm, size_t n_bytes,
                                               uint64_t number)
{
  return (xfi_gathering){n_bytes, number, (uint32_t)comm->inside, XFI_VERSION};
}

/* XFER_ERR_MISMATCH unless `version`, that of `rank`, is the version of this rank, `mine`. */
xfer_status xfi_comm_check_version(int mine, uint32_t version, int rank);
/* XFER_ERR_MISMATCH unless `rank` is inside the same public call as this one, which is inside
 * `mine`. */
xfer_status xfi_comm_check_inside(const xfi_comm *comm, xfi_inside mine, uint32_t theirs, int rank);
/* XFER_ERR_MISMATCH unless `rank` is in the same gathering as this one. If any two ranks differ,
 * every rank differs from one of them, so all of them fail. */
XFI_PLUGIN_API xfer_status xfi_comm_check_same(const xfi_comm *comm, xfi_gathering mine,
                                               xfi_gathering theirs, int rank);

/* Whether a comm is broken, and why: the first reason stays. All zero at first, except for the
 * lock. Any thread may use it. */
enum { XFI_BROKEN_BYTES = 224 };
#define XFI_BROKEN "the comm is broken: "
typedef struct xfi_broken {
  pthread_mutex_t lock;
  _Atomic bool is; /* once this is true, `why` never changes */
  char why[XFI_BROKEN_BYTES];
} xfi_broken;
/* Break the comm. False: it was broken already. */
XFI_PLUGIN_API __attribute__((format(printf, 2, 3))) bool xfi_broken_set(xfi_broken *broken,
                                                                         const char *fmt, ...);
/* XFER_ERR_COMM with its text if the comm is broken. */
XFI_PLUGIN_API xfer_status xfi_broken_check(xfi_broken *broken);

/* Make comms[n_ranks], whose ranks are threads of this process. */
xfer_status xfi_comm_create_local(xfi_comm **comms, int n_ranks);

/* Make a comm of processes (or threads) of one host, which the caller's all-gather brings together.
 * `control_only`, the same on all ranks: the comm carries no data. */
XFI_PLUGIN_API xfer_status xfi_comm_create_host(xfi_comm **comm, xfer_all_gather_fn all_gather,
                                                void *context, int rank, int size,
                                                bool control_only);
/* refuse and check_refused of xfi_comm_ops, for ranks that share memory. On a control comm `what`
 * may also be the number, from 1, of an operation that all ranks make by other means. The comm
 * stays usable. Only the thread that makes the comm's calls may call these. */
XFI_PLUGIN_API void xfi_shared_refuse(xfi_comm *comm, uint64_t what, const char *why);
XFI_PLUGIN_API xfer_status xfi_shared_check_refused(xfi_comm *comm, uint64_t what);
/* As xfi_shared_check_refused(), for ranks that all share memory; but fails too, with
 * XFER_ERR_COMM, if one of them has ended, left the comm or broken it. */
XFI_PLUGIN_API xfer_status xfi_shared_check_all(xfi_comm *comm, uint64_t what);
/* The same without `what`. OK if some rank shares no memory with this one, or if `waits` is NULL.
 */
xfer_status xfi_waits_check(xfi_shared *waits);

/* In a commit, a run or a wait: XFER_ERR_PEER, with its text, if another rank has destroyed the
 * plan. */
XFI_PLUGIN_API xfer_status xfi_comm_check_destroyed(xfi_comm *comm);

/* The status of a collective call's checks, or XFER_ERR_ARG if the caller refused the call by
 * xfer_comm_refuse(), which holds for one call. */
xfer_status xfi_comm_refused(xfi_comm *comm, xfer_status checked);

/* For a rank that failed with `mine` and could not report this to the others, since the transport
 * failed with the status `transport` and the last error: sets a text of both. Returns the status of
 * `mine`, or `transport` if `mine` only quotes another rank. */
xfer_status xfi_comm_unreported(const xfi_error *mine, xfer_status transport);

/* All ranks, at the end of each collective call: the first of our own error, a peer's, and OK. A
 * peer's is XFER_ERR_PEER, and names and quotes the lowest rank that failed by itself, or else the
 * lowest that failed. */
XFI_PLUGIN_API xfer_status xfi_comm_agree(xfi_comm *comm, xfer_status mine, xfi_deadline deadline);
/* Agrees on *st as xfi_comm_agree() does, and gathers n_bytes of every rank. Returns them, of shape
 * [size, n_bytes], to be freed by xfi_free(); NULL if the ranks agreed on a failure. All ranks. */
XFI_PLUGIN_API void *xfi_comm_agree_gather(xfi_comm *comm, xfer_status *st, const void *item,
                                           size_t n_bytes, xfi_deadline deadline);

/* Gathers n_bytes, the same on all ranks. *rows has shape [size, n_bytes], in memory of the
 * transport, valid until the next call. */
typedef xfer_status xfi_gather_rows_fn(xfi_comm *comm, const char **rows, const void *mine,
                                       size_t n_bytes, xfi_deadline deadline);
enum { XFI_GATHER_ROW_BYTES = 192 }; /* every transport can gather this many bytes at once */

/* An all-gather over a transport's own `gather`, which takes equal sizes of up to `most` bytes.
 * Checks that all ranks are in the same gathering, else XFER_ERR_MISMATCH on each. After a failure
 * the caller breaks the comm. Allocates nothing. */
XFI_PLUGIN_API xfer_status xfi_comm_gather(xfi_comm *comm, void *all, const void *mine,
                                           size_t n_bytes, xfi_gather_rows_fn *gather, size_t most,
                                           xfi_deadline deadline);

/* What decline() says over xfi_comm_gather(): it fails on all other ranks, with XFER_ERR_COMM and
 * this text. */
XFI_PLUGIN_API xfer_status xfi_comm_gather_no(xfi_comm *comm, const char *why,
                                              xfi_gather_rows_fn *gather, xfi_deadline deadline);

/* For a rank that does not take part in the gathering that comes next, which has this deadline:
 * breaks the comm, for its last error, which is kept. */
void xfi_comm_decline(xfi_comm *comm, xfi_deadline deadline);

/* Calls `abort`, the comm's abort or abort_data, with the text of this rank's last error, which
 * stays the last error. */
XFI_PLUGIN_API void xfi_comm_abort_with_error(xfi_comm *comm,
                                              void (*abort)(xfi_comm *comm, const char *why));

/* XFER_ERR_TIMEOUT once the deadline has passed: for work in many parts, each of which may be there
 * without a wait. */
xfer_status xfi_comm_check_deadline(xfi_deadline deadline);

/* xfi_calloc() for the memory of the next collective step. If there is none it breaks the comm,
 * since the others would wait. */
XFI_PLUGIN_API void *xfi_comm_calloc(xfi_comm *comm, size_t n, size_t size);

#endif
