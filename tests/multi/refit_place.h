/* Where test_refit_run has its ranks' memory: on the host. tests/sim has one for simulated GPUs. */
#ifndef REFIT_PLACE_H
#define REFIT_PLACE_H

#include <stdlib.h>
#include <xfer/xfer.h>

static inline void place_enter(int rank)
{
  (void)rank;
}

static inline void *place_take(size_t n_bytes)
{
  return malloc(n_bytes);
}

static inline void place_give(void *memory)
{
  free(memory);
}

static inline xfer_status place_make_comms(xfer_comm **comms, int n_ranks)
{
  return xfer_comm_create_local(comms, n_ranks);
}

#endif
