/* xfer_plan --expect: the local tensors that a rank binds, one JSON line each. */
#include "plan_expect.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The stretches of `dim` whose place in the rank's part lies in [first, first + n). */
static int print_ranges(const xfer_layout *layout, int rank, int dim, int64_t first, int64_t n, int64_t shift)
{
  xfer_run *runs = NULL;
  size_t n_runs = 0;
  bool comma = false;
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
    if (hi <= lo) continue;
    lo += runs[i].global - runs[i].local + shift;
    hi += runs[i].global - runs[i].local + shift;
    printf("%s[%" PRId64 ",%" PRId64 "]", comma ? "," : "", lo, hi);
    comma = true;
  }
  printf("]");
  free(runs);
  return failed;
}

/* The table's name, with the expert's number if the local tensor is of one alone. */
static void print_name(const char *name, int expert)
{
  const char *place = expert < 0 ? NULL : strstr(name, "{expert}");

  if (place == NULL) {
    printf("%s", name);
  } else {
    printf("%.*s%d%s", (int)(place - name), name, expert, place + strlen("{expert}"));
  }
}

static int print_part(const xfer_refit *refit, const xfer_local *local, int rank, const xfer_local_part *part)
{
  const xfer_tensor *tensor = &xfer_refit_tensors(refit, NULL)[part->tensor];
  const xfer_layout *layout = local->side == XFER_SIDE_TRAIN ? tensor->src : tensor->dst;
  xfer_refit_tensor info;
  int failed = xfer_refit_tensor_get(refit, part->tensor, &info) != XFER_OK;
  int64_t n = (part->end - part->begin + part->step - 1) / part->step;

  if (failed) return 1;
  printf("{\"hf\":\"");
  print_name(info.hf, local->expert);
  printf("\",\"dim\":%d,\"local\":[%" PRId64 ",%" PRId64 "],", part->dim < 0 ? 0 : part->dim,
         part->begin, part->end);
  if (part->step > 1) printf("\"step\":%" PRId64 ",", part->step);
  printf("\"global\":");
  if (part->tensor_dim < 0) {
    printf("[[0,1]]");
  } else {
    failed = print_ranges(layout, rank, part->tensor_dim, part->first, n, 0);
  }
  if (info.n_experts > 0 && local->expert < 0) {
    printf(",\"experts\":");
    failed |= print_ranges(layout, rank, 0, 0, INT64_MAX / 2, info.first_expert);
  }
  printf("}");
  return failed;
}

static void print_head(const xfer_local *local, const char *name, int32_t dtype)
{
  printf("{\"side\":\"%s\",\"name\":\"%s\",\"shape\":[", local->side == XFER_SIDE_TRAIN ? "train" : "gen", name);
  for (int d = 0; d < local->n_dims; d++) printf("%s%" PRId64, d > 0 ? "," : "", local->shape[d]);
  printf("],\"dtype\":\"%s\",\"parts\":[", xfer_dtype_name((xfer_dtype)dtype));
}

/* No part of it is a copy: a hook makes it. */
static void print_made(const xfer_local *local)
{
  print_head(local, local->made, local->made_dtype);
  printf("],\"hook\":\"%s\"}\n", local->name);
}

static int print_local(const xfer_refit *refit, const xfer_locals *locals, size_t i, int rank)
{
  xfer_local local;
  xfer_local_part part;
  int failed = xfer_locals_get(locals, i, &local) != XFER_OK;

  if (failed) return 1;
  print_head(&local, local.name, local.dtype);
  for (int k = 0; k < local.n_parts && !failed; k++) {
    failed = xfer_locals_part(locals, i, (size_t)k, &part) != XFER_OK;
    if (k > 0) printf(",");
    if (!failed) failed = print_part(refit, &local, rank, &part);
  }
  printf("]}\n");
  if (local.made != NULL) print_made(&local);
  return failed;
}

int plan_expect(const xfer_refit *refit, int rank)
{
  xfer_locals *locals = NULL;
  int failed = xfer_locals_create(&locals, refit, rank) != XFER_OK;

  for (size_t i = 0; i < xfer_locals_count(locals) && !failed; i++) failed = print_local(refit, locals, i, rank);
  xfer_locals_destroy(locals);
  return failed;
}
