/* Time that never jumps, and the deadline that every wait takes. Not for the pure layers (layout,
 * plan, refit). */
#ifndef XFI_CLOCK_H
#define XFI_CLOCK_H

#include "door.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct xfi_deadline {
  int64_t at_ns; /* on the clock of xfi_now_ns; INT64_MAX: never */
} xfi_deadline;

/* Nanoseconds of CLOCK_MONOTONIC. */
XFI_DOOR int64_t xfi_now_ns(void);

/* The deadline timeout_ms from now; negative: never; one too far to count: never. */
XFI_DOOR xfi_deadline xfi_deadline_after(int64_t timeout_ms);

XFI_DOOR bool xfi_deadline_expired(xfi_deadline deadline);

/* Milliseconds left, rounded up, so that it is 0 only when expired; INT64_MAX: never. */
XFI_DOOR int64_t xfi_deadline_left_ms(xfi_deadline deadline);

/* Less than a second. */
static inline void xfi_sleep_ns(long ns)
{
  const struct timespec time = {0, ns};

  (void)nanosleep(&time, NULL);
}

/* For pthread_cond_timedwait on a condition of CLOCK_MONOTONIC. */
XFI_DOOR struct timespec xfi_deadline_timespec(xfi_deadline deadline);

#endif
