/* Which rank is late when a deadline passes: each rank publishes for whom it waits, in memory that
 * the others of its host or process read. */
#ifndef XFI_LATE_H
#define XFI_LATE_H

#include "comm.h"

/* How a rank waits. */
typedef enum xfi_until {
  XFI_AWAKE = 0, /* the rank does not wait */
  XFI_ASLEEP,    /* it sleeps until its bell rings */
  XFI_POLLING    /* until it polls again: no bell rings for it */
} xfi_until;

/* Clears this rank's list of the ranks that it waits for, [size], and returns it, to be filled;
 * NULL: no other rank can read it. In all these functions `waits` may be NULL, for a comm without
 * such memory. */
XFI_PLUGIN_API bool *xfi_waits_clear(xfi_shared *waits);
/* Publish this rank's list, how it waits, and in which call. */
XFI_PLUGIN_API void xfi_waits_publish(xfi_shared *waits, xfi_until until, xfi_inside inside);
/* The wait is over. */
XFI_PLUGIN_API void xfi_waits_end(xfi_shared *waits);
/* A waiting rank publishes again from time to time, so it waits in parts: the deadline of the next
 * part, after n parts. */
xfi_deadline xfi_waits_part(xfi_deadline end, int n);

/* A search for the late rank. All zero at first. */
typedef struct xfi_late {
  int rank;        /* the late rank; -1: none is found */
  int elsewhere;   /* a rank in another call, if all waited in a circle in each step; -1: none */
  uint32_t inside; /* the call that `elsewhere` is in */
  int n_same;
  int n_steps;
} xfi_late;
/* One step of the search, by a rank that has just published for whom it waits. True: *late has the
 * result. False, after a short sleep: publish again and call again. */
XFI_PLUGIN_API bool xfi_waits_find_late(xfi_shared *waits, xfi_late *late);
/* After a wait that ended at the deadline: XFER_ERR_MISMATCH if no rank is late, but the ranks wait
 * for each other in different calls. */
XFI_PLUGIN_API xfer_status xfi_late_check(const xfi_comm *comm, const xfi_late *late,
                                          xfi_deadline deadline);

#endif
