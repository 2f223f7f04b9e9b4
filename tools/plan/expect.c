/* xfer_plan --expect: the local tensors that ranks bind, one JSON line each. */
#include "expect.h"

#include "interrupt.h"
#include "plan.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The local tensor that is printed, and the part of it that is in hand. */
typedef struct shown {
  const xfer_refit *refit;
  const xfer_locals *locals;
  int rank;
  size_t number; /* in the list */
  xfer_local local;
  xfer_local_part part;
  xfer_refit_tensor info; /* of its tensor */
  const xfer_tensor *tensor;
  const xfer_layout *layout; /* on this side */
} shown;

static bool find_part(shown *s, int k)
{
  if (xfer_locals_part_get(s->locals, s->number, (size_t)k, &s->part) != XFER_OK ||
      xfer_refit_tensor_get(s->refit, s->part.tensor, &s->info) != XFER_OK)
    return false;
  s->tensor = &xfer_refit_tensors(s->refit, NULL)[s->part.tensor];
  s->layout = s->local.side == XFER_REFIT_TRAIN ? s->tensor->src : s->tensor->dst;
  return true;
}

/* Where index x of a dim of the join lies in the table's tensor: first + step * x. */
typedef struct table_index {
  int64_t first;
  int64_t step;
} table_index;

/* The stretches of `dim` whose place in the rank's part lies in [first, first + n), in the table's
 * indices. */
static bool print_ranges(const shown *s, int dim, int64_t first, int64_t n, table_index to)
{
  size_t n_runs = 0;
  bool ok = xfer_layout_runs(s->layout, s->rank, dim, NULL, 0, &n_runs) == XFER_OK;
  xfer_run *runs = calloc(n_runs + 1, sizeof *runs);
  const char *comma = "";

  ok = ok && runs != NULL &&
       xfer_layout_runs(s->layout, s->rank, dim, runs, n_runs, &n_runs) == XFER_OK;
  printf("[");
  for (size_t i = 0; i < n_runs && ok; i++) {
    int64_t lo = runs[i].local > first ? runs[i].local : first;
    int64_t hi = runs[i].local + runs[i].length;

    if (hi > first + n) hi = first + n;
    lo += runs[i].global - runs[i].local;
    hi += runs[i].global - runs[i].local;
    for (int64_t end; lo < hi; lo = end) {
      end = to.step == 1 ? hi : lo + 1; /* others are apart */
      printf("%s[%" PRId64 ",%" PRId64 "]", comma, to.first + to.step * lo,
             to.first + to.step * (end - 1) + 1);
      comma = ",";
    }
  }
  printf("]");
  free(runs);
  return ok;
}

/* How many indices of the part are no padding. */
static int64_t count_valid(const shown *s, int dim, int64_t first, int64_t n)
{
  xfer_run run;
  size_t n_runs = 0;

  if (dim < 0 || xfer_layout_runs(s->layout, s->rank, dim, &run, 1, &n_runs) != XFER_OK) return n;
  if (n_runs == 0) return 0;
  if (n_runs > 1 || run.local > first || run.local + run.length >= first + n) return n;
  return run.local + run.length > first ? run.local + run.length - first : 0;
}

/* The table's name as a JSON string, with the number `expert` in place of "{expert}"; -1: the name
 * as it is. */
static void print_name(const char *name, int expert)
{
  const char *place = expert < 0 ? NULL : strstr(name, "{expert}");
  const char *rest = place == NULL ? name + strlen(name) : place + strlen("{expert}");

  putchar('"');
  text_json_chars(stdout, name, place == NULL ? strlen(name) : (size_t)(place - name));
  if (place != NULL) printf("%d", expert);
  text_json_chars(stdout, rest, strlen(rest));
  putchar('"');
}

/* Is the table's tensor one more expert than others, which are dim 0 of the local tensor? */
static bool is_one_more(const shown *s)
{
  return s->info.n_dims < s->local.n_dims;
}

/* Prints which tensor of the table a part comes from, and the expert's index in the part if the
 * tensor is one more expert there. */
static void print_source(const shown *s)
{
  printf("{\"hf\":");
  print_name(s->info.hf, s->local.expert);
  if (is_one_more(s)) printf(",\"index\":%" PRId64, s->local.shape[0] - 1);
}

/* `n` rows of the part from the `first` of the tensor's local part on. */
static bool print_part(const shown *s, int64_t first, int64_t n, table_index to)
{
  const xfer_local_part *part = &s->part;
  const int64_t begin = part->begin + (first - part->first) * part->step;
  bool ok = true;

  print_source(s);
  printf(",\"dim\":%d,\"local\":[%" PRId64 ",%" PRId64 "],\"global\":",
         part->dim < 0 ? 0 : part->dim, begin, begin + n);
  if (part->tensor_dim < 0)
    printf("[[0,1]]");
  else
    ok = print_ranges(s, part->tensor_dim, first, n, to);
  printf("}");
  return ok;
}

/* Are the rank's `length` the whole dim, and no more? */
static bool is_whole(const shown *s, int dim, int64_t length)
{
  int64_t shape[XFER_MAX_DIMS];
  xfer_run run;
  size_t n_runs = 0;

  xfer_layout_shape(s->layout, shape);
  return xfer_layout_runs(s->layout, s->rank, dim, &run, 1, &n_runs) == XFER_OK && n_runs == 1 &&
         run.global == 0 && run.length == shape[dim] && length == shape[dim];
}

/* The other dims in which the rank does not hold the whole of the tensor. */
static bool print_other_dims(const shown *s)
{
  bool ok = true;

  for (int k = is_one_more(s); k < s->local.n_dims && ok; k++) {
    const int d = s->local.dims[k] - is_one_more(s);
    const table_index to = {d == 0 && s->info.n_experts > 0 ? s->info.first_expert : 0, 1};

    if (d == s->part.tensor_dim || (to.first == 0 && is_whole(s, d, s->local.shape[k]))) continue;
    printf(",");
    print_source(s);
    printf(",\"dim\":%d,\"local\":[0,%" PRId64 "],\"global\":", k,
           count_valid(s, d, 0, s->local.shape[k]));
    ok = print_ranges(s, d, 0, s->local.shape[k], to);
    printf("}");
  }
  return ok;
}

/* Gate and up that alternate as they do in the table are one part of the table's tensor. */
static bool print_both(const shown *s, int64_t n)
{
  xfer_run run;
  size_t n_runs = 0;

  if (xfer_layout_runs(s->layout, s->rank, s->part.tensor_dim, &run, 1, &n_runs) != XFER_OK ||
      n_runs != 1)
    return false;
  printf("{\"hf\":");
  print_name(s->info.hf, -1);
  printf(",\"dim\":%d,\"local\":[0,%" PRId64 "],\"global\":[[%" PRId64 ",%" PRId64 "]]}",
         s->part.dim, 2 * n, 2 * run.global, 2 * (run.global + n));
  return true;
}

/* Prints the k-th part, and with it the next if they are one; the number of parts done, 0: it
 * failed. */
static int print_parts(shown *s, int k, const char **comma)
{
  const xfer_local_part *part = &s->part;
  table_index to = {0, 1};
  int64_t n, together;
  int n_done = 1;
  bool ok = true;

  if (!find_part(s, k)) return 0;
  if (s->info.half_dim == part->tensor_dim && part->tensor_dim >= 0)
    to = (table_index){s->info.half_first, s->info.half_step};
  n = count_valid(s, part->tensor_dim, part->first,
                  (part->end - part->begin + part->step - 1) / part->step);
  if (n == 0) return 1; /* padding and zeros are no part of anything */
  printf("%s", *comma);
  *comma = ",";
  together = part->step == 1 ? n : 1;
  if (part->step == 2 && to.step == 2 && part->begin == to.first && k + 1 < s->local.n_parts) {
    ok = print_both(s, n);
    n_done = 2;
  } else {
    for (int64_t row = 0; row < n && ok; row += together) {
      if (row > 0) printf(",");
      ok = print_part(s, part->first + row, together, to);
    }
  }
  return ok && print_other_dims(s) ? n_done : 0;
}

static void print_head(const shown *s, const char *name, int32_t dtype,
                       const xfer_conversion *conversion)
{
  const xfer_local *local = &s->local;

  printf("{\"rank\":%d,\"side\":\"%s\",\"name\":", s->rank,
         local->side == XFER_REFIT_TRAIN ? "train" : "gen");
  print_name(name, -1);
  printf(",\"shape\":[");
  for (int d = 0; d < local->n_dims; d++)
    printf("%s%" PRId64, d > 0 ? "," : "", local->shape[d]);
  printf("],\"dtype\":\"%s\",", xfer_dtype_name((xfer_dtype)dtype));
  if (conversion->kind != XFER_CONVERSION_NONE) printf("\"conversion\":%d,", conversion->kind);
  if (conversion->kind == XFER_CONVERSION_ADD) printf("\"added\":%.9g,", (double)conversion->value);
  if (local->expert >= 0) printf("\"expert\":%d,", local->expert);
  if (local->misc != 0 && local->made == NULL) printf("\"misc\":true,"); /* not the framework's */
  printf("\"parts\":[");
}

static bool print_local(shown *s)
{
  static const xfer_conversion none = {0};
  const xfer_local *local = &s->local;
  const char *comma = "";
  int n_done = 1;

  if (xfer_locals_get(s->locals, s->number, &s->local) != XFER_OK) return false;
  /* Where the framework makes other values of what it gets, its own tensor is listed, and after
   * "hook" the name under which the values to make it of arrive. All parts have one conversion. */
  if (local->made != NULL)
    print_head(s, local->made, local->made_dtype, &none);
  else
    print_head(s, local->name, local->dtype, find_part(s, 0) ? &s->tensor->conversion : &none);
  for (int k = 0; k < local->n_parts && n_done > 0; k += n_done)
    n_done = print_parts(s, k, &comma);
  printf("]");
  if (local->made != NULL && n_done > 0) {
    printf(",\"hook\":");
    print_name(local->name, -1);
  }
  printf("}\n");
  return n_done > 0;
}

static int print_rank(const xfer_refit *refit, int rank)
{
  xfer_locals *locals = NULL;
  const xfer_status st = xfer_locals_create(&locals, refit, rank);
  shown s = {.refit = refit, .locals = locals, .rank = rank};
  bool ok = st == XFER_OK;

  for (; s.number < xfer_locals_count(locals) && ok && !interrupt_came(); s.number++)
    ok = print_local(&s);
  xfer_locals_destroy(locals);
  if (st == XFER_ERR_NOMEM)
    return args_failed("the tensors of rank %d: %s; --layers takes a part of the model", rank,
                       xfer_last_error());
  return ok ? EXIT_SUCCESS : plan_failed();
}

int plan_expect(const xfer_refit *refit, const char *ranks)
{
  const int n_ranks = xfer_refit_ranks(refit);
  int32_t rank = 0;
  int32_t end = 0;
  int status = EXIT_SUCCESS;

  if (!job_range(ranks, &rank, &end))
    return args_wrong("--expect %s: want A-B, from A up to B, or A alone", ranks);
  if (end > n_ranks) return args_wrong("--expect %s: there are %d ranks", ranks, n_ranks);
  while (status == EXIT_SUCCESS && rank < end && !interrupt_came())
    status = print_rank(refit, rank++);
  return status == EXIT_SUCCESS && interrupt_came() ? ARGS_INTERRUPTED : status;
}
