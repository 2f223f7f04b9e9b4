/* Time that never jumps, and the deadline that every wait takes. Not for the pure layers (layout,
 * plan, refit).
 *
 * If the thread has set a function (xfer_interrupt_set), a long wait asks it now and then whether
 * to go on. If it says no, all deadlines made before expire in this thread; those made after, by
 * which a call cleans up, hold. */
#ifndef XFI_CLOCK_H
#define XFI_CLOCK_H

#include "plugin_api.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* The timeout of whatever has none of its own. */
#define XFI_DEFAULT_TIMEOUT_MS INT64_C(600000)

typedef struct xfi_deadline {
  int64_t at_ns;   /* time of the clock of xfi_now_ns(); INT64_MAX: never */
  int64_t made_ns; /* when the deadline was made: a later interrupt ends it; 0: none does */
  int64_t ms;      /* the timeout that it was made from; 0: none that a text could name */
} xfi_deadline;

/* Nanoseconds of CLOCK_MONOTONIC. */
XFI_PLUGIN_API int64_t xfi_now_ns(void);

/* The deadline timeout_ms from now, which never passes if that is negative or too far to count. */
XFI_PLUGIN_API xfi_deadline xfi_deadline_after(int64_t timeout_ms);

/* The deadline `ms` after another one, or after the interrupt that ended it. */
XFI_PLUGIN_API xfi_deadline xfi_deadline_later(xfi_deadline deadline, int64_t ms);

XFI_PLUGIN_API bool xfi_deadline_expired(xfi_deadline deadline);

/* Did an interrupt end the deadline before it passed? Does not ask the thread's function. */
bool xfi_deadline_was_cut(xfi_deadline deadline);

/* What ended the deadline, for a text after "before" or "until": "the deadline of 600 s". A later
 * one keeps the timeout of the deadline it was made from. Valid until the thread's next call. */
XFI_PLUGIN_API const char *xfi_deadline_end(xfi_deadline deadline);

/* Sleep for less than a second. */
static inline void xfi_sleep_ns(long ns)
{
  const struct timespec time = {0, ns};

  (void)nanosleep(&time, NULL);
}

/* The time on CLOCK_MONOTONIC until which to sleep before the next look at the deadline. */
XFI_PLUGIN_API struct timespec xfi_deadline_timespec(xfi_deadline deadline);

#endif
