/*
 * xfer_refit: carries a refit out in memory of its own, and checks every byte.
 *
 *   xfer_refit --model models/qwen3-30b-a3b.json --layers 0-1 --train megatron:tp2,dp2,ep4 --gen
 * vllm:tp4 mpirun -n 8 xfer_refit --comm mpi --problem 'bf16[4096,11008] (4)@0-3:S0 -> (4)@4-7:S1'
 *
 * Ranks are threads, or with --comm mpi processes; with nccl or cuda processes on GPUs.
 */
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef XFER_REFIT_MPI
#include <xfer/mpi.h>
#endif

#include "args.h"
#include "job.h"
#include "problem_ranks.h"
#ifdef XFER_REFIT_CUDA
#include "refit_cuda.h"
#endif
#include "refit_rank.h"

typedef struct refit_args {
  job_args job;
  const char *problem;
  const char *comm;
  const char *lane;
  int64_t window;
  bool one_sided;
  refit_options run;
  bool json;
  bool help;
} refit_args;

/* What each rank is told: ranks from n_train on are told `gen`, which may know another side than
 * `train`. */
typedef struct refit_told {
  refit_case train;
  refit_case gen;
  int n_train;
} refit_told;

static const refit_case *told(const refit_told *what, int rank)
{
  return rank < what->n_train ? &what->train : &what->gen;
}

/* ---- the last line: on stdout, or after a failure on stderr ---- */

static int print_failed(const char *error)
{
  fprintf(stderr, "refit FAILED: %s\n", error);
  return EXIT_FAILURE;
}

static int print_result(const refit_args *args, const refit_case *what, const refit_result *r)
{
  const bool ok = r->wrong_bytes == 0;

  if (args->json) {
    printf("{\"ok\":%s,\"tensors\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"moved\":%" PRIu64
           ",\"wrong\":%" PRIu64 ",\"checked\":%" PRIu64 ",\"digest\":\"%016" PRIx64
           "\",\"ms\":%.3f,\"plan_ms\":%.3f,\"ranks\":%d}\n",
           ok ? "true" : "false", what->names, what->payload_bytes, r->moved_bytes, r->wrong_bytes,
           r->checked_bytes, r->digest, r->ms, r->plan_ms, what->n_ranks);
  }
  fprintf(ok ? stdout : stderr,
          "refit %s: tensors=%" PRIu64 " bytes=%" PRIu64 " moved=%" PRIu64 " wrong=%" PRIu64
          " digest=%016" PRIx64 " ms=%.3f\n",
          ok ? "ok" : "FAILED", what->names, what->payload_bytes, r->moved_bytes, r->wrong_bytes,
          r->digest, r->ms);
  return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- ranks as threads ---- */

enum { MAX_THREADS = 1 << 15 }; /* as many as Linux grants a process by default */

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

static int run_threads(const refit_args *args, const refit_told *all)
{
  const refit_case *what = &all->train;
  char error[128];
  int status;

  if (what->n_ranks > MAX_THREADS) {
    snprintf(error, sizeof error, "%d ranks are too many to be threads; %d is the most",
             what->n_ranks, MAX_THREADS);
    return print_failed(error);
  }
  rank_thread *threads = calloc((size_t)what->n_ranks, sizeof *threads);
  xfer_comm **comms = calloc((size_t)what->n_ranks, sizeof(xfer_comm *));
  const bool memory = threads != NULL && comms != NULL;
  if (!memory || xfer_comm_create_local(comms, what->n_ranks) != XFER_OK) {
    status = print_failed(memory ? xfer_last_error() : "no memory for the ranks");
    free(threads);
    free(comms);
    return status;
  }
  for (int r = 0; r < what->n_ranks; r++) {
    threads[r] = (rank_thread){.comm = comms[r], .what = told(all, r), .options = &args->run};
    if (pthread_create(&threads[r].thread, NULL, thread_main, &threads[r]) != 0) {
      print_failed("a thread cannot be started");
      exit(EXIT_FAILURE); /* the ranks that have started wait for this one */
    }
  }
  for (int r = 0; r < what->n_ranks; r++)
    pthread_join(threads[r].thread, NULL);
  status =
      threads[0].ok ? print_result(args, what, &threads[0].result) : print_failed(threads[0].error);
  free(threads);
  free(comms);
  return status;
}

/* ---- ranks as processes ---- */

#ifdef XFER_REFIT_MPI
static xfer_comm *make_comm(const refit_args *args, const MPI_Comm *ranks, char *error, size_t size)
{
  xfer_comm *comm = NULL;

#ifdef XFER_REFIT_CUDA
  if (args->run.device != NULL)
    return refit_cuda_comm(ranks, strcmp(args->comm, "nccl") == 0, error, size);
#else
  (void)args;
#endif
  if (xfer_comm_create_mpi(&comm, *ranks) != XFER_OK)
    snprintf(error, size, "%s", xfer_last_error());
  return comm;
}

static int run_processes(const refit_args *args, const refit_told *all)
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
  if (n_ranks != what->n_ranks) {
    snprintf(error, sizeof error, "the job needs %d ranks, MPI started %d", what->n_ranks, n_ranks);
  } else if ((comm = make_comm(args, &ranks, error, sizeof error)) != NULL) {
    ok = refit_rank(comm, told(all, rank), &args->run, &result, error);
  }
  xfer_comm_destroy(comm);
  if (rank == 0) status = ok ? print_result(args, what, &result) : print_failed(error);
  if (rank != 0 && (!ok || result.wrong_bytes > 0)) status = EXIT_FAILURE;
  return status;
}
#endif

static int run_case(const refit_args *args, const refit_told *what)
{
  if (args->run.dump != NULL) mkdir(args->run.dump, 0777); /* if it cannot be, writing says so */
  if (args->run.dump_train != NULL) mkdir(args->run.dump_train, 0777);
#ifdef XFER_REFIT_MPI
  if (strcmp(args->comm, "local") != 0) return run_processes(args, what);
#endif
  return run_threads(args, what);
}

/* ---- what to run ---- */

static int run_problem(const refit_args *args)
{
  xfer_layout *src = NULL, *dst = NULL;
  int status;

  if (xfer_problem_parse(&src, &dst, args->problem) != XFER_OK)
    return print_failed(xfer_last_error());
  const xfer_tensor tensor = {"problem", src, dst, 0};
  int64_t shape[XFER_MAX_DIMS];
  const int n_dims = xfer_layout_shape(src, shape);
  const int64_t n_ranks = problem_ranks(args->problem);
  refit_case what = {(int)n_ranks, &tensor, 1, NULL, 1, xfer_dtype_size(xfer_layout_dtype(src))};

  for (int d = 0; d < n_dims; d++)
    what.payload_bytes *= (uint64_t)shape[d];
  const refit_told all = {what, what, what.n_ranks};
  if (n_ranks <= INT_MAX) {
    status = run_case(args, &all);
  } else {
    char error[64];

    snprintf(error, sizeof error, "a problem of %" PRId64 " ranks is too large", n_ranks);
    status = print_failed(error);
  }
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  return status;
}

static int run_model(const refit_args *args)
{
  job made = {0};
  xfer_refit_report_data report = XFER_REFIT_REPORT_INIT;
  refit_case what = {0};
  int status = job_create(&made, &args->job);

  if (status == EXIT_FAILURE) return print_failed(xfer_last_error());
  if (status != 0) return status;
  if (xfer_refit_report(made.refit, &report) != XFER_OK) return print_failed(xfer_last_error());
  what.n_ranks = xfer_refit_ranks(made.refit);
  what.tensors = xfer_refit_tensors(made.refit, &what.n_tensors);
  what.refit = made.refit;
  what.names = report.hf_tensors;
  what.payload_bytes = report.payload_bytes;
  refit_told all = {what, what, what.n_ranks};
  xfer_refit *train = NULL, *gen = NULL;
  if (!args->one_sided) {
    status = run_case(args, &all);
  } else if (xfer_refit_create(&train, made.model, made.train, NULL) != XFER_OK ||
             xfer_refit_create(&gen, made.model, NULL, made.gen) != XFER_OK) {
    status = print_failed(xfer_last_error());
  } else {
    all.n_train = xfer_side_size(made.train);
    all.train.refit = train;
    all.train.tensors = xfer_refit_tensors(train, NULL);
    all.gen.refit = gen;
    all.gen.tensors = xfer_refit_tensors(gen, NULL);
    status = run_case(args, &all);
  }
  xfer_refit_destroy(gen);
  xfer_refit_destroy(train);
  job_destroy(&made);
  return status;
}

/* ---- command line ---- */

/* Ranks that are processes, with GPUs or without. */
static int check_processes(refit_args *args)
{
  const bool gpus = strcmp(args->comm, "nccl") == 0 || strcmp(args->comm, "cuda") == 0;

  if (!gpus && strcmp(args->comm, "mpi") != 0)
    return args_wrong("--comm %s: want local, mpi, nccl or cuda", args->comm);
#ifndef XFER_REFIT_MPI
  return args_wrong("--comm %s: this build has no MPI", args->comm);
#elif defined XFER_REFIT_CUDA
  if (gpus) args->run.device = &refit_cuda;
  return 0;
#else
  return gpus ? args_wrong("--comm %s: this build has no CUDA", args->comm) : 0;
#endif
}

static int check_args(refit_args *args)
{
  static const char *const LANES[] = {"auto", "direct", "packed",
                                      "broadcast"}; /* as xfer_lane counts */
  const int wrong = job_check(&args->job, args->problem);
  uint32_t lane = 0;

  if (wrong != 0) return wrong;
  if (args->problem != NULL && args->one_sided)
    return args_wrong("--one-sided goes with --model, not with --problem");
  while (lane < 4 && strcmp(args->lane, LANES[lane]) != 0)
    lane++;
  if (lane == 4) return args_wrong("--lane %s: want auto, direct, packed or broadcast", args->lane);
  args->run.plan.lane = lane;
  args->run.plan.window_bytes = (uint64_t)args->window;
  args->run.progress = isatty(STDERR_FILENO) != 0;
  if (strcmp(args->comm, "local") == 0) return 0;
  return check_processes(args);
}

static int run(refit_args *args)
{
  const int status = args->problem != NULL ? run_problem(args) : run_model(args);

  if (fflush(stdout) != 0 || ferror(stdout)) {
    fprintf(stderr, "xfer_refit: the output cannot be written\n");
    return EXIT_FAILURE;
  }
  return status;
}

int main(int argc, char **argv)
{
  refit_args args = {
      .comm = "local", .lane = "auto", .run = {.plan = XFER_PLAN_OPTIONS_INIT, .iters = 1}};
  const arg_option options[] = {
      {"--model", ARG_TEXT, &args.job.model, "PATH  a model table or a checkpoint's folder", 0, 0},
      {"--train", ARG_TEXT, &args.job.train, "SPEC  who holds it, such as megatron:tp2,ep4,dp2", 0,
       0},
      {"--gen", ARG_TEXT, &args.job.gen, "SPEC  who gets it, such as vllm:tp4", 0, 0},
      {"--layers", ARG_TEXT, &args.job.layers, "A-B  only these layers of the model", 0, 0},
      {"--experts", ARG_TEXT, &args.job.experts, "A-B  only these experts of each layer", 0, 0},
      {"--ends", ARG_FLAG, &args.job.ends, "with --layers, the tensors outside the layers too", 0,
       0},
      {"--quant", ARG_TEXT, &args.job.quant, "fp8_block128  quantise the projections", 0, 0},
      {"--extra", ARG_TEXT, &args.job.extra, "NAME  add these extra_params of the table", 0, 0},
      {"--rename", ARG_TEXT, &args.job.rename, "FROM=TO,..  what names of the table mean", 0, 0},
      {"--ignore", ARG_TEXT, &args.job.ignore, "PATTERNS  leave these tensors out", 0, 0},
      {"--whole", ARG_TEXT, &args.job.whole, "PATTERN@RANK  a rank has these whole", 0, 0},
      {"--partial", ARG_FLAG, &args.job.partial, "--ignore may leave out a part of a fused tensor",
       0, 0},
      {"--rules", ARG_TEXT, &args.job.rules, "DIR  rules of families and sides beside our own", 0,
       0},
      {"--problem", ARG_TEXT, &args.problem, "LINE  one tensor, in the problem language", 0, 0},
      {"--one-sided", ARG_FLAG, &args.one_sided, "each rank is told of its own side alone", 0, 0},
      {"--comm", ARG_TEXT, &args.comm,
       "local|mpi|nccl|cuda  threads; processes; processes with a GPU each; sharing GPUs", 0, 0},
      {"--lane", ARG_TEXT, &args.lane, "auto|direct|packed|broadcast  the way of the data", 0, 0},
      {"--window", ARG_BYTES, &args.window, "BYTES  most bytes per peer and round", 1,
       INT64_C(1) << 30},
      {"--iters", ARG_INT, &args.run.iters, "N  runs; the median time counts", 1, 1000000},
      {"--dump", ARG_TEXT, &args.run.dump, "DIR  write each local tensor to RANK.NAME.bin", 0, 0},
      {"--dump-train", ARG_TEXT, &args.run.dump_train, "DIR  the same, of the training side", 0, 0},
      {"--corrupt", ARG_INT, &args.run.corrupt, "N  flip N received bytes before the check", 0, 0},
      {"--json", ARG_FLAG, &args.json, "the figures as one JSON object too", 0, 0},
      {"--help", ARG_FLAG, &args.help, "this text", 0, 0},
      {NULL, ARG_FLAG, NULL, NULL, 0, 0},
  };
  int status;

  if (!args_parse(options, argc, argv)) return ARGS_WRONG;
  if (args.help) {
    printf("xfer_refit: carries out a refit or a redistribution and checks every byte\n");
    args_help(stdout, options);
    return EXIT_SUCCESS;
  }
  status = check_args(&args);
  if (status != 0) return status;
#ifdef XFER_REFIT_MPI
  if (strcmp(args.comm, "local") != 0) {
    int provided;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    status = run(&args);
    MPI_Finalize();
    return status;
  }
#endif
  return run(&args);
}
