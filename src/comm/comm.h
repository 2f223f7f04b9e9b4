/*
 * How bytes travel between ranks. A transport knows no tensor. run/ and plan agreement are written
 * against this table alone; comm/local.c, comm/host.c, comm/mpi.c and comm/nccl.c fill it in.
 *
 * Every call is made by every rank of the comm in the same order, except exchange(), round()
 * and stream(), which are made by the ranks that have messages, both ends of a pair in the same
 * order of calls. Every wait ends at its deadline with XFER_ERR_TIMEOUT and a text that names the
 * peer; after a failure the comm is broken: each later call fails at once, on the ranks that can be
 * told, with XFER_ERR_COMM.
 */
#ifndef XFI_COMM_H
#define XFI_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"
#include "door.h"
#include "error.h"
#include "xfer/xfer.h"

/* One message of an exchange or a round. Sizes are equal on both ends, > 0. */
typedef struct xfi_message {
  void *data; /* a send's is not written */
  size_t n_bytes;
  int peer; /* never this rank */
} xfi_message;

/* Those of one call, at most one each way per peer. */
typedef struct xfi_messages {
  const xfi_message *sends;
  int n_sends;
  const xfi_message *recvs;
  int n_recvs;
} xfi_messages;

/* Most messages of one round, sends plus receives (larger NCCL groups have deadlocked). */
#define XFI_ROUND_MESSAGES 64

/* Most bytes of one of them. */
#define XFI_MESSAGE_BYTES ((size_t)1 << 30)

/* One way between this rank and one with which it shares memory: a stream of bytes through a few
 * slots of that memory. */
typedef struct xfi_channel {
  int peer; /* at most one channel each way per peer */
  bool send;
  uint64_t n_bytes; /* equal on both ends, > 0 */
  uint64_t n_done;  /* of them; 0, then the comm's own */
  size_t next_same; /* a later one that sends the same bytes, which are carried for the first of
                       such channels alone; 0: there is none */
  bool is_again;    /* an earlier one's next_same */
} xfi_channel;

/* Put the channel's next n_bytes into the slot, or take them from it. */
typedef void xfi_carry_fn(void *context, size_t channel, char *slot, size_t n_bytes);

#define XFI_CHANNEL_SLOTS 4

/* Most bytes of a slot: those of some peers stay in a core's cache from packing to unpacking. */
#define XFI_CHANNEL_SLOT_BYTES ((size_t)64 << 10)

typedef struct xfi_comm xfi_comm;
typedef struct xfi_waits xfi_waits;

/* Host memory; blocks. all is [size * n_bytes]. */
typedef xfer_status xfi_all_gather_fn(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                                      xfi_deadline deadline);
/* Control messages between pairs, host memory, any number; blocks until sent and received. */
typedef xfer_status xfi_exchange_fn(xfi_comm *comm, const xfi_messages *messages,
                                    xfi_deadline deadline);
/* One bounded exchange of data in the device's memory: at most XFI_ROUND_MESSAGES messages, none
 * over XFI_MESSAGE_BYTES. Ordered on `stream`. */
typedef xfer_status xfi_round_fn(xfi_comm *comm, const xfi_messages *messages, xfer_stream stream,
                                 xfi_deadline deadline);
/* All ranks: of each message the root's bytes to everybody's `data`; `peer` is not looked at. At
 * most XFI_ROUND_MESSAGES messages, none over XFI_MESSAGE_BYTES. Ordered on `stream`. */
typedef xfer_status xfi_broadcast_fn(xfi_comm *comm, const xfi_message *messages, int n, int root,
                                     xfer_stream stream, xfi_deadline deadline);

typedef struct xfi_comm_ops {
  bool recv_direct; /* data may be received straight into the caller's tensors, not only staging */

  void (*destroy)(xfi_comm *comm);

  xfi_all_gather_fn *all_gather;
  xfi_exchange_fn *exchange; /* NULL: ranks never map each other's memory, which alone needs it */
  xfi_round_fn *round;       /* NULL, as is the next: only mapped peers can be reached */
  xfi_broadcast_fn *broadcast;
  /* Does this rank share memory with the peer? The same on both ends, always. NULL: with none. */
  bool (*shares)(const xfi_comm *comm, int peer);
  /* All bytes of some channels, in any order between channels; slots of at most slot_bytes, which
   * both ends have equal. What is sent may still lie in slots when it returns. The caller's memory
   * is touched by `carry` alone, so never after the call. */
  xfer_status (*stream)(xfi_comm *comm, xfi_channel *channels, size_t n, size_t slot_bytes,
                        xfi_carry_fn *carry, void *context, xfi_deadline deadline);
  /* What there are free slots for of what a stream() of these channels will send to one peer each;
   * waits for nothing. The next call for them is that stream(), or stream_undo(), after which ranks
   * meet in a call that all make before any of them streams. */
  void (*stream_begin)(xfi_comm *comm, xfi_channel *channels, size_t n, size_t slot_bytes,
                       xfi_carry_fn *carry, void *context);
  void (*stream_undo)(xfi_comm *comm, xfi_channel *channels, size_t n, size_t slot_bytes);
  /* All ranks, before the first run: connect what connects lazily, to the ranks of peers[] and, if
   * asked, for broadcasts; also after abort_data(). NULL: nothing to do. */
  xfer_status (*connect)(xfi_comm *comm, const bool *peers, bool broadcasts, xfi_deadline deadline);
  /* XFER_ERR_COMM with its text if the comm is broken, as far as is known here. Waits for nothing.
   */
  xfer_status (*check)(xfi_comm *comm);
  /* Break the comm now: pending and later calls on every rank that can be told fail. Any thread;
   * over MPI the one that is in a call. */
  void (*abort)(xfi_comm *comm, const char *why);
  /* End the rounds and broadcasts of this rank, also those on the device. Where they are a thing
   * apart, gathering and exchanging still work, and connect() makes new ones; else: abort(). NULL:
   * there are none. */
  void (*abort_data)(xfi_comm *comm, const char *why);
  /* How often they were ended here; NULL, as is the next: what those that have ended came to is
   * known when they return. */
  uint64_t (*n_data_ends)(xfi_comm *comm);
  /* XFER_OK: as often as then. */
  xfer_status (*check_data)(xfi_comm *comm, uint64_t n_ends);
  /* Look no longer at what those in flight are of, with this context. NULL: nobody does. */
  void (*unwatch)(xfi_comm *comm, const void *context);
} xfi_comm_ops;

/* What a round or broadcast is of: where this says that it comes to nothing, since a peer takes no
 * part, nobody waits for it any longer on a device either. Any thread; `look` NULL: nobody can say.
 */
typedef struct xfi_purpose {
  xfer_status (*look)(void *context, uint64_t number);
  void *context;
  uint64_t number;
} xfi_purpose;

/* The public call that a rank is in: for texts, and since a caller's own gathering must be no other
 * call's. */
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
  XFI_INSIDE_EXCHANGE
} xfi_inside;

struct xfi_comm {
  const xfi_comm_ops *ops;
  int rank;
  int size;
  bool shares_all; /* every rank has memory with every other; the same on all */
  bool has_cores;  /* likewise a core, where it shares memory at all and as far as is known */
  /* Set by a failed call whose messages could not be called back: memory that was given to round()
   * or broadcast() may still be read or written and must be leaked, not freed. */
  bool holds_memory;
  uint64_t n_gatherings; /* of xfi_comm_gather() */
  xfi_waits *waits;      /* late.h; NULL: no rank can be asked */
  xfi_inside inside;
  xfi_purpose purpose;               /* of the next rounds and broadcasts */
  bool refuses;                      /* the next call that asks xfi_comm_refused(), */
  char refusal[XFI_ERROR_BYTES + 4]; /* with this text, which setting it as an error cuts */
};

/* A rank's part in a gathering: its bytes, which one it is, where the transport counts them, and in
 * which call. */
typedef struct xfi_gathering {
  uint64_t n_bytes;
  uint64_t number;
  uint64_t inside;
} xfi_gathering;

/* This rank's. */
static inline xfi_gathering xfi_comm_gathering(const xfi_comm *comm, size_t n_bytes,
                                               uint64_t number)
{
  return (xfi_gathering){n_bytes, number, (uint64_t)comm->inside};
}

/* Is `rank` in the same as this one? Any two ranks that are not make each differ from one. */
XFI_DOOR xfer_status xfi_comm_check_same(const xfi_comm *comm, xfi_gathering mine,
                                         xfi_gathering theirs, int rank);

/* That a comm is broken, and why: the first reason stays. Zero but for the lock. Any thread. */
enum { XFI_BROKEN_BYTES = 224 };
typedef struct xfi_broken {
  pthread_mutex_t lock;
  _Atomic bool is; /* and then `why` stays */
  char why[XFI_BROKEN_BYTES];
} xfi_broken;
/* False: it was already. */
XFI_DOOR __attribute__((format(printf, 2, 3))) bool xfi_broken_set(xfi_broken *broken,
                                                                   const char *fmt, ...);
/* XFER_ERR_COMM with its text if it is. */
XFI_DOOR xfer_status xfi_broken_check(xfi_broken *broken);

/* comms is [n_ranks]: threads of this process. */
xfer_status xfi_comm_create_local(xfi_comm **comms, int n_ranks);

/* Processes (or threads) of one host, which meet by the caller's all-gather. */
XFI_DOOR xfer_status xfi_comm_create_host(xfi_comm **comm, xfer_all_gather_fn all_gather,
                                          void *context, int rank, int size);
/* Of such a comm, on all ranks: it carries no data, which goes straight into peers' memory. */
void xfi_host_control_only(xfi_comm *comm);
/* Of such a comm, by who makes calls. What all ranks do apart from it, their `number`-th time (from
 * 1), came to nothing here: tell those that may wait for it there. The comm goes on. */
XFI_DOOR void xfi_host_warn(xfi_comm *comm, uint64_t number, const char *why);
/* Has a rank told so of that time (XFER_ERR_PEER), or ended, or broken the comm? */
XFI_DOOR xfer_status xfi_host_heed(xfi_comm *comm, uint64_t number);

/* What a collective call's own checks came to, or what the caller refused it for, which holds for
 * one call. */
xfer_status xfi_comm_refused(xfi_comm *comm, xfer_status checked);

/* Of a rank that has failed, with `text`, and could not tell the others, since the transport, whose
 * text is the last error, came to `met`. Both texts: an error of its own, which no other rank
 * knows, and that the comm is of no more use, which it must know too. What it passes on for another
 * rank gives way to what all others have. */
xfer_status xfi_comm_untold(xfer_status mine, const char *text, xfer_status met);

/* All ranks: the first of our own error, a peer's (XFER_ERR_PEER, naming the lowest failed rank and
 * quoting its text; one that failed by itself goes before one that says PEER), OK. What each
 * collective call ends with. */
XFI_DOOR xfer_status xfi_comm_agree(xfi_comm *comm, xfer_status mine, xfi_deadline deadline);
/* The same of *st, and the words of all ranks, [size] of n_bytes, to be freed; NULL where they
 * agreed on a failure. All ranks. */
XFI_DOOR void *xfi_comm_hear(xfi_comm *comm, xfer_status *st, const void *word, size_t n_bytes,
                             xfi_deadline deadline);

/* n_bytes of each rank, the same on all: *rows is [size * n_bytes], in memory of the transport's,
 * until the next. */
typedef xfer_status xfi_gather_rows_fn(xfi_comm *comm, const char **rows, const void *mine,
                                       size_t n_bytes, xfi_deadline deadline);
enum { XFI_GATHER_ROW_BYTES = 128 }; /* which takes so many at least */

/* An all-gather for transports whose own, of up to `most` bytes, must be given equal sizes: sees to
 * it that all ranks mean the same one, else it is XFER_ERR_MISMATCH on each. After a failure the
 * comm is to be broken. Allocates nothing. */
XFI_DOOR xfer_status xfi_comm_gather(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                                     xfi_gather_rows_fn *gather, size_t most,
                                     xfi_deadline deadline);

/* By abort or abort_data of the comm: with this rank and its last error, which stays that. */
void xfi_comm_leave(xfi_comm *comm, void (*abort)(xfi_comm *comm, const char *why));

/* xfi_calloc() of what this rank cannot take its next collective step without. Where there is no
 * memory the comm is aborted, since the others would wait for that step. */
XFI_DOOR void *xfi_comm_calloc(xfi_comm *comm, size_t n, size_t size);

#endif
