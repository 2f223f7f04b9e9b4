/* Memory that ranks share, and what goes through it: all-gathers ("gatherings") and channels, for
 * the comms that have such memory (threads.c, host.c, mpi.c). Each rank owns one segment, which the
 * others map. It holds the rank's state and what it gives to gatherings and, if ranks are
 * processes, a ring of slots to each other rank and slots that several ranks read. Segments of
 * processes are nameless files, so nothing is left behind, however the processes end.
 */
#ifndef XFI_SHARED_H
#define XFI_SHARED_H

#include "late.h"

#include <sys/types.h>

enum {
  XFI_SEGMENT_GATHER_BYTES = 16 << 10, /* of a rank in one step of a gathering */
  XFI_CACHE_LINE = 64
};

/* What a rank contributes to one step of a gathering. */
typedef struct xfi_contribution {
  xfi_gathering of; /* of.number: the offset at which this step's bytes begin */
  unsigned char bytes[XFI_SEGMENT_GATHER_BYTES];
} xfi_contribution;

/* Describes the bytes in one slot of a ring, for the reader to check. */
typedef struct xfi_label {
  uint64_t n_in_all; /* bytes of the whole channel */
  uint64_t sequence; /* see xfi_envelope */
  uint32_t n_bytes;  /* in this slot */
  uint16_t call;     /* xfi_carry_call */
  uint16_t shared;   /* 1 + the index of the shared slot that holds the bytes; 0: the ring's own */
} xfi_label;

/* Slots from the segment's owner to one other rank. The counters run for as long as the comm lives.
 */
typedef struct xfi_ring {
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t n_filled;  /* by the owner */
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t n_emptied; /* by the other one */
  _Alignas(XFI_CACHE_LINE) xfi_label labels[XFI_CHANNEL_SLOTS];
  uint64_t n_when_shared[XFI_CHANNEL_SLOTS]; /* of each shared slot: n_filled after the last label
                                              * that names it; once n_emptied has reached it, this
                                              * reader has read the slot */
  _Alignas(4096) char slots[XFI_CHANNEL_SLOTS][XFI_CHANNEL_SLOT_BYTES];
} xfi_ring;

typedef struct xfi_segment {
  int64_t rank;                                   /* of the owner */
  _Alignas(XFI_CACHE_LINE) _Atomic uint32_t bell; /* the futex that the owner sleeps on: it grows
                                                     whenever the owner is woken */
  _Alignas(XFI_CACHE_LINE) _Atomic uint32_t
      alarm;                      /* 1 + the rank that reported a failure to the owner; 0: none */
  char why[XFI_BROKEN_BYTES];     /* the text of the failure that the owner reported */
  _Atomic uint64_t warned;        /* the number of the owner's last xfi_shared_warn() */
  char warning[XFI_BROKEN_BYTES]; /* its text */
  _Atomic uint32_t has_left;      /* the owner has left the comm */
  /* Gatherings, whose steps are counted over the comm's whole life. `decided`, used in the first
   * segment alone, is 2 * step if the last step took place on all ranks, 2 * step - 1 if on none.
   * The owner has contributed to n_contributed steps; contributions[step % 2] holds the last two.
   */
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t decided;
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t n_contributed;
  xfi_contribution contributions[2];
  _Atomic uint64_t n_broadcasts; /* broadcasts of MPI in which the owner has taken part */
} xfi_segment;                   /* behind it: xfi_waiting_in(), then xfi_slots */

typedef struct xfi_slots {
  _Alignas(4096) char shared[XFI_CHANNEL_SLOTS][XFI_CHANNEL_SLOT_BYTES];
  uint64_t n_shared; /* how often the owner has filled a shared slot; it takes them in turn */
  xfi_ring rings[];  /* [n_places] */
} xfi_slots;

/* What differs between the comms. */
typedef struct xfi_shared_ops {
  /* Carry the messages of a call in both directions; all sends of a broadcast have the same bytes.
   * NULL: the comm has other means. */
  xfer_status (*carry)(xfi_comm *comm, xfi_carry_call call, const xfi_messages *messages,
                       xfi_deadline deadline);
  int64_t nap_ns;  /* longest sleep before a rank checks whether the comm is broken */
  int naps;        /* sleeps before it checks whether a process has ended */
  int64_t spin_ns; /* how long it polls before it sleeps, if every rank has a core; */
  int yields;      /* if not, how often it yields its core before it sleeps */
} xfi_shared_ops;

/* How a rank notices that the process of another one has ended. */
typedef struct xfi_neighbour {
  int socket;  /* nothing is sent over it after the bootstrap; it closes when the process ends. -1:
                  this rank */
  int process; /* pidfd of the process, since children that it forked may keep its end of the socket
                  open; -1: not watched */
} xfi_neighbour;

/* The beginning of every comm with shared memory. */
typedef struct xfi_shared {
  xfi_comm base;
  const xfi_shared_ops *ops;
  uint64_t process;             /* xfi_process_number() of the one that made it, */
  pid_t pid;                    /* and getpid() */
  int n_places;                 /* how many ranks this host has */
  int place;                    /* this rank's number among them */
  int *places;                  /* [size] each rank's; -1: it is on another host */
  xfi_segment **at;             /* [n_places] NULL: no memory is shared with that rank */
  xfi_neighbour *neighbours;    /* [n_places] NULL: ranks are threads of one process */
  size_t slots_at;              /* offset of xfi_slots in a segment; its end if there are none */
  size_t n_bytes;               /* of a segment */
  uint64_t n_steps;             /* of gatherings, so far */
  xfi_message *broadcast_sends; /* [size] scratch of a broadcast */
  xfi_broken broken;
} xfi_shared;

/* The cores that a rank may run on; n is 0 if they are not known. */
typedef struct xfi_cores {
  int32_t first;
  int32_t n;
} xfi_cores;

/* Local. Makes no segment yet. `processes`: ranks are processes; else threads. *shared is to be
 * ended by xfi_shared_end() whatever this returns. */
XFI_PLUGIN_API xfer_status xfi_shared_init(xfi_shared *shared, const xfi_shared_ops *ops,
                                           int n_places, int place, bool processes);
/* Is this a forked child? It is no rank, and what it writes, or requests of MPI, would be taken for
 * its parent's. */
XFI_PLUGIN_API bool xfi_shared_is_inherited(const xfi_shared *shared);
/* The same when a comm is destroyed. Compares process ids too, since _Fork() and clone() do not
 * change xfi_process_number(). */
XFI_PLUGIN_API bool xfi_shared_leaves_inherited(const xfi_shared *shared);
/* XFER_ERR_STATE if it is. */
XFI_PLUGIN_API xfer_status xfi_shared_check_process(const xfi_shared *shared);
/* Publishes that this rank leaves the comm, which ends the others' waits for it. Does nothing in a
 * forked child. */
XFI_PLUGIN_API void xfi_shared_leave(xfi_shared *shared);
/* Unmaps the segments and closes the sockets. */
void xfi_shared_part(xfi_shared *shared);
/* xfi_shared_part(), and frees what xfi_shared_init() made. Zeroes are fine. */
XFI_PLUGIN_API void xfi_shared_end(xfi_shared *shared);
/* Make this rank's segment. Its file, to be closed once the others have it; -1 and errno: it could
 * not be made. */
int xfi_shared_make(xfi_shared *shared);
/* Map another rank's segment from its file; NULL: that is no such file. */
xfi_segment *xfi_shared_map(const xfi_shared *shared, int file);
xfi_cores xfi_cores_own(void);
/* Can each of n ranks have a core of its own? The n structs are `pitch` bytes apart. */
bool xfi_cores_suffice(const xfi_cores *cores, size_t pitch, int n);
/* Has the rank's process ended? All that it wrote before is then visible, has_left included. */
bool xfi_shared_is_lost(const xfi_shared *shared, int rank);

/* ---- host_bootstrap.c ---- */

/* Memory for the endpoints that n processes exchange; NULL: out of memory. */
XFI_PLUGIN_API void *xfi_host_endpoints(int n);
/* Collective over the ranks of a host: each maps the segments of all others, or it fails on each.
 * `mine`: this rank's status so far, of xfi_shared_init() and what came before it. */
XFI_PLUGIN_API xfer_status xfi_host_bootstrap(xfi_shared *shared, void *endpoints, xfer_status mine,
                                              xfer_all_gather_fn all_gather, void *context);

/* The segment of a rank; NULL: no memory is shared with it. */
static inline xfi_segment *xfi_segment_of(const xfi_shared *s, int rank)
{
  return s->at == NULL || s->places[rank] < 0 ? NULL : s->at[s->places[rank]];
}

/* Report to all ranks that share memory with this one why the comm is broken. Does nothing in a
 * forked child. Any thread; only the first call has an effect. */
XFI_PLUGIN_API void xfi_shared_alarm(xfi_shared *shared, const char *why);
/* If another rank has reported that the comm is broken, break it here. True: it was not broken
 * before. */
XFI_PLUGIN_API bool xfi_shared_poll_alarm(xfi_shared *shared);
/* check and abort of xfi_comm_ops, for comms in which all ranks share memory. */
xfer_status xfi_shared_check(xfi_comm *comm);
void xfi_shared_abort(xfi_comm *comm, const char *why);

/* For whom the owner of a segment waits; NULL of NULL. */
static inline xfi_waiting *xfi_waiting_in(xfi_segment *segment)
{
  return segment == NULL ? NULL : (void *)(segment + 1);
}

/* Once all segments are mapped: lets late.c read for whom the other ranks wait. */
static inline void xfi_shared_map_waits(xfi_shared *s)
{
  for (int r = 0; r < s->base.size; r++)
    s->base.waits->published[r] = xfi_waiting_in(xfi_segment_of(s, r));
}

/* check_refused of xfi_comm_ops. */
XFI_PLUGIN_API xfer_status xfi_shared_check_refused(const xfi_comm *comm, uint64_t sequence);

/* Before a call: XFER_ERR_COMM with its text if the comm is broken. If all ranks share memory, this
 * only reads memory: MPI_Test() may yield the core, and with more ranks than cores all others then
 * run before this one does again. */
xfer_status xfi_shared_begin(xfi_shared *shared);

/* What a rank waits for. */
typedef bool xfi_rank_filter(const xfi_shared *shared, int rank);
typedef struct xfi_awaited {
  bool (*is_there)(const struct xfi_awaited *what);
  /* A rank that is still awaited, and for which `of` is true; -1: none. */
  int (*find_late)(const struct xfi_awaited *what, xfi_rank_filter *of);
  xfi_shared *shared;
  const void *of; /* the caller's */
  bool is_of_run; /* it is a run's message */
} xfi_awaited;
static inline bool xfi_any_rank(const xfi_shared *shared, int rank)
{
  (void)shared, (void)rank;
  return true;
}
/* Waits until is_there(). XFER_ERR_COMM: the comm is broken, or an awaited rank has left or its
 * process has ended. */
xfer_status xfi_shared_await(const xfi_awaited *what, xfi_deadline deadline);
/* After a write that a rank may wait for: wakes it if it sleeps. */
void xfi_shared_ring(xfi_shared *shared, int rank);

/* An all-gather that does not break the comm when it fails. */
XFI_PLUGIN_API xfer_status xfi_shared_gather(xfi_shared *shared, void *all, const void *mine,
                                             size_t n_bytes, xfi_deadline deadline);
/* Did the last step of a gathering take place? Then all ranks have all contributions; else it
 * failed on all of them, and ranks that are in no gathering do not know it yet. */
XFI_PLUGIN_API bool xfi_shared_has_gathered(const xfi_shared *shared);
/* The operations of xfi_comm_ops of these names. */
xfi_all_gather_fn xfi_shared_all_gather;
xfi_exchange_fn xfi_shared_exchange;
xfi_round_fn xfi_shared_round;
xfi_broadcast_fn xfi_shared_broadcast;
XFI_PLUGIN_API bool xfi_shared_shares(const xfi_comm *comm, int peer);
XFI_PLUGIN_API xfer_status xfi_shared_carry_channels(xfi_comm *comm, const xfi_channel_set *all,
                                                     xfi_deadline deadline);
XFI_PLUGIN_API void xfi_shared_carry_begin(xfi_comm *comm, const xfi_channel_set *all);
XFI_PLUGIN_API void xfi_shared_carry_undo(xfi_comm *comm, const xfi_channel_set *all);
/* Carries the channels of any call. */
xfer_status xfi_shared_carry(xfi_comm *comm, xfi_carry_call call, const xfi_channel_set *all,
                             xfi_deadline deadline);

#endif
