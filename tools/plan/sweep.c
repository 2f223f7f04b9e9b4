/* The time of a plan is that of its slowest rank; predict.c knows how long that takes. */
#include "sweep.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "interrupt.h"
#include "predict.h"
#include "text.h"
#include "traffic.h"

enum { SPEC_BYTES = 64, MAX_TRIED = 4096 };

typedef struct tried {
  char gen[SPEC_BYTES];
  uint64_t held;    /* most bytes that a serving rank holds */
  uint64_t wire;    /* over all ranks */
  uint64_t busiest; /* the most that any rank gets or sends */
  double imbalance; /* of it over the mean of those that do */
  double seconds;
  bool guessed; /* in part */
} tried;

typedef struct sweep {
  tried *at;
  size_t n;
  bool experts; /* the model has some, which ep lays out otherwise */
  size_t n_refused;
  char why[512]; /* the first was */
} sweep;

static void measure(tried *to, const plan_traffic *t, int n_ranks)
{
  uint64_t busy = 0;

  for (int r = 0; r < n_ranks; r++) {
    const xfer_plan_report_data *rank = &t->ranks[r];

    to->wire += rank->wire_bytes;
    if (rank->in_bytes > to->held) to->held = rank->in_bytes;
    if (rank->bound_bytes > to->busiest) to->busiest = rank->bound_bytes;
    if (t->seconds[r] > to->seconds) to->seconds = t->seconds[r];
    busy += rank->bound_bytes > 0;
  }
  for (int r = 0; r < n_ranks && busy > 0; r++)
    to->imbalance += (double)t->ranks[r].bound_bytes / (double)busy;
  to->imbalance = to->imbalance > 0 ? (double)to->busiest / to->imbalance : 1;
}

/* Counts a layout that the model or the engine does not allow. Returns false if the next would fail
 * too. */
static bool refuse(sweep *s, xfer_status st)
{
  if (st == XFER_ERR_NOMEM || st == XFER_ERR_IO) {
    plan_failed();
    return false;
  }
  if (s->n_refused++ == 0) snprintf(s->why, sizeof s->why, "%s", xfer_last_error());
  return true;
}

/* Plans one layout. */
static bool try_gen(sweep *s, const plan_args *args, const job *base, const char *gen)
{
  job_args with = args->job;
  job made = {0};
  plan_traffic traffic = {.ranks = NULL};
  tried *to = &s->at[s->n];
  size_t n = 0;
  xfer_status st;

  with.gen = gen;
  st = job_join(&made, &with, base->model, base->rules);
  if (st != XFER_OK) return refuse(s, st);
  const int n_ranks = xfer_refit_ranks(made.refit);
  const xfer_tensor *tensors = xfer_refit_tensors(made.refit, &n);
  const plan_whole whole = {.title = gen,
                            .n_ranks = n_ranks,
                            .tensors = tensors,
                            .n_tensors = n,
                            .joined = made.refit,
                            .domain = args->machine.domain,
                            .machine = &args->machine};
  const bool ok = plan_traffic_find(&traffic, &whole, false);
  if (ok) {
    memset(to, 0, sizeof *to);
    snprintf(to->gen, sizeof to->gen, "%s", gen);
    measure(to, &traffic, n_ranks);
    to->guessed = traffic.guessed;
    s->n++;
  }
  plan_traffic_free(&traffic);
  job_destroy(&made);
  return ok;
}

static int by_seconds(const void *a, const void *b)
{
  const tried *x = a;
  const tried *y = b;

  if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
  return strcmp(x->gen, y->gen);
}

static void print_text(const plan_args *args, const sweep *s)
{
  bool guessed = false;

  printf("%" PRId64 " GPUs for vLLM, from %s\n\n%-28s %10s %10s %10s %9s %10s\n", args->sweep,
         args->job.train, "generation", "a GPU has", "on wire", "busiest", "over mean",
         "predicted");
  for (size_t i = 0; i < s->n; i++) {
    const tried *t = &s->at[i];

    printf("%-28s %10s %10s %10s %9.3f %10s%s\n", t->gen, text_bytes((double)t->held).at,
           text_bytes((double)t->wire).at, text_bytes((double)t->busiest).at, t->imbalance,
           text_seconds(t->seconds).at, t->guessed ? " *" : "");
    guessed = guessed || t->guessed;
  }
  predict_print_machine(&args->machine, guessed);
  if (s->n_refused > 0)
    printf("\n%zu layouts are not for this model, such as heads or experts that do not divide\n",
           s->n_refused);
}

static void print_json(const sweep *s)
{
  printf("{\"refused\":%zu,\"layouts\":[", s->n_refused);
  for (size_t i = 0; i < s->n; i++) {
    const tried *t = &s->at[i];

    printf("%s{\"gen\":\"%s\",\"held_bytes\":%" PRIu64 ",\"wire_bytes\":%" PRIu64
           ",\"busiest_bytes\":%" PRIu64 ",\"imbalance\":%.6f,\"seconds\":%.6f,\"calibrated\":%s}",
           i > 0 ? "," : "", t->gen, t->held, t->wire, t->busiest, t->imbalance, t->seconds,
           t->guessed ? "false" : "true");
  }
  printf("]}\n");
}

/* Has a rank of the one the same local shapes as of the other? */
static bool same_shapes(const xfer_refit *a, const xfer_refit *b)
{
  const int rank = xfer_refit_ranks(a) - 1;
  size_t n, n_other;
  const xfer_tensor *of = xfer_refit_tensors(a, &n);
  const xfer_tensor *other = xfer_refit_tensors(b, &n_other);
  bool same = n == n_other;

  for (size_t t = 0; t < n && same; t++) {
    int64_t shapes[2][XFER_MAX_DIMS] = {{0}};

    same = xfer_layout_local_shape(of[t].dst, rank, shapes[0]) == XFER_OK &&
           xfer_layout_local_shape(other[t].dst, rank, shapes[1]) == XFER_OK &&
           memcmp(shapes[0], shapes[1], sizeof shapes[0]) == 0;
  }
  return same;
}

/* Without experts ep changes nothing. What cannot be made is refused by its turn. */
static bool has_experts(const plan_args *args, const job *base)
{
  job_args with = args->job;
  job made[2] = {{0}};
  bool both = true;

  for (int ep = 0; ep < 2 && both; ep++) {
    with.gen = ep == 0 ? "vllm:dp2" : "vllm:dp2,ep2";
    both = job_join(&made[ep], &with, base->model, base->rules) == XFER_OK;
  }
  const bool has = !both || !same_shapes(made[0].refit, made[1].refit);
  job_destroy(&made[0]);
  job_destroy(&made[1]);
  return has;
}

/* tp times dp times engines is the number of GPUs; each with and without expert parallelism, if the
 * model has experts. */
static bool try_all(sweep *s, const plan_args *args, const job *base)
{
  const int64_t gpus = args->sweep;
  bool ok = true;

  for (int64_t tp = 1; tp <= gpus && ok; tp++) {
    if (gpus % tp != 0) continue;
    for (int64_t dp = 1; dp <= gpus / tp && ok; dp++) {
      if (gpus / tp % dp != 0) continue;
      for (int ep = 0; ep <= (int)s->experts && ok && s->n < MAX_TRIED && !interrupt_came(); ep++) {
        char gen[SPEC_BYTES];
        int n = snprintf(gen, sizeof gen, "vllm:tp%" PRId64, tp);

        if (dp > 1) n += snprintf(gen + n, sizeof gen - (size_t)n, ",dp%" PRId64, dp);
        if (ep > 0 && tp * dp == 1) continue;
        if (ep > 0) n += snprintf(gen + n, sizeof gen - (size_t)n, ",ep%" PRId64, tp * dp);
        if (gpus / tp / dp > 1)
          snprintf(gen + n, sizeof gen - (size_t)n, ",engines%" PRId64, gpus / tp / dp);
        ok = try_gen(s, args, base, gen);
      }
    }
  }
  if (ok && interrupt_came()) {
    args_failed("interrupted");
    ok = false;
  }
  return ok;
}

int plan_sweep(const plan_args *args)
{
  job_args first = args->job;
  job base = {0};
  sweep s = {.at = calloc(MAX_TRIED, sizeof *s.at)};

  int status;

  if (s.at == NULL) return args_failed("no memory for the layouts");
  first.gen = "full"; /* any: the model is read, and the training side tried */
  status = job_create(&base, &first);
  s.experts = status == 0 && has_experts(args, &base);
  if (status == 0) status = try_all(&s, args, &base) ? 0 : EXIT_FAILURE;
  if (status == 0 && s.n == 0)
    status = args_failed("no layout of %lld GPUs is for this model; of the first: %s",
                         (long long)args->sweep, s.why);
  if (status == 0) {
    qsort(s.at, s.n, sizeof *s.at, by_seconds);
    if (args->json)
      print_json(&s);
    else
      print_text(args, &s);
  }
  job_destroy(&base);
  free(s.at);
  return status;
}
