/* NCCL M2N's side of beside_m2n: its descriptors of a workload's tensors, and its calls. */
#ifndef BENCH_M2N_CALLS_H
#define BENCH_M2N_CALLS_H

#include "case.h"
#include "m2n_workloads.h"

#include <nccl_m2n.h>

/*
 * A way to use it. Which transport is chosen by the environment, which M2N reads when the first
 * handle of several is made: so one way is open at a time.
 */
typedef struct m2n_way {
  const char *name;
  const char *usage;
  const char *copy; /* NCCL_RESHARD_COPY_ALGORITHM */
  const char *pipe; /* NCCL_RESHARD_PIPE_NET_MODE; NULL: as it is by default */
  const char *room; /* NCCL_RESHARD_PACK_BUFFSIZES, likewise */
  int n_comms;      /* the tensors go over them in turn, each with a stream of its own */
  bool grouped;     /* all tensors between ncclM2nGroupStart() and ncclM2nGroupEnd() */
} m2n_way;

enum { N_M2N_WAYS = 5, M2N_COMMS = 4 };
extern const m2n_way m2n_ways[N_M2N_WAYS];

typedef struct m2n_tensor {
  ncclDistTensor_t sides[2];
  size_t local[2][BENCH_DIMS];
  int placements[2];
} m2n_tensor;

/* All zero: nothing made. */
typedef struct m2n {
  ncclComm_t comms[M2N_COMMS]; /* for M2N alone, which may leave them broken */
  cudaStream_t streams[M2N_COMMS];
  cudaEvent_t events[M2N_COMMS];
  ncclM2nHandle_t handle;
  ncclMesh_t meshes[2];
  int per_side;
  m2n_tensor *tensors;
  size_t n_tensors;
} m2n;

/* Collective; comms are kept from one workload to the next. */
void m2n_describe(m2n *m, const perf_world *w, const bench_workload *what, const perf_case *c);
void m2n_need_comms(m2n *m, const perf_world *w, const m2n_way *way);
void m2n_forget(m2n *m);
ncclResult_t m2n_open(m2n *m, const m2n_way *way);
/* Enqueue the whole workload. */
ncclResult_t m2n_issue(m2n *m, const m2n_way *way, cudaStream_t stream);
ncclResult_t m2n_close(m2n *m);
/* After a failure: the way's comms are no more. */
void m2n_abandon(m2n *m, const m2n_way *way);

#endif
