/* Time that never jumps, and deadlines. */
#include "clock.h"

#include "checked.h"

enum { NS_PER_MS = 1000000, NS_PER_S = 1000000000 };

int64_t xfi_now_ns(void)
{
  struct timespec now = {0};

  (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail: the clock exists on every Linux */
  return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

xfi_deadline xfi_deadline_after(int64_t timeout_ms)
{
  xfi_deadline deadline = {INT64_MAX};
  int64_t ns = 0;
  int64_t at = 0;

  if (timeout_ms < 0) return deadline;
  if (!xfi_imul_fits(timeout_ms, NS_PER_MS, &ns)) return deadline;
  if (!xfi_iadd_fits(xfi_now_ns(), ns, &at)) return deadline;
  deadline.at_ns = at;
  return deadline;
}

bool xfi_deadline_expired(xfi_deadline deadline)
{
  return deadline.at_ns != INT64_MAX && xfi_now_ns() >= deadline.at_ns;
}

int64_t xfi_deadline_left_ms(xfi_deadline deadline)
{
  if (deadline.at_ns == INT64_MAX) return INT64_MAX;
  int64_t left = deadline.at_ns - xfi_now_ns();
  if (left <= 0) return 0;
  return (left - 1) / NS_PER_MS + 1;
}

struct timespec xfi_deadline_timespec(xfi_deadline deadline)
{
  return (struct timespec){.tv_sec = (time_t)(deadline.at_ns / NS_PER_S),
                           .tv_nsec = (long)(deadline.at_ns % NS_PER_S)};
}
