/*
 * Refits of reduced models on GPUs, many in one job of MPI, since a process takes long to start
 * with a GPU:
 *
 *   mpirun -n 16 test_refits nccl|cuda FILE
 *
 * Each line of FILE has the options of a refit: --model, --train, --gen. Its ranks are the
 * first processes. Prints a line of JSON each, with "wrong" and "sum" as xfer_refit does; the
 * number of ranks alone where that is larger than the job.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "job.h"
#include "refit/cuda.h"
#include "refit/rank.h"

enum { WORDS_MAX = 32, LINE_BYTES = 4096 };

static int rank;
static int n_processes;

static void die(const char *line, const char *why)
{
  fprintf(stderr, "rank %d: %s: %s\n", rank, line, why);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void run(const refit_case *what, bool nccl, const char *line)
{
  refit_options options = {.plan = XFER_PLAN_OPTIONS_INIT, .iters = 2, .device = &refit_cuda};
  refit_result result = {0};
  char error[REFIT_ERROR_BYTES] = "";
  MPI_Comm ranks;

  MPI_Comm_split(MPI_COMM_WORLD, rank < what->n_ranks ? 0 : MPI_UNDEFINED, rank, &ranks);
  if (ranks == MPI_COMM_NULL) return;
  xfer_comm *comm = refit_cuda_comm(&ranks, nccl, error, sizeof error);
  if (comm == NULL || !refit_rank(comm, what, &options, &result, error)) die(line, error);
  xfer_comm_destroy(comm);
  MPI_Comm_free(&ranks);
  if (rank == 0)
    printf("{\"ranks\":%d,\"checked\":%" PRIu64 ",\"wrong\":%" PRIu64 ",\"sum\":\"%016" PRIx64
           "\"}\n",
           what->n_ranks, result.checked_bytes, result.wrong_bytes, result.sum);
}

static void run_line(char *line, bool nccl)
{
  char whole[LINE_BYTES];
  char *words[WORDS_MAX] = {"test_refits"};
  char *rest = NULL;
  int n_words = 1;
  job_args args = {0};
  job made = {0};
  refit_case what = {0};
  const arg_option options[] = {{"--model", ARG_TEXT, &args.model, "", 0, 0},
                                {"--train", ARG_TEXT, &args.train, "", 0, 0},
                                {"--gen", ARG_TEXT, &args.gen, "", 0, 0},
                                {NULL, ARG_FLAG, NULL, NULL, 0, 0}};
  static const char *const examples[] = {NULL};
  const arg_program program = {"test_refits", "", "", options, examples, NULL};

  line[strcspn(line, "\n")] = '\0';
  (void)snprintf(whole, sizeof whole, "%s", line);
  for (char *word = strtok_r(line, " ", &rest); word != NULL && n_words < WORDS_MAX;
       word = strtok_r(NULL, " ", &rest))
    words[n_words++] = word;
  if (args_parse(&program, n_words, words) != ARGS_GO_ON || job_create(&made, &args) != 0)
    die(whole, xfer_last_error());
  what.n_ranks = xfer_refit_ranks(made.refit);
  what.tensors = xfer_refit_tensors(made.refit, &what.n_tensors);
  what.refit = made.refit;
  if (what.n_ranks <= n_processes)
    run(&what, nccl, whole);
  else if (rank == 0)
    printf("{\"ranks\":%d}\n", what.n_ranks);
  job_destroy(&made);
}

int main(int argc, char **argv)
{
  char line[LINE_BYTES];
  int provided;

  if (argc != 3) return EXIT_FAILURE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n_processes);
  FILE *file = fopen(argv[2], "r");
  if (file == NULL) die(argv[2], "cannot be read");
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    run_line(line, strcmp(argv[1], "nccl") == 0);
  if (file != NULL) fclose(file);
  MPI_Finalize();
  return EXIT_SUCCESS;
}
