/* A thread that is interrupted once, so long from now, in whatever it waits for then. */
#ifndef INTERRUPTS_H
#define INTERRUPTS_H

#include <xfer/status.h>

#include <stdint.h>
#include <time.h>

static _Thread_local int64_t interrupt_at_ns = INT64_MAX;

static inline int64_t interrupts_now_ns(void)
{
  struct timespec now = {0};

  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int comes_once(void *context)
{
  (void)context;
  if (interrupts_now_ns() < interrupt_at_ns) return 0;
  interrupt_at_ns = INT64_MAX;
  return 1;
}

static inline void interrupt_after(int64_t ms)
{
  interrupt_at_ns = interrupts_now_ns() + ms * 1000000;
  xfer_interrupt_set(comes_once, NULL);
}

static inline void interrupt_no_more(void)
{
  xfer_interrupt_set(NULL, NULL);
}

#endif
