/* Sleeping until a word of memory changes: Linux's futex, of this process's memory or of memory
 * that processes share.
 *
 * The use is always a loop: read the word, look whether what is waited for is there, else sleep
 * with the value that was read. Both calls may return early or for nothing.
 */
#ifndef XFI_FUTEX_H
#define XFI_FUTEX_H

#include "clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether other processes map the word, or this process alone, for which the calls are cheaper. */
enum { XFI_FUTEX_SHARED = 0, XFI_FUTEX_OWN = FUTEX_PRIVATE_FLAG };

/* Sleeps until it is woken, or the deadline at the latest; not at all if *word != seen. */
static inline void xfi_futex_wait(const _Atomic uint32_t *word, uint32_t seen,
                                  xfi_deadline deadline, int whose)
{
  const struct timespec at = xfi_deadline_timespec(deadline);

  /* WAIT_BITSET, since its time is absolute and on CLOCK_MONOTONIC. */
  (void)syscall(SYS_futex, word, FUTEX_WAIT_BITSET | whose, seen, &at, NULL,
                FUTEX_BITSET_MATCH_ANY);
}

static inline void xfi_futex_wake_all(const _Atomic uint32_t *word, int whose)
{
  (void)syscall(SYS_futex, word, FUTEX_WAKE | whose, INT_MAX, NULL, NULL, 0);
}

#endif
