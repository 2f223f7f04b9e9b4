/* Ranks, their GPU and both communicators; times; agreement. */
#include "world.h"

#include "args.h"

#include <xfer/nccl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_S = 100, WARM_UP = 2 };

void perf_die(const perf_world *w, const char *what, const char *why)
{
  if (perf_ranks_speak(&w->ranks)) args_failed("rank %d: %s: %s", w->rank, what, why);
  (void)fflush(NULL);
  _exit(1);
}

void perf_barrier(const perf_world *w)
{
  perf_ranks ranks = w->ranks;

  if (perf_ranks_barrier(&ranks) != 0) perf_die(w, "barrier", "a rank did not come");
}

void perf_gather(const perf_world *w, void *all, const void *mine, size_t n_bytes)
{
  perf_ranks ranks = w->ranks;

  if (perf_ranks_all_gather(&ranks, all, mine, n_bytes) != 0)
    perf_die(w, "all-gather", "a rank did not come");
}

double perf_max(const perf_world *w, double mine)
{
  double all[64];

  perf_gather(w, all, &mine, sizeof mine);
  for (int r = 0; r < w->size; r++)
    if (all[r] > mine) mine = all[r];
  return mine;
}

double perf_sum(const perf_world *w, double mine)
{
  double all[64];

  perf_gather(w, all, &mine, sizeof mine);
  mine = 0;
  for (int r = 0; r < w->size; r++)
    mine += all[r];
  return mine;
}

double perf_used_mib(const perf_world *w)
{
  size_t left = 0;
  size_t total = 0;

  CUDA(w, cudaMemGetInfo, (&left, &total));
  return (double)(total - left) / 1048576.0;
}

bool perf_all(perf_world *w, perf_row *row, bool ok, const char *step)
{
  char mine[PERF_NOTE_BYTES] = "";
  char all[64][PERF_NOTE_BYTES];

  if (!ok) {
    const char *why = xfer_last_error();
    (void)snprintf(mine, sizeof mine, "rank %d: %s: %.150s", w->rank, step,
                   why[0] != '\0' ? why : "failed");
  }
  perf_gather(w, all, mine, sizeof mine);
  for (int r = 0; r < w->size; r++) {
    if (all[r][0] == '\0') continue;
    memcpy(row->note, all[r], sizeof row->note);
    w->failed = true;
    return false;
  }
  return true;
}

double perf_time(perf_world *w, perf_fn fn, void *context)
{
  double began = 0;
  double ended = 0;

  perf_barrier(w);
  began = progress_now();
  fn(w, context);
  CUDA(w, cudaStreamSynchronize, (w->stream));
  ended = progress_now();
  return perf_max(w, ended) + perf_max(w, -began);
}

double perf_time_median(perf_world *w, perf_fn fn, void *context, int n)
{
  double seconds[64];

  if (n > 64) n = 64;
  for (int i = -WARM_UP; i < n; i++) {
    double s = perf_time(w, fn, context);
    if (i >= 0) seconds[i] = s;
  }
  return progress_median(seconds, (size_t)n);
}

/* ---- start and end ------------------------------------------------------------------------ */

static void unique_id(const perf_world *w, unsigned char *id)
{
  unsigned char all[64][XFER_NCCL_ID_BYTES];
  unsigned char mine[XFER_NCCL_ID_BYTES] = {0};

  if (w->rank == 0 && xfer_nccl_id(mine) != XFER_OK) perf_die(w, "id", xfer_last_error());
  perf_gather(w, all, mine, sizeof mine);
  memcpy(id, all[0], XFER_NCCL_ID_BYTES);
}

/* The first messages of both communicators, so that their connections are in no row's figures. */
static void warm_up(perf_world *w)
{
  const size_t n = (size_t)1 << 20;
  char *memory = NULL;
  double before = 0;

  CUDA(w, cudaMalloc, ((void **)&memory, 2 * n * (size_t)w->size));
  before = perf_used_mib(w);
  NCCL(w, ncclGroupStart());
  for (int r = 0; r < w->size; r++) {
    if (r == w->rank) continue;
    NCCL(w, ncclSend(memory + n * (size_t)r, n, ncclChar, r, w->nccl, w->stream));
    NCCL(w, ncclRecv(memory + n * (size_t)(w->size + r), n, ncclChar, r, w->nccl, w->stream));
  }
  NCCL(w, ncclGroupEnd());
  NCCL(w, ncclBroadcast(memory, memory, n, ncclChar, 0, w->nccl, w->stream));
  CUDA(w, cudaStreamSynchronize, (w->stream));
  w->nccl_mib = perf_max(w, perf_used_mib(w) - before);
  CUDA(w, cudaFree, (memory));
}

void perf_world_start(perf_world *w)
{
  unsigned char id[XFER_NCCL_ID_BYTES];
  ncclUniqueId unique;
  int n_gpus = 0;

  perf_ranks_patience(&w->ranks, PATIENCE_S);
  if (cudaGetDeviceCount(&n_gpus) != cudaSuccess || n_gpus < w->size) {
    if (w->rank == 0) args_failed("%d GPUs are wanted, %d are here", w->size, n_gpus);
    (void)fflush(NULL);
    _exit(EXIT_FAILURE);
  }
  CUDA(w, cudaSetDevice, (w->rank));
  CUDA(w, cudaStreamCreateWithFlags, (&w->stream, cudaStreamNonBlocking));
  CUDA(w, cudaStreamCreateWithFlags, (&w->side, cudaStreamNonBlocking));
  CUDA(w, cudaMalloc, ((void **)&w->wrong, sizeof *w->wrong));
  unique_id(w, id);
  memcpy(&unique, id, sizeof unique);
  NCCL(w, ncclCommInitRank(&w->nccl, w->size, unique, w->rank));
  unique_id(w, id);
  if (xfer_comm_create_nccl_id(&w->comm, id, w->rank, w->size) != XFER_OK)
    perf_die(w, "comm", xfer_last_error());
  warm_up(w);
}

void perf_world_end(perf_world *w)
{
  xfer_comm_destroy(w->comm);
  NCCL(w, ncclCommDestroy(w->nccl));
  CUDA(w, cudaFree, (w->wrong));
}
