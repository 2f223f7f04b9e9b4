/* A rank of test_ranks: its comm, its GPU, and tensors there that are filled and checked. */
#ifndef TESTS_GPU_RANK_WORLD_H
#define TESTS_GPU_RANK_WORLD_H

#include "perf/ranks.h"

#include <xfer/xfer.h>

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TENSORS_MAX = 8, DEADLINE_MS = 8000, POISON = 0xa5 };

typedef struct world {
  perf_ranks ranks;
  xfer_comm *comm;
  ncclComm_t borrowed;
  bool has_nccl;
  cudaStream_t stream;
  unsigned long long *wrong; /* on the device */
  bool chunked;              /* tensors are mapped chunk by chunk, */
  bool leaves;               /* which other processes may map */
  uint64_t random;           /* the same on every rank */
  uint32_t plan_flags;
  uint32_t ranks_per_domain;
  uint64_t timeout_ms; /* of plans; 0: DEADLINE_MS */
} world;

extern world w;

/* Ends the process; the others notice. */
void die(const char *file, int line, const char *what, const char *why);
#define CUDA(function, arguments)                                                                  \
  do {                                                                                             \
    cudaError_t error = function arguments;                                                        \
    if (error != cudaSuccess) die(__FILE__, __LINE__, #function, cudaGetErrorString(error));       \
  } while (0)
#define OK(call)                                                                                   \
  do {                                                                                             \
    if ((call) != XFER_OK) die(__FILE__, __LINE__, #call, xfer_last_error());                      \
  } while (0)
#define EXPECT(condition, why)                                                                     \
  do {                                                                                             \
    if (!(condition)) die(__FILE__, __LINE__, #condition, why);                                    \
  } while (0)

/* Until all ranks have come. */
void barrier(void);

/* The world of this rank, with a comm of a kind; exits where there are too few GPUs. */
void world_make(const char *kind, uint64_t seed);
int64_t from_to(int64_t a, int64_t b);
/* So far, once the stream is done. */
unsigned long long wrong_bytes(void);

/* ---- tensors ------------------------------------------------------------------------------ */

typedef struct tensor {
  char name[32];
  char line[256];
  xfer_layout *src;
  xfer_layout *dst;
  xfer_view views[2]; /* source, destination */
  char *memory[2];
  size_t n_bytes[2]; /* of memory; 0: no part */
} tensor;

/* In new memory; the source is filled. */
void tensor_make(tensor *t, int index, const char *line, bool strided);
void tensor_fill(const tensor *t);
/* Enqueue: fill this rank's source, or count in w.wrong what is wrong in its destination, padding
 * included, which has *n_bytes. False: after a message. */
bool part_visit(const tensor *t, bool is_source, uint64_t *n_bytes);
void tensors_free(tensor *tensors, int n);
/* Some tensors between the first and the second half of the ranks, small and large, dense and in
 * rows. Returns how many. */
int field_tensors(tensor *tensors);
/* Of n tensors, on the stream: destinations lose what they have, or wrong bytes are counted. */
void poison(const tensor *tensors, int n);
void check(const tensor *tensors, int n);
/* Bound, not committed. */
xfer_plan *plan_make(const tensor *tensors, int n, uint32_t lane, uint64_t window);
void bind_all(xfer_plan *plan, const tensor *tensors, int n);
/* It is gone on all ranks before memory that is mapped goes. */
void plan_end(xfer_plan *plan, tensor *tensors, int n);
void run_and_check(xfer_plan *plan, uint64_t version, const tensor *tensors, int n);

/* ---- once per domain (rank_domains.c) ------------------------------------------------------ */

void suite_domains(int n_runs);

/* ---- in trouble (rank_trouble.c) ----------------------------------------------------------- */

void suite_late(int n_rounds);
void suite_calls(int n_rounds);
void suite_stopped(int unused);
void suite_crash(int unused);
void suite_waits(int n_rounds);
void suite_captures(int n_runs);
void suite_queue(int unused);

#endif
