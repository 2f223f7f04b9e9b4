/*
 * xfer_plan: what a redistribution or a refit will do, found without ranks, memory or a network.
 *
 *   xfer_plan --problem 'bf16[4096,11008] (2,4)@0-7:S0,R -> (4)@8-11:S1'
 *   xfer_plan --model models/qwen3-30b-a3b.json --train megatron:tp2,ep4,dp2 --gen vllm:tp4 --json
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <xfer/xfer.h>

#include "args.h"
#include "inputs.h"
#include "interrupt.h"
#include "model.h"
#include "problem.h"
#include "report.h"
#include "sweep.h"

/* ---- --regions ---- */

static bool print_runs(const xfer_layout *layout, int rank, int dim)
{
  size_t n = 0;

  if (xfer_layout_runs(layout, rank, dim, NULL, 0, &n) != XFER_OK) return false;
  xfer_run *runs = calloc(n > 0 ? n : 1, sizeof *runs);
  const bool ok = runs != NULL && xfer_layout_runs(layout, rank, dim, runs, n, &n) == XFER_OK;
  for (size_t i = 0; ok && i < n; i++)
    printf("%s[%" PRId64 ",%" PRId64 ",%" PRId64 "]", i > 0 ? "," : "", runs[i].global,
           runs[i].length, runs[i].local);
  free(runs);
  return ok;
}

/* {"boxes":[[[lo,hi],..],..]} */
static bool print_boxes(const xfer_layout *layout, int rank, size_t n)
{
  const size_t n_dims = (size_t)xfer_layout_shape(layout, NULL);
  int64_t *bounds = calloc(2 * n_dims * n + 1, sizeof *bounds);
  const bool ok = bounds != NULL && xfer_layout_boxes(layout, rank, bounds, n, &n) == XFER_OK;

  printf("{\"boxes\":[");
  for (size_t i = 0; ok && i < n; i++) {
    const int64_t *box = bounds + 2 * n_dims * i;

    printf("%s[", i > 0 ? "," : "");
    for (size_t d = 0; d < n_dims; d++)
      printf("%s[%" PRId64 ",%" PRId64 "]", d > 0 ? "," : "", box[d], box[n_dims + d]);
    printf("]");
  }
  printf("]}");
  free(bounds);
  return ok;
}

/* Is the part a product of runs? Several boxes are not. */
static bool has_runs(const xfer_layout *layout, int rank)
{
  int64_t shape[XFER_MAX_DIMS];
  size_t n;
  bool ok = xfer_layout_local_shape(layout, rank, shape) == XFER_OK;

  for (int d = 0; ok && d < xfer_layout_shape(layout, NULL); d++)
    ok = xfer_layout_runs(layout, rank, d, NULL, 0, &n) == XFER_OK;
  return ok;
}

/* {"shape":[..],"runs":[[[global,length,local],..],..]}, the boxes, or null outside the mesh. */
static bool print_region(const char *key, const xfer_layout *layout, int rank)
{
  const int n_dims = xfer_layout_shape(layout, NULL);
  int64_t shape[XFER_MAX_DIMS];
  size_t n_boxes = 0;
  bool ok = true;

  printf(",\"%s\":", key);
  if (xfer_layout_boxes(layout, rank, NULL, 0, &n_boxes) != XFER_OK) {
    printf("null");
    return true;
  }
  if (!has_runs(layout, rank)) return print_boxes(layout, rank, n_boxes);
  if (xfer_layout_local_shape(layout, rank, shape) != XFER_OK) return false;
  printf("{\"shape\":[");
  for (int d = 0; d < n_dims; d++)
    printf("%s%" PRId64, d > 0 ? "," : "", shape[d]);
  printf("],\"runs\":[");
  for (int d = 0; ok && d < n_dims; d++) {
    printf("%s[", d > 0 ? "," : "");
    ok = print_runs(layout, rank, d);
    printf("]");
  }
  printf("]}");
  return ok;
}

static bool print_regions(const xfer_tensor *tensor, int rank)
{
  printf("{\"rank\":%d", rank);
  const bool ok = print_region("src", tensor->src, rank) && print_region("dst", tensor->dst, rank);
  printf("}\n");
  return ok;
}

/* ---- --moves ---- */

static void print_move(const xfer_move *m)
{
  printf("{\"src\":%d,\"dst\":%d,\"box\":[", (int)m->src_rank, (int)m->dst_rank);
  for (int d = 0; d < m->n_dims; d++)
    printf("%s[%" PRId64 ",%" PRId64 "]", d > 0 ? "," : "", m->lo[d], m->hi[d]);
  printf("],\"bytes\":%" PRIu64 "%s}\n", m->n_bytes, m->relayed ? ",\"relayed\":true" : "");
}

/* The moves into one rank, so that each move of the plan is printed once over all ranks. */
static bool print_moves(const xfer_tensor *tensor, int n_ranks, int rank, int64_t domain)
{
  const xfer_plan_options options = plan_options(domain);
  xfer_plan_report_data report = XFER_PLAN_REPORT_INIT;
  xfer_plan *plan = NULL;
  xfer_move move;
  bool ok = xfer_plan_simulate(&plan, n_ranks, rank, tensor, 1, &options) == XFER_OK &&
            xfer_plan_report(plan, &report) == XFER_OK;

  for (size_t i = 0; ok && i < report.n_moves && !interrupt_came(); i++) {
    ok = xfer_plan_move_get(plan, i, &move) == XFER_OK;
    if (ok && move.dst_rank == rank) print_move(&move);
  }
  xfer_plan_destroy(plan);
  return ok;
}

/* ---- --bench ---- */

typedef struct problem_work {
  const xfer_tensor *tensors; /* [n_tensors], all alike */
  size_t n_tensors;
  int n_ranks;
} problem_work;

static bool plan_problem(void *context, int rank, xfer_plan_report_data *report)
{
  const problem_work *work = context;

  return plan_one(report, work->n_ranks, rank, work->tensors, work->n_tensors);
}

/* ---- --problem ---- */

static int run_problem(const plan_args *args, problem_work *work)
{
  const xfer_tensor *tensor = work->tensors;
  const int n_ranks = work->n_ranks;
  const int wrong = plan_check_rank(args, n_ranks);

  if (wrong != 0) return wrong;
  if (args->bench) return plan_bench(plan_problem, work, (int)args->rank);
  if (args->regions || args->moves) {
    const int first = args->rank >= 0 ? (int)args->rank : 0;
    const int last = args->rank >= 0 ? (int)args->rank : n_ranks - 1;

    for (int rank = first; rank <= last && !interrupt_came(); rank++) {
      const bool ok = args->regions ? print_regions(tensor, rank)
                                    : print_moves(tensor, n_ranks, rank, args->domain);
      if (!ok) return plan_failed();
    }
    return interrupt_came() ? ARGS_INTERRUPTED : EXIT_SUCCESS;
  }

  xfer_plan_report_data one; /* of the tensors, which are all alike */
  if (!plan_one(&one, n_ranks, 0, tensor, 1)) return plan_failed();
  const plan_whole whole = {.title = tensor->name,
                            .n_ranks = n_ranks,
                            .tensors = tensor,
                            .n_tensors = work->n_tensors,
                            .names = work->n_tensors,
                            .payload_bytes = work->n_tensors * one.payload_bytes,
                            .domain = args->domain,
                            .machine = &args->machine};
  return plan_report(&whole, args);
}

static int problem_main(const plan_args *args)
{
  problem made;
  int status = problem_create(&made, args->problem);

  if (status != 0) return status;
  const size_t n = xfer_problem_format(NULL, 0, made.src, made.dst) + 1;
  const size_t n_tensors = (size_t)args->tensors;
  char *line = malloc(n);
  xfer_tensor *tensors = calloc(n_tensors, sizeof *tensors);
  if (line == NULL || tensors == NULL) {
    status = args_failed("no memory for the problem");
  } else {
    xfer_problem_format(line, n, made.src, made.dst);
    for (size_t i = 0; i < n_tensors; i++) {
      tensors[i] = made.tensor;
      tensors[i].name = line;
    }
    status = run_problem(args, &(problem_work){tensors, n_tensors, made.n_ranks});
  }
  free(tensors);
  free(line);
  problem_destroy(&made);
  return status;
}

/* ---- command line ---- */

/* Which options decide nothing without others, or beside them. */
#define OWN_PAGE "--regions --moves --draw --svg --expect --bench" /* these show no times */
static const arg_rule RULES[] = {
    JOB_RULES,
    {"--sweep", "--model",
     "--gen --problem --rank --html --draw --svg --regions --moves --expect --bench"},
    {"--sweep", "--train", NULL},
    {"--json", NULL, "--html --draw --svg --regions --moves --bench"},
    {"--html", NULL, "--rank --draw --svg --regions --moves --expect --bench"},
    {"--draw", NULL, "--rank --svg --regions --moves --expect --bench"},
    {"--svg", NULL, "--rank --regions --moves --expect --bench"},
    {"--tensor", "--draw --svg", NULL},
    {"--regions", "--problem", "--moves --bench"},
    {"--moves", "--problem", "--bench"},
    {"--expect", "--model", "--rank --json --bench"},
    {"--bench", "--rank", NULL},
    {"--link", NULL, "--rank " OWN_PAGE},
    {"--nic", NULL, "--rank " OWN_PAGE},
    {"--packed", NULL, "--rank " OWN_PAGE},
    {"--domain", NULL, "--regions --draw --svg --expect --bench"},
    {"--tensors", "--problem", "--regions --moves --draw --svg"},
    {NULL, NULL, NULL},
};

static int check(const plan_args *a)
{
  int wrong = a->sweep > 0 ? 0 : job_check(&a->job, a->problem);

  if (wrong == 0) wrong = args_check(RULES);
  if (wrong == 0) wrong = inputs_check(&a->job, "--html", a->html);
  return wrong == 0 ? inputs_check(&a->job, "--svg", a->svg) : wrong;
}

static int parse(plan_args *args, int argc, char **argv)
{
  const arg_option options[] = {
      JOB_OPTIONS(&args->job, &args->problem),
      {"What is printed", ARG_GROUP, NULL, NULL, 0, 0},
      {"--rank", ARG_INT, &args->rank, "R  only this rank", 0, INT_MAX},
      {"--json", ARG_FLAG, &args->json, "the report as one JSON object", 0, 0},
      {"--html", ARG_TEXT, &args->html, "FILE  a page with pictures, for any browser; no network",
       0, 0},
      {"--draw", ARG_FLAG, &args->draw, "one tensor's shards before and after", 0, 0},
      {"--svg", ARG_TEXT, &args->svg, "FILE  the same as a picture for documents", 0, 0},
      {"--tensor", ARG_TEXT, &args->tensor, "NAME  the one that --draw and --svg show", 0, 0},
      {"--regions", ARG_FLAG, &args->regions, "what each rank holds, one JSON line a rank", 0, 0},
      {"--moves", ARG_FLAG, &args->moves, "who sends what to whom, one JSON line a move", 0, 0},
      {"--expect", ARG_TEXT, &args->expect,
       "A-B  the local tensors that ranks A to B bind, or A alone, as JSON", 0, 0},
      {"--bench", ARG_FLAG, &args->bench, "how long --rank plans, and in how much memory", 0, 0},
      {"What if", ARG_GROUP, NULL, NULL, 0, 0},
      {"--sweep", ARG_INT, &args->sweep,
       "N  in place of --gen: vLLM's layouts of N GPUs, best first", 1, 8192},
      {"--link", ARG_INT, &args->machine.link_gbs, "GB/S  of a GPU to others of its domain", 1,
       1000000},
      {"--nic", ARG_INT, &args->machine.nic_gbs, "GB/S  of a GPU beyond its domain", 1, 1000000},
      {"--domain", ARG_INT, &args->domain,
       "N  GPUs that NVLink joins: what crosses beyond (times: 8)", 1, 1000000},
      {"--tensors", ARG_INT, &args->tensors, "N  as many tensors of --problem in one plan", 1,
       100000},
      {"--packed", ARG_FLAG, &args->machine.packed,
       "by NCCL, as where GPUs cannot map each other's memory", 0, 0},
      {NULL, ARG_FLAG, NULL, NULL, 0, 0},
  };
  static const char *const examples[] = {
      "xfer_plan --problem 'bf16[4096,11008] (2,4)@0-7:S0,R -> (4)@8-11:S1'",
      "xfer_plan --model models/qwen3-30b-a3b.json --train megatron:tp2,ep4,dp2 --gen vllm:tp4",
      "xfer_plan --model models/qwen3-4b.json --train fsdp:dp8 --gen vllm:tp2 --expect 8",
      "xfer_plan --model models/qwen3-30b-a3b.json --train megatron:tp2,ep4,dp2 --sweep 8", NULL};
  static const char about[] =
      "Plans a redistribution of one tensor, or the refit of a whole model, as every rank of it "
      "would, with no ranks, no memory for tensors and no network, and prints what each rank "
      "sends and receives.";
  const arg_program program = {
      "xfer_plan", "what a redistribution or a refit will do, rank by rank",
      about,       options,
      examples,    NULL};

  return args_parse(&program, argc, argv);
}

int main(int argc, char **argv)
{
  plan_args args = {.rank = -1, .sweep = -1, .tensors = 1, .machine = {394, 49, 8, false}};
  int status = parse(&args, argc, argv);

  if (status != ARGS_GO_ON) return status;
  status = check(&args);
  if (status != 0) return status;
  interrupt_catch();
  if (args.domain > 0) args.machine.domain = args.domain;
  if (args.sweep > 0)
    status = plan_sweep(&args);
  else
    status = args.job.model != NULL ? plan_model_main(&args) : problem_main(&args);
  if (status == ARGS_INTERRUPTED && fflush(stdout) == 0) args_failed("interrupted"); /* a list */
  /* What was all done when it came is a success. */
  return args_end(status == EXIT_FAILURE && interrupt_came() ? ARGS_INTERRUPTED : status);
}
