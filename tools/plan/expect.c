/* xfer_plan --expect: the local tensors that ranks bind, one JSON line each. */
#include "expect.h"

#include "interrupt.h"
#include "plan.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where index x of a dim of the join lies in the table's tensor: first + step * x. */
typedef struct table_index {
  int64_t first;
  int64_t step;
} table_index;

/* The stretches of `dim` whose place in the rank's part lies in [first, first + n), in the table's
 * indices. */
static int print_ranges(const xfer_layout *layout, int rank, int dim, int64_t first, int64_t n,
                        table_index to)
{
  xfer_run *runs = NULL;
  size_t n_runs = 0;
  const char *comma = "";
  int failed = xfer_layout_runs(layout, rank, dim, NULL, 0, &n_runs) != XFER_OK;

  if (!failed && n_runs > 0) {
    runs = calloc(n_runs, sizeof *runs);
    failed = runs == NULL || xfer_layout_runs(layout, rank, dim, runs, n_runs, &n_runs) != XFER_OK;
  }
  printf("[");
  for (size_t i = 0; i < n_runs && !failed; i++) {
    int64_t lo = runs[i].local > first ? runs[i].local : first;
    int64_t hi = runs[i].local + runs[i].length;

    if (hi > first + n) hi = first + n;
    lo += runs[i].global - runs[i].local;
    hi += runs[i].global - runs[i].local;
    if (to.step == 1 && lo < hi) {
      printf("%s[%" PRId64 ",%" PRId64 "]", comma, lo + to.first, hi + to.first);
      comma = ",";
    }
    for (; to.step != 1 && lo < hi; lo++) {
      printf("%s[%" PRId64 ",%" PRId64 "]", comma, to.first + to.step * lo,
             to.first + to.step * lo + 1);
      comma = ",";
    }
  }
  printf("]");
  free(runs);
  return failed;
}

/* How many indices of the part are no padding. */
static int64_t count_valid(const xfer_layout *layout, int rank, int dim, int64_t first, int64_t n)
{
  xfer_run run;
  size_t n_runs = 0;

  if (dim < 0 || xfer_layout_runs(layout, rank, dim, &run, 1, &n_runs) != XFER_OK) return n;
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

/* What lies there: the table's tensor, and where it is one more expert than others, which are dim 0
 * of the local tensor, its index there. */
static void print_source(const xfer_refit_tensor *info, const xfer_local *local)
{
  printf("{\"hf\":");
  print_name(info->hf, local->expert);
  if (info->n_dims < local->n_dims) printf(",\"index\":%" PRId64, local->shape[0] - 1);
}

/* `n` rows of a part from the `first` of the tensor's local part on. */
static int print_part(const xfer_refit *refit, const xfer_local *local, int rank,
                      const xfer_local_part *part, int64_t first, int64_t n, table_index to)
{
  const xfer_tensor *tensor = &xfer_refit_tensors(refit, NULL)[part->tensor];
  const xfer_layout *layout = local->side == XFER_SIDE_TRAIN ? tensor->src : tensor->dst;
  const int64_t begin = part->begin + (first - part->first) * part->step;
  xfer_refit_tensor info;
  int failed = xfer_refit_tensor_get(refit, part->tensor, &info) != XFER_OK;

  if (failed) return 1;
  print_source(&info, local);
  printf(",\"dim\":%d,\"local\":[%" PRId64 ",%" PRId64 "],\"global\":",
         part->dim < 0 ? 0 : part->dim, begin, begin + n);
  if (part->tensor_dim < 0) {
    printf("[[0,1]]");
  } else {
    failed = print_ranges(layout, rank, part->tensor_dim, first, n, to);
  }
  printf("}");
  return failed;
}

/* Are the rank's `length` the whole dim, and no more? */
static bool is_whole(const xfer_layout *layout, int rank, int dim, int64_t length)
{
  int64_t shape[XFER_MAX_DIMS];
  xfer_run run;
  size_t n_runs = 0;

  xfer_layout_shape(layout, shape);
  return xfer_layout_runs(layout, rank, dim, &run, 1, &n_runs) == XFER_OK && n_runs == 1 &&
         run.global == 0 && run.length == shape[dim] && length == shape[dim];
}

/* The other dims in which the rank does not hold the whole of the tensor. */
static int print_other_dims(const xfer_refit *refit, const xfer_local *local, int rank,
                            const xfer_local_part *part)
{
  const xfer_tensor *tensor = &xfer_refit_tensors(refit, NULL)[part->tensor];
  const xfer_layout *layout = local->side == XFER_SIDE_TRAIN ? tensor->src : tensor->dst;
  xfer_refit_tensor info;
  int failed = xfer_refit_tensor_get(refit, part->tensor, &info) != XFER_OK;

  for (int k = info.n_dims < local->n_dims; k < local->n_dims && !failed; k++) {
    const int d = local->dims[k] - (info.n_dims < local->n_dims);
    const table_index to = {d == 0 && info.n_experts > 0 ? info.first_expert : 0, 1};

    if (d == part->tensor_dim || (to.first == 0 && is_whole(layout, rank, d, local->shape[k])))
      continue;
    printf(",");
    print_source(&info, local);
    printf(",\"dim\":%d,\"local\":[0,%" PRId64 "],\"global\":", k,
           count_valid(layout, rank, d, 0, local->shape[k]));
    failed = print_ranges(layout, rank, d, 0, local->shape[k], to);
    printf("}");
  }
  return failed;
}

/* Gate and up that alternate as they do in the table are one part of the table's tensor. */
static int print_both(const xfer_refit *refit, const xfer_local *local, int rank,
                      const xfer_local_part *part, int64_t n)
{
  const xfer_tensor *tensor = &xfer_refit_tensors(refit, NULL)[part->tensor];
  const xfer_layout *layout = local->side == XFER_SIDE_TRAIN ? tensor->src : tensor->dst;
  xfer_refit_tensor info;
  xfer_run run;
  size_t n_runs = 0;

  if (xfer_refit_tensor_get(refit, part->tensor, &info) != XFER_OK ||
      xfer_layout_runs(layout, rank, part->tensor_dim, &run, 1, &n_runs) != XFER_OK || n_runs != 1)
    return 1;
  printf("{\"hf\":");
  print_name(info.hf, -1);
  printf(",\"dim\":%d,\"local\":[0,%" PRId64 "],\"global\":[[%" PRId64 ",%" PRId64 "]]}", part->dim,
         2 * n, 2 * run.global, 2 * (run.global + n));
  return 0;
}

/* Prints the k-th part of a local tensor, and with it the next if they are one; the number of parts
 * done. */
static int print_parts(const xfer_refit *refit, const xfer_locals *locals, const xfer_local *local,
                       size_t i, int rank, int k, const char **comma, bool *failed)
{
  const xfer_tensor *tensor;
  xfer_local_part part;
  xfer_refit_tensor info;
  table_index to = {0, 1};
  int64_t n;

  *failed = xfer_locals_part_get(locals, i, (size_t)k, &part) != XFER_OK ||
            xfer_refit_tensor_get(refit, part.tensor, &info) != XFER_OK;
  if (*failed) return 1;
  n = (part.end - part.begin + part.step - 1) / part.step;
  if (info.half_dim == part.tensor_dim && part.tensor_dim >= 0)
    to = (table_index){info.half_first, info.half_step};
  tensor = &xfer_refit_tensors(refit, NULL)[part.tensor];
  n = count_valid(local->side == XFER_SIDE_TRAIN ? tensor->src : tensor->dst, rank, part.tensor_dim,
                  part.first, n);
  if (n == 0) return 1; /* padding and zeros are no part of anything */
  printf("%s", *comma);
  *comma = ",";
  if (part.step == 2 && to.step == 2 && part.begin == to.first && k + 1 < local->n_parts) {
    *failed = print_both(refit, local, rank, &part, n) != 0 ||
              print_other_dims(refit, local, rank, &part) != 0;
    return 2;
  }
  if (part.step == 1) {
    *failed = print_part(refit, local, rank, &part, part.first, n, to) != 0 ||
              print_other_dims(refit, local, rank, &part) != 0;
    return 1;
  }
  for (int64_t row = 0; row < n && !*failed; row++) {
    if (row > 0) printf(",");
    *failed = print_part(refit, local, rank, &part, part.first + row, 1, to) != 0;
  }
  if (!*failed) *failed = print_other_dims(refit, local, rank, &part) != 0;
  return 1;
}

static void print_head(int rank, const xfer_local *local, const char *name, int32_t dtype,
                       xfer_conversion conversion)
{
  printf("{\"rank\":%d,\"side\":\"%s\",\"name\":", rank,
         local->side == XFER_SIDE_TRAIN ? "train" : "gen");
  print_name(name, -1);
  printf(",\"shape\":[");
  for (int d = 0; d < local->n_dims; d++)
    printf("%s%" PRId64, d > 0 ? "," : "", local->shape[d]);
  printf("],\"dtype\":\"%s\",", xfer_dtype_name((xfer_dtype)dtype));
  if (conversion != 0) printf("\"conversion\":%" PRIu64 ",", conversion);
  if (local->expert >= 0) printf("\"expert\":%d,", local->expert);
  if (local->misc != 0 && local->made == NULL) printf("\"misc\":true,"); /* not the framework's */
  printf("\"parts\":[");
}

/* Of the first part; all have one. */
static xfer_conversion conversion_of(const xfer_refit *refit, const xfer_locals *locals, size_t i)
{
  xfer_local_part part;

  if (xfer_locals_part_get(locals, i, 0, &part) != XFER_OK) return 0;
  return xfer_refit_tensors(refit, NULL)[part.tensor].conversion;
}

static int print_local(const xfer_refit *refit, const xfer_locals *locals, size_t i, int rank)
{
  xfer_local local;
  const char *comma = "";
  bool failed = xfer_locals_get(locals, i, &local) != XFER_OK;

  if (failed) return 1;
  /* Where the framework makes other values of what it gets, its own tensor is listed, and after
   * "hook" the name under which the values to make it of arrive. */
  if (local.made != NULL)
    print_head(rank, &local, local.made, local.made_dtype, 0);
  else
    print_head(rank, &local, local.name, local.dtype, conversion_of(refit, locals, i));
  for (int k = 0; k < local.n_parts && !failed;) {
    k += print_parts(refit, locals, &local, i, rank, k, &comma, &failed);
  }
  printf("]");
  if (local.made != NULL && !failed) {
    printf(",\"hook\":");
    print_name(local.name, -1);
  }
  printf("}\n");
  return failed;
}

static int print_rank(const xfer_refit *refit, int rank)
{
  xfer_locals *locals = NULL;
  const xfer_status st = xfer_locals_create(&locals, refit, rank);
  int failed = st != XFER_OK;

  for (size_t i = 0; i < xfer_locals_count(locals) && !failed && !interrupt_came(); i++)
    failed = print_local(refit, locals, i, rank);
  xfer_locals_destroy(locals);
  if (st == XFER_ERR_NOMEM)
    return args_failed("the tensors of rank %d: %s; --layers takes a part of the model", rank,
                       xfer_last_error());
  return failed ? plan_failed() : EXIT_SUCCESS;
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
