/* What beside_m2n measured, and how it is printed. */
#ifndef BENCH_M2N_TABLE_H
#define BENCH_M2N_TABLE_H

#include "m2n_calls.h"

enum { DIRECT, PACKED, FIRST_M2N, N_WAYS = FIRST_M2N + N_M2N_WAYS, WORKLOADS_MAX = 32 };

/* Of one way; milliseconds. */
typedef struct figures {
  bool measured;
  double setup; /* plan, bind and commit; or M2N's handle and its first call, up to its end */
  double issue; /* the host's, until all is enqueued: the slowest rank's */
  double end;
  double done;   /* our plan's wait too, which agrees among ranks */
  double beside; /* our direct lane in the same rounds */
  double mib;    /* device memory taken, most of any rank */
  double wrong;  /* bytes */
  int rounds;
  char note[PERF_NOTE_BYTES];
} figures;

/* What processes that may be ended leave behind. */
typedef struct results {
  bool started; /* the processes have their GPUs and comms */
  int at;       /* the workload in progress */
  int way;      /* and its way */
  double began;
  int failures[N_WAYS];
  bool hung[N_WAYS];
  double gb[WORKLOADS_MAX]; /* written on the rank that receives most; 0: not reached */
  figures of[WORKLOADS_MAX][N_WAYS];
} results;

const char *table_way_name(int way);
/* Rank 0 says what came of a way, when it is over. */
void table_way(const perf_world *w, int way, const figures *f);
/* A line for each workload. Returns how many bytes were wrong. */
double table_print(const results *all);

#endif
