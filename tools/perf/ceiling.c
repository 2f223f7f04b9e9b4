/* Copy engine over IPC-mapped memory, HBM, NCCL, and a word's round trip. */
#include "ceiling.h"

#include "kernels.h"

#include <string.h>

typedef struct bench {
  char *memory; /* ours, 2 * n_bytes */
  char *peer;   /* mapped; NULL: none */
  size_t n_bytes;
} bench;

static const char *const NAMES[N_CEILINGS] = {"engine",     "sendrecv",   "broadcast",
                                              "hbm_engine", "hbm_kernel", "flag"};

const char *perf_ceiling_name(perf_ceiling c)
{
  return c < N_CEILINGS ? NAMES[c] : "";
}

/* Map the memory of the rank that is our partner in the other half. */
static void map_partner(bench *b, const perf_world *w)
{
  cudaIpcMemHandle_t mine;
  cudaIpcMemHandle_t all[64];
  int partner = w->rank < w->n_train ? w->rank + w->n_train : w->rank - w->n_train;

  CUDA(w, cudaIpcGetMemHandle, (&mine, b->memory));
  perf_gather(w, all, &mine, sizeof mine);
  b->peer = NULL;
  if (partner >= w->size) return;
  CUDA(w, cudaIpcOpenMemHandle, ((void **)&b->peer, all[partner], cudaIpcMemLazyEnablePeerAccess));
}

static void push(perf_world *w, void *context)
{
  const bench *b = context;

  if (w->rank < w->n_train && b->peer != NULL)
    CUDA(w, cudaMemcpyAsync, (b->peer, b->memory, b->n_bytes, cudaMemcpyDeviceToDevice, w->stream));
}

static void hbm_engine(perf_world *w, void *context)
{
  const bench *b = context;

  CUDA(
      w, cudaMemcpyAsync,
      (b->memory + b->n_bytes / 2, b->memory, b->n_bytes / 2, cudaMemcpyDeviceToDevice, w->stream));
}

static void hbm_kernel(perf_world *w, void *context)
{
  const bench *b = context;

  if (perf_copy(b->memory + b->n_bytes / 2, b->memory, b->n_bytes / 2, w->stream) != 0)
    perf_die(w, "copy kernel", "not launched");
}

static void each_to_each(perf_world *w, void *context)
{
  const bench *b = context;
  bool trains = w->rank < w->n_train;
  int first = trains ? w->n_train : 0;
  int n = trains ? w->size - w->n_train : w->n_train;
  size_t piece = b->n_bytes / (size_t)n / 64 * 64;

  NCCL(w, ncclGroupStart());
  for (int i = 0; i < n; i++) {
    /* Each starts with another peer. */
    int k = (w->rank + i) % n;
    char *at = b->memory + piece * (size_t)k;
    if (trains)
      NCCL(w, ncclSend(at, piece, ncclChar, first + k, w->nccl, w->stream));
    else
      NCCL(w, ncclRecv(at, piece, ncclChar, first + k, w->nccl, w->stream));
  }
  NCCL(w, ncclGroupEnd());
}

static void broadcast(perf_world *w, void *context)
{
  const bench *b = context;

  NCCL(w, ncclBroadcast(b->memory, b->memory, b->n_bytes, ncclChar, 0, w->nccl, w->stream));
}

static void measure(perf_world *w, perf_ceiling which, const char *name, perf_fn fn, bench *b,
                    double n_bytes)
{
  double seconds = perf_time_median(w, fn, b, w->quick ? 3 : 7);
  perf_row *row = perf_row_new(w, name);

  w->ceiling[which] = n_bytes / seconds / 1e9;
  if (row == NULL) return;
  row->ms = seconds * 1e3;
  row->gbps = w->ceiling[which];
  perf_row_done(w, row);
}

static void ping_pong(perf_world *w, bench *b)
{
  enum { ROUNDS = 10000 };
  bool first = w->rank == 0;
  double seconds[5];
  perf_row *row;

  for (int i = 0; i < 5; i++) {
    double began;
    CUDA(w, cudaMemset, (b->memory, 0, sizeof(uint64_t)));
    CUDA(w, cudaDeviceSynchronize, ());
    perf_barrier(w);
    began = progress_now();
    if ((first || w->rank == w->n_train) && b->peer != NULL &&
        perf_ping((volatile uint64_t *)(void *)b->memory, (volatile uint64_t *)(void *)b->peer,
                  ROUNDS, first, w->stream) != 0)
      perf_die(w, "ping", "not launched");
    CUDA(w, cudaStreamSynchronize, (w->stream));
    seconds[i] = perf_max(w, first ? progress_now() - began : 0);
  }
  w->ceiling[CEILING_FLAG] = progress_median(seconds, 5) / ROUNDS * 1e6;
  row = perf_row_new(w, "ceiling flag round trip");
  if (row == NULL) return;
  row->us = w->ceiling[CEILING_FLAG];
  perf_row_done(w, row);
}

void perf_ceilings(perf_world *w)
{
  bench b = {.n_bytes = (size_t)(w->quick ? 2 : 8) << 30};

  CUDA(w, cudaMalloc, ((void **)&b.memory, b.n_bytes));
  CUDA(w, cudaMemset, (b.memory, 0x5a + w->rank, b.n_bytes));
  map_partner(&b, w);
  measure(w, CEILING_ENGINE, "ceiling copy engine", push, &b, (double)b.n_bytes);
  measure(w, CEILING_SENDRECV, "ceiling NCCL sendrecv", each_to_each, &b, (double)b.n_bytes);
  measure(w, CEILING_BROADCAST, "ceiling NCCL broadcast", broadcast, &b, (double)b.n_bytes);
  measure(w, CEILING_HBM_ENGINE, "ceiling HBM engine", hbm_engine, &b, (double)b.n_bytes);
  measure(w, CEILING_HBM_KERNEL, "ceiling HBM kernel", hbm_kernel, &b, (double)b.n_bytes);
  ping_pong(w, &b);
  perf_barrier(w);
  if (b.peer != NULL) CUDA(w, cudaIpcCloseMemHandle, (b.peer));
  perf_barrier(w);
  CUDA(w, cudaFree, (b.memory));
}
