/* Which rank is late when a deadline passes: each rank publishes for whom it waits, in memory that
 * the others of its host or process read. */
#ifndef XFI_LATE_H
#define XFI_LATE_H

#include "comm.h"

/* How a rank waits. */
typedef enum xfi_until {
  XFI_AWAKE = 0, /* it does not */
  XFI_ASLEEP,    /* until its bell rings */
  XFI_POLLING    /* until it polls again: no bell rings for it */
} xfi_until;

/* For whom a rank waits, in memory that others read. */
typedef struct xfi_waiting {
  _Atomic uint32_t until;  /* xfi_until. Not XFI_AWAKE from the first sleep on, until the wait is
                              over or the rank is woken */
  _Atomic uint64_t n;      /* how often this was written */
  _Atomic uint32_t inside; /* xfi_inside: the public call that waits */
  _Atomic bool awaits[];   /* [size] the ranks that it waits for, unless `until` is XFI_AWAKE */
} xfi_waiting;

/* One rank's view of the waits of all ranks of a comm. */
struct xfi_waits {
  int rank;
  int size;
  xfi_waiting **published; /* [size] what each rank publishes; NULL: it cannot be read here */
  bool *awaits;  /* [size] for whom this rank waits: filled by the caller, then published */
  bool *visited; /* [size] scratch of a search for the late rank */
  uint64_t *n;   /* [size] each rank's xfi_waiting.n when the search began */
};

/* The bytes of one xfi_waiting. */
static inline size_t xfi_waiting_bytes(int size)
{
  return sizeof(xfi_waiting) + (size_t)size;
}

/* No rank's memory is set yet. The caller frees it by xfi_free(). */
xfer_status xfi_waits_create(xfi_waits **waits, int rank, int size);
/* Clears `awaits` and returns it, to be filled; NULL: no other rank can read it. */
XFI_PLUGIN_API bool *xfi_waits_clear(xfi_waits *waits);
/* Publish `awaits`, how this rank waits, and in which call. */
XFI_PLUGIN_API void xfi_waits_publish(xfi_waits *waits, xfi_until until, xfi_inside inside);
/* The wait is over; NULL is fine. */
XFI_PLUGIN_API void xfi_waits_end(xfi_waits *waits);
/* A waiting rank publishes again from time to time, so it waits in parts: the deadline of the next
 * part, after n parts. */
xfi_deadline xfi_waits_part(xfi_deadline end, int n);

/* A search for the late rank. Zero at first. */
typedef struct xfi_late {
  int rank;        /* the late rank; -1: none is found */
  int elsewhere;   /* if in each step all waited in a circle: one in another call; -1: none */
  uint32_t inside; /* that call */
  int n_same;
  int n_steps;
} xfi_late;
/* One step of the search, by a rank that has just published for whom it waits. True: *late has the
 * result. False, after a short sleep: publish again and call again. */
XFI_PLUGIN_API bool xfi_waits_find_late(xfi_waits *waits, xfi_late *late);
/* After a wait that ended at the deadline: XFER_ERR_MISMATCH if no rank is late, but the ranks wait
 * for each other in different calls. */
XFI_PLUGIN_API xfer_status xfi_late_check(const xfi_comm *comm, const xfi_late *late,
                                          xfi_deadline deadline);

#endif
