/* What a plan does on each rank, found by simulation and printed as text or JSON. */
#ifndef TOOLS_PLAN_REPORT_H
#define TOOLS_PLAN_REPORT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <xfer/refit.h>

#include "plan.h"

/* A plan of all ranks. */
typedef struct plan_whole {
  const char *title; /* of the text report, one line */
  int n_ranks;
  const xfer_tensor *tensors; /* [n_tensors] */
  size_t n_tensors;
  uint64_t names;                      /* tensors by their names outside, each once */
  uint64_t payload_bytes;              /* of these */
  const xfer_refit_report_data *refit; /* NULL: not a model */
  const xfer_refit *joined;            /* likewise */
  int64_t domain;                      /* ranks that links join; 0: that is not known */
  const machine *machine;              /* what times are predicted for */
} plan_whole;

/* What a plan is made with. */
static inline xfer_plan_options plan_options(int64_t domain)
{
  xfer_plan_options options = XFER_PLAN_OPTIONS_INIT;

  options.ranks_per_domain = (uint32_t)domain;
  return options;
}

/* As args asks: the report of all ranks, or with args->rank the plan of that one. Returns the exit
 * status. */
int plan_report(const plan_whole *whole, const plan_args *args);

/* One complete planning of a rank, from what was read to its move list. Sets the figures; false:
 * xfer_last_error(). */
typedef bool (*plan_work)(void *context, int rank, uint64_t *n_tensors, uint64_t *n_moves);

/* Do `work` a few times and print its median time and the memory that it needed. Returns the exit
 * status. */
int plan_bench(plan_work work, void *context, int rank);

/* "xfer_plan: " and xfer_last_error() on stderr; returns 1. */
int plan_failed(void);

#endif
