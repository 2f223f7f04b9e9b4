/* Memory that ranks share. Each rank owns one segment, which the others map. It holds the rank's
 * state and what it gives to gatherings and, if ranks are processes, a ring of slots to each other
 * rank and slots that several ranks read. Segments of processes are nameless files, so nothing is
 * left behind, however the processes end.
 */
#ifndef XFI_SEGMENT_H
#define XFI_SEGMENT_H

#include "comm.h"

#include <sys/types.h>

enum {
  XFI_SEGMENT_GATHER_BYTES = 16 << 10, /* most bytes of a rank in one step of a gathering */
  XFI_CACHE_LINE = 64
};

/* What a rank contributes to one step of a gathering. */
typedef struct xfi_contribution {
  xfi_gathering of; /* of.number: the offset at which this step's bytes begin */
  unsigned char bytes[XFI_SEGMENT_GATHER_BYTES];
} xfi_contribution;

/* Describes the bytes in one slot of a ring, for the reader to check. */
typedef struct xfi_label {
  xfi_envelope of;  /* of the whole channel */
  uint32_t n_bytes; /* bytes in this slot */
  uint32_t shared;  /* 1 + the index of the shared slot that holds the bytes; 0: the ring's own */
} xfi_label;

/* Slots from the segment's owner to one other rank. The counters run for as long as the comm lives.
 */
typedef struct xfi_ring {
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t n_filled;  /* slots that the owner has filled */
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t n_emptied; /* slots that the reader has emptied */
  _Alignas(XFI_CACHE_LINE) xfi_label labels[XFI_CHANNEL_SLOTS];
  uint64_t n_when_shared[XFI_CHANNEL_SLOTS]; /* for each shared slot: n_filled after the last label
                                              * that names it; once n_emptied is that high, this
                                              * reader has read the slot */
  _Alignas(4096) char slots[XFI_CHANNEL_SLOTS][XFI_CHANNEL_SLOT_BYTES];
} xfi_ring;

typedef struct xfi_segment {
  int64_t rank;                                   /* the owner's rank */
  _Alignas(XFI_CACHE_LINE) _Atomic uint32_t bell; /* the futex that the owner sleeps on: it grows
                                                     whenever the owner is woken */
  _Alignas(XFI_CACHE_LINE) _Atomic uint32_t
      alarm;                  /* 1 + the rank that reported a failure to the owner; 0: none */
  char why[XFI_BROKEN_BYTES]; /* the text of the failure that the owner reported */
  /* What the owner refused last, of each XFI_KIND_OF(), in turn; 0: nothing. */
  _Atomic uint64_t refused[XFI_KINDS][XFI_REFUSALS];
  char whys[XFI_KINDS][XFI_REFUSALS][XFI_BROKEN_BYTES]; /* the reasons of these refusals */
  uint64_t n_refused[XFI_KINDS]; /* refusals in all; only the owner reads it */
  _Atomic uint32_t has_left;     /* the owner has left the comm */
  /* Gatherings, whose steps are counted over the comm's whole life. `decided`, used in the first
   * segment alone, is 2 * step if the last step took place on all ranks, 2 * step - 1 if on none.
   * The owner has contributed to n_contributed steps; contributions[step % 2] holds the last two.
   */
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t decided;
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t n_contributed;
  xfi_contribution contributions[2];
  _Atomic uint64_t n_broadcasts; /* broadcasts of MPI in which the owner has taken part */
} xfi_segment;                   /* xfi_waiting follows in the same memory, then xfi_slots */

typedef struct xfi_slots {
  _Alignas(4096) char shared[XFI_CHANNEL_SLOTS][XFI_CHANNEL_SLOT_BYTES];
  uint64_t n_shared; /* how often the owner has filled a shared slot; it takes them in turn */
  xfi_ring rings[];  /* [n_host_ranks] one ring for each rank of the host */
} xfi_slots;

/* For whom a rank waits, in memory that others read. */
typedef struct xfi_waiting {
  _Atomic uint32_t until;  /* xfi_until (late.h). Not XFI_AWAKE from the first sleep on, until the
                              wait is over or the rank is woken */
  _Atomic uint64_t n;      /* how often this was written */
  _Atomic uint32_t inside; /* xfi_inside: the public call that waits */
  _Atomic bool awaits[];   /* [size] the ranks that it waits for, unless `until` is XFI_AWAKE */
} xfi_waiting;

/* What differs between the comms that have shared memory. */
typedef struct xfi_shared_ops {
  /* Carry the messages of a call in both directions; all sends of a broadcast have the same bytes.
   * NULL: the comm has other means. */
  xfer_status (*carry)(xfi_comm *comm, xfi_carry_call call, const xfi_messages *messages,
                       xfi_deadline deadline);
  int64_t nap_ns;  /* longest sleep before a rank checks whether the comm is broken */
  int naps;        /* sleeps before it checks whether a process has ended */
  int64_t spin_ns; /* how long it polls before it sleeps, if every rank has a core of its own */
  int yields;      /* if some rank has none: how often it yields its core before it sleeps */
} xfi_shared_ops;

/* How a rank notices that the process of another one has ended. */
typedef struct xfi_neighbour {
  int socket;  /* nothing is sent over it after the bootstrap; it closes when the process ends. -1:
                  this rank */
  int process; /* pidfd of the process, since children that it forked may keep its end of the socket
                  open; -1: not watched */
} xfi_neighbour;

/* The beginning of every comm with shared memory. */
struct xfi_shared {
  xfi_comm base;
  const xfi_shared_ops *ops;
  uint64_t process;          /* xfi_process_number() of the process that made the comm */
  pid_t pid;                 /* getpid() of that process */
  int n_host_ranks;          /* how many ranks this host has */
  int host_rank;             /* this rank's number among the ranks of this host */
  int *host_ranks;           /* [size] each rank's number on this host; -1: it is on another host */
  xfi_segment **at;          /* [n_host_ranks] segments; NULL: no memory is shared with that rank */
  xfi_neighbour *neighbours; /* [n_host_ranks] NULL: ranks are threads of one process */
  void *endpoints;           /* what the processes publish as they connect (host_bootstrap.c) */
  size_t slots_at;           /* offset of xfi_slots in a segment; its end if there are none */
  size_t n_bytes;            /* size of a segment */
  uint64_t n_steps;          /* steps of gatherings so far */
  xfi_message *broadcast_sends; /* [size] scratch of a broadcast */
  bool *awaits;                 /* [size] for whom this rank waits, to be published (late.h) */
  bool *visited;                /* [size] scratch of a search for the late rank */
  uint64_t *n_published;        /* [size] each rank's xfi_waiting.n when the search began */
  xfi_broken broken;
};

/* The segment of a rank; NULL: no memory is shared with it. */
static inline xfi_segment *xfi_segment_of(const xfi_shared *s, int rank)
{
  return s->at == NULL || s->host_ranks[rank] < 0 ? NULL : s->at[s->host_ranks[rank]];
}

/* For whom a rank waits; NULL: no memory is shared with it, or `s` is NULL. */
static inline xfi_waiting *xfi_waiting_of(const xfi_shared *s, int rank)
{
  xfi_segment *segment = s == NULL ? NULL : xfi_segment_of(s, rank);

  return segment == NULL ? NULL : (void *)(segment + 1);
}

#endif
