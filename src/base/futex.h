/* Sleeping until a word of this process's memory changes: Linux's futex, private to the process.
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

/* Sleeps until woken or the deadline; not at all if *word != seen. */
static inline void xfi_futex_wait(const _Atomic uint32_t *word, uint32_t seen,
                                  xfi_deadline deadline)
{
  struct timespec at = xfi_deadline_timespec(deadline);

  /* WAIT_BITSET, since its time is absolute and on CLOCK_MONOTONIC. */
  (void)syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, seen,
                deadline.at_ns == INT64_MAX ? NULL : &at, NULL, FUTEX_BITSET_MATCH_ANY);
}

static inline void xfi_futex_wake_all(const _Atomic uint32_t *word)
{
  (void)syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}

#endif
