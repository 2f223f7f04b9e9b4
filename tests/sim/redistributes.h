/* Tensors that ranks of the simulated machine redistribute, one call after the other. For one file
 * of a program. */
#ifndef XFER_SIM_REDISTRIBUTES_H
#define XFER_SIM_REDISTRIBUTES_H

#include "world.h"

enum { WIDTH = 3000 };

static tensor tensors[WORLD_RANKS];

static xfer_status redistribute(int rank, cudaStream_t stream)
{
  return tensor_redistribute(&tensors[rank], stream);
}

static void redistribute_well(int rank, cudaStream_t stream, uint64_t key)
{
  tensor_fill(&tensors[rank], key, 0x5a);
  tensor_open(&tensors[rank], key);
  OK(redistribute(rank, stream));
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  tensor_close(&tensors[rank]);
  NEED(tensor_holds(&tensors[rank], key));
  NEED_NO_VIOLATION();
  ranks_barrier();
}

#endif
