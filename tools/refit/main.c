/*
 * xfer_refit: carries a refit out in memory of its own, and checks every byte.
 *
 *   xfer_refit --model models/qwen3-4b.json --layers 0-1 --train fsdp:dp8 --gen vllm:tp2
 *   mpirun -n 8 xfer_refit --comm mpi --problem 'bf16[4096,11008] (4)@0-3:S0 -> (4)@4-7:S1'
 *
 * Ranks are threads, or with --comm mpi processes; with nccl or cuda processes on GPUs.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#ifdef XFER_REFIT_MPI
#include <mpi.h>
#endif

#include "args.h"
#include "bytes.h"
#include "fill_change.h"
#include "inputs.h"
#include "interrupt.h"
#include "job.h"
#include "launch.h"
#include "output.h"
#include "problem.h"
#include "result.h"
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

/* ---- what to run ---- */

/* What the ranks are told to do, and the objects that it is made of. */
typedef struct work {
  refit_told told;
  problem problem;
  job made;                /* of a model, */
  xfer_refit *train, *gen; /* one-sided */
} work;

static void work_free(work *w)
{
  problem_destroy(&w->problem);
  xfer_refit_destroy(w->gen);
  xfer_refit_destroy(w->train);
  job_destroy(&w->made);
}

/* Makes the work of --problem. Returns 0, or an exit status after a sentence on stderr, as the
 * functions below. */
static int make_problem(work *w, const refit_args *args)
{
  const problem *p = &w->problem;
  const int status = problem_create(&w->problem, args->problem);

  if (status != 0) return status;
  int64_t shape[XFER_MAX_DIMS];
  const int n_dims = xfer_layout_shape(p->src, shape);
  const size_t elem_bytes = xfer_dtype_size(xfer_layout_dtype(p->dst));
  const refit_case what = {.n_ranks = p->n_ranks,
                           .tensors = &p->tensor,
                           .n_tensors = 1,
                           .names = 1,
                           .payload_bytes = bytes_of(shape, n_dims, elem_bytes)};

  w->told = (refit_told){what, what, what.n_ranks};
  return 0;
}

static int check_conversions(const refit_case *what, bool one_sided)
{
  fill_change change;
  size_t of;

  for (size_t t = 0; t < what->n_tensors; t++) {
    if (what->tensors[t].conversion.kind != XFER_CONVERSION_NONE && one_sided)
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

/* Makes two refits that know one side each, so that no rank knows both. */
static int make_sides(work *w)
{
  const job *made = &w->made;
  refit_told *told = &w->told;

  if (xfer_refit_create(&w->train, made->model, made->train, NULL) != XFER_OK ||
      xfer_refit_create(&w->gen, made->model, NULL, made->gen) != XFER_OK)
    return result_failed(xfer_last_error());
  told->n_train = xfer_side_size(made->train);
  told->train.refit = w->train;
  told->train.tensors = xfer_refit_tensors(w->train, &told->train.n_tensors);
  told->gen.refit = w->gen;
  told->gen.tensors = xfer_refit_tensors(w->gen, &told->gen.n_tensors);
  return 0;
}

static int make_model(work *w, const refit_args *args)
{
  xfer_refit_report_data report = XFER_REFIT_REPORT_INIT;
  refit_case what = {0};
  int status = job_create(&w->made, &args->job);

  if (status != 0) return status;
  if (xfer_refit_report(w->made.refit, &report) != XFER_OK) return result_failed(xfer_last_error());
  what.n_ranks = xfer_refit_ranks(w->made.refit);
  what.tensors = xfer_refit_tensors(w->made.refit, &what.n_tensors);
  what.refit = w->made.refit;
  what.names = report.hf_tensors;
  what.payload_bytes = report.payload_bytes;
  what.misc_bytes = report.misc_bytes;
  what.partial = args->job.partial;
  w->told = (refit_told){what, what, what.n_ranks};
  status = check_conversions(&what, args->one_sided);
  return status == 0 && args->one_sided ? make_sides(w) : status;
}

static int make_work(work *w, const refit_args *args)
{
  return args->problem != NULL ? make_problem(w, args) : make_model(w, args);
}

static int run(const refit_args *args)
{
  work w = {0};
  int status;

#ifdef XFER_REFIT_MPI
  if (strcmp(args->launch.comm, "local") != 0) {
    char why[ARGS_SENTENCE_BYTES] = "";

    args_keep(why); /* no process may go on to the others while one has nothing to run */
    status = make_work(&w, args);
    args_keep(NULL);
    status = launch_agree(status, why);
    if (status == 0) status = launch_processes(&args->launch, &w.told);
    work_free(&w);
    return args_end(status);
  }
#endif
  status = make_work(&w, args);
  if (status == 0) status = launch_threads(&args->launch, &w.told);
  work_free(&w);
  return args_end(status);
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

/* Ranks that are threads: one process is enough. All that were started say so: the first may have
 * been told something else. */
static int check_threads(void)
{
  long rank = 0;
  const long n = started_with(&rank);

  if (n <= 1) return 0;
  return args_wrong(
      "mpirun started %ld processes, and each would do the whole job in threads; give "
      "--comm mpi, or nccl or cuda for GPUs",
      n);
}

/* Names the library that this build lacks for ranks that are processes, with GPUs or without; NULL:
 * none. */
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

  if (what == NULL) return 0;
  return args_wrong("--comm %s: this build has no %s; xfer_info says what it has",
                    args->launch.comm, what);
}

/* Checks the file of --trace. Ranks that are processes write a trace each. */
static int check_trace(const refit_args *args)
{
  const char *name = args->launch.run.trace;
  char path[OUTPUT_PATH_BYTES];
  long rank = 0;

  (void)started_with(&rank);
  if (name != NULL && output_is_stdout(name))
    return args_wrong("--trace %s: standard output goes to that file, and has the result", name);
  if (name == NULL || strcmp(args->launch.comm, "local") == 0)
    return inputs_check(&args->job, "--trace", name);
  snprintf(path, sizeof path, "%s.%ld", name, rank);
  return inputs_check(&args->job, "--trace", path);
}

/* Refuses one folder for the dumps of both sides, since they have tensors of the same names. */
static int check_files(const refit_options *options)
{
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
  if (wrong == 0) wrong = check_trace(args);
  if (wrong != 0) return wrong;
  while (strcmp(args->lane, LANES[lane]) != 0) /* it is one of the choices */
    lane++;
  args->launch.run.plan.lane = lane;
  args->launch.run.plan.window_bytes = (uint64_t)args->window;
  return strcmp(args->launch.comm, "local") == 0 ? check_threads() : check_processes(args);
}

/* A number that differs where the words do. */
static uint64_t hash_words(int argc, char **argv)
{
  uint64_t h = 0;

  for (int i = 1; i < argc; i++)
    h = h * 31 + fill_box_seed(argv[i]);
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
      {"--dump", ARG_TEXT, &run_options->dump,
       "DIR  each local tensor as RANK.NAME.bin; made if it is not there", 0, 0},
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
  const arg_program program = {
      "xfer_refit", "carries out a refit or a redistribution and checks every byte",
      about,        options,
      examples,     "refit FAILED"};

  args->launch.line = hash_words(argc, argv);
  return args_parse(&program, argc, argv);
}

#ifdef XFER_REFIT_MPI
static int run_processes(const refit_args *args, int argc, char **argv)
{
  int level, status;

  /* CUDA and NCCL have threads, which do not call MPI. */
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  status = run(args);
  MPI_Finalize();
  return status;
}
#endif

int main(int argc, char **argv)
{
  refit_args args = {
      .lane = "auto",
      .launch = {.comm = "local", .run = {.plan = XFER_PLAN_OPTIONS_INIT, .iters = 1}}};
  long rank = 0;

  (void)started_with(&rank);
  if (rank > 0) args_follow();
  int status = parse(&args, argc, argv);

  if (status != ARGS_GO_ON) return status;
  status = check_args(&args);
  if (status != 0) return status;
  interrupt_catch();
#ifdef XFER_REFIT_MPI
  if (strcmp(args.launch.comm, "local") != 0) return run_processes(&args, argc, argv);
#endif
  return run(&args);
}
