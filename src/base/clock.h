/* Time that never jumps, and the deadline that every wait takes. Not for the pure layers (layout,
 * plan, refit).
 *
 * Where the thread has a function for it (xfer_interrupt_set), a wait that lasts asks that now and
 * then whether to go on. If not, the deadlines that were made until then have expired in this
 * thread, and those that follow, of graces and goodbyes, hold. */
#ifndef XFI_CLOCK_H
#define XFI_CLOCK_H

#include "door.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Of waits of which nobody says how long they may take. */
#define XFI_DEFAULT_TIMEOUT_MS INT64_C(600000)

typedef struct xfi_deadline {
  int64_t at_ns;   /* on the clock of xfi_now_ns; INT64_MAX: never */
  int64_t made_ns; /* an interrupt after this ends it; 0: none does */
} xfi_deadline;

/* Nanoseconds of CLOCK_MONOTONIC. */
XFI_DOOR int64_t xfi_now_ns(void);

/* The deadline timeout_ms from now; negative: never; one too far to count: never. */
XFI_DOOR xfi_deadline xfi_deadline_after(int64_t timeout_ms);

/* One that is so much after another; where an interrupt ended that one, after the interrupt. */
XFI_DOOR xfi_deadline xfi_deadline_later(xfi_deadline deadline, int64_t ms);

XFI_DOOR bool xfi_deadline_expired(xfi_deadline deadline);

/* What ended it, after "before" or "until" in a text. */
XFI_DOOR const char *xfi_deadline_end(xfi_deadline deadline);

/* Milliseconds left, rounded up, so that it is 0 only when expired; INT64_MAX: never. Who is to
 * hear of an interrupt sleeps less at a time. */
XFI_DOOR int64_t xfi_deadline_left_ms(xfi_deadline deadline);

/* Less than a second. */
static inline void xfi_sleep_ns(long ns)
{
  const struct timespec time = {0, ns};

  (void)nanosleep(&time, NULL);
}

/* Until when to sleep, on CLOCK_MONOTONIC, before the next look at the deadline. */
XFI_DOOR struct timespec xfi_deadline_timespec(xfi_deadline deadline);

#endif
