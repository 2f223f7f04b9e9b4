/* What a plan does on each rank, found by simulation and printed as text or JSON. */
#ifndef TOOLS_PLAN_REPORT_H
#define TOOLS_PLAN_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "plan.h"

/* Is there the rank that args asks for, if it does? 0, or ARGS_WRONG after a sentence. */
int plan_check_rank(const plan_args *args, int n_ranks);

/* As args asks: the report of all ranks, or with args->rank the plan of that one. Returns the exit
 * status. */
int plan_report(const plan_whole *whole, const plan_args *args);

/* Plans one rank. False: xfer_last_error(). */
bool plan_one(xfer_plan_report_data *report, int n_ranks, int rank, const xfer_tensor *tensors,
              size_t n_tensors);

/* One complete planning of a rank, from what was read to its move list. False: xfer_last_error().
 */
typedef bool (*plan_work)(void *context, int rank, xfer_plan_report_data *report);

/* Do `work` a few times and print its median time and the memory that it needed. Returns the exit
 * status. */
int plan_bench(plan_work work, void *context, int rank);

#endif
