/* The command line of xfer_plan and a plan of all ranks, as its parts see them. */
#ifndef TOOLS_PLAN_PLAN_H
#define TOOLS_PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <xfer/refit.h>

#include "args.h"
#include "job.h"

/* A machine as time sees it. */
typedef struct machine {
  int64_t link_gbs; /* GB/s of a GPU to others of its domain */
  int64_t nic_gbs;  /* and beyond it */
  int64_t domain;   /* GPUs that links join */
  bool packed;      /* they cannot map each other's memory, or are not to */
} machine;

typedef struct plan_args {
  const char *problem; /* NULL: job.model */
  job_args job;        /* job.model NULL: problem */
  int64_t rank;        /* -1: all ranks */
  const char *expect;  /* print the local tensors of these ranks, "A-B"; NULL: no */
  const char *html;    /* NULL: no page */
  const char *svg;     /* NULL: no picture */
  const char *tensor;  /* to draw; NULL: the only one */
  bool draw;
  int64_t sweep;   /* GPUs to serve; -1: no */
  int64_t tensors; /* as many of the problem's */
  int64_t domain;  /* 0: not said; machine.domain is a usual one then */
  machine machine;
  bool json;
  bool regions;
  bool moves;
  bool bench;
} plan_args;

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

/* "xfer_plan: " and xfer_last_error() on stderr; returns 1. */
static inline int plan_failed(void)
{
  return args_failed("%s", xfer_last_error());
}

#endif
