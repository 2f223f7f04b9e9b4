/*
 * xfer_perf: how fast, in the manner of nccl-tests.
 *
 *   xfer_perf --gpus 8
 *   xfer_perf --gpus 4 --only ceiling --json
 *
 * One process for each GPU, started by itself; the first half of them train and the second half
 * generate. First what the machine can do, then whole models and other workloads through the public
 * functions, then the same by broadcasts as a careful user would write them. A row's time is from a
 * common barrier to the end of the last rank's stream, the median of --iters; GB/s are the bytes
 * written on the rank that receives most; `wrong` counts the bytes of all destinations that differ
 * from what they should be, in runs before and after the timed ones whose destinations were
 * overwritten with nonsense.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base.h"
#include "ceiling.h"
#include "plan.h"
#include "problem.h"

typedef struct perf_args {
  int64_t gpus;
  int64_t iters;
  const char *only;
  const char *models;
  const char *problem;
  int64_t tensors;
  bool json;
  bool quick;
} perf_args;

/* SPECs for 2, 4 and 8 GPUs. */
typedef struct specs {
  const char *train[3];
  const char *gen[3];
} specs;

static const specs EXPERTS_STACKED = {{"megatron:experts=stacked",
                                       "megatron:tp2,ep2,experts=stacked",
                                       "megatron:tp2,dp2,ep4,experts=stacked"},
                                      {"vllm:tp1", "vllm:tp2", "vllm:tp4"}};
static const specs EXPERTS_LISTED = {
    {"megatron:experts=list", "megatron:tp2,ep2,experts=list", "megatron:tp2,dp2,ep4,experts=list"},
    {"vllm:tp1", "vllm:tp2", "vllm:tp4"}};
static const specs COLOCATED = {{"megatron:dp2,ep2,experts=stacked",
                                 "megatron:dp4,ep4,experts=stacked",
                                 "megatron:dp8,ep8,experts=stacked"},
                                {"vllm:tp2", "vllm:tp4", "vllm:tp8"}};
static const specs SMALL_MODEL = {{"megatron:tp1", "megatron:tp2", "megatron:tp2,dp2"},
                                  {"vllm:tp1", "vllm:tp2", "vllm:tp4"}};
static const specs DENSE_MODEL = {{"megatron:tp1", "megatron:tp2", "megatron:tp4"},
                                  {"vllm:tp1", "vllm:tp2", "vllm:tp4"}};

/* Has every rank what a row measures? If not, the row says why, whatever --only asks for. */
static bool is_made(perf_world *w, const char *name, bool ok, const char *what)
{
  perf_row failed = {.name = name, .wrong = -1};

  if (perf_all(w, &failed, ok, what)) return true;
  if (w->n_rows < PERF_ROWS_MAX) w->rows[w->n_rows++] = failed;
  perf_row_done(w, &failed);
  return false;
}

/* The memory of a model, filled. */
static bool make_model(perf_world *w, perf_case *c, const char *name, const char *table,
                       const specs *s, bool colocated)
{
  int k = w->size == 2 ? 0 : w->size == 4 ? 1 : 2;
  bool ok = perf_case_model(c, w, table, s->train[k], s->gen[k], colocated ? 0 : w->n_train);

  ok = ok && perf_case_fill(c, w);
  CUDA(w, cudaStreamSynchronize, (w->stream));
  if (is_made(w, name, ok, "model")) return true;
  perf_case_free(c, w);
  return false;
}

/* Makes and fills the tensors that `lines` describes. */
static bool make_lines(perf_world *w, perf_case *c, const char *name, const perf_lines *lines)
{
  const bool ok = perf_case_lines(c, w, lines) && perf_case_fill(c, w);

  if (is_made(w, name, ok, "tensors")) return true;
  perf_case_free(c, w);
  return false;
}

/* The rows of lines, as far as they are asked for. */
static void lines_rows(perf_world *w, const perf_lines *lines, const perf_plan_row *rows, size_t n)
{
  bool wanted = false;
  perf_case c;

  for (size_t i = 0; i < n; i++)
    wanted = wanted || perf_wanted(w, rows[i].name);
  if (!wanted || !make_lines(w, &c, rows[0].name, lines)) return;
  for (size_t i = 0; i < n; i++)
    (void)perf_plan(w, &c, &rows[i]);
  perf_case_free(&c, w);
}

/* ---- workloads ---------------------------------------------------------------------------- */

static void experts_stacked(perf_world *w)
{
  static const perf_plan_row rows[] = {
      {.name = "30B-A3B grouped", .of = CEILING_ENGINE, .bar = 0.95},
      {.name = "30B-A3B packed lane",
       .lane = XFER_LANE_PACKED,
       .of = CEILING_SENDRECV,
       .bar = 0.86}};
  perf_case c;
  double ms;

  if (!perf_wanted(w, rows[0].name) && !perf_wanted(w, rows[1].name) &&
      !perf_wanted(w, "30B-A3B base expert") && !perf_wanted(w, "30B-A3B base grouped") &&
      !perf_wanted(w, "30B-A3B base packed"))
    return;
  if (!make_model(w, &c, rows[0].name, "qwen3-30b-a3b", &EXPERTS_STACKED, false)) return;
  ms = perf_plan(w, &c, &rows[0]);
  (void)perf_plan(w, &c, &rows[1]);
  perf_base(w, &c, BASE_PER_EXPERT, "30B-A3B base expert", ms, 12);
  perf_base(w, &c, BASE_PER_TENSOR, "30B-A3B base grouped", ms, 4);
  perf_base(w, &c, BASE_PACKED, "30B-A3B base packed", ms, 4);
  perf_case_free(&c, w);
}

static void one_model(perf_world *w, const perf_plan_row *row, const char *table, const specs *s)
{
  perf_case c;

  if (!perf_wanted(w, row->name)) return;
  if (!make_model(w, &c, row->name, table, s, row->colocated)) return;
  (void)perf_plan(w, &c, row);
  perf_case_free(&c, w);
}

static void models(perf_world *w)
{
  static const perf_plan_row listed = {
      .name = "30B-A3B per expert", .of = CEILING_ENGINE, .bar = 0.90};
  static const perf_plan_row colocated = {
      .name = "30B-A3B colocated", .colocated = true, .bar = 0.85};
  static const perf_plan_row small = {.name = "4B", .of = CEILING_ENGINE, .bar = 0.85};
  static const perf_plan_row dense = {.name = "32B dense", .of = CEILING_ENGINE, .bar = 0.95};

  experts_stacked(w);
  one_model(w, &listed, "qwen3-30b-a3b", &EXPERTS_LISTED);
  one_model(w, &colocated, "qwen3-30b-a3b", &COLOCATED);
  one_model(w, &small, "qwen3-4b", &SMALL_MODEL);
  one_model(w, &dense, "qwen3-32b", &DENSE_MODEL);
}

/* The rows of tensor i of 400: ten sizes from 20 KB to 63 MB, 8 GB in all. */
static int mixed_rows(int i)
{
  static const int rows[] = {10, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 31390};

  return rows[i % 10];
}

static void mixed_line(const perf_world *w, int i, char *text, size_t size)
{
  (void)snprintf(text, size, "bf16[%d,1000] (1)@0:R -> (%d)@1-%d:R", mixed_rows(i), w->size - 1,
                 w->size - 1);
}

static void small_line(const perf_world *w, int i, char *text, size_t size)
{
  (void)i;
  (void)snprintf(text, size, "bf16[80,64] (%d)@0-%d:S0 -> (%d)@%d-%d:S1", w->n_train,
                 w->n_train - 1, w->size - w->n_train, w->n_train, w->size - 1);
}

static void one_to_all(perf_world *w)
{
  static const perf_plan_row rows[] = {
      {.name = "8 GB replicated", .of = CEILING_BROADCAST, .bar = 0.98},
      {.name = "8 GB repl. direct", .lane = XFER_LANE_DIRECT, .of = CEILING_BROADCAST}};

  lines_rows(w, &(perf_lines){.n = 400, .line = mixed_line}, rows, 2);
}

/* Writes the line of mixed tensor i from the ranks that train to each rank that generates, as if
 * each half were a host. */
static void halves_line(const perf_world *w, int i, char *text, size_t size)
{
  (void)snprintf(text, size, "bf16[%d,1000] (%d)@0-%d:S0 -> (%d)@%d-%d:R", mixed_rows(i),
                 w->n_train, w->n_train - 1, w->size - w->n_train, w->n_train, w->size - 1);
}

/* Measures the packed lane to each rank of a domain, and once to the domain, whose ranks relay the
 * data to each other. */
static void one_to_domain(perf_world *w)
{
  const perf_plan_row rows[] = {
      {.name = "8 GB to each packed", .lane = XFER_LANE_PACKED, .of = CEILING_SENDRECV},
      {.name = "8 GB relayed",
       .lane = XFER_LANE_PACKED,
       .of = CEILING_SENDRECV,
       .ranks_per_domain = (uint32_t)w->n_train}};

  if (w->size != 2 * w->n_train || w->n_train < 2) return; /* nobody to relay to */
  lines_rows(w, &(perf_lines){.n = 400, .line = halves_line}, rows, 2);
}

static void latencies(perf_world *w)
{
  perf_case c;

  if (!perf_wanted(w, "100 x 10 KB direct") && !perf_wanted(w, "100 x 10 KB packed")) return;
  if (!make_lines(w, &c, "100 x 10 KB", &(perf_lines){.n = 100, .line = small_line})) return;
  perf_small(w, &c, "100 x 10 KB direct", XFER_LANE_DIRECT, 60);
  perf_small(w, &c, "100 x 10 KB packed", XFER_LANE_PACKED, 150);
  perf_case_free(&c, w);
}

/* ---- elements that change on the way -------------------------------------------------------- */

enum { CONVERTED_TENSORS = 72 };

/* The experts of 24 layers of Qwen3-30B-A3B, 29 GB of bf16: from whole experts to rows of each. */
static void experts_line(const perf_world *w, int i, const char *dtype, char *text, size_t size)
{
  (void)snprintf(text, size, "%s[128,%s] (%d)@0-%d:S0 -> (%d)@%d-%d:S1", dtype,
                 i % 3 == 2 ? "2048,768" : "768,2048", w->n_train, w->n_train - 1,
                 w->size - w->n_train, w->n_train, w->size - 1);
}

static void bf16_line(const perf_world *w, int i, char *text, size_t size)
{
  experts_line(w, i, "bf16", text, size);
}

static void f8_line(const perf_world *w, int i, char *text, size_t size)
{
  experts_line(w, i, "f8e4m3", text, size);
}

/* Whole blocks of 128 x 128 on every rank. */
static void blocks_line(const perf_world *w, int i, char *text, size_t size)
{
  (void)snprintf(text, size, "f8e4m3[128,%s] (%d)@0-%d:S0 -> (%d)@%d-%d:S%d",
                 i % 3 == 2 ? "2048,768" : "768,2048", w->n_train, w->n_train - 1,
                 w->size - w->n_train, w->n_train, w->size - 1, i % 3 == 2 ? 1 : 2);
}

static void scales_line(const perf_world *w, int i, char *text, size_t size)
{
  (void)snprintf(text, size, "f32[128,%s] (1)@0:R -> (%d)@%d-%d:S%d", i % 3 == 2 ? "16,6" : "6,16",
                 w->size - w->n_train, w->n_train, w->size - 1, i % 3 == 2 ? 1 : 2);
}

/* Rates are of the bytes that arrive, which are those that travel. */
static void conversions(perf_world *w)
{
  static const struct {
    perf_plan_row row;
    perf_lines lines;
  } cases[] = {
      {{.name = "experts bf16", .of = CEILING_ENGINE, .bar = 0.95},
       {CONVERTED_TENSORS, bf16_line, NULL, NULL}},
      {{.name = "experts f32 to bf16", .of = CEILING_ENGINE, .bar = 0.90},
       {CONVERTED_TENSORS, bf16_line, "f32", NULL}},
      {{.name = "experts bf16 to f8", .of = CEILING_ENGINE, .bar = 0.85},
       {CONVERTED_TENSORS, f8_line, "bf16", NULL}},
      {{.name = "experts bf16 to f8 blocks", .of = CEILING_ENGINE, .bar = 0.81},
       {CONVERTED_TENSORS, blocks_line, "bf16", scales_line}},
      {{.name = "f32 to bf16 packed",
        .lane = XFER_LANE_PACKED,
        .of = CEILING_SENDRECV,
        .bar = 0.80},
       {CONVERTED_TENSORS, bf16_line, "f32", NULL}},
  };

  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    lines_rows(w, &cases[i].lines, &cases[i].row, 1);
}

/* ---- rows of memory within one GPU -------------------------------------------------------- */

/* Every second row of `row_bytes`, together 4 GB, to one place: the gather kernel. */
static void gather(perf_world *w, const char *name, int64_t row_bytes, double bar)
{
  const perf_plan_row what = {
      .name = name, .of = CEILING_HBM_KERNEL, .bar = bar, .reads_too = true};
  const int64_t n_rows = (INT64_C(1) << 32) / row_bytes;
  perf_case c;
  char text[128];
  xfer_layout *layouts[2] = {NULL, NULL};
  xfer_tensor tensor = {.name = "rows"};
  xfer_view views[1][2];
  perf_buffer buffers[2] = {{NULL, (size_t)(2 * n_rows * row_bytes), false},
                            {NULL, (size_t)(n_rows * row_bytes), true}};
  const int64_t strides[2] = {2 * row_bytes, 8};

  if (!perf_wanted(w, name)) return;
  (void)snprintf(text, sizeof text, "u64[%lld,%lld] (%d)@0-%d:R -> (%d)@0-%d:R", (long long)n_rows,
                 (long long)(row_bytes / 8), w->size, w->size - 1, w->size, w->size - 1);
  if (xfer_problem_parse(&layouts[0], &layouts[1], text) != XFER_OK)
    perf_die(w, text, xfer_last_error());
  tensor.src = layouts[0];
  tensor.dst = layouts[1];
  for (int i = 0; i < 2; i++)
    CUDA(w, cudaMalloc, ((void **)&buffers[i].base, buffers[i].n_bytes));
  views[0][0] = xfer_view_strided(buffers[0].base, strides, 2);
  views[0][1] = xfer_view_dense(buffers[1].base);
  c = (perf_case){.tensors = &tensor,
                  .n_tensors = 1,
                  .buffers = buffers,
                  .n_buffers = 2,
                  .dst_bytes = buffers[1].n_bytes,
                  .views = views};
  if (!perf_case_fill(&c, w)) perf_die(w, name, "fill");
  (void)perf_plan(w, &c, &what);
  for (int i = 0; i < 2; i++) {
    CUDA(w, cudaFree, (buffers[i].base));
    xfer_layout_destroy(layouts[i]);
  }
}

/* ---- problems of the caller ---------------------------------------------------------------- */

static void problem_line(const perf_world *w, int i, char *text, size_t size)
{
  (void)i;
  (void)snprintf(text, size, "%s", w->problem);
}

static void callers_problem(perf_world *w, int n_tensors)
{
  const perf_plan_row rows[] = {
      {.name = "problem", .of = CEILING_ENGINE},
      {.name = "problem packed", .lane = XFER_LANE_PACKED, .of = CEILING_SENDRECV}};

  lines_rows(w, &(perf_lines){.n = n_tensors, .line = problem_line}, rows, 2);
}

/* ---- command line ------------------------------------------------------------------------- */

static void print_world(const perf_world *w)
{
  struct cudaDeviceProp properties;
  int runtime = 0;
  int driver = 0;
  int nccl = 0;

  if (w->rank != 0) return;
  CUDA(w, cudaGetDeviceProperties, (&properties, 0));
  CUDA(w, cudaRuntimeGetVersion, (&runtime));
  CUDA(w, cudaDriverGetVersion, (&driver));
  NCCL(w, ncclGetVersion(&nccl));
  fprintf(perf_text(w),
          "xfer %s, %d x %s, CUDA %d (driver %d), NCCL %d; ranks 0-%d train, %d-%d generate\n",
          xfer_version(), w->size, properties.name, runtime, driver, nccl, w->n_train - 1,
          w->n_train, w->size - 1);
  fprintf(perf_text(w), "NCCL's own memory after its first messages: %.0f MiB a rank\n\n",
          w->nccl_mib);
}

static void workloads(perf_world *w)
{
  latencies(w);
  gather(w, "gather rows of 128 B", 128, 0.85);
  gather(w, "gather rows of 384 B", 384, 0.90);
  gather(w, "gather rows of 1536 B", 1536, 0.95);
  one_to_all(w);
  one_to_domain(w);
  conversions(w);
  models(w);
}

static int run(const perf_args *args)
{
  perf_world w = {.iters = (int)args->iters,
                  .problem = args->problem,
                  .quick = args->quick,
                  .json = args->json,
                  .only = args->only,
                  .models = args->models};
  double wrong = 0;

  perf_ranks_start(&w.ranks, (int)args->gpus, 0);
  w.rank = w.ranks.rank;
  w.size = w.ranks.size;
  w.n_train = w.size / 2;
  perf_world_start(&w);
  print_world(&w);
  perf_ceilings(&w);
  const int first = w.n_rows;
  if (args->problem != NULL)
    callers_problem(&w, (int)args->tensors);
  else
    workloads(&w);
  perf_barrier(&w);
  perf_table(&w);
  if (args->json) perf_json(&w);
  args_leave_object();
  for (int i = 0; i < w.n_rows; i++)
    wrong += w.rows[i].wrong > 0 ? w.rows[i].wrong : 0;
  const bool left_out = args->problem != NULL && w.n_rows == first;
  perf_world_end(&w);
  if (wrong == 0 && !w.failed && !left_out) return EXIT_SUCCESS;
  if (w.rank == 0)
    args_failed(wrong > 0  ? "bytes arrived wrong"
                : left_out ? "the problem was not measured: --only leaves its rows out"
                           : "not every row was measured; notes say why");
  return EXIT_FAILURE;
}

/* 0, or the status to end with, after a sentence. */
static int check_problem(const char *line)
{
  problem made;
  const int status = problem_create(&made, line);

  if (status != 0) return status;
  problem_destroy(&made);
  return strlen(line) < PERF_LINE_BYTES ? 0 : args_wrong("--problem: too long");
}

int main(int argc, char **argv)
{
  perf_args args = {.gpus = 2, .iters = 7, .tensors = 1};
  const arg_option options[] = {
      {"What is measured", ARG_GROUP, NULL, NULL, 0, 0},
      {"--gpus", ARG_INT, &args.gpus, "N  2, 4 or 8 of the host's GPUs", 2, 8},
      {"--iters", ARG_INT, &args.iters, "N  timed runs of each row", 1, 32},
      {"--only", ARG_TEXT, &args.only, "TEXTS  rows whose names contain one of them, with commas",
       0, 0},
      {"--models", ARG_TEXT, &args.models,
       "DIR  where the model tables are; else ./models, or where they are installed", 0, 0},
      {"--problem", ARG_TEXT, &args.problem, "LINE  a redistribution, in place of all else", 0, 0},
      {"--tensors", ARG_INT, &args.tensors, "N  tensors of it in one plan", 1, 100000},
      {"--quick", ARG_FLAG, &args.quick, "smaller ceilings, fewer latencies", 0, 0},
      {"--json", ARG_FLAG, &args.json, "the rows as one JSON object on stdout; text goes to stderr",
       0, 0},
      {NULL, ARG_FLAG, NULL, NULL, 0, 0},
  };
  static const arg_rule rules[] = {
      {"--tensors", "--problem", NULL}, {"--models", NULL, "--problem"}, {NULL, NULL, NULL}};
  static const char *const examples[] = {"xfer_perf --gpus 8",
                                         "xfer_perf --gpus 4 --only ceiling --json",
                                         "xfer_perf --quick --tensors 48 --problem "
                                         "'bf16[8192,8192] (1)@0:S0 -> (1)@1:S1'",
                                         NULL};
  static const char about[] =
      "One process for each GPU, started by itself; the first half of them train and the second "
      "half generate. First what the machine can do, then whole models and other workloads "
      "through the public functions, then the same by broadcasts as a careful user would write "
      "them. A row's time is from a common barrier to the end of the last rank's stream, the "
      "median of --iters; GB/s are the bytes written on the rank that receives most.";
  const arg_program program = {"xfer_perf", "times of the library beside what the machine can do",
                               about,       options,
                               examples,    NULL};
  const int status = args_parse(&program, argc, argv);

  if (status != ARGS_GO_ON) return status;
  if (args.gpus != 2 && args.gpus != 4 && args.gpus != 8)
    return args_wrong("--gpus %lld: want 2, 4 or 8", (long long)args.gpus);
  const int wrong = args_check(rules);
  if (wrong != 0) return wrong;
  const int unusable = args.problem != NULL ? check_problem(args.problem) : 0;
  if (unusable != 0) return unusable;
  return run(&args);
}
