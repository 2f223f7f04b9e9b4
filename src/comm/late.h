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

/* Clears this rank's list of the ranks that it waits for, [size], and returns it, to be filled;
 * NULL: no other rank can read it. Here and below a comm without such memory, NULL, is fine. */
XFI_PLUGIN_API bool *xfi_waits_clear(xfi_shared *waits);
/* Publish the list, how this rank waits, and in which call. */
XFI_PLUGIN_API void xfi_waits_publish(xfi_shared *waits, xfi_until until, xfi_inside inside);
/* The wait is over. */
XFI_PLUGIN_API void xfi_waits_end(xfi_shared *waits);
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
XFI_PLUGIN_API bool xfi_waits_find_late(xfi_shared *waits, xfi_late *late);
/* After a wait that ended at the deadline: XFER_ERR_MISMATCH if no rank is late, but the ranks wait
 * for each other in different calls. */
XFI_PLUGIN_API xfer_status xfi_late_check(const xfi_comm *comm, const xfi_late *late,
                                          xfi_deadline deadline);

#endif
