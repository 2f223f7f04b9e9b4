/* Where test_refit_run has its ranks' memory: on simulated GPUs, one for each rank. */
#ifndef REFIT_PLACE_H
#define REFIT_PLACE_H

#include "ranks.h"
#include "sim.h"

#include <cuda_runtime_api.h>
#include <stddef.h>

static inline void place_enter(int rank)
{
  sim_rank(rank);
  (void)cudaSetDevice(rank);
}

static inline void *place_take(size_t n_bytes)
{
  void *memory = NULL;

  return cudaMalloc(&memory, n_bytes) == cudaSuccess ? memory : NULL;
}

static inline void place_give(void *memory)
{
  (void)cudaFree(memory);
}

/* Two islands that cannot reach each other, so that some of it goes through slots; within them the
 * copy engine takes what it may, however small. */
static inline xfer_status place_make_comms(xfer_comm **comms, int n_ranks)
{
  sim_config config = {.seed = 1, .n_devices = n_ranks, .small_engine = true};

  for (int d = 0; d < n_ranks; d++)
    config.apart[d] = d % 2 == 0 ? UINT64_C(0xaaaaaaaaaaaaaaaa) : UINT64_C(0x5555555555555555);
  sim_setup(&config);
  return ranks_make_comms(comms, n_ranks, COMM_NCCL, n_ranks);
}

#endif
