/* Memory that ranks share, and what goes through it: gatherings and channels, for the comms that
 * make it (threads.c, host.c, mpi.c). Each rank has one segment: its state (an alarm, what it gives
 * to gatherings) and, where ranks are processes, a ring of slots to each other rank, and slots that
 * several ranks read. Then it is a nameless file that the others map, and nothing is left behind,
 * however the processes end.
 */
#ifndef XFI_SHARED_H
#define XFI_SHARED_H

#include "late.h"

#include <sys/types.h>

enum {
  XFI_SEGMENT_GATHER_BYTES = 16 << 10, /* of a rank in one step of a gathering */
  XFI_CACHE_LINE = 64
};

/* What a rank gives to one step of a gathering. */
typedef struct xfi_given {
  xfi_gathering of; /* whose number is where this step's bytes begin */
  unsigned char bytes[XFI_SEGMENT_GATHER_BYTES];
} xfi_given;

/* What a ring's slot has, and where: what both ends must agree on. */
typedef struct xfi_label {
  uint64_t n_in_all; /* bytes of the channel */
  uint32_t n_bytes;
  uint16_t call;
  uint16_t shared; /* 1 + which of the segment's shared slots; 0: in the ring */
} xfi_label;

/* Slots from the segment's owner to one other rank. Both count for as long as the comm lives. */
typedef struct xfi_ring {
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t n_filled;  /* by the owner */
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t n_emptied; /* by the other one */
  _Alignas(XFI_CACHE_LINE) xfi_label labels[XFI_CHANNEL_SLOTS];
  uint64_t n_when_shared[XFI_CHANNEL_SLOTS]; /* n_filled with the last label of each shared slot */
  _Alignas(4096) char slots[XFI_CHANNEL_SLOTS][XFI_CHANNEL_SLOT_BYTES];
} xfi_ring;

typedef struct xfi_segment {
  int64_t rank; /* of the owner */
  _Alignas(
      XFI_CACHE_LINE) _Atomic uint32_t bell; /* counts what its sleeping owner should look at */
  _Alignas(
      XFI_CACHE_LINE) _Atomic uint32_t alarm; /* 1 + the rank that told the owner of a failure */
  char why[XFI_BROKEN_BYTES];                 /* what the owner told others */
  _Atomic uint64_t warned;                    /* xfi_host_warn() of that number, and */
  char warning[XFI_BROKEN_BYTES];             /* with that text */
  _Atomic uint32_t has_left;                  /* the owner, the comm */
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t decided; /* of gatherings; the first segment's alone */
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t n_given; /* steps of gatherings, counted over all */
  xfi_given given[2];                                /* by turns */
  _Atomic uint64_t n_casts; /* broadcasts by other means that the owner has had */
} xfi_segment;              /* then xfi_waiting_in(), and */

typedef struct xfi_slots {
  _Alignas(4096) char shared[XFI_CHANNEL_SLOTS][XFI_CHANNEL_SLOT_BYTES];
  uint64_t n_shared; /* of those, filled by turns; the owner's */
  xfi_ring rings[];  /* by place among the ranks of the host */
} xfi_slots;

/* What each comm does in its own way. */
typedef struct xfi_shared_ops {
  /* The messages of a call, both ways; all sends of a broadcast have the same bytes. NULL: they go
   * by other means. */
  xfer_status (*carry)(xfi_comm *comm, xfi_carry_call call, const xfi_messages *messages,
                       xfi_deadline deadline);
  int64_t nap_ns;  /* of a sleep at most, before this rank looks round, */
  int naps;        /* and so many before it looks for lost ranks */
  int64_t spin_ns; /* before sleeping, where every rank has a core, */
  int yields;      /* and where it has not */
} xfi_shared_ops;

/* By what a rank notices that another one's process has ended, however it ended. */
typedef struct xfi_neighbour {
  int socket;  /* nothing goes over it once they have met; closed when it ends. -1: this rank */
  int process; /* pidfd of the one that made its end, since children that it forked may hold that
                  open; -1: not watched */
} xfi_neighbour;

/* What a comm with such memory begins with. */
typedef struct xfi_shared {
  xfi_comm base;
  const xfi_shared_ops *ops;
  pid_t process;             /* that made it: no child that was forked */
  int n_places;              /* ranks of the host */
  int place;                 /* this rank's among them */
  int *places;               /* [size] by rank; -1: on another host */
  xfi_segment **at;          /* [n_places]; NULL: memory is not shared with that rank */
  xfi_neighbour *neighbours; /* likewise; NULL: threads of one process */
  size_t slots_at;           /* in a segment; its end where there are none */
  size_t n_bytes;            /* of a segment */
  uint64_t n_steps;          /* of gatherings */
  xfi_message *casts;        /* [size] of a broadcast */
  xfi_broken broken;
} xfi_shared;

/* That a rank may run on; n is 0 where that is not known. */
typedef struct xfi_cores {
  int32_t first;
  int32_t n;
} xfi_cores;

/* Local, with no segment yet; `processes`: ranks are, else threads. What it has made is in *shared,
 * whatever it returns. */
XFI_DOOR xfer_status xfi_shared_init(xfi_shared *shared, const xfi_shared_ops *ops, int n_places,
                                     int place, bool processes);
/* The others' waits for this rank end, unless a child that was forked calls it. */
XFI_DOOR void xfi_shared_leave(xfi_shared *shared);
/* Nothing is shared with other processes any more. */
void xfi_shared_part(xfi_shared *shared);
/* That too; of zeroes as well. */
XFI_DOOR void xfi_shared_end(xfi_shared *shared);
/* The own segment's file, to be closed once the others have it; -1: there is none, see errno. */
int xfi_shared_make(xfi_shared *shared);
/* Another's file; NULL: it is none. */
xfi_segment *xfi_shared_map(const xfi_shared *shared, int file);
xfi_cores xfi_cores_own(void);
/* Are there enough for n ranks, whose cores lie so many bytes apart? */
bool xfi_cores_suffice(const xfi_cores *cores, size_t pitch, int n);
/* Has its process ended? What it wrote before it left is there, and that it has left. */
bool xfi_shared_is_lost(const xfi_shared *shared, int rank);

/* ---- host_meet.c ---- */

/* Room for what n processes tell each other in it; NULL: no memory. */
XFI_DOOR void *xfi_host_words(int n);
/* All ranks of a host, by their places: each maps the memory of all others, or none does and it
 * fails on each. `mine`: what xfi_shared_init() and all that came before it came to. */
XFI_DOOR xfer_status xfi_host_meet(xfi_shared *shared, void *words, xfer_status mine,
                                   xfer_all_gather_fn all_gather, void *context);

/* The segment of a rank; NULL: no memory is shared with it. */
static inline xfi_segment *xfi_segment_of(const xfi_shared *s, int rank)
{
  return s->at == NULL || s->places[rank] < 0 ? NULL : s->at[s->places[rank]];
}

/* Tell all that share memory with this rank why the comm is broken. Any thread; once. */
XFI_DOOR void xfi_shared_alarm(xfi_shared *shared, const char *why);
/* Was this rank told so? Then the comm is broken here as well, unless it is already. */
XFI_DOOR bool xfi_shared_alarmed(xfi_shared *shared);
/* As xfi_comm_ops has them, where all ranks share memory. */
xfer_status xfi_shared_check(xfi_comm *comm);
void xfi_shared_abort(xfi_comm *comm, const char *why);

/* What a segment's owner says of its waits; NULL of NULL. */
static inline xfi_waiting *xfi_waiting_in(xfi_segment *segment)
{
  return segment == NULL ? NULL : (void *)(segment + 1);
}

/* All that will be mapped is. */
static inline void xfi_shared_hear(xfi_shared *s)
{
  for (int r = 0; r < s->base.size; r++)
    s->base.waits->said[r] = xfi_waiting_in(xfi_segment_of(s, r));
}

/* Before a call: XFER_ERR_COMM with its text if the comm is broken. Where all can tell that in
 * memory nothing else is looked at: MPI_Test() may give the core away, and with more ranks than
 * cores all others run before this one does again. */
xfer_status xfi_shared_begin(xfi_shared *shared);

/* What a rank waits for. */
typedef bool xfi_is_meant(const xfi_shared *shared, int rank);
typedef struct xfi_awaited {
  bool (*is_there)(const struct xfi_awaited *what);
  /* A rank that has not come, of those that `of` says; -1: none. */
  int (*find_late)(const struct xfi_awaited *what, xfi_is_meant *of);
  xfi_shared *shared;
  const void *of; /* the caller's */
} xfi_awaited;
static inline bool xfi_is_any(const xfi_shared *shared, int rank)
{
  (void)shared, (void)rank;
  return true;
}
/* Until it is there. XFER_ERR_COMM if the comm is broken, or a rank that it waits for is lost. */
xfer_status xfi_shared_await(const xfi_awaited *what, xfi_deadline deadline);
/* Wakes a rank if it sleeps: this one has written what it may wait for. */
void xfi_shared_ring(xfi_shared *shared, int rank);

/* Does not break the comm. */
XFI_DOOR xfer_status xfi_shared_gather(xfi_shared *shared, void *all, const void *mine,
                                       size_t n_bytes, xfi_deadline deadline);
/* As xfi_comm_ops has them. */
xfi_all_gather_fn xfi_shared_all_gather;
xfi_exchange_fn xfi_shared_exchange;
xfi_round_fn xfi_shared_round;
xfi_broadcast_fn xfi_shared_broadcast;
XFI_DOOR bool xfi_shared_shares(const xfi_comm *comm, int peer);
XFI_DOOR xfer_status xfi_shared_carry_channels(xfi_comm *comm, const xfi_carriage *all,
                                               xfi_deadline deadline);
XFI_DOOR void xfi_shared_carry_begin(xfi_comm *comm, const xfi_carriage *all);
XFI_DOOR void xfi_shared_carry_undo(xfi_comm *comm, const xfi_carriage *all);
/* The same for any call. */
xfer_status xfi_shared_carry(xfi_comm *comm, xfi_carry_call call, const xfi_carriage *all,
                             xfi_deadline deadline);

#endif
