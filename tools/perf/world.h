/* What the parts of xfer_perf share: the ranks, their GPU, and the results. */
#ifndef PERF_WORLD_H
#define PERF_WORLD_H

#include "progress.h"
#include "ranks.h"

#include <xfer/xfer.h>

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>

/* What the machine can do, in GB/s (the last: microseconds); 0: not measured. */
typedef enum perf_ceiling {
  CEILING_ENGINE,     /* 1-D copy engine push, first half of the GPUs to the second */
  CEILING_SENDRECV,   /* NCCL, each of the first half to each of the second */
  CEILING_BROADCAST,  /* NCCL, one large buffer from rank 0 */
  CEILING_HBM_ENGINE, /* copy within one GPU, bytes read plus written */
  CEILING_HBM_KERNEL,
  CEILING_FLAG, /* round trip of a word between two GPUs */
  N_CEILINGS,
  CEILING_NONE
} perf_ceiling;

enum { PERF_NOTE_BYTES = 200, PERF_ROWS_MAX = 64 };

/* One line of the table. Zero or negative: not measured. */
typedef struct perf_row {
  const char *name;
  double ms;
  double gbps; /* written on the slowest receiving rank */
  double ratio;
  const char *of; /* what the ratio is of */
  double bar;
  double us;    /* rows of latencies, in place of ms */
  double wrong; /* bytes; -1: nothing was checked */
  double commit_ms;
  double again_ms;
  double grown_mib; /* device memory from the plan's creation to its first run, most of any rank */
  double staging_mib;
  char note[PERF_NOTE_BYTES];
} perf_row;

typedef struct perf_world {
  perf_ranks ranks;
  int rank;
  int size;
  int n_train; /* ranks 0 .. n_train - 1 train, the others generate */
  xfer_comm *comm;
  ncclComm_t nccl;
  cudaStream_t stream;
  cudaStream_t side;
  unsigned long long *wrong; /* on the device */
  double ceiling[N_CEILINGS];
  double nccl_mib; /* device memory that NCCL took for its first messages */
  perf_row rows[PERF_ROWS_MAX];
  int n_rows;
  bool failed; /* a row was not measured */
  int iters;
  bool quick;
  bool json;           /* stdout is for one JSON object */
  const char *only;    /* parts of rows' names, with commas; NULL: all */
  const char *models;  /* the folder of tables; NULL: where the tools look for them */
  const char *problem; /* the line in use of --problem */
} perf_world;

/* Ends the process. */
_Noreturn void perf_die(const perf_world *w, const char *what, const char *why);
#define CUDA(w, function, arguments)                                                               \
  do {                                                                                             \
    cudaError_t perf_error = function arguments;                                                   \
    if (perf_error != cudaSuccess) perf_die(w, #function, cudaGetErrorString(perf_error));         \
  } while (0)
#define NCCL(w, call)                                                                              \
  do {                                                                                             \
    ncclResult_t perf_result = (call);                                                             \
    if (perf_result != ncclSuccess) perf_die(w, #call, ncclGetErrorString(perf_result));           \
  } while (0)

/* Choose the GPU and make both communicators. Collective, as all below. */
void perf_world_start(perf_world *w);
void perf_world_end(perf_world *w);

void perf_barrier(const perf_world *w);
void perf_gather(const perf_world *w, void *all, const void *mine, size_t n_bytes);
double perf_max(const perf_world *w, double mine);
double perf_sum(const perf_world *w, double mine);
/* Device memory in use, MiB. */
double perf_used_mib(const perf_world *w);

/* Where what people read goes. */
FILE *perf_text(const perf_world *w);

/* Is every rank's step done? If not, the program has failed, and `row` says what the first failed
 * rank said. */
bool perf_all(perf_world *w, perf_row *row, bool ok, const char *step);

typedef void (*perf_fn)(perf_world *w, void *context);
/* Seconds from a common barrier until `fn`, which enqueues, has ended on the stream of every rank.
 */
double perf_time(perf_world *w, perf_fn fn, void *context);
/* The median of so many, after two that do not count. */
double perf_time_median(perf_world *w, perf_fn fn, void *context, int n);

/* Is a row of that name asked for? */
bool perf_wanted(const perf_world *w, const char *name);
/* A new line of the table; NULL: not asked for. */
perf_row *perf_row_new(perf_world *w, const char *name);
/* Rank 0 prints it. */
void perf_row_done(const perf_world *w, const perf_row *row);
void perf_table(const perf_world *w);
void perf_json(const perf_world *w);

#endif
