/* Memory that the ranks of one host share. Each makes one segment, a file without a name, that the
 * others map: what concerns its owner (a bell, an alarm, what it gives to gatherings), a ring of
 * slots to each of the others, and slots that several of them read. Nothing is left behind, however
 * the processes end.
 */
#ifndef XFI_MPI_SEGMENT_H
#define XFI_MPI_SEGMENT_H

#include "comm.h"

#include <mpi.h>
#include <stdatomic.h>

enum {
  XFI_SEGMENT_GATHER_BYTES = 16 << 10, /* of a rank in one step of a gathering */
  XFI_CACHE_LINE = 64
};

/* Instead of the rank that a sleeper waits for. */
#define XFI_AWAKE UINT32_MAX
#define XFI_ASLEEP (UINT32_MAX - 1) /* until anybody rings */

/* What a rank gives to one step of a gathering. */
typedef struct xfi_given {
  xfi_gathering of; /* whose number is where this step's bytes begin */
  unsigned char bytes[XFI_SEGMENT_GATHER_BYTES];
} xfi_given;

/* Where a ring's slot has its bytes. */
typedef struct xfi_label {
  uint32_t n_bytes;
  uint32_t shared; /* 1 + which of the segment's shared slots; 0: in the ring */
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
  uint64_t token; /* of the comm */
  int64_t rank;
  _Alignas(
      XFI_CACHE_LINE) _Atomic uint32_t bell; /* counts what its sleeping owner should look at */
  _Atomic uint32_t sleeping;                 /* until whom: a rank, or one of the two below */
  _Alignas(
      XFI_CACHE_LINE) _Atomic uint32_t alarm; /* 1 + the rank that told the owner of a failure */
  char why[XFI_BROKEN_BYTES];                 /* what the owner told others */
  _Atomic uint32_t has_left;                  /* the owner, the comm */
  _Alignas(XFI_CACHE_LINE) _Atomic uint64_t n_given; /* steps of gatherings, counted over all */
  xfi_given given[2];                                /* by turns */
  uint64_t n_shared; /* slots filled for several ranks, by turns; the owner's */
  _Alignas(4096) char shared[XFI_CHANNEL_SLOTS][XFI_CHANNEL_SLOT_BYTES];
  xfi_ring rings[]; /* by place among the ranks of the host */
} xfi_segment;

/* By which another process finds a rank's segment. */
typedef struct xfi_card {
  int64_t pid;
  int32_t file; /* -1: there is no segment */
  int32_t rank;
  uint64_t token;
  int32_t first_core; /* that it may run on, */
  int32_t n_cores;    /* and how many; 0: not known */
} xfi_card;

/* What a rank knows of its host's segments. */
typedef struct xfi_segments {
  int size;              /* of the comm */
  int n_places;          /* ranks of the host */
  int place;             /* this rank's among them */
  int file;              /* of the own segment; -1: there is none, or all have mapped it */
  size_t n_bytes;        /* of a segment */
  xfi_card *cards;       /* [n_places] */
  int *places;           /* [size] by rank; -1: on another host */
  unsigned char *mapped; /* [n_places, n_places]; row i says whose segments rank i has mapped */
  xfi_segment **at;      /* [n_places]; NULL: memory is not shared with that rank */
} xfi_segments;

/* Local. Where no segment can be made, others are told so and nothing is shared. */
xfer_status xfi_segments_create(xfi_segments **segments, int size, int rank, MPI_Comm host,
                                uint64_t token);
/* The others' waits for this rank end. */
void xfi_segments_leave(xfi_segments *segments);
void xfi_segments_destroy(xfi_segments *segments);
/* All ranks of a host: map what can be, which is noted in the comm, the same on all. */
xfer_status xfi_segments_connect(xfi_segments *segments, MPI_Comm host, xfi_comm *comm);

/* The segment of a rank; NULL: no memory is shared with it. */
static inline xfi_segment *xfi_segment_of(const xfi_segments *s, int rank)
{
  return s == NULL || s->places[rank] < 0 ? NULL : s->at[s->places[rank]];
}

/* Has a rank left the comm, or its process ended? False where no memory is shared with it. */
bool xfi_segment_has_left(const xfi_segments *segments, int rank);
bool xfi_segment_is_lost(const xfi_segments *segments, int rank);
/* Wake the owner, if it sleeps and waits for `rank`, which has written what it waits for. */
void xfi_segment_ring(xfi_segment *segment, int rank);
/* Tell all that share memory with this rank why the comm is broken. Any thread; once. */
void xfi_segments_alarm(xfi_segments *segments, int rank, const char *why);

#endif
