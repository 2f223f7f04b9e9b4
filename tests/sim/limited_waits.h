/* A limit to every wait of the library, also to those of ten minutes. Of the program's link:
 * --wrap=xfi_deadline_after, and src/base is where it looks for headers. */
#ifndef XFER_SIM_LIMITED_WAITS_H
#define XFER_SIM_LIMITED_WAITS_H

#include "clock.h"

enum { LIMIT_MS = 300, LIMIT_MOST = 20000 };

static _Atomic int64_t limit_ms = LIMIT_MS; /* longer where the host is too slow for it */

xfi_deadline __real_xfi_deadline_after(int64_t timeout_ms);
xfi_deadline __wrap_xfi_deadline_after(int64_t timeout_ms);

xfi_deadline __wrap_xfi_deadline_after(int64_t timeout_ms)
{
  return __real_xfi_deadline_after(timeout_ms < limit_ms ? timeout_ms : limit_ms);
}

#endif
