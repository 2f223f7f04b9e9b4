#include "launch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef XFER_REFIT_MPI
#include <xfer/mpi.h>
#endif

#ifdef XFER_REFIT_CUDA
#include "cuda.h"
#endif
#include "args.h"
#include "interrupt.h"
#include "memory.h"
#include "result.h"
#include "text.h"
#include "trace.h"

static const refit_case *told(const refit_told *what, int rank)
{
  return rank < what->n_train ? &what->train : &what->gen;
}

/* ---- threads ---- */

/* All of them agree with each other: 1,000 need two seconds of two cores, 2,000 forty, and 5,000 do
 * not end. */
enum { MAX_THREADS = 1024 };

typedef struct rank_thread {
  pthread_t thread;
  xfer_comm *comm;
  const refit_case *what;
  const refit_options *options;
  refit_result result;
  char error[REFIT_ERROR_BYTES];
  bool ok;
} rank_thread;

static void *thread_main(void *context)
{
  rank_thread *t = context;

  t->ok = refit_rank(t->comm, t->what, t->options, &t->result, t->error);
  xfer_comm_destroy(t->comm);
  return NULL;
}

int launch_threads(const launch_options *options, const refit_told *all)
{
  const refit_case *what = &all->train;
  char error[128];
  int status;

  if (what->n_ranks > MAX_THREADS) {
    snprintf(error, sizeof error, "%d ranks are too many to be threads; %d is the most",
             what->n_ranks, MAX_THREADS);
    return result_failed(error);
  }
  if (options->run.trace != NULL) trace_ask(options->run.trace, -1);
  rank_thread *threads = calloc((size_t)what->n_ranks, sizeof *threads);
  xfer_comm **comms = calloc((size_t)what->n_ranks, sizeof(xfer_comm *));
  const bool memory = threads != NULL && comms != NULL;
  if (!memory || xfer_comm_create_local(comms, what->n_ranks) != XFER_OK) {
    status = result_failed(memory ? xfer_last_error() : "no memory for the ranks");
    trace_end(false);
    free(threads);
    free(comms);
    return status;
  }
  for (int r = 0; r < what->n_ranks; r++) {
    threads[r] = (rank_thread){.comm = comms[r], .what = told(all, r), .options = &options->run};
    if (pthread_create(&threads[r].thread, NULL, thread_main, &threads[r]) == 0) continue;
    trace_end(false);
    exit(result_failed("a thread cannot be started")); /* others wait for it */
  }
  for (int r = 0; r < what->n_ranks; r++)
    pthread_join(threads[r].thread, NULL);
  trace_end(!interrupt_came());
  status = threads[0].ok ? result_print(what, &threads[0].result, options->json)
                         : result_failed(threads[0].error);
  free(threads);
  free(comms);
  return status;
}

/* ---- processes ---- */

#ifdef XFER_REFIT_MPI
static xfer_comm *make_comm(const launch_options *options, const MPI_Comm *ranks, char *error,
                            size_t size)
{
  xfer_comm *comm = NULL;

#ifdef XFER_REFIT_CUDA
  if (options->run.device != NULL)
    return refit_cuda_comm(ranks, strcmp(options->comm, "nccl") == 0, error, size);
#else
  (void)options;
#endif
  if (xfer_comm_create_mpi(&comm, *ranks) != XFER_OK)
    snprintf(error, size, "%s", xfer_last_error());
  return comm;
}

/* Processes that were told different things would wait for each other for ever. */
static bool same_line(MPI_Comm ranks, uint64_t line, int n_ranks, char *error, size_t size)
{
  uint64_t *all = calloc((size_t)n_ranks, sizeof *all);
  int other = 0;

  if (all != NULL) MPI_Allgather(&line, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, ranks);
  while (all != NULL && other < n_ranks && all[other] == all[0])
    other++;
  free(all);
  if (other < n_ranks)
    snprintf(error, size, "rank %d was started with other options than rank 0", other);
  return other == n_ranks;
}

int launch_agree(int status, char why[ARGS_SENTENCE_BYTES])
{
  struct {
    int status, rank;
  } mine = {status, 0}, worst;
  char sentence[ARGS_SENTENCE_BYTES + 32];

  MPI_Comm_rank(MPI_COMM_WORLD, &mine.rank);
  MPI_Allreduce(&mine, &worst, 1, MPI_2INT, MPI_MAXLOC,
                MPI_COMM_WORLD); /* the first of the worst */
  if (worst.status == 0) return 0;
  MPI_Bcast(why, ARGS_SENTENCE_BYTES, MPI_CHAR, worst.rank, MPI_COMM_WORLD);
  if (mine.rank > 0) return worst.status;
  snprintf(sentence, sizeof sentence, "rank %d: %s", worst.rank, why);
  if (worst.rank == 0) snprintf(sentence, sizeof sentence, "%s", why);
  (void)(worst.status == ARGS_WRONG ? args_wrong("%s", sentence) : result_failed(sentence));
  return worst.status;
}

int launch_processes(const launch_options *options, const refit_told *all)
{
  const refit_case *what = &all->train;
  char error[REFIT_ERROR_BYTES] = "";
  const MPI_Comm ranks = MPI_COMM_WORLD;
  refit_result result;
  xfer_comm *comm = NULL;
  int n_ranks = 0, rank = 0, status = EXIT_SUCCESS;
  bool ok = false;

  MPI_Comm_size(ranks, &n_ranks);
  MPI_Comm_rank(ranks, &rank);
  const bool same = same_line(ranks, options->line, n_ranks, error, sizeof error);
  if (same && n_ranks != what->n_ranks)
    snprintf(error, sizeof error,
             "the job needs %d ranks, MPI started %d: start it by mpirun -n %d", what->n_ranks,
             n_ranks, what->n_ranks);
  if (same && n_ranks == what->n_ranks) {
    if (options->run.trace != NULL) trace_ask(options->run.trace, rank);
    comm = make_comm(options, &ranks, error, sizeof error);
    ok = comm != NULL && refit_rank(comm, told(all, rank), &options->run, &result, error);
  }
  xfer_comm_destroy(comm);
  trace_end(!interrupt_came());
  if (rank == 0) status = ok ? result_print(what, &result, options->json) : result_failed(error);
  if (rank != 0 && (!ok || result.wrong_bytes > 0)) status = EXIT_FAILURE;
  return status;
}
#endif
