/*
 * Ranks as processes of one host, forked here. They meet in shared memory, so that neither MPI nor
 * NCCL is needed to bring them together. No CUDA call may come before perf_ranks_start().
 */
#ifndef PERF_RANKS_H
#define PERF_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct perf_shared perf_shared;

typedef struct perf_ranks {
  int rank;
  int size;
  perf_shared *shared;
} perf_ranks;

/*
 * Become rank `ranks->rank` of `size`. The calling process does not return: it waits for its
 * children and exits with the largest of their statuses, one that was killed (SIGKILL) counting as
 * 0 with `may_die`. If it is ended, so are they.
 */
void perf_ranks_start(perf_ranks *ranks, int size, int may_die);
/* Seconds after which a wait for another rank gives up; 0: never. Default 120. */
void perf_ranks_patience(perf_ranks *ranks, int seconds);
/* Each gives 0, or -1 when a rank did not come in time. */
int perf_ranks_barrier(perf_ranks *ranks);
/* Is no rank before this one about to say why all end? What fails on one soon does on others. */
bool perf_ranks_speak(const perf_ranks *ranks);
/* An xfer_all_gather_fn; context is the perf_ranks. */
int perf_ranks_all_gather(void *context, void *all, const void *mine, size_t n_bytes);

#endif
