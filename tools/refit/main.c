/*
 * xfer_refit: carries a refit out in memory of its own, and checks every byte.
 *
 *   xfer_refit --model models/qwen3-30b-a3b.json --layers 0-1 --train megatron:tp2,dp2,ep4 --gen
 * vllm:tp4 mpirun -n 8 xfer_refit --comm mpi --problem 'bf16[4096,11008] (4)@0-3:S0 -> (4)@4-7:S1'
 *
 * Ranks are threads, or with --comm mpi processes; with nccl or cuda processes on GPUs.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef XFER_REFIT_MPI
#include <mpi.h>
#endif

#include "args.h"
#include "fill_change.h"
#include "interrupt.h"
#include "job.h"
#include "launch.h"
#include "output.h"
#include "problem_ranks.h"
#include "result.h"
#include "trace.h"
#ifdef XFER_REFIT_CUDA
#include "cuda.h"
#endif

typedef struct refit_args {
  job_args job;
  const char *problem;
  const char *lane;
  int64_t window;
  bool one_sided;
  launch_options launch;
} refit_args;

/* Of processes each has a file. Where it cannot be written, rank.c says so. */
static void ask_for_trace(const launch_options *options)
{
  int rank = -1;

#ifdef XFER_REFIT_MPI
  if (strcmp(options->comm, "local") != 0) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#endif
  trace_ask(options->run.trace, rank);
}

static int run_case(refit_args *args, const refit_told *what)
{
  if (args->launch.run.trace != NULL) ask_for_trace(&args->launch);
#ifdef XFER_REFIT_MPI
  if (strcmp(args->launch.comm, "local") != 0) return launch_processes(&args->launch, what);
#endif
  return launch_threads(&args->launch, what);
}

/* ---- what to run ---- */

static int run_problem(refit_args *args)
{
  xfer_layout *src = NULL, *dst = NULL;
  const int64_t n_ranks = problem_ranks(args->problem);
  char error[64];
  int status;

  if (problem_is_too_large(n_ranks)) {
    snprintf(error, sizeof error, "a problem of %" PRId64 " ranks is too large", n_ranks);
    return result_failed(error);
  }
  const xfer_status st = xfer_problem_parse(&src, &dst, args->problem);
  if (st == XFER_ERR_NOMEM) return result_failed(xfer_last_error());
  if (st != XFER_OK) return args_wrong("--problem: %s", xfer_last_error());
  const xfer_conversion cast =
      xfer_layout_dtype(src) != xfer_layout_dtype(dst) ? xfer_convert_cast() : 0;
  const xfer_tensor tensor = {"problem", src, dst, cast};
  int64_t shape[XFER_MAX_DIMS];
  const int n_dims = xfer_layout_shape(src, shape);
  refit_case what = {(int)n_ranks, &tensor, 1, NULL, 1, xfer_dtype_size(xfer_layout_dtype(src)), 0};

  for (int d = 0; d < n_dims; d++)
    what.payload_bytes *= (uint64_t)shape[d];
  const refit_told all = {what, what, what.n_ranks};
  status = run_case(args, &all);
  xfer_layout_destroy(src);
  xfer_layout_destroy(dst);
  return status;
}

/* 0, or ARGS_WRONG after a sentence. */
static int check_conversions(const refit_case *what, bool one_sided)
{
  fill_change change;
  size_t of;

  for (size_t t = 0; t < what->n_tensors; t++) {
    if (what->tensors[t].conversion != 0 && one_sided)
      return args_wrong(
          "--one-sided: \"%s\" is converted, of which a rank that knows one side alone "
          "cannot know",
          what->tensors[t].name);
    if (!fill_change_of(what->tensors, t, false, &change, &of))
      return args_wrong("\"%s\" is converted in a way that is not checked here; xfer_plan plans it",
                        what->tensors[t].name);
  }
  return 0;
}

static int run_model(refit_args *args)
{
  job made = {0};
  xfer_refit_report_data report = XFER_REFIT_REPORT_INIT;
  refit_case what = {0};
  int status = job_create(&made, &args->job);

  if (status == EXIT_FAILURE) return result_failed(xfer_last_error());
  if (status != 0) return status;
  if (xfer_refit_report(made.refit, &report) != XFER_OK) status = result_failed(xfer_last_error());
  what.n_ranks = xfer_refit_ranks(made.refit);
  what.tensors = xfer_refit_tensors(made.refit, &what.n_tensors);
  what.refit = made.refit;
  what.names = report.hf_tensors;
  what.payload_bytes = report.payload_bytes;
  what.misc_bytes = report.misc_bytes;
  refit_told all = {what, what, what.n_ranks};
  xfer_refit *train = NULL, *gen = NULL;
  if (status == 0) status = check_conversions(&what, args->one_sided);
  if (status != 0) {
    job_destroy(&made);
    return status;
  }
  if (!args->one_sided) {
    status = run_case(args, &all);
  } else if (xfer_refit_create(&train, made.model, made.train, NULL) != XFER_OK ||
             xfer_refit_create(&gen, made.model, NULL, made.gen) != XFER_OK) {
    status = result_failed(xfer_last_error());
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

/* How many processes a launcher of MPI started with this one; 1: none did. `rank` receives which of
 * them this is. */
static long started_with(long *rank)
{
  static const char *const names[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                         {"PMI_SIZE", "PMI_RANK"},
                                         {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"}};

  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *size = getenv(names[i][0]);
    const char *number = getenv(names[i][1]);

    if (size == NULL) continue;
    *rank = number != NULL ? strtol(number, NULL, 10) : 0;
    return strtol(size, NULL, 10);
  }
  return 1;
}

/* The first process says what is wrong. A launcher ends all when one has failed, so the others give
 * it the time. */
static int leave_it_to_the_first(void)
{
  (void)sleep(1);
  return ARGS_WRONG;
}

/* Ranks that are threads: one process is enough. */
static int check_threads(void)
{
  long rank = 0;
  const long n = started_with(&rank);

  if (n <= 1) return 0;
  if (rank > 0) return leave_it_to_the_first();
  return args_wrong(
      "mpirun started %ld processes, and each would do the whole job in threads; give "
      "--comm mpi, or nccl or cuda for GPUs",
      n);
}

/* What this build lacks for ranks that are processes, with GPUs or without; NULL: nothing. */
static const char *lacks(refit_args *args)
{
#ifndef XFER_REFIT_MPI
  (void)args;
  return "MPI";
#else
  if (strcmp(args->launch.comm, "mpi") == 0) return NULL;
#ifdef XFER_REFIT_CUDA
  args->launch.run.device = &refit_cuda;
  return NULL;
#else
  return "CUDA";
#endif
#endif
}

static int check_processes(refit_args *args)
{
  const char *what = lacks(args);
  long rank = 0;

  if (what == NULL) return 0;
  (void)started_with(&rank);
  if (rank > 0) return leave_it_to_the_first();
  return args_wrong("--comm %s: this build has no %s; xfer_info says what it has",
                    args->launch.comm, what);
}

/* Both sides have tensors of the same names. */
static int check_files(const refit_options *options)
{
  if (options->dump != NULL && options->dump[0] == '\0')
    return args_wrong("--dump wants the name of a folder");
  if (options->dump_train != NULL && options->dump_train[0] == '\0')
    return args_wrong("--dump-train wants the name of a folder");
  if (options->trace != NULL && options->trace[0] == '\0')
    return args_wrong("--trace wants the name of a file");
  if (options->dump != NULL && options->dump_train != NULL &&
      output_is_same(options->dump, options->dump_train))
    return args_wrong(
        "--dump and --dump-train want a folder each: their files have the same names");
  return 0;
}

static int check_args(refit_args *args)
{
  static const char *const LANES[] = {"auto", "direct", "packed",
                                      "broadcast"}; /* as xfer_lane counts */
  static const arg_rule rules[] = {JOB_RULES,
                                   {"--one-sided", "--model", NULL},
                                   {"--window", NULL, "--lane=direct"},
                                   {NULL, NULL, NULL}};
  int wrong = job_check(&args->job, args->problem);
  uint32_t lane = 0;

  if (wrong == 0) wrong = args_check(rules);
  if (wrong == 0) wrong = check_files(&args->launch.run);
  if (wrong != 0) return wrong;
  while (strcmp(args->lane, LANES[lane]) != 0) /* it is one of the choices */
    lane++;
  args->launch.run.plan.lane = lane;
  args->launch.run.plan.window_bytes = (uint64_t)args->window;
  return strcmp(args->launch.comm, "local") == 0 ? check_threads() : check_processes(args);
}

static int run(refit_args *args)
{
  return args_end(args->problem != NULL ? run_problem(args) : run_model(args));
}

/* A number that differs where the words do. */
static uint64_t hash_words(int argc, char **argv)
{
  uint64_t h = UINT64_C(0xcbf29ce484222325);

  for (int i = 1; i < argc; i++)
    for (const char *c = argv[i];; c++) {
      h = (h ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
      if (*c == '\0') break;
    }
  return h;
}

static int parse(refit_args *args, int argc, char **argv)
{
  refit_options *run_options = &args->launch.run;
  const arg_option options[] = {
      JOB_OPTIONS(&args->job, &args->problem),
      {"How", ARG_GROUP, NULL, NULL, 0, 0},
      {"--comm", ARG_CHOICE, &args->launch.comm,
       "local|mpi|nccl|cuda  ranks are threads; processes; processes with a GPU each; processes "
       "that may share GPUs",
       0, 0},
      {"--lane", ARG_CHOICE, &args->lane, "auto|direct|packed|broadcast  the way of the data", 0,
       0},
      {"--window", ARG_BYTES, &args->window, "BYTES  most bytes per peer and round, up to 1G", 1,
       INT64_C(1) << 30},
      {"--iters", ARG_INT, &run_options->iters, "N  runs; the median time counts", 1, 1000000},
      {"--one-sided", ARG_FLAG, &args->one_sided, "each rank is told of its own side alone", 0, 0},
      {"--corrupt", ARG_INT, &run_options->corrupt, "N  flip N received bytes before the check", 1,
       INT64_MAX},
      {"What is written", ARG_GROUP, NULL, NULL, 0, 0},
      {"--dump", ARG_TEXT, &run_options->dump, "DIR  each local tensor as RANK.NAME.bin", 0, 0},
      {"--dump-train", ARG_TEXT, &run_options->dump_train, "DIR  the same, of the training side", 0,
       0},
      {"--trace", ARG_TEXT, &run_options->trace,
       "FILE  what every rank did when, for Chrome's tracing or Perfetto; of processes FILE.RANK",
       0, 0},
      {"--json", ARG_FLAG, &args->launch.json, "one JSON object on stdout, and nothing else", 0, 0},
      {NULL, ARG_FLAG, NULL, NULL, 0, 0},
  };
  static const char *const examples[] = {
      "xfer_refit --model models/qwen3-30b-a3b.json --layers 0-1 --train megatron:tp2,dp2,ep4 "
      "--gen "
      "vllm:tp4",
      "xfer_refit --problem 'bf16[4096,11008] (2,4)@0-7:S0,R -> (4)@8-11:S1' --json",
      "mpirun -n 8 xfer_refit --comm mpi --problem 'bf16[4096,11008] (4)@0-3:S0 -> (4)@4-7:S1'",
      NULL};
  static const char about[] =
      "Makes the tensors of both sides in memory of its own, on the host or on GPUs, fills the "
      "sources with values that depend on a tensor's name and the index of the element, carries "
      "the refit out as a program would through the library, and compares every byte that "
      "arrived. The last line is for programs; --json is for them alone.";
  const arg_program program = {"xfer_refit",
                               "carries out a refit or a redistribution and checks every byte",
                               about, options, examples};

  args->launch.line = hash_words(argc, argv);
  return args_parse(&program, argc, argv);
}

int main(int argc, char **argv)
{
  refit_args args = {
      .lane = "auto",
      .launch = {.comm = "local", .run = {.plan = XFER_PLAN_OPTIONS_INIT, .iters = 1}}};
  long rank = 0;

  (void)started_with(&rank);
  if (rank > 0) args_leave_object();
  int status = parse(&args, argc, argv);

  if (status != ARGS_GO_ON) return status;
  status = check_args(&args);
  if (status != 0) return status;
  interrupt_catch();
#ifdef XFER_REFIT_MPI
  if (strcmp(args.launch.comm, "local") != 0) {
    int provided;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    status = run(&args);
    MPI_Finalize();
    return status;
  }
#endif
  return run(&args);
}
