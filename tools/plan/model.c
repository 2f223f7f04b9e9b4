#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "expect.h"
#include "report.h"

/* From the parsed table to the complete move list: both sides, the join, the plan. */
typedef struct model_work {
  const job_args *args;
  xfer_model *model;
  const xfer_rules *rules;
} model_work;

static bool plan_rank(void *context, int rank, xfer_plan_report_data *report)
{
  const model_work *work = context;
  job made = {0};
  size_t n = 0;

  if (job_join(&made, work->args, work->model, work->rules) != XFER_OK) return false;
  const xfer_tensor *tensors = xfer_refit_tensors(made.refit, &n);
  const bool ok = plan_one(report, xfer_refit_ranks(made.refit), rank, tensors, n);
  job_destroy(&made);
  return ok;
}

static int run(const plan_args *args, const job *made)
{
  xfer_refit_report_data report = XFER_REFIT_REPORT_INIT;
  const int n_ranks = xfer_refit_ranks(made->refit);
  model_work work = {&args->job, made->model, made->rules};
  size_t n = 0;
  const xfer_tensor *tensors = xfer_refit_tensors(made->refit, &n);
  const int wrong = plan_check_rank(args, n_ranks);

  if (wrong != 0) return wrong;
  if (args->expect != NULL) return plan_expect(made->refit, args->expect);
  if (args->bench) return plan_bench(plan_rank, &work, (int)args->rank);
  if (xfer_refit_report(made->refit, &report) != XFER_OK) return plan_failed();

  const plan_whole whole = {.title = args->job.model,
                            .n_ranks = n_ranks,
                            .tensors = tensors,
                            .n_tensors = n,
                            .names = report.hf_tensors,
                            .payload_bytes = report.payload_bytes,
                            .refit = &report,
                            .joined = made->refit,
                            .domain = args->domain,
                            .machine = &args->machine};
  return plan_report(&whole, args);
}

int plan_model_main(const plan_args *args)
{
  job made = {0};
  int status = job_create(&made, &args->job);

  if (status != 0) return status;
  status = run(args, &made);
  job_destroy(&made);
  return status;
}
