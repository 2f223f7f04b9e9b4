/* The command line of xfer_plan, as its parts see it. */
#ifndef TOOLS_PLAN_ARGS_H
#define TOOLS_PLAN_ARGS_H

#include <stdbool.h>
#include <stdint.h>

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
  int64_t expect;      /* print the local tensors of this rank; -1: no */
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

#endif
