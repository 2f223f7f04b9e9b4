/* Deadlines that pass because one rank does not come. On a loaded host another one may be late too,
 * and be named in its place; so what is expected then is tried again with more time.
 */
#ifndef UNIT_IN_TIME_H
#define UNIT_IN_TIME_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { MORE_TIME = 6, MOST_TIME_MS = 7000 };

static int64_t time_ms;      /* the deadline of this try */
static _Atomic int n_untrue; /* of what it expects */

#define expect_in_time(cond)                                                                       \
  do {                                                                                             \
    if (!(cond)) {                                                                                 \
      (void)fprintf(stderr, "%s:%d: within %lld ms not so: %s\n", __FILE__, __LINE__,              \
                    (long long)time_ms, #cond);                                                    \
      atomic_fetch_add(&n_untrue, 1);                                                              \
    }                                                                                              \
  } while (0)

/* Tries until all is as expected; false: it never was. */
static inline bool in_time(int64_t first_ms, void (*try_it)(void *context), void *context)
{
  for (time_ms = first_ms;; time_ms *= MORE_TIME) {
    n_untrue = 0;
    try_it(context);
    if (n_untrue == 0) return true;
    if (time_ms >= MOST_TIME_MS) return false;
  }
}

#endif
