/* Counts a rank's all-gathers and exchanges with peers. */
#ifndef COUNTED_CALLS_H
#define COUNTED_CALLS_H

#include "object.h"

static const xfi_comm_ops *real;
static xfi_comm_ops counting;
static _Thread_local int n_gathers;
static _Thread_local int n_exchanges;

static inline xfer_status count_gather(xfi_comm *comm, void *all, const void *mine, size_t n_bytes,
                                       xfi_deadline deadline)
{
  n_gathers++;
  return real->all_gather(comm, all, mine, n_bytes, deadline);
}

static inline xfer_status count_exchange(xfi_comm *comm, const xfi_messages *messages,
                                         xfi_deadline deadline)
{
  n_exchanges++;
  return real->exchange(comm, messages, deadline);
}

/* The comms are of one kind; until uncount_calls() theirs are counted by the calling thread. */
static inline void count_calls(xfer_comm **comms, int n)
{
  real = comms[0]->transport->ops;
  counting = *real;
  counting.all_gather = count_gather;
  if (real->exchange != NULL) counting.exchange = count_exchange;
  for (int r = 0; r < n; r++)
    comms[r]->transport->ops = &counting;
}

static inline void uncount_calls(xfer_comm **comms, int n)
{
  for (int r = 0; r < n; r++)
    comms[r]->transport->ops = real;
}

#endif
