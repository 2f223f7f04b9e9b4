/* What beside_m2n moves: lists of bf16 tensors that NCCL M2N can describe, and whole models into
 * fused tensors, which it cannot. */
#ifndef BENCH_M2N_WORKLOADS_H
#define BENCH_M2N_WORKLOADS_H

#include <stddef.h>
#include <stdint.h>

enum { BENCH_DIMS = 3, WHOLE = -1 }; /* WHOLE: no dim is sharded, each rank has the tensor */

typedef struct bench_tensor {
  int n_dims;
  int64_t shape[BENCH_DIMS];
  int sharded[2]; /* the dim that the sources share among them, and the destinations */
} bench_tensor;

/* `once`, then `repeated` so many times; or a model of models/ between two SPECs, by xfer alone. */
typedef struct bench_workload {
  const char *name;
  int per_side; /* for so many ranks a side; 0: for any */
  const bench_tensor *once;
  int n_once;
  const bench_tensor *repeated;
  int n_repeated;
  int times;
  const char *model;
  const char *train;
  const char *gen;
} bench_workload;

/* NULL: there are no more. */
const bench_workload *bench_workload_get(int i);
int bench_workload_tensors(const bench_workload *w);
const bench_tensor *bench_workload_tensor(const bench_workload *w, int i);
/* In the problem language: from ranks 0 .. per_side - 1 to as many that follow them. A mesh of one
 * rank has all tensors whole. */
void bench_tensor_line(const bench_tensor *t, int per_side, char *text, size_t size);

#endif
