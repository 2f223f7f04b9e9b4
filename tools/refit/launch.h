/* The ranks of a refit: threads of this process, or processes of MPI. */
#ifndef TOOLS_REFIT_LAUNCH_H
#define TOOLS_REFIT_LAUNCH_H

#include "args.h"
#include "rank.h"

/* What each rank is told: ranks from n_train on are told `gen`, which may know another side than
 * `train`. */
typedef struct refit_told {
  refit_case train;
  refit_case gen;
  int n_train;
} refit_told;

typedef struct launch_options {
  refit_options run;
  const char *comm; /* "local", "mpi", "nccl", "cuda" */
  uint64_t line;    /* a hash of the command line, which must be the same in every process */
  bool json;
} launch_options;

/* Both run the ranks, print the result, and return the status to end with. */
int launch_threads(const launch_options *options, const refit_told *all);
#ifdef XFER_REFIT_MPI
/* Collective over the processes, each with what its own preparations came to, `why` being what it
 * has to say of that: 0 if all have 0; else all get the worst, and rank 0 says it. */
int launch_agree(int status, char why[ARGS_SENTENCE_BYTES]);
int launch_processes(const launch_options *options, const refit_told *all);
#endif

#endif
